"""Lateness followed to the rank that is late by itself: grids of groups simulated here, pipelines, and by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers._collectives import collectives_of
from ascend_perf.analyzers._held_up import held_up
from ascend_perf.analyzers._inherited import Causes, Waits, _longest_between, job_causes
from ascend_perf.analyzers._stages import job_of
from ascend_perf.analyzers.collectives import collectives
from ascend_perf.analyzers.communication import communication
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.findings import all_findings
from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from tests.conftest import build_table

WORK, MOVE = 1_000_000, 100_000
"""Computing before each collective, and its transfer, in ns."""


class Grid:
    """Ranks in rows and columns; a step is: work, collective of the row, work, collective of the column."""

    def __init__(self, rows: int, columns: int, steps: int) -> None:
        self.rows, self.columns, self.steps = rows, columns, steps
        self.extra: dict[tuple[int, int, int], int] = {}
        """(rank, step, phase) to own delay."""

    def group(self, rank: int, phase: int) -> tuple[str, tuple[int, ...]]:
        row, column = divmod(rank, self.columns)
        if phase == 0:
            return f"row{row}", tuple(row * self.columns + c for c in range(self.columns))
        return f"column{column}", tuple(r * self.columns + column for r in range(self.rows))

    def run(self, clocks: Mapping[int, int]) -> Run:
        world = self.rows * self.columns
        now = dict.fromkeys(range(world), 0)
        kernels: dict[int, list[dict[str, object]]] = {rank: [] for rank in range(world)}
        calls: dict[int, list[dict[str, object]]] = {rank: [] for rank in range(world)}
        for step in range(self.steps):
            for phase in (0, 1):
                arrival = {}
                for rank in range(world):
                    work = WORK + self.extra.get((rank, step, phase), 0)
                    kernels[rank].append({"start_ns": now[rank] + clocks.get(rank, 0), "dur_ns": work, "name": "k"})
                    arrival[rank] = now[rank] + work
                for rank in range(world):
                    name, members = self.group(rank, phase)
                    now[rank] = max(arrival[other] for other in members) + MOVE
                    calls[rank].append(
                        {
                            "start_ns": arrival[rank] + clocks.get(rank, 0), "dur_ns": now[rank] - arrival[rank],
                            "name": f"{name}-{step}", "op": "allReduce", "group": name, "index_in_group": step,
                        }
                    )  # fmt: skip
        end = max(now.values())
        traces = []
        for rank in range(world):
            groups = tuple(Group(name=n, ranks=m) for n, m in (self.group(rank, 0), self.group(rank, 1)))
            tables: dict[str, list[dict[str, object]]] = {
                "steps": [{"step_id": 1, "start_ns": clocks.get(rank, 0), "dur_ns": end}], "kernels": kernels[rank],
                "comm_ops": calls[rank],
            }  # fmt: skip
            meta = Meta(rank=rank, world_size=world, device=Device(kind="npu"), groups=groups)
            traces.append(Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta))
        return Run(traces=tuple(traces))


def causes_of(run: Run) -> Causes:
    return job_causes(collectives_of(job_of(run).ranks))


def by_cause(causes: Causes) -> dict[int, float]:
    found: dict[int, float] = {}
    for cause, ns in zip(causes.cause.tolist(), causes.exposed_ns.tolist(), strict=True):
        found[cause] = found.get(cause, 0.0) + ns
    return found


@given(
    st.integers(2, 3), st.integers(2, 4), st.data(),
    st.lists(st.integers(-(10**12), 10**12), min_size=12, max_size=12),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_one_late_rank_is_the_cause_of_all_waiting(
    rows: int, columns: int, data: st.DataObject, clocks: list[int]
) -> None:
    grid = Grid(rows, columns, steps=4)
    late = data.draw(st.integers(0, rows * columns - 1))
    for step in range(4):
        grid.extra[late, step, data.draw(st.integers(0, 1))] = data.draw(st.integers(500_000, 9_000_000))
    causes = causes_of(grid.run(dict(enumerate(clocks))))
    assert set(causes.cause.tolist()) == {late}
    # Every rank but the late one waits as long as the late one is late; what it is late to its last column reaches
    # only that column: the record ends.
    for rank in range(rows * columns):
        is_near = rank % columns == late % columns
        reaches = sum(ns for (_, step, phase), ns in grid.extra.items() if is_near or (step, phase) != (3, 1))
        waited = causes.exposed_ns[causes.waiter == rank].sum()
        assert waited == pytest.approx(0 if rank == late else reaches, abs=1)


def test_two_late_ranks_each_cause_what_is_theirs() -> None:
    # Rank 1 (row 0) is 6 ms late to its row, rank 5 (row 1) 2 ms: at the columns row 1 waits 4 ms more.
    grid = Grid(2, 4, steps=4)
    for step in range(4):
        grid.extra[1, step, 0], grid.extra[5, step, 0] = 6_000_000, 2_000_000
    causes = causes_of(grid.run({}))
    # Row 0: three ranks wait 6 ms for rank 1. Row 1: three wait 2 ms for rank 5, four wait 4 ms because of rank 1.
    assert by_cause(causes) == pytest.approx({1: 4 * (3 * 6e6 + 4 * 4e6), 5: 4 * 3 * 2e6})
    assert causes.of(6, 2) == pytest.approx({1: 4 * 4e6})  # rank 2 comes last in their column, and is not the cause


def test_a_rank_that_is_late_by_itself_on_top_of_what_it_inherits_is_both() -> None:
    # Rank 0 delays its row by 3 ms; rank 1 of that row works 1 ms longer behind it. In the first step rank 3 waits 4 ms
    # for rank 1 and 3 of them come from rank 0. Then column 1 runs 1 ms behind column 0: rank 1 waits 2 ms for rank 0
    # in its row, and rank 3 waits 3 ms for rank 1.
    grid = Grid(2, 2, steps=4)
    for step in range(4):
        grid.extra[0, step, 0], grid.extra[1, step, 1] = 3_000_000, 1_000_000
    causes = causes_of(grid.run({}))
    assert causes.of(3, 1) == pytest.approx({0: 3e6 + 3 * 2e6, 1: 4 * 1e6})
    (held,) = [one for one in held_up(causes) if (one.waiter, one.late) == (3, 1)]
    assert (held.by, held.note.en) == (0, "rank 1 was itself held up by rank 0 (69 % of this waiting)")


def test_the_report_blames_the_cause_and_not_the_rank_in_between() -> None:
    grid = Grid(2, 2, steps=4)
    for step in range(4):
        grid.extra[0, step, 0] = 3_000_000
    run = grid.run({2: 5_000_000_000, 3: 5_000_000_000})
    outcome = ranks.run_on_run(run)
    found = next(f for f in outcome.findings if f.subject == "peers")
    # Ranks 2 and 3 wait in their columns for ranks 0 and 1, rank 1 in its row for rank 0.
    assert (found.ranks, found.affected_ranks) == ((0,), (1, 2, 3))
    assert found.title.en.endswith("in collectives that ranks 0-1 join last; rank 1 was itself held up by rank 0")
    waits = next(t for t in collectives.run_on_run(run).tables if t.name == "rank-waits")
    roots = dict(zip(zip(waits.column("waiter"), waits.column("late"), strict=True), waits.column("root"), strict=True))
    assert roots == {(1, 0): 0, (2, 0): 0, (3, 1): 0}


def stage_trace(rank: int, calls: Sequence[Mapping[str, object]], tasks: Sequence[Mapping[str, object]]) -> Trace:
    """A rank of a pipeline of two stages, two replicas; sub-tasks name the peers."""
    meta = Meta(
        rank=rank, world_size=4, device=Device(kind="npu"),
        groups=(
            Group(name="pipe", label="pp", ranks=(rank % 2, rank % 2 + 2)),
            Group(name=f"dp{rank // 2}", label="dp", ranks=(rank // 2 * 2, rank // 2 * 2 + 1)),
        ),
    )  # fmt: skip
    tables: dict[str, Sequence[Mapping[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": 0, "dur_ns": 10_000_000}],
        "kernels": [{"start_ns": 9_900_000, "dur_ns": 10_000, "name": "k"}], "comm_ops": calls, "comm_tasks": tasks,
    }  # fmt: skip
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta)


def pipeline(late_ns: int) -> Run:
    """Rank 0 sends its activation `late_ns` late; rank 2 is as late to the collective that it shares with rank 3.

    Four exchanges tie the clocks of each pair before it.
    """
    traces = []
    for rank in range(4):
        stage, replica = divmod(rank, 2)
        mine = late_ns if replica == 0 else 0
        calls: list[dict[str, object]] = []
        tasks: list[dict[str, object]] = []

        def call(
            name: str, group: str, start: int, end: int, *, wait: int = 0, calls: list[dict[str, object]] = calls,
            tasks: list[dict[str, object]] = tasks, stage: int = stage, place: int = stage, peer: int | None = None,
        ) -> None:  # fmt: skip
            if wait:
                tasks.append(
                    {"kind": "Notify_Wait", "comm_op": len(calls), "start_ns": start, "dur_ns": wait, "plane": 0,
                     "src": place, "dst": 1 - place if peer is None else peer, "transport": "LOCAL"}
                )  # fmt: skip
            tasks.append(
                {"kind": "Memcpy", "comm_op": len(calls), "start_ns": start + wait, "dur_ns": end - start - wait,
                 "plane": 0, "src": place, "dst": 1 - place if peer is None else peer, "transport": "SDMA",
                 "size_bytes": 1000}
            )  # fmt: skip
            op = "allReduce" if group.startswith("dp") else "send" if stage == 0 else "receive"
            calls.append(
                {"name": name, "op": op, "group": group, "start_ns": start, "dur_ns": end - start,
                 "index_in_group": sum(c["group"] == group for c in calls)}
            )  # fmt: skip

        for number in range(4):
            call(f"p{number}", "pipe", 100_000 * number, 100_000 * number + 50_000)
        for number in range(3):
            at = 500_000 + 100_000 * number
            call(f"d{number}", f"dp{stage}", at, at + 50_000, place=replica)
        if stage == 0:
            call("p4", "pipe", 1_000_000 + mine, 1_050_000 + mine)
        else:
            call("p4", "pipe", 1_000_000, 1_050_000 + mine, wait=mine)
            arrival = 1_500_000 + mine
            call("d3", "dp1", arrival, 1_550_000 + late_ns, place=replica, wait=late_ns - mine)
        traces.append(stage_trace(rank, calls, tasks))
    return Run(traces=tuple(traces))


def test_the_rank_behind_the_late_one_in_its_pipeline_is_not_blamed() -> None:
    run = pipeline(4_000_000)
    causes = causes_of(run)
    assert causes.of(3, 2) == pytest.approx({0: 4e6})
    outcomes: list[Outcome] = [communication.run_on_trace(trace) for trace in run.traces]
    alone = all_findings(outcomes)
    assert [f.ranks for f in alone if f.code == "N-05"] == [(2,)]  # what rank 3 alone must believe
    found = [f for f in all_findings([*outcomes, ranks.run_on_run(run)]) if f.code == "N-05"]
    assert [(f.ranks, f.affected_ranks) for f in found] == [((0,), (3,))]
    assert found[0].share_ratio == pytest.approx(0.4)
    assert "wait for rank 2" in found[0].title.en
    assert found[0].title.en.endswith("rank 2 was itself held up by rank 0 (100 % of this waiting)")
    assert found[0].cause.en.startswith("Rank 2 was itself held up by rank 0")
    assert "Rank 2 自身被 Rank 0 拖慢" in found[0].title.zh


def test_the_pipeline_is_held_up_by_the_late_rank_and_not_by_its_whole_stage() -> None:
    # Stages compute alike: rank 1, beside the late rank 0 in its stage, is not named.
    (found,) = [f for f in ranks.run_on_run(pipeline(4_000_000)).findings if f.code == "L-01"]
    assert (found.ranks, found.affected_ranks) == ((0,), (2,))
    assert "(rank 0 holds it up)" in found.title.en
    assert "lead back to rank 0, late by itself" in found.cause.en


def test_without_the_files_of_the_other_stage_the_nearest_rank_is_named() -> None:
    run = Run(traces=pipeline(4_000_000).traces[3:])
    found = [f for f in all_findings([communication.run_on_trace(t) for t in run.traces]) if f.code == "N-05"]
    assert [f.ranks for f in found] == [(2,)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=30),
    st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60)), max_size=10),
)
@settings(max_examples=100, deadline=None)
def test_the_longest_wait_of_a_window_against_a_search(
    waits: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    ends, exposed = (np.array([w[i] for w in waits], np.int64) for i in (0, 1))
    nothing = np.zeros(len(waits), np.int64)
    table = Waits(waiter=nothing, late=nothing, call=nothing, starts=nothing, ends=ends, exposed=exposed)
    begins, tos = (np.array([w[i] for w in windows], np.int64) for i in (0, 1))
    found = _longest_between(table, np.arange(len(waits)), begins, tos)
    for at, (begin, to) in enumerate(windows):
        inside = [i for i in range(len(waits)) if begin < ends[i] <= to]
        if not inside:
            assert found[at] == -1
        else:
            assert exposed[found[at]] == max(exposed[i] for i in inside)
            assert begin < ends[found[at]] <= to
