"""What each thread of the host called, as intervals that nest: Python, modules, ranges, operators, runtime calls.

Rows lie in the order of (thread, start): the calls below row i are the rows i + 1 to `last[i]` - 1, which makes
questions about ancestors arithmetic on row numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._flame_tree import CODE, Rows
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, PYTHON_CALLS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace

MODULE: Final = "nn.Module: "
"""How profilers mark the call of a module among the calls of Python."""

MIN_TAIL_NS: Final = 1000
"""A call that outlasts its caller by less is cut: time stamps of two clocks. Status: assumed."""
MAX_ROUNDS: Final = 50
"""Rounds in which calls that outlast their callers are divided; what is left then is cut. Status: assumed."""

_RANGES: Final = ("user", "optimizer", "dataloader", "gc")
_QUEUE: Final = ("enqueue", "dequeue", "sync")


@dataclass(frozen=True, kw_only=True)
class HostNest:
    """Calls of all threads, shape (n,), in the order of (thread, start, longest first).

    A call that outlasts its caller (ranges may) is divided at the caller's end. Where most of it comes after, only that
    part stays; else the rest is a row of its own, which `is_first` tells apart. `op`, `call` and `event` hold the first
    row of each row of host_ops, runtime_calls and host_events, -1 where a row is not here.
    """

    starts: Ints
    ends: Ints
    thread: Ints
    name: Text
    kind: Ints
    parent: Ints
    last: Ints
    is_first: Bools
    source: Ints
    """Row of the table that the class comes from: python_calls, host_ops, host_events or runtime_calls."""
    table: Ints
    """Place of that table in `TABLES`."""
    op: Ints
    call: Ints
    event: Ints
    cut_ns: int
    """Time of calls that outlast their callers, where it could not be kept."""

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, rows: Ints) -> Ints:
        """Parents of some rows among themselves, as places in `rows`, -1 for roots. `rows` ascend."""
        return intervals.parents(rows, self.last[rows])

    def innermost(self, rows: Ints, at: Ints) -> Ints:
        """The innermost of `rows` that is, or contains, each row of `at`: places in `rows`, -1 where there is none."""
        if not len(rows):
            return np.full(len(at), -1, np.int64)
        up = self.within(rows)
        place = np.searchsorted(rows, at, side="right") - 1
        place = np.where(at >= 0, place, -1)
        while (active := np.flatnonzero((place >= 0) & (at >= self.last[rows[np.clip(place, 0, None)]]))).size:
            place[active] = up[place[active]]
        return place.astype(np.int64)

    def is_used(self, at: Ints) -> Bools:
        """Rows that are, or contain, one of the rows `at`."""
        marks = np.concatenate(([0], np.cumsum(np.bincount(at[at >= 0], minlength=len(self)))))
        return np.asarray(marks[self.last] > marks[:-1], bool)

    def rows(self, picked: Ints) -> Rows:
        """Some rows for a tree, with their parents among themselves."""
        return Rows(parent=self.within(picked), name=self.name.take(picked), kind=self.kind[picked])


TABLES: Final = (PYTHON_CALLS, HOST_EVENTS, HOST_OPS, RUNTIME_CALLS)
"""Tables of a nest; of two calls with equal times the one of the earlier table encloses the other."""


def host_nest(trace: Trace) -> HostNest:
    """The calls of the host. Rows without time or thread are left out, as are the marks of steps.

    Reads:
        python_calls, host_ops, host_events (not of kind step; kind python where there are no python_calls),
        runtime_calls: start_ns, dur_ns, thread and their names.
    """
    parts = [_part(trace, place) for place in range(len(TABLES))]
    name = Text.concat([part.name for part in parts])
    table = np.concatenate([np.full(len(part.rows), place, np.int64) for place, part in enumerate(parts)])
    source = np.concatenate([part.rows for part in parts])
    kind = np.concatenate([part.kind for part in parts])
    starts = np.concatenate([trace[spec].ints("start_ns")[part.rows] for spec, part in zip(TABLES, parts, strict=True)])
    ends = np.concatenate([trace[spec].ends_ns()[part.rows] for spec, part in zip(TABLES, parts, strict=True)])
    thread = np.concatenate([trace[spec].ints("thread")[part.rows] for spec, part in zip(TABLES, parts, strict=True)])
    order = np.argsort(thread, kind="stable")
    distinct, first = np.unique(thread[order], return_index=True)
    pieces = [
        _nested(starts[mine], ends[mine], table[mine], mine) for mine in np.split(order, first[1:]) if len(distinct)
    ]
    offset = np.cumsum([0, *(len(piece.starts) for piece in pieces)]).tolist()
    from_ = _joined([piece.rows for piece in pieces])
    parent = _joined([np.where(p.parent >= 0, p.parent + o, -1) for p, o in zip(pieces, offset, strict=False)])
    last = _joined([p.last + o for p, o in zip(pieces, offset, strict=False)])
    own_table, own_source = table[from_], source[from_]
    firsts = _joined([p.is_first.astype(np.int64) for p in pieces]).astype(bool)
    nest_starts, nest_ends = _joined([p.starts for p in pieces]), _joined([p.ends for p in pieces])
    return HostNest(
        starts=nest_starts, ends=nest_ends, thread=thread[from_], name=name.take(from_), kind=kind[from_],
        parent=parent, last=last, is_first=firsts, source=own_source, table=own_table,
        event=_first_rows(len(trace[HOST_EVENTS]), own_table == 1, own_source, firsts),
        op=_first_rows(len(trace[HOST_OPS]), own_table == 2, own_source, firsts),
        call=_first_rows(len(trace[RUNTIME_CALLS]), own_table == 3, own_source, firsts),
        cut_ns=sum(piece.cut_ns for piece in pieces),
    )  # fmt: skip


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _first_rows(count: int, mine: Bools, source: Ints, firsts: Bools) -> Ints:
    result = np.full(count, -1, np.int64)
    rows = np.flatnonzero(mine & firsts)
    result[source[rows]] = rows
    return result


@dataclass(frozen=True)
class _Part:
    """Usable rows of one table, their names and classes."""

    rows: Ints
    name: Text
    kind: Ints


def _part(trace: Trace, place: int) -> _Part:
    table = trace[TABLES[place]]
    usable = _usable(table)
    if table.spec is PYTHON_CALLS:
        rows = np.flatnonzero(usable)
        name = table.text("name").take(rows)
        module = name.flags(lambda word: word.startswith(MODULE))
        kind = np.where(module, CODE["module"], CODE["python"])
        return _Part(rows, name.relabel(lambda word: word.removeprefix(MODULE) or "unnamed"), kind)
    if table.spec is HOST_EVENTS:
        kinds = table.text("kind")
        wanted = (*_RANGES, *_QUEUE, *(() if len(trace[PYTHON_CALLS]) else ("python",)))
        rows = np.flatnonzero(usable & kinds.isin(wanted))
        kind = np.where(kinds.isin(_QUEUE), CODE["runtime"], CODE["range"])
        kind = np.where(kinds.equals("python"), CODE["python"], kind)
        return _Part(rows, table.text("name").take(rows), kind[rows])
    rows = np.flatnonzero(usable)
    if table.spec is HOST_OPS:
        return _Part(rows, table.text("name").take(rows), np.full(len(rows), CODE["op"], np.int64))
    return _Part(rows, table.text("api").take(rows), np.full(len(rows), CODE["runtime"], np.int64))


def _usable(table: Table) -> Bools:
    start, dur = table.ints("start_ns"), table.ints("dur_ns")
    return np.asarray((start != NULL) & (dur != NULL) & (dur >= 0) & (table.ints("thread") != NULL), bool)


@dataclass(frozen=True, kw_only=True)
class _Nested:
    """Calls of one thread in order; `rows` are the input's."""

    starts: Ints
    ends: Ints
    rows: Ints
    parent: Ints
    last: Ints
    is_first: Bools
    cut_ns: int


