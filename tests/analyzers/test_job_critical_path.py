"""The critical path over ranks: where a collective ends, the path goes on at the rank that came last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.analyzers.critical_path import critical_path
from ascend_perf.analyzers.job_critical_path import READS, job_critical_path
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Group, Meta, Trace
from tests.conftest import build_table
from tests.faults import model
from tests.faults.machine import Job, Op, simulate
from tests.faults.writer import write_job

US = 10_000
"""Unit of the small jobs in ns: far above what counts as a stream's own gap."""


def table_of(outcome: Outcome, name: str) -> ResultTable:
    assert outcome.status == "done", outcome.reason
    (table,) = [table for table in outcome.tables if table.name == name]
    return table


def components(outcome: Outcome) -> dict[str, int]:
    table = table_of(outcome, "job-critical-path")
    found: dict[str, int] = {}
    for component, time in zip(table.column("component"), table.column("time_ns"), strict=True):
        found[str(component)] = found.get(str(component), 0) + int(time or 0)
    return {component: time for component, time in found.items() if time}


def on_ranks(outcome: Outcome) -> dict[int, int]:
    table = table_of(outcome, "job-critical-path-ranks")
    return {int(r or 0): int(t or 0) for r, t in zip(table.column("rank"), table.column("time_ns"), strict=True)}


def predicted(outcome: Outcome) -> dict[tuple[str, str | None], int]:
    table = table_of(outcome, "job-critical-path-what-if")
    rows = zip(table.column("kind"), table.column("name"), table.column("step_ns"), strict=True)
    return {(str(kind), None if of is None else str(of)): int(step or 0) for kind, of, step in rows}


# ---- small jobs ------------------------------------------------------------------------------------------------------

Work = tuple[tuple[str, int], ...]
"""Kernels of a rank before a collective: (type, duration in units)."""
Program = tuple[tuple[Work, ...], ...]
"""Per phase, per rank: its work before the collective that ends the phase."""


def run_of(program: Program, transfer: int, clocks: tuple[int, ...], half: str = "") -> tuple[Run, int]:
    """The traces of ranks that compute and then reduce together, phase after phase, and the true length in ns.

    Args:
        program: the work.
        transfer: length of a collective once all are there, in units.
        clocks: how far each rank's clock is ahead, ns.
        half: type of kernels that take half of their time.
    """
    ranks = len(clocks)
    now = [0] * ranks
    rows: list[dict[str, list[dict[str, object]]]] = [{"kernels": [], "comm_ops": []} for _ in range(ranks)]
    for phase, works in enumerate(program):
        for rank, work in enumerate(works):
            for op_type, dur in work:
                ns = dur * US // (2 if op_type == half else 1)
                rows[rank]["kernels"].append(
                    {"name": op_type, "op_type": op_type, "stream": 1, "start_ns": now[rank] + clocks[rank],
                     "dur_ns": ns}
                )  # fmt: skip
                now[rank] += ns
        end = max(now) + transfer * US
        for rank in range(ranks):
            rows[rank]["comm_ops"].append(
                {"name": f"hcom_allReduce__1_{phase}_1", "op": "allReduce", "group": "g", "index_in_group": phase,
                 "stream": 9, "start_ns": now[rank] + clocks[rank], "dur_ns": end - now[rank]}
            )  # fmt: skip
        now = [end] * ranks
    traces = []
    group = Group(name="g", label="dp", ranks=tuple(range(ranks)))
    for rank in range(ranks):
        tables = {name: build_table(name, cells) for name, cells in rows[rank].items() if cells}
        tables["steps"] = build_table("steps", [{"step_id": 3, "start_ns": clocks[rank], "dur_ns": now[rank]}])
        traces.append(Trace(tables, Meta(rank=rank, world_size=ranks, groups=(group,))))
    return Run(traces=tuple(traces)), now[0]


def test_the_cause_of_a_wait_lies_on_the_late_rank() -> None:
    # Three phases of 10 units on both ranks; in the second one rank 1 has a Cast of 7 more. Collectives of 2 units.
    even = ((("MatMul", 10),), (("MatMul", 10),))
    late = ((("MatMul", 10),), (("MatMul", 10), ("Cast", 7)))
    run, length = run_of((even, late, even), 2, (0, 5_000_000))
    assert length == 43 * US  # 10 + 2 + 17 + 2 + 10 + 2

    outcome = job_critical_path.run_on_run(run)

    # No waiting: the path is at rank 1 while rank 0 waits for it.
    assert components(outcome) == {"computing": 37 * US, "collective transfer": 6 * US}
    ranks = on_ranks(outcome)
    assert sum(ranks.values()) == length
    assert ranks[1] >= 17 * US
    elements = table_of(outcome, "job-critical-path-elements")
    casts = [row for row in zip(*elements.data, strict=True) if row[2] == "Cast"]
    assert [(row[0], row[3]) for row in casts] == [(1, 7 * US)]
    # Cast in half the time: 3.5 units less. All of the transfers: 6 units.
    assert predicted(outcome)["twice as fast", "Cast"] == length - 7 * US // 2
    assert predicted(outcome)["collectives free", None] == length - 6 * US


