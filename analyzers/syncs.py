"""Synchronisations of the host with the device, by the operator and the line of Python that caused them."""

from __future__ import annotations

from typing import Final

from ascend_perf.analyzers._decode import reloading
from ascend_perf.analyzers._idle import idle_of, waits_of
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers._syncs import sync_table
from ascend_perf.analyzers._syncs import syncs as syncs_in
from ascend_perf.model.finding import Metric, Result, Words
from ascend_perf.model.tables import RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer

NAME: Final = "syncs"


@analyzer(name=NAME, needs=(RUNTIME_CALLS,), order=81, section="host")
def syncs(trace: Trace) -> Result:
    """Table of synchronising calls; row H-05 (host-dispatch) says what they cost.

    Reads:
        runtime_calls, copies, host_ops, python_calls, steps, kernels, comm_ops.
    """
    windows = step_windows(trace)
    if not len(windows):
        raise NoData(Words("no step in the trace", "数据中没有 step"))
    idle = idle_of(trace)
    found = syncs_in(trace, windows, None if idle is None else waits_of(idle, reloading(trace)).idle)
    per_step = len(found) / len(windows)
    metric = Metric(name="syncs_per_step", value=per_step, unit="count", better="lower", rank=trace.meta.rank)
    tables = (sync_table(found, len(windows)),) if len(found) else ()
    return Result(metrics=(metric,), tables=tables)
