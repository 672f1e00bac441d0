"""Experts that run one after the other: rows of small products with one weight shape.

Equal products in a row are no evidence: query, key, value and output of a dense layer are that too. A row is one of
experts when tokens are routed to it, see `loop_of`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.analyzers._expert_load import is_grouped, tokens_of
from ascend_perf.analyzers._group_kinds import kind_of_label
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.roofline import floor_ns
from ascend_perf.device.specs import spec_for
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass
from ascend_perf.ops.flops import work_of

MIN_EXPERTS: Final = threshold("E-02", "min_experts")
MAX_BETWEEN: Final = 12
"""Kernels between two products of neighbouring experts at most. Status: assumed."""
MIN_RUNS: Final = threshold("E-02", "min_runs")

MIN_VARIED: Final = 3
"""Different numbers of tokens in a row of experts whose router is not seen. Status: assumed."""
MIN_MOVES: Final = 2
"""Gathers and scatters between the products of a row, of the tokens of single experts. Status: assumed."""

_ROUTER: Final = re.compile(r"moe|top_?k|gating", re.IGNORECASE)
_BATCHED: Final = re.compile(r"batch_?mat_?mul|bmm", re.IGNORECASE)
_BORDER: Final = re.compile(r"rsqrt|log_?softmax", re.IGNORECASE)
_BORDERS: Final = (KernelClass.ATTENTION, KernelClass.NORM, KernelClass.ROPE, KernelClass.LOSS)
_WHOLE: Final = re.compile(r"slice|concat|split|cat_|catarray|embedding", re.IGNORECASE)


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


def moves_tokens(kernels: Table, classes: Text) -> Bools:
    """Kernels that read or write rows by index: no slices and concatenations, which split heads and join halves."""
    return classes.equals(KernelClass.INDEX.value) & ~kernels.text("op_type").flags(lambda n: bool(_WHOLE.search(n)))


def loop_of(time: KernelTime, classes: Text) -> Loop | None:
    """Runs of products with one weight shape that are experts; None when there are none.

    A run lies between two norms, attentions (batched products) or losses, so that it is of one block of a layer. It is
    one of experts when

    - its products have different numbers of tokens, which products with another weight shape have as well (an expert
      multiplies its tokens twice or more; gradients of weights differ in rows too, but have each number once), or
    - a router's kernels (TopK, MoE) lie in the same block, batched products aside, which may dispatch tokens, or
    - the trace routes tokens (such kernels anywhere, a group named ep of several ranks), and gathers or scatters lie
      between the products, or
    - its products are those of a run that is near the router or moves tokens: same weight shape, same tokens.

    All-to-all is no evidence here: sequence parallelism of a dense model has it too.

    Reads:
        kernels: op_type, name, start_ns, dur_ns, input_shapes, input_dtypes, output_shapes, output_dtypes.
    """
    kernels = time.trace[KERNELS]
    if not kernels.has("input_shapes"):
        return None
    types = kernels.text("op_type")
    matmul = classes.equals(KernelClass.MATMUL.value) & ~is_grouped(kernels)
    matmul &= ~types.flags(lambda name: bool(_BATCHED.search(name)))
    order = in_order(time)
    shapes = kernels.text("input_shapes")
    weights = shapes.relabel(_weight)
    tokens = shapes.numbers(tokens_of)
    signs = _Signs.of(time.trace, order, classes)
    products = np.zeros(len(kernels), bool)
    runs: list[tuple[int, int, int]] = []
    by_rate = 0.0
    candidates = order[(matmul & (weights.codes >= 0) & ~np.isnan(tokens))[order]]
    is_shared = _shared(tokens, weights.codes, candidates)
    for code in np.unique(weights.codes[candidates]).tolist():
        rows = candidates[weights.codes[candidates] == code]
        if len(rows) < MIN_EXPERTS.value:
            continue
        places = signs.place[rows]
        is_cut = (np.diff(places) > MAX_BETWEEN + 1) | (np.diff(signs.block[places]) > 0)
        whole = [run for run in np.split(rows, np.flatnonzero(is_cut) + 1) if len(run) >= MIN_EXPERTS.value]
        # The backward of a loop has the products of its forward, far from the router.
        known = np.concatenate([np.zeros(0), *(tokens[run] for run in whole if signs.are_routed(run))])
        kept = [run for run in whole if np.isin(tokens[run], known).all() or _is_varied(tokens[run], is_shared[run])]
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


def _shared(tokens: Floats, codes: NDArray[np.int32], candidates: Ints) -> Bools:
    """Products whose number of tokens occurs with another weight shape too."""
    pairs = np.unique(np.column_stack((tokens[candidates], codes[candidates])), axis=0)
    values, times = np.unique(pairs[:, 0], return_counts=True)
    return np.isin(tokens, values[times > 1])


def _is_varied(tokens: Floats, is_shared: Bools) -> bool:
    return len(np.unique(tokens[is_shared])) >= max(MIN_VARIED, len(tokens) // 4 + 1)


@dataclass(frozen=True, kw_only=True)
class _Signs:
    """Where tokens are routed, by place in the order of start."""

    place: Ints
    """Place of each kernel of the trace, -1 for those outside of steps."""
    block: Ints
    """Number of the block of each place; borders begin a new one."""
    is_near_router: Bools
    """Per place: no border but batched products parts it from a kernel of a router."""
    moves: Ints
    """Kernels before each place that read or write rows by index."""
    is_routing: bool
    """The trace routes tokens at all."""

    @classmethod
    def of(cls, trace: Trace, order: Ints, classes: Text) -> _Signs:
        kernels = trace[KERNELS]
        types = kernels.text("op_type")
        router = types.flags(_is_router) | kernels.text("name").flags(_is_router)
        border = types.flags(lambda name: bool(_BORDER.search(name))) | classes.isin({one.value for one in _BORDERS})
        border &= ~router
        batched = types.flags(lambda name: bool(_BATCHED.search(name)))
        place = np.full(len(kernels), -1, np.int64)
        place[order] = np.arange(len(order))
        wide = np.cumsum(border[order], dtype=np.int64)
        is_near_router = np.isin(wide, np.unique(wide[router[order]]))
        moves = np.concatenate(([0], np.cumsum(moves_tokens(kernels, classes)[order], dtype=np.int64)))
        groups = any(kind_of_label(group.label) == "ep" and len(group.ranks) > 1 for group in trace.meta.groups)
        return cls(
            place=place, block=np.cumsum((border | batched)[order], dtype=np.int64), is_near_router=is_near_router,
            moves=moves, is_routing=groups or bool(router.any()),
        )  # fmt: skip

    def are_routed(self, rows: Ints) -> bool:
        """Whether tokens are routed to a run of products in one block."""
        first, last = (int(self.place[row]) for row in (rows[0], rows[-1]))
        is_moved = self.is_routing and int(self.moves[last] - self.moves[first]) >= MIN_MOVES
        return is_moved or bool(self.is_near_router[first])


def _is_router(name: str) -> bool:
    return bool(_ROUTER.search(name))


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


def _weight(shapes: str) -> str | None:
    parts = shapes.strip('"').split(";")
    return parts[1] if len(parts) > 1 and parts[1] else None
