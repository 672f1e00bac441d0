"""Simulated figures at the gate: refused, judged when told, and each then says so."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from ascend_perf.cli.gate import command
from ascend_perf.gate import texts
from ascend_perf.gate.comment import comment, log_annotations, summary
from ascend_perf.gate.decide import decide
from ascend_perf.gate.documents import as_document, code_quality, junit, sarif
from ascend_perf.gate.outcome import Explanation, Node, Verdict
from ascend_perf.gate.policy import Policy
from ascend_perf.model.finding import Words
from ascend_perf.result_files import write_results
from tests.gate._results import benchmark, launches, side


def test_mixed_sides_need_the_option_and_the_simulated_figures_are_marked(tmp_path: Path) -> None:
    for name, origin in (("base", "measured"), ("head", "simulated")):
        results = side(benchmark(origin=origin)).results  # type: ignore[arg-type]  # one of the two
        write_results(tmp_path / f"{name}.json", results)
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json")]

    refused = CliRunner().invoke(command, words)
    assert refused.exit_code == 4
    assert "--simulated compares them nevertheless" in refused.output

    taken = CliRunner().invoke(command, [*words, "--simulated", "-o", str(tmp_path / "out")])
    assert taken.exit_code == 0, taken.output
    text = (tmp_path / "out" / "gate.md").read_text("utf-8")
    (cells,) = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "step_time_median" in line]
    # | benchmark | figure | outcome | base | head | ...
    assert cells[4] == "10.01 ms" and cells[5] == "10.01 ms (simulated)"
    rows = json.loads((tmp_path / "out" / "gate.json").read_text("utf-8"))["rows"]
    assert {(row["simulated"], row["measured_side"]) for row in rows} == {(True, "base")}
    again = CliRunner().invoke(command, [*reversed(words), "--simulated", "-o", str(tmp_path / "turned")])
    assert again.exit_code == 0
    assert "| 10.01 ms (simulated) | 10.01 ms |" in (tmp_path / "turned" / "gate.md").read_text("utf-8")


@pytest.mark.parametrize("names", [("base", "head"), ("head", "base")])
def test_sides_whose_benchmarks_have_other_names_are_refused_as_mixed_too(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    # Keys name the device: measured on a CPU, simulated on an NPU.
    measured = side(benchmark("llm-pretrain/tiny/cpu/1"), benchmark("llm-generate/tiny/cpu/1")).results
    simulated = side(benchmark("llm-pretrain/tiny/npu/1", origin="simulated")).results
    for name, results in zip(names, (measured, simulated), strict=True):
        write_results(tmp_path / f"{name}.json", results)
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json")]

    refused = CliRunner().invoke(command, [*words, "-o", str(tmp_path / "out")])

    assert refused.exit_code == 4
    origins = dict(zip(names, ("measured", "simulated"), strict=True))
    assert f"base is {origins['base']}, head is {origins['head']}; --simulated compares them" in refused.output
    rows = json.loads((tmp_path / "out" / "gate.json").read_text("utf-8"))["rows"]
    assert {(row["name"], row["outcome"]) for row in rows} == {("data_origin", "not_comparable")}
    assert len(rows) == 3
    # Told to mix, they are what they are: different benchmarks.
    assert CliRunner().invoke(command, [*words, "--simulated"]).exit_code == 1


def test_a_benchmark_that_is_gone_is_no_mixture(tmp_path: Path) -> None:
    both = side(benchmark("a/tiny/npu/1"), benchmark("b/tiny/npu/1", origin="simulated")).results
    write_results(tmp_path / "base.json", both)
    write_results(tmp_path / "head.json", side(benchmark("b/tiny/npu/1", origin="simulated")).results)
    (tmp_path / "policy.yaml").write_text("schema_version: 1\nsimulated: true\n", "utf-8")
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json"), "--policy", str(tmp_path / "policy.yaml")]
    gone = CliRunner().invoke(command, words)
    assert gone.exit_code == 1
    assert "head does not have this benchmark" in gone.output


def test_both_sides_simulated_are_both_marked(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("schema_version: 1\nsimulated: true\n", "utf-8")
    path = str(write_results(tmp_path / "base.json", side(benchmark(origin="simulated")).results))
    words = [path, path, "--policy", str(tmp_path / "policy.yaml"), "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(command, words).exit_code == 0
    assert "| 10.01 ms (simulated) | 10.01 ms (simulated) |" in (tmp_path / "out" / "gate.md").read_text("utf-8")


def test_a_policy_alone_never_mixes(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("schema_version: 1\nsimulated: true\n", "utf-8")
    for name, origin in (("base", "measured"), ("head", "simulated")):
        write_results(tmp_path / f"{name}.json", side(benchmark(origin=origin)).results)  # type: ignore[arg-type]
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json"), "--policy", str(tmp_path / "policy.yaml")]
    assert CliRunner().invoke(command, words).exit_code == 4


def slower(head: Literal["measured", "simulated"], base: Literal["measured", "simulated"]) -> Verdict:
    """A step that is 10 % longer, one kernel more, one count that is the same, and what explains it."""
    verdict = decide(
        side(benchmark(origin=base, counts={"kernels": 7, "host_ops": 9})),
        side(benchmark(origin=head, counts={"kernels": 8, "host_ops": 9}, of=launches(10, 1.1e7))),
        replace(Policy(), simulated=True, mixed=True), today=date(2026, 4, 7),
    )  # fmt: skip
    node = Node(name="aten::mm", base_ns=1e6, head_ns=2e6, base_count=1, head_count=2)
    row = verdict.rows[0]
    explained = Explanation(
        benchmark=row.benchmark, nodes=(node,), simulated=row.simulated, measured_side=row.measured_side
    )
    return replace(verdict, explanations=(explained,))


def test_every_cell_of_a_mixed_comment_says_which_figures_are_simulated() -> None:
    text = comment(slower("simulated", "measured"))
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| llm")]
    cells = {row[1]: row[3:7] for row in table}
    assert cells["kernels"] == ["7", "8 (simulated)", "+14.3 % (head simulated)", "—"]
    assert cells["step_time_median"][:3] == [
        "10.01 ms", "11.01 ms (simulated)", "+10 % (head simulated)"
    ]  # fmt: skip
    assert re.fullmatch(r"\+.* % … \+.* % \(head simulated\)", cells["step_time_median"][3])
    assert "| node | base | head (simulated) | change (head simulated) | calls (head simulated) |" in text
    assert "| 节点 | BASE | HEAD（仿真） | 变化（HEAD 为仿真） | 次数（HEAD 为仿真） |" in comment(
        slower("simulated", "measured"), "zh"
    )
    both = comment(slower("simulated", "simulated"))
    assert "| node | base (simulated) | head (simulated) | change (simulated) | calls (simulated) |" in both
    assert "simulated" not in comment(slower("measured", "measured"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_output_of_a_mixed_gate_says_it_of_every_row(lang: Literal["en", "zh"]) -> None:
    verdict = slower("simulated", "measured")
    assert {row.outcome for row in verdict.rows} == {"regression", "pass"}
    word = {"en": "simulated", "zh": "仿真"}[lang]

    cases = list(ET.fromstring(junit(verdict, lang)).iter("testcase"))
    assert len(cases) == len(verdict.rows) == 3
    for case in cases:
        (child,) = case
        assert word in (child.get("message") or child.text or ""), case.attrib
    found = sarif(verdict, "gate.yaml", lang)["runs"][0]["results"]  # type: ignore[index]
    assert len(found) == 2
    assert all(word in one["message"]["text"] for one in found)
    assert all(one["properties"]["measuredSide"] == "base" for one in found)
    assert all(word in str(one["description"]) for one in code_quality(verdict, "gate.yaml", lang))
    lines = log_annotations(verdict, "gate.yaml", lang).splitlines()
    assert len(lines) == 2 and all(word in line for line in lines)
    told = [line for line in summary(verdict, lang).splitlines() if "llm-pretrain" in line]
    assert len(told) == 3 and all(word in line for line in told)  # two rows, and the explanation
    document = as_document(verdict)
    assert {(one["simulated"], one["measured_side"]) for name in ("rows", "explanations")
            for one in document[name]} == {(True, "base")}  # type: ignore[attr-defined]


def test_a_measured_gate_says_nothing_of_it() -> None:
    verdict = slower("measured", "measured")
    said = [
        summary(verdict), log_annotations(verdict, "g"), junit(verdict).decode(), json.dumps(code_quality(verdict, "g"))
    ]
    assert not any("(simulated)" in text or "head simulated" in text for text in said)


def test_a_row_without_figures_says_it_too() -> None:
    (row,) = [row for row in slower("measured", "simulated").rows if row.name == "host_ops"]
    assert texts.message(row, "en") == "equal (base simulated)" and texts.message(row, "zh") == "相等（BASE 为仿真）"
    assert texts.simulated(row, "head") is None and texts.simulated(row, "base") == Words("simulated", "仿真")
