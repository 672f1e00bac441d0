"""Kineto traces of torch.profiler on CUDA, ROCm and CPU (`*.pt.trace.json[.gz]`), 2021 to current category names.

Source: format reference, section 2.9, and real files of 2021 to 2025. Of `python_function` events (most bytes of a
trace with stacks) the long ones of the launching threads are kept, to say what the host did while the device was idle;
device ranges (`gpu_user_annotation`) repeat kernels and are never counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf import files
from ascend_perf.device.specs import spec_for
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table, Text
from ascend_perf.model.trace import Device, Dropped, Group, Meta, ProfilerSettings, Source, Trace
from ascend_perf.parsers import _kineto_comm as comm
from ascend_perf.parsers._events import Event, EventFile, Interner, decimal_ns, json_ints
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
from ascend_perf.parsers._source import HEAD_BYTES, FileEntry, Folder, Parser, Unit

MAX_FACTS_BYTES: Final = 4 << 20
"""So far into a file the events are searched for when its head is an object without them. Status: assumed."""
MAX_DUR_NS: Final = 86_400 * 10**9
"""Longer events (a day) are damage: they are dropped and counted. Status: assumed."""

_CLASSES: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "copy",
    "memset": "copy",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "hip_runtime": "runtime",
    "runtime": "runtime",
    "cpu_op": "host",
    "operator": "host",
    "user_annotation": "host",
    "python_function": "python",
    "cpu_instant_event": "memory",
    "": "memory",
}
"""Category (any case) to what we make of it; all other categories are counted and skipped."""

MAX_DIGITS: Final = 9
"""Ranks and numbers of ranks with more digits are damage. Status: assumed."""

MIN_PYTHON_NS: Final = 100_000
"""Shorter Python calls explain no idle time worth naming, and are nearly all of them. Status: assumed."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_SNIFF: Final = re.compile(
    rb'"(?:cat)"\s*:\s*"(?:kernel|cpu_op|cuda_runtime|gpu_memcpy|python_function|user_annotation|Operator|Kernel'
    rb'|Runtime|cuda_driver|cpu_instant_event|ac2g|fwdbwd)"',
    re.IGNORECASE,
)
_OBJECT: Final = re.compile(rb'"traceEvents"\s*:|"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:')
_ASCEND: Final = re.compile(rb'"(?:Ascend Hardware|Overlap Analysis|CANN)"|"ts"\s*:\s*"\d')

_DEVICE_TYPES: Final = {0: "CPU", 1: "CUDA", 6: "HIP", 20: "NPU"}
"""c10::DeviceType numbers in `[memory]` events."""

_T = TypeVar("_T", bound=msgspec.Struct)


class _DeviceArgs(msgspec.Struct, gc=False):
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    external_id: int | None = msgspec.field(name="External id", default=None)
    external_id_2021: int | None = msgspec.field(name="external id", default=None)
    bytes: int | None = None


class _RuntimeArgs(msgspec.Struct, gc=False):
    correlation: int | None = None


class _HostArgs(msgspec.Struct, gc=False):
    external_id: int | None = msgspec.field(name="External id", default=None)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    stack: str | None = msgspec.field(name="Call stack", default=None)


class _MemoryArgs(msgspec.Struct, gc=False):
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device: int | None = msgspec.field(name="Device Id", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    reserved: int | None = msgspec.field(name="Total Reserved", default=None)


class _DeviceProperty(msgspec.Struct, gc=False):
    id: int | None = None
    name: str | None = None
    memory: int | None = msgspec.field(name="totalGlobalMem", default=None)
    major: int | None = msgspec.field(name="computeMajor", default=None)
    minor: int | None = msgspec.field(name="computeMinor", default=None)


def _args(events: Sequence[Event], kind: type[_T]) -> list[_T]:
    """The args of all events in one decode; events whose args do not fit get the defaults."""
    texts = [e.args if len(bytes(e.args)) > 3 else b"{}" for e in events]
    try:
        return msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[kind])  # type: ignore[valid-type]
    except msgspec.MsgspecError:
        result = []
        for text in texts:
            try:
                result.append(msgspec.json.decode(text, type=kind, strict=False))
            except msgspec.MsgspecError:
                result.append(kind())
        return result


