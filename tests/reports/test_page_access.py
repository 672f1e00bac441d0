"""Accessibility of the page by axe-core (package `axe-core-python`): no serious or critical violation anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import Payload
from tests.reports import _axe, _job_samples, _samples
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
    pytest.mark.skipif(_axe.axe_script() is None, reason="axe-core is not installed (pip install axe-core-python)"),
]

PAGES: dict[str, Callable[[], Payload]] = {"one": _samples.one_rank, "many": lambda: _job_samples.job(64)}


def opened(browser: Browser, made: Payload, path: Path) -> None:
    script = _axe.axe_script()
    assert script is not None
    write_html(made, path)
    browser.prefer("light")
    browser.open(path)
    browser.run("sessionStorage.clear()")
    browser.open(path)
    _axe.load(browser, script)


@pytest.mark.parametrize("which", list(PAGES))
def test_no_serious_violation_in_either_theme_and_language(browser: Browser, tmp_path: Path, which: str) -> None:
    opened(browser, PAGES[which](), tmp_path / "report.html")

    found = {}
    # Colours differ by theme and texts by language: both pairs together show each of the four.
    for scheme, lang in (("light", "en"), ("dark", "zh")):
        browser.prefer(scheme)
        browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
        browser.settle()
        found[scheme, lang] = _axe.violations(browser)

    assert found == {("light", "en"): [], ("dark", "zh"): []}


def test_no_serious_violation_on_a_phone_with_every_fold_open(browser: Browser, tmp_path: Path) -> None:
    opened(browser, PAGES["one"](), tmp_path / "report.html")
    browser.size(390, 844, phone=True)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()

    assert _axe.violations(browser) == []
    browser.size(1280, 900)


def test_the_check_finds_what_it_looks_for(browser: Browser, tmp_path: Path) -> None:
    """A check that finds nothing anywhere would pass above as well."""
    opened(browser, PAGES["one"](), tmp_path / "report.html")
    browser.run("document.querySelector('h1').style.color = '#e0e0e0'")
    browser.run("document.querySelector('main').append(document.createElement('button'))")

    found = [line.split(" ")[0] for line in _axe.violations(browser)]

    assert sorted(found) == ["button-name", "color-contrast"]
