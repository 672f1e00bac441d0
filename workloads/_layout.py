"""How a job is cut over its ranks: the axes of the device mesh, and which products of them are valid.

Nothing here imports torch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._spec import at_least


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A group of settings (see `_spec.Workload`): ranks along each axis. What is left of the world is the data axis.

    The mesh is (pipeline, data, context, tensor), tensor innermost, so that its ranks are neighbours. Experts are cut
    over `expert_ranks` ranks of the data axis (and context axis), as in DeepSpeed-MoE and Megatron.
    """

    data_parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each rank of the data axis holds all weights; fsdp: FSDP2 shards weights, gradients and optimizer."""
    tensor_ranks: int = 1
    sequence_parallel: bool = False
    """Between the products of tensor parallelism, tokens are cut over the tensor axis."""
    pipeline_ranks: int = 1
    pipeline_schedule: Literal["1f1b", "interleaved"] = "1f1b"
    pipeline_stages_per_rank: int = 1
    """More than 1 only with the interleaved schedule."""
    context_ranks: int = 1
    expert_ranks: int = 1

    def __post_init__(self) -> None:
        at_least(self, 1, "tensor_ranks", "pipeline_ranks", "pipeline_stages_per_rank", "context_ranks", "expert_ranks")
        if self.sequence_parallel and self.tensor_ranks == 1:
            raise ValueError("sequence_parallel needs tensor_ranks of 2 or more")
        if (self.pipeline_stages_per_rank > 1) != (self.pipeline_schedule == "interleaved"):
            raise ValueError("pipeline_stages_per_rank is 2 or more with pipeline_schedule interleaved, 1 with 1f1b")


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Ranks along each axis of a job. A rank's number counts tensor fastest, then context, data, pipeline.

    `expert` ranks of the data and context axes together hold one copy of all experts.
    """

    pipeline: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.pipeline * self.data * self.context * self.tensor

    @property
    def replicas(self) -> int:
        """Ranks over which gradients of equal weights are averaged: data and context axis together."""
        return self.data * self.context

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Index of a rank along (pipeline, data, context, tensor)."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        pipeline, data = divmod(rest, self.data)
        return pipeline, data, context, tensor

    def groups(self, axis: Axis) -> list[list[int]]:
        """Every group of ranks that talk along an axis, each in the order of the axis.

        replica is the data and context axis together; expert the ranks that share out one copy of the experts, expert
        replica those that hold the same experts.
        """
        cube = [[[[((p * self.data + d) * self.context + c) * self.tensor + t for t in range(self.tensor)]
                  for c in range(self.context)] for d in range(self.data)] for p in range(self.pipeline)]  # fmt: skip
        stages, pairs = range(self.pipeline), range(self.tensor)
        if axis == "tensor":
            return [row for stage in cube for block in stage for row in block]
        if axis == "context":
            return [[row[t] for row in block] for stage in cube for block in stage for t in pairs]
        if axis == "data":
            return [[stage[d][c][t] for d in range(self.data)]
                    for stage in cube for c in range(self.context) for t in pairs]  # fmt: skip
        if axis == "pipeline":
            return [[cube[p][d][c][t] for p in stages]
                    for d in range(self.data) for c in range(self.context) for t in pairs]  # fmt: skip
        replicas = [[row[t] for block in cube[p] for row in block] for p in stages for t in pairs]
        if axis == "expert":
            return [group[start : start + self.expert] for group in replicas
                    for start in range(0, self.replicas, self.expert)]  # fmt: skip
        if axis == "expert replica":
            return [group[first :: self.expert] for group in replicas for first in range(self.expert)]
        return replicas


Axis = Literal["pipeline", "data", "context", "tensor", "replica", "expert", "expert replica"]


def stages_of(layout: Layout, layers: int) -> list[range]:
    """Layers of each stage of the pipeline, contiguous; where they do not divide, early stages have one more.

    Stage s lies on pipeline rank s modulo `pipeline_ranks`.
    """
    count = layout.pipeline_ranks * layout.pipeline_stages_per_rank
    size, more = divmod(layers, count)
    starts = [stage * size + min(stage, more) for stage in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(starts)]


