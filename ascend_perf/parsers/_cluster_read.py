"""Files of `cluster_analysis_output`: what each says about the ranks of a job, text and database alike.

Source: format reference, section 7. Ranks are global ranks in all of these files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL, Ints
from ascend_perf.parsers import _ascend_comm as comm
from ascend_perf.parsers._ascend_csv import header, read_csv
from ascend_perf.parsers._ascend_files import SQLITE_MAGIC, database, table_names
from ascend_perf.parsers._ascend_meta import Facts, rank_of, take_metadata
from ascend_perf.parsers._numbers import bounded
from ascend_perf.parsers._source import FileEntry

MAX_MEMBERS: Final = 1 << 20
"""A group with more ranks is damage. Status: assumed."""


class Kind(Enum):
    """Kinds of files; the value is the producer's name of the file."""

    DATABASE = "cluster_analysis.db"
    STEPS = "cluster_step_trace_time.csv"
    COMMUNICATION = "cluster_communication.json"
    MATRIX = "cluster_communication_matrix.json"
    GROUPS = "communication_group.json"


_BY_GROUP: Final = re.compile(
    rb'\A\s*\{\s*(?:"p2p"\s*:\s*\{\s*\}\s*,\s*)?"(?:p2p|[\[({]\d[\d, ]*[\])}])"\s*:\s*\{\s*"(?:step)?\d*"\s*:\s*\{'
)
_GROUP_LISTS: Final = re.compile(rb'\A\s*\{\s*"(?:collective|p2p)"\s*:\s*\[')
_RANKS: Final = re.compile(r"\d+")
_RANK_KEY: Final = re.compile(r"[\[({]\s*\d+(\s*,\s*\d+)*\s*,?\s*[\])}]")

_TIME_TABLES: Final = ("ClusterCommunicationTime", "ClusterCommAnalyzerTime")
_BAND_TABLES: Final = ("ClusterCommunicationBandwidth", "ClusterCommAnalyzerBandwidth")
_MATRIX_TABLES: Final = ("ClusterCommunicationMatrix", "ClusterCommAnalyzerMatrix")
_GROUP_TABLES: Final = ("CommunicationGroupMapping", "CommunicationGroup")
_STEP_TABLE: Final = "ClusterStepTraceTime"


def kind_of(entry: FileEntry) -> Kind | None:
    """The kind of a file by its content, None when it is not of a cluster analysis."""
    head = entry.head.removeprefix(b"\xef\xbb\xbf")
    if head.startswith(SQLITE_MAGIC):
        return _kind_of_database(entry.path)
    if _GROUP_LISTS.match(head):
        return Kind.GROUPS
    if _BY_GROUP.match(head):
        if b'"Communication Time Info"' in head:
            return Kind.COMMUNICATION
        return Kind.MATRIX if b'"Transport Type"' in head or "matrix" in entry.path.name else Kind.COMMUNICATION
    if head.lstrip()[:1] not in (b"{", b"[") and {"Step", "Type", "Index", "Computing", "Stage"} <= set(header(head)):
        return Kind.STEPS
    return None


def _kind_of_database(path: Path) -> Kind | None:
    try:
        with database(path, log=False) as connection:
            tables = table_names(connection)
    except InputError:
        return Kind.DATABASE if path.name == Kind.DATABASE.value else None
    known = {_STEP_TABLE, *_TIME_TABLES, *_BAND_TABLES, *_MATRIX_TABLES}
    return Kind.DATABASE if tables & known else None


@dataclass(frozen=True)
class StageRow:
    """A row of type `stage`: the ranks of a pipeline stage, and the maximum of each column over them, in ns."""

    step_id: int
    ranks: tuple[int, ...]
    figures: Mapping[str, int]


@dataclass(frozen=True)
class NamedGroup:
    """A group as communication_group.json names it; `hash_id` is None in files without names."""

    ranks: tuple[int, ...]
    hash_id: str | None = None
    communicator: str | None = None
    label: str | None = None


