"""The file for Perfetto: exact events of a small trace, nesting, exact times, hostile texts, real profiles."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ascend_perf import pipeline
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Evidence, Finding, Outcome, Remedy, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import ALL
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.reports.exports._exporter import Request
from ascend_perf.reports.exports._nesting import MAX_LANES, by_start, lanes
from ascend_perf.reports.exports._pieces import content, filled, microseconds
from ascend_perf.reports.exports.perfetto import BLOCK_ROWS, write_perfetto
from tests._support import Said
from tests.conftest import build_table
from tests.reports._hostile import hostile_trace

Event = dict[str, Any]
Command = Callable[..., Said]


def document(request: Request) -> dict[str, Any]:
    target = io.BytesIO()
    write_perfetto(request, target)
    read = json.loads(target.getvalue().decode("utf-8", "strict"), parse_float=Decimal)
    assert isinstance(read, dict)
    return read


def events_of(*traces: Trace, **more: Any) -> list[Event]:
    made = document(Request(run=Run(traces=traces), **more))["traceEvents"]
    assert isinstance(made, list)
    return made


def ns(value: Decimal | int) -> int:
    scaled = Decimal(value) * 1000
    assert scaled == scaled.to_integral_value()
    return int(scaled)


def crossings(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Slices of one track that begin inside of another and end outside: by a stack over each track in file order.

    Viewers sort by time but keep the order of the file among equal times, so the order of the file counts too.
    """
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    bad = []
    for track in tracks.values():
        assert [ns(e["ts"]) for e in track] == sorted(ns(e["ts"]) for e in track)
        open_: list[Event] = []
        for event in track:
            start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            while open_ and ns(open_[-1]["ts"]) + ns(open_[-1]["dur"]) <= start:
                open_.pop()
            if open_ and end > ns(open_[-1]["ts"]) + ns(open_[-1]["dur"]):
                bad.append((open_[-1], event))
            open_.append(event)
    return bad


def trace_of(rank: int | None = 0, **tables: list[dict[str, object]]) -> Trace:
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(label="small", rank=rank))


BASE = 1_700_000_000_000_000_001
"""A time of today in ns, with more digits than a float holds."""


def small() -> Trace:
    return trace_of(
        steps=[{"step_id": 4, "start_ns": BASE, "dur_ns": 10_000}],
        host_ops=[
            {"name": "aten::mm", "start_ns": BASE + 100, "dur_ns": 1_005, "thread": 7, "input_shapes": "2,3;3,4"},
            {"name": "aten::late", "start_ns": BASE + 600, "dur_ns": 1_000, "thread": 7},
        ],
        host_events=[{"name": "my range", "kind": "user", "start_ns": BASE + 100, "dur_ns": 1_005, "thread": 7}],
        runtime_calls=[{"api": "launch", "start_ns": BASE + 200, "dur_ns": 50, "thread": 7, "correlation": 9}],
        kernels=[
            {"name": "MatMul", "op_type": "MatMulV2", "start_ns": BASE + 300, "dur_ns": 2_001, "stream": 2,
             "correlation": 9, "host_op": 0, "launch_start_ns": BASE + 200, "aic_mac_ratio": 0.25},
            {"name": "NoTime", "start_ns": None, "dur_ns": 5, "stream": 2},
        ],
        counters=[{"time_ns": BASE + 50, "counter": "AI Core Freq", "unit": "MHz", "value": 1650.5},
                  {"time_ns": None, "counter": "AI Core Freq", "unit": "MHz", "value": 1.0}],
        memory=[{"time_ns": BASE + 7, "component": "PTA", "allocated_bytes": 5, "reserved_bytes": 9}],
    )  # fmt: skip


