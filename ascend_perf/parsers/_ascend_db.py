"""ascend_pytorch_profiler*.db: the tables of CANN and of torch_npu as ours.

Source: format reference, sections 3.1 to 3.5. Enumerations are resolved through the file's own tables.
"""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table, TableSpec, Text, Values
from ascend_perf.parsers._ascend_comm import op_of
from ascend_perf.parsers._ascend_db_counters import read_counters
from ascend_perf.parsers._ascend_db_samples import SampleReader
from ascend_perf.parsers._ascend_files import database, table_names
from ascend_perf.parsers._ascend_kernels import CORES, MAX_DUR_NS, MAX_START_NS, far_off, usable_spans
from ascend_perf.parsers._ascend_meta import Facts, take_metadata
from ascend_perf.parsers._ascend_sqlite import (
    Strings,
    columns_of,
    enum_text,
    first_rows,
    int_columns,
    look_up,
    only_device,
)
from ascend_perf.parsers._ascend_steps import HostSteps
from ascend_perf.parsers._ascend_tables import layer_of
from ascend_perf.parsers._ascend_words import (
    NO_RANK,
    copy_kind,
    enum_word,
    event_kind,
    first_known,
    frames,
    lines,
    named,
    queued_kind,
    sizes,
    step_number,
)
from ascend_perf.parsers._numbers import MAX_TOTAL, bounded
from ascend_perf.parsers._python_frames import MIN_CALL_NS, SHORT_CALLS, python_calls

