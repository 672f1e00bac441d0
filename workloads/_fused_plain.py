"""What the fused operators of `_fused.py` compute, in plain torch, and the gradient that one of them lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

# B batch, T tokens, S keys, H heads, G key-value heads, D head width, E experts, N tokens of all sequences, K experts
# of a token, R = N x K rows, W width, O width of the result, Q groups of experts, V vocabulary


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) x weight over the last axis."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


def swiglu(gate: Tensor, up: Tensor | None) -> Tensor:
    """silu(gate) x up; both in one tensor, gate first, without `up`."""
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of channels (i, i + D/2)."""
    low, high = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos + torch.cat((-high, low), dim=-1) * sin


def masked_softmax(x: Tensor, masked: Tensor, scale: float) -> Tensor:
    """softmax(x x scale) where `masked` is False."""
    return torch.softmax((x * scale).masked_fill(masked, float("-inf")), dim=-1)


def attention(
    q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask_B1TS: Tensor | None, causal: bool, scale: float,
    ends: Sequence[int] | None, key_lengths: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention; see `Fused.attention`."""
    B, H, T, _ = q_BHTD.shape
    S = k_BGSD.shape[2]
    if mask_B1TS is None and ends is not None:
        mask_B1TS = packed_mask(B, T, ends, causal, q_BHTD.device)
    elif mask_B1TS is None and key_lengths is not None:
        mask_B1TS = length_mask(T, S, key_lengths, causal, q_BHTD.device)
    elif mask_B1TS is None and causal and 1 < T < S:
        mask_B1TS = length_mask(T, S, [S], causal, q_BHTD.device)
    shared = {"enable_gqa": True} if k_BGSD.shape[1] != H else {}  # torch 2.5
    return F.scaled_dot_product_attention(
        q_BHTD, k_BGSD, v_BGSD, attn_mask=mask_B1TS, is_causal=mask_B1TS is None and causal and T == S > 1,
        scale=scale, **shared,
    )  # fmt: skip


def packed_mask(rows: int, tokens: int, ends: Sequence[int], causal: bool, device: torch.device) -> Tensor:
    """B x 1 x T x T: True inside a text, of the texts that end at `ends` over all rows.

    Raises:
        ValueError: the ends do not grow up to the number of tokens, or a text goes over the end of a row.
    """
    grows = all(a < b for a, b in zip([0, *ends], ends, strict=False))
    if not grows or not ends or ends[-1] != rows * tokens or not set(ends) >= set(range(tokens, ends[-1] + 1, tokens)):
        raise ValueError(f"ends of packed texts must grow, each row of {tokens} tokens ending one, up to the last")
    place = torch.arange(rows * tokens, device=device)
    text_BT = torch.searchsorted(torch.tensor(ends, device=device), place, right=True).view(rows, tokens)
    same_BTT = text_BT[:, :, None] == text_BT[:, None, :]
    return (same_BTT.tril() if causal else same_BTT).unsqueeze(1)


def length_mask(tokens: int, keys: int, lengths: Sequence[int], causal: bool, device: torch.device) -> Tensor:
    """B x 1 x T x S: True for the first `lengths[b]` keys, of which the tokens are the last ones."""
    lengths_B111 = torch.tensor(lengths, device=device).view(-1, 1, 1, 1)
    key_S = torch.arange(keys, device=device)
    if not causal:
        return (key_S < lengths_B111).expand(-1, 1, tokens, keys)
    own_B1T1 = lengths_B111 - tokens + torch.arange(tokens, device=device).view(-1, 1)
    return key_S <= own_B1T1


def padded(x: Tensor, width: int) -> Tensor:
    """`x` with zeros behind its last axis, up to that width."""
    missing = width - x.shape[-1]
    return F.pad(x, (0, missing)) if missing > 0 else x


def permute(x_NW: Tensor, experts_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Rows sorted by expert, and where each (token, choice) went to."""
    order_R = sorted_order(experts_NK.flatten())
    return x_NW.index_select(0, order_R // experts_NK.shape[1]), sorted_order(order_R)


def sorted_order(number_R: Tensor) -> Tensor:
    """Where the smallest, the next ... of R whole numbers below R or 2^24 lie; equal ones in their order.

    An NPU sorts integers on its AI CPU, and fp32, which holds numbers up to 2^24 exactly, on the AI Cores.
    """
    if number_R.device.type == "npu" and len(number_R) <= 1 << 24:
        number_R = number_R.float()
    return torch.argsort(number_R, stable=True)


def unpermute(x_RW: Tensor, rows_R: Tensor, weights_NK: Tensor) -> Tensor:
    """Sum of the rows of each token by its weights."""
    x_NKW = x_RW.index_select(0, rows_R).unflatten(0, weights_NK.shape)
    return (x_NKW * weights_NK.unsqueeze(-1)).sum(1)


def gating(
    logits_NE: Tensor, k: int, score: Literal["softmax", "sigmoid"], bias_E: Tensor | None, groups: int,
    groups_kept: int, normalise: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Weights and numbers of the chosen experts; see `Fused.moe_gating`."""
    logits_NE = logits_NE.float()
    scores_NE = logits_NE.softmax(-1) if score == "softmax" else logits_NE.sigmoid()
    choice_NE = scores_NE.detach() if bias_E is None else scores_NE.detach() + bias_E
    if groups > 1:
        choice_NQE = choice_NE.unflatten(-1, (groups, -1))
        best = min(2, choice_NQE.shape[-1]) if score == "sigmoid" else 1
        group_NQ = choice_NQE.topk(best, dim=-1).values.sum(-1)
        kept_NQ = torch.zeros_like(group_NQ, dtype=torch.bool)
        kept_NQ = kept_NQ.scatter(-1, group_NQ.topk(groups_kept, dim=-1).indices, True)
        choice_NE = choice_NQE.masked_fill(~kept_NQ.unsqueeze(-1), float("-inf")).flatten(-2)
    experts_NK = choice_NE.topk(k, dim=-1).indices
    return scaled(scores_NE.gather(-1, experts_NK), normalise, scale), experts_NK


def scaled(weights_NK: Tensor, normalise: bool, scale: float) -> Tensor:
    """Weights that sum to `scale`, or that are multiplied by it."""
    if normalise:
        weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
    return weights_NK if scale == 1.0 else weights_NK * scale


def grouped_matmul(x_RW: Tensor, weight_EWO: Tensor, counts_E: Tensor) -> Tensor:
    """Rows times the matrix of their expert, one product per expert that has rows. Waits for the counts."""
    parts = x_RW.split(counts_E.tolist())
    return torch.cat([x @ weight for x, weight in zip(parts, weight_EWO.unbind(), strict=True)])


class GroupedMatmul(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked here
    """`npu_grouped_matmul`, which has no derivative, with the two grouped products that are its derivative.

    y = x W_e per group of rows: dx = dy W_e' is grouped over the same rows (group type 0), dW_e = x' dy sums over the
    rows of the group (group type 2, which cuts the summed axis).
    """

    @staticmethod
    def forward(ctx: Any, x_RW: Tensor, weight_EWO: Tensor, counts_E: Tensor, operator: Callable[..., Any]) -> Tensor:
        """Rows of the result, R x O."""
        ctx.save_for_backward(x_RW, weight_EWO, counts_E)
        ctx.operator = operator
        return grouped(operator, x_RW, weight_EWO, counts_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of rows and matrices."""
        x_RW, weight_EWO, counts_E = ctx.saved_tensors
        (y_RO,) = gradients
        dx_RW = dweight_EWO = None
        if ctx.needs_input_grad[0]:
            dx_RW = grouped(ctx.operator, y_RO, weight_EWO.transpose(1, 2), counts_E)
        if ctx.needs_input_grad[1]:
            dweight_EWO = ctx.operator(
                [x_RW.t()], [y_RO], group_list=counts_E, split_item=3, group_type=2, group_list_type=1
            )[0]
        return dx_RW, dweight_EWO, None, None


def grouped(operator: Callable[..., Any], x_RW: Tensor, weight_EWO: Tensor, counts_E: Tensor) -> Tensor:
    """One call of `npu_grouped_matmul` on rows in groups of `counts_E` (int64)."""
    return operator([x_RW], [weight_EWO], group_list=counts_E, split_item=2, group_type=0, group_list_type=1)[0]
