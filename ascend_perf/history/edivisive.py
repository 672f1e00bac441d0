"""Change points of a noisy series: E-divisive on winsorised values, weak points first, merged afterwards.

Source:
    Matteson and James, A nonparametric approach for multiple change point analysis of multivariate data, JASA 109
    (2014): the energy statistic and its hierarchical use. Fleming et al., Hunter: using change point detection to
    hunt for performance regressions, ICPE 2023: sliding windows, a t-test in place of permutations, weak points and
    their merging. Ours: every value is a bounded score, in the place of the energy statistic as in the test, since
    a t-test on plain values answers outliers with change points (measured: 0.5 false ones per 100 stable values).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW: Final = 60
"""Values that are looked at together; windows overlap by half. Status: assumed (Hunter: 50)."""
MIN_PART: Final = 4
"""Fewest values on either side of a change point: three outliers in a row are no rare thing. Status: measured."""
WINSOR: Final = 3.0
"""Scores end here: a value may weigh no more than one that is so many robust standard deviations off the median."""
P_VALUE: Final = 5e-5
"""A change point with a larger p is dropped. Small, because its place was chosen among many, and every night anew.
Status: measured, `make eval-gate` prints the rates."""
WEAK: Final = 10.0
"""Points of up to so many times P_VALUE are kept until the merging: they keep others apart."""
MIN_CHANGE_RATIO: Final = 0.01
"""Smaller changes are not reported, however certain. Status: assumed."""
SCALE_FLOOR: Final = 1e-3
"""Least robust standard deviation of log values: figures that are rounded or hardly vary. Status: assumed."""
MAD_TO_SD: Final = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
CONFIDENCE_Z: Final = 1.959964
PLACE_WEIGHT: Final = 0.95
"""Share of the likelihood that the interval of a change point's place holds."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change point in a series of logarithms: the values from `index` on have another level."""

    index: int
    """First value of the new level."""
    earliest: int
    latest: int
    """The first value of the new level is one of these (both included) with a likelihood of 95 %."""
    ratio: float
    """New level by old level."""
    ratio_low: float
    ratio_high: float
    """Interval of 95 % for the ratio."""
    p_value: float
    before: int
    after: int
    """Values on either side that the test used."""


def energy_statistic(values: Floats, min_part: int = MIN_PART) -> Floats:
    """The E-divisive statistic of every split of a series, -inf where a part would be too short.

    Q(t) = n m / (n + m) * (2 mean|x - y| - mean|x - x'| - mean|y - y'|) with the n values before t and the m behind.

    Args:
        values: shape (N,).

    Returns:
        Shape (N,): at t the statistic of the split into values[:t] and values[t:].

    Source:
        Matteson and James (2014), equations 5 to 7, with exponent 1.
    """
    size = len(values)
    statistic = np.full(size, -np.inf)
    splits = np.arange(max(min_part, 2), size - max(min_part, 2) + 1)
    if not len(splits):
        return statistic
    distance = np.abs(values[:, None] - values[None, :])
    below = np.concatenate([[0.0], np.cumsum(np.tril(distance).sum(axis=1))])  # pairs within values[:t]
    from_start = np.concatenate([[0.0], np.cumsum(distance.sum(axis=1))])
    left = below[splits]
    between = from_start[splits] - 2 * left
    right = below[size] - left - between
    n, m = splits.astype(np.float64), (size - splits).astype(np.float64)
    energy = 2 * between / (n * m) - 2 * left / (n * (n - 1)) - 2 * right / (m * (m - 1))
    statistic[splits] = n * m / (n + m) * energy
    return statistic


def scores(values: Floats, scale: float) -> Floats:
    """Distance from the median in standard deviations, winsorised."""
    bounded: Floats = np.clip((values - np.median(values)) / scale, -WINSOR, WINSOR)
    return bounded


def robust_scale(residuals: Floats) -> float:
    """Standard deviation by the median absolute residual, not below the floor."""
    return max(float(np.median(np.abs(residuals))) * MAD_TO_SD, SCALE_FLOOR)


