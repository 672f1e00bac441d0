"""Findings about the mix of operators. Each function judges one row of the troubleshooting table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ascend_perf.analyzers._kernels import LEVEL1, STEP_MIN_RATIO, KernelTime, group_kernels
from ascend_perf.analyzers._rules import Vendor, finding
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.specs import spec_for
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.table import Bools, Floats, Ints, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Device
from ascend_perf.ops.classify import KernelClass, computes, op_type_of_name
from ascend_perf.ops.flops import plain_dtype
from ascend_perf.units import counted, format_ns, format_ratio

ANALYZER: Final = "operators"

AI_CPU_MIN_NS: Final = threshold("C-07", "min_kernel_ns")
FORMAT_MIN_RATIO: Final = threshold("C-09", "min_kernel_time_ratio")
CAST_MIN_RATIO: Final = threshold("C-10", "min_kernel_time_ratio")
FP32_MIN_RATIO: Final = threshold("C-11", "min_kernel_time_ratio")
FP32_RATE_RATIO: Final = 0.25
"""Rate of the cube in fp32 against fp16. Status: inferred from vendor totals (device table)."""
VOLTA_RATE_RATIO: Final = 1 / 8
"""Rate in fp32 against fp16 on tensor cores. Source: NVIDIA data sheets of V100 (15.7, 125) and T4 (8.1, 65 TFLOPS).
Status: vendor."""
VOLTA_MAJOR: Final = 7
FIRST_TF32_MAJOR: Final = 8
BLOCKS_KERNEL_RATIO: Final = threshold("C-04", "min_kernel_time_ratio")

_AS_LAYOUT: Final = frozenset({KernelClass.TRANSPOSE.value, KernelClass.COPY.value})
_CAUSES: Final = {
    "cast": Words(
        "Autocast converts fp32 weights at every use, or tensors change their type between operators.",
        "Autocast 在每次使用时转换 fp32 权重，或张量在算子之间变换数据类型。",
    ),
    "layout": Words(
        "A non-contiguous view is read several times and copied each time, or the program copies tensors itself.",
        "非连续视图被多次读取、每次都触发拷贝，或程序自身在拷贝张量。",
    ),
}
"""What row C-10 lists, for each of its two findings."""
_SGEMM: Final = (
    "sgemm_", "s_gemm", "_sgemm", "gemmsn", "gemm_fp32", "cijk_ailk_bljk_sb", "cijk_alik_bljk_sb", "cijk_ailk_bjlk_sb",
    "cijk_alik_bjlk_sb", "gemm_f32f32_f32f32_f32",
)  # fmt: skip
_FP32_CONVOLUTION: Final = re.compile(
    r"scudnn|_f32f32_f32f32_f32|(convolve_sgemm|engine|Kernel)<float\b|sp3AsmConv.*fp32"
)
_SHORT_FORMAT: Final = re.compile(r"tensorop|tf32|h884|s1688|1688|16816|half|bfloat|bf16|fp16", re.IGNORECASE)
_BEFORE_AMPERE: Final = re.compile(r"(kepler|maxwell|pascal|volta|turing)_", re.IGNORECASE)
"""Kernels of NVIDIA's libraries bear the name of the architecture."""


