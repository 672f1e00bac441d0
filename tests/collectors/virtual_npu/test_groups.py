"""A process that stands for 64 ranks: the virtual device knows who is in a group, however a program made the group."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ascend_perf.collectors import one_rank
from ascend_perf.collectors.collect_plan import INJECTED
from ascend_perf.collectors.virtual_npu import VirtualNpu, variables
from ascend_perf.collectors.virtual_npu._cost_native import NativeCost
from ascend_perf.collectors.virtual_npu.cost import cost_lines
from ascend_perf.collectors.virtual_npu.record import read_folder
from tests._virtual_npu import ready_npu

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ELEMENTS = 1 << 20
NBYTES = 4 * ELEMENTS

PROGRAM = f"""
import os, sys
sys.path.insert(0, os.environ["HOOK"])
import sitecustomize                                     # as Python does it at its start
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("hccl")
mesh = init_device_mesh("npu", (8, 8), mesh_dim_names=("data", "tensor"))
x = torch.ones({ELEMENTS}, device="npu")
data, tensor = mesh["data"].get_group(), mesh["tensor"].get_group()
for group in (tensor, data, dist.new_group([0, 3, 9]), None):
    dist.all_reduce(x, group=group)
dist.send(x, 8)                                          # in another node
dist.irecv(x, 3, group=dist.new_group([0, 3])).wait()    # in the same
pair = [dist.P2POp(dist.isend, x, 56, group=data), dist.P2POp(dist.irecv, x, 8, group=data)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
torch.npu.synchronize()
"""


def test_groups_inside_a_node_and_across_nodes_take_their_own_links(tmp_path: Path) -> None:
    npu, settings = ready_npu(), VirtualNpu(world_size=64, clock="modelled")
    told = variables(settings, npu, tmp_path, cost_lines=cost_lines(settings))
    environment = {**os.environ, **told, **one_rank.variables(64, 8), "HOOK": str(INJECTED)}
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[3]}"
    done = subprocess.run(
        [str(npu.python), "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = read_folder(tmp_path)
    seen = []
    table = record.tables["C"]
    for number, comm, start, end in zip(
        *(table[name].tolist() for name in ("def", "comm", "start_ns", "end_ns")), strict=True
    ):
        _, name, body = record.definitions[number]
        seen.append((name, record.groups[comm][3], body["ranks_per_node"], end - start))
    cost = NativeCost()
    cost.load(cost_lines(settings))
    every, strided = tuple(range(64)), tuple(range(0, 64, 8))
    wanted = [
        ("AllReduce", tuple(range(8)), 8, 8), ("AllReduce", strided, 8, 1), ("AllReduce", (0, 3, 9), 3, 2),
        ("AllReduce", every, 64, 8), ("Send", (0, 8), 2, 1), ("Recv", (0, 3), 2, 2), ("BatchSendRecv", strided, 8, 1),
    ]  # fmt: skip
    assert [one[:3] for one in seen] == [(f"Hccl{name}", ranks, near) for name, ranks, _, near in wanted]
    times = [cost.collective(name, NBYTES, size, near).ns for name, _, size, near in wanted]
    assert [one[3] for one in seen] == [pytest.approx(ns, abs=1) for ns in times]
    assert times[1] > 3 * times[0]  # as many ranks and bytes: the links between nodes are the slower ones
