"""`ascend-perf gate` from the command line: inputs of all kinds, exit codes, messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf.manifest import write_manifest
from ascend_perf.model.run import Manifest
from ascend_perf.op_streams import OpStream, counted, write_op_stream
from ascend_perf.result_files import write_results
from tests._support import Said
from tests.gate._results import CREATED, MACHINE, benchmark, launches, results

Command = Callable[..., Said]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_results(tmp_path / "base.json", results(commit="1" * 40))


def slow(path: Path) -> Path:
    return write_results(path, results(benchmark(of=launches(10, 1.2e7)), commit="2" * 40))


def test_equal_results_pass(command: Command, base: Path) -> None:
    said = command("gate", base, base)
    assert (said.code, said.out.splitlines()[0]) == (0, "Performance gate passed")


def test_a_regression_ends_with_1_and_is_written(command: Command, base: Path, tmp_path: Path) -> None:
    said = command("gate", base, slow(tmp_path / "head.json"), "-o", tmp_path / "out")
    assert said.code == 1
    assert "llm-pretrain/tiny/npu/1 · step_time_median: regression" in said.out
    assert "no run directory of base was kept" in said.out  # why there is no explanation
    assert json.loads((tmp_path / "out" / "gate.json").read_text("utf-8"))["exit_code"] == 1
    assert command("gate", base, tmp_path / "head.json", "--warn-only").code == 0
    assert "no run directory" not in command("gate", base, tmp_path / "head.json", "--no-explain").out
    assert "性能劣化" in command("gate", base, tmp_path / "head.json", "--lang", "zh").out


def test_too_few_launches_end_with_3(command: Command, tmp_path: Path) -> None:
    few = write_results(tmp_path / "few.json", results(benchmark(of=launches(2))))
    assert command("gate", few, few).code == 3


def test_another_machine_ends_with_4(command: Command, base: Path, tmp_path: Path) -> None:
    other = write_results(tmp_path / "other.json", results(facts={**MACHINE, "chip": "Ascend 910B1"}))
    said = command("gate", base, other)
    assert said.code == 4
    assert "chip: Ascend 910B3 -> Ascend 910B1" in said.out


def test_a_missing_baseline_ends_with_4_and_a_missing_head_with_2(command: Command, base: Path, tmp_path: Path) -> None:
    said = command("gate", tmp_path / "none.json", base, "-o", tmp_path / "out")
    assert said.code == 4
    assert "no baseline: none.json does not exist" in said.out
    assert "no baseline" in (tmp_path / "out" / "gate.md").read_text("utf-8")
    assert command("gate", base, tmp_path / "none.json").code == 2


@pytest.mark.parametrize(("change", "message"), [
    ({"benchmarks": []}, "has no benchmarks"),
    ({"schema_version": 9}, "schema_version 9"),
    ({"suite": 3}, "suite must be text"),
    ({"benchmarks": [{"name": "a"}]}, "has no"),
])  # fmt: skip
def test_bad_input_ends_with_2_on_either_side(
    command: Command, base: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    document = {**json.loads(base.read_text("utf-8")), **change}
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document), "utf-8")
    for said in (command("gate", bad, base), command("gate", base, bad)):
        assert said.code == 2
        assert message in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(("key", "value"), [("steps_ns", [0]), ("steps_ns", [-5]), ("steps_ns", ["fast"]),
                                            ("steps_ns", None)])  # fmt: skip
def test_zero_negative_text_and_missing_steps_are_told(
    command: Command, base: Path, tmp_path: Path, key: str, value: object
) -> None:
    document = json.loads(base.read_text("utf-8"))
    document["benchmarks"][0]["launches"][0][key] = value
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document), "utf-8")
    said = command("gate", base, bad)
    assert said.code == 2 and "launches[0]" in said.err


def test_a_bad_policy_and_a_bad_address_end_with_2(command: Command, base: Path, tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("tolerence: 0.1", "utf-8")
    said = command("gate", base, base, "--policy", tmp_path / "gate.yaml")
    assert said.code == 2 and "did you mean tolerance?" in said.err
    assert command("gate", base, base, "--html-url", "javascript:alert(1)").code == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert command("gate", empty, base).code == 2


def test_variants_of_one_file_are_compared(command: Command, tmp_path: Path) -> None:
    name = "llm-pretrain/tiny/npu/1"
    suite = write_results(tmp_path / "results.json", results(
        benchmark(f"{name}/old", variant="old"), benchmark(f"{name}/new", of=launches(10, 1.2e7), variant="new"),
    ))  # fmt: skip
    said = command("gate", suite, suite, "--base-variant", "old", "--head-variant", "new")
    assert said.code == 1 and f"{name} · step_time_median" in said.out
    said = command("gate", suite, suite, "--base-variant", "older")
    assert said.code == 2 and "variants: new, old" in said.err


def run_directory(folder: Path, step_ns: int) -> Path:
    folder.mkdir()
    write_manifest(folder, Manifest(
        workload="llm-pretrain", preset="tiny", device="cpu", data_origin="measured", created=CREATED,
        config={"layers": 4}, timings_ns={"measured": tuple(range(step_ns, step_ns + 9))},
        device_facts={"name": "EPYC"}, versions={"torch": "2.13.0"},
    ))  # fmt: skip
    return folder


def test_single_runs_cannot_tell_and_say_so(command: Command, tmp_path: Path) -> None:
    said = command("gate", run_directory(tmp_path / "a", 1000), run_directory(tmp_path / "b", 5000))
    assert said.code == 3
    assert "b is one run: nothing is known of the variation between launches" in said.out
    assert "measure at least 5 of each" in said.out


def snapshot(path: Path, ops: tuple[str, ...], torch: str = "2.13.0") -> Path:
    path.parent.mkdir(exist_ok=True)
    return write_op_stream(path, OpStream(
        workload="llm-pretrain", preset="tiny", mode="fake", facts={"torch": torch}, totals=counted(ops), stream=ops,
        settings={"layers": 4},
    ))  # fmt: skip


def test_snapshots_are_compared_without_any_hardware(command: Command, tmp_path: Path) -> None:
    fused, split = ("npu.npu_rms_norm.default(f32[4]) -> f32[4]",), ("aten.pow.x(f32[4])", "aten.mul.x(f32[4])")
    base, head = tmp_path / "base", tmp_path / "head"
    for name in ("llm.ops", "moe.ops"):
        snapshot(base / name, fused)
        snapshot(head / name, fused)
    (base / "README").write_text("notes", "utf-8")
    assert command("gate", base, head).code == 0
    snapshot(head / "moe.ops", split)
    said = command("gate", base, head)
    assert said.code == 1
    assert "moe · op_stream: regression; 1 -> 2 (+100 %); 2 operators came, 1 went" in said.out
    assert command("gate", base / "llm.ops", head / "llm.ops").code == 0
    snapshot(head / "moe.ops", fused, torch="2.14.0")
    said = command("gate", base, head)
    assert said.code == 4 and "different work: snapshot.torch" in said.out
    (head / "moe.ops").unlink()
    assert command("gate", base, head).code == 1  # removed, and not listed


def test_kinds_that_have_nothing_in_common_are_wrong_usage(command: Command, base: Path, tmp_path: Path) -> None:
    one = snapshot(tmp_path / "snapshots" / "llm.ops", ("aten.mul.x(f32[4])",))
    run = run_directory(tmp_path / "run", 1000)
    for before, after, words in (
        (base, one, "base.json is a result file and llm.ops is a snapshot of operators"),
        (one.parent, base, "snapshots is a folder of snapshots and base.json is a result file"),
        (run, one, "run is a run directory and llm.ops is a snapshot of operators"),
        (one, one.parent, "llm.ops is a snapshot of operators and snapshots is a folder of snapshots"),
    ):
        said = command("gate", before, after)
        assert (said.code, said.out) == (2, "") and f"{words}: they cannot be compared" in said.err
        assert "give two " in said.err
    # A run is one launch of what a suite measures often: its benchmark may be in the file.
    assert command("gate", base, run).code in (1, 3, 4)


def test_annotations_come_within_github_alone(
    command: Command, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = slow(tmp_path / "head.json")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert "::error" not in command("gate", base, head).out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error file=README.md,line=1" in command("gate", base, head).out
    assert "::error" not in command("gate", base, head, "--annotations", "none").out


def test_an_allowance_of_the_policy_holds(command: Command, base: Path, tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text(
        "allow: [{benchmark: '*', metric: '*', owner: Li Wei, until: 9999-12-31}]", "utf-8"
    )
    said = command("gate", base, slow(tmp_path / "head.json"), "--policy", tmp_path / "gate.yaml")
    assert said.code == 0
    assert "allowed by Li Wei until 9999-12-31" in said.out


def test_a_symbolic_link_is_no_snapshot_of_a_folder(command: Command, tmp_path: Path) -> None:
    ops = ("aten.mm.default(f32[4])",)
    base, head = tmp_path / "base", tmp_path / "head"
    snapshot(base / "a.ops", ops)
    snapshot(tmp_path / "outside" / "a.ops", ops)
    head.mkdir()
    (head / "a.ops").symlink_to(tmp_path / "outside" / "a.ops")
    assert command("gate", base, head).code == 2


def test_commits_stand_in_the_comment(command: Command, base: Path, tmp_path: Path) -> None:
    head = write_results(tmp_path / "head.json", replace(results(commit="2" * 40), branch=None))
    command("gate", base, head, "-o", tmp_path / "out", "--html-url", "https://ci.example/1")
    text = (tmp_path / "out" / "gate.md").read_text("utf-8")
    assert "111111111111 (main)" in text and "222222222222" in text and "(https://ci.example/1)" in text


def test_a_line_that_stands_for_endless_calls_is_refused(command: Command, tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.ops.txt", ("aten.mm.default(f32[4])",) * 2)
    path.write_text(path.read_text("utf-8").replace("2 ", "9" * 17 + " ", 1).replace("2 x", "9" * 17 + " x"), "utf-8")
    said = command("gate", path, path)
    assert said.code == 2 and "which no step has" in said.err
