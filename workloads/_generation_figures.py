"""Work and bytes of prefill and decode by formula, and the rates that follow from their times. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ascend_perf.model.finding import Metric
from ascend_perf.workloads._model_shape import (
    VALUE_BYTES,
    ModelShape,
    cache_bytes_per_token,
    expert_parameters,
    forward_flops,
    matmul_parameters,
)
from ascend_perf.workloads._spec import Value


def prefill_flops(shape: ModelShape, prompt: int) -> int:
    """Model FLOPs of a prompt: every token looks at all (the causal mask is not subtracted), the last gets logits."""
    return forward_flops(shape, prompt, prompt, output_tokens=1)


def decode_flops(shape: ModelShape, prompt: int, new_tokens: int) -> int:
    """Model FLOPs of the tokens after the first: the i-th of them is fed with prompt + i tokens in sight, itself among
    them."""
    return sum(forward_flops(shape, 1, prompt + count) for count in range(1, new_tokens))


def decode_bytes(shape: ModelShape, batch: int, context: int, bytes_per_value: int) -> int:
    """Bytes that one decode step cannot do without: each weight once, and the cache of `context` tokens of each row.

    Weights are those of the matrix products, shared by all rows; of routed experts as many as the rows can choose,
    `min(experts, batch x experts_per_token)` of a layer. Activations, norms and the written token are left out: it is a
    lower bound of what the device moves. A static cache reads its whole capacity.
    """
    weights = matmul_parameters(shape)
    if shape.experts:
        chosen = min(shape.experts, batch * shape.experts_per_token) - shape.experts_per_token
        weights += shape.moe_layers * chosen * expert_parameters(shape)
    return weights * bytes_per_value + batch * context * cache_bytes_per_token(shape, bytes_per_value)


def phase_metrics(
    shape: ModelShape, dtype: str, times_ns: Mapping[str, Sequence[int]], lengths: Sequence[int], new_tokens: int,
    *, is_graph: bool,
) -> Sequence[Metric]:  # fmt: skip
    """Rates of the two phases, and the bytes that a decode step must read, at the middle of the answer.

    Args:
        times_ns: `prefill` and `decode` of each step.
        lengths: of the prompts of the batch.
    """
    if not times_ns["decode"]:
        return ()
    steps, batch = new_tokens - 1, len(lengths)
    prefill_ns, token_ns = statistics.median(times_ns["prefill"]), statistics.median(times_ns["decode"]) / steps
    context = round(statistics.fmean(lengths) + new_tokens / 2)
    size = decode_bytes(shape, batch, context, VALUE_BYTES[dtype])
    flops = sum(decode_flops(shape, length, new_tokens) for length in lengths) / steps
    return (
        Metric(name="prefill_tokens_per_s", value=sum(lengths) / prefill_ns * 1e9, unit="items_per_s", better="higher"),
        Metric(name="decode_tokens_per_s", value=batch / token_ns * 1e9, unit="items_per_s", better="higher"),
        Metric(name="decode_bytes_per_step", value=size, unit="bytes", better="none"),
        Metric(name="decode_bytes_per_s", value=size / token_ns * 1e9, unit="bytes_per_s", better="higher"),
        Metric(name="decode_flops_per_step", value=flops, unit="flops", better="none"),
        Metric(name="decode_flops_per_s", value=flops / token_ns * 1e9, unit="flops_per_s", better="higher"),
        Metric(name="decode_graph", value=float(is_graph), unit="none", better="none"),
    )


class HasCache(Protocol):
    """A generation that is ready to run."""

    @property
    def cache_bytes(self) -> int:
        """Of all rows."""


def sweep_row(
    shape: ModelShape, dtype: str, new_tokens: int, *, batch: int, prompt: int, steps: int,
    measure: Callable[[int, int], tuple[HasCache, Callable[[], tuple[int, int]]]],
) -> Mapping[str, Value]:  # fmt: skip
    """Medians of one combination of a sweep; without them where it does not fit into memory.

    Args:
        steps: that are measured, after one of warm-up.
        measure: `(batch, prompt)` -> the generation, and what runs it and gives the times of its two phases in ns.
    """
    row: dict[str, Value] = {"batch": batch, "prompt_tokens": prompt, "new_tokens": new_tokens}
    try:
        generation, timed = measure(batch, prompt)
        times = [timed() for _ in range(1 + steps)][1:]
    except RuntimeError as error:
        if "out of memory" not in str(error) and "not enough memory" not in str(error):
            raise
        return {**row, "problem": "out of memory"}
    prefill_ns = statistics.median(prefill for prefill, _ in times)
    token_ns = statistics.median(decode for _, decode in times) / (new_tokens - 1)
    size = decode_bytes(shape, batch, prompt + new_tokens // 2, VALUE_BYTES[dtype])
    return {
        **row,
        "prefill_ns": round(prefill_ns),
        "tpot_ns": round(token_ns),
        "prefill_tokens_per_s": batch * prompt / prefill_ns * 1e9,
        "decode_tokens_per_s": batch / token_ns * 1e9,
        "decode_bytes_per_s": size / token_ns * 1e9,
        "cache_bytes": generation.cache_bytes,
        "problem": None,
    }
