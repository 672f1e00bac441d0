"""Time by kernel, op type, shape and core, and what the mix of operators says: rows C-04, C-07 and C-09 to C-11."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ascend_perf.analyzers import _operator_findings as rows_of
from ascend_perf.analyzers._ai_cpu import ai_cpu_table
from ascend_perf.analyzers._kernels import Groups, KernelTime, group_kernels
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import Ints, Table, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import kernel_classes
from ascend_perf.plugins import analyzer

MAX_ROWS: Final = 300
"""Longest groups that a table of kernels or shapes shows; the rest is summed up in its note."""


@analyzer(name="operators", needs=(KERNELS,), order=30, section="operators", needs_measured=("C-04",))
def operators(trace: Trace) -> Result:
    """Tables of kernels, op types, shapes and cores by time, and findings about the mix of operators.

    Reads:
        kernels: start_ns, dur_ns, name, op_type, core, stream, block_num, shapes, dtypes, formats, hf32_eligible.
    """
    kernels = trace[KERNELS]
    time = KernelTime.of(trace)
    classes = kernel_classes(kernels)
    findings: list[Finding] = []
    judged: list[Judged] = []
    for outcome in _judge(time, classes):
        if isinstance(outcome, Finding):
            findings.append(outcome)
        else:
            judged.append(outcome)
    return Result(
        findings=tuple(findings),
        metrics=(
            Metric(
                name="kernel_time", value=float(time.kernel_total_ns), unit="ns", better="lower", rank=trace.meta.rank
            ),
            Metric(name="kernel_count", value=float(len(kernels)), unit="count", better="lower", rank=trace.meta.rank),
        ),
        tables=(
            _top_kernels(time),
            _op_types(time, classes),
            _core_types(time),
            *_shapes(time),
            *([] if (on_ai_cpu := ai_cpu_table(time)) is None else [on_ai_cpu]),
        ),
        judged=tuple(judged),
    )


def _judge(time: KernelTime, classes: Text) -> Iterator[Finding | Judged]:
    yield from rows_of.ai_cpu(time)
    yield from rows_of.format_conversion(time, classes)
    yield from rows_of.casts_and_copies(time, classes)
    yield from rows_of.full_fp32(time, classes)
    yield from rows_of.block_count(time)


def _top_kernels(time: KernelTime) -> ResultTable:
    kernels = time.trace[KERNELS]
    groups = group_kernels(kernels, [kernels.text("name").codes, kernels.text("core").codes])
    top = slice(0, MAX_ROWS)
    return result_table(
        "top-kernels",
        Words("Kernels by time", "Kernel 耗时排行"),
        [
            Col("name", "Kernel", "Kernel", kernels.text("name").take(groups.first[top])),
            Col("op_type", "Type", "类型", kernels.text("op_type").take(groups.first[top])),
            Col("core", "Core", "核类型", kernels.text("core").take(groups.first[top])),
            *_time_columns(time, groups, top),
            Col("start_ns", "Longest one at", "最长一次的时刻", kernels.ints("start_ns")[groups.longest[top]]),
            Col("stream", "Stream", "流", kernels.ints("stream")[groups.longest[top]]),
        ],
        _rest(groups, time),
    )


def _op_types(time: KernelTime, classes: Text) -> ResultTable:
    kernels = time.trace[KERNELS]
    types = _types(kernels, classes)
    groups = group_kernels(kernels, [types.codes, kernels.text("core").codes])
    top = slice(0, MAX_ROWS)
    return result_table(
        "op-types",
        Words("Op types by time", "算子类型耗时排行"),
        [
            Col("op_type", "Type", "类型", types.take(groups.first[top])),
            Col("class", "Class", "类别", classes.take(groups.first[top])),
            Col("core", "Core", "核类型", kernels.text("core").take(groups.first[top])),
            *_time_columns(time, groups, top),
        ],
        _rest(groups, time),
    )


def _types(kernels: Table, classes: Text) -> Text:
    """Op type where known, else the class in its place (GPU kernels have no types)."""
    types = kernels.text("op_type")
    if not len(types) or (types.codes >= 0).all():
        return types
    both = Text.concat([types, classes])
    codes = np.where(types.codes >= 0, both.codes[: len(types)], both.codes[len(types) :])
    return Text(codes.astype(np.int32), both.values)


def _core_types(time: KernelTime) -> ResultTable:
    kernels = time.trace[KERNELS]
    groups = group_kernels(kernels, [kernels.text("core").codes])
    return result_table(
        "core-types",
        Words("Core types by time", "核类型耗时"),
        [
            Col("core", "Core", "核类型", kernels.text("core").take(groups.first)),
            *_time_columns(time, groups, slice(None)),
        ],
        Words(
            "Large matrix products can be MIX_AIC: cube time is AIC and MIX_AIC together.",
            "大矩阵乘可能为 MIX_AIC：Cube 耗时应合计 AIC 与 MIX_AIC。",
        )
        if kernels.text("core").equals("MIX_AIC").any()
        else None,
    )


def _shapes(time: KernelTime) -> Iterator[ResultTable]:
    kernels = time.trace[KERNELS]
    if not kernels.has("input_shapes"):
        return
    keys = [kernels.text(name).codes for name in ("op_type", "core", "input_shapes", "input_dtypes")]
    groups = group_kernels(kernels, keys)
    top = slice(0, MAX_ROWS)
    yield result_table(
        "shapes",
        Words("Shapes by time", "Shape 耗时排行"),
        [
            Col("op_type", "Type", "类型", kernels.text("op_type").take(groups.first[top])),
            Col("core", "Core", "核类型", kernels.text("core").take(groups.first[top])),
            Col("input_shapes", "Input shapes", "输入 Shape", kernels.text("input_shapes").take(groups.first[top])),
            Col("input_dtypes", "Input dtypes", "输入数据类型", kernels.text("input_dtypes").take(groups.first[top])),
            Col("output_shapes", "Output shapes", "输出 Shape", kernels.text("output_shapes").take(groups.first[top])),
            *_time_columns(time, groups, top),
        ],
        _rest(groups, time),
    )


def _time_columns(time: KernelTime, groups: Groups, top: slice) -> list[Col]:
    whole = max(1, time.kernel_total_ns)
    share = groups.total_ns / whole
    mean = groups.total_ns / np.maximum(1, groups.count)
    return [
        Col("count", "Count", "次数", groups.count[top], "count"),
        Col("total_ns", "Total", "总耗时", groups.total_ns[top], "ns"),
        Col("share_ratio", "Share of kernel time", "占 Kernel 总耗时", share[top], "ratio"),
        Col("cumulative_ratio", "Cumulative", "累计占比", (np.cumsum(groups.total_ns) / whole)[top], "ratio"),
        Col("mean_ns", "Mean", "平均", mean[top], "ns"),
        Col("min_ns", "Shortest", "最短", groups.min_ns[top], "ns"),
        Col("max_ns", "Longest", "最长", groups.max_ns[top], "ns"),
    ]


def _rest(groups: Groups, time: KernelTime) -> Words | None:
    hidden = groups.total_ns[MAX_ROWS:]
    if not len(hidden):
        return None
    share: Ints = hidden.sum()
    ratio = share / max(1, time.kernel_total_ns) * 100
    return Words(
        f"{len(hidden)} more groups with {ratio:.2g} % of kernel time are not shown.",
        f"另有 {len(hidden)} 组未列出，占 Kernel 总耗时 {ratio:.2g} %。",
    )
