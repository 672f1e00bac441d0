"""Which of many ranks are odd: modified z-scores among equals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MODIFIED_Z_LIMIT: Final = 3.5
"""Ranks beyond this are marked. Source: Iglewicz and Hoaglin (1993), as in XProf's test for odd hosts."""
Z_FACTOR: Final = 0.6745
"""Scales the median absolute deviation to a standard deviation. Source: as above."""
MIN_DEVIATION_RATIO: Final = 0.05
"""A rank within 5 % of the median is never marked, however small the spread. Source: N-05."""
MIN_OF_STEP_RATIO: Final = 0.01
"""Nor is one whose figure differs by less than this share of the step. Status: assumed."""
MIN_EQUALS: Final = 4
"""Fewer values give no usable median absolute deviation. Status: assumed."""
MOST: Final = 99.0
"""Scores beyond are said as this: where all others are equal, a score would be infinite."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How far a rank's figure is from the median of its equals."""

    z: float
    """Modified z-score with its sign, -`MOST` to `MOST`."""
    usual: float
    """Median of the equals."""
    is_odd: bool


def scores(
    values: Sequence[float | None], groups: Sequence[Hashable], least: float = 0.0
) -> tuple[Score | None, ...]:
    """Score of each value among those of its group; None where it is unknown or has too few equals.

    0.6745 (x - median) / MAD: a value counts as odd beyond 3.5, when it is also 5 % and `least` from the median.

    Args:
        values: one figure of each rank.
        groups: ranks of one group are equals, such as those of a pipeline stage.
        least: difference from which on a value can be odd, in the unit of the values.
    """
    equals: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            equals.setdefault(group, []).append(value)
    middles = {group: median(own) for group, own in equals.items() if len(own) >= MIN_EQUALS}
    spreads = {group: median(abs(value - middle) for value in equals[group]) for group, middle in middles.items()}
    made: list[Score | None] = []
    for value, group in zip(values, groups, strict=True):
        if value is None or group not in middles:
            made.append(None)
            continue
        off = value - middles[group]
        z = Z_FACTOR * off / spreads[group] if spreads[group] else math.copysign(math.inf, off) if off else 0.0
        far = abs(off) > MIN_DEVIATION_RATIO * middles[group] and abs(off) >= least
        made.append(
            Score(z=max(-MOST, min(MOST, z)), usual=middles[group], is_odd=far and abs(z) > MODIFIED_Z_LIMIT)
        )
    return tuple(made)
