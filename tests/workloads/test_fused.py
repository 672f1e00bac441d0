"""Fused operators: the switch, and each operator of an NPU against plain torch, by a stand-in for torch_npu.

The stand-in (`_npu_stand_in.py`) has the operators' signatures and computes each in another way than we do. So these
tests see a wrong argument, a mask of the wrong polarity, halves in the wrong order; not what a real device does.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ascend_perf.errors import UsageError
from ascend_perf.workloads._fused import OPERATORS, Fused, FusedSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.workloads._npu_stand_in import Call, NpuFusedAdamW, stand_in  # noqa: E402  # needs torch


def npu(
    monkeypatch: pytest.MonkeyPatch, *, training: bool = True, without: tuple[str, ...] = (), **chosen: Any
) -> tuple[Fused, list[Call]]:
    """Operators as on an NPU, and the calls that the stand-in has seen."""
    module, calls = stand_in(without=without)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return Fused(FusedSettings(**chosen), "npu", training), calls


def random(*shape: int, dtype: Any = None, grad: bool = False) -> Any:
    """Normal numbers, the same for the same shape."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return numbers.to(dtype or torch.float32).requires_grad_(grad)


def equal(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def equal_with_gradients(ours: Any, plain: Any, *inputs: Any) -> None:
    """Two functions of the same tensors give the same result and the same gradients."""
    results = []
    for function in (ours, plain):
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        y = function(*leaves)
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        weight = torch.linspace(-1, 1, y.numel()).view(y.shape)
        results.append((y.detach(), torch.autograd.grad((y * weight).sum(), trained)))
    equal(results[0][0], results[1][0])
    for mine, other in zip(results[0][1], results[1][1], strict=True):
        equal(mine, other, 1e-4)


# The switch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rmsnorm=off", r"fused_ops: no operator 'rmsnorm': did you mean 'rms_norm'\?; there are rms_norm, add"),
        ("rms_norm", r"fused_ops: 'rms_norm' is not rms_norm=auto, rms_norm=on or rms_norm=off"),
        ("rms_norm=yes", r"fused_ops: 'rms_norm=yes' is not rms_norm=auto"),
    ],
)
def test_a_bad_list_of_operators_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FusedSettings(fused_ops=text)


def test_operators_can_differ_from_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = npu(monkeypatch, fused="off", fused_ops=" rms_norm = on , swiglu=auto,")
    assert [name for name in OPERATORS if fused.uses(name)] == ["rms_norm", "swiglu"]
    fused, _ = npu(monkeypatch, fused_ops="rms_norm=off")
    assert not fused.uses("rms_norm")
    assert fused.uses("attention")
    assert fused.used()["attention"] == "torch_npu.npu_fusion_attention"
    assert fused.used()["rms_norm"] == "torch"
    assert {"operator": "rms_norm", "runs": "torch"} in fused.rows()
    assert Fused().rows() == []  # nothing to tell of a CPU


def test_plain_torch_elsewhere_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # an import of it raises ImportError
    for kind in ("cpu", "cuda"):
        assert set(Fused(kind=kind).used().values()) == {"torch"}
    assert set(Fused(FusedSettings(fused="off"), "npu").used().values()) == {"torch"}
    with pytest.raises(UsageError, match="torch_npu cannot be imported: import of torch_npu halted"):
        Fused(kind="npu")


@pytest.mark.parametrize("chosen", [{"fused": "on"}, {"fused_ops": "attention=on"}])
def test_on_without_an_npu_is_an_error(chosen: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="but the device is cuda: they exist on an NPU only") as caught:
        Fused(FusedSettings(**chosen), "cuda")
    assert caught.value.hint == "use fused: auto, which takes plain torch here"


def test_an_older_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = npu(monkeypatch, without=("npu_swiglu",))
    assert not fused.uses("swiglu")
    assert fused.uses("rms_norm")
    with pytest.raises(UsageError, match="fused operator swiglu is on, but this torch_npu has no npu_swiglu"):
        npu(monkeypatch, without=("npu_swiglu",), fused="on")
    with pytest.raises(UsageError, match=r"this torch_npu has no optim\.NpuFusedAdamW"):
        npu(monkeypatch, without=("NpuFusedAdamW",), fused_ops="adamw=on")