def ai_cpu(time: KernelTime) -> Iterator[Finding | Judged]:
    """C-07: kernels on the AI CPU that take longer than 20 us."""
    if not _is_npu(time):
        return
    kernels = time.trace[KERNELS]
    if not kernels.has("core"):
        yield Judged(code="C-07", verdict="not_judged", reason=LEVEL1)
        return
    rows = kernels.text("core").equals("AICPU") & (time.duration > AI_CPU_MIN_NS.value) & computes(kernels)
    share = time.step_share(rows) if rows.any() else 0.0
    if not rows.any() or (share is not None and share < STEP_MIN_RATIO.value):
        yield _clean("C-07", time, rows, Words("AI CPU kernels above 20 us", "超过 20 us 的 AI CPU 算子"))
        return
    named_types = kernels.text("op_type")
    if not kernels.has("op_type"):
        named_types = kernels.text("name").relabel(op_type_of_name)
    types = sorted({t for t in named_types.take(rows).to_list() if t})
    named = ", ".join(types[:4]) + (" ..." if len(types) > 4 else "")
    spent, of = format_ns(time.per_step_ns(rows)), _of_step(share)
    alone = time.alone_ns(rows)
    hidden = time.per_step_ns(rows) - alone / time.steps
    beside = ("", "")
    if hidden >= 1:
        beside = (
            f", {format_ns(hidden)} of it while other kernels run too",
            f"，其中 {format_ns(hidden)} 与其他算子并行",
        )
    count = _count(time, rows)
    kernels_run = "kernel per step above 20 us runs" if count == "1" else "kernels per step above 20 us run"
    yield finding(
        "C-07",
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{count} {kernels_run} on the AI CPU ({named or 'type unknown'}) "
            f"and {'takes' if count == '1' else 'take'} {spent}{of.en}{beside[0]}.",
            f"每步有 {count} 个超过 20 us 的算子在 AI CPU 上执行（{named or '类型未知'}），"
            f"耗时 {spent}{of.zh}{beside[1]}。",
        ),
        share_ratio=None if share is None else min(share, alone / time.whole_ns),
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=[*time.evidence(rows, Words("AI CPU kernels", "AI CPU 算子")), *_dtypes(time, rows)],
        vendor="npu",
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula="(union(AI CPU kernels > 20 us) - union(other kernels)) / step: the AI CPU works beside the cores",
    )
    yield Judged(code="C-07", verdict="found")


def format_conversion(time: KernelTime, classes: Text) -> Iterator[Finding | Judged]:
    """C-09: TransData (GPU: layout kernels of convolutions) with 3 % of kernel time or more."""
    rows = classes.equals(KernelClass.FORMAT.value)
    yield from _class_finding(
        time,
        "C-09",
        rows,
        FORMAT_MIN_RATIO.value,
        Words("Format conversions (TransData)", "格式转换（TransData）")
        if _is_npu(time)
        else Words("Layout conversions", "排布转换"),
        "union(format conversions) / step",
    )


def casts_and_copies(time: KernelTime, classes: Text) -> Iterator[Finding | Judged]:
    """C-10: casts with 5 % of kernel time or more; transposes and copies with 5 % or more."""
    found = False
    outcomes: list[Finding | Judged] = []
    for subject, rows, what in (
        ("cast", classes.equals(KernelClass.CAST.value), Words("Casts", "Cast 算子")),
        ("layout", classes.isin(_AS_LAYOUT), Words("Transposes and copies", "Transpose 与拷贝")),
    ):
        made = list(
            _class_finding(
                time, "C-10", rows, CAST_MIN_RATIO.value, what, f"union({subject} kernels) / step", subject,
                _CAUSES[subject],
            )
        )  # fmt: skip
        found |= any(isinstance(item, Finding) for item in made)
        outcomes += [item for item in made if isinstance(item, Finding)]
    yield from outcomes
    both = classes.isin({*_AS_LAYOUT, KernelClass.CAST.value})
    yield (
        Judged(code="C-10", verdict="found")
        if found
        else _clean("C-10", time, both, Words("casts, transposes and copies", "Cast、Transpose 与拷贝"))
    )


