"""Scans logs for HCCL: what each process says of communicators, settings and calls, and which error came first.

Logs of CANN (plog) are read by their reader; any other text, such as the output of a job, is searched for error codes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend_perf import files
from ascend_perf.collectors._machine import Machine
from ascend_perf.device.hccl_errors import error_code, phase_about
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Words
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import LOG_EVENTS
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import plog
from ascend_perf.parsers._source import FileEntry, Folder

MAX_FILES: Final = 20_000
MAX_BYTES: Final = 1 << 30
MAX_LINE: Final = 4 << 10
_CONSOLE: Final = re.compile(
    r"(?P<code>\bE[EIJKL]\d{4}\b|\bERR\d{5}\b)[:\s]\s*(?P<text>.{0,200})"
)

_OWN: Final = {
    plog.TIMEOUT: Words(
        "a task of a collective ran into its time limit: a peer is late or gone",
        "集合通信任务超时，对端迟到或已退出",
    ),
    plog.CONNECT: Words(
        "a link to a peer could not be set up in time: a rank did not start, or the network is blocked",
        "与对端建链超时，有卡未启动或网络不通",
    ),
    plog.HEARTBEAT: Words("a rank no longer answers", "有卡不再响应"),
}
UNKNOWN: Final = Words("see the list of error codes of CANN", "请查阅 CANN 错误码列表")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error that a process or a text tells of."""

    name: str
    """The code, or the phase."""
    count: int
    first_ns: int | None
    """Local time of the host as if it were UTC; None in a text without times."""
    about: Words
    cure: Words | None = None
    detail: str = ""
    """What stands behind the code in a text that is no log of CANN."""


@dataclass(frozen=True, kw_only=True)
class ProcessLog:
    """What one process, or one text, says."""

    label: str
    rank: int | None = None
    groups: tuple[tuple[str, int | None], ...] = ()
    """Name and size of each communicator."""
    settings: Mapping[str, str] | None = None
    """HCCL's own settings as it says itself, with (default) behind what was not set."""
    calls: tuple[tuple[str, int, int | None], ...] = ()
    """Operation, calls, and bytes in all where every size is known."""
    named_ranks: tuple[int, ...] = ()
    """Ranks that the heartbeat names as the first to fail."""
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scan:
    """All processes, and those in which an error came first."""

    processes: tuple[ProcessLog, ...]
    unread: tuple[tuple[str, str], ...] = ()
    """Files that could not be read, with the reason."""

    @property
    def first(self) -> tuple[ProcessLog, Failure] | None:
        """The earliest error of all: hosts of one clock are compared, others as far as their clocks agree."""
        dated = [
            (one.first_ns, at, process, one)
            for at, process in enumerate(self.processes) for one in process.failures if one.first_ns is not None
        ]  # fmt: skip
        if not dated:
            return None
        _, _, process, failure = min(dated, key=lambda row: (row[0], row[1]))
        return process, failure


def default_folders(machine: Machine) -> list[Path]:
    """Where CANN writes its logs: ASCEND_PROCESS_LOG_PATH before ASCEND_WORK_PATH before the home folder."""
    named = machine.named("ASCEND_PROCESS_LOG_PATH")
    work = machine.named("ASCEND_WORK_PATH")
    places = [named, None if work is None else work / "log", machine.home() / "ascend/log"]
    return [place for place in places if place is not None]


