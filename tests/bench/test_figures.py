"""Figures of a run by hand."""

from __future__ import annotations

import pytest

from ascend_perf.bench.figures import (
    Energy,
    MeasuredJson,
    ProgramJson,
    RankJson,
    Said,
    all_metrics,
    doubts,
    energy_metrics,
    interquartile_range,
    metrics_of,
    peak_flops_per_s,
    percentiles_of,
    slowest,
)
from ascend_perf.bench.traffic import Counted, CountedTraffic
from ascend_perf.collectors.devices import SeenDevice
from ascend_perf.model.finding import Metric
from ascend_perf.workloads._spec import Prediction, Traffic

MEASURED = MeasuredJson(
    warmup_ns=[900],
    measured_ns=[100, 400, 200, 300],
    profiled_ns=[300, 400, 350],
    peak_rss_bytes=5,
    peak_device_bytes=7,
    trace_name="t",
    last_value=1.0,
    measured_from_ns=10_000_000_000,
    measured_to_ns=12_000_000_000,
)
PROGRAM = ProgramJson(
    item="tokens", items_per_step=50, flops_per_step=1000, hardware_flops_per_step=1500, dtype="bf16", parameters=3,
    value_name="loss",
)  # fmt: skip


def test_throughput_spread_overhead_and_mfu_by_hand() -> None:
    metrics = {metric.name: metric for metric in metrics_of(MEASURED, PROGRAM, peak=4e9, world_size=2)}

    # Median of 100, 200, 300, 400 is 250 ns; quartiles by linear interpolation 175 and 325.
    values = {name: metric.value for name, metric in metrics.items()}
    assert values == {
        "tokens_per_s": pytest.approx(50 / 250e-9),
        "tokens_per_s_per_device": pytest.approx(25 / 250e-9),
        "step_time_median": 250,
        "step_time_iqr": 150,
        "step_count": 4,
        "model_flops_per_step": 1000,
        "model_flops_per_s": pytest.approx(4e9),  # 1000 / 250 ns
        "profiler_overhead": pytest.approx(0.4),  # 350 / 250 - 1
        "mfu": pytest.approx(0.5),  # 4e9 / (2 x 4e9)
        "hardware_flops_per_step": 1500,
        "hfu": pytest.approx(0.75),
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


def test_a_job_is_as_slow_as_its_slowest_rank_in_each_step() -> None:
    other = changed(
        warmup_ns=[950], measured_ns=[150, 300, 250, 100, 7], profiled_ns=[300], peak_rss_bytes=9,
        peak_device_bytes=None, trace_name="u", last_value=2.0,
        measured_from_ns=9_000_000_000, measured_to_ns=11_000_000_000,
    )  # fmt: skip

    assert slowest([MEASURED, other]) == MeasuredJson(
        warmup_ns=[950], measured_ns=[150, 400, 250, 300], profiled_ns=[300], peak_rss_bytes=9, peak_device_bytes=7,
        trace_name="t", last_value=1.0, measured_from_ns=9_000_000_000, measured_to_ns=12_000_000_000,
    )  # fmt: skip


def test_a_run_that_measured_no_step_has_no_figures_and_one_without_the_profiler_no_overhead() -> None:
    assert metrics_of(changed(measured_ns=[]), PROGRAM, peak=1e9) == ()
    stopped = changed(profiled_ns=[], last_value=None, peak_rss_bytes=None, peak_device_bytes=None)
    names = {metric.name for metric in metrics_of(stopped, PROGRAM, peak=None)}
    assert "tokens_per_s" in names
    assert names.isdisjoint({"profiler_overhead", "loss", "peak_rss", "peak_device_memory"})
    assert doubts(changed(measured_ns=[1], last_value=None), PROGRAM) == ()


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (1, ["ttft_p50", "ttft_mean"]),
        (10, ["ttft_p50", "ttft_p90", "ttft_mean"]),
        (20, ["ttft_p50", "ttft_p90", "ttft_p95", "ttft_mean"]),
        (101, ["ttft_p50", "ttft_p90", "ttft_p95", "ttft_p99", "ttft_mean"]),
    ],
)
def test_percentiles_are_given_where_the_sample_carries_them(count: int, names: list[str]) -> None:
    metrics, notes = percentiles_of({"ttft": [7 * i for i in reversed(range(count))], "none": []})

    # Of 0, 7, ... 7 (n - 1) the p-th percentile is 7 p (n - 1) / 100.
    assert [metric.name for metric in metrics] == names
    assert [metric.value for metric in metrics] == pytest.approx([
        7 * (count - 1) * (50 if name.endswith("mean") else int(name[-2:])) / 100 for name in names
    ])  # fmt: skip
    lacking = ["p90 (10)"] * (count < 10) + ["p95 (20)"] * (count < 20) + ["p99 (100)"] * (count < 100)
    assert notes == ((f"ttft: {count} samples, too few for {', '.join(lacking)}",) if lacking else ())