def test_every_event_of_a_small_trace() -> None:
    made = document(Request(run=Run(traces=(small(),))))
    events = made["traceEvents"]

    assert made["baseTimeNanoseconds"] == BASE
    assert made["displayTimeUnit"] == "ns"
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {2: "steps", 3: "host thread 7", 4: "host thread 7 (2)", 5: "stream 2"}
    assert list(made) == ["displayTimeUnit", "traceEvents", "baseTimeNanoseconds", "otherData"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0"]
    rest = [{k: v for k, v in e.items() if k != "pid"} for e in events if e["ph"] != "M"]
    assert {e["pid"] for e in events} == {1}
    assert rest == [
        {"ph": "X", "tid": 2, "ts": Decimal("0.000"), "dur": Decimal("10.000"), "name": "step 4", "cat": "step",
         "args": {"table": "steps", "row": 0, "step_id": 4}},
        # Of two calls with equal times the range encloses the operator.
        {"ph": "X", "tid": 3, "ts": Decimal("0.100"), "dur": Decimal("1.005"), "name": "my range",
         "cat": "user_annotation", "args": {"table": "host_events", "row": 0, "kind": "user"}},
        {"ph": "X", "tid": 3, "ts": Decimal("0.100"), "dur": Decimal("1.005"), "name": "aten::mm", "cat": "cpu_op",
         "args": {"table": "host_ops", "row": 0, "input_shapes": "2,3;3,4"}},
        {"ph": "X", "tid": 3, "ts": Decimal("0.200"), "dur": Decimal("0.050"), "name": "launch",
         "cat": "cuda_runtime", "args": {"table": "runtime_calls", "row": 0, "correlation": 9}},
        # It begins in aten::mm and ends after it: on a track of its own, with its own length.
        {"ph": "X", "tid": 4, "ts": Decimal("0.600"), "dur": Decimal("1.000"), "name": "aten::late", "cat": "cpu_op",
         "args": {"table": "host_ops", "row": 1}},
        {"ph": "X", "tid": 5, "ts": Decimal("0.300"), "dur": Decimal("2.001"), "name": "MatMul", "cat": "kernel",
         "args": {"table": "kernels", "row": 0, "op_type": "MatMulV2", "stream": 2, "correlation": 9, "host_op": 0,
                  "aic_mac_ratio": Decimal("0.25")}},
        {"ph": "C", "tid": 1, "ts": Decimal("0.007"), "name": "memory PTA",
         "args": {"allocated_bytes": 5, "reserved_bytes": 9}},
        {"ph": "C", "tid": 1, "ts": Decimal("0.050"), "name": "AI Core Freq (MHz)",
         "args": {"value": Decimal("1650.5")}},
        {"ph": "s", "cat": "launch", "name": "launch", "id": 1, "tid": 3, "ts": Decimal("0.200")},
        {"ph": "f", "bp": "e", "cat": "launch", "name": "launch", "id": 1, "tid": 5, "ts": Decimal("0.300")},
    ]  # fmt: skip
    assert made["otherData"]["rows_without_time"] == [{"kernels": 1, "counters": 1}]
    assert made["otherData"]["tasks_without_launch"] == [0]


def test_what_is_not_drawn_is_said() -> None:
    said = write_perfetto(Request(run=Run(traces=(small(),))), io.BytesIO())

    assert said == (
        "kernels: 1 row without time or value not drawn", "counters: 1 row without time or value not drawn"
    )  # fmt: skip


def test_chinese_names_of_tracks() -> None:
    events = events_of(small(), lang="zh")

    names = [e["args"]["name"] for e in events if e["name"] in ("thread_name", "process_name")]
    assert names == ["Rank 0", "迭代（step）", "Host 线程 7", "Host 线程 7 (2)", "流 2"]


def test_the_launch_is_the_operator_where_no_runtime_call_is_recorded() -> None:
    trace = trace_of(
        host_ops=[{"name": "op", "start_ns": 1_000, "dur_ns": 500, "thread": 1}],
        kernels=[
            {"name": "inside", "start_ns": 4_000, "dur_ns": 1, "host_op": 0, "launch_start_ns": 1_200},
            {"name": "late", "start_ns": 5_000, "dur_ns": 1, "host_op": 0, "launch_start_ns": 9_000},
            {"name": "unknown", "start_ns": 6_000, "dur_ns": 1, "host_op": 0},
            {"name": "alone", "start_ns": 7_000, "dur_ns": 1},
        ],
    )

    made = document(Request(run=Run(traces=(trace,))))
    begins = [ns(e["ts"]) for e in made["traceEvents"] if e["ph"] == "s"]
    # From 1000 ns on: at its launch, in the last ns of the operator that ends before, at the operator's start.
    assert begins == [200, 499, 0]
    assert made["otherData"]["tasks_without_launch"] == [1]


def test_groups_planes_copies_and_services_have_their_tracks() -> None:
    def at(start: int, **more: object) -> dict[str, object]:
        return {"start_ns": start, "dur_ns": 10, **more}

    trace = trace_of(
        comm_ops=[at(0, name="a", op="allReduce", group="hash-one", group_label="dp"), at(20, name="b", op="send")],
        comm_tasks=[at(0, kind="Notify_Wait", comm_op=0, plane=1), at(0, kind="Memcpy", comm_op=0, plane=0),
                    at(20, kind="Memcpy", comm_op=1)],
        copies=[at(0, kind="H2D", stream=3), at(5, kind="D2H", stream=3), at(50, kind=None, name="memset")],
        batches=[at(0, phase="execute", kind="decode"), at(1, phase="forward", card="0")],
        requests=[{"request": "r1", "start_ns": 0, "execution_ns": 100},
                  {"request": "r2", "start_ns": 50, "execution_ns": 100}],
        kv_cache=[{"time_ns": 3, "free_blocks": 7, "usage_ratio": 0.5}, {"time_ns": 4}],
        queue_states=[{"time_ns": 3, "waiting": 1, "running": 2}],
    )  # fmt: skip

    events = events_of(trace)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = sorted((names[e["tid"]], e["name"]) for e in events if e["ph"] == "X")
    assert slices == [
        ("batches: execute", "decode"), ("batches: forward 0", "forward"),
        ("communication ?", "b"), ("communication ?, plane ?", "Memcpy"),
        ("communication dp hash-one", "a"),
        ("communication dp hash-one, plane 0", "Memcpy"), ("communication dp hash-one, plane 1", "Notify_Wait"),
        ("copies, stream 3", "H2D"), ("copies, stream 3 (2)", "D2H"), ("copies, stream ?", "memset"),
    ]  # fmt: skip
    assert [(e["ph"], e["id"], e["name"], ns(e["ts"])) for e in events if e["ph"] in "be"] == [
        ("b", "1.4.0", "request", 0), ("e", "1.4.0", "request", 100),
        ("b", "1.4.1", "request", 50), ("e", "1.4.1", "request", 150),
    ]  # fmt: skip
    assert [e["args"]["request"] for e in events if e["ph"] == "b"] == ["r1", "r2"]
    assert [(e["name"], e["args"]) for e in events if e["ph"] == "C"] == [
        ("KV cache", {"free_blocks": 7, "usage_ratio": Decimal("0.5")}),
        ("queued requests", {"waiting": 1, "running": 2}),
    ]  # fmt: skip


def test_calls_of_cann_are_not_called_those_of_cuda() -> None:
    trace = trace_of(
        runtime_calls=[{"api": "aclrtLaunch", "start_ns": 0, "dur_ns": 1, "thread": 1}],
        copies=[{"kind": "H2D", "start_ns": 0, "dur_ns": 1}],
    )
    npu = trace.replace(meta=Meta(rank=0, device=Device(kind="npu")))

    assert [e["cat"] for e in events_of(npu) if e["ph"] == "X"] == ["cann", "copy"]
    assert [e["cat"] for e in events_of(trace) if e["ph"] == "X"] == ["cuda_runtime", "gpu_memcpy"]


def test_calls_of_python_are_drawn_once() -> None:
    call = {"name": "f", "start_ns": 0, "dur_ns": 10, "thread": 1}
    both = trace_of(python_calls=[call], host_events=[{**call, "kind": "python"}, {**call, "kind": "gc"}])
    events_only = trace_of(host_events=[{**call, "kind": "python"}])

    assert [e["args"]["table"] for e in events_of(both) if e["ph"] == "X"] == ["python_calls", "host_events"]
    assert [e["args"]["table"] for e in events_of(events_only) if e["ph"] == "X"] == ["host_events"]


def finding(**more: Any) -> Finding:
    both = Words("said", "说")
    fields = {
        "code": "H-01", "analyzer": "a", "title": Words("Idle </script>", "空闲"), "severity": Severity.HIGH,
        "share_ratio": 0.2, "evidence": (Evidence(name=both, value=1),), "cause": Words("why", "原因"),
        "remedies": (Remedy(text=Words("do", "做"), code="x=1"),), **more,
    }  # fmt: skip
    return Finding(**fields)


def test_findings_lie_on_the_ranks_they_are_about() -> None:
    mine = trace_of(0, kernels=[{"name": "k", "start_ns": 0, "dur_ns": 100}])
    other = trace_of(1, kernels=[{"name": "k", "start_ns": 0, "dur_ns": 100}])
    of_rank = finding(ranks=(0,), affected_ranks=(0,), bands=((10, 20), (30, 40)))
    of_job = finding(code="L-01", ranks=(1,), affected_ranks=(0,), bands=((5, 35),), share_ratio=None)
    no_time = finding(code="K-01")
    outcomes = (
        Outcome(analyzer="a", status="done", rank=0, trace_index=0, findings=(of_rank,)),
        Outcome(analyzer="j", status="done", scope="job", findings=(of_job, no_time)),
    )
    request = Request(run=Run(traces=(mine, other)), outcomes=outcomes, findings=(of_rank, of_job, no_time))

    made = document(request)
    events = made["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = [(names[e["pid"], e["tid"]], e["pid"], ns(e["ts"]), ns(e["dur"]), e["name"]) for e in events
             if e.get("cat") == "finding"]  # fmt: skip
    # The third crosses the first: on a second track.
    assert shown == [
        ("ascend-perf findings", 1, 5, 30, "2. [L-01] Idle </script>"),
        ("ascend-perf findings", 1, 10, 10, "1. [H-01] Idle </script>"),
        ("ascend-perf findings (2)", 1, 30, 10, "1. [H-01] Idle </script>"),
        ("ascend-perf findings", 2, 5, 30, "2. [L-01] Idle </script>"),
    ]
    args = next(e["args"] for e in events if e.get("cat") == "finding" and "H-01" in e["name"])
    assert args == {
        "table": "findings", "finding": 1, "code": "H-01", "severity": "high", "title": "Idle </script>",
        "cause": "why", "remedy": "do\nx=1", "share_ratio": Decimal("0.2"), "bound_speedup": Decimal("1.25"),
    }  # fmt: skip
    assert [(f["number"], f["code"], f["share_ratio"]) for f in made["otherData"]["findings"]] == [
        (1, "H-01", Decimal("0.2")), (2, "L-01", None), (3, "K-01", Decimal("0.2")),
    ]  # fmt: skip


def test_only_what_touches_the_chosen_steps_is_drawn() -> None:
    def op(name: str, start: int, end: int) -> dict[str, object]:
        return {"name": name, "start_ns": start, "dur_ns": end - start, "thread": 1}

    trace = trace_of(
        steps=[{"step_id": 1, "start_ns": 100, "dur_ns": 100, "host_start_ns": 50}],
        host_ops=[
            op("before", 0, 49), op("into", 40, 60), op("in", 120, 130), op("at end", 200, 210), op("over", 0, 999),
        ],
        queue_states=[{"time_ns": 20, "waiting": 1}, {"time_ns": 150, "waiting": 2}],
    )  # fmt: skip

    events = events_of(trace, steps=(1,))
    assert sorted(e["name"] for e in events if e.get("cat") == "cpu_op") == ["in", "into", "over"]
    assert [e["args"]["waiting"] for e in events if e["ph"] == "C"] == [2]


def test_ranks_that_are_unknown_or_read_twice_are_processes_of_their_own() -> None:
    def of(rank: int | None) -> Trace:
        return trace_of(rank, kernels=[{"name": "k", "start_ns": 1, "dur_ns": 1}])

    events = events_of(of(0), of(0), of(3), of(None))
    assert [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"] == [
        (1, "rank 0"), (5, "rank 0"), (4, "rank 3"), (6, "trace small"),
    ]  # fmt: skip


def test_no_two_tracks_of_a_file_have_one_number_and_none_that_of_a_process() -> None:
    def of(rank: int | None) -> Trace:
        return trace_of(rank, kernels=[{"name": "k", "start_ns": 1, "dur_ns": 1, "stream": s} for s in range(3)])

    events = events_of(of(0), of(7), of(None))
    tracks = [e["tid"] for e in events if e["name"] == "thread_name"]
    assert len(set(tracks)) == len(tracks) == 9
    assert not set(tracks) & {e["pid"] for e in events}
    assert {e["tid"] for e in events if e["ph"] == "X"} == set(tracks)


def test_a_run_without_any_time_is_said() -> None:
    trace = trace_of(exported_ops=[{"op_type": "MatMul", "count": 3}])

    with pytest.raises(InputError, match="small: nothing in it has a time"):
        document(Request(run=Run(traces=(trace,))))


def test_clocks_of_the_ranks_are_put_on_one() -> None:
    """Rank 1's clock is 5 ms ahead: the ends of 20 shared calls say so."""
    def rank(number: int, ahead: int) -> Trace:
        rows: list[dict[str, object]] = [
            {"name": f"hcom_allReduce_{i}", "op": "allReduce", "group": "g", "group_size": 2, "index_in_group": i,
             "start_ns": 1_000_000 * i + ahead - 1_000 * number, "dur_ns": 400_000 + 1_000 * number, "size_bytes": 8}
            for i in range(20)
        ]  # fmt: skip
        kernels: list[dict[str, object]] = [
            {"name": "k", "start_ns": 1_000_000 * i + 500_000 + ahead, "dur_ns": 7} for i in range(20)
        ]
        steps: list[dict[str, object]] = [{"step_id": 1, "start_ns": ahead - 1_000, "dur_ns": 20_000_000}]
        made = trace_of(number, comm_ops=rows, kernels=kernels, steps=steps)
        return made.replace(meta=Meta(rank=number, world_size=2))

    made = document(Request(run=Run(traces=(rank(0, 0), rank(1, 5_000_000)))))

    clocks = made["otherData"]["clocks"]
    assert [(c["rank"], c["reference"], c["shift_ns"], c["aligned"]) for c in clocks] == [
        (0, 0, 0, True), (1, 0, 5_000_000, True),
    ]  # fmt: skip
    kernels = defaultdict(list)
    for event in made["traceEvents"]:
        if event.get("cat") == "kernel":
            kernels[event["pid"]].append(ns(event["ts"]))
    assert kernels[1] == kernels[2] == [1_000 + 1_000_000 * i + 500_000 for i in range(20)]


# ---- properties ----


@settings(max_examples=300, deadline=None)
@given(values=st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20))
def test_times_are_exact_decimals(values: list[int]) -> None:
    text = bytes(content(filled(*microseconds(np.array(values, np.int64)), "\n"))).decode()

    assert [Decimal(line) * 1000 for line in text.split()] == values
    assert all(len(line.partition(".")[2]) == 3 for line in text.split())


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=60)


