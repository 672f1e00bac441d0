"""The page of estimates in a real browser: nothing fetched, no error, it fits, in both themes and languages."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.errors import MachineError
from ascend_perf.reports.what_if import html_text
from tests.bench.test_what_if import ANSWERS, FITS, FITS_ZH, OUT_OF_MEMORY, REQUEST, FakeRunner, estimate, found_by
from tests.reports import _axe
from tests.reports._browser import Browser, chromium
from tests.reports._sheet import assert_it_fits_and_fetches_nothing, assert_no_serious_violation

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hostile = MachineError(f"{OUT_OF_MEMORY} <img src=x onerror=alert(1)> {'a' * 200}", hint="b" * 200)
    devices = (VirtualNpu(world_size=8), VirtualNpu(soc="Ascend910B4", world_size=8))
    request = dataclasses.replace(REQUEST, devices=devices, layouts="ddp,fsdp,tp2+ddp,tp2+fsdp,tp3")
    runner = FakeRunner({**ANSWERS, "ddp 8": hostile, "tp 2 x fsdp 4": estimate(90_000, 400)})
    folder = tmp_path_factory.mktemp("page")
    path = folder / "what-if.html"
    path.write_text(html_text(found_by(runner, folder / "kept", request), "en"), "utf-8")
    return path


def test_the_page_fits_and_fetches_nothing(browser: Browser, page: Path) -> None:
    assert_it_fits_and_fetches_nothing(browser, page)
    # The last language was Chinese; the longest bar is cut and says so; the banner is there.
    assert "倍" in browser.run("document.querySelector('.wi-cut').textContent")
    assert "仿真" in browser.run("document.querySelector('.simulated-banner').textContent")


def test_bars_are_as_long_as_their_figures(browser: Browser, page: Path) -> None:
    browser.size(1280, 900)
    browser.open(page)
    browser.settle()

    widths = browser.run("[...document.querySelectorAll('.wi-group')][0].querySelectorAll('.wi-bar').length")
    first, second = browser.run(
        "[...document.querySelectorAll('.wi-group .wi-bar')].slice(0, 2).map(b => b.getBoundingClientRect().width)"
    )

    assert widths == 3
    # 1210 ns and 1410 ns for the same items.
    assert second / first == pytest.approx(1410 / 1210, rel=0.02)


def test_ranges_of_bars_that_are_not_cut_lie_within_the_chart(browser: Browser, page: Path) -> None:
    browser.size(1280, 900)
    browser.open(page)
    beyond = browser.run(
        "[...document.querySelectorAll('.wi-track:not(.cut)')].map(t => t.querySelector('.wi-range')"
        ".getBoundingClientRect().right - t.getBoundingClientRect().right)"
    )
    assert len(beyond) == 4 and max(beyond) < 1  # px; two chips of two layouts, the third is cut


def test_without_an_estimate_no_empty_chart_is_drawn(browser: Browser, tmp_path: Path) -> None:
    full = MachineError(OUT_OF_MEMORY, hint=FITS)
    request = dataclasses.replace(REQUEST, layouts="ddp,tp3")
    path = tmp_path / "what-if.html"
    path.write_text(html_text(found_by(FakeRunner({"ddp 8": full}), tmp_path / "kept", request), "zh"), "utf-8")
    browser.open(path)
    browser.run("sessionStorage.clear()")
    browser.open(path)
    assert browser.run("document.querySelectorAll('.wi-legend, .wi-bar').length") == 0
    said = browser.run("document.querySelector('.wi-without').innerText").replace("\xa0", " ")
    assert "tensor_ranks 3 不能整除 heads 8" in said and FITS_ZH in said
    assert browser.run("document.querySelector('#chart h2').textContent") == "没有估计结果的配置"


@pytest.mark.skipif(_axe.axe_script() is None, reason="axe-core is not installed (pip install axe-core-python)")
def test_no_serious_violation(browser: Browser, page: Path) -> None:
    assert_no_serious_violation(browser, page)
