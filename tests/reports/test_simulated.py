"""A page of simulated data says so in a band always in view, in both languages; that of measured data has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.analysis import Analysis, summary
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.html import write_html
from ascend_perf.reports.markdown import text as markdown_text
from tests.reports import _axe, _samples
from tests.reports._browser import Browser


def test_the_summary_and_the_markdown_begin_with_it() -> None:
    run = Run(traces=(Trace(meta=Meta(rank=0)), Trace(meta=Meta(rank=1, data_origin="simulated"))))
    said = summary(Analysis(run=run, outcomes=(), findings=()), "en")
    assert said.startswith("  SIMULATED: nothing ran on an NPU")
    assert "仿真数据" in summary(Analysis(run=run, outcomes=(), findings=()), "zh").splitlines()[0]
    measured = replace(run, traces=run.traces[:1])
    assert "SIMULATED" not in summary(Analysis(run=measured, outcomes=(), findings=()), "en")

    payload = _samples.one_rank()
    assert markdown_text(replace(payload, data_origin="simulated")).startswith("> **simulated**: nothing ran on an NPU")
    assert markdown_text(payload).startswith("# ")


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
