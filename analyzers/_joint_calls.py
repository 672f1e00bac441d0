"""Calls that several ranks take part in: which are the same call, and who waits for whom in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import is_p2p, is_pipelined
from ascend_perf.analyzers._stages import RankView
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import COMM_OPS

LATE_RATIO: Final = 0.25
"""A rank joins last when its call is longer than the shortest by at most this part of the longest wait: ranks that
come equally late hold the others up together. Status: assumed."""
MIN_PERSISTENCE: Final = 0.5
"""A rank is late when it joins last in this part of what another waits; late by turns is jitter. Status: assumed."""
MAX_END_SPREAD_RATIO: Final = 0.1
"""One collective ends on all ranks at nearly one time: within this part of its longest duration. Status: assumed."""
MIN_END_SPREAD_NS: Final = 100_000
"""Differences of ends up to this tell nothing: clocks drift. Status: assumed."""
MIN_MATCHED_RATIO: Final = 0.8
"""With fewer calls that end at one time, calls of like order are calls of different groups. Status: assumed."""

_Call = tuple[int, int]
"""Place of the view, position of the call in `view.calls`."""


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


@dataclass(frozen=True, kw_only=True)
class _Wait:
    exposed_ns: int
    row: int
    dur_ns: int
    excess_ns: int


def joint_waits(views: tuple[RankView, ...]) -> tuple[JointWait, ...]:
    """Waits from the durations of calls that several ranks share; ranks whose sub-tasks tell more are no waiters.

    A call is the same on two ranks when group, op and ordinal in the group are equal. The shortest duration belongs
    to the rank that came last; everyone else's excess over it is waiting (a lower bound: an unseen rank may be later).
    Only durations are compared, so the clocks of the hosts need not agree.

    Source:
        rivals-and-methods, method 5.6; filtered on the longest member of a call, never on the shortest.
    """
    waits: dict[tuple[int, int, str | None], list[_Wait]] = {}
    totals: dict[tuple[int, str | None], int] = {}
    for group, members in _same_calls(views):
        durations = [_duration(views[place], row) for place, row in members]
        shortest, longest = min(durations), max(durations)
        late = [
            place
            for (place, _), duration in zip(members, durations, strict=True)
            if duration - shortest <= LATE_RATIO * (longest - shortest)
        ]
        for (place, row), duration in zip(members, durations, strict=True):
            calls = views[place].calls
            wait = min(duration - shortest, int(calls.exposed_ns[row]))
            if wait <= 0 or place in late or not calls.is_estimated:
                continue
            totals[place, group] = totals.get((place, group), 0) + wait
            one = _Wait(exposed_ns=wait, row=row, dur_ns=duration, excess_ns=duration - shortest)
            for other in late:
                waits.setdefault((place, other, group), []).append(one)
    by_pair: dict[tuple[int, int], list[_Wait]] = {}
    unnamed: set[tuple[int, int]] = set()
    for (place, late_place, group), found in waits.items():
        if sum(wait.exposed_ns for wait in found) >= MIN_PERSISTENCE * totals[place, group]:
            by_pair.setdefault((place, late_place), []).extend(found)
            if group is None:
                unnamed.add((place, late_place))
    return tuple(
        _joint_wait(views[place], views[late_place], found, is_matched_by_order=(place, late_place) in unnamed)
        for (place, late_place), found in by_pair.items()
    )


def _joint_wait(waiter: RankView, late: RankView, waits: Sequence[_Wait], *, is_matched_by_order: bool) -> JointWait:
    worst = max(waits, key=lambda wait: wait.exposed_ns)
    calls = waiter.calls
    return JointWait(
        waiter=waiter, late=late, exposed_ns=sum(wait.exposed_ns for wait in waits), calls=len(waits),
        longest_call=calls.table.text("name")[worst.row] or "", longest_start_ns=int(calls.starts[worst.row]),
        longest_ns=worst.excess_ns, longest_dur_ns=worst.dur_ns, is_matched_by_order=is_matched_by_order,
    )  # fmt: skip


def _duration(view: RankView, row: int) -> int:
    """Whole duration of a call, also where it leaves its step."""
    return int(view.calls.table.ints("dur_ns")[row])


def _same_calls(views: tuple[RankView, ...]) -> Iterator[tuple[str | None, list[_Call]]]:
    """Each call that two ranks or more share, with its group; the group is None where the trace names none."""
    named: dict[tuple[str, str, int], list[_Call]] = {}
    unnamed: list[dict[str, list[int]]] = []
    for place, view in enumerate(views):
        by_op: dict[str, list[int]] = {}
        for row, group, op, index in _calls_of(view):
            if group is not None and index != NULL:
                named.setdefault((group, op, index), []).append((place, row))
            elif group is None:
                by_op.setdefault(op, []).append(row)
        unnamed.append(by_op)
    for (name, _, _), members in named.items():
        if len({place for place, _ in members}) == len(members) > 1:
            yield name, members
    for op in sorted({op for by_op in unnamed for op in by_op}):
        for members in _by_order(views, [by_op.get(op, []) for by_op in unnamed]):
            yield None, members


def calls_by_order(views: tuple[RankView, ...]) -> Iterator[tuple[str, list[_Call]]]:
    """Op and members (place of the view, position of the call) of calls whose traces name no group."""
    found: list[dict[str, list[int]]] = []
    for view in views:
        by_op: dict[str, list[int]] = {}
        # Most traces name their groups: nothing to look at row by row then.
        if bool((view.calls.table.text("group").codes < 0).any()):
            for row, group, op, _ in _calls_of(view):
                if group is None:
                    by_op.setdefault(op, []).append(row)
        found.append(by_op)
    for op in sorted({op for by_op in found for op in by_op}):
        for members in _by_order(views, [by_op.get(op, []) for by_op in found]):
            yield op, members


def _calls_of(view: RankView) -> Iterator[tuple[int, str | None, str, int]]:
    """Position, group, op and ordinal of the calls that can be recognised on other ranks."""
    table = view.calls.table
    ours = np.ones(len(table), bool) if not len(table) else ~(is_p2p(table) & is_pipelined(view.trace))
    columns = (table.text("group").to_list(), table.text("op").to_list(), table.ints("index_in_group").tolist())
    for row, (group, op, index) in enumerate(zip(*columns, strict=True)):
        if ours[row] and op is not None:
            yield row, group, op, index


def _by_order(views: tuple[RankView, ...], rows: Sequence[Sequence[int]]) -> Iterator[list[_Call]]:
    """The k-th call of each rank is one call, provided that all have as many and that they end at one time.

    The ends are compared after the median difference of the two ranks was taken away: clocks of hosts differ.
    """
    places = [place for place, found in enumerate(rows) if found]
    if len(places) < 2 or len({len(rows[place]) for place in places}) != 1:
        return
    ends = np.array([_ends(views[place], rows[place]) for place in places])
    ends = ends - np.median(ends - ends[0], axis=1).astype(np.int64)[:, None]
    spread = np.abs(ends - np.median(ends, axis=0).astype(np.int64))
    longest = np.array([[_duration(views[place], row) for row in rows[place]] for place in places]).max(axis=0)
    same = spread <= np.maximum(MIN_END_SPREAD_NS, MAX_END_SPREAD_RATIO * longest)
    if same.mean() < MIN_MATCHED_RATIO:
        return
    for call in range(len(rows[places[0]])):
        members = [(place, rows[place][call]) for i, place in enumerate(places) if same[i, call]]
        if len(members) > 1:
            yield members


def _ends(view: RankView, rows: Sequence[int]) -> Ints:
    table = view.calls.table
    assert table.spec is COMM_OPS
    return table.ends_ns()[np.asarray(rows, np.int64)]
