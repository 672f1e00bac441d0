"""Work of kernels that record their own operands (Ascend): FLOPs, compulsory bytes and the formula by op type."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from ascend_perf.ops import formulas
from ascend_perf.ops.classify import KernelClass
from ascend_perf.ops.formulas import Amount, conv_flops, matmul_flops
from ascend_perf.ops.shapes import Shape, plain_dtype, tensor_bytes

_PARTIAL_READ: Final = re.compile(r"^(slice|stridedslice|gather|index(?!put)|embedding(?!dense))", re.IGNORECASE)
_POOL: Final = re.compile(
    r"paged|increflash|fusedinferattention|reshapeandcache|kvcache|scatterpa|flashmla|^mla", re.IGNORECASE
)
"""These have the whole pool of a KV cache among their operands and read or write a part of it."""
_NO_MATMUL_FORMULA: Final = re.compile(r"reduce|gather|alltoall|ffn|sparse", re.IGNORECASE)
_BACKWARD: Final = re.compile(r"grad|backward", re.IGNORECASE)
_FLASH: Final = re.compile(r"^FlashAttention(Var\w*)?Score(V\d)?(Grad(V\d)?)?$", re.IGNORECASE)
_NOT_MOVED: Final = re.compile(r"gating|topk", re.IGNORECASE)
_ADAM: Final = re.compile(r"apply\w*adam(?!a)|^adam|fused\w*adam", re.IGNORECASE)
_MOMENTUM: Final = re.compile(r"momentum|^sgd$", re.IGNORECASE)

STATISTIC_WIDTH: Final = 8
"""Running maximum and sum of the softmax are tensors of (batch, heads, length, 8)."""
COMPRESSED_MASK: Final = 2048
"""A mask of 2048 x 2048 stands for a causal (or band) mask of any length. Source: torch_npu, sparse_mode 2 to 4."""

_MOVES: Final = frozenset({KernelClass.CAST, KernelClass.TRANSPOSE, KernelClass.FORMAT, KernelClass.COPY})
_BY_INPUT: Final = {
    KernelClass.REDUCTION: "reduction", KernelClass.LOSS: "loss", KernelClass.NORM: "norm",
    KernelClass.SOFTMAX: "softmax",
}  # fmt: skip


def kernel_work(
    kind: KernelClass,
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: tuple[Sequence[str], Sequence[str]],
    formats: tuple[Sequence[str], Sequence[str]],
) -> Amount:
    """FLOPs, bytes and formula of one kernel from its operands.

    Args:
        kind: class of the kernel.
        op_type: its op type.
        inputs: shapes of the inputs.
        outputs: shapes of the outputs.
        types: dtypes of inputs and of outputs.
        formats: formats of inputs and of outputs.
    """
    size = _bytes(op_type, inputs, types[0], outputs, types[1])
    flops, how = _flops(kind, op_type, inputs, outputs, types[0], formats)
    if kind is KernelClass.OPTIMIZER and how in ("adam", "adamw") and math.isnan(size):
        # Updated in place: the outputs are the first three operands.
        size = tensor_bytes(inputs[:4], types[0][:4]) + tensor_bytes(inputs[:3], types[0][:3])
    return Amount(flops, size, how)


def _flops(
    kind: KernelClass,
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    types: Sequence[str],
    formats: tuple[Sequence[str], Sequence[str]],
) -> tuple[float, str]:
    nothing = (math.nan, "")
    if kind is KernelClass.OPTIMIZER and inputs:
        return _optimizer(op_type, math.prod(inputs[0]))
    if not inputs and kind is KernelClass.FILL and outputs:
        return 0.0, "fill"
    if not inputs or not outputs:
        return nothing
    if kind is KernelClass.MATMUL and len(inputs) > 1 and not _NO_MATMUL_FORMULA.search(op_type):
        a, b = (_plain_matrix(shape, formats[0], at) for at, shape in enumerate(inputs[:2]))
        c = _plain_matrix(outputs[0], formats[1], 0)
        if "grouped" in op_type.lower():
            return _grouped(a, b, c), "grouped-matmul"
        return matmul_flops(a, b, c), "batched-matmul" if len(c) > 2 and len(b) > 2 else "matmul"
    if kind is KernelClass.CONV:
        backward = "backprop" in op_type.lower()
        return _conv_work(op_type, inputs, outputs, formats[0]), "conv-backward" if backward else "conv"
    if kind is KernelClass.ATTENTION:
        amount = _attention(op_type, inputs, outputs, types)
        return amount.flops, amount.how
    return _vector(kind, op_type, inputs, outputs)


def _vector(kind: KernelClass, op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[float, str]:
    if kind in _MOVES:
        return 0.0, "move"
    if kind is KernelClass.FILL:
        return 0.0, "fill"
    if kind is KernelClass.INDEX and not _NOT_MOVED.search(op_type):
        return 0.0, "gather" if _PARTIAL_READ.match(op_type) else "move"
    if kind in _BY_INPUT:
        key = _BY_INPUT[kind]
        if key in ("norm", "softmax") and _BACKWARD.search(op_type):
            key += "-backward"
        return float(formulas.per_element(key) * math.prod(inputs[0])), key
    if kind in (KernelClass.ELEMENTWISE, KernelClass.QUANT, KernelClass.ROPE):
        key = "rope" if kind is KernelClass.ROPE else "elementwise"
        return float(formulas.per_element(key) * sum(math.prod(shape) for shape in outputs if shape)), key
    if kind is KernelClass.POOLING:
        return float(max(math.prod(inputs[0]), math.prod(outputs[0]))), "pooling"
    return math.nan, ""


def _optimizer(op_type: str, parameters: int) -> tuple[float, str]:
    key = ""
    if _ADAM.search(op_type):
        key = "adamw" if "adamw" in op_type.lower() else "adam"
    elif _MOMENTUM.search(op_type):
        key = "momentum"
    return (float(formulas.per_element(key) * parameters), key) if key else (math.nan, "")


def _grouped(x: Shape, w: Shape, y: Shape) -> float:
    """Every token meets the weights of one expert: (M, K) x (E, K, N) -> (M, N)."""
    if len(x) != 2 or len(y) != 2 or len(w) != 3 or x[0] != y[0] or sorted(w[1:]) != sorted((x[1], y[1])):
        return math.nan
    return 2.0 * math.prod(y) * x[1]


def _plain_matrix(shape: Shape, formats: Sequence[str], at: int) -> Shape:
    """A FRACTAL_NZ shape (..., N1, M1, M0, N0) as (..., M1*M0, N1*N0); other shapes as they are.

    Without this the block counts would look like batches.
    """
    if at < len(formats) and "FRACTAL_NZ" in formats[at] and len(shape) >= 4:
        *batch, n1, m1, m0, n0 = shape
        return (*batch, m1 * m0, n1 * n0)
    return shape


def _conv_work(op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape], formats: Sequence[str]) -> float:
    """Operands of the three passes: (x, w) -> y; (size, w, dy) -> dx; (x, size, dy) -> dw."""
    lower = op_type.lower()
    if "transpose" in lower or "depthwise" in lower or "deformable" in lower or len(inputs) < 2:
        return math.nan
    if "backpropfilter" in lower:
        if len(inputs) < 3:
            return math.nan
        image, gradient, weight = inputs[0], inputs[2], outputs[0]
    elif "backpropinput" in lower:
        if len(inputs) < 3:
            return math.nan
        image, gradient, weight = outputs[0], inputs[2], inputs[1]
    else:
        image, gradient, weight = inputs[0], outputs[0], inputs[1]
    if len(weight) != 4 or "3d" in lower:
        return math.nan
    if len(image) == 5 and len(gradient) == 5:
        # NC1HWC0 with a FRACTAL_Z filter (C1*kh*kw, N1, 16, C0). One channel block may be mostly padding
        # (3 image channels stored as 8 or 16): the true work cannot be told.
        return math.nan if image[1] == 1 else conv_flops(math.prod(gradient), math.prod(weight), weight[1] * weight[2])
    if len(image) == 4 and len(gradient) == 4 and not any("NHWC" in item for item in formats):
        return conv_flops(math.prod(gradient), math.prod(weight), weight[0])
    return math.nan


def _attention(op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape], types: Sequence[str]) -> Amount:
    """FlashAttentionScore and its gradient: sizes from the statistics of the softmax, causal by the mask's shape."""
    if not _FLASH.match(op_type) or len(inputs) < 3:
        return formulas.NOTHING
    query, key, rest = inputs[0], inputs[1], [*inputs[3:], *outputs]
    backward = "grad" in op_type.lower()
    statistic = next((s for s in rest if len(s) in (3, 4) and s[-1] == STATISTIC_WIDTH and min(s) > 0), None)
    if statistic is None or min((*query, *key), default=0) < 1:
        return formulas.NOTHING
    if len(statistic) == 3:
        tokens, heads = statistic[:2]
        lengths = [
            shape[0] for shape, name in zip(inputs[3:], types[3:], strict=False)
            if len(shape) == 1 and shape[0] and plain_dtype(name) == "int64"
        ]  # fmt: skip
        # (T, N, D) of packed sequences, T the same for queries and keys: self-attention.
        if len(query) != 3 or query[:2] != (tokens, heads) or key[0] != tokens or not lengths:
            return formulas.NOTHING
        causal = _mask(inputs, types) is not None
        return formulas.packed_attention(
            tokens=tokens, sequences=max(lengths), heads=heads, width=query[2], causal=causal, backward=backward,
            size=math.nan,
        )  # fmt: skip
    batch, heads, queries = statistic[:3]
    keys = _keys(query, key, batch, heads, queries)
    if not keys or math.prod(query) % (batch * heads * queries):
        return formulas.NOTHING
    width = math.prod(query) // (batch * heads * queries)
    mask = _mask(inputs, types)
    causal = mask is not None and mask[-2:] == (COMPRESSED_MASK, COMPRESSED_MASK)
    return formulas.attention(
        batch=batch, heads=heads, queries=queries, keys=keys, width=width, causal=causal, backward=backward,
        size=math.nan,
    )  # fmt: skip


