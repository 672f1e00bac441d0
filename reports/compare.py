"""Reports of a comparison: `compare.html` (one file, as the report page), `compare.md` and `compare.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from ascend_perf import __version__
from ascend_perf.model.comparison import Comparison, SideFacts, StepBar, simulated_mark
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words, marked
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.html import embedded
from ascend_perf.reports.page import PHRASE_COLUMNS, SAID_AS, table_document
from ascend_perf.reports.payload import finite
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.texts import Json, Lang, markdown, pair, safe, said
from ascend_perf.units import Unit, format_quantity

SCHEMA_VERSION: Final = 1
"""Version of `compare.json`; docs/compare.md describes it."""

SCRIPTS: Final = ("core.js", "format.js", "head.js", "columns.js", "table.js", "sheet.js", "compare.js")

MAX_PAGE_ROWS: Final = 600
"""Rows of a table on the page; all are in the JSON. Status: assumed."""
MAX_MARKDOWN_ROWS: Final = 12
"""Rows of a table in Markdown."""
MARKDOWN_COLUMNS: Final = (
    "class", "name", "path", "kind", "time_a_ns", "time_b_ns", "delta_ns", "by_count_ns", "by_mean_ns", "time_ratio",
    "expected_ratio", "shortfall_ratio",
)  # fmt: skip
"""Columns of the tables of time in Markdown; the others are on the page."""

FORMATS: Final = ("html", "md", "json")


def write_comparison(comparison: Comparison, folder: Path, formats: Sequence[str], lang: Lang) -> tuple[Path, ...]:
    """Write `compare.html`, `compare.md` and `compare.json`, those that are asked for, into a folder that is there."""
    makers = {"html": html_text, "md": markdown_text, "json": json_text}
    paths = []
    for name in formats:
        path = folder / f"compare.{name}"
        path.write_text(makers[name](comparison, lang), "utf-8", newline="\n")
        paths.append(path)
    return tuple(paths)


_NAMES: Final = {"not attributed": "未归属", "step": "step（算子之外）"}
"""Rows that are no calls of the program, in Chinese."""


def in_lang(table: ResultTable, lang: Lang) -> ResultTable:
    """A table with the rows that are no calls of the program in one language; names of calls are the same in both."""
    if lang == "en":
        return table
    data = tuple(
        tuple(_NAMES.get(cell, cell) if isinstance(cell, str) else cell for cell in cells)
        if column.name in ("name", "path") else cells
        for column, cells in zip(table.columns, table.data, strict=True)
    )  # fmt: skip
    return replace(table, data=data)


def with_units(table: ResultTable) -> ResultTable:
    """A table whose rows have units of their own, with the figures as texts that hold them."""
    names = [column.name for column in table.columns]
    if "unit" not in names:
        return table
    units = [cast("Unit", str(unit)) for unit in table.column("unit")]
    columns, data = [], []
    for column, cells in zip(table.columns, table.data, strict=True):
        if column.name == "unit":
            continue
        if column.name.startswith("value_"):
            cells = tuple(
                format_quantity(cell, unit) if isinstance(cell, int | float) else None
                for cell, unit in zip(cells, units, strict=True)
            )
        columns.append(column)
        data.append(cells)
    return replace(table, columns=tuple(columns), data=tuple(data))


# ---- page ------------------------------------------------------------------------------------------------------------


def html_text(comparison: Comparison, lang: Lang) -> str:
    """The page as text."""
    return embedded(
        page_document(comparison, lang), lang=lang, label=_label(comparison), lead=said(comparison.lead, lang),
        main=said(comparison.main, lang), items=[said(point, lang) for point in comparison.points], scripts=SCRIPTS,
        styles=("report.css", "compare.css"),
    )  # fmt: skip


def _label(comparison: Comparison) -> str:
    return safe(" · ".join(f"{side.letter} {side.label}" for side in comparison.sides))


def _identity(comparison: Comparison) -> str:
    """A short id of the content, so that the page's remembered state is its own."""
    text = repr((comparison.main.en, [side.label for side in comparison.sides]))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def page_document(comparison: Comparison, lang: Lang) -> dict[str, Json]:
    """What the page draws."""
    tables: list[Json] = []
    sections: list[Json] = []
    for section in comparison.sections:
        places: list[Json] = []
        for table in section.tables:
            shown = min(len(table), MAX_PAGE_ROWS)
            made = table_document(with_units(table), section.key, shown, in_lang(with_units(table), "zh"))
            if shown < len(table):
                made["cut"] = len(table)
            places.append(len(tables))
            tables.append(made)
        sections.append({"key": section.key, "title": pair(section.heading), "tables": places})
    return {
        "lang": lang, "id": _identity(comparison), "focus": None, "label": _label(comparison),
        "generator": f"ascend-perf {__version__}", "origin": comparison.origin,
        "mark": None if comparison.mark is None else pair(comparison.mark),
        "words": {"en": dict(catalogue("en")), "zh": dict(catalogue("zh"))},
        "lead": pair(comparison.lead), "main": pair(comparison.main),
        "bars_mark": None if (mark := _bars_mark(comparison.bars)) is None else pair(mark),
        "said": [{"text": pair(one.what), "grave": one.is_grave} for one in comparison.said],
        "points": [pair(point) for point in comparison.points],
        "sides": [
            {
                "letter": side.letter, "label": safe(side.label), "kind": side.kind, "cards": side.cards,
                "device": None if side.device is None else safe(side.device), "origin": side.origin,
                "baseline": side is comparison.sides[0],
                "facts": [[pair(label), pair(value)] for label, value in side.facts],
            }
            for side in comparison.sides
        ],
        "bars": [
            {
                "letter": bar.letter, "total_ns": bar.total_ns, "mark": None if bar.mark is None else pair(bar.mark),
                "parts": [{"label": pair(p.label), "kind": p.kind, "ns": p.time_ns} for p in bar.parts],
            }
            for bar in comparison.bars
        ],
        "sections": sections, "tables": tables,
    }  # fmt: skip


