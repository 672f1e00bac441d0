"""The real torch_npu on the virtual device. Few processes with many cases: one start takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ascend_perf.collectors.virtual_npu.cost import cost_lines
from ascend_perf.collectors.virtual_npu.environment import Prepared, variables
from ascend_perf.collectors.virtual_npu.record import Record, read_folder
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from tests._virtual_npu import ready_npu

pytestmark = [pytest.mark.slow, pytest.mark.torch]
GIB = 1 << 30
WIDTH, LAYERS, STEPS, RANKS = 64, 4, 3, 8
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)

LOOP = f"""
import json, os, sys, torch, torch_npu
import torch.distributed as dist
from pathlib import Path
said = {{}}
def model():
    return torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))).npu()
def train(network, cast=False):
    optimizer = torch.optim.AdamW(network.parameters(), fused=False)
    losses = []
    for _ in range({STEPS}):
        with torch.autocast("npu", torch.bfloat16, enabled=cast):
            loss = network(torch.randn(8, {WIDTH}).npu()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
def mark(name):
    torch.npu.synchronize()
    library.mstxMarkA(name.encode(), None)
import ctypes
library = ctypes.CDLL("libascendcl.so")
"""

ALONE = LOOP + f"""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
said["name"], said["devices"] = torch.npu.get_device_name(), torch.npu.device_count()
said["plain"] = train(model())
said["memory"] = torch.npu.mem_get_info()[1]
said["cast"] = train(model(), cast=True)
scaler = torch.npu.amp.GradScaler()
network = model()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
with torch.autocast("npu", torch.float16):
    loss = network(torch.randn(8, {WIDTH}).npu()).square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
said["scale"] = scaler.get_scale()
x = torch.randn(2, 4, 32, 16, device="npu", dtype=torch.bfloat16, requires_grad=True)
y = torch_npu.npu_fusion_attention(x, x, x, 4, "BNSD", scale=0.25)[0]
torch_npu.npu_swiglu(torch_npu.npu_rms_norm(y, torch.ones(16, device="npu", dtype=torch.bfloat16))[0]).sum().backward()
said["sent"] = torch.arange(7).npu().cpu().tolist()
begin, end = (torch.npu.Event(enable_timing=True) for _ in "12")
torch.npu.synchronize()
mark("timed")
begin.record()
for _ in range(10):
    torch.relu(y)
end.record()
mark("end timed")
said["elapsed_ms"] = begin.elapsed_time(end)
try:
    torch.empty(3 << 30, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    said["full"] = str(error)
try:
    torch.npu.set_device(99)
except RuntimeError as error:
    said["absent"] = str(error)
try:
    with torch.npu.graph(torch.npu.NPUGraph()):
        y + 1
except RuntimeError as error:
    said["capture"] = str(error)
dist.init_process_group("hccl", rank=0, world_size={RANKS}, store=dist.HashStore())
gathered = [None] * {RANKS}
dist.all_gather_object(gathered, {{"rank": dist.get_rank(), "text": "x" * 300}})
said["gathered"] = gathered
total = torch.tensor([1.5, -2.0]).npu()
dist.all_reduce(total)
said["total"] = total.tolist()
mark("ddp")
said["ddp"] = train(torch.nn.parallel.DistributedDataParallel(model()))
mark("fsdp")
network = model()
for layer in network:
    fully_shard(layer)
said["fsdp"] = train(fully_shard(network))
mark("tp")
mesh = init_device_mesh("npu", ({RANKS},))
plan = {{"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel(), "3": RowwiseParallel()}}
said["tp"] = train(parallelize_module(model(), mesh, plan))
mark("end")
dist.destroy_process_group()
Path(sys.argv[1], "said.json").write_text(json.dumps(said))
"""

JOB = LOOP + """
dist.init_process_group("hccl")
rank = dist.get_rank()
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
objects = [{"from": rank, "text": "y" * (100 + rank)}]
dist.broadcast_object_list(objects, src=1)
gathered = [None, None]
dist.all_gather_object(gathered, "z" * (rank + 1))
mark("ddp")
losses = train(torch.nn.parallel.DistributedDataParallel(model()))
mark("end")
dist.destroy_process_group()
Path(sys.argv[1], f"said{rank}.json").write_text(json.dumps({"objects": objects, "gathered": gathered}))
"""

BLOCKING = LOOP + """
x = torch.ones(64, device="npu")
mark("timed")
for _ in range(10):
    torch.relu(x)
mark("end timed")
"""


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return ready_npu()


def run(
    prepared: Prepared, folder: Path, script: str, settings: VirtualNpu, *, launcher: Sequence[str] = (),
    processes: int | None = None, **more: str,
) -> list[Record]:  # fmt: skip
    program = folder / "program.py"
    program.write_text(script)
    told = variables(settings, prepared, folder, processes=processes, cost_lines=cost_lines(settings))
    command = [sys.executable, *launcher, str(program), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, **told, **more}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [record for record in read_folder(folder) if len(record.tables["K"]["seq"])]


def windows(record: Record) -> dict[str, int]:
    return {text: time for time, _, text, _ in record.marks}


def picked(record: Record, kind: str, begin: str, end: str) -> dict[str, Any]:
    """Rows of a table between two marks."""
    times, table = windows(record), record.tables[kind]
    rows = (table["host_ns"] >= times[begin]) & (table["host_ns"] < times[end])
    return {name: column[rows] for name, column in table.items()}


def moved(record: Record, begin: str, end: str) -> dict[str, list[int]]:
    """Bytes of the collectives between two marks, by name."""
    found: dict[str, list[int]] = {}
    for number in picked(record, "C", begin, end)["def"].tolist():
        _, name, body = record.definitions[number]
        nbytes = body["bytes"]
        assert isinstance(nbytes, int)
        found.setdefault(name.removeprefix("Hccl"), []).append(nbytes)
    return found


def test_one_process_trains_alone_and_for_eight(prepared: Prepared, tmp_path: Path) -> None:
    settings = VirtualNpu(world_size=RANKS, hbm_bytes=12 * GIB // 4, clock="modelled")
    (record,) = run(prepared, tmp_path, ALONE, settings)
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["name"], said["devices"], said["memory"]) == ("Ascend910B2", 8, 3 * GIB)
    for name in ("plain", "cast", "ddp", "fsdp", "tp"):
        assert said[name] == [0.0] * STEPS, name  # kernels compute nothing
    assert said["scale"] == 65536
    assert said["sent"] == list(range(7))
    assert said["gathered"] == [{"rank": 0, "text": "x" * 300}] * RANKS
    assert said["total"] == [8 * 1.5, 8 * -2.0]
    assert not record.is_truncated

    # Events around ten launches: what the program reads is what the record has.
    kernels, marked = picked(record, "K", "timed", "end timed"), record.tables["E"]
    times = windows(record)
    events = marked["device_ns"][(marked["host_ns"] >= times["timed"]) & (marked["host_ns"] < times["end timed"])]
    assert len(kernels["seq"]) == 10
    assert said["elapsed_ms"] == pytest.approx((events[1] - events[0]) / 1e6, rel=1e-6)
    assert events[0] <= kernels["start_ns"][0] and kernels["end_ns"][-1] <= events[1]

    # Errors are torch_npu's own, from the codes of the device.
    assert "NPU out of memory. Tried to allocate 3.00 GiB" in said["full"]
    assert "3.00 GiB total capacity" in said["full"]
    assert "error code is 107001" in said["absent"]
    assert "set device=99, valid device range is [0, 8)" in said["absent"]
    assert "error code is 107030" in said["capture"]
    assert {(name, code) for _, name, code, _ in record.errors} >= {
        ("aclrtSetDevice", 107001), ("aclmdlRICaptureBegin", 107030),
    }  # fmt: skip

    # What each way of training sends: all gradients once a step; each layer sharded over eight ranks.
    ddp = moved(record, "ddp", "fsdp")
    assert sum(ddp["AllReduce"]) == STEPS * PARAMETERS * 4
    layer = (WIDTH * WIDTH + WIDTH) * 4 // RANKS
    fsdp = moved(record, "fsdp", "tp")
    assert fsdp["ReduceScatter"] == [layer] * LAYERS * STEPS
    assert set(fsdp["AllGather"]) == {layer}
    assert LAYERS * STEPS < len(fsdp["AllGather"]) <= 2 * LAYERS * STEPS  # forward, and again for backward
    # Tensor parallel: the output of each row-wise layer is summed, and the gradient of one input: the first has none.
    assert moved(record, "tp", "end")["AllReduce"].count(8 * WIDTH * 4) == 3 * STEPS


def test_blocking_launches_wait_for_the_device(prepared: Prepared, tmp_path: Path) -> None:
    settings = VirtualNpu(clock="modelled", faults={"op_factor": [("aclnnRelu", 100)]})
    gaps = []
    for blocking in ("0", "1"):
        folder = tmp_path / blocking
        folder.mkdir()
        (record,) = run(prepared, folder, BLOCKING, settings, ASCEND_LAUNCH_BLOCKING=blocking)
        kernels = picked(record, "K", "timed", "end timed")
        gaps.append(kernels["host_ns"][1:] - kernels["end_ns"][:-1])
        assert len(gaps[-1]) == 9
    assert (gaps[0] < 0).all()  # launched while the kernel before it runs
    assert (gaps[1] >= 0).all()


def test_ranks_of_torchrun_meet(prepared: Prepared, tmp_path: Path) -> None:
    settings = VirtualNpu(world_size=2, clock="modelled", faults={"slow_rank": [(1, 50)]})
    records = run(
        prepared, tmp_path, JOB, settings, processes=2,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    )  # fmt: skip
    assert [record.rank for record in records] == [0, 1]
    for rank in range(2):
        said = json.loads((tmp_path / f"said{rank}.json").read_text())
        assert said == {"objects": [{"from": 1, "text": "y" * 101}], "gathered": ["z", "zz"]}
    first, second = (record.tables["C"] for record in records)
    for table in (first, second):
        assert len(table["index"]) > STEPS
    np.testing.assert_array_equal(first["index"], second["index"])
    np.testing.assert_array_equal(first["start_ns"], second["start_ns"])
    np.testing.assert_array_equal(first["start_ns"], np.maximum(first["arrive_ns"], second["arrive_ns"]))
    # In the training loop rank 1 is slow, so rank 0 waits for it and rank 1 does not.
    fast, slow = (gradient_waits(record) for record in records)
    assert len(fast) == len(slow) >= STEPS
    assert (fast > 0).all()
    assert (slow == 0).all()


def gradient_waits(record: Record) -> NDArray[np.int64]:
    """How long the all-reduces of the training loop waited for the other rank."""
    rows = picked(record, "C", "ddp", "end")
    names = [record.definitions[number][1] for number in rows["def"].tolist()]
    waits: NDArray[np.int64] = (rows["start_ns"] - rows["arrive_ns"])[np.array(names) == "HcclAllReduce"]
    return waits
