"""Communication beside matrix products: transfers that run slower while a product shares memory with them (N-07)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._communication import Calls, calls_in_steps, has_subtasks, is_move, no_waits
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Judged, Result, Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import KernelClass, kernel_classes
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_quantity, format_ratio

NAME: Final = "contention"
CODE: Final = "N-07"

MAX_SLOWED_RATIO: Final = threshold("N-07", "max_slowed_ratio")
BESIDE_RATIO: Final = threshold("N-07", "min_beside_ratio")
ALONE_RATIO: Final = threshold("N-07", "max_alone_ratio")
MIN_TRANSFERS: Final = threshold("N-07", "min_transfers")
MIN_BYTES: Final = threshold("N-07", "min_bytes")
MIN_SHARE_RATIO: Final = threshold("N-07", "min_share_ratio")


@analyzer(name=NAME, needs=[COMM_OPS], order=62, section="communication", needs_measured=("N-07",))
def contention(trace: Trace) -> Result:
    """Rate of transfers beside matrix products against transfers of like size without one.

    Reads:
        comm_ops, comm_tasks: kind, size_bytes, link; kernels: op_type, name, start_ns, dur_ns.
    """
    if not has_subtasks(trace):
        return _not_judged(no_waits(trace))
    if not trace.has(KERNELS):
        return _not_judged(Words("no kernels in this data", "数据中没有 Kernel"))
    calls = calls_in_steps(trace)
    rows, slowed = _slowed(calls)
    if rows is None:
        return _not_judged(
            Words(
                "no transfers of like size both beside matrix products and without one: nothing to compare with",
                "没有大小相近、分别处于矩阵乘期间与之外的传输，无从比较",
            )
        )
    if not len(slowed):
        return Result(judged=(Judged(code=CODE, verdict="clean"),))
    lost = _lost_per_call(calls, rows, slowed)
    total = int(np.minimum(lost, calls.exposed_ns).sum())
    share = share_of(calls, total)
    ratio = float(np.median(slowed))
    if share < MIN_SHARE_RATIO.value:
        note = Words(
            f"{len(rows)} transfers beside matrix products run at {format_ratio(ratio)} of the rate without one, but "
            f"computing hides all but {format_ratio(share)} of the step of it",
            f"矩阵乘期间的 {len(rows)} 次传输速率为其余时间的 {format_ratio(ratio)}，但除单步的 {format_ratio(share)} "
            "外均被计算掩盖",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=note),))
    tasks = trace[COMM_TASKS]
    rates = tasks.ints("size_bytes")[rows] / tasks.ints("dur_ns")[rows] * 1e9
    worst = int(rows[np.argmin(slowed)])
    found = finding(
        CODE, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, vendor=trace.meta.device.kind,
        where=intervals.difference(calls.union(lost > 0), calls.busy), whole_ns=calls.step_ns,
        title=Words(
            f"{len(rows)} transfers beside matrix products run at {format_ratio(ratio)} of the rate without one: "
            f"at most {per_step(calls, total)} of {step_words(calls, share).en}",
            f"矩阵乘期间的 {len(rows)} 次传输速率仅为其余时间的 {format_ratio(ratio)}：{step_words(calls).zh}至多 "
            f"{per_step(calls, total)}（{format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("rate beside matrix products", "矩阵乘期间的速率"), value=float(np.median(rates)),
                unit="bytes_per_s", where=f"comm_tasks: {len(rows)} transfers, half of their time or more beside a "
                "product; median",
            ),
            Evidence(
                name=Words("rate without one", "无矩阵乘时的速率"), value=float(np.median(rates / slowed)),
                unit="bytes_per_s", where="comm_tasks: transfers of the same link and size (within a factor of 2); "
                "median",
            ),
            Evidence(
                name=Words("slowest of them", "其中最慢的一次"), value=int(tasks.ints("dur_ns")[worst]), unit="ns",
                where=f"{trace[COMM_OPS].text('name')[int(tasks.ints('comm_op')[worst])]}, "
                f"{format_quantity(float(tasks.ints('size_bytes')[worst]), 'bytes')}",
                start_ns=int(tasks.ints("start_ns")[worst]),
            ),
        ],
        formula="per call: its slowed transfers' time x (1 - rate / rate without a product), the plane that loses "
        "most, at most the exposed time of the call; / length of the steps",
        step_ids=calls.step_ids,
    )  # fmt: skip
    return Result(findings=(found,), judged=(Judged(code=CODE, verdict="found"),))


def _not_judged(reason: Words) -> Result:
    return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))


def _slowed(calls: Calls) -> tuple[Ints | None, Floats]:
    """Transfers beside products that are slow, and their rate against the usual; None: nothing can be compared."""
    tasks, kernels = calls.trace[COMM_TASKS], calls.trace[KERNELS]
    sizes, durations = tasks.ints("size_bytes"), tasks.ints("dur_ns")
    use: Bools = is_move(tasks) & (sizes >= MIN_BYTES.value) & (durations > 0) & (tasks.ints("start_ns") != NULL)
    use &= ~tasks.text("link").equals("ON_CHIP") & np.isin(tasks.ints("comm_op"), calls.rows)
    rows = np.flatnonzero(use)
    products = kernel_classes(kernels).equals(KernelClass.MATMUL.value) & (kernels.ints("start_ns") != NULL)
    products &= kernels.ints("dur_ns") != NULL
    busy = intervals.merged(kernels.ints("start_ns")[products], kernels.ends_ns()[products])
    covered = intervals.covered(busy, tasks.ints("start_ns")[rows], tasks.ends_ns()[rows]) / durations[rows]
    rates = sizes[rows] / durations[rows]
    kinds = tasks.text("link").codes[rows].astype(np.int64) * 64 + np.log2(sizes[rows]).astype(np.int64)
    beside, alone = covered >= BESIDE_RATIO.value, covered <= ALONE_RATIO.value
    comparable = False
    picked: list[Ints] = []
    ratios: list[Floats] = []
    for kind in np.unique(kinds).tolist():
        mine, free = beside & (kinds == kind), alone & (kinds == kind)
        if mine.sum() < MIN_TRANSFERS.value or free.sum() < MIN_TRANSFERS.value:
            continue
        comparable = True
        ratio = rates[mine] / float(np.median(rates[free]))
        if float(np.median(ratio)) < MAX_SLOWED_RATIO.value:
            slow = ratio < MAX_SLOWED_RATIO.value
            picked.append(rows[mine][slow])
            ratios.append(ratio[slow])
    if not comparable:
        return None, np.empty(0)
    if not picked:
        return np.empty(0, np.int64), np.empty(0)
    return np.concatenate(picked), np.concatenate(ratios)


def _lost_per_call(calls: Calls, rows: Ints, ratios: Floats) -> Ints:
    """What the slowed transfers cost each call: planes run side by side, so the worst plane counts."""
    tasks = calls.trace[COMM_TASKS]
    place = np.full(len(calls.trace[COMM_OPS]), -1, np.int64)
    place[calls.rows] = np.arange(len(calls))
    lost = tasks.ints("dur_ns")[rows] * (1 - ratios)
    planes = np.unique(tasks.ints("plane")[rows], return_inverse=True)[1].reshape(-1)
    table = np.zeros((len(calls), int(planes.max()) + 1))
    np.add.at(table, (place[tasks.ints("comm_op")[rows]], planes), lost)
    return np.asarray(np.rint(table.max(axis=1)), np.int64)
