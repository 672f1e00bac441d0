"""One step as intervals in lanes: host threads, dispatch queue, device streams, communication groups and planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._lod import Codes, Runs, thinned
from ascend_perf.analyzers._steps import StepWindows, representative, step_windows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.cells import IntCells, TextCells
from ascend_perf.model.finding import Result, ResultTable, Words
from ascend_perf.model.table import NULL, Ints, Table, Text
from ascend_perf.model.tables import (
    COMM_OPS,
    COMM_TASKS,
    COPIES,
    HOST_EVENTS,
    HOST_OPS,
    KERNELS,
    RUNTIME_CALLS,
    STEPS,
)
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_quantity

MAX_ROWS: Final = 60_000
"""Intervals and runs of the step that the table holds at most; packed into the page they take under 1 MB."""
MAX_LANES: Final = 40
"""Lanes beyond this are left out: planes first, then the least busy ones."""
MAX_SHAPE: Final = 160
"""Characters kept of the shapes of one kernel."""

_EVENT_KIND: Final = {
    "dataloader": "dataloader", "sync": "sync", "gc": "gc", "python": "host", "optimizer": "host", "user": "host",
    "enqueue": "host", "dequeue": "host", "step": "host",
}  # fmt: skip
_QUEUE: Final = {"enqueue": "Enqueue", "dequeue": "Dequeue"}
"""Both ends of torch_npu's task queue; each is a lane of its own."""
_SYNC_CALLS: Final = ("synchronize", "streamwaitevent", "eventsynchronize")
_ON_DEVICE: Final = frozenset({"compute", "communication", "copy"})


@dataclass(frozen=True, kw_only=True)
class _Lane:
    """Intervals of one lane, in order of their start. `launches` are starts of the host's launch calls, or `NULL`."""

    name: str
    group: str
    kind: Text
    label: Text
    starts: Ints
    ends: Ints
    launches: Ints
    shape: Text

    def __len__(self) -> int:
        return len(self.starts)


@analyzer(name="timeline", needs=(), order=20, section="timeline")
def timeline(trace: Trace) -> Result:
    """Intervals of the representative step (the median one): exact where they fit, else runs that stand for several.

    Reads:
        steps, kernels, comm_ops, comm_tasks, copies, host_ops, host_events, runtime_calls.
    """
    windows = step_windows(trace)
    at = representative(trace, windows)
    if at is None:
        raise NoData(Words("no event with a time stamp", "没有带时间戳的事件"))
    start, end = _window(trace, windows, at)
    lanes = [lane for lane in _lanes(trace, start, end) if len(lane)]
    if not lanes:
        raise NoData(Words("no event inside the step", "该 step 内没有事件"))
    shown = _chosen(lanes)
    return Result(tables=(_table(windows, at, shown, len(lanes) - len(shown)), _window_table(start, end)))


def _window(trace: Trace, windows: StepWindows, at: int) -> tuple[int, int]:
    """The step, from the start of the host's marker when that is earlier than the first device task."""
    start, end = windows.window(at)
    steps = trace[STEPS]
    same = np.flatnonzero((steps.ints("step_id") == windows.ids[at]) & (steps.ints("host_start_ns") != NULL))
    if len(same):
        start = min(start, int(steps.ints("host_start_ns")[same[0]]))
    return start, end


def _lanes(trace: Trace, start: int, end: int) -> Iterator[_Lane]:
    yield from _host_lanes(trace, start, end)
    kernels = trace[KERNELS]
    yield from _split(kernels, "Stream", "device", "compute", kernels.text("name"), start, end)
    copies = trace[COPIES]
    yield from _split(copies, "Copies, stream", "copies", "copy", _copy_labels(copies), start, end)
    calls = trace[COMM_OPS]
    groups = _group_names(calls)
    for name, rows in _by_text(groups):
        title = f"Communication {name}".strip()
        yield _lane(title, "communication", calls, rows, "communication", calls.text("name"), start, end)
    yield from _task_lanes(trace, groups, start, end)


