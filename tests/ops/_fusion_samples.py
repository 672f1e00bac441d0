"""Sequences made from the catalogue of fused operators: names and op types that a pattern must match."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.find_fusions import Matches, find_fusions
from ascend_perf.ops.fusions import Fusion, document

TYPES = {
    "rms_norm": "RmsNorm", "swiglu": "SwiGlu", "fused": "FlashAttentionScore", "grouped": "GroupedMatmul",
    "quant_mm": "QuantBatchMatmulV3", "bmm": "BatchMatMulV2", "mm": "MatMulV3", "softmax": "SoftmaxV2",
    "softmax_grad": "SoftmaxGrad", "log_softmax": "LogSoftmaxV2", "nll_loss": "NLLLoss", "rsqrt": "Rsqrt",
    "pow": "Pows", "mean": "ReduceMeanD", "sum": "ReduceSum", "max": "ReduceMax", "neg": "Neg", "concat": "ConcatD",
    "cut": "Slice", "silu": "Swish", "silu_grad": "SwishGrad", "gelu": "Gelu", "gelu_grad": "GeluGrad",
    "sigmoid": "Sigmoid", "relu": "Relu", "dropout": "DropOutDoMask", "mask": "MaskedFill", "div": "RealDiv",
    "scale": "Axpy", "muls": "Muls", "mul": "Mul", "add": "Add", "layer_norm": "LayerNormV3",
    "group_norm": "GroupNorm", "sort": "Sort", "topk": "TopKV2", "gather": "GatherV2", "scatter": "ScatterNdUpdate",
    "cumsum": "Cumsum", "exp": "Exp", "quant": "AscendQuant", "dequant": "AscendDequant", "transpose": "Transpose",
    "cast": "Cast",
}  # fmt: skip
"""An op type of each symbol of kernels, written down by hand."""

ELEMENT = re.compile(r"(!?)\(?([a-z_|]+)\)?(\?|\{(\d+)(?:,(\d+))?\})?")


def host_name(symbol: str) -> str:
    """A framework operator of a symbol."""
    names = cast("Mapping[str, Sequence[str]]", document("symbols")["host"])
    name = "to" if symbol == "cast" else names[symbol][0]
    return f"{'c10d' if symbol in COLLECTIVES else 'npu' if name.startswith('npu') else 'aten'}::{name}"


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def samples(pattern: str) -> dict[str, list[str]]:
    """Symbols that a pattern must match: as few as it may have, and as many, each symbol the last alternative."""
    few: list[str] = []
    many: list[str] = []
    for part in pattern.split():
        if part.startswith(("@", "!")):
            continue
        found = ELEMENT.fullmatch(part)
        assert found is not None, part
        _, names, times, low, high = found.groups()
        least, most = (0, 1) if times == "?" else (int(low), int(high or low)) if times else (1, 1)
        symbols = names.split("|")
        few += symbols[:1] * least
        many += symbols[-1:] * most
    return {"few": few, "many": many}


def required(pattern: str) -> int:
    """Length of the shortest sequence."""
    return len(samples(pattern)["few"])


def on_kernels(make_trace: Callable[..., Trace], types: Sequence[str], wanted: Fusion) -> Matches | None:
    """Matches of a row among kernels of one stream."""
    rows = [
        {"start_ns": 10 * i, "dur_ns": 5, "name": "k", "op_type": kind, "core": "AIV", "stream": 1}
        for i, kind in enumerate(types)
    ]
    kernels = make_trace(kernels=rows)[KERNELS]
    ops = make_trace()[HOST_OPS]
    return find_fusions(kernels, ops, np.zeros(len(kernels), np.int64), [wanted]).get(wanted.id)


def on_host(
    make_trace: Callable[..., Trace], names: Sequence[str], wanted: Fusion, types: Mapping[int, str] | None = None
) -> Matches | None:
    """Matches of a row among operators, each of which launched one kernel of no pattern (or of `types` by place)."""
    ops = [{"start_ns": 10 * i, "dur_ns": 8, "name": name, "thread": 1} for i, name in enumerate(names)]
    rows = [
        {"start_ns": 1000 + 10 * i, "dur_ns": 5, "name": "k", "op_type": (types or {}).get(i, "Special"), "core": "AIV",
         "stream": i % 2, "host_op": i}
        for i in range(len(names))
    ]  # fmt: skip
    trace = make_trace(kernels=rows, host_ops=ops)
    steps = np.zeros(len(rows), np.int64)
    return find_fusions(trace[KERNELS], trace[HOST_OPS], steps, [wanted]).get(wanted.id)
