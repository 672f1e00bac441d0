"""What of a trace is drawn as slices, and on which track: host threads, streams, communication, services."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ascend_perf.model.finding import Words
from ascend_perf.model.table import NULL, Bools, Ints, Kind, Table, Text
from ascend_perf.model.tables import (
    BATCHES,
    COMM_OPS,
    COMM_TASKS,
    COPIES,
    HOST_EVENTS,
    HOST_OPS,
    KERNELS,
    KV_TRANSFERS,
    OVERLAP,
    PYTHON_CALLS,
    REQUESTS,
    RUNTIME_CALLS,
    SERVICE_SPANS,
    STEPS,
)
from ascend_perf.model.trace import Trace
from ascend_perf.reports.exports._nesting import by_start, lanes
from ascend_perf.reports.exports._pieces import (
    Piece,
    bool_member,
    coded,
    float_member,
    int_member,
    joined,
    json_text,
    longest,
    picked,
    text_member,
    whole,
)
from ascend_perf.reports.texts import Lang, safe

ALONE: Final = -2
"""Lane of slices that are drawn apart from all tracks (`b` and `e` events): they may cross."""

FAR_NS: Final = 1 << 62
"""Times beyond this are damage: sums with them would overflow."""

_TIMES: Final = frozenset({"start_ns", "dur_ns", "launch_start_ns", "launch_end_ns", "host_start_ns", "host_dur_ns"})
"""Not repeated as arguments: the slice itself, or an arrow, shows them."""


@dataclass(kw_only=True)
class Layer:
    """Rows of one table that are drawn alike. Arrays have one entry per drawn row, in the order of the table."""

    name: str
    """Of the table, or of what is drawn."""
    category: str
    rows: Ints
    starts: Ints
    ends: Ints
    track: Ints
    label: Text
    """What a slice says, per row of the table."""
    members: list[Piece]
    """Arguments of a slice, of rows of the table."""
    row_bytes: int
    """Most bytes that a row's text takes."""
    lane: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Place of the slice among the lanes of all tracks (`Plan.lane_names`), `ALONE` for slices that are on none."""
    labels: Piece = field(init=False)

    def __post_init__(self) -> None:
        used, words = coded(self.label, lambda value: f'"name":{json_text(value)}')
        unknown = f'"name":{json_text("?")}'
        self.labels = lambda rows: picked(used.codes[rows].astype(np.int64), words).fill_null(unknown)
        self.row_bytes += longest(words)

    def __len__(self) -> int:
        return len(self.rows)

    def place_of(self, rows: Ints, length: int) -> Ints:
        """Where rows of a table of some length lie in the arrays, -1 for rows that are not drawn."""
        at = np.full(length + 1, -1, np.int64)
        at[self.rows] = np.arange(len(self.rows))
        inside = (rows >= 0) & (rows < length)
        return np.asarray(at[np.where(inside, rows, length)], np.int64)


@dataclass(kw_only=True)
class Plan:
    """The slices of one trace and their tracks."""

    lang: Lang
    shift_ns: int = 0
    """Subtracted from all times: puts them on the clock of the reference rank."""
    windows: tuple[tuple[int, int], ...] = ()
    """Only what touches one of these is drawn; empty: all."""
    layers: list[Layer] = field(default_factory=list)
    lane_names: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    """Rows without usable time, by table."""
    _tracks: dict[Hashable, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)

    def said(self, words: Words) -> str:
        """The text in the language of the file."""
        return words.zh if self.lang == "zh" else words.en

    def track(self, key: Hashable, name: Callable[[], Words]) -> int:
        """Number of a track; tracks are shown in the order in which they were asked for first."""
        number = self._tracks.get(key)
        if number is None:
            number = self._tracks[key] = len(self._names)
            self._names.append(safe(self.said(name())))
        return number

    def drawn(self, starts: Ints, ends: Ints) -> Bools:
        """Whether each interval touches the chosen steps."""
        if not self.windows:
            return np.ones(len(starts), bool)
        inside = np.zeros(len(starts), bool)
        for first, last in self.windows:
            inside |= (starts < last) & (ends >= first)
        return inside

    def usable(self, name: str, starts: Ints, ends: Ints) -> Ints:
        """Rows with usable times that touch the chosen steps; the others without times are counted."""
        known = (starts != NULL) & (ends != NULL) & (np.abs(starts) < FAR_NS) & (np.abs(ends) < FAR_NS)
        known &= ends >= starts
        lost = int(len(known) - known.sum())
        if lost:
            self.left_out[name] = self.left_out.get(name, 0) + lost
        return np.flatnonzero(known & self.drawn(starts, ends))

    def add(
        self, table: Table, category: str, label: Text, keys: Ints, named: Callable[[int], tuple[Hashable, Words]],
        *, rows: Bools | None = None, skip: Iterable[str] = (), dur: str = "dur_ns", apart: bool = False,
    ) -> None:  # fmt: skip
        """Draw rows of a table.

        Args:
            table: has `start_ns`.
            category: `cat` of the events; those of PyTorch's profiler where it has one.
            label: what each slice says.
            keys: what puts a row on its track, `NULL` where unknown.
            named: key and name of the track of one of the keys.
            rows: which rows; all when None.
            skip: columns that the label or the track says.
            dur: column of the duration.
            apart: slices that cross each other: on no track.
        """
        if not len(table):
            return
        starts, spans = table.ints("start_ns"), table.ints(dur)
        known = (starts != NULL) & (spans != NULL) & (np.abs(starts) < FAR_NS) & (spans < FAR_NS)
        ends = np.where(known, starts + np.where(known, spans, 0), NULL)
        taken = np.ones(len(table), bool) if rows is None else rows
        picked_rows = self.usable(table.spec.name, np.where(taken, starts, 0), np.where(taken, ends, 0))
        picked_rows = picked_rows[taken[picked_rows]]
        if not len(picked_rows):
            return
        distinct, index = np.unique(keys[picked_rows], return_inverse=True)
        numbers = np.array([self._numbered(named(key)) for key in distinct.tolist()], np.int64)
        members, width = members_of(table, {*_TIMES, *skip, dur})
        self.layers.append(
            Layer(
                name=table.spec.name, category=category, rows=picked_rows,
                starts=starts[picked_rows] - self.shift_ns, ends=ends[picked_rows] - self.shift_ns,
                track=numbers[index.reshape(-1)], label=label, members=members, row_bytes=width,
                lane=np.full(len(picked_rows), ALONE if apart else 0, np.int64),
            )
        )  # fmt: skip

    def _numbered(self, named: tuple[Hashable, Words]) -> int:
        key, words = named
        return self.track(key, lambda: words)

    def settle(self) -> None:
        """Split tracks into lanes in which slices nest, and name the lanes in the order of the tracks."""
        on_tracks = [layer for layer in self.layers if len(layer) and layer.lane[0] != ALONE]
        track = np.concatenate([layer.track for layer in on_tracks] or [np.empty(0, np.int64)])
        starts = np.concatenate([layer.starts for layer in on_tracks] or [np.empty(0, np.int64)])
        ends = np.concatenate([layer.ends for layer in on_tracks] or [np.empty(0, np.int64)])
        rank = np.repeat(np.arange(len(on_tracks)), [len(layer) for layer in on_tracks])
        lane = np.full(len(track), ALONE, np.int64)
        order = np.argsort(track, kind="stable")
        edges = np.searchsorted(track[order], np.arange(len(self._names) + 1))
        for number, name in enumerate(self._names):
            mine = order[edges[number] : edges[number + 1]]
            if not len(mine):
                continue
            mine = mine[by_start(starts[mine], ends[mine], rank[mine])]
            own = lanes(starts[mine], ends[mine])
            lane[mine] = np.where(own >= 0, own + len(self.lane_names), ALONE)
            count = int(own.max()) + 1
            self.lane_names += [name if not extra else f"{name} ({extra + 1})" for extra in range(count)]
        at = 0
        for layer in on_tracks:
            layer.lane = lane[at : at + len(layer)]
            at += len(layer)

    def layer(self, name: str) -> Layer | None:
        """The layer of a table, None when it has none."""
        return next((layer for layer in self.layers if layer.name == name), None)


def members_of(table: Table, skip: set[str]) -> tuple[list[Piece], int]:
    """Every known column of a table as arguments, and the most bytes that a row of them takes."""
    members: list[Piece] = [lambda rows: joined(',"row":', whole(rows))]
    width = 40
    for name in table.names:
        if name in skip or not table.has(name):
            continue
        kind = table.spec.column(name).kind
        key = json_text(name)[1:-1]
        width += len(key) + 32
        if kind is Kind.TEXT:
            text = table.text(name).compact()
            members.append(text_member(key, text))
            width += 4 * max((min(len(value), 4000) for value in text.values), default=0)
        elif kind is Kind.INT:
            members.append(int_member(key, table.ints(name)))
        elif kind is Kind.FLOAT:
            members.append(float_member(key, table.floats(name)))
        else:
            members.append(bool_member(key, table.bools(name)))
    return members, width


# ---- the tables ----


def draw_steps(plan: Plan, trace: Trace) -> None:
    """The windows of the steps, of the device and of the host."""
    steps = trace[STEPS]
    ids = [None if step == NULL else step for step in steps.ints("step_id").tolist()]
    label = Text.of(["step" if step is None else f"step {step}" for step in ids])
    on = ("steps", Words("steps", "迭代（step）"))
    plan.add(steps, "step", label, np.zeros(len(steps), np.int64), lambda _: on)


def draw_host(plan: Plan, trace: Trace) -> None:
    """Each thread of the host: Python calls, ranges and events, operators, runtime calls, by nesting."""
    def thread(number: int) -> tuple[Hashable, Words]:
        shown = "?" if number == NULL else str(number)
        return ("thread", number), Words(f"host thread {shown}", f"Host 线程 {shown}")

    calls, events, ops, runtime = trace[PYTHON_CALLS], trace[HOST_EVENTS], trace[HOST_OPS], trace[RUNTIME_CALLS]
    said = ("name", "api", "thread")
    # Where readers know the calls of Python, those among the events are the same ones.
    others = ~events.text("kind").equals("python") if len(calls) else None
    plan.add(calls, "python_function", calls.text("name"), calls.ints("thread"), thread, skip=said)
    plan.add(events, "user_annotation", events.text("name"), events.ints("thread"), thread, rows=others, skip=said)
    plan.add(ops, "cpu_op", ops.text("name"), ops.ints("thread"), thread, skip=said)
    category = "cann" if trace.meta.device.kind == "npu" else "cuda_runtime"
    plan.add(runtime, category, runtime.text("api"), runtime.ints("thread"), thread, skip=said)


def draw_device(plan: Plan, trace: Trace) -> None:
    """Each stream of the device, then copies by stream."""
    def stream(number: int) -> tuple[Hashable, Words]:
        shown = "?" if number == NULL else str(number)
        return ("stream", number), Words(f"stream {shown}", f"流 {shown}")

    def copies_on(number: int) -> tuple[Hashable, Words]:
        shown = "?" if number == NULL else str(number)
        return ("copies", number), Words(f"copies, stream {shown}", f"拷贝，流 {shown}")

    kernels, copies = trace[KERNELS], trace[COPIES]
    plan.add(kernels, "kernel", kernels.text("name"), kernels.ints("stream"), stream, skip=("name",))
    category = "copy" if trace.meta.device.kind == "npu" else "gpu_memcpy"
    plan.add(copies, category, first_known(copies, "kind", "name"), copies.ints("stream"), copies_on)


def draw_communication(plan: Plan, trace: Trace) -> None:
    """Calls by group, then their sub-tasks by group and plane."""
    calls, tasks = trace[COMM_OPS], trace[COMM_TASKS]
    if not len(calls):
        return
    groups = group_labels(calls)
    names = ["?", *groups.values]

    def group(code: int) -> tuple[Hashable, Words]:
        return ("group", code), Words(f"communication {names[code + 1]}", f"通信 {names[code + 1]}")

    codes = groups.codes.astype(np.int64)
    plan.add(calls, "communication", calls.text("name"), codes, group, skip=("name",))
    if not len(tasks):
        return
    op, plane = tasks.ints("comm_op"), tasks.ints("plane")
    inside = (op >= 0) & (op < len(calls))
    of = np.where(inside, codes[np.where(inside, op, 0)], -1)
    pairs, index = np.unique(np.stack((of, plane)), axis=1, return_inverse=True)

    def plane_of(number: int) -> tuple[Hashable, Words]:
        code, at = pairs[:, number].tolist()
        shown = "?" if at == NULL else str(at)
        name = names[code + 1]
        return ("plane", code, at), Words(f"communication {name}, plane {shown}", f"通信 {name}，平面 {shown}")

    plan.add(tasks, "communication_task", tasks.text("kind"), index.reshape(-1).astype(np.int64), plane_of,
             skip=("kind",))  # fmt: skip


def draw_exported(plan: Plan, trace: Trace) -> None:
    """The exporter's own Overlap Analysis."""
    overlap = trace[OVERLAP]
    kinds = overlap.text("kind")

    def kind(code: int) -> tuple[Hashable, Words]:
        name = kinds.values[code] if code >= 0 else "?"
        return ("overlap", code), Words(f"Overlap Analysis: {name}", f"Overlap Analysis：{name}")

    plan.add(overlap, "overlap", kinds, kinds.codes.astype(np.int64), kind, skip=("kind",))


