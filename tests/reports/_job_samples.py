"""A payload of a job of many ranks: two stages, one rank that computes longer, its equals that wait for it.

All times are whole ns by formula: rank r of stage s computes 30 ms + s x 1 ms + r ns, the late rank 9 ms more; what is
left of 58 ms is waiting, except 4 ms of transfer, 1 ms of copies and 0.5 ms idle.
"""

from __future__ import annotations

from dataclasses import replace

from ascend_perf.model.finding import Cell, Finding, Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.reports.payload import Payload, build
from ascend_perf.reports.texts import Lang
from tests.reports import _sample_tables as tables
from tests.reports import _samples

STEP_NS = 58_000_000
TRANSFER_NS = 4_000_000
COPY_NS = 1_000_000
IDLE_NS = 500_000
LATE_NS = 9_000_000


def late(count: int) -> int:
    """The rank that computes longer."""
    return count // 2 + 3


def stage(rank: int, count: int) -> int:
    return int(rank >= count // 2)


def computing(rank: int, count: int) -> int:
    return 30_000_000 + stage(rank, count) * 1_000_000 + rank + (LATE_NS if rank == late(count) else 0)


def waiting(rank: int, count: int) -> int:
    return STEP_NS - TRANSFER_NS - COPY_NS - IDLE_NS - computing(rank, count)


def step_bar(rank: int, count: int) -> ResultTable:
    rows: list[list[Cell]] = [
        ["cube", computing(rank, count)], ["comm-wait", waiting(rank, count)], ["comm-transfer", TRANSFER_NS],
        ["copy", COPY_NS], ["free", IDLE_NS],
    ]  # fmt: skip
    columns = [("component", "Component", "组成", "none"), ("time_ns", "Time", "耗时", "ns")]
    return tables.table("step-bar", "Where the step goes", "单步耗时去向", columns, rows)  # type: ignore[arg-type]


def job_tables(count: int) -> tuple[ResultTable, ...]:
    """What the analyzers of the job say."""
    ranks: list[list[Cell]] = [[rank, stage(rank, count), computing(rank, count)] for rank in range(count)]
    waits: list[list[Cell]] = [
        [rank, late(count), waiting(rank, count), late(count), 1.0] for rank in range(count) if rank != late(count)
    ]
    half = count // 2
    stages: list[list[Cell]] = [
        [0, f"0-{half - 1}", 30e6, 2_000_000.0], [1, f"{half}-{count - 1}", 31e6, 500_000.0],
    ]  # fmt: skip
    return (
        tables.table(
            "ranks", "Ranks", "各卡对比",
            [("rank", "Rank", "Rank", "none"), ("stage", "Stage", "流水线阶段", "none"),
             ("computing_ns", "Computing", "计算", "ns")], ranks,
        ),
        tables.table(
            "rank-waits", "Who waits for whom", "等待关系",
            [("waiter", "Waiting rank", "等待的 Rank", "none"), ("late", "Late rank", "迟到的 Rank", "none"),
             ("exposed_ns", "Not overlapped", "未掩盖", "ns"), ("root", "Because of", "最终由谁造成", "none"),
             ("root_ratio", "Its part", "所占比例", "ratio")], waits,
        ),
        tables.table(
            "job-stages", "Pipeline stages", "流水线阶段",
            [("stage", "Stage", "流水线阶段", "none"), ("ranks", "Ranks", "Rank", "none"),
             ("computing_ns", "Computing", "计算", "ns"), ("pipeline_wait_ns", "Waiting", "流水线内等待", "ns")],
            stages,
        ),
        tables.table(
            "job-groups", "Communication groups by kind", "各类通信域",
            [("parallel", "Parallelism", "并行方式", "none"),
             ("bus_bytes_per_s", "Bus bandwidth", "总线带宽", "bytes_per_s"),
             ("peak_ratio", "Share of the link peak", "占链路峰值", "ratio")],
            [["tp", 64.1e9, 0.33], ["dp", 20.4e9, 0.82]],
        ),
        tables.table(
            "job-layout", "Layout of the job", "任务的并行布局",
            [("parallel", "Parallelism", "并行方式", "none"), ("size", "Ranks", "卡数", "count"),
             ("parallel_from", "Known from", "来源", "none")],
            [["tp", 4, "metadata"], ["cp", 1, "metadata"], ["dp", count // 8, "inferred"], ["pp", 2, "metadata"]],
        ),
    )  # fmt: skip


def findings(count: int) -> tuple[Finding, ...]:
    """The samples', the first about the late rank."""
    first, *rest = _samples.findings()
    others = tuple(rank for rank in range(count) if rank != late(count))
    return (replace(first, ranks=(late(count),), affected_ranks=others), *rest)


def job(count: int, lang: Lang = "en") -> Payload:
    """Every rank with all tables."""
    sample = _samples.outcomes(0)
    outcomes: list[Outcome] = []
    for rank in range(count):
        for outcome in sample:
            own = tuple(step_bar(rank, count) if t.name == "step-bar" else t for t in outcome.tables)
            outcomes.append(replace(outcome, rank=rank, trace_index=rank, tables=own))
    outcomes.append(
        Outcome(
            analyzer="ranks", status="done", scope="job", tables=job_tables(count), findings=findings(count)[:1]
        )
    )  # fmt: skip
    base = _samples.trace(0)
    traces = tuple(
        base.replace(meta=replace(base.meta, rank=rank, world_size=count, label=f"rank{rank}")) for rank in range(count)
    )
    return build(Run(traces=traces, label="big job"), outcomes, findings(count), lang=lang)
