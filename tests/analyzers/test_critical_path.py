"""The critical path against a small scheduler, by hand, and on real profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import intervals, pipeline
from ascend_perf.analyzers._path_build import path_graph
from ascend_perf.analyzers._path_elements import KINDS, Kind
from ascend_perf.analyzers._path_graph import slack_of
from ascend_perf.analyzers._path_walk import kind_ns, path_share, path_time, paths_of
from ascend_perf.analyzers._path_whatif import what_if
from ascend_perf.analyzers._steps import step_windows
from ascend_perf.analyzers.critical_path import critical_path, part_of_step
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS, COPIES, KERNELS
from ascend_perf.model.trace import Meta, Trace
from tests.conftest import build_table

LATENCY = 7
"""From a launch to the start of the task on a free stream."""
CALL = 3
"""A launch call."""
RETURN = 5
"""From the end of the work that was waited for to the return of a synchronisation."""


# ---- a list scheduler ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """A kernel of a type on a stream, launched by the host."""

    op_type: str
    stream: int
    dur: int


@dataclass(frozen=True)
class Think:
    """Host time in an operator."""

    dur: int


@dataclass(frozen=True)
class Wait:
    """The host waits for all that it has launched."""


Program = tuple[Launch | Think | Wait, ...]


@dataclass
class Schedule:
    """What happened: rows of a trace and the end."""

    kernels: list[dict[str, object]] = field(default_factory=list)
    ops: list[dict[str, object]] = field(default_factory=list)
    calls: list[dict[str, object]] = field(default_factory=list)
    end: int = 0

    def trace(self) -> Trace:
        rows = {"kernels": self.kernels, "host_ops": self.ops, "runtime_calls": self.calls}
        tables = {name: build_table(name, cells) for name, cells in rows.items() if cells}
        tables["steps"] = build_table("steps", [{"step_id": 1, "start_ns": 0, "dur_ns": self.end}])
        return Trace(tables, Meta())


def scheduled(program: Program, *, think: float = 1.0, latency: int = LATENCY, waits: bool = True) -> Schedule:
    """Runs a program: the host goes on after each launch call, streams are queues, a wait ends after all work."""
    made = Schedule()
    now = 0
    free: dict[int, int] = {}
    call = round(CALL * think)
    for item in (*program, Wait()):
        if isinstance(item, Think):
            made.ops.append({"name": "op", "thread": 1, "start_ns": now, "dur_ns": round(item.dur * think)})
            now += round(item.dur * think)
        elif isinstance(item, Launch):
            number = len(made.kernels)
            made.calls.append(
                {"api": "cudaLaunchKernel", "thread": 1, "start_ns": now, "dur_ns": call, "correlation": number}
            )
            start = max(now + call + latency, free.get(item.stream, 0))
            made.kernels.append(
                {
                    "name": f"{item.op_type} {number}", "op_type": item.op_type, "stream": item.stream,
                    "start_ns": start, "dur_ns": item.dur, "correlation": number, "launch_start_ns": now,
                    "launch_end_ns": now + call,
                }
            )  # fmt: skip
            free[item.stream] = start + item.dur
            now += call
        elif waits or item is None:
            done = max(now, *free.values()) + RETURN if free else now + RETURN
            made.calls.append({"api": "cudaDeviceSynchronize", "thread": 1, "start_ns": now, "dur_ns": done - now})
            now = done
    made.end = max(now, *free.values()) if free else now
    return made


durations = st.integers(1, 60)
launches = st.builds(Launch, st.sampled_from(["MatMul", "Add", "Cast"]), st.integers(1, 3), durations)
programs = st.lists(st.one_of(launches, launches, st.builds(Think, durations), st.just(Wait())), max_size=24).map(
    # The first launch finds an empty stream, so the trace shows the latency.
    lambda items: (Think(2), Launch("MatMul", 1, 9), *items)
)


def with_durations(program: Program, change: Callable[[int, Launch], int]) -> Program:
    """The program with the kernels' durations changed: change(number of the launch, launch)."""
    made: list[Launch | Think | Wait] = []
    number = 0
    for item in program:
        if isinstance(item, Launch):
            item = replace(item, dur=change(number, item))
            number += 1
        made.append(item)
    return tuple(made)


