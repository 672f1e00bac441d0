"""Time of device tasks under the calls of the host that launched them: by module, by Python stack, by operator.

A task belongs to the operator that the profile names for it, else to the runtime call of its correlation id; where the
task queue launched it, to the call that put it into the queue. Operators of the backward pass are placed below the
module or the function of their forward operator, the one with the same sequence number, under "(backward)".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._flame_tree import CODE, Rows, Tree, tree_of, with_counts_below
from ascend_perf.analyzers._host_nest import TABLES, HostNest
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace

DeviceView = Literal["module", "stack", "op"]

NOT_ATTRIBUTED: Final = "not attributed"
BACKWARD: Final = "(backward)"
MAX_FRAMES: Final = 100
"""Frames of a call stack that are shown; the outermost of deeper ones are left out. Status: assumed."""

_BACKWARD_NODE: Final = re.compile(r"^(?:autograd::engine::evaluate_function: )?\w*Backward\w*$")
"""Names of the nodes that autograd runs. Source: PyTorch, `torch/csrc/autograd` (MulBackward0, CppFunction names)."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Tasks of the device, shape (n,), and the row of the nest that launched each, -1 where unknown."""

    name: Text
    kind: Ints
    dur_ns: Ints
    launch: Ints
    """Row of the nest: the operator, else the runtime call."""
    step: Ints
    """Index of the step that each belongs to, -1 outside of steps."""
    row: Ints
    """Row of kernels, comm_ops or copies, as `kind` tells."""

    def taken(self, rows: Ints | Bools) -> Tasks:
        """Some of the tasks."""
        return Tasks(
            name=self.name.take(rows), kind=self.kind[rows], dur_ns=self.dur_ns[rows], launch=self.launch[rows],
            step=self.step[rows], row=self.row[rows],
        )  # fmt: skip


def device_tasks(trace: Trace, nest: HostNest) -> Tasks:
    """Kernels, collectives and copies that belong to a step; reads what `all_tasks` reads."""
    tasks = all_tasks(trace, nest)
    return tasks.taken(np.flatnonzero(tasks.step >= 0))


def all_tasks(trace: Trace, nest: HostNest) -> Tasks:
    """Kernels, collectives and copies with a duration, inside and outside of steps.

    Reads:
        kernels, comm_ops: name, dur_ns, step_id, host_op, correlation; copies: kind, name, dur_ns, step_id,
        correlation; host_events: kind, correlation of the task queue; runtime_calls: correlation.
    """
    windows = _steps.step_windows(trace)
    names, kinds, durations, launches, steps, sources = [], [], [], [], [], []
    enqueued = _enqueued(trace, nest)
    for spec, kind in ((KERNELS, "kernel"), (COMM_OPS, "communication"), (COPIES, "copy")):
        table = trace[spec]
        dur = table.ints("dur_ns")
        rows = np.flatnonzero((dur != NULL) & (dur > 0))
        launch = np.full(len(rows), -1, np.int64)
        if spec is not COPIES and len(nest.op):
            op = table.ints("host_op")[rows]
            known = (op >= 0) & (op < len(nest.op))
            launch = np.where(known, nest.op[np.where(known, op, 0)], -1)
        by_call = _calls_of(trace, table.ints("correlation")[rows], nest)
        launch = np.where(launch >= 0, launch, enqueued[by_call])
        names.append(table.text("name").take(rows).relabel(_task_name) if spec is not COPIES else _copies(table, rows))
        kinds.append(np.full(len(rows), CODE[kind], np.int64))
        durations.append(dur[rows])
        launches.append(launch)
        steps.append(_steps.membership(trace, table, windows)[rows])
        sources.append(rows)
    return Tasks(
        name=Text.concat(names),
        kind=np.concatenate(kinds),
        dur_ns=np.concatenate(durations),
        launch=np.concatenate(launches),
        step=np.concatenate(steps),
        row=np.concatenate(sources),
    )


_COLLECTIVE: Final = re.compile(r"^(hcom_[A-Za-z]+_?)_\d.*$")
"""hcom_allReduce__586_0_1: what follows the operation numbers the call."""


