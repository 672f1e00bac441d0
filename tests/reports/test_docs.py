"""docs/report-data.md names every key of report.json and every result table that the page knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ascend_perf.reports.json_report import document
from ascend_perf.reports.sections import SECTION_OF_TABLE
from tests.reports import _samples

PAGE = (Path(__file__).parent.parent.parent / "docs" / "report-data.md").read_text("utf-8")


def keys(node: Any) -> set[str]:
    """Every key of a document, at any depth."""
    if isinstance(node, dict):
        return set(node) | {key for value in node.values() for key in keys(value)}
    if isinstance(node, list):
        return {key for value in node for key in keys(value)}
    return set()


def test_every_key_of_the_document_is_explained() -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", PAGE))))

    assert keys(document(_samples.payload())) - named == set()


def test_every_known_table_has_its_row_with_its_section() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\w+) \|", PAGE, re.MULTILINE))

    assert {name: rows.get(name) for name in SECTION_OF_TABLE} == dict(SECTION_OF_TABLE)
