"""Tables: checked once, unknown stays unknown, selection and concatenation keep rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.model.table import NULL, Table, Text, Values, known
from ascend_perf.model.tables import ALL, KERNELS, MEMORY

TEXTS = st.lists(st.none() | st.sampled_from(["a", "b", "", "c"]), max_size=12)


@given(TEXTS)
def test_text_round_trips(items: list[str | None]) -> None:
    text = Text.of(items)
    assert text.to_list() == items
    assert [text[i] for i in range(len(items))] == items
    assert known(text).tolist() == [i is not None for i in items]
    assert text.equals("a").tolist() == [i == "a" for i in items]
    assert text.isin({"b", "c"}).tolist() == [i in ("b", "c") for i in items]


@given(TEXTS, TEXTS)
def test_text_concat_compact_and_relabel(a: list[str | None], b: list[str | None]) -> None:
    joined = Text.concat([Text.of(a), Text.of(b)])
    assert joined.to_list() == a + b
    assert len(set(joined.values)) == len(joined.values)
    assert joined.compact().to_list() == a + b
    upper = joined.relabel(lambda v: None if v == "c" else v.upper())
    assert upper.to_list() == [None if i in (None, "c") else i.upper() for i in a + b]


def table(**columns: Values) -> Table:
    return Table(
        KERNELS, {"start_ns": np.array([1, 2]), "dur_ns": np.array([3, 4]), "name": Text.of(["x", "y"]), **columns}
    )


@given(st.lists(st.integers(-1, 4), max_size=20), st.lists(st.sampled_from("ab"), min_size=5, max_size=5))
def test_words_that_stand_twice_in_a_dictionary_are_one_word(codes: list[int], values: list[str]) -> None:
    text = Text(np.array(codes, np.int32), values)
    for word in "abc":
        assert text.equals(word).tolist() == [code >= 0 and values[code] == word for code in codes]


def test_columns_that_were_not_given_are_unknown() -> None:
    t = table()
    assert t.ints("stream").tolist() == [NULL, NULL]
    assert np.isnan(t.floats("aic_mac_ratio")).all()
    assert t.text("op_type").to_list() == [None, None]
    assert not t.has("stream") and t.has("dur_ns")


def test_open_tables_take_further_counters_and_closed_ones_do_not() -> None:
    assert table(aic_cube_fops=np.array([1.0, 2.0])).floats("aic_cube_fops").tolist() == [1.0, 2.0]
    with pytest.raises(KeyError, match="memory has no column 'colour'"):
        Table(MEMORY, {"colour": np.array([1.0])})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stream": np.array([1])}, "differ in length"),
        ({"stream": np.array([1.0, 2.0])}, "must be int64"),
        ({"op_type": np.array([1, 2])}, "must be a Text"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, Values], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(**columns)


def test_required_columns() -> None:
    with pytest.raises(ValueError, match="required columns are missing: dur_ns, name"):
        Table(KERNELS, {"start_ns": np.array([1])})


def test_ends_are_unknown_where_start_or_duration_is() -> None:
    t = Table(
        KERNELS,
        {"start_ns": np.array([1, NULL, 5]), "dur_ns": np.array([3, 4, NULL]), "name": Text.of(["x"] * 3)},
    )
    assert t.ends_ns().tolist() == [4, NULL, NULL]


def test_select_sort_concat() -> None:
    t = table(stream=np.array([9, 7]))
    assert t.sorted_by("stream").text("name").to_list() == ["y", "x"]
    both = Table.concat(KERNELS, [t, table(), Table.empty(KERNELS)])
    assert both.ints("stream").tolist() == [9, 7, NULL, NULL]
    assert len(t.select(np.array([False, True]))) == 1


def test_pandas_has_missing_values_where_we_do() -> None:
    frame = table(stream=np.array([NULL, 7]), aic_mac_ratio=np.array([0.5, np.nan])).to_pandas()
    assert frame["stream"].isna().tolist() == [True, False]
    assert str(frame["stream"].dtype) == "Int64"
    assert frame["aic_mac_ratio"].isna().tolist() == [False, True]
    assert frame["name"].tolist() == ["x", "y"]
    assert frame["op_type"].isna().all()


def test_column_names_say_their_unit() -> None:
    for spec in ALL.values():
        for column in spec.columns:
            if column.unit == "ns":
                assert column.name.endswith("_ns"), column.name
            if column.unit == "bytes":
                assert column.name.endswith("_bytes"), column.name
            if column.unit == "ratio":
                assert column.name.endswith("_ratio"), column.name
