"""How much of the matrix units' peak is reached, kernel by kernel, and what bounds the others: C-02, C-03, M-01."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ascend_perf.analyzers._attention import attention_of
from ascend_perf.analyzers._claimed_kernels import claimed_kernels
from ascend_perf.analyzers._kernels import PIPES, STEP_MIN_RATIO, Groups, KernelTime, group_kernels, kernel_place
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers._utilisation import BOUND_MIN_RATIO, BOUNDS, Utilisation, utilisation_of, weighted_mean
from ascend_perf.analyzers._work_classes import class_table, coverage
from ascend_perf.device.ceilings import Ceilings, measured_ceilings
from ascend_perf.device.roofline import intensity_flop_per_byte
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import Bools, Floats
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import counted, format_ns, format_ratio

ANALYZER: Final = "mac-utilisation"
MAX_ROWS: Final = 200

MTE2_MIN_RATIO: Final = threshold("C-02", "min_mte2_ratio")
OPERANDS_MIN_BYTES: Final = threshold("C-02", "min_operand_bytes")
NO_PIPE_MIN_NS: Final = threshold("C-03", "min_kernel_ns")
MEMORY_MIN_RATIO: Final = threshold("M-01", "min_rate_ratio")
MEMORY_STEP_MIN_RATIO: Final = threshold("M-01", "min_share_ratio")

_Roof = tuple[str, str, float, str, str]
"""Name, kind, FLOP/s or bytes/s, basis, confidence."""

NO_PEAK: Final = Words("peak not known for this device", "该设备的峰值未知")


@analyzer(name=ANALYZER, needs=(KERNELS,), order=40, section="mac", needs_measured=("C-02", "C-03", "M-01"))
def mac_utilisation(trace: Trace) -> Result:
    """Utilisation by op type and shape, sorted by wasted time = time * (1 - efficiency), with roofline and findings.

    Reads:
        kernels, host_ops; meta.device.

    Source:
        format reference, section 5.4 (formulas and their error); rivals-and-methods, method 5.4.
    """
    time = KernelTime.of(trace)
    use = utilisation_of(trace)
    has_counters = bool((~np.isnan(use.best_pipe) | ~np.isnan(use.mac_ratio)).any())
    # That copies compute nothing is no data.
    if not has_counters and not ((use.work.flops > 0) | ~np.isnan(use.work.bytes)).any():
        raise NoData(PIPES if trace.meta.device.kind == "npu" else _NO_SHAPES)
    findings: list[Finding] = []
    judged: list[Judged] = []
    for outcome in (*_operand_bound(time, use), *_no_pipe(time, use), *_memory_bound(time, use)):
        (findings if isinstance(outcome, Finding) else judged).append(outcome)  # type: ignore[arg-type]
    groups = _groups(time)
    by_class = class_table(time, use)
    tables = [
        *([] if by_class is None else [by_class]), _table(time, use, groups), *_roofline(time, use, groups),
        *_roofs(time, use),
    ]  # fmt: skip
    return Result(findings=tuple(findings), metrics=_metrics(time, use), tables=tuple(tables), judged=tuple(judged))


_NO_SHAPES: Final = Words(
    "no counters, and no shapes: profile with record_shapes=True",
    "没有计数器，也没有 Shape：请以 record_shapes=True 采集",
)


def _groups(time: KernelTime) -> Groups:
    kernels = time.trace[KERNELS]
    if kernels.has("op_type"):
        names = ("op_type", "core", "input_shapes", "input_dtypes", "output_shapes")
        return group_kernels(kernels, [kernels.text(name).codes for name in names])
    return group_kernels(kernels, [kernels.text("name").codes])


def _mean_by_group(groups: Groups, values: Floats, duration: Floats) -> Floats:
    """Mean by time of each group, over the kernels whose value is known."""
    known = np.isfinite(values) & (duration > 0)
    size = len(groups.count)
    weights = np.bincount(groups.of[known], duration[known], size)
    sums = np.bincount(groups.of[known], values[known] * duration[known], size)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(weights > 0, sums / weights, np.nan)


def _table(time: KernelTime, use: Utilisation, groups: Groups) -> ResultTable:
    kernels = time.trace[KERNELS]
    duration = use.duration.astype(float)

    def mean(values: Floats) -> Floats:
        return _mean_by_group(groups, values, duration)

    efficiency = mean(use.efficiency)
    wasted = np.where(np.isnan(efficiency), np.nan, groups.total_ns * np.clip(1 - efficiency, 0, None))
    # Groups of unknown efficiency come last, by their time.
    order = np.lexsort((-groups.total_ns, -np.nan_to_num(wasted, nan=-1.0)))[:MAX_ROWS]
    first = groups.longest[order]
    pmu, shapes = mean(use.pmu_flops_per_s), mean(use.shape_flops_per_s)
    columns = [
        Col("name", "Kernel", "Kernel", kernels.text("name").take(first)),
        Col("op_type", "Type", "类型", kernels.text("op_type").take(first)),
        Col("core", "Core", "核类型", kernels.text("core").take(first)),
        Col("shapes", "Input shapes", "输入 Shape", kernels.text("input_shapes").take(first)),
        Col("dtype", "Dtype", "数据类型", use.dtype.take(first)),
        Col("count", "Count", "次数", groups.count[order], "count"),
        Col("time_ns", "Time", "耗时", groups.total_ns[order], "ns"),
        Col("wasted_ns", "Wasted time", "浪费时间", wasted[order], "ns"),
        Col("efficiency_ratio", "Efficiency", "效率", efficiency[order], "ratio"),
        Col("mac_ratio", "MAC ratio", "MAC 占比", mean(use.mac_ratio)[order], "ratio"),
        Col("cube_utilisation_ratio", "Cube utilisation", "Cube 利用率", mean(use.cube_ratio)[order], "ratio"),
        Col("mfu_ratio", "Kernel MFU", "算子级 MFU", mean(use.mfu)[order], "ratio"),
        Col("pmu_flops_per_s", "Rate by counters", "实际算力（计数器）", pmu[order], "flops_per_s"),
        Col("shape_flops_per_s", "Rate by shapes", "实际算力（Shape）", shapes[order], "flops_per_s"),
        Col("peak_flops_per_s", "Peak", "峰值", mean(use.peak_flops_per_s)[order], "flops_per_s"),
        Col("busiest_pipe_ratio", "Busiest pipe", "最忙流水占比", mean(use.best_pipe)[order], "ratio"),
        Col("bound", "Bound by", "瓶颈类型", _bound_names(use, first)),
    ]
    return result_table("mac", Words("Utilisation by shape", "按 Shape 的利用率"), columns, _note(use))


def _bound_names(use: Utilisation, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str | None]:
    return [None if at < 0 else BOUNDS[at] for at in use.bound[rows].tolist()]


def _note(use: Utilisation) -> Words:
    basis = NO_PEAK
    if use.spec is not None:
        if use.spec.basis == "derived":
            basis = Words(
                f"the peak is derived (inferred): {use.spec.note}", "峰值为推算值（非官方），推算依据见数据质量"
            )
        else:
            basis = Words(f"peaks of {use.spec.name} from the device table", f"峰值取自设备表：{use.spec.name}")
    return Words(
        "Wasted time = time x (1 - efficiency). Efficiency: kernel MFU = MAC ratio x cube utilisation for cube "
        "kernels, the busiest pipe for vector kernels, the roofline on GPUs. Counters read 1-2 % above 2MNK on large "
        "bf16 products and 5-14 % on odd shapes; fp32 counts 2048 FLOP per cycle and core (inferred), and no rate of "
        f"HF32 is known. Here {basis.en}.",
        "浪费时间 = 耗时 ×（1 − 效率）。效率：Cube 算子取算子级 MFU = MAC 占比 × Cube 利用率，"
        "Vector 算子取最忙流水占比，GPU 取 Roofline。计数器结果在大 bf16 矩阵乘上比 2MNK 高 1-2 %，"
        "在不规则 Shape 上高 5-14 %；fp32 按每核每周期 2048 FLOP 计（推断），HF32 的算力未知。"
        f"此处{basis.zh}。",
    )


def _roofline(time: KernelTime, use: Utilisation, groups: Groups) -> Iterator[ResultTable]:
    """Groups whose FLOPs and bytes are known; coverage of kernel time is in the note."""
    kernels = time.trace[KERNELS]
    intensity = intensity_flop_per_byte(use.work.flops, use.work.bytes)
    known = ~np.isnan(intensity) & (use.shape_flops_per_s > 0) & (intensity > 0)
    if not known.any():
        return
    duration = use.duration.astype(float)
    x = _mean_by_group(groups, np.where(known, intensity, np.nan), duration)
    y = _mean_by_group(groups, np.where(known, use.shape_flops_per_s, np.nan), duration)
    rows = np.flatnonzero(~np.isnan(x) & ~np.isnan(y))[:MAX_ROWS]
    first = groups.longest[rows]
    share = time.kernel_share(known)
    yield result_table(
        "roofline",
        Words("Roofline", "Roofline（屋顶线）"),
        [
            Col("name", "Kernel", "Kernel", kernels.text("name").take(first)),
            Col("op_type", "Type", "类型", kernels.text("op_type").take(first)),
            Col("dtype", "Dtype", "数据类型", use.dtype.take(first)),
            Col("roof", "Unit", "单元", ["matrix" if cube else "vector" for cube in use.is_cube[first].tolist()]),
            Col("intensity_flops_per_byte", "FLOP per byte", "计算访存比（FLOP/B）", x[rows]),
            Col("achieved_flops_per_s", "Achieved rate", "实际算力", y[rows], "flops_per_s"),
            Col("time_ns", "Time", "耗时", groups.total_ns[rows], "ns"),
            Col("count", "Count", "次数", groups.count[rows], "count"),
        ],
        Words(
            f"Covers {format_ratio(share)} of kernel time. Bytes count every operand once, "
            "so the true intensity is at most this.",
            f"覆盖 Kernel 总耗时的 {format_ratio(share)}。字节数按每个操作数读写一次计，实际计算访存比不高于该值。",
        ),
    )


def _roofs(time: KernelTime, use: Utilisation) -> Iterator[ResultTable]:
    seen = set(use.dtype.compact().values) or {"fp16"}
    roofs = _peaks(use, seen) if use.spec is not None else []
    measured, why = measured_ceilings(), None
    if measured is not None and not measured.fits(time.trace.meta.device.name):
        here = time.trace.meta.device.name
        why = Words(
            f"The measured ceilings are those of {measured.device}, this is {here}: not drawn.",
            f"实测上限来自 {measured.device}，本数据的设备是 {here}，未画出。",
        )
    elif measured is not None:
        roofs += _reached(measured, seen, use.spec.name if use.spec is not None else measured.device)
    if use.spec is not None and use.spec.memory_bytes_per_s.value is None:
        unknown = Words("The memory rate of this device is not known.", "该设备的内存带宽未知。")
        why = unknown if why is None else Words(f"{unknown.en} {why.en}", f"{unknown.zh}{why.zh}")
    if not roofs:
        return
    yield result_table(
        "roofs",
        Words("Ceilings of the device", "设备上限"),
        [
            Col("name", "Ceiling", "上限", [roof[0] for roof in roofs]),
            Col("kind", "Kind", "类别", [roof[1] for roof in roofs]),
            # The unit depends on the row: FLOP/s of compute roofs, bytes/s of bandwidth roofs.
            Col("value", "FLOP/s or bytes/s", "FLOP/s 或字节/s", [roof[2] for roof in roofs]),
            Col("basis", "Basis", "依据", [roof[3] for roof in roofs]),
            Col("confidence", "Confidence", "可信度", [roof[4] for roof in roofs]),
        ],
        why,
    )


def _peaks(use: Utilisation, seen: set[str]) -> list[_Roof]:
    """Of the device table, for the dtypes that are used."""
    assert use.spec is not None
    name, basis, roofs = use.spec.name, use.spec.basis, list[_Roof]()
    for dtype, figure in use.spec.matrix_flops_per_s.items():
        if figure.value is not None and (dtype in seen or (dtype == "tf32" and "fp32" in seen)):
            roofs.append((f"{name} {dtype}", "compute", figure.value, basis, figure.confidence))
    for dtype, figure in use.spec.vector_flops_per_s.items():
        if figure.value is not None and dtype in {"fp32", *seen}:
            roofs.append((f"{name} vector {dtype}", "compute", figure.value, basis, figure.confidence))
    rate = use.spec.memory_bytes_per_s
    if rate.value is not None:
        roofs.append((f"{name} memory", "bandwidth", rate.value, basis, rate.confidence))
    return roofs


def _reached(measured: Ceilings, seen: set[str], device: str | None) -> list[_Roof]:
    """Of a run of `micro` on the same device, for the dtypes that are used."""
    label = "measured" if device is None else f"{device} measured"
    roofs: list[_Roof] = [
        (f"{label} {dtype}", "compute", rate, "measured", "high")
        for dtype, rate in measured.flops_per_s
        if dtype in seen
    ]
    if measured.memory_bytes_per_s is not None:
        roofs.append((f"{label} memory", "bandwidth", measured.memory_bytes_per_s, "measured", "high"))
    return roofs


def _operand_bound(time: KernelTime, use: Utilisation) -> Iterator[Finding | Judged]:
    """C-02: cube kernels with mte2 at 0.95 or more and MAC below 0.8."""
    if time.trace.meta.device.kind != "npu":
        return
    mte2, mac = use.pipes["aic_mte2_ratio"], use.mac_ratio
    if np.isnan(mte2[use.is_cube]).all():
        yield Judged(code="C-02", verdict="not_judged", reason=PIPES)
        return
    large = np.isnan(use.work.bytes) | (use.work.bytes >= OPERANDS_MIN_BYTES.value)
    # Row C-05 names what limits fused attention: its kernels are not claimed twice.
    rows = use.is_cube & (mte2 >= MTE2_MIN_RATIO.value) & (mac < BOUND_MIN_RATIO.value) & large
    rows &= ~attention_of(time.trace[KERNELS]).limited
    yield from _bound_finding(
        time,
        "C-02",
        rows,
        1 - np.nan_to_num(mac),
        Words("cube kernels wait for their operands (MTE2 at 0.95 or more, MAC below 0.8)",
              "Cube 算子受操作数搬运限制（MTE2 ≥ 0.95，MAC < 0.8）"),
        "union(kernels) / step * mean(1 - mac_ratio)",
        _pipe_evidence(time, use, rows),
    )  # fmt: skip


def _no_pipe(time: KernelTime, use: Utilisation) -> Iterator[Finding | Judged]:
    """C-03: kernels of 20 us or more whose busiest pipe stays at or below 0.8, weighted by the idle part of it."""
    if time.trace.meta.device.kind != "npu":
        return
    if np.isnan(use.pipes["aic_mte2_ratio"]).all() and np.isnan(use.pipes["aiv_mte2_ratio"]).all():
        yield Judged(code="C-03", verdict="not_judged", reason=PIPES)
        return
    rows = (use.best_pipe <= BOUND_MIN_RATIO.value) & (use.duration >= NO_PIPE_MIN_NS.value)
    rows &= ~attention_of(time.trace[KERNELS]).limited  # claimed by row C-05
    yield from _bound_finding(
        time,
        "C-03",
        rows,
        1 - np.nan_to_num(use.best_pipe),
        Words("kernels of 20 us or more keep no pipe busier than 0.8", "20 us 及以上的算子各流水占比均不超过 0.8"),
        "union(kernels) / step * mean(1 - busiest pipe ratio)",
        _pipe_evidence(time, use, rows),
    )


def _memory_bound(time: KernelTime, use: Utilisation) -> Iterator[Finding | Judged]:
    """M-01: kernels that move their bytes at 60 % of the peak memory rate or more, and have little arithmetic."""
    rate = use.spec.memory_bytes_per_s.value if use.spec else None
    if rate is None:
        reason = (
            Words("the peak memory rate of this device is not known", "该设备的峰值内存带宽未知")
            if use.spec
            else NO_PEAK
        )
        yield Judged(code="M-01", verdict="not_judged", reason=reason)
        return
    if np.isnan(use.work.bytes).all():
        switch = Words(
            "not in this data: shapes (record_shapes=True, Level1)", "数据中没有 Shape（record_shapes=True、Level1）"
        )
        yield Judged(code="M-01", verdict="not_judged", reason=switch)
        return
    achieved = np.where(use.duration > 0, use.work.bytes / np.maximum(use.duration, 1) * 1e9, np.nan)
    with np.errstate(invalid="ignore"):
        reached = achieved / rate
        near = reached >= MEMORY_MIN_RATIO.value
    loads = np.fmax(use.pipes["aiv_mte2_ratio"], use.pipes["aic_mte2_ratio"])
    works = np.fmax(use.pipes["aiv_vec_ratio"], use.pipes["aic_mac_ratio"])
    # Without counters the roofline decides: left of the ridge point.
    left = np.isnan(loads) & ~use.is_cube
    # Casts and unfused sequences have rows that count their time: C-10, C-12, C-13.
    rows = near & ((loads > works) | left) & ~claimed_kernels(time, use.classes, with_optimizer=False)
    share = time.step_share(rows) if rows.any() else 0.0
    if not rows.any() or (share is not None and share < MEMORY_STEP_MIN_RATIO.value):
        of = format_ratio(share or 0.0)
        yield Judged(
            code="M-01",
            verdict="clean",
            reason=Words(
                f"kernels at 60 % of the memory rate or more: {of} of the step",
                f"达到内存带宽 60 % 的算子：占单步 {of}"
            ),
        )
        return
    row = time.longest(rows)
    middle = float(np.median(reached[rows]))
    yield finding(
        "M-01",
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{counted(time.per_step_count(rows), 'kernel per step runs', 'kernels per step run')} at "
            f"{format_ratio(middle)} (median) of the memory "
            f"rate for {format_ns(time.per_step_ns(rows))}: only fewer bytes help them.",
            f"每步有 {time.per_step_count(rows):.4g} 个算子已达到内存带宽的 {format_ratio(middle)}（中位数），耗时 "
            f"{format_ns(time.per_step_ns(rows))}：只有减少搬运量才有效。",
        ),
        share_ratio=share,
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=[
            Evidence(
                name=Words("achieved memory rate of the longest one", "最长算子的实际带宽"),
                value=float(achieved[row]),
                unit="bytes_per_s",
                where=f"{kernel_place(time.trace[KERNELS], row)}; bytes from shapes, each operand once",
            ),
            Evidence(
                name=Words("peak memory rate", "峰值内存带宽"),
                value=rate,
                unit="bytes_per_s",
                where=f"device table: {use.spec.name if use.spec else ''}",
            ),
            *time.evidence(rows, Words("kernels at the memory roof", "达到带宽上限的算子")),
        ],
        vendor=time.trace.meta.device.kind,
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula="union(kernels with bytes / time >= 0.6 * peak) / step",
    )
    yield Judged(code="M-01", verdict="found")


def _bound_finding(
    time: KernelTime, code: str, rows: Bools, loss: Floats, what: Words, formula: str, extra: list[Evidence]
) -> Iterator[Finding | Judged]:
    """A finding about kernels of which `loss` could go; the share is weighted by time."""
    share = time.step_share(rows) if rows.any() else 0.0
    spent = int(time.duration[rows].sum())
    mean_loss = float((time.duration[rows] * loss[rows]).sum() / spent) if spent else 0.0
    touched = None if share is None else share * mean_loss
    if not spent or (touched is not None and touched < STEP_MIN_RATIO.value):
        of = format_ratio(touched or 0.0)
        yield Judged(
            code=code,
            verdict="clean",
            reason=Words(f"{what.en}: at most {of} of the step", f"{what.zh}：至多占单步 {of}"),
        )
        return
    yield finding(
        code,
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{time.per_step_count(rows):.4g} {what.en} in a step: {format_ns(time.per_step_ns(rows))}, of which "
            f"{format_ratio(mean_loss)} could go at most.",
            f"每步有 {time.per_step_count(rows):.4g} 个 {what.zh}：耗时 {format_ns(time.per_step_ns(rows))}，"
            f"理论上至多可减少 {format_ratio(mean_loss)}。",
        ),
        share_ratio=touched,
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=[*extra, *time.evidence(rows, Words("such kernels", "此类算子"))],
        vendor="npu",
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula=formula,
    )
    yield Judged(code=code, verdict="found")


def _pipe_evidence(time: KernelTime, use: Utilisation, rows: Bools) -> list[Evidence]:
    """The kernels that weigh most, with their pipes."""
    kernels = time.trace[KERNELS]
    picked = np.flatnonzero(rows)
    seen: set[tuple[str | None, str | None]] = set()
    made: list[Evidence] = []
    for row in picked[np.argsort(-use.duration[picked], kind="stable")].tolist():
        key = kernels.text("op_type")[row], kernels.text("input_shapes")[row]
        if key in seen:
            continue
        seen.add(key)
        ratios = {name.removesuffix("_ratio"): values[row] for name, values in use.pipes.items()}
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if not np.isnan(ratio))
        made.append(
            Evidence(
                name=Words(f"pipes of {key[0] or 'the kernel'}", f"{key[0] or '算子'} 的各流水占比"),
                value=told,
                where=kernel_place(kernels, row),
                start_ns=int(kernels.ints("start_ns")[row]),
            )
        )
        if len(made) == 3:
            break
    return made


def _metrics(time: KernelTime, use: Utilisation) -> tuple[Metric, ...]:
    rank = time.trace.meta.rank

    def ratio(name: str, value: float | None) -> Metric:
        return Metric(name=name, value=value, unit="ratio", better="higher", rank=rank)

    metrics = [
        ratio("mac_ratio", weighted_mean(use.mac_ratio, use.duration)),
        ratio("cube_utilisation", weighted_mean(use.cube_ratio, use.duration)),
        ratio("kernel_mfu", weighted_mean(use.mfu, use.duration)),
    ]
    if time.kernel_total_ns:
        known = coverage(time, use)
        metrics += [ratio("flops_known", known[0]), ratio("bytes_known", known[1])]
    matrix = use.is_cube & ~np.isnan(use.work.flops)
    spent = int(use.duration[matrix].sum())
    if spent:
        rate = float(use.work.flops[matrix].sum() / spent * 1e9)
        metrics.append(Metric(name="matrix_rate", value=rate, unit="flops_per_s", better="higher", rank=rank))
    return tuple(metric for metric in metrics if metric.value is not None)
