"""The verdict over two sides: counts and operators first, exactly; then times, with their scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final, Literal

from ascend_perf.errors import InputError
from ascend_perf.gate import comparable, exact, timing
from ascend_perf.gate.inputs import Side
from ascend_perf.gate.outcome import ORDER, Outcome, Row, SideFacts, Verdict, outcome_of
from ascend_perf.gate.policy import Policy
from ascend_perf.model.finding import Words
from ascend_perf.model.result import SPOILED, Benchmark
from ascend_perf.op_streams import read_op_stream

MAX_SHOWN: Final = 20
"""Settings that differ, of which the reason names so many."""


def decide(base: Side, head: Side, policy: Policy, *, today: date, warn_only: bool = False) -> Verdict:
    """Compares every benchmark of two sides.

    Args:
        base: what was before.
        head: what is judged.
        policy: limits.
        today: decides which entries of the allow-list hold.
        warn_only: the verdict stands, the exit code is 0.
    """
    facts = comparable.differing_facts(base.results.fingerprint, head.results.fingerprint, policy.ignore_facts)
    rows: list[Row] = []
    notes: list[Words] = []
    hinders_counts = any(name in comparable.SOFTWARE for name, _, _ in facts)
    if facts and (policy.timing or hinders_counts):
        rows.append(_machine_row(facts, hinders_counts))
    elif facts:
        names = ", ".join(name for name, _, _ in facts)
        notes.append(Words(f"another machine ({names}); only counts and operators are compared",
                           f"机器不同（{names}），仅比较计数与算子"))  # fmt: skip
    if unknown := comparable.unknown_facts(base.results.fingerprint, head.results.fingerprint):
        notes.append(Words(f"known on one side only, not checked: {', '.join(unknown)}",
                           f"仅一侧已知、未校验：{', '.join(unknown)}"))  # fmt: skip
    if not policy.timing:
        notes.append(Words("the policy leaves timing out", "策略关闭了时间指标"))
    notes += [
        Words(f"{side.label} is one run: nothing is known of the variation between launches",
              f"{side.label} 只有一次运行，无法得知各次启动之间的波动")
        for side in (base, head) if side.is_one_run
    ]  # fmt: skip
    before = {benchmark.name: benchmark for benchmark in base.results.benchmarks}
    after = {benchmark.name: benchmark for benchmark in head.results.benchmarks}
    for name in dict.fromkeys((*before, *after)):
        if name not in after or name not in before:
            rows.append(_one_sided(before.get(name), after.get(name), base, head, policy))
        else:
            rows += _benchmark_rows(before[name], after[name], base, head, policy,
                                    counts=not hinders_counts, times=policy.timing and not facts)  # fmt: skip
    excused = [_excused(row, policy, today) for row in rows]
    notes += _allow_notes(rows, policy, today)
    final = tuple(sorted(excused, key=lambda row: ORDER.index(row.outcome)))
    return Verdict(
        outcome=outcome_of(final), rows=final, base=_facts_of(base), head=_facts_of(head),
        confidence=policy.confidence, tolerance=policy.tolerance, judged_on=today, notes=tuple(dict.fromkeys(notes)),
        warn_only=warn_only,
    )  # fmt: skip


def without_baseline(what: Words, head: Side, policy: Policy, *, today: date, warn_only: bool = False) -> Verdict:
    """The verdict where there is nothing to compare with."""
    row = Row(benchmark="", kind="status", name="baseline", outcome="not_comparable",
              reason=Words(f"no baseline: {what.en}", f"缺少基线：{what.zh}"))  # fmt: skip
    return Verdict(
        outcome="not_comparable", rows=(row,), base=SideFacts(label=""), head=_facts_of(head),
        confidence=policy.confidence, tolerance=policy.tolerance, judged_on=today, warn_only=warn_only,
    )  # fmt: skip


def _facts_of(side: Side) -> SideFacts:
    results = side.results
    counts = {sum(launch.status == "complete" for launch in one.launches) for one in results.benchmarks}
    return SideFacts(
        label=side.label, suite=results.suite, created=results.created, commit=results.commit, branch=results.branch,
        tool_version=results.tool_version, fingerprint=results.fingerprint, launches=tuple(sorted(counts)),
    )  # fmt: skip


def _machine_row(facts: Sequence[tuple[str, object, object]], hinders_counts: bool) -> Row:
    names = ", ".join(name for name, _, _ in facts)
    more, more_zh = ("; counts are not compared either", "；计数同样不比较") if hinders_counts else ("", "")
    return Row(
        benchmark="", kind="machine", name="fingerprint", outcome="not_comparable",
        reason=Words(f"another machine or other software: {names}{more}", f"机器或软件不同：{names}{more_zh}"),
        details=tuple(f"{name}: {left} -> {right}" for name, left, right in facts),
    )  # fmt: skip


def _one_sided(before: Benchmark | None, after: Benchmark | None, base: Side, head: Side, policy: Policy) -> Row:
    """The row of a benchmark that one side lacks."""
    one = before or after
    assert one is not None
    row = Row(benchmark=one.name, kind="status", name="benchmark", outcome="new",
              reason=Words("base does not have this benchmark", "BASE 没有该基准"),
              simulated=one.data_origin == "simulated")  # fmt: skip
    if not policy.mixed and (origins := _origins(base, head)) is not None:
        # Keys name the device: what was measured on a CPU and what is simulated on an NPU never meet by name.
        return replace(row, kind="work", name="data_origin", outcome="not_comparable", reason=_mixed_words(*origins))
    if after is not None:
        return row
    if policy.is_removed(one.name):
        return replace(row, outcome="removed", reason=Words("removed, as the policy says", "已移除（策略已列出）"))
    return replace(row, outcome="regression", reason=Words(
        "head does not have this benchmark; list it under `removed` if that is meant",
        "HEAD 没有该基准；如属预期，请列入策略的 `removed`",
    ))  # fmt: skip


def _origins(base: Side, head: Side) -> tuple[str, str] | None:
    """Of sides of which one is measured and the other simulated throughout; None for others."""
    left, right = ({one.data_origin for one in side.results.benchmarks} for side in (base, head))
    return (left.pop(), right.pop()) if len(left) == len(right) == 1 and left != right else None


def _mixed_words(base: str, head: str) -> Words:
    words = {"measured": "实测", "simulated": "仿真"}
    return Words(
        f"base is {base}, head is {head}; --simulated compares them nevertheless",
        f"BASE 为{words[base]}，HEAD 为{words[head]}；如仍需比较：--simulated",
    )


def _benchmark_rows(
    base: Benchmark, head: Benchmark, base_side: Side, head_side: Side, policy: Policy, *, counts: bool, times: bool
) -> list[Row]:
    rows = _rows_of(base, head, base_side, head_side, policy, counts=counts, times=times)
    if base.data_origin == head.data_origin:
        return rows
    measured: Literal["base", "head"] = "base" if base.data_origin == "measured" else "head"
    return [replace(row, measured_side=measured) for row in rows]


def _rows_of(
    base: Benchmark, head: Benchmark, base_side: Side, head_side: Side, policy: Policy, *, counts: bool, times: bool
) -> list[Row]:
    name, simulated = base.name, "simulated" in (base.data_origin, head.data_origin)

    def stopped(kind: str, reason: Words, details: Sequence[str] = ()) -> list[Row]:
        return [Row(benchmark=name, kind="work", name=kind, outcome="not_comparable", reason=reason,
                    details=tuple(details), simulated=simulated)]  # fmt: skip

    if base.data_origin != head.data_origin and not policy.mixed:
        return stopped("data_origin", _mixed_words(base.data_origin, head.data_origin))
    if simulated and not policy.simulated:
        return stopped("data_origin", Words(
            "both sides are simulated; `simulated: true` in the policy lets them pass for data",
            "两侧均为仿真数据；策略中 `simulated: true` 方可比较",
        ))  # fmt: skip
    if work := comparable.differing_work(base, head, policy.ignore_settings):
        names = [key for key, _, _ in work]
        shown = ", ".join(names[:MAX_SHOWN]) + (f" (+{len(names) - MAX_SHOWN})" if len(names) > MAX_SHOWN else "")
        return stopped("config", Words(f"different work: {shown}", f"工作负载不同：{shown}"),
                       [f"{key}: {left} -> {right}" for key, left, right in work])  # fmt: skip
    rows = _status_rows(base, head, simulated)
    if counts:
        limits = {count: policy.count_limit(name, count) for count in (*base.counts, *head.counts)}
        rows += exact.count_rows(name, dict(base.counts), dict(head.counts), limits, simulated)
        rows += _stream_rows(base, head, base_side, head_side, policy, simulated)
    if times and (spoiled := _spoiled(base, head)) is not None:
        return [*rows, *stopped("environment", spoiled)]
    if times and not any(row.outcome in ("regression", "not_comparable") for row in rows if row.kind == "status"):
        for metric in dict.fromkeys((*timing.metric_names(base.launches), *timing.metric_names(head.launches))):
            series = [timing.series_of(one.launches, metric) for one in (base, head)]
            if any(one is not None for one in series):
                rows.append(timing.metric_row(
                    name, metric, series[0], series[1], policy.metric_limit(name, metric), policy, simulated
                ))  # fmt: skip
    return rows


def _spoiled(base: Benchmark, head: Benchmark) -> Words | None:
    """Why no time of a benchmark can be compared: a side ran with a variable that makes times meaningless."""
    said = [
        (side, note.removeprefix(SPOILED))
        for side, one in (("base", base), ("head", head)) for note in one.notes if note.startswith(SPOILED)
    ]  # fmt: skip
    if not said:
        return None
    names = "; ".join(f"{side}: {settings}" for side, settings in said)
    return Words(
        f"times do not count ({names}): unset it and measure again", f"耗时无效（{names}）：请取消该变量后重新测量"
    )


def _status_rows(base: Benchmark, head: Benchmark, simulated: bool) -> list[Row]:
    """Whether there is anything to compare, and launches that failed."""
    done = [sum(launch.status == "complete" for launch in one.launches) for one in (base, head)]
    failed = [sum(launch.status == "failed" for launch in one.launches) for one in (base, head)]
    problems = tuple(dict.fromkeys(launch.problem for launch in head.launches if launch.problem))[:5]
    row = Row(benchmark=head.name, kind="status", name="launches", outcome="pass", reason=Words("complete", "完成"),
              unit="count", better="higher", base=done[0], head=done[1], details=problems,
              simulated=simulated)  # fmt: skip
    if not base.launches and not head.launches:
        return []  # a benchmark of counts and operators alone
    if not done[0]:
        return [replace(row, outcome="not_comparable", reason=Words(
            "no launch of base came to its end: no baseline", "BASE 没有完成的启动，缺少基线"
        ))]  # fmt: skip
    if not done[1]:
        return [replace(row, outcome="regression" if failed[1] else "not_comparable", reason=Words(
            f"no launch of head came to its end; {failed[1]} failed", f"HEAD 没有完成的启动，{failed[1]} 次失败"
        ))]  # fmt: skip
    if failed[1] > failed[0]:
        return [replace(row, outcome="warning", reason=Words(
            f"{failed[1]} of {len(head.launches)} launches of head failed, {failed[0]} of base",
            f"HEAD 的 {len(head.launches)} 次启动中 {failed[1]} 次失败，BASE 为 {failed[0]} 次",
        ))]  # fmt: skip
    return []


def _stream_rows(
    base: Benchmark, head: Benchmark, base_side: Side, head_side: Side, policy: Policy, simulated: bool
) -> list[Row]:
    if policy.op_stream == "ignore" or (base.op_stream is None and head.op_stream is None):
        return []
    row = Row(benchmark=base.name, kind="op_stream", name="op_stream", outcome="new", unit="count", better="lower",
              reason=Words("base has no snapshot", "BASE 没有算子快照"), simulated=simulated)  # fmt: skip
    if base.op_stream is None:
        return [row]
    lost: Outcome = "warning" if policy.op_stream == "warn" else "not_comparable"
    if head.op_stream is None:
        return [replace(row, outcome=lost, reason=Words("head has no snapshot", "HEAD 没有算子快照"))]
    try:
        streams = [read_op_stream(_inside(side.folder, path))
                   for side, path in ((base_side, base.op_stream), (head_side, head.op_stream))]  # fmt: skip
    except InputError as error:
        return [replace(row, outcome=lost, reason=Words(
            f"a snapshot cannot be read: {error.what}", f"算子快照无法读取：{error.what}"
        ))]  # fmt: skip
    if streams[0].mode != streams[1].mode:
        modes = " -> ".join(one.mode for one in streams)
        return [replace(row, outcome=lost, reason=Words(
            f"snapshots of different modes: {modes}", f"算子快照的采集方式不同：{modes}"
        ))]  # fmt: skip
    return [exact.stream_row(base.name, exact.stream_difference(*streams), policy.op_stream, simulated)]


def _inside(folder: Path, path: str) -> Path:
    """The file, which no link may have led out of the folder: its lines end in a comment that others read."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()):
        raise InputError(f"{path} leads out of the folder of its result file")
    return found


