"""Whose lateness a wait is in the end: a rank that comes late because it waited itself is not the cause.

A wait is an edge from the rank that waits to the rank that comes last. What the late rank waited for others since the
two last met, beyond what the waiting rank did, it only passes on: that part of the wait belongs to whoever held it up,
and so on until a rank is found that was late by itself.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._communication import group_members, is_p2p, is_wait
from ascend_perf.analyzers._joint_waits import LATE_RATIO
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import NULL, Floats, Ints
from ascend_perf.model.tables import COMM_TASKS

MIN_WAIT_NS: Final = threshold("N-05", "max_notify_ns")
PEERS_PER_CALL: Final = 3
"""Of the peers that a rank waits for in one call, those that come last are followed. Status: assumed."""
MAX_DEPTH: Final = 256
"""Waits that lead to one another are followed so far: micro-batches of a pipeline pass lateness on. Status: assumed."""
MIN_PART: Final = 1e-3
"""A part of a wait below this is not followed further. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Waits of ranks, one entry each; times on the clock of the reference."""

    waiter: Ints
    """Place of the waiting rank in the views."""
    late: Ints
    """Global rank that comes last."""
    call: Ints
    """Position of the call in the waiting rank's `calls`."""
    starts: Ints
    ends: Ints
    exposed: Ints
    """The part of the wait in which the waiting rank computes nothing."""

    def __len__(self) -> int:
        return len(self.waiter)


@dataclass(frozen=True, kw_only=True)
class Causes:
    """What each pair of ranks waits, by the rank that is the cause in the end; ns of exposed waiting."""

    waiter: Ints
    """Global rank that waits."""
    late: Ints
    """Global rank that it waits for."""
    cause: Ints
    """Global rank whose own lateness that is."""
    exposed_ns: Floats

    def of(self, waiter: int, late: int) -> dict[int, float]:
        """Waiting of one rank for another by cause."""
        mine = (self.waiter == waiter) & (self.late == late)
        return dict(zip(self.cause[mine].tolist(), self.exposed_ns[mine].tolist(), strict=True))


_last: list[tuple[weakref.ref[Collectives], Causes]] = []
"""The causes that were found last: two analyzers ask for those of one job. They go with its collectives."""


def job_causes(calls: Collectives) -> Causes:
    """The waits of a job by pair of ranks and cause, followed once.

    Reads:
        comm_ops, comm_tasks, kernels; meta: groups.
    """
    for known, found in _last:
        if known() is calls:
            return found
    found = causes(calls, waits_of(calls))
    _last[:] = [(weakref.ref(calls, lambda _: _last.clear()), found)]
    return found


def waits_of(calls: Collectives) -> Waits:
    """All notable waits: from sub-tasks where a rank has them, else from matched collectives and pairs of p2p calls."""
    parts = [_from_tasks(calls, at) for at, view in enumerate(calls.views) if not view.calls.is_estimated]
    parts += [_from_collectives(calls), *(_from_pairs(calls, at) for at in range(len(calls.views)))]
    columns = [np.concatenate([part[i] for part in parts]) for i in range(5)]
    waiter, late, call, starts, lengths = columns
    ends = starts + lengths
    exposed = np.zeros(len(waiter), np.int64)
    for at, view in enumerate(calls.views):
        mine = np.flatnonzero(waiter == at)
        exposed[mine] = np.minimum(
            lengths[mine] - intervals.covered(view.calls.busy, starts[mine], ends[mine]),
            view.calls.exposed_ns[call[mine]],
        )
    keep = exposed >= MIN_WAIT_NS.value
    waiter, late, call, exposed = waiter[keep], late[keep], call[keep], exposed[keep]
    return Waits(
        waiter=waiter, late=late, call=call, exposed=exposed,
        starts=calls.clocks.aligned(waiter, starts[keep]), ends=calls.clocks.aligned(waiter, ends[keep]),
    )  # fmt: skip


_Columns = tuple[Ints, Ints, Ints, Ints, Ints]
"""Place of the waiting rank, late rank, call, start and length on the waiting rank's clock."""
_NOTHING: Final = np.empty(0, np.int64)


