"""Run a suite: fresh processes for each run, variants interleaved, results kept after each run, resumed.

DIR/results.json is the result file (docs/results.md), DIR/suite.yaml the suite as it was started, DIR/runs/NNNN the run
directory of run NNNN, DIR/streams the snapshots of operators.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from ascend_perf import __version__
from ascend_perf.bench import order, scenario, snapshot
from ascend_perf.bench.counts import counts_of
from ascend_perf.bench.fingerprint import fingerprint
from ascend_perf.bench.launch import Notice, Request, launch, terminated
from ascend_perf.bench.library_warnings import WARNED
from ascend_perf.bench.machines import Place, at_run, spread
from ascend_perf.bench.steady import steady_state
from ascend_perf.bench.suite_file import Cell, External, Served, Suite, suite_of
from ascend_perf.collectors.environment import masked
from ascend_perf.device.launch_settings import spoilers
from ascend_perf.errors import AscendPerfError, InputError, Interrupted, UsageError
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import MUST_AGREE, SPOILED, Benchmark, Launch, ResultSet
from ascend_perf.model.run import Fact, Manifest
from ascend_perf.result_files import FILE_NAME, read_results, write_results, write_text

SUITE_FILE: Final = "suite.yaml"
RUNS_FOLDER: Final = "runs"
STREAMS_FOLDER: Final = "streams"
GIVE_UP: Final = 2
"""Failures in a row, without a single success, after which the rest of a benchmark is left out. Status: assumed."""
TINY_S: Final = 20.0
"""What a run of a preset `tiny` takes before one was made. Status: measured, 7 to 15 s on two slow cores."""
VARIES: Final = "not the same in every run, so no count: "

_OF_STEP: Final = ("model_flops_per_s", "mfu", "hfu")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that is to be made."""

    index: int
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Left:
    """Time of the runs that are left."""

    seconds: float | None
    """Of those whose time is known; None: of none of them."""
    is_least: bool = False
    """That of some is not known: it takes longer."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Before a run: which one, how many, and the time that is left."""

    planned: Planned
    total: int
    done: int
    left: Left
    phase: str = ""
    problem: str = ""
    """After a run that failed: why."""


def plan_of(suite: Suite) -> tuple[Planned, ...]:
    """All runs in the order in which they are started: group by group, variants of a group interleaved."""
    cells = [
        cell for group in suite.groups for cell in order.interleaved([(cell, cell.runs) for cell in group])
    ]  # fmt: skip
    return tuple(Planned(index=index, cell=cell) for index, cell in enumerate(cells))


