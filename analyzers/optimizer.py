"""The optimizer phase: how much of the step it takes, and whether it runs parameter by parameter (C-14)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._fused_optimizers import class_of, remedies_for_class
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Judged, Metric, Result, Words
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns, format_quantity, format_ratio

MIN_SHARE_RATIO: Final = threshold("C-14", "min_share_ratio")

MIN_CALLS: Final = threshold("C-14", "min_calls")

_FUSED: Final = re.compile(r"fused_?adam|fused_?sgd|fused_?lamb|npufused|applyadamw?v?\d*|_fused_", re.IGNORECASE)


@analyzer(name="optimizer", needs=[HOST_EVENTS], order=35, section="operators")
def optimizer(trace: Trace) -> Result:
    """Report optimizer phases that take 5 % of the step or more with hundreds of small kernels.

    Reads:
        host_events: kind optimizer (`Optimizer.step#...`); kernels: start_ns, dur_ns, launch_start_ns, name;
        on a CPU trace host_ops: start_ns, dur_ns, name, thread.

    Returns:
        Finding C-14. Its share is the union of the kernels launched inside the phase (on a CPU: of the phase itself)
        over the steps; an upper bound, since a fused optimizer still needs part of the time.
    """
    events = trace[HOST_EVENTS]
    rows = events.text("kind").equals("optimizer") & events.text("name").flags(lambda n: "step" in n.lower())
    windows = _steps.step_windows(trace)
    rows &= _steps.membership(trace, events, windows) >= 0
    if not rows.any():
        raise NoData(
            Words("no Optimizer.step range in the steps (inference, or no CPU activity recorded)",
                  "step 内没有 Optimizer.step 区间（推理，或未采集 CPU 活动）")
        )  # fmt: skip
    phase = intervals.merged(events.ints("start_ns")[rows], events.ends_ns()[rows])
    whole = _steps.step_total_ns(trace, windows)
    steps = len(windows)
    kernels = trace[KERNELS]
    if len(kernels):
        if not kernels.has("launch_start_ns"):
            reason = Words("launch calls are not in this data", "数据中没有下发接口记录")
            return Result(judged=(Judged(code="C-14", verdict="not_judged", reason=reason),))
        launched = _issued(trace)
        inside: Bools = intervals.contains(phase, launched) & (launched != NULL)
        where = intervals.union(*_steps.unions_by_step(trace, kernels, inside, windows))
        share = min(1.0, intervals.total(where) / whole) if whole else 0.0
        names, durations = kernels.text("name"), kernels.ints("dur_ns")
        unit = Words("kernels launched by the optimizer, per step", "优化器每步下发的 Kernel 数")
    else:
        ops = trace[HOST_OPS]
        inside = intervals.contains(phase, ops.ints("start_ns"))
        where = phase
        share = intervals.total(phase) / whole if whole else 0.0
        names, durations = ops.text("name"), ops.ints("dur_ns")
        unit = Words("operators called by the optimizer, per step", "优化器每步调用的算子数")
    count = int(inside.sum()) / steps
    fused = bool((inside & names.flags(lambda n: bool(_FUSED.search(n)))).any())
    metric = Metric(name="optimizer_share", value=min(1.0, share), unit="ratio", better="lower", rank=trace.meta.rank)
    if share < MIN_SHARE_RATIO.value or count < MIN_CALLS.value or fused:
        return Result(metrics=(metric,), judged=(Judged(code="C-14", verdict="clean"),))
    time_ns = share * whole / steps
    first = int(np.flatnonzero(rows)[0])
    mean_ns = float(durations[inside].mean())
    text = format_quantity(round(count), "count")
    found = finding(
        "C-14",
        analyzer="optimizer",
        trace_rank=trace.meta.rank,
        vendor=trace.meta.device.kind,
        title=Words(
            f"The optimizer takes {format_ns(time_ns)} of the step ({format_ratio(share)}) in {text} small calls.",
            f"优化器每步耗时 {format_ns(time_ns)}（占 {format_ratio(share)}），由 {text} 次小调用组成。",
        ),
        share_ratio=min(1.0, share),
        where=where,
        whole_ns=whole,
        evidence=(
            Evidence(
                name=Words("optimizer phase per step", "每步优化器阶段耗时"),
                value=time_ns,
                unit="ns",
                where=f"host_events {events.text('name')[first]}",
                start_ns=int(events.ints("start_ns")[first]),
            ),
            Evidence(name=unit, value=count, unit="count", where="kernels" if len(kernels) else "host_ops"),
            Evidence(name=Words("mean duration of one", "单次平均耗时"), value=mean_ns, unit="ns", where="dur_ns"),
        ),
        formula="union of what was launched inside Optimizer.step / sum of step spans",
        bands=tuple(zip(phase.starts.tolist(), phase.ends.tolist(), strict=True))[:20],
    )
    optimizer = class_of(events.text("name")[first] or "")
    found = replace(found, remedies=remedies_for_class(found.remedies, optimizer), subject=optimizer or "")
    return Result(findings=(found,), metrics=(metric,), judged=(Judged(code="C-14", verdict="found"),))


def _issued(trace: Trace) -> Ints:
    """When the host asked for each kernel: the start of its operator, else of its launch call.

    With a task queue a second thread launches, behind the operators: what the backward had queued would be launched
    inside of the optimizer.
    """
    kernels, ops = trace[KERNELS], trace[HOST_OPS]
    launched = kernels.ints("launch_start_ns")
    if not kernels.has("host_op") or not len(ops):
        return launched
    row = kernels.ints("host_op")
    known = (row >= 0) & (row < len(ops))
    return np.where(known, ops.ints("start_ns")[np.where(known, row, 0)], launched)
