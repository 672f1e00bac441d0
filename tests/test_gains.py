"""What findings give together: checked against a step that is a list of single nanoseconds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import intervals
from ascend_perf.findings import all_findings
from ascend_perf.gains import together, with_added
from ascend_perf.model.finding import Claim, Evidence, Finding, Outcome, Severity, Words

WHOLE_NS = 60


def claim(rank: int, ranges: list[tuple[int, int]], gain_ns: float, whole_ns: int = WHOLE_NS) -> Claim:
    starts = np.array([r[0] for r in ranges], np.int64)
    ends = np.array([r[1] for r in ranges], np.int64)
    return Claim(rank=rank, where=intervals.merged(starts, ends), gain_ns=gain_ns, whole_ns=whole_ns)


def finding(code: str, share: float | None, *claims: Claim, ranks: tuple[int, ...] = (0,)) -> Finding:
    return Finding(
        code=code, analyzer="a", title=Words(code, "中"), severity=Severity.LOW, share_ratio=share,
        evidence=(Evidence(name=Words("n", "名"), value=1),), remedies=(), cause=Words("c", "因"), ranks=ranks,
        affected_ranks=ranks, claims=claims,
    )  # fmt: skip


def added(*findings: Finding) -> list[float | None]:
    return [None if f.added_ratio is None else round(f.added_ratio, 9) for f in with_added(findings)]


def test_the_same_time_counts_once() -> None:
    first = finding("A", 0.5, claim(0, [(0, 30)], 30))
    second = finding("B", 0.5, claim(0, [(15, 45)], 30))
    assert added(first, second) == [0.5, 0.25]


def test_a_part_of_a_kernel_leaves_the_rest_to_others() -> None:
    # Half of each ns of the first 30 is taken; a second finding may still have the other half, not more.
    first = finding("A", 0.25, claim(0, [(0, 30)], 15))
    second = finding("B", 0.4, claim(0, [(0, 30)], 24))
    assert added(first, second) == [0.25, 0.25]


def test_ranks_have_clocks_of_their_own() -> None:
    first = finding("A", 0.5, claim(0, [(0, 30)], 30))
    second = finding("B", 0.3, claim(0, [(30, 48)], 18), claim(1, [(0, 12)], 12), ranks=(0, 1))
    # Rank 0: 30 + 18 of 60 ns; rank 1 only 12.
    assert added(first, second) == [0.5, 0.3]


def test_another_rank_raises_the_bound_only_beyond_the_first() -> None:
    first = finding("A", 0.5, claim(0, [(0, 30)], 30))
    second = finding("B", 0.4, claim(1, [(0, 24)], 24), ranks=(1,))
    third = finding("C", 0.2, claim(1, [(24, 36)], 12), ranks=(1,))
    listed = with_added([first, second, third])
    assert [round(f.added_ratio or 0, 9) for f in listed] == [0.5, 0.0, 0.1]
    assert [f.is_overlapped for f in listed] == [False, True, True]


def test_time_between_the_steps_is_part_of_the_whole() -> None:
    # 30 of a step of 60 ns, and 20 of 80 ns with what lies before it: 50 of 80 together.
    first = finding("A", 0.5, claim(0, [(20, 50)], 30))
    second = finding("B", 0.25, claim(0, [(0, 20)], 20, whole_ns=80))
    listed = with_added([first, second])
    assert [f.added_ratio for f in listed] == [0.375, 0.25]
    assert [f.is_overlapped for f in listed] == [False, False]


def test_what_is_not_placed_takes_what_the_step_has_left() -> None:
    first = finding("A", 0.7, claim(0, [(0, 42)], 42))
    assert added(first, finding("B", None), finding("C", 0.5)) == [0.7, None, 0.3]


def test_ranks_do_not_add_up() -> None:
    first = finding("A", 0.7, claim(0, [(0, 42)], 42))
    second = finding("B", 0.6, claim(1, [(0, 36)], 36), ranks=(1,))
    listed = with_added([first, second])
    assert [f.added_ratio for f in listed] == [0.7, 0.0]
    assert together(listed) == 0.7


def test_a_finding_that_gave_a_part_to_another_claims_less() -> None:
    from dataclasses import replace

    exposed = replace(finding("N-01", 0.4, claim(0, [(0, 24)], 24)), may_hold=("N-05",))
    late = replace(finding("N-05", 0.3, claim(0, [(0, 18)], 18)), ranks=(1,))
    found = all_findings(
        [
            Outcome(analyzer="a", status="done", rank=0, trace_index=0, findings=(exposed,)),
            Outcome(analyzer="b", status="done", scope="job", findings=(late,)),
        ]
    )
    # 0.1 of the 0.4 is left to N-01, evenly over 24 ns: 6 / 24 of each; N-05 left none of the first 18
    assert [(f.code, round(f.added_ratio or 0, 9)) for f in found] == [("N-05", 0.3), ("N-01", round(1.5 / 60, 9))]


RANGES = st.lists(
    st.tuples(st.integers(0, WHOLE_NS - 1), st.integers(1, 30)).map(lambda r: (r[0], min(WHOLE_NS, sum(r)))),
    min_size=1, max_size=5,
)  # fmt: skip


@given(st.lists(st.tuples(RANGES, st.integers(1, 8)), min_size=1, max_size=6))
def test_like_counting_each_nanosecond(parts: list[tuple[list[tuple[int, int]], int]]) -> None:
    free = [Fraction(1)] * WHOLE_NS
    findings, expected = [], []
    for ranges, eighths in parts:
        inside = sorted({ns for start, end in ranges for ns in range(start, end)})
        density = Fraction(eighths, 8)
        got = Fraction(0)
        for ns in inside:
            part = min(density, free[ns])
            free[ns] -= part
            got += part
        gain = density * len(inside)
        findings.append(finding("A", float(gain / WHOLE_NS), claim(0, ranges, float(gain))))
        expected.append(float(got / WHOLE_NS))
    listed = with_added(findings)
    assert np.allclose([f.added_ratio or 0.0 for f in listed], expected, atol=1e-9)
    assert together(listed) <= 1.0
    assert all((f.added_ratio or 0) <= (f.share_ratio or 0) + 1e-9 for f in listed)
