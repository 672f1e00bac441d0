"""What a collector costs: a run without it and one with it are compared, by steps on one clock where there are steps.

The programs of these tests set the clock that the hook reads themselves, so that a planted slowdown is found exactly.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench import collect as bench
from ascend_perf.bench import overhead
from ascend_perf.bench.collect import Collected, collect
from ascend_perf.bench.overhead import StepLines, Timed, drift_of, metrics_of
from ascend_perf.bench.samplers import Samplers
from ascend_perf.collectors.collect_plan import CollectRequest, Here
from ascend_perf.collectors.device_telemetry import DeviceSample
from ascend_perf.errors import UsageError
from tests._support import Said
from tests.collectors import _fake_msprof, _fake_torch_npu

MS = 10**6
S = 10**9


def values(found: tuple[Any, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in found}


# ---- lines of an output ---------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_lines_that_count_steps_give_their_distances() -> None:
    clock = Clock()
    lines = StepLines(clock)
    for now, block in (
        (0, b"loading 3 files\nstep 1 loss 9.8\n"),
        (10, b"step 1 loss 9.8 (rank 1)\nst"),  # the same step of another rank; a line that is not whole yet
        (20, b"ep 2 loss 9.7\n"),
        (50, b" [2026-04-07 10:15:32] iteration        5/    2000 | consumed samples:  320 |\n"),  # three steps later
        (60, b"Step: 6\rStep: 7\r"),  # a bar, both at once
        (65, b"eval step 1\n"),  # counts anew
        (95, b"eval step 2\n"),
    ):
        clock.now = now
        lines.take(block)
    assert lines.times == [20, 10, 10, 0, 30]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000)), max_size=30), st.integers(1, 7))
def test_whatever_the_pieces_of_the_output_are(steps: list[tuple[int, int]], size: int) -> None:
    """Each line in pieces, all of which come at the time of its end."""
    clock, wanted = Clock(), []
    lines = StepLines(clock)
    number = 1
    lines.take(b"step 1\n")
    for more, wait in steps:
        clock.now += wait
        number += more
        wanted.append(wait // more)
        text = f"iter {number} ok\n".encode()
        for at in range(0, len(text), size):
            lines.take(text[at : at + size])
    assert lines.times == wanted


@given(st.lists(st.binary(max_size=50)))
def test_no_output_makes_it_fail(blocks: list[bytes]) -> None:
    lines = StepLines(Clock())
    for block in blocks:
        lines.take(block)
    assert all(one >= 0 for one in lines.times)


# ---- comparison -----------------------------------------------------------------------------------------------------


def test_the_recorded_steps_stand_against_the_steps_behind_the_skipped_ones() -> None:
    """Before them a program compiles and fills caches."""
    alone = Timed(steps={"before": [900, 500, 100, 100, 110, 90, 100]})
    under = Timed(steps={"before": [900, 500], "recorded": [150, 140, 160], "after": [100]})

    found, basis = metrics_of(alone, under, is_msprof=False)

    assert basis == "steps"
    assert values(found) == {
        "steps_per_s": 1e9 / 100, "step_time_median": 100, "step_time_iqr": 0, "step_count": 5,
        "profiler_overhead": pytest.approx(0.5), "profiler_overhead_low": pytest.approx(0.45),
        "profiler_overhead_high": pytest.approx(0.55),
    }  # fmt: skip


def test_steps_without_the_collector_in_both_runs_tell_of_other_work_on_the_machine() -> None:
    alone = Timed(steps={"before": [900, 800, 100, 100]})
    assert drift_of(alone, Timed(steps={"after": [100] * 3})) is None  # two steps in the first half are start-up
    alone = Timed(steps={"before": [900, 800, 700, 100, 100, 100]})
    assert drift_of(alone, Timed(steps={"before": [900], "recorded": [500] * 9, "after": [150, 130, 900]})) == 0.5
    assert drift_of(alone, Timed(steps={"after": [100, 100]})) is None
    assert drift_of(Timed(), Timed(steps={"after": [100] * 3})) is None


def test_under_msprof_the_same_steps_of_both_runs_are_compared_without_the_start() -> None:
    alone = Timed(steps={"before": [900, 500, 300, 100, 100, 100, 100]})
    under = Timed(steps={"before": [900, 500, 300, 130, 130, 130]})  # one step less

    found, basis = metrics_of(alone, under, is_msprof=True)

    assert basis == "steps"
    assert values(found)["step_count"] == 3
    assert values(found)["profiler_overhead"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("delay_s", "duration_s", "count"),
    [
        (14, 10, 5),  # 15 to 23 s: the slow steps that begin at 15, 16.5, 18, 19.5 and 21 s
        (14, None, 9),  # to the end: those, the one that begins at 22.5 s, and three that are as fast as ever
        (14, 4, None),  # 15 to 17 s hold one whole step: less than three give no figure
    ],
)
def test_delay_and_duration_choose_the_steps_that_msprof_recorded(
    delay_s: int, duration_s: int | None, count: int | None
) -> None:
    """A second at either end is left out: msprof does not tell when it began."""
    began = 1_790_000_000 * S
    under = Timed(steps={"before": [S] * 4 + [3 * S // 2] * 6 + [S] * 3}, first_ns=began + 11 * S)

    found, basis = metrics_of(
        Timed(steps={"before": [S] * 20}), under, is_msprof=True, began_ns=began, delay_s=delay_s, duration_s=duration_s
    )

    assert basis == (None if count is None else "steps")
    assert values(found).get("step_count") == count
    assert values(found).get("profiler_overhead") == (None if count is None else pytest.approx(0.5))


@pytest.mark.parametrize(
    ("alone", "under", "basis", "value"),
    [
        (Timed(lines=[90, 10, 10, 10, 10, 10]), Timed(lines=[90, 12, 12, 12, 12, 12]), "lines", 0.2),
        (Timed(lines=[10, 10], wall_ns=1000), Timed(lines=[12, 12], wall_ns=1310), "command", 0.31),
        (Timed(wall_ns=1000), Timed(wall_ns=800), "command", -0.2),
        (Timed(wall_ns=1000), Timed(), None, None),
        (Timed(steps={"before": [0] * 9}), Timed(steps={"before": [1] * 9}), None, None),
    ],
)
def test_without_steps_lines_and_else_the_whole_command_is_compared(
    alone: Timed, under: Timed, basis: str | None, value: float | None
) -> None:
    found, said = metrics_of(alone, under, is_msprof=True)
    assert said == basis
    name = "command_overhead" if basis == "command" else "profiler_overhead"
    assert values(found).get(name) == (None if value is None else pytest.approx(value))


@given(
    st.lists(st.integers(1, 10**9), min_size=6, max_size=40), st.lists(st.integers(1, 10**9), min_size=6, max_size=40)
)
def test_the_ratio_and_its_scatter_by_brute_force(alone: list[int], under: list[int]) -> None:
    found = values(metrics_of(Timed(steps={"before": alone}), Timed(steps={"before": under}), is_msprof=True)[0])
    count = min(len(alone), len(under))
    plain, seen = alone[count // 2 : count], sorted(under[count // 2 : count])
    median = statistics.median(plain)
    assert found["profiler_overhead"] == pytest.approx(statistics.median(seen) / median - 1)

    def quartile(share: float) -> float:
        place = share * (len(seen) - 1)
        low = int(place)
        return seen[low] + (place - low) * (seen[min(low + 1, len(seen) - 1)] - seen[low])

    assert found["profiler_overhead_low"] == pytest.approx(quartile(0.25) / median - 1)
    assert found["profiler_overhead_high"] == pytest.approx(quartile(0.75) / median - 1)


# ---- runs -----------------------------------------------------------------------------------------------------------

TORCH = {
    "__init__.py": "from types import SimpleNamespace\nfrom torch import optim\n"
    "npu = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, synchronize=lambda: None)\n",
    "optim/__init__.py": "class Optimizer:\n    def __init__(self, *given): pass\n",
    "utils/__init__.py": "", "utils/data/__init__.py": "",
    "utils/data/dataloader.py": "class _BaseDataLoaderIter:\n    def __next__(self): raise StopIteration\n",
}  # fmt: skip
"""As much of torch as the hook looks at: a program that takes no seconds to start."""

TRAINS = """
import os, pathlib, sys, time
now = [0]
time.perf_counter_ns = lambda: now[0]
import torch
pathlib.Path(os.environ["FAKE_NPU"], "0.process").write_text("ok")
class SGD(torch.optim.Optimizer):
    def step(self, number):
        profiler = sys.modules.get("torch_npu.profiler")
        on = "PROFILER_SAMPLECONFIG" in os.environ or any(not one.done for one in getattr(profiler, "CALLS", ()))
        now[0] += 10**9 if number < 4 else 15 * 10**6 if on else 10 * 10**6
