"""A page of simulated data says so in a band always in view, in both languages; that of measured data has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.analysis import Analysis, summary
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.html import write_html
from ascend_perf.reports.markdown import text as markdown_text
from ascend_perf.reports.notebook import cell_html, cell_text
from tests.reports import _axe, _samples
from tests.reports._browser import Browser


def test_the_summary_and_the_markdown_begin_with_it() -> None:
    run = Run(traces=(Trace(meta=Meta(rank=0)), Trace(meta=Meta(rank=1, data_origin="simulated"))))
    said = summary(Analysis(run=run, outcomes=(), findings=()), "en")
    assert said.startswith("  SIMULATED: nothing ran on an NPU")
    assert "仿真数据" in summary(Analysis(run=run, outcomes=(), findings=()), "zh").splitlines()[0]
    measured = replace(run, traces=run.traces[:1])
    assert "SIMULATED" not in summary(Analysis(run=measured, outcomes=(), findings=()), "en")

    assert str(run).splitlines()[0].endswith(", SIMULATED: times of the device are modelled")
    assert "simulated" in repr(run) and "SIMULATED" in run._repr_html_()
    assert "SIMULATED" not in str(measured) and "simulated" not in repr(measured)
    payload = _samples.one_rank()
    assert markdown_text(replace(payload, data_origin="simulated")).startswith("> **simulated**: nothing ran on an NPU")
    assert markdown_text(payload).startswith("# ")


@pytest.mark.parametrize(("lang", "banner"), [
    ("en", "simulated: nothing ran on an NPU."), ("zh", "仿真：没有任何计算在 NPU 上执行。"),
])  # fmt: skip
def test_the_short_views_begin_with_it(lang: Literal["en", "zh"], banner: str) -> None:
    payload = replace(_samples.one_rank(), lang=lang, data_origin="simulated")
    assert cell_text(payload).startswith(banner)
    cell = cell_html(payload)
    assert f'<p class="simulated">{banner}' in cell and cell.index(banner) < cell.index('class="answer"')
    measured = replace(payload, data_origin="measured")
    assert banner not in cell_text(measured) + cell_html(measured)
    assert '<p class="simulated">' not in cell_html(measured)


def test_a_manifest_alone_makes_a_run_simulated() -> None:
    manifest = Manifest(workload="w", device="npu", data_origin="simulated", created="2026-01-01T00:00:00+00:00")
    run = Run(traces=(Trace(meta=Meta(rank=0)),), manifest=manifest)
    assert run.is_simulated and not replace(run, manifest=replace(manifest, data_origin="measured")).is_simulated
    assert summary(Analysis(run=run, outcomes=(), findings=()), "en").startswith("  SIMULATED")


@pytest.mark.browser
def test_the_band_is_in_view_wherever_the_reader_is(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_html(replace(_samples.one_rank(), data_origin="simulated"), page)
    browser.open(page)
    browser.run("sessionStorage.clear()")
    browser.open(page)
    place = "(b => [b.bottom <= innerHeight + 1, b.height > 0])(document.querySelector('.simulated-banner')"
    for scroll in (0, 3000):
        browser.run(f"window.scrollTo(0, {scroll})")
        browser.settle()
        assert browser.run(f"{place}.getBoundingClientRect())") == [True, True]
    assert "nothing ran on an NPU" in browser.run("document.querySelector('.simulated-banner').textContent")
    browser.run("document.querySelector(\"[data-value='zh']\").click()")
    browser.settle()
    assert browser.run("document.querySelector('.simulated-banner').textContent").startswith("仿真：没有任何计算在 NPU")
    if (script := _axe.axe_script()) is not None:
        _axe.load(browser, script)
        assert _axe.violations(browser) == []

    write_html(_samples.one_rank(), page)
    browser.open(page)
    assert browser.run("document.querySelectorAll('.simulated-banner').length") == 0
