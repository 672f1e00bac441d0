"""Tensor and sequence parallelism of a decoder: weights cut over the tensor axis, and the collectives between them.

    x -> [enter: copy] -> q k v, gate up: columns cut -> core -> out, down: rows cut -> [leave: sum] -> x

With sequence parallelism x is cut by tokens outside the brackets: enter gathers, leave sums and scatters. Embedding and
output layer are cut by vocabulary, and the loss is computed over cut logits, which are never gathered. Own collectives
in place of DTensor: what is sent is exactly what `_traffic.py` counts, on gloo, nccl and hccl alike.

Source:
    Shoeybi et al., Megatron-LM, 2019; for sequence parallelism Korthikanti et al., Reducing Activation Recomputation in
    Large Transformer Models, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ascend_perf.workloads._collectives import all_gather_whole, reduce_scatter_part
from ascend_perf.workloads._decoder import Block, Decoder, SwiGLU
from ascend_perf.workloads._text_data import IGNORED

# B batch, T tokens, W width, N tokens of all rows, V vocabulary of this rank

@dataclass(frozen=True, kw_only=True)
class Cut:
    """Which part of a weight a rank holds: the `index`-th of `count` equal pieces along `axis`."""

    axis: int
    index: int
    count: int


class _Copy(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Equal on all ranks; each rank's gradient is a part of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _Sum(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Sum of what the ranks hold; the gradient is equal on all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherTokens(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """All tokens from those of each rank; the gradients of all ranks are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x_BTW: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x_BTW, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, ctx.group), None


