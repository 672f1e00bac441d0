"""Kernels of a mixture of experts on one rank: experts one by one (E-02), token permutation op by op (E-04)."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf.analyzers._claimed_kernels import claimed_kernels
from ascend_perf.analyzers._expert_load import is_grouped
from ascend_perf.analyzers._expert_loop import Loop, in_order, loop_of, moves_tokens
from ascend_perf.analyzers._fusions import fusions_of
from ascend_perf.analyzers._kernels import LEVEL1, KernelTime, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Words
from ascend_perf.model.table import Bools, Ints
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "expert-kernels"

MIN_LOOP_RATIO: Final = threshold("E-02", "min_share_ratio")
MIN_PERMUTE_RATIO: Final = threshold("E-04", "min_share_ratio")
NEAR: Final = 12
"""Kernels before and after an expert product among which its permutation is looked for. Status: assumed."""

_FUSED: Final = re.compile(r"moe", re.IGNORECASE)
_COMBINE: Final = re.compile(r"^(mul|reducesum)", re.IGNORECASE)


@analyzer(name=NAME, needs=[KERNELS], order=25, section="operators")
def expert_kernels(trace: Trace) -> Result:
    """Experts that are multiplied one by one, and permutation of tokens in separate kernels.

    Reads:
        kernels: start_ns, dur_ns, op_type, name, stream, input_shapes; meta: groups.
    """
    time = KernelTime.of(trace)
    kernels = trace[KERNELS]
    classes = kernel_classes(kernels)
    if not kernels.has("op_type") and trace.meta.device.kind == "npu":
        return Result(judged=tuple(Judged(code=code, verdict="not_judged", reason=LEVEL1) for code in ("E-02", "E-04")))
    order = in_order(time)
    loop = loop_of(time, classes)
    first = _one_by_one(time, loop)
    if not kernels.has("input_shapes"):
        first = None, Judged(
            code="E-02", verdict="not_judged",
            reason=Words("no input shapes: record_shapes=True", "没有输入 Shape：请设置 record_shapes=True"),
        )  # fmt: skip
    experts = is_grouped(kernels) if loop is None else is_grouped(kernels) | loop.products
    second = _permutation(time, order, experts, moves_tokens(kernels, classes),
                          classes.equals(KernelClass.SORT.value), claimed_kernels(time, classes))  # fmt: skip
    return Result(
        findings=tuple(found for found, _ in (first, second) if found is not None), judged=(first[1], second[1])
    )


def _one_by_one(time: KernelTime, loop: Loop | None) -> tuple[Finding | None, Judged]:
    code = "E-02"
    if loop is None:
        reason = Words("no products of single experts in this data", "数据中没有单个专家的矩阵乘")
        return None, Judged(code=code, verdict="clean", reason=reason)
    spent = time.alone_ns(loop.products)
    share = min(1.0, max(0.0, spent - loop.least_ns) / time.whole_ns) if time.whole_ns else 0.0
    count = np.array([number for *_, number in loop.runs])
    if share < MIN_LOOP_RATIO.value:
        return None, Judged(
            code=code, verdict="clean",
            reason=Words(
                f"experts run one by one, but a grouped product could save {format_ratio(share)} of the step at most",
                f"专家逐个计算，但改用分组矩阵乘至多节省单步的 {format_ratio(share)}",
            ),
        )  # fmt: skip
    kernels = time.trace[KERNELS]
    runs = len(loop.runs) / time.steps
    basis = (
        Words("at the peaks of the device", "按设备峰值")
        if loop.is_floor
        else Words("at the rate of the best of them", "按其中最高速率")
    )
    found = finding(
        code, analyzer=NAME, trace_rank=time.trace.meta.rank, share_ratio=share, vendor=time.trace.meta.device.kind,
        where=time.where(loop.products), whole_ns=time.whole_ns,
        title=Words(
            f"Experts run one by one: {int(count.sum()) / time.steps:.4g} products in {runs:.4g} rows of "
            f"{int(np.median(count))} per step take {format_ns(spent / time.steps)}; {basis.en} they need "
            f"{format_ns(loop.least_ns / time.steps)}: at most {format_ratio(share)} of the step",
            f"专家逐个计算：每步 {runs:.4g} 组、每组约 {int(np.median(count))} 个，共 "
            f"{int(count.sum()) / time.steps:.4g} 次矩阵乘，耗时 {format_ns(spent / time.steps)}；{basis.zh}只需 "
            f"{format_ns(loop.least_ns / time.steps)}（至多占单步 {format_ratio(share)}）",
        ),
        evidence=[
            *time.evidence(loop.products, Words("products of single experts", "单个专家的矩阵乘")),
            Evidence(
                name=Words("first row of experts begins", "首组专家起点"), value=int(count[0]), unit="count",
                where=kernel_place(kernels, loop.runs[0][0]),
                start_ns=int(kernels.ints("start_ns")[loop.runs[0][0]]),
            ),
        ],
        formula="(time in which only these products run - the least that one grouped product needs: FLOPs and bytes at "
        "the device's peaks, or tokens at the best rate per weight shape where no peak is known) / length of the "
        "steps; idle time between them is row H-01 or H-03",
        bands=time.bands(loop.products), step_ids=time.steps_seen(loop.products),
    )  # fmt: skip
    return found, Judged(code=code, verdict="found")


def _permutation(
    time: KernelTime, order: Ints, experts: Bools, index: Bools, sort: Bools, claimed: Bools
) -> tuple[Finding | None, Judged]:
    """E-04: kernels that sort, gather and scatter tokens beside the experts' products."""
    code = "E-04"
    kernels = time.trace[KERNELS]
    if not experts.any():
        return None, Judged(
            code=code, verdict="clean", reason=Words("no products of experts in this data", "数据中没有专家矩阵乘")
        )
    rows = _permuting(time, order, experts, index, sort) & ~claimed
    share = min(1.0, time.alone_ns(rows) / time.whole_ns) if time.whole_ns else 0.0
    if share < MIN_PERMUTE_RATIO.value:
        note = Words(f"{format_ratio(share)} of the step", f"占单步 {format_ratio(share)}")
        return None, Judged(code=code, verdict="clean", reason=note if rows.any() else None)
    types = kernels.text("op_type")
    names = sorted({types[row] or "?" for row in np.flatnonzero(rows).tolist()})
    shown = ", ".join(names[:5])
    found = finding(
        code, analyzer=NAME, trace_rank=time.trace.meta.rank, share_ratio=share, vendor=time.trace.meta.device.kind,
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"Tokens are permuted around the experts in {time.per_step_count(rows):.4g} separate kernels per step "
            f"({shown}): {format_ns(time.per_step_ns(rows))} ({format_ratio(share)} of the step)",
            f"专家前后的 token 重排每步使用 {time.per_step_count(rows):.4g} 个独立 Kernel（{shown}）："
            f"{format_ns(time.per_step_ns(rows))}（占单步 {format_ratio(share)}）",
        ),
        evidence=[*time.evidence(rows, Words("permutation of tokens", "token 重排")), *_fused_apis(time, code)],
        formula="time in which only these kernels run / length of the steps; at most, a fused operator still moves "
        "the tokens",
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
    )  # fmt: skip
    return found, Judged(code=code, verdict="found")


