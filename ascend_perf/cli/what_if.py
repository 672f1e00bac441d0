"""Estimate a workload on chips, ranks and layouts before they are there: step time, MFU, memory, communication."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ascend_perf.cli import _folder, _show, _virtual
from ascend_perf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ascend_perf.bench.what_if import Kept, Plan, Progress
    from ascend_perf.model.what_if import Configuration, WhatIf

_WORDS = {
    "en": {
        "plan": "{count} configurations, {known} of them known from earlier calls; about {left} for the rest",
        "doing": "{done} of {total}: {soc} x {ranks} {label}, about {left} left",
        "failed": "{where}: {state}: {problem}", "left_out": "not tried (--layouts all): {where}: {names}",
        "unfit": "does not fit: {where}: {problem}",
        "simulated": "simulated: times are modelled, nothing ran on an NPU",
        "set-up": "setting up the virtual NPU", "known": "known",
    },
    "zh": {
        "plan": "共 {count} 种配置，其中 {known} 种已有结果；其余约需 {left}",
        "doing": "第 {done}/{total} 种：{soc} x {ranks} {label}，约剩 {left}",
        "failed": "{where}：{state}：{problem}", "left_out": "未尝试（--layouts all）：{where}：{names}",
        "unfit": "不适用：{where}：{problem}", "simulated": "仿真数据：耗时为建模值，未在 NPU 上运行",
        "set-up": "正在准备虚拟 NPU", "known": "已有结果",
    },
}  # fmt: skip


@click.command("what-if")
@click.argument("workload")
@click.option("--preset", default="tiny", show_default=True, help="Size; see `ascend-perf workloads WORKLOAD`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; may be repeated.")
@click.option(
    "--vary", "varied", multiple=True, metavar="KEY=V1,V2",
    help="Try each of these values of a setting; may be repeated.",
)  # fmt: skip
@click.option(
    "--model-config", type=click.Path(path_type=Path),
    help="A config.json of Hugging Face: the shape of the model, between the preset and --set.",
)
@click.option("--soc", "socs", default="Ascend910B2", show_default=True, metavar="A,B", help="Chips.")
@click.option("--world-size", "worlds", default="8", show_default=True, metavar="N,M", help="Ranks of the job.")
@click.option(
    "--layouts", default="auto", show_default=True, metavar="LIST",
    help="auto: the most promising that the workload takes; all of them; or some, such as fsdp,tp8,tp4+pp2+ddp "
         "(also cp2, ep8).",
)  # fmt: skip
@click.option("--most", type=click.IntRange(1, 64), default=6, show_default=True, help="Layouts of auto.")
@click.option(
    "--ranks-per-node", type=click.IntRange(min=1), default=8, show_default=True, help="Devices of a machine."
)
@click.option("--hbm", metavar="SIZE", help="Memory of a device, as 32GiB.  [default: the chip's]")
@click.option(
    "--link-speed", metavar="RATE",
    help="Links inside a machine, per device and direction, as 196GB/s.  [default: the chip's]",
)
@click.option(
    "--node-link-speed", metavar="RATE",
    help="Links between machines, per device and direction, as 25GB/s.  [default: the chip's]",
)
@click.option(
    "--wheel", type=click.Path(path_type=Path), metavar="FILE", help="A torch-npu wheel to use instead of fetching one."
)
@click.option("--dry-run", is_flag=True, help="List the configurations and the expected time; run nothing.")
@click.option("--fresh", is_flag=True, help="Compute again what earlier calls have computed.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the reports. [default: none are written]")
@click.option("--format", "formats", default="html,json,md", show_default=True, help="Formats, separated by commas.")
@click.option("--force", is_flag=True, help="Overwrite reports that are there.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(
    workload: str, preset: str, overrides: tuple[str, ...], varied: tuple[str, ...], model_config: Path | None,
    socs: str, worlds: str, layouts: str, most: int, ranks_per_node: int, hbm: str | None, link_speed: str | None,
    node_link_speed: str | None, wheel: Path | None, dry_run: bool, fresh: bool, out: Path | None, formats: str,
    force: bool, lang: Literal["en", "zh"],
) -> int:  # fmt: skip
    """Estimate WORKLOAD on each chip, number of ranks and layout, with how far the estimate may be off.

    Each configuration is run once on the virtual NPU, one process for all ranks: operators, memory and collectives are
    those of the real torch_npu, times are modelled. Out of memory is found by the real allocator. What was computed
    is kept: a call that was stopped goes on where it was. No NPU is needed.

    \b
    ascend-perf what-if llm-pretrain --preset 7b --soc Ascend910B2,Ascend910B4 --world-size 8,64 -o estimates
    ascend-perf what-if moe-pretrain --preset v2-lite --world-size 16 --layouts fsdp,ep8+ddp,tp2+ep4+ddp
    ascend-perf what-if llm-pretrain --preset 1b --vary batch=2,4,8 --vary recompute=none,full --dry-run

    Exit codes: 0 there are estimates; 2 wrong usage; 3 no configuration has one; 4 the virtual NPU cannot be set up.
    """
    from ascend_perf.bench import what_if as bench
    from ascend_perf.reports.what_if import write_what_if

    words = _WORDS[lang]
    chosen = _show.formats_of(formats)
    if out is not None:
        _folder.check(out, "what-if", chosen, force)
    options = _virtual.Options(
        soc=None, world_size=None, ranks_per_node=ranks_per_node, hbm=hbm, link_speed=link_speed,
        node_link_speed=node_link_speed, clock="modelled", wheel=wheel,
    )  # fmt: skip
    base = options.settings()
    devices = tuple(
        replace(base, soc=soc, world_size=world) for soc in _names(socs, "--soc") for world in _numbers(worlds)
    )
    made = bench.plan(bench.Request(
        workload=workload, preset=preset, overrides=overrides, varied=varied, devices=devices, layouts=layouts,
        most=most, model_config=model_config,
    ))  # fmt: skip
    with _show.working(words["set-up"]) as update:
        machinery = bench.set_up(devices, _show.aloud(update, lang))
        kept = bench.kept_of(machinery)
        click.echo(_plan_line(made, kept, lang, fresh), err=not dry_run)
        if dry_run:
            click.echo(_listing(made, kept, lang, fresh))
            return 0
        found = bench.estimate_all(
            made, bench.run_case, kept, fresh=fresh, versions=machinery.versions,
            on_progress=lambda progress: _told(progress, update, lang),
        )  # fmt: skip
    click.echo(text(found, lang))
    if out is not None:
        _folder.write(out, lambda folder: write_what_if(found, folder, chosen, lang))
    return 0 if any(one.estimate is not None for one in found.outcomes) else 3


def _names(text: str, option: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise UsageError(f"{option} names none")
    return names


def _numbers(text: str) -> list[int]:
    found = []
    for part in _names(text, "--world-size"):
        if not part.isdecimal() or not 1 <= int(part) <= 1 << 20:
            raise UsageError(f"--world-size {part!r} is no number of ranks", hint="such as --world-size 8,64")
        found.append(int(part))
    return found


def _plan_line(made: Plan, kept: Kept, lang: Literal["en", "zh"], fresh: bool) -> str:
    from ascend_perf.bench.what_if import seconds_of

    seconds, known = seconds_of(made, kept, fresh=fresh)
    return _WORDS[lang]["plan"].format(count=len(made.cases), known=known, left=_duration(seconds, lang))


def _listing(made: Plan, kept: Kept, lang: Literal["en", "zh"], fresh: bool) -> str:
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.texts import said

    words = _WORDS[lang]
    rows = []
    for case in made.cases:
        one = case.configuration
        is_known = not fresh and kept.read(case) is not None
        settings = " ".join(f"--set {text}" for text in one.overrides)
        rows.append((one.soc, str(one.world_size), said(one.words, lang), words["known"] if is_known else "", settings))
    lines = [_show.columns(rows, "  ")]
    for outcome in made.unfit:
        problem = _show.plain(spoken(outcome.problem, lang))
        lines.append(words["unfit"].format(where=_where(outcome.configuration, lang), problem=problem))
    lines += _left_out(made.left_out, lang)
    lines += [said(note, lang) for note in made.notes]
    return "\n".join(lines)


def _left_out(left_out: Mapping[str, tuple[str, ...]], lang: Literal["en", "zh"]) -> list[str]:
    template = _WORDS[lang]["left_out"]
    return [template.format(where=where, names=", ".join(names)) for where, names in left_out.items()]


def _where(configuration: Configuration, lang: Literal["en", "zh"]) -> str:
    name = configuration.words
    return f"{configuration.soc} x {configuration.world_size} {name.zh if lang == 'zh' else name.en}"


def _told(progress: Progress, update: Callable[[str], None], lang: Literal["en", "zh"]) -> None:
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.texts import said
    from ascend_perf.reports.what_if import state

    words = _WORDS[lang]
    last = progress.outcome
    if last is not None and last.estimate is None:
        click.echo(words["failed"].format(
            where=_where(last.configuration, lang), state=said(state(last), lang),
            problem=_show.plain(spoken(last.problem, lang))[:300],
        ), err=True)  # fmt: skip
    if progress.case is None:
        return
    one = progress.case.configuration
    line = words["doing"].format(
        done=progress.done + 1, total=progress.total, soc=one.soc, ranks=one.world_size,
        label=said(one.words, lang),
        left=_duration(progress.seconds_left, lang),
    )  # fmt: skip
    update(line)
    if not sys.stderr.isatty():
        click.echo(f"ascend-perf: {time.strftime('%H:%M:%S')} {line}", err=True)


def _duration(seconds: float, lang: Literal["en", "zh"]) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s" if lang == "en" else f"{math.ceil(seconds)} 秒"
    return f"{math.ceil(seconds / 60)} min" if lang == "en" else f"{math.ceil(seconds / 60)} 分钟"


def text(found: WhatIf, lang: Literal["en", "zh"]) -> str:
    """The estimates for a terminal: the answer, the table, the best of each chip, what to know."""
    from ascend_perf.reports.catalogue import catalogue
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.texts import said
    from ascend_perf.reports.what_if import short_rows, state

    texts, words = catalogue(lang), _WORDS[lang]
    space = " " if lang == "en" else ""
    lines = [words["simulated"], "", f"{said(found.lead, lang)}{space}{said(found.main, lang)}", ""]
    lines += [_show.columns(short_rows(found, lang)), texts["what_if.marks"], ""]
    lines += [f"- {said(one.said, lang)}" for one in found.verdicts] if len(found.verdicts) > 1 else []
    for one in found.outcomes:
        if one.estimate is None:
            where = words["failed"].format(
                where=_where(one.configuration, lang), state=said(state(one), lang),
                problem=_show.plain(spoken(one.problem, lang)),
            )  # fmt: skip
            lines.append(f"- {where}")
            if one.fits:
                lines.append(f"    {_show.plain(spoken(one.fits, lang))}")
    lines += [f"- {line}" for line in _left_out(found.left_out, lang)]
    lines += [f"- {said(note, lang)}" for note in found.notes]
    return "\n".join(lines)
