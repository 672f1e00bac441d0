"""`distinct` against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import NULL

SMALL = st.integers(-3, 3)
ANY = st.one_of(SMALL, st.integers(-(1 << 40), 1 << 40), st.sampled_from([NULL, (1 << 63) - 1]))


@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.one_of(SMALL, ANY)] * n), min_size=1, max_size=40)))
def test_combinations_and_their_order_are_those_of_numpy(rows: list[tuple[int, ...]]) -> None:
    columns = np.array(rows, np.int64).T
    keys, index = distinct(*columns)

    expected = sorted(set(rows))
    assert [tuple(key) for key in keys.T.tolist()] == expected
    assert index.tolist() == [expected.index(row) for row in rows]


@pytest.mark.parametrize("width", [1, 1000, 1 << 20])
def test_dense_and_sparse_codes_of_many_rows(width: int) -> None:
    random = np.random.default_rng(width)
    first, second = random.integers(-1, width, 5000).astype(np.int32), random.integers(0, 7, 5000).astype(np.int32)
    keys, index = distinct(first, second)

    wanted, places = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    assert np.array_equal(keys, wanted) and np.array_equal(index, places.reshape(-1))
    assert np.array_equal(keys[:, index], np.stack((first, second)))


def test_no_rows_have_no_combinations() -> None:
    keys, index = distinct(np.empty(0, np.int32), np.empty(0, np.int64))

    assert keys.shape == (2, 0) and index.shape == (0,)
