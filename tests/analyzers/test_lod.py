"""Level of detail: what runs stand for, against a count by hand, and that the rows fit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._lod import Runs, thinned

items = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-1, 4), st.integers(0, 50_000), st.integers(0, 400)),
    min_size=1, max_size=150,
)  # fmt: skip


def _runs(rows: list[tuple[int, int, int, int, int]]) -> Runs:
    rows = sorted(rows, key=lambda row: (row[0], row[3]))
    lane, kind, name, start, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Runs.exact(lane.astype(np.int32), kind.astype(np.int32), name.astype(np.int32), start, start + length)


@given(items, st.integers(1, 150))
def test_runs_stand_for_their_intervals(rows: list[tuple[int, int, int, int, int]], most: int) -> None:
    every = _runs(rows)

    made = thinned(every, most)

    assert made.counts.sum() == len(every)
    assert (made.heads == np.cumsum(made.counts) - made.counts).all()
    for at, (head, count) in enumerate(zip(made.heads.tolist(), made.counts.tolist(), strict=True)):
        mine = slice(head, head + count)
        assert set(every.lanes[mine]) == {made.lanes[at]}
        assert set(every.kinds[mine]) == {made.kinds[at]}
        starts, ends, names = every.starts[mine].tolist(), every.ends[mine].tolist(), every.names[mine].tolist()
        assert made.starts[at] == starts[0]
        assert made.ends[at] == max(ends)
        covered = {ns for start, end in zip(starts, ends, strict=True) for ns in range(start, end)}
        assert made.busy_ns[at] == len(covered)
        times = dict.fromkeys(names, 0)
        for name, start, end in zip(names, starts, ends, strict=True):
            times[name] += end - start
        assert made.names[at] == min(times, key=lambda name: (-times[name], name))


@given(items, st.integers(1, 150))
def test_the_rows_fit_where_kinds_do_not_change(rows: list[tuple[int, int, int, int, int]], most: int) -> None:
    every = _runs([(0, 0, row[2], row[3], row[4]) for row in rows])

    made = thinned(every, most)

    assert len(made) <= max(most, 1)
    assert len(made) == len(every) or len(every) > most


def test_what_fits_is_not_touched() -> None:
    every = _runs([(0, 0, 1, 10 * i, 5) for i in range(100)])

    assert thinned(every, 100) is every


def test_long_intervals_stay_and_the_exact_stretch_is_where_the_weight_is() -> None:
    tiny = [(0, 0, 1, 100 * i, 50) for i in range(10_000)]
    long = [(1, 1, 2, 200_000, 300_000)]
    every = _runs(tiny + long)
    weights = np.where((every.starts >= 700_000) & (every.starts < 720_000), 50, 1)

    made = thinned(every, 1000, weights)

    assert len(made) <= 1000
    assert [(made.starts[i], made.ends[i]) for i in np.flatnonzero(made.lanes == 1)] == [(200_000, 500_000)]
    inside = (made.lanes == 0) & (made.starts >= 702_000) & (made.starts < 718_000)
    assert (made.counts[inside] == 1).all()
    assert np.count_nonzero(inside) == 160  # one interval each 100 ns
    exact = np.count_nonzero(made.counts == 1)
    assert 400 < exact < 1000  # most of the rows go to exact stretches


def test_half_a_million_intervals_end_in_the_rows_asked_for() -> None:
    rng = np.random.default_rng(3)
    count = 500_000
    lane = np.sort(rng.integers(0, 8, count)).astype(np.int32)
    starts = rng.integers(0, 10**9, count)
    order = np.lexsort((starts, lane))
    starts = starts[order]
    ends = starts + rng.integers(10, 3000, count)
    every = Runs.exact(lane, np.zeros(count, np.int32), rng.integers(0, 300, count).astype(np.int32), starts, ends)

    made = thinned(every, 60_000)

    assert 45_000 < len(made) <= 60_000
    assert made.counts.sum() == count
    assert (made.busy_ns <= made.ends - made.starts).all()
