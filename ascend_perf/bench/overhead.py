"""What a collector costs: the command once without it and once with it, and how its steps differ.

Step times come from the hook that counts steps in the program (the profiler stays off in it), under msprof too; of a
program without such steps from the lines of its output that count steps; else the whole run is compared. Telemetry is
on in both runs: its own cost is told apart from this.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ascend_perf.bench import collected, command
from ascend_perf.bench.watch import Watch
from ascend_perf.collectors import _step_times, device_telemetry, in_process, msprof
from ascend_perf.collectors.collect_plan import SETTINGS_FILE, Plan
from ascend_perf.collectors.environment import masked
from ascend_perf.model.finding import Metric

FOLDER: Final = "alone"
"""Of the run without the collector, in the run directory; it is gone when that has ended."""
PHASE: Final = "alone"
MARGIN_NS: Final = 10**9
"""Steps so near to --delay and to the end of --duration are left out: msprof does not tell when it began. Assumed."""
LARGE_DRIFT: Final = 0.1
"""A larger difference between steps without the collector in both runs makes the comparison doubtful. Assumed."""
MAX_LINE: Final = 1 << 16
MAX_TIMES: Final = in_process.MAX_TIMES

_STEP: Final = re.compile(rb"\b(?:iterations?|iters?|steps?)\b[\s:=#\[(]*(\d{1,12})", re.IGNORECASE)

Basis = Literal["steps", "lines", "command"]


class StepLines:
    """Times between lines of an output that count steps: `step 12 loss ...`, `iteration 20/2000 | ...`.

    A line that counts further by n gives one time, an n-th of the time since; lines of other ranks with the same number
    give none.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.times: list[int] = []
        self._clock_ns = clock_ns
        self._rest = b""
        self._last: tuple[int, int] | None = None

    def take(self, block: bytes) -> None:
        """A piece of the output has come."""
        now = self._clock_ns()
        *lines, self._rest = re.split(rb"[\r\n]", self._rest[-MAX_LINE:] + block)
        for line in lines:
            found = _STEP.search(line)
            if found is not None:
                self._count(int(found[1]), now)

    def _count(self, step: int, now: int) -> None:
        if self._last is not None and step == self._last[0]:
            return
        if self._last is not None and step > self._last[0] and len(self.times) < MAX_TIMES:
            self.times.append((now - self._last[1]) // (step - self._last[0]))
        self._last = step, now


@dataclass(kw_only=True)
class Timed:
    """Times of one run of the command, with or without the collector."""

    steps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By kind, as `_step_times` has them, of the slowest rank."""
    first_ns: int | None = None
    """Unix time at which the first step of the first rank ended."""
    lines: Sequence[int] = ()
    wall_ns: int | None = None


@dataclass(kw_only=True)
class Alone:
    """The run without the collector."""

    timed: Timed = field(default_factory=Timed)
    began_ns: int = 0
    signals: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    device_samples: Sequence[device_telemetry.DeviceSample] = ()

    @property
    def is_timed(self) -> bool:
        """Whether it came to its end: else nothing is compared."""
        return not self.notes and not self.signals


def run_alone(
    plan: Plan, request: Sequence[str], variables: Mapping[str, str], folder: Path, look_at_disk: Callable[[], None],
    *, umask: int,
) -> Alone:  # fmt: skip
    """Run the command without the collector, and time its steps.

    Args:
        plan: of the run with the collector.
        request: the command of the user.
        variables: those of the run with the collector.
        folder: the run directory.
        look_at_disk: called about every second.
        umask: of the program.
    """
    place = folder / FOLDER
    told = place / in_process.TOLD_FOLDER
    told.mkdir(parents=True)
    settings = in_process.Settings(folder=str(place), ranks=())
    (told / SETTINGS_FILE).write_text(settings.to_json(), "utf-8")
    is_msprof = plan.collector == "msprof"
    words = list(request)
    if is_msprof:  # the same shell around it
        (told / msprof.SCRIPT).write_text(
            msprof.script_text(request, str(told / msprof.EXIT_FILE), umask, began_file=str(told / msprof.BEGAN_FILE)),
            "utf-8",
        )  # fmt: skip
        words = ["sh", str(told / msprof.SCRIPT)]
    lines = StepLines()
    made = Alone(began_ns=time.time_ns())
    began = time.monotonic_ns()
    with ExitStack() as stack:
        watch = Watch(plan.collector, told, stack, look_at_disk)
        ended = command.run_command(
            words, {**variables, in_process.VARIABLE: str(told / SETTINGS_FILE)}, tick=watch.tick, keeps_output=True,
            on_output=lines.take,
        )  # fmt: skip
    wall_ns = time.monotonic_ns() - began
    made.device_samples = watch.samplers.device_samples
    made.signals = ended.signals
    made.timed = timed(told, lines, wall_ns if not is_msprof else msprof.wall_ns_of(told))
    if (ended.problem or ended.code) and not ended.signals:
        why = masked(ended.problem) or f"the command ended with code {ended.code}"
        made.notes.append(f"the overhead is not measured: without the collector, {why}")
    shutil.rmtree(place, ignore_errors=True)
    return made


def timed(told: Path, lines: StepLines, wall_ns: int | None) -> Timed:
    """The times of a run from what its processes told, its output, and its end."""
    processes = collected.processes_of(told)
    first = next((one.first_ns for one in processes if one.first_ns is not None), None)
    return Timed(
        steps=_step_times.slowest(collected.times_of(processes)), first_ns=first, lines=tuple(lines.times),
        wall_ns=wall_ns,
    )  # fmt: skip


def metrics_of(
    alone: Timed, under: Timed, *, is_msprof: bool, began_ns: int = 0, delay_s: int | None = None,
    duration_s: int | None = None,
) -> tuple[tuple[Metric, ...], Basis | None]:  # fmt: skip
    """Figures of the steps without the collector, and what it costs; what was compared.

    `profiler_overhead` is the median step with the collector by the median step without, less one;
    `profiler_overhead_low` and `_high` the same of the first and third quartile of the steps with it: its scatter.
    Where no steps can be compared: `command_overhead`, of the whole run, a single pair without a scatter.

    Args:
        alone: the run without the collector.
        under: the run with it.
        is_msprof: msprof is on from --delay on for --duration, else all the time; a collector inside the process tells
            its recorded steps.
        began_ns: Unix time at which msprof was started.
        delay_s: its --delay.
        duration_s: its --duration.
    """
    pairs: list[tuple[Basis, Sequence[int], Sequence[int]]] = []
    if is_msprof:
        window = _window(began_ns, delay_s, duration_s)
        pairs.append(("steps", *_same_steps(alone.steps.get("before", ()), under, window)))
        if window is None:
            pairs.append(("lines", *_second_halves(alone.lines, under.lines)))
    else:
        plain, before = alone.steps.get("before", ()), under.steps.get("before", ())
        later = plain[len(before) :]
        enough = later if len(later) >= _step_times.MIN_STEPS else plain[len(plain) // 2 :]
        pairs.append(("steps", enough, under.steps.get("recorded", ())))
    for basis, without, recorded in pairs:
        if min(len(without), len(recorded)) >= _step_times.MIN_STEPS and statistics.median(without):
            figures = _step_times.metrics_of({"after": without, "recorded": recorded})
            return (*figures, *_scatter(without, recorded)), basis
    if alone.wall_ns and under.wall_ns:
        value = under.wall_ns / alone.wall_ns - 1
        return (Metric(name="command_overhead", value=value, unit="ratio", better="lower"),), "command"
    return (), None


def drift_of(alone: Timed, under: Timed) -> float | None:
    """How much longer steps took in the second run where the collector was not on in it either (behind the recording):
    what other work on the machine adds to the comparison. None where a run has less than three such steps."""
    first = alone.steps.get("before", ())
    first, second = first[len(first) // 2 :], under.steps.get("after", ())
    if min(len(first), len(second)) < _step_times.MIN_STEPS or not statistics.median(first):
        return None
    return statistics.median(second) / statistics.median(first) - 1


def _scatter(without: Sequence[int], recorded: Sequence[int]) -> tuple[Metric, ...]:
    median = statistics.median(without)
    low, _, high = statistics.quantiles(recorded, n=4, method="inclusive")
    return tuple(
        Metric(name=f"profiler_overhead_{name}", value=value / median - 1, unit="ratio", better="none")
        for name, value in (("low", low), ("high", high))
    )


def _window(began_ns: int, delay_s: int | None, duration_s: int | None) -> tuple[int, int] | None:
    """When msprof records; None: all the time."""
    if delay_s is None and duration_s is None:
        return None
    start = began_ns + (delay_s or 0) * 10**9
    end = start + duration_s * 10**9 if duration_s is not None else 1 << 62
    return start + MARGIN_NS, end - MARGIN_NS


def _same_steps(
    plain: Sequence[int], under: Timed, window: tuple[int, int] | None
) -> tuple[Sequence[int], Sequence[int]]:
    """Steps of the same numbers in both runs: those in the window; else the second half, behind the start-up."""
    found = under.steps.get("before", ())
    if window is None:
        return _second_halves(plain, found)
    if under.first_ns is None:
        return (), ()
    at, inside = under.first_ns, []
    for number, dur in enumerate(found):
        if at >= window[0] and at + dur <= window[1]:
            inside.append(number)
        at += dur
    return [plain[number] for number in inside if number < len(plain)], [found[number] for number in inside]


def _second_halves(one: Sequence[int], other: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    count = min(len(one), len(other))
    return one[count // 2 : count], other[count // 2 : count]
