"""Ranks against each other: stages, pipeline waits, late ranks, and what must not be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._late_ranks import modified_z
from ascend_perf.analyzers._pipeline_ideal import schedule_of
from ascend_perf.analyzers._stages import job_of
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.findings import merge_findings, rank_findings
from ascend_perf.model.finding import Finding, Judged, Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import load
from ascend_perf.plugins import load_analyzers

MakeTrace = Callable[..., Trace]


def of(outcome: Outcome, code: str) -> Finding:
    (found,) = [f for f in outcome.findings if f.code == code]
    return found


def verdict(outcome: Outcome, code: str) -> Judged:
    (judged,) = [j for j in outcome.judged if j.code == code]
    return judged


def meta(rank: int | None, world: int = 2, groups: tuple[Group, ...] = ()) -> Meta:
    return Meta(rank=rank, world_size=world, device=Device(kind="npu"), groups=groups)


def computing(make_trace: MakeTrace, rank: int | None, dur: int, **more: object) -> Trace:
    """A rank that computes for a while in a step of 1000 ns."""
    return make_trace(
        meta=more.pop("meta", None) or meta(rank, world=8),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        kernels=[{"start_ns": 0, "dur_ns": dur, "name": "k"}],
        **more,
    )


def exported(make_trace: MakeTrace, rank: int, compute: int, wait: int, need: int, steps: int = 1) -> Trace:
    """A rank of a pipeline of two stages of which only the exporter's sums and communication.json are there."""
    stage = Group(name="pp", label="pp", ranks=(0, 2) if rank in (0, 2) else (1, 3))
    numbers = range(1, steps + 1)
    return make_trace(
        meta=meta(rank, world=4, groups=(stage,)),
        exported_steps=[
            {
                "step_id": step, "computing_ns": compute, "communication_ns": wait,
                "communication_not_overlapped_ns": wait, "free_ns": 1000 - compute - wait,
            }
            for step in numbers
        ],
        comm_ops=[
            {
                "start_ns": 1000 * (step - 1) + 100, "dur_ns": wait, "name": "sr", "op": "batchSendRecv", "group": "pp",
                "step_id": step,
            }
            for step in numbers
        ],
        comm_transfers=[{"name": "sr", "transport": "HCCS", "time_ns": need, "step_id": step} for step in numbers],
    )  # fmt: skip


def test_the_slow_stage_and_the_ranks_that_wait_for_it_are_named(make_trace: MakeTrace) -> None:
    # Stage 0 (ranks 0, 1) computes 300 ns, stage 1 (ranks 2, 3) 600 ns; stage 0 waits 400 ns for 10 ns of data.
    job = Run(
        traces=(
            exported(make_trace, 0, 300, 410, 10),
            exported(make_trace, 1, 300, 400, 10),
            exported(make_trace, 2, 600, 50, 10),
            exported(make_trace, 3, 600, 60, 10),
        )
    )

    outcome = ranks.run_on_run(job)

    stage = of(outcome, "L-02")
    assert (stage.ranks, stage.affected_ranks) == ((2, 3), (0, 1))
    assert "2.00x" in stage.title.en
    # 1 - mean 450 / max 600 of what runs at the pace of stage 1: 600 ns and its own waits of 40 and 50 ns, of 1000.
    assert stage.share_ratio == pytest.approx(0.25 * 0.645)
    bubble = of(outcome, "L-01")
    assert (bubble.ranks, bubble.affected_ranks) == ((2, 3), (0, 1))
    assert bubble.share_ratio == pytest.approx(0.4)  # rank 0: (410 - 10) / 1000
    assert bubble.title.en == (
        "Ranks 0-1 wait 390 ns – 400 ns of the 1 us step (40 %) in batchSendRecv for data that needs 10 ns "
        "(ranks 2-3 hold them up)"
    )
    assert bubble.title.zh == (
        "Rank 0-1 在单步 1 us 中于 batchSendRecv 中等待 390 ns – 400 ns（40 %），而其数据只需 10 ns（被 Rank 2-3 拖慢）"
    )
    assert verdict(outcome, "N-05").verdict == "clean"  # within each stage all ranks are equal


