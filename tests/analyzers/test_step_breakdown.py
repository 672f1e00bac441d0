"""Where a step goes, by hand and against the exporter's own figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.step_breakdown import step_breakdown
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))


def _table(outcome: Outcome, name: str) -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _row(table: ResultTable, at: int = 0) -> dict[str, object]:
    return {column.name: cells[at] for column, cells in zip(table.columns, table.data, strict=True)}


def _kernel(start: int, dur: int, core: str = "AIV", step: int | None = None, stream: int = 1) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": "k", "core": core, "step_id": step, "stream": stream}


def test_a_step_splits_into_parts_that_add_up(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 5, "start_ns": 1000, "dur_ns": 1000, "host_start_ns": 700, "host_dur_ns": 1300}],
        # Kernels 1000-1400 (two overlap), collective 1300-1700, receive 1800-1900, copies 1350-1450 and 1750-1850.
        kernels=[_kernel(1000, 300, "AIC"), _kernel(1200, 200, stream=2)],
        comm_ops=[
            {"start_ns": 1300, "dur_ns": 400, "name": "hcom_allReduce__1_0_1", "op": "allReduce"},
            {"start_ns": 1800, "dur_ns": 100, "name": "hcom_receive__1_0_1", "op": "receive"},
        ],
        copies=[
            {"start_ns": 1350, "dur_ns": 100, "kind": "H2D"},
            {"start_ns": 1750, "dur_ns": 100, "kind": "H2D"},
        ],
    )

    row = _row(_table(step_breakdown.run_on_trace(trace), "steps"))

    assert row == {
        "step_id": 5,
        "span_us": 1.0,
        "computing_us": 0.4,
        "communication_us": 0.5,
        "overlapped_us": 0.1,
        "communication_not_overlapped_us": 0.4,
        "free_us": 0.2,  # 1700-1800 and 1900-2000: copies are not busy in Ascend's sense
        "bubble_us": 0.1,
        "preparing_us": 0.3,
        "wait_us": None,  # no sub-tasks in this trace
        "copy_not_overlapped_us": 0.05,  # 1750-1800
        "source": "events",
    }


def test_the_bar_adds_up_to_the_step_exactly(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 5, "start_ns": 0, "dur_ns": 1000}],
        # Cube 0-200; vector 100-300 keeps 100; AI CPU 300-350; a random-number task 400-410.
        kernels=[_kernel(0, 200, "MIX_AIC"), _kernel(100, 200), _kernel(300, 50, "AICPU"), _kernel(400, 10, "DSA")],
        comm_ops=[{"start_ns": 340, "dur_ns": 300, "name": "hcom_allReduce__1_0_1", "op": "allReduce"}],
        # Two planes wait for the same peer at once, then one of them moves data while the other still waits.
        comm_tasks=[
            {"start_ns": 350, "dur_ns": 200, "kind": "Notify_Wait", "comm_op": 0, "plane": 0},
            {"start_ns": 360, "dur_ns": 240, "kind": "Notify_Wait", "comm_op": 0, "plane": 1},
            {"start_ns": 550, "dur_ns": 80, "kind": "Memcpy", "comm_op": 0, "plane": 0},
        ],
        copies=[{"start_ns": 700, "dur_ns": 40, "kind": "H2D"}],
    )

    outcome = step_breakdown.run_on_trace(trace)
    assert _row(_table(outcome, "steps"))["wait_us"] == 0.19
    table = _table(outcome, "step-bar")

    times = dict(zip(table.column("component"), table.column("time_ns"), strict=True))
    # Exposed communication: 350-400 and 410-640 = 280; of it waiting (350-550 less 400-410) = 190.
    assert times == {
        "cube": 200, "vector": 100, "aicpu": 50, "other compute": 10, "comm-wait": 190, "comm-transfer": 90,
        "copy": 40, "free": 320,
    }  # fmt: skip
    assert sum(value for value in table.column("time_ns") if isinstance(value, int)) == 1000
    assert sum(value for value in table.column("share_ratio") if isinstance(value, float)) == pytest.approx(1)


def test_kernels_on_many_streams_never_exceed_the_step(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}],
        kernels=[_kernel(i, 90, stream=i) for i in range(4)],
    )

    row = _row(_table(step_breakdown.run_on_trace(trace), "steps"))

    assert row["computing_us"] == 0.093
    assert row["free_us"] == 0.007


def test_side_kernels_of_fused_communication_are_no_computing(make_trace: Make) -> None:
    # The side kernel of an MC2 operator spans its whole communication: [100, 900) of which [100, 300) computes.
    side = {**_kernel(100, 800, "AICPU", stream=2), "name": "aclnnMatmulAllReduce_MatmulAllReduceAicpuKernel"}
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 100, "dur_ns": 800}],
        kernels=[_kernel(100, 200, "MIX_AIC"), side],
        comm_ops=[{"start_ns": 250, "dur_ns": 600, "name": "hcom_allReduce__1_0_1", "op": "allReduce"}],
    )

    outcome = step_breakdown.run_on_trace(trace)

    row = _row(_table(outcome, "steps"))
    # Collective [250, 850): 50 ns beside computing, 550 not hidden; free is [850, 900).
    expected = {"computing_us": 0.2, "communication_not_overlapped_us": 0.55, "overlapped_us": 0.05, "free_us": 0.05}
    assert {name: row[name] for name in expected} == expected
    bar = _table(outcome, "step-bar")
    assert dict(zip(bar.column("component"), bar.column("time_ns"), strict=True)) == {
        "cube": 200, "communication": 550, "free": 50,
    }  # fmt: skip


def test_steps_without_kernels_compute_nothing(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": i, "start_ns": 100 * i, "dur_ns": 100} for i in range(3)],
        kernels=[_kernel(120, 30, step=1)],
    )

    outcome = step_breakdown.run_on_trace(trace)

    assert _table(outcome, "steps").column("computing_us") == (0.0, 0.03, 0.0)
    assert [m.value for m in outcome.metrics if m.name == "computing_time"] == [30.0]  # empty steps are not counted


def test_without_a_device_only_the_spans_of_the_host_are_known(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(device=Device(kind="cpu")),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}],
        host_ops=[{"start_ns": 0, "dur_ns": 50, "name": "aten::add", "thread": 1}],
    )

    outcome = step_breakdown.run_on_trace(trace)

    row = _row(_table(outcome, "steps"))
    assert row["span_us"] == 0.1
    assert row["source"] == "host"
    assert {row[name] for name in ("computing_us", "communication_us", "free_us", "copy_not_overlapped_us")} == {None}
    assert [table.name for table in outcome.tables] == ["steps"]


def test_a_rank_with_the_exporters_table_only_uses_it(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        exported_steps=[
            {
                "step_id": 3, "computing_ns": 600, "communication_ns": 300, "overlapped_ns": 100,
                "communication_not_overlapped_ns": 200, "free_ns": 150, "stage_ns": 950, "bubble_ns": 0,
            }
        ],
        # Collectives alone tell nothing of computing.
        comm_ops=[{"start_ns": 0, "dur_ns": 300, "name": "hcom_allReduce__1_0_1", "step_id": 3}],
    )  # fmt: skip

    outcome = step_breakdown.run_on_trace(trace)

    row = _row(_table(outcome, "steps"))
    assert row["source"] == "exporter"
    assert row["span_us"] == 0.95
    assert row["computing_us"] == 0.6
    assert row["preparing_us"] is None
    assert row["copy_not_overlapped_us"] is None
    bar = _table(outcome, "step-bar")
    assert bar.column("time_ns") == (600, 200, 150)


def test_preparing_is_the_exporters_where_the_hosts_start_is_not_exported(make_trace: Make) -> None:
    exported = [{"step_id": 3, "computing_ns": 5000, "free_ns": 5000, "preparing_ns": 206_090}]
    step = {"step_id": 3, "start_ns": 0, "dur_ns": 10_000}
    device_only = make_trace(meta=NPU, steps=[step], kernels=[_kernel(300, 5000)], exported_steps=exported)
    other_step = make_trace(
        meta=NPU, steps=[{**step, "step_id": 4}], kernels=[_kernel(300, 5000)], exported_steps=exported
    )
    with_host = make_trace(
        meta=NPU, steps=[{**step, "host_start_ns": -700}], kernels=[_kernel(300, 5000)], exported_steps=exported
    )

    def preparing(trace: Trace) -> list[object]:
        return list(_table(step_breakdown.run_on_trace(trace), "steps").column("preparing_us"))

    assert preparing(device_only) == [206.09]
    assert preparing(other_step)[0] is None
    assert preparing(with_host) == [1.0]


def test_a_difference_from_the_exporter_is_shown(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 3, "start_ns": 0, "dur_ns": 10_000}],
        kernels=[_kernel(0, 5000)],
        exported_steps=[{"step_id": 3, "computing_ns": 5090, "free_ns": 4899, "stage_ns": 10_350}],
    )

    checks = _table(step_breakdown.run_on_trace(trace), "step-checks")

    rows = dict(
        zip(
            checks.column("quantity"),
            zip(checks.column("difference_us"), checks.column("holds"), strict=True),
            strict=True,
        )
    )
    assert rows == {"computing": (-0.09, True), "free": (0.101, False), "stage": (-0.35, True)}


def test_no_steps_at_all_is_no_data(make_trace: Make) -> None:
    assert step_breakdown.run_on_trace(make_trace()).status == "no_data"


REFERENCE = [
    # set, computing, not overlapped, overlapped, free, span, preparing; computing is short of the exporter's by
    # what cutting durations to 3 decimals loses (0.02 us in 187 rows).
    ("text/level0/rank0", 8827.473, 81515.607, 4001.282, 25908.102, 116251.182, 19358.190),
    ("text/level1/rank0", 8873.756, 101963.203, 4028.675, 25744.050, 136581.009, 17902.502),
    ("text/level1/rank1", 8878.295, 96359.047, 4016.239, 26675.274, 131912.616, 20433.190),
    ("text/level2/rank0", 8868.240, 95962.016, 4011.262, 25032.619, 129862.875, 17483.722),
    ("text/level2/rank1", 8902.301, 93411.782, 4043.544, 26441.689, 128755.772, 18325.460),
]


@pytest.mark.parametrize(("name", "computing", "exposed", "overlapped", "free", "span", "preparing"), REFERENCE)
def test_text_exports_agree_with_the_reference(
    traces: Path,
    name: str,
    computing: float,
    exposed: float,
    overlapped: float,
    free: float,
    span: float,
    preparing: float,
) -> None:
    (trace,) = pipeline.load(traces / "ascend-pytorch" / f"{name}_ascend_pt").traces

    outcome = step_breakdown.run_on_trace(trace)

    row = _row(_table(outcome, "steps"))
    assert row["computing_us"] == pytest.approx(computing, abs=0.03)
    assert row["communication_not_overlapped_us"] == pytest.approx(exposed, abs=0.02)
    assert row["overlapped_us"] == pytest.approx(overlapped, abs=0.02)
    assert row["free_us"] == pytest.approx(free, abs=0.03)
    assert row["span_us"] == pytest.approx(span, abs=0.0011)  # the last duration is cut to a whole ns
    assert row["preparing_us"] == preparing
    assert row["bubble_us"] == 0.0
    assert all(_table(outcome, "step-checks").column("holds"))


@pytest.mark.parametrize(
    ("rank", "computing", "exposed", "free", "span", "preparing", "source"),
    [
        (0, 231290.10, 420174.26, 158558.00, 810022.36, 206.09, "events"),
        (1, 230903.72, 441708.38, 136819.56, 809431.66, 205.16, "exporter"),
        (2, 400448.26, 277649.66, 131705.28, 809803.20, 189.13, "events"),
        (3, 401131.70, 261498.44, 147520.20, 810150.34, 278.68, "exporter"),
    ],
)
def test_the_pipeline_set_agrees_with_the_reference(
    traces: Path, rank: int, computing: float, exposed: float, free: float, span: float, preparing: float, source: str
) -> None:
    folder = traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2" / f"rank_{rank}_ascend_pt"
    (trace,) = pipeline.load(folder).traces

    row = _row(_table(step_breakdown.run_on_trace(trace), "steps"))

    assert row["source"] == source
    assert row["computing_us"] == computing
    assert row["communication_not_overlapped_us"] == exposed
    assert row["overlapped_us"] == 0.0
    assert row["free_us"] == free
    assert row["span_us"] == span
    assert row["preparing_us"] == preparing  # the set holds no host events


@pytest.mark.parametrize(
    ("name", "computing", "span"),
    [
        ("h100/Falconsai_nsfw_image_detection__1016002", 1220.925, 7894.065),
        ("h100/facebook_timesformer-base-finetuned-k400__1016002", 154855.592, 382535.558),
        ("h100/gaunernst_bert-small-uncased__1016001", 307.198, 4426.114),
        ("mi300/Falconsai_nsfw_image_detection__1016002", 1716.299, 7453.325),
        ("mi300/facebook_timesformer-base-finetuned-k400__1016002", 118758.896, 390679.906),
        ("mi300/gaunernst_bert-small-uncased__1016001", 388.345, 4007.334),
    ],
)
def test_gpu_unions_agree_with_the_reference(traces: Path, name: str, computing: float, span: float) -> None:
    (trace,) = pipeline.load(traces / "kineto" / f"{name}.json.gz").traces

    row = _row(_table(step_breakdown.run_on_trace(trace), "steps"))

    assert row["computing_us"] == pytest.approx(computing, abs=0.01)
    assert row["span_us"] == pytest.approx(span, abs=0.001)
    assert row["communication_us"] == 0.0


def test_the_alexnet_bar_shows_the_wait(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces

    bar = _table(step_breakdown.run_on_trace(trace), "step-bar")

    times = dict(zip(bar.column("component"), bar.column("time_ns"), strict=True))
    assert times["comm-wait"] == pytest.approx(98e6, rel=0.001)
    assert sum(value for value in bar.column("time_ns") if isinstance(value, int)) == 136_581_009
