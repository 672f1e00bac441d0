"""Peaks, what the allocator holds without using it, growth over steps, and a curve that keeps its extremes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._memory_trend import trend_of
from ascend_perf.analyzers.memory import TIMELINE_POINTS, Component, memory, thinned
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.pipeline import load

MakeTrace = Callable[..., Trace]
MIB = 2**20


def sample(time: int, allocated: int, reserved: int, component: str = "PTA") -> dict[str, object]:
    return {
        "time_ns": time, "component": component, "allocated_bytes": allocated * MIB, "reserved_bytes": reserved * MIB,
    }  # fmt: skip


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {judged.code: judged.verdict for judged in outcome.judged}


def test_the_gap_is_measured_against_device_memory_where_that_is_known(make_trace: MakeTrace) -> None:
    rows = [sample(0, 100, 400), sample(10, 300, 500), sample(20, 200, 500)]

    def with_capacity(mib: int | None) -> Outcome:
        device = Device(kind="npu", memory_bytes=None if mib is None else mib * MIB)
        return memory.run_on_trace(make_trace(meta=Meta(rank=0, device=device), memory=rows))

    # Peak reserved 500 - peak allocated 300 = 200 MiB: 40 % of reserved, 20 % of 1000 MiB, 2 % of 10,000 MiB.
    assert "40 % of what is reserved" in with_capacity(None).findings[0].title.en
    assert "20 % of device memory" in with_capacity(1000).findings[0].title.en
    assert verdicts(with_capacity(10_000))["K-01"] == "clean"


def test_memory_outside_of_the_framework_is_the_difference_to_the_process(make_trace: MakeTrace) -> None:
    process = {"time_ns": 5, "component": "APP", "reserved_bytes": 900 * MIB}

    outcome = memory.run_on_trace(make_trace(memory=[sample(0, 480, 500), process]))

    metrics = {metric.name: metric.value for metric in outcome.metrics}
    assert metrics["memory_outside_framework_bytes"] == 400 * MIB
    assert metrics["memory_peak_allocated_bytes"] == 480 * MIB
    peaks = next(t for t in outcome.tables if t.name == "memory-peaks")
    assert dict(zip(peaks.column("component"), peaks.column("peak_allocated_bytes"), strict=True)) == {
        "PTA": 480 * MIB,
        "APP": None,
    }


def test_a_model_on_the_host_has_no_device_memory_to_profile(make_trace: MakeTrace) -> None:
    """profile_memory=True would not help: the run had it."""
    host = {"time_ns": 5, "component": "CPU", "allocated_bytes": 4 * MIB}
    steps = [{"step_id": n, "start_ns": n * 100, "dur_ns": 100} for n in range(3)]
    outcome = memory.run_on_trace(make_trace(meta=Meta(rank=0, device=Device(kind="cpu")), memory=[host], steps=steps))
    assert {judged.code: judged.reason.en for judged in outcome.judged if judged.reason} == dict.fromkeys(
        ("K-01", "K-02", "K-06"), "the model runs on the host itself: no device memory to look at"
    )


def test_more_in_use_than_reserved_is_no_gap(make_trace: MakeTrace) -> None:
    outcome = memory.run_on_trace(make_trace(memory=[sample(0, 500, 480)]))
    peaks = next(t for t in outcome.tables if t.name == "memory-peaks")
    assert peaks.column("gap_bytes") == (None,)


def test_growth_needs_a_floor_that_rises_in_every_step(make_trace: MakeTrace) -> None:
    steps = [{"step_id": n, "start_ns": n * 100, "dur_ns": 100} for n in range(4)]

    def floors(*values: int) -> Outcome:
        rows = [
            sample(n * 100 + at, value + up, 900) for n, value in enumerate(values) for at, up in ((10, 0), (50, 40))
        ]
        return memory.run_on_trace(make_trace(steps=steps, memory=rows))

    (found,) = [f for f in floors(100, 120, 140, 170).findings if f.code == "K-02"]
    # Slopes of all pairs: 20, 20, 30 of neighbours, 40/2, 50/2 and 70/3.
    assert found.evidence[0].value == pytest.approx((20 + 70 / 3) / 2 * MIB)
    assert verdicts(floors(100, 120, 120, 140))["K-02"] == "clean"  # it levelled off once
    assert verdicts(floors(100, 105, 110, 115))["K-02"] == "clean"  # 5 MiB per step
    assert verdicts(floors(100, 200))["K-02"] == "not_judged"


def test_library_memory_is_judged_only_with_the_size_of_the_device(make_trace: MakeTrace) -> None:
    modules = [{"component": "HCCL", "time_ns": 1, "reserved_bytes": 100 * MIB}]

    def with_capacity(mib: int | None) -> Outcome:
        device = Device(kind="npu", memory_bytes=None if mib is None else mib * MIB)
        trace = make_trace(meta=Meta(rank=0, device=device), memory=[sample(0, 9, 9)], module_memory=modules)
        return memory.run_on_trace(trace)

    assert verdicts(with_capacity(1000))["K-06"] == "found"
    assert verdicts(with_capacity(4000))["K-06"] == "clean"
    assert verdicts(with_capacity(None))["K-06"] == "not_judged"


def test_a_long_curve_is_thinned_and_keeps_its_extremes() -> None:
    count = 50_000
    rng = np.random.default_rng(7)
    allocated, reserved = rng.integers(0, 1000, count), rng.integers(0, 1000, count)
    allocated[31_234], reserved[40_001] = 5000, 6000
    part = Component(
        name="PTA", rows=np.arange(count), time_ns=np.arange(count), allocated=allocated, reserved=reserved
    )

    kept = thinned(part)

    assert len(kept) <= TIMELINE_POINTS
    assert {0, 31_234, 40_001, count - 1} <= set(kept.tolist())


def test_peaks_of_the_alexnet_rank(traces: Path) -> None:
    """Reference: traces/README, section 2.1."""
    (trace,) = load(traces / "ascend-pytorch" / "text" / "level1" / "rank0_ascend_pt").traces

    metrics = {metric.name: metric.value for metric in memory.run_on_trace(trace).metrics}

    assert metrics["memory_peak_reserved_bytes"] == 1452.0 * MIB
    assert metrics["memory_peak_allocated_bytes"] == pytest.approx(1187.9814453125 * MIB, abs=1)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12))
def test_the_trend_against_all_pairs(values: list[int]) -> None:
    slopes = sorted(
        (values[j] - values[i]) / (j - i) for i in range(len(values)) for j in range(i + 1, len(values))
    )  # fmt: skip

    trend = trend_of(np.array(values, float), np.arange(len(values)))

    assert trend is not None
    assert trend.slope == pytest.approx(statistics.median(slopes))
    if trend.low is not None and trend.high is not None:
        assert trend.low <= trend.slope <= trend.high
    else:
        assert len(values) < 6


def test_the_range_of_a_trend_by_sens_ranks() -> None:
    # 10 steps, 45 slopes: 1.96 * sqrt(10 * 9 * 25 / 18) = 21.91; M1 = (45 - 21.91) / 2 = 11.5, M2 = 33.5.
    values = np.array([0, 12, 19, 32, 38, 51, 63, 68, 82, 90], float)
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(10) for j in range(i + 1, 10))

    trend = trend_of(values, np.arange(10))

    assert trend is not None
    assert (trend.low, trend.high) == (slopes[10], slopes[34])  # the 11th and the 35th


def test_one_step_that_is_off_does_not_move_the_trend() -> None:
    values = np.array([5.0 * n for n in range(20)])
    values[7] += 1000

    trend = trend_of(values, np.arange(20))

    assert trend is not None and trend.slope == 5.0


def test_a_long_run_is_thinned_before_its_pairs_are_compared() -> None:
    trend = trend_of(np.array([3.0 * n for n in range(100_000)]), np.arange(100_000))

    assert trend is not None and trend.slope == 3.0


def test_what_is_unused_over_time_and_at_the_peak(make_trace: MakeTrace) -> None:
    # 100 of 200 for 10 ns, 300 of 400 for 30 ns, then 100 and 120 of 500.
    rows = [sample(0, 100, 200), sample(10, 300, 400), sample(40, 100, 500), sample(40, 120, 500)]

    table = next(t for t in memory.run_on_trace(make_trace(memory=rows)).tables if t.name == "memory-peaks")

    assert table.column("unused_ratio")[0] == pytest.approx((0.5 * 10 + 0.25 * 30) / 40)
    assert table.column("unused_at_peak_bytes") == (380 * MIB,)


def test_memory_of_each_step_and_its_trend(make_trace: MakeTrace) -> None:
    steps = [{"step_id": 10 + n, "start_ns": n * 100, "dur_ns": 100} for n in range(3)]
    rows = [
        sample(n * 100 + at, value, reserved) for n, base in enumerate((100, 130, 140))
        for at, value, reserved in ((10, base, 500), (50, base + 60, 600 + n))
    ]  # fmt: skip

    outcome = memory.run_on_trace(make_trace(steps=steps, memory=rows))

    table = next(t for t in outcome.tables if t.name == "memory-steps")

    assert table.column("step_id") == (10, 11, 12)
    assert table.column("least_allocated_bytes") == (100 * MIB, 130 * MIB, 140 * MIB)
    assert table.column("most_allocated_bytes") == (160 * MIB, 190 * MIB, 200 * MIB)
    assert table.column("most_reserved_bytes") == (600 * MIB, 601 * MIB, 602 * MIB)
    assert table.column("grown_bytes") == (None, 30 * MIB, 10 * MIB)
    assert table.note is not None and "20 MiB per step" in table.note.en  # of 30, 10 and 40 / 2


def test_driver_components_over_the_capture(make_trace: MakeTrace) -> None:
    def module(name: str, time: int, mib: int) -> dict[str, object]:
        return {"component": name, "time_ns": time, "reserved_bytes": mib * MIB}

    rows = [module("HCCL", 20, 300), module("HCCL", 10, 200), module("HCCL", 30, 250), module("GE", 10, 50)]
    device = Device(kind="npu", memory_bytes=1000 * MIB)
    trace = make_trace(
        meta=Meta(rank=0, device=device), memory=[sample(0, 9, 9)], module_memory=[*rows, module("TS", 10, 0)]
    )

    table = next(t for t in memory.run_on_trace(trace).tables if t.name == "memory-modules")

    assert tuple(map(tuple, table.data)) == (
        ("HCCL", "GE"), (300 * MIB, 50 * MIB), (0.3, 0.05), (200 * MIB, 50 * MIB), (50 * MIB, 0), (3, 1)
    )  # fmt: skip
