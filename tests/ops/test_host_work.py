"""Work of GPU kernels from the operators that launched them, against hand arithmetic and brute force."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.flops import work_of
from ascend_perf.ops.formulas import FORMULAS
from ascend_perf.ops.host_work import ConvSizes, elementwise_output, host_work

Shape = tuple[int, ...]
NAN = math.nan


def _work(
    name: str, shapes: Sequence[Shape], dtypes: str, arguments: Sequence[str] | None = None
) -> tuple[float, float, str]:
    told = "" if arguments is None else json.dumps(list(arguments))
    sizes = ConvSizes()
    sizes.learn(name, shapes, told)
    amount, _ = host_work(name, shapes, dtypes, told, sizes)
    assert amount.how in FORMULAS or amount.how == ""
    return amount.flops, amount.bytes, amount.how


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "expected"),
    [
        # 3x4 @ 4x5 in fp16: 2*3*4*5, (12 + 20 + 15) * 2 bytes.
        ("aten::mm", [(3, 4), (4, 5)], "c10::Half;c10::Half", (120, 94, "matmul")),
        ("aten::addmm", [(5,), (3, 4), (4, 5), (), ()], "float;float;float;Scalar;Scalar", (120, 188, "matmul")),
        ("aten::bmm", [(7, 3, 4), (7, 4, 5)], "float;float", (840, 1316, "batched-matmul")),
        ("aten::linear", [(2, 3, 4), (5, 4), (5,)], "float;float;float", (240, 4 * (24 + 20 + 30), "matmul")),
        # 6 tokens, 2 experts of 4x5: 2*6*4*5; the weights of both experts are read.
        ("aten::_grouped_mm", [(6, 4), (2, 4, 5)], "c10::BFloat16;c10::BFloat16", (240, 188, "grouped-matmul")),
        # int8 operands, products of at least two bytes.
        ("aten::_int_mm", [(3, 4), (4, 5)], "signed char;signed char", (120, 32 + 30, "matmul")),
        ("aten::_softmax", [(2, 10)], "float;Scalar;Scalar", (100, 160, "softmax")),
        ("aten::_softmax_backward_data", [(2, 10), (2, 10)], "float;float", (80, 240, "softmax-backward")),
        ("aten::native_layer_norm", [(2, 10), (), (10,), (10,)], "float;ScalarList;float;float",
         (100, 160 + 80, "norm")),
        ("aten::native_layer_norm_backward", [(2, 10), (2, 10)], "float;float", (200, 240, "norm-backward")),
        # The row is broadcast: 20 sums, (20 + 10) read and 20 written.
        ("aten::add", [(2, 10), (10,), ()], "float;float;Scalar", (20, 200, "elementwise")),
        ("aten::mul_", [(2, 10), ()], "c10::Half;double", (20, 80, "elementwise")),
        ("aten::eq", [(2, 10), (2, 10)], "float;float", (20, 180, "elementwise")),
        # The third operand is where the result goes: it is not read.
        ("aten::clamp_min", [(2, 10), (), (2, 10)], "float;Int;float", (20, 160, "elementwise")),
        ("aten::where", [(2, 10), (2, 10), (2, 10)], "bool;float;float", (20, 20 + 160 + 80, "elementwise")),
        ("aten::sum", [(2, 10), ()], "float;ScalarList", (20, 80, "reduction")),
        ("aten::cumsum", [(2, 10), ()], "float;Scalar", (20, 160, "reduction")),
        # A cast: 20 floats from 20 halfs.
        ("aten::copy_", [(2, 10), (2, 10), ()], "float;c10::Half;Scalar", (0, 120, "move")),
        ("aten::fill_", [(2, 10), ()], "float;Scalar", (0, 80, "fill")),
        # 6 rows of 8 floats by 6 long indexes.
        ("aten::embedding", [(1000, 8), (2, 3)], "float;long int", (0, 2 * 6 * 32 + 48, "gather")),
        ("aten::index_select", [(1000, 8), (), (6,)], "float;Scalar;long int", (0, 2 * 6 * 32 + 48, "gather")),
        ("triton_poi_fused_add_0", [(8, 4), (8, 4), (4,), ()], "float;float;float;Scalar",
         (32, 4 * (32 + 32 + 4), "fused-elementwise")),
        ("sgl_kernel::silu_and_mul", [(5, 6), (5, 12)], "c10::BFloat16;c10::BFloat16", (30, 180, "elementwise")),
        # Input, weight and the result, which is given too: a token is read and written.
        ("aiter::rmsnorm", [(5, 6), (5, 6), (6,)], "c10::BFloat16;c10::BFloat16;c10::BFloat16", (150, 132, "norm")),
    ],
)  # fmt: skip
def test_work_of_operators(
    name: str, shapes: list[Shape], dtypes: str, expected: tuple[float, float, str]
) -> None:
    assert _work(name, shapes, dtypes) == expected


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("aten::mm", [(3, 4), (5, 6)], "float;float"),
        ("aten::mm", [(-3, 4), (4, 5)], "float;float"),
        ("aten::bmm", [(7, 3, 4), (6, 4, 5)], "float;float"),
        ("aten::add", [(2, 10), (3,)], "float;float"),
        ("aten::cat", [(), ()], "TensorList;Scalar"),
        ("my::op", [(2, 10)], "float"),
        ("aten::conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)], "float;float"),
        ("aten::mm", [], ""),
        ("", [(1,)], "float"),
    ],
)
def test_what_cannot_be_told_is_unknown(name: str, shapes: list[Shape], dtypes: str) -> None:
    flops, size, how = _work(name, shapes, dtypes)

    assert math.isnan(flops) and math.isnan(size) and how == ""


def test_an_operand_of_unknown_dtype_leaves_the_bytes_open() -> None:
    flops, size, how = _work("aten::mul", [(2, 10), (2, 10)], "float;Half9")

    assert flops == 20 and math.isnan(size) and how == "elementwise"


Q = (2, 6, 3, 4)
"""Batch 2, 6 queries, 3 heads of 4: one product is 2 * 2*3*6*6*4 = 1728."""


@pytest.mark.parametrize(
    ("told", "factor", "how"),
    [("False", 1.0, "attention"), ("True", 0.5, "attention-causal"), (None, 0.5, "attention-causal")],
)
def test_attention_counts_two_products_and_half_of_them_when_causal(told: str | None, factor: float, how: str) -> None:
    arguments = None if told is None else ["", "", "", "", "", "6", "6", "0.", told, "False"]
    dtypes = "c10::Half;c10::Half;c10::Half"

    forward = _work("aten::_flash_attention_forward", [Q, Q, Q], dtypes, arguments)

    assert forward == (2 * 1728 * factor, 4 * 2 * 144, how)


def test_the_backward_pass_has_five_products() -> None:
    # dO, Q, K, V, O, dQ, dK, dV: eight tensors of 144 halfs.
    arguments = [""] * 11 + ["False"]

    work = _work(
        "aten::_flash_attention_backward", [Q, Q, Q, Q, Q], ";".join(["c10::Half"] * 5), arguments
    )  # fmt: skip

    assert work == (5 * 1728, 8 * 2 * 144, "attention-backward")


def test_grouped_queries_read_fewer_keys() -> None:
    # 8 query heads, 2 of keys: [B, H, S, D] = (1, 8, 5, 4); 7 keys.
    query, key = (1, 8, 5, 4), (1, 2, 7, 4)
    arguments = ["", "", "", "", "", "0.", "False"]

    work = _work(
        "aten::_scaled_dot_product_efficient_attention", [query, key, key], "float;float;float", arguments
    )

    assert work == (4 * 8 * 5 * 7 * 4, 4 * (2 * 160 + 2 * 56), "attention")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_packed_sequences_need_at_least_what_is_counted(lengths: list[int]) -> None:
    tokens = sum(lengths)
    exact = sum(4 * 3 * 4 * length * length for length in lengths)
    shape = (tokens, 3, 4)
    arguments = ["", "", "", "", "", "9", "9", "0.", "False"]

    flops, _, how = _work(
        "aten::_flash_attention_forward", [shape, shape, shape, (len(lengths) + 1,), (len(lengths) + 1,)],
        "float;float;float;int;int", arguments,
    )  # fmt: skip

    assert flops <= exact * (1 + 1e-12)
    assert how == "attention-packed"
    if len(set(lengths)) == 1:
        assert flops == pytest.approx(exact)


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Output positions by trying all: windows that lie inside of the padded row."""
    reach = dilation * (kernel - 1) + 1
    return sum(1 for at in range(0, size + 2 * padding, stride) if at + reach <= size + 2 * padding)


