"""Logs of CANN (`plog-*.log`): communicators, settings of HCCL, calls and errors of one process.

Only fields that are named here are taken from a line: messages hold addresses, paths and names of hosts. A log has no
durations, and its times are local times of the host, so it is no timeline; its trace belongs to no rank, since a
profile of that rank may lie beside it.

Source: format reference, section 6.5; meanings of error codes: documentation of CANN and MindSpore. No real log was at
hand.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf import files
from ascend_perf.device.hccl_errors import error_code, phase_about
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table, Text
from ascend_perf.model.trace import Device, Group, Meta, ProfilerSettings, Source, Trace
from ascend_perf.parsers._ascend_comm import DTYPE_BYTES, group_hash, op_of
from ascend_perf.parsers._ascend_meta import public_name
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "CANN plog"
MAX_BYTES: Final = 1 << 30
"""A log beyond this is refused; the producer rotates at 20 MiB. Status: assumed."""

_LINE: Final = re.compile(
    r"\[(?P<level>\w+)\]\s*(?P<module>\w+)\((?P<pid>\d+),[^)]*\):"
    r"(?P<time>\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d)\.(?P<ms>\d{3})\.(?P<us>\d{3})\s*\[[^\]]*\]\s*\[(?P<tid>\d+)\](?P<text>.*)"
)
_WANTED: Final = re.compile(
    r"Entry-Hccl|\[HCCL_ENV\]|E[EIJKL]\d{4}|TaskExecStage|Init(?:Channel|Group)Stage|HeartbeatAbnormal"
    r"|groupRank information|(?:Communicator|LocalRank) Key Info"
)
_INIT: Final = re.compile(r"Entry-HcclCommInit\w*:?.*?\branks\[(\d{1,7})\],\s*rank\[(\d{1,7})\]")
_IDENTIFIER: Final = re.compile(r"identifier\[([^\]]{1,200})\]")
_CALL: Final = re.compile(r"Entry-Hccl(?!Comm)(\w+?)(?:Inner|V2)*:\s*tag\[([^\]]{1,300})\]")
_DESTROY: Final = re.compile(r"Entry-HcclCommDestroy")
_COUNT: Final = re.compile(r"\bcount\[(\d{1,18})\]")
_DTYPE: Final = re.compile(r"dataType\[(\w{1,16})\]")
_ENVIRONMENT: Final = re.compile(
    r"\[HCCL_ENV\]\s*(HCCL_\w{1,60})\s+set by (default|environment) to \[([\w.,:+-]{1,64})\]"
)
_CODE: Final = re.compile(r"\b(E[EIJKL]\d{4})\b")
_TIMEOUT: Final = re.compile(r"\[TaskExecStage\]\[Timeout\]")
_CONNECT: Final = re.compile(r"\[Init(?:Channel|Group)Stage\]\[Timeout\]")
_PHASE: Final = re.compile(r"\[(Init(?:Group|Channel)Stage|TaskExecStage)\]\[([A-Z][\w ]{1,30})\]")
_TOPOLOGY: Final = re.compile(
    r"\[Communicator Key Info\]\s*identifier\[([^\]]{1,200})\].*?\brankSize\[(\d{1,7})\]"
    r"(?:.*?\bserverNum\[(\d{1,7})\])?(?:.*?\bsuperPodNum\[(\d{1,7})\])?"
)
_PLACE: Final = re.compile(r"\[LocalRank Key Info\].*?\buserRank\[(\d{1,7})\]")
_TAG: Final = re.compile(r"\btag\[([^\]]{1,300})\]")
_CULPRIT: Final = re.compile(r"crimer rank \[[^\]/]*/(\d{1,7})\]")
_PRIVATE: Final = frozenset({"HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "HCCL_WHITELIST_FILE"})
_NAME: Final = re.compile(r"plog-(\d+)_\d+\.log")

_DTYPES: Final = {
    "float32": "FP32", "float16": "FP16", "bfloat16": "BFP16", "float64": "FP64", "int8": "INT8", "int16": "INT16",
    "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
}  # fmt: skip

TIMEOUT: Final = "timeout"
CONNECT: Final = "connect timeout"
HEARTBEAT: Final = "heartbeat lost"
LOCAL_TIME: Final = "times of the log are local times of its host"


@dataclass
class _Log:
    """What was found in the files of one process."""

    rows: list[tuple[int, str, str, str, str | None, int, str | None, int, int]] = field(default_factory=list)
    """Time, level, kind, name, group, count, dtype, thread, rank that is named."""
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and own rank by communicator."""
    environment: dict[str, str] = field(default_factory=dict)
    last_group: str = ""
    """The communicator that was described last; the next line tells the place of the rank in it."""
    culprits: Counter[int] = field(default_factory=Counter)
    lines: int = 0


