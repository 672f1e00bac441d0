"""Per kernel: pipe ratios, MAC utilisation, achieved rates against the peak, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.roofline import efficiency_ratio, floor_ns
from ascend_perf.device.specs import CUBE_FLOP_PER_CYCLE, DeviceSpec, spec_for
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.flops import Work, work_of

BOUND_MIN_RATIO: Final = threshold("C-03", "min_busy_ratio")
LATENCY_MAX_RATIO: Final = threshold("C-03", "max_latency_ratio")

CUBE_PIPES: Final = ("aic_mac_ratio", "aic_mte1_ratio", "aic_mte2_ratio", "aic_fixpipe_ratio", "aic_scalar_ratio")
VECTOR_PIPES: Final = ("aiv_vec_ratio", "aiv_mte2_ratio", "aiv_mte3_ratio", "aiv_scalar_ratio")

BOUNDS: Final = ("MAC-bound", "MTE-bound", "vector-bound", "scalar-bound", "latency-bound", "mixed")
"""Bound classes; "mixed" has its busiest pipe between 0.5 and 0.8."""
_BOUND_OF: Final = {
    "aic_mac_ratio": 0, "aic_mte1_ratio": 1, "aic_mte2_ratio": 1, "aic_fixpipe_ratio": 1, "aic_scalar_ratio": 3,
    "aiv_vec_ratio": 2, "aiv_mte2_ratio": 1, "aiv_mte3_ratio": 1, "aiv_scalar_ratio": 3,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """One entry per kernel in every array; NaN where the data do not tell."""

    spec: DeviceSpec | None
    duration: Ints
    classes: Text
    is_cube: Bools
    """Kernels whose main core is a cube core (GPU: matrix products, convolutions, attention)."""
    is_vector: Bools
    pipes: dict[str, Floats]
    """The ratio of every pipe of the kernel's own cores; NaN for the pipes of the other core."""
    mac_ratio: Floats
    cube_ratio: Floats
    """Share of the cube cores that the kernel occupied over its time (`cube_utilization`)."""
    mfu: Floats
    """Kernel MFU: mac_ratio * cube_ratio, or FLOPs from shapes against the peak where there are no counters."""
    pmu_flops_per_s: Floats
    """Achieved rate by counters."""
    work: Work
    dtype: Text
    """What the units compute in: `work.dtype`, but `hf32` where fp32 operands may be multiplied as HF32."""
    shape_flops_per_s: Floats
    """Achieved rate by shapes."""
    peak_flops_per_s: Floats
    """Peak of the unit and dtype of the kernel."""
    best_pipe: Floats
    bound: Ints
    """Index into `BOUNDS`, -1 where no pipe ratio is known."""
    efficiency: Floats
    """MFU of matrix kernels, the busiest pipe of vector kernels, floor / time on GPUs. Above 1 is an anomaly."""


@once
def utilisation_of(trace: Trace) -> Utilisation:
    """Utilisation of every kernel of a rank.

    Kernel MFU = mac_ratio * cube_utilization. Achieved FLOP/s = FLOP per cycle of the dtype * total cycles * mac_ratio
    / duration. Against 2*M*N*K the counters read 1 to 2 % high on large bf16 products, 5 to 14 % on odd shapes; the
    factor 2048 of fp32 is inferred.

    Reads:
        kernels: core, dur_ns, pipe ratios, cycles, cube_utilization_ratio, shapes, dtypes; host_ops (GPU shapes).

    Source:
        format reference, section 5.4.
    """
    kernels = trace[KERNELS]
    spec = spec_for(trace.meta.device)
    duration = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns"))
    classes = kernel_classes(kernels)
    core = kernels.text("core")
    is_gpu = trace.meta.device.kind != "npu"
    if is_gpu:
        matrix = [KernelClass.MATMUL.value, KernelClass.CONV.value, KernelClass.ATTENTION.value]
        is_cube = classes.isin(matrix)
        is_vector = ~is_cube
    else:
        is_cube, is_vector = core.isin(["AIC", "MIX_AIC"]), core.isin(["AIV", "MIX_AIV"])
    is_mix = core.isin(["MIX_AIC", "MIX_AIV"])
    pipes = {name: np.where(is_cube | is_mix, _ratio(kernels, name), np.nan) for name in CUBE_PIPES}
    # Vector kernels must be read from the vector columns: their cube columns hold 0, which is not "idle pipe".
    pipes |= {name: np.where(is_vector | is_mix, _ratio(kernels, name), np.nan) for name in VECTOR_PIPES}
    pipes["aic_mac_ratio"] = np.where(is_cube | is_mix, _mac_ratio(kernels), np.nan)
    work = work_of(kernels, trace[HOST_OPS])
    mac = np.where(is_cube, pipes["aic_mac_ratio"], np.nan)
    cube = np.where(is_cube, _cube_ratio(kernels, spec, duration), np.nan)
    shape_rate = _per_second(np.where(work.flops > 0, work.flops, np.nan), duration)  # moving data has no rate
    dtype = work.dtype if is_gpu else _compute_dtype(kernels, work.dtype, classes)
    peak = peaks_of(dtype, is_cube, spec)
    mfu = mac * cube
    if is_gpu:
        mfu = np.where(is_cube, shape_rate / peak, np.nan)
    best, bound = _bounds(pipes)
    return Utilisation(
        spec=spec,
        duration=duration,
        classes=classes,
        is_cube=is_cube,
        is_vector=is_vector,
        pipes=pipes,
        mac_ratio=mac,
        cube_ratio=cube,
        mfu=mfu,
        pmu_flops_per_s=_pmu_rate(kernels, mac, dtype, duration),
        work=work,
        dtype=dtype,
        shape_flops_per_s=shape_rate,
        peak_flops_per_s=peak,
        best_pipe=best,
        bound=bound,
        efficiency=_efficiency(is_gpu, is_cube, is_vector, mfu, best, work, peak, spec, duration),
    )


