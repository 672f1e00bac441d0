"""Caches, choice of tokens and llm-generate: decoding with a cache gives what a forward over the whole text gives."""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from ascend_perf.errors import UsageError
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._generation_figures import decode_bytes, decode_flops, prefill_flops
from ascend_perf.workloads._model_shape import ModelShape, cache_bytes_per_token, forward_flops
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.llm_generate import Config, llm_generate, predict
from tests.workloads._threads import one_thread as one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from ascend_perf.workloads._decoder import Decoder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DENSE = ModelShape(layers=2, width=32, heads=4, kv_heads=2, hidden=48, vocabulary=64, qk_norm=True)
LATENT = replace(DENSE, attention="mla", kv_rank=8, rope_width=4, nope_width=8, value_width=8, qk_norm=False)
EXPERTS = replace(DENSE, experts=4, experts_per_token=2, shared_experts=1, expert_hidden=16, dense_layers=1)
SMALL = Config(model=DENSE, batch=3, prompt_tokens=9, new_tokens=6, dtype="fp32")


def decoder(shape: ModelShape, seed: int = 1) -> Decoder:
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused

    with torch.device("meta"):
        model = Decoder(shape, fused=Fused(kind="cpu", training=False))
    materialise(model, seed=seed, device="cpu")
    with torch.no_grad():  # larger weights: logits that differ clearly between texts
        for weight in model.parameters():
            if weight.dim() >= 2:
                weight.mul_(5)
    model.eval()
    return model


def generation(model: Decoder, cache: Literal["static", "dynamic"], *, batch: int = 3, prompt: int = 9, new: int = 6,
               **choice: Any) -> Any:  # fmt: skip
    from ascend_perf.workloads._generation import Choice, Generation

    return Generation(
        model, batch=batch, prompt_tokens=prompt, new_tokens=new, cache=cache, graph=False, choice=Choice(**choice),
        dtype=torch.float32, device="cpu",
    )  # fmt: skip


def greedy_without_cache(model: Decoder, prompt: Sequence[int], new: int) -> tuple[list[int], list[float]]:
    """Each token from a forward over the whole text so far."""
    text, log_probabilities = list(prompt), []
    with torch.no_grad():
        for _ in range(new):
            logits_V = model(torch.tensor([text]))[0, -1]
            text.append(int(logits_V.argmax()))
            log_probabilities.append(float(torch.log_softmax(logits_V, -1)[text[-1]]))
    return text[len(prompt) :], log_probabilities


