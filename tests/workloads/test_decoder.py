"""The decoder: causal, packed, of every shape, the same for every way of recomputing and of drawing its weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from ascend_perf.workloads._model_shape import ModelShape, forward_flops, parameter_count, recomputed_flops
from tests.workloads._threads import one_thread as one_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# B batch, T tokens, V vocabulary

SMALL = ModelShape(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
SHAPES = {
    "llama": SMALL,
    "multi-head": replace(SMALL, kv_heads=4),
    "qwen2": replace(SMALL, qkv_bias=True),
    "qwen3": replace(SMALL, qk_norm=True, tied=True, head_width=6, rope_base=1e6, norm_epsilon=1e-6),
}


def decoder(shape: ModelShape = SMALL, *, seed: int = 0, **known: Any) -> Any:
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused

    with torch.device("meta"):
        model = Decoder(shape, fused=Fused(), **known)
    materialise(model, seed=seed, device="cpu")
    return model


def tokens_BT(batch: int, tokens: int, seed: int = 0) -> Any:
    return torch.randint(32, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_net_has_the_parameters_and_forward_flops_of_the_formula(shape: ModelShape) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = decoder(shape)
    # The counter does not know the fused attention of the CPU: have it written out.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(tokens_BT(2, 8))

    assert sum(weight.numel() for weight in model.parameters()) == parameter_count(shape)
    assert counter.get_total_flops() == 2 * forward_flops(shape, 8, 8)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_is_recomputed_is_executed_work(recompute: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = decoder(recompute=recompute)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens_BT(2, 8)).sum().backward()

    again = recomputed_flops(SMALL, 8, recompute)
    if recompute == "selective":  # written out, attention's second product need not be done again; one kernel does both
        again //= 2
    assert counter.get_total_flops() == 2 * (3 * forward_flops(SMALL, 8, 8) + again)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_recomputation_changes_neither_loss_nor_gradients(shape: ModelShape) -> None:
    gradients, losses = [], []
    for recompute in ("none", "selective", "full"):
        model = decoder(shape, recompute=recompute)
        loss = model(tokens_BT(2, 8)).logsumexp(-1).sum()
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))

    assert losses[0] == losses[1] == losses[2]
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_attention_by_hand() -> None:
    # One head of width 2, value and output projections the identity, q and k zero: each token is the mean of those
    # before it and itself.
    from ascend_perf.workloads._decoder import Attention, rotary_tables
    from ascend_perf.workloads._fused import Fused

    shape = ModelShape(layers=1, width=2, heads=1, kv_heads=1, hidden=2, vocabulary=2)
    attention = Attention(shape, layer=0, fused=Fused())
    with torch.no_grad():
        for layer in (attention.q, attention.k):
            layer.weight.zero_()
        for layer in (attention.v, attention.out):
            layer.weight.copy_(torch.eye(2))
    x_BTW = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [5.0, 1.0]]])
    y_BTW = attention(x_BTW, *rotary_tables(torch.arange(3).unsqueeze(0), 2, 10_000.0))

    assert y_BTW.flatten().tolist() == pytest.approx([1, 0, 2, 1, 3, 1])  # (1 + 3 + 5) / 3 = 3, (0 + 2 + 1) / 3 = 1


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_token_does_not_see_those_after_it(shape: ModelShape) -> None:
    model = decoder(shape).eval()
    before = tokens_BT(1, 8)
    after = before.clone()
    after[0, 5] = (after[0, 5] + 1) % 32

    with torch.no_grad():
        difference = (model(before) - model(after)).abs().amax(-1)[0]

    assert difference[:5].max() < 1e-6
    assert difference[5:].min() > 1e-6


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_packed_texts_give_what_each_gives_alone(shape: ModelShape) -> None:
    model = decoder(shape)
    first, second, third = (tokens_BT(1, length, seed=length) for length in (3, 7, 2))
    packed = torch.cat((first, second, third), dim=1)
    segments = torch.tensor([[0] * 3 + [1] * 7 + [2] * 2])
    positions = torch.tensor([[*range(3), *range(7), *range(2)]])

    with torch.no_grad():
        together = model(packed, positions_BT=positions, segments_BT=segments)
        alone = torch.cat([model(text) for text in (first, second, third)], dim=1)

    assert torch.allclose(together, alone, atol=1e-6)
    assert not torch.allclose(model(packed), alone, atol=1e-3)


def test_rotation_keeps_lengths_and_depends_on_the_distance_alone() -> None:
    from ascend_perf.workloads._decoder import rotary_tables
    from ascend_perf.workloads._fused import Fused

    torch.manual_seed(0)
    cosine, sine = rotary_tables(torch.arange(12).unsqueeze(0), 8, 10_000.0)
    query, key = (torch.randn(8).expand(1, 1, 12, 8) for _ in range(2))
    turned_query, turned_key = (Fused().rotary(x, cosine, sine)[0, 0] for x in (query, key))
    products = turned_query @ turned_key.T

    assert turned_query.norm(dim=-1) == pytest.approx(query[0, 0].norm(dim=-1).numpy(), rel=1e-5)
    assert float(products[7, 4]) == pytest.approx(float(products[10, 7]), rel=1e-4)  # both three apart


def test_the_angle_of_a_pair_by_hand() -> None:
    from ascend_perf.workloads._decoder import rotary_tables

    cosine, sine = rotary_tables(torch.tensor([[3]]), 4, 100.0)

    # Pairs turn by 3 x 100^0 = 3 and 3 x 100^(-2/4) = 0.3; both halves alike.
    assert cosine.flatten().tolist() == pytest.approx([-0.9899925, 0.9553365, -0.9899925, 0.9553365], rel=1e-5)
    assert sine.flatten().tolist() == pytest.approx([0.1411200, 0.2955202, 0.1411200, 0.2955202], rel=1e-5)


def test_stages_put_together_are_the_whole() -> None:
    shape = replace(SMALL, layers=3)
    whole = decoder(shape, seed=4)
    first = decoder(shape, seed=4, layers=range(2), has_output=False)
    last = decoder(shape, seed=4, layers=range(2, 3), has_embedding=False)

    with torch.no_grad():
        assert torch.equal(last(first(tokens_BT(2, 8))), whole(tokens_BT(2, 8)))


def test_a_part_of_a_weight_has_the_values_of_the_whole() -> None:
    from types import SimpleNamespace

    from ascend_perf.workloads import _decoder

    def part(axis: int, index: int, size: tuple[int, ...]) -> Any:
        values = torch.empty(size)
        _decoder.initialise(values, "blocks.0.mlp.up.weight", 3, SimpleNamespace(axis=axis, index=index, count=2))
        return values

    whole = torch.empty(10, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_decoder, "_BLOCK_VALUES", 18)  # three rows from each random stream
        _decoder.initialise(whole, "blocks.0.mlp.up.weight", 3)
        rows = torch.cat([part(0, index, (5, 6)) for index in range(2)])
        columns = torch.cat([part(1, index, (10, 3)) for index in range(2)], dim=1)

    assert torch.equal(rows, whole)
    assert torch.equal(columns, whole)


def test_weights_depend_on_seed_and_name_and_are_normal() -> None:
    shape = replace(SMALL, width=64, qkv_bias=True)
    model, other = decoder(shape), decoder(shape, seed=1)
    block = model.blocks["0"]

    assert not torch.equal(block.attention.q.weight, model.blocks["1"].attention.q.weight)
    assert not torch.equal(block.attention.q.weight, other.blocks["0"].attention.q.weight)
    table = model.embedding.weight.detach()
    assert float(table.std()) == pytest.approx(0.02, rel=0.05)
    assert float(table.mean()) == pytest.approx(0.0, abs=0.0015)
    assert block.mlp_norm.weight.eq(1).all()
    assert block.attention.q.bias.eq(0).all()


def test_logits_at_one_place_are_those_of_the_whole() -> None:
    model = decoder()

    with torch.no_grad():
        whole = model(tokens_BT(2, 8))
        chosen = model(tokens_BT(2, 8), logits_at_B=torch.tensor([7, 3]))

    assert torch.allclose(chosen[:, 0], torch.stack((whole[0, 7], whole[1, 3])), atol=1e-6)


def test_each_layer_keeps_its_keys_in_the_cache() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.kept: dict[int, tuple[Any, Any]] = {}

        def update(self, layer: int, k: Any, v: Any) -> tuple[Any, Any]:
            old = self.kept.get(layer)
            self.kept[layer] = (k, v) if old is None else (torch.cat((old[0], k), 2), torch.cat((old[1], v), 2))
            return self.kept[layer]

    model, cache, text = decoder(), Recorder(), tokens_BT(2, 6)
    with torch.no_grad():
        model(text[:, :5], cache=cache)
        everything = torch.ones(1, 1, 1, 6, dtype=torch.bool)
        step = model(text[:, 5:], positions_BT=torch.full((2, 1), 5), mask_B1TS=everything, cache=cache)
        whole = model(text)

    assert sorted(cache.kept) == [0, 1]
    assert cache.kept[0][0].shape == (2, 2, 6, 4)
    assert torch.allclose(step[:, 0], whole[:, 5], atol=1e-6)


def test_packed_rows_reach_the_fused_operator_by_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused, FusedSettings
    from ascend_perf.workloads._text_data import text_ends
    from tests.workloads._npu_stand_in import stand_in

    module, calls = stand_in()
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    model = Decoder(SMALL, fused=Fused(FusedSettings(), "npu", training=True))
    materialise(model, seed=0, device="cpu")
    text = tokens_BT(2, 6)
    segments = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
    ends = text_ends(list(segments.numpy()))

    with torch.no_grad():
        fused = model(text, segments_BT=segments, ends=ends)
        plain = decoder()(text, segments_BT=segments, ends=ends)

    (first, _) = (arguments for name, arguments in calls if name == "npu_fusion_attention")
    assert first["actual_seq_qlen"] == [2, 5, 6, 12]
    assert first["input_layout"] == "TND"
    assert torch.allclose(fused, plain, atol=1e-5)


def test_in_inference_sum_and_norm_are_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused, FusedSettings
    from tests.workloads._npu_stand_in import stand_in

    module, calls = stand_in()
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    model = Decoder(SMALL, fused=Fused(FusedSettings(), "npu", training=False))
    materialise(model, seed=0, device="cpu")

    with torch.no_grad():
        fused, plain = model(tokens_BT(2, 6)), decoder()(tokens_BT(2, 6))

    assert [name for name, _ in calls].count("npu_add_rms_norm") == 2  # one in each layer
    assert torch.allclose(fused, plain, atol=1e-5)
