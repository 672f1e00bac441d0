"""What the columns of a trace_view.json mean: operators, calls, kernels, copies, collectives and their links.

Source: format reference, sections 2.2 to 2.7.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text, Values
from ascend_perf.parsers._ascend_comm import op_of
from ascend_perf.parsers._ascend_flows import launches
from ascend_perf.parsers._ascend_kernels import CORES
from ascend_perf.parsers._ascend_steps import HostSteps
from ascend_perf.parsers._ascend_trace import TraceFile
from ascend_perf.parsers._ascend_words import (
    NO_RANK,
    copy_kind,
    enum_word,
    event_kind,
    first_known,
    frames,
    lines,
    named,
    nearest,
    queued_kind,
    sizes,
    step_number,
)
from ascend_perf.parsers._python_frames import python_calls

COMM_PROCESSES: Final = ("HCCL", "Communication")

MAX_START_DIFFERENCE_NS: Final = 1000
"""Farther apart a row and a slice of one name are different calls. Status: measured (3 ns at most)."""


_GROUP_LINE: Final = re.compile(r"Group (.+) Communication$")
_PLANE: Final = re.compile(r"Plane (\d{1,17})$")
_STREAM: Final = re.compile(r"Stream (\d{1,17})$")
_NOT_KERNELS: Final = re.compile(
    r"MEMCPY|MEMSET|EVENT_|PROFILING_|NOTIFY|Notify|SDMA$|RDMA|Write Value|Memcpy$|Reduce_Inline$|Reduce_TBE$|hcom_"
    r"|MODEL_|STREAM_|LABEL_|CALLBACK|PLACE_HOLDER|MAINTENANCE|DATA_DUMP|CMO_|BARRIER|FLIP|CREATE_STREAM|TASK_TYPE"
    r"|Flip|KERNEL_LAUNCH_FLIP|[A-Z_]*STREAM[A-Z_]*$"
)
_NOT_KERNEL_TYPES: Final = re.compile(
    r".*(?:DMA|EVENT|NOTIFY|Notify|PLACE_HOLDER|PLACEHOLDER|Write Value|WRITE_VALUE|CMO|COND|CALLBACK).*"
)
_PLAIN_EVENTS: Final = {"enqueue": "enqueue", "dequeue": "dequeue", "GC": "gc"}

COUNTER_UNITS: Final = {
    "MHz": ("MHz", 1.0),
    "KB": ("bytes", 1024.0),
    "Hit Rate(%)": ("ratio", 1.0),  # a fraction in spite of its label (2.3)
}
"""Units of counters whose key says more or less than the unit. Others: what stands in brackets."""

COUNTER_PROCESSES: Final = frozenset(
    {"AI Core Freq", "HBM", "LLC", "DDR", "NPU MEM", "HCCS", "PCIe", "NIC", "RoCE", "QoS", "SIO", "UB", "Low Power",
     "Voltage Info", "CPU Usage", "Memory Usage", "Disk Usage", "Network Usage", "Stars Chip Trans"}
)  # fmt: skip
"""Counter tracks that are kept; Acc PMU and Stars Soc Info are levels without a unit."""


_DEVICE: Final = re.compile(r"NPU (\d{1,5})$")


class Timeline:
    """Tables of one trace_view.json, and the links that other files' kernels and collectives get from it."""

    def __init__(self, trace: TraceFile) -> None:
        self.trace = trace
        self.npu = launches(trace.npu_starts, trace.npu_ends)
        self.host_to_device = launches(trace.launch_starts, trace.launch_ends)
        self.streams = self._streams()
        hardware = np.isin(trace.slices.ints("pid"), trace.pids("Ascend Hardware"))
        name, task_type = trace.slices.text("name"), trace.slices.text("task_type")
        no_kernel = name.flags(lambda word: bool(_NOT_KERNELS.match(word)))
        no_kernel |= task_type.flags(lambda word: bool(_NOT_KERNEL_TYPES.match(word)) and word not in CORES)
        copies = name.flags(lambda word: word.startswith(("MEMCPY", "MEMSET")))
        self.kernel_rows = np.flatnonzero(hardware & ~no_kernel)
        self.copy_rows = np.flatnonzero(hardware & copies)
        self.comm_rows = np.flatnonzero(
            np.isin(trace.slices.ints("pid"), trace.pids(*COMM_PROCESSES))
            & name.flags(lambda word: word.startswith("hcom_") or word.lower().startswith("hccl"))
        )
        self.comm_rows = self.comm_rows[np.argsort(trace.slices.ints("start")[self.comm_rows], kind="stable")]
        self.op_rows = self._op_rows()

    # ---- host -----------------------------------------------------------------------------------------------------

    def _op_rows(self) -> Ints:
        ops = self.trace.ops
        steps = ops.text("name").flags(lambda word: step_number(word) is not None)
        rows = np.flatnonzero(~steps)
        return rows[np.argsort(ops.ints("start")[rows], kind="stable")]

    def host_steps(self) -> HostSteps:
        """The ProfilerStep windows."""
        ops = self.trace.ops
        name = ops.text("name")
        rows = np.flatnonzero(name.flags(lambda word: step_number(word) is not None))
        start, dur = ops.ints("start"), ops.ints("dur")
        found = []
        for row in rows.tolist():
            number = step_number(name[row] or "")
            if number is not None:
                found.append((number, int(start[row]), int(start[row] + dur[row])))
        return HostSteps.of(found)

    def host_ops(self) -> Table:
        """Framework operators; ProfilerStep is none."""
        ops, rows = self.trace.ops, self.op_rows
        return Table(
            t.HOST_OPS,
            {
                "start_ns": ops.ints("start")[rows],
                "dur_ns": ops.ints("dur")[rows],
                "name": named(ops.text("name").take(rows)),
                "thread": ops.ints("tid")[rows],
                "input_shapes": ops.text("dims").take(rows).relabel(lines),
                "input_dtypes": ops.text("types").take(rows).relabel(lines),
                "sequence_number": _without(ops.ints("sequence")[rows], -1),
                "stack": ops.text("stack").take(rows).relabel(frames),
            },
        )

    def host_events(self) -> Table:
        """Steps, data loader and optimizer calls, garbage collections, and the two ends of the task queue."""
        ops, events = self.trace.ops, self.trace.events
        kinds = ops.text("name").relabel(event_kind)
        rows = np.flatnonzero(kinds.codes >= 0)
        parts = [
            Table(
                t.HOST_EVENTS,
                {
                    "start_ns": ops.ints("start")[rows],
                    "dur_ns": ops.ints("dur")[rows],
                    "name": named(ops.text("name").take(rows).compact()),
                    "kind": kinds.take(rows).compact(),
                    "thread": ops.ints("tid")[rows],
                },
            )
        ]
        if len(events):
            parts.append(
                Table(
                    t.HOST_EVENTS,
                    {
                        "start_ns": events.ints("start"),
                        "dur_ns": events.ints("dur"),
                        "name": named(events.text("name")),
                        "kind": named(events.text("category").relabel(lambda c: _PLAIN_EVENTS.get(c, "user")), "user"),
                        "thread": events.ints("tid"),
                        "correlation": events.ints("correlation"),
                    },
                )
            )
        return Table.concat(t.HOST_EVENTS, parts).sorted_by("start_ns") if any(map(len, parts)) else parts[0]

    def python_calls(self) -> Table:
        """Calls of Python functions and modules."""
        python = self.trace.python
        return python_calls(python.ints("start"), python.ints("dur"), python.text("name"), python.ints("tid"))

    def runtime_calls(self) -> Table:
        """Calls of the CANN layers."""
        calls = self.trace.calls
        name = calls.text("name")
        rows = np.flatnonzero(name.flags(lambda word: word.partition("@")[0] in _LAYERS))
        rows = rows[np.argsort(calls.ints("start")[rows], kind="stable")]
        name = name.take(rows)
        return Table(
            t.RUNTIME_CALLS,
            {
                "start_ns": calls.ints("start")[rows],
                "dur_ns": calls.ints("dur")[rows],
                "api": named(name.relabel(lambda word: word.partition("@")[2])),
                "layer": name.relabel(lambda word: _LAYERS.get(word.partition("@")[0])),
                "thread": calls.ints("tid")[rows],
                "correlation": calls.ints("connection")[rows],
            },
        )

    # ---- device ---------------------------------------------------------------------------------------------------

    def _streams(self) -> Ints:
        """Stream of each device slice: the number of its line, else the one in its args."""
        slices = self.trace.slices
        lines = {key: int(match[1]) for key, label in self.trace.threads.items() if (match := _STREAM.match(label))}
        stream: Ints = slices.ints("stream").copy()
        pid, tid = slices.ints("pid"), slices.ints("tid")
        for (line_pid, line_tid), number in lines.items():
            stream[(pid == line_pid) & (tid == line_tid)] = number
        return stream

    def device_of_kernel(self) -> Ints:
        """Device of each row of `kernels()`, `NULL` where the trace has one device only."""
        rows = self.kernel_rows[np.argsort(self.trace.slices.ints("start")[self.kernel_rows], kind="stable")]
        return self._devices(rows, self.trace.pids("Ascend Hardware"))

    def device_of_comm(self) -> Ints:
        """Device of each row of `comm_ops()`, as `device_of_kernel`."""
        return self._devices(self.comm_rows, self.trace.pids(*COMM_PROCESSES))

    def _devices(self, rows: Ints, pids: list[int]) -> Ints:
        """Devices by the label of their process, else by the order of the processes.

        The same process name once per device is how several devices of one process are exported.
        """
        device = np.full(len(rows), NULL, np.int64)
        if len(self.trace.pids("Ascend Hardware")) < 2:
            return device
        labels = [_DEVICE.search(self.trace.labels.get(pid, "")) for pid in pids]
        numbers = [int(match[1]) for match in labels if match]
        if len(set(numbers)) < len(pids):
            numbers = [sorted(pids).index(pid) for pid in pids]
        of = self.trace.slices.ints("pid")[rows]
        for pid, number in zip(pids, numbers, strict=True):
            device[of == pid] = number
        return device

    def kernels(self) -> Table:
        """Kernels of the device lines, for a trace without kernel_details.csv. The core of vector kernels is unknown
        where the exporter writes the scheduler's type (G1, G2: AI_CORE for both)."""
        slices = self.trace.slices
        rows = self.kernel_rows[np.argsort(slices.ints("start")[self.kernel_rows], kind="stable")]
        task_type = slices.text("task_type").take(rows)
        splits = bool(task_type.isin(("AI_VECTOR_CORE", "AIV", "KERNEL_AIVEC")).any())
        core = task_type.relabel(lambda word: None if word == "AI_CORE" and not splits else CORES.get(word))
        return Table(
            t.KERNELS,
            {
                "start_ns": slices.ints("start")[rows],
                "dur_ns": slices.ints("dur")[rows],
                "name": named(slices.text("name").take(rows)),
                "core": core,
                "stream": self.streams[rows],
                "task_id": slices.ints("task")[rows],
                "model_id": _without(slices.ints("model")[rows], NO_RANK),
            },
        )

    def linked_kernels(self, kernels: Table) -> Table:
        """Kernels of any file with their launch and operator: a slice with the same start is the same task."""
        rows = self._slices_of(kernels, self.kernel_rows)
        return self._linked(kernels, rows)

    def copies(self) -> Table:
        """Memory copies and sets."""
        slices = self.trace.slices
        rows = self.copy_rows[np.argsort(slices.ints("start")[self.copy_rows], kind="stable")]
        name = slices.text("name").take(rows)
        connection = slices.ints("connection")[rows]
        start, end, api = self._calls_of(connection)
        launched = self.host_to_device.times_of(slices.ints("start")[rows])
        kind = first_known(
            name.relabel(lambda word: "MEMSET" if word.startswith("MEMSET") else None),
            slices.text("copy_kind").take(rows).relabel(copy_kind),
            slices.text("task_type").take(rows).relabel({"SDMA_SQE": "D2D"}.get),
            self._queued_copies(np.where(start == NULL, launched, start)),
        )
        return Table(
            t.COPIES,
            {
                "start_ns": slices.ints("start")[rows],
                "dur_ns": slices.ints("dur")[rows],
                "kind": kind,
                "name": name,
                "size_bytes": slices.ints("copy_size")[rows],
                "stream": self.streams[rows],
                "correlation": connection,
                "launch_start_ns": np.where(start == NULL, launched, start),
                "launch_end_ns": end,
                "api": api,
            },
        )

    def _queued_copies(self, launches: Ints) -> Text:
        """Kinds of copies by the entry of the task queue that launched them: below Level2 the slices do not say it."""
        events = self.trace.events
        queued = events.text("name").relabel(queued_kind)
        rows = np.flatnonzero(queued.codes >= 0)
        rows = rows[np.argsort(events.ints("start")[rows], kind="stable")]
        if not len(rows):
            return Text.full(len(launches), None)
        start = events.ints("start")[rows]
        place = np.clip(np.searchsorted(start, launches, side="right") - 1, 0, None)
        end = start[place] + events.ints("dur")[rows][place]
        inside = (launches != NULL) & (start[place] <= launches) & (launches <= end)
        return Text(np.where(inside, queued.codes[rows][place], -1).astype(np.int32), queued.values)

    def comm_ops(self) -> Table:
        """Collectives of the HCCL lines."""
        slices, rows = self.trace.slices, self.comm_rows
        name = named(slices.text("name").take(rows))
        return Table(
            t.COMM_OPS,
            {
                "start_ns": slices.ints("start")[rows],
                "dur_ns": slices.ints("dur")[rows],
                "name": name,
                "op": name.relabel(op_of),
            },
        )

    def linked_comm(self, comm: Table) -> Table:
        """Collectives of any file with what the HCCL line of the same start says, their launch and operator."""
        slices = self.trace.slices
        rows = self._lines_of(comm)
        found = rows >= 0
        at = np.clip(rows, 0, None)
        if not len(self.comm_rows):
            return self._linked(comm, rows)
        dtype = slices.text("data_type")
        dtype = Text(np.where(found, dtype.codes[at], -1).astype(np.int32), dtype.values).relabel(enum_word)
        count = np.where(found, slices.ints("count")[at], NULL)
        algorithm = slices.text("algorithm")
        size = sizes(count, dtype)
        groups = self._group_of_line()
        columns: dict[str, Values] = {
            "dtype": dtype,
            "algorithm": Text(np.where(found, algorithm.codes[at], -1).astype(np.int32), algorithm.values),
            "size_bytes": size,
            "group_size": _positive(np.where(found, slices.ints("rank_size")[at], NULL)),
            "group": Text.of(
                [
                    groups.get((int(p), int(n))) if f else None
                    for f, p, n in zip(
                        found.tolist(), slices.ints("pid")[at].tolist(), slices.ints("tid")[at].tolist(), strict=True
                    )
                ]
            ),
        }
        return self._linked(comm.with_columns(columns), rows)

    def _group_of_line(self) -> dict[tuple[int, int], str]:
        """Communicator of each HCCL line; G2 numbers the lines, which names nothing."""
        return {
            key: match[1]
            for key, label in self.trace.threads.items()
            if (match := _GROUP_LINE.match(label)) and not re.fullmatch(r"\d{1,4}", match[1])
        }

    def comm_tasks(self, comm: Table) -> tuple[Table, int]:
        """Sub-tasks of the collectives (planes of their group, inside of their time), and how many fit nowhere."""
        slices = self.trace.slices
        pid, tid = slices.ints("pid"), slices.ints("tid")
        planes = {key: int(match[1]) for key, label in self.trace.threads.items() if (match := _PLANE.match(label))}
        lines = sorted(key for key, label in self.trace.threads.items() if _GROUP_LINE.match(label))
        start, dur = slices.ints("start"), slices.ints("dur")
        op_row = self._rows_of_comm(comm)
        picked, owners, plane_numbers = [], [], []
        lost = 0
        for (line_pid, line_tid), plane in planes.items():
            group_lines = [line for line in lines if line[0] == line_pid and line[1] < line_tid]
            rows = np.flatnonzero((pid == line_pid) & (tid == line_tid))
            if not len(rows):
                continue
            ops = self.comm_rows
            if group_lines:
                line = group_lines[-1]
                ops = ops[(pid[ops] == line[0]) & (tid[ops] == line[1])]
            place = np.searchsorted(start[ops], start[rows], side="right") - 1
            owner = ops[np.clip(place, 0, None)] if len(ops) else np.zeros(len(rows), np.int64)
            inside = (place >= 0) & (start[rows] <= start[owner] + dur[owner])
            index = np.where(inside, op_row[owner], -1)
            lost += int((index < 0).sum())
            picked.append(rows[index >= 0])
            owners.append(index[index >= 0])
            plane_numbers.append(np.full(int((index >= 0).sum()), plane, np.int64))
        if not picked:
            return Table.empty(t.COMM_TASKS), lost
        rows, owner = np.concatenate(picked), np.concatenate(owners)
        order = np.lexsort((rows, start[rows], owner))
        rows, owner = rows[order], owner[order]
        return Table(
            t.COMM_TASKS,
            {
                "start_ns": start[rows],
                "dur_ns": dur[rows],
                "kind": named(slices.text("name").take(rows)),
                "comm_op": owner.astype(np.int64),
                "plane": np.concatenate(plane_numbers)[order],
                "src": _without(slices.ints("src")[rows], NO_RANK),
                "dst": _without(slices.ints("dst")[rows], NO_RANK),
                "transport": slices.text("transport").take(rows).relabel(enum_word),
                "link": slices.text("link").take(rows).relabel(enum_word),
                "size_bytes": slices.ints("size")[rows],
            },
        ), lost

    def _rows_of_comm(self, comm: Table) -> Ints:
        """Row of comm_ops of each slice that is a collective, -1 for all other slices."""
        result = np.full(len(self.trace.slices), -1, np.int64)
        rows = self._lines_of(comm)
        result[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        return result

    def overlap(self) -> Table:
        """The exporter's Overlap Analysis."""
        bare = self.trace.bare
        rows = np.flatnonzero(np.isin(bare.ints("pid"), self.trace.pids("Overlap Analysis")))
        rows = rows[np.argsort(bare.ints("start")[rows], kind="stable")]
        return Table(
            t.OVERLAP,
            {
                "start_ns": bare.ints("start")[rows],
                "dur_ns": bare.ints("dur")[rows],
                "kind": named(bare.text("name").take(rows)),
            },
        )

    def counters(self) -> Table:
        """Samples of the counters that have a unit."""
        columns = self.trace.counters
        wanted = [pid for pid, name in self.trace.processes.items() if name in COUNTER_PROCESSES]
        value, time = columns.floats("value"), columns.ints("time")
        rows = np.flatnonzero(np.isin(columns.ints("pid"), wanted) & ~np.isnan(value) & (time != NULL))
        rows = rows[np.argsort(time[rows], kind="stable")]
        key = columns.text("unit").take(rows)
        scale = key.numbers(lambda word: counter_unit(word)[1])
        return Table(
            t.COUNTERS,
            {
                "time_ns": time[rows],
                "counter": named(columns.text("name").take(rows)),
                "unit": key.relabel(lambda word: counter_unit(word)[0]),
                "value": value[rows] * np.where(np.isnan(scale), 1.0, scale),
            },
        )

    # ---- links ----------------------------------------------------------------------------------------------------

    def _slices_of(self, table: Table, rows: Ints) -> Ints:
        """The slice of each row of a table: the one with the same start, of the same stream or name if there are more.

        Args:
            table: kernels or comm_ops.
            rows: slices that may be meant.
        """
        slices = self.trace.slices
        result = np.full(len(table), -1, np.int64)
        if not len(rows) or not len(table):
            return result
        rows = rows[np.argsort(slices.ints("start")[rows], kind="stable")]
        starts = slices.ints("start")[rows]
        wanted = table.ints("start_ns")
        stream = table.ints("stream")
        first = np.searchsorted(starts, wanted)
        ties = np.searchsorted(starts, wanted, side="right") - first
        result = np.where(ties > 0, rows[np.clip(first, 0, len(rows) - 1)], -1)
        names, slice_names = table.text("name"), slices.text("name")
        for row in np.flatnonzero(ties > 1).tolist():  # several tasks in one nanosecond: rare
            candidates = rows[first[row] : first[row] + ties[row]].tolist()
            fitting = [c for c in candidates if slice_names[c] == names[row]]
            on_stream = [c for c in fitting or candidates if self.streams[c] == stream[row]]
            result[row] = (on_stream or fitting or candidates)[0]
        return result.astype(np.int64)

    def _lines_of(self, comm: Table) -> Ints:
        """The HCCL line's slice of each collective: same name, nearest start (they differ by up to 3 ns)."""
        slices = self.trace.slices
        start = slices.ints("start")
        by_name: dict[str | None, list[int]] = {}
        for row, name in zip(self.comm_rows.tolist(), slices.text("name").take(self.comm_rows).to_list(), strict=True):
            by_name.setdefault(name, []).append(row)
        starts = {name: start[rows].tolist() for name, rows in by_name.items()}
        result = []
        for name, wanted in zip(comm.text("name").to_list(), comm.ints("start_ns").tolist(), strict=True):
            place = nearest(starts.get(name, []), wanted)
            close = place is not None and abs(starts[name][place] - wanted) <= MAX_START_DIFFERENCE_NS
            result.append(by_name[name][place] if close and place is not None else -1)
        return np.array(result, np.int64)

    def _linked(self, table: Table, rows: Ints) -> Table:
        """A table of device tasks with correlation, launch and operator of their slices."""
        if not len(table):
            return table
        slices = self.trace.slices
        found = rows >= 0
        at = np.clip(rows, 0, None)
        nothing = np.full(len(rows), NULL, np.int64)
        connection = np.where(found, slices.ints("connection")[at], NULL) if len(slices) else nothing
        start, end, _ = self._calls_of(connection)
        begins = np.where(found, slices.ints("start")[at], table.ints("start_ns")) if len(slices) else connection
        launched = self.host_to_device.times_of(begins)
        return table.with_columns(
            {
                "correlation": connection,
                "launch_start_ns": np.where(start == NULL, launched, start),
                "launch_end_ns": end,
                "host_op": self._ops_of(begins),
            }
        )

    def _calls_of(self, connections: Ints) -> tuple[Ints, Ints, Text]:
        """Start, end and name of the CANN call of each connection id; of several the Node call, then the first."""
        calls = self.trace.calls
        ids = calls.ints("connection")
        name = calls.text("name")
        node = name.flags(lambda word: word.startswith("Node@"))
        order = np.lexsort((calls.ints("start"), ~node, ids))
        nothing = np.full(len(connections), NULL, np.int64)
        if not len(order):
            return nothing, nothing, Text.full(len(connections), None)
        place = np.clip(np.searchsorted(ids[order], connections), 0, len(order) - 1)
        row = order[place]
        found = (ids[row] == connections) & (connections != NULL)
        start = calls.ints("start")[row]
        api = name.relabel(lambda word: word.partition("@")[2])
        return (
            np.where(found, start, NULL),
            np.where(found, start + calls.ints("dur")[row], NULL),
            Text(np.where(found, api.codes[row], -1).astype(np.int32), api.values),
        )

    def _ops_of(self, starts: Ints) -> Ints:
        """Row of host_ops of the innermost operator that launched each device task, `NULL` where none is known."""
        ops, rows = self.trace.ops, self.op_rows
        launch = self.npu.of(starts)
        result = np.full(len(starts), NULL, np.int64)
        known = np.flatnonzero(launch >= 0)
        if not len(known) or not len(rows):
            return result
        at = self.npu.times[launch[known]]
        thread = np.stack((self.npu.pids[launch[known]], self.npu.tids[launch[known]]))
        pid, tid = ops.ints("pid")[rows], ops.ints("tid")[rows]
        start = ops.ints("start")[rows]
        end = start + ops.ints("dur")[rows]
        for own_pid, own_tid in np.unique(thread, axis=1).T.tolist():
            mine: Bools = (thread[0] == own_pid) & (thread[1] == own_tid)
            theirs = np.flatnonzero((pid == own_pid) & (tid == own_tid))
            inner = intervals.enclosing(start[theirs], end[theirs], at[mine])
            found = inner >= 0
            result[known[mine][found]] = theirs[inner[found]]
        return result


_LAYERS: Final = {
    "AscendCL": "acl",
    "Model": "model",
    "Node": "node",
    "Hccl": "hccl",
    "Communication": "hccl",
    "Runtime": "runtime",
}


def _without(values: Ints, none: int) -> Ints:
    return np.where(values == none, NULL, values).astype(np.int64)


def _positive(values: Ints) -> Ints:
    return np.where(values > 0, values, NULL).astype(np.int64)


def counter_unit(key: str) -> tuple[str | None, float]:
    """Unit of a counter by the key of its value, and the factor to it."""
    if key in COUNTER_UNITS:
        return COUNTER_UNITS[key]
    match = re.search(r"\(([^)]+)\)$", key)
    return (match[1], 1.0) if match else (None, 1.0)
