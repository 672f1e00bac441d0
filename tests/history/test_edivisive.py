"""Change points: the statistic against its definition, tests against tables, rates on simulated series."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.history.edivisive import (
    MIN_PART,
    energy_statistic,
    find_steps,
    p_of_split,
    shift,
    student_p,
)
from benchmarks.bench_history import rates
from tests.history._series import stable

LOGS = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=30)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _energy(values: list[float], at: int) -> float:
    """The statistic as the paper defines it, pair by pair."""
    left, right = values[:at], values[at:]
    n, m = len(left), len(right)
    between = _mean([abs(a - b) for a in left for b in right])
    inside = [_mean([abs(a - b) for a, b in combinations(part, 2)]) for part in (left, right)]
    return n * m / (n + m) * (2 * between - sum(inside))


@given(LOGS)
def test_the_energy_statistic_is_that_of_its_definition(values: list[float]) -> None:
    found = energy_statistic(np.array(values), 2)

    for at in range(len(values)):
        if at < 2 or len(values) - at < 2:
            assert found[at] == -math.inf
        else:
            assert found[at] == pytest.approx(_energy(values, at), abs=1e-6)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(2.228, 10, 0.05), (3.169, 10, 0.01), (4.587, 10, 0.001), (2.042, 30, 0.05), (3.646, 30, 0.001), (2.571, 5, 0.05)],
)
def test_p_is_that_of_the_tables_of_students_t(t: float, degrees: int, p: float) -> None:
    assert student_p(t, degrees) == pytest.approx(p, rel=0.03)


def test_shift_is_the_median_difference() -> None:
    middle, low, high = shift(np.array([1.0, 2.0, 4.0]), np.array([11.0, 12.0, 15.0]))

    # 7 8 9 10 10 11 11 13 14; the normal interval of 9 differences holds all of them
    assert (middle, low, high) == (10.0, 7.0, 14.0)


def test_an_obvious_step_is_found_at_its_place_with_its_size() -> None:
    wave = 0.004 * np.sin(np.arange(40) * 2.4)
    logs = wave + np.where(np.arange(40) < 23, 0.0, math.log(1.10))

    (step,) = find_steps(logs)

    assert (step.index, step.earliest, step.latest) == (23, 23, 23)
    assert step.ratio == pytest.approx(1.10, rel=0.003)
    assert step.ratio_low < 1.10 < step.ratio_high
    assert (step.before, step.after) == (23, 17)


def test_two_steps_and_the_way_back() -> None:
    wave = 0.004 * np.sin(np.arange(90) * 2.4)
    level = np.select([np.arange(90) < 30, np.arange(90) < 60], [0.0, 0.05], 0.0)

    steps = find_steps(wave + level)

    assert [step.index for step in steps] == [30, 60]
    assert [step.ratio > 1 for step in steps] == [True, False]


def test_an_outlier_beside_the_step_does_not_move_it() -> None:
    logs = 0.004 * np.sin(np.arange(40) * 2.4) + np.where(np.arange(40) < 25, 0.0, 0.06)
    logs[23] = 0.15

    (step,) = find_steps(logs)

    assert step.index == 25


@pytest.mark.parametrize("outliers", [[20], [20, 21, 22], [5, 17, 18, 33, 39], [37, 38, 39]])
def test_outliers_are_no_step(outliers: list[int]) -> None:
    logs = 0.004 * np.sin(np.arange(40) * 2.4)
    logs[outliers] += 0.25

    assert find_steps(logs) == []


def test_a_step_below_the_least_change_is_not_told() -> None:
    logs = 0.0005 * np.sin(np.arange(60) * 2.4) + np.where(np.arange(60) < 30, 0.0, math.log(1.008))

    assert find_steps(logs) == []
    assert [step.index for step in find_steps(logs, min_change_ratio=0.005)] == [30]


def test_known_points_are_kept_out_of_the_search_and_part_it() -> None:
    logs = 0.004 * np.sin(np.arange(60) * 2.4) + np.select([np.arange(60) < 20, np.arange(60) < 40], [0.0, 0.05], 0.15)

    assert [step.index for step in find_steps(logs, fixed=[20])] == [40]
    assert find_steps(logs, fixed=[20, 40]) == []


def test_short_and_constant_series_have_no_steps() -> None:
    for count in range(2 * MIN_PART):
        assert find_steps([0.0] * (count // 2) + [1.0] * (count - count // 2)) == []
    assert find_steps([1.5] * 200) == []
    assert p_of_split(np.array([1.0]), np.array([2.0, 3.0, 4.0, 5.0, 6.0])) == 1.0


@given(st.lists(st.floats(-1, 1, width=32), max_size=90), st.floats(-20, 20))
def test_the_scale_of_the_figure_does_not_matter(values: list[float], offset: float) -> None:
    # A power of two as unit: logarithms move by the same amount exactly enough.
    places = [step.index for step in find_steps(values)]

    assert all(MIN_PART <= place <= len(values) - MIN_PART for place in places)
    assert all(b - a >= MIN_PART for a, b in pairwise(places))
    moved = [step.index for step in find_steps([value + round(offset) for value in values])]
    assert len(moved) == len(places)


def test_a_slow_drift_is_found() -> None:
    random = np.random.default_rng(4)
    logs = stable(random, 150, 0.01) + np.maximum(0, np.arange(150) - 50) * 0.001  # 0.1 % a night, 10 % in the end

    steps = find_steps(logs)

    assert steps
    assert all(step.ratio > 1 for step in steps)
    assert 1.05 < math.prod(step.ratio for step in steps) < 1.15


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "nightly"), [(0.005, 0), (0.01, 60)])
def test_rates_on_simulated_series(spread: float, nightly: int) -> None:
    one = rates(spread, 0.05, trials=200, seed=11, nightly=nightly)

    assert one.false_per_100 <= 0.1
    assert one.false_per_100_nightly <= 0.1
    assert one.found_ratio >= 0.9
    assert one.median_delay <= 8
