"""A schedule as a graph of instants: which instant each one waits for, the path that decides, and changed durations.

An instant is the start or the end of something. Instants of one lane (a host thread, a stream) lie one after the other;
the edge between neighbours is the lane's own work, and it can be shorter than the time between them: then the later
one waited for another lane (a cross edge). An instant is the latest of (earlier instant + weight) over its edges, as in
a max-plus recurrence. As weights never exceed what was measured and one edge of each instant meets it exactly, the
longest path to an instant is as long as what was measured, and replaying the graph gives the measured times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ascend_perf.model.table import Bools, Ints

NEVER: Final = -(1 << 60)
"""Weight of an edge that is not there; far below every time, and sums of a few of them stay inside int64."""
MAX_ROUNDS: Final = 64
"""Edges between instants of equal time that need more rounds than this to be ordered are left out. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Cross edges; arrays of shape (edges,)."""

    src: Ints
    dst: Ints
    weight: Ints
    element: Ints
    """What the time of the edge is: number of an element."""
    is_sync: Bools
    """The host waits for the device by it."""

    @classmethod
    def empty(cls) -> Edges:
        """No edges."""
        none = np.empty(0, np.int64)
        return cls(src=none, dst=none, weight=none, element=none, is_sync=np.empty(0, bool))

    @classmethod
    def of(cls, src: Ints, dst: Ints, weight: Ints, element: Ints | int, *, is_sync: bool = False) -> Edges:
        """Edges of one kind."""
        return cls(
            src=np.asarray(src, np.int64), dst=np.asarray(dst, np.int64), weight=np.asarray(weight, np.int64),
            element=np.broadcast_to(np.asarray(element, np.int64), np.shape(src)).copy(),
            is_sync=np.full(len(src), is_sync),
        )  # fmt: skip

    @classmethod
    def concat(cls, parts: list[Edges]) -> Edges:
        """All edges of the parts."""
        if not parts:
            return cls.empty()
        return cls(
            src=np.concatenate([p.src for p in parts]), dst=np.concatenate([p.dst for p in parts]),
            weight=np.concatenate([p.weight for p in parts]), element=np.concatenate([p.element for p in parts]),
            is_sync=np.concatenate([p.is_sync for p in parts]),
        )  # fmt: skip

    def take(self, rows: Bools | Ints) -> Edges:
        """The selected edges."""
        return Edges(
            src=self.src[rows], dst=self.dst[rows], weight=self.weight[rows], element=self.element[rows],
            is_sync=self.is_sync[rows],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Instants, lane after lane and in order of time inside a lane; arrays of shape (instants,)."""

    time: Ints
    """Measured, ns."""
    head: Bools
    """First instant of its lane."""
    own: Ints
    """Weight of the edge from the instant before on the lane; 0 at heads."""
    element: Ints
    """What that edge is: number of an element."""
    task: Ints
    """Device task whose time that edge is, -1 where it is none."""
    cross: Edges
    order: Ints
    """Place of each instant in an order in which every edge leads forward."""
    bind: Ints
    """The instant that decides when this one is; -1 where nothing does."""
    bind_element: Ints
    """Element of the edge from there."""

    def __len__(self) -> int:
        return len(self.time)


def graph_of(time: Ints, head: Bools, own: Ints, element: Ints, task: Ints, cross: Edges) -> Graph:
    """The graph of measured instants.

    Weights are cut to the measured distance. Cross edges that lead back in time, or that close a circle of instants of
    equal time, are left out. An instant whose edges all fall short of it gets the whole distance as its lane's own.
    """
    previous = np.arange(-1, len(time) - 1)
    gap = np.where(head, 0, time - time[previous]) if len(time) else time
    own = np.clip(own, 0, gap)
    cross = cross.take(time[cross.src] <= time[cross.dst])
    order, cross = _ordered(time, head, cross)
    span = time[cross.dst] - time[cross.src]
    cross = replace(cross, weight=np.clip(cross.weight, 0, span))
    is_lane = ~head & (own == gap)
    bind = np.where(is_lane, previous, -1)
    tight = np.flatnonzero((cross.weight == span) & ~is_lane[cross.dst])
    # Of several that decide, the source that came last: numpy keeps the last of repeated assignments.
    tight = tight[np.argsort(order[cross.src[tight]], kind="stable")]
    bind_element = element.copy()
    bind[cross.dst[tight]] = cross.src[tight]
    bind_element[cross.dst[tight]] = cross.element[tight]
    loose = (bind < 0) & ~head
    own = np.where(loose, gap, own)
    bind = np.where(loose, previous, bind)
    return Graph(
        time=time, head=head, own=own, element=element, task=task, cross=cross, order=order, bind=bind,
        bind_element=bind_element,
    )  # fmt: skip


