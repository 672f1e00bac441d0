"""Comparison of the ranks of a job: slow ranks, imbalance of pipeline stages, waiting inside the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._absent_ranks import absent_ranks
from ascend_perf.analyzers._collectives import job_collectives
from ascend_perf.analyzers._communication import no_waits, ranks_words
from ascend_perf.analyzers._communication_tables import build
from ascend_perf.analyzers._held_up import held_up
from ascend_perf.analyzers._inherited import Causes, job_causes
from ascend_perf.analyzers._job_layout import layout_table, stages_table
from ascend_perf.analyzers._late_ranks import (
    MAX_SPREAD_RATIO,
    last_to_join,
    late_ranks,
    modified_z,
    notable_waits,
    origin,
    upper_first,
)
from ascend_perf.analyzers._pipeline_ideal import Schedule, schedule_of
from ascend_perf.analyzers._rank_clusters import rank_clusters
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import JOB_READS, Job, RankView, job_of
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Cell, Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.plugins import NoData, job_analyzer
from ascend_perf.units import format_ns, format_range, format_ratio

NAME: Final = "ranks"

MAX_BUBBLE_RATIO: Final = threshold("L-01", "max_bubble_ratio")
MAX_ABOVE_IDEAL_RATIO: Final = threshold("L-01", "max_above_ideal_ratio")


MIN_CAUSE_RATIO: Final = 0.5
"""A rank is named as the cause of waits in the pipeline from this part of them on. Status: assumed."""


@job_analyzer(name=NAME, needs=(), order=70, section="ranks", reads=JOB_READS)
def ranks(run: Run) -> Result:
    """Compute, communication and idle per rank; late ranks (N-05), stages (L-02) and pipeline waits (L-01).

    Reads:
        kernels, comm_ops, comm_tasks, comm_transfers, exported_steps; meta: groups, parallel, world size.
    """
    job = job_of(run)
    if not job.ranks:
        raise NoData(job.notes[0] if job.notes else Words("no rank has device activity", "没有任何一张卡有设备活动"))
    if len(job.ranks) == 1 and job.ranks[0].p2p is None:
        raise NoData(_single(job))
    stage = _stage_imbalance(job)
    causes = job_causes(job_collectives(job))
    bubble = _pipeline(job, causes)
    waits = notable_waits(job)
    late = late_ranks(job, waits)
    held = held_up(causes)
    last = last_to_join(waits, held)
    absent, unseen = absent_ranks(job, job_collectives(job))
    found = [*stage[0], *bubble[0], *late[0], *last, *absent]
    return Result(
        findings=tuple(found),
        metrics=_metrics(job),
        tables=tuple(table for table in _tables(job) if table is not None),
        judged=(stage[1], bubble[1], _late_verdict(late[1], unseen, bool(last))),
        held_up=held,
    )


def _late_verdict(late: Judged, unseen: Judged | None, has_last: bool) -> Judged:
    """N-05 of the job: what was found, else what cannot be told without the ranks that are not in the data."""
    if has_last or late.verdict == "found":
        return Judged(code="N-05", verdict="found")
    return late if unseen is None else unseen


def _single(job: Job) -> Words:
    notes = "".join(f"; {note.en}" for note in job.notes)
    notes_zh = "".join(f"；{note.zh}" for note in job.notes)
    return Words(
        f"one rank only: nothing to compare{notes}; give the folder that holds all ranks of the job",
        f"只有一张卡，无法比较{notes_zh}；请给出包含该任务全部卡数据的目录",
    )


def _stage_imbalance(job: Job) -> tuple[list[Finding], Judged]:
    """L-02: one pipeline stage computes longer than another."""
    code = "L-02"
    seen = sorted({view.stage for view in job.ranks if view.stage is not None})
    if not job.stages:
        return [], Judged(
            code=code, verdict="not_judged",
            reason=Words(
                "no metadata names pipeline groups (profiler_metadata.json); nothing to judge without a pipeline",
                "没有元数据（profiler_metadata.json）给出流水线通信域；无流水线则不适用",
            ),
        )  # fmt: skip
    if len(seen) < 2:
        return [], Judged(
            code=code, verdict="not_judged",
            reason=Words("ranks of one pipeline stage only are in the data", "数据中只有一个流水线阶段的卡"),
        )  # fmt: skip
    compute = {stage: float(np.mean([v.compute_per_step_ns for v in job.of_stage(stage)])) for stage in seen}
    slow, fast = max(seen, key=compute.__getitem__), min(seen, key=compute.__getitem__)
    mean = float(np.mean(list(compute.values())))
    if not mean or (compute[slow] - compute[fast]) / mean <= MAX_SPREAD_RATIO.value:
        return [], Judged(code=code, verdict="clean")
    ratio = compute[slow] / compute[fast] if compute[fast] else float("inf")
    share = _balanced_share(job, slow, 1 - mean / compute[slow])
    slow_ranks, fast_ranks = ranks_words(job.stage_ranks(slow)), ranks_words(job.stage_ranks(fast))
    evidence = [
        Evidence(
            name=Words(f"computing of stage {stage}, per step", f"阶段 {stage} 每步计算"), value=compute[stage],
            unit="ns", where="; ".join(
                f"rank {v.rank}: {format_ns(v.compute_per_step_ns)} ({origin(v.split)})" for v in job.of_stage(stage)
            ),
        )
        for stage in seen[:4]
    ]  # fmt: skip
    evidence.append(
        Evidence(
            name=Words("slowest stage against the fastest", "最慢阶段与最快阶段之比"), value=ratio, unit="x",
            where="mean computing of the ranks of each stage",
        )
    )  # fmt: skip
    evidence.append(
        Evidence(
            name=Words("slowest stage against the mean", "最慢阶段与平均之比"), value=compute[slow] / mean, unit="x",
            where="bound when all stages compute as long as their mean",
        )
    )  # fmt: skip
    affected = tuple(v.rank for v in job.ranks if v.stage != slow)
    found = finding(
        code, analyzer=NAME, trace_rank=None, share_ratio=share, subject="stages",
        ranks=job.stage_ranks(slow), affected_ranks=affected, vendor=job.ranks[0].trace.meta.device.kind,
        title=Words(
            f"Stage {slow} ({slow_ranks.en}) computes {ratio:.2f}x longer than stage {fast} ({fast_ranks.en}): "
            f"{format_ns(compute[slow])} against {format_ns(compute[fast])} per step",
            f"流水线阶段 {slow}（{slow_ranks.zh}）的计算时间是阶段 {fast}（{fast_ranks.zh}）的 {ratio:.2f} 倍："
            f"每步 {format_ns(compute[slow])} 对 {format_ns(compute[fast])}",
        ),
        evidence=evidence[:6],
        formula="(1 - mean / max of the stages' computing) x time of the pipeline at the pace of its slowest stage / "
        "step: computing x (micro-batches + stages - 1) / micro-batches, else computing and its own waits in the "
        "pipeline",
    )  # fmt: skip
    return [found], Judged(code=code, verdict="found")


def _balanced_share(job: Job, slow: int, saved_ratio: float) -> float | None:
    """Share of the step that goes when the slowest stage computes as long as the mean.

    What shrinks with its computing is the time in which the pipeline runs at its pace; idle time and other
    communication stay.
    """
    views = job.of_stage(slow)
    if not all(view.step_ns for view in views):
        return None
    schedule = schedule_of(job)
    ratios = []
    for view in views:
        held = view.compute_per_step_ns * max(1, view.steps)
        if schedule is not None and schedule.micro_batches:
            held *= (schedule.micro_batches + schedule.stages - 1) / schedule.micro_batches
        else:
            held += _pipeline_wait(view) or 0
        ratios.append(min(1.0, held / view.step_ns))
    return saved_ratio * float(np.mean(ratios))


def _pipeline(job: Job, causes: Causes) -> tuple[list[Finding], Judged]:
    """L-01: ranks wait inside the point-to-point calls of the pipeline."""
    code = "L-01"
    waits = {view.rank: _pipeline_wait(view) for view in job.ranks}
    known = {rank: wait for rank, wait in waits.items() if wait is not None}
    if not known:
        unknown = next((view.trace for view in job.ranks if view.p2p is not None), None)
        return [], Judged(
            code=code, verdict="not_judged",
            reason=no_waits(unknown) if unknown is not None else Words(
                "no pipeline in the metadata and no point-to-point calls of one",
                "元数据中没有流水线，也没有流水线的点对点通信",
            ),
        )  # fmt: skip
    views = {view.rank: view for view in job.ranks}
    limit = _limit(job)
    affected = [rank for rank, wait in known.items() if share_of(views[rank], wait) > limit]
    if not affected:
        worst = max(known, key=lambda rank: share_of(views[rank], known[rank]))
        note = Words(
            f"ranks wait up to {format_ratio(share_of(views[worst], known[worst]))} of the step in the pipeline",
            f"流水线内等待至多占单步 {format_ratio(share_of(views[worst], known[worst]))}",
        )
        return [], Judged(code=code, verdict="clean", reason=note)
    affected.sort(key=lambda rank: -share_of(views[rank], known[rank]))
    worst = affected[0]
    share = share_of(views[worst], known[worst])
    cause_ranks, cause = _pipeline_cause(job, affected, causes)
    low = min(known[rank] / max(1, views[rank].steps) for rank in affected)
    high = max(known[rank] / max(1, views[rank].steps) for rank in affected)
    span = format_range(format_ns(low), format_ns(high))
    need = _need(views[worst])
    who = ranks_words(affected)
    step = step_words(views[worst], share)
    steps = views[worst].steps
    # One bracket in Chinese too, after the time that it is about.
    length_zh = f"{'平均' if steps > 1 else ''}单步 {format_ns(views[worst].step_ns / max(1, steps))} 中"
    share_zh = f"（{format_ratio(share)}，共 {steps} 步）" if steps > 1 else f"（{format_ratio(share)}）"
    ops = ", ".join(views[worst].p2p.ops) if views[worst].p2p is not None else "receive"  # type: ignore[union-attr]
    data = ("", "") if need is None else (f" for data that needs {need}", f"，而其数据只需 {need}")
    late = (
        ("", "")
        if not cause_ranks
        else (
            f" ({ranks_words(cause_ranks).en} {'holds' if len(cause_ranks) == 1 else 'hold'} "
            f"{'it' if len(affected) == 1 else 'them'} up)",
            f"（被 {ranks_words(cause_ranks).zh} 拖慢）",
        )
    )
    verb = "waits" if len(affected) == 1 else "wait"
    title = Words(
        f"{upper_first(who.en)} {verb} {span} of {step.en} in {ops}{data[0]}{late[0]}",
        f"{who.zh} 在{length_zh}于 {ops} 中等待 {span}{share_zh}{data[1]}{late[1]}",
    )
    evidence: list[Evidence] = []
    for rank in affected[:3]:
        evidence += _wait_evidence(views[rank], known[rank])
    if (schedule := schedule_of(job)) is not None:
        evidence = [*evidence[:4], _ideal(schedule)]
    others = [rank for rank in known if rank not in affected]
    if others:
        evidence.append(
            Evidence(
                name=Words("waiting of the other ranks", "其他卡的等待"),
                value=max(known[rank] / max(1, views[rank].steps) for rank in others), unit="ns",
                where=f"{ranks_words(others).en}: the longest per step",
            )
        )  # fmt: skip
    found = finding(
        code, analyzer=NAME, trace_rank=None, title=title, share_ratio=share, evidence=evidence[:6],
        subject="pipeline", ranks=cause_ranks or tuple(sorted(affected)), affected_ranks=tuple(sorted(affected)),
        vendor=views[worst].trace.meta.device.kind, cause=cause,
        formula="exposed time of point-to-point calls less the time that their data needs / length of the steps; "
        "the rank that waits longest",
        bands=_bands(views[worst]),
    )  # fmt: skip
    return [found], Judged(code=code, verdict="found")


def _ideal(schedule: Schedule) -> Evidence:
    """What equal stages would idle in any case; more micro-batches lower it."""
    return Evidence(
        name=Words("bubble of equal stages, without interleaving", "各阶段均衡、无交错调度时的气泡"),
        value=schedule.ideal_ratio, unit="ratio",
        where=f"(p - 1) / (m + p - 1) of the step: {schedule.stages} stages, {schedule.micro_batches} micro-batches"
        + (" (counted from the point-to-point calls, taken for 1F1B)" if schedule.is_inferred else ""),
    )  # fmt: skip


def _pipeline_wait(view: RankView) -> int | None:
    """Waiting inside the pipeline, all steps together: from the calls, or the exporter's Bubble where it is more."""
    exported = view.split.bubble_ns
    if view.p2p is None:
        return exported if exported else (0 if view.stage is not None else None)
    if view.p2p.waiting_ns is None:
        return exported or None
    return max(view.p2p.waiting_ns, exported or 0)


