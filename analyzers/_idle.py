"""Idle time of the device inside the steps, and what the host did meanwhile.

A gap is a time in which no stream of the device has a kernel, a collective or a copy. What precedes the end of the
next task's launch call is the host's; what follows it is the device's (launch latency, or waiting for a dependency).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._steps import StepWindows, step_windows
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Words
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS, STEPS
from ascend_perf.model.trace import Check, Trace

MAX_LOST_RATIO: Final = 0.01
"""Share of the kernels that a damaged file may have lost before gaps are no longer told as idle. Status: assumed."""

CLOCK_TOLERANCE_NS: Final = 20_000
"""Host and device clocks agree to tens of us. Source: format reference, 9.5. Status: vendor."""

_SYNC: Final = re.compile(r"synchronize", re.IGNORECASE)
_WHOLE_DEVICE: Final = re.compile(r"DeviceSynchronize|SynchronizeDevice")
_COPY: Final = re.compile(r"memcpy", re.IGNORECASE)
_MEMORY: Final = re.compile(
    r"malloc|memalloc|hostalloc|(?<![a-z])free|Free(?!ze)|memcreate|mapmem|memmap|memunmap", re.IGNORECASE
)
_COMPILE: Final = re.compile(
    r"aclopCompile|opCompile|^(cu|cuda|hip)(Module|Library)Load|nvrtcCompile|hiprtcCompile", re.IGNORECASE
)


class Cause(Enum):
    """What the host did in idle time, in the order in which causes are tried."""

    GC = "gc"
    DATALOADER = "dataloader"
    COMPILE = "compile"
    MEMORY = "memory"
    SYNC = "sync"
    COPY = "copy"
    LAUNCH = "launch"
    OP = "op"
    PYTHON = "python"
    NOTHING = "nothing"
    DEVICE = "device"


CAUSES: Final[dict[Cause, Words]] = {
    Cause.GC: Words("Python garbage collection", "Python 垃圾回收（GC）"),
    Cause.DATALOADER: Words("the data loader", "数据加载"),
    Cause.COMPILE: Words("just-in-time compilation", "在线编译"),
    Cause.MEMORY: Words("allocating or freeing memory", "申请或释放内存"),
    Cause.SYNC: Words("a synchronising call that drained the queue", "同步调用（排空下发队列）"),
    Cause.COPY: Words("a copy call", "拷贝调用"),
    Cause.LAUNCH: Words("launching and other device calls", "下发及其他设备 API 调用"),
    Cause.OP: Words("dispatching framework operators", "框架算子下发"),
    Cause.PYTHON: Words("Python or user code", "Python 或用户代码"),
    Cause.NOTHING: Words(
        "nothing that the profile records (Python code, or waiting)", "profile 未记录的活动（Python 代码或等待）"
    ),
    Cause.DEVICE: Words("the next task was launched already", "下一个任务已下发（等待依赖或下发时延）"),
}
"""How texts name a cause."""


def is_sync(apis: Table) -> Bools:
    """Runtime calls that wait for the device."""
    return apis.text("api").flags(lambda api: bool(_SYNC.search(api)))


def is_copy(api: str) -> bool:
    """Whether a runtime call of this name copies."""
    return bool(_COPY.search(api))


def is_compile(apis: Table) -> Bools:
    """Runtime calls that compile or load device code."""
    return apis.text("api").flags(lambda api: bool(_COMPILE.search(api)))


def is_memory(apis: Table) -> Bools:
    """Runtime calls that take memory from the driver or give it back."""
    return apis.text("api").flags(lambda api: bool(_MEMORY.search(api)) and not is_copy(api))


@dataclass(frozen=True, kw_only=True)
class Span:
    """A number of windows taken together; shares are of their length."""

    starts: Ints
    ends: Ints
    step_ids: tuple[int | None, ...]

    @property
    def step_ns(self) -> int:
        """Length of all windows."""
        return int((self.ends - self.starts).sum())

    @property
    def steps(self) -> int:
        """Number of windows."""
        return len(self.starts)

    def clip(self, union: IntervalSet) -> IntervalSet:
        """The part of a merged set inside the windows."""
        return intervals.intersection(union, intervals.merged(self.starts, self.ends))


def device_span(windows: StepWindows) -> Span:
    """The steps as the device saw them."""
    return Span(
        starts=windows.starts, ends=windows.ends, step_ids=tuple(windows.step_id(i) for i in range(len(windows)))
    )


def host_span(trace: Trace, windows: StepWindows) -> Span:
    """The steps with what the host did before their first and after their last device task, without overlap.

    Ascend's steps last from the first to the last device task; the rest of the host's step is part of the iteration.

    Reads:
        steps: start_ns, host_start_ns, host_dur_ns.
    """
    steps = trace[STEPS]
    starts, host, host_dur = (steps.ints(name) for name in ("start_ns", "host_start_ns", "host_dur_ns"))
    known = np.flatnonzero((starts != NULL) & (host != NULL))
    begin, end = windows.starts.copy(), windows.ends.copy()
    for row in known.tolist():
        holder = int(np.searchsorted(windows.starts, starts[row], side="right")) - 1
        if holder >= 0 and starts[row] < windows.ends[holder]:
            begin[holder] = min(begin[holder], host[row])
            if host_dur[row] != NULL:
                end[holder] = max(end[holder], host[row] + host_dur[row])
    begin[1:] = np.maximum(begin[1:], np.minimum(windows.ends[:-1], windows.starts[1:]))
    end[:-1] = np.maximum(windows.ends[:-1], np.minimum(end[:-1], begin[1:]))
    return Span(starts=begin, ends=end, step_ids=tuple(windows.step_id(i) for i in range(len(windows))))


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Synchronising calls of the host, one entry per call, in order of start."""

    starts: Ints
    ends: Ints
    threads: Ints
    names: Text


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Idle gaps of the device and their causes."""

    trace: Trace
    span: Span
    gaps: IntervalSet
    parts: dict[Cause, IntervalSet]
    """Each ns of the gaps belongs to one cause."""
    drained_by: Ints
    """Per gap: index into `sync` of the call that drained the queue, -1 where none did."""
    sync: Sync
    has_host: bool
    """Whether the profile holds any host activity."""

    def cause_ns(self, cause: Cause) -> int:
        """Idle time of a cause, all steps together."""
        return intervals.total(self.parts[cause])

    @cached_property
    def by_gap(self) -> Ints:
        """Idle ns of each cause (rows, in the order of `Cause`) in each gap (columns)."""
        return np.stack([
            intervals.covered(self.parts[cause], self.gaps.starts, self.gaps.ends) for cause in Cause
        ])  # fmt: skip


@once
def kernels_lost(trace: Trace) -> Check | None:
    """The check that shows a cut file: the exporter counted more kernels than are there. Their time is not idle."""
    for check in trace.meta.checks:
        if check.name == "kernel count" and check.theirs - check.ours > MAX_LOST_RATIO * check.theirs:
            return check
    return None


def no_idle_words(trace: Trace) -> Words:
    """Why `idle_of` has nothing to say."""
    if (check := kernels_lost(trace)) is None:
        return Words("no kernel lies in a step", "step 内没有 Kernel")
    return Words(
        f"{check.theirs - check.ours:.0f} of {check.theirs:.0f} kernels are missing: their time would count as idle; "
        "a file is cut, export the profile again",
        f"{check.theirs:.0f} 个 Kernel 中缺少 {check.theirs - check.ours:.0f} 个，其耗时会被误计为空闲；文件被截断，"
        "请重新导出",
    )


@once
def idle_of(trace: Trace) -> Idle | None:
    """The idle gaps of a rank, None when no device task lies in a step, or when its kernels are not in the data.

    Reads:
        kernels, comm_ops, copies: start_ns, dur_ns, launch_start_ns, launch_end_ns; runtime_calls, host_ops,
        host_events.

    Source:
        rivals-and-methods, method 5.2, refined to gaps of the whole device.
    """
    windows = step_windows(trace)
    tasks = _device_tasks(trace)
    if not trace.has(KERNELS) and trace.has(COMM_OPS):
        return None  # the kernels are not in the data: gaps between the collectives are no idle time
    if kernels_lost(trace):
        return None
    if not len(windows) or not len(tasks[0]):
        return None
    span = device_span(windows)
    busy = intervals.merged(*tasks[:2])
    gaps = _complement(busy, span)
    if not total_inside(busy, span):
        return None
    host_end, launch_start, next_launch = _before_next(tasks, gaps)
    device = intervals.merged(host_end, gaps.ends)
    rest = intervals.merged(gaps.starts, host_end)
    launches = intervals.merged(launch_start, host_end)
    sync = syncs_of(trace)
    drained_by = _drained(trace, gaps, next_launch)
    drained = drained_by >= 0
    parts = _attributed(
        trace, rest, launches, intervals.merged(gaps.starts[drained], host_end[drained]), sync
    )  # fmt: skip
    parts[Cause.DEVICE] = device
    return Idle(
        trace=trace, span=span, gaps=gaps, parts=parts, drained_by=drained_by, sync=sync,
        has_host=trace.has(RUNTIME_CALLS) or trace.has(HOST_OPS) or trace.has(HOST_EVENTS),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Waits:
    """What synchronising calls cost, those at the end of a step with them."""

    idle: Idle
    """Its span has the time between steps too, its parts have the gaps there under `Cause.SYNC` alone."""
    own: IntervalSet
    """Of that time between steps what is no other work of the host: the calls themselves, and launching again."""


@once
def waits_of(idle: Idle, spared: IntervalSet) -> Waits:
    """The same with the gaps between two steps that begin while a synchronising call waits: a loss that is read at the
    end of the step.

    Without such calls the host would come to its next launch earlier by as long as they took since the step began: so
    much of the gap counts, whatever the host does there (data and logs would be done while the device is busy).

    Args:
        idle: of the steps.
        spared: time that another row names.
    """
    trace, windows = idle.trace, step_windows(idle.trace)
    ends = np.maximum.accumulate(windows.ends)[:-1]
    apart = windows.starts[1:] > ends
    tasks = _device_tasks(trace)
    between = Span(starts=ends[apart], ends=windows.starts[1:][apart], step_ids=())
    gaps = _complement(intervals.merged(*tasks[:2]), between)
    if not len(gaps.starts):
        return Waits(idle=idle, own=EMPTY)
    host_end, _, next_launch = _before_next(tasks, gaps)
    drained_by = _drained(trace, gaps, next_launch)
    drained = drained_by >= 0
    starts, until = gaps.starts[drained], host_end[drained]
    causes = causes_of(trace, intervals.merged(starts, until))
    launching = np.zeros(len(trace[HOST_OPS]), bool)
    rows = trace[KERNELS].ints("host_op")
    launching[rows[rows != NULL]] = True
    dispatch = intervals.intersection(causes[Cause.OP], union_of(trace[HOST_OPS], launching))
    ahead = _ahead(idle, windows, starts, until, drained_by[drained])
    named = (causes[cause] for cause in (Cause.GC, Cause.DATALOADER, Cause.COMPILE, Cause.MEMORY))
    waits = intervals.difference(
        intervals.merged(starts, np.minimum(until, starts + ahead)), intervals.union(spared, *named)
    )
    own = intervals.intersection(waits, intervals.union(causes[Cause.SYNC], causes[Cause.LAUNCH], dispatch))
    if not len(waits.starts):
        return Waits(idle=idle, own=EMPTY)
    starts = np.concatenate((idle.gaps.starts, starts))
    order = np.argsort(starts, kind="stable")
    whole = np.append(np.where(apart, windows.starts[1:], windows.ends[:-1]), windows.ends[-1:])
    return Waits(own=own, idle=Idle(
        trace=trace, sync=idle.sync, has_host=idle.has_host,
        span=Span(starts=idle.span.starts, ends=whole, step_ids=idle.span.step_ids),
        gaps=IntervalSet(starts[order], np.concatenate((idle.gaps.ends, gaps.ends[drained]))[order]),
        parts={**idle.parts, Cause.SYNC: intervals.union(idle.parts[Cause.SYNC], waits)},
        drained_by=np.concatenate((idle.drained_by, drained_by[drained]))[order],
    ))  # fmt: skip


def _ahead(idle: Idle, windows: StepWindows, starts: Ints, until: Ints, drained_by: Ints) -> Ints:
    """How much earlier the host would come to the end of each gap between two steps without its synchronising calls:
    as long as these took since the step before began, less the gaps that this closes before."""
    step = np.searchsorted(windows.starts, starts, side="right") - 1
    begin = windows.starts[step]
    closed = intervals.covered(idle.parts[Cause.SYNC], begin, starts)
    lengths = until - starts
    so_far = np.cumsum(lengths) - lengths
    closed += so_far - so_far[np.searchsorted(step, step)]
    waited: Ints = np.zeros(len(starts), np.int64)
    for thread in np.unique(idle.sync.threads[drained_by]).tolist():
        calls, mine = idle.sync.threads == thread, idle.sync.threads[drained_by] == thread
        waits = intervals.merged(idle.sync.starts[calls], idle.sync.ends[calls])
        waited[mine] = intervals.covered(waits, begin[mine], until[mine])
    ahead: Ints = np.maximum(waited - closed, 0)
    return ahead


def causes_of(trace: Trace, idle: IntervalSet) -> dict[Cause, IntervalSet]:
    """Some idle time by what the host's own events cover of it; launches to come are not looked at."""
    return _attributed(trace, idle, EMPTY, EMPTY, syncs_of(trace))


