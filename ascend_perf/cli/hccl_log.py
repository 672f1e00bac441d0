"""Read what HCCL wrote to logs: communicators, settings, calls, and errors with their meaning."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import InputError
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.collectors.hccl_log import Failure, ProcessLog, Scan

MOST: Final = 64
"""Processes that are shown one by one."""
_WORDS: Final = {
    "en": {
        "first": "the first error of all: {} in {}", "groups": "communicators: {}", "of": "{} ({} ranks)",
        "calls": "calls: {}", "settings": "set: {}", "named": "the heartbeat names rank {} as the first to fail",
        "clean": "no error", "more": "{} more processes", "cure": "-> {}", "unread": "not read: {}: {}",
    },
    "zh": {
        "first": "最早的错误：{}，位于 {}", "groups": "通信域：{}", "of": "{}（{} 卡）",
        "calls": "调用：{}", "settings": "已设置：{}", "named": "心跳检测指出最先失效的是 Rank {}",
        "clean": "无错误", "more": "另有 {} 个进程", "cure": "-> {}", "unread": "未读取：{}：{}",
    },
}  # fmt: skip


@click.command("hccl-log")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(path: Path | None, form: str, lang: Literal["en", "zh"]) -> int:
    """Scan PATH (a folder of CANN's logs, a plog file, or the output of a job) for HCCL.

    Without PATH the folders are searched in which CANN writes: $ASCEND_PROCESS_LOG_PATH, $ASCEND_WORK_PATH/log,
    ~/ascend/log. Sizes of calls are there when the job ran with HCCL_ENTRY_LOG_ENABLE=1. Addresses and names of hosts
    in logs of CANN are not shown.

    Exit codes: 0 no error is in the logs; 1 there is one; 3 nothing to read.
    """
    from ascend_perf.collectors import hccl_log
    from ascend_perf.collectors._machine import here

    if path is None:
        places = hccl_log.default_folders(here())
        path = next((place for place in places if place.is_dir()), None)
        if path is None:
            looked = "looked in $ASCEND_PROCESS_LOG_PATH, $ASCEND_WORK_PATH/log, ~/ascend/log"
            raise InputError("no folder of CANN's logs here", hint=looked)
    with _show.working("reading logs"):
        scan = hccl_log.scan(path)
    click.echo(_json(scan) if form == "json" else text_of(scan, lang))
    return 1 if any(process.failures for process in scan.processes) else 0


def text_of(scan: Scan, lang: Literal["en", "zh"] = "en") -> str:
    """The first error of all, then each process."""
    words = _WORDS[lang]
    lines = []
    if scan.first is not None:
        process, failure = scan.first
        lines.append(words["first"].format(_named(failure), process.label))
    # Those with errors first; the order of the files otherwise.
    ordered = sorted(scan.processes, key=lambda process: not process.failures)
    for process in ordered[:MOST]:
        lines += ["", process.label, *(f"  {line}" for line in _lines(process, lang))]
    if len(ordered) > MOST:
        lines += ["", words["more"].format(len(ordered) - MOST)]
    lines += [words["unread"].format(*row) for row in scan.unread]
    return "\n".join(lines).strip("\n")


def _lines(process: ProcessLog, lang: Literal["en", "zh"]) -> list[str]:
    words = _WORDS[lang]
    comma = "、" if lang == "zh" else ", "
    lines = []
    if process.groups:
        lines.append(words["groups"].format(comma.join(words["of"].format(*group) for group in process.groups)))
    given = {name: value for name, value in (process.settings or {}).items() if not value.endswith("(default)")}
    if given:
        lines.append(words["settings"].format(comma.join(f"{name}={value}" for name, value in given.items())))
    if process.calls:
        said = [
            f"{count} x {op}" + ("" if total is None else f" ({format_quantity(total, 'bytes')})")
            for op, count, total in process.calls
        ]
        lines.append(words["calls"].format(comma.join(said)))
    for failure in process.failures:
        about = failure.about.zh if lang == "zh" else failure.about.en
        detail = f" [{failure.detail}]" if failure.detail else ""
        lines.append(f"{failure.count} x {_named(failure)}: {about}{detail}")
        if failure.cure is not None:
            lines.append("  " + words["cure"].format(failure.cure.zh if lang == "zh" else failure.cure.en))
    lines += [words["named"].format(rank) for rank in process.named_ranks]
    return lines if process.failures else [*lines, words["clean"]]


def _named(failure: Failure) -> str:
    if failure.first_ns is None:
        return failure.name
    moment = datetime.fromtimestamp(failure.first_ns / 1e9, timezone.utc)
    return f"{failure.name} ({moment:%Y-%m-%d %H:%M:%S.%f})"[:-4] + ")"


def _json(scan: Scan) -> str:
    def failure(one: Failure) -> dict[str, Any]:
        cure = None if one.cure is None else {"en": one.cure.en, "zh": one.cure.zh}
        return {
            "name": one.name, "count": one.count, "first_ns": one.first_ns, "detail": one.detail,
            "about": {"en": one.about.en, "zh": one.about.zh}, "cure": cure,
        }  # fmt: skip

    first = None if scan.first is None else {"process": scan.first[0].label, "name": scan.first[1].name}
    body = {
        "schema_version": 1, "first": first, "unread": [list(row) for row in scan.unread],
        "processes": [
            {
                "label": process.label, "rank": process.rank,
                "groups": [{"name": name, "size": size} for name, size in process.groups],
                "settings": dict(process.settings or {}),
                "calls": [{"op": op, "count": count, "bytes": total} for op, count, total in process.calls],
                "named_ranks": list(process.named_ranks), "failures": [failure(one) for one in process.failures],
            }
            for process in scan.processes
        ],
    }  # fmt: skip
    return json.dumps(body, indent=1, ensure_ascii=False)
