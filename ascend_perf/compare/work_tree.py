"""The work of one step as a tree: what the host called, and the tasks of the device below the calls that launched them.

Only calls that led to a task are nodes: modules, operators and ranges. The parts of their names that number instances
("Linear_3", "batch 17") are taken off, so that trees of two recordings can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._flame_device import Tasks, all_tasks
from ascend_perf.analyzers._flame_tree import CODE, depths
from ascend_perf.analyzers._host_nest import TABLES, HostNest, host_nest
from ascend_perf.model.table import NULL, Bools, Ints, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_OPS, KERNELS, STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import kernel_classes

MAX_DEPTH: Final = 128
"""Deeper calls count with their ancestor at this depth. Status: assumed; recursion of this depth says nothing more."""

ROOT_LABEL: Final = "step"

_MODULE_NUMBER: Final = re.compile(r"_\d+$")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class WorkTree:
    """Nodes in preorder, shape (n,): node 0 is the step itself, the nodes below node i are i + 1 to `last[i]` - 1."""

    parent: Ints
    """-1 for node 0 alone."""
    last: Ints
    label: Text
    kind: Ints
    """Place in `_flame_tree.CLASSES`; the step counts as a thread."""
    op: Ints
    """Row of host_ops of each operator, -1 for other nodes."""
    tasks: Tasks
    """Tasks of the step, shape (m,)."""
    node: Ints
    """Innermost node of each task; -1 where the recording does not say what launched it."""
    via: Text
    """Innermost operator of each task, unknown where there is none."""
    step: int | None
    """Index of the step; None where the whole recording is taken."""

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def total_ns(self) -> int:
        """Sum of the durations of all tasks."""
        return int(self.tasks.dur_ns.sum())


@dataclass(frozen=True, kw_only=True)
class HostCalls:
    """Calls and tasks of a rank before a tree is made of them: read once, used for several trees."""

    trace: Trace
    nest: HostNest
    tasks: Tasks
    is_host: bool = False
    """Whether the tasks are the calls of the host themselves: the model runs on the CPU."""

    @classmethod
    def of(cls, trace: Trace) -> HostCalls:
        """Of one rank. Where the model runs on the CPU each call is a task of its own time."""
        nest = host_nest(trace)
        tasks = all_tasks(trace, nest)
        if trace.meta.device.kind == "cpu" and not len(tasks.dur_ns) and len(nest):
            return cls(trace=trace, nest=nest, tasks=_own_time(trace, nest), is_host=True)
        return cls(trace=trace, nest=nest, tasks=tasks)

    def kinds(self) -> frozenset[str]:
        """Which of module, op and range led to tasks."""
        used = self.nest.is_used(self.tasks.launch)
        return frozenset(name for name in ("module", "op", "range") if (self.nest.kind[used] == CODE[name]).any())

    def ranges(self) -> frozenset[str]:
        """Labels of the ranges that led to tasks."""
        used = self.nest.is_used(self.tasks.launch) & (self.nest.kind == CODE["range"])
        return frozenset(
            label_of(name, CODE["range"]) for name in self.nest.name.take(used).compact().values if name
        )  # fmt: skip


def _own_time(trace: Trace, nest: HostNest) -> Tasks:
    """The time of each call in each step without that of the calls below it. What falls between calls is in none."""
    windows = _steps.step_windows(trace)
    rows, times, steps = [], [], []
    inner = np.flatnonzero(nest.parent >= 0)
    for step in range(len(windows)):
        low, high = windows.window(step)
        own = np.clip(np.minimum(nest.ends, high) - np.maximum(nest.starts, low), 0, None)
        below = own[inner]
        np.subtract.at(own, nest.parent[inner], below)
        picked = np.flatnonzero(own > 0)
        rows.append(picked)
        times.append(own[picked])
        steps.append(np.full(len(picked), step, np.int64))
    at = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return Tasks(
        name=nest.name.take(at), kind=nest.kind[at], dur_ns=np.concatenate(times) if times else at, launch=at,
        step=np.concatenate(steps) if steps else at, row=nest.source[at],
    )  # fmt: skip


def label_of(name: str, kind: int) -> str:
    """The name without what numbers its instance: `Linear` of the module Linear_3, `batch #` of the range batch 17."""
    if kind == CODE["module"]:
        return _MODULE_NUMBER.sub("", name) or name
    return _NUMBER.sub("#", name) if kind == CODE["range"] else name


def work_tree(
    calls: HostCalls, *, step: int | None = None, kinds: Collection[str], ranges: Collection[str]
) -> WorkTree:
    """The tree of one step.

    A task belongs to the step in which it was launched; one without a known launch to the step in which it ran. Where
    the recording has one step, or none, everything it holds is taken: tasks that a step before launched are in the row
    of what is not attributed.

    Args:
        calls: the rank.
        step: index of the step; None: the one of median length.
        kinds: which of module, op and range become nodes.
        ranges: labels of the ranges that become nodes.
    """
    nest = calls.nest
    at, tasks = _chosen(calls, step)
    used = nest.is_used(tasks.launch)
    wanted = np.zeros(len(nest), bool)
    for name in kinds:
        wanted |= nest.kind == CODE[name]
    wanted &= used
    is_range = nest.kind == CODE["range"]
    if is_range.any():
        wanted &= ~is_range | nest.name.flags(lambda name: label_of(name, CODE["range"]) in ranges)
    rows = np.flatnonzero(wanted)
    up = nest.within(rows)
    shallow = depths(up) < MAX_DEPTH - 1
    rows = rows[shallow] if not shallow.all() else rows
    rows = _backward_last(nest, rows)
    number = np.full(len(nest), -1, np.int64)
    number[rows] = np.arange(1, len(rows) + 1)
    ascending = np.sort(rows)
    within = nest.within(ascending)
    parent_of = np.full(len(nest), 0, np.int64)
    parent_of[ascending] = np.where(within >= 0, number[ascending[np.clip(within, 0, None)]], 0) if len(rows) else 0
    parent = np.concatenate(([-1], parent_of[rows])).astype(np.int64)
    kind = np.concatenate(([CODE["thread"]], nest.kind[rows])).astype(np.int64)
    place = nest.innermost(ascending, tasks.launch)
    node = np.where(place >= 0, number[ascending[np.clip(place, 0, None)]] if len(rows) else 0, 0)
    ops = np.flatnonzero((nest.kind == CODE["op"]) & used)
    inner = nest.innermost(ops, tasks.launch)
    via = nest.name.take(ops[np.clip(inner, 0, None)]) if len(ops) else Text.full(len(inner), None)
    return WorkTree(
        parent=parent, last=_last(parent), label=_labels(nest, rows), kind=kind, tasks=tasks,
        op=np.concatenate(([-1], np.where(nest.table[rows] == TABLES.index(HOST_OPS), nest.source[rows], -1))),
        node=np.where(tasks.launch >= 0, node, -1).astype(np.int64),
        via=Text(np.where(inner >= 0, via.codes, -1).astype(np.int32), via.values), step=at,
    )  # fmt: skip


def kernel_tree(calls: HostCalls, *, step: int | None = None, by_type: bool) -> WorkTree:
    """The tasks of a step as children of the step, in their order: what recordings without calls of the host allow.

    Args:
        calls: the rank.
        step: as in `work_tree`.
        by_type: label kernels by their op type; else by the class of their work, which any two vendors share.
    """
    at, tasks = _chosen(calls, step)
    kernels = calls.trace[KERNELS]
    is_kernel = tasks.kind == CODE["kernel"]
    named = kernels.text("op_type") if by_type else kernel_classes(kernels)
    both = Text.concat([named.take(tasks.row[is_kernel]), tasks.name])
    codes = both.codes[int(is_kernel.sum()) :].copy()
    typed = both.codes[: int(is_kernel.sum())]
    codes[is_kernel] = np.where(typed >= 0, typed, codes[is_kernel])
    order = np.argsort(_starts(calls.trace, tasks), kind="stable")
    count = len(order)
    node = np.empty(count, np.int64)
    node[order] = np.arange(1, count + 1)
    parent = np.zeros(count + 1, np.int64)
    parent[0] = -1
    return WorkTree(
        parent=parent, last=np.concatenate(([count + 1], np.arange(2, count + 2))),
        label=Text.concat([Text.full(1, ROOT_LABEL), Text(codes[order], both.values)]),
        kind=np.concatenate(([CODE["thread"]], tasks.kind[order])), op=np.full(count + 1, -1, np.int64), tasks=tasks,
        node=node, via=Text.full(count, None), step=at,
    )  # fmt: skip


def _chosen(calls: HostCalls, step: int | None) -> tuple[int | None, Tasks]:
    """The step, None for the whole recording, and its tasks."""
    windows = _steps.step_windows(calls.trace)
    at = step if step is not None else _steps.representative(calls.trace, windows)
    if at is None or (len(windows) <= 1 and not calls.is_host):
        return None, calls.tasks
    return at, calls.tasks.taken(_of_step(calls, at))


def _starts(trace: Trace, tasks: Tasks) -> Ints:
    starts = np.full(len(tasks.row), NULL, np.int64)
    for spec, kind in ((KERNELS, "kernel"), (COMM_OPS, "communication"), (COPIES, "copy")):
        mine = tasks.kind == CODE[kind]
        starts[mine] = trace[spec].ints("start_ns")[tasks.row[mine]]
    return starts


def _of_step(calls: HostCalls, step: int) -> Bools:
    """Tasks of a step: by their launch on the host where both are known, else by the time when they ran."""
    trace, nest, tasks = calls.trace, calls.nest, calls.tasks
    steps = trace[STEPS]
    starts, durations = steps.ints("host_start_ns"), steps.ints("host_dur_ns")
    windows = _steps.step_windows(trace)
    own = tasks.step == step
    if calls.is_host:
        return np.asarray(own, bool)
    # One row of `steps` is one window, in order of start, unless a row has no time.
    if len(steps) != len(windows) or bool(((starts == NULL) | (durations == NULL)).any()):
        return np.asarray(own, bool)
    order = np.argsort(steps.ints("start_ns"), kind="stable")
    low = int(starts[order[step]])
    high = low + int(durations[order[step]])
    launched = nest.starts[np.clip(tasks.launch, 0, None)] if len(nest) else np.zeros(len(own), np.int64)
    return np.asarray(np.where(tasks.launch >= 0, (launched >= low) & (launched < high), own), bool)


def _backward_last(nest: HostNest, rows: Ints) -> Ints:
    """Rows thread by thread, those that run the backward pass after the others: their order in a nest is by number."""
    if not len(rows):
        return rows
    threads, of = np.unique(nest.thread[rows], return_inverse=True)
    is_backward = nest.name.take(rows).flags(lambda name: name.startswith("autograd::engine::"))
    behind = np.bincount(of, is_backward, len(threads)) > 0
    first = np.full(len(threads), np.iinfo(np.int64).max)
    np.minimum.at(first, of, nest.starts[rows])
    rank = np.empty(len(threads), np.int64)
    rank[np.lexsort((first, behind))] = np.arange(len(threads))
    return rows[np.argsort(rank[of], kind="stable")]


def _labels(nest: HostNest, rows: Ints) -> Text:
    named = nest.name.take(rows)
    kinds = nest.kind[rows]
    parts = [Text.full(1, ROOT_LABEL)]
    codes = np.full(len(rows), -1, np.int64)
    values: list[str] = []
    for kind in (CODE["module"], CODE["op"], CODE["range"]):
        mine = kinds == kind
        made = named.take(mine).compact().relabel(lambda name, kind=kind: label_of(name, kind))  # type: ignore[misc]
        codes[mine] = made.codes + len(values)
        values += made.values
    parts.append(Text(codes.astype(np.int32), values))
    return Text.concat(parts)


def _last(parent: Ints) -> Ints:
    """End of the rows below each node, of parents in preorder: by the sizes of subtrees, deepest first."""
    size = np.ones(len(parent), np.int64)
    depth = depths(parent)
    for level in range(int(depth.max(initial=0)), 0, -1):
        mine = np.flatnonzero(depth == level)
        np.add.at(size, parent[mine], size[mine])
    return np.arange(len(parent)) + size
