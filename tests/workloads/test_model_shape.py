"""Formulas of a decoder's shape: published sizes of public models, torch's own counts, and the tensors it saves.

Parameter counts are those of the published checkpoints (the sum of the tensors that the model card or index states);
where a publication only gives a rounded figure, the test says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads import _model_shape as formulas
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_flops, encoder_parameters, encoder_train_flops
from ascend_perf.workloads._model_shape import ModelShape, held_as

LLAMA_2_7B = ModelShape(layers=32, width=4096, heads=32, kv_heads=32, hidden=11008, vocabulary=32000)
LLAMA_2_13B = ModelShape(layers=40, width=5120, heads=40, kv_heads=40, hidden=13824, vocabulary=32000)
LLAMA_2_70B = ModelShape(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672, vocabulary=32000)
LLAMA_3_8B = ModelShape(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocabulary=128256)
MISTRAL_7B = ModelShape(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocabulary=32000)
QWEN2_5_HALF_B = ModelShape(
    layers=24, width=896, heads=14, kv_heads=2, hidden=4864, vocabulary=151936, tied=True, qkv_bias=True
)
QWEN2_5_7B = ModelShape(layers=28, width=3584, heads=28, kv_heads=4, hidden=18944, vocabulary=152064, qkv_bias=True)
QWEN3_06B = ModelShape(
    layers=28, width=1024, heads=16, kv_heads=8, head_width=128, hidden=3072, vocabulary=151936, tied=True, qk_norm=True
)
QWEN3_8B = ModelShape(
    layers=36, width=4096, heads=32, kv_heads=8, head_width=128, hidden=12288, vocabulary=151936, qk_norm=True
)
QWEN3_30B_A3B = ModelShape(
    layers=48, width=2048, heads=32, kv_heads=4, head_width=128, hidden=6144, vocabulary=151936, qk_norm=True,
    experts=128, experts_per_token=8, expert_hidden=768,
)  # fmt: skip
MIXTRAL_8X7B = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, vocabulary=32000, experts=8, experts_per_token=2,
    expert_hidden=14336,
)  # fmt: skip
DEEPSEEK_V2_LITE = ModelShape(
    layers=27, width=2048, heads=16, kv_heads=16, hidden=10944, vocabulary=102400, attention="mla", experts=64,
    experts_per_token=6, shared_experts=2, expert_hidden=1408, dense_layers=1,
)  # fmt: skip
DEEPSEEK_V2 = ModelShape(
    layers=60, width=5120, heads=128, kv_heads=128, hidden=12288, vocabulary=102400, attention="mla", q_rank=1536,
    experts=160, experts_per_token=6, shared_experts=2, expert_hidden=1536, dense_layers=1,
)  # fmt: skip
DEEPSEEK_V3 = ModelShape(
    layers=61, width=7168, heads=128, kv_heads=128, hidden=18432, vocabulary=129280, attention="mla", q_rank=1536,
    experts=256, experts_per_token=8, shared_experts=1, expert_hidden=2048, dense_layers=3,
)  # fmt: skip

PUBLISHED = {
    "Llama-2-7B": (LLAMA_2_7B, 6_738_415_616),
    "Llama-2-13B": (LLAMA_2_13B, 13_015_864_320),
    "Llama-2-70B": (LLAMA_2_70B, 68_976_648_192),
    "Llama-3-8B": (LLAMA_3_8B, 8_030_261_248),
    "Mistral-7B": (MISTRAL_7B, 7_241_732_096),
    "Qwen2.5-0.5B": (QWEN2_5_HALF_B, 494_032_768),
    "Qwen2.5-7B": (QWEN2_5_7B, 7_615_616_512),
    "Qwen3-8B": (QWEN3_8B, 8_190_735_360),
    "Qwen3-0.6B": (QWEN3_06B, 596_049_920),
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "Mixtral-8x7B": (MIXTRAL_8X7B, 46_702_792_704),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoints(name: str) -> None:
    shape, published = PUBLISHED[name]
    assert formulas.parameter_count(shape) == published


# Of these the papers give rounded billions only: DeepSeek-V2 (arXiv 2405.04434) 236 B; DeepSeek-V3 (arXiv 2412.19437)
# 671 B and 37 B active; Qwen3 (arXiv 2505.09388) 3.3 B active; Mixtral (arXiv 2401.04088) 12.9 B ("13B") active.
@pytest.mark.parametrize(
    ("shape", "billions"), [(DEEPSEEK_V2, 236), (DEEPSEEK_V3, 671), (LLAMA_3_8B, 8.03), (QWEN3_30B_A3B, 30.5)]
)
def test_parameters_agree_with_rounded_figures(shape: ModelShape, billions: float) -> None:
    assert formulas.parameter_count(shape) == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize(("shape", "billions"), [(MIXTRAL_8X7B, 12.9), (DEEPSEEK_V3, 37.5), (QWEN3_30B_A3B, 3.35)])
def test_active_parameters_count_the_tables(shape: ModelShape, billions: float) -> None:
    assert formulas.active_parameter_count(shape) == pytest.approx(billions * 1e9, rel=0.01)


def test_deepseek_leaves_the_embedding_out_of_active_parameters() -> None:
    """Its 2.4 B of V2-Lite and 21 B of V2 are cut to two digits: 2.45 and 20.85 without the embedding table."""
    lite = formulas.active_parameter_count(DEEPSEEK_V2_LITE) - formulas.embedding_parameters(DEEPSEEK_V2_LITE)
    assert lite == 2_451_435_008
    large = formulas.active_parameter_count(DEEPSEEK_V2) - formulas.embedding_parameters(DEEPSEEK_V2)
    assert large == pytest.approx(21e9, rel=0.01)


def test_flops_of_llama_2_7b_by_hand() -> None:
    """6 N + 12 L W T a token (PaLM, appendix B), with N without the embedding table."""
    matmul = 6_738_415_616 - 32000 * 4096 - 65 * 4096
    assert formulas.matmul_parameters(LLAMA_2_7B) == matmul
    token = 6 * matmul + 12 * 32 * 4096 * 4096
    assert formulas.train_flops(LLAMA_2_7B, 4096) == 4096 * token


def test_decoding_works_on_one_token_and_its_context() -> None:
    """One token after 1000 others: 2 N and 4 W L for each of 1001 keys."""
    flops = formulas.forward_flops(LLAMA_2_7B, 1, 1001)
    assert flops == 2 * formulas.matmul_parameters(LLAMA_2_7B) + 4 * 4096 * 32 * 1001


def test_prefill_makes_one_row_of_logits() -> None:
    every = formulas.forward_flops(LLAMA_3_8B, 512, 512)
    last = formulas.forward_flops(LLAMA_3_8B, 512, 512, output_tokens=1)
    assert every - last == 2 * 4096 * 128256 * 511


def test_cache_of_public_models() -> None:
    """DeepSeek-V2 (table 1): 576 values a layer; Llama-2-70B with 8 of 64 heads: 320 KiB a token in fp16."""
    assert formulas.cache_bytes_per_token(LLAMA_2_70B, 2) == 320 * 1024
    assert formulas.cache_bytes_per_token(LLAMA_2_7B, 2) == 512 * 1024
    assert formulas.cache_bytes_per_token(DEEPSEEK_V2, 2) == 60 * 576 * 2


def test_recomputing_all_layers_is_their_forward_less_the_last_product_of_each() -> None:
    full = formulas.recomputed_flops(LLAMA_2_7B, 4096, "full")
    last_products = 32 * 2 * 4096 * 11008 * 4096  # which nothing in the backward pass needs
    assert full == formulas.forward_flops(LLAMA_2_7B, 4096, 4096) - 2 * 4096 * 32000 * 4096 - last_products
    assert formulas.recomputed_flops(LLAMA_2_7B, 4096, "selective") == 4 * 32 * 4096 * 4096 * 4096
    assert formulas.recomputed_flops(LLAMA_2_7B, 4096, "none") == 0


# Encoder


BERT_BASE = EncoderShape(layers=12, width=768, heads=12, hidden=3072, vocabulary=30522)


def test_bert_base() -> None:
    """The checkpoints bert-base-uncased, bert-base-chinese and bert-large-uncased, with the pooler."""
    assert encoder_parameters(BERT_BASE) == 109_482_240
    assert encoder_parameters(dataclasses.replace(BERT_BASE, vocabulary=21128)) == 102_267_648
    large = EncoderShape(layers=24, width=1024, heads=16, hidden=4096, vocabulary=30522)
    assert encoder_parameters(large) == 335_141_888
    assert encoder_parameters(BERT_BASE, classes=15) - encoder_parameters(BERT_BASE) == 769 * 15


def test_flops_of_bert_base() -> None:
    """TinyBERT (arXiv 1909.10351, table 1) and MobileBERT (arXiv 2004.02984, table 3): 22.5 B, 128 tokens."""
    flops = encoder_flops(BERT_BASE, 128)
    assert flops == 12 * (2 * 128 * (4 * 768**2 + 2 * 768 * 3072) + 4 * 128**2 * 768) + 2 * 768**2
    assert flops == pytest.approx(22.5e9, rel=0.01)


# Against torch

SMALL = ModelShape(layers=3, width=48, heads=6, kv_heads=2, head_width=10, hidden=56, vocabulary=64)


def decoder(shape: ModelShape, recompute: str = "none", dtype: str = "float32") -> Any:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused

    model = Decoder(shape, fused=Fused(), recompute=recompute)  # type: ignore[arg-type]  # a word of the parameters
    materialise(model, seed=1, device="cpu", dtype=getattr(torch, dtype))
    return model


@pytest.mark.torch
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tied": True, "qkv_bias": True},
        {"qk_norm": True, "head_width": None},
        {"attention": "mla", "kv_rank": 16, "nope_width": 8, "rope_width": 4, "value_width": 12},
        {"attention": "mla", "kv_rank": 16, "nope_width": 8, "rope_width": 4, "value_width": 12, "q_rank": 20},
        {"experts": 4, "experts_per_token": 2, "shared_experts": 1, "expert_hidden": 24, "dense_layers": 1},
    ],
)
def test_torch_counts_the_same(change: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = dataclasses.replace(SMALL, **change)
    model = decoder(shape)
    assert sum(weight.numel() for weight in model.parameters()) == formulas.parameter_count(shape)
    tokens_BT = torch.randint(shape.vocabulary, (2, 9))
    with FlopCounterMode(display=False) as forward, sdpa_kernel(SDPBackend.MATH):
        logits_BTV = model(tokens_BT)
    assert forward.get_total_flops() == 2 * formulas.forward_flops(shape, 9, 9)
    with FlopCounterMode(display=False) as backward:
        logits_BTV.sum().backward()
    assert forward.get_total_flops() + backward.get_total_flops() == 2 * formulas.train_flops(shape, 9)


def saved_bytes(shape: ModelShape, recompute: str, dtype: str, weights: str, batch: int, tokens: int) -> int:
    """Bytes of all storages that torch keeps for the backward pass, weights not counted."""
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._fused import Fused

    model = decoder(shape, recompute, "bfloat16" if weights == "bf16" else "float32")
    weights_at = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    sizes: dict[int, int] = {}
    alive = []  # so that no two storages share an address

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights_at and storage.nbytes():
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    tokens_BT = torch.randint(shape.vocabulary, (batch, tokens))
    targets_N = torch.randint(shape.vocabulary, (batch * tokens,))
    autocast = torch.autocast("cpu", torch.bfloat16) if dtype != weights else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        Fused().cross_entropy(model(tokens_BT).flatten(0, 1), targets_N)
    return sum(sizes.values())


@pytest.mark.torch
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("dtype", "weights"), [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16")])
@pytest.mark.parametrize("kind", ["gqa", "norms of q and k", "mla", "compressed query", "experts"])
def test_activations_are_what_torch_saves(recompute: Any, dtype: str, weights: str, kind: str) -> None:
    latent = {"attention": "mla", "kv_rank": 16, "nope_width": 8, "rope_width": 4, "value_width": 12}
    changes: dict[str, dict[str, Any]] = {
        "gqa": {}, "norms of q and k": {"qk_norm": True}, "mla": latent, "compressed query": latent | {"q_rank": 20},
        "experts": {
            "experts": 4, "experts_per_token": 2, "shared_experts": 1, "expert_hidden": 24, "dense_layers": 1,
        },
    }  # fmt: skip
    shape = dataclasses.replace(SMALL, **changes[kind])
    held = held_as(batch=2, tokens=7, dtype=dtype, weights=weights, recompute=recompute)
    predicted = formulas.memory_prediction(shape, held, weights=weights)
    # The sum of the weights of the targets, one fp32 value, is the loss's own.
    assert saved_bytes(shape, recompute, dtype, weights, 2, 7) - predicted["activations"] in (0, 4)


def test_memory_of_weights_gradients_and_moments() -> None:
    """16 bytes a parameter in fp32, 8 in bf16; sharding divides them; LoRA trains few."""
    held = held_as(batch=1, tokens=8, dtype="bf16", recompute="full")
    count = formulas.parameter_count(SMALL)
    whole = formulas.memory_prediction(SMALL, held)
    assert (whole["weights"], whole["gradients"], whole["optimizer"]) == (4 * count, 4 * count, 8 * count)
    half = formulas.memory_prediction(SMALL, held, weights="bf16", shards=4, trained=400)
    assert half["weights"] == 2 * -(-count // 4)
    assert (half["gradients"], half["optimizer"]) == (200, 400)


def test_stages_of_a_pipeline_add_up_to_the_model() -> None:
    held = held_as(batch=1, tokens=8, dtype="fp32", recompute="none")
    whole = formulas.memory_prediction(SMALL, held)
    first = formulas.memory_prediction(SMALL, held, layers=range(2), output=False)
    last = formulas.memory_prediction(SMALL, held, layers=range(2, 3), embedding=False)
    for part in ("weights", "gradients", "optimizer"):
        assert first[part] + last[part] == whole[part]
    tables = 2 * 8 * SMALL.key_width * 4
    assert first["activations"] + last["activations"] == whole["activations"] + tables


@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8), st.integers(2, 50),
    st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=60)
def test_a_count_is_the_sum_of_its_tensors(
    layers: int, groups: int, shared: int, half: int, vocabulary: int, tied: bool, norm: bool, experts: int, dense: int
) -> None:
    shape = ModelShape(
        layers=layers, width=12, heads=groups * shared, kv_heads=groups, head_width=2 * half, hidden=10,
        vocabulary=vocabulary, tied=tied, qk_norm=norm, qkv_bias=not norm, experts=experts,
        experts_per_token=min(1, experts) or 1, shared_experts=1, expert_hidden=4, dense_layers=min(dense, layers),
    )  # fmt: skip
    q, kv = groups * shared * 2 * half, groups * 2 * half
    tensors = [(vocabulary, 12), (12,)]
    tensors += [] if tied else [(vocabulary, 12)]
    for layer in range(layers):
        tensors += [(12,), (12,), (q, 12), (kv, 12), (kv, 12), (12, q)]
        tensors += [(2 * half,), (2 * half,)] if norm else [(q,), (kv,), (kv,)]
        if experts and layer >= dense:
            tensors += [(experts, 12)] + 3 * (experts + 1) * [(4, 12)]
        else:
            tensors += 3 * [(10, 12)]
    sizes = [size[0] * (size[1] if len(size) > 1 else 1) for size in tensors]
    assert formulas.parameter_count(shape) == sum(sizes)
    tables = vocabulary * 12
    assert formulas.active_parameter_count(shape) <= sum(sizes)
    assert formulas.matmul_parameters(shape) <= formulas.active_parameter_count(shape) + (tables if tied else 0)


@given(st.integers(1, 3), st.integers(1, 64), st.integers(1, 9))
def test_training_an_encoder_is_three_forward_passes(layers: int, tokens: int, classes: int) -> None:
    shape = EncoderShape(layers=layers, width=8, heads=2, hidden=24, vocabulary=10)
    assert encoder_train_flops(shape, tokens, classes) == 3 * encoder_flops(shape, tokens, classes)
    more = encoder_flops(shape, tokens, classes + 1) - encoder_flops(shape, tokens, classes)
    assert more == 2 * 8