def test_the_share_and_the_number_of_steps_stand_in_one_bracket(make_trace: MakeTrace) -> None:
    # As above with ranks that wait alike, over two steps of the same length.
    works = ((300, 410), (300, 410), (600, 60), (600, 60))
    job = Run(traces=tuple(exported(make_trace, rank, *work, 10, steps=2) for rank, work in enumerate(works)))

    title = of(ranks.run_on_run(job), "L-01").title

    assert title.en == (
        "Ranks 0-1 wait 400 ns of the 1 us step (40 %, average of 2) in batchSendRecv for data that needs 10 ns "
        "(ranks 2-3 hold them up)"
    )
    assert title.zh == (
        "Rank 0-1 在平均单步 1 us 中于 batchSendRecv 中等待 400 ns（40 %，共 2 步），"
        "而其数据只需 10 ns（被 Rank 2-3 拖慢）"
    )


def test_a_pipeline_that_waits_little_is_clean(make_trace: MakeTrace) -> None:
    job = Run(traces=tuple(exported(make_trace, rank, 600, 50, 10) for rank in range(4)))

    outcome = ranks.run_on_run(job)

    assert outcome.findings == ()
    assert {j.verdict for j in outcome.judged} == {"clean"}


def test_one_rank_of_a_pipeline_blames_the_other_stages_though_their_files_are_not_there(
    make_trace: MakeTrace,
) -> None:
    outcome = ranks.run_on_run(Run(traces=(exported(make_trace, 0, 300, 410, 10),)))

    found = of(outcome, "L-01")
    assert (found.ranks, found.affected_ranks) == ((2,), (0,))
    assert verdict(outcome, "L-02").verdict == "not_judged"


def test_a_rank_that_computes_longer_than_its_equals_is_late(make_trace: MakeTrace) -> None:
    job = Run(traces=tuple(computing(make_trace, rank, 500 if rank != 2 else 600) for rank in range(5)))

    outcome = ranks.run_on_run(job)

    found = of(outcome, "N-05")
    assert (found.ranks, found.affected_ranks) == ((2,), (0, 1, 3, 4))
    assert found.share_ratio == pytest.approx(0.1)  # (600 - 500) / 1000
    table = outcome.tables[0]
    assert table.column("computing_ns") == (500, 500, 600, 500, 500)
    assert table.note is not None and "ranks 5-7 of the job are not in the data" in table.note.en


def test_two_slow_ranks_of_eight_are_both_named(make_trace: MakeTrace) -> None:
    # Each hides the other from a test for one outlier: 600 and 590 ns against 400.
    compute = {1: 600, 6: 590}
    job = Run(traces=tuple(computing(make_trace, rank, compute.get(rank, 400)) for rank in range(8)))

    found = of(ranks.run_on_run(job), "N-05")

    assert (found.ranks, found.affected_ranks) == ((1, 6), (0, 2, 3, 4, 5, 7))
    assert found.share_ratio == pytest.approx((600 - 400) / 1000)
    assert "ranks 1, 6 compute up to 50 % longer than their equals" in found.title.en.replace("Ranks", "ranks")


def test_where_most_ranks_are_slow_the_bound_is_sharing_the_work_out(make_trace: MakeTrace) -> None:
    job = Run(traces=tuple(computing(make_trace, rank, 400 if rank == 0 else 600) for rank in range(4)))

    found = of(ranks.run_on_run(job), "N-05")

    assert (found.ranks, found.affected_ranks) == ((1, 2, 3), (0,))
    assert found.share_ratio == pytest.approx((600 - 550) / 1000)