class _ScatterTokens(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """This rank's tokens of the sum; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x_BTW: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x_BTW, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.group), None


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def _gathered(x_BTW: Tensor, group: dist.ProcessGroup) -> Tensor:
    ranks = dist.get_world_size(group)
    parts = x_BTW.new_empty((ranks, *x_BTW.shape))
    all_gather_whole(parts.view(-1, *x_BTW.shape[1:]), x_BTW.contiguous(), group)
    return parts.transpose(0, 1).flatten(1, 2)


def _scattered(x_BTW: Tensor, group: dist.ProcessGroup) -> Tensor:
    ranks = dist.get_world_size(group)
    parts = x_BTW.unflatten(1, (ranks, -1)).transpose(0, 1).contiguous()
    mine = torch.empty_like(parts[0])
    reduce_scatter_part(mine, parts.flatten(0, 1), group)
    return mine


class VocabularyEmbedding(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Rows of the embedding table that this rank holds; a token of another rank gives zero."""

    def __init__(self, weight: nn.Parameter, first: int) -> None:
        super().__init__()
        self.weight, self.first = weight, first

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """This rank's part of the sum over ranks."""
        row_BT = tokens_BT - self.first
        is_here_BT = (row_BT >= 0) & (row_BT < self.weight.shape[0])
        x_BTW = F.embedding(row_BT.where(is_here_BT, 0), self.weight)
        return x_BTW.masked_fill(~is_here_BT.unsqueeze(-1), 0.0)


class _VocabularyLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Cross entropy of logits whose vocabulary is cut: two all_reduce of one and two fp32 per token."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, group: dist.ProcessGroup) -> Tensor:
        first = dist.get_rank(group) * logits_NV.shape[1]
        logits32_NV = logits_NV.float()
        largest_N = logits32_NV.max(-1).values
        dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=group)
        shifted_NV = logits32_NV - largest_N.unsqueeze(-1)
        row_N = targets_N - first
        is_here_N = (row_N >= 0) & (row_N < logits_NV.shape[1])
        row_N = row_N.where(is_here_N, 0)
        exp_NV = shifted_NV.exp()
        target_N = shifted_NV.gather(-1, row_N.unsqueeze(-1)).squeeze(-1).where(is_here_N, 0.0)
        sums_2N = torch.stack((exp_NV.sum(-1), target_N))
        dist.all_reduce(sums_2N, group=group)
        counts_N = targets_N != IGNORED
        ctx.save_for_backward(exp_NV.div_(sums_2N[0].unsqueeze(-1)), row_N, is_here_N, counts_N)
        ctx.dtype = logits_NV.dtype
        return (sums_2N[0].log() - sums_2N[1]).where(counts_N, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        softmax_NV, row_N, is_here_N, counts_N = ctx.saved_tensors
        slope_NV = softmax_NV.scatter_add(-1, row_N.unsqueeze(-1), -is_here_N.float().unsqueeze(-1))
        return (slope_NV * (gradient * counts_N).unsqueeze(-1)).to(ctx.dtype), None, None


def vocabulary_loss(logits_NV: Tensor, targets_N: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Summed cross entropy in fp32, equal on all ranks of the group, of logits cut by vocabulary."""
    return _VocabularyLoss.apply(logits_NV, targets_N, group)


def cut_over_tensor_axis(model: Decoder, group: dist.ProcessGroup, *, sequence_parallel: bool) -> dict[str, Cut]:
    """Keep this rank's part of the weights of a model on the meta device, and put the collectives in their places.

    Returns:
        Name of each weight that is cut -> how. All others are whole on every rank of the group.
    """
    index, count = dist.get_rank(group), dist.get_world_size(group)
    enter, leave = (_GatherTokens, _ScatterTokens) if sequence_parallel else (_Copy, _Sum)
    cuts: dict[str, Cut] = {}

    def keep(path: str, axis: int) -> None:
        """Cut weight, and bias, of a linear layer: axis 0 cuts what it gives, axis 1 what it takes."""
        layer = model.get_submodule(path)
        names = ("weight", "bias") if axis == 0 else ("weight",)
        for name in names:
            whole = getattr(layer, name, None)
            if whole is None:
                continue
            size = list(whole.shape)
            size[axis] //= count
            setattr(layer, name, nn.Parameter(whole.new_empty(size)))
            cuts[f"{path}.{name}"] = Cut(axis=axis, index=index, count=count)

    def at_start(module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda _, given: (enter.apply(_as_product(given[0]), group), *given[1:]))

    def at_end(module: nn.Module) -> None:
        module.register_forward_hook(lambda _, given, made: leave.apply(made, group))

    for path, block in _blocks(model):
        columns, rows = ["attention.q", "attention.k", "attention.v"], ["attention.out"]
        at_start(block.attention)
        if isinstance(block.mlp, SwiGLU):
            columns, rows = [*columns, "mlp.gate", "mlp.up"], [*rows, "mlp.down"]
            at_start(block.mlp)
        for name in columns:
            keep(f"{path}.{name}", 0)
        for name in rows:
            keep(f"{path}.{name}", 1)
            at_end(block.get_submodule(name))
    if model.output is not None:
        keep("output", 0)
        at_start(model.output)
    if model.embedding is not None:
        keep("embedding", 0)
        weight = model.embedding.weight
        model.embedding = VocabularyEmbedding(weight, index * len(weight))
        at_end(model.embedding)
    model.tie_weights()
    return cuts


def needs_sum_over_tensor_axis(model: Decoder, cuts: dict[str, Cut], *, sequence_parallel: bool) -> list[str]:
    """Names of weights that are whole on every tensor rank but see only a part of the work there.

    Norms over the heads of a rank; with sequence parallelism all that works on this rank's tokens.
    """
    names = [name for name, _ in model.named_parameters() if name not in cuts]
    return [name for name in names if sequence_parallel or name.endswith(("q_norm.weight", "k_norm.weight"))]


def _as_product(x: Tensor) -> Tensor:
    """In the type to which autocast would turn it, before it is sent and not after."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _blocks(model: Decoder) -> Iterator[tuple[str, Block]]:
    for layer, block in model.blocks.items():
        yield f"blocks.{layer}", block