def _task_name(name: str) -> str:
    match = _COLLECTIVE.match(name)
    return match[1].rstrip("_") if match else name


def _copies(table: Table, rows: Ints) -> Text:
    kind = table.text("kind").take(rows)
    name = table.text("name").take(rows)
    both = Text.concat([kind.relabel(lambda word: f"copy {word}" if word != "MEMSET" else "memset"), name])
    codes = both.codes.reshape(2, -1)
    codes = np.where(codes[0] >= 0, codes[0], codes[1])
    values = [*both.values, "copy"]
    return Text(np.where(codes >= 0, codes, len(values) - 1).astype(np.int32), values).compact()


def _calls_of(trace: Trace, correlation: Ints, nest: HostNest) -> Ints:
    """Row of the nest of the runtime call of each correlation id, -1 where there is none."""
    ids = trace[RUNTIME_CALLS].ints("correlation")
    usable = np.flatnonzero((ids != NULL) & (nest.call >= 0))
    result = np.full(len(correlation), -1, np.int64)
    if not len(usable):
        return result
    order = usable[np.argsort(ids[usable], kind="stable")]
    place = np.clip(np.searchsorted(ids[order], correlation), 0, len(order) - 1)
    found = (ids[order][place] == correlation) & (correlation != NULL)
    result[found] = nest.call[order[place[found]]]
    return result


def _enqueued(trace: Trace, nest: HostNest) -> Ints:
    """For each row of the nest the row to look for operators at: of what runs in the task queue's own thread, the call
    that put it there. One entry more than rows, -1, so that an unknown row stays unknown."""
    result = np.append(np.arange(len(nest)), -1)
    events = trace[HOST_EVENTS]
    kind, ids = events.text("kind"), events.ints("correlation")
    there = (ids != NULL) & (nest.event >= 0) if len(events) else np.zeros(0, bool)
    taken, put = np.flatnonzero(kind.equals("dequeue") & there), np.flatnonzero(kind.equals("enqueue") & there)
    if not len(taken) or not len(put):
        return result
    put = put[np.argsort(ids[put], kind="stable")]
    place = np.clip(np.searchsorted(ids[put], ids[taken]), 0, len(put) - 1)
    found = ids[put][place] == ids[taken]
    rows, to = nest.event[taken[found]], nest.event[put[place[found]]]
    order = np.argsort(rows)
    rows, to = rows[order], to[order]
    at = nest.innermost(rows, np.arange(len(nest)))
    result[:-1] = np.where(at >= 0, to[np.clip(at, 0, None)], result[:-1])
    return result


def forward_of(trace: Trace, nest: HostNest) -> tuple[Ints, Ints]:
    """Rows of the nest that run a backward node, and the row of the operator that recorded each.

    Reads:
        host_ops: name, sequence_number, start_ns.

    Source:
        Kineto links a node to the operator of the same sequence number that began last (fwdbwd flows); operators that
        record nothing share the number of the next one that does.
    """
    ops = trace[HOST_OPS]
    sequence, start = ops.ints("sequence_number"), ops.ints("start_ns")
    usable = (sequence != NULL) & (sequence >= 0) & (nest.op >= 0) if len(ops) else np.zeros(0, bool)
    is_node = ops.text("name").flags(lambda word: bool(_BACKWARD_NODE.match(word)))
    nodes = np.flatnonzero(usable & is_node)
    rows = nest.op[nodes]
    inside = np.zeros(len(ops), bool)
    if len(rows):
        inside = nest.innermost(np.sort(rows), np.where(nest.op >= 0, nest.op, 0)) >= 0
    forward = np.flatnonzero(usable & ~inside)
    if not len(nodes) or not len(forward):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = forward[np.lexsort((start[forward], sequence[forward]))]
    # The last of (number, start) that is not after (number, start of the node).
    ranked = np.lexsort(
        (
            np.concatenate((np.zeros(len(order)), np.ones(len(nodes)))),
            np.concatenate((start[order], start[nodes])),
            np.concatenate((sequence[order], sequence[nodes])),
        )
    )
    is_forward = ranked < len(order)
    before = np.cumsum(is_forward) - 1
    place = np.empty(len(ranked), np.int64)
    place[ranked] = before
    at = place[len(order) :]
    picked = order[np.clip(at, 0, None)]
    found = (at >= 0) & (sequence[picked] == sequence[nodes])
    return rows[found], nest.op[picked[found]]