def _ints(values: Sequence[int | None]) -> Ints:
    """An int column; values beyond int64 are unknown."""
    limit = 2**63 - 1
    return np.array([NULL if v is None or not -limit <= v <= limit else v for v in values], np.int64)


@dataclass
class _Rows:
    """Columns of one event class, gathered chunk by chunk."""

    parts: dict[str, list[NDArray[np.int64] | NDArray[np.int32]]] = field(default_factory=dict)

    def add(self, **columns: NDArray[np.int64] | NDArray[np.int32]) -> None:
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def ints(self, name: str) -> Ints:
        parts = self.parts.get(name)
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def text(self, name: str, interner: Interner) -> Text:
        return Text(self.ints(name).astype(np.int32), interner.values)


class _Reader:
    """Reads one file into columns, then makes traces of them."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.names = Interner()
        self.shapes = Interner()
        self.types = Interner()
        self.stacks = Interner()
        self.notes = Interner()
        self.kernels = _Rows()
        self.copies = _Rows()
        self.runtime = _Rows()
        self.host = _Rows()
        self.python = _Rows()
        self.memory = _Rows()
        self.comm_args: list[comm.CommArgs] = []
        self.skipped: dict[str, int] = {}

    def read(self) -> None:
        for events in self.file.read():
            buckets: dict[str, list[Event]] = {}
            for event in events:
                if event.ph == "X" or (event.ph == "i" and event.name == "[memory]"):
                    buckets.setdefault(event.cat, []).append(event)
            for category, bucket in buckets.items():
                kind = _CLASSES.get(category.lower())
                if kind is None or (kind == "memory") != (bucket[0].ph == "i"):
                    self.skipped[category] = self.skipped.get(category, 0) + len(bucket)
                    continue
                getattr(self, f"_add_{kind}")(bucket)

    def _times(self, events: list[Event]) -> tuple[list[Event], Ints, Ints]:
        """Events with usable times, their starts and durations; the others are dropped and counted."""
        start = decimal_ns([e.ts for e in events])
        dur = decimal_ns([e.dur for e in events])
        no_time = (start == NULL) | (dur == NULL)
        negative = ~no_time & (dur < 0)
        absurd = ~no_time & (dur > MAX_DUR_NS)
        bad = no_time | negative | absurd | (np.abs(np.where(no_time, 0, start)) > 2**62)
        if bad.any():
            self.file.drop("time stamp or duration missing or unreadable", int(no_time.sum()))
            self.file.drop("negative duration", int(negative.sum()))
            self.file.drop("duration over a day", int(absurd.sum()))
            self.file.drop("time stamp out of range", int((bad & ~no_time & ~negative & ~absurd).sum()))
            keep = np.flatnonzero(~bad)
            events = [events[i] for i in keep.tolist()]
            start, dur = start[keep], dur[keep]
        return events, start, dur

    def _add_kernel(self, bucket: list[Event]) -> None:
        events, start, dur = self._times(bucket)
        args = _args(events, _DeviceArgs)
        names = self.names.codes([e.name for e in events])
        rows = np.full(len(events), -1, np.int64)
        is_comm = [comm.is_communication(e.name) for e in events] if events else []
        wanted = [i for i, flag in enumerate(is_comm) if flag]
        if wanted:
            rows[wanted] = np.arange(len(self.comm_args), len(self.comm_args) + len(wanted))
            self.comm_args += _args([events[i] for i in wanted], comm.CommArgs)
        self.kernels.add(
            start=start, dur=dur, name=names, comm=rows,
            device=_ints([a.device for a in args]), stream=_ints([a.stream for a in args]),
            correlation=_ints([a.correlation for a in args]),
            external=_ints([a.external_id if a.external_id is not None else a.external_id_2021 for a in args]),
        )  # fmt: skip

    def _add_copy(self, bucket: list[Event]) -> None:
        events, start, dur = self._times(bucket)
        args = _args(events, _DeviceArgs)
        self.copies.add(
            start=start, dur=dur, name=self.names.codes([e.name for e in events]),
            device=_ints([a.device for a in args]), stream=_ints([a.stream for a in args]),
            correlation=_ints([a.correlation for a in args]), bytes=_ints([a.bytes for a in args]),
        )  # fmt: skip

    def _add_runtime(self, bucket: list[Event]) -> None:
        events, start, dur = self._times(bucket)
        args = _args(events, _RuntimeArgs)
        self.runtime.add(
            start=start, dur=dur, name=self.names.codes([e.name for e in events]),
            thread=json_ints([e.tid for e in events]), correlation=_ints([a.correlation for a in args]),
        )  # fmt: skip

    def _add_host(self, bucket: list[Event]) -> None:
        events, start, dur = self._times(bucket)
        args = _args(events, _HostArgs)
        annotation = int(bool(events) and events[0].cat == "user_annotation")
        self.host.add(
            start=start, dur=dur, name=self.names.codes([e.name for e in events]),
            thread=json_ints([e.tid for e in events]), correlation=_ints([a.external_id for a in args]),
            sequence=_ints([a.sequence for a in args]),
            shapes=self.shapes.codes([bytes(a.dims).decode("utf-8", "replace") for a in args]),
            types=self.types.codes([bytes(a.types).decode("utf-8", "replace") for a in args]),
            stack=self.stacks.codes([a.stack or "" for a in args]),
            annotation=np.full(len(events), annotation, np.int64),
        )  # fmt: skip

    def _add_python(self, bucket: list[Event]) -> None:
        dur = decimal_ns([e.dur for e in bucket])
        events, start, dur = self._times([bucket[i] for i in np.flatnonzero(dur >= MIN_PYTHON_NS).tolist()])
        self.python.add(
            start=start, dur=dur, name=self.names.codes([_frame(e.name) for e in events]),
            thread=json_ints([e.tid for e in events]),
        )  # fmt: skip

    def _add_memory(self, bucket: list[Event]) -> None:
        events = [e for e in bucket if e.name == "[memory]"]
        args = _args(events, _MemoryArgs)
        self.memory.add(
            time=decimal_ns([e.ts for e in events]), type=_ints([a.device_type for a in args]),
            device=_ints([a.device for a in args]), allocated=_ints([a.allocated for a in args]),
            reserved=_ints([a.reserved for a in args]),
        )  # fmt: skip

    # ---- tables ----

    def traces(self, unit: Unit) -> list[Trace]:
        """One trace, or one for each device when a single process drove several."""
        facts = self.file.facts()
        devices = np.unique(np.concatenate((self.kernels.ints("device"), self.copies.ints("device"))))
        devices = devices[devices != NULL]
        busy = np.unique(self.kernels.ints("device"))
        busy = busy[busy != NULL]
        chosen: list[int | None] = [int(d) for d in (busy if len(busy) else devices)] or [None]
        return [self._trace(unit, facts, device, several=len(chosen) > 1) for device in chosen]

    def _trace(self, unit: Unit, facts: dict[str, msgspec.Raw], device: int | None, *, several: bool) -> Trace:
        runtime = self._runtime_table()
        host_ops, host_events = self._host_tables()
        steps = steps_of(host_events)
        on_device = _on(self.kernels.ints("device"), device)
        compute = on_device & (self.kernels.ints("comm") < 0)
        kernels = self._kernel_table(compute, runtime, host_ops)
        comm_ops = self._comm_table(on_device & (self.kernels.ints("comm") >= 0), runtime, host_ops, facts)
        copies = self._copy_table(_on(self.copies.ints("device"), device), runtime)
        if not len(steps):
            steps = one_step([kernels, comm_ops, copies], [host_ops, host_events])
        else:
            kernels, comm_ops, copies = (with_step_ids(x, steps) for x in (kernels, comm_ops, copies))
        made = {
            table.spec.name: table
            for table in (
                kernels, comm_ops, copies, host_ops, host_events, runtime, steps,
                self._memory_table(device, several=several),
            )
            if len(table)
        }  # fmt: skip
        meta = self._meta(unit, facts, device, made, several=several)
        return Trace(made, meta)

    def _kernel_table(self, rows: NDArray[np.bool_], runtime: Table, host_ops: Table) -> Table:
        k = self.kernels
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
                "name": k.text("name", self.names).take(index).compact(),
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
        k = self.kernels
        index = np.flatnonzero(rows)
        if not len(index):
            return Table.empty(t.COMM_OPS)
        index = index[np.argsort(k.ints("start")[index], kind="stable")]
        correlation = k.ints("correlation")[index]
        launch, start, end = launches(correlation, runtime)
        names = k.text("name", self.names).take(index).compact()
        args = [self.comm_args[i] for i in k.ints("comm")[index].tolist()]
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
        c = self.copies
        index = np.flatnonzero(rows)
        if not len(index):
            return Table.empty(t.COPIES)
        correlation = c.ints("correlation")[index]
        launch, start, end = launches(correlation, runtime)
        name = c.text("name", self.names).take(index).compact()
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
        r = self.runtime
        if not len(r.ints("start")):
            return Table.empty(t.RUNTIME_CALLS)
        api = r.text("name", self.names).compact()
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

    def _host_tables(self) -> tuple[Table, Table]:
        h = self.host
        if not len(h.ints("start")):
            return Table.empty(t.HOST_OPS), Table.empty(t.HOST_EVENTS)
        names = h.text("name", self.names)
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
                "input_shapes": h.text("shapes", self.shapes).take(ops).relabel(dims_of),
                "input_dtypes": h.text("types", self.types).take(ops).relabel(_dtypes),
                "sequence_number": h.ints("sequence")[ops],
                "correlation": h.ints("correlation")[ops],
                "stack": h.text("stack", self.stacks).take(ops).relabel(_stack),
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
        return host_ops, Table.concat(t.HOST_EVENTS, [host_events, self._python_events()])

    def _python_events(self) -> Table:
        """Python calls of the threads that work for the device; others (monitors, pools) wait all the time."""
        p = self.python
        thread = p.ints("thread")
        working = np.union1d(self.host.ints("thread")[self.host.ints("annotation") == 0], self.runtime.ints("thread"))
        rows = np.flatnonzero(np.isin(thread, working[working != NULL]))
        if not len(rows):
            return Table.empty(t.HOST_EVENTS)
        names = p.text("name", self.names).take(rows).compact()
        return Table(
            t.HOST_EVENTS,
            {
                "start_ns": p.ints("start")[rows],
                "dur_ns": p.ints("dur")[rows],
                "name": names,
                "kind": names.relabel(lambda name: "gc" if COLLECTION.search(name) else "python"),
                "thread": thread[rows],
            },
        )

    def _memory_table(self, device: int | None, *, several: bool) -> Table:
        m = self.memory
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

    def _meta(
        self, unit: Unit, facts: dict[str, msgspec.Raw], device: int | None, made: dict[str, Table], *, several: bool
    ) -> Meta:
        info = _decoded(facts.get("distributedInfo"), dict) or {}
        rank, world = _count(info.get("rank")), _count(info.get("world_size"))
        properties = _decoded(facts.get("deviceProperties"), list[_DeviceProperty]) or []
        chosen = _property_of(properties, device)
        name = chosen.name if chosen else None
        has_device = "kernels" in made or "copies" in made or "comm_ops" in made
        spec = spec_for(Device(kind="gpu", name=name)) if has_device and name else None
        hip = "hip_runtime_version" in facts or "roctracer_version" in facts
        dropped = tuple(Dropped(reason=r, count=n) for r, n in sorted(self.file.dropped.items()))
        return Meta(
            label=f"{unit.label} (device {device})" if several else unit.label,
            rank=None if several else rank,
            world_size=world or None,
            device=Device(
                vendor=_vendor(name, hip=hip) if has_device else None,
                name=name or None,
                spec=None if spec is None else spec.id,
                kind="gpu" if has_device else "cpu",
                device_id=device,
                memory_bytes=chosen.memory if chosen and chosen.memory else None,
                compute_capability=_capability(chosen, hip=hip),
            ),
            groups=_groups(info, made.get("comm_ops")),
            versions=_versions(facts, info),
            settings=ProfilerSettings(
                producer="torch.profiler",
                with_stack=_flag(facts.get("with_stack")),
                record_shapes=_flag(facts.get("record_shapes")),
                profile_memory=_flag(facts.get("profile_memory")),
            ),
            sources=(
                Source(
                    path=unit.label,
                    format="kineto",
                    rows=self.file.events,
                    size_bytes=self.file.size_bytes,
                    dropped=dropped,
                    problem="; ".join(self.file.problems) or None,
                ),
            ),
        )


def _property_of(properties: list[_DeviceProperty], device: int | None) -> _DeviceProperty | None:
    """Properties of the device. ROCm numbers devices otherwise in events: then all must be alike to be used."""
    for one in properties:
        if one.id == device:
            return one
    alike = {(p.name, p.memory) for p in properties}
    return properties[0] if len(alike) == 1 else None


def _capability(chosen: _DeviceProperty | None, *, hip: bool) -> tuple[int, int] | None:
    """CUDA's number of the architecture; ROCm writes its own there."""
    if chosen is None or chosen.major is None or chosen.minor is None or _vendor(chosen.name, hip=hip) != "NVIDIA":
        return None
    return chosen.major, chosen.minor


