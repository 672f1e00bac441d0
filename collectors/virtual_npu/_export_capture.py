"""The part of a record that one profiler capture covers, on the clock of the epoch: what an export is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ascend_perf.collectors.virtual_npu.kernels import DATA_TYPES, FORMATS, UNKNOWN_TYPE, Tensor
from ascend_perf.collectors.virtual_npu.record import Record
from ascend_perf.errors import InputError
from ascend_perf.model.table import Ints

Columns = dict[str, Ints]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A distinct call of an operator: its name, tensors and the parts of its modelled time."""

    name: str
    tensors: tuple[Tensor, ...]
    last_list: int
    """Length of the list that is the last tensor argument, 0 where it is a tensor."""
    ns: float
    flops: float
    cube_ns: float
    vector_ns: float
    memory_ns: float
    fixed_ns: float


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A distinct call of HCCL."""

    name: str
    """As HCCL has it, without its prefix: `AllReduce`."""
    dtype: int
    """HcclDataType."""
    count: int
    nbytes: int
    """Of this rank; which part of the message is meant: native/virtual_npu.h, vn_cost_collective."""
    peer: int | None
    """Rank in the group of the other end of a Send or Recv."""


@dataclass(frozen=True, kw_only=True)
class CommGroup:
    """A communicator as this rank sees it."""

    name: str
    size: int
    rank: int
    ranks: tuple[int, ...]
    """Ranks of the job; consecutive ones where the record does not say them."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One capture of one process. Times are ns since the epoch."""

    soc: str
    device_id: int
    rank: int
    world_size: int
    ranks_per_node: int
    pid: int
    begin_ns: int
    end_ns: int
    offset_ns: int
    """Epoch minus CLOCK_MONOTONIC_RAW: the host's records of the profiler are on that clock."""
    calls: Mapping[int, Call]
    collectives: Mapping[int, Collective]
    groups: Mapping[int, CommGroup]
    launches: Columns = field(repr=False)
    """def stream thread host start end, of kernels that were launched inside the capture."""
    collective_launches: Columns = field(repr=False)
    """def stream thread host arrive start end comm index."""
    copies: Columns = field(repr=False)
    """kind (place in record.COPY_KINDS) bytes stream thread host start end blocking."""
    waits: Columns = field(repr=False)
    """kind (place in record.WAIT_KINDS) thread begin end."""
    memory: Columns = field(repr=False)
    """time used: every change of the device memory in use."""
    marks: tuple[tuple[int, int, int, str], ...] = ()
    """Begin, end, thread and text of mstx ranges and marks (end = begin)."""



def captures_of(record: Record) -> list[tuple[str, int, int]]:
    """Folder of the profiler, start and end of each capture of a record, in ns of its own clock.

    A capture that was not stopped ends with the last launch that the record holds.
    """
    found: list[tuple[str, int, int]] = []
    folder, start = "", None
    for time, event, detail in record.profiler:
        if event == "init":
            folder = detail
        elif event == "start":
            start = time
        elif event in ("stop", "finalize") and start is not None:
            found.append((folder, start, time))
            start = None
    if start is not None:
        hosts = record.tables["K"]["host_ns"]
        found.append((folder, start, max(start, int(hosts.max(initial=start)))))
    return found


def capture_of(record: Record, begin_ns: int, end_ns: int) -> Capture:
    """What the device and the host did between two instants of the record's clock.

    Device tasks belong to the capture by their launch, as those of which a profile knows operator and name.

    Raises:
        InputError: the record was made with the modelled clock, which host times of a profiler do not have; or it is
            damaged.
    """
    head = record.header
    if head.get("clock") != "wall":
        raise InputError(
            "this record was made with the modelled clock, but the profiler's host records have the machine's",
            hint="run with the clock `wall` to profile",
        )
    offset = int(head["start_realtime_ns"]) - int(head["start_raw_ns"])

    def part(table: str, by: str, columns: Mapping[str, str]) -> Columns:
        given = record.tables[table]
        rows = np.flatnonzero((given[by] >= begin_ns) & (given[by] <= end_ns))
        return {
            name: given[source][rows] + (offset if source.endswith("_ns") else 0) for name, source in columns.items()
        }

    times = {"start": "start_ns", "end": "end_ns"}
    launched = {"def": "def", "stream": "stream", "thread": "thread", "host": "host_ns", **times}
    launches = part("K", "host_ns", launched)
    collectives = part(
        "C", "host_ns", {**launched, "arrive": "arrive_ns", "comm": "comm", "index": "index"}
    )
    told = {number: (name, body) for number, (_, name, body) in record.definitions.items()}
    if {*_used(launches), *_used(collectives)} - told.keys() or {*collectives["comm"].tolist()} - record.groups.keys():
        raise InputError(f"the record {record.path.name} is damaged: it uses calls or groups that it does not define")
    return Capture(
        soc=head.get("soc", ""), device_id=int(head.get("device", 0)), rank=int(head.get("rank", 0)),
        world_size=int(head.get("world_size", 1)), ranks_per_node=int(head.get("ranks_per_node", 8)),
        pid=int(head.get("pid", 0)), begin_ns=begin_ns + offset, end_ns=end_ns + offset, offset_ns=offset,
        calls={number: _call(*told[number]) for number in _used(launches)},
        collectives={number: _collective(*told[number]) for number in _used(collectives)},
        groups=_groups(record), launches=launches, collective_launches=collectives,
        copies=part("P", "host_ns", {
            "kind": "kind", "bytes": "bytes", "stream": "stream", "thread": "thread", "host": "host_ns", **times,
            "blocking": "blocking",
        }),
        waits=part("Y", "begin_ns", {"kind": "kind", "thread": "thread", "begin": "begin_ns", "end": "end_ns"}),
        memory=_memory(record, begin_ns, end_ns, offset), marks=_marks(record, begin_ns, end_ns, offset),
    )  # fmt: skip