@dataclass
class ClusterData:
    """All that the files of one folder say."""

    steps: dict[int, list[dict[str, int]]] = field(default_factory=dict)
    """Rows of exported_steps by rank."""
    stages: list[StageRow] = field(default_factory=list)
    pipeline: dict[int, int] = field(default_factory=dict)
    """Pipeline stage of each rank, where the files state it (PP Index)."""
    figures: dict[int, comm.CommFigures] = field(default_factory=dict)
    links: list[tuple[dict[str, str | int | None], tuple[int, ...]]] = field(default_factory=list)
    """Links with global ranks, and the members of their group as far as the file states them."""
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of groups by hash, from the keys of the calls."""
    groups: list[NamedGroup] = field(default_factory=list)
    devices: dict[int, int] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    def of(self, rank: int) -> comm.CommFigures:
        """The figures of a rank, made when they are not there yet."""
        return self.figures.setdefault(rank, comm.CommFigures())


STEP_COLUMNS: Final = {
    "computing_ns": ("Computing", "computing"),
    "communication_ns": ("Communication", "communication"),
    "overlapped_ns": ("Overlapped", "overlapped"),
    "communication_not_overlapped_ns": ("Communication(Not Overlapped)", "communication_not_overlapped"),
    "free_ns": ("Free", "free"),
    "stage_ns": ("Stage", "stage"),
    "bubble_ns": ("Bubble", "bubble"),
    "preparing_ns": ("Preparing", "preparing"),
}
"""Columns of exported_steps, and their names in the CSV and in the database (both in us)."""


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks of a printed tuple, list or set, in ascending order; empty when it is none."""
    if not _RANK_KEY.fullmatch(text.strip()):
        return ()
    ranks = {int(word) for word in _RANKS.findall(text) if len(word) < 10}
    return tuple(sorted(ranks)) if len(ranks) <= MAX_MEMBERS else ()


def read_steps(path: Path, data: ClusterData) -> int:
    """Add the rows of a cluster_step_trace_time.csv; returns how many there are.

    Raises:
        InputError: it is no CSV file.
    """
    file = read_csv(path)
    columns: dict[str, Ints] = {target: _figure(file.scaled(3, names[0])) for target, names in STEP_COLUMNS.items()}
    columns["step_id"] = file.ids("Step")
    columns["pipeline"] = file.ids("PP Index")
    _add_steps(data, columns, file.text("Type").to_list(), file.text("Index").to_list())
    return file.rows


def _figure(ns: Ints) -> Ints:
    """Times of a step; longer ones than a day are damage."""
    return bounded(ns, -comm.MAX_STEP_NS, comm.MAX_STEP_NS)


def _add_steps(
    data: ClusterData, columns: Mapping[str, Ints], kinds: Sequence[str | None], places: Sequence[str | None]
) -> None:
    names = (*STEP_COLUMNS, "step_id")
    for row, (kind, place) in enumerate(zip(kinds, places, strict=True)):
        figures = {name: int(columns[name][row]) for name in names}
        if kind == "rank" and (rank := rank_of(place)) is not None:
            data.steps.setdefault(rank, []).append(figures)
            if (stage := int(columns["pipeline"][row])) != NULL and stage >= 0:
                data.pipeline[rank] = stage
        elif kind == "stage" and (ranks := ranks_in(place or "")):
            step_id = figures.pop("step_id")
            data.stages.append(StageRow(step_id, ranks, figures))


_Steps = dict[str, dict[str, dict[str, msgspec.Raw]]]


def _by_group(path: Path) -> _Steps:
    if path.stat().st_size > comm.MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {comm.MAX_JSON_BYTES >> 30} GiB, which no communication file is")
    text = b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(text, type=_Steps)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is not what the format says: {error}", hint=AGAIN) from None


AGAIN: Final = "run the cluster analysis again: msprof-analyze cluster -d DIR"


