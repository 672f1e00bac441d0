"""Section 2.1 and section 8, 6 of the study: a crash, or data that are not there, are never told as "no suggestions".

Rows that other tests hold (checked by test_index):

| section, row | what goes wrong there | test |
|---|---|---|
| 2.1, ends with status 0 | no report, status 0 | tests/cli/test_bad_input.py::test_something_else |
| 2.1, raw data | a misleading message | tests/cli/test_bad_input.py::test_profile_not_parsed_yet |
| 2.1, no device events | - | tests/cli/test_bad_input.py::test_no_device_events_is_a_report_that_says_so |
| 8, 6 | tables without rows | tests/cli/test_bad_input.py::test_a_table_without_rows_is_no_clean_bill |
| 8, 6 | clean only where judged | tests/reports/test_payload.py::test_no_finding_is_a_clean_bill_only_for_what_was_judged |
| 8, 6 | one damaged file | tests/cli/test_bad_input.py::test_one_bad_file_does_not_cost_the_others |
| 8, 6 | a part that cannot be loaded | tests/test_only.py::test_an_analyzer_that_cannot_be_loaded_is_a_failure_and_cannot_be_chosen |
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf import plugins
from ascend_perf.model.finding import Result
from ascend_perf.model.trace import Trace
from ascend_perf.pipeline import analyze, report, summary
from ascend_perf.plugins import load_analyzers
from tests._support import Said
from tests.faults import model
from tests.faults.machine import simulate
from tests.faults.writer import write_job


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A job on one card in which nothing is wrong."""
    job = model.card(1, steps=2, layers=2)
    write_job(job, simulate(job), tmp_path / "profile")
    return tmp_path / "profile"


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analyzers of operators and of host dispatch raise."""

    def raises(_: Trace) -> Result:
        raise RuntimeError("planted")

    found = load_analyzers()
    parts = {
        name: replace(part, on_trace=raises) if name in ("operators", "host-dispatch") else part
        for name, part in found.parts.items()
    }
    monkeypatch.setattr(plugins, "load_analyzers", lambda: replace(found, parts=parts))


@pytest.mark.usefixtures("crashing")
def test_the_rows_of_a_crashed_analyzer_are_not_judged(healthy: Path) -> None:
    """8, 6: the coverage says which checks did not run, and why."""
    analysis = analyze(healthy)

    assert [outcome.analyzer for outcome in analysis.failed] == ["operators", "host-dispatch"]
    said = {j.code: (j.verdict, j.reason) for outcome in analysis.failed for j in outcome.judged}
    assert {"C-04", "C-07", "C-09", "C-10", "C-11", "H-01", "H-05", "H-06", "K-04"} <= said.keys()
    for code, (verdict, reason) in said.items():
        assert verdict == "not_judged", code
        assert reason is not None and "failed" in reason.en


@pytest.mark.usefixtures("crashing")
def test_a_report_with_a_crash_is_no_clean_bill(healthy: Path, tmp_path: Path) -> None:
    """2.1: "no suggestions" is printed although an analyzer crashed."""
    result = report([healthy], out=tmp_path / "out", formats=["json", "md"], jobs=1)

    assert "! operators failed: " in result.summary and "! host-dispatch failed: " in result.summary
    document = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    judged = {row["code"]: row["verdict"] for outcome in document["outcomes"] for row in outcome["judged"]}
    assert {judged[code] for code in ("C-07", "C-09", "H-05", "H-06", "K-04")} == {"not_judged"}
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    for code in ("C-07", "H-06"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"- {code} ")]
        assert line.endswith("failed")


@pytest.mark.usefixtures("crashing")
def test_a_crash_is_an_exit_status_of_its_own(healthy: Path, tmp_path: Path, command: Callable[..., Said]) -> None:
    """8, 6: clear exit statuses; the report is written all the same."""
    said = command("analyze", healthy, "-o", tmp_path / "out", "--jobs", "1")

    assert said.code == 70
    assert "host-dispatch, operators failed" in said.err
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_clean_job_says_how_many_rows_it_stands_on(healthy: Path) -> None:
    """8, 6: "nothing found" is said of rows that were judged, with their number."""
    analysis = analyze(healthy)

    assert analysis.findings == ()
    clean = {j.code for o in analysis.outcomes for j in o.judged if j.verdict == "clean"}
    assert f"no finding in the {len(clean)} rows that could be judged" in summary(analysis)


def test_data_that_tell_nothing_are_not_called_clean(tmp_path: Path, command: Callable[..., Said]) -> None:
    """8, 6: a profile of one operator statistic, from which no row can be judged."""
    folder = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder / "op_statistic.csv").write_text(
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
        "0,Add,AI_VECTOR_CORE,2,20.0,10.0,10.0,10.0,100.0\n"
    )

    said = command("analyze", tmp_path, "-o", tmp_path / "out", "--format", "json,md")

    if said.code == 0:
        assert "nothing could be judged" in said.out
        assert "Nothing could be judged" in (tmp_path / "out" / "report.md").read_text("utf-8")
    else:
        assert said.code == 3
    assert "no finding" not in said.out


def test_a_folder_without_a_profile_is_refused(tmp_path: Path, command: Callable[..., Said]) -> None:
    """2.1, directory without a profile: "finish analysis, no optimization suggestions" and status 0 there."""
    (tmp_path / "notes.txt").write_text("nothing of ours")

    said = command("analyze", tmp_path, "-o", tmp_path / "out")

    assert said.code == 3
    assert not (tmp_path / "out").exists()
    assert "no finding" not in said.out + said.err
