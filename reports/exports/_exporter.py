"""What an exporter is, and how they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Finding, Outcome
from ascend_perf.model.run import Run
from ascend_perf.plugins import Found, load_parts
from ascend_perf.reports.texts import Lang


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to export: the run (ranks and steps already chosen), and which of the exporter's views (None: all)."""

    run: Run
    view: str | None = None
    lang: Lang = "en"
    steps: tuple[int, ...] = ()
    """Steps that were chosen; empty: all."""
    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    """As in the report; only for an exporter that `analyzes`."""
    name: str = ""
    """Name of the file (no folders), by which a format may tell that it is to be compressed."""


def _no_file(_request: Request, _target: BinaryIO) -> tuple[str, ...]:
    raise UsageError("this format writes a folder", hint="give one with -o")


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One format. A module of this folder that holds one is all that a new format needs.

    `write` writes one file and returns what the user should know of it (what was left out). It raises `InputError`
    where the run does not hold what the format shows. A format of several files has `write_folder` in its place.
    """

    name: str
    """As in `--format`."""
    suffix: str
    """Of the file or folder, without a dot."""
    summary: str
    """One line for `--help`."""
    write: Callable[[Request, BinaryIO], tuple[str, ...]] = _no_file
    write_folder: Callable[[Request, Path], tuple[str, ...]] | None = None
    """Fills a folder that is empty."""
    analyzes: bool = False
    """Whether it shows findings or result tables: then the run is analyzed before."""
    views: tuple[str, ...] = ()
    """Values of `--view`, the first is taken when none is given unless `all_views`; empty: the format has no views."""
    all_views: bool = False
    """Whether one file can hold all views: then no `--view` means all."""
    one_rank: bool = False
    """Whether a file holds one rank only."""


def exporters() -> Found[Exporter]:
    """Every exporter by name, ours and those of installed packages."""
    return load_parts("reports.exports", Exporter, lambda part: part.name)
