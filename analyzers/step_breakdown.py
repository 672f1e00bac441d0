"""Where each step goes: computing, communication, what they hide of each other, and what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._rdma import completes_rdma
from ascend_perf.analyzers._steps import StepWindows, membership, representative, step_windows, unions_by_step
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Cell, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, COPIES, EXPORTED_STEPS, KERNELS, STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, computes, kernel_classes
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns

SUM_TOLERANCE_NS: Final = 100
"""Sums of exporters may differ by this much. Status: measured (up to 25 ns per step in our traces)."""
ROW_TOLERANCE_NS: Final = 1
"""Durations are cut to 3 decimals of a us: less than this is lost per kernel. Source: format reference, 1.4."""
STAGE_TOLERANCE_NS: Final = 300
"""Stage and Preparing are computed in floats of epoch size, steps of 0.25 us. Source: format reference, 1.7."""

QUANTITIES: Final = (
    "computing", "communication", "overlapped", "communication_not_overlapped", "free", "stage", "bubble", "preparing",
)  # fmt: skip
"""What the exporter states too."""


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """Times of one step in ns, None where the trace does not tell."""

    step_id: int | None
    source: str
    span: int | None = None
    computing: int | None = None
    communication: int | None = None
    overlapped: int | None = None
    communication_not_overlapped: int | None = None
    free: int | None = None
    bubble: int | None = None
    preparing: int | None = None
    copy_not_overlapped: int | None = None
    wait: int | None = None
    """Part of the exposed communication in which the rank waits for a peer."""
    stage: int | None = None
    """The exporter's Stage: span without the bubble."""


@analyzer(name="step-breakdown", needs=(), order=10, section="steps")
def step_breakdown(trace: Trace) -> Result:
    """Split every step by unions of intervals in whole ns, and check the split against the exporter's own.

    Per step with window [t0, t1), C the kernels, N the collectives, M the copies: computing = U(C),
    communication = U(N), overlapped = U(C n N), not overlapped = U(N \\ C), free = (t1 - t0) - U(C u N). Copies
    do not count as busy (Ascend's definition); `copy_not_overlapped` is their part of free.

    Reads:
        steps, kernels, comm_ops, comm_tasks, copies, exported_steps.

    Source:
        rivals-and-methods, method 5.1; format reference, sections 1.7 and 2.6.
    """
    windows = step_windows(trace)
    exported = _exported(trace)
    own = _splits(trace, windows)
    if not own and not exported:
        raise NoData(Words("no steps, kernels or exported step table", "没有 step、Kernel，也没有导出的 step 表"))
    known = [split for split in own if split.computing is not None]
    # Where the events tell nothing of the device, the exporter's figures are the best there are.
    rows = _merged(own, exported)
    has_device = any(split.computing is not None for split in rows)
    tables = [_steps_table(rows, _outside(trace, windows) if has_device else _NO_DEVICE)]
    if known and exported:
        tables.append(_checks_table(trace, windows, known, exported))
    bar = _bar(trace, windows, rows)
    if bar is not None:
        tables.append(bar)
    return Result(metrics=_metrics(trace, rows), tables=tuple(tables))


def _splits(trace: Trace, windows: StepWindows) -> list[StepSplit]:
    kernels, calls = trace[KERNELS], trace[COMM_OPS]
    if not _has_times(kernels):
        # Collectives alone (a copy of communication.json) tell nothing of computing, overlap or idle time.
        communication = unions_by_step(trace, calls, windows=windows)
        is_known = _has_times(calls)
        return [
            StepSplit(
                step_id=windows.step_id(i),
                source="events" if is_known else "host",
                span=windows.span_ns(i) if _has_times(trace[STEPS]) or not is_known else None,
                communication=intervals.total(communication[i]) if is_known else None,
            )
            for i in range(len(windows))
        ]
    computing = unions_by_step(trace, kernels, computes(kernels), windows)
    communication = unions_by_step(trace, calls, windows=windows)
    copies = unions_by_step(trace, trace[COPIES], windows=windows)
    receives = unions_by_step(trace, calls, calls.text("op").equals("receive"), windows)
    host_start = _host_starts(trace, windows)
    waits = _waits(trace)
    splits = []
    for i in range(len(windows)):
        busy = intervals.union(computing[i], communication[i])
        busy_ns, computing_ns, communication_ns = (
            intervals.total(part) for part in (busy, computing[i], communication[i])
        )
        first = int(busy.starts[0]) if len(busy.starts) else None
        bubble = intervals.total(intervals.difference(receives[i], computing[i]))
        splits.append(
            StepSplit(
                step_id=windows.step_id(i),
                source="events",
                span=windows.span_ns(i),
                computing=computing_ns,
                communication=communication_ns,
                overlapped=computing_ns + communication_ns - busy_ns,
                communication_not_overlapped=busy_ns - computing_ns,
                free=windows.span_ns(i) - busy_ns,
                bubble=bubble,
                stage=windows.span_ns(i) - bubble,
                preparing=None if first is None or host_start[i] is None else max(0, first - int(host_start[i] or 0)),
                copy_not_overlapped=intervals.total(intervals.difference(copies[i], busy)),
                wait=None if waits is None else _exposed_wait(waits, communication[i], computing[i]),
            )
        )
    return splits


