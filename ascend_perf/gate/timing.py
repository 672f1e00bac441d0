"""Noisy figures: regression, pass or cannot tell, from a bootstrap over launches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ascend_perf import stats
from ascend_perf.gate.outcome import Outcome, Row
from ascend_perf.gate.policy import Limit, Policy
from ascend_perf.model.finding import Words
from ascend_perf.model.result import Launch
from ascend_perf.units import Better, Unit, counted, format_ratio, significant

_PERCENTILE: Final = re.compile(r"(.+)_p(50|90|95|99)")
STEP_TIME: Final = "step_time_median"
EXACT_UNITS: Final = ("bytes", "count", "flops")
"""Units of figures that may be equal in all launches because nothing is random in them, so that few launches decide."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one side: samples of each launch that has it."""

    samples: tuple[stats.Floats, ...]
    quantile: float
    unit: Unit
    better: Better
    launches: int
    """Complete launches, with and without it."""

    @property
    def by_launch(self) -> Series:
        """The same with one value per launch."""
        values = stats.launch_values(self.samples, self.quantile)
        return replace(self, samples=_floats([(value,) for value in values.tolist()]), quantile=0.5)


def metric_names(launches: Sequence[Launch]) -> tuple[str, ...]:
    """Metrics of complete launches; the step time where steps are known."""
    names: dict[str, None] = {}
    for launch in launches:
        if launch.status == "complete":
            if launch.steps_ns:
                names[STEP_TIME] = None
            names.update((metric.name, None) for metric in launch.metrics if metric.rank is None)
    return tuple(names)


def series_of(launches: Sequence[Launch], name: str) -> Series | None:
    """The samples of a metric: steps for the step time, latencies for their percentiles, else one value per launch.

    Samples are used where every launch that has the metric has them, so that both levels can be resampled.
    """
    complete = [launch for launch in launches if launch.status == "complete"]
    found = [
        (launch, metric)
        for launch in complete for metric in launch.metrics
        if metric.name == name and metric.rank is None and metric.value is not None
    ]  # fmt: skip
    if name == STEP_TIME and complete and all(launch.steps_ns for launch in complete):
        return Series(samples=_floats([launch.steps_ns for launch in complete]), quantile=0.5, unit="ns",
                      better="lower", launches=len(complete))  # fmt: skip
    if not found:
        return None
    unit, better = found[0][1].unit, found[0][1].better
    parts = _PERCENTILE.fullmatch(name)
    if parts and unit == "ns" and all(launch.samples_ns.get(parts[1]) for launch, _ in found):
        return Series(samples=_floats([launch.samples_ns[parts[1]] for launch, _ in found]),
                      quantile=int(parts[2]) / 100, unit=unit, better=better, launches=len(complete))  # fmt: skip
    return Series(samples=_floats([(metric.value or 0.0,) for _, metric in found]), quantile=0.5, unit=unit,
                  better=better, launches=len(complete))  # fmt: skip


