"""llm-pretrain: sizes and FLOPs by hand, and a training step that really trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._layout import Layout
from ascend_perf.workloads._model_shape import ModelShape, parameter_count
from ascend_perf.workloads._spec import Place
from ascend_perf.workloads._training import Training
from ascend_perf.workloads.llm_pretrain import Config, Text, llm_pretrain, predict
from tests.workloads._threads import one_thread as one_thread

SHAPE = ModelShape(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
SMALL = Config(shape=SHAPE, training=Training(tokens=8, batch=2, accumulate=3, dtype="fp32"))
LEARNING = Config(
    shape=ModelShape(layers=2, width=32, heads=4, kv_heads=2, hidden=48, vocabulary=64),
    training=Training(tokens=32, batch=8, accumulate=2, dtype="fp32", learning_rate=0.01),
)

torch_only = pytest.mark.torch


def training(config: Config, **changes: Any) -> Config:
    return replace(config, training=replace(config.training, **changes))


@cache
def plain(steps: int) -> Sequence[float]:
    """Losses of LEARNING, with which others are compared."""
    return losses(LEARNING, steps)


def losses(config: Config, steps: int, place: Place | None = None, seed: int = 0) -> Sequence[float]:
    program = llm_pretrain.build(config, place or Place(), seed)
    for _ in range(steps):
        program.step()
    return program.series()["loss"]


def test_model_flops_of_a_step_by_hand() -> None:
    # Head width 4, so keys and values are 2 * 4 = 8 wide.
    # Layer: q and out 2 * 16 * 16 = 512, k and v 2 * 16 * 8 = 256, MLP 3 * 16 * 24 = 1152: together 1920.
    # With the output layer 2 * 1920 + 16 * 32 = 4352 weights are multiplied.
    # Per token 6 * 4352 = 26112 for the weights and 12 * 2 layers * 16 wide * 8 tokens = 3072 for attention.
    assert SMALL.training.model_flops(SHAPE) == (26112 + 3072) * 2 * 8 * 3  # 48 tokens a step
    assert SMALL.training.model_flops(SHAPE, data_ranks=4) == (26112 + 3072) * 2 * 8 * 3 * 4
    # Embedding 32 * 16 = 512, norms (2 a layer and the last) 5 * 16 = 80.
    assert parameter_count(SHAPE) == 4352 + 512 + 80


def test_hardware_flops_count_what_is_computed_again() -> None:
    none, selective, full = (
        training(SMALL, recompute=way).training.hardware_flops(SHAPE) for way in ("none", "selective", "full")
    )
    rows = 2 * 3
    assert none == SMALL.training.model_flops(SHAPE)
    assert selective - none == 4 * 2 * 16 * 8 * 8 * rows  # two products of attention: 4 L W T a token
    # Both layers' forward, less down (16 x 24): 2 (1920 - 384) a token and layer, and attention.
    assert full - none == (2 * 2 * (1920 - 384) * 8 + 4 * 2 * 16 * 8 * 8) * rows


def test_the_presets_have_the_published_sizes() -> None:
    """Parameters from the model cards and the checkpoints' own indices."""
    published = {
        "125m": 123_587_328,  # GPT-2 small has 124 M; this shape by hand: 12 (4 W^2 + 3 W 2048 + 2 W) + 50304 W + W
        "0.6b": 596_049_920,
        "1b": 1_100_048_384,
        "7b": 6_738_415_616,
        "8b": 8_030_261_248,
        "13b": 13_015_864_320,
        "70b": 68_976_648_192,
    }
    for name, count in published.items():
        config = llm_pretrain.settings(name).config
        assert isinstance(config, Config)
        assert parameter_count(config.shape) == count, name


def test_the_largest_preset_fits_the_devices_that_it_names() -> None:
    config = llm_pretrain.settings("70b").config
    assert isinstance(config, Config)

    assert predict(config, 32).peak_bytes < 64e9
    with pytest.raises(ValueError, match="valid world sizes"):
        predict(config, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "width 16 does not divide into 3 heads"),
        ({"heads": 16, "kv_heads": 4}, "a head is 1 wide"),
        ({"kv_heads": 3}, "4 heads do not divide into 3 kv_heads"),
        ({"vocabulary": 1}, "vocabulary must be 2 or more"),
        ({"layers": 0}, "layers must be 1 or more, got 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "bf16"}, "weights: bf16 cannot be multiplied in dtype: fp32"),
        ({"weights": "bf16", "dtype": "fp16"}, "weights: bf16 cannot be multiplied in dtype: fp16"),
        ({"batch": 0}, "batch must be 1 or more, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and finite"),
        ({"loss_scale": float("inf")}, "loss_scale must be above 0 and finite"),
    ],
)
def test_settings_of_a_step_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training(SMALL, **change)