def _host_lanes(trace: Trace, start: int, end: int) -> Iterator[_Lane]:
    """Per thread its top-level ops, its other events, its calls of the runtime; then the dispatch queue."""
    ops, events, calls = trace[HOST_OPS], trace[HOST_EVENTS], trace[RUNTIME_CALLS]
    for thread in _threads(ops, start, end):
        rows = _top_level(ops, _near(ops, thread, start, end))
        yield _lane(f"Host thread {_thread_name(thread)}", "host", ops, rows, "host", ops.text("name"), start, end)
    kinds = events.text("kind").relabel(lambda kind: _EVENT_KIND.get(kind, "host"))
    shown = ~events.text("kind").isin(["step", *_QUEUE])
    name = events.text("name")
    threads = _threads(events, start, end)
    for thread in threads:
        rows = _near(events, thread, start, end)
        title = f"Host events, thread {_thread_name(thread)}"
        yield _lane(title, "host", events, rows[shown[rows]], kinds, name, start, end)
    api = calls.text("api")
    call_kind = api.relabel(lambda name: "sync" if any(word in name.lower() for word in _SYNC_CALLS) else "host")
    for thread in _threads(calls, start, end):
        rows = _top_level(calls, _near(calls, thread, start, end))
        yield _lane(f"Runtime API, thread {_thread_name(thread)}", "host", calls, rows, call_kind, api, start, end)
    for kind, title in _QUEUE.items():
        is_end = events.text("kind").equals(kind)
        for thread in threads if is_end.any() else ():
            rows = _near(events, thread, start, end)
            lane = f"{title}, thread {_thread_name(thread)}"
            yield _lane(lane, "dispatch", events, rows[is_end[rows]], "host", name, start, end)


def _thread_name(thread: int) -> str:
    return "?" if thread == NULL else str(thread)


def _threads(table: Table, start: int, end: int) -> list[int]:
    """Threads with an event in the window."""
    starts, ends = table.ints("start_ns"), table.ends_ns()
    rows = (starts != NULL) & (ends != NULL) & (starts < end) & (ends > start)
    return [int(thread) for thread in np.unique(table.ints("thread")[rows])]


def _near(table: Table, thread: int, start: int, end: int) -> Ints:
    """Rows of a thread that touch the window."""
    starts, ends = table.ints("start_ns"), table.ends_ns()
    inside = (table.ints("thread") == thread) & (starts < end) & (ends > start) & (starts != NULL) & (ends != NULL)
    return np.flatnonzero(inside)


def _top_level(table: Table, rows: Ints) -> Ints:
    """Rows that no other of the rows contains."""
    starts, ends = table.ints("start_ns")[rows], table.ends_ns()[rows]
    if not len(rows):
        return rows
    order = np.lexsort((-ends, starts))
    rows, ends = rows[order], ends[order]
    reach = np.maximum.accumulate(ends)
    inner = np.zeros(len(rows), bool)
    inner[1:] = ends[1:] <= reach[:-1]
    return rows[~inner]


def _copy_labels(copies: Table) -> Text:
    kind, name = copies.text("kind"), copies.text("name")
    return kind if kind.codes.max(initial=-1) >= 0 else name


def _group_names(calls: Table) -> Text:
    """The logical name of each call's group where known, else its own name, shortened."""
    label, group = calls.text("group_label"), calls.text("group")
    if not len(calls):
        return group
    both = Text.concat([label, group.relabel(lambda name: name[-16:])])
    codes = np.where(label.codes >= 0, both.codes[: len(calls)], both.codes[len(calls) :])
    return Text(codes.astype(np.int32), both.values)


