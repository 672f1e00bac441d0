"""kernel_details.csv (all generations, Level0 too) and op_summary*.csv: compute kernels and collectives.

Source: format reference, sections 1.4, 4.3, 5.2 and 9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Kind, Table, Text, Values
from ascend_perf.model.trace import Dropped
from ascend_perf.parsers._ascend_comm import op_of
from ascend_perf.parsers._ascend_csv import CsvFile, read_csv
from ascend_perf.parsers._ascend_files import CORE_NAMES, DUR_NAMES, NAME_NAMES, START_NAMES, TYPE_NAMES

MAX_DUR_NS: Final = 86_400 * 10**9
"""Longer rows (a day) are damage: they are dropped and counted. Status: assumed."""

MAX_START_NS: Final = 7_258_118_400 * 10**9
"""Later starts (year 2200) are damage: they would stretch every span, and sums could leave int64. Status: assumed."""

MIN_EPOCH_NS: Final = 10**18
"""Epoch microseconds have 16 digits since 2001; shorter ones have lost digits. Source: format reference, 9.1."""

WAIT_NAMES: Final = ("Wait Time(us)", "Task Wait Time(us)")
BLOCK_NAMES: Final = ("Block Dim", "Block Num")
MIX_BLOCK_NAMES: Final = ("Mix Block Dim", "Mix Block Num")

CORES: Final = {
    "AI_CORE": "AIC",
    "AI_CUBE": "AIC",
    "KERNEL_AICORE": "AIC",
    "AI_VECTOR_CORE": "AIV",
    "KERNEL_AIVEC": "AIV",
    "AIV": "AIV",
    "AIC": "AIC",
    "MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "MIX_AIV": "MIX_AIV",
    "KERNEL_MIX_AIV": "MIX_AIV",
    "AI_CPU": "AICPU",
    "AICPU": "AICPU",
    "KERNEL_AICPU": "AICPU",
    "DSA_SQE": "DSA",
    "DSA": "DSA",
}
"""The exporter's names of engines (1.4a, 2.3, 3.2) to ours."""

COMM_CORES: Final = frozenset({"HCCL", "COMMUNICATION"})

_PLAIN: Final = frozenset(
    {
        "Step Id", "Device_id", "Model Name", "Model ID", "Infer ID", "Task ID", "Stream ID", *NAME_NAMES, *TYPE_NAMES,
        *CORE_NAMES, *START_NAMES, *DUR_NAMES, *WAIT_NAMES, *BLOCK_NAMES, *MIX_BLOCK_NAMES, "OP State", "HF32 Eligible",
        "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
        "Context ID", "Op Name.1",
    }
)  # fmt: skip
"""Columns that are no counters."""

_COUNTERS: Final = {
    "aicore_time(us)": "aic_time_ns",
    "aic_total_cycles": "aic_total_cycles",
    "aic_mac_ratio": "aic_mac_ratio",
    "aic_scalar_ratio": "aic_scalar_ratio",
    "aic_mte1_ratio": "aic_mte1_ratio",
    "aic_mte2_ratio": "aic_mte2_ratio",
    "aic_fixpipe_ratio": "aic_fixpipe_ratio",
    "aic_icache_miss_rate": "aic_icache_miss_ratio",
    "aiv_time(us)": "aiv_time_ns",
    "aiv_total_cycles": "aiv_total_cycles",
    "aiv_vec_ratio": "aiv_vec_ratio",
    "aiv_scalar_ratio": "aiv_scalar_ratio",
    "aiv_mte2_ratio": "aiv_mte2_ratio",
    "aiv_mte3_ratio": "aiv_mte3_ratio",
    "aiv_icache_miss_rate": "aiv_icache_miss_ratio",
}
"""PipeUtilization columns of the split architecture."""

_MIX_CORE_COUNTERS: Final = {
    "total_cycles": ("aic_total_cycles", "aiv_total_cycles"),
    "aicore_time(us)": ("aic_time_ns", "aiv_time_ns"),
    "mac_ratio": ("aic_mac_ratio",),
    "scalar_ratio": ("aic_scalar_ratio", "aiv_scalar_ratio"),
    "mte1_ratio": ("aic_mte1_ratio",),
    "mte2_ratio": ("aic_mte2_ratio", "aiv_mte2_ratio"),
    "mte3_ratio": ("aiv_mte3_ratio",),
    "vec_ratio": ("aiv_vec_ratio",),
    "icache_miss_rate": ("aic_icache_miss_ratio", "aiv_icache_miss_ratio"),
}
"""The same without prefix, from chips whose one core type has both units (910A, 310P)."""

