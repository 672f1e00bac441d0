"""Profiles of torch_npu.profiler (`*_ascend_pt`): text export, database export, or both; also op_summary*.csv.

One unit is what one folder holds of one rank. Each file is read on its own, and a file that cannot be read is named
with its problem while the others count.

Source: format reference, sections 1 to 3, 9 and 11.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._ascend_files import CONTEXT, Kind, kind_of
from ascend_perf.parsers._msprof_files import EXPORT_FOLDER, is_exported, is_torch_folder
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"

_RAW: Final = re.compile(r"FRAMEWORK|PROF_\d+_\d+_[0-9a-zA-Z]+")
_KNOWN_NAMES: Final = re.compile(
    r"(kernel_details|operator_details|op_statistic|api_statistic|step_trace_time|memory_record|operator_memory"
    r"|npu_module_mem|l2_cache)\.csv|(communication|communication_matrix|trace_view)\.json|analysis\.db"
    r"|ascend_pytorch_profiler(_\d+)?\.db"
)
_RANK_SUFFIX: Final = re.compile(r"_(\d+)\.[a-z.]+$")


def find(folder: Folder) -> list[Unit]:
    """The units of one folder: its files of a torch_npu profile, split when it holds several ranks' files.

    The facts beside them (profiler_info*.json, profiler_metadata.json) come from the folder or its parent.
    """
    kinds: dict[Path, Kind] = {}
    unusable: list[Path] = []
    for entry in folder.files:
        if entry.size == 0:
            if _KNOWN_NAMES.fullmatch(entry.path.name):
                unusable.append(entry.path)
            continue
        kind = kind_of(entry)
        if kind is not None:
            kinds[entry.path] = kind
        elif _KNOWN_NAMES.fullmatch(entry.path.name):
            unusable.append(entry.path)
    data = {path: kind for path, kind in kinds.items() if kind not in CONTEXT}
    if not data:
        if (why := raw_only(folder)) is not None:
            raise InputError(why, hint=RAW_HINT)
        # A trace_view.json may be anybody's; it alone tells nothing.
        if {path.name for path in unusable} - {"trace_view.json"}:
            names = ", ".join(path.name for path in unusable)
            raise InputError(f"these files do not hold what files of their name should: {names}", hint=COPY_HINT)
        return []
    context = _context(folder, [path for path, kind in kinds.items() if kind in CONTEXT])
    groups = _split(data)
    base = _label(folder)
    units = []
    for paths in groups:
        label = base if len(groups) == 1 else f"{base}/{_stem(paths)}" if base else _stem(paths)
        mine = (*paths, *unusable) if len(groups) == 1 else paths
        units.append(Unit(parser="ascend_pt", label=label, files=tuple(mine), context=_context_of(paths, context)))
    return units


def _label(folder: Folder) -> str:
    place = folder.path if folder.path.is_dir() else folder.path.parent
    if not folder.path.is_dir():
        return folder.path.name
    return place.parent.name if place.name == OUTPUT else place.name


def _split(data: dict[Path, Kind]) -> list[tuple[Path, ...]]:
    """Files of one rank each: a folder with several files of one kind holds several."""
    counts = Counter(data.values())
    several = {kind for kind, count in counts.items() if count > 1}
    if not several:
        return [tuple(sorted(data))]
    groups: dict[str, list[Path]] = {}
    rest = []
    for path, kind in sorted(data.items()):
        if kind in several:
            match = _RANK_SUFFIX.search(path.name)
            # Databases and files that carry a rank go together by it; others are alone.
            groups.setdefault(f"rank {match[1]}" if match else str(path), []).append(path)
        else:
            rest.append(path)
    result: list[tuple[Path, ...]] = []
    for paths in groups.values():
        own = Counter(data[path] for path in paths)
        result += [tuple(paths)] if max(own.values()) == 1 else [(path,) for path in paths]
    return result + ([tuple(rest)] if rest else [])


def _stem(paths: tuple[Path, ...]) -> str:
    return paths[0].name if len(paths) == 1 else paths[0].stem


def _context(folder: Folder, own: list[Path]) -> list[Path]:
    """Files of facts of the folder, or of its parent when it has none."""
    place = folder.path if folder.path.is_dir() else folder.path.parent
    return own or _facts_in(place) or _facts_in(place.parent)


def _facts_in(folder: Path) -> list[Path]:
    try:
        candidates = sorted(path for path in folder.glob("profiler_*.json") if path.is_file())
    except OSError:
        return []
    return [path for path in candidates if kind_of(FileEntry(path, path.stat().st_size)) in CONTEXT]


def _context_of(paths: Iterable[Path], context: list[Path]) -> tuple[Path, ...]:
    """The facts that belong to these files: with several profiler_info files only the one of their rank."""
    infos = [path for path in context if "metadata" not in path.name]
    others = tuple(path for path in context if "metadata" in path.name)
    if len(infos) <= 1:
        return (*infos, *others)
    ranks = {match[1] for path in paths if (match := _RANK_SUFFIX.search(path.name))}
    mine = [path for path in infos if (match := _RANK_SUFFIX.search(path.name)) and match[1] in ranks]
    return (mine[0],) if len(mine) == 1 else ()


def raw_only(folder: Folder) -> str | None:
    """Why a folder with raw data only cannot be read, None when that is not the case."""
    raw = sorted(path.name for path in folder.folders if _RAW.fullmatch(path.name) and not is_exported(path))
    if not raw or any(path.name == OUTPUT and any(path.iterdir()) for path in folder.folders):
        return None
    if any(path.name == EXPORT_FOLDER for path in folder.folders):
        return None
    if "FRAMEWORK" not in raw and not is_torch_folder(folder):
        return None  # msprof's own: its parser says so
    shown = ", ".join("PROF_*" if name.startswith("PROF_") else name for name in dict.fromkeys(raw))
    return f"this profile holds raw data only ({shown}): it has not been parsed yet"


RAW_HINT: Final = (
    "on a machine with torch_npu and CANN run: "
    "python -c \"from torch_npu.profiler.profiler import analyse; analyse('FOLDER')\""
    ", then analyze the folder again"
)
"""The next step for `raw_only` folders."""
COPY_HINT: Final = "copy the profile again, or export it again with torch_npu.profiler.profiler.analyse()"


def parse(unit: Unit) -> list[Trace]:
    """The trace of one rank (several, when a file mixes devices).

    Raises:
        InputError: none of the files can be read.
    """
    # Imported here: it takes 18 ms, which other profiles need not pay.
    from ascend_perf.parsers._ascend_rank import RankFiles, read_rank

    read = RankFiles(label=private(unit.label))
    for path in unit.files:
        entry = FileEntry(path, path.stat().st_size if path.exists() else 0)
        kind = kind_of(entry) if entry.size else None
        read.add(path, kind, size=entry.size)
    for path in unit.context:
        kind = kind_of(FileEntry(path, path.stat().st_size))
        if kind in CONTEXT:
            read.add(path, kind)
    if not read.by_kind:
        raise InputError(f"{unit.label}: no file of a torch_npu profile has content", hint="collect the profile again")
    return read_rank(read)


_WORKER: Final = re.compile(r"^(SIMULATED_)?.+_(\d+)_(\d{14,17})_(ascend_(?:pt|ms))$")


def private(label: str) -> str:
    """A label without the output folder, and without the host name that the producer puts in front of a name.

    That a profile is simulated stays in its label.
    """
    parts = [_WORKER.sub(r"\1\2_\3_\4", part) for part in label.split("/")]
    if len(parts) > 1 and parts[-1] == OUTPUT:
        parts = parts[:-1]
    return "/".join(parts)


PARSER: Final = Parser(name="ascend_pt", order=10, find=find, parse=parse)
