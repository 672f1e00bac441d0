"""Shapes that change from step to step (C-08)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import is_compile, union_of
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import membership, step_windows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "dynamic-shape"
CODE: Final = "C-08"
MIN_STEPS: Final = threshold("C-08", "min_steps")
NEW_MIN_RATIO: Final = threshold("C-08", "min_new_ratio")
CHANGING_MIN_RATIO: Final = threshold("C-08", "min_changing_ratio")
MAX_ROWS: Final = 50

NO_SHAPES: Final = Words(
    "shapes are not in this data: profile with record_shapes=True (on an NPU also "
    "profiler_level=torch_npu.profiler.ProfilerLevel.Level1)",
    "数据中没有 Shape：请以 record_shapes=True 采集（NPU 上还需 "
    "profiler_level=torch_npu.profiler.ProfilerLevel.Level1）",
)


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Work with shapes, in steps. Arrays with one entry per row of the table that lies in a step and has shapes."""

    source: str
    rows: Ints
    step: Ints
    kind: Text
    shapes: Text
    weight: Floats
    """Duration of kernels; 1 for calls of operators."""
    new_ratio: Floats
    """Per step: part of its work in (operator, shapes) pairs that no earlier step had; the first step is NaN."""


@analyzer(name=NAME, needs=(), order=33, section="operators")
def dynamic_shape(trace: Trace) -> Result:
    """Report shapes that keep changing: at least half of the steps bring new ones.

    The state "dynamic" of a kernel is no evidence: operators of the binary library carry it with constant shapes.

    Reads:
        kernels: op_type, name, input_shapes, dur_ns, step_id, start_ns; without shapes there host_ops: name,
        input_shapes; runtime_calls: api, start_ns, dur_ns.

    Returns:
        Finding C-08 without a share: the time it costs is idle time, which rows H-06 and H-01 count.
    """
    if not trace.has(KERNELS) and not trace.has(HOST_OPS):
        raise NoData(Words("not in this data: kernels, host_ops", "数据中没有：kernels、host_ops"))
    windows = step_windows(trace)
    if len(windows) < MIN_STEPS.value:
        return Result(judged=(_too_few_steps(),))
    found = _shapes(trace)
    if found is None:
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=NO_SHAPES),))
    later = found.new_ratio[~np.isnan(found.new_ratio)]
    if len(later) < MIN_STEPS.value - 1:
        return Result(judged=(_too_few_steps(),))
    changing = later >= NEW_MIN_RATIO.value
    if changing.mean() < CHANGING_MIN_RATIO.value:
        reason = Words(
            f"{int(changing.sum())} of {len(later)} steps after the first bring shapes that were not there before",
            f"首步之后的 {len(later)} 步中有 {int(changing.sum())} 步出现新的 Shape",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    table = _table(found)
    return Result(
        findings=(_finding(trace, found, table, int(changing.sum()), len(later)),), tables=(table,),
        judged=(Judged(code=CODE, verdict="found"),),
    )  # fmt: skip


def _too_few_steps() -> Judged:
    least = MIN_STEPS.value
    reason = Words(
        f"fewer than {least} steps: profile with schedule(active={least}) or more",
        f"少于 {least} 步：请以 schedule(active={least}) 或更多采集",
    )
    return Judged(code=CODE, verdict="not_judged", reason=reason)


def _shapes(trace: Trace) -> Shapes | None:
    for spec, kind, weighted in ((KERNELS, "op_type", True), (HOST_OPS, "name", False)):
        table = trace[spec]
        if table.has("input_shapes"):
            return _of(trace, table, kind if table.has(kind) else "name", weighted)
    return None


def _of(trace: Trace, table: Table, kind: str, weighted: bool) -> Shapes:
    windows = step_windows(trace)
    step = membership(trace, table, windows)
    shapes = table.text("input_shapes")
    rows = np.flatnonzero((step >= 0) & (shapes.codes >= 0) & (table.text(kind).codes >= 0))
    duration = table.ints("dur_ns")[rows]
    weight = np.where(duration == NULL, 0, duration).astype(float) if weighted else np.ones(len(rows))
    named, shaped = table.text(kind).take(rows), shapes.take(rows)
    pairs = named.codes.astype(np.int64) * (len(shapes.values) + 1) + shaped.codes
    first = _first_step(pairs, step[rows])
    total = np.bincount(step[rows], weight, len(windows))
    fresh = np.bincount(step[rows], weight * (first == step[rows]), len(windows))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(total > 0, fresh / total, np.nan)
    began = np.flatnonzero(total > 0)
    if len(began):
        ratio[began[0]] = np.nan
    return Shapes(
        source=table.spec.name, rows=rows, step=step[rows], kind=named, shapes=shaped, weight=weight, new_ratio=ratio
    )  # fmt: skip


def _first_step(pairs: Ints, step: Ints) -> Ints:
    """The step in which each row's pair occurs for the first time."""
    if not len(pairs):
        return step
    _, of = np.unique(pairs, return_inverse=True)
    first = np.full(int(of.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, of, step)
    return first[of]


def _finding(trace: Trace, found: Shapes, table: ResultTable, changing: int, later: int) -> Finding:
    mean = float(np.nanmean(found.new_ratio))
    windows = step_windows(trace)
    top, distinct = table.column("op_type")[0], table.column("distinct_shapes")[0]
    calls = trace[RUNTIME_CALLS]
    compiles = is_compile(calls) & (membership(trace, calls, windows) >= 0)
    spent = intervals.total(union_of(calls, compiles))
    unit = Words("kernel time", "Kernel 耗时") if found.source == KERNELS.name else Words("operator calls", "算子调用")
    ending = None
    if compiles.any():
        ending = Words(
            f"; {int(compiles.sum())} compilations take {format_ns(spent / len(windows))} per step",
            f"；每步在线编译 {format_ns(spent / len(windows))}（共 {int(compiles.sum())} 次）",
        )
    return finding(
        CODE, analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=None,
        title=Words(
            f"{changing} of {later} steps after the first bring shapes that were not there before, "
            f"{format_ratio(mean)} of their {unit.en} ({top}: {distinct} shapes){ending.en if ending else ''}",
            f"首步之后的 {later} 步中有 {changing} 步出现新的 Shape，占其{unit.zh} {format_ratio(mean)}"
            f"（{top}：{distinct} 种）{ending.zh if ending else ''}",
        ),
        evidence=[
            Evidence(
                name=Words("work in new shapes, mean of the steps after the first", "新 Shape 占比（首步之后的均值）"),
                value=mean, unit="ratio", where=f"{found.source}: (operator, input shapes) not seen in earlier steps",
            ),
            Evidence(
                name=Words(f"distinct input shapes of {top}", f"{top} 的不同输入 Shape 数"), value=distinct,
                unit="count", where=f"{found.source}.input_shapes over {len(windows)} steps",
            ),
            Evidence(
                name=Words("compilations in the steps", "step 内的在线编译次数"), value=int(compiles.sum()),
                unit="count", where="runtime_calls" if len(calls) else "runtime_calls: not in this data",
            ),
        ],
        step_ids=tuple(windows.step_id(i) for i in np.flatnonzero(found.new_ratio >= NEW_MIN_RATIO.value).tolist()),
        formula="no share of its own: the time is idle time and compilation (rows H-01 and H-06)",
    )  # fmt: skip


def _table(found: Shapes) -> ResultTable:
    """Operator types by the number of their distinct shapes, those that take time first."""
    pairs = found.kind.codes.astype(np.int64) * (len(found.shapes.values) + 1) + found.shapes.codes
    _, one = np.unique(pairs, return_index=True)
    size = len(found.kind.values)
    distinct = np.bincount(found.kind.codes[one], minlength=size)
    weight = np.bincount(found.kind.codes, found.weight, size)
    fresh = _first_step(pairs, found.step) == found.step
    fresh &= found.step > found.step.min()
    new = np.bincount(found.kind.codes, found.weight * fresh, size)
    added = np.bincount(found.kind.codes[one], fresh[one], size).astype(np.int64)
    top = np.argsort(-new, kind="stable")[:MAX_ROWS]
    top = top[new[top] > 0]
    # The row of each operator whose new shape takes most: to go and look at.
    rows = np.flatnonzero(fresh)
    rows = rows[np.argsort(found.weight[rows], kind="stable")]
    newest = np.full(size, -1, np.int64)
    newest[found.kind.codes[rows]] = rows
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = new / weight
    return result_table(
        "dynamic-shapes",
        Words("Operators by new shapes", "按新 Shape 排列的算子"),
        [
            Col("op_type", "Operator", "算子", [found.kind.values[code] for code in top.tolist()]),
            Col("distinct_shapes", "Distinct shapes", "不同 Shape 数", distinct[top], "count"),
            Col("new_shapes", "New after the first step", "首步之后新增", added[top], "count"),
            Col("new_ratio", "Work in new shapes", "新 Shape 占比", ratio[top], "ratio"),
            Col("example", "A new shape", "新 Shape 示例", found.shapes.take(newest[top])),
        ],
    )
