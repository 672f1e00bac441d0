"""Exposed communication by kind of group: which row claims what, and that nothing is claimed twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ascend_perf.analyzers._group_kinds import group_kinds, kind_of_label
from ascend_perf.analyzers.communication import communication
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Group, Meta, Trace

MakeTrace = Callable[..., Trace]


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("tp", "tp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("mesh_tp", "tp"), ("cp", "cp"), ("dp_cp", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("mesh_dp_shard", "dp"), ("tp_ep", "ep"), ("exp", "ep"), ("pp", "pp"),
        ("mp", None), ("embd", None), ("default_group", None), ("temp", None), (None, None),
    ],
)  # fmt: skip
def test_the_kind_that_a_label_names(label: str | None, kind: str | None) -> None:
    assert kind_of_label(label) == kind


def rank(
    make_trace: MakeTrace, calls: list[tuple[str, str, int, int]], *, kernels: list[Mapping[str, object]] | None = None
) -> Outcome:
    """A step of 1000 ns; computing from 0 to 100, then calls of (group, op, start, duration) without sub-tasks."""
    groups = tuple(Group(name=name, label=name, ranks=(0, 1)) for name in ("tp", "dp", "ep", "pp", "embd"))
    return communication.run_on_trace(
        make_trace(
            meta=Meta(rank=0, world_size=4, device=Device(kind="npu"), groups=groups),
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
            kernels=[{"start_ns": 0, "dur_ns": 100, "name": "k", "op_type": "MatMulV3"}, *(kernels or [])],
            comm_ops=[
                {"start_ns": s, "dur_ns": d, "name": f"c{s}", "op": op, "group": g} for g, op, s, d in calls
            ],
        )
    )  # fmt: skip


def shares(outcome: Outcome) -> dict[str, float]:
    return {f.code: round(f.share_ratio or 0, 6) for f in outcome.findings}


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {j.code: j.verdict for j in outcome.judged if j.code in ("N-01", "N-09", "N-10", "E-03")}


def test_each_kind_of_group_is_a_row_and_the_rest_stays_with_n_01(make_trace: MakeTrace) -> None:
    outcome = rank(
        make_trace,
        [("tp", "allReduce", 100, 200), ("dp", "reduceScatter", 300, 150), ("ep", "alltoallv", 450, 120),
         ("embd", "allReduce", 600, 50)],
    )  # fmt: skip
    assert shares(outcome) == {"N-09": 0.2, "N-10": 0.15, "E-03": 0.12, "N-01": 0.05}
    assert set(verdicts(outcome).values()) == {"found"}


def test_calls_of_two_groups_at_one_time_are_claimed_once(make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, [("tp", "allReduce", 100, 300), ("dp", "allReduce", 200, 300)])
    # 100 to 500 is exposed: the longer claim first, 300; what is beyond it, 100.
    assert sum(shares(outcome).values()) == pytest.approx(0.4)
    assert shares(outcome)["N-09"] == 0.3


def test_hidden_communication_is_clean(make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, [("tp", "allReduce", 0, 125), ("dp", "allReduce", 20, 60)])
    assert shares(outcome) == {}  # 25 of 1000 ns
    assert verdicts(outcome) == {"N-01": "clean", "N-09": "clean", "N-10": "clean", "E-03": "clean"}


def test_up_to_a_tenth_of_the_step_is_usual_and_of_low_severity(make_trace: MakeTrace) -> None:
    for exposed_ns, severity in ((30, "low"), (99, "low"), (100, "high")):
        (found,) = rank(make_trace, [("dp", "allReduce", 100, exposed_ns)]).findings
        assert (found.code, found.severity.value, found.share_ratio) == ("N-10", severity, exposed_ns / 1000)


def test_a_small_share_of_a_kind_is_no_row_of_its_own(make_trace: MakeTrace) -> None:
    outcome = rank(make_trace, [("dp", "allReduce", 100, 100), ("tp", "allReduce", 200, 20)])
    assert shares(outcome) == {"N-10": 0.1}
    assert verdicts(outcome)["N-09"] == "clean"


def test_without_names_all_is_n_01_and_the_kinds_are_not_judged(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=Meta(rank=0, device=Device(kind="npu")),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        kernels=[{"start_ns": 0, "dur_ns": 100, "name": "k"}],
        comm_ops=[{"start_ns": 100, "dur_ns": 300, "name": "c", "op": "allReduce", "group": "123"}],
    )
    outcome = communication.run_on_trace(trace)
    assert shares(outcome) == {"N-01": 0.3}
    assert verdicts(outcome) == {"N-01": "found", "N-09": "not_judged", "N-10": "not_judged", "E-03": "clean"}
    reason = next(j.reason for j in outcome.judged if j.code == "N-10")
    assert reason is not None and "profiler_metadata.json" in reason.en


@pytest.mark.parametrize(("op_type", "code"), [("GroupedMatmul", "E-03"), ("MatMulV3", "N-01")])
def test_an_exchange_without_a_name_is_of_experts_where_experts_run(
    op_type: str, code: str, make_trace: MakeTrace
) -> None:
    outcome = rank(
        make_trace, [("embd", "alltoallv", 100, 300)],
        kernels=[{"start_ns": 50, "dur_ns": 10, "name": "g", "op_type": op_type}],
    )  # fmt: skip
    assert shares(outcome) == {code: 0.3}


def test_kinds_are_inferred_from_sizes_and_members_and_marked_so(make_trace: MakeTrace) -> None:
    groups = {"a": (0, 1), "b": (0, 2), "c": (0, 4), "d": (0, 3)}
    trace = make_trace(
        meta=Meta(
            rank=0, world_size=8, device=Device(kind="npu"),
            groups=tuple(Group(name=name, ranks=ranks) for name, ranks in groups.items()),
            parallel={"tensor_model_parallel": 2, "pipeline_model_parallel": 2, "data_parallel": 2},
        ),
        comm_ops=[{"start_ns": 0, "dur_ns": 1, "name": g, "op": "allReduce", "group": g} for g in groups],
    )  # fmt: skip
    assert group_kinds(trace) == {"a": ("tp", True), "b": ("dp", True), "c": ("pp", True)}


def normed(make_trace: MakeTrace, layers: int, dur: int, *, launches: bool = True) -> Outcome:
    """Layers of synchronised batch norm with a collective each, every 1000 ns of a step of 100 us, and one other."""
    at = [1000 * layer for layer in range(layers)]
    return communication.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="gpu")),
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100_000}],
            kernels=[{"start_ns": 0, "dur_ns": 100, "name": "k"}],
            host_ops=[{"start_ns": s, "dur_ns": 100, "name": "SyncBatchNorm"} for s in at],
            comm_ops=[
                {"start_ns": s + 200, "dur_ns": dur, "name": f"c{s}", "op": "allGather", "group": "w"}
                | ({"launch_start_ns": s + 50} if launches else {})
                for s in at
            ] + [{"start_ns": 60_000, "dur_ns": 20_000, "name": "last", "op": "allReduce", "group": "w",
                  "launch_start_ns": 59_000}],
        )
    )  # fmt: skip


def test_many_synchronised_batch_norms_take_their_calls_from_the_general_row(make_trace: MakeTrace) -> None:
    assert shares(normed(make_trace, 30, 300)) == {"N-11": 0.09, "N-01": 0.2}


def test_twenty_synchronised_batch_norms_are_allowed(make_trace: MakeTrace) -> None:
    assert shares(normed(make_trace, 20, 300)) == {"N-01": 0.26}


def test_synchronised_batch_norms_of_unknown_calls_have_no_share(make_trace: MakeTrace) -> None:
    outcome = normed(make_trace, 30, 300, launches=False)
    assert {f.code: f.share_ratio for f in outcome.findings} == {"N-11": None, "N-01": pytest.approx(0.29)}


def test_a_transfer_that_was_sent_again_is_left_to_its_own_row(make_trace: MakeTrace) -> None:
    second = 1_000_000_000
    outcome = communication.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="npu")),
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 10 * second}],
            kernels=[{"start_ns": 0, "dur_ns": second, "name": "k"}],
            comm_ops=[
                {"start_ns": second, "dur_ns": 5 * second, "name": "again", "op": "allReduce", "group": "w"},
                {"start_ns": 7 * second, "dur_ns": 2 * second, "name": "fine", "op": "allReduce", "group": "w"},
            ],
            comm_transfers=[
                {"name": "again", "transport": "RDMA", "size_bytes": 10, "time_ns": 5 * second},
                {"name": "fine", "transport": "RDMA", "size_bytes": 10, "time_ns": 2 * second},
            ],
        )
    )
    assert shares(outcome) == {"N-01": 0.2}


def test_exchanges_that_a_gathering_kernel_follows_are_of_batch_norms(make_trace: MakeTrace) -> None:
    # No launches: 30 exchanges of 300 ns, each followed by its kernel; one more call that nothing follows.
    at = [1000 * layer for layer in range(30)]
    outcome = communication.run_on_trace(
        make_trace(
            meta=Meta(rank=0, device=Device(kind="npu")),
            steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
            kernels=[
                {"start_ns": s + 500, "dur_ns": 50, "name": "k", "op_type": "SyncBatchNormGatherStatsWithCounts"}
                for s in at
            ],
            comm_ops=[
                *({"start_ns": s + 200, "dur_ns": 300, "name": f"c{s}", "op": "allReduce"} for s in at),
                {"start_ns": 600_000, "dur_ns": 200_000, "name": "last", "op": "allReduce"},
            ],
        )
    )
    # 9 us are less than 1 % of the step; the long call is exposed.
    assert shares(outcome) == {"N-01": 0.209}
    assert {j.code: j.verdict for j in outcome.judged}["N-11"] == "clean"