def is_log(entry: FileEntry) -> bool:
    """Whether a file is a log of CANN, by its first lines."""
    head = entry.head[:8192]
    if not head.lstrip().startswith(b"[") or b"\0" in head:
        return False
    return any(_LINE.match(line) for line in head.decode("utf-8", "replace").splitlines()[:20])


def find(folder: Folder) -> list[Unit]:
    """The logs of one process are one unit: the producer rotates its files."""
    groups: dict[str, list[Path]] = {}
    for entry in folder.files:
        if entry.path.suffix in (".log", ".txt", "") and is_log(entry):
            match = _NAME.fullmatch(entry.path.name)
            groups.setdefault(match[1] if match else entry.path.name, []).append(entry.path)
    return [Unit(parser="plog", label=paths[0].name, files=tuple(sorted(paths))) for paths in groups.values()]


def parse(unit: Unit) -> list[Trace]:
    """The trace of one process.

    Raises:
        InputError: no line of the log is about HCCL or an error.
    """
    log = _Log()
    sources = []
    for path in unit.files:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path.name} is larger than {MAX_BYTES >> 30} GiB, which no log of CANN is")
        before = log.lines
        _read(b"".join(files.blocks(path)).decode("utf-8", "replace"), log)
        place = unit.label if len(unit.files) == 1 else f"{unit.label}/{path.name}"
        sources.append(Source(path=place, format="plog", rows=log.lines - before, size_bytes=size))
    if not log.rows and not log.environment:
        raise InputError(f"{unit.label}: no line about HCCL and no error code in this log")
    return [Trace({"log_events": _table(log)} if log.rows else {}, _meta(unit, log, tuple(sources)))]


def _read(text: str, log: _Log) -> None:
    for line in text.splitlines():
        log.lines += 1
        if not _WANTED.search(line):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        _take(match, log)


def _take(match: re.Match[str], log: _Log) -> None:
    text, time, tid = match["text"], _time_ns(match), int(match["tid"][:18])
    level = match["level"].upper()

    def add(
        kind: str, name: str, group: str | None = None, count: int = NULL, dtype: str | None = None, named: int = NULL
    ) -> None:
        log.rows.append((time, level, kind, name, group, count, dtype, tid, named))

    if found := _ENVIRONMENT.search(text):
        if found[1] not in _PRIVATE:
            log.environment[found[1]] = found[3] if found[2] == "environment" else f"{found[3]} (default)"
        return
    if found := _INIT.search(text):
        identifier = _IDENTIFIER.search(text)
        name = public_name(identifier[1]) if identifier else None
        if name is not None:
            log.groups[identifier[1] if identifier else ""] = (int(found[1]), int(found[2]))
        add("communicator", "create", name)
    elif found := _TOPOLOGY.search(text):
        # The size is what communicators of a rank table have in place of an entry line.
        _, own = log.groups.get(found[1], (0, NULL))
        log.groups[found[1]] = (int(found[2]), own)
        log.last_group = found[1]
        servers = [f"{found[at]} {name}" for at, name in ((3, "servers"), (4, "super pods")) if found[at]]
        add("communicator", f"topology: {', '.join(servers)}" if servers else "topology", public_name(found[1]))
    elif found := _PLACE.search(text):
        if log.last_group in log.groups:
            log.groups[log.last_group] = (log.groups[log.last_group][0], int(found[1]))
    elif _DESTROY.search(text):
        add("communicator", "destroy")
    elif found := _CALL.search(text):
        count, dtype = _COUNT.search(text), _DTYPE.search(text)
        word = None if dtype is None else _DTYPES.get(dtype[1].lower(), dtype[1].upper())
        add("call", op_of(found[1]), _group(found[2], log), int(count[1]) if count else NULL, word)
    if culprit := _CULPRIT.search(text):
        log.culprits[int(culprit[1])] += 1
        add("error", HEARTBEAT, named=int(culprit[1]))
    elif _TIMEOUT.search(text):
        tag = _TAG.search(text)
        add("error", TIMEOUT, None if tag is None else _group(tag[1], log))
    elif _CONNECT.search(text):
        add("error", CONNECT)
    elif level == "ERROR" and (phase := _PHASE.search(text)):
        tag = _TAG.search(text)
        add("error", f"{phase[1]}: {phase[2]}", None if tag is None else _group(tag[1], log))
    if level == "ERROR" and (code := _CODE.search(text)):
        add("error", code[1])