def _has_times(table: Table) -> bool:
    return len(table) > 0 and bool((table.ints("start_ns") != NULL).any())


def _host_starts(trace: Trace, windows: StepWindows) -> list[int | None]:
    """Start of the host's step marker per window, where both carry the same number (or there is only one)."""
    steps = trace[STEPS]
    by_id = dict(zip(steps.ints("step_id").tolist(), steps.ints("host_start_ns").tolist(), strict=True))
    starts = [by_id.get(step, NULL) for step in windows.ids.tolist()]
    return [None if start == NULL else start for start in starts]


def _exported(trace: Trace) -> list[StepSplit]:
    table = trace[EXPORTED_STEPS]
    device, own_device = table.ints("device"), trace.meta.device.device_id
    rows = []
    for row in range(len(table)):
        if own_device is not None and device[row] != NULL and device[row] != own_device and len(table) > 1:
            continue
        cell = {name: _known(int(table.ints(f"{name}_ns")[row])) for name in QUANTITIES}
        parts = [cell["computing"], cell["communication_not_overlapped"], cell["free"]]
        # The exporter's identity gives the span to the ns; Stage is quantised to 0.25 us in text exports.
        span = None if None in parts else sum(part or 0 for part in parts)
        if span is None and cell["stage"] is not None and cell["bubble"] is not None:
            span = cell["stage"] + cell["bubble"]
        rows.append(
            StepSplit(
                step_id=_known(int(table.ints("step_id")[row])),
                source="exporter",
                span=span,
                **cell,
            )
        )
    return rows


def _known(value: int) -> int | None:
    return None if value == NULL else value


def _merged(own: list[StepSplit], exported: list[StepSplit]) -> list[StepSplit]:
    """Our split of each step; the exporter's where the events say nothing."""
    theirs = {split.step_id: split for split in exported}
    if len(own) == 1 and len(exported) == 1 and own[0].computing is None:
        return [replace(exported[0], step_id=exported[0].step_id if own[0].step_id is None else own[0].step_id)]
    rows = [
        theirs.get(split.step_id, split)
        if split.computing is None
        else _with_preparing(split, theirs.get(split.step_id))
        for split in own
    ]
    numbered = {split.step_id for split in own}
    if own and numbered == {None}:
        return rows
    return rows + [split for split in exported if split.step_id not in numbered]


def _with_preparing(split: StepSplit, exported: StepSplit | None) -> StepSplit:
    """The exporter's preparing where the host's start of the step, of which ours is made, was not exported."""
    if split.preparing is not None or exported is None:
        return split
    return replace(split, preparing=exported.preparing)


def _us(values: list[int | None]) -> tuple[Cell, ...]:
    return tuple(None if value is None else value / 1000 for value in values)


_NO_DEVICE: Final = Words(
    "This profile holds no device events: only the spans of the host's steps are known.",
    "该数据不含设备侧事件，只能给出 Host 侧 step 的时长。",
)


def _outside(trace: Trace, windows: StepWindows) -> Words | None:
    """Device work that lies in no step (the tail of asynchronous launches, or before the first step), said aloud."""
    count = total_ns = 0
    for spec in (KERNELS, COMM_OPS):
        rows = membership(trace, trace[spec], windows) < 0
        count += int(rows.sum())
        total_ns += int(trace[spec].ints("dur_ns")[rows].sum())
    if not count:
        return None
    return Words(
        f"{count} kernels and collectives ({format_ns(total_ns)}) run before the first or after the last step "
        "and are in no row: the host marks its steps ahead of the device.",
        f"另有 {count} 个 Kernel 与集合通信（{format_ns(total_ns)}）在首个 step 之前或末个 step 之后执行，"
        "未计入任何一行：Host 的 step 标记早于设备执行。",
    )


