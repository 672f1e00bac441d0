"""ascend-perf lint-npu on a small torch_npu that the test wrote: formats, exit codes, what could not be checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import contract
from tests._support import Said
from tests.collectors.virtual_npu._contract_world import small_facts

BAD = "import torch_npu\ntorch_npu.npu_rms_norm(x, w, eps=1)\ntorch_npu.npu.memory_cached()\n"
"""An error in line 2, a warning in line 3."""


@pytest.fixture
def lint(command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Said]:
    monkeypatch.setattr(contract, "facts_of", lambda settings, say: (small_facts(), None))
    monkeypatch.chdir(tmp_path)
    return lambda *args: command("lint-npu", *args)


def test_text_names_file_line_message_rule_and_cure(lint: Callable[..., Said]) -> None:
    Path("train.py").write_text(BAD)

    said = lint("train.py")

    assert said.code == 1
    assert said.out.splitlines() == [
        "train.py:2:34: error: torch_npu.npu_rms_norm: there is no argument eps [unknown-argument]",
        "    -> it is npu_rms_norm(input, gamma, epsilon=...)",
        "train.py:3:1: warning: torch_npu.npu.memory_cached is deprecated [deprecated]",
        "    -> torch_npu says: renamed to memory_reserved",
        "1 errors, 1 warnings, 0 notes in 1 files (torch_npu 2.13.0)",
    ]


def test_chinese_text(lint: Callable[..., Said]) -> None:
    Path("train.py").write_text(BAD)

    out = lint("train.py", "--lang", "zh").out

    assert "train.py:2:34: 错误: torch_npu.npu_rms_norm：没有参数 eps [unknown-argument]" in out
    assert out.endswith("1 个文件：1 个错误，1 个警告，0 个提示（torch_npu 2.13.0）\n")


@pytest.mark.parametrize(("text", "options", "code"), [
    ("import torch_npu\n", (), 0),
    (BAD, (), 1),
    ("import torch_npu\ntorch_npu.npu.memory_cached()\n", (), 0),
    ("import torch_npu\ntorch_npu.npu.memory_cached()\n", ("--strict",), 1),
    ("def f(:\n", (), 3),
])  # fmt: skip
def test_exit_codes(lint: Callable[..., Said], text: str, options: tuple[str, ...], code: int) -> None:
    Path("a.py").write_text(text)

    assert lint("a.py", *options).code == code


def test_a_file_that_cannot_be_read_leaves_the_others(lint: Callable[..., Said]) -> None:
    Path("a.py").write_bytes(b"\0")
    Path("b.py").write_text(BAD)

    said = lint(".")

    assert said.code == 1
    assert "not checked: a.py is binary, expected Python source" in said.out
    assert "b.py:2:34: error" in said.out


def test_a_notebook_is_not_taken_for_clean_python(lint: Callable[..., Said]) -> None:
    Path("a.ipynb").write_text('{"cells": [{"source": ["import torch_npu; torch_npu.npu_nothing()"]}]}')

    said = lint("a.ipynb")

    assert said.code == 3
    assert "not checked: a.ipynb is a notebook, expected Python source" in said.out


def test_sarif_points_at_lines(lint: Callable[..., Said]) -> None:
    Path("a b.py").write_text(BAD)
    Path("c.py").write_text("(")

    document = json.loads(lint(".", "--format", "sarif").out)

    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    places = [
        (one["ruleId"], rules[one["ruleIndex"]], one["level"], one["locations"][0]["physicalLocation"])
        for one in run["results"]
    ]
    location = {"uri": "a%20b.py", "uriBaseId": "%SRCROOT%"}
    assert places == [
        ("lint-npu/unknown-argument", "lint-npu/unknown-argument", "error",
         {"artifactLocation": location, "region": {"startLine": 2, "startColumn": 34}}),
        ("lint-npu/deprecated", "lint-npu/deprecated", "warning",
         {"artifactLocation": location, "region": {"startLine": 3, "startColumn": 1}}),
    ]  # fmt: skip
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "c.py:1" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_github_commands_are_escaped(lint: Callable[..., Said]) -> None:
    Path("a,b:c.py").write_text(BAD)

    first, second = lint("a,b:c.py", "--format", "github").out.splitlines()

    assert first.startswith("::error file=a%2Cb%3Ac.py,line=2,col=34,title=lint-npu unknown-argument::torch_npu.npu_")
    assert second.startswith("::warning file=a%2Cb%3Ac.py,line=3,col=1,title=lint-npu deprecated::")


def test_names_of_files_are_no_commands(lint: Callable[..., Said]) -> None:
    name = "x\n::error::y.py"
    Path(name.replace("/", "_")).write_text(BAD)

    out = lint(".").out

    assert not any(line.lstrip().startswith("::") for line in out.splitlines())


def test_json_holds_both_languages(lint: Callable[..., Said]) -> None:
    Path("a.py").write_text(BAD)

    body = json.loads(lint("a.py", "--format", "json", "--level", "error").out)

    assert body["counts"] == {"error": 1, "warning": 0, "note": 0}
    (problem,) = body["files"][0]["problems"]
    assert problem["said"] == {
        "en": "torch_npu.npu_rms_norm: there is no argument eps", "zh": "torch_npu.npu_rms_norm：没有参数 eps",
    }  # fmt: skip


def test_a_missing_path_is_told(lint: Callable[..., Said]) -> None:
    said = lint("none.py")

    assert (said.code, "none.py does not exist" in said.err) == (3, True)
