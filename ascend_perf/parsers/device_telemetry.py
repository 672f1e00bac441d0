"""device_telemetry.csv of our run directories: use, power, temperature, frequency and memory of devices over time.

It belongs to no rank: its samples are at Unix times, as the events of a trace.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Kind, Table, Text, Values
from ascend_perf.model.trace import Dropped, Meta, ProfilerSettings, Source, Trace
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "device telemetry"
MAX_BYTES: Final = 1 << 30
MAX_ROWS: Final = 2_000_000
"""Further rows are counted and left out: a day of 16 devices at one sample a second has fewer."""
_LIMITS: Final = {
    "use_ratio": (0.0, 1.0), "power_w": (0.0, 1e6), "temperature_c": (-100.0, 1e3), "frequency_hz": (0.0, 1e12),
    "rated_frequency_hz": (0.0, 1e12),
}  # fmt: skip
"""What a device can tell at least and at most. Status: assumed, wide."""
_NEEDED: Final = frozenset({"time_ns", "device", "power_w", "use_ratio"})

ODD_ROW: Final = "row that is no sample"
ODD_VALUE: Final = "value that no device can have"
TOO_MANY: Final = "row beyond the first two millions"


def is_telemetry(entry: FileEntry) -> bool:
    """Whether a file is ours, by its first line."""
    first = entry.head.partition(b"\n")[0].decode("utf-8", "replace")
    return {cell.strip() for cell in first.split(",")} >= _NEEDED


def find(folder: Folder) -> list[Unit]:
    """Each file of the folder is a unit of its own."""
    return [
        Unit(parser="device_telemetry", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if entry.path.suffix.lower() == ".csv" and is_telemetry(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The samples of one file.

    Raises:
        InputError: it is too large, or no row is a sample.
    """
    path = unit.files[0]
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{unit.label} is larger than {MAX_BYTES >> 30} GiB, which no telemetry is")
    rows, dropped = _read(path)
    table, odd = _table(rows) if rows else (None, 0)
    if odd:
        dropped[ODD_VALUE] = odd
    if table is None:
        raise InputError(f"{unit.label}: no row is a sample of a device")
    source = Source(
        path=unit.label, format="device telemetry", rows=len(rows), size_bytes=path.stat().st_size,
        dropped=tuple(Dropped(reason=reason, count=count) for reason, count in dropped.items()),
    )  # fmt: skip
    meta = Meta(label=unit.label, settings=ProfilerSettings(producer=PRODUCER), sources=(source,))
    return [Trace({t.TELEMETRY.name: table}, meta)]


def _read(path: Path) -> tuple[list[dict[str, str]], dict[str, int]]:
    rows: list[dict[str, str]] = []
    dropped: dict[str, int] = {}
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        # A NUL or a field without end is no line of ours; the csv module would end with an error.
        lines = (line.replace("\0", "") for line in file)
        reader = csv.DictReader(lines, quoting=csv.QUOTE_NONE)
        for row in reader:
            time, device = row.get("time_ns") or "", row.get("device") or ""
            if not (_whole(time) != NULL and device):
                dropped[ODD_ROW] = dropped.get(ODD_ROW, 0) + 1
            elif len(rows) >= MAX_ROWS:
                dropped[TOO_MANY] = dropped.get(TOO_MANY, 0) + 1
            else:
                rows.append({name: value for name, value in row.items() if isinstance(name, str) and value})
    return rows, dropped


def _table(rows: list[dict[str, str]]) -> tuple[Table, int]:
    """The table, and the number of values that were taken out."""
    odd = 0
    columns: dict[str, Values | Text] = {}
    for column in t.TELEMETRY.columns:
        cells = [row.get(column.name) for row in rows]
        if column.kind is Kind.TEXT:
            columns[column.name] = Text.of([None if cell is None else cell[:100] for cell in cells])
        elif column.kind is Kind.INT:
            columns[column.name] = np.array([_whole(cell) for cell in cells], np.int64)
        else:
            values = np.array([_float(cell) for cell in cells], np.float64)
            low, high = _LIMITS[column.name]
            strange = np.isfinite(values) & ((values < low) | (values > high))
            odd += int(strange.sum())
            columns[column.name] = np.where(strange, np.nan, values)
    return Table(t.TELEMETRY, columns), odd


def _float(cell: str | None) -> float:
    try:
        value = float(cell or "nan")
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _whole(cell: str | None) -> int:
    if not cell or not (cell.isascii() and cell.isdecimal() and len(cell) <= 19):
        return NULL
    return value if (value := int(cell)) < 1 << 62 else NULL


PARSER: Final = Parser(name="device_telemetry", order=48, find=find, parse=parse)
