"""Frequency of the AI cores: drops while kernels run (P-01) and in idle time (P-02)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.frequency import frequency
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))
B4 = Meta(rank=0, device=Device(kind="npu", name="Ascend910B4"))  # rated 1500 MHz
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
BUSY = [{"start_ns": 0, "dur_ns": 1_000_000, "name": "k", "core": "AIC", "stream": 1}]


def _samples(*pairs: tuple[int, float]) -> list[dict[str, object]]:
    return [{"time_ns": at, "counter": "AI Core Freq", "unit": "MHz", "value": mhz} for at, mhz in pairs]


def _codes(outcome: Outcome) -> dict[str, str]:
    return {row.code: row.verdict for row in outcome.judged}


def test_time_lost_is_busy_time_below_the_highest_frequency(make_trace: Make) -> None:
    # 600 us at 1200 of 1800 MHz: a third of it is lost.
    outcome = frequency.run_on_trace(
        make_trace(meta=NPU, steps=STEP, kernels=BUSY, counters=_samples((0, 1800.0), (400_000, 1200.0)))
    )

    (found,) = outcome.findings
    assert found.code == "P-01"
    assert found.share_ratio == pytest.approx(0.6 / 3)
    assert outcome.tables[0].column("hertz") == (1.8e9, 1.2e9)
    assert outcome.tables[0].column("busy_ns") == (400_000.0, 600_000.0)
    assert outcome.metrics[0].value == pytest.approx(0.4 * 1.8e9 + 0.6 * 1.2e9)


def test_a_constant_low_frequency_is_seen_against_the_cycles_of_the_kernels(make_trace: Make) -> None:
    # The exporter counted 1850 MHz: 20 cores x 300 us x 1850 MHz.
    kernels = [
        {
            "start_ns": at * 300_000, "dur_ns": 300_000, "name": "k", "core": "AIC", "stream": 1, "block_num": 20,
            "aic_time_ns": 300_000, "aic_total_cycles": 11_100_000,
        }
        for at in range(3)
    ]  # fmt: skip
    (found,) = frequency.run_on_trace(
        make_trace(meta=NPU, steps=STEP, kernels=kernels, counters=_samples((0, 1480.0)))
    ).findings

    assert found.code == "P-01"
    assert found.share_ratio == pytest.approx(0.9 * (1 - 1480 / 1850))


def test_a_named_device_is_held_against_its_own_rate(make_trace: Make) -> None:
    at_rate = frequency.run_on_trace(make_trace(meta=B4, steps=STEP, kernels=BUSY, counters=_samples((0, 1500.0))))
    below = frequency.run_on_trace(make_trace(meta=B4, steps=STEP, kernels=BUSY, counters=_samples((0, 1200.0))))

    assert not at_rate.findings  # 1500 MHz is no drop from a fixed 1800
    assert below.findings[0].share_ratio == pytest.approx(1 - 1200 / 1500)


@pytest.mark.parametrize("mhz", [1850.0, 1500.0, 1000.0])
def test_a_constant_frequency_of_an_unnamed_device_is_no_drop(make_trace: Make, mhz: float) -> None:
    outcome = frequency.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=BUSY, counters=_samples((0, mhz))))

    assert not outcome.findings
    assert _codes(outcome) == {"P-01": "clean", "P-02": "clean"}


def test_a_frequency_that_no_part_is_rated_for_is_a_drop_from_the_next_one(make_trace: Make) -> None:
    def share(mhz: float, cores: int) -> float | None:
        meta = Meta(rank=0, device=Device(kind="npu", cube_cores=cores, frequency_hz=round(mhz * 1e6)))
        found = frequency.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=BUSY, counters=_samples((0, mhz))))
        return found.findings[0].share_ratio if found.findings else None

    # 20 cube cores: 1500 MHz (910B4), 1800 MHz (910B3).
    assert share(1350.0, 20) == pytest.approx(0.1)
    assert share(1600.0, 20) == pytest.approx(1 - 16 / 18)
    assert share(1500.0, 20) is None
    assert share(1800.0, 20) is None
    assert share(1350.0, 7) is None  # no part has 7 cores


def test_the_frequency_that_the_profile_states_is_the_reference(make_trace: Make) -> None:
    meta = Meta(rank=0, device=Device(kind="npu", frequency_hz=1_850_000_000))
    (found,) = frequency.run_on_trace(
        make_trace(meta=meta, steps=STEP, kernels=BUSY, counters=_samples((0, 1480.0)))
    ).findings

    assert found.share_ratio == pytest.approx(0.2)


def test_four_percent_below_is_no_drop(make_trace: Make) -> None:
    samples = _samples((0, 1800.0), (500_000, 1730.0))
    assert not frequency.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=BUSY, counters=samples)).findings


def test_idle_frequency_of_an_idle_device_is_a_symptom_without_gain(make_trace: Make) -> None:
    kernels = [BUSY[0] | {"dur_ns": 300_000}, BUSY[0] | {"start_ns": 990_000, "dur_ns": 10_000}]
    samples = _samples((0, 1800.0), (350_000, 800.0), (995_000, 1800.0))

    outcome = frequency.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels, counters=samples))

    (found,) = outcome.findings
    assert (found.code, found.share_ratio) == ("P-02", None)
    assert _codes(outcome) == {"P-01": "clean", "P-02": "found"}


def test_a_busy_device_at_800_mhz_has_dropped(make_trace: Make) -> None:
    samples = _samples((0, 1800.0), (500_000, 800.0))
    (found,) = frequency.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=BUSY, counters=samples)).findings

    assert found.code == "P-01"
    assert found.share_ratio == pytest.approx(0.5 * (1 - 800 / 1800))


def test_without_samples_nothing_is_judged(make_trace: Make) -> None:
    outcome = frequency.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=BUSY))

    assert _codes(outcome) == {"P-01": "not_judged", "P-02": "not_judged"}


@pytest.mark.parametrize("folder", ["text/level1", "db/level1"])
def test_the_real_runs_hold_their_frequency(traces: Path, folder: str) -> None:
    for trace in pipeline.load(traces / "ascend-pytorch" / folder).traces:
        outcome = frequency.run_on_trace(trace)
        assert not outcome.findings
        assert _codes(outcome)["P-01"] == "clean"
