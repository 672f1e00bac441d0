"""Idle time before a collective while the host is still issuing its tasks (row N-12)."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Cause, Idle, union_of
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import COMM_OPS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace

MIN_RATIO: Final = threshold("N-12", "min_idle_ratio")

_API: Final = re.compile(r"^hccl|^hcom", re.IGNORECASE)
_ISSUING: Final = (Cause.LAUNCH, Cause.OP, Cause.PYTHON, Cause.NOTHING, Cause.DEVICE)


def is_collective_api(calls: Table) -> Bools:
    """Calls of the host into HCCL."""
    named: Bools = calls.text("api").flags(lambda api: bool(_API.search(api)))
    return named | calls.text("layer").equals("hccl")


def issuing(trace: Trace, idle: Idle) -> IntervalSet:
    """Idle time that ends with a collective, while the host was inside HCCL; EMPTY below the limit.

    Reads:
        runtime_calls: api, layer, start_ns, dur_ns; comm_ops: start_ns.
    """
    calls = trace[RUNTIME_CALLS]
    inside = union_of(calls, is_collective_api(calls))
    if not len(inside.starts):
        return EMPTY
    starts = trace[COMM_OPS].ints("start_ns")
    ends_here = np.isin(idle.gaps.ends, starts[starts != NULL])
    before = intervals.merged(idle.gaps.starts[ends_here], idle.gaps.ends[ends_here])
    host = intervals.union(*(idle.parts[cause] for cause in _ISSUING))
    lost = intervals.intersection(intervals.intersection(before, inside), host)
    return lost if intervals.total(lost) >= MIN_RATIO.value * idle.span.step_ns else EMPTY
