"""Run a command of your own under a profiler and write a report."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show, _virtual
from ascend_perf.errors import AscendPerfError, UsageError

if TYPE_CHECKING:
    from ascend_perf.bench.virtual import Job
    from ascend_perf.collectors.collect_plan import Plan
    from ascend_perf.model.run import Manifest


@click.command("collect", context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--with",
    "collector",
    type=click.Choice(["auto", "msprof", "torch-npu", "torch"]),
    default="auto",
    show_default=True,
    help="auto: torch-npu where an NPU and torch_npu are, msprof where an NPU is, else torch (CUDA, CPU).",
)
@click.option(
    "--level",
    type=click.Choice(["quick", "standard", "deep"]),
    default="standard",
    show_default=True,
    help="quick disturbs least; deep records stacks, links, caches and the host too.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="One option of the profiler, over the level's, such as aic-metrics=Memory; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show the exact command lines and variables, and do nothing.")
@click.option(
    "--storage-limit", metavar="SIZE", help="Most that a profile may take on disk, such as 10GB. [default: none]"
)
@click.option("--delay", type=click.IntRange(min=1), metavar="SECONDS", help="Begin to record so long after the start.")
@click.option("--duration", type=click.IntRange(min=1), metavar="SECONDS", help="Record so long.")
@click.option("--ranks", metavar="LIST", help="Ranks that record, such as 0,8-15.  [default: all]")
@click.option("--skip", type=click.IntRange(min=1), help="Steps before recording.  [default: 5]")
@click.option("--warmup", type=click.IntRange(min=1), help="Steps that warm the profiler up.  [default: 1]")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to record.  [default: 3]")
@click.option("--wait", type=click.IntRange(min=0), help="Steps between two recordings.  [default: 0]")
@click.option("--repeat", type=click.IntRange(min=0), help="Recordings; 0: until the end.  [default: 1]")
@click.option(
    "--step-of",
    type=click.Choice(["auto", "optimizer", "data", "calls", "process"]),
    help="What a step is: of the optimizer, a batch of a DataLoader, a call of ascend_perf.hooks.step(); process: "
    "record from start to end.  [default: auto, the first that there is]",
)
@click.option(
    "--device", type=click.Choice(["here", _virtual.DEVICE]), default="here", show_default=True,
    help="virtual-npu: the program finds NPUs that are none: torch_npu runs, kernels do not.",
)
@_virtual.options(soc=False)
@click.option(
    "--snapshot", type=click.Path(path_type=Path), metavar="FILE",
    help="virtual-npu: write the operators of a step before recording begins as text.",
)
@click.option(
    "--soc", metavar="NAME",
    help="msprof: the chip, such as Ascend910B2: its counters are checked; virtual-npu: the chip.",
)
@click.option("--python", metavar="PATH", help="msprof: Python of its parser.  [default: python3]")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path),
    help="Run directory.  [default: runs/collect-PROGRAM-TIMESTAMP]",
)  # fmt: skip
@click.option(
    "--measure-overhead", "measures_overhead", is_flag=True,
    help="Run COMMAND once more before, without the collector, and say what the collector costs.",
)
@click.option("--force", is_flag=True, help="Replace a run directory that is there.")
@click.option("--no-report", is_flag=True, help="Record only; the run directory can be analysed later, anywhere.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
@click.option(
    "--format", "formats", default="html,json,md", show_default=True, help="Reports to write, separated by commas."
)
def command(
    words: tuple[str, ...],
    collector: Literal["auto", "msprof", "torch-npu", "torch"],
    level: Literal["quick", "standard", "deep"],
    options: tuple[str, ...],
    dry_run: bool,
    storage_limit: str | None,
    delay: int | None,
    duration: int | None,
    ranks: str | None,
    skip: int | None,
    warmup: int | None,
    steps: int | None,
    wait: int | None,
    repeat: int | None,
    step_of: Literal["auto", "optimizer", "data", "calls", "process"] | None,
    device: str,
    npu: _virtual.Options,
    soc: str | None,
    snapshot: Path | None,
    python: str | None,
    folder: Path | None,
    measures_overhead: bool,
    force: bool,
    no_report: bool,
    lang: Literal["en", "zh"],
    formats: str,
) -> None:
    """Run COMMAND under a profiler and write a report. The program needs no change.

    A launcher (torchrun) is wrapped once, never each rank. Output, input and signals are the command's own, and so is
    the exit code of this one: whether something was recorded is said, and stands in manifest.json.

    \b
    ascend-perf collect -- python train.py
    ascend-perf collect --steps 5 --ranks 0 -- torchrun --nproc-per-node 8 train.py
    ascend-perf collect --with msprof --option aic-metrics=Memory --dry-run -- bash run.sh
    ascend-perf collect --device virtual-npu --world-size 64 -- python train.py
    """
    from datetime import datetime

    from ascend_perf.bench.collect import collect, default_folder
    from ascend_perf.collectors.collect_plan import CollectRequest, facts_here, make_plan

    chosen_formats = _show.formats_of(formats)
    job = None
    if device == _virtual.DEVICE:
        if collector not in ("auto", "torch-npu"):
            raise UsageError(f"--with {collector} does not know virtual NPUs", hint="leave --with out")
        if measures_overhead:
            raise UsageError("--measure-overhead: a virtual NPU has no time of its own to measure", hint="leave it out")
        _virtual.check_snapshot(snapshot)
        collector, soc, job = "torch-npu", None, _job(npu, words)
    else:
        npu.refuse(but=("soc",))
        if snapshot is not None:
            raise UsageError("--snapshot is of virtual NPUs only", hint=f"add --device {_virtual.DEVICE}")
    request = CollectRequest(
        command=words, collector=collector, level=level, options=dict(_assigned(text) for text in options),
        storage_limit_bytes=None if storage_limit is None else size_bytes(storage_limit), delay_s=delay,
        duration_s=duration, ranks=None if ranks is None else ranks_of(ranks), skip=skip, warmup=warmup, steps=steps,
        wait=wait, repeat=repeat, step_of=step_of, soc=soc, python=python, measures_overhead=measures_overhead,
    )  # fmt: skip
    if dry_run:
        target = folder or default_folder(words or ("command",), datetime.now().astimezone())
        here = facts_here()
        if job is not None:
            from ascend_perf.bench.virtual import facts_with

            here = facts_with(here, job)
        click.echo(plan_words(make_plan(request, here, _resolved(target)), lang))
        return
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            click.echo(f"ascend-perf: {_said(text, lang)}", err=True)

    done = collect(request, folder=folder, force=force, job=job, snapshot=snapshot, on_notice=tell)
    manifest = done.manifest
    for note in manifest.notes:
        tell(note)
    if manifest.problem:
        click.echo(f"ascend-perf: {problem_words(manifest.problem, done.hint, lang)}", err=True)
    if measures_overhead:
        click.echo("\n".join(overhead_words(manifest, lang)), err=True)
    if done.has_trace and not no_report:
        try:
            _report(done.folder, chosen_formats, lang)
        except KeyboardInterrupt:
            click.echo(f"ascend-perf: {_NO_REPORT[lang]}", err=True)
            click.echo(str(done.folder))
            raise click.exceptions.Exit(130) from None
    else:
        click.echo(str(done.folder))
    raise click.exceptions.Exit(done.code)


def _job(npu: _virtual.Options, words: tuple[str, ...]) -> Job:
    """The job of the command: a launcher's processes are its ranks, else one process stands for all."""
    from ascend_perf.bench.virtual import job_of, launched

    settings = npu.settings()
    return job_of(settings, launched(words), 1)


