"""Rows with parents and names, merged into a tree of distinct paths; and what is cut from a tree that is too large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf.model.table import Bools, Ints, Text

FrameClass = Literal[
    "thread", "python", "module", "range", "op", "runtime", "kernel", "communication", "copy", "backward",
    "not_attributed", "rest",
]  # fmt: skip
CLASSES: Final[tuple[FrameClass, ...]] = (
    "thread", "python", "module", "range", "op", "runtime", "kernel", "communication", "copy", "backward",
    "not_attributed", "rest",
)  # fmt: skip
"""What a node stands for; rows keep the place in this list. `range`: user, optimizer, data loader, collection of
garbage; `runtime`: CANN, CUDA or HIP calls and the ends of the task queue; `rest`: small nodes together."""

CODE: Final[dict[str, int]] = {name: code for code, name in enumerate(CLASSES)}

MIN_SHARE_RATIO: Final = 0.0005
"""Nodes below this share of the whole are shown together as "(n smaller)". Status: assumed (half a pixel of 1000)."""
MAX_NODES: Final = 5000
"""Nodes of one graph; the share above rises until they fit. Status: assumed (a page of some 100 kB per graph)."""
MAX_DEPTH: Final = 128
"""Deeper rows count with their ancestor at this depth. Status: assumed; recursion of this depth says nothing more."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows on their way into a tree, shape (n,): parents may come after their children, but never in circles."""

    parent: Ints
    """Row of the caller, -1 for roots."""
    name: Text
    kind: Ints
    """Place in `CLASSES`."""

    def __len__(self) -> int:
        return len(self.parent)

    def plus(self, other: Rows) -> Rows:
        """These rows and then `other`, whose parents are already rows of the result."""
        return Rows(
            parent=np.concatenate((self.parent, other.parent)),
            name=Text.concat([self.name, other.name]),
            kind=np.concatenate((self.kind, other.kind)),
        )


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Nodes of a flame graph, largest total first, so that a parent always comes before its children.

    `self_ns` adds up to the whole; `total_ns` of a node is its own time and that of its children.
    """

    parent: Ints
    name: Text
    kind: Ints
    self_ns: Ints
    total_ns: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def whole_ns(self) -> int:
        """Time of all nodes together."""
        return int(self.self_ns.sum())

    def total_of(self, kind: FrameClass) -> int:
        """Total of the outermost nodes of a class: those without one of their class above them."""
        mine = self.kind == CODE[kind]
        below = mine & (self.parent >= 0) & mine[np.clip(self.parent, 0, None)] if len(self) else mine
        return int(self.total_ns[mine & ~below].sum())


def depths(parent: Ints) -> Ints:
    """Number of ancestors of each row, by doubling: log2 of the depth in rounds."""
    up = parent.copy()
    depth: Ints = (up >= 0).astype(np.int64)
    while (active := np.flatnonzero(up >= 0)).size:
        above = up[active]
        depth[active] += depth[above]
        up[active] = up[above]
    return depth


def tree_of(rows: Rows, self_ns: Ints, count: Ints) -> Tree:
    """Rows of equal path (names and classes up to the root) merged into one node each.

    Args:
        rows: the rows.
        self_ns: own time of each row, shape (n,).
        count: how often each row counts, shape (n,).
    """
    depth = depths(rows.parent)
    key = rows.name.codes.astype(np.int64) * len(CLASSES) + rows.kind
    width = len(rows.name.values) * len(CLASSES) + 1
    node = np.full(len(rows), -1, np.int64)
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    parents, keys, levels = [], [], []
    made = 0
    for level, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        mine = order[low:high]
        above = rows.parent[mine]
        above = np.where(above >= 0, node[np.clip(above, 0, None)], -1)
        if level >= MAX_DEPTH:
            node[mine] = above
            continue
        paths, inverse = np.unique((above + 1) * width + key[mine], return_inverse=True)
        node[mine] = made + inverse
        parents.append(paths // width - 1)
        keys.append(paths % width)
        levels.append((made, made + len(paths)))
        made += len(paths)
    own, calls = np.zeros(made, np.int64), np.zeros(made, np.int64)
    np.add.at(own, node, self_ns)
    np.add.at(calls, node, np.where(depth < MAX_DEPTH, count, 0))
    parent = np.concatenate(parents) if parents else np.empty(0, np.int64)
    total = own.copy()
    for low, high in reversed(levels[1:]):
        np.add.at(total, parent[low:high], total[low:high])
    of = np.concatenate(keys) if keys else np.empty(0, np.int64)
    name = Text((of // len(CLASSES)).astype(np.int32), rows.name.values)
    tree = Tree(parent=parent, name=name, kind=of % len(CLASSES), self_ns=own, total_ns=total, count=calls)
    return _ordered(_without_empty(tree))


def counted(tree: Tree, count: Ints) -> Tree:
    """The tree with other counts."""
    return Tree(
        parent=tree.parent, name=tree.name, kind=tree.kind, self_ns=tree.self_ns, total_ns=tree.total_ns, count=count
    )  # fmt: skip


def with_counts_below(tree: Tree) -> Tree:
    """Counts of a node with those of all nodes below it: what device graphs show, where only leaves are tasks."""
    count = tree.count.copy()
    depth = depths(tree.parent)
    for level in range(int(depth.max(initial=0)), 0, -1):
        mine = np.flatnonzero(depth == level)
        np.add.at(count, tree.parent[mine], count[mine])
    return counted(tree, count)


def pruned(tree: Tree, *, share_ratio: float = MIN_SHARE_RATIO, most: int = MAX_NODES) -> tuple[Tree, int, float]:
    """The tree with small nodes taken together, how many nodes that were, and the share below which nodes are small.

    The small children of a node become one node "(n smaller)"; sums stay as they are. The share rises until at most
    `most` nodes are left.
    """
    bound = max(1, int(tree.whole_ns * share_ratio))
    largest = -np.sort(-tree.total_ns)
    room = most
    if room < len(tree):
        bound = max(bound, int(largest[room]))
    while True:
        kept = tree.total_ns >= bound
        above = np.where(tree.parent >= 0, kept[np.clip(tree.parent, 0, None)], True)
        cut = ~kept & above
        whole = int(kept.sum()) + len(np.unique(tree.parent[cut]))
        if whole <= most or not kept.any():
            break
        room = room * 7 // 8
        bound = max(bound + 1, int(largest[room]))
    if not cut.any():
        return tree, 0, share_ratio
    number = np.cumsum(kept) - 1
    rows = np.flatnonzero(kept)
    heads, index = np.unique(tree.parent[cut], return_inverse=True)
    smaller, calls = np.zeros(len(heads), np.int64), np.bincount(index, minlength=len(heads)).astype(np.int64)
    np.add.at(smaller, index, tree.total_ns[cut])
    parent = np.concatenate((tree.parent[rows], heads))
    # A small node that is alone keeps its name; what is below it is in its own time now.
    one = np.full(len(heads), -1, np.int64)
    one[index] = np.flatnonzero(cut)
    alone = calls == 1
    several = Text.of([None if single else f"({n} smaller)" for n, single in zip(calls.tolist(), alone, strict=True)])
    names = Text.concat([several, tree.name.take(one)])
    codes = np.where(alone, names.codes[len(heads) :], names.codes[: len(heads)]).astype(np.int32)
    result = Tree(
        parent=np.where(parent >= 0, number[np.clip(parent, 0, None)], -1),
        name=Text.concat([tree.name.take(rows), Text(codes, names.values)]).compact(),
        kind=np.concatenate((tree.kind[rows], np.where(alone, tree.kind[one], CODE["rest"]))),
        self_ns=np.concatenate((tree.self_ns[rows], smaller)),
        total_ns=np.concatenate((tree.total_ns[rows], smaller)),
        count=np.concatenate((tree.count[rows], np.where(alone, tree.count[one], calls))),
    )
    return _ordered(result), len(tree) - len(rows) - int(alone.sum()), bound / max(1, tree.whole_ns)


def _without_empty(tree: Tree) -> Tree:
    """Nodes with time only: calls of no length have none, and none of their children has."""
    keep: Bools = tree.total_ns > 0
    return tree if keep.all() else _taken(tree, np.flatnonzero(keep))


def _ordered(tree: Tree) -> Tree:
    """Largest total first; among equals the parent first, then by name, so that the order says nothing of the file."""
    rank = np.argsort(np.argsort(np.array(tree.name.values, object))) if tree.name.values else np.empty(0, np.int64)
    order = np.lexsort((rank[tree.name.codes], depths(tree.parent), -tree.total_ns))
    return _taken(tree, order)


def _taken(tree: Tree, rows: Ints) -> Tree:
    number = np.full(len(tree) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    return Tree(
        parent=number[tree.parent[rows]],
        name=tree.name.take(rows).compact(),
        kind=tree.kind[rows],
        self_ns=tree.self_ns[rows],
        total_ns=tree.total_ns[rows],
        count=tree.count[rows],
    )
