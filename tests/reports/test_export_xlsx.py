"""The workbook, read back by another library: sheets, cells with their units, hostile texts, both languages."""

from __future__ import annotations

import builtins
import io
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import pytest

from ascend_perf import __version__, pipeline
from ascend_perf.errors import MachineError
from ascend_perf.model.finding import (
    Evidence,
    Finding,
    Outcome,
    Remedy,
    ResultColumn,
    ResultTable,
    Severity,
    Words,
)
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.exports.xlsx import EXACT_INT, MAX_CELL, write_xlsx
from ascend_perf.reports.texts import MAX_TEXT
from ascend_perf.units import BETTER, Unit
from tests.conftest import build_table
from tests.reports._hostile import HOSTILE

EN = [
    "Overview", "Findings", "Step breakdown", "Operators", "Kernels", "Communication", "Collectives", "Memory",
    "Ranks", "Data quality",
]  # fmt: skip


def both(text: str) -> Words:
    return Words(text, f"{text}（中）")


def table(name: str, columns: list[tuple[str, Unit]], *rows: tuple[Any, ...]) -> ResultTable:
    return ResultTable(
        name=name, title=both(name), columns=tuple(ResultColumn(name=c, title=both(c), unit=u) for c, u in columns),
        data=tuple(tuple(row[i] for row in rows) for i in range(len(columns))),
    )  # fmt: skip


def finding(**more: Any) -> Finding:
    fields = {
        "code": "H-01", "analyzer": "a", "title": both("Idle"), "severity": Severity.HIGH, "share_ratio": 0.2,
        "ranks": (0, 1, 2, 5), "affected_ranks": (3,), "added_ratio": 0.125, "cause": both("why"),
        "evidence": (Evidence(name=both("n"), value=1),),
        "remedies": (Remedy(text=both("do"), code="x=1"), Remedy(text=both("or this"))), **more,
    }  # fmt: skip
    return Finding(**fields)


def request(lang: Any = "en", findings: tuple[Finding, ...] = (), *tables: ResultTable) -> Request:
    kernels = build_table("kernels", [{"name": "k", "start_ns": 0, "dur_ns": 5}])
    trace = Trace({"kernels": kernels}, Meta(rank=4, label="x"))
    steps = table("steps", [("step_id", "none"), ("span_us", "us"), ("free_us", "us")], (7, 12.5, None))
    outcome = Outcome(analyzer="a", status="done", rank=4, trace_index=0, tables=(steps, *tables), findings=findings)
    return Request(run=Run(traces=(trace,), label="x"), lang=lang, outcomes=(outcome,), findings=findings)


def workbook(made: Request) -> Any:
    target = io.BytesIO()
    write_xlsx(made, target)
    return openpyxl.load_workbook(io.BytesIO(target.getvalue()))


def cells(sheet: Any) -> list[list[Any]]:
    return [list(row) for row in sheet.iter_rows(values_only=True)]


def test_the_sheets_are_there_in_their_order_with_frozen_headers() -> None:
    book = workbook(request())

    assert book.sheetnames == EN
    for name in EN:
        assert book[name].freeze_panes == "A2"
    assert cells(book["Collectives"])[1][0] == "Not in this data"
    assert cells(book["Overview"])[1] == ["ascend-perf", __version__]


def test_every_figure_of_a_finding() -> None:
    book = workbook(request("en", (finding(), finding(code="K-01", share_ratio=None, added_ratio=None, ranks=()))))

    header, first, second = cells(book["Findings"])
    assert header == [
        "No.", "Rank of the cause", "Ranks that lose time", "Code", "Severity", "Title", "Share of the step",
        "At most (bound)", "Adds to those before", "Cause", "What to do",
    ]  # fmt: skip
    assert first == [1, "0-2, 5", "3", "H-01", "high", "Idle", 0.2, 1.25, 0.125, "why", "1. do\nx=1\n2. or this"]
    assert second[6:9] == [None, None, None]
    row = book["Findings"][2]
    assert [row[i].number_format for i in (6, 7, 8)] == ["0.0%", '0.00"x"', "0.0%"]


def test_result_tables_have_the_rank_and_numbers_with_their_units() -> None:
    columns: list[tuple[str, Unit]] = [
        ("op_type", "none"), ("count", "count"), ("total_ns", "ns"), ("share_ratio", "ratio"),
    ]  # fmt: skip
    operators = table("op-types", columns, ("MatMul", 3, 2_500, 0.5), ("Add", 1, None, float("nan")))
    rates = table("comm-ops", [("op", "none"), ("size_bytes", "bytes"), ("rate", "bytes_per_s"), ("at", "none")],
                  ("allReduce", 1024, 2.5e9, EXACT_INT + 1))  # fmt: skip
    made = request("en", (), operators, rates)
    of_job = table("collectives", [("op", "none"), ("count", "count")], ("allReduce", 2))
    outcomes = (*made.outcomes, Outcome(analyzer="j", status="done", scope="job", tables=(of_job,)))
    book = workbook(replace(made, outcomes=outcomes))

    assert cells(book["Operators"]) == [
        ["Rank", "op_type", "count", "total_ns", "share_ratio"], [4, "MatMul", 3, 2.5, 0.5], [4, "Add", 1, None, None],
    ]  # fmt: skip
    shown = [cell.number_format for cell in book["Operators"][2]]
    assert shown == ["General", "General", "#,##0.###", '#,##0.000 "us"', "0.0%"]
    assert cells(book["Communication"])[1] == [4, "allReduce", 1024, 2.5, str(EXACT_INT + 1)]
    assert book["Operators"].auto_filter.ref == "A1:E3"
    assert cells(book["Collectives"]) == [["op", "count"], ["allReduce", 2]]  # of the job: no rank before it
    assert cells(book["Step breakdown"])[1][:3] == [4, 7, 12.5]
    assert cells(book["Step breakdown"])[1][6] is None