def total_inside(union: IntervalSet, span: Span) -> int:
    """Length of a merged set inside the windows."""
    return int(intervals.covered(union, span.starts, span.ends).sum())


def idle_in(trace: Trace, span: Span) -> IntervalSet:
    """Time inside some windows in which no stream of the device is busy."""
    starts, ends, _, _ = _device_tasks(trace)
    return _complement(intervals.merged(starts, ends), span)


def union_of(table: Table, rows: Bools) -> IntervalSet:
    """Union of some rows of an interval table."""
    starts, ends = table.ints("start_ns"), table.ends_ns()
    usable = rows & (starts != NULL) & (ends != NULL)
    return intervals.merged(starts[usable], ends[usable])


def _before_next(tasks: tuple[Ints, Ints, Ints, Ints], gaps: IntervalSet) -> tuple[Ints, Ints, Ints]:
    """Of each gap: where the launch of the next task ends and where it starts, both inside of the gap; and where it
    starts, the end of the gap where that is not known."""
    starts, _, launch_starts, launch_ends = tasks
    # The next task of a gap is the first that starts at or after its end.
    following = np.searchsorted(starts, gaps.ends, side="left")
    exists = following < len(starts)
    following = np.clip(following, 0, len(starts) - 1)
    knows = exists & (launch_ends[following] != NULL)
    host_end = np.where(knows, np.clip(launch_ends[following], gaps.starts, gaps.ends), gaps.ends)
    launch_start = np.where(knows, np.clip(launch_starts[following], gaps.starts, host_end), host_end)
    return host_end, launch_start, np.where(knows, launch_starts[following], gaps.ends)


