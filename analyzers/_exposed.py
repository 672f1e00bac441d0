"""Rows N-01, N-09, N-10 and E-03: communication that computing does not hide and no waiting explains, by kind of group.

Each moment is claimed by one row: groups of a known kind by the row of that kind, the others by N-01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import Calls
from ascend_perf.analyzers._communication_tables import exposed_waits, group_names, ops_by_group
from ascend_perf.analyzers._group_kinds import GroupKind, group_kinds
from ascend_perf.analyzers._retransmission import stalled_calls
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._sync_batchnorm import SyncBatchNorm
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Severity, Words
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import COMM_TRANSFERS, HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.units import counted, format_ns, format_quantity, format_ratio

NAME: Final = "communication"

LOOK_EXPOSED_RATIO: Final = threshold("N-01", "low_below_ratio")
MIN_GROUP_RATIO: Final = threshold("N-01", "min_share_ratio")
MIN_CALLS_FOR_RATE: Final = threshold("N-01", "min_calls_for_rate")

CODES: Final = ("N-01", "N-09", "N-10", "E-03")
"""Rows that share the exposed time of a rank; N-11 takes its part before them."""
MIN_SYNC_NORM_RATIO: Final = threshold("N-11", "min_share_ratio")

_CODE_OF: Final[dict[GroupKind, str]] = {"dp": "N-10", "tp": "N-09", "cp": "N-09", "ep": "E-03"}
_KINDS: Final[dict[str, Words]] = {
    "N-09": Words("tensor or context parallel communication", "TP 或 CP 通信"),
    "N-10": Words("data parallel communication (gradients, parameters)", "DP 通信（梯度、参数）"),
    "E-03": Words("expert exchange (dispatch, combine)", "专家 Dispatch 与 Combine 通信"),
    "N-11": Words("communication of synchronised batch norms", "SyncBatchNorm 通信"),
    "N-01": Words("communication", "通信"),
}
_MOE: Final = ("groupedmatmul", "grouped_matmul", "moe", "grouped_gemm", "fused_moe")


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Waiting that other rows explain: intervals, and calls whose waiting is known as a length only."""

    waits: IntervalSet
    estimated: Bools

    def rest_ns(self, calls: Calls, mask: Bools | None = None, beyond: IntervalSet = EMPTY) -> int:
        """Exposed time of some calls that nothing explains, outside of what another row claims."""
        taken = intervals.union(self.waits, beyond)
        exposed = intervals.difference(intervals.difference(calls.union(mask), calls.busy), taken)
        rows = self.estimated if mask is None else self.estimated & mask
        length = min(
            intervals.total(exposed), int((calls.exposed_ns if mask is None else calls.exposed_ns[mask]).sum())
        )
        return max(0, length - exposed_waits(calls, rows))


def exposed(
    calls: Calls, explained: Explained, norm: SyncBatchNorm | None = None
) -> tuple[list[Finding], list[Judged]]:
    """N-01 and its rows by kind of group, from 3 % of the step in all; N-11 before them.

    Args:
        calls: the calls of the rank.
        explained: the waiting that other rows (N-05, L-01) claim.
        norm: the synchronised batch norms of the rank.
    """
    # The exporter's overlap, spread over the calls, may leave less than the union.
    exposed_ns = min(calls.exposed_union_ns(), int(calls.exposed_ns.sum()))
    rest_ns = explained.rest_ns(calls)
    masks, inferred = _masks(calls)
    found, normed = _norms(calls, explained, norm, exposed_ns)
    claimed, left = EMPTY, rest_ns
    apart = stalled_calls(calls)  # row N-04, which `collectives` reports for the whole job
    if found and norm is not None and found[0].share_ratio is not None:
        apart = apart | norm.calls
    if apart.any():
        claimed = intervals.difference(calls.union(apart), calls.busy)
        left = max(0, left - explained.rest_ns(calls, apart))
        masks = {code: mask & ~apart for code, mask in masks.items() if (mask & ~apart).any()}
    share = share_of(calls, left)
    # Where waiting takes most of it, that is what matters: the transfers beside it must be unusual.
    least = MIN_GROUP_RATIO.value if 2 * rest_ns >= exposed_ns else LOOK_EXPOSED_RATIO.value
    if share < least:
        note = None
        if exposed_ns > rest_ns:
            note = Words(
                f"{format_ratio(share_of(calls, exposed_ns))} of the step is exposed, all but {format_ratio(share)} is "
                "waiting that other rows explain",
                f"未被掩盖的通信占 {format_ratio(share_of(calls, exposed_ns))}，除 {format_ratio(share)} 外均为其他条目"
                "已解释的等待",
            )
        return found, [*(_verdict(calls, code, masks, (), note) for code in CODES), normed]
    severity = Severity.LOW if share < LOOK_EXPOSED_RATIO.value else None
    rows = sorted((code for code in masks if code != "N-01"), key=lambda code: -explained.rest_ns(calls, masks[code]))
    rest = masks.get("N-01", np.zeros(len(calls), bool))
    for code in rows:
        own = min(left, explained.rest_ns(calls, masks[code], beyond=claimed))
        if share_of(calls, own) < MIN_GROUP_RATIO.value:
            rest = rest | masks[code]
            continue
        found.append(_row(calls, explained, code, masks[code], own, exposed_ns, inferred, severity))
        claimed = intervals.union(claimed, intervals.difference(calls.union(masks[code]), calls.busy))
        left -= own
    split = any(f.code != "N-11" for f in found)
    own = min(left, explained.rest_ns(calls, rest, beyond=claimed)) if split else left
    if not split or share_of(calls, own) >= MIN_GROUP_RATIO.value:
        whole = rest if split else ~apart
        found.append(_row(calls, explained, "N-01", whole, own, exposed_ns, inferred, severity))
    named = tuple(f.code for f in found)
    return found, [*(_verdict(calls, code, masks, named, None) for code in CODES), normed]


