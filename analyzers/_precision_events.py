"""Events of training series (NaN, spikes, skipped updates) and the tables of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from ascend_perf.analyzers._series import GRADIENT_RATIO, Series, spikes
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import NULL, Bools, Floats, Ints

SERIES_POINTS: Final = 2000
"""Points per series in the report. Status: assumed (more than a page has pixels)."""
MAX_SERIES: Final = 32
"""Series in the report; the others are counted. Status: assumed."""
MAX_EVENTS: Final = 500
"""Events in the report; the others are counted. Status: assumed."""


class Kind(Enum):
    """What happened."""

    LOSS = "loss not finite"
    GRADIENT = "gradient norm not finite"
    LOSS_SPIKE = "spike of the loss"
    GRADIENT_SPIKE = "spike of the gradient norm"
    OVERFLOW = "overflow, handled by the loss scale"


@dataclass(frozen=True, kw_only=True, eq=False)
class Event:
    """Something odd in successive rows of one series."""

    series: Series
    kind: Kind
    row: int
    rows: int
    is_over: bool
    value: float | None = None
    base: float | None = None

    @property
    def step(self) -> int:
        """Step of its first row."""
        return int(self.series.step[self.row])

    @property
    def last_step(self) -> int:
        """Step of its last row."""
        return int(self.series.step[self.row + self.rows - 1])


def events_of(series: Series) -> Iterator[Event]:
    """All events of a series, in order of their rows."""
    handled = _handled(series)
    bad_loss = np.zeros(len(series), bool)
    bad_loss[series.bad_rows()] = True
    made = [_stretch(series, Kind.LOSS, low, high) for low, high in _stretches(bad_loss & ~handled)]
    bad_grad = series.grad_bad & ~handled & ~bad_loss
    made += [_stretch(series, Kind.GRADIENT, low, high) for low, high in _stretches(bad_grad)]
    made += [_stretch(series, Kind.OVERFLOW, low, high) for low, high in _stretches(handled)]
    for kind, values, ratio in (
        (Kind.LOSS_SPIKE, series.loss, None),
        (Kind.GRADIENT_SPIKE, series.grad, GRADIENT_RATIO),
    ):
        for part in series.attempts():
            found = spikes(values[part]) if ratio is None else spikes(values[part], ratio)
            made += [
                Event(
                    series=series, kind=kind, row=part.start + spike.first, rows=spike.last - spike.first + 1,
                    is_over=spike.is_over, value=spike.peak, base=spike.base,
                )
                for spike in found
            ]  # fmt: skip
    yield from sorted(made, key=lambda event: event.row)


def _handled(series: Series) -> Bools:
    """Rows whose overflow a dynamic loss scale met: it skipped the update, or fell with this row or the next."""
    skipped = (series.skipped != NULL) & (series.skipped > 0)
    scale = series.scale
    dynamic = np.isfinite(scale) & (scale > 0)
    if not dynamic.any() or len(np.unique(scale[dynamic])) < 2:
        return np.zeros(len(series), bool)
    fell = np.zeros(len(series), bool)
    down = dynamic[1:] & dynamic[:-1] & (scale[1:] < scale[:-1])
    fell[1:] |= down
    fell[:-1] |= down
    handled: Bools = skipped | (fell & (series.grad_bad | (series.nans > 0)))
    return handled


def _stretches(flags: Bools) -> list[tuple[int, int]]:
    """Runs of True as [low, high)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]


def _stretch(series: Series, kind: Kind, low: int, high: int) -> Event:
    return Event(series=series, kind=kind, row=low, rows=high - low, is_over=high < len(series))


def events_table(events: Sequence[Event]) -> ResultTable:
    """The table `training-events`."""
    shown = events[:MAX_EVENTS]
    more = len(events) - len(shown)
    return result_table(
        "training-events",
        Words("Events of the training", "训练中的异常"),
        (
            Col("series", "Series", "曲线", [event.series.name for event in shown]),
            Col("step", "Step", "步", [event.step for event in shown]),
            Col("last_step", "Last step", "末步", [event.last_step if event.is_over else None for event in shown]),
            Col("kind", "Event", "异常", [event.kind.value for event in shown]),
            Col("rows", "Rows", "行数", [event.rows for event in shown], "count"),
            Col("value", "Value", "值", [event.value for event in shown]),
            Col("base", "Usual value", "常态值", [event.base for event in shown]),
        ),
        note=Words(
            "A spike is a value far above the median of the 21 rows before, measured in the noise of the series. "
            "Without a last step, an event lasts to the end, or a spike became the new level."
            + (f" {more} more are not listed." if more else ""),
            "尖峰：明显高于前 21 行中位数的值，以曲线自身的噪声衡量。末步为空表示持续到末尾，或尖峰成为新的水平。"
            + (f"另有 {more} 项未列出。" if more else ""),
        ),
    )


def series_table(every: Sequence[Series]) -> ResultTable:
    """The table `training-series`: each series thinned to what a chart can show."""
    shown = every[:MAX_SERIES]
    kept = [thinned(series) for series in shown]
    more = len(every) - len(shown)

    def floats(name: str) -> Floats:
        return np.concatenate([getattr(series, name)[rows] for series, rows in zip(shown, kept, strict=True)])

    def ints(name: str) -> Ints:
        return np.concatenate([getattr(series, name)[rows] for series, rows in zip(shown, kept, strict=True)])

    return result_table(
        "training-series",
        Words("Loss and gradient norm", "loss 与梯度范数"),
        (
            Col("series", "Series", "曲线", [s.name for s, rows in zip(shown, kept, strict=True) for _ in rows]),
            Col("step", "Step", "步", ints("step")),
            Col("loss", "Loss", "loss", floats("loss")),
            Col("grad_norm", "Gradient norm", "梯度范数", floats("grad")),
            Col("loss_scale", "Loss scale", "Loss Scale", floats("scale")),
            Col("learning_rate", "Learning rate", "学习率", floats("rate")),
            Col("skipped", "Skipped updates", "跳过的更新", ints("skipped"), "count"),
        ),
        note=Words(
            f"At most {SERIES_POINTS} rows per series; the extremes of each stretch are kept. Values that are not "
            "finite are left out." + (f" {more} more series are not shown." if more else ""),
            f"每条曲线至多 {SERIES_POINTS} 行，保留各区段的极值；非有限值不显示。"
            + (f"另有 {more} 条曲线未显示。" if more else ""),
        ),
    )


def thinned(series: Series, points: int = SERIES_POINTS) -> Ints:
    """Rows of at most `points`: first, last, and the extremes of loss and gradient norm of equally long stretches."""
    count = len(series)
    if count <= points:
        return np.arange(count)
    bounds = np.linspace(0, count, max(1, (points - 2) // 4) + 1).astype(np.int64)
    kept = {0, count - 1}
    for values in (series.loss, series.grad):
        high = np.where(np.isfinite(values), values, -np.inf)
        low = np.where(np.isfinite(values), values, np.inf)
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            kept |= {start + int(np.argmax(high[start:end])), start + int(np.argmin(low[start:end]))}
    return np.array(sorted(kept), np.int64)
