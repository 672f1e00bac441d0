"""What a torch_npu profile lacks and how to collect it; and whether its files agree with each other.

Source: format reference, sections 1.1 and 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table, TableSpec
from ascend_perf.model.trace import Check, Missing
from ascend_perf.ops.classify import computes
from ascend_perf.parsers._ascend_calls import left_out
from ascend_perf.parsers._ascend_comm import CommFigures
from ascend_perf.parsers._ascend_meta import Facts

COMPUTING_TOLERANCE_US: Final = 0.1
"""Kernel durations are cut to 3 decimals: 0.02 us on 187 rows. Source: format reference, 11.8."""

COMPUTING_TOLERANCE_RATIO: Final = 1e-5
"""The same for long captures. Source: format reference, 11.8."""

STAGE_TOLERANCE_US: Final = 0.35
"""Stage is computed in float us of epoch size and quantised to 0.25 us. Source: format reference, 1.7."""

COMM_TOLERANCE_US: Final = 0.01
"""Communication figures agree to 1e-3 us per set. Source: format reference, 11.8; status: measured."""

_EXPERIMENTAL: Final = "torch_npu.profiler._ExperimentalConfig"
_LEVEL1: Final = f"{_EXPERIMENTAL}(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)"


class Tables:
    """Tables by specification; absent ones are empty."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables

    def __getitem__(self, spec: TableSpec) -> Table:
        table = self._tables.get(spec.name)
        return Table.empty(spec) if table is None else table


def missing_data(tables: Mapping[str, Table], facts: Facts, *, has_timeline: bool) -> tuple[Missing, ...]:
    """What the profile does not hold, each with the switch that would have collected it.

    Args:
        tables: of the rank.
        facts: settings of the profile.
        has_timeline: whether a trace_view.json or a profiler database was read.
    """
    at = Tables(tables)
    kernels, comm = at[t.KERNELS], at[t.COMM_OPS]
    settings = facts.settings
    found = []
    if not len(kernels):
        found.append(
            Missing(
                what="kernels (kernel_details.csv, or the database)",
                remedy="torch_npu.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]), and keep"
                " all files of ASCEND_PROFILER_OUTPUT",
            )
        )
    elif not kernels.has("op_type"):
        found.append(Missing(what="operator types, shapes and engines of the kernels", remedy=_LEVEL1))
    if len(kernels) and not _has_counters(kernels):
        found.append(
            Missing(
                what="counters of the engines (MAC, MTE, vector ratios)",
                remedy=f"{_LEVEL1[:-1]}, aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization)",
            )
        )
    if not has_timeline:
        found.append(
            Missing(
                what="the host's side: operators, launches, synchronisations (trace_view.json)",
                remedy=f"{_EXPERIMENTAL}(export_type=torch_npu.profiler.ExportType.Text), and keep trace_view.json",
            )
        )
    elif not len(at[t.RUNTIME_CALLS]):
        found.append(Missing(what="host calls of CANN (AscendCL, Node)", remedy=_LEVEL1))
    if len(comm) and not len(at[t.COMM_TASKS]):
        found.append(Missing(what="sub-tasks of the collectives: which peer is waited for", remedy=_COMM_TASKS))
    if len(comm) and not len(at[t.COMM_TRANSFERS]):
        found.append(Missing(what="sizes and bandwidths of the collectives (communication.json)", remedy=_LEVEL1))
    if len(at[t.COMM_TRANSFERS]) and not len(at[t.COMM_LINKS]):
        found.append(Missing(what="rates between pairs of ranks (communication_matrix.json)", remedy=_KEEP))
    if not len(at[t.MEMORY]):
        was_on = settings.profile_memory is True
        remedy = _KEEP if was_on else "torch_npu.profiler.profile(profile_memory=True)"
        found.append(Missing(what="memory of the device", remedy=remedy))
    else:
        found += [Missing(what=what, remedy=_KEEP) for spec, what in _WITH_MEMORY.items() if not len(at[spec])]
    if has_timeline and not at[t.HOST_OPS].has("input_shapes") and settings.record_shapes is not True:
        found.append(
            Missing(what="input shapes of the operators", remedy="torch_npu.profiler.profile(record_shapes=True)")
        )
    if has_timeline and not at[t.HOST_OPS].has("stack"):
        found.append(Missing(what="call stacks", remedy="torch_npu.profiler.profile(with_stack=True)"))
    if not (at[t.STEPS].ints("step_id") != NULL).any() and not (at[t.EXPORTED_STEPS].ints("step_id") != NULL).any():
        found.append(Missing(what="step markers", remedy=_STEPS))
    if has_timeline and settings.gc_detect_threshold is None:
        found.append(Missing(what="garbage collections of Python", remedy=f"{_EXPERIMENTAL}(gc_detect_threshold=0.1)"))
    if facts.sys_interconnection is False:
        found.append(Missing(what="HCCS and PCIe throughput", remedy=f"{_EXPERIMENTAL}(sys_interconnection=True)"))
    return tuple(found)


