"""Comma-separated values (RFC 4180): the tables of the trace for spreadsheets and everything else."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from ascend_perf.model.table import Column, Ints, Kind, Table
from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.exports._pieces import STRING, Piece, coded, content, decimal, filled, picked, whole
from ascend_perf.reports.exports._tables import Texts, columns_of, is_given, write_tables

BLOCK_ROWS: Final = 16_384
"""Rows that are put together at a time."""

_FORMULA: Final = tuple("=+-@\t\r\n")
"""What a spreadsheet may take for the begin of a formula (OWASP, "CSV Injection")."""


def write_csv(request: Request, folder: Path) -> tuple[str, ...]:
    """One file per rank and table: UTF-8, comma, CRLF, a header; unknown is empty, an empty text is `""`.

    A text that a spreadsheet could run as a formula (it begins with = + - @ or a control character) gets an apostrophe
    before it.

    Raises:
        InputError: no table has rows.
    """
    return write_tables(request, folder, suffix="csv", unknown="empty", write=_write, word_of=guarded)


def guarded(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def quoted(text: str) -> str:
    """A text as one field; empty ones are quoted, since nothing at all is unknown."""
    if text and not any(mark in text for mark in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _write(table: Table, names: dict[str, str], texts: Texts, file: BinaryIO) -> None:
    columns = list(columns_of(table))
    file.write((",".join(quoted(guarded(names[column.name])) for column in columns) + "\r\n").encode())
    fields = [_field(table, column, texts) for column in columns]
    for first in range(0, len(table), BLOCK_ROWS):
        rows = np.arange(first, min(first + BLOCK_ROWS, len(table)))
        parts: list[pa.Array | str] = []
        for number, field in enumerate(fields):
            parts += [*([","] if number else []), *([] if field is None else [field(rows)])]
        file.write(content(filled(pa.repeat(pa.scalar("", STRING), len(rows)), *parts, "\r\n")))


def _field(table: Table, column: Column, texts: Texts) -> Piece | None:
    """How a column is written; None where it is unknown throughout."""
    if not is_given(table, column):
        return None
    if column.kind is Kind.INT:
        ints = table.ints(column.name)
        return lambda rows: whole(ints[rows])
    if column.kind is Kind.FLOAT:
        floats = table.floats(column.name)
        return lambda rows: decimal(floats[rows])
    if column.kind is Kind.BOOL:
        bools = table.bools(column.name)
        truth = pa.array(["false", "true"], STRING)
        return lambda rows: truth.take(pa.array(bools[rows].astype(np.int64)))
    text, words = coded(texts.of(table.text(column.name)), quoted)

    def field(rows: Ints) -> pa.Array:
        return picked(text.codes[rows].astype(np.int64), words)

    return field


EXPORTER: Final = Exporter(
    name="csv",
    suffix="csv",
    summary="a folder with every table of every rank as CSV, and tables.json that describes the columns",
    write_folder=write_csv,
)
