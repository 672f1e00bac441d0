"""Tables of the finder of fused operators: its candidates, and repeated kernels that no fused operator is known for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._fusion_calls import CallPair
from ascend_perf.analyzers._fusions import Candidate, lengths_ns, ordered
from ascend_perf.analyzers._idle import device_span, idle_in
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._mined import Mined
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Cell, Finding, ResultTable, Words
from ascend_perf.model.table import Ints
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.find_fusions import Matches

MAX_LAYERS: Final = 3
MAX_FRAME: Final = 120
"""A frame of a call stack is cut after this many characters."""

_MODULE: Final = "nn.Module: "
_NUMBER: Final = re.compile(r"_\d+$")
_LIBRARY: Final = re.compile(r"site-packages/torch|torch/nn|torch/_|<built-in|torch_npu/")


def candidates_table(
    time: KernelTime, items: Sequence[Candidate], calls: Sequence[CallPair], found: Mapping[str, Finding]
) -> ResultTable:
    """One row per fused operator: how often, its time, what goes at most, the API and whether it holds here."""
    idle = idle_in(time.trace, device_span(time.windows)) if items else intervals.EMPTY
    rows = [_row(time, item, idle, found) for item in ordered(items, time)]
    rows += [_call_row(time, pair) for pair in calls]
    titles = [
        ("fusion", "Sequence", "序列", "none"), ("row", "Row", "条目", "none"),
        ("api", "Fused API", "融合 API", "none"), ("state", "State", "状态", "none"),
        ("count", "Times per step", "每步次数", "count"), ("kernels", "Kernels", "Kernel 数", "count"),
        ("time_ns", "Time per step", "每步耗时", "ns"),
        ("saved_ns", "Saved at most", "至多可省", "ns"), ("launches", "Launches saved", "减少的下发次数", "count"),
        ("idle_ns", "Idle inside (H-01, H-03)", "序列内空闲（见 H-01、H-03）", "ns"),
        ("gradient", "Gradient", "反向", "none"), ("layers", "Layers", "所在层", "none"),
        ("start_ns", "First at", "首次时刻", "none"),
    ]  # fmt: skip
    columns = [
        Col(name, en, zh, [row[at] for row in rows], unit)  # type: ignore[arg-type] # units of the list above
        for at, (name, en, zh, unit) in enumerate(titles)
    ]
    return result_table(
        "fusion-candidates", Words("Fusion candidates", "可融合的算子序列"), columns,
        Words(
            "Each kernel belongs to one sequence. Rows in the state \"finding\" are findings; the time of others is "
            "counted by the analyzers of their rows, if at all.",
            "每个 Kernel 只属于一个序列。状态为“已报告”的行已计入问题；其余行的耗时由相应条目的分析项计入（如有）。",
        ),
    )  # fmt: skip


def mined_table(time: KernelTime, rows: Sequence[Mined]) -> ResultTable:
    """Repeated sequences of kernels that no fused operator is known for, by what joining them saves."""
    steps = time.steps
    return result_table(
        "repeated-kernels",
        Words("Repeated kernels without a known fused operator", "无已知融合算子的重复 Kernel 序列"),
        [
            Col("types", "Kernels", "Kernel", [" - ".join(name[:60] for name in row.types) for row in rows]),
            Col("length", "Length", "长度", [len(row.types) for row in rows], "count"),
            Col("count", "Times per step", "每步次数", [row.count / steps for row in rows], "count"),
            Col("time_ns", "Time per step", "每步耗时", [row.time_ns / steps for row in rows], "ns"),
            Col("saved_ns", "Saved at most", "至多可省", [row.saved_ns / steps for row in rows], "ns"),
            Col("launches", "Launches saved", "减少的下发次数",
                [row.count * (len(row.types) - 1) / steps for row in rows], "count"),
            Col("bytes", "Round trips saved", "减少的内存往返",
                [None if np.isnan(row.round_trip_bytes) else row.round_trip_bytes / steps for row in rows], "bytes"),
            Col("start_ns", "First at", "首次时刻", [row.start_ns for row in rows]),
            Col("stream", "Stream", "流", [row.stream for row in rows]),
        ],
        Words(
            "Candidates for torch.compile or a kernel of your own. The time is also part of rows C-06 (chains), H-03 "
            "and H-01 (launches): do not add.",
            "可用 torch.compile 或自定义算子融合。该耗时同时包含在 C-06（逐元素链）、H-03、H-01（下发）中，请勿相加。",
        ),
    )  # fmt: skip


def layers_of(trace: Trace, matches: Matches) -> str:
    """Modules around the sequences with how often, or the innermost frame of the model's own code; "" without both."""
    host = matches.host[matches.forward & (matches.host >= 0)]
    if not len(host):
        return ""
    ops, events = trace[HOST_OPS], trace[HOST_EVENTS]
    names = _modules(trace, host) if events.text("name").flags(lambda name: name.startswith(_MODULE)).any() else []
    if not any(names) and ops.has("stack"):
        names = [_frame(text) for text in ops.text("stack").take(host).to_list()]
    counts = Counter(name for name in names if name)
    shown = [f"{name} ({count} x)" for name, count in counts.most_common(MAX_LAYERS)]
    return ", ".join(shown) + (" ..." if len(counts) > MAX_LAYERS else "")


