"""Memory of a BERT classifier by formula. Imports no torch."""

from __future__ import annotations

from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_parameters


def tensor_sizes(shape: EncoderShape, classes: int) -> list[int]:
    """Values of each trained tensor, in the order in which `_bert.Bert` registers them."""
    width, hidden = shape.width, shape.hidden
    norm = [width, width]
    tables = [shape.vocabulary * width, shape.positions * width, shape.segments * width]
    attention = [width * width, width] * 4
    mlp = [hidden * width, hidden, width * hidden, width]
    return [
        *tables, *norm, *(attention + norm + mlp + norm) * shape.layers, width * width, width, classes * width, classes
    ]  # fmt: skip


def saved_bytes(
    shape: EncoderShape, *, classes: int, batch: int, tokens: int, bytes_per_value: int, dropout: bool
) -> int:  # fmt: skip
    """Bytes that forward keeps for backward, with attention that keeps no weights (its row sums only).

    In fp32, per token and layer: 8 widths (the layer's input, q, k, v, attended values, the sums before both norms,
    the first norm's output), 2 inner widths (before and after GELU), two means and deviations, a row sum per head.
    Under autocast the norms stay in fp32, and q, k and v each keep a copy of the input in 2 bytes: 8 widths in 2 bytes
    and the 2 sums in 4. Dropout keeps a mask of one byte per value, as accelerators do (a CPU keeps 4).
    """
    rows, width = batch * tokens, shape.width
    statistics = 2 * 4 * rows
    if bytes_per_value == 4:
        layer = rows * (8 * width + 2 * shape.hidden) * 4
        outside = rows * 2 * width * 4  # sum before the first norm, last layer's output
        cast = 0
    else:
        layer = rows * ((8 * width + 2 * shape.hidden) * 2 + 2 * width * 4)
        outside = rows * width * 4
        products = (4 * width * width + 2 * width * shape.hidden) * shape.layers + width * (width + classes)
        cast = 2 * products
    layer += 2 * statistics + 4 * rows * shape.heads
    if dropout:
        layer += 2 * rows * width
        outside += rows * width + batch * width
    indices = 8 * (2 * rows + tokens)
    pooled = batch * width * bytes_per_value + 4 * batch * classes
    return shape.layers * layer + outside + statistics + indices + pooled + cast


def inference_bytes(shape: EncoderShape, *, batch: int, tokens: int, bytes_per_value: int) -> int:
    """Most bytes of activations alive at once without gradients: in the MLP (input, before and after GELU), or while
    attention runs (the layer's input, q, k, v and the result)."""
    rows = batch * tokens
    return rows * max(shape.width + 2 * shape.hidden, 5 * shape.width) * bytes_per_value


def weight_bytes(shape: EncoderShape, classes: int, bytes_per_value: int = 4) -> int:
    """Weights with the head."""
    return encoder_parameters(shape, classes) * bytes_per_value