@settings(max_examples=400, deadline=None)
@given(items=INTERVALS)
def test_slices_of_a_lane_nest_and_a_lane_is_taken_only_when_all_before_cross(items: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in items], np.int64)
    ends = starts + np.array([length for _, length in items], np.int64)
    order = by_start(starts, ends, np.arange(len(starts)))
    starts, ends = starts[order], ends[order]

    lane = lanes(starts, ends)

    def cross(a: int, b: int) -> bool:
        return bool(starts[a] < starts[b] < ends[a] < ends[b])

    for b in range(len(starts)):
        mine = [a for a in range(b) if lane[a] == lane[b]]
        assert not any(cross(a, b) for a in mine)
        for other in range(int(lane[b])):
            assert any(cross(a, b) for a in range(b) if lane[a] == other)


def test_more_crossings_than_lanes_are_drawn_apart() -> None:
    count = MAX_LANES + 5
    rows: list[dict[str, object]] = [
        {"name": f"k{i}", "start_ns": i, "dur_ns": 1_000, "stream": 1} for i in range(count)
    ]

    events = events_of(trace_of(kernels=rows))
    assert crossings(events) == []
    assert len([e for e in events if e["ph"] == "X"]) == MAX_LANES
    assert [e["name"] for e in events if e["ph"] == "b"] == [f"k{i}" for i in range(MAX_LANES, count)]


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=40
    )
)
def test_tracks_of_several_tables_nest_and_keep_every_length(items: list[tuple[int, int, int, int]]) -> None:
    tables: dict[str, list[dict[str, object]]] = defaultdict(list)
    for start, length, thread, which in items:
        name, key = (("host_ops", "name"), ("runtime_calls", "api"), ("python_calls", "name"))[which]
        tables[name].append({key: "x", "start_ns": start, "dur_ns": length, "thread": thread})

    events = events_of(trace_of(0, **tables))
    assert crossings(events) == []
    made = sorted((e["args"]["table"], e["args"]["row"], ns(e["dur"])) for e in events if e["ph"] == "X")
    assert made == sorted((n, i, row["dur_ns"]) for n, rows in tables.items() for i, row in enumerate(rows))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = [
        {"name": f"k{i % 7}", "start_ns": 10 * i, "dur_ns": 9, "host_op": i} for i in range(500)
    ]
    ops: list[dict[str, object]] = [
        {"name": "o", "start_ns": 10 * i, "dur_ns": 5 + i % 9, "thread": 1} for i in range(500)
    ]
    trace = trace_of(kernels=rows, host_ops=ops, queue_states=[{"time_ns": i, "waiting": i} for i in range(300)])
    whole = events_of(trace)

    assert BLOCK_ROWS > 500
    monkeypatch.setattr("ascend_perf.reports.exports.perfetto.BLOCK_ROWS", 64)
    assert events_of(trace) == whole


