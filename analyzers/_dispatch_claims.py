"""Idle time of the device that decoding (V-01, V-08), the launch queue (H-02), repeated short kernels (H-03) or HCCL
(N-12) explain.

Both analyzers and the general row H-01 read it from here, so that no idle time is claimed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ascend_perf import intervals
from ascend_perf.analyzers._collective_launch import issuing
from ascend_perf.analyzers._decode import decode_idle, reloading_idle
from ascend_perf.analyzers._idle import Cause, Idle, is_compile, union_of
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._repeats import Repeat, repeats_of
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.once import once
from ascend_perf.model.tables import HOST_EVENTS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace

DEQUEUE_MIN_RATIO: Final = threshold("H-02", "min_dequeue_ratio")
ENQUEUE_MAX_RATIO: Final = threshold("H-02", "max_enqueue_ratio")
FULL_MIN_RATIO: Final = threshold("H-02", "min_full_ratio")
QUEUE_MIN_RATIO: Final = threshold("H-02", "min_idle_ratio")
SEQUENCES_MIN_RATIO: Final = threshold("H-03", "min_idle_ratio")

_LAUNCHING: Final = (Cause.LAUNCH, Cause.OP, Cause.PYTHON, Cause.NOTHING)

QueueState = Literal["second stage", "queue full", "fine"]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The two stages of the launch queue inside the steps."""

    state: QueueState
    enqueue_ns: int
    dequeue_ns: int
    lost: IntervalSet
    """Idle time of the device that the state explains; empty when it is fine."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Repeated short kernels, and the idle time inside them that nothing else explains."""

    repeats: tuple[Repeat, ...]
    lost: IntervalSet


@once
def queue_of(trace: Trace, idle: Idle) -> Queue | None:
    """The launch queue of torch_npu; None when the profile holds no Enqueue or Dequeue.

    Compilation runs in the second stage, and row H-06 counts it: without it the stage may have time to spare.

    Reads:
        host_events: kinds enqueue and dequeue; runtime_calls: compilations.
    """
    events = trace[HOST_EVENTS]
    kinds = events.text("kind")
    enqueue, dequeue = (idle.span.clip(union_of(events, kinds.equals(name))) for name in ("enqueue", "dequeue"))
    if not len(dequeue.starts):
        return None
    dequeue = intervals.difference(dequeue, union_of(trace[RUNTIME_CALLS], is_compile(trace[RUNTIME_CALLS])))
    step, first, second = idle.span.step_ns, intervals.total(enqueue), intervals.total(dequeue)
    dispatch = intervals.difference(_parts(idle, _LAUNCHING), decoding(trace, idle))
    least = QUEUE_MIN_RATIO.value * step
    state: QueueState = "fine"
    lost = EMPTY
    if second >= DEQUEUE_MIN_RATIO.value * step and first <= ENQUEUE_MAX_RATIO.value * second:
        state, lost = "second stage", intervals.intersection(dispatch, dequeue)
    elif first >= FULL_MIN_RATIO.value * step:
        state, lost = "queue full", intervals.intersection(dispatch, intervals.union(enqueue, dequeue))
    if intervals.total(lost) < least:
        state, lost = "fine", EMPTY
    return Queue(state=state, enqueue_ns=first, dequeue_ns=second, lost=lost)


@once
def sequences_of(trace: Trace, idle: Idle, queue: Queue | None) -> Sequences:
    """Repeated sequences of short kernels and the idle time inside them, less what the queue explains.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name.
    """
    # What waits on the device between two kernels of a sequence is its launch latency, which fusing saves as well.
    within = intervals.difference(
        _parts(idle, (*_LAUNCHING, Cause.DEVICE)),
        intervals.union(decoding(trace, idle), EMPTY if queue is None else queue.lost),
    )  # fmt: skip
    least = SEQUENCES_MIN_RATIO.value * idle.span.step_ns
    if intervals.total(within) < least:
        return Sequences(repeats=(), lost=EMPTY)
    repeats = repeats_of(KernelTime.of(trace))
    windows = intervals.union(*(intervals.merged(repeat.starts_ns, repeat.ends_ns) for repeat in repeats))
    lost = intervals.intersection(within, windows)
    if intervals.total(lost) < least:
        return Sequences(repeats=(), lost=EMPTY)
    return Sequences(repeats=repeats, lost=lost)


def claims_of(trace: Trace, idle: Idle) -> dict[str, IntervalSet]:
    """Idle time by the row that explains it, without overlap; rows that explain nothing are left out."""
    queue = queue_of(trace, idle)
    reloading = reloading_idle(trace, idle)
    claims = {
        "V-01": intervals.difference(decode_idle(trace, idle), reloading),
        "V-08": reloading,
        "H-02": EMPTY if queue is None else queue.lost,
        "H-03": sequences_of(trace, idle, queue).lost,
    }
    claims["N-12"] = intervals.difference(issuing(trace, idle), intervals.union(*claims.values()))
    return {code: lost for code, lost in claims.items() if len(lost.starts)}


@once
def decoding(trace: Trace, idle: Idle) -> IntervalSet:
    """Idle time that rows V-01 and V-08 claim: it lies in decode steps, or while an offline model is loaded."""
    return intervals.union(decode_idle(trace, idle), reloading_idle(trace, idle))


def _parts(idle: Idle, causes: tuple[Cause, ...]) -> IntervalSet:
    return intervals.union(*(idle.parts[cause] for cause in causes))
