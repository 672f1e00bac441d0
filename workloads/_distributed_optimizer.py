"""The distributed optimizer (ZeRO stage 1): the ranks of the data axis share out the optimizer's state.

    gradients are averaged on all ranks -> each rank updates its own weights -> each rank broadcasts them
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from ascend_perf.workloads._rank_weights import owners


class Shares:
    """Which weights each rank updates, and how the others learn of it.

    Source:
        Rajbhandari et al., ZeRO, 2020, stage 1 (whole weights instead of equal pieces of a flat buffer).
    """

    def __init__(self, weights: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.group, self.rank = group, dist.get_rank(group)
        ranks = dist.get_world_size(group)
        chosen = owners([weight.numel() for weight in weights], ranks)
        self.parts = [
            [weight for weight, owner in zip(weights, chosen, strict=True) if owner == rank] for rank in range(ranks)
        ]
        self._mine = {id(weight) for weight in self.parts[self.rank]}

    def is_mine(self, weight: nn.Parameter) -> bool:
        """Whether this rank updates a weight."""
        return id(weight) in self._mine

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def exchange(self) -> None:
        """Give all ranks the updated weights: one broadcast from each rank that has some."""
        for rank, part in enumerate(self.parts):
            if not part:
                continue
            flat = torch.cat([weight.flatten() for weight in part])
            dist.broadcast(flat, dist.get_global_rank(self.group, rank), group=self.group)
            if rank == self.rank:
                continue
            for weight, values in zip(part, flat.split([weight.numel() for weight in part]), strict=True):
                weight.copy_(values.view_as(weight))
