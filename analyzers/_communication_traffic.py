"""Rows N-02, N-03 and N-08: packet sizes, alignment of transfers, and settings of the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import Calls, call_of_rows, is_move, no_waits
from ascend_perf.analyzers._communication_tables import packets_in_steps
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.device.launch_settings import check_environment
from ascend_perf.model.finding import Evidence, Finding, Judged, Severity, Words
from ascend_perf.model.table import NULL, Bools, Floats, Table
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS
from ascend_perf.model.trace import Trace
from ascend_perf.units import format_ratio

NAME: Final = "communication"

SMALL_RDMA_BYTES: Final = threshold("N-02", "small_rdma_bytes")
SMALL_SDMA_BYTES: Final = threshold("N-02", "small_sdma_bytes")
MIN_PACKET_RATIO: Final = threshold("N-02", "min_share_ratio")
ALIGNMENT_BYTES: Final = 512
"""Sizes of SDMA transfers should be multiples of it. Source: msprof-analyze, byte_alignment.yaml. Status: vendor."""
MIN_UNALIGNED_RATIO: Final = threshold("N-03", "min_share_ratio")

LIKE_SIZE: Final = 4
"""Transfers up to so many times larger or smaller are compared. Status: assumed."""
MIN_ALIGNED: Final = threshold("N-03", "min_aligned")


def small_packets(calls: Calls) -> tuple[Finding | None, Judged]:
    """N-02 by what larger packets would save: a thousand tiny packets that take 1 ms are no finding.

    A call with small packets would need the time of its bytes at the best rate that this data shows on the transport;
    what it is exposed beyond that (waiting for peers left out) is the start-up cost of its packets. So activations of
    8 MB that already run at the rate of the link are no finding, whatever their size is called.
    """
    packets = packets_in_steps(calls)
    times = packets.ints("time_ns")
    spent = int(times[times != NULL].sum())
    if not spent:
        missing = Words(
            "no packet sizes in this data: communication.json (profiler level Level1) holds them",
            "数据中没有包大小：communication.json（采集级别 Level1）中有",
        )
        if calls.trace.meta.device.kind == "gpu":
            missing = Words("NCCL kernels carry no packet sizes", "NCCL Kernel 不带包大小")
        return None, Judged(code="N-02", verdict="not_judged", reason=missing)
    rdma, sdma = SMALL_RDMA_BYTES.value, SMALL_SDMA_BYTES.value
    limit = packets.text("transport").numbers(lambda name: rdma if name in ("RDMA", "ROCE") else sdma)
    small = packets.ints("packet_bytes") < np.where(np.isnan(limit), sdma, limit)
    small &= times != NULL
    ratio = int(times[small].sum()) / spent
    need = _time_at_best_rate(packets)
    saved = min(_saved_ns(calls, packets, small, need), calls.exposed_union_ns())
    share = share_of(calls, saved)
    if share < MIN_PACKET_RATIO.value:
        return None, Judged(
            code="N-02", verdict="clean",
            reason=Words(
                f"small packets take {format_ratio(ratio)} of the transfer time; larger ones would save at most "
                f"{format_ratio(share)} of the step",
                f"小包占传输时间的 {format_ratio(ratio)}；合并为大包至多节省单步的 {format_ratio(share)}",
            ),
        )  # fmt: skip
    rate_small = float(packets.ints("packet_bytes")[small] @ packets.ints("count")[small]) / max(1, times[small].sum())
    rate_best = rate_small * float(times[small].sum()) / max(1.0, float(need[small].sum()))
    evidence = [
        Evidence(
            name=Words("larger packets would save, at most", "合并为大包至多节省"), value=saved, unit="ns",
            where="comm_ops: exposed time of calls with small packets, less their bytes at the best rate seen",
        ),
        Evidence(
            name=Words("transfer time in small packets", "小包的传输时间占比"), value=ratio, unit="ratio",
            where="comm_packets: time_ns of packets under 16 MB (RDMA: 1 MB), weighted by time",
        ),
        Evidence(
            name=Words("small packets", "小包个数"), value=int(packets.ints("count")[small].sum()), unit="count",
            where="comm_packets.count",
        ),
        Evidence(
            name=Words("rate of small packets", "小包速率"), value=rate_small * 1e9, unit="bytes_per_s",
            where="packet_bytes x count / time_ns",
        ),
        Evidence(
            name=Words("best rate of a packet size", "各包大小中的最高速率"), value=rate_best * 1e9,
            unit="bytes_per_s", where="packet_bytes x count / time_ns, by transport and size",
        ),
    ]  # fmt: skip
    found = finding(
        "N-02", analyzer=NAME, trace_rank=calls.trace.meta.rank, share_ratio=share, evidence=evidence,
        where=calls.exposed(), whole_ns=calls.step_ns,
        title=Words(
            f"{format_ratio(ratio)} of the transfer time goes into small packets; larger ones would save at most "
            f"{per_step(calls, saved)} of {step_words(calls, share).en}",
            f"传输时间的 {format_ratio(ratio)} 花在小包上；合并为大包至多节省{step_words(calls).zh}中的 "
            f"{per_step(calls, saved)}（{format_ratio(share)}）",
        ),
        vendor=calls.trace.meta.device.kind, step_ids=calls.step_ids,
        formula="sum over calls of (exposed time without waiting - time of their bytes at the best rate seen), small "
        "packets only / length of the steps",
    )  # fmt: skip
    # Transfers over a slow link are slow at any size: what the job's matrix of links tells of them is not theirs.
    return replace(found, may_hold=("N-06",)), Judged(code="N-02", verdict="found")


def _time_at_best_rate(packets: Table) -> Floats:
    """Time that each row's packets would take at the best rate that a packet size reaches on their transport."""
    times = np.where(packets.ints("time_ns") == NULL, 0, packets.ints("time_ns")).astype(np.float64)
    size = packets.ints("packet_bytes").astype(np.float64) * packets.ints("count")
    transport = packets.text("transport").codes.astype(np.int64)
    _, of_size = np.unique(packets.ints("packet_bytes"), return_inverse=True)
    key = transport * (int(of_size.max(initial=0)) + 1) + of_size.reshape(-1)
    _, row = np.unique(key, return_inverse=True)
    row = row.reshape(-1)
    spent, moved = np.bincount(row, times), np.bincount(row, size)
    rate = np.divide(moved, spent, out=np.zeros_like(moved), where=spent > 0)[row]
    need = times.copy()
    for code in np.unique(transport).tolist():
        own = transport == code
        best = float(rate[own].max())
        if best > 0:
            need[own] = np.minimum(times[own], size[own] / best)
    return np.asarray(need, np.float64)


