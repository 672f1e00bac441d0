"""Charts in headless Chromium: collectives by size and bandwidth under the peak of their link; parts of a whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf.model.finding import Cell, Outcome, ResultColumn, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from ascend_perf.units import Unit
from tests.reports import _samples
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

SIZES: dict[str, Unit] = {
    "op": "none", "group": "none", "group_size": "count", "transport": "none", "count": "count", "size_bytes": "bytes",
    "time_ns": "ns", "total_ns": "ns", "bus_bytes_per_s": "bytes_per_s", "peak_bytes_per_s": "bytes_per_s",
}  # fmt: skip
ROWS: list[list[Cell]] = [
    ["allReduce", "dp", 8, "HCCS", 4, 1 << 20, 100_000, 400_000, 9.8e10, 1.96e11],
    ["allGather", "tp", 2, "HCCS", 1, 1 << 10, 100_000, 100_000, 1e8, 2.8e10],
    ["send", "pp", 2, "RDMA", 1, 1 << 16, 50_000, 50_000, 1e9, None],
    ["<b>send</b>", "pp", 2, None, 1, 1 << 16, 50_000, 50_000, 2e9, None],
    ["broadcast", "pp", 2, "HCCS", 1, 0, 50_000, 50_000, 2e9, 2.8e10],
]
PATH: dict[str, Unit] = {"component": "none", "class": "none", "time_ns": "ns", "share_ratio": "ratio"}


def table(name: str, units: dict[str, Unit], rows: list[list[Cell]], note: Words | None = None) -> ResultTable:
    return ResultTable(
        name=name, title=Words(f"{name} title", f"{name} 标题"), note=note,
        columns=tuple(ResultColumn(name=key, title=Words(key, key), unit=unit) for key, unit in units.items()),
        data=tuple(tuple(row[at] for row in rows) for at in range(len(units))),
    )  # fmt: skip


DRAWN = """new Promise(function (done) {
  (function look() {
    if ([...document.querySelectorAll('.draw')].every(n => n.firstElementChild)) done();
    else requestAnimationFrame(look);
  })();
})"""
"""Charts are drawn in a later frame than the one in which they got their width."""


def shown(
    browser: Browser, path: Path, *tables: ResultTable, lang: Literal["en", "zh"] = "en", width: int = 1280
) -> Browser:
    outcome = Outcome(analyzer="communication", status="done", rank=0, tables=tables)
    write_html(build(Run(traces=(_samples.trace(0),), label="x"), [outcome], (), lang=lang), path)
    browser.messages.clear()
    browser.size(width, 900, phone=width < 600)
    browser.open(path)
    browser.run("sessionStorage.clear()")  # the choices of the report before
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()
    browser.run(DRAWN)
    return browser


CHART = """(function () {
  const f = document.querySelector('figure[data-chart="sizes"]');
  const number = (n) => n.getAttribute('transform').match(/[-\\d.]+/g).map(Number);
  const points = [...f.querySelectorAll('.draw .point')];
  return {
    points: points.map(p => number(p).concat(p.getBBox().width)), kinds: points.map(p => p.getAttribute('class')),
    shapes: points.map(p => p.getAttribute('d').replace(/[-\\d. ]+/g, '')),
    lines: [...f.querySelectorAll('.draw .ceiling')].map(l => Number(l.getAttribute('y1'))),
    labels: [...f.querySelectorAll('.draw .roof-label')].map(t => t.textContent.replace(/\\s/g, ' ')),
    keys: [...f.querySelectorAll('.keys .key')].map(k => k.textContent),
    marks: [...f.querySelectorAll('.keys .point')].map(p => p.getAttribute('d')),
    caption: f.querySelector('figcaption').textContent,
    note: f.querySelector('p.note') && f.querySelector('p.note').textContent,
    inside: f.scrollWidth <= f.clientWidth && document.documentElement.scrollWidth <= innerWidth,
  }; })()"""


@pytest.mark.parametrize("width", [1280, 390])
def test_points_and_ceilings_lie_on_the_same_two_scales(browser: Browser, tmp_path: Path, width: int) -> None:
    note = Words("where it is from", "来源")
    page = shown(browser, tmp_path / "report.html", table("size-bandwidth", SIZES, ROWS, note), width=width)

    chart = page.run(CHART)

    # By total time: the fifth has no size, and no place on a logarithmic axis. Ties stay in the order of the table.
    assert len(chart["points"]) == 4
    x, y, size = zip(*chart["points"], strict=True)
    assert chart["kinds"] == ["point c0", "point c0", "point c1", "point c2"]
    assert chart["shapes"][0] == chart["shapes"][1]
    assert len(set(chart["shapes"])) == 3
    # 2^20, 2^10 and 2^16 bytes: 10 : 6 octaves apart.
    assert (x[0] - x[2]) / (x[2] - x[1]) == pytest.approx(4 / 6, abs=0.01)
    assert x[2] == x[3]
    decade = (y[1] - y[0]) / math.log10(9.8e10 / 1e8)
    assert y[2] - y[3] == pytest.approx(decade * math.log10(2), abs=0.2)
    assert chart["lines"] == pytest.approx(
        [y[0] - decade * math.log10(2), y[0] - decade * math.log10(28 / 98)], abs=0.2
    )
    assert size[0] == pytest.approx(2 * size[1], rel=0.05)  # four times the time
    assert chart["labels"] == ["HCCS, 8 ranks: vendor peak 196 GB/s", "HCCS, 2 ranks: vendor peak 28 GB/s"]
    assert chart["keys"] == ["HCCS", "RDMA", "link not in this data", "vendor peak of the link, not measured"]
    assert "7 calls" in chart["caption"]
    assert chart["note"] == "where it is from"
    assert chart["inside"]
    assert page.messages == []


def test_a_point_tells_operator_size_time_and_bandwidth(browser: Browser, tmp_path: Path) -> None:
    page = shown(browser, tmp_path / "report.html", table("size-bandwidth", SIZES, ROWS))

    def tip(place: int) -> list[str]:
        point = f"document.querySelectorAll('figure[data-chart=\"sizes\"] .draw .point')[{place}]"
        page.run(f"{point}.dispatchEvent(new PointerEvent('pointerenter', {{ clientX: 300, clientY: 300 }}))")
        lines: list[str] = page.run(
            "[...document.querySelectorAll('.tip > div')].map(d => d.textContent.replace(/\\s/g, ' '))"
        )
        return lines

    assert tip(0) == [
        "allReduce, dp, HCCS", "4 calls together, means", "1 MiB in 100 us, without waiting",
        "98 GB/s bus bandwidth", "50 % of the vendor peak of 196 GB/s",
    ]  # fmt: skip
    assert tip(3) == [
        "<b>send</b>, pp, link not in this data", "64 KiB in 50 us, without waiting", "2 GB/s bus bandwidth",
        "The ceiling of this link is not known",
    ]  # fmt: skip
    assert page.run("document.querySelector('figure[data-chart=\"sizes\"] b')") is None


def test_one_link_is_told_apart_by_group_in_chinese(browser: Browser, tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["allReduce", f"g{at}", 8, "HCCS", 1, 1 << at, 1000, 1000 - at, 1e9, None] for at in range(9)
    ]
    page = shown(browser, tmp_path / "report.html", table("size-bandwidth", SIZES, rows), lang="zh")

    chart = page.run(CHART)

    assert chart["keys"] == [*(f"HCCS、g{at}" for at in range(5)), "另外 4 个"]
    assert chart["kinds"][5:] == ["point c5"] * 4
    assert len({*chart["marks"]}) == len({*chart["kinds"]}) == 6
    assert chart["lines"] == []
    assert chart["caption"].startswith("数据量与带宽")


BARS = """[...document.querySelectorAll('figure[data-chart="composition"]')].map(f => ({
  table: f.closest('figure.table').dataset.table, next: f.nextElementSibling.className,
  title: f.querySelector('figcaption .muted').textContent.replace(/\\s/g, ' '),
  parts: [...f.querySelectorAll('.piece')].map(p => [p.className, p.getBoundingClientRect().width, p.textContent]),
  keys: [...f.querySelectorAll('.key')].map(k => k.textContent.replace(/\\s/g, ' ')),
  said: f.querySelector('.bar').getAttribute('aria-label'), wide: f.querySelector('.bar').getBoundingClientRect().width,
}))"""


def test_the_parts_of_the_critical_path_stand_above_their_table(browser: Browser, tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["collective wait", None, 70_000_000, 0.7], ["host dispatch", None, 15_000_000, 0.15],
        ["computing", "matmul", 9_000_000, 0.09], ["computing", "vector", 6_000_000, 0.06],
        ["copy", None, 0, 0.0],
    ]  # fmt: skip
    causes: list[list[Cell]] = [["nothing", 6_000_000], ["launch", 2_000_000]]
    page = shown(
        browser, tmp_path / "report.html", table("critical-path", PATH, rows),
        table("idle-causes", {"cause": "none", "total_ns": "ns"}, causes),
    )  # fmt: skip

    path, idle = page.run(BARS)

    assert [part[0] for part in path["parts"]] == [
        "piece k-wait s0", "piece k-host s0", "piece k-computing s0", "piece k-computing s1"
    ]  # fmt: skip
    widths = [part[1] for part in path["parts"]]
    assert widths == pytest.approx([(path["wide"] - 3) * share for share in (0.7, 0.15, 0.09, 0.06)], abs=0.5)
    assert path["title"].startswith("100 ms in 4 parts")
    assert path["keys"] == ["Communication, wait 70 %", "Host 15 %", "Computing 15 %"]
    assert (path["table"], idle["table"]) == ("critical-path", "idle-causes")
    assert path["next"] == idle["next"] == "scroll"
    assert "70" in path["said"]
    assert [part[0] for part in idle["parts"]] == ["piece k-idle s0", "piece k-idle s1"]
    assert [key[-4:] for key in idle["keys"]] == ["75 %", "25 %"]
    assert page.messages == []


def test_one_part_is_no_bar(browser: Browser, tmp_path: Path) -> None:
    page = shown(
        browser, tmp_path / "report.html", table("critical-path", PATH, [["computing", None, 5, 1.0]]),
        table("idle-causes", {"cause": "none", "total_ns": "ns"}, [["nothing", 0], ["launch", None]]),
    )  # fmt: skip

    assert page.run(BARS) == []
