"""Rows whose cause the host's own events show: data loader, compilation, garbage collection, driver memory calls."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Span, idle_in, is_compile, is_memory, union_of
from ascend_perf.analyzers._python_lines import around
from ascend_perf.analyzers._python_stages import told_calls
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import bracket, per_step, share_of
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, EXPORTED_APIS, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.units import counted, format_ns, format_ratio

NAME: Final = "host-dispatch"

MIN_SHARE_RATIO: Final = threshold("H-01", "min_share_ratio")
MIN_LOADER_NS: Final = threshold("D-01", "min_loader_ns")
MAX_SHORT_LOADER_RATIO: Final = threshold("D-01", "max_short_loader_ratio")
MIN_GC_NS: Final = threshold("H-07", "min_gc_ns")
MAX_BANDS: Final = 4
MAX_NAME: Final = 120
"""Characters of a name in a title."""

Verdict = tuple[Finding | None, Judged]


def span_words(span: Span, share_ratio: float | None = None) -> Words:
    """The step with its preparation as the subject of a sentence, see `step_words`; in Chinese 中 may follow."""
    length = format_ns(span.step_ns / max(1, span.steps))
    if span.steps > 1:
        average = bracket(share_ratio, f"average of {span.steps}")
        return Words(f"the {length} step{average}", f"平均单步 {length}（共 {span.steps} 步）")
    if span.step_ids == (None,):
        unmarked = bracket(share_ratio, "no steps marked")
        return Words(f"the {length} capture{unmarked}", f"{length} 的采集区间（无 step 标记）")
    return Words(f"the {length} step{bracket(share_ratio)}", f"单步 {length} ")


def data_loader(trace: Trace, span: Span) -> Verdict:
    """D-01: the launching thread fetches a batch while the device has nothing to do."""
    events = trace[HOST_EVENTS]
    rows = events.text("kind").equals("dataloader")
    if not rows.any():
        reason = Words(
            "no data loader events: profile with ProfilerActivity.CPU and a torch DataLoader",
            "没有数据加载事件：采集时需开启 ProfilerActivity.CPU 并使用 torch DataLoader",
        )
        return None, Judged(code="D-01", verdict="not_judged", reason=reason)
    loading = span.clip(union_of(events, rows))
    has_device = trace.has(KERNELS) or trace.has(COMM_OPS) or trace.has(COPIES)
    exposed = intervals.intersection(loading, idle_in(trace, span)) if has_device else loading
    spent, lost = intervals.total(loading), intervals.total(exposed)
    share = share_of(span, lost)
    is_usual = spent / max(1, span.steps) < MIN_LOADER_NS.value and share < MAX_SHORT_LOADER_RATIO.value
    if share < MIN_SHARE_RATIO.value or is_usual:
        reason = Words(
            f"fetching a batch takes {per_step(span, spent)} per step; the device idles in {format_ratio(share)}",
            f"取 batch 每步 {per_step(span, spent)}，其中设备空闲占单步 {format_ratio(share)}",
        )
        return None, Judged(code="D-01", verdict="clean", reason=reason)
    step = span_words(span)
    longest = _longest(events, rows)
    name = events.text("name")[longest] or "DataLoader"
    calls = int(rows.sum())
    idles = ("the device idles", "设备空闲") if has_device else ("nothing else runs", "无其他工作")
    found = finding(
        "D-01", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="dataloader",
        where=exposed, whole_ns=span.step_ns,
        title=Words(
            f"The data loader takes {per_step(span, spent)} of {step.en}, and {idles[0]} for {per_step(span, lost)} of "
            f"it ({format_ratio(share)})",
            f"{step.zh}中数据加载占 {per_step(span, spent)}，其中 {per_step(span, lost)}"
            f"（{format_ratio(share)}）{idles[1]}",
        ),
        evidence=[
            Evidence(
                name=Words("device idle while a batch is fetched, per step", "取 batch 期间设备空闲（每步）"),
                value=lost / max(1, span.steps), unit="ns",
                where=f"host_events of kind dataloader ({calls}) within the gaps of the device",
            ),
            Evidence(
                name=Words("fetching, per step", "取 batch（每步）"), value=spent / max(1, span.steps), unit="ns",
                where=f"host_events: {name}, {calls} calls",
            ),
            Evidence(
                name=Words("longest fetch", "最长的一次"), value=int(events.ints("dur_ns")[longest]), unit="ns",
                where=f"{name}, thread {_thread(events, longest)}", start_ns=int(events.ints("start_ns")[longest]),
            ),
            *_in_python(trace, loading),
        ],
        vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_bands(exposed),
        formula="union of the data loader's calls, without the time in which the device works / length of the steps",
    )  # fmt: skip
    return found, Judged(code="D-01", verdict="found")


def compilation(trace: Trace, span: Span) -> Verdict:
    """H-06: just-in-time compilation, by what it costs and not by how often it occurs."""
    calls = trace[RUNTIME_CALLS]
    if not len(calls):
        return _exported_compilation(trace, span)
    rows = is_compile(calls)
    compiling = span.clip(union_of(calls, rows))
    spent = intervals.total(compiling)
    share = share_of(span, spent)
    inside = rows & (calls.ints("start_ns") >= span.starts[0]) & (calls.ints("start_ns") < span.ends[-1])
    if share < MIN_SHARE_RATIO.value:
        reason = None
        if spent:
            reason = Words(
                f"compiling takes {per_step(span, spent)} per step ({format_ratio(share)})",
                f"在线编译每步 {per_step(span, spent)}（{format_ratio(share)}）",
            )
        return None, Judged(code="H-06", verdict="clean", reason=reason)
    idle = intervals.total(intervals.intersection(compiling, idle_in(trace, span)))
    longest = _longest(calls, inside)
    # The exporter nests opCompile inside of aclopCompileAndExecute: count the outer calls.
    apis = calls.text("api")
    outer = Counter(name for name in apis.take(inside) if name is not None)
    api, count = max(outer.items(), key=lambda item: (_spent(calls, inside & apis.equals(item[0])), item[0]))
    step = span_words(span, share)
    evidence = [
        Evidence(
            name=Words("host time of compilations, per step", "在线编译的 Host 时间（每步）"),
            value=spent / max(1, span.steps), unit="ns", where=f"runtime_calls: {count} x {api}, union",
        ),
        Evidence(
            name=Words("of it while the device idles, per step", "其中设备空闲的部分（每步）"),
            value=idle / max(1, span.steps), unit="ns", where="the same within the gaps of the device",
        ),
        Evidence(
            name=Words("longest compilation", "最长的一次编译"), value=int(calls.ints("dur_ns")[longest]), unit="ns",
            where=f"{apis[longest]}, thread {_thread(calls, longest)}", start_ns=int(calls.ints("start_ns")[longest]),
        ),
    ]  # fmt: skip
    compiled = _compiled_ops(trace, calls, inside & apis.equals(api))
    if compiled:
        evidence.append(
            Evidence(
                name=Words("operators that are compiled", "被编译的算子"), value=compiled,
                where="host_events: the Dequeue@ event around each compilation",
            )
        )  # fmt: skip
    found = finding(
        "H-06", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="compile", evidence=evidence,
        where=compiling, whole_ns=span.step_ns,
        title=Words(
            f"{counted(count, 'just-in-time compilation', 'just-in-time compilations')} ({api}) "
            f"{'takes' if count == 1 else 'take'} {per_step(span, spent)} of host time in {step.en}",
            f"{step.zh}中有 {count} 次在线编译（{api}），占用 Host {per_step(span, spent)}（{format_ratio(share)}）",
        ),
        vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_bands(compiling),
        formula="union of the compile calls / length of the steps with their preparation; what overlaps with a busy "
        "device gains nothing",
    )  # fmt: skip
    return found, Judged(code="H-06", verdict="found")


def _exported_compilation(trace: Trace, span: Span) -> Verdict:
    apis = trace[EXPORTED_APIS]
    if not len(apis):
        return None, Judged(code="H-06", verdict="not_judged", reason=no_calls(trace))
    names, totals, counts = apis.text("api"), apis.ints("total_ns"), apis.ints("count")
    rows = np.flatnonzero(names.flags(lambda api: "aclopCompileAndExecute" in api) & (totals != NULL))
    spent = int(totals[rows].sum())
    share = share_of(span, spent)
    if share < MIN_SHARE_RATIO.value:
        return None, Judged(code="H-06", verdict="clean")
    row = int(rows[np.argmax(totals[rows])])
    found = finding(
        "H-06", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="compile",
        title=Words(
            f"{int(counts[row])} just-in-time compilations ({names[row]}) take {format_ns(spent)} of host time in the "
            f"capture ({format_ratio(share)} of its steps)",
            f"采集期间有 {int(counts[row])} 次在线编译（{names[row]}），占用 Host {format_ns(spent)}"
            f"（占各步合计 {format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("host time of compilations", "在线编译的 Host 时间"), value=spent, unit="ns",
                where=f"exported_apis: {names[row]}, sum over the capture",
            )
        ],
        vendor=trace.meta.device.kind, step_ids=span.step_ids,
        formula="the exporter's sum of the compile calls over the capture / length of the steps",
    )  # fmt: skip
    return found, Judged(code="H-06", verdict="found")


def garbage_collection(trace: Trace, span: Span) -> Verdict:
    """H-07: Python's garbage collector stops the launching thread."""
    events = trace[HOST_EVENTS]
    rows = events.text("kind").equals("gc")
    if not rows.any():
        # The threshold alone does not say that nothing happened: the timeline that would hold it must be there.
        if trace.meta.settings.gc_detect_threshold is not None and (len(events) or trace.has(HOST_OPS)):
            return None, Judged(code="H-07", verdict="clean")
        reason = Words(
            "no garbage collection events; collect with "
            "experimental_config=torch_npu.profiler._ExperimentalConfig(gc_detect_threshold=1.0)",
            "没有 GC 事件；请以 "
            "experimental_config=torch_npu.profiler._ExperimentalConfig(gc_detect_threshold=1.0) 采集",
        )
        if trace.meta.device.kind != "npu":
            reason = Words(
                "no garbage collection events; collect with "
                "experimental_config=torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)",
                "没有 GC 事件；请以 "
                "experimental_config=torch._C._profiler._ExperimentalConfig(record_python_gc_info=True) 采集",
            )
        return None, Judged(code="H-07", verdict="not_judged", reason=reason)
    collecting = span.clip(union_of(events, rows))
    spent = intervals.total(collecting)
    share = share_of(span, spent)
    longest = _longest(events, rows)
    if int(events.ints("dur_ns")[longest]) < MIN_GC_NS.value or not spent:
        return None, Judged(code="H-07", verdict="clean")
    step = span_words(span, share)
    found = finding(
        "H-07", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="gc",
        where=collecting, whole_ns=span.step_ns,
        title=Words(
            f"{counted(int(rows.sum()), 'garbage collection stops', 'garbage collections stop')} the host for "
            f"{per_step(span, spent)} of {step.en}",
            f"{step.zh}中 {int(rows.sum())} 次垃圾回收使 Host 停顿 {per_step(span, spent)}（{format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("collecting, per step", "垃圾回收（每步）"), value=spent / max(1, span.steps), unit="ns",
                where=f"host_events of kind gc ({int(rows.sum())}), union",
            ),
            Evidence(
                name=Words("longest collection", "最长的一次"), value=int(events.ints("dur_ns")[longest]), unit="ns",
                where=f"{events.text('name')[longest]}, thread {_thread(events, longest)}",
                start_ns=int(events.ints("start_ns")[longest]),
            ),
            *_line_of(trace, events, longest),
        ],
        vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_bands(collecting),
        formula="union of the collections / length of the steps",
    )  # fmt: skip
    return found, Judged(code="H-07", verdict="found")


