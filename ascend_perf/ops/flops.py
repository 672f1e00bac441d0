"""FLOPs and compulsory bytes of kernels from their shapes and dtypes. What cannot be told is NaN, never 0.

A multiply-add counts as two. Shapes of private formats (NC1HWC0, FRACTAL_NZ, FRACTAL_Z) are storage shapes: work
on the padding is counted, since the hardware does it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.ops.classify import KernelClass, kernel_classes

Shape = tuple[int, ...]

BYTES_OF: Final[dict[str, float]] = {
    "float": 4, "float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "half": 2, "bf16": 2, "bfloat16": 2,
    "double": 8, "float64": 8, "int4": 0.5, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4,
    "int": 4, "uint32": 4, "int64": 8, "long": 8, "longint": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "hifloat8": 1, "signedchar": 1, "unsignedchar": 1, "short": 2, "char": 1,
}  # fmt: skip
"""Bytes per element by dtype name as `plain_dtype` writes it."""

_MATRIX_DTYPE: Final = {
    "float": "fp32", "float32": "fp32", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16",
    "double": "fp64", "float64": "fp64", "int8": "int8", "signedchar": "int8",
}  # fmt: skip
_PARTIAL_READ: Final = re.compile(r"^(slice|stridedslice|gather|index(?!put)|embedding(?!dense))", re.IGNORECASE)
_POOL: Final = re.compile(
    r"paged|increflash|fusedinferattention|reshapeandcache|kvcache|scatterpa|flashmla|^mla", re.IGNORECASE
)
"""These have the whole pool of a KV cache among their operands and read or write a part of it."""
_NO_MATMUL_FORMULA: Final = re.compile(r"grouped|reduce|gather|alltoall|ffn|sparse", re.IGNORECASE)
_NO_UNIT: Final = frozenset({"", "undefined", "null"})
_SINGLE_OPERATION: Final = re.compile(
    r"^(add|adds|sub|subs|mul|muls|realdiv|div|divs|maximum|minimum|neg|abs|relu|square)$", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Per kernel: FLOPs and bytes (NaN where unknown) and the dtype that the matrix units see (`fp16`, ...)."""

    flops: Floats
    bytes: Floats
    dtype: Text


