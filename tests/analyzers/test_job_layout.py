"""The layout of a job, its stages and its groups by kind: what is stated, named, inferred and unknown."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ascend_perf.analyzers._job_groups import GroupOp, groups_by_kind, listed
from ascend_perf.analyzers._job_layout import layout_of
from ascend_perf.analyzers.collectives import collectives
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from tests.conftest import build_table

MakeTrace = Callable[..., Trace]
NPU = Device(kind="npu", vendor="Huawei")


def known(trace: Trace) -> dict[str, tuple[int, str]]:
    return {dimension.kind: (dimension.size, dimension.source) for dimension in layout_of([trace])}


def test_metadata_decide_before_labels(make_trace: MakeTrace) -> None:
    groups = (Group(name="a", label="tp", ranks=(0, 1)), Group(name="b", label="dp", ranks=(0, 2)))
    meta = Meta(rank=0, world_size=8, device=NPU, groups=groups, parallel={"tensor_model_parallel_size": 4})
    assert known(make_trace(meta=meta)) == {"tp": (4, "metadata"), "dp": (2, "named")}


@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), list(itertools.product((1, 2, 4), repeat=4)))
def test_data_parallel_ranks_are_what_is_left(tp: int, cp: int, dp: int, pp: int, make_trace: MakeTrace) -> None:
    sizes = {"tensor_model_parallel": tp, "context_parallel": cp, "pipeline_model_parallel": pp}
    found = known(make_trace(meta=Meta(rank=0, world_size=tp * cp * dp * pp, device=NPU, parallel=sizes)))
    assert {kind: found[kind] for kind in ("tp", "cp", "pp")} == {
        "tp": (tp, "metadata"), "cp": (cp, "metadata"), "pp": (pp, "metadata")
    }  # fmt: skip
    assert found.get("dp") == (None if tp * cp * pp == 1 else (dp, "inferred"))


def test_a_world_that_the_others_do_not_divide_tells_nothing(make_trace: MakeTrace) -> None:
    meta = Meta(rank=0, world_size=6, device=NPU, parallel={"tensor_model_parallel": 4})
    assert known(make_trace(meta=meta)) == {"tp": (4, "metadata")}
    assert known(make_trace(meta=Meta(rank=0, world_size=8))) == {}


def test_a_group_named_in_the_trace_alone_tells_its_kind(make_trace: MakeTrace) -> None:
    calls = [{"start_ns": 0, "dur_ns": 5, "name": "x", "op": "allGather", "group": "g1"}]
    meta = Meta(rank=0, world_size=8, device=NPU, groups=(Group(name="g1", label="mesh_tp", ranks=(0, 1)),))
    assert known(make_trace(meta=meta, comm_ops=calls)) == {"tp": (2, "inferred"), "dp": (4, "inferred")}


# ---- tables of a whole job -------------------------------------------------------------------------------------------


MS = 1_000_000
STEP = 100 * MS


def rank_of_job(rank: int) -> Trace:
    """Eight ranks, tp 2 x dp 2 x pp 2 in the order of Megatron.

    Stage 0 computes 20 ms, stage 1 30 ms, rank 5 1 ms more. A tp all-reduce of 64 MiB takes 4 ms, a dp one 8 ms, that
    of ranks 1 and 3 16 ms.
    """
    stage = rank // 4
    tp = (rank - rank % 2, rank - rank % 2 + 1)
    dp = tuple(sorted((rank, rank ^ 2)))
    pp = (rank % 4, rank % 4 + 4)
    groups = tuple(
        Group(name=f"{label}{members[0]}", label=label, ranks=members)
        for label, members in (("tp", tp), ("dp", dp), ("pp", pp))
    )
    compute = (20 + 10 * stage) * MS + (MS if rank == 5 else 0)
    moves = {"tp": 4 * MS, "dp": 16 * MS if dp == (1, 3) else 8 * MS}
    calls: list[dict[str, object]] = [
        {"start_ns": start, "dur_ns": moves[label], "name": f"hcom_allReduce_{label}", "op": "allReduce",
         "group": groups[at].name, "index_in_group": 0, "size_bytes": 64 << 20, "step_id": 1}
        for at, (label, start) in enumerate((("tp", 40 * MS), ("dp", 50 * MS)))
    ]  # fmt: skip
    steps: list[dict[str, object]] = [{"step_id": 1, "start_ns": 0, "dur_ns": STEP}]
    kernels: list[dict[str, object]] = [{"start_ns": 0, "dur_ns": compute, "name": "MatMul", "step_id": 1}]
    tables: dict[str, list[dict[str, object]]] = {"steps": steps, "kernels": kernels, "comm_ops": calls}
    meta = Meta(rank=rank, world_size=8, device=NPU, groups=groups)
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta)


@pytest.fixture(scope="module")
def job() -> Run:
    return Run(traces=tuple(rank_of_job(rank) for rank in range(8)))


def table(outcome: Outcome, name: str) -> dict[str, list[object]]:
    found: ResultTable = next(table for table in outcome.tables if table.name == name)
    return {column.name: list(cells) for column, cells in zip(found.columns, found.data, strict=True)}


def test_the_layout_of_a_job(job: Run) -> None:
    found = table(ranks.run_on_run(job), "job-layout")
    assert found["parallel"] == ["tp", "dp", "pp"]
    assert found["size"] == [2, 2, 2]
    assert found["parallel_from"] == ["named"] * 3


def test_the_stages_of_a_job(job: Run) -> None:
    found = table(ranks.run_on_run(job), "job-stages")
    assert found["stage"] == [0, 1]
    assert found["ranks"] == ["0-3", "4-7"]
    assert found["seen"] == [4, 4]
    assert found["computing_ns"] == [20 * MS, 30.25 * MS]
    assert found["computing_ratio"] == [pytest.approx(20 / 30.25), 1.0]
    assert found["slowest"] == [0, 5]
    # 4 + 8 ms; in stage 0 two of the four ranks move 16 ms instead of 8.
    assert found["exposed_ns"] == [16 * MS, 12 * MS]
    assert found["free_ns"] == [64 * MS, 57.75 * MS]


def test_stages_without_ranks_in_the_data_keep_their_row(job: Run) -> None:
    part = Run(traces=job.traces[:4])
    found = table(ranks.run_on_run(part), "job-stages")
    assert found["seen"] == [4, 0]
    assert found["computing_ns"] == [20 * MS, None]
    assert found["slowest"] == [0, None]
    assert found["ranks"] == ["0-3", "4-7"]


def test_groups_by_kind(job: Run) -> None:
    found = table(collectives.run_on_run(job), "job-groups")
    assert found["parallel"] == ["tp", "dp"]
    assert found["parallel_from"] == ["named", "named"]
    assert found["op"] == ["allReduce", "allReduce"]
    assert found["groups"] == [4, 4]
    assert found["group_size"] == ["2", "2"]
    assert found["count"] == [4, 4]
    assert found["time_ns"] == [4 * MS, 16 * MS]
    # All-reduce among two: the bus carries 2 (n - 1) / n = 1 times the message.
    rate = (64 << 20) / 0.004
    assert found["bus_bytes_per_s"] == [pytest.approx(rate), pytest.approx(rate / 2)]
    assert found["lowest_bytes_per_s"] == [pytest.approx(rate), pytest.approx(rate / 4)]
    assert found["lowest_ranks"] == ["0-1", "1, 3"]
    assert found["peak_ratio"] == [None, None]


def test_unknown_kinds_come_last_and_are_not_named() -> None:
    def op(kind: str | None, members: tuple[int, ...], bus: float | None, peak: float | None) -> GroupOp:
        return GroupOp(
            kind=kind, is_inferred=True, op="allReduce", ranks=members, size=len(members), count=3, time_ns=5.0,  # type: ignore[arg-type]
            skew_ns=1.0, bus_bytes_per_s=bus, transport="HCCS", peak_ratio=peak,
        )  # fmt: skip

    rows = [
        op(None, (0, 1), None, None), op("dp", (0, 4), 10e9, 0.5), op("dp", (1, 5), 30e9, 0.9),
        op("dp", (2, 3, 6), None, None), op("tp", (0, 1), 7e9, None),
    ]  # fmt: skip
    found = groups_by_kind(rows)
    columns = {column.name: list(cells) for column, cells in zip(found.columns, found.data, strict=True)}
    assert columns["parallel"] == ["tp", "dp", None]
    assert columns["parallel_from"] == ["inferred", "inferred", None]
    assert columns["groups"] == [1, 3, 1]
    assert columns["group_size"] == ["2", "2-3", "2"]
    assert columns["bus_bytes_per_s"] == [7e9, 20e9, None]
    assert columns["lowest_bytes_per_s"] == [7e9, 10e9, None]
    assert columns["lowest_ranks"] == [None, "0, 4", None]
    assert columns["peak_ratio"] == [None, 0.7, None]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((0,), "0"), ((0, 1, 2, 3), "0-3"), ((0, 4), "0, 4"), ((0, 4, 8, 12), "0, 4, 8, 12"),
        (tuple(range(0, 512, 4)), "0, 4 … 508"), ((0, 1, 5, 6, 7), "0-1, 5-7"), (tuple(range(8)), "0-7"),
    ],
)  # fmt: skip
def test_ranks_are_listed_shortly(members: tuple[int, ...], said: str) -> None:
    assert listed(members) == said
