"""Why the device idles: what the host did in the gaps, and how it launches."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._between_steps import between_steps
from ascend_perf.analyzers._communication import exported_split
from ascend_perf.analyzers._decode import reloading
from ascend_perf.analyzers._dispatch_claims import claims_of
from ascend_perf.analyzers._host_causes import (
    MAX_NAME,
    MIN_SHARE_RATIO,
    Verdict,
    compilation,
    data_loader,
    driver_memory,
    garbage_collection,
    no_calls,
    span_words,
)
from ascend_perf.analyzers._idle import (
    CAUSES,
    Cause,
    Idle,
    Span,
    host_span,
    idle_of,
    is_sync,
    kernels_lost,
    no_idle_words,
    waits_of,
)
from ascend_perf.analyzers._idle_tables import api_table, gap_tables, gc_table, host_activity, launch_table
from ascend_perf.analyzers._launches import Launches, launches_of, quantiles
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._step_words import per_step, share_of, step_words
from ascend_perf.analyzers._steps import StepWindows, step_windows
from ascend_perf.analyzers._sync_finding import synchronising
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, Metric, Result, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Table
from ascend_perf.model.tables import HOST_EVENTS, HOST_OPS, RUNTIME_CALLS
from ascend_perf.model.trace import Trace
from ascend_perf.plugins import NoData, analyzer
from ascend_perf.units import counted, format_ns, format_ratio

NAME: Final = "host-dispatch"

MAX_BLOCKED_RATIO: Final = threshold("H-04", "max_blocked_ratio")
MIN_LAUNCHES: Final = threshold("H-04", "min_launches")
MIN_LOG_LEVEL: Final = threshold("H-09", "min_log_level")

_CLAIMED: Final = {
    "D-01": Cause.DATALOADER,
    "H-05": Cause.SYNC,
    "H-06": Cause.COMPILE,
    "H-07": Cause.GC,
    "K-04": Cause.MEMORY,
}
_IS_SET: Final = frozenset({"1", "true", "yes", "on"})


@analyzer(name=NAME, needs=(), order=80, section="host")
def host_dispatch(trace: Trace) -> Result:
    """Idle gaps by what the host did meanwhile, launch statistics, and the host's own bottlenecks.

    Reads:
        steps, kernels, comm_ops, copies, runtime_calls, host_ops, host_events, exported_apis; meta: environment,
        settings.
    """
    windows = step_windows(trace)
    idle = idle_of(trace)
    has_host = trace.has(RUNTIME_CALLS) or trace.has(HOST_OPS) or trace.has(HOST_EVENTS)
    if (not len(windows) or (idle is None and not has_host)) and exported_split(trace) is None:
        raise NoData(Words("no device activity and no host activity in the trace", "数据中既无设备活动也无 Host 活动"))
    if not len(windows):
        # Nothing but the exporter's sums: of the host they say nothing.
        free = _exported_free(trace)
        return Result(findings=tuple(f for f, _ in (free,) if f is not None), judged=(free[1],))
    span = host_span(trace, windows)
    launches = launches_of(trace)
    waits = None if idle is None else waits_of(idle, reloading(trace))  # which row V-08 names
    blocking = _launch_blocking(trace, idle)
    verdicts: list[Verdict] = [
        data_loader(trace, span),
        compilation(trace, span),
        garbage_collection(trace, span),
        driver_memory(trace, span),
        synchronising(trace, None if waits is None else waits.idle, is_blocking=blocking[0] is not None),
        blocking,
        _log_level(trace),
    ]
    found = [finding for finding, _ in verdicts if finding is not None]
    taken = EMPTY
    codes = {finding.code for finding in found if _explains(finding)}
    if waits is not None and "H-05" in codes:
        taken = waits.own
    if idle is not None and has_host and (between := _between(trace, windows, span, codes, taken)) is not None:
        # The loader's finding of the same row stays: each names its own part of the time.
        verdicts = [v for v in verdicts if v[1].code != between[1].code or v[0] is not None] + [between]
    # Launch blocking makes every gap: then neither the queue nor short kernels explain any.
    claims = {} if idle is None or "H-04" in codes else claims_of(trace, idle)
    verdicts.append(_free(trace, idle, launches, codes, claims))
    tables: list[ResultTable] = []
    if idle is not None:
        tables += gap_tables(idle)
    if len(launches):
        tables.append(launch_table(launches))
    if (apis := api_table(trace, idle)) is not None:
        tables.append(apis)
    if (collections := gc_table(trace, idle)) is not None:
        tables.append(collections)
    return Result(
        findings=tuple(finding for finding, _ in verdicts if finding is not None),
        metrics=_metrics(trace, idle, launches),
        tables=tuple(table for table in tables if len(table)),
        judged=tuple(judged for _, judged in verdicts),
    )


def _explains(finding: Finding) -> bool:
    """Whether other rows leave a finding's time to it: not where it is told for its line alone."""
    return finding.code != "H-05" or (finding.share_ratio or 0) >= MIN_SHARE_RATIO.value


