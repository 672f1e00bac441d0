"""The tables of an Nsight Systems SQLite export as columns: activities, CUDA calls, NVTX ranges, GPUs.

Source: the SQLite export schema of the Nsight Systems documentation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Bools, Ints, Text
from ascend_perf.parsers._ascend_files import database, table_names
from ascend_perf.parsers._ascend_sqlite import Strings, columns_of, enum_text, int_columns

MAX_DUR_NS: Final = 86_400 * 10**9
"""Longer events (a day) are damage: they are dropped and counted. Status: assumed."""

_PROCESS_SHIFT: Final = 24
_ID_MASK: Final = (1 << 24) - 1
"""A global thread id holds the thread in 24 bits, above it the process in 24 bits, above that host and machine."""

_SYNC_TYPES: Final = {1: "Event sync", 2: "Stream wait event", 3: "Stream sync", 4: "Context sync"}
"""CUpti_ActivitySynchronizationType."""

_COPIES: Final = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip

NVTX_RANGES: Final = frozenset({59, 60})
"""eventType of push/pop and start/end ranges; others are marks, categories, domains and names of threads."""


@dataclass
class Rows:
    """Columns of one kind of event; `process` is in each."""

    columns: dict[str, Ints] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["start"]) if "start" in self.columns else 0

    def ints(self, name: str) -> Ints:
        """An int column; unknown when the file lacks it."""
        return self.columns[name] if name in self.columns else np.full(len(self), NULL, np.int64)

    def text(self, name: str) -> Text:
        """A text column; unknown when the file lacks it."""
        return self.texts[name] if name in self.texts else Text.full(len(self), None)

    def select(self, keep: Bools) -> Rows:
        """The rows that a mask names."""
        return Rows({n: c[keep] for n, c in self.columns.items()}, {n: c.take(keep) for n, c in self.texts.items()})


@dataclass(frozen=True)
class Gpu:
    """What the file says about a GPU."""

    name: str | None
    memory_bytes: int | None
    capability: tuple[int, int] | None


@dataclass
class Capture:
    """All that is read of one export."""

    kernels: Rows = field(default_factory=Rows)
    graphs: Rows = field(default_factory=Rows)
    copies: Rows = field(default_factory=Rows)
    sets: Rows = field(default_factory=Rows)
    syncs: Rows = field(default_factory=Rows)
    runtime: Rows = field(default_factory=Rows)
    ranges: Rows = field(default_factory=Rows)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def read_capture(path: Path) -> Capture:
    """Everything of an export that the tables of the model need.

    Raises:
        InputError: the file is damaged.
    """
    capture = Capture()
    with database(path) as connection:
        tables = table_names(connection)
        reader = _Reader(connection, tables, capture, _epoch_ns(connection))
        device = ("deviceId", "streamId", "correlationId")
        capture.kernels = reader.activity("KERNEL", *device, "demangledName", "shortName")
        capture.graphs = reader.activity("GRAPH_TRACE", *device, "graphId")
        capture.copies = reader.activity("MEMCPY", *device, "bytes", "copyKind", "srcKind", "dstKind")
        capture.sets = reader.activity("MEMSET", *device, "bytes")
        capture.syncs = reader.activity("SYNCHRONIZATION", *device, "syncType")
        capture.runtime = reader.activity("RUNTIME", "correlationId", "nameId")
        capture.ranges = reader.ranges()
        reader.name_all()
        capture.gpus = _gpus(connection, tables)
        capture.versions = _versions(connection, tables)
    return capture


class _Reader:
    """Reads tables of one open export and counts what cannot be used."""

    def __init__(self, connection: sqlite3.Connection, tables: frozenset[str], capture: Capture, epoch_ns: int) -> None:
        self.connection = connection
        self.tables = tables
        self.capture = capture
        self.epoch_ns = epoch_ns
        self.strings = Strings(connection, "StringIds")

    def activity(self, kind: str, *names: str) -> Rows:
        """Rows of a CUPTI table with usable times; empty when the file has none."""
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        if table not in self.tables:
            return Rows()
        columns = int_columns(self.connection, table, "start", "end", "globalPid", "globalTid", *names)
        return self._usable(columns)[0]

    def _usable(self, columns: dict[str, Ints]) -> tuple[Rows, Bools]:
        start, end = columns.pop("start"), columns.pop("end")
        self.capture.rows += len(start)
        unknown = (start == NULL) | (end == NULL) | (np.abs(start) > 1 << 60) | (np.abs(end) > 1 << 60)
        dur = np.where(unknown, 0, end) - np.where(unknown, 0, start)
        reasons = {
            "time stamp missing or out of range": unknown,
            "end before start": ~unknown & (dur < 0),
            "duration over a day": ~unknown & (dur > MAX_DUR_NS),
        }
        for reason, rows in reasons.items():
            if rows.any():
                self.capture.dropped[reason] = self.capture.dropped.get(reason, 0) + int(rows.sum())
        keep = ~unknown & (dur >= 0) & (dur <= MAX_DUR_NS)
        process, thread = columns.pop("globalPid"), columns.pop("globalTid")
        # Files of old versions have no process in their activities: -1 stands for the only one.
        of = np.where(process != NULL, process >> _PROCESS_SHIFT, thread >> _PROCESS_SHIFT)
        columns["process"] = np.where((process == NULL) & (thread == NULL), -1, of)
        columns["thread"] = np.where(thread == NULL, NULL, thread & _ID_MASK)
        columns["start"], columns["dur"] = np.where(unknown, 0, start) + self.epoch_ns, dur
        if "correlationId" in columns:
            ids = columns["correlationId"]
            columns["correlationId"] = np.where(ids <= 0, NULL, ids)
        return Rows(columns).select(keep), keep

    def ranges(self) -> Rows:
        """NVTX ranges with their text, which stands in the row or in the table of strings."""
        table = "NVTX_EVENTS"
        if table not in self.tables:
            return Rows()
        known = columns_of(self.connection, table)
        columns = int_columns(self.connection, table, "start", "end", "globalPid", "globalTid", "eventType", "textId")
        texts: list[str | None] = [None] * len(columns["start"])
        if "text" in known:
            texts = [
                None if row[0] is None else str(row[0]) for row in self.connection.execute(f"select text from {table}")
            ]
        own = Text.of([word or None for word in texts])
        shared = self.strings.text(columns["textId"])
        places = np.where(own.codes >= 0, own.codes, np.where(shared.codes >= 0, shared.codes + len(own.values), -1))
        kind = columns["eventType"]
        is_range = np.isin(kind, list(NVTX_RANGES)) | (kind == NULL)
        names = Text(places.astype(np.int32), [*own.values, *shared.values])
        # Marks have no end, which is no damage.
        picked = {name: values[is_range] for name, values in columns.items()}
        rows, keep = self._usable(picked)
        rows.texts["name"] = names.take(is_range).take(keep).relabel(str)
        return rows.select(rows.texts["name"].codes >= 0)

    def name_all(self) -> None:
        """Names of kernels, graphs, copies, waits and calls; and one process where a file tells none."""
        capture = self.capture
        kernels = capture.kernels
        if len(kernels):
            full, short = self.strings.text(kernels.ints("demangledName")), self.strings.text(kernels.ints("shortName"))
            codes = np.where(
                full.codes >= 0, full.codes, np.where(short.codes >= 0, short.codes + len(full.values), -1)
            )
            kernels.texts["name"] = _named(
                Text(codes.astype(np.int32), [*full.values, *short.values]), "unnamed kernel"
            )
        if len(capture.graphs):
            capture.graphs.texts["name"] = Text.of(
                ["CUDA graph" if number == NULL else f"CUDA graph {number}" for number in
                 capture.graphs.ints("graphId").tolist()]
            )  # fmt: skip
        if len(capture.copies):
            self._name_copies(capture.copies)
        if len(capture.sets):
            capture.sets.texts["name"] = Text.full(len(capture.sets), "Memset (Device)")
        if len(capture.syncs):
            kinds = enum_text(self.connection, "ENUM_CUPTI_SYNC_TYPE", _SYNC_TYPES, capture.syncs.ints("syncType"))
            # The file's own names are those of the enumeration: CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT.
            capture.syncs.texts["name"] = _named(kinds.relabel(_sync_name), "synchronisation")
        if len(capture.runtime):
            capture.runtime.texts["name"] = _named(
                self.strings.text(capture.runtime.ints("nameId")), "unnamed CUDA call"
            )
        parts = (capture.kernels, capture.graphs, capture.copies, capture.sets, capture.syncs)
        if any(len(rows) and (rows.ints("process") == -1).any() for rows in parts):
            for rows in (*parts, capture.runtime, capture.ranges):
                if len(rows):
                    rows.columns["process"] = np.full(len(rows), -1, np.int64)

    def _name_copies(self, copies: Rows) -> None:
        """`Memcpy HtoD (Pageable -> Device)`, the form of Kineto; kinds of memory only where the file names them."""
        memory: Mapping[int, str] = {}
        if "label" in columns_of(self.connection, "ENUM_CUDA_MEM_KIND"):
            memory = {
                row[0]: str(row[1]) for row in self.connection.execute("select id, label from ENUM_CUDA_MEM_KIND")
            }
        keys = zip(*(copies.ints(name).tolist() for name in ("copyKind", "srcKind", "dstKind")), strict=True)
        copies.texts["name"] = Text.of(
            [
                f"Memcpy {_COPIES.get(kind, 'unknown')}"
                + (f" ({memory[src]} -> {memory[dst]})" if src in memory and dst in memory else "")
                for kind, src, dst in keys
            ]
        )


def _named(names: Text, otherwise: str) -> Text:
    """Names are required: rows without one get a word for that."""
    if (names.codes >= 0).all():
        return names.compact().relabel(str)
    codes = np.where(names.codes < 0, len(names.values), names.codes).astype(np.int32)
    return Text(codes, [*names.values, otherwise]).compact().relabel(str)


def _sync_name(name: str) -> str:
    return name.rpartition("TYPE_")[2].replace("_", " ").capitalize()


def _epoch_ns(connection: sqlite3.Connection) -> int:
    """UTC time of the session's start, 0 when the file does not tell."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if "utcEpochNs" not in columns_of(connection, table):
        return 0
    row = connection.execute(f"select utcEpochNs from {table} limit 1").fetchone()
    return int(row[0]) if row and isinstance(row[0], int) and 0 < row[0] < 1 << 61 else 0


