"""The views of a run and of an analysis in a notebook and a terminal: short, escaped, alone with their styles."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ascend_perf as ap
from ascend_perf import analysis, pipeline
from ascend_perf.errors import UsageError
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Dropped, Meta, Source, Trace
from ascend_perf.reports import build
from ascend_perf.reports.notebook import CLASS, MAX_BARS, MAX_FINDINGS, cell_html, cell_text
from tests.reports import _samples
from tests.reports._sample_tables import HOSTILE
from tests.test_pipeline import trace_file

VOID = frozenset({"br", "img", "meta", "link", "input", "hr"})


class Reader(HTMLParser):
    """Elements that are open, seen and left open, attributes, and the text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.said = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.said += data


def sample(lang: analysis.Lang = "en") -> analysis.Analysis:
    """The sample payload as an analysis."""
    payload = _samples.payload()
    return analysis.Analysis(
        run=_samples.run(), outcomes=payload.outcomes, findings=payload.findings, metrics=payload.metrics, lang=lang
    )


def rules_of(text: str) -> list[str]:
    """Selectors of the styles; those in a media query too."""
    sheet = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    sheet = re.sub(r"@media \([^)]*\) \{", "", sheet)
    return [one.strip() for selectors in re.findall(r"([^{}]+)\{", sheet) for one in selectors.split(",")]


# ---- the analysis --------------------------------------------------------------------------------------------------


def test_the_cell_says_answer_figures_findings_and_data() -> None:
    said = " ".join(Reader(sample()._repr_html_()).said.replace("\u2009", " ").split())

    assert "98.1 ms of the step is waiting for rank 5" in said
    assert "At most 3.57x (72 % of the step)" in said
    assert "136.6 ms" in said and "Peak memory" in said
    assert "Rank 0" in said and "Rank 1" in said
    assert "Cube 2.806 ms, 2.1 %" in said
    assert f"{len(_samples.findings()) - MAX_FINDINGS} more findings" in said
    assert "Data: files: 4; rows read: 20 606, not used: 8; unusable files: 1" in said
    assert "cross-checks that differ: 2" in said and "warnings: 1" in said
    assert "All findings together" in said


def test_the_cell_is_well_formed_small_and_needs_no_script() -> None:
    text = sample()._repr_html_()
    read = Reader(text)

    assert read.stack == []
    assert set(read.tags) <= {"div", "style", "p", "span", "b", "i", "ol", "li"}
    assert set(read.attributes) <= {"class", "style", "title", "lang"}
    assert "http" not in text and "url(" not in text and "@import" not in text
    assert len(text.encode()) < 60_000


def test_hostile_names_are_text() -> None:
    text = cell_html(_samples.many_ranks(3))
    payload = build(Run(traces=(Trace(meta=Meta(rank=0)),), label=HOSTILE), [], _samples.findings(), lang="en")

    for made in (text, cell_html(payload)):
        assert "<script" not in made and "<img" not in made
    assert HOSTILE in Reader(cell_html(payload)).said  # shown as it is


def test_a_big_job_stays_small() -> None:
    payload = _samples.many_ranks(64)

    text = cell_html(payload)

    assert len(text.encode()) < 60_000
    assert text.count('class="step"') == MAX_BARS
    assert f"{64 - MAX_BARS} more ranks" in Reader(text).said


def test_styles_hold_below_the_view_only() -> None:
    for text, name in ((sample()._repr_html_(), CLASS), (_samples.run()._repr_html_(), "ascend-perf-run")):
        selectors = rules_of(text)
        assert len(selectors) > 5
        for selector in selectors:
            assert f".{name}" in selector, selector
            # Nothing after our class reaches beyond it, and nothing before it is an element of the notebook itself.
            before = selector.split(f".{name}")[0].strip()
            assert before in ("", '[data-jp-theme-light="true"]', '[data-jp-theme-light="false"]', ".vscode-light",
                              ".vscode-dark", 'html[theme="light"]', 'html[theme="dark"]')  # fmt: skip


def test_colours_follow_the_notebook_then_the_system() -> None:
    sheet = sample()._repr_html_()

    dark_by_system = sheet.index("@media (prefers-color-scheme: dark)")
    assert dark_by_system < sheet.index('[data-jp-theme-light="true"]') < sheet.index('[data-jp-theme-light="false"]')
    assert sheet.count("--page: #14171b") == 2 and sheet.count("--page: #ffffff") == 2


def test_bars_add_up_and_have_the_classes_of_their_kinds() -> None:
    text = sample()._repr_html_()
    rows = re.findall(r'<div class="bar"[^>]*>(.*?)</div>', text)

    assert len(rows) == 2
    for row in rows:
        assert sum(float(share) for share in re.findall(r"flex: ([\d.]+) 1 0", row)) == pytest.approx(1, abs=1e-4)
    used = set(re.findall(r'class="(k-[\w-]+)"', text))
    assert used and all(f".{CLASS} .{name} {{" in text for name in used)