def test_operators_without_a_gradient_are_not_used_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that op-plugin's derivatives do not list; and the attention that is for training only."""
    only_inference = {"add_rms_norm", "infer_attention", "moe_gating"}
    fused, calls = npu(monkeypatch, fused="on")
    assert {name for name in OPERATORS if not fused.uses(name)} == only_inference
    x, weight = random(2, 3, 8, grad=True), random(8, grad=True)
    y, added = fused.add_rms_norm(x, random(2, 3, 8), weight, 1e-5)
    (y.sum() + added.sum()).backward()
    assert x.grad is not None and weight.grad is not None
    assert [name for name, _ in calls] == ["npu_rms_norm"]
    fused, _ = npu(monkeypatch, fused="on", training=False)
    assert {name for name in OPERATORS if not fused.uses(name)} == {"attention", "adamw"}
    with pytest.raises(UsageError, match="fused_ops: add_rms_norm is for inference only: it has no gradient"):
        npu(monkeypatch, fused_ops="add_rms_norm=on")
    with pytest.raises(UsageError, match="fused_ops: attention is for training only"):
        npu(monkeypatch, fused_ops="attention=on", training=False)


def test_a_limit_of_an_operator_is_kept_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch, fused="on")
    x, masked = random(1, 1, 8, 8), torch.ones(8, 8).triu(1) > 0
    equal(fused.scaled_masked_softmax(x, masked, 0.5), Fused().scaled_masked_softmax(x, masked, 0.5))
    assert not calls
    assert fused.used()["scaled_masked_softmax"] == (
        "torch_npu.npu_scaled_masked_softmax (not always: needs last two axes of 32 to 4096 in steps of 32)"
    )
    fused, _ = npu(monkeypatch, fused_ops="scaled_masked_softmax=on")
    with pytest.raises(UsageError, match="scaled_masked_softmax is on, but needs: last two axes of 32 to 4096"):
        fused.scaled_masked_softmax(x, masked, 0.5)


# Norms and activations


def test_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    x, weight = random(2, 5, 16, grad=True), random(16, grad=True)
    equal_with_gradients(lambda x, w: fused.rms_norm(x, w, 1e-3), lambda x, w: Fused().rms_norm(x, w, 1e-3), x, weight)
    assert calls[-1][1]["epsilon"] == 1e-3
    bias = random(16, grad=True)
    other = random(2, 5, 16).flip(0)
    equal_with_gradients(
        lambda x, w, b: fused.add_layer_norm(x, other, w, b, 1e-3),
        lambda x, w, b: torch.nn.functional.layer_norm(x + other, (16,), w, b, 1e-3),
        x, weight, bias,
    )  # fmt: skip
    assert [name for name, _ in calls] == ["npu_rms_norm", "npu_add_layer_norm"]