def p_of_split(left: Floats, right: Floats) -> float:
    """Two-sided p of a t-test on winsorised scores of both parts; 1 when a part has less than two values.

    The scale is that of the parts about their own medians, so that a step does not hide itself.
    """
    n, m = len(left), len(right)
    if min(n, m) < 2 or n + m < 5:
        return 1.0
    scale = robust_scale(np.concatenate([left - np.median(left), right - np.median(right)]))
    bounded = scores(np.concatenate([left, right]), scale)
    a, b = bounded[:n], bounded[n:]
    apart = abs(float(b.mean() - a.mean()))
    inside = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / (n + m - 2)
    # Two parts without any scatter of their own (all scores at their ends) are as far apart as scores can say.
    error = math.sqrt(max(inside, 1e-4) * (1 / n + 1 / m))
    return student_p(apart / error, n + m - 2)


def student_p(t: float, degrees: int) -> float:
    """Two-sided p of Student's t, within 3 % for three degrees of freedom and more.

    Source:
        Wallace, Bounds on normal approximations to Student's and the chi-square distributions, Ann. Math. Stat. 30
        (1959): z = (8 f + 1) / (8 f + 3) * sqrt(f log(1 + t^2 / f)).
    """
    z = (8 * degrees + 1) / (8 * degrees + 3) * math.sqrt(degrees * math.log1p(t * t / degrees))
    return math.erfc(z / math.sqrt(2))


def find_steps(
    logs: Sequence[float] | Floats,
    fixed: Sequence[int] = (),
    *,
    window: int = WINDOW,
    p_value: float = P_VALUE,
    min_change_ratio: float = MIN_CHANGE_RATIO,
) -> list[Step]:
    """Change points of a series of logarithms, in order.

    Args:
        logs: natural logarithms of the values, finite, in the order of time.
        fixed: first values of levels that are known to be new (accepted change points): never merged away, and not
            among the result.

    Source:
        see the module.
    """
    values = np.asarray(logs, np.float64)
    known = sorted({at for at in fixed if 0 < at < len(values)})
    bounds = [0, *known, len(values)]
    found: list[Step] = []
    for start, end in pairwise(bounds):
        part = values[start:end]
        points = _merged(part, _weak_points(part, window, p_value * WEAK), window, p_value)
        for place, split in enumerate(points):
            left = part[max(points[place - 1] if place else 0, split - window) : split]
            right = part[split : min(points[place + 1] if place + 1 < len(points) else len(part), split + window)]
            step = _step(left, right, start + split)
            if abs(math.log(step.ratio)) >= math.log1p(min_change_ratio):
                found.append(step)
    return found


