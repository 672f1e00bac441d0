"""Hostile names of processes, steps, labels and settings: text in every export, title, file name and notebook."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

import ascend_perf as ap
from ascend_perf.model.run import Run
from ascend_perf.model.trace import (
    Check,
    Device,
    Dropped,
    Group,
    Meta,
    Missing,
    ProfilerSettings,
    Source,
    Trace,
)
from ascend_perf.reports.exports._exporter import Request, exporters
from ascend_perf.reports.html import write_html
from ascend_perf.reports.json_report import write_json
from ascend_perf.reports.markdown import write_markdown
from ascend_perf.reports.notebook import cell_html
from ascend_perf.reports.payload import build
from tests._support import Said
from tests.reports import _hostile_files
from tests.reports._hostile import HOSTILE
from tests.reports._hostile_files import LONG, TEXTS

KINDS = ("ascend-text", "kineto", "ascend-db")
FORMATS = [(name, view) for name, part in exporters().parts.items() for view in (part.views or (None,))]
# Line breaks and tabs are text; every other control character and mark of direction is not.
CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
SAID = (*TEXTS, LONG, *(text for text in HOSTILE if text.strip()))
PLACES = ("../../x", "/etc/x", "C:\\x", "a/b", ".", "..", "CON", "")
MOST = 33_000
"""Longest text of any format: a cell of a workbook has room for 32,767."""
Command = Callable[..., Said]


class Shape(HTMLParser):
    """Elements and names of attributes of a page, and whether scripts hold anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key)
            yield from strings(value)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from strings(item)
    elif isinstance(node, str):
        yield node


def texts_of(path: Path) -> Iterator[str]:
    """Every text of an exported file, read as its format says."""
    if path.suffix == ".json":
        yield from strings(json.loads(path.read_text("utf-8")))
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.reader(file, strict=True):
                # What a spreadsheet would run stands behind an apostrophe; a plain number is none.
                for cell in row:
                    assert not re.match(r"[=@\t\r\n]|[+-](?![\d.]+(e[+-]?\d+)?$)", cell), cell[:50]
                yield from row
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        yield from table.column_names
        yield from strings(table.to_pydict())
    elif path.suffix == ".xlsx":
        with zipfile.ZipFile(path) as book:
            for name in book.namelist():
                xml = book.read(name)
                assert b"<f>" not in xml and b"hyperlink" not in xml
                for element in ElementTree.fromstring(xml).iter():
                    yield element.text or ""
                    yield from element.attrib.values()
    else:
        text = path.read_text("utf-8")
        assert path.suffix in (".folded", ".txt"), path
        for line in text.splitlines():
            assert re.fullmatch(r"[^\x00-\x1f]+ \d+", line), line[:80]
        yield text


@pytest.fixture(scope="module", params=KINDS)
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _hostile_files.write(request.param, tmp_path_factory.mktemp("in") / "job =<b>\u202e&amp;")


@pytest.mark.parametrize(("name", "view"), FORMATS)
def test_every_export_holds_it_as_text(
    profile: Path, tmp_path: Path, command: Command, name: str, view: str | None
) -> None:
    out = tmp_path / f"out.{exporters().parts[name].suffix}"
    chosen = () if view is None else ("--view", view)
    ranks = ("--rank", 0) if exporters().parts[name].one_rank and len([*profile.iterdir()]) > 1 else ()

    said = command("export", profile, "--format", name, *chosen, *ranks, "-o", out)

    if said.code and view is not None:
        assert "no data for the flame graph" in said.err, said.err
        return
    assert said.code == 0, said.err
    files = [path for path in ([*out.rglob("*")] if out.is_dir() else [out]) if path.is_file()]
    assert files
    seen = ""
    for path in files:
        # Names of files are made of what a file system takes, and lie in the folder that was asked for.
        assert re.fullmatch(r"[\w.=-]{1,100}", path.name), path.name
        assert path.resolve().is_relative_to(tmp_path.resolve())
        for text in texts_of(path):
            assert not CONTROL.search(text), (path.name, text[:200])
            assert len(text) <= MOST or path.suffix in (".folded", ".txt")
            seen += text[:5000]
    assert "window.hacked" in seen  # as text
    for text in (said.out, said.err):
        assert not CONTROL.search(text)


