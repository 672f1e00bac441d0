"""Chrome's trace event format, as Perfetto and chrome://tracing read it: the whole run with findings and counters.

Source: "Trace Event Format" (Google), https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU;
categories and `baseTimeNanoseconds` as PyTorch's profiler writes them. What Perfetto's importer does decides the rest:
it drops slices that cross another one of their track, takes a thread whose number is that of its process for the main
one, and older releases read nothing behind a key that they do not know, so such keys come last.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ascend_perf import __version__
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Words
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._counters import Counters, counters_of
from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.exports._flows import Flows, flows_of
from ascend_perf.reports.exports._pieces import content, filled, joined, microseconds, whole
from ascend_perf.reports.exports._said import draw_findings, draw_path, finding_texts
from ascend_perf.reports.exports._shared_clock import Clock, clocks_of
from ascend_perf.reports.exports._slices import (
    ALONE,
    Layer,
    Plan,
    draw_communication,
    draw_device,
    draw_exported,
    draw_host,
    draw_service,
    draw_steps,
)
from ascend_perf.reports.texts import Json, safe
from ascend_perf.units import counted

BLOCK_ROWS: Final = 32_768
"""Events that are put together at a time, fewer where their texts are long."""
BLOCK_BYTES: Final = 32 << 20
"""Text of a block at most, as far as a row's longest texts tell."""
MAX_SPAN_NS: Final = 100 * 365 * 86_400 * 10**9
"""No file spans more: the times of a damaged trace would not fit into 64 bits."""
GZIP_LEVEL: Final = 3
"""Status: measured; higher levels cost twice the time for a tenth of the size."""

DRAWN: Final = frozenset({
    "steps", "kernels", "comm_ops", "comm_tasks", "copies", "host_ops", "runtime_calls", "host_events", "python_calls",
    "overlap", "batches", "requests", "kv_transfers", "service_spans", "memory", "module_memory", "counters",
    "kv_cache", "queue_states",
})  # fmt: skip
"""Tables that are drawn; the others have no place in time, or their clock is another."""


class _Rank:
    """One trace as one process of the file."""

    def __init__(self, request: Request, place: int, pid: int, clock: Clock) -> None:
        trace = request.run.traces[place]
        self.trace, self.pid, self.place = trace, pid, place
        self.plan = Plan(lang=request.lang, shift_ns=clock.shift_ns, windows=_windows(request, trace))
        draw_steps(self.plan, trace)
        draw_findings(self.plan, request, place)
        draw_path(self.plan, request, place)
        for draw in (draw_host, draw_device, draw_communication, draw_exported, draw_service):
            draw(self.plan, trace)
        self.plan.settle()
        self.counters: list[Counters] = counters_of(self.plan, trace)
        self.flows: Flows = flows_of(self.plan, trace)

    def __len__(self) -> int:
        return sum(map(len, self.plan.layers)) + sum(map(len, self.counters))

    def span_ns(self) -> tuple[int, int] | None:
        """The earliest and the latest time of all, on the common clock."""
        spans = [(int(layer.starts.min()), int(layer.ends.max())) for layer in self.plan.layers if len(layer)]
        spans += [(int(counters.times.min()), int(counters.times.max())) for counters in self.counters]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def name(self) -> str:
        """How the process is called; whoever looks at it must see that it was not measured."""
        rank, label = self.trace.meta.rank, safe(self.trace.meta.label, 200)
        words = Words(f"trace {label}", f"Trace {label}") if rank is None else Words(f"rank {rank}", f"Rank {rank}")
        origin = Words(" (simulated)", "（仿真）") if self.trace.meta.data_origin == "simulated" else None
        return self.plan.said(words) + (self.plan.said(origin) if origin else "")


