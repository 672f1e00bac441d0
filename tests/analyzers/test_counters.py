"""Device counters over time, against hand arithmetic and brute force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import intervals, pipeline
from ascend_perf.analyzers._counter_series import Series, mean_within, series_of, time_above
from ascend_perf.analyzers.counters import MAX_BINS, counters
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.tables import COUNTERS
from ascend_perf.model.trace import Device, Meta, Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
B4 = Meta(rank=0, device=Device(kind="npu", name="Ascend910B4", spec="ascend-910b4"))


def _sample(name: str, at: int | None, value: float, unit: str | None = "B/s") -> dict[str, object]:
    return {"counter": name, "time_ns": at, "value": value, "unit": unit}


def _table(outcome: Outcome, name: str) -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _row(table: ResultTable, counter: str) -> dict[str, object]:
    at = table.column("counter").index(counter)
    return {column.name: cells[at] for column, cells in zip(table.columns, table.data, strict=True)}


def test_rates_count_for_the_time_before_and_levels_for_the_time_after(make_trace: Make) -> None:
    # Steps of 0-400; kernels 100-200 and 300-400, a collective 200-300.
    trace = make_trace(
        meta=B4, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 400}],
        kernels=[{"start_ns": at, "dur_ns": 100, "name": "k"} for at in (100, 300)],
        comm_ops=[{"start_ns": 200, "dur_ns": 100, "op": "all_reduce", "name": "c"}],
        counters=[
            *(_sample("HCCS/Tx", at, at * 1e7) for at in (100, 200, 300, 400)),
            *(_sample("AI Core Freq", at, mhz, "MHz") for at, mhz in ((0, 800), (100, 1200), (300, 1500))),
        ],
    )  # fmt: skip

    table = _table(counters.run_on_trace(trace), "counter-summary")

    rate = _row(table, "HCCS/Tx")
    # Each sample is the mean of the 100 ns before it: idle 0-100, kernels 100-200 and 300-400, collective 200-300.
    assert (rate["idle"], rate["computing"], rate["communicating"]) == ("1 GB/s", "3 GB/s", "3 GB/s")
    assert (rate["mean"], rate["least"], rate["most"]) == ("2.5 GB/s", "1 GB/s", "4 GB/s")
    frequency = _row(table, "AI Core Freq")
    # 800 MHz over 0-100, 1200 over 100-300, 1500 from 300 on for a usual period (150).
    assert (frequency["idle"], frequency["computing"]) == ("800 MHz", "1.35 GHz")
    assert frequency["communicating"] == "1.2 GHz"
    assert frequency["peak"] == "1.5 GHz"  # the rated frequency of the part
    assert frequency["most_ratio"] == 1.0
    assert frequency["high_ratio"] == pytest.approx(350 / 450)  # 1200 MHz is 80 %
    assert frequency["mean_ratio"] == pytest.approx((800 * 100 + 1200 * 200 + 1500 * 150) / 450 / 1500)
    # The sum of both sets that count: nothing else is judged.
    assert not counters.run_on_trace(trace).findings


def test_controllers_of_one_kind_are_taken_together(make_trace: Make) -> None:
    trace = make_trace(
        counters=[
            *(_sample(f"HBM {part}/Read", at, 10.0 * (part + 1), "MB/s") for part in (0, 1) for at in (100, 200)),
            *(_sample(f"HBM {part}/Write", at, 5.0, "MB/s") for part in (0, 1) for at in (100, 200)),
            _sample("HBM 0/Read", 300, 99.0, "MB/s"),  # the other one is missing: no sum
            *(_sample(f"LLC {part} Read/Hit Rate", 100, rate, "ratio") for part, rate in ((0, 0.4), (1, 0.8))),
            *(_sample("LLC/Throughput", at, value) for at in (100, 200) for value in (1.0, 2.0)),
        ]
    )

    found = {series.name: series for series in series_of(trace[COUNTERS])}

    assert found["HBM/Read"].values.tolist() == [30e6, 30e6]
    assert found["HBM/Read"].at.tolist() == [100, 200]
    assert found["HBM/Read + Write"].values.tolist() == [40e6, 40e6]
    assert found["LLC Read/Hit Rate"].values.tolist() == [pytest.approx(0.6)]
    assert found["LLC/Throughput"].values.tolist() == [3.0, 3.0]
    metrics = {metric.name: metric.value for metric in counters.run_on_trace(trace).metrics}
    assert metrics == {"hbm_bandwidth_mean": 40e6}


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [
        ("AI Core Freq", "MHz", ("hertz", 1e6)),
        ("AI Core Freq", None, ("hertz", 1e6)),
        ("Chip power", "W", ("watt", 1.0)),
        ("Temperature", None, ("celsius", 1.0)),
        ("PCIe/Tx posted", "GB/s", ("bytes_per_s", 1e9)),
        ("QoS OTHERS", None, ("none", 1.0)),
        ("Something", "furlongs", ("none", 1.0)),
    ],
)
def test_units_are_those_of_the_model(
    make_trace: Make, name: str, unit: str | None, expected: tuple[str, float]
) -> None:
    (series,) = series_of(make_trace(counters=[_sample(name, 5, 2.0, unit)])[COUNTERS])

    assert (series.unit, series.values.tolist()) == (expected[0], [2 * expected[1]])


def test_peaks_of_memory_and_links_come_from_the_device_table(make_trace: Make) -> None:
    names = ("HBM 0/Read", "HCCS/Tx", "RoCE/Rx", "NIC/Tx", "PCIe/Tx posted", "LLC/Throughput")
    meta = Meta(rank=0, device=Device(kind="npu", name="Ascend910B1", spec="ascend-910b1"))
    trace = make_trace(meta=meta, counters=[_sample(name, at, 5e9) for name in names for at in (1, 2)])

    table = _table(counters.run_on_trace(trace), "counter-summary")

    assert _row(table, "HCCS/Tx")["most_ratio"] == pytest.approx(5 / 196)
    assert _row(table, "RoCE/Rx")["most_ratio"] == _row(table, "NIC/Tx")["most_ratio"] == pytest.approx(5 / 25)
    assert _row(table, "PCIe/Tx posted")["most_ratio"] == pytest.approx(5 / 64)
    assert _row(table, "LLC/Throughput")["most_ratio"] is None


def test_figures_without_a_time_stand_apart(make_trace: Make) -> None:
    trace = make_trace(counters=[_sample("HCCS txThroughput/Average", None, 12.5, "MB/s")])

    outcome = counters.run_on_trace(trace)

    (table,) = outcome.tables
    assert table.name == "counter-figures"
    assert table.data == (("HCCS txThroughput/Average",), ("12.5 MB/s",))


def test_long_series_are_thinned_and_keep_their_extremes(make_trace: Make) -> None:
    values = [float(i % 1000) for i in range(50_000)]
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 50_000}],
        kernels=[{"start_ns": 0, "dur_ns": 25_000, "name": "k"}],
        counters=[_sample("DDR/Read", at, value) for at, value in enumerate(values)],
    )  # fmt: skip

    table = _table(counters.run_on_trace(trace), "counter-timeline")

    assert len(table) <= MAX_BINS
    starts, lengths = (np.array(table.column(name)) for name in ("start_ns", "dur_ns"))
    assert starts[0] == 0 and starts[-1] + lengths[-1] >= 50_000
    busy = np.array(table.column("computing_ratio"))
    assert busy[0] == 1.0 and busy[-1] == 0.0
    assert float((busy * lengths).sum()) == pytest.approx(25_000)
    for place in (0, 7, len(table) - 1):
        inside = values[starts[place] : starts[place] + lengths[place]]
        assert table.column("least")[place] == min(inside)
        assert table.column("most")[place] == max(inside)
        assert table.column("mean")[place] == pytest.approx(sum(inside) / len(inside))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), min_size=2, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=5),
    st.booleans(), st.integers(0, 100),
)  # fmt: skip
def test_means_against_single_nanoseconds(
    samples: list[tuple[int, int]], windows: list[tuple[int, int]], held: bool, level: int
) -> None:
    at = np.cumsum([gap for gap, _ in samples])
    values = np.array([value for _, value in samples], float)
    series = Series(name="x", unit="hertz" if held else "bytes_per_s", at=at, values=values, parts=1)
    usual = int(np.median(np.diff(at)))
    # Which sample speaks of each nanosecond, one after the other.
    speaks: dict[int, float] = {}
    for i, value in enumerate(values.tolist()):
        low, high = int(at[i]), int(at[i + 1]) if i + 1 < len(at) else int(at[i]) + usual
        if not held:
            low, high = int(at[i - 1]) if i else int(at[0]) - usual, int(at[i])
        speaks |= dict.fromkeys(range(low, high), value)
    where = intervals.merged(
        np.array([start for start, _ in windows], np.int64), np.array([start + dur for start, dur in windows], np.int64)
    )
    inside = [value for ns, value in speaks.items() if any(a <= ns < a + dur for a, dur in windows)]

    mean = mean_within(series, where)

    assert mean is None if not inside else mean == pytest.approx(sum(inside) / len(inside))
    above = time_above(series, level)
    assert above == pytest.approx(sum(value >= level for value in speaks.values()) / len(speaks))


def test_values_that_are_no_numbers_are_no_samples() -> None:
    table = build_table("counters", [_sample("DDR/Read", 1, float("nan")), _sample("DDR/Read", 2, float("inf"))])

    assert series_of(table) == ()


def test_a_trace_without_counters_is_no_data(make_trace: Make) -> None:
    trace = make_trace(kernels=[{"start_ns": 0, "dur_ns": 1, "name": "k"}])

    assert counters.run_on_trace(trace).status == "no_data"


def test_bandwidth_of_a_real_capture_follows_the_collectives(traces: Path) -> None:
    # Level1, AlexNet: 4 controllers with 13 samples each; the all-reduces move most.
    trace = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces[0]
    table = trace[COUNTERS]
    reads = table.text("counter").flags(lambda name: name.startswith("HBM") and name.endswith("Read"))

    outcome = counters.run_on_trace(trace)

    (series,) = [s for s in series_of(table) if s.name == "HBM/Read"]
    assert series.parts == 4 and len(series.at) == 13
    assert series.values.sum() == pytest.approx(table.floats("value")[reads].sum() * 1e6)
    summary = _row(_table(outcome, "counter-summary"), "HBM/Read")
    assert summary["communicating"] == "33.11 GB/s"
    assert summary["computing"] == "2.254 GB/s"
    timeline = _table(outcome, "counter-timeline")
    assert set(timeline.column("unit")) >= {"hertz", "bytes_per_s", "ratio", "bytes"}
    assert all(0 <= value <= 1 for value in timeline.column("communicating_ratio") if isinstance(value, float))
