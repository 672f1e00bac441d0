"""Idle time of the device between its steps: before the first task (Preparing) and after the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._decode import reloading
from ascend_perf.analyzers._host_causes import MIN_SHARE_RATIO, NAME, span_words
from ascend_perf.analyzers._idle import CAUSES, Cause, Span, causes_of, device_span, idle_in
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of
from ascend_perf.analyzers._steps import StepWindows
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Words
from ascend_perf.model.trace import Trace
from ascend_perf.units import format_ratio

MIN_IDLE_NS: Final = threshold("H-01", "min_idle_between_steps_ns")
MAX_BANDS: Final = 4


@dataclass(frozen=True, kw_only=True)
class _Between:
    """Idle time outside of the device's windows that no other row explains."""

    parts: Mapping[Cause, IntervalSet]
    before: int
    """ns before the first tasks of the steps."""
    after: int
    """ns after their last tasks."""

    @property
    def total(self) -> int:
        return self.before + self.after


def between_steps(
    trace: Trace, windows: StepWindows, span: Span, claimed: Mapping[Cause, str], taken: IntervalSet
) -> Finding | None:
    """D-01 where the device waits for the start of the step, H-01 where it waits after its last task.

    Args:
        trace: the rank.
        windows: its steps as the device saw them.
        span: the same with the host's part, which ends where the next step begins.
        claimed: causes whose time other findings explain already.
        taken: further time that another finding explains.

    Source:
        Troubleshooting table, D-01: Preparing 3 % of the step or more.
    """
    idle = _between(trace, windows, span, claimed, taken)
    share = share_of(span, idle.total)
    if share < MIN_SHARE_RATIO.value or idle.total < MIN_IDLE_NS.value * span.steps:
        return None
    code = "D-01" if idle.before >= idle.after else "H-01"
    causes = sorted(idle.parts, key=lambda cause: -intervals.total(idle.parts[cause]))
    step, main = span_words(span, share), CAUSES[causes[0]]
    where = ("before its first task", "首个任务之前") if code == "D-01" else ("after its last task", "最后一个任务之后")
    evidence = [
        Evidence(
            name=Words("device idle before the first task, per step", "首个任务之前设备空闲（每步）"),
            value=idle.before / max(1, span.steps), unit="ns",
            where="from the host's ProfilerStep to the first device task (Preparing), without what other rows explain",
        ),
        Evidence(
            name=Words("device idle after the last task, per step", "最后一个任务之后设备空闲（每步）"),
            value=idle.after / max(1, span.steps), unit="ns",
            where="from the last device task to the end of the host's ProfilerStep",
        ),
        *(
            Evidence(
                name=Words(f"the host meanwhile: {CAUSES[cause].en}", f"期间 Host：{CAUSES[cause].zh}"),
                value=intervals.total(idle.parts[cause]) / max(1, span.steps), unit="ns",
                where="host_events, host_ops and runtime_calls within that time, per step",
            )
            for cause in causes[:3]
        ),
    ]  # fmt: skip
    return finding(
        code, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="between steps",
        where=intervals.union(*idle.parts.values()), whole_ns=span.step_ns,
        title=Words(
            f"The device idles {per_step(span, idle.total)} of {step.en} between its steps, "
            f"most of it {where[0]}; the largest part: {main.en}",
            f"{step.zh}中设备在各步之间空闲 {per_step(span, idle.total)}（{format_ratio(share)}），"
            f"主要在{where[1]}；占比最大的部分：{main.zh}",
        ),
        evidence=evidence, vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_bands(idle),
        formula="idle time of the device in the host's step outside of [first task, last task], less what other rows "
        "explain / length of the host's steps",
        cause=Words(
            "Nothing is launched while the host loads or prepares the next batch, logs, saves or evaluates. The "
            "evidence says what the profile records of it; Python code shows with with_stack=True.",
            "Host 在加载或准备下一个 batch、打印日志、保存或评估时没有下发任何任务。证据列出 profile 中记录到的活动；"
            "Python 代码需以 with_stack=True 采集才可见。",
        ),
    )  # fmt: skip


def _between(
    trace: Trace, windows: StepWindows, span: Span, claimed: Mapping[Cause, str], taken: IntervalSet
) -> _Between:
    device = device_span(windows)
    outside = intervals.difference(
        intervals.merged(span.starts, span.ends), intervals.merged(device.starts, device.ends)
    )
    outside = intervals.difference(outside, reloading(trace))  # row V-08 names it
    idle = intervals.difference(intervals.intersection(outside, idle_in(trace, span)), taken)
    parts = {
        cause: union for cause, union in causes_of(trace, idle).items() if cause not in claimed and len(union.starts)
    }
    ends = np.maximum.accumulate(windows.ends)
    after = intervals.merged(ends, np.maximum(ends, span.ends))
    total = sum(intervals.total(union) for union in parts.values())
    tail = sum(intervals.total(intervals.intersection(union, after)) for union in parts.values())
    return _Between(parts=parts, before=total - tail, after=tail)


def _bands(idle: _Between) -> tuple[tuple[int, int], ...]:
    union = intervals.union(*idle.parts.values())
    top = np.sort(np.argsort(union.starts - union.ends, kind="stable")[:MAX_BANDS])
    return tuple((int(union.starts[i]), int(union.ends[i])) for i in top)