def _limit(job: Job) -> float:
    """Share from which waiting counts: 10 %, or 5 points above the ideal bubble where the micro-batches are known."""
    schedule = schedule_of(job)
    if schedule is None or schedule.is_inferred:
        return MAX_BUBBLE_RATIO.value
    return min(MAX_BUBBLE_RATIO.value, schedule.ideal_ratio + MAX_ABOVE_IDEAL_RATIO.value)


def _pipeline_cause(job: Job, affected: Sequence[int], causes: Causes) -> tuple[tuple[int, ...], Words | None]:
    """The ranks that hold the others up, and why we say so.

    A stage that computes longer than the one that waits holds it up as a whole; else the ranks to which the waits
    lead back, where all of them are known; else the stage.
    """
    seen = {view.stage: view for view in job.ranks if view.stage is not None}
    waiting = {job.stages.get(rank) for rank in affected}
    compute = {
        stage: float(np.mean([view.compute_per_step_ns for view in job.of_stage(stage)]))
        for stage in seen
        if stage is not None
    }
    free = {stage: value for stage, value in compute.items() if stage not in waiting}
    if free:
        slow = max(free, key=free.__getitem__)
        fastest = min(compute.values())
        ratio = free[slow] / fastest if fastest else 1.0
        if ratio > 1 + MAX_SPREAD_RATIO.value:
            return job.stage_ranks(slow), Words(
                f"Stage {slow} ({ranks_words(job.stage_ranks(slow)).en}) computes {ratio:.2f}x longer than the stage "
                "that waits for it (row L-02): balance the stages before adding micro-batches.",
                f"阶段 {slow}（{ranks_words(job.stage_ranks(slow)).zh}）的计算时间是等待它的阶段的 {ratio:.2f} 倍"
                "（见 L-02）：应先平衡各阶段，再增加 micro-batch。",
            )
        if (late := _late_in_pipeline(job, affected, causes)) and set(late) < set(job.stage_ranks(slow)):
            who = ranks_words(late)
            return late, Words(
                f"The stages compute alike; the waits lead back to {who.en}, late by "
                f"{'itself' if len(late) == 1 else 'themselves'}: see {'its' if len(late) == 1 else 'their'} own "
                "profile (rows H, D and P).",
                f"各阶段计算相近；等待最终来自自身迟到的 {who.zh}：请查看其自身的 profile（H、D、P 各行）。",
            )
        return job.stage_ranks(slow), None
    # Only the waiting stages were seen: the cause lies with the peers of their pipelines.
    peers = {
        rank
        for view in job.ranks
        if view.rank in affected
        for group in view.trace.meta.groups
        if group.label == "pp"
        for rank in group.ranks
    }
    others = tuple(sorted(peers - set(affected)))
    if not others:
        return (), None
    return others, Words(
        "The other stages of the pipeline hold these ranks up; their files are not in the data, so it cannot be told "
        "whether they compute longer or come late themselves.",
        "流水线的其他阶段拖慢了这些卡；数据中没有它们的文件，无法判断是其计算更久还是自身迟到。",
    )