def random_prompts(batch: int, tokens: int) -> Tensor:
    return torch.randint(DENSE.vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("shape", [DENSE, LATENT, EXPERTS], ids=["dense", "mla", "experts"])
def test_decoding_with_a_cache_equals_forwards_over_the_whole_text(
    shape: ModelShape, cache: Literal["static", "dynamic"]
) -> None:
    model, prompt_BP = decoder(shape), random_prompts(3, 9)
    one = generation(model, cache)
    for _ in range(2):  # the second time from a used cache
        one.prefill(prompt_BP)
        one.decode()

    for row in range(3):
        tokens, log_probabilities = greedy_without_cache(model, prompt_BP[row].tolist(), 6)
        assert one.output_BN[row].tolist() == tokens
        assert one.log_probability_BN[row].tolist() == pytest.approx(log_probabilities, abs=1e-5)
    assert len({tuple(row) for row in one.output_BN.tolist()}) == 3  # different texts, different answers


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(side: str, cache: Literal["static", "dynamic"]) -> None:
    model, lengths = decoder(DENSE), (9, 5, 1)
    prompts = [random_prompts(1, length)[0].tolist() for length in lengths]
    padded, real = [], []
    for prompt in prompts:
        pad = [7] * (9 - len(prompt))
        padded.append(pad + prompt if side == "left" else prompt + pad)
        real.append([False] * len(pad) + [True] * len(prompt) if side == "left" else
                    [True] * len(prompt) + [False] * len(pad))  # fmt: skip
    one = generation(model, cache)
    one.prefill(torch.tensor(padded), torch.tensor(real))
    one.decode()

    for row, prompt in enumerate(prompts):
        tokens, log_probabilities = greedy_without_cache(model, prompt, 6)
        assert one.output_BN[row].tolist() == tokens
        assert one.log_probability_BN[row].tolist() == pytest.approx(log_probabilities, abs=1e-5)


def test_sampled_tokens_are_those_of_the_seed_whatever_the_cache() -> None:
    model, prompt_BP = decoder(DENSE), random_prompts(3, 9)
    outputs = []
    for cache, seed in (("static", 1), ("dynamic", 1), ("static", 2)):
        one = generation(model, cache, temperature=1.0, top_p=0.95, seed=seed)  # type: ignore[arg-type]  # one of two
        one.prefill(prompt_BP)
        one.decode()
        outputs.append(one.output_BN.tolist())

    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("shape", [DENSE, LATENT, EXPERTS], ids=["dense", "mla", "experts"])
def test_a_paged_cache_equals_forwards_over_the_whole_text(shape: ModelShape) -> None:
    from ascend_perf.workloads._batching import Batcher, Limits, Request
    from ascend_perf.workloads._cache import PagedCache, cache_parts
    from ascend_perf.workloads._paged_runner import PagedRunner

    model = decoder(shape)
    cache = PagedCache(cache_parts(shape), layers=2, blocks=20, block_tokens=4, dtype=torch.float32, device="cpu")
    limits = Limits(blocks=20, block_tokens=4, max_batch=4, max_queue=9, max_context=40, prefill_tokens=8)
    batcher = Batcher(PagedRunner(model, cache, vocabulary=64), limits, lambda events: None)
    requests = [Request(prompt=random_prompts(1, length)[0].tolist(), max_tokens=5) for length in (3, 19, 1, 8, 2)]
    for request in requests:
        batcher.submit(request)
        batcher.step()
    batcher.run(lambda: not batcher.running and not batcher.waiting)

    for request in requests:
        tokens, log_probabilities = greedy_without_cache(model, request.prompt, 5)
        assert request.output == tokens
        assert request.log_probabilities == pytest.approx(log_probabilities, abs=1e-5)
    assert cache.size_bytes == 2 * 21 * 4 * sum(heads * width for heads, width in cache_parts(shape)) * 4


def test_tokens_beyond_the_vocabulary_are_never_chosen() -> None:
    from ascend_perf.workloads._batching import Row, Sampling
    from ascend_perf.workloads._cache import PagedCache, cache_parts
    from ascend_perf.workloads._paged_runner import PagedRunner

    cache = PagedCache(cache_parts(DENSE), layers=2, blocks=4, block_tokens=4, dtype=torch.float32, device="cpu")
    runner = PagedRunner(decoder(DENSE), cache, vocabulary=3)
    sampled = [
        runner.run([Row(tokens=[n], start=0, blocks=[1], sampling=Sampling(temperature=2.0), draw=0.999)])[0][0]
        for n in range(20)
    ]

    assert set(sampled) <= {0, 1, 2} and len(set(sampled)) > 1


# The choice of tokens


def drawn(logits: Sequence[float], temperature: float, top_k: int, top_p: float, draw: float) -> int:
    """By hand in numpy: sort, cut, cumulate, look up."""
    scores = np.asarray(logits, np.float64) / temperature
    order = np.argsort(-scores, kind="stable")
    probabilities = np.exp(scores[order] - scores.max())
    probabilities /= probabilities.sum()
    kept = []
    for rank, probability in enumerate(probabilities):
        if rank > 0 and ((top_k and rank >= top_k) or probabilities[:rank].sum() >= top_p):
            break
        kept.append(probability)
    cumulated = np.cumsum(kept)
    return int(order[int((cumulated <= draw * cumulated[-1]).sum())])


def test_drawn_tokens_are_those_of_the_cumulated_probabilities() -> None:
    from ascend_perf.workloads._sampling import choose, likeliest

    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (200, 17)).astype(np.float32)
    temperature, top_k = random.choice([0.0, 0.3, 1.0, 1.7], 200), random.choice([0, 1, 3, 17], 200)
    top_p, draw = random.choice([0.2, 0.7, 1.0], 200), random.random(200)
    token_B, log_probability_B = choose(
        torch.from_numpy(logits), temperature_B=torch.from_numpy(temperature).float(),
        top_k_B=torch.from_numpy(top_k), top_p_B=torch.from_numpy(top_p).float(),
        draw_B=torch.from_numpy(draw).float(),
    )  # fmt: skip

    expected = [
        int(row.argmax()) if t == 0 else drawn(row.tolist(), t, k, p, d)
        for row, t, k, p, d in zip(logits, temperature, top_k.tolist(), top_p, draw, strict=True)
    ]
    assert token_B.tolist() == expected
    shifted = logits.astype(np.float64)
    plain = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert log_probability_B.tolist() == pytest.approx(plain[np.arange(200), expected], abs=1e-5)
    assert likeliest(torch.from_numpy(logits))[0].tolist() == logits.argmax(1).tolist()


