"""What counters and shapes say of device memory traffic: low rates (M-02), the L2 (M-03), bank conflicts (M-04)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ascend_perf.analyzers._chains import chains_of
from ascend_perf.analyzers._claimed_kernels import claimed_kernels
from ascend_perf.analyzers._kernels import LEVEL1, PIPES, STEP_MIN_RATIO, KernelTime, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers._utilisation import BOUND_MIN_RATIO, Utilisation, utilisation_of
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Severity, Words
from ascend_perf.model.table import Bools, Floats, Table
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_quantity, format_ratio

NAME: Final = "memory-counters"

REACHABLE_RATIO: Final = threshold("M-02", "reachable_ratio")
SLOW_MAX_RATIO: Final = threshold("M-02", "min_rate_ratio")
OWN_MIN_BYTES: Final = threshold("M-02", "min_own_rate_bytes")
OWN_MIN_KERNELS: Final = threshold("M-02", "min_own_rate_kernels")
OWN_BASIS: Final = "what even the slowest large element-wise kernel of this capture reaches (peak not known)"
RATE_MIN_BYTES: Final = threshold("M-02", "min_bytes")
RATE_MIN_NS: Final = threshold("M-02", "min_kernel_ns")
L2_MIN_RATIO: Final = threshold("M-03", "min_hit_ratio")
L2_KERNEL_MIN_RATIO: Final = threshold("M-03", "min_kernel_time_ratio")
SMALLEST_L2_BYTES: Final = 96 * 2**20
"""Operands up to here fit the L2 of every device that has these counters. Source: device table (910B4).
Status: vendor."""
CONFLICT_MIN_RATIO: Final = threshold("M-04", "min_conflict_ratio")

_OWN_ROWS: Final = frozenset({
    KernelClass.FORMAT.value, KernelClass.CAST.value, KernelClass.TRANSPOSE.value, KernelClass.COPY.value,
})  # fmt: skip
"""Classes whose whole time rows C-09 and C-10 count."""
_HITS: Final = ("write_cache_hit", "r0_read_cache_hit", "r1_read_cache_hit")
_MISSES: Final = ("write_cache_miss_allocate", "r0_read_cache_miss_allocate", "r1_read_cache_miss_allocate")
_CONFLICTS: Final = ("vec_bankgroup_cflt_ratio", "vec_bank_cflt_ratio", "vec_resc_cflt_ratio")


def _metric(name: str) -> Words:
    return Words(
        f"not in this data: profile with profiler_level=torch_npu.profiler.ProfilerLevel.Level1 and "
        f"aic_metrics=torch_npu.profiler.AiCMetrics.{name}",
        f"数据中没有：请以 profiler_level=torch_npu.profiler.ProfilerLevel.Level1、"
        f"aic_metrics=torch_npu.profiler.AiCMetrics.{name} 采集",
    )


@analyzer(name=NAME, needs=(KERNELS,), order=48, section="dma", needs_measured=("M-02", "M-03", "M-04"))
def memory_counters(trace: Trace) -> Result:
    """Report vector kernels far below the memory rate, cube kernels that miss the L2, and bank conflicts.

    Reads:
        kernels: shapes, dtypes, pipe ratios, counters of the L2Cache and ResourceConflictRatio metrics; meta.device.
    """
    if trace.meta.device.kind in ("gpu", "cpu"):
        return Result()  # none of these counters exists there
    time, use = KernelTime.of(trace), utilisation_of(trace)
    findings: list[Finding] = []
    judged: list[Judged] = []
    for outcome in (*_slow(time, use), *_l2(time, use), *_conflicts(time)):
        (findings if isinstance(outcome, Finding) else judged).append(outcome)  # type: ignore[arg-type]
    return Result(findings=tuple(findings), judged=tuple(judged))


def _slow(time: KernelTime, use: Utilisation) -> Iterator[Finding | Judged]:
    """M-02: vector kernels that load or store all the time, and yet move little."""
    peak = use.spec.memory_bytes_per_s.value if use.spec else None
    loads = np.fmax(use.pipes["aiv_mte2_ratio"], use.pipes["aiv_mte3_ratio"])
    if np.isnan(loads).all():
        yield Judged(code="M-02", verdict="not_judged", reason=PIPES)
        return
    if np.isnan(use.work.bytes).all():
        yield Judged(code="M-02", verdict="not_judged", reason=LEVEL1)
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(use.duration > 0, use.work.bytes / use.duration * 1e9, np.nan)
    basis = f"{REACHABLE_RATIO.value:g} of the peak of {use.spec.name}" if use.spec and peak else OWN_BASIS
    reachable = REACHABLE_RATIO.value * peak if peak else _own_rate(use, rate)
    if reachable is None:
        reason = Words(
            "the peak memory rate of this device is not known, and no large kernel of the capture shows one",
            "该设备的峰值内存带宽未知，且采集中没有可作参考的大算子",
        )
        yield Judged(code="M-02", verdict="not_judged", reason=reason)
        return
    with np.errstate(invalid="ignore"):
        # Cube kernels read operands several times: their bytes by shape are far below what they move.
        rows = use.is_vector & (loads > BOUND_MIN_RATIO.value) & (loads >= np.nan_to_num(use.best_pipe))
        rows &= (use.duration >= RATE_MIN_NS.value) & (use.work.bytes >= RATE_MIN_BYTES.value)
        rows &= rate < SLOW_MAX_RATIO.value * reachable
    rows &= ~use.classes.isin(_OWN_ROWS) & ~_claimed(time, use)
    loss = np.where(rows, 1 - np.nan_to_num(rate) / reachable, 0.0)
    share, mean = _touched(time, rows, loss)
    if not rows.any() or (share is not None and share < STEP_MIN_RATIO.value):
        limit = format_quantity(SLOW_MAX_RATIO.value * reachable, "bytes_per_s")
        reason = Words(
            f"vector kernels bound by loads or stores below {limit}: at most {format_ratio(share or 0.0)} of the step",
            f"受搬运限制且带宽低于 {limit} 的 Vector 算子：至多占单步 {format_ratio(share or 0.0)}",
        )
        yield Judged(code="M-02", verdict="clean", reason=reason)
        return
    row = time.longest(rows)
    middle = float(np.median(rate[rows]))
    yield finding(
        "M-02", analyzer=NAME, trace_rank=time.trace.meta.rank, vendor="npu", share_ratio=share,
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"{time.per_step_count(rows):.4g} vector kernels per step load or store all the time but move only "
            f"{format_quantity(middle, 'bytes_per_s')} (median): {format_ns(time.per_step_ns(rows))}, of which "
            f"{format_ratio(mean)} could go at most",
            f"每步有 {time.per_step_count(rows):.4g} 个 Vector 算子一直在搬运，但带宽仅 "
            f"{format_quantity(middle, 'bytes_per_s')}（中位数）：耗时 {format_ns(time.per_step_ns(rows))}，"
            f"理论上至多可减少 {format_ratio(mean)}",
        ),
        evidence=[
            Evidence(
                name=Words("achieved memory rate of the longest one", "最长算子的实际带宽"), value=float(rate[row]),
                unit="bytes_per_s", where=f"{kernel_place(time.trace[KERNELS], row)}; bytes from shapes, each once",
            ),
            Evidence(
                name=Words("rate that good kernels reach", "正常算子可达带宽"), value=reachable, unit="bytes_per_s",
                where=basis,
            ),
            *_inner_axis(time.trace[KERNELS], row),
            *time.evidence(rows, Words("slow memory-bound kernels", "低带宽访存算子")),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="union(kernels) / step * mean(1 - rate / reachable rate); without the kernels of rows C-06, C-09, C-10 "
        "and C-12 to C-14",
    )  # fmt: skip
    yield Judged(code="M-02", verdict="found")


def _own_rate(use: Utilisation, rate: Floats) -> float | None:
    """The rate that every element-wise kernel larger than any L2 reaches; None when too few are there.

    The slowest, not the fastest: bytes by shape overstate what kernels move that work in place or only write.
    """
    with np.errstate(invalid="ignore"):
        rows = use.classes.equals(KernelClass.ELEMENTWISE.value) & use.is_vector
        rows &= (use.work.bytes >= OWN_MIN_BYTES.value) & (rate > 0)
    return float(rate[rows].min()) if int(rows.sum()) >= OWN_MIN_KERNELS.value else None


def _inner_axis(kernels: Table, row: int) -> list[Evidence]:
    shapes = kernels.text("input_shapes")[row]
    if not shapes:
        return []
    inner = shapes.split(";")[0].split(",")[-1]
    return [
        Evidence(
            name=Words("inner axis of the longest one", "最长算子的内轴长度"), value=inner[:20] or "?",
            where="kernels.input_shapes: rows of a multiple of 512 bytes load best",
        )
    ]  # fmt: skip


def _claimed(time: KernelTime, use: Utilisation) -> Bools:
    """Kernels that rows C-06, C-10, C-12, C-13 or C-14 count."""
    rows = claimed_kernels(time, use.classes)
    rows[chains_of(time, use.classes, rows).rows] = True
    return rows


def _l2(time: KernelTime, use: Utilisation) -> Iterator[Finding | Judged]:
    """M-03: cube kernels whose operands fit the L2 and that miss more often than they hit."""
    kernels = time.trace[KERNELS]
    rate = hit_rate(kernels)
    if np.isnan(rate).all():
        yield Judged(code="M-03", verdict="not_judged", reason=_metric("L2Cache"))
        return
    capacity = (use.spec.l2_bytes.value if use.spec else None) or SMALLEST_L2_BYTES
    with np.errstate(invalid="ignore"):
        # A vector kernel reads each byte once: its misses are the first touch, not a lost working set.
        rows = use.is_cube & (rate < L2_MIN_RATIO.value) & (use.work.bytes <= capacity)
    share = time.kernel_share(rows)
    if share < L2_KERNEL_MIN_RATIO.value:
        reason = Words(
            f"cube kernels whose operands fit the L2, with a hit rate below {L2_MIN_RATIO.value:g}: "
            f"{format_ratio(share)} of kernel time",
            f"操作数可放入 L2 且命中率低于 {L2_MIN_RATIO.value:g} 的 Cube 算子：占 Kernel 总耗时 {format_ratio(share)}",
        )
        yield Judged(code="M-03", verdict="clean", reason=reason)
        return
    row = time.longest(rows)
    mean = float((rate[rows] * use.duration[rows]).sum() / use.duration[rows].sum())
    yield finding(
        "M-03", analyzer=NAME, trace_rank=time.trace.meta.rank, vendor="npu", share_ratio=None, severity=Severity.LOW,
        title=Words(
            f"{time.per_step_count(rows):.4g} cube kernels per step hit the L2 {format_ratio(mean)} of the time "
            f"although their operands fit it: {format_ns(time.per_step_ns(rows))}",
            f"每步有 {time.per_step_count(rows):.4g} 个 Cube 算子的操作数可放入 L2，命中率却仅 {format_ratio(mean)}："
            f"耗时 {format_ns(time.per_step_ns(rows))}",
        ),
        evidence=[
            Evidence(
                name=Words("hit rate of the longest one", "最长算子的命中率"), value=float(rate[row]), unit="ratio",
                where=f"{kernel_place(kernels, row)}; hits / (hits + allocating misses)",
            ),
            Evidence(
                name=Words("its operands", "其操作数"), value=float(use.work.bytes[row]), unit="bytes",
                where=f"L2 of the device: {format_quantity(capacity, 'bytes')}",
            ),
            *time.evidence(rows, Words("kernels that miss", "未命中的算子")),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows), formula="no gain is published for this row",
    )  # fmt: skip
    yield Judged(code="M-03", verdict="found")


def hit_rate(kernels: Table) -> Floats:
    """Hits of the L2 over hits and allocating misses per kernel; NaN where the counters are not there.

    Source:
        format reference, section 5.2 (L2Cache); `l2_cache.csv` where the kernels themselves have none.
    """
    hits = _sum(kernels, _HITS)
    total = hits + _sum(kernels, _MISSES)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(total > 0, hits / total, np.nan)
    if "l2_hit_ratio" in kernels.names:
        rate = np.where(np.isnan(rate), kernels.floats("l2_hit_ratio"), rate)
    return rate


def _sum(kernels: Table, names: tuple[str, ...]) -> Floats:
    """Sum of the cube's and the vector core's counters; NaN where none of them is known."""
    there = [f"{core}_{name}" for core in ("aic", "aiv") for name in names if f"{core}_{name}" in kernels.names]
    if not there:
        return np.full(len(kernels), np.nan)
    stack = np.vstack([kernels.floats(name) for name in there])
    return np.where(np.isnan(stack).all(axis=0), np.nan, np.nansum(stack, axis=0))


def _conflicts(time: KernelTime) -> Iterator[Finding | Judged]:
    """M-04: vector kernels that spend a fifth of their time or more in conflicts of the unified buffer."""
    kernels = time.trace[KERNELS]
    there = [name for base in _CONFLICTS for name in (base, f"aiv_{base}") if name in kernels.names]
    ratios = np.vstack([kernels.floats(name) for name in there]) if there else np.empty((0, len(kernels)))
    if not there or np.isnan(ratios).all():
        yield Judged(code="M-04", verdict="not_judged", reason=_metric("ResourceConflictRatio"))
        return
    # Causes can overlap in time: the largest one is certain, their sum is not.
    worst = np.nan_to_num(ratios, nan=0.0).max(axis=0)
    rows = worst >= CONFLICT_MIN_RATIO.value
    share, mean = _touched(time, rows, np.clip(worst, 0, 1))
    if not rows.any() or (share is not None and share < STEP_MIN_RATIO.value):
        of = format_ratio(share or 0.0)
        reason = Words(
            f"kernels with a fifth of their time in conflicts or more: at most {of} of the step",
            f"冲突占比达 20 % 的算子：至多占单步 {of}",
        )
        yield Judged(code="M-04", verdict="clean", reason=reason)
        return
    row = time.longest(rows)
    kind = there[int(np.nan_to_num(ratios[:, row], nan=0.0).argmax())]
    name = kernels.text("op_type")[row] or kernels.text("name")[row] or "?"
    yield finding(
        "M-04", analyzer=NAME, trace_rank=time.trace.meta.rank, vendor="npu", share_ratio=share,
        where=time.where(rows), whole_ns=time.whole_ns,
        title=Words(
            f"{time.per_step_count(rows):.4g} vector kernels per step ({name[:60]}) spend {format_ratio(mean)} of "
            f"{format_ns(time.per_step_ns(rows))} in conflicts of the unified buffer",
            f"每步有 {time.per_step_count(rows):.4g} 个 Vector 算子（{name[:60]}）在 "
            f"{format_ns(time.per_step_ns(rows))} 中有 {format_ratio(mean)} 处于 Unified Buffer 冲突",
        ),
        evidence=[
            Evidence(
                name=Words(f"{kind} of the longest one", f"最长算子的 {kind}"), value=float(worst[row]), unit="ratio",
                where=kernel_place(kernels, row),
            ),
            *time.evidence(rows, Words("kernels with conflicts", "存在冲突的算子")),
        ],
        bands=time.bands(rows), step_ids=time.steps_seen(rows),
        formula="union(kernels) / step * mean(largest conflict ratio)",
    )  # fmt: skip
    yield Judged(code="M-04", verdict="found")


def _touched(time: KernelTime, rows: Bools, loss: Floats) -> tuple[float | None, float]:
    """Share of the step that could go, and the mean part of these kernels, weighted by time."""
    spent = float(time.duration[rows].sum())
    mean = float((time.duration[rows] * loss[rows]).sum() / spent) if spent else 0.0
    share = time.step_share(rows) if rows.any() else 0.0
    return (None if share is None else share * mean), mean