def scan(path: Path) -> Scan:
    """Everything below a folder, or one file.

    Raises:
        InputError: there is nothing, or no file tells anything.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist", hint="CANN writes logs to $HOME/ascend/log")
    found, unread = list[ProcessLog](), list[tuple[str, str]]()
    for folder in _folders(path):
        units = plog.find(folder)
        claimed = {file for unit in units for file in unit.files}
        for unit in units:
            try:
                found += (_of_trace(trace) for trace in plog.parse(unit))
            except InputError as error:
                unread.append((unit.label, error.what))
        for entry in folder.files:
            if entry.path not in claimed and (text := _of_text(entry)) is not None:
                found.append(text)
    if not found:
        raise InputError(
            f"{path}: no line about HCCL and no error code", hint="set HCCL_ENTRY_LOG_ENABLE=1 to log each call"
        )
    return Scan(processes=tuple(found), unread=tuple(unread))


def _folders(path: Path) -> list[Folder]:
    if path.is_file():
        return [Folder(path.parent, (FileEntry(path, path.stat().st_size),), ())]
    by_folder: dict[Path, list[FileEntry]] = {}
    for count, file in enumerate(sorted(path.rglob("*"))):
        if count >= MAX_FILES:
            break
        if file.suffix in (".log", ".txt", ".out", "") and file.is_file() and not file.is_symlink():
            by_folder.setdefault(file.parent, []).append(FileEntry(file, file.stat().st_size))
    return [Folder(folder, tuple(entries), ()) for folder, entries in by_folder.items()]


def meaning(name: str) -> tuple[Words, Words | None]:
    """What an error means, and the cure where the table has one."""
    if (known := error_code(name)) is not None:
        return known.about, known.cure
    return _OWN.get(name) or phase_about(name.rpartition(": ")[2]) or UNKNOWN, None


def _of_trace(trace: Trace) -> ProcessLog:
    table = trace[LOG_EVENTS]
    kind, name, time = table.text("kind").to_list(), table.text("name").to_list(), table.ints("time_ns").tolist()
    size, named = table.ints("size_bytes").tolist(), table.ints("named_rank").tolist()
    rank = table.ints("rank").tolist()
    calls, totals = Counter[str](), dict[str, int | None]()
    errors, firsts = Counter[str](), dict[str, int]()
    for row, what in enumerate(kind):
        word = name[row] or ""
        if what == "call":
            calls[word] += 1
            known = totals.get(word, 0)
            totals[word] = None if known is None or size[row] == NULL else known + size[row]
        elif what == "error":
            errors[word] += 1
            firsts.setdefault(word, time[row])
    failures = []
    for word, count in sorted(errors.items(), key=lambda item: (firsts[item[0]], item[0])):
        about, cure = meaning(word)
        first = firsts[word]
        failures.append(
            Failure(name=word, count=count, first_ns=None if first == NULL else first, about=about, cure=cure)
        )
    return ProcessLog(
        label=trace.meta.label, rank=rank[0] if rank and rank[0] != NULL else None,
        groups=tuple((group.name, group.size) for group in trace.meta.groups), settings=trace.meta.environment,
        calls=tuple((word, count, totals[word]) for word, count in calls.most_common()),
        named_ranks=tuple(dict.fromkeys(one for one in named if one != NULL)), failures=tuple(failures),
    )  # fmt: skip


def _of_text(entry: FileEntry) -> ProcessLog | None:
    """Error codes of a text that is no log of CANN, such as the output of a job; None without any."""
    if entry.size > MAX_BYTES or b"\0" in entry.head:
        return None
    counts, details = Counter[str](), dict[str, str]()
    rest = b""
    for block in files.blocks(entry.path):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            _take(line, counts, details)
        rest = rest[:MAX_LINE]
    _take(rest, counts, details)
    if not counts:
        return None
    failures = []
    for code, count in counts.items():
        about, cure = meaning(code)
        failures.append(
            Failure(name=code, count=count, first_ns=None, about=about, cure=cure, detail=details[code])
        )
    return ProcessLog(label=entry.path.name, failures=tuple(failures))


def _take(line: bytes, counts: Counter[str], details: dict[str, str]) -> None:
    if b"E" not in line:
        return
    text = line[:MAX_LINE].decode("utf-8", "replace")
    if found := _CONSOLE.search(text):
        code = found["code"]
        counts[code] += 1
        details.setdefault(code, found["text"].strip())
