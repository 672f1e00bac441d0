"""Integrals of sampled quantities over a window: energy from power, means from levels. Gaps are left out and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

GAP_TIMES: Final = 5
"""Samples that are further apart than so many usual (median) intervals have a gap between them. Status: assumed."""
NS: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Integral:
    """What samples say of a window."""

    value: float
    """Integral over the covered part, in units of the samples times seconds."""
    covered_ns: int
    window_ns: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Parts of the window, in order, that no two samples close together surround."""

    @property
    def covered_ratio(self) -> float:
        """Covered part of the window; 0 for an empty one."""
        return self.covered_ns / self.window_ns if self.window_ns else 0.0

    @property
    def mean(self) -> float | None:
        """Mean over the covered part; None when nothing is covered."""
        return self.value / (self.covered_ns / NS) if self.covered_ns else None


def usual_gap_ns(times_ns: Sequence[int]) -> int:
    """The longest distance of two samples that is no gap: `GAP_TIMES` usual (median) ones; 0 for fewer than two."""
    if len(times_ns) < 2:
        return 0
    return int(GAP_TIMES * np.median(np.diff(np.sort(np.asarray(times_ns, np.int64)))))


def integrate(
    times_ns: Sequence[int], values: ArrayLike, from_ns: int, to_ns: int, *, max_gap_ns: int | None = None
) -> Integral:
    """Trapezoid rule over a window, linear between samples; never beyond the first and last one, nor across a gap.

    Args:
        times_ns: shape (n,), any order; of equal times the values are averaged.
        values: shape (n,); NaN is no sample.
        from_ns, to_ns: the window, on the clock of the samples.
        max_gap_ns: distance of samples from which on there is a gap; None: `usual_gap_ns`.

    Raises:
        ValueError: the window ends before it begins, or lengths differ.
    """
    times, levels = np.asarray(times_ns, np.int64), np.asarray(values, np.float64)
    if to_ns < from_ns or times.shape != levels.shape:
        raise ValueError("a window that ends before it begins, or samples without a time")
    known = np.isfinite(levels)
    times, inverse = np.unique(times[known], return_inverse=True)
    counts = np.bincount(inverse, minlength=len(times)).astype(np.float64)
    levels = np.bincount(inverse, weights=levels[known], minlength=len(times)) / np.maximum(counts, 1)
    longest = usual_gap_ns(times.tolist()) if max_gap_ns is None else max_gap_ns
    starts, ends = times[:-1], times[1:]
    low, high = np.clip(starts, from_ns, to_ns), np.clip(ends, from_ns, to_ns)
    used = (high > low) & (ends - starts <= longest)
    starts, ends, low, high = starts[used], ends[used], low[used], high[used]
    first, last = levels[:-1][used], levels[1:][used]
    # Differences first: Unix time in ns has more digits than a float.
    slope = (last - first) / (ends - starts)
    middle = first + slope * ((low - starts) + (high - starts)) / 2
    covered = high - low
    return Integral(
        value=float((middle * covered).sum() / NS), covered_ns=int(covered.sum()), window_ns=to_ns - from_ns,
        gaps=_gaps(low.tolist(), high.tolist(), from_ns, to_ns),
    )  # fmt: skip


def _gaps(low: list[int], high: list[int], from_ns: int, to_ns: int) -> tuple[tuple[int, int], ...]:
    gaps, at = [], from_ns
    for start, end in zip(low, high, strict=True):
        if start > at:
            gaps.append((at, start))
        at = end
    return (*gaps, (at, to_ns)) if at < to_ns else tuple(gaps)
