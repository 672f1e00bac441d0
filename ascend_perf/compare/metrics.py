"""Figures of several sides in one table: score, number of runs, ratio with its interval, and efficiency.

Score of a side: of five runs or more the fastest and the slowest are left out and the others averaged, of fewer the
median is taken (MLPerf's rule; no best of). The interval of a ratio is a bootstrap over runs, the unit of replication:
with one run on a side there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.device.specs import DeviceSpec
from ascend_perf.model.comparison import with_marks
from ascend_perf.model.finding import Metric, ResultTable, Words
from ascend_perf.model.result import Benchmark
from ascend_perf.model.table import Floats
from ascend_perf.stats import CONFIDENCE, RESAMPLES
from ascend_perf.units import Better, Unit

TRIM_FROM: Final = 5
"""Runs from which on the fastest and the slowest are left out. Source: MLPerf training policies."""

POWER: Final = "power_mean"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A metric of one side: a value for each run."""

    values: tuple[float, ...]
    unit: Unit
    better: Better


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What one side measured of one piece of work, and on what."""

    metrics: Mapping[str, Measured] = field(default_factory=dict)
    cards: int = 1
    spec: DeviceSpec | None = None
    dtype: str | None = None
    """Type whose peak counts: bf16, fp16 ..."""
    is_cards_times: bool = True
    """Whether throughput is of all cards together."""
    is_simulated: bool = False


def score(values: Sequence[float]) -> float:
    """One figure of several runs.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("no runs")
    return float(_scores(np.array([values], float))[0])


def _scores(values: Floats) -> Floats:
    """Score of each row."""
    runs = values.shape[1]
    ordered = np.sort(values, axis=1)
    made: Floats = ordered[:, 1:-1].mean(axis=1) if runs >= TRIM_FROM else np.median(ordered, axis=1)
    return made