def _between(trace: Trace, windows: StepWindows, span: Span, codes: Set[str], taken: IntervalSet) -> Verdict | None:
    """D-01 or H-01 for idle time between the steps that neither the data loader nor other rows (`taken`) explain."""
    if "H-04" in codes:
        return None
    # H-05 does not count calls that wait before the first task of a step, but those behind its last one: `taken`.
    claimed = {cause: code for code, cause in _CLAIMED.items() if code in codes - {"H-05"}}
    between = between_steps(trace, windows, span, claimed, taken)
    return None if between is None else (between, Judged(code=between.code, verdict="found"))


def launch_blocking(trace: Trace, idle: Idle | None) -> bool:
    """Whether row H-04 explains every gap of the device."""
    return _launch_blocking(trace, idle)[0] is not None


def _free(
    trace: Trace, idle: Idle | None, launches: Launches, claimed: set[str], claims: Mapping[str, IntervalSet]
) -> Verdict:
    """H-01: idle time that no more specific row explains."""
    if idle is None:
        return _exported_free(trace)
    span = idle.span
    total = intervals.total(idle.gaps)
    taken = {code: idle.cause_ns(cause) for code, cause in _CLAIMED.items() if code in claimed}
    taken |= {code: intervals.total(lost) for code, lost in claims.items()}
    # Launch blocking makes every gap: nothing is left for the general row.
    rest = 0 if "H-04" in claimed else total - sum(taken.values())
    share = share_of(span, rest)
    taken = {code: lost for code, lost in taken.items() if lost}  # a row may have found time between the steps alone
    explained = ", ".join(sorted({*taken} | (claimed & {"H-04"})))
    if share < MIN_SHARE_RATIO.value:
        note = None
        if total != rest:
            note = Words(
                f"the device idles {format_ratio(share_of(span, total))} of the step, all but {format_ratio(share)} "
                f"explained by {explained}",
                f"设备空闲占单步 {format_ratio(share_of(span, total))}，除 {format_ratio(share)} 外已由 {explained} "
                "解释",
            )
        return None, Judged(code="H-01", verdict="clean", reason=note)
    lost = intervals.union(*claims.values())
    left = {
        cause: intervals.total(intervals.difference(idle.parts[cause], lost))
        for cause in Cause
        if _row_of(cause) not in claimed
    }
    causes = sorted((cause for cause in left if left[cause]), key=lambda cause: -left[cause])
    main = causes[0]
    step, chief = span_words(span, share), _chief(idle, main)
    ending = ("", "") if chief is None else (chief.en, chief.zh)
    beside, others = ("", ""), per_step(span, sum(taken.values()))
    if taken:
        who = f"the finding {explained} explains" if len(taken) == 1 else f"the findings {explained} explain"
        beside = f", not counting {others} that {who}", f"（另有 {others} 空闲已由问题 {explained} 解释，未计入）"
    evidence = [
        Evidence(
            name=Words("idle time of the device, per step", "设备空闲（每步）"), value=total / max(1, span.steps),
            unit="ns", where="steps less the union of kernels, collectives and copies: "
            f"{counted(len(idle.gaps.starts), 'gap')}",
        ),
        *(
            Evidence(
                name=Words(f"the host meanwhile: {CAUSES[cause].en}", f"期间 Host：{CAUSES[cause].zh}"),
                value=left[cause] / max(1, span.steps), unit="ns", where="idle-causes, per step",
            )
            for cause in causes[:3]
        ),
        _longest_gap(idle),
    ]  # fmt: skip
    if len(launches):
        cost, delay = quantiles(launches.cost_ns), quantiles(launches.delay_ns)
        evidence.append(
            Evidence(
                name=Words("launch call, median", "下发调用（中位数）"), value=cost[0], unit="ns",
                where=f"{counted(len(launches), 'task')}; start after launch, median {format_ns(delay[0])}; "
                f"{counted(int((launches.queue <= 1).sum()), 'launch', 'launches')} into an empty queue",
            )
        )  # fmt: skip
    found = finding(
        "H-01", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="free", evidence=evidence,
        where=_unclaimed(idle, claimed, lost), whole_ns=span.step_ns,
        title=Words(
            f"The device idles {per_step(span, rest)} of {step.en}{beside[0]}{ending[0]}",
            f"{step.zh}中设备空闲 {per_step(span, rest)}"
            f"（{format_ratio(share)}）{beside[1]}{ending[1]}",
        ),
        vendor=trace.meta.device.kind, step_ids=span.step_ids, bands=_gap_bands(idle),
        formula="(idle time of the device - idle time that other rows explain) / length of the steps",
        cause=_free_cause(trace, idle, main),
    )  # fmt: skip
    return found, Judged(code="H-01", verdict="found")


