"""What findings can give together: no nanosecond of a rank is promised twice, and never more than the whole step.

Each finding bounds what it could give alone. Two of them may speak of the same time (an exposed collective and the
late rank that it waits for), so their bounds must not be added. `with_added` walks down the list and gives each finding
only the time that those before it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ascend_perf import intervals
from ascend_perf.intervals import Int64, IntervalSet
from ascend_perf.model.finding import Finding


def with_added(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with `added_ratio`, in the order given; the sum of all is at most 1.

    A finding that says where its time lies (`claims`) gives up what earlier ones took of the same intervals. One that
    does not say can only take what is left of the step. A finding of several ranks adds what it adds on the rank where
    that is most.
    """
    taken: dict[int | None, _Taken] = {}
    spent: dict[int | None, float] = {}
    left = 1.0
    counted = []
    for finding in findings:
        if finding.share_ratio is None:
            counted.append(finding)
            continue
        added = {}
        for claim in finding.claims:
            got_ns = taken.setdefault(claim.rank, _Taken()).take(claim.where, claim.gain_ns)
            added[claim.rank] = min(got_ns / claim.whole_ns, 1.0 - spent.get(claim.rank, 0.0))
        for rank in finding.affected_ranks or (None,):
            if rank not in added and not finding.claims:
                added[rank] = min(finding.share_ratio, 1.0 - spent.get(rank, 0.0))
        for rank, ratio in added.items():
            spent[rank] = spent.get(rank, 0.0) + max(0.0, ratio)
        ratio = max(0.0, min(max(added.values(), default=0.0), finding.share_ratio, left))
        left -= ratio
        counted.append(replace(finding, added_ratio=ratio))
    return tuple(counted)


def together(findings: Sequence[Finding]) -> float:
    """Share of the step that all findings bound together, 0..1; call after `with_added`."""
    return min(1.0, sum(f.added_ratio or 0.0 for f in findings))


class _Taken:
    """How much of each stretch of time is taken already: a step function of 0..1 over the clock of one rank."""

    def __init__(self) -> None:
        self._borders: Int64 = np.empty(0, np.int64)
        self._levels: NDArray[np.float64] = np.empty(0)
        """Level from each border to the next; the last one is 0."""

    def take(self, where: IntervalSet, gain_ns: float) -> float:
        """Take `gain_ns`, spread evenly over the intervals, as far as they are free; how much that was, in ns."""
        length = intervals.total(where)
        if length <= 0 or gain_ns <= 0:
            return 0.0
        density = min(1.0, gain_ns / length)
        borders = np.unique(np.concatenate((self._borders, where.starts, where.ends)))
        levels = np.zeros(len(borders))
        if len(self._borders):
            index = np.searchsorted(self._borders, borders, side="right") - 1
            levels = np.where(index >= 0, self._levels[np.clip(index, 0, None)], 0.0)
        got = np.where(intervals.contains(where, borders), np.minimum(density, 1.0 - levels), 0.0)
        self._borders, self._levels = borders, levels + got
        return float((got[:-1] * np.diff(borders)).sum())
