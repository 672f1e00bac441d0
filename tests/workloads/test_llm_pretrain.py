"""llm-pretrain: sizes and FLOPs by hand, and a training step that really trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.llm_pretrain import Config, llm_pretrain, matmul_parameters, parameters, step_flops

SMALL = Config(
    layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32, tokens=8, batch=2, accumulate=3, dtype="fp32"
)


def test_parameters_by_hand() -> None:
    # Head width 4, so keys and values are 2 * 4 = 8 wide.
    # Layer: q and out 2 * 16 * 16 = 512, k and v 2 * 16 * 8 = 256, MLP 3 * 16 * 24 = 1152: together 1920.
    assert matmul_parameters(SMALL) == 2 * 1920 + 16 * 32  # + output layer = 4352
    # Embedding 32 * 16 = 512, norms (2 a layer and the last) 5 * 16 = 80.
    assert parameters(SMALL) == 4352 + 512 + 80


def test_model_flops_of_a_step_by_hand() -> None:
    # Per token 6 * 4352 = 26112 for the weights and 12 * 2 layers * 16 wide * 8 tokens = 3072 for attention.
    assert step_flops(SMALL) == (26112 + 3072) * 2 * 8 * 3  # 48 tokens a step


def test_the_presets_have_the_published_sizes() -> None:
    # TinyLlama 1.1B has 1,100,048,384 parameters, Llama 3 8B 8,030,261,248 (model cards).
    assert parameters(llm_pretrain.settings("1b").config) == 1_100_048_384  # type: ignore[arg-type]  # of this workload
    assert parameters(llm_pretrain.settings("8b").config) == 8_030_261_248  # type: ignore[arg-type]  # of this workload


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "width 16 does not divide into 3 heads"),
        ({"heads": 16, "kv_heads": 4}, "a head is 1 wide"),
        ({"kv_heads": 3}, "4 heads do not divide into 3 kv_heads"),
        ({"vocabulary": 1}, "vocabulary must be 2 or more"),
        ({"layers": 0}, "layers must be 1 or more, got 0"),
        ({"weights": "bf16"}, "cannot be multiplied in dtype: fp32"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]  # one field each


@pytest.mark.torch
def test_the_loss_falls_from_that_of_guessing() -> None:
    pytest.importorskip("torch")
    config = replace(SMALL, tokens=32, batch=8, accumulate=2, learning_rate=0.01)
    program = llm_pretrain.build(config, Place(), 0)

    program.step()
    first = program.last_value()
    for _ in range(60):
        program.step()

    assert first == pytest.approx(3.47, abs=0.1)  # ln 32
    assert program.last_value() < first - 0.5


@pytest.mark.torch
def test_equal_seeds_give_equal_losses_and_recomputation_changes_nothing() -> None:
    pytest.importorskip("torch")
    losses = []
    for config, seed in ((SMALL, 1), (SMALL, 1), (replace(SMALL, recompute=True), 1), (SMALL, 2)):
        program = llm_pretrain.build(config, Place(), seed)
        program.step()
        program.step()
        losses.append(program.last_value())

    assert losses[0] == losses[1]
    assert losses[2] == pytest.approx(losses[0], rel=1e-6)
    assert losses[3] != losses[0]


@pytest.mark.torch
def test_the_net_has_the_counted_parameters_and_the_counted_forward_flops() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from ascend_perf.workloads._llama import Llama

    model = Llama(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32, recompute=False)
    # The counter does not know the fused attention of the CPU: have it written out.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(torch.zeros((2, 8), dtype=torch.long))

    assert sum(weight.numel() for weight in model.parameters()) == parameters(SMALL)
    # Forward is a third of forward and backward; the counter, like ours, does not subtract the causal mask.
    assert counter.get_total_flops() * 3 * SMALL.accumulate == step_flops(SMALL)


@pytest.mark.torch
def test_a_token_does_not_see_those_after_it() -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._llama import Llama

    torch.manual_seed(0)
    model = Llama(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32, recompute=False).eval()
    before = torch.randint(32, (1, 8))
    after = before.clone()
    after[0, 5] = (after[0, 5] + 1) % 32

    with torch.no_grad():
        difference = (model(before) - model(after)).abs().amax(-1)[0]

    assert difference[:5].max() < 1e-6
    assert difference[5:].min() > 1e-6


@pytest.mark.torch
def test_rotation_keeps_lengths_and_depends_on_the_distance_alone() -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._llama import rotary_table, rotate

    torch.manual_seed(0)
    cosine, sine = rotary_table(12, 8, torch.device("cpu"))
    query, key = (torch.randn(8).expand(1, 1, 12, 8) for _ in range(2))
    turned_query, turned_key = rotate(query, cosine, sine)[0, 0], rotate(key, cosine, sine)[0, 0]
    products = turned_query @ turned_key.T

    assert turned_query.norm(dim=-1) == pytest.approx(query[0, 0].norm(dim=-1).numpy(), rel=1e-5)
    assert float(products[7, 4]) == pytest.approx(float(products[10, 7]), rel=1e-4)  # both three apart
