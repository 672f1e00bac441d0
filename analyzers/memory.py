"""Memory of one rank: peaks per component, reserved against allocated, growth over steps, and the curve."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._memory_trend import steps_table, trend_of, unused_of
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import membership, step_windows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.specs import spec_for
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Severity, Words
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import MEMORY, MEMORY_BLOCKS, MODULE_MEMORY
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_quantity, format_range, format_ratio

NAME: Final = "memory"

MAX_GAP_RATIO: Final = threshold("K-01", "max_gap_ratio")
MAX_GROWTH_BYTES: Final = threshold("K-02", "max_growth_bytes")
MIN_STEPS: Final = threshold("K-02", "min_steps")
MAX_LIBRARY_RATIO: Final = threshold("K-06", "max_library_ratio")
TIMELINE_POINTS: Final = 2000
"""Points per component in the report. Status: assumed (more than a page has pixels)."""

FRAMEWORK: Final = ("PTA", "TorchNPU", "CUDA", "HIP", "NPU")
"""Names of the framework's allocator, the first that is there counts."""
_PROCESS: Final = "APP"
_LIBRARY: Final = "HCCL"


_ON_HOST: Final = Words(
    "the model runs on the host itself: no device memory to look at", "模型运行在 Host 上：没有设备内存可供分析"
)


@dataclass(frozen=True, kw_only=True)
class Component:
    """Samples of one component in order of time."""

    name: str
    rows: Ints
    time_ns: Ints
    allocated: Ints
    reserved: Ints

    def peak(self, values: Ints) -> tuple[int, int] | None:
        """Largest value and its time, None when no value is known."""
        known = np.flatnonzero(values != NULL)
        if not len(known):
            return None
        at = int(known[np.argmax(values[known])])
        return int(values[at]), int(self.time_ns[at])


@analyzer(name=NAME, needs=[MEMORY], order=85, section="memory")
def memory(trace: Trace) -> Result:
    """Peaks, fragmentation (K-01), growth (K-02) and the communication library's memory (K-06).

    Reads:
        memory: time_ns, component, allocated_bytes, reserved_bytes; module_memory, memory_blocks, steps.
    """
    parts = components(trace)
    own = framework(parts)
    verdicts = (_fragmentation(trace, own), _growth(trace, own), _library(trace))
    tables = [_peaks(parts), _timeline(parts)]
    if (by_step := _by_step(trace, own)) is not None:
        tables.append(by_step)
    if (modules := _modules(trace)) is not None:
        tables.append(modules)
    if (blocks := _largest_blocks(trace)) is not None:
        tables.append(blocks)
    return Result(
        findings=tuple(found for found, _ in verdicts if found is not None),
        metrics=_metrics(trace, parts, own),
        tables=tuple(tables),
        judged=tuple(judged for _, judged in verdicts),
    )


def components(trace: Trace) -> tuple[Component, ...]:
    table = trace[MEMORY]
    names, time = table.text("component"), table.ints("time_ns")
    parts = []
    for code in np.unique(names.codes[names.codes >= 0]).tolist():
        rows = np.flatnonzero((names.codes == code) & (time != NULL))
        rows = rows[np.argsort(time[rows], kind="stable")]
        parts.append(
            Component(
                name=names.values[code], rows=rows, time_ns=time[rows],
                allocated=table.ints("allocated_bytes")[rows], reserved=table.ints("reserved_bytes")[rows],
            )
        )  # fmt: skip
    return tuple(parts)


def framework(parts: Sequence[Component]) -> Component | None:
    """The component of the framework's device allocator, None when the trace has none."""
    by_name = {part.name: part for part in parts}
    return next((by_name[name] for name in FRAMEWORK if name in by_name), None)


def capacity_of(trace: Trace) -> int | None:
    """Size of the device's memory in bytes: as the trace tells it, else of the named device."""
    device = trace.meta.device
    if device.memory_bytes:
        return device.memory_bytes
    spec = spec_for(device)
    size = spec.memory_bytes.value if spec else None
    return None if size is None else int(size)


