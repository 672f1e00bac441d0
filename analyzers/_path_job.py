"""The graph of a step over the ranks of a job: clocks aligned, and collectives that end once the last rank has come.

Each rank's step is its own graph; a matched collective adds one instant at which all of its ranks have come. Its time
is the latest start on the common clock; the waits of the earlier ranks lead to it, and from there to the late rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ascend_perf.analyzers._collectives import SYNCHRONOUS, Collectives, job_collectives
from ascend_perf.analyzers._path_build import RankPath, end_of, path_graph
from ascend_perf.analyzers._path_elements import KINDS, Elements, Kind
from ascend_perf.analyzers._path_graph import Edges, Graph, Part, graph_of, part_of
from ascend_perf.analyzers._path_peak import ideal_transfer_ns
from ascend_perf.analyzers._path_tasks import is_of
from ascend_perf.analyzers._stages import Job
from ascend_perf.analyzers._steps import StepWindows, representative, step_windows
from ascend_perf.model.finding import Words
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import COMM_OPS, KERNELS
from ascend_perf.plugins import NoData

MAX_INSTANTS: Final = 2_000_000
"""Instants of all ranks together; ranks beyond it are left out. Status: assumed, for a few hundred MB."""
_MATES: Final = {"send": "receive", "receive": "send", "batchSendRecv": "batchSendRecv"}


@dataclass(frozen=True, kw_only=True)
class JobPath:
    """The step of a job as one graph."""

    part: Part
    """`origin` is not used."""
    elements: Elements
    rank: Ints
    """Rank of each instant, -1 for those of the job."""
    ranks: tuple[int, ...]
    left_out: tuple[int, ...]
    """Ranks without kernels, without a clock tied to the others', or beyond what is followed."""
    step_id: int | None
    ideal_ns: Ints
    """Shortest transfer of each device task, `NULL` where unknown."""
    meetings: int
    """Collectives and exchanges that tie the ranks together in the step."""
    loose: int
    """Calls of these that end before the last rank came, by the aligned clocks: left untied."""
    has_host: bool


@dataclass(frozen=True, kw_only=True)
class _Meeting:
    """Members of matched calls: one entry per member; members of one call have the same number."""

    number: Ints
    place: Ints
    """Place of the rank among the views."""
    row: Ints
    """Row of comm_ops."""
    arrived: Ints
    """When the last member came, on the common clock."""
    local: Ints
    """The same on the member's clock."""
    is_tied: Bools
    """The member's call ends after that."""


def job_path(job: Job) -> JobPath:
    """The representative step of the job.

    Raises:
        NoData: fewer than two ranks have kernels and clocks that their collectives tie together.

    Source:
        rivals-and-methods, method 5.8 with its improvements.
    """
    calls = job_collectives(job)
    views = job.ranks
    places = np.arange(len(views))
    usable = calls.clocks.known(places) if len(views) else np.zeros(0, bool)
    usable &= np.array([view.trace.has(KERNELS) for view in views], bool)
    if usable.sum() < 2:
        raise NoData(
            Words("fewer than two ranks have kernels and collectives that tie their clocks together",
                  "具有 Kernel 且可由集合通信对齐时钟的卡不足两张")
        )  # fmt: skip
    chosen = np.flatnonzero(usable).tolist()
    windows = {at: step_windows(views[at].trace) for at in chosen}
    steps = _common_step(job, chosen, windows)
    meeting = _meetings(job, calls, usable)
    made: list[tuple[RankPath, Part]] = []
    used, loose, size = [], 0, 0
    for at in chosen:
        if at not in steps:
            continue
        path, part, lost = _rank(job, at, windows[at], steps[at], meeting)
        size += len(part.graph)
        if made and size > MAX_INSTANTS:
            break
        made.append((path, part))
        used.append(at)
        loose += lost
    if len(made) < 2:
        raise NoData(Words("the ranks have no step in common", "各卡没有共同的 step"))
    joined = _joined(job, calls, made, used, windows, steps, meeting)
    kept = {views[at].rank for at in used}
    return replace(joined, loose=loose, left_out=tuple(view.rank for view in views if view.rank not in kept))