def _in_python(trace: Trace, where: IntervalSet) -> list[Evidence]:
    """The Python calls that take most of some time themselves, where they were recorded."""
    told = told_calls(trace, where)
    if not told:
        return []
    return [
        Evidence(
            name=Words("Python calls that take most of it", "耗时最多的 Python 调用"), value=told,
            where="python_calls: time of their own",
        )
    ]  # fmt: skip


def _line_of(trace: Trace, events: Table, row: int) -> list[Evidence]:
    """The line of Python in which an event happened, where it is known."""
    one = np.array([row])
    line = around(trace, events.ints("thread")[one], events.ints("start_ns")[one]).line[0]
    if line is None:
        return []
    return [
        Evidence(
            name=Words("line of Python in which it ran", "触发时所在的 Python 代码行"), value=line,
            where="python_calls or the call stack of the operator",
        )
    ]  # fmt: skip


def driver_memory(trace: Trace, span: Span) -> Verdict:
    """K-04: the allocator returns to the driver inside the step."""
    calls = trace[RUNTIME_CALLS]
    if not len(calls):
        return None, Judged(code="K-04", verdict="not_judged", reason=no_calls(trace))
    rows = is_memory(calls)
    calling = span.clip(union_of(calls, rows))
    spent = intervals.total(calling)
    share = share_of(span, spent)
    if share < MIN_SHARE_RATIO.value:
        return None, Judged(code="K-04", verdict="clean")
    longest = _longest(calls, rows)
    api = calls.text("api")[longest]
    step = span_words(span, share)
    found = finding(
        "K-04", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="driver memory",
        where=calling, whole_ns=span.step_ns,
        title=Words(
            f"{counted(int(rows.sum()), 'driver call', 'driver calls')} for memory "
            f"{'takes' if int(rows.sum()) == 1 else 'take'} {per_step(span, spent)} of {step.en}",
            f"{step.zh}中 {int(rows.sum())} 次驱动内存申请或释放占用 {per_step(span, spent)}（{format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("driver memory calls, per step", "驱动内存调用（每步）"), value=spent / max(1, span.steps),
                unit="ns", where=f"runtime_calls: {int(rows.sum())} calls, union",
            ),
            Evidence(
                name=Words("longest call", "最长的一次"), value=int(calls.ints("dur_ns")[longest]), unit="ns",
                where=f"{api}, thread {_thread(calls, longest)}", start_ns=int(calls.ints("start_ns")[longest]),
            ),
        ],
        vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_bands(calling),
        formula="union of the driver's memory calls / length of the steps",
    )  # fmt: skip
    return found, Judged(code="K-04", verdict="found")


