"""FLOPs and compulsory bytes of kernels from their shapes and dtypes. What cannot be told is NaN; 0 is no arithmetic.

A multiply-add counts as two. Shapes of private formats (NC1HWC0, FRACTAL_NZ, FRACTAL_Z) are storage shapes: work
on the padding is counted, since the hardware does it too. Ascend kernels record their operands; those of GPUs have the
operands of the framework's operator that launched them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table, Text
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.ops.formulas import Amount, attention_flops, conv_flops, matmul_flops
from ascend_perf.ops.host_work import ConvSizes, host_work
from ascend_perf.ops.kernel_work import kernel_work
from ascend_perf.ops.shapes import BYTES_OF, Shape, matrix_dtype, parse_shapes, plain_dtype

__all__ = [
    "BYTES_OF", "Shape", "Work", "attention_flops", "conv_flops", "matmul_flops", "matrix_dtype", "parse_shapes",
    "plain_dtype", "work_of",
]  # fmt: skip

_MATRIX: frozenset[str] = frozenset({KernelClass.MATMUL.value, KernelClass.CONV.value, KernelClass.ATTENTION.value})
_MOVED: frozenset[str] = frozenset(
    {KernelClass.CAST.value, KernelClass.TRANSPOSE.value, KernelClass.FORMAT.value, KernelClass.COPY.value}
)
_FILLED: frozenset[str] = frozenset({KernelClass.FILL.value})


@dataclass(frozen=True, kw_only=True)
class Work:
    """Per kernel: FLOPs and bytes (NaN where unknown) and the dtype that the matrix units see (`fp16`, ...)."""

    flops: Floats
    bytes: Floats
    dtype: Text
    how: Text
    """Key of the formula (`formulas.FORMULAS`), unknown where neither figure follows from one."""


@once
def work_of(kernels: Table, host_ops: Table | None = None) -> Work:
    """FLOPs, compulsory bytes and matrix dtype of every kernel; each distinct signature is worked out once.

    Grouped products whose weights come as lists, products that communicate and attention over a pool of the KV cache
    have no FLOPs. Bytes count each operand once (in + out): a lower bound.

    Reads:
        kernels: op_type, input_shapes, input_dtypes, input_formats, output_shapes, output_dtypes, host_op.
        host_ops: name, input_shapes, input_dtypes, arguments; used for GPU kernels, which record no shapes themselves.
    """
    columns = (
        "op_type", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes", "output_formats",
    )  # fmt: skip
    texts = [kernels.text(name) for name in columns]
    classes = kernel_classes(kernels)
    codes, first = _distinct([classes.codes, *(text.codes for text in texts)])
    amounts, dtypes = [], []
    for row in first.tolist():
        kind = KernelClass(classes[row] or "other")
        op_type, shapes_in, types_in, formats_in, shapes_out, types_out, formats_out = (
            text[row] or "" for text in texts
        )
        types = types_in.split(";"), types_out.split(";")
        formats = formats_in.split(";"), formats_out.split(";")
        amounts.append(
            kernel_work(kind, op_type, parse_shapes(shapes_in), parse_shapes(shapes_out), types, formats)
        )  # fmt: skip
        dtypes.append(matrix_dtype(types_in))
    work = _spread(codes, amounts, dtypes)
    if host_ops is None or not len(host_ops) or not kernels.has("host_op") or kernels.has("input_shapes"):
        return work
    return _with_host_shapes(kernels, host_ops, classes)


def _spread(codes: Ints, amounts: Sequence[Amount], dtypes: Sequence[str | None]) -> Work:
    """The work of each kernel from that of its signature."""
    if not len(codes):
        none = np.empty(0)
        return Work(flops=none, bytes=none, dtype=Text.full(0, None), how=Text.full(0, None))
    dtype, how = Text.of(dtypes), Text.of([a.how or None for a in amounts])
    return Work(
        flops=np.array([a.flops for a in amounts])[codes],
        bytes=np.array([a.bytes for a in amounts])[codes],
        dtype=Text(dtype.codes[codes], dtype.values),
        how=Text(how.codes[codes], how.values),
    )


def _with_host_shapes(kernels: Table, host_ops: Table, classes: Text) -> Work:
    """Work of GPU kernels from the framework's operators that launched them.

    The work of an operator that launched several kernels is divided among those that do it, by their time: its matrix
    kernels if it has some, else all but those that only move or fill. Sums are right; a single kernel's share is not
    known. What the rest moves is not known either; it computes nothing.
    """
    op = kernels.ints("host_op")
    usable = (op != NULL) & (op >= 0) & (op < len(host_ops))
    rows = np.flatnonzero(usable)
    names, shapes, dtypes, arguments = (
        host_ops.text(name) for name in ("name", "input_shapes", "input_dtypes", "arguments")
    )
    at = op[rows]
    used, place = np.unique(at, return_inverse=True)
    codes, first = _distinct([text.codes[used] for text in (names, shapes, dtypes, arguments)])
    sizes = ConvSizes()
    calls = [
        (names[row] or "", parse_shapes(shapes[row] or ""), dtypes[row] or "", arguments[row] or "")
        for row in used[first].tolist()
    ]
    for name, inputs, _, told in calls:
        sizes.learn(name, inputs, told)
    found = [host_work(*call, sizes) for call in calls]
    by_op = _spread(codes, [amount for amount, _ in found], [dtype for _, dtype in found])
    per_kernel = place.reshape(-1)
    matrix, moved, filled = (classes.isin(kinds) for kinds in (_MATRIX, _MOVED, _FILLED))
    duration = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns")).clip(0).astype(float)
    part, doing = _part(rows, per_kernel, len(used), matrix, moved | filled, duration)
    count = len(kernels)
    flops, size = np.full(count, np.nan), np.full(count, np.nan)
    flops[moved | filled] = 0.0
    dtype_codes, how_codes = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    chosen, source = rows[doing], per_kernel[doing]
    if len(chosen):
        flops[chosen] = by_op.flops[source] * part[doing]
        size[chosen] = by_op.bytes[source] * part[doing]
        dtype_codes[chosen], how_codes[chosen] = by_op.dtype.codes[source], by_op.how.codes[source]
    return Work(
        flops=flops, bytes=size, dtype=Text(dtype_codes, by_op.dtype.values), how=Text(how_codes, by_op.how.values)
    )


def _part(rows: Ints, op: Ints, ops: int, matrix: Bools, moved: Bools, duration: Floats) -> tuple[Floats, Bools]:
    """Share of its operator's work that each of `rows` does, and which do any: not those that move data beside it."""
    has_matrix = np.bincount(op, matrix[rows], ops) > 0
    computes = np.bincount(op, ~moved[rows], ops) > 0
    does = np.where(has_matrix[op], matrix[rows], ~computes[op] | ~moved[rows])
    spent = np.where(does, duration[rows], 0.0)
    whole, count = np.bincount(op, spent, ops), np.bincount(op, does, ops)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Kernels of no length share alike.
        shared = np.where(whole[op] > 0, spent / whole[op], 1.0 / np.maximum(count[op], 1))
    return np.where(does, shared, 0.0), does


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
