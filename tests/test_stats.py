"""Intervals against brute force and known laws, the rank test against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import stats

SIDE = st.lists(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize(("samples", "quantile"), [
    ((1.0, 2.0, 4.0), 0.5),  # odd: one order statistic
    ((1.0, 2.0, 4.0, 8.0), 0.5),  # even: the mean of two
    ((1.0, 2.0, 4.0, 8.0), 0.9),  # between the third and the fourth
    ((1.0, 2.0, 4.0), 1.0),
    ((3.0,), 0.99),
])  # fmt: skip
def test_resampled_quantiles_follow_the_law_of_all_resamples(samples: tuple[float, ...], quantile: float) -> None:
    # All m^m equally likely resamples of one launch, and the quantile of each.
    exact = Counter(
        round(float(np.quantile(resample, quantile)), 9)
        for resample in itertools.product(samples, repeat=len(samples))
    )
    total = len(samples) ** len(samples)
    count = 200_000

    drawn = stats.resampled_launches([np.array(samples)], quantile, count, np.random.default_rng(3))[:, 0]

    seen = Counter(np.round(drawn, 9).tolist())
    assert set(seen) <= set(exact)
    for value, ways in exact.items():
        share = ways / total
        # Six standard errors of a share of 200 000 draws.
        assert abs(seen[value] / count - share) <= 6 * math.sqrt(share * (1 - share) / count) + 1e-9


def test_both_levels_are_resampled() -> None:
    # Two launches of one sample each: the median of two is their mean, so a resample is 1, 2 or 3 (1:2:1).
    drawn = stats.resampled_launches([np.array([1.0]), np.array([3.0])], 0.5, 100_000, np.random.default_rng(5))
    shares = Counter(np.median(drawn, axis=1).tolist())
    assert {value: round(count / 100_000, 2) for value, count in shares.items()} == {1.0: 0.25, 2.0: 0.5, 3.0: 0.25}


def test_the_interval_is_that_of_the_exact_distribution() -> None:
    # Three launches a side with one figure each: 27 x 27 equally likely pairs of resamples.
    base, head = (1.0, 1.1, 1.3), (2.0, 2.4, 2.5)
    medians = [
        sorted(float(np.median(resample)) for resample in itertools.product(side, repeat=3)) for side in (base, head)
    ]
    ratios = np.array([after / before for before in medians[0] for after in medians[1]])

    found = stats.ratio_interval([[one] for one in base], [[one] for one in head], confidence=0.9, resamples=200_000)

    assert found.estimate == pytest.approx(2.4 / 1.1)
    assert found.lower == pytest.approx(np.quantile(ratios, 0.05), rel=0.005)
    assert found.upper == pytest.approx(np.quantile(ratios, 0.95), rel=0.005)


def test_values_without_scatter_have_an_interval_without_width() -> None:
    found = stats.ratio_interval([[8.0, 8.0]] * 5, [[10.0], [10.0, 10.0]])
    assert (found.estimate, found.half_width) == (1.25, 0.0)
    assert found.lower == pytest.approx(1.25)


def test_equal_seeds_give_equal_intervals_and_others_nearly_so() -> None:
    random = np.random.default_rng(1)
    base, head = ([random.lognormal(0, 0.02, 30) for _ in range(10)] for _ in range(2))
    first, again, other = (stats.ratio_interval(base, head, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert abs(other.lower - first.lower) < 0.1 * (first.upper - first.lower)
    assert abs(other.upper - first.upper) < 0.1 * (first.upper - first.lower)


@settings(max_examples=25, deadline=None)
@given(
    sides=st.tuples(SIDE, SIDE),
    scale=st.sampled_from([0.001, 3.0, 1e6]),
)
def test_a_ratio_has_no_unit_and_lies_within_the_data(
    sides: tuple[list[list[float]], list[list[float]]], scale: float
) -> None:
    base, head = sides
    found = stats.ratio_interval(base, head, resamples=200)
    scaled = stats.ratio_interval(
        [[scale * value for value in one] for one in base], [[scale * value for value in one] for one in head],
        resamples=200,
    )  # fmt: skip
    flat_base, flat_head = (list(itertools.chain(*side)) for side in (base, head))
    assert found.lower <= found.upper
    assert found.lower >= min(flat_head) / max(flat_base) * (1 - 1e-9)
    assert found.upper <= max(flat_head) / min(flat_base) * (1 + 1e-9)
    for name in ("estimate", "lower", "upper"):
        assert getattr(scaled, name) == pytest.approx(getattr(found, name), rel=1e-9)
    assert found.inverse.lower == pytest.approx(1 / found.upper)
    assert found.inverse.half_width == pytest.approx(found.half_width)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    # Launches differ by 1 %, steps by 3 %. 99 % of 400 is 396; fewer than 388 has a chance below 0.1 %.
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        base, head = (
            list(np.exp(random.normal(0, 0.03, (10, 20)) + random.normal(0, 0.01, (10, 1)))) for _ in range(2)
        )
        interval = stats.ratio_interval(base, head, resamples=1000)
        covered += interval.lower <= 1 <= interval.upper
    assert covered >= 388


@pytest.mark.parametrize("bad", [[], [[]], [[1.0], []], [[0.0]], [[-1.0]], [[math.nan]], [[math.inf]]])
def test_what_has_no_ratio_is_refused(bad: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"launches|positive"):
        stats.ratio_interval(bad, [[1.0]])
    with pytest.raises(ValueError, match=r"launches|positive"):
        stats.ratio_interval([[1.0]], bad)


@settings(max_examples=60, deadline=None)
@given(
    base=st.lists(st.integers(0, 4), min_size=1, max_size=4), head=st.lists(st.integers(0, 4), min_size=1, max_size=4)
)
def test_the_rank_test_counts_all_arrangements(base: list[int], head: list[int]) -> None:
    # Every way to call len(head) of the values "head"; U as pairs won, ties as half.
    values = base + head

    def pairs_won(left: list[int], right: list[int]) -> float:
        return sum((b < h) + 0.5 * (b == h) for b in left for h in right)

    middle = len(base) * len(head) / 2
    away = abs(pairs_won(base, head) - middle)
    hits = total = 0
    for chosen in itertools.combinations(range(len(values)), len(head)):
        right = [values[i] for i in chosen]
        left = [values[i] for i in range(len(values)) if i not in chosen]
        hits += abs(pairs_won(left, right) - middle) >= away - 1e-12
        total += 1

    found = stats.rank_test(base, head)

    assert found.exact
    assert found.p_value == pytest.approx(hits / total)
    assert found.effect == pytest.approx(pairs_won(base, head) / (len(base) * len(head)))


def test_many_values_take_the_normal_law() -> None:
    # 30 + 30 are counted, 31 + 31 are not: the same kind of data must give nearly the same p.
    random = np.random.default_rng(2)
    values = random.normal(0, 1, 62)
    base, head = values[:31], values[31:] + 0.6
    law, counted = stats.rank_test(base, head), stats.rank_test(base[:30], head[:30])
    assert not law.exact and counted.exact
    # By hand: U = effect * 961, sd = sqrt(961 * 63 / 12) = 71.03, half a rank of continuity.
    z = (abs(law.effect * 961 - 480.5) - 0.5) / math.sqrt(961 * 63 / 12)
    assert law.p_value == pytest.approx(math.erfc(z / math.sqrt(2)))
    assert stats.rank_test([1.0] * 40, [1.0] * 40).p_value == 1.0


def test_fewer_launches_than_chance_allows_decide_nothing() -> None:
    # 1 / C(8, 4) = 1.4 %, 1 / C(10, 5) = 0.4 %; one tail of 99 % is 0.5 %, of 95 % it is 2.5 %.
    assert stats.least_launches(0.99) == 5
    assert stats.least_launches(0.95) == 4


def _interval(estimate: float, lower: float, upper: float, launches: int) -> stats.RatioInterval:
    return stats.RatioInterval(estimate=estimate, lower=lower, upper=upper, confidence=0.99, base_launches=launches,
                               head_launches=launches)  # fmt: skip


def test_the_number_that_decides_follows_the_square_root() -> None:
    # ln(1.08) / ln(1.02) = 3.886: half a width of 8 % at 5 launches needs 5 * 3.886^2 = 75.5 for 2 %.
    wide = _interval(1.0, 1 / 1.08, 1.08, 5)
    assert stats.launches_to_decide(wide, tolerance=0.01, effect=0.02) == 76
    # Half a width of ln 1.05 = 0.0488 is enough for 6 % (0.0583) already with 10 * 0.837^2 = 7.01 launches.
    near = _interval(1.05, 1.0, 1.1025, 10)
    assert stats.launches_to_decide(near, tolerance=0.01, effect=0.06) == 8
    # The estimate is beyond the limit: the lower end (now 1.00) must pass 1.01. ln 1.05 / (ln 1.05 - ln 1.01) = 1.256.
    assert stats.launches_to_decide(near, tolerance=0.01, effect=0.03) == math.ceil(
        10 * max(math.log(1.05) / math.log(1.03), 1.2563) ** 2
    )


def test_a_number_that_is_out_of_reach_is_not_named() -> None:
    assert stats.launches_to_decide(_interval(1.0, 0.1, 10.0, 5), tolerance=0.01, effect=0.03) is None
    assert stats.launches_to_decide(_interval(1.005, 0.9, 1.1, 5), tolerance=0.01, effect=0.0) is None
    assert stats.launches_to_decide(_interval(1.0, 1.0, 1.0, 2), tolerance=0.01, effect=0.03) == 5


@pytest.mark.slow
def test_the_number_named_does_decide() -> None:
    # A true 6 % on a noisy machine: of trials with 5 launches that cannot tell, most can with the number they name.
    random = np.random.default_rng(13)

    def side(count: int, slowdown: float) -> list[stats.Floats]:
        return list(np.exp(random.normal(slowdown, 0.03, (count, 20)) + random.normal(0, 0.03, (count, 1))))

    asked = decided = 0
    while asked < 60:
        first = stats.ratio_interval(side(5, 0.0), side(5, math.log(1.06)), resamples=1000)
        if first.lower > 1.01:
            continue
        need = stats.launches_to_decide(first, tolerance=0.01, effect=0.03)
        if need is None:
            continue
        asked += 1
        second = stats.ratio_interval(side(need, 0.0), side(need, math.log(1.06)), resamples=1000)
        decided += second.lower > 1.01 or second.half_width <= math.log(1.03)
    assert decided >= 0.7 * asked