def _saved_ns(calls: Calls, packets: Table, small: Bools, need: Floats) -> int:
    """What larger packets would save, all calls together."""
    call = call_of_rows(calls.table, packets)
    usable = (call >= 0) & (packets.ints("time_ns") != NULL)
    rows, count = call[usable], len(calls)
    times = packets.ints("time_ns")[usable].astype(np.float64)
    whole = np.bincount(rows, times, count)
    in_small = np.bincount(rows, np.where(small[usable], times, 0.0), count)
    wanted = np.bincount(rows, np.where(small[usable], need[usable], 0.0), count)
    part = np.divide(in_small, whole, out=np.zeros(count), where=whole > 0)
    left = np.divide(wanted, in_small, out=np.ones(count), where=in_small > 0)
    waiting = np.where(calls.exposed_waiting_ns == NULL, 0, calls.exposed_waiting_ns)
    exposed = np.maximum(calls.exposed_ns - waiting, 0)
    moving = np.where(calls.transfer_ns == NULL, exposed, calls.transfer_ns)
    return round(float((part * np.maximum(0.0, exposed - moving * left)).sum()))


def unaligned(calls: Calls) -> tuple[Finding | None, Judged]:
    """N-03, weighted by the time of the transfers that are not aligned."""
    tasks = calls.trace[COMM_TASKS]
    if calls.is_estimated:
        return None, Judged(code="N-03", verdict="not_judged", reason=no_waits(calls.trace))
    sizes = tasks.ints("size_bytes")
    odd = is_move(tasks) & tasks.text("transport").equals("SDMA") & ~tasks.text("link").equals("ON_CHIP")
    odd &= (sizes > ALIGNMENT_BYTES) & (sizes % ALIGNMENT_BYTES != 0)
    union = _exposed_ns(calls, tasks, odd)
    slower = _slower_ratio(tasks, odd)
    share = share_of(calls, union * (1.0 if slower is None else slower))
    if share < MIN_UNALIGNED_RATIO.value:
        note = Words(
            f"{int(odd.sum())} transfers are not aligned to {ALIGNMENT_BYTES} bytes; that costs at most "
            f"{format_ratio(share)} of the step",
            f"{int(odd.sum())} 次传输未按 {ALIGNMENT_BYTES} 字节对齐，至多占单步 {format_ratio(share)}",
        )
        return None, Judged(code="N-03", verdict="clean", reason=note if odd.any() else None)
    rows = np.flatnonzero(odd)
    longest = int(rows[np.argmax(tasks.ints("dur_ns")[rows])])
    found = finding(
        "N-03", analyzer=NAME, trace_rank=calls.trace.meta.rank, share_ratio=share,
        where=calls.exposed(), whole_ns=calls.step_ns,
        title=Words(
            f"{len(rows)} transfers are not aligned to {ALIGNMENT_BYTES} bytes; they run {per_step(calls, union)} of "
            f"{step_words(calls).en}, of which at most {format_ratio(share)} of the step could go",
            f"{step_words(calls).zh}有 {per_step(calls, union)} 在执行 {len(rows)} 次未按 {ALIGNMENT_BYTES} "
            f"字节对齐的传输，至多可节省单步的 {format_ratio(share)}",
        ),
        evidence=[
            Evidence(
                name=Words("transfers that are not aligned", "未对齐的传输"), value=union, unit="ns",
                where=f"comm_tasks: {len(rows)} SDMA tasks, size % {ALIGNMENT_BYTES} != 0, union less computing",
            ),
            *_slower_evidence(slower),
            Evidence(
                name=Words("longest of them", "其中最长的一次"), value=int(tasks.ints("dur_ns")[longest]), unit="ns",
                where=f"{calls.trace[COMM_OPS].text('name')[int(tasks.ints('comm_op')[longest])]}, plane "
                f"{int(tasks.ints('plane')[longest])}, {int(sizes[longest])} bytes",
                start_ns=int(tasks.ints("start_ns")[longest]),
            ),
        ],
        vendor=calls.trace.meta.device.kind, step_ids=calls.step_ids,
        formula="union of the unaligned SDMA tasks, less computing / length of the steps"
        + ("" if slower is None else " * (1 - their rate / rate of aligned transfers of like size)"),
    )  # fmt: skip
    return found, Judged(code="N-03", verdict="found")


