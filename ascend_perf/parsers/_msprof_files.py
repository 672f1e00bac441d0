"""The files of a PROF directory of msprof: which are exports, which belong together, which of several exports counts.

Source: format reference, sections 4.1 to 4.3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ascend_perf.parsers._ascend_csv import header
from ascend_perf.parsers._ascend_files import CORE_NAMES, DUR_NAMES, NAME_NAMES, START_NAMES, Kind, kind_of
from ascend_perf.parsers._source import FileEntry, Folder

EXPORT_FOLDER: Final = "mindstudio_profiler_output"
ANALYZE_FOLDER: Final = "analyze"
TORCH_OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"

_PROF: Final = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")
_DEVICE: Final = re.compile(r"device_(\d{1,5})")
_NAME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9_]*?)(?:_slice_(\d{1,9}))?((?:_\d{1,20})*)\.(csv|json|db)")
_FACTS: Final = re.compile(r"(?:info\.json|sample\.json|start_info|end_info)(?:\.\d{1,5})?")
_DATABASE: Final = re.compile(r"msprof_\d+\.db")
MIN_STAMP_DIGITS: Final = 10
"""A trailing number this long is the time of an export; shorter ones are device, model and iteration."""

SUPERSEDED: Final = "not read: a newer export of the same data lies beside it"
NOT_EXPORT: Final = "not read: its content is not what a file of this name holds"
UNKNOWN_NAME: Final = "not read: no export of this name is known"
JSON_SUMMARY: Final = (
    "not read: a summary as JSON; export it as CSV (msprof --export=on --summary-format=csv --output=DIR)"
)


def _all(*names: str) -> tuple[frozenset[str], ...]:
    return (frozenset(names),)


_UTILIZATION: Final = (frozenset({"Core ID"}), frozenset({"Average"}), frozenset({"total_cycles"}))
COLUMNS: Final[dict[str, tuple[frozenset[str], ...]]] = {
    "op_statistic": _all("OP Type", "Core Type", "Count", "Total Time(us)"),
    "communication_statistic": _all("OP Type", "Count", "Total Time(us)"),
    "task_time": _all("kernel_name", "kernel_type", "task_time(us)"),
    "step_trace": _all("Iteration ID", "Iteration End(us)", "Iteration Time(us)"),
    "api_statistic": _all("Level", "API Name", "Time(us)"),
    "os_runtime_statistic": _all("Process ID", "Thread ID", "Name", "Time(us)"),
    "fusion_op": _all("Fusion Op", "Original Ops"),
    "aicpu": _all("Node", "Compute_time(us)", "Task_time(us)"),
    "aicpu_mi": _all("Node Name", "Queue Size"),
    "dp": _all("Action", "Source"),
    "memory_record": _all("Component", "Timestamp(us)", "Total Allocated(KB)"),
    "operator_memory": _all("Name", "Size(KB)", "Allocation Time(us)"),
    "npu_mem": _all("event", "hbm(KB)", "timestamp(us)"),
    "npu_module_mem": (
        frozenset({"Component", "Timestamp(us)", "Total Reserved(KB)"}),
        frozenset({"Component", "Timestamp(us)", "Total Reserved(MB)"}),
    ),
    "static_op_mem": _all("Graph ID", "Size(KB)"),
    "hbm": _all("Metric", "Read(MB/s)", "Write(MB/s)"),
    "ddr": _all("Metric", "Read(MB/s)", "Write(MB/s)"),
    "llc_read_write": _all("Mode", "Hit Rate(%)"),
    "l2_cache": _all("Stream Id", "Task Id", "Hit Rate", "Victim Rate"),
    "soc_pmu": _all("Stream Id", "Task Id", "TLB Hit Rate"),
    "page_fault": _all("Stream Id", "Task Id", "Page Fault Num"),
    "hccs": _all("Mode", "Max", "Min", "Average"),
    "pcie": _all("Mode", "Min", "Max", "Avg"),
    "nic": _all("Timestamp(us)", "Bandwidth(MB/s)"),
    "roce": _all("Timestamp(us)", "Bandwidth(MB/s)"),
    "dvpp": _all("Engine Type", "All Utilization(%)"),
    "ai_core_utilization": _UTILIZATION,
    "ai_vector_core_utilization": _UTILIZATION,
    "cpu_usage": _all("Cpu Type", "User(%)"),
    "msprof_tx": _all("message", "Start_time(us)", "End_time(us)"),
    **{name: (frozenset(),) for name in (
        "llc_aicpu", "llc_ctrlcpu", "llc_bandwidth", "process_cpu_usage", "sys_mem", "process_mem",
        "ai_cpu_top_function", "ctrl_cpu_top_function", "ts_cpu_top_function", "ai_cpu_pmu_events",
        "ctrl_cpu_pmu_events", "ts_cpu_pmu_events", "host_cpu_usage", "host_mem_usage", "host_disk_usage",
        "host_network_usage", "ub", "ccu_mission", "ccu_channel", "block_detail", "data_preprocess",
    )},
}  # fmt: skip
"""Columns that tell a file of each base name; one of the sets must be there. op_summary is told by its aliases."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file that holds (a part of) one export."""

    path: Path
    base: str
    ids: tuple[int, ...] = ()
    """Device, model and iteration in the names of old exports."""
    slice_number: int = 0
    stamp: int = -1
    device: int | None = None
    """The device that the folder or the name tells."""