def _task_lanes(trace: Trace, groups: Text, start: int, end: int) -> Iterator[_Lane]:
    """Per communication group its waits for a peer as a union over planes, then the tasks of each plane."""
    tasks = trace[COMM_TASKS]
    op = tasks.ints("comm_op")
    starts, ends = tasks.ints("start_ns"), tasks.ends_ns()
    usable = (op != NULL) & (op >= 0) & (op < len(groups)) & (starts != NULL) & (ends != NULL)
    usable &= (starts < end) & (ends > start)
    rows = np.flatnonzero(usable)
    if not len(rows):
        return
    kinds = tasks.text("kind").relabel(lambda kind: "wait" if "wait" in kind.lower() else "communication")
    is_wait = kinds.equals("wait")[rows]
    of_group = groups.codes[op[rows]]
    planes = tasks.ints("plane")[rows]
    found = [("" if code < 0 else groups.values[code], of_group == code) for code in np.unique(of_group).tolist()]
    for name, mine in found:
        waits = rows[mine & is_wait]
        union = intervals.clip(intervals.merged(starts[waits], ends[waits]), start, end)
        count = len(union.starts)
        if count:
            yield _Lane(
                name=f"Waits {name}".strip(), group="communication",
                kind=Text.full(count, "wait"), label=Text.full(count, "Notify_Wait"),
                starts=union.starts, ends=union.ends, launches=np.full(count, NULL), shape=Text.full(count, None),
            )  # fmt: skip
    for name, mine in found:
        for plane in np.unique(planes[mine & (planes != NULL)]).tolist():
            title = f"Plane {plane}, {name}" if name else f"Plane {plane}"
            yield _lane(title, "planes", tasks, rows[mine & (planes == plane)], kinds, tasks.text("kind"), start, end)


def _by_text(values: Text) -> list[tuple[str, Ints]]:
    """Rows by distinct value; unknown goes under an empty name."""
    found = []
    for code in np.unique(values.codes).tolist():
        found.append(("" if code < 0 else values.values[code], np.flatnonzero(values.codes == code)))
    return found


def _split(table: Table, title: str, group: str, kind: str, label: Text, start: int, end: int) -> Iterator[_Lane]:
    """A lane per stream."""
    keys = table.ints("stream")
    for key in np.unique(keys).tolist():
        name = title if key == NULL else f"{title} {key}"
        yield _lane(name, group, table, np.flatnonzero(keys == key), kind, label, start, end)


def _lane(
    name: str, group: str, table: Table, rows: Ints, kind: str | Text, label: Text, start: int, end: int
) -> _Lane:
    starts, ends = table.ints("start_ns")[rows], table.ends_ns()[rows]
    inside = (starts != NULL) & (ends != NULL) & (starts < end) & (ends > start)
    if not inside.all():
        rows, starts, ends = rows[inside], starts[inside], ends[inside]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        rows, starts, ends = rows[order], starts[order], ends[order]
    names = {column.name for column in table.spec.columns}
    return _Lane(
        name=name,
        group=group,
        kind=Text.full(len(rows), kind) if isinstance(kind, str) else kind.take(rows),
        label=label.take(rows),
        starts=np.maximum(starts, start),
        ends=np.minimum(ends, end),
        launches=table.ints("launch_start_ns")[rows] if "launch_start_ns" in names else np.full(len(rows), NULL),
        shape=table.text("input_shapes").take(rows) if group == "device" else Text.full(len(rows), None),
    )


def _chosen(lanes: list[_Lane]) -> list[_Lane]:
    """At most `MAX_LANES` lanes in their own order: planes go first, then those that are the least busy."""
    if len(lanes) <= MAX_LANES:
        return lanes
    busy = [intervals.total(intervals.merged(lane.starts, lane.ends)) for lane in lanes]
    order = sorted(range(len(lanes)), key=lambda i: (lanes[i].group == "planes", -busy[i]))
    return [lanes[i] for i in sorted(order[:MAX_LANES])]


def _joined(parts: Sequence[Text]) -> Text:
    """All parts under one dictionary that may hold a value twice: parts that share theirs cost nothing."""
    offsets: dict[int, int] = {}
    values: list[str] = []
    codes: list[Codes] = []
    for part in parts:
        if id(part.values) not in offsets:
            offsets[id(part.values)] = len(values)
            values.extend(part.values)
        codes.append(np.where(part.codes < 0, -1, part.codes + offsets[id(part.values)]).astype(np.int32))
    return Text(np.concatenate(codes), values)


