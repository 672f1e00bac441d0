"""What differs between two snapshots of a virtual NPU: operators, shapes, launches, collectives, copies, memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ascend_perf.collectors.virtual_npu.op_stream import Difference
    from ascend_perf.op_streams import OpStream

DIFFERENT: Final = 1
"""Exit code, as diff has it."""


@click.command("diff-snapshot")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("head", type=click.Path(path_type=Path))
@click.option("--all", "shows_all", is_flag=True, help="Every line, not only the largest of each kind.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of output.")
def command(base: Path, head: Path, shows_all: bool, lang: Literal["en", "zh"]) -> None:
    """What one step does differently in HEAD than in BASE, two files of `--snapshot`.

    Names operators that came or went, shapes that changed, and how launches, collectives, copies, waits and memory
    differ. Exit code 0: nothing differs; 1: something does. All of it is of virtual NPUs: which operators run is real,
    nothing is timed.

    \b
    ascend-perf run llm-pretrain --device virtual-npu --snapshot base.ops.txt
    ascend-perf run llm-pretrain --device virtual-npu --set fused=off --snapshot head.ops.txt
    ascend-perf diff-snapshot base.ops.txt head.ops.txt
    """
    from ascend_perf.collectors.virtual_npu.op_stream import MODE, differences
    from ascend_perf.op_streams import read_op_stream

    streams = read_op_stream(base), read_op_stream(head)
    for path, stream in zip((base, head), streams, strict=True):
        if stream.mode != MODE:
            raise UsageError(
                f"{path.name} is of mode {stream.mode}, not of a virtual NPU",
                hint="write it by `ascend-perf run WORKLOAD --device virtual-npu --snapshot FILE`; "
                "`ascend-perf gate` compares snapshots of other modes",
            )
    found = differences(*streams)
    click.echo(words_of(found, *streams, lang=lang, most=len(found) if shows_all else MAX_LINES))
    if found or streams[0].stream != streams[1].stream:
        raise click.exceptions.Exit(DIFFERENT)


MAX_LINES: Final = 12
"""Lines of a kind that are shown unless all are wanted."""

_SAID: Final = {
    "en": {
        "title": "{} operators, collectives, copies and waits in {}, {} in {}",
        "operators": "operators", "shapes": "shapes", "collectives": "collectives", "copies": "copies",
        "waits": "waits", "memory": "memory of the allocator, bytes and segments", "more": "... {} more (--all)",
        "none": "nothing differs", "reordered": "the same calls in another order",
        "settings": "settings", "launches": "launches",
    },
    "zh": {
        "title": "{1} 含 {0} 个算子、集合通信、拷贝和等待，{3} 含 {2} 个",
        "operators": "算子", "shapes": "形状", "collectives": "集合通信", "copies": "拷贝",
        "waits": "等待", "memory": "内存分配器（字节与内存段）", "more": "……另有 {} 行（--all）",
        "none": "没有差异", "reordered": "调用相同，顺序不同",
        "settings": "设置", "launches": "下发次数",
    },
}  # fmt: skip


def words_of(
    found: Sequence[Difference], a: OpStream, b: OpStream, *, lang: Literal["en", "zh"], most: int
) -> str:  # fmt: skip
    """The differences as lines, by kind."""
    said = _SAID[lang]
    lines = [said["title"].format(a.count, "BASE", b.count, "HEAD")]
    changed = sorted(
        name for name in a.settings.keys() | b.settings.keys() if a.settings.get(name) != b.settings.get(name)
    )
    if changed:
        lines += [said["settings"], _show.columns(
            [(name, f"{a.settings.get(name)} -> {b.settings.get(name)}") for name in changed], indent="  "
        )]  # fmt: skip
    counts = [
        (name, f"{a.facts.get(key, '?')} -> {b.facts.get(key, '?')}")
        for key, name in (("launches", said["launches"]), ("collectives", said["collectives"]))
        if a.facts.get(key) != b.facts.get(key)
    ]
    if counts:
        lines.append(_show.columns(counts))
    for kind in ("operators", "shapes", "collectives", "copies", "waits", "memory"):
        rows = [one for one in found if one.kind == kind]
        if not rows:
            continue
        lines.append(said[kind])
        lines.append(_show.columns([_row(one) for one in rows[:most]], indent="  "))
        if len(rows) > most:
            lines.append("  " + said["more"].format(len(rows) - most))
    if not found:
        is_same = a.stream == b.stream
        lines.append(said["none"] if is_same else said["reordered"])
    return "\n".join(lines)


def _row(one: Difference) -> tuple[str, str]:
    if one.kind == "shapes":
        return f"{one.a} x", one.name
    return f"{one.b - one.a:+d} ({one.a} -> {one.b})", one.name