def draw_service(plan: Plan, trace: Trace) -> None:
    """What an inference service did: batches by phase and card, spans by process, requests, transfers of KV caches."""
    batches, spans, requests, transfers = (trace[s] for s in (BATCHES, SERVICE_SPANS, REQUESTS, KV_TRANSFERS))
    if len(batches):
        lines = first_known(batches, "card", "dp_rank")
        phase = batches.text("phase")
        pairs, index = np.unique(np.stack((phase.codes, lines.codes)), axis=1, return_inverse=True)

        def line(number: int) -> tuple[Hashable, Words]:
            what, where = pairs[:, number].tolist()
            name = phase.values[what] if what >= 0 else "?"
            if where >= 0:
                name += f" {lines.values[where]}"
            return ("batches", what, where), Words(f"batches: {name}", f"批次：{name}")

        plan.add(batches, "batch", first_known(batches, "kind", "phase"), index.reshape(-1).astype(np.int64), line)
    if len(spans):
        hosts = spans.text("host")
        pairs_, at = np.unique(np.stack((hosts.codes, spans.ints("process"))), axis=1, return_inverse=True)

        def process(number: int) -> tuple[Hashable, Words]:
            host, of = pairs_[:, number].tolist()
            shown = f"{hosts.values[host]}, " if host >= 0 else ""
            shown += "?" if of == NULL else str(of)
            return ("spans", host, of), Words(f"service, process {shown}", f"服务，进程 {shown}")

        plan.add(spans, "service", spans.text("name"), at.reshape(-1).astype(np.int64), process, skip=("name",))

    def requests_(_: int) -> tuple[Hashable, Words]:
        return "requests", Words("requests", "请求")

    def transfers_(_: int) -> tuple[Hashable, Words]:
        return "transfers", Words("KV cache transfers", "KV Cache 传输")

    # Viewers make a track of each name of such slices: which request it is, is an argument.
    plan.add(requests, "request", Text.full(len(requests), "request"), np.zeros(len(requests), np.int64), requests_,
             dur="execution_ns", apart=True)  # fmt: skip
    plan.add(transfers, "kv_transfer", Text.full(len(transfers), "KV transfer"), np.zeros(len(transfers), np.int64),
             transfers_, apart=True)  # fmt: skip


def first_known(table: Table, *names: str) -> Text:
    """For each row the first of some text columns that is known."""
    columns = [table.text(name) for name in names]
    joined_ = Text.concat(columns)
    length = len(table)
    codes = np.full(length, -1, np.int32)
    for number in range(len(columns)):
        own = joined_.codes[number * length : (number + 1) * length]
        codes = np.where(codes >= 0, codes, own).astype(np.int32)
    return Text(codes, joined_.values)


def group_labels(calls: Table) -> Text:
    """The name of each call's group: its label and the end of its own name, which tells groups of one label apart."""
    label, group = calls.text("group_label"), calls.text("group")
    pairs, index = np.unique(np.stack((label.codes, group.codes)), axis=1, return_inverse=True)
    names: list[str | None] = []
    for which, own in pairs.T.tolist():
        parts: Sequence[str] = [
            *([label.values[which]] if which >= 0 else ()), *([group.values[own][-16:]] if own >= 0 else ())
        ]  # fmt: skip
        names.append(" ".join(dict.fromkeys(parts)) or None)
    texts = Text.of(names)
    return Text(texts.codes[index.reshape(-1)], texts.values)
