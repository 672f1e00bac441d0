"""`ascend-perf history` from the outside: what is printed, written, refused, and with which exit code."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ascend_perf.cli.history import command
from ascend_perf.errors import AscendPerfError, InputError, UsageError
from ascend_perf.result_files import read_results
from tests.history import _samples


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A history of 30 nights with a slowdown of 6 % from night 20 on."""
    path = tmp_path / "history.sqlite"
    _run(path, "add", *map(str, _samples.nights(tmp_path / "nights", 30, step_at=20, ratio=1.06)))
    return path


def _run(database: Path, *arguments: str, code: int = 0, lang: str = "en") -> Result:
    done = CliRunner().invoke(command, ["--db", str(database), "--lang", lang, *arguments])
    if isinstance(done.exception, AscendPerfError):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_adding_says_what_became_of_each_file(tmp_path: Path) -> None:
    database = tmp_path / "h.sqlite"
    good = _samples.write(tmp_path / "good", _samples.results())
    bad = tmp_path / "bad.json"
    bad.write_text("[]")

    assert _run(database, "add", str(good)).output == "results.json: added as result 1\n"
    assert _run(database, "add", str(good.parent), lang="zh").output == "good：已存在，即结果 1\n"
    with pytest.raises(InputError, match="1 of 2 files were not added"):
        _run(database, "add", str(bad), str(_samples.write(tmp_path / "b", _samples.results(1))))
    assert "2   " in _run(database, "list").output  # the good one of the two is there
    with pytest.raises(UsageError, match="no http or https address"):
        _run(database, "add", str(good), "--report-url", "javascript:alert(1)")


def test_the_list_and_one_result(history: Path) -> None:
    listed = _run(history, "list", "--limit", "2").output.splitlines()

    assert listed[0].split() == ["result", "time", "suite", "branch", "commit", "machine", "benchmarks", "runs"]
    assert [line.split()[0] for line in listed[1:]] == ["30", "29", "28"]
    assert listed[3] == "28 more; --limit shows them"
    shown = _run(history, "show", "30").output
    assert "Ascend 910B3" in shown
    assert "11.18 GiB" in shown
    assert "结果" in _run(history, "show", "30", lang="zh").output
    with pytest.raises(UsageError, match="no result set 99"):
        _run(history, "show", "99")


def test_changes_are_told_accepted_and_gate_a_nightly_job(history: Path) -> None:
    told = _run(history, "changes", "--metric", "step_time_median", "--fail", code=1).output

    name, word, *_ = told.split()
    assert word == "regression"
    assert name.endswith("@21")
    assert _samples.results(20).commit[:12] in told  # type: ignore[index]  # it has one
    assert _run(history, "changes", "--commit", "ffff", "--fail").output.startswith("no change point")
    _run(history, "accept", name, "--owner", "li", "--note", "wider layers")
    assert _run(history, "changes", "--metric", "step_time_median", "--fail").output == "no change point in 1 trends\n"
    everything = _run(history, "changes", "--metric", "step_time_median", "--all").output
    assert "accepted by li, wider layers" in everything
    assert "已接受：li，wider layers" in _run(history, "changes", "--all", lang="zh").output
    _run(history, "reopen", name)
    _run(history, "changes", "--metric", "step_time_median", "--fail", code=1)
    with pytest.raises(UsageError, match="nothing was said"):
        _run(history, "reopen", name)
    with pytest.raises(UsageError, match="names no change"):
        _run(history, "accept", "the last one", "--owner", "li")


def test_a_baseline_is_a_result_file_with_its_snapshots(tmp_path: Path) -> None:
    database = tmp_path / "h.sqlite"
    base = _samples.write(tmp_path / "base", _samples.results(op_stream="ops/a.ops"))
    (tmp_path / "base" / "ops").mkdir()
    (tmp_path / "base" / "ops" / "a.ops").write_bytes(b"aten::mm")
    _run(database, "add", str(base))
    head = _samples.write(tmp_path / "head", _samples.results(1))
    target = tmp_path / "ci" / "base.json"

    done = _run(database, "baseline", "--branch", "main", "--like", str(head), "-o", str(target))

    assert done.output.splitlines()[-1] == str(target)
    assert read_results(target) == read_results(base)
    assert (tmp_path / "ci" / "ops" / "a.ops").read_bytes() == b"aten::mm"
    with pytest.raises(UsageError, match="is there already"):
        _run(database, "baseline", "-o", str(target))
    with pytest.raises(InputError, match="no measured result of suite 'nightly', branch 'dev'"):
        _run(database, "baseline", "--branch", "dev", "--like", str(head), "-o", str(tmp_path / "x.json"))


def test_the_commit_under_judgement_is_no_baseline_of_itself(tmp_path: Path) -> None:
    database = tmp_path / "h.sqlite"
    paths = [_samples.write(tmp_path / str(n), _samples.results(n)) for n in range(3)]
    _run(database, "add", *map(str, paths))

    _run(database, "baseline", "--like", str(paths[2]), "-o", str(tmp_path / "base.json"))

    assert read_results(tmp_path / "base.json").commit == _samples.results(1).commit