_NO_REPORT: Final = {
    "en": "stopped by Ctrl-C while the report was written: `ascend-perf analyze` writes it from the run directory",
    "zh": "生成报告时被 Ctrl-C 中断：可用 `ascend-perf analyze` 从运行目录重新生成",
}


def overhead_words(manifest: Manifest, lang: Literal["en", "zh"]) -> list[str]:
    """What each collector cost, with what was compared: the lines of the report."""
    from ascend_perf.model.trace import ProfilerSettings
    from ascend_perf.reports import overhead

    rows = [[one.zh if lang == "zh" else one.en for one in row] for row in overhead.rows(manifest, ProfilerSettings())]
    form = "采集开销：{}：{}；{}" if lang == "zh" else "overhead: {}: {}; {}"
    return [f"ascend-perf: {form.format(*row)}" for row in rows]


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except RuntimeError:  # before Python 3.13
        raise UsageError(f"{folder} is a link to itself", hint="choose another -o") from None


def _report(folder: Path, formats: tuple[str, ...], lang: Literal["en", "zh"]) -> None:
    """Write the report; a failure is said, and is not the command's."""
    from ascend_perf import pipeline

    try:
        with _show.working(_show.READING[lang]) as update:
            result = pipeline.report(
                [folder], out=folder / "report", formats=formats, lang=lang, force=True, progress=update
            )
    except AscendPerfError as error:
        said = problem_words(error.what, error.hint, lang)
        click.echo(f"ascend-perf: {'未生成报告：' if lang == 'zh' else 'no report: '}{said}", err=True)
        click.echo(str(folder))
        return
    click.echo(result.summary)
    click.echo(str(result.paths[formats[0]]))