works = st.lists(st.tuples(st.sampled_from(["MatMul", "Add"]), st.integers(1, 20)), min_size=1, max_size=3).map(tuple)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(2, 3), st.integers(1, 9))
def test_the_path_and_changes_are_those_of_the_job(data: st.DataObject, ranks: int, transfer: int) -> None:
    program = data.draw(
        st.lists(st.tuples(*[works] * ranks), min_size=3, max_size=6).map(tuple), label="program"
    )  # fmt: skip
    clocks = tuple(data.draw(st.integers(-10**9, 10**9), label="clock") for _ in range(ranks))
    run, length = run_of(program, transfer, clocks)

    outcome = job_critical_path.run_on_run(run)

    found = components(outcome)
    # Computing of the rank that comes last to each collective, and the transfers.
    slowest = sum(max(sum(dur for _, dur in work) for work in phase) for phase in program)
    assert found == {"computing": slowest * US, "collective transfer": len(program) * transfer * US}
    assert sum(on_ranks(outcome).values()) == sum(found.values()) == length
    for op_type in {kind for phase in program for work in phase for kind, _ in work}:
        assert predicted(outcome)["twice as fast", op_type] == run_of(program, transfer, clocks, op_type)[1]


def test_ranks_beside_the_path_are_counted_and_not_listed() -> None:
    # Rank 1 comes last to every call; each transfer but the last is on the way to its next kernel.
    phase = ((("MatMul", 5),), (("MatMul", 9),), (("MatMul", 4),))
    run, length = run_of((phase,) * 4, 1, (0, 10, 20))

    table = table_of(job_critical_path.run_on_run(run), "job-critical-path-ranks")

    times = dict(zip(table.column("rank"), table.column("time_ns"), strict=True))
    assert sum(map(int, times.values())) == length  # type: ignore[arg-type]
    assert int(times[1] or 0) >= 4 * 9 * US and 0 not in times
    assert all(any(row[1:]) for row in zip(*table.data, strict=True))
    note, beside = table.note, 3 - len(times)
    assert note is not None and beside >= 1
    assert note.en.endswith(f" Not listed: {beside} rank{'s' if beside > 1 else ''} that the path does not touch.")
    assert note.zh.endswith(f"另有 {beside} 张卡不在路径上，未列出。")


def test_where_the_path_touches_all_ranks_nothing_is_said_of_others() -> None:
    late = [((("MatMul", 20 if rank == turn else 2),)) for turn in range(2) for rank in range(2)]
    run, _ = run_of(((late[0], late[1]), (late[2], late[3])) * 2, 1, (0, 10))

    table = table_of(job_critical_path.run_on_run(run), "job-critical-path-ranks")

    assert sorted(table.column("rank")) == [0, 1]  # type: ignore[type-var]
    assert table.note is not None and "Not listed" not in table.note.en and "未列出" not in table.note.zh


def test_clocks_that_nothing_ties_together_are_no_data() -> None:
    # One common collective: its end alone settles no offset.
    run, _ = run_of(((((("Add", 1),)), ((("Add", 2),))),), 1, (0, 77))

    outcome = job_critical_path.run_on_run(run)

    assert outcome.status == "no_data"
    assert outcome.reason is not None and "clocks" in outcome.reason.en


def test_a_rank_without_kernels_is_left_out_and_named() -> None:
    phase = ((("MatMul", 5),), (("MatMul", 6),), (("MatMul", 4),))
    run, length = run_of((phase,) * 4, 1, (0, 10, 20))
    bare = run.traces[2].replace(tables={"kernels": build_table("kernels", [])})

    outcome = job_critical_path.run_on_run(replace(run, traces=(*run.traces[:2], bare)))

    assert sum(components(outcome).values()) == length
    note = table_of(outcome, "job-critical-path").note
    assert note is not None and "ranks 2." in note.en and "over 2 ranks" in note.en


# ---- simulated and real jobs -----------------------------------------------------------------------------------------


