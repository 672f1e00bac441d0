"""Write a profile's figures in the format of another tool."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import click

from ascend_perf.cli._progress import spinner
from ascend_perf.errors import UsageError, not_writable

if TYPE_CHECKING:
    from ascend_perf.model.run import Run
    from ascend_perf.reports.exports._exporter import Exporter, Request

_NOT_READ: Final = {"en": "not read: {}: {}", "zh": "未读取：{}：{}"}

def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the formats there are, and end."""
    from ascend_perf.reports.exports._exporter import exporters

    if not wanted or context.resilient_parsing:
        return
    for name, exporter in sorted(exporters().parts.items()):
        views = f" (--view {', '.join(exporter.views)})" if exporter.views else ""
        click.echo(f"{name}: {exporter.summary}{views}")
    context.exit()


@click.command("export")
# click's own check of permissions would end as wrong usage (2); an input that may not be read is unusable (3).
@click.argument("path", type=click.Path(path_type=Path, readable=False), metavar="PATH")
@click.option("--format", "name", required=True, metavar="NAME", help="Format, such as folded; --list names all.")
@click.option(
    "--view", metavar="VIEW",
    help="What of it, such as device-module; --list names all. [default: the first; all, where one file holds them]",
)  # fmt: skip
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Print the formats and their views."
)
@click.option("--rank", "ranks", type=int, multiple=True, help="Only this rank (may be given several times).")
@click.option("--step", "steps", type=int, multiple=True, help="Only this step (may be given several times).")
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True,
    help="Language of what ascend-perf says in the file.",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(path_type=Path),
    help="File or folder to write; - writes a file to the standard output. "
         "[default: <input>.<view>.<suffix of the format>]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite a file that is there, or a folder of an earlier export.")
def command(
    path: Path, name: str, view: str | None, ranks: tuple[int, ...], steps: tuple[int, ...], lang: Literal["en", "zh"],
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Write a profile's figures in the format of another tool.

    PATH is what `ascend-perf analyze` takes: a trace file, a *_ascend_pt directory, a run directory, or a folder.
    """
    from ascend_perf import pipeline
    from ascend_perf.reports.exports._exporter import Request
    from ascend_perf.reports.phrases import spoken
    from ascend_perf.reports.texts import safe

    exporter = _exporter(name)
    view = _view(exporter, view)
    to_stdout = out is not None and str(out) == "-"
    target = out or Path(".".join(part for part in (_stem(path), view, exporter.suffix) if part))
    if exporter.write_folder is not None:
        _check_folder(target, force, to_stdout)
    elif not to_stdout:
        _check_target(target, force)
    with spinner() as progress:
        run = pipeline.load(path, progress=progress)
        run = pipeline.select(run, ranks=ranks, steps=steps)
        if exporter.one_rank:
            _one_of(run)
        request = Request(run=run, view=view, lang=lang, steps=steps, name="" if to_stdout else target.name)
        if exporter.analyzes:
            analysis = pipeline.analyze(run, progress=progress)
            request = replace(request, outcomes=analysis.outcomes, findings=analysis.findings)
        progress(f"writing {exporter.name}")
        if exporter.write_folder is not None:
            said = _written_folder(exporter.write_folder, request, target)
        elif to_stdout:
            said = exporter.write(request, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            said = _written(exporter, request, target)
    for skipped in run.skipped:
        line = _NOT_READ[lang].format(safe(skipped.path), safe(spoken(skipped.problem or "", lang)))
        click.echo(f"ascend-perf: {line}", err=True)
    for notice in said:
        click.echo(f"ascend-perf: {spoken(notice, lang)}", err=True)
    if not to_stdout:
        click.echo(target)


def _exporter(name: str) -> Exporter:
    from ascend_perf.reports.exports._exporter import exporters

    found = exporters()
    if name in found.parts:
        return found.parts[name]
    broken = f"; {name} could not be loaded: {found.broken[name]}" if name in found.broken else ""
    raise UsageError(f"unknown format {name!r}; there are {', '.join(sorted(found.parts))}{broken}")


def _view(exporter: Exporter, view: str | None) -> str | None:
    if view is None:
        return exporter.views[0] if exporter.views and not exporter.all_views else None
    if not exporter.views:
        raise UsageError(f"{exporter.name} has no views", hint="leave --view out")
    if view not in exporter.views:
        raise UsageError(f"unknown view {view!r} of {exporter.name}; there are {', '.join(exporter.views)}")
    return view


def _one_of(run: Run) -> None:
    """One trace is asked for.

    Raises:
        UsageError: there are several.
    """
    if len(run.traces) < 2:
        return
    ranks = [trace.meta.rank for trace in run.traces]
    known = sorted({rank for rank in ranks if rank is not None})
    if len(known) > 1:
        raise UsageError(
            f"the profile holds {len(known)} ranks and this format one", hint=f"choose one, such as --rank {known[0]}"
        )
    labels = ", ".join(trace.meta.label for trace in run.traces[:4])
    raise UsageError(
        f"{len(run.traces)} traces ({labels}) are there and this format holds one", hint="give the path of one of them"
    )


def _check_target(target: Path, force: bool) -> None:
    try:
        if target.is_dir():
            raise UsageError(f"{target} is a folder, expected a file to write", hint="choose another -o")
        if target.exists() and not force:
            raise UsageError(f"{target} exists", hint="add --force to overwrite it, or choose another file with -o")
    except OSError as error:
        raise not_writable(target, error) from None


def _check_folder(target: Path, force: bool, to_stdout: bool) -> None:
    """A folder may be new, empty, or (with --force) one of an earlier export: nothing else is ever removed."""
    from ascend_perf.reports.exports._tables import is_ours

    if to_stdout:
        raise UsageError("this format writes a folder, not one file", hint="give a folder with -o")
    try:
        if not target.exists():
            return
        if not target.is_dir():
            raise UsageError(f"{target} is a file, expected a folder to write", hint="choose another -o")
        if not any(target.iterdir()):
            return
        if not is_ours(target):
            raise UsageError(f"{target} holds other files", hint="choose another folder with -o")
        if not force:
            raise UsageError(f"{target} exists", hint="add --force to overwrite it, or choose another folder with -o")
    except OSError as error:
        raise not_writable(target, error) from None


def _written_folder(
    write: Callable[[Request, Path], tuple[str, ...]], request: Request, target: Path
) -> tuple[str, ...]:
    """Write beside the target and move: a failure leaves no half folder, and a folder that was there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise not_writable(target, error) from None
    try:
        (draft / "new").mkdir()
        said = write(request, draft / "new")
        umask = os.umask(0)
        os.umask(umask)
        (draft / "new").chmod(0o777 & ~umask)
        if target.exists():
            target.rename(draft / "old")
        (draft / "new").rename(target)
    except OSError as error:
        raise not_writable(target, error) from None
    finally:
        if (draft / "old").exists() and not target.exists():
            (draft / "old").rename(target)
        shutil.rmtree(draft, ignore_errors=True)
    return said


def _written(exporter: Exporter, request: Request, target: Path) -> tuple[str, ...]:
    """Write beside the target and move: a failure leaves no half file, and a file that was there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise not_writable(target, error) from None
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            said = _guarded(exporter, request, file, target)
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return said


def _guarded(exporter: Exporter, request: Request, file: BinaryIO, target: Path) -> tuple[str, ...]:
    try:
        return exporter.write(request, file)
    except OSError as error:
        raise not_writable(target, error) from None


def _stem(path: Path) -> str:
    from ascend_perf.cli.analyze import _name_of

    return _name_of(path)
