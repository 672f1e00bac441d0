"""Profile a training or inference loop of your own.

    from ascend_perf import hooks

    with hooks.profile("runs/mine", skip=10, active=3) as profiler:
        for batch in loader:
            ...
            profiler.step()

`ascend-perf analyze runs/mine` writes the report. The profiler is that of the device in use: torch_npu's on an NPU,
torch's on a GPU or a CPU. Under torchrun each rank records itself into the same folder. A program that is started with
`ascend-perf collect` needs none of this; it may call `hooks.step()` where its steps end.

This module imports neither torch nor pandas nor jinja2, and nothing else before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ascend_perf.collectors.own_loop import OwnLoop

__all__ = ["Profile", "profile", "step"]


class Profile:
    """A recording of a loop between `with` entry and exit; `step` at the end of each step."""

    def __init__(self, loop: OwnLoop) -> None:
        self._loop = loop

    def __enter__(self) -> Profile:
        self._loop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.end(error)

    def step(self) -> None:
        """A step has ended. Free of cost where nothing is to be recorded."""
        self._loop.step()

    @property
    def traces(self) -> tuple[Path, ...]:
        """What has been written so far by this process."""
        return self._loop.traces

    @property
    def problems(self) -> tuple[str, ...]:
        """Why something was not recorded; the loop itself is never ended for it."""
        return self._loop.problems


def profile(
    folder: str | Path,
    *,
    device: str = "auto",
    level: Literal["quick", "standard", "deep"] = "standard",
    skip: int = 5,
    warmup: int = 1,
    active: int = 3,
    wait: int = 0,
    repeat: int = 1,
    ranks: Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
    analysis: Literal["process", "later"] = "process",
) -> Profile:
    """Record some steps of a loop into a run directory.

    In a program that `ascend-perf collect` has started, its settings and its folder count, and these do not.

    Args:
        folder: the run directory; the same one on all ranks.
        device: npu, cuda or cpu; auto takes the accelerator that the process has initialised when recording begins.
        level: how much is recorded: quick disturbs least, deep records stacks and counters of the links too.
        skip: steps before the first recording.
        warmup: steps with the profiler on that are thrown away.
        active: steps that are recorded.
        wait: steps between two recordings.
        repeat: recordings; 0: until the loop ends.
        ranks: ranks that record; None: all.
        options: of the profiler, over those of the level; checked here, since torch_npu takes another value for a wrong
            one and says so only in a line of its output.
        analysis: of torch_npu's raw data: in a process of its own while the loop goes on, or later
            (`ascend-perf analyze` names the command).

    Raises:
        UsageError: a number is out of range, or an option is unknown, takes another value or has no effect.
    """
    from ascend_perf.collectors.own_loop import OwnLoop

    return Profile(OwnLoop(
        Path(folder), device=device, level=level, skip=skip, warmup=warmup, active=active, wait=wait, repeat=repeat,
        ranks=ranks, options=dict(options or {}), analysis=analysis,
    ))  # fmt: skip


def step() -> None:
    """Tell `ascend-perf collect` that a step has ended; nothing happens in a program that it did not start.

    From the first call on, steps of optimizers and batches of loaders no longer count as steps.
    """
    import sys

    activation = sys.modules.get("ascend_perf.collectors._activation")
    if activation is not None:
        activation.step_called()
