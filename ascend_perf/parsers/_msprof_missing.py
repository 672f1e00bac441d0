"""What an export of msprof lacks, and the option of msprof that would have collected it.

Source: format reference, sections 4.1 to 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import Missing
from ascend_perf.parsers._ascend_checks import Tables
from ascend_perf.parsers._msprof_facts import ProcessFacts
from ascend_perf.parsers._msprof_tasks import JOINED

ANALYZE: Final = (
    "msprof --analyze=on --rule=communication,communication_matrix --output=DIR, of an export without --clear=on"
)
EXPORT: Final = "msprof --export=on --output=DIR, and keep all files of mindstudio_profiler_output"
FRAMEWORK: Final = (
    "record with torch_npu.profiler (or the profiler of the framework in use): msprof alone sees no framework"
)


def missing_data(tables: Mapping[str, Table], facts: ProcessFacts) -> tuple[Missing, ...]:
    """What the trace of one device does not hold, each with its remedy."""
    at = Tables(tables)
    kernels, comm = at[t.KERNELS], at[t.COMM_OPS]
    found = []
    if not len(kernels):
        found.append(Missing(what="kernels (op_summary, or the database)", remedy=f"--task-time=l1; {EXPORT}"))
    elif not kernels.has("op_type"):
        found.append(Missing(what="operator types, shapes and engines of the kernels", remedy="msprof --task-time=l1"))
    if len(kernels) and not _has_counters(kernels):
        found.append(
            Missing(
                what="counters of the engines (MAC, MTE, vector ratios)",
                remedy="msprof --ai-core=on --aic-mode=task-based --aic-metrics=PipeUtilization",
            )
        )
    if not len(at[t.RUNTIME_CALLS]):
        found.append(
            Missing(
                what="the host's calls of CANN: launches, synchronisations (msprof_*.json, or the database)",
                remedy=f"msprof --ascendcl=on --runtime-api=on; {EXPORT}",
            )
        )
    if not len(at[t.HOST_OPS]):
        found.append(Missing(what="operators of the framework, call stacks, garbage collections", remedy=FRAMEWORK))
    if len(comm) and not len(at[t.COMM_TASKS]):
        found.append(
            Missing(
                what="sub-tasks of the collectives: which peer is waited for",
                remedy=f"msprof --hccl=on; {EXPORT} (msprof_*.json)",
            )
        )
    if len(comm) and not len(at[t.COMM_TRANSFERS]):
        found.append(
            Missing(what="sizes and bandwidths of the collectives (analyze/communication.json)", remedy=ANALYZE)
        )
    if not len(at[t.MEMORY]):
        found.append(Missing(what="memory of the device", remedy="msprof --sys-hardware-mem=on"))
    if not (at[t.STEPS].ints("step_id") != NULL).any():
        found.append(Missing(what="step markers (step_trace is written in graph mode only)", remedy=FRAMEWORK))
    for option, what in _SWITCHED.items():
        if facts.switches.get(option) is False:
            found.append(Missing(what=what, remedy=f"msprof {option}"))
    return tuple(found)


_SWITCHED: Final = {
    "--sys-interconnection-profiling=on": "HCCS and PCIe throughput",
    "--sys-io-profiling=on": "NIC and RoCE throughput and errors",
    "--l2=on": "hits and misses of the L2 cache",
}


def _has_counters(kernels: Table) -> bool:
    plain = {column.name for column in t.KERNELS.columns}
    joined = {target for columns in JOINED.values() for target, _ in columns.values()}
    if any(kernels.has(name) for name in ("aic_total_cycles", "aiv_total_cycles", "aic_time_ns", "aiv_time_ns")):
        return True
    return any(name not in plain and name not in joined for name in kernels.names)
