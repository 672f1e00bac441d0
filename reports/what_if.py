"""Reports of estimates: `what-if.html` (one file, as the report page), `what-if.md` and `what-if.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ascend_perf import __version__
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words, marked
from ascend_perf.model.what_if import PARTS, Estimate, Outcome, PartKind, WhatIf
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.html import embedded
from ascend_perf.reports.page import table_document
from ascend_perf.reports.phrases import phrase, spoken
from ascend_perf.reports.texts import Json, Lang, markdown, pair, safe, said
from ascend_perf.units import Unit, format_quantity, significant

SCHEMA_VERSION: Final = 1
"""Version of `what-if.json`; docs/what-if.md describes it."""
SCRIPTS: Final = ("core.js", "format.js", "head.js", "columns.js", "table.js", "sheet.js", "what_if.js")
LOOKS: Final = {
    "computing": "computing", "copies": "copy", "communication": "transfer", "host": "host", "bubble": "idle"
}
"""Part of a step -> its colour on the page."""


def write_what_if(found: WhatIf, folder: Path, formats: Sequence[str], lang: Lang) -> tuple[Path, ...]:
    """Write `what-if.html`, `what-if.json` and `what-if.md`, those that are asked for, into a folder that is there."""
    makers = {"html": html_text, "md": markdown_text, "json": json_text}
    paths = []
    for name in formats:
        path = folder / f"what-if.{name}"
        path.write_text(makers[name](found, lang), "utf-8", newline="\n")
        paths.append(path)
    return tuple(paths)


def state(outcome: Outcome) -> Words:
    """What came of a configuration, in a word or two."""
    return words(f"what_if.kind_{outcome.kind.replace('-', '_')}")


def _column(name: str, unit: Unit = "none") -> ResultColumn:
    return ResultColumn(name=name, title=words(f"what_if.column_{name}"), unit=unit)


def table_of(found: WhatIf, lang: Lang = "en") -> ResultTable:
    """A row for each configuration, in the order in which they were run."""
    rows = [_row_of(outcome, lang) for outcome in found.outcomes]
    columns = (
        _column("soc"), _column("ranks", "count"), _column("layout"), _column("state"), _column("rate", "items_per_s"),
        _column("step_ns", "ns"), _column("low_ns", "ns"), _column("high_ns", "ns"), _column("mfu", "ratio"),
        _column("peak", "bytes"), _column("peak_share", "ratio"), _column("exposed", "ratio"),
        _column("host", "ratio"), _column("bubble", "ratio"), _column("launches", "count"), _column("items", "count"),
    )  # fmt: skip
    data = tuple(tuple(row[index] for row in rows) for index in range(len(columns)))
    return ResultTable(name="what-if", title=words("what_if.table"), columns=columns, data=data)


def _row_of(outcome: Outcome, lang: Lang) -> tuple[Cell, ...]:
    configuration, one = outcome.configuration, outcome.estimate
    first: tuple[Cell, ...] = (
        safe(configuration.soc), configuration.world_size, said(configuration.words, lang), said(state(outcome), lang)
    )  # fmt: skip
    if one is None:
        return (*first, *(None for _ in range(12)))
    return (
        *first, one.per_s_per_device(configuration.world_size), one.step_ns, one.low_ns, one.high_ns, one.mfu,
        one.peak_device_bytes, one.used_device_bytes / one.device_bytes, one.share("communication"), one.share("host"),
        one.share("bubble") if one.parts.get("bubble") else None, one.launches, one.items_per_step,
    )  # fmt: skip


def problems_of(found: WhatIf, lang: Lang = "en") -> ResultTable | None:
    """What has no estimate and why; None where all have one."""
    rows = [outcome for outcome in found.outcomes if outcome.estimate is None]
    if not rows:
        return None
    columns = (_column("soc"), _column("ranks", "count"), _column("layout"), _column("state"), _column("why"),
               _column("fits"))  # fmt: skip
    cells: list[tuple[Cell, ...]] = [
        (safe(one.configuration.soc), one.configuration.world_size, said(one.configuration.words, lang),
         said(state(one), lang), safe(spoken(one.problem, lang)), safe(spoken(one.fits, lang)) or None)
        for one in rows
    ]  # fmt: skip
    data = tuple(tuple(row[index] for row in cells) for index in range(len(columns)))
    return ResultTable(name="what-if-problems", title=words("what_if.problems"), columns=columns, data=data)


# ---- page ------------------------------------------------------------------------------------------------------------


def html_text(found: WhatIf, lang: Lang) -> str:
    """The page as text."""
    return embedded(
        page_document(found, lang), lang=lang, label=_label(found), lead=said(found.lead, lang),
        main=said(found.main, lang), items=[said(one.said, lang) for one in found.verdicts], scripts=SCRIPTS,
        styles=("report.css", "compare.css", "what_if.css"),
    )  # fmt: skip


def _label(found: WhatIf) -> str:
    return safe(f"{found.workload} {found.preset}")


def page_document(found: WhatIf, lang: Lang) -> dict[str, Json]:
    """What the page draws."""
    tables: list[Json] = []
    for english, chinese in ((table_of(found), table_of(found, "zh")), (problems_of(found), problems_of(found, "zh"))):
        if english is not None and chinese is not None:
            tables.append(table_document(english, "what-if", len(english), chinese))
    identity = hashlib.sha256(repr((found.workload, found.preset, found.main.en)).encode("utf-8", "replace"))
    return {
        "lang": lang, "id": identity.hexdigest()[:12], "focus": None, "label": _label(found),
        "generator": f"ascend-perf {__version__}", "origin": "simulated",
        "words": {"en": dict(catalogue("en")), "zh": dict(catalogue("zh"))},
        "lead": pair(found.lead), "main": pair(found.main), "notes": [pair(one) for one in found.notes],
        "parts": [{"key": key, "kind": LOOKS[key], "label": pair(words(f"what_if.part_{key}"))} for key in PARTS],
        "groups": [_group(found, index) for index in range(len(found.verdicts))],
        "left_out": [[safe(where), [safe(name) for name in names]] for where, names in found.left_out.items()],
        "versions": [[safe(name), safe(value)] for name, value in found.versions.items()],
        "tables": tables,
    }  # fmt: skip


def _group(found: WhatIf, index: int) -> Json:
    verdict = found.verdicts[index]
    here = [(place, one) for place, one in enumerate(found.outcomes) if verdict.judges(one)]
    known = [(place, one.estimate, one) for place, one in here if one.estimate is not None]
    known.sort(key=lambda row: row[1].step_ns / row[1].items_per_step)
    return {
        "title": safe(f"{verdict.soc} x {verdict.world_size}"), "said": pair(verdict.said),
        "told": verdict.best is not None and not verdict.rivals,
        "item": safe(known[0][1].item) if known else "",
        "rows": [
            {
                "label": pair(one.configuration.words), "best": place == verdict.best, "rival": place in verdict.rivals,
                **_bar(estimate, verdict.world_size),
            }
            for place, estimate, one in known
        ],
        "without": [
            {
                "label": pair(one.configuration.words), "state": pair(state(one)), "why": pair(phrase(one.problem)),
                "fits": pair(phrase(one.fits)) if one.fits else None,
            }
            for _, one in here if one.estimate is None
        ],
    }  # fmt: skip


def _bar(one: Estimate, world_size: int) -> dict[str, Json]:
    """Device time of one item, and its parts: comparable where a step of a layout holds more items than another's."""

    def per_item(ns: float) -> float:
        return float(f"{ns * world_size / one.items_per_step:.7g}")

    parts: list[Json] = [per_item(one.parts.get(key, 0.0)) for key in PARTS]
    return {
        "ns": per_item(one.step_ns), "low": per_item(one.low_ns), "high": per_item(one.high_ns), "parts": parts,
        "step": one.step_ns, "rate": float(f"{one.per_s_per_device(world_size):.7g}"), "mfu": one.mfu,
        "peak": one.peak_device_bytes, "memory": one.device_bytes,
    }  # fmt: skip


