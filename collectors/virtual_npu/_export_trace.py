"""msprof_*.json: the timeline that `msprof --export=on` would have written, and torch_npu makes trace_view.json of.

Source: format reference, sections 2.1 to 2.6.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.collectors.virtual_npu._export_tasks import CommOp, CommTask, Tasks, us
from ascend_perf.collectors.virtual_npu._export_text import NO_MODEL
from ascend_perf.collectors.virtual_npu.record import COPY_KINDS
from ascend_perf.model.table import Ints
from ascend_perf.parsers._ascend_db import DATA_TYPES

Event = dict[str, object]

ORIGIN_EVENT: Final = {"name": "data_origin", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "simulated"}}
"""An event of metadata of ours: it stays in trace_view.json and tells readers that nothing here was measured."""

_NONE: Final = 4294967295
_HOST_DEVICE: Final = 31
_SORT: Final = {
    "CANN": 1, "Ascend Hardware": 14, "AI Core Freq": 15, "NPU MEM": 16, "Communication": 17, "Overlap Analysis": 18,
}  # fmt: skip
_LAYER_PREFIXES: Final = ("AscendCL", "Node", "Communication")
_DIRECTIONS: Final = ("host to host", "host to device", "device to host", "device to device", "device to device")


def write_trace(path: Path, tasks: Tasks, *, frequency_hz: int, is_level0: bool) -> None:
    """Write the timeline of a capture."""
    events: list[Event] = [ORIGIN_EVENT]
    timeline = _Timeline(tasks)
    for name in _SORT:
        events += timeline.process(name)
    events += timeline.host_calls()
    events += timeline.kernels()
    events += timeline.copies()
    events += timeline.collectives(with_tasks=not is_level0)
    events += timeline.overlap()
    events += timeline.counters(frequency_hz)
    path.write_text(json.dumps(events, separators=(",", ":")), "utf-8")


class _Timeline:
    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.device = tasks.capture.device_id
        self.pids = {
            name: tasks.capture.pid << 10 | sort << 5 | (_HOST_DEVICE if name == "CANN" else self.device)
            for name, sort in _SORT.items()
        }

    def process(self, name: str) -> list[Event]:
        pid = self.pids[name]
        label = "CPU" if name == "CANN" else f"NPU {self.device}"
        return [
            _meta("process_name", pid, 0, name=name),
            _meta("process_labels", pid, 0, labels=label),
            _meta("process_sort_index", pid, 0, sort_index=_SORT[name]),
        ]

    def host_calls(self) -> list[Event]:
        calls, pid = self.tasks.calls, self.pids["CANN"]
        threads = np.unique(calls.columns["thread"]).tolist()
        events = [event for thread in threads for event in _thread(pid, thread, f"Thread {thread}")]
        columns = (calls.columns[name].tolist() for name in ("name", "layer", "start", "end", "thread", "connection"))
        for number, layer, start, end, thread, connection in zip(*columns, strict=True):
            name = calls.names[number]
            events.append(
                _slice(
                    f"{_LAYER_PREFIXES[layer]}@{name}", pid, thread, start, end,
                    {"Thread Id": thread, "Mode": "launch" if layer == 1 else "ACL_OP", "level": calls.layers[layer],
                     "id": name, "item_id": name, "connection_id": connection},
                )
            )  # fmt: skip
        return events

    def kernels(self) -> list[Event]:
        pid, kernels = self.pids["Ascend Hardware"], self.tasks.kernels
        streams = np.unique(np.concatenate((kernels["stream"], self.tasks.copies["stream"]))).tolist()
        events = [event for stream in streams for event in _thread(pid, stream, f"Stream {stream}")]
        kinds = [(kind.kernel.name, kind.kernel.core) for kind in self.tasks.kinds]
        names = ("kind", "start", "end", "stream", "task", "connection", "host", "thread")
        for kind, start, end, stream, task, connection, host, thread in zip(
            *(kernels[name].tolist() for name in names), strict=True
        ):
            name, core = kinds[kind]
            events.append(_slice(name, pid, stream, start, end, _task_args(core, stream, task, connection)))
            events += self.flow(str(connection), host, thread, pid, stream, start)
        return events

    def copies(self) -> list[Event]:
        pid, copies = self.pids["Ascend Hardware"], self.tasks.copies
        events: list[Event] = []
        names = ("kind", "bytes", "start", "end", "stream", "task", "connection", "host", "thread")
        for kind, size, start, end, stream, task, connection, host, thread in zip(
            *(copies[name].tolist() for name in names), strict=True
        ):
            is_set = COPY_KINDS[kind] == "memset"
            args = {
                **_task_args("SDMA_SQE" if COPY_KINDS[kind] in ("d2d", "memset") else "PCIE_DMA_SQE", stream, task,
                             connection),
                "size(B)": size, "bandwidth(GB/s)": round(size / max(end - start, 1), 6),
                "operation": _DIRECTIONS[kind],
            }  # fmt: skip
            events.append(_slice("MEMSET_ASYNC" if is_set else "MEMCPY_ASYNC", pid, stream, start, end, args))
            events += self.flow(str(connection), host, thread, pid, stream, start)
        return events

    def collectives(self, *, with_tasks: bool) -> list[Event]:
        pid = self.pids["Communication"]
        groups = {op.group.name: 0 for op in self.tasks.comm}
        events: list[Event] = []
        line = 0
        for group in groups:
            groups[group] = line
            events += _thread(pid, line, f"Group {group} Communication")
            planes = 1 + max((task.plane for op in self.tasks.comm if op.group.name == group for task in op.tasks),
                             default=0)  # fmt: skip
            for plane in range(planes if with_tasks else 0):
                events += _thread(pid, line + 1 + plane, f"Plane {plane}")
            line += 1 + planes
        begun = (self.tasks.calls.columns[name].tolist() for name in ("connection", "start", "thread"))
        hosts = {connection: (start, thread) for connection, start, thread in zip(*begun, strict=True)}
        for op in self.tasks.comm:
            line = groups[op.group.name]
            events.append(_slice(op.name, pid, line, op.arrive_ns, op.end_ns, _comm_args(op)))
            host, thread = hosts[op.connection]
            events += self.flow(str(op.connection << 32), host, thread, pid, line, op.arrive_ns)
            if with_tasks:
                events += [
                    _slice(task.kind, pid, line + 1 + task.plane, task.start_ns, task.end_ns, _piece_args(op, task))
                    for task in op.tasks
                ]
        return events

    def overlap(self) -> list[Event]:
        pid = self.pids["Overlap Analysis"]
        events: list[Event] = []
        for line, (name, parts) in enumerate(overlap_of(self.tasks)):
            events += _thread(pid, line, name)
            events += [_slice(name, pid, line, start, end, None) for start, end in parts]
        return events

    def counters(self, frequency_hz: int) -> list[Event]:
        capture = self.tasks.capture
        memory = capture.memory
        return [
            *(_counter("AI Core Freq", self.pids["AI Core Freq"], time, "MHz", round(frequency_hz / 1e6))
              for time in (capture.begin_ns, capture.end_ns)),
            *(_counter("APP/HBM", self.pids["NPU MEM"], time, "KB", used / 1024)
              for time, used in zip(memory["time"].tolist(), memory["used"].tolist(), strict=True)),
        ]  # fmt: skip

    def flow(self, number: str, host: int, thread: int, pid: int, line: int, start: int) -> list[Event]:
        """From the launch to the task. Readers take the task from its line and start, to the nanosecond."""
        name = f"HostToDevice{number}"
        common: Event = {"name": name, "cat": "HostToDevice", "id": number}
        return [
            {**common, "ph": "s", "pid": self.pids["CANN"], "tid": thread, "ts": us(host)},
            {**common, "ph": "f", "bp": "e", "pid": pid, "tid": line, "ts": us(start)},
        ]


def overlap_of(tasks: Tasks) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
    """The lines of the Overlap Analysis, in their order (format reference, 2.6), as starts and ends.

    Tasks that only touch stay apart, as the one row per kernel of real profiles does: a step's sums are made of the
    rows that begin in it.
    """
    kernels, comm = tasks.kernels, tasks.comm
    arrive = np.array([op.arrive_ns for op in comm], np.int64)
    end = np.array([op.end_ns for op in comm], np.int64)
    computing, talking = intervals.merged(kernels["start"], kernels["end"]), intervals.merged(arrive, end)
    alone = intervals.difference(talking, computing)
    both = intervals.union(computing, talking)
    free = zip(both.ends[:-1].tolist(), both.starts[1:].tolist(), strict=True)
    borders = _apart(arrive, end)
    return (
        ("Computing", _apart(kernels["start"], kernels["end"])), ("Communication", borders),
        ("Communication(Not Overlapped)", _split(alone, [start for start, _ in borders])), ("Free", tuple(free)),
    )  # fmt: skip


def _apart(starts: Ints, ends: Ints) -> tuple[tuple[int, int], ...]:
    """The union, in which spans that touch and do not overlap stay apart."""
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    first = np.flatnonzero(np.append(True, starts[1:] >= reached[:-1])) if len(starts) else np.empty(0, np.int64)
    last = np.append(first[1:] - 1, len(starts) - 1) if len(first) else first
    return tuple(zip(starts[first].tolist(), reached[last].tolist(), strict=True))


def _split(spans: intervals.IntervalSet, at: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Spans cut at the instants that lie inside of them."""
    cuts = np.array(at, np.int64)
    result: list[tuple[int, int]] = []
    for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True):
        edges = [start, *cuts[(cuts > start) & (cuts < end)].tolist(), end]
        result += list(pairwise(edges))
    return tuple(result)