def test_ranks_within_five_percent_are_equals(make_trace: MakeTrace) -> None:
    outcome = ranks.run_on_run(Run(traces=(computing(make_trace, 0, 500), computing(make_trace, 1, 520))))

    assert outcome.findings == ()
    assert verdict(outcome, "N-05").verdict == "clean"  # 20 / 510 = 3.9 %


def test_the_rank_that_joins_last_has_the_shortest_call(make_trace: MakeTrace) -> None:
    def rank(number: int, start: int, dur: int) -> Trace:
        call = {"name": "nccl", "op": "allReduce", "group": "world", "index_in_group": 0}
        return computing(make_trace, number, 100, comm_ops=[call | {"start_ns": start, "dur_ns": dur}])

    outcome = ranks.run_on_run(Run(traces=(rank(0, 200, 500), rank(1, 600, 100), rank(2, 250, 450))))

    found = of(outcome, "N-05")
    assert (found.ranks, found.affected_ranks) == ((1,), (0, 2))
    assert found.share_ratio == pytest.approx(0.4)  # rank 0: 500 - 100


def collectives(
    make_trace: MakeTrace,
    rank: int,
    starts: list[int],
    ends: list[int],
    *,
    group: str | None,
    step: tuple[int, int] = (0, 1000),
    compute: int = 10,
) -> Trace:
    """One step (start, duration) with all-reduces [start, end) and one kernel."""

    def named(number: int) -> dict[str, object]:
        return {"group": group, "index_in_group": number} if group else {}

    return make_trace(
        steps=[{"step_id": 1, "start_ns": step[0], "dur_ns": step[1]}],
        kernels=[{"start_ns": step[0], "dur_ns": compute, "name": "k"}],
        comm_ops=[
            {"start_ns": a, "dur_ns": b - a, "name": "ncclKernel_AllReduce", "op": "allReduce", **named(n)}
            for n, (a, b) in enumerate(zip(starts, ends, strict=True))
        ],
        meta=meta(rank, world=8),
    )


@pytest.mark.parametrize("group", ["0", None])
@pytest.mark.parametrize("late", [(5,), (2, 5)])
def test_stragglers_of_eight_ranks_are_named_without_group_names_and_on_unequal_clocks(
    make_trace: MakeTrace, group: str | None, late: tuple[int, ...]
) -> None:
    # Four calls of 100 ns; all end together, the late ranks enter 60 ns late, rank r of the others r ns late.
    ends = [150 + 200 * call for call in range(4)]
    traces = []
    for rank in range(8):
        clock = 10**6 * (1 + 3 * (rank >= 4))
        starts = [end - 100 + (60 if rank in late else rank) for end in ends]
        shifted = [clock + at for at in starts], [clock + at for at in ends]
        traces.append(collectives(make_trace, rank, *shifted, group=group, step=(clock, 1000)))
    found = of(ranks.run_on_run(Run(traces=tuple(traces))), "N-05")
    assert (found.ranks, found.affected_ranks) == (late, tuple(r for r in range(8) if r not in late))
    assert found.share_ratio == 4 * 60 / 1000
    assert found.evidence[0].value == 240
    assert ("matched by their order" in found.evidence[0].where) == (group is None)


def test_who_is_late_by_turns_is_not_blamed(make_trace: MakeTrace) -> None:
    ends = [150 + 110 * call for call in range(8)]
    traces = [
        collectives(make_trace, rank, [e - 100 + 60 * (call == rank) for call, e in enumerate(ends)], ends, group="0")
        for rank in range(8)
    ]
    assert verdict(ranks.run_on_run(Run(traces=tuple(traces))), "N-05").verdict == "clean"


