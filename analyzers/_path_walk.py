"""The critical path of each window: an unbroken chain of pieces that adds up to the window, and what lies on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._path_build import RankPath, end_of, rank_path
from ascend_perf.analyzers._path_elements import DEVICE, KINDS, Kind
from ascend_perf.analyzers._path_graph import End, Graph, walk
from ascend_perf.analyzers._path_tasks import SPECS
from ascend_perf.analyzers._steps import StepWindows, step_windows
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import Bools, Ints, TableSpec
from ascend_perf.model.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Path:
    """The pieces of a window's path, in order of time; arrays of shape (pieces,). Each ends where the next begins."""

    start_ns: int
    end_ns: int
    starts: Ints
    ends: Ints
    element: Ints
    task: Ints
    """Device task whose time a piece is, -1 where it is none."""
    instants: Ints
    """Instant at the end of each piece in the graph, -1 for the end of the window."""

    @property
    def lengths(self) -> Ints:
        """ns of each piece."""
        return self.ends - self.starts

    def by_element(self, count: int) -> Ints:
        """ns of each element on the path."""
        return np.bincount(self.element, weights=self.lengths, minlength=count).astype(np.int64)


def path_of(graph: Graph, end: End, start_ns: int, end_ns: int, unknown: int) -> Path:
    """The path of [start_ns, end_ns), walked back from its end."""
    way = walk(graph, end.at, start_ns)[::-1]
    first = int(way[0])
    element = np.concatenate(([unknown], graph.bind_element[way[1:]], [end.element]))
    is_lane = graph.bind[way[1:]] == way[1:] - 1
    task = np.concatenate(([-1], np.where(is_lane, graph.task[way[1:]], -1), [end.task]))
    time = np.clip(graph.time[way], start_ns, end_ns)
    starts = np.concatenate(([start_ns], time))
    ends = np.concatenate((time, [end_ns]))
    instants = np.concatenate(([first], way[1:], [-1]))
    keep = ends > starts
    return Path(
        start_ns=start_ns, end_ns=end_ns, starts=starts[keep], ends=ends[keep], element=element[keep],
        task=task[keep], instants=instants[keep],
    )  # fmt: skip


def paths_of(path: RankPath, windows: StepWindows, which: list[int]) -> list[Path]:
    """The paths of some steps."""
    unknown = path.elements.number(Kind.UNKNOWN)
    made = []
    for step in which:
        start, end = windows.window(step)
        made.append(path_of(path.graph, end_of(path, end)[0], start, end, unknown))
    return made


def kind_ns(path: Path, kinds: Ints) -> Ints:
    """ns of each kind on a path, in the order of `KINDS`; they add up to the window.

    Args:
        path: the path.
        kinds: kind of each element.
    """
    return np.bincount(kinds[path.element], weights=path.lengths, minlength=len(KINDS)).astype(np.int64)


def path_share(trace: Trace, spec: TableSpec, rows: Bools) -> float | None:
    """Share of the steps that some kernels, collectives or copies take on the critical path, 0..1.

    Work that hides behind other work is not on the path: what is gained on it does not shorten the step. A bound of the
    gain of such rows is this share, not their share of the step's time.

    Args:
        trace: the rank.
        spec: KERNELS, COMM_OPS or COPIES.
        rows: mask of its rows.

    Returns:
        None when the steps have no length.

    Source:
        rivals-and-methods, methods 5.5 and 5.8.
    """
    windows = step_windows(trace)
    whole = int((windows.ends - windows.starts).sum())
    if whole <= 0:
        return None
    path = rank_path(trace)
    mine = (path.tasks.spec == SPECS.index(spec)) & np.asarray(rows, bool)[
        np.where(path.tasks.spec == SPECS.index(spec), path.tasks.row, 0)
    ] if len(rows) else np.zeros(len(path.tasks), bool)  # fmt: skip
    spent = 0
    for one in paths_of(path, windows, list(range(len(windows)))):
        on = (one.task >= 0) & mine[np.clip(one.task, 0, None)] if len(mine) else np.zeros(len(one.task), bool)
        spent += int(one.lengths[on].sum())
    return min(1.0, spent / whole)


def path_time(trace: Trace, *kinds: Kind) -> IntervalSet:
    """When the critical path of the steps is in one of the kinds; device tasks when none is given."""
    path = rank_path(trace)
    wanted = np.isin(path.elements.kind_codes(), [KINDS.index(kind) for kind in kinds or DEVICE])
    windows = step_windows(trace)
    paths = paths_of(path, windows, list(range(len(windows))))
    parts = [intervals.merged(one.starts[wanted[one.element]], one.ends[wanted[one.element]]) for one in paths]
    return intervals.union(*parts)
