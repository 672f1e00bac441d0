"""Collectives directly beside a product, which one operator for both (MC2) could overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._group_kinds import group_kinds
from ascend_perf.analyzers._steps import membership
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import COMM_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, computes, kernel_classes
from ascend_perf.ops.fusions import Api, Fusion, fusions, is_older

MAX_GAP_NS: Final = 200_000
"""A product that ends longer before the call (begins longer after it) is not beside it. Status: assumed."""
MIN_PAIRS: Final = 2
"""So many pairs per capture are a layer. Status: assumed, as for sequences of kernels."""


@dataclass(frozen=True, kw_only=True)
class CallPair:
    """Products and collectives of one kind that stand side by side."""

    fusion: Fusion
    apis: tuple[Api, ...]
    state: str
    """`applicable`, `inference only` or `needs CANN x`."""
    count: int
    time_ns: int
    """Time of the calls, a union."""
    bound_ns: int
    """What overlap could hide: of each call the exposed part, at most as long as its product."""
    start_ns: int


def calls_beside_products(trace: Trace, *, is_training: bool) -> list[CallPair]:
    """Collectives of tensor, context or expert parallel groups directly before or after a product.

    Gradients that are reduced after the product that made them are not meant: only groups that the data name or that
    follow from the metadata count (`group_kinds`).

    Reads:
        comm_ops: start_ns, dur_ns, op, group, group_label; kernels: start_ns, dur_ns, op_type, name; meta: groups,
        parallel, versions.
    """
    wanted = [item for item in fusions() if item.call is not None and (trace.meta.device.kind or "npu") in item.kinds]
    calls, kernels = trace[COMM_OPS], trace[KERNELS]
    if not wanted or not len(calls) or not len(kernels):
        return []
    kinds = group_kinds(trace)
    inner = calls.text("group").flags(lambda name: kinds.get(name, ("dp", True))[0] in ("tp", "cp", "ep"))
    inner &= membership(trace, calls) >= 0
    start, end = calls.ints("start_ns"), calls.ends_ns()
    inner &= (start != NULL) & (end != NULL)
    computing = computes(kernels) & (kernels.ints("start_ns") != NULL) & (kernels.ints("dur_ns") != NULL)
    busy = intervals.merged(kernels.ints("start_ns")[computing], kernels.ends_ns()[computing])
    product = kernel_classes(kernels).equals(KernelClass.MATMUL.value)
    found = []
    for item in wanted:
        assert item.call is not None
        op = item.call.op.lower()
        rows = np.flatnonzero(inner & calls.text("op").flags(lambda name, op=op: name.lower() in (op, op[:-1])))  # type: ignore[misc]
        beside = _beside(trace, rows, computing, before=item.call.product == "before")
        good = (beside >= 0) & product[np.clip(beside, 0, None)]
        if "grouped" in item.id:
            good &= _grouped(trace)[np.clip(beside, 0, None)]
        rows, beside = rows[good], beside[good]
        if len(rows) >= MIN_PAIRS:
            found.append(_pair(trace, item, rows, beside, busy, is_training=is_training))
    return found


def _pair(
    trace: Trace, item: Fusion, rows: Ints, beside: Ints, busy: IntervalSet, *, is_training: bool
) -> CallPair:
    calls = trace[COMM_OPS]
    start, end = calls.ints("start_ns")[rows], calls.ends_ns()[rows]
    apis = item.choose(is_training=is_training)
    version = trace.meta.versions.get("cann")
    fresh = tuple(api for api in apis if not is_older(version, api.cann))
    state = "applicable" if fresh else "inference only" if not apis else f"needs CANN {apis[0].cann}"
    exposed = end - start - intervals.covered(busy, start, end)
    return CallPair(
        fusion=item, apis=fresh or apis or item.apis, state=state, count=len(rows),
        time_ns=intervals.total(intervals.merged(start, end)),
        bound_ns=int(np.minimum(exposed, trace[KERNELS].ints("dur_ns")[beside]).sum()), start_ns=int(start.min()),
    )  # fmt: skip


def _beside(trace: Trace, rows: Ints, computing: Bools, *, before: bool) -> Ints:
    """The kernel that ends last before each call (begins first after it), -1 when it is too far away."""
    calls, kernels = trace[COMM_OPS], trace[KERNELS]
    picked = np.flatnonzero(computing)
    at = (kernels.ends_ns() if before else kernels.ints("start_ns"))[picked]
    order = np.argsort(at, kind="stable")
    picked, at = picked[order], at[order]
    moment = (calls.ints("start_ns") if before else calls.ends_ns())[rows]
    place = np.searchsorted(at, moment, side="right") - 1 if before else np.searchsorted(at, moment, side="left")
    inside = (place >= 0) & (place < len(picked))
    place = np.clip(place, 0, len(picked) - 1)
    near = inside & (np.abs(at[place] - moment) <= MAX_GAP_NS)
    return np.where(near, picked[place], -1).astype(np.int64)


def _grouped(trace: Trace) -> Bools:
    kernels = trace[KERNELS]
    texts = (kernels.text("op_type"), kernels.text("name"))
    flags: Bools = np.logical_or.reduce([text.flags(lambda name: "groupedmatmul" in name.lower()) for text in texts])
    return flags
