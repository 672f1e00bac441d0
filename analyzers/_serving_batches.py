"""Batches of an inference service: long requests among short ones (V-03), uneven DP ranks and instances (V-07)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._rules import finding
from ascend_perf.analyzers._serving import Instance
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import Evidence, Finding, Judged, ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints
from ascend_perf.units import counted, format_ns, format_ratio, significant

NAME: Final = "serving"
MIN_LENGTH_RATIO: Final = threshold("V-03", "min_length_ratio")
MIN_BATCH_NS: Final = threshold("V-03", "min_batch_ns")
MIN_SLOWDOWN: Final = threshold("V-03", "min_slowdown")
MIN_BATCHES: Final = threshold("V-03", "min_batches")
MAX_SPREAD_RATIO: Final = threshold("V-07", "max_spread_ratio")
MIN_WINDOWS: Final = threshold("V-07", "min_windows")

MIN_OTHERS: Final = 5
"""Other batches that tell what is usual. Status: assumed."""
WINDOWS: Final = 8
"""Windows that the time is cut into. Source: row V-07, "several". Status: assumed."""
MIN_ROLE_RATIO: Final = 0.95
"""Executions of one kind from which an instance has no other role. Status: assumed."""
MIN_COMMON_RATIO: Final = 0.5
"""Part of the shorter recording in which the instances must have run at once. Status: assumed."""
MIN_PER_WINDOW: Final = 5
"""Executions that a window holds at least, over all instances. Status: assumed."""

Verdict = tuple[Finding | None, Judged]

NO_BATCHES: Final = Words(
    'no batches in this data: collect with the domains "Schedule" and "ModelExecute" (batch.csv)',
    "数据中没有 batch：请采集 Schedule、ModelExecute 域（batch.csv）",
)


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Executions of an instance and the lengths of their requests."""

    instance: Instance
    durations: Ints
    ratios: Floats
    """Longest over shortest request, NaN where lengths are unknown."""
    longest: Ints
    sizes: Ints
    has_prefill: Bools
    """Whether a request is at its first iteration beside others that are not."""
    starts: Ints


def shapes_of(instance: Instance) -> Shapes:
    """What the executions of an instance hold.

    Reads:
        batches, batch_requests, requests.
    """
    rows, held = instance.executions, instance.composition
    count = len(rows)
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    known = held.tokens != NULL
    np.minimum.at(low, held.execution[known], held.tokens[known])
    np.maximum.at(high, held.execution[known], held.tokens[known])
    members = np.bincount(held.execution, minlength=count)
    told = np.bincount(held.execution[known], minlength=count)
    first = np.bincount(held.execution[held.iteration == 0], minlength=count)
    later = np.bincount(held.execution[held.iteration > 0], minlength=count)
    # A batch of which one request is unknown may hold a longer one: its ratio is a lower bound, and used as such.
    ratios = np.where(told >= 1, high / np.maximum(1, low), np.nan)
    table = instance.batches
    sizes = np.where(members > 0, members, np.where(table.ints("size")[rows] == NULL, 0, table.ints("size")[rows]))
    mixed = table.text("kind").take(rows).equals("mixed")
    return Shapes(
        instance=instance, durations=table.ints("dur_ns")[rows], ratios=ratios, longest=high, sizes=sizes,
        has_prefill=((first > 0) & (later > 0)) | mixed, starts=table.ints("start_ns")[rows],
    )  # fmt: skip


