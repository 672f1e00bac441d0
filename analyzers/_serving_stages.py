"""CPU stages of an inference service: what runs while no card executes, and what the first token waits for (V-05)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._serving import Instance, is_execution, known_floats
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.intervals import EMPTY, IntervalSet
from ascend_perf.model.finding import Evidence, Finding, Judged, ResultTable, Words
from ascend_perf.model.table import Ints
from ascend_perf.model.tables import REQUESTS, SERVICE_SPANS
from ascend_perf.units import counted, format_ns, format_ratio

NAME: Final = "serving"
MIN_STAGE_RATIO: Final = threshold("V-05", "min_stage_ratio")
MIN_SAMPLER_RATIO: Final = threshold("V-05", "min_sampler_ratio")
MIN_FIRST_TOKEN_RATIO: Final = threshold("V-05", "min_first_token_ratio")
MIN_REQUESTS: Final = 8
"""Fewer requests tell nothing of the usual first token. Status: assumed."""

Verdict = tuple[Finding | None, Judged]

_STAGES: Final[tuple[tuple[str, Words, re.Pattern[str]], ...]] = (
    (
        "detokenize", Words("detokenising", "反分词"),
        re.compile(r"detoken|de_token|decode_?text|postproc", re.IGNORECASE),
    ),
    ("tokenize", Words("tokenising", "分词"), re.compile(r"token|encode|preproc", re.IGNORECASE)),
    ("sample", Words("sampling", "采样"), re.compile(r"sampl", re.IGNORECASE)),
    ("schedule", Words("scheduling", "调度"), re.compile(r"schedul|batchframework|prepare_?input", re.IGNORECASE)),
)  # fmt: skip
"""Stages by the names of their spans; the first that fits counts."""


def stages_of(instance: Instance) -> dict[str, tuple[IntervalSet, int]]:
    """Union and number of the spans of each CPU stage of an instance.

    Reads:
        service_spans: start_ns, dur_ns, name; batches: rows of phase schedule.
    """
    spans = instance.trace[SERVICE_SPANS]
    names = spans.text("name")
    stage = names.relabel(_stage_of)
    found: dict[str, tuple[IntervalSet, int]] = {}
    for key, _, _ in _STAGES:
        rows = stage.equals(key)
        union, count = intervals.merged(spans.ints("start_ns")[rows], spans.ends_ns()[rows]), int(rows.sum())
        if key == "schedule":
            own = instance.batches.text("phase").equals("schedule")
            more = intervals.merged(instance.batches.ints("start_ns")[own], instance.batches.ends_ns()[own])
            union, count = intervals.union(union, more), count + int(own.sum())
        if count:
            found[key] = union, count
    return found


def cpu_stages(instances: Sequence[Instance]) -> list[Verdict]:
    """V-05: CPU stages that no execution hides, slow sampling, a first token that waits for neither queue nor card."""
    busy = 0
    exposed: dict[str, int] = {}
    whole: dict[str, int] = {}
    counts: dict[str, int] = {}
    for instance in instances:
        stages = stages_of(instance)
        executing = instance.executing
        if not len(executing.starts):
            continue
        # Stages overlap each other: what one hides of another counts once, in the order of the list.
        busy += intervals.total(intervals.union(executing, *(union for union, _ in stages.values())))
        taken = EMPTY
        for key, (union, count) in stages.items():
            own = intervals.difference(intervals.difference(union, executing), taken)
            taken = intervals.union(taken, own)
            exposed[key] = exposed.get(key, 0) + intervals.total(own)
            whole[key] = whole.get(key, 0) + intervals.total(union)
            counts[key] = counts.get(key, 0) + count
    verdicts: list[Verdict] = []
    kind = instances[0].trace.meta.device.kind
    stage_findings: list[Finding] = []
    for key, words, _ in _STAGES:
        if key not in counts or not busy:
            continue
        share, spent = exposed[key] / busy, exposed[key]
        if key == "sample" and 2 * exposed[key] < whole[key]:
            # Inside of the executions: what a step spends in it.
            share, spent = _sampled(instances)
        if share >= (MIN_SAMPLER_RATIO if key == "sample" else MIN_STAGE_RATIO).value:
            stage_findings.append(_stage_finding(key, words, share, spent, counts[key], busy, kind))
    first = _first_token(instances)
    if first is not None:
        # Both may name the same time: the larger one speaks.
        same = [found for found in stage_findings if found.subject in ("tokenize", "detokenize")]
        if all((found.share_ratio or 0) < (first.share_ratio or 0) for found in same):
            stage_findings = [found for found in stage_findings if found not in same] + [first]
    verdicts += [(found, _found()) for found in stage_findings]
    if verdicts:
        return verdicts
    if not counts or not busy:
        reason = Words(
            "no stages of the service beside its executions in this data: parse with --span and the names of the "
            "stages (span_info/*.csv)",
            "数据中没有执行以外的服务阶段：请在解析时用 --span 指定阶段名（span_info/*.csv）",
        )
        return [(None, Judged(code="V-05", verdict="not_judged", reason=reason))]
    parts = ", ".join(f"{words.en} {format_ratio(exposed[key] / busy)}" for key, words, _ in _STAGES if key in counts)
    parts_zh = "、".join(f"{w.zh} {format_ratio(exposed[key] / busy)}" for key, w, _ in _STAGES if key in counts)
    reason = Words(
        f"of the busy time no execution hides: {parts}", f"忙碌时间中未被执行掩盖的部分：{parts_zh}"
    )
    return [(None, Judged(code="V-05", verdict="clean", reason=reason))]


def _sampled(instances: Sequence[Instance]) -> tuple[float, int]:
    """Share of an execution that sampling takes inside of it, and the time of all sampling."""
    spans = [_sampling(instance) for instance in instances]
    sampling = np.concatenate(spans)
    executions = np.concatenate([instance.batches.ints("dur_ns")[instance.executions] for instance in instances])
    if not len(sampling) or not len(executions) or not executions.sum():
        return 0.0, 0
    often = min(1.0, len(sampling) / len(executions))
    return float(min(1.0, often * sampling.mean() / executions.mean())), int(sampling.sum())


def _sampling(instance: Instance) -> Ints:
    spans = instance.trace[SERVICE_SPANS]
    rows = spans.text("name").flags(lambda name: _stage_of(name) == "sample")
    return spans.ints("dur_ns")[rows]


def _stage_of(name: str) -> str | None:
    if is_execution(name):
        return None
    return next((stage for stage, _, pattern in _STAGES if pattern.search(name)), None)


def _found() -> Judged:
    return Judged(code="V-05", verdict="found")


def _stage_finding(key: str, words: Words, share: float, spent: int, count: int, busy: int, kind: object) -> Finding:
    vendor = kind if kind in ("npu", "gpu", "cpu") else None
    return finding(
        "V-05", analyzer=NAME, trace_rank=None, vendor=vendor,  # type: ignore[arg-type]  # checked above
        share_ratio=min(1.0, share), subject=key,
        title=Words(
            f"{words.en.capitalize()} takes {format_ns(spent)} in {counted(count, 'span')}: {format_ratio(share)} of "
            "the time in which the service works",
            f"{words.zh}共 {count} 段，耗时 {format_ns(spent)}：占服务工作时间的 {format_ratio(share)}",
        ),
        evidence=[
            Evidence(
                name=Words(f"{words.en}, not hidden by an execution", f"{words.zh}（未被执行掩盖）"), value=spent,
                unit="ns",
                where="union of the spans; sampling inside an execution counts as well" if key == "sample"
                else "union of the spans less the union of executions and forwards",
            ),
            Evidence(
                name=Words("time in which the service works", "服务工作时间"), value=busy, unit="ns",
                where="union of executions and CPU stages",
            ),
        ],
        formula="union(spans of the stage) less union(executions) / union(executions and CPU stages)",
    )  # fmt: skip


def _first_token(instances: Sequence[Instance]) -> Finding | None:
    """TTFT less queue and prefill, where that is most of it."""
    ttft, rest, execution = [], [], []
    for instance in instances:
        requests, held = instance.trace[REQUESTS], instance.composition
        if not len(requests) or not len(held.execution):
            continue
        rows_of, batches = instance.executions, instance.batches
        durations, starts = batches.ints("dur_ns")[rows_of], batches.ints("start_ns")[rows_of]
        first = known_floats(requests.ints("first_token_ns"))
        # Executions that hold the request and begin before its first token: a prefill may come in chunks.
        until = np.append(known_floats(requests.ints("start_ns")) + first, np.nan)
        early = (held.request >= 0) & (starts[held.execution] < until[held.request])
        prefill = np.zeros(len(requests))
        np.add.at(prefill, held.request[early], durations[held.execution[early]].astype(np.float64))
        queue = known_floats(requests.ints("queue_wait_ns"))
        total = known_floats(requests.ints("execution_ns"))
        rows = np.isfinite(first) & np.isfinite(queue) & np.isfinite(total) & (prefill > 0)
        ttft.append(first[rows])
        execution.append(total[rows])
        rest.append(np.clip(first[rows] - queue[rows] - prefill[rows], 0, None))
    if not ttft or sum(map(len, ttft)) < MIN_REQUESTS:
        return None
    first, other, total = np.concatenate(ttft), np.concatenate(rest), np.concatenate(execution)
    part = float(np.median(other / np.maximum(1, first)))
    share = float(min(1.0, other.sum() / max(1.0, total.sum())))
    if part < MIN_FIRST_TOKEN_RATIO.value:
        return None
    return finding(
        "V-05", analyzer=NAME, trace_rank=None, vendor=instances[0].trace.meta.device.kind, share_ratio=share,
        subject="first token",
        title=Words(
            f"The first token takes {format_ns(float(np.median(first)))} (median), of which "
            f"{format_ns(float(np.median(other)))} ({format_ratio(part)}) is neither waiting in the queue nor prefill",
            f"首 Token 时延为 {format_ns(float(np.median(first)))}（中位数），其中 {format_ns(float(np.median(other)))}"
            f"（{format_ratio(part)}）既非排队也非 Prefill",
        ),
        evidence=[
            Evidence(
                name=Words("neither queue nor prefill, median", "既非排队也非 Prefill（中位数）"),
                value=float(np.median(other)), unit="ns",
                where=f"first_token_ns - queue_wait_ns - executions of the request before it: "
                f"{counted(len(first), 'request')}",
            ),
        ],
        formula="sum(time to the first token - queue - prefill) / sum(time of the requests)",
        cause=Words(
            "Tokenising, scheduling, transfer between processes or detokenising: the spans of the stages "
            "(span_info/*.csv) would tell which.",
            "可能为分词、调度、进程间传递或反分词：阶段区间（span_info/*.csv）可进一步区分。",
        ),
    )  # fmt: skip


def stage_table(instances: Sequence[Instance]) -> ResultTable:
    """Stages by instance: number, time, and what no execution hides."""
    rows: list[tuple[int, str, int, int, int]] = []
    for instance in instances:
        executing = instance.executing
        words = {key: name for key, name, _ in _STAGES}
        for key, (union, count) in stages_of(instance).items():
            hidden = intervals.difference(union, executing)
            rows.append((instance.number, words[key].en, count, intervals.total(union), intervals.total(hidden)))
        if len(executing.starts):
            rows.append((instance.number, "execution", len(instance.executions), intervals.total(executing), 0))
    columns: list[tuple[object, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 5
    return result_table(
        "serving-stages",
        Words("Stages of the service", "服务的各阶段"),
        (
            Col("instance", "Instance", "实例", list(columns[0])),
            Col("kind", "Stage", "阶段", list(columns[1])),
            Col("count", "Spans", "次数", list(columns[2]), "count"),
            Col("time_ns", "Time (union)", "耗时（并集）", list(columns[3]), "ns"),
            Col("exposed_ns", "Not hidden by an execution", "未被执行掩盖", list(columns[4]), "ns"),
        ),
    )  # fmt: skip
