"""Simulated figures at the gate: refused, judged when told, and each then says so."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ascend_perf.cli.gate import command
from ascend_perf.result_files import write_results
from tests.gate._results import benchmark, side


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
