"""Series as trends: changes with their meaning and cause, decisions, exact figures, levels, rolling z."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from ascend_perf.history.store import Filter, Store
from ascend_perf.history.trends import direction, levels, rolling_z, trends_of
from ascend_perf.model.trend import Trend
from tests.history import _samples

pytestmark = pytest.mark.filterwarnings("error")


def _add(store: Store, folder: Path, count: int, **kind: object) -> None:
    for path in _samples.nights(folder, count, **kind):  # type: ignore[arg-type]  # passed through
        store.add(path)


def _trend(store: Store, metric: str, **wanted: str) -> Trend:
    (trend,) = trends_of(store, Filter(metric=metric, **wanted)).trends
    return trend


def test_a_slowdown_names_its_first_bad_commit_and_what_else_changed(store: Store, tmp_path: Path) -> None:
    _add(store, tmp_path, 40, step_at=28, ratio=1.06, later={"torch": "2.6.0"})

    book = trends_of(store)
    trends = {trend.metric: trend for trend in book.trends}

    (time,), (rate,) = trends["step_time_median"].changes, trends["tokens_per_s"].changes
    assert (time.place, time.direction, time.state) == (28, "worse", "open")
    assert (rate.place, rate.direction) == (28, "worse")  # fewer tokens a second
    assert book.results[trends["step_time_median"].results[28]].commit == _samples.results(28).commit
    assert time.facts == (("torch", "2.5.1", "2.6.0"),)
    assert time.ratio_low is not None and time.ratio_high is not None and time.ratio_low < 1.06 < time.ratio_high
    assert trends["kernels"].changes == trends["peak_device_memory"].changes == ()


def test_an_accepted_change_stays_with_its_owner_and_a_dismissed_one_is_not_told_again(
    store: Store, tmp_path: Path
) -> None:
    _add(store, tmp_path, 40, step_at=28, ratio=1.06)
    series = _trend(store, "step_time_median").series
    (open_,) = _trend(store, "step_time_median").changes

    store.decide(series, 29, "accepted", "li", "fused kernels")
    (accepted,) = _trend(store, "step_time_median").changes
    store.decide(series, 29, "dismissed", "wang", "noise")
    dismissed = _trend(store, "step_time_median")

    assert (open_.id, open_.state) == (f"{series}@29", "open")
    assert (accepted.id, accepted.state, accepted.owner, accepted.note) == (
        open_.id, "accepted", "li", "fused kernels",
    )  # fmt: skip
    assert accepted.ratio == pytest.approx(open_.ratio)
    assert (dismissed.changes[0].state, dismissed.changes[0].owner) == ("dismissed", "wang")
    assert len(set(dismissed.levels)) == 1  # no new level begins there


def test_a_change_may_be_accepted_where_the_search_finds_none(store: Store, tmp_path: Path) -> None:
    _add(store, tmp_path, 30)
    series = _trend(store, "step_time_median").series

    store.decide(series, 11, "accepted", "li", "new data set")

    (change,) = _trend(store, "step_time_median").changes
    assert (change.place, change.state, change.p_value) == (10, "accepted", None)


def test_exact_figures_change_at_once(store: Store, tmp_path: Path) -> None:
    for number, kernels in enumerate([420, 420, 420, 420, 420, 420, 420, 421, 421, 420]):
        store.add(_samples.write(tmp_path, _samples.results(number, kernels=kernels)))

    changes = _trend(store, "kernels").changes

    assert [(one.place, one.direction) for one in changes] == [(7, "worse"), (9, "better")]
    assert changes[0].ratio == 421 / 420


def test_a_count_that_is_never_the_same_is_judged_like_a_noisy_figure(store: Store, tmp_path: Path) -> None:
    for number in range(30):
        store.add(_samples.write(tmp_path, _samples.results(number, kernels=420 + number * 7 % 5)))

    assert _trend(store, "kernels").changes == ()


def test_the_newest_values_alone_may_be_asked_for(store: Store, tmp_path: Path) -> None:
    _add(store, tmp_path, 12)

    (trend,) = trends_of(store, Filter(metric="kernels"), last=5).trends

    assert trend.results == (8, 9, 10, 11, 12)


def test_levels_are_medians_between_changes() -> None:
    assert levels(np.array([1.0, 2.0, 3.0, 10.0, 20.0]), [3]) == (2.0, 2.0, 2.0, 15.0, 15.0)
    assert levels(np.array([]), []) == ()


@pytest.mark.parametrize(
    ("ratio", "better", "is_up", "said"),
    [(1.1, "lower", True, "worse"), (0.9, "lower", False, "better"), (0.9, "higher", False, "worse"),
     (1.1, "none", True, "changed"), (None, "lower", True, "worse")],
)  # fmt: skip
def test_what_a_change_means(ratio: float | None, better: str, is_up: bool, said: str) -> None:
    assert direction(ratio, better, is_up) == said  # type: ignore[arg-type]  # one of three words


def test_z_is_the_distance_from_the_median_of_the_values_before() -> None:
    random = np.random.default_rng(5)
    values = np.exp(random.normal(0, 0.02, 80))
    values[70] = 1.5
    values[33] = 0.0  # has no logarithm

    z = rolling_z(values, [40], window=20)

    def by_hand(place: int, start: int) -> float | None:
        logs = [math.log(value) for value in values[start:place] if value > 0][-20:]
        if len(logs) < 10:
            return None
        spread = 1.4826 * median(abs(one - median(logs)) for one in logs)
        return (math.log(values[place]) - median(logs)) / spread

    for place in range(80):
        expected = None if place == 33 else by_hand(place, 40 if place >= 40 else 0)
        assert z[place] == (None if expected is None else pytest.approx(expected)), place
    assert z[70] is not None and z[70] > 5
    assert z[45] is None  # the values before the change do not count


def test_values_without_a_logarithm_are_counted_and_left_out(store: Store, tmp_path: Path) -> None:
    from dataclasses import replace

    from ascend_perf.model.finding import Metric

    for number in range(24):
        one = _samples.results(number, step_ns=(1e8,))
        value = 0.0 if number in (3, 12) else (2.0 if number < 12 else 3.0) + 0.001 * (number % 3)
        loss = Metric(name="loss", value=value, unit="none", better="lower")
        launch = replace(one.benchmarks[0].launches[0], metrics=(loss,))
        store.add(_samples.write(tmp_path, replace(one, benchmarks=(replace(one.benchmarks[0], launches=(launch,)),))))

    trend = _trend(store, "loss")

    assert trend.not_judged == 2
    assert len(trend.values) == 24
    assert [change.place for change in trend.changes] == [13]  # night 12 has no logarithm