def _from_tasks(calls: Collectives, at: int) -> _Columns:
    """The longest wait for each peer in each call, for the peers that come last."""
    view = calls.views[at]
    own, tasks = view.calls, view.trace[COMM_TASKS]
    if not len(own):
        return (_NOTHING,) * 5
    place = np.full(int(own.rows.max()) + 2, -1, np.int64)
    place[own.rows] = np.arange(len(own))
    owner, local = tasks.ints("comm_op"), tasks.ints("dst")
    starts, lengths = tasks.ints("start_ns"), tasks.ints("dur_ns")
    usable = is_wait(tasks) & (owner >= 0) & (owner < len(place)) & (local >= 0) & (local != tasks.ints("src"))
    usable &= (starts != NULL) & (lengths >= MIN_WAIT_NS.value)
    rows = np.flatnonzero(usable)
    call = place[owner[rows]]
    rows, call = rows[call >= 0], call[call >= 0]
    members, groups = group_members(view.trace), own.table.text("group")
    peer = np.full(len(rows), -1, np.int64)
    codes = groups.codes[call]
    for code in np.unique(codes).tolist():
        ranks = members.get(None if code < 0 else groups.values[code])
        if ranks is not None:
            mine = (codes == code) & (local[rows] < len(ranks))
            peer[mine] = np.asarray(ranks, np.int64)[local[rows][mine]]
    known = (peer >= 0) & (peer != view.rank)
    rows, call, peer = rows[known], call[known], peer[known]
    order = np.lexsort((-lengths[rows], peer, call))
    rows, call, peer = rows[order], call[order], peer[order]
    first = np.append(True, (call[1:] != call[:-1]) | (peer[1:] != peer[:-1])) if len(rows) else np.empty(0, bool)
    rows, call, peer = rows[first], call[first], peer[first]
    order = np.lexsort((-lengths[rows], call))
    rows, call, peer = rows[order], call[order], peer[order]
    rank_in_call = np.arange(len(call)) - np.searchsorted(call, call, side="left")
    last = rank_in_call < PEERS_PER_CALL
    rows, call, peer = rows[last], call[last], peer[last]
    return np.full(len(rows), at, np.int64), peer, call, starts[rows], lengths[rows]


def _from_collectives(calls: Collectives) -> _Columns:
    """The waits of ranks without sub-tasks in the collectives that they share with others."""
    if not len(calls):
        return (_NOTHING,) * 5
    last, owner = calls.last[calls.owner], calls.owner
    estimated = np.array([view.calls.is_estimated for view in calls.views], bool)
    waits = (calls.waits >= MIN_WAIT_NS.value) & (calls.place != last) & estimated[calls.place]
    rows = np.flatnonzero(waits)
    # Of ranks that come last together each may have its own reason: the rank that waits longest asks for all of them.
    skew = calls.skew_ns[owner]
    least = MIN_WAIT_NS.value
    tied = np.flatnonzero((calls.waits <= LATE_RATIO.value * skew) & (calls.place != last) & (skew >= least))
    longest = np.lexsort((np.where(waits, calls.waits, -1), owner))[np.append(calls.heads[1:], len(owner)) - 1]
    asks = longest[owner[tied]]
    tied, asks = tied[waits[asks]], asks[waits[asks]]
    ranks = np.array([view.rank for view in calls.views], np.int64)
    both = np.append(rows, asks)
    return (
        calls.place[both],
        ranks[np.append(last[rows], calls.place[tied])],
        calls.row[both],
        calls.starts[both],
        np.append(calls.waits[rows], calls.waits[asks] - calls.waits[tied]),
    )


def _from_pairs(calls: Collectives, at: int) -> _Columns:
    """The waits of a rank without sub-tasks in its point-to-point calls; they lie at the begin of the call."""
    own = calls.views[at].calls
    if not own.is_estimated or not len(own):
        return (_NOTHING,) * 5
    rows = np.flatnonzero(is_p2p(own.table) & (calls.peers[at] >= 0) & (own.waiting_ns >= MIN_WAIT_NS.value))
    return np.full(len(rows), at, np.int64), calls.peers[at][rows], rows, own.starts[rows], own.waiting_ns[rows]


def causes(calls: Collectives, waits: Waits) -> Causes:
    """Each wait split into what the late rank is late by itself and what it inherited, followed to its end.

    For a wait of w for l that ends at t, with m the end of the last call in which the two met: what l inherited is its
    own exposed waiting in [m, t) less that of w in [m, begin of the wait), within [0, the wait]. It goes to the longest
    wait of l in [m, t), and is split there again. Without common clocks nothing is followed.
    """
    late_place = _places(calls, waits.late)
    part, parent = np.zeros(len(waits)), np.full(len(waits), -1, np.int64)
    rows = np.flatnonzero((late_place >= 0) & calls.clocks.known(waits.waiter))
    rows = rows[calls.clocks.known(late_place[rows])]
    if len(rows):
        met = _met(calls, waits)
        unions = [_exposed(calls, waits, at) for at in range(len(calls.views))]
        for at in np.unique(late_place[rows]).tolist():
            mine = rows[late_place[rows] == at]
            end = waits.ends[mine] + MIN_WAIT_NS.value
            before = intervals.covered(unions[at], met[mine], end).astype(np.float64)
            parent[mine] = _longest_between(waits, np.flatnonzero(waits.waiter == at), met[mine], end)
            part[mine] = np.where(parent[mine] >= 0, before, 0.0)
        for at in np.unique(waits.waiter[rows]).tolist():
            mine = rows[waits.waiter[rows] == at]
            part[mine] -= intervals.covered(unions[at], met[mine], np.maximum(waits.starts[mine], met[mine]))
        part = np.clip(part / np.maximum(waits.exposed, 1), 0.0, 1.0)
    return _followed(calls, waits, part, parent)


