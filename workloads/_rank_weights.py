"""The weights that one rank of a layout holds: their names, sizes and kinds, before any model is built.

Nothing here imports torch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
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
    is_shared_out: bool = False
    """Of experts that are shared out over the expert axis."""

    def replicas(self, axes: Axes) -> int:
        """Ranks that hold the same, or with FSDP share it: what DDP and FSDP work over."""
        return axes.replicas // (axes.expert if self.is_shared_out else 1)

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
    yield from _latent_weights(shape) if shape.attention == "mla" else _attention_weights(shape)
    yield "mlp_norm.weight", (shape.width,)
    if has_experts(shape, layer):
        yield from _expert_weights(shape)
        return
    yield "mlp.gate.weight", (shape.hidden, shape.width)
    yield "mlp.up.weight", (shape.hidden, shape.width)
    yield "mlp.down.weight", (shape.width, shape.hidden)


def _attention_weights(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        yield f"attention.{name}.weight", (heads * shape.key_width, shape.width)
        if shape.qkv_bias:
            yield f"attention.{name}.bias", (heads * shape.key_width,)
    yield "attention.out.weight", (shape.width, shape.heads * shape.key_width)
    if shape.qk_norm:
        yield "attention.q_norm.weight", (shape.key_width,)
        yield "attention.k_norm.weight", (shape.key_width,)


def _latent_weights(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    query = shape.heads * shape.key_width
    if shape.q_rank is None:
        yield "attention.q.weight", (query, shape.width)
    else:
        yield "attention.q_down.weight", (shape.q_rank, shape.width)
        yield "attention.q_norm.weight", (shape.q_rank,)
        yield "attention.q_up.weight", (query, shape.q_rank)
    yield "attention.kv_down.weight", (shape.kv_rank + shape.rope_width, shape.width)
    yield "attention.kv_norm.weight", (shape.kv_rank,)
    yield "attention.kv_up.weight", (shape.heads * (shape.nope_width + shape.value_width), shape.kv_rank)
    yield "attention.out.weight", (shape.width, shape.heads * shape.value_width)


def _expert_weights(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "mlp.router.weight", (shape.experts, shape.width)
    inner = (shape.expert_hidden, shape.width)
    for name, size in (("gate", inner), ("up", inner), ("down", inner[::-1])):
        # Rows of all experts in one axis: FSDP cuts that one, and there are often more ranks than experts.
        yield f"mlp.experts.{name}", (shape.experts * size[0], size[1])
    if shape.shared_experts:
        shared = (shape.shared_experts * shape.expert_hidden, shape.width)
        for name, size in (("gate", shared), ("up", shared), ("down", shared[::-1])):
            yield f"mlp.shared.{name}.weight", size


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Rank of the distributed optimizer that updates each weight: the largest first, each to the one with least yet."""
    load = [(0, rank) for rank in range(ranks)]
    chosen = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        held, rank = heapq.heappop(load)
        chosen[place] = rank
        heapq.heappush(load, (held + sizes[place], rank))
    return chosen


def _cut(weight: RankWeight, layout: Layout, axes: Axes) -> RankWeight:
    if ".mlp.experts." in weight.name and axes.expert > 1:
        is_partial = layout.sequence_parallel
        size = (weight.size[0] // axes.expert, *weight.size[1:])
        return replace(weight, size=size, is_partial=is_partial, is_shared_out=True)
    if axes.tensor == 1:
        return weight
    if weight.name in ("embedding.weight", "output.weight") or weight.name.endswith(CUT_ROWS + CUT_BIASES):
        return replace(weight, size=(weight.size[0] // axes.tensor, *weight.size[1:]))
    if weight.name.endswith(CUT_COLUMNS):
        return replace(weight, size=(weight.size[0], weight.size[1] // axes.tensor))
    is_partial = layout.sequence_parallel or weight.name.endswith(("q_norm.weight", "k_norm.weight"))
    return replace(weight, is_partial=is_partial)
