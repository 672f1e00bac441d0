"""Framework operators on the host: self time by operator and thread. On a CPU trace this is where the step goes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers import _steps
from ascend_perf.model.finding import Metric, Result, ResultColumn, ResultTable, Words
from ascend_perf.model.table import Ints, Table
from ascend_perf.model.tables import HOST_OPS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_quantity

TOP: Final = 200
"""Rows of the table."""


@analyzer(name="host-operators", needs=[HOST_OPS], order=82, section="host")
def host_operators(trace: Trace) -> Result:
    """Self and total time of framework operators, over all steps of the rank.

    Reads:
        host_ops: start_ns, dur_ns, name, thread, input_shapes.

    Returns:
        Table `host-ops`, one row per operator name, largest self time first. Self time is the duration less that of
        the operators called inside on the same thread, so that the rows of one thread add up to the time in which it
        was inside any operator. Shares refer to the sum of self times over all
        threads, not to the step: threads run side by side.
    """
    windows = _steps.step_windows(trace)
    ops = trace[HOST_OPS]
    inside = np.flatnonzero(_steps.membership(trace, ops, windows) >= 0)
    ops = ops.select(inside if len(inside) else np.arange(len(ops)))
    self_ns = self_times(ops)
    names = ops.text("name").compact()
    count = np.bincount(names.codes, minlength=len(names.values))
    own = np.bincount(names.codes, weights=self_ns, minlength=len(names.values)).astype(np.int64)
    whole = np.bincount(names.codes, weights=ops.ints("dur_ns"), minlength=len(names.values)).astype(np.int64)
    order = np.argsort(-own, kind="stable")[:TOP]
    busy_ns = int(self_ns.sum())
    steps = max(1, len(windows))
    example = {int(code): int(row) for row, code in reversed(list(enumerate(names.codes.tolist())))}
    shapes = ops.text("input_shapes")
    threads = np.unique(ops.ints("thread"))
    table = ResultTable(
        name="host-ops",
        title=Words("Operators on the host", "Host 侧算子"),
        columns=(
            ResultColumn(name="name", title=Words("Operator", "算子")),
            ResultColumn(name="count_per_step", title=Words("Calls per step", "每步次数"), unit="count"),
            ResultColumn(name="self_ns_per_step", title=Words("Self time per step", "每步自身耗时"), unit="ns"),
            ResultColumn(name="total_ns_per_step", title=Words("Total per step", "每步总耗时"), unit="ns"),
            ResultColumn(name="mean_self_ns", title=Words("Self time per call", "单次自身耗时"), unit="ns"),
            ResultColumn(name="share_ratio", title=Words("Share of operator time", "占算子耗时"), unit="ratio"),
            ResultColumn(name="cumulative_ratio", title=Words("Cumulative", "累计"), unit="ratio"),
            ResultColumn(name="example_shapes", title=Words("Shapes (first call)", "Shape（首次调用）")),
        ),
        data=(
            tuple(names.values[c] for c in order.tolist()),
            tuple((count[order] / steps).tolist()),
            tuple((own[order] / steps).tolist()),
            tuple((whole[order] / steps).tolist()),
            tuple((own[order] / count[order]).tolist()),
            tuple((own[order] / busy_ns).tolist()) if busy_ns else (None,) * len(order),
            tuple((np.cumsum(own[order]) / busy_ns).tolist()) if busy_ns else (None,) * len(order),
            tuple(shapes[example[c]] for c in order.tolist()),
        ),
        note=_note(len(ops), len(threads), steps),
    )
    metric = Metric(name="host_operator_time", value=busy_ns / steps, unit="ns", better="lower", rank=trace.meta.rank)
    return Result(tables=(table,), metrics=(metric,))


def self_times(ops: Table) -> Ints:
    """Duration of each op less the durations of its direct children on the same thread, ns, never below 0.

    Args:
        ops: rows of `host_ops`.
    """
    start, dur, thread = ops.ints("start_ns"), ops.ints("dur_ns"), ops.ints("thread")
    own = dur.copy()
    for one in np.unique(thread).tolist():
        rows = np.flatnonzero(thread == one)
        rows = rows[np.lexsort((-dur[rows], start[rows]))]
        up = intervals.parents(start[rows], start[rows] + dur[rows])
        child = np.flatnonzero(up >= 0)
        np.subtract.at(own, rows[up[child]], dur[rows[child]])
    return np.asarray(np.maximum(own, 0), np.int64)


def _note(calls: int, threads: int, steps: int) -> Words:
    many, on, over = (format_quantity(number, "count") for number in (calls, threads, steps))
    return Words(
        f"Self time of {many} {'call' if calls == 1 else 'calls'} on {on} {'thread' if threads == 1 else 'threads'} in "
        f"{over} {'step' if steps == 1 else 'steps'}; profiling itself lengthens host time.",
        f"统计 {over} 个 step、{on} 个线程上 {many} 次调用的自身耗时；采集本身会拉长 Host 耗时。",
    )
