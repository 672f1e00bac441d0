"""One step as intervals in lanes: host threads, dispatch, device streams, communication groups and their waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf import intervals
from ascend_perf.analyzers._steps import StepWindows, representative, step_windows
from ascend_perf.analyzers._tables import Col, result_table
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

MAX_ROWS: Final = 20_000
"""Intervals of the step that the report draws at most."""
MAX_LANES: Final = 40
"""Lanes beyond this are left out, the least busy first."""
PIXELS: Final = 64_000
"""Where there are too many: parts of the step under which neighbours are merged, halved until they fit."""

_EVENT_KIND: Final = {
    "dataloader": "dataloader", "sync": "sync", "gc": "host", "python": "host", "optimizer": "host", "user": "host",
    "enqueue": "host", "dequeue": "host", "step": "host",
}  # fmt: skip
_SYNC_CALLS: Final = ("synchronize", "streamwaitevent", "eventsynchronize")


@dataclass(frozen=True, kw_only=True)
class _Lane:
    """Intervals of one lane, in order of their start."""

    name: str
    kind: Text
    label: Text
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)


@analyzer(name="timeline", needs=(), order=20, section="timeline")
def timeline(trace: Trace) -> Result:
    """Intervals of the representative step (the median one), thinned to what a screen can show.

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
    thinned = _thin(shown, start, end)
    return Result(tables=(_table(windows, at, thinned, lanes, shown), _window_table(start, end)))


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
    yield from _split(kernels, "stream", "Stream", "compute", kernels.text("name"), start, end)
    copies = trace[COPIES]
    yield from _split(copies, "stream", "Copies, stream", "copy", _copy_labels(copies), start, end)
    calls = trace[COMM_OPS]
    groups = _group_names(calls)
    for name, rows in _by_text(groups):
        yield _lane(f"Communication {name}".strip(), calls, rows, "communication", calls.text("name"), start, end)
    yield from _wait_lanes(trace, groups, start, end)


def _host_lanes(trace: Trace, start: int, end: int) -> Iterator[_Lane]:
    """Per thread its top-level ops, its other events, and its calls of the runtime."""
    ops, events, calls = trace[HOST_OPS], trace[HOST_EVENTS], trace[RUNTIME_CALLS]
    for thread in _threads(ops, start, end):
        rows = np.flatnonzero(ops.ints("thread") == thread)
        rows = _top_level(ops, rows)
        yield _lane(f"Host thread {_thread_name(thread)}", ops, rows, "host", ops.text("name"), start, end)
    kinds = events.text("kind").relabel(lambda kind: _EVENT_KIND.get(kind, "host"))
    shown = ~events.text("kind").isin(["step"])
    for thread in _threads(events, start, end):
        rows = np.flatnonzero((events.ints("thread") == thread) & shown)
        yield _lane(f"Host events, thread {_thread_name(thread)}", events, rows, kinds, events.text("name"), start, end)
    api = calls.text("api")
    call_kind = api.relabel(lambda name: "sync" if any(word in name.lower() for word in _SYNC_CALLS) else "host")
    for thread in _threads(calls, start, end):
        rows = np.flatnonzero(calls.ints("thread") == thread)
        rows = _top_level(calls, rows)
        yield _lane(f"Runtime API, thread {_thread_name(thread)}", calls, rows, call_kind, api, start, end)


def _thread_name(thread: int) -> str:
    return "?" if thread == NULL else str(thread)


def _threads(table: Table, start: int, end: int) -> list[int]:
    """Threads with an event in the window."""
    starts, ends = table.ints("start_ns"), table.ends_ns()
    rows = (starts != NULL) & (ends != NULL) & (starts < end) & (ends > start)
    return [int(thread) for thread in np.unique(table.ints("thread")[rows])]


def _top_level(table: Table, rows: Ints) -> Ints:
    """Rows that no other of the rows contains."""
    starts, ends = table.ints("start_ns")[rows], table.ends_ns()[rows]
    known = (starts != NULL) & (ends != NULL)
    rows, starts, ends = rows[known], starts[known], ends[known]
    order = np.lexsort((-ends, starts))
    rows, starts, ends = rows[order], starts[order], ends[order]
    if not len(rows):
        return rows
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


def _wait_lanes(trace: Trace, groups: Text, start: int, end: int) -> Iterator[_Lane]:
    """Waits for a peer per communication group, as a union over planes."""
    tasks = trace[COMM_TASKS]
    waits = tasks.text("kind").flags(lambda kind: "wait" in kind.lower())
    op = tasks.ints("comm_op")
    if not waits.any() or not len(groups):
        return
    usable = waits & (op != NULL) & (op >= 0) & (op < len(groups))
    for name, calls in _by_text(groups):
        rows = np.flatnonzero(usable & np.isin(op, calls))
        starts, ends = tasks.ints("start_ns")[rows], tasks.ends_ns()[rows]
        known = (starts != NULL) & (ends != NULL)
        union = intervals.clip(intervals.merged(starts[known], ends[known]), start, end)
        if len(union.starts):
            count = len(union.starts)
            yield _Lane(
                name=f"Waits {name}".strip(),
                kind=Text.full(count, "wait"),
                label=Text.full(count, "Notify_Wait"),
                starts=union.starts,
                ends=union.ends,
            )


