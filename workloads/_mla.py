"""Multi-head latent attention (MLA): keys and values come from one narrow vector of a token, which a cache keeps.

    x -> q (or q_down -> norm -> q_up) -------------------> q: part without position | turned part
    x -> kv_down -> latent -> norm -> kv_up --------------> k without position, v
                 -> one turned key, shared by all heads --> k: part without position | turned part

Training and long prompts expand latents to keys and values of all heads. Where few tokens look at a cache, `kv_up` is
moved to the other side of both products of attention (absorbed): then the latents themselves are key and value, of one
head that all share, and nothing is expanded.

Source:
    DeepSeek-V2, 2024, section 2.1 and appendix C. Pairs of channels turn as (i, i + D/2), as everywhere here:
    DeepSeek's (2 i, 2 i + 1) are the same up to the order of rows in the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ascend_perf.workloads._decoder import Cache, Core, RMSNorm, recomputed
from ascend_perf.workloads._model_shape import ModelShape

if TYPE_CHECKING:
    from ascend_perf.workloads._fused import Fused

# B batch, T tokens, S keys, W width, H heads, D width of a head's query and key, N of its part without position, R of
# its turned part, V width of a head's value, C width of the latent


class LatentAttention(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Causal multi-head latent attention; `core` and `recompute_core` as in `_decoder.Attention`.

    A cache gets the normalised latent and the turned shared key: C + R values of a token.
    """

    def __init__(self, shape: ModelShape, *, layer: int, fused: Fused, recompute_core: bool = False) -> None:
        super().__init__()
        self.layer, self.fused = layer, fused
        self.heads, self.widths = shape.heads, (shape.nope_width, shape.rope_width)
        self.kv_widths, self.latent = (shape.nope_width, shape.value_width), shape.kv_rank
        self.core: Core = fused.attention
        self.recompute_core = recompute_core
        q_width = shape.heads * shape.key_width
        if shape.q_rank is None:
            self.q = nn.Linear(shape.width, q_width, bias=False)
        else:
            self.q_down = nn.Linear(shape.width, shape.q_rank, bias=False)
            self.q_norm = RMSNorm(shape.q_rank, shape.norm_epsilon, fused)
            self.q_up = nn.Linear(shape.q_rank, q_width, bias=False)
        self.is_compressed = shape.q_rank is not None
        self.kv_down = nn.Linear(shape.width, shape.kv_rank + shape.rope_width, bias=False)
        self.kv_norm = RMSNorm(shape.kv_rank, shape.norm_epsilon, fused)
        self.kv_up = nn.Linear(shape.kv_rank, shape.heads * sum(self.kv_widths), bias=False)
        self.out = nn.Linear(shape.heads * shape.value_width, shape.width, bias=False)

    def forward(
        self, x_BTW: Tensor, cos_B1TR: Tensor, sin_B1TR: Tensor, mask_B1TS: Tensor | None = None,
        cache: Cache | None = None, ends: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Mixed values; the arguments are those of `Decoder.forward`."""
        q_BTX = self.q_up(self.q_norm(self.q_down(x_BTW))) if self.is_compressed else self.q(x_BTW)
        q_BHTN, q_BHTR = q_BTX.unflatten(-1, (self.heads, -1)).transpose(1, 2).split(self.widths, dim=-1)
        q_BHTR = self.fused.rotary(q_BHTR, cos_B1TR, sin_B1TR)
        latent_BTC, key_BTR = self.kv_down(x_BTW).split((self.latent, self.widths[1]), dim=-1)
        latent_B1SC = self.kv_norm(latent_BTC).unsqueeze(1)
        key_B1SR = self.fused.rotary(key_BTR.unsqueeze(1), cos_B1TR, sin_B1TR)
        if cache is not None:
            latent_B1SC, key_B1SR = cache.update(self.layer, latent_B1SC, key_B1SR)
            if self._absorbs(q_BHTN.shape[2]):
                y_BHTV = self._absorbed(q_BHTN, q_BHTR, latent_B1SC, key_B1SR, mask_B1TS)
                return self.out(y_BHTV.transpose(1, 2).flatten(2))
        kv_BHSX = self.kv_up(latent_B1SC.squeeze(1)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_BHSN, v_BHSV = kv_BHSX.split(self.kv_widths, dim=-1)
        q_BHTD = torch.cat((q_BHTN, q_BHTR), dim=-1)
        k_BHSD = torch.cat((k_BHSN, key_B1SR.expand(-1, self.heads, -1, -1)), dim=-1)
        core = recomputed(self.core) if self.recompute_core and torch.is_grad_enabled() else self.core
        y_BHTV = core(q_BHTD, k_BHSD, v_BHSV, mask_B1TS=mask_B1TS, ends=ends)
        return self.out(y_BHTV.transpose(1, 2).flatten(2))

    def _absorbs(self, tokens: int) -> bool:
        """Whether comparing latents costs less than expanding them, for each of the S keys."""
        (nope, rope), (_, value), latent = self.widths, self.kv_widths, self.latent
        wider = (2 * latent + rope) - (nope + rope + value)
        return tokens * wider < latent * (nope + value)

    def _absorbed(
        self, q_BHTN: Tensor, q_BHTR: Tensor, latent_B1SC: Tensor, key_B1SR: Tensor, mask_B1TS: Tensor | None
    ) -> Tensor:
        """(q U_k) latent' is q (latent U_k')', and (p latent) U_v is p (latent U_v): y_BHTV."""
        weight_HXC = self.kv_up.weight.to(q_BHTN.dtype).unflatten(0, (self.heads, -1))
        key_HNC, value_HVC = weight_HXC.split(self.kv_widths, dim=1)
        q_BHTX = torch.cat((q_BHTN @ key_HNC, q_BHTR), dim=-1)
        k_B1SX = torch.cat((latent_B1SC, key_B1SR), dim=-1)
        scale = sum(self.widths) ** -0.5
        y_BHTC = self.core(q_BHTX, k_B1SX, latent_B1SC, mask_B1TS=mask_B1TS, scale=scale)
        return y_BHTC @ value_HVC.transpose(1, 2)
