"""Figures of several ranks: who waits for whom, links, groups, sizes against bandwidth, ranks against each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from ascend_perf.model.finding import Cell, ResultTable, Words
from ascend_perf.reports._plots import (
    MS,
    NotInData,
    Sheet,
    cells,
    has,
    label,
    need,
    number,
    numbers,
    positive,
    quantities,
)
from ascend_perf.reports.bars import bars
from ascend_perf.reports.overview import strip_of
from ascend_perf.units import Unit, format_quantity

if TYPE_CHECKING:
    import plotly.graph_objects as go

Ways = Callable[[Sequence[float]], float]

SLOWEST_RATIO: Final = 0.5
"""A link at this share of the usual rate of its like has the full colour, as in the page."""

FLAT_RATIO: Final = 0.05
"""A row of the strip whose spread is below this share of the step does not get the full colour, as in the page."""

SYMBOLS: Final = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x")
"""Marks of the scatter, in the order of the colours, as in the page."""

_REST: Final = Words("Not told apart", "未区分")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _key(rank: Cell) -> tuple[object, ...]:
    """Ranks in their order, also where their names hold other text."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(rank)) if part)


def matrix(
    table: ResultTable, row: str, column: str, figure: str, ways: Ways, *, square: bool, itself: bool = True
) -> tuple[list[Cell], list[Cell], list[list[float | None]]]:
    """Two columns of ranks and a figure as a grid: rows, columns, values; rows of one cell are put together by `ways`.

    `square`: one axis for both, so that a rank stands at the same place in its row and its column. `itself`: whether
    cells of a rank with itself count.

    Raises:
        NotInData: the table lacks a column, or there are fewer than two cells.
    """
    found: dict[tuple[Cell, Cell], list[float]] = {}
    for a, b, cell in zip(need(table, row), need(table, column), need(table, figure), strict=True):
        value = number(cell)
        if a is not None and b is not None and value is not None and (itself or a != b):
            found.setdefault((a, b), []).append(value)
    rows, columns = ({key[place] for key in found} for place in (0, 1))
    if square:
        rows = columns = rows | columns
    if len(rows) * len(columns) < 2:
        raise NotInData(f"{table.name} has fewer than two pairs of ranks")
    down, across = sorted(rows, key=_key), sorted(columns, key=_key)
    grid = [[ways(found[a, b]) if (a, b) in found else None for b in across] for a in down]
    return down, across, grid