def test_a_norm_keeps_the_type_of_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half activations meet fp32 weights under autocast."""
    x, weight = random(2, 16, dtype=torch.bfloat16), random(16)
    for fused in (Fused(), npu(monkeypatch)[0]):
        assert fused.rms_norm(x, weight, 1e-5).dtype == torch.bfloat16


def test_the_norm_of_a_sum_in_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch, training=False)
    x, residual, weight = random(2, 5, 16), random(2, 5, 16).flip(1), random(16)
    y, added = fused.add_rms_norm(x, residual, weight, 1e-5)
    equal(added, x + residual)
    equal(y, added / (added.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight)
    assert [name for name, _ in calls] == ["npu_add_rms_norm"]


@pytest.mark.parametrize("together", [False, True])
def test_swiglu_activates_the_first_half(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    fused, calls = npu(monkeypatch)
    gate, up = random(3, 8, grad=True), random(3, 9, grad=True)[:, :8]

    def wanted(gate: Any, up: Any) -> Any:
        return gate / (1 + torch.exp(-gate)) * up

    for one in (fused, Fused()):
        call = (lambda g, u, o=one: o.swiglu(torch.cat((g, u), -1))) if together else one.swiglu
        equal_with_gradients(call, wanted, gate, up)
    assert [(name, given["dim"]) for name, given in calls] == [("npu_swiglu", -1)]


def test_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    for approximate in ("none", "tanh"):
        equal_with_gradients(
            lambda x, a=approximate: fused.gelu(x, a),
            lambda x, a=approximate: torch.nn.functional.gelu(x, approximate=a),
            random(4, 6, grad=True),
        )
    fused.gelu(random(4, 6, dtype=torch.bfloat16))
    assert [given["approximate"] for _, given in calls] == ["none", "tanh"]
    assert fused.skipped == {"gelu": "needs fp16 or fp32"}


def test_rotary_turns_by_the_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels i and i + D/2 are a complex number, turned by the angle of i."""
    fused, calls = npu(monkeypatch)
    angle_TP = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1, 0.01]))
    cos, sin = (torch.cat((x, x), -1)[None, None] for x in (angle_TP.cos(), angle_TP.sin()))
    x_BHTD = random(2, 3, 5, 6, grad=True)

    def wanted(x: Any) -> Any:
        turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(5, 3), angle_TP)
        return torch.cat((turned.real, turned.imag), -1)

    for one in (fused, Fused()):
        equal_with_gradients(lambda x, o=one: o.rotary(x, cos, sin), wanted, x_BHTD)
    assert [name for name, _ in calls] == ["npu_rotary_mul"]
    half = fused.rotary(x_BHTD.detach().bfloat16(), cos, sin)
    assert half.dtype == calls[-1][1]["r1"].dtype == torch.bfloat16


# Attention


def by_hand(q: Any, k: Any, v: Any, allowed: Any, scale: float) -> Any:
    """Attention by loops over rows, heads and tokens; `allowed(b, t, s)` says what is seen."""
    B, H, T, _ = q.shape
    rows = []
    for b in range(B):
        for h in range(H):
            group = h * k.shape[1] // H
            for t in range(T):
                seen = [s for s in range(k.shape[2]) if allowed(b, t, s)]
                weights = torch.softmax(torch.stack([q[b, h, t] @ k[b, group, s] * scale for s in seen]), 0)
                rows.append(sum(w * v[b, group, s] for w, s in zip(weights, seen, strict=True)))
    return torch.stack(rows).view(B, H, T, -1)


