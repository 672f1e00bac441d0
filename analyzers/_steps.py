"""Step windows of a rank, which rows belong to which step, and what the device did in each.

A window is what the reader put into `steps`. Where the trace has none, windows come from the step ids of the
kernels, else the whole capture is one window without id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ascend_perf import intervals
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS, STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import computes


@dataclass(frozen=True, kw_only=True)
class StepWindows:
    """Windows [starts[i], ends[i]) in ns in order of start; `ids` are `NULL` where the step has no number."""

    ids: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.ids)

    def step_id(self, i: int) -> int | None:
        """Number of step `i`, None when it has none."""
        value = int(self.ids[i])
        return None if value == NULL else value

    def window(self, i: int) -> tuple[int, int]:
        """Start and end of step `i` in ns."""
        return int(self.starts[i]), int(self.ends[i])

    def span_ns(self, i: int) -> int:
        """Length of step `i`."""
        return int(self.ends[i] - self.starts[i])


_NO_STEPS = StepWindows(ids=np.empty(0, np.int64), starts=np.empty(0, np.int64), ends=np.empty(0, np.int64))


@once
def step_windows(trace: Trace) -> StepWindows:
    """The windows of the steps of a rank; empty when no row of the trace has a time.

    Reads:
        steps: step_id, start_ns, dur_ns; without them kernels and comm_ops: start_ns, dur_ns, step_id; without
        these, copies and the host's tables.
    """
    declared = _declared(trace)
    if not len(declared):
        declared = _from_ids(trace)
    if not len(declared):
        return _whole(trace)
    return declared


def tells_steps(trace: Trace) -> bool:
    """Whether the trace has steps of its own; else its whole is one, and tables beside kernels and calls count."""
    return bool(len(_declared(trace)) or len(_from_ids(trace)))


def membership(trace: Trace, table: Table, windows: StepWindows | None = None) -> Ints:
    """Index of the step of each row, -1 outside of all steps.

    A row with a step id belongs to the step of that number; without one, to the step whose window holds its
    start (its `time_ns` in tables of samples).
    """
    return _membership(step_windows(trace) if windows is None else windows, table)


def in_step(trace: Trace, table: Table, i: int) -> Bools:
    """Rows of a table that belong to step `i`."""
    rows: Bools = membership(trace, table) == i
    return rows


def unions_by_step(
    trace: Trace, table: Table, rows: Bools | None = None, windows: StepWindows | None = None
) -> list[IntervalSet]:
    """Union of the rows' intervals per step, clipped to the step's window. One pass for all steps.

    A row that crosses from one step into the next counts in each with its part. Where windows overlap, a row counts
    only in the step it belongs to.

    Args:
        trace: the rank.
        table: an interval table (start_ns, dur_ns) of the trace.
        rows: mask of the rows to take; all when None.
        windows: `step_windows(trace)` if at hand.
    """
    windows = step_windows(trace) if windows is None else windows
    starts, ends = table.ints("start_ns"), table.ends_ns()
    usable = (starts != NULL) & (ends != NULL)
    if rows is not None:
        usable &= rows
    if bool((windows.starts[1:] >= windows.ends[:-1]).all()):
        whole = intervals.merged(starts[usable], ends[usable])
        return [intervals.clip(whole, *windows.window(i)) for i in range(len(windows))]
    of = _membership(windows, table)
    picked = np.flatnonzero(usable & (of >= 0))
    picked = picked[np.argsort(of[picked], kind="stable")]
    bounds = np.searchsorted(of[picked], np.arange(len(windows) + 1))
    unions = []
    for i in range(len(windows)):
        part = picked[bounds[i] : bounds[i + 1]]
        unions.append(intervals.clip(intervals.merged(starts[part], ends[part]), *windows.window(i)))
    return unions


def busy(trace: Trace, i: int) -> tuple[IntervalSet, IntervalSet]:
    """What the device computed and communicated in step `i`: unions of kernels and of collectives.

    Source:
        rivals-and-methods, method 5.1.
    """
    windows = step_windows(trace)
    computing = unions_by_step(trace, trace[KERNELS], computes(trace[KERNELS]), windows)[i]
    return computing, unions_by_step(trace, trace[COMM_OPS], windows=windows)[i]


def union_total_ns(unions: Sequence[IntervalSet]) -> int:
    """Length of the unions of all steps together."""
    return sum(intervals.total(union) for union in unions)


def step_total_ns(trace: Trace, windows: StepWindows | None = None) -> int:
    """Sum of the spans of all steps: what shares of the step are divided by."""
    windows = step_windows(trace) if windows is None else windows
    return int((windows.ends - windows.starts).sum())


def share_of_steps(trace: Trace, table: Table, rows: Bools) -> float | None:
    """Share of the steps in which at least one of the rows runs (union, never a sum over streams); 0..1.

    Returns:
        None when the steps have no length.
    """
    windows = step_windows(trace)
    whole = step_total_ns(trace, windows)
    if whole <= 0:
        return None
    return min(1.0, union_total_ns(unions_by_step(trace, table, rows, windows)) / whole)


def representative(trace: Trace, windows: StepWindows | None = None) -> int | None:
    """Index of the step to show: median span among the steps that used the device, None without steps.

    The first step is left out when there are more than two: it often still holds warm-up work.
    """
    windows = step_windows(trace) if windows is None else windows
    if not len(windows):
        return None
    used = np.zeros(len(windows), bool)
    for spec in (KERNELS, COMM_OPS):
        of = _membership(windows, trace[spec])
        used[of[of >= 0]] = True
    candidates = np.flatnonzero(used) if used.any() else np.arange(len(windows))
    if len(candidates) > 2:
        candidates = candidates[1:]
    spans = (windows.ends - windows.starts)[candidates]
    return int(candidates[np.argsort(spans, kind="stable")[(len(spans) - 1) // 2]])


def _declared(trace: Trace) -> StepWindows:
    steps = trace[STEPS]
    starts, ends = steps.ints("start_ns"), steps.ends_ns()
    rows = np.flatnonzero((starts != NULL) & (ends != NULL))
    rows = rows[np.argsort(starts[rows], kind="stable")]
    return StepWindows(ids=steps.ints("step_id")[rows], starts=starts[rows], ends=ends[rows])


def _from_ids(trace: Trace) -> StepWindows:
    ids, starts, ends = [], [], []
    for spec in (KERNELS, COMM_OPS):
        table = trace[spec]
        step, first, last = table.ints("step_id"), table.ints("start_ns"), table.ends_ns()
        rows = (step != NULL) & (first != NULL) & (last != NULL)
        ids.append(step[rows])
        starts.append(first[rows])
        ends.append(last[rows])
    every = np.concatenate(ids)
    if not len(every):
        return _NO_STEPS
    distinct, index = np.unique(every, return_inverse=True)
    low = np.full(len(distinct), np.iinfo(np.int64).max)
    high = np.full(len(distinct), np.iinfo(np.int64).min)
    np.minimum.at(low, index, np.concatenate(starts))
    np.maximum.at(high, index, np.concatenate(ends))
    order = np.argsort(low, kind="stable")
    return StepWindows(ids=distinct[order], starts=low[order], ends=high[order])


def _whole(trace: Trace) -> StepWindows:
    # Ascend's exporter counts from the first to the last kernel or collective; GPU tools count copies too.
    device = (KERNELS, COMM_OPS) if trace.meta.device.kind == "npu" else (KERNELS, COMM_OPS, COPIES)
    for specs in (device, (COPIES,), (HOST_OPS, HOST_EVENTS, RUNTIME_CALLS)):
        starts = np.concatenate([trace[spec].ints("start_ns") for spec in specs])
        ends = np.concatenate([trace[spec].ends_ns() for spec in specs])
        known = (starts != NULL) & (ends != NULL)
        if known.any():
            low, high = starts[known].min(), ends[known].max()
            return StepWindows(
                ids=np.array([NULL], np.int64),
                starts=np.array([low], np.int64),
                ends=np.array([high], np.int64),
            )
    return _NO_STEPS


def _membership(windows: StepWindows, table: Table) -> Ints:
    if not len(windows) or not len(table):
        return np.full(len(table), -1, np.int64)
    names = {column.name for column in table.spec.columns}
    at = table.ints("start_ns" if "start_ns" in names else "time_ns")
    index = np.searchsorted(windows.starts, at, side="right") - 1
    inside = (index >= 0) & (at != NULL)
    inside &= at < windows.ends[np.clip(index, 0, None)]
    # A row of no length at the very end of the last window (a marker task) still belongs to it.
    inside |= (at == windows.ends[-1]) & (index == len(windows) - 1)
    of = np.where(inside, index, -1).astype(np.int64)
    if "step_id" not in names or not (windows.ids != NULL).any():
        return of
    ids = table.ints("step_id")
    order = np.argsort(windows.ids, kind="stable")
    place = np.clip(np.searchsorted(windows.ids[order], ids), 0, len(order) - 1)
    numbered = order[place]
    same = (ids != NULL) & (windows.ids[numbered] == ids)
    # Numbers can repeat over profiling cycles: a row inside a window of its own number stays there.
    agrees = (of >= 0) & (windows.ids[np.clip(of, 0, None)] == ids)
    return np.where(same & ~agrees, numbered, np.where((ids != NULL) & ~same, -1, of)).astype(np.int64)
