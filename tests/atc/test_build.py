"""Running atc: what it says, how it ends, which file it leaves; with a stand-in that behaves as the reference says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ascend_perf.atc import build as atc
from ascend_perf.atc.build import build, cure, models_of, reason
from ascend_perf.cli import cli
from ascend_perf.collectors import _machine
from ascend_perf.collectors._machine import Machine
from ascend_perf.errors import MachineError

onnx = pytest.importorskip("onnx")

from tests.atc.test_hostile_files import _good  # noqa: E402  # imports onnx

ATC = """
import os, sys, time
from pathlib import Path
words = dict(word[2:].split("=", 1) for word in sys.argv[1:])
how = os.environ.get("FAKE_ATC", "")
print("ATC start working now, please wait for a moment.")
if not words["soc_version"].startswith("Ascend") or how == "ops":
    print("ATC run failed, Please check the detail log, Try 'atc --help' for more information")
    print("E10001: [PID: 4812] 2026-04-07-10:15:32.881.245 Value [%s] for parameter [--soc_version] is invalid."
          % words["soc_version"])
    print("        Solution: check the ops package."); sys.exit(1)
if how == "slow":
    time.sleep(600)
name = words["output"] + ("_linux_aarch64" if how == "long" else "")
if how != "nothing":
    Path(name + ".om").write_bytes(b"om of " + Path(words["model"]).name.encode())
if how == "cut":  # killed inside, by its own parent: the model may be half
    sys.exit(0)
print("...\\nATC run success, welcome to the next use.")
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "atc"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable} -SE\n{ATC}")
    path.chmod(0o755)
    return path


def built(tool: Path, how: str = "", soc: str = "Ascend310P3", timeout_s: float = 60) -> atc.Built:
    words = [str(tool), "--model=m.onnx", "--output=m.aipp", f"--soc_version={soc}"]
    return build(words, tool.parents[1], {**os.environ, "FAKE_ATC": how}, timeout_s=timeout_s)


@pytest.mark.parametrize(("how", "name"), [("", "m.aipp.om"), ("long", "m.aipp_linux_aarch64.om")])
def test_the_om_has_one_of_two_names(tool: Path, how: str, name: str) -> None:
    done = built(tool, how)
    assert done.is_done
    assert done.om is not None and done.om.name == name


def test_an_om_of_an_earlier_build_is_not_taken_for_a_new_one(tool: Path) -> None:
    folder = tool.parents[1]
    (folder / "m.aipp_linux_x86_64.om").write_bytes(b"old")
    (folder / "m.aipp.om").write_bytes(b"old")
    os.utime(folder / "m.aipp.om", ns=(1, 1))

    assert built(tool, "nothing").problem == "atc tells of success, but there is no new m.aipp.om"
    again = built(tool)
    assert again.om == folder / "m.aipp.om"
    assert again.om.read_bytes() == b"om of m.onnx"


def test_a_model_without_the_line_of_success_is_not_done(tool: Path) -> None:
    done = built(tool, "cut")
    assert not done.is_done
    assert done.problem == "atc failed: ATC start working now, please wait for a moment."


def test_a_failure_has_its_error_and_the_package_to_install(tool: Path) -> None:
    done = built(tool, "ops")
    assert not done.is_done
    assert done.problem.startswith("atc failed: E10001: [PID: 4812]")
    assert done.cure is not None
    assert "the ops package of the chip that --soc names" in done.cure.en


def test_a_build_that_hangs_is_ended_and_a_tool_that_cannot_be_started_is_said(tool: Path) -> None:
    assert built(tool, "slow", timeout_s=0.5).problem == "atc did not end within 0.5 s"
    tool.write_text("#!/no/such/interpreter\n")
    assert built(tool).problem == "atc cannot be started: No such file or directory"


def test_names_that_only_begin_alike_are_other_models(tmp_path: Path) -> None:
    for name in ("m.om", "m_linux_aarch64.om", "mm.om", "m.om.bak", "m_v2.om", "m.aipp.om", "m_Linux_x86_64.om"):
        (tmp_path / name).touch()
    assert [path.name for path in models_of(tmp_path, "m")] == ["m.om", "m_linux_aarch64.om"]
    assert models_of(tmp_path / "absent", "m") == []


def test_words_that_nobody_knows_have_no_cure() -> None:
    assert cure("something new") is None
    assert reason("a\n\nb\n") == "b"
    assert reason("") == ""


# ---- command --------------------------------------------------------------------------------------------------------


def call(root: Path, *words: str) -> Result:
    onnx.save(_good(), root / "m.onnx")
    every = ["aipp", str(root / "m.onnx"), "--soc", "Ascend310P3", "--output", str(root / "out"), "--build", *words]
    return CliRunner().invoke(cli, every, standalone_mode=False)


def test_the_command_builds_where_cann_is(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tool.parents[1]
    variables = {"PATH": f"{tool.parent}:/usr/bin:/bin", "FAKE_ATC": "long"}
    monkeypatch.setattr(_machine, "here", lambda: Machine(root=root, environment=variables, is_here=False))

    done = call(root, "--format", "json")

    assert done.return_value == 0, done.output
    assert json.loads(done.output)["build"] == {
        "done": True, "om": "m.aipp_linux_aarch64.om", "problem": "", "cure": None
    }  # fmt: skip
    assert (root / "out" / "m.aipp_linux_aarch64.om").read_bytes() == b"om of m.aipp.onnx"
    variables["FAKE_ATC"] = "ops"
    failed = call(root, "--lang", "zh")
    assert failed.return_value == 1
    assert "未生成：atc 失败：E10001" in failed.output
    assert "ops 包" in failed.output


def test_without_atc_the_message_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "here", lambda: Machine(root=tmp_path, environment={"PATH": ""}, is_here=False))
    done = call(tmp_path)
    assert isinstance(done.exception, MachineError)
    assert done.exception.what == "atc not found (CANN toolkit plus the ops package of your chip)"
    assert (tmp_path / "out" / "aipp.cfg").is_file()


def test_an_opset_that_atc_does_not_read_is_said(tmp_path: Path) -> None:
    for version, is_said in ((10, True), (11, False), (18, False), (19, True)):
        model = _good()
        model.opset_import[0].version = version
        onnx.save(model, tmp_path / "m.onnx")
        words = ["aipp", str(tmp_path / "m.onnx"), "--soc", "Ascend310P3", "--output", str(tmp_path / "out")]
        done = CliRunner().invoke(cli, words, standalone_mode=False)
        assert (f"ATC reads opsets 11 to 18 of ONNX, the model has {version}" in done.output) == is_said, done.output