def test_calls_of_different_groups_are_not_compared_when_no_group_is_named(make_trace: MakeTrace) -> None:
    # Two pairs of ranks, each with communicators of its own: calls of like order end at different times.
    first = [15_000_000, 45_000_000, 80_000_000], [25_000_000, 65_000_000, 85_000_000]
    other = [10_000_000, 70_000_000, 90_000_000], [50_000_000, 78_000_000, 99_000_000]
    traces = [
        collectives(make_trace, rank, *times, group=None, step=(0, 100_000_000))
        for rank, times in enumerate([first, other])
    ]
    assert verdict(ranks.run_on_run(Run(traces=tuple(traces))), "N-05").verdict == "not_judged"


def test_a_slow_rank_that_waits_itself_is_not_said_to_be_waited_for(make_trace: MakeTrace) -> None:
    traces = (
        collectives(make_trace, 0, [800], [900], group="0", compute=100),
        collectives(make_trace, 1, [400], [900], group="0", compute=200),
    )
    outcome = ranks.run_on_run(Run(traces=traces))
    by_subject = {f.subject: f for f in outcome.findings if f.code == "N-05"}
    assert (by_subject["peers"].ranks, by_subject["peers"].affected_ranks) == ((0,), (1,))
    slow = by_subject["rank 1"]
    assert (slow.ranks, slow.affected_ranks) == ((1,), (1,))
    assert slow.title.en.endswith("it waits for rank 0")


def test_a_second_trace_of_a_rank_is_left_out_with_a_note(make_trace: MakeTrace) -> None:
    job = Run(traces=(computing(make_trace, 0, 100), computing(make_trace, 0, 900), computing(make_trace, 1, 100)))

    outcome = ranks.run_on_run(job)

    assert outcome.findings == ()
    assert outcome.tables[0].column("rank") == (0, 1)
    assert outcome.tables[0].note is not None and "left out" in outcome.tables[0].note.en


def test_traces_without_a_rank_are_never_compared(make_trace: MakeTrace) -> None:
    # Two workloads in one folder are no job.
    outcome = ranks.run_on_run(Run(traces=(computing(make_trace, None, 100), computing(make_trace, None, 900))))

    assert outcome.status == "no_data"
    assert outcome.findings == ()


def test_one_rank_alone_is_no_data(make_trace: MakeTrace) -> None:
    outcome = ranks.run_on_run(Run(traces=(computing(make_trace, 3, 100),)))

    assert outcome.status == "no_data"
    assert outcome.reason is not None and "one rank only" in outcome.reason.en


def test_modified_z_needs_four_values() -> None:
    assert modified_z([1, 2, 3]) is None
    scores = modified_z([10, 11, 12, 13, 30])
    assert scores is not None
    # Median 12, deviations 2 1 0 1 18 with median 1: 0.6745 x 18 / 1.
    assert scores[-1] == pytest.approx(12.141)


def test_ranks_are_written_as_spans() -> None:
    assert ranks_words([4, 0, 1, 2]).en == "ranks 0-2, 4"
    assert ranks_words([3]).en == "rank 3"


