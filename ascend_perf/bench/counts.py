"""What one profiled step did, in whole numbers without noise: what a gate may compare exactly.

Counted is the last profiled step of the first rank, from the trace as our readers give it:

    host_ops          operators of the framework that no other operator called
    host_ops_all      the same with those that they called
    kernels           kernels on the device
    launches          calls of the host that launched them (a graph is one)
    collectives       collective and point-to-point calls; collective_bytes is their size, where the trace tells all
    copies            copies and sets on the device; copy_bytes is their size
    host_syncs        calls in which the host waits for the device
    kernel_flops      arithmetic of the kernels whose shapes are recorded; kernel_bytes their operands
    allocations       blocks that the framework's allocator gave out; allocated_bytes their size
    model_flops       work of the model in a step, by formula; hardware_flops with recomputation
    sent_bytes        bytes that the rank sends which sends most, from the operators of torch.distributed
    memory_peak       most memory that the framework had allocated on the device (0 on a CPU is left out)
    memory_<part>     sums over the tensors themselves: weights, gradients, optimizer, activations, cache

What a trace does not tell is left out; it is never 0.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.analyzers._idle import syncs_of
from ascend_perf.analyzers._steps import in_step, step_windows
from ascend_perf.errors import InputError
from ascend_perf.model.run import Manifest
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_OPS, KERNELS, MEMORY_BLOCKS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.flops import work_of
from ascend_perf.parsers._parallel import parse_units
from ascend_perf.parsers.discover import find_units, parsers

_OF_METRICS: Final = {
    "model_flops_per_step": "model_flops", "hardware_flops_per_step": "hardware_flops",
    "communication_per_step": "sent_bytes", "peak_device_memory": "memory_peak",
}  # fmt: skip
_PREDICTED: Final = "predicted_"


def counts_of(folder: Path, manifest: Manifest) -> tuple[dict[str, int], tuple[str, ...]]:
    """The counts of a run directory, and what could not be counted with the reason."""
    counts: dict[str, int] = {}
    for metric in manifest.metrics:
        name = _OF_METRICS.get(metric.name) or (metric.name if metric.name.startswith("memory_") else None)
        if name is not None and metric.value is not None and not metric.name.startswith(_PREDICTED):
            counts[name] = round(metric.value)
    paths = manifest.files.get("trace", ())
    if not paths:
        return counts, ("no trace: kernels, launches and collectives were not counted",)
    try:
        trace = _first_rank(folder, paths)
    except InputError as error:
        return counts, (f"the trace was not counted: {error.what}",)
    return {**counts, **counts_of_trace(trace)}, ()


def _first_rank(folder: Path, paths: tuple[str, ...]) -> Trace:
    units, _ = find_units(folder / paths[0])
    traces: list[Trace] = []
    for outcome in parse_units(units, parsers(), workers=1, progress=lambda text: None):
        if isinstance(outcome, InputError):
            raise outcome
        traces += outcome
    if not traces:
        raise InputError("there is no rank in it")
    return min(traces, key=lambda trace: trace.meta.rank or 0)


def counts_of_trace(trace: Trace) -> dict[str, int]:
    """The counts of the last step of a rank."""
    windows = step_windows(trace)
    if not len(windows):
        return {}
    last = len(windows) - 1
    start, end = windows.window(last)
    counts: dict[str, int] = {}

    def within(starts: Ints) -> Bools:
        rows: Bools = (starts != NULL) & (starts >= start) & (starts < end)
        return rows

    if trace.has(HOST_OPS):
        ops = trace[HOST_OPS]
        rows = np.flatnonzero(within(ops.ints("start_ns")))
        counts["host_ops_all"] = len(rows)
        counts["host_ops"] = int(_outermost(ops, rows).sum())
    if trace.has(KERNELS):
        counts |= _of_kernels(trace, in_step(trace, trace[KERNELS], last))
    if trace.has(COMM_OPS):
        calls = trace[COMM_OPS].select(in_step(trace, trace[COMM_OPS], last))
        counts["collectives"] = len(calls)
        _add_sum(counts, "collective_bytes", calls.ints("size_bytes"))
    if trace.has(COPIES):
        copies = trace[COPIES].select(in_step(trace, trace[COPIES], last))
        counts["copies"] = len(copies)
        _add_sum(counts, "copy_bytes", copies.ints("size_bytes"))
    if trace.has(RUNTIME_CALLS):
        counts["host_syncs"] = int(within(syncs_of(trace).starts).sum())
    if trace.has(MEMORY_BLOCKS):
        blocks = trace[MEMORY_BLOCKS]
        given = within(blocks.ints("alloc_ns"))
        counts["allocations"] = int(given.sum())
        _add_sum(counts, "allocated_bytes", blocks.ints("size_bytes")[given])
    return counts


def _of_kernels(trace: Trace, rows: Bools) -> dict[str, int]:
    kernels = trace[KERNELS].select(rows)
    counts = {"kernels": len(kernels)}
    launched = kernels.ints("launch_start_ns")
    if len(launched) and (launched != NULL).all():
        counts["launches"] = len(np.unique(launched))
    work = work_of(trace[KERNELS], trace[HOST_OPS])
    for name, values in (("kernel_flops", work.flops[rows]), ("kernel_bytes", work.bytes[rows])):
        known = values[~np.isnan(values)]
        # Shares of an operator's work add up to whole numbers but for rounding.
        if len(known) and (total := math.fsum(known.tolist())) > 0:
            counts[name] = round(total)
    return counts


def _outermost(ops: Table, rows: Ints) -> Bools:
    """Which operators no other one of their thread contains."""
    starts, ends, threads = ops.ints("start_ns")[rows], ops.ends_ns()[rows], ops.ints("thread")[rows]
    order = np.lexsort((-ends, starts, threads))
    outer = np.zeros(len(rows), bool)
    for thread in np.unique(threads):
        mine = order[threads[order] == thread]
        reached = np.maximum.accumulate(ends[mine])
        outer[mine] = np.r_[True, starts[mine][1:] >= reached[:-1]] if len(mine) else False
    return outer


def _add_sum(counts: dict[str, int], name: str, values: Ints) -> None:
    """A sum, only where every part of it is known."""
    if not len(values) or (values != NULL).all():
        counts[name] = int(values.sum())
