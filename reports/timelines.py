"""Timelines in the page: the rows of the analyzer, merged further where the page has no room for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ascend_perf.analyzers._lod import Runs, thinned
from ascend_perf.model.cells import IntCells, TextCells
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.model.table import NULL, Ints, Text

TIMELINE: Final = "timeline"

NEEDED: Final = ("lane", "kind", "name", "start_ns", "dur_ns")
"""Columns without which there is no timeline."""

_EXTRA: Final = (
    ResultColumn(name="count", title=Words("Intervals", "区间数"), unit="count"),
    ResultColumn(name="busy_ns", title=Words("Busy", "忙碌时间"), unit="ns"),
)
_ON_DEVICE: Final = frozenset({"compute", "communication", "copy"})


def is_timeline(table: ResultTable) -> bool:
    """Whether the table has what a timeline is drawn from, all times known and whole."""
    if table.name != TIMELINE or not len(table):
        return False
    names = {column.name for column in table.columns}
    if not names.issuperset(NEEDED):
        return False
    return all(bool((ints(table.column(name)) != NULL).all()) for name in ("start_ns", "dur_ns"))


def ints(cells: Sequence[Cell]) -> Ints:
    """Cells as a column; whatever is no whole number is unknown."""
    if isinstance(cells, IntCells):
        return cells.values
    limit = 2**62
    known = [
        cell if isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) < limit else NULL for cell in cells
    ]
    return np.array(known, np.int64)


def text(cells: Sequence[Cell]) -> Text:
    """Cells as a text column."""
    if isinstance(cells, TextCells):
        return cells.text
    return Text.of(None if cell is None else str(cell) for cell in cells)


def ordered(table: ResultTable) -> ResultTable:
    """Rows by lane (in the order in which lanes first come), then start, the longer first."""
    lane = text(table.column("lane")).compact()
    starts, lengths = ints(table.column("start_ns")), ints(table.column("dur_ns"))
    first = np.full(len(lane.values) + 1, len(table))
    np.minimum.at(first, lane.codes, np.arange(len(table)))
    order = np.lexsort((-lengths, starts, first[lane.codes]))
    return table if (np.diff(order) == 1).all() else _picked(table, order)


def coarser(table: ResultTable, rows: int) -> ResultTable:
    """An ordered timeline merged to about `rows` rows, with the columns `count` and `busy_ns`."""
    lane, kind, name = (text(table.column(column)).compact() for column in ("lane", "kind", "name"))
    starts = ints(table.column("start_ns"))
    columns = {column.name for column in table.columns}
    runs = Runs.exact(lane.codes, kind.codes, name.codes, starts, starts + ints(table.column("dur_ns")))
    if columns >= {"count", "busy_ns"}:
        runs = replace(runs, counts=ints(table.column("count")), busy_ns=ints(table.column("busy_ns")))
    weights = np.where(kind.isin(_ON_DEVICE), runs.busy_ns, 0)
    made = thinned(runs, rows, weights if weights.any() else None)
    is_new = made.counts != runs.counts[made.heads]
    given: dict[str, Sequence[Cell]] = {
        "name": TextCells(Text(made.names, name.values)),
        "dur_ns": IntCells(made.ends - made.starts),
        "count": IntCells(made.counts),
        "busy_ns": IntCells(made.busy_ns),
    }
    kept = _picked(table, made.heads)
    data = []
    for column, cells in zip(kept.columns, kept.data, strict=True):
        if column.name in given:
            data.append(given.pop(column.name))
        elif column.name in NEEDED or column.name == "group":
            data.append(cells)
        else:
            data.append(_without(cells, is_new))
    extra = tuple(column for column in _EXTRA if column.name in given)
    return replace(kept, columns=(*kept.columns, *extra), data=(*data, *(given[column.name] for column in extra)))


def _without(cells: Sequence[Cell], gone: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Sequence[Cell]:
    """Cells of rows that became runs are unknown: they told of one interval alone."""
    if isinstance(cells, TextCells):
        return TextCells(Text(np.where(gone, -1, cells.text.codes).astype(np.int32), cells.text.values))
    if isinstance(cells, IntCells):
        return IntCells(np.where(gone, NULL, cells.values))
    return tuple(None if is_gone else cell for cell, is_gone in zip(cells, gone.tolist(), strict=True))


def _picked(table: ResultTable, rows: Ints) -> ResultTable:
    def take(cells: Sequence[Cell]) -> Sequence[Cell]:
        if isinstance(cells, TextCells):
            return TextCells(cells.text.take(rows))
        if isinstance(cells, IntCells):
            return IntCells(cells.values[rows])
        return tuple(cells[row] for row in rows.tolist())

    return replace(table, data=tuple(take(cells) for cells in table.data))
