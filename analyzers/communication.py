"""Communication of one rank: what is exposed, what of it is waiting and for whom, and how well data moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import (
    Calls,
    PeerWait,
    calls_in_steps,
    exported_split,
    is_p2p,
    is_pipelined,
    no_waits,
    peer_waits,
    ranks_words,
)
from ascend_perf.analyzers._communication_tables import (
    exposed_waits,
    tables,
    total,
)
from ascend_perf.analyzers._communication_traffic import algorithm, small_packets, unaligned
from ascend_perf.analyzers._delayed_transfers import exposed_by_delay
from ascend_perf.analyzers._exposed import Explained, exposed
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._size_bandwidth import size_bandwidth
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._sync_batchnorm import sync_batch_norm
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.gains import NOTICEABLE_RATIO
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Severity, Words
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import COMM_OPS, KERNELS, STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ns, format_quantity, format_ratio

NAME: Final = "communication"

LOOK_WAIT_RATIO: Final = threshold("N-05", "low_below_ratio")
MIN_WAIT_RATIO: Final = threshold("N-05", "min_wait_ratio")
NOTIFY_NS: Final = threshold("N-05", "max_notify_ns")
MANY_CALLS: Final = threshold("N-05", "many_calls")
MIN_SHARED_RATIO: Final = threshold("N-05", "min_shared_ratio")
SLOW_LINK_RATIO: Final = threshold("N-05", "max_slow_link_ratio")
MAX_BANDS: Final = 4
"""Waits marked in the timeline per finding."""


@analyzer(name=NAME, needs=[COMM_OPS], order=60, section="communication", needs_measured=("N-02", "N-03"))
def communication(trace: Trace) -> Result:
    """Exposed communication split into waiting for late peers, transfer and rest; packets, links and settings.

    Reads:
        comm_ops, comm_tasks, comm_transfers, comm_packets, comm_links, kernels, exported_steps.
    """
    calls = calls_in_steps(trace)
    if not len(calls):
        return Result(judged=_not_judged(Words("no collective lies inside a step", "没有集合通信落在迭代内")))
    if not _is_comparable(trace):
        setting, verdict = algorithm(trace)
        return Result(
            findings=() if setting is None else (setting,),
            tables=_tables(calls, peer_waits(calls)),
            judged=(*_not_judged(_CALLS_ONLY), verdict),
        )
    # Point-to-point waits of a pipeline are row L-01, which `ranks` reports for the whole job.
    pipelined = is_p2p(calls.table) & is_pipelined(trace)
    waits = peer_waits(calls)
    norm = sync_batch_norm(calls)
    # What many small exchanges of statistics wait for each other is their own price (N-11), not a late rank's.
    aside = pipelined if norm is None or not norm.is_many else pipelined | norm.calls
    named = peer_waits(calls, ~aside) if aside.any() else waits
    late, explained = _late_peers(calls, named, ~pipelined)
    open_rows, exposure = exposed(calls, explained, norm)
    findings = [*late, *open_rows]
    judged = [_judged_late(calls, late, pipelined), *exposure]
    for found, verdict in (
        small_packets(calls),
        unaligned(calls),
        algorithm(trace),
    ):
        findings += [] if found is None else [found]
        judged.append(verdict)
    return Result(
        findings=tuple(findings),
        metrics=_metrics(calls, waits),
        tables=_tables(calls, waits),
        judged=tuple(judged),
    )


def _tables(calls: Calls, waits: Sequence[PeerWait]) -> tuple[ResultTable, ...]:
    sizes = size_bandwidth(calls)
    return tables(calls, waits) if sizes is None else (*tables(calls, waits), sizes)


_CALLS_ONLY: Final = Words(
    "the data holds collectives only: how long the step is and what computing hides of them is not known; keep "
    "kernel_details.csv or step_trace_time.csv beside them",
    "数据中只有集合通信：单步时长与计算掩盖情况未知；请同时保留 kernel_details.csv 或 step_trace_time.csv",
)


def _is_comparable(trace: Trace) -> bool:
    """Whether shares of the step can be told: from kernels, the exporter's sums or steps with times."""
    known = bool((trace[STEPS].ints("start_ns") != NULL).any())
    return known or trace.has(KERNELS) or exported_split(trace) is not None


