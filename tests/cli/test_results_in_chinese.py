"""What result files, `history`, `gate` and `compare` refuse is said in Chinese where that is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.cli import cli
from ascend_perf.errors import AscendPerfError
from ascend_perf.reports.phrases import spoken
from ascend_perf.result_files import write_results
from tests.gate._results import benchmark, results

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is in the history extra")

Change = Callable[[dict], object]  # type: ignore[type-arg]  # JSON

CHINESE = re.compile("[\u4e00-\u9fff]")
DAMAGE: list[Change] = [
    lambda d: d.update(schema_version=2),
    lambda d: d.pop("schema_version"),
    lambda d: d.update(benchmarks=[]),
    lambda d: d.update(benchmarks={}),
    lambda d: d["benchmarks"].append(d["benchmarks"][0]),
    lambda d: d.update(created="yesterday"),
    lambda d: d.update(suite=""),
    lambda d: d.update(suite=7),
    lambda d: d["fingerprint"].update(chip=[1]),
    lambda d: d["benchmarks"][0].update(world_size=0),
    lambda d: d["benchmarks"][0].update(world_size=-1),
    lambda d: d["benchmarks"][0].update(world_size=2**70),
    lambda d: d["benchmarks"][0].update(data_origin="guessed"),
    lambda d: d["benchmarks"][0].update(op_stream="../x"),
    lambda d: d["benchmarks"][0]["launches"][0]["steps_ns"].append("10"),
    lambda d: d["benchmarks"][0]["launches"][1].update(index=0),
    lambda d: d["benchmarks"][0]["launches"][1].update(index=float("nan")),
    lambda d: d["benchmarks"][0]["launches"][0].update(steps_ns=[], metrics=[]),
    lambda d: d["benchmarks"][0]["launches"][0].update(
        metrics=[{"name": "m", "value": -1.0, "unit": "bytes", "better": "lower"}]
    ),
    lambda d: d["benchmarks"][0]["launches"][0].update(
        metrics=[{"name": "m", "value": "1", "unit": "bytes", "better": "lower"}]
    ),
]


def said(*words: str) -> AscendPerfError:
    """The error of a command."""
    error = CliRunner().invoke(cli, [*words, "--lang", "zh"]).exception
    assert isinstance(error, AscendPerfError), error
    return error


def is_chinese(error: AscendPerfError) -> bool:
    """Of a hint that is an option or a command alone there is nothing to say."""
    texts = [error.what, "" if error.hint.startswith(("--owner", "ascend-perf compare")) else error.hint]
    return all(CHINESE.search(spoken(text, "zh")) for text in texts if text)


@pytest.mark.parametrize("change", DAMAGE)
def test_what_is_wrong_in_a_result_file(change: Change, tmp_path: Path) -> None:
    path = write_results(tmp_path / "a.json", results())
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), "utf-8")
    error = said("gate", str(path), str(path))
    assert is_chinese(error), error


def test_what_commands_refuse(tmp_path: Path) -> None:
    good = str(write_results(tmp_path / "good.json", results()))
    made_up = str(write_results(tmp_path / "made_up.json", results(benchmark(origin="simulated"))))
    unlike = replace(benchmark("other/tiny/npu/1"), workload="other")
    other = str(write_results(tmp_path / "other.json", results(unlike)))
    (tmp_path / "x.ops.txt").write_text("ascend-perf op-stream 1\n", "utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    database = str(tmp_path / "h.sqlite")
    CliRunner().invoke(cli, ["history", "add", good, "--db", database], catch_exceptions=False)
    for words in (
        ("history", "list", "--db", str(tmp_path / "none.sqlite")),
        ("history", "list", "--db", good),
        ("history", "list", "--db", "mysql://x/y"),
        ("history", "add", made_up, "--db", database),
        ("history", "add", made_up, other, "--db", database),
        ("history", "show", "99", "--db", database),
        ("history", "prune", "--db", database),
        ("history", "accept", "1", "--owner", "li", "--db", database),
        ("history", "accept", "1@1", "--owner", " ", "--db", database),
        ("history", "accept", "99@99", "--owner", "li", "--db", database),
        ("history", "reopen", "1@1", "--db", database),
        ("history", "export", "-o", "x.xls", "--db", database),
        ("history", "site", "-o", str(tmp_path), "--db", database),
        ("history", "site", "-o", str(empty), "--commit", "abc", "--db", database),
        ("history", "baseline", "--suite", "none", "-o", str(tmp_path / "b.json"), "--db", database),
        ("gate", good, str(tmp_path / "none.json")),
        ("gate", good, str(empty)),
        ("gate", good, good, "--base-variant", "x"),
        ("compare", good),
        ("compare", good, made_up),
        ("compare", good, other),
    ):
        error = said(*words)
        assert is_chinese(error), (words, error, spoken(error.what, "zh"), spoken(error.hint, "zh"))


def test_no_baseline_is_said_in_chinese(tmp_path: Path) -> None:
    good = str(write_results(tmp_path / "good.json", results()))
    done = CliRunner().invoke(cli, ["gate", str(tmp_path / "none.json"), good, "--lang", "zh"])
    assert done.exit_code == 4 and "缺少基线：none.json 不存在" in done.output
