"""The figures of a run: from step times and sizes to throughput, FLOPs, overhead and the manifest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.device.specs import spec_for
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Manifest
from ascend_perf.model.trace import Device
from ascend_perf.units import Better, Unit, format_ratio
from ascend_perf.workloads._spec import Settings

NOISY_RATIO: Final = 0.1
"""From this spread (interquartile range by median) on, the figures carry a warning. Status: assumed."""


class MeasuredJson(TypedDict):
    """`torch_profiler.Measurement` as it comes from the process of the workload."""

    warmup_ns: list[int]
    measured_ns: list[int]
    profiled_ns: list[int]
    peak_rss_bytes: int | None
    peak_device_bytes: int | None
    trace_name: str
    last_value: float


class ProgramJson(TypedDict):
    """Sizes of `workloads._spec.Program`."""

    item: str
    items_per_step: int
    flops_per_step: int
    dtype: str
    parameters: int
    value_name: str


@dataclass(frozen=True, kw_only=True)
class Said:
    """Everything that the process of the workload told us."""

    device: SeenDevice
    problems: tuple[str, ...]
    measurement: MeasuredJson
    program: ProgramJson
    threads: int
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What each step gave, by name."""


def metrics_of(measurement: MeasuredJson, program: ProgramJson, peak: float | None) -> tuple[Metric, ...]:
    """Figures of a run; all but the overhead come from the steps without the profiler.

    Args:
        peak: dense FLOP/s of the device for the dtype in use; None (unknown) leaves `mfu` out.

    Returns:
        `<item>_per_s` is items per step by the median step time; `step_time_iqr` the width of its middle half, its
        spread; `profiler_overhead` median step with the profiler by median step without, less one.
    """
    measured, profiled = measurement["measured_ns"], measurement["profiled_ns"]
    step_ns = statistics.median(measured)
    flops_per_s = program["flops_per_step"] / step_ns * 1e9
    value = measurement["last_value"]

    def metric(name: str, value: float | None, unit: Unit, better: Better) -> Metric:
        return Metric(name=name, value=value, unit=unit, better=better)

    metrics = [
        metric(f"{program['item']}_per_s", program["items_per_step"] / step_ns * 1e9, "items_per_s", "higher"),
        metric("step_time_median", step_ns, "ns", "lower"),
        metric("step_time_iqr", interquartile_range(measured), "ns", "lower"),
        metric("step_count", len(measured), "count", "none"),
        metric("model_flops_per_step", program["flops_per_step"], "flops", "none"),
        metric("model_flops_per_s", flops_per_s, "flops_per_s", "higher"),
        metric("profiler_overhead", statistics.median(profiled) / step_ns - 1, "ratio", "lower"),
        metric("parameters", program["parameters"], "count", "none"),
        metric(program["value_name"], value if math.isfinite(value) else None, "none", "none"),
        metric("peak_rss", measurement["peak_rss_bytes"], "bytes", "lower"),
    ]
    if peak is not None:
        metrics.append(metric("mfu", flops_per_s / peak, "ratio", "higher"))
    if measurement["peak_device_bytes"] is not None:
        metrics.append(metric("peak_device_memory", measurement["peak_device_bytes"], "bytes", "lower"))
    return tuple(metrics)


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
    if not math.isfinite(measurement["last_value"]):
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


def manifest_of(
    said: Said,
    *,
    workload: str,
    preset: str,
    request_words: Sequence[str],
    settings: Settings,
    created: str,
    files: Mapping[str, tuple[str, ...]],
    notes: tuple[str, ...],
) -> Manifest:
    """The manifest of a run that has ended well."""
    measurement, program = said.measurement, said.program
    return Manifest(
        workload=workload,
        preset=preset,
        device=said.device.type,
        device_facts={
            "index": said.device.index,
            "name": said.device.name,
            "memory_bytes": said.device.memory_bytes,
            "cores": said.device.cores,
            "host_threads": said.threads,
            "dtype": program["dtype"],
        },
        data_origin="measured",
        created=created,
        config=settings.as_dict(),
        command=tuple(request_words),
        versions=said.versions,
        environment=said.environment,
        metrics=metrics_of(measurement, program, peak_flops_per_s(said.device, program["dtype"])),
        timings_ns={
            "warmup": tuple(measurement["warmup_ns"]),
            "measured": tuple(measurement["measured_ns"]),
            "profiled": tuple(measurement["profiled_ns"]),
        },
        seed=settings.plan.seed,
        files=files,
        notes=(*notes, *doubts(measurement, program)),
    )
