"""From a path to units: walk folders, ask each parser what it can read, by content.

The walk is bounded (depth, number of files), follows no symbolic link to a folder, and reads only file heads.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError
from ascend_perf.files import open_binary
from ascend_perf.model.trace import Source
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit
from ascend_perf.plugins import Found, load_parts

MAX_DEPTH: Final = 8
MAX_FILES: Final = 200_000
UNUSABLE: Final = "unknown"
"""Format of files whose content cannot be seen."""
TRACE_SUFFIXES: Final = (".json", ".json.gz")
"""Names of files that are reported when they cannot be read; others are none of our business."""

IN_FULL: Final = "not read: the profiles of the ranks that it sums up are read themselves"

LOOKED_FOR: Final = (
    "ASCEND_PROFILER_OUTPUT (kernel_details.csv, trace_view.json, ascend_pytorch_profiler*.db), "
    "an export of msprof (PROF_*/mindstudio_profiler_output, msprof_*.db), a cluster_analysis_output, "
    "an SQLite export of Nsight Systems or a Kineto trace (*.pt.trace.json[.gz])"
)


def parsers() -> dict[str, Parser]:
    """Every parser by name, in the order in which they are asked."""
    return dict(sorted(_found().parts.items(), key=lambda item: item[1].order))


def broken_parsers() -> dict[str, str]:
    """Parsers that could not be loaded, with the reason. Files that only they read look like none of our business."""
    return _found().broken


def _found() -> Found[Parser]:
    return load_parts("parsers", Parser, lambda parser: parser.name)


def _broken_words() -> str:
    return "".join(f"; the reader {name} could not be loaded ({why})" for name, why in broken_parsers().items())


def find_units(path: Path) -> tuple[list[Unit], list[Source]]:
    """The units below a path, and files or folders that are recognised but cannot be read, with the reason.

    Raises:
        InputError: the path does not exist, may not be read, or nothing readable lies below it.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist", hint="check the path")
    known = parsers()
    problems: list[Source] = []
    units: list[Unit] = []
    if path.is_file():
        entry = _entry(path)
        if entry.size == 0:
            raise InputError(f"{path} is empty", hint="the profile was not written to its end; record or copy it again")
        open_binary(path).close()
        units = _ask(Folder(path.parent, (entry,), ()), known, path.parent, problems)
        if not units:
            what = f"{path} is no profile that we read: {_what_it_is(entry)}{_broken_words()}"
            raise InputError(what, hint=f"expected {LOOKED_FOR}")
        return units, problems
    if not path.is_dir():
        raise InputError(
            f"{path} is neither a file nor a folder", hint="a pipe cannot be read twice: write it to a file first"
        )
    seen_files = 0
    empty: list[str] = []
    claimed: set[Path] = set()
    closed: set[Path] = set()
    for folder in _walk(path, problems):
        if folder.path in closed or not closed.isdisjoint(folder.path.parents):
            continue
        closed.update(place for parser in known.values() for place in parser.closed(folder))
        seen_files += len(folder.files)
        empty += [str(e.path.relative_to(path)) for e in folder.files if e.size == 0]
        units += _ask(folder, known, path, problems, claimed)
    if units:
        return _without_repeats(units, known, problems), problems
    if raw := [p for p in problems if p.problem and p.format != UNUSABLE]:
        first = raw[0]
        raise InputError(f"{path}: {first.problem}", hint=_hint_of(first))
    if seen_files == 0:
        raise InputError(f"{path} is an empty directory", hint=f"expected {LOOKED_FOR}")
    damaged = [p for p in problems if p.path not in empty]
    told = "".join(f"; {p.path}: {p.problem}" for p in damaged[:3])
    told += f"; empty files: {', '.join(empty[:3])}" if empty else ""
    told += _broken_words()
    raise InputError(
        f"no profile in {path}: looked for {LOOKED_FOR} among {seen_files} file(s){told}",
        hint="give the *_ascend_pt directory, its parent, or a trace file",
    )


