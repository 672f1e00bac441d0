"""Two ordered trees aligned from the top: which node of one is which node of the other.

The children of two nodes that are aligned are aligned as sequences: as many pairs of equal labels as an order allows
(the edit distance without substitution), and among those the ones with the most equal insides. Where nodes are left
over on both sides between two pairs, wrappers that only one side has are looked through, a few levels deep. Nodes below
one that has no partner have none either, unless it was looked through.

Source:
    rivals-and-methods, method 5.9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ascend_perf.model.table import Ints

MAX_CELLS: Final = 4_000_000
"""Pairs of children that are weighed; longer sequences are aligned by their labels alone. Status: assumed (16 MB)."""
MAX_BITS: Final = 1_000_000_000
"""Bits of the table of an alignment by labels; sequences beyond it are cut into parts. Status: assumed (125 MB)."""
MAX_WRAPPERS: Final = 3
"""Levels of calls of one side alone that are looked through. Status: assumed."""


@dataclass(frozen=True)
class LabelledTree:
    """Nodes in preorder; node 0 is the root, `parent[0]` is -1. Equal labels have equal numbers in both trees."""

    parent: Ints
    last: Ints
    label: Ints
    meets: Ints
    """What becomes of nodes without a partner on both sides below the node: see `MEET_`."""

    def __len__(self) -> int:
        return len(self.parent)


MEET_NEVER: Final = 0
MEET_IN_GAP: Final = 1
"""They are the same work by another name where they stand between the same two pairs (modules)."""
MEET_ALWAYS: Final = 2
"""They are the same work by another name wherever they stand (operators)."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Which nodes are the same. All arrays are int64."""

    a: Ints
    """Nodes of A that have a partner, ascending."""
    b: Ints
    """Their partners."""
    into_a: Ints
    """For each node of A: the node of A with a partner to which its work counts, since B does that work in another way
    there; -1 where it counts for itself."""
    into_b: Ints


@dataclass
class _Found:
    """Pairs and meetings below two nodes, as offsets from them."""

    a: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    met_a: list[tuple[int, int]] = field(default_factory=list)
    """(top node without partner, node that it counts to)"""
    met_b: list[tuple[int, int]] = field(default_factory=list)

    def add(self, other: _Found, at_a: int, at_b: int) -> None:
        """What was found below two nodes that lie at these offsets."""
        self.a += [offset + at_a for offset in other.a]
        self.b += [offset + at_b for offset in other.b]
        self.met_a += [(top + at_a, to + at_a) for top, to in other.met_a]
        self.met_b += [(top + at_b, to + at_b) for top, to in other.met_b]


def align(a: LabelledTree, b: LabelledTree, own_a: Ints | None = None, own_b: Ints | None = None) -> Alignment:
    """The alignment of two trees whose roots are the same. `align(b, a)` is its mirror image.

    Args:
        a: one tree.
        b: the other.
        own_a: tasks that each node of A launched itself, shape (n,); they decide where unlike calls meet.
        own_b: the same of B.
    """
    own_a = np.zeros(len(a), np.int64) if own_a is None else own_a
    own_b = np.zeros(len(b), np.int64) if own_b is None else own_b
    # Of several equally good alignments one is taken; which one must not depend on which tree is called A.
    if _digest(a, own_a) > _digest(b, own_b):
        mirrored = _Aligner(b, a, own_b, own_a).run()
        order = np.argsort(mirrored.b, kind="stable")
        return Alignment(
            a=mirrored.b[order], b=mirrored.a[order], into_a=mirrored.into_b, into_b=mirrored.into_a
        )  # fmt: skip
    return _Aligner(a, b, own_a, own_b).run()


def _digest(tree: LabelledTree, own: Ints) -> bytes:
    content = np.stack((np.asarray(tree.parent, np.int64), np.asarray(tree.label, np.int64), np.minimum(own, 1)))
    return hashlib.sha256(np.ascontiguousarray(content).tobytes()).digest()