def weighted_mean(values: Floats, weights: Ints, rows: Bools | None = None) -> float | None:
    """Mean by time over the kernels whose value is known; None when there is none."""
    use = ~np.isnan(values) & (weights > 0)
    if rows is not None:
        use &= rows
    total = int(weights[use].sum())
    return float((values[use] * weights[use]).sum() / total) if total else None


def _compute_dtype(kernels: Table, dtype: Text, classes: Text) -> Text:
    """Operand dtypes with fp32 replaced by hf32 where the kernel may use it; its rate is not public.

    Convolutions use HF32 unless told otherwise, so they count as hf32 where the column is missing as well.
    """
    eligible = kernels.text("hf32_eligible")
    may = eligible.equals("YES") | ((eligible.codes < 0) & classes.equals(KernelClass.CONV.value))
    rows = dtype.equals("fp32") & may
    if not rows.any():
        return dtype
    values = [*dtype.values, "hf32"]
    return Text(np.where(rows, len(values) - 1, dtype.codes).astype(np.int32), values)


def _ratio(kernels: Table, name: str) -> Floats:
    return kernels.floats(name)


def _mac_ratio(kernels: Table) -> Floats:
    """The MAC ratio, or the sum of its parts where ArithmeticUtilization was collected."""
    ratio = kernels.floats("aic_mac_ratio")
    parts = [name for name in ("aic_mac_fp16_ratio", "aic_mac_int8_ratio") if name in kernels.names]
    if not parts:
        return ratio
    total = np.nansum([kernels.floats(name) for name in parts], axis=0)
    known = np.any([~np.isnan(kernels.floats(name)) for name in parts], axis=0)
    return np.where(np.isnan(ratio), np.where(known, total, np.nan), ratio)


def _cube_ratio(kernels: Table, spec: DeviceSpec | None, duration: Ints) -> Floats:
    """Occupancy of the cube cores: the exporter's column, else cycles / (frequency * cores * duration)."""
    ratio = kernels.floats("cube_utilization_ratio")
    if spec is None or spec.cube_cores is None or spec.frequency_hz is None:
        return ratio
    cycles = kernels.ints("aic_total_cycles")
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(
            (cycles > 0) & (duration > 0), cycles / (spec.frequency_hz * spec.cube_cores * duration * 1e-9), np.nan
        )
    return np.where(np.isnan(ratio), own, ratio)


def _pmu_rate(kernels: Table, mac: Floats, dtype: Text, duration: Ints) -> Floats:
    cycles = kernels.ints("aic_total_cycles")
    per_cycle = dtype.numbers(lambda name: float(CUBE_FLOP_PER_CYCLE.get(name, np.nan)))
    return _per_second(np.where(cycles > 0, cycles * per_cycle * mac, np.nan), duration)


def _per_second(amount: Floats, duration: Ints) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(duration > 0, amount / duration * 1e9, np.nan)


def peaks_of(dtype: Text, is_cube: Bools, spec: DeviceSpec | None) -> Floats:
    """Peak of each kernel's unit and dtype; fp32 products of a GPU are held against TF32 only by row C-11."""
    if spec is None:
        return np.full(len(dtype), np.nan)
    matrix = dtype.numbers(lambda name: spec.matrix_peak(name) or np.nan)
    vector = dtype.numbers(lambda name: spec.vector_peak("fp32" if name == "bf16" else name) or np.nan)
    return np.where(is_cube, matrix, vector)


def _bounds(pipes: dict[str, Floats]) -> tuple[Floats, Ints]:
    """Ratio of the busiest pipe, and the bound class that follows from it."""
    names = list(pipes)
    stack = np.vstack([pipes[name] for name in names])
    filled = np.where(np.isnan(stack), -1.0, stack)
    which, highest = filled.argmax(axis=0), filled.max(axis=0)
    # Other aic_metrics hold the MAC ratio alone: a busy MAC is a verdict, an idle one is not without the loads.
    loads = ~np.isnan(pipes["aic_mte2_ratio"]) | ~np.isnan(pipes["aiv_mte2_ratio"])
    known = loads | (highest > BOUND_MIN_RATIO.value)
    best = np.where(known, highest, np.nan)
    kind = np.array([_BOUND_OF[name] for name in names], np.int64)[which]
    bound = np.where(best > BOUND_MIN_RATIO.value, kind, np.where(best < LATENCY_MAX_RATIO.value, 4, 5))
    return best, np.where(known, bound, -1).astype(np.int64)


def _efficiency(
    is_gpu: bool,
    is_cube: Bools,
    is_vector: Bools,
    mfu: Floats,
    best: Floats,
    work: Work,
    peak: Floats,
    spec: DeviceSpec | None,
    duration: Ints,
) -> Floats:
    if is_gpu:
        rate = spec.memory_bytes_per_s.value if spec else None
        return efficiency_ratio(floor_ns(work.flops, work.bytes, peak, rate), duration.astype(float))
    return np.where(is_cube, mfu, np.where(is_vector, best, np.nan))
