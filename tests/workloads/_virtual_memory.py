"""Peaks of trainings on a virtual NPU, as its real allocator counts them: one process, one workload after the other.

    python -m tests.workloads._virtual_memory < cases.json

Cases are [[workload, [setting, ...]], ...], each trained for some steps; the last line of the output is JSON: the most
bytes that tensors asked for in the last step, and the measured components.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.workloads import _virtual_job

SETTLED_S: Final = 120
SLACK_BYTES: Final = 8 << 20
"""The mask of attention, and what is small."""


def measured(
    cases: Sequence[tuple[str, Sequence[str]]], folder: Path, *, world_size: int = 1
) -> list[dict[str, Any]]:
    """What the process of these cases said, which stands for all ranks of a job."""
    return _virtual_job.played("tests.workloads._virtual_memory", cases, folder, world_size=world_size).said


def main() -> None:
    with _virtual_job.joined() as world:
        said = []
        for name, settings in json.loads(sys.stdin.read()):
            _settle(SLACK_BYTES, lambda: _send(world))  # the case before is gone
            said.append(_peak(name, settings, world))
            gc.collect()
        _virtual_job.answer(said)


def _peak(name: str, settings: Sequence[str], world: int) -> dict[str, Any]:
    import torch

    from ascend_perf.workloads import _spec

    workload = _spec.find_workload(name)
    config: Any = workload.settings("tiny", settings).config
    assert workload.predict is not None
    held = workload.predict(config, world).memory_bytes
    before = _requested("current")
    program = workload.build(config, _spec.Place(device="npu:0", world_size=world), 0)
    try:
        for _ in range(2):
            program.step()
        # DDP's buckets of the first step go when its collectives are let go of, which those after them see to.
        most = before + held["weights"] + held["gradients"] + held["optimizer"] + SLACK_BYTES
        _settle(most, program.step)
        torch.npu.reset_peak_memory_stats()
        program.step()
        torch.npu.synchronize()
        return {"peak": _requested("peak") - before, "components": dict(program.memory_bytes())}
    finally:
        program.close()
        program.save.__self__.job.groups.close()  # type: ignore[union-attr]  # of a Trainer: they hold what they sent


def _send(world: int) -> None:
    import torch
    import torch.distributed as dist

    if world > 1:
        dist.all_reduce(torch.ones(1, device="npu"))


def _requested(which: str) -> int:
    import torch

    return int(torch.npu.memory_stats()[f"requested_bytes.all.{which}"])


def _settle(most_bytes: int, step: Callable[[], None]) -> None:
    """Work until torch_npu has let go of tensors of collectives that are done: its watchdog looks once a second."""
    import torch

    end = time.monotonic() + SETTLED_S
    while True:
        torch.npu.synchronize()
        torch.empty(1, device="npu")  # an allocation looks for blocks whose events have passed
        if _requested("current") <= most_bytes:
            return
        assert time.monotonic() < end, f"{_requested('current')} bytes are still there, expected {most_bytes}"
        time.sleep(0.3)
        step()


if __name__ == "__main__":
    main()
