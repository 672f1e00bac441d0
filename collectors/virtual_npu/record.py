"""Reader of the record that the virtual device writes: one file per process, `rank<R>.<PID>.vnpu`.

A line is one fact, its fields parted by tabs, the first field its kind; times are int64 ns on the clock of the record
(`H clock`: `wall` is CLOCK_MONOTONIC_RAW, `modelled` starts at 0). Texts have tab, line break and backslash escaped.

    H key value                     settings of the device, first in the file
    D id op|comm NAME JSON          definition of a call, before its first use
    K C P Y E M                     events, see TABLES
    S id flags device               a stream was created
    G id NAME size rank RANKS       communicator; RANKS of the job as JSON list, or null where nobody could tell
    U NAME                          operator that the cost model has no class for: it counts as "other"
    X time_ns function code text    an error that a call returned
    R time_ns init|config|start|stop|finalize text        calls of the profiler interface
    N time_ns mark|start|end text thread id domain stream   mstx; text of a start: `<id> <text>`, of an end: the id
    Z lines peak_bytes              last line; without it the process ended before the device was shut down

Events are written when their times are known: in the order of each stream, not by time.

JSON of an operator: `args`, one value for each argument of the call: `["t", dtype, format, shape, strides]` a tensor
(strides null: contiguous), `["l", [tensors]]` a list of tensors, `["s", dtype, value]` a scalar, `["z", values]`
scalars, `["i", values]`, `["f", values]`, `["b", values]` arrays, `["n", value]` a whole number, `["d", value]` a real
one, `["c", text]`, or null; and the parts of its modelled cost. dtype and format are aclDataType and aclFormat.
JSON of a collective: count, dtype (HcclDataType), bytes (as in virtual_npu.h), op (HcclReduceOp), root, peer, ranks.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.errors import InputError

Ints = NDArray[np.int64]

COPY_KINDS: Final = ("h2h", "h2d", "d2h", "d2d", "memset")
WAIT_KINDS: Final = ("stream", "device", "event", "query")
EVENT_KINDS: Final = ("record", "wait", "reset")

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    # Launch of an operator. ready: the launch has reached the device.
    "K": ("seq", "def", "stream", "thread", "host_ns", "ready_ns", "start_ns", "end_ns"),
    # Collective of this rank. arrive to start: waiting for others; start to end: transit.
    "C": ("seq", "def", "stream", "thread", "host_ns", "arrive_ns", "start_ns", "end_ns", "comm", "index"),
    # Copy; kind: place in COPY_KINDS; stream -1: the host waited and no stream was involved.
    "P": ("seq", "kind", "bytes", "stream", "thread", "host_ns", "start_ns", "end_ns", "blocking"),
    # The host waited; kind: place in WAIT_KINDS; target: id of stream or event, number of the device.
    "Y": ("seq", "kind", "target", "thread", "begin_ns", "end_ns"),
    # Event in a stream; kind: place in EVENT_KINDS; device_ns: when the stream got there (a wait: went on).
    "E": ("seq", "kind", "event", "stream", "host_ns", "device_ns"),
    # Device memory; address 0: taken by the runtime itself (communication buffers).
    "M": ("time_ns", "delta_bytes", "used_bytes", "address", "device"),
    "S": ("stream", "flags", "device"),
}

_WORDS: Final = {"P": COPY_KINDS, "Y": WAIT_KINDS, "E": EVENT_KINDS}
_VERSION: Final = "1"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What happened on the virtual device of one process."""

    path: Path
    header: Mapping[str, str]
    definitions: Mapping[int, tuple[str, str, Mapping[str, object]]]
    """Id -> kind (op, comm), name (aclnnMatmul, HcclAllReduce), JSON."""
    tables: Mapping[str, Mapping[str, Ints]]
    """Kind of line -> columns of TABLES, all int64 and of one length."""
    groups: Mapping[int, tuple[str, int, int, tuple[int, ...] | None]]
    """Id of a communicator -> name, size, own rank in it, its ranks of the job."""
    profiler: tuple[tuple[int, str, str], ...]
    """Calls of the profiler interface: time, what, text."""
    marks: tuple[tuple[int, str, str, int], ...]
    """mstx: time, what, text, thread."""
    errors: tuple[tuple[int, str, int, str], ...]
    """Time, function, return code, text."""
    is_truncated: bool
    """The process ended before the device was shut down: the end is missing."""
    peak_bytes: int | None
    """Most device memory that was in use at a time; None if truncated."""
    unclassed: tuple[str, ...] = ()
    """Operators that the cost model does not know and whose times are those of its class "other"."""

    @property
    def rank(self) -> int:
        """Of the process, in the job."""
        return int(self.header.get("rank", "0"))

    def launches_without_class(self) -> dict[str, int]:
        """Launches of each operator of `unclassed`."""
        numbers, counts = np.unique(self.tables["K"]["def"], return_counts=True)
        found = dict.fromkeys(self.unclassed, 0)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            name = self.definitions[number][1]
            if name in found:
                found[name] += count
        return found


