"""Memory of the pipeline stages beside each other (K-03): one stage full, or out of memory, while others have room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import JOB_READS, job_of
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers.memory import FRAMEWORK, capacity_of
from ascend_perf.analyzers.memory_headroom import NO_CAPACITY
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, ResultTable, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import LOG_EVENTS, MEMORY
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, Reads, columns_of, job_analyzer
from ascend_perf.units import format_ratio

NAME: Final = "stage-memory"
CODE: Final = "K-03"

FULL_RATIO: Final = threshold("K-05", "min_full_ratio")
"""Peak of reserved memory from which a stage is nearly full."""
GAP_RATIO: Final = threshold("K-03", "min_stage_gap_ratio")
"""Peak of the fullest stage above that of the emptiest from which stages are uneven."""
OUT_OF_MEMORY: Final = "EL0004"
"""Code of CANN for no memory left on the device. Source: collector reference, 4.7."""
MAX_SHOWN: Final = 16

NO_STAGES: Final = Words(
    "no memory of two pipeline stages: profile a rank of each stage (first and last at least) with profile_memory=True",
    "没有两个流水线阶段的内存数据：请以 profile_memory=True 采集每个阶段（至少首尾）各一张卡",
)

NO_PIPELINE: Final = Words(
    "no pipeline stages in the metadata of the ranks that were read", "已读取各卡的元数据中没有流水线阶段"
)


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of one rank."""

    rank: int
    stage: int
    reserved: int
    at_ns: int


READS: Final[Reads] = JOB_READS | columns_of(LOG_EVENTS) | {
    MEMORY.name: frozenset({"time_ns", "component", "reserved_bytes"})
}


@job_analyzer(name=NAME, needs=(), order=88, section="memory", reads=READS)
def stage_memory(run: Run) -> Result:
    """Report a pipeline stage that is full, or out of memory, while another has room.

    Reads:
        memory: time_ns, component, reserved_bytes of each rank; meta.groups and meta.parallel (stages), meta.device;
        log_events: ranks that ran out of memory.

    Returns:
        Finding K-03 without a share; table `stage-memory`.

    Raises:
        NoData: the run has no table at all.
    """
    if not any(len(table) for trace in run.traces for table in trace.tables.values()):
        raise NoData(Words("not in this data: memory", "数据中没有：memory"))
    ranked = [trace for trace in run.traces if trace.meta.rank is not None and trace.meta.device.kind != "cpu"]
    stages = job_of(run).stages
    gone = {rank for rank in _out_of_memory(run) if rank in stages}
    peaks = [peak for trace in ranked if (peak := _peak(trace, stages)) is not None]
    tables = (_table(peaks),) if len({peak.stage for peak in peaks}) > 1 else ()
    if gone and len({stages[rank] for rank in gone}) == 1 and len(set(stages.values())) > 1:
        return Result(findings=(_failed(gone, stages, peaks),), tables=tables, judged=(_found(),))
    if len({peak.stage for peak in peaks}) < 2:
        piped = len(set(stages.values())) > 1
        reason = NO_STAGES if piped else NO_PIPELINE
        return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
    capacity = min((c for trace in ranked if (c := capacity_of(trace)) is not None), default=None)
    if capacity is None:
        return Result(tables=tables, judged=(Judged(code=CODE, verdict="not_judged", reason=NO_CAPACITY),))
    made = _full(peaks, stages, capacity, next(trace.meta.device.kind for trace in ranked))
    if isinstance(made, Judged):
        return Result(tables=tables, judged=(made,))
    return Result(findings=(made,), tables=tables, judged=(_found(),))


def _found() -> Judged:
    return Judged(code=CODE, verdict="found")


def _out_of_memory(run: Run) -> set[int]:
    """Ranks whose log says that no memory was left."""
    ranks: set[int] = set()
    for trace in run.traces:
        table = trace[LOG_EVENTS]
        said = table.ints("rank")[table.text("name").equals(OUT_OF_MEMORY)]
        ranks |= set(said[said != NULL].tolist())
    return ranks


def _peak(trace: Trace, stages: Mapping[int, int]) -> Peak | None:
    table, rank = trace[MEMORY], trace.meta.rank
    component, reserved = table.text("component"), table.ints("reserved_bytes")
    name = next((name for name in FRAMEWORK if name in component.values), None)
    if name is None or rank is None or rank not in stages:
        return None
    rows = np.flatnonzero(component.equals(name) & (reserved != NULL))
    if not len(rows):
        return None
    at = int(rows[np.argmax(reserved[rows])])
    return Peak(rank=rank, stage=stages[rank], reserved=int(reserved[at]), at_ns=int(table.ints("time_ns")[at]))


