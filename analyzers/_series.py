"""Series that training runs logged: one per run and rank, and what is odd in one: spikes, swings, a falling loss scale.

Spikes. y = ln(loss). At each row: base = median of the `BASE_ROWS` rows before, noise = 1.4826 x median absolute
deviation of the `NOISE_ROWS` differences before (of successive y, from their median). A row is a spike where

    y - base > max(SPIKE_NOISE x noise, ln(1 + SPIKE_RATIO))

and lasts until y is back within half of that of the base. Because of the logarithm a factor on the loss changes
nothing, and because the base follows, neither does a decay. Measured on ln(loss) = decay + Gaussian noise of 0.1 to
10 %: no false spike in 6 million rows (tests/analyzers/test_series.py repeats a part of it). Noise with longer tails
has outliers, and they are spikes: of Student's t with 5 degrees of freedom at 2 %, 18 in 100 000 rows, with 3, 110.

Swings. A loss that wanders slowly by 5 % or more (autocorrelation 0.98 from row to row) has swings, whatever the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL, Bools, Floats, Ints
from ascend_perf.model.tables import TRAINING_SERIES
from ascend_perf.model.trace import Trace

BASE_ROWS: Final = 21
"""Rows before a row whose median it is compared with. Status: assumed."""
NOISE_ROWS: Final = 40
"""Differences before a row that tell the noise. Status: assumed."""
SPIKE_NOISE: Final = 6.0
"""Spikes in units of the noise of the differences, 1.4 times that of the values. Status: measured (no false one)."""
SPIKE_RATIO: Final = threshold("Q-05", "min_spike_ratio")
"""Smaller rises are no spikes, however quiet the series."""
GRADIENT_RATIO: Final = 2.0
"""The same for gradient norms: three times the usual. Status: assumed (clipping is usual at any norm)."""
SPIKE_MAX_ROWS: Final = 50
"""A spike that lasts longer is a new level. Status: assumed."""

SWING_RATIO: Final = threshold("Q-02", "min_swing_ratio")
"""Rise of the smoothed loss that counts as a swing."""
SWING_NOISE: Final = 3.0
"""... and how many times the noise of the values it must be. Status: measured (no false one on smooth decays)."""
SWING_ROWS: Final = 11
"""Rows whose median smooths the loss. Status: assumed."""

SETTLED_ROWS: Final = 20
"""Rows without a fall after which a loss scale has found its place. Status: assumed."""
FALL_HALVINGS: Final = threshold("Q-01", "min_fall_halvings")
"""Net fall, from there to the end, from which it keeps falling."""
UNSETTLED_ROWS: Final = 100
"""A scale that has not settled by then keeps falling. Status: assumed; from 2^32 with hysteresis 2 it takes 40 rows."""
SCALE_FLOOR: Final = 1.0
"""Smallest loss scale by default. Source: Megatron-LM, --min-loss-scale. Status: source."""
SKIPPED_RATIO: Final = threshold("Q-01", "max_skipped_ratio")
"""Skipped updates of a settled scale. A scale that doubles every 1000 steps skips 0.1 %."""
SKIPPED_LEAST: Final = 5
"""... and at least so many. Status: assumed."""

_CHUNK: Final = 20_000
_MAD: Final = 1.4826
_NOISE_FLOOR: Final = 1e-9
_REFERENCE: Final = re.compile(
    r"(?:^|[^a-z])(ref|reference|base|baseline|golden|fp32|gpu|cuda)(?:[^a-z]|$)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """What one rank (or the whole job, rank None) of one run logged, in the order of the file."""

    name: str
    rank: int | None
    trace: Trace
    step: Ints
    loss: Floats
    loss_bad: Bools
    grad: Floats
    grad_bad: Bools
    scale: Floats
    skipped: Ints
    nans: Ints
    rate: Floats
    eval_loss: Floats
    accuracy: Floats

    def __len__(self) -> int:
        return len(self.step)

    @property
    def is_reference(self) -> bool:
        """Whether the name of the file or its folder says that others are to be compared with it."""
        return bool(_REFERENCE.search(self.name))

    def attempts(self) -> list[slice]:
        """Stretches in which the step grows: a restart from a checkpoint begins another."""
        cuts = (np.flatnonzero(np.diff(self.step) <= 0) + 1).tolist()
        return [slice(low, high) for low, high in zip([0, *cuts], [*cuts, len(self)], strict=True)]

    def by_step(self, values: Floats) -> tuple[Ints, Floats]:
        """Steps with a value, ascending, and the last value of each."""
        rows = np.flatnonzero(np.isfinite(values))[::-1]
        steps, first = np.unique(self.step[rows], return_index=True)
        return steps, values[rows[first]]

    def bad_rows(self) -> Ints:
        """Rows with NaN or infinity in the loss."""
        return np.flatnonzero(self.loss_bad | (self.nans > 0))


class Spike(NamedTuple):
    """A rise above the values before: rows [first, last], the peak and the base, and whether it came back."""

    first: int
    last: int
    peak: float
    base: float
    is_over: bool

    @property
    def ratio(self) -> float:
        """Peak over base."""
        return self.peak / self.base


@dataclass(frozen=True, kw_only=True)
class ScaleStory:
    """What a loss scale did."""

    settled: int | None
    """Row from which it had settled; None when it never did."""
    halvings: float
    """Net fall from there (from the start, when it never settled) to the end, in powers of two."""
    falls: int
    is_at_floor: bool
    rows: int

    @property
    def keeps_falling(self) -> bool:
        """Whether it falls on and on."""
        if self.is_at_floor:
            return True
        if self.settled is None:
            return self.rows >= UNSETTLED_ROWS and self.halvings >= FALL_HALVINGS.value
        return self.halvings >= FALL_HALVINGS.value


def series_of(run: Run) -> tuple[Series, ...]:
    """All series of a run: by trace, then by rank."""
    return tuple(made for trace in run.traces for made in _of(trace))


def _of(trace: Trace) -> Iterator[Series]:
    table = trace[TRAINING_SERIES]
    ranks = table.ints("rank")
    forms = ("training log", "trainer state", "training metrics")
    name = next((source.path for source in trace.meta.sources if source.format in forms), trace.meta.label)
    several = len(distinct := np.unique(ranks).tolist()) > 1
    for rank in distinct:
        part = table.select(ranks == rank) if several else table
        yield Series(
            name=f"{name} (rank {rank})" if several and rank != NULL else name, rank=None if rank == NULL else rank,
            trace=trace, step=part.ints("step"), loss=part.floats("loss"), loss_bad=part.bools("loss_nonfinite"),
            grad=part.floats("grad_norm"), grad_bad=part.bools("grad_norm_nonfinite"), scale=part.floats("loss_scale"),
            skipped=part.ints("skipped"), nans=part.ints("nan_iterations"), rate=part.floats("learning_rate"),
            eval_loss=part.floats("eval_loss"), accuracy=part.floats("accuracy"),
        )  # fmt: skip


# ---- spikes ----------------------------------------------------------------------------------------------------------


def spikes(values: Floats, least_ratio: float | None = None) -> list[Spike]:
    """Spikes of a series; rows that are unknown or not above zero are passed over. Indexes are rows of `values`.

    Args:
        values: the series in order of its steps.
        least_ratio: smaller rises do not count; `SPIKE_RATIO` when None.
    """
    rows = np.flatnonzero(np.isfinite(values) & (values > 0))
    y = np.log(values[rows])
    if len(y) <= NOISE_ROWS + 1:
        return []
    base, noise = _surroundings(y)
    limit = np.maximum(SPIKE_NOISE * noise, np.log1p(SPIKE_RATIO.value if least_ratio is None else least_ratio))
    first = NOISE_ROWS + 1
    found: list[Spike] = []
    after = 0
    for row in (np.flatnonzero(y[first:] - base > limit) + first).tolist():
        if row < after:
            continue
        level, most = float(base[row - first]), float(limit[row - first])
        stretch = y[row : row + SPIKE_MAX_ROWS]
        low = np.flatnonzero(stretch - level <= most / 2)
        length = int(low[0]) if len(low) else len(stretch)
        peak = float(stretch[:length].max())
        found.append(
            Spike(
                int(rows[row]), int(rows[row + length - 1]), float(np.exp(peak)), float(np.exp(level)), bool(len(low))
            )
        )
        after = row + length
    return found


def can_show_spikes(values: Floats) -> bool:
    """Whether there are enough rows for one to be told."""
    return int((np.isfinite(values) & (values > 0)).sum()) > NOISE_ROWS + 1


def _surroundings(y: Floats) -> tuple[Floats, Floats]:
    """Median of the rows before and noise of the differences before, for rows from `NOISE_ROWS` + 1 on."""
    change = np.diff(y)
    befores = np.lib.stride_tricks.sliding_window_view(y[:-1], BASE_ROWS)[NOISE_ROWS + 1 - BASE_ROWS :]
    windows = np.lib.stride_tricks.sliding_window_view(change[:-1], NOISE_ROWS)
    base, noise = np.empty(len(befores)), np.empty(len(befores))
    for low in range(0, len(befores), _CHUNK):
        part = slice(low, low + _CHUNK)
        base[part] = np.median(befores[part], axis=1)
        window = windows[part]
        middle = np.median(window, axis=1, keepdims=True)
        noise[part] = _MAD * np.median(np.abs(window - middle), axis=1)
    return base, np.maximum(noise, _NOISE_FLOOR)


# ---- swings ----------------------------------------------------------------------------------------------------------


def swings(values: Floats) -> tuple[int, float]:
    """How often the smoothed series rises and falls again, and the median rise as a ratio less 1.

    Smoothed: median of `SWING_ROWS` rows of ln(value). A swing is a rise by the limit from a low, followed by a fall by
    the limit from the high; the limit is ln(1 + `SWING_RATIO`), or `SWING_NOISE` times the noise of the values.
    """
    y = np.log(values[np.isfinite(values) & (values > 0)])
    if len(y) < 4 * SWING_ROWS:
        return 0, 0.0
    noise = _MAD * float(np.median(np.abs(np.diff(y)))) / np.sqrt(2)
    limit = max(float(np.log1p(SWING_RATIO.value)), SWING_NOISE * noise)
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(y, SWING_ROWS), axis=1)
    rises: list[float] = []
    low = high = float(smooth[0])
    is_up = False
    for value in smooth.tolist():
        if is_up:
            high = max(high, value)
            if value <= high - limit:
                rises.append(high - low)
                low, is_up = value, False
        else:
            low = min(low, value)
            if value >= low + limit:
                high, is_up = value, True
    return len(rises), float(np.expm1(np.median(rises))) if rises else 0.0


# ---- loss scale ------------------------------------------------------------------------------------------------------


def scale_story(series: Series) -> ScaleStory | None:
    """What the loss scale did; None where none is logged, or it is constant and no update was skipped."""
    rows = np.flatnonzero(np.isfinite(series.scale) & (series.scale > 0))
    if len(rows) < 2:
        return None
    log = np.log2(series.scale[rows])
    change = np.diff(log)
    falls = np.flatnonzero(change < 0)
    if not len(falls) and not (change > 0).any():
        return None
    settled = settled_row(len(rows), falls + 1)
    start = 0 if settled is None else settled
    return ScaleStory(
        settled=None if settled is None else int(rows[settled]), halvings=float(log[start] - log[-1]), falls=len(falls),
        is_at_floor=bool(len(falls)) and float(series.scale[rows[-1]]) <= SCALE_FLOOR, rows=len(rows),
    )  # fmt: skip


def settled_row(count: int, falls: Ints) -> int | None:
    """First row after which `SETTLED_ROWS` rows pass without a fall; None when there is none."""
    bounds = np.concatenate(([0], falls, [count]))
    calm = np.flatnonzero(np.diff(bounds) >= SETTLED_ROWS)
    return int(bounds[calm[0]]) if len(calm) else None


def skipped_after(series: Series) -> tuple[int, int]:
    """Skipped updates after the scale has settled, and the steps over which they were counted."""
    rows = np.flatnonzero(series.skipped != NULL)
    counts = series.skipped[rows]
    settled = settled_row(len(rows), np.flatnonzero(counts > 0) + 1) if len(rows) else None
    story = scale_story(series)
    if story is not None and story.settled is not None:
        # The row of the last fall holds the update that it cost.
        settled = int(np.searchsorted(rows, story.settled, side="right")) if story.settled else 0
    if settled is None or settled >= len(rows):
        return (0, 0) if len(rows) < UNSETTLED_ROWS else (int(counts.sum()), _span(series.step[rows]))
    return int(counts[settled:].sum()), _span(series.step[rows[settled:]])


def _span(steps: Ints) -> int:
    return int(steps.max() - steps.min()) + 1 if len(steps) else 0
