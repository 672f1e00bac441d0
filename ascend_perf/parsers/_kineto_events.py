"""Events of a Kineto file as columns: which categories are read, and what of their arguments.

Source: format reference, section 2.9, and real files of 2021 to 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Ints, Text
from ascend_perf.ops.host_work import ARGUMENTS_OF, MAX_ARGUMENTS
from ascend_perf.parsers import _kineto_comm as comm
from ascend_perf.parsers._events import Event, EventFile, Interner
from ascend_perf.parsers._numbers import decimal_ns, decimal_scaled, json_ints
from ascend_perf.parsers._python_frames import MIN_CALL_NS

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
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))
    stack: str | None = msgspec.field(name="Call stack", default=None)


class _MemoryArgs(msgspec.Struct, gc=False):
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device: int | None = msgspec.field(name="Device Id", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    reserved: int | None = msgspec.field(name="Total Reserved", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    bytes: int | None = msgspec.field(name="Bytes", default=None)


def _args(events: Sequence[Event], kind: type[_T]) -> list[_T]:
    """The args of all events in one decode; events whose args do not fit get the defaults."""
    texts = [e.args if len(bytes(e.args)) > 3 else b"{}" for e in events]
    try:
        return msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[kind])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, RecursionError):
        result = []
        for text in texts:
            try:
                result.append(msgspec.json.decode(text, type=kind, strict=False))
            except (msgspec.MsgspecError, RecursionError):
                result.append(kind())
        return result


def _ints(values: Sequence[int | None]) -> Ints:
    """An int column; values beyond int64 are unknown."""
    limit = 2**63 - 1
    return np.array([NULL if v is None or not -limit <= v <= limit else v for v in values], np.int64)


@dataclass
class Rows:
    """Columns of one event class, gathered chunk by chunk."""

    parts: dict[str, list[NDArray[np.int64] | NDArray[np.int32]]] = field(default_factory=dict)

    def add(self, **columns: NDArray[np.int64] | NDArray[np.int32]) -> None:
        """Append the columns of a chunk."""
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def ints(self, name: str) -> Ints:
        """All chunks of a column; empty when there was none."""
        parts = self.parts.get(name)
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def text(self, name: str, interner: Interner) -> Text:
        """A column of codes with the texts they stand for."""
        return Text(self.ints(name).astype(np.int32), interner.values)


class Columns:
    """The events of one file, by class, in columns."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.names = Interner()
        self.frames = Interner()
        self.shapes = Interner()
        self.types = Interner()
        self.arguments = Interner()
        self.stacks = Interner()
        self.notes = Interner()
        self.kernels = Rows()
        self.copies = Rows()
        self.runtime = Rows()
        self.host = Rows()
        self.python = Rows()
        self.memory = Rows()
        self.comm_args: list[comm.CommArgs] = []
        self.skipped: dict[str, int] = {}

    def read(self) -> None:
        """Read the whole file.

        Raises:
            InputError: the file cannot be read, or holds no trace events.
        """
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

    def _times(self, events: list[Event], dur: Ints | None = None) -> tuple[list[Event], Ints, Ints]:
        """Events with usable times, their starts and durations; the others are dropped and counted."""
        start = decimal_ns([e.ts for e in events])
        dur = decimal_ns([e.dur for e in events]) if dur is None else dur
        no_time = (start == NULL) | (dur == NULL)
        negative = ~no_time & (dur < 0)
        absurd = ~no_time & (dur > MAX_DUR_NS)
        # Differences of any two stay within int64.
        bad = no_time | negative | absurd | (start < -(2**61)) | (start > 2**62)
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
        needed = [any(word in e.name for word in ARGUMENTS_OF) for e in events]
        self.host.add(
            start=start, dur=dur, name=self.names.codes([e.name for e in events]),
            thread=json_ints([e.tid for e in events]), correlation=_ints([a.external_id for a in args]),
            sequence=_ints([a.sequence for a in args]),
            shapes=self.shapes.codes([bytes(a.dims).decode("utf-8", "replace") for a in args]),
            types=self.types.codes([bytes(a.types).decode("utf-8", "replace") for a in args]),
            arguments=self.arguments.codes([
                bytes(a.values).decode("utf-8", "replace") if wanted and len(a.values) <= MAX_ARGUMENTS else ""
                for a, wanted in zip(args, needed, strict=True)
            ]),
            stack=self.stacks.codes([a.stack or "" for a in args]),
            annotation=np.full(len(events), annotation, np.int64),
        )  # fmt: skip

    def _add_python(self, bucket: list[Event]) -> None:
        cells = np.array([bytes(e.dur) for e in bucket], np.bytes_)
        candidates = np.flatnonzero(_may_reach_ten(cells))
        dur = decimal_scaled(cells[candidates], 3)
        long = dur >= MIN_CALL_NS
        events, start, dur = self._times([bucket[i] for i in candidates[long].tolist()], dur[long])
        # Threads are few: each distinct text is read once.
        threads = Interner()
        thread = threads.codes([bytes(e.tid).decode("latin-1") for e in events])
        self.python.add(
            start=start, dur=dur, name=self.frames.codes([e.name for e in events]),
            thread=json_ints([msgspec.Raw(text.encode("latin-1")) for text in threads.values])[thread],
        )  # fmt: skip

    def _add_memory(self, bucket: list[Event]) -> None:
        events = [e for e in bucket if e.name == "[memory]"]
        args = _args(events, _MemoryArgs)
        self.memory.add(
            time=decimal_ns([e.ts for e in events]), type=_ints([a.device_type for a in args]),
            device=_ints([a.device for a in args]), allocated=_ints([a.allocated for a in args]),
            reserved=_ints([a.reserved for a in args]), thread=json_ints([e.tid for e in events]),
            address=_ints([a.address for a in args]), bytes=_ints([a.bytes for a in args]),
        )  # fmt: skip


def _may_reach_ten(cells: NDArray[np.bytes_]) -> NDArray[np.bool_]:
    """Numbers as text that may be 10 or more; those with one digit before the point are not."""
    width = cells.dtype.itemsize
    if not len(cells) or width < 2:
        return np.zeros(len(cells), bool)
    second = np.ascontiguousarray(cells).view(np.uint8).reshape(len(cells), width)[:, 1]
    return np.asarray((second != ord(".")) & (second != 0), bool)
