"""What all plotly figures share: their tables, the colours of the page, texts that cannot be markup."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.reports.bars import Kind
from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.palette import FONT, Theme, category, palette
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.texts import Lang, safe, said
from ascend_perf.units import Unit, format_quantity

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_NAME: Final = 120
"""Characters kept of a name in a figure."""

LINES: Final = ("k-computing", "k-host", "k-copy", "k-wait", "text", "k-idle")
"""Colours of the lines of a chart, in order, as in the page (`.c0` to `.c5`)."""

MS: Final = 1e6
US: Final = 1e3


class NotInData(KeyError):
    """A figure cannot be drawn: the profile does not hold what it needs."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a figure is drawn from and how. `rank` None takes the first rank that has the table."""

    payload: Payload
    rank: int | None = None
    lang: Lang = "en"
    theme: Theme = "light"

    def table(self, name: str) -> ResultTable:
        """A table of the rank, or of the job.

        Raises:
            NotInData: there is none with rows.
        """
        return self.owned(name)[1]

    def owned(self, name: str) -> tuple[int | None, ResultTable]:
        """The table with the rank that it is of; None for the job's and for a trace that names none.

        Raises:
            NotInData: there is none with rows.
        """
        for outcome in self.payload.outcomes:
            for table in outcome.tables:
                is_asked = self.rank is None or outcome.scope == "job" or outcome.rank == self.rank
                if table.name == name and len(table) and is_asked:
                    return outcome.rank, table
        raise NotInData(f"no table {name!r}" + ("" if self.rank is None else f" of rank {self.rank}"))

    def origin_ns(self, rank: int | None, times: Sequence[Cell] = ()) -> int:
        """Zero of the times of a rank: the start of its first step, else the earliest of `times`."""
        origins = {summary.rank: summary.origin_ns for summary in self.payload.ranks}
        known = origins.get(rank)
        return known if known is not None else min((t for t in times if isinstance(t, int)), default=0)

    def word(self, key: str, **values: object) -> str:
        """A text of the catalogue."""
        return catalogue(self.lang)[key].format(**values)

    def say(self, words: Words) -> str:
        """One language of a text, as a label."""
        return label(said(words, self.lang), most=400)

    def cell(self, value: Cell, column: str = "") -> str:
        """A cell as a label; phrases of ours in the language of the figure."""
        return "—" if value is None else self.say(phrase(str(value), column))

    def rank_name(self, rank: Cell) -> str:
        """"Rank 3"."""
        return self.word("ui.rank_unknown") if rank is None else self.word("ui.rank_n", rank=rank)

    def title_of(self, table: ResultTable, name: str) -> str:
        """Title of a column."""
        return self.say(column_of(table, name).title)

    def kind(self, kind: Kind, shade: int = 0) -> str:
        """Colour of a kind of time."""
        return category(kind, shade, self.theme)

    def colour(self, name: str) -> str:
        """A colour of the page by the name of its variable."""
        return palette(self.theme)[name]

    def line(self, number: int) -> str:
        """Colour of the n-th line of a chart."""
        return self.colour(LINES[number % len(LINES)])

    def blank(self, title: str, **layout: object) -> go.Figure:
        """A figure without traces, in the look of the page."""
        import plotly.graph_objects as go

        text, line = self.colour("text"), self.colour("line")
        axis = {"gridcolor": line, "zerolinecolor": line, "linecolor": line, "automargin": True}
        figure = go.Figure()
        figure.update_layout(
            template="none", title={"text": title, "font": {"size": 16}, "x": 0, "xref": "paper"},
            paper_bgcolor=self.colour("page"), plot_bgcolor=self.colour("page"),
            font={"family": FONT, "size": 13, "color": text}, xaxis=axis, yaxis=axis,
            hoverlabel={"namelength": -1}, separators=". ", margin={"t": 72, "r": 24}, legend={"traceorder": "normal"},
            **layout,
        )  # fmt: skip
        return figure

    def heat(self, tone: str, *, reverse: bool = False) -> list[list[object]]:
        """A colour scale from the page's panel to one of its heat colours (`blue`, `orange`, `teal`)."""
        ends = [self.colour("panel"), self.colour(f"heat-{tone}")]
        return [[float(at), colour] for at, colour in enumerate(ends[::-1] if reverse else ends)]


def label(text: str, most: int = MAX_NAME) -> str:
    """Text from a trace that plotly shows as it is: it reads `<b>`, `<a>` and entities as markup otherwise."""
    return html.escape(safe(text, most), quote=False)


def column_of(table: ResultTable, name: str) -> ResultColumn:
    """A column by name.

    Raises:
        NotInData: there is none.
    """
    for column in table.columns:
        if column.name == name:
            return column
    raise NotInData(f"the table {table.name!r} has no column {name!r}")


def need(table: ResultTable, name: str) -> Sequence[Cell]:
    """Cells of a column that a figure cannot do without.

    Raises:
        NotInData: there is no such column.
    """
    if not has(table, name):
        raise NotInData(f"the table {table.name!r} has no column {name!r}")
    return table.column(name)


def has(table: ResultTable, *names: str) -> bool:
    """Whether the table has these columns."""
    return {column.name for column in table.columns}.issuperset(names)


def cells(table: ResultTable, name: str) -> list[Cell]:
    """Cells of a column; unknown throughout where there is no such column."""
    return list(table.column(name)) if has(table, name) else [None] * len(table)


def numbers(table: ResultTable, name: str, per: float = 1.0) -> list[float | None]:
    """Numbers of a column divided by `per`; what is none is unknown."""
    return [number(cell, per) for cell in cells(table, name)]


def number(cell: Cell, per: float = 1.0) -> float | None:
    """A cell as a number divided by `per`, None where it is none."""
    return None if isinstance(cell, bool) or not isinstance(cell, int | float) else cell / per


def positive(cell: Cell) -> float | None:
    """A cell that a logarithmic axis can show."""
    value = number(cell)
    return value if value is not None and value > 0 else None


def quantities(values: Sequence[Cell], unit: Unit) -> list[str]:
    """Figures as the report writes them."""
    return [format_quantity(number(value), unit) for value in values]