def _modules(trace: Trace, host: Ints) -> list[str]:
    """Class of the innermost module around each operator, "" where there is none."""
    ops, events = trace[HOST_OPS], trace[HOST_EVENTS]
    start, thread = ops.ints("start_ns")[host], ops.ints("thread")[host]
    is_module = events.text("name").flags(lambda name: name.startswith(_MODULE))
    found = [""] * len(host)
    for one in np.unique(thread).tolist():
        rows = np.flatnonzero(is_module & (events.ints("thread") == one) & (events.ints("dur_ns") >= 0))
        at = np.flatnonzero(thread == one)
        inner = intervals.enclosing(events.ints("start_ns")[rows], events.ends_ns()[rows], start[at])
        for place, event in zip(at.tolist(), inner.tolist(), strict=True):
            if event >= 0:
                name = events.text("name")[int(rows[event])] or ""
                found[place] = _NUMBER.sub("", name.removeprefix(_MODULE))[:MAX_FRAME]
    return found


def _frame(stack: str | None) -> str:
    frames = [frame.strip() for frame in (stack or "").splitlines() if frame.strip()]
    own = next((frame for frame in frames if not _LIBRARY.search(frame)), "")
    return own.replace("\\", "/").rsplit("/", 1)[-1][:MAX_FRAME]


def _row(time: KernelTime, item: Candidate, idle: IntervalSet, found: Mapping[str, Finding]) -> list[Cell]:
    trace, matches = time.trace, item.matches
    kernels = trace[KERNELS]
    rows = np.zeros(len(kernels), bool)
    rows[matches.rows] = True
    matched, kept = int(lengths_ns(time, matches).sum()), float(item.kept_ns.sum())
    spent = time.per_step_ns(rows)
    api = item.apis[0] if item.apis else None
    other = item.fusion.elsewhere
    state: str = "finding" if item.fusion.id in found else item.state
    if item.state in ("version", "limits"):
        state = f"needs {item.needs}" if item.state == "version" else f"outside its limits: {item.needs}"
    return [
        item.fusion.id, item.fusion.row, api.name if api else other.code if other else None, state,
        matches.occurrences / time.steps, len(matches.rows) / max(1, matches.occurrences), spent,
        spent * max(0.0, 1 - kept / matched) if matched else 0.0, (len(matches.rows) - len(matches)) / time.steps,
        _idle_ns(time, matches, idle) / time.steps, api.gradient if api else None, layers_of(trace, matches) or None,
        int(kernels.ints("start_ns")[matches.rows].min()),
    ]  # fmt: skip


def _call_row(time: KernelTime, pair: CallPair) -> list[Cell]:
    api = pair.apis[0]
    return [
        pair.fusion.id, pair.fusion.row, api.name, pair.state, pair.count / time.steps, 2.0, pair.time_ns / time.steps,
        pair.bound_ns / time.steps, None, None, api.gradient, None,
        pair.start_ns,
    ]  # fmt: skip


def _idle_ns(time: KernelTime, matches: Matches, idle: IntervalSet) -> int:
    """Time inside the sequences of the forward in which the whole device is idle."""
    kernels = time.trace[KERNELS]
    starts, ends = kernels.ints("start_ns")[matches.rows], kernels.ends_ns()[matches.rows]
    ahead = ~matches.behind
    low = np.minimum.reduceat(np.where(ahead, starts, np.iinfo(np.int64).max), matches.firsts)
    high = np.maximum.reduceat(np.where(ahead, ends, np.iinfo(np.int64).min), matches.firsts)
    good = high > low
    return intervals.total(intervals.intersection(intervals.merged(low[good], high[good]), idle))
