"""Flows of trace_view.json from the host to the device: where each device task was launched.

Source: format reference, section 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf.model.table import NULL, Ints
from ascend_perf.parsers._ascend_trace import Columns


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Where a device task was launched on the host, by its start: all arrays in order of `starts`, shape (n,)."""

    starts: Ints
    times: Ints
    pids: Ints
    tids: Ints

    def of(self, starts: Ints) -> Ints:
        """Row of the launch of each device task that starts at these times, -1 where there is none."""
        if not len(self.starts):
            return np.full(len(starts), -1, np.int64)
        place = np.clip(np.searchsorted(self.starts, starts), 0, len(self.starts) - 1)
        return np.where(self.starts[place] == starts, place, -1).astype(np.int64)

    def times_of(self, starts: Ints) -> Ints:
        """When each device task was launched, `NULL` where that is not known."""
        rows = self.of(starts)
        result = np.full(len(starts), NULL, np.int64)
        result[rows >= 0] = self.times[rows[rows >= 0]]
        return result


def launches(starts: Columns, ends: Columns) -> Launches:
    """Flows joined by id. One start may have several ends; ends without a start are left out."""
    ids, first = np.unique(starts.ints("id"), return_index=True)
    end_ids, end_times = ends.ints("id"), ends.ints("time")
    if not len(ids) or not len(end_ids):
        nothing = np.empty(0, np.int64)
        return Launches(starts=nothing, times=nothing, pids=nothing, tids=nothing)
    place = np.clip(np.searchsorted(ids, end_ids), 0, len(ids) - 1)
    joined = (ids[place] == end_ids) & (end_times != NULL) & (end_ids != NULL)
    order = np.argsort(end_times[joined], kind="stable")
    rows = first[place[joined]][order]
    return Launches(
        starts=end_times[joined][order],
        times=starts.ints("time")[rows],
        pids=starts.ints("pid")[rows],
        tids=starts.ints("tid")[rows],
    )