_PLAN: Final = {
    "en": {
        "collector": "collector", "why": "{} ({})", "set": "set", "unset": "unset", "first": "first",
        "alone": "the command without the collector, to compare", "run": "run", "record": "record",
        "all": "all ranks", "ranks": "ranks {}", "whole": "from start to end", "colon": "{}: {}",
        "steps": "skip {}, warm up {}, record {} steps", "times": ", {} times with {} between",
        "step": " (a step: {})", "option": "option", "afterwards": "afterwards", "note": "note",
    },
    "zh": {
        "collector": "采集器", "why": "{}（{}）", "set": "设置变量", "unset": "取消变量", "first": "首先",
        "alone": "不带采集器运行命令，用于比较", "run": "运行", "record": "采集",
        "all": "所有 Rank", "ranks": "Rank {}", "whole": "自始至终", "colon": "{}：{}",
        "steps": "跳过 {} 个 step，预热 {} 个，采集 {} 个", "times": "，共 {} 次，间隔 {} 个",
        "step": "（step 的划分：{}）", "option": "选项", "afterwards": "之后", "note": "说明",
    },
}  # fmt: skip


def plan_words(plan: Plan, lang: Literal["en", "zh"] = "en") -> str:
    """A plan as lines: the collector, variables, command lines, what follows."""
    words = _PLAN[lang]
    why = words["why"].format(plan.collector, _said(plan.why, lang)) if plan.why else plan.collector
    rows = [(words["collector"], why)]
    rows += [(words["set"], f"{name}={shlex.quote(value)}") for name, value in plan.set_variables.items()]
    rows += [(words["unset"], name) for name in plan.unset_variables]
    if plan.measures_overhead:
        rows.append((words["first"], words["alone"]))
    rows.append((words["run"], shlex.join(plan.words)))
    if plan.script is not None:
        rows += [("run.sh" if number == 0 else "", line) for number, line in enumerate(plan.script.splitlines())]
    if plan.settings is not None:
        settings = plan.settings
        ranks = words["all"] if settings.ranks is None else words["ranks"].format(",".join(map(str, settings.ranks)))
        schedule = words["whole"]
        if settings.step_of != "process":
            schedule = words["steps"].format(settings.skip, settings.warmup, settings.active)
            if settings.repeat != 1:
                schedule += words["times"].format(settings.repeat, settings.wait)
            schedule += words["step"].format(settings.step_of)
        rows.append((words["record"], words["colon"].format(ranks, schedule)))
        rows += [(words["option"], f"{name}={value}") for name, value in plan.options.items()]
    rows += [(words["afterwards"], shlex.join(one)) for one in plan.after]
    rows += [(words["note"], _said(note, lang)) for note in plan.notes]
    return _show.columns(rows)


def size_bytes(text: str) -> int:
    """Bytes of a size such as 500MB, 10GB, 2GiB; MB and GB are decimal, as msprof has them.

    Raises:
        UsageError: it is none.
    """
    return _virtual.bytes_of(text, "--storage-limit", hint="write 500MB, 10GB or 2GiB")


def ranks_of(text: str) -> tuple[int, ...] | None:
    """Ranks of a list such as 0,8-15; None: all.

    Raises:
        UsageError: it is none.
    """
    if text.strip() == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"--ranks {text!r} is no list of ranks", hint="write 0,8-15 or all")
        ranks.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(ranks))


def _assigned(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip("- "):
        raise UsageError(f"--option {text!r} is not NAME=VALUE", hint="example: --option aic-metrics=Memory")
    return name.strip("- "), value


def problem_words(problem: str, hint: str, lang: Literal["en", "zh"]) -> str:
    """A problem and, in a line of its own, what to do about it."""
    label = "提示：" if lang == "zh" else "hint: "
    return _said(problem, lang) + (f"\n  {label}{_said(hint, lang)}" if hint else "")


def _said(text: str, lang: Literal["en", "zh"]) -> str:
    from ascend_perf.reports.phrases import spoken

    return spoken(text, lang)
