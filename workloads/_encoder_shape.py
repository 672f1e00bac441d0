"""The shape of an encoder like BERT: the settings that decide its weights, and what follows from them.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascend_perf.workloads._spec import at_least


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """A group of settings (see `_spec.Workload`): sizes of a BERT-like encoder with a pooler; bias in every product."""

    layers: int = 2
    width: int = 128
    heads: int = 2
    hidden: int = 512
    """Inner width of the MLP."""
    vocabulary: int = 4096
    positions: int = 512
    """Rows of the table of learnt positions: the longest text."""
    segments: int = 2
    """Rows of the table of segments (HF: type_vocab_size)."""
    norm_epsilon: float = 1e-12

    def __post_init__(self) -> None:
        at_least(self, 1, "layers", "width", "heads", "hidden", "positions", "segments")
        at_least(self, 2, "vocabulary")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads")


def encoder_layer_parameters(shape: EncoderShape) -> int:
    """Weights of one layer: q, k, v, out, two of the MLP, all with bias, and two LayerNorms."""
    width, hidden = shape.width, shape.hidden
    return 4 * (width + 1) * width + (width + 1) * hidden + (hidden + 1) * width + 4 * width


def encoder_parameters(shape: EncoderShape, classes: int = 0) -> int:
    """All weights: the three tables with their norm, the layers, the pooler; with `classes` the linear head."""
    width = shape.width
    tables = (shape.vocabulary + shape.positions + shape.segments + 2) * width
    return tables + shape.layers * encoder_layer_parameters(shape) + (width + 1) * (width + classes)


def encoder_flops(shape: EncoderShape, tokens: int, classes: int = 0) -> int:
    """Work of one forward pass of one text of `tokens` tokens, padding counted; multiply and add are two.

    Pooler and head see one token of a text. Tables, norms, biases, GELU and softmax do not count.
    """
    width, hidden = shape.width, shape.hidden
    layer = 2 * tokens * (4 * width * width + 2 * width * hidden) + 4 * tokens * tokens * width
    return shape.layers * layer + 2 * width * (width + classes)


def encoder_train_flops(shape: EncoderShape, tokens: int, classes: int = 0) -> int:
    """Model work of forward and backward of one text: backward is two products for each of forward's."""
    return 3 * encoder_flops(shape, tokens, classes)