def _ordered(time: Ints, head: Bools, cross: Edges) -> tuple[Ints, Edges]:
    """An order of the instants in which all edges lead forward, and the edges that it holds for."""
    at = np.arange(len(time))
    same = np.zeros(len(time), bool)
    same[1:] = ~head[1:] & (time[1:] == time[:-1])
    # Place in a run of equal times on a lane.
    start = np.maximum.accumulate(np.where(same, 0, at)) if len(at) else at
    first = at - start
    equal = time[cross.src] == time[cross.dst]
    lane = np.flatnonzero(same)
    a = np.concatenate((lane - 1, cross.src[equal]))
    b = np.concatenate((lane, cross.dst[equal]))
    level = first.copy()
    for _ in range(MAX_ROUNDS):
        new = level.copy()
        np.maximum.at(new, b, level[a] + 1)
        if np.array_equal(new, level):
            break
        level = new
    else:
        level, cross = first, cross.take(~equal)
    order = np.empty(len(time), np.int64)
    order[np.lexsort((at, level, time))] = at
    return order, cross


def walk(graph: Graph, end: int, until_ns: int) -> Ints:
    """The instants on the path that decides `end`, the latest first, down to the first at or before `until_ns`."""
    bind, time = graph.bind, graph.time
    path = [end]
    at = end
    # One step per element of the path; every edge leads back in the order, so it ends.
    while time[at] > until_ns and bind[at] >= 0:
        at = int(bind[at])
        path.append(at)
    return np.array(path, np.int64)


@dataclass(frozen=True, kw_only=True)
class End:
    """Where the path of a window begins its way back: at an instant, and what lies between it and the window's end."""

    at: int
    element: int
    task: int = -1


@dataclass(frozen=True, kw_only=True)
class Part:
    """The graph of one window: instant 0 is its start, the last one its end, the others are instants of the whole.

    Times count from the start of the window.
    """

    graph: Graph
    origin: Ints
    """Number of each instant in the whole graph; -1 for start and end."""

    @property
    def sink(self) -> int:
        """The end of the window."""
        return len(self.graph) - 1


def part_of(graph: Graph, start_ns: int, end_ns: int, end: End, ends: Ints, unknown: int) -> Part:
    """The graph inside of [start_ns, end_ns): what crosses a border is cut there.

    Args:
        graph: the whole.
        start_ns: start of the window.
        end_ns: its end.
        end: what decides the end of the window.
        ends: instants whose lanes must have ended for the window to end: any instant of each such lane.
        unknown: element of time of which nothing is known.
    """
    inside = (graph.time >= start_ns) & (graph.time <= end_ns)
    # Zero-length work of an earlier window at the very border stays: it costs nothing.
    rows = np.flatnonzero(inside)
    number = np.full(len(graph) + 1, -1, np.int64)
    number[rows] = np.arange(1, len(rows) + 1)
    sink = len(rows) + 1
    previous = rows - 1
    is_head = graph.head[rows] | (number[previous] < 0)
    time = np.concatenate(([0], graph.time[rows] - start_ns, [end_ns - start_ns]))
    head = np.concatenate(([True], is_head, [True]))
    own = np.concatenate(([0], np.where(is_head, 0, graph.own[rows]), [0]))
    element = np.concatenate(([unknown], graph.element[rows], [unknown]))
    task = np.concatenate(([-1], graph.task[rows], [-1]))
    cross = graph.cross.take(inside[graph.cross.dst])
    from_inside = inside[cross.src]
    edges = [
        replace(cross.take(from_inside), src=number[cross.src[from_inside]], dst=number[cross.dst[from_inside]])
    ]
    crossing = cross.take(~from_inside)
    edges.append(
        replace(
            crossing, src=np.zeros(len(crossing), np.int64), dst=number[crossing.dst],
            weight=np.maximum(0, graph.time[crossing.src] + crossing.weight - start_ns),
        )
    )  # fmt: skip
    cut = rows[is_head & ~graph.head[rows]]
    edges.append(
        Edges.of(
            np.zeros(len(cut), np.int64), number[cut], np.maximum(0, graph.time[cut - 1] + graph.own[cut] - start_ns),
            graph.element[cut],
        )
    )  # fmt: skip
    bare = rows[graph.bind[rows] < 0]
    edges.append(Edges.of(np.zeros(len(bare), np.int64), number[bare], graph.time[bare] - start_ns, unknown))
    edges.append(_to_sink(graph, number, sink, ends, end_ns))
    if number[end.at] > 0:
        edges.append(
            Edges.of(np.array([number[end.at]]), np.array([sink]), np.array([end_ns - graph.time[end.at]]), end.element)
        )
    else:  # nothing inside of the window, or one piece of work that covers it
        edges.append(Edges.of(np.array([0]), np.array([sink]), np.array([end_ns - start_ns]), end.element))
    return Part(
        graph=graph_of(time, head, own, element, task, Edges.concat(edges)),
        origin=np.concatenate(([-1], rows, [-1])),
    )  # fmt: skip


