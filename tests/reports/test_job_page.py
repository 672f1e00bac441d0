"""The job at the top of the page in headless Chromium: strip, sorting, keys, choice of rank, pages of ranks, print."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ascend_perf.reports.html import write_html
from ascend_perf.reports.rank_pages import linked, write_rank_pages
from tests.reports import _job_samples as jobs
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

SECTION = "document.activeElement.id"
ROWS = ("step", "computing", "wait", "transfer", "copy", "idle")
ROW_PX = 32
"""Height of a row of the strip with the gap below it."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Reports of 8 and 64 ranks, of 1,024 without pages of the ranks."""
    made = {}
    for count in (8, 64, 1024):
        folder = tmp_path_factory.mktemp(f"job{count}")
        payload = jobs.job(count)
        made[count] = folder / "report.html"
        if count == 64:
            write_rank_pages(payload, folder / "ranks", jobs=1)
            payload = linked(payload)
        write_html(payload, made[count])
    return made


def opened(browser: Browser, path: Path, fragment: str = "", *, width: int = 1280) -> Browser:
    browser.messages.clear()
    browser.requests.clear()
    browser.size(width, 900, phone=width < 500)
    browser.prefer("light")
    browser.open(path)
    browser.run("sessionStorage.clear()")
    browser.open(path, fragment)
    return browser


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No page says anything on the console or asks for anything but files."""
    yield
    assert browser.messages == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "about"}


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def canvas(page: Browser) -> Box:
    return Box(*page.run(
        "(r => [r.left, r.top, r.width, r.height])(document.querySelector('.strip canvas').getBoundingClientRect())"
    ))  # fmt: skip


def at(page: Browser, column: float, row: int) -> tuple[float, float]:
    """A place in the strip: column as a share of its width."""
    page.run("document.querySelector('.strip canvas').scrollIntoView({block: 'center'})")
    box = canvas(page)
    return box.left + column * box.width, box.top + row * ROW_PX + 15


def click(page: Browser, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")
    page.settle()


def text(page: Browser, selector: str) -> str:
    found: str = page.run(f"document.querySelector({json.dumps(selector)}).innerText")
    return found.replace("\u00a0", " ")


def arrived(page: Browser, ending: str) -> bool:
    """Whether the browser comes to another file; running a script fails while it goes there."""
    for _ in range(200):
        time.sleep(0.05)
        try:
            if page.run("document.readyState") == "complete" and page.run("location.pathname").endswith(ending):
                page.settle()
                return True
        except RuntimeError:
            continue
    return False


def choose(page: Browser, value: str) -> None:
    """Choose in the list of ranks."""
    page.run(
        f"(s => {{ s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})"
        "(document.getElementById('rank-choice'))"
    )


def pinned(page: Browser) -> str:
    return text(page, "#strip-says p strong")


def pixel(page: Browser, column: float, row: int) -> list[int]:
    """Colour of the lower part of a cell."""
    # From a copy: a canvas that is read twice makes the browser warn.
    script = (
        "(c => { const d = document.createElement('canvas'); d.width = c.width; d.height = c.height;"
        "const p = d.getContext('2d'); p.drawImage(c, 0, 0);"
        "return Array.from(p.getImageData(Math.floor({x} * c.width), {y} * devicePixelRatio, 1, 1).data); })"
        "(document.querySelector('.strip canvas'))"
    )
    found: list[int] = page.run(script.replace("{x}", str(column)).replace("{y}", str(row * ROW_PX + 27)))
    return found


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_the_job_comes_before_the_bars_and_is_in_the_navigation(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    order = page.run("Array.from(document.querySelectorAll('main > section')).map(s => s.id).slice(0, 5)")
    assert order == ["verdict", "tiles", "job", "where", "findings"]
    assert page.run("document.querySelector('nav.side a[href=\"#job\"]').textContent") == "The job"
    facts = text(page, "#job dl.job-facts")
    assert "64 of 64 in the data" in facts
    assert "rank 35 (Computing +9 ms)" in facts
    assert "63 ranks wait longest for rank 35" in text(page, ".job-waits")
    shown = page.run("Array.from(document.querySelectorAll('#job figure.table')).map(f => f.dataset.table)")
    assert [name for name in shown if name != "strip"] == ["job-stages", "job-groups"]
    in_section = page.run(
        "Array.from(document.querySelectorAll('#section-ranks figure.table')).map(f => f.dataset.table)"
    )
    assert "job-stages" not in in_section and "ranks" in in_section


def test_one_rank_has_no_job(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64].parent / "ranks" / "rank-00017.html")
    assert page.run("document.getElementById('job')") is None


# ---- the strip -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 64, 1024])
def test_the_late_rank_is_the_darkest_and_marked(count: int, browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[count])
    page.run("document.querySelector('.strip canvas').scrollIntoView()")
    width = canvas(page).width
    each = math.ceil(2 * count / width)  # ranks in a column, which is 2 to 110 px wide
    columns = math.ceil(count / each)
    wide = min(110.0, width / columns) / width
    place, elsewhere = ((rank // each + 0.5) * wide for rank in (jobs.late(count), jobs.late(count) - count // 8))
    dark, usual = pixel(page, place, 1), pixel(page, elsewhere, 1)
    assert sum(dark[:3]) < sum(usual[:3]) - 150
    x, y = at(page, place, 1)
    page.mouse("mouseMoved", x, y)
    said = text(page, ".tip")
    assert said.startswith(f"Rank {jobs.late(count)} · stage 1")
    assert "◆" in said if count > 8 else "z " in said
    assert "Computing: 40 ms (median 31 ms, z +" in said


def test_a_click_goes_to_the_details_of_a_rank_in_the_page(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    x, y = at(page, 35.5 / 64, 1)
    page.mouse("mousePressed", x, y, pressed=True)
    page.mouse("mouseReleased", x, y)
    page.settle()
    assert pinned(page) == "Rank 35"
    assert page.run("document.getElementById('rank-choice').value") == "#0"
    assert page.run(SECTION) == "section-timeline"
    assert page.run("document.querySelector('#section-timeline').getBoundingClientRect().top") < 200
    heads = page.run("Array.from(document.querySelectorAll('#section-operators .of')).map(n => n.textContent)")
    assert heads and set(heads) == {" · Rank 35"}


def test_a_click_opens_the_page_of_a_rank_without_details_here(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    x, y = at(page, 50.5 / 64, 2)
    page.mouse("mousePressed", x, y, pressed=True)
    page.mouse("mouseReleased", x, y)
    assert arrived(page, "/ranks/rank-00050.html")
    assert page.run("location.protocol") == "file:"


def test_without_a_page_a_click_pins_and_says_how_to_get_one(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[1024])
    before = page.run("location.href")
    x, y = at(page, 0.75, 0)
    page.mouse("mousePressed", x, y, pressed=True)
    page.mouse("mouseReleased", x, y)
    page.settle()
    rank = int(pinned(page).removeprefix("Rank "))
    assert 760 <= rank <= 776
    assert f"--rank {rank}, or with --all-ranks" in text(page, "#strip-says p")
    assert page.run("location.href") == before


def test_sorting_by_a_component_puts_the_late_rank_first(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    click(page, ".strip-row[data-sort='computing']")
    assert page.run("document.querySelector('.strip-row[aria-pressed=true]').dataset.sort") == "computing"
    page.run("document.querySelector('.strip canvas').focus()")
    page.key("Home")
    assert pinned(page) == "Rank 35"
    page.key("ArrowRight")
    assert pinned(page) == "Rank 63"  # computing grows with the number of the rank
    page.key("End")
    assert pinned(page) == "Rank 0"
    click(page, ".strip-row[data-sort='wait']")
    page.run("document.querySelector('.strip canvas').focus()")
    page.key("Home")
    assert pinned(page) == "Rank 0"
    click(page, ".strip-row[data-sort='rank']")
    page.run("document.querySelector('.strip canvas').focus()")
    page.key("Home")
    page.key("PageDown")
    assert pinned(page) == "Rank 16"


def test_every_one_of_a_thousand_ranks_is_reached_by_keys_and_in_the_table(
    browser: Browser, reports: dict[int, Path]
) -> None:
    page = opened(browser, reports[1024])
    page.run("document.querySelector('.strip canvas').focus()")
    page.key("Home")
    seen = []
    for _ in range(6):
        seen.append(pinned(page))
        page.key("ArrowRight")
    assert seen == [f"Rank {rank}" for rank in range(6)]
    # Exact figures, though several ranks share a column of the picture.
    assert "Computing\n30 ms (median 30 ms" in text(page, "#strip-says dl")
    assert "up to 3 ranks" in text(page, "[data-chart='strip'] .note")
    click(page, "#strip-table summary")
    click(page, "#strip-table .more")
    rows = page.run("document.querySelectorAll('#strip-table tbody tr').length")
    assert rows == 1024


def test_enter_opens_the_details(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    page.run("document.querySelector('.strip canvas').focus()")
    page.key("Home")
    page.key("ArrowRight")
    page.key("Enter")
    page.settle()
    assert page.run("AP.state.rank") == 1
    assert page.run(SECTION) == "section-timeline"


# ---- the choice of a rank --------------------------------------------------------------------------------------------


def test_the_choice_switches_every_section_and_says_why(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    options = page.run("Array.from(document.querySelectorAll('#rank-choice optgroup')[0].children).map(o => o.text)")
    assert options[:3] == [
        "Rank 35 · named in finding 1", "Rank 0 · loses time in finding 1", "Rank 1 · named in finding 2"
    ]  # fmt: skip
    assert "Rank 31 · median step" in options
    place = options.index("Rank 31 · median step")
    choose(page, f"#{place}")
    page.settle()
    assert text(page, ".rank-nav p") == "median step"
    assert page.run(SECTION) == "rank-choice"
    for section in ("operators", "mac", "host", "memory"):
        heads = page.run(
            f"Array.from(document.querySelectorAll('#section-{section} figure.table .of')).map(n => n.textContent)"
        )
        assert set(heads) == {" · Rank 31"}, section
    assert pinned(page) == "Rank 31"
    page.open(reports[64])
    assert page.run("AP.state.rank") == 31  # survives a reload


def test_the_choice_leads_to_pages_of_other_ranks_and_back(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    others = page.run("Array.from(document.querySelectorAll('#rank-choice optgroup')[1].children).map(o => o.value)")
    assert len(others) == 64 - 8
    assert others[0] == "ranks/rank-00006.html"
    choose(page, "ranks/rank-00040.html")
    assert arrived(page, "/ranks/rank-00040.html")
    assert "Rank 40 of 64" in text(page, ".rank-note")
    back = page.run("document.querySelector('.rank-note a').getAttribute('href')")
    assert back == "../report.html#rank-40"
    page.run("document.querySelector('.rank-note a').click()")
    assert arrived(page, "/report.html")
    assert pinned(page) == "Rank 40"


def test_every_link_between_the_pages_is_relative_and_leads_to_a_file(
    browser: Browser, reports: dict[int, Path]
) -> None:
    for path in (reports[64], reports[64].parent / "ranks" / "rank-00017.html"):
        page = opened(browser, path)
        found: list[Any] = page.run(
            "Array.from(document.querySelectorAll('a[href], #rank-choice option'))"
            ".map(n => n.getAttribute('href') || n.value)"
        )
        files = {link.split("#")[0] for link in found if link.split("#")[0]}
        assert files
        for link in files:
            assert "://" not in link and not link.startswith("/"), link
            assert (path.parent / link).is_file(), link


def test_a_link_to_a_rank_opens_on_it(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64], "#rank-31")
    page.settle()
    assert page.run("AP.state.rank") == 31
    assert pinned(page) == "Rank 31"
    assert page.run("document.getElementById('job').getBoundingClientRect().top") < 200
    page = opened(browser, reports[64], "#rank-4711")
    assert page.run("AP.state.rank") == 0  # no such rank: the page opens as it does without


# ---- languages, sizes, print -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 64, 1024])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_every_width_in_both_languages(
    count: int, width: int, browser: Browser, reports: dict[int, Path]
) -> None:
    page = opened(browser, reports[count], width=width)
    for lang in ("en", "zh"):
        click(page, f"[data-value='{lang}']")
        assert page.run("document.documentElement.scrollWidth") <= width
        box = canvas(page)
        assert box.left >= 0 and box.left + box.width <= width
        cut = page.run(
            "Array.from(document.querySelectorAll('.strip-row')).filter(b => b.scrollHeight > b.clientHeight + 1)"
            ".map(b => b.textContent)"
        )
        assert cut == []
    assert "任务总览" in text(page, "#job > h2")
    assert not text(page, "#strip-says p").isascii()


def test_it_prints(browser: Browser, reports: dict[int, Path]) -> None:
    page = opened(browser, reports[64])
    page.prefer("dark")
    page.settle()
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.settle()
    assert page.run("document.documentElement.dataset.theme") == "light"
    assert page.run("document.getElementById('strip-table').open")
    assert page.run("document.querySelectorAll('#strip-table tbody tr').length") == 64
    assert sum(pixel(page, 0.9, 0)[:3]) > 500  # drawn for white paper
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.settle()
    assert not page.run("document.getElementById('strip-table').open")
