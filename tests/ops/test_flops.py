"""FLOPs and bytes against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.flops import attention_flops, conv_flops, matmul_flops, matrix_dtype, parse_shapes, work_of


def test_a_product_needs_no_orientation() -> None:
    expected = 2 * 4 * 6 * 5  # M 4, K 6, N 5

    for a in ((4, 6), (6, 4)):
        for b in ((6, 5), (5, 6)):
            assert matmul_flops(a, b, (4, 5)) == expected


def test_a_batched_product_counts_each_item() -> None:
    assert matmul_flops((3, 4, 6), (3, 6, 5), (3, 4, 5)) == 3 * 2 * 4 * 6 * 5
    # Weights shared over the batch: one product of 3 * 4 rows.
    assert matmul_flops((3, 4, 6), (6, 5), (3, 4, 5)) == 2 * 12 * 6 * 5


def test_blocks_of_the_private_format_are_no_batches(make_trace: Callable[..., Trace]) -> None:
    # 64x64 @ 64x64, each stored as 4x4 blocks of 16x16.
    trace = make_trace(
        kernels=[
            {
                "start_ns": 0, "dur_ns": 1, "name": "k", "op_type": "MatMulV2",
                "input_shapes": "4,4,16,16;4,4,16,16", "input_formats": "FRACTAL_NZ;FRACTAL_NZ",
                "output_shapes": "4,4,16,16", "output_formats": "FRACTAL_NZ", "input_dtypes": "FLOAT16;FLOAT16",
            }
        ]
    )  # fmt: skip

    assert work_of(trace[KERNELS]).flops.tolist() == [2 * 64**3]


def test_an_edited_row_has_no_flops() -> None:
    # No whole K fits: 81920 * 8192 is no square.
    assert math.isnan(matmul_flops((81920, 1536), (8192, 4096), (1536, 4096)))
    assert math.isnan(matmul_flops((5,), (5, 2), (2,)))
    assert math.isnan(matmul_flops((0, 4), (4, 2), (0, 2)))


def test_a_convolution_counts_two_per_output_channel_and_tap() -> None:
    # 8 output channels, 3x3 taps of 4 channels, 10 outputs each: 80 outputs x 36 taps x 2.
    assert conv_flops(80, 8 * 4 * 3 * 3, 8) == 80 * 36 * 2
    assert math.isnan(conv_flops(80, 7, 8))


def test_causal_attention_is_half_of_full_attention() -> None:
    assert attention_flops(2, 3, 5, 7, 11, causal=False) == 4 * 2 * 3 * 5 * 7 * 11
    assert attention_flops(2, 3, 5, 5, 11, causal=True) == 2 * 2 * 3 * 5 * 5 * 11


def test_work_of_kernels(make_trace: Callable[..., Trace]) -> None:
    row = {"start_ns": 0, "dur_ns": 1, "name": "k"}
    trace = make_trace(
        kernels=[
            row | {
                "op_type": "MatMulV3", "input_shapes": "4,6;6,5", "output_shapes": "4,5",
                "input_dtypes": "DT_BF16;DT_BF16", "output_dtypes": "FLOAT",
            },
            row | {
                "op_type": "Cast", "input_shapes": "8,2", "output_shapes": "8,2",
                "input_dtypes": "FLOAT", "output_dtypes": "FLOAT16",
            },
            row | {
                "op_type": "Slice", "input_shapes": "1000,4;2;2", "output_shapes": "3,4",
                "input_dtypes": "FLOAT;INT64;INT64", "output_dtypes": "FLOAT",
            },
            row | {
                "op_type": "Add", "input_shapes": "3,4;", "output_shapes": "3,4",
                "input_dtypes": "FLOAT;FLOAT", "output_dtypes": "FLOAT",
            },
            row | {"op_type": "FlashAttentionScore", "input_shapes": "8,1,4", "input_dtypes": "FLOAT16"},
            row | {"op_type": "GroupedMatmul", "input_shapes": "4,6;6,5", "output_shapes": "4,5"},
        ]
    )  # fmt: skip

    work = work_of(trace[KERNELS])

    nan = np.nan
    # Casts and slices compute nothing.
    np.testing.assert_array_equal(work.flops, [240, 0, 0, 12, nan, nan])
    # 24*2 + 30*2 + 20*4; 16*4 + 16*2; twice the 12 floats it takes; 12*4 twice (the scalar is not counted).
    np.testing.assert_array_equal(work.bytes, [188, 96, 96, 96, nan, nan])
    assert work.dtype.to_list() == ["bf16", "fp32", "fp32", "fp32", "fp16", None]


CONV_FLOPS = 2 * 32 * 16 * 16 * 9 * 2
"""2 images, 16 -> 32 channels, 3x3, 4x4 out: 2*32*16 outputs x 16*9 products x 2."""


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "formats", "expected"),
    [
        ("Conv2D", "2,16,4,4;32,16,3,3", "2,32,4,4", "NCHW;NCHW", CONV_FLOPS),
        # The same in NC1HWC0 (C0 8) with FRACTAL_Z: C1*9 = 18, N1 = 2, 16, 8.
        ("Conv2D", "2,2,4,4,8;18,2,16,8", "2,4,4,4,8", "NC1HWC0;FRACTAL_Z", CONV_FLOPS),
        ("Conv2DBackpropInput", "4;18,2,16,8;2,4,4,4,8", "2,2,4,4,8", "NCHW;FRACTAL_Z;NC1HWC0", CONV_FLOPS),
        ("Conv2DBackpropFilter", "2,2,4,4,8;4;2,4,4,4,8", "18,2,16,8", "NC1HWC0;NCHW;NC1HWC0", CONV_FLOPS),
        # One block of channels may be mostly padding.
        ("Conv2D", "2,1,4,4,8;9,2,16,8", "2,4,4,4,8", "NC1HWC0;FRACTAL_Z", math.nan),
    ],
)  # fmt: skip
def test_work_of_convolutions(
    make_trace: Callable[..., Trace], op_type: str, inputs: str, output: str, formats: str, expected: float
) -> None:
    trace = make_trace(
        kernels=[
            {
                "start_ns": 0, "dur_ns": 1, "name": "k", "op_type": op_type, "input_shapes": inputs,
                "output_shapes": output, "input_formats": formats, "input_dtypes": "FLOAT;FLOAT",
            }
        ]
    )  # fmt: skip

    np.testing.assert_array_equal(work_of(trace[KERNELS]).flops, [expected])


def test_gpu_products_take_the_shapes_of_their_host_op(make_trace: Callable[..., Trace]) -> None:
    host = {"start_ns": 0, "dur_ns": 1, "thread": 1}
    gemm = {"start_ns": 0, "dur_ns": 1, "core": "SM", "name": "ampere_bf16_s16816gemm_128x64"}
    trace = make_trace(
        host_ops=[
            host | {
                "name": "aten::addmm", "input_shapes": "5;4,6;6,5;;",
                "input_dtypes": "float;c10::BFloat16;c10::BFloat16;;",
            },
            host | {"name": "aten::bmm", "input_shapes": "3,4,6;3,6,5", "input_dtypes": "float;float"},
            host | {"name": "aten::mm", "input_shapes": "4,6;6,5", "input_dtypes": "float;float"},
        ],
        kernels=[
            gemm | {"host_op": 0},
            gemm | {"host_op": 1},
            # Two kernels of one product: each did its part of the time.
            gemm | {"host_op": 2},
            gemm | {"host_op": 2},
            gemm | {"name": "void at::native::vectorized_elementwise_kernel<4>", "host_op": 1},
        ],
    )  # fmt: skip

    work = work_of(trace[KERNELS], trace[HOST_OPS])

    nan = np.nan
    np.testing.assert_array_equal(work.flops, [240, 720, 120, 120, nan])
    np.testing.assert_array_equal(work.bytes, [(24 + 30 + 20) * 2, 3 * (24 + 30 + 20) * 4, 148, 148, nan])
    assert work.dtype.to_list() == ["bf16", "fp32", "fp32", "fp32", None]


def test_shapes_are_read_in_both_spellings() -> None:
    assert parse_shapes("2,3;4") == ((2, 3), (4,))
    assert parse_shapes("2,3;") == ((2, 3), ())
    assert parse_shapes("[[2, 3], [], [4]]") == ((2, 3), (), (4,))
    assert parse_shapes("N/A") == ()
    assert parse_shapes("") == ()


def test_the_dtype_of_a_product_passes_over_size_operands() -> None:
    assert matrix_dtype("INT32;FLOAT;FLOAT") == "fp32"
    assert matrix_dtype("DT_BF16;FLOAT") == "bf16"
    assert matrix_dtype("BOOL") is None