def test_a_default_name_of_an_export_is_one_file_here(
    profile: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    said = command("export", profile, "--format", "perfetto")

    assert said.code == 0, said.err
    (made,) = tmp_path.iterdir()
    assert made.is_file() and len([*strings(json.loads(made.read_text("utf-8")))]) > 10
    assert not CONTROL.search(said.out)


def test_a_notebook_shows_it_as_text(profile: Path) -> None:
    run = ap.load(profile)
    analysis = ap.analyze(run)

    for view in (run, analysis):
        page = Shape(view._repr_html_())
        assert not {"script", "img", "iframe", "object", "a"} & set(page.tags)
        assert not [name for name in page.attributes if name.startswith("on")]
        for text in (page.text, str(view)):
            assert not CONTROL.search(text)
            assert len(text) < 60_000
    for figure in analysis.figures().values():
        said = figure.to_json()
        assert "<script" not in said and "<img" not in said
        assert not any(CONTROL.search(text) for text in strings(json.loads(said)))
        assert len(said) < 5_000_000


# ---- what a reader could put into the facts of a trace ----


def facts(text: str) -> Meta:
    """Every text of the facts about a trace is `text`."""
    return Meta(
        label=text, rank=0, world_size=2, device=Device(vendor=text, name=text, kind="npu", derivation=text),
        groups=(Group(name=text, label=text, ranks=(0, 1), hash_id=text),), parallel={text: 2},
        versions={text: text, "cann": text}, environment={text: text, "TASK_QUEUE_ENABLE": text},
        settings=ProfilerSettings(producer=text, level=text, aic_metrics=text, generation=text),
        sources=(
            Source(path=text, format=text, rows=1, dropped=(Dropped(reason=text, count=1),)),
            Source(path=text, format=text, problem=text),
        ),
        missing=(Missing(what=text, remedy=text),),
        checks=(Check(name=text, ours=1.0, theirs=2.0, unit="us", tolerance=0.1, where=text),), warnings=(text,),
    )  # fmt: skip


@pytest.mark.parametrize("text", [pytest.param(text, id=str(place)) for place, text in enumerate(SAID)])
def test_facts_of_a_trace_are_text_in_every_report(tmp_path: Path, text: str) -> None:
    run = Run(traces=(Trace(meta=facts(text)),), label=text)
    payload = build(run, [], [], lang="zh" if len(text) % 2 else "en")

    write_html(payload, tmp_path / "report.html")
    write_json(payload, tmp_path / "report.json")
    write_markdown(payload, tmp_path / "report.md")
    page = (tmp_path / "report.html").read_text("utf-8")
    report = [*strings(json.loads((tmp_path / "report.json").read_text("utf-8")))]
    markdown = (tmp_path / "report.md").read_text("utf-8")

    shape = Shape(page)
    assert [tag for tag in shape.tags if tag in ("script", "img", "iframe", "svg", "object")] == ["script", "script"]
    assert not [name for name in shape.attributes if name.startswith("on")]
    document = json.loads(re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)[0])
    for one in (*strings(document), *report, markdown):
        assert not CONTROL.search(one), one[:200]
    title = re.search("<title>(.*?)</title>", page, re.DOTALL)
    assert title is not None and len(title[1]) < 1000 and not CONTROL.search(title[1])
    assert max(map(len, report)) <= 5000
    plain = re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<(script|img)|(?<!\\)\]\(javascript", plain)
    cell = Shape(cell_html(payload))
    assert not {"script", "img", "iframe"} & set(cell.tags)
    assert not CONTROL.search(cell.text)
    assert len(cell.text) < 60_000


@pytest.mark.parametrize("name", [name for name, part in exporters().parts.items() if part.write_folder is not None])
@pytest.mark.parametrize(
    "text", [pytest.param(text, id=str(place)) for place, text in enumerate((*TEXTS, LONG, *PLACES))]
)
def test_names_of_exported_folders_stay_inside(tmp_path: Path, name: str, text: str) -> None:
    from tests.reports._hostile import hostile_trace

    write = exporters().parts[name].write_folder
    assert write is not None
    traces = (hostile_trace().replace(meta=facts(text)), hostile_trace().replace(meta=Meta(label=text)))
    target = tmp_path / "out"
    target.mkdir()

    write(Request(run=Run(traces=traces, label=text)), target)

    for path in target.rglob("*"):
        assert re.fullmatch(r"[\w.=-]{1,100}", path.name), path.name
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_workbook_of_hostile_facts_is_valid(tmp_path: Path) -> None:
    for place, text in enumerate((*TEXTS, LONG)):
        target = io.BytesIO()
        exporters().parts["xlsx"].write(Request(run=Run(traces=(Trace(meta=facts(text)),), label=text)), target)
        path = tmp_path / f"{place}.xlsx"
        path.write_bytes(target.getvalue())
        for one in texts_of(path):
            assert not CONTROL.search(one)
            assert len(one) <= 32_767
