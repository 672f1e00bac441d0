"""Measure a suite of benchmarks, each in several fresh processes, into a result file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import InputError
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.bench.suite import Progress
    from ascend_perf.bench.suite_file import Suite
    from ascend_perf.model.result import Benchmark, ResultSet

_SAY: Final = {
    "en": {
        "run": "run {} of {} · {} · {} left", "unknown": "time unknown", "failed": "failed: {}",
        "plan": "{}: {} benchmarks, {} runs, {}", "about": "about {}", "partly": "time not known before the first runs",
        "order": "order", "runs": "{} runs", "each": "{} each", "each_unknown": "time of a run unknown",
        "done": "{} of {} runs complete", "no_runs": "no run was complete: {}", "median": "median {}",
        "of": "of {} runs",
        "more": "... and {} more",
    },
    "zh": {
        "run": "第 {} 次运行，共 {} 次 · {} · 剩余 {}", "unknown": "时间未知", "failed": "失败：{}",
        "plan": "{}：{} 项基准测试，{} 次运行，{}", "about": "约 {}", "partly": "首轮运行前无法估计时间",
        "order": "顺序", "runs": "{} 次运行", "each": "每次 {}", "each_unknown": "单次时间未知",
        "done": "{} / {} 次运行完成", "no_runs": "没有完成的运行：{}", "median": "中位数 {}", "of": "{} 次运行",
        "more": "……另有 {} 次",
    },
}  # fmt: skip
MAX_ORDER: Final = 60
"""Runs whose order the plan shows."""


@click.command()
@click.argument("suite")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), help="Folder of the results.  [default: bench-NAME]"
)
@click.option("--dry-run", is_flag=True, help="Show what would be run, in which order and about how long; run nothing.")
@click.option("--force", is_flag=True, help="Begin anew where the folder holds results; else they are gone on with.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(suite: str, folder: Path | None, dry_run: bool, force: bool, lang: Literal["en", "zh"]) -> None:
    """Measure SUITE, a YAML file or the name of a suite that is shipped (see `ascend-perf claims`).

    Each run has fresh processes; variants take turns (A B B A). Results are written after each run: the same command
    goes on after a crash or Ctrl-C. `compare`, `gate` and `history` read DIR/results.json.

    \b
    ascend-perf bench suite.yaml -o results/today
    ascend-perf bench suite.yaml --dry-run
    ascend-perf bench clue-910b-vs-a100 -o results/910b
    """
    from ascend_perf.bench.suite import plan_of, run_suite
    from ascend_perf.bench.suite_file import find_suite, read_suite

    say = _SAY[lang]
    path = find_suite(suite)
    read = read_suite(path)
    if dry_run:
        click.echo(plan_words(read, _durations(folder), lang))
        return
    where = folder or Path(f"bench-{read.name}")
    with _show.working(read.name) as update:
        shown: list[int] = []

        def on_progress(progress: Progress) -> None:
            if progress.problem:
                said = say["failed"].format(progress.problem)
                click.echo(f"ascend-perf: {progress.planned.cell.name}: {said}", err=True)
                return
            text = progress_words(progress, lang)
            update(text)
            if not sys.stderr.isatty() and progress.planned.index not in shown:
                shown.append(progress.planned.index)
                click.echo(text, err=True)

        results = run_suite(
            path.read_text("utf-8-sig"), path.name, path.parent, where, force=force, on_progress=on_progress
        )
    click.echo(results_words(results, len(plan_of(read)), lang))
    click.echo(str(where / "results.json"))
    if lost := [one.name for one in results.benchmarks if not any(run.status == "complete" for run in one.launches)]:
        raise InputError(say["no_runs"].format(", ".join(lost)), hint=str(where / "results.json"))


def _durations(folder: Path | None) -> dict[str, list[float]]:
    """Times between the starts of runs in a row that a folder holds, by benchmark: a little more than a run takes."""
    from datetime import datetime
    from itertools import pairwise

    from ascend_perf.result_files import read_results

    if folder is None or not (folder / "results.json").exists():
        return {}
    started = sorted(
        (run.index, datetime.fromisoformat(run.started.replace("Z", "+00:00")), one.name)
        for one in read_results(folder).benchmarks for run in one.launches if run.status == "complete"
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    for (index, begun, name), (after, then, _) in pairwise(started):
        if after == index + 1 and (seconds := (then - begun).total_seconds()) > 0:
            found.setdefault(name, []).append(seconds)
    return found


def plan_words(suite: Suite, known: Mapping[str, list[float]], lang: Literal["en", "zh"]) -> str:
    """The plan of a suite: benchmarks with their runs and times, and the order."""
    from ascend_perf.bench.suite import expected_seconds, left_seconds, plan_of

    say = _SAY[lang]
    plan, expected = plan_of(suite), expected_seconds(suite, known)
    total = left_seconds(plan, expected)
    time = say["partly"] if total is None else say["about"].format(format_quantity(total, "s"))
    rows = []
    for cell in suite.cells:
        seconds = expected[cell.name]
        each = say["each_unknown"] if seconds is None else say["each"].format(format_quantity(seconds, "s"))
        rows.append((cell.name, say["runs"].format(cell.runs), each))
    about = suite.about.get(lang)
    lines = [say["plan"].format(suite.name, len(suite.cells), len(plan), time), *([about] if about else []),
             _show.columns(rows, indent="  "), f"{say['order']}:"]  # fmt: skip
    lines += [f"  {planned.index + 1:>3}  {planned.cell.name}" for planned in plan[:MAX_ORDER]]
    if len(plan) > MAX_ORDER:
        lines.append("  " + say["more"].format(len(plan) - MAX_ORDER))
    return "\n".join(lines)


def progress_words(progress: Progress, lang: Literal["en", "zh"]) -> str:
    """One line: which run, how many, the time that is left."""
    say = _SAY[lang]
    left = say["unknown"] if progress.left_s is None else say["about"].format(format_quantity(progress.left_s, "s"))
    text = say["run"].format(progress.done + 1, progress.total, progress.planned.cell.name, left)
    return f"{text} · {progress.phase}" if progress.phase else text


def results_words(results: ResultSet, planned: int, lang: Literal["en", "zh"]) -> str:
    """A line per benchmark: the median over runs of its throughput, or of what it has, and the runs behind it."""
    say = _SAY[lang]
    complete = sum(run.status == "complete" for one in results.benchmarks for run in one.launches)
    rows = [(one.name, *_figure(one, lang)) for one in results.benchmarks]
    return "\n".join([say["done"].format(complete, planned), _show.columns(rows, indent="  ")])


def _figure(one: Benchmark, lang: Literal["en", "zh"]) -> tuple[str, str, str]:
    import statistics

    say = _SAY[lang]
    runs = [run for run in one.launches if run.status == "complete"]
    values: dict[str, list[float]] = {}
    units = {metric.name: metric.unit for run in runs for metric in run.metrics}
    for run in runs:
        for metric in run.metrics:
            if metric.value is not None and metric.rank is None:
                values.setdefault(metric.name, []).append(metric.value)
    name = next((name for name in values if units[name] == "items_per_s"), next(iter(values), ""))
    if not name:
        return "—", "", say["of"].format(len(runs))
    median = format_quantity(statistics.median(values[name]), units[name])
    return name, say["median"].format(median), say["of"].format(len(values[name]))