def _exposed_ns(calls: Calls, tasks: Table, rows: Bools) -> int:
    """Time of some sub-tasks in the steps while nothing computes."""
    union = intervals.difference(intervals.merged(tasks.ints("start_ns")[rows], tasks.ends_ns()[rows]), calls.busy)
    return sum(intervals.total(intervals.clip(union, *calls.windows.window(i))) for i in range(len(calls.windows)))


def _slower_ratio(tasks: Table, odd: Bools) -> float | None:
    """Part of the time of unaligned transfers that they lose to aligned ones of like size; None without such ones."""
    sizes, times = tasks.ints("size_bytes"), tasks.ints("dur_ns")
    if not odd.any():
        return None
    middle = float(np.median(sizes[odd]))
    like = (sizes >= middle / LIKE_SIZE) & (sizes <= middle * LIKE_SIZE) & (sizes % ALIGNMENT_BYTES == 0)
    like &= is_move(tasks) & tasks.text("transport").equals("SDMA") & ~tasks.text("link").equals("ON_CHIP")
    if int(like.sum()) < MIN_ALIGNED.value:
        return None
    slow, fast = (float(sizes[rows].sum()) / max(1, int(times[rows].sum())) for rows in (odd, like))
    return max(0.0, 1 - slow / fast) if fast else None


def _slower_evidence(slower: float | None) -> list[Evidence]:
    if slower is None:
        return []
    return [
        Evidence(
            name=Words("slower than aligned transfers of like size by", "比同等大小的对齐传输慢"), value=slower,
            unit="ratio", where="comm_tasks: 1 - rate of the unaligned / rate of the aligned",
        )
    ]  # fmt: skip


def _right_form(value: str) -> list[Evidence]:
    """What to write instead of a value that HCCL refuses."""
    wrong = [problem.right for problem in check_environment({"HCCL_ALGO": value}, "npu") if problem.level == "error"]
    name = Words("the form is wrong, right is", "格式错误，应为")
    return [Evidence(name=name, value=right, where="environment of the process") for right in wrong]


def algorithm(trace: Trace) -> tuple[Finding | None, Judged]:
    """N-08: HCCL_ALGO overrides the automatic choice."""
    value = trace.meta.environment.get("HCCL_ALGO")
    if value is None and not trace.meta.environment:
        if trace.meta.device.kind != "npu":
            reason = Words("HCCL is not in use", "未使用 HCCL")
        else:
            reason = Words(
                "no record of environment variables (profiler_metadata.json)",
                "没有环境变量记录（profiler_metadata.json）",
            )
        return None, Judged(code="N-08", verdict="not_judged", reason=reason)
    if value is None or not value.strip():
        return None, Judged(code="N-08", verdict="clean")
    found = finding(
        "N-08", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=None, severity=Severity.LOW,
        title=Words(
            f"HCCL_ALGO is set to {value[:60]!r}, which switches off the automatic choice of algorithm",
            f"设置了 HCCL_ALGO={value[:60]!r}，关闭了算法的自动选择",
        ),
        evidence=[
            Evidence(name=Words("HCCL_ALGO", "HCCL_ALGO"), value=value[:200], where="environment of the process"),
            *_right_form(value),
        ],
        vendor=trace.meta.device.kind,
    )  # fmt: skip
    return found, Judged(code="N-08", verdict="found")
