"""Spikes, swings and falling loss scales: against loops written here, planted events, and noise."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers import _series
from ascend_perf.analyzers._series import Series, scale_story, series_of, settled_row, skipped_after, spikes, swings
from ascend_perf.model.run import Run
from ascend_perf.model.table import Floats
from ascend_perf.model.trace import Meta, Source, Trace
from tests.conftest import Rows, build_table


def series(rows: Rows) -> Series:
    trace = Trace(
        {"training_series": build_table("training_series", rows)},
        Meta(sources=(Source(path="train.log", format="training log"),)),
    )
    (made,) = series_of(Run(traces=(trace,)))
    return made


def decay(seed: int, noise: float, count: int = 2000) -> Floats:
    rng = np.random.default_rng(seed)
    steps = np.arange(count)
    made: Floats = np.exp(np.log(2 + 8 * np.exp(-steps / rng.uniform(50, 1000))) + rng.normal(0, noise, count))
    return made


# ---- spikes ----------------------------------------------------------------------------------------------------------


def by_loop(values: list[float]) -> list[tuple[int, int]]:
    """The rule of the module's text, row by row."""
    y = [math.log(value) for value in values]
    found, after = [], 0
    for row in range(41 + 0, len(y)):
        changes = [y[i] - y[i - 1] for i in range(row - 40, row)]
        middle = statistics.median(changes)
        noise = max(1.4826 * statistics.median(abs(change - middle) for change in changes), 1e-9)
        base = statistics.median(y[row - 21 : row])
        limit = max(6 * noise, math.log(1.1))
        if row < after or not y[row] - base > limit:
            continue
        last = row
        while last + 1 < len(y) and last + 1 < row + 50 and y[last + 1] - base > limit / 2:
            last += 1
        found.append((row, last))
        after = last + 1
    return found


@pytest.mark.parametrize("seed", range(6))
def test_spikes_are_those_of_a_loop(seed: int) -> None:
    values = decay(seed, 0.02, 300)
    rng = np.random.default_rng(seed)
    for row in rng.choice(np.arange(30, 300), 8, replace=False):
        values[row : row + int(rng.integers(1, 4))] *= rng.uniform(1.05, 3.0)
    assert [(spike.first, spike.last) for spike in spikes(values)] == by_loop(values.tolist())


def test_a_planted_spike_has_its_height_and_length() -> None:
    values = np.full(200, 2.0)
    values[::2] *= 1.01  # noise of half a percent
    values[100:103] *= 3
    (spike,) = spikes(values)
    assert (spike.first, spike.last, spike.is_over) == (100, 102, True)
    assert spike.peak == pytest.approx(6.06) and spike.base in (pytest.approx(2.0), pytest.approx(2.02))
    assert spike.ratio == pytest.approx(6.06 / spike.base)


def test_a_new_level_is_one_event_that_does_not_end() -> None:
    values = np.concatenate((np.full(100, 2.0), np.full(200, 4.0)))
    assert [(spike.first, spike.last, spike.is_over) for spike in spikes(values)] == [(100, 149, False)]


def test_unknown_rows_are_passed_over_and_keep_their_places() -> None:
    values = np.full(200, 2.0)
    values[150] = 5.0
    values[[3, 77, 149]] = math.nan
    values[100] = -1.0
    assert [spike.first for spike in spikes(values)] == [150]


def test_few_rows_tell_nothing() -> None:
    values = np.full(41, 1.0)
    values[40] = 9.0
    assert spikes(values) == []
    assert [spike.first for spike in spikes(np.concatenate(([1.0], values)))] == [41]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(0.0, 0.05))
def test_a_factor_on_the_loss_changes_nothing(seed: int, factor: float, noise: float) -> None:
    values = decay(seed, noise + 1e-4, 200)
    values[150:152] *= 2.7
    ours = [(spike.first, spike.last) for spike in spikes(values)]
    assert (150, 151) in ours
    assert [(spike.first, spike.last) for spike in spikes(values * factor)] == ours


def test_decay_with_noise_has_no_spikes_and_no_swings() -> None:
    rows = 0
    for seed in range(150):
        values = decay(seed, (0.001, 0.003, 0.01, 0.03, 0.1)[seed % 5])
        assert spikes(values) == [], seed
        assert swings(values) == (0, 0.0), seed
        rows += len(values)
    assert rows == 300_000  # fewer than one false spike in 100 000 rows, at 95 %


def test_rows_are_worked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = decay(3, 0.02, 1000)
    values[[200, 500, 900]] *= 2
    whole = spikes(values)
    monkeypatch.setattr(_series, "_CHUNK", 7)
    assert spikes(values) == whole and len(whole) == 3


