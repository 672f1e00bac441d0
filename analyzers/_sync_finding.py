"""Row H-05: synchronising calls that let the device run dry, and the line of Python behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._host_causes import MAX_BANDS, MAX_NAME, MIN_SHARE_RATIO, NAME, Verdict, no_calls, span_words
from ascend_perf.analyzers._idle import Cause, Idle, Span
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers._syncs import Line, Owner, is_each_step, line_evidence, lines_of, owners_of, syncs
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Judged, Words
from ascend_perf.model.tables import RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.units import counted, format_ratio

MIN_LINE_SHARE_RATIO: Final = threshold("H-05", "min_line_share_ratio")
MAX_OWNERS: Final = 4


def synchronising(trace: Trace, idle: Idle | None, *, is_blocking: bool) -> Verdict:
    """H-05: the host waited for the device, so that nothing was queued when the device finished.

    Args:
        trace: the rank.
        idle: see `waits_of`.
        is_blocking: whether every launch waits for its task: row H-04 has the idle time then.
    """
    calls = trace[RUNTIME_CALLS]
    if idle is None or not len(calls):
        return None, Judged(code="H-05", verdict="not_judged", reason=no_calls(trace))
    if is_blocking:
        reason = Words(
            "every launch waits for its task (row H-04): what other calls cost does not show",
            "每次下发都等待任务结束（见 H-04），其他同步调用的开销无从体现",
        )
        return None, Judged(code="H-05", verdict="not_judged", reason=reason)
    spent = idle.cause_ns(Cause.SYNC)
    share = share_of(idle.span, spent)
    owners = owners_of(idle)
    lines = lines_of(syncs(trace, step_windows(trace), idle))
    is_small = not owners or share < MIN_SHARE_RATIO.value
    if is_small:
        lines = [line for line in lines if _is_worth_a_look(line, idle.span)]
    if is_small and not lines:
        reason = Words(
            f"gaps behind synchronising calls take {format_ratio(share)} of the step",
            f"同步调用之后的空闲占单步 {format_ratio(share)}",
        )
        return None, Judged(code="H-05", verdict="clean", reason=reason)
    total = sum(owner.count for owner in owners)
    sync = idle.sync
    evidence = [
        Evidence(
            name=Words("idle behind synchronising calls, per step", "同步调用造成的空闲（每步）"),
            value=spent / max(1, idle.span.steps), unit="ns",
            where="gaps that begin while the synchronising call waits" if total == 1
            else f"gaps that begin while one of {total} synchronising calls waits",
        ),
        *(
            Evidence(
                name=Words(f"idle behind {owner.name}", f"{owner.name} 之后的空闲"), value=owner.idle_ns, unit="ns",
                where=f"{counted(owner.count, 'call')}; longest gap after {sync.names[owner.call]}, "
                f"thread {int(sync.threads[owner.call])}",
                start_ns=int(sync.starts[owner.call]),
            )
            for owner in owners[:MAX_OWNERS]
        ),
        *line_evidence([line for line in lines if line.idle_ns or is_small], idle.span.steps),
    ]  # fmt: skip
    found = finding(
        "H-05", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="sync", evidence=evidence,
        where=idle.parts[Cause.SYNC], whole_ns=idle.span.step_ns,
        title=_line_title(lines[0], idle.span, spent) if is_small else _sync_title(idle, owners, spent),
        vendor=trace.meta.device.kind, step_ids=idle.span.step_ids, bands=_sync_bands(idle),
        formula="host's part of the gaps that begin while a synchronising call waits, between two steps no more than "
        "it waited / length of the steps",
    )  # fmt: skip
    return found, Judged(code="H-05", verdict="found")


def _is_worth_a_look(line: Line, span: Span) -> bool:
    """Whether a line is told although it costs little: one that reads a value back in each step stops the host from
    running ahead, whatever it costs on this machine. An operator without its line must cost something, as other waits;
    of these a single step does not show that they come again: a profile often ends with one."""
    reads, costs = is_each_step(line.read_steps, span), share_of(span, line.idle_ns) >= MIN_LINE_SHARE_RATIO.value
    return (reads and (bool(line.by) or costs)) or (span.steps > 1 and is_each_step(line.steps, span) and costs)


def _sync_title(idle: Idle, owners: Sequence[Owner], spent: int) -> Words:
    first, total, share = owners[0], sum(owner.count for owner in owners), share_of(idle.span, spent)
    api = idle.sync.names[first.call]
    by = f"{first.name[:MAX_NAME]} ({api})" if first.name != api else first.name
    step = span_words(idle.span, share)
    return Words(
        f"{counted(total, 'synchronising call drains', 'synchronising calls drain')} the launch queue: the "
        f"device then idles {per_step(idle.span, spent)} "
        f"of {step.en}, most after {by}",
        f"{total} 次同步调用排空了下发队列：{step.zh}中设备随后空闲 {per_step(idle.span, spent)}"
        f"（{format_ratio(share)}），主要在 {by} 之后",
    )


def _line_title(line: Line, span: Span, spent: int) -> Words:
    share = share_of(span, spent)
    step = span_words(span, share)
    text, name = line.text[:MAX_NAME], line.by[:MAX_NAME]
    by, by_zh = (f" ({name})", f"（{name}）") if name else ("", "")
    return Words(
        f"{text} waits for the device in each step{by}: behind synchronising calls the device idles "
        f"{per_step(span, spent)} of {step.en}",
        f"{text} 在每一步都等待设备{by_zh}：{step.zh}中设备在同步调用之后空闲 {per_step(span, spent)}"
        f"（{format_ratio(share)}）",
    )


def _sync_bands(idle: Idle) -> tuple[tuple[int, int], ...]:
    drained = np.flatnonzero(idle.drained_by >= 0)
    length = (idle.gaps.ends - idle.gaps.starts)[drained]
    top = np.sort(drained[np.argsort(-length, kind="stable")[:MAX_BANDS]])
    return tuple((int(idle.gaps.starts[i]), int(idle.gaps.ends[i])) for i in top)
