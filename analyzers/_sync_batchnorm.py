"""Synchronised batch norm: how many layers exchange statistics, and which collectives do it (row N-11)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import Calls
from ascend_perf.analyzers._steps import membership
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import HOST_OPS, KERNELS

MAX_LAYERS: Final = threshold("N-11", "max_layers")

MAX_AFTER_NS: Final = 100_000
"""The kernel that gathers the statistics follows their exchange within this time. Status: assumed."""

_LAYER: Final = re.compile(r"sync_?batch_?norm|sync_?bn|batch_?norm_?gather_?stats", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class SyncBatchNorm:
    """Synchronised batch norms of a rank."""

    per_step: float
    """Events of the most frequent name, per step: one per layer."""
    calls: Bools
    """Collectives that were launched inside of them."""
    has_launches: bool
    """Whether the data tell which collectives these are."""
    example: str

    @property
    def is_many(self) -> bool:
        """Whether there are more than the limit."""
        return self.per_step > MAX_LAYERS.value


def sync_batch_norm(calls: Calls) -> SyncBatchNorm | None:
    """The synchronised batch norms of a rank, None when there are none.

    Reads:
        host_ops: name, start_ns, dur_ns; kernels: op_type, name; comm_ops: launch_start_ns, host_op.
    """
    counts: dict[str, int] = {}
    for spec, column in ((HOST_OPS, "name"), (KERNELS, "op_type")):
        table = calls.trace[spec]
        names = table.text(column)
        rows = names.flags(lambda name: bool(_LAYER.search(name)))
        if rows.any():
            rows &= membership(calls.trace, table, calls.windows) >= 0
            for code, count in zip(*np.unique(names.codes[rows], return_counts=True), strict=True):
                name = names.values[int(code)]
                counts[name] = max(counts.get(name, 0), int(count))
    if not counts:
        return None
    example = max(counts, key=counts.__getitem__)
    ops = calls.trace[HOST_OPS]
    inside = ops.text("name").flags(lambda name: bool(_LAYER.search(name)))
    inside &= (ops.ints("start_ns") != NULL) & (ops.ints("dur_ns") != NULL)
    launched = calls.table.ints("launch_start_ns")
    host_op = calls.table.ints("host_op")
    known = (host_op >= 0) & (host_op < len(ops))
    begun = np.where(known, ops.ints("start_ns")[np.where(known, host_op, 0)] if len(ops) else NULL, launched)
    windows = intervals.merged(ops.ints("start_ns")[inside], ops.ends_ns()[inside])
    mask = (begun != NULL) & intervals.contains(windows, begun)
    has_launches = bool(inside.any() and (begun != NULL).any())
    if not mask.any():
        mask = _before_gather(calls)
    return SyncBatchNorm(
        per_step=counts[example] / max(1, len(calls.windows)), calls=mask,
        has_launches=has_launches or bool(mask.any()), example=example,
    )  # fmt: skip


def _before_gather(calls: Calls) -> Bools:
    """Collectives that a kernel of a synchronised batch norm follows directly: it works on what they exchanged."""
    kernels = calls.trace[KERNELS]
    mask = np.zeros(len(calls), bool)
    gathers = kernels.text("op_type").flags(lambda name: bool(_LAYER.search(name)))
    starts = kernels.ints("start_ns")[gathers]
    starts = starts[starts != NULL]
    if not len(starts) or not len(calls):
        return mask
    order = np.argsort(calls.ends, kind="stable")
    last = np.searchsorted(calls.ends[order], starts, side="right") - 1
    call = order[np.clip(last, 0, None)]
    mask[call[(last >= 0) & (starts - calls.ends[call] <= MAX_AFTER_NS)]] = True
    return mask
