"""What findings can give together: no nanosecond of a rank is promised twice, and never more than the whole step.

Each finding bounds what it could give alone. Two of them may speak of the same time (an exposed collective and the
late rank that it waits for), or of different ranks, so their bounds must not be added. `with_added` walks down the list
and says by how much each finding raises the bound of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf import intervals
from ascend_perf.intervals import Int64, IntervalSet
from ascend_perf.model.finding import Finding

NOTICEABLE_RATIO: Final = 0.005
"""Differences between shares of the step below this are rounding. Status: assumed."""


def with_added(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with `added_ratio` and `is_overlapped`, in the order given.

    On each rank a finding takes its time from where it lies (`claims`), as far as earlier ones left it; one that does
    not say where takes from what is left of the step. The bound of several findings is that of the rank on which they
    take most: no rank can save more, so neither can the job. `added_ratio` is by how much a finding raises it; the sum
    over the list is that bound, and at most 1. The whole of a rank is the longest that its findings refer to (steps
    with what lies between them).
    """
    ranks = sorted({rank for f in findings for rank in _ranks(f)}, key=lambda rank: -1 if rank is None else rank)
    whole = dict.fromkeys(ranks, 0)
    for finding in findings:
        for claim in finding.claims:
            whole[claim.rank] = max(whole[claim.rank], claim.whole_ns)
    taken = {rank: _Taken() for rank in ranks}
    spent = dict.fromkeys(ranks, 0.0)
    bound = 0.0
    listed = []
    for finding in findings:
        if finding.share_ratio is None:
            listed.append(finding)
            continue
        alone = got = 0.0
        for claim in finding.claims:
            ratio = taken[claim.rank].take(claim.where, claim.gain_ns) / whole[claim.rank]
            alone, got = max(alone, claim.gain_ns / whole[claim.rank]), max(got, ratio)
            spent[claim.rank] = min(1.0, spent[claim.rank] + ratio)
        if not finding.claims:
            for rank in _ranks(finding):
                ratio = min(finding.share_ratio, 1.0 - spent[rank])
                alone, got = finding.share_ratio, max(got, ratio)
                spent[rank] += ratio
        raised = max(spent.values()) - bound
        bound += raised
        overlapped = min(got, raised) < alone - NOTICEABLE_RATIO
        listed.append(replace(finding, added_ratio=raised, is_overlapped=overlapped))
    return tuple(listed)


def together(findings: Sequence[Finding]) -> float:
    """Share of the step that all findings bound together, 0..1; call after `with_added`."""
    return min(1.0, sum(f.added_ratio or 0.0 for f in findings))


def _ranks(finding: Finding) -> tuple[int | None, ...]:
    """The ranks on which a finding takes time."""
    if finding.share_ratio is None:
        return ()
    if finding.claims:
        return tuple(claim.rank for claim in finding.claims)
    return finding.affected_ranks or (None,)


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
        # Stable, since sorting joined runs is far cheaper than what `np.unique` does.
        borders = np.sort(np.concatenate((self._borders, where.starts, where.ends)), kind="stable")
        borders = borders[np.append(True, borders[1:] != borders[:-1])]
        levels = np.zeros(len(borders))
        if len(self._borders):
            index = np.searchsorted(self._borders, borders, side="right") - 1
            levels = np.where(index >= 0, self._levels[np.clip(index, 0, None)], 0.0)
        got = np.where(intervals.contains(where, borders), np.minimum(density, 1.0 - levels), 0.0)
        self._borders, self._levels = borders, levels + got
        return float((got[:-1] * np.diff(borders)).sum())