def matmul_flops(a: Shape, b: Shape, c: Shape) -> float:
    """FLOPs of `c = a @ b`, batched or not, whatever operand is stored transposed.

    Per batch item M*N*K = sqrt(|A| * |B| * |C|) with element counts, which needs no orientation. A shared (2D)
    operand makes the product one large matrix product.

    Args:
        a: shape of the first operand, two dimensions or more, not a storage shape.
        b: shape of the second operand.
        c: shape of the product.

    Returns:
        2*M*N*K summed over the batch; NaN where no whole K fits all three (an edited row, or another kind of
        product).

    Source:
        format reference, section 5.5; 4096x151936 @ 151936x1024 -> 2*4096*1024*151936.
    """
    if min(len(a), len(b), len(c)) < 2:
        return math.nan
    batch = math.prod(c[:-2])
    if batch < 1 or math.prod(a[:-2]) != batch or math.prod(b[:-2]) != batch:
        batch = 1
    sizes = [math.prod(shape) for shape in (a, b, c)]
    if min(sizes) < 1 or any(size % batch for size in sizes):
        return math.nan
    size_a, size_b, size_c = (size // batch for size in sizes)
    k = math.isqrt(size_a * size_b // size_c)
    if k < 1 or k * k * size_c != size_a * size_b or size_a % k or size_b % k:
        return math.nan
    return 2.0 * batch * k * size_c


def conv_flops(output_elements: int, filter_elements: int, output_channels: int) -> float:
    """FLOPs of a convolution, forward or backward: two per output element, input channel and filter tap.

    Args:
        output_elements: elements of the forward output (the incoming gradient in a backward pass).
        filter_elements: elements of the filter, groups counted as stored.
        output_channels: channels of the forward output.

    Returns:
        2 * |out| * |filter| / channels; NaN when the channels do not divide the filter.

    Source:
        definition of the operation: each output element sums C_in/groups * kh * kw products.
    """
    if output_channels < 1 or filter_elements % output_channels:
        return math.nan
    return 2.0 * output_elements * (filter_elements // output_channels)


def attention_flops(batch: int, heads: int, queries: int, keys: int, width: int, *, causal: bool) -> float:
    """FLOPs of the two products of attention, forward: 4 * B * H * Sq * Sk * D, half of it when causal.

    Args:
        batch: sequences.
        heads: query heads.
        queries: query length Sq.
        keys: key length Sk.
        width: head dimension D.
        causal: a causal mask lets the kernel skip half of the blocks (exactly: (Sk + 1) / 2 keys per query when
            Sq = Sk).

    Source:
        Dao, FlashAttention-2 (2023), section 4.1.
    """
    full = 4.0 * batch * heads * queries * keys * width
    return full / 2 if causal else full


def work_of(kernels: Table, host_ops: Table | None = None) -> Work:
    """FLOPs, compulsory bytes and matrix dtype of every kernel; each distinct signature is worked out once.

    Attention has no FLOPs here: neither the mask mode nor the layout is recorded with the kernel. Grouped and
    communicating products have none either. Bytes count each operand once (in + out): a lower bound.

    Reads:
        kernels: op_type, input_shapes, input_dtypes, input_formats, output_shapes, output_dtypes, host_op.
        host_ops: name, input_shapes, input_dtypes; used for GPU kernels, which record no shapes themselves.
    """
    columns = (
        "op_type", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes", "output_formats",
    )  # fmt: skip
    texts = [kernels.text(name) for name in columns]
    classes = kernel_classes(kernels)
    codes, first = _distinct([classes.codes, *(text.codes for text in texts)])
    flops, size, dtypes = np.full(len(first), np.nan), np.full(len(first), np.nan), []
    for at, row in enumerate(first.tolist()):
        kind = KernelClass(classes[row] or "other")
        op_type, shapes_in, types_in, formats_in, shapes_out, types_out, formats_out = (
            text[row] or "" for text in texts
        )
        inputs, outputs = parse_shapes(shapes_in), parse_shapes(shapes_out)
        flops[at] = _flops(kind, op_type, inputs, outputs, (formats_in.split(";"), formats_out.split(";")))
        size[at] = _bytes(op_type, inputs, types_in.split(";"), outputs, types_out.split(";"))
        dtypes.append(matrix_dtype(types_in))
    dtype_column = Text.of(dtypes)
    work = Work(
        flops=flops[codes],
        bytes=size[codes],
        dtype=Text(dtype_column.codes[codes], dtype_column.values) if len(codes) else Text.full(0, None),
    )
    if host_ops is None or not len(host_ops) or not kernels.has("host_op") or kernels.has("input_shapes"):
        return work
    return _with_host_shapes(work, kernels, host_ops, classes)


@lru_cache(maxsize=65536)
def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Tensors of a shape text: `2,3;4` -> ((2, 3), (4,)); an empty tensor between semicolons is a scalar ().

    Text that is no shape list ("N/A", nested lists of tensor lists) gives ().
    """
    text = text.strip().strip('"')
    if text.startswith("["):
        if "[[[" in text.replace(" ", ""):
            return ()
        parts = re.findall(r"\[([^\[\]]*)\]", text[1:] if text.startswith("[[") or text == "[]" else text)
        text = ";".join(parts)
    if not re.fullmatch(r"[-\d,; ]*", text) or not text:
        return ()
    return tuple(tuple(int(dim) for dim in part.split(",") if dim.strip()) for part in text.split(";"))


def plain_dtype(name: str) -> str:
    """A dtype name in lower case without prefix: `DT_BF16` -> `bf16`, `c10::BFloat16` -> `bfloat16`."""
    name = name.strip().lower().rsplit("::", 1)[-1].replace("torch.", "")
    return re.sub(r"^dt_|\s", "", name)


def matrix_dtype(dtypes: str) -> str | None:
    """Dtype of a product as peaks name it (`fp32`, `fp16`, `bf16`, `int8` ...): the first operand that has one.

    Index and size operands (INT32, INT64) are passed over: a backward convolution lists the size first.
    """
    names = (_MATRIX_DTYPE.get(plain_dtype(name)) for name in dtypes.split(";"))
    return next((name for name in names if name is not None), None)


def _flops(
    kind: KernelClass,
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    formats: tuple[Sequence[str], Sequence[str]],
) -> float:
    if not inputs or not outputs:
        return math.nan
    if kind is KernelClass.MATMUL and len(inputs) > 1 and not _NO_MATMUL_FORMULA.search(op_type):
        a, b = (_plain_matrix(shape, formats[0], at) for at, shape in enumerate(inputs[:2]))
        return matmul_flops(a, b, _plain_matrix(outputs[0], formats[1], 0))
    if kind is KernelClass.CONV:
        return _conv_work(op_type, inputs, outputs, formats[0])
    if kind is KernelClass.ELEMENTWISE and _SINGLE_OPERATION.match(op_type):
        return float(math.prod(outputs[0]))
    return math.nan


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


def _bytes(
    op_type: str, inputs: Sequence[Shape], types_in: Sequence[str], outputs: Sequence[Shape], types_out: Sequence[str]
) -> float:
    read, written = _tensor_bytes(inputs, types_in), _tensor_bytes(outputs, types_out)
    if not outputs or math.isnan(written) or _POOL.search(op_type):
        return math.nan
    # These read about as much as they write, however large the source is.
    return 2 * written if _PARTIAL_READ.match(op_type) else read + written


def _tensor_bytes(shapes: Sequence[Shape], dtypes: Sequence[str]) -> float:
    if not shapes:
        return 0.0
    if len(shapes) != len(dtypes):
        return math.nan
    total = 0.0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        name = plain_dtype(dtype)
        if not shape:
            continue
        if name in _NO_UNIT or name not in BYTES_OF:
            return math.nan
        total += math.prod(shape) * BYTES_OF[name]
    return total


def _with_host_shapes(work: Work, kernels: Table, host_ops: Table, classes: Text) -> Work:
    """Fill in matrix products of GPU kernels from the framework op that launched them.

    Only where the op launched exactly one matrix kernel: a split product would be counted twice.
    """
    op = kernels.ints("host_op")
    is_matrix = classes.equals(KernelClass.MATMUL.value) & (op != NULL) & (op >= 0) & (op < len(host_ops))
    rows = np.flatnonzero(is_matrix)
    distinct, counts = np.unique(op[rows], return_counts=True)
    rows = rows[np.isin(op[rows], distinct[counts == 1])]
    names, shapes, dtypes = (host_ops.text(name) for name in ("name", "input_shapes", "input_dtypes"))
    at = op[rows]
    codes, first = _distinct([names.codes[at], shapes.codes[at], dtypes.codes[at]])
    values = np.full(len(first), np.nan)
    sizes = np.full(len(first), np.nan)
    labels: list[str | None] = []
    for place, row in enumerate(first.tolist()):
        host_row = int(at[row])
        values[place], sizes[place], matrix = _aten_work(
            names[host_row] or "", parse_shapes(shapes[host_row] or ""), dtypes[host_row] or ""
        )
        labels.append(matrix)
    flops, size = work.flops.copy(), work.bytes.copy()
    if len(rows):
        flops[rows], size[rows] = values[codes], sizes[codes]
    label = Text.of(labels)
    dtype = np.full(len(kernels), -1, np.int32)
    if len(rows):
        dtype[rows] = label.codes[codes]
    return Work(flops=flops, bytes=size, dtype=Text(dtype, label.values))


def _aten_work(name: str, inputs: Sequence[Shape], dtypes: str) -> tuple[float, float, str | None]:
    """FLOPs, bytes and dtype of aten::mm, addmm, bmm, baddbmm and linear from the shapes of their inputs."""
    short = name.removeprefix("aten::").rstrip("_")
    first = {"mm": 0, "bmm": 0, "linear": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1}.get(short)
    if first is None or len(inputs) < first + 2:
        return math.nan, math.nan, None
    a, b = inputs[first], inputs[first + 1]
    if len(a) < 2 or len(b) < 2 or min(*a, *b) < 1:
        return math.nan, math.nan, None
    if short == "linear":
        m, k, n = math.prod(a[:-1]), a[-1], b[0]
        batch, fits = 1, b[-1] == k
    else:
        batch, m, k, n = math.prod(a[:-2]), a[-2], a[-1], b[-1]
        fits = b[-2] == k
    listed = re.split(r"[;,]", re.sub(r"[\[\]\"' ]", "", dtypes))
    name_of = plain_dtype(listed[first]) if len(listed) > first else ""
    size = BYTES_OF.get(name_of, math.nan) * batch * (m * k + k * n + m * n)
    return (2.0 * batch * m * n * k if fits else math.nan), size, _MATRIX_DTYPE.get(name_of)


def _distinct(codes: Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]]) -> tuple[Ints, Ints]:
    """Index of the distinct combination of each row, and the first row of each combination."""
    if not len(codes[0]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    index = np.zeros(len(codes[0]), np.int64)
    first = np.zeros(1, np.int64)
    for column in codes:
        # Re-numbered after each column, so that the product never leaves int64.
        index = index * (int(column.max(initial=-1)) + 2) + (column.astype(np.int64) + 1)
        _, first, index = np.unique(index, return_index=True, return_inverse=True)
    return index.astype(np.int64), first.astype(np.int64)
