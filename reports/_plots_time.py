"""Figures of time: step, idle causes, critical path, timeline, memory, counters, the training's own figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, get_args

from ascend_perf.model.finding import Cell, ResultTable
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
from ascend_perf.reports.bars import Kind, bars
from ascend_perf.reports.palette import shades
from ascend_perf.reports.parts import path_kind
from ascend_perf.reports.timelines import TIMELINE, coarser, is_timeline, ordered
from ascend_perf.units import Unit, format_quantity

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_INTERVALS: Final = 5000
"""Intervals of the timeline as a figure: neighbours are merged until there are about as many."""

MAX_COUNTERS: Final = 12
"""Counters that are drawn, those that vary most first."""

INTERVAL_KIND: Final[dict[str, tuple[Kind, int]]] = {
    "compute": ("computing", 0),
    "communication": ("transfer", 0),
    "wait": ("wait", 0),
    "copy": ("copy", 0),
    "host": ("host", 0),
    "dataloader": ("host", 0),
    "gc": ("host", 0),
    "sync": ("host", 3),
    "idle": ("idle", 0),
}
"""Colour of an interval of the timeline by its kind: category and shade."""


def step_bar(sheet: Sheet) -> go.Figure:
    """Where the step goes: one stacked bar per rank, in ms."""
    import plotly.graph_objects as go

    made = bars(sheet.payload)
    if not made:
        raise NotInData("no step whose parts are known")
    figure = sheet.blank(sheet.word("ui.where"), barmode="stack", xaxis_title="ms")
    ranks = [sheet.rank_name(bar.rank) + (" ◆" if bar.is_outlier else "") for bar in made]
    shade = {
        part.key: number
        for bar in reversed(made)
        for part, number in zip(bar.parts, shades(bar), strict=True)
    }  # fmt: skip
    names = dict.fromkeys((part.key, part.kind, sheet.say(part.label)) for bar in made for part in bar.parts)
    for key, kind, name in names:
        times = [sum(part.time_ns for part in bar.parts if part.key == key) / MS for bar in made]
        shares = [time * MS / bar.total_ns if bar.total_ns else 0.0 for time, bar in zip(times, made, strict=True)]
        figure.add_trace(
            go.Bar(
                y=ranks, x=times, name=name, orientation="h", customdata=quantities(shares, "ratio"),
                hovertemplate="%{y}<br>%{x:.4g} ms, %{customdata}", marker=_marker(sheet, kind, shade[key]),
            )
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _marker(sheet: Sheet, kind: Kind, shade: int = 0) -> dict[str, object]:
    """Fill of a bar: waiting is hatched, as in the page."""
    pattern = {"shape": "/", "bgcolor": sheet.colour("wait-paper")} if kind == "wait" else {"shape": ""}
    return {"color": sheet.kind(kind, shade), "pattern": pattern, "line": {"color": sheet.colour("page"), "width": 1}}


def idle_causes(sheet: Sheet) -> go.Figure:
    """What the host did while the device was idle, in ms over all steps."""
    import plotly.graph_objects as go

    table = sheet.table("idle-causes")
    rows = sorted(
        (time, sheet.cell(cause, "cause"))
        for time, cause in zip(numbers(table, "total_ns", MS), cells(table, "cause"), strict=True)
        if time is not None and time > 0
    )
    whole = sum(time for time, _ in rows)
    figure = sheet.blank(sheet.say(table.title), xaxis_title="ms", showlegend=False)
    figure.add_trace(
        go.Bar(
            x=[time for time, _ in rows], y=[name for _, name in rows], orientation="h",
            marker=_marker(sheet, "idle"), text=quantities([time / whole for time, _ in rows], "ratio"),
            hovertemplate="%{y}<br>%{x:.4g} ms, %{text}<extra></extra>",
        )
    )  # fmt: skip
    return figure


def critical_path(sheet: Sheet, name: str = "critical-path") -> go.Figure:
    """What the longest path through the step consists of, in ms; the parts add up to the step."""
    import plotly.graph_objects as go

    table = sheet.table(name)
    figure = sheet.blank(sheet.say(table.title), xaxis_title="ms", showlegend=False)
    components, classes = cells(table, "component"), cells(table, "class")
    names = [
        sheet.cell(component, "component") + ("" if of_class is None else f" ({sheet.cell(of_class, 'class')})")
        for component, of_class in zip(components, classes, strict=True)
    ]
    kinds = [path_kind(component) for component in components]
    figure.add_trace(
        go.Bar(
            x=numbers(table, "time_ns", MS), y=names, orientation="h",
            text=quantities(cells(table, "share_ratio"), "ratio"),
            hovertemplate="%{y}<br>%{x:.4g} ms, %{text}<extra></extra>",
            marker={
                "color": [sheet.kind(kind) for kind in kinds],
                "pattern": {"shape": ["/" if kind == "wait" else "" for kind in kinds]},
            },
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return figure


def job_critical_path(sheet: Sheet) -> go.Figure:
    """The same over all ranks."""
    return critical_path(sheet, "job-critical-path")


def timeline(sheet: Sheet) -> go.Figure:
    """The intervals of one step by lane, from the start of the rank's first step in ms.

    Neighbours are merged where there are more than `MAX_INTERVALS`; such a run names what takes most of it.
    """
    import plotly.graph_objects as go

    rank, table = sheet.owned(TIMELINE)
    if not is_timeline(table):
        raise NotInData("the timeline has intervals without times")
    every = len(table)
    table = ordered(table)
    if every > MAX_INTERVALS:
        table = coarser(table, MAX_INTERVALS)
    starts, lengths = need(table, "start_ns"), need(table, "dur_ns")
    origin = sheet.origin_ns(rank, starts)
    lanes = [sheet.cell(lane, "lane") for lane in need(table, "lane")]
    runs = cells(table, "count")
    by_kind: dict[str, list[int]] = {}
    for row, kind in enumerate(need(table, "kind")):
        by_kind.setdefault(str(kind), []).append(row)
    note = "" if len(table) == every else f" ({len(table)} / {every})"
    figure = sheet.blank(
        f"{sheet.say(table.title)}{note}", barmode="overlay", bargap=0.15,
        xaxis_title=f"{sheet.word('chart.time')} (ms)",
    )  # fmt: skip
    names = need(table, "name")
    for text, rows in by_kind.items():
        kind, shade = INTERVAL_KIND.get(text, ("other", 0))
        said = [label(str(names[row] or "")) + _times(runs[row]) for row in rows]
        figure.add_trace(
            go.Bar(
                x=[number(lengths[row], MS) for row in rows], base=[_from(starts[row], origin) for row in rows],
                y=[lanes[row] for row in rows], orientation="h", name=sheet.cell(text, "kind"), text=said,
                textposition="none", customdata=quantities([lengths[row] for row in rows], "ns"),
                hovertemplate="%{text}<br>%{base:.6g} ms + %{customdata}", marker=_marker(sheet, kind, shade) | {
                    "line": {"width": 0}
                },
            )
        )  # fmt: skip
    order = list(dict.fromkeys(lanes))
    figure.update_layout(height=max(320, 140 + 26 * len(order)))
    figure.update_yaxes(autorange="reversed", type="category", categoryorder="array", categoryarray=order)
    return figure


def _times(count: Cell) -> str:
    return f" … ×{count}" if isinstance(count, int) and count > 1 else ""


def _from(cell: Cell, origin: int, per: float = MS) -> float | None:
    return (cell - origin) / per if isinstance(cell, int | float) else None


def memory(sheet: Sheet) -> go.Figure:
    """Allocated and reserved memory of one rank over the step, in GiB and ms."""
    import plotly.graph_objects as go

    rank, table = sheet.owned("memory-timeline")
    times = need(table, "time_ns")
    origin = sheet.origin_ns(rank, times)
    components = cells(table, "component")
    figure = sheet.blank(sheet.word("chart.memory"))
    for place, component in enumerate(dict.fromkeys(components)):
        rows = [i for i, name in enumerate(components) if name == component]
        for column, key in (("allocated_bytes", "chart.allocated"), ("reserved_bytes", "chart.reserved")):
            sizes = cells(table, column)
            if all(sizes[i] is None for i in rows):
                continue
            dash = "dash" if column == "reserved_bytes" else "solid"
            line = {"shape": "hv", "dash": dash, "color": sheet.line(place)}
            figure.add_trace(
                go.Scatter(
                    x=[_from(times[i], origin) for i in rows], y=[number(sizes[i], 2.0**30) for i in rows],
                    name=f"{sheet.cell(component, 'component')}, {sheet.word(key)}", line=line, mode="lines",
                )
            )  # fmt: skip
    figure.update_xaxes(title=f"{sheet.word('chart.time')} (ms)")
    figure.update_yaxes(title="GiB", rangemode="tozero")
    return figure


def training(sheet: Sheet, column: str) -> go.Figure:
    """A figure that the training wrote itself (loss, gradient norm, loss scale) over its steps, logarithmic."""
    import plotly.graph_objects as go

    table = sheet.table("training-series")
    values = [positive(cell) for cell in cells(table, column)]
    if len({value for value in values if value is not None}) < 2:
        raise NotInData(f"{column} never changes, or is not in this data")
    series, steps = cells(table, "series"), numbers(table, "step")
    figure = sheet.blank(sheet.title_of(table, column))
    for place, name in enumerate(dict.fromkeys(series)):
        x: list[float | None] = []
        y: list[float | None] = []
        before = None
        for row in (row for row, one in enumerate(series) if one == name):
            step, value = steps[row], values[row]
            if step is None or value is None:
                continue
            if before is not None and step <= before:  # another attempt: a line of its own
                x.append(None)
                y.append(None)
            x.append(step)
            y.append(value)
            before = step
        figure.add_trace(
            go.Scatter(x=x, y=y, mode="lines", name=sheet.cell(name) if name else "", line={"color": sheet.line(place)})
        )
    figure.update_layout(showlegend=len(figure.data) > 1)
    figure.update_xaxes(title=sheet.title_of(table, "step"))
    figure.update_yaxes(type="log")
    return figure


def loss(sheet: Sheet) -> go.Figure:
    """Loss over the steps."""
    return training(sheet, "loss")


def gradient_norm(sheet: Sheet) -> go.Figure:
    """Gradient norm over the steps."""
    return training(sheet, "grad_norm")


def loss_scale(sheet: Sheet) -> go.Figure:
    """Loss scale over the steps."""
    return training(sheet, "loss_scale")


def counters(sheet: Sheet) -> go.Figure:
    """Device counters over time with their range, under the share of the time in which the device was busy."""
    rank, table = sheet.owned("counter-timeline")
    names = cells(table, "counter")
    rows_of: dict[Cell, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name, []).append(row)
    most, least = numbers(table, "most"), numbers(table, "least")
    drawn = [
        (name, rows) for name, rows in rows_of.items()
        if len(rows) > 1 and any(most[row] or least[row] for row in rows)
    ][:MAX_COUNTERS]  # fmt: skip
    if not drawn:
        raise NotInData("no counter with two samples that are not 0")
    origin = sheet.origin_ns(rank, cells(table, "start_ns"))
    centre = [
        None if start is None else start + (length or 0) / 2 / MS
        for start, length in zip(
            [_from(cell, origin) for cell in cells(table, "start_ns")], numbers(table, "dur_ns"), strict=True
        )
    ]
    return _counter_rows(sheet, table, drawn, centre)


def _counter_rows(
    sheet: Sheet, table: ResultTable, drawn: list[tuple[Cell, list[int]]], centre: list[float | None]
) -> go.Figure:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    units, means = cells(table, "unit"), numbers(table, "mean")
    most, least = numbers(table, "most"), numbers(table, "least")
    busy = [column for column in ("computing_ratio", "communicating_ratio") if has(table, column)]
    rows_in_all = len(drawn) + bool(busy)
    titles = [""] * bool(busy) + [sheet.cell(name) for name, _ in drawn]
    figure = make_subplots(
        rows=rows_in_all, cols=1, shared_xaxes=True, vertical_spacing=0.35 / rows_in_all, subplot_titles=titles
    )
    figure.update_annotations(x=0, xanchor="left", font={"size": 12})
    figure.update_layout(sheet.blank(sheet.say(table.title)).layout)
    fullest = max((rows for _, rows in drawn), key=len)
    for column in busy:
        colour = sheet.line(0 if column == "computing_ratio" else 3)
        shares = numbers(table, column)
        figure.add_trace(
            go.Scatter(
                x=[centre[row] for row in fullest], y=[shares[row] for row in fullest], mode="lines",
                name=sheet.title_of(table, column), fill="tozeroy", line={"color": colour, "width": 1, "shape": "hvh"},
            ),
            row=1, col=1,
        )  # fmt: skip
    for place, (name, rows) in enumerate(drawn, 1 + bool(busy)):
        unit = _unit(units[rows[0]])
        x, said = [centre[row] for row in rows], sheet.cell(name)
        edge = {"color": sheet.colour("k-host"), "width": 0}
        for values, fill in ((least, None), (most, "tonexty")):
            figure.add_trace(
                go.Scatter(
                    x=x, y=[values[row] for row in rows], mode="lines", line=edge, fill=fill, hoverinfo="skip",
                    showlegend=False, name=said,
                ),
                row=place, col=1,
            )  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=x, y=[means[row] for row in rows], mode="lines", name=said, showlegend=False,
                line={"color": sheet.colour("k-host")}, text=quantities([means[row] for row in rows], unit),
                hovertemplate="%{text}",
            ),
            row=place, col=1,
        )  # fmt: skip
        top = max((value for row in rows if (value := most[row]) is not None), default=0.0)
        figure.update_yaxes(
            row=place, col=1, rangemode="tozero", tickvals=[0, top], ticktext=["0", format_quantity(top, unit)]
        )
    figure.update_layout(height=160 + 96 * rows_in_all)
    figure.update_xaxes(title=f"{sheet.word('chart.time')} (ms)", row=rows_in_all, col=1)
    return figure


def _unit(cell: Cell) -> Unit:
    return cast("Unit", cell) if cell in get_args(Unit) else "none"
