"""Level of detail: intervals in lanes, thinned to a number of rows that a page can hold.

What is long stays. Short neighbours of one kind become *runs* that tell how many intervals they stand for, how much of
their extent is busy and what takes most of it. The rows that are left go to stretches of time in which nothing is
merged, on any lane: the busiest ones first, as long as they can be. All steps are vectorised over the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import Bools, Ints

CELLS: Final = 1024
"""Stretches of the window that stay exact or do not."""

COARSE_SHARE: Final = 0.4
"""Share of the rows that the whole window gets; the others go to the exact stretches."""

PIXELS: Final = 64_000
"""Finest parts of the window under which neighbours are merged; halved until they fit."""

Codes = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Intervals of all lanes in order of lane, then start; columns of one length, times in ns.

    `counts` is 1 for an interval as it is, else how many a run stands for; `busy_ns` is the union of what it stands for
    (the length, for an interval); `heads` is the row of the interval, or of a run's first one, in what was thinned.
    """

    lanes: Codes
    kinds: Codes
    names: Codes
    starts: Ints
    ends: Ints
    counts: Ints
    busy_ns: Ints
    heads: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def exact(cls, lanes: Codes, kinds: Codes, names: Codes, starts: Ints, ends: Ints) -> Runs:
        """Intervals, nothing merged; they must be in order of lane, then start."""
        count = len(starts)
        return cls(
            lanes=lanes, kinds=kinds, names=names, starts=starts, ends=ends,
            counts=np.ones(count, np.int64), busy_ns=ends - starts, heads=np.arange(count),
        )  # fmt: skip


def thinned(items: Runs, most: int, weights: Ints | None = None) -> Runs:
    """At most `most` rows (never fewer than one per change of kind along a lane).

    Args:
        items: what is to be shown, perhaps thinned before.
        most: rows wanted.
        weights: how much each item counts when the exact stretches are chosen; its busy time when None.
    """
    if len(items) <= most:
        return items
    start, end = int(items.starts.min()), int(items.ends.max())
    lengths = items.ends - items.starts
    same = np.zeros(len(items), bool)
    same[1:] = (items.lanes[1:] == items.lanes[:-1]) & (items.kinds[1:] == items.kinds[:-1])
    longer = lengths.copy()
    np.maximum(lengths[1:], lengths[:-1], out=longer[1:])
    since = items.starts - start
    pixel = max(1, (end - start) // PIXELS)
    coarse = max(1, int(most * COARSE_SHARE))
    while True:
        joins = _joins(same, longer, since, pixel)
        left = len(items) - int(np.count_nonzero(joins))
        if left <= coarse or pixel > end - start:
            break
        pixel *= 2
    joins = _spared(joins, since, end - start, most - left, items.busy_ns if weights is None else weights)
    made = _merged(items, joins)
    return replace(made, heads=items.heads[made.heads])


def _joins(same: Bools, longer: Ints, since: Ints, pixel: int) -> Bools:
    """Which items are under a pixel and go with the one before, which is too: both begin in one pixel."""
    joins: Bools = same & (longer < pixel)
    cell = since // pixel
    joins[1:] &= cell[1:] == cell[:-1]
    return joins


def _spared(joins: Bools, since: Ints, span: int, rows: int, weights: Ints) -> Bools:
    """`joins` without those of the stretches that stay exact: at most `rows` more rows.

    Half, a quarter ... of the window: of each size the stretch with the most weight that still fits, again and again.
    """
    if rows <= 0:
        return joins
    cell = (since * CELLS // max(1, span)).clip(0, CELLS - 1).astype(np.int32)
    # What makes a row more when nothing is merged: the items themselves, and the next one where a run crosses a border.
    costs = np.bincount(cell[joins], minlength=CELLS)
    borders = np.flatnonzero(joins[1:] & (cell[1:] != cell[:-1])) + 1
    costs += np.bincount(cell[borders - 1], minlength=CELLS)
    values = np.bincount(cell, weights, minlength=CELLS)
    taken = np.zeros(CELLS, bool)
    size = CELLS
    while size >= 1 and rows > 0:
        firsts = np.arange(0, CELLS - size + 1, max(1, size // 2))
        while True:
            open_costs = np.concatenate(([0], np.cumsum(np.where(taken, 0, costs))))
            open_values = np.concatenate(([0.0], np.cumsum(np.where(taken, 0.0, values))))
            cost = open_costs[firsts + size] - open_costs[firsts]
            value = np.where((cost > 0) & (cost <= rows), open_values[firsts + size] - open_values[firsts], -1.0)
            best = int(np.argmax(value))
            if value[best] < 0:
                break
            taken[firsts[best] : firsts[best] + size] = True
            rows -= int(cost[best])
        size //= 2
    kept = joins & ~taken[cell]
    kept[1:] &= ~taken[cell[:-1]]
    return kept


def _merged(items: Runs, joins: Bools) -> Runs:
    heads = np.flatnonzero(~joins)
    sizes = np.diff(np.append(heads, len(items)))
    several = sizes > 1
    names = items.names[heads].copy()
    ends = np.maximum.reduceat(items.ends, heads)
    busy = items.busy_ns[heads].copy()
    if several.any():
        rows = np.flatnonzero(np.repeat(several, sizes))
        run = np.repeat(np.arange(int(several.sum())), sizes[several])
        first = np.concatenate(([0], np.cumsum(sizes[several])[:-1]))
        names[several] = _dominating(run, items.names[rows], items.busy_ns[rows])
        busy[several] = _covered(run, first, items, rows)
    return Runs(
        lanes=items.lanes[heads], kinds=items.kinds[heads], names=names, starts=items.starts[heads], ends=ends,
        counts=np.add.reduceat(items.counts, heads), busy_ns=busy, heads=heads,
    )  # fmt: skip


def _covered(run: Ints, first: Ints, items: Runs, rows: Ints) -> Ints:
    """Union of what each run stands for; what was merged before counts with its own union."""
    origin = items.starts[rows[first]][run]
    starts, ends = items.starts[rows] - origin, items.ends[rows] - origin
    # One running maximum for all runs: each is moved beyond the one before.
    stride = int(ends.max(initial=0)) + 1
    shift = run * stride
    reach = np.maximum.accumulate(ends + shift) - shift
    before = np.zeros(len(rows), np.int64)
    before[1:] = reach[:-1]
    before[first] = 0
    fresh = (ends - np.maximum(starts, before)).clip(0)
    return np.add.reduceat(np.minimum(fresh, items.busy_ns[rows]), first)


def _dominating(run: Ints, names: Codes, times: Ints) -> Codes:
    """The name that takes most time in each run; of equal ones the one with the lower code."""
    count = int(names.max(initial=0)) + 2
    key = run * count + names + 1
    order = np.argsort(key, kind="stable")
    key = key[order]
    firsts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    sums = np.add.reduceat(times[order], firsts)
    owner = key[firsts] // count
    heads = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    best = np.repeat(np.maximum.reduceat(sums, heads), np.diff(np.append(heads, len(owner))))
    winners = np.flatnonzero(sums == best)
    winners = winners[np.concatenate(([True], owner[winners][1:] != owner[winners][:-1]))]
    found: Codes = (key[firsts[winners]] % count - 1).astype(np.int32)
    return found
