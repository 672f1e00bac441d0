"""Section 8, 6 of the study on real profiles: one file less changes what that file holds, and it is said.

The same on generated jobs of many faults (checked by test_index):

| section, row | what goes wrong there | test |
|---|---|---|
| 8, 6 | missing files are skipped silently | tests/faults/test_properties.py::test_without_a_file_only_what_it_supports_changes_and_the_report_says_so |
| 8, 6, cluster | the same | tests/parsers/test_cluster_output.py::test_removing_a_file_takes_only_what_it_holds |
"""  # noqa: E501

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ascend_perf.model.finding import Outcome
from ascend_perf.model.table import Table
from ascend_perf.model.trace import Trace
from ascend_perf.pipeline import Analysis, analyze
from tests.rival._said import analysis_of, verdicts

ROOT = Path(__file__).parent.parent.parent
HOST = frozenset({"host_ops", "host_events", "python_calls", "runtime_calls"})
EXCHANGED = frozenset({"comm_ops", "comm_transfers", "comm_packets"})
GROUPED = frozenset({*EXCHANGED, "comm_links"})

HOLDS: dict[str, dict[str, frozenset[str]]] = {
    "ascend-pytorch/text/level2/rank0_ascend_pt": {
        "api_statistic.csv": frozenset({"exported_apis"}),
        "communication.json": EXCHANGED,
        "communication_matrix.json": frozenset({"comm_links"}),
        "kernel_details.csv": frozenset({"kernels", "comm_ops"}),
        "l2_cache.csv": frozenset({"kernels"}),  # columns beside the kernels
        "memory_record.csv": frozenset({"memory"}),
        "npu_module_mem.csv": frozenset({"module_memory"}),
        "op_statistic.csv": frozenset({"exported_ops"}),
        "operator_details.csv": frozenset(),
        "operator_memory.csv": frozenset({"memory_blocks"}),
        "step_trace_time.csv": frozenset({"exported_steps"}),
        "trace_view.json": HOST
        | {"kernels", "comm_ops", "copies", "overlap", "counters", "comm_tasks", "steps"},
        "profiler_info_0.json": frozenset(),
        "profiler_metadata.json": frozenset(),
    },
    "ascend-pytorch/db/level1/rank0_ascend_pt": {
        "analysis.db": GROUPED | {"exported_steps"},
        "ascend_pytorch_profiler_0.db": HOST
        | {"kernels", "comm_ops", "comm_tasks", "copies", "memory", "memory_blocks", "module_memory", "counters",
           "overlap", "steps"},
        "profiler_info_0.json": frozenset(),
    },
    "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_0_ascend_pt": {
        "analysis.db": frozenset({"exported_steps"}),
        "api_statistic.csv": frozenset({"exported_apis"}),
        "communication.json": frozenset(),  # analysis.db holds the same
        "communication_matrix.json": frozenset(),
        "kernel_details.csv": frozenset({"kernels", "comm_ops", "steps"}),
        "memory_record.csv": frozenset({"memory"}),
        "npu_module_mem.csv": frozenset({"module_memory"}),
        "op_statistic.csv": frozenset({"exported_ops"}),
        "operator_memory.csv": frozenset({"memory_blocks"}),
        "step_trace_time.csv": frozenset(),
        "profiler_info_0.json": frozenset(),
        "profiler_metadata.json": GROUPED,  # names and members of the groups
    },
}  # fmt: skip
"""Files of real profiles and the tables that come from them, wholly or in part. Source: format reference, section 1."""

SAID: dict[str, str] = {
    "communication.json": "communication.json",
    "communication_matrix.json": "communication_matrix.json",
    "memory_record.csv": "memory of the device",
    "npu_module_mem.csv": "npu_module_mem.csv",
    "operator_memory.csv": "operator_memory.csv",
    "trace_view.json": "trace_view.json",
    "kernel_details.csv": "kernels",
    "ascend_pytorch_profiler_0.db": "kernels",
}
"""What the list of missing data names where a table is gone that findings rest on."""

CASES = [(name, file) for name, files in HOLDS.items() for file in files]


def _same(one: Table, other: Table) -> bool:
    return len(one) == len(other) and one.to_pandas().equals(other.to_pandas())


def _filled(trace: Trace) -> set[str]:
    return {name for name, table in trace.tables.items() if len(table)}


def _changed_tables(before: Trace, after: Trace) -> set[str]:
    names = {name for trace in (before, after) for name, table in trace.tables.items() if len(table)}
    specs = {name: (before.tables.get(name) or after.tables[name]).spec for name in names}
    return {name for name in names if not _same(before[specs[name]], after[specs[name]])}


