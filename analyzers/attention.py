"""Fused attention that runs below its possibilities: padding, or a pipe other than the cube (C-05)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._attention import PIPE_LIMITS, Attention, attention_of, pipe_names, sizes_of
from ascend_perf.analyzers._kernels import LEVEL1, PIPES, STEP_MIN_RATIO, KernelTime, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Words
from ascend_perf.model.table import Bools
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "attention"
CODE: Final = "C-05"


@analyzer(name=NAME, needs=(KERNELS,), order=42, section="operators", needs_measured=("C-05/pipe",))
def attention(trace: Trace) -> Result:
    """Report fused attention kernels whose sizes are padded or that a pipe other than the cube bounds.

    Reads:
        kernels: op_type, input_shapes, output_shapes, dur_ns, pipe ratios.

    Returns:
        Findings C-05, subject `padding` and subject `pipe`; a kernel belongs to one of them.
    """
    if trace.meta.device.kind == "cpu":
        return Result()  # no fused kernels of a device
    if trace.meta.device.kind == "gpu":
        return Result(judged=(_of_gpu(trace),))
    kernels = trace[KERNELS]
    if not kernels.has("op_type"):
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=LEVEL1),))
    found = attention_of(kernels)
    if not found.is_attention.any():
        reason = Words("no fused attention kernels", "没有融合注意力算子")
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    if not found.has_shapes and not found.has_pipes:
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=PIPES),))
    time = KernelTime.of(trace)
    made = [item for item in (_padding(time, found), _pipe(time, found)) if item is not None]
    if made:
        return Result(findings=tuple(made), judged=(Judged(code=CODE, verdict="found"),))
    count = int(found.is_attention.sum())
    reason = Words(
        f"{count} fused attention kernels, none with notable padding or a pipe at its limit",
        f"{count} 个融合注意力算子均无明显补齐浪费，也没有流水达到上限",
    )
    return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))


def _of_gpu(trace: Trace) -> Judged:
    """Neither pipes nor blocks of a GPU's kernels are recorded: the roofline says how fast they are."""
    count = int(kernel_classes(trace[KERNELS]).equals(KernelClass.ATTENTION.value).sum())
    if not count:
        reason = Words("no fused attention kernels", "没有融合注意力算子")
        return Judged(code=CODE, verdict="clean", reason=reason)
    reason = Words(
        f"blocks and pipes of the {count} attention kernels are not recorded on GPUs; how near they come to their roof "
        "stands in the roofline by class of kernel",
        f"GPU 不记录 {count} 个注意力算子的分块与流水；其与上限的差距见按算子类别的 Roofline",
    )
    return Judged(code=CODE, verdict="not_judged", reason=reason)


def _padding(time: KernelTime, found: Attention) -> Finding | None:
    rows = found.misaligned & (found.padding >= found.slack)
    if (touched := _touched(time, found, rows)) is None:
        return None
    share, mean = touched
    kernels = time.trace[KERNELS]
    row = time.longest(rows)
    sizes = sizes_of(kernels.text("input_shapes")[row] or "", kernels.text("output_shapes")[row] or "")
    told = ", ".join(
        f"{name}={value}" for name, value in (("D", sizes.head), ("Sq", sizes.queries), ("Sk", sizes.keys)) if value
    )
    return finding(
        CODE, analyzer=NAME, trace_rank=time.trace.meta.rank, vendor="npu", share_ratio=share, subject="padding",
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"{time.per_step_count(rows):.4g} fused attention kernels per step do not fill their blocks "
            f"({told}): {format_ns(time.per_step_ns(rows))}, of which at most {format_ratio(mean)} is padding",
            f"每步有 {time.per_step_count(rows):.4g} 个融合注意力算子的尺寸未对齐（{told}）："
            f"耗时 {format_ns(time.per_step_ns(rows))}，其中补齐至多占 {format_ratio(mean)}",
        ),
        evidence=[
            Evidence(
                name=Words("sizes of the longest one", "最长算子的尺寸"), value=told,
                where=kernel_place(kernels, row), start_ns=int(kernels.ints("start_ns")[row]),
            ),
            Evidence(
                name=Words("part of the work that is padding", "补齐所占比例"), value=mean, unit="ratio",
                where="inferred: D rounded up to 64, lengths to 128; weighted by time",
            ),
            *time.evidence(rows, Words("misaligned attention kernels", "未对齐的注意力算子")),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="union(kernels) / step * mean(1 - D/D' * Sq/Sq' * Sk/Sk'), primes rounded up to whole blocks",
    )  # fmt: skip


def _pipe(time: KernelTime, found: Attention) -> Finding | None:
    rows = (found.bounding >= 0) & ~(found.misaligned & (found.padding >= found.slack))
    if (touched := _touched(time, found, rows)) is None:
        return None
    share, mean = touched
    kernels = time.trace[KERNELS]
    row = time.longest(rows)
    pipe = pipe_names(found.bounding)[row] or ""
    ratio = float(kernels.floats(f"{pipe}_ratio")[row])
    kind = kernels.text("op_type")[row] or ""
    ratios = ((name, float(kernels.floats(name)[row])) for name in ("aic_mac_ratio", *PIPE_LIMITS))
    told = ", ".join(f"{name.removesuffix('_ratio')} {value:.2f}" for name, value in ratios if not np.isnan(value))
    return finding(
        CODE, analyzer=NAME, trace_rank=time.trace.meta.rank, vendor="npu", share_ratio=share, subject="pipe",
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"{time.per_step_count(rows):.4g} fused attention kernels per step ({kind}) are bound by {pipe} "
            f"({ratio:.2f}): {format_ns(time.per_step_ns(rows))}, of which {format_ratio(mean)} could go at most",
            f"每步有 {time.per_step_count(rows):.4g} 个融合注意力算子（{kind}）受 {pipe} 限制（{ratio:.2f}）："
            f"耗时 {format_ns(time.per_step_ns(rows))}，理论上至多可减少 {format_ratio(mean)}",
        ),
        evidence=[
            Evidence(
                name=Words("pipes of the longest one", "最长算子的各流水占比"), value=told,
                where=kernel_place(kernels, row), start_ns=int(kernels.ints("start_ns")[row]),
            ),
            *time.evidence(rows, Words("such attention kernels", "此类注意力算子")),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="union(kernels) / step * mean(1 - ratio of the next busy pipe)",
    )  # fmt: skip


def _touched(time: KernelTime, found: Attention, rows: Bools) -> tuple[float | None, float] | None:
    """Share of the step that could go and the mean part of these kernels; None when it is not worth a word."""
    if not rows.any():
        return None
    spent = float(time.duration[rows].sum())
    mean = float((time.duration[rows] * found.loss[rows]).sum() / spent) if spent else 0.0
    share = time.step_share(rows)
    touched = None if share is None else share * mean
    return None if touched is not None and touched < STEP_MIN_RATIO.value else (touched, mean)
