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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

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
) -> Measurement:
    """Run the steps and write `<folder>/rank0.pt.trace.json.gz`.

    Args:
        step: does one step; may return before the device has finished.
        last_value: loss or checksum of the last step; read once, after the measured steps.
        device: as torch names it: cpu, cuda:0.
        folder: where the trace goes; must exist.
        on_phase: told before each phase how many steps it has; never called between the steps of a phase.

    Raises:
        MachineError: this profiler cannot record that device, or wrote no trace.
    """
    from torch.profiler import profile, schedule

    activities = _activities(device)
    synchronise = _synchroniser(device)

    on_phase("warmup", warmup_steps)
    warmup_ns = tuple(_timed(step, synchronise) for _ in range(warmup_steps))

    gc.collect()
    _reset_device_peak(device)
    on_phase("measured", measured_steps)
    measured_ns = tuple(_timed(step, synchronise) for _ in range(measured_steps))
    peak_rss_bytes, peak_device_bytes = _peak_rss_bytes(), _device_peak(device)
    value = last_value()

    written: list[Path] = []
    target = folder / "rank0.pt.trace.json.gz"

    def export(profiler: profile) -> None:
        on_phase("export", 0)
        plain = folder / "rank0.pt.trace.json"
        profiler.export_chrome_trace(str(plain))
        compress_trace(plain, target)
        plain.unlink()
        written.append(target)

    profiled_ns: list[int] = []
    on_phase("profiler_warmup", 1)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=profiled_steps, repeat=1),
        on_trace_ready=export,
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
    ) as profiler:
        step()
        synchronise()
        on_phase("profiled", profiled_steps)
        profiler.step()
        for _ in range(profiled_steps):
            profiled_ns.append(_timed(step, synchronise))
            profiler.step()
    if not written or not target.stat().st_size:
        raise MachineError("the profiler wrote no trace", hint="is another profiler attached to this process?")
    return Measurement(
        warmup_ns=warmup_ns,
        measured_ns=measured_ns,
        profiled_ns=tuple(profiled_ns),
        peak_rss_bytes=peak_rss_bytes,
        peak_device_bytes=peak_device_bytes,
        trace_name=target.name,
        last_value=value,
    )


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


def _activities(device: str) -> list[torch.profiler.ProfilerActivity]:
    from torch.profiler import ProfilerActivity, supported_activities

    kind = device.split(":")[0]
    needed = {"cpu": [ProfilerActivity.CPU], "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}.get(kind)
    if needed is None:
        raise MachineError(f"torch.profiler does not record {kind} devices", hint="use --device cuda or --device cpu")
    absent = [activity.name for activity in needed if activity not in supported_activities()]
    if absent:
        raise MachineError(
            f"this build of torch cannot profile {', '.join(absent)}",
            hint="install a build of torch with Kineto (and CUPTI or roctracer)",
        )
    return needed


def _synchroniser(device: str) -> Callable[[], None]:
    import torch

    if device == "cpu":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def _reset_device_peak(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)


def _device_peak(device: str) -> int | None:
    import torch

    return None if device == "cpu" else int(torch.cuda.max_memory_allocated(device))


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
