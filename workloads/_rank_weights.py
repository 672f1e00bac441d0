"""The weights that one rank of a layout holds: their names, sizes and kinds, before any model is built.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascend_perf.workloads._layout import Axes, Layout, stages_of
from ascend_perf.workloads._model_shape import ModelShape, has_experts

CUT_ROWS = ("attention.q.weight", "attention.k.weight", "attention.v.weight", "mlp.gate.weight", "mlp.up.weight")
CUT_BIASES = ("attention.q.bias", "attention.k.bias", "attention.v.bias")
CUT_COLUMNS = ("attention.out.weight", "mlp.down.weight")


@dataclass(frozen=True, kw_only=True)
class RankWeight:
    """One weight as a rank holds it, cut over the tensor axis, not yet sharded by FSDP."""

    name: str
    size: tuple[int, ...]
    layer: int | None
    """None: embedding, last norm and output layer."""
    stage: int
    is_partial: bool = False
    """Whole on every tensor rank, with a part of the gradient on each."""

    @property
    def values(self) -> int:
        """How many."""
        return math.prod(self.size)

    def padded_values(self, ranks: int) -> int:
        """Values when FSDP2 cuts the first axis into equal pieces over `ranks`, padding included."""
        return -(-self.size[0] // ranks) * ranks * math.prod(self.size[1:])

    def shard_values(self, rank: int, ranks: int) -> int:
        """Values on one of them: the last ones may have fewer rows, or none."""
        rows = -(-self.size[0] // ranks)
        return max(0, min(rows, self.size[0] - rank * rows)) * math.prod(self.size[1:])


def rank_weights(shape: ModelShape, layout: Layout, axes: Axes, pipeline_rank: int) -> list[RankWeight]:
    """Weights of the stages of a pipeline rank, in the order of the module."""
    stages = stages_of(layout, shape.layers)
    return [
        _cut(weight, layout, axes)
        for stage in range(pipeline_rank, len(stages), axes.pipeline)
        for weight in _stage_weights(shape, stages[stage], stage, len(stages))
    ]


def _stage_weights(shape: ModelShape, layers: range, stage: int, stages: int) -> Iterator[RankWeight]:
    table = (shape.vocabulary, shape.width)
    if stage == 0:
        yield RankWeight(name="embedding.weight", size=table, layer=None, stage=stage)
    for layer in layers:
        for name, size in _layer_weights(shape, layer):
            yield RankWeight(name=f"blocks.{layer}.{name}", size=size, layer=layer, stage=stage)
    if stage == stages - 1:
        yield RankWeight(name="norm.weight", size=(shape.width,), layer=None, stage=stage)
        if not shape.tied:
            yield RankWeight(name="output.weight", size=table, layer=None, stage=stage)


def _layer_weights(shape: ModelShape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attention_norm.weight", (shape.width,)
    if shape.attention == "mla" or has_experts(shape, layer):
        raise ValueError("weights of mla and of experts are not listed by rank yet")
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        yield f"attention.{name}.weight", (heads * shape.key_width, shape.width)
        if shape.qkv_bias:
            yield f"attention.{name}.bias", (heads * shape.key_width,)
    yield "attention.out.weight", (shape.width, shape.heads * shape.key_width)
    if shape.qk_norm:
        yield "attention.q_norm.weight", (shape.key_width,)
        yield "attention.k_norm.weight", (shape.key_width,)
    yield "mlp_norm.weight", (shape.width,)
    yield "mlp.gate.weight", (shape.hidden, shape.width)
    yield "mlp.up.weight", (shape.hidden, shape.width)
    yield "mlp.down.weight", (shape.width, shape.hidden)


def _cut(weight: RankWeight, layout: Layout, axes: Axes) -> RankWeight:
    if axes.tensor == 1:
        return weight
    if weight.name in ("embedding.weight", "output.weight") or weight.name.endswith(CUT_ROWS + CUT_BIASES):
        return replace(weight, size=(weight.size[0] // axes.tensor, *weight.size[1:]))
    if weight.name.endswith(CUT_COLUMNS):
        return replace(weight, size=(weight.size[0], weight.size[1] // axes.tensor))
    is_partial = layout.sequence_parallel or weight.name.endswith(("q_norm.weight", "k_norm.weight"))
    return replace(weight, is_partial=is_partial)
