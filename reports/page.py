"""The document embedded in `report.html`: columns with interned text, both languages, times from the step's start.

JavaScript numbers hold integers up to 2^53 only, and time stamps in ns since 1970 are beyond that: absolute times
become offsets from the rank's origin here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ascend_perf.model.cells import TextCells
from ascend_perf.model.finding import Cell, Evidence, Finding, ResultColumn, ResultTable, Words
from ascend_perf.model.table import NULL
from ascend_perf.reports.bars import Bar, bars
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.judged import judged_rows
from ascend_perf.reports.overview import Overview, Row, Strip, overview
from ascend_perf.reports.packed import packed
from ascend_perf.reports.parts import kinds
from ascend_perf.reports.payload import Payload, RankPages, finite
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.quality import quality_tables
from ascend_perf.reports.sections import Placed, Section, section_of, sections
from ascend_perf.reports.shown import DETAILED, chosen, drawn
from ascend_perf.reports.texts import Json, pair, safe
from ascend_perf.reports.timelines import TIMELINE, coarser, ints, is_timeline, ordered, text
from ascend_perf.reports.verdict import Tile, added, all_together, doubts, facts, gain, ranges, spread, tiles, verdict

PAGE_SCHEMA: Final = 1
"""Version of the embedded document; private to the page."""

BUDGET_BYTES: Final = 5_500_000
"""Tables are thinned until their JSON fits: the file must stay under 8 MB with scripts and room to spare."""

ONE_RANK_BYTES: Final = 2_400_000
"""The same for a single rank, whose page stays under 3 MB."""

TIMELINES: Final = DETAILED
"""Ranks whose timeline and flame graphs are embedded: all that are shown in detail."""

TIMELINE_BYTES: Final = 900_000
"""One timeline takes at most this; it is merged further until it does."""

TIMELINES_BYTES: Final = 3_200_000
"""All of them together."""

SAFE_INTEGER: Final = 2**53 - 1

_CLOCK_COLUMNS: Final = frozenset({"end_ns", "peak_at_ns", "alloc_ns"})
"""Columns on the trace's clock, beside those that end in `start_ns` and the time of `memory-timeline`."""

PHRASE_COLUMNS: Final = frozenset(
    {
        "component", "cause", "kind", "quantity", "source", "bound", "pipe", "roof", "basis", "confidence", "class",
        "lane", "stage", "where", "taken_by", "skew_from", "parallel_from", "ranks", "src", "dst", "op_type", "state",
        "gradient", *(f"kind_{letter}" for letter in "BCDEFGH"),
    }
)  # fmt: skip
"""Columns that hold fixed phrases of ours; the text of all others comes from the trace and stays as it is."""

OWN_NAMES: Final = {"name": re.compile(r"rank \d+")}
"""Texts of ours in columns whose other text comes from the trace: a change of the job can be of a rank."""

SAID_AS: Final = {"op_type": "class", **{f"kind_{letter}": "kind" for letter in "BCDEFGH"}}
"""Where a trace names no types of operators, the column holds classes; they are said like those. A comparison of
several sides has a column of verdicts for each."""


