"""The CSV files of mindstudio_profiler_output/ that `msprof --export=on` would have written.

Source of names, order of columns and forms of cells: format reference, sections 1.4, 1.6 and 4.3 (newest generation).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.collectors.virtual_npu._export_counters import COLUMNS, Counters, cells
from ascend_perf.collectors.virtual_npu._export_tasks import KernelKind, Tasks, us
from ascend_perf.collectors.virtual_npu.kernels import Tensor
from ascend_perf.model.table import Ints

NO_MODEL: Final = 4294967295
"""Model id of operators that are not part of a graph."""

_SUMMARY: Final = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type",
    "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID",
)  # fmt: skip
_STATISTIC: Final = ("Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)")


def write_tables(folder: Path, stamp: str, tasks: Tasks, counters: Counters | None, *, is_level0: bool) -> None:
    """Write op_summary, op_statistic, api_statistic, communication_statistic, task_time and npu_mem.

    Args:
        folder: exists.
        stamp: digits in the names of the files.
        tasks: of the capture.
        counters: None: no PMU columns.
        is_level0: as at Level0: types, shapes and statistics of operators are not known.
    """
    _write(folder / f"op_summary_{stamp}.csv", (*_SUMMARY, *(COLUMNS if counters is not None else ())),
           _summary_rows(tasks, counters, is_level0))  # fmt: skip
    _write(
        folder / f"task_time_{stamp}.csv",
        ("Device_id", "kernel_name", "kernel_type", "stream_id", "task_id", "task_time(us)", "task_start(us)",
         "task_stop(us)"),
        _task_rows(tasks),
    )  # fmt: skip
    memory = tasks.capture.memory
    _write(
        folder / f"npu_mem_{stamp}.csv", ("Device_id", "event", "ddr(KB)", "hbm(KB)", "memory(KB)", "timestamp(us)"),
        ((tasks.capture.device_id, "APP", 0, used / 1024, used / 1024, us(time) + "\t")
         for time, used in zip(memory["time"].tolist(), memory["used"].tolist(), strict=True)),
    )  # fmt: skip
    if is_level0:
        return
    device = tasks.capture.device_id
    kinds = tasks.kinds
    keys = [(kind.kernel.op_type, kind.kernel.core) for kind in kinds]
    dur = tasks.kernels["end"] - tasks.kernels["start"]
    _write(
        folder / f"op_statistic_{stamp}.csv", ("Device_id", "OP Type", "Core Type", *_STATISTIC),
        _statistics([keys[kind] for kind in tasks.kernels["kind"].tolist()], dur, device),
    )  # fmt: skip
    if tasks.comm:
        _write(
            folder / f"communication_statistic_{stamp}.csv", ("Device_id", "OP Type", *_STATISTIC),
            _statistics([(op.op_type,) for op in tasks.comm], _lengths(tasks), device),
        )  # fmt: skip
    _write(
        folder / f"api_statistic_{stamp}.csv",
        ("Device_id", "Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
        _api_rows(tasks),
    )  # fmt: skip


def shapes(tensors: Sequence[Tensor]) -> str:
    """Shapes of tensors in quotes of their own: `"4,8;8,16"`."""
    return '"' + ";".join(",".join(map(str, tensor.shape)) for tensor in tensors) + '"'


def _lengths(tasks: Tasks) -> Ints:
    return np.array([op.end_ns - op.arrive_ns for op in tasks.comm], np.int64)


def _summary_rows(tasks: Tasks, counters: Counters | None, is_level0: bool) -> list[list[object]]:
    device, kernels = tasks.capture.device_id, tasks.kernels
    described = [_described(kind, is_level0) for kind in tasks.kinds]
    pmu = None if counters is None else cells(counters)
    rows: list[tuple[int, int, list[object]]] = []
    columns = (kernels[name].tolist() for name in ("kind", "start", "end", "stream", "task"))
    for row, (kind, start, end, stream, task) in enumerate(zip(*columns, strict=True)):
        head, tail = described[kind]
        cell = [device, NO_MODEL, task, stream, *head, us(start) + "\t", us(end - start), "", *tail]
        rows.append((start, end, [*cell, *([] if pmu is None else pmu[row])]))
    none = ["N/A"] * (0 if counters is None else len(COLUMNS))
    for op in tasks.comm:
        cell = [
            device, NO_MODEL, "N/A", "N/A", op.name, op.op_type, "N/A", "COMMUNICATION", us(op.arrive_ns) + "\t",
            us(op.end_ns - op.arrive_ns), "", 0, *["N/A"] * 9, *none,
        ]  # fmt: skip
        rows.append((op.arrive_ns, op.end_ns, cell))
    rows.sort(key=lambda row: row[0])
    before: int | None = None
    for start, end, cells_ in rows:
        cells_[10] = "0" if before is None else us(max(0, start - before))
        before = end
    return [row[2] for row in rows]


def _described(kind: KernelKind, is_level0: bool) -> tuple[list[object], list[object]]:
    """Cells of a kernel around its times, the same for each of its launches."""
    if is_level0:
        return [kind.kernel.name, "N/A", "N/A", "N/A"], [0, *["N/A"] * 9]
    inputs, outputs = kind.inputs, kind.outputs
    is_half = any(tensor.dtype == "FLOAT" for tensor in inputs) and kind.kernel.core in ("AI_CORE", "MIX_AIC")
    return (
        [kind.kernel.name, kind.kernel.op_type, "dynamic", kind.kernel.core],
        [
            kind.blocks, kind.mix_blocks, "YES" if is_half else "NO",
            *(cell for side in (inputs, outputs) for cell in (
                shapes(side), ";".join(t.dtype for t in side), ";".join(t.format for t in side))),
            "N/A",
        ],
    )  # fmt: skip


def _task_rows(tasks: Tasks) -> list[tuple[object, ...]]:
    device, kernels, copies = tasks.capture.device_id, tasks.kernels, tasks.copies
    names = [(kind.kernel.name, kind.kernel.core) for kind in tasks.kinds]
    rows: list[tuple[int, tuple[object, ...]]] = []
    for kind, stream, task, start, end in zip(
        *(kernels[name].tolist() for name in ("kind", "stream", "task", "start", "end")), strict=True
    ):
        rows.append((start, (device, *names[kind], stream, task, us(end - start), us(start) + "\t", us(end) + "\t")))
    for stream, task, start, end in zip(
        *(copies[name].tolist() for name in ("stream", "task", "start", "end")), strict=True
    ):
        rows.append(
            (start, (device, "N/A", "MEMCPY_ASYNC", stream, task, us(end - start), us(start) + "\t", us(end) + "\t"))
        )
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _statistics(keys: Sequence[tuple[str, ...]], dur: Ints, device: int) -> list[tuple[object, ...]]:
    """Count, sum, least, mean, most and share of each key, the largest sum first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for key, length in zip(keys, dur.tolist(), strict=True):
        groups.setdefault(key, []).append(length)
    whole = sum(map(sum, groups.values()))
    rows = []
    for key, lengths in sorted(groups.items(), key=lambda item: (-sum(item[1]), item[0])):
        total = sum(lengths)
        rows.append(
            (device, *key, len(lengths), us(total), us(min(lengths)), f"{total / len(lengths) / 1000:.3f}",
             us(max(lengths)), f"{total / whole * 100 if whole else 0:.3f}")
        )  # fmt: skip
    return rows


def _api_rows(tasks: Tasks) -> list[tuple[object, ...]]:
    calls = tasks.calls
    key = calls.columns["layer"] * len(calls.names) + calls.columns["name"]
    length = (calls.columns["end"] - calls.columns["start"]) / 1000.0
    rows: list[tuple[object, ...]] = []
    for number in np.unique(key).tolist():
        mine = length[key == number]
        layer, name = divmod(number, len(calls.names))
        rows.append(
            ("host", calls.layers[layer], calls.names[name], f"{mine.sum():.3f}", len(mine), f"{mine.mean():.3f}",
             f"{mine.min():.3f}", f"{mine.max():.3f}", f"{mine.var():.3f}")
        )  # fmt: skip
    return sorted(rows, key=lambda row: (str(row[1]), str(row[2])))


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file; one without rows is not written, as the exporter does not write it either."""
    listed = list(rows)
    if not listed:
        return
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(listed)