def _unclaimed(idle: Idle, claimed: set[str], lost: IntervalSet) -> IntervalSet:
    """The idle time that is left to row H-01."""
    free = intervals.union(*(idle.parts[cause] for cause in Cause if _row_of(cause) not in claimed))
    return intervals.difference(free, lost)


def _exported_free(trace: Trace) -> Verdict:
    """H-01 from the exporter's own Free, for a rank whose kernels are not in the data."""
    split = exported_split(trace)
    if split is None or not split.step_ns:
        reason = Words("no device activity in the trace", "数据中没有设备活动")
        return None, Judged(
            code="H-01", verdict="not_judged", reason=no_idle_words(trace) if kernels_lost(trace) else reason
        )
    share = share_of(split, split.free_ns)
    if share < MIN_SHARE_RATIO.value:
        return None, Judged(code="H-01", verdict="clean")
    step = step_words(split, share)
    found = finding(
        "H-01", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="free",
        title=Words(
            f"The device idles {per_step(split, split.free_ns)} of {step.en}",
            f"{step.zh}设备空闲 {per_step(split, split.free_ns)}（{format_ratio(share)}）",
        ),
        evidence=[
            Evidence(
                name=Words("Free, per step", "空闲（Free，每步）"),
                value=split.free_ns / max(1, split.steps),
                unit="ns",
                where="exported_steps.free_ns: the exporter's step_trace_time",
            )
        ],
        vendor=trace.meta.device.kind, formula="Free / (Computing + Communication(Not Overlapped) + Free)",
        cause=Words(
            f"Only the exporter's sums of this rank are in the data: {no_calls(trace).en}.",
            f"数据中只有该卡的导出汇总：{no_calls(trace).zh}。",
        ),
    )  # fmt: skip
    return found, Judged(code="H-01", verdict="found")


def _chief(idle: Idle, main: Cause) -> Words | None:
    """What the largest part of the idle time goes to, as the end of a title."""
    if not idle.has_host:
        return None
    if main is Cause.DEVICE:
        return Words("; for most of it the next task was launched already", f"；占比最大的部分：{CAUSES[main].zh}")
    if main is Cause.NOTHING:
        return Words(
            "; for most of it the profile records no host event (Python code, or waiting)",
            f"；占比最大的部分：{CAUSES[main].zh}",
        )
    where = _chief_call(idle) if main is Cause.PYTHON else ""
    return Words(
        f"; the largest part while the host is in: {CAUSES[main].en}{where and f' ({where})'}",
        f"；占比最大的部分：{CAUSES[main].zh}{where and f'（{where}）'}",
    )


