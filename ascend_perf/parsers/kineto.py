"""Kineto traces of torch.profiler on CUDA, ROCm and CPU (`*.pt.trace.json[.gz]`), 2021 to current category names.

Of `python_function` events (most bytes of a trace with stacks) those of the launching threads are kept, without the
shortest: as frames of the flame graphs, and the long ones to say what the host did while the device was idle. Device
ranges (`gpu_user_annotation`) repeat kernels and are never counted.

Source: format reference, section 2.9, and real files of 2021 to 2025.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table, Text
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import _kineto_comm as comm
from ascend_perf.parsers._events import EventFile
from ascend_perf.parsers._gpu_tables import (
    COLLECTION,
    copy_kind,
    dims_of,
    event_kind,
    host_op_of,
    launches,
    one_step,
    steps_of,
    with_step_ids,
)
from ascend_perf.parsers._kineto_events import Columns
from ascend_perf.parsers._kineto_memory import memory_blocks
from ascend_perf.parsers._kineto_meta import meta_of
from ascend_perf.parsers._python_frames import frames, python_calls
from ascend_perf.parsers._source import HEAD_BYTES, FileEntry, Folder, Parser, Unit

MAX_FACTS_BYTES: Final = 4 << 20
"""So far into a file the events are searched for when its head is an object without them. Status: assumed."""

MIN_EVENT_NS: Final = 100_000
"""Shorter Python calls explain no idle time worth naming: they are frames only. Status: assumed."""

_SNIFF: Final = re.compile(
    rb'"(?:cat)"\s*:\s*"(?:kernel|cpu_op|cuda_runtime|gpu_memcpy|python_function|user_annotation|Operator|Kernel'
    rb'|Runtime|cuda_driver|cpu_instant_event|ac2g|fwdbwd)"',
    re.IGNORECASE,
)

_OBJECT: Final = re.compile(rb'"traceEvents"\s*:|"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:')

_ASCEND: Final = re.compile(rb'"(?:Ascend Hardware|Overlap Analysis|CANN)"|"ts"\s*:\s*"\d')

_DEVICE_TYPES: Final = {0: "CPU", 1: "CUDA", 6: "HIP", 20: "NPU"}
"""c10::DeviceType numbers in `[memory]` events."""


class _Tables:
    """Makes traces of the columns of a file."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def traces(self, unit: Unit) -> list[Trace]:
        """One trace, or one for each device when a single process drove several."""
        facts = self.columns.file.facts()
        devices = np.unique(np.concatenate((self.columns.kernels.ints("device"), self.columns.copies.ints("device"))))
        devices = devices[devices != NULL]
        busy = np.unique(self.columns.kernels.ints("device"))
        busy = busy[busy != NULL]
        chosen: list[int | None] = [int(d) for d in (busy if len(busy) else devices)] or [None]
        return [self._trace(unit, facts, device, several=len(chosen) > 1) for device in chosen]

    def _trace(self, unit: Unit, facts: dict[str, msgspec.Raw], device: int | None, *, several: bool) -> Trace:
        runtime = self._runtime_table()
        python_calls = self._python_calls()
        host_ops, host_events = self._host_tables(python_calls)
        steps = steps_of(host_events)
        on_device = _on(self.columns.kernels.ints("device"), device)
        compute = on_device & (self.columns.kernels.ints("comm") < 0)
        kernels = self._kernel_table(compute, runtime, host_ops)
        comm_ops = self._comm_table(on_device & (self.columns.kernels.ints("comm") >= 0), runtime, host_ops, facts)
        copies = self._copy_table(_on(self.columns.copies.ints("device"), device), runtime)
        if not len(steps):
            steps = one_step([kernels, comm_ops, copies], [host_ops, host_events])
        else:
            kernels, comm_ops, copies = (with_step_ids(x, steps) for x in (kernels, comm_ops, copies))
        made = {
            table.spec.name: table
            for table in (
                kernels, comm_ops, copies, host_ops, host_events, python_calls, runtime, steps,
                self._memory_table(device, several=several), self._memory_blocks(device, host_ops, several=several),
            )
            if len(table)
        }  # fmt: skip
        meta = meta_of(self.columns.file, unit, facts, device, made, several=several)
        return Trace(made, meta)

    def _kernel_table(self, rows: NDArray[np.bool_], runtime: Table, host_ops: Table) -> Table:
        k = self.columns.kernels
        index = np.flatnonzero(rows)
        if not len(index):
            return Table.empty(t.KERNELS)
        correlation = k.ints("correlation")[index]
        launch, start, end = launches(correlation, runtime)
        return Table(
            t.KERNELS,
            {
                "start_ns": k.ints("start")[index],
                "dur_ns": k.ints("dur")[index],
                "name": k.text("name", self.columns.names).take(index).compact(),
                "core": Text.full(len(index), "SM"),
                "stream": k.ints("stream")[index],
                "correlation": correlation,
                "host_op": host_op_of(k.ints("external")[index], launch, runtime, host_ops),
                "launch_start_ns": start,
                "launch_end_ns": end,
            },
        )

    def _comm_table(
        self, rows: NDArray[np.bool_], runtime: Table, host_ops: Table, facts: dict[str, msgspec.Raw]
    ) -> Table:
        k = self.columns.kernels
        index = np.flatnonzero(rows)
        if not len(index):
            return Table.empty(t.COMM_OPS)
        index = index[np.argsort(k.ints("start")[index], kind="stable")]
        correlation = k.ints("correlation")[index]
        launch, start, end = launches(correlation, runtime)
        names = k.text("name", self.columns.names).take(index).compact()
        args = [self.columns.comm_args[i] for i in k.ints("comm")[index].tolist()]
        return Table(
            t.COMM_OPS,
            {
                "start_ns": k.ints("start")[index],
                "dur_ns": k.ints("dur")[index],
                "name": names,
                "stream": k.ints("stream")[index],
                "correlation": correlation,
                "host_op": host_op_of(k.ints("external")[index], launch, runtime, host_ops),
                "launch_start_ns": start,
                "launch_end_ns": end,
                **comm.columns(names, args),
            },
        )

    def _copy_table(self, rows: NDArray[np.bool_], runtime: Table) -> Table:
        c = self.columns.copies
        index = np.flatnonzero(rows)
        if not len(index):
            return Table.empty(t.COPIES)
        correlation = c.ints("correlation")[index]
        launch, start, end = launches(correlation, runtime)
        name = c.text("name", self.columns.names).take(index).compact()
        codes = runtime.text("api").codes
        # Row -1 (no launch call) picks the appended unknown.
        apis = Text(np.append(codes, np.int32(-1)), runtime.text("api").values)
        return Table(
            t.COPIES,
            {
                "start_ns": c.ints("start")[index],
                "dur_ns": c.ints("dur")[index],
                "kind": name.relabel(copy_kind),
                "name": name,
                "size_bytes": c.ints("bytes")[index],
                "stream": c.ints("stream")[index],
                "correlation": correlation,
                "launch_start_ns": start,
                "launch_end_ns": end,
                "api": apis.take(launch) if len(runtime) else Text.full(len(index), None),
            },
        )

    def _runtime_table(self) -> Table:
        r = self.columns.runtime
        if not len(r.ints("start")):
            return Table.empty(t.RUNTIME_CALLS)
        api = r.text("name", self.columns.names).compact()
        return Table(
            t.RUNTIME_CALLS,
            {
                "start_ns": r.ints("start"),
                "dur_ns": r.ints("dur"),
                "api": api,
                "layer": api.relabel(lambda name: "hip" if name.startswith("hip") else "cuda"),
                "thread": r.ints("thread"),
                "correlation": r.ints("correlation"),
            },
        )

    def _host_tables(self, python_calls: Table) -> tuple[Table, Table]:
        h = self.columns.host
        if not len(h.ints("start")):
            return Table.empty(t.HOST_OPS), Table.empty(t.HOST_EVENTS)
        names = h.text("name", self.columns.names)
        kinds = names.relabel(event_kind)
        is_event = (kinds.codes >= 0) | (h.ints("annotation") == 1)
        ops, events = np.flatnonzero(~is_event), np.flatnonzero(is_event)
        host_ops = Table(
            t.HOST_OPS,
            {
                "start_ns": h.ints("start")[ops],
                "dur_ns": h.ints("dur")[ops],
                "name": names.take(ops).compact(),
                "thread": h.ints("thread")[ops],
                "input_shapes": h.text("shapes", self.columns.shapes).take(ops).relabel(dims_of),
                "input_dtypes": h.text("types", self.columns.types).take(ops).relabel(_dtypes),
                "arguments": h.text("arguments", self.columns.arguments).take(ops).relabel(lambda word: word or None),
                "sequence_number": h.ints("sequence")[ops],
                "correlation": h.ints("correlation")[ops],
                "stack": h.text("stack", self.columns.stacks).take(ops).relabel(frames),
            },
        )
        host_events = Table(
            t.HOST_EVENTS,
            {
                "start_ns": h.ints("start")[events],
                "dur_ns": h.ints("dur")[events],
                "name": names.take(events).compact(),
                "kind": names.take(events).relabel(lambda name: event_kind(name) or "user"),
                "thread": h.ints("thread")[events],
                "correlation": h.ints("correlation")[events],
            },
        )
        return host_ops, Table.concat(t.HOST_EVENTS, [host_events, _long_calls(python_calls)])

    def _python_calls(self) -> Table:
        """Python calls of the threads that work for the device; others (monitors, pools) wait all the time."""
        p, host, runtime = self.columns.python, self.columns.host, self.columns.runtime
        thread = p.ints("thread")
        working = np.union1d(host.ints("thread")[host.ints("annotation") == 0], runtime.ints("thread"))
        rows = np.flatnonzero(np.isin(thread, working[working != NULL]))
        names = p.text("name", self.columns.frames).take(rows)
        return python_calls(p.ints("start")[rows], p.ints("dur")[rows], names, thread[rows])

    def _memory_table(self, device: int | None, *, several: bool) -> Table:
        m = self.columns.memory
        kind, time = m.ints("type"), m.ints("time")
        on_host = kind == 0
        use = (time != NULL) & (kind != NULL) & ((m.ints("allocated") != NULL) | (m.ints("reserved") != NULL))
        if several and len(use):
            use &= on_host | (m.ints("device") == device)
        index = np.flatnonzero(use)
        index = index[np.argsort(time[index], kind="stable")]
        if not len(index):
            return Table.empty(t.MEMORY)
        types = [_DEVICE_TYPES.get(n, f"device type {n}") for n in range(64)]
        codes = np.clip(kind[index], 0, 63).astype(np.int32)
        reserved = m.ints("reserved")[index]
        return Table(
            t.MEMORY,
            {
                "time_ns": time[index],
                "component": Text(codes, types).compact(),
                "allocated_bytes": m.ints("allocated")[index],
                # The host allocator reserves nothing: its 0 means "not kept", not "none".
                "reserved_bytes": np.where(on_host[index] & (reserved == 0), NULL, reserved),
            },
        )

    def _memory_blocks(self, device: int | None, host_ops: Table, *, several: bool) -> Table:
        """Blocks of the device's allocator; of the host's where there is no device."""
        m = self.columns.memory
        kind = m.ints("type")
        rows = (kind != NULL) & (kind != 0)
        if several:
            rows &= m.ints("device") == device
        elif not rows.any():
            rows = kind == 0
        return memory_blocks(m.ints("time"), m.ints("address"), m.ints("bytes"), m.ints("thread"), rows, host_ops)


