"""The graph of a rank: host threads and streams as lanes, launches, stream order, synchronisation and events as edges.

What decides the start of a task is taken in this order: work of another stream that ended right before, when its own
stream was idle and its launch long past (inferred: traces rarely hold the events); else the later of its launch and
the task before it on the stream, each with the shortest delay that was seen. The rest of the delay belongs to the one
that decides, so that replaying the graph gives the measured times.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import calls_in_steps
from ascend_perf.analyzers._idle import CLOCK_TOLERANCE_NS
from ascend_perf.analyzers._path_elements import Elements, Kind
from ascend_perf.analyzers._path_graph import Edges, End, Graph, graph_of
from ascend_perf.analyzers._path_host import Host, HostLanes, Syncs, Wait, host_of, lanes_of, syncs_of
from ascend_perf.analyzers._path_tasks import Tasks, is_of, tasks_of
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import COMM_OPS, COPIES
from ascend_perf.model.trace import Trace

NEAR_NS: Final = 10_000
"""A task that starts within this after the end of work on another stream waited for it. Status: measured: 2 to 3 us
from an all-reduce to the kernel that needs it (AlexNet, 910B)."""
MAX_DELAY_NS: Final = 50_000
"""A launch on an idle device needs no longer than this; what goes beyond has another cause. Status: assumed."""
MAX_GAP_NS: Final = 5_000
"""The same between two tasks of a stream that are both queued. Status: assumed."""
_BACK: Final = 16
"""How many tasks are looked at for the one that was waited for, from the last one that ended."""
_MIN: Final = NULL + 1


@dataclass(frozen=True, kw_only=True)
class RankPath:
    """The graph of a rank and what its instants are."""

    graph: Graph
    elements: Elements
    tasks: Tasks
    begin: Ints
    """Instant of each task's start."""
    finish: Ints
    """Instant of each task's end."""
    meet: Ints
    """Instant at which all known ranks had come to a collective, -1 where none was given."""
    main: tuple[int, int] | None
    """First instant of the main thread, and the first one after it."""
    inferred: int
    """Waits for other streams or threads that were inferred."""
    backward: int
    """Launches that seem to begin after their task: not used."""
    has_host: bool


def path_graph(trace: Trace, meet_ns: Ints | None = None) -> RankPath:
    """The graph of a rank.

    Args:
        trace: the rank.
        meet_ns: for the job: when all ranks had come to each row of comm_ops (`NULL`: not known), on this clock.

    Reads:
        kernels, comm_ops, comm_tasks, copies, host_ops, runtime_calls, host_events.

    Source:
        rivals-and-methods, method 5.8.
    """
    elements = Elements()
    calls = calls_in_steps(trace) if trace.has(COMM_OPS) else None
    tasks = tasks_of(trace, calls, elements)
    host = host_of(trace, tasks.thread[tasks.thread != NULL], elements)
    place = np.where(tasks.thread != NULL, host.place(tasks.thread), -1)
    point, backward = _launch_points(tasks, place)
    syncs = syncs_of(trace, host)
    waiting = _device_waits(tasks, place, point, syncs)
    queue = _drained(host, tasks, place, syncs)
    cuts = [
        (place[point != NULL], point[point != NULL]), (syncs.place, syncs.starts), (syncs.place, syncs.ends),
        (waiting.place, waiting.since), (waiting.place, waiting.ready),
        *((a, b) for w in (*host.waits, *queue) for a, b in ((w.src, w.at), (w.dst, w.ready))),
    ]  # fmt: skip
    idle = [
        (waiting.place, waiting.since, waiting.ready), *((w.dst, w.since, w.ready) for w in (*host.waits, *queue))
    ]  # fmt: skip
    lanes = lanes_of(host, cuts, idle, elements)
    made = _device_lanes(tasks, elements, meet_ns, len(lanes.time))
    edges = [
        Edges.of(
            lanes.instant(w.src, w.at), lanes.instant(w.dst, w.ready), w.ready - w.at,
            elements.number(Kind.UNRECORDED if w.inferred else Kind.DISPATCH),
        )
        for w in (*host.waits, *queue)
    ]  # fmt: skip
    known = np.flatnonzero(waiting.task >= 0)
    by_end = waiting.by_end[known]
    source = np.where(by_end, made.finish[waiting.task[known]], made.begin[waiting.task[known]])
    edges.append(
        Edges.of(
            source, lanes.instant(waiting.place[known], waiting.ready[known]),
            np.where(by_end, 0, waiting.ready[known] - tasks.start[waiting.task[known]]),
            tasks.element[waiting.task[known]], is_sync=True,
        )
    )  # fmt: skip
    edges.append(_device_syncs(tasks, syncs, waiting, made, lanes))
    starts, inferred = _start_edges(tasks, point, place, made, lanes, elements)
    edges += starts
    joined = Edges.concat(edges)
    time = np.concatenate((lanes.time, made.time))
    graph = graph_of(
        time, np.concatenate((lanes.head, made.head)), np.concatenate((lanes.own, made.own)),
        np.concatenate((lanes.element, made.element)),
        np.concatenate((np.full(len(lanes.time), -1), made.task)),
        joined.take((joined.src >= 0) & (joined.dst >= 0)),
    )  # fmt: skip
    main = None if host.main is None else (int(lanes.first[host.main]), int(lanes.first[host.main + 1]))
    return RankPath(
        graph=graph, elements=elements, tasks=tasks, begin=made.begin, finish=made.finish, meet=made.meet,
        main=main if main is not None and main[1] > main[0] else None, inferred=inferred + host.handoffs,
        backward=backward, has_host=bool(len(lanes.time)),
    )  # fmt: skip


