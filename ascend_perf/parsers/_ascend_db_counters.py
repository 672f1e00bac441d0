"""Engine counters in ascend_pytorch_profiler*.db: one row per task and metric, made columns.

Source: format reference, sections 3.2 and 5.2.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import numpy as np

from ascend_perf.model.table import Ints, Values
from ascend_perf.parsers._ascend_sqlite import Strings, columns_of, first_rows, float_columns
from ascend_perf.parsers._numbers import wholes

_PMU: Final = {
    "aic_total_time": "aic_time_ns",
    "aiv_total_time": "aiv_time_ns",
    "aic_icache_miss_rate": "aic_icache_miss_ratio",
    "aiv_icache_miss_rate": "aiv_icache_miss_ratio",
}
"""Metrics whose name in the model differs."""

_PMU_INTS: Final = frozenset({"aic_time_ns", "aiv_time_ns", "aic_total_cycles", "aiv_total_cycles"})


def read_counters(connection: sqlite3.Connection, strings: Strings, task_ids: Ints) -> tuple[dict[str, Values], int]:
    """TASK_PMU_INFO as columns of the kernels with these task ids, one per metric, and the rows read.

    Times are ns; the time of a pipe is its ratio times the core time, and left out.
    """
    if not columns_of(connection, "TASK_PMU_INFO"):
        return {}, 0
    pmu = float_columns(connection, "TASK_PMU_INFO", "globalTaskId", "name", "value")
    ids = wholes(pmu["globalTaskId"])
    metric = strings.text(wholes(pmu["name"])).compact()
    row = first_rows(task_ids, ids)
    columns: dict[str, Values] = {}
    for code, name in enumerate(metric.values):
        target = _PMU.get(name, name)
        if name.endswith("_time") and target == name:
            continue
        values = np.full(len(task_ids), np.nan)
        mine = (metric.codes == code) & (row >= 0)
        values[row[mine]] = pmu["value"][mine]
        if target in _PMU_INTS:
            columns[target] = wholes(values)
        else:
            columns[target] = values
    return columns, len(pmu["value"])
