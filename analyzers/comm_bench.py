"""What collectives reach without a model around them (hccl_test): time and bandwidth by message size."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._collective_rates import bus_factor
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Floats, Table
from ascend_perf.model.tables import COMM_BENCH
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer

NAME: Final = "comm-bench"


@analyzer(name=NAME, needs=(COMM_BENCH,), order=62, section="communication")
def comm_bench(trace: Trace) -> Result:
    """Time, algorithm and bus bandwidth of each message size, and the best and the shortest of each operation.

    Reads:
        comm_bench.

    Source:
        rivals-and-methods, bus bandwidth as in NCCL's tests: algorithm bandwidth x 2(n-1)/n for allReduce, x (n-1)/n
        for allGather, reduceScatter and alltoall.
    """
    table = trace[COMM_BENCH]
    bus = _bus(table)
    algorithm, time = table.floats("algorithm_bytes_per_s"), table.ints("time_ns")
    op = table.text("op")
    metrics = []
    for name in op.compact().values:
        rows = op.equals(name)
        rates = algorithm[rows & np.isfinite(algorithm)]
        times = time[rows & (time != NULL)]
        if len(rates):
            metrics.append(
                Metric(name=f"bench_{name}_bytes_per_s", value=float(rates.max()), unit="bytes_per_s", better="higher")
            )
        if len(times):
            metrics.append(Metric(name=f"bench_{name}_min_ns", value=float(times.min()), unit="ns", better="lower"))
    return Result(metrics=tuple(metrics), tables=(_table(table, bus),))


def _bus(table: Table) -> Floats:
    """Bus bandwidth; unknown where the number of ranks is, or where the operation has none."""
    pairs = zip(table.text("op").to_list(), table.ints("ranks").tolist(), strict=True)
    factors = [None if op is None or ranks == NULL else bus_factor(op, ranks) for op, ranks in pairs]
    return table.floats("algorithm_bytes_per_s") * np.array([np.nan if f is None else f for f in factors], np.float64)


def _table(table: Table, bus: Floats) -> ResultTable:
    note = None
    failed = int(table.text("check").equals("failed").sum())
    if failed:
        note = Words(
            f"the results of {failed} messages were wrong: look at the links before the speed",
            f"{failed} 个消息的校验失败：先排查链路，再看性能",
        )
    elif not np.isfinite(bus).any():
        note = Words(
            "bus bandwidth needs the number of ranks: keep the mpirun command line in the output",
            "总线带宽需要卡数：请在输出中保留 mpirun 命令行",
        )
    return result_table(
        "comm-bench",
        Words("Collectives by message size (hccl_test)", "集合通信按消息大小（hccl_test）"),
        (
            Col("op", "Operation", "操作", table.text("op")),
            Col("ranks", "Ranks", "卡数", table.ints("ranks"), "count"),
            Col("dtype", "Type", "数据类型", table.text("dtype")),
            Col("size_bytes", "Size", "数据量", table.ints("size_bytes"), "bytes"),
            Col("time_ns", "Time", "耗时", table.ints("time_ns"), "ns"),
            Col(
                "algo_bytes_per_s",
                "Algorithm bandwidth",
                "算法带宽",
                table.floats("algorithm_bytes_per_s"),
                "bytes_per_s",
            ),
            Col("bus_bytes_per_s", "Bus bandwidth", "总线带宽", bus, "bytes_per_s"),
            Col("check", "Check", "校验", table.text("check")),
        ),
        note=note,
    )