class _Aligner:
    """One alignment in the making. Equal pairs of subtrees (the layers of a model) are worked out once."""

    def __init__(self, a: LabelledTree, b: LabelledTree, own_a: Ints, own_b: Ints) -> None:
        self.a, self.b = a, b
        self.own_a, self.own_b = own_a.tolist(), own_b.tolist()
        self.children_a, self.children_b = _children(a), _children(b)
        shapes: dict[tuple[object, ...], int] = {}
        bags: dict[tuple[int, ...], int] = {}
        self.shape_a, self.bag_a = _shapes(a, self.children_a, self.own_a, shapes, bags)
        self.shape_b, self.bag_b = _shapes(b, self.children_b, self.own_b, shapes, bags)
        self.label_a, self.label_b = a.label.tolist(), b.label.tolist()
        self.known: dict[tuple[int, int], _Found] = {}

    def run(self) -> Alignment:
        found = self.below(0, 0)
        rows_a, rows_b = np.array([0, *found.a], np.int64), np.array([0, *found.b], np.int64)
        order = np.argsort(rows_a, kind="stable")
        return Alignment(
            a=rows_a[order], b=rows_b[order],
            into_a=_counted_to(self.a, rows_a, dict(found.met_a)),
            into_b=_counted_to(self.b, rows_b, dict(found.met_b)),
        )  # fmt: skip

    def below(self, x: int, y: int) -> _Found:
        """What is the same below two nodes that are the same."""
        key = (self.shape_a[x], self.shape_b[y])
        known = self.known.get(key)
        if known is not None:
            return known
        found = _Found()
        if key[0] == key[1]:
            below = range(1, int(self.a.last[x]) - x)
            found.a, found.b = list(below), list(below)
        else:
            self._children_of(x, y, found)
        self.known[key] = found
        return found

    def _children_of(self, x: int, y: int, found: _Found) -> None:
        gaps: list[tuple[list[int], list[int]]] = []
        self._sequence(self.children_a[x], self.children_b[y], MAX_WRAPPERS, found, gaps, x, y)
        rest_a, rest_b = [n for gap, _ in gaps for n in gap], [n for _, gap in gaps for n in gap]
        how = max(int(self.a.meets[x]), int(self.b.meets[y]))
        if how == MEET_ALWAYS:
            # What A calls here and what B calls or launches here is the same work: both did it for this operator.
            if rest_a and (rest_b or (self.own_b[y] and not self.own_a[x])):
                found.met_a += [(top - x, 0) for top in rest_a]
            if rest_b and (rest_a or (self.own_a[x] and not self.own_b[y])):
                found.met_b += [(top - y, 0) for top in rest_b]
        elif how == MEET_IN_GAP:
            for gap_a, gap_b in gaps:
                if gap_a and gap_b:
                    found.met_a += [(top - x, 0) for top in gap_a]
                    found.met_b += [(top - y, 0) for top in gap_b]

    def _sequence(
        self, left: list[int], right: list[int], wrappers: int, found: _Found,
        gaps: list[tuple[list[int], list[int]]], x: int, y: int,
    ) -> None:  # fmt: skip
        """Pairs of two sequences of nodes into `found`, what is left between them into `gaps`."""
        for gap_a, gap_b in self._paired(left, right, found, x, y):
            if gap_a and gap_b and wrappers:
                self._look_through(gap_a, gap_b, wrappers, found, gaps, x, y)
            elif gap_a or gap_b:
                gaps.append((gap_a, gap_b))

    def _paired(
        self, left: list[int], right: list[int], found: _Found, x: int, y: int
    ) -> list[tuple[list[int], list[int]]]:
        gaps = []
        at_a = at_b = 0
        for i, j in self._pairs(left, right):
            gaps.append((left[at_a:i], right[at_b:j]))
            found.a.append(left[i] - x)
            found.b.append(right[j] - y)
            found.add(self.below(left[i], right[j]), left[i] - x, right[j] - y)
            at_a, at_b = i + 1, j + 1
        gaps.append((left[at_a:], right[at_b:]))
        return gaps

    def _look_through(
        self, left: list[int], right: list[int], wrappers: int, found: _Found,
        gaps: list[tuple[list[int], list[int]]], x: int, y: int,
    ) -> None:  # fmt: skip
        """Nodes that have no partner, replaced by what they call where that has partners on the other side."""
        inside_a = [child for node in left for child in self.children_a[node]]
        inside_b = [child for node in right for child in self.children_b[node]]
        choices = [(inside_a, right), (left, inside_b), (inside_a, inside_b)]
        scores = [len(self._pairs(one, other)) for one, other in choices]
        best = int(np.argmax(scores))
        if not scores[best]:
            gaps.append((left, right))
            return
        one, other = choices[best]
        inner: list[tuple[list[int], list[int]]] = []
        self._sequence(one, other, wrappers - 1, found, inner, x, y)
        # The wrappers themselves stay without a partner; what is left inside of them belongs to them.
        paired_a, paired_b = {x + offset for offset in found.a}, {y + offset for offset in found.b}
        rest_a = (
            [node for node in left if _has_rest(node, self.children_a, self.own_a, paired_a)]
            if one is inside_a else [node for gap, _ in inner for node in gap]
        )  # fmt: skip
        rest_b = (
            [node for node in right if _has_rest(node, self.children_b, self.own_b, paired_b)]
            if other is inside_b else [node for _, gap in inner for node in gap]
        )  # fmt: skip
        if rest_a or rest_b:
            gaps.append((rest_a, rest_b))

    def _pairs(self, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
        return common_subsequence(
            *((np.array([of[node] for node in nodes], np.int64) for of, nodes in (
                (self.label_a, left), (self.label_b, right), (self.bag_a, left), (self.bag_b, right),
                (self.shape_a, left), (self.shape_b, right),
            )))
        )  # fmt: skip


def common_subsequence(
    label_a: Ints, label_b: Ints, bag_a: Ints, bag_b: Ints, shape_a: Ints, shape_b: Ints
) -> list[tuple[int, int]]:
    """Pairs (i, j) of places with equal labels, ascending in both: the most there can be.

    Among those the ones with most pairs of equal insides, 2 points each, or of equal calls in any order, 1 point.

    Args:
        label_a, label_b: what must be equal, shape (n,) and (m,).
        bag_a, bag_b: labels of what is called in any order, as numbers.
        shape_a, shape_b: everything inside, as numbers; equal shapes have equal bags and labels.
    """
    n, m = len(label_a), len(label_b)
    least = min(n, m)
    same = shape_a[:least] == shape_b[:least]
    head = least if same.all() else int(np.argmin(same))
    same = shape_a[head:][::-1][: least - head] == shape_b[head:][::-1][: least - head]
    tail = least - head if same.all() else int(np.argmin(same))
    inner_a, inner_b = slice(head, n - tail), slice(head, m - tail)
    cells = (n - tail - head) * (m - tail - head)
    if not cells:
        middle: list[tuple[int, int]] = []
    elif cells <= MAX_CELLS:
        middle = _weighted(*(
            column[part] for column, part in (
                (label_a, inner_a), (label_b, inner_b), (bag_a, inner_a), (bag_b, inner_b), (shape_a, inner_a),
                (shape_b, inner_b),
            )
        ))  # fmt: skip
    else:
        middle = _by_label(label_a[inner_a].tolist(), label_b[inner_b].tolist())
    return [
        *((i, i) for i in range(head)),
        *((i + head, j + head) for i, j in middle),
        *((n - k, m - k) for k in range(tail, 0, -1)),
    ]


def _weighted(
    label_a: Ints, label_b: Ints, bag_a: Ints, bag_b: Ints, shape_a: Ints, shape_b: Ints
) -> list[tuple[int, int]]:
    n, m = len(label_a), len(label_b)
    # One more pair outweighs all points.
    pair = 2 * min(n, m) + 1
    table = np.zeros((n + 1, m + 1), np.int64 if n * pair > 2**31 - 1 else np.int32)
    for i in range(n):
        equal = label_b == label_a[i]
        if not equal.any():
            table[i + 1] = table[i]
            continue
        points = np.where(shape_b == shape_a[i], 2, np.where(bag_b == bag_a[i], 1, 0))
        score = np.where(equal, table[i, :-1] + (pair + points), 0)
        np.maximum.accumulate(np.maximum(table[i, 1:], score), out=table[i + 1, 1:])
    pairs = []
    i, j = n, m
    while i and j:
        here = table[i, j]
        if here == table[i - 1, j]:
            i -= 1
        elif here == table[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _by_label(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """A longest common subsequence, a row of the table in one operation on whole numbers.

    Source:
        Hyyrö: Bit-parallel LCS-length computation revisited (2004).
    """
    n, m = len(left), len(right)
    if n * m > MAX_BITS:
        half_a, half_b = n // 2, m // 2
        behind = _by_label(left[half_a:], right[half_b:])
        return [*_by_label(left[:half_a], right[:half_b]), *((i + half_a, j + half_b) for i, j in behind)]
    where: dict[int, int] = {}
    for j, label in enumerate(right):
        where[label] = where.get(label, 0) | (1 << j)
    full = (1 << m) - 1
    rows = [full]
    for label in left:
        row = rows[-1]
        hit = row & where.get(label, 0)
        rows.append(((row + hit) | (row - hit)) & full)
    # A 0 at bit j: the subsequence of the first i and the first j + 1 is one longer than that of the first j.
    pairs = []
    i, j = n, m
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _children(tree: LabelledTree) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(len(tree))]
    for node, parent in enumerate(tree.parent.tolist()):
        if parent >= 0:
            children[parent].append(node)
    return children


def _shapes(
    tree: LabelledTree, children: list[list[int]], own: list[int], shapes: dict[tuple[object, ...], int],
    bags: dict[tuple[int, ...], int],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Numbers of equal subtrees, and of nodes that call equal labels, in any order."""
    labels, meets = tree.label.tolist(), tree.meets.tolist()
    shape, bag = [0] * len(tree), [0] * len(tree)
    for node in range(len(tree) - 1, -1, -1):
        inner = children[node]
        content = (labels[node], meets[node], own[node] > 0, *(shape[child] for child in inner))
        shape[node] = shapes.setdefault(content, len(shapes))
        calls = tuple(sorted(labels[child] for child in inner))
        bag[node] = bags.setdefault(calls, len(bags))
    return shape, bag


def _has_rest(node: int, children: list[list[int]], own: list[int], paired: set[int]) -> bool:
    """Whether a node without partner, or one below it that has none either, launched tasks itself."""
    return own[node] > 0 or any(
        child not in paired and _has_rest(child, children, own, paired) for child in children[node]
    )


def _counted_to(tree: LabelledTree, paired: Ints, met: dict[int, int]) -> Ints:
    """For each node the one that it counts to, -1 for itself: what lies below a node that met another goes with it."""
    is_paired = np.zeros(len(tree), bool)
    is_paired[paired] = True
    known = is_paired.tolist()
    into = [-1] * len(tree)
    for node, parent in enumerate(tree.parent.tolist()):
        if known[node]:
            continue
        into[node] = met[node] if node in met else into[parent] if parent >= 0 else -1
    return np.array(into, np.int64)
