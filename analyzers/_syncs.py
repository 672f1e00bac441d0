"""Synchronising calls of the host by what caused them: the API, the operator and the line of Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Cause, Idle, Span, Sync, is_copy, syncs_of
from ascend_perf.analyzers._python_lines import around, ops_around
from ascend_perf.analyzers._steps import StepWindows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Evidence, ResultTable, Words
from ascend_perf.model.once import once
from ascend_perf.model.table import Bools, Ints, Text
from ascend_perf.model.tables import HOST_OPS
from ascend_perf.model.trace import Trace
from ascend_perf.units import counted

MAX_ROWS: Final = 60
MAX_LINES: Final = 3
"""Lines that a finding names."""
_COPIES: Final = frozenset(f"aten::{name}" for name in ("to", "_to_copy", "copy_", "pin_memory", "_pin_memory"))
"""Operators that may wait only because they copy to the device. Others of PyTorch wait for a value, or for the size of
their result."""


@dataclass(frozen=True, kw_only=True)
class Syncs:
    """Synchronising calls inside of the steps; arrays and texts of one length."""

    sync: Sync
    rows: Ints
    """Indexes into `sync`."""
    api: Text
    op: Text
    """Outermost operator of the same library around the call: `aten::item`, not what it calls itself."""
    line: Text
    reads: Bools
    """Whether a value of the device, or the size of a result, is read there."""
    step: Ints
    """Index of the step in which the call starts."""
    event: Ints
    """Equal for calls within one such operator; another number for each call that has none."""
    blocked_ns: Ints
    idle_ns: Ints
    """Idle time of the device that the call's draining of the queue left, the host's part of it."""

    def __len__(self) -> int:
        return len(self.rows)


@once
def syncs(trace: Trace, windows: StepWindows, idle: Idle | None) -> Syncs:
    """The synchronising calls that start in a step. A call within another on its thread counts with that one.

    Args:
        trace: the rank.
        windows: its steps.
        idle: its idle time, whose span has the steps then; without it none is put down to calls.

    Reads:
        runtime_calls, copies (see `Idle`); host_ops; python_calls.
    """
    sync = syncs_of(trace) if idle is None else idle.sync
    steps = windows if idle is None else idle.span
    step = _step_of(sync, steps.starts, steps.ends)
    rows = np.flatnonzero((step >= 0) & ~_nested(sync))
    found = around(trace, sync.threads[rows], sync.starts[rows])
    idle_ns = np.zeros(len(sync.starts), np.int64)
    if idle is not None:
        gaps = np.flatnonzero(idle.drained_by >= 0)
        cost = idle.by_gap[list(Cause).index(Cause.SYNC)]
        np.add.at(idle_ns, _outer(sync)[idle.drained_by[gaps]], cost[gaps])
    api, op = sync.names.take(rows), _named(trace, found.outer)
    return Syncs(
        sync=sync, rows=rows, api=api, op=op, line=found.line,
        reads=op.flags(lambda name: name.startswith("aten::") and name not in _COPIES) | api.flags(is_copy),
        step=step[rows], event=np.where(found.outer >= 0, found.outer, -1 - np.arange(len(rows))),
        blocked_ns=(sync.ends - sync.starts)[rows], idle_ns=idle_ns[rows],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What issued calls that drained the queue."""

    name: str
    """Innermost operator around the calls (`aten::_local_scalar_dense` for `.item()`), else the call itself."""
    count: int
    """The calls of one operator, such as its wait and its copy, are one."""
    idle_ns: int
    call: int
    """Index into `Sync` of the costliest."""


