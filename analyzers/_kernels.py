"""Kernels in groups, and the evidence that a set of kernels gives: its time per step, its share, its longest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf import intervals
from ascend_perf.analyzers._steps import (
    StepWindows,
    membership,
    representative,
    step_total_ns,
    step_windows,
    union_total_ns,
    unions_by_step,
)
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.distinct import distinct
from ascend_perf.model.finding import Evidence, Words
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace

LEVEL1: Final = Words(
    "not in this data: profile with profiler_level=torch_npu.profiler.ProfilerLevel.Level1",
    "数据中没有：请以 profiler_level=torch_npu.profiler.ProfilerLevel.Level1 采集",
)
"""Reason for rows that need core types, shapes and dtypes."""
PIPES: Final = Words(
    "not in this data: profile with profiler_level=torch_npu.profiler.ProfilerLevel.Level1 and "
    "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization",
    "数据中没有：请以 profiler_level=torch_npu.profiler.ProfilerLevel.Level1、"
    "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization 采集",
)
"""Reason for rows that need the pipe counters."""


STEP_MIN_RATIO: Final = threshold("C-01", "min_step_ratio")
"""One for all rows about kernels."""

MAX_NAME: Final = 100
"""Names and shapes are cut after this many characters where they are only a pointer."""


MAX_BANDS: Final = 12
"""Windows that a finding marks in the timeline at most."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of kernels, the longest total first; arrays of shape (groups,) but `of` (kernels,)."""

    of: Ints
    """Group of each kernel."""
    first: Ints
    """One kernel of the group: what is equal in the group can be read there."""
    count: Ints
    total_ns: Ints
    longest: Ints
    """The longest kernel of the group."""
    max_ns: Ints
    min_ns: Ints


