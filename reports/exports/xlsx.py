"""A workbook with the summary of the report: findings, steps, operators, communication, memory, ranks, data quality."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final

from ascend_perf import __version__
from ascend_perf.errors import MachineError
from ascend_perf.model.finding import Cell, Finding, ResultTable, Words
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.payload import STEP_FIGURES, Payload, build, finite
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.quality import quality_tables
from ascend_perf.reports.texts import Lang, safe, said
from ascend_perf.reports.verdict import all_together, facts, ranges, verdict
from ascend_perf.units import Unit, counted

MAX_ROWS: Final = 50_000
"""Rows of a sheet; what is left out is said below them."""
MAX_CELL: Final = 16_000
"""Characters of a cell. A workbook takes 32 767 units of 16 bits, and some characters are two."""
MAX_WIDTH: Final = 70
"""Width of a column in characters; longer texts are wrapped."""

EXACT_INT: Final = 1 << 53
"""Spreadsheets hold numbers as float64: larger integers (times since 1970 in ns) are written as text."""

FORMATS: Final[Mapping[Unit, tuple[float, str]]] = {
    "ns": (1e3, '#,##0.000 "us"'), "us": (1, '#,##0.000 "us"'), "ms": (1, '#,##0.000 "ms"'), "s": (1, '#,##0.000 "s"'),
    "bytes": (1, '#,##0 "B"'), "bytes_per_s": (1e9, '#,##0.000 "GB/s"'), "flops": (1e9, '#,##0.000 "GFLOP"'),
    "flops_per_s": (1e12, '#,##0.000 "TFLOPS"'), "ratio": (1, "0.0%"), "count": (1, "#,##0.###"),
    "hertz": (1e6, '#,##0.0 "MHz"'), "celsius": (1, '0.0 "°C"'), "watt": (1, '0.0 "W"'), "joule": (1, '0.0 "J"'),
    "items_per_s": (1, '#,##0.0 "/s"'), "x": (1, '0.00"x"'), "none": (1, "General"),
}  # fmt: skip
"""What numbers of a unit are divided by, and how they are shown; the cell stays a number."""

SHEETS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("operators", "section.operators", ("op-types",)),
    ("kernels", "", ("top-kernels",)),
    ("communication", "section.communication", ("comm-ops",)),
    ("collectives", "", ("collectives",)),
    ("memory", "section.memory", ("memory-peaks",)),
    ("ranks", "section.ranks", ("ranks",)),
)
"""Sheets of result tables: key, title (else that of `_TITLES`), and the tables whose rows they hold."""

_TITLES: Final = {
    "overview": Words("Overview", "概览"),
    "findings": Words("Findings", "问题"),
    "kernels": Words("Kernels", "Kernel"),
    "collectives": Words("Collectives", "集合通信"),
}

_XML: Final = {ord(c): "\ufffd" for c in "\ufffe\uffff"}
"""Characters that XML does not have and `safe` leaves."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One sheet: columns with their units, and rows. Without rows it says why."""

    title: str
    columns: tuple[tuple[str, Unit], ...]
    rows: list[Sequence[Cell]]
    empty: str = ""


def write_xlsx(request: Request, target: BinaryIO) -> tuple[str, ...]:
    """Write the workbook. Texts are strings, never formulas or links; unknown cells are empty.

    Raises:
        MachineError: XlsxWriter is not installed.
    """
    try:
        import xlsxwriter
    except ImportError:
        raise MachineError(
            "the format xlsx needs the package XlsxWriter", hint="pip install 'ascend-perf[export]'"
        ) from None
    payload = build(request.run, request.outcomes, request.findings, lang=request.lang)
    options = {
        "in_memory": True, "strings_to_numbers": False, "strings_to_formulas": False, "strings_to_urls": False,
    }  # fmt: skip
    left_out = []
    with xlsxwriter.Workbook(target, options) as book:
        # A fixed time: the same profile makes the same file.
        book.set_properties({"comments": f"ascend-perf {__version__}", "created": datetime(1980, 1, 1)})
        writer = _Writer(book, request.lang)
        for sheet in sheets(payload):
            writer.sheet(sheet)
            if len(sheet.rows) > MAX_ROWS:
                left_out.append(f"{sheet.title}: {counted(len(sheet.rows) - MAX_ROWS, 'row')} left out")
        writer.blocks(_said(words("section.quality"), request.lang), quality_tables(payload, request.lang))
    return tuple(left_out)


def sheets(payload: Payload) -> Iterator[Sheet]:
    """All sheets but that of the data quality, in their order."""
    lang = payload.lang
    yield _overview(payload)
    yield _findings(payload)
    yield _steps(payload)
    for key, title, names in SHEETS:
        shown = _said(words(title) if title else _TITLES[key], lang)
        yield _results(payload, shown, names)


