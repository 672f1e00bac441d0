"""Prefill and decode of one batch of prompts, with a growing or a fixed cache, eager or as a graph of the device.

    prompt -> prefill: one forward over all prompt tokens -> first token
    token  -> decode: one forward per token, each over the cache -> next token, which stays on the device
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.profiler import record_function

from ascend_perf.workloads._cache import DynamicCache, StaticCache, cache_parts
from ascend_perf.workloads._sampling import choose, likeliest
from ascend_perf.workloads._virtual import computes_nothing

if TYPE_CHECKING:
    from ascend_perf.workloads._decoder import Decoder

# B batch, P prompt tokens, N new tokens, V vocabulary

WARMUP_CALLS = 3
"""Of the step before it is captured: allocations and the choice of kernels must be over."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How tokens are chosen, for all rows alike; temperature 0: the likeliest."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Generation:
    """Generates `new_tokens` for a batch of prompts of `prompt_tokens`, as often as wanted.

    Args:
        graph: capture the decode step once and replay it; needs the fixed cache and a CUDA device or an NPU.
    """

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def __init__(
        self, model: Decoder, *, batch: int, prompt_tokens: int, new_tokens: int, cache: Literal["static", "dynamic"],
        graph: bool, choice: Choice, dtype: torch.dtype, device: str,
    ) -> None:  # fmt: skip
        self.model, self.choice, self.device = model, choice, device
        self.batch, self.prompt_tokens, self.new_tokens = batch, prompt_tokens, new_tokens
        self.fixed = (
            StaticCache(
                cache_parts(model.shape), layers=model.shape.layers, batch=batch, capacity=prompt_tokens + new_tokens,
                dtype=dtype, device=device,
            )
            if cache == "static"
            else None
        )  # fmt: skip
        self.growing = DynamicCache()
        self.token_B1 = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.position_B1 = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.column_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.count_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.output_BN = torch.zeros(batch, new_tokens, dtype=torch.long, device=device)
        self.log_probability_BN = torch.zeros(batch, new_tokens, device=device)
        self._settings = {
            "temperature_B": torch.full((batch,), choice.temperature, device=device),
            "top_k_B": torch.full((batch,), choice.top_k, device=device),
            "top_p_B": torch.full((batch,), choice.top_p, device=device),
        }
        # Drawn once for all tokens, on the CPU: every device and every cache gives the same, and a graph can read them.
        random = torch.Generator().manual_seed(choice.seed)
        self._draws_BN = torch.rand(batch, new_tokens, generator=random, dtype=torch.float64).float().to(device)
        self._draws_BN.clamp_(max=1 - 2**-24)
        self._graph = self._captured() if graph else None

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def prefill(self, prompt_BP: Tensor, is_real_BP: Tensor | None = None) -> None:
        """Feed the prompts and choose the first token.

        Args:
            is_real_BP: False where a shorter prompt is padded, at the left or at the right; None: nowhere.
        """
        with record_function("prefill"):
            B, P = prompt_BP.shape
            column_P = torch.arange(P, device=self.device)
            if is_real_BP is None:
                position_BP, last_B = column_P.expand(B, P), column_P[-1:].expand(B)
            else:
                position_BP = (is_real_BP.long().cumsum(1) - 1).clamp(min=0)
                last_B = torch.where(is_real_BP, column_P, 0).amax(1)
            if self.fixed is not None:
                self.fixed.begin_prompt(P, is_real_BP)
                cache: StaticCache | DynamicCache = self.fixed
            else:
                cache = self.growing = DynamicCache(is_real_BP)
                self.growing.begin(P)
            logits_B1V = self.model(
                prompt_BP, positions_BT=position_BP, mask_B1TS=cache.mask_B1TS, cache=cache, logits_at_B=last_B
            )
            self.column_1.fill_(P)
            self.count_1.zero_()
            self.position_B1.copy_(position_BP.amax(1, keepdim=True) + 1)
            self._take(logits_B1V[:, 0])

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not type-checked here
    def decode(self) -> None:
        """Choose the other tokens, one after the other; nothing waits for the device."""
        for _ in range(self.new_tokens - 1):
            with record_function("decode"):
                if self._graph is not None:
                    self._graph.replay()
                else:
                    self._step()

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache holds now."""
        return self.growing.size_bytes if self.fixed is None else self.fixed.size_bytes

    def _step(self) -> None:
        if self.fixed is not None:
            self.fixed.begin_token(self.column_1)
            cache: StaticCache | DynamicCache = self.fixed
        else:
            self.growing.begin(1)
            cache = self.growing
        logits_B1V = self.model(
            self.token_B1, positions_BT=self.position_B1, mask_B1TS=cache.mask_B1TS, cache=cache
        )
        self.position_B1 += 1
        self.column_1 += 1
        self._take(logits_B1V[:, 0])

    def _take(self, logits_BV: Tensor) -> None:
        """Choose a token and write it where the next step and the reader find it."""
        if self.choice.temperature:
            draw_B = self._draws_BN.index_select(1, self.count_1)[:, 0]
            token_B, log_probability_B = choose(logits_BV, draw_B=draw_B, **self._settings)
        else:
            token_B, log_probability_B = likeliest(logits_BV)
        self.token_B1.copy_(token_B[:, None])
        self.output_BN.index_copy_(1, self.count_1, token_B[:, None])
        self.log_probability_BN.index_copy_(1, self.count_1, log_probability_B[:, None])
        self.count_1 += 1

    def _captured(self) -> Any:
        """The decode step as a graph. What it changes in place is set again by the next prefill."""
        assert self.fixed is not None
        backend: Any = getattr(torch, self.device.split(":")[0])
        side = backend.Stream()
        side.wait_stream(backend.current_stream())
        with backend.stream(side):
            for _ in range(WARMUP_CALLS):
                self._rewind()
                self._step()
        backend.current_stream().wait_stream(side)
        self._rewind()
        graph = backend.NPUGraph() if self.device.startswith("npu") else backend.CUDAGraph()
        with backend.graph(graph):
            self._step()
        return graph

    def _rewind(self) -> None:
        for tensor in (self.token_B1, self.position_B1, self.column_1, self.count_1):
            tensor.zero_()


def has_graphs(device: str) -> bool:
    """Whether the device can capture a step: CUDA graphs, or NPU graphs in a torch_npu that has them."""
    kind = device.split(":")[0]
    if computes_nothing(kind):  # it records launches, and a graph has one for all of them
        return False
    return kind == "cuda" or (kind == "npu" and hasattr(torch.npu, "NPUGraph"))
