"""Memory rate of vector kernels (M-02), hits of the L2 (M-03), conflicts in the unified buffer (M-04)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.memory_counters import memory_counters
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Row = dict[str, object]
B3 = Meta(rank=0, device=Device(kind="npu", spec="ascend-910b3"))  # 1.6 TB/s, of which 0.96 TB/s are reachable
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]


def _gather(dur: int = 500_000, **more: object) -> Row:
    """Reads and writes 4096 x 12000 x 2 bytes (98.3 MB each): 196.6 MB in 500 us are 0.393 TB/s."""
    return {
        "start_ns": 0, "dur_ns": dur, "name": "g", "op_type": "GatherV2", "core": "AIV", "stream": 1,
        "input_shapes": "4096,12000", "input_dtypes": "FLOAT16", "output_shapes": "4096,12000",
        "output_dtypes": "FLOAT16", "aiv_mte2_ratio": 0.95, "aiv_vec_ratio": 0.1, "aiv_mte3_ratio": 0.3,
    } | more  # fmt: skip


def _product(**more: object) -> Row:
    return {
        "start_ns": 0, "dur_ns": 500_000, "name": "m", "op_type": "MatMulV3", "core": "AIC", "stream": 1,
        "input_shapes": "1024,1024;1024,1024", "input_dtypes": "FLOAT16;FLOAT16", "output_shapes": "1024,1024",
        "output_dtypes": "FLOAT16",
    } | more  # fmt: skip


def _run(make_trace: Make, meta: Meta, *kernels: Row) -> Outcome:
    return memory_counters.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=list(kernels)))


def _verdict(outcome: Outcome, code: str) -> str:
    return next(row.verdict for row in outcome.judged if row.code == code)


def test_a_kernel_that_loads_all_the_time_at_a_low_rate_is_found(make_trace: Make) -> None:
    outcome = _run(make_trace, B3, _gather())

    (found,) = outcome.findings
    rate = 2 * 4096 * 12000 * 2 / 500e-6
    assert found.code == "M-02"
    assert found.share_ratio == pytest.approx(0.5 * (1 - rate / 0.96e12))
    assert found.evidence[0].value == pytest.approx(rate)


@pytest.mark.parametrize(
    "kernel",
    [
        _gather(dur=230_000),  # 0.85 TB/s: near what is reachable
        _gather(aiv_mte2_ratio=0.5, aiv_vec_ratio=0.9),  # bound by computing
        _gather(op_type="Transpose"),  # row C-10 counts its whole time
        _gather(input_shapes="8,16", output_shapes="8,16"),  # latency, not rate
        _product(aic_mte2_ratio=0.99, aiv_mte2_ratio=0.0, aic_mac_ratio=0.1),  # operands are read several times
    ],
)
def test_other_kernels_are_clean(make_trace: Make, kernel: Row) -> None:
    outcome = _run(make_trace, B3, kernel, _gather(dur=1_000, stream=2))

    assert _verdict(outcome, "M-02") == "clean"
    assert not [found for found in outcome.findings if found.code == "M-02"]


def test_without_a_peak_large_element_wise_kernels_show_the_rate(make_trace: Make) -> None:
    # Each moves 2 x 400 MB in 800 us: 1 TB/s.
    large = [
        _gather(800_000, op_type="Relu", start_ns=1_000_000 * i, input_shapes="200000000", output_shapes="200000000")
        for i in range(1, 4)
    ]
    steps = [{"step_id": 1, "start_ns": 0, "dur_ns": 4_000_000}]
    trace = make_trace(meta=NPU, steps=steps, kernels=[_gather(), *large])

    (found,) = memory_counters.run_on_trace(trace).findings

    assert found.share_ratio == pytest.approx(0.5 / 4 * (1 - 0.393216))
    assert _verdict(_run(make_trace, NPU, _gather()), "M-02") == "not_judged"


def test_misses_on_operands_that_fit_the_l2_are_found(make_trace: Make) -> None:
    counters = {
        "aic_r0_read_cache_hit": 100.0, "aic_r0_read_cache_miss_allocate": 500.0, "aic_write_cache_hit": 100.0,
        "aic_write_cache_miss_allocate": 100.0,
    }  # fmt: skip
    outcome = _run(make_trace, NPU, _product(**counters))

    (found,) = outcome.findings
    assert (found.code, found.share_ratio) == ("M-03", None)
    assert found.evidence[0].value == pytest.approx(200 / 800)


@pytest.mark.parametrize(
    "kernel",
    [
        _product(aic_r0_read_cache_hit=600.0, aic_r0_read_cache_miss_allocate=400.0),
        # A first touch cannot hit: one pass over new data says nothing of the working set.
        _gather(aiv_r0_read_cache_hit=0.0, aiv_r0_read_cache_miss_allocate=500.0),
        _product(
            input_shapes="16384,16384;16384,16384", output_shapes="16384,16384",
            aic_r0_read_cache_hit=1.0, aic_r0_read_cache_miss_allocate=9.0,
        ),  # 1.6 GB fit no L2
    ],
)  # fmt: skip
def test_hits_and_first_touches_are_clean(make_trace: Make, kernel: Row) -> None:
    assert _verdict(_run(make_trace, NPU, kernel), "M-03") == "clean"


def test_conflicts_count_by_the_largest_ratio(make_trace: Make) -> None:
    kernel = _gather(aiv_vec_bank_cflt_ratio=0.4, aiv_vec_resc_cflt_ratio=0.3)
    found = next(f for f in _run(make_trace, NPU, kernel).findings if f.code == "M-04")

    assert found.share_ratio == pytest.approx(0.5 * 0.4)
    assert "aiv_vec_bank_cflt_ratio" in found.evidence[0].name.en


def test_few_conflicts_are_clean(make_trace: Make) -> None:
    assert _verdict(_run(make_trace, NPU, _gather(vec_bank_cflt_ratio=0.1)), "M-04") == "clean"


def test_without_counters_nothing_is_judged(make_trace: Make) -> None:
    bare = {"start_ns": 0, "dur_ns": 10, "name": "k"}
    outcome = _run(make_trace, NPU, bare)

    assert {row.code: row.verdict for row in outcome.judged} == dict.fromkeys(("M-02", "M-03", "M-04"), "not_judged")
    reasons = {row.code: row.reason.en for row in outcome.judged if row.reason}
    assert "AiCMetrics.L2Cache" in reasons["M-03"]
    assert "AiCMetrics.ResourceConflictRatio" in reasons["M-04"]


@pytest.mark.parametrize("folder", ["text/level1", "db/level1", "qwen3-0.6b-pp2-dp2-level2"])
def test_real_runs_have_no_slow_traffic(traces: Path, folder: str) -> None:
    for trace in pipeline.load(traces / "ascend-pytorch" / folder).traces:
        assert not memory_counters.run_on_trace(trace).findings
