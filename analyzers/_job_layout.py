"""How a job is laid out: sizes of its kinds of parallelism and where they are known from, and its pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ascend_perf.analyzers._communication import stage_count
from ascend_perf.analyzers._group_kinds import GroupKind, group_kinds, parallel_size, stated_size
from ascend_perf.analyzers._job_groups import listed
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.trace import Trace

KINDS: Final[tuple[GroupKind, ...]] = ("tp", "cp", "ep", "dp", "pp")
"""In the order in which Megatron places ranks, the innermost first."""


class Dimension(NamedTuple):
    """Ranks of one kind of parallelism, and what tells it: `metadata`, `named` (the label of a group) or `inferred`."""

    kind: GroupKind
    size: int
    source: str


def layout_of(traces: Sequence[Trace]) -> tuple[Dimension, ...]:
    """The kinds of parallelism whose size is known, also those of one rank where metadata state it.

    Metadata decide, then a group that is labelled for the kind, then the largest group of that kind by its members.
    Data parallel ranks follow from the others where nothing else tells them: world / (tp x cp x pp).

    Reads:
        comm_ops: op, group, group_label; meta: groups, parallel, world size.
    """
    found: dict[GroupKind, Dimension] = {}
    for kind in KINDS:
        stated = max((size for trace in traces if (size := stated_size(trace, kind)) is not None), default=None)
        if stated is not None:
            found[kind] = Dimension(kind, stated, "metadata")
            continue
        labelled = max((size for trace in traces if (size := parallel_size(trace, kind)) is not None), default=None)
        if labelled is not None:
            found[kind] = Dimension(kind, labelled, "named")
    for kind, size in _inferred(traces, set(KINDS) - found.keys()).items():
        found[kind] = Dimension(kind, size, "inferred")
    if "dp" not in found and (data := _rest(traces, found.values())) is not None:
        found["dp"] = Dimension("dp", data, "inferred")
    return tuple(found[kind] for kind in KINDS if kind in found)


def _inferred(traces: Sequence[Trace], missing: set[GroupKind]) -> dict[GroupKind, int]:
    """Sizes by the members of groups whose kind is told by their name in the trace, their members or their ops."""
    sizes: dict[GroupKind, int] = {}
    if not missing:
        return sizes
    for trace in traces:
        members = {name: len(g.ranks) for g in trace.meta.groups if g.ranks for name in (g.name, g.hash_id) if name}
        for name, (kind, _) in group_kinds(trace).items():
            size = members.get(name or "", 0)
            if kind in missing and size > 1:
                sizes[kind] = max(sizes.get(kind, 0), size)
    return sizes


def _rest(traces: Sequence[Trace], known: Iterable[Dimension]) -> int | None:
    """Data parallel ranks, from the size of the job and the other kinds; None where no other kind is known."""
    worlds = {trace.meta.world_size for trace in traces if trace.meta.world_size is not None}
    others = 1
    sizes = {dimension.kind: dimension.size for dimension in known}
    sizes["pp"] = max([sizes.get("pp", 1), *(stage_count(trace) for trace in traces)])
    for kind in ("tp", "cp", "pp"):
        others *= sizes.get(kind, 1)
    if others == 1 or len(worlds) != 1 or min(worlds) % others:
        return None
    return min(worlds) // others


def layout_table(job: Job) -> ResultTable | None:
    """Table of `layout_of`; None where nothing is known of the layout."""
    found = layout_of([view.trace for view in job.ranks])
    if not found:
        return None
    return result_table(
        "job-layout",
        Words("Layout of the job", "任务的并行布局"),
        (
            Col("parallel", "Parallelism", "并行方式", [d.kind for d in found]),
            Col("size", "Ranks", "卡数", [d.size for d in found], "count"),
            Col("parallel_from", "Known from", "来源", [d.source for d in found]),
        ),
        note=Words(
            "Inferred: from the members of groups in the order of Megatron, or data parallel ranks as what is left.",
            "“推断”：按 Megatron 的 Rank 排布由通信域成员得出，或由其余并行数得出数据并行数。",
        ),
    )


def stages_table(job: Job, bubbles: Sequence[int | None]) -> ResultTable | None:
    """Pipeline stages with their ranks, their computing and what they wait for; None without a pipeline.

    Args:
        job: the ranks.
        bubbles: waiting of each rank of the job in the pipeline, all steps together, ns.
    """
    stages = sorted(set(job.stages.values()))
    if len(stages) < 2:
        return None
    of_rank = {view.rank: bubble for view, bubble in zip(job.ranks, bubbles, strict=True)}
    seen = [job.of_stage(stage) for stage in stages]
    computing = [_mean([view.compute_per_step_ns for view in views]) for views in seen]
    most = max((time for time in computing if time is not None), default=None)
    slowest = [max(views, key=lambda view: view.compute_per_step_ns, default=None) for views in seen]
    return result_table(
        "job-stages",
        Words("Pipeline stages", "流水线阶段"),
        (
            Col("stage", "Stage", "流水线阶段", stages),
            Col("ranks", "Ranks", "Rank", [listed(job.stage_ranks(stage)) for stage in stages]),
            Col("seen", "Ranks seen", "已采集的卡数", [len(views) for views in seen], "count"),
            Col("computing_ns", "Computing", "计算", computing, "ns"),
            Col(
                "computing_ratio", "Of the slowest stage", "与最慢阶段之比",
                [None if time is None or not most else time / most for time in computing], "ratio",
            ),
            Col("slowest", "Computes longest", "计算最久的 Rank", [None if v is None else v.rank for v in slowest]),
            Col(
                "exposed_ns", "Not overlapped", "未被掩盖的通信", [_mean(_per_step(v, "exposed_ns")) for v in seen],
                "ns",
            ),
            Col(
                "pipeline_wait_ns", "Waiting in the pipeline", "流水线内等待",
                [
                    _mean([b / max(1, v.steps) for v in views if (b := of_rank[v.rank]) is not None])
                    for views in seen
                ], "ns",
            ),
            Col("free_ns", "Free", "空闲（Free）", [_mean(_per_step(views, "free_ns")) for views in seen], "ns"),
        ),
        note=Words("Means over the ranks of a stage, per step.", "各阶段内各卡的平均值，均为每步数值。"),
    )  # fmt: skip


def _per_step(views: Sequence[RankView], figure: str) -> list[float]:
    return [getattr(view.split, figure) / max(1, view.steps) for view in views]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
