"""Integrals of samples: exact against fractions, additive, and honest about gaps."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ascend_perf.device.integration import GAP_TIMES, integrate, usual_gap_ns

S = 10**9
NOW = 1_790_000_000 * S  # as large as Unix time is
FAR = 10**15

SAMPLES = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 1000)), min_size=1, max_size=20, unique_by=lambda one: one[0]
)


def exact(samples: list[tuple[int, int]], start: int, end: int, gap: int) -> tuple[Fraction, int]:
    """Integral and covered length by fractions, segment by segment."""
    total, covered = Fraction(0), 0
    rows = sorted(samples)
    for (t0, v0), (t1, v1) in pairwise(rows):
        low, high = max(t0, start), min(t1, end)
        if t1 - t0 > gap or high <= low:
            continue
        at = [v0 + Fraction(v1 - v0, t1 - t0) * (t - t0) for t in (low, high)]
        total += (at[0] + at[1]) / 2 * (high - low)
        covered += high - low
    return total, covered


@given(SAMPLES, st.integers(0, 200), st.integers(0, 200), st.integers(1, 200))
def test_the_trapezoid_rule_against_fractions(samples: list[tuple[int, int]], one: int, other: int, gap: int) -> None:
    start, end = sorted((one, other))
    total, covered = exact(samples, start, end, gap)

    found = integrate(
        [NOW + time * S for time, _ in samples], [value for _, value in samples], NOW + start * S, NOW + end * S,
        max_gap_ns=gap * S,
    )  # fmt: skip

    assert found.value == pytest.approx(float(total), abs=1e-6)
    assert found.covered_ns == covered * S
    assert found.covered_ns + sum(high - low for low, high in found.gaps) == found.window_ns == (end - start) * S
    if covered:
        values = [value for _, value in samples]
        assert found.mean is not None
        assert min(values) - 1e-9 <= found.mean <= max(values) + 1e-9
    else:
        assert found.mean is None


@given(SAMPLES, st.lists(st.integers(0, 200), min_size=3, max_size=3))
def test_parts_of_a_window_add_up(samples: list[tuple[int, int]], cuts: list[int]) -> None:
    start, middle, end = (NOW + cut * S for cut in sorted(cuts))
    times, values = [NOW + time * S for time, _ in samples], [value for _, value in samples]

    whole, first, second = (
        integrate(times, values, *window, max_gap_ns=50 * S)
        for window in ((start, end), (start, middle), (middle, end))
    )

    assert whole.value == pytest.approx(first.value + second.value, abs=1e-6)
    assert whole.covered_ns == first.covered_ns + second.covered_ns


@given(SAMPLES, st.floats(0, 1000))
def test_order_does_not_count_and_power_scales(samples: list[tuple[int, int]], factor: float) -> None:
    times = np.array([NOW + time * S for time, _ in samples])
    values = np.array([value for _, value in samples], float)
    order = np.argsort(values, kind="stable")

    one = integrate(times.tolist(), values, NOW, NOW + 200 * S, max_gap_ns=FAR)
    other = integrate(times[order].tolist(), values[order] * factor, NOW, NOW + 200 * S, max_gap_ns=FAR)

    assert other.value == pytest.approx(one.value * factor, rel=1e-9, abs=1e-6)


def test_constant_power_by_hand_and_a_gap_that_is_said() -> None:
    times = [NOW + n * S for n in (0, 1, 2, 3, 13, 14)]

    found = integrate(times, [300.0] * 6, NOW + S // 2, NOW + 15 * S)

    # 0.5 s to 3 s and 13 s to 14 s; ten seconds are more than five usual ones, behind the last sample nothing is known.
    assert found.value == pytest.approx(300 * 3.5)
    assert found.gaps == ((NOW + 3 * S, NOW + 13 * S), (NOW + 14 * S, NOW + 15 * S))
    assert found.covered_ratio == pytest.approx(3.5 / 14.5)
    assert found.mean == pytest.approx(300)


def test_a_ramp_between_two_samples_by_hand() -> None:
    found = integrate([NOW, NOW + 4 * S], [100.0, 300.0], NOW + S, NOW + 3 * S, max_gap_ns=4 * S)

    assert found.value == pytest.approx((150 + 250) / 2 * 2)


def test_values_that_are_none_and_times_that_come_twice() -> None:
    found = integrate([0, S, S, 2 * S], [100.0, 100.0, 300.0, float("nan")], 0, 2 * S, max_gap_ns=FAR)

    assert found.value == pytest.approx((100 + 200) / 2)  # the NaN is no sample; of equal times the mean counts
    assert found.gaps == ((S, 2 * S),)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True))
def test_usual_distances_are_no_gaps(times: list[int]) -> None:
    ordered = sorted(times)
    distances = [b - a for a, b in pairwise(ordered)]
    assume(len(set(distances)) == 1)
    assert usual_gap_ns(times) == GAP_TIMES * distances[0]
    assert integrate(times, [1.0] * len(times), ordered[0], ordered[-1]).gaps == ()


def test_nothing_and_nonsense() -> None:
    assert integrate([], [], 0, S).gaps == ((0, S),)
    assert integrate([5], [1.0], 0, 0).covered_ratio == 0
    assert usual_gap_ns([1]) == 0
    with pytest.raises(ValueError, match="ends before"):
        integrate([], [], 1, 0)