def _each(path: Path, data: ClusterData, take: Callable[[str, str, tuple[int, ...], int, msgspec.Raw], int]) -> int:
    """Hand over each call: its key, the group's key, the group's members, its step, and what is said about it."""
    count = 0
    for group, steps in _by_group(path).items():
        members = ranks_in(group)
        for step, calls in steps.items():
            for key, raw in calls.items():
                if "@" not in key:
                    continue  # Total Op Info
                if members:
                    data.members.setdefault(key.rpartition("@")[2], members)
                try:
                    count += take(key, group, members, comm.step_of(step), raw)
                except (msgspec.DecodeError, RecursionError) as error:
                    raise InputError(f"{path}: {key} is not what the format says: {error}", hint=AGAIN) from None
    return count


def read_communication(path: Path, data: ClusterData) -> int:
    """Add the calls of a cluster_communication.json; returns how many there are, counted per rank.

    Raises:
        InputError: the file is damaged.
    """

    def take(key: str, group: str, members: tuple[int, ...], step_id: int, raw: msgspec.Raw) -> int:
        calls = msgspec.json.decode(raw, type=dict[str, comm.Call])
        for word, call in calls.items():
            if (rank := rank_of(word)) is not None:
                comm.add_call(data.of(rank), key, step_id, group == "p2p", call)
        return len(calls)

    return _each(path, data, take)


def read_matrix(path: Path, data: ClusterData) -> int:
    """Add the links of a cluster_communication_matrix.json; returns how many there are.

    Raises:
        InputError: the file is damaged.
    """

    def take(key: str, group: str, members: tuple[int, ...], step_id: int, raw: msgspec.Raw) -> int:
        links = msgspec.json.decode(raw, type=dict[str, comm.Link])
        for pair, link in links.items():
            src, _, dst = pair.partition("-")
            _add_link(data, key, members, step_id, rank_of(src), rank_of(dst), link)
        return len(links)

    return _each(path, data, take)


def _add_link(
    data: ClusterData, key: str, members: tuple[int, ...], step_id: int, src: int | None, dst: int | None,
    link: comm.Link,
) -> None:  # fmt: skip
    if src is None or dst is None:
        return
    one = comm.CommFigures()
    comm.add_link(one, key, step_id, src, dst, link)
    data.links.append((one.links[0], members))


class _Info(msgspec.Struct):
    kind: str | None = msgspec.field(name="type", default=None)
    ranks: list[int] = msgspec.field(name="rank_set", default_factory=list)
    hash_id: str | None = msgspec.field(name="group_name", default=None)
    communicator: str | None = msgspec.field(name="group_id", default=None)
    label: str | None = msgspec.field(name="pg_name", default=None)


class _Groups(msgspec.Struct):
    collective: list[list[int]] = msgspec.field(default_factory=list)
    named: list[_Info] = msgspec.field(name="comm_group_parallel_info", default_factory=list)


def read_groups(path: Path, data: ClusterData) -> int:
    """Add the groups of a communication_group.json; returns how many there are.

    Its list of "p2p" holds the ranks of whole pipeline stages, which are no communicators.

    Raises:
        InputError: the file is damaged.
    """
    try:
        found = msgspec.json.decode(b"".join(files.blocks(path)), type=_Groups)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is not what the format says: {error}", hint=AGAIN) from None
    named = {tuple(sorted(set(info.ranks))) for info in found.named}
    for ranks in found.collective:
        members = tuple(sorted(set(ranks)))
        if members not in named:
            data.groups.append(NamedGroup(members))
    for info in found.named:
        if info.kind != "p2p":
            data.groups.append(_named(info.ranks, info.hash_id, info.communicator, info.label))
    return len(found.collective) + len(found.named)


def _named(ranks: Sequence[int], hash_id: str | None, communicator: str | None, label: str | None) -> NamedGroup:
    return NamedGroup(tuple(sorted(set(ranks))), hash_id or None, communicator or None, label or None)


