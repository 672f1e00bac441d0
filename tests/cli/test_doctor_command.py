"""`ascend-perf doctor`: its texts, JSON, exit codes and the report of an issue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.cli import cli
from ascend_perf.collectors import _machine
from ascend_perf.errors import InputError
from tests.collectors._ascend_tree import Install, build
from tests.collectors._npu_smi_texts import A2


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """The command looks at a machine with an old CANN."""
    made = Install(chips=A2, cann="8.3.RC1", variables={"USER": "mzhang"})
    machine = build(tmp_path / "root", made)
    monkeypatch.setattr(_machine, "here", lambda: machine)
    return made


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["doctor", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def test_text_in_both_languages_with_cures(install: Install) -> None:
    code, text = run()
    assert code == 0  # looked
    rows = text.splitlines()
    (at,) = [n for n, row in enumerate(rows) if row.startswith("ERROR")]
    assert rows[at].split(maxsplit=2)[1:] == [
        "versions", "torch_npu 2.9.0 (release 7.3.0) needs CANN 8.5.0, here is 8.3.RC1",
    ]  # fmt: skip
    assert rows[at + 1].strip().startswith("-> install CANN 8.5.0")
    assert rows[-1] == "1 errors, 0 warnings"

    _, chinese = run("--lang", "zh")
    assert "错误  配套" in chinese
    assert chinese.splitlines()[-1] == "1 个错误，0 个警告"


def test_exit_codes(install: Install) -> None:
    assert run("--strict")[0] == 1
    assert run("--need", "npu", "--need", "msprof")[0] == 0
    assert run("--need", "npu", "--need", "atc", "--strict")[0] == 4


def test_json_holds_every_line_with_both_languages(install: Install) -> None:
    body = json.loads(run("--format", "json", "--need", "atc")[1])

    assert (body["schema_version"], body["lacking"]) == (1, ["atc"])
    assert body["facts"]["SoC"] == "Ascend910B2"
    (line,) = [line for line in body["lines"] if line["level"] == "error"]
    assert line["name"] == "versions"
    assert line["status"] == "clash"
    assert line["said"]["zh"].startswith("torch_npu 2.9.0")


def test_the_report_of_an_issue_is_written_and_an_absent_log_is_told(install: Install, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("mzhang started\nfailed\n", "utf-8")
    out = tmp_path / "issue.md"

    assert run("--issue-report", str(out), "--log", str(log), "--expected", "it runs")[0] == 0
    text = out.read_text("utf-8")
    assert "<user> started\nfailed" in text
    assert "error: versions" in text

    with pytest.raises(InputError, match="cannot be read"):
        run("--log", str(tmp_path / "absent.log"))