_KEEP: Final = "keep all files of ASCEND_PROFILER_OUTPUT"
_WITH_MEMORY: Final = {
    t.MEMORY_BLOCKS: "allocations of the operators (operator_memory.csv)",
    t.MODULE_MEMORY: "memory by component (npu_module_mem.csv)",
}
"""Tables that the exporter writes beside the memory curve."""
_STEPS: Final = (
    "torch_npu.profiler.profile(schedule=torch_npu.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)) and"
    " prof.step() after each step"
)
_COMM_TASKS: Final = f"{_LEVEL1}; text exports keep them in trace_view.json, database exports at any level"


def _has_counters(kernels: Table) -> bool:
    plain = {column.name for column in t.KERNELS.columns}
    if any(kernels.has(name) for name in ("aic_total_cycles", "aiv_total_cycles", "aic_time_ns", "aiv_time_ns")):
        return True
    return any(name not in plain and not name.startswith("l2_") for name in kernels.names)


def cross_checks(tables: Mapping[str, Table], figures: CommFigures) -> tuple[Check, ...]:
    """Figures that two files of the profile must agree on."""
    at = Tables(tables)
    checks = []
    exported, steps, kernels, comm = at[t.EXPORTED_STEPS], at[t.STEPS], at[t.KERNELS], at[t.COMM_OPS]
    for row in range(len(exported)):
        number = int(exported.ints("step_id")[row])
        label = "the capture" if number == NULL else f"step {number}"
        checks += _identity(exported, row, label)
        own = kernels.ints("step_id") == number if number != NULL else np.ones(len(kernels), bool)
        own = own & computes(kernels)
        theirs = int(exported.ints("computing_ns")[row])
        timed = own & (kernels.ints("start_ns") != NULL)
        if timed.any() and theirs != NULL and len(exported) == len(np.unique(exported.ints("step_id"))):
            union = intervals.from_durations(kernels.ints("start_ns")[timed], kernels.ints("dur_ns")[timed])
            ours = intervals.total(union)
            checks.append(
                Check(
                    name="computing",
                    ours=ours / 1e3,
                    theirs=theirs / 1e3,
                    unit="us",
                    tolerance=max(COMPUTING_TOLERANCE_US, COMPUTING_TOLERANCE_RATIO * theirs / 1e3),
                    where=f"{label}: union of the kernels against step_trace_time",
                )
            )
    checks += _op_counts(at[t.EXPORTED_OPS], kernels)
    elapse = sum(call.elapse_ns for call in figures.calls if call.elapse_ns != NULL)
    if figures.calls and len(comm) and comm.has("dur_ns"):
        checks.append(
            Check(
                name="communication",
                ours=int(comm.ints("dur_ns")[~left_out(comm, figures)].sum()) / 1e3,
                theirs=elapse / 1e3,
                unit="us",
                tolerance=max(COMM_TOLERANCE_US, 0.001 * len(comm)),
                where="sum of the collectives against the exporter's communication figures",
            )
        )
    checks += _overlap_span(at[t.OVERLAP], exported, steps)
    return tuple(checks)


