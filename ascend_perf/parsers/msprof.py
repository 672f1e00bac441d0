"""Exports of the msprof command line (`PROF_*`): tables, trace, database and `analyze` output of one process.

One unit is one PROF directory, which is one process; it gives a trace for each of its devices. Raw data inside a
profile of torch_npu or MindSpore belong to that profile and are left to its reader.

Source: format reference, sections 3, 4 and 9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._msprof_facts import read_process_facts
from ascend_perf.parsers._msprof_files import (
    ANALYZE_FOLDER,
    EXPORT_FOLDER,
    Inputs,
    closed,
    device_of_folder,
    facts_below,
    files_below,
    is_prof,
    sort_files,
)
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.parsers.ascend_pt import private

NOT_EXPORTED: Final = "this profile holds raw data only (PROF_*): it has not been exported yet"
EXPORT_HINT: Final = "on a machine with CANN run: msprof --export=on --output=FOLDER, then analyze the folder again"
NOTHING: Final = "the export of this PROF directory holds no data: {names}"
AGAIN: Final = "export it again (msprof --export=on --output=FOLDER), or collect it again"


def find(folder: Folder) -> list[Unit]:
    """The process whose PROF directory the folder is; or the exports that lie in it.

    Raises:
        InputError: a PROF directory has not been exported, or nothing in its export has content.
    """
    place = folder.path
    alone = len(folder.files) == 1 and not folder.folders
    if is_prof(folder) and not alone:
        return _prof(folder)
    own = place.is_dir() and _is_part(place)
    inputs = sort_files([e for e in folder.files if e.path.suffix in (".csv", ".json", ".db")], strict=not own or alone)
    if not inputs or (not own and not (inputs.tables or inputs.traces or inputs.databases)):
        return []
    paths = _paths(folder.files, inputs)
    root = _root(place)
    context = () if root is None else _context(root)
    return [Unit(parser="msprof", label=place.name, files=paths, context=context)]


def _prof(folder: Folder) -> list[Unit]:
    entries = [e for e in files_below(folder.path) if e.size]
    if not entries:
        if folder.folders:
            raise InputError(NOT_EXPORTED, hint=EXPORT_HINT)
        return []
    if not sort_files(entries, strict=False):
        names = ", ".join(e.path.name for e in entries[:3])
        raise InputError(NOTHING.format(names=names), hint=AGAIN)
    files = tuple(e.path for e in files_below(folder.path))
    return [Unit(parser="msprof", label=folder.path.name, files=files, context=_context(folder.path))]


def _is_part(place: Path) -> bool:
    """Whether a folder is a part of a PROF directory, given by the user alone."""
    return place.name in (EXPORT_FOLDER, ANALYZE_FOLDER) or (
        place.name in ("summary", "timeline") and device_of_folder(place / "x") is not None
    )


def _root(place: Path) -> Path | None:
    """The PROF directory of a part of it; None for a folder of loose files."""
    if place.name in (EXPORT_FOLDER, ANALYZE_FOLDER):
        return place.parent
    if _is_part(place):
        return place.parent.parent
    return place if is_prof(Folder(place, (), ())) else None


def _paths(entries: tuple[FileEntry, ...], inputs: Inputs) -> tuple[Path, ...]:
    """The files that were taken, and those that were recognised and are not read."""
    parts = [*inputs.traces, *inputs.databases, *(part for parts in inputs.tables.values() for part in parts)]
    taken = {part.path for part in parts} | set(inputs.figures.values()) | {path for path, _ in inputs.left}
    return tuple(entry.path for entry in entries if entry.path in taken)


def _context(root: Path) -> tuple[Path, ...]:
    """Files of facts of a PROF directory, and the framework's beside it."""
    try:
        infos = tuple(sorted(path for path in root.parent.glob("profiler_info*.json") if path.is_file()))
    except OSError:
        infos = ()
    return (*facts_below(root), *(infos if len(infos) == 1 else ()))


def parse(unit: Unit) -> list[Trace]:
    """The traces of one process, one per device.

    Raises:
        InputError: none of its files can be read.
    """
    # Imported here: other profiles need not pay for it.
    from ascend_perf.parsers._msprof_device import read_process

    entries = [FileEntry(path, path.stat().st_size if path.exists() else 0) for path in unit.files]
    inputs = sort_files(entries, strict=False)
    if not inputs:
        raise InputError(f"{unit.label}: no file of the export has content", hint=AGAIN)
    return read_process(private(unit.label), inputs, read_process_facts(unit.context))


PARSER: Final = Parser(name="msprof", order=5, find=find, parse=parse, closed=closed)