class _Writer:
    """Writes the events of a file one block at a time."""

    def __init__(self, target: BinaryIO, origin_ns: int, first_tid: int) -> None:
        self.target, self.origin_ns = target, origin_ns
        self.first_tid = first_tid
        """Thread number of the first lane of the process that is written; each lane of the file has its own."""
        self.events = 0
        self.arrows = 0

    def meta(self, pid: int, tid: int, name: str, args: dict[str, Json]) -> None:
        """An event that names a process or a thread, or says where it is shown."""
        event = {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}
        before = ",\n" if self.events else "\n"
        self.target.write((before + json.dumps(event, ensure_ascii=False, separators=(",", ":"))).encode())
        self.events += 1

    def rank(self, rank: _Rank) -> None:
        """All events of one process: names, slices by track and time, slices on no track, counters, arrows."""
        self.meta(rank.pid, rank.pid, "process_name", {"name": rank.name()})
        self.meta(rank.pid, rank.pid, "process_sort_index", {"sort_index": rank.place})
        if rank.trace.meta.device.name:
            self.meta(rank.pid, rank.pid, "process_labels", {"labels": safe(rank.trace.meta.device.name, 200)})
        for lane, name in enumerate(rank.plan.lane_names):
            self.meta(rank.pid, self.first_tid + lane, "thread_name", {"name": name})
            self.meta(rank.pid, self.first_tid + lane, "thread_sort_index", {"sort_index": lane})
        for block in _blocks(rank.plan.layers):
            self._write(self._slices(rank.pid, rank.plan.layers, block))
        for number, layer in enumerate(rank.plan.layers):
            self._apart(rank.pid, number, layer)
        for counters in rank.counters:
            for first in range(0, len(counters), BLOCK_ROWS):
                self._write(self._samples(rank.pid, counters, np.arange(first, min(first + BLOCK_ROWS, len(counters)))))
        for first in range(0, len(rank.flows), BLOCK_ROWS):
            self._arrows(rank.pid, rank.flows, slice(first, first + BLOCK_ROWS))
        self.first_tid += len(rank.plan.lane_names)

    def _write(self, events: pa.Array) -> None:
        self.target.write(content(events))
        self.events += len(events)

    def _at(self, times: Ints) -> tuple[pa.Array, pa.Array]:
        return microseconds(times - self.origin_ns)

    def _slices(self, pid: int, layers: list[Layer], block: _Block) -> pa.Array:
        starts, spans = self._at(block.starts), microseconds(block.ends - block.starts)
        bodies, order = [], []
        for number in np.unique(block.layer).tolist():
            mine = np.flatnonzero(block.layer == number)
            bodies.append(_body(layers[number], block.row[mine]))
            order.append(mine)
        body = bodies[0] if len(bodies) == 1 else pa.concat_arrays(bodies).take(pa.array(_inverse(order)))
        return filled(
            f',\n{{"ph":"X","pid":{pid},"tid":', whole(block.lane + self.first_tid), ',"ts":', *starts,
            ',"dur":', *spans, ",", body,
        )  # fmt: skip

    def _apart(self, pid: int, number: int, layer: Layer) -> None:
        """Slices that may cross: each with a begin and an end of its own id."""
        mine = np.flatnonzero(layer.lane == ALONE)
        size = _block_rows([layer])
        for first in range(0, len(mine), size):
            at = mine[first : first + size]
            head = joined(
                f'"pid":{pid},"tid":{pid},"cat":"{layer.category}","id":"{pid}.{number}.', whole(at), '","ts":'
            )  # fmt: skip
            body = _body(layer, layer.rows[at], with_category=False)
            begins = filled(',\n{"ph":"b",', head, *self._at(layer.starts[at]), ",", body)
            name = layer.labels(layer.rows[at])
            ends = filled(',\n{"ph":"e",', head, *self._at(layer.ends[at]), ",", name, "}")
            self._write(joined(begins, ends))
            self.events += len(at)

    def _samples(self, pid: int, counters: Counters, at: Ints) -> pa.Array:
        values = pc.utf8_slice_codeunits(counters.values(at), 1)  # without the first comma
        head = f',\n{{"ph":"C","pid":{pid},"tid":{pid},"ts":'
        return filled(head, *self._at(counters.times[at]), ",", counters.names(at), ',"args":{', values, "}}")

    def _arrows(self, pid: int, flows: Flows, rows: slice) -> None:
        ids = whole(np.arange(len(flows.to_ns[rows])) + self.arrows + 1)
        kind = f'"pid":{pid},"cat":"launch","name":"launch","id":'
        begins = filled(
            ',\n{"ph":"s",', kind, ids, ',"tid":', whole(flows.from_lane[rows] + self.first_tid), ',"ts":',
            *self._at(flows.from_ns[rows]), "}",
        )  # fmt: skip
        ends = filled(
            ',\n{"ph":"f","bp":"e",', kind, ids, ',"tid":', whole(flows.to_lane[rows] + self.first_tid), ',"ts":',
            *self._at(flows.to_ns[rows]), "}",
        )  # fmt: skip
        self._write(joined(begins, ends))
        self.events += len(ids)
        self.arrows += len(ids)


