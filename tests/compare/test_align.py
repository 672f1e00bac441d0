"""Alignment of trees: optimal against every other pairing, mirrored when the sides are, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from ascend_perf.compare import align as module
from ascend_perf.compare.align import MEET_ALWAYS, MEET_IN_GAP, MEET_NEVER, LabelledTree, align, common_subsequence
from ascend_perf.compare.work_tree import _last

Nested = tuple[int, tuple["Nested", ...]]


def nested() -> st.SearchStrategy[Nested]:
    return st.recursive(
        st.tuples(st.integers(0, 3), st.just(())),
        lambda inner: st.tuples(st.integers(0, 3), st.lists(inner, max_size=4).map(tuple)),
        max_leaves=10,
    )


def tree(root: Nested, how: Sequence[int] = (MEET_NEVER, MEET_ALWAYS, MEET_IN_GAP, MEET_ALWAYS)) -> LabelledTree:
    """A tree with its root's label made 9, so that two roots are equal."""
    parent: list[int] = []
    label: list[int] = []

    def add(node: Nested, above: int) -> None:
        here = len(parent)
        parent.append(above)
        label.append(node[0])
        for child in node[1]:
            add(child, here)

    add(root, -1)
    meets = [MEET_NEVER, *(how[name] for name in label[1:])]
    up = np.array(parent, np.int64)
    return LabelledTree(
        parent=up, last=_last(up), label=np.array([9, *label[1:]], np.int64), meets=np.array(meets, np.int64)
    )


