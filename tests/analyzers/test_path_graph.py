"""The graph of instants against brute force: longest paths, the path that decides, and room."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers._path_graph import (
    NEVER,
    Edges,
    End,
    Graph,
    Part,
    graph_of,
    longest,
    part_of,
    slack_of,
    walk,
)
from ascend_perf.analyzers._path_walk import path_of
from ascend_perf.model.table import Ints


@dataclass(frozen=True)
class Made:
    """A graph on paper: lanes of weights, and edges (lane, place) -> (lane, place) with a weight."""

    lanes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[tuple[int, int], tuple[int, int], int], ...]

    @property
    def firsts(self) -> list[int]:
        """Number of the first instant of each lane; a lane of n weights has n + 1 instants."""
        return [sum(len(lane) + 1 for lane in self.lanes[:at]) for at in range(len(self.lanes) + 1)]

    def number(self, at: tuple[int, int]) -> int:
        return self.firsts[at[0]] + at[1]

    def arcs(self) -> list[tuple[int, int, int]]:
        """All edges as (from, to, weight)."""
        found = [(self.number(a), self.number(b), weight) for a, b, weight in self.edges]
        for lane, weights in enumerate(self.lanes):
            found += [(self.firsts[lane] + i, self.firsts[lane] + i + 1, w) for i, w in enumerate(weights)]
        return found

    def times(self, arcs: list[tuple[int, int, int]] | None = None) -> list[int]:
        """When each instant is: relaxed until nothing changes (brute force), heads from 0."""
        arcs = self.arcs() if arcs is None else arcs
        time = [0] * self.firsts[-1]
        for _ in range(len(time) + 1):
            before = list(time)
            for a, b, weight in arcs:
                time[b] = max(time[b], time[a] + weight)
            if time == before:
                return time
        raise AssertionError("a circle")

    def graph(self, time: list[int] | None = None) -> Graph:
        measured = np.array(self.times() if time is None else time, np.int64)
        head = np.zeros(len(measured), bool)
        head[self.firsts[:-1]] = True
        own = np.concatenate([[0, *lane] for lane in self.lanes]).astype(np.int64)
        src = np.array([self.number(a) for a, _, _ in self.edges], np.int64)
        dst = np.array([self.number(b) for _, b, _ in self.edges], np.int64)
        weight = np.array([w for _, _, w in self.edges], np.int64)
        none = np.full(len(measured), -1, np.int64)
        return graph_of(measured, head, own, np.zeros(len(measured), np.int64), none, Edges.of(src, dst, weight, 0))


@st.composite
def made(draw: st.DrawFn) -> Made:
    """Lanes whose edges lead from an instant to one of a higher (place, lane): no circles, many ties."""
    count = draw(st.integers(1, 4))
    lanes = tuple(
        tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=7))) for _ in range(count)
    )  # fmt: skip
    places = sorted((place, lane) for lane in range(count) for place in range(len(lanes[lane]) + 1))
    edges = []
    for _ in range(draw(st.integers(0, 10))):
        a, b = sorted(draw(st.lists(st.sampled_from(places), min_size=2, max_size=2, unique=True)))
        if a[1] != b[1]:
            edges.append(((a[1], a[0]), (b[1], b[0]), draw(st.integers(0, 9))))
    return Made(lanes=lanes, edges=tuple(edges))


@given(made())
def test_replaying_gives_the_measured_times(one: Made) -> None:
    graph = one.graph()

    replay = longest(graph, graph.own[:, None], graph.cross.weight[:, None])

    # Heads that wait for other lanes are reached from these; all others are at 0.
    assert replay[:, 0].tolist() == one.times()


@given(made(), st.data())
def test_a_replay_with_other_weights_is_the_longest_path(one: Made, data: st.DataObject) -> None:
    graph = one.graph()
    sets = 3
    own = np.array([[data.draw(st.integers(0, int(w))) for _ in range(sets)] for w in graph.own], np.int64)
    cross = np.array(
        [[data.draw(st.integers(0, int(w))) for _ in range(sets)] for w in graph.cross.weight], np.int64
    ).reshape(len(graph.cross), sets)
    own[graph.head] = 0

    replay = longest(graph, own, cross)

    for at in range(sets):
        arcs = [(v - 1, v, int(own[v, at])) for v in range(len(graph)) if not graph.head[v]]
        arcs += list(
            zip(graph.cross.src.tolist(), graph.cross.dst.tolist(), cross[:, at].tolist(), strict=True)
        )
        assert replay[:, at].tolist() == one.times(arcs)


@given(made(), st.data())
def test_the_path_to_an_instant_is_unbroken_and_as_long_as_its_time(one: Made, data: st.DataObject) -> None:
    graph = one.graph()
    end = data.draw(st.integers(0, len(graph) - 1))
    start = data.draw(st.integers(0, int(graph.time[end])))

    way = walk(graph, end, start)
    path = path_of(graph, End(at=end, element=0), start, int(graph.time[end]) + 2, 0)

    arcs = {(a, b): w for a, b, w in sorted(one.arcs())}
    for later, earlier in zip(way[:-1].tolist(), way[1:].tolist(), strict=True):
        assert graph.time[later] - graph.time[earlier] == arcs[earlier, later]
    assert path.starts.tolist() == [start, *path.ends[:-1].tolist()] if len(path.starts) else True
    assert int(path.lengths.sum()) == int(graph.time[end]) + 2 - start


def _whole(graph: Graph) -> Part:
    end = int(graph.time.max())
    last = int(np.flatnonzero(graph.time == end)[-1])
    return part_of(graph, 0, end, End(at=last, element=0), np.flatnonzero(graph.head), 0)


@given(made(), st.data())
def test_room_is_what_an_instant_may_be_put_off(one: Made, data: st.DataObject) -> None:
    part = _whole(one.graph())
    graph = part.graph
    at = data.draw(st.integers(1, part.sink - 1))
    room = int(slack_of(part)[at])
    assert 0 <= room < -NEVER

    def end_when_put_off(by: int) -> int:
        # A further edge from the start holds the instant back.
        late = Edges.of(np.array([0]), np.array([at]), np.array([int(graph.time[at]) + by]), 0)
        held = replace(graph, cross=Edges.concat([graph.cross, late]))
        return int(longest(held, graph.own[:, None], held.cross.weight[:, None])[part.sink, 0])

    assert end_when_put_off(room) == graph.time[part.sink]
    assert end_when_put_off(room + 3) == graph.time[part.sink] + 3


@given(made(), st.data())
def test_a_window_of_the_graph_replays_to_its_own_length(one: Made, data: st.DataObject) -> None:
    graph = one.graph()
    low = data.draw(st.integers(0, int(graph.time.max())))
    high = data.draw(st.integers(low, int(graph.time.max())))
    inside = np.flatnonzero(graph.time <= high)
    end = End(at=int(inside[np.argmax(graph.time[inside])]), element=0)

    part = part_of(graph, low, high, end, np.flatnonzero(graph.head), 0)
    replay = longest(part.graph, part.graph.own[:, None], part.graph.cross.weight[:, None])

    assert part.graph.time[part.sink] == high - low
    assert replay[:, 0].tolist() == part.graph.time.tolist()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_edges_that_close_a_circle_at_one_time_are_left_out(pairs: list[tuple[int, int]]) -> None:
    # Four lanes of one instant each, all at time 5: any edges, circles among them.
    src, dst = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    time: Ints = np.full(4, 5, np.int64)
    zero = np.zeros(4, np.int64)
    edges = Edges.of(src, dst, np.zeros(len(pairs), np.int64), 0)

    graph = graph_of(time, np.ones(4, bool), zero, zero, zero - 1, edges)

    assert (graph.order[graph.cross.src] < graph.order[graph.cross.dst]).all()
    for at in range(4):
        assert len(walk(graph, at, -1)) <= 4  # ends


def test_weights_that_exceed_what_was_measured_are_cut() -> None:
    one = Made(lanes=((3, 4),), edges=())

    graph = one.graph([0, 2, 10])  # 3 measured as 2, 4 measured as 8

    assert graph.own.tolist() == [0, 2, 8]  # nothing else explains the 8
    assert longest(graph, graph.own[:, None], np.empty((0, 1), np.int64))[:, 0].tolist() == [0, 2, 10]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_instants_that_are_asked_for_are_those_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 30))
    head = np.append(True, random.random(count - 1) < 0.3)
    time = np.sort(random.integers(0, 50, count))
    ends = random.integers(0, count, (2, int(random.integers(0, 20))))
    cross = Edges.of(ends[0], ends[1], random.integers(0, 20, (ends.shape[1],)), 0)
    none = np.zeros(count, np.int64)
    graph = graph_of(time, head, random.integers(0, 9, count), none, none - 1, cross)
    sets = int(random.integers(1, 4))
    own, weight = (np.repeat(w[:, None], sets, axis=1) for w in (graph.own, graph.cross.weight))
    own += random.integers(0, 5, own.shape)
    whole = longest(graph, own, weight)
    at = random.integers(0, count, 5)

    assert np.array_equal(longest(graph, own, weight, at), whole[at])
    for one in range(sets):
        assert np.array_equal(longest(graph, own[:, [one]], weight[:, [one]])[:, 0], whole[:, one])
