"""Heat maps of ranks in headless Chromium: every pair of a small job, ranks put together in a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.model.finding import Cell, Outcome, ResultColumn, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from tests.reports import _samples
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


def table(name: str, columns: dict[str, tuple[list[Cell], Literal["none", "ns", "ratio"]]]) -> ResultTable:
    return ResultTable(
        name=name, title=Words(name, name),
        columns=tuple(
            ResultColumn(name=key, title=Words(key, key), unit=unit) for key, (_, unit) in columns.items()
        ),
        data=tuple(tuple(cells) for cells, _ in columns.values()),
    )  # fmt: skip


def report(path: Path, ranks: int, lang: Literal["en", "zh"] = "en") -> Path:
    """All ranks wait for rank 5, rank r for (r + 1) us; the link 3 -> 5 runs at half of its usual rate."""
    waiters = [rank for rank in range(ranks) if rank != 5]
    links = [(a, b) for a in range(min(ranks, 8)) for b in range(min(ranks, 8)) if a != b]
    waits = table(
        "rank-waits",
        {
            "waiter": (list(waiters), "none"),
            "late": ([5] * len(waiters), "none"),
            "exposed_ns": ([1000 * (rank + 1) for rank in waiters], "ns"),
        },
    )
    matrix = table(
        "link-matrix",
        {
            "src": ([str(a) for a, _ in links], "none"),
            "dst": ([str(b) for _, b in links], "none"),
            "ratio": ([0.5 if link == (3, 5) else 1.0 for link in links], "ratio"),
        },
    )
    job = Outcome(analyzer="ranks", status="done", scope="job", tables=(waits, matrix))
    write_html(build(Run(traces=(_samples.trace(0),), label="job"), [job], (), lang=lang), path)
    return path


GRIDS = """Array.from(document.querySelectorAll('figure[data-chart="heat"]')).map(function (f) {
  const filled = Array.from(f.querySelectorAll('rect.cell:not(.none)'));
  const ticks = Array.from(f.querySelectorAll('text.tick')).map(function (t) { return t.getBoundingClientRect(); });
  return {
    title: f.querySelector('figcaption').textContent, overflow: document.body.scrollWidth > innerWidth,
    cells: f.querySelectorAll('rect.cell').length, filled: filled.length,
    strong: filled.filter(function (r) { return r.style.getPropertyValue('--share') === '100%'; }).length,
    labels: ticks.filter(function (b, i) {
      return i && Math.abs(b.top - ticks[i - 1].top) < 1 && b.left < ticks[i - 1].right;
    }).length
  };
})"""
"""Charts of the page: cells, those with a figure, those of the strongest colour, labels that overlap."""


def grids(browser: Browser, path: Path, scheme: str = "light") -> dict[str, dict[str, object]]:
    browser.messages.clear()
    browser.size(1280, 900)
    browser.prefer(scheme)
    browser.open(path)
    found = browser.run(GRIDS)
    assert browser.messages == []
    return {str(one["title"]).split(" · ")[0]: one for one in found}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_small_job_shows_every_pair(browser: Browser, tmp_path: Path, scheme: str) -> None:
    found = grids(browser, report(tmp_path / "report.html", 8), scheme)

    waits = found["Who waits for whom, all ranks"]
    assert (waits["cells"], waits["filled"], waits["strong"]) == (64, 7, 1)  # rank 7 waits longest
    links = found["Links against their peers"]
    assert (links["cells"], links["filled"], links["strong"]) == (64, 56, 1)  # 3 -> 5
    assert not any(one["overflow"] or one["labels"] for one in found.values())


def test_a_map_of_many_links_is_drawn_where_one_of_them_is_slow(browser: Browser, tmp_path: Path) -> None:
    """A map of hundreds of links that all run as they should would be a large picture of nothing."""
    said = {}
    for lowest in (0.95, 0.85):
        pairs = [(a, b) for a in range(32) for b in range(32) if a != b]
        ratios: list[Cell] = [lowest if pair == (3, 5) else 1.02 for pair in pairs]
        matrix = table("link-matrix", {
            "src": ([str(a) for a, _ in pairs], "none"),
            "dst": ([str(b) for _, b in pairs], "none"),
            "ratio": (ratios, "ratio"),
        })  # fmt: skip
        job = Outcome(analyzer="ranks", status="done", scope="job", tables=(matrix,))
        path = tmp_path / f"{lowest}.html"
        write_html(build(Run(traces=(_samples.trace(0),), label="job"), [job], (), lang="en"), path)
        said[lowest] = grids(browser, path)["Links against their peers"]
        said[lowest]["note"] = browser.run("document.querySelector('figure[data-chart=\"heat\"] .note')?.textContent")

    assert said[0.95]["cells"] == 0
    assert str(said[0.95]["note"]).replace("\u00a0", " ") == (
        "992 transfers between ranks; none is below 90 % of the usual rate of like links (lowest: 95 %)."
    )
    assert said[0.85]["cells"] == 992
    assert said[0.85]["note"] is None


def test_a_thousand_ranks_are_put_together(browser: Browser, tmp_path: Path) -> None:
    found = grids(browser, report(tmp_path / "report.html", 1024))

    waits = found["Who waits for whom, all ranks"]
    assert "16 ranks" in str(waits["title"])
    # 64 x 64 cells of 16 x 16 ranks; all wait for the one that holds rank 5, the last 16 ranks longest.
        # Cells without a wait are not drawn: in a map of this size they would be 4032 boxes that say nothing.
    assert (waits["cells"], waits["filled"], waits["strong"]) == (64, 64, 1)
    assert not any(one["labels"] for one in found.values())


def test_the_charts_speak_chinese(browser: Browser, tmp_path: Path) -> None:
    found = grids(browser, report(tmp_path / "report.html", 200, "zh"))
    assert {"各 Rank 间的等待关系", "各链路与同类链路对比"} <= set(found)
    assert "相邻的 4 个 Rank" in str(found["各 Rank 间的等待关系"]["title"])  # 200 ranks in 50 cells