def _table(windows: StepWindows, at: int, lanes: list[_Lane], hidden: int) -> ResultTable:
    kinds = _joined([lane.kind for lane in lanes]).compact().relabel(str)
    labels = _joined([lane.label for lane in lanes])
    every = Runs.exact(
        np.repeat(np.arange(len(lanes), dtype=np.int32), [len(lane) for lane in lanes]),
        kinds.codes,
        labels.codes,
        np.concatenate([lane.starts for lane in lanes]),
        np.concatenate([lane.ends for lane in lanes]),
    )
    weights = np.where(kinds.isin(_ON_DEVICE), every.busy_ns, 0)
    runs = thinned(every, MAX_ROWS, weights if weights.any() else None)
    is_exact = runs.counts == 1
    launches = np.concatenate([lane.launches for lane in lanes])[runs.heads]
    shapes = _joined([lane.shape for lane in lanes]).take(runs.heads)
    shapes = Text(np.where(is_exact, shapes.codes, -1).astype(np.int32), shapes.values).compact()
    names = Text(runs.names, labels.values).compact()
    return result_table(
        "timeline",
        Words("Timeline of one step", "单步时间线"),
        [
            Col("lane", "Lane", "泳道", TextCells(Text(runs.lanes, [lane.name for lane in lanes]))),
            Col("group", "Group", "分组", TextCells(Text(runs.lanes, [lane.group for lane in lanes]))),
            Col("kind", "Kind", "类别", TextCells(Text(runs.kinds, kinds.values))),
            Col("name", "Name", "名称", TextCells(names.relabel(str))),
            Col("start_ns", "Start", "开始", IntCells(runs.starts), "ns"),
            Col("dur_ns", "Duration", "时长", IntCells(runs.ends - runs.starts), "ns"),
            Col("count", "Intervals", "区间数", IntCells(runs.counts), "count"),
            Col("busy_ns", "Busy", "忙碌时间", IntCells(runs.busy_ns), "ns"),
            Col("launch_start_ns", "Launch", "下发", IntCells(np.where(is_exact, launches, NULL)), "ns"),
            Col("shapes", "Input shapes", "输入 Shape", TextCells(shapes.relabel(_brief))),
        ],
        _note(windows, at, runs, hidden),
    )


def _brief(shapes: str) -> str | None:
    return (shapes if len(shapes) <= MAX_SHAPE else shapes[:MAX_SHAPE] + "...") or None


def _note(windows: StepWindows, at: int, runs: Runs, hidden: int) -> Words:
    step = windows.step_id(at)
    what = Words("the whole capture", "整个采集区间") if step is None else Words(f"step {step}", f" step {step}")
    alone = int(np.count_nonzero(runs.counts == 1))
    every, exact, merged = (
        format_quantity(number, "count") for number in (int(runs.counts.sum()), alone, len(runs) - alone)
    )
    if len(runs) > alone:
        en = f"Shows {what.en}: {exact} of {every} intervals as they are, the others as {merged} runs."
        zh = f"展示{what.zh}：{every} 个区间中 {exact} 个逐一展示，其余合并为 {merged} 段。"
    else:
        en = f"Shows {what.en}: all {every} intervals."
        zh = f"展示{what.zh}：全部 {every} 个区间。"
    if hidden:
        en += f" {hidden} less busy lanes are left out."
        zh += f"另有 {hidden} 条较空闲的泳道未展示。"
    return Words(en, zh)


def _window_table(start: int, end: int) -> ResultTable:
    return result_table(
        "timeline-window",
        Words("Window of the timeline", "时间线窗口"),
        [
            Col("start_ns", "Start", "开始", [start], "ns"),
            Col("end_ns", "End", "结束", [end], "ns"),
        ],
    )
