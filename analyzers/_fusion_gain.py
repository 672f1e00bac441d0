"""What a fused operator still needs: the floor under the time of a sequence."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.device.roofline import floor_ns
from ascend_perf.device.specs import spec_for
from ascend_perf.model.table import Bools, Floats, Ints, Table, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.find_fusions import Matches
from ascend_perf.ops.flops import BYTES_OF, parse_shapes, plain_dtype, work_of
from ascend_perf.ops.fusion_words import kernel_alphabet, kernel_codes
from ascend_perf.ops.fusions import Fusion

CAUSAL_RATIO: Final = 0.5
"""Part of the products that fused attention computes under a causal mask. Source: FlashAttention-2, section 4.1."""
_SHARE: Final = "(union of the sequences) / step * (1 - floor of the fused operator / time of the sequences); "
_IDLE: Final = "; idle time between the kernels is part of rows H-01 and H-03"
FORMULAS: Final = {
    "": _SHARE + "floor: its tensors at the device's memory rate, or at the best rate among the kernels where that "
    "takes longer, but no longer than the longest kernel; the longest kernel where shapes are missing" + _IDLE,
    "time": _SHARE + "floor: the products as they are" + _IDLE,
    "peak": _SHARE + "floor: its products and its tensors at the device's peaks, half of the products under a mask; "
    "where shapes or peaks are missing the products or the longest kernel, whichever is shorter" + _IDLE,
}
"""How the share of a finding was computed, by `Floor.products`."""


def floors(time: KernelTime, fusion: Fusion, matches: Matches) -> Floats:
    """Least time in ns that the fused operator needs for each match, shape (matches,); never above the match's time.

    Reads:
        kernels: dur_ns, op_type, name, core, shapes, dtypes; host_ops (shapes of GPU kernels).

    Source:
        rivals-and-methods, method 5.4 (roofline); fused operators, section 1 (all but the slowest kernel goes).
    """
    kernels = time.trace[KERNELS].select(matches.rows)
    duration = time.duration[matches.rows].astype(float)
    total, longest = (ufunc.reduceat(duration, matches.firsts) for ufunc in (np.add, np.maximum))
    work = work_of(kernels, time.trace[HOST_OPS])
    product = kernel_classes(kernels).equals(KernelClass.MATMUL.value)
    forward = ~matches.behind
    spec = spec_for(time.trace.meta.device)
    rate = None if spec is None else spec.memory_bytes_per_s.value
    flops = np.add.reduceat(np.where(product & forward, work.flops, 0.0), matches.firsts)
    moved = fusion.floor.tensors * _written(kernels, matches)
    peak = np.full(len(matches), np.nan)
    if spec is not None:
        first = np.array([*(spec.matrix_peak(name) or np.nan for name in work.dtype.values), np.nan])[work.dtype.codes]
        with np.errstate(invalid="ignore"):
            peak = np.fmax.reduceat(np.where(product, first, np.nan), matches.firsts)
    if fusion.floor.products == "peak":
        masked = np.logical_or.reduceat(_masks(kernels), matches.firsts)
        least = floor_ns(np.where(masked, flops * CAUSAL_RATIO, flops), moved, peak, rate)
        products = np.add.reduceat(np.where(product & forward, duration, 0.0), matches.firsts)
        known = ~np.isnan(least) & (flops > 0) & ~np.isnan(peak) & ~np.isnan(flops) & matches.forward
        return np.minimum(total, np.where(known, least + _behind(duration, matches), np.minimum(longest, products)))
    if fusion.floor.products == "time":
        return np.minimum(total, np.add.reduceat(np.where(product, duration, 0.0), matches.firsts))
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.fmax.reduceat(np.where(duration > 0, work.bytes / duration, np.nan), matches.firsts)
        at_best = np.where(moved > 0, moved / best, np.nan)
    roof = floor_ns(np.zeros(len(matches)), moved, np.full(len(matches), np.nan), rate)
    kept = np.fmax(np.fmin(longest, at_best), np.where(moved > 0, roof, np.nan))
    return np.minimum(total, np.where(matches.forward, kept, longest) + _behind(duration, matches))


def _behind(duration: Floats, matches: Matches) -> Floats:
    """The longest kernel of the backward of each match, 0 without one: the fused gradient needs that much."""
    longest: Floats = np.maximum.reduceat(np.where(matches.behind, duration, 0.0), matches.firsts)
    return longest


def _written(kernels: Table, matches: Matches) -> Floats:
    """Bytes of the first output of each match's last kernel of the forward; NaN where shapes are missing."""
    place = np.arange(len(kernels))
    last = np.maximum.reduceat(np.where(matches.behind, -1, place), matches.firsts)
    last = np.where(last < 0, matches.firsts, last)
    return _first_bytes(kernels.text("output_shapes").take(last), kernels.text("output_dtypes").take(last))


def _first_bytes(shapes: Text, dtypes: Text) -> Floats:
    pairs = np.stack((shapes.codes, dtypes.codes))
    distinct, index = np.unique(pairs, axis=1, return_inverse=True)
    made = [
        math.nan if min(a, b) < 0 else _tensor_bytes(shapes.values[a], dtypes.values[b])
        for a, b in distinct.T.tolist()
    ]
    return np.array(made, np.float64)[np.ravel(index)]


@lru_cache(maxsize=4096)
def _tensor_bytes(shapes: str, dtypes: str) -> float:
    sizes = parse_shapes(shapes)
    width = BYTES_OF.get(plain_dtype(dtypes.split(";")[0]))
    return math.nan if not sizes or width is None else math.prod(sizes[0]) * width


def _masks(kernels: Table) -> Bools:
    """Kernels that mask, or add a mask, in front of a softmax."""
    alphabet = kernel_alphabet()
    codes: Ints = kernel_codes(kernels)
    return np.isin(codes, [alphabet.code("mask"), alphabet.code("add")]) | kernels.text("op_type").flags(
        lambda name: "masked" in name.lower()
    )