def check(layout: Layout, shape: ModelShape, *, world_size: int, tokens: int, accumulate: int) -> Axes:
    """The axes of a job of `world_size` processes that trains `shape` on rows of `tokens` tokens.

    Raises:
        ValueError: the layout does not fit; the text names what does not and which choices do.
    """
    _check_model(layout, shape, tokens, accumulate)
    model_ranks = layout.pipeline_ranks * layout.context_ranks * layout.tensor_ranks
    # The data axis must hold enough ranks for the experts.
    data_step = layout.expert_ranks // math.gcd(layout.expert_ranks, layout.context_ranks)
    if world_size % (model_ranks * data_step):
        parts = {"pipeline": layout.pipeline_ranks, "context": layout.context_ranks, "tensor": layout.tensor_ranks}
        product = " x ".join(f"{name} {ranks}" for name, ranks in parts.items() if ranks > 1) or "no other axis"
        valid = ", ".join(str(model_ranks * data_step * times) for times in (1, 2, 3, 4))
        rest = f"leaves {world_size / model_ranks:.4g} data ranks"
        if world_size % model_ranks == 0:
            together = " with context_ranks" if layout.context_ranks > 1 else ""
            rest += f", which{together} do not share out expert_ranks {layout.expert_ranks}"
        raise ValueError(f"world of {world_size} = {product} {rest}; valid world sizes: {valid}, ...")
    return Axes(
        pipeline=layout.pipeline_ranks, data=world_size // model_ranks, context=layout.context_ranks,
        tensor=layout.tensor_ranks, expert=layout.expert_ranks,
    )  # fmt: skip


def _check_model(layout: Layout, shape: ModelShape, tokens: int, accumulate: int) -> None:
    tensor, context = layout.tensor_ranks, layout.context_ranks
    if tensor > 1 and shape.attention == "mla":
        raise ValueError("tensor_ranks cuts attention gqa only, not mla; valid here: 1")
    if tensor > 1 and shape.moe_layers and not layout.sequence_parallel:
        raise ValueError("experts with tensor_ranks need sequence_parallel: each tensor rank routes tokens of its own")
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads}
    cut = heads | {"vocabulary": shape.vocabulary}
    if shape.moe_layers < shape.layers:
        cut["hidden"] = shape.hidden
    _divides("tensor_ranks", tensor, cut)
    if shape.attention == "mla":
        del heads["kv_heads"]
    by = f" on each of {tensor} tensor ranks" if tensor > 1 else ""
    exchanged = {f"{name}{by}": count // tensor for name, count in heads.items()}
    _divides("context_ranks", context, exchanged | {"tokens": tokens})
    if layout.sequence_parallel:
        each = f"tokens{f' on each of {context} context ranks' if context > 1 else ''}"
        _divides("tensor_ranks with sequence_parallel", tensor, cut | {each: tokens // context})
    if layout.expert_ranks > 1 and not shape.moe_layers:
        raise ValueError(f"expert_ranks {layout.expert_ranks} needs a model with experts; valid here: 1")
    if shape.moe_layers:
        _divides("expert_ranks", layout.expert_ranks, {"experts": shape.experts})
    _check_pipeline(layout, shape, accumulate)


def _check_pipeline(layout: Layout, shape: ModelShape, accumulate: int) -> None:
    ranks, each = layout.pipeline_ranks, layout.pipeline_stages_per_rank
    if ranks == 1:
        if each > 1:
            raise ValueError("pipeline_schedule interleaved needs pipeline_ranks of 2 or more")
        return
    if shape.tied:
        raise ValueError(
            "a tied model has one table at both ends of the pipeline; set pipeline_ranks 1 or tied false"
        )
    if ranks * each > shape.layers:
        cut = f"pipeline_ranks {ranks}" + (f" x pipeline_stages_per_rank {each}" if each > 1 else "")
        raise ValueError(
            f"{cut} are more stages than the {shape.layers} layers; "
            f"valid pipeline_ranks here: {', '.join(map(str, range(1, shape.layers // each + 1))) or 1}"
        )
    if each > 1 and accumulate % ranks:
        valid = ", ".join(str(ranks * times) for times in (1, 2, 3))
        raise ValueError(
            f"accumulate {accumulate} does not divide into rounds of {ranks} micro-batches, which interleaved needs; "
            f"valid accumulate here: {valid}, ..."
        )


def _divides(setting: str, ranks: int, counts: dict[str, int]) -> None:
    """Raise a ValueError unless `ranks` divides each count."""
    for name, count in counts.items():
        if count % ranks:
            common = math.gcd(*counts.values())
            valid = ", ".join(str(ranks) for ranks in range(1, common + 1) if common % ranks == 0)
            raise ValueError(f"{setting} {ranks} does not divide {count} {name}; valid here: {valid}")