def _complement(busy: IntervalSet, span: Span) -> IntervalSet:
    whole = intervals.merged(span.starts, span.ends)
    return intervals.difference(whole, busy)


def _device_tasks(trace: Trace) -> tuple[Ints, Ints, Ints, Ints]:
    """Start, end, and start and end of the launch of every device task, in order of start."""
    columns: list[list[Ints]] = [[], [], [], []]
    for spec in (KERNELS, COMM_OPS, COPIES):
        table = trace[spec]
        starts, ends = table.ints("start_ns"), table.ends_ns()
        rows = (starts != NULL) & (ends != NULL)
        for column, values in zip(
            columns, (starts, ends, table.ints("launch_start_ns"), table.ints("launch_end_ns")), strict=True
        ):
            column.append(values[rows])
    joined = [np.concatenate(column) for column in columns]
    order = np.argsort(joined[0], kind="stable")
    return joined[0][order], joined[1][order], joined[2][order], joined[3][order]


@once
def syncs_of(trace: Trace) -> Sync:
    """Calls of the host that wait for the device."""
    calls, copies = trace[RUNTIME_CALLS], trace[COPIES]
    waits = is_sync(calls)
    # A device-to-host copy whose call returns only when the data is there synchronises as well.
    blocking = copies.text("kind").equals("D2H") & (copies.ints("launch_end_ns") != NULL)
    blocking &= copies.ints("launch_end_ns") + CLOCK_TOLERANCE_NS >= copies.ends_ns()
    ids = copies.ints("correlation")[blocking]
    waits |= np.isin(calls.ints("correlation"), ids[ids != NULL]) & calls.text("api").flags(is_copy)
    starts, ends = calls.ints("start_ns"), calls.ends_ns()
    rows = np.flatnonzero(waits & (starts != NULL) & (ends != NULL))
    rows = rows[np.argsort(starts[rows], kind="stable")]
    apis = calls.text("api")
    return Sync(
        starts=starts[rows], ends=ends[rows], threads=calls.ints("thread")[rows],
        names=apis.take(rows),
    )  # fmt: skip


