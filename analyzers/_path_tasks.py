"""Device tasks of a rank in one set of arrays: when, on which lane, launched when and by which thread."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.analyzers._communication import Calls
from ascend_perf.analyzers._communication_tables import group_names
from ascend_perf.analyzers._path_elements import Elements, Kind
from ascend_perf.analyzers._path_host import NO_THREAD
from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import NULL, Bools, Ints, Table, TableSpec, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import kernel_classes

SPECS: Final[tuple[TableSpec, ...]] = (KERNELS, COMM_OPS, COPIES)
MAX_NAME: Final = 200
_Codes = NDArray[np.int32] | Ints


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Kernels, collectives and copies with a time, in order of (lane, start); arrays of shape (tasks,)."""

    spec: Ints
    """Place of the task's table in `SPECS`."""
    row: Ints
    start: Ints
    end: Ints
    lane: Ints
    launch_start: Ints
    launch_end: Ints
    thread: Ints
    """Thread of the launch; `NO_THREAD`, or `NULL` where the launch is not known."""
    issued: Ints
    """When the host asked for it: start of its operator or of its launch; the smallest number: not known."""
    element: Ints
    waits: Ints
    """Time of a collective's waiting, `NULL` where the data do not tell it from the transfer."""

    def __len__(self) -> int:
        return len(self.start)


def tasks_of(trace: Trace, calls: Calls | None, elements: Elements) -> Tasks:
    """The device tasks of a rank.

    Args:
        trace: the rank.
        calls: its collectives with their waiting, None where it has none.
        elements: gets the tasks' types and operations.

    Reads:
        kernels: name, op_type, stream; comm_ops: op, group, stream; copies: kind, stream; all three: start_ns, dur_ns,
        launch_start_ns, launch_end_ns, correlation, host_op. runtime_calls, host_ops, host_events: thread.
    """
    columns: list[tuple[Ints, ...]] = []
    has_streams = trace[KERNELS].has("stream") or not trace.has(KERNELS)
    for at, spec in enumerate(SPECS):
        table = trace[spec]
        starts, ends = table.ints("start_ns"), table.ends_ns()
        rows = np.flatnonzero((starts != NULL) & (ends != NULL) & (ends >= starts))
        table = table.select(rows)
        first, last, thread = _launches(trace, table)
        waits = np.full(len(rows), NULL, np.int64)
        if spec is COMM_OPS and calls is not None and len(calls):
            whole = np.full(len(trace[COMM_OPS]), NULL, np.int64)
            whole[calls.rows] = calls.waiting_ns
            waits = whole[rows]
        owner = _operator_start(trace, table)
        # Where nothing tells when it was asked for, it was before anything that waits for it.
        issued = np.where(first != NULL, first, NULL + 1)
        issued = np.where(owner != NULL, np.minimum(owner, np.where(first != NULL, issued, owner)), issued)
        columns.append(
            (
                np.full(len(rows), at), rows, starts[rows], ends[rows], _stream_key(table, has_streams), first,
                last, thread, issued,
                _named(trace, table, elements), waits,
            )
        )  # fmt: skip
    joined = [np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True)]
    joined[4] = _lanes(joined[4], joined[2], joined[3])
    order = np.lexsort((joined[3], joined[2], joined[4]))
    spec_, row, start, end, lane, first, last, thread, issued, element, waits = (column[order] for column in joined)
    return Tasks(
        spec=spec_, row=row, start=start, end=end, lane=lane, launch_start=first, launch_end=last, thread=thread,
        issued=issued, element=element, waits=waits,
    )  # fmt: skip


def _operator_start(trace: Trace, table: Table) -> Ints:
    ops = trace[HOST_OPS]
    if "host_op" not in {column.name for column in table.spec.columns} or not len(ops):
        return np.full(len(table), NULL, np.int64)
    row = table.ints("host_op")
    known = (row >= 0) & (row < len(ops))
    return np.where(known, ops.ints("start_ns")[np.where(known, row, 0)], NULL)


