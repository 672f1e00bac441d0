"""BERT with a linear head in torch: learnt positions, layers normalised after each half, a pooled first token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ascend_perf.workloads._encoder_shape import EncoderShape
from ascend_perf.workloads._fused import Fused

# B batch, T tokens, W width, H heads, D head width, K classes

INITIAL_STD = 0.02


class Embedding(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Sum of a token's, its position's and its segment's row, normalised."""

    def __init__(self, shape: EncoderShape, dropout: float, fused: Fused) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.positions, shape.width)
        self.segment = nn.Embedding(shape.segments, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.dropout, self.fused = nn.Dropout(dropout), fused

    def forward(self, tokens_BT: Tensor, segments_BT: Tensor) -> Tensor:
        """B x T x W."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTW = self.token(tokens_BT) + self.segment(segments_BT) + self.position(positions_T)
        return self.dropout(self.fused.layer_norm(x_BTW, self.norm.weight, self.norm.bias, self.norm.eps))


class Layer(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Attention, then the MLP; each is added to its input and the sum normalised."""

    def __init__(self, shape: EncoderShape, dropout: float, fused: Fused) -> None:
        super().__init__()
        self.heads, self.fused = shape.heads, fused
        self.q, self.k, self.v, self.out = (nn.Linear(shape.width, shape.width) for _ in range(4))
        self.attention_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.up, self.down = nn.Linear(shape.width, shape.hidden), nn.Linear(shape.hidden, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTW: Tensor, mask_B1TS: Tensor | None) -> Tensor:
        """Tokens after the layer."""
        B, T, W = x_BTW.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part(x_BTW).view(B, T, self.heads, W // self.heads).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        y_BHTD = self.fused.attention(q_BHTD, k_BHTD, v_BHTD, mask_B1TS=mask_B1TS, causal=False)
        y_BTW = self.dropout(self.out(y_BHTD.transpose(1, 2).reshape(B, T, W)))
        norm = self.attention_norm
        x_BTW = self.fused.add_layer_norm(y_BTW, x_BTW, norm.weight, norm.bias, norm.eps)
        y_BTW = self.dropout(self.down(self.fused.gelu(self.up(x_BTW))))
        norm = self.mlp_norm
        return self.fused.add_layer_norm(y_BTW, x_BTW, norm.weight, norm.bias, norm.eps)


class Bert(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Encoder, pooler and a linear head over `classes`.

    Dropout is on what each half of a layer adds and on the pooled token; attention weights have none, so that fused
    kernels, which keep no weights, can run.
    """

    def __init__(self, shape: EncoderShape, *, classes: int, dropout: float, fused: Fused) -> None:
        super().__init__()
        self.embedding = Embedding(shape, dropout, fused)
        self.layers = nn.ModuleList(Layer(shape, dropout, fused) for _ in range(shape.layers))
        self.pooler = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(shape.width, classes)
        self.whole_mask = fused.uses("attention") or fused.uses("infer_attention")
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=INITIAL_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens_BT: Tensor, segments_BT: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        """Logits B x K. `is_token_BT` is False where a text is padded; None: nowhere."""
        mask_B1TS = None
        if is_token_BT is not None:
            mask_B1TS = is_token_BT[:, None, None, :]
            if self.whole_mask:  # the operators of an NPU do not broadcast it
                mask_B1TS = mask_B1TS.expand(-1, 1, tokens_BT.shape[1], -1)
        x_BTW = self.embedding(tokens_BT, segments_BT)
        for layer in self.layers:
            x_BTW = layer(x_BTW, mask_B1TS)
        pooled_BW = torch.tanh(self.pooler(x_BTW[:, 0]))
        return self.classifier(self.dropout(pooled_BW))
