"""Transfers that computing would hide if a late rank came in time: they belong to the wait for it, not to N-01.

While a rank is late its peers compute on; when it comes at last their computing is over, and transfers that usually run
beside it are exposed. The calls are played again without the waits for the late rank: each stream takes its calls in
order, a call begins when it is ready and the one before it has ended, and the computing stays where it was.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import Calls, is_move
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import COMM_TASKS, KERNELS

QUEUED_NS: Final = 100_000
"""A call that begins so soon after the one before it on its stream was queued behind it. Status: assumed."""


def exposed_by_delay(calls: Calls, waits: IntervalSet, mask: Bools) -> IntervalSet:
    """The exposed time of transfers that would lie beside computing had nobody been waited for in `waits`.

    A lower bound where launches are not recorded: then a call that was queued is not moved further than its own wait.

    Args:
        calls: the calls of the rank.
        waits: when it waited for the late rank.
        mask: the calls that may be moved.

    Reads:
        comm_ops: stream, launch_start_ns, launch_end_ns; comm_tasks; kernels: start_ns, dur_ns, launch_start_ns.
    """
    rows = np.flatnonzero(mask)
    late = intervals.covered(waits, calls.starts[rows], calls.ends[rows])
    # Planes run side by side: without the wait a call still takes as long as its busiest plane moves data.
    late = np.minimum(late, np.maximum(calls.ends[rows] - calls.starts[rows] - _busiest_plane(calls)[rows], 0))
    if not late.any():
        return EMPTY
    ready = _ready(calls)[rows]
    streams = calls.table.ints("stream")[rows]
    found = [
        _on_stream(calls, waits, rows[mine], late[mine], ready[mine])
        for stream in np.unique(streams).tolist()
        for mine in (np.flatnonzero(streams == stream),)
    ]
    return intervals.union(*found)


def _busiest_plane(calls: Calls) -> Ints:
    """Time in which data moves on the plane of each call that moves data longest."""
    tasks = calls.trace[COMM_TASKS]
    place = np.full(int(calls.rows.max()) + 2, -1, np.int64)
    place[calls.rows] = np.arange(len(calls))
    owner = tasks.ints("comm_op")
    use = is_move(tasks) & (owner >= 0) & (owner < len(place)) & (tasks.ints("dur_ns") > 0)
    call, plane = place[owner[use]], tasks.ints("plane")[use]
    longest = np.zeros(len(calls), np.int64)
    if not len(call):
        return longest
    keys, index = distinct(call, plane)
    sums = np.zeros(keys.shape[1], np.int64)
    np.add.at(sums, index, tasks.ints("dur_ns")[use])
    inside = keys[0] >= 0
    np.maximum.at(longest, keys[0][inside], sums[inside])
    return longest


def _ready(calls: Calls) -> Ints:
    """Earliest time at which each call could have begun: it was launched, and the kernels launched before it were done.

    `NULL` where its launch is not recorded.
    """
    launched, until = calls.table.ints("launch_start_ns"), calls.table.ints("launch_end_ns")
    ready = np.where(until == NULL, launched, until)
    kernels = calls.trace[KERNELS]
    begins, ends = kernels.ints("launch_start_ns"), kernels.ends_ns()
    known = np.flatnonzero((begins != NULL) & (ends != NULL))
    if not len(known):
        return np.full(len(calls), NULL, np.int64)
    order = known[np.argsort(begins[known], kind="stable")]
    done = np.maximum.accumulate(ends[order])
    at = np.searchsorted(begins[order], launched, side="left") - 1
    data = np.where(at >= 0, done[np.maximum(at, 0)], launched)
    return np.where(launched == NULL, NULL, np.maximum(ready, data)).astype(np.int64)


def _on_stream(calls: Calls, waits: IntervalSet, rows: Ints, late: Ints, ready: Ints) -> IntervalSet:
    """What becomes hidden of the calls of one stream."""
    order = np.argsort(calls.starts[rows], kind="stable")
    rows, late, ready = rows[order], late[order], ready[order]
    starts, ends = calls.starts[rows], calls.ends[rows]
    if bool((starts[1:] < ends[:-1]).any()):
        return EMPTY  # calls of several streams: nothing says which was queued behind which
    queued = np.append(False, starts[1:] - ends[:-1] <= QUEUED_NS)
    begin = np.where(queued & (ready != NULL), np.minimum(ready, starts), starts)
    need = ends - starts - late
    before = np.cumsum(need) - need
    moved = ends - (np.cumsum(need) + np.maximum.accumulate(begin - before))
    shift = np.clip(moved, 0, np.cumsum(late))
    # The parts after the last wait for the late rank move; each keeps its place among the others of its stream.
    last = np.searchsorted(waits.starts, ends, side="left") - 1
    tails = starts.copy()
    if len(waits.starts):
        tails = np.maximum(starts, np.where(last >= 0, np.minimum(waits.ends[np.maximum(last, 0)], ends), starts))
    gain = intervals.covered(calls.busy, tails - shift, ends - shift) - intervals.covered(calls.busy, tails, ends)
    parts = [
        _newly_hidden(calls, int(tails[i]), int(ends[i]), int(shift[i]), int(gain[i]))
        for i in np.flatnonzero((gain > 0) & (ends > tails)).tolist()
    ]
    return intervals.union(*parts)


def _newly_hidden(calls: Calls, start: int, end: int, shift: int, most: int) -> IntervalSet:
    """Exposed parts of [start, end) that lie beside computing once it is moved, at most `most` ns of them."""
    exposed = intervals.complement(calls.busy, start, end)
    then = intervals.clip(calls.busy, start - shift, end - shift)
    parts = intervals.intersection(exposed, IntervalSet(then.starts + shift, then.ends + shift))
    kept = np.minimum(np.cumsum(parts.ends - parts.starts), most)
    ends = parts.starts + np.diff(np.append(0, kept))
    return intervals.merged(parts.starts, ends)
