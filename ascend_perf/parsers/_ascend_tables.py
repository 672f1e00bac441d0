"""The smaller CSV files of a torch_npu profile: memory, and the exporter's own sums.

Source: format reference, sections 1.6 to 1.9. MB and KB of the memory files are binary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table
from ascend_perf.parsers._ascend_csv import CsvFile, read_csv
from ascend_perf.parsers._ascend_kernels import MAX_DUR_NS, plausible
from ascend_perf.parsers._numbers import MAX_TOTAL, bounded, sizes

KIB: Final = 1024.0
MIB: Final = 1024.0 * 1024.0

_STEP_COLUMNS: Final = {
    "computing_ns": "Computing",
    "communication_ns": "Communication",
    "overlapped_ns": "Overlapped",
    "communication_not_overlapped_ns": "Communication(Not Overlapped)",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "preparing_ns": "Preparing",
}


def read_step_trace(path: Path) -> tuple[CsvFile, Table]:
    """step_trace_time.csv as exported_steps."""
    file = read_csv(path)
    columns = {
        target: bounded(file.scaled(3, name), -MAX_DUR_NS, MAX_DUR_NS) for target, name in _STEP_COLUMNS.items()
    }
    columns["step_id"] = file.ids("Step")
    columns["device"] = file.ids("Device_id")
    return file, Table(t.EXPORTED_STEPS, columns)


def read_op_statistic(path: Path) -> tuple[CsvFile, Table]:
    """op_statistic.csv as exported_ops."""
    file = read_csv(path)
    return file, op_statistic_of(file)


def op_statistic_of(file: CsvFile) -> Table:
    """The cells of an op_statistic*.csv as exported_ops."""
    op_type = file.text("OP Type")
    keep = op_type.codes >= 0
    return Table(
        t.EXPORTED_OPS,
        {
            "op_type": op_type.take(keep),
            "core": file.text("Core Type").take(keep),
            "count": bounded(file.scaled(0, "Count"), 0, MAX_TOTAL)[keep],
            "total_ns": bounded(file.scaled(3, "Total Time(us)"), 0, MAX_TOTAL)[keep],
        },
    )


def read_api_statistic(path: Path) -> tuple[CsvFile, Table]:
    """api_statistic.csv as exported_apis."""
    file = read_csv(path)
    return file, api_statistic_of(file)


def api_statistic_of(file: CsvFile) -> Table:
    """The cells of an api_statistic*.csv as exported_apis."""
    api = file.text("API Name")
    keep = api.codes >= 0
    return Table(
        t.EXPORTED_APIS,
        {
            "api": api.take(keep),
            "layer": file.text("Level", value_of=layer_of).take(keep),
            "count": bounded(file.scaled(0, "Count"), 0, MAX_TOTAL)[keep],
            "total_ns": bounded(file.scaled(3, "Time(us)"), 0, MAX_TOTAL)[keep],
            "max_ns": bounded(file.scaled(3, "Max(us)"), 0, MAX_TOTAL)[keep],
        },
    )


def layer_of(word: str) -> str:
    """Layer of a host call; collectives are `hccl` in all generations (G3 writes `communication`)."""
    return "hccl" if word == "communication" else word


def read_memory_record(path: Path) -> tuple[CsvFile, Table]:
    """memory_record.csv as memory."""
    file = read_csv(path, numbers=("Timestamp(us)",))
    return file, memory_record_of(file)


def memory_record_of(file: CsvFile) -> Table:
    """The cells of a memory_record*.csv as memory."""
    time, keep = _times(file)
    component = file.text("Component")
    keep &= component.codes >= 0
    return Table(
        t.MEMORY,
        {
            "time_ns": time[keep],
            "component": component.take(keep),
            "allocated_bytes": _bytes(file, "Total Allocated")[keep],
            "reserved_bytes": _bytes(file, "Total Reserved")[keep],
            "active_bytes": _bytes(file, "Total Active")[keep],
        },
    ).sorted_by("time_ns")


def read_operator_memory(path: Path) -> tuple[CsvFile, Table]:
    """operator_memory.csv as memory_blocks. A block without allocation time (its size is negative) is older than
    the capture, one without release time outlived it."""
    file = read_csv(path, numbers=("Allocation Time(us)", "Release Time(us)"), skip=_UNUSED_BLOCK_COLUMNS)
    return file, operator_memory_of(file)


def operator_memory_of(file: CsvFile) -> Table:
    """The cells of an operator_memory*.csv as memory_blocks. msprof's own form has a duration, no release time."""
    name = file.text("Name")
    alloc = plausible(file.scaled(3, "Allocation Time(us)"))
    free = plausible(file.scaled(3, "Release Time(us)"))
    if file.name("Release Time(us)") is None:
        dur = file.scaled(3, "Duration(us)")
        known = (alloc != NULL) & (dur >= 0) & (dur <= MAX_DUR_NS)
        free = np.where(known, alloc + np.where(known, dur, 0), NULL)
    size = file.floats("Size(KB)") * KIB
    keep = name.codes >= 0
    return Table(
        t.MEMORY_BLOCKS,
        {
            "name": name.take(keep),
            "size_bytes": sizes(np.abs(size))[keep],
            "alloc_ns": alloc[keep],
            "free_ns": free[keep],
        },
    )


