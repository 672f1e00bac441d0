"""The decoder of llm-pretrain in plain torch: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# B batch, T tokens, W width, H heads, G key-value heads, D head width, K hidden, V vocabulary

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Scale to a root mean square of one, then by a learnt weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight_W = nn.Parameter(torch.ones(width))

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Normalised input; the mean is taken in fp32 whatever the type."""
        x32_BTW = x_BTW.float()
        scale_BT1 = torch.rsqrt(x32_BTW.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        return (x32_BTW * scale_BT1).to(x_BTW.dtype) * self.weight_W


def rotary_table(tokens: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, T x D, of the angle token x base^(-2 i / D) for each pair of channels (i, i + D/2)."""
    pair = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    angle_TP = torch.outer(torch.arange(tokens, device=device), ROPE_BASE ** (-pair / head_width))
    angle_TD = torch.cat((angle_TP, angle_TP), dim=-1)
    return angle_TD.cos(), angle_TD.sin()


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn each pair of channels by its angle."""
    low, high = x_BHTD.chunk(2, dim=-1)
    turned_BHTD = torch.cat((-high, low), dim=-1)
    return x_BHTD * cos_TD.to(x_BHTD.dtype) + turned_BHTD * sin_TD.to(x_BHTD.dtype)


class Attention(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Causal attention in which H query heads share G key-value heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTW: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Mixed values."""
        B, T, W = x_BTW.shape
        q_BHTD = self.q(x_BTW).view(B, T, self.heads, self.head_width).transpose(1, 2)
        k_BGTD = self.k(x_BTW).view(B, T, self.kv_heads, self.head_width).transpose(1, 2)
        v_BGTD = self.v(x_BTW).view(B, T, self.kv_heads, self.head_width).transpose(1, 2)
        q_BHTD = rotate(q_BHTD, cos_TD, sin_TD)
        k_BGTD = rotate(k_BGTD, cos_TD, sin_TD)
        # scaled_dot_product_attention(enable_gqa=True) would save these copies; it needs torch 2.5.
        k_BHTD = k_BGTD.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v_BHTD = v_BGTD.repeat_interleave(self.heads // self.kv_heads, dim=1)
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.out(y_BHTD.transpose(1, 2).reshape(B, T, W))


class SwiGLU(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Gated MLP: out(silu(gate(x)) x up(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Transformed tokens."""
        h_BTK = F.silu(self.gate(x_BTW)) * self.up(x_BTW)
        return self.down(h_BTK)


class Block(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Attention and MLP, each normalised before and added after."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp_norm = RMSNorm(width)
        self.mlp = SwiGLU(width, hidden)

    def forward(self, x_BTW: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Tokens after the block."""
        x_BTW = x_BTW + self.attention(self.attention_norm(x_BTW), cos_TD, sin_TD)
        return x_BTW + self.mlp(self.mlp_norm(x_BTW))


class Llama(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Embedding, blocks, norm, output layer (not tied to the embedding)."""

    def __init__(
        self, *, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocabulary: int, recompute: bool
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.head_width = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        for weight in self.parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits for the token after each position."""
        cos_TD, sin_TD = rotary_table(tokens_BT.shape[1], self.head_width, tokens_BT.device)
        x_BTW = self.embedding(tokens_BT)
        for block in self.blocks:
            if self.recompute:
                x_BTW = checkpoint(block, x_BTW, cos_TD, sin_TD, use_reentrant=False)
            else:
                x_BTW = block(x_BTW, cos_TD, sin_TD)
        logits_BTV = self.output(self.norm(x_BTW))
        return logits_BTV
