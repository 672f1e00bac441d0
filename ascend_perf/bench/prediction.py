"""What formulas say of a run before it starts, and how the measured figures compare with it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ascend_perf.bench.traffic import CountedTraffic
from ascend_perf.device.specs import DeviceSpec
from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Metric, Words
from ascend_perf.units import format_quantity, significant
from ascend_perf.workloads import _spec


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A prediction with what it is held against: the memory of one device, and how many ranks share it."""

    prediction: _spec.Prediction
    world_size: int
    device_bytes: int | None = None
    """Memory of the device; None: not known."""
    sharing_ranks: int = 1
    """Ranks that share it: on a CPU all of this machine."""

    @property
    def rank_bytes(self) -> int:
        """Memory of the rank that needs most."""
        return self.prediction.peak_bytes

    @property
    def is_too_large(self) -> bool:
        """Whether the ranks on a device need more than it has."""
        return self.device_bytes is not None and self.rank_bytes * self.sharing_ranks > self.device_bytes


def target_of(spec: DeviceSpec | None) -> _spec.Target:
    """An NPU of the device table, for a prediction; one that is not in it is taken to multiply bf16."""
    return _spec.Target(has_bf16=spec is None or spec.matrix_peak("bf16") is not None)


def predicted(
    workload: _spec.Workload, settings: _spec.Settings, world_size: int, target: _spec.Target = _spec.NPU
) -> _spec.Prediction | None:
    """The prediction of a workload; None where it has none and runs in one process.

    Raises:
        UsageError: the workload runs in one process only, or its layout does not fit so many.
    """
    if workload.predict is None:
        if world_size > 1:
            raise UsageError(f"{workload.name} runs in one process only, got {world_size}", hint="leave --nproc out")
        return None
    try:
        return workload.predict(settings.config, world_size, target)
    except ValueError as error:
        raise UsageError(f"{workload.name} on {world_size} processes: {error}") from error


def metrics_of(prediction: _spec.Prediction) -> tuple[Metric, ...]:
    """The prediction as metrics: `predicted_memory` and its components, `predicted_communication_per_step`."""
    memory = prediction.memory_bytes
    named = {f"predicted_memory_{component}": count for component, count in memory.items()}
    if memory:
        named["predicted_memory"] = prediction.peak_bytes
    if prediction.traffic:
        named["predicted_communication_per_step"] = sum(part.bytes_per_step for part in prediction.traffic)
    return tuple(Metric(name=name, value=value, unit="bytes", better="lower") for name, value in named.items())


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One predicted figure beside the measured one; None is unknown, or not predicted."""

    what: str
    """memory or communication."""
    part: str
    """Component or collective."""
    predicted_bytes: float | None
    measured_bytes: float | None

    @property
    def ratio(self) -> float | None:
        """Measured by predicted."""
        if not self.predicted_bytes or self.measured_bytes is None:
            return None
        return self.measured_bytes / self.predicted_bytes


def compare(
    prediction: _spec.Prediction, memory: Mapping[str, int], traffic: CountedTraffic | None, *,
    device_peak_bytes: int | None = None,
) -> tuple[Compared, ...]:  # fmt: skip
    """Predicted and measured figures by component and by collective.

    Args:
        memory: measured bytes by component, of the rank that needs most; empty: not measured.
        traffic: counted calls of the rank that moves most; None: not counted.
        device_peak_bytes: most that the device's allocator had handed out; held against a predicted peak of a step.
    """
    parts = dict.fromkeys([*prediction.memory_bytes, *memory]) if memory else prediction.memory_bytes
    rows = [
        Compared(
            what="memory", part=part, predicted_bytes=prediction.memory_bytes.get(part), measured_bytes=memory.get(part)
        )
        for part in parts
    ]
    if prediction.step_peak_bytes is not None and device_peak_bytes is not None:
        peak = float(device_peak_bytes)
        rows.append(
            Compared(what="memory", part="peak", predicted_bytes=prediction.step_peak_bytes, measured_bytes=peak)
        )
    ours: dict[str, float] = {}
    for one in prediction.traffic:
        ours[one.collective] = ours.get(one.collective, 0) + one.bytes_per_step
    counted = {} if traffic is None else {one["collective"]: one["bytes_per_step"] for one in traffic["collectives"]}
    for collective in dict.fromkeys([*ours, *counted]):
        measured = None if traffic is None else counted.get(collective, 0)
        row = Compared(
            what="communication", part=collective, predicted_bytes=ours.get(collective), measured_bytes=measured
        )
        rows.append(row)
    return tuple(rows)


def table_of(rows: Sequence[Compared]) -> list[dict[str, _spec.Value]]:
    """The comparison as rows of results/prediction.csv."""
    return [
        {
            "what": row.what,
            "part": row.part,
            "predicted_bytes": row.predicted_bytes,
            "measured_bytes": row.measured_bytes,
            "measured_by_predicted": row.ratio,
        }
        for row in rows
    ]


def note_of(rows: Sequence[Compared]) -> str | None:
    """The comparison in a line: `measured by predicted: memory weights 1; communication all_reduce 1.02`."""
    known = [f"{row.what} {row.part} {significant(row.ratio, 3)}" for row in rows if row.ratio is not None]
    return f"measured by predicted: {'; '.join(known)}" if known else None


def warning_of(forecast: Forecast) -> Words:
    """What to know before a run that is too large for its device."""
    assert forecast.device_bytes is not None
    need = format_quantity(forecast.rank_bytes * forecast.sharing_ranks, "bytes")
    there = format_quantity(forecast.device_bytes, "bytes")
    return Words(
        f"the modelled memory is {need}, the device has {there}: the run may end without memory",
        f"建模内存为 {need}，设备仅有 {there}：运行可能因内存不足而中止",
    )
