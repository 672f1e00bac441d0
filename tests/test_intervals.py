"""Interval arithmetic against a brute-force set of nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import intervals as iv

PAIRS = st.lists(st.tuples(st.integers(-30, 60), st.integers(-5, 20)), max_size=25)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    """Every integer instant that one of the half-open intervals (start, duration) holds."""
    return {x for start, dur in pairs for x in range(start, start + dur)}


def as_set(pairs: list[tuple[int, int]]) -> iv.IntervalSet:
    return iv.from_durations(np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64))


def instants(interval_set: iv.IntervalSet) -> set[int]:
    return {x for a, b in zip(*(c.tolist() for c in interval_set), strict=True) for x in range(a, b)}


def is_merged(s: iv.IntervalSet) -> bool:
    return bool((s.ends > s.starts).all() and (s.starts[1:] > s.ends[:-1]).all())


@given(PAIRS)
def test_union_holds_the_same_instants_once(pairs: list[tuple[int, int]]) -> None:
    result = as_set(pairs)
    assert is_merged(result)
    assert instants(result) == points(pairs)
    assert iv.total(result) == len(points(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_sets_of_instants(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = as_set(a), as_set(b)
    for ours, theirs in (
        (iv.union(x, y), points(a) | points(b)),
        (iv.intersection(x, y), points(a) & points(b)),
        (iv.difference(x, y), points(a) - points(b)),
    ):
        assert is_merged(ours)
        assert instants(ours) == theirs


@given(PAIRS, st.integers(-40, 40), st.integers(0, 50))
def test_complement_and_clip_share_a_window(pairs: list[tuple[int, int]], start: int, length: int) -> None:
    window = set(range(start, start + length))
    s = as_set(pairs)
    assert instants(iv.complement(s, start, start + length)) == window - points(pairs)
    assert instants(iv.clip(s, start, start + length)) == window & points(pairs)


@given(PAIRS, PAIRS)
def test_covered_counts_the_instants_of_each_window(
    pairs: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    windows = [w for w in windows if w[1] >= 0]
    starts = np.array([w[0] for w in windows], np.int64)
    ends = np.array([w[0] + w[1] for w in windows], np.int64)
    expected = [len(points([w]) & points(pairs)) for w in windows]
    assert iv.covered(as_set(pairs), starts, ends).tolist() == expected


@given(PAIRS, st.lists(st.integers(-40, 90), max_size=10))
def test_contains_is_membership(pairs: list[tuple[int, int]], at: list[int]) -> None:
    assert iv.contains(as_set(pairs), np.array(at, np.int64)).tolist() == [x in points(pairs) for x in at]


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Intervals that nest, as calls on a thread: a random tree laid out in time."""
    result: list[tuple[int, int]] = []

    def place(start: int, depth: int) -> int:
        at = start + draw(st.integers(0, 2))
        for _ in range(draw(st.integers(0, 3)) if depth < 4 else 0):
            at = place(at, depth + 1) + draw(st.integers(0, 2))
        end = at + draw(st.integers(1, 3))
        result.append((start, end))
        return end

    at = 0
    for _ in range(draw(st.integers(1, 4))):
        at = place(at, 0) + draw(st.integers(0, 2))
    return draw(st.permutations(result))


@given(nested(), st.lists(st.integers(-2, 60), min_size=1, max_size=12))
def test_enclosing_finds_the_shortest_interval_around_an_instant(calls: list[tuple[int, int]], at: list[int]) -> None:
    starts = np.array([c[0] for c in calls], np.int64)
    ends = np.array([c[1] for c in calls], np.int64)
    for instant, index in zip(at, iv.enclosing(starts, ends, np.array(at, np.int64)).tolist(), strict=True):
        around = [c for c in calls if c[0] <= instant < c[1]]
        if not around:
            assert index == -1
        else:
            best = min(b - a for a, b in around)
            assert calls[index] in around and calls[index][1] - calls[index][0] == best


@given(nested())
def test_parents_point_to_the_next_larger_interval(calls: list[tuple[int, int]]) -> None:
    ordered = sorted(calls, key=lambda c: (c[0], -c[1]))
    up = iv.parents(np.array([c[0] for c in ordered], np.int64), np.array([c[1] for c in ordered], np.int64)).tolist()
    for index, (start, end) in enumerate(ordered):
        around = [j for j in range(index) if ordered[j][0] <= start and ordered[j][1] >= end]
        expected = max(around, default=-1)
        assert up[index] == expected
