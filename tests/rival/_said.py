"""What an analysis says, in the forms that the tests of this folder compare."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ascend_perf.model.finding import Finding, Outcome, ResultTable
from ascend_perf.pipeline import Analysis, analyze

Row = dict[str, object]


@cache
def analysis_of(path: Path) -> Analysis:
    """The analysis of what lies at a path; tests only read it."""
    return analyze(path)


def verdicts(analysis: Analysis, code: str) -> set[str]:
    """What the analyzers said of a row of the troubleshooting table: found, clean, not_judged; empty if nothing."""
    return {j.verdict for o in analysis.outcomes for j in o.judged if j.code == code}


def findings(analysis: Analysis, code: str) -> list[Finding]:
    """The findings of a row, merged over ranks."""
    return [f for f in analysis.findings if f.code == code]


def codes(analysis: Analysis) -> set[str]:
    """Rows with a finding."""
    return {f.code for f in analysis.findings}


def said(outcome: Outcome, code: str) -> tuple[list[Finding], set[str]]:
    """Findings and verdicts of a row in one outcome."""
    return [f for f in outcome.findings if f.code == code], {j.verdict for j in outcome.judged if j.code == code}


def rows(outcomes: tuple[Outcome, ...] | list[Outcome], name: str, rank: int | None = None) -> list[Row]:
    """Rows of a result table by its name; of one rank, or of the first outcome that has it."""
    for outcome in outcomes:
        for table in outcome.tables:
            if table.name == name and (rank is None or outcome.rank == rank):
                return _rows(table)
    raise AssertionError(f"no table {name}")


def _rows(table: ResultTable) -> list[Row]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*table.data, strict=True)]


def number(value: object) -> float:
    """A cell that holds a number."""
    assert isinstance(value, int | float)
    return float(value)
