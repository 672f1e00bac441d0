"""Which file of a torch_npu profile a file is: told by its content, since files get renamed and moved."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from ascend_perf.errors import InputError
from ascend_perf.parsers._ascend_csv import header
from ascend_perf.parsers._source import FileEntry

PRODUCER: Final = "torch_npu.profiler"

START_NAMES: Final = ("Start Time(us)", "Task Start Time(us)")
DUR_NAMES: Final = ("Duration(us)", "Task Duration(us)")
NAME_NAMES: Final = ("Name", "Op Name")
CORE_NAMES: Final = ("Accelerator Core", "Task Type")
TYPE_NAMES: Final = ("Type", "OP Type")

SQLITE_MAGIC: Final = b"SQLite format 3\0"


class Kind(Enum):
    """Kinds of files; the value is the producer's name of the file."""

    KERNELS = "kernel_details.csv"
    OPERATORS = "operator_details.csv"
    OP_STATISTIC = "op_statistic.csv"
    API_STATISTIC = "api_statistic.csv"
    STEP_TRACE = "step_trace_time.csv"
    MEMORY_RECORD = "memory_record.csv"
    OPERATOR_MEMORY = "operator_memory.csv"
    MODULE_MEMORY = "npu_module_mem.csv"
    L2_CACHE = "l2_cache.csv"
    COMMUNICATION = "communication.json"
    MATRIX = "communication_matrix.json"
    TRACE_VIEW = "trace_view.json"
    PROFILER_DB = "ascend_pytorch_profiler.db"
    ANALYSIS_DB = "analysis.db"
    INFO = "profiler_info.json"
    METADATA = "profiler_metadata.json"


CONTEXT: Final = frozenset({Kind.INFO, Kind.METADATA})
"""Files that hold facts about a profile, but no data."""