def _late(rank: int, factor: float) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.map_ops(lambda op: replace(op, kernels=tuple(k.heavier(factor) for k in op.kernels)), (rank,))

    return plant


def test_a_late_rank_of_a_simulated_job_holds_the_path(tmp_path: Path) -> None:
    job = model.data_parallel(1, ranks=2, steps=3)
    _late(1, 1.2)(job)
    write_job(job, simulate(job), tmp_path)

    outcome = job_critical_path.run_on_run(pipeline.load(tmp_path))

    ranks = on_ranks(outcome)
    assert ranks[1] > 0.95 * sum(ranks.values())
    # What rank 0 waits in its all-reduces is not on the path.
    assert components(outcome).get("collective wait", 0) < 0.002 * sum(ranks.values())


def test_a_change_is_predicted_as_the_simulator_has_it(tmp_path: Path) -> None:
    def halved(op: Op) -> Op:
        return replace(op, kernels=tuple(k.longer(0.5) if k.op_type == "MatMulV3" else k for k in op.kernels))

    lengths = {}
    for name in ("as it is", "halved"):
        job = model.data_parallel(3, ranks=2, steps=3)
        _late(1, 1.2)(job)
        if name == "halved":
            job.map_ops(halved)
        write_job(job, simulate(job), tmp_path / name)
        outcome = job_critical_path.run_on_run(pipeline.load(tmp_path / name))
        lengths[name] = sum(components(outcome).values())
        if name == "as it is":
            modelled = predicted(outcome)["twice as fast", "MatMulV3"]

    assert lengths["halved"] < 0.9 * lengths["as it is"]
    # Kernels of the simulator scatter by 0.4 %, operators of the host by 10 %.
    assert modelled == pytest.approx(lengths["halved"], rel=0.02)


def test_the_path_of_a_pipeline_follows_its_exchanges(tmp_path: Path) -> None:
    # Two stages of one rank each: the second has an extra layer, so the first waits for its gradients.
    job = model.pipeline(1, stages=2, replicas=1, micro=6, steps=2, extra_layers={1: 1})
    write_job(job, simulate(job), tmp_path)
    run = pipeline.load(tmp_path)

    outcome = job_critical_path.run_on_run(run)

    alone = critical_path.run_on_trace(run.traces[0])
    waits = table_of(alone, "critical-path")
    alone_ns = sum(
        int(time or 0) for part, time in zip(waits.column("component"), waits.column("time_ns"), strict=True)
        if part == "collective wait"
    )  # fmt: skip
    ranks = on_ranks(outcome)
    whole = sum(ranks.values())
    assert alone_ns > 0.2 * whole
    assert components(outcome).get("collective wait", 0) < 0.02 * whole
    assert ranks[1] > 0.6 * whole


def test_the_path_of_qwen_alternates_between_the_stages(traces: Path) -> None:
    outcome = job_critical_path.run_on_run(pipeline.load(traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2"))

    ranks = on_ranks(outcome)
    found = components(outcome)

    # Only ranks 0 and 2 have kernels. Alone, rank 0 waits 327 ms, most of it for the other stage; over both ranks what
    # is left is waiting for ranks 1 and 3.
    assert set(ranks) == {0, 2}
    assert ranks[2] > ranks[0] > 0.2 * sum(ranks.values())
    assert found.get("collective wait", 0) < 0.03 * sum(found.values())
    assert 810_022_360 <= sum(found.values()) < 812_000_000


def test_it_reads_no_more_than_it_says(tmp_path: Path) -> None:
    job = model.data_parallel(2, ranks=2, steps=2)
    write_job(job, simulate(job), tmp_path)
    run = pipeline.load(tmp_path)
    cut = [
        trace.replace(tables={name: table.keeping(READS.get(name, ())) for name, table in trace.tables.items()})
        for trace in run.traces
    ]

    outcome = job_critical_path.run_on_run(replace(run, traces=tuple(cut)))

    assert outcome.status == "done", outcome.reason
    assert outcome.tables == job_critical_path.run_on_run(run).tables


@pytest.mark.parametrize(
    "name", ["ascend-pytorch/text/level1", "ascend-pytorch/db/level1", "ascend-cluster/msinsight-16rank",
             "kineto/multi-rank-128", "ascend-pytorch/text/level0", "kineto/h100"],
)  # fmt: skip
def test_other_jobs_never_fail(name: str, traces: Path) -> None:
    outcome = job_critical_path.run_on_run(pipeline.load(traces / name))

    assert outcome.status in ("done", "no_data"), outcome.reason
