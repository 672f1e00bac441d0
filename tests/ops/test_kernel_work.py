"""Work of Ascend kernels from their own operands, against hand arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ascend_perf import pipeline
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.flops import work_of

NAN = math.nan
SBH = "6,2,12;6,2,12;6,2,12"
"""6 tokens, 2 sequences, 3 heads of 4: one product is 2 * 2*3*6*6*4 = 1728."""


@pytest.mark.parametrize(
    ("op_type", "inputs", "types", "outputs", "out_types", "expected"),
    [
        # 6 tokens, 2 experts of 4x5; stored either way round.
        ("GroupedMatmul", "6,4;2,4,5;2", "DT_BF16;DT_BF16;INT64", "6,5", "DT_BF16",
         (240, 2 * (24 + 40 + 30) + 16, "grouped-matmul")),
        ("BatchMatMulV2", "7,3,4;7,4,5", "FLOAT;FLOAT", "7,3,5", "FLOAT", (840, 1316, "batched-matmul")),
        ("RmsNorm", "2,10;10", "FLOAT;FLOAT", "2,10;2,1", "FLOAT;FLOAT", (100, 80 + 40 + 80 + 8, "norm")),
        ("RmsNormGrad", "2,10;2,10;2,1;10", "FLOAT;FLOAT;FLOAT;FLOAT", "2,10;10", "FLOAT;FLOAT",
         (200, 80 + 80 + 8 + 40 + 80 + 40, "norm-backward")),
        ("SoftmaxV2", "2,10", "FLOAT", "2,10", "FLOAT", (100, 160, "softmax")),
        ("SoftmaxGrad", "2,10;2,10", "FLOAT;FLOAT", "2,10", "FLOAT", (80, 240, "softmax-backward")),
        ("Mul", "2,10;10", "FLOAT;FLOAT", "2,10", "FLOAT", (20, 200, "elementwise")),
        ("ForeachAddList", "2,10;3;2,10;3", "FLOAT;FLOAT;FLOAT;FLOAT", "2,10;3", "FLOAT;FLOAT",
         (23, 3 * 92, "elementwise")),
        ("ReduceSum", "2,10;1", "FLOAT;INT64", "2", "FLOAT", (20, 96, "reduction")),
        ("Cast", "2,10", "FLOAT", "2,10", "FLOAT16", (0, 120, "move")),
        ("TransData", "2,10", "FLOAT", "2,10", "FLOAT", (0, 160, "move")),
        ("GatherV2", "1000,8;6", "FLOAT;INT64", "6,8", "FLOAT", (0, 384, "gather")),
        ("ZerosLike", "2,10", "FLOAT", "2,10", "FLOAT", (0, 160, "fill")),
        ("RotaryPositionEmbedding", "2,10;1,10;1,10", "FLOAT;FLOAT;FLOAT", "2,10", "FLOAT", (60, 240, "rope")),
        # In place: p, m, v and g are read, the first three written.
        ("ApplyAdamWV2", "10;10;10;10;1", "FLOAT;FLOAT;FLOAT;FLOAT;INT64", "", "", (160, 280, "adamw")),
        ("ApplyAdamD", "10;10;10;10", "FLOAT;FLOAT;FLOAT;FLOAT", "10;10;10", "FLOAT;FLOAT;FLOAT", (140, 280, "adam")),
        ("ApplyMomentum", "10;10;10", "FLOAT;FLOAT;FLOAT", "10;10", "FLOAT;FLOAT", (40, 200, "momentum")),
        ("MaxPoolWithArgmaxV2", "2,10", "FLOAT", "2,5", "FLOAT", (20, 120, "pooling")),
        # No mask, and a mask of every query and key: all blocks are computed.
        ("FlashAttentionScore", SBH, "FLOAT16;FLOAT16;FLOAT16", "2,3,6,8;2,3,6,8;6,2,12", "FLOAT;FLOAT;FLOAT16",
         (3456, 4 * 288 + 2 * 288 * 4, "attention")),
        ("FlashAttentionScore", SBH + ";6,6", "FLOAT16;FLOAT16;FLOAT16;BOOL", "2,3,6,8;6,2,12", "FLOAT;FLOAT16",
         (3456, 4 * 288 + 36 + 288 * 4, "attention")),
        # The compressed mask of 2048 x 2048 is causal.
        ("FlashAttentionScore", SBH + ";2048,2048", "FLOAT16;FLOAT16;FLOAT16;BOOL", "2,3,6,8;6,2,12", "FLOAT;FLOAT16",
         (1728, 4 * 288 + 2048**2 + 288 * 4, "attention-causal")),
        # Grouped queries, BNSD: 4 heads of queries on 2 of keys; 7 keys.
        ("FlashAttentionScore", "1,4,5,8;1,2,7,8;1,2,7,8", "FLOAT;FLOAT;FLOAT", "1,4,5,8;1,4,5,8", "FLOAT;FLOAT",
         (4 * 4 * 5 * 7 * 8, 4 * (160 + 224 + 320), "attention")),
        # BSH, other lengths of keys.
        ("FlashAttentionScore", "2,6,12;2,9,12;2,9,12", "FLOAT;FLOAT;FLOAT", "2,3,6,8;2,6,12", "FLOAT;FLOAT",
         (4 * 2 * 3 * 6 * 9 * 4, 4 * (144 + 432 + 288 + 144), "attention")),
        ("FlashAttentionScoreGrad", SBH + ";6,2,12;2048,2048;2,3,6,8", "FLOAT16;FLOAT16;FLOAT16;FLOAT16;BOOL;FLOAT",
         "6,2,12", "FLOAT16", (4320, 5 * 288 + 2048**2 + 288 * 4, "attention-backward-causal")),
        # Packed: 12 tokens in 3 sequences need at least 4 * 3 * 4 * 12 * 12 / 3.
        ("FlashAttentionScore", "12,3,4;12,3,4;12,3,4;3;3", "FLOAT16;FLOAT16;FLOAT16;INT64;INT64",
         "12,3,8;12,3,4", "FLOAT;FLOAT16", (2304, 4 * 288 + 48 + 288 * 4, "attention-packed")),
    ],
)  # fmt: skip
def test_work_by_op_type(
    make_trace: Callable[..., Trace], op_type: str, inputs: str, types: str, outputs: str, out_types: str,
    expected: tuple[float, float, str],
) -> None:  # fmt: skip
    trace = make_trace(
        kernels=[
            {
                "start_ns": 0, "dur_ns": 1, "name": "k", "op_type": op_type, "input_shapes": inputs,
                "input_dtypes": types, "output_shapes": outputs, "output_dtypes": out_types,
            }
        ]
    )  # fmt: skip

    work = work_of(trace[KERNELS])

    assert (work.flops[0], work.bytes[0], work.how[0]) == expected


@pytest.mark.parametrize(
    ("op_type", "inputs", "types", "outputs"),
    [
        # Weights as a list: which tensors belong to which expert is not told.
        ("GroupedMatmul", "6,4;4,5;4,5", "DT_BF16;DT_BF16;DT_BF16", "6,5"),
        ("GroupedMatmul", "6,4;2,3,5", "DT_BF16;DT_BF16", "6,5"),
        ("MatmulReduceScatter", "6,4;4,5", "DT_BF16;DT_BF16", "3,5"),
        ("FlashAttentionScore", SBH, "FLOAT16;FLOAT16;FLOAT16", "6,2,12"),
        ("FlashAttentionScore", "12,3,4;12,3,4;12,3,4", "FLOAT16;FLOAT16;FLOAT16", "12,3,8"),
        ("IncreFlashAttention", "2,1,12;99,16,12;99,16,12", "FLOAT16;FLOAT16;FLOAT16", "2,1,12"),
        ("MoeGatingTopK", "2,10", "FLOAT", "2,2"),
        ("Sort", "2,10", "FLOAT", "2,10"),
        ("MyOwnKernel", "2,10", "FLOAT", "2,10"),
    ],
)
def test_what_no_formula_fits_has_no_flops(
    make_trace: Callable[..., Trace], op_type: str, inputs: str, types: str, outputs: str
) -> None:
    trace = make_trace(
        kernels=[
            {
                "start_ns": 0, "dur_ns": 1, "name": "k", "op_type": op_type, "input_shapes": inputs,
                "input_dtypes": types, "output_shapes": outputs, "output_dtypes": "FLOAT",
            }
        ]
    )  # fmt: skip

    assert math.isnan(work_of(trace[KERNELS]).flops[0])


@pytest.mark.parametrize(("op_type", "products"), [("FlashAttentionScore", 2), ("FlashAttentionScoreGrad", 5)])
def test_causal_attention_agrees_with_the_counters(traces: Path, op_type: str, products: int) -> None:
    # Qwen3-0.6B, 4096 tokens, 16 heads of 128. The counters see whole blocks of the diagonal: 10 to 20 % more.
    kernels = pipeline.load(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_2_ascend_pt").traces[0][KERNELS]
    rows = np.flatnonzero(kernels.text("op_type").equals(op_type))

    work = work_of(kernels)

    assert set(work.flops[rows].tolist()) == {products * 2 * 16 * 4096 * 4096 * 128 / 2}
    counted = 8192 * kernels.ints("aic_total_cycles")[rows] * kernels.floats("aic_mac_ratio")[rows]
    assert 1.10 <= float(np.median(counted / work.flops[rows])) <= 1.20


def test_a_language_model_has_work_for_nearly_all_of_its_time(traces: Path) -> None:
    kernels = pipeline.load(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_2_ascend_pt").traces[0][KERNELS]
    duration = kernels.ints("dur_ns")

    work = work_of(kernels)

    assert duration[~np.isnan(work.flops)].sum() / duration.sum() >= 0.98
    assert duration[~np.isnan(work.bytes)].sum() / duration.sum() >= 0.98