def _by_stage(peaks: list[Peak]) -> dict[int, Peak]:
    """The highest peak of each stage."""
    made: dict[int, Peak] = {}
    for peak in peaks:
        if peak.stage not in made or peak.reserved > made[peak.stage].reserved:
            made[peak.stage] = peak
    return dict(sorted(made.items()))


def _full(peaks: list[Peak], stages: Mapping[int, int], capacity: int, vendor: object) -> Finding | Judged:
    highest = _by_stage(peaks)
    top = max(highest.values(), key=lambda peak: peak.reserved)
    low = min(highest.values(), key=lambda peak: peak.reserved)
    ratio, gap = top.reserved / capacity, (top.reserved - low.reserved) / capacity
    if ratio < FULL_RATIO.value or gap < GAP_RATIO.value:
        return Judged(
            code=CODE, verdict="clean",
            reason=Words(
                f"the fullest stage ({top.stage}) reserves {format_ratio(ratio)} of device memory, the emptiest "
                f"({low.stage}) {format_ratio(low.reserved / capacity)}",
                f"最满的 stage {top.stage} 预留设备内存的 {format_ratio(ratio)}，最空的 stage {low.stage} 为 "
                f"{format_ratio(low.reserved / capacity)}",
            ),
        )  # fmt: skip
    full = FULL_RATIO.value * capacity
    ranks = tuple(peak.rank for peak in peaks if peak.stage == top.stage and peak.reserved >= full)
    return finding(
        CODE, analyzer=NAME, trace_rank=None, ranks=ranks, affected_ranks=ranks, share_ratio=None,
        vendor=vendor,  # type: ignore[arg-type]  # a kind of device
        subject="stage", severity=Severity.HIGH,
        title=Words(
            f"Pipeline stage {top.stage} reserves {format_ratio(ratio)} of device memory, stage {low.stage} only "
            f"{format_ratio(low.reserved / capacity)}",
            f"流水线阶段 {top.stage} 预留设备内存的 {format_ratio(ratio)}，而阶段 {low.stage} 仅 "
            f"{format_ratio(low.reserved / capacity)}",
        ),
        evidence=[
            *(_evidence(peak) for peak in list(highest.values())[:MAX_SHOWN]),
            Evidence(
                name=Words("device memory", "设备内存"), value=capacity, unit="bytes", where="device specification"
            ),
            Evidence(
                name=Words("pipeline stages", "流水线阶段数"), value=len(set(stages.values())), unit="count",
                where="metadata",
            ),
        ],
        formula="peak of reserved memory of the stage / device memory",
    )  # fmt: skip


def _evidence(peak: Peak) -> Evidence:
    return Evidence(
        name=Words(f"peak reserved, stage {peak.stage}", f"阶段 {peak.stage} 的已预留峰值"), value=peak.reserved,
        unit="bytes", where=f"memory, rank {peak.rank}", start_ns=peak.at_ns,
    )  # fmt: skip


def _failed(gone: set[int], stages: Mapping[int, int], peaks: list[Peak]) -> Finding:
    """Out of memory on ranks of one stage alone."""
    stage = stages[min(gone)]
    who = ranks_words(sorted(gone))
    return finding(
        CODE, analyzer=NAME, trace_rank=None, ranks=tuple(sorted(gone)), affected_ranks=tuple(sorted(stages)),
        share_ratio=None, vendor="npu", subject="stage", severity=Severity.CRITICAL,
        title=Words(
            f"Pipeline stage {stage} ran out of device memory ({who.en}), and no other stage did",
            f"流水线阶段 {stage} 设备内存不足（{who.zh}），其余阶段没有",
        ),
        evidence=[
            Evidence(
                name=Words("ranks without memory", "内存不足的卡数"), value=len(gone), unit="count",
                where=f"log_events: {OUT_OF_MEMORY}",
            ),
            *(_evidence(peak) for peak in list(_by_stage(peaks).values())[:MAX_SHOWN]),
        ],
    )  # fmt: skip


def _table(peaks: list[Peak]) -> ResultTable:
    ordered = sorted(peaks, key=lambda peak: (peak.stage, peak.rank))
    stages = np.array([peak.stage for peak in ordered], np.int64)
    return result_table(
        "stage-memory",
        Words("Peak memory by pipeline stage", "各流水线阶段的内存峰值"),
        (
            Col("stage", "Stage", "流水线阶段", stages),
            Col("rank", "Rank", "Rank", [peak.rank for peak in ordered]),
            Col("peak_reserved_bytes", "Peak reserved", "已预留峰值", [peak.reserved for peak in ordered], "bytes"),
        ),
        note=Words(
            "With 1F1B the first of p stages holds the activations of p micro-batches, the last those of one.",
            "1F1B 调度下，p 个阶段中首个保存 p 个 micro-batch 的激活，末个只保存一个。",
        ),
    )
