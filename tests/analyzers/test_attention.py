"""Fused attention: sizes from shapes, padding and bounding pipes (C-05)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers._attention import Sizes, padding_ratio, sizes_of
from ascend_perf.analyzers.attention import attention
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
ALIGNED = {
    "input_shapes": "4096,1,2048;4096,1,1024;4096,1,1024",
    "output_shapes": "1,16,4096,8;1,16,4096,8;;4096,1,2048",
}
CUBE = {"aic_mac_ratio": 0.85, "aic_mte2_ratio": 0.4, "aic_fixpipe_ratio": 0.3, "aiv_vec_ratio": 0.5}


def _kernel(start: int = 0, dur: int = 500_000, **more: object) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "name": "fa", "op_type": "FlashAttentionScore", "core": "MIX_AIC",
        "stream": 1,
    } | ALIGNED | CUBE | more  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "outputs", "sizes"),
    [
        # SBH: 16 heads of 128 in 2048.
        (ALIGNED["input_shapes"], ALIGNED["output_shapes"], Sizes(head=128, queries=4096, keys=4096)),
        ("2,16,1000,80;2,16,1000,80;2,16,1000,80", "2,16,1000,8", Sizes(head=80, queries=1000, keys=1000)),  # BNSD
        ("2,1000,16,80;2,512,4,80;2,512,4,80", "2,16,1000,8", Sizes(head=80, queries=1000, keys=512)),  # BSND, grouped
        ("2,90,1280;2,90,1280;2,90,1280", "2,16,90,8", Sizes(head=80, queries=90, keys=90)),  # BSH, length below 100
        ("4096,16,96;4096,16,96;4096,16,96", "4096,16,8;4096,16,8", Sizes(head=96)),  # TND: lengths are values
        ("2,16,1000,80;2,16,1000,80;2,16,1000,80", "", Sizes(head=80)),  # heads or length: not told
        ("2,90,1280;2,90,1280;2,90,1280", "", Sizes()),
        ("2,16,16,80;2,16,32,80;2,16,32,80", "2,16,16,8", Sizes(head=80, queries=16)),  # both orders fit
        ("", "", Sizes()),
    ],
)
def test_sizes_follow_from_dimensions(inputs: str, outputs: str, sizes: Sizes) -> None:
    assert sizes_of(inputs, outputs) == sizes


def test_padding_counts_head_and_both_lengths() -> None:
    shapes = "1,16,1000,80;1,16,1000,80;1,16,1000,80"

    ratio = padding_ratio("FlashAttentionScore", shapes, "1,16,1000,8")

    assert ratio == pytest.approx(1 - 80 / 128 * (1000 / 1024) ** 2)
    assert padding_ratio("IncreFlashAttention", "1,16,1,128;1,16,1000,128", "1,16,1,8") == 0


def test_padded_attention_is_found_with_its_bound(make_trace: Make) -> None:
    shapes = {"input_shapes": "1,16,1024,80;1,16,1024,80;1,16,1024,80", "output_shapes": "1,16,1024,8"}
    outcome = attention.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[_kernel() | shapes]))

    (found,) = outcome.findings
    assert (found.code, found.subject) == ("C-05", "padding")
    assert found.share_ratio == pytest.approx(0.5 * (1 - 80 / 128))
    assert "D=80" in found.title.en


@pytest.mark.parametrize("pipe", ["aiv_vec_ratio", "aic_fixpipe_ratio", "aic_mte2_ratio"])
def test_the_busiest_pipe_bounds_when_it_is_not_the_cube(make_trace: Make, pipe: str) -> None:
    ratios = {"aic_mac_ratio": 0.35, "aic_mte2_ratio": 0.5, "aic_fixpipe_ratio": 0.3, "aiv_vec_ratio": 0.2, pipe: 0.85}
    outcome = attention.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[_kernel() | ratios]))

    (found,) = outcome.findings
    rest = max(value for name, value in ratios.items() if name != pipe)
    assert (found.code, found.subject) == ("C-05", "pipe")
    assert found.share_ratio == pytest.approx(0.5 * (1 - rest))
    assert pipe.removesuffix("_ratio") in found.title.en


@pytest.mark.parametrize(
    "kernel",
    [
        _kernel(),
        _kernel(aiv_vec_ratio=0.8),  # the cube is busier: it does its work
        _kernel(op_type="MatMulV3", aic_mac_ratio=0.1, aic_fixpipe_ratio=0.9),
        _kernel(input_shapes="1,16,1024,64;1,16,1024,64;1,16,1024,64", output_shapes="1,16,1024,8"),  # D of 64 is fine
        _kernel(dur=1_000, aic_mac_ratio=0.1, aic_fixpipe_ratio=0.9),  # too short to matter
    ],
)
def test_healthy_attention_is_clean(make_trace: Make, kernel: dict[str, object]) -> None:
    outcome = attention.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[kernel]))

    assert not outcome.findings
    assert [(row.code, row.verdict) for row in outcome.judged] == [("C-05", "clean")]


def test_without_shapes_and_counters_nothing_is_judged(make_trace: Make) -> None:
    bare = {"start_ns": 0, "dur_ns": 500_000, "name": "fa", "op_type": "FlashAttentionScore", "core": "MIX_AIC"}
    outcome = attention.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[bare]))

    assert [(row.code, row.verdict) for row in outcome.judged] == [("C-05", "not_judged")]


def test_a_real_pipeline_rank_is_bound_by_fixpipe_and_not_padded(traces: Path) -> None:
    # Forward kernels: fixpipe 0.79 to 0.80, next pipe mte2 0.72; D = 2048 / 16 = 128, S = 4096.
    run = pipeline.load(traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2")
    trace = next(trace for trace in run.traces if trace.meta.rank == 0)

    (found,) = attention.run_on_trace(trace).findings

    assert found.subject == "pipe"
    assert "bound by aic_fixpipe" in found.title.en
