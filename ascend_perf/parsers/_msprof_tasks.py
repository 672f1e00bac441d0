"""Tables of msprof about single tasks and iterations: task_time, step_trace, msprof_tx, and columns joined to kernels.

Source: format reference, section 4.3.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text, Values
from ascend_perf.model.trace import Dropped
from ascend_perf.parsers._ascend_comm import op_of
from ascend_perf.parsers._ascend_csv import CsvFile
from ascend_perf.parsers._ascend_kernels import COMM_CORES, CORES, MAX_DUR_NS, MAX_START_NS, far_off
from ascend_perf.parsers._ascend_sqlite import first_rows
from ascend_perf.parsers._ascend_words import named
from ascend_perf.parsers._numbers import MAX_TOTAL, bounded

REDUCE_STAGES: Final = (
    "collectives come from the reduce stages of step_trace: their kind, group and size are not in the profile"
)
MIXED_ITERATIONS: Final = (
    "several models count their iterations alike: the iterations were numbered anew, in order of their start"
)


def usable_times(start: Ints, dur: Ints, what: str) -> tuple[Bools, tuple[Dropped, ...]]:
    """Rows with a usable place in time, and counts of the others by reason."""
    keep = np.ones(len(start), bool)
    dropped = []
    for reason, bad in (
        (f"{what} without a readable start or duration", (start == NULL) | (dur == NULL)),
        (f"{what} before 1970 or after 2200", (start < 0) | (start > MAX_START_NS)),
        (f"{what} with a negative duration", dur < 0),
        (f"{what} over a day long", dur > MAX_DUR_NS),
        (f"{what} over a day away from the others", far_off(start)),
    ):
        count = int((bad & keep).sum())
        keep &= ~bad
        if count:
            dropped.append(Dropped(reason=reason, count=count))
    return keep, tuple(dropped)


TASK_NUMBERS: Final = ("task_start(us)", "task_stop(us)", "task_time(us)")


def tasks_of(file: CsvFile) -> tuple[Table, Table, Table, tuple[Dropped, ...]]:
    """task_time: kernels, collectives and copies; and dropped rows.

    The table has every task of the scheduler; waits, records and the sub-tasks of collectives are none of the three.
    """
    start, dur = file.scaled(3, "task_start(us)"), file.scaled(3, "task_time(us)")
    keep, dropped = usable_times(start, dur, "task")
    order = np.argsort(start, kind="stable")
    order = order[keep[order]]
    kind, name = file.text("kernel_type"), file.text("kernel_name")
    is_kernel = kind.flags(lambda word: word in CORES)
    is_comm = kind.isin(COMM_CORES) & name.flags(lambda word: word.lower().startswith(("hcom_", "hccl")))
    is_copy = kind.flags(lambda word: word.startswith(("MEMCPY", "MEMSET", "PCIE_DMA")) or word == "SDMA_SQE")
    is_copy |= name.flags(lambda word: word.startswith(("MEMCPY", "MEMSET")))
    columns: dict[str, Values] = {"start_ns": start, "dur_ns": dur, "stream": file.ids("stream_id")}
    rows = {label: order[mask[order]] for label, mask in (("k", is_kernel), ("c", is_comm), ("m", is_copy))}
    kernels = Table(
        t.KERNELS,
        _taken({**columns, "name": named(name), "core": kind.relabel(CORES.get), "task_id": file.ids("task_id")},
               rows["k"]),
    )  # fmt: skip
    comm = Table(t.COMM_OPS, _taken({**columns, "name": named(name), "op": named(name).relabel(op_of)}, rows["c"]))
    copies = Table(t.COPIES, _taken({**columns, "name": kind, "kind": kind.relabel(_copy_kind)}, rows["m"]))
    return kernels, comm, copies, dropped


def _copy_kind(word: str) -> str | None:
    if word.startswith("MEMSET"):
        return "MEMSET"
    return "D2D" if word == "SDMA_SQE" else None


def _taken(columns: dict[str, Values], rows: Ints) -> dict[str, Values]:
    return {n: v.take(rows).compact() if isinstance(v, Text) else v[rows] for n, v in columns.items()}


# ---- iterations ------------------------------------------------------------------------------------------------------

_REDUCE: Final = re.compile(r"Reduce Start\(us\)(\.\d+)?")


def iterations_of(file: CsvFile) -> tuple[Table, Ints, list[str], tuple[Dropped, ...]]:
    """step_trace: the iterations of graph mode as steps, the model of each, warnings and dropped rows.

    An iteration ends at Iteration End and took Iteration Time.
    """
    end, dur = file.scaled(3, "Iteration End(us)"), file.scaled(3, "Iteration Time(us)")
    known = (end != NULL) & (dur != NULL)
    start = np.where(known, np.where(known, end, 0) - np.where(known, dur, 0), NULL)
    keep, dropped = usable_times(start, np.where(known, dur, NULL), "iteration")
    order = np.argsort(start, kind="stable")
    rows = order[keep[order]]
    ids, model = file.ids("Iteration ID")[rows], file.ids("Model ID")[rows]
    warnings = []
    if len(np.unique(ids)) < len(ids):
        ids = np.arange(1, len(rows) + 1)
        warnings.append(MIXED_ITERATIONS)
    steps = Table(t.STEPS, {"step_id": ids, "start_ns": start[rows], "dur_ns": dur[rows]})
    return steps, model, warnings, dropped


def in_iterations(table: Table, steps: Table, model: Ints) -> Table:
    """Kernels or collectives with the iteration that holds their start: of their model, where both are known."""
    if not len(table) or not len(steps) or table.has("step_id"):
        return table
    start = table.ints("start_ns")
    own = table.ints("model_id") if table.spec is t.KERNELS else np.full(len(table), NULL, np.int64)
    several = len(np.unique(model[model != NULL])) > 1
    result = np.full(len(table), NULL, np.int64)
    for number in np.unique(model).tolist() if several else [NULL]:
        mine = np.flatnonzero(model == number) if several else np.arange(len(steps))
        begin, end = steps.ints("start_ns")[mine], steps.ends_ns()[mine]
        place = np.searchsorted(begin, start, side="right") - 1
        inside = (place >= 0) & (start != NULL) & (start < end[np.clip(place, 0, None)])
        if several:
            inside &= (own == number) | (own == NULL)
        result = np.where(inside & (result == NULL), steps.ints("step_id")[mine][np.clip(place, 0, None)], result)
    return table.with_columns({"step_id": result.astype(np.int64)})


def reduces_of(file: CsvFile) -> Table:
    """The pairs Reduce Start, Reduce Duration of step_trace as collectives of unknown kind."""
    parts = []
    names = [name for name in file.names if _REDUCE.fullmatch(name)]
    for number, name in enumerate(names, 1):
        start = file.scaled(3, name)
        dur = file.scaled(3, name.replace("Start", "Duration"))
        keep, _ = usable_times(start, dur, "reduce stage")
        count = int(keep.sum())
        parts.append(
            Table(
                t.COMM_OPS,
                {
                    "start_ns": start[keep],
                    "dur_ns": dur[keep],
                    "name": Text.full(count, f"Reduce {number}"),
                    "op": Text.full(count, "other"),
                },
            )
        )
    return Table.concat(t.COMM_OPS, parts).sorted_by("start_ns")


# ---- marks and joined columns ----------------------------------------------------------------------------------------


def marks_of(file: CsvFile) -> tuple[Table, tuple[Dropped, ...]]:
    """msprof_tx: the user's marks and ranges as host events."""
    start, end = file.scaled(3, "Start_time(us)"), file.scaled(3, "End_time(us)")
    known = (start != NULL) & (end != NULL)
    dur = np.where(known, np.where(known, end, 0) - np.where(known, start, 0), NULL)
    keep, dropped = usable_times(start, dur, "mark")
    return (
        Table(
            t.HOST_EVENTS,
            {
                "start_ns": start[keep],
                "dur_ns": dur[keep],
                "name": named(file.text("message").take(keep).compact()),
                "kind": Text.full(int(keep.sum()), "user"),
                "thread": file.ids("tid")[keep],
            },
        ).sorted_by("start_ns"),
        dropped,
    )