_TIME_OF_RATIO: Final = re.compile(r"(.+)_time\(us\)$")


@dataclass(frozen=True, kw_only=True)
class KernelRows:
    """What one file held. `comm` has the columns of comm_ops that the file knows; `devices` are its Device_ids."""

    kernels: Table
    comm: Table
    rows: int
    size_bytes: int
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]
    devices: tuple[int, ...]
    generation: str | None
    has_step_ids: bool
    has_types: bool
    device_of_kernel: Ints
    device_of_comm: Ints


NUMBER_COLUMNS: Final = (*START_NAMES, *DUR_NAMES, *WAIT_NAMES, "aic_total_cycles", "aiv_total_cycles")
"""Columns whose numbers hardly repeat."""


_STACK: Final = re.compile(r"\n|\s.*(?:\.py\b|\bIn file\b)", re.DOTALL)


def without_stack(name: str) -> str:
    """The name of a kernel without the call stack that MindSpore appends behind a blank or a new line."""
    match = _STACK.search(name)
    return name[: match.start()] if match else name


def read_kernels(path: Path) -> KernelRows:
    """Kernels and collectives of a kernel_details.csv or op_summary*.csv.

    Raises:
        InputError: the file cannot be read.
    """
    return kernels_of(read_csv(path, numbers=NUMBER_COLUMNS))


def kernels_of(file: CsvFile) -> KernelRows:
    """Kernels and collectives of the cells of a kernel_details.csv or op_summary*.csv."""
    warnings: list[str] = []
    start, damaged = _starts(file)
    dur = file.scaled(3, *DUR_NAMES)
    if damaged.any():
        warnings.append(
            f"{int(damaged.sum())} of {file.rows} rows have start times that lost digits (saved by a spreadsheet):"
            " their durations count, their place in time is unknown"
        )
    keep, dropped = _usable(start, damaged, dur)
    core_word = file.text(*CORE_NAMES)
    name = file.text(*NAME_NAMES, value_of=without_stack)
    op_type = file.text(*TYPE_NAMES)
    is_comm = core_word.isin(COMM_CORES) | (
        (core_word.codes < 0) & (name.flags(lambda word: word.startswith("hcom_")) | op_type.flags(_is_comm_type))
    )
    columns: dict[str, Values] = {
        "start_ns": start,
        "dur_ns": dur,
        "name": _filled(name),
        "op_type": op_type,
        "core": core_word.relabel(CORES.get),
        "stream": file.ids("Stream ID"),
        "step_id": file.ids("Step Id"),
        "task_id": file.ids("Task ID"),
        "model_id": file.ids("Model ID"),
        "block_num": file.ids(*BLOCK_NAMES),
        "mix_block_num": file.ids(*MIX_BLOCK_NAMES),
        "op_state": file.text("OP State"),
        "hf32_eligible": file.text("HF32 Eligible"),
        "input_shapes": file.text("Input Shapes", value_of=_shapes),
        "input_dtypes": file.text("Input Data Types"),
        "input_formats": file.text("Input Formats", value_of=_formats),
        "output_shapes": file.text("Output Shapes", value_of=_shapes),
        "output_dtypes": file.text("Output Data Types"),
        "output_formats": file.text("Output Formats", value_of=_formats),
        "wait_ns": file.scaled(3, *WAIT_NAMES),
        **_counters(file, warnings),
    }
    order = np.argsort(start, kind="stable")
    kernels = Table(t.KERNELS, _taken(columns, order[(keep & ~is_comm)[order]]))
    rows = order[(keep & is_comm)[order]]
    comm_columns: dict[str, Values] = {
        "start_ns": start,
        "dur_ns": dur,
        "name": _filled(name),
        "op": _filled(name).relabel(op_of),
        "stream": file.ids("Stream ID"),
        "step_id": file.ids("Step Id"),
    }
    device = file.ids("Device_id")
    return KernelRows(
        kernels=kernels,
        comm=Table(t.COMM_OPS, _taken(comm_columns, rows)),
        rows=file.rows,
        size_bytes=file.size_bytes,
        dropped=(*file.dropped, *dropped),
        warnings=tuple(warnings),
        devices=tuple(int(d) for d in np.unique(device[device != NULL]).tolist()),
        generation=_generation(file),
        has_step_ids=file.name("Step Id") is not None,
        has_types=bool((kernels.text("op_type").codes >= 0).any()),
        device_of_kernel=device[order[(keep & ~is_comm)[order]]],
        device_of_comm=device[rows],
    )


