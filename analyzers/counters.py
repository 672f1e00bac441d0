"""Device counters over time (frequency, power, memory, links, caches) beside what computes and communicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._counter_series import Series, figures_of, mean_within, peak_of, series_of, time_above
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers.memory import capacity_of
from ascend_perf.device.specs import spec_for
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table
from ascend_perf.model.tables import COMM_OPS, COUNTERS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import computes
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_quantity

NAME: Final = "counters"
MAX_SERIES: Final = 24
"""Series that a page draws. Status: assumed."""
MAX_BINS: Final = 300
"""Points per series: about as many as a chart has pixels. Status: assumed."""
HIGH_RATIO: Final = 0.8
"""Of the device's peak, from which on a counter counts as high. Status: assumed."""
MAX_FIGURES: Final = 200


@analyzer(name=NAME, needs=(COUNTERS,), order=46, section="timeline")
def counters(trace: Trace) -> Result:
    """Each counter over time, its mean and peak against the device's peak, and its mean while the device works.

    Counters of several controllers, ports or cores are taken together. A rate or ratio is the mean since the sample
    before (inferred), a level (frequency, memory, power, temperature) lasts until the next sample.

    Reads:
        counters: time_ns, counter, unit, value; kernels, comm_ops: start_ns, dur_ns; meta.device.
    """
    table = trace[COUNTERS]
    every = series_of(table)
    figures = figures_of(table)
    if not every and not figures:
        raise NoData(Words("no counter has a value", "没有带数值的计数器"))
    busy = _Busy.of(trace)
    tables = []
    if every:
        tables += [_summary(trace, every, busy), _timeline(every[:MAX_SERIES], busy, len(every))]
    if figures:
        tables.append(_figures(figures))
    return Result(metrics=_metrics(trace, every), tables=tuple(tables))


@dataclass(frozen=True, kw_only=True)
class _Busy:
    """When kernels compute, when collectives run, and when neither does; merged sets."""

    computing: IntervalSet
    communicating: IntervalSet
    idle: IntervalSet

    @classmethod
    def of(cls, trace: Trace) -> _Busy:
        kernels = trace[KERNELS]
        computing = _union(kernels, computes(kernels) if len(kernels) else np.zeros(0, bool))
        communicating = _union(trace[COMM_OPS], np.ones(len(trace[COMM_OPS]), bool))
        working = intervals.union(computing, communicating)
        idle = intervals.EMPTY
        windows = step_windows(trace)
        if len(windows) and len(working.starts):
            steps = intervals.merged(windows.starts, windows.ends)
            idle = intervals.difference(steps, working)
        return cls(computing=computing, communicating=communicating, idle=idle)


def _union(table: Table, rows: Bools) -> IntervalSet:
    starts, ends = table.ints("start_ns"), table.ends_ns()
    rows = rows & (starts != NULL) & (ends != NULL)
    return intervals.merged(starts[rows], ends[rows])


def _summary(trace: Trace, every: Sequence[Series], busy: _Busy) -> ResultTable:
    spec, capacity = spec_for(trace.meta.device), capacity_of(trace)
    peaks = [peak_of(series, spec, capacity) for series in every]
    starts, ends = zip(*(series.periods() for series in every), strict=True)
    means = [_mean(series, a, b) for series, a, b in zip(every, starts, ends, strict=True)]
    highest = [float(series.values.max()) for series in every]

    def told(values: Sequence[float | None]) -> list[str | None]:
        return [
            None if value is None else format_quantity(value, series.unit)
            for value, series in zip(values, every, strict=True)
        ]

    def share(values: Sequence[float]) -> list[float | None]:
        return [None if not peak else value / peak for value, peak in zip(values, peaks, strict=True)]

    only = intervals.difference(busy.computing, busy.communicating)
    return result_table(
        "counter-summary",
        Words("Device counters", "设备计数器"),
        (
            Col("counter", "Counter", "计数器", [series.name for series in every]),
            Col("parts", "Parts", "个数", [series.parts for series in every], "count"),
            Col("samples", "Samples", "采样数", [len(series.at) for series in every], "count"),
            Col("mean", "Mean", "平均", told(means)),
            Col("least", "Lowest", "最低", told([float(series.values.min()) for series in every])),
            Col("most", "Highest", "最高", told(highest)),
            Col("peak", "Device's peak", "设备峰值", told(peaks)),
            Col("mean_ratio", "Mean of the peak", "平均占峰值", share(means), "ratio"),
            Col("most_ratio", "Highest of the peak", "最高占峰值", share(highest), "ratio"),
            Col(
                "high_ratio", "Time above 80 % of the peak", "高于峰值 80 % 的时间",
                [None if not p else time_above(s, HIGH_RATIO * p) for s, p in zip(every, peaks, strict=True)], "ratio",
            ),
            Col("computing", "While only kernels run", "仅计算时", told([mean_within(s, only) for s in every])),
            Col(
                "communicating", "While collectives run", "通信时",
                told([mean_within(s, busy.communicating) for s in every]),
            ),
            Col(
                "idle", "While the device idles in a step", "step 内空闲时",
                told([mean_within(s, busy.idle) for s in every]),
            ),
        ),
        Words(
            "Counters of several controllers, ports or cores are added (rates) or averaged (ratios, levels). Means are "
            "over time: a rate is taken for the mean since the sample before, a level lasts until the next sample. "
            "With few samples per step the three columns on the right differ less than the hardware does.",
            "多个控制器、端口或核的计数器：速率求和，比率与电平取平均。均值按时间加权：速率视为自上一采样以来的平均，"
            "电平保持到下一采样。每步采样较少时，右侧三列的差异小于硬件实际差异。",
        ),
    )  # fmt: skip