def _fragmentation(trace: Trace, own: Component | None) -> tuple[Finding | None, Judged]:
    """K-01: memory that the allocator holds but that was never in use at once."""
    code = "K-01"
    reserved = None if own is None else own.peak(own.reserved)
    allocated = None if own is None else own.peak(own.allocated)
    if own is None or reserved is None or allocated is None or reserved[0] <= 0:
        reason = Words(
            "no samples of the framework's device allocator; profile with profile_memory=True",
            "没有框架设备内存分配器的采样；请以 profile_memory=True 采集",
        )
        if trace.meta.device.kind == "cpu":
            reason = _ON_HOST
        return None, Judged(code=code, verdict="not_judged", reason=reason)
    gap = reserved[0] - allocated[0]
    capacity = capacity_of(trace)
    ratio = gap / (capacity or reserved[0])
    of = Words("of device memory", "占设备内存") if capacity else Words("of what is reserved", "占已预留内存")
    if ratio <= MAX_GAP_RATIO.value:
        return None, Judged(
            code=code, verdict="clean",
            reason=Words(f"{format_ratio(max(0.0, ratio))} {of.en}", f"{of.zh} {format_ratio(max(0.0, ratio))}"),
        )  # fmt: skip
    evidence = [
        Evidence(
            name=Words("peak reserved", "已预留峰值"), value=reserved[0], unit="bytes",
            where=f"memory, component {own.name}", start_ns=reserved[1],
        ),
        Evidence(
            name=Words("peak allocated", "已分配峰值"), value=allocated[0], unit="bytes",
            where=f"memory, component {own.name}", start_ns=allocated[1],
        ),
        Evidence(name=Words("reserved and never in use", "已预留但从未使用"), value=gap, unit="bytes", where=of.en),
    ]  # fmt: skip
    if capacity:
        evidence.append(
            Evidence(
                name=Words("device memory", "设备内存"), value=capacity, unit="bytes", where="device specification"
            )
        )
    found = finding(
        code, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=None, subject="fragmentation", evidence=evidence,
        title=Words(
            f"The allocator holds {format_quantity(gap, 'bytes')} more than was in use at any time of the capture "
            f"({format_ratio(ratio)} {of.en})",
            f"分配器比采集期间的实际使用峰值多占 {format_quantity(gap, 'bytes')}（{of.zh} {format_ratio(ratio)}）",
        ),
        vendor=trace.meta.device.kind,
        formula="peak reserved - peak allocated" + ("" if capacity else "; size of device memory unknown here"),
        severity=Severity.MEDIUM if capacity else Severity.LOW,
    )  # fmt: skip
    return found, Judged(code=code, verdict="found")


def _growth(trace: Trace, own: Component | None) -> tuple[Finding | None, Judged]:
    """K-02: the floor of allocated memory rises with each step."""
    code = "K-02"
    windows = step_windows(trace)
    floors = floors_of(trace, own, len(windows))
    least = MIN_STEPS.value
    if own is None or len(floors) < least:
        reason = Words(
            f"a trend needs memory samples in at least {least} steps (profile_memory=True, schedule active >= {least})",
            f"判断趋势至少需要 {least} 步的内存采样（profile_memory=True，schedule active >= {least}）",
        )
        if own is None and trace.meta.device.kind == "cpu":
            reason = _ON_HOST
        return None, Judged(code=code, verdict="not_judged", reason=reason)
    steps = np.diff([floor for floor, _ in floors])
    trend = trend_of(np.array([floor for floor, _ in floors], float), np.arange(len(floors)))
    assert trend is not None
    slope = trend.slope
    if slope < MAX_GROWTH_BYTES.value or bool((steps <= 0).any()):
        return None, Judged(code=code, verdict="clean")
    evidence = [
        Evidence(
            name=Words(f"least allocated in step {i + 1} of {len(floors)}", f"第 {i + 1}/{len(floors)} 步的最低已分配"),
            value=floors[i][0], unit="bytes", where=f"memory, component {own.name}", start_ns=floors[i][1],
        )
        for i in (0, len(floors) - 1)
    ]  # fmt: skip
    evidence.insert(
        0,
        Evidence(
            name=Words("growth per step", "每步增长"), value=slope, unit="bytes",
            where=f"median slope of the least allocated memory between all pairs of {len(floors)} steps",
        ),
    )  # fmt: skip
    if trend.low is not None and trend.high is not None:
        evidence.insert(
            1,
            Evidence(
                name=Words("range of the growth (95 %)", "每步增长的区间（95 %）"),
                value=format_range(format_quantity(trend.low, "bytes"), format_quantity(trend.high, "bytes")),
                where="by the ranks of the slopes (Sen)",
            ),
        )  # fmt: skip
    found = finding(
        code, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=None, subject="growth", evidence=evidence,
        title=Words(
            f"Allocated memory grows by {format_quantity(slope, 'bytes')} per step over {len(floors)} steps without "
            "falling back",
            f"已分配内存在 {len(floors)} 步内每步增长 {format_quantity(slope, 'bytes')}，且未回落",
        ),
        vendor=trace.meta.device.kind, formula="median slope of the steps' least allocated memory (Theil-Sen)",
    )  # fmt: skip
    return found, Judged(code=code, verdict="found")


