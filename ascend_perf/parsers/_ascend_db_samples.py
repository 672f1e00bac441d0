"""Samples in ascend_pytorch_profiler*.db: memory, counters and the exporter's Overlap Analysis.

Source: format reference, sections 3.2 to 3.4.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.parsers._ascend_sqlite import Strings, columns_of, enum_text, float_columns, int_columns
from ascend_perf.parsers._ascend_words import named

OVERLAPS: Final = {0: "COMPUTE", 1: "COMMUNICATION", 2: "COMM_NOT_OVERLAP_COMP", 3: "FREE"}
"""Fallback for files without the enumeration's table. Source: format reference, 3.4."""

_OVERLAP_NAMES: Final = {
    "COMPUTE": "Computing",
    "COMMUNICATION": "Communication",
    "COMM_NOT_OVERLAP_COMP": "Communication(Not Overlapped)",
    "FREE": "Free",
}

_COUNTERS: Final[tuple[tuple[str, str, str, str, float], ...]] = (
    ("AICORE_FREQ", "freq", "AI Core Freq", "MHz", 1.0),
    ("DDR", "read", "DDR/Read", "B/s", 1.0),
    ("DDR", "write", "DDR/Write", "B/s", 1.0),
    ("LLC", "hitRate", "LLC/Hit Rate", "ratio", 0.01),
    ("LLC", "throughput", "LLC/Throughput", "B/s", 1.0),
    ("HCCS", "txThroughput", "HCCS/Tx", "B/s", 1.0),
    ("HCCS", "rxThroughput", "HCCS/Rx", "B/s", 1.0),
    ("NIC", "bandwidth", "NIC/Bandwidth", "B/s", 1.0),
    ("ROCE", "bandwidth", "RoCE/Bandwidth", "B/s", 1.0),
)
"""Table, column, name, unit and factor of counters that have one value per sample."""


class SampleReader:
    """Reads the sample tables of one database; `rows` and `dropped` count what was read and what was not used."""

    def __init__(self, connection: sqlite3.Connection, strings: Strings) -> None:
        self.connection = connection
        self.strings = strings
        self.tables: dict[str, Table] = {}
        self.rows = 0
        self.dropped: dict[str, int] = {}

    def read(self) -> dict[str, Table]:
        """memory, memory_blocks, module_memory, counters and overlap."""
        self._memory()
        self._counters()
        self._overlap()
        return self.tables

    def _ints(self, table: str, *names: str) -> dict[str, Ints]:
        columns = int_columns(self.connection, table, *names)
        self.rows += len(next(iter(columns.values())))
        return columns

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def _memory(self) -> None:
        record = self._ints("MEMORY_RECORD", "component", "timestamp", "totalAllocated", "totalReserved", "totalActive")
        component = self.strings.text(record["component"]).compact()
        keep = (component.codes >= 0) & (record["timestamp"] != NULL)
        parts = [
            Table(
                t.MEMORY,
                {
                    "time_ns": record["timestamp"][keep],
                    "component": component.take(keep),
                    "allocated_bytes": record["totalAllocated"][keep],
                    "reserved_bytes": record["totalReserved"][keep],
                    "active_bytes": record["totalActive"][keep],
                },
            )
        ]
        process = self._ints("NPU_MEM", "type", "ddr", "hbm", "timestampNs")
        app = self.strings.text(process["type"]).equals("app") & (process["timestampNs"] != NULL)
        used = np.where(process["ddr"] == NULL, 0, process["ddr"]) + np.where(process["hbm"] == NULL, 0, process["hbm"])
        parts.append(
            Table(
                t.MEMORY,
                {
                    "time_ns": process["timestampNs"][app],
                    "component": Text.full(int(app.sum()), "APP"),
                    "reserved_bytes": used[app],
                },
            )
        )
        self.tables["memory"] = Table.concat(t.MEMORY, parts).sorted_by("time_ns")
        blocks = self._ints("OP_MEMORY", "name", "size", "allocationTime", "releaseTime")
        self.tables["memory_blocks"] = Table(
            t.MEMORY_BLOCKS,
            {
                "name": named(self.strings.text(blocks["name"]).compact()),
                "size_bytes": np.where(blocks["size"] == NULL, NULL, np.abs(blocks["size"])),
                "alloc_ns": blocks["allocationTime"],
                "free_ns": blocks["releaseTime"],
            },
        )
        modules = self._ints("NPU_MODULE_MEM", "moduleId", "timestampNs", "totalReserved")
        names = enum_text(self.connection, "ENUM_MODULE", {}, modules["moduleId"])
        keep = (names.codes >= 0) & (modules["timestampNs"] != NULL)
        self._drop("module memory of an unknown module", int((names.codes < 0).sum()))
        self.tables["module_memory"] = Table(
            t.MODULE_MEMORY,
            {
                "component": names.take(keep),
                "time_ns": modules["timestampNs"][keep],
                "reserved_bytes": np.where(modules["totalReserved"] < 0, NULL, modules["totalReserved"])[keep],
            },
        )

    def _counters(self) -> None:
        parts = []
        for table, column, counter, unit, factor in _COUNTERS:
            if not columns_of(self.connection, table):
                continue
            time = int_columns(self.connection, table, "timestampNs")["timestampNs"]
            value = float_columns(self.connection, table, column)[column] * factor
            self.rows += len(time)
            parts.append(_samples(time, Text.full(len(time), counter), unit, value))
        if columns_of(self.connection, "HBM"):
            samples = self._ints("HBM", "timestampNs", "hbmId", "type")
            value = float_columns(self.connection, "HBM", "bandwidth")["bandwidth"]
            direction = self.strings.text(samples["type"]).relabel(str.capitalize).to_list()
            controller = zip(samples["hbmId"].tolist(), direction, strict=True)
            label = Text.of([f"HBM {number}/{word or 'unknown'}" for number, word in controller])
            parts.append(_samples(samples["timestampNs"], label, "B/s", value))
        self.tables["counters"] = Table.concat(t.COUNTERS, parts).sorted_by("time_ns")

    def _overlap(self) -> None:
        rows = self._ints("OVERLAP_ANALYSIS", "startNs", "endNs", "type")
        kind = enum_text(self.connection, "ENUM_OVERLAP_ANALYSIS_TYPE", OVERLAPS, rows["type"])
        kind = kind.relabel(_OVERLAP_NAMES.get)
        keep = (kind.codes >= 0) & (rows["startNs"] != NULL) & (rows["endNs"] >= rows["startNs"])
        self.tables["overlap"] = Table(
            t.OVERLAP,
            {
                "start_ns": rows["startNs"][keep],
                "dur_ns": (rows["endNs"] - rows["startNs"])[keep],
                "kind": kind.take(keep),
            },
        )
        self.tables["overlap"] = self.tables["overlap"].sorted_by("start_ns")


def _samples(time: Ints, label: Text, unit: str, value: Floats) -> Table:
    keep = (time != NULL) & ~np.isnan(value)
    return Table(
        t.COUNTERS,
        {
            "time_ns": time[keep],
            "counter": label.take(keep),
            "unit": Text.full(int(keep.sum()), unit),
            "value": value[keep],
        },
    )
