"""Links between ranks by transport: the rate of each against its peers (N-06)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import group_members, has_subtasks, is_move, ranks_words
from ascend_perf.analyzers._late_ranks import upper_first
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import JOB_READS, Job, RankView, job_of
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Result, ResultTable, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import Ints, Text
from ascend_perf.model.tables import COMM_LINKS, COMM_OPS, COMM_TASKS
from ascend_perf.plugins import NoData, columns_of, job_analyzer
from ascend_perf.units import format_quantity, format_ratio

NAME: Final = "links"
CODE: Final = "N-06"

MAX_BELOW_RATIO: Final = threshold("N-06", "max_below_ratio")
MIN_PEERS: Final = threshold("N-06", "min_peers")
MIN_SAMPLES: Final = threshold("N-06", "min_samples")
MANY_BYTES: Final = threshold("N-06", "many_bytes")
MIN_BYTES: Final = threshold("N-06", "min_bytes")
MAX_SPREADS: Final = threshold("N-06", "max_spreads")
MAX_SIZE_FACTOR: Final = threshold("N-06", "max_size_factor")
MIN_SHARE_RATIO: Final = threshold("N-06", "min_share_ratio")
MAX_ROWS: Final = 400
"""Links listed in the table, the slowest against its peers first."""

_SCALE: Final = 1.4826
_OWN: Final = 1 << 20
"""Ranks of groups without known members: place of the group times this, plus the place in the group."""


@dataclass(kw_only=True)
class Link:
    """What one op moved over one link, in the data of one rank."""

    src: int
    dst: int
    transport: str
    op: str
    group_size: int
    view: RankView
    is_global: bool
    bytes: int = 0
    time_ns: int = 0
    samples: int = 0
    usual: float | None = field(default=None)
    """Median rate of its peers (bytes/s); None when there are too few."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.time_ns * 1e9

    @property
    def lost_ns(self) -> float:
        """Time beyond what its peers would need."""
        return 0.0 if not self.usual else max(0.0, self.time_ns - self.bytes / self.usual * 1e9)


