"""Runs on virtual NPUs from the command line to the report: what is said, what must not be, sizes that are known.

Each run is a process or two of the real torch_npu; they are few and shared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ascend_perf import load
from ascend_perf import manifest as manifests
from ascend_perf.cli import cli
from ascend_perf.errors import MachineError
from ascend_perf.model.run import Manifest
from ascend_perf.op_streams import read_op_stream
from ascend_perf.workloads import _spec
from ascend_perf.workloads._model_shape import parameter_count
from tests.workloads.test_on_virtual_npu import needs_virtual_npu as needs_virtual_npu

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
FEW = ["--set", "warmup_steps=2", "--set", "measured_steps=2", "--set", "profiled_steps=1"]


def invoked(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def metrics_of(manifest: Manifest) -> dict[str, float]:
    return {metric.name: metric.value for metric in manifest.metrics if metric.value is not None}


def test_a_run_says_everywhere_that_it_is_simulated_and_its_snapshot_names_what_changed(tmp_path: Path) -> None:
    folder, base, head = tmp_path / "run", tmp_path / "base.ops.txt", tmp_path / "head.ops.txt"
    run = ["run", "llm-pretrain", "--device", "virtual-npu", "--world-size", "8", *FEW]
    done = invoked(*run, "--snapshot", str(base), "-o", str(folder))
    assert done.exit_code == 0, done.output
    assert "Ascend910B2 (virtual) · SIMULATED" in done.output and "SIMULATED: nothing ran on an NPU" in done.output
    assert "torch_npu" not in sys.modules  # neither here nor anywhere but in the children

    manifest = manifests.read_manifest(folder)
    assert (manifest.data_origin, manifest.device) == ("simulated", "npu")
    assert manifest.device_facts["name"] == "Ascend910B2 (virtual)" and manifest.device_facts["world_size"] == 8
    assert [note for note in manifest.notes if "warn" in note or "error" in note.lower()] == []
    measured = metrics_of(manifest)
    assert "loss" not in measured and "series" not in manifest.files  # nothing that a device would have computed
    # The sizes of gradients by the formula of the workload, and what torch_npu really sent.
    assert measured["communication_per_step"] == measured["predicted_communication_per_step"]
    for part in ("weights", "gradients", "optimizer"):
        assert measured[f"memory_{part}"] == pytest.approx(measured[f"predicted_memory_{part}"], rel=1e-3)

    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert report["data_origin"] == "simulated"
    assert {rank["device"]["name"] for rank in report["ranks"] if rank.get("device")} <= {"Ascend910B2 (virtual)"}
    assert "origin.banner" in (folder / "report" / "report.html").read_text("utf-8")
    (record,) = (folder / "record-SIMULATED").iterdir()
    assert b"/trace/" not in record.read_bytes() and b"trace/rank0_" in record.read_bytes()  # no path of this machine
    (trace,) = (folder / "trace").iterdir()
    assert "SIMULATED" in trace.name
    assert load(trace).traces[0].meta.data_origin == "simulated"  # on its own, too

    refused = invoked("compare", str(folder), str(folder))
    assert refused.exit_code != 0 and "holds simulated data" in str(refused.exception)

    other = [*run, "--set", "fused=off", "--clock", "modelled", "--no-report"]
    again = invoked(*other, "--snapshot", str(head), "-o", str(tmp_path / "other"))
    assert again.exit_code == 0, again.output
    second = manifests.read_manifest(tmp_path / "other")
    assert any(note.startswith("no profile: with --clock modelled") for note in second.notes)
    assert len(second.timings_ns["measured"]) == 2 and "trace" not in second.files

    changed = invoked("diff-snapshot", str(base), str(head), "--all")
    assert changed.exit_code == 1
    lines = changed.output.splitlines()
    assert any(line.split()[:2] == ["fused", "auto"] for line in lines)
    # 4 layers in 2 micro-batches: two norms each and one at the end, an MLP each.
    assert any("-18 (18 -> 0)" in line and "aclnnRmsNorm(" in line for line in lines), changed.output
    assert any("+8 (0 -> 8)" in line and "aclnnSilu(" in line for line in lines), changed.output
    # Attention stays one operator, with another sparse mode.
    assert any(line.strip().startswith("8 x") and "aclnnFlashAttentionScore(" in line for line in lines), changed.output
    assert any("memory_peak_bytes" in line for line in lines)
    assert invoked("diff-snapshot", str(base), str(base)).exit_code == 0
    calls = read_op_stream(base).totals
    assert sum(n for line, n in calls.items() if line.startswith("aclnnFlashAttentionScore(")) == 8  # 4 layers x 2


def test_too_little_memory_ends_in_the_library_s_own_error_and_says_what_would_fit(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = invoked(
        "run", "llm-pretrain", "--preset", "7b", "--set", "data_parallel=ddp", "--device", "virtual-npu", "--hbm",
        "32GiB", "-o", str(folder),
    )  # fmt: skip
    assert isinstance(done.exception, MachineError)
    assert done.exception.what.startswith("NPU out of memory. Tried to allocate")
    assert "32.00 GiB total capacity" in done.exception.what
    assert done.exception.hint.startswith("what would fit 32 GiB, by the modelled memory: ")
    assert "--set data_parallel=fsdp" in done.exception.hint
    assert invoked("analyze", str(folder), "-o", str(tmp_path / "report"), "--format", "md").exit_code == 0
    report = (tmp_path / "report" / "report.md").read_text("utf-8")
    assert "NPU out of memory" in report and "what would fit 32 GiB" in report and "**simulated**" in report


def test_7b_on_64_ranks_has_the_memory_of_the_formula_and_the_collectives_of_the_fake_group(tmp_path: Path) -> None:
    folder, snapshot = tmp_path / "run", tmp_path / "ops.txt"
    done = invoked(
        "run", "llm-pretrain", "--preset", "7b", "--set", "accumulate=1", *FEW, "--device", "virtual-npu",
        "--world-size", "64", "--clock", "modelled", "--snapshot", str(snapshot), "--no-report", "-o", str(folder),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    measured = metrics_of(manifests.read_manifest(folder))
    config: Any = _spec.find_workload("llm-pretrain").settings("7b").config
    parameters = parameter_count(config.shape)
    assert parameters == 6_738_415_616
    # fp32 weights and gradients, two fp32 moments of Adam, cut over 64 ranks.
    for part, each in (("weights", 4), ("gradients", 4), ("optimizer", 8)):
        assert measured[f"memory_{part}"] == pytest.approx(each * parameters / 64, rel=0.01), part
    assert measured["peak_rss"] < 2 * 2**30

    child = subprocess.run(
        [sys.executable, "-m", "tests.workloads._fake_group", "64", "7b", "accumulate=1"], cwd=ROOT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]
    fake = json.loads(child.stdout.splitlines()[-1])
    seen: dict[str, int] = {}
    for line, count in read_op_stream(snapshot).totals.items():
        if line.startswith("Hccl"):
            name = line.partition("(")[0]
            seen[name] = seen.get(name, 0) + count
    assert seen == {
        "HcclAllGather": fake["c10d._allgather_base_.default"],
        "HcclReduceScatter": fake["c10d._reduce_scatter_base_.default"],
        "HcclAllReduce": fake["c10d.allreduce_.default"],
    }
    assert seen["HcclAllGather"] == 2 * 32 + 1  # each block forward and backward, the rest once


PROGRAM = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("hccl")
local = int(os.environ["LOCAL_RANK"])
torch.npu.set_device(local)
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).to(f"npu:{local}")
net = DistributedDataParallel(net, device_ids=[local])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(7):
    net(torch.randn(8, 64).to(f"npu:{local}")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.npu.synchronize()
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, dist.get_rank())
if dist.get_rank() == 0:  # alone: lines of two processes may mix
    print("ranks", dist.get_world_size(), everyone, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", [False, True], ids=["one process for 8 ranks", "torchrun with 2 ranks"])
def test_a_program_of_the_user_s_own(tmp_path: Path, launcher: bool) -> None:
    script, folder, snapshot = tmp_path / "train.py", tmp_path / "run", tmp_path / "ops.txt"
    script.write_text(PROGRAM, "utf-8")
    world = 2 if launcher else 8
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if launcher else []
    words = ["--device", "virtual-npu", *([] if launcher else ["--world-size", "8"]), "--skip", "3", "--steps", "2",
             "--format", "json", "--snapshot", str(snapshot), "-o", str(folder)]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "ascend_perf", "collect", *words, "--", sys.executable, *torchrun, str(script)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    everyone = list(range(world)) if launcher else [0] * world
    assert f"ranks {world} {everyone}" in done.stdout
    manifest = manifests.read_manifest(folder)
    assert (manifest.data_origin, manifest.status) == ("simulated", "complete"), manifest.problem
    assert "computes nothing: there is no loss" in done.stderr  # what the program printed is not one
    assert "torch_npu" in manifest.versions and "ASCEND_HOME_PATH" not in manifest.environment
    assert str(tmp_path) not in "".join(
        path.read_text("utf-8") for path in folder.rglob("*") if path.suffix in (".log", ".json", ".vnpu", ".csv")
    )
    assert manifest.device_facts["world_size"] == world
    assert json.loads((folder / "report" / "report.json").read_text("utf-8"))["data_origin"] == "simulated"
    assert len(list((folder / "trace").iterdir())) == (2 if launcher else 1)
    assert not (folder / "record-SIMULATED" / "meet").exists()
    stream = read_op_stream(snapshot)
    # One bucket of three layers of 64 x 64 weights and 64 biases.
    assert stream.totals[f"HcclAllReduce(f32[{3 * (64 * 64 + 64)}], ranks={world})"] == 1
    assert stream.world_size == world


LOOP = """
import torch, torch_npu
net = torch.nn.Linear(64, 64).npu()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(8, 64).npu()
for _ in range(9):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {read}
"""


@pytest.mark.parametrize(
    ("read", "by"),
    [
        ("loss.item()", "aten::item"), ("print(loss)", "aten::is_nonzero"), ("x[x > 0]", "aten::index"), ("pass", None)
    ],
)  # fmt: skip
def test_a_value_that_is_read_in_each_step_is_found_on_its_line_however_short_the_steps(
    tmp_path: Path, read: str, by: str | None
) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(LOOP.format(read=read), "utf-8")
    words = ["--device", "virtual-npu", "--level", "deep", "--format", "json", "-o", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "ascend_perf", "collect", *words, "--", sys.executable, str(script)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    said = [one for one in report["findings"] if one["code"] == "H-05"]
    if by is None:
        assert said == []
        return
    (told,) = said
    line = next(number for number, text in enumerate(script.read_text("utf-8").splitlines(), 1) if read in text)
    (most, *_) = [one["value"] for one in told["evidence"] if one["name"].startswith("line of Python")]
    assert most.startswith(f"train.py({line}): <module> ({by}, ")