@dataclass
class Inputs:
    """The files of one process: tables by base name in order, traces, databases, figures, and what is not read."""

    tables: dict[str, list[Part]] = field(default_factory=dict)
    traces: list[Part] = field(default_factory=list)
    databases: list[Part] = field(default_factory=list)
    figures: dict[Kind, Path] = field(default_factory=dict)
    left: list[tuple[Path, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tables or self.traces or self.databases or self.figures)


def device_of_folder(path: Path) -> int | None:
    """The number of a `device_N` folder above a file, None where there is none."""
    for folder in (path.parent, path.parent.parent):
        if match := _DEVICE.fullmatch(folder.name):
            return int(match[1])
    return None


def part_of(path: Path, base: str | None = None) -> Part | None:
    """What the name of a file tells, None when it is not the name of an export."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    numbers = [int(number) for number in match[3].split("_")[1:]]
    digits = [len(number) for number in match[3].split("_")[1:]]
    stamp = numbers.pop() if numbers and (digits[-1] >= MIN_STAMP_DIGITS or len(numbers) == 1) else -1
    device = device_of_folder(path)
    return Part(
        path=path,
        base=base or match[1],
        ids=tuple(numbers),
        slice_number=int(match[2] or 0),
        stamp=stamp,
        device=numbers[0] if device is None and numbers else device,
    )


def base_of(entry: FileEntry) -> str | None:
    """The base name of a table that a file holds, None when its content is none: `op_summary`, `hccs` ..."""
    names = frozenset(header(entry.head))
    if all(not names.isdisjoint(aliases) for aliases in (START_NAMES, DUR_NAMES, NAME_NAMES, CORE_NAMES)):
        return "op_summary"
    named = part_of(entry.path)
    base = named.base if named else ""
    if base in COLUMNS:
        return base if any(columns <= names for columns in COLUMNS[base]) and len(names) > 1 else None
    # Renamed: the columns tell, where they are of one table only.
    fitting = [base for base, sets in COLUMNS.items() if any(columns and columns <= names for columns in sets)]
    return fitting[0] if len(fitting) == 1 else None


def sort_files(entries: Iterable[FileEntry], *, strict: bool) -> Inputs:
    """Files by what they hold; of several exports of one table the newest counts.

    Args:
        entries: the files.
        strict: take only files that are named like an export, for folders that hold other things too.
    """
    found = Inputs()
    parts: list[Part] = []
    for entry in entries:
        path = entry.path
        named = part_of(path)
        if named is None or (strict and not _like_export(named)):
            if not strict and path.suffix == ".csv" and entry.size:
                found.left.append((path, UNKNOWN_NAME))
            continue
        if entry.size == 0:
            if not strict:
                found.left.append((path, EMPTY))
            continue
        if path.suffix == ".csv":
            base = base_of(entry)
            if base is not None:
                parts.append(Part(**{**named.__dict__, "base": base}))
            elif not strict:
                found.left.append((path, NOT_EXPORT if named.base in COLUMNS else UNKNOWN_NAME))
            continue
        _take_other(entry, named, parts, found, strict=strict)
    for part in _newest(parts, found):
        if part.path.suffix == ".csv":
            found.tables.setdefault(part.base, []).append(part)
        else:
            (found.databases if part.path.suffix == ".db" else found.traces).append(part)
    return found


EMPTY: Final = "the file is empty: no data was written"


def _take_other(entry: FileEntry, named: Part, parts: list[Part], found: Inputs, *, strict: bool) -> None:
    """A JSON file or a database."""
    kind = kind_of(entry)
    if kind in (Kind.COMMUNICATION, Kind.MATRIX, Kind.ANALYSIS_DB):
        if kind in found.figures:
            found.left.append((entry.path, f"a second {kind.value}: only the first was read"))
        else:
            found.figures[kind] = entry.path
    elif kind is (Kind.PROFILER_DB if entry.path.suffix == ".db" else Kind.TRACE_VIEW) and (
        entry.path.suffix == ".db" or named.base == "msprof"
    ):
        parts.append(named)
    elif strict or _FACTS.fullmatch(entry.path.name):
        return
    elif named.base in COLUMNS or named.base == "op_summary":
        # A timeline of its own beside the table of the same name (step_trace), or --summary-format=json.
        timeline = kind is Kind.TRACE_VIEW or named.base in ("step_trace", "msprof_tx")
        found.left.append((entry.path, TIMELINE if timeline else JSON_SUMMARY))
    else:
        found.left.append((entry.path, NOT_EXPORT if named.base == "msprof" else UNKNOWN_NAME))


TIMELINE: Final = "not read: the table of this name holds the same figures"


def _like_export(named: Part) -> bool:
    """Whether a name is that of an export: a known base with the time of the export or ids behind it."""
    if named.path.suffix == ".db":
        return _DATABASE.fullmatch(named.path.name) is not None
    known = named.base in COLUMNS or named.base in ("op_summary", "msprof")
    return known and (named.stamp >= 0 or bool(named.ids))


def _newest(parts: Sequence[Part], found: Inputs) -> list[Part]:
    """The parts of the newest export of each table, in order of ids and slices; the others are listed as not read."""
    groups: dict[tuple[str, str, str, int | None], list[Part]] = {}
    for part in parts:
        folder = device_of_folder(part.path)
        groups.setdefault((part.base, part.path.suffix, part.path.parent.name, folder), []).append(part)
    kept = []
    for group in groups.values():
        # An export of everything holds what the exports of single iterations hold.
        whole = [part for part in group if not part.ids]
        by_ids: dict[tuple[int, ...], list[Part]] = {}
        for part in whole or group:
            by_ids.setdefault(part.ids, []).append(part)
        mine = []
        for same in by_ids.values():
            newest = max(part.stamp for part in same)
            mine += [part for part in same if part.stamp == newest]
        found.left += [(part.path, SUPERSEDED) for part in group if part not in mine]
        kept += sorted(mine, key=lambda part: (part.ids, part.slice_number, part.path.name))
    return kept


# ---- folders ---------------------------------------------------------------------------------------------------------


def is_prof(folder: Folder) -> bool:
    """Whether a folder is a PROF directory: by its name, or by the folders that only such a directory has."""
    if _PROF.fullmatch(folder.path.name) or any(path.name == EXPORT_FOLDER for path in folder.folders):
        return True
    return any(_DEVICE.fullmatch(path.name) and any(map(_is_raw, _names(path))) for path in folder.folders)


def _is_raw(name: str) -> bool:
    return _FACTS.fullmatch(name) is not None or name in ("summary", "sqlite")


def is_torch_folder(folder: Folder) -> bool:
    """Whether a framework's profiler made the folder: PROF directories in it are its raw data."""
    if re.search(r"_ascend_(?:pt|ms)$", folder.path.name):
        return True
    if any(path.name in ("FRAMEWORK", TORCH_OUTPUT) for path in folder.folders):
        return True
    return any(re.fullmatch(r"profiler_(?:info(?:_\d+)?|metadata)\.json", e.path.name) for e in folder.files)


def is_exported(prof: Path) -> bool:
    """Whether msprof has exported a PROF directory."""
    return any(entry.size for entry in files_below(prof))


def closed(folder: Folder) -> tuple[Path, ...]:
    """Folders below that are no profiles of their own: raw data of a framework's profile, parts of a PROF directory."""
    if is_prof(folder):
        if _PROF.fullmatch(folder.path.name):
            return folder.folders
        # By another name it may hold further things.
        own = (EXPORT_FOLDER, ANALYZE_FOLDER, "host")
        return tuple(path for path in folder.folders if path.name in own or _DEVICE.fullmatch(path.name))
    if not is_torch_folder(folder):
        return ()
    profs = tuple(path for path in folder.folders if _PROF.fullmatch(path.name))
    output = next((path for path in folder.folders if path.name == TORCH_OUTPUT), None)
    if output is not None and any(entry.size for entry in _entries(output)):
        return profs
    return tuple(path for path in profs if not is_exported(path))


def files_below(prof: Path) -> list[FileEntry]:
    """The exported files of a PROF directory: beside the raw data, in the folder of exports, in that of each device."""
    found = [entry for entry in _entries(prof) if _DATABASE.fullmatch(entry.path.name)]
    for name in _names(prof):
        place = prof / name
        if name in (EXPORT_FOLDER, ANALYZE_FOLDER):
            found += _entries(place)
        elif name == "host" or _DEVICE.fullmatch(name):
            found += [*_entries(place / "summary"), *_entries(place / "timeline")]
    return [entry for entry in found if entry.path.suffix in (".csv", ".json", ".db")]


def facts_below(prof: Path) -> tuple[Path, ...]:
    """The readable files of facts of a PROF directory."""
    places = [prof, *(prof / name for name in _names(prof) if name == "host" or _DEVICE.fullmatch(name))]
    return tuple(e.path for place in places for e in _entries(place) if _FACTS.fullmatch(e.path.name))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _entries(folder: Path) -> list[FileEntry]:
    found = []
    for name in _names(folder):
        path = folder / name
        try:
            if path.is_file():
                found.append(FileEntry(path, path.stat().st_size))
        except OSError:
            continue
    return found


def place_in(label: str, path: Path) -> str:
    """A file relative to the user's input: below its PROF directory, whose label is given."""
    last = label.rpartition("/")[2]
    if last == path.name:
        return label
    parts = [path.name]
    for folder in path.parents:
        inside = folder.name in (EXPORT_FOLDER, ANALYZE_FOLDER, "summary", "timeline", "host")
        if folder.name == last or not (inside or _DEVICE.fullmatch(folder.name)):
            break
        parts.insert(0, folder.name)
    return "/".join((label, *parts))
