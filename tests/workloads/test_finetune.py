"""full-finetune and lora-finetune: masks, corrections, FLOPs and curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.workloads import full_finetune as full
from ascend_perf.workloads import lora_finetune as lora
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._lora_shape import TARGETS, lora_flops, lora_parameters, lora_recomputed_flops, targets_of
from ascend_perf.workloads._model_shape import ModelShape, parameter_count
from ascend_perf.workloads._spec import Place, Workload
from ascend_perf.workloads._training import Training
from tests.workloads._threads import one_thread as one_thread

SHAPE = ModelShape(layers=2, width=48, heads=4, kv_heads=2, hidden=64, vocabulary=258)
TRAINING = Training(tokens=96, batch=8, accumulate=2, dtype="fp32", learning_rate=0.01, weight_decay=0.0)
FULL = full.Config(shape=SHAPE, training=TRAINING, instructions=full.Instructions(records=64))
LORA = lora.Config(shape=SHAPE, training=TRAINING, instructions=full.Instructions(records=64))
EVERY = frozenset(TARGETS)

torch_only = pytest.mark.torch


@cache
def plain(name: str) -> Sequence[float]:
    """Losses of four steps, with which others are compared."""
    return losses(full.full_finetune, FULL, 4) if name == "full" else losses(lora.lora_finetune, LORA, 4)


def losses(workload: Workload, config: object, steps: int, place: Place | None = None) -> Sequence[float]:
    program = workload.build(config, place or Place(), 0)
    for _ in range(steps):
        program.step()
    return program.series()["loss"]


def lora_decoder(shape: ModelShape, *, rank: int = 3, targets: frozenset[str] = EVERY, **known: Any) -> Any:
    import torch

    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused
    from ascend_perf.workloads._lora import add_lora

    with torch.device("meta"):
        model = Decoder(shape, fused=Fused(), **known)
        add_lora(model, rank=rank, alpha=6.0, targets=targets)
    materialise(model, seed=0, device="cpu")
    return model


@torch_only
def test_the_curve_of_full_finetuning() -> None:
    seen = losses(full.full_finetune, FULL, 13)

    assert seen[0] == pytest.approx(np.log(258), abs=0.05)  # that of guessing
    assert seen[::4] == pytest.approx(FULL_CURVE, abs=3e-3)


FULL_CURVE = [5.57738, 4.25841, 3.68157, 3.71242]
LORA_CURVE = [3.86220, 3.27538, 3.17459, 3.14033]
"""Loss of every fourth step in fp32 on a CPU with torch 2.13."""


@torch_only
def test_the_curve_of_lora_on_trained_weights(tmp_path: Path) -> None:
    base = full.full_finetune.build(FULL, Place(), 0)
    for _ in range(8):
        base.step()
    assert base.save is not None
    base.save(tmp_path / "base")
    records = [{"instruction": "Say it.", "output": "eeee"}, {"instruction": "Say them.", "output": "e e e e"}]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    config = replace(
        LORA, training=replace(TRAINING, batch=2),
        instructions=replace(LORA.instructions, start_from=str(tmp_path / "base")),
    )  # fmt: skip
    seen = losses(lora.lora_finetune, config, 13, Place(data=tmp_path / "data.jsonl"))

    assert seen[::4] == pytest.approx(LORA_CURVE, abs=3e-3)
    assert seen[-1] < seen[0] - 0.5


@torch_only
@pytest.mark.parametrize(
    "change", [{"recompute": "full"}, {"recompute": "selective"}, {"batch": 4, "accumulate": 4}], ids=str
)
@pytest.mark.parametrize("name", ["full", "lora"])
def test_recomputation_and_accumulation_do_not_change_the_loss(name: str, change: Any) -> None:
    workload, config = (full.full_finetune, FULL) if name == "full" else (lora.lora_finetune, LORA)
    changed = replace(config, training=replace(TRAINING, **change))

    # Answers are of different length: only a mean over all targets of the step does not depend on micro-batches.
    assert losses(workload, changed, 4) == pytest.approx(plain(name), rel=1e-5)


@torch_only
def test_padding_and_prompts_do_not_count() -> None:
    import torch

    program = full.full_finetune.build(FULL, Place(), 0)
    program.step()
    rows = full.instruction_rows(FULL.instructions, vocabulary=258, tokens=96, place=Place(), seed=0)
    from ascend_perf.workloads._decoder import Decoder, materialise
    from ascend_perf.workloads._fused import Fused

    with torch.device("meta"):
        model = Decoder(SHAPE, fused=Fused())
    materialise(model, seed=0, device="cpu")
    total, count = 0.0, 0
    for number in range(16):
        row = rows.row(number)
        real = row.segments_T == 0  # the record without its padding, alone
        with torch.no_grad():
            logits_TV = model(torch.from_numpy(row.tokens_T[real]).unsqueeze(0))[0]
        chance_T = torch.log_softmax(logits_TV, -1)
        for place, target in enumerate(row.targets_T[real].tolist()):
            if target >= 0:
                total -= float(chance_T[place, target])
                count += 1

    assert program.last_value() == pytest.approx(total / count, rel=1e-5)
    assert count < 16 * 30  # answers are short


@torch_only
def test_packed_rows_train_on_the_same_targets_as_padded_ones() -> None:
    packed = replace(FULL.instructions, rows="packed")
    places = [full.instruction_rows(settings, vocabulary=258, tokens=256, place=Place(), seed=0)
              for settings in (FULL.instructions, packed)]  # fmt: skip
    targets = [sorted(np.concatenate([rows.row(number).targets_T for number in range(len(rows))]).tolist())
               for rows in places]  # fmt: skip
    real = [[value for value in values if value >= 0] for values in targets]

    assert real[0] == real[1]
    assert len(places[1]) < len(places[0]) / 2
    assert places[1].padding_ratio < 0.2 < places[0].padding_ratio


# LoRA


def test_trained_weights_by_hand() -> None:
    # Keys and values are 24 wide. Rank 3: q and out (48 + 48) each, k and v (48 + 24), gate, up and down (48 + 64).
    assert lora_parameters(SHAPE, 3, EVERY) == 2 * 3 * (2 * 96 + 2 * 72 + 3 * 112)
    assert lora_parameters(SHAPE, 3, targets_of("q, v")) == 2 * 3 * (96 + 72)


def test_work_by_hand() -> None:
    # Layer: q and out 2 x 48 x 48, k and v 2 x 48 x 24, MLP 3 x 48 x 64: 16128. Output 48 x 258 = 12384.
    frozen, trained = 2 * 16128 + 12384, lora_parameters(SHAPE, 3, EVERY)
    attention = 3 * 2 * 2 * 4 * 24 * 10  # 3 passes x 2 a multiply-add x layers x heads x (key + value) x context
    entry = 48 * (48 + 24 + 24 + 3 * 3)  # first layer: q, k, v and their three A give no gradient of the input
    assert lora_flops(SHAPE, 10, 3, EVERY) == (4 * frozen + 6 * trained - 2 * entry + attention) * 10


@torch_only
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("targets", ["q,k,v,out,gate,up,down", "q,k,v,gate"])
def test_the_counted_work_is_that_of_the_formula(targets: str, recompute: Any) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    chosen = targets_of(targets)
    model = lora_decoder(SHAPE, targets=chosen, recompute=recompute)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.arange(10).unsqueeze(0)).logsumexp(-1).sum().backward()

    assert counter.get_total_flops() == (
        lora_flops(SHAPE, 10, 3, chosen) + lora_recomputed_flops(SHAPE, 10, 3, chosen, recompute)
    )
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert trained == lora_parameters(SHAPE, 3, chosen)
    assert sum(weight.numel() for weight in model.parameters()) == parameter_count(SHAPE) + trained


@torch_only
def test_only_the_corrections_change_and_merged_they_do_the_same() -> None:
    import torch

    from ascend_perf.workloads._lora import lora_layers, merge

    model = lora_decoder(replace(SHAPE, qkv_bias=True))
    text = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        before = model(text)
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == {
        f"{name}.{part}" for name, _ in lora_layers(model) for part in ("lora_a", "lora_b")
    }
    assert len(list(lora_layers(model))) == 2 * 7
    with torch.no_grad():
        for _, layer in lora_layers(model):
            assert layer.lora_b.eq(0).all()  # so the model starts as the frozen one
            layer.lora_b.normal_(std=0.1)
        changed = model(text)
        merge(model)
        merged = model(text)

    assert not list(lora_layers(model))
    assert sum(weight.numel() for weight in model.parameters()) == parameter_count(replace(SHAPE, qkv_bias=True))
    assert (changed - before).abs().max() > 0.01
    assert torch.allclose(merged, changed, atol=1e-5)


@torch_only
def test_frozen_weights_may_be_bf16_while_corrections_stay_fp32() -> None:
    config = replace(LORA, training=replace(TRAINING, dtype="bf16", weights="bf16", batch=2, tokens=64))
    program = lora.lora_finetune.build(config, Place(), 0)
    program.step()
    program.step()
    measured, predicted = program.memory_bytes(), lora.predict(config, 1, target_here("cpu")).memory_bytes

    trained = lora_parameters(SHAPE, 8, EVERY)
    assert measured["weights"] == predicted["weights"] == 2 * parameter_count(SHAPE) + 4 * trained
    assert measured["gradients"] == predicted["gradients"] == 4 * trained
    assert measured["optimizer"] == 8 * trained + 4 * 28  # a step count for each of 28 matrices
    assert 0 < measured["activations"] < predicted["activations"]
    assert program.parameters == parameter_count(SHAPE) + trained


@torch_only
def test_a_saved_state_of_lora_holds_the_corrections_alone(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    straight = lora.lora_finetune.build(LORA, Place(), 0)
    for step in range(4):
        straight.step()
        if step == 1:
            assert straight.save is not None
            straight.save(tmp_path / "state")
    resumed = lora.lora_finetune.build(LORA, Place(resume=tmp_path / "state"), 0)
    resumed.step()
    resumed.step()

    assert resumed.series()["loss"] == straight.series()["loss"][2:]
    names = FileSystemReader(tmp_path / "state").read_metadata().state_dict_metadata
    assert {name.rpartition(".")[2] for name in names if name.startswith("weights/")} == {"lora_a", "lora_b"}
    with pytest.raises(InputError, match="the state in state has no weights/"):
        full.full_finetune.build(
            replace(FULL, instructions=replace(FULL.instructions, start_from=str(tmp_path / "state"))), Place(), 0
        )


def test_what_ranks_send_are_the_corrections() -> None:
    trained = lora_parameters(SHAPE, 8, EVERY)
    alone = lora.predict(LORA, 1)
    plain = lora.predict(LORA, 2)
    shared = lora.predict(replace(LORA, training=replace(TRAINING, distributed_optimizer=True)), 2)

    assert alone.traffic == ()
    (reduced,) = plain.traffic
    # Gradients in one bucket; the loss, the squared norm and the number of targets in a call each or together.
    assert (reduced.axis, reduced.collective, reduced.bytes_per_step) == ("data", "all_reduce", 4 * trained + 12)
    assert shared.traffic[0] == reduced
    assert (shared.traffic[1].collective, shared.traffic[1].bytes_per_step) == ("broadcast", 4 * trained)
    assert shared.traffic[1].calls_per_step == 2
    assert plain.memory_bytes["optimizer"] == 8 * trained
    assert 4 * trained <= shared.memory_bytes["optimizer"] < 4.2 * trained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_rank": 0}, "lora_rank must be 1 or more"),
        ({"lora_alpha": 0.0}, "lora_alpha must be above 0"),
        ({"lora_targets": "q,w"}, "lora_targets must name some of q, k, v, out, gate, up, down, got 'q,w'"),
        ({"lora_targets": " , "}, "lora_targets must name some of"),
    ],
)
def test_corrections_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lora.Lora(**change)


# Data by path


@torch_only
def test_instructions_of_a_file_are_trained_on(tmp_path: Path) -> None:
    records = [
        {"instruction": "Say a.", "output": "aaaa"},
        {"instruction": "Say.", "input": "b", "output": "bbbb"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "c?"},
                      {"role": "assistant", "content": "cccc"}]},
    ]  # fmt: skip
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(record) for record in records), "utf-8")

    seen = losses(full.full_finetune, FULL, 12, Place(data=tmp_path / "data.jsonl"))

    assert seen[-1] < 1.5  # three answers of one letter each, known by heart
