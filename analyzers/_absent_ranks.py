"""Row N-05 where the late rank's own file is missing: all ranks that are there wait equally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._communication import is_p2p, is_pipelined, ranks_words
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, Words
from ascend_perf.model.table import NULL, Bools, Ints
from ascend_perf.units import counted, format_ratio

NAME: Final = "ranks"
CODE: Final = "N-05"

MIN_WAIT_RATIO: Final = threshold("N-05", "min_joint_wait_ratio")
MIN_ALIKE: Final = threshold("N-05", "min_alike_calls")
MAX_FLOOR_FACTOR: Final = threshold("N-05", "max_floor_factor")


@dataclass(frozen=True, kw_only=True)
class _Excess:
    """Time that all ranks that are there spend in collectives beyond what the same collective takes at its best."""

    calls: int
    floor_ns: int
    """The best time of the collective with the longest excess."""
    longest_ns: int
    """Shortest stay of any rank in that collective."""
    longest_call: str
    longest_start_ns: int
    view: RankView
    """The rank that loses most of its step."""
    exposed_ns: int
    alike: int
    """Collectives that could be compared with others of their kind and size."""


def absent_ranks(job: Job, calls: Collectives) -> tuple[list[Finding], Judged | None]:
    """N-05 for ranks that are not in the data, from what is there; None where nothing has to be said of them.

    Only for ranks whose traces do not tell their waiting themselves: the sub-tasks of HCCL name every peer.
    A collective that took far longer on every rank that is there than the best of its op, group and size waited for
    somebody else; where all of a kind take equally long, or no file tells their size, nothing can be said.
    """
    if len(job.ranks) < 2 or not (gone := _gone(job, calls)):
        return [], None
    blind = [view for view in job.ranks if _is_blind(view)]
    if not blind:
        return [], None
    exposed = max(blind, key=lambda view: share_of(view, int(view.calls.exposed_ns[_joint(view)].sum())))
    share = share_of(exposed, int(exposed.calls.exposed_ns[_joint(exposed)].sum()))
    if share < MIN_WAIT_RATIO.value:
        return [], None
    excess = _excess(calls, blind)
    if excess is None:
        return [], _unknown(gone, share)
    lost = share_of(excess.view, excess.exposed_ns)
    if lost < MIN_WAIT_RATIO.value:
        return [], Judged(
            code=CODE, verdict="not_judged",
            reason=Words(
                f"{gone.en}, and {counted(excess.alike, 'collective')} of equal size take equally "
                "long: a rank that is always as late and slow transfers look the same; profile all ranks",
                f"{gone.zh}，且 {excess.alike} 次同样大小的集合通信耗时相当：始终同样迟到的卡与慢传输"
                "无法区分，请采集所有卡",
            ),
        )  # fmt: skip
    return [_finding(gone, excess, blind, lost)], Judged(code=CODE, verdict="found")


def _gone(job: Job, calls: Collectives) -> Words | None:
    """That ranks are not there, or may not be; None when all are."""
    if job.missing:
        who = ranks_words(job.missing)
        are = "is" if len(job.missing) == 1 else "are"
        return Words(f"{who.en} {are} not in the data", f"数据中没有 {who.zh}")
    seen = calls.per_call(np.ones(len(calls.place), np.int64), np.add)
    if len(calls) and bool(((calls.size != NULL) & (seen < calls.size)).any()):
        return Words("ranks of these groups are not in the data", "数据中没有这些通信域的部分卡")
    is_whole = any(view.trace.meta.world_size is not None for view in job.ranks)
    if not is_whole and (not len(calls) or bool((calls.size == NULL).any())):
        return Words("further ranks may not be in the data (nothing states how many there are)",
                     "数据中可能缺少其他卡（没有信息给出总卡数）")  # fmt: skip
    return None


def _joint(view: RankView) -> Bools:
    """The collectives of a rank; point-to-point waits of a pipeline are row L-01."""
    if not len(view.calls):
        return np.zeros(0, bool)
    return ~(is_p2p(view.calls.table) & is_pipelined(view.trace))


def _is_blind(view: RankView) -> bool:
    """Whether nothing in a rank's trace tells its waiting from its transfers."""
    mine = _joint(view)
    return bool(mine.any()) and bool((view.calls.waiting_ns[mine] == NULL).all())


