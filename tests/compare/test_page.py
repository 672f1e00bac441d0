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


def test_the_columns_that_matter_stand_on_a_laptop_and_a_phone(browser: Browser, page: Path) -> None:
    """The others fold behind a button, the path of a call last; what is folded is named and comes back."""
    shown = "[...document.querySelectorAll('figure[data-table=compare-calls] thead th')].map(e => e.textContent)"
    browser.size(1280, 900)
    browser.open(page)
    browser.run("sessionStorage.clear()")
    browser.open(page)
    wide = browser.run(shown)
    assert [head.split("\xa0")[0].removesuffix(" us").removesuffix(" ns") for head in wide][:2] == [
        "operator or module", "call"
    ]  # fmt: skip
    assert not any(head.startswith("kernels") for head in wide)
    assert "kernels A" in browser.run("document.querySelector('figure[data-table=compare-calls]').textContent")
    browser.size(390, 844, phone=True)
    browser.open(page)
    narrow = browser.run(shown)
    assert "call" not in narrow and narrow[0] == "operator or module" and any("time A" in head for head in narrow)
    browser.run("document.querySelector('figure[data-table=compare-calls] .columns').click()")
    browser.settle()
    assert "call" in browser.run(shown) and any(head.startswith("kernels") for head in browser.run(shown))