def group_kernels(kernels: Table, keys: Sequence[NDArray[np.int32] | Ints]) -> Groups:
    """Kernels with equal keys, by total time. Kernels of unknown duration count with 0 ns."""
    duration = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns"))
    if not len(kernels):
        none = np.empty(0, np.int64)
        return Groups(of=none, first=none, count=none, total_ns=none, longest=none, max_ns=none, min_ns=none)
    index = distinct(*keys)[1] if keys else np.zeros(len(kernels), np.int64)
    # Sorted by (group, duration): the ends of each run are its shortest and its longest kernel.
    order = np.lexsort((duration, index))
    heads = np.searchsorted(index[order], np.arange(int(index.max()) + 1))
    tails = np.append(heads[1:], len(order)) - 1
    totals = np.add.reduceat(duration[order], heads)
    rank = np.argsort(-totals, kind="stable")
    place = np.empty(len(rank), np.int64)
    place[rank] = np.arange(len(rank))
    return Groups(
        of=place[index],
        first=order[heads[rank]],
        count=(tails - heads + 1)[rank],
        total_ns=totals[rank],
        longest=order[tails[rank]],
        max_ns=duration[order[tails[rank]]],
        min_ns=duration[order[heads[rank]]],
    )


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """The kernels of a rank inside its steps, and how their time is told.

    Shares of the step are unions (kernels that run at once count once); shares of kernel time are sums.
    """

    trace: Trace
    windows: StepWindows
    whole_ns: int
    """Sum of the spans of all steps."""
    inside: Bools
    """Kernels that belong to a step."""
    duration: Ints
    kernel_total_ns: int
    """Sum of all durations, over all streams."""
    unit: Words
    """What a row is called: kernel, or operator where the model runs on the CPU itself."""

    @classmethod
    def of(cls, trace: Trace) -> KernelTime:
        """From the kernels of a trace."""
        return _kernel_time(trace)

    @property
    def steps(self) -> int:
        """Number of steps, at least 1."""
        return max(1, len(self.windows))

    def where(self, rows: Bools) -> IntervalSet:
        """When at least one of the kernels runs, inside the steps."""
        return intervals.union(*unions_by_step(self.trace, self.trace[KERNELS], rows, self.windows))

    def union_ns(self, rows: Bools) -> int:
        """Time of the steps in which at least one of the kernels runs."""
        return union_total_ns(unions_by_step(self.trace, self.trace[KERNELS], rows, self.windows))

    def step_share(self, rows: Bools) -> float | None:
        """Share of the steps in which at least one of the kernels runs, None when the steps have no length."""
        return min(1.0, self.union_ns(rows) / self.whole_ns) if self.whole_ns > 0 else None

    def alone_ns(self, rows: Bools) -> int:
        """Time of the steps in which only these kernels run: no more can go where engines work side by side."""
        kernels = self.trace[KERNELS]
        mine = unions_by_step(self.trace, kernels, rows, self.windows)
        others = unions_by_step(self.trace, kernels, ~rows, self.windows)
        return sum(intervals.total(intervals.difference(a, b)) for a, b in zip(mine, others, strict=True))

    def kernel_share(self, rows: Bools) -> float:
        """Share of the sum of all kernel durations."""
        return float(self.duration[rows].sum() / self.kernel_total_ns) if self.kernel_total_ns else 0.0

    def per_step_ns(self, rows: Bools) -> float:
        """Union of the kernels, mean over the steps."""
        return self.union_ns(rows) / self.steps

    def per_step_count(self, rows: Bools) -> float:
        """Kernels of the set that lie in steps, mean over the steps."""
        return int((rows & self.inside).sum()) / self.steps

    def steps_seen(self, rows: Bools) -> tuple[int | None, ...]:
        """Numbers of the steps that hold one of the kernels."""
        of = membership(self.trace, self.trace[KERNELS], self.windows)[rows & self.inside]
        return tuple(self.windows.step_id(i) for i in np.unique(of).tolist())

    def bands(self, rows: Bools) -> tuple[tuple[int, int], ...]:
        """Windows of the kernels in the step that the timeline shows, the longest few."""
        at = representative(self.trace, self.windows)
        if at is None:
            return ()
        union = unions_by_step(self.trace, self.trace[KERNELS], rows, self.windows)[at]
        order = np.sort(np.argsort(union.starts - union.ends, kind="stable")[:MAX_BANDS])
        return tuple(zip(union.starts[order].tolist(), union.ends[order].tolist(), strict=True))

    def longest(self, rows: Bools) -> int:
        """Row of the longest of the kernels."""
        picked = np.flatnonzero(rows)
        return int(picked[np.argmax(self.duration[picked])])

    def evidence(self, rows: Bools, what: Words) -> list[Evidence]:
        """Time per step, share of kernel time, count and the longest kernel of a set that is not empty."""
        count = int((rows & self.inside).sum())
        return [
            Evidence(
                name=Words(f"{what.en}, time per step (union)", f"{what.zh}，每步耗时（并集）"),
                value=self.per_step_ns(rows),
                unit="ns",
                where=f"{self.unit.en}s: {count} rows in {self.steps} step(s)",
            ),
            Evidence(
                name=Words(f"{what.en}, share of {self.unit.en} time", f"{what.zh}，占{self.unit.zh}总耗时"),
                value=self.kernel_share(rows),
                unit="ratio",
                where=f"{self.unit.en}s: sum of durations",
            ),
            self.longest_evidence(rows),
        ]

    def longest_evidence(self, rows: Bools) -> Evidence:
        """The longest kernel of a set, with its place."""
        row = self.longest(rows)
        start = int(self.trace[KERNELS].ints("start_ns")[row])
        return Evidence(
            name=Words("longest of them", "其中最长的一个"),
            value=int(self.duration[row]),
            unit="ns",
            where=kernel_place(self.trace[KERNELS], row, on_host=self.trace.meta.device.kind == "cpu"),
            start_ns=None if start == NULL else start,
        )


@once
def _kernel_time(trace: Trace) -> KernelTime:
    windows = step_windows(trace)
    duration = np.where(trace[KERNELS].ints("dur_ns") == NULL, 0, trace[KERNELS].ints("dur_ns"))
    return KernelTime(
        trace=trace,
        windows=windows,
        whole_ns=step_total_ns(trace, windows),
        inside=membership(trace, trace[KERNELS], windows) >= 0,
        duration=duration,
        kernel_total_ns=int(duration.sum()),
        unit=Words("operator", "算子") if trace.meta.device.kind == "cpu" else Words("kernel", " Kernel "),
    )


def kernel_place(kernels: Table, row: int, *, on_host: bool = False) -> str:
    """Name, stream and shapes of a kernel: enough to find it again.

    Args:
        kernels: the table.
        row: the kernel.
        on_host: the rows are operators of a model that runs on the host; their streams are its threads.
    """
    parts = [(kernels.text("name")[row] or "?")[:MAX_NAME]]
    stream = int(kernels.ints("stream")[row])
    if stream != NULL:
        parts.append(f"{'thread' if on_host else 'stream'} {stream}")
    shapes = (kernels.text("input_shapes")[row] or "").rstrip(";")  # one for each argument that is no tensor
    if shapes:
        parts.append(f"inputs {shapes[:MAX_NAME]}")
    return ("operators: " if on_host else "kernels: ") + ", ".join(parts)
