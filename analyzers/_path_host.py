"""Threads of the host as lanes of the path: what each did when, and which one waited for which.

A lane is the innermost recorded event at each instant; where nothing is recorded the time is the thread's own all the
same (Python, or waiting for what the profile does not show). Waits that the events imply are edges: the launch thread
of a task queue waits for the thread that enqueues, a thread that did nothing while another one worked through whole
operators waits for its end (autograd), a synchronising call waits until the queue thread has launched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import is_sync
from ascend_perf.analyzers._path_elements import Elements, Kind
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace

MIN_HANDOFF_NS: Final = 50_000
"""A thread that pauses for less is not said to wait for another one. Status: assumed."""
NO_THREAD: Final = -1
"""Lane of launches whose thread no table tells."""
MAX_THREADS: Final = 64
"""Threads of the host that are followed, the busiest first."""

_KINDS: Final = {
    "dataloader": Kind.DATALOADER, "python": Kind.PYTHON, "user": Kind.PYTHON, "gc": Kind.PYTHON,
    "optimizer": Kind.PYTHON, "enqueue": Kind.DISPATCH, "dequeue": Kind.DISPATCH, "sync": Kind.SYNC,
}  # fmt: skip
_WAITING: Final = re.compile("synchronize", re.IGNORECASE)
_DEVICE: Final = re.compile("devicesynchronize|synchronizedevice", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Thread `dst` does nothing of its own from `since` to `ready`, which is when `src` gets to `at`.

    Arrays of shape (waits,); `since` = `ready`: the edge is there, but the thread was not held up.
    """

    src: Ints
    at: Ints
    dst: Ints
    since: Ints
    ready: Ints
    inferred: bool


@dataclass
class Host:
    """The followed threads of a rank; each list has one entry per thread."""

    threads: list[int]
    main: int | None
    """The thread of the steps, as a place in `threads`."""
    starts: list[Ints]
    ends: list[Ints]
    element: list[Ints]
    """Recorded events of each thread: interval and element."""
    busy: list[IntervalSet]
    """When each thread is in something other than Python."""
    waits: list[Wait] = field(default_factory=list)
    handoffs: int = 0
    """Waits of a thread for another that were inferred."""
    queues: set[int] = field(default_factory=set)
    """Places of threads that only launch what others enqueue."""

    def place(self, thread: Ints) -> Ints:
        """Place of each thread number, -1 where it is not followed."""
        known = {number: at for at, number in enumerate(self.threads)}
        (numbers,), index = distinct(thread)
        return np.array([known.get(number, -1) for number in numbers.tolist()], np.int64)[index]


def host_of(trace: Trace, launching: Ints, elements: Elements) -> Host:
    """The threads of a rank that have operators, launch, enqueue or hold the steps.

    Args:
        trace: the rank.
        launching: threads of launches, `NO_THREAD` among them where some are not known.
        elements: gets what the threads do.

    Reads:
        host_ops, runtime_calls, host_events: start_ns, dur_ns, name or api, kind, thread, correlation.
    """
    ops, calls, events = trace[HOST_OPS], trace[RUNTIME_CALLS], trace[HOST_EVENTS]
    kinds = events.text("kind")
    queue_rows = kinds.isin({"enqueue", "dequeue"})
    wanted = np.concatenate((
        launching, ops.ints("thread"), events.ints("thread")[queue_rows | kinds.equals("step")],
    ))  # fmt: skip
    numbers, counts = np.unique(wanted[wanted != NULL], return_counts=True)
    numbers = np.sort(numbers[np.argsort(-counts, kind="stable")[:MAX_THREADS]])
    host = Host(threads=numbers.tolist(), main=None, starts=[], ends=[], element=[], busy=[])
    rows = _recorded(ops, calls, events, elements)
    place = host.place(rows[3])
    order = np.argsort(place, kind="stable")
    borders = np.searchsorted(place[order], np.arange(len(numbers) + 1))
    for at in range(len(numbers)):
        mine = order[borders[at] : borders[at + 1]]
        starts, ends, element = (column[mine] for column in rows[:3])
        host.starts.append(starts)
        host.ends.append(ends)
        host.element.append(element)
        work = rows[4][mine]
        host.busy.append(intervals.merged(starts[work], ends[work]))
    host.main = _main_thread(host, events)
    host.queues = {at for at in host.place(events.ints("thread")[kinds.equals("dequeue")]).tolist() if at >= 0}
    _queue_waits(host, events)
    _handoffs(host, ops)
    return host


