"""Simulated figures at the gate: refused, judged when told, and each then says so."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from ascend_perf.cli.gate import command
from ascend_perf.result_files import write_results
from tests.gate._results import benchmark, side


def test_mixed_sides_need_the_option_and_every_figure_is_marked(tmp_path: Path) -> None:
    for name, origin in (("base", "measured"), ("head", "simulated")):
        results = side(benchmark(origin=origin)).results  # type: ignore[arg-type]  # one of the two
        write_results(tmp_path / f"{name}.json", results)
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json")]

    refused = CliRunner().invoke(command, words)
    assert refused.exit_code == 4
    assert "--simulated compares them nevertheless" in refused.output

    taken = CliRunner().invoke(command, [*words, "--simulated", "-o", str(tmp_path / "out")])
    assert taken.exit_code == 0, taken.output
    lines = [line for line in (tmp_path / "out" / "gate.md").read_text("utf-8").splitlines() if "ms" in line]
    assert lines and all("(simulated)" in line for line in lines)


def test_a_policy_alone_never_mixes(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("schema_version: 1\nsimulated: true\n", "utf-8")
    for name, origin in (("base", "measured"), ("head", "simulated")):
        write_results(tmp_path / f"{name}.json", side(benchmark(origin=origin)).results)  # type: ignore[arg-type]
    words = [str(tmp_path / "base.json"), str(tmp_path / "head.json"), "--policy", str(tmp_path / "policy.yaml")]
    assert CliRunner().invoke(command, words).exit_code == 4
