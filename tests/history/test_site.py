"""The pages of a history: written whole, without requests, harmless whatever names are in them; seen in Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.errors import InputError, UsageError
from ascend_perf.history.database import Database
from ascend_perf.history.store import Store
from ascend_perf.history.trends import trends_of
from ascend_perf.reports.trends import change_sentence, grouped, is_web, open_changes, write_site
from tests.history import _samples
from tests.history.test_command import _run
from tests.reports._browser import Browser, chromium

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202eevil"


def _document(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 nights with a slowdown at night 28, reports of the last ones, and a benchmark with a hostile name."""
    folder = tmp_path_factory.mktemp("history")
    path = folder / "history.sqlite"
    nights = _samples.nights(folder / "nights", 40, step_at=28, ratio=1.06, later={"torch": "2.6.0"})
    store = Store(Database(str(path)))
    for night in nights:
        store.add(night)
    hostile = _samples.results(40, names=(HOSTILE,), suite=HOSTILE, branch=HOSTILE, commit=HOSTILE, folder="run")
    (folder / "hostile" / "run").mkdir(parents=True)
    (folder / "hostile" / "run" / "report.html").write_text("<p>the report")
    store.add(_samples.write(folder / "hostile", hostile), report_url="https://ci.example/1?a=b&c=d")
    simulated = _samples.results(41, names=("simulated/one",), simulated=True)
    store.add(_samples.write(folder / "simulated", simulated), allow_simulated=True)
    store.database.close()
    return path


