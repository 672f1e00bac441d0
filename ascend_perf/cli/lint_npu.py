"""Check the torch_npu calls of Python files against the real package: names, arguments, values, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ascend_perf.cli import _lint_output, _show
from ascend_perf.errors import InputError


@click.command("lint-npu")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="FILES...")
@click.option(
    "--wheel", type=click.Path(path_type=Path),
    help="A torch-npu wheel to check against.  [default: the release that fits the installed torch]",
)
@click.option(
    "--level", type=click.Choice(["error", "warning", "note"]), default="note", show_default=True,
    help="The least that is shown.",
)
@click.option("--strict", is_flag=True, help="End with 1 for warnings too.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "sarif", "github"]), default="text", show_default=True,
    help="github: annotations of a workflow; sarif: for code scanning.",
)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def command(
    paths: tuple[Path, ...], wheel: Path | None, level: Literal["error", "warning", "note"], strict: bool,
    form: Literal["text", "json", "sarif", "github"], lang: Literal["en", "zh"],
) -> int:  # fmt: skip
    """Check every torch_npu and torch.npu name and call in FILES, and in the *.py of folders.

    No NPU and no CANN are needed: the real torch_npu is asked, once, on the stand-in libraries of the virtual NPU.
    Files are parsed, never run. Names are followed through imports, assignments and attributes. A line that is meant
    as it is takes the comment `# lint-npu: ignore[RULE]`, a file `# lint-npu: ignore-file[RULE]`.

    \b
    ascend-perf lint-npu train.py
    ascend-perf lint-npu src/ --format sarif > lint.sarif
    ascend-perf lint-npu src/ --format github --strict

    Exit codes: 0 no error, 1 there are errors (with --strict: or warnings), 2 wrong usage, 3 a file could not be
    checked, 4 torch_npu cannot be had or run here.
    """
    from ascend_perf.collectors.virtual_npu import VirtualNpu, contract

    files = contract.python_files(paths)
    with _show.working("setting up the virtual NPU" if lang == "en" else "正在准备虚拟 NPU") as update:
        facts, _ = contract.facts_of(VirtualNpu(wheel=wheel), _show.aloud(update, lang))
        shown = contract.LEVELS[: contract.LEVELS.index(level) + 1]
        checked = []
        for path in files:
            update(f"checking {path.name}" if lang == "en" else f"正在检查 {path.name}")
            try:
                problems = contract.check_file(path, facts)
            except InputError as error:
                checked.append(_lint_output.Checked(path=str(path), unread=str(error.what)))
            else:
                kept = tuple(one for one in problems if one.level in shown)
                checked.append(_lint_output.Checked(path=str(path), problems=kept))
    report = _lint_output.Report(files=checked, torch_npu=facts.torch_npu)
    if form == "json":
        click.echo(_lint_output.as_json(report))
    elif form == "sarif":
        click.echo(_lint_output.as_sarif(report, lang))
    elif form == "github":
        if text := _lint_output.as_github(report, lang):
            click.echo(text)
    else:
        click.echo(_lint_output.as_text(report, lang))
    if report.count("error") or (strict and report.count("warning")):
        return 1
    return 3 if report.is_partly_unread else 0