def _by_step(trace: Trace, own: Component | None) -> ResultTable | None:
    if own is None:
        return None
    windows = step_windows(trace)
    floors = floors_of(trace, own, len(windows))
    trend = trend_of(np.array([floor for floor, _ in floors], float), np.arange(len(floors)))
    of = membership(trace, trace[MEMORY], windows)[own.rows]
    return steps_table(own, of, [windows.step_id(i) for i in range(len(windows))], trend)


def floors_of(trace: Trace, own: Component | None, steps: int) -> list[tuple[int, int]]:
    """Least allocated memory of each step and its time, for steps that have samples."""
    if own is None:
        return []
    of = membership(trace, trace[MEMORY])[own.rows]
    floors = []
    for step in range(steps):
        inside = np.flatnonzero((of == step) & (own.allocated != NULL))
        if len(inside):
            at = int(inside[np.argmin(own.allocated[inside])])
            floors.append((int(own.allocated[at]), int(own.time_ns[at])))
    return floors


def _library(trace: Trace) -> tuple[Finding | None, Judged]:
    """K-06: buffers of the communication library."""
    code = "K-06"
    modules = trace[MODULE_MEMORY]
    rows = np.flatnonzero(
        modules.text("component").equals(_LIBRARY) & (modules.ints("reserved_bytes") != NULL)
    )  # fmt: skip
    if not len(rows):
        reason = Words(
            "no memory by driver component (npu_module_mem.csv; profile_memory=True on an NPU)",
            "没有按驱动组件统计的内存（npu_module_mem.csv；NPU 上 profile_memory=True）",
        )
        if trace.meta.device.kind == "cpu":
            reason = _ON_HOST
        return None, Judged(code=code, verdict="not_judged", reason=reason)
    at = int(rows[np.argmax(modules.ints("reserved_bytes")[rows])])
    held = int(modules.ints("reserved_bytes")[at])
    capacity = capacity_of(trace)
    if capacity is None:
        reason = Words(
            f"HCCL holds {format_quantity(held, 'bytes')}; the size of device memory is not in this data",
            f"HCCL 占用 {format_quantity(held, 'bytes')}；数据中没有设备内存容量",
        )
        return None, Judged(code=code, verdict="not_judged", reason=reason)
    ratio = held / capacity
    if ratio <= MAX_LIBRARY_RATIO.value:
        return None, Judged(code=code, verdict="clean")
    found = finding(
        code, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=None, subject="library buffers",
        title=Words(
            f"HCCL holds {format_quantity(held, 'bytes')}, {format_ratio(ratio)} of device memory",
            f"HCCL 占用 {format_quantity(held, 'bytes')}，占设备内存 {format_ratio(ratio)}",
        ),
        evidence=[
            Evidence(
                name=Words("memory of HCCL", "HCCL 内存"), value=held, unit="bytes",
                where="module_memory, component HCCL", start_ns=int(modules.ints("time_ns")[at]),
            ),
            Evidence(
                name=Words("device memory", "设备内存"), value=capacity, unit="bytes", where="device specification",
            ),
            Evidence(
                name=Words("communication groups seen", "可见的通信域"), value=len(trace.meta.groups), unit="count",
                where="metadata; each takes 2 x HCCL_BUFFSIZE",
            ),
        ],
        vendor=trace.meta.device.kind, severity=Severity.MEDIUM, formula="peak of the component / device memory",
    )  # fmt: skip
    return found, Judged(code=code, verdict="found")


