"""Samples of a process while it runs: CPU share, resident memory, load of the host.

The sampler runs in the parent of the workload, so that it does not compete for the workload's interpreter lock.
"""

from __future__ import annotations

import csv
import importlib.util
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ascend_perf.errors import MachineError
from ascend_perf.model.finding import Metric

if TYPE_CHECKING:
    import psutil

INTERVAL_S: Final = 0.1
"""Time between samples; one takes about 0.1 ms. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row of telemetry.csv. Unknown is None (an empty cell)."""

    time_ns: int
    """Unix time, the clock of the trace."""
    phase: str
    process_cpu_ratio: float | None
    """CPU time of the process per wall time since the sample before: 1 is one core busy; None in the first sample."""
    process_rss_bytes: int
    process_threads: int
    host_cpu_ratio: float | None
    """Busy share of all cores since the sample before; None in the first sample."""
    host_available_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one sampling thread took of the machine."""

    cpu_ns: int
    """CPU time of the thread itself, without processes that it started."""
    wall_ns: int
    """Time that it ran."""


def cost_metrics(costs: Iterable[Cost]) -> tuple[Metric, ...]:
    """`telemetry_overhead`: CPU time of all sampling threads by the time that the longest ran, as a share of one core.

    The steps with telemetry are compared with nothing: it runs all the time, and outside of the workload's process.
    """
    found = tuple(costs)
    wall_ns = max((cost.wall_ns for cost in found), default=0)
    if wall_ns <= 0:
        return ()
    value = sum(cost.cpu_ns for cost in found) / wall_ns
    return (Metric(name="telemetry_overhead", value=value, unit="ratio", better="none"),)


@contextmanager
def counted(costs: list[Cost]) -> Iterator[None]:
    """Add what this thread takes inside the `with`."""
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    try:
        yield
    finally:
        costs.append(Cost(cpu_ns=time.thread_time_ns() - cpu_ns, wall_ns=time.perf_counter_ns() - wall_ns))


def is_available() -> bool:
    """Whether psutil is installed."""
    return importlib.util.find_spec("psutil") is not None


class Sampler:
    """Samples one process in a thread between `with` entry and exit; `phase` labels the samples that follow."""

    def __init__(self, pid: int, *, interval_s: float = INTERVAL_S, clock_ns: Callable[[], int] = time.time_ns) -> None:
        if not is_available():
            raise MachineError("psutil is not installed, no telemetry", hint='pip install "ascend-perf[torch]"')
        import psutil

        self.phase = "start"
        self.samples: list[Sample] = []
        self.costs: list[Cost] = []
        self._process = psutil.Process(pid)
        self._interval_s = interval_s
        self._clock_ns = clock_ns
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with counted(self.costs):
            self._sample_all()

    def _sample_all(self) -> None:
        import psutil

        while True:
            stopping = self._stop.is_set()
            try:
                sample = self._sample(self._process)
            except psutil.Error:  # the process has ended, or may not be read
                return
            if not sample.process_rss_bytes:  # it has ended, and its parent has not taken note yet
                return
            self.samples.append(sample)
            if stopping:
                return
            self._stop.wait(self._interval_s)

    def _sample(self, process: psutil.Process) -> Sample:
        import psutil

        # psutil answers 0.0 to the first question, which has no interval yet.
        is_first = not self.samples
        with process.oneshot():
            process_percent, rss_bytes = process.cpu_percent(), process.memory_info().rss
            threads = process.num_threads()
        host_percent = psutil.cpu_percent()
        return Sample(
            time_ns=self._clock_ns(),
            phase=self.phase,
            process_cpu_ratio=None if is_first else process_percent / 100,
            process_rss_bytes=rss_bytes,
            process_threads=threads,
            host_cpu_ratio=None if is_first else host_percent / 100,
            host_available_bytes=psutil.virtual_memory().available,
        )


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write telemetry.csv: a head line, then one line per sample; an unknown value is an empty cell."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Sample)])
        writer.writerows(astuple(sample) for sample in samples)
