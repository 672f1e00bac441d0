"""The figures of a run: from step times and sizes to throughput, FLOPs, memory, energy and overhead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

import numpy as np

from ascend_perf.bench import prediction as predictions
from ascend_perf.bench.results import Rows
from ascend_perf.bench.traffic import CountedTraffic, busiest
from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.device.specs import spec_for
from ascend_perf.model.finding import Metric
from ascend_perf.model.trace import Device
from ascend_perf.units import Better, Unit, format_ratio, significant
from ascend_perf.workloads._spec import Prediction

NOISY_RATIO: Final = 0.1
"""From this spread (interquartile range by median) on, the figures carry a warning. Status: assumed."""


class MeasuredJson(TypedDict):
    """`torch_profiler.Measurement` as it comes from a rank. Of a run that was stopped, what there is of it."""

    warmup_ns: Sequence[int]
    measured_ns: Sequence[int]
    profiled_ns: Sequence[int]
    peak_rss_bytes: int | None
    peak_device_bytes: int | None
    trace_name: str
    last_value: float | None
    """None: not reached."""
    measured_from_ns: int
    measured_to_ns: int


class ProgramJson(TypedDict):
    """Sizes of `workloads._spec.Program`."""

    item: str
    items_per_step: int
    flops_per_step: int
    hardware_flops_per_step: int | None
    dtype: str
    parameters: int
    value_name: str


class RankJson(TypedDict):
    """What one rank measured."""

    rank: int
    measurement: MeasuredJson
    memory: dict[str, int]
    """Bytes by component; empty: the workload does not count them."""
    latencies: dict[str, list[int]]
    traffic: CountedTraffic | None
    device_joules: float | None
    """Energy of the device over the measured steps; None without a sensor."""


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy over the measured steps, and what was counted."""

    joules: float
    counted: str


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the processes of the workload told us; of a run that was stopped, what there is of it."""

    device: SeenDevice | None = None
    problems: tuple[str, ...] = ()
    measurement: MeasuredJson | None = None
    """Of the whole job: see `slowest`."""
    ranks: tuple[RankJson, ...] = ()
    program: ProgramJson | None = None
    threads: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What each step of the first rank gave, by name."""
    metrics: tuple[Metric, ...] = ()
    """Figures that the workload gave itself."""
    tables: Mapping[str, Rows] = field(default_factory=dict)


