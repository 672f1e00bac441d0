"""Figures of training logs: the user's expressions, our readers, metrics by hand, series that are read again."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.cli import cli
from ascend_perf.collectors import log_figures
from ascend_perf.collectors._patience import Patience, patience
from ascend_perf.collectors.log_figures import (
    Figures,
    checked_expressions,
    expressions_of,
    metrics_of,
    read,
    write_jsonl,
)
from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import TRAINING_SERIES
from ascend_perf.parsers.discover import find_units, parsers

CONFIG = r"""
lines:
  - >-
    step (?P<step>\d+)/\d+ loss=(?P<loss>\S+) gnorm (?P<grad_norm>\S+)
    (?P<speed>[\d.,]+) tok/s in (?P<took>[\d.]+) s util (?P<gpu_util>\d+)
  - 'eval @ (?P<step>\d+): (?P<eval_loss>\S+)'
names: {speed: tokens_per_s, took: iteration_time_s}
"""


def line(step: int, loss: object, *, speed: str = "12,000.5", took: float = 0.25) -> str:
    return f"[rank0] INFO step {step}/99 loss={loss} gnorm 1.5 {speed} tok/s in {took} s util 90"


def figures(folder: Path, *lines: str, config: str = CONFIG) -> Figures:
    (folder / "lines.yaml").write_text(config, "utf-8")
    (folder / "own.log").write_text("\n".join(lines) + "\n", "utf-8")
    return read(folder / "own.log", expressions_of(folder / "lines.yaml"))


def test_groups_become_figures(tmp_path: Path) -> None:
    found = figures(tmp_path, "start", line(1, 9.5), "noise", line(2, "nan"), "eval @ 2: 8.25")

    table = found.table
    assert table.ints("step").tolist() == [1, 2]
    assert table.floats("loss")[0] == 9.5
    assert table.bools("loss_nonfinite").tolist() == [False, True]
    assert table.floats("grad_norm").tolist() == [1.5, 1.5]
    assert table.floats("items_per_s").tolist() == [12000.5, 12000.5]  # 12,000.5
    assert table.ints("iteration_ns").tolist() == [250_000_000, 250_000_000]
    assert table.floats("eval_loss")[1] == 8.25
    assert found.own == {"gpu_util": [(1, 90.0), (2, 90.0)]}
    assert found.lines == 3


def test_metrics_by_hand(tmp_path: Path) -> None:
    # Five first steps that compile, then six of 0.2 s and one of 0.9 s.
    times = [10.0] * 5 + [0.2] * 6 + [0.9]
    found = figures(
        tmp_path,
        *(line(n + 1, 9 - n / 10, took=took, speed=str(1000 * (n + 1))) for n, took in enumerate(times)),
    )  # fmt: skip

    values = {metric.name: metric.value for metric in metrics_of(found)}

    assert values["loss_last"] == pytest.approx(9 - 1.1)
    assert values["iteration_ns_mean"] == pytest.approx((6 * 0.2 + 0.9) / 7 * 1e9)
    assert values["iteration_ns_median"] == pytest.approx(0.2e9)
    assert values["items_per_s_mean"] == pytest.approx(np.mean([6000, 7000, 8000, 9000, 10000, 11000, 12000]))
    assert values["grad_norm_mean"] == 1.5
    assert values["gpu_util_mean"] == 90
    # Of few iterations all count.
    few = figures(tmp_path, *(line(n, 1, took=n) for n in (1, 2, 3)))
    assert {m.name: m.value for m in metrics_of(few)}["iteration_ns_mean"] == pytest.approx(2e9)
    assert {m.name: m.value for m in metrics_of(few, skip=1)}["iteration_ns_mean"] == pytest.approx(2.5e9)


def test_the_series_is_read_again_by_our_reader(tmp_path: Path) -> None:
    found = figures(tmp_path, line(1, 9.5), line(2, "inf"), line(3, 9.25))
    path = tmp_path / "training.jsonl"
    assert write_jsonl(path, found) == 3

    units, _ = find_units(path)
    (trace,) = parsers()["training_metrics"].parse(units[0])
    again = trace[TRAINING_SERIES]

    assert again.ints("step").tolist() == [1, 2, 3]
    assert again.floats("loss")[[0, 2]].tolist() == [9.5, 9.25]
    assert again.bools("loss_nonfinite").tolist() == [False, True, False]
    assert again.floats("items_per_s").tolist() == found.table.floats("items_per_s").tolist()
    assert again.ints("iteration_ns").tolist() == found.table.ints("iteration_ns").tolist()
    assert json.loads(path.read_text().splitlines()[0])["gpu_util"] == 90


@given(
    st.lists(
        st.tuples(st.floats(allow_infinity=False), st.floats(0, 1e6), st.integers(1, 10**6)), min_size=1, max_size=12
    )
)  # fmt: skip
def test_any_figures_come_back(rows: list[tuple[float, float, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [f"{n} | {loss!r} | {norm!r} | {ms}" for n, (loss, norm, ms) in enumerate(rows)]
        found = figures(
            folder, *texts,
            config=r"lines: ['(?P<step>\d+) \| (?P<loss>\S+) \| (?P<grad_norm>\S+) \| (?P<iteration_time_ms>\d+)']",
        )  # fmt: skip
        path = folder / "t.jsonl"
        write_jsonl(path, found)
        units, _ = find_units(path)
        (trace,) = parsers()["training_metrics"].parse(units[0])
        again = trace[TRAINING_SERIES]
    assert again.ints("iteration_ns").tolist() == [ms * 10**6 for _, _, ms in rows]
    for got, (loss, _, _) in zip(again.floats("loss").tolist(), rows, strict=True):
        assert (math.isnan(got) and math.isnan(loss)) or got == loss


def test_a_log_without_steps_counts_its_lines(tmp_path: Path) -> None:
    found = figures(tmp_path, "loss 3", "x", "loss 2", config=r"lines: ['loss (?P<loss>\S+)']")

    assert found.table.ints("step").tolist() == [1, 2]
    assert found.table.ints("rank").tolist() == [NULL, NULL]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[1]", "`lines` must be a list"),
        ("lines: []", "`lines` must be a list"),
        ("lines: ['(?P<loss>x']", "is no regular expression"),
        ("lines: ['loss (.*)']", "names no group"),
        ("lines: ['(?P<loss>x)']\nline: 3", "no key 'line'"),
        ("lines: ['(?P<loss>x)']\nnames: {los: loss}", "no expression has a group 'los'"),
        ("lines: ['(?P<loss>x)']\nfactors: {loss: many}", "the factor of 'loss' is no number"),
        ("lines: ['(?P<loss>x)']\nrank: -1", "`rank` must be a whole number"),
        ("lines: {", "is no YAML"),
        ("lines: ['(?P<loss>x)']\nrank: 16777216", "`rank` must be a whole number from 0 to 16777215"),
        ("lines: ['(?P<loss>x)']\nrank: 2020-13-45", "is no YAML: month must be in 1..12"),
        ("lines: ['(?P<loss>x)']\nrank: " + "9" * 5000, "is no YAML"),
        ("lines: ['(?P<loss>x)']\nrank: !!int abc", "is no YAML"),
        ("lines: ['(?P<loss>x{99999999999})']", "is no regular expression: the repetition number is too large"),
        ("lines: ['" + "(" * 3000 + "(?P<loss>x)" + ")" * 3000 + "']", "is no regular expression"),
    ],
)
def test_a_wrong_file_of_expressions_is_told(tmp_path: Path, config: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("`", "`")) as caught:
        figures(tmp_path, "x", config=config)
    assert said in caught.value.what


def test_nothing_that_matches_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line matches an expression"):
        figures(tmp_path, "nothing")
    with pytest.raises(InputError, match="1 lines match, none has a number"):
        figures(tmp_path, "mode fast", config=r"lines: ['mode (?P<mode>\w+)']")
    assert checked_expressions({"lines": ["(?P<loss>x)"], "factors": {"loss": "1e3"}}, "x").factors == {"loss": 1000.0}


MEGATRON = (
    " [2026-04-07 10:15:{second:02d}] iteration {step:8d}/    2000 | consumed samples:          320 | elapsed time per "
    "iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 158.3 | learning rate: 1.250000E-06 | lm loss: {loss} | "
    "loss scale: 1.0 | grad norm: 3.214 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def test_the_command_reads_a_log_of_megatron_without_expressions(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(MEGATRON.format(second=n, step=n + 1, ms=1000.0 + n, loss=9.0 - n) for n in range(4)))
    result = CliRunner().invoke(
        cli, ["read-log", str(log), "--format", "json", "--skip", "0"], standalone_mode=False, catch_exceptions=False
    )

    body = json.loads(result.stdout)
    values = {row["name"]: row["value"] for row in body["metrics"]}
    assert (body["reader"], body["rows"]) == ("training_log", 4)
    assert values["loss_last"] == 6.0
    assert values["iteration_ns_mean"] == pytest.approx(1001.5e6)
    assert values["flops_per_s_mean"] == pytest.approx(158.3e12)
    assert values["skipped"] == 0


@pytest.mark.parametrize("expression", [r"(?P<loss>(a+)+)$", r"^(?P<loss>(a|aa)+)$", r"(?P<loss>(?:a*)*)b"])
def test_an_expression_that_takes_years_is_ended_and_named_by_its_line(
    tmp_path: Path, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_figures, "patience", lambda: patience(0.05))
    log = tmp_path / "train.log"
    log.write_text("step 1\n" + "a" * 60 + "!\n")
    before = signal.getsignal(signal.SIGALRM)

    with pytest.raises(InputError, match=r"line 2: an expression takes too long"):
        read(log, checked_expressions({"lines": [expression]}, "own.yaml"))

    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_lines_that_go_on_are_not_ended() -> None:
    watched = Patience()
    for line in watched.of(["a", "b", "c"]):
        watched.check(0, None)  # the timer runs down once at each line
        assert line in "abc"
    with pytest.raises(InputError, match="line 3"):
        watched.check(0, None)
