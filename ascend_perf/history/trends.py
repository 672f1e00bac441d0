"""Series of the history as trends: change points, decisions, rolling z, and what differed at a change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.history.edivisive import MAD_TO_SD, MIN_PART, SCALE_FLOOR, Step, find_steps, shift
from ascend_perf.history.store import ALL, Decision, Filter, Points, Series, Store, StoredSet
from ascend_perf.model.result import MUST_AGREE
from ascend_perf.model.run import Fact
from ascend_perf.model.trend import Change, Direction, Result, State, Trend, TrendBook
from ascend_perf.units import Better

Z_WINDOW: Final = 30
"""Values before that the rolling median takes. Source: Conbench looks at up to 100; fewer follow drifts closer."""
Z_LEAST: Final = 10
"""With fewer values before there is no z. Status: assumed."""
Z_LIMIT: Final = 5.0
"""A value further off is unusual. Source: Conbench's default."""
NEAR: Final = 2
"""A dismissed change point that the search finds so many values beside its place is the same. Status: assumed."""
MAX_EXACT_RATIO: Final = 0.2
"""An exact figure that changes more often (by value) is not exact in truth, and is judged like a noisy one."""


def trends_of(store: Store, wanted: Filter = ALL, *, last: int | None = None) -> TrendBook:
    """Trends of all series that a filter means.

    Args:
        store: the history.
        wanted: which series.
        last: only so many of the newest values of each.
    """
    series = store.series(wanted)
    points = store.points([one.id for one in series], last=last)
    shown = [one for one in series if one.id in points]
    sets = store.sets_by_id([int(at) for one in shown for at in points[one.id].result_set])
    # Results that somebody removed between the two questions.
    points = {key: _kept(one, sets) for key, one in points.items()}
    shown = [one for one in shown if len(points[one.id])]
    decisions: dict[int, list[Decision]] = defaultdict(list)
    for decision in store.decisions():
        decisions[decision.series].append(decision)
    trends = tuple(trend_of(one, points[one.id], decisions[one.id], sets) for one in shown)
    machines: dict[str, Mapping[str, Fact]] = {}
    for stored in sorted(sets.values(), key=lambda stored: stored.at_s):
        machines[stored.machine] = stored.fingerprint
    return TrendBook(trends=trends, results={key: _result(stored) for key, stored in sets.items()}, machines=machines)


def trend_of(
    series: Series, points: Points, decisions: Sequence[Decision], sets: Mapping[int, StoredSet]
) -> Trend:
    """One series with its change points."""
    key = series.key
    place_of = {int(identifier): place for place, identifier in enumerate(points.result_set)}
    accepted = {place_of[one.result_set]: one for one in decisions
                if one.verdict == "accepted" and one.result_set in place_of}  # fmt: skip
    dismissed = {place_of[one.result_set]: one for one in decisions
                 if one.verdict == "dismissed" and one.result_set in place_of}  # fmt: skip
    fixed = sorted(place for place in accepted if place)
    usable = points.value > 0
    exact = key.is_exact and _changes(points.value) <= max(1, MAX_EXACT_RATIO * len(points))
    steps = _exact_steps(points.value, fixed) if exact else _noisy_steps(points.value, usable, fixed)

    def decided(step: _Found) -> Change:
        found: Decision | None = accepted.get(step.place)
        state: State = "accepted" if found else "open"
        if found is None:
            near = [place for place in dismissed if abs(place - step.place) <= NEAR]
            if near:
                found, state = dismissed[min(near, key=lambda place: abs(place - step.place))], "dismissed"
        before, after = (sets.get(int(points.result_set[at])) for at in (step.place - 1, step.place))
        return Change(
            id=f"{series.id}@{int(points.result_set[step.place])}", place=step.place, earliest=step.earliest,
            latest=step.latest, ratio=step.ratio, ratio_low=step.low, ratio_high=step.high, p_value=step.p_value,
            direction=direction(step.ratio, key.better, step.is_up), state=state,
            owner=found.owner if found else "", note=found.note if found else "",
            decided=found.decided if found else "",
            facts=_differences(before, after),
        )  # fmt: skip

    changes = tuple(decided(step) for step in steps)
    bounds = [change.place for change in changes if change.state != "dismissed"]
    return Trend(
        series=series.id, suite=key.suite, branch=key.branch, machine=key.machine, benchmark=key.benchmark,
        work=key.work, metric=key.metric, unit=key.unit, better=key.better, is_exact=key.is_exact,
        is_simulated=key.is_simulated, results=tuple(map(int, points.result_set)),
        values=_floats(points.value), lows=_floats(points.low), highs=_floats(points.high),
        launches=tuple(map(int, points.launches)), levels=levels(points.value, bounds),
        z=(None,) * len(points) if exact else rolling_z(points.value, bounds),
        changes=changes, not_judged=0 if exact else int((~usable).sum()),
    )  # fmt: skip


def direction(ratio: float | None, better: Better, is_up: bool) -> Direction:
    """What a change means."""
    if better == "none" or ratio == 1:
        return "changed"
    return "worse" if is_up == (better == "lower") else "better"


def levels(values: NDArray[np.float64], bounds: Sequence[int]) -> tuple[float, ...]:
    """For each value the median of those between the same two change points."""
    made: list[float] = []
    edges = [0, *bounds, len(values)]
    for start, end in pairwise(edges):
        if end > start:
            made += [float(np.median(values[start:end]))] * (end - start)
    return tuple(made)


