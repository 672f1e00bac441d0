"""Peak of a step by formula: by hand, its properties, and against the allocator of the real torch_npu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._fused import FusedSettings
from ascend_perf.workloads._job import Job
from ascend_perf.workloads._layout import Layout, check
from ascend_perf.workloads._model_shape import ModelShape, parameter_count
from ascend_perf.workloads._rank_memory import rank_memory, step_peak_bytes
from ascend_perf.workloads._spec import NPU, Target, find_workload
from ascend_perf.workloads._traffic import predict
from ascend_perf.workloads._training import Training
from tests._virtual_npu import ready_npu
from tests.workloads._layout_cases import EXPERTS, SHAPE, every_layout
from tests.workloads._virtual_memory import measured

MASK_BYTES: Final = 2048 * 2048
"""Of torch_npu's attention: a triangle of truth values that stays."""
DENSE = replace(SHAPE, qk_norm=False, qkv_bias=False)
# Small activations, so that weights decide.
LITTLE = Training(tokens=8, batch=1, accumulate=2, dtype="fp32")
CUDA = Target(kind="cuda")


def peak(shape: ModelShape, layout: Layout, training: Training, world: int, **more: Any) -> int:
    return predict(shape, layout, training, world, **more).peak_bytes


def test_the_optimizer_of_one_npu_takes_24_bytes_a_parameter() -> None:
    wide = replace(DENSE, width=256, vocabulary=512, hidden=512)
    count = parameter_count(wide)

    # Weights, gradients, two moments, and the root of the second before and after it is divided.
    assert peak(wide, Layout(), LITTLE, 1) == 24 * count + MASK_BYTES
    # torch's form over whole lists makes the root alone; its fused one, which a GPU runs, nothing.
    plain = FusedSettings(fused="off")
    assert peak(wide, Layout(), replace(LITTLE, accumulate=1), 1, operators=plain) == 20 * count
    with_gradients = 16 * count
    assert with_gradients < peak(wide, Layout(), LITTLE, 1, target=CUDA) < 20 * count


def test_micro_batches_hold_gradients_beside_the_buckets_of_ddp() -> None:
    wide = replace(DENSE, width=256, vocabulary=4096, hidden=64)
    count = parameter_count(wide)
    longer = replace(LITTLE, tokens=256)
    several, one = peak(wide, Layout(), longer, 2), peak(wide, Layout(), replace(LITTLE, accumulate=1), 2)
    sharded = peak(wide, Layout(), replace(longer, distributed_optimizer=True), 2)

    # Weights, two moments, buckets: 16 bytes, and 4 more of gradients that were not summed yet. Then the activations.
    kept = predict(wide, Layout(), longer, 2).memory_bytes["activations"]
    # Logits: 256 tokens of 4096, of which the loss makes a gradient; their logarithms were kept.
    assert several == 20 * count + MASK_BYTES + kept + 256 * 4096 * 4
    # In a single one the gradients lie in the buckets at once: the root in the optimizer is the most.
    assert one == 20 * count + MASK_BYTES
    assert several - sharded == pytest.approx(8 * count / 2, rel=0.05)  # half of the moments


def test_recomputation_under_autocast_keeps_a_copy_of_each_matrix_till_the_end_of_the_forward_pass() -> None:
    training = replace(LITTLE, dtype="bf16", recompute="full")
    wide = replace(DENSE, width=256, hidden=512, heads=4, kv_heads=4)
    with_copies = predict(wide, Layout(), training, 2)
    without = predict(wide, Layout(), replace(training, weights="bf16", dtype="auto"), 2)
    matrices = wide.layers * (4 * 256 * 256 + 3 * 256 * 512)
    count = parameter_count(wide)

    # Besides weights, moments, buckets and gradients: copies of 2 bytes, what is kept, and logits in bf16 and fp32.
    extra = 2 * matrices + 8 * wide.vocabulary * (2 + 4)
    assert with_copies.peak_bytes == 20 * count + MASK_BYTES + with_copies.memory_bytes["activations"] + extra
    # Weights in bf16 need none: the most is the backward pass of a layer.
    assert without.peak_bytes < 10 * count + MASK_BYTES + without.memory_bytes["activations"] + extra - 2 * matrices + (
        2 * 256 * 512 * 2
    )


