"""What a decode step must read at least: the weights of its products and the cache of keys and values.

Weights are the second operands of products whose first operand has as many rows as the batch has tokens. The cache of
paged attention is recorded as the whole pool, so only unpaged caches count.

Source: troubleshooting table V-02; roofline of Williams, Waterman, Patterson (2009).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ascend_perf.analyzers._decode import Decode, rows_of
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Text
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.flops import BYTES_OF, parse_shapes, plain_dtype, work_of

_WeightOf = Callable[[str, str, str], "tuple[float, int, str] | None"]

MIN_KNOWN_RATIO: Final = 0.7
"""Part of the time of the products whose shapes must be known. Status: assumed."""
_GROUPED: Final = re.compile(r"group", re.IGNORECASE)
_CACHED: Final = re.compile(r"increflash|fusedinferattention", re.IGNORECASE)
_ATEN_WEIGHT: Final = {"mm": 1, "linear": 1, "addmm": 2}


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What the decode steps read, over all steps."""

    products: Bools
    """Kernels that are products with a weight, inside the decode steps."""
    weight_bytes: float
    cache_bytes: float
    """Keys and values, where the shapes tell them; a lower bound."""
    rows: int
    """Rows of the median product: tokens of a step."""
    known_ratio: float
    """Part of the time of all products of the decode steps whose weight is known."""
    mac_ratio: float | None
    """Time-weighted MAC ratio of the products: from counters, else FLOPs over time and peak; None when unknown."""
    dtypes: tuple[str, ...]
    """Types of the weights, most bytes first."""


def reads_of(trace: Trace, decode: Decode, peak_flops_per_s: float | None) -> Reads:
    """Bytes that the decode steps must read.

    Reads:
        kernels: start_ns, dur_ns, op_type, name, core, input_shapes, input_dtypes, aic_mac_ratio, host_op; host_ops:
        name, input_shapes, input_dtypes (GPU).
    """
    kernels = trace[KERNELS]
    inside = decode.holds(kernels) >= 0
    is_product = kernel_classes(kernels).equals(KernelClass.MATMUL.value) & inside
    duration = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns"))
    weight, rows, dtype = _weights(trace, is_product)
    products = is_product & (weight > 0)
    spent = float(duration[is_product].sum())
    by_dtype: dict[str, float] = {}
    for name in dtype.compact().values:
        by_dtype[name] = float(weight[products & dtype.equals(name)].sum())
    mac = kernels.floats("aic_mac_ratio")
    measured = products & np.isfinite(mac)
    ratio = None
    if duration[measured].sum() > 0:
        ratio = float(np.average(mac[measured], weights=duration[measured]))
    elif peak_flops_per_s and duration[products].sum() > 0:
        flops = work_of(kernels, trace[HOST_OPS]).flops[products]
        ratio = float(np.nansum(flops) / (duration[products].sum() / 1e9) / peak_flops_per_s)
    return Reads(
        products=products, weight_bytes=float(weight[products].sum()), cache_bytes=_cache(trace, inside),
        rows=int(np.median(rows[products])) if products.any() else 0,
        known_ratio=float(duration[products].sum()) / spent if spent else 0.0, mac_ratio=ratio,
        dtypes=tuple(sorted(by_dtype, key=lambda name: -by_dtype[name])),
    )  # fmt: skip


def _weights(trace: Trace, is_product: Bools) -> tuple[Floats, Ints, Text]:
    """Per kernel: bytes of its weight, rows of its first operand, type of the weight; 0 and unknown elsewhere."""
    kernels = trace[KERNELS]
    shapes, types = kernels.text("input_shapes"), kernels.text("input_dtypes")
    if kernels.has("input_shapes"):
        kinds = kernels.text("op_type")
        return _per_row(shapes, types, kinds, is_product, _weight_of)
    ops = trace[HOST_OPS]
    at = kernels.ints("host_op")
    known = is_product & (at >= 0) & (at < len(ops))
    place = np.where(known, at, 0)
    if not known.any():
        return np.zeros(len(kernels)), np.zeros(len(kernels), np.int64), Text.full(len(kernels), None)
    return _per_row(
        ops.text("input_shapes").take(place), ops.text("input_dtypes").take(place), ops.text("name").take(place),
        known, _aten_weight_of,
    )  # fmt: skip