def rolling_z(values: NDArray[np.float64], bounds: Sequence[int], window: int = Z_WINDOW) -> tuple[float | None, ...]:
    """Each value's distance from the median of those before it, in robust standard deviations of their logarithms.

    The values before a change point do not count for those behind it; None where fewer than ten remain, or where a
    value has no logarithm.

    Source:
        Conbench's lookback z, with median and MAD in the place of mean and standard deviation.
    """
    z: NDArray[np.float64] = np.full(len(values), np.nan)
    edges = [0, *bounds, len(values)]
    for start, end in pairwise(edges):
        part = values[start:end]
        at = start + np.flatnonzero(part > 0)
        logs = np.log(values[at])
        if len(logs) <= Z_LEAST:
            continue
        # Rows of the values before each one; short rows at the beginning are filled up with NaN.
        padded = np.concatenate([np.full(window, np.nan), logs[:-1]])
        before = np.lib.stride_tricks.sliding_window_view(padded, window)[Z_LEAST:]
        middle = np.nanmedian(before, axis=1)
        spread = np.nanmedian(np.abs(before - middle[:, None]), axis=1) * MAD_TO_SD
        z[at[Z_LEAST:]] = (logs[Z_LEAST:] - middle) / np.maximum(spread, SCALE_FLOOR)
    return tuple(None if math.isnan(one) else float(one) for one in z)


class _Found:
    """A change point before anybody is asked about it."""

    def __init__(self, place: int, earliest: int, latest: int, ratio: float | None, low: float | None,
                 high: float | None, p_value: float | None, is_up: bool) -> None:  # fmt: skip
        self.place, self.earliest, self.latest = place, earliest, latest
        self.ratio, self.low, self.high = ratio, low, high
        self.p_value, self.is_up = p_value, is_up


def _changes(values: NDArray[np.float64]) -> int:
    return int(np.count_nonzero(np.diff(values)))


def _exact_steps(values: NDArray[np.float64], fixed: Sequence[int]) -> list[_Found]:
    """Every place where the value is another one: there is no noise."""
    found = []
    for place in sorted({*(np.flatnonzero(np.diff(values)) + 1).tolist(), *fixed}):
        old, new = float(values[place - 1]), float(values[place])
        ratio = None if old == 0 else new / old
        found.append(_Found(place, place, place, ratio, ratio, ratio, None, new > old))
    return found


def _noisy_steps(
    values: NDArray[np.float64], usable: NDArray[np.bool_], fixed: Sequence[int]
) -> list[_Found]:
    kept = np.flatnonzero(usable)
    logs = np.log(values[kept])
    # A decided place whose own value has no logarithm begins with the next one that has.
    inner = [int(np.searchsorted(kept, place)) for place in fixed]
    steps = {step.index: step for step in find_steps(logs, inner)}
    found = []
    for place, step in steps.items():
        found.append(_of_step(step, int(kept[place]), int(kept[step.earliest]), int(kept[step.latest])))
    bounds = [0, *sorted({*inner, *steps}), len(logs)]
    for place, at in zip(fixed, inner, strict=True):
        where = bounds.index(at) if at in bounds else 0
        left = logs[bounds[where - 1] : at] if where else logs[:0]
        right = logs[at : bounds[where + 1]] if where and where + 1 < len(bounds) else logs[:0]
        if not len(left) or not len(right):
            found.append(_Found(place, place, place, None, None, None, None, False))
            continue
        middle, low, high = (math.exp(one) for one in shift(left, right))
        is_sure = min(len(left), len(right)) >= MIN_PART
        found.append(_Found(place, place, place, middle, low if is_sure else None, high if is_sure else None,
                            None, middle > 1))  # fmt: skip
    return sorted(found, key=lambda one: one.place)


def _of_step(step: Step, place: int, earliest: int, latest: int) -> _Found:
    return _Found(
        place, earliest, latest, step.ratio, step.ratio_low, step.ratio_high, step.p_value, step.ratio > 1
    )


def _differences(before: StoredSet | None, after: StoredSet | None) -> tuple[tuple[str, Fact, Fact], ...]:
    if before is None or after is None:
        return ()
    old, new = before.fingerprint, after.fingerprint
    return tuple((name, old.get(name), new.get(name)) for name in MUST_AGREE if old.get(name) != new.get(name))


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())


def _kept(points: Points, sets: Mapping[int, StoredSet]) -> Points:
    is_there = np.isin(points.result_set, np.fromiter(sets, np.int64, len(sets)))
    if is_there.all():
        return points
    return Points(
        result_set=points.result_set[is_there], at_s=points.at_s[is_there], value=points.value[is_there],
        low=points.low[is_there], high=points.high[is_there], launches=points.launches[is_there],
    )  # fmt: skip


def _result(stored: StoredSet) -> Result:
    return Result(
        id=stored.id, commit=stored.commit, created=stored.created, at_s=stored.at_s, launches=stored.launches,
        failed=stored.failed, report_url=stored.report_url,
    )  # fmt: skip


def with_reports(book: TrendBook, reports: Mapping[int, Mapping[str, str]]) -> TrendBook:
    """The same with paths of reports, by result and benchmark."""
    results = {key: replace(one, reports=reports.get(key)) for key, one in book.results.items()}
    return replace(book, results=results)