# ---- Markdown, terminal ----------------------------------------------------------------------------------------------

SHORT: Final = ("soc", "ranks", "layout", "rate", "step_ns", "mfu", "peak", "exposed", "host")
"""Columns of the table in Markdown and in the terminal."""


def short_rows(found: WhatIf, lang: Lang) -> list[list[str]]:
    """The table with the columns that matter most, a heading first: the best of each chip and world is marked."""
    table = table_of(found, lang)
    columns = {column.name: column for column in table.columns}
    best = {verdict.best for verdict in found.verdicts if not verdict.rivals}
    first = {verdict.best for verdict in found.verdicts if verdict.rivals}
    rows = [["", *(said(columns[name].title, lang) for name in SHORT)]]
    for index, outcome in enumerate(found.outcomes):
        mark = "*" if index in best else "?" if index in first or _is_rival(found, index) else ""
        one = outcome.estimate
        cells = [safe(outcome.configuration.soc), str(outcome.configuration.world_size),
                 said(outcome.configuration.words, lang)]  # fmt: skip
        if one is None:
            cells += [said(state(outcome), lang), *("—" for _ in SHORT[4:])]
        else:
            world = outcome.configuration.world_size
            rate, least, most = (
                significant(one.per_s_per_device(world, ns), 3) for ns in (one.step_ns, one.high_ns, one.low_ns)
            )
            spread = " .. ".join(format_quantity(ns, "ns") for ns in (one.low_ns, one.high_ns))
            cells += [
                f"{rate} ({least} .. {most})", f"{format_quantity(one.step_ns, 'ns')} ({spread})",
                "—" if one.mfu is None else format_quantity(one.mfu, "ratio"),
                format_quantity(one.peak_device_bytes, "bytes"),
                format_quantity(one.share("communication"), "ratio"), format_quantity(one.share("host"), "ratio"),
            ]  # fmt: skip
        rows.append([mark, *cells])
    return rows


def _is_rival(found: WhatIf, index: int) -> bool:
    return any(index in verdict.rivals for verdict in found.verdicts)


