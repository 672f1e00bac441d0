"""Write a profile's figures in the format of another tool."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from ascend_perf.cli._progress import spinner
from ascend_perf.errors import UsageError

if TYPE_CHECKING:
    from ascend_perf.model.run import Run
    from ascend_perf.reports.exports._exporter import Exporter, Request


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
@click.option("--rank", type=int, help="The rank, where the profile holds several.")
@click.option("--step", "steps", type=int, multiple=True, help="Only this step (may be given several times).")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path),
    help="File to write; - writes to the standard output. [default: <input>.<view>.<suffix of the format>]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
def command(
    path: Path, name: str, view: str | None, rank: int | None, steps: tuple[int, ...], out: Path | None, force: bool
) -> None:
    """Write a profile's figures in the format of another tool.

    PATH is what `ascend-perf analyze` takes: a trace file, a *_ascend_pt directory, a run directory, or a folder.
    """
    from ascend_perf import pipeline
    from ascend_perf.reports.exports._exporter import Request

    exporter = _exporter(name)
    view = _view(exporter, view)
    to_stdout = out is not None and str(out) == "-"
    target = out or Path(".".join(part for part in (_stem(path), view, exporter.suffix) if part))
    if not to_stdout:
        _check_target(target, force)
    with spinner() as progress:
        run = pipeline.load(path, progress=progress)
        run = pipeline.select(run, ranks=() if rank is None else (rank,), steps=steps)
        if exporter.one_rank:
            _one_of(run)
        progress(f"writing {exporter.name}")
        request = Request(run=run, view=view)
        if to_stdout:
            said = exporter.write(request, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            said = _written(exporter, request, target)
    for skipped in run.skipped:
        click.echo(f"ascend-perf: not read: {skipped.path}: {skipped.problem}", err=True)
    for notice in said:
        click.echo(f"ascend-perf: {notice}", err=True)
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
        raise _not_writable(target, error) from None


def _written(exporter: Exporter, request: Request, target: Path) -> tuple[str, ...]:
    """Write beside the target and move: a failure leaves no half file, and a file that was there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _not_writable(target, error) from None
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
        raise _not_writable(target, error) from None


def _not_writable(target: Path, error: OSError) -> UsageError:
    return UsageError(f"{target} cannot be written: {error.strerror or error}", hint="choose another -o")


def _stem(path: Path) -> str:
    from ascend_perf.cli.analyze import _name_of

    return _name_of(path)
