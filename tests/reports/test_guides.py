"""The guides of the documentation: code that runs, every figure and every section of the page in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.figures import FIGURES
from ascend_perf.reports.sections import ORDER
from tests.test_pipeline import trace_file

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(page: str) -> list[str]:
    """Python blocks of a page in their order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run_blocks(page: str, profile: Path) -> dict[str, object]:
    """Run them in one namespace on a profile."""
    names: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block.replace("path/to/profile", str(profile)), page, "exec"), names)
    return names


def test_the_notebook_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_file(tmp_path / "profile" / "t.json", 0)
    monkeypatch.chdir(tmp_path)

    names = run_blocks("notebook.md", tmp_path / "profile")

    assert len(blocks("notebook.md")) == 7
    assert (tmp_path / "out" / "report.html").is_file() and names["page"] == Path("out/report.html")
    longest = names["longest"]
    assert getattr(longest, "loc")[(0, "k0")].tolist() == [1, 5000]  # noqa: B009  (the namespace is untyped)
    figures = names["figures"]
    assert isinstance(figures, dict) and {"step-bar", "op-types", "timeline"} <= set(figures)


def test_the_notebook_guide_names_every_figure() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", (DOCS / "notebook.md").read_text("utf-8"), re.MULTILINE)

    assert [name for row in rows for name in re.findall(r"`([\w-]+)`", row)] == list(FIGURES)


def test_every_section_of_the_page_is_explained_in_its_order() -> None:
    words = catalogue("en")
    heads = re.findall(r"^## (.+)$", (DOCS / "sections.md").read_text("utf-8"), re.MULTILINE)

    explained = [head for head in heads if head in {words[f"section.{key}"] for key in ORDER}]
    assert explained == [words[f"section.{key}"] for key in ORDER]
    assert heads[: len(heads) - len(explained)] == [
        words["ui.top"], "Tiles", "The job", words["ui.where"], words["ui.first"],
    ]  # fmt: skip


def test_every_picture_of_the_gallery_is_there_and_small() -> None:
    listed = yaml.safe_load((DOCS / "gallery.yaml").read_text("utf-8"))
    shots = [shot["name"] for subject in listed["subjects"] for shot in subject["shots"]]
    folder = DOCS / "images" / "gallery"

    assert len(set(shots)) == len(shots)
    assert {path.stem for path in folder.glob("*.png")} == {*shots, "notebook"}
    sizes = [path.stat().st_size for path in folder.glob("*.png")]
    assert max(sizes) < 250_000 and sum(sizes) < 4_000_000
    page = (DOCS / "gallery.md").read_text("utf-8")
    assert re.findall(r"\(images/gallery/([\w-]+)\.png\)", page) == shots
    assert [subject["title"] for subject in listed["subjects"]] == re.findall(r"^## (.+)$", page, re.MULTILINE)