# ---- Markdown --------------------------------------------------------------------------------------------------------


def markdown_text(comparison: Comparison, lang: Lang, *, rows: int = MAX_MARKDOWN_ROWS) -> str:
    """The comparison as Markdown: answer, sides, step split, the first rows of each table."""
    texts = catalogue(lang)
    lines = [f"# {markdown(said(comparison.lead, lang))}", "", f"**{markdown(said(comparison.main, lang))}**", ""]
    lines += [f"- {origin_line(comparison, lang)}"]
    lines += [_side_line(side, side is comparison.sides[0], lang) for side in comparison.sides]
    grave = any(one.is_grave for one in comparison.said)
    if comparison.said:
        lines += ["", f"## {texts['compare.unlike_forced' if grave else 'compare.to_know']}", ""]
        lines += [f"- {markdown(said(one.what, lang))}" for one in comparison.said]
    if comparison.points:
        lines += ["", f"## {texts['compare.points']}", ""]
        lines += [f"- {markdown(said(point, lang))}" for point in comparison.points]
    if comparison.bars:
        steps = marked(words("compare.steps"), _bars_mark(comparison.bars))
        lines += ["", f"## {said(steps, lang)}", "", *_split_lines(comparison.bars, lang)]
    for section in comparison.sections:
        lines += ["", f"## {markdown(said(section.heading, lang))}", ""]
        for table in section.tables:
            lines += [*_table_lines(table, lang, rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _side_line(side: SideFacts, is_base: bool, lang: Lang) -> str:
    texts = catalogue(lang)
    facts = [f"{said(label, lang)} {said(value, lang)}" for label, value in side.facts]
    base = f" ({texts['compare.baseline']})" if is_base else ""
    kind = texts[f"compare.kind_{side.kind}"]
    if side.origin == "simulated":
        kind += f" · {texts['origin.simulated']}"
    what = [kind, side.device or "—", f"{texts['compare.cards']} {side.cards}", *facts]
    return f"- **{side.letter}**{base}{texts['ui.colon']}{markdown(side.label)} — {markdown(', '.join(what))}"


def origin_line(comparison: Comparison, lang: Lang) -> str:
    """Whether the data are measured, or which of them are not."""
    texts = catalogue(lang)
    said_so = texts["origin.measured"] if comparison.mark is None else said(comparison.mark, lang)
    return f"{texts['md.origin']}{texts['ui.colon']}{said_so}"


def _bars_mark(bars: Sequence[StepBar]) -> Words | None:
    return simulated_mark([bar.letter for bar in bars], [bar.letter for bar in bars if bar.mark is not None])


def _split_lines(bars: Sequence[StepBar], lang: Lang) -> list[str]:
    texts = catalogue(lang)
    heads = [said(marked(Words(bar.letter, bar.letter), bar.mark), lang) for bar in bars]
    lines = [_row(["", *heads]), _row(["---", *("---:" for _ in bars)])]
    for place, part in enumerate(bars[0].parts):
        lines.append(_row([
            markdown(said(part.label, lang)), *(format_quantity(bar.parts[place].time_ns, "ns") for bar in bars)
        ]))  # fmt: skip
    return [*lines, _row([texts["ui.total"], *(format_quantity(bar.total_ns, "ns") for bar in bars)])]


def _table_lines(table: ResultTable, lang: Lang, rows: int) -> list[str]:
    texts, table = catalogue(lang), in_lang(with_units(table), lang)
    names = {column.name for column in table.columns}
    wanted = set(MARKDOWN_COLUMNS) - ({"name"} if "path" in names else set())  # a path ends with the name
    columns = [
        (column, cells) for column, cells in zip(table.columns, table.data, strict=True)
        if "time_a_ns" not in names or column.name in wanted
    ]  # fmt: skip
    lines = [_row([markdown(said(column.heading, lang)) for column, _ in columns])]
    lines.append(_row(["---:" if _is_figure(column, cells) else "---" for column, cells in columns]))
    lines += [
        _row([markdown(cell_text(column, cells[row], lang)) for column, cells in columns])
        for row in range(min(rows, len(table)))
    ]
    if len(table) > rows:
        lines += ["", texts["compare.more"].format(count=len(table) - rows)]
    return lines


def _is_figure(column: ResultColumn, cells: Sequence[Cell]) -> bool:
    return column.unit != "none" or any(isinstance(cell, int | float) for cell in cells)


def cell_text(column: ResultColumn, cell: Cell, lang: Lang) -> str:
    """A cell as readers see it."""
    if cell is None:
        return "—"
    if isinstance(cell, str):
        both = phrase(cell, SAID_AS.get(column.name, column.name)) if column.name in PHRASE_COLUMNS else None
        return safe(cell if both is None else said(both, lang))
    unit: Unit = column.unit
    return format_quantity(float(cell), unit)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# ---- JSON ------------------------------------------------------------------------------------------------------------


def json_text(comparison: Comparison, lang: Lang) -> str:
    """The document as text."""
    return json.dumps(document(comparison, lang), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison, lang: Lang) -> dict[str, Json]:
    """The document of schema version 1; unknown is None, times are whole ns."""
    return {
        "schema_version": SCHEMA_VERSION, "generator": f"ascend-perf {__version__}", "language": lang,
        "data_origin": comparison.origin,
        "comparable": not any(one.is_grave for one in comparison.said),
        "said": [{"text": said(one.what, lang), "is_grave": one.is_grave} for one in comparison.said],
        "lead": said(comparison.lead, lang), "main": said(comparison.main, lang),
        "points": [said(point, lang) for point in comparison.points],
        "sides": [
            {
                "letter": side.letter, "label": safe(side.label), "kind": side.kind, "cards": side.cards,
                "device": None if side.device is None else safe(side.device), "data_origin": side.origin,
                "facts": {said(label, lang): said(value, lang) for label, value in side.facts},
            }
            for side in comparison.sides
        ],
        "steps": [
            {
                "letter": bar.letter, "data_origin": _origin(bar.mark), "step_ns": bar.total_ns,
                "parts": {p.key: p.time_ns for p in bar.parts},
            }
            for bar in comparison.bars
        ],
        "totals": {key: dict(totals) for key, totals in comparison.totals.items()},
        "sections": [
            {
                "key": section.key, "title": said(section.heading, lang), "data_origin": _origin(section.mark),
                "tables": [_table(table, lang) for table in section.tables],
            }
            for section in comparison.sections
        ],
    }  # fmt: skip


def _origin(mark: Words | None) -> Json:
    """Of figures that are made of several sides: simulated as soon as one of them is."""
    return "measured" if mark is None else "simulated"


def _table(table: ResultTable, lang: Lang) -> Json:
    names = [column.name for column in table.columns]
    return {
        "name": table.name, "title": said(table.title, lang),
        "columns": [
            {"name": c.name, "title": said(c.heading, lang), "unit": c.unit, "data_origin": _origin(c.mark)}
            for c in table.columns
        ],
        "rows": [
            {
                name: safe(cell) if isinstance(cell, str) else finite(cell)
                for name, cell in zip(names, cells, strict=True)
            }
            for cells in zip(*table.data, strict=True)
        ],
    }  # fmt: skip