def os_calls_of(file: CsvFile) -> Table:
    """os_runtime_statistic: calls of the operating system, summed over processes and threads as they come."""
    name = file.text("Name")
    keep = name.codes >= 0
    return Table(
        t.EXPORTED_APIS,
        {
            "api": name.take(keep),
            "layer": Text.full(int(keep.sum()), "os"),
            "count": bounded(file.scaled(0, "Count"), 0, MAX_TOTAL)[keep],
            "total_ns": bounded(file.scaled(3, "Time(us)"), 0, MAX_TOTAL)[keep],
            "max_ns": bounded(file.scaled(3, "Max(us)"), 0, MAX_TOTAL)[keep],
        },
    )


def comm_statistic_of(file: CsvFile) -> Table:
    """communication_statistic as exported_ops of the engine COMM."""
    op_type = file.text("OP Type")
    keep = op_type.codes >= 0
    return Table(
        t.EXPORTED_OPS,
        {
            "op_type": op_type.take(keep),
            "core": Text.full(int(keep.sum()), "COMM"),
            "count": bounded(file.scaled(0, "Count"), 0, MAX_TOTAL)[keep],
            "total_ns": bounded(file.scaled(3, "Total Time(us)"), 0, MAX_TOTAL)[keep],
        },
    )


JOINED: Final[dict[str, dict[str, tuple[str, float]]]] = {
    "l2_cache": {"Hit Rate": ("l2_hit_ratio", 1.0), "Victim Rate": ("l2_victim_ratio", 1.0)},
    "soc_pmu": {"TLB Hit Rate": ("tlb_hit_ratio", 1.0), "TLB Miss Rate": ("tlb_miss_ratio", 1.0)},
    "page_fault": {"Page Fault Num": ("page_faults", 1.0)},
    "aicpu": {
        "Compute_time(us)": ("aicpu_compute_ns", 1000.0),
        "Memcpy_time(us)": ("aicpu_memcpy_ns", 1000.0),
        "Dispatch_time(us)": ("aicpu_dispatch_ns", 1000.0),
    },
    "data_preprocess": {
        "Compute_time(us)": ("aicpu_compute_ns", 1000.0),
        "Memcpy_time(us)": ("aicpu_memcpy_ns", 1000.0),
        "Dispatch_time(us)": ("aicpu_dispatch_ns", 1000.0),
    },
}  # fmt: skip
"""Columns of tables about single tasks: their name beside the kernels, and the factor to it."""

