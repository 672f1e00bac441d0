"""The page of a comparison in a real browser: nothing fetched, no error, it fits, in both themes and languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.compare.make import compare
from ascend_perf.reports.compare import html_text
from tests.compare.test_make import MI300X, given, layers
from tests.reports import _axe
from tests.reports._browser import Browser, chromium
from tests.reports.test_page_layout import FAULTS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hostile = layers(6, 150, device=MI300X, kernel="<img src=x onerror=alert(1)>", tokens=128)
    made = compare([given(layers(6, 100), "a" * 90), given(hostile, "b")], force=True)
    path = tmp_path_factory.mktemp("page") / "compare.html"
    path.write_text(html_text(made, "en"), "utf-8")
    return path


def test_the_page_fits_and_fetches_nothing(browser: Browser, page: Path) -> None:
    found = {}
    for width in (390, 1280):
        browser.size(width, 900, phone=width < 600)
        for scheme, lang in (("light", "en"), ("dark", "zh")):
            browser.prefer(scheme)
            browser.open(page)
            browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
            browser.settle()
            if wrong := browser.run(FAULTS.replace("WIDTH", str(width))):
                found[width, lang] = wrong
    assert found == {}
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert browser.run("document.images.length") == 0
    assert "不相同" in browser.run("document.querySelector('.compare-said h2').textContent")


@pytest.mark.skipif(_axe.axe_script() is None, reason="axe-core is not installed (pip install axe-core-python)")
def test_no_serious_violation(browser: Browser, page: Path) -> None:
    script = _axe.axe_script()
    assert script is not None
    browser.size(1280, 900)
    found = {}
    browser.open(page)
    _axe.load(browser, script)
    for scheme, lang in (("light", "en"), ("dark", "zh")):
        browser.prefer(scheme)
        browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
        browser.settle()
        found[scheme, lang] = _axe.violations(browser)
    assert found == {("light", "en"): [], ("dark", "zh"): []}
