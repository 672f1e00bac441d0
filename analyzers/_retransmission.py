"""Row N-04: a transfer over RDMA that takes seconds on every rank of its group."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._communication import Calls, ranks_words
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.model.tables import COMM_TASKS, COMM_TRANSFERS
from ascend_perf.units import format_ns

NAME: Final = "collectives"
CODE: Final = "N-04"

MIN_STALL_NS: Final = threshold("N-04", "min_stall_ns")

_RDMA: Final = frozenset({"RDMA", "ROCE", "STANDARD_ROCE"})


def retransmission(job: Job, calls: Collectives) -> tuple[list[Finding], Judged]:
    """N-04 from the transfers over RDMA and the durations of the call on all ranks that were seen."""
    moved = {view.rank: _rdma_ns(view.calls) for view in job.ranks}
    if all(times is None for times in moved.values()):
        is_gpu = all(view.trace.meta.device.kind == "gpu" for view in job.ranks)
        return [], Judged(
            code=CODE, verdict="not_judged",
            reason=Words("NCCL kernels name no transport", "NCCL Kernel 不带传输方式") if is_gpu else Words(
                "no transport of the transfers in this data: communication.json or the sub-tasks of a Level1 profile "
                "name it",
                "数据中没有传输方式：communication.json 或 Level1 的通信子任务中有",
            ),
        )  # fmt: skip
    stalled: dict[int, tuple[RankView, int]] = {}
    for view in job.ranks:
        durations = view.calls.table.ints("dur_ns")
        rows = [int(row) for row in np.flatnonzero(stalled_calls(view.calls)) if _all_stall(calls, view, int(row))]
        if rows:
            stalled[view.rank] = view, max(rows, key=lambda row: int(durations[row]))
    if not stalled:
        return [], Judged(code=CODE, verdict="clean")
    view, row = max(stalled.values(), key=lambda item: int(item[0].calls.exposed_ns[item[1]]))
    name = view.calls.table.text("name")[row] or "?"
    usual = _usual(view.calls, row)
    lost = max(0, int(view.calls.exposed_ns[row]) - usual)
    share = share_of(view, lost)
    ranks = tuple(sorted(stalled))
    duration, start = int(view.calls.table.ints("dur_ns")[row]), int(view.calls.starts[row])
    times = moved[view.rank]
    found = finding(
        CODE, analyzer=NAME, trace_rank=None, share_ratio=share, subject="rdma", ranks=ranks, affected_ranks=ranks,
        vendor=view.trace.meta.device.kind,
        title=Words(
            f"{name} takes {format_ns(duration)} over RDMA on every rank that was seen ({ranks_words(ranks).en}): data "
            f"was sent again; {per_step(view, lost)} of {step_words(view).en} at most",
            f"{name} 经 RDMA 在所有已采集的卡（{ranks_words(ranks).zh}）上耗时 {format_ns(duration)}：发生重传；"
            f"{step_words(view).zh}至多 {per_step(view, lost)}",
        ),
        evidence=[
            Evidence(
                name=Words("time of the call", "该次通信耗时"), value=duration, unit="ns", start_ns=start,
                where=f"comm_ops: {name}",
            ),
            Evidence(
                name=Words("of it moving over RDMA", "其中 RDMA 传输"),
                value=None if times is None else int(times[row]), unit="ns",
                where="comm_transfers or comm_tasks, transport RDMA",
            ),
            Evidence(
                name=Words("other calls of this op take", "同类通信的通常耗时"), value=usual or None, unit="ns",
                where="median of the calls of the same op and group below the limit",
            ),
        ],
        formula="(exposed time of the call - median of the same op and group) / length of the steps",
        bands=((start, start + duration),),
    )  # fmt: skip
    return [found], Judged(code=CODE, verdict="found")


def stalled_calls(calls: Calls) -> Bools:
    """Calls of a rank that move data over RDMA for seconds."""
    moved = _rdma_ns(calls)
    if moved is None:
        return np.zeros(len(calls), bool)
    return np.asarray((moved >= MIN_STALL_NS.value) & (calls.table.ints("dur_ns") >= MIN_STALL_NS.value), bool)


def _rdma_ns(calls: Calls) -> Ints | None:
    """Time that each call of a rank moved data over RDMA; None when no file names transports."""
    transfers, tasks = calls.trace[COMM_TRANSFERS], calls.trace[COMM_TASKS]
    result = np.zeros(len(calls), np.int64)
    if len(transfers):
        remote = transfers.text("transport").isin(_RDMA)
        longest: dict[tuple[str | None, int], int] = {}
        picked = transfers.select(remote)
        for name, step, time in zip(
            picked.text("name"), picked.ints("step_id").tolist(), picked.ints("time_ns").tolist(), strict=True
        ):
            longest[name, step] = max(time, longest.get((name, step), 0))
        if longest:
            keys = zip(calls.table.text("name"), calls.table.ints("step_id").tolist(), strict=True)
            result[:] = [longest.get((name, step), longest.get((name, NULL), 0)) for name, step in keys]
        return result
    if not len(tasks) or not (tasks.text("transport").codes >= 0).any():
        return None
    remote = tasks.text("transport").isin(_RDMA) | tasks.text("link").isin(_RDMA)
    if remote.any():
        moved = np.where(calls.transfer_ns == NULL, 0, calls.transfer_ns)
        place = np.full(int(max(tasks.ints("comm_op").max(), calls.rows.max(initial=0))) + 1, False)
        owners = tasks.ints("comm_op")[remote]
        place[owners[owners >= 0]] = True
        result = np.where(place[calls.rows], moved, 0)
    return result


def _all_stall(calls: Collectives, view: RankView, row: int) -> bool:
    """Whether the call takes as long on every rank that shares it; a late rank has a short one."""
    at = next(place for place, other in enumerate(calls.views) if other is view)
    mine = np.flatnonzero((calls.place == at) & (calls.row == row))
    if not len(mine):
        return True
    same = calls.owner == calls.owner[mine[0]]
    return bool((calls.durations[same] >= MIN_STALL_NS.value).all())


def _usual(calls: Calls, row: int) -> int:
    """Median duration of the other calls of the same op and group, 0 when there are none."""
    ops, groups = calls.table.text("op").codes, calls.table.text("group").codes
    durations = calls.table.ints("dur_ns")
    same = (ops == ops[row]) & (groups == groups[row]) & (durations < MIN_STALL_NS.value)
    return int(np.median(durations[same])) if same.any() else 0
