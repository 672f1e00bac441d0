"""The page in headless Chromium: no error, no request, every section, both languages, both themes, phone and print."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend_perf.model.run import Run
from ascend_perf.model.trace import Trace
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from ascend_perf.units import Unit, format_quantity
from tests.reports import _samples
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(_samples.payload(), path)
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The report, freshly opened at 1280 px in light colours; afterwards nothing may have gone wrong."""
    browser.messages.clear()
    browser.requests.clear()
    browser.size(1280, 900)
    browser.prefer("light")
    browser.open(report)
    browser.run("sessionStorage.clear()")
    browser.open(report)
    yield browser
    assert browser.messages == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "about"}


def texts(page: Browser, selector: str) -> list[str]:
    script = f"Array.from(document.querySelectorAll({json.dumps(selector)})).map(n => n.textContent)"
    found: list[str] = page.run(script)
    return found


CANVAS = "(r => [r.left, r.top, r.width])(document.querySelector('.timeline canvas').getBoundingClientRect())"
"""Place of the timeline in the window."""


def click(page: Browser, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")
    page.settle()


def test_it_opens_on_the_answer(page: Browser) -> None:
    assert texts(page, "h1") == [
        "The step takes 136.6\u00a0ms (median of 2). "
        "98.1\u00a0ms of the step is waiting for rank 5, which arrives late at 2 of 4 all-reduces"
    ]
    assert page.run("document.querySelector('h1').getBoundingClientRect().bottom") < 400


def test_every_section_can_be_reached_from_the_navigation(page: Browser) -> None:
    links = page.run("Array.from(document.querySelectorAll('nav.side a')).map(a => a.getAttribute('href'))")

    assert len(links) == 17
    for link in links:
        click(page, f"nav.side a[href='{link}']")
        top = page.run(f"document.querySelector('{link}').getBoundingClientRect().top")
        bottom = page.run("document.documentElement.scrollHeight - window.innerHeight - window.scrollY")
        assert 0 <= top < 120 or bottom < 2, link


def test_the_switch_changes_every_text_and_back(page: Browser) -> None:
    english = page.run("document.body.innerText")

    click(page, "[data-value='zh']")

    assert page.run("document.documentElement.lang") == "zh-CN"
    assert texts(page, "h1")[0].startswith("单步耗时 136.6\u00a0ms（2 个样本的中位数）。")
    assert texts(page, "#findings > h2") == ["优先处理"]
    assert page.run("document.title").startswith("单步中有")
    assert "通信等待" in texts(page, "#where")[0]
    for head in texts(page, "main h2") + texts(page, ".tile-label"):
        assert not head.isascii() or head in ("MFU",), head
    click(page, "[data-value='en']")
    assert page.run("document.body.innerText") == english


def test_the_theme_follows_the_system_and_can_be_switched(page: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.prefer("dark")
    page.settle()
    dark = page.run(background)

    page.run("var t = document.getElementById('theme'); t.value = 'light'; t.dispatchEvent(new Event('change'))")

    assert light == page.run(background) == "rgb(255, 255, 255)"
    assert dark != light


def test_choices_survive_a_reload(page: Browser, report: Path) -> None:
    click(page, "[data-value='zh']")

    page.open(report)

    assert page.run("document.documentElement.lang") == "zh-CN"


def test_a_table_sorts_both_ways_and_keeps_unknown_last(page: Browser) -> None:
    column = "#section-operators figure[data-table='top-kernels'] tbody td:nth-child(8)"
    head = "#section-operators figure[data-table='top-kernels'] th:nth-child(8)"
    click(page, "#section-operators figure[data-table='top-kernels'] .more")

    click(page, f"{head} button")
    down = texts(page, column)
    click(page, f"{head} button")
    up = texts(page, column)

    assert page.run(f"document.querySelector({json.dumps(head)}).getAttribute('aria-sort')") == "ascending"
    known = [float(cell) for cell in down if cell != "—"]
    assert known == sorted(known, reverse=True)
    assert down[-1] == up[-1] == "—"
    assert [float(cell) for cell in up if cell != "—"] == sorted(known)


def test_search_narrows_a_table(page: Browser) -> None:
    page.run(
        "var i = document.querySelector(\"figure[data-table='top-kernels'] input\");"
        "i.value = 'common_41'; i.dispatchEvent(new Event('input'))"
    )

    assert len(texts(page, "figure[data-table='top-kernels'] tbody tr")) == 1


def test_another_rank_shows_its_tables(page: Browser) -> None:
    page.run(
        "var s = document.querySelector('#section-communication select');"
        "s.selectedIndex = 1; s.dispatchEvent(new Event('change'))"
    )
    page.settle()

    assert "Rank 1" in texts(page, "#section-communication figure.table h3")[0]


def test_names_from_the_trace_are_text(page: Browser) -> None:
    assert page.run("document.querySelectorAll('img, main script').length") == 0
    assert "</script><script>alert('x')" in texts(page, "#section-operators tbody")[0]


def test_a_deep_link_opens_a_folded_finding(page: Browser, report: Path) -> None:
    assert page.run("document.getElementById('finding-7').open") is False

    page.open(report, "#finding-7")

    assert page.run("document.getElementById('finding-7').open") is True
    assert 0 <= page.run("document.getElementById('finding-7').getBoundingClientRect().top") < 300


def test_the_timeline_zooms_by_key_drag_and_wheel_and_finds_its_way_back(page: Browser) -> None:
    window = "document.querySelector('.timeline .table-foot output').textContent"
    click(page, "nav.side a[href='#section-timeline']")
    whole = page.run(window)
    page.run("document.querySelector('.timeline canvas').focus({preventScroll: true})")
    box = page.run(
        "(r => [r.left, r.top, r.width])(document.querySelector('.timeline canvas').getBoundingClientRect())"
    )

    page.key("+")
    page.settle()
    by_key = page.run(window)
    page.key("0")
    page.settle()
    back = page.run(window)
    page.mouse("mousePressed", box[0] + 400, box[1] + 60, pressed=True)
    page.mouse("mouseMoved", box[0] + 500, box[1] + 60, pressed=True)
    page.mouse("mouseReleased", box[0] + 500, box[1] + 60)
    page.settle()
    by_drag = page.run(window)

    assert by_key != whole
    assert back == whole
    assert by_drag != whole
    page.key("Escape")


def test_hovering_the_timeline_tells_the_interval(page: Browser) -> None:
    click(page, "nav.side a[href='#section-timeline']")
    box = page.run(CANVAS)
    place = page.run(
        "(m => AP.timelineNow().place(Array.from(m.s.keys()).find(i => /wait for rank 5/.test(m.name(i)))))"
        "(AP.timelineNow().model)"
    )

    page.mouse("mouseMoved", box[0] + place["x"], box[1] + place["y"])
    page.settle()

    assert "wait for rank 5" in texts(page, ".tip")[0]
    assert "Finding 1" in texts(page, ".tip")[0]


def test_evidence_leads_into_the_timeline(page: Browser) -> None:
    click(page, "#finding-1 .evidence button")

    assert "· 2.699 ms" in page.run("document.querySelector('.timeline .table-foot output').textContent").replace(
        "\u00a0", " "
    )  # one hundredth of 134.9 ms on each side


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_sticks_out_on_a_phone(page: Browser, scheme: str, lang: str) -> None:
    page.prefer(scheme)
    page.size(390, 844, phone=True)
    click(page, f"[data-value='{lang}']")

    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run("getComputedStyle(document.querySelector('.jump select')).display") == "block"
    assert page.run(
        "Array.from(document.querySelectorAll('h1, h2, h3')).every(n => n.scrollWidth <= n.clientWidth + 1)"
    )


def test_text_has_enough_contrast_in_both_themes(page: Browser) -> None:
    script = """(function () {
      const linear = v => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
      const lum = c => { const f = v => linear(v / 255);
        return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
      const rgb = s => (s.match(/[\\d.]+/g) || []).map(Number);
      const back = n => { for (; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor);
        if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
      const bad = [];
      const picked = 'h1, h2, h3, h4, p, a, dt, dd, td, th, li, summary, button, select, .severity, .piece';
      for (const n of document.querySelectorAll(picked)) {
        if (n.classList.contains('k-wait') || !n.textContent.trim()) continue;
        const a = lum(rgb(getComputedStyle(n).color)), b = lum(back(n));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push([n.tagName, n.className, n.textContent.slice(0, 30), ratio.toFixed(2)].join(' '));
      }
      return bad;
    })()"""
    assert page.run(script) == []
    page.prefer("dark")
    page.settle()
    assert page.run(script) == []


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page: Browser) -> None:
    nameless = """Array.from(document.querySelectorAll('button, a[href], input, select, [tabindex="0"]'))
      .filter(n => !(n.getAttribute('aria-label') || n.textContent.trim() || (n.labels && n.labels.length)))
      .map(n => n.outerHTML.slice(0, 80))"""
    assert page.run(nameless) == []
    levels = page.run("Array.from(document.querySelectorAll('h1, h2, h3, h4')).map(n => Number(n.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert page.run("Array.from(document.querySelectorAll('table')).every(t => t.caption && t.caption.textContent)")


def test_print_opens_everything_and_hides_the_controls(page: Browser) -> None:
    page.prefer("dark", "print")
    page.run("window.dispatchEvent(new Event('beforeprint'))")

    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    assert page.run("document.documentElement.dataset.theme") == "light"
    assert len(texts(page, "figure[data-table='top-kernels'] tbody tr")) == 60
    assert page.run("getComputedStyle(document.querySelector('nav.side')).display") == "none"
    page.run("window.dispatchEvent(new Event('afterprint'))")
    assert page.run("document.getElementById('finding-7').open") is False
    page.prefer("light")


BEYOND = """(() => {
  const found = [], edge = document.documentElement.clientWidth + 1;
  for (const f of document.querySelectorAll('figure.table')) {
    const t = f.querySelector('table').getBoundingClientRect(), b = f.getBoundingClientRect();
    if (t.height && (t.bottom > b.bottom + 1 || t.right > edge)) found.push(f.dataset.table);
  }
  for (const n of document.querySelectorAll('.draw svg, canvas')) {
    const b = n.getBoundingClientRect();
    if (b.width && (b.right > edge || b.height > 660)) found.push(n.closest('figure').dataset.chart);
  }
  return found;
})()"""
"""Tables that run out of their figure, and over what follows it, or over the edge; drawings larger than a page."""


def test_on_paper_nothing_lies_on_something_else_or_beyond_the_edge(page: Browser) -> None:
    page.size(1920, 900)
    page.settle()
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.prefer("light", "print")
    # Like a page of paper, whose width no script is told of: a drawing stays what it was.
    page.run("document.getElementById('app').style.width = '1032px'; document.body.style.width = '1032px'")

    beyond = page.run(BEYOND.replace("document.documentElement.clientWidth", "1032"))

    assert beyond == []
    heads = "getComputedStyle(document.querySelector('figure.table th .head')).display"
    assert page.run(heads) == "contents"  # Chromium does not say buttons again at the top of the next page
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.prefer("light")
    page.size(1280, 900)


FIGURES: list[tuple[float, Unit]] = [
    (0, "ns"), (7, "ns"), (999, "ns"), (1000, "ns"), (14_356, "ns"), (999_960, "ns"), (136_581_009, "ns"),
    (9_999_500_000, "ns"), (12_345_678_901, "ns"), (136.581, "ms"), (0.0123, "us"), (98.34, "s"), (0, "ratio"),
    (0.0123, "ratio"), (0.09996, "ratio"), (0.726, "ratio"), (1.5, "ratio"), (1, "bytes"), (1536, "bytes"),
    (1_522_532_352, "bytes"), (15.6539e9, "bytes_per_s"), (3.539e14, "flops_per_s"), (88.5e12, "flops"),
    (1.8e9, "hertz"), (3.5714, "x"), (123456, "count"), (12.3456, "none"), (41.25, "celsius"), (310.0, "watt"),
    (234.3, "items_per_s"), (-2_500_000, "ns"),
]  # fmt: skip


def test_figures_are_written_as_in_python(page: Browser) -> None:
    for value, unit in FIGURES:
        said = page.run(f"AP.format.quantity({value!r}, {unit!r})")
        said = said.replace("\u00a0", " ").replace("\u202f", "\u2009")  # the page keeps figures on one line
        assert said == format_quantity(value, unit), (value, unit)


def test_an_empty_run_opens_without_errors(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(build(Run(traces=(Trace(),)), [], [], lang="zh"), path)

    page.open(path)

    assert texts(page, "h1")[0].startswith("该性能数据中没有单步耗时。")


def test_sixty_four_ranks_open_without_errors(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(_samples.many_ranks(64), path)

    page.open(path)

    assert len(texts(page, ".bar-row")) == 8
    assert "56 more ranks" in texts(page, "#where")[0]
    assert len(texts(page, "#section-timeline .reason")) == 0
    page.size(390, 844, phone=True)
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 390