def _excess(calls: Collectives, blind: Sequence[RankView]) -> _Excess | None:
    """What all ranks stay in collectives beyond the best of their kind and size; None with nothing to compare."""
    if not len(calls):
        return None
    message = calls.per_call(calls.bytes, np.maximum)
    stay = calls.per_call(calls.durations, np.minimum)
    floor = _floors(calls.kind, message, stay)
    known = floor != NULL
    if not known.any():
        return None
    excess = np.where(known & (stay > MAX_FLOOR_FACTOR.value * floor), stay - floor, 0)
    lost = np.minimum(excess[calls.owner], calls.exposed)
    by_rank = np.bincount(calls.place, weights=lost, minlength=len(calls.views))
    shares = [share_of(view, int(by_rank[at])) if view in blind else -1.0 for at, view in enumerate(calls.views)]
    at = int(np.argmax(shares))
    worst = int(np.argmax(excess))
    row = int(calls.row[int(calls.heads[worst])])
    view = calls.views[int(calls.place[int(calls.heads[worst])])]
    return _Excess(
        calls=int((excess > 0).sum()), floor_ns=int(floor[worst]), longest_ns=int(stay[worst]),
        longest_call=view.calls.table.text("name")[row] or "", longest_start_ns=int(view.calls.starts[row]),
        view=calls.views[at], exposed_ns=int(by_rank[at]), alike=int(known.sum()),
    )  # fmt: skip


def _floors(kind: Ints, message: Ints, stay: Ints) -> Ints:
    """The shortest stay among collectives of one kind and size; `NULL` for too few, or an unknown size."""
    floor = np.full(len(kind), NULL, np.int64)
    keys, index = np.unique(np.stack((kind, message)), axis=1, return_inverse=True)
    index = index.reshape(-1)
    best = np.full(keys.shape[1], np.iinfo(np.int64).max, np.int64)
    np.minimum.at(best, index, stay)
    count = np.bincount(index, minlength=keys.shape[1])
    usable = (count >= MIN_ALIKE.value) & (keys[1] != NULL)
    floor[usable[index]] = best[index][usable[index]]
    return floor


def _unknown(gone: Words, share: float) -> Judged:
    return Judged(
        code=CODE, verdict="not_judged",
        reason=Words(
            f"{gone.en}, and nothing tells how much of the collectives ({format_ratio(share)} of the "
            "step) is waiting for them: profile all ranks",
            f"{gone.zh}，无法判断集合通信（占单步 {format_ratio(share)}）中有多少是在等待它们：请采集所有卡",
        ),
    )  # fmt: skip


def _finding(gone: Words, excess: _Excess, blind: Sequence[RankView], share: float) -> Finding:
    view = excess.view
    step, spent = step_words(view, share), per_step(view, excess.exposed_ns)
    here = ranks_words([one.rank for one in blind])
    return finding(
        CODE, analyzer=NAME, trace_rank=None, share_ratio=share, subject="absent ranks", ranks=(),
        affected_ranks=tuple(one.rank for one in blind), vendor=view.trace.meta.device.kind,
        title=Words(
            f"All ranks that are in the data stay {spent} of {step.en} longer in collectives "
            "than the same collectives take at their best: a rank that is not in the data comes late",
            f"数据中的各卡在{step.zh}于集合通信中比同样通信的最短耗时多停留 {spent}（{format_ratio(share)}）："
            "有数据之外的卡迟到",
        ),
        evidence=[
            Evidence(
                name=Words(
                    f"rank {view.rank}: waiting of all ranks at once, at least",
                    f"Rank {view.rank}：各卡同时等待（至少）",
                ),
                value=excess.exposed_ns / max(1, view.steps), unit="ns",
                where=f"comm_ops: {counted(excess.calls, 'collective')} that took every rank longer than "
                f"{MAX_FLOOR_FACTOR.value:.4g} times the best of the same op, group and size; {here.en}",
            ),
            Evidence(
                name=Words("shortest stay in the longest of them", "其中最长一次的最短停留"), value=excess.longest_ns,
                unit="ns", where=excess.longest_call, start_ns=excess.longest_start_ns,
            ),
            Evidence(
                name=Words("best time of this collective", "该通信的最短耗时"), value=excess.floor_ns, unit="ns",
                where="comm_ops: shortest duration over ranks and calls of the same op, group and size",
            ),
        ],
        cause=Words(
            f"{gone.en[:1].upper()}{gone.en[1:]}, and the ranks that are there leave these collectives "
            "together: none of them is the late one. A link that is slow at times would look the same: profile all "
            "ranks in the same steps.",
            f"{gone.zh}，而已有各卡同时结束这些通信：迟到的不是它们。偶发的慢链路表现相同：请在相同迭代采集"
            "所有卡。",
        ),
        formula="sum over collectives of (shortest duration over the ranks seen - the best of the same op, group and "
        "size), exposed part / length of the steps",
        bands=((excess.longest_start_ns, excess.longest_start_ns + excess.longest_ns),),
    )  # fmt: skip