def _peaks(parts: Sequence[Component]) -> ResultTable:
    reserved = [part.peak(part.reserved) for part in parts]
    allocated = [part.peak(part.allocated) for part in parts]
    unused = [unused_of(part) for part in parts]
    return result_table(
        "memory-peaks",
        Words("Memory peaks", "内存峰值"),
        (
            Col("component", "Component", "组件", [part.name for part in parts]),
            Col("peak_reserved_bytes", "Peak reserved", "已预留峰值", [p and p[0] for p in reserved], "bytes"),
            Col("peak_allocated_bytes", "Peak allocated", "已分配峰值", [p and p[0] for p in allocated], "bytes"),
            Col(
                "gap_bytes",
                "Reserved and never in use",
                "已预留但从未使用",
                [r[0] - a[0] if r and a and r[0] >= a[0] else None for r, a in zip(reserved, allocated, strict=True)],
                "bytes",
            ),
            Col("unused_at_peak_bytes", "Unused when most is reserved", "已预留峰值时未使用",
                [u and u.at_peak_bytes for u in unused], "bytes"),
            Col("unused_ratio", "Unused, mean over time", "平均未使用比例", [u and u.mean_ratio for u in unused],
                "ratio"),
            Col("peak_at_ns", "Peak at", "峰值时间", [p and p[1] for p in reserved]),
            Col("samples", "Samples", "采样数", [len(part.rows) for part in parts], "count"),
        ),
        note=Words(
            "PTA, CUDA: the framework's allocator. APP: the whole process as the driver sees it; what it holds beyond "
            "the allocator is the context, libraries and communication buffers.",
            "PTA、CUDA：框架分配器。APP：驱动视角的整个进程；超出分配器的部分为上下文、库与通信缓冲区。",
        ),
    )  # fmt: skip