def _steps_table(rows: list[StepSplit], note: Words | None) -> ResultTable:
    def times(name: str) -> tuple[Cell, ...]:
        return _us([getattr(row, name) for row in rows])

    return result_table(
        "steps",
        Words("Steps", "各 step 耗时拆解"),
        [
            Col("step_id", "Step", "step", [row.step_id for row in rows]),
            Col("span_us", "Step time", "单步耗时", times("span"), "us"),
            Col("computing_us", "Computing", "计算", times("computing"), "us"),
            Col("communication_us", "Communication", "通信", times("communication"), "us"),
            Col("overlapped_us", "Overlapped", "计算通信掩盖（重叠）", times("overlapped"), "us"),
            Col(
                "communication_not_overlapped_us",
                "Communication (not overlapped)",
                "未被掩盖的通信",
                times("communication_not_overlapped"),
                "us",
            ),
            Col("free_us", "Free", "空闲（Free）", times("free"), "us"),
            Col("bubble_us", "Bubble", "流水线气泡（Bubble）", times("bubble"), "us"),
            Col("preparing_us", "Preparing", "迭代准备时间", times("preparing"), "us"),
            Col(
                "copy_not_overlapped_us",
                "Copies (not overlapped)",
                "未被掩盖的拷贝",
                times("copy_not_overlapped"),
                "us",
            ),
            Col("wait_us", "Waiting for a peer (not overlapped)", "未被掩盖的等待", times("wait"), "us"),
            Col("source", "From", "来源", [row.source for row in rows]),
        ],
        note,
    )


def _checks_table(trace: Trace, windows: StepWindows, own: list[StepSplit], exported: list[StepSplit]) -> ResultTable:
    kernels_of = np.bincount(
        np.clip(membership(trace, trace[KERNELS], windows), 0, None), minlength=len(windows)
    ).tolist()
    ours_of = {split.step_id: (split, kernels_of[i] if i < len(kernels_of) else 0) for i, split in enumerate(own)}
    if len(own) == 1 and len(exported) == 1:
        ours_of = {exported[0].step_id: (own[0], kernels_of[0])}
    steps: list[Cell] = []
    quantities: list[Cell] = []
    columns: list[list[Cell]] = [[], [], [], []]
    for theirs in exported:
        if theirs.step_id not in ours_of:
            continue
        ours, rows = ours_of[theirs.step_id]
        for name in QUANTITIES:
            left, right = getattr(ours, name), getattr(theirs, name)
            if left is None or right is None:
                continue
            tolerance = max(SUM_TOLERANCE_NS, rows * ROW_TOLERANCE_NS)
            tolerance += STAGE_TOLERANCE_NS if name in ("stage", "preparing") else 0
            steps.append(theirs.step_id)
            quantities.append(name)
            for column, cell in zip(
                columns, (left / 1000, right / 1000, (left - right) / 1000, abs(left - right) <= tolerance), strict=True
            ):
                column.append(cell)
    return result_table(
        "step-checks",
        Words("Our step split against the exporter's", "step 拆解与导出文件的对账"),
        [
            Col("step_id", "Step", "step", steps),
            Col("quantity", "Quantity", "项目", quantities),
            Col("ours_us", "Ours", "本工具", columns[0], "us"),
            Col("exporter_us", "Exporter", "导出文件", columns[1], "us"),
            Col("difference_us", "Difference", "差值", columns[2], "us"),
            Col("holds", "Agrees", "一致", columns[3]),
        ],
        Words(
            "Allowed: 0.1 us, or 1 ns per kernel where that is more (durations are cut to 3 decimals); stage and "
            "preparing 0.3 us more, since the exporter quantises them to 0.25 us.",
            "允许误差：0.1 us，或每个 Kernel 1 ns（时长被截断到 3 位小数），取较大者；stage 与 preparing 再加 0.3 us"
            "（导出工具按 0.25 us 量化）。",
        ),
    )


def _bar(trace: Trace, windows: StepWindows, rows: list[StepSplit]) -> ResultTable | None:
    """Parts of the representative step that add up to its span exactly."""
    at = representative(trace, windows)
    if at is not None and _has_times(trace[KERNELS]):
        parts = _bar_parts(trace, windows, at)
        step = windows.step_id(at)
    else:
        picked = _median_row([row for row in rows if row.computing is not None and row.span])
        if picked is None:
            return None
        step = picked.step_id
        exposed = picked.communication_not_overlapped or 0
        parts = [("computing", picked.computing or 0), ("communication", exposed), ("free", picked.free or 0)]
    whole = sum(time for _, time in parts)
    parts = [(name, time) for name, time in parts if time > 0]
    if not whole:
        return None
    label = "?" if step is None else str(step)
    note = (
        Words("The capture has no step markers: all of it is shown.", "数据中没有 step 标记，展示整个采集区间。")
        if step is None
        else Words(
            f"Step {label}: the median of the steps (the first one left out when there are more than two).",
            f"step {label}：各 step 耗时的中位数（多于两个 step 时不计第一个）。",
        )
    )
    return result_table(
        "step-bar",
        Words("Where the step goes", "单步耗时去向"),
        [
            Col("component", "Part", "组成", [name for name, _ in parts]),
            Col("time_ns", "Time", "耗时", [time for _, time in parts], "ns"),
            Col("share_ratio", "Share of the step", "占单步比例", [time / whole for _, time in parts], "ratio"),
        ],
        note,
    )