_STREAMS: Final = ("Stream Id", "Stream ID")
_TASKS: Final = ("Task Id", "Task ID")
_NODES: Final = ("Op Name", "Node")


def joined_to(kernels: Table, file: CsvFile, base: str) -> tuple[Table, int]:
    """The kernels with the columns of a table about single tasks, by stream, task and name; and the rows that fit none.

    Numbers of tasks repeat after 65536: a key that several rows have takes them in their order.
    """
    name = Text.concat((kernels.text("name"), file.text(*_NODES))).codes.astype(np.int64)
    stream = np.concatenate((kernels.ints("stream"), file.ids(*_STREAMS)))
    task = np.concatenate((kernels.ints("task_id"), file.ids(*_TASKS)))
    groups = _groups(stream, task, name)
    split = len(kernels)
    width = len(groups) + 1
    mine = groups[:split] * width + _ordinals(groups[:split])
    theirs = groups[split:] * width + _ordinals(groups[split:])
    rows = first_rows(theirs, mine)
    used = rows[rows >= 0]
    columns: dict[str, Values] = {}
    for source, (target, factor) in JOINED[base].items():
        values = file.floats(source) * factor
        own = np.where(rows >= 0, values[np.clip(rows, 0, None)] if len(values) else np.nan, np.nan)
        if not np.isnan(own).all():
            columns[target] = own
    return (kernels.with_columns(columns) if columns else kernels), file.rows - len(used)


def _groups(*columns: Ints) -> Ints:
    """A number for each row, the same for rows that agree in all columns."""
    result = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, codes = np.unique(column, return_inverse=True)
        _, result = np.unique(result * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return result.astype(np.int64)


def _ordinals(groups: Ints) -> Ints:
    """How many earlier rows are of the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.searchsorted(ordered, ordered)
    result = np.empty(len(groups), np.int64)
    result[order] = np.arange(len(groups)) - first
    return result
