"""bert-clue: sizes as published, FLOPs and memory as counted by torch, learning, ranks, state, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascend_perf.errors import InputError, UsageError
from ascend_perf.workloads import _bert_memory
from ascend_perf.workloads._auto_dtype import target_here
from ascend_perf.workloads._encoder_shape import EncoderShape, encoder_flops, encoder_train_flops
from ascend_perf.workloads._gradient_traffic import bucket_count, gradient_traffic
from ascend_perf.workloads._spec import Place, Program, find_workload
from ascend_perf.workloads.bert_clue import Config, bert_clue, padded_length, predict
from tests.workloads._ranks import run_ranks

SHAPE = EncoderShape(layers=2, width=32, heads=2, hidden=64, vocabulary=200, positions=32)
SMALL = Config(
    shape=SHAPE, classes=3, tokens=16, batch=8, samples=96, held_out_samples=32, bucket_tokens=4, dropout=0.0,
    dtype="fp32", learning_rate=0.003, learning_rate_warmup=2, learning_rate_steps=100,
)  # fmt: skip
BASE = EncoderShape(layers=12, width=768, heads=12, hidden=3072, vocabulary=30522, positions=512)


def steps(program: Program, count: int) -> list[float]:
    for _ in range(count):
        program.step()
    return list(program.series()["loss"])


@pytest.mark.torch
@pytest.mark.parametrize(("vocabulary", "published"), [(30522, 109_482_240), (21128, 102_267_648)])
def test_the_parameters_of_the_published_models(vocabulary: int, published: int) -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads._bert import Bert
    from ascend_perf.workloads._fused import Fused

    shape = replace(BASE, vocabulary=vocabulary)
    with torch.device("meta"):
        model = Bert(shape, classes=2, dropout=0.1, fused=Fused())
    sizes = [weight.numel() for weight in model.parameters()]

    assert sum(sizes) - 2 * (768 + 1) == published  # bert-base-uncased and bert-base-chinese, with pooler
    assert _bert_memory.tensor_sizes(shape, 2) == sizes


@pytest.mark.torch
def test_torch_counts_the_same_flops() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    program = bert_clue.build(SMALL, Place(), 0)
    assert isinstance(program.model, torch.nn.Module)
    tokens_BT = torch.ones((3, 12), dtype=torch.long)
    with FlopCounterMode(display=False) as forward, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        program.model(tokens_BT, torch.zeros_like(tokens_BT))
    with FlopCounterMode(display=False) as both, sdpa_kernel(SDPBackend.MATH):
        program.model(tokens_BT, torch.zeros_like(tokens_BT)).sum().backward()

    assert forward.get_total_flops() == 3 * encoder_flops(SHAPE, 12, 3)
    assert both.get_total_flops() == 3 * encoder_train_flops(SHAPE, 12, 3)


def test_the_length_of_a_batch() -> None:
    assert [padded_length(replace(SMALL, padding="bucket"), n) for n in (1, 4, 5, 13, 16)] == [4, 4, 8, 16, 16]
    assert padded_length(replace(SMALL, padding="fixed"), 3) == 16
    assert padded_length(replace(SMALL, padding="longest"), 3) == 3
    assert padded_length(replace(SMALL, tokens=14), 13) == 14


@pytest.mark.torch
@pytest.mark.parametrize("padding", ["fixed", "longest", "bucket"])
def test_flops_of_a_step_are_the_mean_over_an_epoch(padding: Any) -> None:
    torch = pytest.importorskip("torch")
    program = bert_clue.build(replace(SMALL, padding=padding), Place(), 0)
    assert isinstance(program.model, torch.nn.Module)
    lengths: list[int] = []
    program.model.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))

    steps(program, 12)  # 96 texts in batches of 8

    each = [8 * encoder_train_flops(SHAPE, length, 3) for length in lengths]
    assert program.flops_per_step == round(np.mean(each))
    if padding == "fixed":
        assert set(lengths) == {16}
    else:
        assert len(set(lengths)) > 1
    if padding == "bucket":
        assert {length % 4 for length in lengths} == {0}


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_predicted_memory_is_what_the_tensors_take(dtype: Any) -> None:
    pytest.importorskip("torch")
    # Large enough that the constant parts do not rule; padded, so that a mask is there.
    config = replace(SMALL, padding="fixed", batch=16, dtype=dtype)
    program = bert_clue.build(config, Place(), 0)
    program.step()

    measured, predicted = dict(program.memory_bytes()), predict(config, 1, target_here("cpu")).memory_bytes
    assert measured["weights"] == predicted["weights"]
    assert measured["gradients"] == predicted["gradients"]
    assert measured["optimizer"] == pytest.approx(predicted["optimizer"], rel=0.005)  # and a step count per tensor
    assert measured["activations"] == pytest.approx(predicted["activations"], rel=0.03)


@pytest.mark.torch
def test_a_mask_hides_the_padding() -> None:
    torch = pytest.importorskip("torch")
    program = bert_clue.build(SMALL, Place(), 0)
    model = program.model
    assert isinstance(model, torch.nn.Module)
    model.eval()
    tokens_BT = torch.randint(5, 200, (2, 10), generator=torch.Generator().manual_seed(0))
    none_BT = torch.zeros_like(tokens_BT)
    alone = model(tokens_BT[:, :6], none_BT[:, :6])

    is_token_BT = torch.arange(10).expand(2, -1) < 6
    torch.testing.assert_close(model(tokens_BT, none_BT, is_token_BT), alone)
    assert not torch.allclose(model(tokens_BT, none_BT), alone, rtol=1e-3)


@pytest.mark.torch
def test_the_first_losses_are_these_and_the_classes_are_learnt() -> None:
    pytest.importorskip("torch")
    settings = find_workload("bert-clue").settings("tiny")
    program = bert_clue.build(settings.config, Place(), 0)

    losses = steps(program, settings.plan.warmup_steps + settings.plan.measured_steps)

    # Golden on CPU in fp32; ln 4 = 1.386 to begin with.
    assert losses[:4] == pytest.approx([1.3859879, 1.3876959, 1.3691717, 1.3917947], rel=2e-4)
    assert np.mean(losses[-5:]) < 0.6
    (accuracy,) = (metric.value for metric in program.metrics() if metric.name == "accuracy")
    assert isinstance(accuracy, float) and accuracy >= 0.9


@pytest.mark.torch
def test_padding_changes_the_work_and_not_the_loss() -> None:
    pytest.importorskip("torch")
    made = {
        padding: steps(bert_clue.build(replace(SMALL, padding=padding, sort_by_length=False), Place(), 0), 4)
        for padding in ("fixed", "longest", "bucket")
    }

    assert made["longest"] == pytest.approx(made["fixed"], rel=1e-4)
    assert made["bucket"] == pytest.approx(made["fixed"], rel=1e-4)


@pytest.mark.torch
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    straight = steps(bert_clue.build(SMALL, Place(), 0), 6)
    first = bert_clue.build(SMALL, Place(), 0)
    steps(first, 3)
    assert first.save is not None
    first.save(tmp_path)

    assert steps(bert_clue.build(SMALL, Place(resume=tmp_path), 0), 3) == straight[3:]

    with pytest.raises(InputError, match=r"state.pt is the state of another model: .*"):
        bert_clue.build(replace(SMALL, shape=replace(SHAPE, width=16)), Place(resume=tmp_path), 0)
    with pytest.raises(InputError, match=r"no state.pt in nothing"):
        bert_clue.build(SMALL, Place(resume=tmp_path / "nothing"), 0)
    (tmp_path / "state.pt").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(InputError, match=r"state.pt is damaged"):
        bert_clue.build(SMALL, Place(resume=tmp_path), 0)


@pytest.mark.torch
def test_inference_takes_the_trained_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = replace(SMALL, samples=192, held_out_samples=64)
    trained = bert_clue.build(config, Place(), 0)
    steps(trained, 40)
    assert trained.save is not None
    trained.save(tmp_path)
    (expected,) = (metric.value for metric in trained.metrics() if metric.name == "accuracy")

    program = bert_clue.build(replace(config, mode="infer"), Place(resume=tmp_path), 0)
    program.step()

    assert program.series() == {}
    assert program.save is None
    assert -2 < program.last_value() < 0
    (seen,) = (metric.value for metric in program.metrics() if metric.name == "accuracy")
    assert seen == expected
    assert seen is not None and seen > 0.5
    assert program.flops_per_step < trained.flops_per_step / 2.5
    with pytest.raises(InputError, match="holds another model"):
        bert_clue.build(replace(config, mode="infer", classes=4), Place(resume=tmp_path), 0)


def two_ranks(config: Config, count: int) -> dict[str, Any]:
    """Losses and accuracy of one rank, and what its gradients took on the wire."""
    import torch
    import torch.distributed as dist

    place = Place(rank=dist.get_rank(), world_size=dist.get_world_size())
    program = bert_clue.build(config, place, 0)
    sent: list[int] = []
    step = program.step
    closure = dict(zip(step.__code__.co_freevars, (cell.cell_contents for cell in step.__closure__ or ()), strict=True))

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.buffer().nbytes)
        future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    # Torch looks at the types, which are text in this module.
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    closure["training"]._wrapped.register_comm_hook(None, hook)
    losses = steps(program, count - 1)
    sent.clear()
    losses = steps(program, 1)
    return {
        "losses": losses, "sent": list(sent), "items": program.items_per_step, "flops": program.flops_per_step,
        "accuracy": program.metrics()[0].value,
    }  # fmt: skip


@pytest.mark.torch
def test_two_ranks_give_the_loss_of_one_with_the_batch_of_both() -> None:
    pytest.importorskip("torch")
    config = replace(SMALL, batch=4)
    program = bert_clue.build(SMALL, Place(), 0)
    expected = steps(program, 6)

    first, second = run_ranks(two_ranks, 2, config, 6)

    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(expected, rel=1e-5)
    assert (first["items"], first["accuracy"]) == (program.items_per_step, program.metrics()[0].value)
    (gradients,) = predict(config, 2).traffic
    assert sum(first["sent"]) + 8 == gradients.bytes_per_step  # and loss and accuracy, two values in fp32
    assert len(first["sent"]) + 1 == gradients.calls_per_step


def test_buckets_by_hand() -> None:
    mib = 1 << 20
    assert bucket_count([]) == 0
    assert bucket_count([mib - 1]) == 1
    assert bucket_count([mib - 1, 1, 5]) == 2  # the first is full with the second tensor
    assert bucket_count([40 * mib, 10 * mib, 15 * mib, 25 * mib]) == 3  # 40 | 10 + 15 | 25
    assert gradient_traffic([10, 20], world_size=1) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 33}, "tokens 33 are more than the model has positions"),
        ({"tokens": 3}, "tokens must be 4 or more"),
        ({"classes": 1}, "classes must be 2 or more"),
        ({"dropout": 1.0}, "dropout must be 0 to below 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be above 0"),
        ({"shape": replace(SHAPE, segments=1)}, "segments must be 2 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


@pytest.mark.torch
def test_data_of_the_user(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "some.json"
    rows = [{"sentence1": f"问题{i}", "sentence2": "答" * (i % 5 + 1), "label": str(i % 3)} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    program = bert_clue.build(SMALL, Place(data=path), 0)
    assert np.isfinite(steps(program, 2)).all()

    with pytest.raises(InputError, match="the data has 3 classes, the model 2") as caught:
        bert_clue.build(replace(SMALL, classes=2), Place(data=path), 0)
    assert caught.value.hint == "use --set classes=3"
    with pytest.raises(InputError, match="36 texts are fewer than one step takes: batch 64 on 1 ranks"):
        bert_clue.build(replace(SMALL, batch=64), Place(data=path), 0)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(300))]))
    with pytest.raises(InputError, match=r"vocab.txt has 304 tokens, the model 200"):
        bert_clue.build(replace(SMALL, vocabulary_file=str(vocabulary)), Place(data=path), 0)


def test_a_configuration_of_hugging_face_makes_the_shape(tmp_path: Path) -> None:
    from ascend_perf.workloads._model_config import settings_of

    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 21128, "max_position_embeddings": 512,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    }))  # fmt: skip

    settings = find_workload("bert-clue").settings("tiny", ["tokens=128"], between=settings_of(path))

    assert isinstance(settings.config, Config)
    assert settings.config.shape == replace(BASE, vocabulary=21128)


@pytest.mark.torch
def test_fused_operators_on_a_cpu_are_refused_when_they_are_demanded() -> None:
    pytest.importorskip("torch")
    settings = find_workload("bert-clue").settings("tiny", ["fused=on"])

    with pytest.raises(UsageError, match="the device is cpu"):
        bert_clue.build(settings.config, Place(), 0)
