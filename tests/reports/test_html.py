"""`report.html`: one file, nothing fetched, nothing of a trace run or read as HTML, small."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.model.finding import Outcome, ResultColumn, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.html import render, write_html
from ascend_perf.reports.page import SAFE_INTEGER, page
from ascend_perf.reports.payload import Payload, build
from tests.reports import _sample_tables, _samples
from tests.reports._packed import unpacked

REPORTS = Path(__file__).parent.parent.parent / "reports"


class Elements(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def embedded(payload: Payload) -> Any:
    """The document of the page as its scripts get it."""
    return json.loads(json.dumps(page(payload)))


@pytest.fixture(scope="module")
def html() -> str:
    return render(_samples.payload())


@pytest.fixture(scope="module")
def document(html: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Elements(html).scripts[0])
    return loaded


def test_there_are_two_scripts_and_one_is_data(html: str) -> None:
    elements = Elements(html)

    scripts = [attrs for tag, attrs in elements.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not [tag for tag, _ in elements.tags if tag in ("img", "iframe", "object", "embed", "form")]


def test_nothing_is_fetched(html: str) -> None:
    elements = Elements(html)

    for tag, attrs in elements.tags:
        assert "src" not in attrs
        assert tag != "link" or attrs["href"] == "data:,"
        assert not any(name.startswith("on") for name in attrs)
    own = "\n".join(path.read_text("utf-8") for path in (REPORTS / "assets").iterdir())
    assert not re.search(r"fetch\(|XMLHttpRequest|sendBeacon|WebSocket|EventSource|importScripts|url\(|@import", own)
    assert set(re.findall(r"https?://[^\s\"']+", own)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_forbids_foreign_scripts_and_requests(html: str) -> None:
    policy = next(a["content"] for t, a in Elements(html).tags if t == "meta" and a.get("http-equiv"))

    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_scripts_never_parse_text_as_html() -> None:
    for path in (REPORTS / "assets").glob("*.js"):
        code = re.sub(r"//.*", "", path.read_text("utf-8"))
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", code
        )


def test_the_end_of_a_script_in_a_name_stays_data(html: str, document: dict[str, Any]) -> None:
    assert html.count("</script>") == 2
    titles = [finding["title"] for finding in document["findings"]]
    assert any(_sample_tables.HOSTILE in title[0] for title in titles)


def test_both_languages_are_embedded(document: dict[str, Any]) -> None:
    assert document["words"]["en"].keys() == document["words"]["zh"].keys()
    assert document["findings"][0]["title"][1].startswith("单步中有 98.1 ms")
    assert document["lang"] == "en"


def test_times_are_offsets_that_javascript_can_hold(document: dict[str, Any]) -> None:
    timeline = next(t for t in document["tables"] if t["name"] == "timeline")
    starts = unpacked(next(c["packed"] for c in timeline["columns"] if c["name"] == "start_ns"))

    # The host runs 17 ms before the device, which starts at 18 ms.
    assert min(start for start in starts if start is not None) == 1_000_000
    assert document["findings"][0]["bands"][0] == {"rank": 0, "start": 20_000_000, "end": 44_500_000}
    assert document["findings"][0]["evidence"][0]["at"] == 20_000_000

    def walk(node: object) -> None:
        if isinstance(node, dict):
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)
        elif isinstance(node, int):
            assert abs(node) <= SAFE_INTEGER

    walk(document)


def test_sections_come_in_the_order_of_the_design_with_their_standing(document: dict[str, Any]) -> None:
    standing = {section["key"]: section["standing"] for section in document["sections"]}

    assert list(standing) == [
        "steps", "timeline", "operators", "mac", "dma", "communication", "host", "memory", "aipp", "ranks", "more",
        "quality", "method",
    ]  # fmt: skip
    assert standing["aipp"] == "no_data"
    assert standing["communication"] == "finding"
    assert standing["ranks"] == "clean"
    assert standing["more"] == "failed"


def test_words_of_ours_in_cells_have_both_languages_and_names_stay(document: dict[str, Any]) -> None:
    bar = next(t for t in document["tables"] if t["name"] == "step-bar")
    components = next(c["texts"] for c in bar["columns"] if c["name"] == "component")
    assert ["Waiting in communication", "通信等待"] in components
    analyzers = next(t for t in document["tables"] if t["name"] == "analyzers")
    statuses = next(c["texts"] for c in analyzers["columns"] if c["name"] == "status")
    assert ["done", "完成"] in statuses


def test_a_plain_report_is_small(html: str) -> None:
    assert len(html.encode()) < 1_000_000


def test_many_ranks_stay_under_the_limit_and_say_what_is_left_out() -> None:
    payload = _samples.many_ranks(64)

    text = render(payload)

    assert len(text.encode()) < 6_000_000
    document = embedded(payload)
    cut = document["cut"]
    assert all("--rank" in item["text"][0] for item in cut)
    # The first finding lies on rank 5 and costs rank 0; rank 1 shares the others; rank 33 is in the middle of 64.
    shown = [0, 1, 2, 3, 4, 5, 6, 33]
    assert sorted({t["rank"] for t in document["tables"] if t["scope"] == "rank"}) == shown
    assert document["focus"] in shown
    assert sorted(t["rank"] for t in document["tables"] if t["name"] == "timeline") == shown
    others = [item for item in cut if "56 other ranks" in item["text"][0]]
    assert [item["section"] for item in others] == ["steps"]  # said once, in the first section that lacks them
    assert cut == others  # each of the eight has all of its tables, its timeline too
    assert len(document["bars"]) == 64


def test_a_thousand_ranks_make_no_larger_a_page_than_a_hundred() -> None:
    def size(count: int) -> int:
        return len(json.dumps(embedded(_samples.many_ranks(count)), ensure_ascii=False).encode())

    small, large = size(128), size(1024)
    # What grows: the numbers of the ranks, and a row of the table of ranks for each.
    assert large - small < 400 * (1024 - 128)
    assert large < 3_000_000


def test_the_bars_of_a_large_job_are_those_in_detail_and_an_even_choice() -> None:
    bars = embedded(_samples.many_ranks(640))["bars"]
    ranks = [bar["rank"] for bar in bars]
    assert len(ranks) == 64
    assert ranks == sorted(ranks)
    assert {0, 1, 2, 3, 4, 5} <= set(ranks)
    assert max(b - a for a, b in itertools.pairwise(ranks)) <= 20  # one of ten, but for the ends


def test_a_table_beyond_the_budget_is_shortened_and_says_so() -> None:
    rows = 400_000
    table = ResultTable(
        name="huge",
        title=Words("Huge", "很大"),
        columns=(ResultColumn(name="name", title=Words("Name", "名称")),),
        data=(tuple(f"row {i} with a text of its own" for i in range(rows)),),
    )
    outcome = Outcome(analyzer="operators", status="done", rank=0, tables=(table,))

    document = embedded(build(Run(traces=(Trace(meta=Meta(rank=0)),)), [outcome], [], lang="en"))

    assert len(json.dumps(document, ensure_ascii=False).encode()) < 6_000_000
    (cut,) = document["cut"]
    assert cut["section"] == "operators"


def test_the_page_opens_in_the_language_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "report.html"

    write_html(_samples.payload("zh"), path)

    text = path.read_text("utf-8")
    assert '<html lang="zh-CN">' in text
    assert "<h1>单步耗时 136.6 ms" in text  # what is read without scripts


def test_an_empty_run_makes_a_page() -> None:
    document = embedded(build(Run(traces=(Trace(),)), [], [], lang="en"))

    assert document["findings"] == []
    assert {s["standing"] for s in document["sections"]} == {"no_data", "clean", "info"}
