"""Whole flame graphs of one rank for the exporters: nothing is cut, unlike in the result tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascend_perf.analyzers._flame_tree import Tree
from ascend_perf.analyzers.flame import VIEWS, View, views
from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.texts import safe

FLAME_VIEWS = VIEWS
_BLANK = re.compile(r"\s+")


def trace_of(request: Request) -> Trace:
    """The one trace of the request: the command line has asked for a rank where there are several."""
    return request.run.traces[0]


def flames(trace: Trace, names: tuple[str, ...]) -> list[View]:
    """The flame graphs of these names that the profile has data for.

    Raises:
        InputError: none of them.
    """
    found = list(views(trace, names))
    if found:
        return found
    there = ", ".join(view.name for view in views(trace)) or "none"
    wanted = " or ".join(names)
    raise InputError(
        f"{trace.meta.label or 'the profile'}: no data for the flame graph {wanted}; there is {there}",
        hint="record with with_stack=True and with_modules=True, and with host activity",
    )


def shown_name(name: str | None) -> str:
    """A name as files show it: without control characters and marks of direction, of bounded length."""
    return safe(name or "") or "?"


def frame_name(name: str | None) -> str:
    """A name that is one frame of a folded stack: `;` separates frames and a blank ends them, so neither is in it."""
    return _BLANK.sub(" ", shown_name(name).replace(";", ":")).strip() or "?"


def stacks(tree: Tree) -> Iterator[tuple[list[int], int]]:
    """Rows of the tree from the root down, and the time of the last one's own in ns, for each that has any."""
    paths: list[list[int]] = []
    own = tree.self_ns.tolist()
    for row, parent in enumerate(tree.parent.tolist()):
        paths.append([row] if parent < 0 else [*paths[parent], row])
        if own[row]:
            yield paths[row], own[row]
