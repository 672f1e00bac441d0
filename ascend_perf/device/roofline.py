"""Roofline of kernels: the least time that FLOPs and bytes need on a device, and how near a kernel comes to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ascend_perf.model.table import Floats

RoofKind = Literal["compute", "bandwidth"]

ANOMALY_RATIO: Final = 1.0
"""An efficiency above this means that the work or the peak is wrong; callers mark it and never clip it."""


@dataclass(frozen=True, kw_only=True)
class Roof:
    """A ceiling of the chart: FLOP/s of a unit and dtype, or bytes/s of a memory."""

    name: str
    kind: RoofKind
    value: float
    basis: Literal["table", "derived", "measured"]
    confidence: str


def floor_ns(flops: Floats, size_bytes: Floats, peak_flops_per_s: Floats, bytes_per_s: float | None) -> Floats:
    """Least time of each kernel in ns: the larger of its compute and its memory time.

    Args:
        flops: work per kernel, NaN where unknown.
        size_bytes: compulsory bytes per kernel, NaN where unknown.
        peak_flops_per_s: peak of the unit and dtype of each kernel, NaN where unknown.
        bytes_per_s: memory rate; None where it is not known, then only compute counts.

    Returns:
        NaN where neither term is known. Where only one is, the floor is a lower bound from that one.

    Source:
        rivals-and-methods, method 5.4 (floor = max(F / peak, B / bandwidth)).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = flops / peak_flops_per_s * 1e9
        memory = np.full_like(flops, np.nan) if bytes_per_s is None else size_bytes / bytes_per_s * 1e9
    return np.fmax(compute, memory)


def efficiency_ratio(floor: Floats, dur_ns: Floats) -> Floats:
    """Floor over duration; above 1 the work or the peak is wrong. NaN where the floor is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(dur_ns > 0, floor / dur_ns, np.nan)


def intensity_flop_per_byte(flops: Floats, size_bytes: Floats) -> Floats:
    """Arithmetic intensity; NaN where FLOPs or bytes are unknown or there are no bytes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(size_bytes > 0, flops / size_bytes, np.nan)


def attainable_flops_per_s(intensity: float, peak_flops_per_s: float, bytes_per_s: float) -> float:
    """Height of the roof at an intensity: min(peak, intensity * memory rate).

    Source:
        Williams, Waterman, Patterson: Roofline (2009).
    """
    return min(peak_flops_per_s, intensity * bytes_per_s)
