"""llm-generate: a decoder-only language model in inference, a batch of prompts at a time.

    for each step: prompt tokens -> prefill -> first token -> [decode -> next token] x (new_tokens - 1)

Prefill works all prompt tokens in one forward (many FLOPs per byte), decode one token of each row per forward (it reads
all weights and the cache for few FLOPs). The two are timed apart. Caches and the graph are in `_generation.py`, work,
bytes and rates in `_generation_figures.py`. Read top to bottom: sizes, prompts, one step, sweeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words
from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._generation_figures import decode_flops, phase_metrics, prefill_flops, sweep_row
from ascend_perf.workloads._model_shape import VALUE_BYTES, ModelShape, cache_bytes_per_token, parameter_count
from ascend_perf.workloads._spec import NPU, Place, Prediction, Program, Target, Value, at_least, workload

if TYPE_CHECKING:
    import torch

    from ascend_perf.workloads._generation import Generation

    Made = tuple[Generation, torch.Tensor, torch.Tensor | None]

# B batch, P prompt tokens


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the model and of one batch, and how tokens are chosen.

    `cache: static` has the memory and the shapes of the longest text from the start, which graphs need; `dynamic`
    grows. `graph: auto` captures the decode step where the device has graphs, the cache is static and the model is
    dense, and is eager elsewhere, as on the CPU; the metric decode_graph says which it was.
    """

    model: ModelShape = field(default_factory=ModelShape)
    operators: FusedSettings = field(default_factory=FusedSettings)
    batch: int = 2
    prompt_tokens: int = 64
    new_tokens: int = 32
    padding: Literal["none", "left", "right"] = "none"
    """none: all prompts have `prompt_tokens`; else they are half as long to as long, and padded on that side."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of weights, products and cache."""
    cache: Literal["static", "dynamic"] = "static"
    graph: Literal["auto", "on", "off"] = "auto"
    temperature: float = 0.0
    """0: greedy."""
    top_k: int = 0
    top_p: float = 1.0
    sweep_batches: str = ""
    """More batches to measure after the steps, as 1,2,4; a row each in results/sweep.csv."""
    sweep_prompts: str = ""
    """More prompt lengths, combined with every batch."""
    sweep_steps: int = 3
    """Measured generations of each combination, after one of warm-up."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "prompt_tokens", "sweep_steps")
        at_least(self, 2, "new_tokens")
        at_least(self, 0, "temperature", "top_k")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.graph == "on" and self.cache == "dynamic":
            raise ValueError("graph: on needs cache: static, whose shapes stay the same")
        if self.graph == "on" and self.model.experts:
            raise ValueError("graph: on is for dense models: how many tokens an expert gets changes with each step")
        self.sweep()

    def sweep(self) -> list[tuple[int, int]]:
        """Batch and prompt length of each combination; none when there is no sweep."""
        if not self.sweep_batches and not self.sweep_prompts:
            return []
        batches = _numbers("sweep_batches", self.sweep_batches) or [self.batch]
        prompts = _numbers("sweep_prompts", self.sweep_prompts) or [self.prompt_tokens]
        return [(batch, prompt) for prompt in prompts for batch in batches]


def _numbers(name: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"{name} must be whole numbers above 0 separated by commas, got {text!r}")
    return [int(word) for word in words]


def predict(config: Config, world_size: int, target: Target = NPU) -> Prediction:
    """Weights and cache at the end of a step, by formula.

    Raises:
        ValueError: more than one process.
    """
    if world_size != 1:
        raise ValueError(f"llm-generate runs in 1 process, not {world_size}")
    size = VALUE_BYTES[target.auto_dtype() if config.dtype == "auto" else config.dtype]
    tokens = config.batch * (config.prompt_tokens + config.new_tokens - (config.cache == "dynamic"))
    return Prediction(
        memory_bytes={
            "weights": parameter_count(config.model) * size,
            "cache": tokens * cache_bytes_per_token(config.model, size),
        }
    )


# Prompts


def prompts(config: Config, place: Place, seed: int, batch: int, length: int) -> torch.Tensor:
    """Prompts B x P: of the named text, else random tokens by the seed."""
    import torch

    if place.data is not None:
        from ascend_perf.workloads._text_data import CorpusRows, read_corpus

        corpus = read_corpus(place.data, vocabulary=config.model.vocabulary)
        rows = CorpusRows(corpus, tokens=length, vocabulary=config.model.vocabulary, packed=False, seed=seed)
        return torch.stack([torch.from_numpy(rows.row(number).tokens_T) for number in range(batch)])
    random = torch.Generator().manual_seed(seed)
    return torch.randint(config.model.vocabulary, (batch, length), generator=random)


def real_tokens(config: Config, seed: int, batch: int, length: int) -> torch.Tensor | None:
    """Where a prompt is no padding, B x P; None without padding."""
    import torch

    if config.padding == "none":
        return None
    random = torch.Generator().manual_seed(seed + 1)
    lengths_B1 = torch.randint((length + 1) // 2, length + 1, (batch, 1), generator=random)
    column_P = torch.arange(length)
    return column_P >= length - lengths_B1 if config.padding == "left" else column_P < lengths_B1


@workload(
    name="llm-generate",
    about=Words(
        "decoder language model in inference: prefill and decode with a KV cache, greedy or sampled, graphs, sweeps",
        "Decoder 语言模型推理：带 KV 缓存的 prefill 与 decode，贪心或采样，图模式，批大小与序列长度扫描",
    ),
    config=Config,
    takes=("data",),
    predict=predict,
)
def llm_generate(config: Config, place: Place, seed: int) -> Program:
    """The generation of a batch on the device; weights, prompts and draws depend on the seed alone."""
    import torch

    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._generation import Choice, Generation, has_graphs
    from ascend_perf.workloads._training import Training, matmul_dtype

    if place.world_size != 1:
        raise UsageError(f"llm-generate runs in one process, not {place.world_size}", hint="leave --nproc out")
    if config.graph == "on" and not has_graphs(place.device):
        raise UsageError(f"{place.kind} has no graphs: graph: on is for cuda and npu", hint="use graph: auto")
    use_graph = config.graph != "off" and config.cache == "static" and not config.model.experts
    use_graph = use_graph and has_graphs(place.device)
    shape, dtype = config.model, matmul_dtype(Training(dtype=config.dtype), place)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    fused = Fused(config.operators, place.kind, training=False)
    with torch.device("meta"):
        model = Decoder(shape, fused=fused)
    materialise(model, seed=seed, device=place.device, dtype=torch_dtype)
    model.eval()

    def generation(batch: int, prompt_tokens: int) -> Made:
        made = Generation(
            model, batch=batch, prompt_tokens=prompt_tokens, new_tokens=config.new_tokens, cache=config.cache,
            graph=use_graph, dtype=torch_dtype, device=place.device,
            choice=Choice(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, seed=seed),
        )  # fmt: skip
        is_real_BP = real_tokens(config, seed, batch, prompt_tokens)
        on_device = None if is_real_BP is None else is_real_BP.to(place.device)
        return made, prompts(config, place, seed, batch, prompt_tokens).to(place.device), on_device

    current, prompt_BP, is_real_BP = generation(config.batch, config.prompt_tokens)
    times_ns: dict[str, list[int]] = {"prefill": [], "decode": []}

    def timed(one: Generation, prompt_BP: torch.Tensor, is_real_BP: torch.Tensor | None) -> tuple[int, int]:
        # Two waits per step, between the phases: within decode the host runs ahead of the device as it likes.
        _synchronise(place)
        start_ns = time.perf_counter_ns()
        one.prefill(prompt_BP, is_real_BP)
        _synchronise(place)
        middle_ns = time.perf_counter_ns()
        one.decode()
        _synchronise(place)
        return middle_ns - start_ns, time.perf_counter_ns() - middle_ns

    def measure(batch: int, prompt: int) -> tuple[Generation, Callable[[], tuple[int, int]]]:
        made = generation(batch, prompt)
        return made[0], partial(timed, *made)

    def step() -> None:
        prefill_ns, decode_ns = timed(current, prompt_BP, is_real_BP)
        times_ns["prefill"].append(prefill_ns)
        times_ns["decode"].append(decode_ns)

    def forget() -> None:
        times_ns["prefill"].clear()
        times_ns["decode"].clear()

    def latencies_ns() -> Mapping[str, Sequence[int]]:
        steps = config.new_tokens - 1
        return {**times_ns, "tpot": [round(value / steps) for value in times_ns["decode"]]}

    def sweep() -> Mapping[str, Sequence[Mapping[str, Value]]]:
        rows = [
            sweep_row(
                shape, dtype, config.new_tokens, batch=batch, prompt=prompt, steps=config.sweep_steps, measure=measure
            )
            for batch, prompt in config.sweep()
        ]  # fmt: skip
        return {**({"sweep": rows} if rows else {}), "fused_operators": fused.rows()}

    lengths = [config.prompt_tokens] * config.batch if is_real_BP is None else is_real_BP.sum(1).tolist()
    return Program(
        step=step,
        item="tokens",
        items_per_step=config.batch * config.new_tokens,
        flops_per_step=sum(
            prefill_flops(shape, length) + decode_flops(shape, length, config.new_tokens) for length in lengths
        ),
        dtype=dtype,
        parameters=parameter_count(shape),
        value_name="mean_log_probability",
        last_value=lambda: float(current.log_probability_BN.cpu().double().mean()),
        latencies_ns=latencies_ns,
        start_measuring=forget,
        memory_bytes=lambda: {
            "weights": sum(weight.numel() * weight.element_size() for weight in model.parameters()),
            "cache": current.cache_bytes,
        },
        metrics=lambda: phase_metrics(shape, dtype, times_ns, lengths, config.new_tokens, is_graph=use_graph),
        tables=sweep,
    )


def _synchronise(place: Place) -> None:
    if place.kind != "cpu":
        import torch

        getattr(torch, place.kind).synchronize()
