"""Rows of the troubleshooting table over all ranks: found, clean, or not judged and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from ascend_perf.model.finding import Words
from ascend_perf.reports.payload import Payload

Verdict = Literal["found", "clean", "not_judged"]

_WEIGHT: Final = {"found": 2, "clean": 1, "not_judged": 0}


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """One row ID, its verdict over all ranks, and the reason when it could not be judged.

    Found on any rank is found. Not judged on one rank and clean on another is clean for `ranks` only. Where an analyzer
    that judges the row was left out or crashed, it is not clean, whatever others say.
    """

    code: str
    verdict: Verdict
    reason: Words | None
    ranks: list[int]
    analyzer: str


def judged_rows(payload: Payload) -> tuple[JudgedRow, ...]:
    """One row per row ID, in order of the IDs. A row that is among the findings counts as found."""
    rows: dict[str, JudgedRow] = {}
    for outcome in payload.outcomes:
        for judged in outcome.judged:
            known = rows.get(judged.code)
            if known is not None and _WEIGHT[known.verdict] > _WEIGHT[judged.verdict]:
                continue
            ranks = known.ranks if known is not None and known.verdict == judged.verdict else []
            if outcome.rank is not None:
                ranks.append(outcome.rank)
            reason = judged.reason or (known.reason if known and known.verdict == judged.verdict else None)
            rows[judged.code] = JudgedRow(
                code=judged.code, verdict=judged.verdict, reason=reason, ranks=ranks, analyzer=outcome.analyzer
            )
    for outcome in payload.outcomes:
        for judged in outcome.judged if outcome.status in ("left_out", "failed") else ():
            if rows[judged.code].verdict == "clean":
                rows[judged.code] = JudgedRow(
                    code=judged.code, verdict="not_judged", reason=judged.reason, ranks=[], analyzer=outcome.analyzer
                )
    for finding in payload.findings:
        rows[finding.code] = JudgedRow(
            code=finding.code, verdict="found", reason=None, ranks=list(finding.ranks), analyzer=finding.analyzer
        )
    return tuple(replace(rows[code], ranks=sorted(set(rows[code].ranks))) for code in sorted(rows))