@cache
def _needs() -> dict[str, frozenset[str]]:
    """Tables that each analyzer reads, from the page of analyzers."""
    found = {}
    for line in (ROOT / "docs" / "analyzers.md").read_text("utf-8").splitlines():
        if match := re.fullmatch(r"\| ([a-z-]+) \| .* \| ([a-z_, ]+) \|", line):
            found[match[1]] = frozenset(match[2].split(", "))
    return found


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Analysis]:
    """The analysis of a profile without one of its files, once for each."""

    @cache
    def analyzed(source: Path, file: str) -> Analysis:
        target = tmp_path_factory.mktemp("less") / source.name
        shutil.copytree(source, target)
        for path in list(target.rglob(f"{file}*")):  # with what SQLite keeps beside a database
            path.chmod(0o644)
            path.unlink()
        return analyze(target)

    return analyzed


def _outcomes(analysis: Analysis) -> Iterator[tuple[str, Outcome]]:
    for outcome in analysis.outcomes:
        yield outcome.analyzer, outcome


def _said(outcome: Outcome) -> object:
    """What an outcome says, without the rank, which may be unknown without its file."""
    return (
        outcome.status, sorted((f.code, f.subject, f.share_ratio) for f in outcome.findings),
        sorted((j.code, j.verdict) for j in outcome.judged), [(m.name, m.value) for m in outcome.metrics],
    )  # fmt: skip


@pytest.mark.parametrize(("name", "file"), CASES, ids=lambda value: str(value).rpartition("/")[2])
def test_one_file_less_changes_what_it_holds_and_no_more(
    traces: Path, without: Callable[[Path, str], Analysis], name: str, file: str
) -> None:
    """8, 6 and 7, 11: tables of other files are the same, and so is what analyzers say that do not read these."""
    whole, less = analysis_of(traces / name), without(traces / name, file)
    (before,), (after,) = whole.run.traces, less.run.traces

    changed = _changed_tables(before, after)
    assert changed == HOLDS[name][file]

    assert not less.failed
    told = dict(_outcomes(whole))
    rank_lost = after.meta.rank != before.meta.rank
    for analyzer, outcome in _outcomes(less):
        if _said(outcome) != _said(told[analyzer]):
            reads = _needs()[analyzer]
            assert reads & changed or rank_lost, f"{analyzer} changed without any of its tables"


@pytest.mark.parametrize(("name", "file"), CASES, ids=lambda value: str(value).rpartition("/")[2])
def test_what_a_missing_file_takes_is_said(
    traces: Path, without: Callable[[Path, str], Analysis], name: str, file: str
) -> None:
    """8, 6: a finding that goes is not judged, never clean; what is not there is listed with what would bring it."""
    whole, less = analysis_of(traces / name), without(traces / name, file)
    (before,), (after,) = whole.run.traces, less.run.traces

    gone = {f.code for f in whole.findings} - {f.code for f in less.findings}
    silent = {o.analyzer for o in less.outcomes if o.status == "no_data" and o.reason is not None}
    owners = {f.code: f.analyzer for f in whole.findings}
    for code in gone:
        said = verdicts(less, code)
        assert "not_judged" in said or (not said and owners[code] in silent), f"{code} is {said or 'not mentioned'}"
    lost = _filled(before) - _filled(after)
    if file in SAID and (lost or file == "kernel_details.csv"):
        named = [missing for missing in after.meta.missing if SAID[file] in missing.what]
        assert named and all(missing.remedy for missing in named)
    # The file is not among the sources any more, and was there before.
    assert not [source for source in after.meta.sources if Path(source.path).name == file]


def test_an_msprof_folder_loses_one_trace_with_its_file(traces: Path, tmp_path: Path) -> None:
    """8, 6: the files of a folder of captures are traces of their own: the others stay as they are."""
    whole = analysis_of(traces / "msprof-cli")
    for file in ("msprof_0.db", "op_summary_1.csv", "multi-device/analysis.dat"):
        target = tmp_path / file.replace("/", "-")
        shutil.copytree(traces / "msprof-cli", target / "msprof-cli")
        for path in list((target / "msprof-cli").glob(f"{file}*")):
            path.chmod(0o644)
            path.unlink()
        less = analyze(target / "msprof-cli")

        assert len(less.run.traces) == len(whole.run.traces) - 1 == 2
        kept = [
            [number for number, trace in enumerate(whole.run.traces) if not _changed_tables(trace, left)]
            for left in less.run.traces
        ]
        assert all(kept) and kept[0] != kept[1]


def test_the_page_names_every_analyzer_with_its_tables() -> None:
    """8, 6: the column that these tests rely on."""
    from ascend_perf.plugins import load_analyzers

    needs = _needs()
    assert set(load_analyzers().parts) <= set(needs)
    assert needs["operators"] == {"kernels"}
