"""msprof_*.db: the database that `msprof --export=on` writes, which torch_npu moves and adds its own tables to.

Schema 1.2.0 (format reference, 3.2 and 3.4); tables without rows are not created. Counters and enumerations by name,
all times in ns since the epoch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ascend_perf.collectors.virtual_npu._export_counters import Counters, named_values
from ascend_perf.collectors.virtual_npu._export_tasks import Tasks
from ascend_perf.collectors.virtual_npu._export_text import NO_MODEL, shapes
from ascend_perf.collectors.virtual_npu._export_trace import overlap_of
from ascend_perf.collectors.virtual_npu.record import COPY_KINDS
from ascend_perf.parsers._ascend_db import COPIES, DATA_TYPES, TRANSPORTS

_NONE: Final = 4294967295
_NO_NOTIFY: Final = 9223372036854775807
_LEVELS: Final = {"acl": 20000, "node": 10000, "communication": 5500}
_LINKS: Final = {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE"}
_ENUMS: Final[Mapping[str, Mapping[int, str]]] = {
    "ENUM_API_TYPE": {5000: "runtime", 5500: "communication", 10000: "node", 15000: "model", 20000: "acl"},
    "ENUM_HCCL_DATA_TYPE": {**DATA_TYPES, 65534: "N/A", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_LINK_TYPE": {**_LINKS, 65534: "N/A", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_TRANSPORT_TYPE": {**TRANSPORTS, 65534: "N/A", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_RDMA_TYPE": {0: "RDMA_SEND_NOTIFY", 1: "RDMA_SEND_PAYLOAD", 65534: "N/A", 65535: "INVALID_TYPE"},
    "ENUM_MEMCPY_OPERATION": COPIES,
    "ENUM_MSTX_EVENT_TYPE": {0: "marker", 1: "push/pop", 2: "start/end", 3: "marker_ex"},
    "ENUM_OVERLAP_ANALYSIS_TYPE": {0: "COMPUTE", 1: "COMMUNICATION", 2: "COMM_NOT_OVERLAP_COMP", 3: "FREE"},
}  # fmt: skip

_TABLES: Final = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "META_DATA": "name TEXT, value TEXT",
    "SESSION_TIME_INFO": "startTimeNs INTEGER, endTimeNs INTEGER",
    "NPU_INFO": "id INTEGER, name TEXT",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
            "globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, "
            "modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockNum INTEGER, mixBlockNum INTEGER, "
                         "taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, "
                         "inputShapes INTEGER, outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, "
                         "attrInfo INTEGER, opState INTEGER, hf32Eligible INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER, "
                        "opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, dataType INTEGER, algType INTEGER, "
                        "count NUMERIC, opType INTEGER, deviceId INTEGER, rankSize INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER, "
                               "groupName INTEGER, notifyId INTEGER, rdmaType INTEGER, srcRank INTEGER, "
                               "dstRank INTEGER, transportType INTEGER, size INTEGER, dataType INTEGER, "
                               "linkType INTEGER, opId INTEGER, isMaster INTEGER, bandwidth NUMERIC",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER PRIMARY KEY, "
                "name INTEGER",
    "TASK_PMU_INFO": "globalTaskId INTEGER, name INTEGER, value NUMERIC",
    "MEMCPY_INFO": "globalTaskId INTEGER, size INTEGER, memcpyOperation INTEGER",
    "MSTX_EVENTS": "startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER, "
                   "message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER, connectionId INTEGER",
    "NPU_MEM": "type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER, deviceId INTEGER",
    "AICORE_FREQ": "deviceId INTEGER, timestampNs NUMERIC, freq INTEGER",
    "OVERLAP_ANALYSIS": "id INTEGER PRIMARY KEY, deviceId INTEGER, startNs INTEGER, endNs INTEGER, type INTEGER",
}  # fmt: skip
_UNMARKED: Final = 4000000000
"""Connection of marks that belong to no task. Source: format reference, 3.2."""


@dataclass
class _Strings:
    ids: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


def write_database(
    path: Path, tasks: Tasks, counters: Counters | None, *, device_name: str, frequency_hz: int, is_level0: bool
) -> None:
    """Write the database of a capture.

    Args:
        path: must not exist.
        tasks: of the capture.
        counters: None: none.
        device_name: of NPU_INFO; says that the device is virtual.
        frequency_hz: rated, of the cores.
        is_level0: types and shapes of operators are not known.
    """
    rows = _Rows(tasks, counters, is_level0)
    tables: dict[str, Sequence[Sequence[object]]] = {
        "META_DATA": [
            ("SCHEMA_VERSION", "1.2.0"), ("SCHEMA_VERSION_MAJOR", "1"), ("SCHEMA_VERSION_MINOR", "2"),
            ("SCHEMA_VERSION_MICRO", "0"), ("data_origin", '"simulated"'),
        ],
        "SESSION_TIME_INFO": [(tasks.capture.begin_ns, tasks.capture.end_ns)],
        "NPU_INFO": [(tasks.capture.device_id, device_name)],
        "HOST_INFO": [("0", "simulated")],
        "RANK_DEVICE_MAP": [(-1, tasks.capture.device_id)],
        "AICORE_FREQ": [(tasks.capture.device_id, time, round(frequency_hz / 1e6))
                        for time in (tasks.capture.begin_ns, tasks.capture.end_ns)],
        **rows.all(),
    }  # fmt: skip
    tables["STRING_IDS"] = [(number, text) for text, number in rows.string.ids.items()]
    with closing(sqlite3.connect(path)) as database:
        for name, columns in _TABLES.items():
            _insert(database, name, columns, tables.get(name, ()))
        for name, values in _ENUMS.items():
            _insert(database, name, "id INTEGER PRIMARY KEY, name TEXT", values.items())
        database.execute("create index TaskIndex on TASK (startNs, globalTaskId)")
        database.commit()


def _insert(database: sqlite3.Connection, name: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
    listed = list(rows)
    if not listed and name != "TASK":
        return
    database.execute(f"create table {name} ({columns})")
    marks = ",".join("?" * (columns.count(",") + 1))
    database.executemany(f"insert into {name} values ({marks})", listed)


class _Rows:
    """Rows of the tables that are made from tasks."""

    def __init__(self, tasks: Tasks, counters: Counters | None, is_level0: bool) -> None:
        self.tasks = tasks
        self.counters = counters
        self.is_level0 = is_level0
        self.string = _Strings()
        self.device, self.pid = tasks.capture.device_id, tasks.capture.pid
        self.task: list[tuple[object, ...]] = []

    def all(self) -> dict[str, list[tuple[object, ...]]]:
        compute = self._compute()
        copies = self._copies()
        ops, pieces = self._communication()
        return {
            "COMPUTE_TASK_INFO": compute, "MEMCPY_INFO": copies, "COMMUNICATION_OP": ops,
            "COMMUNICATION_TASK_INFO": pieces, "TASK": self.task, "CANN_API": self._calls(),
            "TASK_PMU_INFO": self._counters(), "NPU_MEM": self._memory(), "MSTX_EVENTS": self._marks(),
            "OVERLAP_ANALYSIS": self._overlap(),
        }  # fmt: skip

    def _add(self, start: int, end: int, connection: int, kind: str, stream: int, task: int) -> int:
        number = len(self.task)
        self.task.append(
            (start, end, self.device, connection, number, self.pid, self.string(kind), _NONE, stream, task, NO_MODEL)
        )
        return number

    def _compute(self) -> list[tuple[object, ...]]:
        s = self.string
        described = []
        for kind in self.tasks.kinds:
            name, core = s(kind.kernel.name), kind.kernel.core
            if self.is_level0:
                described.append(((name,), (0, 0, *[s("N/A")] * 11), core))
                continue
            ins, outs = kind.inputs, kind.outputs
            described.append(
                (
                    (name,),
                    (kind.blocks, kind.mix_blocks, s(core), s(kind.kernel.op_type),
                     *(s(text) for side in (ins, outs) for text in (
                         ";".join(t.format for t in side), ";".join(t.dtype for t in side), shapes(side))),
                     s(""), s("dynamic"), s("NO")),
                    core,
                )
            )  # fmt: skip
        kernels = self.tasks.kernels
        rows: list[tuple[object, ...]] = []
        for kind, start, end, connection, stream, task in zip(
            *(kernels[name].tolist() for name in ("kind", "start", "end", "connection", "stream", "task")), strict=True
        ):
            head, tail, core = described[kind]
            rows.append((*head, self._add(start, end, connection, core, stream, task), *tail))
        return rows

    def _copies(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        copies = self.tasks.copies
        names = ("kind", "bytes", "start", "end", "connection", "stream", "task")
        for kind, size, start, end, connection, stream, task in zip(
            *(copies[name].tolist() for name in names), strict=True
        ):
            is_set = COPY_KINDS[kind] == "memset"
            number = self._add(start, end, connection, "MEMSET_ASYNC" if is_set else "MEMCPY_ASYNC", stream, task)
            rows.append((number, size, 3 if is_set else kind))
        return rows

    def _communication(self) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        s = self.string
        ops: list[tuple[object, ...]] = []
        pieces: list[tuple[object, ...]] = []
        for number, op in enumerate(self.tasks.comm, 1):
            name, group, dtype = s(op.name), s(op.group.name), op.collective.dtype
            ops.append(
                (name, op.arrive_ns, op.end_ns, op.connection, group, number, 0, 0, dtype,
                 s(op.algorithm), op.collective.count, s(op.op_type), self.device, op.group.size)
            )  # fmt: skip
            # One task at least, by which readers find the device of a collective.
            if not op.tasks:
                self._add(op.arrive_ns, op.end_ns, op.connection, "Notify Wait", op.stream, 0)
            for task in op.tasks:
                piece = task.transfer
                kind = "Notify Wait" if piece is None else "SDMA" if piece.transport == "HCCS" else "RDMA"
                at = self._add(task.start_ns, task.end_ns, op.connection, kind, op.stream, 0)
                is_far = piece is not None and piece.transport == "RDMA"
                rate = 0 if piece is None else piece.nbytes * 1e9 / max(task.end_ns - task.start_ns, 1)
                pieces.append(
                    (name, at, s(task.kind), task.plane, group, _NO_NOTIFY, 1 if is_far else 65535,
                     op.group.rank if piece is None else piece.src, _NONE if piece is None else piece.dst,
                     2 if piece is None else 1 if is_far else 0, 0 if piece is None else piece.nbytes,
                     dtype if piece is not None and piece.is_reduced else 65535,
                     65535 if piece is None else 3 if is_far else 1, number, int(task.plane == 0), rate)
                )  # fmt: skip
        return ops, pieces

    def _calls(self) -> list[tuple[object, ...]]:
        calls = self.tasks.calls
        columns = (calls.columns[name].tolist() for name in ("name", "layer", "start", "end", "thread", "connection"))
        return [
            (start, end, _LEVELS[calls.layers[layer]], self.pid << 32 | thread, connection,
             self.string(calls.names[name]))
            for name, layer, start, end, thread, connection in zip(*columns, strict=True)
        ]  # fmt: skip

    def _counters(self) -> list[tuple[object, ...]]:
        if self.counters is None:
            return []
        has = self.counters.has_any.tolist()
        return [
            (number, self.string(name), value)
            for name, values in named_values(self.counters)
            for number, (value, is_known) in enumerate(zip(values.tolist(), has, strict=True))
            if is_known
        ]

    def _memory(self) -> list[tuple[object, ...]]:
        memory, app = self.tasks.capture.memory, self.string("app")
        return [
            (app, 0, used, time, self.device)
            for time, used in zip(memory["time"].tolist(), memory["used"].tolist(), strict=True)
        ]

    def _marks(self) -> list[tuple[object, ...]]:
        domain = self.string("default")
        return [
            (begin, end, 0 if begin == end else 2, number, _NONE, self.string(text), self.pid << 32 | thread,
             self.pid << 32 | thread, domain, _UNMARKED)
            for number, (begin, end, thread, text) in enumerate(self.tasks.capture.marks)
        ]  # fmt: skip

    def _overlap(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for kind, (_, parts) in enumerate(overlap_of(self.tasks)):
            rows += [(0, self.device, start, end, kind) for start, end in parts]
        return [(number, *row[1:]) for number, row in enumerate(rows)]