def owners_of(idle: Idle) -> list[Owner]:
    """What issued the calls that drained the queue, the costliest first."""
    gaps = np.flatnonzero(idle.drained_by >= 0)
    cost, by = idle.by_gap[list(Cause).index(Cause.SYNC)][gaps], idle.drained_by[gaps]
    sync, names = idle.sync, idle.trace[HOST_OPS].text("name")
    calls, place = np.unique(by, return_inverse=True)
    op, _ = ops_around(idle.trace[HOST_OPS], sync.threads[calls], sync.starts[calls])
    own = np.append(names.codes, -1)[op].astype(np.int64)
    own = np.where(own >= 0, own, len(names.values) + 1 + sync.names.codes[calls])
    labels, label = np.unique(own, return_inverse=True)
    pairs = np.unique(np.stack((label, np.where(op >= 0, op, -1 - calls))), axis=1)
    count, spent = np.bincount(pairs[0], minlength=len(labels)), np.bincount(label[place], cost, len(labels))
    by_cost, best = np.lexsort((-np.arange(len(gaps)), cost)), np.zeros(len(labels), np.int64)
    best[label[place][by_cost]] = by[by_cost]
    values = [*names.values, "", *sync.names.values]
    return [
        Owner(name=values[labels[at]], count=int(count[at]), idle_ns=int(spent[at]), call=int(best[at]))
        for at in np.argsort(-spent, kind="stable").tolist()
    ]