def _recorded(ops: Table, calls: Table, events: Table, elements: Elements) -> tuple[Ints, Ints, Ints, Ints, Bools]:
    """Start, end, element and thread of all events of the host, and which are other than Python."""
    kinds = events.text("kind")
    columns: list[tuple[Ints, Ints, Ints, Ints, Bools]] = []
    for table, name, kind_of in ((ops, "name", None), (calls, "api", "call"), (events, "name", "event")):
        text = table.text(name)
        starts, ends, threads = table.ints("start_ns"), table.ends_ns(), table.ints("thread")
        known = (starts != NULL) & (ends != NULL) & (threads != NULL) & (ends >= starts)
        names = [value[:200] for value in text.values]
        if kind_of == "event":
            known &= ~kinds.equals("step")
            pairs, index = distinct(kinds.codes, text.codes)
            numbers = np.array(
                [
                    elements.number(_KINDS.get(kinds.values[k] if k >= 0 else "", Kind.PYTHON), _shown(names, n))
                    for k, n in pairs.T.tolist()
                ],
                np.int64,
            )[index] if len(table) else np.empty(0, np.int64)  # fmt: skip
            work = ~kinds.isin({"python", "user", "optimizer"})
        else:
            waits = [bool(kind_of) and bool(_WAITING.search(value)) for value in names]
            table_of = np.array(
                [
                    *(
                        elements.number(Kind.SYNC if wait else Kind.DISPATCH, value)
                        for value, wait in zip(names, waits, strict=True)
                    ),
                    elements.number(Kind.DISPATCH),
                ],
                np.int64,
            )  # fmt: skip
            numbers = table_of[text.codes]
            work = np.ones(len(table), bool)
        columns.append((starts[known], ends[known], numbers[known], threads[known], work[known]))
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    return joined[0], joined[1], joined[2], joined[3], joined[4].astype(bool)


def _shown(names: list[str], code: int) -> str:
    return names[code] if code >= 0 else ""


def _main_thread(host: Host, events: Table) -> int | None:
    steps = host.place(events.ints("thread")[events.text("kind").equals("step")])
    steps = steps[steps >= 0]
    if len(steps) and len(host.starts[int(np.bincount(steps).argmax())]):
        return int(np.bincount(steps).argmax())
    lengths = [intervals.total(busy) if at >= 0 else 0 for at, busy in enumerate(host.busy)]
    return int(np.argmax(lengths)) if lengths and max(lengths) > 0 else None


def _queue_waits(host: Host, events: Table) -> None:
    """The launch thread takes what another thread has put into the queue: dequeue after its enqueue."""
    kinds, ids = events.text("kind"), events.ints("correlation")
    starts, ends, threads = events.ints("start_ns"), events.ends_ns(), events.ints("thread")
    usable = (starts != NULL) & (ends != NULL) & (threads != NULL) & (ids != NULL)
    put, take = np.flatnonzero(kinds.equals("enqueue") & usable), np.flatnonzero(kinds.equals("dequeue") & usable)
    if not len(put) or not len(take):
        return
    put = put[np.argsort(ids[put], kind="stable")]
    found = np.clip(np.searchsorted(ids[put], ids[take]), 0, len(put) - 1)
    take, found = take[ids[put][found] == ids[take]], found[ids[put][found] == ids[take]]
    put = put[found]
    src, dst = host.place(threads[put]), host.place(threads[take])
    at = np.minimum(ends[put], starts[take])
    good = (src >= 0) & (dst >= 0) & (src != dst) & (starts[put] <= starts[take])
    src, dst, at, ready = src[good], dst[good], at[good], starts[take][good]
    since = _free_since(host, dst, ready)
    held = since < at
    host.waits.append(
        Wait(
            src=src, at=at, dst=dst, since=np.where(held, since, ready), ready=np.where(held, at, ready),
            inferred=False,
        )
    )  # fmt: skip


def _free_since(host: Host, place: Ints, at: Ints) -> Ints:
    """End of what each thread was in before an instant at which it begins something else."""
    since = np.full(len(place), NULL + 1, np.int64)
    for one in np.unique(place).tolist():
        mine, busy = place == one, host.busy[one]
        before = np.searchsorted(busy.starts, at[mine], side="left") - 1
        if len(busy.starts):
            since[mine] = np.where(before >= 0, np.minimum(busy.ends[np.clip(before, 0, None)], at[mine]), NULL + 1)
    return since