def _norms(
    calls: Calls, explained: Explained, norm: SyncBatchNorm | None, exposed_ns: int
) -> tuple[list[Finding], Judged]:
    """N-11: more than 20 synchronised batch norms per step."""
    code = "N-11"
    if norm is None or not norm.is_many:
        if norm is None and not calls.trace.has(HOST_OPS) and not calls.trace[KERNELS].has("op_type"):
            reason = Words(
                "neither framework operators nor kernel types in this data", "数据中既没有框架算子，也没有 Kernel 类型"
            )
            return [], Judged(code=code, verdict="not_judged", reason=reason)
        return [], Judged(code=code, verdict="clean")
    if norm.has_launches and norm.calls.any():
        own = explained.rest_ns(calls, norm.calls)
        if share_of(calls, own) < MIN_SYNC_NORM_RATIO.value:
            note = Words(
                f"{norm.per_step:.4g} per step, {format_ratio(share_of(calls, own))} of the step",
                f"每步 {norm.per_step:.4g} 次，占单步 {format_ratio(share_of(calls, own))}",
            )
            return [], Judged(code=code, verdict="clean", reason=note)
        return [_row(calls, explained, code, norm.calls, own, exposed_ns, False)], Judged(code=code, verdict="found")
    most = share_of(calls, explained.rest_ns(calls))
    if most < MIN_SYNC_NORM_RATIO.value:
        note = Words(
            f"{norm.per_step:.4g} per step; all exposed communication is {format_ratio(most)} of the step",
            f"每步 {norm.per_step:.4g} 次；未被掩盖的通信合计占单步 {format_ratio(most)}",
        )
        return [], Judged(code=code, verdict="clean", reason=note)
    one = finding(
        code, analyzer=NAME, trace_rank=calls.trace.meta.rank, share_ratio=None,
        title=Words(
            f"{norm.per_step:.4g} synchronised batch norms per step exchange their statistics between ranks",
            f"每步 {norm.per_step:.4g} 次 SyncBatchNorm，逐层在各卡间交换统计量",
        ),
        evidence=[
            Evidence(
                name=Words("synchronised batch norms per step", "每步 SyncBatchNorm 次数"), value=norm.per_step,
                unit="count", where=f"host_ops or kernels: {norm.example[:100]}",
            )
        ],
        vendor=calls.trace.meta.device.kind, step_ids=calls.step_ids,
    )  # fmt: skip
    return [one], Judged(code=code, verdict="found")


