"""Collectives of all ranks as one: arrival skew, true transfer, bandwidth, who waits for whom, clocks, N-04."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._clocks import ClockOffset
from ascend_perf.analyzers._collective_rates import link_peak, rates, transport_of
from ascend_perf.analyzers._collectives import SAME_CLOCK_NS, Collectives, job_collectives
from ascend_perf.analyzers._communication import peer_waits, ranks_words
from ascend_perf.analyzers._inherited import job_causes
from ascend_perf.analyzers._job_groups import GroupOp, Kinds, groups_by_kind
from ascend_perf.analyzers._retransmission import retransmission
from ascend_perf.analyzers._stages import JOB_READS, Job, job_of
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Cell, Metric, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS
from ascend_perf.plugins import NoData, job_analyzer

NAME: Final = "collectives"

MAX_PAIRS: Final = 2000
"""Pairs of ranks listed in the table of waits, those that wait longest."""


@job_analyzer(name=NAME, needs=[COMM_OPS], order=72, section="ranks", reads=JOB_READS, needs_measured=("N-04",))
def collectives(run: Run) -> Result:
    """Collectives of all ranks aligned by group and ordinal; offsets of clocks; who waits for whom; N-04.

    Reads:
        comm_ops, comm_tasks, comm_transfers, kernels; meta: groups, device.
    """
    job = job_of(run)
    if not job.ranks:
        raise NoData(job.notes[0] if job.notes else Words("no rank has device activity", "没有任何一张卡有设备活动"))
    if not any(len(view.calls) for view in job.ranks):
        raise NoData(Words("no collective lies inside a step", "没有集合通信落在迭代内"))
    calls = job_collectives(job)
    found, verdict = retransmission(job, calls)
    table, by_kind = _collectives(calls)
    tables = (table, _waits(job, calls), _clocks(calls), by_kind)
    return Result(
        findings=tuple(found),
        metrics=_metrics(calls),
        tables=tuple(table for table in tables if len(table)),
        judged=(verdict,),
    )


def _collectives(calls: Collectives) -> tuple[ResultTable, ResultTable]:
    """The ops of each group, and the groups by kind."""
    rows: list[list[Cell]] = []
    by_kind: list[GroupOp] = []
    kinds = Kinds(calls)
    skew, transfer = calls.skew_ns, calls.transfer_ns
    spent = calls.per_call(calls.durations, np.maximum)
    last = calls.last
    seen = calls.per_call(np.ones(len(calls.place), np.int64), np.add)
    for kind in np.unique(calls.kind).tolist():
        mine = np.flatnonzero(calls.kind == kind)
        first = int(mine[0])
        size = int(calls.size[first])
        members = np.unique(calls.place[np.isin(calls.owner, mine)])
        algorithm, bus, message = rates(calls, kind)
        view = calls.views[int(members[0])]
        transport = transport_of(view.trace)
        peak = None if bus is None or size == NULL else link_peak(view.trace, transport, size)
        late = np.bincount(last[mine], weights=skew[mine], minlength=len(calls.views))
        of, is_inferred = kinds.of(first)
        ranks = tuple(sorted(calls.views[at].rank for at in members.tolist()))
        by_kind.append(
            GroupOp(
                kind=of, is_inferred=is_inferred, op=calls.op[first], ranks=ranks,
                size=None if size == NULL else size, count=len(mine),
                time_ns=int(spent[mine].sum()) / max(1, view.steps), skew_ns=float(np.median(skew[mine])),
                bus_bytes_per_s=bus, transport=transport,
                peak_ratio=None if peak is None or bus is None else bus / peak[0],
            )
        )  # fmt: skip
        rows.append(
            [
                calls.group[first], calls.label[first], calls.op[first],
                ranks_words(ranks).en, int(seen[mine].max()),
                None if size == NULL else size, len(mine), int(spent[mine].sum()),
                round(float(np.median(skew[mine]))), int(skew[mine].max()),
                calls.views[int(np.argmax(late))].rank if late.any() else None,
                "clocks" if bool(calls.is_late_by_clock[mine].all()) else "durations",
                round(float(np.median(transfer[mine]))), message, algorithm, bus, transport,
                None if peak is None or bus is None else bus / peak[0],
            ]
        )  # fmt: skip
    rows.sort(key=lambda row: -int(row[7] or 0))
    names: tuple[tuple[str, str, str, str], ...] = (
        ("group", "Group", "通信域", "none"), ("label", "Kind", "类别", "none"), ("op", "Op", "通信算子", "none"),
        ("ranks", "Ranks seen", "已采集的 Rank", "none"), ("seen", "Ranks in a call", "参与卡数（已采集）", "count"),
        ("group_size", "Size of the group", "通信域大小", "count"), ("count", "Collectives", "次数", "count"),
        ("total_ns", "Time, longest rank", "耗时（最长的卡）", "ns"),
        ("skew_median_ns", "Arrival skew, median", "到达时间差（中位数）", "ns"),
        ("skew_max_ns", "Arrival skew, largest", "到达时间差（最大）", "ns"),
        ("last_rank", "Comes last most", "最常迟到的 Rank", "none"), ("skew_from", "Skew from", "时间差来源", "none"),
        ("transfer_ns", "True transfer, median", "实际传输（中位数）", "ns"),
        ("size_bytes", "Message, median", "数据量（中位数）", "bytes"),
        ("algo_bytes_per_s", "Algorithm bandwidth", "算法带宽", "bytes_per_s"),
        ("bus_bytes_per_s", "Bus bandwidth", "总线带宽", "bytes_per_s"),
        ("transport", "Transport", "传输方式", "none"), ("peak_ratio", "Share of the link peak", "占链路峰值", "ratio"),
    )  # fmt: skip
    table = result_table(
        "collectives",
        Words("Collectives over the ranks", "各卡对齐后的集合通信"),
        [Col(name, en, zh, [row[at] for row in rows], unit) for at, (name, en, zh, unit) in enumerate(names)],  # type: ignore[arg-type]
        note=Words(
            "One row per group and op, the same call matched on all ranks. Skew is the time from the first to the last "
            "arrival, true transfer the shortest of what remains of each rank's call after its waiting: an upper bound "
            "while ranks of the group are not in the data. Bus bandwidth is set against what the device table gives "
            "for the links that a group of this size uses.",
            "每行为一个通信域中的一种算子，各卡同一次通信已对齐。到达时间差为首个与最后一张卡到达的间隔；实际传输为"
            "各卡去除等待后所剩时间的最小值，通信域内有卡缺失时为上界。总线带宽与该规模通信域所用链路的峰值相比。",
        ),
    )
    return table, groups_by_kind(by_kind)


def _waits(job: Job, calls: Collectives) -> ResultTable:
    """Who waits for whom: from sub-tasks where a rank has them, else from the calls that ranks share."""
    total: dict[tuple[int, int], list[int]] = {}
    source: dict[tuple[int, int], str] = {}
    told = set()
    for view in job.ranks:
        if view.calls.is_estimated:
            continue
        for wait in peer_waits(view.calls):
            if wait.peer is not None and wait.peer != view.rank:
                told.add(view.rank)
                pair = view.rank, wait.peer
                before = total.setdefault(pair, [0, 0, 0])
                total[pair] = [before[0] + wait.union_ns, before[1] + wait.exposed_ns, before[2] + wait.calls]
                source[pair] = "sub-tasks"
    if len(calls):
        last = calls.last[calls.owner]
        ranks = np.array([view.rank for view in calls.views], np.int64)
        rest = (calls.waits > 0) & (calls.place != last) & ~np.isin(ranks[calls.place], list(told))
        pairs = calls.place * len(ranks) + last
        for key in np.unique(pairs[rest]).tolist():
            mine = rest & (pairs == key)
            waiter, late = divmod(key, len(ranks))
            pair = int(ranks[waiter]), int(ranks[late])
            exposed = np.minimum(calls.waits[mine], calls.exposed[mine])
            total[pair] = [int(calls.waits[mine].sum()), int(exposed.sum()), int(mine.sum())]
            source[pair] = "calls of both"
    steps = {view.rank: max(1, view.steps) for view in job.ranks}
    pairs_found = sorted(total.items(), key=lambda item: (-item[1][1], item[0]))
    rows = pairs_found[:MAX_PAIRS]
    cut, cut_zh = "", ""
    if len(pairs_found) > MAX_PAIRS:
        cut = f" The {MAX_PAIRS} longest of {len(pairs_found)} pairs are listed."
        cut_zh = f"仅列出 {len(pairs_found)} 对中等待最长的 {MAX_PAIRS} 对。"
    causes = _causes(calls)
    roots = [causes.get(pair, (None, None)) for pair, _ in rows]
    return result_table(
        "rank-waits",
        Words("Who waits for whom", "等待关系"),
        (
            Col("waiter", "Waiting rank", "等待的 Rank", [pair[0] for pair, _ in rows]),
            Col("late", "Late rank", "迟到的 Rank", [pair[1] for pair, _ in rows]),
            Col("wait_ns", "Waiting per step", "每步等待", [v[0] / steps[p[0]] for p, v in rows], "ns"),
            Col("exposed_ns", "Not overlapped", "未掩盖", [v[1] / steps[p[0]] for p, v in rows], "ns"),
            Col("calls", "Calls", "次数", [v[2] for _, v in rows], "count"),
            Col("root", "In the end because of", "最终由谁造成", [rank for rank, _ in roots]),
            Col("root_ratio", "Its part", "所占比例", [part for _, part in roots], "ratio"),
            Col("source", "From", "来源", [source[pair] for pair, _ in rows]),
        ),
        note=Words(
            "Waits for several ranks run at the same time where they come from sub-tasks: rows do not add up. From the "
            "calls of both, a wait counts for the rank that came last. A late rank that waited for others itself since "
            "the two last met passes their lateness on: the rank that is late by itself stands under \"in the end\"."
            + cut,
            "来自子任务的多个等待可同时进行，各行不可相加；由两卡共同的通信得出时，等待计入最后到达的卡。迟到的卡若在两卡"
            "上次同步之后自身也在等待他卡，则其迟到来自他卡：“最终由谁造成”为自身迟到的那张卡。" + cut_zh,
        ),
    )


def _causes(calls: Collectives) -> dict[tuple[int, int], tuple[int, float]]:
    """For each pair of ranks the rank that is most of the cause in the end, and its part of the waiting."""
    causes = job_causes(calls)
    total: dict[tuple[int, int], float] = {}
    most: dict[tuple[int, int], tuple[float, int]] = {}
    for waiter, late, cause, ns in zip(
        causes.waiter.tolist(), causes.late.tolist(), causes.cause.tolist(), causes.exposed_ns.tolist(), strict=True
    ):
        total[waiter, late] = total.get((waiter, late), 0.0) + ns
        most[waiter, late] = max(most.get((waiter, late), (-1.0, 0)), (ns, -cause))
    return {pair: (-cause, ns / total[pair]) for pair, (ns, cause) in most.items() if total[pair] > 0}


def _clocks(calls: Collectives) -> ResultTable:
    rows = calls.offsets if any(clock.matched for clock in calls.offsets) else ()
    shifted, shifted_zh = _shifted(calls)
    return result_table(
        "clock-offsets",
        Words("Clocks of the ranks", "各卡时钟偏差"),
        (
            Col("rank", "Rank", "Rank", [clock.rank for clock in rows]),
            Col("reference", "Against rank", "参照 Rank", [clock.reference for clock in rows]),
            Col("offset_ns", "Ahead by", "超前", [clock.offset_ns for clock in rows], "ns"),
            Col("uncertainty_ns", "Uncertainty", "不确定度", [clock.uncertainty_ns for clock in rows], "ns"),
            Col("drift_ppm", "Drift, millionths", "漂移（ppm）", [_drift(clock) for clock in rows]),
            Col("matched", "Collectives compared", "比较的集合通信", [clock.matched for clock in rows], "count"),
        ),
        note=Words(
            "Estimated: all ranks leave a synchronous collective at nearly one time, so the median difference of its "
            "ends is the offset of the clocks; where a straight line leaves far less scatter, the clock drifts, and "
            "times are moved by that line. Pairs of sends and receives count as well. Empty: nothing ties the rank to "
            "the reference, and its arrivals are judged by durations only." + shifted,
            "估算：各卡几乎同时离开同步集合通信，其结束时间差的中位数即时钟偏差；若用直线拟合后离散明显更小，则时钟存在"
            "漂移，并按该直线校正。成对的发送与接收同样计入。为空：该卡与参照卡之间没有可用的共同通信，仅按时长判断其"
            "到达先后。" + shifted_zh,
        ),
    )


def _drift(clock: ClockOffset) -> float | None:
    return None if clock.drift_ppm is None else round(clock.drift_ppm, 3)


def _shifted(calls: Collectives) -> tuple[str, str]:
    """What a note says, English and Chinese, where records of ranks begin at another call; else nothing."""
    if not calls.shifts:
        return "", ""
    parts = [f"rank {one.rank} by {one.calls} in {one.group or '?'}" for one in calls.shifts[:8]]
    parts_zh = [f"Rank {one.rank} 在 {one.group or '?'} 中相差 {one.calls} 次" for one in calls.shifts[:8]]
    more = f" and {len(calls.shifts) - 8} more" if len(calls.shifts) > 8 else ""
    more_zh = f" 等 {len(calls.shifts)} 处" if len(calls.shifts) > 8 else ""
    return (
        f" Records that lack calls were aligned by sizes, ops and ends: {', '.join(parts)}{more}.",
        f"缺少调用的记录已按大小、算子与结束时间对齐：{'，'.join(parts_zh)}{more_zh}。",
    )


def _metrics(calls: Collectives) -> tuple[Metric, ...]:
    if not len(calls):
        return ()
    offsets = [abs(clock.offset_ns) for clock in calls.offsets if clock.offset_ns is not None and clock.matched]
    agree = sum(offset <= SAME_CLOCK_NS for offset in offsets)
    return (
        Metric(
            name="collective_skew_median_ns", value=float(np.median(calls.skew_ns)), unit="ns", better="lower"
        ),
        Metric(name="collective_skew_max_ns", value=float(calls.skew_ns.max()), unit="ns", better="lower"),
        Metric(
            name="clock_offset_max_ns", value=float(max(offsets)) if offsets else None, unit="ns", better="none"
        ),
        Metric(
            name="clocks_agree_ratio", value=agree / len(offsets) if offsets else None, unit="ratio", better="none"
        ),
    )  # fmt: skip
