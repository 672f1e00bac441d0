"""Calls of several ranks whose traces name no groups: which are the same call, told by their order and their ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._alignment import Sequence as CallSequence
from ascend_perf.analyzers._alignment import best_shift, fits
from ascend_perf.analyzers._communication import is_p2p, is_pipelined
from ascend_perf.analyzers._stages import RankView
from ascend_perf.model.table import NULL

MAX_END_SPREAD_RATIO: Final = 0.1
"""One collective ends on all ranks at nearly one time: within this part of its longest duration. Status: assumed."""
MIN_END_SPREAD_NS: Final = 100_000
"""Differences of ends up to this tell nothing: clocks drift. Status: assumed."""
MIN_MATCHED_RATIO: Final = 0.8
"""With fewer calls that end at one time, calls of like order are calls of different groups. Status: assumed."""

_Call = tuple[int, int]
"""Place of the view, position of the call in `view.calls`."""


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
    """The k-th call of each rank is one call, provided that they end at one time.

    The ends are compared after the median difference of the two ranks was taken away: clocks of hosts differ. Where a
    rank has fewer calls than others, its record begins at a later one: `best_shift` says at which, or it is left out.
    """
    ours = {place: _sequence(views[place], found) for place, found in enumerate(rows) if found}
    if len(ours) < 2:
        return
    reference = max(ours, key=lambda place: (len(ours[place].ordinals), -place))
    count = len(ours[reference].ordinals)
    places, begins = [reference], [0]
    for place, calls in ours.items():
        if place == reference:
            continue
        shift = 0 if len(calls.ordinals) == count else best_shift(ours[reference], calls)
        if len(calls.ordinals) == count or (shift >= 0 and fits(ours[reference], calls, shift)):
            places.append(place)
            begins.append(shift)
    if len(places) < 2:
        return
    order = np.argsort(places)
    places, begins = [places[at] for at in order], [begins[at] for at in order]
    ends, durations = np.full((len(places), count), NULL, np.int64), np.zeros((len(places), count), np.int64)
    for line, (place, begin) in enumerate(zip(places, begins, strict=True)):
        calls = ours[place]
        to = min(count, begin + len(calls.ends))
        ends[line, begin:to], durations[line, begin:to] = calls.ends[: to - begin], calls.durations[: to - begin]
    there = ends != NULL
    base = ends[places.index(reference)]
    for line in range(len(places)):
        own = there[line]
        ends[line, own] -= int(np.median(ends[line, own] - base[own]))
    # From the first end on: epoch times have more digits than floats hold.
    values = np.where(there, ends - ends[there].min(), np.nan)
    spread = np.abs(values - np.nanmedian(values, axis=0))
    same = there & (spread <= np.maximum(MIN_END_SPREAD_NS, MAX_END_SPREAD_RATIO * durations.max(axis=0)))
    if same.sum() < MIN_MATCHED_RATIO * there.sum():
        return
    for call in range(count):
        members = [
            (place, rows[place][call - begin])
            for line, (place, begin) in enumerate(zip(places, begins, strict=True))
            if same[line, call]
        ]
        if len(members) > 1:
            yield members


def _sequence(view: RankView, rows: Sequence[int]) -> CallSequence:
    table = view.calls.table
    mine = np.asarray(rows, np.int64)
    return CallSequence(
        ordinals=np.arange(len(mine)), ops=np.zeros(len(mine), np.int64), sizes=table.ints("size_bytes")[mine],
        ends=table.ends_ns()[mine], durations=table.ints("dur_ns")[mine],
    )  # fmt: skip