def _drained(trace: Trace, gaps: IntervalSet, next_launch: Ints) -> Ints:
    """Per gap the synchronising call that was waiting when it began and had returned when the next task was launched.

    Work that other threads launch while the call still waits is not held up by it. What the loop that measured waits
    behind each step is left out: nobody could take it out of the program.
    """
    sync, starts = syncs_of(trace), gaps.starts
    found = np.full(len(starts), -1, np.int64)
    for thread in np.unique(sync.threads).tolist():
        mine = np.flatnonzero(sync.threads == thread)
        last = np.searchsorted(sync.starts[mine], starts, side="right") - 1
        call = mine[np.clip(last, 0, None)]
        waits = (last >= 0) & (sync.ends[call] + CLOCK_TOLERANCE_NS >= starts) & (sync.ends[call] <= next_launch)
        found = np.where(waits & (found < 0), call, found)
    if not trace.meta.waits_each_step:
        return found
    windows = step_windows(trace)
    step = np.searchsorted(windows.starts, starts - CLOCK_TOLERANCE_NS, side="right") - 1
    closes = (step >= 0) & (windows.ends[np.clip(step, 0, None)] <= gaps.ends)
    ours = np.append(sync.names.flags(lambda name: bool(_WHOLE_DEVICE.search(name))), False)
    return np.where(closes & ours[found], -1, found)


