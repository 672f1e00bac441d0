"""Flame graphs: where the host spends its time, and what the device's time was launched by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers import _steps
from ascend_perf.analyzers._flame_device import DeviceView, Tasks, device_tasks, device_tree
from ascend_perf.analyzers._flame_tree import CLASSES, CODE, MIN_SHARE_RATIO, Rows, Tree, pruned, tree_of
from ascend_perf.analyzers._host_nest import HostNest, host_nest
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Result, ResultTable, Words
from ascend_perf.model.table import NULL, Text
from ascend_perf.model.tables import STEPS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import format_ns, format_ratio

VIEWS: Final = ("host", "device-module", "device-stack", "device-op")
"""The graphs, by the name that the command line and the result tables (`flame-...`) use."""

_TITLES: Final = {
    "host": Words("Flame graph of the host", "Host 火焰图"),
    "device-module": Words("Flame graph of the device by module", "Device 火焰图（按模块）"),
    "device-stack": Words("Flame graph of the device by Python stack", "Device 火焰图（按 Python 调用栈）"),
    "device-op": Words("Flame graph of the device by operator", "Device 火焰图（按算子）"),
}


class View(NamedTuple):
    """One flame graph, before anything is cut from it."""

    name: str
    tree: Tree
    cut_ns: int
    """Host time that is in no node, since calls cross each other."""


@analyzer(name="flame", needs=[], order=36, section="operators")
def flame(trace: Trace) -> Result:
    """Trees of the time on the host, and of the time on the device by what launched it.

    Reads:
        python_calls, host_ops, host_events, runtime_calls: start_ns, dur_ns, thread and names; host_ops:
        sequence_number, stack; kernels, comm_ops, copies: dur_ns, host_op, correlation; steps: host_start_ns,
        host_dur_ns.

    Returns:
        Tables flame-host, flame-device-module, flame-device-stack, flame-device-op, one row per node: parent (row of
        the table, unknown for roots), name, self_ns, total_ns, count, class. Largest total first.
    """
    steps = len(_steps.step_windows(trace))
    tables = tuple(_table(view, steps) for view in views(trace))
    if not tables:
        raise NoData(
            Words("no calls of the host in the steps, so that nothing says what launched the tasks of the device",
                  "step 内没有 Host 调用记录，无法判断 Device 任务由谁下发")
        )  # fmt: skip
    return Result(tables=tables)


def views(trace: Trace, names: tuple[str, ...] = VIEWS) -> Iterator[View]:
    """Flame graphs of a rank that are not empty, whole; views that the profile has no data for are left out.

    Args:
        trace: the rank.
        names: which of `VIEWS`.
    """
    nest = host_nest(trace)
    tasks: Tasks | None = None
    for name in names:
        if name == "host":
            tree = host_tree(trace, nest)
        else:
            tasks = tasks if tasks is not None else device_tasks(trace, nest)
            made = device_tree(trace, nest, tasks, _DEVICE_VIEWS[name]) if len(tasks.dur_ns) else None
            tree = made if made is not None else _EMPTY
        if len(tree):
            yield View(name, tree, nest.cut_ns if name == "host" else 0)


_DEVICE_VIEWS: Final[dict[str, DeviceView]] = {"device-module": "module", "device-stack": "stack", "device-op": "op"}
_NONE: Final = np.empty(0, np.int64)
_EMPTY: Final = Tree(parent=_NONE, name=Text.of([]), kind=_NONE, self_ns=_NONE, total_ns=_NONE, count=_NONE)


def host_tree(trace: Trace, nest: HostNest) -> Tree:
    """Time of the host's calls inside of the steps, one root per thread.

    The total of a thread is the length of the union of its calls in the steps: the self times below it add up to that.
    Time in which nothing was recorded is in no node.

    Reads:
        steps: host_start_ns, host_dur_ns (the host's own marks of the steps), else the windows of the steps.
    """
    if not len(nest):
        return _EMPTY
    # The same range may be recorded twice, as a call of Python and as an event: it is one node.
    up = np.clip(nest.parent, 0, None)
    twice = (nest.parent >= 0) & (nest.starts == nest.starts[up]) & (nest.ends == nest.ends[up])
    twice &= nest.name.codes == nest.name.codes[up]
    shown = np.flatnonzero(~twice)
    parent = nest.parent
    while (hidden := (parent >= 0) & twice[np.clip(parent, 0, None)]).any():
        parent = np.where(hidden, nest.parent[parent], parent)
    parent = parent[shown]
    parent = np.where(parent >= 0, (np.cumsum(~twice) - 1)[parent], -1)
    windows = _host_windows(trace)
    covered = intervals.covered(windows, nest.starts[shown], nest.ends[shown])
    self_ns = covered.copy()
    inner = np.flatnonzero(parent >= 0)
    np.subtract.at(self_ns, parent[inner], covered[inner])
    threads, number = np.unique(nest.thread[shown], return_inverse=True)
    roots = Rows(
        parent=np.full(len(threads), -1, np.int64),
        name=Text.of([f"thread {thread}" for thread in threads.tolist()]),
        kind=np.full(len(threads), CODE["thread"], np.int64),
    )
    below = Rows(
        parent=np.where(parent >= 0, parent + len(threads), number),
        name=nest.name.take(shown),
        kind=nest.kind[shown],
    )
    zeros = np.zeros(len(threads), np.int64)
    count = (nest.is_first[shown] & (covered > 0)).astype(np.int64)
    return tree_of(roots.plus(below), np.concatenate((zeros, self_ns)), np.concatenate((zeros + 1, count)))


def _host_windows(trace: Trace) -> IntervalSet:
    steps = trace[STEPS]
    start, dur = steps.ints("host_start_ns"), steps.ints("host_dur_ns")
    if len(steps) and bool(((start != NULL) & (dur != NULL)).all()):
        return intervals.from_durations(start, dur)
    windows = _steps.step_windows(trace)
    return intervals.merged(windows.starts, windows.ends)


def _table(view: View, steps: int) -> ResultTable:
    tree, cut, share = pruned(view.tree)
    kinds = Text(tree.kind.astype(np.int32), list(CLASSES))
    return result_table(
        f"flame-{view.name}",
        _TITLES[view.name],
        (
            Col("parent", "parent row", "上级行", np.where(tree.parent >= 0, tree.parent, NULL)),
            Col("name", "frame", "帧", tree.name),
            Col("self_ns", "self time", "自身耗时", tree.self_ns, "ns"),
            Col("total_ns", "total time", "总耗时", tree.total_ns, "ns"),
            Col("count", "count", "次数", tree.count, "count"),
            Col("class", "class", "类别", kinds),
        ),
        note=_note(view, steps, cut, share),
    )


def _note(view: View, count: int, cut: int, share: float) -> Words:
    tree = view.tree
    steps = "in the step" if count == 1 else f"in the {count} steps together"
    of_steps = "step 内" if count == 1 else f"{count} 个 step 合计"
    if view.name == "host":
        en = (
            f"Time of the host's threads {steps}: below each thread, what it called. Time in which nothing was "
            "recorded is in no frame; Python calls under 10 us count with their caller."
        )
        zh = (
            f"{of_steps} Host 各线程的耗时，每个线程之下是它的调用。没有记录的时间不计入任何帧；"
            "不足 10 us 的 Python 调用计入其调用者。"
        )
        if view.cut_ns:
            en += f" {format_ns(view.cut_ns)} of calls that cross each other are left out."
            zh += f"相互交叉的调用中有 {format_ns(view.cut_ns)} 未计入。"
    else:
        en = (
            f"Sum of the durations of kernels, collectives and copies {steps} (tasks that overlap count twice), under "
            "the calls of the host that launched them."
        )
        zh = f"{of_steps} Kernel、集合通信与拷贝的时长之和（重叠的任务重复计入），归到下发它们的 Host 调用之下。"
        lost = tree.total_of("not_attributed") / max(1, tree.whole_ns)
        if lost:
            en += f" {format_ratio(lost)} of it has no known launch or none inside of a frame: not attributed."
            zh += f"其中 {format_ratio(lost)} 没有已知的下发调用，或下发不在任何帧内，列为未归属。"
        behind = tree.total_of("backward") / max(1, tree.whole_ns)
        if behind:
            en += f" {format_ratio(behind)} is the backward pass, placed by sequence number with its forward operators."
            zh += f"反向计算占 {format_ratio(behind)}，按序列号归到对应的前向算子。"
    if cut:
        at = format_ratio(share) if share > MIN_SHARE_RATIO else "0.05 %"
        en += f" Frames below {at} of the whole ({cut}) are taken together."
        zh += f"不足总量 {at} 的帧（共 {cut} 个）合并显示。"
    return Words(en, zh)
