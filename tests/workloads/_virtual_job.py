"""A process on a virtual NPU that stands for all ranks of a job: a test starts it, what it runs joins the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ascend_perf.bench.virtual import Job, VirtualDevices
from ascend_perf.collectors.virtual_npu import VirtualNpu

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a process left."""

    said: list[dict[str, Any]]
    record_folder: Path
    output: str


def played(module: str, cases: Sequence[object], folder: Path, *, world_size: int = 1, **variables: str) -> Played:
    """Run a module of the tests: the cases are its input as JSON, the last line of its output is its answer."""
    job = Job(settings=VirtualNpu(world_size=world_size, clock="modelled"), processes=1)
    devices = VirtualDevices(job, folder)
    environment = devices.environment({**os.environ, "OMP_NUM_THREADS": "1", **variables})
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", module], input=json.dumps(cases), env=environment, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(said, list)
    return Played(said=said, record_folder=devices.record_folder, output=done.stderr + done.stdout)


@contextmanager
def joined() -> Iterator[int]:
    """In the process: the size of its job, whose collectives work as long as this lasts."""
    import torch
    import torch.distributed as dist

    from ascend_perf.collectors import one_rank

    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.npu.set_device("npu:0")
    if world > 1:
        one_rank.install()
        dist.init_process_group("hccl")
    yield world
    if world > 1:
        dist.destroy_process_group()


def answer(said: Sequence[object]) -> None:
    """In the process: its answer, on a line of its own."""
    sys.stderr.flush()
    print("\n" + json.dumps(said), flush=True)