def _attributed(
    trace: Trace, rest: IntervalSet, launches: IntervalSet, drained: IntervalSet, sync: Sync
) -> dict[Cause, IntervalSet]:
    """The host's part of the gaps by cause; what the profile does not cover is left to NOTHING."""
    calls, events, ops = trace[RUNTIME_CALLS], trace[HOST_EVENTS], trace[HOST_OPS]
    kinds, apis = events.text("kind"), calls.text("api")
    every = np.ones(len(calls), bool)
    queue = kinds.isin({"enqueue", "dequeue"})
    candidates = (
        (Cause.GC, union_of(events, kinds.equals("gc"))),
        (Cause.DATALOADER, union_of(events, kinds.equals("dataloader"))),
        (Cause.COMPILE, union_of(calls, is_compile(calls))),
        (Cause.MEMORY, union_of(calls, is_memory(calls))),
        (Cause.SYNC, drained),
        (Cause.COPY, union_of(calls, apis.flags(is_copy))),
        (
            Cause.LAUNCH,
            intervals.union(union_of(calls, every & ~is_sync(calls)), union_of(events, queue), launches),
        ),
        (Cause.SYNC, intervals.merged(sync.starts, sync.ends)),
        (Cause.OP, union_of(ops, np.ones(len(ops), bool))),
        (Cause.PYTHON, union_of(events, kinds.isin({"python", "user", "optimizer"}))),
    )
    parts = dict.fromkeys(Cause, EMPTY)
    for cause, union in candidates:
        if len(rest.starts) and len(union.starts):
            parts[cause] = intervals.union(parts[cause], intervals.intersection(rest, union))
            rest = intervals.difference(rest, union)
    parts[Cause.NOTHING] = rest
    return parts
