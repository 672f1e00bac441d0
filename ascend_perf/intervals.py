"""Arithmetic on sets of half-open intervals [start, end) in integer nanoseconds.

A set is a pair of int64 arrays `(starts, ends)`. Functions that return a set return it *merged*: sorted,
without overlap, without empty members. All are vectorised; none loops over intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class IntervalSet(NamedTuple):
    """Starts and ends in ns, both int64 arrays of shape (n,)."""

    starts: Int64
    ends: Int64


EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64))


def merged(starts: Int64, ends: Int64) -> IntervalSet:
    """Union of any intervals as a merged set; intervals that are empty or reversed are left out."""
    starts = np.asarray(starts, np.int64)
    ends = np.asarray(ends, np.int64)
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    # A new member begins where a start lies beyond all ends seen so far (touching ones join).
    first = np.empty(len(starts), bool)
    first[0] = True
    np.greater(starts[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:] - 1, len(starts) - 1)
    return IntervalSet(starts[heads], reach[tails])


def from_durations(starts: Int64, durations: Int64) -> IntervalSet:
    """Union of the intervals [start, start + duration)."""
    starts = np.asarray(starts, np.int64)
    return merged(starts, starts + np.asarray(durations, np.int64))


def total(interval_set: IntervalSet) -> int:
    """Length of a merged set in ns."""
    return int((interval_set.ends - interval_set.starts).sum())


def union(*sets: IntervalSet) -> IntervalSet:
    """Union of merged sets."""
    if not sets:
        return EMPTY
    return merged(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def _covered_before(interval_set: IntervalSet, at: Int64) -> Int64:
    """Length of the set that lies before each instant of `at`."""
    if len(interval_set.starts) == 0:
        return np.zeros(len(at), np.int64)
    lengths = interval_set.ends - interval_set.starts
    cumulative = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(interval_set.starts, at, side="right") - 1
    inside = np.clip(index, 0, None)
    partial = np.minimum(at, interval_set.ends[inside]) - interval_set.starts[inside]
    return np.where(index < 0, 0, cumulative[inside] + partial).astype(np.int64)


def covered(interval_set: IntervalSet, starts: Int64, ends: Int64) -> Int64:
    """Length of a merged set inside each of the intervals [starts[i], ends[i]), shape (n,)."""
    starts = np.asarray(starts, np.int64)
    ends = np.asarray(ends, np.int64)
    return _covered_before(interval_set, ends) - _covered_before(interval_set, starts)


def complement(interval_set: IntervalSet, start: int, end: int) -> IntervalSet:
    """The parts of [start, end) that a merged set leaves free."""
    if end <= start:
        return EMPTY
    inner = clip(interval_set, start, end)
    starts = np.concatenate((np.array([start], np.int64), inner.ends))
    ends = np.concatenate((inner.starts, np.array([end], np.int64)))
    keep = ends > starts
    return IntervalSet(starts[keep], ends[keep])


def clip(interval_set: IntervalSet, start: int, end: int) -> IntervalSet:
    """The part of a merged set inside [start, end). The time it takes grows with the members near the borders only."""
    low = int(interval_set.ends.searchsorted(start, side="right"))
    high = int(interval_set.starts.searchsorted(end, side="left"))
    if low >= high or start >= end:
        return EMPTY
    starts, ends = interval_set.starts[low:high], interval_set.ends[low:high]
    if starts[0] < start:
        starts = starts.copy()
        starts[0] = start
    if ends[-1] > end:
        ends = ends.copy()
        ends[-1] = end
    return IntervalSet(starts, ends)


def _borders(a: IntervalSet, b: IntervalSet) -> Int64:
    """All starts and ends in order. Repeated ones stay: the empty pieces between them are left out by `merged`.

    Stable, since sorting joined runs is far cheaper than removing duplicates (0.02 against 0.17 s for a million).
    """
    return np.sort(np.concatenate((a.starts, a.ends, b.starts, b.ends)), kind="stable")


def intersection(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Common part of two merged sets."""
    if len(a.starts) == 0 or len(b.starts) == 0:
        return EMPTY
    # Sweep over all borders: a piece between two borders belongs to both sets or to neither.
    borders = _borders(a, b)
    lefts, rights = borders[:-1], borders[1:]
    inside = contains(a, lefts) & contains(b, lefts)
    return merged(lefts[inside], rights[inside])


def difference(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """The part of merged set `a` that lies outside of merged set `b`."""
    if len(a.starts) == 0 or len(b.starts) == 0:
        return a
    borders = _borders(a, b)
    lefts, rights = borders[:-1], borders[1:]
    inside = contains(a, lefts) & ~contains(b, lefts)
    return merged(lefts[inside], rights[inside])


def contains(interval_set: IntervalSet, at: Int64) -> NDArray[np.bool_]:
    """Whether each instant of `at` lies in the merged set."""
    at = np.asarray(at, np.int64)
    if len(interval_set.starts) == 0:
        return np.zeros(len(at), bool)
    index = np.searchsorted(interval_set.starts, at, side="right") - 1
    return (index >= 0) & (at < interval_set.ends[np.clip(index, 0, None)])


def enclosing(starts: Int64, ends: Int64, at: Int64) -> Int64:
    """Index of the innermost interval that contains each instant of `at`, -1 where there is none.

    Args:
        starts: shape (n,), any order; the intervals must nest (as calls on one thread do): two of them
            are disjoint or one contains the other.
        ends: shape (n,).
        at: instants, shape (m,).

    Returns:
        Indexes into `starts`, shape (m,).
    """
    at = np.asarray(at, np.int64)
    if len(starts) == 0:
        return np.full(len(at), -1, np.int64)
    order = np.lexsort((-np.asarray(ends, np.int64), starts))
    sorted_starts, sorted_ends = starts[order], ends[order]
    up = parents(sorted_starts, sorted_ends)
    index = np.searchsorted(sorted_starts, at, side="right") - 1
    # Climb from the last interval that began before `at` until one is still open: at most nesting-depth rounds.
    active = (index >= 0) & (at >= sorted_ends[np.clip(index, 0, None)])
    while active.any():
        index[active] = up[index[active]]
        active = (index >= 0) & (at >= sorted_ends[np.clip(index, 0, None)])
    return np.where(index >= 0, order[np.clip(index, 0, None)], -1).astype(np.int64)


def parents(starts: Int64, ends: Int64) -> Int64:
    """Index of the innermost enclosing interval of each, -1 for roots.

    Args:
        starts: shape (n,), sorted by (start ascending, end descending).
        ends: shape (n,).
    """
    n = len(starts)
    up = np.arange(-1, n - 1, dtype=np.int64)
    # Candidate parent = previous interval; while it has ended before we start, climb to its own parent. Each
    # round resolves one more level for all rows at once, so rounds are bounded by the nesting depth.
    active = np.flatnonzero((up >= 0) & (starts >= ends[np.clip(up, 0, None)]))
    while len(active):
        # A row may climb only to a candidate that is itself final or will be: following the current pointer is
        # safe since every pointer on the way is an interval that started earlier.
        up[active] = up[up[active]]
        still = up[active] >= 0
        active = active[still]
        active = active[starts[active] >= ends[up[active]]]
    return up