def test_the_text_says_the_same_in_both_languages() -> None:
    english, chinese = str(sample()), str(sample("zh"))

    assert english.splitlines()[0].endswith("98.1 ms of the step is waiting for rank 5, which arrives late at 2 of 4 "
                                            "all-reduces")  # fmt: skip
    assert "  1. [N-05] " in english and "     At most 3.57x (72 % of the step)" in english
    assert "单步中有 98.1 ms 在等待 Rank 5" in chinese and "理论上限 3.57 倍" in chinese
    assert 'lang="zh-CN"' in sample("zh")._repr_html_()
    assert english.splitlines()[-2].startswith("Data: files: 4;")


def test_nothing_found_is_said() -> None:
    payload = build(Run(traces=(Trace(meta=Meta(rank=0)),), label="empty"), [], [], lang="en")

    assert "Nothing could be judged from this data" in Reader(cell_html(payload)).said
    assert "Nothing could be judged from this data" in cell_text(payload)
    assert "<ol>" not in cell_html(payload)


def test_ipython_gets_what_it_asks_for() -> None:
    view = sample()

    assert view._repr_mimebundle_() == {"text/html": view._repr_html_(), "text/plain": str(view)}
    assert set(view._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert set(view._repr_mimebundle_(exclude={"text/html"})) == {"text/plain"}
    assert repr(view) == "<Analysis of 'alexnet-level1': 7 findings in 2 ranks>"


def test_the_full_page_is_written_once(tmp_path: Path) -> None:
    view = sample("zh")

    page = view.report(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html" and '<html lang="zh-CN"' in page.read_text("utf-8")
    with pytest.raises(UsageError, match=r"report\.html exists"):
        view.report(tmp_path / "out")
    view.report(tmp_path / "out", lang="en", force=True)
    assert '<html lang="en"' in page.read_text("utf-8")
    assert view.report(str(tmp_path / "a.json")).name == "a.json"
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["language"] == "zh"
    assert view.report(tmp_path / "b.md").read_text("utf-8").startswith("# ")
    with pytest.raises(UsageError, match="cannot be written"):
        view.report(tmp_path / "a.json" / "below")


def test_analyze_passes_the_language_on(tmp_path: Path) -> None:
    trace_file(tmp_path / "t.json", 0)

    assert ap.analyze(tmp_path, lang="zh").lang == "zh"
    assert ap.analyze(ap.load(tmp_path)).lang == "en"


# ---- the run -------------------------------------------------------------------------------------------------------


def test_a_run_shows_ranks_tables_and_files(tmp_path: Path) -> None:
    for rank, kernels in ((0, 3), (1, 5)):
        trace_file(tmp_path / f"{rank}.json", rank, kernels=kernels)
    run = ap.load(tmp_path)

    lines = str(run).splitlines()
    head = lines[1].split("  ")
    kernels_line = next(line for line in lines if line.startswith("kernels"))
    rows = sum(len(table) for trace in run.traces for table in trace.tables.values())
    assert lines[0] == f"{tmp_path.name}: 2 ranks, {rows} rows in tables"
    assert [cell.strip() for cell in head if cell.strip()] == ["rows", "rank 0", "rank 1", "all ranks"]
    assert kernels_line.split() == ["kernels", "3", "5", "8"]
    read = Reader(run._repr_html_())
    assert read.stack == [] and "script" not in read.tags
    assert "kernels358" in read.said.replace("\n", "")
    assert str(tmp_path.parent) not in str(run) + run._repr_html_()
    assert repr(run) == f"<Run {tmp_path.name!r}: 2 ranks, {rows} rows>"


def test_a_run_of_many_ranks_shows_some_and_the_sum() -> None:
    run = Run(traces=tuple(_samples.trace(rank) for rank in range(20)), label="big")

    lines = str(run).splitlines()

    assert lines[1].split()[-2:] == ["all", "20"] and "rank 7" in lines[1] and "rank 8" not in lines[1]
    assert next(line for line in lines if line.startswith("kernels")).split() == ["kernels", *["2"] * 8, "40"]
    assert len(run._repr_html_()) < 20_000


def test_files_that_were_not_used_are_said_and_escaped() -> None:
    bad = Source(path=f"/home/somebody/{HOSTILE.replace('/', '|')}", format="x", problem="broken\x1b[31m " + "y" * 500)
    good = Source(path="/home/somebody/a.json", format="json", rows=7, dropped=(Dropped(reason="r", count=2),))
    run = Run(traces=(Trace(meta=Meta(rank=0, sources=(good,))),), skipped=(bad,) * 7)

    said, text = run._repr_html_(), str(run)

    assert "<script" not in said and "&lt;" in said
    assert "somebody" not in said + text and "\x1b" not in said + text
    assert "a.json (json): 1 file, 7 rows, 2 not used" in text
    assert "not used: 2 more files" in text
    assert all(len(line) < 400 for line in text.splitlines())


def test_views_of_a_real_profile_hold_no_path_of_the_machine(traces: Path) -> None:
    run = ap.load(traces / "ascend-pytorch/text/level1")
    view = pipeline.analyze(run)

    said = view._repr_html_() + str(view) + run._repr_html_() + str(run)

    assert str(traces) not in said and "/home/" not in said
    assert len(view._repr_html_()) < 20_000
    assert "97.89 ms of the 136.6 ms step (72 %) wait for rank 5" in said.replace("\u2009", " ")