_BY_GROUP: Final = 1 << 40
"""Lanes of collectives without a stream begin here: one per group."""
_NO_STREAM: Final = 1 << 41


def _stream_key(table: Table, has_streams: bool) -> Ints:
    """Which tasks may lie on one lane: those of a stream, collectives of a group, what has no stream.

    Where kernels have no streams (Level0), those of the copies order nothing.
    """
    stream = table.ints("stream")
    other = np.full(len(table), _NO_STREAM, np.int64)
    if table.spec is COMM_OPS:
        other = _BY_GROUP + 1 + table.text("group").codes.astype(np.int64)
    elif not has_streams:
        return other
    return np.where((stream != NULL) & (np.abs(stream) < _BY_GROUP), stream, other)


def _lanes(key: Ints, start: Ints, end: Ints) -> Ints:
    """Number of each task's lane. Tasks of a stream that overlap lie on lanes of their own."""
    if not len(key):
        return key
    _, lane = np.unique(key, return_inverse=True)
    lane = lane.reshape(-1).astype(np.int64)
    order = np.lexsort((end, start, lane))
    reach = end[order][:-1]
    overlap = (lane[order][1:] == lane[order][:-1]) & (start[order][1:] < reach)
    added = int(lane.max()) + 1
    for one in np.unique(lane[order][1:][overlap]).tolist():
        mine = order[lane[order] == one]
        # The lane that is free for the longest; a heap of (free since, lane).
        free: list[tuple[int, int]] = []
        for task in mine.tolist():
            if free and free[0][0] <= start[task]:
                _, number = heapq.heappop(free)
            else:
                number = one if not free else added
                added += number != one
            lane[task] = number
            heapq.heappush(free, (int(end[task]), number))
    return lane


def _launches(trace: Trace, table: Table) -> tuple[Ints, Ints, Ints]:
    """Start, end and thread of each task's launch.

    Without the calls of CANN (Level0) a launch is the operator that asked for it; where a queue thread launches, the
    queue's entry that the operator made tells when.
    """
    first, last = table.ints("launch_start_ns").copy(), table.ints("launch_end_ns")
    thread = _threads(trace, table)
    last = np.where(last == NULL, first, last)
    events, ops = trace[HOST_EVENTS], trace[HOST_OPS]
    if trace.has(RUNTIME_CALLS) or not len(events) or "host_op" not in {c.name for c in table.spec.columns}:
        return first, last, thread
    kinds, ids, starts = events.text("kind"), events.ints("correlation"), events.ints("start_ns")
    usable = (ids != NULL) & (starts != NULL)
    put, take = np.flatnonzero(kinds.equals("enqueue") & usable), np.flatnonzero(kinds.equals("dequeue") & usable)
    row = table.ints("host_op")
    open_ = np.flatnonzero((first != NULL) & (row >= 0) & (row < len(ops)))
    if not len(put) or not len(take) or not len(open_):
        return first, last, thread
    put = put[np.argsort(starts[put], kind="stable")]
    take = take[np.argsort(ids[take], kind="stable")]
    # The last entry of the operator whose launch began before the task did.
    end = ops.ends_ns()[row[open_]]
    for step in range(4):
        at = np.searchsorted(starts[put], end, side="left") - 1 - step
        entry = put[np.clip(at, 0, None)]
        place = np.clip(np.searchsorted(ids[take], ids[entry]), 0, len(take) - 1)
        of = take[place]
        fits = (at >= 0) & (ids[of] == ids[entry]) & (starts[entry] >= ops.ints("start_ns")[row[open_]])
        fits &= (starts[of] <= table.ints("start_ns")[open_]) & (thread[open_] != events.ints("thread")[of])
        fits &= events.ints("thread")[entry] == thread[open_]
        found = open_[fits]
        first[found], last[found] = starts[of[fits]], events.ends_ns()[of[fits]]
        thread[found] = events.ints("thread")[of[fits]]
    return first, last, thread


