"""Device memory against its size: static share and the loss (K-05), workspaces (K-06), unused memory (K-07)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ascend_perf.analyzers._idle import Cause, idle_of
from ascend_perf.analyzers._repeats import MAX_GAP_NS
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.analyzers.memory import Component, capacity_of, components, floors_of, framework
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, Severity, Words
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import MEMORY, MEMORY_BLOCKS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_quantity, format_ratio

NAME: Final = "memory-headroom"

STATIC_MIN_RATIO: Final = threshold("K-05", "min_static_ratio")
LOSS_MIN_RATIO: Final = threshold("K-05", "min_loss_ratio")
FULL_MIN_RATIO: Final = threshold("K-05", "min_full_ratio")
WORKSPACE_MAX_RATIO: Final = threshold("K-06", "max_workspace_ratio")
UNUSED_MAX_RATIO: Final = threshold("K-07", "min_used_ratio")
STARVED_MIN_RATIO: Final = threshold("K-07", "min_starved_ratio")

_LOSS: Final = re.compile(r"loss|log_?softmax|entropy|logit|nll", re.IGNORECASE)

_WORKSPACE: Final = "WORKSPACE"
_STARVING: Final = (Cause.LAUNCH, Cause.OP, Cause.PYTHON, Cause.NOTHING)
"""Idle time that a larger batch would fill, in short gaps: loading, preprocessing and waiting grow with it or stay."""
NO_CAPACITY: Final = Words(
    "the size of device memory is not in this data", "数据中没有设备内存容量",
)  # fmt: skip
NO_SAMPLES: Final = Words(
    "no samples of the framework's device allocator; profile with profile_memory=True",
    "没有框架设备内存分配器的采样；请以 profile_memory=True 采集",
)


@analyzer(name=NAME, needs=(MEMORY,), order=86, section="memory")
def memory_headroom(trace: Trace) -> Result:
    """Report static memory and losses that fill the device, large workspaces, and memory that is left unused.

    Reads:
        memory: time_ns, component, allocated_bytes, reserved_bytes; memory_blocks: name, size_bytes, alloc_ns, free_ns;
        kernels and host tables (idle time); meta.device.

    Returns:
        Findings K-05 (subjects `static` and `loss`), K-06 (subject `workspace`) and K-07, all without a share: memory
        is no time.
    """
    if trace.meta.device.kind == "cpu":
        return Result()  # the memory of the host is not judged
    capacity = capacity_of(trace)
    parts = components(trace)
    own = framework(parts)
    if capacity is None or own is None:
        reason = NO_SAMPLES if own is None else NO_CAPACITY
        return Result(judged=tuple(Judged(code=code, verdict="not_judged", reason=reason) for code in ("K-05", "K-07")))
    findings: list[Finding] = []
    judged: list[Judged] = []
    for outcome in (
        *_static_and_loss(trace, own, capacity), *_workspace(trace, parts, capacity), *_unused(trace, parts, capacity)
    ):  # fmt: skip
        (findings if isinstance(outcome, Finding) else judged).append(outcome)  # type: ignore[arg-type]
    return Result(findings=tuple(findings), judged=tuple(judged))


def _static_and_loss(trace: Trace, own: Component, capacity: int) -> Iterator[Finding | Judged]:
    made = [found for found in (_static(trace, own, capacity), _loss(trace, capacity)) if found is not None]
    yield from made
    if made:
        yield Judged(code="K-05", verdict="found")
        return
    held = _held(trace, own)
    if held is None:
        yield Judged(code="K-05", verdict="not_judged", reason=NO_SAMPLES)
        return
    of = format_ratio(held[0] / capacity)
    reason = Words(f"{of} of device memory is held through the step", f"贯穿单步的内存占设备内存 {of}")
    yield Judged(code="K-05", verdict="clean", reason=reason)


def _held(trace: Trace, own: Component) -> tuple[int, int] | None:
    """Memory that stays allocated through a step (median of the steps' least), and its time; None without samples."""
    floors = floors_of(trace, own, len(step_windows(trace)))
    if not floors:
        return None
    ranked = sorted(floors)
    return ranked[(len(ranked) - 1) // 2]


def _static(trace: Trace, own: Component, capacity: int) -> Finding | None:
    held = _held(trace, own)
    if held is None or held[0] < STATIC_MIN_RATIO.value * capacity:
        return None
    peak = own.peak(own.reserved)
    is_full = peak is not None and peak[0] >= FULL_MIN_RATIO.value * capacity
    ratio = held[0] / capacity
    return finding(
        "K-05", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=None,
        subject="static", severity=Severity.HIGH if is_full else Severity.MEDIUM,
        title=Words(
            f"{format_quantity(held[0], 'bytes')} stay allocated through the step, {format_ratio(ratio)} of device "
            "memory: weights, gradients and optimizer states",
            f"{format_quantity(held[0], 'bytes')} 贯穿整个单步未释放，占设备内存 {format_ratio(ratio)}："
            "权重、梯度与优化器状态",
        ),
        evidence=[
            Evidence(
                name=Words("least allocated in a step", "单步内最低已分配"), value=held[0], unit="bytes",
                where=f"memory, component {own.name}: median of the steps", start_ns=held[1],
            ),
            _capacity(capacity),
            *(() if peak is None else (_peak(peak, own.name),)),
        ],
        formula="least allocated memory of a step (median) / device memory",
    )  # fmt: skip


def _loss(trace: Trace, capacity: int) -> Finding | None:
    """Blocks of the loss that live at the same time."""
    blocks = trace[MEMORY_BLOCKS]
    size, alloc, free = (blocks.ints(name) for name in ("size_bytes", "alloc_ns", "free_ns"))
    rows = np.flatnonzero(
        blocks.text("name").flags(lambda name: bool(_LOSS.search(name[:200]))) & (size > 0) & (alloc != NULL)
    )
    if not len(rows):
        return None
    last = np.where(free[rows] == NULL, np.iinfo(np.int64).max, free[rows])
    times = np.concatenate((alloc[rows], last))
    change = np.concatenate((size[rows], -size[rows]))
    # Blocks that end when others begin do not live together: releases come first.
    order = np.lexsort((change, times))
    living = np.cumsum(change[order])
    at = int(np.argmax(living))
    most = int(living[at])
    if most < LOSS_MIN_RATIO.value * capacity:
        return None
    top = int(rows[np.argmax(size[rows])])
    name = (blocks.text("name")[top] or "?")[:80]
    return finding(
        "K-05", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=None,
        subject="loss", severity=Severity.MEDIUM,
        title=Words(
            f"Tensors of the loss hold {format_quantity(most, 'bytes')} at once, {format_ratio(most / capacity)} of "
            f"device memory, most of it in {name}",
            f"loss 相关张量同时占用 {format_quantity(most, 'bytes')}，占设备内存 {format_ratio(most / capacity)}，"
            f"最大的来自 {name}",
        ),
        evidence=[
            Evidence(
                name=Words("living at once", "同时占用"), value=most, unit="bytes",
                where="memory_blocks whose operator is part of the loss", start_ns=int(times[order][at]),
            ),
            Evidence(
                name=Words("largest block", "最大的内存块"), value=int(size[top]), unit="bytes",
                where=f"memory_blocks: {name}", start_ns=int(alloc[top]),
            ),
            _capacity(capacity),
        ],
        formula="largest sum of living blocks of the loss / device memory",
    )  # fmt: skip


def _workspace(trace: Trace, parts: Sequence[Component], capacity: int) -> Iterator[Finding | Judged]:
    """K-06 for workspaces; the communication library's part of that row is judged by the memory analyzer."""
    part = next((part for part in parts if part.name == _WORKSPACE), None)
    peak = None if part is None else part.peak(part.reserved)
    if part is None or peak is None or peak[0] <= WORKSPACE_MAX_RATIO.value * capacity:
        return
    ratio = peak[0] / capacity
    yield finding(
        "K-06", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=None,
        subject="workspace", severity=Severity.MEDIUM,
        title=Words(
            f"Workspaces hold {format_quantity(peak[0], 'bytes')}, {format_ratio(ratio)} of device memory",
            f"workspace 占用 {format_quantity(peak[0], 'bytes')}，占设备内存 {format_ratio(ratio)}",
        ),
        evidence=[_peak(peak, part.name), _capacity(capacity)],
        formula="peak of the component / device memory",
    )  # fmt: skip
    yield Judged(code="K-06", verdict="found")


def _unused(trace: Trace, parts: Sequence[Component], capacity: int) -> Iterator[Finding | Judged]:
    """K-07: less than half of the memory was ever reserved, and the device waits for launches."""
    held = [(peak, part.name) for part in parts if part.name != "CPU" and (peak := part.peak(part.reserved))]
    idle = idle_of(trace)
    if not held or idle is None or not idle.span.step_ns:
        reason = NO_SAMPLES if not held else Words("no kernels in the steps", "step 内没有 Kernel")
        yield Judged(code="K-07", verdict="not_judged", reason=reason)
        return
    peak, name = max(held)
    short = idle.gaps.ends - idle.gaps.starts <= MAX_GAP_NS.value
    starved = float(idle.by_gap[[list(Cause).index(cause) for cause in _STARVING]][:, short].sum() / idle.span.step_ns)
    ratio = peak[0] / capacity
    if ratio >= UNUSED_MAX_RATIO.value or starved < STARVED_MIN_RATIO.value:
        reason = Words(
            f"{format_ratio(ratio)} of device memory is reserved at the peak; the device waits for launches "
            f"{format_ratio(starved)} of the step",
            f"已预留内存峰值占设备内存 {format_ratio(ratio)}；设备等待下发占单步 {format_ratio(starved)}",
        )
        yield Judged(code="K-07", verdict="clean", reason=reason)
        return
    yield finding(
        "K-07", analyzer=NAME, trace_rank=trace.meta.rank, vendor=trace.meta.device.kind, share_ratio=None,
        severity=Severity.MEDIUM,
        title=Words(
            f"At most {format_quantity(peak[0], 'bytes')} of {format_quantity(capacity, 'bytes')} are in use "
            f"({format_ratio(ratio)}), while the device waits for launches {format_ratio(starved)} of the step: a "
            "larger batch would fill both",
            f"内存峰值仅 {format_quantity(peak[0], 'bytes')}，占 {format_quantity(capacity, 'bytes')} 的 "
            f"{format_ratio(ratio)}，而设备等待下发占单步 {format_ratio(starved)}：增大 batch 可同时利用两者",
        ),
        evidence=[
            _peak(peak, name), _capacity(capacity),
            Evidence(
                name=Words("idle for want of launches", "等待下发的空闲占比"), value=starved, unit="ratio",
                where="gaps up to 1 ms while the host dispatches or runs Python (rows H-01 to H-03)",
            ),
        ],
        formula="peak of reserved memory / device memory; the idle time is counted by the rows of group H",
    )  # fmt: skip
    yield Judged(code="K-07", verdict="found")


def _peak(peak: tuple[int, int], name: str) -> Evidence:
    return Evidence(
        name=Words("peak reserved", "已预留峰值"), value=peak[0], unit="bytes", where=f"memory, component {name}",
        start_ns=peak[1],
    )  # fmt: skip


def _capacity(capacity: int) -> Evidence:
    return Evidence(
        name=Words("device memory", "设备内存"), value=capacity, unit="bytes", where="device specification"
    )  # fmt: skip
