"""How a job is cut over its ranks: the axes of the device mesh, and which products of them are valid.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