def no_calls(trace: Trace) -> Words:
    """Why host calls cannot be judged, and what would collect them."""
    if trace.meta.device.kind == "npu":
        return Words(
            "the trace holds no host API calls; collect with profiler_level=torch_npu.profiler.ProfilerLevel.Level1 "
            "and keep trace_view.json or ascend_pytorch_profiler_*.db",
            "数据中没有 Host API 调用；请以 profiler_level=torch_npu.profiler.ProfilerLevel.Level1 采集，并保留 "
            "trace_view.json 或 ascend_pytorch_profiler_*.db",
        )
    if trace.meta.device.kind == "cpu":
        return Words("the model runs on the host itself: no device to wait for", "模型运行在 Host 上：没有设备可等待")
    return Words(
        "the trace holds no runtime calls; profile with ProfilerActivity.CPU beside the device's activity",
        "数据中没有 runtime 调用；采集时请同时开启 ProfilerActivity.CPU",
    )


def _compiled_ops(trace: Trace, calls: Table, rows: Bools) -> str:
    """Names of the operators around some calls, the most frequent first; empty when the queue was not recorded."""
    events = trace[HOST_EVENTS]
    queue = np.flatnonzero(events.text("kind").equals("dequeue") & (events.ints("start_ns") != NULL))
    if not len(queue):
        return ""
    starts, ends, threads = events.ints("start_ns")[queue], events.ends_ns()[queue], events.ints("thread")[queue]
    names = events.text("name")
    seen: Counter[str] = Counter()
    picked = np.flatnonzero(rows)
    for thread in np.unique(calls.ints("thread")[picked]).tolist():
        mine = np.flatnonzero(threads == thread)
        at = calls.ints("start_ns")[picked[calls.ints("thread")[picked] == thread]]
        inner = intervals.enclosing(starts[mine], ends[mine], at)
        for index in inner[inner >= 0].tolist():
            seen[(names[int(queue[mine[index]])] or "").partition("@")[2] or "?"] += 1
    return ", ".join(f"{name} x{count}" for name, count in seen.most_common(8))


def _spent(table: Table, rows: Bools) -> int:
    dur = table.ints("dur_ns")[rows]
    return int(dur[dur != NULL].sum())


def _longest(table: Table, rows: Bools) -> int:
    """Row with the longest duration among some rows (at least one)."""
    dur = np.where(rows, table.ints("dur_ns"), NULL)
    return int(np.argmax(dur))


def _thread(table: Table, row: int) -> int | None:
    thread = int(table.ints("thread")[row])
    return None if thread == NULL else thread


def _bands(union: IntervalSet) -> tuple[tuple[int, int], ...]:
    top = np.sort(np.argsort(union.starts - union.ends, kind="stable")[:MAX_BANDS])
    return tuple((int(union.starts[i]), int(union.ends[i])) for i in top)
