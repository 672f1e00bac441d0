"""The roofline of each class of kernels: work, rates, the roof, what bounds it, and how the work was derived."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._utilisation import Utilisation
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import Bools, Floats
from ascend_perf.ops.formulas import FORMULAS
from ascend_perf.units import format_ratio

MAX_FORMULAS: Final = 3
"""Formulas named for one class: those with most time. Status: assumed."""


def coverage(time: KernelTime, use: Utilisation) -> tuple[float, float]:
    """Share of kernel time whose FLOPs, and whose bytes, are known."""
    return time.kernel_share(~np.isnan(use.work.flops)), time.kernel_share(~np.isnan(use.work.bytes))


def class_table(time: KernelTime, use: Utilisation) -> ResultTable | None:
    """Work and roof by class of kernel; None where no kernel's work is known.

    The floor of a kernel is the larger of FLOPs / peak and bytes / memory rate, as far as they are known; efficiency is
    the sum of floors over the time of the kernels that have one, wasted time what the kernels took beyond it.
    """
    flops, size = use.work.flops, use.work.bytes
    known_flops, known_bytes = ~np.isnan(flops), ~np.isnan(size)
    if not ((flops > 0) | known_bytes).any():
        return None
    duration = use.duration.astype(float)
    compute_ns, memory_ns = _needs(use)
    floor = np.fmax(compute_ns, memory_ns)
    # Without its memory time the floor of a vector kernel says nothing.
    with_floor = ~np.isnan(floor) & (duration > 0) & (use.is_cube | ~np.isnan(memory_ns))
    classes = use.classes.compact()
    count = len(classes.values)
    of = classes.codes

    def summed(values: Floats, rows: Bools) -> Floats:
        rows = rows & (of >= 0)
        return np.bincount(of[rows], values[rows], count).astype(float)

    every = np.ones(len(of), bool)
    total = summed(duration, every)
    spent_flops, spent_bytes = summed(duration, known_flops), summed(duration, known_bytes)
    both = known_flops & known_bytes
    sum_flops = _known(summed(flops, known_flops), spent_flops)
    sum_bytes = _known(summed(size, known_bytes), spent_bytes)
    floors, floored = summed(floor, with_floor), summed(duration, with_floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = summed(flops, both) / summed(size, both)
        flop_rate = np.where(sum_flops > 0, sum_flops / spent_flops * 1e9, np.nan)
        byte_rate = sum_bytes / spent_bytes * 1e9
        efficiency = floors / floored
        # The rate that the floor would give: the height of the roof for this mix of kernels.
        roof_rows = with_floor & known_flops
        roof = np.where(sum_flops > 0, summed(flops, roof_rows) / summed(floor, roof_rows) * 1e9, np.nan)
    wasted = np.where(floored > 0, np.clip(floored - floors, 0, None), np.nan)
    order = np.lexsort((-total, -np.nan_to_num(wasted, nan=-1.0)))
    order = order[total[order] > 0]
    told = [_derivation(use, (of == at), duration) for at in order.tolist()]
    bound = _bounds(summed(compute_ns, ~np.isnan(compute_ns)), summed(memory_ns, ~np.isnan(memory_ns)), memory_ns)
    shares = coverage(time, use)
    return result_table(
        "roofline-classes",
        Words("Roofline by class of kernel", "按算子类别的 Roofline"),
        (
            Col("class", "Class", "类别", [classes.values[at] for at in order.tolist()]),
            Col("count", "Count", "次数", np.bincount(of[of >= 0], minlength=count)[order], "count"),
            Col("time_ns", "Time", "耗时", total[order], "ns"),
            Col("wasted_ns", "Wasted time", "浪费时间", wasted[order], "ns"),
            Col("efficiency_ratio", "Efficiency", "效率", efficiency[order], "ratio"),
            Col("bound", "Bound by", "瓶颈类型", [bound[at] for at in order.tolist()]),
            Col("flops", "FLOPs", "FLOPs", sum_flops[order], "flops"),
            Col("bytes", "Bytes", "字节数", sum_bytes[order], "bytes"),
            Col("intensity_flops_per_byte", "FLOP per byte", "计算访存比（FLOP/B）", intensity[order]),
            Col("achieved_flops_per_s", "Achieved rate", "实际算力", flop_rate[order], "flops_per_s"),
            Col("roof_flops_per_s", "Roof", "上限算力", roof[order], "flops_per_s"),
            Col("achieved_bytes_per_s", "Memory rate", "实际带宽", byte_rate[order], "bytes_per_s"),
            Col("flops_covered_ratio", "FLOPs known", "FLOPs 已知占比", _ratio(spent_flops, total)[order], "ratio"),
            Col("bytes_covered_ratio", "Bytes known", "字节数已知占比", _ratio(spent_bytes, total)[order], "ratio"),
            Col("flops_formula", "FLOPs from", "FLOPs 公式", [item[0] for item in told]),
            Col("bytes_formula", "Bytes from", "字节数公式", [item[1] for item in told]),
        ),
        _note(use, shares),
    )


def _needs(use: Utilisation) -> tuple[Floats, Floats]:
    """Time that each kernel's FLOPs need at the peak, and its bytes at the memory rate; NaN where unknown."""
    rate = use.spec.memory_bytes_per_s.value if use.spec else None
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = np.where(use.work.flops > 0, use.work.flops / use.peak_flops_per_s * 1e9, np.nan)
        memory = use.work.bytes / rate * 1e9 if rate else np.full(len(use.duration), np.nan)
    return compute, memory


