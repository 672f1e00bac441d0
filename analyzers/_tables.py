"""Result tables from numpy columns: unknown becomes None, numbers become plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ascend_perf.model.cells import IntCells, TextCells
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.model.table import NULL, Text
from ascend_perf.units import Unit


class Col(NamedTuple):
    """One column on its way into a result table. `cells` may be a numpy column, a `Text` or plain cells."""

    name: str
    en: str
    zh: str
    cells: object
    unit: Unit = "none"


def result_table(name: str, title: Words, columns: Sequence[Col], note: Words | None = None) -> ResultTable:
    """A `ResultTable` of the columns."""
    return ResultTable(
        name=name,
        title=title,
        columns=tuple(ResultColumn(name=c.name, title=Words(c.en, c.zh), unit=c.unit) for c in columns),
        data=tuple(plain_cells(c.cells) for c in columns),
        note=note,
    )


def plain_cells(cells: object) -> Sequence[Cell]:
    """Cells as plain Python values; `NULL`, NaN and infinities become None. Those of large tables stay columns."""
    if isinstance(cells, IntCells | TextCells):
        return cells
    if isinstance(cells, Text):
        return tuple(cells.to_list())
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "i":
            return tuple(None if value == NULL else value for value in cells.tolist())
        if cells.dtype.kind == "f":
            return tuple(value if np.isfinite(value) else None for value in cells.tolist())
        return tuple(cells.tolist())
    assert isinstance(cells, Sequence)
    return tuple(_plain(cell) for cell in cells)


def _plain(cell: object) -> Cell:
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and not np.isfinite(cell):
        return None
    if cell is None or isinstance(cell, str | int | float):
        return None if isinstance(cell, int) and cell == NULL else cell
    raise TypeError(f"a cell cannot be a {type(cell).__name__}")