def _handoffs(host: Host, ops: Table) -> None:
    """A thread that paused while another worked through operators goes on when that one is done (autograd)."""
    has_ops = set(host.place(np.unique(ops.ints("thread"))).tolist()) - {-1} - host.queues
    for dst in sorted(has_ops):
        busy = host.busy[dst]
        if not len(busy.starts):
            continue
        since = np.append(NULL + 1, busy.ends[:-1])
        begin = busy.starts
        long = (since == NULL + 1) | (begin - since >= MIN_HANDOFF_NS)
        best, source = np.full(len(begin), NULL, np.int64), np.full(len(begin), -1, np.int64)
        for src in sorted(has_ops - {dst}):
            other = host.busy[src]
            if not len(other.starts):
                continue
            last = np.searchsorted(other.ends, begin, side="right") - 1
            at = np.clip(last, 0, None)
            fits = long & (last >= 0) & (other.starts[at] >= since) & (other.ends[at] > best)
            best, source = np.where(fits, other.ends[at], best), np.where(fits, src, source)
        rows = np.flatnonzero(source >= 0)
        if len(rows):
            host.handoffs += len(rows)
            host.waits.append(
                Wait(
                    src=source[rows], at=best[rows], dst=np.full(len(rows), dst), since=since[rows], ready=best[rows],
                    inferred=True,
                )
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Syncs:
    """Calls by which a thread waits for the device; arrays of shape (calls,)."""

    place: Ints
    starts: Ints
    ends: Ints
    is_device: Bools
    """They wait for all streams."""


def syncs_of(trace: Trace, host: Host) -> Syncs:
    """The synchronising calls on followed threads. Reads runtime_calls."""
    calls = trace[RUNTIME_CALLS]
    starts, ends = calls.ints("start_ns"), calls.ends_ns()
    rows = np.flatnonzero(is_sync(calls) & (starts != NULL) & (ends != NULL))
    place = host.place(calls.ints("thread")[rows])
    rows, place = rows[place >= 0], place[place >= 0]
    whole = calls.text("api").flags(lambda api: bool(_DEVICE.search(api)))
    return Syncs(place=place, starts=starts[rows], ends=ends[rows], is_device=whole[rows])


@dataclass(frozen=True, kw_only=True)
class HostLanes:
    """The threads as lanes of a graph; instants of thread `i` are [first[i], first[i + 1])."""

    time: Ints
    head: Bools
    own: Ints
    element: Ints
    first: Ints

    def instant(self, place: Ints, at: Ints) -> Ints:
        """Number of the instant of a thread at a time that is one of its borders; -1 where it is none."""
        result = np.full(len(place), -1, np.int64)
        for one in np.unique(place).tolist():
            mine = np.flatnonzero(place == one)
            low, high = int(self.first[one]), int(self.first[one + 1])
            if high > low:
                found = low + np.searchsorted(self.time[low:high], at[mine])
                fits = (found < high) & (self.time[np.clip(found, low, high - 1)] == at[mine])
                result[mine] = np.where(fits, found, -1)
        return result


def lanes_of(host: Host, cuts: list[tuple[Ints, Ints]], idle: list[tuple[Ints, Ints, Ints]], elements: Elements
             ) -> HostLanes:  # fmt: skip
    """The threads' innermost events as lanes.

    Args:
        host: the threads.
        cuts: (place, time) of further instants.
        idle: (place, start, end) in which a thread does nothing of its own.
        elements: for the element of unrecorded time.
    """
    nothing = elements.number(Kind.UNRECORDED)
    times, heads, owns, names, first = [], [], [], [], [0]
    for at in range(len(host.threads)):
        starts, ends, element = host.starts[at], host.ends[at], host.element[at]
        borders = np.sort(np.concatenate([starts, ends, *(time[place == at] for place, time in cuts)]), kind="stable")
        # Joined runs sort fast; `np.unique` would hash them first.
        borders = borders[np.append(True, borders[1:] != borders[:-1])[: len(borders)]]
        first.append(first[-1] + len(borders))
        if not len(borders):
            continue
        inner = intervals.enclosing(starts, ends, borders[:-1])
        label = np.where(inner >= 0, element[np.clip(inner, 0, None)], nothing) if len(element) else np.full(
            len(borders) - 1, nothing
        )  # fmt: skip
        own = np.diff(borders)
        parts = [
            intervals.merged(np.maximum(a[place == at], borders[0]), b[place == at]) for place, a, b in idle
        ]
        free = intervals.union(*parts) if parts else EMPTY
        if len(free.starts):
            own = own - intervals.covered(free, borders[:-1], borders[1:])
        times.append(borders)
        heads.append(np.arange(len(borders)) == 0)
        owns.append(np.append(0, own))
        names.append(np.append(nothing, label))
    none = np.empty(0, np.int64)
    return HostLanes(
        time=np.concatenate([none, *times]), head=np.concatenate([none.astype(bool), *heads]),
        own=np.concatenate([none, *owns]), element=np.concatenate([none, *names]).astype(np.int64),
        first=np.array(first, np.int64),
    )  # fmt: skip
