"""What counts as a step where the program was not changed; and figures of steps that were timed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.bench.collected import processes_of
from ascend_perf.collectors import _step_times
from ascend_perf.collectors._activation import SWITCH_AFTER, Steps


class Count:
    """A session that counts."""

    def __init__(self) -> None:
        self.steps = 0
        self.said: list[str] = []

    def step(self) -> None:
        self.steps += 1

    def restart_counting(self) -> None:
        self.steps = 0

    def told(self, event: str, **facts: Any) -> None:
        self.said.append(str(facts["what"]))


class Thing:
    """An optimizer or a data set."""


def steps(step_of: Any = "auto") -> tuple[Steps, Count]:
    count = Count()
    return Steps(count, step_of), count  # type: ignore[arg-type]  # stand-in


def test_the_optimizer_that_steps_first_counts() -> None:
    heard, count = steps()
    first, second = Thing(), Thing()
    heard._built()
    for _ in range(3):
        heard._stepped(first)
        heard._stepped(second)  # of the other network, or the wrapper around the first
    assert count.steps == 3


def test_an_optimizer_that_was_put_away_no_longer_counts() -> None:
    heard, count = steps()
    first, second = Thing(), Thing()
    heard._stepped(first)
    for _ in range(SWITCH_AFTER + 10):
        heard._stepped(second)
    assert count.steps == 1 + 10

    heard, count = steps()
    first = Thing()
    heard._stepped(first)
    del first  # it is gone: the next one counts at once
    heard._stepped(second)
    assert count.steps == 2


def test_a_batch_ends_when_the_next_is_asked_for_and_epochs_make_no_step() -> None:
    heard, count = steps()
    data = Thing()
    for _ in range(2):
        for _ in range(3):
            heard._batch_asked(data)
            heard._batch_given(data)
        heard._batch_asked(data)  # the end of the epoch: no batch follows
    assert count.steps == 6


def test_a_second_loader_makes_no_steps() -> None:
    heard, count = steps()
    train, check = Thing(), Thing()
    for data in (train, check, train, check, train):
        heard._batch_asked(data)
        heard._batch_given(data)
    assert count.steps == 2


def test_batches_before_the_optimizer_was_built_do_not_count() -> None:
    heard, count = steps()
    data, optimizer = Thing(), Thing()
    for _ in range(4):
        heard._batch_asked(data)
        heard._batch_given(data)
    heard._built()
    for _ in range(2):
        heard._batch_asked(data)
        heard._batch_given(data)
        heard._stepped(optimizer)
    assert count.steps == 2


def test_from_the_first_call_on_only_calls_count() -> None:
    heard, count = steps()
    data, optimizer = Thing(), Thing()
    heard._built()
    heard._stepped(optimizer)
    for _ in range(3):
        heard.called()
        heard._stepped(optimizer)
        heard._batch_asked(data)
    assert count.steps == 3


def test_batches_of_a_data_set_that_cannot_be_referred_to_count() -> None:
    heard, count = steps("data")
    data = [1, 2]
    for _ in range(3):
        heard._batch_asked(data)
        heard._batch_given(data)
    assert count.steps == 2


def test_a_mistake_of_ours_is_told_once_and_the_program_goes_on() -> None:
    heard, count = steps()

    def broken(which: object) -> None:
        raise ZeroDivisionError("x")

    tell = heard._guarded(broken)
    tell(Thing())
    tell(Thing())
    assert count.said == ["steps are no longer counted: ZeroDivisionError: x"]


def test_figures_of_steps() -> None:
    times = {"before": [900, 800, 101, 99, 103], "recorded": [150, 149, 151], "after": [100, 102, 98, 500]}

    figures = {metric.name: metric.value for metric in _step_times.metrics_of(times)}

    # After: 98, 100, 102, 500: median 101, quartiles 99.5 and 201.5.
    assert figures == {
        "steps_per_s": pytest.approx(1e9 / 101), "step_time_median": 101, "step_time_iqr": 102, "step_count": 4,
        "profiler_overhead": pytest.approx(150 / 101 - 1),
    }  # fmt: skip


def test_without_steps_afterwards_the_second_half_of_those_before_counts() -> None:
    times = {"before": [900, 800, 101, 99, 103], "recorded": [150, 149, 151], "after": [7]}
    figures = {metric.name: metric.value for metric in _step_times.metrics_of(times)}
    assert (figures["step_time_median"], figures["step_count"]) == (101, 3)
    assert _step_times.metrics_of({"before": [], "recorded": [5], "after": []}) == ()
    few = _step_times.metrics_of({"before": [], "recorded": [150, 150], "after": [100, 100, 100]})
    assert "profiler_overhead" not in {metric.name for metric in few}


def test_a_step_of_a_job_is_as_long_as_on_its_slowest_rank() -> None:
    ranks = [{"before": [1, 5, 9], "after": [2]}, {"before": [3, 4], "after": []}]
    assert _step_times.slowest(ranks) == {"before": [3, 5], "after": [2]}


def test_a_python_without_ascend_perf_starts_and_says_so(tmp_path: Path) -> None:
    from ascend_perf.collectors.collect_plan import INJECTED

    hook = INJECTED / "sitecustomize.py"
    source = f"""
import runpy, sys
sys.modules["ascend_perf"] = None  # as if it were not installed
runpy.run_path({str(hook)!r})
print("the program runs")
"""
    variables = {**os.environ, "ASCEND_PERF_COLLECT": str(tmp_path / "settings.json")}

    done = subprocess.run([sys.executable, "-c", source], env=variables, capture_output=True, text=True, check=True)

    assert done.stdout == "the program runs\n"
    (process,) = processes_of(tmp_path)
    assert process.problems == [("the Python of the program has no ascend_perf", "pip install ascend-perf into it")]
    assert (tmp_path / "python-seen").exists()


def test_settings_that_cannot_be_read_do_not_end_the_program(tmp_path: Path) -> None:
    from ascend_perf.collectors.collect_plan import INJECTED

    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(INJECTED)}
    variables["ASCEND_PERF_COLLECT"] = str(tmp_path / "absent.json")

    done = subprocess.run(
        [sys.executable, "-c", "print('runs')"], env=variables, capture_output=True, text=True, check=True
    )

    assert done.stdout == "runs\n"
    assert "names no settings of ours" in processes_of(tmp_path)[0].problems[0][0]


def test_the_hook_is_shipped() -> None:
    from ascend_perf.collectors.collect_plan import INJECTED
    from tests.conftest import ROOT

    assert [path.name for path in INJECTED.glob("*.py")] == ["sitecustomize.py"]
    # It lies in a folder that is no package: without this it would not be in a wheel.
    assert '"injected/*"' in (ROOT / "pyproject.toml").read_text("utf-8")