def _nested(starts: Ints, ends: Ints, rank: Ints, rows: Ints) -> _Nested:
    first = np.ones(len(starts), bool)
    done: list[tuple[Ints, ...]] = []
    cut_ns = 0
    for round_ in range(MAX_ROUNDS + 1):
        order = _order(starts, ends, rank)
        starts, ends, rank, rows, first = starts[order], ends[order], rank[order], rows[order], first[order]
        up = intervals.parents(starts, ends)
        # Calls that go on after the end of the one that they began in.
        over = np.flatnonzero((up >= 0) & (ends > ends[np.clip(up, 0, None)]))
        uncut = ends
        if not len(over):
            break
        if round_ == MAX_ROUNDS:
            ends, cut_ns = _cut(starts, ends)
            up = intervals.parents(starts, ends)
            break
        # What ends before them, or begins after them, is in its place already.
        near = _touching(starts, ends, intervals.merged(starts[up[over]], ends[over]))
        done.append(tuple(column[~near] for column in (starts, ends, ends, rank, rows, first)))
        place = np.cumsum(near) - 1
        up, over = np.where(up[near] >= 0, place[up[near]], -1), place[over]
        starts, ends, rank, rows, first = starts[near], ends[near], rank[near], rows[near], first[near]
        # Callers that cross others themselves first.
        crosses = np.zeros(len(starts), bool)
        crosses[over] = True
        over = over[~crosses[up[over]]]
        border = ends[up[over]]
        head, tail = border - starts[over], ends[over] - border
        # Begun inside of a call that ends soon (record_function): the range belongs to what goes on after that.
        moved = tail > head
        beyond = up[up[over]]
        covered = (beyond >= 0) & (ends[np.clip(beyond, 0, None)] >= ends[over])
        kept = ~moved & ((tail >= MIN_TAIL_NS) | ~covered)
        rest, at = over[kept], border[kept]
        starts, ends, rank, rows, first = (
            np.concatenate((starts, at)),
            np.concatenate((ends, ends[rest])),
            np.concatenate((rank, rank[rest])),
            np.concatenate((rows, rows[rest])),
            np.concatenate((first, np.zeros(len(rest), bool))),
        )
        starts[over[moved]] = border[moved]
        ends[over[~moved]] = border[~moved]
    if done:
        starts, ends, uncut, rank, rows, first = (
            np.concatenate(columns) for columns in zip(*done, (starts, ends, uncut, rank, rows, first), strict=True)
        )
        order = _order(starts, uncut, rank)
        starts, ends, rows, first = starts[order], ends[order], rows[order], first[order]
        up = intervals.parents(starts, ends)
    last = np.searchsorted(starts, ends, side="left")
    last = np.where(ends > starts, last, np.arange(len(starts)) + 1)
    return _Nested(
        starts=starts, ends=ends, rows=rows, parent=up, last=last.astype(np.int64), is_first=first, cut_ns=cut_ns
    )  # fmt: skip


