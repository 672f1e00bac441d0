"""What the logs of HCCL say: collectives by communicator and size, and errors with their meaning."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Result, ResultTable, Words
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.tables import LOG_EVENTS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer

NAME: Final = "communication-log"


@analyzer(name=NAME, needs=(LOG_EVENTS,), order=64, section="communication")
def communication_log(trace: Trace) -> Result:
    """Counts and sizes of the logged calls, and the errors in the order of their first line.

    A log has no durations: nothing is said about time.

    Reads:
        log_events.
    """
    table = trace[LOG_EVENTS]
    kind = table.text("kind")
    made = (_calls(table.select(kind.equals("call"))), _errors(table.select(kind.equals("error"))))
    return Result(tables=tuple(part for part in made if part is not None))


def _calls(table: Table) -> ResultTable | None:
    if not len(table):
        return None
    op, group, size = table.text("name"), table.text("group"), table.ints("size_bytes")
    keys, first, inverse = np.unique(
        np.column_stack((op.codes, group.codes)), axis=0, return_index=True, return_inverse=True
    )
    inverse = inverse.reshape(-1)
    count = np.bincount(inverse, minlength=len(keys))
    sizes = [size[(inverse == i) & (size != NULL)] for i in range(len(keys))]
    order = np.argsort(-count, kind="stable").tolist()
    return result_table(
        "log-calls",
        Words("Collectives in the log", "日志中的集合通信"),
        (
            Col("op", "Operation", "操作", [op[int(first[i])] for i in order]),
            Col("group", "Communicator", "通信域", [group[int(first[i])] for i in order]),
            Col("count", "Calls", "次数", [int(count[i]) for i in order], "count"),
            Col("median_bytes", "Median size", "数据量中位数",
                [float(np.median(sizes[i])) if len(sizes[i]) else None for i in order], "bytes"),
            Col("total_bytes", "Size in all", "总数据量",
                [int(sizes[i].sum()) if len(sizes[i]) else None for i in order], "bytes"),
        ),
    )  # fmt: skip


def _errors(table: Table) -> ResultTable | None:
    if not len(table):
        return None
    names = list(dict.fromkeys(name or "" for name in table.text("name").to_list()))
    counts = [int(table.text("name").equals(name).sum()) for name in names]
    return result_table(
        "log-errors",
        Words("Errors in the log", "日志中的错误"),
        (Col("code", "Error", "错误", names), Col("count", "Lines", "行数", counts, "count")),
        note=Words(
            "what each code means is in the notes of the trace; the first error of the first rank to fail counts",
            "错误码含义见该 trace 的说明；应以最先失败的卡的首个错误为准",
        ),
    )