def full_fp32(time: KernelTime, classes: Text) -> Iterator[Finding | Judged]:
    """C-11: matrix products (on GPUs also convolutions) in fp32 without HF32 or TF32."""
    kernels = time.trace[KERNELS]
    features: frozenset[str] | None = None
    products = classes.equals(KernelClass.MATMUL.value)
    convolutions = classes.equals(KernelClass.CONV.value) & (not _is_npu(time))
    if not (products | convolutions).any():
        yield Judged(code="C-11", verdict="clean", reason=Words("no matrix products", "没有矩阵乘算子"))
        return
    if _is_npu(time):
        if not kernels.has("input_dtypes"):
            yield Judged(code="C-11", verdict="not_judged", reason=LEVEL1)
            return
        first = kernels.text("input_dtypes").flags(lambda text: plain_dtype(text.split(";")[0]) in ("float", "float32"))
        hf32 = kernels.text("hf32_eligible")
        rows = products & first & ~hf32.equals("YES")
        is_told = bool((hf32.codes[rows] >= 0).all()) if rows.any() else True
        saving, basis = 1 - FP32_RATE_RATIO, "the cube's fp32 rate is a quarter of fp16"
    else:
        names = kernels.text("name")
        rows = (products & names.flags(_is_sgemm)) | (convolutions & names.flags(_is_fp32_convolution))
        is_told = True
        features = features_of(time.trace.meta.device, names)
        saving, basis = _gpu_saving(time, features)
    share = time.step_share(rows) if rows.any() else 0.0
    kernel_share = time.kernel_share(rows)
    touched = None if share is None else share * saving
    is_small = touched is not None and touched < STEP_MIN_RATIO.value
    if not rows.any() or kernel_share < FP32_MIN_RATIO.value or is_small:
        yield _clean("C-11", time, rows, Words("products in full fp32", "全精度 fp32 矩阵乘"))
        return
    spent, of = format_ns(time.per_step_ns(rows)), _of_step(share)
    mode = _fp32_mode(time)
    per_step = time.per_step_count(rows)
    if (rows & convolutions).any():
        en = counted(per_step, "product or convolution per step runs", "products and convolutions per step run")
        run = Words(en, f"{per_step:.4g} 个矩阵乘与卷积")
    else:
        en = counted(per_step, "matrix product per step runs", "matrix products per step run")
        run = Words(en, f"{per_step:.4g} 个矩阵乘")
    extra = (
        []
        if is_told
        else [
            Evidence(
                name=Words("use of HF32", "是否使用 HF32"),
                value=None,
                where="kernels.hf32_eligible: not in this data (text exports hold it)",
            )
        ]
    )
    yield finding(
        "C-11",
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{run.en} in full fp32{mode[0]}: {spent}, {format_ratio(kernel_share)} of kernel time{of.en}.",
            f"每步有 {run.zh}以全精度 fp32 执行{mode[1]}：耗时 {spent}，"
            f"占 Kernel 总耗时 {format_ratio(kernel_share)}{of.zh}。",
        ),
        share_ratio=touched,
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=[*time.evidence(rows, Words("fp32 products", "fp32 矩阵乘")), *extra],
        vendor=_vendor(time),
        features=features,
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula=f"union(fp32 products) / step * {saving:.3g} ({basis})",
    )
    yield Judged(code="C-11", verdict="found")