def _by_text(values: Text) -> list[tuple[str, Ints]]:
    """Rows by distinct value; unknown goes under an empty name."""
    found = []
    for code in np.unique(values.codes).tolist():
        found.append(("" if code < 0 else values.values[code], np.flatnonzero(values.codes == code)))
    return found


def _split(table: Table, by: str, title: str, kind: str, label: Text, start: int, end: int) -> Iterator[_Lane]:
    keys = table.ints(by)
    for key in np.unique(keys).tolist():
        name = title if key == NULL else f"{title} {key}"
        yield _lane(name, table, np.flatnonzero(keys == key), kind, label, start, end)


def _lane(name: str, table: Table, rows: Ints, kind: str | Text, label: Text, start: int, end: int) -> _Lane:
    starts, ends = table.ints("start_ns")[rows], table.ends_ns()[rows]
    inside = (starts != NULL) & (ends != NULL) & (starts < end) & (ends > start)
    rows, starts, ends = rows[inside], starts[inside], ends[inside]
    order = np.argsort(starts, kind="stable")
    rows = rows[order]
    return _Lane(
        name=name,
        kind=Text.full(len(rows), kind) if isinstance(kind, str) else kind.take(rows),
        label=label.take(rows),
        starts=np.maximum(starts[order], start),
        ends=np.minimum(ends[order], end),
    )


def _chosen(lanes: list[_Lane]) -> list[_Lane]:
    """At most `MAX_LANES` lanes: those that are busy longest, in their own order."""
    if len(lanes) <= MAX_LANES:
        return lanes
    busy = [intervals.total(intervals.merged(lane.starts, lane.ends)) for lane in lanes]
    kept = sorted(sorted(range(len(lanes)), key=lambda i: -busy[i])[:MAX_LANES])
    return [lanes[i] for i in kept]


def _thin(lanes: list[_Lane], start: int, end: int) -> list[_Lane]:
    """Lanes with at most `MAX_ROWS` intervals in all: what lies under a pixel is merged, coarser until it fits."""
    pixel = max(1, (end - start) // PIXELS)
    if sum(len(lane) for lane in lanes) <= MAX_ROWS:
        return lanes
    thinned = [_merged(lane, start, pixel) for lane in lanes]
    while sum(len(lane) for lane in thinned) > MAX_ROWS:
        pixel *= 2
        thinned = [_merged(lane, start, pixel) for lane in lanes]
    return thinned


def _merged(lane: _Lane, start: int, pixel: int) -> _Lane:
    """The lane with neighbours of one kind merged when both are under a pixel and begin in the same pixel."""
    if not len(lane):
        return lane
    short = (lane.ends - lane.starts) < pixel
    cell = (lane.starts - start) // pixel
    joins = np.zeros(len(lane), bool)
    joins[1:] = short[1:] & short[:-1] & (cell[1:] == cell[:-1]) & (lane.kind.codes[1:] == lane.kind.codes[:-1])
    heads = np.flatnonzero(~joins)
    sizes = np.diff(np.append(heads, len(lane)))
    single: NDArray[np.bool_] = sizes == 1
    values = [*lane.label.values, ""]
    labels = [
        values[code] if alone else f"{size} x {values[code]} ..."
        for code, alone, size in zip(lane.label.codes[heads].tolist(), single.tolist(), sizes.tolist(), strict=True)
    ]
    return _Lane(
        name=lane.name,
        kind=lane.kind.take(heads),
        label=Text.of(labels),
        starts=lane.starts[heads],
        ends=np.maximum.reduceat(lane.ends, heads),
    )


def _table(
    windows: StepWindows, at: int, lanes: list[_Lane], all_lanes: list[_Lane], shown: list[_Lane]
) -> ResultTable:
    count = sum(len(lane) for lane in lanes)
    before = sum(len(lane) for lane in shown)
    step = windows.step_id(at)
    what = Words("the whole capture", "整个采集区间") if step is None else Words(f"step {step}", f"step {step}")
    hidden = len(all_lanes) - len(shown)
    return result_table(
        "timeline",
        Words("Timeline of one step", "单步时间线"),
        [
            Col("lane", "Lane", "泳道", [lane.name for lane in lanes for _ in range(len(lane))]),
            Col("kind", "Kind", "类别", Text.concat([lane.kind for lane in lanes])),
            Col("name", "Name", "名称", Text.concat([lane.label for lane in lanes])),
            Col("start_ns", "Start", "开始", np.concatenate([lane.starts for lane in lanes]), "ns"),
            Col("dur_ns", "Duration", "时长", np.concatenate([lane.ends - lane.starts for lane in lanes]), "ns"),
        ],
        Words(
            f"Shows {what.en}: {count} of {before} intervals after merging what lies under a pixel"
            + (f"; {hidden} less busy lanes are left out." if hidden else "."),
            f"展示{what.zh}：合并小于一个像素的区间后共 {count} 个（原 {before} 个）"
            + (f"；另有 {hidden} 条较空闲的泳道未展示。" if hidden else "。"),
        ),
    )


def _window_table(start: int, end: int) -> ResultTable:
    return result_table(
        "timeline-window",
        Words("Window of the timeline", "时间线窗口"),
        [
            Col("start_ns", "Start", "开始", [start], "ns"),
            Col("end_ns", "End", "结束", [end], "ns"),
        ],
    )