def test_qwen3_names_the_imbalance_and_the_waiting_ranks(traces: Path) -> None:
    """Known answers: traces/README, section 2.2 ("finding a good analyser must make")."""
    run = load(traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2")

    outcome = ranks.run_on_run(run)

    stage, bubble = of(outcome, "L-02"), of(outcome, "L-01")
    assert (stage.ranks, stage.affected_ranks) == ((2, 3), (0, 1))
    assert "1.73x" in stage.title.en
    assert (bubble.ranks, bubble.affected_ranks) == ((2, 3), (0, 1))
    assert bubble.share_ratio == pytest.approx((322.98056 - 0.8025) / 809.432, abs=2e-3)
    waits = dict(zip(outcome.tables[0].column("rank"), outcome.tables[0].column("pipeline_wait_ns"), strict=True))
    assert waits[0] == pytest.approx(313.0754e6, rel=1e-3)  # 313.8778 ms for 0.80238 ms of data
    assert waits[1] == pytest.approx(322.1781e6, rel=1e-3)  # 322.98056 ms for 0.8025 ms of data
    compute = outcome.tables[0].column("computing_ns")
    assert compute == pytest.approx((231290100, 230903720, 400448260, 401131700), abs=30)


def test_qwen3_findings_of_communication_and_ranks_do_not_claim_the_pipeline_wait_twice(traces: Path) -> None:
    run = load(traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2")
    communication = load_analyzers().parts["communication"]

    outcomes = [communication.run_on_trace(trace) for trace in run.traces] + [ranks.run_on_run(run)]
    findings = rank_findings(merge_findings([f for outcome in outcomes for f in outcome.findings]))

    assert [f.code for f in findings[:2]] == ["L-01", "L-02"]
    others = [f.share_ratio or 0 for f in findings if f.code in ("N-01", "N-05", "N-10")]
    assert max(others) < 0.16
    # On stage 0 the transfers and waits beside the pipeline take 107 and 120 of 810 ms, most of it of the dp_cp group.
    rows = ("N-01", "N-10")
    shares = {o.rank: sum(f.share_ratio or 0 for f in o.findings if f.code in rows) for o in outcomes[:2]}
    assert shares == {0: pytest.approx(0.132, abs=2e-3), 1: pytest.approx(0.148, abs=2e-3)}


def test_a_pipeline_whose_waits_are_unknown_is_not_judged(make_trace: MakeTrace) -> None:
    # A Level0 export: the calls are there, neither their sub-tasks nor their transfers are.
    stage = Group(name="pp", label="pp", ranks=(0, 1))
    call = {"start_ns": 100, "dur_ns": 800, "name": "sr", "op": "batchSendRecv", "group": "pp"}
    trace = computing(make_trace, 0, 100, meta=meta(0, groups=(stage,)), comm_ops=[call])

    judged = verdict(ranks.run_on_run(Run(traces=(trace,))), "L-01")

    assert judged.verdict == "not_judged"
    assert judged.reason is not None and "Level1" in judged.reason.en


@pytest.mark.parametrize(
    ("stage", "op", "calls", "micro"),
    [
        (1, "receive", 6, 6),  # the last stage receives once per micro-batch
        (0, "receive", 6, 6),  # the first one a gradient each
        (0, "batchSendRecv", 7, 6),  # 1 warm-up send, 5 pairs, 1 receive: m + p - 1
        (1, "batchSendRecv", 7, 6),
        (0, "send", 6, None),
        (0, "batchSendRecv", 1, None),
    ],
)
def test_micro_batches_are_counted_from_the_calls_of_the_end_stages(
    stage: int, op: str, calls: int, micro: int | None, make_trace: MakeTrace
) -> None:
    trace = make_trace(
        meta=meta(stage, world=2, groups=(Group(name="pp", label="pp", ranks=(0, 1)),)),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        kernels=[{"start_ns": 0, "dur_ns": 100, "name": "k"}],
        comm_ops=[{"start_ns": 10 * at, "dur_ns": 5, "name": f"c{at}", "op": op, "group": "pp"} for at in range(calls)],
    )
    schedule = schedule_of(job_of(Run(traces=(trace,))))
    assert (None if schedule is None else schedule.micro_batches) == micro
    if schedule is not None:
        assert schedule.is_inferred
        assert schedule.ideal_ratio == pytest.approx(1 / 7)  # (2 - 1) / (6 + 2 - 1)


def test_the_metadata_state_the_micro_batches(make_trace: MakeTrace) -> None:
    facts = Meta(
        rank=0, world_size=4, device=Device(kind="npu"), groups=(Group(name="pp", label="pp", ranks=(0, 2)),),
        parallel={"global_batch": 32, "micro_batch": 2, "data_parallel": 2, "pipeline_model_parallel": 2},
    )  # fmt: skip
    schedule = schedule_of(job_of(Run(traces=(computing(make_trace, 0, 100, meta=facts),))))
    assert schedule is not None
    assert (schedule.stages, schedule.micro_batches, schedule.is_inferred) == (2, 8, False)