def _per_row(
    shapes: Text, types: Text, names: Text, rows: Bools, weight_of: _WeightOf
) -> tuple[Floats, Ints, Text]:
    """Each distinct combination is worked out once."""
    size, first, labels = np.zeros(len(rows)), np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int32)
    index: dict[str, int] = {}
    chosen = np.flatnonzero(rows)
    keys = np.stack([shapes.codes[chosen], types.codes[chosen], names.codes[chosen]], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True) if len(chosen) else (keys, np.empty(0, np.int64))
    for number, (shape, dtype, name) in enumerate(distinct.tolist()):
        if shape < 0 or dtype < 0:
            continue
        found = weight_of(shapes.values[shape], types.values[dtype], names.values[name] if name >= 0 else "")
        if found is None:
            continue
        same = chosen[inverse.reshape(-1) == number]
        size[same], first[same] = found[0], found[1]
        labels[same] = index.setdefault(found[2], len(index))
    return size, first, Text(labels, list(index))


@lru_cache(maxsize=4096)
def _weight_of(shapes: str, dtypes: str, op_type: str) -> tuple[float, int, str] | None:
    """Bytes and type of the second operand of an Ascend product, and rows of the first; None for batched products."""
    parsed, types = parse_shapes(shapes), [plain_dtype(name) for name in dtypes.split(";")]
    if len(parsed) < 2 or len(types) < 2 or _GROUPED.search(op_type):
        return None
    weight, rows = parsed[1], rows_of(shapes)
    # A weight has two dimensions, or four in the NZ format; a batch of matrices is an activation.
    if len(weight) not in (2, 4) or rows < 1 or types[1] not in BYTES_OF:
        return None
    return float(np.prod(weight, dtype=np.float64)) * BYTES_OF[types[1]], rows, types[1]


@lru_cache(maxsize=4096)
def _aten_weight_of(shapes: str, dtypes: str, name: str) -> tuple[float, int, str] | None:
    at = _ATEN_WEIGHT.get(name.removeprefix("aten::").rstrip("_"))
    parsed = parse_shapes(shapes)
    types = [plain_dtype(word) for word in re.split(r"[;,]", re.sub(r"[\[\]\"' ]", "", dtypes))]
    if at is None or len(parsed) <= at or len(types) <= at or len(parsed[at]) != 2 or types[at] not in BYTES_OF:
        return None
    first = parsed[at - 1]
    rows = int(np.prod(first[:-1], dtype=np.float64)) if len(first) >= 2 else 0
    return float(np.prod(parsed[at], dtype=np.float64)) * BYTES_OF[types[at]], rows, types[at]


def _cache(trace: Trace, inside: Bools) -> float:
    """Keys and values that unpaged attention reads: second and third operand, where their batch is the query's."""
    kernels = trace[KERNELS]
    rows = inside & kernels.text("op_type").flags(lambda name: bool(_CACHED.search(name)))
    size, _, _ = _per_row(
        kernels.text("input_shapes"), kernels.text("input_dtypes"), kernels.text("op_type"), rows, _cache_of
    )
    return float(size.sum())


@lru_cache(maxsize=4096)
def _cache_of(shapes: str, dtypes: str, op_type: str) -> tuple[float, int, str] | None:
    parsed, types = parse_shapes(shapes), [plain_dtype(name) for name in dtypes.split(";")]
    if len(parsed) < 3 or len(types) < 3 or parsed[1] != parsed[2] or types[1] not in BYTES_OF:
        return None
    query, keys = parsed[0], parsed[1]
    if len(keys) != len(query) or len(keys) < 3 or keys[0] != query[0]:
        return None
    return 2 * float(np.prod(keys, dtype=np.float64)) * BYTES_OF[types[1]], 0, types[1]
