"""The critical path of a step over all ranks: on which rank each part of the step is decided."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._path_elements import HOST, KINDS, Elements, Kind
from ascend_perf.analyzers._path_graph import End
from ascend_perf.analyzers._path_job import JobPath, job_graph, job_path
from ascend_perf.analyzers._path_tables import composition, what_if_table
from ascend_perf.analyzers._path_walk import Path, kind_ns, path_of
from ascend_perf.analyzers._path_whatif import Change, what_if
from ascend_perf.analyzers._stages import JOB_READS, job_of
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import Metric, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import Bools, Ints
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.plugins import columns_of, job_analyzer
from ascend_perf.units import counted

NAME: Final = "job-critical-path"
MAX_ELEMENTS: Final = 60
"""Rows of what lies on the path, the longest first."""
MAX_RANKS: Final = 4
"""Ranks that are tried twice as fast, those with most of the path."""


READS: Final = (
    JOB_READS
    | columns_of(COPIES, RUNTIME_CALLS, HOST_EVENTS)
    | {
        KERNELS.name: frozenset({
            "start_ns", "dur_ns", "name", "op_type", "core", "stream", "step_id", "correlation", "host_op",
            "launch_start_ns", "launch_end_ns",
        }),
        HOST_OPS.name: frozenset({"start_ns", "dur_ns", "name", "thread"}),
    }
)  # fmt: skip
"""Columns that the paths of the ranks are built from."""


@job_analyzer(name=NAME, needs=[KERNELS, COMM_OPS], order=73, section="ranks", reads=READS)
def job_critical_path(run: Run) -> Result:
    """The critical path of the representative step through all ranks whose clocks can be aligned.

    A collective ends once the last of its ranks has come: where the path reaches it, it goes on at that rank. So
    waiting for a rank is not on the path; what made that rank late is.

    Reads:
        what `critical-path` reads, of all ranks; meta: groups.

    Returns:
        Tables `job-critical-path` (what it consists of), `job-critical-path-ranks`, `job-critical-path-elements`,
        `job-critical-path-what-if`; metrics `job_critical_path_*_ratio`. The path adds up to the step of the job: from
        the first rank's start to the last rank's end.

    Source:
        rivals-and-methods, method 5.8.
    """
    job = job_path(job_of(run))
    graph = job_graph(job)
    end = int(graph.time[-1])
    unknown = job.elements.number(Kind.UNKNOWN)
    path = path_of(graph, End(at=len(graph) - 1, element=unknown), 0, end, unknown)
    rank = job.rank[path.instants]
    spent = {one: int(path.lengths[rank == one].sum()) for one in job.ranks}
    result = what_if(job.part, job.elements, job.ideal_ns, _faster_ranks(job, spent))
    made = (
        composition(job.elements, path, [path], _note(job)), _ranks(job, path, rank), _top(job.elements, path, rank),
        what_if_table(result),
    )  # fmt: skip
    tables = tuple(_renamed(table, f"job-{table.name}") for table in made)
    return Result(metrics=_metrics(job, path, spent), tables=tables)


def _renamed(table: ResultTable, name: str) -> ResultTable:
    titles = {
        "job-critical-path": Words("Critical path of the job's step", "全任务单步的关键路径"),
        "job-critical-path-what-if": Words(
            "What a change on all ranks would give at most", "所有卡做同一修改的收益上限"
        ),
    }  # fmt: skip
    keep = [
        at for at, column in enumerate(table.columns)
        if name != "job-critical-path" or not column.name.startswith("mean_")
    ]  # fmt: skip
    return ResultTable(
        name=name, title=titles.get(name, table.title), columns=tuple(table.columns[at] for at in keep),
        data=tuple(table.data[at] for at in keep), note=table.note,
    )  # fmt: skip


def _faster_ranks(job: JobPath, spent: dict[int, int]) -> list[Change]:
    """Each of the ranks with most of the path at twice the speed of its host and its computing."""
    graph = job_graph(job)
    kinds = job.elements.kind_codes()
    own_work = np.isin(kinds, [KINDS.index(kind) for kind in (*HOST, Kind.COMPUTE)])

    def twice(one: int) -> Change:
        lane: Bools = own_work[graph.element] & (job.rank == one)
        cross: Bools = own_work[graph.cross.element] & (job.rank[graph.cross.dst] == one)
        return Change(
            key="rank twice as fast", name=f"rank {one}", own=lambda w: np.where(lane, (w + 1) // 2, w),
            cross=lambda w: np.where(cross, (w + 1) // 2, w),
        )  # fmt: skip

    order = sorted(spent, key=lambda one: (-spent[one], one))[:MAX_RANKS]
    return [twice(one) for one in order if spent[one] > 0]


def _ranks(job: JobPath, path: Path, rank: Ints) -> ResultTable:
    """Where the path runs: time on each rank and what it is, and how often the path comes to the rank."""
    kinds = job.elements.kind_codes()[path.element]
    length = path.end_ns - path.start_ns
    known = rank >= 0
    sequence = rank[known]
    entries = sequence[np.append(True, sequence[1:] != sequence[:-1])] if len(sequence) else sequence
    on_path = [one for one in job.ranks if (rank == one).any()]
    beside = len(job.ranks) - len(on_path)
    rows = sorted(on_path, key=lambda one: (-int(path.lengths[rank == one].sum()), one))

    def spent(one: int, *wanted: Kind) -> int:
        mine = (rank == one) & np.isin(kinds, [KINDS.index(kind) for kind in wanted])
        return int(path.lengths[mine].sum())

    def column(*wanted: Kind) -> list[int]:
        return [spent(one, *wanted) for one in rows]

    return result_table(
        "critical-path-ranks",
        Words("Ranks on the critical path", "关键路径经过的卡"),
        (
            Col("rank", "Rank", "Rank", list(rows)),
            Col("time_ns", "Time on the path", "路径上的时间", column(*KINDS), "ns"),
            Col("share_ratio", "Share of the step", "占单步", [t / length for t in column(*KINDS)], "ratio"),
            Col("entries", "Times the path comes here", "路径进入次数", [int((entries == one).sum()) for one in rows],
                "count"),
            Col("host_ns", "Host", "Host", column(*HOST), "ns"),
            Col("launch_ns", "Launch delay", "下发时延", column(Kind.LAUNCH), "ns"),
            Col("computing_ns", "Computing", "计算", column(Kind.COMPUTE), "ns"),
            Col("copy_ns", "Copies", "拷贝", column(Kind.COPY), "ns"),
            Col("communication_ns", "Collectives", "集合通信",
                column(Kind.COMM, Kind.COMM_WAIT, Kind.COMM_TRANSFER), "ns"),
            Col("before_ns", "Before its step", "该卡 step 之前", column(Kind.BEFORE), "ns"),
            Col("idle_ns", "Gaps and unknown", "间隙与未知", column(Kind.GAP, Kind.EVENT, Kind.UNKNOWN), "ns"),
        ),
        note=Words(
            "A rank that holds much of the path while its peers wait is the one that makes the step long. Before its "
            "step: the rank's first device task comes later than the first rank's; its host was still busy or idle."
            + (f" Not listed: {counted(beside, 'rank')} that the path does not touch." if beside else ""),
            "其他卡等待期间，占据路径较多的卡即是拉长该步的卡。“该卡 step 之前”：该卡的首个设备任务晚于最先开始的卡，"
            "其 Host 当时仍在忙或空闲。" + (f"另有 {beside} 张卡不在路径上，未列出。" if beside else ""),
        ),
    )  # fmt: skip


def _top(elements: Elements, path: Path, rank: Ints) -> ResultTable:
    count = len(elements)
    keys = (rank + 1) * count + path.element
    distinct, index = np.unique(keys, return_inverse=True)
    index = index.reshape(-1)
    time = np.bincount(index, weights=path.lengths, minlength=len(distinct)).astype(np.int64)
    pieces = np.bincount(index, minlength=len(distinct))
    order = np.argsort(-time, kind="stable")[:MAX_ELEMENTS].tolist()
    length = path.end_ns - path.start_ns
    where = [divmod(int(distinct[at]), count) for at in order]
    return result_table(
        "critical-path-elements",
        Words("What lies on the critical path, by rank", "各卡在关键路径上的内容"),
        (
            Col("rank", "Rank", "Rank", [one - 1 if one else None for one, _ in where]),
            Col("component", "Part of the path", "路径组成", [KINDS[elements.kinds[e]].value for _, e in where]),
            Col("name", "Name", "名称", [elements.names[e] or None for _, e in where]),
            Col("time_ns", "Time on the path", "路径上的时间", [int(time[at]) for at in order], "ns"),
            Col("share_ratio", "Share of the step", "占单步", [int(time[at]) / length for at in order], "ratio"),
            Col("pieces", "Pieces on the path", "路径上的片段", [int(pieces[at]) for at in order], "count"),
        ),
    )  # fmt: skip


def _metrics(job: JobPath, path: Path, spent: dict[int, int]) -> tuple[Metric, ...]:
    sums = kind_ns(path, job.elements.kind_codes())
    whole = max(1, path.end_ns - path.start_ns)

    def share(*wanted: Kind) -> float:
        return float(sum(int(sums[KINDS.index(kind)]) for kind in wanted) / whole)

    return (
        Metric(name="job_critical_path_host_ratio", value=share(*HOST), unit="ratio", better="lower"),
        Metric(name="job_critical_path_computing_ratio", value=share(Kind.COMPUTE), unit="ratio", better="none"),
        Metric(
            name="job_critical_path_communication_ratio",
            value=share(Kind.COMM, Kind.COMM_WAIT, Kind.COMM_TRANSFER), unit="ratio", better="lower",
        ),
        Metric(
            name="job_critical_path_largest_rank_ratio", value=max(spent.values(), default=0) / whole, unit="ratio",
            better="lower",
        ),
    )  # fmt: skip


def _note(job: JobPath) -> Words:
    step = "" if job.step_id is None else f" {job.step_id}"
    en = [
        f"Step{step}, from the first rank's start to the last rank's end, over {len(job.ranks)} ranks on one clock; "
        f"{counted(job.meetings, 'call ties', 'calls tie')} the ranks together. A collective ends once its last rank "
        "has come, so the path goes on there."
    ]
    zh = [
        f"迭代{step}：从最先开始的卡到最后结束的卡，共 {len(job.ranks)} 张卡，时钟已对齐；由 {job.meetings} 次通信相互"
        "关联。集合通信在最后一张卡到达后才能结束，路径因此转到该卡。"
    ]
    if job.left_out:
        ranks = ", ".join(map(str, job.left_out[:16])) + (" ..." if len(job.left_out) > 16 else "")
        en.append(f"Left out, for want of kernels, of a clock tied to the others', or of room: ranks {ranks}.")
        zh.append(f"因缺少 Kernel、时钟无法对齐或规模过大而未包含的卡：{ranks}。")
    if job.loose:
        en.append(
            counted(job.loose, "call ends before its last rank came by these clocks and ties",
                    "calls end before their last rank came by these clocks and tie") + " nothing."
        )  # fmt: skip
        zh.append(f"有 {job.loose} 次通信按时钟在最后一张卡到达前已结束，未用于关联。")
    if not job.has_host:
        en.append("No host activity is in this data: the path is over the devices only.")
        zh.append("数据中没有 Host 活动：路径仅含设备侧。")
    return Words(" ".join(en), "".join(zh))
