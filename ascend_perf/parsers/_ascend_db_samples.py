"""Samples in ascend_pytorch_profiler*.db: memory, counters and the exporter's Overlap Analysis.

Source: format reference, sections 3.2 to 3.4.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Floats, Ints, Table, Text
from ascend_perf.parsers._ascend_kernels import plausible
from ascend_perf.parsers._ascend_sqlite import Strings, columns_of, enum_text, float_columns, int_columns
from ascend_perf.parsers._ascend_words import first_known, named
from ascend_perf.parsers._numbers import sizes

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
    *(
        (table, column, f"{title}/{name}", unit, 1.0)
        for table, title in (("NIC", "NIC"), ("ROCE", "RoCE"))
        for column, name, unit in (
            ("bandwidth", "Bandwidth", "B/s"), ("rxByteRate", "Rx", "B/s"), ("txByteRate", "Tx", "B/s"),
            ("rxErrors", "Rx errors", "count"), ("txErrors", "Tx errors", "count"),
            ("rxDropped", "Rx dropped", "count"), ("txDropped", "Tx dropped", "count"),
        )
    ),
    ("NETDEV_STATS", "macTxBandwidth", "Netdev/Tx", "B/s", 1.0),
    ("NETDEV_STATS", "macRxBandwidth", "Netdev/Rx", "B/s", 1.0),
    *(
        ("NETDEV_STATS", column, f"Netdev/{name}", "count", 1.0)
        for column, name in (
            ("macTxPfcPkt", "Tx PFC"), ("macRxPfcPkt", "Rx PFC"), ("roceTxCnpPkt", "Tx CNP"),
            ("roceRxCnpPkt", "Rx CNP"),
            ("roceTxErrPkt", "Tx errors"), ("roceRxErrPkt", "Rx errors"), ("roceNewPktRty", "retries"),
        )
    ),
    *(
        ("PCIE", f"{column}Avg", f"PCIe/{name}", "B/s", 1.0)
        for column, name in (
            ("txPost", "Tx posted"), ("txNonpost", "Tx non-posted"), ("txCpl", "Tx completions"),
            ("rxPost", "Rx posted"), ("rxNonpost", "Rx non-posted"), ("rxCpl", "Rx completions"),
        )
    ),
    ("PCIE", "txNonpostLatencyAvg", "PCIe/Tx latency", "ns", 1.0),
    ("HOST_MEM_USAGE", "usage", "host memory/Usage", "ratio", 0.01),
    ("HOST_DISK_USAGE", "usage", "host disk/Usage", "ratio", 0.01),
    ("HOST_NETWORK_USAGE", "usage", "host network/Usage", "ratio", 0.01),
)  # fmt: skip
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

    def _times(self, time: Ints, table: str) -> Ints:
        """The times of a table, `NULL` where they are damage; those are counted."""
        kept = plausible(time)
        self._drop(f"{table} row with a time out of range", int(((kept == NULL) & (time != NULL)).sum()))
        return kept

    def _memory(self) -> None:
        record = self._ints("MEMORY_RECORD", "component", "timestamp", "totalAllocated", "totalReserved", "totalActive")
        component = self.strings.text(record["component"]).compact()
        time = self._times(record["timestamp"], "MEMORY_RECORD")
        keep = (component.codes >= 0) & (time != NULL)
        parts = [
            Table(
                t.MEMORY,
                {
                    "time_ns": time[keep],
                    "component": component.take(keep),
                    "allocated_bytes": sizes(record["totalAllocated"])[keep],
                    "reserved_bytes": sizes(record["totalReserved"])[keep],
                    "active_bytes": sizes(record["totalActive"])[keep],
                },
            )
        ]
        process = self._ints("NPU_MEM", "type", "ddr", "hbm", "timestampNs")
        event = self._memory_word(process["type"])
        time = self._times(process["timestampNs"], "NPU_MEM")
        app = event.equals("app") & (time != NULL)
        device = event.equals("device") & (time != NULL)
        ddr, hbm = sizes(process["ddr"]), sizes(process["hbm"])
        used = np.where(ddr == NULL, 0, ddr) + np.where(hbm == NULL, 0, hbm)
        parts.append(
            Table(
                t.MEMORY,
                {
                    "time_ns": time[app],
                    "component": Text.full(int(app.sum()), "APP"),
                    "reserved_bytes": used[app],
                },
            )
        )
        whole = Text.full(int(device.sum()), "Device/Memory")
        self._device_memory = _samples(time[device], whole, "bytes", used[device].astype(np.float64))
        parts += self._ge_memory(wanted=not len(record["timestamp"]))
        self.tables["memory"] = Table.concat(t.MEMORY, parts).sorted_by("time_ns")
        blocks = self._ints("OP_MEMORY", "name", "size", "allocationTime", "releaseTime")
        self.tables["memory_blocks"] = Table(
            t.MEMORY_BLOCKS,
            {
                "name": named(self.strings.text(blocks["name"]).compact()),
                "size_bytes": sizes(np.abs(blocks["size"])),
                "alloc_ns": self._times(blocks["allocationTime"], "OP_MEMORY"),
                "free_ns": self._times(blocks["releaseTime"], "OP_MEMORY"),
            },
        )
        if not len(blocks["size"]):
            self.tables["memory_blocks"] = self._ge_blocks()
        modules = self._ints("NPU_MODULE_MEM", "moduleId", "timestampNs", "totalReserved")
        names = enum_text(self.connection, "ENUM_MODULE", {}, modules["moduleId"])
        time = self._times(modules["timestampNs"], "NPU_MODULE_MEM")
        keep = (names.codes >= 0) & (time != NULL)
        self._drop("module memory of an unknown module", int((names.codes < 0).sum()))
        self.tables["module_memory"] = Table(
            t.MODULE_MEMORY,
            {
                "component": names.take(keep),
                "time_ns": time[keep],
                "reserved_bytes": sizes(modules["totalReserved"])[keep],
            },
        )

    def _memory_word(self, ids: Ints) -> Text:
        """Words such as app, device, allocate: of the enumeration that some versions have, else of STRING_IDS."""
        words = self.strings.text(ids)
        if not columns_of(self.connection, "ENUM_MEMORY"):
            return words
        return first_known(enum_text(self.connection, "ENUM_MEMORY", {}, ids), words)

    def _ge_memory(self, *, wanted: bool) -> list[Table]:
        """NPU_OP_MEM: memory of the graph engine after each allocation and release."""
        rows = self._ints(
            "NPU_OP_MEM", "operatorName", "addr", "type", "size", "timestampNs", "totalAllocate", "totalReserve"
        )
        rows["timestampNs"] = self._times(rows["timestampNs"], "NPU_OP_MEM")
        rows["totalAllocate"], rows["totalReserve"] = sizes(rows["totalAllocate"]), sizes(rows["totalReserve"])
        keep = rows["timestampNs"] != NULL
        self._drop("NPU_OP_MEM row without a time", int((~keep).sum()))
        order = np.flatnonzero(keep)[np.argsort(rows["timestampNs"][keep], kind="stable")]
        self._ge = {name: values[order] for name, values in rows.items()}
        if not wanted:
            return []
        return [
            Table(
                t.MEMORY,
                {
                    "time_ns": self._ge["timestampNs"],
                    "component": Text.full(len(order), "GE"),
                    "allocated_bytes": self._ge["totalAllocate"],
                    "reserved_bytes": self._ge["totalReserve"],
                },
            )
        ]

    def _ge_blocks(self) -> Table:
        """NPU_OP_MEM as blocks: an allocation lasts until the next release of its address."""
        rows = self._ge
        word = self._memory_word(rows["type"])
        taken, freed = word.equals("allocate"), word.equals("release")
        self._drop("NPU_OP_MEM row that is neither allocation nor release", int((~taken & ~freed).sum()))
        used = np.flatnonzero(taken | freed)
        used = used[np.argsort(rows["addr"][used], kind="stable")]  # each address's events in order of time
        begins, address = taken[used], rows["addr"][used]
        follows = np.zeros(len(used), bool)
        follows[:-1] = begins[:-1] & ~begins[1:] & (address[:-1] == address[1:])
        alone = ~begins
        alone[1:] &= ~follows[:-1]
        time = rows["timestampNs"][used]
        shown = np.flatnonzero(begins | alone)
        freed_at = np.where(follows, np.roll(time, -1), NULL)
        return Table(
            t.MEMORY_BLOCKS,
            {
                "name": named(self.strings.text(rows["operatorName"][used][shown]).compact()),
                "size_bytes": sizes(np.abs(rows["size"]))[used][shown],
                "alloc_ns": np.where(begins, time, NULL)[shown],
                "free_ns": np.where(begins, freed_at, time)[shown],
            },
        ).sorted_by("alloc_ns")

    def _counters(self) -> None:
        parts = [self._device_memory]
        for table, column, counter, unit, factor in _COUNTERS:
            if not columns_of(self.connection, table):
                continue
            time = self._times(int_columns(self.connection, table, "timestampNs")["timestampNs"], table)
            value = float_columns(self.connection, table, column)[column] * factor
            self.rows += len(time)
            parts.append(_samples(time, Text.full(len(time), counter), unit, value))
        if columns_of(self.connection, "HBM"):
            samples = self._ints("HBM", "timestampNs", "hbmId", "type")
            value = float_columns(self.connection, "HBM", "bandwidth")["bandwidth"]
            direction = self._memory_word(samples["type"]).relabel(str.capitalize).to_list()
            controller = zip(samples["hbmId"].tolist(), direction, strict=True)
            label = Text.of([f"HBM {number}/{word or 'unknown'}" for number, word in controller])
            parts.append(_samples(self._times(samples["timestampNs"], "HBM"), label, "B/s", value))
        parts += [self._labelled(*form) for form in _LABELLED if columns_of(self.connection, form[0])]
        self.tables["counters"] = Table.concat(t.COUNTERS, parts).sorted_by("time_ns")

    def _labelled(self, table: str, label: str, column: str, title: str, unit: str, factor: float) -> Table:
        """Counters of several things in one table: `{title} {thing}`."""
        samples = self._ints(table, "timestampNs", label)
        value = float_columns(self.connection, table, column)[column] * factor
        ids = samples[label]
        things = self.strings.text(ids) if label in ("eventName", "name") else _numbers(ids)
        time = self._times(samples["timestampNs"], table)
        return _samples(time, things.relabel(lambda word: f"{title} {word}"), unit, value)

    def _overlap(self) -> None:
        rows = self._ints("OVERLAP_ANALYSIS", "startNs", "endNs", "type")
        kind = enum_text(self.connection, "ENUM_OVERLAP_ANALYSIS_TYPE", OVERLAPS, rows["type"])
        kind = kind.relabel(_OVERLAP_NAMES.get)
        start, end = (self._times(rows[name], "OVERLAP_ANALYSIS") for name in ("startNs", "endNs"))
        keep = (kind.codes >= 0) & (start != NULL) & (end >= start)
        self.tables["overlap"] = Table(
            t.OVERLAP,
            {
                "start_ns": start[keep],
                "dur_ns": (end - start)[keep],
                "kind": kind.take(keep),
            },
        )
        self.tables["overlap"] = self.tables["overlap"].sorted_by("start_ns")


_LABELLED: Final = (
    ("QOS", "eventName", "bandwidth", "QoS", "B/s", 1.0),
    ("CPU_USAGE", "cpuId", "usage", "CPU", "ratio", 0.01),
)
"""Table, column of the thing, column of the value, title, unit and factor."""


def _numbers(ids: Ints) -> Text:
    values, codes = np.unique(ids, return_inverse=True)
    return Text(codes.astype(np.int32), [str(value) for value in values.tolist()])


def _samples(time: Ints, label: Text, unit: str, value: Floats) -> Table:
    keep = (time != NULL) & ~np.isnan(value) & (label.codes >= 0)
    return Table(
        t.COUNTERS,
        {
            "time_ns": time[keep],
            "counter": label.take(keep),
            "unit": Text.full(int(keep.sum()), unit),
            "value": value[keep],
        },
    )
