"""Figures of operators: types by time, time against the roof, the roofline, flame graphs."""

from __future__ import annotations

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
from ascend_perf.reports.bars import Kind

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_TYPES: Final = 25
"""Operator types that are drawn; the others are one bar."""

MIN_MARK_PX: Final = 5
MAX_MARK_PX: Final = 32
"""Diameters of the marks of the roofline; between them the area is the time."""

_USED: Final = Words("Within the roof, or without a known one", "屋顶以内的耗时，或屋顶未知")
_WASTED: Final = Words("Beyond the roof (wasted)", "超出屋顶的耗时（浪费）")
_AGAINST: Final = Words("Time against the roof", "耗时与屋顶的差距")
_OTHERS: Final = Words("Others", "其他")
_CUMULATIVE: Final = Words("Cumulative", "累计")

FLAME: Final[dict[str, tuple[Kind, int]]] = {
    "thread": ("host", 4), "python": ("host", 2), "module": ("host", 0), "range": ("host", 4), "op": ("host", 1),
    "runtime": ("host", 3), "backward": ("host", 4), "kernel": ("computing", 0), "communication": ("transfer", 0),
    "copy": ("copy", 0), "not_attributed": ("idle", 0), "rest": ("idle", 3),
}  # fmt: skip
"""Colour of a frame by its class: category and shade, as in the page."""


def op_types(sheet: Sheet) -> go.Figure:
    """Operator types by time, longest first, with the cumulative share of the kernel time."""
    import plotly.graph_objects as go

    table = sheet.table("op-types")
    times = numbers(table, "total_ns" if has(table, "total_ns") else "time_ns", MS)
    names = cells(table, "op_type")
    rows = sorted(
        ((time, sheet.cell(name, "class")) for time, name in zip(times, names, strict=True) if time),
        key=lambda row: -row[0],
    )
    whole = sum(time for time, _ in rows)
    if not whole:
        raise NotInData("no time of an operator type")
    if len(rows) > MAX_TYPES:
        rest = rows[MAX_TYPES:]
        rows = [*rows[:MAX_TYPES], (sum(time for time, _ in rest), f"{sheet.say(_OTHERS)} ({len(rest)})")]
    x = [name for _, name in rows]
    shares = [sum(time for time, _ in rows[: place + 1]) / whole for place in range(len(rows))]
    figure = sheet.blank(sheet.say(table.title), yaxis_title="ms", showlegend=False)
    figure.add_trace(
        go.Bar(
            x=x, y=[time for time, _ in rows], marker={"color": sheet.kind("computing")},
            text=quantities([time / whole for time, _ in rows], "ratio"), textposition="none",
            hovertemplate="%{x}<br>%{y:.4g} ms, %{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=x, y=shares, yaxis="y2", mode="lines+markers", name=sheet.say(_CUMULATIVE),
            line={"color": sheet.colour("text"), "width": 1}, hovertemplate="%{y:.0%}",
        )
    )  # fmt: skip
    figure.update_layout(
        yaxis2={"overlaying": "y", "side": "right", "range": [0, 1.02], "tickformat": ".0%", "showgrid": False}
    )
    figure.update_xaxes(type="category", tickangle=-40)
    return figure


def wasted_time(sheet: Sheet) -> go.Figure:
    """Time of each class of kernels with what it takes beyond its roof; the largest such part first.

    From `roofline-classes`, else from the kernels of `mac` by type. Classes without a known roof are not in it; kernels
    without one in a class that has one count as within.
    """
    import plotly.graph_objects as go

    try:
        table, column = sheet.table("roofline-classes"), "class"
    except KeyError:
        table, column = sheet.table("mac"), "op_type"
    found: dict[str, tuple[float, float]] = {}
    known = zip(cells(table, column), numbers(table, "time_ns", MS), numbers(table, "wasted_ns", MS), strict=True)
    for name, time, wasted in known:
        if time is not None and wasted is not None:
            before = found.get(sheet.cell(name, "class"), (0.0, 0.0))
            found[sheet.cell(name, "class")] = (before[0] + time, before[1] + wasted)
    rows = sorted(((wasted, time, name) for name, (time, wasted) in found.items()), reverse=True)[:MAX_TYPES]
    if not rows:
        raise NotInData("no kernel whose roof is known")
    names = [name for _, _, name in rows]
    figure = sheet.blank(sheet.say(_AGAINST), barmode="stack", xaxis_title="ms")
    parts: tuple[tuple[Words, list[float], str], ...] = (
        (_WASTED, [wasted for wasted, _, _ in rows], sheet.colour("sev-high")),
        (_USED, [max(0.0, time - wasted) for wasted, time, _ in rows], sheet.kind("computing")),
    )
    for title, times, colour in parts:
        figure.add_trace(
            go.Bar(
                y=names, x=times, orientation="h", name=sheet.say(title), marker={"color": colour},
                hovertemplate="%{y}<br>%{x:.4g} ms",
            )
        )  # fmt: skip
    figure.update_layout(legend={"orientation": "h", "y": -0.15})
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def roofline(sheet: Sheet) -> go.Figure:
    """Kernels of one rank by arithmetic intensity and achieved rate, with the roofs of the device."""
    import plotly.graph_objects as go

    table = sheet.table("roofline")
    intensity = [positive(cell) for cell in need(table, "intensity_flops_per_byte")]
    achieved = [positive(cell) for cell in need(table, "achieved_flops_per_s")]
    names, times = cells(table, "name"), cells(table, "time_ns")
    rows = [row for row, (x, y) in enumerate(zip(intensity, achieved, strict=True)) if x and y]
    if not rows:
        raise NotInData("no kernel whose intensity and rate are known")
    hollow = ["vec" in str(cell).lower() for cell in cells(table, "roof")]
    longest = max((time for row in rows if (time := number(times[row]))), default=0.0)
    sizes = [
        max(MIN_MARK_PX, MAX_MARK_PX * ((number(times[row]) or 0.0) / longest) ** 0.5) if longest else 8.0
        for row in rows
    ]
    figure = sheet.blank(sheet.word("chart.roofline"))
    figure.add_trace(
        go.Scatter(
            x=[intensity[row] for row in rows], y=[achieved[row] for row in rows], mode="markers",
            name=sheet.word("section.operators"), text=[label(str(names[row] or "")) for row in rows],
            customdata=quantities([times[row] for row in rows], "ns"),
            hovertemplate="%{text}<br>%{x:.4g} FLOP/B, %{y:.4s}FLOP/s<br>%{customdata}",
            marker={
                "color": sheet.kind("computing"), "opacity": 0.6, "size": sizes,
                "symbol": ["circle-open" if hollow[row] else "circle" for row in rows],
            },
        )
    )  # fmt: skip
    _draw_roofs(sheet, figure, [x for x in intensity if x])
    figure.update_xaxes(type="log", title=sheet.word("chart.intensity"))
    figure.update_yaxes(type="log", title=f"{sheet.word('chart.achieved')} (FLOP/s)", exponentformat="SI")
    return figure


