"""Repeated sequences of short kernels between which the device waits for the next launch (H-03)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._dispatch_claims import Sequences, queue_of, sequences_of
from ascend_perf.analyzers._idle import Idle, idle_of, no_idle_words
from ascend_perf.analyzers._kernels import MAX_BANDS, kernel_place
from ascend_perf.analyzers._repeats import Repeat
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers.host_dispatch import launch_blocking
from ascend_perf.model.finding import Evidence, Judged, Result, ResultTable, Words
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import counted, format_ns, format_ratio

NAME: Final = "sequences"
CODE: Final = "H-03"
MAX_TYPES: Final = 10
MAX_TYPE: Final = 60
"""Types of a sequence are cut after this many characters: GPU kernels bear long names."""


@analyzer(name=NAME, needs=(KERNELS,), order=82, section="host")
def sequences(trace: Trace) -> Result:
    """Report sequences of 2 to 10 short kernels that repeat and run for less than 0.4 of their wall time.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name; everything that `idle_of` reads.

    Returns:
        Finding H-03. Its share is the idle time of the device inside the sequences that no other row of the host
        claims (a union, so it never exceeds the step); row H-01 leaves this time out. The kernels' own time is not
        part of it: that is what rows C-12 and C-13 count.
    """
    idle = idle_of(trace)
    if idle is None:
        reason = no_idle_words(trace)
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
    if launch_blocking(trace, idle):
        reason = Words(
            "launches are blocking (row H-04): every gap follows from that",
            "下发为阻塞模式（见 H-04），所有空闲均由其引起",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    found = sequences_of(trace, idle, queue_of(trace, idle))
    if not found.repeats:
        reason = Words(
            "no repeated sequence of short kernels with a notable share of idle time",
            "没有空闲占比可观的短 Kernel 重复序列",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    lost = intervals.total(found.lost)
    share = share_of(idle.span, lost)
    busy = sum(repeat.busy_ns for repeat in found.repeats)
    wall = sum(repeat.wall_ns for repeat in found.repeats)
    count = sum(repeat.count for repeat in found.repeats) / idle.span.steps
    step = step_words(idle.span, share)
    finding_ = finding(
        CODE, analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=share,
        where=found.lost, whole_ns=idle.span.step_ns,
        title=Words(
            f"Repeated sequences of short kernels ({counted(len(found.repeats), 'kind', 'kinds')}, {count:.4g} times "
            f"per step) run {format_ratio(busy / wall)} of their time: the device waits {per_step(idle.span, lost)} of "
            f"{step.en} for launches inside them",
            f"{len(found.repeats)} 种短 Kernel 序列每步重复 {count:.4g} 次，执行时间仅占序列总时长的 "
            f"{format_ratio(busy / wall)}：{step.zh}设备在其中等待下发 {per_step(idle.span, lost)}"
            f"（{format_ratio(share)}）",
        ),
        evidence=[
            *(_evidence(trace, idle, repeat) for repeat in found.repeats[:3]),
            Evidence(
                name=Words("idle time inside sequences, per step", "序列内的空闲（每步）"),
                value=lost / idle.span.steps, unit="ns",
                where="gaps of the whole device inside the sequences, without those of rows D-01, H-02, H-05, H-06, "
                "H-07 and K-04",
            ),
        ],
        bands=_bands(found), step_ids=idle.span.step_ids,
        formula="idle time of the device inside the sequences (union) / length of the steps; not part of H-01",
    )  # fmt: skip
    return Result(
        findings=(finding_,), tables=(_table(trace, idle, found),), judged=(Judged(code=CODE, verdict="found"),)
    )  # fmt: skip


def _evidence(trace: Trace, idle: Idle, repeat: Repeat) -> Evidence:
    mean = repeat.busy_ns / (repeat.count * len(repeat.types))
    return Evidence(
        name=Words(f"{_types(repeat)}: times per step", f"{_types(repeat)}：每步次数"),
        value=repeat.count / idle.span.steps, unit="count",
        where=f"{kernel_place(trace[KERNELS], repeat.first_row)}; busy {format_ratio(repeat.busy_ns / repeat.wall_ns)} "
        f"of its wall time, {format_ns(mean)} per kernel",
        start_ns=int(repeat.starts_ns[0]),
    )  # fmt: skip


def _types(repeat: Repeat) -> str:
    return " - ".join(name[:MAX_TYPE] for name in repeat.types[:MAX_TYPES])


def _bands(found: Sequences) -> tuple[tuple[int, int], ...]:
    lost = found.lost
    order = np.sort(np.argsort(lost.starts - lost.ends, kind="stable")[:MAX_BANDS])
    return tuple(zip(lost.starts[order].tolist(), lost.ends[order].tolist(), strict=True))


def _table(trace: Trace, idle: Idle, found: Sequences) -> ResultTable:
    repeats = found.repeats
    steps = idle.span.steps
    return result_table(
        "sequences",
        Words("Repeated short sequences", "重复的短 Kernel 序列"),
        [
            Col("types", "Kernels", "Kernel", [_types(repeat) for repeat in repeats]),
            Col("length", "Length", "长度", [len(repeat.types) for repeat in repeats], "count"),
            Col("count", "Times per step", "每步次数", [repeat.count / steps for repeat in repeats], "count"),
            Col("wall_ns", "Wall time per step", "每步墙钟时间", [r.wall_ns / steps for r in repeats], "ns"),
            Col("busy_ns", "Kernel time per step", "每步执行时间", [r.busy_ns / steps for r in repeats], "ns"),
            Col("busy_ratio", "Busy", "执行占比", [r.busy_ns / r.wall_ns for r in repeats], "ratio"),
            Col("start_ns", "First at", "首次时刻", [int(repeat.starts_ns[0]) for repeat in repeats]),
        ],
    )  # fmt: skip
