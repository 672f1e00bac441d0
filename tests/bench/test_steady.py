"""The cut before the steady state, on series whose warm-up is known, and the order of runs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench.order import interleaved
from ascend_perf.bench.steady import MIN_STEPS, Steady, steady_state


def steps(seed: int, count: int, *, noise: float = 0.01, outliers: float = 0.05) -> list[int]:
    """Log-normal steps of 1 ms, some of them slow by 5 to 30 %."""
    draws = np.random.default_rng(seed)
    times = 1e6 * np.exp(draws.normal(0, noise, count))
    times *= np.where(draws.random(count) < outliers, draws.uniform(1.05, 1.3, count), 1)
    return [round(time) for time in times.tolist()]


def test_a_step_up_to_which_all_is_slow_is_the_cut() -> None:
    # Constant: the standard error of what is left is 0 from the fourth step on, and the first such cut is taken.
    assert steady_state([5000, 3000, 2000, *[1000] * 9]) == Steady(cut=3, is_reached=True, is_tested=True)
    assert steady_state([1000] * 12) == Steady(cut=0, is_reached=True, is_tested=True)


def test_few_steps_are_not_tested() -> None:
    assert steady_state([9000, 1000, 1000, 1000, 1000]) == Steady(cut=0, is_reached=True, is_tested=False)
    assert steady_state([9000, 1000, 1000, 1000, 1000, 1000]).cut == 1
    assert steady_state([]).cut == 0
    assert MIN_STEPS == 6


@pytest.mark.parametrize("warm", [1, 3, 5])
def test_a_warm_up_in_noise_is_cut_to_the_step(warm: int) -> None:
    cuts = Counter(
        steady_state([round(1.5 * one) for one in steps(seed, warm)] + steps(seed + 1000, 20)).cut
        for seed in range(200)
    )

    # An outlier right after the warm-up looks like one more step of it.
    assert cuts[warm] >= 180
    assert min(cuts) == warm


@pytest.mark.parametrize(("count", "noise"), [(8, 0.01), (20, 0.01), (50, 0.01), (20, 0.2)])
def test_of_steady_noise_hardly_anything_is_cut(count: int, noise: float) -> None:
    found = [steady_state(steps(seed, count, noise=noise)) for seed in range(500)]

    # A slow first step cannot be told from warm-up: 5 % of series have one, and little else is cut.
    assert sum(one.cut > 0 for one in found) <= 45
    assert sum(not one.is_reached for one in found) <= 5


def test_a_late_outlier_asks_for_no_cut() -> None:
    series = steps(1, 20, outliers=0)
    series[17] *= 40

    assert steady_state(series).cut == 0


def test_a_series_that_keeps_falling_is_not_steady() -> None:
    falling = [round(1e6 * 0.9**step) for step in range(20)]

    assert steady_state(falling) == Steady(cut=10, is_reached=False, is_tested=True)


@given(st.lists(st.integers(1, 10**12), max_size=60))
def test_at_most_half_is_cut_and_scale_does_not_matter(series: list[int]) -> None:
    found = steady_state(series)

    assert 0 <= found.cut <= len(series) // 2
    assert steady_state([4 * one for one in series]) == found  # by a power of two: exact in floating point


def test_two_variants_go_a_b_b_a_and_more_go_there_and_back() -> None:
    assert "".join(interleaved([("A", 5), ("B", 5)])) == "ABBAABBAAB"
    assert "".join(interleaved([("A", 3), ("B", 3), ("C", 3)])) == "ABCCBAABC"
    assert "".join(interleaved([("A", 3)])) == "AAA"
    assert "".join(interleaved([("A", 1), ("B", 3)])) == "ABBB"
    assert interleaved([]) == []


@given(st.integers(1, 6), st.integers(1, 8))
def test_a_linear_drift_meets_all_variants_alike(variants: int, pairs: int) -> None:
    order = interleaved([(variant, 2 * pairs) for variant in range(variants)])

    places = {variant: [at for at, one in enumerate(order) if one == variant] for variant in range(variants)}
    assert {sum(at) for at in places.values()} == {pairs * (2 * pairs * variants - 1)}
