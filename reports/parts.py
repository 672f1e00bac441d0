"""Tables whose rows are parts of one whole, and the category that each part belongs to: what the page colours by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ascend_perf.model.finding import Cell, ResultTable
from ascend_perf.reports.bars import Kind

PATH_KIND: Final[dict[str, Kind]] = {
    "computing": "computing",
    "collective wait": "wait",
    "collective transfer": "transfer",
    "collective, wait and transfer": "transfer",
    "copy": "copy",
    "launch delay": "idle",
    "gap between queued tasks": "idle",
    "after another stream": "idle",
    "before the rank's step": "idle",
    "idle, unknown": "idle",
}
"""What the parts of a critical path are; those of the host begin with that word."""


def path_kind(component: Cell) -> Kind:
    """What a part of the critical path is about."""
    text = str(component)
    return PATH_KIND.get(text, "host" if text.startswith("host") else "other")


def idle_kind(_cause: Cell) -> Kind:
    """Every cause of idle time is idle time of the device, whoever caused it."""
    return "idle"


COMPOSED: Final[Mapping[str, tuple[str, Callable[[Cell], Kind]]]] = {
    "critical-path": ("component", path_kind),
    "job-critical-path": ("component", path_kind),
    "idle-causes": ("cause", idle_kind),
}
"""Tables whose rows add up to a whole: the column that names the part, and its category."""


def kinds(table: ResultTable) -> list[Kind] | None:
    """The category of each row; None where the rows are not parts of a whole."""
    if table.name not in COMPOSED:
        return None
    column, kind = COMPOSED[table.name]
    if column not in {one.name for one in table.columns}:
        return None
    return [kind(cell) for cell in table.column(column)]
