"""Idle time before collectives while the host is inside HCCL, and that H-01 leaves it out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.collective_launch import collective_launch
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

MakeTrace = Callable[..., Trace]
STEP = 1_000_000


def rank(make_trace: MakeTrace, *, kind: str = "npu", before: str = "comm", layer: str = "hccl") -> Trace:
    """Kernel 0..400 us, host inside HCCL 380..600 us, collective 600..700 us, kernel to the end of the step."""
    collective = {"start_ns": 600_000, "dur_ns": 100_000, "name": "c", "op": "allReduce"}
    kernels = [
        {"start_ns": 0, "dur_ns": 400_000, "name": "a"},
        {"start_ns": 700_000, "dur_ns": 300_000, "name": "b"},
    ]
    if before == "kernel":
        kernels.append({"start_ns": 600_000, "dur_ns": 50_000, "name": "c"})
        collective |= {"start_ns": 650_000, "dur_ns": 50_000}
    return make_trace(
        meta=Meta(rank=0, device=Device(kind=kind)),  # type: ignore[arg-type]
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
        kernels=kernels,
        comm_ops=[collective],
        runtime_calls=[
            {"start_ns": 380_000, "dur_ns": 220_000, "api": "HcclAllReduce" if layer == "hccl" else "launch",
             "layer": layer, "thread": 1}
        ],
    )  # fmt: skip


def shares(outcome: Outcome) -> dict[str, float]:
    return {f.code: round(f.share_ratio or 0, 6) for f in outcome.findings}


def test_idle_time_while_hccl_issues_the_collective_is_its_own_row(make_trace: MakeTrace) -> None:
    trace = rank(make_trace)
    assert shares(collective_launch.run_on_trace(trace)) == {"N-12": 0.2}  # 400 to 600 us
    assert "H-01" not in shares(host_dispatch.run_on_trace(trace))  # nothing is left of it


def test_idle_time_before_a_kernel_is_not(make_trace: MakeTrace) -> None:
    trace = rank(make_trace, before="kernel")
    outcome = collective_launch.run_on_trace(trace)
    assert [(j.code, j.verdict) for j in outcome.judged] == [("N-12", "clean")]
    assert shares(host_dispatch.run_on_trace(trace))["H-01"] == pytest.approx(0.2)


def test_without_calls_into_hccl_it_cannot_be_told(make_trace: MakeTrace) -> None:
    (judged,) = collective_launch.run_on_trace(rank(make_trace, layer="acl")).judged
    assert (judged.code, judged.verdict) == ("N-12", "not_judged")


def test_nccl_issues_one_kernel(make_trace: MakeTrace) -> None:
    assert collective_launch.run_on_trace(rank(make_trace, kind="gpu")).judged[0].verdict == "clean"