def _late_in_pipeline(job: Job, affected: Sequence[int], causes: Causes) -> tuple[int, ...]:
    """The ranks that are the cause of most waiting of each affected rank for ranks of other stages; none if unknown."""
    late: set[int] = set()
    stage_of = np.vectorize(lambda rank: job.stages.get(rank, -1), otypes=[np.int64])
    for rank in affected:
        mine = causes.waiter == rank
        if mine.any():
            mine &= stage_of(causes.late) != job.stages.get(rank, -1)
        if not mine.any():
            return ()
        found, index = np.unique(causes.cause[mine], return_inverse=True)
        parts = np.bincount(index.reshape(-1), weights=causes.exposed_ns[mine])
        worst = int(np.argmax(parts))
        if parts[worst] < MIN_CAUSE_RATIO * parts.sum():
            return ()
        late.add(int(found[worst]))
    return tuple(sorted(late))


def _need(view: RankView) -> str | None:
    if view.p2p is None or view.p2p.need_ns is None:
        return None
    return per_step(view, view.p2p.need_ns)


def _wait_evidence(view: RankView, wait: int) -> list[Evidence]:
    if view.p2p is None or view.p2p.longest is None:
        return [
            Evidence(
                name=Words(f"bubble of rank {view.rank}", f"Rank {view.rank} 的气泡"),
                value=wait / max(1, view.steps), unit="ns", where="exported_steps.bubble_ns (receive operators)",
            )
        ]  # fmt: skip
    name, start, dur = view.p2p.longest
    need = "" if view.p2p.need_ns is None else f"; their data needs {per_step(view, view.p2p.need_ns)}"
    return [
        Evidence(
            name=Words(f"rank {view.rank}: waiting in the pipeline", f"Rank {view.rank}：流水线内等待"),
            value=wait / max(1, view.steps), unit="ns",
            where=f"comm_ops: {view.p2p.calls} point-to-point calls take {per_step(view, view.p2p.duration_ns)}{need}",
        ),
        Evidence(
            name=Words(f"rank {view.rank}: longest call", f"Rank {view.rank}：最长的一次"), value=dur, unit="ns",
            where=name, start_ns=start,
        ),
    ]  # fmt: skip


