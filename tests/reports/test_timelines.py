"""Timelines in the page: columns read back as they were, and merged until they fit without losing an interval."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.model.cells import IntCells, TextCells
from ascend_perf.model.finding import ResultColumn, ResultTable, Words
from ascend_perf.model.table import NULL, Text
from ascend_perf.reports import page as module
from ascend_perf.reports.html import write_html
from ascend_perf.reports.packed import packed
from ascend_perf.reports.page import page
from ascend_perf.reports.timelines import coarser, is_timeline, ordered
from tests.reports import _samples
from tests.reports._packed import unpacked

FAR = 2**53 - 1


@given(st.lists(st.none() | st.integers(-FAR, FAR) | st.integers(-3, 3), max_size=80))
def test_packed_columns_hold_what_was_put_in(values: list[int | None]) -> None:
    column = packed(np.array([NULL if value is None else value for value in values], np.int64))

    assert unpacked(column) == values


@given(st.integers(0, 10**15))
def test_the_shortest_way_is_taken(base: int) -> None:
    # Times that grow by 1 from a large one: a byte each after the first. Equal values: one pair.
    growing = packed(base + np.arange(200, dtype=np.int64))
    equal = packed(np.full(200, base, np.int64))

    assert growing["as"] == "delta"
    assert equal["as"] == "runs"
    assert len(str(equal["bytes"])) <= 16
    assert len(str(growing["bytes"])) <= (200 + 9) * 4 / 3 + 4


def test_numbers_that_javascript_cannot_hold_are_unknown() -> None:
    assert unpacked(packed(np.array([1, FAR + 1, -FAR - 1, 2], np.int64))) == [1, None, None, 2]


def _table(rows: list[tuple[str, str, str, int, int]]) -> ResultTable:
    names = ("lane", "kind", "name", "start_ns", "dur_ns")
    columns = tuple(ResultColumn(name=name, title=Words(name, name), unit="none") for name in names)
    data = tuple(zip(*rows, strict=True)) if rows else ((),) * 5
    return ResultTable(name="timeline", title=Words("t", "t"), columns=columns, data=data)


rows = st.lists(
    st.tuples(
        st.sampled_from(("Stream 2", "Host thread 1")), st.sampled_from(("compute", "host")), st.sampled_from("abc"),
        st.integers(0, 100_000), st.integers(0, 300),
    ),
    min_size=1, max_size=200,
)  # fmt: skip


@given(rows, st.integers(1, 120))
def test_merging_further_keeps_all_intervals(given_rows: list[tuple[str, str, str, int, int]], most: int) -> None:
    table = ordered(_table(given_rows))
    made = coarser(coarser(table, most), max(1, most // 2))  # what is merged can be merged again

    lanes = list(dict.fromkeys(row[0] for row in given_rows))
    by_lane = sorted(given_rows, key=lambda row: (lanes.index(row[0]), row[3], -row[4]))
    assert list(zip(*table.data, strict=True)) == by_lane
    assert len(made) <= len(table)
    cells = [made.column(name) for name in ("lane", "kind", "start_ns", "dur_ns")]
    counts, busy = ([1] * len(made), list(made.column("dur_ns")))
    if len(made) < len(table):
        counts, busy = [int(str(c)) for c in made.column("count")], list(made.column("busy_ns"))
    kinds: Counter[tuple[object, object]] = Counter()
    for lane, kind, start, length, count, busy_ns in zip(*cells, counts, busy, strict=True):
        kinds[lane, kind] += count
        first, end = int(str(start)), int(str(start)) + int(str(length))
        inside = [r for r in given_rows if (r[0], r[1]) == (lane, kind) and first <= r[3] <= r[3] + r[4] <= end]
        covered = {ns for r in inside for ns in range(r[3], r[3] + r[4])}
        assert len(inside) >= count
        assert 0 <= int(str(busy_ns)) <= len(covered)
    assert kinds == Counter((row[0], row[1]) for row in given_rows)


def test_cells_of_runs_that_told_of_one_interval_are_unknown() -> None:
    count = 50
    table = _table([("Stream 2", "compute", "a", 10 * i, 5) for i in range(count)])
    extra = (
        ResultColumn(name="launch_start_ns", title=Words("l", "l"), unit="ns"),
        ResultColumn(name="shapes", title=Words("s", "s"), unit="none"),
        ResultColumn(name="weight", title=Words("w", "w"), unit="none"),
    )
    data = (
        IntCells(np.arange(count, dtype=np.int64)), TextCells(Text.full(count, "2,2")),
        tuple(float(i) for i in range(count)),
    )  # fmt: skip
    table = replace(table, columns=(*table.columns, *extra), data=(*table.data, *data))

    made = coarser(table, 20)

    told = list(zip(*(made.column(n) for n in ("count", "launch_start_ns", "shapes", "weight")), strict=True))
    assert any(row[0] != 1 for row in told)
    assert all(row[1:] == (None, None, None) for row in told if row[0] != 1)
    assert all(None not in row for row in told if row[0] == 1)


def test_a_table_with_unknown_times_is_no_timeline() -> None:
    table = _table([("Stream 2", "compute", "a", 0, 5)])

    assert is_timeline(table)
    assert not is_timeline(replace(table, data=(*table.data[:3], (None,), (5,))))
    assert not is_timeline(replace(table, data=(*table.data[:3], (0.5,), (5,))))
    assert not is_timeline(replace(table, name="other"))
    assert not is_timeline(_table([]))


def _timeline(document: dict[str, Any]) -> dict[str, Any]:
    return next(table for table in document["tables"] if table["name"] == "timeline")


def test_a_timeline_that_is_too_large_is_merged_and_the_page_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    payload = _samples.payload()
    whole = _timeline(page(payload))
    limit = 12_000
    assert len(json.dumps(whole, ensure_ascii=False).encode()) > limit
    monkeypatch.setattr(module, "TIMELINE_BYTES", limit)

    document: dict[str, Any] = page(payload)

    made = _timeline(document)
    assert len(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()) <= limit
    counts = unpacked(next(column["packed"] for column in made["columns"] if column["name"] == "count"))
    assert sum(count or 0 for count in counts) == whole["rows"]
    cut = [item["text"][0] for item in document["cut"] if item["section"] == "timeline"]
    said = f"shows {made['rows']} instead of {whole['rows']} intervals"
    assert any(said in text.replace("\u2009", "") for text in cut)
    write_html(payload, tmp_path / "report.html")
