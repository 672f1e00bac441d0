"""The input pipeline of MindSpore: its operators, queues and workers, and which of them holds the others up."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.table import Table
from ascend_perf.model.tables import DATA_PIPELINE
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer

NAME: Final = "data-pipeline"

BUSY_CPU_RATIO: Final = threshold("D-01", "max_cpu_ratio")
IDLE_CPU_RATIO: Final = threshold("D-01", "min_cpu_ratio")
EMPTY_QUEUE_RATIO: Final = threshold("D-01", "max_empty_queue_ratio")
MAX_NAMED: Final = 5
"""So many operators are named in a note."""


@analyzer(name=NAME, needs=(DATA_PIPELINE,), order=88, section="host")
def data_pipeline(trace: Trace) -> Result:
    """Operators of the input pipeline with their queues, and stages and totals with their times.

    The files hold no times of events, so nothing is said about the share of a step: `host-dispatch` does that.

    Reads:
        data_pipeline.
    """
    table = trace[DATA_PIPELINE]
    kind = table.text("kind")
    operators = table.select(kind.equals("operator"))
    times = table.select(~kind.equals("operator"))
    tables = tuple(made for part in (_operators(operators), _times(times)) if (made := part) is not None)
    batch = times.select(times.text("name").equals("batch") & times.text("kind").equals("total"))
    metrics = tuple(
        Metric(name="data_batch_ns", value=float(value), unit="ns", better="lower")
        for value in batch.ints("average_ns")[:1].tolist()
    )
    return Result(metrics=metrics, tables=tables)


def _operators(table: Table) -> ResultTable | None:
    if not len(table):
        return None
    return result_table(
        "data-pipeline",
        Words("Operators of the data pipeline", "数据流水线算子"),
        (
            Col("name", "Operator", "算子", table.text("name")),
            Col("op_id", "Id", "编号", table.ints("op_id")),
            Col("parent", "Taken by", "下游算子", table.ints("parent")),
            Col("workers", "Workers", "并行线程数", table.ints("workers"), "count"),
            Col("queue_average", "Queue, average", "队列平均长度", table.floats("queue_average")),
            Col(
                "queue_utilization_ratio",
                "Queue in use",
                "队列利用率",
                table.floats("queue_utilization_ratio"),
                "ratio",
            ),
            Col("queue_empty_ratio", "Queue empty", "队列为空占比", table.floats("queue_empty_ratio"), "ratio"),
            Col("cpu_ratio", "CPU load", "CPU 利用率", table.floats("cpu_ratio"), "ratio"),
        ),
        note=_note(table),
    )


def _note(table: Table) -> Words | None:
    """What MindSpore's own thresholds say."""
    workers, cpu = table.ints("workers"), table.floats("cpu_ratio")
    # Only an operator that others feed or that feeds others has a queue: the last one has none.
    empty = np.nan_to_num(table.floats("queue_empty_ratio"), nan=0.0) > EMPTY_QUEUE_RATIO.value
    busy = np.nan_to_num(cpu, nan=0.0) > BUSY_CPU_RATIO.value
    idle = (np.nan_to_num(cpu, nan=1.0) < IDLE_CPU_RATIO.value) & (workers > 1)
    parts = (
        (empty, "the queue behind {0} is mostly empty: it is slower than what takes its output",
         "{0} 的输出队列大部分时间为空：其处理慢于下游"),
        (busy, "{0} loads its CPUs fully: raise num_parallel_workers", "{0} 的 CPU 已跑满：增大 num_parallel_workers"),
        (idle, "{0} leaves its workers idle: lower num_parallel_workers", "{0} 的线程空闲：减小 num_parallel_workers"),
    )  # fmt: skip
    said = []
    for rows, en, zh in parts:
        names = list(dict.fromkeys(name or "?" for name in table.text("name").take(rows).to_list()))[:MAX_NAMED]
        if names:
            said.append((en.format(", ".join(names)), zh.format("、".join(names))))
    return Words("; ".join(en for en, _ in said), "；".join(zh for _, zh in said)) if said else None


def _times(table: Table) -> ResultTable | None:
    if not len(table):
        return None
    return result_table(
        "data-stages",
        Words("Times of the data pipeline", "数据流水线耗时"),
        (
            Col("name", "Operation", "操作", table.text("name")),
            Col("stage", "Stage", "阶段", table.text("stage")),
            Col("count", "Count", "次数", table.ints("count"), "count"),
            Col("average_ns", "Average", "平均耗时", table.ints("average_ns"), "ns"),
        ),
    )