def page(payload: Payload) -> dict[str, Json]:
    """Everything that the page draws."""
    origins = {rank.rank: rank.origin_ns for rank in payload.ranks}
    span = spread(payload.figures("span_us"))
    said = verdict(payload)
    made = sections(payload)
    every = bars(payload)
    in_detail = chosen(payload, every)
    details = tuple(item.rank for item in in_detail)
    tables, cut = _tables(payload, made, origins, details)
    return {
        "schema": PAGE_SCHEMA,
        "lang": payload.lang,
        "id": _identity(payload),
        "label": safe(payload.label),
        "generator": f"ascend-perf {payload.version}",
        "origin": payload.data_origin,
        "words": {"en": dict(catalogue("en")), "zh": dict(catalogue("zh"))},
        "verdict": {"lead": pair(said.lead), "main": pair(said.main), "gain": _pair(said.gain), "clean": said.is_clean},
        "doubts": _pair(doubts(payload)),
        "facts": [[pair(fact.label), pair(fact.value)] for fact in facts(payload)],
        "tiles": [_tile(tile) for tile in tiles(payload)],
        "bars": [_bar(bar) for bar in drawn(every, details)],
        "ranks": [rank.rank for rank in payload.ranks],
        "chosen": [{"rank": item.rank, "why": _pair(item.why)} for item in in_detail],
        "job": _job(overview(payload, every)),
        "pages": _pages(payload.pages),
        "focus": _focus(payload, details),
        "findings": [
            _finding(finding, payload, origins, gain(finding, span), added(finding))
            for finding in payload.findings
        ],
        "together": _pair(all_together(payload.findings)),
        "rules": {code: pair(title) for code, title in payload.rules.items()},
        "judged": [
            {"code": row.code, "verdict": row.verdict, "reason": _pair(row.reason), "ranks": [*row.ranks]}
            for row in judged_rows(payload)
        ],
        "sections": [_section(section) for section in made],
        "tables": tables,
        "cut": cut,
    }  # fmt: skip


def _pair(text: Words | None) -> Json:
    return None if text is None else pair(text)


def _sentence(text: str) -> Json:
    """Plain text of an analyzer in both languages; empty stays empty."""
    return pair(phrase(text)) if text else ""


def _identity(payload: Payload) -> str:
    """A short id of the content, so that the page's remembered state is its own."""
    text = repr([(f.code, f.title.en) for f in payload.findings]) + payload.label
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _tile(tile: Tile) -> Json:
    return {
        "key": tile.key,
        "label": pair(tile.label),
        "value": pair(tile.value),
        "note": pair(tile.note),
        "hint": pair(tile.hint),
        "share": finite(tile.share_ratio),
        "healthy": None if tile.healthy is None else [*tile.healthy],
        "state": tile.state,
    }


def _bar(bar: Bar) -> Json:
    return {
        "rank": bar.rank,
        "total_ns": finite(bar.total_ns),
        "outlier": bar.is_outlier,
        "parts": [
            {"label": pair(part.label), "kind": part.kind, "ns": finite(part.time_ns), "section": part.section}
            for part in bar.parts
        ],
    }


def _focus(payload: Payload, details: Sequence[int | None]) -> int | None:
    """The rank that the page shows first: one in detail that the first finding is about."""
    for finding in payload.findings[:1]:
        for rank in (*finding.affected_ranks, *finding.ranks):
            if rank in details:
                return rank
    return details[0] if details else None


def _job(found: Overview | None) -> Json:
    """The job at a glance, and the strip of ranks."""
    if found is None:
        return None
    return {
        "facts": [[pair(fact.label), pair(fact.value)] for fact in found.facts],
        "waits": _pair(found.waits),
        "strip": None if found.strip is None else _strip(found.strip),
    }


def _strip(strip: Strip) -> Json:
    return {"ranks": [*strip.ranks], "stages": [*strip.stages], "rows": [_strip_row(row) for row in strip.rows]}


def _strip_row(row: Row) -> Json:
    """Times in whole ns; scores to a tenth; the places of ranks that stand out."""
    return {
        "key": row.key,
        "label": pair(row.label),
        "kind": row.kind,
        "ns": [None if time is None else round(time) for time in row.times_ns],
        "z": [None if score is None else round(score.z, 1) for score in row.scores],
        "odd": [place for place, score in enumerate(row.scores) if score is not None and score.is_odd],
    }


def _pages(pages: RankPages | None) -> Json:
    return None if pages is None else {"ranks": [*pages.ranks], "of": pages.of, "is_rank": pages.is_rank}