def _median_row(rows: list[StepSplit]) -> StepSplit | None:
    ordered = sorted(rows[1:] if len(rows) > 2 else rows, key=lambda row: row.span or 0)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _bar_parts(trace: Trace, windows: StepWindows, at: int) -> list[tuple[str, int]]:
    def union_of(table: Table, rows: Bools | None = None) -> IntervalSet:
        return unions_by_step(trace, table, rows, windows)[at]

    kernels, calls = trace[KERNELS], trace[COMM_OPS]
    parts: list[tuple[str, int]] = []
    covered = EMPTY
    counted = computes(kernels)
    for name, kinds in _computing_rows(kernels):
        rows = kinds & counted
        union = union_of(kernels, rows)
        parts.append((name, intervals.total(intervals.difference(union, covered))))
        covered = intervals.union(covered, union)
    exposed = intervals.difference(union_of(calls), covered)
    waits = _waits(trace)
    if waits is None:
        parts.append(("communication", intervals.total(exposed)))
    else:
        wait_ns = intervals.total(intervals.intersection(exposed, waits))
        parts += [("comm-wait", wait_ns), ("comm-transfer", intervals.total(exposed) - wait_ns)]
    busy = intervals.union(covered, union_of(calls))
    copies = intervals.total(intervals.difference(union_of(trace[COPIES]), busy))
    parts.append(("copy", copies))
    parts.append(("free", windows.span_ns(at) - sum(time for _, time in parts)))
    return parts


def _computing_rows(kernels: Table) -> list[tuple[str, Bools]]:
    """Kernels by the engine they use; where several run at once, the earlier entry keeps the time."""
    core = kernels.text("core")
    everything = np.ones(len(kernels), bool)
    if core.equals("SM").any():
        kinds = kernel_classes(kernels)
        return [
            ("matmul compute", kinds.isin([KernelClass.MATMUL.value, KernelClass.CONV.value])),
            ("attention compute", kinds.equals(KernelClass.ATTENTION.value)),
            ("other compute", everything),
        ]
    if not kernels.has("core"):
        return [("computing", everything)]
    return [
        ("cube", core.isin(["AIC", "MIX_AIC"])),
        ("vector", core.isin(["AIV", "MIX_AIV"])),
        ("aicpu", core.equals("AICPU")),
        ("other compute", everything),
    ]


def _exposed_wait(waits: IntervalSet, communication: IntervalSet, computing: IntervalSet) -> int:
    exposed = intervals.difference(communication, computing)
    if not len(exposed.starts):
        return 0
    inside = intervals.clip(waits, int(exposed.starts[0]), int(exposed.ends[-1]))
    return intervals.total(intervals.intersection(exposed, inside))


def _waits(trace: Trace) -> IntervalSet | None:
    """Union over the calls of their waits for a peer, None when the trace has no sub-tasks.

    A call waits while any of its planes waits and none moves data: a mesh waits for its peers on several planes at
    once, so the waits are a union, and time in which another plane still transfers is transfer.
    """
    tasks = trace[COMM_TASKS]
    kind = tasks.text("kind")
    by_rdma = completes_rdma(tasks)
    is_wait = kind.flags(lambda name: "wait" in name.lower()) & ~by_rdma
    if not is_wait.any():
        return None
    moves = kind.flags(lambda name: any(word in name.lower() for word in ("memcpy", "reduce", "rdma", "write", "read")))
    moves |= by_rdma
    starts, ends = tasks.ints("start_ns"), tasks.ends_ns()
    known = (starts != NULL) & (ends != NULL)
    waiting = intervals.merged(starts[is_wait & known], ends[is_wait & known])
    return intervals.difference(waiting, intervals.merged(starts[moves & known], ends[moves & known]))


def _metrics(trace: Trace, rows: list[StepSplit]) -> tuple[Metric, ...]:
    rank = trace.meta.rank
    used = [row for row in rows if row.span is not None and row.computing != 0] or [
        r for r in rows if r.span is not None
    ]

    def median(name: str) -> float | None:
        values = [getattr(row, name) for row in used if getattr(row, name) is not None]
        return float(np.median(values)) if values else None

    metrics = [Metric(name="step_time", value=median("span"), unit="ns", better="lower", rank=rank)]
    for name in ("computing", "communication_not_overlapped", "free"):
        value = median(name)
        if value is not None:
            better = "none" if name == "computing" else "lower"
            metrics.append(Metric(name=f"{name}_time", value=value, unit="ns", better=better, rank=rank))  # type: ignore[arg-type]
    return tuple(metrics)