CASES = {
    "causal": ({}, 5, lambda b, t, s: s <= t),
    "all": ({"causal": False}, 5, lambda b, t, s: True),
    "last tokens": ({}, 8, lambda b, t, s: s <= t + 3),
    "masked": ({"mask_B1TS": torch.ones(2, 1, 5, 8).tril(1) > 0, "scale": 0.3}, 8, lambda b, t, s: s <= t + 1),
    "packed": (
        {"ends": [2, 5, 6, 10]}, 5, lambda b, t, s: s <= t and [0, 0, 1, 1, 1, 2, 3, 3, 3, 3][b * 5 + t]
        == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3][b * 5 + s],
    ),
    "lengths": ({"key_lengths": [6, 8]}, 8, lambda b, t, s: s <= t + (1, 3)[b]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("value_width", [4, 3])
def test_attention(monkeypatch: pytest.MonkeyPatch, name: str, training: bool, value_width: int) -> None:
    arguments, keys, allowed = CASES[name]
    fused, calls = npu(monkeypatch, training=training)
    dtype = torch.float32 if training else torch.bfloat16
    q, k = random(2, 6, 5, 4, grad=True, dtype=dtype), random(2, 2, keys, 4, grad=True, dtype=dtype)
    v = random(2, 2, keys, value_width, grad=True, dtype=dtype)
    scale = arguments.get("scale", 0.5)

    def wanted(q: Any, k: Any, v: Any) -> Any:
        return by_hand(q.float(), k.float(), v.float(), allowed, scale)

    equal_with_gradients(lambda q, k, v: Fused().attention(q, k, v, **arguments), wanted, *map(_full, (q, k, v)))
    if training:
        equal_with_gradients(lambda q, k, v: fused.attention(q, k, v, **arguments), wanted, q, k, v)
    else:
        with torch.no_grad():
            equal(fused.attention(q, k, v, **arguments).float(), wanted(q, k, v), 2e-2)
    (call,) = calls
    assert call[0] == ("npu_fusion_attention" if training else "npu_fused_infer_attention_score")
    assert call[1]["key"].shape[-3 if name != "packed" or not training else -2] == 2  # heads are not repeated


def _full(x: Any) -> Any:
    return x.detach().float().requires_grad_()


def test_layouts_and_masks_of_training_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    q, k = random(2, 6, 5, 4), random(2, 2, 5, 4)
    fused.attention(q, k, k)
    fused.attention(q, k, k, ends=[3, 5, 10])
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    fused.attention(q, k, k, mask_B1TS=allowed)
    plain, packed, masked = (given for _, given in calls)
    assert (plain["input_layout"], plain["head_num"], plain["sparse_mode"]) == ("BNSD", 6, 3)
    assert plain["atten_mask"].shape == (2048, 2048)
    assert plain["atten_mask"][0].tolist() == [False] + 2047 * [True]  # True hides
    assert (packed["input_layout"], packed["actual_seq_qlen"], packed["sparse_mode"]) == ("TND", [3, 5, 10], 3)
    assert packed["query"].shape == (10, 6, 4) and packed["key"].shape == (10, 2, 4)
    assert masked["sparse_mode"] == 0
    assert masked["atten_mask"].equal(~allowed)


def test_decoding_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch, training=False)
    q, k = random(2, 6, 1, 4, dtype=torch.float16), random(2, 2, 9, 4, dtype=torch.float16)
    y = fused.attention(q, k, k, key_lengths=[4, 9])
    assert calls[0][1]["actual_seq_lengths_kv"] == [4, 9]
    assert calls[0][1]["num_key_value_heads"] == 2
    assert "atten_mask" not in calls[0][1]
    equal(y[:1], fused.attention(q[:1], k[:1, :, :4], k[:1, :, :4]), 1e-3)


def test_attention_in_fp32_is_not_fused_in_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch, training=False)
    fused.attention(random(1, 2, 3, 4), random(1, 2, 3, 4), random(1, 2, 3, 4))
    assert not calls
    assert fused.skipped == {"infer_attention": "needs fp16 or bf16"}


@pytest.mark.parametrize("ends", [[], [3, 10], [5, 5, 10], [5, 9], [4, 2, 5, 10], [5, 10, 11]])
def test_ends_of_packed_texts_must_cover_the_rows(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="ends of packed texts must grow, each row of 5 tokens ending one"):
        Fused().attention(random(2, 2, 5, 4), random(2, 2, 5, 4), random(2, 2, 5, 4), ends=ends)


def test_scaled_masked_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    x, masked = random(2, 3, 32, 64, grad=True), torch.ones(32, 64).triu(20) > 0

    def wanted(x: Any) -> Any:
        return torch.softmax(x * 0.25 - 1e9 * masked, -1)

    for one in (fused, Fused()):
        equal_with_gradients(lambda x, o=one: o.scaled_masked_softmax(x, masked, 0.25), wanted, x)
    assert [name for name, _ in calls] == ["npu_scaled_masked_softmax"]


# Loss


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(monkeypatch: pytest.MonkeyPatch, reduction: Any) -> None:
    fused, calls = npu(monkeypatch)
    targets = torch.tensor([1, -100, 3, 0])

    def wanted(x: Any) -> Any:
        losses = [torch.logsumexp(x[row], 0) - x[row, targets[row]] for row in (0, 2, 3)]
        if reduction == "none":
            return torch.stack([losses[0], torch.zeros(()), *losses[1:]])
        return sum(losses) / (3 if reduction == "mean" else 1)

    for one in (fused, Fused()):
        equal_with_gradients(
            lambda x, o=one: o.cross_entropy(x, targets, reduction=reduction), wanted, random(4, 6, grad=True)
        )
        assert one.cross_entropy(random(4, 6, dtype=torch.bfloat16), targets).dtype == torch.float32
    assert [name for name, _ in calls] == 2 * ["npu_cross_entropy_loss"]


