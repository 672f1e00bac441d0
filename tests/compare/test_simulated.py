"""Simulated data in a comparison: every figure that is made of them says so by itself, in each format."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, Literal

import pytest

from ascend_perf.cli.compare import text
from ascend_perf.compare.inputs import Input
from ascend_perf.compare.make import compare
from ascend_perf.model.comparison import Comparison, named, simulated_mark
from ascend_perf.model.finding import Words
from ascend_perf.model.result import ResultSet
from ascend_perf.reports.compare import document, html_text, markdown_text, page_document
from tests.compare.test_make import given, layers, results
from tests.reports._browser import Browser, chromium

OF_B = ("time_b_ns", "count_b", "kernels_b", "value_B")
OF_BOTH = (
    "delta_ns", "time_ratio", "shortfall_ratio", "beyond_ns", "by_count_ns", "by_mean_ns", "ratio_B", "low_B", "high_B"
)
UNMARKED = (
    "time_a_ns", "count_a", "kernels_a", "value_A", "runs_A", "runs_B", "expected_ratio", "basis", "class", "name",
    "path", "kind", "quantity",
)  # fmt: skip
"""Figures of A, names, and what is of data sheets alone."""


@pytest.fixture(scope="module")
def mixed() -> Comparison:
    return compare([given(layers(6, 100)), given(layers(6, 150, origin="simulated"))], simulated=True)


def columns_of(mixed: Comparison) -> dict[str, Words | None]:
    return {column.name: column.mark for section in mixed.sections for table in section.tables
            for column in table.columns}  # fmt: skip


def with_origin(made: ResultSet, origin: Literal["measured", "simulated"], name: str = "llm/tiny") -> ResultSet:
    return replace(made, benchmarks=tuple(
        replace(one, data_origin=origin, name=name, workload=name) for one in made.benchmarks
    ))  # fmt: skip


def test_a_figure_names_those_of_its_sides_that_are_simulated() -> None:
    assert simulated_mark(["A"], ["B"]) is None
    assert simulated_mark(["B"], ["B"]) == Words("simulated", "仿真")
    assert simulated_mark(["A", "B"], ["B"]) == Words("B simulated", "B 为仿真")
    assert simulated_mark(["A", "B", "C"], ["C", "B"]) == Words("B, C simulated", "B、C 为仿真")
    assert simulated_mark(["A", "B"], ["A", "B"]) == Words("simulated", "仿真")
    assert named("B", ["B"]) == Words("B (simulated)", "B（仿真）") and named("A", ["B"]) == Words("A", "A")


def test_every_column_of_a_simulated_side_is_marked_and_no_other(mixed: Comparison) -> None:
    marks = columns_of(mixed)
    for name in OF_B:
        assert marks[name] == Words("simulated", "仿真"), name
    for name in OF_BOTH:
        assert marks[name] == Words("B simulated", "B 为仿真"), name
    for name in UNMARKED:
        assert marks[name] is None, name
    assert marks.keys() - {"unit", "runs_B"} == {*OF_B, *OF_BOTH, *UNMARKED} - {"runs_B"}


def test_a_simulated_first_side_marks_the_other_half() -> None:
    marks = columns_of(compare([given(layers(6, 100, origin="simulated")), given(layers(6, 150))], simulated=True))
    assert marks["time_a_ns"] == marks["value_A"] == Words("simulated", "仿真")
    assert marks["time_ratio"] == Words("A simulated", "A 为仿真") and marks["time_b_ns"] is None


def test_sentences_name_the_simulated_side(mixed: Comparison) -> None:
    assert mixed.lead.en.startswith("The step takes") and " in B (simulated) as in A (" in mixed.lead.en
    assert mixed.lead.zh.startswith("B（仿真）的单步耗时为 A 的")
    assert "Device time of B (simulated) is" in mixed.main.en and "B（仿真）的 Device 耗时" in mixed.main.zh
    assert mixed.points
    assert all(re.search(r"\bB \(simulated\)", point.en) and "B（仿真）" in point.zh for point in mixed.points)
    assert not any("） " in point.zh for point in mixed.points)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_markdown_and_terminal_have_the_word_in_every_heading(mixed: Comparison, lang: Literal["en", "zh"]) -> None:
    word, of_b, both = {"en": ("time B", "time B (simulated)", "B / A (B simulated)"),
                        "zh": ("B 耗时", "B 耗时（仿真）", "B / A（B 为仿真）")}[lang]  # fmt: skip
    for said in (markdown_text(mixed, lang).replace("\\", ""), text(mixed, lang)):
        headings = [line for line in said.splitlines() if word in line]
        assert headings and all(of_b in line and both in line for line in headings)
        figures = next(line for line in said.splitlines() if re.search(r"(metric|指标)\W", line) and "B / A" in line)
        assert ("B (simulated)" if lang == "en" else "B（仿真）") in figures
    steps = markdown_text(mixed, lang).replace("\\", "")
    assert ("|  | A | B (simulated) |" if lang == "en" else "|  | A | B（仿真） |") in steps
    sections = [line for line in steps.splitlines() if line.startswith("## ")][-len(mixed.sections):]
    assert all(line.endswith("(B simulated)" if lang == "en" else "（B 为仿真）") for line in sections)


def test_the_document_tells_the_origin_of_each_column_step_section_and_total(mixed: Comparison) -> None:
    made: Any = json.loads(json.dumps(document(mixed, "en")))
    assert [(step["letter"], step["data_origin"]) for step in made["steps"]] == [("A", "measured"), ("B", "simulated")]
    assert {section["data_origin"] for section in made["sections"]} == {"simulated"}
    origins = {c["name"]: c["data_origin"] for s in made["sections"] for t in s["tables"] for c in t["columns"]}
    assert {name for name, origin in origins.items() if origin == "simulated"} == {*OF_B, *OF_BOTH}
    totals = made["totals"]["A/B"]
    assert (totals["data_origin_a"], totals["data_origin_b"]) == ("measured", "simulated")
    assert made["data_origin"] == "simulated"
    assert "- Data: B simulated" in markdown_text(mixed, "en") and "Data: B simulated" in text(mixed, "en")


def test_the_page_says_it_at_headings_bars_and_in_its_data(mixed: Comparison) -> None:
    page = html_text(mixed, "en")
    embedded: Any = json.loads(unescape(page.partition('id="data">')[2].partition("</script>")[0]))
    titles = {c["name"]: c["title"] for table in embedded["tables"] for c in table["columns"]}
    assert titles["time_b_ns"] == ["time B (simulated)", "B 耗时（仿真）"]
    assert titles["time_ratio"] == ["B / A (B simulated)", "B / A（B 为仿真）"]
    assert titles["time_a_ns"] == ["time A", "A 耗时"]
    assert [bar["mark"] for bar in embedded["bars"]] == [None, ["simulated", "仿真"]]
    assert embedded["bars_mark"] == ["B simulated", "B 为仿真"]
    assert all(section["title"][0].endswith("(B simulated)") for section in embedded["sections"])


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_the_drawn_page_says_it(mixed: Comparison, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "compare.html").write_text(html_text(mixed, "en"), "utf-8")
    browser.open(tmp_path / "compare.html")
    shown: Any = browser.run(
        "[...document.querySelectorAll('.bar-label, .compare-split thead th, table th, h2')].map(e => e.textContent)"
    )
    assert any(re.fullmatch(r"B .* simulated", label) for label in shown)
    assert browser.run("document.querySelector('.badge.simulated').textContent") == "B simulated"
    browser.run("AP.copy = text => { window.copied = text; }")
    browser.run("[...document.querySelectorAll('figure[data-table=compare-metrics] .tools button')].at(-1).click()")
    assert "value_A,value_B (simulated),ratio_B (B simulated)" in browser.run("window.copied.split('\\n')[0]")
    assert "B (simulated)" in shown
    assert not [label for label in shown if re.match(r"(time|calls|kernels) B\b", label) and "simulated" not in label]
    assert not [label for label in shown if re.match(r"(time|calls|kernels) A\b", label) and "simulated" in label]


def test_two_simulated_sides_are_one_word_and_measured_ones_none() -> None:
    both = compare([given(layers(6, 100, origin="simulated"))] * 2, simulated=True)
    said = markdown_text(both, "en").replace("\\", "")
    assert "B / A (simulated)" in said and "time A (simulated)" in said and "B simulated" not in said
    measured = compare([given(layers(6, 100)), given(layers(6, 120))])
    assert "simulated" not in markdown_text(measured, "en") + text(measured, "en")
    page: Any = page_document(measured, "en")
    assert page["bars_mark"] is None and not any(mark for mark in columns_of(measured).values())


def test_result_files_are_marked_benchmark_by_benchmark() -> None:
    """A file of measured and simulated benchmarks: each benchmark tells its own origin."""

    def of(rate: float, *origins: Literal["measured", "simulated"]) -> Input:
        parts = [with_origin(results(rate), origin, f"work-{place}") for place, origin in enumerate(origins)]
        return Input(label="x", results=replace(parts[0], benchmarks=tuple(p.benchmarks[0] for p in parts)))

    made = compare([of(100, "measured", "measured"), of(50, "measured", "simulated"),
                    of(25, "simulated", "measured")], simulated=True)  # fmt: skip
    first, second = made.sections
    assert (first.mark, second.mark) == (Words("C simulated", "C 为仿真"), Words("B simulated", "B 为仿真"))
    marks = [{c.name: c.mark for c in section.tables[0].columns} for section in (first, second)]
    assert [(one["value_B"] is not None, one["value_C"] is not None) for one in marks] == [(False, True), (True, False)]
    assert [(one["ratio_B"] is not None, one["ratio_C"] is not None) for one in marks] == [(False, True), (True, False)]
    assert all(one["value_A"] is None for one in marks)
    # 52 and 27 over 102: means without the fastest and the slowest.
    assert made.main.en == (
        "work-0/tiny/1: tokens_per_s compared with A: B 0.51 times, C (simulated) 0.265 times. "
        "work-1/tiny/1: tokens_per_s compared with A: B (simulated) 0.51 times, C 0.265 times."
    )
