"""Kernels whose time other rows claim: unfused sequences with a fused operator, casts, the optimizer."""

from __future__ import annotations

from ascend_perf import intervals
from ascend_perf.analyzers._fusions import fusions_of
from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._operator_findings import CAST_MIN_RATIO
from ascend_perf.model.table import NULL, Bools, Text
from ascend_perf.model.tables import HOST_EVENTS, KERNELS
from ascend_perf.ops.classify import KernelClass


def claimed_kernels(time: KernelTime, classes: Text, *, with_optimizer: bool = True) -> Bools:
    """Kernels that rows C-10 (casts), C-12, C-13 or C-14 name already, so that no other row claims them twice.

    Args:
        time: the kernels of a rank.
        classes: class of each kernel.
        with_optimizer: also those of the optimizer, whether or not row C-14 finds fault with it.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name, core, launch_start_ns; host_events: kind optimizer; what
        `fusions_of` reads.
    """
    kernels = time.trace[KERNELS]
    claimed = fusions_of(time).claimed(len(kernels))
    casts = classes.equals(KernelClass.CAST.value)
    if time.kernel_share(casts) >= CAST_MIN_RATIO.value:
        claimed |= casts
    if not with_optimizer:
        return claimed
    claimed |= classes.equals(KernelClass.OPTIMIZER.value)
    events = time.trace[HOST_EVENTS]
    phase = events.text("kind").equals("optimizer") & (events.ints("dur_ns") != NULL)
    if phase.any():
        spans = intervals.merged(events.ints("start_ns")[phase], events.ends_ns()[phase])
        claimed |= intervals.contains(spans, kernels.ints("launch_start_ns"))
    return claimed