# Mixture of experts


def test_permutation_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    experts_NK = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1]])
    x, weights = random(4, 3, grad=True), torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    weights.requires_grad_()
    for one in (fused, Fused()):
        sorted_RW, rows_R = one.moe_permute(x, experts_NK)
        # Experts 0 (tokens 0, 2), 1 (tokens 1, 2, 3), 2 (tokens 0, 1, 3).
        equal(sorted_RW, x[[0, 2, 1, 2, 3, 0, 1, 3]])
        assert rows_R.tolist() == [5, 0, 2, 6, 1, 3, 7, 4]

    def there_and_back(one: Fused) -> Any:
        def call(x: Any, weights: Any) -> Any:
            sorted_RW, rows_R = one.moe_permute(x, experts_NK)
            return one.moe_unpermute(sorted_RW * 2, rows_R, weights)

        return call

    for one in (fused, Fused()):
        equal_with_gradients(there_and_back(one), lambda x, w: 2 * x * w.sum(1, keepdim=True), x, weights)
    assert [name for name, _ in calls] == ["npu_moe_token_permute"] * 2 + ["npu_moe_token_unpermute"]


def test_gating_by_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch, training=False)
    logits_NE = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, -1.0]])
    for one in (fused, Fused()):
        weights, experts = one.moe_gating(logits_NE, 2)
        assert experts.tolist() == [[1, 2], [0, 1]]
        equal(weights, torch.softmax(logits_NE, -1).gather(1, experts))
        weights, _ = one.moe_gating(logits_NE, 2, normalise=True, scale=3.0)
        equal(weights.sum(1), torch.tensor([3.0, 3.0]))
        equal(weights[0, 0] / weights[0, 1], torch.tensor(2.0).exp() / torch.tensor(1.0).exp())
    assert [given["k"] for _, given in calls] == [2, 2]


def test_gating_by_groups_of_experts() -> None:
    """Softmax ranks groups by their best expert (DeepSeek-V2), sigmoid by the sum of the best two (V3)."""
    logits_NE = torch.tensor([[5.0, -9.0, 4.0, 3.9, -9.0, 0.0]])  # three groups of two
    _, experts = Fused().moe_gating(logits_NE, 2, groups=3, groups_kept=1)
    assert sorted(experts[0].tolist()) == [0, 1]
    _, experts = Fused().moe_gating(logits_NE, 2, groups=3, groups_kept=1, score="sigmoid")
    assert sorted(experts[0].tolist()) == [2, 3]
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0, 9.0])
    weights, experts = Fused().moe_gating(logits_NE, 2, groups=3, groups_kept=1, score="sigmoid", bias_E=bias)
    assert experts[0].tolist() == [5, 4]
    equal(weights, torch.sigmoid(logits_NE[:, [5, 4]]))  # the bias chooses, it does not weigh