_STEP_OBJECT: Final = re.compile(rb'\A\s*\{\s*"step\d*"\s*:\s*\{')
_CLASS_OBJECT: Final = re.compile(rb'\A\s*\{\s*"(?:p2p|collective)"\s*:\s*\{\s*(?:\}|"[^"]+@\d+"|"Total Op Info")')
_EVENT_TS_TEXT: Final = re.compile(rb'"ts"\s*:\s*"\d')
_EVENT_TS: Final = re.compile(rb'"ph"\s*:\s*"')
_ASCEND_PROCESS: Final = re.compile(rb'"(?:Ascend Hardware|CANN|Overlap Analysis|AI Core Freq|HCCL)"')
_EVENTS: Final = re.compile(rb'\A\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_INFO_KEYS: Final = re.compile(rb'"(?:experimental_config|start_info)"\s*:')
_METADATA_KEYS: Final = re.compile(
    rb'\A\s*\{.*?"(?:ENV_VARIABLES|parallel_group_info|distributed_args|data_origin)"\s*:', re.DOTALL
)
_KINETO_KEYS: Final = re.compile(rb'"(?:deviceProperties|baseTimeNanoseconds|distributedInfo)"\s*:')

_WIDE_HEAD_BYTES: Final = 8 << 20
"""How far an array of events with numeric times is searched for the name of an Ascend process."""


def kind_of(entry: FileEntry) -> Kind | None:
    """The kind of a file, None when it is not of a torch_npu profile."""
    head = entry.head.removeprefix(b"\xef\xbb\xbf")
    if head.startswith(SQLITE_MAGIC):
        return _kind_of_database(entry.path)
    if not head.strip():
        return None
    if head.lstrip()[:1] in (b"{", b"["):
        return _kind_of_json(head, entry)
    if entry.path.suffix == ".db" and re.match(r"ascend_\w+_profiler|analysis|communication_analyzer", entry.path.name):
        # By its name a database, by its content none: claimed, so that parsing can say so.
        return Kind.ANALYSIS_DB if entry.path.name.startswith("analysis") else Kind.PROFILER_DB
    return _kind_of_csv(frozenset(header(head)))


def _kind_of_csv(names: frozenset[str]) -> Kind | None:
    def any_of(aliases: tuple[str, ...]) -> bool:
        return not names.isdisjoint(aliases)

    tests = (
        (Kind.KERNELS, any_of(START_NAMES) and any_of(DUR_NAMES) and any_of(NAME_NAMES) and any_of(CORE_NAMES)),
        (Kind.OPERATORS, {"Name", "Host Self Duration(us)"} <= names),
        (Kind.OP_STATISTIC, {"OP Type", "Core Type", "Count", "Total Time(us)"} <= names),
        (Kind.API_STATISTIC, {"Level", "API Name", "Time(us)"} <= names),
        (Kind.STEP_TRACE, {"Step", "Computing", "Free", "Stage"} <= names and "Index" not in names),
        (Kind.OPERATOR_MEMORY, {"Name", "Size(KB)", "Allocation Time(us)"} <= names),
        (
            Kind.MEMORY_RECORD,
            {"Component", "Timestamp(us)"} <= names and any_of(("Total Allocated(MB)", "Total Allocated(KB)")),
        ),
        (
            Kind.MODULE_MEMORY,
            {"Component", "Timestamp(us)"} <= names and any_of(("Total Reserved(MB)", "Total Reserved(KB)")),
        ),
        (Kind.L2_CACHE, {"Hit Rate", "Victim Rate"} <= names),
    )
    return next((kind for kind, fits in tests if fits), None)


def _kind_of_json(head: bytes, entry: FileEntry) -> Kind | None:
    if _STEP_OBJECT.match(head) or _CLASS_OBJECT.match(head):
        if b'"Transport Type"' in head and b'"Communication Time Info"' not in head:
            return Kind.MATRIX
        if b'"Communication Time Info"' in head:
            return Kind.COMMUNICATION
        # No call in it: only the name tells the two apart.
        return Kind.MATRIX if "matrix" in entry.path.name else Kind.COMMUNICATION
    if _EVENTS.match(head) and _EVENT_TS.search(head):
        if _KINETO_KEYS.search(head):
            return None
        if _EVENT_TS_TEXT.search(head) or _ASCEND_PROCESS.search(head):
            return Kind.TRACE_VIEW
        return Kind.TRACE_VIEW if head.startswith(b"[") and _names_ascend(entry.path) else None
    if _INFO_KEYS.search(head):
        return Kind.INFO
    if _METADATA_KEYS.match(head):
        return Kind.METADATA
    return None


def _names_ascend(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return _ASCEND_PROCESS.search(file.read(_WIDE_HEAD_BYTES)) is not None
    except OSError:
        return False


def _kind_of_database(path: Path) -> Kind | None:
    try:
        with database(path, log=False) as connection:
            tables = table_names(connection)
        if not tables:
            with database(path) as connection:
                tables = table_names(connection)
    except InputError:
        # Damaged: its name says which it was meant to be, parsing says what is wrong.
        return Kind.ANALYSIS_DB if path.name.startswith(("analysis", "communication_analyzer")) else Kind.PROFILER_DB
    if {"TASK", "STRING_IDS"} <= tables or {"PYTORCH_API", "STRING_IDS"} <= tables:
        return Kind.PROFILER_DB
    if tables & {"StepTraceTime", "CommAnalyzerTime", "CommAnalyzerBandwidth"}:
        return Kind.ANALYSIS_DB
    return None


@contextmanager
def _with_log(path: Path, wanted: bool) -> Iterator[tuple[Path, str]]:
    """Where to open a database, and how: itself as it is, or a copy together with its write-ahead log."""
    log = path.with_name(path.name + "-wal")
    try:
        pending = wanted and log.is_file() and log.stat().st_size > 0
    except OSError:
        pending = False
    if not pending:
        yield path, "mode=ro&immutable=1"
        return
    with TemporaryDirectory(prefix="ascend-perf-") as folder:
        copy = Path(folder) / "profile.db"
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
        except OSError as error:
            raise InputError(
                f"{path} has rows in a write-ahead log ({log.name}) that cannot be copied: {error.strerror or error}",
                hint="close the program that has it open, or free space in the folder for temporary files",
            ) from None
        yield copy, "mode=rw"


@contextmanager
def database(path: Path, *, log: bool = True) -> Iterator[sqlite3.Connection]:
    """A SQLite file opened read-only and immutable: no lock, no journal, nothing is written beside it.

    Args:
        path: the database.
        log: whether rows that its last writer left in a write-ahead log (`*.db-wal`) count. Both files are copied
            then, since SQLite would change the folder to read them in place.

    Raises:
        InputError: it cannot be opened, or its content turns out to be damaged while it is read.
    """
    try:
        with (
            _with_log(path, log) as (place, mode),
            closing(sqlite3.connect(f"file:{quote(str(place.absolute()))}?{mode}", uri=True)) as connection,
        ):
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # SQLite's message may repeat bytes of a damaged schema that are no text.
        told = "its schema is not readable" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(
            f"{path} is a damaged SQLite database: {told}",
            hint="copy the profile again, or export it again with torch_npu.profiler.profiler.analyse()",
        ) from None


def table_names(connection: sqlite3.Connection) -> frozenset[str]:
    """Names of the tables of a database."""
    return frozenset(row[0] for row in connection.execute("select name from sqlite_master where type = 'table'"))