DATA_TYPES: Final = {
    0: "INT8", 1: "INT16", 2: "INT32", 3: "FP16", 4: "FP32", 5: "INT64", 6: "UINT64", 7: "UINT8", 8: "UINT16",
    9: "UINT32", 10: "FP64", 11: "BFP16", 12: "INT128", 14: "HIF8", 15: "FP8E4M3", 16: "FP8E5M2", 17: "FP8E8M0",
}  # fmt: skip
LINKS: Final = {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE"}
TRANSPORTS: Final = {0: "SDMA", 1: "RDMA", 2: "LOCAL", 3: "UB", 4: "ROCE"}
API_TYPES: Final = {
    20000: "acl", 15000: "model", 10000: "node", 5500: "hccl", 5000: "runtime", 50001: "op", 50002: "queue",
    50003: "trace", 50004: "mstx",
}  # fmt: skip
COPIES: Final = {
    0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device", 6: "host to device ex",
    7: "device to host ex",
}  # fmt: skip
"""Fallbacks for files without the enumeration's table. Source: format reference, 3.4."""


_NUMBERED: Final = frozenset(
    {
        "connectionId", "deviceId", "streamId", "taskId", "modelId", "planeId", "srcRank", "dstRank", "rankSize",
        "blockDim", "blockNum", "mixBlockDim", "mixBlockNum", "sequenceNumber", "callchainId", "size", "count",
    }
)  # fmt: skip
"""Columns of ids, counts and sizes, in which -1 and its 32 bits (`NO_RANK`) stand for "none"."""


@dataclass
class Database:
    """The tables of one database, and what the rest of the rank needs of it."""

    tables: dict[str, Table] = field(default_factory=dict)
    host_steps: HostSteps = field(default_factory=lambda: HostSteps.of([]))
    launches: tuple[Ints, Ints] = field(default_factory=lambda: (np.empty(0, np.int64), np.empty(0, np.int64)))
    """Start of the framework operator of each kernel and collective, `NULL` where unknown."""
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    generation: str | None = None
    device_of_kernel: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    device_of_comm: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def drop(self, reason: str, count: int) -> None:
        """Count rows that were not used."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


def read_database(path: Path, facts: Facts, *, device: int | None = None) -> Database:
    """All tables of a profiler database; facts (rank, device, environment) go to `facts`.

    Args:
        path: the database.
        facts: is added to.
        device: only the rows of this device, in a database of several; rows of the host come with each.

    Raises:
        InputError: the file is no database, or is damaged.
    """
    with database(path) as connection:
        if device is not None:
            only_device(connection, device)
        return _Reader(connection, facts, path.name).read()


@dataclass
class _Tasks:
    """TASK: device tasks, in order of globalTaskId."""

    ids: Ints
    columns: dict[str, Ints]


class _Reader:
    def __init__(self, connection: sqlite3.Connection, facts: Facts, name: str) -> None:
        self.connection = connection
        self.facts = facts
        self.name = name
        self.tables = table_names(connection)
        self.strings = Strings(connection)
        self.result = Database()
        self.tasks = self._read_tasks()
        self.calls = self._ints("CANN_API", "startNs", "endNs", "type", "globalTid", "connectionId", "name")
        self.api = self._ints(
            "PYTORCH_API", "startNs", "endNs", "globalTid", "connectionId", "name", "sequenceNumber", "inputDtypes",
            "inputShapes", "callchainId", "type",
        )  # fmt: skip
        self.links = self._ints("CONNECTION_IDS", "id", "connectionId")
        self.op_rows, self.op_of_connection = self._ops()

    def read(self) -> Database:
        self._facts()
        self._host()
        self._kernels()
        self._comm()
        self._copies()
        self._samples()
        return self.result

    def _ints(self, table: str, *names: str) -> dict[str, Ints]:
        columns = int_columns(self.connection, table, *names)
        self.result.rows += len(next(iter(columns.values())))
        return {name: _known(values) if name in _NUMBERED else values for name, values in columns.items()}

    def _put(self, spec: TableSpec, columns: dict[str, Values]) -> None:
        self.result.tables[spec.name] = Table(spec, columns)

    def _span_ok(self, start: Ints, end: Ints, what: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Rows with a usable time; the others are counted."""
        ok = np.ones(len(start), bool)
        for reason, bad in (
            ("without start or end", (start == NULL) | (end == NULL)),
            ("before 1970 or after 2200", (start < 0) | (start > MAX_START_NS)),
            ("with a negative duration", end < start),
            ("over a day long", end - np.where(start == NULL, end, start) > MAX_DUR_NS),
            ("over a day away from the others", far_off(start)),
        ):
            self.result.drop(f"{what} {reason}", int((bad & ok).sum()))
            ok &= ~bad
        return ok

    # ---- facts ----------------------------------------------------------------------------------------------------

    def _facts(self) -> None:
        facts, connection = self.facts, self.connection
        if "NPU_INFO" in self.tables:
            names = [row[0] for row in connection.execute("select name from NPU_INFO where name is not null")]
            if len(set(names)) == 1:
                facts.device_name = str(names[0])
        if "RANK_DEVICE_MAP" in self.tables:
            rows = connection.execute("select rankId, deviceId from RANK_DEVICE_MAP").fetchall()
            if len(rows) == 1:
                facts.set_rank(rows[0][0], self.name)
                if isinstance(rows[0][1], int) and rows[0][1] >= 0:
                    facts.device_id = rows[0][1]
        if "META_DATA" in self.tables:
            for key, value in connection.execute("select name, value from META_DATA"):
                if key == "SCHEMA_VERSION":
                    facts.versions["db_schema"] = str(value)
                    self.result.generation = _GENERATIONS.get(str(value).rpartition(".")[0])
                elif isinstance(value, str):
                    take_metadata(str(key), value.encode(), facts, self.name)
        if "SESSION_TIME_INFO" in self.tables:
            ends = [row[0] for row in connection.execute("select endTimeNs from SESSION_TIME_INFO")]
            if ends and not any(ends):
                self.result.warnings.append("the session has no end time: recording was stopped, its tail may be lost")

    # ---- host -----------------------------------------------------------------------------------------------------

    def _ops(self) -> tuple[Ints, dict[str, Ints]]:
        """Rows of PYTORCH_API that are operators in order of start, and (connection, row in that order) pairs."""
        kind = enum_text(self.connection, "ENUM_API_TYPE", API_TYPES, self.api["type"])
        self.api_kind = kind
        self.api_name = self.strings.text(self.api["name"])
        is_op = kind.equals("op") & ~self.api_name.flags(lambda word: step_number(word) is not None)
        is_op &= self._span_ok(self.api["startNs"], self.api["endNs"], "PYTORCH_API row")
        rows = np.flatnonzero(is_op)
        rows = rows[np.argsort(self.api["startNs"][rows], kind="stable")]
        # connection -> operator: PYTORCH_API.connectionId = CONNECTION_IDS.id, one id stands for several connections.
        order = np.argsort(self.api["connectionId"][rows], kind="stable")
        ids = self.api["connectionId"][rows][order]
        left = np.searchsorted(ids, self.links["id"])
        right = np.searchsorted(ids, self.links["id"], side="right")
        counts = np.where(self.links["id"] == NULL, 0, right - left)
        source = np.repeat(np.arange(len(counts)), counts)
        offset = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        place = order[left[source] + offset] if len(source) else np.empty(0, np.int64)
        return rows, {"connection": self.links["connectionId"][source], "op": place.astype(np.int64)}

    def _ops_of(self, connections: Ints, before: Ints) -> Ints:
        """Operator (row of host_ops) of each connection: the shortest of those that began before the task."""
        pairs = self.op_of_connection
        result = np.full(len(connections), NULL, np.int64)
        if not len(pairs["op"]) or not len(connections):
            return result
        rows = self.op_rows[pairs["op"]]
        start = self.api["startNs"][rows]
        dur = self.api["endNs"][rows] - start
        order = np.lexsort((dur, pairs["connection"]))
        ids = pairs["connection"][order]
        left, right = np.searchsorted(ids, connections), np.searchsorted(ids, connections, side="right")
        # Ids of flows between forward and backward share the numbers of connections (1.0.0): an operator that
        # began after its task is such a stranger. Candidates are few, so a round per candidate is cheap.
        place = left.copy()
        open_rows = (place < right) & (connections != NULL)
        while open_rows.any():
            candidate = order[np.clip(place, 0, len(order) - 1)]
            fits = open_rows & ((start[candidate] <= before) | (before == NULL))
            result[fits] = pairs["op"][candidate[fits]]
            place += 1
            open_rows &= ~fits & (place < right)
        return result

    def _host(self) -> None:
        api, rows = self.api, self.op_rows
        name = self.api_name
        shapes = self.strings.text(api["inputShapes"][rows]).compact().relabel(lines)
        dtypes = self.strings.text(api["inputDtypes"][rows]).compact().relabel(lines)
        if _has_letters(shapes) and not _has_letters(dtypes):
            # The exporter of schema 1.0.0 writes each of the two into the other's column.
            shapes, dtypes = dtypes, shapes
        self._put(
            t.HOST_OPS,
            {
                "start_ns": api["startNs"][rows],
                "dur_ns": api["endNs"][rows] - api["startNs"][rows],
                "name": named(name.take(rows).compact()),
                "thread": api["globalTid"][rows] & 0xFFFFFFFF,
                "input_shapes": shapes,
                "input_dtypes": dtypes,
                "sequence_number": api["sequenceNumber"][rows],
                "correlation": api["connectionId"][rows],
                "stack": self._stacks(api["callchainId"][rows]),
            },
        )
        self._host_events()
        calls = self.calls
        ok = np.flatnonzero(self._span_ok(calls["startNs"], calls["endNs"], "CANN_API row"))
        ok = ok[np.argsort(calls["startNs"][ok], kind="stable")]
        self._put(
            t.RUNTIME_CALLS,
            {
                "start_ns": calls["startNs"][ok],
                "dur_ns": calls["endNs"][ok] - calls["startNs"][ok],
                "api": named(self.strings.text(calls["name"][ok]).compact()),
                "layer": enum_text(self.connection, "ENUM_API_TYPE", API_TYPES, calls["type"][ok])
                .relabel(layer_of)
                .compact(),
                "thread": calls["globalTid"][ok] & 0xFFFFFFFF,
                "correlation": calls["connectionId"][ok],
            },
        )
        steps = self._ints("STEP_TIME", "id", "startNs", "endNs")
        usable = usable_spans(steps["startNs"], steps["endNs"]) & (bounded(steps["id"], 0, MAX_TOTAL) != NULL)
        self.result.drop("STEP_TIME row without a usable number or time", int((~usable).sum()))
        self.result.host_steps = HostSteps.of(
            np.stack((steps["id"][usable], steps["startNs"][usable], steps["endNs"][usable]), axis=1).tolist()
        )

    def _host_events(self) -> None:
        api, name = self.api, self.api_name
        kind = name.relabel(event_kind)
        is_op = self.api_kind.equals("op")
        queue = self.api_kind.equals("queue")
        user = self.api_kind.equals("mstx")
        words = ["dequeue", "enqueue", "user", *kind.values]
        codes = np.where(is_op, np.where(kind.codes >= 0, kind.codes + 3, -1), -1)
        codes = np.where(queue, np.where(name.flags(lambda word: word.startswith("Dequeue")), 0, 1), codes)
        codes = np.where(user, 2, codes)
        times_ok = usable_spans(api["startNs"], api["endNs"])
        rows = np.flatnonzero((codes >= 0) & times_ok)
        correlation = first_rows(self.links["id"], api["connectionId"][rows])
        connection = self.links["connectionId"]
        parts = [
            Table(
                t.HOST_EVENTS,
                {
                    "start_ns": api["startNs"][rows],
                    "dur_ns": api["endNs"][rows] - api["startNs"][rows],
                    "name": named(name.take(rows).compact()),
                    "kind": Text(codes[rows].astype(np.int32), words).compact(),
                    "thread": api["globalTid"][rows] & 0xFFFFFFFF,
                    "correlation": (
                        np.where((correlation >= 0) & queue[rows], connection[np.clip(correlation, 0, None)], NULL)
                        if len(connection)
                        else np.full(len(rows), NULL, np.int64)
                    ),
                },
            )
        ]
        self._python_calls()
        gc = self._ints("GC_RECORD", "startNs", "endNs", "globalTid")
        ok = np.flatnonzero(self._span_ok(gc["startNs"], gc["endNs"], "GC_RECORD row"))
        marks = self._ints("MSTX_EVENTS", "startNs", "endNs", "globalTid", "message")
        marked = np.flatnonzero(usable_spans(marks["startNs"], marks["endNs"]))
        for columns, picked, text, kind_word in (
            (gc, ok, Text.full(len(ok), "GC"), "gc"),
            (marks, marked, named(self.strings.text(marks["message"][marked])), "user"),
        ):
            parts.append(
                Table(
                    t.HOST_EVENTS,
                    {
                        "start_ns": columns["startNs"][picked],
                        "dur_ns": columns["endNs"][picked] - columns["startNs"][picked],
                        "name": text,
                        "kind": Text.full(len(picked), kind_word),
                        "thread": columns["globalTid"][picked] & 0xFFFFFFFF,
                    },
                )
            )
        self.result.tables["host_events"] = Table.concat(t.HOST_EVENTS, parts).sorted_by("start_ns")

    def _python_calls(self) -> None:
        api = self.api
        traced = self.api_kind.equals("trace")
        good = traced & usable_spans(api["startNs"], api["endNs"])
        self.result.drop("Python call without a readable time", int((traced & ~good).sum()))
        rows = np.flatnonzero(good)
        start = api["startNs"][rows]
        dur = api["endNs"][rows] - start
        self.result.drop(SHORT_CALLS, int((dur < MIN_CALL_NS).sum()))
        thread = api["globalTid"][rows] & 0xFFFFFFFF
        self.result.tables["python_calls"] = python_calls(start, dur, self.api_name.take(rows), thread)

    def _stacks(self, chains: Ints) -> Text:
        """Call stacks, innermost frame first; each chain is put together once."""
        rows = self._ints("PYTORCH_CALLCHAINS", "id", "stack", "stackDepth")
        order = np.lexsort((rows["stackDepth"], rows["id"]))
        ids = rows["id"][order]
        frame = self.strings.text(rows["stack"][order])
        distinct, first = np.unique(ids, return_index=True)
        edges = np.append(first, len(ids)).tolist()
        words = frame.to_list()
        stacks = [frames("\n".join(w for w in words[a:b] if w)) for a, b in itertools.pairwise(edges)]
        return Text(look_up(distinct, chains).astype(np.int32), stacks).relabel(lambda word: word or None)

    def _samples(self) -> None:
        reader = SampleReader(self.connection, self.strings)
        self.result.tables.update(reader.read())
        self.result.rows += reader.rows
        for reason, count in reader.dropped.items():
            self.result.drop(reason, count)

    # ---- device ---------------------------------------------------------------------------------------------------

    def _read_tasks(self) -> _Tasks:
        columns = self._ints(
            "TASK", "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId", "taskId",
            "modelId",
        )  # fmt: skip
        order = np.argsort(columns["globalTaskId"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        return _Tasks(columns["globalTaskId"], columns)

    def _kernels(self) -> None:
        known = columns_of(self.connection, "COMPUTE_TASK_INFO")
        # In 1.2.0 a column called blockDim means something else: blockNum, where it exists, is the block column.
        block = "blockNum" if "blockNum" in known else "blockDim"
        mix = "mixBlockNum" if "mixBlockNum" in known else "mixBlockDim"
        info = self._ints(
            "COMPUTE_TASK_INFO", "name", "globalTaskId", block, mix, "taskType", "opType", "inputFormats",
            "inputDataTypes", "inputShapes", "outputFormats", "outputDataTypes", "outputShapes", "opState",
            "hf32Eligible",
        )  # fmt: skip
        task = look_up(self.tasks.ids, info["globalTaskId"])
        self.result.drop("kernel without a task", int((task < 0).sum()))
        columns = self.tasks.columns
        if not len(self.tasks.ids):
            return
        at = np.clip(task, 0, None)
        ok = (task >= 0) & self._span_ok(columns["startNs"][at], columns["endNs"][at], "kernel")
        rows = np.flatnonzero(ok)
        rows = rows[np.argsort(columns["startNs"][at[rows]], kind="stable")]
        at = at[rows]
        text = self.strings.text
        start, connection = columns["startNs"][at], columns["connectionId"][at]
        ops = self._ops_of(connection, start)
        counters, counted = read_counters(self.connection, self.strings, info["globalTaskId"][rows])
        self.result.rows += counted
        self._put(
            t.KERNELS,
            {
                "start_ns": start,
                "dur_ns": columns["endNs"][at] - start,
                "name": named(text(info["name"][rows]).compact()),
                "op_type": text(info["opType"][rows]).compact(),
                "core": text(info["taskType"][rows]).relabel(CORES.get),
                "stream": columns["streamId"][at],
                "task_id": columns["taskId"][at],
                "model_id": columns["modelId"][at],
                "block_num": info[block][rows],
                "mix_block_num": info[mix][rows],
                "op_state": text(info["opState"][rows]).compact(),
                "hf32_eligible": text(info["hf32Eligible"][rows]).compact(),
                "input_shapes": text(info["inputShapes"][rows]).compact().relabel(_unquoted),
                "input_dtypes": text(info["inputDataTypes"][rows]).compact(),
                "input_formats": text(info["inputFormats"][rows]).compact(),
                "output_shapes": text(info["outputShapes"][rows]).compact().relabel(_unquoted),
                "output_dtypes": text(info["outputDataTypes"][rows]).compact(),
                "output_formats": text(info["outputFormats"][rows]).compact(),
                "correlation": connection,
                "host_op": ops,
                **self._launch(connection),
                **counters,
            },
        )
        self.result.launches = (self._op_starts(ops), self.result.launches[1])
        self.result.device_of_kernel = columns["deviceId"][at]

    def _op_starts(self, ops: Ints) -> Ints:
        starts = self.result.tables["host_ops"].ints("start_ns")
        result = np.full(len(ops), NULL, np.int64)
        result[ops != NULL] = starts[ops[ops != NULL]]
        return result

    def _launch(self, connections: Ints) -> dict[str, Values]:
        row = first_rows(self.calls["connectionId"], connections)
        usable = usable_spans(self.calls["startNs"], self.calls["endNs"])
        result: dict[str, Values] = {}
        for target, source in (("launch_start_ns", "startNs"), ("launch_end_ns", "endNs")):
            values = np.full(len(connections), NULL, np.int64)
            found = (row >= 0) & (connections != NULL)
            values[found] = np.where(usable, self.calls[source], NULL)[row[found]]
            result[target] = values
        return result

    def _comm(self) -> None:
        ops = self._ints(
            "COMMUNICATION_OP", "opName", "startNs", "endNs", "connectionId", "groupName", "opId", "dataType",
            "algType", "count", "rankSize", "deviceId",
        )  # fmt: skip
        rows = np.flatnonzero(self._span_ok(ops["startNs"], ops["endNs"], "COMMUNICATION_OP row"))
        rows = rows[np.argsort(ops["startNs"][rows], kind="stable")]
        text = self.strings.text
        name = named(text(ops["opName"][rows]).compact())
        dtype = enum_text(self.connection, "ENUM_HCCL_DATA_TYPE", DATA_TYPES, ops["dataType"][rows]).relabel(enum_word)
        connection = ops["connectionId"][rows]
        start = ops["startNs"][rows]
        host = self._ops_of(connection, start)
        self._put(
            t.COMM_OPS,
            {
                "start_ns": start,
                "dur_ns": ops["endNs"][rows] - start,
                "name": name,
                "op": name.relabel(op_of),
                "group": text(ops["groupName"][rows]).compact(),
                "group_size": np.where(ops["rankSize"][rows] > 0, ops["rankSize"][rows], NULL),
                "size_bytes": sizes(ops["count"][rows], dtype),
                "dtype": dtype,
                "algorithm": text(ops["algType"][rows]).compact(),
                "correlation": connection,
                "host_op": host,
                **self._launch(connection),
            },
        )
        self.result.launches = (self.result.launches[0], self._op_starts(host))
        self.result.device_of_comm = ops["deviceId"][rows]
        self._comm_tasks(ops["opId"][rows])

    def _comm_tasks(self, op_ids: Ints) -> None:
        info = self._ints(
            "COMMUNICATION_TASK_INFO", "globalTaskId", "taskType", "planeId", "srcRank", "dstRank", "transportType",
            "size", "linkType", "opId",
        )  # fmt: skip
        task, owner = look_up(self.tasks.ids, info["globalTaskId"]), first_rows(op_ids, info["opId"])
        self.result.drop("HCCL task without a task or collective", int(((task < 0) | (owner < 0)).sum()))
        rows = np.flatnonzero((task >= 0) & (owner >= 0))
        columns = self.tasks.columns
        at = task[rows]
        rows = rows[self._span_ok(columns["startNs"][at], columns["endNs"][at], "HCCL task")]
        at, of = task[rows], owner[rows]
        order = np.lexsort((rows, columns["startNs"][at], of))
        rows, at, of = rows[order], at[order], of[order]
        start = columns["startNs"][at]
        transport = enum_text(self.connection, "ENUM_HCCL_TRANSPORT_TYPE", TRANSPORTS, info["transportType"][rows])
        link = enum_text(self.connection, "ENUM_HCCL_LINK_TYPE", LINKS, info["linkType"][rows])
        self._put(
            t.COMM_TASKS,
            {
                "start_ns": start,
                "dur_ns": columns["endNs"][at] - start,
                "kind": named(self.strings.text(info["taskType"][rows]).compact()),
                "comm_op": of,
                "plane": info["planeId"][rows],
                "src": info["srcRank"][rows],
                "dst": info["dstRank"][rows],
                "transport": transport.relabel(enum_word),
                "link": link.relabel(enum_word),
                "size_bytes": info["size"][rows],
            },
        )

    def _copies(self) -> None:
        columns = self.tasks.columns
        name = self.strings.text(columns["taskType"])
        is_copy = name.flags(lambda word: word.startswith(("MEMCPY", "MEMSET")))
        rows = np.flatnonzero(is_copy)
        rows = rows[self._span_ok(columns["startNs"][rows], columns["endNs"][rows], "copy")]
        rows = rows[np.argsort(columns["startNs"][rows], kind="stable")]
        info = self._ints("MEMCPY_INFO", "globalTaskId", "size", "memcpyOperation")
        of = first_rows(info["globalTaskId"], self.tasks.ids[rows])
        size = np.full(len(rows), NULL, np.int64)
        operation = np.full(len(rows), NULL, np.int64)
        size[of >= 0] = info["size"][of[of >= 0]]
        operation[of >= 0] = info["memcpyOperation"][of[of >= 0]]
        direction = enum_text(self.connection, "ENUM_MEMCPY_OPERATION", COPIES, operation).relabel(copy_kind)
        connection = columns["connectionId"][rows]
        call = first_rows(self.calls["connectionId"], connection)
        api = np.full(len(rows), NULL, np.int64)
        api[call >= 0] = self.calls["name"][call[call >= 0]]
        memset = name.take(rows).relabel(lambda word: "MEMSET" if word.startswith("MEMSET") else None)
        self._put(
            t.COPIES,
            {
                "start_ns": columns["startNs"][rows],
                "dur_ns": columns["endNs"][rows] - columns["startNs"][rows],
                "kind": first_known(memset, direction, self._queued_kinds(connection)),
                "name": name.take(rows).compact(),
                "size_bytes": size,
                "stream": columns["streamId"][rows],
                "correlation": connection,
                **self._launch(connection),
                "api": self.strings.text(api).compact(),
            },
        )

    def _queued_kinds(self, connections: Ints) -> Text:
        """Kinds of copies by the entry of the task queue inside which they were launched."""
        api = self.api
        kinds = self.api_name.relabel(queued_kind)
        rows = np.flatnonzero((kinds.codes >= 0) & (api["startNs"] != NULL) & (api["endNs"] >= api["startNs"]))
        rows = rows[np.argsort(api["startNs"][rows], kind="stable")]
        launch = self._launch(connections)["launch_start_ns"]
        if not len(rows) or not isinstance(launch, np.ndarray):
            return Text.full(len(connections), None)
        place = np.clip(np.searchsorted(api["startNs"][rows], launch, side="right") - 1, 0, None)
        inside = (launch != NULL) & (api["startNs"][rows][place] <= launch) & (launch <= api["endNs"][rows][place])
        return Text(np.where(inside, kinds.codes[rows][place], -1).astype(np.int32), kinds.values)


_GENERATIONS: Final = {"1.0": "G2", "1.1": "G3", "1.2": "G4"}


def _has_letters(text: Text) -> bool:
    return any(any(map(str.isalpha, value)) for value in text.values)


def _known(values: Ints) -> Ints:
    return np.where((values == NO_RANK) | (values < 0), NULL, values).astype(np.int64)


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) >= 2 and word[0] == word[-1] == '"' else word
