"""How the next token is chosen: the likeliest, or one drawn after temperature, top-k and top-p."""

from __future__ import annotations

import torch
from torch import Tensor

# B rows, V vocabulary


def choose(
    logits_BV: Tensor, *, temperature_B: Tensor, top_k_B: Tensor, top_p_B: Tensor, draw_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The next token of each row, and its log probability before temperature, top-k and top-p.

    A row is drawn by inverting the cumulated probabilities, likeliest token first, at its own number `draw_B` in
    [0, 1): so it depends on no other row and on no generator of the device, and it can be part of a graph.

    Args:
        temperature_B: 0: the likeliest token.
        top_k_B: how many of the likeliest may be drawn; 0: all.
        top_p_B: the likeliest whose probabilities sum to this may be drawn; the first always.
    """
    logits_BV = logits_BV.float()
    is_greedy_B1 = (temperature_B <= 0)[:, None]
    # From the largest down: the smallest temperature gives -inf, never inf.
    heated_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / torch.where(is_greedy_B1, 1.0, temperature_B[:, None])
    sorted_BV, order_BV = torch.sort(heated_BV, dim=-1, descending=True, stable=True)
    probability_BV = torch.softmax(sorted_BV, dim=-1)
    rank_V = torch.arange(logits_BV.shape[-1], device=logits_BV.device)
    before_BV = probability_BV.cumsum(-1) - probability_BV
    is_kept_BV = (rank_V < torch.where(top_k_B > 0, top_k_B, len(rank_V))[:, None]) & (before_BV < top_p_B[:, None])
    is_kept_BV = (is_kept_BV & ~is_greedy_B1) | (rank_V == 0)
    cumulated_BV = torch.where(is_kept_BV, probability_BV, 0.0).cumsum(-1)
    passed_BV = cumulated_BV <= draw_B[:, None] * cumulated_BV[:, -1:]
    place_B1 = torch.minimum(passed_BV.sum(-1, keepdim=True), is_kept_BV.sum(-1, keepdim=True) - 1)
    token_B1 = order_BV.gather(1, place_B1)
    return token_B1[:, 0], torch.log_softmax(logits_BV, dim=-1).gather(1, token_B1)[:, 0]


def likeliest(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The greedy case of `choose`, without the sort."""
    best_B1 = logits_BV.argmax(dim=-1, keepdim=True)
    return best_B1[:, 0], torch.log_softmax(logits_BV.float(), dim=-1).gather(1, best_B1)[:, 0]