def _gpus(connection: sqlite3.Connection, tables: frozenset[str]) -> dict[int, Gpu]:
    """The GPUs by the number that CUDA gives them; without the table of CUDA devices by their own id."""
    if "TARGET_INFO_GPU" not in tables:
        return {}
    known = columns_of(connection, "TARGET_INFO_GPU")
    names = ("id", "name", "totalMemory", "computeMajor", "computeMinor")
    picked = ", ".join(f'"{name}"' if name in known else "null" for name in names)
    by_id = {}
    for number, name, memory, major, minor in connection.execute(f"select {picked} from TARGET_INFO_GPU"):
        capability = (major, minor) if isinstance(major, int) and isinstance(minor, int) and major > 0 else None
        by_id[number] = Gpu(
            str(name) if name else None, memory if isinstance(memory, int) and memory > 0 else None, capability
        )
    if {"gpuId", "cudaId"} <= columns_of(connection, "TARGET_INFO_CUDA_DEVICE"):
        rows = connection.execute("select distinct cudaId, gpuId from TARGET_INFO_CUDA_DEVICE").fetchall()
        # With CUDA_VISIBLE_DEVICES the number 0 of each process is another GPU: then only alike ones are named.
        by_number: dict[int, set[Gpu]] = {}
        for number, gpu in rows:
            if gpu in by_id and isinstance(number, int):
                by_number.setdefault(number, set()).add(by_id[gpu])
        if by_number:
            return {number: next(iter(found)) for number, found in by_number.items() if len(found) == 1}
    return {number: gpu for number, gpu in by_id.items() if isinstance(number, int)}


def _versions(connection: sqlite3.Connection, tables: frozenset[str]) -> dict[str, str]:
    if "META_DATA_EXPORT" not in tables or not {"name", "value"} <= columns_of(connection, "META_DATA_EXPORT"):
        return {}
    rows = connection.execute("select name, value from META_DATA_EXPORT where name = 'EXPORT_SCHEMA_VERSION'")
    row = rows.fetchone()
    return {} if row is None else {"nsys schema": str(row[1])[:20]}
