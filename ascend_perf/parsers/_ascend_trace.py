"""trace_view.json read in chunks into columns. What the columns mean is settled afterwards, in `_ascend_timeline`.

The names of processes may come anywhere in the file, so slices are kept with their pid until its end. Of the calls of
Python functions (`python_function`, with call stacks most of the bytes) the shortest are counted and skipped.

Source: format reference, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Floats, Ints, Text
from ascend_perf.parsers._ascend_kernels import MAX_DUR_NS, MAX_START_NS
from ascend_perf.parsers._events import Event, EventFile, Interner
from ascend_perf.parsers._numbers import decimal_ns, json_ints
from ascend_perf.parsers._python_frames import MIN_CALL_NS, SHORT_CALLS

FLOWS: Final = "flow of a kind that is not used (fwdbwd, async_task_queue)"

_T = TypeVar("_T", bound=msgspec.Struct)
_Number = int | float | str | None


class _CallArgs(msgspec.Struct, gc=False):
    connection: int | str | None = msgspec.field(name="connection_id", default=None)


class _SliceArgs(msgspec.Struct, gc=False):
    """Args of device slices and of the HCCL lines, all generations."""

    connection: _Number = msgspec.field(name="connection_id", default=None)
    model: _Number = msgspec.field(name="Model Id", default=None)
    task_type: str | None = msgspec.field(name="Task Type", default=None)
    stream: _Number = msgspec.field(name="Physic Stream Id", default=None)
    stream_g1: _Number = msgspec.field(name="Stream Id", default=None)
    task: _Number = msgspec.field(name="Task Id", default=None)
    copy_size: _Number = msgspec.field(name="data size(Byte)", default=None)
    copy_kind: str | None = msgspec.field(name="memcpy direction", default=None)
    copy_size_g3: _Number = msgspec.field(name="size(B)", default=None)
    copy_kind_g3: str | None = msgspec.field(name="operation", default=None)
    data_type: str | None = None
    algorithm: str | None = msgspec.field(name="alg_type", default=None)
    count: _Number = None
    rank_size: _Number = None
    src: _Number = msgspec.field(name="src rank", default=None)
    dst: _Number = msgspec.field(name="dst rank", default=None)
    transport: str | None = msgspec.field(name="transport type", default=None)
    size: _Number = msgspec.field(name="size(Byte)", default=None)
    link: str | None = msgspec.field(name="link type", default=None)


class _OpArgs(msgspec.Struct, gc=False):
    sequence: _Number = msgspec.field(name="Sequence number", default=None)
    dims: str | None = msgspec.field(name="Input Dims", default=None)
    types: str | None = msgspec.field(name="Input type", default=None)
    stack: str | None = msgspec.field(name="Call stack", default=None)


class _QueueArgs(msgspec.Struct, gc=False):
    correlation: _Number = msgspec.field(name="correlation_id", default=None)


class _NameArgs(msgspec.Struct, gc=False):
    name: str | None = None
    labels: str | None = None


@dataclass
class Columns:
    """Columns of one class of events, gathered chunk by chunk."""

    _ints: dict[str, list[Ints]] = field(default_factory=dict)
    _codes: dict[str, list[NDArray[np.int32]]] = field(default_factory=dict)
    _floats: dict[str, list[Floats]] = field(default_factory=dict)
    interners: dict[str, Interner] = field(default_factory=dict)

    def add_ints(self, **columns: Ints) -> None:
        """Append int columns of one chunk."""
        for name, values in columns.items():
            self._ints.setdefault(name, []).append(values)

    def add_floats(self, **columns: Floats) -> None:
        """Append float columns of one chunk."""
        for name, values in columns.items():
            self._floats.setdefault(name, []).append(values)

    def add_words(self, **columns: Sequence[str | None]) -> None:
        """Append text columns of one chunk, encoded over the whole file; empty text is unknown."""
        for name, words in columns.items():
            interner = self.interners.setdefault(name, Interner())
            filled = [word or "" for word in words]
            self._codes.setdefault(name, []).append(interner.codes(filled))

    def __len__(self) -> int:
        parts = next(iter(self._ints.values()), [])
        return sum(len(part) for part in parts)

    def ints(self, name: str) -> Ints:
        """An int column, shape (n,)."""
        parts = self._ints.get(name)
        if parts is None:
            return np.full(len(self), NULL, np.int64)
        if len(parts) > 1:
            self._ints[name] = parts = [np.concatenate(parts)]
        return parts[0]

    def floats(self, name: str) -> Floats:
        """A float column, shape (n,)."""
        parts = self._floats.get(name)
        return np.concatenate(parts) if parts else np.full(len(self), np.nan)

    def text(self, name: str) -> Text:
        """A text column; empty text is unknown."""
        parts = self._codes.get(name)
        if parts is None:
            return Text.full(len(self), None)
        if len(parts) > 1:
            self._codes[name] = parts = [np.concatenate(parts)]
        values = self.interners[name].values
        codes = parts[0]
        empty = next((code for code, value in enumerate(values) if not value), None)
        return Text(codes if empty is None else np.where(codes == empty, -1, codes).astype(np.int32), values)


@dataclass
class TraceFile:
    """A trace_view.json as columns by class of event."""

    file: EventFile
    slices: Columns = field(default_factory=Columns)
    """Slices of devices and of HCCL lines: start, dur, pid, tid, name and args."""
    calls: Columns = field(default_factory=Columns)
    """Host calls of CANN (`AscendCL@...`)."""
    bare: Columns = field(default_factory=Columns)
    """Slices without args: Overlap Analysis, and whatever else."""
    ops: Columns = field(default_factory=Columns)
    """Framework operators (cpu_op)."""
    events: Columns = field(default_factory=Columns)
    """Other host slices: enqueue, dequeue, garbage collections."""
    python: Columns = field(default_factory=Columns)
    """Calls of Python functions and modules, without the shortest."""
    npu_starts: Columns = field(default_factory=Columns)
    npu_ends: Columns = field(default_factory=Columns)
    launch_starts: Columns = field(default_factory=Columns)
    launch_ends: Columns = field(default_factory=Columns)
    counters: Columns = field(default_factory=Columns)
    processes: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    """Labels of processes: `CPU`, `NPU`, `NPU 3`."""
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    odd_args: int = 0
    data_origin: str | None = None
    """What an event `data_origin` says, which the virtual NPU writes."""
    flow_ids: Interner = field(default_factory=Interner)

    def pids(self, *names: str) -> list[int]:
        """Processes with one of the names."""
        return [pid for pid, name in self.processes.items() if name in names]


def read_trace_view(path: Path) -> TraceFile:
    """All events of a trace_view.json, as columns.

    Raises:
        InputError: the file cannot be read or holds no events.
    """
    trace = TraceFile(EventFile(path))
    _read(trace)
    return trace


def read_slice(trace: TraceFile, path: Path) -> EventFile:
    """Add the events of a further file of the same trace; what was wrong with that file is in the result.

    Raises:
        InputError: the file cannot be read or holds no events.
    """
    first, trace.file = trace.file, EventFile(path)
    try:
        _read(trace)
        return trace.file
    finally:
        trace.file = first


def _read(trace: TraceFile) -> None:
    ids, classes = trace.flow_ids, Interner()
    for chunk in trace.file.read():
        codes = classes.codes([e.ph + e.cat for e in chunk])
        order = np.argsort(codes, kind="stable")
        events = [chunk[row] for row in order.tolist()]
        edges = np.searchsorted(codes[order], np.arange(len(classes.values) + 1)).tolist()
        for key, first, last in zip(classes.values, edges, edges[1:], strict=False):
            if last > first:
                _take(trace, key, events[first:last], ids)


def _take(trace: TraceFile, key: str, events: list[Event], ids: Interner) -> None:
    phase, category = key[:1], key[1:]
    if phase == "X":
        _take_slices(trace, category, events)
    elif phase in "sf" and category == "async_npu":
        columns = trace.npu_starts if phase == "s" else trace.npu_ends
        columns.add_ints(
            time=decimal_ns([e.ts for e in events]),
            pid=json_ints([e.pid for e in events]),
            tid=json_ints([e.tid for e in events]),
            id=json_ints([e.id for e in events]),
        )
    elif phase in "sf" and category == "HostToDevice":
        columns = trace.launch_starts if phase == "s" else trace.launch_ends
        # Ids exceed 64 bits: they are only ever compared, so each distinct one becomes a number.
        columns.add_ints(
            time=decimal_ns([e.ts for e in events]),
            pid=json_ints([e.pid for e in events]),
            tid=json_ints([e.tid for e in events]),
            id=ids.codes([bytes(e.id).decode("latin-1").strip('"') for e in events]).astype(np.int64),
        )
    elif phase == "C":
        _take_counters(trace, events)
    elif phase == "M":
        _take_names(trace, events)
    elif phase in "sftbe":
        trace.file.drop(FLOWS, len(events))
    else:
        trace.file.drop(f"event of phase {phase or 'unknown'!s}", len(events))


def _take_slices(trace: TraceFile, category: str, events: list[Event]) -> None:
    dur = decimal_ns([e.dur for e in events])
    if category == "python_function":
        short = (dur >= 0) & (dur < MIN_CALL_NS)
        trace.file.drop(SHORT_CALLS, int(short.sum()))
        rows = np.flatnonzero(~short)
        events, dur = [events[row] for row in rows.tolist()], dur[rows]
    start = decimal_ns([e.ts for e in events])
    keep = np.ones(len(events), bool)
    for reason, bad in (
        ("slice without a readable start", start == NULL),
        ("slice that starts before 1970 or after 2200", (start < 0) & (start != NULL) | (start > MAX_START_NS)),
        ("slice without a readable duration", dur == NULL),
        ("slice with a negative duration", (dur < 0) & (dur != NULL)),
        ("slice over a day long", dur > MAX_DUR_NS),
    ):
        trace.file.drop(reason, int((bad & keep).sum()))
        keep &= ~bad
    if not keep.all():
        events = [e for e, kept in zip(events, keep.tolist(), strict=True) if kept]
        start, dur = start[keep], dur[keep]
    if not events:
        return
    if category == "python_function":
        trace.python.add_ints(start=start, dur=dur, tid=json_ints([e.tid for e in events]))
        trace.python.add_words(name=[e.name for e in events])
        return
    pid, tid = json_ints([e.pid for e in events]), json_ints([e.tid for e in events])
    if category == "cpu_op":
        _add(trace.ops, events, start, dur, pid, tid)
        args = _args(trace, events, _OpArgs)
        trace.ops.add_ints(sequence=_ints([a.sequence for a in args]))
        trace.ops.add_words(dims=[a.dims for a in args], types=[a.types for a in args], stack=[a.stack for a in args])
    elif category:
        _add(trace.events, events, start, dur, pid, tid)
        args_q = _args(trace, events, _QueueArgs)
        trace.events.add_ints(correlation=_ints([a.correlation for a in args_q]))
        trace.events.add_words(category=[category] * len(events))
    else:
        kinds = np.array([("@" in e.name and 1) or (len(bytes(e.args)) > 2 and 2) or 0 for e in events], np.int8)
        for kind, take in ((0, _add_bare), (1, _add_calls), (2, _add_slices)):
            rows = np.flatnonzero(kinds == kind)
            if len(rows):
                picked = [events[row] for row in rows.tolist()]
                take(trace, picked, start[rows], dur[rows], pid[rows], tid[rows])


def _add(columns: Columns, events: list[Event], start: Ints, dur: Ints, pid: Ints, tid: Ints) -> None:
    columns.add_ints(start=start, dur=dur, pid=pid, tid=tid)
    columns.add_words(name=[e.name for e in events])


def _add_bare(trace: TraceFile, events: list[Event], start: Ints, dur: Ints, pid: Ints, tid: Ints) -> None:
    _add(trace.bare, events, start, dur, pid, tid)


def _add_calls(trace: TraceFile, events: list[Event], start: Ints, dur: Ints, pid: Ints, tid: Ints) -> None:
    _add(trace.calls, events, start, dur, pid, tid)
    trace.calls.add_ints(connection=_ints([a.connection for a in _args(trace, events, _CallArgs)]))


def _add_slices(trace: TraceFile, events: list[Event], start: Ints, dur: Ints, pid: Ints, tid: Ints) -> None:
    _add(trace.slices, events, start, dur, pid, tid)
    args = _args(trace, events, _SliceArgs)
    trace.slices.add_ints(
        connection=_ints([a.connection for a in args]),
        model=_ints([a.model for a in args]),
        stream=_ints([a.stream_g1 if a.stream is None else a.stream for a in args]),
        task=_ints([a.task for a in args]),
        copy_size=_ints([a.copy_size_g3 if a.copy_size is None else a.copy_size for a in args]),
        count=_ints([a.count for a in args]),
        rank_size=_ints([a.rank_size for a in args]),
        src=_ints([a.src for a in args]),
        dst=_ints([a.dst for a in args]),
        size=_ints([a.size for a in args]),
    )
    trace.slices.add_words(
        task_type=[a.task_type for a in args],
        copy_kind=[a.copy_kind or a.copy_kind_g3 for a in args],
        data_type=[a.data_type for a in args],
        algorithm=[a.algorithm for a in args],
        transport=[a.transport for a in args],
        link=[a.link for a in args],
    )


def _take_counters(trace: TraceFile, events: list[Event]) -> None:
    texts = [bytes(e.args) or b"{}" for e in events]
    try:
        args = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[dict[str, float]])
    except (msgspec.MsgspecError, RecursionError):
        args = [_numbers(text) for text in texts]
    trace.counters.add_ints(time=decimal_ns([e.ts for e in events]), pid=json_ints([e.pid for e in events]))
    trace.counters.add_words(name=[e.name for e in events], unit=[next(iter(values), None) for values in args])
    trace.counters.add_floats(value=np.array([next(iter(values.values()), np.nan) for values in args], np.float64))


def _numbers(text: bytes) -> dict[str, float]:
    try:
        values = msgspec.json.decode(text, type=dict[str, float | int | str | None])
        return {key: float(value) for key, value in values.items() if value is not None}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _take_names(trace: TraceFile, events: list[Event]) -> None:
    named = [e for e in events if e.name in ("process_name", "process_labels", "thread_name", "data_origin")]
    pids, tids = json_ints([e.pid for e in named]).tolist(), json_ints([e.tid for e in named]).tolist()
    for e, pid, tid, args in zip(named, pids, tids, _args(trace, named, _NameArgs), strict=True):
        if e.name == "process_name":
            trace.processes[pid] = args.name or ""
        elif e.name == "data_origin":
            trace.data_origin = args.name or trace.data_origin
        elif e.name == "process_labels":
            trace.labels[pid] = args.labels or ""
        else:
            trace.threads[pid, tid] = args.name or ""


def _args(trace: TraceFile, events: Sequence[Event], kind: type[_T]) -> list[_T]:
    """The args of all events in one decode; events whose args do not fit get the defaults and are counted."""
    texts = [bytes(e.args) or b"{}" for e in events]
    try:
        return msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[kind])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, RecursionError):
        result = []
        for text in texts:
            try:
                result.append(msgspec.json.decode(text, type=kind))
            except (msgspec.MsgspecError, RecursionError):
                trace.odd_args += 1
                result.append(kind())
        return result


_LIMIT: Final = 2**63 - 1


def _ints(values: Sequence[_Number]) -> Ints:
    """An int column; None, text that is no number, and what is beyond int64 are unknown."""
    try:
        return np.array([NULL if v is None else v for v in values], np.int64)
    except (OverflowError, ValueError, TypeError):
        return np.array([_int(v) for v in values], np.int64)


def _int(value: _Number) -> int:
    if value is None:
        return NULL
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return NULL
    return number if -_LIMIT <= number <= _LIMIT else NULL