def _finding(
    finding: Finding,
    payload: Payload,
    origins: Mapping[int | None, int | None],
    bound: Words | None,
    beyond: Words | None,
) -> Json:
    home, bands = _times(finding, payload, origins)
    return {
        "code": finding.code,
        "section": section_of(finding.analyzer),
        "analyzer": finding.analyzer,
        "severity": finding.severity.value,
        "title": pair(finding.title),
        "cause": pair(finding.cause),
        "confirm": _pair(finding.confirm),
        "gain": _pair(bound),
        "added": _pair(beyond),
        "share": finite(finding.share_ratio),
        "ranks": [*finding.ranks],
        "affected": [*finding.affected_ranks],
        "evidence": [_evidence(item, home, origins.get(home)) for item in finding.evidence],
        "remedies": [{"text": pair(item.text), "code": safe(item.code)} for item in finding.remedies],
        "formula": _sentence(finding.formula),
        "source": _sentence(finding.source),
        "bands": [
            {"rank": rank, "start": start - origin, "end": end - origin}
            for rank, windows in bands
            if (origin := origins.get(rank)) is not None
            for start, end in windows
        ],
    }


_Bands = tuple[tuple[int, int], ...]


def _times(
    finding: Finding, payload: Payload, origins: Mapping[int | None, int | None]
) -> tuple[int | None, list[tuple[int | None, _Bands]]]:
    """The rank whose clock the evidence is on, and the windows of each rank.

    A finding that was merged over ranks keeps the evidence of one of them; the windows of each lie in its outcome.
    """
    same = [
        (outcome, found)
        for outcome in payload.outcomes
        for found in outcome.findings
        if (found.code, found.subject) == (finding.code, finding.subject)
    ]
    own = [(outcome.rank, found) for outcome, found in same if outcome.scope == "rank"]
    if own:
        home = next((rank for rank, found in own if found.evidence == finding.evidence), own[0][0])
        return home, [(rank, found.bands) for rank, found in own]
    known: list[int | None] = [*finding.affected_ranks, *finding.ranks]
    about = [rank for rank in known if origins.get(rank) is not None]
    home = about[0] if about else next((rank for rank, origin in origins.items() if origin is not None), None)
    return home, [(rank, finding.bands) for rank in about or [home]]


def _evidence(item: Evidence, rank: int | None, origin_ns: int | None) -> Json:
    at = None if item.start_ns is None or origin_ns is None else item.start_ns - origin_ns
    value: Cell = safe(item.value) if isinstance(item.value, str) else finite(item.value)
    return {
        "name": pair(item.name),
        "value": value,
        "unit": item.unit,
        "where": _sentence(item.where),
        "at": at if at is None or abs(at) <= SAFE_INTEGER else None,
        "rank": rank,
    }


def _section(section: Section) -> Json:
    return {
        "key": section.key,
        "standing": section.standing,
        "findings": [*section.findings],
        "reasons": [
            {"analyzer": analyzer, "ranks": on, "status": status, "text": pair(text)}
            for (analyzer, status, text), on in _reasons(section).items()
        ],
    }


def _reasons(section: Section) -> dict[tuple[str, str, Words], list[Json]]:
    """The ranks of each reason; equal ones of many ranks are one."""
    found: dict[tuple[str, str, Words], list[Json]] = {}
    for reason in section.reasons:
        found.setdefault((reason.analyzer, reason.status, reason.text), []).append(reason.rank)
    return found