def _long_calls(python_calls: Table) -> Table:
    """The long Python calls as events of the host."""
    rows = np.flatnonzero(python_calls.ints("dur_ns") >= MIN_EVENT_NS)
    if not len(rows):
        return Table.empty(t.HOST_EVENTS)
    names = python_calls.text("name").take(rows).compact()
    return Table(
        t.HOST_EVENTS,
        {
            "start_ns": python_calls.ints("start_ns")[rows],
            "dur_ns": python_calls.ints("dur_ns")[rows],
            "name": names,
            "kind": names.relabel(lambda name: "gc" if COLLECTION.search(name) else "python"),
            "thread": python_calls.ints("thread")[rows],
        },
    )


def _on(devices: Ints, device: int | None) -> NDArray[np.bool_]:
    """Rows of one device; rows that do not name a device go with the first."""
    return np.ones(len(devices), bool) if device is None else (devices == device) | (devices == NULL)


def _dtypes(text: str) -> str | None:
    if not text:
        return None
    try:
        names = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return ";".join(str(n) for n in names) if isinstance(names, list) else None


def _looks_like_kineto(entry: FileEntry) -> bool:
    head = entry.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"{":
        if _OBJECT.search(head):
            return True
        if len(head) < HEAD_BYTES:
            return False
        return b'"ph"' in head or _has_late_events(entry)
    return head[:1] == b"[" and bool(_SNIFF.search(head)) and not _ASCEND.search(head)


