"""What every analyzer, parser and workload owes, checked for each one that is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.analyzers import _rules
from ascend_perf.model.run import Run
from ascend_perf.model.tables import ALL as TABLES
from ascend_perf.model.trace import Trace
from ascend_perf.parsers.discover import parsers
from ascend_perf.plugins import Analyzer, load_analyzers
from ascend_perf.workloads._spec import Workload, load_workloads

DOCS = Path(__file__).parent.parent / "docs"
ROOT = DOCS.parent

ANALYZERS = load_analyzers()
WORKLOADS = load_workloads()
PARSERS = parsers()


def _rows(document: str) -> dict[str, tuple[str, ...]]:
    """Table rows of a document by their first cell."""
    rows = {}
    for line in (DOCS / document).read_text("utf-8").splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip().strip("`") for cell in line.strip().strip("|").split("|"))
            rows[name] = tuple(cells)
    return rows


def test_every_part_can_be_imported() -> None:
    assert ANALYZERS.broken == {}
    assert WORKLOADS.broken == {}


@pytest.mark.parametrize("item", ANALYZERS.parts.values(), ids=list(ANALYZERS.parts))
def test_an_empty_trace_is_no_data_and_not_a_clean_bill(item: Analyzer) -> None:
    empty = Trace({})

    outcome = item.run_on_trace(empty) if item.scope == "rank" else item.run_on_run(Run(traces=(empty,)))

    assert outcome.status == "no_data"
    assert outcome.reason is not None
    assert outcome.analyzer == item.name
    assert not outcome.findings


@pytest.mark.parametrize("item", ANALYZERS.parts.values(), ids=list(ANALYZERS.parts))
def test_an_analyzer_has_its_row_in_the_docs_with_the_tables_it_reads(item: Analyzer) -> None:
    says, needs = _rows("analyzers.md")[item.name]

    named = {word.strip(" `") for word in needs.split(",")}
    assert says
    assert {spec.name for spec in item.needs} <= named <= set(TABLES)


@pytest.mark.parametrize("item", ANALYZERS.parts.values(), ids=list(ANALYZERS.parts))
def test_the_file_of_an_analyzer_has_its_name(item: Analyzer) -> None:
    assert (ROOT / "analyzers" / f"{item.name.replace('-', '_')}.py").is_file()


def test_the_docs_list_no_analyzer_that_is_not_there() -> None:
    named = set(_rows("analyzers.md")) - {"name", "---"}
    files = {path.stem.replace("_", "-") for path in (ROOT / "analyzers").glob("[a-z]*.py")}
    assert named - set(_rules.rule_codes()) <= files


@pytest.mark.parametrize("name", list(PARSERS))
def test_a_parser_has_its_row_in_the_docs(name: str) -> None:
    assert all(_rows("parsers.md")[name])


@pytest.mark.parametrize("item", WORKLOADS.parts.values(), ids=list(WORKLOADS.parts))
def test_a_workload_has_its_row_in_the_docs(item: Workload) -> None:
    assert all(_rows("workloads.md")[item.name])


@pytest.mark.parametrize("item", WORKLOADS.parts.values(), ids=list(WORKLOADS.parts))
def test_every_preset_of_a_workload_is_valid(item: Workload) -> None:
    assert "tiny" in item.presets()
    for name in item.presets():
        item.settings(name)