def _common_step(job: Job, chosen: list[int], windows: dict[int, StepWindows]) -> dict[int, int]:
    """Index of the step to show on each rank: the representative one of the first rank, by its number."""
    first = chosen[0]
    shown = representative(job.ranks[first].trace, windows[first])
    if shown is None:
        raise NoData(Words("the first rank has no steps", "首张卡没有 step"))
    wanted = windows[first].step_id(shown)
    found: dict[int, int] = {}
    for at in chosen:
        mine = windows[at]
        if wanted is None:
            if len(mine) > shown:
                found[at] = shown
        elif len(rows := np.flatnonzero(mine.ids == wanted)):
            found[at] = int(rows[0])
    return found


def _meetings(job: Job, calls: Collectives, usable: Bools) -> _Meeting:
    """Collectives that no rank leaves before all have come, and exchanges of two ranks, of ranks that can be used."""
    owner = calls.owner
    synchronous = np.array([op in SYNCHRONOUS for op in calls.op], bool)
    use = np.flatnonzero(synchronous[owner] & usable[calls.place]) if len(calls) else np.empty(0, np.int64)
    number, place, position = owner[use], calls.place[use], calls.row[use]
    extra = _exchanges(job, calls, usable)
    number = np.append(number, len(calls) + extra[0])
    place, position = np.append(place, extra[1]), np.append(position, extra[2])
    row = np.empty(len(place), np.int64)
    starts, ends = np.empty(len(place), np.int64), np.empty(len(place), np.int64)
    for at in np.unique(place).tolist():
        mine = place == at
        table = job.ranks[at].calls
        row[mine] = table.rows[position[mine]]
        # Whole calls, also where they leave their step.
        starts[mine] = table.table.ints("start_ns")[position[mine]]
        ends[mine] = table.table.ends_ns()[position[mine]]
    order = np.lexsort((place, number))
    number, place, row, starts, ends = (column[order] for column in (number, place, row, starts, ends))
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else np.empty(0, np.int64)
    counts = np.diff(np.append(first, len(number)))
    begin = calls.clocks.aligned(place, starts)
    arrived = np.repeat(np.maximum.reduceat(begin, first), counts) if len(first) else begin
    local = starts + (arrived - begin)
    several = np.repeat(counts > 1, counts)
    tied = several & (local <= ends)
    return _Meeting(
        number=number[several], place=place[several], row=row[several], arrived=arrived[several],
        local=local[several], is_tied=tied[several],
    )  # fmt: skip


def _exchanges(job: Job, calls: Collectives, usable: Bools) -> tuple[Ints, Ints, Ints]:
    """Number, place and position of point-to-point calls: the k-th send of one rank is the k-th receive of the other.

    Only where both ranks have equally many.
    """
    places = {view.rank: at for at, view in enumerate(job.ranks)}
    rows: dict[tuple[int, int, str], Ints] = {}
    for at, view in enumerate(job.ranks):
        ops = view.calls.table.text("op")
        for peer in np.unique(calls.peers[at][calls.peers[at] >= 0]).tolist():
            to = places.get(peer)
            if to is None or not usable[at] or not usable[to]:
                continue
            for op in _MATES:
                mine = np.flatnonzero((calls.peers[at] == peer) & ops.equals(op))
                rows[at, to, op] = mine[np.argsort(view.calls.starts[mine], kind="stable")]
    number, place, position = [], [], []
    count = 0
    for (at, to, op), mine in sorted(rows.items()):
        others = rows.get((to, at, _MATES[op]))
        if at > to or others is None or len(others) != len(mine) or not len(mine):
            continue
        number.append(np.tile(np.arange(count, count + len(mine)), 2))
        place.append(np.repeat([at, to], len(mine)))
        position.append(np.concatenate((mine, others)))
        count += len(mine)
    none = np.empty(0, np.int64)
    return np.concatenate([none, *number]), np.concatenate([none, *place]), np.concatenate([none, *position])