def _threads(trace: Trace, table: Table) -> Ints:
    """Thread of each task's launch: that of its call, else of the event or operator that holds its launch."""
    first, ids = table.ints("launch_start_ns"), table.ints("correlation")
    thread = np.full(len(table), NULL, np.int64)
    calls = trace[RUNTIME_CALLS]
    if len(calls) and len(table):
        _match(thread, first, ids, calls.ints("start_ns"), calls.ints("correlation"), calls.ints("thread"))
    ops, events = trace[HOST_OPS], trace[HOST_EVENTS]
    if len(ops) and "host_op" in {column.name for column in table.spec.columns}:
        row = table.ints("host_op")
        known = (thread == NULL) & (first != NULL) & (row >= 0) & (row < len(ops))
        thread[known] = ops.ints("thread")[row[known]]
    open_ = np.flatnonzero((thread == NULL) & (first != NULL))
    if len(open_) and len(events):
        queue = np.flatnonzero(events.text("kind").equals("dequeue") & (events.ints("start_ns") != NULL))
        queue = queue[np.argsort(events.ints("start_ns")[queue], kind="stable")]
        if len(queue):
            at = np.searchsorted(events.ints("start_ns")[queue], first[open_], side="right") - 1
            held = (at >= 0) & (first[open_] < events.ends_ns()[queue][np.clip(at, 0, None)])
            thread[open_[held]] = events.ints("thread")[queue[at[held]]]
    thread[(thread == NULL) & (first != NULL)] = NO_THREAD
    return thread


def _match(thread: Ints, first: Ints, ids: Ints, starts: Ints, call_ids: Ints, threads: Ints) -> None:
    """Fill in the thread of the call with the same id that begins when the launch does."""
    order = np.lexsort((call_ids, starts))
    place = np.searchsorted(starts[order], first, side="left")
    # Calls of several threads may begin at one ns: look at a few.
    for step in range(4):
        at = place + step
        fits = (at < len(order)) & (thread == NULL) & (first != NULL)
        row = order[np.clip(at, 0, len(order) - 1)]
        same = fits & (starts[row] == first) & ((call_ids[row] == ids) | (ids == NULL) | (call_ids[row] == NULL))
        thread[same] = threads[row[same]]


def _named(trace: Trace, table: Table, elements: Elements) -> Ints:
    """Element of each task."""
    if not len(table):
        return np.empty(0, np.int64)
    if table.spec is KERNELS:
        names, classes = table.text("name"), kernel_classes(table)
        types = table.text("op_type")
        typed = types.codes >= 0
        both = Text.concat([types.take(typed), names.take(~typed)])
        code = np.empty(len(table), np.int64)
        code[np.concatenate((np.flatnonzero(typed), np.flatnonzero(~typed)))] = both.codes
        return _by_pair(code, classes.codes, lambda a, b: elements.number(
            Kind.COMPUTE, (both.values[a] if a >= 0 else "")[:MAX_NAME], classes.values[b] if b >= 0 else "other"
        ))  # fmt: skip
    if table.spec is COMM_OPS:
        ops, groups, shown = table.text("op"), table.text("group"), group_names(trace)
        return _by_pair(ops.codes, groups.codes, lambda a, b: elements.number(
            Kind.COMM_TRANSFER, _call(ops.values[a] if a >= 0 else "other", groups.values[b] if b >= 0 else None, shown)
        ))  # fmt: skip
    kinds = table.text("kind")
    return _by_pair(
        kinds.codes, kinds.codes, lambda a, _: elements.number(Kind.COPY, kinds.values[a] if a >= 0 else "copy")
    )


def _call(op: str, group: str | None, shown: dict[str | None, str]) -> str:
    name = shown.get(group, group)
    return f"{op} ({name[:MAX_NAME]})" if name and name != "?" else op


def _by_pair(a: _Codes, b: _Codes, number: Callable[[int, int], int]) -> Ints:
    pairs, index = distinct(a, b)
    return np.array([number(*pair) for pair in pairs.T.tolist()], np.int64)[index]


def is_of(tasks: Tasks, spec: TableSpec) -> Bools:
    """Tasks of one table."""
    return np.asarray(tasks.spec == SPECS.index(spec), bool)
