"""Fused attention kernels: head dimension and lengths from their shapes, and the pipe that bounds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.table import Bools, Floats, Ints, Table, Text
from ascend_perf.ops.flops import Shape, parse_shapes

HEAD_MULTIPLE: Final = 64
"""Head dimensions of a multiple of this run without padding. Source: row C-05 (pad to 64 or 128). Status: inferred."""
LENGTH_MULTIPLE: Final = 128
"""Lengths of a multiple of this fill their blocks. Status: vendor (advisor, aicore_performance)."""
PIPE_LIMITS: Final = {
    f"{pipe}_ratio": threshold("C-05", f"min_{pipe}_ratio")
    for pipe in ("aic_mte2", "aiv_mte2", "aic_fixpipe", "aiv_vec")
}
"""From these ratios on a pipe bounds fused attention."""
LOSS_MIN_RATIO: Final = threshold("C-05", "min_loss_ratio")

_FUSED: Final = re.compile(r"^(Flash|FusedInfer|Prompt|Incre)\w*Attention", re.IGNORECASE)
_DECODE: Final = re.compile(r"^Incre", re.IGNORECASE)
_STATISTIC_WIDTH: Final = 8
"""Running maximum and sum of the softmax are tensors of (batch, heads, length, 8)."""
_PIPES: Final = ("aic_mac_ratio", "aic_mte1_ratio", "aiv_mte3_ratio", *PIPE_LIMITS)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the shapes of one kernel tell; None where the layout leaves it open."""

    head: int | None = None
    queries: int | None = None
    keys: int | None = None


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One entry per kernel of the trace in every array."""

    is_attention: Bools
    misaligned: Bools
    padding: Floats
    """Part of the kernel's work that is padding, 0..1; 0 where the shapes do not tell."""
    bounding: Ints
    """Index into `PIPE_LIMITS` of the pipe that bounds the kernel, -1 where none does."""
    slack: Floats
    """What would go if the bounding pipe were free: 1 - the next busy pipe."""
    has_shapes: bool
    has_pipes: bool

    @property
    def limited(self) -> Bools:
        """Kernels that are misaligned or bounded by something else than the cube."""
        return self.misaligned | (self.bounding >= 0)

    @property
    def loss(self) -> Floats:
        """Part of each kernel's time that could go at most, by the larger of both reasons."""
        return np.where(self.limited, np.maximum(self.padding, self.slack), 0.0)


def attention_of(kernels: Table) -> Attention:
    """Alignment and bounds of the fused attention kernels; each distinct signature is worked out once.

    Reads:
        kernels: op_type, input_shapes, output_shapes, pipe ratios.
    """
    types = kernels.text("op_type")
    rows = types.flags(lambda name: bool(_FUSED.match(name)))
    padding = np.zeros(len(kernels))
    shapes, outputs = kernels.text("input_shapes"), kernels.text("output_shapes")
    known: dict[tuple[int, int, int], float] = {}
    for row in np.flatnonzero(rows & (shapes.codes >= 0)).tolist():
        key = int(types.codes[row]), int(shapes.codes[row]), int(outputs.codes[row])
        if key not in known:
            known[key] = padding_ratio(types[row] or "", shapes[row] or "", outputs[row] or "")
        padding[row] = known[key]
    bounding, slack = _bounds(kernels, rows)
    return Attention(
        is_attention=rows, misaligned=padding >= LOSS_MIN_RATIO.value, padding=padding, bounding=bounding, slack=slack,
        has_shapes=bool((shapes.codes[rows] >= 0).any()) if rows.any() else False,
        has_pipes=any(not np.isnan(kernels.floats(name)[rows]).all() for name in PIPE_LIMITS) if rows.any() else False,
    )  # fmt: skip


def padding_ratio(op_type: str, inputs: str, outputs: str) -> float:
    """Part of the work of a kernel that its padding to whole blocks costs, 0..1.

    1 - (D / D') * (Sq / Sq') * (Sk / Sk'), primes rounded up to whole blocks; unknown sizes count as aligned. The
    padding to blocks is inferred from the vendor's alignment rule.
    """
    sizes = sizes_of(inputs, outputs)
    useful = _useful(sizes.head, HEAD_MULTIPLE)
    if not _DECODE.match(op_type) and sizes.queries != 1:
        useful *= _useful(sizes.queries, LENGTH_MULTIPLE) * _useful(sizes.keys, LENGTH_MULTIPLE)
    return 1 - useful