def _meta(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"name": kind, "pid": pid, "tid": tid, "args": args, "ph": "M"}


def _thread(pid: int, tid: int, name: str) -> list[Event]:
    return [_meta("thread_name", pid, tid, name=name), _meta("thread_sort_index", pid, tid, sort_index=tid)]


def _slice(name: str, pid: int, tid: int, start: int, end: int, args: Event | None) -> Event:
    event: Event = {"name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": (end - start) / 1000}
    return {**event, **({} if args is None else {"args": args}), "ph": "X"}


def _counter(name: str, pid: int, time: int, unit: str, value: float) -> Event:
    return {"name": name, "pid": pid, "tid": 0, "ts": us(time), "args": {unit: value}, "ph": "C"}


def _task_args(kind: str, stream: int, task: int, connection: int) -> Event:
    return {
        "Model Id": NO_MODEL, "Task Type": kind, "Physic Stream Id": stream, "Task Id": task, "Batch Id": 0,
        "Subtask Id": _NONE, "connection_id": connection,
    }  # fmt: skip


def _comm_args(op: CommOp) -> Event:
    return {
        "connection_id": op.connection, "model id": NO_MODEL, "data_type": DATA_TYPES.get(op.collective.dtype, "N/A"),
        "alg_type": op.algorithm,
        "count": op.collective.count, "relay": "no", "retry": "no", "rank_size": op.group.size,
    }  # fmt: skip


def _piece_args(op: CommOp, task: CommTask) -> Event:
    piece = task.transfer
    dur = task.end_ns - task.start_ns
    return {
        "notify_id": "18446744073709551615", "duration estimated(us)": 0.0, "stream id": op.stream, "task id": 0,
        "context id": _NONE, "task type": task.kind, "src rank": op.group.rank if piece is None else piece.src,
        "dst rank": _NONE if piece is None else piece.dst,
        "transport type": "LOCAL" if piece is None else "RDMA" if piece.transport == "RDMA" else "SDMA",
        "size(Byte)": 0 if piece is None else piece.nbytes,
        "data type": DATA_TYPES.get(op.collective.dtype, "N/A") if piece is not None and piece.is_reduced else "N/A",
        "link type": "INVALID_TYPE" if piece is None else "ROCE" if piece.transport == "RDMA" else "HCCS",
        "bandwidth(GB/s)": 0.0 if piece is None else round(piece.nbytes / max(dur, 1), 6), "model id": NO_MODEL,
    }  # fmt: skip
