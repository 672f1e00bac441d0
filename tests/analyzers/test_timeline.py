"""The timeline of one step: lanes, window and thinning."""

from __future__ import annotations

from collections import Counter
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


def _rows(table: ResultTable) -> list[tuple[object, ...]]:
    return list(zip(*table.data, strict=True))


def test_lanes_hold_what_happened_where(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 100, "dur_ns": 900, "host_start_ns": 0, "host_dur_ns": 900}],
        kernels=[{"start_ns": 100, "dur_ns": 50, "name": "add", "stream": 2}],
        copies=[{"start_ns": 90, "dur_ns": 5, "kind": "H2D", "stream": 3}],
        comm_ops=[{"start_ns": 200, "dur_ns": 300, "name": "hcom_allReduce__1_0", "group_label": "dp"}],
        comm_tasks=[
            {"start_ns": 200, "dur_ns": 100, "kind": "Notify_Wait", "comm_op": 0, "plane": 0},
            {"start_ns": 220, "dur_ns": 100, "kind": "Notify_Wait", "comm_op": 0, "plane": 1},
        ],
        host_ops=[
            {"start_ns": 10, "dur_ns": 40, "name": "aten::linear", "thread": 7},
            {"start_ns": 20, "dur_ns": 10, "name": "aten::mm", "thread": 7},
        ],
        host_events=[
            {"start_ns": 0, "dur_ns": 900, "name": "ProfilerStep#1", "kind": "step", "thread": 7},
            {"start_ns": 0, "dur_ns": 9, "name": "enumerate(DataLoader)#x", "kind": "dataloader", "thread": 7},
        ],
        runtime_calls=[{"start_ns": 60, "dur_ns": 20, "api": "aclrtSynchronizeStream", "thread": 7}],
    )

    outcome = timeline.run_on_trace(trace)

    assert _rows(_table(outcome)) == [
        ("Host thread 7", "host", "aten::linear", 10, 40),  # aten::mm lies inside it
        ("Host events, thread 7", "dataloader", "enumerate(DataLoader)#x", 0, 9),
        ("Runtime API, thread 7", "sync", "aclrtSynchronizeStream", 60, 20),
        ("Stream 2", "compute", "add", 100, 50),
        ("Copies, stream 3", "copy", "H2D", 90, 5),
        ("Communication dp", "communication", "hcom_allReduce__1_0", 200, 300),
        ("Waits dp", "wait", "Notify_Wait", 200, 120),
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

    assert [row[2:] for row in _rows(_table(timeline.run_on_trace(trace)))] == [("a", 100, 50), ("b", 190, 10)]


def test_short_neighbours_are_merged_until_the_rows_fit(make_trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 12)
    long = {"start_ns": 50_000, "dur_ns": 30_000, "name": "long", "stream": 1}
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
        kernels=[{"start_ns": 10 * i, "dur_ns": 5, "name": "tiny", "stream": 1} for i in range(1000)] + [long],
    )

    table = _table(timeline.run_on_trace(trace))

    assert len(table) <= 12
    assert "long" in table.column("name")
    merged = [str(name) for name in table.column("name") if str(name).endswith("...")]
    assert sum(int(name.split(" x ")[0]) for name in merged) + len(table) - len(merged) == 1001
    assert table.note is not None
    assert "of 1001 intervals" in table.note.en


def test_intervals_of_different_kinds_are_not_merged(make_trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
        host_events=[
            {"start_ns": i, "dur_ns": 1, "name": kind, "kind": kind, "thread": 1}
            for i, kind in enumerate(["gc", "gc", "dataloader", "dataloader"])
        ],
    )

    assert Counter(_table(timeline.run_on_trace(trace)).column("kind")) == {"host": 1, "dataloader": 1}


def test_an_empty_trace_is_no_data(make_trace: Make) -> None:
    assert timeline.run_on_trace(make_trace()).status == "no_data"


def test_a_large_trace_stays_under_the_limit(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "kineto/v100/two_rank_training_rank1.json.gz").traces

    table = _table(timeline.run_on_trace(trace))

    assert 100 < len(table) <= module.MAX_ROWS
    kinds = set(table.column("kind"))
    assert {"compute", "communication", "host"} <= kinds
    assert kinds <= {"compute", "communication", "wait", "copy", "host", "sync", "dataloader"}
