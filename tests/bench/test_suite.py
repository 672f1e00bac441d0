"""A suite from YAML to its result file: order, failures, resume after a crash, counts, programs of others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ascend_perf.bench import scenario
from ascend_perf.bench import suite as suites
from ascend_perf.bench.scenario import figures_of_log, run_command
from ascend_perf.bench.suite import Progress, commit_of, latencies_of, run_suite, without_cut
from ascend_perf.bench.suite_file import External, LogMetric
from ascend_perf.cli import cli
from ascend_perf.cli.bench import results_words
from ascend_perf.errors import InputError, Interrupted, MachineError, UsageError
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import SPOILED, ResultSet
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.result_files import read_results
from tests.bench._fake import install

WARNS = (
    "name: warns\nruns: 1\nsnapshot: false\n"
    "benchmarks: [{workload: fake, device: cpu, variants: {a: {set: {fault: warns, at: build}}, b: {}}}]\n"
)
TWO = "name: two\nruns: 2\nbenchmarks: [{workload: fake, device: cpu, variants: {a: {}, b: {set: {width: 8}}}}]\n"
PROGRAM = """
name: other
runs: 3
snapshot: false
benchmarks:
  - name: train
    command: [%s, -c, "import os; n = int(os.environ['N']); print('step 1 ms\\\\n' * 8 + f'speed {n}')"]
    metrics: [{name: speed, regex: 'speed (\\d+)', unit: items_per_s}]
    steps: {regex: 'step (\\d+) ms'}
    variants: {slow: {env: {N: 10}}, fast: {env: {N: 20}}}
""" % sys.executable  # noqa: UP031  # braces of YAML


def machine(device: str) -> dict[str, Fact]:
    return {"kind": "cpu", "chip": "test", "driver": None}


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that stays, whatever happens in this repository meanwhile."""
    monkeypatch.setattr(suites, "commit_of", lambda folder: ("c", "b"))


def measure(text: str, folder: Path, **options: object) -> ResultSet:
    return run_suite(text, "s.yaml", folder.parent, folder, machine=machine, **options)  # type: ignore[arg-type]  # of run_suite


@pytest.mark.parametrize(("value", "notes"), [("1", [f"{SPOILED}ASCEND_LAUNCH_BLOCKING=1"]), ("0", [])])
def test_a_variable_with_which_no_time_counts_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, notes: list[str]
) -> None:
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", value)
    found = measure(PROGRAM.replace("runs: 3", "runs: 1"), tmp_path / "out").benchmarks
    assert [[note for note in one.notes if note.startswith(SPOILED)] for one in found] == [notes, notes]


@pytest.mark.parametrize(("variable", "notes"), [("ASCEND_GLOBAL_LOG_LEVEL", 1), ("OTHER", 0)])
def test_a_variable_of_one_variant_is_noted_of_that_one(tmp_path: Path, variable: str, notes: int) -> None:
    text = PROGRAM.replace("runs: 3", "runs: 1").replace("env: {N: 20}", f"env: {{N: 20, {variable}: '1'}}")
    slow, fast = measure(text, tmp_path / "out").benchmarks
    assert [note for note in slow.notes if note.startswith(SPOILED)] == []
    assert len([note for note in fast.notes if note.startswith(SPOILED)]) == notes


def starts(results: ResultSet) -> list[str]:
    """Variants in the order in which their runs were started."""
    runs = sorted((run.index, one.variant) for one in results.benchmarks for run in one.launches)
    assert [index for index, _ in runs] == list(range(len(runs)))
    return [variant for _, variant in runs]


@pytest.mark.torch
@pytest.mark.slow
def test_a_library_that_warned_is_noted_of_the_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    install(tmp_path, monkeypatch)
    loud, quiet = measure(WARNS, tmp_path / "out").benchmarks
    told = [[note for note in one.notes if "warned" in note] for one in (loud, quiet)]
    assert [len(notes) for notes in told] == [1, 0]
    assert told[0][0].startswith("a library warned: planted on rank 0 (fake_workload.py:")