EDGES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 50), st.sampled_from([NULL, 2**62, -(2**62), 0]))


@settings(max_examples=200, deadline=None)
@given(items=st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=6), samples=st.lists(EDGES, max_size=3))
def test_any_times_are_drawn_exactly_or_counted(items: list[tuple[int, int]], samples: list[int]) -> None:
    kernels: list[dict[str, object]] = [{"name": "k", "start_ns": start, "dur_ns": dur} for start, dur in items]
    counted: list[dict[str, object]] = [{"time_ns": time, "waiting": 1} for time in samples]
    far = 2**62
    good = [(s, d) for s, d in items if NULL not in (s, d) and d >= 0 and abs(s) < far and d < far and s + d < far]
    timed = [time for time in samples if time != NULL and abs(time) < far]
    times = [time for start, dur in good for time in (start, start + dur)] + timed
    request = Request(run=Run(traces=(trace_of(kernels=kernels, queue_states=counted),)))

    if not times or max(times) - min(times) > 100 * 365 * 86_400 * 10**9:
        with pytest.raises(InputError):
            document(request)
        return
    made = document(request)
    base = made["baseTimeNanoseconds"]
    drawn = [(ns(e["ts"]) + base, ns(e["dur"])) for e in made["traceEvents"] if e["ph"] == "X"]
    assert sorted(drawn) == sorted(good)
    assert sorted(ns(e["ts"]) + base for e in made["traceEvents"] if e["ph"] == "C") == sorted(timed)
    lost = made["otherData"]["rows_without_time"][0]
    assert lost.get("kernels", 0) == len(items) - len(good)
    assert lost.get("queue_states", 0) == len(samples) - len(timed)


