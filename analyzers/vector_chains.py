"""Element-wise chains that go through device memory at every operator (C-06)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._chains import Chains, chains_of, has_counters, operands
from ascend_perf.analyzers._claimed_kernels import claimed_kernels
from ascend_perf.analyzers._kernels import LEVEL1, STEP_MIN_RATIO, KernelTime, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Judged, Result, ResultTable, Words
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import kernel_classes
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "vector-chains"
CODE: Final = "C-06"
KERNEL_MIN_RATIO: Final = threshold("C-06", "min_kernel_time_ratio")
MAX_ROWS: Final = 50
MAX_TYPES: Final = 8
"""Operator types of a chain that texts name."""


@analyzer(name=NAME, needs=(KERNELS,), order=32, section="operators")
def vector_chains(trace: Trace) -> Result:
    """Report chains of element-wise kernels with equal shapes that one fused kernel would replace.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, input_shapes, output_shapes, aiv pipe ratios; host_ops: name,
        input_shapes (GPU).

    Returns:
        Finding C-06. Its share is the union of the chains over the steps, times the part of their time that is saved
        when k kernels become one: (k - 1) / k. Kernels of rows C-10 (casts), C-12, C-13 and C-14 are left out.
    """
    if trace.meta.device.kind == "cpu":
        return Result()  # no kernels pass tensors through the memory of a device
    kernels = trace[KERNELS]
    is_gpu = trace.meta.device.kind == "gpu"
    if is_gpu and not _has_host_shapes(trace):
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=_NO_SHAPES),))
    if not is_gpu and not (kernels.has("input_shapes") and kernels.has("output_shapes")):
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=LEVEL1),))
    time = KernelTime.of(trace)
    classes = kernel_classes(kernels)
    chains = chains_of(time, classes, claimed_kernels(time, classes))
    rows = np.zeros(len(kernels), bool)
    rows[chains.rows] = True
    spent = float(time.duration[rows].sum())
    saved = float(chains.saved_ns.sum()) / spent if spent else 0.0
    share = time.step_share(rows) if len(chains) else 0.0
    touched = None if share is None else share * saved
    if time.kernel_share(rows) < KERNEL_MIN_RATIO.value or (touched is not None and touched < STEP_MIN_RATIO.value):
        of = format_ratio(time.kernel_share(rows))
        reason = Words(
            f"chains of element-wise kernels that move data: {of} of kernel time",
            f"访存型逐元素运算链：占 Kernel 总耗时 {of}",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    best = int(np.argmax(chains.saved_ns))
    first = int(chains.rows[chains.firsts[best]])
    found = finding(
        CODE, analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=touched,
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"Element-wise kernels of equal shapes follow each other ({len(chains) / time.steps:.4g} times per step, "
            f"{time.per_step_count(rows):.4g} kernels) and pass their tensors through memory: "
            f"{format_ns(time.per_step_ns(rows))}, of which fusing saves at most {format_ratio(saved)}",
            f"每步有 {len(chains) / time.steps:.4g} 条逐元素运算链（{time.per_step_count(rows):.4g} 个 Kernel）"
            f"以相同 Shape 反复读写内存：耗时 {format_ns(time.per_step_ns(rows))}，融合至多可省 {format_ratio(saved)}",
        ),
        evidence=[
            Evidence(
                name=Words("costliest chain", "耗时最长的链"), value=_types(time, chains, best),
                where=kernel_place(kernels, first), start_ns=int(kernels.ints("start_ns")[first]),
            ),
            *time.evidence(rows, Words("kernels in chains", "链内 Kernel")),
            *(() if is_gpu or has_counters(time) else (_NO_COUNTERS,)),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="union(chains) / step * (k - 1) / k of k kernels, weighted by time; without kernels that rows C-10, "
        "C-12, C-13 and C-14 claim; row M-01 may count the same kernels, so do not add both",
    )  # fmt: skip
    return Result(
        findings=(found,), tables=(_table(time, chains),), judged=(Judged(code=CODE, verdict="found"),)
    )  # fmt: skip


_NO_SHAPES: Final = Words(
    "no operators with shapes: profile with ProfilerActivity.CPU and record_shapes=True",
    "没有带 Shape 的框架算子：采集时请开启 ProfilerActivity.CPU 与 record_shapes=True",
)

_NO_COUNTERS: Final = Evidence(
    name=Words("load and store pipes", "搬运流水占比"), value=None,
    where="not in this data (aic_metrics=PipeUtilization): element-wise kernels are taken to move data",
)  # fmt: skip


def _has_host_shapes(trace: Trace) -> bool:
    """Whether kernels are linked to operators with shapes."""
    shapes = trace[HOST_OPS].text("input_shapes")
    return trace[KERNELS].has("host_op") and bool((shapes.codes >= 0).any())


def _types(time: KernelTime, chains: Chains, at: int) -> str:
    """Operator types of a chain in order."""
    length = int(chains.lengths[at])
    begin = int(chains.firsts[at])
    rows = chains.rows[begin : begin + min(length, MAX_TYPES)]
    kernels = time.trace[KERNELS]
    types = kernels.text("op_type").take(rows)
    if not kernels.has("op_type"):
        types = time.trace[HOST_OPS].text("name").take(kernels.ints("host_op")[rows])
    more = f" ... ({length} kernels)" if length > MAX_TYPES else ""
    return " - ".join(name or "?" for name in types) + more


def _table(time: KernelTime, chains: Chains) -> ResultTable:
    kernels = time.trace[KERNELS]
    top = np.argsort(-chains.saved_ns, kind="stable")[:MAX_ROWS]
    heads = chains.rows[chains.firsts[top]]
    spent = np.add.reduceat(time.duration[chains.rows], chains.firsts)[top]
    return result_table(
        "vector-chains",
        Words("Element-wise chains", "逐元素运算链"),
        [
            Col("types", "Operators", "算子", [_types(time, chains, at) for at in top.tolist()]),
            Col("kernels", "Kernels", "Kernel 数", chains.lengths[top], "count"),
            Col("shapes", "Output shape", "输出 Shape", operands(time)[1].take(heads)),
            Col("time_ns", "Time", "耗时", spent, "ns"),
            Col("saved_ns", "Saved at most", "至多可省", chains.saved_ns[top], "ns"),
            Col("start_ns", "At", "时刻", kernels.ints("start_ns")[heads]),
        ],
    )