def test_gating_of_deepseek_v3(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = npu(monkeypatch)
    bias_E = random(256) * 0.1
    given: dict[str, Any] = {"score": "sigmoid", "bias_E": bias_E, "groups": 8, "groups_kept": 4, "normalise": True}

    def ours(one: Fused) -> Any:
        return lambda x: one.moe_gating(x, 8, scale=2.5, **given)[0]

    equal_with_gradients(ours(fused), ours(Fused()), random(3, 256, grad=True))
    x = random(3, 256)
    assert fused.moe_gating(x, 8, **given)[1].equal(Fused().moe_gating(x, 8, **given)[1])
    assert [name for name, _ in calls] == 2 * ["npu_moe_gating_top_k"]
    fused.moe_gating(random(3, 64), 8, **(given | {"bias_E": bias_E[:64]}))
    assert fused.skipped == {"moe_group_gating": "needs 256 experts in 8 groups of which 4 are kept"}


@pytest.mark.parametrize("counts", [[3, 0, 4], [7, 0, 0], [0, 3, 4]])
def test_grouped_matmul_has_a_gradient(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    """The stand-in cuts the graph as the operator does, so these gradients are the autograd function's own."""
    fused, calls = npu(monkeypatch)
    counts_E = torch.tensor(counts)
    expert_R = torch.repeat_interleave(torch.arange(3), counts_E)
    x, weight = random(7, 4, grad=True), random(3, 4, 5, grad=True)

    def wanted(x: Any, weight: Any) -> Any:
        return torch.einsum("rw,rwo->ro", x, weight[expert_R])

    for one in (fused, Fused()):
        equal_with_gradients(lambda x, w, o=one: o.grouped_matmul(x, w, counts_E), wanted, x, weight)
    assert [given["group_type"] for _, given in calls] == [0, 0, 2]
    frozen = fused.grouped_matmul(x, weight.detach(), counts_E)
    frozen.sum().backward()
    assert [given["group_type"] for _, given in calls[3:]] == [0, 0]  # no gradient of a frozen weight
    infer, calls = npu(monkeypatch, training=False)
    equal(infer.grouped_matmul(x.detach(), weight.detach(), counts_E), wanted(x, weight).detach())
    assert [given["split_item"] for _, given in calls] == [2]


# Optimizer


def test_the_optimizer_of_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = npu(monkeypatch)
    results = []
    for one in (fused, Fused(), Fused(FusedSettings(fused="off"))):
        weight, bias = (torch.nn.Parameter(random(*shape)) for shape in ((3, 2), (3,)))
        groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
        optimizer = one.adamw(groups, lr=0.1)
        norms = []
        for _ in range(3):
            ((weight @ torch.tensor([1.0, 2.0]) + bias) ** 2).sum().backward()
            norms.append(float(one.clip_grad_norm(optimizer, [weight, bias], 1.0)))
            optimizer.step()
            one.zero_grad(optimizer)
        results.append((type(optimizer), weight.detach(), bias.detach(), torch.tensor(norms), weight.grad is None))
    assert [result[0] for result in results] == [NpuFusedAdamW, torch.optim.AdamW, torch.optim.AdamW]
    assert [result[4] for result in results] == [False, True, True]  # packed gradients stay
    for other in results[1:]:
        for mine, theirs in zip(results[0][1:4], other[1:4], strict=True):
            equal(mine, theirs)


def test_when_the_optimizer_of_an_npu_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = npu(monkeypatch)
    half = {"params": [torch.nn.Parameter(random(3, dtype=torch.bfloat16))]}
    assert type(fused.adamw([half], lr=0.1)) is torch.optim.AdamW
    assert fused.skipped == {"adamw": "needs fp32 or fp16 weights"}
    whole = {"params": [torch.nn.Parameter(random(3))]}
    fused, _ = npu(monkeypatch)
    assert type(fused.adamw([whole], lr=0.1, sharded=True)) is torch.optim.AdamW
    assert fused.skipped == {"adamw": "needs parameters that are not sharded"}
    assert Fused().adamw([whole], lr=0.1).param_groups[0]["fused"] is True
    assert Fused(FusedSettings(fused="off")).adamw([whole], lr=0.1).param_groups[0]["fused"] is None


def test_a_decoder_trains_alike_with_fused_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole net: same logits and gradients with every operator of an NPU and with none."""
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._model_shape import ModelShape

    shape = ModelShape(layers=2, width=32, heads=4, kv_heads=2, hidden=24, vocabulary=40, qk_norm=True)
    tokens_BT = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(0))
    segments_BT = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0, 0, 0]])
    gradients = []
    fused, calls = npu(monkeypatch, fused="on", fused_ops="add_rms_norm=auto")
    for one in (fused, Fused()):
        model = Decoder(shape, fused=one)
        materialise(model, seed=3, device="cpu")
        logits_BTV = model(tokens_BT, segments_BT=segments_BT)
        one.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten()).backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        equal(gradient, gradients[1][name])
    seen = {name for name, _ in calls}
    assert seen == {
        "npu_rms_norm", "npu_rotary_mul", "npu_fusion_attention", "npu_swiglu", "npu_cross_entropy_loss"
    }  # fmt: skip