_last: list[tuple[weakref.ref[Trace], RankPath]] = []


def _launch_points(tasks: Tasks, place: Ints) -> tuple[Ints, int]:
    """The instant in the launch call from which a task could start; `NULL` where unknown or after the task."""
    # A call that lasts until its copy is done handed it over at once and then waited.
    point = np.where(_blocks(tasks), tasks.launch_start, np.minimum(tasks.start, tasks.launch_end))
    point = np.minimum(tasks.start, point)
    known = (tasks.launch_start != NULL) & (place >= 0)
    late = known & (tasks.start < tasks.launch_start - CLOCK_TOLERANCE_NS)
    return np.where(known & ~late, point, NULL), int(late.sum())


def _blocks(tasks: Tasks) -> Bools:
    """Copies whose call returns after them."""
    known: Bools = is_of(tasks, COPIES) & (tasks.launch_start != NULL)
    known &= (tasks.end <= tasks.launch_end) & (tasks.end > tasks.launch_start)
    return known


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Stretches in which a host thread waits for a device task; arrays of shape (waits,)."""

    place: Ints
    since: Ints
    ready: Ints
    task: Ints
    by_end: Bools
    """It goes on when the task ends; else the task seems to end after that, by the clocks' difference."""


def _device_waits(tasks: Tasks, place: Ints, point: Ints, syncs: Syncs) -> _Waiting:
    """Waits of the host: synchronising calls, and copies whose call lasts until they are done."""
    order = np.argsort(tasks.end, kind="stable")
    ends = tasks.end[order]
    last = np.searchsorted(ends, syncs.ends, side="right") - 1
    found = np.full(len(last), -1, np.int64)
    late = np.full(len(last), -1, np.int64)
    for step in range(_BACK if len(order) else 0):
        for at, hit, above in ((last - step, found, syncs.starts), (last + 1 + step, late, syncs.ends)):
            row = order[np.clip(at, 0, len(order) - 1)]
            fits = (at >= 0) & (at < len(order)) & (hit < 0) & (tasks.issued[row] < syncs.starts)
            fits &= (tasks.end[row] > above) & (tasks.start[row] < syncs.ends)
            fits &= tasks.end[row] <= syncs.ends + CLOCK_TOLERANCE_NS
            hit[fits] = row[fits]
    by_end = found >= 0
    task = np.where(by_end, found, late)
    rows = np.flatnonzero(task >= 0)
    ready = np.where(by_end[rows], tasks.end[task[rows]], syncs.ends[rows])
    parts = [(syncs.place[rows], syncs.starts[rows], ready, task[rows], by_end[rows])]
    done = np.flatnonzero(_blocks(tasks) & (point != NULL))
    parts.append((place[done], point[done], tasks.end[done], done, np.ones(len(done), bool)))
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return _Waiting(
        place=joined[0].astype(np.int64), since=joined[1], ready=joined[2], task=joined[3],
        by_end=joined[4].astype(bool),
    )  # fmt: skip


