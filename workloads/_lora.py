"""LoRA: frozen matrices of a decoder with a trained product of two narrow ones beside each.

    y = W x + (alpha / rank) B (A x)        W: N x M frozen, A: rank x M, B: N x rank, zero at the start

Source:
    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from ascend_perf.workloads._decoder import Decoder

# M width in, N width out, R rank


class LoraLinear(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """A linear layer that stays as it is, and a trained correction of rank R.

    The narrow matrices are in fp32 whatever the type of the frozen one; their products run in the type of the input.
    """

    keeps_fp32 = ("lora_a", "lora_b")

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.lora_b = nn.Parameter(torch.empty(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """Result of the frozen layer and the correction."""
        narrow = F.linear(x, self.lora_a.to(x.dtype))
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(narrow, self.lora_b.to(narrow.dtype))

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def merged(self) -> Tensor:
        """The one matrix, in fp32, that does the same."""
        return self.weight.float() + self.scale * self.lora_b @ self.lora_a


def add_lora(model: Decoder, *, rank: int, alpha: float, targets: frozenset[str]) -> None:
    """Freeze a model and put a trained correction beside each linear layer of the blocks whose name is in `targets`."""
    for weight in model.parameters():
        weight.requires_grad_(False)
    for block in model.blocks.values():
        for part in (block.attention, block.mlp):
            for name, layer in list(part.named_children()):
                if name in targets and isinstance(layer, nn.Linear):
                    setattr(part, name, LoraLinear(layer, rank=rank, alpha=alpha))


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """Layers with a correction, by name."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLinear))


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not type-checked here
def merge(model: nn.Module) -> None:
    """Add each correction to its frozen matrix and remove it: the model computes the same with plain layers."""
    for name, layer in list(lora_layers(model)):
        path, _, last = name.rpartition(".")
        plain = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], bias=layer.bias is not None, device="meta")
        plain.weight = nn.Parameter(layer.merged().to(layer.weight.dtype), requires_grad=False)
        plain.bias = layer.bias
        setattr(model.get_submodule(path), last, plain)
