"""MindSpore's own files about the data pipeline: dataset.csv and minddata_pipeline_*, as data_pipeline.

They hold no times of single events: counts, averages and shares over the capture.

Source: format reference, section 8.1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.parsers._ascend_csv import header, read_csv
from ascend_perf.parsers._numbers import MAX_TOTAL, bounded
from ascend_perf.parsers._source import FileEntry

MAX_BYTES: Final = 64 << 20
"""A summary beyond this is refused. Status: assumed; real ones have a few kB."""

_SUMMARY: Final = frozenset({"op_ids", "op_names", "num_workers"})
_TOTALS: Final = {
    "per_pipeline_time": "pipeline",
    "per_push_queue_time": "push to the device's queue",
    "per_batch_time": "batch",
}
"""Times per batch in ms, of the pipeline as a whole."""


def kind_of(entry: FileEntry) -> str | None:
    """`dataset`, `raw`, `summary` or `summary_json`; None for other files."""
    head = entry.head.removeprefix(b"\xef\xbb\xbf")
    if head.lstrip().startswith(b"{"):
        return "summary_json" if all(f'"{key}"'.encode() in head for key in _SUMMARY) else None
    if b"\0" in head[:1024]:
        return None
    names = frozenset(header(head))
    if {"Operation", "Stage", "Occurrences"} <= names:
        return "dataset"
    if {"op_id", "op_type", "num_workers", "output_queue_size"} <= names:
        return "raw"
    keys = {line.split(b",", 1)[0].strip() for line in head.split(b"\n", 20)[:20]}
    return "summary" if {key.encode() for key in _SUMMARY} <= keys else None


def read(path: Path, kind: str) -> Table:
    """The rows of one file.

    Raises:
        InputError: the file is damaged.
    """
    return _READERS[kind](path)


def _read_dataset(path: Path) -> Table:
    file = read_csv(path)
    name = file.text("Operation")
    keep = name.codes >= 0
    return Table(
        t.DATA_PIPELINE,
        {
            "kind": Text.full(int(keep.sum()), "stage"),
            "name": name.take(keep),
            "stage": file.text("Stage").take(keep),
            "count": bounded(file.scaled(0, "Occurrences"), 0, MAX_TOTAL)[keep],
            "average_ns": bounded(
                file.scaled(3, *(n for n in file.names if n.startswith("Avg. time"))), 0, MAX_TOTAL
            )[keep],
        },
    )


def _read_raw(path: Path) -> Table:
    file = read_csv(path)
    name = file.text("op_type")
    keep = name.codes >= 0
    return Table(
        t.DATA_PIPELINE,
        {
            "kind": Text.full(int(keep.sum()), "operator"),
            "name": name.take(keep),
            "op_id": file.ids("op_id")[keep],
            "parent": file.ids("parent_id")[keep],
            "workers": file.ids("num_workers")[keep],
            "queue_average": _known(file.floats("output_queue_average_size"))[keep],
            "queue_capacity": file.ids("output_queue_length")[keep],
            "queue_utilization_ratio": _ratio(file.floats("output_queue_usage_rate"))[keep],
        },
    )


def _read_summary_csv(path: Path) -> Table:
    """The transposed form: the first cell of a line is the key, the rest are its values."""
    rows = csv.reader(io.StringIO(_text(path).decode("utf-8", "replace"), newline=""))
    try:
        return _summary({row[0]: list(row[1:]) for row in rows if row}, path)
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file: {error}") from None


def _read_summary_json(path: Path) -> Table:
    try:
        values = msgspec.json.decode(_text(path), type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged JSON: {error}") from None
    return _summary({key: value if isinstance(value, list) else [value] for key, value in values.items()}, path)


def _text(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which no summary of a data pipeline is")
    return b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf")


def _summary(values: Mapping[str, Sequence[object]], path: Path) -> Table:
    names = [str(name) for name in values.get("op_names", ())]
    n = len(names)
    if not n:
        raise InputError(f"{path} names no operator of the data pipeline")
    totals = [(label, total) for key, label in _TOTALS.items() if (total := _total(values.get(key))) is not None]

    def column(key: str) -> Floats:
        cells = [_number(cell) for cell in values.get(key, ())][:n]
        return np.array([*cells, *[np.nan] * (n - len(cells) + len(totals))], np.float64)

    return Table(
        t.DATA_PIPELINE,
        {
            "kind": Text.of(["operator"] * n + ["total"] * len(totals)),
            "name": Text.of([*names, *(label for label, _ in totals)]),
            "op_id": _ints(column("op_ids")),
            "parent": _ints(_known(column("parent_id"))),
            "workers": _ints(_known(column("num_workers"))),
            "queue_average": _known(column("queue_average_size")),
            "queue_utilization_ratio": _ratio(column("queue_utilization_pct")),
            "queue_empty_ratio": _ratio(column("queue_empty_freq_pct")),
            "cpu_ratio": _ratio(column("avg_cpu_pct")),
            "average_ns": np.array([NULL] * n + [total for _, total in totals], np.int64),
        },
    )


def _total(cells: Sequence[object] | None) -> int | None:
    """One time in ms, or a list of times of batches: their mean, in ns."""
    numbers = np.array([_number(cell) for cell in cells or ()], np.float64)
    numbers = numbers[np.isfinite(numbers) & (numbers >= 0) & (numbers < 1e9)]
    return round(float(numbers.mean()) * 1e6) if len(numbers) else None


def _number(cell: object) -> float:
    if isinstance(cell, bool):
        return np.nan
    try:
        value = float(cell) if isinstance(cell, (int, float, str)) else np.nan
    except ValueError:
        return np.nan
    return value if np.isfinite(value) else np.nan


def _known(values: Floats) -> Floats:
    """-1 stands for unknown."""
    return np.where(values < 0, np.nan, values)


def _ratio(percent: Floats) -> Floats:
    return _known(percent) / 100


def _ints(values: Floats) -> Ints:
    usable = np.isfinite(values) & (np.abs(values) < 2.0**53)
    return np.where(usable, np.where(usable, values, 0), NULL).astype(np.int64)


_READERS: Final[dict[str, Callable[[Path], Table]]] = {
    "dataset": _read_dataset,
    "raw": _read_raw,
    "summary": _read_summary_csv,
    "summary_json": _read_summary_json,
}
ORDER: Final = ("dataset", "summary_json", "summary", "raw")
"""Of the last three the first one that is there is read: they hold the same operators."""