def device_tree(trace: Trace, nest: HostNest, tasks: Tasks, view: DeviceView) -> Tree | None:
    """The tree of one view, None where the profile has nothing to make it of (no modules, no stacks, no operators)."""
    maker = _View(trace, nest, tasks, view)
    return maker.tree()


@dataclass(frozen=True, kw_only=True)
class _Stacks:
    """For each task the code of a stack in `text`, -1 for none, and whether it is the one of the forward operator."""

    codes: Ints
    text: Text
    is_backward: Bools


class _View:
    """One view of the tasks in the making."""

    def __init__(self, trace: Trace, nest: HostNest, tasks: Tasks, view: DeviceView) -> None:
        self.trace, self.nest, self.tasks, self.view = trace, nest, tasks, view
        used = nest.is_used(tasks.launch)
        op, module, python = (nest.kind == CODE[name] for name in ("op", "module", "python"))
        ranges = nest.kind == CODE["range"]
        backward, self.forward = forward_of(trace, nest) if view != "op" else (np.empty(0, np.int64),) * 2
        keep = np.isin(backward, np.flatnonzero(used))
        self.backward, self.forward = backward[keep], self.forward[keep]
        if len(self.forward):
            used = used | nest.is_used(self.forward)
        frames = module | ranges if view == "module" else module | ranges | python
        if view == "op":
            self.frames: Bools = np.zeros(len(nest), bool)
            shown = (op | ranges) & used
        else:
            self.frames = frames & used
            # Of operators inside of operators the outermost is shown: the call that the user wrote.
            rows = np.flatnonzero((frames | op) & used)
            up = nest.within(rows)
            inner = (up >= 0) & op[rows] & op[rows[np.clip(up, 0, None)]]
            shown = np.zeros(len(nest), bool)
            shown[rows[~inner]] = True
        self.shown = np.flatnonzero(shown)
        self.is_known = {"module": module, "stack": module | python, "op": op}[view] & used

    def tree(self) -> Tree | None:
        nest, tasks = self.nest, self.tasks
        stacks = self._stacks() if self.view == "stack" else None
        if not self.is_known.any() and stacks is None:
            return None
        rows = nest.rows(self.shown)
        at = nest.innermost(self.shown, tasks.launch)
        if stacks is not None:
            rows, at = self._with_stacks(rows, at, stacks)
        rows = self._with_backward(rows)
        return self._with_tasks(rows, at)

    def _with_backward(self, rows: Rows) -> Rows:
        """Backward nodes moved below the frames of their forward operator."""
        if not len(self.backward):
            return rows
        nest = self.nest
        # A node runs inside of "evaluate_function", which has no number of its own everywhere: the operator that is
        # shown moves, once, to where the first node in it leads.
        order = np.argsort(self.backward)
        backward, forward = self.backward[order], self.forward[order]
        place = nest.innermost(self.shown, backward)
        at = self.shown[np.clip(place, 0, None)]
        is_node = nest.name.flags(lambda word: bool(_BACKWARD_NODE.match(word)))
        frames = np.flatnonzero(self.frames)
        home = nest.innermost(frames, forward)
        moved = np.flatnonzero((place >= 0) & (home >= 0) & (nest.kind[at] == CODE["op"]) & is_node[at])
        if not len(moved):
            return rows
        moved = moved[np.unique(place[moved], return_index=True)[1]]
        # One row "(backward)" for each node that moves: equal paths become one node of the tree.
        number = np.full(len(nest), -1, np.int64)
        number[self.shown] = np.arange(len(self.shown))
        parent = rows.parent.copy()
        parent[place[moved]] = len(rows) + np.arange(len(moved))
        added = Rows(
            parent=number[frames[home[moved]]],
            name=Text.full(len(moved), BACKWARD),
            kind=np.full(len(moved), CODE["backward"], np.int64),
        )
        return replace(rows, parent=parent).plus(added)

    def _stacks(self) -> _Stacks | None:
        """Stacks of the tasks whose launch lies in no call of Python; None where no task has one.

        The stack is that of the operator, or of the nearest around it that has one; in the backward pass that of the
        forward operator.
        """
        text = self.trace[HOST_OPS].text("stack")
        nest, launch = self.nest, self.tasks.launch
        has = nest.table == TABLES.index(HOST_OPS)
        has[has] = text.codes[nest.source[has]] >= 0
        rows = np.flatnonzero(has)
        if not len(rows):
            return None
        python = np.flatnonzero(self.is_known)
        at = nest.innermost(rows, launch)
        order = np.argsort(self.backward)
        backward, forward = self.backward[order], self.forward[order]
        node = nest.innermost(backward, launch)
        is_backward = (at < 0) & (node >= 0)
        recorded = forward[np.clip(node, 0, None)] if len(forward) else np.full(len(launch), -1, np.int64)
        at = np.where(is_backward, nest.innermost(rows, recorded), at)
        in_python = nest.innermost(python, np.where(is_backward, recorded, launch)) >= 0
        wanted = (at >= 0) & ~in_python
        if not wanted.any():
            return None
        codes = np.where(wanted, text.codes[nest.source[rows[np.clip(at, 0, None)]]], -1)
        return _Stacks(codes=codes.astype(np.int64), text=text, is_backward=is_backward & wanted)

    def _with_stacks(self, rows: Rows, at: Ints, stacks: _Stacks) -> tuple[Rows, Ints]:
        """Tasks that have a stack as text: its frames become rows, below them a copy of the operator."""
        picked = np.flatnonzero((stacks.codes >= 0) & (at >= 0))
        parents: list[int] = []
        names: list[str] = []
        index: dict[tuple[int, str], int] = {}

        def row_of(above: int, name: str) -> int:
            made = index.get((above, name))
            if made is None:
                made = index[above, name] = len(rows) + len(names)
                parents.append(above)
                names.append(name)
            return made

        # One loop over the distinct stacks, not over the tasks.
        called = np.stack((stacks.codes[picked], stacks.is_backward[picked].astype(np.int64)))
        distinct, of = np.unique(called, axis=1, return_inverse=True)
        ends = []
        for code, is_backward in distinct.T.tolist():
            above = -1
            for frame in stacks.text.values[code].split("\n")[:MAX_FRAMES][::-1]:
                above = row_of(above, frame)
            ends.append(row_of(above, BACKWARD) if is_backward else above)
        kind = np.array([CODE["backward" if name == BACKWARD else "python"] for name in names], np.int64)
        below = np.array(ends, np.int64)[of.ravel()]
        pairs, inverse = np.unique(np.stack((at[picked], below)), axis=1, return_inverse=True)
        frames = Rows(parent=np.array(parents, np.int64), name=Text.of(names), kind=kind)
        copies = Rows(parent=pairs[1], name=rows.name.take(pairs[0]), kind=rows.kind[pairs[0]])
        at = at.copy()
        at[picked] = len(rows) + len(frames) + inverse.ravel()
        return rows.plus(frames).plus(copies), at

    def _with_tasks(self, rows: Rows, at: Ints) -> Tree:
        tasks = self.tasks
        nowhere = len(rows)
        unknown = Rows(
            parent=np.array([-1]), name=Text.full(1, NOT_ATTRIBUTED), kind=np.array([CODE["not_attributed"]])
        )
        leaves = Rows(parent=np.where(at >= 0, at, nowhere), name=tasks.name, kind=tasks.kind)
        every = rows.plus(unknown).plus(leaves)
        zeros = np.zeros(len(rows) + 1, np.int64)
        return with_counts_below(
            tree_of(
                every,
                np.concatenate((zeros, tasks.dur_ns)),
                np.concatenate((zeros, np.ones(len(tasks.dur_ns), np.int64))),
            )
        )