def test_every_unit_has_a_format() -> None:
    from ascend_perf.reports.exports.xlsx import FORMATS

    assert FORMATS.keys() == BETTER.keys()


def test_chinese() -> None:
    book = workbook(request("zh", (finding(),)))

    assert book.sheetnames[:2] == ["概览", "问题"]
    header, row = cells(book["问题"])
    assert (header[4], header[7], row[4], row[5]) == ("严重程度", "理论上限", "高", "Idle（中）")


def hostile_book() -> tuple[Any, bytes]:
    columns: list[tuple[str, Unit]] = [("name", "none")]
    names = table("op-types", columns, *((text,) for text in HOSTILE))
    evil = finding(title=Words("=1+1", "=1+1"), cause=Words("x" * 50_000, "y"))
    target = io.BytesIO()
    write_xlsx(request("en", (evil,), names), target)
    return openpyxl.load_workbook(io.BytesIO(target.getvalue())), target.getvalue()


def test_hostile_texts_are_strings_and_the_file_is_valid_xml() -> None:
    book, content = hostile_book()

    for name in zipfile.ZipFile(io.BytesIO(content)).namelist():
        xml = zipfile.ZipFile(io.BytesIO(content)).read(name)
        ElementTree.fromstring(xml)
        assert b"<f>" not in xml  # no formula
        assert b"hyperlink" not in xml
    rows = list(book["Operators"].iter_rows(min_row=2, min_col=2, max_col=2))
    assert len(rows) == len(HOSTILE)
    for (cell,), text in zip(rows, HOSTILE, strict=True):
        assert cell.value is None or cell.data_type == "s"
        assert len(cell.value or "") <= MAX_TEXT + 1
        if text.isprintable() and text.strip() and len(text) < 100:
            # Spaces aside, what can be printed is carried as it is.
            assert cell.value == text
    assert book["Findings"]["F2"].data_type == "s"
    assert len(book["Findings"]["J2"].value) == MAX_TEXT + 1 <= MAX_CELL


def test_the_same_run_makes_the_same_file() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    write_xlsx(request(), first)
    write_xlsx(request(), second)

    assert first.getvalue() == second.getvalue()


def test_many_rows_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_perf.reports.exports.xlsx.MAX_ROWS", 3)
    names = table("op-types", [("name", "none")], *((f"n{i}",) for i in range(5)))
    target = io.BytesIO()

    said = write_xlsx(request("en", (), names), target)

    rows = cells(openpyxl.load_workbook(target)["Operators"])
    assert "Operators: 2 rows left out" in said
    assert [row[1] for row in rows[1:4]] == ["n0", "n1", "n2"]
    assert rows[4][0] == "2 more rows left out"


def test_without_the_library_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "xlsxwriter":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(MachineError, match="needs the package XlsxWriter") as caught:
        write_xlsx(request(), io.BytesIO())
    assert caught.value.hint == "pip install 'ascend-perf[export]'"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_real_profile(traces: Path, lang: Any) -> None:
    analysis = pipeline.analyze(traces / "ascend-pytorch/text/level1")

    book = workbook(Request(run=analysis.run, lang=lang, outcomes=analysis.outcomes, findings=analysis.findings))

    sheets = [cells(sheet) for sheet in book.worksheets]
    overview, found, steps, operators, kernels, communication, _, memory, ranks, quality = sheets
    assert [row[3] for row in found[1:]] == [finding.code for finding in analysis.findings]
    # The library writes 16 digits.
    shares = [finding.share_ratio for finding in analysis.findings]
    assert [row[6] for row in found[1:]] == [share and pytest.approx(share, rel=1e-15) for share in shares]
    assert [row[0] for row in steps[1:]] == [0, 1]
    own = [outcome for outcome in analysis.outcomes if outcome.analyzer == "operators"]
    times = [time for o in own for t in o.tables if t.name == "op-types" for time in t.column("total_ns")]
    total = sum(time for time in times if isinstance(time, int | float))
    at = next(i for i, name in enumerate(operators[0]) if re.match("Total|总", str(name)))
    assert sum(row[at] for row in operators[1:]) == pytest.approx(total / 1000, rel=1e-12)
    assert all(len(sheet) > 1 for sheet in sheets)
    assert all(row[0] in (0, 1) for sheet in (kernels, communication, memory, ranks) for row in sheet[1:])
    assert str(traces) not in str(sheets)
    assert len(overview) > 5 and len(quality) > 5