def _chief_call(idle: Idle) -> str:
    """Name of the host's call in the longest gap, where that gap is most of the idle time."""
    length = idle.gaps.ends - idle.gaps.starts
    gap = int(np.argmax(length))
    return (host_activity(idle, gap) or "")[:MAX_NAME] if length[gap] * 2 >= length.sum() else ""


def _row_of(cause: Cause) -> str:
    return next((code for code, owner in _CLAIMED.items() if owner is cause), "")


def _free_cause(trace: Trace, idle: Idle, main: Cause) -> Words | None:
    """Why the device idles, with the profiler's own share in it."""
    settings = trace.meta.settings
    heavy = [
        name
        for name, value in (
            ("with_stack", settings.with_stack),
            ("profile_memory", settings.profile_memory),
            ("record_shapes", settings.record_shapes),
        )
        if value
    ]
    if not idle.has_host:
        base = Words(
            f"It cannot be told what the host did: {no_calls(trace).en}.",
            f"无法判断 Host 在做什么：{no_calls(trace).zh}。",
        )
    elif main is Cause.DEVICE:
        base = Words(
            "The next task had been launched when the gap began: it waited for another stream, an event or the "
            "scheduler, so faster dispatch would not help there.",
            "空闲开始时下一个任务已下发：它在等待其他流、事件或调度，加快下发对此无效。",
        )
    else:
        base = Words(
            "The host issues work more slowly than the device finishes it.", "Host 下发的速度低于设备执行的速度。"
        )
    if heavy:
        names = ", ".join(heavy)
        return Words(
            f"{base.en} The profiler itself slows the host here ({names}): compare with the step time without it.",
            f"{base.zh}注意 profiler 自身也会拖慢 Host（{names}）：请与不开 profiler 的单步耗时对比。",
        )
    return base


def _longest_gap(idle: Idle) -> Evidence:
    gap = int(np.argmax(idle.gaps.ends - idle.gaps.starts))
    host = host_activity(idle, gap) or "no host event recorded"
    return Evidence(
        name=Words("longest gap", "最长的空闲"), value=int(idle.gaps.ends[gap] - idle.gaps.starts[gap]), unit="ns",
        where=f"host: {host}", start_ns=int(idle.gaps.starts[gap]),
    )  # fmt: skip


def _gap_bands(idle: Idle) -> tuple[tuple[int, int], ...]:
    top = np.sort(np.argsort(idle.gaps.starts - idle.gaps.ends, kind="stable")[:4])
    return tuple((int(idle.gaps.starts[i]), int(idle.gaps.ends[i])) for i in top)


def _launch_blocking(trace: Trace, idle: Idle | None) -> Verdict:
    """H-04: every launch waits for its task, by the environment or by the calls themselves."""
    env = {
        name: value
        for name in ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
        if (value := trace.meta.environment.get(name, "").strip().casefold()) in _IS_SET
    }
    ratio, launches = _followed_by_sync(trace[RUNTIME_CALLS])
    blocked = ratio is not None and launches >= MIN_LAUNCHES.value and ratio > MAX_BLOCKED_RATIO.value
    if not env and not blocked:
        if ratio is None and not trace.meta.environment:
            return None, Judged(code="H-04", verdict="not_judged", reason=no_calls(trace))
        return None, Judged(code="H-04", verdict="clean")
    share = None if idle is None else share_of(idle.span, intervals.total(idle.gaps))
    evidence = [
        Evidence(name=Words(name, name), value=value, where="environment of the profiled process")
        for name, value in env.items()
    ]
    if ratio is not None:
        evidence.append(
            Evidence(
                name=Words("launches that a synchronisation follows at once", "下发后紧跟同步的比例"), value=ratio,
                unit="ratio", where=f"runtime_calls: {launches} launches, next call on the same thread",
            )
        )  # fmt: skip
    if idle is not None and len(idle.gaps.starts):
        evidence.append(_longest_gap(idle))
    by = next(iter(env), None)
    found = finding(
        "H-04", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=share, subject="launch blocking",
        where=None if idle is None else idle.gaps, whole_ns=None if idle is None else idle.span.step_ns,
        title=Words(
            f"{by} is set: every launch waits for its task to end" if by is not None
            else f"{format_ratio(ratio or 0)} of {launches} launches are followed by a synchronisation at once: "
            "launches are blocking",
            f"设置了 {by}：每次下发都等待任务结束" if by is not None
            else f"{launches} 次下发中有 {format_ratio(ratio or 0)} 之后立即同步：下发是阻塞式的",
        ),
        evidence=evidence, vendor=trace.meta.device.kind,
        step_ids=() if idle is None else idle.span.step_ids,
        formula="idle time of the device / length of the steps: what launching ahead could hide",
    )  # fmt: skip
    return found, Judged(code="H-04", verdict="found")


