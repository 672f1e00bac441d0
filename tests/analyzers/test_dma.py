"""Pipes, copies by direction, conversions and row D-02."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.dma import dma
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]


def _table(outcome: Outcome, name: str) -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def test_pipes_are_busy_for_their_ratio_of_the_kernels_time(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            {"start_ns": 0, "dur_ns": 100, "name": "a", "core": "AIC", "aic_mte2_ratio": 0.5, "aiv_mte2_ratio": 0.0},
            {"start_ns": 100, "dur_ns": 300, "name": "b", "core": "AIC", "aic_mte2_ratio": 0.1, "aiv_mte2_ratio": 0.0},
            {"start_ns": 400, "dur_ns": 50, "name": "c", "core": "AIV", "aic_mte2_ratio": 0.0, "aiv_mte2_ratio": 0.8},
        ],
    )

    table = _table(dma.run_on_trace(trace), "dma")

    shares = dict(zip(table.column("pipe"), table.column("share_ratio"), strict=True))
    assert shares == {
        "cube: MTE2 (memory to L1)": pytest.approx((50 + 30) / 400),  # vector kernels do not dilute it
        "vector: MTE2 (memory to UB)": pytest.approx(0.8),
    }


def test_copies_by_direction_with_their_rate_and_what_nothing_hides(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[{"start_ns": 0, "dur_ns": 100, "name": "a"}],
        copies=[
            {"start_ns": 50, "dur_ns": 100, "kind": "H2D", "size_bytes": 1_000_000},
            {"start_ns": 300, "dur_ns": 100, "kind": "H2D", "size_bytes": 1000},
            {"start_ns": 500, "dur_ns": 10, "kind": "D2H"},
        ],
    )

    table = _table(dma.run_on_trace(trace), "copies")

    assert table.column("kind") == ("H2D", "D2H")
    assert table.column("count") == (2, 1)
    assert table.column("size_bytes") == (1_001_000, None)
    assert list(table.column("bytes_per_s")) == [pytest.approx(1_001_000 / 200e-9), None]
    assert table.column("exposed_ns") == (150, 10)  # 100-150 and 300-400
    assert table.column("small_count") == (1, None)


def test_exposed_copies_from_the_host_are_found_per_step(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(rank=2, device=Device(kind="gpu")),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}, {"step_id": 2, "start_ns": 1000, "dur_ns": 1000}],
        kernels=[{"start_ns": 100, "dur_ns": 100, "name": "a", "core": "SM"}],
        copies=[
            {
                "start_ns": start, "dur_ns": 50, "kind": "H2D", "size_bytes": 64, "api": "cudaMemcpy",
                "name": "Memcpy HtoD (Pageable -> Device)",
            }
            for start in (0, 120, 1000)
        ],
    )  # fmt: skip

    outcome = dma.run_on_trace(trace)

    (finding,) = outcome.findings
    assert finding.code == "D-02"
    assert finding.share_ratio == 0.05  # 2 x 50 of 2000: the copy at 120 runs behind a kernel
    assert finding.ranks == (2,)
    values = {evidence.name.en: evidence.value for evidence in finding.evidence}
    assert values["copies per step"] == 1.5
    assert values["copies below 64 KiB"] == 3
    assert values["issued by a blocking call"] == 3
    assert values["from pageable memory"] == 3


def test_a_copy_that_begins_before_the_step_counts_with_its_part_inside(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU, steps=STEP, kernels=[{"start_ns": 500, "dur_ns": 500, "name": "a"}],
        copies=[
            {"start_ns": -100, "dur_ns": 300, "kind": "H2D", "size_bytes": 1 << 20},
            {"start_ns": -900, "dur_ns": 400, "kind": "H2D", "size_bytes": 1 << 20},
        ],
    )  # fmt: skip

    outcome = dma.run_on_trace(trace)

    (finding,) = outcome.findings
    assert (finding.code, finding.share_ratio) == ("D-02", 0.2)
    assert [item.value for item in finding.evidence][:3] == [200.0, 1.0, 300]


def test_hidden_copies_are_clean(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[{"start_ns": 0, "dur_ns": 500, "name": "a"}],
        copies=[{"start_ns": 10, "dur_ns": 400, "kind": "H2D"}],
    )

    outcome = dma.run_on_trace(trace)

    assert [(judged.code, judged.verdict) for judged in outcome.judged] == [("D-02", "clean")]


def test_without_copies_the_row_is_not_judged(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU, steps=STEP, kernels=[{"start_ns": 0, "dur_ns": 9, "name": "a", "core": "AIC", "aic_mac_ratio": 0.5}]
    )

    (judged,) = dma.run_on_trace(trace).judged

    assert judged.verdict == "not_judged"
    assert judged.reason is not None
    assert "Level2" in judged.reason.en


def test_conversions_state_their_bytes(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            {
                "start_ns": 0, "dur_ns": 100, "name": "t", "op_type": "TransData", "core": "AIV",
                "input_shapes": "32,3,224,224", "input_dtypes": "FLOAT", "input_formats": "NCHW",
                "output_shapes": "32,1,224,224,8", "output_dtypes": "FLOAT", "output_formats": "NC1HWC0",
            }
        ],
    )  # fmt: skip

    table = _table(dma.run_on_trace(trace), "conversions")

    assert table.column("formats") == ("NCHW -> NC1HWC0",)
    assert table.column("size_bytes") == (4.0 * 32 * 224 * 224 * (3 + 8),)


def test_a_cpu_trace_says_that_there_is_no_device(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(device=Device(kind="cpu")), host_ops=[{"start_ns": 0, "dur_ns": 1, "name": "aten::add", "thread": 1}]
    )

    outcome = dma.run_on_trace(trace)

    assert outcome.status == "no_data"
    assert outcome.reason is not None
    assert "Level2" not in outcome.reason.en


def test_copies_of_the_resnet_set(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "kineto/v100/resnet50_num_workers_0.json.gz").traces

    outcome = dma.run_on_trace(trace)

    (finding,) = outcome.findings
    assert finding.code == "D-02"
    assert finding.share_ratio == pytest.approx(0.011, abs=0.001)
    assert any("pageable" in evidence.name.en for evidence in finding.evidence)


def test_copies_before_the_first_kernel_of_a_step_count(make_trace: Make) -> None:
    """The exporter's step begins with its first kernel, the host's with the batch that is copied in front of it."""
    step = {"step_id": 1, "start_ns": 400, "dur_ns": 600, "host_start_ns": 0, "host_dur_ns": 1000}
    trace = make_trace(
        meta=NPU,
        steps=[step],
        kernels=[{"start_ns": 400, "dur_ns": 600, "name": "a"}],
        copies=[{"start_ns": 50, "dur_ns": 300, "kind": "H2D", "size_bytes": 1_000_000}],
    )

    (finding,) = dma.run_on_trace(trace).findings

    assert finding.code == "D-02"
    assert finding.share_ratio == pytest.approx(0.3)  # 300 of the host's 1000