def _masks(calls: Calls) -> tuple[dict[str, Bools], bool]:
    """The calls of each row, and whether the kind of a group had to be inferred."""
    groups, ops = calls.table.text("group"), calls.table.text("op")
    kinds = group_kinds(calls.trace)
    exchange = ops.isin({"alltoall", "alltoallv"})
    masks: dict[str, Bools] = {}
    rest = np.ones(len(calls), bool)
    for name, (kind, _) in kinds.items():
        code = _CODE_OF.get(kind)
        if code is not None and name is not None:
            mine = groups.equals(name)
            masks[code] = masks.get(code, np.zeros(len(calls), bool)) | mine
            rest &= ~mine
    if (rest & exchange).any() and has_experts(calls.trace):
        masks["E-03"] = masks.get("E-03", np.zeros(len(calls), bool)) | (rest & exchange)
        rest &= ~exchange
    if rest.any():
        masks["N-01"] = rest
    return masks, any(is_inferred for _, is_inferred in kinds.values())


def has_experts(trace: Trace) -> bool:
    """Whether kernels of a mixture of experts run on the rank."""
    kernels = trace[KERNELS]
    for column in ("op_type", "name"):
        if any(sign in value.lower() for value in kernels.text(column).compact().values for sign in _MOE):
            return True
    return False


def _verdict(calls: Calls, code: str, masks: dict[str, Bools], found: Sequence[str], note: Words | None) -> Judged:
    if code in found:
        return Judged(code=code, verdict="found")
    if code == "N-01" or code in masks:
        return Judged(code=code, verdict="clean", reason=note)
    if any(row != "N-01" for row in masks) or (code == "E-03" and not _exchanges(calls)):
        return Judged(
            code=code, verdict="clean",
            reason=Words(f"no {_KINDS[code].en} in this data", f"数据中没有{_KINDS[code].zh}"),
        )  # fmt: skip
    return Judged(
        code=code, verdict="not_judged",
        reason=Words(
            "nothing names the groups, so exposed time is judged as a whole (N-01): profiler_metadata.json with "
            "parallel_group_info tells what each group is for",
            "没有信息说明各通信域的用途，未被掩盖的通信整体按 N-01 判断：需要带 parallel_group_info 的 "
            "profiler_metadata.json",
        ),
    )  # fmt: skip


def _exchanges(calls: Calls) -> bool:
    return bool(calls.table.text("op").isin({"alltoall", "alltoallv"}).any())


def _row(
    calls: Calls,
    explained: Explained,
    code: str,
    mask: Bools,
    own_ns: int,
    exposed_ns: int,
    inferred: bool,
    severity: Severity | None = None,
) -> Finding:
    """The finding of a row for its calls.

    Args:
        calls: the calls of the rank.
        explained: the waiting that other rows claim.
        code: the row.
        mask: the calls of the row.
        own_ns: exposed time that the row claims.
        exposed_ns: exposed time of all calls, waiting included.
        inferred: the kind of a group is not in the metadata.
        severity: overrides what follows from the share.
    """
    share = share_of(calls, own_ns)
    parts = [(op, group, part & mask) for op, group, part in ops_by_group(calls) if (part & mask).any()]
    parts.sort(key=lambda part: -explained.rest_ns(calls, part[2]))
    names = group_names(calls.trace)
    op, group, main = parts[0]
    step = step_words(calls, share)
    waiting_ns = max(0, exposed_ns - explained.rest_ns(calls))
    unknown = bool((calls.waiting_ns[mask] == NULL).all())
    beside, beside_zh = ("", "") if not waiting_ns else (" beside the waiting", "（不含已解释的等待）")
    evidence = [
        Evidence(
            name=Words("exposed communication", "未被掩盖的通信"),
            value=min(exposed_ns, calls.exposed_union_ns(mask)), unit="ns",
            where=f"comm_ops: union of {int(mask.sum())} calls less the union of kernels",
        ),
    ]  # fmt: skip
    if waiting_ns:
        evidence.append(
            Evidence(
                name=Words("waiting in all calls that N-05 or L-01 explain", "全部通信中 N-05 或 L-01 已解释的等待"),
                value=waiting_ns, unit="ns", where="comm_tasks, comm_transfers",
            )
        )  # fmt: skip
    for part_op, part_group, part in parts[:3]:
        first = int(np.argmax(np.where(part, calls.exposed_ns, -1)))
        evidence.append(
            Evidence(
                name=Words(f"exposed in {part_op or '?'}", f"{part_op or '?'} 未被掩盖"),
                value=explained.rest_ns(calls, part), unit="ns", start_ns=int(calls.starts[first]),
                where=f"group {names.get(part_group, '?')}{' (kind inferred)' if inferred and code != 'N-01' else ''}: "
                f"{_times(int(part.sum()))}, longest {calls.table.text('name')[first]}",
            )
        )  # fmt: skip
    union = intervals.total(calls.union(mask))
    evidence.append(
        Evidence(
            name=Words("share of communication hidden behind computing", "被计算掩盖的通信比例"),
            value=max(0.0, 1 - min(exposed_ns, calls.exposed_union_ns(mask)) / max(1, union)), unit="ratio",
            where="1 - exposed / union of these calls",
        )
    )  # fmt: skip
    if unknown and (estimate := _best_rate(calls, main)) is not None:
        evidence.append(estimate)
    what = _KINDS[code]
    found = finding(
        code, analyzer=NAME, trace_rank=calls.trace.meta.rank, share_ratio=share, evidence=evidence, severity=severity,
        where=calls.exposed(mask), whole_ns=calls.step_ns,
        title=Words(
            f"{per_step(calls, own_ns)} of {step.en} is {what.en} that computing does "
            f"not hide{beside}, most of it {op or 'collectives'} ({_times(int(main.sum()))})",
            f"{step.zh}有 {per_step(calls, own_ns)}（{format_ratio(share)}）{what.zh}未被掩盖{beside_zh}，"
            f"主要是 {op or '集合通信'}（{int(main.sum())} 次）",
        ),
        vendor=calls.trace.meta.device.kind, step_ids=calls.step_ids,
        cause=_cause(calls, code, names.get(group), unknown),
        formula="(exposed communication of these calls - waiting explained by N-05 and L-01 - what another row of "
        "exposed communication claims) / length of the steps",
    )  # fmt: skip
    return replace(found, may_hold=("N-05",))


