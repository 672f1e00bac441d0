"""What differs between two configurations, with the effect on parameters, FLOPs, memory and communication."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.bench.config_diff import Difference, SettingDifference

_HEADINGS = {
    "figures": {"en": "Figures, by formula", "zh": "指标（公式计算）"},
    "settings": {"en": "Settings that differ", "zh": "不同的设置"},
    "other": {
        "en": "Other keys that differ; no effect on these figures known",
        "zh": "其他不同的键；对上述指标无已知影响",
    },
    "notes": {"en": "Notes", "zh": "说明"},
    "same": {"en": "no setting differs", "zh": "设置全部相同"},
    "change": {"en": "change", "zh": "变化"},
    "alone": {"en": "effect on A, taken alone", "zh": "单独改变时对 A 的影响"},
    "none": {"en": "no effect on these figures", "zh": "对上述指标无影响"},
    "together": {"en": "not possible alone", "zh": "无法单独改变"},
    "figure": {"en": "figure", "zh": "指标"},
    "setting": {"en": "setting", "zh": "设置"},
    "ranks": {"en": "processes", "zh": "进程数"},
    "more": {"en": "more keys differ", "zh": "个其他键不同"},
}


@click.command("diff-config")
@click.argument("a")
@click.argument("b")
@click.option("--tokens", type=click.IntRange(1), help="Length of a row of tokens, on both sides.")
@click.option("--batch", type=click.IntRange(1), help="Rows of a micro-batch, on both sides.")
@click.option(
    "--world", type=click.IntRange(1, 1 << 20), help="Processes of both jobs.  [default: those of a run, else 1]"
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting on both sides.")
@click.option("--format", "form", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    a: str,
    b: str,
    tokens: int | None,
    batch: int | None,
    world: int | None,
    overrides: tuple[str, ...],
    form: Literal["text", "json", "md"],
    lang: Literal["en", "zh"],
) -> None:
    """Compare A and B: config.json files of Hugging Face models, presets, or run directories.

    Figures come from formulas; nothing is run. A model without a job takes that of the other side; two models are
    compared as jobs of llm-pretrain (moe-pretrain with experts) with 4096 tokens, one row, bf16.

    \b
    ascend-perf diff-config llama/config.json qwen/config.json --tokens 8192
    ascend-perf diff-config llm-pretrain:7b llm-pretrain:70b --world 32
    ascend-perf diff-config runs/before runs/after
    """
    from ascend_perf.bench.config_diff import as_document, compare

    sizes = [f"{name}={value}" for name, value in (("tokens", tokens), ("batch", batch)) if value is not None]
    difference = compare(a, b, overrides=(*sizes, *overrides), world_size=world)
    if form == "json":
        click.echo(json.dumps(as_document(difference), indent=1, ensure_ascii=False))
    else:
        click.echo(render(difference, form, lang))


def render(difference: Difference, form: Literal["text", "md"], lang: Literal["en", "zh"]) -> str:
    """The comparison as text for a terminal, or as Markdown."""
    from ascend_perf.bench.config_diff import figure_unit, figure_words, plain
    from ascend_perf.reports.phrases import spoken

    say = {name: words[lang] for name, words in _HEADINGS.items()}
    sides = [("A", difference.a), ("B", difference.b)]
    parts = ["\n".join(
        f"{letter}: {plain(one.name)} ({one.kind}, {one.workload.name}, {say['ranks']} {one.world_size})"
        for letter, one in sides
    )]  # fmt: skip
    rows = [(say["figure"], "A", "B", say["change"])]
    for name in difference.figures:
        a, b = difference.a.figures.get(name), difference.b.figures.get(name)
        unit = figure_unit(name)
        label = getattr(figure_words(name), lang)
        if name.startswith(("memory_", "communication_per_step_")):
            label = f"- {label}"
        rows.append((label, format_quantity(a, unit), format_quantity(b, unit), _change(a, b)))
    parts.append(_section(say["figures"], rows, form))
    if difference.settings:
        rows = [(say["setting"], "A", "B", say["alone"])]
        rows += [(one.name, plain(one.a), plain(one.b), _effect(one, say, lang)) for one in difference.settings]
        parts.append(_section(say["settings"], rows, form))
    else:
        parts.append(say["same"])
    if difference.other_keys:
        rows = [("", "A", "B", "")]
        rows += [(plain(key), plain(a), plain(b), "") for key, a, b in difference.other_keys]
        parts.append(_section(say["other"], rows, form))
    if difference.other_keys_left_out:
        parts.append(f"{difference.other_keys_left_out} {say['more']}")
    notes = [
        f"{letter}: {note}" for letter, side in sides
        for note in (*(getattr(note, lang) for note in side.notes), spoken(side.problem, lang)) if note
    ]  # fmt: skip
    if notes:
        parts.append("\n".join([_title(say["notes"], form), *(f"- {plain_line(note)}" for note in notes)]))
    return "\n\n".join(parts)


def plain_line(text: str) -> str:
    """A note on one line, without characters that a terminal obeys."""
    return "".join(character if character.isprintable() else " " for character in text)


def _section(title: str, rows: Sequence[Sequence[str]], form: Literal["text", "md"]) -> str:
    if form == "text":
        return f"{_title(title, form)}\n{_show.columns(rows, '  ')}"
    cells = [[cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([_title(title, form), "", lines[0], "| --- | ---: | ---: | --- |", *lines[1:]])


def _title(title: str, form: Literal["text", "md"]) -> str:
    return title if form == "text" else f"## {title}"


def _change(a: float | None, b: float | None) -> str:
    if a is None or b is None:
        return "—"
    if a == b:
        return "="
    if not a:
        return "+"
    ratio = b / a
    return f"{(ratio - 1) * 100:+.3g} %" if 0.5 <= ratio < 2 else f"x {ratio:.4g}"


def _effect(one: SettingDifference, say: dict[str, str], lang: Literal["en", "zh"]) -> str:
    from ascend_perf.bench.config_diff import figure_unit, figure_words

    if one.effects is None:
        return say["together"]
    if not one.effects:
        return say["none"]
    changes = []
    for name, change in one.effects.items():
        size = format_quantity(abs(change), figure_unit(name))
        changes.append(f"{getattr(figure_words(name), lang)} {'+' if change > 0 else '-'}{size}")
    return ", ".join(changes)
