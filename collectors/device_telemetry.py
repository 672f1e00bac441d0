"""Samples of devices beside a run: use, power, temperature, frequency, memory; each at its Unix time, as the trace.

One source for each kind: npu-exporter where its address is given, else `npu-smi info watch`; nvidia-ml-py, else
`nvidia-smi`; RAPL for the processor packages. They run in threads and processes of their own.

While a profiler runs, an NPU reports its use as 0: such a value is marked invalid and not used.
"""

from __future__ import annotations

import csv
import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import numpy as np

from ascend_perf.collectors import npu_smi, nvml
from ascend_perf.collectors._ascend_install import NPU_SMI
from ascend_perf.collectors._doctor_tools import ABSENT
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors._process_group import end_group
from ascend_perf.collectors.energy import POWERCAP, packages
from ascend_perf.collectors.npu_exporter import ExportedChip, fetch, read
from ascend_perf.collectors.telemetry import Cost, counted
from ascend_perf.device.integration import Integral, integrate
from ascend_perf.errors import InputError
from ascend_perf.units import format_ratio

FILE_NAME: Final = "device_telemetry.csv"
INTERVAL_S: Final = 1.0
"""The drivers refresh their figures about so often. Status: assumed."""
FREQUENCY_INTERVAL_S: Final = 5.0
"""One chip is asked for its frequency so often: each question starts a process. Status: assumed."""
PROFILED_PHASES: Final = frozenset({"profiler_warmup", "profiled", "export"})
INVALID: Final = "0 while a profiler runs"
DEAD: Final = "0 in every sample, although the NPU worked: a slice of an NPU does not tell its use"
MIN_SAMPLES: Final = 5
"""Fewer samples of 0 between kernels can be chance. Status: assumed."""
STOP_S: Final = 2.0
ENOUGH_RATIO: Final = 0.9
"""Energy is given where samples cover so much of the window. Status: assumed."""
BEGINNING: Final = "device telemetry: "

