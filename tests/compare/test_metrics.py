"""Scores, intervals of ratios, efficiency: against hand arithmetic."""

from __future__ import annotations

import pytest

from ascend_perf.compare.metrics import (
    Measured,
    Measurements,
    efficiency_table,
    metric_table,
    of_benchmark,
    ratio_bounds,
    score,
)
from ascend_perf.device.specs import device_specs
from ascend_perf.model.finding import Metric, ResultTable, Words
from ascend_perf.model.result import Benchmark, Launch

TITLE = Words("x", "y")


def throughput(*values: float) -> Measured:
    return Measured(values=values, unit="items_per_s", better="higher")


def cells(table: ResultTable | None, name: str) -> list[object]:
    assert table is not None
    return list(table.column(name))


def test_the_fastest_and_the_slowest_of_five_are_left_out() -> None:
    assert score([1, 2, 3, 4, 100]) == 3
    assert score([100, 2, 4, 3, 1, 5]) == (2 + 3 + 4 + 5) / 4
    # Of fewer the median.
    assert score([1, 2, 4, 100]) == 3
    assert score([7]) == 7
    with pytest.raises(ValueError, match="no runs"):
        score([])


def test_an_interval_needs_two_runs_and_holds_the_ratio() -> None:
    assert ratio_bounds([1], [2, 2]) is None
    assert ratio_bounds([1, 1], [0, 2]) is None
    # Equal runs scatter nowhere.
    assert ratio_bounds([2, 2, 2], [3, 3, 3]) == (1.5, 1.5)
    bounds = ratio_bounds([99, 100, 101, 100, 102, 98], [110, 111, 109, 110, 108, 112])
    assert bounds is not None
    assert 98 / 102 * 1.05 < bounds[0] < 1.1 < bounds[1] < 112 / 98
    # The extremes that a bootstrap can reach bound it: 108/102 and 112/98.
    assert bounds[0] >= 108 / 102 and bounds[1] <= 112 / 98


def test_better_is_told_only_where_the_interval_does_not_hold_one() -> None:
    a = Measurements(metrics={"tokens_per_s": throughput(100, 101, 99), "same": throughput(10, 11, 9),
                              "step": Measured(values=(5.0,), unit="ns", better="lower"),
                              "only_a": throughput(1)})  # fmt: skip
    b = Measurements(metrics={"tokens_per_s": throughput(150, 151, 149), "same": throughput(10, 9, 11),
                              "step": Measured(values=(4.0,), unit="ns", better="lower")})  # fmt: skip
    table = metric_table(["A", "B"], [a, b], "t", TITLE)
    assert cells(table, "quantity") == ["tokens_per_s", "same", "step"]
    assert cells(table, "value_A") == [100, 10, 5]
    assert cells(table, "ratio_B") == [1.5, 1, 0.8]
    assert cells(table, "kind") == ["B", "not told apart", "one run only"]
    assert cells(table, "runs_A") == [3, 3, 1]
    # Several runs whose ratio has no interval (an overhead below 0) are not one run.
    over = [Measurements(metrics={"overhead": Measured(values=values, unit="ratio", better="lower")})
            for values in ((0.1, 0.2, 0.3), (-0.1, 0.3, 0.4))]  # fmt: skip
    odd = metric_table(["A", "B"], over, "t", TITLE)
    assert cells(odd, "ratio_B") == [pytest.approx(1.5)] and cells(odd, "low_B") == [None]
    assert cells(odd, "kind") == [None]
    # For a time the smaller one is better.
    slow = Measurements(metrics={"step": Measured(values=(8.0, 8.0), unit="ns", better="lower")})
    fast = Measurements(metrics={"step": Measured(values=(5.0, 5.0), unit="ns", better="lower")})
    assert cells(metric_table(["A", "B"], [slow, fast], "t", TITLE), "kind") == ["B"]
    assert cells(metric_table(["A", "B"], [fast, slow], "t", TITLE), "kind") == ["A"]


def test_efficiency_is_throughput_over_cards_power_peak_and_rate() -> None:
    specs = device_specs()
    power = Measured(values=(400.0,), unit="watt", better="lower")
    a = Measurements(metrics={"tokens_per_s": throughput(8000), "power_mean": power}, cards=2,
                     spec=specs["h100-sxm"], dtype="bf16")  # fmt: skip
    b = Measurements(metrics={"tokens_per_s": throughput(3000)}, cards=1, spec=specs["mi300x"], dtype="bf16")
    table = efficiency_table(["A", "B"], [a, b], "t", TITLE)
    # Watts are known on one side only: no row.
    assert cells(table, "kind") == ["card", "peak TFLOPS", "GB/s"]
    assert cells(table, "value_A") == pytest.approx([4000, 8000 / (2 * 989.4), 8000 / (2 * 3350)])
    assert cells(table, "value_B") == pytest.approx([3000, 3000 / 1307.4, 3000 / 5300])
    by_peak, by_rate = (3000 / 1307.4) / (8000 / 1978.8), (3000 / 5300) / (8000 / 6700)
    assert cells(table, "ratio_B") == pytest.approx([0.75, by_peak, by_rate])
    assert efficiency_table(["A", "B"], [a, Measurements()], "t", TITLE) is None


def test_runs_that_failed_do_not_count() -> None:
    metric = Metric(name="tokens_per_s", value=5.0, unit="items_per_s", better="higher")
    launches = [
        Launch(index=0, started="", status="complete", metrics=(metric,)),
        Launch(index=1, started="", status="failed", metrics=(Metric(
            name="tokens_per_s", value=1.0, unit="items_per_s", better="higher"
        ),)),
    ]  # fmt: skip
    made = of_benchmark(Benchmark(name="x", workload="w", launches=tuple(launches), counts={"kernels": 7}))
    assert made["tokens_per_s"].values == (5.0,)
    assert made["kernels"].values == (7.0,)


def test_a_name_alone_makes_no_common_metric() -> None:
    a = Measurements(metrics={"rate": throughput(100, 100), "turned": throughput(100, 100)})
    b = Measurements(metrics={"rate": Measured(values=(7.0, 7.0), unit="bytes", better="higher"),
                              "turned": Measured(values=(50.0, 50.0), unit="items_per_s", better="lower")})  # fmt: skip
    table = metric_table(["A", "B"], [a, b], "t", TITLE)
    assert cells(table, "ratio_B") == [None, None]
    assert cells(table, "kind") == ["other unit or direction", "other unit or direction"]
    # 7 bytes are not shown as 7 items a second.
    assert cells(table, "value_B") == [None, 50]
