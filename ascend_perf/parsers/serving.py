"""What the service profiler (msServiceProfiler) exports: requests, batches, KV cache, transfers, queues and stages.

The files of one folder (`request.csv`, `batch.csv`, `forward.csv`, `kvcache.csv`, `pd_split_kvcache.csv`,
`pd_split_communication.csv`, `request_status.csv`, and the spans below `span_info`) are one instance of the service.
They are told by their columns, so suffixes of the names (`batch_0.csv`) do not matter. Names of hosts become numbers.

Source: msServiceProfiler, docs/zh/msserviceprofiler_serving_tuning_instruct.md (parsing results) and its exporters. No
real output was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ascend_perf.errors import InputError
from ascend_perf.files import head as head_of
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table, Text
from ascend_perf.model.trace import Device, Dropped, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.parsers._ascend_csv import header, read_csv
from ascend_perf.parsers._serving_columns import Columns, names_of
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

_N = TypeVar("_N", np.int32, np.int64)

NAME: Final = "serving"
PRODUCER: Final = "msServiceProfiler"
SPAN_FOLDER: Final = "span_info"
MAX_SPAN_FILES: Final = 200
"""Files of spans that are read at most. Status: assumed."""
MAX_DP: Final = 256
"""DP ranks whose columns are looked for. Status: assumed."""
MAX_BYTES: Final = 2 << 30
"""A file beyond this is refused. Status: assumed."""

FileKind = Literal["request", "batch", "forward", "kvcache", "transfer", "exchange", "status", "span", "unused"]

_KINDS: Final[tuple[tuple[FileKind, tuple[frozenset[str], ...]], ...]] = (
    ("request", (frozenset({"http_rid", "recv_token_size"}), frozenset({"http_rid", "execution_time"}))),
    ("forward", (frozenset({"name", "bubble_time"}), frozenset({"name", "forward_iter"}))),
    ("batch", (frozenset({"name", "res_list", "during_time"}), frozenset({"name", "batch_type", "during_time"}))),
    ("transfer", (frozenset({"block_tables", "seq_len"}), frozenset({"block_tables", "batch_seq_len"}))),
    ("exchange", (frozenset({"rid", "prefill_res_time"}),)),
    ("kvcache", (
        frozenset({"name", "device_kvcache_left"}), frozenset({"name", "kvcache_usage_rate"}),
        frozenset({"name", "blocks_allocated"}),
    )),
    ("status", (frozenset({"waiting", "running", "timestamp"}), frozenset({"waiting", "running", "swapped"}))),
    ("span", (frozenset({"span_name", "during_time"}),)),
    ("unused", (frozenset({"node_type", "add_count"}), frozenset({"spec_tokens", "accepted_tokens"}))),
)  # fmt: skip
"""Columns that tell each file; the first kind that fits counts."""

_SCHEDULE: Final = re.compile(r"schedul|batchframeworkprocessing", re.IGNORECASE)
_EXECUTE: Final = re.compile(r"modelexec|specdecoding|execute", re.IGNORECASE)
_ITEM: Final = re.compile(r"\{[^{}]{0,2000}\}")
_RID: Final = re.compile(r"""['"]?(?:rid|req_id|request_id)['"]?\s*[:=]\s*['"]?([^'",{}\[\]\s]{1,120})""")
_ITERATION: Final = re.compile(r"""['"]?iter(?:ation)?['"]?\s*[:=]\s*['"]?(\d{1,9})""")
_USUAL_ITEM: Final = re.compile(r"""\{'rid': '?([^'",{}\[\]\s]{1,120})'?, 'iter': (\d{1,9})\}""")
"""As the exporter writes it; other spellings are taken apart field by field."""
_PLAIN_ID: Final = re.compile(r"[^\s'\",\[\](){}]{1,120}")


@dataclass
class _Reading:
    """What is read of one folder."""

    unit: Unit
    tables: dict[str, Table] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)
    hosts: dict[str, str] = field(default_factory=dict)
    opened: dict[Path, Columns] = field(default_factory=dict)


def kind_of(entry_head: bytes) -> FileKind | None:
    """Which of the service profiler's files begins like this; None for any other file."""
    if b"," not in entry_head[:4096] and b";" not in entry_head[:4096] and b"\t" not in entry_head[:4096]:
        return None
    if b"\0" in entry_head[:1024]:
        return None
    names = names_of(header(entry_head))
    return next((kind for kind, sets in _KINDS if any(wanted <= names for wanted in sets)), None)


def _kind_of_entry(entry: FileEntry) -> FileKind | None:
    return kind_of(entry.head) if entry.path.suffix.lower() == ".csv" else None


def find(folder: Folder) -> list[Unit]:
    """The files of the service profiler in a folder, with the spans below it, are one unit."""
    own = [entry.path for entry in folder.files if _kind_of_entry(entry) not in (None, "unused")]
    if not own:
        return []
    extra = [entry.path for entry in folder.files if _kind_of_entry(entry) == "unused"]
    spans = folder.path / SPAN_FOLDER
    found: list[Path] = []
    if spans in folder.folders:
        found = [
            path for path in sorted(spans.glob("*.csv"))[:MAX_SPAN_FILES]
            if path.is_file() and path.stat().st_size and kind_of(_start(path)) in ("span", "forward")
        ]  # fmt: skip
    label = own[0].name if len(folder.files) == 1 else folder.path.name
    return [Unit(parser=NAME, label=label, files=(*own, *extra, *found))]


def _start(path: Path) -> bytes:
    try:
        return head_of(path)
    except InputError:
        return b""


def parse(unit: Unit) -> list[Trace]:
    """The trace of one instance of a service; it belongs to no rank.

    Raises:
        InputError: none of the files holds a row that can be used.
    """
    reading = _Reading(unit=unit)
    files: dict[FileKind, list[Path]] = {}
    for path in unit.files:
        kind = kind_of(_start(path))
        if kind is not None:
            files.setdefault(kind, []).append(path)
    _open_all(reading, [path for kind, paths in files.items() if kind != "unused" for path in paths])
    readers: Mapping[FileKind, Callable[[_Reading, list[Path]], None]] = {
        "request": _requests, "batch": _batches, "forward": _forwards, "kvcache": _kv_cache, "transfer": _transfers,
        "exchange": _exchanges, "status": _states, "span": _spans, "unused": _unused,
    }  # fmt: skip
    for kind, read in readers.items():
        if kind in files:
            read(reading, files[kind])
    tables = {name: table for name, table in reading.tables.items() if len(table)}
    if not tables:
        raise InputError(
            f"{unit.label}: no row of the service profiler's tables can be used", hint="parse its data again"
        )
    return [Trace(tables, _meta(reading, tables))]


def _meta(reading: _Reading, tables: Mapping[str, Table]) -> Meta:
    warnings = list(reading.warnings)
    if reading.guessed:
        warnings.append(f"columns without a unit were taken for ms: {', '.join(sorted(reading.guessed))}")
    return Meta(
        label=reading.unit.label,
        device=Device(vendor="Huawei", kind="npu"),
        settings=ProfilerSettings(producer=PRODUCER),
        sources=tuple(reading.sources),
        missing=tuple(missing for spec, missing in _MISSING if spec.name not in tables),
        warnings=tuple(warnings),
    )


_MISSING: Final = (
    (t.REQUESTS, Missing(what="requests of the service", remedy='collect with the domain "Request" (request.csv)')),
    (t.BATCHES, Missing(what="batches of the service",
                        remedy='collect with the domains "Schedule" and "ModelExecute" (batch.csv)')),
    (t.KV_CACHE, Missing(what="blocks of the KV cache", remedy='collect with the domain "KVCache" (kvcache.csv)')),
    (t.SERVICE_SPANS, Missing(what="stages of the service",
                              remedy="parse with --span and the names of the stages (span_info/*.csv)")),
)  # fmt: skip


def _open_all(reading: _Reading, paths: list[Path]) -> None:
    """Reads the files, and brings those that hold date texts only to the clock of those that hold time stamps too."""
    for path in paths:
        size = path.stat().st_size
        if size > MAX_BYTES:
            problem = f"it is larger than {MAX_BYTES >> 30} GiB, which no table of the service profiler is"
            reading.sources.append(
                Source(path=_place(reading, path), format=NAME, size_bytes=size, problem=problem)
            )
            continue
        reading.opened[path] = Columns(read_csv(path))
    zones = [columns.local_zone_ns() for columns in reading.opened.values()]
    zone = next((zone for zone in zones if zone is not None), 0)
    for columns in reading.opened.values():
        columns.zone_ns = zone


def _place(reading: _Reading, path: Path) -> str:
    if len(reading.unit.files) == 1:
        return reading.unit.label
    inside = f"{SPAN_FOLDER}/" if path.parent.name == SPAN_FOLDER else ""
    return f"{reading.unit.label}/{inside}{path.name}"


def _kept(reading: _Reading, path: Path, columns: Columns, dropped: Mapping[str, Bools]) -> Bools:
    """Rows that nothing speaks against; the source says how many there are, and the first reason of every other."""
    keep = np.ones(len(columns), bool)
    told = list(columns.file.dropped)
    for reason, rows in dropped.items():
        lost = keep & rows
        if lost.any():
            told.append(Dropped(reason=reason, count=int(lost.sum())))
        keep &= ~rows
    reading.guessed |= columns.guessed
    reading.sources.append(
        Source(
            path=_place(reading, path), format=NAME, rows=int(keep.sum()), size_bytes=columns.file.size_bytes,
            dropped=tuple(told),
        )
    )  # fmt: skip
    return keep


def _add(reading: _Reading, table: Table) -> None:
    known = reading.tables.get(table.spec.name)
    reading.tables[table.spec.name] = table if known is None else Table.concat(table.spec, [known, table])


def _each(reading: _Reading, paths: list[Path]) -> list[tuple[Path, Columns]]:
    return [(path, reading.opened[path]) for path in paths if path in reading.opened]


def _requests(reading: _Reading, paths: list[Path]) -> None:
    for path, columns in _each(reading, paths):
        execution, first = columns.durations("execution_time"), columns.durations("first_token_latency")
        # Some exporters divide the total by 1000 once too often: then it would end before its first token.
        wrong = (execution != NULL) & (first != NULL) & (execution < first)
        if wrong.any():
            reading.warnings.append(
                f"{int(wrong.sum())} requests end before their first token: their total time is not used"
            )
        execution = np.where(wrong, NULL, execution)
        # The exporter writes 0 where it saw no first token.
        first = np.where(first == 0, NULL, first)
        request = columns.text("http_rid", "rid")
        inputs, outputs = columns.ints("recv_token_size"), columns.ints("reply_token_size")
        nothing = (execution == NULL) & (first == NULL) & (inputs == NULL) & (outputs == NULL)
        table = Table(
            t.REQUESTS,
            {
                "request": request,
                "start_ns": columns.fine_times(("start_time", "start_time_httpreq"), ("start_datetime",)),
                "execution_ns": execution,
                "queue_wait_ns": columns.durations("queue_wait_time"),
                "first_token_ns": first,
                "input_tokens": inputs,
                "output_tokens": outputs,
                "cache_hit_ratio": _ratio(columns.floats("cache_hit_rate")),
            },
        )
        dropped = {"request without an id": request.codes < 0, "request without any figure": nothing}
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _ratio(values: Floats) -> Floats:
    """Ratios between 0 and 1; columns that hold percent are divided by 100, what is neither is unknown."""
    known = values[np.isfinite(values)]
    if len(known) and known.max() > 1:
        values = values / 100
    return np.where((values >= 0) & (values <= 1), values, np.nan)


def _span_of(columns: Columns) -> tuple[Ints, Ints, dict[str, Bools]]:
    """Start and duration of rows that have both ends or a duration, and what speaks against rows."""
    start = columns.fine_times(("start_time", "timestamp"), ("start_datetime",))
    duration = columns.durations("during_time")
    end = columns.fine_times(("end_time",), ("end_datetime",))
    between = np.where((start != NULL) & (end != NULL), end - np.where(start == NULL, 0, start), NULL)
    duration = np.where((duration == NULL) & (between >= 0), between, duration)
    return start, duration, {"row without a time stamp": start == NULL, "row without a duration": duration == NULL}


def _kind_of_batch(word: str) -> str | None:
    lower = word.lower()
    has_prefill, has_decode = "prefill" in lower, "decode" in lower
    if (has_prefill and has_decode) or "mix" in lower:
        return "mixed"
    return "prefill" if has_prefill else "decode" if has_decode else None


def _phase_of(word: str) -> str:
    return "schedule" if _SCHEDULE.search(word) else "execute" if _EXECUTE.search(word) else "other"


def _batches(reading: _Reading, paths: list[Path]) -> None:
    for path, columns in _each(reading, paths):
        start, duration, dropped = _span_of(columns)
        phase = columns.text("name").relabel(_phase_of)
        dropped["row that is neither scheduling nor execution of a batch"] = phase.equals("other") | (phase.codes < 0)
        table = Table(t.BATCHES, {
            "start_ns": start, "dur_ns": duration, "phase": phase, **_shape_of(columns),
            "prefill_size": columns.ints("prefill_batch_size"), "decode_size": columns.ints("decode_batch_size"),
            "prefill_tokens": columns.ints("prefill_scheduled_tokens"),
            "decode_tokens": columns.ints("decode_scheduled_tokens"),
            "total_blocks": columns.ints("total_blocks"), "free_blocks": columns.ints("free_blocks"),
        })  # fmt: skip
        keep = _kept(reading, path, columns, dropped)
        parts = _dp_forwards(columns, start, phase.equals("execute") & keep)
        before = len(reading.tables[t.BATCHES.name]) if t.BATCHES.name in reading.tables else 0
        _add(reading, Table.concat(t.BATCHES, [table.select(keep), *parts]))
        _add(reading, _items(columns.text("res_list").take(keep), before))


def _dp_forwards(columns: Columns, start: Ints, executes: Bools) -> list[Table]:
    """The longest forward of each DP rank, where a row holds them in columns of its own (CANN 8.2: `dp0-forward(ms)`).

    An execution starts its forwards at once; their own starts are not recorded.
    """
    parts = []
    for number in range(MAX_DP):
        name = f"dp{number}-forward"
        if not columns.has(name):
            continue
        duration = columns.durations(name)
        rows = executes & (duration != NULL)
        count = int(rows.sum())
        parts.append(
            Table(t.BATCHES, {
                "start_ns": start[rows], "dur_ns": duration[rows], "phase": Text.full(count, "forward"),
                "size": columns.ints(f"dp{number}-size")[rows], "dp_rank": Text.full(count, str(number)),
            })
        )  # fmt: skip
    return parts


def _shape_of(columns: Columns) -> dict[str, Ints | Text]:
    cards = {word: str(number) for number, word in enumerate(dict.fromkeys(columns.text("prof_id").to_list()))
             if word is not None}  # fmt: skip
    return {
        "kind": columns.text("batch_type").relabel(_kind_of_batch),
        "size": columns.ints("batch_size", "total_batch_size"),
        "dp_rank": columns.text("dp_rank"),
        # An id of a card may be a hash: cards are numbered in the order in which they come.
        "card": columns.text("prof_id").relabel(lambda word: word if word.isdigit() and len(word) < 4 else cards[word]),
    }


def _items(lists: Text, offset: int) -> Table:
    """The requests of each batch, from texts such as `[{'rid': '3', 'iter': 12}]` or `['3', '4']`."""
    index: dict[str, int] = {}
    codes: list[NDArray[np.int32]] = []
    iterations: list[Ints] = []
    for text in lists.values:  # distinct texts only
        found = _members(text)
        codes.append(np.array([index.setdefault(rid, len(index)) for rid, _ in found], np.int32))
        iterations.append(np.array([int(number) if number else NULL for _, number in found], np.int64))
    counts = np.array([*(len(part) for part in codes), 0], np.int64)[lists.codes]
    listed = [code for code in lists.codes.tolist() if code >= 0]
    return Table(
        t.BATCH_REQUESTS,
        {
            "batch": np.repeat(np.arange(len(lists), dtype=np.int64) + offset, counts),
            "request": Text(_end_to_end([codes[code] for code in listed], np.int32), list(index)),
            "iteration": _end_to_end([iterations[code] for code in listed], np.int64),
        },
    )


def _end_to_end(parts: list[NDArray[_N]], kind: type[_N]) -> NDArray[_N]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _members(text: str) -> list[tuple[str, str]]:
    """Id and iteration (empty when it is not told) of each request of a list."""
    usual: list[tuple[str, str]] = _USUAL_ITEM.findall(text)
    if len(usual) == text.count("{"):
        if usual or "{" in text:
            return usual
        return [(rid, "") for rid in _PLAIN_ID.findall(text)]
    found = []
    for item in _ITEM.findall(text):
        if rid := _RID.search(item):
            iteration = _ITERATION.search(item)
            found.append((rid[1], iteration[1] if iteration else ""))
    return found


def _forwards(reading: _Reading, paths: list[Path]) -> None:
    # Spans of the same name may lie in both places; the richer file counts.
    chosen = [path for path in paths if path.parent.name != SPAN_FOLDER] or paths
    _left_out(reading, [path for path in paths if path not in chosen])
    for path, columns in _each(reading, chosen):
        start, duration, dropped = _span_of(columns)
        table = Table(t.BATCHES, {
            "start_ns": start, "dur_ns": duration, "phase": Text.full(len(columns), "forward"), **_shape_of(columns),
            "bubble_ns": columns.durations("bubble_time"),
        })  # fmt: skip
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _left_out(reading: _Reading, paths: list[Path]) -> None:
    for path in paths:
        reading.sources.append(
            Source(path=_place(reading, path), format=NAME, size_bytes=path.stat().st_size,
                   problem="not read: another file of the folder holds the same spans")
        )  # fmt: skip


def _kv_cache(reading: _Reading, paths: list[Path]) -> None:
    for path, columns in _each(reading, paths):
        total, free = columns.ints("total_blocks"), columns.ints("free_blocks", "device_kvcache_left")
        used = columns.ints("used_blocks")
        free = np.where((free == NULL) & (total != NULL) & (used != NULL), total - used, free)
        usage = _ratio(columns.floats("kvcache_usage_rate"))
        time = columns.fine_times(("start_time", "timestamp", "real_start_time"), ("start_datetime",))
        table = Table(t.KV_CACHE, {
            "time_ns": time, "name": columns.text("name"), "request": columns.text("rid"), "total_blocks": total,
            "free_blocks": free, "allocated_blocks": columns.ints("blocks_allocated"), "usage_ratio": usage,
        })  # fmt: skip
        dropped = {
            "row without a time stamp": time == NULL,
            "row without a number of blocks": (free == NULL) & ~np.isfinite(usage),
        }
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _transfers(reading: _Reading, paths: list[Path]) -> None:
    for path, columns in _each(reading, paths):
        start, duration, dropped = _span_of(columns)
        blocks = columns.text("block_tables").numbers(lambda text: len(_PLAIN_ID.findall(text)))
        table = Table(t.KV_TRANSFERS, {
            "start_ns": start, "dur_ns": duration, "request": columns.text("rid"), "rank": columns.ints("rank"),
            "tokens": columns.ints("seq_len", "batch_seq_len"),
            "blocks": np.where(np.isfinite(blocks) & (blocks > 0), np.nan_to_num(blocks), NULL).astype(np.int64),
        })  # fmt: skip
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _exchanges(reading: _Reading, paths: list[Path]) -> None:
    """Joins arrival and end of the prefill to the transfers of the same request."""
    for path, columns in _each(reading, paths):
        request = columns.text("rid")
        arrival, prefill = columns.times("http_req_time"), columns.times("prefill_res_time")
        useless = (arrival == NULL) & (prefill == NULL)
        _kept(
            reading, path, columns, {"request without an id": request.codes < 0, "row without a time stamp": useless}
        )
        transfers = reading.tables.get(t.KV_TRANSFERS.name)
        if transfers is None or not len(transfers):
            continue
        rows = {rid: row for row, rid in enumerate(request.to_list()) if rid is not None}
        row_of = np.array([*(rows.get(rid, -1) for rid in transfers.text("request").values), -1], np.int64)
        at = row_of[transfers.text("request").codes]
        joined = {
            name: np.where(at >= 0, np.append(values, NULL)[at], transfers.ints(name)).astype(np.int64)
            for name, values in (("arrival_ns", arrival), ("prefill_end_ns", prefill))
        }
        reading.tables[t.KV_TRANSFERS.name] = transfers.with_columns(joined)


def _states(reading: _Reading, paths: list[Path]) -> None:
    for path, columns in _each(reading, paths):
        time = columns.fine_times(("timestamp", "time"), ("start_datetime",))
        waiting, running = columns.ints("waiting"), columns.ints("running")
        table = Table(t.QUEUE_STATES, {
            "time_ns": time, "waiting": waiting, "running": running, "swapped": columns.ints("swapped"),
        })  # fmt: skip
        dropped = {
            "row without a time stamp": time == NULL,
            "row without a number of requests": (waiting == NULL) & (running == NULL),
        }
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _spans(reading: _Reading, paths: list[Path]) -> None:
    has = reading.tables.get(t.BATCHES.name)
    phases = frozenset() if has is None else frozenset(has.text("phase").to_list())
    for path, columns in _each(reading, paths):
        names = columns.text("span_name")
        # Forwards and schedulings are in their own files as well, with more about them.
        twice = (names.flags(lambda name: name.lower() == "forward") if "forward" in phases else names.codes < -1) | (
            names.flags(lambda name: bool(_SCHEDULE.search(name))) if "schedule" in phases else names.codes < -1
        )
        start, duration, dropped = _span_of(columns)
        for word in columns.text("hostname").values:
            reading.hosts.setdefault(word, f"host {len(reading.hosts) + 1}")
        table = Table(t.SERVICE_SPANS, {
            "start_ns": start, "dur_ns": duration, "name": names, "process": columns.ints("pid"),
            "host": columns.text("hostname").relabel(reading.hosts.__getitem__),
        })  # fmt: skip
        dropped["row without a name"] = names.codes < 0
        dropped["span that another file of the folder holds"] = twice
        _add(reading, table.select(_kept(reading, path, columns, dropped)))


def _unused(reading: _Reading, paths: list[Path]) -> None:
    for path in paths:
        reading.sources.append(
            Source(path=_place(reading, path), format=NAME, size_bytes=path.stat().st_size,
                   problem="not read: no analyzer needs this table of the service profiler")
        )  # fmt: skip


PARSER: Final = Parser(name=NAME, order=45, find=find, parse=parse)
