"""Load of the experts over the ranks of an expert parallel group (E-01)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._expert_load import ExpertLoad, expert_groups, load_of
from ascend_perf.analyzers._late_ranks import upper_first
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import JOB_READS, job_of
from ascend_perf.analyzers._step_words import share_of
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.tables import KERNELS
from ascend_perf.plugins import NoData, job_analyzer
from ascend_perf.units import format_ns, format_ratio

NAME: Final = "experts"
CODE: Final = "E-01"

MAX_OVER_MEAN: Final = threshold("E-01", "max_over_mean")
LOOK_OVER_MEAN: Final = threshold("E-01", "low_over_mean")
LOOK_SHARE_RATIO: Final = threshold("E-01", "low_min_share_ratio")

_KERNEL_READS: Final = {KERNELS.name: JOB_READS[KERNELS.name] | {"op_type", "input_shapes"}}


@job_analyzer(
    name=NAME, needs=[KERNELS], order=76, section="ranks", reads=JOB_READS | _KERNEL_READS, needs_measured=(CODE,)
)
def experts(run: Run) -> Result:
    """Time and tokens of the grouped products per rank; the fullest rank of each expert parallel group (E-01).

    Reads:
        kernels: op_type, name, input_shapes, dur_ns; meta: groups.
    """
    job = job_of(run)
    loads = {view.rank: load for view in job.ranks if (load := load_of(view)) is not None}
    if not loads:
        raise NoData(
            Words(
                "no grouped product of experts (GroupedMatmul) runs in a step",
                "迭代内没有专家分组矩阵乘（GroupedMatmul）",
            )
        )
    found: list[Finding] = []
    compared = False
    of_group: dict[int, str] = {}
    for ranks, is_inferred in expert_groups(job).items():
        seen = [loads[rank] for rank in ranks if rank in loads]
        of_group |= {load.view.rank: ", ".join(map(str, ranks)) for load in seen}
        if len(seen) < 2:
            continue
        compared = True
        one = _uneven(seen, ranks, is_inferred)
        if one is not None:
            found.append(one)
    verdict = Judged(code=CODE, verdict="found" if found else "clean")
    if not compared:
        verdict = Judged(
            code=CODE, verdict="not_judged",
            reason=Words(
                "one rank of an expert parallel group only: give the folder that holds all ranks of the job",
                "每个 EP 通信域只有一张卡的数据：请给出包含全部卡的目录",
            ),
        )  # fmt: skip
    rows = [loads[rank] for rank in sorted(loads)]
    mean = float(np.mean([load.time_ns for load in rows]))
    table = result_table(
        "expert-load",
        Words("Load of the experts", "专家负载"),
        (
            Col("rank", "Rank", "Rank", [load.view.rank for load in rows]),
            Col("group", "Shares experts with", "EP 通信域", [of_group.get(load.view.rank) for load in rows]),
            Col("time_ns", "Grouped products per step", "每步分组矩阵乘", [load.time_ns for load in rows], "ns"),
            Col("tokens", "Tokens per step", "每步 token 数", [load.tokens for load in rows], "count"),
            Col("kernels", "Kernels", "Kernel 数", [load.kernels for load in rows], "count"),
            Col(
                "ratio", "Against the mean", "与均值之比",
                [load.time_ns / mean if mean else None for load in rows], "x",
            ),
        ),
        note=Words(
            "Tokens are the rows of the first input of each grouped product, forward and backward together.",
            "token 数为各分组矩阵乘第一个输入的行数之和，含前向与反向。",
        ),
    )  # fmt: skip
    return Result(findings=tuple(found), tables=(table,), judged=(verdict,))


def _uneven(loads: list[ExpertLoad], ranks: tuple[int, ...], is_inferred: bool) -> Finding | None:
    """E-01 for a group: the fullest rank takes more than 1.2 times the mean."""
    mean = float(np.mean([load.time_ns for load in loads]))
    full = max(loads, key=lambda load: load.time_ns)
    if not mean:
        return None
    ratio = full.time_ns / mean
    view = full.view
    share = share_of(view, (full.time_ns - mean) * view.steps)
    if ratio <= MAX_OVER_MEAN.value and (ratio <= LOOK_OVER_MEAN.value or share < LOOK_SHARE_RATIO.value):
        return None
    limit = min(MAX_OVER_MEAN.value, 1 + (ratio - 1) / 2)
    high = tuple(load.view.rank for load in loads if load.time_ns > limit * mean)
    who = ranks_words(high)
    evidence = [
        Evidence(
            name=Words(f"grouped products of rank {view.rank}, per step", f"Rank {view.rank} 每步分组矩阵乘"),
            value=full.time_ns, unit="ns", where=f"kernels: {full.kernels} GroupedMatmul",
        ),
        Evidence(
            name=Words("mean of the group", "通信域平均"), value=mean, unit="ns",
            where=f"{ranks_words([load.view.rank for load in loads]).en}"
            + (" (ranks of one stage: no group is named ep)" if is_inferred else "")
            + ("" if len(loads) == len(ranks) else f"; {len(ranks) - len(loads)} ranks of the group are not there"),
        ),
        Evidence(name=Words("fullest against the mean", "最满与平均之比"), value=ratio, unit="x",
                 where=f"limit {MAX_OVER_MEAN.value}"),
    ]  # fmt: skip
    known = [load.tokens for load in loads if load.tokens is not None]
    if full.tokens is not None and len(known) == len(loads):
        evidence.append(
            Evidence(
                name=Words("its tokens against the mean", "其 token 数与平均之比"),
                value=full.tokens / float(np.mean(known)) if sum(known) else None, unit="x",
                where=f"input shapes: {full.tokens:.0f} rows per step; mean {float(np.mean(known)):.0f}",
            )
        )  # fmt: skip
    return finding(
        CODE, analyzer=NAME, trace_rank=None, share_ratio=share, subject=", ".join(map(str, ranks[:16])), ranks=high,
        affected_ranks=tuple(load.view.rank for load in loads if load.view.rank not in high),
        vendor=view.trace.meta.device.kind, evidence=evidence,
        severity=Severity.LOW if ratio <= MAX_OVER_MEAN.value else None,
        title=Words(
            f"The experts of {who.en} take up to {ratio:.2f}x the mean of their group: {format_ns(full.time_ns)} "
            f"against {format_ns(mean)} per step ({format_ratio(share)} of the step)",
            f"{upper_first(who.zh)} 的专家耗时至多为通信域平均的 {ratio:.2f} 倍：每步 {format_ns(full.time_ns)} 对 "
            f"{format_ns(mean)}（占单步 {format_ratio(share)}）",
        ),
        formula="(grouped products of the fullest rank - mean of the group) / length of its steps",
    )  # fmt: skip