Kind = Literal["npu", "cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class DeviceSample:
    """One row of device_telemetry.csv. Unknown is None (an empty cell)."""

    time_ns: int
    """Unix time, the clock of the trace."""
    phase: str
    source: str
    device: str
    """npu<logic id>, cuda<index>, or package (all processor packages)."""
    use_ratio: float | None = None
    """Share of time with work on the device (AI Core, SM): no efficiency."""
    invalid: str = ""
    """Why `use_ratio` was taken out."""
    memory_bandwidth_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    frequency_hz: float | None = None
    rated_frequency_hz: float | None = None
    energy_j: float | None = None
    """A counter that only grows."""


Emit = Callable[[Iterable[DeviceSample]], None]


@dataclass(kw_only=True)
class Source:
    """A source of samples: `run` works until `stop` is set; it tells of what it cannot do by OSError."""

    name: str
    run: Callable[[Source, Emit], None]
    stop: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[str] | None = None

    def end(self) -> None:
        """End it, and the process that it started with all its children."""
        self.stop.set()
        if self.process is not None:
            end_group(self.process, patience_s=STOP_S)


class DeviceSampler:
    """Samples devices between `with` entry and exit; `phase` labels the samples that follow."""

    def __init__(self, sources: Sequence[Source], *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.phase = "start"
        self.samples: list[DeviceSample] = []
        self.problems: list[str] = []
        self.costs: list[Cost] = []
        self._clock_ns = clock_ns
        self._sources = sources
        self._threads = [
            threading.Thread(target=self._run, args=(source,), name=source.name, daemon=True) for source in sources
        ]

    def __enter__(self) -> DeviceSampler:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for source in self._sources:
            source.end()
        for thread in self._threads:
            thread.join(STOP_S)
        self.samples.sort(key=lambda sample: sample.time_ns)

    def _run(self, source: Source) -> None:
        def emit(samples: Iterable[DeviceSample]) -> None:
            phase, now = self.phase, self._clock_ns()
            self.samples += (
                _checked(replace(sample, phase=phase, source=source.name, time_ns=sample.time_ns or now))
                for sample in samples
            )

        try:
            with counted(self.costs):
                source.run(source, emit)
        except OSError as error:
            self.problems.append(f"{BEGINNING}{source.name}: {error}")


def relabelled(samples: Iterable[DeviceSample], phases: Sequence[tuple[int, str]]) -> list[DeviceSample]:
    """Samples with the phase that their time lies in; while sampling, a label comes as late as its message.

    Args:
        phases: begin (Unix time) and name of each phase, in order.
    """
    begins = np.array([begin for begin, _ in phases], np.int64)
    made = []
    for sample in samples:
        at = int(np.searchsorted(begins, sample.time_ns, side="right")) - 1
        ratio = 0.0 if sample.invalid else sample.use_ratio
        phase = phases[at][1] if at >= 0 else "start"
        made.append(_checked(replace(sample, phase=phase, use_ratio=ratio, invalid="")))
    return made


def without_dead(samples: Sequence[DeviceSample]) -> list[DeviceSample]:
    """Samples of a run in which the NPUs worked, without a use that is 0 throughout: that is no use, but none told."""
    told = [sample for sample in samples if sample.device.startswith("npu") and sample.use_ratio is not None]
    if len(told) < MIN_SAMPLES or any(sample.use_ratio for sample in told):
        return list(samples)
    dead = {sample.device for sample in told}
    return [
        replace(sample, use_ratio=None, invalid=DEAD)
        if sample.device in dead and sample.use_ratio is not None else sample
        for sample in samples
    ]  # fmt: skip


def _checked(sample: DeviceSample) -> DeviceSample:
    is_hidden = sample.device.startswith("npu") and sample.phase in PROFILED_PHASES and sample.use_ratio == 0
    return replace(sample, use_ratio=None, invalid=INVALID) if is_hidden else sample


# ---- sources --------------------------------------------------------------------------------------------------------


def sources_here(
    machine: Machine, kind: Kind, *, exporter: str | None = None, interval_s: float = INTERVAL_S
) -> tuple[list[Source], list[str]]:
    """The sources for a kind of device that this machine has, and what is absent."""
    sources: list[Source] = []
    notes: list[str] = []
    if kind == "npu":
        tool = machine.tool("npu-smi", *NPU_SMI)
        if exporter is not None:
            sources.append(_exporter(exporter, interval_s))
        elif tool is not None:
            sources.append(_npu_watch(machine, tool, interval_s))
        if tool is not None:
            sources.append(_npu_frequency(machine, tool))
        if not sources:
            notes.append(ABSENT["npu-smi"].en)
    elif kind == "cuda":
        tool = machine.tool("nvidia-smi")
        if nvml.is_installed():
            sources.append(_nvml(interval_s))
        elif tool is not None:
            sources.append(_nvidia_smi(machine, tool))
        else:
            notes.append(ABSENT["nvidia"].en)
    root = machine.path(str(POWERCAP))
    if packages(root):
        sources.append(_rapl(root, interval_s))
    return sources, notes


def _poll(name: str, read: Callable[[], Iterable[DeviceSample]], interval_s: float) -> Source:
    def run(source: Source, emit: Emit) -> None:
        while True:
            stopping = source.stop.is_set()
            emit(read())
            if stopping:
                return
            source.stop.wait(interval_s)

    return Source(name=name, run=run)


def _stream(
    name: str, machine: Machine, command: Sequence[str], reader: Callable[[], Callable[[str], DeviceSample | None]]
) -> Source:
    """Lines of a tool that never ends; `reader` is made in the thread, since it may ask the tool first."""

    def run(source: Source, emit: Emit) -> None:
        take = reader()
        if source.stop.is_set():
            return
        last = ""
        with subprocess.Popen(
            list(command), env={**machine.environment, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            source.process = process
            if source.stop.is_set():
                end_group(process, patience_s=STOP_S)
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip()[:200] or last
                if (sample := take(line)) is not None:
                    emit([sample])
        if not source.stop.is_set():
            raise OSError(f"ended by itself: {last or f'code {process.returncode}'}")

    return Source(name=name, run=run)


def _sample(device: str, **figures: float | int | None) -> DeviceSample:
    """A sample that the sampler dates; figures that are unknown stay so."""
    return DeviceSample(time_ns=0, phase="", source="", device=device, **figures)  # type: ignore[arg-type]  # fields


def _of_npu(device: str, reading: npu_smi.Reading) -> DeviceSample:
    busy = reading.ai_core_ratio if reading.ai_core_ratio is not None else reading.npu_ratio
    return _sample(
        device, use_ratio=busy, memory_bandwidth_ratio=reading.memory_bandwidth_ratio,
        memory_used_bytes=reading.memory_used_bytes, memory_total_bytes=reading.memory_total_bytes,
        power_w=reading.power_w, temperature_c=reading.temperature_c, frequency_hz=reading.frequency_hz,
        rated_frequency_hz=reading.rated_frequency_hz,
    )  # fmt: skip


def _npu_watch(machine: Machine, tool: str, interval_s: float) -> Source:
    def reader() -> Callable[[str], DeviceSample | None]:
        chips = npu_smi.mapping(machine.run([tool, "info", "-m"]).text)
        names = {(chip.npu, chip.chip): f"npu{chip.logic_id}" for chip in chips}
        memory = {}
        for chip in chips:
            at = ["-i", str(chip.npu), "-c", str(chip.chip)]
            found = npu_smi.answer(machine.run([tool, "info", "-t", "usages", *at]).text)
            total = npu_smi.reading(chip.npu, chip.chip, *found.blocks).memory_total_bytes
            if total is not None:
                memory[chip.npu, chip.chip] = total
        watch = npu_smi.Watch(memory)

        def take(line: str) -> DeviceSample | None:
            reading = watch.take(line) if line.endswith("\n") else None
            name = None if reading is None else names.get((reading.npu, reading.chip))
            return None if reading is None or name is None else _of_npu(name, reading)

        return take

    command = [tool, "info", "watch", "-d", str(max(1, round(interval_s)))]
    return _stream("npu-smi", machine, command, reader)


def _npu_frequency(machine: Machine, tool: str) -> Source:
    """Frequencies, which the endless table lacks: one chip after the other."""
    chips: list[npu_smi.Chip] = []
    turn = itertools.count()

    def read_one() -> Iterable[DeviceSample]:
        if not chips:
            chips.extend(npu_smi.mapping(machine.run([tool, "info", "-m"]).text))
            if not chips:
                raise OSError("no chip is listed")
        chip = chips[next(turn) % len(chips)]
        command = [tool, "info", "-t", "common", "-i", str(chip.npu), "-c", str(chip.chip)]
        reading = npu_smi.reading(chip.npu, chip.chip, *npu_smi.answer(machine.run(command).text).blocks)
        if reading.frequency_hz is None:
            return []
        return [
            _sample(
                f"npu{chip.logic_id}", frequency_hz=reading.frequency_hz,
                rated_frequency_hz=reading.rated_frequency_hz,
            )
        ]  # fmt: skip

    return _poll("npu-smi frequency", read_one, FREQUENCY_INTERVAL_S)


def _exporter(url: str, interval_s: float) -> Source:
    last: dict[int, int | None] = {}

    def dated(chip: ExportedChip) -> DeviceSample | None:
        if chip.time_ns is not None and last.get(chip.id) == chip.time_ns:
            return None  # it has not looked again since
        last[chip.id] = chip.time_ns
        return replace(_of_npu(f"npu{chip.id}", chip.reading), time_ns=chip.time_ns or 0)

    def read_all() -> Iterable[DeviceSample]:
        try:
            chips = read(fetch(url))
        except InputError as error:
            raise OSError(error.what) from error
        return [sample for chip in chips if (sample := dated(chip)) is not None]

    return _poll("npu-exporter", read_all, interval_s)


def _of_gpu(reading: nvml.GpuReading) -> DeviceSample:
    return _sample(
        f"cuda{reading.index}", use_ratio=reading.busy_ratio, memory_bandwidth_ratio=reading.memory_bandwidth_ratio,
        memory_used_bytes=reading.memory_used_bytes, memory_total_bytes=reading.memory_total_bytes,
        power_w=reading.power_w, temperature_c=reading.temperature_c, frequency_hz=reading.frequency_hz,
        rated_frequency_hz=reading.rated_frequency_hz, energy_j=reading.energy_j,
    )  # fmt: skip


def _nvml(interval_s: float) -> Source:
    def run(source: Source, emit: Emit) -> None:
        gpus = nvml.Nvml()
        try:
            _poll(source.name, lambda: map(_of_gpu, gpus.read()), interval_s).run(source, emit)
        finally:
            gpus.close()

    return Source(name="nvml", run=run)


def _nvidia_smi(machine: Machine, tool: str) -> Source:
    def take(line: str) -> DeviceSample | None:
        reading = nvml.row_of(line)
        return None if reading is None else _of_gpu(reading)

    return _stream("nvidia-smi", machine, [tool, *nvml.query()], lambda: take)


def _rapl(root: Path, interval_s: float) -> Source:
    """Counters of all packages together, made to grow without end; power is the mean since the reading before."""
    there = packages(root)
    before: list[tuple[int, list[int]]] = []
    total_uj = [0]

    def read_all() -> Iterable[DeviceSample]:
        try:
            counts = [int(package.counter.read_text("ascii")) for package in there]
        except ValueError as error:
            raise OSError(f"a counter is no number: {error}") from error
        now = time.monotonic_ns()
        power = None
        if before:
            then_ns, then = before[0]
            grown = sum(
                (new - old) % (package.range_uj + 1) for package, old, new in zip(there, then, counts, strict=True)
            )
            total_uj[0] += grown
            power = grown * 1e3 / (now - then_ns) if now > then_ns else None
        before[:] = [(now, counts)]
        return [_sample("package", power_w=power, energy_j=total_uj[0] / 1e6)]

    return _poll("rapl", read_all, interval_s)


# ---- use ------------------------------------------------------------------------------------------------------------


def write_device_samples(path: Path, samples: Iterable[DeviceSample]) -> None:
    """Write device_telemetry.csv: a head line, then one line per sample; an unknown value is an empty cell."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([one.name for one in fields(DeviceSample)])
        writer.writerows(astuple(sample) for sample in samples)


def energy_between(samples: Sequence[DeviceSample], from_ns: int, to_ns: int) -> dict[str, Integral]:
    """Energy in joules by device over a window: the trapezoid rule over samples of power. Empty without any."""
    by_device: dict[str, list[DeviceSample]] = {}
    for sample in samples:
        if sample.power_w is not None:
            by_device.setdefault(sample.device, []).append(sample)
    return {
        device: integrate(
            [sample.time_ns for sample in own], np.array([sample.power_w for sample in own], np.float64), from_ns, to_ns
        )
        for device, own in by_device.items()
    }


def energy_of_devices(
    samples: Sequence[DeviceSample], names: Sequence[str], from_ns: int, to_ns: int
) -> tuple[float | None, str]:
    """Energy of some devices together over a window, and what was counted; or None, and why.

    On a card of two dies the power is the card's and stands at its first die: the other has no samples of its own.
    """
    found = energy_between(samples, from_ns, to_ns)
    own = {name: found[name] for name in names if name in found}
    if not own:
        return None, "no energy: no sensor of the device could be read"
    covered = min(one.covered_ratio for one in own.values())
    if covered < ENOUGH_RATIO:
        return None, f"no energy: samples of power cover {format_ratio(covered)} of the measured steps"
    counted = f"{len(own)} devices by samples of their power (trapezoid rule), without the host"
    gaps = max(len(one.gaps) for one in own.values())
    if gaps:
        counted += f"; {gaps} gaps are left out, {format_ratio(1 - covered)} of the time"
    if any(name.startswith("npu") for name in own):
        counted += "; the power of an NPU is the chip's, of an inference card or a GPU the board's"
    if len(own) < len(names):
        counted += f"; {len(names) - len(own)} dies are counted with the first die of their card"
    return sum(one.value for one in own.values()), counted


def visible(environment: Mapping[str, str], index: int) -> int:
    """The logic id of the device that a process calls `index`."""
    listed = [part for part in environment.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",") if part.isdecimal()]
    return int(listed[index]) if index < len(listed) else index
