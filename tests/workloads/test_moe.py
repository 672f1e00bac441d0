"""The layer with experts against a loop over single tokens; what its router is recorded to do, and its balance."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._model_shape import ModelShape
from ascend_perf.workloads._routing import LayerLoad, Routing, load_metrics, load_rows
from tests.workloads._threads import one_thread as one_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

if TYPE_CHECKING:
    from torch import Tensor

    from ascend_perf.workloads._moe import MixtureOfExperts

# B batch, T tokens, W width, E experts, N tokens of all rows

SHAPE = ModelShape(
    layers=1, width=8, heads=2, experts=4, experts_per_token=2, shared_experts=1, expert_hidden=6
)
ROUTINGS = {
    "softmax": Routing(),
    "as they are": Routing(normalise=False, weight_scale=1.5, balance_loss=0.0),
    "sigmoid with bias": Routing(score="sigmoid", bias_rate=0.25, weight_scale=2.5, balance_loss=0.0),
    "groups": Routing(expert_groups=2, expert_groups_kept=1),
}


def layer_of(shape: ModelShape, routing: Routing, seed: int = 0) -> MixtureOfExperts:
    """In fp64, with weights of about 1, so that experts differ."""
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._moe import MixtureOfExperts

    layer = MixtureOfExperts(shape, layer=0, fused=Fused(), routing=routing)
    layer.double()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(generator=random)
        layer.bias_steps_E.copy_(torch.arange(shape.experts) - 1)
    return layer


def rows(batch: int, tokens: int, width: int = 8, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, width, generator=random, dtype=torch.float64)


def mlp(gate: Tensor, up: Tensor, down: Tensor, x_W: Tensor) -> Tensor:
    g, u = gate @ x_W, up @ x_W
    return down @ (g / (1 + torch.exp(-g)) * u)


def choose(layer: MixtureOfExperts, x_W: Tensor) -> dict[int, Tensor]:
    """Expert -> weight of one token, in plain Python; scores in fp32, as every router here has them."""
    routing, shape = layer.routing, layer.shape
    logits = (layer.router.weight @ x_W).float()
    scores = torch.softmax(logits, 0) if routing.score == "softmax" else 1 / (1 + torch.exp(-logits))
    wanted = [float(score) for score in scores.detach()]
    if routing.bias_rate:
        wanted = [score + routing.bias_rate * int(step) for score, step in zip(wanted, layer.bias_steps_E, strict=True)]
    size = shape.experts // routing.expert_groups
    groups = sorted(range(routing.expert_groups), key=lambda group: -max(wanted[group * size : group * size + size]))
    allowed = [expert for expert in range(shape.experts) if expert // size in groups[: routing.expert_groups_kept]]
    best = sorted(allowed, key=lambda expert: -wanted[expert])[: shape.experts_per_token]
    total = sum(scores[expert] for expert in best) if routing.normalise else 1.0
    return {expert: scores[expert] / total * routing.weight_scale for expert in best}


def one_by_one(layer: MixtureOfExperts, x_BTW: Tensor, slots: int = 0) -> Tensor:
    """What the layer computes, token after token; an expert that has `slots` tokens takes no more."""
    shape, made, taken = layer.shape, [], [0] * layer.shape.experts
    gates, ups, downs = (
        weight.view(shape.experts, -1, weight.shape[1])
        for weight in (layer.experts.gate, layer.experts.up, layer.experts.down)
    )
    for x_W in x_BTW.flatten(0, 1):
        y_W = torch.zeros_like(x_W)
        if layer.shared is not None:
            y_W = y_W + mlp(layer.shared.gate.weight, layer.shared.up.weight, layer.shared.down.weight, x_W)
        for expert, weight in choose(layer, x_W).items():
            taken[expert] += 1
            if not slots or taken[expert] <= slots:
                y_W = y_W + weight.double() * mlp(gates[expert], ups[expert], downs[expert], x_W)
        made.append(y_W)
    return torch.stack(made).view_as(x_BTW)


def gradients(layer: MixtureOfExperts, y_BTW: Tensor) -> list[Tensor]:
    """Of all weights, for a sum in which every value has a weight of its own."""
    factor = torch.arange(y_BTW.numel(), dtype=torch.float64).sin().view_as(y_BTW)
    return list(torch.autograd.grad((y_BTW * factor).sum(), list(layer.parameters()), allow_unused=True))


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_the_layer_and_its_gradients_are_those_of_a_loop_over_tokens(routing: Routing, shared: int) -> None:
    layer = layer_of(replace(SHAPE, shared_experts=shared), routing)
    x_BTW = rows(2, 7)
    wanted, made = one_by_one(layer, x_BTW), layer(x_BTW)

    assert torch.allclose(made, wanted, rtol=0, atol=1e-12)
    for ours, loop in zip(gradients(layer, made), gradients(layer, wanted), strict=True):
        # Through the weights, which are fp32, other orders of sums reach the router.
        assert torch.allclose(ours, loop, rtol=0, atol=2e-5 if ours.shape == layer.router.weight.shape else 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.floats(0.1, 2.0),
    st.integers(0, 1000),
)  # fmt: skip
def test_a_full_expert_drops_the_tokens_that_come_last(
    experts: int, k: int, batch: int, tokens: int, factor: float, seed: int
) -> None:
    shape = replace(SHAPE, experts=experts, experts_per_token=min(k, experts), shared_experts=0)
    layer = layer_of(shape, Routing(capacity_factor=factor), seed)
    x_BTW = rows(batch, tokens, seed=seed + 1)
    slots = max(1, math.ceil(factor * batch * tokens * shape.experts_per_token / experts))
    made, wanted = layer(x_BTW), one_by_one(layer, x_BTW, slots)

    assert torch.allclose(made, wanted, rtol=0, atol=1e-12)
    ours, loop = gradients(layer, made), gradients(layer, wanted)
    for mine, other in zip(ours[1:], loop[1:], strict=True):  # all but the router's
        other = torch.zeros_like(mine) if other is None else other
        assert torch.allclose(mine, other, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1000))
def test_sorted_rows_come_back_in_order(tokens: int, k: int, experts: int, seed: int) -> None:
    from ascend_perf.workloads._fused import Fused

    random = torch.Generator().manual_seed(seed)
    x_NW = torch.randn(tokens, 3, generator=random, dtype=torch.float64)
    experts_NK = torch.randint(experts, (tokens, k), generator=random)
    share_NK = torch.rand(tokens, k, generator=random, dtype=torch.float64) + 0.1
    x_RW, rows_R = Fused().moe_permute(x_NW, experts_NK)

    assert sorted(rows_R.tolist()) == list(range(tokens * k))
    assert experts_NK.flatten()[torch.argsort(rows_R)].tolist() == sorted(experts_NK.flatten().tolist())
    back_NW = Fused().moe_unpermute(x_RW, rows_R, share_NK)
    assert torch.allclose(back_NW, x_NW * share_NK.sum(1, keepdim=True), rtol=1e-12, atol=1e-12)


def chosen_by_hand(capacity_factor: float = 0.0) -> MixtureOfExperts:
    """One expert a token: expert e takes tokens whose e-th value is largest. After a step on two rows."""
    shape = replace(SHAPE, width=4, heads=1, kv_heads=1, experts_per_token=1, shared_experts=0)
    layer = layer_of(shape, Routing(capacity_factor=capacity_factor))
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(4))
    x_BTW = torch.nn.functional.one_hot(torch.tensor([[0, 0, 0, 1], [2, 0, 1, 0]]), 4).double() * 5
    for _ in range(2):
        layer(x_BTW).sum().backward()
    return layer


def test_the_load_of_each_expert_is_recorded() -> None:
    from ascend_perf.workloads._moe import RouterLoads

    layer = chosen_by_hand()
    loads = RouterLoads([layer], layer.shape, layer.routing, "cpu")
    (load,), balance = loads.read()

    # Two passes over 8 tokens: five went to expert 0, two to expert 1, one to expert 2.
    assert load == LayerLoad(layer=0, chosen_E=[10, 4, 2, 0], dropped=0, fullest=10)
    assert load.imbalance == load.call_imbalance == 10 / 4
    shares = (10 / 16, 4 / 16, 2 / 16)
    assert load.entropy == pytest.approx(-sum(share * math.log(share) for share in shares) / math.log(4))
    assert load.rank_imbalance(2) == 14 / 8
    # Softmax of (5, 0, 0, 0): a token's own expert has p, the others q. Row 0: shares 3/4, 1/4, 0, 0. Row 1: 1/2, 1/4,
    # 1/4, 0. Mean scores are share x p + (1 - share) x q.
    p = math.exp(5) / (math.exp(5) + 3)
    q = (1 - p) / 3
    expected = [
        4 * sum(share * (share * p + (1 - share) * q) for share in row) for row in ((0.75, 0.25), (0.5, 0.25, 0.25))
    ]
    assert balance == pytest.approx(sum(expected) / 2, rel=1e-6)

    loads.forget()
    assert loads.read() == ([LayerLoad(layer=0, chosen_E=[0, 0, 0, 0])], None)


def test_dropped_tokens_are_counted() -> None:
    from ascend_perf.workloads._moe import RouterLoads

    layer = chosen_by_hand(capacity_factor=1.0)  # 8 tokens over 4 experts: two each
    (load,), _ = RouterLoads([layer], layer.shape, layer.routing, "cpu").read()

    assert load == LayerLoad(layer=0, chosen_E=[10, 4, 2, 0], dropped=2 * 3, fullest=10)
    by_name = {metric.name: metric.value for metric in load_metrics([load], 1, None)}
    assert by_name["router_dropped_tokens"] == 6
    assert by_name["router_dropped_ratio"] == 6 / 16


def test_figures_are_means_over_layers() -> None:
    loads = [LayerLoad(layer=1, chosen_E=[4, 4], fullest=5), LayerLoad(layer=2, chosen_E=[8, 0], fullest=8)]
    by_name = {metric.name: metric.value for metric in load_metrics(loads, 2, 1.25)}

    assert by_name == {
        "router_imbalance": 1.5, "router_imbalance_worst_layer": 2.0, "router_imbalance_per_call": (1.25 + 2) / 2,
        "router_load_entropy": 0.5, "router_dropped_tokens": 0, "router_dropped_ratio": 0, "expert_rank_imbalance": 1.5,
        "router_balance_loss": 1.25,
    }  # fmt: skip
    assert [tuple(row.values()) for row in load_rows(loads, 2)] == [
        (1, 0, 0, 4, 1.0), (1, 1, 1, 4, 1.0), (2, 0, 0, 8, 2.0), (2, 1, 1, 0, 0.0)
    ]  # fmt: skip
    assert load_metrics([LayerLoad(layer=0, chosen_E=[0, 0])], 1, None) == ()


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_balance_loss_reaches_the_router_with_its_factors(score: Any) -> None:
    x_BTW = rows(2, 7)
    routing = Routing(score=score, balance_loss=0.5)
    layer, alone = layer_of(SHAPE, routing), layer_of(SHAPE, replace(routing, balance_loss=0.0))
    layer.balance_weight = 3.0
    with_it, without = (gradients(one, one(x_BTW))[0] for one in (layer, alone))

    logits_BTE = (x_BTW @ alone.router.weight.T).float()
    score_BTE = torch.softmax(logits_BTE, -1) if score == "softmax" else torch.sigmoid(logits_BTE)
    score_BTE = score_BTE / score_BTE.sum(-1, keepdim=True)
    total = torch.zeros(())
    for row_TW, score_TE in zip(x_BTW, score_BTE, strict=True):
        chosen = [expert for x_W in row_TW for expert in choose(alone, x_W)]
        for expert in range(4):
            total = total + 4 * chosen.count(expert) / len(chosen) * score_TE[:, expert].mean() / 2
    (wanted,) = torch.autograd.grad(total, alone.router.weight)

    assert torch.allclose(with_it - without, 3.0 * 0.5 * wanted, rtol=1e-4, atol=1e-6)


def test_nothing_is_recorded_without_gradients_and_once_with_recomputation() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = layer_of(SHAPE, Routing())
    with torch.no_grad():
        layer(rows(2, 7))
    assert layer.chosen_E.sum() == 0
    checkpoint(layer, rows(2, 7), use_reentrant=False).sum().backward()
    assert layer.chosen_E.sum() == 2 * 7 * 2
    assert layer.numbers_3.tolist()[2] == 1


def test_the_bias_falls_where_the_load_is_above_the_mean() -> None:
    from ascend_perf.workloads._moe import RouterLoads

    layer = chosen_by_hand()
    layer.routing = Routing(bias_rate=0.1)
    layer.bias_steps_E.zero_()
    loads = RouterLoads([layer], layer.shape, layer.routing, "cpu")
    loads.update_bias()
    assert layer.bias_steps_E.tolist() == [-1, 0, 1, 1]  # 10, 4, 2, 0 of 16: the mean is 4
    loads.update_bias()  # nothing was chosen since
    assert layer.bias_steps_E.tolist() == [-1, 0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_groups_kept": 2}, "expert_groups_kept 2 is more than the 1 expert_groups"),
        ({"capacity_factor": -1.0}, "capacity_factor must be 0 or more"),
        ({"weight_scale": 0.0}, "weight_scale must be above 0"),
        ({"balance_loss": math.inf}, "balance_loss must be finite"),
    ],
)
def test_routers_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing(**change)


@pytest.mark.parametrize(
    ("shape", "routing", "message"),
    [
        (ModelShape(), Routing(), "the model has no layer with experts"),
        (SHAPE, Routing(expert_groups=3), "expert_groups 3 does not divide 4 experts; valid here: 1, 2, 4"),
        (SHAPE, Routing(expert_groups=4), "experts_per_token 2 is more than the 1 experts of expert_groups_kept 1"),
    ],
)
def test_routers_that_do_not_fit_the_experts_are_refused(shape: ModelShape, routing: Routing, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        routing.check(shape)


def test_an_npu_runs_the_fused_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch_npu that computes in its own way: the same results and gradients as plain torch."""
    from ascend_perf.workloads._fused import Fused
    from tests.workloads._npu_stand_in import stand_in

    module, calls = stand_in()
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    layer = layer_of(SHAPE, Routing())
    x_BTW = rows(2, 7)
    plain = layer(x_BTW)
    wanted = gradients(layer, plain)
    layer.fused = layer.experts.fused = Fused(kind="npu")
    made = layer(x_BTW)

    assert torch.allclose(made, plain, rtol=0, atol=1e-10)
    for ours, other in zip(gradients(layer, made), wanted, strict=True):
        assert torch.allclose(ours, other, rtol=0, atol=1e-6)
    names = [name for name, _ in calls]
    assert names.count("npu_moe_token_permute") == names.count("npu_moe_token_unpermute") == 1
    # Forward three products, backward one for each weight, and one for the input of down: the tokens need no gradient.
    assert names.count("npu_grouped_matmul") == 3 + 3 + 1