def _fused_apis(time: KernelTime, code: str) -> list[Evidence]:
    """The fused operators whose sequences are among these kernels, and how often."""
    return [
        Evidence(
            name=Words(f"{item.fusion.what.en}, per step", f"{item.fusion.what.zh}，每步次数"),
            value=item.matches.occurrences / time.steps, unit="count",
            where=f"fused operator: {item.apis[0].name}",
        )
        for item in fusions_of(time).candidates
        if item.fusion.row == code and item.state == "applicable" and item.apis
    ]  # fmt: skip


def _permuting(time: KernelTime, order: Ints, experts: Bools, index: Bools, sort: Bools) -> Bools:
    """Sorts and gathers within a few kernels of an expert's product, and the sums that follow a gather directly."""
    kernels = time.trace[KERNELS]
    types = kernels.text("op_type") if kernels.has("op_type") else kernels.text("name")
    fused = types.flags(lambda name: bool(_FUSED.search(name)))
    router = types.flags(lambda name: "topk" in name.lower())
    at = np.flatnonzero(experts[order])
    near = np.zeros(len(order), bool)
    for shift in range(-NEAR, NEAR + 1):
        places = at + shift
        near[places[(places >= 0) & (places < len(order))]] = True
    chosen = near & ((index | sort) & ~fused & ~router)[order]
    combine = types.flags(lambda name: bool(_COMBINE.search(name)))[order] & near
    follows = chosen.copy()
    for _ in range(2):
        follows[1:] |= combine[1:] & follows[:-1]
    result = np.zeros(len(kernels), bool)
    result[order[follows]] = True
    return result
