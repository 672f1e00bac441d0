"""The exporter's figures of collectives: communication.json, communication_matrix.json and analysis.db.

Source: format reference, sections 1.3 (hash of a communicator's name), 3.6 and 6.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table, Text
from ascend_perf.model.trace import Group
from ascend_perf.parsers._ascend_files import database, table_names
from ascend_perf.parsers._numbers import MAX_BYTES, bounded, whole

MAX_JSON_BYTES: Final = 1 << 30
"""communication*.json beyond this are refused; real ones are kilobytes to a few MiB. Status: assumed."""

_OPS: Final = {
    "allreduce": "allReduce",
    "allgather": "allGather",
    "allgatherv": "allGather",
    "reducescatter": "reduceScatter",
    "reducescatterv": "reduceScatter",
    "broadcast": "broadcast",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "alltoallvc": "alltoallv",
    "send": "send",
    "receive": "receive",
    "recv": "receive",
    "batchsendrecv": "batchSendRecv",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "barrier": "barrier",
}

DTYPE_BYTES: Final = {
    "INT8": 1, "INT16": 2, "INT32": 4, "FP16": 2, "FP32": 4, "INT64": 8, "UINT64": 8, "UINT8": 1, "UINT16": 2,
    "UINT32": 4, "FP64": 8, "BFP16": 2, "BF16": 2, "INT128": 16, "HIF8": 1, "FP8E4M3": 1, "FP8E5M2": 1, "FP8E8M0": 1,
}  # fmt: skip
"""Size of an element by HCCL data type. Source: format reference, 3.4."""

_TRANSPORTS: Final = ("HCCS", "RDMA", "PCIE", "SIO")

_MAX_MS: Final = 86_400_000
"""Longer times (a day) are damage. Status: assumed."""
MAX_STEP_NS: Final = _MAX_MS * 10**6
_MAX_US: Final = 7_258_118_400_000_000
"""Later times (year 2200) are damage: sums could leave int64. Status: assumed."""
MAX_DIGITS: Final = 18
"""Numbers of steps, ranks and calls have fewer digits: more do not fit into 64 bits."""
_NAME: Final = re.compile(r"hcom_([A-Za-z]+?)_*__(\d+)_(\d+)(?:_(\d+))?")
_KIND: Final = re.compile(r"(?:hcom_|hccl|Hccl)?([A-Za-z]+)")


def op_of(name: str) -> str:
    """The operation that a name such as `hcom_allReduce__586_0_1` or `hcom_broadcast_` tells, else "other"."""
    match = _KIND.match(name)
    return _OPS.get(match[1].lower(), "other") if match else "other"


def group_suffix(name: str) -> str | None:
    """The last three digits of the group's hash that a call's name carries."""
    match = _NAME.match(name)
    return match[2] if match else None


def call_index(name: str) -> int:
    """The ordinal of the call in its group that its name carries, `NULL` when there is none."""
    match = _NAME.match(name)
    return NULL if match is None or (index := number_of(match[3])) is None else index


def group_hash(name: str) -> str:
    """The 64-bit id of a communicator in communication*.json: two 32-bit hashes of the bytes of its name.

    Source: format reference, section 1.3; the rule reproduces 33 names of real data.
    """
    h0 = h1 = 0
    for byte in name.encode():
        h0 = (h0 * 29 + byte) & 0xFFFFFFFF
        h1 = (h1 * 131 + byte) & 0xFFFFFFFF
    return str(h0 << 32 | h1)


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """What the exporter says about one call, in ns. Its start lost precision (0.25 us)."""

    name: str
    hash_id: str
    step_id: int
    is_p2p: bool
    start_ns: int
    elapse_ns: int
    transit_ns: int
    wait_ns: int
    sync_ns: int
    idle_ns: int


@dataclass
class CommFigures:
    """The figures of all calls of a rank."""

    calls: list[CallFigures] = field(default_factory=list)
    transfers: list[dict[str, str | int | float | None]] = field(default_factory=list)
    packets: list[dict[str, str | int | None]] = field(default_factory=list)
    links: list[dict[str, str | int | None]] = field(default_factory=list)


class TimeInfo(msgspec.Struct, gc=False):
    """Communication Time Info of a call."""

    start: float | None = msgspec.field(name="Start Timestamp(us)", default=None)
    elapse: float | None = msgspec.field(name="Elapse Time(ms)", default=None)
    transit: float | None = msgspec.field(name="Transit Time(ms)", default=None)
    wait: float | None = msgspec.field(name="Wait Time(ms)", default=None)
    sync: float | None = msgspec.field(name="Synchronization Time(ms)", default=None)
    idle: float | None = msgspec.field(name="Idle Time(ms)", default=None)


class _Band(msgspec.Struct, gc=False):
    size: float | None = msgspec.field(name="Transit Size(MB)", default=None)
    time: float | None = msgspec.field(name="Transit Time(ms)", default=None)
    large: float | None = msgspec.field(name="Large Packet Ratio", default=None)
    sizes: dict[str, list[float]] = msgspec.field(name="Size Distribution", default_factory=dict)


class Call(msgspec.Struct, gc=False):
    """One call of a communication.json."""

    time: TimeInfo = msgspec.field(name="Communication Time Info", default_factory=TimeInfo)
    bands: dict[str, _Band] = msgspec.field(name="Communication Bandwidth Info", default_factory=dict)


class Link(msgspec.Struct, gc=False):
    """One link of a communication_matrix.json."""

    transport: str | None = msgspec.field(name="Transport Type", default=None)
    size: float | None = msgspec.field(name="Transit Size(MB)", default=None)
    time: float | None = msgspec.field(name="Transit Time(ms)", default=None)
    name: str | None = msgspec.field(name="Op Name", default=None)


def ns_of_ms(value: float | None) -> int:
    """A time in ms as ns, `NULL` when unknown, below zero or over a day."""
    return NULL if value is None or not 0 <= value <= _MAX_MS else whole(value * 1e6)


def ns_of_us(value: float | None) -> int:
    """A time in us as ns, `NULL` when unknown or after 2200."""
    if value is None or not abs(value) <= _MAX_US:
        return NULL
    us = int(value)  # epoch us times 1000 would leave the 53 bits of a float
    return us * 1000 + round((value - us) * 1e3)


def bytes_of_mb(value: float | None) -> int:
    """A size in decimal MB as bytes, `NULL` when unknown, below zero or over `MAX_BYTES`."""
    return NULL if value is None or not 0 <= value * 1e6 <= MAX_BYTES else whole(value * 1e6)


def step_of(text: str | None) -> int:
    """The number in `step50` or `50`, `NULL` for a bare `step`."""
    number = number_of((text or "").strip().removeprefix("step"))
    return NULL if number is None else number


def number_of(text: str) -> int | None:
    """The number that plain digits write, None for anything else, also for more digits than 64 bits hold."""
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else None


def _json(path: Path) -> bytes:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES >> 30} GiB, which no communication file is")
    return b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf")


_NO_STEPS: Final = re.compile(rb'\A\s*\{\s*"(?:p2p|collective)"')


def _steps(path: Path) -> dict[str, dict[str, dict[str, msgspec.Raw]]]:
    """Step, class, call of a file; the form of `msprof --analyze` has no step level."""
    text = _json(path)
    if _NO_STEPS.match(text):
        try:
            return {"step": msgspec.json.decode(text, type=dict[str, dict[str, msgspec.Raw]])}
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"{path} is damaged JSON: {error}", hint="export the profile again") from None
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, dict[str, msgspec.Raw]]]) if text.strip() else {}
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged JSON: {error}", hint="export the profile again") from None
    try:
        return {"step": msgspec.json.decode(text, type=dict[str, dict[str, msgspec.Raw]])}
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is no communication file: {error}") from None


def read_communication(path: Path, figures: CommFigures) -> int:
    """Add the calls of a communication.json; returns how many there are.

    Raises:
        InputError: the file is damaged.
    """
    steps = _steps(path)
    before = len(figures.calls)
    for step, classes in steps.items():
        for kind, calls in classes.items():
            for key, raw in calls.items():
                if "@" not in key:
                    continue  # Total Op Info
                try:
                    call = msgspec.json.decode(raw, type=Call)
                except (msgspec.DecodeError, RecursionError) as error:
                    raise InputError(f"{path}: {key} is not what the format says: {error}") from None
                add_call(figures, key, step_of(step), kind == "p2p", call)
    return len(figures.calls) - before


def add_call(figures: CommFigures, key: str, step_id: int, is_p2p: bool, call: Call) -> None:
    """Add a call by its key `name@hash`."""
    name, _, hash_id = key.rpartition("@")
    figures.calls.append(
        CallFigures(
            name=name,
            hash_id=hash_id,
            step_id=step_id,
            is_p2p=is_p2p,
            start_ns=ns_of_us(call.time.start),
            elapse_ns=ns_of_ms(call.time.elapse),
            transit_ns=ns_of_ms(call.time.transit),
            wait_ns=ns_of_ms(call.time.wait),
            sync_ns=ns_of_ms(call.time.sync),
            idle_ns=ns_of_ms(call.time.idle),
        )
    )
    common: dict[str, str | int | None] = {"name": name, "op": op_of(name), "group": hash_id, "step_id": step_id}
    for transport in _TRANSPORTS:
        band = call.bands.get(transport)
        if band is None or (not band.size and not band.time and not band.sizes):
            continue
        figures.transfers.append(
            {
                **common,
                "transport": transport,
                "size_bytes": bytes_of_mb(band.size),
                "time_ns": ns_of_ms(band.time),
                "large_packet_ratio": band.large,
            }
        )
        for size, pair in band.sizes.items():
            figures.packets.append(
                {
                    **common,
                    "transport": transport,
                    **_packets(_number(size), pair[0] if pair else None, pair[1] if len(pair) > 1 else None),
                }
            )


def _packets(mb: float | None, count: float | None, ms: float | None) -> dict[str, int]:
    """Size, number and time of the packets of one size; what makes more data than there can be is unknown."""
    size = bytes_of_mb(mb)
    number = NULL if count is None or not 0 <= count <= MAX_BYTES else whole(count)
    if NULL not in (size, number) and size * number > MAX_BYTES:
        number = NULL
    return {"packet_bytes": size, "count": number, "time_ns": ns_of_ms(ms)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_matrix(path: Path, figures: CommFigures) -> int:
    """Add the links of a communication_matrix.json; returns how many there are.

    Raises:
        InputError: the file is damaged.
    """
    before = len(figures.links)
    for step, classes in _steps(path).items():
        for calls in classes.values():
            for key, raw in calls.items():
                if "@" not in key:
                    continue
                try:
                    links = msgspec.json.decode(raw, type=dict[str, Link])
                except (msgspec.DecodeError, RecursionError) as error:
                    raise InputError(f"{path}: {key} is not what the format says: {error}") from None
                for pair, link in links.items():
                    src, dst = map(number_of, pair.partition("-")[::2])
                    if src is not None and dst is not None:
                        add_link(figures, key, step_of(step), src, dst, link)
    return len(figures.links) - before


def add_link(figures: CommFigures, key: str, step_id: int, src: int, dst: int, link: Link) -> None:
    """Add a link by its key `name@hash`, or `type-pick@hash`."""
    label, _, hash_id = key.rpartition("@")
    kind, _, pick = label.rpartition("-")
    name = link.name or (label if not kind else None)
    # The type in the key is derived by a loose pattern (reduceScatter comes out as reduce): the call's name is right.
    figures.links.append(
        {
            "op": op_of(name) if name else _OPS.get(kind, "other"),
            "pick": pick if kind else None,
            "name": name,
            "group": hash_id,
            "step_id": step_id,
            "src": src,
            "dst": dst,
            "transport": link.transport or "unknown",
            "size_bytes": bytes_of_mb(link.size),
            "time_ns": ns_of_ms(link.time),
        }
    )


def read_analysis_db(path: Path, figures: CommFigures) -> tuple[Table, int]:
    """Add the figures of an analysis.db; returns its StepTraceTime as exported_steps, and the rows read.

    Raises:
        InputError: the file is damaged.
    """
    rows = 0
    with database(path) as connection:
        tables = table_names(connection)
        if "CommAnalyzerTime" in tables:
            for row in rows_of(connection, "CommAnalyzerTime", _TIME_COLUMNS):
                rows += 1
                call = Call(time=TimeInfo(*(float_of(v) for v in row[2:8])))
                add_call(figures, f"{row[0]}@{row[1]}", step_of(word_of(row[8])), row[9] == "p2p", call)
        if "CommAnalyzerBandwidth" in tables:
            rows += add_bandwidth(figures, rows_of(connection, "CommAnalyzerBandwidth", BAND_COLUMNS))
        if "CommAnalyzerMatrix" in tables:
            for row in rows_of(connection, "CommAnalyzerMatrix", _MATRIX_COLUMNS):
                rows += 1
                src, dst = number_of(str(row[2])), number_of(str(row[3]))
                if src is not None and dst is not None:
                    link = Link(word_of(row[4]), float_of(row[5]), float_of(row[6]), word_of(row[8]))
                    add_link(figures, f"{row[0]}@{row[1]}", step_of(word_of(row[7])), src, dst, link)
        exported = Table.empty(t.EXPORTED_STEPS)
        if "StepTraceTime" in tables:
            steps = rows_of(connection, "StepTraceTime", _STEP_COLUMNS)
            rows += len(steps)
            columns: dict[str, Ints] = {
                "device": _column([NULL if row[0] is None else int(row[0]) for row in steps]),
                "step_id": _column([step_of(word_of(row[1])) for row in steps]),
            }
            for place, name in enumerate(_STEP_TARGETS, 2):
                figure = bounded(_column([ns_of_us(float_of(row[place])) for row in steps]), -MAX_STEP_NS, MAX_STEP_NS)
                columns[name] = figure
            exported = Table(t.EXPORTED_STEPS, columns)
    return exported, rows


_TIME_COLUMNS: Final = (
    "hccl_op_name", "group_name", "start_timestamp", "elapse_time", "transit_time", "wait_time",
    "synchronization_time", "idle_time", "step", "type",
)  # fmt: skip
BAND_COLUMNS: Final = (
    "hccl_op_name", "group_name", "transport_type", "transit_size", "transit_time", "large_packet_ratio",
    "package_size", "count", "total_duration", "step",
)  # fmt: skip
_MATRIX_COLUMNS: Final = (
    "hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "transit_size", "transit_time", "step",
    "op_name",
)  # fmt: skip
_STEP_COLUMNS: Final = (
    "deviceId", "step", "computing", "communication", "overlapped", "communication_not_overlapped", "free", "stage",
    "bubble", "preparing",
)  # fmt: skip
_STEP_TARGETS: Final = (
    "computing_ns", "communication_ns", "overlapped_ns", "communication_not_overlapped_ns", "free_ns", "stage_ns",
    "bubble_ns", "preparing_ns",
)  # fmt: skip

Cell = str | int | float | None


def rows_of(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Rows of a table in a fixed order of columns; a column that the file lacks is None."""
    known = {row[1] for row in connection.execute(f'pragma table_info("{table}")')}
    picked = ", ".join(f'"{column}"' if column in known else "null" for column in columns)
    return connection.execute(f'select {picked} from "{table}"').fetchall()