def sizes_of(inputs: str, outputs: str = "") -> Sizes:
    """Head dimension and lengths of a fused attention kernel.

    The layout is not in the profile. Where the softmax statistics (batch, heads, length, 8) are among the tensors they
    settle heads and length, and with them the axes of the query; else only the head dimension of a query of four axes
    is certain (it is the last one in BNSD and in BSND).
    """
    tensors = parse_shapes(inputs)
    if len(tensors) < 2:
        return Sizes()
    query, key = tensors[0], tensors[1]
    statistic = _statistic(query, (*tensors[3:], *parse_shapes(outputs)))
    if len(query) == 4:
        if statistic is None:
            return Sizes(head=query[3])
        axis = _axis(query, statistic[1], statistic[2])
        keys = key[axis] if axis is not None and len(key) == 4 else None
        return Sizes(head=query[3], queries=statistic[2], keys=keys)
    if len(query) != 3:
        return Sizes()
    if statistic is None:
        # TND (tokens, heads, D) and BSH (batch, length, hidden) look alike without the statistics (tokens, heads, 8).
        packed = (query[0], query[1], _STATISTIC_WIDTH) in (*tensors[3:], *parse_shapes(outputs))
        return Sizes(head=query[2] if packed else None)
    heads, length = statistic[1], statistic[2]
    if query[2] % heads:
        return Sizes()
    axis = next((at for at in (0, 1) if query[at] == length and query[1 - at] == statistic[0]), None)
    keys = key[axis] if axis is not None and len(key) == 3 else None
    return Sizes(head=query[2] // heads, queries=length, keys=keys)


def _statistic(query: Shape, tensors: Sequence[Shape]) -> Shape | None:
    """The softmax statistics that fit the query: (B, N, S, 8) with as many elements per head and token."""
    elements = int(np.prod(query, dtype=np.int64)) if query else 0
    for shape in tensors:
        if len(shape) != 4 or shape[3] != _STATISTIC_WIDTH or min(shape) <= 0:
            continue
        batch, heads, length, _ = shape
        if elements and elements % (batch * heads * length) == 0 and length in query and batch in query:
            return shape
    return None


def _axis(query: Shape, heads: int, length: int) -> int | None:
    """Axis of the length in a query of four axes; None when both orders fit."""
    as_bnsd, as_bsnd = query[1:3] == (heads, length), query[1:3] == (length, heads)
    if as_bnsd == as_bsnd:
        return None
    return 2 if as_bnsd else 1


def _useful(size: int | None, multiple: int) -> float:
    if size is None or size <= 0:
        return 1.0
    return size / (-(-size // multiple) * multiple)


def _bounds(kernels: Table, rows: Bools) -> tuple[Ints, Floats]:
    """The pipe that bounds each kernel, and what would be left of it by the next busy pipe."""
    bounding, slack = np.full(len(kernels), -1, np.int64), np.zeros(len(kernels))
    at = np.flatnonzero(rows)
    stack = np.vstack([np.nan_to_num(kernels.floats(name)[at], nan=0.0) for name in _PIPES])
    busiest = stack.argmax(axis=0)
    left = 1 - np.sort(stack, axis=0)[-2]
    for number, (name, limit) in enumerate(PIPE_LIMITS.items()):
        place = _PIPES.index(name)
        # The busiest pipe alone can bound: a cube that is busier still is doing its work.
        bound = at[(busiest == place) & (stack[place] >= limit.value) & (left >= LOSS_MIN_RATIO.value)]
        bounding[bound] = number
    slack[at] = np.where(bounding[at] >= 0, left, 0.0)
    return bounding, slack


def pipe_names(codes: Ints) -> Text:
    """Names of the bounding pipes without their ending (`aic_fixpipe`)."""
    names = [name.removesuffix("_ratio") for name in PIPE_LIMITS]
    return Text(codes.astype(np.int32), names)
