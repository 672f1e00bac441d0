"""Who waits for whom in the collectives that ranks share, from durations alone: the rank that came last waits least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._stages import RankView
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.table import Bools, Ints

LATE_RATIO: Final = threshold("N-05", "max_late_tie_ratio")
MIN_PERSISTENCE: Final = threshold("N-05", "min_persistence_ratio")
_AT_ONCE: Final = 1 << 21
"""Pairs of waiting and late ranks that are held in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class Longest:
    """The calls in which one rank waits for another, and the longest of them."""

    calls: int
    name: str
    start_ns: int
    wait_ns: int
    dur_ns: int


@dataclass(frozen=True, kw_only=True)
class _Members:
    """One entry per member of a matched collective."""

    calls: Collectives
    wait: Ints
    """Exposed waiting."""
    excess: Ints
    """Duration beyond that of the shortest member."""
    group: Ints
    """Number of the collective's group."""
    waits: Bools
    late: Bools


@dataclass(frozen=True, kw_only=True)
class JointWait:
    """What one rank waits for another in the calls that both take part in, all steps together."""

    waiter: RankView
    late: RankView
    exposed_ns: int
    is_matched_by_order: bool
    """The trace names no groups: calls were matched by their order and by ending at one time."""
    places: tuple[int, int]
    """Place of the waiting and of the late rank in the views."""
    groups: frozenset[int]
    members: _Members

    def longest(self) -> Longest:
        """The calls, and the longest wait among them; looked up when asked for, a large job has many pairs."""
        m, (waiter, late) = self.members, self.places
        mine = np.flatnonzero(m.waits & (m.calls.place == waiter) & np.isin(m.group, list(self.groups)))
        rows = mine[np.isin(m.calls.owner[mine], m.calls.owner[m.late & (m.calls.place == late)])]
        worst = int(rows[int(np.argmax(m.wait[rows]))])
        at = int(m.calls.row[worst])
        calls = self.waiter.calls
        return Longest(
            calls=len(rows), name=calls.table.text("name")[at] or "", start_ns=int(calls.starts[at]),
            wait_ns=int(m.excess[worst]), dur_ns=int(m.calls.durations[worst]),
        )  # fmt: skip


def joint_waits(calls: Collectives) -> tuple[JointWait, ...]:
    """Waits from the durations of calls that several ranks share; ranks whose sub-tasks tell more are no waiters.

    The shortest duration belongs to the rank that came last; everyone else's excess over it is waiting (a lower bound:
    an unseen rank may be later). Only durations are compared, so the clocks of the hosts need not agree.

    Source:
        rivals-and-methods, method 5.6; filtered on the longest member of a call, never on the shortest.
    """
    views, count = calls.views, len(calls.views)
    if not len(calls):
        return ()
    owner = calls.owner
    shortest, longest = (calls.per_call(calls.durations, reduce) for reduce in (np.minimum, np.maximum))
    excess = calls.durations - shortest[owner]
    late = excess <= LATE_RATIO.value * (longest - shortest)[owner]
    estimated = np.array([view.calls.is_estimated for view in views], bool)
    wait = np.minimum(excess, calls.exposed)
    waits = (wait > 0) & ~late & estimated[calls.place]
    names = {name: number for number, name in enumerate(dict.fromkeys(calls.group))}
    group = np.array([names[name] for name in calls.group], np.int64)[owner]
    width = len(names)
    totals = np.bincount(calls.place[waits] * width + group[waits], weights=wait[waits], minlength=count * width)
    sums: dict[int, float] = {}
    for waiter, other in _pairs(owner, waits, late):
        keys, index = np.unique((calls.place[waiter] * count + calls.place[other]) * width + group[waiter],
                                return_inverse=True)  # fmt: skip
        for key, value in zip(keys.tolist(), np.bincount(index.reshape(-1), weights=wait[waiter]).tolist(),
                              strict=True):  # fmt: skip
            sums[key] = sums.get(key, 0.0) + value
    least = MIN_PERSISTENCE.value
    kept = {
        key for key, value in sums.items() if value >= least * totals[key // (count * width) * width + key % width]
    }
    members = _Members(calls=calls, wait=wait, excess=excess, group=group, waits=waits, late=late)
    by_pair: dict[int, list[int]] = {}
    for key in sorted(kept):
        by_pair.setdefault(key // width, []).append(key)
    return tuple(
        JointWait(
            waiter=views[pair // count], late=views[pair % count], exposed_ns=round(sum(sums[key] for key in keys)),
            is_matched_by_order=names.get(None) in {key % width for key in keys},
            places=(pair // count, pair % count), groups=frozenset(key % width for key in keys), members=members,
        )
        for pair, keys in by_pair.items()
    )  # fmt: skip


def _pairs(owner: Ints, waits: Bools, late: Bools) -> Iterator[tuple[Ints, Ints]]:
    """Places of members: each that waits with each that is late in the same collective, a part of them at a time."""
    rows, others = np.flatnonzero(waits), np.flatnonzero(late)
    first = np.searchsorted(owner[others], owner[rows], side="left")
    many = np.searchsorted(owner[others], owner[rows], side="right") - first
    begins = np.append(0, np.cumsum(many))
    at = 0
    while at < len(rows):
        to = max(at + 1, int(np.searchsorted(begins, begins[at] + _AT_ONCE, side="right")) - 1)
        counts = many[at:to]
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        yield np.repeat(rows[at:to], counts), others[np.repeat(first[at:to], counts) + inside]
        at = to