_TIME_COLUMNS: Final = (
    "rank_id", "step", "hccl_op_name", "group_name", "start_timestamp", "elapsed_time", "elapse_time", "transit_time",
    "wait_time", "synchronization_time", "idle_time",
)  # fmt: skip
_MATRIX_COLUMNS: Final = (
    "step", "hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "transit_size", "transit_time",
    "op_name",
)  # fmt: skip


def read_cluster_database(path: Path, data: ClusterData) -> int:
    """Add all that a cluster_analysis.db holds; returns the rows read. Tables of recipes are left alone.

    Raises:
        InputError: the file is damaged.
    """
    rows = 0
    with database(path) as connection:
        tables = table_names(connection)

        def of(names: Sequence[str], *columns: str) -> list[tuple[comm.Cell, ...]]:
            nonlocal rows
            table = next((name for name in names if name in tables), None)
            found = [] if table is None else comm.rows_of(connection, table, columns)
            rows += len(found)
            return found

        names = [column for _, column in STEP_COLUMNS.values()]
        _database_steps(data, of((_STEP_TABLE,), "step", "type", "index", "pp_index", *names))
        for rank_set, kind, hash_id, communicator, label in of(
            _GROUP_TABLES, "rank_set", "type", "group_name", "group_id", "pg_name"
        ):
            if kind != "p2p":
                ranks = ranks_in(str(rank_set))
                words = (comm.word_of(cell) for cell in (hash_id, communicator, label))
                data.groups.append(_named(ranks, *words))
        for row in of(_TIME_TABLES, *_TIME_COLUMNS):
            if (rank := rank_of(row[0])) is not None:
                elapse = row[5] if row[5] is not None else row[6]
                times = (comm.float_of(cell) for cell in (row[4], elapse, *row[7:11]))
                is_p2p = comm.op_of(str(row[2])) in ("send", "receive", "batchSendRecv")
                call = comm.Call(time=comm.TimeInfo(*times))
                comm.add_call(data.of(rank), f"{row[2]}@{row[3]}", comm.step_of(comm.word_of(row[1])), is_p2p, call)
        by_rank: dict[int, list[tuple[comm.Cell, ...]]] = {}
        columns = tuple("band_type" if name == "transport_type" else name for name in comm.BAND_COLUMNS)
        for row in of(_BAND_TABLES, "rank_id", *columns):
            if (rank := rank_of(row[0])) is not None:
                by_rank.setdefault(rank, []).append(row[1:])
        for rank, found in by_rank.items():
            comm.add_bandwidth(data.of(rank), found)
        for row in of(_MATRIX_TABLES, *_MATRIX_COLUMNS):
            link = comm.Link(
                comm.word_of(row[5]), comm.float_of(row[6]), comm.float_of(row[7]), comm.word_of(row[8]) or None
            )
            step_id = comm.step_of(comm.word_of(row[0]))
            _add_link(data, f"{row[1]}@{row[2]}", (), step_id, rank_of(row[3]), rank_of(row[4]), link)
        for rank_id, device in of(("RankDeviceMap",), "rankId", "deviceId"):
            if (rank := rank_of(rank_id)) is not None and isinstance(device, int):
                data.devices[rank] = device
        for key, value in of(("ClusterBaseInfo",), "key", "value"):
            take_metadata(str(key), str(value).encode(), data.facts, path.name)
    # The rank there is that of the profile which the producer happened to read.
    data.facts.rank = None
    return rows


def _database_steps(data: ClusterData, rows: list[tuple[comm.Cell, ...]]) -> None:
    columns = {
        target: _figure(np.array([comm.ns_of_us(comm.float_of(row[place])) for row in rows], np.int64))
        for place, target in enumerate(STEP_COLUMNS, 4)
    }
    columns["step_id"] = np.array([comm.step_of(comm.word_of(row[0])) for row in rows], np.int64)
    columns["pipeline"] = np.array([row[3] if isinstance(row[3], int) else NULL for row in rows], np.int64)
    _add_steps(data, columns, [comm.word_of(row[1]) for row in rows], [comm.word_of(row[2]) for row in rows])
