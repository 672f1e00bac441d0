"""The report's charts as plotly figures, for notebooks and pages of your own; plotly is imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ascend_perf.model.finding import Cell, ResultTable
from ascend_perf.reports.bars import Kind, bars
from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.texts import Lang, said

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS: Final[dict[Kind, str]] = {
    "computing": "#2c67b0",
    "transfer": "#e08a2c",
    "wait": "#e08a2c",
    "copy": "#14857c",
    "idle": "#a9b1ba",
    "host": "#7652b3",
    "other": "#dde2e7",
}
"""Category colours of the report; waiting is hatched as well."""


def step_bar(payload: Payload, *, lang: Lang = "en") -> go.Figure:
    """Where the step goes: one stacked bar per rank, in ms."""
    import plotly.graph_objects as go

    made = bars(payload)
    words = catalogue(lang)
    figure = go.Figure()
    ranks = [words["ui.rank_unknown"] if b.rank is None else words["ui.rank_n"].format(rank=b.rank) for b in made]
    names = dict.fromkeys((part.key, part.kind, said(part.label, lang)) for bar in made for part in bar.parts)
    for key, kind, label in names:
        times = [sum(part.time_ns for part in bar.parts if part.key == key) / 1e6 for bar in made]
        pattern = {"shape": "/" if kind == "wait" else ""}
        marker = {"color": COLOURS[kind], "pattern": pattern, "line": {"color": "white", "width": 1}}
        figure.add_trace(go.Bar(y=ranks, x=times, name=label, orientation="h", marker=marker))
    figure.update_layout(barmode="stack", title=words["ui.where"], xaxis_title="ms")
    figure.update_yaxes(autorange="reversed")
    return figure


def roofline(payload: Payload, *, rank: int | None = None, lang: Lang = "en") -> go.Figure:
    """Kernels of one rank by arithmetic intensity and achieved rate, with the roofs of the device.

    Raises:
        KeyError: the rank has no roofline.
    """
    import plotly.graph_objects as go

    table = _table(payload, "roofline", rank)
    intensity, achieved = table.column("intensity_flops_per_byte"), table.column("achieved_flops_per_s")
    words = catalogue(lang)
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=list(intensity), y=list(achieved), text=list(table.column("name")), mode="markers",
            name=words["section.operators"], marker={"color": COLOURS["computing"], "opacity": 0.6},
        )
    )  # fmt: skip
    known = [x for x in map(_positive, intensity) if x is not None]
    low, high = min(known, default=0.1), max(known, default=1000.0)
    for name, kind, value in _roofs(payload, rank):
        ends = [low, high]
        rates = [value, value] if kind == "compute" else [value * x for x in ends]
        figure.add_trace(go.Scatter(x=ends, y=rates, name=name, mode="lines", line={"color": "#545d68"}))
    figure.update_layout(title=words["chart.roofline"])
    figure.update_xaxes(type="log", title=words["chart.intensity"])
    figure.update_yaxes(type="log", title=f"{words['chart.achieved']} (FLOP/s)")
    return figure


def memory(payload: Payload, *, rank: int | None = None, lang: Lang = "en") -> go.Figure:
    """Allocated and reserved memory of one rank over the step, in GiB and ms.

    Raises:
        KeyError: the rank has no memory timeline.
    """
    import plotly.graph_objects as go

    table = _table(payload, "memory-timeline", rank)
    words = catalogue(lang)
    origins = {summary.rank: summary.origin_ns for summary in payload.ranks}
    times = table.column("time_ns")
    first = min((t for t in times if isinstance(t, int)), default=0)
    origin = origins.get(rank) or first
    components = table.column("component")
    figure = go.Figure()
    for component in dict.fromkeys(components):
        rows = [i for i, name in enumerate(components) if name == component]
        for column, key in (("allocated_bytes", "chart.allocated"), ("reserved_bytes", "chart.reserved")):
            sizes = table.column(column)
            dash = "dash" if column == "reserved_bytes" else "solid"
            figure.add_trace(
                go.Scatter(
                    x=[_scaled(times[i], origin, 1e6) for i in rows], y=[_scaled(sizes[i], 0, 2.0**30) for i in rows],
                    name=f"{component}, {words[key]}", line={"shape": "hv", "dash": dash},
                )
            )  # fmt: skip
    figure.update_layout(title=words["chart.memory"])
    figure.update_xaxes(title=f"{words['chart.time']} (ms)")
    figure.update_yaxes(title="GiB", rangemode="tozero")
    return figure


def _table(payload: Payload, name: str, rank: int | None) -> ResultTable:
    """The table of a rank, of the first rank that has one when `rank` is None."""
    for owner, table in payload.tables(name):
        if rank is None or owner == rank:
            return table
    raise KeyError(f"no table {name!r}" + ("" if rank is None else f" of rank {rank}"))


def _roofs(payload: Payload, rank: int | None) -> list[tuple[str, str, float]]:
    try:
        table = _table(payload, "roofs", rank)
    except KeyError:
        return []
    rows = zip(table.column("name"), table.column("kind"), table.column("value"), strict=True)
    return [(str(name), str(kind), top) for name, kind, value in rows if (top := _positive(value)) is not None]


def _positive(cell: Cell) -> float | None:
    return float(cell) if isinstance(cell, int | float) and cell > 0 else None


def _scaled(cell: Cell, origin: int, factor: float) -> float | None:
    return (cell - origin) / factor if isinstance(cell, int | float) else None
