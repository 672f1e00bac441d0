"""Modified z-scores among equals, against the definition written out."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.reports.odd import MOST, scores

VALUES = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 1000).map(float)), st.sampled_from(["a", "b", None])), max_size=30
)


@given(VALUES, st.sampled_from([0.0, 40.0]))
def test_scores_are_those_of_the_definition(items: list[tuple[float | None, str | None]], least: float) -> None:
    found = scores([value for value, _ in items], [group for _, group in items], least)

    assert len(found) == len(items)
    for (value, group), score in zip(items, found, strict=True):
        equals = [v for v, g in items if g == group and v is not None]
        if value is None or len(equals) < 4:
            assert score is None
            continue
        assert score is not None
        middle = statistics.median(equals)
        deviation = statistics.median(abs(v - middle) for v in equals)
        assert score.usual == middle
        off = value - middle
        if off == 0:
            assert (score.z, score.is_odd) == (0, False)
            continue
        z = MOST * (1 if off > 0 else -1) if deviation == 0 else max(-MOST, min(MOST, 0.6745 * off / deviation))
        assert abs(score.z - z) < 1e-9
        far = deviation == 0 or abs(0.6745 * off / deviation) > 3.5
        assert score.is_odd == (far and abs(off) > 0.05 * middle and abs(off) >= least)


def test_stages_are_compared_apart() -> None:
    values = [10.0, 10.1, 9.9, 10.0, 13.0, 20.0, 20.1, 19.9, 20.0, 20.0]
    groups = [0] * 5 + [1] * 5
    assert [s is not None and s.is_odd for s in scores(values, groups)] == [False] * 4 + [True] + [False] * 5
    # As one group neither stage is usual, and nobody stands out.
    assert not any(s is not None and s.is_odd for s in scores(values, [None] * 10))