def markdown_text(found: WhatIf, lang: Lang) -> str:
    """The estimates as Markdown."""
    texts = catalogue(lang)
    lines = [
        f"# {markdown(said(found.lead, lang))}", "", f"**{markdown(said(found.main, lang))}**", "",
        f"- {texts['origin.simulated']}{texts['ui.colon']}{texts['origin.banner']}",
    ]  # fmt: skip
    lines += [f"- {name} {markdown(value)}" for name, value in found.versions.items()]
    lines += ["", f"## {texts['what_if.best']}", ""]
    lines += [f"- {markdown(said(verdict.said, lang))}" for verdict in found.verdicts]
    rows = short_rows(found, lang)
    lines += ["", f"## {said(marked(words('what_if.table'), words('origin.simulated')), lang)}", ""]
    lines += [_line(rows[0]), _line([":-:", "---", "---:", "---", *("---:" for _ in SHORT[3:])])]
    lines += [_line([markdown(cell) for cell in row]) for row in rows[1:]]
    lines += ["", texts["what_if.marks"]]
    problems = [one for one in found.outcomes if one.estimate is None]
    if problems:
        lines += ["", f"## {texts['what_if.problems']}", ""]
        for one in problems:
            name = said(one.configuration.words, lang)
            where = f"{one.configuration.soc} x {one.configuration.world_size} {name}"
            colon, stop = texts["ui.colon"], {"en": ". ", "zh": "。"}[lang]
            parts = [spoken(text, lang).strip() for text in (one.problem, one.fits) if text]
            lines.append(markdown_item(f"{where}{colon}{said(state(one), lang)}{colon}{stop.join(parts)}"))
    if found.left_out:
        lines += ["", f"## {texts['what_if.left_out']}", ""]
        lines += [markdown_item(f"{where}{texts['ui.colon']}{', '.join(names)}") for where, names in
                  found.left_out.items()]  # fmt: skip
    lines += ["", f"## {texts['what_if.notes']}", ""]
    lines += [f"- {markdown(said(note, lang))}" for note in found.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown_item(text: str) -> str:
    """A line of a list."""
    return f"- {markdown(text)}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# ---- JSON ------------------------------------------------------------------------------------------------------------


def json_text(found: WhatIf, lang: Lang) -> str:
    """The document as text."""
    return json.dumps(document(found, lang), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(found: WhatIf, lang: Lang) -> dict[str, Json]:
    """The document of schema version 1; unknown is None, times are ns."""
    return {
        "schema_version": SCHEMA_VERSION, "generator": f"ascend-perf {__version__}", "language": lang,
        "data_origin": "simulated", "workload": safe(found.workload), "preset": safe(found.preset),
        "versions": {safe(name): safe(value) for name, value in found.versions.items()},
        "lead": said(found.lead, lang), "main": said(found.main, lang),
        "notes": [said(note, lang) for note in found.notes],
        "verdicts": [
            {
                "soc": safe(one.soc), "world_size": one.world_size, "best": one.best, "rivals": list(one.rivals),
                "is_sure": one.best is not None and not one.rivals, "said": said(one.said, lang),
            }
            for one in found.verdicts
        ],
        "configurations": [_document_of(one, lang) for one in found.outcomes],
        "left_out": {safe(where): [safe(name) for name in names] for where, names in found.left_out.items()},
    }  # fmt: skip


def _document_of(outcome: Outcome, lang: Lang) -> Json:
    configuration, one = outcome.configuration, outcome.estimate
    body: dict[str, Json] = {
        "soc": safe(configuration.soc), "world_size": configuration.world_size, "layout": safe(configuration.layout),
        "overrides": [safe(text) for text in configuration.overrides], "state": outcome.kind,
        "problem": safe(spoken(outcome.problem, lang)) or None, "what_fits": safe(spoken(outcome.fits, lang)) or None,
    }  # fmt: skip
    if one is None:
        return {**body, "estimate": None}
    world = configuration.world_size
    keys: tuple[PartKind, ...] = PARTS
    estimate: dict[str, Json] = {
        "step_ns": one.step_ns, "step_low_ns": one.low_ns, "step_high_ns": one.high_ns, "item": safe(one.item),
        "items_per_step": one.items_per_step, "items_per_s_per_device": one.per_s_per_device(world),
        "items_per_s_per_device_low": one.per_s_per_device(world, one.high_ns),
        "items_per_s_per_device_high": one.per_s_per_device(world, one.low_ns),
        "mfu": one.mfu, "model_flops_per_step": one.flops_per_step, "peak_device_bytes": one.peak_device_bytes,
        "used_device_bytes": one.used_device_bytes,
        "device_bytes": one.device_bytes, "parts_ns": {key: one.parts.get(key, 0.0) for key in keys},
        "exposed_communication_ratio": one.share("communication"), "host_bound_ratio": one.share("host"),
        "hidden_communication_ns": one.hidden_communication_ns, "classes_ns": dict(one.classes_ns),
        "launches_per_step": one.launches, "crosses_nodes": one.crosses_nodes,
    }  # fmt: skip
    return {**body, "estimate": estimate}
