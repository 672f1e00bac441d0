"""Arrows from the call of the host that launched a task to the task on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Ints, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._slices import ALONE, Plan

_SAME: Final = 8
"""Calls that begin at one nanosecond among which the one of the task's id is looked for."""


@dataclass(frozen=True, kw_only=True)
class Flows:
    """Arrows: lane and time of both ends, shape (n,), on the common clock; and tasks without one that are drawn."""

    from_lane: Ints
    from_ns: Ints
    to_lane: Ints
    to_ns: Ints
    unlinked: int

    def __len__(self) -> int:
        return len(self.to_ns)


def flows_of(plan: Plan, trace: Trace) -> Flows:
    """The arrows of a trace whose slices are settled.

    The launch is the runtime call with the task's correlation id that begins when its launch does; where runtime calls
    are not recorded, the operator that the profile names for the task. Both ends must be drawn.
    """
    made: list[tuple[Ints, Ints, Ints, Ints]] = []
    unlinked = 0
    calls, ops = plan.layer(RUNTIME_CALLS.name), plan.layer(HOST_OPS.name)
    for spec in (KERNELS, COPIES, COMM_OPS):
        layer = plan.layer(spec.name)
        if layer is None:
            continue
        table = trace[spec]
        from_lane, from_ns = np.full(len(layer), ALONE, np.int64), np.zeros(len(layer), np.int64)
        if calls is not None:
            row = _call_of(table, trace[RUNTIME_CALLS])[layer.rows]
            at = calls.place_of(row, len(trace[RUNTIME_CALLS]))
            fits = at >= 0
            from_lane[fits], from_ns[fits] = calls.lane[at[fits]], calls.starts[at[fits]]
        if ops is not None and "host_op" in {column.name for column in spec.columns}:
            at = ops.place_of(table.ints("host_op")[layer.rows], len(trace[HOST_OPS]))
            fits = (from_lane < 0) & (at >= 0)
            start, end = ops.starts[at[fits]], ops.ends[at[fits]]
            launch = table.ints("launch_start_ns")[layer.rows[fits]]
            launch = np.where(launch == NULL, start, np.where(launch == NULL, 0, launch) - plan.shift_ns)
            # At its very end a slice is over: the arrow would begin nowhere.
            from_lane[fits], from_ns[fits] = ops.lane[at[fits]], np.clip(launch, start, np.maximum(start, end - 1))
        linked = (from_lane >= 0) & (layer.lane >= 0)
        unlinked += int((~linked).sum())
        made.append((from_lane[linked], from_ns[linked], layer.lane[linked], layer.starts[linked]))
    columns = [np.concatenate(parts) for parts in zip(*made, strict=True)] if made else [np.empty(0, np.int64)] * 4
    return Flows(from_lane=columns[0], from_ns=columns[1], to_lane=columns[2], to_ns=columns[3], unlinked=unlinked)


def _call_of(table: Table, calls: Table) -> Ints:
    """Row of the runtime call that launched each task, -1 where none is known."""
    first, ids = table.ints("launch_start_ns"), table.ints("correlation")
    starts, call_ids = calls.ints("start_ns"), calls.ints("correlation")
    order = np.lexsort((call_ids, starts))
    place = np.searchsorted(starts[order], first, side="left")
    found = np.full(len(table), -1, np.int64)
    for step in range(_SAME):
        at = place + step
        open_ = (found < 0) & (first != NULL) & (at < len(order))
        row = order[np.clip(at, 0, len(order) - 1)]
        same = open_ & (starts[row] == first) & ((call_ids[row] == ids) | (ids == NULL) | (call_ids[row] == NULL))
        found[same] = row[same]
    return found
