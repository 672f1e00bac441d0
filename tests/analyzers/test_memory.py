"""Peaks, what the allocator holds without using it, growth over steps, and a curve that keeps its extremes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
    assert found.evidence[0].value == 20 * MIB  # median of 20, 20, 30
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
