"""What LoRA adds to a decoder's shape: its weights and its work, by formula. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ascend_perf.workloads._model_shape import ModelShape, forward_flops, matmul_parameters, recomputed_flops

TARGETS: Final = ("q", "k", "v", "out", "gate", "up", "down")
"""Linear layers of a dense block that may get a correction."""


def targets_of(text: str) -> frozenset[str]:
    """Names of a text such as `q,v`.

    Raises:
        ValueError: it is empty or names no linear layer.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TARGETS]
    if unknown or not names:
        raise ValueError(f"lora_targets must name some of {', '.join(TARGETS)}, got {text!r}")
    return frozenset(names)


def layer_widths(shape: ModelShape) -> Mapping[str, tuple[int, int]]:
    """Width in and out of each linear layer of a dense block."""
    query, key = shape.heads * shape.key_width, shape.kv_heads * shape.key_width
    return {
        "q": (shape.width, query), "k": (shape.width, key), "v": (shape.width, key), "out": (query, shape.width),
        "gate": (shape.width, shape.hidden), "up": (shape.width, shape.hidden), "down": (shape.hidden, shape.width),
    }  # fmt: skip


def lora_parameters(shape: ModelShape, rank: int, targets: frozenset[str]) -> int:
    """Trained weights: rank x (in + out) for each target of each layer."""
    widths = layer_widths(shape)
    return shape.layers * rank * sum(sum(widths[name]) for name in targets)


def lora_flops(shape: ModelShape, tokens: int, rank: int, targets: frozenset[str]) -> int:
    """Work of forward and backward of one sequence, multiply and add counted as two.

    With N frozen weights in products, n trained ones and A for attention's two products, per token: forward
    2 N + 2 n + A, backward 2 N + 4 n + 2 A. No gradient is made for a frozen matrix, so its backward pass is one
    product and not two. Nothing before the first layer is trained: gradients of the input of its q, k and v are not
    needed and not counted. Where none of these three has a correction, still more of that layer is not needed: an upper
    bound.
    """
    n = lora_parameters(shape, rank, targets)
    attention = forward_flops(shape, tokens, tokens) - 2 * matmul_parameters(shape) * tokens
    widths = layer_widths(shape)
    entry = sum(widths[name][0] * (widths[name][1] + (rank if name in targets else 0)) for name in ("q", "k", "v"))
    return (4 * matmul_parameters(shape) + 6 * n - 2 * entry) * tokens + 3 * attention


def lora_recomputed_flops(shape: ModelShape, tokens: int, rank: int, targets: frozenset[str], recompute: str) -> int:
    """Work that the backward pass of one sequence does again (see `_model_shape.recomputed_flops`)."""
    if recompute != "full":
        return recomputed_flops(shape, tokens, "selective" if recompute == "selective" else "none")
    again = recomputed_flops(shape, tokens, "full") + 2 * lora_parameters(shape, rank, targets) * tokens
    if "down" not in targets:
        return again
    # The frozen product comes before the last one that is kept for, B's of the correction, which is not done again.
    return again + 2 * shape.layers * (shape.width * shape.hidden - rank * shape.width) * tokens