@job_analyzer(
    name=NAME, needs=[COMM_OPS], order=74, section="communication", reads=JOB_READS | columns_of(COMM_LINKS),
    needs_measured=(CODE,),
)
def links(run: Run) -> Result:
    """Rate of each link by transport against links of the same kind, op and message size; slow ones are N-06.

    Reads:
        comm_links, comm_tasks, comm_ops; meta: groups.
    """
    job = job_of(run)
    found = [link for view in job.ranks for link in _links(view)]
    if not found:
        raise NoData(
            Words(
                "no file tells what moved over which link: communication_matrix.json, or the sub-tasks of a Level1 "
                "profile",
                "没有文件给出各链路的传输：需要 communication_matrix.json 或 Level1 的通信子任务",
            )
        )
    slow = _compare(found)
    table = _table(found)
    if not any(link.usual for link in found):
        least, samples = format_quantity(MIN_BYTES.value, "bytes"), MIN_SAMPLES.value
        reason = Words(
            f"fewer than {MIN_PEERS.whole + 1} links of one kind carry {least} or more in {samples} "
            "transfers or more: nothing to compare with; give all ranks of the job",
            f"同类链路（{samples} 次以上、共 {least} 以上）不足 {MIN_PEERS.whole + 1} 条，"
            "无从比较；请给出全部卡",
        )
        return Result(tables=(table,), judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
    one = _slow_links(job, slow)
    if one is None:
        return Result(tables=(table,), judged=(Judged(code=CODE, verdict="clean"),))
    return Result(findings=(one,), tables=(table,), judged=(Judged(code=CODE, verdict="found"),))


def _links(view: RankView) -> Iterator[Link]:
    """The links of a rank's data: from its sub-tasks where they tell sizes, else from the matrix."""
    members = group_members(view.trace)
    groups = {name: place for place, name in enumerate(view.trace[COMM_OPS].text("group").compact().values)}
    for op, group, src, dst, transport, size, time, samples in _traffic(view):
        ranks = members.get(group, ())
        known = max(src, dst) < len(ranks)
        shift = 0 if known else (1 + groups.get(group or "", 0)) * _OWN
        yield Link(
            src=ranks[src] if known else shift + src, dst=ranks[dst] if known else shift + dst, transport=transport,
            op=op, group_size=len(ranks), view=view, is_global=known, bytes=size, time_ns=time, samples=samples,
        )  # fmt: skip


_Row = tuple[str, str | None, int, int, str, int, int, int]


def _traffic(view: RankView) -> Iterator[_Row]:
    trace, calls = view.trace, view.calls
    tasks, table = trace[COMM_TASKS], trace[COMM_OPS]
    if has_subtasks(trace):
        place = np.full(len(table) + 1, -1, np.int64)
        place[calls.rows] = calls.rows
        owner = tasks.ints("comm_op")
        owner = place[np.where((owner >= 0) & (owner < len(table)), owner, len(table))]
        use = is_move(tasks) & (owner >= 0) & ~tasks.text("link").equals("ON_CHIP") & (tasks.ints("dur_ns") > 0)
        rows = np.flatnonzero(use & (tasks.ints("size_bytes") > 0))
        owner = owner[rows]
        yield from _summed(
            table.text("op").take(owner), table.text("group").take(owner), tasks.ints("src")[rows],
            tasks.ints("dst")[rows], tasks.text("link").take(rows), tasks.ints("size_bytes")[rows],
            tasks.ints("dur_ns")[rows], np.ones(len(rows), np.int64),
        )  # fmt: skip
        return
    matrix = trace[COMM_LINKS]
    picks = matrix.text("pick")
    whole = picks.equals("total")
    rows = np.flatnonzero((whole | (picks.codes < 0)) & (matrix.ints("time_ns") > 0) & (matrix.ints("size_bytes") > 0))
    if not len(rows):
        return
    chosen = matrix.select(rows)
    # A row `total` sums all calls of its op and group: so many samples it stands for.
    counts = Counter(zip(table.text("op"), table.text("group"), strict=True))
    keys = list(zip(chosen.text("op"), chosen.text("group"), strict=True))
    # The exporter calls a reduceScatter `reduce` in this file.
    samples = np.array(
        [counts[key] or (key[0] == "reduce" and counts["reduceScatter", key[1]]) or 1 for key in keys], np.int64
    )
    yield from _summed(
        chosen.text("op"), chosen.text("group"), chosen.ints("src"), chosen.ints("dst"), chosen.text("transport"),
        chosen.ints("size_bytes"), chosen.ints("time_ns"), samples,
    )  # fmt: skip


def _summed(
    op: Text, group: Text, src: Ints, dst: Ints, transport: Text, size: Ints, time: Ints, samples: Ints
) -> Iterator[_Row]:
    use = (src >= 0) & (dst >= 0) & (src != dst) & (src < _OWN) & (dst < _OWN) & (transport.codes >= 0)
    columns = np.stack([op.codes[use], group.codes[use], src[use], dst[use], transport.codes[use]]).astype(np.int64)
    if not columns.shape[1]:
        return
    keys, index = np.unique(columns, axis=1, return_inverse=True)
    sums = np.zeros((3, keys.shape[1]), np.int64)
    for at, values in enumerate((size, time, samples)):
        np.add.at(sums[at], index.reshape(-1), values[use])
    for (op_code, group_code, a, b, link), (moved, took, count) in zip(keys.T.tolist(), sums.T.tolist(), strict=True):
        yield (
            "other" if op_code < 0 else op.values[op_code], None if group_code < 0 else group.values[group_code], a, b,
            transport.values[link], moved, took, count,
        )  # fmt: skip


def _compare(found: Sequence[Link]) -> list[Link]:
    """The slow links; sets the usual rate of all that can be compared."""
    kinds: dict[tuple[str, str, int], list[Link]] = {}
    few, samples, many, factor = MIN_BYTES.value, MIN_SAMPLES.value, MANY_BYTES.value, MAX_SIZE_FACTOR.value
    for link in found:
        if link.bytes >= (few if link.samples >= samples else many):
            kinds.setdefault((link.transport, link.op, link.group_size), []).append(link)
    slow: list[Link] = []
    for same in kinds.values():
        mean = float(np.median([link.bytes / link.samples for link in same]))
        same = [link for link in same if mean / factor <= link.bytes / link.samples <= mean * factor]
        if len(same) <= MIN_PEERS.value:
            continue
        rates = np.array([link.rate for link in same])
        for at, link in enumerate(same):
            others = np.delete(rates, at)
            usual = float(np.median(others))
            spread = _SCALE * float(np.median(np.abs(others - usual)))
            link.usual = usual
            if link.rate < (1 - MAX_BELOW_RATIO.value) * usual and usual - link.rate > MAX_SPREADS.value * spread:
                slow.append(link)
    return slow


def _slow_links(job: Job, slow: Sequence[Link]) -> Finding | None:
    lost: dict[int, float] = {}
    for link in slow:
        # Links of one rank work side by side: an op loses what its slowest link loses.
        lost[link.view.rank] = max(lost.get(link.view.rank, 0.0), _lost_of_rank(slow, link.view))
    views = {view.rank: view for view in job.ranks}
    shares = {rank: share_of(views[rank], value) for rank, value in lost.items()}
    if not shares or max(shares.values()) < MIN_SHARE_RATIO.value:
        return None
    worst = max(shares, key=shares.__getitem__)
    ends = [{link.src, link.dst} for link in slow if link.is_global]
    common = set.intersection(*ends) if ends else set()
    causes = tuple(sorted(common if len(common) == 1 else set().union(*ends)))
    example = max(slow, key=lambda link: link.lost_ns)
    usual = example.usual or 0.0
    name = _name(example)
    more = "" if len(slow) == 1 else f" and {len(slow) - 1} more"
    evidence = [
        Evidence(
            name=Words(f"rate of the link {_name(link)}", f"链路 {_name(link)} 的速率"), value=link.rate,
            unit="bytes_per_s", where=f"{link.transport}, {link.op}, {link.samples} transfers, in the data of rank "
            f"{link.view.rank}; its peers: {format_quantity(link.usual or 0.0, 'bytes_per_s')}",
        )
        for link in sorted(slow, key=lambda link: -link.lost_ns)[:5]
    ]  # fmt: skip
    return finding(
        CODE, analyzer=NAME, trace_rank=None, share_ratio=shares[worst], subject="links", ranks=causes,
        affected_ranks=tuple(sorted(rank for rank, share in shares.items() if share >= MIN_SHARE_RATIO.value)),
        vendor=views[worst].trace.meta.device.kind, evidence=evidence,
        title=Words(
            f"The {example.transport} link {name}{more} runs at "
            f"{format_quantity(example.rate, 'bytes_per_s')}, {format_ratio(1 - example.rate / usual)} below its peers "
            f"({format_quantity(usual, 'bytes_per_s')}): at most {per_step(views[worst], lost[worst])} of "
            f"{step_words(views[worst], shares[worst]).en}",
            f"{example.transport} 链路 {name}{'' if len(slow) == 1 else f' 等 {len(slow)} 条'} 速率为 "
            f"{format_quantity(example.rate, 'bytes_per_s')}，比同类链路（{format_quantity(usual, 'bytes_per_s')}）低 "
            f"{format_ratio(1 - example.rate / usual)}：{step_words(views[worst]).zh}至多 "
            f"{per_step(views[worst], lost[worst])}（{format_ratio(shares[worst])}）",
        ),
        cause=_cause(common, ends),
        formula="per op: the slowest link's time - its bytes / median rate of links of the same transport, op and "
        "message size, at most the exposed time of the op; / length of the steps",
    )  # fmt: skip


def _cause(common: set[int], ends: Sequence[set[int]]) -> Words | None:
    if len(common) == 1 and len(ends) > 1:
        who = ranks_words(tuple(common))
        return Words(
            f"All slow links end at {who.en}: look at its card, its port and its place in the topology first.",
            f"所有慢链路都连到 {who.zh}：请先检查该卡、其端口与拓扑位置。",
        )
    return None


def _lost_of_rank(slow: Sequence[Link], view: RankView) -> float:
    """What the slow links of a rank cost it: per op the worst, at most what the op is exposed."""
    lost = 0.0
    ops = view.calls.table.text("op")
    for op in {link.op for link in slow if link.view is view}:
        worst = max(link.lost_ns for link in slow if link.view is view and link.op == op)
        lost += min(worst, float(view.calls.exposed_ns[ops.equals(op)].sum()))
    return lost


def _name(link: Link) -> str:
    return f"{_end(link, link.src)} -> {_end(link, link.dst)}"


def _end(link: Link, rank: int) -> str:
    return str(rank) if link.is_global else f"{rank % _OWN} (in its group)"


def _table(found: Sequence[Link]) -> ResultTable:
    rows = sorted(
        found, key=lambda link: (link.usual is None, link.rate / link.usual if link.usual else 0, -link.bytes)
    )
    rows = rows[:MAX_ROWS]
    return result_table(
        "link-matrix",
        Words("Links between ranks", "卡间链路"),
        (
            Col("src", "From rank", "源 Rank", [upper_first(_end(link, link.src)) for link in rows]),
            Col("dst", "To rank", "目的 Rank", [upper_first(_end(link, link.dst)) for link in rows]),
            Col("transport", "Transport", "传输方式", [link.transport for link in rows]),
            Col("op", "Op", "通信算子", [link.op for link in rows]),
            Col("seen_by", "In the data of rank", "数据来自 Rank", [link.view.rank for link in rows]),
            Col("samples", "Transfers", "传输次数", [link.samples for link in rows], "count"),
            Col("size_bytes", "Data", "数据量", [link.bytes for link in rows], "bytes"),
            Col("time_ns", "Time", "耗时", [link.time_ns for link in rows], "ns"),
            Col("bytes_per_s", "Rate", "速率", [link.rate for link in rows], "bytes_per_s"),
            Col("usual_bytes_per_s", "Its peers", "同类链路", [link.usual for link in rows], "bytes_per_s"),
            Col(
                "ratio", "Against its peers", "与同类之比",
                [None if not link.usual else link.rate / link.usual for link in rows], "ratio",
            ),
        ),
        note=Words(
            "Peers are links of the same transport, op, group size and message size; fewer than four of a kind, little "
            "data or few transfers are not compared.",
            "同类指传输方式、算子、通信域规模与消息大小均相同；不足四条、数据量小或次数少的不作比较。",
        ),
    )  # fmt: skip