def _draw_roofs(sheet: Sheet, figure: go.Figure, known: list[float]) -> None:
    import plotly.graph_objects as go

    roofs = _roofs(sheet)
    flat = max((top for _, kind, top in roofs if kind == "compute"), default=None)
    steep = max((top for _, kind, top in roofs if kind == "bandwidth"), default=None)
    ridge = [flat / steep] if flat and steep else []
    low, high = min([*known, *ridge]), max([*known, *ridge])
    for name, kind, top in roofs:
        rates = [top, top] if kind == "compute" else [top * low, top * high]
        line = {"color": sheet.colour("text"), "width": 1.5, "dash": "solid" if kind == "compute" else "dot"}
        figure.add_trace(go.Scatter(x=[low, high], y=rates, name=label(name), mode="lines", line=line))


def _roofs(sheet: Sheet) -> list[tuple[str, str, float]]:
    try:
        table = sheet.table("roofs")
    except KeyError:
        return []
    rows = zip(need(table, "name"), need(table, "kind"), need(table, "value"), strict=True)
    return [(str(name), str(kind), top) for name, kind, value in rows if (top := positive(value)) is not None]


def flame(sheet: Sheet, view: str) -> go.Figure:
    """A flame graph as icicle: frames are as wide as their time, what they called lies below. In ms."""
    import plotly.graph_objects as go

    table = sheet.table(f"flame-{view}")
    parents, totals = cells(table, "parent"), numbers(table, "total_ns", MS)
    tops = [row for row, parent in enumerate(parents) if parent is None]
    ids = ["all", *map(str, range(len(table)))]
    figure = sheet.blank(sheet.say(table.title))
    figure.add_trace(
        go.Icicle(
            ids=ids, labels=[sheet.word("flame.all"), *_frames(sheet, table)],
            parents=["", *("all" if parent is None else str(parent) for parent in parents)],
            values=[sum(totals[row] or 0.0 for row in tops), *(total or 0.0 for total in totals)],
            branchvalues="total", tiling={"orientation": "v"}, pathbar={"visible": True}, sort=True,
            customdata=["", *quantities(cells(table, "self_ns"), "ns")],
            hovertemplate="%{label}<br>%{value:.4g} ms, %{percentRoot:.1%}<br>%{customdata}<extra></extra>",
            marker={"colors": [sheet.colour("line"), *(_fill(sheet, cell) for cell in cells(table, "class"))]},
        )
    )  # fmt: skip
    figure.update_layout(height=640)
    return figure


def _frames(sheet: Sheet, table: ResultTable) -> list[str]:
    named = {"backward": "flame.backward", "not_attributed": "flame.not_attributed"}
    made = []
    for name, of_class, count in zip(cells(table, "name"), cells(table, "class"), cells(table, "count"), strict=True):
        if of_class == "rest":
            made.append(sheet.word("flame.smaller", count=count))
        else:
            made.append(sheet.word(named[str(of_class)]) if of_class in named else label(str(name or "")))
    return made


def _fill(sheet: Sheet, of_class: Cell) -> str:
    kind, shade = FLAME.get(str(of_class), ("other", 0))
    return sheet.kind(kind, shade)


def flame_host(sheet: Sheet) -> go.Figure:
    """Time of the host's threads."""
    return flame(sheet, "host")


def flame_device_module(sheet: Sheet) -> go.Figure:
    """Time of the device by module."""
    return flame(sheet, "device-module")


def flame_device_stack(sheet: Sheet) -> go.Figure:
    """Time of the device by Python stack."""
    return flame(sheet, "device-stack")


def flame_device_op(sheet: Sheet) -> go.Figure:
    """Time of the device by operator."""
    return flame(sheet, "device-op")