@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_share_of_the_distributed_optimizer_is_the_largest_of_all_ranks(world: int) -> None:
    training = replace(LITTLE, distributed_optimizer=True)
    tried = 0
    for layout in every_layout(world).values():
        if layout.data_parallel == "fsdp":
            continue
        axes = check(layout, SHAPE, world_size=world, tokens=training.tokens, accumulate=training.accumulate)
        job = Job(shape=SHAPE, layout=layout, training=training, axes=axes, dtype="fp32")
        peaks = [step_peak_bytes(job, rank) for rank in range(world)]
        assert predict(SHAPE, layout, training, world).peak_bytes == max(peaks)
        tried += len(set(peaks)) > 1
    assert tried


def test_fsdp_in_a_pipeline_keeps_whole_gradients_only_between_micro_batches() -> None:
    layout, wide = Layout(data_parallel="fsdp", pipeline_ranks=2), replace(DENSE, layers=2, vocabulary=4096)
    one, several = (predict(wide, layout, replace(LITTLE, accumulate=count), 4) for count in (1, 2))

    # Both stages have half of the layers and a table, the second one the last norm as well; all of fp32.
    table, norm, layer = 4096 * 32, 32, 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    assert one.memory_bytes["gathered"] == 4 * (table + layer)
    assert several.memory_bytes["gathered"] == 8 * (table + layer + norm)
    # The most of a single one is the end of the first stage: the table's gradient, a copy of it on its way to the
    # shards, all shards; targets and turns of rotary embedding stay until then, as do the stage's result and gradient.
    shards = 4 * (table + layer) // 2
    small = 8 * 8 + 2 * 8 * 8 * 4 + 2 * 8 * 32 * 4
    assert one.peak_bytes == 3 * shards + MASK_BYTES + 8 * table + shards + small
    # What is held at some time is no more than what is held at the worst.
    for said in (one, several):
        assert max(said.memory_bytes.values()) <= said.peak_bytes


@pytest.mark.parametrize("world", [2, 4])
def test_the_peak_is_never_below_what_stays(world: int) -> None:
    for shape in (SHAPE, EXPERTS):
        for name, layout in every_layout(world, shape).items():
            for target in (NPU, CUDA, Target(kind="cpu", has_bf16=False)):
                said = predict(shape, layout, Training(tokens=16, batch=2, accumulate=2), world, target=target)
                parts = said.memory_bytes
                assert parts["weights"] + parts["gradients"] + parts["optimizer"] <= said.peak_bytes, name
                assert said.peak_bytes <= sum(parts.values()), name


@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["none", "selective", "full"]), st.booleans())
@settings(max_examples=40)
def test_more_tokens_rows_or_layers_never_need_less(rows: int, micro: int, recompute: Any, sharded: bool) -> None:
    layout = Layout(data_parallel="fsdp" if sharded else "ddp")
    training = Training(tokens=16, batch=rows, accumulate=micro, recompute=recompute)
    now = peak(DENSE, layout, training, 2)
    assert now <= peak(DENSE, layout, replace(training, batch=rows + 1), 2)
    assert now <= peak(DENSE, layout, replace(training, tokens=32), 2)
    assert now <= peak(DENSE, layout, replace(training, accumulate=micro + 1), 2)
    assert now <= peak(replace(DENSE, layers=DENSE.layers + 1), layout, training, 2)


