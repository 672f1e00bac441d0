"""A busy device with low utilisation (C-01)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.compute_efficiency import compute_efficiency
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Row = dict[str, object]
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
OPTIMIZER = [{"start_ns": 0, "dur_ns": 10, "name": "Optimizer.step#Adam.step", "kind": "optimizer"}]


def _cube(start: int, dur: int, mac: float = 0.8, cube: float = 0.5) -> Row:
    return {
        "start_ns": start, "dur_ns": dur, "name": "mm", "op_type": "MatMulV3", "core": "AIC", "stream": 1,
        "aic_mac_ratio": mac, "aic_mte2_ratio": 0.1, "cube_utilization_ratio": cube,
    }  # fmt: skip


def _vector(start: int, dur: int) -> Row:
    return {"start_ns": start, "dur_ns": dur, "name": "add", "op_type": "Add", "core": "AIV", "stream": 1}


def _run(make_trace: Make, *kernels: Row, events: list[Row] = OPTIMIZER, meta: Meta = NPU) -> Outcome:
    return compute_efficiency.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=list(kernels), host_events=events))


def _verdict(outcome: Outcome) -> list[tuple[str, str]]:
    return [(row.code, row.verdict) for row in outcome.judged]


def test_mostly_vector_work_is_named(make_trace: Make) -> None:
    # 0.4 of MFU in 300 us, 690 us of vector kernels: 12 % of the step.
    outcome = _run(make_trace, _cube(0, 300_000), _vector(300_000, 690_000))

    (found,) = outcome.findings
    assert (found.code, found.share_ratio) == ("C-01", None)
    assert found.evidence[0].value == pytest.approx(0.12)
    assert "vector kernels" in found.title.en
    assert outcome.metrics[0].value == pytest.approx(0.12)


def test_slow_products_are_named(make_trace: Make) -> None:
    (found,) = _run(make_trace, _cube(0, 900_000, mac=0.2), _vector(900_000, 90_000)).findings

    assert found.evidence[0].value == pytest.approx(0.09)
    assert "cube kernels" in found.title.en


@pytest.mark.parametrize(
    "kernels",
    [
        [_cube(0, 800_000), _vector(800_000, 190_000)],  # 32 %
        [_cube(0, 300_000, mac=0.1), _vector(300_000, 600_000)],  # idles 10 %: other rows come first
    ],
)
def test_other_devices_are_clean(make_trace: Make, kernels: list[Row]) -> None:
    assert _verdict(_run(make_trace, *kernels)) == [("C-01", "clean")]


def test_communication_that_keeps_the_device_busy_is_no_computing(make_trace: Make) -> None:
    comm = [{"start_ns": 300_000, "dur_ns": 700_000, "name": "hcom_allReduce__1_0_1", "op": "allReduce"}]
    trace = make_trace(meta=NPU, steps=STEP, kernels=[_cube(0, 300_000)], comm_ops=comm, host_events=OPTIMIZER)

    assert _verdict(compute_efficiency.run_on_trace(trace)) == [("C-01", "clean")]


def test_inference_is_not_judged(make_trace: Make) -> None:
    outcome = _run(make_trace, _cube(0, 300_000), _vector(300_000, 690_000), events=[])

    assert _verdict(outcome) == [("C-01", "not_judged")]


def test_unknown_utilisation_is_not_judged(make_trace: Make) -> None:
    bare = _cube(0, 990_000) | {"aic_mac_ratio": None, "cube_utilization_ratio": None}
    level0 = {"start_ns": 0, "dur_ns": 990_000, "name": "mm", "stream": 1}

    assert _verdict(_run(make_trace, bare)) == [("C-01", "not_judged")]
    assert _verdict(_run(make_trace, level0)) == [("C-01", "not_judged")]


def test_backward_kernels_make_it_training(make_trace: Make) -> None:
    grad = _vector(300_000, 690_000) | {"op_type": "SwiGluGrad"}

    assert _verdict(_run(make_trace, _cube(0, 300_000), grad, events=[])) == [("C-01", "found")]
