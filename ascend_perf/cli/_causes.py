"""What explains a regression: the traces of both sides compared, the nodes of the call tree that grew most."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ascend_perf.bench import scenario
from ascend_perf.errors import AscendPerfError
from ascend_perf.gate.outcome import Explanation, Node, Verdict
from ascend_perf.model.finding import Words
from ascend_perf.model.table import Ints, Text

if TYPE_CHECKING:
    from ascend_perf.compare.trees import TreeDiff
    from ascend_perf.gate.inputs import Side
    from ascend_perf.model.result import Benchmark, Launch
    from ascend_perf.model.trace import Trace

MOST: Final = 5
"""Nodes that are named."""
MAX_BENCHMARKS: Final = 10
"""Benchmarks whose traces are read; each costs seconds. The others say so."""
MAX_LABELS: Final = 4
"""Innermost names of a path that are shown."""
DEVICE_SHARE: Final = 0.5
"""From this share of the growth of a step on, tasks of the device explain it; below, the host is looked at. Status:
assumed."""
BETWEEN: Final = "(between recorded calls)"

_LINE: Final = re.compile(r"\(\d+\)(?=: )")
"""The line of a Python frame, which moves with every edit above it. (Addresses of objects are taken off by readers.)"""


def explanations(
    verdict: Verdict, base: Side, head: Side, *, progress: Callable[[str], None] = lambda _: None
) -> tuple[Explanation, ...]:
    """For each benchmark with a regression of times or counts: the nodes, or why there are none."""
    before = {one.name: one for one in base.results.benchmarks}
    after = {one.name: one for one in head.results.benchmarks}
    wanted = dict.fromkeys(
        row.benchmark for row in verdict.having("regression")
        if row.kind in ("metric", "count") and row.benchmark in before and row.benchmark in after
    )  # fmt: skip
    found = []
    for place, name in enumerate(wanted):
        if place >= MAX_BENCHMARKS:
            found.append(Explanation(benchmark=name, missing=Words(
                f"only the traces of {MAX_BENCHMARKS} benchmarks are compared", f"仅比较 {MAX_BENCHMARKS} 个基准的轨迹"
            )))  # fmt: skip
            continue
        progress(f"comparing the traces of {name}")
        found.append(replace(
            _explained(before[name], after[name], base.folder, head.folder),
            simulated=any(row.simulated for row in verdict.rows if row.benchmark == name),
            measured_side=next((row.measured_side for row in verdict.rows if row.benchmark == name), None),
        ))  # fmt: skip
    return tuple(found)


def _explained(base: Benchmark, head: Benchmark, base_folder: Path, head_folder: Path) -> Explanation:
    from ascend_perf import pipeline

    folders = [_folder(one, folder) for one, folder in ((base, base_folder), (head, head_folder))]
    if folders[0] is None or folders[1] is None:
        side, side_zh = ("base", "BASE") if folders[0] is None else ("head", "HEAD")
        return Explanation(benchmark=head.name, missing=Words(
            f"no run directory of {side} was kept: there is no trace to compare",
            f"未保留 {side_zh} 的运行目录，没有可比较的轨迹",
        ))  # fmt: skip
    if without := [label for label, folder in zip(("base", "head"), folders, strict=True) if not _has_trace(folder)]:
        return Explanation(benchmark=head.name, missing=Words(
            f"{' and '.join(without)} kept no trace (commands and servers leave none): profile both sides with "
            "`ascend-perf collect`, then `ascend-perf compare` names what differs",
            f"{'、'.join(label.upper() for label in without)} 没有轨迹（命令与服务不会留下轨迹）：请用 "
            "`ascend-perf collect` 采集两侧，再用 `ascend-perf compare` 找出差异",
        ))  # fmt: skip
    try:
        traces = [pipeline.load(folder, jobs=1).traces[0] for folder in folders if folder is not None]
        nodes = growing_nodes(traces[0], traces[1])
    except AscendPerfError as error:
        # The comment is public: where the folders lie on this machine is not for it.
        what = error.what
        for folder in (base_folder, head_folder, base_folder.resolve(), head_folder.resolve()):
            if folder.name:
                what = what.replace(f"{folder}/", "")
        return Explanation(benchmark=head.name, missing=Words(
            f"the traces cannot be compared: {what}", f"轨迹无法比较：{what}"
        ))  # fmt: skip
    if not nodes:
        return Explanation(benchmark=head.name, missing=Words(
            "no node of the traces grew: what is slower is not in a step that was profiled",
            "轨迹中没有变慢的节点：变慢的部分不在采集的 step 内",
        ))  # fmt: skip
    return Explanation(benchmark=head.name, nodes=nodes)


def _has_trace(folder: Path | None) -> bool:
    """Whether there is anything but what a command or a server leaves: its log and the telemetry."""
    return folder is not None and any(path.name not in scenario.FILES for path in folder.iterdir())


def _folder(benchmark: Benchmark, folder: Path) -> Path | None:
    """The run directory of the launch in the middle, of those that were kept."""
    kept = [
        (_step_ns(launch), launch.index, folder / launch.folder) for launch in benchmark.launches
        if launch.status == "complete" and launch.folder is not None and (folder / launch.folder).is_dir()
    ]  # fmt: skip
    return sorted(kept)[len(kept) // 2][2] if kept else None


def _step_ns(launch: Launch) -> float:
    return float(np.median(launch.steps_ns)) if launch.steps_ns else 0.0


def growing_nodes(base: Trace, head: Trace, most: int = MOST) -> tuple[Node, ...]:
    """Nodes that take longer in head, those that grew most first; of the device where it explains the growth.

    Raises:
        AscendPerfError: a trace has nothing to compare.
    """
    from ascend_perf.compare.trees import diff_traces

    steps = [_typical_step_ns(trace) for trace in (base, head)]
    diff = diff_traces(base, head)
    if diff.total_a_ns and diff.total_b_ns:
        grown = diff.total_b_ns - diff.total_a_ns
        if grown > 0 and grown >= DEVICE_SHARE * (steps[1] - steps[0]):
            return _device_nodes(diff, most)
    return host_nodes(base, head, most)


def _typical_step_ns(trace: Trace) -> float:
    from ascend_perf.analyzers import _steps

    windows = _steps.step_windows(trace)
    return float(np.median(windows.ends - windows.starts)) if len(windows) else 0.0


def _device_nodes(diff: TreeDiff, most: int) -> tuple[Node, ...]:
    from ascend_perf.compare.trees import changes

    grown = [one for one in changes(diff) if one.time_b_ns > one.time_a_ns][:most]
    return tuple(
        Node(name=_path(one.path), base_ns=one.time_a_ns, head_ns=one.time_b_ns, base_count=one.calls_a,
             head_count=one.calls_b) for one in grown
    )  # fmt: skip


def _path(labels: tuple[str, ...]) -> str:
    # An operator that calls itself again (once for autograd, once for the device) is one name.
    labels = tuple(name for name, _ in itertools.groupby(labels))
    shown = labels[-MAX_LABELS:]
    return " > ".join(("…", *shown) if len(labels) > len(shown) else shown) or BETWEEN


def host_nodes(base: Trace, head: Trace, most: int = MOST) -> tuple[Node, ...]:
    """Calls of the host that take longer in head, per step (median over the steps of a trace).

    Calls of equal path are one node. A path of both sides counts its own time, without the calls below it; one that
    only one side has counts as a whole, at its outermost call: of a fused operator that was replaced, what came shows.
    The time of the step outside of all calls is a node of its own.
    """
    sides = [_HostCalls(trace) for trace in (base, head)]
    labels = Text.concat([side.label for side in sides]).compact()
    offset = len(sides[0].parent)
    parent = np.concatenate([sides[0].parent, np.where(sides[1].parent >= 0, sides[1].parent + offset, -1)])
    path, path_parent, path_label = _paths(parent, labels.codes.astype(np.int64))
    count = len(path_parent)
    calls, times = [], []
    for side, mine in zip(sides, (path[:offset], path[offset:]), strict=True):
        calls.append(_by_step(mine, np.ones(len(mine), np.int64), side.step, count, side.steps))
        times.append(_by_step(mine, side.self_ns, side.step, count, side.steps))
    there = [table.sum(axis=1) > 0 for table in calls]
    both = there[0] & there[1]
    # The outermost call of each path that one side alone has; parents come before their children.
    node = np.arange(count)
    for row in np.flatnonzero(~both).tolist():
        up = int(path_parent[row])
        if up >= 0 and not both[up]:
            node[row] = node[up]
    medians = []
    for table in times:
        rolled = np.zeros_like(table)
        np.add.at(rolled, node, table)
        medians.append(np.median(rolled, axis=1) if table.shape[1] else np.zeros(count))
    per_step = [np.median(table, axis=1) if table.shape[1] else np.zeros(count) for table in calls]
    delta = medians[1] - medians[0]
    names = [labels.values[code] for code in path_label.tolist()]

    def name(row: int) -> str:
        parts = []
        while row >= 0:
            parts.append(names[row])
            row = int(path_parent[row])
        return _path(tuple(reversed(parts)))

    found = [
        Node(name=name(row), base_ns=float(medians[0][row]), head_ns=float(medians[1][row]),
             base_count=float(per_step[0][row]), head_count=float(per_step[1][row]))
        for row in np.argsort(-delta, kind="stable")[:most].tolist() if delta[row] > 0
    ]  # fmt: skip
    rest = [side.between_ns() for side in sides]
    if rest[1] > rest[0]:
        found.append(Node(name=BETWEEN, base_ns=rest[0], head_ns=rest[1], base_count=1, head_count=1))
    return tuple(sorted(found, key=lambda one: -one.delta_ns)[:most])


class _HostCalls:
    """Calls that started within a step, of all threads, in the order of (thread, start)."""

    def __init__(self, trace: Trace) -> None:
        from ascend_perf.analyzers import _steps
        from ascend_perf.analyzers._flame_tree import CLASSES
        from ascend_perf.analyzers._host_nest import host_nest
        from ascend_perf.compare.work_tree import label_of

        nest, self.windows = host_nest(trace), _steps.step_windows(trace)
        step = np.searchsorted(self.windows.starts, nest.starts, side="right") - 1
        inside = step >= 0
        inside[inside] = nest.starts[inside] < self.windows.ends[step[inside]]
        rows = np.flatnonzero(inside)
        self.parent: Ints = nest.within(rows)
        self.step: Ints = step[rows]
        self.steps = len(self.windows)
        self.dur_ns: Ints = (nest.ends - nest.starts)[rows]
        below = np.zeros(len(rows), np.int64)
        has = self.parent >= 0
        np.add.at(below, self.parent[has], self.dur_ns[has])
        self.self_ns: Ints = np.maximum(self.dur_ns - below, 0)
        self.thread: Ints = nest.thread[rows]
        name, kind = nest.name.take(rows).compact(), nest.kind[rows]
        # One label per pair of name and class: what numbers an instance is taken off modules and ranges alone.
        pairs, inverse = np.unique(name.codes.astype(np.int64) * len(CLASSES) + kind, return_inverse=True)
        words = [label_of(name.values[pair // len(CLASSES)], pair % len(CLASSES)) for pair in pairs.tolist()]
        words = [_LINE.sub("", word) for word in words]
        self.label = Text.of(words).take(inverse)

    def between_ns(self) -> float:
        """Time of a step (median) outside of the calls of the thread that is busiest."""
        if not self.steps:
            return 0.0
        roots = self.parent < 0
        threads, at = np.unique(self.thread[roots], return_inverse=True)
        spans = np.zeros((len(threads), self.steps), np.int64)
        np.add.at(spans, (at, self.step[roots]), self.dur_ns[roots])
        busiest = spans[spans.sum(axis=1).argmax()] if len(threads) else np.zeros(self.steps, np.int64)
        return float(np.median(np.maximum(self.windows.ends - self.windows.starts - busiest, 0)))


def _paths(parent: Ints, label: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct paths: the path of each call, and parent and label of each path; parents come first."""
    from ascend_perf.analyzers._flame_tree import depths

    depth = depths(parent)
    path = np.full(len(parent), -1, np.int64)
    parents: list[Ints] = []
    labels: list[Ints] = []
    made, width = 0, int(label.max(initial=0)) + 1
    for level in range(int(depth.max(initial=-1)) + 1):
        mine = np.flatnonzero(depth == level)
        up = np.where(parent[mine] >= 0, path[np.clip(parent[mine], 0, None)], -1)
        distinct, inverse = np.unique((up + 1) * width + label[mine], return_inverse=True)
        path[mine] = made + inverse
        parents.append(distinct // width - 1)
        labels.append(distinct % width)
        made += len(distinct)
    empty = np.empty(0, np.int64)
    return path, np.concatenate(parents or [empty]), np.concatenate(labels or [empty])


def _by_step(path: Ints, amount: Ints, step: Ints, paths: int, steps: int) -> Ints:
    summed = np.zeros((paths, steps), np.int64)
    np.add.at(summed, (path, step), amount)
    return summed