def _floats(samples: Sequence[Sequence[float]]) -> tuple[stats.Floats, ...]:
    return tuple(np.asarray(one, np.float64) for one in samples)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Outcome of one ratio and, where it cannot be told, how many launches would tell."""

    outcome: Outcome
    launches_needed: int | None = None
    is_too_few: bool = False
    """Fewer launches than any result could be certain with."""


def judge(worse: stats.RatioInterval, *, fail: float, warn: float | None, tolerance: float) -> Judgement:
    """The decision, from the interval of the ratio that is bad above 1.

    Regression: the lower end exceeds 1 + tolerance and the estimate 1 + fail. Improved: the same of the inverse.
    Inconclusive: the estimate exceeds the limit but the lower end does not; or half of the interval is wider than the
    limit and its upper end exceeds it, so that a regression of that size could hide. Too few launches are inconclusive
    whatever they show.

    Source:
        docs/gate.md; `make eval-gate` measures false alarms and misses.
    """
    least = stats.least_launches(worse.confidence)
    if min(worse.base_launches, worse.head_launches) < least:
        need = least
        if min(worse.base_launches, worse.head_launches) >= 2:
            need = stats.launches_to_decide(worse, tolerance=tolerance, effect=fail) or least
        return Judgement(outcome="inconclusive", launches_needed=need, is_too_few=True)
    if _exceeds(worse, fail, tolerance):
        return Judgement(outcome="regression")
    too_wide = worse.half_width > math.log1p(fail) and worse.upper > 1 + fail
    if worse.estimate > 1 + fail or (too_wide and not _exceeds(worse.inverse, 0.0, tolerance)):
        return Judgement(
            outcome="inconclusive", launches_needed=stats.launches_to_decide(worse, tolerance=tolerance, effect=fail)
        )
    if warn is not None and _exceeds(worse, warn, tolerance):
        return Judgement(outcome="warning")
    return Judgement(outcome="improved" if _exceeds(worse.inverse, fail, tolerance) else "pass")


def _exceeds(ratio: stats.RatioInterval, effect: float, tolerance: float) -> bool:
    return ratio.lower > 1 + tolerance and ratio.estimate > 1 + effect


def metric_row(
    benchmark: str, name: str, base: Series | None, head: Series | None, limit: Limit, policy: Policy, simulated: bool
) -> Row:
    """The row of one metric; one side at least has it."""
    known = base or head
    assert known is not None
    values = [None if side is None else stats_median(side) for side in (base, head)]
    row = Row(
        benchmark=benchmark, kind="metric", name=name, outcome="pass", reason=Words("equal", "相等"), unit=known.unit,
        better=known.better, base=values[0], head=values[1],
        change_ratio=values[1] / values[0] - 1 if values[0] and values[1] is not None else None,
        fail_ratio=limit.fail, simulated=simulated,
    )  # fmt: skip
    unjudged: Outcome = "not_comparable" if limit.fail is not None and known.better != "none" else "pass"
    if base is None:
        return replace(row, outcome="new", reason=Words("base does not have this metric", "BASE 没有该指标"))
    if head is None:
        return replace(row, outcome=unjudged, reason=Words("head does not have this metric", "HEAD 没有该指标"))
    if (base.unit, base.better) != (head.unit, head.better):
        return replace(row, outcome=unjudged, reason=Words(
            f"unit or direction differs: {base.unit}, {base.better} is better; {head.unit}, {head.better}",
            f"单位或方向不同：{base.unit}（{base.better}）与 {head.unit}（{head.better}）",
        ))  # fmt: skip
    everything = np.concatenate([*base.samples, *head.samples])
    if not (everything > 0).all():
        if (everything == everything[0]).all():
            return row
        return replace(row, outcome=unjudged, reason=Words(
            "values of 0 or below have no ratio", "零或负值无法求比值"
        ))  # fmt: skip
    if base.quantile != head.quantile:
        base, head = base.by_launch, head.by_launch
    interval = stats.ratio_interval(base.samples, head.samples, quantile=base.quantile, confidence=policy.confidence)
    test = stats.rank_test(
        stats.launch_values(base.samples, base.quantile), stats.launch_values(head.samples, base.quantile)
    )
    if min(interval.base_launches, interval.head_launches) > 1:
        # One launch has no scatter to show: what its steps have says nothing of the next launch.
        row = replace(row, interval=interval, rank_test=test)
    if known.better == "none":
        return replace(row, reason=Words("shown only: neither direction is worse", "仅展示：该指标没有优劣方向"))
    worse = interval if known.better == "lower" else interval.inverse
    tolerance = policy.tolerance if limit.tolerance is None else limit.tolerance
    if limit.fail is None:
        alarmed = limit.warn is not None and _enough(worse) and _exceeds(worse, limit.warn, tolerance)
        return replace(row, outcome="warning" if alarmed else "pass",
                       reason=_seen(worse, Words("no limit that fails", "未设失败阈值")))  # fmt: skip
    if interval.lower == interval.upper == 1 and known.unit in EXACT_UNITS:
        return row
    found = judge(worse, fail=limit.fail, warn=limit.warn, tolerance=tolerance)
    return replace(row, outcome=found.outcome, reason=_reason(found, worse, limit.fail),
                   launches_needed=found.launches_needed)  # fmt: skip


def _enough(ratio: stats.RatioInterval) -> bool:
    return min(ratio.base_launches, ratio.head_launches) >= stats.least_launches(ratio.confidence)


def stats_median(series: Series) -> float:
    """The median over launches of the quantile within each."""
    return float(np.median([np.quantile(samples, series.quantile) for samples in series.samples]))


def _change(worse: stats.RatioInterval) -> tuple[str, str]:
    """How much worse or better, in both languages."""
    excess = worse.estimate - 1
    if abs(excess) < 5e-5:
        return "no change", "无变化"
    size = _percent(abs(excess) if excess > 0 else 1 - worse.estimate)
    return (f"{size} worse", f"劣化 {size}") if excess > 0 else (f"{size} better", f"改善 {size}")


def _percent(ratio: float) -> str:
    return f"{significant(ratio * 100, 3)} %"


def _seen(worse: stats.RatioInterval, more: Words) -> Words:
    en, zh = _change(worse)
    return Words(f"{en}; {more.en}", f"{zh}；{more.zh}")


def _reason(found: Judgement, worse: stats.RatioInterval, fail: float) -> Words:
    limit, sure, level = format_ratio(fail), _percent(worse.lower - 1), _percent(worse.confidence)
    if found.outcome == "regression":
        return _seen(worse, Words(
            f"at least {sure} by the {level} interval, {limit} allowed",
            f"{level} 置信区间下界 {sure}，允许 {limit}",
        ))  # fmt: skip
    if found.outcome == "inconclusive":
        count = found.launches_needed
        if found.is_too_few:
            few = min(worse.base_launches, worse.head_launches)
            return _seen(worse, Words(
                f"{counted(few, 'launch', 'launches')} of a side cannot decide; measure at least {count} of each",
                f"单侧仅 {few} 次启动，无法判定；每侧至少需 {count} 次",
            ))  # fmt: skip
        width = _percent(worse.half_width)
        if count is None:
            return _seen(worse, Words(
                f"known to ±{width}, limit {limit}: more than {stats.MAX_LAUNCHES} launches would be needed; "
                "quiet the machine or raise the limit",
                f"精度 ±{width}，阈值 {limit}：需要超过 {stats.MAX_LAUNCHES} 次启动；请降低机器干扰或放宽阈值",
            ))  # fmt: skip
        return _seen(worse, Words(
            f"known to ±{width}, limit {limit}: {count} launches of each side would decide",
            f"精度 ±{width}，阈值 {limit}：每侧 {count} 次启动可以判定",
        ))  # fmt: skip
    return _seen(worse, Words(f"limit {limit}", f"阈值 {limit}"))
