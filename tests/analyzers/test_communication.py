"""Exposed communication, late peers named from one rank's sub-tasks, packets and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.analyzers._communication import _link_rates
from ascend_perf.analyzers.communication import communication
from ascend_perf.model.finding import Finding, Judged, Outcome
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import load
from tests.conftest import build_table

MakeTrace = Callable[..., Trace]
NPU = Meta(rank=0, world_size=4, device=Device(kind="npu", vendor="ascend"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]


def of(outcome: Outcome, code: str) -> Finding:
    (found,) = [f for f in outcome.findings if f.code == code]
    return found


def verdict(outcome: Outcome, code: str) -> Judged:
    (judged,) = [j for j in outcome.judged if j.code == code]
    return judged


def wait(start: int, dur: int, dst: int, *, call: int = 0, plane: int = 0) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "kind": "Notify_Wait", "comm_op": call, "plane": plane, "src": 0, "dst": dst,
    }  # fmt: skip


def move(start: int, dur: int, dst: int, size: int, *, call: int = 0) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "kind": "Memcpy", "comm_op": call, "plane": 1, "src": 0, "dst": dst,
        "transport": "SDMA", "link": "HCCS", "size_bytes": size,
    }  # fmt: skip


def all_reduce(start: int, dur: int, **more: object) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": f"ar_{start}", "op": "allReduce", "group": "g", **more}


def test_the_late_peer_is_named_by_the_union_of_its_waits(make_trace: MakeTrace) -> None:
    # Two waits for rank 3 on two planes overlap: [100, 500) and [300, 700) are 600 ns together, not 800.
    # Rank 1 is waited for 50 ns; a minimum over planes or peers would be 50 or 0.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[{"start_ns": 0, "dur_ns": 200, "name": "k"}],
        comm_ops=[all_reduce(100, 700, group_size=4, transit_ns=90)],
        comm_tasks=[wait(100, 400, 3), wait(300, 400, 3, plane=1), wait(100, 50, 1, plane=2), move(700, 100, 3, 800)],
    )

    outcome = communication.run_on_trace(trace)

    found = of(outcome, "N-05")
    assert (found.ranks, found.affected_ranks) == ((3,), (0,))
    # Computing covers [100, 200): 500 of the 600 ns are exposed, in a step of 1000 ns. Had rank 3 come in time, the
    # transfer of [700, 800) would have run beside the kernel in [100, 200).
    assert found.share_ratio == 0.6
    assert [e.value for e in found.evidence if "by the delay" in e.name.en] == [100]
    assert [e.value for e in found.evidence[:2]] == [500, 600]
    assert "rank 3" in found.title.en and "Rank 3" in found.title.zh
    assert "90 ns" in found.title.en  # the true transfer stands beside it
    waits = next(t for t in outcome.tables if t.name == "comm-waits")
    assert waits.column("peer") == (3, 1)
    assert waits.column("wait_ns") == (600, 50)
    assert waits.column("exposed_ns") == (500, 0)


def test_waiting_that_a_late_peer_explains_is_no_exposed_transfer(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 900, group_size=4)],
        comm_tasks=[wait(0, 850, 2), move(850, 50, 2, 800)],
    )

    outcome = communication.run_on_trace(trace)

    # 900 exposed - 850 waiting for rank 2 = 50 of 1000 ns: below 10 %.
    assert verdict(outcome, "N-01").verdict == "clean"
    assert verdict(outcome, "N-05").verdict == "found"


def test_short_waits_of_a_ring_stay_exposed_communication(make_trace: MakeTrace) -> None:
    # Data moves 600 of 700 ns; the waits between the hops (40 ns = 4 % of the step) blame nobody.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 700, group_size=4)],
        comm_tasks=[wait(0, 20, 1), move(20, 300, 1, 512), wait(320, 20, 1), move(340, 300, 1, 512)],
    )

    outcome = communication.run_on_trace(trace)

    assert verdict(outcome, "N-05").verdict == "clean"
    assert of(outcome, "N-01").share_ratio == 0.7


def test_a_second_late_peer_claims_only_what_the_first_leaves(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 900, group_size=4)],
        comm_tasks=[wait(0, 600, 1), wait(500, 300, 2), wait(0, 590, 3)],
    )

    outcome = communication.run_on_trace(trace)

    shares = {f.ranks: f.share_ratio for f in outcome.findings if f.code == "N-05"}
    # Rank 2: [500, 800) less [0, 600) = 200 ns. Rank 3 is waited for during 590 of the 600 ns for rank 1.
    assert shares == {(1, 3): 0.6, (2,): 0.2}


def test_peers_that_are_late_together_are_named_together(make_trace: MakeTrace) -> None:
    # Rank 1: 600 ns, rank 2: 300 of them, rank 3: 299 of them (less than half).
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 900, group_size=4)],
        comm_tasks=[wait(0, 600, 1), wait(0, 300, 2, plane=1), wait(0, 299, 3, plane=2)],
    )

    found = of(communication.run_on_trace(trace), "N-05")

    assert (found.ranks, found.affected_ranks, found.share_ratio) == ((1, 2), (0,), 0.6)
    assert "wait for ranks 1-2, which come late to" in found.title.en


def test_the_place_in_a_group_is_mapped_to_the_global_rank(make_trace: MakeTrace) -> None:
    meta = Meta(
        rank=8, world_size=16, device=Device(kind="npu"), groups=(Group(name="g", label="tp", ranks=(8, 10, 12)),)
    )
    trace = make_trace(meta=meta, steps=STEP, comm_ops=[all_reduce(0, 900)], comm_tasks=[wait(0, 800, 2)])

    assert of(communication.run_on_trace(trace), "N-05").ranks == (12,)


def test_a_peer_of_an_unknown_group_is_named_by_its_place(make_trace: MakeTrace) -> None:
    meta = Meta(rank=8, world_size=16, device=Device(kind="npu"))
    trace = make_trace(meta=meta, steps=STEP, comm_ops=[all_reduce(0, 900, group_size=4)], comm_tasks=[wait(0, 800, 2)])

    found = of(communication.run_on_trace(trace), "N-05")

    assert found.ranks == ()
    assert found.affected_ranks == (8,)
    assert "rank 2 of group g" in found.title.en


def test_the_only_group_of_a_job_of_unknown_size_is_the_whole_job(make_trace: MakeTrace) -> None:
    # src = own place = 0 = own rank, and there is one group: places are ranks.
    meta = Meta(rank=0, device=Device(kind="npu"))
    trace = make_trace(meta=meta, steps=STEP, comm_ops=[all_reduce(0, 900)], comm_tasks=[wait(0, 800, 5)])

    assert of(communication.run_on_trace(trace), "N-05").ranks == (5,)


def test_without_sub_tasks_waiting_is_what_the_data_did_not_need(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 500), all_reduce(500, 100)],
        comm_transfers=[
            {"name": "ar_0", "transport": "HCCS", "time_ns": 80},
            {"name": "ar_0", "transport": "RDMA", "time_ns": 20},
            {"name": "ar_500", "transport": "HCCS", "time_ns": 300},  # sum over planes, longer than the call
        ],
    )

    outcome = communication.run_on_trace(trace)

    found = of(outcome, "N-05")
    # 500 - (80 + 20) = 400 ns at least; the second call needs all of its time.
    assert found.share_ratio == 0.4
    assert found.ranks == ()
    assert of(outcome, "N-01").share_ratio == pytest.approx(0.2)  # 600 exposed - 400 waiting


def test_without_any_waits_the_row_is_not_judged_and_says_what_to_collect(make_trace: MakeTrace) -> None:
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 500, size_bytes=100)])

    outcome = communication.run_on_trace(trace)

    judged = verdict(outcome, "N-05")
    assert judged.verdict == "not_judged"
    assert judged.reason is not None and "Level1" in judged.reason.en
    assert of(outcome, "N-01").share_ratio == 0.5


def test_pipeline_waits_are_left_to_the_ranks_analyzer(make_trace: MakeTrace) -> None:
    meta = Meta(rank=0, world_size=2, device=Device(kind="npu"), parallel={"pipeline_model_parallel": 2})
    trace = make_trace(
        meta=meta,
        steps=STEP,
        comm_ops=[{"start_ns": 0, "dur_ns": 800, "name": "sr", "op": "batchSendRecv", "group": "pp"}],
        comm_tasks=[wait(0, 780, 1), move(780, 20, 1, 100)],
    )

    outcome = communication.run_on_trace(trace)

    assert verdict(outcome, "N-05").verdict == "clean"
    assert verdict(outcome, "N-01").verdict == "clean"  # 800 - 780 = 20 ns are left


def test_waits_without_a_size_take_part_in_the_rate_of_rdma_with_their_time() -> None:
    common = {"comm_op": 0, "plane": 0, "transport": "RDMA", "src": 0, "dst": 1}
    tasks = build_table("comm_tasks", [
        {**common, "start_ns": 0, "dur_ns": 10, "kind": "RDMASend", "size_bytes": 1000},
        {**common, "start_ns": 10, "dur_ns": 90, "kind": "Notify_Wait", "size_bytes": None},
    ])  # fmt: skip
    assert _link_rates(tasks, np.zeros(2, np.int64), np.ones(2, bool)) == {(0, 1): 1e10}


def test_small_packets_weigh_by_time_and_not_by_number(make_trace: MakeTrace) -> None:
    def packets(*rows: tuple[int | None, int | None, int | None]) -> Trace:
        return make_trace(
            meta=NPU,
            steps=STEP,
            comm_ops=[all_reduce(0, 500)],
            comm_transfers=[{"name": "ar_0", "transport": "HCCS", "time_ns": 500}],
            comm_packets=[
                {"name": "ar_0", "transport": "HCCS", "packet_bytes": size, "count": count, "time_ns": time}
                for size, count, time in rows
            ],
        )

    many_but_quick = communication.run_on_trace(packets((1000, 900, 5), (32_000_000, 1, 495)))
    slow = communication.run_on_trace(packets((1000, 10, 400), (32_000_000, 1, 100)))

    assert verdict(many_but_quick, "N-02").verdict == "clean"
    # 80 % of the transfer time in small packets x 500 ns of transfer in 1000 ns; at the rate of the large ones their
    # bytes would need next to nothing.
    assert of(slow, "N-02").share_ratio == pytest.approx(0.4, abs=0.001)

    unknown = [(1000, 10, None), (1000, None, 7), (None, 3, 7)]
    with_gaps = communication.run_on_trace(packets((1000, 10, 400), (32_000_000, 1, 100), *unknown))
    assert of(with_gaps, "N-02").share_ratio == of(slow, "N-02").share_ratio
    for outcome in (slow, with_gaps):
        table = next(table for table in outcome.tables if table.name == "packets")
        assert table.column("count") == (10, 1) and table.column("time_ns") == (400, 100)
        assert table.column("size_bytes") == (10_000, 32_000_000)


def test_small_messages_at_the_rate_of_the_link_are_no_finding(make_trace: MakeTrace) -> None:
    """Activations of a pipeline: below 16 MB each, but nothing larger would run faster."""
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 300), all_reduce(400, 300)],
        comm_transfers=[{"name": "ar_0", "transport": "HCCS", "time_ns": 290}],
        comm_packets=[
            {"name": "ar_0", "transport": "HCCS", "packet_bytes": 8_000_000, "count": 1, "time_ns": 290},
        ],
    )

    assert verdict(communication.run_on_trace(trace), "N-02").verdict == "clean"


def test_the_latency_of_many_notifications_is_no_late_peer(make_trace: MakeTrace) -> None:
    def waits(length: int) -> Trace:
        pitch = length + 500
        return make_trace(
            meta=NPU,
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 40 * pitch}],
            comm_ops=[all_reduce(n * pitch, pitch) for n in range(40)],
            comm_tasks=[
                task
                for n in range(40)
                for task in (wait(n * pitch, length, 1, call=n), move(n * pitch + length, 500, 1, 512, call=n))
            ],
        )

    assert verdict(communication.run_on_trace(waits(1_500)), "N-05").verdict == "clean"
    assert of(communication.run_on_trace(waits(50_000)), "N-05").share_ratio == pytest.approx(50_000 / 50_500)


def test_unaligned_transfers_weigh_by_their_union(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 500)],
        comm_tasks=[move(0, 100, 1, 1000), move(50, 100, 2, 1000), move(200, 300, 3, 1024), move(500, 9, 1, 500)],
    )

    # 1000 % 512 != 0 in [0, 100) and [50, 150); 1024 is aligned, 500 is not above 512.
    assert of(communication.run_on_trace(trace), "N-03").share_ratio == 0.15


def test_an_algorithm_that_is_forced_is_remarked(make_trace: MakeTrace) -> None:
    def with_environment(**environment: str) -> Outcome:
        meta = Meta(rank=0, device=Device(kind="npu"), environment=environment)
        return communication.run_on_trace(make_trace(meta=meta, steps=STEP, comm_ops=[all_reduce(0, 5)]))

    right = with_environment(HCCL_ALGO="level0:NA;level1:ring")
    assert verdict(right, "N-08").verdict == "found"
    assert [item.value for item in of(right, "N-08").evidence] == ["level0:NA;level1:ring"]
    wrong = of(with_environment(HCCL_ALGO="Ring"), "N-08")
    assert [item.value for item in wrong.evidence] == ["Ring", "HCCL_ALGO=level0:NA;level1:ring"]
    assert verdict(with_environment(ASCEND_GLOBAL_LOG_LEVEL="3"), "N-08").verdict == "clean"
    assert verdict(with_environment(), "N-08").verdict == "not_judged"


def test_bandwidth_leaves_waiting_out(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        comm_ops=[all_reduce(0, 500, size_bytes=1000, group_size=4)],
        comm_tasks=[wait(0, 400, 1), move(400, 100, 1, 1000)],
    )

    table = next(t for t in communication.run_on_trace(trace).tables if t.name == "comm-ops")

    # 1000 bytes in 500 - 400 ns = 10 GB/s; all-reduce over 4: x 2 (4 - 1) / 4 = 15 GB/s.
    assert table.column("algo_bytes_per_s") == (1e10,)
    assert table.column("bus_bytes_per_s") == (1.5e10,)
    assert table.column("wait_ns") == (400,)
    assert table.column("transit_ns") == (100,)


def test_names_of_communicators_do_not_leak_addresses(make_trace: MakeTrace) -> None:
    name = "10.0.0.7%eth0_55000_0_1738895486152654"
    trace = make_trace(
        meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 900) | {"group": name}], comm_tasks=[wait(0, 800, 2)]
    )

    outcome = communication.run_on_trace(trace)

    assert "10.0.0.7" not in repr(outcome)


def test_calls_outside_of_every_step_do_not_count(make_trace: MakeTrace) -> None:
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=[all_reduce(5000, 500)])

    outcome = communication.run_on_trace(trace)

    assert outcome.findings == ()
    assert verdict(outcome, "N-05").verdict == "not_judged"


@pytest.mark.parametrize(
    ("folder", "late", "waiting_ms", "transit_ms"),
    [
        ("text/level1/rank0", 5, 97.890, "3.683 ms"),
        ("text/level1/rank1", 5, 92.294, None),
        ("db/level1/rank0", 6, None, None),
        ("db/level1/rank1", 6, None, None),
    ],
)
def test_the_straggler_of_the_alexnet_job_is_named_from_one_rank(
    traces: Path, folder: str, late: int, waiting_ms: float | None, transit_ms: str | None
) -> None:
    """Known answers: rival-msprof-analyze, section 1; waits summed over the trace with plain Python."""
    run = load(traces / "ascend-pytorch" / f"{folder}_ascend_pt")

    outcome = communication.run_on_trace(run.traces[0])

    found = of(outcome, "N-05")
    assert found.ranks == (late,)
    assert found.affected_ranks == (run.traces[0].meta.rank,)
    assert found.share_ratio is not None and 0.65 < found.share_ratio < 0.75
    if waiting_ms is not None:
        value = found.evidence[0].value
        assert isinstance(value, int)
        assert value / 1e6 == pytest.approx(waiting_ms, abs=0.001)
    if transit_ms is not None:
        assert transit_ms in found.title.en
    assert verdict(outcome, "N-01").verdict == "clean"


def test_level_0_text_cannot_tell_waiting_from_transfer(traces: Path) -> None:
    run = load(traces / "ascend-pytorch" / "text" / "level0" / "rank0_ascend_pt")

    outcome = communication.run_on_trace(run.traces[0])

    assert verdict(outcome, "N-05").verdict == "not_judged"
    assert of(outcome, "N-01").share_ratio == pytest.approx(81.516 / 116.251, abs=1e-3)


def test_sub_tasks_without_a_kind_tell_no_waiting(make_trace: MakeTrace) -> None:
    # A Level0 db lists the sub-tasks but names none of them.
    tasks = [{"start_ns": 0, "dur_ns": 400, "kind": "unnamed", "comm_op": 0, "size_bytes": -1}]
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 500)], comm_tasks=tasks)

    outcome = communication.run_on_trace(trace)

    assert verdict(outcome, "N-05").verdict == "not_judged"
    assert verdict(outcome, "N-03").verdict == "not_judged"


def test_shares_do_not_depend_on_the_number_of_steps(make_trace: MakeTrace) -> None:
    def repeated(times: int) -> Finding:
        trace = make_trace(
            meta=NPU,
            steps=[{"step_id": n, "start_ns": n * 1000, "dur_ns": 1000} for n in range(times)],
            kernels=[{"start_ns": n * 1000, "dur_ns": 200, "name": "k"} for n in range(times)],
            comm_ops=[all_reduce(n * 1000 + 100, 700, group_size=4) for n in range(times)],
            comm_tasks=[wait(n * 1000 + 100, 600, 3, call=n) for n in range(times)],
        )
        return of(communication.run_on_trace(trace), "N-05")

    once, often = repeated(1), repeated(20)

    # 500 ns wait beside no computing; without the wait the last 100 ns of the call would lie beside the kernel.
    assert once.share_ratio == often.share_ratio == 0.6
    assert "600 ns of the 1 us step (60 %) wait" in once.title.en
    assert "600 ns of the 1 us step (60 %, average of 20) wait" in often.title.en
    assert "100 ns of it are transfers that computing would hide" in often.title.en


def rdma(kind: str, start: int, dur: int, size: int = 0, plane: int = 0) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "kind": kind, "comm_op": 0, "plane": plane, "src": 0, "dst": 3,
        "transport": "RDMA", "link": "ROCE", "size_bytes": size,
    }  # fmt: skip


def test_waiting_for_data_over_rdma_is_transfer_and_the_handshake_before_it_is_not(make_trace: MakeTrace) -> None:
    # Two rounds on one plane: handshake of 100 and 40 ns, data of 300 and 200 ns; a handshake on another plane.
    tasks = [
        rdma("RDMASend", 0, 5, 8), rdma("Notify_Wait", 5, 100), rdma("RDMASend", 105, 5, 4096),
        rdma("RDMASend", 110, 5, 8), rdma("Notify_Wait", 115, 300),
        rdma("RDMASend", 415, 5, 8), rdma("Notify_Wait", 420, 40), rdma("RDMASend", 460, 5, 4096),
        rdma("Notify_Wait", 465, 200), rdma("Notify_Wait", 0, 60, plane=1),
    ]  # fmt: skip
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 700, group_size=4)], comm_tasks=tasks)

    outcome = communication.run_on_trace(trace)

    waits = next(t for t in outcome.tables if t.name == "comm-waits")
    # [5, 105) + [420, 460), with [0, 60) of the other plane: 105 + 40.
    assert waits.column("wait_ns") == (145,)
    assert of(outcome, "N-05").share_ratio == pytest.approx(0.145)
    assert of(outcome, "N-01").share_ratio == pytest.approx((700 - 145) / 1000)


def test_a_slow_transfer_over_rdma_blames_nobody(make_trace: MakeTrace) -> None:
    tasks = [rdma("RDMASend", 0, 5, 1 << 20), rdma("Notify_Wait", 5, 690)]
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 700, group_size=4)], comm_tasks=tasks)

    outcome = communication.run_on_trace(trace)

    assert verdict(outcome, "N-05").verdict == "clean"
    assert of(outcome, "N-01").share_ratio == 0.7


def test_collectives_without_steps_and_kernels_are_no_share_of_anything(make_trace: MakeTrace) -> None:
    # A copy of communication.json alone: the calls would otherwise be the whole of "their" step.
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": None, "dur_ns": None}],
        comm_ops=[all_reduce(0, 700, step_id=1), all_reduce(800, 100, step_id=1)],
    )

    outcome = communication.run_on_trace(trace)

    assert not outcome.findings
    assert verdict(outcome, "N-01").verdict == "not_judged"
    assert outcome.tables


def test_a_short_wait_that_is_most_of_what_is_exposed_is_of_low_severity(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU, steps=STEP, comm_ops=[all_reduce(0, 50, group_size=4)],
        comm_tasks=[wait(0, 40, 1), move(40, 10, 1, 512)],
    )  # fmt: skip
    found = of(communication.run_on_trace(trace), "N-05")
    assert (found.share_ratio, found.severity.value) == (0.04, "low")