def sync_table(found: Syncs, steps: int) -> ResultTable:
    """Calls with equal API, operator and line together, those that leave the device idle longest first."""
    keys, of = np.unique(np.stack((found.api.codes, found.op.codes, found.line.codes)), axis=1, return_inverse=True)
    of = of.reshape(-1)
    groups = keys.shape[1]
    count = np.bincount(of, minlength=groups)
    blocked, idle = (
        np.bincount(of, values, groups).astype(np.int64) for values in (found.blocked_ns, found.idle_ns)
    )  # fmt: skip
    # The longest call of each group, to go and look at.
    by_length = np.lexsort((-np.arange(len(found)), found.blocked_ns))
    longest = np.full(groups, -1, np.int64)
    longest[of[by_length]] = by_length
    order = np.lexsort((-blocked, -idle))[:MAX_ROWS]
    per = max(1, steps)

    def named(text: Text, codes: Ints) -> list[str | None]:
        return [None if code < 0 else text.values[code] for code in codes.tolist()]

    return result_table(
        "syncs",
        Words("Synchronisations by cause", "同步调用及其来源"),
        (
            Col("api", "Call", "API", named(found.api, keys[0][order])),
            Col("op", "Operator", "算子", named(found.op, keys[1][order])),
            Col("line", "Python", "Python 代码行", named(found.line, keys[2][order])),
            Col("per_step", "per step", "每步次数", count[order] / per, "count"),
            Col("blocked_ns", "Host blocked, per step", "Host 阻塞（每步）", blocked[order] / per, "ns"),
            Col("idle_ns", "Device idles after it, per step", "之后设备空闲（每步）", idle[order] / per, "ns"),
            Col("longest_ns", "Longest", "最长", found.blocked_ns[longest[order]], "ns"),
            Col("start_ns", "At", "时刻", found.sync.starts[found.rows[longest[order]]]),
        ),
        Words(
            "Time that the host waits is lost only where the device has nothing queued then. The line is the innermost "
            "one outside of PyTorch, from call stacks or Python calls (with_stack=True); of calls in the backward pass "
            "it is that of the forward operator.",
            "只有当设备队列已空时，Host 的等待才造成损失。代码行为 PyTorch 之外最内层的一行，来自调用栈或 Python 调用"
            "（with_stack=True）；反向过程中的调用取其前向算子的代码行。",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of Python that synchronises; an operator where the profile has no lines."""

    text: str
    by: str
    """Operator of the line, else the call; "" where `text` is the operator."""
    count: int
    """How often it synchronises: the calls of one operator, such as the copy and the wait of `.item()`, are one."""
    steps: frozenset[int]
    """Indexes of the steps in which it does."""
    read_steps: frozenset[int]
    """Of those in which it reads a value of the device."""
    idle_ns: int
    start_ns: int
    """The costliest one."""


def is_each_step(steps: frozenset[int], span: Span) -> bool:
    """Whether these are all marked steps; a recording may end before the last one does."""
    return span.step_ids != (None,) and steps.issuperset(range(max(1, span.steps - 1)))


def lines_of(found: Syncs) -> list[Line]:
    """The lines of Python that synchronise, or the operators where no line is known at all: those whose calls leave the
    device idle longest first, of equal ones those where the host waits longest; no more than `MAX_ROWS`."""
    has_lines = bool((found.line.codes >= 0).any())
    names = found.line if has_lines else found.op
    known = np.flatnonzero(names.codes >= 0)
    codes = names.codes[known]
    idle, blocked = (np.bincount(codes, spent[known]).astype(np.int64) for spent in (found.idle_ns, found.blocked_ns))
    lines: list[Line] = []
    for code in np.lexsort((-blocked, -idle))[:MAX_ROWS].tolist():
        mine = known[codes == code]
        if not len(mine):
            continue
        row = int(mine[np.lexsort((found.blocked_ns[mine], found.idle_ns[mine]))[-1]])
        lines.append(
            Line(
                text=names.values[code], by=(found.op[row] or found.api[row] or "") if has_lines else "",
                count=len(np.unique(found.event[mine])), steps=frozenset(found.step[mine].tolist()),
                read_steps=frozenset(found.step[mine[found.reads[mine]]].tolist()),
                idle_ns=int(idle[code]), start_ns=int(found.sync.starts[found.rows[row]]),
            )
        )  # fmt: skip
    return lines


def line_evidence(lines: Sequence[Line], steps: int) -> list[Evidence]:
    """The first lines, and how often they synchronise; that there are none in this data where these are operators."""
    if lines and not lines[0].by:
        return [
            Evidence(
                name=Words("line of Python that synchronises most", "同步最多的 Python 代码行"), value=None,
                where="call stacks name it (with_stack=True)",
            )
        ]  # fmt: skip
    return [
        Evidence(
            name=Words("line of Python that synchronises too", "同样同步的 Python 代码行") if place
            else Words("line of Python that synchronises most", "同步最多的 Python 代码行"),
            value=f"{line.text} ({line.by}, {line.count} x in {counted(steps, 'step')})",
            where="python_calls and call stacks around the calls; table syncs has the others",
            start_ns=line.start_ns,
        )
        for place, line in enumerate(lines[:MAX_LINES])
    ]  # fmt: skip


def _step_of(sync: Sync, starts: Ints, ends: Ints) -> Ints:
    """Of each call the index of the window in which it starts, -1 outside of them; all are in one where there are
    none."""
    if not len(starts):
        return np.zeros(len(sync.starts), np.int64)
    place = np.searchsorted(starts, sync.starts, side="right") - 1
    return np.where((place >= 0) & (sync.starts < ends[np.clip(place, 0, None)]), place, -1)


def _outer(sync: Sync) -> Ints:
    """Of each call the outermost synchronising call of its thread that contains it, itself where there is none."""
    outer = np.arange(len(sync.starts))
    for thread in np.unique(sync.threads).tolist():
        mine = np.flatnonzero(sync.threads == thread)
        mine = mine[np.lexsort((-sync.ends[mine], sync.starts[mine]))]
        up = intervals.parents(sync.starts[mine], sync.ends[mine])
        root = np.arange(len(mine))
        while (climbing := np.flatnonzero(up[root] >= 0)).size:
            root[climbing] = up[root[climbing]]
        outer[mine] = mine[root]
    return outer.astype(np.int64)


def _nested(sync: Sync) -> Bools:
    nested: Bools = _outer(sync) != np.arange(len(sync.starts))
    return nested


def _named(trace: Trace, rows: Ints) -> Text:
    """Names of operators; -1 is none."""
    names = trace[HOST_OPS].text("name")
    if not len(names):
        return Text.full(len(rows), None)
    codes = np.where(rows >= 0, names.codes[np.clip(rows, 0, None)], -1)
    return Text(codes.astype(np.int32), names.values)