def _generation(file: CsvFile) -> str | None:
    """The generation of the exporter that the columns tell (format reference, section 10)."""
    if file.name("Block Num", "Mix Block Num"):
        return "G4"
    if file.name("Device_id"):
        return "G3"
    if file.name("OP State"):
        return "G2"
    # Without shapes the file is Level0, where G1 and G2 look alike.
    return "G1" if file.name("Input Shapes") else None


def _is_comm_type(word: str) -> bool:
    return word.startswith("hcom_")


def _filled(name: Text) -> Text:
    """Names with "unnamed" where the file has none, since a row without a name still took time."""
    if not (name.codes < 0).any():
        return name
    values = [*name.values, "unnamed"]
    return Text(np.where(name.codes < 0, len(values) - 1, name.codes).astype(np.int32), values)


def _starts(file: CsvFile) -> tuple[Ints, Bools]:
    """Start times in ns, and the rows whose time stamps lost digits (their start is unknown)."""
    column = file.name(*START_NAMES)
    if column is None:
        return np.full(file.rows, NULL, np.int64), np.zeros(file.rows, bool)
    cells = file.cells(column)
    start = file.scaled(3, column)
    exponent = (np.char.find(cells, b"E") >= 0) | (np.char.find(cells, b"e") >= 0) if len(cells) else np.empty(0, bool)
    damaged = (start != NULL) & (exponent | ((start >= 0) & (start < MIN_EPOCH_NS)))
    return np.where(damaged, NULL, start), damaged


def _usable(start: Ints, damaged: Bools, dur: Ints) -> tuple[Bools, tuple[Dropped, ...]]:
    """Rows that can be used, and counts of the others by reason."""
    reasons = (
        ("start time missing, unreadable or beyond int64", (start == NULL) & ~damaged),
        ("start time before 1970 or after 2200", (start != NULL) & ((start < 0) | (start > MAX_START_NS))),
        ("duration missing, unreadable or beyond int64", dur == NULL),
        ("negative duration", (dur != NULL) & (dur < 0)),
        ("duration over a day", dur > MAX_DUR_NS),
        ("start time over a day away from the others", far_off(start)),
    )
    keep = np.ones(len(start), bool)
    dropped = []
    for reason, rows in reasons:
        count = int((rows & keep).sum())
        keep &= ~rows
        if count:
            dropped.append(Dropped(reason=reason, count=count))
    return keep, tuple(dropped)


def far_off(start: Ints) -> Bools:
    """Starts more than a day away from the median of the known ones: damage, no capture lasts that long."""
    known = (start != NULL) & (start >= 0) & (start <= MAX_START_NS)
    if not known.any():
        return np.zeros(len(start), bool)
    middle = int(np.median(start[known]))
    far: Bools = known & (np.abs(np.where(known, start, middle) - middle) > MAX_DUR_NS)
    return far


def plausible(time: Ints) -> Ints:
    """Times of samples, `NULL` where they lie before 1970, after 2200 or over a day away from the others."""
    return np.where((time < 0) | (time > MAX_START_NS) | far_off(time), NULL, time)


def usable_spans(start: Ints, end: Ints) -> Bools:
    """Intervals of at most a day whose start is `plausible`."""
    start = plausible(start)
    known = (start != NULL) & (end != NULL)
    dur = np.where(known, end, 0) - np.where(known, start, 0)
    usable: Bools = known & (dur >= 0) & (dur <= MAX_DUR_NS) & (end >= 0)
    return usable