def _heat(
    sheet: Sheet, title: str, grid: tuple[list[Cell], list[Cell], list[list[float | None]]], unit: Unit, tone: str,
    between: str, **more: object,
) -> go.Figure:  # fmt: skip
    """A heat map; `between` stands in the hover text, e.g. "←"."""
    import plotly.graph_objects as go

    down, across, values = grid
    figure = sheet.blank(title)
    top = max((value for line in values for value in line if value is not None), default=0.0)
    heat = {"colorscale": sheet.heat(tone), "zmin": 0, "zmax": top or 1.0, "showscale": False} | more
    figure.add_trace(
        go.Heatmap(
            x=[str(rank) for rank in across], y=[str(rank) for rank in down], z=values, xgap=1, ygap=1,
            text=[quantities(line, unit) for line in values],
            hovertemplate=f"%{{y}} {between} %{{x}}<br>%{{text}}<extra></extra>",
            texttemplate="%{text}" if len(across) <= 10 else None, **heat,
        )
    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_layout(height=max(320, 160 + 26 * min(len(down), 40)))
    return figure


def _title(sheet: Sheet, name: str) -> str:
    return f"{sheet.word(f'chart.{name}')}<br><sub>{sheet.word(f'chart.{name}_axis')}</sub>"


def rank_waits(sheet: Sheet) -> go.Figure:
    """Over all ranks: who waits for whom, per step and not hidden by computing."""
    table = sheet.table("rank-waits")
    figure = "exposed_ns" if has(table, "exposed_ns") else "wait_ns"
    grid = matrix(table, "waiter", "late", figure, sum, square=True)
    return _heat(sheet, _title(sheet, "rank_waits"), grid, "ns", "orange", "←")


def comm_waits(sheet: Sheet) -> go.Figure:
    """As one rank recorded it: which peers it waits for."""
    table = sheet.table("comm-waits")
    grid = matrix(table, "waiter", "peer", "wait_ns", sum, square=False)
    return _heat(sheet, _title(sheet, "waits"), grid, "ns", "orange", "←")


def comm_links(sheet: Sheet) -> go.Figure:
    """Bandwidth of the links that one rank used; mean over its rows, without copies to itself."""
    table = sheet.table("comm-links")
    rates = [column.name for column in table.columns if column.unit == "bytes_per_s"]
    if not rates:
        raise NotInData("comm-links has no bandwidth")
    grid = matrix(table, "src", "dst", rates[0], _mean, square=False, itself=False)
    return _heat(sheet, _title(sheet, "links"), grid, "bytes_per_s", "teal", "→")


def link_matrix(sheet: Sheet) -> go.Figure:
    """Links of all ranks as a share of the usual rate of like links: the slower the darker, the slowest counts."""
    grid = matrix(sheet.table("link-matrix"), "src", "dst", "ratio", min, square=True)
    look = {"colorscale": sheet.heat("orange", reverse=True), "zmin": 1 - SLOWEST_RATIO, "zmax": 1}
    return _heat(sheet, _title(sheet, "link_matrix"), grid, "ratio", "orange", "→", **look)


def comm_groups(sheet: Sheet) -> go.Figure:
    """Communication of one rank by group, in ms: waiting, moving data, and what the profile does not tell apart."""
    import plotly.graph_objects as go

    table = sheet.table("comm-groups")
    names = [
        sheet.cell(group) + ("" if ranks is None else f" [{sheet.cell(ranks, 'ranks')}]")
        for group, ranks in zip(cells(table, "group"), cells(table, "ranks"), strict=True)
    ]
    total = numbers(table, "total_ns", MS)
    wait, transit = (numbers(table, column, MS) for column in ("wait_ns", "transit_ns"))
    rest = [
        None if whole is None else max(0.0, whole - (waited or 0.0) - (moved or 0.0))
        for whole, waited, moved in zip(total, wait, transit, strict=True)
    ]
    figure = sheet.blank(sheet.say(table.title), barmode="stack", xaxis_title="ms")
    parts = (
        (sheet.word("kind.wait"), wait, {"color": sheet.kind("wait"), "pattern": {"shape": "/"}}),
        (sheet.word("kind.transfer"), transit, {"color": sheet.kind("transfer")}),
        (sheet.say(_REST), rest, {"color": sheet.kind("idle")}),
    )
    for name, times, marker in parts:
        if any(times):
            figure.add_trace(go.Bar(y=names, x=times, orientation="h", name=name, marker=marker))
    if not figure.data:
        raise NotInData("no time of a group")
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def size_bandwidth(sheet: Sheet) -> go.Figure:
    """Collectives of one rank: message size against bus bandwidth, both logarithmic, by link and shape.

    The area of a mark is its time. Dashed lines are the vendor peaks of the links, where the device table has them.
    """
    import plotly.graph_objects as go

    table = sheet.table("size-bandwidth")
    sizes = [positive(cell) for cell in cells(table, "size_bytes")]
    rates = [positive(cell) for cell in cells(table, "bus_bytes_per_s")]
    peaks = [positive(cell) for cell in cells(table, "peak_bytes_per_s")]
    times, ops, shares = numbers(table, "total_ns"), cells(table, "op"), numbers(table, "peak_ratio")
    links = [sheet.word("chart.link_unknown") if link is None else label(str(link))
             for link in cells(table, "transport")]  # fmt: skip
    rows = [row for row, (x, y) in enumerate(zip(sizes, rates, strict=True)) if x and y]
    if not rows:
        raise NotInData("no collective whose size and rate are known")
    longest = max((times[row] or 0.0 for row in rows), default=0.0)
    figure = sheet.blank(sheet.word("chart.sizes"))
    for place, link in enumerate(dict.fromkeys(links[row] for row in rows)):
        mine = [row for row in rows if links[row] == link]
        figure.add_trace(
            go.Scatter(
                x=[sizes[row] for row in mine], y=[rates[row] for row in mine], mode="markers", name=link,
                text=[label(str(ops[row] or "")) for row in mine],
                customdata=[
                    [format_quantity(sizes[row], "bytes"), format_quantity(rates[row], "bytes_per_s"),
                     format_quantity(times[row], "ns"),
                     "" if shares[row] is None else f", {format_quantity(shares[row], 'ratio')}"]
                    for row in mine
                ],
                hovertemplate="%{text}<br>%{customdata[0]}, %{customdata[1]}%{customdata[3]}<br>%{customdata[2]}",
                marker={
                    "color": sheet.line(place), "opacity": 0.7, "symbol": SYMBOLS[place % len(SYMBOLS)],
                    "size": [max(6.0, 36 * ((times[row] or 0.0) / longest) ** 0.5) if longest else 8.0 for row in mine],
                },
            )
        )  # fmt: skip
    ends = [min(sizes[row] or 1.0 for row in rows), max(sizes[row] or 1.0 for row in rows)]
    for link, top in dict.fromkeys((links[row], peak) for row in rows if (peak := peaks[row]) is not None):
        figure.add_trace(
            go.Scatter(
                x=ends, y=[top, top], mode="lines", line={"color": sheet.colour("text"), "dash": "dash", "width": 1.5},
                name=sheet.word("chart.ceiling", link=link, rate=format_quantity(top, "bytes_per_s")),
            )
        )  # fmt: skip
    figure.update_layout(showlegend=True)
    figure.update_xaxes(type="log", title=f"{sheet.word('chart.size_axis')} (B)", exponentformat="SI")
    figure.update_yaxes(type="log", title=f"{sheet.title_of(table, 'bus_bytes_per_s')} (B/s)", exponentformat="SI")
    return figure


def rank_strip(sheet: Sheet) -> go.Figure:
    """Ranks against each other, a row for each component of the step: darker is longer within a row.

    A mark stands at ranks that differ from those of their pipeline stage.

    Source:
        `reports/odd.py`: modified z-scores.
    """
    import plotly.graph_objects as go

    strip = strip_of(sheet.payload, bars(sheet.payload))
    if strip is None:
        raise NotInData("fewer than two ranks whose step is known")
    step = median(time for time in strip.rows[0].times_ns if time is not None)
    shares, texts = [], []
    for row in strip.rows:
        known = [time for time in row.times_ns if time is not None]
        low = min(known)
        span = max(max(known) - low, FLAT_RATIO * step) or 1.0
        shares.append([None if time is None else (time - low) / span for time in row.times_ns])
        texts.append([
            ("◆ " if score is not None and score.is_odd else "") + format_quantity(time, "ns")
            for time, score in zip(row.times_ns, row.scores, strict=True)
        ])  # fmt: skip
    figure = sheet.blank(sheet.word("strip.title"))
    figure.add_trace(
        go.Heatmap(
            x=[sheet.rank_name(rank) for rank in strip.ranks], y=[sheet.say(row.label) for row in strip.rows],
            z=shares, text=texts, zmin=0, zmax=1, colorscale=sheet.heat("blue"), showscale=False, xgap=1, ygap=1,
            texttemplate="%{text}" if len(strip.ranks) <= 8 else None,
            hovertemplate="%{x}<br>%{y}: %{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_layout(height=160 + 34 * len(strip.rows))
    return figure
