"""Lanes of intervals that nest: viewers draw slices of one track only where each lies inside of, or beside, another."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.model.table import Bools, Ints

MAX_LANES: Final = 32
"""Lanes of one track; what crosses more than this is drawn apart. Status: assumed."""


def by_start(starts: Ints, ends: Ints, rank: Ints) -> Ints:
    """Order in which lanes are made: by start, the longest first, then by `rank`."""
    return np.lexsort((rank, -ends, starts))


def lanes(starts: Ints, ends: Ints) -> Ints:
    """Lane of each interval, from 0, so that those of one lane nest; -1 where `MAX_LANES` do not suffice.

    Each takes the first lane in which it crosses none of those before it. Times are never changed.

    Args:
        starts: shape (n,), in the order of `by_start`.
        ends: shape (n,), none before its start.
    """
    lane = np.zeros(len(starts), np.int64)
    if not len(starts):
        return lane
    crosses = _crosses(starts, ends)
    if not crosses.any():
        return lane
    # Intervals that are apart from all others do not matter to each other: only groups with a crossing are looked at.
    reach = np.maximum.accumulate(ends)
    group = np.cumsum(np.append(True, starts[1:] >= reach[:-1])) - 1
    rows = np.flatnonzero(np.bincount(group, weights=crosses)[group] > 0)
    lane[rows] = _first_fit(starts[rows], ends[rows])
    return lane


def _crosses(starts: Ints, ends: Ints) -> Bools:
    """Intervals that begin inside of another and end after it."""
    up = intervals.parents(starts, ends)
    return np.asarray((up >= 0) & (ends > ends[np.clip(up, 0, None)]), bool)


def _first_fit(starts: Ints, ends: Ints) -> Ints:
    open_: list[list[int]] = []
    made = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        number = 0
        while number < len(open_) and not _fits(open_[number], start, end):
            number += 1
        if number == MAX_LANES:
            made.append(-1)
            continue
        if number == len(open_):
            open_.append([])
        open_[number].append(end)
        made.append(number)
    return np.array(made, np.int64)


def _fits(open_: list[int], start: int, end: int) -> bool:
    """Whether an interval crosses none of a lane whose open ends are given, the innermost last."""
    while open_ and open_[-1] <= start:
        open_.pop()
    return not open_ or end <= open_[-1]
