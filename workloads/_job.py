"""A training job before it runs: everything that decides what a rank holds and sends. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ascend_perf.workloads._fused import FusedSettings, operators_in_training
from ascend_perf.workloads._layout import Axes, Layout, stages_of
from ascend_perf.workloads._model_shape import VALUE_BYTES, ModelShape
from ascend_perf.workloads._rank_weights import RankWeight
from ascend_perf.workloads._schedule import Action, interleaved, one_forward_one_backward
from ascend_perf.workloads._spec import NPU, Target
from ascend_perf.workloads._training import Training

Dtype = Literal["fp32", "bf16", "fp16"]
FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """Shape, layout, step, and the device that runs them."""

    shape: ModelShape
    layout: Layout
    training: Training
    axes: Axes
    dtype: Dtype
    """Of the products."""
    all_count: bool = True
    """No target is ever ignored; else their number is summed over the data axis."""
    target: Target = NPU
    operators: FusedSettings = field(default_factory=FusedSettings)

    @property
    def weight_bytes(self) -> int:
        """Of one value of a weight, and of its gradient."""
        return VALUE_BYTES[self.training.weights]

    @property
    def product_bytes(self) -> int:
        """Of one value that a product takes or gives."""
        return VALUE_BYTES[self.dtype]

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP2 shards anything."""
        return self.layout.data_parallel == "fsdp" and self.axes.replicas > 1

    @property
    def stream_bytes(self) -> int:
        """Of one value of the stream to which layers add: FSDP gathers weights in the type of the products."""
        return self.product_bytes if self.is_sharded else self.weight_bytes

    @property
    def reduced_bytes(self) -> int:
        """Of one value of a gradient as FSDP reduces it: fp32 where the weights are not in the type of the products."""
        return FP32_BYTES if self.product_bytes != self.weight_bytes else self.weight_bytes

    @property
    def row_tokens(self) -> int:
        """Tokens of a micro-batch on one context rank."""
        return self.training.batch * self.training.tokens // self.axes.context

    @cached_property
    def fused(self) -> frozenset[str]:
        """Operators of torch_npu that the step runs."""
        return operators_in_training(self.operators, self.target.kind)

    @property
    def is_packed(self) -> bool:
        """Whether torch_npu's AdamW keeps all weights, gradients and moments in one buffer each (`Fused.adamw`)."""
        return "adamw" in self.fused and self.axes.replicas == 1 and self.training.weights == "fp32"

    def actions(self, rank: int) -> list[Action]:
        """Passes of a step on a rank, in their order."""
        pipeline, slots = self.axes.place(rank)[0], self.layout.pipeline_stages_per_rank
        micro = self.training.accumulate
        if slots > 1:
            return interleaved(pipeline, self.axes.pipeline, slots, micro)
        return one_forward_one_backward(pipeline, self.axes.pipeline, micro)

    def own_stages(self, rank: int) -> range:
        """Stages of the pipeline that lie on a rank, by slot."""
        stages = len(stages_of(self.layout, self.shape.layers))
        return range(self.axes.place(rank)[0], stages, self.axes.pipeline)

    def held_values(self, rank: int, weight: RankWeight) -> int:
        """Values of a weight that the rank keeps: all, or its shard."""
        if not self.is_sharded:
            return weight.values
        _, data, context, _ = self.axes.place(rank)
        replica = data * self.axes.context + context
        if weight.is_shared_out:
            replica //= self.axes.expert
        return weight.shard_values(replica, weight.replicas(self.axes))