def best_score(a: Sequence[tuple[int, int, int]], b: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Most pairs and, among those, most points, over every pairing in order: (label, bag, shape) of each."""

    @cache
    def best(i: int, j: int) -> tuple[int, int]:
        if i == len(a) or j == len(b):
            return 0, 0
        options = [best(i + 1, j), best(i, j + 1)]
        if a[i][0] == b[j][0]:
            pairs, points = best(i + 1, j + 1)
            gained = 2 if a[i][2] == b[j][2] else 1 if a[i][1] == b[j][1] else 0
            options.append((pairs + 1, points + gained))
        return max(options)

    return best(0, 0)


# Equal shapes have equal bags and labels: the number of a shape tells both.
shapes = st.lists(st.integers(0, 11), max_size=8)


def columns(numbers: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    return [n // 6 for n in numbers], [n // 2 for n in numbers], list(numbers)


@given(shapes, shapes)
@settings(max_examples=120, deadline=None)
def test_a_sequence_is_aligned_as_well_as_any_pairing(a: list[int], b: list[int]) -> None:
    one, other = columns(a), columns(b)
    arrays = [np.array(column, np.int64) for pair in zip(one, other, strict=True) for column in pair]
    pairs = common_subsequence(*arrays)
    assert all(one[0][i] == other[0][j] for i, j in pairs)
    assert pairs == sorted(pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    points = sum(2 if one[2][i] == other[2][j] else 1 if one[1][i] == other[1][j] else 0 for i, j in pairs)
    assert (len(pairs), points) == best_score(tuple(zip(*one, strict=True)), tuple(zip(*other, strict=True)))


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=40))
@settings(max_examples=80, deadline=None)
def test_long_sequences_get_as_many_pairs_by_label(a: list[int], b: list[int]) -> None:
    pairs = module._by_label(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))
    assert len(pairs) == best_score(tuple((x, 0, 0) for x in a), tuple((x, 0, 0) for x in b))[0]


def test_sequences_beyond_the_limits_are_still_aligned(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MAX_CELLS", 10)
    monkeypatch.setattr(module, "MAX_BITS", 400)
    labels = np.arange(50)
    other = np.concatenate((labels[:20], [99], labels[20:]))
    pairs = common_subsequence(labels, other, labels, other, labels * 2, other * 2 + 1)
    assert [(int(labels[i]), int(other[j])) for i, j in pairs] == [
        (x, x) for x in range(50) if (x, x) in {(int(labels[i]), int(other[j])) for i, j in pairs}
    ]
    assert len(pairs) >= 40


@given(nested(), nested())
@settings(max_examples=120, deadline=None)
def test_children_of_two_that_are_the_same_are_aligned_best(a: Nested, b: Nested) -> None:
    one, other = tree(a), tree(b)
    found = align(one, other)
    mate = dict(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert mate[0] == 0
    # Pairs have equal labels, lie below pairs, and keep the order.
    assert (one.label[found.a] == other.label[found.b]).all()
    assert len(set(mate.values())) == len(mate)
    for x, y in mate.items():
        above_x, above_y = one.parent[x], other.parent[y]
        while above_x >= 0 and above_x not in mate:
            above_x = one.parent[above_x]
        while above_y >= 0 and above_y not in set(mate.values()):
            above_y = other.parent[above_y]
        assert mate.get(int(above_x), -1) == above_y
        labels_x = [(int(one.label[n]), 0, 0) for n in np.flatnonzero(one.parent == x)]
        labels_y = [(int(other.label[n]), 0, 0) for n in np.flatnonzero(other.parent == y)]
        direct = sum(1 for n, m in mate.items() if one.parent[n] == x and other.parent[m] == y)
        assert direct >= best_score(tuple(labels_x), tuple(labels_y))[0]


@given(nested(), nested())
@settings(max_examples=120, deadline=None)
def test_the_sides_can_be_exchanged(a: Nested, b: Nested) -> None:
    one, other = tree(a), tree(b)
    there, back = align(one, other), align(other, one)
    assert sorted(zip(there.a.tolist(), there.b.tolist(), strict=True)) == sorted(
        zip(back.b.tolist(), back.a.tolist(), strict=True)
    )
    assert there.into_a.tolist() == back.into_b.tolist()
    assert there.into_b.tolist() == back.into_a.tolist()


@given(nested())
def test_a_tree_is_the_same_as_itself(a: Nested) -> None:
    one = tree(a)
    found = align(one, one)
    assert found.a.tolist() == found.b.tolist() == list(range(len(one)))
    assert (found.into_a == -1).all() and (found.into_b == -1).all()


@given(nested(), nested())
def test_nodes_that_count_elsewhere_count_to_a_pair_above_them(a: Nested, b: Nested) -> None:
    one, other = tree(a), tree(b)
    found = align(one, other)
    sides = ((one, set(found.a.tolist()), found.into_a), (other, set(found.b.tolist()), found.into_b))
    for mine, paired, into in sides:
        for node, to in enumerate(into.tolist()):
            if to < 0:
                continue
            assert node not in paired and to in paired
            assert to < node < mine.last[to]


def test_a_wrapper_of_one_side_is_looked_through() -> None:
    # A: 9 > to(1) > copy(2); B: 9 > copy(2): the copy is the same, the wrapper has nothing of its own.
    one, other = tree((0, ((1, ((2, ()),)),))), tree((0, ((2, ()),)))
    found = align(one, other, np.array([0, 0, 1]), np.array([0, 1]))
    assert (found.a.tolist(), found.b.tolist()) == ([0, 2], [0, 1])
    assert found.into_a.tolist() == [-1, -1, -1]


def test_two_ways_of_one_operator_meet_there_and_those_of_two_operators_do_not() -> None:
    # An operator (1) that calls 0 on one side and 3 on the other.
    one, other = tree((0, ((1, ((0, ()),)),))), tree((0, ((1, ((3, ()),)),)))
    found = align(one, other)
    assert found.into_a.tolist() == [-1, -1, 1]
    assert found.into_b.tolist() == [-1, -1, 1]
    # The same two directly below the step are different work.
    one, other = tree((0, ((0, ()),))), tree((0, ((3, ()),)))
    found = align(one, other)
    assert found.into_a.tolist() == found.into_b.tolist() == [-1, -1]


def test_below_a_module_work_meets_between_the_same_neighbours_only() -> None:
    # Module (2): A calls 0, 1, B calls 1, 3: the pair of 1 lies between them.
    one, other = tree((0, ((2, ((0, ()), (1, ()))),))), tree((0, ((2, ((1, ()), (3, ()))),)))
    found = align(one, other)
    assert found.a.tolist() == [0, 1, 3] and found.b.tolist() == [0, 1, 2]
    assert found.into_a.tolist() == [-1] * 4 and found.into_b.tolist() == [-1] * 4
    # A calls 1, 0, B calls 1, 3: both after the pair.
    one, other = tree((0, ((2, ((1, ()), (0, ()))),))), tree((0, ((2, ((1, ()), (3, ()))),)))
    found = align(one, other)
    assert found.into_a.tolist() == [-1, -1, -1, 1] and found.into_b.tolist() == [-1, -1, -1, 1]