def _drained(host: Host, tasks: Tasks, place: Ints, syncs: Syncs) -> list[Wait]:
    """Threads that wait until the launch thread of their queue has nothing left, before a synchronising call."""
    waits: list[Wait] = []
    copies = _blocks(tasks) & (place >= 0)
    thread = np.concatenate((syncs.place, place[copies]))
    starts = np.concatenate((syncs.starts, tasks.launch_start[copies]))
    ends = np.concatenate((syncs.ends, tasks.launch_end[copies]))
    for queue in sorted(host.queues):
        busy = host.busy[queue]
        if not len(busy.starts):
            continue
        for one in np.unique(thread).tolist():
            if one in host.queues:
                continue
            mine = np.flatnonzero(thread == one)
            borders = np.unique(np.concatenate((host.starts[one], host.ends[one])))
            before = np.searchsorted(borders, starts[mine], side="left") - 1
            since = np.where(before >= 0, borders[np.clip(before, 0, None)] if len(borders) else _MIN, _MIN)
            last = np.searchsorted(busy.ends, starts[mine], side="right") - 1
            at = np.clip(last, 0, None)
            following = np.append(busy.starts, np.iinfo(np.int64).max)[last + 1]
            fits = (last >= 0) & (busy.ends[at] > since) & (following >= ends[mine])
            rows = np.flatnonzero(fits)
            if len(rows):
                drained = busy.ends[at[rows]]
                waits.append(
                    Wait(
                        src=np.full(len(rows), queue), at=drained, dst=np.full(len(rows), one), since=since[rows],
                        ready=drained, inferred=True,
                    )
                )  # fmt: skip
    return waits


def _device_syncs(
    tasks: Tasks, syncs: Syncs, waiting: _Waiting, made: _DeviceLanes, lanes: HostLanes
) -> Edges:  # fmt: skip
    """A call that waits for the whole device depends on the last task of every stream, whichever ended last."""
    whole = np.flatnonzero(syncs.is_device)
    if not len(whole) or not len(tasks):
        return Edges.empty()
    # The instant at which it was ready: found among the waits, else its start.
    keys = {
        (place, since): ready
        for place, since, ready in zip(
            waiting.place.tolist(), waiting.since.tolist(), waiting.ready.tolist(), strict=True
        )
    }
    places, starts = syncs.place[whole], syncs.starts[whole]
    ready = np.array(
        [keys.get(key, key[1]) for key in zip(places.tolist(), starts.tolist(), strict=True)], np.int64
    )  # fmt: skip
    at = lanes.instant(places, ready)
    heads = np.flatnonzero(np.append(True, tasks.lane[1:] != tasks.lane[:-1]))
    parts = []
    for first, stop in zip(heads.tolist(), [*heads[1:].tolist(), len(tasks)], strict=True):
        # Tasks of a stream start in the order in which they were asked for.
        asked = np.maximum.accumulate(tasks.issued[first:stop])
        last = first + np.searchsorted(asked, starts, side="left") - 1
        fits = (last >= first) & (tasks.end[np.clip(last, first, None)] <= ready)
        parts.append(
            Edges.of(made.finish[last[fits]], at[fits], np.zeros(int(fits.sum()), np.int64), 0, is_sync=True)
        )
    return Edges.concat(parts)


@dataclass(frozen=True, kw_only=True)
class _DeviceLanes:
    time: Ints
    head: Bools
    own: Ints
    element: Ints
    task: Ints
    begin: Ints
    finish: Ints
    meet: Ints


