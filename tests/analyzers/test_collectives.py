"""Collectives over the ranks of a job: matching, clocks, skew, transfer, rates, who waits, retransmission."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers._collectives import Collectives, collectives_of
from ascend_perf.analyzers._stages import job_of
from ascend_perf.analyzers.collectives import collectives
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import load
from tests.conftest import build_table

MakeTrace = Callable[..., Trace]
STEP = 1_000_000_000


def rank_trace(
    rank: int,
    calls: Sequence[Mapping[str, object]],
    *,
    clock: int = 0,
    world: int = 4,
    device: Device | None = None,
    **more: Sequence[Mapping[str, object]],
) -> Trace:
    """A rank whose clock is ahead; calls are (start, end) on the true clock."""
    tables: dict[str, Sequence[Mapping[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": clock, "dur_ns": STEP}],
        "kernels": [{"start_ns": clock, "dur_ns": 10, "name": "k"}],
        "comm_ops": [
            {"name": f"c{at}", "op": "allReduce", "group": "w", "index_in_group": at, **call,
             "start_ns": int(str(call["start_ns"])) + clock}
            for at, call in enumerate(calls)
        ],
        **more,
    }  # fmt: skip
    meta = Meta(
        rank=rank, world_size=world, device=device or Device(kind="npu"),
        groups=(Group(name="w", label="dp", ranks=tuple(range(world))),),
    )  # fmt: skip
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta)


def job(arrivals: Mapping[int, Sequence[int]], ends: Sequence[int], clocks: dict[int, int] | None = None) -> Run:
    """Ranks by arrival at each call; all leave at `ends`."""
    return Run(
        traces=tuple(
            rank_trace(
                rank,
                [{"start_ns": a, "dur_ns": e - a, "size_bytes": 8000} for a, e in zip(starts, ends, strict=True)],
                clock=(clocks or {}).get(rank, 0),
            )
            for rank, starts in arrivals.items()
        )
    )


def of(run: Run) -> Collectives:
    return collectives_of(job_of(run).ranks)


def table(outcome: Outcome, name: str) -> ResultTable:
    return next(t for t in outcome.tables if t.name == name)


# Rank 2 comes 300 us after the first to call 0, rank 0 50 us late to call 1, nobody to calls 2 and 3.
ARRIVALS = {
    0: (1_000_000, 5_050_000, 8_000_000, 9_000_000),
    1: (1_100_000, 5_000_000, 8_000_000, 9_000_000),
    2: (1_300_000, 5_010_000, 8_000_000, 9_000_000),
}
ENDS = (1_400_000, 5_100_000, 8_040_000, 9_040_000)


@pytest.mark.parametrize("clocks", [{}, {1: 7_000_000, 2: -90_000_000_000}])
def test_skew_transfer_and_the_last_rank_do_not_depend_on_the_clocks(clocks: dict[int, int]) -> None:
    calls = of(job(ARRIVALS, ENDS, clocks))

    assert len(calls) == 4
    assert calls.skew_ns.tolist() == [300_000, 50_000, 0, 0]
    assert calls.transfer_ns.tolist() == [100_000, 50_000, 40_000, 40_000]
    assert calls.last[:2].tolist() == [2, 0]
    assert calls.is_late_by_clock.all()
    assert [(c.rank, c.offset_ns, c.matched) for c in calls.offsets] == [
        (0, 0, 0), (1, clocks.get(1, 0), 4), (2, clocks.get(2, 0), 4),
    ]  # fmt: skip


def test_the_table_of_waits_names_waiter_and_late_rank() -> None:
    outcome = collectives.run_on_run(job(ARRIVALS, ENDS, {2: 5_000}))

    waits = table(outcome, "rank-waits")
    rows = {
        (w, late): ns for w, late, ns in zip(*(waits.column(c) for c in ("waiter", "late", "wait_ns")), strict=True)
    }
    assert rows == {(0, 2): 300_000, (1, 2): 200_000, (1, 0): 50_000, (2, 0): 40_000}
    assert table(outcome, "clock-offsets").column("offset_ns") == (0, 0, 5_000)
    assert outcome.findings == ()


def test_rates_are_of_the_true_transfer() -> None:
    outcome = collectives.run_on_run(job(ARRIVALS, ENDS))

    row = table(outcome, "collectives")
    assert row.column("count") == (4,)
    assert row.column("label") == ("dp",)
    # 4 x 8000 bytes in 230 us; all-reduce over 4 ranks: bus = 2 * 3/4 of it.
    assert row.column("algo_bytes_per_s")[0] == pytest.approx(32_000 / 230e-6)
    assert row.column("bus_bytes_per_s")[0] == pytest.approx(1.5 * 32_000 / 230e-6)
    assert row.column("peak_ratio") == (None,)  # the device is not known


def test_the_share_of_the_peak_counts_the_links_that_the_group_uses(make_trace: MakeTrace) -> None:
    def rank(number: int) -> Trace:
        return rank_trace(
            number, [{"start_ns": 1000, "dur_ns": 1_000_000, "size_bytes": 14_000_000}], world=2,
            device=Device(kind="npu", name="Ascend910B3"),
            comm_transfers=[{"name": "c0", "transport": "HCCS", "size_bytes": 14_000_000, "time_ns": 900_000}],
        )  # fmt: skip

    row = table(collectives.run_on_run(Run(traces=(rank(0), rank(1)))), "collectives")
    # 14 GB/s of one link of seven: 196 / 7 = 28 GB/s.
    assert row.column("bus_bytes_per_s")[0] == pytest.approx(14e9)
    assert row.column("peak_ratio")[0] == pytest.approx(0.5)


def test_what_ranks_sent_stands_for_an_unknown_message(make_trace: MakeTrace) -> None:
    def rank(number: int) -> Trace:
        return rank_trace(
            number, [{"start_ns": 1000, "dur_ns": 1_000_000}], world=4,
            comm_transfers=[{"name": "c0", "transport": "HCCS", "size_bytes": 3_000_000, "time_ns": 900_000}],
        )  # fmt: skip

    row = table(collectives.run_on_run(Run(traces=(rank(0), rank(3)))), "collectives")
    assert row.column("bus_bytes_per_s")[0] == pytest.approx(3e9)
    assert row.column("algo_bytes_per_s")[0] == pytest.approx(2e9)  # / 1.5
    assert row.column("size_bytes") == (None,)


def test_clocks_that_nothing_settles_are_unknown_and_durations_decide() -> None:
    # Two calls only: an odd end could not be told from an offset.
    calls = of(job({0: (1_000_000, 3_000_000), 1: (1_400_000, 3_000_000)}, (1_500_000, 3_100_000), {1: 77_000_000}))

    assert [c.offset_ns for c in calls.offsets] == [0, None]
    assert not calls.is_late_by_clock.any()
    assert calls.skew_ns.tolist() == [400_000, 0]
    assert calls.views[int(calls.last[0])].rank == 1


def test_ends_that_scatter_settle_no_clock() -> None:
    ends = {0: (2_000_000, 6_000_000, 9_000_000), 1: (2_000_000, 9_000_000, 16_000_000)}
    run = Run(
        traces=tuple(rank_trace(r, [{"start_ns": e - 1_000_000, "dur_ns": 1_000_000} for e in ends[r]]) for r in (0, 1))
    )
    calls = of(run)
    assert calls.offsets[1].offset_ns is None
    assert calls.skew_ns.tolist() == [0, 0, 0]


def test_groups_of_one_name_but_other_members_are_not_one() -> None:
    def rank(number: int, members: tuple[int, ...]) -> Trace:
        trace = rank_trace(number, [{"start_ns": 1000, "dur_ns": 100}])
        meta = Meta(rank=number, world_size=4, device=Device(kind="npu"), groups=(Group(name="w", ranks=members),))
        return trace.replace(meta=meta)

    pairs = [(0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3))]
    calls = of(Run(traces=tuple(rank(number, members) for number, members in pairs)))
    assert len(calls) == 2
    assert [sorted(calls.place[calls.owner == at].tolist()) for at in (0, 1)] == [[0, 1], [2, 3]]


def test_missing_ranks_and_calls_are_no_match() -> None:
    traces = job(ARRIVALS, ENDS).traces
    assert len(of(Run(traces=traces[:1]))) == 0
    short = rank_trace(3, [{"start_ns": 1_000_000, "dur_ns": 400_000}])
    calls = of(Run(traces=(*traces[:1], short)))
    assert len(calls) == 1


@given(
    st.lists(st.lists(st.integers(0, 900_000), min_size=3, max_size=3), min_size=3, max_size=8),
    st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_alignment_against_the_plain_definition(arrivals: list[list[int]], clocks: list[int]) -> None:
    ends = [10_000_000 * at + 1_000_000 for at in range(len(arrivals))]
    by_rank = {r: [10_000_000 * at + call[r] for at, call in enumerate(arrivals)] for r in range(3)}
    calls = of(job(by_rank, ends, dict(enumerate(clocks))))
    for at, call in enumerate(arrivals):
        mine = calls.owner == at
        assert calls.waits[mine].tolist() == [max(call) - arrival for arrival in call]
        assert int(calls.transfer_ns[at]) == 1_000_000 - max(call)
    assert [c.offset_ns for c in calls.offsets] == [0, clocks[1] - clocks[0], clocks[2] - clocks[0]]


SECOND = 1_000_000_000


def stalled(rank: int, duration: int, moved: int, transport: str = "RDMA") -> Trace:
    trace = rank_trace(
        rank, [{"start_ns": 1000, "dur_ns": duration, "name": "slow"}], world=2,
        comm_transfers=[{"name": "slow", "transport": transport, "size_bytes": 1000, "time_ns": moved}],
    )  # fmt: skip
    return trace.replace(tables={"steps": build_table("steps", [{"step_id": 1, "start_ns": 0, "dur_ns": 10 * SECOND}])})


def test_a_transfer_of_seconds_on_all_ranks_was_sent_again() -> None:
    run = Run(traces=(stalled(0, 5 * SECOND, 4_200_000_000), stalled(1, 5 * SECOND, 4_200_000_000)))
    (found,) = collectives.run_on_run(run).findings
    assert (found.code, found.ranks) == ("N-04", (0, 1))
    assert found.share_ratio == pytest.approx(0.5)


@pytest.mark.parametrize(
    "traces",
    [
        (stalled(0, 5 * SECOND, 4_200_000_000), stalled(1, SECOND, 4_200_000_000)),  # rank 1 came late
        (stalled(0, 5 * SECOND, SECOND), stalled(1, 5 * SECOND, SECOND)),  # it waited, nothing was sent again
        (stalled(0, 5 * SECOND, 5 * SECOND, "HCCS"), stalled(1, 5 * SECOND, 5 * SECOND, "HCCS")),
    ],
)
def test_other_long_calls_are_no_retransmission(traces: tuple[Trace, ...]) -> None:
    outcome = collectives.run_on_run(Run(traces=traces))
    assert outcome.findings == ()
    assert [(j.code, j.verdict) for j in outcome.judged] == [("N-04", "clean")]


def test_the_transfers_of_a_real_pipeline_agree_between_its_pairs(traces: Path) -> None:
    outcome = collectives.run_on_run(load(traces / "ascend-pytorch" / "qwen3-0.6b-pp2-dp2-level2"))

    found = table(outcome, "collectives")
    embedding = [t for g, t in zip(found.column("group"), found.column("transfer_ns"), strict=True) if g == "embd"]
    assert embedding == [34_623_920, 34_562_720]  # two pairs of cards move the same embedding
    clocks = np.array(table(outcome, "clock-offsets").column("offset_ns"))
    assert np.abs(clocks).max() < 100_000  # one host
