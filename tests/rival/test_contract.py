"""Sections 2.3, 7 and 8 of the study: what holds of every analysis, whatever is found.

Rows that other tests hold (checked by test_index):

| section, row | what is asked | test |
|---|---|---|
| 7, 1 | what bounds the step, on the vendor's own data | tests/rival/test_misjudged_profiles.py::test_the_late_rank_and_the_waiting_for_each_peer |
| 7, 2 | unusable input does not crash | tests/fuzz/test_fuzz.py::test_damaged_profiles_end_well |
| 7, 3 | versions and generations | tests/parsers/test_ascend_pt.py::test_kernels_of_each_generation |
| 7, 5 | open formats | tests/reports/test_exports.py::test_speedscope_holds_all_views_with_exact_nanoseconds |
| 7, 6 | idle time by what the host did | tests/analyzers/test_host_dispatch.py::test_causes_share_out_the_gaps_without_rest_or_overlap |
| 7, 7 | a slow card, explained | tests/analyzers/test_inherited.py::test_the_report_blames_the_cause_and_not_the_rank_in_between |
| 7, 8 | MFU without instrumentation | tests/analyzers/test_mac_utilisation.py::test_mfu_is_mac_ratio_times_cube_utilisation |
| 7, 10 | one number in all views | tests/reports/test_payload.py::test_figures_hold_the_same_numbers_as_the_page |
| 7, 11 | empty sections are explained | tests/reports/test_browser.py::test_an_empty_run_opens_without_errors |
| 7, 12 | clocks that are minutes apart | tests/analyzers/test_clocks.py::test_offsets_of_seconds_and_drifts_of_ppm_are_told_and_taken_away |
| 7, 13 | GPU traces | tests/parsers/test_kineto.py::test_reference_values |
| 7, 14 | peers of batch send and receive | tests/analyzers/test_ranks.py::test_qwen3_names_the_imbalance_and_the_waiting_ranks |
| 8, 3 | any number of steps | tests/rival/test_repeated_steps.py::test_the_alexnet_step_five_times_says_what_it_says_once |
| 8, 7 | open ranges of versions | tests/rival/test_advisor_rules.py::test_fused_operators_are_known_for_every_version |
| 8, 8 | the report opens on the answer | tests/reports/test_markdown.py::test_it_opens_on_the_answer |
| 8, 9 | roofline from shapes | tests/analyzers/test_mac_utilisation.py::test_the_roofline_states_its_coverage_and_roofs_their_basis |
| 8, must match: modules | call stacks of modules | tests/analyzers/test_flame.py::test_all_of_the_alexnet_step_is_attributed_and_its_backward_lies_with_its_layers |
| 8, must match: bubbles | - | tests/analyzers/test_ranks.py::test_micro_batches_are_counted_from_the_calls_of_the_end_stages |
| 8, must match: MoE | - | tests/analyzers/test_experts.py::test_the_fullest_rank_of_a_group_is_named |
| 8, must match: time split by class | - | tests/analyzers/test_step_classes.py::test_classes_passes_and_engines_are_told_apart_and_add_up |
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascend_perf.analyzers._rules import rule_codes
from ascend_perf.pipeline import report
from tests._support import Said
from tests.faults import model
from tests.faults.machine import simulate
from tests.faults.writer import write_job
from tests.rival._said import analysis_of, codes, number, rows

SETS = (
    "ascend-pytorch/text/level2/rank0_ascend_pt",
    "ascend-pytorch/db/level1/rank0_ascend_pt",
    "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "msprof-cli",
    "ascend-cluster/msinsight-16rank",
    "kineto/h100/gaunernst_bert-small-uncased__1016001.json.gz",
)


def _tree(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Content, mode and time of change of everything below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder",
            stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def _copied(source: Path, folder: Path) -> Path:
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@pytest.fixture
def closed() -> Iterator[Callable[[Path], None]]:
    """Takes the right to write away from a folder, and gives it back in the end."""
    folders: list[Path] = []

    def close(folder: Path) -> None:
        folders.append(folder)
        for path in [*folder.rglob("*"), folder]:
            path.chmod(0o555 if path.is_dir() else 0o444)

    yield close
    for folder in folders:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


@pytest.mark.parametrize("name", SETS)
def test_inputs_are_never_modified(
    traces: Path, tmp_path: Path, name: str, command: Callable[..., Said], closed: Callable[[Path], None]
) -> None:
    """2.3, p2p_pairing and export_summary, which alter the user's databases and write beside them; 8, 10."""
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    target = _copied(traces / name, inputs)
    closed(inputs)
    before = _tree(inputs)

    said = command("analyze", target, "-o", outputs / "report", "--format", "json,md,html")

    assert said.code == 0, said.err
    assert _tree(inputs) == before
    assert sorted(p.name for p in outputs.iterdir()) == ["report"]
    assert {p.suffix for p in (outputs / "report").iterdir()} == {".json", ".md", ".html"}


