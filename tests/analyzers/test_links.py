"""Links between ranks: which is slow against its peers, what it costs, and what must not be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ascend_perf.analyzers.links import links
from ascend_perf.model.finding import Outcome
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import load

MakeTrace = Callable[..., Trace]
STEP = 100_000_000
SIZE = 2_000_000


def rank(
    make_trace: MakeTrace,
    number: int,
    times: Mapping[int, int],
    *,
    size: int = SIZE,
    world: int = 4,
    known: bool = True,
    link: str = "HCCS",
) -> Trace:
    """A rank that sends 4 x `size` bytes to each peer; `times` is what each transfer takes (2 ms unless given)."""
    peers = [peer for peer in range(world) if peer != number]
    groups = (Group(name="w", label="dp", ranks=tuple(range(world))),) if known else ()
    return make_trace(
        meta=Meta(rank=number, world_size=world if known else None, device=Device(kind="npu"), groups=groups),
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": STEP}],
        kernels=[{"start_ns": 0, "dur_ns": 1000, "name": "k"}],
        comm_ops=[
            {"start_ns": 10_000_000 + 20_000_000 * at, "dur_ns": 15_000_000, "name": f"c{at}", "op": "allReduce",
             "group": "w", "index_in_group": at}
            for at in range(4)
        ],
        comm_tasks=[
            {"start_ns": 10_000_000 + 20_000_000 * at, "dur_ns": times.get(peer, 2_000_000), "kind": "Memcpy",
             "comm_op": at, "plane": plane, "src": number, "dst": peer, "transport": "SDMA", "link": link,
             "size_bytes": size}
            for at in range(4)
            for plane, peer in enumerate(peers)
        ],
    )  # fmt: skip


def verdicts(outcome: Outcome) -> list[tuple[str, str]]:
    return [(j.code, j.verdict) for j in outcome.judged]


def test_a_link_below_its_peers_is_named_with_both_ends_and_what_it_costs(make_trace: MakeTrace) -> None:
    # 1 -> 3 takes 4 ms instead of 2 ms in each of four calls: 8 ms of a step of 100 ms.
    run = Run(traces=tuple(rank(make_trace, r, {3: 4_000_000} if r == 1 else {}) for r in range(4)))

    (found,) = links.run_on_run(run).findings

    assert (found.code, found.ranks, found.affected_ranks) == ("N-06", (1, 3), (1,))
    assert found.share_ratio == pytest.approx(0.08)
    assert "link 1 -> 3 runs at" in found.title.en and "50 % below" in found.title.en


def test_slow_links_that_all_end_at_one_rank_blame_that_rank(make_trace: MakeTrace) -> None:
    slow = {0: {2: 3_000_000}, 1: {2: 3_000_000}, 3: {2: 3_000_000}}
    run = Run(traces=tuple(rank(make_trace, r, slow.get(r, {}), world=4) for r in range(4)))

    (found,) = links.run_on_run(run).findings

    assert (found.ranks, found.affected_ranks) == ((2,), (0, 1, 3))
    assert "rank 2" in found.cause.en


def test_rates_within_five_percent_are_equal(make_trace: MakeTrace) -> None:
    run = Run(traces=tuple(rank(make_trace, r, {3: 2_080_000} if r == 1 else {}) for r in range(4)))
    assert verdicts(links.run_on_run(run)) == [("N-06", "clean")]


def test_one_rank_alone_can_tell_its_own_slow_link(make_trace: MakeTrace) -> None:
    run = Run(traces=(rank(make_trace, 0, {5: 3_000_000}, world=8),))
    (found,) = links.run_on_run(run).findings
    assert found.ranks == (0, 5)
    assert found.share_ratio == pytest.approx(0.04)


def test_members_that_nobody_names_are_places_in_the_group(make_trace: MakeTrace) -> None:
    run = Run(traces=(rank(make_trace, 3, {5: 3_000_000}, world=8, known=False), rank(make_trace, 9, {}, known=False)))
    found = links.run_on_run(run)
    assert all(max(f.ranks, default=0) < 16 for f in found.findings)


@pytest.mark.parametrize(
    "slow", [{"size": 100_000}, {"link": "PCIE"}, {"size": 16 * SIZE}], ids=["little data", "other kind", "other size"]
)
def test_what_is_of_another_kind_is_not_compared(slow: dict[str, object], make_trace: MakeTrace) -> None:
    traces = [rank(make_trace, r, {}) for r in range(3)]
    other = rank(make_trace, 3, dict.fromkeys(range(3), 60000000), **slow)  # type: ignore[arg-type]
    assert links.run_on_run(Run(traces=(*traces, other))).findings == ()


def test_two_links_are_nothing_to_compare(make_trace: MakeTrace) -> None:
    run = Run(traces=tuple(rank(make_trace, r, {1: 9_000_000}, world=2) for r in range(2)))
    outcome = links.run_on_run(run)
    assert outcome.findings == ()
    assert verdicts(outcome) == [("N-06", "not_judged")]


def test_time_hidden_behind_computing_is_not_lost(make_trace: MakeTrace) -> None:
    traces = [rank(make_trace, r, {3: 4_000_000} if r == 1 else {}) for r in range(4)]
    busy = make_trace(kernels=[{"start_ns": 0, "dur_ns": STEP, "name": "k"}])
    hidden = [t.replace(tables=busy.tables) for t in traces]
    assert links.run_on_run(Run(traces=tuple(hidden))).findings == ()


def test_the_matrix_of_the_exporter_serves_without_sub_tasks(make_trace: MakeTrace) -> None:
    def one(number: int) -> Trace:
        full = rank(make_trace, number, {})
        rows = [
            {"op": "allReduce", "pick": "total", "group": "w", "src": number, "dst": peer, "transport": "HCCS",
             "size_bytes": 40_000_000, "time_ns": 4_000_000 if (number, peer) != (2, 0) else 8_000_000}
            for peer in range(4)
            if peer != number
        ]  # fmt: skip
        return full.replace(
            tables={"comm_tasks": make_trace(comm_tasks=[]).tables["comm_tasks"], **make_trace(comm_links=rows).tables}
        )

    (found,) = links.run_on_run(Run(traces=tuple(one(r) for r in range(4)))).findings
    assert found.ranks == (0, 2)
    assert found.share_ratio == pytest.approx(0.04)


@pytest.mark.parametrize(
    "job", ["qwen3-0.6b-pp2-dp2-level2", "text/level1", "text/level2", "db/level1", "db/level2"]
)  # fmt: skip
def test_real_jobs_have_no_slow_link(job: str, traces: Path) -> None:
    assert verdicts(links.run_on_run(load(traces / "ascend-pytorch" / job))) == [("N-06", "clean")]