_UNUSED_BLOCK_COLUMNS: Final = (
    "Active Release Time(us)", "Duration(us)", "Active Duration(us)", "Allocation Total Allocated(MB)",
    "Allocation Total Reserved(MB)", "Allocation Total Active(MB)", "Release Total Allocated(MB)",
    "Release Total Reserved(MB)", "Release Total Active(MB)", "Stream Ptr", "Device Type",
)  # fmt: skip


def read_module_memory(path: Path) -> tuple[CsvFile, Table]:
    """npu_module_mem.csv as module_memory; -1 (only a free was seen) is unknown."""
    file = read_csv(path, numbers=("Timestamp(us)",))
    return file, module_memory_of(file)


def module_memory_of(file: CsvFile) -> Table:
    """The cells of an npu_module_mem*.csv as module_memory."""
    time, keep = _times(file)
    component = file.text("Component")
    keep &= component.codes >= 0
    return Table(
        t.MODULE_MEMORY,
        {
            "time_ns": time[keep],
            "component": component.take(keep),
            "reserved_bytes": _bytes(file, "Total Reserved")[keep],
        },
    )


def read_l2_cache(path: Path) -> tuple[CsvFile, dict[tuple[int, int, str], tuple[float, float]]]:
    """l2_cache.csv: (stream, task, name) to (hit ratio, victim ratio), NaN where it says N/A."""
    file = read_csv(path)
    keys = zip(
        file.scaled(0, "Stream Id").tolist(), file.scaled(0, "Task Id").tolist(), file.text("Op Name").to_list(),
        strict=True,
    )  # fmt: skip
    values = zip(file.floats("Hit Rate").tolist(), file.floats("Victim Rate").tolist(), strict=True)
    return file, {(s, task, name or ""): pair for (s, task, name), pair in zip(keys, values, strict=True)}


def with_l2_cache(kernels: Table, ratios: dict[tuple[int, int, str], tuple[float, float]]) -> Table:
    """The kernels with `l2_hit_ratio` and `l2_victim_ratio`, as far as the file has them."""
    if not ratios or not len(kernels):
        return kernels
    unknown = (np.nan, np.nan)
    keys = zip(
        kernels.ints("stream").tolist(), kernels.ints("task_id").tolist(), kernels.text("name").to_list(), strict=True
    )
    pairs = np.array([ratios.get((s, task, name or ""), unknown) for s, task, name in keys], np.float64)
    columns = {"l2_hit_ratio": pairs[:, 0].copy(), "l2_victim_ratio": pairs[:, 1].copy()}
    return kernels.with_columns({name: values for name, values in columns.items() if not np.isnan(values).all()})


def _times(file: CsvFile) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    time = plausible(file.scaled(3, "Timestamp(us)"))
    return time, time != NULL


def _bytes(file: CsvFile, name: str) -> Ints:
    if file.name(f"{name}(MB)"):
        return sizes(file.floats(f"{name}(MB)") * MIB)
    return sizes(file.floats(f"{name}(KB)") * KIB)