def add_bandwidth(figures: CommFigures, rows: list[tuple[Cell, ...]]) -> int:
    """Add rows of `BAND_COLUMNS`; returns how many there are."""
    seen: set[tuple[Cell, ...]] = set()
    for row in rows:
        transport = word_of(row[2])
        if transport not in _TRANSPORTS:
            continue
        name = word_of(row[0]) or ""
        common: dict[str, str | int | None] = {
            "name": name,
            "op": op_of(name),
            "group": word_of(row[1]),
            "step_id": step_of(word_of(row[9])),
            "transport": transport,
        }
        size, time = float_of(row[3]), float_of(row[4])
        call = (*row[:3], row[9])
        if call not in seen and (size or time):
            seen.add(call)  # size, time and bandwidth repeat on each row of a call
            figures.transfers.append(
                {
                    **common,
                    "size_bytes": bytes_of_mb(size),
                    "time_ns": ns_of_ms(time),
                    "large_packet_ratio": float_of(row[5]),
                }
            )
        if packet := float_of(row[6]):
            figures.packets.append(
                {
                    **common,
                    **_packets(packet, float_of(row[7]), float_of(row[8])),
                }
            )
    return len(rows)


def float_of(value: Cell) -> float | None:
    """A cell as a number, None when it is none."""
    if isinstance(value, (int, float)):
        return float(value)
    return _number(value) if isinstance(value, str) else None


