"""The cost model reads the right work off the arguments of a call, and makes the right time of it.

Each class is compared with a count of its own: tiles dealt to cores one by one, pairs of attention counted by a mask,
sizes written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu._cost_native import Arg, Tensor
from tests.collectors.virtual_npu._cost import (
    BF16,
    BOOL,
    CLASSES,
    CORES,
    FLOAT,
    FLOAT16,
    FP32_PEAK,
    FREQUENCY,
    HBM,
    INT64,
    L2,
    LANES,
    PEAK,
    UINT8,
    native,
    tensor,
)

SIZES = st.integers(1, 700)
DTYPES = st.sampled_from([FLOAT, FLOAT16, BF16])
BYTES = {FLOAT: 4, FLOAT16: 2, BF16: 2, INT64: 8, BOOL: 1, UINT8: 1}


def up(size: int, block: int) -> int:
    return -(-size // block) * block


def busiest_core_ns(batch: int, m: int, n: int, k: int, dtype: int, efficiency: float) -> float:
    """Deals the tiles of every shape to the cores, one after the other, and takes the best shape."""
    rate = (FP32_PEAK if dtype == FLOAT else PEAK) / CORES
    depth = up(k, 8 if dtype == FLOAT else 16)
    times = []
    for rows, columns in ((128, 256), (256, 128), (128, 128), (64, 256)):
        tiles = [(b, i, j) for b in range(batch) for i in range(0, m, rows) for j in range(0, n, columns)]
        width, height = min(columns, up(n, 16)), min(rows, up(m, 16))
        pieces = max(min(CORES // len(tiles), depth / 512), 1.0) if len(tiles) <= CORES else 1.0
        compute = 2 * width * height * (depth / pieces) / rate
        load = (width + height) * (depth / pieces) * BYTES[dtype] / (64 * FREQUENCY)
        loads = [0] * CORES
        for at in range(len(tiles)):
            loads[at % CORES] += 1
        times.append(max(loads) * max(compute, load))
    return min(times) / efficiency * 1e9


@settings(max_examples=150, deadline=None)
@given(m=SIZES, n=SIZES, k=st.integers(1, 3000), dtype=DTYPES)
def test_a_product_takes_what_its_busiest_core_takes(m: int, n: int, k: int, dtype: int) -> None:
    args: list[Arg] = [tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(m, n, dtype=dtype), 0]
    cost = native().kernel("aclnnMatmul", args)
    assert cost.class_name == "matmul"
    assert cost.flops == 2 * m * n * k
    read, written = (m * k + k * n) * BYTES[dtype], m * n * BYTES[dtype]
    assert cost.bytes == read + written
    memory = (max(read - L2, 0) / 0.5 + min(read, L2) / 1.0 + written / 2.0) / HBM * 1e9
    assert cost.memory_ns == pytest.approx(memory, rel=1e-9)
    assert cost.cube_ns == pytest.approx(busiest_core_ns(1, m, n, k, dtype, 0.8), rel=1e-9)
    assert cost.ns == pytest.approx(100 + max(cost.cube_ns, memory), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 9), m=SIZES, n=SIZES, k=SIZES)
def test_a_batch_of_products_is_dealt_like_one(batch: int, m: int, n: int, k: int) -> None:
    a, b, c = (tensor(batch, *shape, dtype=BF16) for shape in ((m, k), (k, n), (m, n)))
    args: list[Arg] = [a, b, c, 0]
    cost = native().kernel("aclnnMatmul", args)
    assert cost.flops == 2 * batch * m * n * k
    assert cost.cube_ns == pytest.approx(busiest_core_ns(batch, m, n, k, BF16, 0.8), rel=1e-9)


def test_a_shared_operand_makes_one_large_product() -> None:
    args: list[Arg] = [tensor(3, 40, 64, dtype=BF16), tensor(64, 48, dtype=BF16), tensor(3, 40, 48, dtype=BF16), 0]
    _, work = native().work("aclnnMatmul", args)
    assert (work.batch, work.m, work.n, work.k) == (1, 120, 48, 64)


def test_the_bias_of_addmm_is_no_operand_of_its_product() -> None:
    # All square, so that bias and first operand would make a product too.
    square = tensor(64, 64, dtype=BF16)
    wide = tensor(64, 256, dtype=BF16)
    _, work = native().work("aclnnAddmm", [square, wide, tensor(256, 64, dtype=BF16), None, None, square, 0])
    assert (work.m, work.n, work.k) == (64, 64, 256)
    assert work.bytes == (64 * 64 * 2 + 2 * 64 * 256) * 2


def test_a_gradient_of_weights_reads_both_operands_across() -> None:
    tokens, width, out = 512, 256, 384
    x_transposed = tensor(width, tokens, dtype=BF16, stride=(1, width))
    weight_transposed = tensor(width, out, dtype=BF16, stride=(1, width))
    dy = tensor(tokens, out, dtype=BF16)
    across = native().kernel("aclnnMatmul", [x_transposed, dy, tensor(width, out, dtype=BF16), 0])
    assert native().work("aclnnMatmul", [x_transposed, dy, tensor(width, out, dtype=BF16), 0])[1].both_outer
    assert across.cube_ns == pytest.approx(busiest_core_ns(1, width, out, tokens, BF16, 0.5), rel=1e-9)
    forward: list[Arg] = [tensor(tokens, width, dtype=BF16), weight_transposed, dy, 0]
    assert not native().work("aclnnMatmul", forward)[1].both_outer
    backward: list[Arg] = [dy, tensor(out, width, dtype=BF16), tensor(tokens, width, dtype=BF16), 0]
    assert not native().work("aclnnMatmul", backward)[1].both_outer
    # Swapped dimensions are read as they are; nothing is copied first.
    assert native().work("aclnnMatmul", forward)[1].copied == 0


def test_an_operand_with_gaps_is_copied_first() -> None:
    gaps = tensor(64, 128, dtype=BF16, stride=(512, 1))
    _, work = native().work("aclnnMatmul", [gaps, tensor(128, 32, dtype=BF16), tensor(64, 32, dtype=BF16), 0])
    assert work.copied == 2 * 64 * 128 * 2


def test_weights_that_do_not_fit_leave_the_summed_dimension_of_the_first_operand() -> None:
    # Two 4-bit values in a byte: the second operand shows half of its columns.
    args: list[Arg] = [tensor(32, 128, dtype=BF16), tensor(128, 24, dtype=2), tensor(32, 48, dtype=BF16), 0]
    _, work = native().work("aclnnMatmul", args)
    assert (work.m, work.n, work.k) == (32, 48, 128)


@settings(max_examples=60, deadline=None)
@given(experts=st.integers(1, 8), tokens=st.integers(1, 40), k=st.integers(1, 64), n=st.integers(1, 64))
def test_products_of_experts_count_each_token_once(experts: int, tokens: int, k: int, n: int) -> None:
    x, y = tensor(tokens * experts, k, dtype=BF16), tensor(tokens * experts, n, dtype=BF16)
    stacked: list[Arg] = [[x], [tensor(experts, k, n, dtype=BF16)], None, None, [y]]
    listed: list[Arg] = [[x], [tensor(k, n, dtype=BF16)] * experts, None, None, [y]]
    for args in (stacked, listed):
        _, work = native().work("aclnnGroupedMatmulV5", args)
        assert work.flops == 2 * tokens * experts * k * n
        assert (work.batch, work.m, work.n, work.k) == (experts, tokens, n, k)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 4), inputs=st.integers(1, 40), outputs=st.integers(1, 40), side=st.integers(3, 20),
    taps=st.sampled_from([1, 3]), groups=st.sampled_from([1, 2]), dtype=DTYPES,
)  # fmt: skip
def test_convolutions(batch: int, inputs: int, outputs: int, side: int, taps: int, groups: int, dtype: int) -> None:
    inputs, outputs, out_side = inputs * groups, outputs * groups, side - taps + 1
    x, y = tensor(batch, inputs, side, side, dtype=dtype), tensor(batch, outputs, out_side, out_side, dtype=dtype)
    w = tensor(outputs, inputs // groups, taps, taps, dtype=dtype)
    one = 2 * batch * outputs * out_side**2 * (inputs // groups) * taps**2
    settings_of_it: list[Arg] = [(1, 1), (0, 0), (1, 1), 0, (0, 0), groups]
    _, work = native().work("aclnnConvolution", [x, w, None, *settings_of_it, y, 0])
    assert work.flops == one
    block = 8 if dtype == FLOAT else 16
    assert (work.m, work.n) == (batch * out_side**2, outputs)
    assert work.k == taps**2 * up(inputs // groups, block)
    mask: list[Arg] = [None, 0]
    both: list[Arg] = [y, x, w, (outputs,), *settings_of_it, *mask, x, w, None]
    _, work = native().work("aclnnConvolutionBackward", both)
    assert (work.flops, work.kernels) == (2 * one, 2)
    only_weight: list[Arg] = [y, x, w, (outputs,), *settings_of_it, *mask, None, w, None]
    if x.shape != w.shape:
        _, work = native().work("aclnnConvolutionBackward", only_weight)
        assert (work.flops, work.kernels) == (one, 1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, heads: int, layout: str, mask: Tensor | None = None, before: int = 2**31 - 1,
    after: int = 2**31 - 1, sparse: int = 0, bias: Tensor | None = None, dropout: Tensor | None = None,
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None, backward: bool = False,
) -> list[Arg]:  # fmt: skip
    statistic = tensor(1, 1, 1, 8)
    arrays: list[Arg] = [None, *(lengths or ())]
    middle: list[Arg] = [bias, dropout, None, mask]
    if backward:
        middle += [statistic, statistic, None, q]
    inputs: list[Arg] = [q, k, v, *([q] if backward else []), *middle, *arrays]
    outputs: list[Arg] = [q, k, v, None] if backward else [statistic, statistic, None, q]
    return [*inputs, 0.1, 1.0, before, after, heads, layout, 0, sparse, *outputs]


CAUSAL = tensor(2048, 2048, dtype=BOOL)


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 4), queries=st.integers(1, 60), keys=st.integers(1, 60),
    width=st.integers(1, 40),
)  # fmt: skip
def test_attention_counts_the_same_in_every_layout(batch: int, heads: int, queries: int, keys: int, width: int) -> None:
    shapes: dict[str, Callable[[int], tuple[int, ...]]] = {
        "BNSD": lambda s: (batch, heads, s, width), "BSND": lambda s: (batch, s, heads, width),
        "BSH": lambda s: (batch, s, heads * width), "SBH": lambda s: (s, batch, heads * width),
    }  # fmt: skip
    pairs = batch * heads * queries * keys
    for layout, shape in shapes.items():
        q, k = tensor(*shape(queries), dtype=BF16), tensor(*shape(keys), dtype=BF16)
        name, work = native().work("aclnnFlashAttentionScore", attention(q, k, k, heads=heads, layout=layout))
        assert (name, work.pairs, work.extras) == ("attention", pairs, 0)
        assert work.flops == 4 * pairs * width
        cost = native().kernel("aclnnFlashAttentionScore", attention(q, k, k, heads=heads, layout=layout))
        assert cost.vector_ns == pytest.approx(pairs * 20 / LANES * 1e9)
        assert cost.cube_ns == pytest.approx(4 * pairs * width / PEAK / 0.8 * 1e9)
        waiting = pairs * 4 / HBM * 1e9
        assert cost.memory_ns == pytest.approx(max(waiting, cost.bytes / 0.5 / HBM * 1e9))
        assert cost.ns == pytest.approx(
            100 + max(cost.cube_ns, cost.vector_ns + waiting, cost.bytes / 0.5 / HBM * 1e9)
        )
        back = attention(q, k, k, heads=heads, layout=layout, backward=True)
        assert native().work("aclnnFlashAttentionScoreGrad", back)[1].flops == 10 * pairs * width


@settings(max_examples=100, deadline=None)
@given(length=st.integers(1, 80), before=st.integers(0, 100), after=st.integers(0, 100))
def test_a_window_leaves_the_pairs_that_a_mask_leaves(length: int, before: int, after: int) -> None:
    q = tensor(1, 1, length, 16, dtype=BF16)
    mask = tensor(length, length, dtype=BOOL)
    args = attention(q, q, q, heads=1, layout="BNSD", mask=mask, before=before, after=after)
    row, column = np.mgrid[:length, :length]
    counted = int(((column >= row - before) & (column <= row + after)).sum())
    # Half of the square, not (S + 1) / 2, on each side that is cut.
    assert abs(native().work("aclnnFlashAttentionScore", args)[1].pairs - counted) <= length
    without = attention(q, q, q, heads=1, layout="BNSD", before=before, after=after)
    assert native().work("aclnnFlashAttentionScore", without)[1].pairs == length**2


def test_a_causal_mask_halves_the_work_as_the_analyzers_count_it() -> None:
    q = tensor(2, 4, 512, 64, dtype=BF16)
    args = attention(q, q, q, heads=4, layout="BNSD", mask=CAUSAL, sparse=2)
    assert native().work("aclnnFlashAttentionScore", args)[1].pairs == 2 * 4 * 512 * 512 / 2


def test_a_position_bias_and_a_dropout_mask_cost_more() -> None:
    q = tensor(1, 2, 64, 64, dtype=BF16)
    bias, dropout = tensor(1, 2, 64, 64, dtype=BF16), tensor(1024, dtype=UINT8)
    for backward, name in ((False, "aclnnFlashAttentionScore"), (True, "aclnnFlashAttentionScoreGrad")):
        args = attention(q, q, q, heads=2, layout="BNSD", bias=bias, dropout=dropout, backward=backward)
        assert native().work(name, args)[1].extras == 2
        cost = native().kernel(name, args)
        assert cost.vector_ns == pytest.approx(2 * 64 * 64 * (20 + 2 * 10) / LANES * 1e9)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_packed_sequences_meet_themselves_only(lengths: list[int]) -> None:
    q = tensor(sum(lengths), 3, 16, dtype=BF16)
    ends = tuple(np.cumsum(lengths).tolist())
    args = attention(q, q, q, heads=3, layout="TND", lengths=(ends, ends))
    assert native().work("aclnnFlashAttentionVarLenScore", args)[1].pairs == 3 * sum(n * n for n in lengths)


def test_decoding_reads_its_sequences_and_not_the_whole_pool() -> None:
    blocks, block, heads, key_heads, width = 100, 128, 8, 2, 64
    pool = tensor(blocks, block, key_heads * width, dtype=BF16)
    q = tensor(2, 1, heads * width, dtype=BF16)
    args: list[Arg] = [q, [pool], [pool], None, None, None, (300, 500), *[None] * 16, heads, 0.1, 2**31 - 1, 2**31 - 1,
                       "BSH", key_heads, 0, q, None]  # fmt: skip
    _, work = native().work("aclnnFusedInferAttentionScoreV2", args)
    assert work.pairs == heads * 800
    assert work.flops == 4 * heads * 800 * width
    assert work.bytes == 2 * (2 * heads * width * 2) + 800 * key_heads * width * 2 * 2


@settings(max_examples=80, deadline=None)
@given(shape=st.lists(st.integers(1, 300), min_size=0, max_size=4), dtype=DTYPES)
def test_one_pass_over_operands(shape: list[int], dtype: int) -> None:
    t = tensor(*shape, dtype=dtype)
    count = math.prod(shape)
    cost = native().kernel("aclnnAdd", [t, t, None, t])
    body = CLASSES["elementwise"]
    assert cost.bytes == 3 * count * BYTES[dtype]
    assert cost.flops == 3 * count
    in_l2 = min(cost.bytes, L2)
    assert cost.memory_ns == pytest.approx((in_l2 / 2.0 + (cost.bytes - in_l2) / 0.5) / HBM * 1e9)
    assert cost.vector_ns == pytest.approx(2 * count / LANES * 1e9)
    assert cost.fixed_ns == pytest.approx(body["fixed_ns"] + 50 * math.log2(max(count, 1)))
    assert cost.ns == pytest.approx(cost.fixed_ns + max(cost.memory_ns, cost.vector_ns))


def test_repeated_values_are_in_memory_once() -> None:
    row = tensor(512, 64, stride=(0, 1))
    cost = native().kernel("aclnnAdd", [tensor(512, 64), row, None, tensor(512, 64)])
    assert cost.bytes == (2 * 512 * 64 + 64) * 4
    assert native().work("aclnnAdd", [tensor(512, 64), row, None, tensor(512, 64)])[1].copied == 0


def test_an_operand_with_swapped_dimensions_is_copied_before_one_pass() -> None:
    swapped = tensor(64, 512, stride=(1, 64))
    plain = native().kernel("aclnnAdd", [tensor(64, 512)] * 2 + [None, tensor(64, 512)])
    other = native().kernel("aclnnAdd", [swapped, tensor(64, 512), None, tensor(64, 512)])
    assert other.fixed_ns == plain.fixed_ns + CLASSES["transpose"]["fixed_ns"]
    copy = 2 * 64 * 512 * 4 / 0.25 / HBM * 1e9
    assert other.memory_ns == pytest.approx(plain.memory_ns + copy)
    # One after the other, whatever binds: here the vector units.
    assert plain.vector_ns > plain.memory_ns
    assert other.ns == pytest.approx(plain.ns + CLASSES["transpose"]["fixed_ns"] + copy)


def test_what_is_changed_in_place_is_read_and_written() -> None:
    t = tensor(1000)
    assert native().kernel("aclnnInplaceAdd", [t, t, None]).bytes == 3 * 4000
    # Parameter, both moments: read and written; gradient read: seven times the parameters.
    assert native().kernel("aclnnApplyAdamWV2", [t, t, t, None, t, tensor(1), 0.1]).bytes == 7 * 4000 + 4
    assert native().kernel("aclnnInplaceZero", [t]).bytes == 4000 * 2


def test_lists_of_tensors_count_whole() -> None:
    pieces = [tensor(100), tensor(7), tensor(3, 3)]
    assert native().kernel("aclnnAdd", [pieces, pieces, None, pieces]).bytes == 3 * 4 * 116


def test_gathering_moves_what_is_asked_for() -> None:
    table, rows = tensor(1000, 64, dtype=BF16), tensor(2, 30, dtype=INT64)
    name, work = native().work("aclnnEmbedding", [table, rows, tensor(2, 30, 64, dtype=BF16)])
    assert (name, work.bytes, work.elements) == ("index", 2 * 60 * 64 * 2 + 60 * 8, 60)


def test_putting_by_index_leaves_the_rest_alone() -> None:
    target, at, values = tensor(1000, 64), tensor(30, dtype=INT64), tensor(30, 64)
    for name in ("aclnnIndexPutImpl", "aclnnInplaceScatter"):
        _, work = native().work(name, [target, [at], values, 0, 0])
        assert (work.bytes, work.elements) == (30 * 8 + 2 * 30 * 64 * 4, 30)
    # Out of place the target is copied.
    _, work = native().work("aclnnScatter", [target, 0, at, values, 0, target])
    assert (work.bytes, work.elements) == ((2 * 64_000 + 30 * 64) * 4 + 30 * 8, 30)


def test_the_gradient_of_an_embedding_clears_its_table() -> None:
    gradient, rows, table = tensor(60, 64), tensor(60, dtype=INT64), tensor(1000, 64)
    cost = native().kernel("aclnnEmbeddingDenseBackward", [gradient, rows, 1000, -1, 0, table])
    assert cost.bytes == (64_000 + 3 * 60 * 64) * 4 + 60 * 8
    assert cost.fixed_ns == 2 * CLASSES["index"]["fixed_ns"]


def test_a_copy_is_a_cast_or_a_transposition_or_a_copy() -> None:
    a, half = tensor(64, 32), tensor(64, 32, dtype=FLOAT16)
    assert native().kernel("aclnnInplaceCopy", [a, a]).class_name == "copy"
    assert native().kernel("aclnnInplaceCopy", [half, a]).class_name == "cast"
    assert native().kernel("aclnnInplaceCopy", [a, tensor(64, 32, stride=(1, 64))]).class_name == "transpose"
    assert native().kernel("aclnnInplaceCopy", [half, a]).bytes == 64 * 32 * 6


def test_an_engine_with_a_rate_of_its_own() -> None:
    cost = native().kernel("DSAGenBitMask", [tensor(1000, dtype=UINT8)])
    assert cost.ns == pytest.approx(1700 + 1000)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["aclnnAdd", "aclnnFoo", "aclnnInplaceZero", "aclnnAbs"]),
    small=st.integers(0, 5000), more=st.integers(0, 5_000_000),
)  # fmt: skip
def test_larger_operands_never_take_less(name: str, small: int, more: int) -> None:
    def ns(count: int) -> float:
        return native().kernel(name, [tensor(count), tensor(count)]).ns

    assert ns(small) <= ns(small + more)


@settings(max_examples=100, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, which=st.integers(0, 2), more=st.integers(1, 900))
def test_larger_products_never_take_less(m: int, n: int, k: int, which: int, more: int) -> None:
    def ns(m: int, n: int, k: int) -> float:
        args: list[Arg] = [tensor(m, k, dtype=BF16), tensor(k, n, dtype=BF16), tensor(m, n, dtype=BF16), 0]
        return native().kernel("aclnnMatmul", args).ns

    larger = [m, n, k]
    larger[which] += more
    assert ns(m, n, k) <= ns(*larger) * (1 + 1e-12)