def _entry(path: Path) -> FileEntry:
    try:
        return FileEntry(path, path.stat().st_size)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _walk(root: Path, problems: list[Source]) -> list[Folder]:
    """Folders below the root, parents first, names in order."""
    folders: list[Folder] = []
    count = 0

    def refused(error: OSError) -> None:
        name = os.path.relpath(error.filename, root) if error.filename else "?"
        problems.append(
            Source(path=name, format="folder", problem=f"{_shown(name, root)} may not be read: {error.strerror}")
        )

    seen: set[tuple[int, int]] = set()
    for current, names, file_names in os.walk(root, onerror=refused):
        here = Path(current)
        names[:] = sorted(n for n in names if not n.startswith("."))
        if len(here.relative_to(root).parts) >= MAX_DEPTH:
            names[:] = []
        entries = []
        for name in sorted(file_names):
            path = here / name
            try:
                status = path.stat()
            except OSError:
                continue
            # A file that is linked to from several places is one file.
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                entries.append(FileEntry(path, status.st_size))
        count += len(entries)
        if count > MAX_FILES:
            raise InputError(
                f"{root} holds more than {MAX_FILES} files", hint="give the directory of one job, not of all of them"
            )
        folders.append(Folder(here, tuple(entries), tuple(here / n for n in names)))
    return folders


def _ask(
    folder: Folder,
    known: dict[str, Parser],
    root: Path,
    problems: list[Source],
    claimed: set[Path] | None = None,
) -> list[Unit]:
    """The units of a folder; `claimed` are files that units have already, those of this folder are added."""
    claimed = set() if claimed is None else claimed
    units: list[Unit] = []
    for parser in known.values():
        rest = Folder(folder.path, tuple(e for e in folder.files if e.path not in claimed and e.size), folder.folders)
        try:
            found = parser.find(rest)
        except InputError as error:
            problems.append(Source(path=_relative(folder.path, root), format=parser.name, problem=str(error)))
            continue
        for unit in found:
            claimed.update(unit.files)
            label = _relative(unit.files[0] if len(unit.files) == 1 and len(folder.files) > 0 else folder.path, root)
            units.append(replace(unit, label=label if label != "." else unit.label))
    if folder.path.is_dir() and len(folder.files) > 1:
        problems += _unusable(folder, claimed, root)
    return units


def _without_repeats(units: list[Unit], known: dict[str, Parser], problems: list[Source]) -> list[Unit]:
    """The units without summaries of others that lie in the same job: below the folder that holds the summary's."""
    kept = []
    for unit in units:
        place = unit.files[0].parent.parent
        others = known[unit.parser].repeats
        if any(other.parser in others and place in other.files[0].parents for other in units):
            problems.append(Source(path=unit.label, format=unit.parser, problem=IN_FULL))
        else:
            kept.append(unit)
    return kept


def _unusable(folder: Folder, claimed: set[Path], root: Path) -> list[Source]:
    """Files that could be profiles by their names but are empty, damaged, or may not be read."""
    found = []
    for entry in folder.files:
        if entry.path in claimed or not entry.path.name.lower().endswith(TRACE_SUFFIXES):
            continue
        problem = "it is empty" if entry.size == 0 else entry.problem
        if problem:
            found.append(Source(path=_relative(entry.path, root), format=UNUSABLE, problem=problem))
    return found


def _relative(path: Path, root: Path) -> str:
    try:
        return str(path.relative_to(root))
    except ValueError:
        return path.name


def _hint_of(source: Source) -> str:
    text = source.problem or ""
    return text.split("hint: ", 1)[1] if "hint: " in text else ""


def _what_it_is(entry: FileEntry) -> str:
    head = entry.head
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)"
    if head and not text:
        return "nothing but white space"
    if not head:
        return "its content cannot be read (damaged gzip, or no permission)"
    if text[:1] in b"{[":
        return "JSON of something else (no trace events in it)"
    if head[:15] == b"SQLite format 3":
        return "an SQLite database without the tables of a profile"
    if entry.path.suffix in (".nsys-rep", ".qdrep"):
        return f"a report of Nsight Systems; export it first: nsys export --type sqlite {entry.path.name}"
    if b"\0" in head[:1024]:
        return "a binary file"
    first = text.split(b"\n", 1)[0][:80].decode("utf-8", "replace")
    return f"text that begins {first!r}"


def _shown(name: str, root: Path) -> str:
    """The folder as the user knows it: the input itself has no name relative to itself."""
    return root.name or str(root) if name == "." else name
