"""A decoder behind a `_batching.Batcher`: rows of a step as one padded forward over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.profiler import record_function

from ascend_perf.workloads._batching import Row
from ascend_perf.workloads._cache import PagedCache
from ascend_perf.workloads._sampling import choose, likeliest
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    from ascend_perf.workloads._decoder import Decoder

# B rows, T tokens of the longest row, V vocabulary


class PagedRunner:
    """See `_batching.Runner`. Steps are eager: their shapes change with the batch.

    Args:
        vocabulary: tokens from this one on are never chosen; the model's table may be larger than the tokenizer's.
    """

    def __init__(self, model: Decoder, cache: PagedCache, *, vocabulary: int) -> None:
        self.model, self.cache, self.vocabulary = model, cache, vocabulary

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def run(self, rows: Sequence[Row]) -> list[tuple[int, float]]:
        """Feed each row's tokens; the token after the last of each, and its log probability."""
        counts = [len(row.tokens) for row in rows]
        device = self.cache.device
        with record_function("prefill" if max(counts) > 1 else "decode"):
            padded = [[*row.tokens, *[0] * (max(counts) - len(row.tokens))] for row in rows]
            tokens_BT = torch.tensor(padded, device=device)
            view = self.cache.view([row.blocks for row in rows], [row.start for row in rows], counts)
            logits_B1V = self.model(
                tokens_BT, positions_BT=view.position_BT, mask_B1TS=view.mask_B1TS, cache=view,
                logits_at_B=torch.tensor(counts, device=device) - 1,
            )  # fmt: skip
        with record_function("sample"):
            logits_BV = logits_B1V[:, 0, : self.vocabulary]
            token_B, log_probability_B = self._chosen(logits_BV, rows)
            chosen = list(zip(token_B.tolist(), log_probability_B.tolist(), strict=True))
        return [(ord(" "), 0.0)] * len(rows) if computes_nothing(logits_BV.device.type) else chosen

    def _chosen(self, logits_BV: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        if not any(row.sampling.temperature for row in rows):
            return likeliest(logits_BV)
        device = self.cache.device
        return choose(
            logits_BV,
            temperature_B=torch.tensor([row.sampling.temperature for row in rows], device=device),
            top_k_B=torch.tensor([row.sampling.top_k for row in rows], device=device),
            top_p_B=torch.tensor([row.sampling.top_p for row in rows], device=device),
            draw_B=torch.tensor([row.draw for row in rows], device=device),
        )