def expected_seconds(suite: Suite, known: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """What a run of each benchmark is expected to take: as measured, else as the suite says, else known of its preset.

    Args:
        suite: what is measured.
        known: durations of runs so far, by name of the benchmark.
    """
    found: dict[str, float | None] = {}
    for group in suite.groups:
        variants = [second for cell in group for second in known.get(cell.name, ())]
        for cell in group:
            # Another variant of the same work is the best guess where this one was not run yet.
            measured = known.get(cell.name) or (variants if cell.seconds is None else ())
            seconds = statistics.median(measured) if measured else cell.seconds
            found[cell.name] = TINY_S if seconds is None and cell.preset == "tiny" else seconds
    return found


def time_left(planned: Sequence[Planned], expected: Mapping[str, float | None]) -> Left:
    """Time of the runs that are left, of those that are known at least."""
    parts = [expected[one.cell.name] for one in planned]
    known = [part for part in parts if part is not None]
    return Left(seconds=sum(known) if known or not parts else None, is_least=len(known) < len(parts))


def durations_of(results: ResultSet) -> dict[str, list[float]]:
    """Times between the starts of runs in a row, by benchmark: a little more than a run takes."""
    started = sorted(
        (run.index, datetime.fromisoformat(run.started.replace("Z", "+00:00")), one.name)
        for one in results.benchmarks for run in one.launches if run.status == "complete"
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    for (index, begun, name), (after, then, _) in pairwise(started):
        if after == index + 1 and (seconds := (then - begun).total_seconds()) > 0:
            found.setdefault(name, []).append(seconds)
    return found


def run_suite(
    text: str,
    file: str,
    suite_folder: Path,
    folder: Path,
    *,
    force: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    machine: Callable[[str], dict[str, Fact]] = fingerprint,
    place: Place = Place(),  # noqa: B008  # it is frozen
) -> ResultSet:
    """Measure a suite into a folder; what is there of the same suite is kept, and the rest is measured.

    Args:
        text: the YAML of the suite.
        file: its name.
        suite_folder: where relative paths in it begin.
        folder: gets results.json and the runs.
        force: begin anew where the folder holds results.
        on_progress: told before each run, in each of its phases, and after one that failed.
        machine: gives the fingerprint.
        place: this machine among those of the job; each of them measures the suite into a folder of its own.

    Raises:
        InputError: the suite is wrong, or the folder cannot be written.
        UsageError: the folder holds something else: another suite, other results, another machine or commit; or the
            suite does not fit on several machines.
        Interrupted: Ctrl-C or SIGTERM; the run is kept as interrupted and is made again by the next call.
    """
    suite = spread(suite_of(text, file, suite_folder), place)
    facts = machine(_device_of(suite))
    commit, branch = commit_of(Path.cwd())
    results = _begin(suite, text, suite_folder, folder, force, facts, (commit, branch), place)
    attempt = _Attempt(suite, folder, results, on_progress)
    with terminated():
        attempt.run()
    return attempt.results


def commit_of(folder: Path) -> tuple[str | None, str | None]:
    """Commit and branch of the repository around a folder; a commit with changes on top ends in `-dirty`."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, errors="replace", timeout=30, check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None, None
    branch = git("symbolic-ref", "--short", "-q", "HEAD") or None
    return commit + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""), branch


def _device_of(suite: Suite) -> str:
    """The device whose machine is described: the first that a workload asks for."""
    return next((cell.device for cell in suite.cells if cell.device), "auto")


def _begin(
    suite: Suite, text: str, suite_folder: Path, folder: Path, force: bool, facts: Mapping[str, Fact],
    code: tuple[str | None, str | None], place: Place,
) -> ResultSet:  # fmt: skip
    """The results to go on from: those of the folder, or none yet."""
    try:
        if (folder / FILE_NAME).exists() and not force:
            return _resumed(suite, suite_folder, folder, facts, code[0], place)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file", hint="choose another -o")
        if folder.is_dir() and any(folder.iterdir()):
            if not (folder / FILE_NAME).exists():
                raise UsageError(f"{folder} is not empty and holds no results", hint="choose another -o")
            (folder / FILE_NAME).unlink()
            for name in (RUNS_FOLDER, STREAMS_FOLDER):
                shutil.rmtree(folder / name, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}", hint="choose another -o") from None
    write_text(folder / SUITE_FILE, text)
    benchmarks = tuple(
        Benchmark(
            name=cell.name, workload=cell.workload, preset=cell.preset, device=cell.device,
            world_size=cell.world_size, variant=cell.variant, config=cell.settings(),
        )
        for cell in suite.cells
    )  # fmt: skip
    results = ResultSet(
        suite=suite.name, created=_now(), tool_version=__version__, fingerprint=facts, commit=code[0], branch=code[1],
        benchmarks=benchmarks,
    )  # fmt: skip
    write_results(folder / FILE_NAME, results)
    return results


def _resumed(
    suite: Suite, suite_folder: Path, folder: Path, facts: Mapping[str, Fact], commit: str | None, place: Place
) -> ResultSet:
    """The results of the folder without interrupted runs.

    Raises:
        UsageError: they are not of this suite, machine or commit.
    """
    results = read_results(folder)
    hint = "choose another -o, or begin anew with --force"
    try:
        before = spread(suite_of((folder / SUITE_FILE).read_text("utf-8"), SUITE_FILE, suite_folder), place)
    except (OSError, UnicodeDecodeError, InputError, UsageError):
        before = None
    if before != suite or [one.name for one in results.benchmarks] != [cell.name for cell in suite.cells]:
        raise UsageError(f"{folder} holds results of another suite, or of this one before it was changed", hint=hint)
    for name in MUST_AGREE:
        was, now = results.fingerprint.get(name), facts.get(name)
        if was is not None and now is not None and was != now:
            raise UsageError(f"{folder} was begun on another machine: {name} was {was}, is {now}", hint=hint)
    if results.commit != commit:
        raise UsageError(f"{folder} was begun at commit {results.commit}, this is {commit}", hint=hint)
    return replace(
        results,
        benchmarks=tuple(
            replace(one, launches=tuple(run for run in one.launches if run.status != "interrupted"))
            for one in results.benchmarks
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """One run, and what it tells of its benchmark."""

    launch: Launch
    config: Mapping[str, Fact] = field(default_factory=dict)
    device: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_simulated: bool = False


class _Attempt:
    """The runs of a suite that are left."""

    def __init__(
        self, suite: Suite, folder: Path, results: ResultSet, on_progress: Callable[[Progress], None]
    ) -> None:
        self.results = results
        self._suite, self._folder, self._on_progress = suite, folder, on_progress
        self._plan = plan_of(suite)
        self._seconds = durations_of(results)

    def run(self) -> None:
        """Make them, one after the other, and take a snapshot of each benchmark at the end."""
        done = {run.index for one in self.results.benchmarks for run in one.launches}
        left = [planned for planned in self._plan if planned.index not in done]
        while left:
            planned = left.pop(0)
            if self._is_given_up(planned.cell):
                continue
            expected = expected_seconds(self._suite, self._seconds)
            progress = Progress(
                planned=planned, total=len(self._plan), done=len(self._plan) - len(left) - 1,
                left=time_left([planned, *left], expected),
            )  # fmt: skip
            self._on_progress(progress)
            begun = time.monotonic()
            try:
                ran = self._made(planned, progress)
            except (Interrupted, KeyboardInterrupt) as error:
                reason = error.what if isinstance(error, AscendPerfError) else "stopped by Ctrl-C"
                self._add(planned.cell, _Ran(launch=_lost(planned, "interrupted", reason)))
                raise
            self._seconds.setdefault(planned.cell.name, []).append(time.monotonic() - begun)
            self._add(planned.cell, ran)
            if ran.launch.status != "complete":
                self._on_progress(replace(progress, problem=ran.launch.problem))
        if self._suite.snapshot:
            self._take_snapshots()

    def _is_given_up(self, cell: Cell) -> bool:
        runs = self._benchmark(cell).launches
        return len(runs) >= GIVE_UP and not any(run.status == "complete" for run in runs)

    def _benchmark(self, cell: Cell) -> Benchmark:
        return next(one for one in self.results.benchmarks if one.name == cell.name)

    def _made(self, planned: Planned, progress: Progress) -> _Ran:
        """One run; that it failed is an outcome."""
        folder = self._folder / RUNS_FOLDER / f"{planned.index:04d}"
        try:
            # What lies there is of a run that was not written to the results: it did not come to its end.
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)
            if isinstance(planned.cell.body, Request):
                return self._workload(planned, planned.cell.body, folder, progress)
            folder.mkdir()
            return self._scenario(planned, planned.cell.body, folder)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
        except Interrupted:
            raise
        except AscendPerfError as error:
            where = self._relative(folder) if folder.is_dir() and any(folder.iterdir()) else None
            return _Ran(launch=replace(_lost(planned, "failed", masked(error.what)), folder=where))

    def _workload(self, planned: Planned, request: Request, folder: Path, progress: Progress) -> _Ran:
        started = _now()

        def told(notice: Notice) -> None:
            if notice.phase and notice.steps:
                self._on_progress(replace(progress, phase=notice.phase))

        _, manifest = launch(at_run(request, planned.index), folder=folder, force=True, on_notice=told)
        counts, notes = counts_of(folder, manifest)
        warm, measured = manifest.timings_ns.get("warmup", ()), manifest.timings_ns.get("measured", ())
        cut, steady_notes = _cut(measured)
        run = Launch(
            index=planned.index, started=started, status="complete",
            metrics=without_cut(manifest.metrics, measured, cut), steps_ns=measured[cut:],
            warmup_ns=(*warm, *measured[:cut]), samples_ns=latencies_of(folder, manifest),
            folder=self._kept(planned.cell, folder),
        )  # fmt: skip
        config = {name: value for name, value in manifest.config.items() if _is_fact(value)}
        warned = (note for note in manifest.notes if note.startswith(WARNED))
        return _Ran(
            launch=run, config=config, device=manifest.device, counts=counts,  # type: ignore[arg-type]  # checked by _is_fact
            notes=(*notes, *steady_notes, *warned, *_spoiled(manifest.environment, manifest.device)),
        )  # fmt: skip

    def _scenario(self, planned: Planned, body: External | Served, folder: Path) -> _Ran:
        started = _now()
        outcome = (
            scenario.run_command(body, folder) if isinstance(body, External) else scenario.run_load(body, folder)
        )
        cut, notes = _cut(outcome.steps_ns)
        metrics = outcome.metrics
        if outcome.steps_ns and not any(metric.name == "step_time_median" for metric in metrics):
            median = statistics.median(outcome.steps_ns[cut:])
            metrics += (Metric(name="step_time_median", value=median, unit="ns", better="lower"),)
        run = Launch(
            index=planned.index, started=started, status="complete", metrics=metrics,
            steps_ns=outcome.steps_ns[cut:], warmup_ns=outcome.steps_ns[:cut], samples_ns=outcome.samples_ns,
            folder=self._kept(planned.cell, folder),
        )  # fmt: skip
        own = dict(body.variables) if isinstance(body, External) else {}
        spoiled = _spoiled({**os.environ, **own}, None)  # what such a command runs on is not known
        return _Ran(
            launch=run, config=planned.cell.settings(), notes=(*outcome.notes, *notes, *spoiled),
            is_simulated=outcome.is_simulated,
        )

    def _kept(self, cell: Cell, folder: Path) -> str | None:
        is_first = not any(run.status == "complete" for run in self._benchmark(cell).launches)
        if self._suite.keep == "all" or (self._suite.keep == "first" and is_first):
            return self._relative(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def _relative(self, folder: Path) -> str:
        return folder.relative_to(self._folder).as_posix()

    def _add(self, cell: Cell, ran: _Ran) -> None:
        """The results with this run, on disk."""
        benchmark = self._benchmark(cell)
        is_first = not any(run.status == "complete" for run in benchmark.launches)
        if ran.launch.status == "complete":
            counts, varying = _agreed(benchmark, ran.counts, is_first)
            notes = [note for note in benchmark.notes if not note.startswith(VARIES)]
            if varying:
                notes.append(VARIES + ", ".join(sorted(varying)))
            benchmark = replace(
                benchmark, counts=counts, device=ran.device or benchmark.device,
                config=ran.config if is_first else benchmark.config,
                notes=tuple(dict.fromkeys([*notes, *ran.notes])),
                data_origin="simulated" if ran.is_simulated else benchmark.data_origin,
            )  # fmt: skip
        benchmark = replace(benchmark, launches=(*benchmark.launches, ran.launch))
        self._replace(benchmark)

    def _replace(self, benchmark: Benchmark) -> None:
        self.results = replace(
            self.results,
            benchmarks=tuple(benchmark if one.name == benchmark.name else one for one in self.results.benchmarks),
        )
        write_results(self._folder / FILE_NAME, self.results)

    def _take_snapshots(self) -> None:
        for number, cell in enumerate(self._suite.cells):
            benchmark, body = self._benchmark(cell), cell.body
            is_there = benchmark.op_stream is not None and (self._folder / benchmark.op_stream).is_file()
            if not isinstance(body, Request) or is_there or body.model_config is not None:
                continue
            if not any(run.status == "complete" for run in benchmark.launches):
                continue
            path = self._folder / STREAMS_FOLDER / f"{number:04d}.ops.txt"
            path.parent.mkdir(exist_ok=True)
            try:
                snapshot.take(
                    snapshot.Request(
                        workload=cell.workload, preset=body.preset, overrides=body.overrides, data=body.data,
                        variables=body.variables, world_size=cell.world_size,
                    ),
                    path,
                )
            except (UsageError, InputError) as error:
                note = f"no snapshot of operators: {masked(error.what)}"
                self._replace(replace(benchmark, notes=tuple(dict.fromkeys([*benchmark.notes, note]))))
                continue
            self._replace(replace(benchmark, op_stream=self._relative(path)))


def _agreed(benchmark: Benchmark, counts: Mapping[str, int], is_first: bool) -> tuple[dict[str, int], set[str]]:
    """Counts that every run gave alike, and the names of those that differed at some time."""
    before = next((note for note in benchmark.notes if note.startswith(VARIES)), "")
    varying = set(before.removeprefix(VARIES).split(", ")) - {""}
    if is_first:
        return dict(counts), varying
    for name in benchmark.counts.keys() | counts.keys():
        if benchmark.counts.get(name) != counts.get(name):
            varying.add(name)
    return {name: value for name, value in benchmark.counts.items() if name not in varying}, varying


def _spoiled(variables: Mapping[str, str], device: str | None) -> tuple[str, ...]:
    """A note where a variable makes the times of a run meaningless."""
    found = spoilers(variables, None if device is None else device.split(":")[0])
    return (SPOILED + ", ".join(found),) if found else ()


def _cut(steps_ns: Sequence[int]) -> tuple[int, tuple[str, ...]]:
    """Measured steps before the steady state, and what a reader must know."""
    found = steady_state(steps_ns)
    if found.is_reached:
        return found.cut, ()
    return found.cut, (
        f"no steady state within {len(steps_ns)} measured steps in some run: take more warm-up steps",
    )  # fmt: skip


def without_cut(metrics: Sequence[Metric], measured: Sequence[int], cut: int) -> tuple[Metric, ...]:
    """The metrics of a run as they are without its first `cut` measured steps.

    Rates and shares of a peak are inverse to the median step, which is what `bench.figures` makes them from.
    """
    if not cut:
        return tuple(metrics)
    from ascend_perf.bench.figures import interquartile_range

    steady = measured[cut:]
    median = statistics.median(steady)
    ratio = statistics.median(measured) / median
    rate = next((one.name for one in metrics if one.unit == "items_per_s"), "")
    inverse = {rate, f"{rate}_per_device", *_OF_STEP}
    exact = {
        "step_time_median": median, "step_time_iqr": interquartile_range(steady), "step_count": len(steady),
    }  # fmt: skip
    changed = []
    for one in metrics:
        value = one.value
        if one.name in exact:
            value = exact[one.name]
        elif value is not None and one.name in inverse:
            value *= ratio
        elif value is not None and one.name == "profiler_overhead":
            value = (1 + value) * ratio - 1
        changed.append(replace(one, value=value))
    return tuple(changed)


def latencies_of(folder: Path, manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Single latencies of a run directory by name (results/latencies.csv: name, rank, ns); none where it has none."""
    import csv

    path = "results/latencies.csv"
    if path not in manifest.files.get("results", ()):
        return {}
    found: dict[str, list[int]] = {}
    try:
        with open(folder / path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (value := int(row["ns"])) > 0:
                    found.setdefault(row["name"], []).append(value)
    except (OSError, KeyError, ValueError, TypeError):
        return {}
    return {name: tuple(values) for name, values in found.items()}


def _lost(planned: Planned, status: str, problem: str) -> Launch:
    assert status in ("failed", "interrupted")
    return Launch(
        index=planned.index, started=_now(), status="failed" if status == "failed" else "interrupted", problem=problem
    )


def _is_fact(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