def _rank(job: Job, at: int, windows: StepWindows, step: int, meeting: _Meeting) -> tuple[RankPath, Part, int]:
    """The graph of a rank's step, with an instant in each tied call at which all had come."""
    trace = job.ranks[at].trace
    meet = np.full(len(trace[COMM_OPS]), NULL, np.int64)
    mine = (meeting.place == at) & meeting.is_tied
    meet[meeting.row[mine]] = meeting.local[mine]
    path = path_graph(trace, meet)
    start, end = windows.window(step)
    last, lanes = end_of(path, end)
    part = part_of(path.graph, start, end, last, lanes, path.elements.number(Kind.UNKNOWN))
    return path, part, int(((meeting.place == at) & ~meeting.is_tied).sum())


def _joined(
    job: Job, calls: Collectives, made: list[tuple[RankPath, Part]], used: list[int],
    windows: dict[int, StepWindows], steps: dict[int, int], meeting: _Meeting,
) -> JobPath:  # fmt: skip
    elements = Elements()
    unknown = elements.number(Kind.UNKNOWN)
    times, owns, heads, names, tasks, ranks, edges, ideals = [], [], [], [], [], [], [], []
    offset, task_offset = 1, 0
    sources, sinks = [], []
    starts_of: list[tuple[Ints, Ints, Ints]] = []
    """Per rank: numbers of meetings, instants of its arrival, and instants at which all had come (-1: not tied)."""
    for (path, part), at in zip(made, used, strict=True):
        graph = part.graph
        start, _ = windows[at].window(steps[at])
        local = graph.time + start
        time = calls.clocks.aligned(np.full(len(local), at), local)
        begin, met, number, arrived = _members(path, part, at, meeting)
        tied = met >= 0
        time[met[tied]] = arrived[tied]
        # Clocks that drift may put neighbours out of order by a few ns.
        time = _rising(time, graph.head)
        mapped = _mapped(path.elements, elements)
        previous = np.arange(-1, len(time) - 1)
        gap = np.where(graph.head, 0, time - time[previous])
        tight = ~graph.head & (graph.own == np.where(graph.head, 0, graph.time - graph.time[previous]))
        own = np.where(tight, gap, np.minimum(graph.own, gap))
        own[met[tied]] = 0
        cross = graph.cross
        span = graph.time[cross.dst] - graph.time[cross.src]
        now = time[cross.dst] - time[cross.src]
        edges.append(
            replace(
                cross, src=cross.src + offset, dst=cross.dst + offset, element=mapped[cross.element],
                weight=np.where(cross.weight == span, now, cross.weight),
            )
        )  # fmt: skip
        times.append(time)
        owns.append(own)
        heads.append(graph.head)
        names.append(mapped[graph.element])
        tasks.append(np.where(graph.task >= 0, graph.task + task_offset, -1))
        ranks.append(np.full(len(time), job.ranks[at].rank))
        ideals.append(_ideal(job, at, path, part))
        sources.append(offset)
        sinks.append(offset + part.sink)
        starts_of.append((number, begin + offset, np.where(tied, met + offset, -1)))
        offset += len(time)
        task_offset += max(1, len(path.tasks))
    number = np.concatenate([entry[0] for entry in starts_of])
    begin = np.concatenate([entry[1] for entry in starts_of])
    met = np.concatenate([entry[2] for entry in starts_of])
    origin = min(int(time[0]) for time in times)
    end = max(int(time[-1]) for time in times)
    local_time = np.concatenate([np.array([origin]), *times])
    # One instant per meeting that two ranks have in this step, at its latest arrival.
    several, index, counts = np.unique(number, return_inverse=True, return_counts=True)
    index = index.reshape(-1)
    hub_of = np.full(len(several), -1, np.int64)
    shared = counts > 1
    hub_of[shared] = offset + np.arange(int(shared.sum()))
    latest = np.full(len(several), NULL, np.int64)
    np.maximum.at(latest, index, local_time[begin])
    mine = shared[index]
    hubs = int(shared.sum())
    edges.append(Edges.of(begin[mine], hub_of[index[mine]], np.zeros(int(mine.sum()), np.int64), unknown))
    tied = mine & (met >= 0)
    edges.append(Edges.of(hub_of[index[tied]], met[tied], np.zeros(int(tied.sum()), np.int64), unknown))
    sink = offset + hubs
    edges.append(
        Edges.of(np.zeros(len(sources), np.int64), np.array(sources), local_time[sources] - origin,
                 elements.number(Kind.BEFORE))
    )  # fmt: skip
    edges.append(Edges.of(np.array(sinks), np.full(len(sinks), sink), np.zeros(len(sinks), np.int64), unknown))
    extra = np.full(hubs + 1, unknown)
    graph = graph_of(
        np.concatenate((local_time, latest[shared], [end])) - origin,
        np.concatenate([[True], *heads, np.ones(hubs + 1, bool)]),
        np.concatenate([[0], *owns, np.zeros(hubs + 1, np.int64)]),
        np.concatenate([[unknown], *names, extra]),
        np.concatenate([[-1], *tasks, np.full(hubs + 1, -1)]),
        Edges.concat(edges),
    )  # fmt: skip
    return JobPath(
        part=Part(graph=graph, origin=np.full(len(graph), -1)), elements=elements,
        rank=np.concatenate([[-1], *ranks, np.full(hubs + 1, -1)]).astype(np.int64),
        ranks=tuple(job.ranks[at].rank for at in used), left_out=(),
        step_id=windows[used[0]].step_id(steps[used[0]]), ideal_ns=np.concatenate(ideals), meetings=hubs, loose=0,
        has_host=any(path.has_host for path, _ in made),
    )  # fmt: skip


