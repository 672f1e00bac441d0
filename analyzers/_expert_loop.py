"""Experts that run one after the other: rows of small products with one weight shape."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._expert_load import is_grouped, tokens_of
from ascend_perf.analyzers._group_kinds import kind_of_label
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.roofline import floor_ns
from ascend_perf.device.specs import spec_for
from ascend_perf.model.table import NULL, Bools, Ints, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass
from ascend_perf.ops.flops import work_of

MIN_EXPERTS: Final = threshold("E-02", "min_experts")
MIN_UNIFORM: Final = threshold("E-02", "min_uniform")
MAX_BETWEEN: Final = 12
"""Kernels between two products of neighbouring experts at most. Status: assumed."""
MIN_RUNS: Final = threshold("E-02", "min_runs")

_ROUTER: Final = re.compile(r"moe|top_?k", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Products of experts that run one after the other."""

    products: Bools
    """Kernels of the trace."""
    runs: tuple[tuple[int, int, int], ...]
    """First and last row, and number of products, of each run."""
    least_ns: float
    """What they need in one grouped product at least."""
    is_floor: bool
    """The least is from FLOPs and bytes at the device's peaks; else from the best rate among them."""


def in_order(time: KernelTime) -> Ints:
    """Rows of the kernels in steps, in order of start."""
    starts = time.trace[KERNELS].ints("start_ns")
    rows = np.flatnonzero(time.inside & (starts != NULL))
    return rows[np.argsort(starts[rows], kind="stable")]


def loop_of(time: KernelTime, classes: Text) -> Loop | None:
    """Runs of products with one weight shape that are experts; None when there are none.

    A run is one of experts when the tokens differ between its products, when the trace routes tokens (TopK, MoE
    kernels, a group named ep), or when many products of one shape follow each other with nothing between them.

    Reads:
        kernels: op_type, name, start_ns, dur_ns, input_shapes, input_dtypes, output_shapes, output_dtypes.
    """
    kernels = time.trace[KERNELS]
    if not kernels.has("input_shapes"):
        return None
    matmul = classes.equals(KernelClass.MATMUL.value) & ~is_grouped(kernels)
    order = in_order(time)
    shapes = kernels.text("input_shapes")
    weights = shapes.relabel(_weight)
    tokens = shapes.numbers(tokens_of)
    place = np.full(len(kernels), -1, np.int64)
    place[order] = np.arange(len(order))
    routes = _has_router(time.trace)
    products = np.zeros(len(kernels), bool)
    runs: list[tuple[int, int, int]] = []
    by_rate = 0.0
    candidates = order[(matmul & (weights.codes >= 0) & ~np.isnan(tokens))[order]]
    for code in np.unique(weights.codes[candidates]).tolist():
        rows = candidates[weights.codes[candidates] == code]
        if len(rows) < MIN_EXPERTS.value:
            continue
        cuts = np.flatnonzero(np.diff(place[rows]) > MAX_BETWEEN + 1) + 1
        kept = [run for run in np.split(rows, cuts) if _is_experts(place[run], tokens[run], routes)]
        if not kept:
            continue
        members = np.concatenate(kept)
        rate = float(np.max(tokens[members] / np.maximum(time.duration[members], 1)))
        by_rate += float(tokens[members].sum()) / rate if rate > 0 else 0.0
        products[members] = True
        runs += [(int(run[0]), int(run[-1]), len(run)) for run in kept]
    if len(runs) < MIN_RUNS.value * time.steps:
        return None
    floor = _floor(time, products)
    return Loop(
        products=products, runs=tuple(sorted(runs)), least_ns=by_rate if floor is None else floor,
        is_floor=floor is not None,
    )  # fmt: skip


def _is_experts(places: Ints, tokens: np.ndarray[tuple[int], np.dtype[np.float64]], routes: bool) -> bool:
    if len(places) < MIN_EXPERTS.value:
        return False
    varied = len(np.unique(tokens)) > max(1, len(places) // 4)
    bare = len(places) >= MIN_UNIFORM.value and bool(np.median(np.diff(places)) <= 1)
    return varied or routes or bare


def _floor(time: KernelTime, products: Bools) -> float | None:
    """FLOPs and bytes of the products at the device's peaks; None where a peak or a shape is not known."""
    spec = spec_for(time.trace.meta.device)
    if spec is None:
        return None
    chosen = time.trace[KERNELS].select(products)
    work = work_of(chosen)
    peaks = work.dtype.numbers(lambda dtype: spec.matrix_peak(dtype) or float("nan"))
    floor = floor_ns(work.flops, work.bytes, peaks, spec.memory_bytes_per_s.value)
    return None if np.isnan(floor).any() else float(floor.sum())


def _has_router(trace: Trace) -> bool:
    if any(kind_of_label(group.label) == "ep" for group in trace.meta.groups):
        return True
    kernels = trace[KERNELS]
    return any(_ROUTER.search(name) for column in ("op_type", "name") for name in kernels.text(column).compact().values)


def _weight(shapes: str) -> str | None:
    parts = shapes.strip('"').split(";")
    return parts[1] if len(parts) > 1 and parts[1] else None
