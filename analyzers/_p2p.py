"""Point-to-point calls over the ranks: who the other end of each is, and which call is the same on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._clocks import Ties
from ascend_perf.analyzers._communication import group_members, is_p2p
from ascend_perf.analyzers._stages import RankView
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import COMM_TASKS

UNKNOWN: Final = -1
_MATES: Final = (("send", "receive"), ("receive", "send"), ("batchSendRecv", "batchSendRecv"))
"""Op on one rank and on the other for one exchange."""


def peers_of_calls(view: RankView) -> Ints:
    """Global rank at the other end of each call of a rank; `UNKNOWN` for collectives and where nothing tells it.

    From the sub-tasks (`dst`) where they name a peer, else from the group where it has two members.

    Reads:
        comm_ops: group; comm_tasks: comm_op, src, dst; meta: groups.
    """
    calls = view.calls
    peers = np.full(len(calls), UNKNOWN, np.int64)
    rows = np.flatnonzero(is_p2p(calls.table))
    if not len(rows):
        return peers
    members = group_members(view.trace)
    groups = calls.table.text("group")
    known = [(code, members.get(None if code < 0 else groups.values[code])) for code in np.unique(groups.codes[rows])]
    for code, ranks in known:
        if ranks is not None and len(ranks) == 2 and view.rank in ranks:
            peers[rows[groups.codes[rows] == code]] = ranks[1 - ranks.index(view.rank)]
    tasks = view.trace[COMM_TASKS]
    owner, local = tasks.ints("comm_op"), tasks.ints("dst")
    place = np.full(int(calls.rows.max()) + 2, UNKNOWN, np.int64)
    place[calls.rows[rows]] = rows
    inside = (owner >= 0) & (owner < len(place)) & (local >= 0) & (local != tasks.ints("src"))
    call = np.where(inside, place[np.where(inside, owner, len(place) - 1)], UNKNOWN)
    told = np.flatnonzero(call >= 0)
    for code, ranks in known:
        if ranks is None:
            continue
        mine = told[(groups.codes[call[told]] == code) & (local[told] < len(ranks))]
        peers[call[mine]] = np.asarray(ranks, np.int64)[local[mine]]
    return peers


def p2p_ties(views: Sequence[RankView], peers: Sequence[Ints]) -> Ties:
    """Ends of exchanges as both ranks saw them: the k-th send of one to the other is its k-th receive from it.

    Only where both ranks have equally many: a call that one record lacks would shift all that follow.

    Args:
        views: the ranks.
        peers: `peers_of_calls` of each.
    """
    places = {view.rank: at for at, view in enumerate(views)}
    first, second, first_ns, second_ns = [], [], [], []
    by_pair: dict[tuple[int, int, str], Ints] = {}
    for at, view in enumerate(views):
        ops = view.calls.table.text("op")
        for peer in np.unique(peers[at][peers[at] >= 0]).tolist():
            if (to := places.get(peer)) is None:
                continue
            for op, _ in _MATES:
                rows = np.flatnonzero((peers[at] == peer) & ops.equals(op))
                if len(rows):
                    by_pair[at, to, op] = np.sort(_ends(view)[rows])
    for (at, to, op), ends in sorted(by_pair.items()):
        mate = next(other for mine, other in _MATES if mine == op)
        others = by_pair.get((to, at, mate))
        if at > to or others is None or len(others) != len(ends):
            continue
        first.append(np.full(len(ends), at, np.int64))
        second.append(np.full(len(ends), to, np.int64))
        first_ns.append(ends)
        second_ns.append(others)
    nothing = np.empty(0, np.int64)
    return Ties(
        first=np.concatenate(first) if first else nothing, second=np.concatenate(second) if second else nothing,
        first_ns=np.concatenate(first_ns) if first else nothing,
        second_ns=np.concatenate(second_ns) if second else nothing,
    )  # fmt: skip


def _ends(view: RankView) -> Ints:
    table = view.calls.table
    ends = table.ends_ns()
    return np.where(ends == NULL, view.calls.ends, ends)