def halved(program: Program, op_type: str) -> Program:
    """The program with the kernels of a type in half of their time, rounded up."""
    return with_durations(program, lambda _, item: (item.dur + 1) // 2 if item.op_type == op_type else item.dur)


@settings(deadline=None)
@given(programs)
def test_the_path_adds_up_to_the_step_piece_by_piece(program: Program) -> None:
    schedule = scheduled(program)
    trace = schedule.trace()

    path = path_graph(trace)
    (one,) = paths_of(path, step_windows(trace), [0])

    assert int(one.lengths.sum()) == schedule.end
    assert one.starts.tolist() == [0, *one.ends[:-1].tolist()]
    assert (one.lengths > 0).all()
    # Nothing of this schedule is unexplained.
    assert kind_ns(one, path.elements.kind_codes())[KINDS.index(Kind.UNKNOWN)] == 0
    # A piece of a kernel lies inside of this kernel.
    for start, end, task in zip(one.starts.tolist(), one.ends.tolist(), one.task.tolist(), strict=True):
        if task >= 0:
            row = schedule.kernels[int(path.tasks.row[task])]
            assert row["start_ns"] <= start < end <= row["start_ns"] + row["dur_ns"]  # type: ignore[operator]


@settings(deadline=None)
@given(programs)
def test_what_if_is_what_the_scheduler_makes_of_the_changed_program(program: Program) -> None:
    trace = scheduled(program).trace()
    path = path_graph(trace)
    result = what_if(part_of_step(path, step_windows(trace), 0), path.elements, np.full(len(path.tasks), NULL))

    assert result.replay_ns == result.measured_ns == scheduled(program).end
    seen = set()
    for row in result.outcomes:
        assert row.gain_ns == result.replay_ns - row.step_ns >= 0
        if row.key == "twice as fast":
            seen.add(row.name)
            assert row.step_ns == scheduled(halved(program, row.name)).end
        elif row.key == "no synchronisation":
            # The waits and their return are gone; what is left ends with the host or the streams.
            assert row.step_ns == scheduled(program, waits=False).end
    assert seen == {item.op_type for item in program if isinstance(item, Launch)}


@settings(deadline=None)
@given(programs)
def test_no_dispatch_cost_leaves_streams_and_waits(program: Program) -> None:
    trace = scheduled(program).trace()
    path = path_graph(trace)
    result = what_if(part_of_step(path, step_windows(trace), 0), path.elements, np.full(len(path.tasks), NULL))

    (row,) = [row for row in result.outcomes if row.key == "no dispatch cost"]

    # No time in operators, calls and launches; the return of a synchronisation is the host's as well.
    free: dict[int, int] = {}
    now = 0
    for item in program:
        if isinstance(item, Launch):
            free[item.stream] = max(now, free.get(item.stream, 0)) + item.dur
        elif isinstance(item, Wait):
            now = max([now, *free.values()])
    assert row.step_ns == max([now, *free.values()])


@settings(deadline=None)
@given(programs, st.data())
def test_room_is_how_much_longer_a_kernel_may_get(program: Program, data: st.DataObject) -> None:
    trace = scheduled(program).trace()
    path = path_graph(trace)
    part = part_of_step(path, step_windows(trace), 0)
    slack = slack_of(part)
    number = data.draw(st.integers(0, len(trace[KERNELS]) - 1))
    (task,) = np.flatnonzero(path.tasks.row == number)
    (at,) = np.flatnonzero(part.graph.task == task)
    room = int(slack[at])

    def end_with(more: int) -> int:
        return scheduled(with_durations(program, lambda n, item: item.dur + more * (n == number))).end

    assert end_with(room) == end_with(0)
    assert end_with(room + 1) == end_with(0) + 1


@settings(deadline=None)
@given(programs)
def test_shares_of_the_path_are_those_of_its_pieces(program: Program) -> None:
    schedule = scheduled(program)
    trace = schedule.trace()
    (one,) = paths_of(path_graph(trace), step_windows(trace), [0])
    matmul = trace[KERNELS].text("op_type").equals("MatMul")
    tasks = path_graph(trace).tasks

    expected = sum(
        int(length)
        for length, task in zip(one.lengths, one.task, strict=True)
        if task >= 0 and matmul[tasks.row[task]]
    )

    assert path_share(trace, KERNELS, matmul) == pytest.approx(expected / schedule.end)
    assert path_share(trace, COMM_OPS, np.zeros(0, bool)) == 0
    kernels_ns = intervals.total(path_time(trace))
    assert kernels_ns == sum(int(n) for n, task in zip(one.lengths, one.task, strict=True) if task >= 0)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def components(outcome: Outcome, name: str = "critical-path") -> dict[str, int]:
    """Time on the path by component, classes of computing together."""
    table = table_of(outcome, name)
    found: dict[str, int] = {}
    for component, time in zip(table.column("component"), table.column("time_ns"), strict=True):
        assert isinstance(component, str) and isinstance(time, int)
        found[component] = found.get(component, 0) + time
    return {component: time for component, time in found.items() if time}


def table_of(outcome: Outcome, name: str) -> ResultTable:
    (table,) = [table for table in outcome.tables if table.name == name]
    return table


def gains(outcome: Outcome, name: str = "critical-path-what-if") -> dict[tuple[str, str | None], int]:
    table = table_of(outcome, name)
    rows = zip(table.column("kind"), table.column("name"), table.column("gain_ns"), strict=True)
    return {(str(kind), None if of is None else str(of)): int(gain or 0) for kind, of, gain in rows}


def test_work_that_hides_gains_nothing(make_trace: Callable[..., Trace]) -> None:
    # Two streams side by side: 100 us of MatMul hide 60 us of Add. The launches are long before.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 10_000, "dur_ns": 100_000}],
        kernels=[
            {"name": "m", "op_type": "MatMul", "stream": 1, "start_ns": 10_000, "dur_ns": 100_000,
             "launch_start_ns": 0, "launch_end_ns": 1_000},
            {"name": "a", "op_type": "Add", "stream": 2, "start_ns": 10_000, "dur_ns": 60_000,
             "launch_start_ns": 1_000, "launch_end_ns": 2_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    assert components(outcome) == {"computing": 100_000}
    # Half of the MatMul is 50 us, but then the Add ends last: 100 - 60.
    assert gains(outcome)["twice as fast", "MatMul"] == 40_000
    assert gains(outcome)["twice as fast", "Add"] == 0
    slack = table_of(outcome, "critical-path-slack")
    assert dict(zip(slack.column("name"), slack.column("slack_min_ns"), strict=True)) == {"MatMul": 0, "Add": 40_000}


def test_a_kernel_that_starts_when_another_stream_is_done_waited_for_it(make_trace: Callable[..., Trace]) -> None:
    # Compute, then an all-reduce on its own stream, then a kernel 2 us after its end, launched long before.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 190_000}],
        kernels=[
            {"name": "a", "op_type": "MatMul", "stream": 1, "start_ns": 0, "dur_ns": 50_000,
             "launch_start_ns": -9_000, "launch_end_ns": -8_000},
            {"name": "b", "op_type": "ApplyAdamW", "stream": 1, "start_ns": 152_000, "dur_ns": 38_000,
             "launch_start_ns": -5_000, "launch_end_ns": -4_000},
        ],
        comm_ops=[
            {"name": "hcom_allReduce__1_0_1", "op": "allReduce", "group": "dp", "stream": 9, "start_ns": 51_000,
             "dur_ns": 99_000, "launch_start_ns": -7_000, "launch_end_ns": -6_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    # 1 us from the MatMul to the all-reduce and 2 us from there to the optimizer, both inferred.
    assert components(outcome) == {
        "computing": 88_000, "collective, wait and transfer": 99_000, "after another stream": 3_000,
    }  # fmt: skip
    note = table_of(outcome, "critical-path").note
    assert note is not None and "2 waits for other streams or threads were inferred" in note.en
    # Without the all-reduce the optimizer waits for nothing but the MatMul before it on its stream.
    assert gains(outcome)["collective free", "allReduce (dp)"] == 99_000


def test_the_queue_thread_waits_for_the_thread_that_enqueues(make_trace: Callable[..., Trace]) -> None:
    # Main: an operator of 40 us whose last 2 us enqueue; queue thread: 6 us later a launch of 10 us; kernel after 4 us.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 90_000}],
        host_ops=[{"name": "aten::mm", "thread": 1, "start_ns": 0, "dur_ns": 40_000}],
        host_events=[
            {"name": "Enqueue", "kind": "enqueue", "thread": 1, "start_ns": 38_000, "dur_ns": 2_000, "correlation": 5},
            {"name": "Dequeue", "kind": "dequeue", "thread": 2, "start_ns": 46_000, "dur_ns": 10_000, "correlation": 5},
        ],
        runtime_calls=[
            {"api": "launch", "layer": "node", "thread": 2, "start_ns": 46_000, "dur_ns": 10_000, "correlation": 77}
        ],
        kernels=[
            {"name": "m", "op_type": "MatMul", "stream": 1, "start_ns": 60_000, "dur_ns": 30_000, "correlation": 77,
             "launch_start_ns": 46_000, "launch_end_ns": 56_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    # 40 us operator (enqueue included), 6 us until the queue thread took it (nothing recorded), 10 us launch.
    assert components(outcome) == {
        "computing": 30_000, "launch delay": 4_000, "host dispatch": 50_000, "host, nothing recorded": 6_000,
    }  # fmt: skip
    assert gains(outcome)["no dispatch cost", None] == 60_000


def test_a_level0_profile_finds_the_launch_in_the_queue(make_trace: Callable[..., Trace]) -> None:
    # As above, without calls of CANN: the operator's entry of the queue tells when the launch thread had it.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 90_000}],
        host_ops=[{"name": "aten::mm", "thread": 1, "start_ns": 0, "dur_ns": 40_000}],
        host_events=[
            {"name": "Enqueue", "kind": "enqueue", "thread": 1, "start_ns": 38_000, "dur_ns": 2_000, "correlation": 5},
            {"name": "Dequeue", "kind": "dequeue", "thread": 2, "start_ns": 46_000, "dur_ns": 10_000, "correlation": 5},
        ],
        kernels=[
            {"name": "m", "op_type": "MatMul", "start_ns": 60_000, "dur_ns": 30_000, "host_op": 0,
             "launch_start_ns": 0},
        ],
    )  # fmt: skip

    assert components(critical_path.run_on_trace(trace)) == {
        "computing": 30_000, "launch delay": 4_000, "host dispatch": 50_000, "host, nothing recorded": 6_000,
    }  # fmt: skip


def test_a_synchronisation_waits_until_the_queue_is_empty(make_trace: Callable[..., Trace]) -> None:
    # Main: enqueues until 4 us, then nothing of its own until the queue thread is done at 55; its call follows at 60.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
        host_ops=[{"name": "aten::item", "thread": 1, "start_ns": 0, "dur_ns": 100_000}],
        host_events=[
            {"name": "Enqueue", "kind": "enqueue", "thread": 1, "start_ns": 2_000, "dur_ns": 2_000, "correlation": 5},
            {"name": "Dequeue", "kind": "dequeue", "thread": 2, "start_ns": 10_000, "dur_ns": 45_000, "correlation": 5},
        ],
        runtime_calls=[
            {"api": "launch", "thread": 2, "start_ns": 12_000, "dur_ns": 3_000, "correlation": 7},
            {"api": "aclrtSynchronizeStream", "thread": 1, "start_ns": 60_000, "dur_ns": 2_000},
        ],
        kernels=[
            {"name": "k", "op_type": "Add", "stream": 1, "start_ns": 20_000, "dur_ns": 20_000, "correlation": 7,
             "launch_start_ns": 12_000, "launch_end_ns": 15_000},
        ],
    )  # fmt: skip

    # 4 main + 6 until the queue thread has it + 45 there + 5 main + 2 call + 38 main; the kernel hides.
    assert components(critical_path.run_on_trace(trace)) == {
        "host dispatch": 92_000, "host synchronisation": 2_000, "host, nothing recorded": 6_000,
    }  # fmt: skip


def test_a_thread_that_paused_while_another_worked_waited_for_it(make_trace: Callable[..., Trace]) -> None:
    # Forward on thread 1, backward on thread 2, then thread 1 again with the kernel that ends the step.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
        host_ops=[
            {"name": "forward", "thread": 1, "start_ns": 0, "dur_ns": 200_000},
            {"name": "backward", "thread": 2, "start_ns": 210_000, "dur_ns": 500_000},
            {"name": "step", "thread": 1, "start_ns": 730_000, "dur_ns": 100_000},
        ],
        runtime_calls=[
            {"api": "cudaLaunchKernel", "thread": 1, "start_ns": 820_000, "dur_ns": 10_000, "correlation": 1}
        ],
        kernels=[
            {"name": "adam", "op_type": "Adam", "stream": 1, "start_ns": 830_000, "dur_ns": 170_000, "correlation": 1,
             "launch_start_ns": 820_000, "launch_end_ns": 830_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    # 200 forward + 10 nothing + 500 backward + 20 nothing + 100 step, then the kernel: all on the path.
    assert components(outcome) == {
        "computing": 170_000, "host dispatch": 800_000, "host, nothing recorded": 30_000,
    }  # fmt: skip


def test_a_blocking_copy_holds_the_host_until_it_is_done(make_trace: Callable[..., Trace]) -> None:
    # The call begins at 10 us, the copy waits for the kernel until 90 us and lasts 5 us; the host goes on at 96 us.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 120_000}],
        host_ops=[{"name": "aten::item", "thread": 1, "start_ns": 0, "dur_ns": 120_000}],
        runtime_calls=[
            {"api": "cudaLaunchKernel", "thread": 1, "start_ns": 0, "dur_ns": 10_000, "correlation": 1},
            {"api": "cudaMemcpyAsync", "thread": 1, "start_ns": 10_000, "dur_ns": 86_000, "correlation": 2},
        ],
        kernels=[
            {"name": "m", "op_type": "MatMul", "stream": 1, "start_ns": 12_000, "dur_ns": 78_000, "correlation": 1,
             "launch_start_ns": 0, "launch_end_ns": 10_000},
        ],
        copies=[
            {"kind": "D2H", "stream": 1, "start_ns": 90_000, "dur_ns": 5_000, "correlation": 2,
             "launch_start_ns": 10_000, "launch_end_ns": 96_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    # 10 launch + 2 delay + 78 kernel + 5 copy + 1 return of the call + 24 rest of the operator.
    assert components(outcome) == {
        "host dispatch": 35_000, "launch delay": 2_000, "computing": 78_000, "copy": 5_000,
    }  # fmt: skip
    assert gains(outcome)["no synchronisation", None] == 25_000  # the host's 35 - 25 us run beside kernel and copy


def test_waiting_and_transfer_of_a_collective_are_told_apart(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
        kernels=[{"name": "k", "op_type": "Add", "stream": 1, "start_ns": 0, "dur_ns": 20_000}],
        comm_ops=[
            {"name": "hcom_allReduce__1_0_1", "op": "allReduce", "group": "g", "start_ns": 20_000, "dur_ns": 80_000}
        ],
        comm_tasks=[
            {"comm_op": 0, "kind": "Notify_Wait", "start_ns": 20_000, "dur_ns": 50_000, "plane": 0, "src": 0, "dst": 1,
             "transport": "LOCAL"},
            {"comm_op": 0, "kind": "Memcpy", "start_ns": 70_000, "dur_ns": 30_000, "plane": 0, "src": 0, "dst": 1,
             "transport": "SDMA", "link": "HCCS", "size_bytes": 1000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    assert components(outcome) == {"computing": 20_000, "collective wait": 50_000, "collective transfer": 30_000}
    note = table_of(outcome, "critical-path").note
    assert note is not None and "over the device only" in note.en


def test_collectives_without_kernels_have_no_path(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(comm_ops=[{"name": "a", "op": "allReduce", "start_ns": 0, "dur_ns": 9}])

    assert critical_path.run_on_trace(trace).status == "no_data"


def test_a_launch_that_begins_after_its_kernel_is_counted_and_not_used(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
        runtime_calls=[{"api": "launch", "thread": 1, "start_ns": 80_000, "dur_ns": 1_000, "correlation": 1}],
        kernels=[
            {"name": "m", "op_type": "MatMul", "stream": 1, "start_ns": 10_000, "dur_ns": 90_000, "correlation": 1,
             "launch_start_ns": 80_000, "launch_end_ns": 81_000},
        ],
    )  # fmt: skip

    outcome = critical_path.run_on_trace(trace)

    assert components(outcome) == {"computing": 90_000, "idle, unknown": 10_000}
    note = table_of(outcome, "critical-path").note
    assert note is not None and "1 launch begins after its task" in note.en


def test_kernels_that_overlap_on_one_stream_are_no_failure(make_trace: Callable[..., Trace]) -> None:
    # 30 kernels of 100 ns that start every 10 ns on one stream, as exporters write them for graphs.
    rows = [{"name": f"k{i}", "op_type": "A", "stream": 7, "start_ns": 10 * i, "dur_ns": 100} for i in range(30)]

    outcome = critical_path.run_on_trace(make_trace(kernels=rows))

    assert outcome.status == "done"
    assert sum(components(outcome).values()) == 390  # 29 x 10 + 100


def rows_of(**columns: st.SearchStrategy[object]) -> st.SearchStrategy[list[dict[str, object]]]:
    """Rows of a table in which any optional cell may be unknown."""
    return st.lists(st.fixed_dictionaries(columns), max_size=8)


times = st.sampled_from([20, 10**6, 10**15]).flatmap(lambda most: st.integers(-most, most))
lengths = st.one_of(st.just(0), st.integers(1, 90), st.integers(1, 10**6))
numbers = st.one_of(st.none(), st.integers(0, 3))
some_times = st.one_of(st.none(), times)
launch = {"launch_start_ns": some_times, "launch_end_ns": some_times, "correlation": numbers, "stream": numbers}
tables = st.fixed_dictionaries(
    {
        "kernels": rows_of(
            name=st.just("k"), op_type=st.sampled_from([None, "a", "b"]), start_ns=some_times, dur_ns=lengths,
            host_op=st.one_of(st.none(), st.integers(-2, 9)), **launch,
        ),
        "copies": rows_of(kind=st.sampled_from([None, "D2H"]), start_ns=some_times, dur_ns=lengths, **launch),
        "comm_ops": rows_of(
            name=st.just("c"), op=st.sampled_from([None, "allReduce"]), start_ns=some_times, dur_ns=lengths, **launch
        ),
        "host_ops": rows_of(name=st.just("o"), thread=numbers, start_ns=some_times, dur_ns=lengths),
        "runtime_calls": rows_of(
            api=st.sampled_from(["launch", "cudaDeviceSynchronize", "aclrtSynchronizeStream"]), thread=numbers,
            start_ns=some_times, dur_ns=lengths, correlation=numbers,
        ),
        "host_events": rows_of(
            name=st.sampled_from([None, "h"]), thread=numbers, start_ns=some_times, dur_ns=lengths,
            kind=st.sampled_from(["enqueue", "dequeue", "python", "gc", "step"]), correlation=numbers,
        ),
        "steps": rows_of(step_id=numbers, start_ns=times, dur_ns=lengths),
    }
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(tables)
def test_odd_rows_never_fail_and_paths_still_add_up(rows: dict[str, list[dict[str, object]]]) -> None:
    trace = Trace({name: build_table(name, cells) for name, cells in rows.items() if cells}, Meta())

    outcome = critical_path.run_on_trace(trace)

    assert outcome.status != "failed", outcome.reason
    if outcome.status == "done":
        windows, path = step_windows(trace), path_graph(trace)
        for at, one in enumerate(paths_of(path, windows, list(range(len(windows))))):
            assert int(one.lengths.sum()) == windows.span_ns(at)
            result = what_if(part_of_step(path, windows, at), path.elements, np.full(max(1, len(path.tasks)), NULL))
            assert result.replay_ns == result.measured_ns == windows.span_ns(at)
            assert all(row.gain_ns >= 0 for row in result.outcomes)


# ---- real profiles ---------------------------------------------------------------------------------------------------

REAL = (
    "ascend-pytorch/text/level0",
    "ascend-pytorch/text/level1",
    "ascend-pytorch/text/level2",
    "ascend-pytorch/db/level0",
    "ascend-pytorch/db/level2",
    "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "ascend-cluster/msinsight-16rank",
    "kernel-details",
    "timeline",
    "msprof-cli",
    "kineto/a100",
    "kineto/h100",
    "kineto/v100/resnet50_num_workers_0.json.gz",
    "kineto/v100/ns_resolution_rank0.json.gz",
    "kineto/mi2xx",
    "kineto/mi300",
    "kineto/multi-rank-128",
    "kineto/edge-cases",
    "kineto/inference-mi300",
)


@pytest.mark.parametrize("name", REAL)
def test_the_paths_of_real_profiles_add_up_to_their_steps(name: str, traces: Path) -> None:
    for trace in pipeline.load(traces / name).traces:
        outcome = critical_path.run_on_trace(trace)
        assert outcome.status in ("done", "no_data"), outcome.reason
        if outcome.status == "no_data":
            assert not (trace.has(KERNELS) and (trace[KERNELS].ints("start_ns") != NULL).any())
            continue
        windows = step_windows(trace)
        path = path_graph(trace)
        for at, one in enumerate(paths_of(path, windows, list(range(len(windows))))):
            assert int(one.lengths.sum()) == windows.span_ns(at)
            assert one.starts[1:].tolist() == one.ends[:-1].tolist()
        shares = table_of(outcome, "critical-path").column("share_ratio")
        assert sum(float(share or 0) for share in shares) == pytest.approx(1)
        result = what_if(part_of_step(path, windows, 0), path.elements, np.full(max(1, len(path.tasks)), NULL))
        assert result.replay_ns == result.measured_ns == windows.span_ns(0)
        assert all(0 <= row.gain_ns <= result.replay_ns for row in result.outcomes)


def test_alexnet_waits_in_its_all_reduces(traces: Path) -> None:
    (trace, *_) = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces

    outcome = critical_path.run_on_trace(trace)
    found = components(outcome)

    # All four all-reduces (README of the traces: 105991.876 us) lie on the path, nearly all of it waiting for peers.
    assert found["collective wait"] + found["collective transfer"] == 105_991_876
    assert found["collective wait"] > 0.7 * 136_581_009
    # The kernels before the last all-reduce hide behind the host and the waiting.
    assert gains(outcome)["twice as fast", "TransData"] == 0
    assert gains(outcome)["collectives free", None] <= 105_991_876


def test_qwen_has_no_host_data_and_its_one_stream_is_the_path(traces: Path) -> None:
    run = pipeline.load(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2")

    found = components(critical_path.run_on_trace(run.traces[0]))

    # README of the traces, rank 0: Computing 231290.10, Communication 420174.26 us, nothing overlaps, Free 158558.00.
    assert found["computing"] == 231_290_100
    assert found["collective wait"] + found["collective transfer"] == 420_174_260
    assert sum(found.values()) == 810_022_360
    assert critical_path.run_on_trace(run.traces[1]).status == "no_data"  # no kernels there


def test_the_path_of_owlv2_is_preprocessing_and_then_the_device(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz").traces

    outcome = critical_path.run_on_trace(trace)
    found = components(outcome)

    # README: union of computing 551451.612 us; no more of it can be on the path, and hardly any is hidden.
    assert 0.99 * 551_451_612 < found["computing"] <= 551_451_612
    elements = table_of(outcome, "critical-path-elements")
    assert elements.column("name")[0] == "<built-in function zoom_shift>"
    assert elements.column("on_path_ratio")[0] == 1
    # Preprocessing of the next image could run beside the device if the host did not wait for it.
    assert 0.2 < gains(outcome)["no synchronisation", None] / 1_211_182_252 < 0.3


def test_copies_of_a_real_profile_are_found_by_row(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz").traces

    share = path_share(trace, COPIES, np.ones(len(trace[COPIES]), bool))

    assert share == pytest.approx(components(critical_path.run_on_trace(trace))["copy"] / 1_211_182_252)