def _tables(
    payload: Payload,
    made: Sequence[Section],
    origins: Mapping[int | None, int | None],
    details: Sequence[int | None],
) -> tuple[list[Json], list[Json]]:
    """Packed tables within the budget, and what was left out or shortened."""
    near = {rank: place for place, rank in enumerate(details)}
    every = [(section.key, item) for section in made for item in section.tables]
    placed = [pair_ for pair_ in every if pair_[1].scope == "job" or pair_[1].rank in near]
    placed.sort(key=lambda pair_: _importance(pair_[1], near))
    packed: list[Json] = []
    cut = _ranks_left_out(every, near)
    room = BUDGET_BYTES if len(near) > 1 else ONE_RANK_BYTES
    large: dict[str, set[int | None]] = {}
    timelines = len({item.rank for _, item in placed if item.table.name == TIMELINE})
    share = min(TIMELINE_BYTES, TIMELINES_BYTES // max(1, min(TIMELINES, timelines)))
    for section, item in placed:
        seen = large.setdefault(item.table.name, set()) if _is_large(item.table.name) else set()
        seen.add(item.rank)
        limit = 0 if len(seen) > TIMELINES else min(room, share) if item.table.name == TIMELINE else room
        made_table, kept, size = _fitted(section, item, origins.get(item.rank), limit)
        if kept != len(item.table):
            cut.append({"section": section, "text": _pair(_note_of_cut(item, kept))})
        if made_table is not None:
            room -= size
            packed.append(made_table)
    packed += _quality(payload)
    return packed, cut


def _is_large(table: str) -> int:
    """Rank of the tables that are drawn as pictures of many rows: timelines, then flame graphs; 0 for all others."""
    return 2 if table.startswith("flame-") else int(table == "timeline")


def _importance(item: Placed, near: Mapping[int | None, int]) -> tuple[bool, int, int]:
    """Sort key: tables of the job, then small tables before big ones, then ranks of the findings before others."""
    return item.scope == "rank", _is_large(item.table.name), near.get(item.rank, 0)


def _ranks_left_out(every: Sequence[tuple[str, Placed]], near: Mapping[int | None, int]) -> list[Json]:
    """The ranks whose tables are not in the page: said once, in the first section that lacks some."""
    left = [(section, item.rank) for section, item in every if item.scope == "rank" and item.rank not in near]
    ranks = {rank for _, rank in left if rank is not None}
    if not ranks:
        return []
    shown = ranges(rank for rank in near if rank is not None)
    text = words("cut.ranks", shown=shown, count=len(ranks), rank=min(ranks))
    return [{"section": next(section for section, rank in left if rank is not None), "text": _pair(text)}]


def _fitted(section: str, item: Placed, origin_ns: int | None, room: int) -> tuple[dict[str, Json] | None, int, int]:
    """The table with as many of its first rows as fit into `room` bytes, their number, their size.

    None when not even 20 rows fit. A timeline is merged further instead.
    """
    if is_timeline(item.table):
        return _fitted_timeline(section, item, origin_ns, room)
    rows = len(item.table)
    while rows >= min(20, len(item.table)):
        made = _packed(item.table, section, item.rank, item.scope, origin_ns, rows)
        size = len(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
        if size <= room:
            return made, rows, size
        rows = min(rows // 2, int(rows * room / size))
    return None, 0, 0


def _fitted_timeline(
    section: str, item: Placed, origin_ns: int | None, room: int
) -> tuple[dict[str, Json] | None, int, int]:
    table = ordered(item.table)
    while room > 0:
        made = _packed(table, section, item.rank, item.scope, origin_ns, len(table))
        size = len(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
        if size <= room:
            return made, len(table), size
        fewer = coarser(table, min(len(table) * 3 // 4, int(len(table) * room / size)))
        if len(fewer) == len(table):
            break
        table = fewer
    return None, 0, 0


def _quality(payload: Payload) -> list[Json]:
    packed: list[Json] = []
    for english, chinese in zip(quality_tables(payload, "en"), quality_tables(payload, "zh"), strict=True):
        packed.append(_packed(english, "quality", None, "job", None, len(english), twin=chinese))
    return packed


def _packed(
    table: ResultTable,
    section: str,
    rank: int | None,
    scope: str,
    origin_ns: int | None,
    rows: int,
    twin: ResultTable | None = None,
) -> dict[str, Json]:
    columns: list[Json] = []
    is_dense = is_timeline(table)
    for i, (column, cells) in enumerate(zip(table.columns, table.data, strict=True)):
        other = cells if twin is None else twin.data[i]
        is_clock = column.name.endswith("start_ns") or column.name in _CLOCK_COLUMNS
        is_clock |= (table.name, column.name) == ("memory-timeline", "time_ns")
        if is_dense:
            made = _dense(column, cells[:rows], origin_ns if is_clock else None)
        else:
            made = _column(column, cells[:rows], other[:rows], origin_ns if is_clock else None)
        made |= {"name": column.name, "title": pair(column.heading), "unit": column.unit}
        if column.mark is not None:
            made["mark"] = pair(column.mark)
        if is_clock:
            made["clock"] = True
        columns.append(made)
    return {
        "name": table.name,
        "section": section,
        "rank": rank,
        "scope": scope,
        "title": pair(table.title),
        "note": _pair(table.note),
        "rows": rows,
        "columns": columns,
    } | ({} if (parts := kinds(table)) is None else {"kinds": [*parts[:rows]]})


def table_document(table: ResultTable, section: str, rows: int, twin: ResultTable) -> dict[str, Json]:
    """The first rows of a table that belongs to no rank, as the scripts of the page read it; `twin` is in Chinese."""
    return _packed(table, section, None, "job", None, rows, twin)


def _column(
    column: ResultColumn, cells: Sequence[Cell], twins: Sequence[Cell], origin_ns: int | None
) -> dict[str, Json]:
    """Numbers as they are; text as indexes into its distinct values, -1 for unknown."""
    if not any(isinstance(cell, str) for cell in cells):
        return {"data": [_figure(cell, origin_ns) for cell in cells]}
    index: dict[tuple[str, str], int] = {}
    codes: list[Json] = []
    for cell, twin in zip(cells, twins, strict=True):
        if cell is None:
            codes.append(-1)
            continue
        key = (str(cell), str(twin))
        codes.append(index.setdefault(key, len(index)))
    texts = [_both(en, zh, column.name) for en, zh in index]
    return {"texts": texts, "codes": codes}


def _dense(column: ResultColumn, cells: Sequence[Cell], origin_ns: int | None) -> dict[str, Json]:
    """A column of a table with very many rows; figures that are no whole numbers are as in other tables."""
    if isinstance(cells, TextCells) or any(isinstance(cell, str) for cell in cells):
        column_text = text(cells).compact()
        texts = [_both(value, value, column.name) for value in column_text.values]
        return {"texts": texts, "packed": packed(column_text.codes.astype(np.int64))}
    if any(isinstance(cell, float | bool) for cell in cells):
        return _column(column, cells, cells, origin_ns)
    values = ints(cells)
    return {"packed": packed(np.where(values == NULL, NULL, values - (origin_ns or 0)))}


def _both(en: str, zh: str, column: str) -> Json:
    is_ours = column in PHRASE_COLUMNS or (column in OWN_NAMES and OWN_NAMES[column].fullmatch(en))
    if en == zh and is_ours:
        return pair(phrase(en, SAID_AS.get(column, column)))
    return pair(Words(en or "—", zh or "—"))


def _figure(cell: Cell, origin_ns: int | None) -> Json:
    if cell is None or isinstance(cell, str | bool):
        return cell
    if isinstance(cell, int):
        value = cell - (origin_ns or 0)
        # Beyond this JavaScript would change the number silently; as text it is at least the right one.
        return value if abs(value) <= SAFE_INTEGER else str(value)
    known = finite(cell)
    return None if known is None else float(f"{known:.7g}")


def _note_of_cut(item: Placed, kept: int) -> Words:
    key = "cut.left_out" if not kept else "cut.merged" if item.table.name == TIMELINE else "cut.shortened"
    rank = "?" if item.rank is None else item.rank
    return words(key, table=item.table.title, rank=rank, rows=len(item.table), kept=kept)
