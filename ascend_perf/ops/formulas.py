"""How FLOPs and bytes are derived, by kind of kernel. A multiply-add counts as two.

Bytes count every operand once (compulsory traffic): the memory moves at least as much. FLOPs of products are exact;
those of the vector kinds count the operations of the textbook formula, and where only one per element is counted the
figure is a lower bound.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ascend_perf.ops.shapes import Shape


class Formula(NamedTuple):
    """How both figures of a kind follow from the shapes, as reports show it."""

    flops: str
    bytes: str
    is_bound: bool
    """Whether the FLOPs are a lower bound."""


class Amount(NamedTuple):
    """Work of one operator: FLOPs and bytes, NaN where unknown, and the key of the formula, empty where none holds."""

    flops: float = math.nan
    bytes: float = math.nan
    how: str = ""


NOTHING: Final = Amount()

FORMULAS: Final[dict[str, Formula]] = {
    "matmul": Formula("2·M·N·K", "|A| + |B| + |C|", False),
    "batched-matmul": Formula("2·B·M·N·K", "|A| + |B| + |C|", False),
    "grouped-matmul": Formula("2·ΣM_e·N·K", "|X| + |W of all experts| + |Y|", False),
    "conv": Formula("2·|Y|·C_in/g·kH·kW", "|X| + |W| + |Y|", False),
    "conv-backward": Formula("2·|dY|·C_in/g·kH·kW per gradient", "operands + gradients", False),
    "attention": Formula("4·B·H·Sq·Sk·D", "|Q| + |K| + |V| + |O|", False),
    "attention-causal": Formula("4·B·H·Sq·Sk·D / 2", "|Q| + |K| + |V| + |O|", False),
    "attention-packed": Formula("4·H·D·T² / B (/ 2 if causal)", "|Q| + |K| + |V| + |O|", True),
    "attention-backward": Formula("10·B·H·Sq·Sk·D", "|dO| + |Q| + |K| + |V| + |O| + |dQ| + |dK| + |dV|", False),
    "attention-backward-causal": Formula(
        "10·B·H·Sq·Sk·D / 2", "|dO| + |Q| + |K| + |V| + |O| + |dQ| + |dK| + |dV|", False
    ),
    "attention-backward-packed": Formula(
        "10·H·D·T² / B (/ 2 if causal)", "|dO| + |Q| + |K| + |V| + |O| + |dQ| + |dK| + |dV|", True
    ),
    "norm": Formula("5·|X|", "|X| + |Y| + parameters", False),
    "norm-backward": Formula("10·|X|", "|dY| + |X| + |dX| + parameters", False),
    "softmax": Formula("5·|X|", "|X| + |Y|", False),
    "softmax-backward": Formula("4·|X|", "|dY| + |Y| + |dX|", False),
    "elementwise": Formula("1·|Y|", "inputs + outputs", True),
    "fused-elementwise": Formula("1·|largest operand|", "inputs + outputs, each once", True),
    "rope": Formula("3·|X|", "inputs + outputs", False),
    "reduction": Formula("1·|X|", "|X| + |Y|", True),
    "pooling": Formula("1·|X|", "|X| + |Y|", True),
    "loss": Formula("1·|X|", "inputs + outputs", True),
    "adam": Formula("14·|parameters|", "7·|parameters|: read p, g, m, v; write p, m, v", False),
    "adamw": Formula("16·|parameters|", "7·|parameters|: read p, g, m, v; write p, m, v", False),
    "momentum": Formula("4·|parameters|", "5·|parameters|: read p, g, m; write p, m", False),
    "move": Formula("0", "inputs + outputs", False),
    "gather": Formula("0", "2·|Y| + indices", False),
    "fill": Formula("0", "|Y|", False),
}
"""By key. |X| is the number of elements for FLOPs, and the size in bytes for bytes.

Sources: matrix products and convolutions by definition; attention: FlashAttention-2, 4.1 (backward 2.5 times forward);
packed sequences: the sum of squares of B lengths that add up to T is at least T²/B. Norm: mean or mean square,
difference, scale, two for the affine part; softmax: maximum, difference, exponential, sum, quotient; their backward
passes by the same count. Adam: m 3, v 4, both corrections 2, root and epsilon 2, quotient 1, step 2; AdamW: decay 2
more; momentum: 2 for the buffer, 2 for the step.
"""


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


BACKWARD_PRODUCTS_RATIO: Final = 2.5
"""Products of the backward pass of attention against the forward pass: five against two. Source: as above."""


def attention(
    *, batch: int, heads: int, queries: int, keys: int, width: int, causal: bool, backward: bool, size: float
) -> Amount:
    """Work of a fused attention kernel whose sequences have equal lengths."""
    flops = attention_flops(batch, heads, queries, keys, width, causal=causal)
    how = "attention" + ("-backward" if backward else "") + ("-causal" if causal else "")
    return Amount(flops * (BACKWARD_PRODUCTS_RATIO if backward else 1.0), size, how)


def packed_attention(
    *, tokens: int, sequences: int, heads: int, width: int, causal: bool, backward: bool, size: float
) -> Amount:
    """The least work of self-attention over packed sequences whose single lengths are not known."""
    flops = attention_flops(1, heads, tokens, tokens, width, causal=causal) / sequences
    how = "attention" + ("-backward" if backward else "") + "-packed"
    return Amount(flops * (BACKWARD_PRODUCTS_RATIO if backward else 1.0), size, how)


def per_element(key: str) -> int:
    """FLOPs per element of a kind of vector kernel."""
    return _PER_ELEMENT[key]


_PER_ELEMENT: Final = {
    "norm": 5, "norm-backward": 10, "softmax": 5, "softmax-backward": 4, "elementwise": 1, "fused-elementwise": 1,
    "rope": 3, "reduction": 1, "pooling": 1, "loss": 1, "adam": 14, "adamw": 16, "momentum": 4, "move": 0,
    "gather": 0, "fill": 0,
}  # fmt: skip
