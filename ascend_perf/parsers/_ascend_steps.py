"""Windows of the steps of an Ascend rank, and which kernel and collective belongs to which step.

Rule of the exporter (format reference, 1.7 and 9.4): a step begins with the first device task that was launched inside
the host's ProfilerStep; rows belong to a step by their start on the device. The window ends with the last of its tasks:
so it is in real data (span of AlexNet = Stage), although the source also considers the end of the ProfilerStep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Ints, Table


@dataclass(frozen=True, kw_only=True)
class HostSteps:
    """The ProfilerStep windows of the host, in order of their start; all arrays of shape (n,)."""

    ids: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> HostSteps:
        """From (number, start, end); a number seen twice becomes one window."""
        merged: dict[int, tuple[int, int]] = {}
        for number, start, end in rows:
            low, high = merged.get(number, (start, end))
            merged[number] = (min(low, start), max(high, end))
        ordered = sorted((start, end, number) for number, (start, end) in merged.items())
        columns = np.array(ordered, np.int64).reshape(-1, 3)
        return cls(ids=columns[:, 2].copy(), starts=columns[:, 0].copy(), ends=columns[:, 1].copy())

    def __len__(self) -> int:
        return len(self.ids)

    def holding(self, at: Ints) -> Ints:
        """Index of the window that holds each instant, -1 outside of all and for unknown instants."""
        index = np.searchsorted(self.starts, at, side="right") - 1
        inside = (index >= 0) & (at != NULL)
        if len(self):
            inside &= at < self.ends[np.clip(index, 0, None)]
        return np.where(inside, index, -1).astype(np.int64)


NO_HOST_STEPS = HostSteps.of([])


def assign_steps(kernels: Table, comm: Table, host: HostSteps, launches: tuple[Ints, Ints]) -> tuple[Table, Table]:
    """Kernels and collectives with their step_id, for files that do not say it themselves.

    Args:
        kernels: compute kernels.
        comm: collectives.
        host: ProfilerStep windows.
        launches: when the host launched each kernel and each collective, `NULL` where that is not known.
    """
    if not len(host):
        return kernels, comm
    starts = np.concatenate((kernels.ints("start_ns"), comm.ints("start_ns")))
    of_launch = host.holding(np.concatenate(launches))
    if not (of_launch >= 0).any():
        # Nothing ties tasks to launches: the window that was open when the task started, the last one for the rest.
        of = host.holding(starts)
        tail = (of < 0) & (starts != NULL) & (starts >= host.ends[-1])
        of = np.where(tail, len(host) - 1, of)
    else:
        begins = np.full(len(host), np.iinfo(np.int64).max)
        rows = (of_launch >= 0) & (starts != NULL)
        np.minimum.at(begins, of_launch[rows], starts[rows])
        # A step without a task of its own begins nowhere on the device: it takes no rows.
        order = np.argsort(begins, kind="stable")
        order = order[begins[order] < np.iinfo(np.int64).max]
        place = np.searchsorted(begins[order], starts, side="right") - 1
        of = np.where((place >= 0) & (starts != NULL), order[np.clip(place, 0, None)], -1)
        # What starts after the host's step and the last task launched in it is of no step (evaluation, the tail).
        ends = host.ends.copy()
        np.maximum.at(ends, of_launch[rows], np.concatenate((kernels.ends_ns(), comm.ends_ns()))[rows])
        of = np.where((of >= 0) & (starts < ends[np.clip(of, 0, None)]), of, -1)
    ids = np.where(of >= 0, host.ids[np.clip(of, 0, None)], NULL).astype(np.int64)
    split = len(kernels)
    return _with_steps(kernels, ids[:split]), _with_steps(comm, ids[split:])


def _with_steps(table: Table, ids: Ints) -> Table:
    return table.with_columns({"step_id": ids}) if len(table) else table


def step_table(kernels: Table, comm: Table, host: HostSteps, fallback: tuple[int, int] | None) -> Table:
    """The steps of the rank: one row per step id that a task or a ProfilerStep names, else one row for everything.

    Args:
        kernels: compute kernels with step_id.
        comm: collectives with step_id; their starts must be exact.
        host: ProfilerStep windows; one without tasks is still a step.
        fallback: span of all that was recorded, for a capture without any task.
    """
    ids = np.concatenate((kernels.ints("step_id"), comm.ints("step_id")))
    starts = np.concatenate((kernels.ints("start_ns"), comm.ints("start_ns")))
    ends = np.concatenate((kernels.ends_ns(), comm.ends_ns()))
    timed = (starts != NULL) & (ends != NULL)
    named = np.unique(np.concatenate((ids[ids != NULL], host.ids)))
    if not len(named):
        if timed.any():
            fallback = int(starts[timed].min()), int(ends[timed].max())
        if fallback is None:
            return Table.empty(t.STEPS)
        return _rows([(NULL, fallback[0], fallback[1], NULL, NULL)])
    rows = []
    for number in named.tolist():
        own = timed & (ids == number)
        at = np.flatnonzero(host.ids == number)
        host_start, host_end = (int(host.starts[at[0]]), int(host.ends[at[0]])) if len(at) else (NULL, NULL)
        if own.any():
            start, end = int(starts[own].min()), int(ends[own].max())
        elif len(at):
            start, end = host_start, host_end
        else:
            start, end = NULL, NULL
        rows.append((number, start, end, host_start, host_end))
    rows.sort(key=lambda row: row[1] if row[3] == NULL else row[3])
    return _rows(rows)


def _rows(rows: list[tuple[int, int, int, int, int]]) -> Table:
    columns = np.array(rows, np.int64).reshape(-1, 5)
    step, start, end, host_start, host_end = (columns[:, i].copy() for i in range(5))
    return Table(
        t.STEPS,
        {
            "step_id": step,
            "start_ns": start,
            "dur_ns": np.where(start == NULL, NULL, end - np.where(start == NULL, 0, start)),
            "host_start_ns": host_start,
            "host_dur_ns": np.where(host_start == NULL, NULL, host_end - np.where(host_start == NULL, 0, host_start)),
        },
    )
