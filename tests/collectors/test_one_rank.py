"""One process that stands for all ranks: nothing in torch.distributed waits for another. On the CPU, over `fake`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ascend_perf.collectors import one_rank

PROGRAM = """
import os, sys, json
sys.path.insert(0, os.environ["HOOK"])
import sitecustomize                                      # as Python does it at its start
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

said = {}
dist.init_process_group("gloo")                           # env://, with 63 others that never come
said["world"] = [dist.get_world_size(), dist.get_rank()]
x = torch.full((3,), 2.0)
dist.all_reduce(x)
dist.barrier()
dist.monitored_barrier()
group = dist.new_group([0, 5, 9], backend="gloo")
dist.all_reduce(x, group=group)
said["group"] = [dist.get_world_size(group), dist.get_rank(group)]
gathered = [None] * 64
dist.all_gather_object(gathered, {"rank": 0})
said["gathered"] = [len(gathered), gathered[63]]
shares = [None]
dist.scatter_object_list(shares, ["mine", *["other"] * 63])
said["share"] = shares[0]
sent = ["a", 1]
dist.broadcast_object_list(sent, src=0)
said["sent"] = sent
net = DistributedDataParallel(torch.nn.Linear(4, 2))      # checks all ranks' shapes, and broadcasts
said["made"] = list(net(torch.ones(2, 4)).shape)
dist.destroy_process_group()
try:
    dist.init_process_group("gloo", rank=3, world_size=8)
except ValueError as error:
    said["other"] = str(error)

from ascend_perf.collectors import one_rank
store = one_rank.make_store()
store.set("a", "1")
store.wait(["never"])
said["store"] = [store.get("a").decode(), store.add("n", 2), store.add("n", 3)]
said["swapped"] = [store.compare_set("a", "1", "2").decode(), store.compare_set("a", "1", "3").decode()]
said["kept"] = [store.num_keys(), store.delete_key("a"), store.delete_key("a"), store.get("a").decode()]
prefixed = dist.PrefixStore("p", store)                   # only the C++ part of the store is held by this
prefixed.set("x", "7"); said["prefixed"] = store.get("p/x").decode()
said["backends"] = [one_rank._backend(b) for b in (None, "hccl", "cpu:gloo,npu:hccl", "GLOO", "nccl")]
print(json.dumps(said))
"""


@pytest.mark.torch
def test_a_job_of_64_in_one_process() -> None:
    pytest.importorskip("torch")
    from ascend_perf.collectors.collect_plan import INJECTED

    variables = {
        **os.environ, **one_rank.variables(64, 8), "HOOK": str(INJECTED), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=variables, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {
        "world": [64, 0], "group": [3, 0], "gathered": [64, {"rank": 0}], "share": "mine", "sent": ["a", 1],
        "made": [2, 2],
        "other": "this process stands for all 8 ranks and is rank 0: it cannot be rank 3. Where the program starts its "
        "ranks itself, leave --world-size out",
        "store": ["1", 2, 5], "swapped": ["2", "2"], "kept": [2, True, False, ""], "prefixed": "7",
        "backends": ["cpu:fake,npu:hccl", "hccl", "cpu:fake,npu:hccl", "fake", "nccl"],
    }  # fmt: skip


def test_the_variables_are_those_of_a_launcher() -> None:
    made = one_rank.variables(64, 8)
    assert (made["RANK"], made["LOCAL_RANK"], made["WORLD_SIZE"], made["LOCAL_WORLD_SIZE"]) == ("0", "0", "64", "8")
    assert one_rank.variables(4, 8)["LOCAL_WORLD_SIZE"] == "4"