def word_of(value: Cell) -> str | None:
    """A cell as text."""
    return None if value is None else str(value)


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def figure_tables(figures: CommFigures, group_of: Mapping[str, Group]) -> dict[str, Table]:
    """comm_transfers, comm_packets and comm_links of the figures; groups get the names of the calls' groups."""

    def name_of(hash_id: str) -> str:
        group = group_of.get(hash_id)
        return group.name if group else hash_id

    result: dict[str, Table] = {}
    for spec, rows in (
        (t.COMM_TRANSFERS, figures.transfers),
        (t.COMM_PACKETS, figures.packets),
        (t.COMM_LINKS, figures.links),
    ):
        if not rows:
            continue
        columns: dict[str, Text | Ints | np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        for column in spec.columns:
            cells = [row.get(column.name) for row in rows]
            if column.name == "group":
                columns[column.name] = Text.of([name_of(str(c)) for c in cells])
            elif column.kind.value == "text":
                columns[column.name] = Text.of([None if c is None else str(c) for c in cells])
            elif column.kind.value == "int":
                columns[column.name] = _column([c if isinstance(c, int) else NULL for c in cells])
            else:
                columns[column.name] = np.array([np.nan if c is None else c for c in cells], np.float64)
        result[spec.name] = Table(spec, columns)
    return result