def uneven_lengths(instances: Sequence[Instance]) -> Verdict:
    """V-03: batches whose longest request is far longer than the shortest, and that take far longer than the others."""
    shapes = [shapes_of(instance) for instance in instances if len(instance.executions)]
    if not shapes:
        return None, Judged(code="V-03", verdict="not_judged", reason=NO_BATCHES)
    if not any(np.isfinite(shape.ratios).any() for shape in shapes):
        reason = Words(
            'the lengths of the requests in a batch are not in this data: collect the domain "Request" too '
            "(request.csv, ids as in res_list)",
            "数据中没有 batch 内各请求的长度：请同时采集 Request 域（request.csv，id 与 res_list 一致）",
        )
        return None, Judged(code="V-03", verdict="not_judged", reason=reason)
    lost, total, bad_count, mixed = 0.0, 0.0, 0, 0
    worst: tuple[float, Shapes, int] | None = None
    usual_of_worst = 0.0
    for shape in shapes:
        total += float(shape.durations.sum())
        far = shape.ratios > MIN_LENGTH_RATIO.value
        others = ~far & (shape.sizes > 0)
        if int(others.sum()) < MIN_OTHERS:
            continue
        usual = float(np.median(shape.durations[others]))
        bad = far & (shape.durations > MIN_BATCH_NS.value) & (shape.durations >= MIN_SLOWDOWN.value * usual)
        if not bad.any():
            continue
        bad_count += int(bad.sum())
        mixed += int((bad & shape.has_prefill).sum())
        lost += float((shape.durations[bad] - usual).sum())
        at = int(np.argmax(np.where(bad, shape.durations, -1)))
        if worst is None or shape.durations[at] > worst[0]:
            worst, usual_of_worst = (float(shape.durations[at]), shape, at), usual
    if worst is None or bad_count < MIN_BATCHES.value or total <= 0:
        widest = max(float(np.nanmax(shape.ratios)) for shape in shapes if np.isfinite(shape.ratios).any())
        reason = Words(
            f"the longest request of a batch is at most {significant(widest, 3)} times the shortest, or such batches "
            "take no longer than others",
            f"batch 内最长与最短请求之比至多为 {significant(widest, 3)}，或此类 batch 并不更慢",
        )
        return None, Judged(code="V-03", verdict="clean", reason=reason)
    duration, shape, at = worst
    share = min(1.0, lost / total)
    found = finding(
        "V-03", analyzer=NAME, trace_rank=None, vendor=shape.instance.trace.meta.device.kind, share_ratio=share,
        subject="lengths",
        title=Words(
            f"{counted(bad_count, 'batch holds', 'batches hold')} requests of very different length and take up to "
            f"{format_ns(duration)} where others take {format_ns(usual_of_worst)}: {format_ratio(share)} of the "
            "execution time",
            f"{bad_count} 个 batch 中请求长度悬殊，耗时达 {format_ns(duration)}，而其他 batch 为 "
            f"{format_ns(usual_of_worst)}：占执行时间的 {format_ratio(share)}",
        ),
        evidence=[
            Evidence(
                name=Words("such batches", "此类 batch 数"), value=bad_count, unit="count",
                where=f"batches: {counted(mixed, 'of them holds', 'of them hold')} a prefill beside decodes",
            ),
            Evidence(
                name=Words("longest over shortest request in the slowest of them", "其中最慢者的最长与最短请求之比"),
                value=float(shape.ratios[at]), unit="x",
                where=f"batch_requests: longest {int(shape.longest[at])} tokens, {int(shape.sizes[at])} requests",
            ),
            Evidence(
                name=Words("time of the other batches, median", "其他 batch 的耗时（中位数）"), value=usual_of_worst,
                unit="ns", where="batches: executions of one card per DP rank",
            ),
        ],
        formula="sum(time of such batches - median of the others) / sum(time of all executions)",
    )  # fmt: skip
    return found, Judged(code="V-03", verdict="found")


# ---- V-07 ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A DP rank or an instance, with its load: one entry per execution."""

    name: Words
    starts: Ints
    loads: Floats


def uneven_units(instances: Sequence[Instance]) -> list[Verdict]:
    """V-07: load of the DP ranks of each instance, and of the instances, over windows of time."""
    verdicts = []
    for instance in instances:
        units, measure = _dp_units(instance)
        if len(units) > 1:
            verdicts.append(_compare(units, measure, f"dp {instance.number}", Words(
                f"DP ranks of {instance.name.en}", f"{instance.name.zh}的 DP"), [instance]))  # fmt: skip
    verdicts += [verdict for group in _alike(instances) if (verdict := _compare_instances(group)) is not None]
    if not verdicts:
        reason = Words(
            "one instance without DP ranks: give the folder that holds the results of all instances",
            "只有一个实例且没有 DP：请提供包含所有实例结果的目录",
        )
        verdicts.append((None, Judged(code="V-07", verdict="not_judged", reason=reason)))
    return verdicts


def _alike(instances: Sequence[Instance]) -> list[list[Instance]]:
    """Instances of one role: those that only prefill, or only decode, are no peers of the others."""
    groups: dict[str, list[Instance]] = {}
    for instance in instances:
        if len(instance.executions):
            kinds = instance.batches.text("kind").take(instance.executions)
            role = next((kind for kind in ("prefill", "decode") if kinds.equals(kind).mean() >= MIN_ROLE_RATIO), "both")
            groups.setdefault(role, []).append(instance)
    return [group for group in groups.values() if len(group) > 1]


