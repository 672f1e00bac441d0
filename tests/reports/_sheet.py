"""What every page of its own (comparison, estimates) must keep: it fits, fetches nothing, and can be read by all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.reports import _axe
from tests.reports._browser import Browser
from tests.reports.test_page_layout import FAULTS


def looks(browser: Browser, page: Path, width: int) -> Iterator[tuple[str, str]]:
    """The page in light English and in dark Chinese, one after the other."""
    browser.size(width, 900, phone=width < 600)
    browser.open(page)
    for scheme, lang in (("light", "en"), ("dark", "zh")):
        browser.prefer(scheme)
        browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
        browser.settle()
        yield scheme, lang


def assert_it_fits_and_fetches_nothing(browser: Browser, page: Path) -> None:
    """Leaves the page in Chinese at 1280 px."""
    found = {}
    for width in (390, 1280):
        for _, lang in looks(browser, page, width):
            if wrong := browser.run(FAULTS.replace("WIDTH", str(width))):
                found[width, lang] = wrong
    assert found == {}
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert browser.run("document.images.length") == 0


def assert_no_serious_violation(browser: Browser, page: Path) -> None:
    script = _axe.axe_script()
    assert script is not None
    found: dict[tuple[str, str], list[str]] = {}
    for look in looks(browser, page, 1280):
        if not found:
            _axe.load(browser, script)
        found[look] = _axe.violations(browser)
    assert found == {("light", "en"): [], ("dark", "zh"): []}