def _mask(inputs: Sequence[Shape], types: Sequence[str]) -> Shape | None:
    for shape, name in zip(inputs[3:], types[3:], strict=False):
        if len(shape) >= 2 and plain_dtype(name) in ("bool", "uint8"):
            return shape
    return None


def _keys(query: Shape, key: Shape, batch: int, heads: int, queries: int) -> int | None:
    """Length of the keys: the layouts are SBH, BSH, BNSD and BSND; None where none fits."""
    if len(query) != len(key):
        return None
    if len(query) == 3:
        if query[:2] == (queries, batch) and key[1] == batch:
            return key[0]
        return key[1] if query[:2] == (batch, queries) and key[0] == batch else None
    if len(query) == 4:
        if query[:3] == (batch, heads, queries):
            return key[2]
        return key[1] if query[:3] == (batch, queries, heads) else None
    return None


def _bytes(
    op_type: str, inputs: Sequence[Shape], types_in: Sequence[str], outputs: Sequence[Shape], types_out: Sequence[str]
) -> float:
    read, written = tensor_bytes(inputs, types_in), tensor_bytes(outputs, types_out)
    if not outputs or math.isnan(written) or _POOL.search(op_type):
        return math.nan
    # These read about as much as they write, however large the source is.
    return 2 * written if _PARTIAL_READ.match(op_type) else read + written
