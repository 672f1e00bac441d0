"""What the reports of a large job leave out or sum up, and what they keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_perf.model.finding import Cell, Outcome, ResultTable, Words
from ascend_perf.model.trace import Check, Dropped, Meta, Source
from ascend_perf.reports.bars import Bar, Part
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.payload import Amount, Payload, RankSummary, ReadSource
from ascend_perf.reports.quality import quality_tables
from ascend_perf.reports.shown import DETAILED, MANY, detailed, drawn, is_large
from ascend_perf.reports.texts import Lang
from tests.reports import _samples


def bar(rank: int, total_ns: float, *, odd: bool = False) -> Bar:
    part = Part(key="computing", label=words("bar.computing"), kind="computing", time_ns=total_ns)
    return Bar(rank=rank, parts=(part,), is_outlier=odd)


def job(count: int) -> Payload:
    ranks = tuple(
        RankSummary(
            meta=Meta(rank=rank, checks=(
                Check(name="kernels", ours=100.0, theirs=100.0 + rank % 20, unit="count", tolerance=30, where="a.csv"),
                Check(name="time", ours=5.0, theirs=5.0 + (rank == 3), unit="us", tolerance=0.5, where="b.csv"),
            )),
            kernels=Amount(), communication=Amount(), steps=(),
        )
        for rank in range(count)
    )  # fmt: skip
    sources = [
        ReadSource(rank=rank, source=Source(
            path=f"r{rank}/profiler_info_{rank}.json", format="info", rows=2, size_bytes=10 + rank,
            dropped=(Dropped(reason="last row is cut", count=rank),),
            problem="it is empty" if rank == 5 else None,
        ))
        for rank in range(count)
    ]  # fmt: skip
    return replace(_samples.payload(), ranks=ranks, sources=tuple(sources), findings=(), outcomes=())


def rows(payload: Payload, name: str) -> list[tuple[Cell, ...]]:
    table: ResultTable = next(t for t in quality_tables(payload, "en") if t.name == name)
    return list(zip(*table.data, strict=True))


def test_of_a_small_job_all_ranks_are_shown() -> None:
    payload = job(MANY)
    assert not is_large(payload)
    assert detailed(payload, ()) == tuple(range(MANY))
    assert len(rows(payload, "sources")) == len(rows(payload, "dropped")) == MANY
    assert len(rows(payload, "checks")) == 2 * MANY


def test_of_a_large_job_those_that_matter_come_first() -> None:
    payload = job(40)
    (first, *_) = _samples.findings()
    blamed = replace(first, ranks=(20, 21, 22), affected_ranks=(30, 31))
    made = tuple(bar(rank, 100 + rank, odd=rank == 39) for rank in range(40))
    # Two where the cause lies, one that loses; the odd one, which is the longest too; the median of the others; the
    # lowest.
    assert detailed(replace(payload, findings=(blamed,)), made) == (20, 21, 30, 39, 19, 0, 1, 2)
    gone = replace(first, ranks=(77,), affected_ranks=(78,))
    assert detailed(replace(payload, findings=(gone,)), ()) == tuple(range(DETAILED))


def test_many_findings_leave_room_for_a_usual_rank() -> None:
    payload = job(40)
    (first, *_) = _samples.findings()
    findings = tuple(replace(first, ranks=(rank,), affected_ranks=()) for rank in range(30, 40))
    made = tuple(bar(rank, 100.0 + rank) for rank in range(40))
    assert detailed(replace(payload, findings=findings), made) == (30, 31, 32, 33, 34, 35, 20, 39)


def test_files_and_checks_of_many_ranks_are_summed_up() -> None:
    payload = job(40)
    alone, together = sorted(rows(payload, "sources"), key=lambda row: str(row[0]), reverse=True)
    assert alone == ("r5/profiler_info_5.json", "5", "info", 2, 15, 5, "it is empty")
    size = sum(10 + rank for rank in range(40)) - 15
    assert together == ("39 x profiler_info_*.json", "0-4, 6-39", "info", 78, size, sum(range(40)) - 5, None)
    assert rows(payload, "dropped") == [("40 x profiler_info_*.json", "0-39", "last row is cut", sum(range(40)))]


def test_a_check_that_fails_on_one_rank_of_many_has_its_own_row() -> None:
    by_check = {(row[1], row[0]): row for row in rows(job(40), "checks")}
    assert len(by_check) == 3
    fails = by_check["time", words("check.differs").en]
    assert (fails[2], fails[3], fails[4]) == ("3", "5", "6")
    holds = by_check["kernels", words("check.holds").en]
    assert holds[2] == "0-39 (max: 19)"
    assert holds[5] == "-19"
    assert by_check["time", words("check.holds").en][2] == "0-2, 4-39 (max: 0)"


@pytest.mark.parametrize("count", [1, 64, 65, 1000])
def test_bars_keep_their_order_and_the_ranks_in_detail(count: int) -> None:
    made = tuple(bar(rank, 1.0, odd=rank == count - 2) for rank in range(count))
    kept = [one.rank for one in drawn(made, (count - 1,))]
    assert kept == sorted(set(kept), key=lambda rank: -1 if rank is None else rank)
    assert len(kept) == min(count, 64)
    assert count - 1 in kept


def test_what_an_analyzer_lacks_is_named_by_what_it_holds() -> None:
    """Names of our tables (host_ops) mean nothing to a reader; other reasons stay as they were written."""
    lacking = Outcome(
        analyzer="launch", status="no_data", rank=0,
        reason=Words("not in this data: kernels, host_ops", "数据中没有：kernels, host_ops"),
    )  # fmt: skip
    own = Outcome(analyzer="decode", status="no_data", rank=0, reason=Words("not in this data: spam", "没有 spam"))
    payload = replace(_samples.payload(), findings=(), outcomes=(lacking, own), broken={})

    def said(lang: Lang) -> list[Cell]:
        table = next(table for table in quality_tables(payload, lang) if table.name == "analyzers")
        return list(table.data[-1])

    assert said("en") == [
        "Not in this data: kernels of the device, framework operators on the host", "not in this data: spam"
    ]  # fmt: skip
    assert said("zh") == ["数据中没有：设备 Kernel、Host 侧框架算子", "没有 spam"]