def _device_lanes(tasks: Tasks, elements: Elements, meet_ns: Ints | None, first: int) -> _DeviceLanes:
    """The streams: start and end of each task, and between them when all ranks had come to a collective and when its
    waiting was over."""
    comm = is_of(tasks, COMM_OPS)
    met = np.full(len(tasks), NULL, np.int64)
    if meet_ns is not None and comm.any():
        met[comm] = meet_ns[tasks.row[comm]]
    is_met = (met != NULL) & (met >= tasks.start) & (met <= tasks.end)
    from_ = np.where(is_met, met, tasks.start)
    waited = np.clip(tasks.start + np.where(tasks.waits == NULL, 0, np.maximum(tasks.waits, 0)), from_, tasks.end)
    # What the sub-tasks show of waiting after all known ranks had come is for ranks that are not in the data.
    is_waited = comm & (tasks.waits != NULL) & (~is_met | (waited > from_))
    count = 2 + is_met.astype(np.int64) + is_waited
    begin = np.cumsum(count) - count
    finish = begin + count - 1
    total = int(count.sum())
    time, own = np.empty(total, np.int64), np.zeros(total, np.int64)
    element, task = np.zeros(total, np.int64), np.full(total, -1, np.int64)
    transfer, wait = _comm_elements(tasks, comm, is_met | is_waited, elements)
    time[begin], time[finish] = tasks.start, tasks.end
    own[finish] = tasks.end - np.where(is_waited, waited, from_)
    element[finish], task[finish] = transfer, np.arange(len(tasks))
    # The wait for ranks of the job is theirs: its edge has no weight, and their arrival leads here.
    for mask, at, until, weight in (
        (is_met, begin + 1, met, np.zeros(len(tasks), np.int64)),
        (is_waited, finish - 1, waited, waited - from_),
    ):
        place = at[mask]
        time[place], own[place] = until[mask], weight[mask]
        element[place], task[place] = wait[mask], np.flatnonzero(mask)
    head = np.zeros(total, bool)
    new = np.ones(len(tasks), bool)
    new[1:] = tasks.lane[1:] != tasks.lane[:-1]
    head[begin[new]] = True
    return _DeviceLanes(
        time=time, head=head, own=own, element=element, task=task, begin=begin + first, finish=finish + first,
        meet=np.where(is_met, begin + 1 + first, -1),
    )  # fmt: skip


def _comm_elements(tasks: Tasks, comm: Bools, told: Bools, elements: Elements) -> tuple[Ints, Ints]:
    """Elements of the transfer and the waiting of each task; of a collective not told apart: one for both."""
    transfer, wait = tasks.element.copy(), tasks.element.copy()
    for number in np.unique(tasks.element[comm]).tolist():
        name = elements.names[number]
        mine = comm & (tasks.element == number)
        transfer[mine & ~told] = elements.number(Kind.COMM, name)
        wait[mine] = elements.number(Kind.COMM_WAIT, name)
    return transfer, wait


def _start_edges(
    tasks: Tasks, point: Ints, place: Ints, made: _DeviceLanes, lanes: HostLanes, elements: Elements
) -> tuple[list[Edges], int]:
    """What decides the start of each task; sets the lanes' own delays in `made`."""
    n = len(tasks)
    first = np.ones(n, bool)
    first[1:] = tasks.lane[1:] != tasks.lane[:-1]
    before = np.full(n, _MIN, np.int64)
    before[1:] = np.where(first[1:], _MIN, tasks.end[:-1])
    has_launch = point != NULL
    launch = np.where(has_launch, point, _MIN)
    empty = has_launch & (launch >= before)
    delay = np.where(has_launch, tasks.start - np.where(has_launch, launch, 0), 0)
    gap = np.where(first, 0, tasks.start - np.where(first, 0, before))
    usual = empty & ~_blocks(tasks)
    shortest = _least(delay[usual], MAX_DELAY_NS)
    # Some of them waited for something else: the lower quartile is a launch's own.
    typical = int(np.quantile(delay[usual], 0.25)) if usual.any() else 0
    queued = ~first & (~has_launch | (launch + shortest <= before))
    smallest = _least(gap[queued], MAX_GAP_NS)
    by_launch = launch + np.where(has_launch, np.minimum(shortest, delay), 0)
    by_stream = before + np.where(first, 0, np.minimum(smallest, gap))
    other, other_end = _other_end(tasks, before)
    event = (other >= 0) & (other_end > np.maximum(by_launch, by_stream))
    near = tasks.start - other_end <= NEAR_NS
    event &= ~has_launch | (near & (other_end >= launch + typical))
    launched = ~event & has_launch & (by_launch > by_stream)
    stream = ~event & ~launched & ~first
    # Lane edges: the delay between two tasks is the stream's own only where the stream decides.
    follows = ~first
    at = made.begin[follows] - len(lanes.time)
    made.own[at] = np.where(stream, gap, np.minimum(smallest, gap))[follows]
    unknown, between = elements.number(Kind.UNKNOWN), elements.number(Kind.GAP)
    made.element[at] = np.where(has_launch[follows], between, unknown)
    rows = np.flatnonzero(has_launch)
    edges = [
        Edges.of(
            lanes.instant(place[rows], point[rows]), made.begin[rows],
            np.where(launched, delay, np.minimum(shortest, delay))[rows], elements.number(Kind.LAUNCH),
        )
    ]  # fmt: skip
    rows = np.flatnonzero(event)
    edges.append(
        Edges.of(
            made.finish[other[rows]], made.begin[rows], tasks.start[rows] - other_end[rows],
            np.where(near[rows], elements.number(Kind.EVENT), unknown),
        )
    )  # fmt: skip
    return edges, len(rows)


