"""Transfers beside matrix products: slowed and exposed, slowed but hidden, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.analyzers.contention import contention
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.pipeline import load

MakeTrace = Callable[..., Trace]
STEP = 1_000_000


def rank(
    make_trace: MakeTrace, beside: int, *, alone: int = 10_000, cover: int = 6_000, op: str = "MatMulV3"
) -> Outcome:
    """Eight calls with one transfer of 128 KiB each: four alone, four with a product over `cover` ns of `beside` ns."""
    starts = [100_000 * at for at in range(8)]
    return contention.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="npu")),
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
            kernels=[
                {"start_ns": start, "dur_ns": cover, "name": "k", "op_type": op} for start in starts[4:]
            ] + [{"start_ns": 990_000, "dur_ns": 1000, "name": "a", "op_type": "Add"}],
            comm_ops=[{"start_ns": s, "dur_ns": 50_000, "name": f"c{s}", "op": "allReduce"} for s in starts],
            comm_tasks=[
                {"start_ns": start, "dur_ns": alone if at < 4 else beside, "kind": "Memcpy", "comm_op": at, "plane": 0,
                 "src": 0, "dst": 1, "transport": "SDMA", "link": "HCCS", "size_bytes": 128 << 10}
                for at, start in enumerate(starts)
            ],
        )
    )  # fmt: skip


def test_transfers_that_a_product_slows_cost_the_difference(make_trace: MakeTrace) -> None:
    (found,) = rank(make_trace, 20_000, cover=12_000).findings
    assert (found.code, found.ranks) == ("N-07", (0,))
    assert found.share_ratio == pytest.approx(0.04)  # 4 x (20 - 10) us of 1 ms
    assert "run at 50 % of the rate" in found.title.en


def test_what_computing_hides_is_not_lost(make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, 20_000, cover=50_000)
    assert outcome.findings == ()
    assert outcome.judged[0].verdict == "clean"
    assert outcome.judged[0].reason is not None and "hides" in outcome.judged[0].reason.en


@pytest.mark.parametrize(("beside", "op"), [(12_000, "MatMulV3"), (10_000, "MatMulV3")])
def test_four_fifths_of_the_rate_are_allowed(beside: int, op: str, make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, beside, cover=8_000, op=op)
    assert [(j.code, j.verdict) for j in outcome.judged] == [("N-07", "clean")]


def test_other_kernels_are_no_products(make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, 20_000, cover=12_000, op="Add")
    assert [(j.code, j.verdict) for j in outcome.judged] == [("N-07", "not_judged")]


def test_without_sub_tasks_it_cannot_be_told(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=Meta(rank=0, device=Device(kind="npu")),
        kernels=[{"start_ns": 0, "dur_ns": 10, "name": "k"}],
        comm_ops=[{"start_ns": 0, "dur_ns": 10, "name": "c", "op": "allReduce"}],
    )
    (judged,) = contention.run_on_trace(trace).judged
    assert judged.verdict == "not_judged"
    assert judged.reason is not None and "Level1" in judged.reason.en


@pytest.mark.parametrize("name", ["text/level1", "db/level1", "text/level2"])
def test_real_profiles_have_none(name: str, traces: Path) -> None:
    for trace in load(traces / "ascend-pytorch" / name).traces:
        assert contention.run_on_trace(trace).findings == ()