def _members(path: RankPath, part: Part, at: int, meeting: _Meeting) -> tuple[Ints, Ints, Ints, Ints]:
    """Of a rank's calls in the step: instants of arrival and of the meeting (-1: not tied), number, meeting's time."""
    comm = np.flatnonzero(is_of(path.tasks, COMM_OPS))
    rows = int(path.tasks.row[comm].max()) + 1 if len(comm) else 0
    task_of = np.full(rows + 1, -1, np.int64)
    task_of[path.tasks.row[comm]] = comm
    place = np.full(len(path.graph) + 1, -1, np.int64)
    inside = np.flatnonzero(part.origin >= 0)
    place[part.origin[inside]] = inside
    mine = np.flatnonzero(meeting.place == at)
    task = task_of[np.clip(meeting.row[mine], 0, rows)]
    mine, task = mine[task >= 0], task[task >= 0]
    begin = place[path.begin[task]]
    met = np.where(path.meet[task] >= 0, place[path.meet[task]], -1)
    here = begin >= 0
    return begin[here], met[here], meeting.number[mine[here]], meeting.arrived[mine[here]]


def _rising(time: Ints, head: Bools) -> Ints:
    """Times that never fall along a lane."""
    if not len(time):
        return time
    lane = np.cumsum(head) - 1
    low = int(time.min())
    span = int(time.max()) - low + 1
    if span * (int(lane[-1]) + 1) >= 1 << 62:
        return time
    return np.asarray(np.maximum.accumulate(time - low + lane * span) - lane * span + low, np.int64)


def _mapped(own: Elements, all_: Elements) -> Ints:
    return np.array(
        [
            all_.number(KINDS[kind], name, of_class)
            for kind, name, of_class in zip(own.kinds, own.names, own.classes, strict=True)
        ],
        np.int64,
    )  # fmt: skip


def _ideal(job: Job, at: int, path: RankPath, part: Part) -> Ints:
    ideal = np.full(max(1, len(path.tasks)), NULL, np.int64)
    here = np.unique(part.graph.task[part.graph.task >= 0])
    calls = here[is_of(path.tasks, COMM_OPS)[here]] if len(here) else here
    ideal[calls] = ideal_transfer_ns(job.ranks[at].trace, path.tasks.row[calls])
    return ideal


def job_graph(path: JobPath) -> Graph:
    """The graph of the step; times count from its start."""
    return path.part.graph
