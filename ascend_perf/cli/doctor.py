"""Check whether this machine is fit to measure, and say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from ascend_perf.cli import _show
from ascend_perf.errors import InputError, MachineError

if TYPE_CHECKING:
    from ascend_perf.collectors.doctor import Diagnosis, Line

_TAGS: Final = {
    "en": {"ok": "ok", "warning": "warning", "error": "ERROR", "absent": "absent"},
    "zh": {"ok": "正常", "warning": "警告", "error": "错误", "absent": "没有"},
}
_NAMES: Final = {
    "python": "Python", "torch": "torch", "torch-npu": "torch_npu", "versions": "配套", "cuda": "CUDA",
    "ascend": "昇腾", "device": "设备", "driver": "驱动", "firmware": "固件", "npu-smi": "npu-smi", "chip": "芯片",
    "health": "健康", "links": "链路", "ports": "网口", "cann": "CANN", "msprof": "msprof", "hccl-test": "hccl_test",
    "atc": "atc", "mspti": "msPTI", "ascend-dmi": "ascend-dmi", "nvidia": "NVIDIA", "rapl": "RAPL",
    "psutil": "psutil", "exporter": "npu-exporter", "environment": "环境变量", "limits": "限制",
    "shared memory": "共享内存", "disk": "磁盘",
    "libc": "glibc", "clock": "时钟",
}  # fmt: skip
_WORDS: Final = {
    "en": {"sum": "{} errors, {} warnings", "cure": "-> {}", "lacks": "needed and not usable here: {}"},
    "zh": {"sum": "{} 个错误，{} 个警告", "cure": "-> {}", "lacks": "所需但不可用：{}"},
}


@click.command("doctor")
@click.option(
    "--need", "needed", multiple=True, metavar="NAME",
    help="End with 4 unless this works: npu, cann, torch, torch-npu, cuda, msprof, npu-smi, nvidia, rapl, hccl-test, "
         "atc, mspti, ascend-dmi, exporter, psutil; may be repeated.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="End with 1 when a line is an error.")
@click.option("--exporter", metavar="URL", help="Ask this npu-exporter too, such as http://127.0.0.1:8082/metrics.")
@click.option(
    "--issue-report", "report_path", type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report of an issue there, with private data masked.",
)  # fmt: skip
@click.option(
    "--log", "log_path", type=click.Path(path_type=Path, dir_okay=False),
    help="Log whose first 50 lines stand in the report.",
)  # fmt: skip
@click.option("--steps", default="", metavar="TEXT", help="What you did, for the report.")
@click.option("--expected", default="", metavar="TEXT", help="What you expected, for the report.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    needed: tuple[str, ...],
    strict: bool,
    exporter: str | None,
    report_path: Path | None,
    log_path: Path | None,
    steps: str,
    expected: str,
    form: str,
    lang: Literal["en", "zh"],
) -> int:
    """Check driver, firmware, CANN, torch, torch_npu and Python, whether they belong together, environment variables,
    devices, links, tools, disk and clock; nothing is changed.

    Exit codes: 0 looked, whatever was found; 1 with --strict: a line is an error; 2 wrong usage; 3 the log cannot be
    read; 4 a collector named with --need does not work here.

    \b
    ascend-perf doctor
    ascend-perf doctor --need npu --need msprof
    ascend-perf doctor --issue-report issue.md --log train.log
    """
    from ascend_perf.collectors._machine import here
    from ascend_perf.collectors.doctor import diagnose, first_lines, lacking
    from ascend_perf.collectors.issue_report import report
    from ascend_perf.collectors.private_data import masks_of

    log = None
    if log_path is not None:
        try:
            log = first_lines(log_path)
        except OSError as failed:
            raise InputError(f"{log_path} cannot be read: {failed.strerror}", hint="check the path") from failed
    machine = here()
    with _show.working("looking at this machine"):
        diagnosis = diagnose(machine, exporter=exporter)
    lacks = lacking(diagnosis, needed)
    click.echo(_json(diagnosis, lacks) if form == "json" else text_of(diagnosis, lang))
    if report_path is not None:
        text = report(diagnosis, masks_of(machine), lang=lang, steps=steps, expected=expected, log=log)
        try:
            report_path.write_text(text, "utf-8")
        except OSError as failed:
            raise MachineError(f"{report_path} cannot be written: {failed.strerror}") from failed
        click.echo(str(report_path), err=True)
    if lacks:
        click.echo(f"ascend-perf: {_WORDS[lang]['lacks'].format(', '.join(lacks))}", err=True)
        return 4
    return 1 if strict and diagnosis.count("error") else 0


def text_of(diagnosis: Diagnosis, lang: Literal["en", "zh"] = "en") -> str:
    """A line for each part, its cure below it."""
    rows = []
    for line in diagnosis.lines:
        said = line.said.zh if lang == "zh" else line.said.en
        cure = line.cure and (line.cure.zh if lang == "zh" else line.cure.en)
        name = _NAMES.get(line.name, line.name) if lang == "zh" else line.name
        rows.append((_tag(line, lang), name, said))
        if cure:
            rows.append(("", "", _WORDS[lang]["cure"].format(cure)))
    total = _WORDS[lang]["sum"].format(diagnosis.count("error"), diagnosis.count("warning"))
    return f"{_show.columns(rows)}\n{total}"


def _tag(line: Line, lang: Literal["en", "zh"]) -> str:
    return _TAGS[lang]["absent" if line.level == "ok" and line.status == "missing" else line.level]


def _json(diagnosis: Diagnosis, lacks: list[str]) -> str:
    lines = [
        {
            "name": line.name, "level": line.level, "status": line.status,
            "said": {"en": line.said.en, "zh": line.said.zh},
            "cure": None if line.cure is None else {"en": line.cure.en, "zh": line.cure.zh},
        }
        for line in diagnosis.lines
    ]  # fmt: skip
    body = {
        "schema_version": 1, "facts": diagnosis.facts, "environment": diagnosis.environment, "lines": lines,
        "lacking": lacks,
    }  # fmt: skip
    return json.dumps(body, indent=1, ensure_ascii=False)