@pytest.mark.torch
@pytest.mark.slow
def test_two_variants_of_a_workload_go_a_b_b_a_each_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    install(tmp_path, monkeypatch)
    told: list[Progress] = []

    results = measure(TWO, tmp_path / "out", on_progress=told.append)

    assert results == read_results(tmp_path / "out")
    assert starts(results) == ["a", "b", "b", "a"]
    a, b = results.benchmarks
    assert (a.name, a.device, a.config["width"], b.config["width"]) == ("fake/tiny/cpu/1/a", "cpu", 4, 8)
    for run in (*a.launches, *b.launches):
        assert (run.status, len(run.steps_ns), len(run.warmup_ns)) == ("complete", 3, 1)
        assert run.samples_ns == {"e2e": tuple(100 * (at + 1) for at in range(20))}
        assert run.folder is not None and (tmp_path / "out" / run.folder / "manifest.json").is_file()
        assert (tmp_path / "out" / run.folder / "telemetry.csv").is_file()
    # clone, sum and item of a step, the last with what it calls itself; work and memory as the fake says.
    assert (a.counts["host_ops"], a.counts["model_flops"], a.counts["memory_weights"]) == (3, 100, 16)
    assert (b.counts["host_ops"], b.counts["memory_weights"]) == (3, 32)
    assert a.op_stream is not None and "aten.clone.default(f32[4])" in (tmp_path / "out" / a.op_stream).read_text()
    assert [(one.planned.index, one.done, one.total) for one in told if not one.phase] == [
        (0, 0, 4), (1, 1, 4), (2, 2, 4), (3, 3, 4),
    ]  # fmt: skip
    assert {one.phase for one in told} >= {"", "warmup", "measured", "profiled"}
    assert next(one for one in told if one.planned.index == 3).left.seconds is not None


@pytest.mark.torch
@pytest.mark.slow
def test_two_machines_measure_a_suite_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    install(tmp_path, monkeypatch)
    suite = tmp_path / "s.yaml"
    suite.write_text("runs: 1\nbenchmarks: [{workload: fake, device: cpu, world_size: 2}]\n", "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = []
    for node in ("0", "1"):
        words = ["bench", str(suite), "--nnodes", "2", "--node-rank", node, "--master-port", str(min(port, 65435))]
        command = [sys.executable, "-m", "ascend_perf", *words, "-o", str(tmp_path / node)]
        machines.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [machine.communicate(timeout=300) for machine in machines]

    assert [machine.returncode for machine in machines] == [0, 0], said
    sides = [read_results(tmp_path / node).benchmarks[0] for node in ("0", "1")]
    assert [(one.world_size, len(one.launches), one.launches[0].status) for one in sides] == [(2, 1, "complete")] * 2
    # Both tell of the whole job.
    assert sides[0].launches[0].steps_ns == sides[1].launches[0].steps_ns
    done = CliRunner().invoke(cli, ["bench", str(suite), "--nnodes", "2", "--node-rank", "2"])
    assert isinstance(done.exception, UsageError) and done.exception.what == "--node-rank 2 of --nnodes 2"


def test_a_program_s_log_gives_metrics_and_steps(tmp_path: Path) -> None:
    results = measure(PROGRAM, tmp_path / "out")

    slow, fast = results.benchmarks
    assert starts(results) == ["slow", "fast", "fast", "slow", "slow", "fast"]
    assert {run.metrics[0].value for run in slow.launches} == {10.0}
    assert {run.metrics[0].value for run in fast.launches} == {20.0}
    assert slow.launches[0].steps_ns == (1_000_000,) * 8
    assert [(metric.name, metric.unit, metric.better) for metric in slow.launches[0].metrics] == [
        ("speed", "items_per_s", "higher"), ("step_time_median", "ns", "lower"),
    ]  # fmt: skip
    assert slow.config["env.N"] == "10"
    assert "speed 10" in (tmp_path / "out/runs/0000/log.txt").read_text("utf-8")
    assert results.fingerprint == machine("cpu")


@pytest.mark.parametrize(
    "told", ["N: 20, HOW: file", "N: 20, ASCEND_PERF_VIRTUAL_NPU: '1'"], ids=["by ascend-perf", "by its variables"]
)
def test_figures_of_a_command_on_virtual_devices_are_simulated(tmp_path: Path, told: str) -> None:
    # `ascend-perf run --device virtual-npu` makes the file; see test_virtual.py.
    tells = "import os; 'HOW' in os.environ and open(os.environ['ASCEND_PERF_SIMULATED_FILE'], 'w').close(); "
    program = PROGRAM.replace("import os; ", tells).replace("env: {N: 20}", f"env: {{{told}}}")

    measure(program.replace("runs: 3", "runs: 2"), tmp_path / "out")

    slow, fast = read_results(tmp_path / "out").benchmarks
    assert (slow.data_origin, fast.data_origin) == ("measured", "simulated")
    said = results_words(read_results(tmp_path / "out"), 4, "en").splitlines()
    assert [line.split() for line in said[1:]] == [
        ["train/slow", "speed", "median", "10", "/s", "of", "2", "runs"],
        ["train/fast", "speed", "median", "20", "/s", "(simulated)", "of", "2", "runs"],
    ]
    assert [one.status for one in fast.launches] == ["complete"] * 2
    assert sorted(path.name for path in (tmp_path / "out/runs/0001").iterdir() if path.suffix != ".csv") == ["log.txt"]


CRASH = '''
import os, sys
from pathlib import Path
from ascend_perf.bench import suite
from ascend_perf.bench.suite import run_suite

made = suite.scenario.run_command
def crash(body, folder):
    if folder.name == "0003":
        os._exit(9)  # as a machine that loses its power: nothing is tidied up
    return made(body, folder)
suite.scenario.run_command = crash
suite.commit_of = lambda folder: ("c", "b")
run_suite(Path(sys.argv[1]).read_text(), "s.yaml", Path("."), Path(sys.argv[2]),
          machine=lambda device: {"kind": "cpu", "chip": "test", "driver": None})
'''


def test_after_a_crash_finished_runs_are_kept_and_the_rest_is_made(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PROGRAM, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path / "s.yaml"), str(tmp_path / "out")], check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 9
    left = read_results(tmp_path / "out")
    assert sorted(run.index for one in left.benchmarks for run in one.launches) == [0, 1, 2]

    results = run_suite(PROGRAM, "s.yaml", Path("."), tmp_path / "out", machine=machine)

    assert starts(results) == ["slow", "fast", "fast", "slow", "slow", "fast"]
    kept = {run.index: run for one in left.benchmarks for run in one.launches}
    now = {run.index: run for one in results.benchmarks for run in one.launches}
    assert {index: now[index] for index in kept} == kept
    assert results.created == left.created
    # Nothing is left to do: no run is made again.
    assert run_suite(PROGRAM, "s.yaml", Path("."), tmp_path / "out", machine=machine) == results


