"""Row N-05 over several ranks: one computes longer than its equals, or joins common calls last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ascend_perf.analyzers._collectives import job_collectives
from ascend_perf.analyzers._communication import Split, ranks_words
from ascend_perf.analyzers._joint_waits import JointWait, joint_waits
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, HeldUp, Judged, Words
from ascend_perf.units import counted, format_ns, format_ratio

NAME: Final = "ranks"

MAX_SPREAD_RATIO: Final = threshold("N-05", "max_spread_ratio")
MAX_Z: Final = threshold("N-05", "max_z")
MIN_RANKS_FOR_Z: Final = 4
"""Fewer values give no usable median absolute deviation. Status: assumed."""
MIN_GAP_RATIO: Final = threshold("N-05", "min_gap_ratio")
MIN_WAIT_RATIO: Final = threshold("N-05", "min_joint_wait_ratio")
MIN_SHOWN_RATIO: Final = threshold("N-05", "min_shown_ratio")


def notable_waits(job: Job) -> list[JointWait]:
    """Waits of a rank for another in their common calls that take a notable share of its step, the largest first."""
    found = joint_waits(job_collectives(job))
    waits = [wait for wait in found if share_of(wait.waiter, wait.exposed_ns) >= MIN_WAIT_RATIO.value]
    return sorted(waits, key=lambda wait: -share_of(wait.waiter, wait.exposed_ns))


def late_ranks(job: Job, waits: Sequence[JointWait]) -> tuple[list[Finding], Judged]:
    """N-05 over ranks: one rank computes longer than its equals (the ranks of its stage).

    Args:
        job: the ranks.
        waits: `notable_waits` of the job; they tell whether the slow rank is waited for at all.
    """
    code = "N-05"
    if len(job.ranks) < 2:
        return [], Judged(
            code=code, verdict="not_judged",
            reason=Words(
                "one rank only; its own waits are judged by `communication`",
                "只有一张卡；其自身的等待由 communication 判断",
            ),
        )  # fmt: skip
    found: list[Finding] = []
    groups = sorted({view.stage for view in job.ranks}, key=lambda stage: -1 if stage is None else stage)
    compared = 0
    for stage in groups:
        views = [view for view in job.ranks if view.stage == stage and view.split.computing_ns]
        if len(views) < 2:
            continue
        compared += len(views)
        late = _late_in(views, waits)
        if late is not None:
            found.append(late)
    if found:
        return found, Judged(code=code, verdict="found")
    if not compared:
        return [], Judged(
            code=code, verdict="not_judged",
            reason=Words("no two ranks of one stage are in the data", "数据中没有同一阶段的两张卡"),
        )  # fmt: skip
    return [], Judged(
        code=code, verdict="clean",
        reason=Words(
            f"{compared} ranks compute within {format_ratio(MAX_SPREAD_RATIO.value)} of their equals",
            f"{compared} 张卡的计算时间与同类卡相差在 {format_ratio(MAX_SPREAD_RATIO.value)} 以内",
        ),
    )  # fmt: skip


def last_to_join(waits: Sequence[JointWait], held: Sequence[HeldUp] = ()) -> list[Finding]:
    """N-05 from the durations of common calls: the rank that joins last has the shortest call, the others wait.

    Only for ranks whose own sub-tasks do not name the peer. Where the last one was itself held up (`held`), the rank
    that did so is named.
    """
    if not waits:
        return []
    worst = waits[0]
    joined_last = tuple(sorted({wait.late.rank for wait in waits}))
    late, note = _causes_behind(waits, held)
    affected = tuple(sorted({wait.waiter.rank for wait in waits}))
    by_order = any(wait.is_matched_by_order for wait in waits)
    share = share_of(worst.waiter, worst.exposed_ns)
    step = step_words(worst.waiter, share)
    spent = per_step(worst.waiter, worst.exposed_ns)
    evidence = []
    longest = worst.longest()
    for wait in waits[:3]:
        most = wait.longest()
        evidence += [
            Evidence(
                name=Words(
                    f"rank {wait.waiter.rank} waits for rank {wait.late.rank}, at least",
                    f"Rank {wait.waiter.rank} 等待 Rank {wait.late.rank}（至少）",
                ),
                value=wait.exposed_ns / max(1, wait.waiter.steps), unit="ns",
                where=f"comm_ops: duration less that of the shortest rank, "
                f"{counted(most.calls, 'common call')}"
                + (", matched by their order (the traces name no groups)" if wait.is_matched_by_order else ""),
            ),
            Evidence(
                name=Words(f"rank {wait.waiter.rank}: longest wait", f"Rank {wait.waiter.rank}：最长的一次"),
                value=most.wait_ns, unit="ns", start_ns=most.start_ns,
                where=f"{most.name}: {format_ns(most.dur_ns)}, on rank {wait.late.rank} "
                f"{format_ns(most.dur_ns - most.wait_ns)}",
            ),
        ]  # fmt: skip
    return [
        finding(
            "N-05", analyzer=NAME, trace_rank=None, share_ratio=share, subject="peers", ranks=late,
            affected_ranks=affected, vendor=worst.waiter.trace.meta.device.kind, evidence=evidence,
            title=Words(
                f"{upper_first(ranks_words(affected).en)} {'wait' if len(affected) > 1 else 'waits'} {spent} of "
                f"{step.en} in collectives that {ranks_words(joined_last).en} "
                f"{'join' if len(joined_last) > 1 else 'joins'} last{note.en}",
                f"{ranks_words(affected).zh} 在{step.zh}有 {spent}（{format_ratio(share)}）在集合通信中等待最后到达的 "
                f"{ranks_words(joined_last).zh}{note.zh}",
            ),
            formula="sum over common calls of (duration - shortest duration over the ranks seen), exposed part / "
            "length of the steps; durations only, so the clocks of the ranks need not agree; ranks that are not in the "
            "data may be later still" + ("; calls matched by order and end" if by_order else ""),
            bands=((longest.start_ns, longest.start_ns + longest.dur_ns),),
        )
    ]  # fmt: skip


class _Note(NamedTuple):
    en: str
    zh: str


def _causes_behind(waits: Sequence[JointWait], held: Sequence[HeldUp]) -> tuple[tuple[int, ...], _Note]:
    """The ranks that are late by themselves, and what a title says of those that only pass lateness on."""
    of_pair = {(one.waiter, one.late): one.by for one in held}
    of_late = {one.late: one.by for one in held}
    late: set[int] = set()
    passed_on: dict[int, set[int]] = {}
    for wait in waits:
        pair = wait.waiter.rank, wait.late.rank
        # Ranks that come last together were held up together: what is known of one wait for them holds for the others.
        by = of_pair.get(pair, of_late.get(pair[1]))
        late.add(pair[1] if by is None else by)
        if by is not None:
            passed_on.setdefault(by, set()).add(pair[1])
    parts = [
        (ranks_words(sorted(ranks)), ranks_words([by]), len(ranks) == 1) for by, ranks in sorted(passed_on.items())
    ]
    return tuple(sorted(late)), _Note(
        "".join(
            f"; {who.en} {'was itself' if is_one else 'were themselves'} held up by {by.en}"
            for who, by, is_one in parts
        ),
        "".join(f"；{who.zh} 自身被 {by.zh} 拖慢" for who, by, _ in parts),
    )


def upper_first(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def modified_z(values: Sequence[float]) -> list[float] | None:
    """0.6745 (x - median) / MAD of each value; None for fewer than four values or no spread at all.

    Source:
        Iglewicz and Hoaglin (1993), as XProf uses it.
    """
    if len(values) < MIN_RANKS_FOR_Z:
        return None
    array = np.asarray(values, np.float64)
    distance = np.abs(array - np.median(array))
    mad = float(np.median(distance))
    # More than half of the values equal: the mean deviation takes over, as in the source.
    scale = mad / 0.6745 if mad else float(distance.mean()) * 1.253314
    return None if not scale else [float(value) for value in (array - np.median(array)) / scale]


def _late_in(views: Sequence[RankView], waits: Sequence[JointWait]) -> Finding | None:
    compute = [view.compute_per_step_ns for view in views]
    mean = float(np.mean(compute))
    spread = (max(compute) - min(compute)) / mean if mean else 0.0
    if spread <= MAX_SPREAD_RATIO.value:
        return None
    slow = views[int(np.argmax(compute))]
    late = _slow_together(compute)
    others = [view for view, is_late in zip(views, late, strict=True) if not is_late]
    same = [view for view, is_late in zip(views, late, strict=True) if is_late]
    # Where most ranks are slow, the work is uneven: sharing it out would give all of them the mean.
    usual = mean if len(same) > len(others) else float(np.median([view.compute_per_step_ns for view in others]))
    who = ranks_words([view.rank for view in same])
    scores = modified_z(compute)
    score = None if scores is None else scores[int(np.argmax(compute))]
    excess = slow.compute_per_step_ns - usual
    share = share_of(slow, excess * slow.steps)
    waiting = _collective_ns(slow), float(np.median([_collective_ns(view) for view in others]))
    evidence = [
        Evidence(
            name=Words(f"computing of rank {slow.rank}, per step", f"Rank {slow.rank} 每步计算"),
            value=slow.compute_per_step_ns, unit="ns", where=origin(slow.split),
        ),
        Evidence(
            name=Words("median of its equals", "同类卡的中位数"), value=usual, unit="ns",
            where=ranks_words([view.rank for view in others]).en,
        ) if len(same) <= len(others) else Evidence(
            name=Words("mean of all", "全部卡的平均"), value=usual, unit="ns",
            where=ranks_words([view.rank for view in views]).en,
        ),
        Evidence(
            name=Words("spread (max - min) / mean", "离散度 (max - min) / mean"), value=spread, unit="ratio",
            where=f"{len(views)} ranks; limit {format_ratio(MAX_SPREAD_RATIO.value)}",
        ),
        Evidence(
            name=Words("communication of that rank, per step", "该卡每步通信"), value=waiting[0], unit="ns",
            where=f"the others: {format_ns(waiting[1])} (a rank that comes late waits least)",
        ),
    ]  # fmt: skip
    if score is not None:
        evidence.append(
            Evidence(
                name=Words("modified z-score", "修正 z 分数"), value=round(score, 2), unit="none",
                where=f"of its computing among {len(views)} ranks; outlier from {MAX_Z.value}",
            )
        )  # fmt: skip
    waits_itself = [
        wait.late.rank for wait in waits if wait.waiter is slow and not any(wait.late is view for view in same)
    ]
    # Who waits for the slow rank communicates longer by about what it computes longer.
    shows = not any(waiting) or waiting[1] - waiting[0] >= MIN_SHOWN_RATIO.value * excess
    claim = (
        Words(f"; the others wait for {'it' if len(same) == 1 else 'them'}", "，其他卡在等待")
        if not waits_itself and shows
        else Words(
            "; the others' communication does not show that they wait for it", "，但从其他卡的通信看不出在等待它"
        )
        if not waits_itself
        else Words(
            f"; yet it is not the last to join the collectives: it waits for {ranks_words(waits_itself).en}",
            f"，但最后进入集合通信的不是它：它在等待 {ranks_words(waits_itself).zh}",
        )
    )
    cause = None
    if score is not None and abs(score) < MAX_Z.value:
        cause = Words(
            "Computing is spread over all ranks rather than long on one: uneven data or layers, rather than a "
            "faulty card.",
            "各卡计算时间普遍分散，而非某一卡特别长：多为数据或层分配不均，而非故障卡。",
        )
    return finding(
        "N-05", analyzer=NAME, trace_rank=None, share_ratio=share, subject=who.en,
        ranks=tuple(view.rank for view in same),
        affected_ranks=(slow.rank,) if waits_itself or not shows else tuple(view.rank for view in others),
        vendor=slow.trace.meta.device.kind,
        title=Words(
            f"{upper_first(who.en)} {'computes' if len(same) == 1 else 'compute up to'} "
            f"{format_ratio(excess / usual) if usual else '?'} longer than "
            f"{'its' if len(same) == 1 else 'their'} equals "
            f"({format_ns(slow.compute_per_step_ns)} against {format_ns(usual)} per step){claim.en}",
            f"{who.zh} 的计算比同类卡长 {format_ratio(excess / usual) if usual else '?'}"
            f"（每步 {format_ns(slow.compute_per_step_ns)} 对 {format_ns(usual)}）{claim.zh}",
        ),
        evidence=evidence, cause=cause,
        formula="(computing of the slow rank - median of the others) / length of its steps",
    )  # fmt: skip


def _slow_together(compute: Sequence[float]) -> list[bool]:
    """Which values lie above the widest gap among them; the largest alone where no gap stands out.

    Two slow ranks of eight are both named so: neither is an outlier as long as the other is there.
    """
    ordered = np.sort(np.asarray(compute, np.float64))
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps))
    stands_out = gaps[at] >= MIN_GAP_RATIO.value * (ordered[-1] - ordered[0])
    if not stands_out:
        first = list(compute).index(max(compute))
        return [place == first for place in range(len(compute))]
    return [bool(value >= ordered[at + 1]) for value in compute]


def _collective_ns(view: RankView) -> float:
    return view.split.communication_ns / max(1, view.steps)


def origin(split: Split) -> str:
    """Where the split of a rank comes from."""
    return "exporter's step_trace_time" if split.is_exported else "union of kernels"
