"""Where the time of a step went in two recordings, call by call: rows of both, rows of one, and what explains the rest.

Kernels of two vendors have no names in common; the operators and modules that launched them do. The trees of calls are
aligned from the top (`align`), and each task counts to the innermost call that both sides have, or to a call of its own
side. Rows of equal path are one row. Sums are exact: the rows of a side add up to the time of its tasks.

Source:
    rivals-and-methods, method 5.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf.analyzers._flame_tree import CLASSES, CODE, depths
from ascend_perf.compare.align import (
    MEET_ALWAYS,
    MEET_IN_GAP,
    MEET_NEVER,
    Alignment,
    LabelledTree,
    align,
)
from ascend_perf.compare.work_tree import HostCalls, WorkTree, kernel_tree, work_tree
from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import Ints, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace

Side = Literal["both", "a", "b"]

NOT_ATTRIBUTED: Final = "not attributed"
"""Row of the tasks whose launch was not recorded: launched before the recording began, or by a graph."""

_MEETS: Final = {"module": MEET_IN_GAP, "op": MEET_ALWAYS}


@dataclass(frozen=True, kw_only=True)
class TreeRows:
    """Calls of equal path, shape (n,), a parent before its children; the sums of `self_*` are the whole.

    Row 0 is the step, row 1 what is not attributed. The work that both sides did in different ways below a call counts
    to the call.
    """

    parent: Ints
    """Row of the caller, -1 for rows 0 and 1."""
    label: Text
    kind: Ints
    """Place in `_flame_tree.CLASSES`."""
    calls_a: Ints
    calls_b: Ints
    tasks_a: Ints
    """Tasks that count to the row itself."""
    tasks_b: Ints
    self_a_ns: Ints
    self_b_ns: Ints
    total_a_ns: Ints
    """With the rows below."""
    total_b_ns: Ints

    def __len__(self) -> int:
        return len(self.parent)

    def side(self, row: int) -> Side:
        """Who has the call."""
        if self.calls_a[row] and self.calls_b[row]:
            return "both"
        return "a" if self.calls_a[row] else "b"

    def path(self, row: int) -> tuple[str, ...]:
        """Labels from the outermost call to the row itself, without the step."""
        labels = []
        while row > 0:
            labels.append(self.label[row] or "")
            row = int(self.parent[row])
        return tuple(reversed(labels))


@dataclass(frozen=True, kw_only=True)
class TreeDiff:
    """Two trees of calls in one, and the row to which each task of either side counts."""

    a: WorkTree
    b: WorkTree
    rows: TreeRows
    row_a: Ints
    """Row of each task of `a.tasks`."""
    row_b: Ints
    alignment: Alignment
    kinds: tuple[str, ...]
    """Which of module, op and range the rows are made of: those that both recordings have."""

    @property
    def total_a_ns(self) -> int:
        """Sum of the durations of all tasks of A."""
        return self.a.total_ns

    @property
    def total_b_ns(self) -> int:
        """The same of B."""
        return self.b.total_ns


@dataclass(frozen=True, kw_only=True)
class Split:
    """A difference of times in two parts that add up to it."""

    delta_ns: int
    count_ns: int
    """Calls that are there or not, at the mean that calls had in A (in B where A had none)."""
    mean_ns: int
    """Calls that take longer or shorter."""


def split(calls_a: int, time_a_ns: int, calls_b: int, time_b_ns: int) -> Split:
    """Count change x old mean + mean change x new count, in whole ns.

    Source:
        rivals-and-methods, method 5.9.
    """
    delta = time_b_ns - time_a_ns
    if not calls_a:
        return Split(delta_ns=delta, count_ns=delta, mean_ns=0)
    # In whole numbers: floats of 53 bits lose ns of long runs. Rounded half away from zero, so that it mirrors.
    numerator = (calls_b - calls_a) * time_a_ns
    count = (2 * abs(numerator) + calls_a) // (2 * calls_a) * (1 if numerator >= 0 else -1)
    return Split(delta_ns=delta, count_ns=count, mean_ns=delta - count)


def diff_traces(
    a: Trace | HostCalls, b: Trace | HostCalls, *, step_a: int | None = None, step_b: int | None = None
) -> TreeDiff:
    """The steps of two ranks side by side. A diff of a rank with itself has no difference.

    Args:
        a: the old one, or the baseline.
        b: the new one.
        step_a: index of the step of A; None: the one of median length, or all of a recording without steps.
        step_b: the same for B.
    """
    a = a if isinstance(a, HostCalls) else HostCalls.of(a)
    b = b if isinstance(b, HostCalls) else HostCalls.of(b)
    # A frame that only one recording could have (modules are recorded on demand) would keep everything apart.
    kinds = a.kinds() & b.kinds()
    ranges = a.ranges() & b.ranges()
    if not ranges:
        kinds -= {"range"}
    if not kinds & {"module", "op"}:
        # Tables of kernels without the host's calls: the kernels themselves in their order.
        by_type = all(side.trace[KERNELS].has("op_type") for side in (a, b))
        return diff_trees(kernel_tree(a, step=step_a, by_type=by_type), kernel_tree(b, step=step_b, by_type=by_type))
    return diff_trees(
        work_tree(a, step=step_a, kinds=kinds, ranges=ranges),
        work_tree(b, step=step_b, kinds=kinds, ranges=ranges),
        kinds=tuple(sorted(kinds)),
    )


def diff_trees(a: WorkTree, b: WorkTree, *, kinds: tuple[str, ...] = ()) -> TreeDiff:
    """Two trees side by side."""
    labels = _sorted(Text.concat([a.label, b.label]).compact())
    key = labels.codes.astype(np.int64) * len(CLASSES) + np.concatenate((a.kind, b.kind))
    key_a, key_b = key[: len(a)], key[len(a) :]
    found = align(_labelled(a, key_a), _labelled(b, key_b), _own(a), _own(b))
    parent, of_a, of_b = _joined(a, b, found)
    # Key of each joined call, from whichever side has it.
    keys = np.full(len(parent), -1, np.int64)
    for of, own, into in ((of_a, key_a, found.into_a), (of_b, key_b, found.into_b)):
        keys[of[into < 0]] = own[into < 0]
    calls_a = np.bincount(of_a[found.into_a < 0], minlength=len(parent)).astype(np.int64)
    calls_b = np.bincount(of_b[found.into_b < 0], minlength=len(parent)).astype(np.int64)
    row_of, row_parent, row_key = _by_path(parent, keys)
    count = len(row_parent) + 1
    # Row 1 holds what is not attributed; the others move up by one.
    row_of = np.where(row_of > 0, row_of + 1, 0)
    row_parent = np.where(row_parent > 0, row_parent + 1, row_parent)
    row_parent = np.concatenate((row_parent[:1], [-1], row_parent[1:]))
    row_a, row_b = (
        np.where(tree.node >= 0, row_of[of[np.clip(tree.node, 0, None)]], 1) for tree, of in ((a, of_a), (b, of_b))
    )
    self_a, self_b = (_summed(row, tree.tasks.dur_ns, count) for row, tree in ((row_a, a), (row_b, b)))
    names = Text.concat([
        Text((row_key[:1] // len(CLASSES)).astype(np.int32), labels.values), Text.of([NOT_ATTRIBUTED]),
        Text((row_key[1:] // len(CLASSES)).astype(np.int32), labels.values),
    ])  # fmt: skip
    kind = np.concatenate((row_key[:1] % len(CLASSES), [CODE["not_attributed"]], row_key[1:] % len(CLASSES)))
    rows = TreeRows(
        parent=row_parent, label=names, kind=kind,
        calls_a=_with_lost(_summed(row_of, calls_a, count), row_a),
        calls_b=_with_lost(_summed(row_of, calls_b, count), row_b),
        tasks_a=np.bincount(row_a, minlength=count).astype(np.int64),
        tasks_b=np.bincount(row_b, minlength=count).astype(np.int64),
        self_a_ns=self_a, self_b_ns=self_b,
        total_a_ns=_with_below(self_a, row_parent), total_b_ns=_with_below(self_b, row_parent),
    )  # fmt: skip
    return TreeDiff(a=a, b=b, rows=rows, row_a=row_a, row_b=row_b, alignment=found, kinds=kinds)


def _sorted(labels: Text) -> Text:
    """Labels with numbers by the alphabet: they must not depend on which side is A."""
    order = sorted(range(len(labels.values)), key=labels.values.__getitem__)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return Text(rank[labels.codes], [labels.values[code] for code in order])


def _labelled(tree: WorkTree, key: Ints) -> LabelledTree:
    meets = np.full(len(tree), MEET_NEVER, np.int64)
    for name, how in _MEETS.items():
        meets[tree.kind == CODE[name]] = how
    return LabelledTree(parent=tree.parent, last=tree.last, label=key, meets=meets)


def _own(tree: WorkTree) -> Ints:
    return np.bincount(tree.node[tree.node >= 0], minlength=len(tree)).astype(np.int64)


def _joined(a: WorkTree, b: WorkTree, found: Alignment) -> tuple[Ints, Ints, Ints]:
    """The calls of both sides as one tree: parents, and the joined call of each node of A and of B.

    Joined calls lie parents first: those of A in preorder, then those that only B has.
    """
    partner_a, partner_b = np.full(len(a), -1, np.int64), np.full(len(b), -1, np.int64)
    partner_a[found.a], partner_b[found.b] = found.b, found.a
    # The root first, then pairs and calls of A, then calls of B.
    of_a, up_a = _numbered(a.parent, found.into_a, partner_a, np.full(len(a), -1, np.int64), 0)
    paired = np.full(len(b), -1, np.int64)
    paired[found.b] = of_a[found.a]
    of_b, up_b = _numbered(b.parent, found.into_b, partner_b, paired, len(up_a))
    return np.array([*up_a, *up_b], np.int64), of_a, of_b


def _numbered(parent: Ints, into: Ints, partner: Ints, given: Ints, first: int) -> tuple[Ints, list[int]]:
    """Joined call of each node, and the parents of those that are new. Of a pair it is the nearest pair above it."""
    of, near = [0] * len(parent), [0] * len(parent)
    ups: list[int] = []
    rows = zip(parent.tolist(), into.tolist(), partner.tolist(), given.tolist(), strict=True)
    for node, (up, to, mate, known) in enumerate(rows):
        above = near[up] if up >= 0 else -1
        if to >= 0:
            of[node], near[node] = of[to], above
            continue
        if known >= 0:
            of[node] = known
        else:
            of[node] = first + len(ups)
            ups.append(above if mate >= 0 else of[up])
        near[node] = of[node] if mate >= 0 else above
    return np.array(of, np.int64), ups


def _by_path(parent: Ints, key: Ints) -> tuple[Ints, Ints, Ints]:
    """Joined calls of equal path as one row: row of each, parents of the rows, keys of the rows; parents come first."""
    depth = depths(parent)
    width = int(key.max(initial=0)) + 1
    row = np.full(len(parent), -1, np.int64)
    parents, keys, made = [], [], 0
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = order[low:high]
        above = np.where(parent[mine] >= 0, row[np.clip(parent[mine], 0, None)], -1)
        paths, inverse = np.unique((above + 1) * width + key[mine], return_inverse=True)
        row[mine] = made + inverse
        parents.append(paths // width - 1)
        keys.append(paths % width)
        made += len(paths)
    return row, np.concatenate(parents), np.concatenate(keys)


def _summed(of: Ints, amounts: Ints, count: int) -> Ints:
    """Sums of whole numbers by row; `bincount` with weights would go through floats."""
    result = np.zeros(count, np.int64)
    np.add.at(result, of, amounts)
    return result


def _with_lost(calls: Ints, row: Ints) -> Ints:
    """What is not attributed has no calls: each task is one."""
    calls[1] = int((row == 1).sum())
    return calls


def _with_below(self_ns: Ints, parent: Ints) -> Ints:
    total: Ints = self_ns.copy()
    depth = depths(parent)
    for level in range(int(depth.max(initial=0)), 0, -1):
        mine = np.flatnonzero(depth == level)
        np.add.at(total, parent[mine], total[mine])
    return total


@dataclass(frozen=True, kw_only=True)
class Change:
    """A row and what changed in it."""

    row: int
    path: tuple[str, ...]
    side: Side
    kind: str
    calls_a: int
    calls_b: int
    time_a_ns: int
    time_b_ns: int
    parts: Split
    kernels_a: tuple[KernelSum, ...] = ()
    """The tasks behind it, the longest total first, at most `MAX_KERNELS`."""
    kernels_b: tuple[KernelSum, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelSum:
    """Tasks of one name in a row."""

    name: str
    via: str
    """The operator that launched them, where it is another one than the row."""
    count: int
    time_ns: int


MAX_KERNELS: Final = 4
"""Names of tasks that are told of a row on each side. Status: assumed."""


def changes(diff: TreeDiff, most: int | None = None) -> list[Change]:
    """Rows that have time of their own, the largest difference first; equal ones by path.

    Args:
        diff: two trees side by side.
        most: how many; None: all.
    """
    rows = diff.rows
    there = np.flatnonzero((rows.self_a_ns > 0) | (rows.self_b_ns > 0))
    order = sorted(
        there.tolist(), key=lambda row: (-abs(int(rows.self_b_ns[row] - rows.self_a_ns[row])), rows.path(row))
    )[:most]  # fmt: skip
    behind_a = kernel_sums(diff.a, diff.row_a, order, rows)
    behind_b = kernel_sums(diff.b, diff.row_b, order, rows)
    return [
        Change(
            row=row, path=rows.path(row), side=rows.side(row), kind=CLASSES[int(rows.kind[row])],
            calls_a=int(rows.calls_a[row]), calls_b=int(rows.calls_b[row]),
            time_a_ns=int(rows.self_a_ns[row]), time_b_ns=int(rows.self_b_ns[row]),
            parts=split(
                int(rows.calls_a[row]), int(rows.self_a_ns[row]), int(rows.calls_b[row]), int(rows.self_b_ns[row])
            ),
            kernels_a=behind_a.get(row, ()), kernels_b=behind_b.get(row, ()),
        )
        for row in order
    ]  # fmt: skip


def kernel_sums(tree: WorkTree, row: Ints, wanted: list[int], rows: TreeRows) -> dict[int, tuple[KernelSum, ...]]:
    """Tasks by name for some of the rows."""
    picked = np.flatnonzero(np.isin(row, np.array(wanted, np.int64)))
    if not len(picked):
        return {}
    name, via = tree.tasks.name.take(picked), tree.via.take(picked)
    groups, of = distinct(row[picked], name.codes, via.codes)
    time = _summed(of, tree.tasks.dur_ns[picked], groups.shape[1])
    count = np.bincount(of, minlength=groups.shape[1])
    made: dict[int, list[KernelSum]] = {}
    order = np.argsort(-time, kind="stable")
    for at, names, vias, times, counts in zip(
        groups[0][order].tolist(), groups[1][order].tolist(), groups[2][order].tolist(), time[order].tolist(),
        count[order].tolist(), strict=True,
    ):  # fmt: skip
        found = made.setdefault(at, [])
        if len(found) < MAX_KERNELS:
            called = via.values[vias] if vias >= 0 else ""
            found.append(
                KernelSum(
                    name=name.values[names] if names >= 0 else "", via="" if called == rows.label[at] else called,
                    count=counts, time_ns=times,
                )
            )  # fmt: skip
    return {at: tuple(found) for at, found in made.items()}