def block_count(time: KernelTime) -> Iterator[Finding | Judged]:
    """C-04: kernels whose blocks do not divide by the cores, weighted by their time."""
    if not _is_npu(time):
        return
    kernels = time.trace[KERNELS]
    blocks = kernels.ints("block_num")
    if not (blocks > 0).any():
        yield Judged(code="C-04", verdict="not_judged", reason=LEVEL1)
        return
    cores = _cores(time)
    usable = (blocks > 0) & (cores > 0)
    if not usable.any():
        reason = Words("the number of cores of this device is not in this data", "数据中没有该设备的核数")
        yield Judged(code="C-04", verdict="not_judged", reason=reason)
        return
    kinds: list[Ints] = [kernels.text(name).codes.astype(np.int64) for name in ("op_type", "input_shapes")]
    groups = group_kernels(kernels, [*kinds, blocks])
    is_large = (groups.total_ns >= BLOCKS_KERNEL_RATIO.value * time.kernel_total_ns)[groups.of]
    waves = np.ceil(np.where(usable, blocks / np.maximum(cores, 1), 1))
    loss = np.where(usable, 1 - blocks / np.maximum(waves * cores, 1), 0.0)
    rows = usable & is_large & (loss > 0)
    share = time.step_share(rows) if rows.any() else 0.0
    weight = time.duration[rows].sum()
    mean_loss = float((time.duration[rows] * loss[rows]).sum() / weight) if weight else 0.0
    touched = None if share is None else share * mean_loss
    if not rows.any() or (touched is not None and touched < STEP_MIN_RATIO.value):
        yield _clean("C-04", time, rows, Words("kernels with a partial last wave", "末轮未占满核的算子"))
        return
    row = time.longest(rows)
    spent, of = format_ns(time.per_step_ns(rows)), _of_step(share)
    yield finding(
        "C-04",
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{counted(time.per_step_count(rows), 'kernel per step leaves', 'kernels per step leave')} "
            f"{format_ratio(mean_loss)} of the cores idle "
            f"(e.g. {int(blocks[row])} blocks on {int(cores[row])} cores) while they run for {spent}{of.en}.",
            f"每步有 {_count(time, rows)} 个算子使 {format_ratio(mean_loss)} 的核空闲（如 {int(cores[row])} 个核只切分 "
            f"{int(blocks[row])} 块），耗时 {spent}{of.zh}。",
        ),
        share_ratio=touched,
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=[
            Evidence(
                name=Words("idle cores, weighted by time", "空闲核比例（按耗时加权）"),
                value=mean_loss,
                unit="ratio",
                where="kernels.block_num against the core count of the kernel's core type",
            ),
            Evidence(
                name=Words("blocks / cores of the longest one", "最长算子的块数/核数"),
                value=f"{int(blocks[row])} / {int(cores[row])}",
                where="kernels.block_num",
            ),
            *time.evidence(rows, Words("such kernels", "此类算子")),
        ],
        vendor="npu",
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula="union(kernels) / step * mean(1 - b / (ceil(b / c) * c)), b blocks on c cores",
    )
    yield Judged(code="C-04", verdict="found")


def _cores(time: KernelTime) -> Floats:
    """Cores that each kernel could use: cube cores for AIC and MIX_AIC, vector cores for AIV and MIX_AIV."""
    device, spec = time.trace.meta.device, spec_for(time.trace.meta.device)
    cube = device.cube_cores or (spec.cube_cores if spec else None) or 0
    vector = device.vector_cores or (spec.vector_cores if spec else None) or 0
    core = time.trace[KERNELS].text("core")
    return np.where(core.isin(["AIC", "MIX_AIC"]), cube, np.where(core.isin(["AIV", "MIX_AIV"]), vector, 0)).astype(
        float
    )


def _class_finding(
    time: KernelTime, code: str, rows: Bools, least: float, what: Words, formula: str, subject: str = "",
    cause: Words | None = None,
) -> Iterator[Finding | Judged]:
    share = time.step_share(rows) if rows.any() else 0.0
    kernel_share = time.kernel_share(rows)
    if kernel_share < least or (share is not None and share < STEP_MIN_RATIO.value):
        yield _clean(code, time, rows, what)
        return
    count = time.per_step_count(rows)
    spent, of = format_ns(time.per_step_ns(rows)), _of_step(share)
    yield finding(
        code,
        analyzer=ANALYZER,
        trace_rank=time.trace.meta.rank,
        title=Words(
            f"{what.en} take {format_ratio(kernel_share)} of {time.unit.en} time: "
            f"{counted(count, time.unit.en)} and {spent} per step{of.en}.",
            f"{what.zh}占{time.unit.zh}总耗时 {format_ratio(kernel_share)}：每步 {count:.4g} 个、{spent}{of.zh}。",
        ),
        share_ratio=share,
        where=time.where(rows),
        whole_ns=time.whole_ns,
        evidence=time.evidence(rows, what),
        subject=subject,
        cause=cause,
        vendor=_vendor(time),
        bands=time.bands(rows),
        step_ids=time.steps_seen(rows),
        formula=formula,
    )
    yield Judged(code=code, verdict="found")