def _compare_instances(instances: Sequence[Instance]) -> Verdict | None:
    units, measure = _instance_units(instances)
    if len(units) < 2:
        return None
    first = max(int(unit.starts.min()) for unit in units)
    last = min(int(unit.starts.max()) for unit in units)
    shortest = min(int(unit.starts.max() - unit.starts.min()) for unit in units)
    if last - first < MIN_COMMON_RATIO * shortest:
        reason = Words(
            "the instances were recorded at different times: load of the same time is needed",
            "各实例的采集时间不同：需要同一时段的负载",
        )
        return None, Judged(code="V-07", verdict="not_judged", reason=reason)
    return _compare(units, measure, "instances", Words("instances", "实例"), list(instances))


def _loads(instance: Instance, rows: Ints) -> tuple[Floats, Words]:
    """Load of executions: tokens of their requests, else scheduled tokens, else requests."""
    held = instance.composition
    table = instance.batches
    if (held.tokens != NULL).mean() > 0.5 if len(held.tokens) else False:
        sums = np.zeros(len(rows))
        known = held.tokens != NULL
        np.add.at(sums, held.execution[known], held.tokens[known].astype(np.float64))
        return sums, Words("tokens of the sequences in the batches", "batch 中各序列的 token 数")
    scheduled = [table.ints(name)[rows] for name in ("prefill_tokens", "decode_tokens")]
    if all((column != NULL).mean() > 0.5 for column in scheduled if len(column)):
        values = sum(np.where(column == NULL, 0, column).astype(np.float64) for column in scheduled)
        return np.asarray(values, np.float64), Words("scheduled tokens", "调度的 token 数")
    size = table.ints("size")[rows]
    return np.where(size == NULL, 0, size).astype(np.float64), Words("requests in the batches", "batch 中的请求数")


def _dp_units(instance: Instance) -> tuple[list[_Unit], Words]:
    """Executions by DP rank; where these do not tell it, forwards, whose load is their time."""
    rows, table = instance.executions, instance.batches
    loads, measure = _loads(instance, rows)
    if not (table.text("dp_rank").codes[rows] >= 0).any() and len(instance.forwards):
        rows, measure = instance.forwards, Words("time of the forwards (ns)", "forward 耗时（ns）")
        loads = table.ints("dur_ns")[rows].astype(np.float64)
    ranks = table.text("dp_rank").take(rows)
    units = []
    for name in sorted(set(ranks.compact().values)):
        own = ranks.equals(name)
        units.append(
            _Unit(
                name=Words(f"DP rank {name}", f"DP {name}"), starts=table.ints("start_ns")[rows][own], loads=loads[own]
            )
        )
    return units, measure


def _instance_units(instances: Sequence[Instance]) -> tuple[list[_Unit], Words]:
    units = []
    measures = []
    for instance in instances:
        rows = instance.executions
        if not len(rows):
            continue
        loads, measure = _loads(instance, rows)
        measures.append(measure)
        units.append(
            _Unit(
                name=instance.name, starts=instance.batches.ints("start_ns")[rows], loads=loads
            )
        )
    if len({measure.en for measure in measures}) > 1:
        return [], Words("tokens", "token 数")
    return units, measures[0] if measures else Words("tokens", "token 数")


