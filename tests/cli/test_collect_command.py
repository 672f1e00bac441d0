"""`ascend-perf collect` as a user meets it: the plan, the report, the exit code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from ascend_perf import pipeline
from ascend_perf.bench import collect as bench
from ascend_perf.cli import collect as cli
from ascend_perf.errors import UsageError
from tests._support import Said
from tests.collectors import _fake_msprof


@pytest.fixture
def msprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in on the PATH, and a program that uses the NPU in two processes."""
    binary = _fake_msprof.install(tmp_path)
    (tmp_path / "npu").mkdir()
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_NPU", str(tmp_path / "npu"))
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 0)
    program = tmp_path / "job.sh"
    program.write_text('for n in 0 1; do echo ok > "$FAKE_NPU/$n.process"; done; exit 4\n')
    return program


def test_a_dry_run_shows_the_exact_words_and_starts_nothing(command: Any, msprof: Path, tmp_path: Path) -> None:
    said: Said = command(
        "collect", "--with", "msprof", "--level", "deep", "--option", "aic-metrics=Memory", "--dry-run", "-o",
        tmp_path / "run", "--", "bash", msprof, "two words",
    )  # fmt: skip

    assert said.code == 0
    lines = said.out.splitlines()
    run = next(line for line in lines if line.startswith("run "))
    assert f"msprof --output={tmp_path}/run/trace --ascendcl=on" in run
    assert "--aic-metrics=Memory" in run
    assert run.endswith(f"sh {tmp_path}/run/collect/run.sh")
    assert any(f"bash {msprof} 'two words'" in line for line in lines)
    assert any("--export=on '--output=PROF_*'" in line for line in lines)
    assert not (tmp_path / "run").exists()
    calls = (tmp_path / "npu" / "calls.jsonl").read_text().splitlines()
    assert [json.loads(call)["words"] for call in calls] == [["--help"]]  # asked for its options


def test_a_profile_of_msprof_becomes_a_report_and_the_code_is_the_programs(
    command: Any, msprof: Path, tmp_path: Path
) -> None:
    said: Said = command(
        "collect", "--with", "msprof", "-o", tmp_path / "run", "--format", "json", "--lang", "zh", "--", "bash", msprof
    )

    assert said.code == 4
    assert "命令以退出码 4 结束" in said.err
    report = json.loads((tmp_path / "run" / "report" / "report.json").read_text("utf-8"))
    assert report["data_origin"] == "measured"
    assert len(report["ranks"]) == 2  # one PROF directory each


@pytest.mark.parametrize(("lang", "words"), [("en", "stopped by Ctrl-C while the report"), ("zh", "被 Ctrl-C 中断")])
def test_ctrl_c_while_the_report_is_written_names_the_run_directory(
    command: Any, msprof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lang: str, words: str
) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "report", stopped)
    said: Said = command(
        "collect", "--with", "msprof", "-o", tmp_path / "run", "--lang", lang, "--", "bash", msprof
    )
    assert said.code == 130
    assert words in said.err
    assert said.out.splitlines()[-1] == str(tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").is_file()


def test_a_mistake_ends_before_anything_is_made(command: Any, msprof: Path, tmp_path: Path) -> None:
    said: Said = command(
        "collect", "--with", "msprof", "--option", "aic-metrics=true", "-o", tmp_path / "run", "--", "bash", msprof
    )
    assert said.code == 2
    assert "hint: it takes PipeUtilization |" in said.err
    assert not (tmp_path / "run").exists()


def test_no_report_is_written_where_none_is_wanted(command: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 0)
    said: Said = command(
        "collect", "--with", "torch", "--no-report", "-o", tmp_path / "run", "--", sys.executable, "-c", "exit(9)"
    )
    assert said.code == 9
    assert said.out.strip() == str(tmp_path / "run")
    assert not (tmp_path / "run" / "report").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500 * 10**6), ("10GB", 10**10), ("2GiB", 2**31), ("1.5 gb", 1_500_000_000), ("1TiB", 2**40)],
)
def test_sizes(text: str, size: int) -> None:
    assert cli.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "10", "GB", "-1GB", "0GB", "1e3MB", "10 XB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        cli.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", (0,)), ("0,8-10", (0, 8, 9, 10)), ("3,1, 3", (1, 3)), ("all", None)]
)
def test_ranks(text: str, ranks: tuple[int, ...] | None) -> None:
    assert cli.ranks_of(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "5-3", "1,,2", "-1", "1 - 2"])
def test_what_is_no_list_of_ranks(text: str) -> None:
    with pytest.raises(UsageError, match="no list of ranks"):
        cli.ranks_of(text)


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", "the disk is full: the trace could not be written\n  hint: free space, or choose another -o"),
        ("zh", "磁盘已满：trace 未能写入\n  提示：释放空间，或用 -o 换一个目录"),
    ],
)
def test_a_problem_and_its_hint_are_in_the_language_asked_for(lang: Literal["en", "zh"], words: str) -> None:
    problem, hint = "the disk is full: the trace could not be written", "free space, or choose another -o"
    assert cli.problem_words(problem, hint, lang) == words
