"""The timeline of one step: lanes, window and thinning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers import timeline as module
from ascend_perf.analyzers.timeline import timeline
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.trace import Trace

Make = Callable[..., Trace]


def _table(outcome: Outcome, name: str = "timeline") -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _rows(table: ResultTable, *names: str) -> list[tuple[object, ...]]:
    names = names or tuple(column.name for column in table.columns)
    return list(zip(*(table.column(name) for name in names), strict=True))


BASE = ("lane", "kind", "name", "start_ns", "dur_ns")


def test_lanes_hold_what_happened_where(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 100, "dur_ns": 900, "host_start_ns": 0, "host_dur_ns": 900}],
        kernels=[
            {"start_ns": 100, "dur_ns": 50, "name": "add", "stream": 2, "input_shapes": "4,4;4", "launch_start_ns": 60}
        ],
        copies=[{"start_ns": 90, "dur_ns": 5, "kind": "H2D", "stream": 3}],
        comm_ops=[{"start_ns": 200, "dur_ns": 300, "name": "hcom_allReduce__1_0", "group_label": "dp"}],
        comm_tasks=[
            {"start_ns": 200, "dur_ns": 100, "kind": "Notify_Wait", "comm_op": 0, "plane": 0},
            {"start_ns": 220, "dur_ns": 100, "kind": "Notify_Wait", "comm_op": 0, "plane": 1},
            {"start_ns": 320, "dur_ns": 60, "kind": "Memcpy", "comm_op": 0, "plane": 1},
        ],
        host_ops=[
            {"start_ns": 10, "dur_ns": 40, "name": "aten::linear", "thread": 7},
            {"start_ns": 20, "dur_ns": 10, "name": "aten::mm", "thread": 7},
        ],
        host_events=[
            {"start_ns": 0, "dur_ns": 900, "name": "ProfilerStep#1", "kind": "step", "thread": 7},
            {"start_ns": 0, "dur_ns": 9, "name": "enumerate(DataLoader)#x", "kind": "dataloader", "thread": 7},
            {"start_ns": 30, "dur_ns": 2, "name": "Enqueue@mm", "kind": "enqueue", "thread": 7},
            {"start_ns": 40, "dur_ns": 6, "name": "Dequeue@mm", "kind": "dequeue", "thread": 8},
        ],
        runtime_calls=[{"start_ns": 60, "dur_ns": 20, "api": "aclrtSynchronizeStream", "thread": 7}],
    )

    outcome = timeline.run_on_trace(trace)

    table = _table(outcome)
    assert _rows(table, "group", *BASE) == [
        ("host", "Host thread 7", "host", "aten::linear", 10, 40),  # aten::mm lies inside it
        ("host", "Host events, thread 7", "dataloader", "enumerate(DataLoader)#x", 0, 9),
        ("host", "Runtime API, thread 7", "sync", "aclrtSynchronizeStream", 60, 20),
        ("dispatch", "Enqueue, thread 7", "host", "Enqueue@mm", 30, 2),
        ("dispatch", "Dequeue, thread 8", "host", "Dequeue@mm", 40, 6),
        ("device", "Stream 2", "compute", "add", 100, 50),
        ("copies", "Copies, stream 3", "copy", "H2D", 90, 5),
        ("communication", "Communication dp", "communication", "hcom_allReduce__1_0", 200, 300),
        ("communication", "Waits dp", "wait", "Notify_Wait", 200, 120),
        ("planes", "Plane 0, dp", "wait", "Notify_Wait", 200, 100),
        ("planes", "Plane 1, dp", "wait", "Notify_Wait", 220, 100),
        ("planes", "Plane 1, dp", "communication", "Memcpy", 320, 60),
    ]
    assert set(table.column("count")) == {1}
    assert list(table.column("busy_ns")) == list(table.column("dur_ns"))
    assert [(row[0], *row[1:]) for row in _rows(table, "name", "shapes", "launch_start_ns") if any(row[1:])] == [
        ("add", "4,4;4", 60)
    ]
    # From the host's marker, which is earlier than the first device task.
    assert _rows(_table(outcome, "timeline-window")) == [(0, 1000)]


def test_events_are_cut_to_the_window(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 100, "dur_ns": 100}],
        kernels=[
            {"start_ns": 50, "dur_ns": 100, "name": "a", "stream": 1, "step_id": 1},
            {"start_ns": 190, "dur_ns": 100, "name": "b", "stream": 1},
            {"start_ns": 300, "dur_ns": 100, "name": "c", "stream": 1},
        ],
    )

    rows = _rows(_table(timeline.run_on_trace(trace)), "name", "start_ns", "dur_ns")

    assert rows == [("a", 100, 50), ("b", 190, 10)]


def test_short_neighbours_are_merged_until_the_rows_fit(make_trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 12)
    long = {"start_ns": 50_000, "dur_ns": 30_000, "name": "long", "stream": 1, "launch_start_ns": 5}
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
        kernels=[{"start_ns": 10 * i, "dur_ns": 5, "name": "tiny", "stream": 1, "launch_start_ns": 10 * i}
                 for i in range(1000)] + [long],
    )  # fmt: skip

    table = _table(timeline.run_on_trace(trace))

    assert len(table) <= 12
    rows = _rows(table, "name", "start_ns", "dur_ns", "count", "busy_ns", "launch_start_ns")
    assert ("long", 50_000, 30_000, 1, 30_000, 5) in rows
    tiny = [row for row in rows if row[0] == "tiny"]
    assert sum(int(str(row[3])) for row in tiny) == 1000
    for _, start, length, count, busy, launch in tiny:
        assert (length, busy) == (10 * (int(str(count)) - 1) + 5, 5 * int(str(count)))
        assert launch == (start if count == 1 else None)  # a run was not launched at one time
    assert table.note is not None
    exact = sum(row[3] == 1 for row in rows)
    merged = len(rows) - exact
    assert table.note.en == f"Shows step 1: {exact} of 1\u2009001 intervals as they are, the others as {merged} runs."


def test_intervals_of_different_kinds_are_not_merged(make_trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
        host_events=[
            {"start_ns": i, "dur_ns": 1, "name": kind, "kind": kind, "thread": 1}
            for i, kind in enumerate(["gc", "gc", "dataloader", "dataloader"])
        ],
    )

    table = _table(timeline.run_on_trace(trace))

    assert _rows(table, "kind", "name", "start_ns", "dur_ns", "count") == [
        ("gc", "gc", 0, 2, 2), ("dataloader", "dataloader", 2, 2, 2),
    ]  # fmt: skip


def test_planes_are_the_first_to_go_where_there_are_too_many_lanes(
    make_trace: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LANES", 3)
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}],
        kernels=[{"start_ns": i, "dur_ns": 5 + i, "name": "a", "stream": i} for i in range(3)],
        comm_ops=[{"start_ns": 0, "dur_ns": 90, "name": "hcom_allReduce__1_0", "group_label": "dp"}],
        comm_tasks=[{"start_ns": 0, "dur_ns": 80, "kind": "Memcpy", "comm_op": 0, "plane": 3}],
    )

    table = _table(timeline.run_on_trace(trace))

    assert list(table.column("lane")) == ["Stream 1", "Stream 2", "Communication dp"]
    assert table.note is not None
    assert table.note.en.endswith("2 less busy lanes are left out.")


def test_an_empty_trace_is_no_data(make_trace: Make) -> None:
    assert timeline.run_on_trace(make_trace()).status == "no_data"


def test_a_large_trace_stays_under_the_limit(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "kineto/v100/two_rank_training_rank1.json.gz").traces

    table = _table(timeline.run_on_trace(trace))

    assert 100 < len(table) <= module.MAX_ROWS
    kinds = set(table.column("kind"))
    assert {"compute", "communication", "host"} <= kinds
    assert kinds <= {"compute", "communication", "wait", "copy", "host", "sync", "dataloader", "gc"}
