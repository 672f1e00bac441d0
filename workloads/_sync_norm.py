"""Batch norm over the pictures of all ranks.

Torch's own `SyncBatchNorm` runs on accelerators only; on a CPU the same sums go through gloo in the same collectives.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# B images, C channels, H height, W width, R ranks


def synchronised(model: nn.Module, kind: str) -> nn.Module:
    """The model with its batch norms replaced; the weights stay the same tensors."""
    if kind != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, SyncBatchNorm2d(child))
        else:
            synchronised(child, kind)
    return model


class SyncBatchNorm2d(nn.BatchNorm2d):  # type: ignore[misc]  # torch is not type-checked here
    """A batch norm in training whose mean and variance are those of all ranks."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Normalised input; running statistics move as those of one process with all pictures would."""
        if not self.training:
            return super().forward(x_BCHW)
        y_BCHW, mean_C, variance_C, count = _Normalise.apply(x_BCHW, self.weight, self.bias, self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased_C = variance_C * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean_C, self.momentum)
            self.running_var.lerp_(unbiased_C, self.momentum)
        return y_BCHW


class _Normalise(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """Forward gathers count, mean and variance of each rank; backward sums two sums over channels."""

    @staticmethod
    def forward(
        ctx: Any, x_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x32_BCHW = x_BCHW.float()
        variance_C, mean_C = torch.var_mean(x32_BCHW, dim=(0, 2, 3), correction=0)
        count = x_BCHW.numel() // x_BCHW.shape[1]
        own = torch.cat((mean_C, variance_C, mean_C.new_tensor([float(count)])))
        every = own.new_empty(dist.get_world_size() * len(own))
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name from torch 2.13
        gather(every, own)
        every_R = every.view(dist.get_world_size(), -1)
        means_RC, variances_RC = every_R[:, :-1].chunk(2, dim=1)
        counts_R1 = every_R[:, -1:]
        total = counts_R1.sum()
        mean_C = (means_RC * counts_R1).sum(0) / total
        # E[x^2] - E[x]^2 would lose digits; the spread of the means is added to the mean of the variances instead.
        variance_C = ((variances_RC + (means_RC - mean_C) ** 2) * counts_R1).sum(0) / total
        scale_C = torch.rsqrt(variance_C + epsilon)
        y_BCHW = (x32_BCHW - _wide(mean_C)) * _wide(scale_C * weight_C) + _wide(bias_C)
        ctx.save_for_backward(x_BCHW, weight_C, mean_C, scale_C, total)
        ctx.mark_non_differentiable(mean_C, variance_C, total)
        return y_BCHW.to(x_BCHW.dtype), mean_C, variance_C, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_BCHW, weight_C, mean_C, scale_C, total = ctx.saved_tensors
        dy_BCHW = gradients[0].float()
        normal_BCHW = (x_BCHW.float() - _wide(mean_C)) * _wide(scale_C)
        dbias_C, dweight_C = dy_BCHW.sum((0, 2, 3)), (dy_BCHW * normal_BCHW).sum((0, 2, 3))
        sums = torch.cat((dbias_C, dweight_C))
        dist.all_reduce(sums)
        mean_dy_C, mean_dyx_C = (sums / total).chunk(2)
        dx_BCHW = (dy_BCHW - _wide(mean_dy_C) - normal_BCHW * _wide(mean_dyx_C)) * _wide(scale_C * weight_C)
        # The weights' gradients stay those of this rank: they are averaged with all others.
        return dx_BCHW.to(x_BCHW.dtype), dweight_C, dbias_C, None


def _wide(x_C: Tensor) -> Tensor:
    return x_C[:, None, None]