def _weak_points(values: Floats, window: int, p_value: float) -> list[int]:
    """Candidates of all windows, those too close to a better one left out."""
    size = len(values)
    starts = {*range(0, max(size - window, 0), window // 2), max(size - window, 0)}
    best: dict[int, float] = {}
    for start in sorted(starts):
        for at, p in _splits(values[start : start + window], p_value):
            best[start + at] = min(p, best.get(start + at, 1.0))
    kept: list[int] = []
    for at in sorted(best, key=lambda at: (best[at], at)):
        if all(abs(at - other) >= MIN_PART for other in kept):
            kept.append(at)
    return sorted(kept)


def _splits(values: Floats, p_value: float) -> list[tuple[int, float]]:
    """Significant splits of a window and, one by one, of its parts."""
    found = []
    parts = [(0, len(values))]
    while parts:
        start, end = parts.pop()
        part = values[start:end]
        if len(part) < 2 * MIN_PART:
            continue
        scale = robust_scale(part - np.median(part))
        at = int(np.argmax(energy_statistic(scores(part, scale))))
        p = p_of_split(part[:at], part[at:])
        if p <= p_value:
            found.append((start + at, p))
            parts += [(start, start + at), (start + at, end)]
    return found


def _merged(values: Floats, points: list[int], window: int, p_value: float) -> list[int]:
    """Points that remain when, again and again, the least certain one is dropped until all are certain.

    A point is tested with the values up to its neighbours. What remains is moved to its best place and, since tests
    change with the places, thinned out once more.
    """
    return _certain(values, _moved(values, _certain(values, points, window, p_value), window), window, p_value)


def _certain(values: Floats, points: list[int], window: int, p_value: float) -> list[int]:
    points = list(points)
    while points:
        bounds = [0, *points, len(values)]
        p = [
            p_of_split(values[max(a, at - window) : at], values[at : min(b, at + window)])
            for a, at, b in zip(bounds, points, bounds[2:], strict=False)
        ]
        worst = int(np.argmax(p))
        if p[worst] <= p_value:
            break
        del points[worst]
    return points


def _moved(values: Floats, points: list[int], window: int) -> list[int]:
    """Each point where the levels on its two sides part best."""
    moved = list(points)
    for place, at in enumerate(points):
        start = max(moved[place - 1] if place else 0, at - window)
        end = min(points[place + 1] if place + 1 < len(points) else len(values), at + window)
        cost = _costs(values[start:end], at - start)
        best = int(np.argmin(cost))
        if cost[best] < cost[at - start] * (1 - 1e-9):
            moved[place] = start + best
    return moved


def _costs(values: Floats, at: int) -> Floats:
    """How badly each split fits two levels: the squared distances from them; inf where a part is too short.

    The levels are the medians beside the split `at`. Distances are in robust standard deviations and end at three,
    so that an outlier beside the change point belongs to neither level rather than to the one it happens to be near.
    """
    levels = float(np.median(values[:at])), float(np.median(values[at:]))
    scale = robust_scale(np.concatenate([values[:at] - levels[0], values[at:] - levels[1]]))
    left, right = (np.minimum(((values - level) / scale) ** 2, WINSOR**2) for level in levels)
    size = len(values)
    cost = np.full(size, np.inf)
    splits = np.arange(MIN_PART, size - MIN_PART + 1)
    cost[splits] = np.cumsum(left)[splits - 1] + right.sum() - np.cumsum(right)[splits - 1]
    return cost


def _step(left: Floats, right: Floats, index: int) -> Step:
    n, m = len(left), len(right)
    middle, low, high = shift(left, right)
    values = np.concatenate([left, right])
    cost = _costs(values, n)
    weight = np.exp(-(cost - cost.min()) / 2)
    earliest, latest = _most_of(weight / weight.sum(), n)
    return Step(
        index=index,
        earliest=index - n + earliest,
        latest=index - n + latest,
        ratio=math.exp(middle),
        ratio_low=math.exp(low),
        ratio_high=math.exp(high),
        p_value=p_of_split(left, right),
        before=n,
        after=m,
    )


def _most_of(weight: Floats, at: int) -> tuple[int, int]:
    """First and last place of the shortest stretch about `at` that grows by the heavier side until it holds enough."""
    first = last = at
    held = float(weight[at])
    while held < PLACE_WEIGHT:
        before = float(weight[first - 1]) if first > 0 else -1.0
        behind = float(weight[last + 1]) if last + 1 < len(weight) else -1.0
        if max(before, behind) < 0:
            break
        if before >= behind:
            first -= 1
        else:
            last += 1
        held += max(before, behind)
    return first, last


def shift(left: Floats, right: Floats) -> tuple[float, float, float]:
    """Shift of the right values against the left ones, and its interval of 95 %.

    Source:
        Hodges and Lehmann (1963): the median of all differences; interval of Moses from the order statistics of the
        differences, with the normal approximation of the rank sum.
    """
    n, m = len(left), len(right)
    differences = np.sort((right[:, None] - left[None, :]).ravel())
    spread = CONFIDENCE_Z * math.sqrt(n * m * (n + m + 1) / 12)
    place = max(0, math.floor(n * m / 2 - spread))
    return float(np.median(differences)), float(differences[place]), float(differences[-1 - place])