def _not_judged(reason: Words) -> tuple[Judged, ...]:
    return tuple(
        Judged(code=code, verdict="not_judged", reason=reason)
        for code in ("N-01", "N-02", "N-03", "N-05", "N-09", "N-10", "N-11", "E-03")
    )


def _late_peers(calls: Calls, waits: Sequence[PeerWait], mask: Bools) -> tuple[list[Finding], Explained]:
    """N-05 per late peer, and the waiting that these findings explain."""
    found: list[Finding] = []
    named: list[PeerWait] = []
    claimed = EMPTY
    exposed_ns = calls.exposed_union_ns()
    for wait in waits:
        # Short waits between the hops of a ring blame nobody; where most of what is exposed is one wait, it counts.
        least = MIN_WAIT_RATIO.value if 2 * wait.exposed_ns >= exposed_ns else LOOK_WAIT_RATIO.value
        if share_of(calls, wait.exposed_ns) < least:
            break  # the longest come first
        if wait.calls >= MANY_CALLS.value * calls.steps and wait.union_ns < NOTIFY_NS.value * wait.calls:
            continue  # nobody is late: every notification takes its time, and no two hosts launch in step
        # A peer counts only with the waiting that no later peer explains already.
        own = intervals.difference(intervals.difference(wait.waits, calls.busy), claimed)
        if share_of(calls, intervals.total(own)) < least or any(wait is other for other in named):
            continue
        together = [other for other in waits if other is not wait and _is_late_too(other, own)]
        named += [wait, *together]
        late = intervals.union(*(peer.waits for peer in (wait, *together)))
        delayed = intervals.difference(exposed_by_delay(calls, late, mask), intervals.union(claimed, own))
        if share_of(calls, intervals.total(delayed)) < NOTICEABLE_RATIO:
            delayed = EMPTY
        found.append(_late_peer(calls, wait, together, own, waits, delayed))
        claimed = intervals.union(claimed, own, delayed)
    if not calls.is_estimated:
        return found, Explained(waits=claimed, estimated=~mask)
    waiting = exposed_waits(calls, mask)
    if share_of(calls, waiting) >= LOOK_WAIT_RATIO.value:
        return [_unnamed(calls, waiting, mask)], Explained(waits=EMPTY, estimated=np.ones(len(calls), bool))
    return [], Explained(waits=EMPTY, estimated=~mask)


def _is_late_too(wait: PeerWait, own: IntervalSet) -> bool:
    """Whether a peer holds the rank up for most of the waiting `own` for a later one: neither alone is the cause."""
    shared = intervals.total(intervals.intersection(wait.waits, own))
    return shared >= MIN_SHARED_RATIO.value * intervals.total(own)