def _followed_by_sync(calls: Table) -> tuple[float | None, int]:
    """Share of launch calls whose next launch or synchronisation on the same thread is a synchronisation."""
    launches = calls.text("api").flags(lambda api: "launch" in api.casefold())
    waits = is_sync(calls)
    rows = np.flatnonzero((launches | waits) & (calls.ints("start_ns") != NULL))
    if not launches.any():
        return None, 0
    order = rows[np.lexsort((calls.ints("start_ns")[rows], calls.ints("thread")[rows]))]
    same = np.append(calls.ints("thread")[order][1:] == calls.ints("thread")[order][:-1], False)
    next_waits: Bools = np.append(waits[order][1:], False) & same
    is_launch = launches[order] & ~waits[order]
    count = int(is_launch.sum())
    return (float(next_waits[is_launch].mean()) if count else None), count


def _log_level(trace: Trace) -> Verdict:
    """H-09: debug or info logging of CANN."""
    if not trace.meta.environment:
        if trace.meta.device.kind != "npu":
            reason = Words("CANN is not in use", "未使用 CANN")
        else:
            reason = Words(
                "no record of environment variables (profiler_metadata.json)",
                "没有环境变量记录（profiler_metadata.json）",
            )
        return None, Judged(code="H-09", verdict="not_judged", reason=reason)
    value = trace.meta.environment.get("ASCEND_GLOBAL_LOG_LEVEL", "").strip()
    if not (value.isdecimal() and len(value) < 10) or int(value) >= MIN_LOG_LEVEL.value:
        return None, Judged(code="H-09", verdict="clean")
    found = finding(
        "H-09", analyzer=NAME, trace_rank=trace.meta.rank, share_ratio=None, subject="log level",
        title=Words(
            f"ASCEND_GLOBAL_LOG_LEVEL is {value}: CANN writes more than errors to its log and slows every host call",
            f"ASCEND_GLOBAL_LOG_LEVEL={value}：CANN 记录错误以外的日志，拖慢所有 Host 调用",
        ),
        evidence=[
            Evidence(
                name=Words("ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_GLOBAL_LOG_LEVEL"), value=value,
                where="environment of the profiled process; 3 writes errors only",
            )
        ],
        vendor=trace.meta.device.kind,
    )  # fmt: skip
    return found, Judged(code="H-09", verdict="found")


def _metrics(trace: Trace, idle: Idle | None, launches: Launches) -> tuple[Metric, ...]:
    rank = trace.meta.rank
    metrics: list[Metric] = []
    if idle is not None:
        host = sum(idle.cause_ns(cause) for cause in Cause if cause is not Cause.DEVICE)
        metrics += [
            Metric(
                name="device_idle_ratio", value=share_of(idle.span, intervals.total(idle.gaps)), unit="ratio",
                better="lower", rank=rank,
            ),
            Metric(
                name="host_bound_ratio", value=share_of(idle.span, host) if idle.has_host else None, unit="ratio",
                better="lower", rank=rank,
            ),
        ]  # fmt: skip
    if len(launches):
        metrics += [
            Metric(
                name="launch_call_median_ns", value=quantiles(launches.cost_ns)[0], unit="ns", better="lower", rank=rank
            ),
            Metric(
                name="launch_queue_max", value=float(launches.queue.max()), unit="count", better="none", rank=rank
            ),
        ]  # fmt: skip
    return tuple(metrics)