def test_extreme_draws_and_temperatures_stay_inside() -> None:
    from ascend_perf.workloads._sampling import choose

    def one(temperature: float, draw: float, top_p: float = 1.0) -> int:
        return int(choose(
            torch.tensor([[3.0, 9.0, -40.0]]), temperature_B=torch.tensor([temperature]), top_k_B=torch.tensor([0]),
            top_p_B=torch.tensor([top_p]), draw_B=torch.tensor([draw]),
        )[0])  # fmt: skip

    assert one(1e-30, 1 - 2**-24) == 1
    assert one(1.0, 0.0) == 1
    assert one(1.0, 1 - 2**-24, top_p=0.5) == 1
    assert one(1e30, 1 - 2**-24) == 2


# llm-generate


def test_work_of_a_step_by_hand() -> None:
    shape = ModelShape(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
    # A layer: q and out 2 x 16 x 16, k and v 2 x 16 x 8, MLP 3 x 16 x 24 = 1920; two: 3840. Output layer 16 x 32 = 512.
    # Prompt of 5: 2 x 3840 x 5 for the weights, 4 x 2 layers x 16 x 5 x 5 for attention, 2 x 512 for one row of logits.
    assert prefill_flops(shape, 5) == 38400 + 3200 + 1024
    # Two tokens after the first: each 2 x (3840 + 512), attention 4 x 2 x 16 x 6 and x 7.
    assert decode_flops(shape, 5, 3) == 2 * 8704 + 128 * 6 + 128 * 7


def test_bytes_of_a_decode_step_by_hand() -> None:
    shape = ModelShape(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
    # Weights 4352 x 2 bytes; the cache of a token: 2 layers x (2 heads x 4 wide) x 2 (key and value) x 2 bytes = 64.
    assert decode_bytes(shape, 3, 10, 2) == 8704 + 3 * 10 * 64
    experts = replace(shape, experts=8, experts_per_token=2, expert_hidden=4)
    # A layer: attention 768, router 16 x 8 = 128, experts 3 x 16 x 4 = 192 each: 2 of them for one row, 6 for three,
    # all 8 for five. Output layer 512.
    for batch, chosen in ((1, 2), (3, 6), (5, 8)):
        assert decode_bytes(experts, batch, 0, 4) == 4 * (2 * (768 + 128 + chosen * 192) + 512)


def test_model_flops_are_those_that_torch_counts() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = decoder(replace(DENSE, qk_norm=False))
    one = generation(model, "dynamic", batch=1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        one.prefill(random_prompts(1, 9))
        one.decode()

    assert counter.get_total_flops() == prefill_flops(DENSE, 9) + decode_flops(DENSE, 9, 6)


@pytest.mark.parametrize("padding", ["none", "left"])
def test_the_program_of_a_batch(padding: Literal["none", "left"]) -> None:
    config = replace(SMALL, padding=padding, sweep_batches="1,2", sweep_prompts="4", sweep_steps=1)
    program = llm_generate.build(config, Place(), 5)
    program.step()
    program.start_measuring()
    program.step()
    program.step()

    assert program.items_per_step == 18
    # A cache of 9 + 6 tokens for 3 rows.
    assert program.memory_bytes()["cache"] == 3 * 15 * cache_bytes_per_token(DENSE, 4)
    assert dict(program.memory_bytes()) == dict(predict(config, 1, target_here("cpu")).memory_bytes)
    latencies = program.latencies_ns()
    assert [len(latencies[name]) for name in ("prefill", "decode", "tpot")] == [2, 2, 2]
    assert latencies["tpot"] == [round(value / 5) for value in latencies["decode"]]
    metrics = {metric.name: metric.value for metric in program.metrics()}
    assert metrics["decode_graph"] == 0.0  # the CPU has none
    median = sum(latencies["decode"]) / 2 / 5
    assert metrics["decode_tokens_per_s"] == pytest.approx(3 / median * 1e9)
    if padding == "none":
        assert program.flops_per_step == 3 * (prefill_flops(DENSE, 9) + decode_flops(DENSE, 9, 6))
        assert metrics["decode_bytes_per_step"] == decode_bytes(DENSE, 3, 12, 4)
    else:
        assert program.flops_per_step < 3 * (prefill_flops(DENSE, 9) + decode_flops(DENSE, 9, 6))
    rows = program.tables()["sweep"]
    assert [(row["batch"], row["prompt_tokens"], row["cache_bytes"]) for row in rows] == [
        (batch, 4, batch * 10 * cache_bytes_per_token(DENSE, 4)) for batch in (1, 2)
    ]
    assert all(row["problem"] is None for row in rows)


def test_both_caches_and_equal_seeds_give_the_same_value() -> None:
    values = []
    for cache, seed in (("static", 1), ("dynamic", 1), ("static", 1), ("static", 2)):
        program = llm_generate.build(replace(SMALL, cache=cache), Place(), seed)  # type: ignore[arg-type]  # one of two
        program.step()
        values.append(program.last_value())

    assert values[0] == values[2] != values[3]
    assert values[1] == pytest.approx(values[0], abs=1e-6)


def test_prompts_may_be_real_text(tmp_path: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b c d e f g " * 20)
    config = replace(SMALL, model=replace(DENSE, vocabulary=300))
    program = llm_generate.build(config, Place(data=path), 1)
    program.step()

    assert np.isfinite(program.last_value())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new_tokens": 1}, "new_tokens must be 2 or more"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"graph": "on", "cache": "dynamic"}, "needs cache: static"),
        ({"graph": "on", "model": EXPERTS}, "for dense models"),
        ({"sweep_batches": "1,x"}, "sweep_batches must be whole numbers"),
        ({"sweep_prompts": "0"}, "sweep_prompts must be whole numbers"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_a_graph_asked_for_where_there_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="cpu has no graphs"):
        llm_generate.build(replace(SMALL, graph="on"), Place(), 0)


def test_a_configuration_file_of_a_model_gives_the_shape(tmp_path: Any) -> None:
    from ascend_perf.workloads._model_config import settings_of

    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 300,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True, "hidden_act": "silu",
    }))  # fmt: skip
    chosen = ["batch=1", "prompt_tokens=4", "new_tokens=3", "dtype=fp32"]
    settings = llm_generate.settings("tiny", chosen, between=settings_of(path))
    program = llm_generate.build(settings.config, Place(), 0)
    program.step()

    # Embedding 300 x 32, once; q and out 2 x 32 x 32, k and v 2 x 32 x 16, MLP 3 x 32 x 48; norms 3 x 32 and 2 x 8.
    assert program.parameters == 9600 + 2048 + 1024 + 4608 + 96 + 16
    assert program.memory_bytes()["weights"] == 4 * program.parameters


def test_more_than_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match="runs in 1 process, not 2"):
        predict(SMALL, 2)


