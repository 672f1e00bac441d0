"""The launch queue of torch_npu: which of its two stages limits the device (H-02, H-08)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._dispatch_claims import Queue, queue_of
from ascend_perf.analyzers._idle import Idle, idle_of
from ascend_perf.analyzers._kernels import MAX_BANDS
from ascend_perf.analyzers._rules import finding, rule
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers.host_dispatch import launch_blocking
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Words
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import HOST_EVENTS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "task-queue"
NO_QUEUE: Final = Words(
    "no Enqueue or Dequeue events: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.NPU] and "
    "TASK_QUEUE_ENABLE of 1 or 2",
    "没有 Enqueue/Dequeue 事件：请以 activities=[ProfilerActivity.CPU, ProfilerActivity.NPU] 采集，"
    "且 TASK_QUEUE_ENABLE 为 1 或 2",
)


@analyzer(name=NAME, needs=(HOST_EVENTS,), order=81, section="host")
def task_queue(trace: Trace) -> Result:
    """Report a launch queue whose second stage keeps the device waiting.

    Reads:
        host_events: kinds enqueue and dequeue; everything that `idle_of` reads.

    Returns:
        Finding H-02. Its share is the idle time of the device while the second stage works; row H-01 leaves it out.
        H-08 is never judged: whether a thread was moved or interrupted is not in these profiles.
    """
    if trace.meta.device.kind in ("gpu", "cpu"):
        return Result()  # they have no such queue
    scheduler = Judged(code="H-08", verdict="not_judged", reason=rule("H-08").needs_data)
    idle = idle_of(trace)
    queue = None if idle is None else queue_of(trace, idle)
    if idle is None or queue is None:
        return Result(judged=(Judged(code="H-02", verdict="not_judged", reason=NO_QUEUE), scheduler))
    shares = f"Enqueue {format_ratio(share_of(idle.span, queue.enqueue_ns))}, Dequeue " + format_ratio(
        share_of(idle.span, queue.dequeue_ns)
    )
    if queue.state == "fine" or launch_blocking(trace, idle):
        reason = Words(f"{shares} of the step", f"占单步：{shares}")
        return Result(judged=(Judged(code="H-02", verdict="clean", reason=reason), scheduler))
    found = _finding(trace, idle, queue)
    return Result(findings=(found,), judged=(Judged(code="H-02", verdict="found"), scheduler))


def _finding(trace: Trace, idle: Idle, queue: Queue) -> Finding:
    span = idle.span
    lost = intervals.total(queue.lost)
    share = share_of(span, lost)
    step = step_words(span, share)
    what = (
        Words(
            f"The second launch stage (Dequeue) works {format_ratio(share_of(span, queue.dequeue_ns))} of the time, "
            f"Enqueue {format_ratio(share_of(span, queue.enqueue_ns))}",
            f"二级下发（Dequeue）忙碌占 {format_ratio(share_of(span, queue.dequeue_ns))}，Enqueue 仅占 "
            f"{format_ratio(share_of(span, queue.enqueue_ns))}",
        )
        if queue.state == "second stage"
        else Words(
            f"Enqueue waits for a full queue {format_ratio(share_of(span, queue.enqueue_ns))} of the time although "
            "the device has nothing to do: the second launch stage is the limit",
            f"Enqueue 因队列满等待占 {format_ratio(share_of(span, queue.enqueue_ns))}，而设备空闲：瓶颈在二级下发",
        )
    )
    return finding(
        "H-02", analyzer=NAME, trace_rank=trace.meta.rank, vendor="npu", share_ratio=share, subject=queue.state,
        where=queue.lost, whole_ns=span.step_ns,
        title=Words(
            f"{what.en}: the device idles {per_step(span, lost)} of {step.en} meanwhile",
            f"{what.zh}：{step.zh} 设备在此期间空闲 {per_step(span, lost)}（{format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("second stage (Dequeue), time per step", "二级下发（Dequeue，每步）"),
                value=queue.dequeue_ns / span.steps, unit="ns", where="host_events, kind dequeue: union in the steps",
            ),
            Evidence(
                name=Words("first stage (Enqueue), time per step", "一级下发（Enqueue，每步）"),
                value=queue.enqueue_ns / span.steps, unit="ns", where="host_events, kind enqueue: union in the steps",
            ),
            *_longest(trace),
        ],
        bands=_bands(queue), step_ids=span.step_ids,
        formula="idle time of the device while the second stage works / length of the steps; not part of H-01",
    )  # fmt: skip


def _longest(trace: Trace) -> list[Evidence]:
    """The operator whose Dequeue takes most."""
    events = trace[HOST_EVENTS]
    rows = np.flatnonzero(events.text("kind").equals("dequeue") & (events.ints("dur_ns") != NULL))
    names = events.text("name").take(rows)
    if not len(rows) or (names.codes < 0).all():
        return []
    duration = events.ints("dur_ns")[rows]
    known = names.codes >= 0
    totals = np.bincount(names.codes[known], duration[known], len(names.values))
    top = int(np.argmax(totals))
    mine = np.flatnonzero(names.codes == top)
    longest = int(mine[np.argmax(duration[mine])])
    return [
        Evidence(
            name=Words(f"{names.values[top][:100]}, all calls", f"{names.values[top][:100]}，合计"),
            value=float(totals[top]), unit="ns",
            where=f"{len(mine)} calls; longest {format_ns(int(duration[longest]))}",
            start_ns=int(events.ints("start_ns")[rows[longest]]),
        )
    ]  # fmt: skip


def _bands(queue: Queue) -> tuple[tuple[int, int], ...]:
    lost = queue.lost
    order = np.sort(np.argsort(lost.starts - lost.ends, kind="stable")[:MAX_BANDS])
    return tuple(zip(lost.starts[order].tolist(), lost.ends[order].tolist(), strict=True))
