"""Figures of a run by hand."""

from __future__ import annotations

import pytest

from ascend_perf.bench.figures import (
    MeasuredJson,
    ProgramJson,
    doubts,
    interquartile_range,
    metrics_of,
    peak_flops_per_s,
)
from ascend_perf.collectors.devices import SeenDevice

MEASURED = MeasuredJson(
    warmup_ns=[900],
    measured_ns=[100, 400, 200, 300],
    profiled_ns=[300, 400, 350],
    peak_rss_bytes=5,
    peak_device_bytes=7,
    trace_name="t",
    last_value=1.0,
)
PROGRAM = ProgramJson(
    item="tokens", items_per_step=50, flops_per_step=1000, dtype="bf16", parameters=3, value_name="loss"
)


def test_throughput_spread_overhead_and_mfu_by_hand() -> None:
    metrics = {metric.name: metric for metric in metrics_of(MEASURED, PROGRAM, peak=8e9)}

    # Median of 100, 200, 300, 400 is 250 ns; quartiles by linear interpolation 175 and 325.
    values = {name: metric.value for name, metric in metrics.items()}
    assert values == {
        "tokens_per_s": pytest.approx(50 / 250e-9),
        "step_time_median": 250,
        "step_time_iqr": 150,
        "step_count": 4,
        "model_flops_per_step": 1000,
        "model_flops_per_s": pytest.approx(4e9),  # 1000 / 250 ns
        "profiler_overhead": pytest.approx(0.4),  # 350 / 250 - 1
        "mfu": pytest.approx(0.5),  # 4e9 / 8e9
        "parameters": 3,
        "loss": 1.0,
        "peak_rss": 5,
        "peak_device_memory": 7,
    }
    assert metrics["tokens_per_s"].better == metrics["mfu"].better == "higher"
    assert metrics["step_time_median"].better == metrics["profiler_overhead"].better == "lower"


def test_without_a_peak_there_is_no_mfu_and_on_a_cpu_no_device_memory() -> None:
    measured = changed(peak_device_bytes=None)

    names = [metric.name for metric in metrics_of(measured, PROGRAM, peak=None)]

    assert "mfu" not in names
    assert "peak_device_memory" not in names


def changed(**values: object) -> MeasuredJson:
    return MeasuredJson(**{**MEASURED, **values})  # type: ignore[typeddict-item]  # same keys


def test_steps_that_vary_are_doubted() -> None:
    # Quartiles of 100, 100, 105, 110, 110 are 100 and 110: 10 of 105 is 9.5 %.
    assert doubts(changed(measured_ns=[100, 100, 105, 110, 110]), PROGRAM) == ()
    assert doubts(changed(measured_ns=[1000]), PROGRAM) == ()
    (note,) = doubts(changed(measured_ns=[80, 100, 120]), PROGRAM)  # quartiles 90 and 110
    assert note.startswith("the middle half of the 3 measured steps spans 20 % of the median")


def test_a_loss_that_is_not_finite_is_unknown_and_said() -> None:
    measured = changed(measured_ns=[100], last_value=float("nan"))

    values = {metric.name: metric.value for metric in metrics_of(measured, PROGRAM, peak=None)}

    assert values["loss"] is None
    assert doubts(measured, PROGRAM)[0].startswith("loss is not finite")


def test_one_step_has_no_spread() -> None:
    assert interquartile_range([5]) is None


def test_peaks_come_from_the_device_table_by_exact_name() -> None:
    def device(kind: str, name: str | None) -> SeenDevice:
        return SeenDevice(type=kind, index=0, name=name)  # type: ignore[arg-type]  # one of three

    assert peak_flops_per_s(device("npu", "Ascend910B4"), "bf16") == pytest.approx(245.8e12)
    assert peak_flops_per_s(device("cuda", "NVIDIA H100 80GB HBM3"), "bf16") == pytest.approx(989.4e12)
    assert peak_flops_per_s(device("npu", "Ascend910B"), "bf16") is None  # a family, not a part
    assert peak_flops_per_s(device("cuda", "an unknown GPU"), "bf16") is None
    assert peak_flops_per_s(device("cpu", "a processor"), "fp32") is None
    assert peak_flops_per_s(device("cuda", None), "bf16") is None
