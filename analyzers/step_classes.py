"""What a step computes, by class of kernel, pass and engine; with exposed communication, copies and idle time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._steps import StepWindows, membership, step_windows, unions_by_step
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.distinct import distinct
from ascend_perf.model.finding import Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, computes, kernel_classes
from ascend_perf.plugins import NoData, analyzer

NAME: Final = "step-classes"

_BACKWARD: Final = re.compile(r"Grad|Backprop|backward|_bwd|dgrad|wgrad")
"""Kernels whose name tells that they belong to the backward pass. Others of both passes look alike (products)."""
_TWO_PASSES: Final = frozenset(
    {KernelClass.ATTENTION.value, KernelClass.CONV.value, KernelClass.NORM.value, KernelClass.ROPE.value}
)
"""Classes whose kernels of the forward pass have other names than those of the backward pass."""
_ENGINES: Final = {
    "AIC": "cube", "MIX_AIC": "cube", "AIV": "vector", "MIX_AIV": "vector", "AICPU": "aicpu",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Group:
    """Kernels of one class, pass and engine."""

    kind: str
    phase: str | None
    engine: str | None
    rows: Bools
    total_ns: int
    count: int


@analyzer(name=NAME, needs=(KERNELS,), order=12, section="steps")
def step_classes(trace: Trace) -> Result:
    """Time of a step by class of kernel, so that all parts add up to the step.

    An instant at which kernels of several classes run belongs to the class with most kernel time; communication has
    what no kernel covers, copies what neither covers, and the rest is idle. All figures are means over the steps.

    Reads:
        kernels: start_ns, dur_ns, name, op_type, core; comm_ops, copies, steps.

    Source:
        the split is that of `step-breakdown` (rivals-and-methods, method 5.1), its computing cut by class.
    """
    windows = step_windows(trace)
    kernels = trace[KERNELS]
    if not len(windows) or not (kernels.ints("start_ns") != NULL).any():
        raise NoData(Words("no steps, or no times of kernels", "没有 step，或 Kernel 没有时间"))
    return Result(tables=(_table(trace, windows, _groups(trace, windows)),))


def _groups(trace: Trace, windows: StepWindows) -> list[Group]:
    """Groups of the kernels that compute, those with most time in the steps first."""
    kernels = trace[KERNELS]
    counted = computes(kernels)
    inside = membership(trace, kernels, windows) >= 0
    classes, engines = kernel_classes(kernels), kernels.text("core").relabel(_ENGINES.get)
    names = kernels.text("op_type") if kernels.has("op_type") else kernels.text("name")
    backward = names.flags(lambda name: bool(_BACKWARD.search(name)))
    told = classes.isin(_TWO_PASSES)
    phase: Ints = np.where(backward, 2, np.where(told, 1, 0)).astype(np.int64)
    made = []
    dur = np.where(kernels.ints("dur_ns") == NULL, 0, kernels.ints("dur_ns"))
    keys, of = distinct(classes.codes[counted], phase[counted], engines.codes[counted])
    places = np.flatnonzero(counted)
    for number, (kind, way, engine) in enumerate(keys.T.tolist()):
        rows = np.zeros(len(kernels), bool)
        rows[places[of == number]] = True
        made.append(
            Group(
                kind=_word(classes, kind) or KernelClass.OTHER.value, phase=(None, "forward", "backward")[way],
                engine=_word(engines, engine), rows=rows, total_ns=int(dur[rows & inside].sum()),
                count=int((rows & inside).sum()),
            )
        )  # fmt: skip
    return sorted(made, key=lambda group: (-group.total_ns, group.kind, group.phase or "", group.engine or ""))


def _word(text: Text, code: int) -> str | None:
    return None if code < 0 else text.values[code]


def _table(trace: Trace, windows: StepWindows, groups: list[Group]) -> ResultTable:
    steps = len(windows)
    whole = sum(windows.span_ns(at) for at in range(steps))
    covered: list[IntervalSet] = [EMPTY] * steps
    is_apart = bool((windows.starts[1:] >= windows.ends[:-1]).all())

    def alone(table: Table, rows: Bools | None = None) -> int:
        """Time of some rows that nothing counted before has; adds it to what is counted."""
        spent = 0
        unions = unions_by_step(trace, table, rows, windows)
        # Steps one after the other are worked on in one go.
        for at, union in enumerate([intervals.union(*unions)] if is_apart else unions):
            spent += intervals.total(intervals.difference(union, covered[at]))
            covered[at] = intervals.union(covered[at], union)
        return spent

    # What only reaches into a step counts with its part.
    spent_by = [(group, alone(trace[KERNELS], group.rows)) for group in groups]
    groups = [group for group, time in spent_by if group.count or time]
    times = [time for group, time in spent_by if group.count or time]
    kinds: list[str] = [group.kind for group in groups]
    phases: list[str | None] = [group.phase for group in groups]
    engines: list[str | None] = [group.engine for group in groups]
    counts: list[float | None] = [group.count / steps for group in groups]
    totals: list[float | None] = [group.total_ns / steps for group in groups]
    for name, table in (("communication", COMM_OPS), ("copy", COPIES)):
        spent = alone(trace[table])
        if spent:
            kinds.append(name)
            times.append(spent)
            engines.append(name)
    kinds.append("free")
    times.append(whole - sum(times))
    engines.append("free")
    rest: list[None] = [None] * (len(kinds) - len(groups))
    return result_table(
        "step-classes",
        Words("The step by class of kernel", "单步耗时按算子类别划分"),
        [
            Col("class", "Class", "类别", kinds),
            Col("kind", "Pass", "前向/反向", [*phases, *rest]),
            Col("component", "Engine", "执行单元", engines),
            Col("count", "Kernels per step", "每步 Kernel 数", [*counts, *rest], "count"),
            Col("total_ns", "Kernel time per step", "每步 Kernel 耗时", [*totals, *rest], "ns"),
            Col("time_ns", "Time of the step", "占用单步时间", [time / steps for time in times], "ns"),
            Col("share_ratio", "Share of the step", "占单步比例", [time / max(1, whole) for time in times], "ratio"),
        ],
        Words(
            "Mean over the steps; the parts add up to the step. Where kernels of two classes run at once the time is "
            "the upper row's. Communication and copies have what no kernel covers. The pass is told where the names of "
            "kernels tell it.",
            "各 step 的平均值，各部分之和等于单步耗时。不同类别的 Kernel 同时执行时，时间计入靠前的一行；"
            "通信与拷贝只计未被 Kernel 覆盖的部分。仅在 Kernel 名称能区分时给出前向/反向。",
        ),
    )