def _bounds(compute: Floats, memory: Floats, memory_ns: Floats) -> list[str | None]:
    """What the roof of each class is; without a memory rate none can be told."""
    if np.isnan(memory_ns).all():
        return [None] * len(compute)
    return [
        None if not c and not m else "compute-bound" if c > m else "memory-bound"
        for c, m in zip(compute.tolist(), memory.tolist(), strict=True)
    ]


def _derivation(use: Utilisation, rows: Bools, duration: Floats) -> tuple[str | None, str | None]:
    """The formulas of a class, those with most time first; `>=` before what is a lower bound."""
    codes = use.work.how.codes
    picked = rows & (codes >= 0)
    if not picked.any():
        return None, None
    spent = np.bincount(codes[picked], duration[picked], len(use.work.how.values))
    seen = np.bincount(codes[picked], minlength=len(use.work.how.values)) > 0
    ranked = [at for at in np.argsort(-spent, kind="stable").tolist() if seen[at]]
    keys = [use.work.how.values[at] for at in ranked[:MAX_FORMULAS]]
    found = [FORMULAS[key] for key in keys if key in FORMULAS]
    flops = dict.fromkeys(("≥ " if formula.is_bound else "") + formula.flops for formula in found)
    return "; ".join(flops) or None, "; ".join(dict.fromkeys(formula.bytes for formula in found)) or None


def _known(values: Floats, spent: Floats) -> Floats:
    return np.where(spent > 0, values, np.nan)


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def _note(use: Utilisation, shares: tuple[float, float]) -> Words:
    rate = use.spec is not None and use.spec.memory_bytes_per_s.value is not None
    roof = ("", "") if rate else (
        " The memory rate of this device is not known: only matrix kernels have a floor, and no bound is told.",
        "该设备的内存带宽未知：仅矩阵算子有下限，不判断瓶颈类型。",
    )  # fmt: skip
    return Words(
        f"FLOPs are known for {format_ratio(shares[0])} of kernel time, bytes for {format_ratio(shares[1])}. Floor of "
        "a kernel = max(FLOPs / peak, bytes / memory rate); efficiency = floors / time, wasted time = time - floors. "
        "Bytes count every operand once: caches can make a kernel faster than its floor (efficiency above 1). "
        f"On GPUs shapes are those of the operator that launched the kernel.{roof[0]}",
        f"FLOPs 已知的部分占 Kernel 总耗时 {format_ratio(shares[0])}，字节数已知的部分占 {format_ratio(shares[1])}。"
        "算子下限 = max(FLOPs / 峰值, 字节数 / 内存带宽)；效率 = 下限 / 耗时，浪费时间 = 耗时 − 下限。"
        "字节数按每个操作数读写一次计：缓存命中可使算子快于下限（效率大于 1）。"
        f"GPU 的 Shape 取自下发该 Kernel 的算子。{roof[1]}",
    )