def test_the_distributed_optimizer_is_not_for_fsdp() -> None:
    with pytest.raises(ValueError, match="distributed_optimizer is for data_parallel ddp"):
        replace(training(SMALL, distributed_optimizer=True), layout=Layout(data_parallel="fsdp"))


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    schedule = Training(learning_rate=1.0, learning_rate_warmup=4, learning_rate_decay=10)

    assert [schedule.learning_rate_at(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert schedule.learning_rate_at(4) == pytest.approx(1.0)
    assert schedule.learning_rate_at(9) == pytest.approx(0.55)  # half way
    assert schedule.learning_rate_at(14) == schedule.learning_rate_at(100) == pytest.approx(0.1)
    assert Training(learning_rate=2.0).learning_rate_at(1000) == 2.0


GOLDEN = [4.16311, 3.50372, 3.00839, 2.60565]
"""Loss of every third step of LEARNING in fp32 on a CPU with torch 2.13."""


@torch_only
def test_the_loss_follows_the_golden_curve() -> None:
    seen = plain(20)

    assert seen[0] == pytest.approx(np.log(64), abs=0.02)  # that of guessing
    assert seen[:10:3] == pytest.approx(GOLDEN, abs=2e-3)
    assert seen[-1] < 2.4


@torch_only
@pytest.mark.parametrize(
    "change",
    [{"recompute": "selective"}, {"recompute": "full"}, {"batch": 16, "accumulate": 1}, {"batch": 2, "accumulate": 8}],
    ids=str,
)
def test_recomputation_and_accumulation_do_not_change_the_loss(change: dict[str, Any]) -> None:
    # fp32 sums in another order: relative differences of 1e-7 a step, which training multiplies.
    assert losses(training(LEARNING, **change), 10) == pytest.approx(plain(20)[:10], rel=2e-5)


@torch_only
def test_equal_seeds_give_equal_losses() -> None:
    assert losses(SMALL, 3, seed=1) == losses(SMALL, 3, seed=1)
    assert losses(SMALL, 1, seed=1) != losses(SMALL, 1, seed=2)


@torch_only
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_narrow_products_give_nearly_the_same_curve(dtype: Any) -> None:
    assert losses(training(LEARNING, dtype=dtype), 10) == pytest.approx(plain(20)[:10], rel=5e-3)


@torch_only
def test_bf16_weights_learn() -> None:
    seen = losses(training(LEARNING, dtype="bf16", weights="bf16"), 20)

    assert seen[-1] < 2.6


@torch_only
def test_an_overflow_skips_the_step_and_halves_the_scale_until_it_fits() -> None:
    # fp16 ends at 65504: a loss multiplied by 2^40 cannot have gradients in it.
    config = training(LEARNING, dtype="fp16", loss_scale=2.0**30, loss_scale_steps=5)
    program = llm_pretrain.build(config, Place(), 0)
    for _ in range(30):
        program.step()
    series = program.series()

    scales, norms = series["loss_scale"], series["grad_norm"]
    finite = np.isfinite(norms)
    assert scales[0] == 2.0**30
    assert not finite[0]
    first = int(np.argmax(finite))
    assert 0 < first < 20
    assert scales[: first + 1] == [2.0 ** (30 - step) for step in range(first + 1)]  # halved after each overflow
    assert series["loss"][first] == pytest.approx(series["loss"][0], abs=0.05)  # other rows, but nothing was learnt
    assert series["loss"][-1] < series["loss"][0] - 0.5


def test_the_scale_doubles_after_enough_good_steps() -> None:
    from ascend_perf.workloads._loss_scale import LossScale

    scale = LossScale(8.0, steps=3)
    seen = []
    for is_finite in (True, True, False, True, True, True, True, True, True, False, False):
        scale.update(is_finite)
        seen.append(scale.value)

    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16, 8, 4]  # the overflow begins the count again
    assert scale.skipped == 3


@torch_only
def test_packed_rows_have_the_loss_of_each_document_alone() -> None:
    import torch

    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads.llm_pretrain import text_rows

    config = replace(training(LEARNING, accumulate=1), text=Text(rows="packed", mean_document=10))
    packed = losses(config, 1)

    with torch.device("meta"):
        model = Decoder(config.shape, fused=Fused())
    materialise(model, seed=0, device="cpu")
    rows, total, count = text_rows(config, Place(), 0), 0.0, 0
    for number in range(8):
        row = rows.row(number)
        for segment in np.unique(row.segments_T):
            mine = row.segments_T == segment
            with torch.no_grad():
                logits_TV = model(torch.from_numpy(row.tokens_T[mine]).unsqueeze(0))[0]
            targets_T = torch.from_numpy(row.targets_T[mine])
            total += float(torch.nn.functional.cross_entropy(logits_TV, targets_T, ignore_index=-100, reduction="sum"))
            count += int((targets_T != -100).sum())

    assert count < 8 * 32  # the first token of a document is nobody's target
    assert packed[0] == pytest.approx(total / count, rel=1e-6)


@torch_only
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_resumed_run_goes_on_exactly(tmp_path: Path, dtype: Any) -> None:
    config = training(LEARNING, dtype=dtype, learning_rate_warmup=3, learning_rate_decay=5, checkpoint_every=4)
    straight = llm_pretrain.build(config, Place(checkpoints=tmp_path), 3)
    for _ in range(8):
        straight.step()
    resumed = llm_pretrain.build(config, Place(resume=tmp_path / "step-000004"), 3)
    for _ in range(4):
        resumed.step()

    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-000004", "step-000008"]
    for name, values in straight.series().items():
        assert resumed.series()[name] == values[4:], name


@torch_only
def test_a_state_of_another_model_or_none_is_refused(tmp_path: Path) -> None:
    program = llm_pretrain.build(SMALL, Place(), 0)
    program.step()
    assert program.save is not None
    program.save(tmp_path / "state")
    wider = replace(SMALL, shape=replace(SHAPE, hidden=32))

    with pytest.raises(InputError, match=r"in state has size \(24, 16\), here it is \(32, 16\)"):
        llm_pretrain.build(wider, Place(resume=tmp_path / "state"), 0)
    with pytest.raises(InputError, match=r"the state in state has no weights/blocks\.2"):
        llm_pretrain.build(replace(SMALL, shape=replace(SHAPE, layers=3)), Place(resume=tmp_path / "state"), 0)
    with pytest.raises(InputError, match="no saved state in nothing"):
        llm_pretrain.build(SMALL, Place(resume=tmp_path / "nothing"), 0)


@torch_only
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_measured_memory_is_that_of_the_formula(dtype: Any, recompute: Any) -> None:
    config = training(SMALL, dtype=dtype, recompute=recompute)
    program = llm_pretrain.build(config, Place(), 0)
    program.step()
    measured, predicted = program.memory_bytes(), predict(config, 1, target_here("cpu")).memory_bytes

    weights = parameter_count(SHAPE)
    assert measured["weights"] == predicted["weights"] == 4 * weights
    assert measured["gradients"] == predicted["gradients"] == 4 * weights
    assert measured["optimizer"] == predicted["optimizer"] + 4 * 21  # two moments; a step count for each weight
    assert measured["activations"] == pytest.approx(predicted["activations"], rel=1e-3)


@torch_only
def test_text_files_are_read_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be, " * 40, "utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "that is the question"}\n' * 20, "utf-8")
    config = replace(training(LEARNING, batch=4), shape=replace(LEARNING.shape, vocabulary=258))

    seen = losses(config, 15, Place(data=tmp_path))

    assert seen[0] == pytest.approx(np.log(258), abs=0.1)
    assert seen[-1] < 2.5


@torch_only
def test_a_file_of_tokens_is_trained_on(tmp_path: Path) -> None:
    np.tile(np.arange(7, dtype="<u2"), 100).tofile(tmp_path / "tokens.bin")
    seen = losses(LEARNING, 15, Place(data=tmp_path / "tokens.bin"))

    assert seen[-1] < 0.5  # a counting loop of seven tokens