def _clean(code: str, time: KernelTime, rows: Bools, what: Words) -> Judged:
    share = format_ratio(time.kernel_share(rows))
    return Judged(
        code=code,
        verdict="clean",
        reason=Words(f"{what.en}: {share} of {time.unit.en} time", f"{what.zh}：占{time.unit.zh}总耗时 {share}"),
    )


class _Tail(NamedTuple):
    en: str
    zh: str


def _of_step(share: float | None) -> _Tail:
    if share is None:
        return _Tail("", "")
    return _Tail(f" ({format_ratio(share)} of the step)", f"（占单步 {format_ratio(share)}）")


def _count(time: KernelTime, rows: Bools) -> str:
    """Kernels per step as text."""
    return f"{time.per_step_count(rows):.4g}"


def _dtypes(time: KernelTime, rows: Bools) -> list[Evidence]:
    dtypes = sorted({text for text in time.trace[KERNELS].text("input_dtypes").take(rows).to_list() if text})
    if not dtypes:
        return []
    return [
        Evidence(
            name=Words("input dtypes", "输入数据类型"), value=" | ".join(dtypes[:4])[:160], where="kernels.input_dtypes"
        )
    ]


def _is_sgemm(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in _SGEMM) and "tensorop" not in lower and "tf32" not in lower


def _is_fp32_convolution(name: str) -> bool:
    return bool(_FP32_CONVOLUTION.search(name)) and not _SHORT_FORMAT.search(name)


def _fp32_mode(time: KernelTime) -> tuple[str, str]:
    """How the products run, beside being fp32, in English and Chinese; AMD's matrix units take fp32 as it is."""
    if _is_npu(time):
        return " without HF32", "、未使用 HF32"
    if time.trace.meta.device.vendor == "AMD":
        return "", ""
    return " off the tensor cores", "、未使用 Tensor Core"


def features_of(device: Device, kernels: Text) -> frozenset[str] | None:
    """Number formats that a GPU's matrix units know beside fp32, as `needs` of remedies names them; None if unknown.

    Source:
        NVIDIA: TF32 and bf16 from compute capability 8.0 (CUDA C++ Programming Guide, table of features); the name of
        the architecture in library kernels where the trace does not tell it. AMD: the device's peaks.
    """
    spec = spec_for(device)
    has_tf32 = spec is not None and spec.matrix_peak("tf32") is not None
    if device.vendor == "AMD":
        return frozenset({"bf16", "tf32"} if has_tf32 else {"bf16"})
    major = None if device.compute_capability is None else device.compute_capability[0]
    if has_tf32 or (major is not None and major >= FIRST_TF32_MAJOR):
        return frozenset({"bf16", "tf32"})
    if major is not None or any(_BEFORE_AMPERE.match(name) for name in kernels.values):
        return frozenset({"fp16"})
    return None


def _gpu_saving(time: KernelTime, features: frozenset[str] | None) -> tuple[float, str]:
    spec = spec_for(time.trace.meta.device)
    slow, fast = (spec.matrix_peak("fp32"), spec.matrix_peak("tf32")) if spec else (None, None)
    if slow is not None and fast:
        return 1 - slow / fast, "fp32 against TF32 peak of the device"
    if features == frozenset({"fp16"}) and (time.trace.meta.device.compute_capability or (7, 0))[0] == VOLTA_MAJOR:
        return 1 - VOLTA_RATE_RATIO, "fp32 runs at an eighth of fp16 on tensor cores of Volta and Turing"
    return 1.0, "peaks of this device not known: the products counted in full"


def _is_npu(time: KernelTime) -> bool:
    return time.trace.meta.device.kind == "npu"


def _vendor(time: KernelTime) -> Vendor | None:
    return time.trace.meta.device.kind