def _timeline(parts: Sequence[Component]) -> ResultTable:
    kept = [(part, thinned(part)) for part in parts]
    return result_table(
        "memory-timeline",
        Words("Memory over time", "内存曲线"),
        (
            Col("component", "Component", "组件", [part.name for part, rows in kept for _ in range(len(rows))]),
            Col("time_ns", "Time", "时间", _joined([part.time_ns[rows] for part, rows in kept])),
            Col("allocated_bytes", "Allocated", "已分配", _joined([p.allocated[rows] for p, rows in kept]), "bytes"),
            Col("reserved_bytes", "Reserved", "已预留", _joined([p.reserved[rows] for p, rows in kept]), "bytes"),
        ),
        note=Words(
            f"At most {TIMELINE_POINTS} points per component; the extremes of each stretch are kept.",
            f"每个组件至多 {TIMELINE_POINTS} 个点，保留各区段的极值。",
        ),
    )


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def thinned(part: Component, points: int = TIMELINE_POINTS) -> Ints:
    """Indexes of at most `points` samples: first and last, and the extremes of each of equally long stretches."""
    count = len(part.rows)
    if count <= points:
        return np.arange(count)
    stretches = max(1, (points - 2) // 4)
    bounds = np.linspace(0, count, stretches + 1).astype(np.int64)
    kept = [np.array([0, count - 1], np.int64)]
    for values in (part.allocated, part.reserved):
        for pick, fill in ((np.argmax, NULL), (np.argmin, np.iinfo(np.int64).max)):
            filled = np.where(values == NULL, fill, values)
            kept.append(
                np.array(
                    [low + int(pick(filled[low:high])) for low, high in itertools.pairwise(bounds.tolist())],
                    np.int64,
                )
            )
    return np.unique(np.concatenate(kept))


def _modules(trace: Trace) -> ResultTable | None:
    """Driver components over the capture: first, least and most, and how much each grew."""
    table = trace[MODULE_MEMORY]
    names, reserved, time = table.text("component"), table.ints("reserved_bytes"), table.ints("time_ns")
    found: list[tuple[str, Ints]] = []
    for code in np.unique(names.codes[names.codes >= 0]).tolist():
        rows = np.flatnonzero((names.codes == code) & (reserved != NULL))
        values = reserved[rows[np.argsort(time[rows], kind="stable")]]
        if len(values) and int(values.max()) > 0:
            found.append((names.values[code], values))
    if not found:
        return None
    found.sort(key=lambda item: -int(item[1].max()))
    capacity = capacity_of(trace)
    return result_table(
        "memory-modules",
        Words("Memory by driver component", "按驱动组件统计的内存"),
        (
            Col("component", "Component", "组件", [name for name, _ in found]),
            Col("peak_reserved_bytes", "Peak", "峰值", [int(values.max()) for _, values in found], "bytes"),
            Col("capacity_ratio", "Of device memory", "占设备内存",
                [None if capacity is None else int(values.max()) / capacity for _, values in found], "ratio"),
            Col("least_reserved_bytes", "Lowest", "最低", [int(values.min()) for _, values in found], "bytes"),
            Col("grown_bytes", "Last less first", "末次减首次",
                [int(values[-1] - values[0]) for _, values in found], "bytes"),
            Col("samples", "Samples", "采样数", [len(values) for _, values in found], "count"),
        ),
    )  # fmt: skip


def _largest_blocks(trace: Trace) -> ResultTable | None:
    blocks = trace[MEMORY_BLOCKS]
    size = blocks.ints("size_bytes")
    known = np.flatnonzero(size != NULL)
    if not len(known):
        return None
    top = known[np.argsort(-size[known], kind="stable")[:20]]
    chosen = blocks.select(top)
    alloc, free = chosen.ints("alloc_ns"), chosen.ints("free_ns")
    return result_table(
        "memory-blocks",
        Words("Largest blocks", "最大的内存块"),
        (
            Col("name", "Operator", "算子", chosen.text("name")),
            Col("size_bytes", "Size", "大小", chosen.ints("size_bytes"), "bytes"),
            Col("alloc_ns", "Allocated at", "分配时间", alloc),
            Col("held_ns", "Held", "持有时长", np.where((alloc == NULL) | (free == NULL), NULL, free - alloc), "ns"),
        ),
        note=Words(
            "Unknown times: the block lived before or beyond the capture.",
            "时间未知：该内存块在采集前已分配或采集后才释放。",
        ),
    )


def _metrics(trace: Trace, parts: Sequence[Component], own: Component | None) -> tuple[Metric, ...]:
    rank = trace.meta.rank
    metrics = []
    reserved = allocated = None
    if own is not None:
        reserved, allocated = own.peak(own.reserved), own.peak(own.allocated)
        metrics += [
            Metric(
                name="memory_peak_reserved_bytes", value=None if reserved is None else reserved[0], unit="bytes",
                better="lower", rank=rank,
            ),
            Metric(
                name="memory_peak_allocated_bytes", value=None if allocated is None else allocated[0], unit="bytes",
                better="lower", rank=rank,
            ),
        ]  # fmt: skip
    process = next((part for part in parts if part.name == _PROCESS), None)
    whole = None if process is None else process.peak(process.reserved)
    if whole is not None and reserved is not None:
        metrics.append(
            Metric(
                name="memory_outside_framework_bytes", value=max(0, whole[0] - reserved[0]), unit="bytes",
                better="lower", rank=rank,
            )
        )  # fmt: skip
    return tuple(metrics)
