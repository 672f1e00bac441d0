"""A profile may say anything: in every file that we write it is text, cut where it is long, and never more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support import Said
from tests.reports import _hostile_files
from tests.reports._browser import Browser, chromium

KINDS = ("ascend-text", "kineto", "ascend-db")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(params=KINDS)
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, command: Callable[..., Said]
) -> Iterator[tuple[Path, Said]]:
    """Reports of one hostile profile, and what the terminal showed of it."""
    profile = _hostile_files.write(request.param, tmp_path / "job <b>\u202e&amp;")
    out = tmp_path / "report"
    said = command("analyze", profile, "-o", out)
    assert said.code == 0, said.err
    yield out, said


def strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from strings(value)
    elif isinstance(node, list):
        for item in node:
            yield from strings(item)
    elif isinstance(node, str):
        yield node


def test_files_and_terminal_hold_it_as_text(folder: tuple[Path, Said]) -> None:
    out, said = folder
    page, markdown = (out / "report.html").read_text("utf-8"), (out / "report.md").read_text("utf-8")
    report = json.loads((out / "report.json").read_text("utf-8"))

    # One script of data and one of ours, whatever the names say; the names are there all the same.
    assert len(re.findall("<script", page)) == len(re.findall("</script>", page)) == 2
    assert "window.hacked" in page
    title = re.search("<title>(.*?)</title>", page, re.DOTALL)
    assert title is not None
    assert "<" not in title[1]
    assert len(title[1]) < 1000
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.DOTALL))
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    for text in (said.out, said.err, markdown, *strings(report)):
        assert not CONTROL.search(text)
    assert max(map(len, strings(report))) <= 4001
    assert max(map(len, said.out.splitlines())) < 1000
    assert len(page) < 3_000_000


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_the_page_runs_nothing_of_it_and_keeps_its_shape(folder: tuple[Path, Said], tmp_path: Path) -> None:
    program = chromium()
    assert program is not None
    with Browser(program, tmp_path / "profile") as page:
        for width in (1280, 390):
            page.size(width, 900, phone=width < 600)
            page.open(folder[0] / "report.html")
            page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            page.settle()
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("document.querySelector('h1').getBoundingClientRect().height") < 600
            assert page.run("Math.max(...[...document.querySelectorAll('td')].map(n => n.offsetHeight))") < 300
        assert page.run("window.hacked") is None
        assert page.run("document.querySelectorAll('img, main script, [onload], [onerror]').length") == 0
        shown = page.run("document.getElementById('app').textContent")
        assert "</script><img src=x onerror='window.hacked = 2'>" in shown
        assert "[link](javascript:window.hacked=3) | **bold** `code`" in shown
        # Words from right to left are isolated, and none of their letters is outside of it.
        assert page.run("[...document.querySelectorAll('bdi')].some(n => n.textContent === '\u05e9\u05dc\u05d5\u05dd')")
        loose = """(function () {
          const walker = document.createTreeWalker(document.getElementById('app'), NodeFilter.SHOW_TEXT);
          const found = [];
          for (let n; (n = walker.nextNode());)
            if (/[\\u0590-\\u05ff]/.test(n.data) && !n.parentElement.closest('bdi, option, svg')) found.push(n.data);
          return found; })()"""
        assert page.run(loose) == []
        assert page.messages == []
        assert {url.split(":")[0] for url in page.requests} <= {"file", "about"}