def _compare(
    units: Sequence[_Unit], measure: Words, subject: str, who: Words, instances: Sequence[Instance]
) -> Verdict:
    low = min(int(unit.starts.min()) for unit in units if len(unit.starts))
    high = max(int(unit.starts.max()) for unit in units if len(unit.starts)) + 1
    executions = sum(len(unit.starts) for unit in units)
    windows = min(WINDOWS, executions // (MIN_PER_WINDOW * len(units)))
    if windows < MIN_WINDOWS.value:
        reason = Words(
            f"{counted(executions, 'execution')} of {who.en} are too few for {MIN_WINDOWS.whole} windows of time",
            f"{who.zh}仅有 {executions} 次执行，不足以划分 {MIN_WINDOWS.whole} 个时间窗",
        )
        return None, Judged(code="V-07", verdict="not_judged", reason=reason)
    edges = np.linspace(low, high, windows + 1)
    load = np.stack([np.histogram(unit.starts, edges, weights=unit.loads)[0] for unit in units])
    mean = load.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(mean > 0, (load.max(axis=0) - load.min(axis=0)) / mean, 0.0)
    whole = load.sum(axis=1)
    total_spread = float((whole.max() - whole.min()) / whole.mean()) if whole.mean() > 0 else 0.0
    fullest = int(np.argmax(whole))
    exceeding = spread > MAX_SPREAD_RATIO.value
    same = exceeding & (load.argmax(axis=0) == fullest)
    uneven = (
        total_spread > MAX_SPREAD_RATIO.value
        and int(exceeding.sum()) >= max(MIN_WINDOWS.value, windows / 2)
        and int(same.sum()) * 2 >= int(exceeding.sum())
    )
    if not uneven:
        reason = Words(
            f"the {measure.en} of {who.en} differ by {format_ratio(total_spread)} over all {windows} windows",
            f"{who.zh}的{measure.zh}在全部 {windows} 个时间窗内相差 {format_ratio(total_spread)}",
        )
        return None, Judged(code="V-07", verdict="clean", reason=reason)
    share = float(1 - whole.mean() / whole.max())
    emptiest = int(np.argmin(whole))
    kind = instances[0].trace.meta.device.kind
    found = finding(
        "V-07", analyzer=NAME, trace_rank=None, vendor=kind, share_ratio=share, subject=subject,
        title=Words(
            f"The {measure.en} of {who.en} differ by {format_ratio(total_spread)}, and by more than "
            f"{format_ratio(MAX_SPREAD_RATIO.value)} in {int(exceeding.sum())} of {windows} windows: most on "
            f"{units[fullest].name.en}, least on {units[emptiest].name.en}",
            f"{who.zh}的{measure.zh}相差 {format_ratio(total_spread)}，"
            f"{windows} 个时间窗中有 {int(exceeding.sum())} 个超过 {format_ratio(MAX_SPREAD_RATIO.value)}："
            f"{units[fullest].name.zh} 最多，{units[emptiest].name.zh} 最少",
        ),
        evidence=[
            Evidence(
                name=Words(f"{measure.en} of {unit.name.en}", f"{unit.name.zh}：{measure.zh}"), value=float(value),
                unit="count", where=f"batches: {counted(len(unit.starts), 'execution')}",
            )
            for unit, value in sorted(zip(units, whole.tolist(), strict=True), key=lambda item: -item[1])[:5]
        ],
        formula="1 - mean / largest load: what the fullest would be spared if the load were even",
    )  # fmt: skip
    return found, Judged(code="V-07", verdict="found")


def batch_table(instances: Sequence[Instance]) -> ResultTable:
    """Executions by instance and kind."""
    rows: list[tuple[int, str, int, float, float, float, float, float]] = []
    for instance in instances:
        if not len(instance.executions):
            continue
        shape = shapes_of(instance)
        kinds = instance.batches.text("kind").take(instance.executions)
        whole = max(1.0, float(shape.durations.sum()))
        for kind in (*kinds.compact().values, None):
            own = kinds.codes < 0 if kind is None else kinds.equals(kind)
            if not own.any():
                continue
            ratios = shape.ratios[own]
            rows.append((
                instance.number, kind or "unknown", int(own.sum()), float(np.median(shape.durations[own])),
                float(np.quantile(shape.durations[own], 0.99)), float(shape.sizes[own].mean()),
                float(np.nanmedian(ratios)) if np.isfinite(ratios).any() else np.nan,
                float(shape.durations[own].sum()) / whole,
            ))  # fmt: skip
    columns: list[tuple[object, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 8
    return result_table(
        "serving-batches",
        Words("Batches of the service", "服务的 batch"),
        (
            Col("instance", "Instance", "实例", list(columns[0])),
            Col("kind", "Kind", "类型", list(columns[1])),
            Col("count", "Executions", "执行次数", list(columns[2]), "count"),
            Col("median_ns", "Time, median", "耗时（中位数）", list(columns[3]), "ns"),
            Col("p99_ns", "Time, p99", "耗时（p99）", list(columns[4]), "ns"),
            Col("size", "Requests, mean", "请求数（平均）", list(columns[5]), "count"),
            Col("length_ratio", "Longest / shortest request, median", "最长/最短请求（中位数）", list(columns[6]), "x"),
            Col("share", "Share of execution", "占执行时间", list(columns[7]), "ratio"),
        ),
    )  # fmt: skip
