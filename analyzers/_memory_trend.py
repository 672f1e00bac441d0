"""Growth of memory per step, and what the allocator holds without using it over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import NULL, Floats, Ints
from ascend_perf.units import format_quantity

if TYPE_CHECKING:
    from ascend_perf.analyzers.memory import Component

NORMAL_95: Final = 1.959964
"""Quantile of the normal distribution for a range of 95 %."""
MAX_STEPS: Final = 500
"""Steps whose pairs are compared, evenly chosen: pairs grow with the square. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Slope per step by Theil and Sen, with the range that holds the true one with 95 % (None: too few steps)."""

    slope: float
    low: float | None
    high: float | None


def trend_of(values: Floats, steps: Ints) -> Trend | None:
    """The median of the slopes between all pairs of steps: a step that is off does not move it.

    Args:
        values: one per step, shape (n,).
        steps: ordinals of the steps, ascending.

    Returns:
        None with fewer than two steps.

    Source:
        Sen, Estimates of the regression coefficient based on Kendall's tau (1968).
    """
    if len(values) > MAX_STEPS:
        chosen = np.unique(np.linspace(0, len(values) - 1, MAX_STEPS).astype(np.int64))
        values, steps = values[chosen], steps[chosen]
    n = len(values)
    if n < 2:
        return None
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((values[second] - values[first]) / (steps[second] - steps[first]))
    spread = NORMAL_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    # The M1-th and the (M2 + 1)-th slope, counted from 1.
    low, high = math.floor((len(slopes) - spread) / 2) - 1, math.ceil((len(slopes) + spread) / 2)
    known = low >= 0 and high < len(slopes)
    return Trend(
        slope=float(np.median(slopes)), low=float(slopes[low]) if known else None,
        high=float(slopes[high]) if known else None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Unused:
    """What an allocator holds without using it: over time, and when it holds most."""

    mean_ratio: float
    """Mean over time of 1 - allocated / reserved."""
    at_peak_bytes: int
    """Reserved less allocated while most is reserved, when most of it is in use."""


def unused_of(part: Component) -> Unused | None:
    """Fragmentation of one component over time; None where its samples do not hold both figures.

    Each sample lasts until the next one.
    """
    rows = np.flatnonzero((part.allocated != NULL) & (part.reserved != NULL) & (part.reserved > 0))
    if not len(rows):
        return None
    at = part.time_ns[rows]
    allocated, reserved = part.allocated[rows].astype(float), part.reserved[rows].astype(float)
    ratio = np.clip(1 - allocated / reserved, 0, None)
    length = np.append(np.diff(at), 0).astype(float)
    mean = float((ratio * length).sum() / length.sum()) if length.sum() > 0 else float(ratio.mean())
    # While that much is reserved, the moment at which most of it is in use.
    used = float(allocated[reserved == reserved.max()].max())
    return Unused(mean_ratio=mean, at_peak_bytes=max(0, int(reserved.max() - used)))


def steps_table(part: Component, of: Ints, ids: list[int | None], trend: Trend | None) -> ResultTable | None:
    """Least and most allocated, and most reserved, of each step that has samples; None with fewer than two steps.

    Args:
        part: the framework's allocator.
        of: step of each of its samples, -1 outside of all steps.
        ids: number of each step.
        trend: of the least allocated memory.
    """
    known = np.flatnonzero((of >= 0) & (part.allocated != NULL))
    steps, heads = np.unique(of[known], return_index=True)
    if len(steps) < 2:
        return None
    # Samples are in order of time, but steps need not be: their rows are brought together.
    order = known[np.argsort(of[known], kind="stable")]
    heads = np.searchsorted(of[order], steps)
    allocated = part.allocated[order]
    least, most = np.minimum.reduceat(allocated, heads), np.maximum.reduceat(allocated, heads)
    reserved = np.maximum.reduceat(part.reserved[order], heads)
    return result_table(
        "memory-steps",
        Words("Memory by step", "各步内存"),
        (
            Col("step_id", "Step", "step", [ids[at] for at in steps.tolist()]),
            Col("least_allocated_bytes", "Least allocated", "最低已分配", least, "bytes"),
            Col("most_allocated_bytes", "Most allocated", "最高已分配", most, "bytes"),
            Col("most_reserved_bytes", "Most reserved", "最高已预留", reserved, "bytes"),
            Col("grown_bytes", "Least, against the step before", "最低已分配较上一步",
                [None, *np.diff(least).tolist()], "bytes"),
        ),
        _note(trend),
    )  # fmt: skip


def told(trend: Trend) -> tuple[str, str]:
    """`12 MiB per step (95 %: 10 MiB to 14 MiB)` in English and Chinese."""
    slope = format_quantity(trend.slope, "bytes")
    if trend.low is None or trend.high is None:
        return f"{slope} per step", f"每步 {slope}"
    low, high = format_quantity(trend.low, "bytes"), format_quantity(trend.high, "bytes")
    return f"{slope} per step (95 %: {low} to {high})", f"每步 {slope}（95 %：{low} 至 {high}）"


def _note(trend: Trend | None) -> Words | None:
    if trend is None:
        return None
    en, zh = told(trend)
    return Words(
        f"Trend of the least allocated memory by Theil and Sen: {en}.", f"最低已分配内存的趋势（Theil-Sen）：{zh}。"
    )