@pytest.fixture(scope="module")
def site(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "public"
    _run(database, "site", "-o", str(folder))
    return folder


def _page_of(site: Path, benchmark: str) -> Path:
    (row,) = [row for row in _document(site / "index.html")["rows"]
              if benchmark in row["benchmark"] and row["metric"] == "step_time_median"]  # fmt: skip
    return site / str(row["page"])


def test_the_overview_names_the_regression_its_commit_and_its_cause(site: Path) -> None:
    index = _document(site / "index.html")

    assert index["state"] == "worse"
    assert {change["day"] for change in index["changes"]} == {"2026-02-02"}  # 5 January and 28 nights
    assert {change["commit"] for change in index["changes"]} == {"001cc0ffee00"}
    assert index["changes"][0]["facts"] == [["torch", "2.5.1", "2.6.0"]]
    assert "2 open regressions in 12 trends" in index["main"][0]
    assert "12 条趋势中有 2 处未处理的性能劣化" in index["main"][1]


def test_a_page_has_every_value_with_its_result(site: Path) -> None:
    page = _document(_page_of(site, "llm-pretrain"))

    (trend,) = [trend for trend in page["trends"] if trend["metric"] == "step_time_median"]
    assert len(page["results"]) == len(trend["value"]) == 40
    assert trend["at"] == list(range(40))
    assert [change["place"] for change in trend["changes"]] == [28]
    assert len({round(level) for level in trend["level"]}) == 2
    ranges = zip(trend["low"], trend["value"], trend["high"], strict=True)
    assert all(low <= value <= high for low, value, high in ranges)


def test_reports_are_copied_and_linked_from_beside_the_pages(site: Path) -> None:
    page = _page_of(site, "script")

    (result,) = _document(page)["results"]

    assert (page.parent / result["report"]).resolve().read_text("utf-8") == "<p>the report"
    assert (page.parent / result["report"]).resolve().is_relative_to(site.resolve())
    assert result["url"] == "https://ci.example/1?a=b&c=d"


def test_pages_ask_for_nothing_and_run_only_our_script(site: Path) -> None:
    for page in [site / "index.html", *(site / "benchmarks").iterdir()]:
        text = page.read_text("utf-8")
        assert text.count("<script") == 2
        assert "default-src 'none'" in unescape(text)
        assert not re.search(r"<(?:img|iframe|link rel=.stylesheet|object|embed|form)\b", text)


def test_simulated_figures_are_said_to_be_so(site: Path) -> None:
    index = _document(site / "index.html")

    assert index["simulated"] and index["partly"]
    assert {row["simulated"] for row in index["rows"] if row["benchmark"] == "simulated/one"} == {True}
    assert _document(_page_of(site, "simulated/one"))["simulated"]
    assert not _document(_page_of(site, "llm-pretrain"))["simulated"]


def test_no_path_of_the_machine_is_in_the_pages(site: Path, database: Path) -> None:
    for page in [site / "index.html", *(site / "benchmarks").iterdir()]:
        assert str(database.parent) not in page.read_text("utf-8")


def test_writing_again_replaces_pages_and_leaves_what_is_not_ours(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "public"
    _run(database, "site", "-o", str(folder))
    (folder / "benchmarks" / "0123456789abcdef.html").write_text("of a benchmark that is gone")
    (folder / "robots.txt").write_text("mine")

    with pytest.raises(UsageError, match="is not empty"):
        _run(database, "site", "-o", str(folder))
    _run(database, "site", "-o", str(folder), "--force", "--metric", "kernels")

    assert not (folder / "benchmarks" / "0123456789abcdef.html").exists()
    assert (folder / "robots.txt").read_text() == "mine"
    assert {row["metric"] for row in _document(folder / "index.html")["rows"]} == {"kernels"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="something else than such a site"):
        _run(database, "site", "-o", str(tmp_path / "other"), "--force")


def test_an_empty_history_has_a_page_too(tmp_path: Path) -> None:
    store = Store(Database(str(tmp_path / "h.sqlite")))

    (index,) = write_site(trends_of(store), tmp_path, version="1")

    assert _document(index)["main"][0] == "The history has no values yet."
    store.database.close()


def test_a_folder_that_cannot_be_made_is_said(database: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(InputError, match="cannot be written"):
        _run(database, "site", "-o", str(tmp_path / "file" / "site"))


def test_benchmarks_with_the_same_name_and_other_settings_have_pages_of_their_own(tmp_path: Path) -> None:
    store = Store(Database(str(tmp_path / "h.sqlite")))
    for number, layers in enumerate((4, 8)):
        store.add(_samples.write(tmp_path, _samples.results(number, config={"layers": layers})))

    groups = grouped(trends_of(store))

    assert [len(trends) for trends in groups.values()] == [4, 4]
    store.database.close()


@pytest.mark.parametrize(
    ("url", "is_one"),
    [("https://a/b", True), ("http://a", True), ("javascript:alert(1)", False), ("//a/b", False), ("https://", False),
     ("data:text/html,x", False), ("http://[", False)],
)  # fmt: skip
def test_only_web_addresses_are_linked(url: str, is_one: bool) -> None:
    assert is_web(url) == is_one


def test_an_address_in_a_foreign_database_that_is_none_is_not_linked(tmp_path: Path) -> None:
    store = Store(Database(str(tmp_path / "h.sqlite")))
    store.add(_samples.write(tmp_path, _samples.results()))
    book = trends_of(store)
    book = replace(book, results={key: replace(one, report_url="javascript:alert(1)") for key, one in
                                  book.results.items()})  # fmt: skip

    pages = write_site(book, tmp_path, version="1")

    assert not any("javascript:" in page.read_text("utf-8") for page in pages)
    store.database.close()


# ---- in a browser ---------------------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(
    chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)


@pytest.mark.browser
@needs_chromium
def test_pages_in_both_languages_on_a_screen_and_a_phone(browser: Browser, site: Path) -> None:
    for page in (site / "index.html", _page_of(site, "llm-pretrain"), _page_of(site, "script")):
        for width, scheme in ((1280, "light"), (390, "dark")):
            browser.size(width, 900, phone=width < 500)
            browser.prefer(scheme)
            browser.open(page)
            for lang, heading in (("zh", "趋势"), ("en", "Trends")):
                browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
                browser.settle()
                assert heading in browser.run("document.querySelector('#trends h2').textContent")
                assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("document.documentElement.dataset.theme") == scheme
            browser.run("window.dispatchEvent(new Event('beforeprint'))")
            assert browser.run("document.documentElement.dataset.theme") == "light"  # paper
            browser.run("window.dispatchEvent(new Event('afterprint'))")
            assert browser.run("document.documentElement.dataset.theme") == scheme
    assert browser.messages == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "about"}


@pytest.mark.browser
@needs_chromium
def test_a_reader_finds_the_change_and_its_values(browser: Browser, site: Path) -> None:
    browser.size(1280, 900)
    browser.open(site / "index.html")
    browser.run("sessionStorage.clear()")
    browser.open(site / "index.html")
    rows = "Array.from(document.querySelectorAll('#trends tbody tr')).filter(r => r.offsetParent).length"
    assert browser.run(rows) == 12
    browser.run("document.querySelector('.filter input[type=checkbox]').click()")
    assert browser.run(rows) == 2

    browser.open(site / browser.run("document.querySelector('#changes a').getAttribute('href')").split("#")[0])
    assert browser.run("document.querySelectorAll('.trend svg .worse .change-line').length") == 2
    assert browser.run("document.querySelectorAll('.trend svg circle').length") >= 160
    browser.run("document.querySelector('.trend svg').focus()")
    browser.key("ArrowLeft")
    assert "0026c0ffee00" in browser.run("document.querySelector('.tip').textContent")  # the last but one of 40
    assert browser.run("document.querySelector('a.back').getAttribute('href')") == "../index.html"
    assert browser.messages == []


def test_a_sentence_about_simulated_figures_says_so(tmp_path: Path) -> None:
    """Also where it is the first of the overview, and the badge does not call measured trends simulated."""
    path = tmp_path / "history.sqlite"
    store = Store(Database(str(path)))
    for night in range(16):
        step = 1.1e8 if night > 7 else 1e8
        made = _samples.results(night, (step, 1.01 * step, 0.99 * step), simulated=True)
        store.add(_samples.write(tmp_path / f"n{night}", made), allow_simulated=True)
    book = trends_of(store)
    store.database.close()
    sentences = [change_sentence(book, trend, change) for trend, change in open_changes(book)]
    assert sentences and all("(simulated)" in one.en and "（仿真）" in one.zh for one in sentences)
    out = tmp_path / "site"
    out.mkdir()
    write_site(book, out, version="0")
    index = _document(out / "index.html")
    assert "llm-pretrain/tiny/npu/8 (simulated): " in index["main"][0]
    assert (index["simulated"], index["partly"]) == (True, False)