def _on(devices: Ints, device: int | None) -> NDArray[np.bool_]:
    """Rows of one device; rows that do not name a device go with the first."""
    return np.ones(len(devices), bool) if device is None else (devices == device) | (devices == NULL)


def _frame(name: str) -> str:
    """A Python call without the place of its file on the disk and without addresses of objects."""
    if name[:1] == "/":
        place, bracket, rest = name.partition("(")
        name = "/".join(place.split("/")[-3:]) + bracket + rest
    return _ADDRESS.sub("", name)


def _dtypes(text: str) -> str | None:
    if not text:
        return None
    try:
        names = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return ";".join(str(n) for n in names) if isinstance(names, list) else None


def _stack(text: str) -> str | None:
    return text.replace(";", "\n") if text else None


def _decoded(raw: msgspec.Raw | None, kind: type[_D]) -> _D | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError:
        return None


def _count(value: object) -> int | None:
    """A number from 0 on, written as a number or as text; anything else is unknown."""
    if isinstance(value, str) and value.isdecimal() and len(value) < MAX_DIGITS:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**MAX_DIGITS
    return value if is_count and isinstance(value, int) else None


def _flag(raw: msgspec.Raw | None) -> bool | None:
    value = _decoded(raw, int)
    return None if value is None else bool(value)