def test_an_interrupted_run_is_kept_as_such_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(body: External, folder: Path) -> None:
        raise Interrupted("stopped by Ctrl-C")

    with monkeypatch.context() as patch:
        patch.setattr(scenario, "run_command", stopped)
        with pytest.raises(Interrupted):
            measure(PROGRAM, tmp_path / "out")
    left = read_results(tmp_path / "out").benchmarks[0].launches
    assert [(run.index, run.status, run.problem) for run in left] == [(0, "interrupted", "stopped by Ctrl-C")]

    results = measure(PROGRAM, tmp_path / "out")

    assert {run.status for one in results.benchmarks for run in one.launches} == {"complete"}


def test_a_signal_ends_the_program_and_keeps_what_is_done(tmp_path: Path) -> None:
    words = "import time; print('up', flush=True); time.sleep(600)"
    text = f"benchmarks: [{{name: long, command: [{sys.executable}, -c, \"{words}\"], steps: {{regex: '(x)'}}}}]"
    (tmp_path / "s.yaml").write_text(text, "utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "ascend_perf", "bench", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out")],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    log, deadline = tmp_path / "out/runs/0000/log.txt", time.monotonic() + 120
    while not (log.exists() and log.read_text("utf-8")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 143, said
    (run,) = read_results(tmp_path / "out").benchmarks[0].launches
    assert (run.status, run.problem) == ("interrupted", "stopped by SIGTERM")


def test_what_fails_is_written_and_given_up_after_two(tmp_path: Path) -> None:
    text = (
        "runs: 5\nbenchmarks:\n"
        f"- {{name: bad, command: [{sys.executable}, -c, 'import sys; sys.exit(\"no\")'], steps: {{regex: '(x)'}}}}\n"
        f"- {{name: good, runs: 1, command: [{sys.executable}, -c, 'print(3)'], "
        "metrics: [{name: three, regex: '(3)'}]}\n"
    )
    told: list[Progress] = []

    bad, good = measure(text, tmp_path / "out", on_progress=told.append).benchmarks

    assert [(run.status, run.problem) for run in bad.launches] == [("failed", "the command ended with code 1: no")] * 2
    assert [one.problem for one in told if one.problem] == ["the command ended with code 1: no"] * 2
    assert [run.index for run in good.launches] == [5]
    (tmp_path / "s.yaml").write_text(text, "utf-8")
    done = CliRunner().invoke(cli, ["bench", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "cli")])
    assert isinstance(done.exception, InputError) and "no run was complete: bad" in done.exception.what


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out, patch: PROGRAM.replace("runs: 3", "runs: 4"), "holds results of another suite"),
        (lambda out, patch: (out / "suite.yaml").unlink() or PROGRAM, "holds results of another suite"),
        (lambda out, patch: patch.setattr(sys.modules[__name__], "machine", lambda device: {"chip": "new"}) or PROGRAM,
         "was begun on another machine: chip was test, is new"),
        (lambda out, patch: patch.setattr(suites, "commit_of", lambda folder: ("c0ffee", "b")) or PROGRAM,
         "this is c0ffee"),
    ],
)  # fmt: skip
def test_results_of_something_else_are_not_gone_on_with(
    change: Callable[[Path, pytest.MonkeyPatch], str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measure(PROGRAM, tmp_path / "out")
    text = change(tmp_path / "out", monkeypatch)

    with pytest.raises(UsageError, match=message):
        measure(text, tmp_path / "out")

    assert read_results(tmp_path / "out") == before
    assert len(starts(measure(text, tmp_path / "out", force=True))) >= 6


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x", "utf-8")

    for force in (False, True):
        with pytest.raises(UsageError, match="is not empty and holds no results"):
            measure(PROGRAM, tmp_path / "out", force=force)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_run_folders_are_kept_as_asked(tmp_path: Path) -> None:
    first = measure("keep: first\n" + PROGRAM, tmp_path / "first")
    none = measure("keep: none\n" + PROGRAM, tmp_path / "none")

    assert [run.folder for run in first.benchmarks[0].launches] == ["runs/0000", None, None]
    assert sorted(path.name for path in (tmp_path / "first/runs").iterdir()) == ["0000", "0001"]
    assert {run.folder for one in none.benchmarks for run in one.launches} == {None}


def test_counts_that_differ_between_runs_are_no_counts() -> None:
    from ascend_perf.model.result import Benchmark

    one = Benchmark(name="n", workload="w", counts={"kernels": 5, "host_syncs": 1})

    assert suites._agreed(one, {"kernels": 5, "host_syncs": 2}, False) == ({"kernels": 5}, {"host_syncs"})
    after = replace(one, counts={"kernels": 5}, notes=(suites.VARIES + "host_syncs",))
    # It does not come back when a later run happens to agree.
    assert suites._agreed(after, {"kernels": 5, "host_syncs": 1}, False) == ({"kernels": 5}, {"host_syncs"})


def test_metrics_without_the_cut_are_those_of_the_steady_steps() -> None:
    def metric(name: str, value: float, unit: str = "none") -> Metric:
        return Metric(name=name, value=value, unit=unit, better="none")  # type: ignore[arg-type]  # a unit

    # 4 items a step; medians 200 ns of all, 100 ns of the steady ones.
    metrics = [
        metric("items_per_s", 4 / 200e-9, "items_per_s"), metric("items_per_s_per_device", 2 / 200e-9, "items_per_s"),
        metric("step_time_median", 200), metric("step_time_iqr", 1), metric("step_count", 5), metric("mfu", 0.2),
        metric("profiler_overhead", 0.5), metric("loss", 3),
    ]  # fmt: skip
    measured = (900, 800, 200, 100, 100)

    found = {one.name: one.value for one in without_cut(metrics, measured, 3)}

    assert found == pytest.approx({
        "items_per_s": 4 / 100e-9, "items_per_s_per_device": 2 / 100e-9, "step_time_median": 100, "step_time_iqr": 0,
        "step_count": 2, "mfu": 0.4, "profiler_overhead": 2.0, "loss": 3,
    })  # fmt: skip
    assert without_cut(metrics, measured, 0) == tuple(metrics)


def test_latencies_of_a_run_come_from_its_table(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/latencies.csv").write_text("name,rank,ns\nttft,0,5\nttft,1,7\ne2e,0,9\n", "utf-8")
    manifest = Manifest(
        workload="w", device="cpu", data_origin="measured", created="", files={"results": ("results/latencies.csv",)}
    )

    assert latencies_of(tmp_path, manifest) == {"ttft": (5, 7), "e2e": (9,)}
    assert latencies_of(tmp_path, replace(manifest, files={})) == {}


def test_commit_and_branch_come_from_git(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == (None, None)

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=tmp_path, check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-q", "-b", "trunk")
    (tmp_path / "f").write_text("1", "utf-8")
    git("add", "f")
    git("commit", "-q", "-m", "m")
    commit, branch = commit_of(tmp_path)
    assert commit is not None and len(commit) == 40 and branch == "trunk"
    (tmp_path / "f").write_text("2", "utf-8")
    assert commit_of(tmp_path) == (f"{commit}-dirty", "trunk")


def program(words: str, **options: object) -> External:
    return External(command=(sys.executable, "-c", words), **options)  # type: ignore[arg-type]  # of External


def test_takes_of_a_metric() -> None:
    log = "v 4\nv 1\nv 7\nv 2\n"
    for take, value in {"last": 2, "first": 4, "median": 3, "mean": 3.5, "min": 1, "max": 7, "sum": 14}.items():
        metric = LogMetric(name="v", regex=r"v (\d)", take=take)  # type: ignore[arg-type]  # a take
        assert figures_of_log(External(command=("x",), metrics=(metric,)), log).metrics[0].value == value


@pytest.mark.parametrize(("figure", "said"), [
    ("-5", "no figure in items_per_s is negative"), ("1e308", "which is no figure"), ("1e-308", "which is no figure"),
])
def test_a_figure_that_result_files_refuse_fails_its_run_alone(figure: str, said: str) -> None:
    metric = LogMetric(name="speed", regex=r"speed (\S+)", unit="items_per_s")
    with pytest.raises(InputError, match=said):
        figures_of_log(External(command=("x",), metrics=(metric,)), f"speed {figure}")


def test_an_expression_that_takes_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "SEARCH_S", 0.1)
    metric = LogMetric(name="speed", regex=r"(?:a+)+ (\d)$")
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(InputError, match=r"speed: its regex takes more than 0\.1\d* s on this log") as told:
        figures_of_log(External(command=("x",), metrics=(metric,)), "a" * 60 + "!")
    assert "repeat nothing that is repeated itself" in told.value.hint
    assert signal.getsignal(signal.SIGALRM) == before
    monkeypatch.undo()
    log = "speed 1\n" * 300_000
    metric = LogMetric(name="speed", regex=r"^speed (\d+)$", take="sum")
    assert figures_of_log(External(command=("x",), metrics=(metric,)), log).metrics[0].value == 300_000


def test_programs_that_fail_are_told_with_their_last_word(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no-such-program cannot be started: No such file"):
        run_command(External(command=("no-such-program",)), tmp_path)
    with pytest.raises(InputError, match="ended with signal SIGKILL: last word"):
        run_command(program("import os; print('last word', flush=True); os.kill(os.getpid(), 9)"), tmp_path)
    with pytest.raises(InputError, match=r"did not end within 0\.2 s"):
        run_command(program("import time; time.sleep(600)", timeout_s=0.2), tmp_path)
    with pytest.raises(InputError, match="speed: nothing in the log fits its regex"):
        run_command(program("print(1)", metrics=(LogMetric(name="speed", regex="speed (.)"),)), tmp_path)
    with pytest.raises(InputError, match=r"wrote no figures\.txt"):
        run_command(program("print(1)", log=tmp_path / "figures.txt"), tmp_path)
    with pytest.raises(InputError, match="steps: the log has a step of 0 ns"):
        run_command(program("print('t 0')", steps=(r"t (\d)", "ms")), tmp_path)


def test_what_a_program_left_running_is_ended(tmp_path: Path) -> None:
    words = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print('child', p.pid)"
    )

    outcome = run_command(program(words, metrics=(LogMetric(name="pid", regex=r"child (\d+)"),)), tmp_path)

    pid = int(outcome.metrics[0].value or 0)
    deadline = time.monotonic() + 60
    while _runs(pid) and time.monotonic() < deadline:  # it was killed, and the system takes its time
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_plan_is_shown_and_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PROGRAM.replace("name: train", "name: train\n    seconds: 10"), "utf-8")

    done = CliRunner().invoke(cli, ["bench", str(tmp_path / "s.yaml"), "--dry-run"])
    chinese = CliRunner().invoke(cli, ["bench", str(tmp_path / "s.yaml"), "--dry-run", "--lang", "zh"])

    assert done.output.splitlines()[0] == "other: 2 benchmarks, 6 runs, about 60 s"
    assert [line.split() for line in done.output.splitlines()[-7:-1]] == [
        ["1", "train/slow"], ["2", "train/fast"], ["3", "train/fast"], ["4", "train/slow"], ["5", "train/slow"],
        ["6", "train/fast"],
    ]  # fmt: skip
    assert "2 项基准测试，6 次运行，约 60 s" in chinese.output
    assert "cannot tell" in done.output.splitlines()[-1] and "无法判定" in chinese.output.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_the_command_measures_and_says_where_the_results_are(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PROGRAM, "utf-8")

    done = CliRunner().invoke(cli, ["bench", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out")])

    assert done.exit_code == 0, done.output
    assert "6 of 6 runs complete" in done.output
    assert "train/fast  speed  median 20 /s  of 3 runs" in done.output
    assert done.output.splitlines()[-1] == str(tmp_path / "out" / "results.json")
    assert json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))["suite"] == "other"
