"""Roofline and scatter in headless Chromium: axes follow the time, one decade has more than two ticks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.model.finding import Cell, Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from ascend_perf.units import Unit
from tests.reports import _samples
from tests.reports._browser import Browser, chromium
from tests.reports.test_scatter_page import DRAWN, SIZES, table

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

ROOFLINE: dict[str, Unit] = {
    "name": "none", "intensity_flops_per_byte": "none", "achieved_flops_per_s": "flops_per_s", "time_ns": "ns",
}  # fmt: skip
LARGE: list[list[Cell]] = [["matmul", 100.0, 1e14, 9_000_000], ["add", 0.1, 1e11, 1_000_000]]


def opened(browser: Browser, path: Path, analyzer: str, shown: ResultTable) -> None:
    outcome = Outcome(analyzer=analyzer, status="done", rank=0, tables=(shown,))
    write_html(build(Run(traces=(_samples.trace(0),), label="x"), [outcome], (), lang="en"), path)
    browser.messages.clear()
    browser.size(1280, 900)
    browser.open(path)
    browser.run(DRAWN)
    assert browser.messages == []


def of_chart(browser: Browser, chart: str, what: str) -> list[str]:
    found: list[str] = browser.run(
        f"Array.from(document.querySelectorAll(\"figure[data-chart='{chart}'] {what}\")).map(n => n.textContent)"
    )
    return found


@pytest.mark.parametrize(("tiny_ns", "drawn", "lowest"), [(9_000, 2, "10 GFLOPS"), (900_000, 3, "100 FLOPS")])
def test_kernels_of_under_a_thousandth_of_the_time_do_not_stretch_the_axes(
    browser: Browser, tmp_path: Path, tiny_ns: int, drawn: int, lowest: str
) -> None:
    rows: list[list[Cell]] = [*LARGE, ["tiny", 0.1, 1e3, tiny_ns]]

    opened(browser, tmp_path / "report.html", "mac", table("roofline", ROOFLINE, rows))

    assert len(of_chart(browser, "roofline", "circle.kernel")) == drawn
    ticks = [text.replace("\u00a0", " ").replace("\u202f", " ") for text in of_chart(browser, "roofline", ".tick")]
    assert next(text for text in ticks if text.endswith("FLOPS")) == lowest
    # 9 of 10 009 us are 0.09 %.
    outside = ["Tiny kernels outside of the axes: 1 (0.09 % of the time); the table has them."] if drawn == 2 else []
    assert [text.replace("\u00a0", " ") for text in of_chart(browser, "roofline", "p.note")] == outside


def test_one_decade_of_bandwidth_has_ticks_at_twos_and_fives(browser: Browser, tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["allReduce", "dp", 8, "HCCS", 1, 1 << 20, 100_000, 100_000, rate, None] for rate in (2e10, 6e10)
    ]

    opened(browser, tmp_path / "report.html", "communication", table("size-bandwidth", SIZES, rows))

    ticks = [text.replace("\u00a0", " ") for text in of_chart(browser, "sizes", ".tick") if text.endswith("/s")]
    assert sorted(ticks, key=lambda text: float(text.split()[0])) == ["10 GB/s", "20 GB/s", "50 GB/s", "100 GB/s"]