def _touching(starts: Ints, ends: Ints, union: intervals.IntervalSet) -> Bools:
    """Intervals that have an instant, or a border, in common with a merged set."""
    following = np.searchsorted(union.ends, starts, side="left")
    begins = np.append(union.starts, np.iinfo(np.int64).max)[following]
    return np.asarray(begins <= ends, bool)


def _order(starts: Ints, ends: Ints, rank: Ints) -> Ints:
    """By start, the longest first, then by rank: as `lexsort`, but only rows of equal start are compared further."""
    order = np.argsort(starts, kind="stable")
    by_start = starts[order]
    same = by_start[1:] == by_start[:-1]
    ties = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(ties):
        tied = order[ties]
        order[ties] = tied[np.lexsort((rank[tied], -ends[tied], by_start[ties]))]
    return order


def _cut(starts: Ints, ends: Ints) -> tuple[Ints, int]:
    """Ends at which every call lies inside of its caller, and the time that this costs.

    One pass with a stack, for threads whose calls cross again and again: no real profile has come here.
    """
    made = ends.tolist()
    stack: list[int] = []
    for row, start in enumerate(starts.tolist()):
        while stack and made[stack[-1]] <= start:
            stack.pop()
        if stack:
            made[row] = min(made[row], made[stack[-1]])
        if made[row] > start:
            stack.append(row)
    cut = np.array(made, np.int64)
    before = intervals.total(intervals.merged(starts, ends))
    return cut, before - intervals.total(intervals.merged(starts, cut))