def _mean(series: Series, starts: Ints, ends: Ints) -> float:
    length = (ends - starts).astype(float)
    return float((series.values * length).sum() / length.sum()) if length.sum() > 0 else float(series.values.mean())


def _timeline(every: Sequence[Series], busy: _Busy, whole: int) -> ResultTable:
    first, last = min(int(s.at[0]) for s in every), max(int(s.at[-1]) for s in every)
    edges = _edges(first, last)
    parts = [_binned(series, edges) for series in every]
    bins = np.concatenate([part[0] for part in parts])
    starts, ends = edges[bins], edges[bins + 1]
    length = np.maximum(ends - starts, 1)
    names = [series.name for series, part in zip(every, parts, strict=True) for _ in range(len(part[0]))]
    units = [series.unit for series, part in zip(every, parts, strict=True) for _ in range(len(part[0]))]
    left = ("", "") if whole <= len(every) else (
        f" {whole - len(every)} more counters are in the table alone.",
        f"另有 {whole - len(every)} 个计数器仅列于表中。",
    )  # fmt: skip
    return result_table(
        "counter-timeline",
        Words("Device counters over time", "设备计数器曲线"),
        (
            Col("counter", "Counter", "计数器", names),
            Col("unit", "Unit", "单位", units),
            Col("start_ns", "Start", "开始时间", starts),
            Col("dur_ns", "Length", "时长", ends - starts, "ns"),
            # The unit depends on the row.
            Col("mean", "Mean", "平均", np.concatenate([part[1] for part in parts])),
            Col("least", "Lowest", "最低", np.concatenate([part[2] for part in parts])),
            Col("most", "Highest", "最高", np.concatenate([part[3] for part in parts])),
            Col("computing_ratio", "Kernels run", "计算占比", intervals.covered(busy.computing, starts, ends) / length,
                "ratio"),
            Col("communicating_ratio", "Collectives run", "通信占比",
                intervals.covered(busy.communicating, starts, ends) / length, "ratio"),
        ),
        Words(
            f"At most {MAX_BINS} points per counter; mean, lowest and highest of the samples of each.{left[0]}",
            f"每个计数器至多 {MAX_BINS} 个点，含各区段采样的平均、最低与最高。{left[1]}",
        ),
    )  # fmt: skip


def _edges(first: int, last: int) -> Ints:
    """Borders of equally long bins; the last one holds the last sample."""
    bins = int(min(MAX_BINS, max(1, last - first + 1)))
    width = -(-(last - first + 1) // bins)
    return (first + width * np.arange(bins + 1)).astype(np.int64)


def _binned(series: Series, edges: Ints) -> tuple[Ints, Floats, Floats, Floats]:
    """Bins that hold samples, and mean, lowest and highest of each."""
    of = np.searchsorted(edges, series.at, side="right") - 1
    bins, heads = np.unique(of, return_index=True)
    count = np.diff(np.append(heads, len(of)))
    return (
        bins.astype(np.int64), np.add.reduceat(series.values, heads) / count,
        np.minimum.reduceat(series.values, heads), np.maximum.reduceat(series.values, heads),
    )  # fmt: skip


def _figures(figures: Sequence[tuple[str, str, float]]) -> ResultTable:
    kept = figures[:MAX_FIGURES]
    return result_table(
        "counter-figures",
        Words("Counters of the whole capture", "整个采集的计数器"),
        (
            Col("counter", "Counter", "计数器", [name for name, _, _ in kept]),
            Col("figure", "Value", "数值", [format_quantity(value, unit) for _, unit, value in kept]),  # type: ignore[arg-type]
        ),
        Words(
            "The exporter's sums and means; single samples are not in the data.",
            "导出工具的汇总值；数据中没有单次采样。",
        ),
    )


def _metrics(trace: Trace, every: Sequence[Series]) -> tuple[Metric, ...]:
    """Mean memory bandwidth, where it was sampled."""
    total = next((s for s in every if s.name == "HBM/Read + Write"), None)
    if total is None:
        return ()
    mean = _mean(total, *total.periods())
    return (
        Metric(name="hbm_bandwidth_mean", value=mean, unit="bytes_per_s", better="none", rank=trace.meta.rank),
    )  # fmt: skip