def _least(values: Ints, most: int) -> int:
    """The least of some delays; 0 where there is none, or where even that one has another cause."""
    least = int(values.min()) if len(values) else 0
    return least if least <= most else 0


def _other_end(tasks: Tasks, before: Ints) -> tuple[Ints, Ints]:
    """The task of another lane that ended last before each start, -1 where none ended after its own predecessor."""
    order = np.argsort(tasks.end, kind="stable")
    last = np.searchsorted(tasks.end[order], tasks.start, side="right") - 1
    found = np.full(len(tasks), -1, np.int64)
    for step in range(_BACK if len(tasks) else 0):
        at = last - step
        row = order[np.clip(at, 0, None)]
        fits = (found < 0) & (at >= 0) & (tasks.lane[row] != tasks.lane) & (tasks.end[row] > before)
        # Tasks of no length at the same instant wait for nothing of each other.
        fits &= tasks.start[row] < tasks.start
        found[fits] = row[fits]
    return found, np.where(found >= 0, tasks.end[np.clip(found, 0, None)], _MIN)


def rank_path(trace: Trace) -> RankPath:
    """`path_graph` of one rank, kept for the next one who asks."""
    for known, path in _last:
        if known() is trace:
            return path
    path = path_graph(trace)
    _last[:] = [(weakref.ref(trace, lambda _: _last.clear()), path)]
    return path


def end_of(path: RankPath, end_ns: int) -> tuple[End, Ints]:
    """What decides the end of a window, and an instant of each lane that the end waits for.

    A task that runs at the end (or ends there) decides it, and then the host's time of the next step does not count;
    else the main thread; else what ended last, and the rest of the window is unknown.
    """
    graph = path.graph
    unknown = path.elements.number(Kind.UNKNOWN)
    lanes = path.begin[np.flatnonzero(graph.head[path.begin])] if len(path.begin) else np.empty(0, np.int64)
    heads = np.append(np.flatnonzero(graph.head), len(graph))
    stops = heads[np.searchsorted(heads, lanes, side="right")]
    best: End | None = None
    latest = -1
    for first, stop in zip(lanes.tolist(), stops.tolist(), strict=True):
        at = first + int(np.searchsorted(graph.time[first:stop], end_ns, side="left"))
        if at < stop and at > first and graph.task[at] >= 0:
            if graph.time[at] == end_ns:
                return End(at=at, element=int(graph.element[at])), lanes
            best = best or End(at=at - 1, element=int(graph.element[at]), task=int(graph.task[at]))
        last = first + int(np.searchsorted(graph.time[first:stop], end_ns, side="right")) - 1
        if last >= first and (latest < 0 or graph.time[last] > graph.time[latest]):
            latest = last
    if best is not None:
        return best, lanes
    if path.main is not None:
        first, stop = path.main
        at = first + int(np.searchsorted(graph.time[first:stop], end_ns, side="left"))
        both = np.append(lanes, first)
        if at < stop and graph.time[at] == end_ns:
            return End(at=at, element=int(graph.element[at])), both
        if first < at < stop:
            whole = graph.own[at] == graph.time[at] - graph.time[at - 1]
            return End(at=at - 1, element=int(graph.element[at]) if whole else unknown), both
        if at >= stop > first and (latest < 0 or graph.time[stop - 1] >= graph.time[latest]):
            return End(at=stop - 1, element=unknown), both
    return End(at=max(latest, 0), element=unknown), lanes