def _used(launches: Columns) -> list[int]:
    numbers: list[int] = np.unique(launches["def"]).tolist()
    return numbers


def _call(name: str, body: Mapping[str, object]) -> Call:
    arguments = _list(body.get("args"))
    return Call(
        name=name, tensors=tensors_of(arguments), last_list=last_list_of(arguments),
        **{part: _float(body, part) for part in ("ns", "flops", "cube_ns", "vector_ns", "memory_ns", "fixed_ns")},
    )  # fmt: skip


def _collective(name: str, body: Mapping[str, object]) -> Collective:
    peer = body.get("peer")
    return Collective(
        name=name.removeprefix("Hccl"), dtype=_int(body.get("dtype")), count=_int(body.get("count")),
        nbytes=_int(body.get("bytes")), peer=peer if isinstance(peer, int) and peer >= 0 else None,
    )  # fmt: skip


def _groups(record: Record) -> dict[int, CommGroup]:
    return {
        number: CommGroup(name=name, size=size, rank=rank, ranks=tuple(ranks) if ranks else tuple(range(size)))
        for number, (name, size, rank, ranks) in record.groups.items()
    }


def _memory(record: Record, begin_ns: int, end_ns: int, offset: int) -> Columns:
    """Changes inside the capture, and what was in use when it began."""
    table = record.tables["M"]
    own = table["device"] == int(record.header.get("device", 0))
    if not own.any():  # a process that chose its device itself
        own = np.ones(len(own), bool)
    time, used = table["time_ns"][own], table["used_bytes"][own]
    before = used[time < begin_ns]
    inside = np.flatnonzero((time >= begin_ns) & (time <= end_ns))
    return {
        "time": np.concatenate(([begin_ns], time[inside])).astype(np.int64) + offset,
        "used": np.concatenate((before[-1:] if len(before) else [0], used[inside])).astype(np.int64),
    }


def _marks(record: Record, begin_ns: int, end_ns: int, offset: int) -> tuple[tuple[int, int, int, str], ...]:
    """Ranges by their ends (the end has the number of its start), and marks."""
    found: list[tuple[int, int, int, str]] = []
    started: dict[str, tuple[int, int, str]] = {}
    for time, event, text, thread in record.marks:
        if event == "start":
            number, _, name = text.partition(" ")
            started[number] = (time, thread, name or text)
        elif event == "end" and text in started:
            begin, who, name = started.pop(text)
            found.append((begin, time, who, name))
        elif event == "mark":
            found.append((time, time, thread, text))
    inside = [mark for mark in found if mark[1] >= begin_ns and mark[0] <= end_ns]
    return tuple((begin + offset, end + offset, thread, text) for begin, end, thread, text in sorted(inside))


def tensor_of(fields: Sequence[object]) -> Tensor:
    """A tensor of a definition: dtype, format, shape and strides as the record has them, with or without the kind."""
    dtype, layout, shape, *rest = fields[1:] if fields and isinstance(fields[0], str) else fields
    strides = rest[0] if rest else None
    return Tensor(
        dtype=DATA_TYPES.get(_int(dtype), UNKNOWN_TYPE), format=FORMATS.get(_int(layout), "ND"),
        shape=tuple(_int(size) for size in _list(shape)),
        strides=None if strides is None else tuple(_int(stride) for stride in _list(strides)),
    )  # fmt: skip


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float, str)) else 0


def _float(body: Mapping[str, object], name: str) -> float:
    value = body.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def last_list_of(arguments: Sequence[object]) -> int:
    """Length of the list of tensors that is the last of the tensor arguments, 0 where there is none."""
    kinds = [fields for one in arguments if (fields := _list(one)) and fields[0] in ("t", "l")]
    return len(_list(kinds[-1][1])) if kinds and kinds[-1][0] == "l" else 0


def tensors_of(arguments: Sequence[object]) -> tuple[Tensor, ...]:
    """The tensors among the arguments of a definition, those of lists in their places."""
    found: list[Tensor] = []
    for argument in arguments:
        fields = _list(argument)
        if fields and fields[0] == "t":
            found.append(tensor_of(fields))
        elif fields and fields[0] == "l":
            found += [tensor_of(_list(one)) for one in _list(fields[1])]
    return tuple(found)
