"""The launch queue: busy second stage and full queue (H-02), and what cannot be seen (H-08)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.analyzers.task_queue import task_queue
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Rows = list[dict[str, object]]
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
# Ten kernels of 40 us in 100 us each: the device idles 60 %.
KERNELS = [{"start_ns": i * 100_000, "dur_ns": 40_000, "name": f"k{i}", "stream": 1} for i in range(10)]


def _queue(kind: str, dur: int, thread: int) -> Rows:
    return [
        {"start_ns": i * 100_000, "dur_ns": dur, "name": f"{kind}@op{i}", "kind": kind.lower(), "thread": thread}
        for i in range(10)
    ]


def _judged(outcome: Outcome) -> dict[str, str]:
    return {row.code: row.verdict for row in outcome.judged}


def test_a_busy_second_stage_explains_the_idle_time_meanwhile(make_trace: Make) -> None:
    events = [*_queue("Enqueue", 5_000, 1), *_queue("Dequeue", 90_000, 2)]
    trace = make_trace(meta=NPU, steps=STEP, kernels=KERNELS, host_events=events)

    outcome = task_queue.run_on_trace(trace)

    (found,) = outcome.findings
    assert (found.code, found.subject) == ("H-02", "second stage")
    assert found.share_ratio == pytest.approx(10 * 50_000 / 1_000_000)  # idle from 40 to 100 us, Dequeue until 90
    assert _judged(outcome) == {"H-02": "found", "H-08": "not_judged"}
    free = next(f for f in host_dispatch.run_on_trace(trace).findings if f.code == "H-01")
    assert free.share_ratio == pytest.approx(0.1)


def test_a_full_queue_with_an_idle_device_is_the_second_stage_too(make_trace: Make) -> None:
    events = [*_queue("Enqueue", 80_000, 1), *_queue("Dequeue", 90_000, 2)]
    (found,) = task_queue.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=KERNELS, host_events=events)).findings

    assert (found.code, found.subject) == ("H-02", "queue full")
    assert found.share_ratio == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("enqueue", "dequeue", "busy"),
    [
        (5_000, 30_000, 40_000),  # the second stage rests most of the time
        (5_000, 90_000, 100_000),  # the device never waits
        (80_000, 90_000, 100_000),  # the queue is full because the device is the limit
        (40_000, 90_000, 40_000),  # both stages work: neither is short
    ],
)
def test_a_queue_that_keeps_up_is_clean(make_trace: Make, enqueue: int, dequeue: int, busy: int) -> None:
    kernels = [row | {"dur_ns": busy} for row in KERNELS]
    events = [*_queue("Enqueue", enqueue, 1), *_queue("Dequeue", dequeue, 2)]
    outcome = task_queue.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=kernels, host_events=events))

    assert not outcome.findings
    assert _judged(outcome) == {"H-02": "clean", "H-08": "not_judged"}


def test_a_second_stage_that_compiles_is_left_to_the_row_of_compilation(make_trace: Make) -> None:
    events = [*_queue("Enqueue", 5_000, 1), *_queue("Dequeue", 90_000, 2)]
    calls = [
        {"start_ns": i * 100_000, "dur_ns": 50_000, "api": "AscendCL@aclopCompileAndExecute", "layer": "acl"}
        for i in range(10)
    ]
    trace = make_trace(meta=NPU, steps=STEP, kernels=KERNELS, host_events=events, runtime_calls=calls)

    assert _judged(task_queue.run_on_trace(trace))["H-02"] == "clean"


def test_without_a_queue_nothing_is_judged(make_trace: Make) -> None:
    event = {"start_ns": 0, "dur_ns": 5, "name": "GC", "kind": "gc"}
    outcome = task_queue.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=KERNELS, host_events=[event]))

    assert _judged(outcome) == {"H-02": "not_judged", "H-08": "not_judged"}
