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
class JointWait:
    """What one rank waits for another in the calls that both take part in, all steps together."""

    waiter: RankView
    late: RankView
    exposed_ns: int
    calls: int
    longest_call: str
    longest_start_ns: int
    longest_ns: int
    longest_dur_ns: int
    is_matched_by_order: bool
    """The trace names no groups: calls were matched by their order and by ending at one time."""


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
    by_pair: dict[tuple[int, int], set[int]] = {}
    for key in sorted(kept):
        pair, in_group = divmod(key, width)
        by_pair.setdefault(divmod(pair, count), set()).add(in_group)
    return tuple(
        _joint_wait(calls, pair, _rows(calls, pair, groups, group, waits, late), wait, excess,
                    is_matched_by_order=names.get(None) in groups)
        for pair, groups in by_pair.items()
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


def _rows(
    calls: Collectives, pair: tuple[int, int], groups: set[int], group: Ints, waits: Bools, late: Bools
) -> Ints:
    """Members of the waiting rank in the collectives of some groups that the other joins last."""
    mine = np.flatnonzero(waits & (calls.place == pair[0]) & np.isin(group, list(groups)))
    theirs = calls.owner[late & (calls.place == pair[1])]
    return mine[np.isin(calls.owner[mine], theirs)]


def _joint_wait(
    calls: Collectives, pair: tuple[int, int], rows: Ints, wait: Ints, excess: Ints, *, is_matched_by_order: bool
) -> JointWait:
    worst = int(rows[int(np.argmax(wait[rows]))])
    waiter = calls.views[pair[0]]
    at = int(calls.row[worst])
    return JointWait(
        waiter=waiter, late=calls.views[pair[1]], exposed_ns=int(wait[rows].sum()), calls=len(rows),
        longest_call=waiter.calls.table.text("name")[at] or "", longest_start_ns=int(waiter.calls.starts[at]),
        longest_ns=int(excess[worst]), longest_dur_ns=int(calls.durations[worst]),
        is_matched_by_order=is_matched_by_order,
    )  # fmt: skip
