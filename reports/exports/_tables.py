"""The tables of a trace on their way into files: one folder per rank, one file per table, and `tables.json` beside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ascend_perf import __version__
from ascend_perf.errors import InputError
from ascend_perf.model.run import Run
from ascend_perf.model.table import Column, Kind, Table, Text
from ascend_perf.model.tables import ALL
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.texts import Json, safe
from ascend_perf.units import counted

INDEX: Final = "tables.json"
"""Describes the tables of the folder, and marks it as one of ours."""

MAX_CELL: Final = 32_000
"""Characters kept of a text: spreadsheets take 32 767 per cell, and call stacks reach some thousand."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The tables of one trace and the name of their folder, which holds nothing that a trace wrote."""

    folder: str
    trace: Trace
    tables: tuple[Table, ...]


def parts_of(run: Run) -> list[Part]:
    """A part for each trace: `rank0`, `rank1`; `rank0-2` where a rank was read twice, `trace1` where it is unknown."""
    made, seen = [], dict[str, int]()
    for number, trace in enumerate(run.traces, 1):
        folder = f"trace{number}" if trace.meta.rank is None else f"rank{trace.meta.rank}"
        seen[folder] = seen.get(folder, 0) + 1
        if seen[folder] > 1:
            folder = f"{folder}-{seen[folder]}"
        tables = tuple(trace.tables[name] for name in ALL if name in trace.tables and len(trace.tables[name]))
        made.append(Part(folder=folder, trace=trace, tables=tables))
    return made


def columns_of(table: Table) -> Iterator[Column]:
    """The columns of a table in the order of the model, also those that are unknown throughout; then its counters."""
    known = {column.name for column in table.spec.columns}
    yield from table.spec.columns
    for name in table.names:
        if name not in known:
            yield table.spec.column(name)


def column_names(table: Table) -> dict[str, str]:
    """What each column is called in the file. Counters are named by the trace: their names are bounded and differ."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in columns_of(table):
        plain = safe(column.name, 200)
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name)
        names[column.name] = name
    return names


class Texts:
    """Makes texts fit for files and counts those that had to be cut."""

    def __init__(self, word_of: Callable[[str], str] | None = None) -> None:
        self.cut = 0
        self._word_of = word_of or (lambda word: word)

    def of(self, text: Text) -> Text:
        """The column without control characters and lone surrogates, each text bounded."""
        used = text.compact()
        self.cut += int(used.flags(lambda value: len(value) > MAX_CELL).sum())
        return used.relabel(lambda value: self._word_of(safe(value, MAX_CELL)))


Write = Callable[[Table, dict[str, str], Texts, BinaryIO], None]


def write_tables(
    request: Request, folder: Path, *, suffix: str, unknown: str, write: Write,
    word_of: Callable[[str], str] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Write each table of each rank, and the description of them all.

    Args:
        request: the run.
        folder: an empty folder.
        suffix: of each file.
        unknown: how the files hold what is unknown, for the description.
        write: writes one table: its columns by their name in the file, texts by way of `Texts`.
        word_of: what a text is written as, beside being made safe.

    Raises:
        InputError: no table has rows.
    """
    parts = parts_of(request.run)
    if not any(part.tables for part in parts):
        label = safe(request.run.traces[0].meta.label if request.run.traces else request.run.label)
        raise InputError(f"{label or 'the profile'}: no table in it has rows")
    texts = Texts(word_of)
    for part in parts:
        for table in part.tables:
            path = folder / part.folder / f"{table.spec.name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            with open(path, "wb") as file:
                write(table, column_names(table), texts, file)
    document: Json = {
        "schema_version": 1,
        "producer": f"ascend-perf {__version__}",
        "unknown": unknown,
        "times": "int64 ns on the clock of the rank; [start_ns, start_ns + dur_ns)",
        "rows": "in the order of the trace: a column that names a row of another table counts from 0",
        "steps": [*request.steps] or "all",
        "traces": [
            {
                "folder": part.folder,
                "rank": part.trace.meta.rank,
                "data_origin": part.trace.meta.data_origin,
                "tables": [
                    {"name": table.spec.name, "file": f"{part.folder}/{table.spec.name}.{suffix}", "rows": len(table)}
                    for table in part.tables
                ],
            }
            for part in parts
        ],
        "tables": {table.spec.name: _described(table) for part in parts for table in part.tables},
    }
    (folder / INDEX).write_text(json.dumps(document, ensure_ascii=False, indent=1), "utf-8", newline="\n")
    return (f"{counted(texts.cut, 'text')} cut at {MAX_CELL} characters",) if texts.cut else ()


def _described(table: Table) -> Json:
    names = column_names(table)
    columns: list[Json] = [
        {"name": names[c.name], "kind": c.kind.value, "unit": c.unit or None, "doc": c.doc or None}
        for c in columns_of(table)
    ]
    return {"row": table.spec.row, "columns": columns}


def is_ours(folder: Path) -> bool:
    """Whether a folder holds what an exporter of tables wrote: only that may be replaced."""
    try:
        document = json.loads((folder / INDEX).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and str(document.get("producer", "")).startswith("ascend-perf ")


def is_given(table: Table, column: Column) -> bool:
    """Whether the trace says anything of a column: a bool column that was not given is unknown, not false."""
    return column.name in table.names and (column.kind is not Kind.BOOL or table.has(column.name))