def test_pruning_says_first_and_does_it_when_told(history: Path) -> None:
    assert _run(history, "prune", "--keep", "10").output == "would remove 20 of 30 results; --yes removes them\n"
    assert _run(history, "prune", "--keep", "10", "--yes").output == "removed 20 of 30 results\n"
    assert _run(history, "prune", "--older-than", "100000", "--yes").output == "removed 0 of 10 results\n"
    with pytest.raises(UsageError, match="say which results"):
        _run(history, "prune", "--yes")


def test_exported_result_files_make_the_same_history(history: Path, tmp_path: Path) -> None:
    _run(history, "export", "-o", str(tmp_path / "files"))
    again = tmp_path / "again.sqlite"
    _run(again, "add", *sorted(map(str, (tmp_path / "files").iterdir())))
    _run(history, "export", "-o", str(tmp_path / "a.csv"))
    _run(again, "export", "-o", str(tmp_path / "b.csv"))

    def rows(name: str) -> set[tuple[str, ...]]:
        with open(tmp_path / name, encoding="utf-8", newline="") as file:
            own = ("result_set", "series")  # numbers of the one history
            return {tuple(row[key] for key in row if key not in own) for row in csv.DictReader(file)}

    assert len(rows("a.csv")) == 30 * 4
    assert rows("a.csv") == rows("b.csv")


def test_values_as_json_and_parquet(history: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    _run(history, "export", "--metric", "kernels", "-o", str(tmp_path / "a.json"))
    _run(history, "export", "--metric", "kernels", "-o", str(tmp_path / "a.parquet"))

    rows = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert [row["value"] for row in rows] == [420.0] * 30
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows
    with pytest.raises(UsageError, match="ending that we do not write"):
        _run(history, "export", "-o", str(tmp_path / "a.docx"))
    with pytest.raises(UsageError, match="is there already"):
        _run(history, "export", "-o", str(tmp_path / "a.json"))


def test_a_spreadsheet_runs_no_name(tmp_path: Path) -> None:
    database = tmp_path / "h.sqlite"
    _run(database, "add", str(_samples.write(tmp_path, _samples.results(names=("=cmd|'/c calc'!A1",)))))

    _run(database, "export", "--metric", "kernels", "-o", str(tmp_path / "a.csv"))

    assert ",'=cmd|" in (tmp_path / "a.csv").read_text("utf-8")


def test_the_place_in_a_trend_may_be_that_of_the_commit(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()

    def git(*arguments: str, day: int = 1) -> str:
        when = f"2026-03-{day:02d}T00:00:00+00:00"
        named = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
                 for what, value in (("DATE", when), ("NAME", "a"), ("EMAIL", "a@b"))}  # fmt: skip
        done = subprocess.run(["git", "-C", str(checkout), *arguments], env={**os.environ, **named}, check=True,
                              capture_output=True, text=True)  # fmt: skip
        return done.stdout.strip()

    git("init", "-q")
    commits = []
    for day in (1, 2):
        git("commit", "-q", "--allow-empty", "-m", "x", day=day)
        commits.append(git("rev-parse", "HEAD"))
    database = tmp_path / "h.sqlite"
    # The old commit is measured last.
    for number, commit in ((0, commits[1]), (1, commits[0])):
        path = _samples.write(tmp_path / str(number), _samples.results(number, commit=commit))
        _run(database, "add", "--git", str(checkout), str(path))

    listed = [line.split()[0] for line in _run(database, "list").output.splitlines()[1:]]

    assert listed == ["1", "2"]  # the newest commit first
    with pytest.raises(InputError, match="is not in checkout"):
        _run(database, "add", "--git", str(checkout), str(_samples.write(tmp_path, _samples.results(2))))
    option = _samples.write(tmp_path, _samples.results(3, commit="--all"))
    with pytest.raises(InputError, match="names no commit"):
        _run(database, "add", "--git", str(checkout), str(option))


def test_names_from_results_cannot_steer_the_terminal(tmp_path: Path) -> None:
    database = tmp_path / "h.sqlite"
    name = "::error::n ##[error] \x1b[31mred\x07"
    hostile = _samples.results(names=(name,), suite="a\x1b]0;title\x07", branch="x\ny", fingerprint={"::error::k": "v"})
    _run(database, "add", str(_samples.write(tmp_path, hostile)))

    text = _run(database, "list").output + _run(database, "show", "1").output

    assert "\x1b" not in text and "\x07" not in text
    assert "error::k" in text and not [line for line in text.splitlines() if line.strip().startswith("::")]
    assert "# #[error]" in text
    assert len(_run(database, "list").output.splitlines()) == 2


def test_where_the_history_is_may_be_said_behind_the_subcommand(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.sqlite", tmp_path / "other.sqlite"
    file = str(_samples.write(tmp_path / "good", _samples.results()))

    assert _run(other, "add", file, "--db", str(mine), "--lang", "zh").output == "results.json：已添加为结果 1\n"
    assert mine.is_file()
    assert not other.exists()
    assert CliRunner().invoke(command, ["list", "--db", str(mine)]).output.splitlines()[1].split()[0] == "1"
    for name, one in command.commands.items():
        assert "--db HISTORY" in CliRunner().invoke(command, [name, "--help"]).output, one


def test_there_is_no_history_yet(tmp_path: Path) -> None:
    for arguments in (("list",), ("changes",), ("site", "-o", str(tmp_path / "site"))):
        with pytest.raises(InputError, match="there is no history"):
            _run(tmp_path / "none.sqlite", *arguments)
    assert not (tmp_path / "none.sqlite").exists()
