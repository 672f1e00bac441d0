"""What traces of GPUs have in common, whatever recorded them: launches, operators, steps, kinds of events."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from ascend_perf import intervals
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table
from ascend_perf.parsers._numbers import wholes

COLLECTION: Final = re.compile(r"^(python )?(gc|garbage collect(ion|or)?)\b|\bgc\.collect\b", re.IGNORECASE)
"""Names of garbage collection: PyTorch's own "Python GC" and ranges that users put around it. Status: assumed."""

_STEP: Final = re.compile(r"ProfilerStep#(\d+)$")


def launches(correlation: Ints, runtime: Table) -> tuple[Ints, Ints, Ints]:
    """Row of the launch call of each task (-1 where there is none), its start and its end."""
    ids = runtime.ints("correlation")
    candidates = np.flatnonzero(ids != NULL)
    nothing = np.full(len(correlation), NULL, np.int64)
    if not len(candidates):
        return np.full(len(correlation), -1, np.int64), nothing, nothing
    order = candidates[np.argsort(ids[candidates], kind="stable")]
    position = np.clip(np.searchsorted(ids[order], correlation), 0, len(order) - 1)
    row = np.where(ids[order[position]] == correlation, order[position], -1)
    row = np.where(correlation == NULL, -1, row)
    start = runtime.ints("start_ns")
    end = start + runtime.ints("dur_ns")
    return row, np.where(row >= 0, start[row], NULL), np.where(row >= 0, end[row], NULL)


def host_op_of(external: Ints, launch: Ints, runtime: Table, host_ops: Table) -> Ints:
    """Row of the op that launched each task: by External id, else the innermost op around the launch call."""
    result = np.full(len(external), NULL, np.int64)
    if not len(host_ops):
        return result
    ids = host_ops.ints("correlation")
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] != NULL]
    if len(order):
        position = np.clip(np.searchsorted(ids[order], external), 0, len(order) - 1)
        found = (ids[order[position]] == external) & (external != NULL)
        result[found] = order[position][found]
    open_rows = np.flatnonzero((result == NULL) & (launch >= 0))
    if len(open_rows):
        thread = runtime.ints("thread")[launch[open_rows]]
        at = runtime.ints("start_ns")[launch[open_rows]]
        op_thread, starts = host_ops.ints("thread"), host_ops.ints("start_ns")
        ends = starts + host_ops.ints("dur_ns")
        for one in np.unique(thread).tolist():
            ops = np.flatnonzero(op_thread == one)
            mine = thread == one
            inner = intervals.enclosing(starts[ops], ends[ops], at[mine])
            result[open_rows[mine]] = np.where(inner >= 0, ops[np.clip(inner, 0, None)] if len(ops) else NULL, NULL)
    return result


def steps_of(host_events: Table) -> Table:
    """One step per ProfilerStep#N of the host."""
    if not len(host_events):
        return Table.empty(t.STEPS)
    rows = np.flatnonzero(host_events.text("kind").equals("step"))
    if not len(rows):
        return Table.empty(t.STEPS)
    numbers = host_events.text("name").numbers(lambda name: float(m[1]) if (m := _STEP.match(name)) else np.nan)[rows]
    return steps_at(wholes(numbers), host_events.ints("start_ns")[rows], host_events.ints("dur_ns")[rows])


def steps_at(numbers: Ints, start: Ints, dur: Ints) -> Table:
    """The table of steps with these numbers and marks of the host, in the order of time."""
    order = np.lexsort((start, numbers))
    # The same step may be marked on several threads: of marks that overlap the first stands for it. Marks of one
    # number at different times are different steps (a counter that began anew).
    same = numbers[order][1:] == numbers[order][:-1]
    overlaps = start[order][1:] < (start + dur)[order][:-1]
    order = order[np.concatenate((np.ones(min(1, len(order)), bool), ~(same & overlaps)))]
    order = order[np.argsort(start[order], kind="stable")]
    return Table(
        t.STEPS,
        {
            "step_id": numbers[order],
            "start_ns": start[order],
            "dur_ns": dur[order],
            "host_start_ns": start[order],
            "host_dur_ns": dur[order],
        },
    )


def one_step(device_tables: list[Table], host_tables: list[Table]) -> Table:
    """A trace without markers is one step: from the first to the last device event, else host event."""
    for group in (device_tables, host_tables):
        starts = np.concatenate([x.ints("start_ns") for x in group])
        if len(starts):
            ends = np.concatenate([x.ends_ns() for x in group])
            start = int(starts.min())
            return Table(
                t.STEPS,
                {
                    "step_id": np.array([NULL]),
                    "start_ns": np.array([start]),
                    "dur_ns": np.array([int(ends.max()) - start]),
                },
            )
    return Table.empty(t.STEPS)


def with_step_ids(table: Table, steps: Table) -> Table:
    """`step_id` of the window that holds the start of each row."""
    if not len(table):
        return table
    starts = steps.ints("start_ns")
    at = table.ints("start_ns")
    index = np.searchsorted(starts, at, side="right") - 1
    inside = (index >= 0) & (at < steps.ends_ns()[np.clip(index, 0, None)])
    return table.with_columns({"step_id": np.where(inside, steps.ints("step_id")[np.clip(index, 0, None)], NULL)})


def event_kind(name: str) -> str | None:
    """Kind of a host event by its name, None for a framework operator."""
    if _STEP.match(name):
        return "step"
    if name.startswith("enumerate(DataLoader)#"):
        return "dataloader"
    if name.startswith(("Optimizer.step#", "Optimizer.zero_grad#")):
        return "optimizer"
    if COLLECTION.search(name):
        return "gc"
    return None


def copy_kind(name: str) -> str | None:
    """Direction of a copy by the name of its event, None when it does not tell."""
    lower = name.lower()
    if "memset" in lower:
        return "MEMSET"
    for pattern, kind in (("htod", "H2D"), ("dtoh", "D2H"), ("dtod", "D2D"), ("htoh", "H2H"), ("ptop", "P2P")):
        if pattern in lower:
            return kind
    if "host -> device" in lower:
        return "H2D"
    return "D2H" if "device -> host" in lower else None


@lru_cache(maxsize=1 << 16)
def dims_of(text: str) -> str | None:
    """`[[1,2],[3],[]]` as `1,2;3;`; unknown when the shapes were not recorded."""
    if not text:
        return None
    try:
        dims = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(dims, list):
        return None
    cells = []
    for tensor in dims:
        is_flat = isinstance(tensor, list) and all(isinstance(d, int) for d in tensor)
        cells.append(",".join(map(str, tensor)) if is_flat else "")
    return ";".join(cells)
