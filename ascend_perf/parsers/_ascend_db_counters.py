"""Engine counters in ascend_pytorch_profiler*.db: one row per task and metric, made columns.

Source: format reference, sections 3.2 and 5.2.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Ints, Values
from ascend_perf.parsers._ascend_sqlite import Strings, columns_of, first_rows, float_columns

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
    ids = np.where(np.isnan(pmu["globalTaskId"]), NULL, pmu["globalTaskId"]).astype(np.int64)
    metric = strings.text(np.where(np.isnan(pmu["name"]), NULL, pmu["name"]).astype(np.int64)).compact()
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
            columns[target] = np.where(np.isnan(values), NULL, np.rint(np.nan_to_num(values))).astype(np.int64)
        else:
            columns[target] = values
    return columns, len(pmu["value"])