# ---- swings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 6])
def test_swings_are_counted(count: int) -> None:
    phase = np.arange(100 * count) / 100 * 2 * np.pi
    wave = 2.0 * np.exp(0.3 * (1 - np.cos(phase)) / 2)
    found, rise = swings(np.concatenate((np.full(60, 2.0), wave, np.full(60, 2.0))))
    assert found == count
    assert 0.29 < math.log1p(rise) <= 0.3  # the median of 11 rows cuts the tip a little


def test_small_or_quick_changes_are_no_swings() -> None:
    phase = np.arange(600) / 100 * 2 * np.pi
    assert swings(2 * np.exp(0.04 * np.cos(phase)))[0] == 0  # 8 % from low to high
    assert swings(np.tile([2.0, 3.0], 300))[0] == 0  # noise from step to step
    assert swings(np.full(40, 1.0)) == (0, 0.0)


# ---- loss scale ------------------------------------------------------------------------------------------------------


def scales(values: list[float], skipped: list[int] | None = None) -> Series:
    rows = [{"step": step, "loss": 1.0, "loss_scale": value} for step, value in enumerate(values, 1)]
    for row, count in zip(rows, skipped or [], strict=False):
        row["skipped"] = count
    return series(rows)


def test_a_scale_that_settles_is_healthy() -> None:
    values = [2.0 ** (24 - i) for i in range(8)] + [2.0**16] * 100 + [2.0**17] * 50 + [2.0**16] * 50
    story = scale_story(scales(values))
    assert story is not None
    assert (story.settled, story.halvings, story.falls) == (8, 0.0, 9)
    assert not story.keeps_falling


def test_a_scale_that_falls_after_it_had_settled() -> None:
    values = [2.0**16] * 50 + [2.0**15] * 30 + [2.0**14] * 30
    story = scale_story(scales(values))
    assert story is not None and story.halvings == 2.0 and not story.keeps_falling
    story = scale_story(scales([*values, 2.0**13]))
    assert story is not None and story.halvings == 3.0 and story.keeps_falling


def test_a_scale_that_never_settles_falls_on_once_there_was_time_enough() -> None:
    values = [2.0 ** (32 - i // 10) for i in range(99)]
    story = scale_story(scales(values))
    assert story is not None and story.settled is None and not story.keeps_falling
    story = scale_story(scales([*values, 2.0**23]))
    assert story is not None and story.keeps_falling


def test_the_floor_is_a_fall_and_a_constant_scale_is_no_story() -> None:
    story = scale_story(scales([4.0] * 30 + [2.0] * 30 + [1.0]))
    assert story is not None and story.halvings == 2.0 and story.keeps_falling
    assert scale_story(scales([1.0] * 50)) is None
    assert scale_story(series([{"step": 1, "loss": 2.0}])) is None


def test_skipped_updates_count_once_the_scale_has_settled() -> None:
    values = [2.0 ** (20 - i) for i in range(5)] + [2.0**16] * 95
    skipped = [1] * 5 + [0] * 45 + [1] + [0] * 49
    assert skipped_after(scales(values, skipped)) == (1, 95)
    # Without a scale the calm of the skipped updates themselves tells.
    rows = [{"step": i, "loss": 1.0, "skipped": count} for i, count in enumerate(skipped, 1)]
    assert skipped_after(series(rows)) == (1, 95)


@given(st.lists(st.integers(1, 200), max_size=12, unique=True), st.integers(0, 220))
def test_the_settled_row_is_the_first_with_twenty_calm_rows_behind_it(falls: list[int], count: int) -> None:
    falls = sorted(fall for fall in falls if fall < count)
    expected = next(
        (start for start in [0, *falls] if start + 20 <= count and not any(start < f < start + 20 for f in falls)), None
    )
    assert settled_row(count, np.array(falls, np.int64)) == expected


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_ranks_of_one_file_are_series_of_their_own() -> None:
    rows = [{"step": 1, "loss": 1.0, "rank": rank} for rank in (3, 0, 3)]
    trace = Trace({"training_series": build_table("training_series", rows)}, Meta(label="all.log"))
    made = series_of(Run(traces=(trace,)))
    assert [(s.name, s.rank, len(s)) for s in made] == [("all.log (rank 0)", 0, 1), ("all.log (rank 3)", 3, 2)]


def test_a_restart_begins_an_attempt_and_the_last_value_of_a_step_counts() -> None:
    made = series([{"step": step, "loss": float(i)} for i, step in enumerate((1, 2, 3, 2, 3, 4))])
    assert made.attempts() == [slice(0, 3), slice(3, 6)]
    steps, values = made.by_step(made.loss)
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3, 4], [0.0, 3.0, 4.0, 5.0])