class _Block:
    """Some slices in the order in which they are written."""

    def __init__(self, layer: Ints, row: Ints, starts: Ints, ends: Ints, lane: Ints) -> None:
        self.layer, self.row, self.starts, self.ends, self.lane = layer, row, starts, ends, lane


def _blocks(layers: list[Layer]) -> Iterator[_Block]:
    """Slices on tracks, track by track, by start and the longest first: a caller comes before what it called."""
    placed = [np.flatnonzero(layer.lane != ALONE) for layer in layers]
    if not any(len(at) for at in placed):
        return
    of = np.repeat(np.arange(len(layers)), [len(at) for at in placed])
    lane, starts, ends, row = (
        np.concatenate([values[at] for values, at in zip(columns, placed, strict=True)])
        for columns in zip(*((layer.lane, layer.starts, layer.ends, layer.rows) for layer in layers), strict=True)
    )
    order = np.lexsort((of, -ends, starts, lane))
    size = _block_rows(layers)
    for first in range(0, len(order), size):
        at = order[first : first + size]
        yield _Block(of[at], row[at], starts[at], ends[at], lane[at])


def _block_rows(layers: list[Layer]) -> int:
    widest = max((layer.row_bytes for layer in layers), default=1)
    return int(np.clip(BLOCK_BYTES // max(widest, 1), 64, BLOCK_ROWS))


def _body(layer: Layer, rows: Ints, *, with_category: bool = True) -> pa.Array:
    """`"name":"...","cat":"...","args":{...}}` of some rows of the layer's table."""
    category = f',"cat":"{layer.category}"' if with_category else ""
    # The first member is there in each row; its comma is what the table's name is for.
    head = f'{category},"args":{{"table":"{layer.name}"'
    return filled(layer.labels(rows), head, *(member(rows) for member in layer.members), "}}")


def _inverse(order: list[Ints]) -> Ints:
    joined_ = np.concatenate(order)
    back = np.empty(len(joined_), np.int64)
    back[joined_] = np.arange(len(joined_))
    return back


def _windows(request: Request, trace: Trace) -> tuple[tuple[int, int], ...]:
    """The chosen steps, from the start of the host's part of them when that is earlier."""
    if not request.steps:
        return ()
    steps = trace[STEPS]
    starts, ends, host = steps.ints("start_ns"), steps.ends_ns(), steps.ints("host_start_ns")
    rows = np.flatnonzero((starts != NULL) & (ends != NULL)).tolist()
    return tuple(
        (int(starts[r]) if host[r] == NULL else min(int(starts[r]), int(host[r])), int(ends[r])) for r in rows
    )


def _pids(traces: tuple[Trace, ...]) -> list[int]:
    """A process number for each trace: its rank + 1 (viewers read 0 as the idle task), or one that is free."""
    used = {trace.meta.rank + 1 for trace in traces if trace.meta.rank is not None}
    seen: set[int] = set()
    free = max(used, default=0) + 1
    made = []
    for trace in traces:
        own = None if trace.meta.rank is None else trace.meta.rank + 1
        if own is None or own in seen:
            own, free = free, free + 1
        seen.add(own)
        made.append(own)
    return made


def write_perfetto(request: Request, target: BinaryIO) -> tuple[str, ...]:
    """Write all ranks of the run, gzip-compressed where the name of the file ends in `.gz`.

    Times are decimals of us since `baseTimeNanoseconds`, exact to the ns. Slices of a track nest; what would cross lies
    on a further track of the same name. Durations are those of the trace.

    Raises:
        InputError: nothing of the run has a time.
    """
    if request.name.endswith(".gz"):
        with gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=GZIP_LEVEL, mtime=0) as file:
            return _write(request, file)  # type: ignore[arg-type]  # a BinaryIO in all but name
    return _write(request, target)


def _write(request: Request, target: BinaryIO) -> tuple[str, ...]:
    traces = request.run.traces
    clocks = clocks_of(request.run)
    ranks = [
        _Rank(request, place, pid, clock) for place, (pid, clock) in enumerate(zip(_pids(traces), clocks, strict=True))
    ]
    spans = [span for rank in ranks if (span := rank.span_ns()) is not None]
    label = safe(traces[0].meta.label if traces else request.run.label) or "the profile"
    if not spans:
        raise InputError(f"{label}: nothing in it has a time, so nothing can be drawn")
    origin_ns, last_ns = min(first for first, _ in spans), max(last for _, last in spans)
    if last_ns - origin_ns > MAX_SPAN_NS:
        raise InputError(f"{label}: its times lie more than 100 years apart", hint="export one rank, with --rank")
    writer = _Writer(target, origin_ns, first_tid=max(rank.pid for rank in ranks) + 1)
    target.write(b'{"displayTimeUnit":"ns","traceEvents":[')
    for rank in ranks:
        if len(rank):
            writer.rank(rank)
    other = _other(request, ranks, clocks)
    target.write(f'\n],\n"baseTimeNanoseconds":{origin_ns},\n"otherData":'.encode())
    target.write(json.dumps(other, ensure_ascii=False).encode() + b"}\n")
    return _notices(ranks, clocks)


def _other(request: Request, ranks: list[_Rank], clocks: tuple[Clock, ...]) -> Json:
    """What a reader of the file must know beside the events."""
    simulated = any(rank.trace.meta.data_origin == "simulated" for rank in ranks)
    findings: list[Json] = [
        {**asdict(text), "ranks": [*text.ranks], "affected_ranks": [*text.affected_ranks]}
        for text in finding_texts(request)
    ]
    return {
        "producer": f"ascend-perf {__version__}",
        "data_origin": "simulated" if simulated else "measured",
        "clocks": [asdict(clock) for clock in clocks],
        "steps": [*request.steps] or "all",
        "rows_without_time": [dict(rank.plan.left_out) for rank in ranks],
        "tasks_without_launch": [rank.flows.unlinked for rank in ranks],
        "tables_not_drawn": [
            {name: len(table) for name, table in rank.trace.tables.items() if len(table) and name not in DRAWN}
            for rank in ranks
        ],
        "findings": findings,
    }


def _notices(ranks: list[_Rank], clocks: tuple[Clock, ...]) -> tuple[str, ...]:
    lost: dict[str, int] = {}
    for rank in ranks:
        for name, count in rank.plan.left_out.items():
            lost[name] = lost.get(name, 0) + count
    said = [f"{name}: {counted(count, 'row')} without time or value not drawn" for name, count in lost.items()]
    loose = [clock for clock in clocks if not clock.aligned]
    if len(clocks) > 1 and loose:
        said.append(
            f"the clocks of {len(loose)} of {len(clocks)} traces are not tied to the others': their times are their own"
        )
    return tuple(said)


EXPORTER: Final = Exporter(
    name="perfetto",
    suffix="perfetto.json",
    summary="timeline of all ranks for ui.perfetto.dev, with findings, counters and launches; .json.gz compresses",
    write=write_perfetto,
    analyzes=True,
)
