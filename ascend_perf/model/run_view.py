"""What was read, in short: for a notebook's cell and a plain terminal. Ranks, files, and rows of each table.

Styles hold only below the view's own class, and colours are those of the notebook around it (inherited), so that it is
readable in light and dark without a script.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ascend_perf.model.run import Run

MAX_RANKS: Final = 8
MAX_FILES: Final = 12
MAX_TEXT: Final = 160

_STYLE: Final = """
.ascend-perf-run { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.ascend-perf-run p { margin: 0 0 6px; }
.ascend-perf-run table { border-collapse: collapse; margin: 0 0 8px; }
.ascend-perf-run th, .ascend-perf-run td { padding: 2px 12px 2px 0; text-align: left; background: none; }
.ascend-perf-run td.n, .ascend-perf-run th.n { text-align: right; }
.ascend-perf-run thead th { border-bottom: 1px solid currentColor; font-weight: 600; }
"""


def run_html(run: Run) -> str:
    """The run as HTML; every text of the profile is escaped."""
    head, *rows = _grid(run)
    body = "".join(_row(row, "td") for row in rows)
    lines = "".join(f"<p>{_escaped(line)}</p>" for line in (*_devices(run), *_files(run)))
    return (
        f'<div class="ascend-perf-run"><style>{_STYLE}</style><p><b>{_escaped(_headline(run))}</b></p>'
        f"<table><thead>{_row(head, 'th')}</thead><tbody>{body}</tbody></table>{lines}</div>"
    )


def run_text(run: Run) -> str:
    """The run as plain text."""
    grid = _grid(run)
    widths = [max(len(row[at]) for row in grid) for at in range(len(grid[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in grid]
    return "\n".join([_headline(run), *(line.rstrip() for line in lines), *_devices(run), *_files(run)])


def run_line(run: Run) -> str:
    """The run in a line, for a debugger and a list."""
    origin = ", simulated" if run.is_simulated else ""
    return f"<Run {_clean(run.label)!r}: {len(run.traces)} ranks, {_rows(run)} rows{origin}>"


def _headline(run: Run) -> str:
    count = len(run.traces)
    origin = ", SIMULATED: times of the device are modelled" if run.is_simulated else ""
    return f"{_clean(run.label) or 'run'}: {count} rank{'' if count == 1 else 's'}, {_rows(run)} rows in tables{origin}"


def _rows(run: Run) -> int:
    return sum(len(table) for trace in run.traces for table in trace.tables.values())


def _grid(run: Run) -> list[list[str]]:
    """Rows of each table by rank, and their sum where there are several ranks; the first line is the head."""
    shown, several = run.traces[:MAX_RANKS], len(run.traces) > 1
    names = dict.fromkeys(name for trace in run.traces for name, table in trace.tables.items() if len(table))
    ranks = ["?" if trace.meta.rank is None else f"rank {trace.meta.rank}" for trace in shown]
    grid = [["rows", *ranks, *(["all ranks" if len(shown) == len(run.traces) else f"all {len(run.traces)}"] * several)]]
    for name in names:
        count = [len(trace.tables[name]) if name in trace.tables else 0 for trace in run.traces]
        grid.append([name, *map(str, count[: len(shown)]), *([str(sum(count))] * several)])
    return grid


def _devices(run: Run) -> list[str]:
    """Devices with how many ranks have each."""
    found: dict[str, int] = {}
    for trace in run.traces:
        device = trace.meta.device
        name = _clean(device.name or device.vendor or device.kind or "not named")
        found[name] = found.get(name, 0) + 1
    listed = list(found.items())[:MAX_FILES]
    return ["device: " + ", ".join(name if len(found) == 1 else f"{count} x {name}" for name, count in listed)]


def _files(run: Run) -> list[str]:
    """Files by name and format over all ranks, with what was not used; then those that could not be."""
    found: dict[tuple[str, str], list[int]] = {}
    for trace in run.traces:
        for source in trace.meta.sources:
            if source.problem is None:
                entry = found.setdefault((PurePath(source.path).name, source.format), [0, 0, 0])
                entry[0] += 1
                entry[1] += source.rows
                entry[2] += sum(drop.count for drop in source.dropped)
    lines = [
        f"{_clean(name)}{'' if form == name else f' ({_clean(form)})'}: "
        f"{count} file{'' if count == 1 else 's'}, {rows} rows{f', {dropped} not used' if dropped else ''}"
        for (name, form), (count, rows, dropped) in found.items()
    ]
    if len(lines) > MAX_FILES:
        lines = [*lines[:MAX_FILES], f"{len(lines) - MAX_FILES} more kinds of files"]
    bad = [*run.skipped, *(source for trace in run.traces for source in trace.meta.sources if source.problem)]
    lines += [f"not used: {_clean(PurePath(source.path).name)}: {_clean(source.problem or '')}" for source in bad[:5]]
    return lines + ([f"not used: {len(bad) - 5} more files"] if len(bad) > 5 else [])


def _row(cells: Sequence[str], tag: str) -> str:
    made = (f"<{tag}{' class=n' if at else ''}>{_escaped(cell)}</{tag}>" for at, cell in enumerate(cells))
    return f"<tr>{''.join(made)}</tr>"


def _clean(text: str) -> str:
    """One short line without control characters: a profile's text may hold anything."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_TEXT])
    shown = " ".join(shown.split())
    return shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}…"


def _escaped(text: str) -> str:
    return html.escape(text)
