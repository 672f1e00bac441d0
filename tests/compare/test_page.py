"""The page of a comparison in a real browser: nothing fetched, no error, it fits, in both themes and languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.compare.make import compare
from ascend_perf.reports.compare import html_text
from tests.compare.test_make import MI300X, given, layers
from tests.reports import _axe
from tests.reports._browser import Browser, chromium
from tests.reports._sheet import assert_it_fits_and_fetches_nothing, assert_no_serious_violation

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
    assert_it_fits_and_fetches_nothing(browser, page)
    assert "不相同" in browser.run("document.querySelector('.compare-said h2').textContent")


@pytest.mark.skipif(_axe.axe_script() is None, reason="axe-core is not installed (pip install axe-core-python)")
def test_no_serious_violation(browser: Browser, page: Path) -> None:
    assert_no_serious_violation(browser, page)