def test_nothing_is_written_outside_of_the_output(
    tmp_path: Path, command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8, 10: neither beside the input nor in the working folder nor in the home folder."""
    job = model.card(1, steps=2, layers=2)
    write_job(job, simulate(job), tmp_path / "profile")
    for place in ("home", "work", "temp"):
        (tmp_path / place).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.chdir(tmp_path / "work")
    before = _tree(tmp_path)

    said = command("analyze", tmp_path / "profile", "-o", tmp_path / "report", "--format", "json,md,html")

    assert said.code == 0
    after = _tree(tmp_path)
    assert {p for p in after if p.partition("/")[0] != "report"} == set(before)
    assert {p: v for p, v in after.items() if p in before and v[0] != "folder"} == {
        p: v for p, v in before.items() if v[0] != "folder"
    }


def test_a_report_that_is_there_is_not_reused(tmp_path: Path, command: Callable[..., Said]) -> None:
    """2.4: a stale output folder is silently taken for the result there; 8, 10: no stale reuse."""
    job = model.card(1, steps=2, layers=2)
    write_job(job, simulate(job), tmp_path / "profile")
    out = tmp_path / "report"
    out.mkdir()
    (out / "report.json").write_text('{"findings": "stale"}')

    refused = command("analyze", tmp_path / "profile", "-o", out, "--format", "json")
    assert refused.code == 2
    assert json.loads((out / "report.json").read_text()) == {"findings": "stale"}

    assert command("analyze", tmp_path / "profile", "-o", out, "--format", "json", "--force").code == 0
    assert json.loads((out / "report.json").read_text())["findings"] == []

    # And an input that changed in between is read anew.
    job = model.card(1, steps=2, layers=2)
    job.environment["ASCEND_GLOBAL_LOG_LEVEL"] = "1"
    shutil.rmtree(tmp_path / "profile")
    write_job(job, simulate(job), tmp_path / "profile")
    assert command("analyze", tmp_path / "profile", "-o", out, "--format", "json", "--force").code == 0
    assert [f["code"] for f in json.loads((out / "report.json").read_text())["findings"]] == ["H-09"]


@pytest.mark.parametrize("name", SETS)
def test_every_row_of_the_table_is_accounted_for(traces: Path, name: str) -> None:
    """8, 6: a coverage table says which checks ran, which were skipped and why; 7, 11."""
    analysis = analysis_of(traces / name)

    judged = {j.code for o in analysis.outcomes for j in o.judged}
    silent = [o for o in analysis.outcomes if o.status != "done"]
    assert all(o.reason is not None and o.reason.en and o.reason.zh for o in silent)
    for outcome in analysis.outcomes:
        for row in outcome.judged:
            assert row.verdict != "not_judged" or row.reason is not None, f"{outcome.analyzer} {row.code}"
    # A row that nobody judged belongs to analyzers that say why they have no data, or does not exist on the device.
    from ascend_perf.analyzers._rules import rule

    unheard = set(rule_codes()) - judged - codes(analysis)
    without_data = {o.analyzer for o in silent}
    kinds = {trace.meta.device.kind for trace in analysis.run.traces}
    if kinds == {"npu"}:
        ran = {o.analyzer for o in analysis.outcomes if o.status == "done"}
        lost = {code for code in unheard if not set(rule(code).judged_by) & without_data}
        assert lost <= {code for code in unheard if set(rule(code).judged_by) <= ran}, lost


@pytest.mark.parametrize("name", SETS)
def test_the_report_prints_the_versions_of_the_trace(
    traces: Path, tmp_path: Path, name: str
) -> None:
    """8, 7 and 2.1.1: versions are read from the trace and printed; where it has none, none is claimed."""
    result = report([traces / name], out=tmp_path / "out", formats=["json", "html"], jobs=1)

    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    document = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    versions = {
        (key, value) for trace in result.analysis.run.traces for key, value in trace.meta.versions.items()
    }
    for key, value in versions:
        assert f"{key} version" in page and value in page
    if not {key for key, _ in versions} & {"cann"}:
        assert "cann version" not in page
    assert document["ranks"]


@pytest.mark.parametrize("name", ["text/level1", "text/level2", "db/level1", "db/level2"])
def test_the_split_of_a_step_is_complete(traces: Path, name: str) -> None:
    """8, must match: the full split; 7, 10: parts add up to the step of every other view."""
    analysis = analysis_of(traces / "ascend-pytorch" / name)
    for trace in analysis.run.traces:
        rank = trace.meta.rank
        (step,) = rows(analysis.outcomes, "steps", rank)
        bar = {row["component"]: number(row["time_ns"]) for row in rows(analysis.outcomes, "step-bar", rank)}
        assert {"cube", "vector", "comm-wait", "comm-transfer", "copy", "free"} <= bar.keys()
        assert sum(bar.values()) / 1000 == pytest.approx(number(step["span_us"]))
        # Classes of kernels: matmul, convolution, attention, vector ... add up to the kernel time.
        types = rows(analysis.outcomes, "op-types", rank)
        by_class: dict[object, float] = {}
        for row in types:
            by_class[row["class"]] = by_class.get(row["class"], 0.0) + number(row["total_ns"])
        assert {"matmul", "conv"} <= by_class.keys()
        assert sum(by_class.values()) == pytest.approx(
            next(m.value for m in analysis.metrics if m.name == "kernel_time" and m.rank == rank)
        )


@pytest.mark.parametrize("name", ["ascend-pytorch/qwen3-0.6b-pp2-dp2-level2", "ascend-pytorch/text/level1"])
def test_waiting_and_transfer_are_told_per_group(traces: Path, name: str) -> None:
    """8, must match: wait and transit per group, and both within the time of the group."""
    analysis = analysis_of(traces / name)
    for rank in analysis.run.ranks:
        for row in rows(analysis.outcomes, "comm-groups", rank):
            total = number(row["total_ns"])
            assert row["wait_ns"] is not None or row["transit_ns"] is not None
            assert 0 <= number(row["wait_ns"] or 0) <= total
            assert 0 <= number(row["transit_ns"] or 0) <= total


def test_no_status_of_zero_for_what_went_wrong(tmp_path: Path, command: Callable[..., Said]) -> None:
    """2.3: the status is 0 in every failure but wrong arguments there; 8, 6: distinct codes."""
    empty = tmp_path / "empty"
    empty.mkdir()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "ascend_pytorch_profiler_0.db").write_bytes(b"SQLite format 3\0" + os.urandom(64))
    job = model.card(1, steps=2, layers=2)
    write_job(job, simulate(job), tmp_path / "profile")

    status = {
        "fine": command("analyze", tmp_path / "profile", "-o", tmp_path / "a", "--format", "json").code,
        "usage": command("analyze", tmp_path / "profile", "-o", tmp_path / "b", "--format", "pdf").code,
        "missing": command("analyze", tmp_path / "nowhere", "-o", tmp_path / "c").code,
        "empty": command("analyze", empty, "-o", tmp_path / "d").code,
        "damaged": command("analyze", damaged, "-o", tmp_path / "e").code,
        "rank": command("analyze", tmp_path / "profile", "-o", tmp_path / "f", "--rank", "7").code,
    }
    assert status == {"fine": 0, "usage": 2, "missing": 3, "empty": 3, "damaged": 3, "rank": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "damaged", "empty", "profile"]


def test_text_of_a_report_is_correct_english(traces: Path, tmp_path: Path) -> None:
    """2.1.1: wrong phrases such as "Neither D nor S is not divisible"; cut names of tables."""
    report([traces / "ascend-pytorch/text/level1"], out=tmp_path / "out", formats=["md"], jobs=1)
    text = (tmp_path / "out" / "report.md").read_text("utf-8")

    assert not re.search(r"\b1 (?:kernels|steps|ranks|calls|groups)\b", text)
    assert not re.search(r"\bNone\b|\bnan\b|\b0 of 0\b|_x000D_|\{[a-z_]+\}", text)