def _group(tag: str, log: _Log) -> str:
    """The communicator in a tag such as `AllReduce_{comm}`: one that was created, else what follows the first `_`."""
    known = next((name for name in log.groups if name in tag), None)
    return public_name(known if known is not None else tag.partition("_")[2] or tag)


def _time_ns(match: re.Match[str]) -> int:
    try:
        moment = datetime.strptime(match["time"], "%Y-%m-%d-%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return NULL
    return int(moment.timestamp()) * 10**9 + int(match["ms"]) * 10**6 + int(match["us"]) * 1000


def _table(log: _Log) -> Table:
    time, level, kind, name, group, count, dtype, tid, named = zip(*log.rows, strict=True)
    own = max(log.groups.values(), default=(0, NULL))[1]
    width = np.array([DTYPE_BYTES.get(word or "", NULL) for word in dtype], np.int64)
    counts = np.array(count, np.int64)
    known = (width != NULL) & (counts != NULL) & (counts < 1 << 58)
    return Table(
        t.LOG_EVENTS,
        {
            "time_ns": np.array(time, np.int64),
            "level": Text.of(level),
            "kind": Text.of(kind),
            "name": Text.of(name),
            "group": Text.of(group),
            "size_bytes": np.where(known, np.where(known, counts, 0) * np.where(known, width, 0), NULL),
            "dtype": Text.of(dtype),
            "thread": np.array(tid, np.int64),
            "rank": np.full(len(time), own, np.int64),
            "named_rank": np.array(named, np.int64),
        },
    )


def _meta(unit: Unit, log: _Log, sources: tuple[Source, ...]) -> Meta:
    groups = tuple(
        Group(name=public_name(name), size=size, hash_id=group_hash(name)) for name, (size, _) in log.groups.items()
    )
    world, own = max(log.groups.values(), default=(None, None))
    warnings = [LOCAL_TIME]
    errors = Counter(row[3] for row in log.rows if row[2] == "error")
    for name, count in errors.most_common():
        warnings.append(f"{count} x {name}: {meaning(name)}")
    if log.culprits:
        ranks = ", ".join(str(rank) for rank, _ in log.culprits.most_common(8))
        warnings.append(f"the heartbeat names as the first to fail: rank {ranks}")
    label = unit.label if own is None or own == NULL else f"{unit.label} (rank {own} of {world})"
    meta = Meta(
        label=label, device=Device(vendor="Huawei", kind="npu"), groups=groups, environment=log.environment,
        settings=ProfilerSettings(producer=PRODUCER), sources=sources, warnings=tuple(warnings),
    )  # fmt: skip
    return replace(meta, world_size=world)


def meaning(name: str) -> str:
    """What an error of a log means, in one sentence."""
    if name == TIMEOUT:
        return "a task of a collective ran into its time limit: a peer is late or gone"
    if name == CONNECT:
        return "a link to a peer could not be set up in time: a rank did not start, or the network is blocked"
    if name == HEARTBEAT:
        return "a rank no longer answers"
    known = error_code(name)
    about = known.about if known is not None else phase_about(name.rpartition(": ")[2])
    return "see the list of error codes of CANN" if about is None else about.en


PARSER: Final = Parser(name="plog", order=45, find=find, parse=parse)
