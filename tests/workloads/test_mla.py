"""Latent attention against the formulas of the paper, head after head; and what a cache of latents gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ascend_perf.workloads._model_shape import (
    ModelShape,
    active_parameter_count,
    cache_bytes_per_token,
    parameter_count,
)
from tests.workloads._threads import one_thread as one_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

if TYPE_CHECKING:
    from torch import Tensor

    from ascend_perf.workloads._mla import LatentAttention

# B batch, T tokens, W width, C width of the latent, R width of the turned part

SHAPE = ModelShape(
    layers=1, width=10, heads=3, kv_heads=3, attention="mla", kv_rank=6, nope_width=4, rope_width=2, value_width=5
)  # fmt: skip
SHAPES = {"plain query": SHAPE, "compressed query": replace(SHAPE, q_rank=7)}


def attention_of(shape: ModelShape, **known: Any) -> LatentAttention:
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._mla import LatentAttention

    attention = LatentAttention(shape, layer=0, fused=Fused(), **known)
    attention.double()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in attention.parameters():
            weight.normal_(generator=random)
    return attention


def tables(first: int, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    from ascend_perf.workloads._decoder import rotary_tables

    cos, sin = rotary_tables(torch.arange(first, first + tokens).unsqueeze(0), width, 10_000.0)
    return cos.double(), sin.double()


def rows(tokens: int, batch: int = 2, width: int = 10) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(batch, tokens, width, generator=random, dtype=torch.float64)


def turned(x_R: Tensor, position: int) -> Tensor:
    """One pair of channels by position x 1 radian: rope_width 2."""
    cos, sin = torch.cos(torch.tensor(float(position))).double(), torch.sin(torch.tensor(float(position))).double()
    return torch.stack((x_R[0] * cos - x_R[1] * sin, x_R[0] * sin + x_R[1] * cos))


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean() + epsilon).sqrt() * weight


def head_by_head(attention: LatentAttention, shape: ModelShape, x_BTW: Tensor) -> Tensor:
    """Equations 9 to 19 of the paper, for each token and head."""
    n, r, v, c = shape.nope_width, shape.rope_width, shape.value_width, shape.kv_rank
    made = []
    for x_TW in x_BTW:
        queries, keys, values = [], [], []
        for position, x_W in enumerate(x_TW):
            if shape.q_rank is None:
                q = attention.q.weight @ x_W
            else:
                low = normed(attention.q_down.weight @ x_W, attention.q_norm.weight, shape.norm_epsilon)
                q = attention.q_up.weight @ low
            down = attention.kv_down.weight @ x_W
            kv = attention.kv_up.weight @ normed(down[:c], attention.kv_norm.weight, shape.norm_epsilon)
            shared = turned(down[c:], position)
            heads = range(shape.heads)
            queries.append([
                torch.cat((q[h * (n + r) :][:n], turned(q[h * (n + r) + n :][:r], position))) for h in heads
            ])  # fmt: skip
            keys.append([torch.cat((kv[h * (n + v) :][:n], shared)) for h in heads])
            values.append([kv[h * (n + v) + n :][:v] for h in heads])
        for position in range(len(x_TW)):
            mixed = []
            for head in range(shape.heads):
                scores = torch.stack([queries[position][head] @ keys[past][head] for past in range(position + 1)])
                share = torch.softmax(scores / (n + r) ** 0.5, 0)
                mixed.append(sum(share[past] * values[past][head] for past in range(position + 1)))
            made.append(attention.out.weight @ torch.cat(mixed))
    return torch.stack(made).view_as(x_BTW)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_it_computes_the_formulas_of_the_paper(shape: ModelShape, recompute: bool) -> None:
    attention, x_BTW = attention_of(shape, recompute_core=recompute), rows(5)
    made, wanted = attention(x_BTW, *tables(0, 5, 2)), head_by_head(attention, shape, x_BTW)

    # Cosines and sines are fp32.
    assert torch.allclose(made, wanted, rtol=0, atol=2e-5)
    weights = list(attention.parameters())
    ours = torch.autograd.grad(made.sin().sum(), weights)
    loop = torch.autograd.grad(wanted.sin().sum(), weights)
    for mine, other in zip(ours, loop, strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_weights_are_those_of_the_formula(shape: ModelShape) -> None:
    from ascend_perf.workloads._model_shape import attention_parameters

    assert sum(weight.numel() for weight in attention_of(shape).parameters()) == attention_parameters(shape)


@pytest.mark.parametrize("new", [1, 3, 7])
def test_tokens_over_a_cache_of_latents_are_those_of_the_whole_text(new: int) -> None:
    """One and three tokens compare latents (absorbed), seven expand them: here the border is below 6 x 9 / 3."""
    from ascend_perf.workloads._cache import PagedCache, cache_parts

    attention, x_BTW = attention_of(SHAPE), rows(12, batch=1)
    cache = PagedCache(cache_parts(SHAPE), layers=1, blocks=4, block_tokens=4, dtype=torch.float64, device="cpu")
    first = 12 - new
    with torch.no_grad():
        whole = attention(x_BTW, *tables(0, 12, 2))
        view = cache.view([[1, 2, 3]], [0], [first])
        attention(x_BTW[:, :first], *tables(0, first, 2), view.mask_B1TS, view)
        view = cache.view([[1, 2, 3]], [first], [new])
        made = attention(x_BTW[:, first:], *tables(first, new, 2), view.mask_B1TS, view)

    assert attention._absorbs(new) == (new * ((2 * 6 + 2) - (4 + 2 + 5)) < 6 * (4 + 5))
    assert torch.allclose(made, whole[:, first:], rtol=0, atol=1e-12)


def test_both_ways_over_a_cache_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.workloads._cache import DynamicCache

    attention, x_BTW = attention_of(SHAPE), rows(6)
    made = []
    for absorbs in (False, True):
        monkeypatch.setattr(attention, "_absorbs", lambda tokens, absorbs=absorbs: absorbs)
        cache = DynamicCache()
        cache.begin(6)
        with torch.no_grad():
            made.append(attention(x_BTW, *tables(0, 6, 2), None, cache))
    kept = cache.size_bytes

    assert torch.allclose(made[0], made[1], rtol=0, atol=1e-12)
    assert kept == 2 * 6 * cache_bytes_per_token(SHAPE, 8) == 2 * 6 * (6 + 2) * 8


def test_deepseek_v2_lite_has_its_published_size() -> None:
    from ascend_perf.workloads.moe_pretrain import Config, moe_pretrain

    config = moe_pretrain.settings("v2-lite").config
    assert isinstance(config, Config)
    shape = config.shape

    assert parameter_count(shape) == pytest.approx(15.7e9, rel=0.01)
    # DeepSeek's count of active ones leaves the embedding table out: 2.45 B, published as 2.4 B.
    active = active_parameter_count(shape) - shape.vocabulary * shape.width
    assert int(active / 1e8) == 24
