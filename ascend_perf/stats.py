"""Statistics of repeated launches: the bootstrap interval of a ratio, a rank test, and how many launches would decide.

The unit of replication is the launch (a fresh process): steps of one process share its memory layout, clocks and
placement, so that a test over steps alone takes the differences between launches for differences between versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.99
RESAMPLES: Final = 10_000
"""Resamples of an interval: 50 of them lie beyond each end of a 99 % interval, so that the end itself moves by less
than a tenth of the width from seed to seed. Status: measured (tests/test_stats.py)."""
MAX_EXACT: Final = 60
"""Values on both sides together up to which the rank test counts all arrangements; more take the normal law."""
MAX_LAUNCHES: Final = 1000
"""More launches than this are not worth naming. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class RatioInterval:
    """The ratio head / base of the medians over launches, with a two-sided bootstrap interval."""

    estimate: float
    lower: float
    upper: float
    confidence: float
    base_launches: int
    head_launches: int

    @property
    def inverse(self) -> RatioInterval:
        """The same of base / head."""
        return RatioInterval(
            estimate=1 / self.estimate, lower=1 / self.upper, upper=1 / self.lower, confidence=self.confidence,
            base_launches=self.base_launches, head_launches=self.head_launches,
        )  # fmt: skip

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the logarithm of the ratio."""
        return (math.log(self.upper) - math.log(self.lower)) / 2


def ratio_interval(
    base: Sequence[Sequence[float] | Floats],
    head: Sequence[Sequence[float] | Floats],
    *,
    quantile: float = 0.5,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> RatioInterval:
    """The ratio of the medians over launches of a quantile within each launch, by a hierarchical bootstrap.

    Both levels are resampled with replacement: launches, then the steps of each launch drawn. The interval is the
    percentile interval. BCa was rejected: its acceleration comes from the jackknife, which is inconsistent for medians
    (leaving one value out moves the median of an even number of values to one of two places), and the percentile
    interval is the same for the ratio, its inverse and its logarithm. Resampling both levels counts the scatter within
    launches twice, so that the interval is too wide rather than too narrow where launches do not differ.

    Args:
        base: samples of each launch, positive, in any one unit; one value per launch where only a figure is known.
        head: the same of the other side.
        quantile: within a launch, linear between samples (as numpy's default); 0.5 is the median.
        confidence: of the two-sided interval.
        resamples: number of resamples.
        seed: equal seeds and data give equal intervals.

    Raises:
        ValueError: a side has no launch, a launch no sample, a sample is not positive and finite, or a share is not
            between 0 and 1.

    Source:
        Davison and Hinkley, Bootstrap Methods and their Application (1997), sections 3.8 and 5.3.
    """
    if not 0 <= quantile <= 1 or not 0 < confidence < 1 or resamples < 1:
        raise ValueError(f"no such quantile, confidence or number of resamples: {quantile}, {confidence}, {resamples}")
    base_level, head_level = launch_values(base, quantile), launch_values(head, quantile)
    sides = (_sorted(base), _sorted(head))
    if all(samples[0] == samples[-1] == side[0][0] for side in sides for samples in side):
        # Every resample is the same: bytes and counts, of which there are many.
        resamples = 1
    random = np.random.default_rng(seed)
    logs = [
        np.log(np.median(resampled_launches(side, quantile, resamples, random), axis=1))
        for side in sides
    ]
    tail = (1 - confidence) / 2
    lower, upper = np.exp(np.quantile(logs[1] - logs[0], [tail, 1 - tail]))
    estimate = float(np.median(head_level) / np.median(base_level))
    return RatioInterval(
        estimate=estimate, lower=float(lower), upper=float(upper), confidence=confidence,
        base_launches=len(base), head_launches=len(head),
    )  # fmt: skip


def launch_values(launches: Sequence[Sequence[float] | Floats], quantile: float = 0.5) -> Floats:
    """The quantile of each launch.

    Raises:
        ValueError: there is no launch, a launch has no sample, or a sample is not positive and finite.
    """
    return np.array([np.quantile(samples, quantile) for samples in _sorted(launches)])


def _sorted(launches: Sequence[Sequence[float] | Floats]) -> list[Floats]:
    found = [np.sort(np.asarray(samples, np.float64)) for samples in launches]
    if not found or any(not len(samples) for samples in found):
        raise ValueError("a side needs launches, and each launch a sample")
    if any(not (samples[0] > 0 and np.isfinite(samples[-1])) for samples in found):
        raise ValueError("samples must be positive and finite")
    return found


def resampled_launches(
    launches: Sequence[Floats], quantile: float, resamples: int, random: np.random.Generator
) -> Floats:
    """Quantiles of resampled launches, shape (resamples, launches): each entry is a launch drawn at random, and the
    quantile of its samples drawn with replacement.

    The samples are not drawn one by one: the order statistic that a quantile needs of m uniform numbers follows a beta
    law, and the resample has the sorted sample at that place. This is the same distribution at a cost that does not
    depend on m.

    Args:
        launches: sorted samples of each launch.
        quantile: within a launch.
        resamples: number of rows.
        random: source of random numbers.
    """
    lengths = np.array([len(samples) for samples in launches])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    flat = np.concatenate(launches)
    drawn = random.integers(len(launches), size=(resamples, len(launches)))
    length, start = lengths[drawn], starts[drawn]
    place = (length - 1) * quantile
    whole = np.floor(place).astype(np.int64)
    fraction = place - whole
    # The smallest but `whole` of `length` uniform numbers; then the next one above it, of those that are left.
    at = random.beta(whole + 1, length - whole)
    value: Floats = flat[start + np.minimum((at * length).astype(np.int64), length - 1)]
    if fraction.any():
        left = np.maximum(length - whole - 1, 1)
        above = at + (1 - at) * random.beta(1, left)
        upper = flat[start + np.minimum((above * length).astype(np.int64), length - 1)]
        value = np.where(fraction > 0, value + fraction * (upper - value), value)
    return value


@dataclass(frozen=True, kw_only=True)
class RankTest:
    """Mann-Whitney test of two sets of launches."""

    p_value: float
    """Two-sided: how often chance alone gives ranks as far apart."""
    effect: float
    """Share of pairs in which head is larger, ties as half: 0.5 is no difference, 1 complete separation."""
    exact: bool
    """Whether all arrangements were counted."""


def rank_test(base: Sequence[float] | Floats, head: Sequence[float] | Floats) -> RankTest:
    """Mann-Whitney's U with ties by mid-ranks, exact up to MAX_EXACT values; for the reader, not for the decision.

    Raises:
        ValueError: a side is empty or has a value that is not finite.

    Source:
        Mann and Whitney (1947); effect: Vargha and Delaney's A (2000).
    """
    values = np.concatenate([np.asarray(base, np.float64), np.asarray(head, np.float64)])
    count_base, count_head = len(base), len(head)
    if not count_base or not count_head or not np.isfinite(values).all():
        raise ValueError("a rank test needs finite values on both sides")
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    # Twice the mid-rank, so that it is whole: first + last rank of its group of ties.
    doubled = (2 * last - sizes + 1)[group]
    count = count_base + count_head
    score = int(doubled[count_base:].sum())
    centre = count_head * (count + 1)
    effect = (score / 2 - count_head * (count_head + 1) / 2) / (count_base * count_head)
    if count <= MAX_EXACT:
        p_value = _exact_p(doubled, count_head, abs(score - centre), centre)
    else:
        ties = float((sizes.astype(np.float64) ** 3 - sizes).sum()) / (count * (count - 1))
        variance = count_base * count_head / 12 * (count + 1 - ties)
        # Half a rank towards the middle: the sum of ranks is whole, the normal law is not.
        away = max(abs(score - centre) / 2 - 0.5, 0.0)
        p_value = min(1.0, 2 * (1 - NormalDist().cdf(away / math.sqrt(variance)))) if variance > 0 else 1.0
    return RankTest(p_value=p_value, effect=effect, exact=count <= MAX_EXACT)


def _exact_p(doubled: npt.NDArray[np.int64], take: int, away: int, centre: int) -> float:
    """Share of the ways to take `take` of the doubled ranks whose sum lies at least `away` from the centre."""
    ways = np.zeros((take + 1, int(doubled.sum()) + 1), np.int64)
    ways[0, 0] = 1
    for rank in doubled.tolist():
        # The right side is a new array: each rank is taken at most once.
        ways[1:, rank:] = ways[1:, rank:] + ways[:-1, : ways.shape[1] - rank]
    sums = np.abs(np.arange(ways.shape[1]) - centre)
    return float(ways[take, sums >= away].sum() / ways[take].sum())


def least_launches(confidence: float = CONFIDENCE) -> int:
    """Launches of each side below which no result whatever could be that certain: 5 for 99 %, 4 for 95 %.

    When chance alone decides, the n launches of head are the n slowest of all 2 n with probability 1 / C(2n, n); that
    must be below the share of one tail.
    """
    count = 1
    while math.comb(2 * count, count) * (1 - confidence) / 2 < 1:
        count += 1
    return count


def launches_to_decide(interval: RatioInterval, *, tolerance: float, effect: float) -> int | None:
    """Launches of each side with which the ratio would be decided, if its estimate and its scatter stay as they are.

    The width of the interval falls with the square root of the number of launches. Decided is: half of it no wider than
    the effect, and, where the estimate exceeds the effect, the lower end above the tolerance.

    Args:
        interval: of the ratio that is bad when it is above 1.
        tolerance: excess over 1 that the lower end must exceed.
        effect: the least excess that counts.

    Returns:
        At least `least_launches`; None where it is more than MAX_LAUNCHES (or no number would do).
    """
    least = least_launches(interval.confidence)
    now = 2 / (1 / interval.base_launches + 1 / interval.head_launches)
    half, room = interval.half_width, math.log1p(effect)
    if interval.estimate > 1 + effect:
        half = max(half, math.log(interval.estimate) - math.log(interval.lower))
        beyond = math.log(interval.estimate) - math.log1p(tolerance)
        room = min(room, beyond) if effect > 0 else beyond
    if half <= 0:
        return least
    if room <= 0:
        return None
    need = max(least, math.ceil(now * (half / room) ** 2))
    return need if need <= MAX_LAUNCHES else None