def _taken(columns: dict[str, Values], rows: Ints) -> dict[str, Values]:
    return {n: v.take(rows).compact() if isinstance(v, Text) else v[rows] for n, v in columns.items()}


def _shapes(word: str) -> str:
    """A shape list without the quotes of its own."""
    return word[1:-1] if len(word) >= 2 and word[0] == word[-1] == '"' else word


def _formats(word: str) -> str:
    """Formats without the prefix of G1 (`FORMAT_ND`)."""
    return word.replace("FORMAT_", "")


def _counters(file: CsvFile, warnings: list[str]) -> dict[str, Values]:
    """PMU columns: the known ones under their names in the model, all others as further float columns in SI units."""
    columns: dict[str, Values] = {}
    mapping: dict[str, tuple[str, ...]] = {name: (target,) for name, target in _COUNTERS.items()}
    if file.name("aic_total_cycles", "aiv_total_cycles") is None and file.name("total_cycles") is not None:
        mapping = dict(_MIX_CORE_COUNTERS)
        warnings.append("counters come from a chip with one core type: cube and vector counters describe the same core")
    for name, targets in mapping.items():
        if file.name(name) is None:
            continue
        for target in targets:
            columns[target] = _counter(file, name, target)
    if file.name("cube_utilization(%)") is not None:
        columns["cube_utilization_ratio"] = file.floats("cube_utilization(%)") / 100
    for name in file.names:
        if name in _PLAIN or name in mapping or name == "cube_utilization(%)" or not name:
            continue
        part = _TIME_OF_RATIO.match(name)
        if part and f"{part[1]}_ratio" in file.names:
            continue  # the time is the ratio times the core time
        values = file.floats(name)
        if np.isnan(values).all():
            continue
        target, scale = counter_name(name)
        columns.setdefault(target, values * scale)
    return columns


def _counter(file: CsvFile, name: str, target: str) -> Ints | Floats:
    if target.endswith("_ns"):
        return file.scaled(3, name)
    return file.scaled(0, name) if target.endswith("_cycles") else file.floats(name)


_UNITS: Final[tuple[tuple[str, str, float], ...]] = (
    ("(GB/s)", "_bytes_per_s", float(2**30)),
    ("(KB)", "_bytes", 1024.0),
    ("(us)", "_ns", 1000.0),
    ("(%)", "_ratio", 0.01),
)


def counter_name(name: str) -> tuple[str, float]:
    """Name of a further counter column with its unit in SI, and the factor to it (GB/s are 2**30 bytes here, 5.2)."""
    for suffix, unit, scale in _UNITS:
        if name.endswith(suffix):
            base = name.removesuffix(suffix)
            return (base if base.endswith(unit) else base + unit), scale
    return name, 1.0


def same_capture(rows: Table, other: Table) -> bool:
    """Whether two exports hold at least one common kernel (same start), or one of them is empty."""
    if not len(rows) or not len(other):
        return True
    return bool(np.isin(other.ints("start_ns"), rows.ints("start_ns")).any())


def completed(rows: Table, other: Table) -> Table:
    """Rows with the columns that they lack taken from another export of the same capture, joined by start and name."""
    if not len(rows) or not len(other):
        return rows
    starts = other.ints("start_ns")
    order = np.argsort(starts, kind="stable")
    place = np.clip(np.searchsorted(starts[order], rows.ints("start_ns")), 0, len(order) - 1)
    row = order[place]
    names = Text.concat((rows.text("name"), other.text("name"))).codes
    found = (starts[row] == rows.ints("start_ns")) & (names[: len(rows)] == names[len(rows) :][row])
    if not found.any():
        return rows
    columns: dict[str, Values] = {}
    for name in other.names:
        if rows.has(name):
            continue
        kind = rows.spec.column(name).kind
        if kind is Kind.TEXT:
            text = other.text(name)
            columns[name] = Text(np.where(found, text.codes[row], -1).astype(np.int32), text.values)
        elif kind is Kind.INT:
            columns[name] = np.where(found, other.ints(name)[row], NULL)
        else:
            columns[name] = np.where(found, other.floats(name)[row], np.nan)
    return rows.with_columns(columns)
