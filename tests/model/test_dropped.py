"""Tables that gave columns away: what is left stays, what is gone cannot be mistaken for unknown."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.model.table import NULL, Table, Text
from ascend_perf.model.tables import HOST_OPS


def ops() -> Table:
    return Table(
        HOST_OPS,
        {
            "start_ns": np.array([1, 2, 3], np.int64),
            "dur_ns": np.array([10, 20, 30], np.int64),
            "name": Text.of(["a", "b", "a"]),
            "stack": Text.of(["x", None, "y"]),
        },
    )


def test_a_dropped_column_is_no_unknown_column() -> None:
    kept = ops().keeping(["start_ns", "name"])
    assert len(kept) == 3
    assert kept.names == ("start_ns", "name")
    assert kept.text("name").to_list() == ["a", "b", "a"]
    assert kept.ints("thread").tolist() == [NULL] * 3  # it was never given
    for read in (lambda: kept.text("stack"), lambda: kept.ints("dur_ns"), lambda: kept.has("stack"), kept.ends_ns):
        with pytest.raises(LookupError, match="was dropped"):
            read()


def test_a_table_without_any_column_keeps_its_length() -> None:
    bare = ops().keeping([])
    assert len(bare) == 3
    assert len(bare.select(np.array([True, False, True]))) == 2
    assert len(bare.select(np.array([0]))) == 1
    assert len(bare.select(slice(0, 2))) == 2
    assert len(bare.compact()) == 3


def test_what_is_made_of_it_has_lost_the_same_columns() -> None:
    kept = ops().keeping(["start_ns", "name"])
    made = [
        kept.select(np.array([2])), kept.sorted_by("start_ns"), kept.compact(), kept.keeping(["name"]),
        kept.with_columns({"thread": np.array([7, 7, 7], np.int64)}), Table.concat(HOST_OPS, [kept, kept]),
        pickle.loads(pickle.dumps(kept)),
    ]  # fmt: skip
    for table in made:
        with pytest.raises(LookupError, match="was dropped"):
            table.text("stack")
    assert len(made[5]) == 6
    # A part that has the column does not bring it back for the rows of the other.
    with pytest.raises(LookupError, match="was dropped"):
        Table.concat(HOST_OPS, [ops(), kept])


def test_a_column_that_is_put_back_can_be_read_again() -> None:
    kept = ops().keeping(["start_ns"])
    whole = kept.with_columns({"dur_ns": np.array([4, 5, 6], np.int64)})
    assert whole.ends_ns().tolist() == [5, 7, 9]
    with pytest.raises(ValueError, match="differ in length"):
        kept.with_columns({"dur_ns": np.array([4, 5], np.int64)})
    with pytest.raises(ValueError, match="must be int64"):
        kept.with_columns({"dur_ns": np.array([4.0, 5.0, 6.0])})


@given(st.lists(st.integers(-1, 5), max_size=40))
def test_a_compact_column_has_the_words_that_its_rows_use_in_their_order(codes: list[int]) -> None:
    text = Text(np.array(codes, np.int32), ["f", "a", "c", "b", "e", "d"])
    compact = text.compact()
    assert compact.to_list() == text.to_list()
    assert list(compact.values) == [word for place, word in enumerate(text.values) if place in codes]
