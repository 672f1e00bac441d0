"""The job at a glance: facts, who waits for whom, the strip, and why ranks are shown in detail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_perf.model.finding import Cell
from ascend_perf.reports.bars import bars
from ascend_perf.reports.overview import overview, strip_of, waits
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.shown import chosen, detailed
from tests.reports import _job_samples as jobs
from tests.reports import _sample_tables as tables
from tests.reports import _samples


def with_table(payload: Payload, name: str, rows: list[list[Cell]]) -> Payload:
    """The payload with other rows in one table of the job; without it where there are none."""
    *rest, job = payload.outcomes
    kept = [table for table in job.tables if table.name != name]
    old = next(table for table in job.tables if table.name == name)
    if rows:
        kept.append(replace(old, data=tuple(tuple(row[i] for row in rows) for i in range(len(old.columns)))))
    return replace(payload, outcomes=(*rest, replace(job, tables=tuple(kept))))


def facts(payload: Payload) -> dict[str, str]:
    found = overview(payload, bars(payload))
    assert found is not None
    return {fact.label.en: fact.value.en for fact in found.facts}


def test_the_strip_holds_the_parts_of_every_rank() -> None:
    payload = jobs.job(16)

    strip = strip_of(payload, bars(payload))

    assert strip is not None
    assert strip.ranks == tuple(range(16))
    assert strip.stages == (0,) * 8 + (1,) * 8
    rows = {row.key: row for row in strip.rows}
    assert list(rows) == ["step", "computing", "wait", "transfer", "copy", "idle"]
    assert rows["step"].times_ns == (jobs.STEP_NS,) * 16
    assert rows["computing"].times_ns == tuple(jobs.computing(rank, 16) for rank in range(16))
    assert rows["wait"].times_ns == tuple(jobs.waiting(rank, 16) for rank in range(16))
    assert rows["transfer"].times_ns == (jobs.TRANSFER_NS,) * 16
    odd = {
        key: [rank for rank, score in zip(strip.ranks, row.scores, strict=True) if score and score.is_odd]
        for key, row in rows.items()
    }
    assert odd == {"step": [], "computing": [11], "wait": [11], "transfer": [], "copy": [], "idle": []}


def test_waiting_and_transfer_that_were_not_told_apart_are_no_zero() -> None:
    payload = jobs.job(4)
    whole = tables.table(
        "step-bar", "Where", "去向", [("component", "C", "组成", "none"), ("time_ns", "T", "耗时", "ns")],
        [["computing", 30_000_000], ["communication", 20_000_000], ["free", 1_000_000]],
    )  # fmt: skip
    changed = tuple(
        replace(o, tables=tuple(whole if t.name == "step-bar" and o.rank == 2 else t for t in o.tables))
        for o in payload.outcomes
    )

    strip = strip_of(replace(payload, outcomes=changed), bars(replace(payload, outcomes=changed)))

    assert strip is not None
    rows = {row.key: row.times_ns for row in strip.rows}
    assert rows["wait"][2] is rows["transfer"][2] is None
    assert rows["exposed"] == (
        jobs.waiting(0, 4) + jobs.TRANSFER_NS, jobs.waiting(1, 4) + jobs.TRANSFER_NS, 20_000_000,
        jobs.waiting(3, 4) + jobs.TRANSFER_NS,
    )  # fmt: skip


def test_the_facts_of_a_job() -> None:
    assert facts(jobs.job(64)) == {
        "Ranks": "64 of 64 in the data",
        "Layout": "TP 4 × DP 8 × PP 2 (stated in the metadata, inferred from members, sizes and ops)",
        "Longest step": "all alike: 58 ms, at most 58 ms (rank 0)",
        "Computes longest": "rank 35: 40 ms (median 30.5 ms)",
        "Stand out": "rank 35 (Computing +9 ms)",
    }


def test_missing_ranks_are_named() -> None:
    payload = jobs.job(8)
    part = replace(payload, ranks=tuple(rank for rank in payload.ranks if rank.rank not in (2, 3, 7)))
    assert facts(part)["Ranks"] == "5 of 8 in the data; not there: 2-3, 7"
    world = tuple(replace(rank, meta=replace(rank.meta, world_size=None)) for rank in payload.ranks)
    assert facts(replace(payload, ranks=world))["Ranks"] == "8 in the data; the size of the job is not"


def test_one_rank_has_no_overview() -> None:
    payload = jobs.job(8)
    assert overview(replace(payload, ranks=payload.ranks[:1]), bars(payload)) is None


def test_the_sentence_names_stage_and_late_rank() -> None:
    payload = jobs.job(16)
    said = waits(payload, bars(payload))
    assert said is not None
    # Rank 0 computes least and waits longest: 58 - 4 - 1 - 0.5 - 30 ms.
    assert said.en == (
        "Ranks of stage 0 wait 2 ms per step inside the pipeline (3.4 %). "
        "15 ranks wait longest for rank 11: up to 22.5 ms per step (39 %)."
    )
    assert said.zh == (
        "流水线阶段 0 的卡每步在流水线内等待 2 ms（3.4 %）。15 张卡等待最久的对象是 Rank 11：每步最多 22.5 ms（39 %）。"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        # Whoever made the late one late is named, unless it is the waiter itself or less than half of the cause.
        ([[1, 2, 6e6, 5, 0.9]], "Rank 1 waits longest for rank 5: 6 ms per step (10 %)."),
        ([[1, 2, 6e6, 1, 0.9]], "Rank 1 waits longest for rank 2: 6 ms per step (10 %)."),
        ([[1, 2, 6e6, 5, 0.4]], "Rank 1 waits longest for rank 2: 6 ms per step (10 %)."),
        ([[1, 2, 6e6, None, None]], "Rank 1 waits longest for rank 2: 6 ms per step (10 %)."),
        (
            [[1, 2, 6e6, None, None], [1, 3, 7e6, None, None], [4, 2, 1e6, None, None]],
            "Rank 1 waits longest for rank 3: 7 ms per step (12 %). Rank 4 waits longest for rank 2.",
        ),
        (
            [[1, 2, 5e5, None, None]],
            "No rank waits noticeably for another: at most 500 us per step (rank 1 for rank 2).",
        ),
        ([[1, 2, 0, None, None]], "No rank waits for another outside of computing."),
    ],
)
def test_the_sentence_follows_the_table(rows: list[list[Cell]], said: str) -> None:
    payload = with_table(with_table(jobs.job(8), "rank-waits", rows), "job-stages", [])
    found = waits(payload, bars(payload))
    assert found is not None
    assert found.en == said


def test_without_matched_calls_nothing_is_said() -> None:
    payload = with_table(with_table(jobs.job(8), "rank-waits", []), "job-stages", [])
    assert waits(payload, bars(payload)) is None


# ---- ranks in detail -------------------------------------------------------------------------------------------------


def test_each_rank_in_detail_has_its_reason() -> None:
    payload = jobs.job(64)
    found = {item.rank: item.why and item.why.en for item in chosen(payload, bars(payload))}
    # The samples' other findings are about ranks 0 and 1. All steps are equal: the 32nd of the 63 usual ranks is
    # the one in the middle.
    assert found == {
        35: "named in finding 1", 0: "loses time in finding 1", 1: "named in finding 2", 31: "median step",
        2: "among the lowest numbers", 3: "among the lowest numbers", 4: "among the lowest numbers",
        5: "among the lowest numbers",
    }  # fmt: skip
    assert detailed(payload, bars(payload)) == tuple(found)


def test_the_longest_step_and_of_equal_ones_the_longest_computing_is_chosen() -> None:
    payload = replace(jobs.job(32), findings=())
    made = bars(payload)
    quiet = tuple(replace(bar, is_outlier=False) for bar in made)
    reasons = {item.rank: item.why and item.why.en for item in chosen(payload, quiet)}
    assert reasons[19] == "computes longest"
    part = replace(quiet[7].parts[0], time_ns=quiet[7].parts[0].time_ns + 3_000_000)
    longer = (*quiet[:7], replace(quiet[7], parts=(part, *quiet[7].parts[1:])), *quiet[8:])
    reasons = {item.rank: item.why and item.why.en for item in chosen(payload, longer)}
    assert reasons[7] == "longest step"


def test_a_single_rank_needs_no_reason() -> None:
    payload = replace(_samples.payload(), ranks=_samples.payload().ranks[:1])
    assert [(item.rank, item.why) for item in chosen(payload, bars(payload))] == [(0, None)]