optimizer = SGD([])
for number in range(20):
    optimizer.step(number)
"""

Run = Callable[..., Collected]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(source, **request) records a program under msprof, after a run without it."""
    (tmp_path / "npu").mkdir()
    binary = _fake_msprof.install(tmp_path)
    site = tmp_path / "site"
    for name, text in TORCH.items():
        (site / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (site / "torch" / name).write_text(text)
    monkeypatch.setenv("FAKE_NPU", str(tmp_path / "npu"))
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(site))
    for name in ("ASCEND_TOOLKIT_HOME", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bench, "MIN_FREE_BYTES", 0)

    def record(source: str = TRAINS, *, here: Here | None = None, **given: Any) -> Collected:
        program = tmp_path / "train.py"
        program.write_text(source)
        here = here or Here(variables=dict(os.environ), has_npu=True, msprof=binary)
        wanted = {"collector": "msprof", "measures_overhead": True, **given}
        request = CollectRequest(command=(sys.executable, str(program)), **wanted)
        return collect(request, folder=tmp_path / "run", force=True, here=here)

    return record


def test_a_planted_slowdown_under_msprof_is_found(run: Run, tmp_path: Path) -> None:
    done = run()

    assert (done.code, done.manifest.status, done.has_trace) == (0, "complete", True)
    assert done.manifest.config["overhead_basis"] == "steps"
    found = values(done.manifest.metrics)
    # 19 times of 20 steps; the second half of them, behind the start-up: 10 ms without msprof, 15 ms with it.
    assert {name: value for name, value in found.items() if "step" in name or "profiler" in name} == {
        "steps_per_s": 100, "step_time_median": 10 * MS, "step_time_iqr": 0, "step_count": 10,
        "profiler_overhead": pytest.approx(0.5), "profiler_overhead_low": pytest.approx(0.5),
        "profiler_overhead_high": pytest.approx(0.5),
    }  # fmt: skip
    calls = [json.loads(line) for line in (tmp_path / "npu" / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 1  # the run without it is without it
    assert {path.name for path in done.folder.iterdir()} - {"telemetry.csv"} == {"collect", "manifest.json", "trace"}
    assert [path.name for path in (done.folder / "collect").iterdir()] == ["collected.json"]


def test_a_planted_slowdown_of_torch_npu_is_found(run: Run, tmp_path: Path) -> None:
    _fake_torch_npu.install(tmp_path / "site")
    here = Here(variables=dict(os.environ), has_npu=True, has_cann=True, torch_npu_version="2.7.1.post8")
    source = TRAINS.replace("import torch\n", "import torch, torch_npu\n", 1)

    done = run(source, here=here, collector="torch-npu", skip=6, steps=4)

    assert (done.code, done.manifest.status) == (0, "complete"), done.manifest.notes
    assert done.manifest.config["overhead_basis"] == "steps"
    found = values(done.manifest.metrics)
    assert found["profiler_overhead"] == pytest.approx(0.5)
    assert found["step_count"] == 14  # 19 times, without those of the steps that are skipped


def test_a_program_without_steps_is_compared_by_its_lines(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program goes on when its line was heard, so that each has a time of its own however loaded the machine is."""
    heard = tmp_path / "heard"
    durs = iter((15, 10))  # of the run under msprof, whose lines are built first, and of the one without

    class Answering(StepLines):
        def __init__(self) -> None:
            self._clock, self._dur = Clock(), next(durs)
            super().__init__(self._clock)
            self._heard = 0

        def take(self, block: bytes) -> None:
            self._clock.now += self._dur * block.count(b"loss")
            super().take(block)
            self._heard += block.count(b"loss")
            heard.write_text(str(self._heard))

    monkeypatch.setattr(overhead, "StepLines", Answering)
    done = run(
        "import os, pathlib, time\n"
        "pathlib.Path(os.environ['FAKE_NPU'], '0.process').write_text('ok')\n"
        f"heard = pathlib.Path({str(heard)!r})\n"
        "heard.write_text('0')\n"
        "for number in range(12):\n"
        "    print('step', number, 'loss 9.8', flush=True)\n"
        "    end = time.monotonic() + 60\n"
        "    while heard.read_text() != str(number + 1) and time.monotonic() < end: time.sleep(0.001)\n"
    )

    assert done.manifest.config["overhead_basis"] == "lines"
    found = values(done.manifest.metrics)
    assert (found["step_count"], found["step_time_median"]) == (6, 10)
    assert found["profiler_overhead"] == pytest.approx(0.5)


def test_a_program_that_tells_nothing_is_compared_as_a_whole(run: Run) -> None:
    done = run("import os, pathlib\npathlib.Path(os.environ['FAKE_NPU'], '0.process').write_text('ok')\n")
    assert done.manifest.config["overhead_basis"] == "command"
    found = values(done.manifest.metrics)
    assert "profiler_overhead" not in found
    assert found["command_overhead"] > -1


def test_a_command_that_fails_without_the_collector_is_recorded_and_not_compared(run: Run) -> None:
    done = run(TRAINS + "sys.exit(0 if 'PROFILER_SAMPLECONFIG' in os.environ else 3)\n")
    assert (done.code, done.manifest.status, done.has_trace) == (0, "complete", True)
    assert "the overhead is not measured: without the collector, the command ended with code 3" in done.manifest.notes
    assert "overhead_basis" not in done.manifest.config
    assert "profiler_overhead" not in values(done.manifest.metrics)


def test_a_command_that_fails_under_the_collector_is_not_compared(run: Run) -> None:
    done = run(TRAINS + "sys.exit(3 if 'PROFILER_SAMPLECONFIG' in os.environ else 0)\n")
    assert done.code == 3
    assert "overhead_basis" not in done.manifest.config


@pytest.mark.parametrize(("slower", "is_noted"), [(1, False), (2, True)])
def test_a_machine_that_was_busy_in_one_run_makes_the_overhead_doubtful(
    run: Run, tmp_path: Path, slower: int, is_noted: bool
) -> None:
    _fake_torch_npu.install(tmp_path / "site")
    here = Here(variables=dict(os.environ), has_npu=True, has_cann=True, torch_npu_version="2.7.1.post8")
    source = TRAINS.replace("import torch\n", "import torch, torch_npu\n", 1).replace(
        "else 10 * 10**6", f"else ({slower} if getattr(profiler, 'CALLS', ()) else 1) * 10 * 10**6"
    )
    done = run(source, here=here, collector="torch-npu", skip=6, steps=4)
    noted = [note for note in done.manifest.notes if "the overhead is doubtful" in note]
    assert len(noted) == is_noted
    assert all(note.startswith("steps without the collector took 2.00 times as long") for note in noted)


def test_ctrl_c_in_the_first_run_ends_both(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = overhead.Alone(signals=(signal.SIGINT,))
    monkeypatch.setattr(overhead, "run_alone", lambda *given, **named: alone)
    done = run()
    assert (done.code, done.manifest.status, done.manifest.problem) == (130, "interrupted", "stopped by Ctrl-C")
    assert not (tmp_path / "npu" / "calls.jsonl").exists()


def test_use_of_the_devices_is_that_of_the_run_without_the_profiler(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AI Core use reads 0 while a profiler is on: the reference wants it from a run of its own."""
    now = time.time_ns()
    told = [
        DeviceSample(time_ns=now - second * S, phase="", source="npu-smi", device="npu0", use_ratio=ratio)
        for second, ratio in ((9, 0.88), (8, 0.0), (7, 0.86))
    ]
    alone = overhead.Alone(began_ns=now - 10 * S, device_samples=told)
    monkeypatch.setattr(overhead, "run_alone", lambda *given, **named: alone)
    under = DeviceSample(time_ns=now + 10**6 * S, phase="", source="npu-smi", device="npu0", use_ratio=0.0)
    monkeypatch.setattr(Samplers, "device_samples", property(lambda self: [under]))

    done = run()

    with open(done.folder / "device_telemetry.csv", newline="", encoding="utf-8") as file:
        rows = [(row["phase"], row["use_ratio"], row["invalid"]) for row in csv.DictReader(file)]
    assert rows == [
        ("alone", "0.88", ""), ("alone", "0.0", ""), ("alone", "0.86", ""), ("profiled", "", "0 while a profiler runs")
    ]  # fmt: skip


def test_the_report_and_the_terminal_print_it(run: Run, command: Any, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAINS)
    said: Said = command(
        "collect", "--with", "msprof", "--measure-overhead", "--format", "md", "-o", tmp_path / "run", "--",
        sys.executable, program,
    )  # fmt: skip

    assert said.code == 0, said.err
    assert "ascend-perf: the command runs without the collector first, to compare" in said.err
    assert "ascend-perf: overhead: profiler: msprof standard: 50 % (50 % to 50 %); median step under" in said.err
    report = (tmp_path / "run" / "report" / "report.md").read_text("utf-8")
    assert "| profiler: msprof standard | 50 % (50 % to 50 %) |" in report
    assert "against the median of 10 steps of a run of its own without it" in report


def test_a_plan_says_that_there_are_two_runs(command: Any, tmp_path: Path) -> None:
    said: Said = command("collect", "--with", "torch", "--measure-overhead", "--dry-run", "--", "python", "train.py")
    assert "first      the command without the collector, to compare" in said.out
    said = command("collect", "--device", "virtual-npu", "--measure-overhead", "--dry-run", "--", "python", "train.py")
    assert said.code == UsageError.exit_code
    assert "a virtual NPU has no time of its own to measure" in said.err


@pytest.mark.slow
@pytest.mark.torch
def test_torch_on_the_cpu_is_compared_with_a_run_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "own_loop.py"
    program.write_text(
        "import torch\ntorch.set_num_threads(1)\nmodel = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)\n"
        "for step in range(30):\n"
        "    optimizer.zero_grad(); model(torch.randn(8, 64)).sum().backward(); optimizer.step()\n"
    )
    wanted = CollectRequest(
        command=(sys.executable, str(program)), collector="torch", measures_overhead=True, steps=10
    )  # fmt: skip
    done = collect(wanted, folder=tmp_path / "run", here=Here(variables=dict(os.environ), has_npu=False))
    assert (done.code, done.has_trace, done.manifest.config["overhead_basis"]) == (0, True, "steps")
    found = values(done.manifest.metrics)
    assert found["step_count"] == 29 - 4  # of the run without it, behind the skipped ones
    assert found["profiler_overhead_low"] <= found["profiler_overhead"] <= found["profiler_overhead_high"]