# ---- hostile texts ----


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *texts(item))]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


def test_hostile_texts_leave_a_valid_file() -> None:
    trace = hostile_trace()

    made = document(Request(run=Run(traces=(trace,))))

    drawn = [e["args"]["table"] for e in made["traceEvents"] if e["ph"] in "Xb"]
    assert {"kernels", "host_ops", "comm_tasks", "requests", "service_spans", "overlap"} <= set(drawn)
    for text in texts(made):
        assert len(text) <= 4_020
        assert not any(ord(c) < 9 or 13 < ord(c) < 32 or 127 <= ord(c) < 160 for c in text)
        assert not any(0xD800 <= ord(c) < 0xE000 or c in "\u202e\u2066\ufeff" for c in text)


@settings(max_examples=100, deadline=None)
@given(name=st.text(st.characters(), max_size=30), more=st.text(st.characters(), max_size=30))
def test_any_text_is_carried_in_json(name: str, more: str) -> None:
    trace = trace_of(kernels=[{"name": name, "op_type": more, "start_ns": 0, "dur_ns": 1}])

    (event,) = (e for e in events_of(trace) if e["ph"] == "X")
    if name.isprintable():
        assert event["name"] == name
    if more.isprintable():
        assert event["args"]["op_type"] == more


# ---- the command ----


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """Two Kineto files with one kernel each."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        kernel = {"ph": "X", "cat": "kernel", "name": f"gemm{rank}", "pid": 0, "tid": 1, "ts": 5, "dur": 30,
                  "args": {"device": 0, "stream": 1, "correlation": 9}}  # fmt: skip
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [kernel]}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))
    return folder


def test_the_command_writes_all_ranks_or_the_chosen_ones(command: Command, two_ranks: Path, tmp_path: Path) -> None:
    def exported(name: str, *more: object) -> list[str]:
        said = command("export", two_ranks, "--format", "perfetto", "-o", tmp_path / name, *more)
        assert said.code == 0, said.err
        content = (tmp_path / name).read_bytes()
        text = gzip.decompress(content) if name.endswith(".gz") else content
        return [e["name"] for e in json.loads(text)["traceEvents"] if e.get("cat") == "kernel"]

    assert exported("all.json") == ["gemm0", "gemm1"]
    assert exported("all.json.gz", "--rank", 0, "--rank", 1) == ["gemm0", "gemm1"]
    assert exported("one.json", "--rank", 1) == ["gemm1"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.json", "all.json.gz", "job", "one.json"]


def test_the_same_profile_makes_the_same_compressed_file() -> None:
    made = []
    for _ in range(2):
        target = io.BytesIO()
        write_perfetto(Request(run=Run(traces=(small(),)), name="other.json.gz"), target)
        made.append(target.getvalue())

    assert made[0] == made[1]
    assert json.loads(gzip.decompress(made[0]))["baseTimeNanoseconds"] == BASE


def test_simulated_events_are_called_so() -> None:
    trace = small().replace(meta=Meta(rank=2, data_origin="simulated", device=Device(name="Ascend <910B>")))

    made = document(Request(run=Run(traces=(trace,))))
    said = {e["name"]: e["args"] for e in made["traceEvents"] if e["name"].startswith("process_")}
    assert said["process_name"] == {"name": "rank 2 (simulated)"}
    assert said["process_labels"] == {"labels": "Ascend <910B>"}
    assert made["otherData"]["data_origin"] == "simulated"


# ---- real profiles ----

REAL = (
    "ascend-pytorch/text/level1", "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "kineto/inference-mi300/sglang_Qwen3-8B_decode.json.gz",
)  # fmt: skip
SLICES = (
    "kernels", "comm_ops", "comm_tasks", "copies", "host_ops", "runtime_calls", "python_calls", "overlap", "steps",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL)
def test_a_real_profile_has_all_of_its_time_on_tracks_that_nest(traces: Path, path: str) -> None:
    analysis = pipeline.analyze(traces / path)
    run = analysis.run

    made = document(Request(run=run, outcomes=analysis.outcomes, findings=analysis.findings))
    events = made["traceEvents"]
    assert crossings(events) == []
    drawn: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            drawn[event["pid"], event["args"]["table"]].append(ns(event["dur"]))
        elif event["ph"] == "b":
            raise AssertionError("no real profile needs slices apart from tracks")
    pids = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(pids) == len(run.traces)
    for pid, trace in zip(pids, run.traces, strict=True):
        for name in SLICES:
            table = trace[ALL[name]]
            known = (table.ints("start_ns") != NULL) & (table.ints("dur_ns") != NULL)
            assert len(drawn[pid, name]) == known.sum(), name
            assert sum(drawn[pid, name]) == table.ints("dur_ns")[known].sum(), name
    # Both ends of each arrow lie in a slice of their track.
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    edges = {track: (np.array(sorted(s for s, _ in items)), np.array(items)) for track, items in spans.items()}
    for event in events:
        if event["ph"] in "sf":
            _, items = edges[event["pid"], event["tid"]]
            at = ns(event["ts"])
            assert ((items[:, 0] <= at) & ((at < items[:, 1]) | (items[:, 0] == at))).any()
    assert len(made["otherData"]["findings"]) == len(analysis.findings)
    assert str(traces) not in json.dumps(made, default=str)


def test_the_ranks_of_alexnet_share_a_clock(traces: Path) -> None:
    run = pipeline.load(traces / "ascend-pytorch/text/level1")

    made = document(Request(run=run))
    assert [(c["rank"], c["aligned"]) for c in made["otherData"]["clocks"]] == [(0, True), (1, True)]
    ends = defaultdict(list)
    for event in made["traceEvents"]:
        if event.get("cat") == "communication":
            ends[event["pid"]].append(ns(event["ts"]) + ns(event["dur"]))
    # Four all-reduces: on one clock their ends are within some tens of us.
    assert len(ends[1]) == len(ends[2]) == 4
    assert max(abs(a - b) for a, b in zip(sorted(ends[1]), sorted(ends[2]), strict=True)) < 100_000


def test_our_own_reader_reads_the_file_of_one_rank_back(traces: Path, tmp_path: Path, command: Command) -> None:
    source = traces / "kineto/a100/alexnet_single.json.gz"
    target = tmp_path / "again.json.gz"

    said = command("export", source, "--format", "perfetto", "-o", target)
    before, after = (pipeline.load(path).traces[0] for path in (source, target))

    assert said.code == 0, said.err
    base = json.loads(gzip.decompress(target.read_bytes()))["baseTimeNanoseconds"]
    for name in ("kernels", "host_ops", "runtime_calls"):
        ours, theirs = after[ALL[name]], before[ALL[name]]
        assert len(ours) == len(theirs) > 0, name
        assert sorted(ours.ints("dur_ns").tolist()) == sorted(theirs.ints("dur_ns").tolist())
        assert sorted((ours.ints("start_ns") + base).tolist()) == sorted(theirs.ints("start_ns").tolist())