def slowest(ranks: Sequence[MeasuredJson]) -> MeasuredJson:
    """One measurement of a job: each step as long as on the rank that took longest, peaks of the rank that needs most.

    Steps that some ranks did not reach are left out; the last value is the first rank's.
    """

    def steps(phase: Literal["warmup_ns", "measured_ns", "profiled_ns"]) -> list[int]:
        return [max(times) for times in zip(*(rank[phase] for rank in ranks), strict=False)]

    def most(values: Sequence[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return MeasuredJson(
        warmup_ns=steps("warmup_ns"),
        measured_ns=steps("measured_ns"),
        profiled_ns=steps("profiled_ns"),
        peak_rss_bytes=most([rank["peak_rss_bytes"] for rank in ranks]),
        peak_device_bytes=most([rank["peak_device_bytes"] for rank in ranks]),
        trace_name=ranks[0]["trace_name"],
        last_value=ranks[0]["last_value"],
        measured_from_ns=min(rank["measured_from_ns"] for rank in ranks),
        measured_to_ns=max(rank["measured_to_ns"] for rank in ranks),
    )


def most_memory(ranks: Sequence[RankJson]) -> dict[str, int]:
    """Memory by component of the rank that needs most; empty where none counts."""
    return max((rank["memory"] for rank in ranks), key=lambda memory: sum(memory.values()), default={})


def metrics_of(
    measurement: MeasuredJson, program: ProgramJson, peak: float | None, *, world_size: int = 1
) -> tuple[Metric, ...]:
    """Figures of a run; all but the overhead come from the steps without the profiler.

    Args:
        peak: dense FLOP/s of one device for the dtype in use; None (unknown) leaves `mfu` and `hfu` out.
        world_size: devices of the job.

    Returns:
        `<item>_per_s` is items per step by the median step time, `<item>_per_s_per_device` a share of it;
        `step_time_iqr` the width of its middle half, its spread; `profiler_overhead` median step with the profiler by
        median step without, less one; `mfu` model FLOP/s, `hfu` executed FLOP/s by the peak of all devices. Nothing
        where no step was measured.
    """
    measured, profiled = measurement["measured_ns"], measurement["profiled_ns"]
    if not measured:
        return ()
    step_ns = statistics.median(measured)
    flops_per_s = program["flops_per_step"] / step_ns * 1e9
    executed = program["hardware_flops_per_step"]
    executed = program["flops_per_step"] if executed is None else executed
    value, rate = measurement["last_value"], program["items_per_step"] / step_ns * 1e9

    def metric(name: str, value: float | None, unit: Unit, better: Better) -> Metric:
        return Metric(name=name, value=value, unit=unit, better=better)

    metrics = [
        metric(f"{program['item']}_per_s", rate, "items_per_s", "higher"),
        metric(f"{program['item']}_per_s_per_device", rate / world_size, "items_per_s", "higher"),
        metric("step_time_median", step_ns, "ns", "lower"),
        metric("step_time_iqr", interquartile_range(measured), "ns", "lower"),
        metric("step_count", len(measured), "count", "none"),
        metric("model_flops_per_step", program["flops_per_step"], "flops", "none"),
        metric("hardware_flops_per_step", executed, "flops", "none"),
        metric("model_flops_per_s", flops_per_s, "flops_per_s", "higher"),
        metric("parameters", program["parameters"], "count", "none"),
    ]
    if profiled:
        metrics.append(metric("profiler_overhead", statistics.median(profiled) / step_ns - 1, "ratio", "lower"))
    if value is not None:
        metrics.append(metric(program["value_name"], value if math.isfinite(value) else None, "none", "none"))
    if peak is not None:
        metrics.append(metric("mfu", flops_per_s / (peak * world_size), "ratio", "higher"))
        metrics.append(metric("hfu", executed / step_ns * 1e9 / (peak * world_size), "ratio", "higher"))
    if measurement["peak_rss_bytes"] is not None:
        metrics.append(metric("peak_rss", measurement["peak_rss_bytes"], "bytes", "lower"))
    if measurement["peak_device_bytes"] is not None:
        metrics.append(metric("peak_device_memory", measurement["peak_device_bytes"], "bytes", "lower"))
    return tuple(metrics)


LEAST_SAMPLES: Final = {50: 1, 90: 10, 95: 20, 99: 100}
"""Samples from which a percentile is given."""


def percentiles_of(latencies: Mapping[str, Sequence[int]]) -> tuple[tuple[Metric, ...], tuple[str, ...]]:
    """p50, p90, p95, p99 (linear between samples) and mean of each kind of latency, and what to know of them.

    Each is given where the sample carries it, which is with at least one sample expected above it: p90 from 10 samples
    on, p95 from 20, p99 from 100.
    """
    metrics: list[Metric] = []
    few: dict[int, list[str]] = {}
    for name, samples in latencies.items():
        if not samples:
            continue
        for percent, least in LEAST_SAMPLES.items():
            if len(samples) >= least:
                value = float(np.percentile(samples, percent))
                metrics.append(Metric(name=f"{name}_p{percent}", value=value, unit="ns", better="lower"))
        metrics.append(Metric(name=f"{name}_mean", value=statistics.fmean(samples), unit="ns", better="lower"))
        if len(samples) < 100:
            few.setdefault(len(samples), []).append(name)
    notes = []
    for count, names in few.items():
        lacking = ", ".join(f"p{percent} ({least})" for percent, least in LEAST_SAMPLES.items() if count < least)
        notes.append(f"{', '.join(names)}: {count} samples, too few for {lacking}")
    return tuple(metrics), tuple(notes)


def energy_metrics(energy: Energy, measurement: MeasuredJson, program: ProgramJson) -> tuple[Metric, ...]:
    """Energy over the measured steps, mean power, and items per joule."""
    span_s = (measurement["measured_to_ns"] - measurement["measured_from_ns"]) / 1e9
    items = program["items_per_step"] * len(measurement["measured_ns"])
    return (
        Metric(name="energy", value=energy.joules, unit="joule", better="lower"),
        Metric(name="power_mean", value=energy.joules / span_s, unit="watt", better="lower"),
        Metric(name=f"{program['item']}_per_joule", value=items / energy.joules, unit="none", better="higher"),
    )


def doubts(measurement: MeasuredJson, program: ProgramJson) -> tuple[str, ...]:
    """What a reader must know before using the figures."""
    notes = []
    measured = measurement["measured_ns"]
    spread_ns = interquartile_range(measured)
    if spread_ns is not None and spread_ns > NOISY_RATIO * statistics.median(measured):
        share = format_ratio(spread_ns / statistics.median(measured))
        notes.append(
            f"the middle half of the {len(measured)} measured steps spans {share} of the median: "
            "throughput and overhead are uncertain; is other work on this machine?"
        )
    value = measurement["last_value"]
    if value is not None and not math.isfinite(value):
        notes.append(f"{program['value_name']} is not finite: the steps computed nonsense, their times may mislead")
    return tuple(notes)


def peak_flops_per_s(device: SeenDevice, dtype: str) -> float | None:
    """Dense peak of the matrix units for a dtype from the device table; None for a CPU or a device not in it."""
    kind: Literal["npu", "gpu", "cpu"] = "gpu" if device.type == "cuda" else device.type
    spec = spec_for(Device(kind=kind, name=device.name))
    return None if spec is None else spec.matrix_peak(dtype)


def interquartile_range(values: Sequence[int]) -> float | None:
    """Third less first quartile, linear between values; None for fewer than two."""
    if len(values) < 2:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def all_metrics(
    said: Said, *, world_size: int, prediction: Prediction | None, energy: Energy | None
) -> tuple[tuple[Metric, ...], tuple[str, ...]]:
    """All figures of a run and what to know of them. A name that is there already is not replaced by the workload's."""
    measurement, program = said.measurement, said.program
    metrics: list[Metric] = []
    notes: list[str] = []
    if measurement is not None and program is not None and said.device is not None:
        peak = peak_flops_per_s(said.device, program["dtype"])
        metrics += metrics_of(measurement, program, peak, world_size=world_size)
        notes += doubts(measurement, program)
        if energy is not None:
            metrics += energy_metrics(energy, measurement, program)
            notes.append(f"energy is that of {energy.counted}")
    memory = most_memory(said.ranks)
    metrics += (
        Metric(name=f"memory_{part}", value=count, unit="bytes", better="lower") for part, count in memory.items()
    )
    counted = [rank["traffic"] for rank in said.ranks if rank["traffic"] is not None]
    traffic = busiest(counted) if counted else None
    if traffic is not None:
        moved = sum(part["bytes_per_step"] for part in traffic["collectives"])
        metrics.append(Metric(name="communication_per_step", value=moved, unit="bytes", better="lower"))
        if traffic["unknown_calls_per_step"]:
            calls = significant(traffic["unknown_calls_per_step"])
            notes.append(f"communication_per_step lacks {calls} calls a step whose size the trace does not tell")
    elif said.ranks and world_size > 1:
        notes.append("communication was not counted: the trace of this device does not tell sizes of calls")
    latencies: dict[str, list[int]] = {}
    for rank in said.ranks:
        for name, samples in rank["latencies"].items():
            latencies.setdefault(name, []).extend(samples)
    more, few = percentiles_of(latencies)
    metrics += more
    notes += few
    if prediction is not None:
        metrics += predictions.metrics_of(prediction)
        most = None if measurement is None else measurement["peak_device_bytes"]
        rows = predictions.compare(prediction, memory, traffic, device_peak_bytes=most) if said.ranks else ()
        if (note := predictions.note_of(rows)) is not None:
            notes.append(note)
    known = {metric.name for metric in metrics}
    metrics += (metric for metric in said.metrics if metric.name not in known)
    return tuple(metrics), tuple(notes)