def _identity(exported: Table, row: int, label: str) -> list[Check]:
    names = ("computing_ns", "communication_not_overlapped_ns", "free_ns", "stage_ns", "bubble_ns")
    computing, not_overlapped, free, stage, bubble = (int(exported.ints(name)[row]) for name in names)
    if NULL in (computing, not_overlapped, free, stage):
        return []
    return [
        Check(
            name="step identity",
            ours=(computing + not_overlapped + free) / 1e3,
            theirs=(stage + (0 if bubble == NULL else bubble)) / 1e3,
            unit="us",
            tolerance=STAGE_TOLERANCE_US,
            where=f"{label}: computing + not overlapped + free against stage + bubble, all of the exporter",
        )
    ]


def _op_counts(exported: Table, kernels: Table) -> list[Check]:
    """Counts only: a capture with several devices or a cut file shows here."""
    counted = exported.ints("count")
    if not len(exported) or not len(kernels):
        return []
    return [
        Check(
            name="kernel count",
            ours=float(len(kernels)),
            theirs=float(counted[counted != NULL].sum()),
            unit="count",
            tolerance=0.0,
            where="kernels against op_statistic.csv",
        )
    ]


def _overlap_span(overlap: Table, exported: Table, steps: Table) -> list[Check]:
    """The span of Overlap Analysis against Stage: only where one step is all that was captured."""
    if not len(overlap) or len(exported) != 1 or len(steps) != 1:
        return []
    stage, bubble = int(exported.ints("stage_ns")[0]), int(exported.ints("bubble_ns")[0])
    if stage == NULL:
        return []
    start, end = int(overlap.ints("start_ns").min()), int(overlap.ends_ns().max())
    theirs = stage + (0 if bubble == NULL else bubble)
    host_start, host_dur = int(steps.ints("host_start_ns")[0]), int(steps.ints("host_dur_ns")[0])
    # The exporter may let the step last until the end of the host's ProfilerStep (1.7): then Stage is longer.
    later = end if host_start == NULL else max(end, host_start + host_dur)
    ours = min((end - start, later - start), key=lambda span: abs(span - theirs))
    return [
        Check(
            name="span",
            ours=ours / 1e3,
            theirs=theirs / 1e3,
            unit="us",
            tolerance=STAGE_TOLERANCE_US,
            where="span of Overlap Analysis against the exporter's stage + bubble",
        )
    ]


def same_rows(name: str, database: Table, text: Table) -> Check:
    """Both exports of one capture hold the same rows: their durations add up alike."""
    return Check(
        name=f"{name} in both exports",
        ours=int(database.ints("dur_ns").sum()) / 1e3,
        theirs=int(text.ints("dur_ns").sum()) / 1e3,
        unit="us",
        tolerance=max(COMPUTING_TOLERANCE_US, 0.001 * max(len(database), len(text))),
        where="sum of durations in the database against kernel_details.csv",
    )


def same_calls(database: CommFigures, text: CommFigures) -> Check:
    """analysis.db and communication.json hold the same figures of the calls that both of them list.

    Each leaves out what starts outside of its own steps. When they share no call at all, all are compared.
    """
    ours, theirs = _elapse_times(database), _elapse_times(text)
    shared = ours.keys() & theirs.keys() or ours.keys() | theirs.keys()
    return Check(
        name="communication figures in both exports",
        ours=sum(ours[key] for key in shared) / 1e3,
        theirs=sum(theirs[key] for key in shared) / 1e3,
        unit="us",
        tolerance=COMM_TOLERANCE_US,
        where="sum of elapse times in analysis.db against communication.json",
    )


def _elapse_times(figures: CommFigures) -> Counter[tuple[str, str]]:
    """Elapse time in ns by name and group of the call, which the exporter gives to one call of a capture only."""
    times = Counter[tuple[str, str]]()
    for call in figures.calls:
        if call.elapse_ns != NULL:
            times[call.name, call.hash_id] += call.elapse_ns
    return times