def _overview(payload: Payload) -> Sheet:
    lang = payload.lang
    answer = verdict(payload)
    rows: list[Sequence[Cell]] = [
        ("ascend-perf", payload.version),
        (_said(words("ui.top"), lang), _said(answer.lead, lang)),
        ("", _said(answer.main, lang)),
    ]
    together = all_together(payload.findings)
    rows += [("", _said(text, lang)) for text in (answer.gain, together) if text is not None]
    rows.append((_said(words("md.origin"), lang), _said(words(f"origin.{payload.data_origin}"), lang)))
    rows += [(_said(fact.label, lang), _said(fact.value, lang)) for fact in facts(payload)]
    head = (_said(Words("What", "项目"), lang), _said(Words("Value", "值"), lang))
    return Sheet(
        title=_said(_TITLES["overview"], lang), columns=tuple((name, "none") for name in head), rows=rows
    )  # fmt: skip


def _findings(payload: Payload) -> Sheet:
    lang = payload.lang
    columns: tuple[tuple[Words, Unit], ...] = (
        (Words("No.", "序号"), "none"), (Words("Rank of the cause", "原因所在卡"), "none"),
        (Words("Ranks that lose time", "受影响的卡"), "none"), (Words("Code", "编号"), "none"),
        (Words("Severity", "严重程度"), "none"), (Words("Title", "标题"), "none"),
        (Words("Share of the step", "占单步耗时"), "ratio"), (Words("At most (bound)", "理论上限"), "x"),
        (Words("Adds to those before", "在前述问题之外增加"), "ratio"), (Words("Cause", "原因"), "none"),
        (words("ui.remedy"), "none"),
    )  # fmt: skip
    return Sheet(
        title=_said(_TITLES["findings"], lang),
        columns=tuple((_said(name, lang), unit) for name, unit in columns),
        rows=[_finding(number, finding, lang) for number, finding in enumerate(payload.findings, 1)],
        empty=_said(verdict(payload).main, lang),
    )


def _finding(number: int, finding: Finding, lang: Lang) -> Sequence[Cell]:
    remedies = [
        f"{place}. {said(remedy.text, lang)}" + (f"\n{safe(remedy.code)}" if remedy.code else "")
        for place, remedy in enumerate(finding.remedies, 1)
    ]
    return (
        number, ranges(finding.ranks), ranges(finding.affected_ranks), finding.code,
        _said(words(f"severity.{finding.severity.value}"), lang), said(finding.title, lang),
        finite(finding.share_ratio), finite(finding.bound_speedup), finite(finding.added_ratio),
        said(finding.cause, lang), "\n".join(remedies),
    )  # fmt: skip


def _steps(payload: Payload) -> Sheet:
    lang = payload.lang
    seen = [(rank.rank, step) for rank in payload.ranks for step in rank.steps]
    seen = [(rank, step) for rank, step in seen if any(getattr(step, name) is not None for name in STEP_FIGURES)]
    named: list[tuple[str, Unit]] = [(_said(words(f"column.{name}"), lang), "none") for name in ("rank", "step_id")]
    named += [(_said(_STEP_NAMES.get(name) or words(f"column.{name}"), lang), "us") for name in STEP_FIGURES]
    return Sheet(
        title=_said(words("section.steps"), lang),
        columns=tuple(named),
        rows=[(rank, step.step_id, *(getattr(step, name) for name in STEP_FIGURES)) for rank, step in seen],
        empty=_said(words("reason.steps"), lang),
    )


_STEP_NAMES: Final = {
    "copy_not_overlapped_us": Words("Copies, not overlapped", "未被掩盖的拷贝"),
    "wait_us": Words("Waiting", "等待"),
}


def _results(payload: Payload, title: str, names: tuple[str, ...]) -> Sheet:
    """Result tables of one name, those of all ranks below each other, with the rank before each row."""
    lang = payload.lang
    found = [(rank, table) for name in names for rank, table in payload.tables(name)]
    columns: dict[str, tuple[str, Unit]] = {}
    for _, table in found:
        for column in table.columns:
            columns.setdefault(column.name, (said(column.title, lang), column.unit))
    # The rank stands before rows that are about one.
    is_ranked = "rank" in columns or all(rank is None for rank, _ in found)
    rows: list[Sequence[Cell]] = []
    for rank, table in found:
        cells = {column.name: table.data[place] for place, column in enumerate(table.columns)}
        for row in range(len(table)):
            mine = [_cell(cells[name][row], name, lang) if name in cells else None for name in columns]
            rows.append(mine if is_ranked else [rank, *mine])
    head: list[tuple[str, Unit]] = [] if is_ranked else [(_said(words("column.rank"), lang), "none")]
    return Sheet(
        title=title, columns=tuple(head + list(columns.values())), rows=rows,
        empty=_said(words("ui.not_in_data"), lang),
    )  # fmt: skip