def _has_late_events(entry: FileEntry) -> bool:
    """Whether the events begin behind the head: facts about many process groups may come first."""
    seen = b""
    try:
        for block in files.blocks(entry.path, MAX_FACTS_BYTES):
            seen += block
            if len(seen) >= MAX_FACTS_BYTES or _OBJECT.search(seen):
                break
    except InputError:
        pass
    return bool(_OBJECT.search(seen))


def find(folder: Folder) -> list[Unit]:
    """Each file of the folder that looks like a Kineto trace is a unit of its own."""
    return [
        Unit(parser="kineto", label=entry.path.name, files=(entry.path,))
        for entry in folder.files
        if _looks_like_kineto(entry)
    ]


def parse(unit: Unit) -> list[Trace]:
    """The traces of one file: one, or one per device.

    Raises:
        InputError: the file cannot be read, or holds no event that we know.
    """
    columns = Columns(EventFile(unit.files[0]))
    columns.read()
    traces = _Tables(columns).traces(unit)
    if not any(trace.tables for trace in traces):
        raise InputError(
            f"{unit.label}: no operator, kernel or runtime event among {columns.file.events} events"
            + (f"; {columns.file.problems[0]}" if columns.file.problems else ""),
            hint="record with torch.profiler.profile(activities=[...]) and export_chrome_trace",
        )
    return traces


PARSER: Final = Parser(name="kineto", order=20, find=find, parse=parse)