def _bands(view: RankView) -> tuple[tuple[int, int], ...]:
    if view.p2p is None or view.p2p.longest is None:
        return ()
    _, start, dur = view.p2p.longest
    return ((start, start + dur),)


def _tables(job: Job) -> tuple[ResultTable | None, ...]:
    stages = stages_table(job, [_pipeline_wait(view) for view in job.ranks])
    return _table(job), rank_clusters(job.ranks), layout_table(job), stages


def _table(job: Job) -> ResultTable:
    views = job.ranks
    scores = modified_z([view.compute_per_step_ns for view in views])

    def per(values: Sequence[int | None]) -> list[Cell]:
        return [None if v is None else v / max(1, view.steps) for v, view in zip(values, views, strict=True)]

    columns = (
        ("rank", Words("Rank", "Rank"), "none", [view.rank for view in views]),
        ("stage", Words("Stage", "流水线阶段"), "none", [view.stage for view in views]),
        ("steps", Words("Steps", "步数"), "count", [view.steps for view in views]),
        ("step_ns", Words("Step", "单步耗时"), "ns", per([view.step_ns for view in views])),
        ("computing_ns", Words("Computing", "计算"), "ns", per([view.split.computing_ns for view in views])),
        ("communication_ns", Words("Communication", "通信"), "ns", per([v.split.communication_ns for v in views])),
        ("exposed_ns", Words("Not overlapped", "未被掩盖的通信"), "ns", per([v.split.exposed_ns for v in views])),
        ("free_ns", Words("Free", "空闲（Free）"), "ns", per([view.split.free_ns for view in views])),
        (
            "wait_ns",
            Words("Waiting in collectives", "集合通信内等待"),
            "ns",
            per([_waiting(view) for view in views]),
        ),
        (
            "pipeline_wait_ns",
            Words("Waiting in the pipeline", "流水线内等待"),
            "ns",
            per([_pipeline_wait(view) for view in views]),
        ),
        (
            "computing_z",
            Words("Modified z-score of computing", "计算的修正 z 分数"),
            "none",
            [None] * len(views) if scores is None else [round(score, 2) for score in scores],
        ),
        (
            "source",
            Words("From", "来源"),
            "none",
            ["step_trace_time" if view.split.is_exported else "events" for view in views],
        ),
    )
    notes = [*job.notes]
    if job.missing:
        notes.append(
            Words(
                f"{ranks_words(job.missing).en} of the job are not in the data",
                f"数据中没有该任务的 {ranks_words(job.missing).zh}",
            )
        )
    note = Words("; ".join(n.en for n in notes), "；".join(n.zh for n in notes)) if notes else None
    return build("ranks", Words("Ranks", "各卡对比"), columns, note=note)  # type: ignore[arg-type]


def _waiting(view: RankView) -> int | None:
    waiting = view.calls.exposed_waiting_ns
    known = waiting[waiting != np.iinfo(np.int64).min]
    return int(known.sum()) if len(known) else None


def _metrics(job: Job) -> tuple[Metric, ...]:
    compute = [view.compute_per_step_ns for view in job.ranks if view.split.computing_ns]
    if len(compute) < 2:
        return ()
    return (
        Metric(
            name="rank_compute_spread_ratio", value=(max(compute) - min(compute)) / float(np.mean(compute)),
            unit="ratio", better="lower",
        ),
    )  # fmt: skip
