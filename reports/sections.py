"""The sections of a report: their order, what belongs in each, and how each one stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.plugins import load_analyzers
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.payload import Payload

Standing = Literal["finding", "clean", "no_data", "failed", "left_out", "info"]

ORDER: Final = (
    "steps", "timeline", "operators", "mac", "dma", "communication", "host", "memory", "aipp", "ranks", "more",
    "quality", "method",
)  # fmt: skip
"""Sections from top to bottom. `more` takes what no other section claims (analyzers of plug-ins)."""

SECTION_OF_TABLE: Final[Mapping[str, str]] = {
    "steps": "steps",
    "step-bar": "steps",
    "timeline": "timeline",
    "top-kernels": "operators",
    "op-types": "operators",
    "core-types": "operators",
    "roofline": "mac",
    "roofs": "mac",
    "mac": "mac",
    "dma": "dma",
    "copies": "dma",
    "comm-ops": "communication",
    "comm-groups": "communication",
    "comm-waits": "communication",
    "comm-links": "communication",
    "packets": "communication",
    "counter-timeline": "timeline",
    "idle-gaps": "host",
    "idle-causes": "host",
    "launch": "host",
    "flame-host": "host",
    "memory-timeline": "memory",
    "memory-peaks": "memory",
    "training-series": "more",
    "aipp-stages": "aipp",
    "ranks": "ranks",
    "rank-clusters": "ranks",
    "collectives": "ranks",
    "rank-waits": "ranks",
    "clock-offsets": "ranks",
    "expert-load": "ranks",
    "link-matrix": "communication",
}
"""Home of each result table that the report knows by name (docs/report-data.md)."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A result table, the rank it is about (None: the job, or a trace that names no rank), and its analyzer."""

    rank: int | None
    scope: Literal["rank", "job"]
    analyzer: str
    table: ResultTable


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why something is not in this section."""

    analyzer: str
    rank: int | None
    status: str
    text: Words


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section: how it stands, its findings (numbers from 1), its tables, and what is not there and why."""

    key: str
    standing: Standing
    findings: tuple[int, ...]
    tables: tuple[Placed, ...]
    reasons: tuple[Reason, ...]


def sections(payload: Payload) -> tuple[Section, ...]:
    """All sections in order; `more` only when something is in it."""
    made = (_section(payload, key) for key in ORDER)
    return tuple(s for s in made if s.key != "more" or s.findings or s.tables or s.reasons)


def section_of(analyzer: str) -> str:
    """The section that an analyzer names for itself; `more` when it names none of ours."""
    section = _homes().get(analyzer, "more")
    return section if section in ORDER else "more"


@cache
def _homes() -> dict[str, str]:
    return {name: part.section for name, part in load_analyzers().parts.items()}


def section_of_table(table: str, analyzer: str) -> str:
    """The section of a result table: by its name, else where its analyzer lives."""
    return SECTION_OF_TABLE.get(table) or section_of(analyzer)


def _section(payload: Payload, key: str) -> Section:
    numbers = tuple(n for n, f in enumerate(payload.findings, 1) if section_of(f.analyzer) == key)
    tables = tuple(
        Placed(rank=outcome.rank, scope=outcome.scope, analyzer=outcome.analyzer, table=table)
        for outcome in payload.outcomes
        for table in outcome.tables
        if len(table) and section_of_table(table.name, outcome.analyzer) == key
    )
    mine = [outcome for outcome in payload.outcomes if section_of(outcome.analyzer) == key]
    reasons = [
        Reason(analyzer=o.analyzer, rank=o.rank, status=o.status, text=o.reason or words("reason.none_given"))
        for o in mine
        if o.status != "done"
    ]
    broken = [name for name in payload.broken if section_of(name.replace("_", "-")) == key]
    reasons += [
        Reason(analyzer=name, rank=None, status="failed", text=words("reason.broken", why=payload.broken[name]))
        for name in broken
    ]
    done = any(outcome.status == "done" for outcome in mine)
    return Section(
        key=key,
        standing=_standing(key, bool(numbers), done or bool(tables), reasons, payload),
        findings=numbers,
        tables=tables,
        reasons=tuple(reasons) or _nothing(key, bool(tables) or done),
    )


def _nothing(key: str, filled: bool) -> tuple[Reason, ...]:
    if filled or key in ("quality", "method", "more"):
        return ()
    return (Reason(analyzer="", rank=None, status="no_data", text=words(f"reason.{key}")),)


def _standing(key: str, found: bool, filled: bool, reasons: list[Reason], payload: Payload) -> Standing:
    if key == "method":
        return "info"
    if key == "quality":
        return "finding" if _doubtful(payload) else "clean"
    if found:
        return "finding"
    if any(reason.status == "failed" for reason in reasons):
        return "failed"
    if any(reason.status == "left_out" for reason in reasons):
        return "left_out"  # what others say of the section is not the whole of it
    return "clean" if filled else "no_data"


def _doubtful(payload: Payload) -> bool:
    """Whether the data asks for a second look: dropped rows, unreadable files, checks that do not hold, failures."""
    return (
        any(item.source.dropped or item.source.is_unusable for item in payload.sources)
        or any(not check.holds for rank in payload.ranks for check in rank.meta.checks)
        or any(rank.meta.warnings for rank in payload.ranks)
        or any(outcome.status == "failed" for outcome in payload.outcomes)
        or bool(payload.broken or payload.broken_readers)
    )