def _to_sink(graph: Graph, number: Ints, sink: int, ends: Ints, end_ns: int) -> Edges:
    """Edges from the last instants of lanes that the end of the window waits for, with what runs across it."""
    if not len(ends):
        return Edges.empty()
    heads = np.flatnonzero(graph.head)
    lanes = np.unique(np.searchsorted(heads, ends, side="right") - 1)
    first, stop = heads[lanes], np.append(heads, len(graph))[lanes + 1]
    last = np.array(
        [a + np.searchsorted(graph.time[a:b], end_ns, side="right") - 1 for a, b in zip(first, stop, strict=True)],
        np.int64,
    )
    known = (last >= first) & (number[last] > 0)
    last, stop = last[known], stop[known]
    over = np.minimum(last + 1, stop - 1)
    runs = (over > last) & (graph.task[over] >= 0)
    weight = np.where(runs, np.minimum(graph.own[over], end_ns - graph.time[last]), 0)
    return Edges.of(number[last], np.full(len(last), sink), weight, graph.element[over])


def longest(graph: Graph, own: Ints, weight: Ints, at: Ints | None = None) -> Ints:
    """When each instant is, for several sets of weights at once; `NEVER` and below: not reached.

    Args:
        graph: its structure; heads without cross edges are at 0.
        own: weights of the lanes' edges, shape (instants, sets).
        weight: weights of the cross edges, shape (edges, sets); `NEVER` takes an edge away.
        at: instants that are asked for; all when None.

    Returns:
        ns, shape (instants, sets).
    """
    cross = graph.cross
    joins = graph.head.copy()
    joins[cross.dst] = True
    join = np.flatnonzero(joins)
    of = np.cumsum(joins) - 1
    lane = join[~graph.head[join]]
    asked = np.arange(len(graph)) if at is None else at
    # Between two joins a lane is a chain: one cumulative sum serves for all of them.
    from_lane, from_cross, within = (np.empty((len(rows), own.shape[1]), np.int64) for rows in (lane, cross, asked))
    for number, of_set in enumerate(own.T):
        total = np.cumsum(np.where(graph.head, 0, of_set))
        before = total[join]
        from_lane[:, number] = total[lane - 1] - before[of[lane - 1]] + of_set[lane]
        from_cross[:, number] = total[cross.src] - before[of[cross.src]]
        within[:, number] = total[asked] - before[of[asked]]
    sources = np.concatenate((of[lane - 1], of[cross.src]))
    targets = np.concatenate((of[lane], of[cross.dst]))
    by = np.argsort(graph.order[join][targets], kind="stable")
    reached = _reached(len(join), sources[by], targets[by], np.concatenate((from_lane, from_cross + weight))[by])
    return np.asarray(reached[of[asked]] + within, np.int64)


def _reached(count: int, sources: Ints, targets: Ints, weights: Ints) -> Ints:
    """When each of `count` joins is, shape (joins, sets): the latest of its edges, which come in the joins' order."""
    result = np.full((count, weights.shape[1]), NEVER, np.int64)
    bare = np.ones(count, bool)
    bare[targets] = False
    result[bare] = 0
    # One round per edge; each handles all sets of weights.
    if weights.shape[1] == 1:
        times = result[:, 0].tolist()
        for source, target, weight in zip(sources.tolist(), targets.tolist(), weights[:, 0].tolist(), strict=True):
            if (later := times[source] + weight) > times[target]:
                times[target] = later
        return np.array(times, np.int64)[:, None]
    rows, spare = list(result), np.empty(weights.shape[1], np.int64)
    for source, target, row in zip(sources.tolist(), targets.tolist(), list(weights), strict=True):
        np.add(rows[source], row, out=spare)
        np.maximum(rows[target], spare, out=rows[target])
    return result


def slack_of(part: Part) -> Ints:
    """How long each instant may be put off before the window gets longer, ns; -`NEVER` where it never does."""
    graph = part.graph
    n = len(graph)
    # The same recurrence on the graph turned round: lane edges lead from an instant to the one before it.
    tail = np.append(graph.head[1:], True)
    flipped = replace(
        graph, head=tail[::-1], order=(n - 1 - graph.order)[::-1],
        cross=replace(graph.cross, src=n - 1 - graph.cross.dst, dst=n - 1 - graph.cross.src),
    )  # fmt: skip
    back = np.where(tail, 0, np.append(graph.own[1:], 0))[::-1]
    weight = graph.cross.weight
    # Only the sink may be at 0; other lanes' ends reach it or never.
    reached = longest_to(flipped, back[:, None], weight[:, None], only=n - 1 - part.sink)[::-1, 0]
    return np.where(reached < 0, -NEVER, graph.time[part.sink] - reached - graph.time)


def longest_to(graph: Graph, own: Ints, weight: Ints, only: int) -> Ints:
    """`longest` where `only` one instant without edges counts as a start; what it does not reach is below 0."""
    bare = graph.head.copy()
    bare[graph.cross.dst] = False
    bare[only] = False
    extra = np.flatnonzero(bare)
    if not len(extra):
        return longest(graph, own, weight)
    cross = Edges.concat(
        [graph.cross, Edges.of(np.full(len(extra), only), extra, np.zeros(len(extra), np.int64), 0)]
    )
    never = np.full((len(extra), own.shape[1]), NEVER, np.int64)
    # The start must come before them in the order.
    order = graph.order.copy()
    order[only] = -1
    return longest(replace(graph, cross=cross, order=order), own, np.concatenate((weight, never)))
