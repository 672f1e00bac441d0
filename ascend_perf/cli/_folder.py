"""The folder that -o names, for commands that write reports of a kind into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click

from ascend_perf.errors import UsageError, not_writable


def check(out: Path, stem: str, formats: Iterable[str], force: bool) -> None:
    """Refuse, before any work, a folder that cannot take the reports.

    Raises:
        UsageError: it is a file, or a report `STEM.FORMAT` is there and `force` is not given.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, expected a folder for the reports", hint="choose another -o")
    there = [path for name in formats if (path := out / f"{stem}.{name}").exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists", hint="add --force to overwrite it, or choose another folder with -o")


def write(out: Path, written: Callable[[Path], Iterable[Path]]) -> None:
    """Make the folder, have the reports written, and print their paths below an empty line.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = list(written(out))
    except OSError as error:
        raise not_writable(out, error) from None
    click.echo("")
    for path in paths:
        click.echo(str(path))
