"""Figures of a training run as JSON lines or CSV: a step, and a loss, gradient norm or loss scale beside it.

Names are those of `_training_series.ALIASES`; further keys and columns are passed over. `training.jsonl` of our own run
directories is one of these files.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ascend_perf import files
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.parsers._training_series import TRAINED, Rows, checked_size, figure_of, rank_of_path, trace_of

PRODUCER: Final = "training metrics"
LINE_SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".json", ".log", ".txt", ""})
TABLE_SUFFIXES: Final = frozenset({".csv", ".tsv"})
MAX_LINE: Final = 64 << 10
"""Longer lines are passed over. Status: assumed."""
LOOKED_AT: Final = 20
"""Lines at the start of which one must be a row. Status: assumed."""

NO_JSON: Final = "line that is no JSON object"
ODD_CELLS: Final = "row with another number of cells than the header"


def is_lines(entry: FileEntry) -> bool:
    """Whether a file is lines of JSON with the figures of a training run."""
    head = entry.head
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        return False
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    if entry.size > len(head):
        lines = lines[:-1]
    return any(_is_row(_object(line)) for line in [line for line in lines if line.strip()][:LOOKED_AT])


def is_table(entry: FileEntry) -> bool:
    """Whether a file is a CSV whose header names a step and a figure of training."""
    first = entry.head.decode("utf-8", "replace").lstrip("\ufeff\r\n").partition("\n")[0]
    return _is_row(dict.fromkeys(_cells(first[:MAX_LINE])))


def _is_row(row: dict[str, object] | None) -> bool:
    if row is None:
        return False
    columns = {figure.column for name in list(row)[:512] if (figure := figure_of(name))}
    return "step" in columns and not TRAINED.isdisjoint(columns)


def _object(line: str) -> dict[str, object] | None:
    if len(line) > MAX_LINE or line.lstrip()[:1] != "{":
        return None
    try:
        made = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return made if isinstance(made, dict) else None


def find(folder: Folder) -> list[Unit]:
    """Each file of the folder is a unit of its own."""
    units = []
    for entry in folder.files:
        suffix = entry.path.suffix.lower()
        if (suffix in LINE_SUFFIXES and is_lines(entry)) or (suffix in TABLE_SUFFIXES and is_table(entry)):
            units.append(Unit(parser="training_metrics", label=entry.path.name, files=(entry.path,)))
    return units


def parse(unit: Unit) -> list[Trace]:
    """The trace of one file.

    Raises:
        InputError: it is too large, or no row has a step and a loss, a gradient norm or a loss scale.
    """
    path = unit.files[0]
    checked_size(path, unit.label)
    rows = Rows(rank=rank_of_path(path))
    if path.suffix.lower() in TABLE_SUFFIXES:
        _read_table(_lines(path), rows)
    else:
        for line in _lines(path):
            made = _object(line)
            if made is None:
                rows.drop(NO_JSON)
            else:
                rows.add(made)
    return [trace_of(rows, label=unit.label, path=path, form="training metrics", producer=PRODUCER)]


def _lines(path: Path) -> Iterator[str]:
    """Lines that are not blank; those beyond `MAX_LINE` come cut."""
    rest = b""
    for block in files.blocks(path):
        *whole, rest = (rest + block).split(b"\n")
        yield from (text for line in whole if (text := _text(line)))
        rest = rest[: MAX_LINE + 1]
    if text := _text(rest):
        yield text


def _text(line: bytes) -> str:
    return line[: MAX_LINE + 1].decode("utf-8", "replace").strip("\ufeff\r\n \0")


def _cells(line: str) -> list[str]:
    delimiter = "\t" if "\t" in line and "," not in line else ","
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _read_table(lines: Iterator[str], rows: Rows) -> None:
    header: Sequence[str] = _cells(next(lines, ""))
    for line in lines:
        cells = _cells(line)
        if len(cells) != len(header):
            rows.drop(ODD_CELLS)
        else:
            rows.add(dict(zip(header, cells, strict=True)))


PARSER: Final = Parser(name="training_metrics", order=52, find=find, parse=parse)
