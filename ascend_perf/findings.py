"""One list of findings from many analyzers and ranks: nothing claimed twice, equal ones joined, the largest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from ascend_perf.gains import with_added
from ascend_perf.model.finding import Evidence, Finding, HeldUp, Outcome, Severity, Words, severity_of
from ascend_perf.units import format_ratio

MIN_REST_RATIO: Final = 0.03
"""What is left of a finding after others explained the rest is not worth a line below this share. Source: the table's
border between low and medium severity."""

OUTLIER_FACTOR: Final = 1.25
"""Ranks that lose this much more than the median rank are a finding of their own. Status: assumed."""

MIN_OUTLIER_RANKS: Final = 3
"""With fewer ranks there is no median to speak of."""


def all_findings(outcomes: Iterable[Outcome]) -> tuple[Finding, ...]:
    """The findings of a report: settled, merged over ranks, ranked, and each with what it adds to those before it."""
    return with_added(rank_findings(merge_findings(settle(list(outcomes)))))


def settle(outcomes: Sequence[Outcome]) -> list[Finding]:
    """All findings, those of single ranks without the time that findings about the whole job explain.

    Seen from one rank a long collective is exposed communication; only all ranks together show that it is waiting for
    a late one. A finding that says so of itself (`may_hold`) gives that share up to the job's finding, unless the
    rank's own data told the waiting apart already.
    """
    of_job = [
        # The late rank itself does not wait; the ends of a slow link both do.
        (f, frozenset(f.affected_ranks) - frozenset(f.ranks) or frozenset(f.affected_ranks))
        for o in outcomes
        if o.scope == "job"
        for f in o.findings
        if f.share_ratio is not None
    ]
    told = {(o.trace_index, f.code) for o in outcomes if o.scope == "rank" for f in o.findings}
    held_up: dict[tuple[str, int], list[HeldUp]] = {}
    for outcome in outcomes:
        for held in outcome.held_up:
            held_up.setdefault((held.code, held.waiter), []).append(held)
    settled: list[Finding] = []
    for outcome in outcomes:
        if outcome.scope == "job":
            settled += outcome.findings
            continue
        for finding in outcome.findings:
            explaining = [
                other
                for other, affected in of_job
                if other.code in finding.may_hold
                and not affected.isdisjoint(finding.affected_ranks)
                and (outcome.trace_index, other.code) not in told
            ]
            rest = _without(finding, explaining)
            if rest is not None:
                settled.append(_of_its_cause(rest, held_up))
    return settled


def _of_its_cause(finding: Finding, held_up: Mapping[tuple[str, int], Sequence[HeldUp]]) -> Finding:
    """The finding with the ranks that made the blamed ones late in their place, where the job tells them.

    Args:
        finding: of one rank.
        held_up: what the job tells, by code and waiting rank.
    """
    mine = {
        held.late: held
        for rank in finding.affected_ranks
        for held in held_up.get((finding.code, rank), ())
        if held.late in finding.ranks
    }
    if not mine:
        return finding
    ranks = tuple(sorted({mine[rank].by if rank in mine else rank for rank in finding.ranks}))
    notes = [mine[rank].note for rank in sorted(mine)]
    note = Words("; ".join(n.en for n in notes), "；".join(n.zh for n in notes))
    return replace(
        finding,
        ranks=ranks,
        subject=f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}",
        title=Words(f"{finding.title.en}; {note.en}", f"{finding.title.zh}；{note.zh}"),
        cause=Words(
            f"{note.en[:1].upper()}{note.en[1:]}: look there first. {finding.cause.en}",
            f"{note.zh}：请先从那里查起。{finding.cause.zh}",
        ),
    )


def _without(finding: Finding, explaining: Sequence[Finding]) -> Finding | None:
    """The finding less the largest of the findings that explain part of it; None when too little is left."""
    if finding.share_ratio is None or not explaining:
        return finding
    largest = max(explaining, key=lambda f: f.share_ratio or 0.0)
    explained = min(finding.share_ratio, largest.share_ratio or 0.0)
    rest = finding.share_ratio - explained
    if rest < MIN_REST_RATIO:
        return None
    part = format_ratio(explained)
    return replace(
        finding,
        share_ratio=rest,
        claims=tuple(replace(c, gain_ns=c.gain_ns * rest / finding.share_ratio) for c in finding.claims),
        severity=severity_of(rest),
        title=Words(
            f"{finding.title.en}; {part} of the step is the waiting of {largest.code}",
            f"{finding.title.zh}；其中占单步 {part} 的是 {largest.code} 所述的等待",
        ),
        evidence=(
            *finding.evidence,
            Evidence(
                name=Words(f"of this, explained by {largest.code}", f"其中由 {largest.code} 解释"),
                value=explained,
                unit="ratio",
                where=f"finding {largest.code}, share of the step",
            ),
        ),
        formula=f"{finding.formula} - share of {largest.code}",
    )


def merge_findings(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each code and subject: the rank that loses most speaks, ranks are joined.

    Ranks that lose much more than the others are a finding of their own: what holds for one rank of eight is not said
    of all eight.
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.subject), []).append(finding)
    merged = []
    for group in groups.values():
        merged += [_joined(part) for part in _apart(group) if part]
    return merged


def _apart(group: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The outliers of a group, and the rest."""
    shares = [f.share_ratio for f in group if f.share_ratio is not None]
    own = all(f.ranks == f.affected_ranks and len(f.ranks) == 1 for f in group)
    if len(shares) < max(MIN_OUTLIER_RANKS, len(group)) or not own:
        return list(group), []
    usual = median(shares)
    limit = max(OUTLIER_FACTOR * usual, usual + MIN_REST_RATIO)
    far = [f for f in group if (f.share_ratio or 0) > limit]
    return far, [f for f in group if (f.share_ratio or 0) <= limit]


def _joined(group: Sequence[Finding]) -> Finding:
    worst = max(group, key=lambda f: -1.0 if f.share_ratio is None else f.share_ratio)
    ranks = tuple(sorted({r for f in group for r in f.ranks}))
    affected = tuple(sorted({r for f in group for r in f.affected_ranks}))
    claims = tuple(claim for finding in group for claim in finding.claims)
    return replace(worst, ranks=ranks, affected_ranks=affected, claims=claims)


_ORDER: Final = {Severity.CRITICAL: 0, Severity.HIGH: 1, Severity.MEDIUM: 2, Severity.LOW: 3}


def rank_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by what they could give at most; those without a share follow by severity."""
    return tuple(
        sorted(
            findings,
            key=lambda f: (
                f.share_ratio is None and _ORDER[f.severity] > 1,
                -(f.share_ratio if f.share_ratio is not None else 0.0),
                _ORDER[f.severity],
                f.code,
                f.subject,
            ),
        )
    )