def read_folder(path: Path | str) -> list[Record]:
    """All records of a folder, by rank and process.

    Raises:
        InputError: a record is damaged.
    """
    records = [read_record(file) for file in Path(path).glob("*.vnpu")]
    return sorted(records, key=lambda record: (record.rank, int(record.header.get("pid", "0"))))


def read_record(path: Path | str) -> Record:
    """One record.

    Raises:
        InputError: it cannot be read, is of another version, or a line is damaged.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the record {path.name} cannot be read: {error.strerror}") from error
    # A process that was killed leaves the zeros of the mapping behind the last line, and perhaps half a line.
    content = content[: content.rfind(b"\n") + 1]
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1)) if len(ends) else np.zeros(0, np.int64)
    kinds = data[starts] if len(starts) else np.zeros(0, np.uint8)
    try:
        return _read(path, content, data, starts, ends, kinds)
    except (ValueError, IndexError, KeyError, DeprecationWarning) as error:
        raise InputError(
            f"the record {path.name} is damaged: {str(error)[:200]}", hint="run the workload again"
        ) from error


def _read(
    path: Path, content: bytes, data: NDArray[np.uint8], starts: Ints, ends: Ints, kinds: NDArray[np.uint8]
) -> Record:
    def lines(kind: str, count: int) -> list[list[str]]:
        """Fields behind the kind, at least `count` of each line."""
        found = []
        for row in np.flatnonzero(kinds == ord(kind)).tolist():
            fields = content[starts[row] : ends[row]].decode().split("\t")[1:]
            if len(fields) < count:
                raise ValueError(f"line {row + 1} has {len(fields)} fields of {count}")
            found.append(fields)
        return found

    header = {key: value for key, value, *_ in lines("H", 2)}
    if header.get("version") != _VERSION:
        raise ValueError(f"its version is {header.get('version')!r}, not {_VERSION!r}")
    last = lines("Z", 2)
    if last and int(last[-1][0]) != len(ends):
        raise ValueError(f"it has {len(ends)} lines and should have {last[-1][0]}")
    return Record(
        path=path, header=header,
        definitions={int(number): (kind, name, _object(text)) for number, kind, name, text, *_ in lines("D", 4)},
        tables={kind: _table(kind, data, starts, ends, kinds) for kind in TABLES},
        groups={
            int(number): (_text(name), int(size), int(rank), _ranks(ranks))
            for number, name, size, rank, ranks, *_ in lines("G", 5)
        },
        profiler=tuple((int(time), what, _text(text)) for time, what, text, *_ in lines("R", 3)),
        marks=tuple((int(time), what, _text(text), int(thread)) for time, what, text, thread, *_ in lines("N", 4)),
        errors=tuple((int(time), name, int(code), _text(text)) for time, name, code, text, *_ in lines("X", 4)),
        unclassed=tuple(name for name, *_ in lines("U", 1)),
        is_truncated=not last, peak_bytes=int(last[-1][1]) if last else None,
    )  # fmt: skip


def _table(
    kind: str, data: NDArray[np.uint8], starts: Ints, ends: Ints, kinds: NDArray[np.uint8]
) -> dict[str, Ints]:
    """Columns of the lines of one kind. All of them are parsed in one call: a run has millions of events."""
    names = TABLES[kind]
    rows = np.flatnonzero(kinds == ord(kind))
    if not len(rows):
        return {name: np.zeros(0, np.int64) for name in names}
    lengths = ends[rows] - starts[rows] + 1
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)[:-1]))
    picked = data[np.arange(int(lengths.sum())) + np.repeat(starts[rows] - first, lengths)]
    tabs = np.add.reduceat(picked == ord("\t"), first)
    wrong = np.flatnonzero(tabs != len(names))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"line {int(rows[row]) + 1} has {int(tabs[row])} fields of {len(names)}")
    text = picked.tobytes().replace(b"\n" + kind.encode() + b"\t", b"\n ")[1:]
    for code, word in enumerate(_WORDS.get(kind, ())):
        text = text.replace(b"\t" + word.encode() + b"\t", b"\t%d\t" % code)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy's way to say that something is no number
        values = np.fromstring(text, np.int64, sep=" ")
    if len(values) != len(rows) * len(names):
        raise ValueError(f"lines of kind {kind} have {len(values)} numbers, not {len(rows) * len(names)}")
    columns = values.reshape(len(rows), len(names)).T.copy()
    return dict(zip(names, columns, strict=True))


def _object(text: str) -> Mapping[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("a definition is no JSON object")
    return value


def _ranks(text: str) -> tuple[int, ...] | None:
    value = json.loads(text)
    return None if value is None else tuple(int(rank) for rank in value)


def _text(field: str) -> str:
    if "\\" not in field:
        return field
    parts = field.split("\\\\")
    return "\\".join(part.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r") for part in parts)