@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)
)
def test_a_convolution_against_all_its_positions(
    height: int, width: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    image, weight = (2, 6, height, width), (4, 3, kernel, kernel)  # two groups of 3 channels
    rows, columns = (_positions(size, kernel, stride, padding, dilation) for size in (height, width))
    lists = (f"[{stride}, {stride}]", f"[{padding}, {padding}]", f"[{dilation}]")
    arguments = ["", "", "", *lists, "False", "[0, 0]", "2"]

    flops, size, how = _work("aten::convolution", [image, weight], "float;float", arguments)

    if not rows or not columns:
        assert math.isnan(flops) and how == ""
        return
    outputs = 2 * 4 * rows * columns
    assert flops == 2 * outputs * 3 * kernel * kernel
    assert size == 4 * (math.prod(image) + math.prod(weight) + outputs)


def test_places_of_the_arguments_differ_between_operators() -> None:
    image, weight = (1, 2, 8, 8), (3, 2, 3, 3)
    # cudnn: padding before stride. 8 + 2*1 - 3 = 7, by strides of 2: 4 positions.
    by_cudnn = _work(
        "aten::cudnn_convolution", [image, weight], "float;float", ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    )
    by_miopen = _work(
        "aten::miopen_convolution", [image, weight], "float;float", ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    )

    assert by_cudnn[0] == by_miopen[0] == 2 * (3 * 4 * 4) * 2 * 9


@pytest.mark.parametrize(("mask", "passes"), [("[True, True, False]", 2), ("[False, True, True]", 1), (None, 2)])
def test_each_gradient_of_a_convolution_costs_as_much_as_the_forward_pass(mask: str | None, passes: int) -> None:
    gradient, image, weight = (2, 4, 5, 5), (2, 3, 5, 5), (4, 3, 3, 3)
    arguments = None if mask is None else [*[""] * 7, "False", "", "1", mask]

    flops, size, how = _work("aten::convolution_backward", [gradient, image, weight], "float;float;float", arguments)

    assert flops == passes * 2 * 200 * 27
    assert size == passes * 4 * (200 + 150 + 108)
    assert how == "conv-backward"


def test_old_traces_take_missing_sizes_from_other_calls() -> None:
    # 2021: lists are not recorded. (2, 3, 8, 8) * (4, 3, 3, 3) -> (2, 4, 6, 6).
    image, weight, gradient = (2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 6, 6)
    calls = [
        ("aten::cudnn_convolution", [image, weight, ()], "float;float;GenericList"),
        ("aten::cudnn_convolution_backward_weight", [(), gradient, image], "GenericList;float;float"),
        ("aten::cudnn_convolution_backward_input", [(), gradient, weight], "GenericList;float;float"),
    ]
    sizes = ConvSizes()
    for name, shapes, _ in calls:
        sizes.learn(name, shapes, "")

    found = [host_work(name, shapes, dtypes, "", sizes)[0] for name, shapes, dtypes in calls]

    assert [amount.flops for amount in found] == [2 * 288 * 27] * 3
    # A second filter for such images: neither the output nor the filter can be told.
    sizes.learn("aten::cudnn_convolution", [image, (4, 3, 1, 1)], "")
    assert math.isnan(host_work(*calls[0], "", sizes)[0].flops)
    assert math.isnan(host_work(*calls[1], "", sizes)[0].flops)


@given(
    st.lists(st.integers(1, 3), max_size=4), st.lists(st.integers(1, 3), max_size=4), st.booleans()
)  # fmt: skip
def test_operands_broadcast_as_numpy_says(a: list[int], b: list[int], in_place: bool) -> None:
    try:
        expected: Shape | None = np.broadcast_shapes(tuple(a), tuple(b)) or None
    except ValueError:
        expected = None

    assert elementwise_output("aten::add_" if in_place else "aten::add", [tuple(a), tuple(b)]) == expected


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=60))
def test_no_text_of_a_file_raises(name: str, dtypes: str, arguments: str) -> None:
    for known in (name, "aten::convolution", "aten::_flash_attention_forward", "aten::index_select"):
        host_work(known, [(2, 3, 4, 4), (2, 3, 1, 1), (2, 3, 4, 4)], dtypes, arguments, ConvSizes())