def _excused(row: Row, policy: Policy, today: date) -> Row:
    if row.outcome != "regression":
        return row
    valid, expired = policy.allowance(row.benchmark, row.name, today)
    if valid is not None:
        more, more_zh = (f": {valid.reason}", f"：{valid.reason}") if valid.reason else ("", "")
        return replace(row, outcome="allowed", owner=valid.owner, until=valid.until, reason=Words(
            f"{row.reason.en}; allowed by {valid.owner} until {valid.until.isoformat()}{more}",
            f"{row.reason.zh}；{valid.owner} 允许至 {valid.until.isoformat()}{more_zh}",
        ))  # fmt: skip
    if expired is not None:
        return replace(row, owner=expired.owner, until=expired.until, reason=Words(
            f"{row.reason.en}; {expired.owner}'s allowance expired on {expired.until.isoformat()}",
            f"{row.reason.zh}；{expired.owner} 的豁免已于 {expired.until.isoformat()} 到期",
        ))  # fmt: skip
    return row


def _allow_notes(rows: Sequence[Row], policy: Policy, today: date) -> list[Words]:
    """Entries of the allow-list that excuse nothing: forgotten ones would excuse the next regression unseen."""
    notes = []
    for one in policy.allow:
        alone = replace(policy, allow=(one,))
        used = any(alone.allowance(row.benchmark, row.name, date.min)[0] for row in rows if row.outcome == "regression")
        if not used and one.until >= today:
            notes.append(Words(
                f"the allowance of {one.owner} for {one.benchmark}, {one.metric} excuses nothing here: remove it",
                f"{one.owner} 对 {one.benchmark}、{one.metric} 的豁免未被用到，请移除",
            ))  # fmt: skip
    return notes
