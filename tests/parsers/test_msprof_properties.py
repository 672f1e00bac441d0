"""Properties of the msprof reader: slices do not matter, and columns of single tasks go to their kernels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.model import tables as t
from ascend_perf.model.table import Table, Text
from ascend_perf.parsers._ascend_csv import read_csv
from ascend_perf.parsers._msprof_tasks import joined_to
from tests.parsers._ascend_profile import csv_text
from tests.parsers._msprof_profile import Prof, summary_comm, summary_header, summary_row, trace_at, traces_at

Key = tuple[int, int, str]
KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from("ab")), max_size=12)


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(("kernel", "comm")), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_slices_give_what_one_file_gives(kinds: list[str], cuts: list[int]) -> None:
    rows = [summary_row(n) if kind == "kernel" else summary_comm(n, index=n) for n, kind in enumerate(kinds)]
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    with TemporaryDirectory() as one, TemporaryDirectory() as many:
        Prof(Path(one)).summary(rows)
        prof = Prof(Path(many))
        for number, (first, last) in enumerate(pairwise(edges)):
            prof.csv(f"op_summary_slice_{number}", summary_header("G3"), rows[first:last])
        whole, sliced = trace_at(Path(one)), trace_at(Path(many))
    for spec in (t.KERNELS, t.COMM_OPS, t.STEPS):
        ours, theirs = sliced[spec], whole[spec]
        assert set(ours.names) == set(theirs.names)
        assert ours.to_pandas().astype(object).equals(theirs.to_pandas().astype(object))


@settings(max_examples=25, deadline=None)
@given(devices=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_each_row_goes_to_its_device_and_to_no_other(devices: list[int]) -> None:
    with TemporaryDirectory() as folder:
        Prof(Path(folder)).summary([summary_row(n, device=device) for n, device in enumerate(devices)])
        traces = traces_at(Path(folder))
    found = {trace.meta.device.device_id: trace[t.KERNELS].text("name").to_list() for trace in traces}
    expected: dict[int, list[str]] = {}
    for number, device in enumerate(devices):
        expected.setdefault(device, []).append(f"aclnnAdd_AddAiCore_Add{number}")
    assert found == expected


@settings(max_examples=100, deadline=None)
@given(kernels=KEYS, rows=KEYS)
def test_columns_are_joined_by_key_and_order(kernels: list[Key], rows: list[Key]) -> None:
    table = Table(
        t.KERNELS,
        {
            "start_ns": np.arange(len(kernels)),
            "dur_ns": np.ones(len(kernels), np.int64),
            "name": Text.of([name for _, _, name in kernels]),
            "stream": np.array([stream for stream, _, _ in kernels], np.int64),
            "task_id": np.array([task for _, task, _ in kernels], np.int64),
        },
    )
    header = ["Stream Id", "Task Id", "Hit Rate", "Victim Rate", "Op Name"]
    cells = [
        dict(zip(header, (str(s), str(k), str(n), "0", name), strict=True)) for n, (s, k, name) in enumerate(rows, 1)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "l2_cache_1.csv"
        path.write_text(csv_text(header, cells))
        joined, lost = joined_to(table, read_csv(path), "l2_cache")

    left = list(enumerate(rows, 1))
    expected = []
    for key in kernels:  # each kernel takes the first row of its key that is left
        hit = next((entry for entry in left if entry[1] == key), None)
        if hit is not None:
            left.remove(hit)
        expected.append(float("nan") if hit is None else float(hit[0]))
    assert lost == len(left)
    np.testing.assert_array_equal(joined.floats("l2_hit_ratio"), expected)