def _gpu(
    make_trace: Callable[..., Trace], names: Sequence[tuple[str, int, int]], ops: Sequence[dict[str, object]]
) -> Trace:
    return make_trace(
        kernels=[
            {"start_ns": at, "dur_ns": dur, "name": name, "host_op": op, "core": "SM"}
            for at, (name, dur, op) in enumerate(names)
        ],
        host_ops=[{"start_ns": 0, "dur_ns": 1, **op} for op in ops],
    )


MM: dict[str, object] = {"name": "aten::mm", "input_shapes": "3,4;4,5", "input_dtypes": "float;float"}
NORM: dict[str, object] = {"name": "aten::native_layer_norm", "input_shapes": "2,10", "input_dtypes": "float"}


def test_several_kernels_of_an_operator_share_its_work_by_time(make_trace: Callable[..., Trace]) -> None:
    names = [
        ("sgemm_128", 30, 0), ("splitKreduce_kernel", 10, 0), ("direct_copy_kernel_cuda", 5, 0),
        ("vectorized_layer_norm_kernel", 3, 1), ("void other()", 1, 1), ("sgemm_128", 7, -1),
    ]  # fmt: skip
    trace = _gpu(make_trace, names, [MM, NORM])

    work = work_of(trace[KERNELS], trace[HOST_OPS])

    # 120 FLOPs by 30 : 10; the copy beside them computes nothing; 100 FLOPs of the norm by 3 : 1; no operator: unknown.
    np.testing.assert_allclose(work.flops, [90, 30, 0, 75, 25, NAN])
    np.testing.assert_allclose(work.bytes, [141, 47, NAN, 120, 40, NAN])
    assert work.how.to_list() == ["matmul", "matmul", None, "norm", "norm", None]
    assert work.dtype.to_list() == ["fp32", "fp32", None, "fp32", "fp32", None]


