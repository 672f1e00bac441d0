"""Measure a step function with torch: first alone, then under the profiler, so that the profiler's cost is known.

    warm-up -> measured steps (no profiler) -> one step of profiler warm-up -> profiled steps -> trace file

Throughput is taken from the measured steps alone. Each step ends with a device synchronisation, so that its time is
the time of its work; work that would run on into the next step is thereby not hidden.
"""

from __future__ import annotations

import gc
import gzip
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from ascend_perf.errors import MachineError

if TYPE_CHECKING:
    import torch

Phase = Literal["warmup", "measured", "profiler_warmup", "profiled", "export"]
GZIP_LEVEL: Final = 6
_BLOCK_BYTES: Final = 1 << 20
_PRIVATE: Final = re.compile(rb'"(host_name|traceName)":\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the profiler records beside kernels and operators."""

    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False
    """Call stacks make the file several times larger and hold paths of the source files."""


class Steps(Protocol):
    """The part of a profiler that the loop uses: entered, told of each step, left."""

    def __enter__(self) -> Steps: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def step(self) -> None: ...


class Recorder(Protocol):
    """A profiler of one kind of device, and what it has written."""

    profiler: Steps

    def written(self) -> str:
        """Path of the trace, relative to the folder."""


@dataclass(kw_only=True)
class Times:
    """Durations of the steps so far, by phase: what is known of a run that is stopped in the middle."""

    warmup: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    profiled: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times of all steps and what the profiler wrote."""

    warmup_ns: tuple[int, ...]
    measured_ns: tuple[int, ...]
    profiled_ns: tuple[int, ...]
    peak_rss_bytes: int | None
    """High-water mark of the process up to the end of the measured steps, interpreter and libraries included."""
    peak_device_bytes: int | None
    """Most that the device allocator had handed out during the measured steps; None on a CPU."""
    trace_name: str
    last_value: float
    measured_from_ns: int
    """Unix time at which the measured steps began, and below at which they ended."""
    measured_to_ns: int


def _nothing() -> None:
    """Nothing is to be done between two phases."""


def collect(
    step: Callable[[], None],
    *,
    last_value: Callable[[], float],
    device: str,
    folder: Path,
    warmup_steps: int,
    measured_steps: int,
    profiled_steps: int,
    options: Options,
    on_phase: Callable[[Phase, int], None] = lambda phase, steps: None,
    rank: int = 0,
    times: Times | None = None,
    start_measuring: Callable[[], None] = _nothing,
    after_measuring: Callable[[], None] = _nothing,
) -> Measurement:
    """Run the steps and leave the trace in `folder`: rank<N>.pt.trace.json.gz, or on an NPU rank<N>_*_ascend_pt/.

    Args:
        step: does one step; may return before the device has finished.
        last_value: loss or checksum of the last step; read once, after the measured steps.
        device: as torch names it: cpu, cuda:0, npu:0.
        folder: where the trace goes; must exist.
        on_phase: told before each phase how many steps it has; never called between the steps of a phase.
        rank: number of this process in its job; names the trace.
        times: filled as the steps end, so that the caller has them when the run stops in the middle.
        start_measuring: called between warm-up and the measured steps.
        after_measuring: called between the measured steps and the profiler.

    Raises:
        MachineError: this profiler cannot record that device, or wrote no trace.
    """
    synchronise = _synchroniser(device)
    times = Times() if times is None else times

    on_phase("warmup", warmup_steps)
    for _ in range(warmup_steps):
        times.warmup.append(_timed(step, synchronise))

    start_measuring()
    gc.collect()
    _reset_device_peak(device)
    on_phase("measured", measured_steps)
    from_ns = time.time_ns()
    for _ in range(measured_steps):
        times.measured.append(_timed(step, synchronise))
    to_ns = time.time_ns()
    peak_rss_bytes, peak_device_bytes = _peak_rss_bytes(), _device_peak(device)
    value = last_value()
    after_measuring()

    on_phase("profiler_warmup", 1)
    recorder = _recorder(device, folder, profiled_steps, options, rank)
    with recorder.profiler as profiler:
        step()
        synchronise()
        on_phase("profiled", profiled_steps)
        profiler.step()
        for index in range(profiled_steps):
            times.profiled.append(_timed(step, synchronise))
            if index == profiled_steps - 1:
                on_phase("export", 0)
            profiler.step()
    return Measurement(
        warmup_ns=tuple(times.warmup),
        measured_ns=tuple(times.measured),
        profiled_ns=tuple(times.profiled),
        peak_rss_bytes=peak_rss_bytes,
        peak_device_bytes=peak_device_bytes,
        trace_name=recorder.written(),
        last_value=value,
        measured_from_ns=from_ns,
        measured_to_ns=to_ns,
    )


class KinetoRecorder:
    """Records with `torch.profiler`; leaves `rank<N>.pt.trace.json.gz` in the folder."""

    def __init__(self, device: str, folder: Path, profiled_steps: int, options: Options, rank: int = 0) -> None:
        from torch.profiler import profile, schedule

        self._target = folder / f"rank{rank}.pt.trace.json.gz"
        self.profiler: Steps = profile(
            activities=activities(device),
            schedule=schedule(wait=0, warmup=1, active=profiled_steps, repeat=1),
            on_trace_ready=self._export,
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
        )

    def _export(self, profiler: torch.profiler.profile) -> None:
        plain = self._target.with_suffix("")
        profiler.export_chrome_trace(str(plain))
        compress_trace(plain, self._target)
        plain.unlink()

    def written(self) -> str:
        """Name of the file, relative to the folder.

        Raises:
            MachineError: there is none.
        """
        if not self._target.is_file():
            raise MachineError("the profiler wrote no trace", hint="is another profiler attached to this process?")
        return self._target.name


def _recorder(device: str, folder: Path, profiled_steps: int, options: Options, rank: int) -> Recorder:
    if device.startswith("npu"):
        from ascend_perf.collectors.torch_npu import NpuRecorder

        return NpuRecorder(folder, profiled_steps, options, rank)
    return KinetoRecorder(device, folder, profiled_steps, options, rank)


def compress_trace(plain: Path, target: Path) -> None:
    """Compress a trace; the host name and the path of the file, which torch writes into it, are taken out.

    The host name stands before `traceEvents`, the path after; what looks like them inside an event is left.
    """
    size = plain.stat().st_size
    with open(plain, "rb") as source, gzip.open(target, "wb", compresslevel=GZIP_LEVEL) as out:
        while block := source.read(_BLOCK_BYTES):
            at = source.tell() - len(block)
            # The last two blocks are joined, so that no cut can lie inside the tail.
            if 0 < size - source.tell() < _BLOCK_BYTES:
                block += source.read(_BLOCK_BYTES)
            if at == 0:
                head, mark, rest = block.partition(b'"traceEvents"')
                block = _without_private(head) + mark + rest
            if source.tell() >= size:
                events, mark, tail = block.rpartition(b'"traceName"')
                block = events + _without_private(mark + tail) if mark else block
            out.write(block)


def _without_private(text: bytes) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        return b'"%s": "%s"' % (match[1], b"" if match[1] == b"host_name" else b"trace")

    return _PRIVATE.sub(replaced, text)


def _timed(step: Callable[[], None], synchronise: Callable[[], None]) -> int:
    start_ns = time.perf_counter_ns()
    step()
    synchronise()
    return time.perf_counter_ns() - start_ns


def activities(device: str) -> list[torch.profiler.ProfilerActivity]:
    """What to record for a device: the host and it.

    Raises:
        MachineError: this build of torch cannot record it.
    """
    from torch.profiler import supported_activities

    names = ("CPU",) if device == "cpu" else ("CPU", device.split(":")[0].upper())
    supported = {activity.name: activity for activity in supported_activities()}
    absent = [name for name in names if name not in supported]
    if absent:
        raise MachineError(
            f"this build of torch cannot profile {', '.join(absent)}",
            hint="install a build of torch with Kineto (and CUPTI or roctracer)",
        )
    return [supported[name] for name in names]


def _backend(device: str) -> ModuleType:
    """torch.cuda or torch.npu: both have the calls below."""
    import torch

    backend = getattr(torch, device.split(":")[0])
    assert isinstance(backend, ModuleType)
    return backend


def _synchroniser(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    backend = _backend(device)
    return lambda: backend.synchronize(device)


def _reset_device_peak(device: str) -> None:
    if device != "cpu":
        _backend(device).reset_peak_memory_stats(device)


def _device_peak(device: str) -> int | None:
    return None if device == "cpu" else int(_backend(device).max_memory_allocated(device))


def _peak_rss_bytes() -> int | None:
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return _peak_rss_of_rusage_bytes()
    # Not ru_maxrss on Linux: it starts with the peak of the process that started us.
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else _peak_rss_of_rusage_bytes()


def _peak_rss_of_rusage_bytes() -> int | None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, kilobytes elsewhere