def test_auto_follows_the_device() -> None:
    """bf16 keeps half of what fp32 keeps; without bf16 a language model trains in fp32."""
    training = Training(tokens=64, batch=4)
    bf16, fp32 = (replace(training, dtype=dtype) for dtype in ("bf16", "fp32"))
    for kind in ("npu", "cuda", "cpu"):
        with_units, without = Target(kind=kind), Target(kind=kind, has_bf16=False)
        said = {dtype: predict(SHAPE, Layout(), one, 1, target=with_units) for dtype, one in
                (("bf16", bf16), ("fp32", fp32))}  # fmt: skip
        assert predict(SHAPE, Layout(), training, 1, target=with_units) == said["bf16"]
        assert predict(SHAPE, Layout(), training, 1, target=without) == said["fp32"]
    assert [Target(kind=kind, has_bf16=False).auto_dtype("fp16") for kind in ("npu", "cuda", "cpu")] == [
        "fp16", "fp16", "fp32"
    ]  # fmt: skip


WIDE: Final = (
    "layers=3", "width=512", "heads=8", "kv_heads=8", "hidden=1408", "vocabulary=8192", "tokens=256", "batch=2",
    "accumulate=2", "dtype=bf16",
)  # fmt: skip
MOE: Final = ("experts=8", "experts_per_token=2", "expert_hidden=352", "dense_layers=1")
SHARDED_STAGES: Final = ("pipeline_ranks=2", "data_parallel=fsdp")
CASES: Final[dict[int, list[tuple[str, tuple[str, ...]]]]] = {
    1: [
        ("llm-pretrain", ()), ("llm-pretrain", ("weights=bf16", "recompute=full")),
        ("llm-pretrain", ("attention=mla", "nope_width=64", "value_width=32", "recompute=selective")),
        ("llm-pretrain", ("attention=mla", "nope_width=64", "value_width=32", "kv_heads=4", "qk_norm=true")),
    ],
    2: [
        ("llm-pretrain", ()), ("llm-pretrain", ("recompute=full",)), ("llm-pretrain", ("data_parallel=fsdp",)),
        ("llm-pretrain", ("tensor_ranks=2",)), ("llm-pretrain", ("context_ranks=2",)),
        ("llm-pretrain", ("pipeline_ranks=2",)), ("moe-pretrain", (*MOE, "expert_ranks=2")),
    ],
    4: [
        ("llm-pretrain", ("tensor_ranks=2", "recompute=full")),
        ("llm-pretrain", ("tensor_ranks=2", "data_parallel=fsdp")),
        ("llm-pretrain", SHARDED_STAGES), ("llm-pretrain", (*SHARDED_STAGES, "accumulate=1")),
        ("llm-pretrain", (*SHARDED_STAGES, "accumulate=1", "recompute=full")),
        ("llm-pretrain", (*SHARDED_STAGES, "accumulate=1", "vocabulary=32768")),
        ("moe-pretrain", (*SHARDED_STAGES, *MOE, "layers=4", "accumulate=1")),
    ],
}  # fmt: skip
TOLERANCE: Final = 0.03
"""Stated in docs/layouts.md. Of experts over several ranks, whose rows follow the router, twice as much."""
CLOSE: Final = 0.01
"""Of FSDP in a pipeline."""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("world", CASES)
def test_the_peak_of_the_real_allocator(world: int, tmp_path: Path) -> None:
    """One process stands for all ranks, as rank 0."""
    ready_npu()
    cases = [(name, (*WIDE, *more)) for name, more in CASES[world]]
    for (name, chosen), said in zip(cases, measured(cases, tmp_path, world_size=world), strict=True):
        workload = find_workload(name)
        config: Any = workload.settings("tiny", chosen).config
        job = Job(
            shape=config.shape, layout=config.layout, training=config.training, dtype="bf16",
            operators=config.operators,
            axes=check(config.layout, config.shape, world_size=world, tokens=config.training.tokens,
                       accumulate=config.training.accumulate),
        )  # fmt: skip
        if name == "llm-pretrain":  # what arrives at experts follows the router
            kept = rank_memory(job, 0)["activations"]
            assert said["components"]["activations"] - kept in (0, MASK_BYTES), chosen
        tolerance = TOLERANCE * (2 if name == "moe-pretrain" else 1)
        if set(SHARDED_STAGES) <= set(chosen):
            tolerance = CLOSE
        assert step_peak_bytes(job, 0) == pytest.approx(said["peak"], rel=tolerance), chosen
