"""Collectives on one tensor under the names that the installed torch has: torch 2.13 renamed two of them."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

# N elements of the whole, M elements of one rank's part


def all_gather_whole(whole_N: Tensor, part_M: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Fill `whole_N` with the parts of all ranks of the group, in rank order."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(whole_N, part_M, group=group)


def reduce_scatter_part(part_M: Tensor, whole_N: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Fill `part_M` with this rank's part of the sum of `whole_N` over the group."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(part_M, whole_N, group=group)
