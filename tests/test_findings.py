"""Findings of many analyzers and ranks become one list: nothing twice, equal ones joined, the largest first."""

from __future__ import annotations

from dataclasses import replace

from ascend_perf.findings import all_findings, merge_findings, rank_findings
from ascend_perf.model.finding import Evidence, Finding, Outcome, Severity, Words


def finding(code: str, share: float | None, rank: int, subject: str = "", severity: Severity = Severity.LOW) -> Finding:
    return Finding(
        code=code, analyzer="a", title=Words(f"{code} {share}", "中"), severity=severity, share_ratio=share,
        evidence=(Evidence(name=Words("n", "名"), value=1),), remedies=(), cause=Words("c", "因"), ranks=(rank,),
        affected_ranks=(rank,), subject=subject,
    )  # fmt: skip


def test_one_finding_for_all_ranks_and_the_worst_speaks() -> None:
    merged = merge_findings(
        [finding("N-05", 0.2, 1), finding("N-05", 0.6, 0), finding("N-05", 0.1, 2, subject="other")]
    )
    assert [(f.title.en, f.ranks, f.affected_ranks) for f in merged] == [
        ("N-05 0.6", (0, 1), (0, 1)),
        ("N-05 0.1", (2,), (2,)),
    ]


def test_findings_are_ranked_by_what_they_can_give() -> None:
    ranked = rank_findings(
        [
            finding("A", 0.1, 0),
            finding("B", 0.7, 0),
            finding("C", None, 0),
            finding("D", None, 0, severity=Severity.CRITICAL),
        ]
    )
    assert [f.code for f in ranked] == ["B", "A", "D", "C"]


def outcome(*found: Finding, index: int | None = None) -> Outcome:
    scope = "job" if index is None else "rank"
    return Outcome(analyzer="a", status="done", trace_index=index, scope=scope, findings=found)  # type: ignore[arg-type]


def late(rank: int, affected: tuple[int, ...], share: float) -> Finding:
    return replace(finding("N-05", share, rank), affected_ranks=affected)


def exposed(rank: int, share: float) -> Finding:
    return replace(finding("N-01", share, rank), may_hold=("N-05",))


def test_waiting_that_the_job_explains_is_not_claimed_as_communication_too() -> None:
    found = all_findings(
        [
            outcome(exposed(0, 0.40), index=0),
            outcome(exposed(1, 0.24), index=1),
            outcome(exposed(2, 0.15), index=2),  # the late rank itself waits for nobody
            outcome(late(2, (0, 1), 0.23)),
        ]
    )

    # rank 0: 0.40 - 0.23; rank 1: 0.24 - 0.23 is below what is worth a line; rank 2 keeps its 0.15
    said = [(f.code, round(f.share_ratio or 0, 2), f.ranks) for f in found]
    assert said == [
        ("N-05", 0.23, (2,)),
        ("N-01", 0.17, (0, 2)),
    ]
    assert "23 % of the step is the waiting of N-05" in found[1].title.en
    assert found[1].evidence[-1].value == 0.23


def test_a_rank_that_told_its_waiting_apart_itself_is_left_alone() -> None:
    found = all_findings([outcome(exposed(0, 0.40), late(5, (0,), 0.30), index=0), outcome(late(5, (0, 1), 0.35))])
    assert [(f.code, f.share_ratio) for f in found] == [("N-01", 0.40), ("N-05", 0.35)]


def test_what_holds_for_one_rank_is_not_said_of_all() -> None:
    merged = merge_findings([finding("H-01", share, rank) for rank, share in enumerate((0.33, 0.33, 0.55, 0.32, 0.34))])
    assert [(f.ranks, f.share_ratio) for f in merged] == [((2,), 0.55), ((0, 1, 3, 4), 0.34)]


def test_two_ranks_are_joined_however_they_differ() -> None:
    merged = merge_findings([finding("H-01", 0.1, 0), finding("H-01", 0.5, 1)])
    assert [(f.ranks, f.share_ratio) for f in merged] == [((0, 1), 0.5)]


def test_both_ends_of_a_slow_link_lose_its_time() -> None:
    small = replace(finding("N-02", 0.20, 0), may_hold=("N-06",))
    link = replace(finding("N-06", 0.19, 0), ranks=(0, 1), affected_ranks=(0, 1))
    assert [f.code for f in all_findings([outcome(small, index=0), outcome(link)])] == ["N-06"]