def _cell(value: Cell, column: str, lang: Lang) -> Cell:
    return said(phrase(value, column), lang) if isinstance(value, str) and value else value


def _said(text: Words, lang: Lang) -> str:
    return said(text, lang)


class _Writer:
    """Writes sheets into a workbook of XlsxWriter."""

    def __init__(self, book: Any, lang: Lang) -> None:
        self.book, self.lang = book, lang
        head = {"bold": True, "text_wrap": True, "valign": "top", "bottom": 1, "bg_color": "#E8ECF1"}
        self.head = book.add_format(head)
        self.bold = book.add_format({"bold": True, "font_size": 12})
        self.text = book.add_format({"text_wrap": True, "valign": "top"})
        self.formats = {
            unit: book.add_format({"num_format": shown, "valign": "top"}) for unit, (_, shown) in FORMATS.items()
        }

    def sheet(self, sheet: Sheet) -> None:
        """A sheet of one table, with its header frozen."""
        page = self.book.add_worksheet(sheet.title[:31])
        widths = self._header(page, 0, [name for name, _ in sheet.columns])
        page.freeze_panes(1, 0)
        shown = sheet.rows[:MAX_ROWS]
        for number, row in enumerate(shown, 1):
            self._row(page, number, row, [unit for _, unit in sheet.columns], widths)
        if shown:
            page.autofilter(0, 0, len(shown), len(sheet.columns) - 1)
        elif sheet.empty:
            page.write_string(1, 0, _plain(sheet.empty))
        if len(sheet.rows) > MAX_ROWS:
            more = len(sheet.rows) - MAX_ROWS
            said_ = Words(f"{counted(more, 'more row')} left out", f"另有 {more} 行未列出")
            page.write_string(len(shown) + 1, 0, _said(said_, self.lang))
        self._set(page, widths)

    def blocks(self, title: str, tables: Sequence[ResultTable]) -> None:
        """A sheet of several tables below each other, each with its title."""
        page = self.book.add_worksheet(title[:31])
        page.write_string(0, 0, title, self.bold)
        page.freeze_panes(1, 0)
        at, widths = 2, [10]
        for table in tables:
            page.write_string(at, 0, _plain(_said(table.title, self.lang)), self.bold)
            own = self._header(page, at + 1, [_said(column.title, self.lang) for column in table.columns])
            units = [column.unit for column in table.columns]
            shown = min(len(table), MAX_ROWS)
            for row in range(shown):
                self._row(page, at + 2 + row, [cells[row] for cells in table.data], units, own)
            widths = [max(pair) for pair in zip(_padded(widths, own), _padded(own, widths), strict=True)]
            at += shown + 3
        self._set(page, widths)

    def _header(self, page: Any, at: int, names: Sequence[str]) -> list[int]:
        for place, name in enumerate(names):
            page.write_string(at, place, _plain(name), self.head)
        return [min(_width(name), 24) for name in names]

    def _row(self, page: Any, at: int, row: Sequence[Cell], units: Sequence[Unit], widths: list[int]) -> None:
        for place, (value, unit) in enumerate(zip(row, units, strict=True)):
            if isinstance(value, bool):
                page.write_boolean(at, place, value, self.text)
            elif isinstance(value, str) or (isinstance(value, int) and abs(value) > EXACT_INT):
                text = _plain(str(value))
                page.write_string(at, place, text, self.text)
                widths[place] = max(widths[place], _width(text))
            elif value is not None and finite(value) is not None:
                page.write_number(at, place, value / FORMATS[unit][0], self.formats[unit])
                widths[place] = max(widths[place], 14)

    @staticmethod
    def _set(page: Any, widths: Sequence[int]) -> None:
        for place, width in enumerate(widths):
            page.set_column(place, place, min(width + 2, MAX_WIDTH))


def _padded(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [*one, *([0] * (len(other) - len(one)))]


def _plain(text: str) -> str:
    return safe(text, MAX_CELL).translate(_XML)


def _width(text: str) -> int:
    """Cells that the longest line of a text takes; Chinese characters take two."""
    line = max(text[:2000].split("\n"), key=len)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line[:MAX_WIDTH])


EXPORTER: Final = Exporter(
    name="xlsx",
    suffix="xlsx",
    summary="workbook with findings, steps, operators, communication, memory, ranks and data quality",
    write=write_xlsx,
    analyzes=True,
)
