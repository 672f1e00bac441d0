"""Compare result files, runs or traces, of one vendor or of several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ascend_perf.cli import _folder, _show
from ascend_perf.cli._progress import spinner
from ascend_perf.errors import UsageError, not_obeyed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ascend_perf.compare.inputs import Input
    from ascend_perf.model.comparison import Comparison

TERMINAL_ROWS = 8
"""Rows of the table of operators in the terminal."""


@click.command("compare")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="A B...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the reports. [default: none are written]")
@click.option("--format", "formats", default="html,json,md", show_default=True, help="Formats, separated by commas.")
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of text and reports."
)
@click.option(
    "--force", is_flag=True,
    help="Compare although the work differs (said on every report), and overwrite reports that are there.",
)
@click.option("--simulated", is_flag=True, help="Take simulated data too; every report then says so.")
@click.option("--rank", type=int, help="Rank whose calls are compared. [default: the first that recorded calls]")
def command(
    paths: tuple[Path, ...], out: Path | None, formats: str, lang: Literal["en", "zh"], force: bool, simulated: bool,
    rank: int | None,
) -> None:  # fmt: skip
    """Compare result files, run directories or traces; the first is the baseline.

    Kernels of different vendors meet at the operator or module that launched them. The differences of the work (model,
    shapes, batch, precision, tokens) are looked for first: other work is refused unless --force is given.

    \b
    ascend-perf compare a100-run/ 910b-run/ -o a100-910b
    ascend-perf compare before.json after.json

    Exit codes: 0 compared, 2 wrong usage, 3 an input cannot be read, 4 not comparable.
    """
    from ascend_perf.compare.make import NotComparable, compare

    if len(paths) < 2:
        raise UsageError("compare needs at least two paths", hint="ascend-perf compare BASELINE OTHER")
    chosen = _show.formats_of(formats)
    if out is not None:
        _folder.check(out, "compare", chosen, force)
    with spinner() as progress:
        inputs = [_read(path, label, progress) for path, label in zip(paths, labels(paths), strict=True)]
        progress("comparing")
        try:
            comparison = compare(inputs, force=force, simulated=simulated, rank=rank)
        except NotComparable as error:
            raise NotComparable(error.reasons, error.hint, lang) from None
    click.echo(text(comparison, lang))
    if out is not None:
        from ascend_perf.reports.compare import write_comparison

        _folder.write(out, lambda folder: write_comparison(comparison, folder, chosen, lang))


def labels(paths: Sequence[Path]) -> list[str]:
    """Names of the inputs; where they are equal, with their folder's. Never more: paths hold names of users."""
    whole = [path.resolve() for path in paths]
    names = [path.name for path in whole]
    homes = {Path("/home"), Path("/Users"), Path.home().parent}
    return [
        f"{path.parent.name}/{name}" if names.count(name) > 1 and path.parent.parent not in homes else name
        for path, name in zip(whole, names, strict=True)
    ]


def _read(path: Path, label: str, progress: Callable[[str], None]) -> Input:
    from ascend_perf import pipeline
    from ascend_perf.compare.inputs import Input
    from ascend_perf.result_files import is_result_file, read_results

    progress(f"reading {path.name}")
    if is_result_file(path):
        return Input(label=label, results=read_results(path))
    return Input(label=label, run=pipeline.load(path, progress=progress))


def text(comparison: Comparison, lang: Literal["en", "zh"]) -> str:
    """The comparison for a terminal: the answer, what to know, what stands out, the operators that differ most."""
    from ascend_perf.reports.catalogue import catalogue
    from ascend_perf.reports.compare import cell_text, in_lang, origin_line, with_units
    from ascend_perf.reports.texts import safe, said

    def line(words: str) -> str:
        # A name with a line break could begin a line of its own: a CI server obeys "::error::" there.
        return re.sub(r"[\t\n\r]+", " ", safe(words))

    texts = catalogue(lang)
    lines = [
        f"{side.letter}: {safe(side.label)} ({side.device or '—'})"
        + (f" · {texts['origin.simulated']}" if side.origin == "simulated" else "")
        for side in comparison.sides
    ]
    lines += ["", said(comparison.lead, lang), said(comparison.main, lang)]
    if comparison.origin == "simulated":
        lines.append(origin_line(comparison, lang))
    if comparison.said:
        grave = any(one.is_grave for one in comparison.said)
        lines += ["", texts["compare.unlike_forced" if grave else "compare.to_know"]]
        lines += [f"  - {said(one.what, lang)}" for one in comparison.said]
    if comparison.points:
        lines += ["", texts["compare.points"], *(f"  - {said(point, lang)}" for point in comparison.points)]
    lines = [line(one) for one in lines]
    wanted = ("name", "quantity", "time_a_ns", "time_b_ns", "delta_ns", "time_ratio", "expected_ratio")
    for section in comparison.sections:
        for table in section.tables:
            if not table.name.startswith(("compare-operators", "compare-metrics")):
                continue
            table = in_lang(with_units(table), lang)
            shown = [
                (column, cells) for column, cells in zip(table.columns, table.data, strict=True)
                if column.name in wanted or column.name.startswith(("value_", "ratio_", "low_", "high_"))
                or (column.name.startswith("kind") and table.name.startswith("compare-metrics"))
            ]  # fmt: skip
            rows = [[line(said(column.heading, lang)) for column, _ in shown]]
            rows += [
                [line(cell_text(column, cells[row], lang))[:60] for column, cells in shown]
                for row in range(min(TERMINAL_ROWS, len(table)))
            ]
            lines += ["", line(said(section.heading, lang)), _show.columns(rows, "  ")]
    return not_obeyed("\n".join(lines))