def _late_peer(
    calls: Calls,
    wait: PeerWait,
    together: Sequence[PeerWait],
    own: IntervalSet,
    waits: Sequence[PeerWait],
    delayed: IntervalSet = EMPTY,
) -> Finding:
    """N-05 for a peer, and those that are late together with it.

    Args:
        calls: the calls of the rank.
        wait: the peer that comes last.
        together: peers that are late for most of the same time.
        own: the exposed waiting for the peer that no later peer explains.
        waits: all peers.
        delayed: exposed transfers that computing would hide if it came in time.
    """
    delayed_ns = intervals.total(delayed)
    own_ns = intervals.total(own) + delayed_ns
    share = share_of(calls, own_ns)
    transit, where = _transit(calls)
    step, spent = step_words(calls, share), per_step(calls, own_ns)
    moving = f"; moving the data takes {per_step(calls, transit)}" if transit is not None else ""
    moving_zh = f"；数据传输本身只需 {per_step(calls, transit)}" if transit is not None else ""
    if delayed_ns:
        moving += f"; {per_step(calls, delayed_ns)} of it are transfers that computing would hide without the delay"
        moving_zh += f"；其中 {per_step(calls, delayed_ns)} 是若不迟到即可被计算掩盖的传输"
    who = _labels([wait, *together])
    title = Words(
        f"{spent} of {step.en} wait for {who.en}, which "
        f"{'come' if together else 'comes'} late to {wait.late_calls} of {wait.calls} collectives{moving}",
        f"{step.zh}有 {spent}（{format_ratio(share)}）在等待慢卡 {who.zh}："
        f"{wait.calls} 次集合通信中有 {wait.late_calls} 次迟到{moving_zh}",
    )
    plane = "" if wait.longest_plane is None else f", plane {wait.longest_plane}"
    evidence = [
        Evidence(
            name=Words(f"waiting for {wait.label.en}, not overlapped", f"等待 {wait.label.zh}（未被掩盖）"),
            value=wait.exposed_ns, unit="ns",
            where=f"comm_tasks: {wait.tasks} x Notify_Wait, dst {wait.local}, union over planes less computing",
        ),
        Evidence(
            name=Words("the same with what computing hides", "同上，含被计算掩盖的部分"),
            value=wait.union_ns, unit="ns", where=f"comm_tasks: Notify_Wait, dst {wait.local}, union over planes",
        ),
        Evidence(
            name=Words("longest single wait", "最长的一次等待"), value=wait.longest_ns, unit="ns",
            where=f"{wait.longest_call}{plane}, Notify_Wait", start_ns=wait.longest_start_ns,
        ),
    ]  # fmt: skip
    if transit is not None:
        evidence.append(Evidence(name=Words("true transfer", "实际传输"), value=transit, unit="ns", where=where))
    if delayed_ns:
        evidence.append(
            Evidence(
                name=Words("transfers exposed only by the delay", "仅因迟到而未被掩盖的传输"), value=delayed_ns,
                unit="ns",
                where="comm_ops played again without the waits for the peer, in order of their stream and launch",
            )
        )  # fmt: skip
    others = [other for other in waits if other is not wait and not any(other is late for late in together)]
    for other in [*together, *others[:1]]:
        late = any(other is peer for peer in together)
        label = Words(
            f"{'late together with it' if late else 'next'}: waiting for {other.label.en}",
            f"{'同时迟到' if late else '其次'}：等待 {other.label.zh}",
        )
        evidence.append(
            Evidence(
                name=label, value=other.exposed_ns, unit="ns",
                where=f"{other.longest_call}, Notify_Wait, dst {other.local}", start_ns=other.longest_start_ns,
            )
        )  # fmt: skip
    cause, rate = _late_cause(wait, others)
    evidence += rate
    longest = _longest_waits(own)
    return finding(
        "N-05", analyzer=NAME, trace_rank=calls.trace.meta.rank, title=title, share_ratio=share, evidence=evidence,
        where=intervals.union(own, delayed), whole_ns=calls.step_ns,
        subject=who.en, ranks=tuple(sorted({peer.peer for peer in [wait, *together] if peer.peer is not None})),
        vendor=calls.trace.meta.device.kind, severity=Severity.LOW if share < LOOK_WAIT_RATIO.value else None,
        formula="length of (union of the Notify_Wait sub-tasks for the peer, without computing) / length of the steps"
        + ("; and the transfers that computing would hide if it came in time" if delayed_ns else ""),
        bands=longest, step_ids=calls.step_ids, cause=cause,
    )  # fmt: skip


def _labels(waits: Sequence[PeerWait]) -> Words:
    known = [wait.peer for wait in waits if wait.peer is not None]
    if len(known) == len(waits):
        return ranks_words(known)
    return Words(", ".join(wait.label.en for wait in waits), "、".join(wait.label.zh for wait in waits))