def _places(calls: Collectives, ranks: Ints) -> Ints:
    """Place of each rank in the views, -1 for ranks that are not in the data."""
    own = np.array([view.rank for view in calls.views], np.int64)
    order = np.argsort(own)
    at = np.clip(np.searchsorted(own[order], ranks), 0, max(len(own) - 1, 0))
    return np.where(own[order][at] == ranks, order[at], -1) if len(own) else np.full(len(ranks), -1, np.int64)


def _met(calls: Collectives, waits: Waits) -> Ints:
    """When the two ranks of each wait were last in step: the end of the call before, of their group or pair.

    Where there is none, the begin of the records of both.
    """
    begins = [
        int(calls.clocks.aligned(np.array([at]), view.calls.windows.starts[:1])[0])
        for at, view in enumerate(calls.views)
        if len(view.calls)
    ]
    met = np.full(len(waits), min(begins, default=0), np.int64)
    for at, view in enumerate(calls.views):
        mine = np.flatnonzero(waits.waiter == at)
        if not len(mine):
            continue
        own = view.calls
        ends = calls.clocks.aligned(np.full(len(own), at, np.int64), own.ends)
        peers = np.maximum(calls.peers[at], -1) + 1
        keys = (own.table.text("group").codes.astype(np.int64) + 1) * (int(peers.max()) + 1) + peers
        for key in np.unique(keys[waits.call[mine]]).tolist():
            here = mine[keys[waits.call[mine]] == key]
            known = np.sort(ends[keys == key])
            before = np.searchsorted(known, waits.starts[here], side="right") - 1
            met[here] = np.where(before >= 0, known[np.maximum(before, 0)], met[here])
    return met


def _exposed(calls: Collectives, waits: Waits, at: int) -> IntervalSet:
    """When a rank waits and computes nothing, on the clock of the reference."""
    mine = waits.waiter == at
    busy = calls.views[at].calls.busy
    place = np.full(len(busy.starts), at, np.int64)
    computing = intervals.merged(
        calls.clocks.aligned(place, busy.starts), calls.clocks.aligned(place, busy.ends)
    )  # fmt: skip
    return intervals.difference(intervals.merged(waits.starts[mine], waits.ends[mine]), computing)


def _longest_between(waits: Waits, rows: Ints, begins: Ints, ends: Ints) -> Ints:
    """Of some waits the one with the longest exposed time that ends in each (begin, end]; -1 where there is none."""
    if not len(rows):
        return np.full(len(begins), -1, np.int64)
    rows = rows[np.argsort(waits.ends[rows], kind="stable")]
    first = np.searchsorted(waits.ends[rows], begins, side="right")
    to = np.searchsorted(waits.ends[rows], ends, side="right")
    # Tables of the best of 1, 2, 4, ... neighbours: two of them cover any range.
    value = waits.exposed[rows]
    levels = [np.arange(len(rows))]
    while 2 ** len(levels) <= len(rows):
        half = 2 ** (len(levels) - 1)
        left, right = levels[-1][:-half], levels[-1][half:]
        levels.append(np.where(value[left] >= value[right], left, right))
    found = np.full(len(begins), -1, np.int64)
    length = to - first
    for level, best in enumerate(levels):
        mine = np.flatnonzero((length >= 2**level) & (length < 2 ** (level + 1)))
        left, right = best[first[mine]], best[to[mine] - 2**level]
        found[mine] = rows[np.where(value[left] >= value[right], left, right)]
    return found


def _followed(calls: Collectives, waits: Waits, part: Floats, parent: Ints) -> Causes:
    """The sums by waiting rank, late rank and cause, following the inherited parts from wait to wait."""
    ranks = np.array([view.rank for view in calls.views], np.int64)
    weight = waits.exposed.astype(np.float64)
    at = origin = np.arange(len(waits))
    flow = weight
    origins, roots, sums = [], [], []
    for depth in range(MAX_DEPTH):
        stays = flow * (1 - part[at]) if depth < MAX_DEPTH - 1 else flow
        origins.append(origin)
        roots.append(waits.late[at])
        sums.append(stays)
        flow = flow * part[at]
        live = flow > MIN_PART * weight[origin]
        # What is too little to follow stays where it is.
        sums[-1] = np.where(live, stays, np.minimum(stays + flow, weight[origin]))
        at, origin, flow = parent[at[live]], origin[live], flow[live]
        if not len(at):
            break
    origin, root = np.concatenate(origins), np.concatenate(roots)
    columns = np.stack((ranks[waits.waiter[origin]], waits.late[origin], root)) if len(origin) else np.empty((3, 0))
    keys, index = np.unique(columns.astype(np.int64), axis=1, return_inverse=True)
    total: Floats = np.bincount(index.reshape(-1), weights=np.concatenate(sums), minlength=keys.shape[1]).astype(float)
    keep = total > 0
    return Causes(waiter=keys[0][keep], late=keys[1][keep], cause=keys[2][keep], exposed_ns=total[keep])
