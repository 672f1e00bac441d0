"""Measure a suite of benchmarks, each in several fresh processes, into a result file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import InputError, UsageError
from ascend_perf.units import counted, format_quantity

if TYPE_CHECKING:
    from ascend_perf.bench.suite import Progress
    from ascend_perf.bench.suite_file import Suite
    from ascend_perf.model.result import Benchmark, ResultSet

_SAY: Final = {
    "en": {
        "run": "run {} of {} · {}", "left": "about {} left", "least": "more than {} left", "failed": "failed: {}",
        "plan": "{}: {}, {}, {}", "about": "about {}", "more_than": "more than {}",
        "partly": "time not known before the first runs",
        "order": "order", "each": "{} each", "each_unknown": "time of a run unknown",
        "done": "{} of {} runs complete", "no_runs": "no run was complete: {}", "median": "median {}",
        "of": "of {}", "simulated": "{} (simulated)",
        "more": "... and {} more", "warmup": "warm-up", "measured": "measuring", "profiled": "profiling",
        "quiet": "On a machine that does other work (a laptop) times scatter: there a gate on them may say "
        "\"cannot tell\" of equal code. Counts and operators do not scatter.",
    },
    "zh": {
        "run": "第 {} 次运行，共 {} 次 · {}", "left": "剩余约 {}", "least": "剩余超过 {}", "failed": "失败：{}",
        "plan": "{}：{}，{}，{}", "about": "约 {}", "more_than": "超过 {}",
        "partly": "首轮运行前无法估计时间",
        "order": "顺序", "each": "每次 {}", "each_unknown": "单次时间未知",
        "done": "{} / {} 次运行完成", "no_runs": "没有完成的运行：{}", "median": "中位数 {}", "of": "{}",
        "simulated": "{}（仿真）",
        "more": "……另有 {} 次", "warmup": "预热", "measured": "计时", "profiled": "采集",
        "profiler_warmup": "预热 Profiler", "export": "写出 trace",
        "quiet": "机器同时有其他负载（如笔记本电脑）时耗时波动大：代码相同时门禁也可能给出“无法判定”；"
        "计数与算子不受影响。",
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
@click.option("--nnodes", type=click.IntRange(1, 4096), default=1, show_default=True, help="Machines that share the "
              "processes of each benchmark; the same command runs on each of them, with its --node-rank.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, help="Number of this machine.")
@click.option("--master-addr", default="127.0.0.1", show_default=True, help="Address of machine 0, of several.")
@click.option("--master-port", type=click.IntRange(1, 65435), default=29500, show_default=True, help="First of 100 "
              "ports of machine 0: runs take them in turns.")
@click.option("--force", is_flag=True, help="Begin anew where the folder holds results; else they are gone on with.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(
    suite: str, folder: Path | None, dry_run: bool, nnodes: int, node_rank: int, master_addr: str, master_port: int,
    force: bool, lang: Literal["en", "zh"],
) -> None:  # fmt: skip
    """Measure SUITE, a YAML file or the name of a suite that is shipped (see `ascend-perf claims`).

    Each run has fresh processes; variants take turns (A B B A). Results are written after each run: the same command
    goes on after a crash or Ctrl-C. `compare`, `gate` and `history` read DIR/results.json.

    \b
    ascend-perf bench suite.yaml -o results/today
    ascend-perf bench suite.yaml --dry-run
    ascend-perf bench clue-910b-vs-a100 -o results/910b
    """
    from ascend_perf.bench.machines import Place, spread
    from ascend_perf.bench.suite import plan_of, run_suite
    from ascend_perf.bench.suite_file import find_suite, read_suite
    from ascend_perf.reports.phrases import spoken

    say = _SAY[lang]
    path = find_suite(suite)
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank} of --nnodes {nnodes}", hint="machines are numbered from 0")
    place = Place(nodes=nnodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port)
    read = spread(read_suite(path), place)
    if dry_run:
        click.echo(plan_words(read, _durations(folder), lang))
        return
    where = folder or Path(f"bench-{read.name}")
    with _show.working(read.name) as update:
        shown: list[int] = []

        def on_progress(progress: Progress) -> None:
            if progress.problem:
                said = say["failed"].format(_show.plain(spoken(progress.problem, lang)))
                click.echo(f"ascend-perf: {progress.planned.cell.name}: {said}", err=True)
                return
            text = progress_words(progress, lang)
            update(text)
            if not sys.stderr.isatty() and progress.planned.index not in shown:
                shown.append(progress.planned.index)
                click.echo(text, err=True)

        results = run_suite(
            path.read_text("utf-8-sig"), path.name, path.parent, where, force=force, on_progress=on_progress,
            place=place,
        )  # fmt: skip
    click.echo(results_words(results, len(plan_of(read)), lang))
    click.echo(str(where / "results.json"))
    if lost := [one.name for one in results.benchmarks if not any(run.status == "complete" for run in one.launches)]:
        raise InputError(say["no_runs"].format(", ".join(lost)), hint=str(where / "results.json"))


def _durations(folder: Path | None) -> dict[str, list[float]]:
    """What runs took whose results a folder holds."""
    from ascend_perf.bench.suite import durations_of
    from ascend_perf.result_files import read_results

    return {} if folder is None or not (folder / "results.json").exists() else durations_of(read_results(folder))


def _runs(count: int, lang: Literal["en", "zh"]) -> str:
    return f"{count} 次运行" if lang == "zh" else counted(count, "run")


def _benchmarks(count: int, lang: Literal["en", "zh"]) -> str:
    return f"{count} 项基准测试" if lang == "zh" else counted(count, "benchmark")


def plan_words(suite: Suite, known: Mapping[str, list[float]], lang: Literal["en", "zh"]) -> str:
    """The plan of a suite: benchmarks with their runs and times, and the order."""
    from ascend_perf.bench.suite import expected_seconds, plan_of, time_left

    say = _SAY[lang]
    plan, expected = plan_of(suite), expected_seconds(suite, known)
    total = time_left(plan, expected)
    time = say["partly"]
    if total.seconds is not None:
        time = say["more_than" if total.is_least else "about"].format(format_quantity(total.seconds, "s"))
    rows = []
    for cell in suite.cells:
        seconds = expected[cell.name]
        each = say["each_unknown"] if seconds is None else say["each"].format(format_quantity(seconds, "s"))
        rows.append((cell.name, _runs(cell.runs, lang), each))
    about = suite.about.get(lang)
    first = say["plan"].format(suite.name, _benchmarks(len(suite.cells), lang), _runs(len(plan), lang), time)
    lines = [first, *([about] if about else []),
             _show.columns(rows, indent="  "), f"{say['order']}:"]  # fmt: skip
    lines += [f"  {planned.index + 1:>3}  {planned.cell.name}" for planned in plan[:MAX_ORDER]]
    if len(plan) > MAX_ORDER:
        lines.append("  " + say["more"].format(len(plan) - MAX_ORDER))
    lines.append(say["quiet"])
    return "\n".join(lines)


def progress_words(progress: Progress, lang: Literal["en", "zh"]) -> str:
    """One line: which run, how many, the time that is left."""
    say = _SAY[lang]
    text = say["run"].format(progress.done + 1, progress.total, progress.planned.cell.name)
    if (seconds := progress.left.seconds) is not None:
        text += " · " + say["least" if progress.left.is_least else "left"].format(format_quantity(seconds, "s"))
    return f"{text} · {say.get(progress.phase, progress.phase)}" if progress.phase else text


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
        return "—", "", say["of"].format(_runs(len(runs), lang))
    median = format_quantity(statistics.median(values[name]), units[name])
    if one.data_origin == "simulated":
        median = say["simulated"].format(median)
    return name, say["median"].format(median), say["of"].format(_runs(len(values[name]), lang))
