"""Collectives that start late although their data is ready: the host is still issuing their tasks (N-12)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._collective_launch import is_collective_api
from ascend_perf.analyzers._dispatch_claims import claims_of
from ascend_perf.analyzers._idle import idle_of, no_idle_words
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers.host_dispatch import launch_blocking
from ascend_perf.intervals import EMPTY
from ascend_perf.model.finding import Evidence, Judged, Result, Words
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import analyzer
from ascend_perf.units import format_ratio

NAME: Final = "collective-launch"
CODE: Final = "N-12"

MAX_BANDS: Final = 8
"""Gaps that the finding marks in the timeline."""


@analyzer(name=NAME, needs=[COMM_OPS], order=64, section="communication")
def collective_launch(trace: Trace) -> Result:
    """Idle time of the device that ends with a collective while the host is inside HCCL.

    Reads:
        comm_ops, kernels, copies: start_ns, dur_ns; runtime_calls: api, layer, start_ns, dur_ns.
    """
    calls = trace[RUNTIME_CALLS]
    hosted = is_collective_api(calls)
    if trace.meta.device.kind == "gpu":
        reason = Words("NCCL issues one kernel per collective", "NCCL 每次集合通信只下发一个 Kernel")
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    if not hosted.any():
        return _not_judged(
            Words(
                "no calls into HCCL in this data: keep trace_view.json or the database of a Level1 profile with CANN "
                "activity",
                "数据中没有 HCCL 接口调用：需要 Level1 采集的 trace_view.json 或 db（含 CANN 层）",
            )
        )
    idle = idle_of(trace)
    if idle is None:
        return _not_judged(no_idle_words(trace))
    if launch_blocking(trace, idle):
        reason = Words(
            "launches are blocking (row H-04): every gap follows from that",
            "下发为阻塞模式（见 H-04），所有空闲均由其引起",
        )
        return Result(judged=(Judged(code=CODE, verdict="clean", reason=reason),))
    lost = claims_of(trace, idle).get(CODE, EMPTY)
    if not len(lost.starts):
        return Result(judged=(Judged(code=CODE, verdict="clean"),))
    total = intervals.total(lost)
    share = share_of(idle.span, total)
    starts = trace[COMM_OPS].ints("start_ns")
    late = np.isin(
        starts[starts != NULL], idle.gaps.ends[intervals.covered(lost, idle.gaps.starts, idle.gaps.ends) > 0]
    )
    longest = int(np.argmax(lost.ends - lost.starts))
    mode = trace.meta.environment.get("HCCL_OP_EXPANSION_MODE")
    evidence = [
        Evidence(
            name=Words("idle before collectives, host inside HCCL", "集合通信前的空闲（Host 处于 HCCL 接口中）"),
            value=total / idle.span.steps, unit="ns",
            where=f"{int(late.sum())} collectives; gaps of the whole device that end with one, inside runtime_calls of "
            "HCCL",
        ),
        Evidence(
            name=Words("longest of them", "其中最长的一次"), value=int(lost.ends[longest] - lost.starts[longest]),
            unit="ns", where="gaps of the whole device", start_ns=int(lost.starts[longest]),
        ),
    ]  # fmt: skip
    if mode:
        evidence.append(
            Evidence(name=Words("expansion mode", "展开模式"), value=mode[:40], where="HCCL_OP_EXPANSION_MODE")
        )
    order = np.sort(np.argsort(lost.starts - lost.ends, kind="stable")[:MAX_BANDS])
    found = finding(
        CODE, analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, vendor=trace.meta.device.kind,
        where=lost, whole_ns=idle.span.step_ns,
        evidence=evidence, step_ids=idle.span.step_ids,
        title=Words(
            f"The device idles {per_step(idle.span, total)} of {step_words(idle.span, share).en} "
            f"before {int(late.sum())} collectives while the host is still issuing them",
            f"{step_words(idle.span).zh}设备在 {int(late.sum())} 次集合通信前空闲 {per_step(idle.span, total)}"
            f"（{format_ratio(share)}），期间 Host 仍在下发通信任务",
        ),
        formula="idle time that ends with a collective, less what H-02 and H-03 explain, while the host is inside HCCL "
        "/ length of the steps; not part of H-01",
        bands=tuple(zip(lost.starts[order].tolist(), lost.ends[order].tolist(), strict=True)),
    )  # fmt: skip
    return Result(findings=(found,), judged=(Judged(code=CODE, verdict="found"),))


def _not_judged(reason: Words) -> Result:
    return Result(judged=(Judged(code=CODE, verdict="not_judged", reason=reason),))