def ratio_bounds(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> tuple[float, float] | None:
    """Interval of the ratio of scores, B over A: 99 %, percentiles of a bootstrap over the runs.

    Returns:
        None where a side has fewer than two runs, or a value that is not positive.
    """
    if min(len(a), len(b)) < 2 or min(*a, *b) <= 0:
        return None
    random = np.random.default_rng(seed)
    made = [
        _scores(np.array(side)[random.integers(len(side), size=(RESAMPLES, len(side)))]) for side in (a, b)
    ]  # fmt: skip
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(made[1] / made[0], [tail, 1 - tail])
    return float(low), float(high)


def of_benchmark(benchmark: Benchmark) -> dict[str, Measured]:
    """Metrics of a benchmark over its complete runs, and its deterministic counts."""
    found: dict[str, list[float]] = {}
    how: dict[str, tuple[Unit, Better]] = {}
    for launch in benchmark.launches:
        if launch.status != "complete":
            continue
        for metric in launch.metrics:
            if metric.value is not None and metric.rank is None:
                found.setdefault(metric.name, []).append(metric.value)
                how[metric.name] = metric.unit, metric.better
    made = {
        name: Measured(values=tuple(values), unit=how[name][0], better=how[name][1]) for name, values in found.items()
    }
    for name, count in benchmark.counts.items():
        made.setdefault(name, Measured(values=(float(count),), unit="count", better="lower"))
    return made


def of_metrics(metrics: Sequence[Metric]) -> dict[str, Measured]:
    """Metrics of one run."""
    return {
        metric.name: Measured(values=(metric.value,), unit=metric.unit, better=metric.better)
        for metric in metrics if metric.value is not None and metric.rank is None
    }  # fmt: skip


def metric_table(letters: Sequence[str], sides: Sequence[Measurements], name: str, title: Words) -> ResultTable | None:
    """All metrics that at least two sides have; None where there is none. Ratios are to the first side."""
    names = dict.fromkeys(key for side in sides for key in side.metrics)
    shared = [key for key in names if sum(key in side.metrics for side in sides) > 1]
    if not shared:
        return None
    rows = [[side.metrics.get(key) for side in sides] for key in shared]
    columns = [Col("quantity", "metric", "指标", shared)]
    units = [_unit(row) for row in rows]
    columns.append(Col("unit", "unit", "单位", units))
    for place, letter in enumerate(letters):
        # One unit for a row: a value in another one would be shown as what it is not.
        columns.append(Col(
            f"value_{letter}", letter, letter,
            [None if (m := row[place]) is None or m.unit != unit else score(m.values)
             for row, unit in zip(rows, units, strict=True)],
        ))  # fmt: skip
    first = letters[0]
    for place, letter in enumerate(letters[1:], 1):
        ratios, lows, highs, verdicts = [], [], [], []
        for row in rows:
            ratio, bounds = _ratio(row[0], row[place])
            ratios.append(ratio)
            lows.append(bounds[0] if bounds else None)
            highs.append(bounds[1] if bounds else None)
            verdicts.append(_verdict(row[0], row[place], ratio, bounds, letter, first))
        columns += [
            Col(f"ratio_{letter}", f"{letter} / {first}", f"{letter} / {first}", ratios, "x"),
            Col(f"low_{letter}", "99 % from", "99 % 区间下界", lows, "x"),
            Col(f"high_{letter}", "to", "上界", highs, "x"),
            Col("kind" if place == 1 else f"kind_{letter}", "better", "较优", verdicts),
        ]
    for place, letter in enumerate(letters):
        columns.append(Col(
            f"runs_{letter}", f"runs {letter}", f"{letter} 运行次数",
            [None if (m := row[place]) is None else len(m.values) for row in rows], "count",
        ))  # fmt: skip
    return _marked(result_table(name, title, columns, Words(
        "Five runs or more: mean without the fastest and the slowest; fewer: median. The interval is a bootstrap over "
        "runs; with a single run on a side there is none, and the difference may be chance.",
        "五次及以上：去掉最快与最慢后取平均；不足五次：取中位数。区间由对运行次数的自助法得出；任一侧只有一次运行时没有区间，"
        "差异可能出于偶然。",
    )), letters, sides)  # fmt: skip


def _marked(table: ResultTable, letters: Sequence[str], sides: Sequence[Measurements]) -> ResultTable:
    """A table of figures whose columns say which side is simulated: `value_B` is of B, `ratio_B` of B and the first."""
    simulated = [letter for letter, side in zip(letters, sides, strict=True) if side.is_simulated]
    of: dict[str, Sequence[str]] = {}
    for letter in letters:
        of[f"value_{letter}"] = (letter,)
        of |= dict.fromkeys((f"{what}_{letter}" for what in ("ratio", "low", "high")), (letters[0], letter))
    return with_marks(table, of, simulated)


def _unit(row: Sequence[Measured | None]) -> str:
    return next(m.unit for m in row if m is not None)


def _ratio(a: Measured | None, b: Measured | None) -> tuple[float | None, tuple[float, float] | None]:
    if a is None or b is None or is_other(a, b):
        return None, None
    left, right = score(a.values), score(b.values)
    if left <= 0 or right < 0:
        return None, None
    return right / left, ratio_bounds(a.values, b.values)


def is_other(a: Measured, b: Measured) -> bool:
    """Whether two metrics have but the name in common: another unit, or the other direction is better."""
    return (a.unit, a.better) != (b.unit, b.better)


def _verdict(
    a: Measured | None, b: Measured | None, ratio: float | None, bounds: tuple[float, float] | None, letter: str,
    first: str,
) -> str | None:  # fmt: skip
    """Which side is better: only where the interval does not hold 1."""
    if a is not None and b is not None and is_other(a, b):
        return "other unit or direction"
    if a is None or b is None:
        return None if a is b else f"not in {letter if b is None else first}"
    if ratio is None or a.better == "none":
        return None
    if bounds is None:
        return "one run only" if min(len(a.values), len(b.values)) < 2 else None
    if bounds[0] <= 1 <= bounds[1]:
        return "not told apart"
    return letter if (ratio > 1) == (a.better == "higher") else first


def efficiency_table(
    letters: Sequence[str], sides: Sequence[Measurements], name: str, title: Words
) -> ResultTable | None:  # fmt: skip
    """Throughput for each card, watt, peak TFLOPS and GB/s; None where no throughput is known on two sides."""
    names = dict.fromkeys(key for side in sides for key in side.metrics)
    rows: list[tuple[str, str, list[float | None]]] = []
    for key in names:
        if key.endswith("_per_device"):
            continue
        measured = [side.metrics.get(key) for side in sides]
        if any(m is not None and m.unit != "items_per_s" for m in measured) or sum(m is not None for m in measured) < 2:
            continue
        totals = [None if m is None else score(m.values) for m in measured]
        for per, parts in _divisors(sides).items():
            values = [
                None if total is None or not part else total / part for total, part in zip(totals, parts, strict=True)
            ]
            if sum(value is not None for value in values) > 1:
                rows.append((key, per, values))
    if not rows:
        return None
    columns = [
        Col("quantity", "throughput", "吞吐", [row[0] for row in rows]),
        Col("kind", "per", "单位资源", [row[1] for row in rows]),
        *(
            Col(f"value_{letter}", letter, letter, [row[2][place] for row in rows])
            for place, letter in enumerate(letters)
        ),
        *(
            Col(f"ratio_{letter}", f"{letter} / {letters[0]}", f"{letter} / {letters[0]}", [
                _over(row[2][place], row[2][0]) for row in rows
            ], "x")
            for place, letter in enumerate(letters[1:], 1)
        ),
    ]  # fmt: skip
    return _marked(result_table(name, title, columns, Words(
        "Throughput over what it takes: cards, mean power, and the data-sheet peak of the matrix units and rate of the "
        "memory of all cards. Rows need the figure on two sides.",
        "吞吐除以所用资源：卡数、平均功率、全部卡的矩阵单元标称峰值与显存标称带宽。两侧都有数据的行才列出。",
    )), letters, sides)  # fmt: skip


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _divisors(sides: Sequence[Measurements]) -> dict[str, list[float | None]]:
    peaks, rates, powers = [], [], []
    for side in sides:
        peak = side.spec.matrix_peak(side.dtype) if side.spec is not None and side.dtype else None
        rate = side.spec.memory_bytes_per_s.value if side.spec is not None else None
        power = side.metrics.get(POWER)
        peaks.append(None if peak is None else peak * side.cards / 1e12)
        rates.append(None if rate is None else rate * side.cards / 1e9)
        powers.append(None if power is None else score(power.values))
    return {"card": [float(side.cards) for side in sides], "watt": powers, "peak TFLOPS": peaks, "GB/s": rates}
