"""Framework operators of a CPU trace as kernels: on a CPU the operator is what computes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.model.table import Bools, Table, Text
from ascend_perf.model.tables import KERNELS

OP_TYPES: Final = {
    "mm": "MatMul", "addmm": "MatMul", "bmm": "BatchMatMul", "baddbmm": "BatchMatMul", "mkldnn_linear": "MatMul",
    "mkldnn_convolution": "Conv2D", "_slow_conv2d_forward": "Conv2D", "thnn_conv2d": "Conv2D",
    "convolution_backward": "Conv2DBackprop",
    "_softmax": "SoftmaxV2", "_softmax_backward_data": "SoftmaxGrad", "_log_softmax": "LogSoftmaxV2",
    "_scaled_dot_product_flash_attention_for_cpu": "FlashAttentionScore",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "FlashAttentionScoreGrad",
    "rsqrt": "Rsqrt", "pow": "Pow", "square": "Square", "mean": "ReduceMean", "neg": "Neg", "cat": "ConcatD",
    "silu": "Silu", "mul": "Mul", "mul_": "Mul", "add": "Add", "add_": "Add", "sub": "Sub", "div": "RealDiv",
    "div_": "RealDiv", "masked_fill": "MaskedFill", "masked_fill_": "MaskedFill", "where": "SelectV2",
    "native_dropout": "Dropout", "copy_": "TensorMove", "rms_norm": "RmsNorm", "_fused_rms_norm": "RmsNorm",
    "native_layer_norm": "LayerNorm", "native_batch_norm": "BatchNorm", "embedding": "Embedding",
    "index_select": "GatherV2", "_fused_adamw_": "FusedAdamW", "_fused_adam_": "FusedAdam",
}  # fmt: skip
"""Operators that compute, by the op type whose rules they share. What runs inside of them belongs to them."""

_PREFIX: Final = "aten::"

_NO_WORK: Final = frozenset(
    [
        "view",
        "reshape",
        "expand",
        "transpose",
        "t",
        "permute",
        "slice",
        "select",
        "as_strided",
        "unsqueeze",
        "squeeze",
        "detach",
        "detach_",
        "empty",
        "empty_like",
        "empty_strided",
        "resize_",
        "resolve_conj",
        "resolve_neg",
        "split",
        "split_with_sizes",
        "chunk",
        "narrow",
        "alias",
        "unbind",
        "_unsafe_view",
        "view_as",
        "expand_as",
        "lift_fresh",
        "set_",
        "result_type",
        "item",
        "_local_scalar_dense",
        "is_nonzero",
    ]
)
"""Operators that only describe memory, allocate it or read one value."""


def operators_as_kernels(host_ops: Table) -> Table:
    """The operators that do the work, one row each, as a `kernels` table (core CPU, stream the thread).

    Of nested calls the one that computes is taken: an operator of `OP_TYPES` with all that it calls, else a
    call that calls nothing further. Calls that only describe or allocate memory are left out.

    Reads:
        host_ops: start_ns, dur_ns, name, thread, input_shapes, input_dtypes.
    """
    names = host_ops.text("name").relabel(lambda name: name.removeprefix(_PREFIX))
    is_known = names.isin(OP_TYPES)
    no_work = names.isin(_NO_WORK)
    inside, has_calls = _nesting(host_ops, is_known)
    rows = np.flatnonzero(~inside & (is_known | (~has_calls & ~no_work)) & host_ops.text("name").flags(_is_aten))
    dtypes = host_ops.text("input_dtypes").take(rows)
    types = names.take(rows).relabel(lambda name: OP_TYPES.get(name, name))
    both = Text.concat([types, Text.of(["Cast"])])
    is_cast = types.equals("TensorMove") & dtypes.flags(_differ)
    codes = np.where(is_cast, both.codes[-1], both.codes[:-1]).astype(np.int32)
    return Table(
        KERNELS,
        {
            "start_ns": host_ops.ints("start_ns")[rows],
            "dur_ns": host_ops.ints("dur_ns")[rows],
            "name": host_ops.text("name").take(rows).compact(),
            "op_type": Text(codes, both.values).compact(),
            "core": Text.full(len(rows), "CPU"),
            "stream": host_ops.ints("thread")[rows],
            "input_shapes": host_ops.text("input_shapes").take(rows),
            "input_dtypes": dtypes,
        },
    )


def _nesting(host_ops: Table, is_known: Bools) -> tuple[Bools, Bools]:
    """Whether each call lies inside a known operator, and whether it calls others."""
    start, dur, thread = host_ops.ints("start_ns"), host_ops.ints("dur_ns"), host_ops.ints("thread")
    inside = np.zeros(len(host_ops), bool)
    has_calls = np.zeros(len(host_ops), bool)
    for one in np.unique(thread).tolist():
        rows = np.flatnonzero(thread == one)
        rows = rows[np.lexsort((-dur[rows], start[rows]))]
        up = intervals.parents(start[rows], start[rows] + dur[rows])
        has_calls[rows[up[up >= 0]]] = True
        known = is_known[rows]
        above = up.copy()
        open_rows = np.flatnonzero(above >= 0)
        while len(open_rows):  # one round per level of nesting
            hit = known[above[open_rows]]
            inside[rows[open_rows[hit]]] = True
            open_rows = open_rows[~hit]
            above[open_rows] = up[above[open_rows]]
            open_rows = open_rows[above[open_rows] >= 0]
    return inside, has_calls


def _is_aten(name: str) -> bool:
    return "::" in name and not name.startswith("autograd::")


def _differ(dtypes: str) -> bool:
    """Whether source and target of a copy differ in type: then it converts."""
    first, _, rest = dtypes.partition(";")
    return bool(rest) and rest.split(";")[0] not in ("", first)
