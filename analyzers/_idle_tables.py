"""Result tables of the `host-dispatch` analyzer."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Cause, Idle, is_compile, is_memory, is_sync
from ascend_perf.analyzers._launches import Launches, quantiles
from ascend_perf.analyzers._python_lines import around
from ascend_perf.analyzers._steps import membership
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.distinct import distinct
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import EXPORTED_APIS, HOST_EVENTS, HOST_OPS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.units import format_quantity

TOP_GAPS: Final = 20
TOP_APIS: Final = 30


def gap_tables(idle: Idle) -> tuple[ResultTable, ...]:
    """The causes of idle time, and the longest gaps."""
    causes = [cause for cause in Cause if idle.cause_ns(cause)]
    causes.sort(key=lambda cause: -idle.cause_ns(cause))
    order = list(Cause)
    main = idle.by_gap.argmax(axis=0) if len(idle.gaps.starts) else np.empty(0, np.int64)
    step_ns, steps = idle.span.step_ns, idle.span.steps
    whole = result_table(
        "idle-causes",
        Words("Idle time by what the host did", "空闲时间按 Host 活动划分"),
        (
            Col("cause", "Cause", "原因", [cause.value for cause in causes]),
            Col("total_ns", "Idle time", "空闲时间", [idle.cause_ns(cause) for cause in causes], "ns"),
            Col("per_step_ns", "per step", "每步", [idle.cause_ns(c) / max(1, steps) for c in causes], "ns"),
            Col("share_ratio", "Share of step", "占迭代比例", [idle.cause_ns(c) / step_ns for c in causes], "ratio"),
            Col("gaps", "Gaps", "空闲段数", [int((main == order.index(cause)).sum()) for cause in causes], "count"),
        ),
        note=Words(
            "A gap is a time in which no stream of the device works; it counts where most of it belongs.",
            "空闲段：设备所有流均无任务的一段时间；计入占比最大的原因。",
        ),
    )
    length = idle.gaps.ends - idle.gaps.starts
    top = np.argsort(-length, kind="stable")[:TOP_GAPS]
    named = [order[int(main[gap])] for gap in top]
    longest = result_table(
        "idle-gaps",
        Words("Longest idle gaps", "最长的空闲"),
        (
            Col("start_ns", "Start", "开始时间", idle.gaps.starts[top]),
            Col("dur_ns", "Idle", "空闲", length[top], "ns"),
            Col("cause", "Cause", "原因", [cause.value for cause in named]),
            Col("host", "Longest host event", "Host 最长事件", [host_activity(idle, int(gap)) for gap in top]),
        ),
    )
    return whole, longest


def host_activity(idle: Idle, gap: int) -> str | None:
    """Name of the host event that fills most of a gap, of the kind that the gap is put down to."""
    cause = list(Cause)[int(idle.by_gap[:, gap].argmax())]
    start, end = int(idle.gaps.starts[gap]), int(idle.gaps.ends[gap])
    if cause is Cause.SYNC and idle.drained_by[gap] >= 0:
        return idle.sync.names[int(idle.drained_by[gap])] or ""
    trace = idle.trace
    calls, events, ops = trace[RUNTIME_CALLS], trace[HOST_EVENTS], trace[HOST_OPS]
    kinds = events.text("kind")
    choices: dict[Cause, tuple[Table, str, Bools]] = {
        Cause.GC: (events, "name", kinds.equals("gc")),
        Cause.DATALOADER: (events, "name", kinds.equals("dataloader")),
        Cause.COMPILE: (calls, "api", is_compile(calls)),
        Cause.MEMORY: (calls, "api", is_memory(calls)),
        Cause.SYNC: (calls, "api", is_sync(calls)),
        Cause.COPY: (calls, "api", calls.text("api").flags(lambda api: "memcpy" in api.casefold())),
        Cause.LAUNCH: (calls, "api", ~is_sync(calls)),
        Cause.PYTHON: (events, "name", kinds.isin({"python", "user", "optimizer"})),
    }
    table, column, rows = choices.get(cause, (ops, "name", np.ones(len(ops), bool)))
    starts, ends = table.ints("start_ns"), table.ends_ns()
    rows = rows & (starts < end) & (ends > start) & (starts != NULL)
    picked = np.flatnonzero(rows)
    if not len(picked):
        return None
    overlap = np.minimum(ends[picked], end) - np.maximum(starts[picked], start)
    # The innermost of those that fill most of the gap says most.
    fills = picked[overlap >= 0.8 * overlap.max()]
    return table.text(column)[int(fills[np.argmin(ends[fills] - starts[fills])])]


def gc_table(trace: Trace, idle: Idle | None) -> ResultTable | None:
    """Garbage collections, the longest first; None where none was recorded."""
    events = trace[HOST_EVENTS]
    rows = np.flatnonzero(
        events.text("kind").equals("gc") & (events.ints("start_ns") != NULL) & (events.ints("dur_ns") != NULL)
    )
    if not len(rows):
        return None
    rows = rows[np.argsort(-events.ints("dur_ns")[rows], kind="stable")[:TOP_GAPS]]
    chosen = events.select(rows)
    starts, ends = chosen.ints("start_ns"), chosen.ends_ns()
    lost = np.full(len(rows), NULL, np.int64) if idle is None else intervals.covered(idle.gaps, starts, ends)
    found = around(trace, chosen.ints("thread"), starts)
    return result_table(
        "gc",
        Words("Garbage collections", "垃圾回收（GC）"),
        (
            Col("start_ns", "Start", "开始时间", starts),
            Col("dur_ns", "Length", "时长", chosen.ints("dur_ns"), "ns"),
            Col("idle_ns", "While the device idled", "设备空闲期间", lost, "ns"),
            Col("name", "Event", "事件", chosen.text("name")),
            Col("line", "Python", "Python 代码行", found.line),
            Col("module", "Module", "模块", found.module),
        ),
    )


def launch_table(launches: Launches) -> ResultTable:
    """Cost, delay and device time of launches, and the queue."""
    rows = (
        ("launch", launches.cost_ns),
        ("delay", launches.delay_ns),
        ("device", launches.device_ns),
    )
    cuts = [quantiles(values) for _, values in rows]
    short = launches.device_ns < launches.cost_ns
    known, every, below, early = (
        format_quantity(number, "count")
        for number in (len(launches), launches.total, int(short.sum()), launches.negative)
    )
    note = Words(
        f"{known} of {every} device tasks have a known launch; {below} run shorter than their launch call; {early} "
        "seem to start before it ended (clocks), their delay counts as 0.",
        f"{every} 个设备任务中 {known} 个可关联下发；{below} 个任务比其下发调用还短；"
        f"{early} 个看似早于下发结束（时钟误差），时延按 0 计。",
    )
    return result_table(
        "launch",
        Words("Launching device tasks", "设备任务下发"),
        (
            Col("quantity", "Quantity", "项目", [name for name, _ in rows]),
            Col("count", "Tasks", "任务数", [len(launches)] * len(rows), "count"),
            Col("median_ns", "Median", "中位数", [cut[0] for cut in cuts], "ns"),
            Col("p95_ns", "95 %", "95 分位", [cut[1] for cut in cuts], "ns"),
            Col("max_ns", "Longest", "最长", [cut[2] for cut in cuts], "ns"),
            Col("total_ns", "Sum", "合计", [int(values.sum()) for _, values in rows], "ns"),
        ),
        note=note,
    )


def api_table(trace: Trace, idle: Idle | None) -> ResultTable | None:
    """Host calls by time; the exporter's own sums where the calls are not in the data."""
    calls = trace[RUNTIME_CALLS]
    if not len(calls):
        return _exported_apis(trace)
    inside = membership(trace, calls) >= 0
    calls = calls.select(inside & (calls.ints("dur_ns") != NULL))
    if not len(calls):
        return None
    apis, layers, dur = calls.text("api"), calls.text("layer"), calls.ints("dur_ns")
    idle_ns = np.zeros(len(calls), np.int64)
    if idle is not None:
        idle_ns = intervals.covered(idle.gaps, calls.ints("start_ns"), calls.ends_ns())
    keys, index = distinct(apis.codes, layers.codes)
    size = keys.shape[1]
    count, total, gap, longest = (np.zeros(size, np.int64) for _ in range(4))
    np.add.at(count, index, 1)
    np.add.at(total, index, dur)
    np.add.at(gap, index, idle_ns)
    np.maximum.at(longest, index, dur)
    top = np.argsort(-total, kind="stable")[:TOP_APIS]
    return result_table(
        "host-apis",
        Words("Host calls by time", "Host API 耗时"),
        (
            Col("api", "Call", "API", [None if c < 0 else apis.values[c] for c in keys[0][top].tolist()]),
            Col("layer", "Layer", "层", [None if c < 0 else layers.values[c] for c in keys[1][top].tolist()]),
            Col("count", "Calls", "次数", count[top], "count"),
            Col("total_ns", "Time", "耗时", total[top], "ns"),
            Col("mean_ns", "Mean", "平均", total[top] / count[top], "ns"),
            Col("max_ns", "Longest", "最长", longest[top], "ns"),
            Col("idle_ns", "While the device idled", "设备空闲期间", gap[top], "ns"),
        ),
        note=Words("Calls of several threads and layers run at the same time.", "多线程、多层的调用可能同时进行。"),
    )


def _exported_apis(trace: Trace) -> ResultTable | None:
    apis = trace[EXPORTED_APIS]
    if not len(apis):
        return None
    top = np.argsort(-apis.ints("total_ns"), kind="stable")[:TOP_APIS]
    chosen = apis.select(top)
    count, total = chosen.ints("count"), chosen.ints("total_ns")
    return result_table(
        "host-apis",
        Words("Host calls by time", "Host API 耗时"),
        (
            Col("api", "Call", "API", chosen.text("api")),
            Col("layer", "Layer", "层", chosen.text("layer")),
            Col("count", "Calls", "次数", count, "count"),
            Col("total_ns", "Time", "耗时", total, "ns"),
            Col("mean_ns", "Mean", "平均", total / np.maximum(count, 1), "ns"),
            Col("max_ns", "Longest", "最长", chosen.ints("max_ns"), "ns"),
            Col("idle_ns", "While the device idled", "设备空闲期间", np.full(len(chosen), NULL, np.int64), "ns"),
        ),
        note=Words(
            "Sums of the exporter over the whole capture; single calls are not in the data.",
            "导出工具对整个采集的汇总；数据中没有单次调用。",
        ),
    )