def _vendor(name: str | None, *, hip: bool) -> str:
    if name and re.search(r"AMD|Radeon|Instinct|\bMI\d", name):
        return "AMD"
    return "AMD" if hip else "NVIDIA"


def _versions(facts: dict[str, msgspec.Raw], info: dict[str, object]) -> dict[str, str]:
    versions = {}
    cuda = _decoded(facts.get("cuda_runtime_version"), int)
    if cuda:
        versions["CUDA"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    hip = _decoded(facts.get("hip_runtime_version"), int)
    if hip:
        versions["HIP"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}"
    if isinstance(nccl := info.get("nccl_version"), str):
        versions["NCCL"] = nccl[:20]
    return versions


def _groups(info: dict[str, object], comm_ops: Table | None) -> tuple[Group, ...]:
    """Process groups that were used: members from pg_config, names from the collectives' own arguments."""
    config = info.get("pg_config")
    known: dict[str, Group] = {}
    if isinstance(config, list):
        for entry in config:
            if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
                ranks = entry.get("ranks")
                is_list = isinstance(ranks, list) and all(isinstance(r, int) for r in ranks)
                known[entry["pg_name"]] = Group(
                    name=entry["pg_name"],
                    label=comm.group_label(entry.get("pg_desc")),
                    ranks=tuple(ranks) if is_list and isinstance(ranks, list) else (),
                    size=entry["pg_size"] if isinstance(entry.get("pg_size"), int) else None,
                )
    if comm_ops is None:
        return tuple(known.values())
    groups, labels, sizes = comm_ops.text("group"), comm_ops.text("group_label"), comm_ops.ints("group_size")
    for code, name in enumerate(groups.values):
        rows = np.flatnonzero(groups.codes == code)
        if len(rows) and name not in known:
            size = int(sizes[rows[0]])
            known[name] = Group(name=name, label=labels[int(rows[0])], size=None if size == NULL else size)
    return tuple(known.values())


_D = TypeVar("_D")


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
    reader = _Reader(EventFile(unit.files[0]))
    reader.read()
    traces = reader.traces(unit)
    if not any(trace.tables for trace in traces):
        raise InputError(
            f"{unit.label}: no operator, kernel or runtime event among {reader.file.events} events"
            + (f"; {reader.file.problems[0]}" if reader.file.problems else ""),
            hint="record with torch.profiler.profile(activities=[...]) and export_chrome_trace",
        )
    return traces


PARSER: Final = Parser(name="kineto", order=20, find=find, parse=parse)
