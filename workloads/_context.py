"""Context parallelism: each rank holds a contiguous part of the tokens of every row.

    q k v: part of the tokens, all heads -> all_to_all -> all tokens, part of the heads -> core -> all_to_all back

Ulysses' way: the core sees whole rows, so that any mask and any kernel works, all ranks do equal work, and the result
is exact. The price is that the heads must divide over the ranks. Only attention looks at other tokens; positions are
given with the tokens, and the loss is a sum over them.

Source:
    Jacobs et al., DeepSpeed Ulysses, 2023. The algorithm that MindSpeed takes unless told otherwise
    (`--context-parallel-algo ulysses_cp_algo`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ascend_perf.workloads._decoder import Core, attentions

# B batch, H heads, T tokens, D head width; C context ranks


class _Exchange(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """All heads of this rank's tokens -> this rank's heads of all tokens (`to_heads`), or back."""

    @staticmethod
    def forward(ctx: Any, x_BHTD: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return _exchanged(x_BHTD, group, to_heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(gradient, ctx.group, not ctx.to_heads), None, None


def _exchanged(x_BHTD: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
    cut, joined = (1, 2) if to_heads else (2, 1)
    send = x_BHTD.unflatten(cut, (dist.get_world_size(group), -1)).movedim(cut, 0).contiguous()
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.movedim(0, joined).flatten(joined, joined + 1)


class ContextCore:
    """The core of attention (`_decoder.Core`) over tokens that are cut over the ranks of a group.

    `mask_B1TS` is that of the whole row.
    """

    def __init__(self, core: Core, group: dist.ProcessGroup) -> None:
        self.core, self.group = core, group

    def __call__(self, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, **known: Any) -> Tensor:
        """Mixed values of this rank's tokens, all heads."""
        whole = (_Exchange.apply(x, self.group, True) for x in (q_BHTD, k_BGTD, v_BGTD))
        return _Exchange.apply(self.core(*whole, **known), self.group, False)


def cut_over_context_axis(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Let every attention of the model look over the tokens of all ranks of the group."""
    for attention in attentions(model):
        attention.core = ContextCore(attention.core, group)


def own_tokens(x_BT: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's part of every row; None: the whole."""
    if group is None:
        return x_BT
    # A copy: what is kept for the backward pass shall not hold the whole row.
    return x_BT.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()