def test_latencies_with_as_few_samples_share_a_note() -> None:
    _, notes = percentiles_of({"prefill": [1, 2], "ttft": [1], "decode": [3, 4], "itl": [1] * 100})
    assert notes == (
        "prefill, decode: 2 samples, too few for p90 (10), p95 (20), p99 (100)",
        "ttft: 1 samples, too few for p90 (10), p95 (20), p99 (100)",
    )  # fmt: skip


def test_energy_is_over_the_measured_steps_by_hand() -> None:
    energy = Energy(joules=40.0, counted="2 cuda devices, without the host")

    values = {metric.name: metric.value for metric in energy_metrics(energy, MEASURED, PROGRAM)}

    assert values == {"energy": 40.0, "power_mean": 20.0, "tokens_per_joule": 5.0}  # 2 s; 4 steps of 50 tokens


def rank(number: int, memory: dict[str, int], moved: float | None) -> RankJson:
    traffic = None
    if moved is not None:
        collectives = [Counted(collective="all_reduce", bytes_per_step=moved, calls_per_step=1)]
        traffic = CountedTraffic(collectives=collectives, unknown_calls_per_step=0.5)
    return RankJson(
        rank=number, measurement=MEASURED, memory=memory, latencies={"e2e": [number] * 60}, traffic=traffic,
        device_joules=None,
    )  # fmt: skip


def test_all_ranks_together_give_the_neediest_memory_the_busiest_traffic_and_one_sample_of_latencies() -> None:
    own = Metric(name="accuracy", value=0.5, unit="ratio", better="higher")
    taken = Metric(name="step_count", value=99, unit="count", better="none")
    said = Said(
        device=SeenDevice(type="cpu", index=0, name="a processor"), measurement=MEASURED, program=PROGRAM,
        ranks=(rank(0, {"weights": 5, "cache": 1}, 10.0), rank(1, {"weights": 4, "cache": 9}, 30.0)),
        metrics=(own, taken),
    )  # fmt: skip
    prediction = Prediction(
        memory_bytes={"weights": 4, "cache": 18},
        traffic=(
            Traffic(axis="data", collective="all_reduce", bytes_per_step=10, calls_per_step=1),
            Traffic(axis="tensor", collective="all_reduce", bytes_per_step=10, calls_per_step=1),
            Traffic(axis="data", collective="broadcast", bytes_per_step=5, calls_per_step=1),
        ),
    )

    metrics, notes = all_metrics(said, world_size=2, prediction=prediction, energy=None)

    values = {metric.name: metric.value for metric in metrics}
    assert (values["memory_weights"], values["memory_cache"]) == (4, 9)
    assert values["communication_per_step"] == 30
    assert values["e2e_p99"] == 1  # of 60 times 0 and 60 times 1
    assert values["e2e_mean"] == 0.5
    assert (values["predicted_memory"], values["predicted_communication_per_step"]) == (22, 25)
    assert (values["accuracy"], values["step_count"]) == (0.5, 4)
    assert notes[-2:] == (
        "communication_per_step lacks 0.5 calls a step whose size the trace does not tell",
        "measured by predicted: memory weights 1; memory cache 0.5; communication all_reduce 1.5; "
        "communication broadcast 0",
    )


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