def _late_cause(wait: PeerWait, others: Sequence[PeerWait]) -> tuple[Words, list[Evidence]]:
    rates = [other.link_bytes_per_s for other in others if other.link_bytes_per_s is not None]
    own = wait.link_bytes_per_s
    late = Words(
        f"{wait.label.en[0].upper()}{wait.label.en[1:]} enters these collectives late: it computes longer, is slower "
        "to launch, or is itself held up by something before them. Its own profile tells which.",
        f"{wait.label.zh} 进入这些集合通信较晚：计算更慢、下发更慢，或在此之前自身被阻塞；需查看该卡自己的 profile。",
    )
    if own is None or not rates:
        return late, []
    median = float(np.median(rates))
    evidence = [
        Evidence(
            name=Words("rate of this rank's transfers to it", "本卡到该卡的传输速率"), value=own, unit="bytes_per_s",
            where=f"comm_tasks with data, dst {wait.local}; median to the other peers "
            f"{format_quantity(median, 'bytes_per_s')}",
        )
    ]  # fmt: skip
    if own < SLOW_LINK_RATIO.value * median:
        return (
            Words(
                f"{late.en} The link to it is also slow ({format_quantity(own, 'bytes_per_s')} against "
                f"{format_quantity(median, 'bytes_per_s')}), so check the link first (row N-06).",
                f"{late.zh}到该卡的链路也偏慢（{format_quantity(own, 'bytes_per_s')}，其他对端为 "
                f"{format_quantity(median, 'bytes_per_s')}），请先检查链路（N-06）。",
            ),
            evidence,
        )
    return (
        Words(
            f"{late.en} It is not the link: transfers to it run at {format_quantity(own, 'bytes_per_s')}, "
            "as to the others.",
            f"{late.zh}不是链路问题：到该卡的传输速率为 {format_quantity(own, 'bytes_per_s')}，与其他对端相当。",
        ),
        evidence,
    )


def _longest_waits(waiting: IntervalSet) -> tuple[tuple[int, int], ...]:
    length = waiting.ends - waiting.starts
    top = np.sort(np.argsort(-length, kind="stable")[:MAX_BANDS])
    return tuple((int(waiting.starts[i]), int(waiting.ends[i])) for i in top)


def _transit(calls: Calls) -> tuple[int | None, str]:
    """Time in which data moved, all calls together: the exporter's figure where it is usable, else the sub-tasks'."""
    exporter = calls.table.ints("transit_ns")
    moved = calls.transfer_ns
    # Newer exports write 0 for calls that did move data (their master plane has no transfer).
    if bool((exporter != NULL).all()) and not bool(((exporter == 0) & (moved > 0)).any()):
        return int(exporter.sum()), "comm_ops.transit_ns: the exporter's Transit Time, sum over calls"
    if not calls.is_estimated:
        return total(moved), "comm_tasks with data: union per call, sum over calls"
    return total(moved), "comm_transfers.time_ns: sum over links, sum over calls"