def test_presets_have_the_published_sizes() -> None:
    from ascend_perf.workloads._model_shape import parameter_count

    # Sums of the weights in the published files of Qwen3-0.6B, Llama-2-7B, Qwen3-8B, Llama-2-13B and DeepSeek-V2-Lite.
    sizes = {"0.6b": 596_049_920, "7b": 6_738_415_616, "8b": 8_190_735_360, "13b": 13_015_864_320,
             "v2-lite": 15_706_484_224}  # fmt: skip
    for preset, size in sizes.items():
        config = llm_generate.settings(preset).config
        assert isinstance(config, Config)
        assert parameter_count(config.model) == size


@pytest.mark.parametrize("graph_class", ["CUDAGraph", "NPUGraph"])
def test_a_captured_step_is_replayed_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, graph_class: str
) -> None:
    """A stand-in for the device's streams and graphs: capturing runs the step, replaying runs it again."""
    from ascend_perf.workloads import _generation

    log: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            log.append("wait")

    class Graph:
        def replay(self) -> None:
            log.append("replay")
            captured._step()

    @contextlib.contextmanager
    def within(what: object) -> Iterator[None]:
        log.append(type(what).__name__)
        yield

    kind = {"CUDAGraph": "cuda", "NPUGraph": "npu"}[graph_class]
    if kind == "npu":
        monkeypatch.setattr(torch, "npu", types.SimpleNamespace(), raising=False)
    for name, part in {"Stream": Stream, "current_stream": Stream, "stream": within, "graph": within}.items():
        monkeypatch.setattr(getattr(torch, kind), name, part, raising=False)
    monkeypatch.setattr(getattr(torch, kind), graph_class, Graph, raising=False)
    model, prompt_BP = decoder(DENSE), random_prompts(3, 9)
    eager = generation(model, "static")
    captured = generation(model, "static")
    captured.device = f"{kind}:0"
    with torch.inference_mode():
        captured._graph = captured._captured()
    captured.device = "cpu"
    log.append("captured")
    for one in (eager, captured):
        one.prefill(prompt_BP)
        one.decode()

    assert _generation.has_graphs(f"{kind}:0") and not _generation.has_graphs("cpu")
    # Steps of warm-up on a stream of their own, then the capture, then one replay for each token after the first.
    assert log == ["wait", "Stream", "wait", "Graph", "captured", *["replay"] * 5]
    assert captured.output_BN.tolist() == eager.output_BN.tolist()


def test_forward_flops_of_a_cached_token_grow_with_the_text_only_by_attention() -> None:
    assert forward_flops(DENSE, 1, 20) - forward_flops(DENSE, 1, 10) == 4 * DENSE.layers * 32 * 10