def _best_rate(calls: Calls, mask: Bools) -> Evidence | None:
    """How long some calls of one op and group would have taken at the best rate seen among them; an estimate."""
    sizes, duration = calls.table.ints("size_bytes"), calls.ends - calls.starts
    rows = np.flatnonzero(mask & (sizes != NULL) & (sizes > 0) & (duration > 0))
    if len(rows) < MIN_CALLS_FOR_RATE.value:
        return None
    best = int(rows[np.argmax(sizes[rows] / duration[rows])])
    need = float(sizes[rows].sum()) / (float(sizes[best]) / float(duration[best]))
    return Evidence(
        name=Words("estimated: their time at the best rate seen", "估算：按其中最高速率所需时间"),
        value=need, unit="ns",
        where=f"{_times(len(rows))} of {format_ns(int(duration[rows].sum()))}; best rate "
        f"{format_quantity(float(sizes[best]) / float(duration[best]) * 1e9, 'bytes_per_s')} in "
        f"{calls.table.text('name')[best]}; the rest may be waiting",
        start_ns=int(calls.starts[best]),
    )  # fmt: skip


def _times(count: int) -> str:
    return counted(count, "call")


def _cause(calls: Calls, code: str, group: str | None, waiting_unknown: bool) -> Words | None:
    if waiting_unknown:
        return Words(
            "Collectives lie on the critical path. Part of this may be waiting for a late rank, which this data "
            "cannot tell from transfer: check row N-05 with all ranks or a finer profile first.",
            "集合通信处在关键路径上。其中一部分可能是在等待慢卡，现有数据无法与传输区分：请先用全部卡或更细粒度的 "
            "profile 检查 N-05。",
        )
    if code == "N-09" and _crosses_servers(calls, group):
        return Words(
            "Tensor or context parallelism exchanges data inside each layer over RDMA: the group reaches across "
            "servers. Keep it inside one server.",
            "TP 或 CP 在每层内经 RDMA 交换数据：该通信域跨服务器，应限制在单台服务器内。",
        )
    if code == "N-09":
        return Words(
            "Tensor or context parallelism exchanges data inside each layer and nothing computes meanwhile.",
            "TP 或 CP 在每层内通信，期间没有计算可供掩盖。",
        )
    if code == "N-10":
        return Words(
            "Gradients are reduced or parameters gathered while nothing computes.",
            "梯度归约或参数收集期间没有计算可供掩盖。",
        )
    return None


def _crosses_servers(calls: Calls, shown: str | None) -> bool:
    """Whether most bytes of a group go over RDMA."""
    transfers = calls.trace[COMM_TRANSFERS]
    names = group_names(calls.trace)
    sizes = np.maximum(transfers.ints("size_bytes"), 0)
    mine = transfers.text("group").flags(lambda name: names.get(name) == shown)
    total = int(sizes[mine].sum())
    return total > 0 and int(sizes[mine & transfers.text("transport").equals("RDMA")].sum()) > total / 2