def _unnamed(calls: Calls, waiting_ns: int, mask: Bools) -> Finding:
    """N-05 from durations and transfer times alone: how much is waiting, not for whom."""
    share = share_of(calls, waiting_ns)
    step = step_words(calls, share)
    known = mask & (calls.waiting_ns != NULL)
    duration = int((calls.ends - calls.starts)[known].sum())
    need = total(calls.transfer_ns, known)
    moved = "" if need is None else f": their data needs at most {per_step(calls, need)}"
    moved_zh = "" if need is None else f"：其数据传输至多需要 {per_step(calls, need)}"
    top = np.flatnonzero(known)
    top = top[np.argsort(-calls.exposed_waiting_ns[top], kind="stable")][:3]
    names = calls.table.text("name")
    evidence = [
        Evidence(
            name=Words("waiting, at least", "等待（至少）"), value=waiting_ns, unit="ns",
            where="comm_ops.dur_ns less comm_transfers.time_ns (sum over links), or wait_ns where longer",
        ),
        Evidence(
            name=Words("time of these calls", "这些通信的耗时"), value=duration, unit="ns",
            where=f"comm_ops: {int(known.sum())} calls",
        ),
        *(
            Evidence(
                name=Words("waiting in the call", "该通信中的等待"), value=int(calls.exposed_waiting_ns[i]), unit="ns",
                where=f"{names[int(i)]}, {format_ns(int(calls.ends[i] - calls.starts[i]))} long",
                start_ns=int(calls.starts[i]),
            )
            for i in top
        ),
    ]  # fmt: skip
    return finding(
        "N-05", analyzer=NAME, trace_rank=calls.trace.meta.rank, share_ratio=share, subject="peers", ranks=(),
        where=calls.exposed(known), whole_ns=calls.step_ns,
        title=Words(
            f"At least {per_step(calls, waiting_ns)} of {step.en} are waiting inside "
            f"collectives{moved}",
            f"{step.zh}至少有 {per_step(calls, waiting_ns)}（{format_ratio(share)}）是集合通信内的等待{moved_zh}",
        ),
        evidence=evidence, vendor=calls.trace.meta.device.kind, step_ids=calls.step_ids,
        formula="sum over calls of max(0, exposed time - time of the transfers) / length of the steps",
        bands=tuple((int(calls.starts[i]), int(calls.ends[i])) for i in np.sort(top)),
        cause=Words(
            "Some rank of these groups comes late. The data of this rank holds no sub-tasks, so it alone cannot say "
            "which: its trace_view.json or ascend_pytorch_profiler_*.db would.",
            "这些通信域中有卡迟到。本卡数据中没有子任务，仅凭它无法判断是哪张卡：需要本卡的 trace_view.json 或 "
            "ascend_pytorch_profiler_*.db。",
        ),
    )  # fmt: skip


def _judged_late(calls: Calls, late: Sequence[Finding], pipelined: Bools) -> Judged:
    if late:
        return Judged(code="N-05", verdict="found")
    if bool((calls.waiting_ns != NULL).any()):
        reason = None
        if pipelined.any():
            reason = Words(
                "point-to-point waits of the pipeline are judged as L-01", "流水线的点对点等待归入 L-01 判断"
            )
        return Judged(code="N-05", verdict="clean", reason=reason)
    return Judged(code="N-05", verdict="not_judged", reason=no_waits(calls.trace))


def _metrics(calls: Calls, waits: Sequence[PeerWait]) -> tuple[Metric, ...]:
    rank = calls.trace.meta.rank
    union = intervals.total(calls.union())
    exposed = min(calls.exposed_union_ns(), int(calls.exposed_ns.sum()))
    waiting = total(calls.exposed_waiting_ns)
    transit, _ = _transit(calls)
    steps = max(1, calls.steps)
    worst = max((wait.exposed_ns for wait in waits), default=None)
    return (
        Metric(
            name="communication_exposed_ratio", value=share_of(calls, exposed), unit="ratio", better="lower",
            rank=rank,
        ),
        Metric(
            name="communication_overlap_ratio", value=max(0.0, 1 - exposed / union) if union else None, unit="ratio",
            better="higher", rank=rank,
        ),
        Metric(
            name="communication_wait_ns", value=None if waiting is None else waiting / steps, unit="ns",
            better="lower", rank=rank,
        ),
        Metric(
            name="communication_longest_peer_wait_ns", value=None if worst is None else worst / steps, unit="ns",
            better="lower", rank=rank,
        ),
        Metric(
            name="communication_transit_ns", value=None if transit is None else transit / steps, unit="ns",
            better="lower", rank=rank,
        ),
    )  # fmt: skip