def test_an_operator_that_only_moves_keeps_its_bytes(make_trace: Callable[..., Trace]) -> None:
    op: dict[str, object] = {"name": "aten::copy_", "input_shapes": "2,10;2,10", "input_dtypes": "float;float"}
    trace = _gpu(make_trace, [("direct_copy_kernel_cuda", 4, 0), ("direct_copy_kernel_cuda", 0, 0)], [op])

    work = work_of(trace[KERNELS], trace[HOST_OPS])

    np.testing.assert_array_equal(work.flops, [0, 0])
    np.testing.assert_allclose(work.bytes, [160, 0])


@pytest.mark.parametrize(
    ("path", "flops", "size"),
    [
        ("kineto/h100/Falconsai_nsfw_image_detection__1016002.json.gz", 0.99, 0.97),
        ("kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", 0.99, 0.99),
        ("kineto/v100/resnet50_num_workers_0.json.gz", 0.94, 0.97),
        ("kineto/edge-cases/torch_compile_triton_mi300.json.gz", 0.99, 0.99),
    ],
)
def test_most_of_the_time_of_real_gpus_has_work(traces: Path, path: str, flops: float, size: float) -> None:
    trace = pipeline.load(traces / path).traces[0]
    duration = trace[KERNELS].ints("dur_ns")

    work = work_of(trace[KERNELS], trace[HOST_OPS])

    assert duration[~np.isnan(work.flops)].sum() / duration.sum() >= flops
    assert duration[~np.isnan(work.bytes)].sum() / duration.sum() >= size


def test_a_vision_transformer_against_its_architecture(traces: Path) -> None:
    # ViT-B/16 on 4 images of 224x224: 12 layers of width 768 with 197 tokens, and a pooler on the first of them.
    trace = pipeline.load(traces / "kineto/h100/Falconsai_nsfw_image_detection__1016002.json.gz").traces[0]
    tokens, width = 4 * 197, 768
    layers = 12 * (4 * 2 * tokens * width * width + 2 * 2 * tokens * width * 4 * width)
    attention = 12 * 2 * 2 * 4 * 12 * 197 * 197 * 64
    patches = 2 * (4 * 196 * width) * (3 * 16 * 16)
    pooler = 2 * 4 * width * width

    work = work_of(trace[KERNELS], trace[HOST_OPS])

    products = work.how.isin(["matmul", "attention", "conv"])
    assert work.flops[products].sum() == pytest.approx(layers + attention + patches + pooler, rel=1e-12)
