"""The critical path of each step: what decides how long it takes, what has room, and what changes would give."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._path_build import RankPath, end_of, rank_path
from ascend_perf.analyzers._path_elements import HOST, KINDS, Kind
from ascend_perf.analyzers._path_graph import Part, part_of, slack_of
from ascend_perf.analyzers._path_peak import ideal_transfer_ns
from ascend_perf.analyzers._path_tables import composition, per_step, slack_table, top_elements, what_if_table
from ascend_perf.analyzers._path_tasks import is_of
from ascend_perf.analyzers._path_walk import Path, kind_ns, paths_of
from ascend_perf.analyzers._path_whatif import what_if
from ascend_perf.analyzers._steps import StepWindows, representative, step_windows
from ascend_perf.model.finding import Metric, Result, Words
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import COMM_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import counted

NAME: Final = "critical-path"
MAX_STEPS: Final = 512
"""Steps whose path is walked, evenly taken from all of them. Status: assumed."""

METRICS: Final[dict[str, tuple[Kind, ...]]] = {
    "host": tuple(kind for kind in KINDS if kind in HOST),
    "launch": (Kind.LAUNCH,),
    "computing": (Kind.COMPUTE,),
    "copy": (Kind.COPY,),
    "communication": (Kind.COMM_WAIT, Kind.COMM_TRANSFER, Kind.COMM),
    "communication_wait": (Kind.COMM_WAIT,),
    "idle": (Kind.GAP, Kind.EVENT, Kind.UNKNOWN),
}
"""Metric `critical_path_<name>_ratio` and the kinds it counts."""


@analyzer(name=NAME, needs=(), order=12, section="steps")
def critical_path(trace: Trace) -> Result:
    """The critical path of each step through host threads, streams and collectives of one rank.

    Reads:
        steps, kernels, comm_ops, comm_tasks, comm_transfers, copies, host_ops, runtime_calls, host_events.

    Returns:
        Tables `critical-path` (what it consists of), `critical-path-steps`, `critical-path-elements`,
        `critical-path-slack` and `critical-path-what-if`; metrics `critical_path_*_ratio`, shares of all steps. The
        path adds up to each step exactly. What-if figures are modelled bounds.

    Source:
        rivals-and-methods, methods 5.5 and 5.8.
    """
    windows = step_windows(trace)
    shown = representative(trace, windows)
    if shown is None:
        raise NoData(
            Words("no steps, device tasks or host events with times", "没有带时间的 step、设备任务或 Host 事件")
        )
    if trace.has(COMM_OPS) and not trace.has(KERNELS):
        raise NoData(
            Words("the kernels are not in this data: nothing tells what lies between the collectives",
                  "数据中没有 Kernel：无法得知集合通信之间的内容")
        )  # fmt: skip
    path = rank_path(trace)
    if not len(path.graph):
        raise NoData(Words("no device tasks or host events with times", "没有带时间的设备任务或 Host 事件"))
    which = _chosen(len(windows), shown)
    paths = paths_of(path, windows, which)
    mine = paths[which.index(shown)]
    part = part_of_step(path, windows, shown)
    ideal = _ideal(trace, path, part)
    return Result(
        metrics=_metrics(trace, path, paths),
        tables=(
            composition(path.elements, mine, paths, _note(path, len(windows), len(which))),
            top_elements(path.elements, part, mine),
            what_if_table(what_if(part, path.elements, ideal)),
            slack_table(path.elements, part, mine, slack_of(part)),
            *((per_step(path.elements, paths, [windows.step_id(i) for i in which]),) if len(which) > 1 else ()),
        ),
    )  # fmt: skip


def part_of_step(path: RankPath, windows: StepWindows, step: int) -> Part:
    """The graph of one step."""
    start, end = windows.window(step)
    last, lanes = end_of(path, end)
    return part_of(path.graph, start, end, last, lanes, path.elements.number(Kind.UNKNOWN))


def _chosen(count: int, shown: int) -> list[int]:
    if count <= MAX_STEPS:
        return list(range(count))
    spread = np.linspace(0, count - 1, MAX_STEPS - 1).round().astype(int).tolist()
    return sorted({*spread, shown})


def _ideal(trace: Trace, path: RankPath, part: Part) -> Ints:
    """Shortest transfer of each device task of the step; `NULL` for the others."""
    ideal = np.full(max(1, len(path.tasks)), NULL, np.int64)
    here = np.unique(part.graph.task[part.graph.task >= 0])
    calls = here[is_of(path.tasks, COMM_OPS)[here]] if len(here) else here
    ideal[calls] = ideal_transfer_ns(trace, path.tasks.row[calls])
    return ideal


def _metrics(trace: Trace, path: RankPath, paths: list[Path]) -> tuple[Metric, ...]:
    kinds = path.elements.kind_codes()
    sums = np.sum([kind_ns(one, kinds) for one in paths], axis=0)
    whole = int(sums.sum())
    told = not sums[KINDS.index(Kind.COMM)]
    return tuple(
        Metric(
            name=f"critical_path_{name}_ratio",
            value=None
            if not whole or (name == "communication_wait" and not told)
            else float(sum(int(sums[KINDS.index(kind)]) for kind in wanted) / whole),
            unit="ratio",
            better="none" if name == "computing" else "lower",
            rank=trace.meta.rank,
        )
        for name, wanted in METRICS.items()
    )


def _note(path: RankPath, steps: int, walked: int) -> Words:
    en = [
        "Each ns of the step belongs to the one activity that decided it, walked back from the end of the step; the "
        "parts add up to the step. Waiting in a collective is a wait for another rank: the job's path leads there."
    ]
    zh = [
        "从该步结束处逆向追溯，每一纳秒都归于决定它的那一项活动，各部分之和等于单步。集合通信中的等待是在等其他卡，"
        "全任务的关键路径会追到对应的卡。"
    ]
    if not path.has_host:
        en.append(
            "No host activity is in this data: the path is over the device only, and idle time has no known cause."
        )
        zh.append("数据中没有 Host 活动：路径仅含设备侧，空闲时间的原因未知。")
    if path.inferred:
        en.append(
            counted(path.inferred, "wait for another stream or thread was inferred from times",
                    "waits for other streams or threads were inferred from times") + "."
        )  # fmt: skip
        zh.append(f"有 {path.inferred} 处对其他流或线程的等待是由时间推断的。")
    if path.backward:
        en.append(
            counted(path.backward, "launch begins after its task by these clocks and is",
                    "launches begin after their tasks by these clocks and are") + " not used."
        )  # fmt: skip
        zh.append(f"有 {path.backward} 次下发按时钟晚于其任务，未采用。")
    if walked < steps:
        en.append(f"{walked} of {steps} steps were walked.")
        zh.append(f"共 {steps} 步，追溯了其中 {walked} 步。")
    return Words(" ".join(en), "".join(zh))
