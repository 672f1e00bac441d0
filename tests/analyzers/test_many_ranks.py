"""Many ranks, no wrong blame: late ranks that are not there, few ranks, two at once, clusters, and real sets.

Cases of `msprof-analyze` that go wrong there: fewer than four ranks, two stragglers that mask each other, a straggler
whose files are missing, ranks whose own calls are the shortest.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers._communication import calls_in_steps
from ascend_perf.analyzers._delayed_transfers import exposed_by_delay
from ascend_perf.analyzers._rank_clusters import ALIKE_RATIO, cluster
from ascend_perf.analyzers.communication import communication
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.findings import all_findings
from ascend_perf.intervals import merged
from ascend_perf.model.finding import Finding, Judged, Outcome, ResultTable
from ascend_perf.model.run import Run
from ascend_perf.model.tables import COMM_OPS
from ascend_perf.model.trace import Device, Group, Meta, Trace
from ascend_perf.pipeline import analyze, load
from tests.conftest import build_table

STEP = 100_000_000
MOVE = 1_000_000


def gpu(
    rank: int, starts: Sequence[int], ends: Sequence[int], *, world: int, clock: int = 0, sizes: Sequence[int] | None,
    step: int = STEP, members: tuple[int, ...] | None = None,
) -> Trace:  # fmt: skip
    """A rank of a GPU job: its collectives are kernels, nothing tells waiting from transfer."""
    group = Group(name="w", label="dp", ranks=members or tuple(range(world)))
    tables: dict[str, Sequence[Mapping[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": clock, "dur_ns": step}],
        "kernels": [{"start_ns": clock, "dur_ns": 1_000_000, "name": "k"}],
        "comm_ops": [
            {"start_ns": clock + a, "dur_ns": b - a, "name": "ncclDevKernel_AllReduce", "op": "allReduce", "group": "w",
             "index_in_group": n} | ({} if sizes is None else {"size_bytes": sizes[n]})
            for n, (a, b) in enumerate(zip(starts, ends, strict=True))
        ],
    }  # fmt: skip
    meta = Meta(rank=rank, world_size=world, device=Device(kind="gpu"), groups=(group,))
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, meta)


def job(
    seen: Sequence[int], world: int, late: Mapping[int, int], *, calls: int = 9, every: int = 1, has_sizes: bool = True
) -> Run:
    """A call each 10 ms; late ranks come so much after the others to each `every`-th; all leave MOVE after the last."""
    starts: dict[int, list[int]] = {rank: [] for rank in range(world)}
    ends: list[int] = []
    for number in range(calls):
        at = 2_000_000 + 10_000_000 * number
        for rank in range(world):
            starts[rank].append(at + (late.get(rank, 0) if number % every == 0 else 0))
        ends.append(max(starts[rank][-1] for rank in range(world)) + MOVE)
    sizes = [1 << 20] * calls if has_sizes else None
    clocks = {rank: 3_000_000_000 * (rank // 8) for rank in range(world)}
    return Run(
        traces=tuple(gpu(r, starts[r], ends, world=world, clock=clocks[r], sizes=sizes, step=STEP) for r in seen)
    )


def n05(outcome: Outcome) -> tuple[list[Finding], Judged]:
    (judged,) = [j for j in outcome.judged if j.code == "N-05"]
    return [f for f in outcome.findings if f.code == "N-05"], judged


@pytest.mark.parametrize("count", [2, 3, 4])
def test_two_three_and_four_ranks_are_enough(count: int) -> None:
    found, judged = n05(ranks.run_on_run(job(range(count), count, {1: 4_000_000})))
    assert judged.verdict == "found"
    others = tuple(rank for rank in range(count) if rank != 1)
    assert [(f.ranks, f.affected_ranks) for f in found] == [((1,), others)]
    assert found[0].share_ratio == pytest.approx(0.36)


@pytest.mark.parametrize("late", [{2: 4_000_000, 5: 4_000_000}, {2: 4_000_000, 5: 3_500_000}, {0: 4_000_000}])
def test_stragglers_of_eight_do_not_mask_each_other(late: dict[int, int]) -> None:
    found, _ = n05(ranks.run_on_run(job(range(8), 8, late)))
    assert [f.ranks for f in found] == [tuple(sorted(late))]
    assert found[0].affected_ranks == tuple(rank for rank in range(8) if rank not in late)
    assert found[0].share_ratio == pytest.approx(0.36)  # 9 calls, 4 ms each, of 100 ms


def test_ranks_with_gaps_and_hosts_with_clocks_of_their_own() -> None:
    # Ranks 3, 9, 17 and 24 of 32; the hosts' clocks are 3 s apart. Rank 17 is late.
    found, _ = n05(ranks.run_on_run(job((3, 9, 17, 24), 32, {17: 5_000_000})))
    assert [(f.ranks, f.affected_ranks) for f in found] == [((17,), (3, 9, 24))]


def test_ranks_that_recorded_different_numbers_of_steps_are_compared_per_step() -> None:
    # Rank 1 recorded the first third of the calls only.
    whole = job(range(3), 3, {2: 4_000_000}).traces
    calls = whole[1][COMM_OPS]
    short = gpu(
        1, calls.ints("start_ns")[:3].tolist(), calls.ends_ns()[:3].tolist(), world=3, sizes=[1 << 20] * 3,
        step=STEP // 3,
    )  # fmt: skip
    found, _ = n05(ranks.run_on_run(Run(traces=(whole[0], short, whole[2]))))
    assert [(f.ranks, f.affected_ranks) for f in found] == [((2,), (0, 1))]


# ---- the late rank is not there ----


def test_a_late_rank_that_is_not_there_is_told_by_all_who_wait() -> None:
    # Rank 5 of 8 comes 6 ms late to every third of 9 calls; ranks 0-3 are there. The other calls take 1 ms.
    outcome = ranks.run_on_run(job(range(4), 8, {5: 6_000_000}, every=3))
    found, judged = n05(outcome)
    assert judged.verdict == "found"
    assert [(f.ranks, f.affected_ranks) for f in found] == [((), (0, 1, 2, 3))]
    # Three calls take 7 ms at least on every rank, 1 ms at best: 18 of 100 ms.
    assert found[0].share_ratio == pytest.approx(0.18)
    assert "a rank that is not in the data comes late" in found[0].title.en
    assert [e.value for e in found[0].evidence] == [18_000_000, 7_000_000, 1_000_000]


def test_what_the_absent_rank_explains_is_no_exposed_transfer() -> None:
    run = job(range(4), 8, {5: 6_000_000}, every=3)
    outcomes = [*(communication.run_on_trace(trace) for trace in run.traces), ranks.run_on_run(run)]
    shares = {f.code: f.share_ratio for f in all_findings(outcomes)}
    assert shares["N-05"] == pytest.approx(0.18)
    # Nine transfers of 1 ms each remain.
    assert shares["N-10"] == pytest.approx(0.09)


@pytest.mark.parametrize("has_sizes", [True, False])
def test_collectives_that_all_take_equally_long_are_not_called_clean(has_sizes: bool) -> None:
    # Rank 5 is late to every call: nothing to compare with, but for the size of the messages.
    found, judged = n05(ranks.run_on_run(job(range(4), 8, {5: 4_000_000}, has_sizes=has_sizes)))
    assert (found, judged.verdict) == ([], "not_judged")
    assert judged.reason is not None and "profile all ranks" in judged.reason.en
    assert ("9 collectives of equal size take equally long" in judged.reason.en) == has_sizes


def test_with_all_ranks_there_equal_collectives_are_clean() -> None:
    found, judged = n05(ranks.run_on_run(job(range(4), 4, {})))
    assert (found, judged.verdict) == ([], "clean")


def test_absent_ranks_of_a_job_that_hardly_communicates_are_no_question() -> None:
    found, judged = n05(ranks.run_on_run(job(range(4), 8, {}, calls=4)))  # 4 % of the step
    assert (found, judged.verdict) == ([], "clean")


# ---- transfers that a delay exposes ----


def test_transfers_behind_a_wait_go_back_beside_the_computing() -> None:
    # Computing in [0, 100) and [130, 150). Call 1 begins at 20, waits for rank 1 until 100 and moves until 120; call 2
    # was queued behind it and moves until 140. In time, call 1 would move in [20, 40) and call 2 in [40, 60).
    unit = 1_000_000
    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": 0, "dur_ns": 200 * unit}],
        "kernels": [
            {"start_ns": 0, "dur_ns": 100 * unit, "name": "k", "launch_start_ns": 150 * unit},
            {"start_ns": 130 * unit, "dur_ns": 20 * unit, "name": "k", "launch_start_ns": 150 * unit},
        ],
        "comm_ops": [
            {"start_ns": 20 * unit, "dur_ns": 100 * unit, "name": "a", "op": "allReduce", "stream": 5,
             "launch_start_ns": 5 * unit, "launch_end_ns": 6 * unit},
            {"start_ns": 120 * unit, "dur_ns": 20 * unit, "name": "b", "op": "allReduce", "stream": 5,
             "launch_start_ns": 7 * unit, "launch_end_ns": 8 * unit},
        ],
        "comm_tasks": [
            {"kind": "Notify_Wait", "comm_op": 0, "start_ns": 20 * unit, "dur_ns": 80 * unit, "plane": 0, "src": 0,
             "dst": 1},
            {"kind": "Memcpy", "comm_op": 0, "start_ns": 100 * unit, "dur_ns": 20 * unit, "plane": 0, "src": 0,
             "dst": 1, "size_bytes": 9},
            {"kind": "Memcpy", "comm_op": 1, "start_ns": 120 * unit, "dur_ns": 20 * unit, "plane": 0, "src": 0,
             "dst": 1, "size_bytes": 9},
        ],
    }  # fmt: skip
    made = Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(device=Device(kind="npu")))
    calls = calls_in_steps(made)
    waits = merged(np.array([20 * unit]), np.array([100 * unit]))
    found = exposed_by_delay(calls, waits, np.ones(2, bool))
    # Of call 1 all 20 are exposed now and would be hidden; of call 2 [120, 130), beside no computing now.
    assert (found.starts.tolist(), found.ends.tolist()) == ([100 * unit], [130 * unit])
    assert len(exposed_by_delay(calls, waits, np.array([False, True])).starts) == 0


def test_a_transfer_that_nothing_would_hide_is_not_the_delay() -> None:
    # No computing but at the very begin: earlier or later, the transfer is exposed.
    unit = 1_000_000
    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": 0, "dur_ns": 200 * unit}],
        "kernels": [{"start_ns": 0, "dur_ns": 10 * unit, "name": "k"}],
        "comm_ops": [{"start_ns": 20 * unit, "dur_ns": 100 * unit, "name": "a", "op": "allReduce"}],
        "comm_tasks": [
            {"kind": "Notify_Wait", "comm_op": 0, "start_ns": 20 * unit, "dur_ns": 80 * unit, "src": 0, "dst": 1},
            {"kind": "Memcpy", "comm_op": 0, "start_ns": 100 * unit, "dur_ns": 20 * unit, "src": 0, "dst": 1,
             "size_bytes": 9},
        ],
    }  # fmt: skip
    made = Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(device=Device(kind="npu")))
    found = exposed_by_delay(
        calls_in_steps(made), merged(np.array([20 * unit]), np.array([100 * unit])), np.ones(1, bool)
    )
    assert len(found.starts) == 0


# ---- clusters ----


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=12), st.randoms())
@settings(max_examples=150, deadline=None)
def test_clusters_against_plain_links(rows: list[tuple[int, int, int]], shuffled: object) -> None:
    found = cluster(np.array(rows, np.float64))
    limit = ALIKE_RATIO * statistics.median(sum(row) for row in rows)
    # Plain transitive closure of "no figure differs by more than the limit".
    group = list(range(len(rows)))
    for _ in rows:
        for a in range(len(rows)):
            for b in range(len(rows)):
                if max(abs(x - y) for x, y in zip(rows[a], rows[b], strict=True)) <= limit:
                    group[a] = group[b] = min(group[a], group[b])
    for a in range(len(rows)):
        for b in range(len(rows)):
            assert (found.of[a] == found.of[b]) == (group[a] == group[b])
    sizes = np.bincount(found.of).tolist()
    assert sizes == sorted(sizes, reverse=True)
    order = list(range(len(rows)))
    shuffled.shuffle(order)  # type: ignore[attr-defined]
    again = cluster(np.array([rows[at] for at in order], np.float64))
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            assert (again.of[i] == again.of[j]) == (found.of[a] == found.of[b])


def table_of(outcome: Outcome, name: str) -> ResultTable:
    return next(t for t in outcome.tables if t.name == name)


def test_the_rank_that_behaves_differently_stands_out() -> None:
    def rank(number: int, computing: int, exposed: int) -> Trace:
        row = {
            "step_id": 1, "computing_ns": computing, "communication_ns": exposed,
            "communication_not_overlapped_ns": exposed, "free_ns": 1000 - computing - exposed,
        }  # fmt: skip
        return Trace({"exported_steps": build_table("exported_steps", [row])}, Meta(rank=number, world_size=8))

    run = Run(traces=tuple(rank(r, 600 if r != 3 else 800, 300 if r != 3 else 100) for r in range(8)))
    clusters = table_of(ranks.run_on_run(run), "rank-clusters")
    assert clusters.column("ranks") == ("ranks 0-2, 4-7", "rank 3")
    assert clusters.column("class") == (None, "outlier")
    assert clusters.column("component") == (None, "computing")
    assert clusters.column("difference_ratio") == (None, 0.2)


# ---- real sets ----


def exported(path: Path) -> dict[int, dict[str, float]]:
    """Rank rows of a cluster_step_trace_time.csv, us."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Type"] == "rank"]
    text = ("Step", "Type", "Index")
    return {int(row["Index"]): {key: float(row[key]) for key in row if key not in text} for row in rows}


def test_the_eight_ranks_of_a_cluster_summary(traces: Path) -> None:
    """README 2.4: a slow-rank pattern, exposed communication from 133 to 756 ms while all compute alike."""
    folder = traces / "ascend-cluster" / "msprof-analyze-8rank"
    rows = exported(folder / "cluster_step_trace_time.csv")
    outcome = ranks.run_on_run(load(folder))
    shown = table_of(outcome, "ranks")
    for name, key in (
        ("computing_ns", "Computing"), ("exposed_ns", "Communication(Not Overlapped)"), ("free_ns", "Free"),
    ):  # fmt: skip
        assert shown.column(name) == pytest.approx([1000 * rows[rank][key] for rank in range(8)], rel=1e-6)
    shortest = min(rows, key=lambda rank: rows[rank]["Communication(Not Overlapped)"])
    assert shortest == 1
    found, _ = n05(outcome)
    assert [f.ranks for f in found] == [(1,)]  # the rank that communicates least comes last
    clusters = table_of(outcome, "rank-clusters")
    apart = dict(zip(clusters.column("ranks"), clusters.column("class"), strict=True))
    assert apart["rank 1"] == apart["rank 5"] == "outlier"


def test_the_sixteen_ranks_of_two_stages(traces: Path) -> None:
    """README 2.4: ranks 8-15 have Bubble (178 to 195 ms), ranks 0-7 none."""
    folder = traces / "ascend-cluster" / "msinsight-16rank"
    rows = exported(folder / "cluster_step_trace_time.csv")
    outcome = ranks.run_on_run(load(folder))
    (bubble,) = [f for f in outcome.findings if f.code == "L-01"]
    assert (bubble.ranks, bubble.affected_ranks) == (tuple(range(8)), tuple(range(8, 16)))
    length = {r: row["Computing"] + row["Communication(Not Overlapped)"] + row["Free"] for r, row in rows.items()}
    shares = {rank: row["Bubble"] / length[rank] for rank, row in rows.items()}
    assert bubble.share_ratio == pytest.approx(max(shares.values()), rel=1e-6)
    (stage,) = [f for f in outcome.findings if f.code == "L-02"]
    mean = [statistics.fmean(rows[r]["Computing"] for r in part) for part in (range(8), range(8, 16))]
    assert stage.ranks == tuple(range(8, 16))
    assert f"{mean[1] / mean[0]:.2f}x" in stage.title.en
    assert table_of(outcome, "rank-clusters").column("ranks") == ("ranks 0-7", "ranks 8-15")
    _, judged = n05(outcome)
    assert judged.verdict == "clean"  # within a stage all ranks are equal


def kineto_exposed(path: Path) -> tuple[float, float]:
    """Exposed time of NCCL kernels inside the steps and the length of the steps, us, from the file's own events."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name", "")).startswith("ProfilerStep#")
             and e.get("cat") == "user_annotation"]  # fmt: skip
    if not steps:
        steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name", "")).startswith("ProfilerStep#")]
    kernels = [e for e in events if str(e.get("cat", "")).lower() == "kernel" and "dur" in e]
    begin, end = min(a for a, _ in steps), max(b for _, b in steps)

    def covered(wanted: bool) -> list[tuple[float, float]]:
        spans = sorted(
            (max(e["ts"], begin), min(e["ts"] + e["dur"], end))
            for e in kernels
            if ("nccl" in e["name"].lower()) == wanted
        )
        joined: list[list[float]] = []
        for a, b in spans:
            if b <= a:
                continue
            if joined and a <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], b)
            else:
                joined.append([a, b])
        return [(a, b) for a, b in joined]

    compute = covered(False)
    exposed = 0.0
    for a, b in covered(True):
        exposed += (b - a) - sum(max(0.0, min(b, d) - max(a, c)) for c, d in compute)
    return exposed, end - begin


@pytest.mark.parametrize("name", ["a100/sixteen_rank_training_rank0.json.gz", "multi-rank-128"])
def test_jobs_of_sixteen_and_of_a_hundred_and_twenty_eight_ranks_name_exposed_communication(
    traces: Path, name: str
) -> None:
    path = traces / "kineto" / name
    files = sorted(path.glob("*.gz")) if path.is_dir() else [path]
    analysis = analyze(path)
    shares = {rank: exposed / length for rank, (exposed, length) in enumerate(map(kineto_exposed, files))}
    told = {
        outcome.rank: finding.share_ratio
        for outcome in analysis.outcomes
        if outcome.analyzer == "communication"
        for finding in outcome.findings
        if finding.code == "N-01"
    }
    assert told == pytest.approx(shares, rel=1e-3)
    (found,) = [f for f in analysis.findings if f.code == "N-01"]
    assert found.affected_ranks == tuple(shares)
    if len(shares) == 1:
        assert found.share_ratio == pytest.approx(shares[0], rel=1e-3)
    else:
        # Rank 1 computes longer; rank 0 communicates hardly longer, so it is not said to wait for it.
        (late,) = [f for f in analysis.findings if f.code == "N-05"]
        assert (late.ranks, late.affected_ranks) == ((1,), (1,))
        assert late.title.en.endswith("the others' communication does not show that they wait for it")
        assert found.share_ratio == pytest.approx(max(shares.values()), rel=1e-3)
    assert "sendRecv" in found.title.en


@pytest.mark.parametrize(("name", "late"), [("text/level1", 5), ("db/level1", 6)])
def test_two_of_eight_ranks_name_the_straggler_whose_files_are_not_there(traces: Path, name: str, late: int) -> None:
    """The rival says that no rank is slow, wait 0 and transmit 102 ms: rival study, section 1."""
    analysis = analyze(traces / "ascend-pytorch" / name)
    (found,) = [f for f in analysis.findings if f.code == "N-05"]
    assert (found.ranks, found.affected_ranks) == ((late,), (0, 1))
    assert found.share_ratio is not None and found.share_ratio > 0.65
    # Level 1 of text moves its data in 3.68 ms, and waits for 101.7 ms.
    if name.startswith("text"):
        waits = {o.rank: table_of(o, "comm-waits") for o in analysis.outcomes if o.analyzer == "communication"}
        longest = {rank: dict(zip(t.column("peer"), t.column("wait_ns"), strict=True))[5] for rank, t in waits.items()}
        assert longest == {0: pytest.approx(101.7e6, rel=2e-3), 1: pytest.approx(96.1e6, rel=2e-3)}
        assert "moving the data takes 3.683 ms" in found.title.en


def test_ranks_without_sub_tasks_are_not_called_clean_while_others_are_missing(traces: Path) -> None:
    """Two of eight ranks at Level0: 75 % of the step is exposed, and nothing tells waiting from transfer.

    The rival fails on this set and ends with status 0: rival study, section 2.1.
    """
    analysis = analyze(traces / "ascend-pytorch" / "db" / "level0")
    verdicts = {
        (outcome.analyzer, judged.verdict)
        for outcome in analysis.outcomes
        for judged in outcome.judged
        if judged.code == "N-05"
    }
    assert verdicts == {("communication", "not_judged"), ("ranks", "not_judged")}
    assert "N-01" in {f.code for f in analysis.findings}


def test_traffic_is_not_counted_twice_and_links_within_their_scatter_are_not_slow(traces: Path) -> None:
    """The rival adds the total to its parts (855.19 MB), and lists links of RDMA that carry nothing: rows 9 and 10."""
    analysis = analyze(traces / "ascend-pytorch" / "text" / "level1")
    assert "N-06" not in {f.code for f in analysis.findings}
    links = {o.rank: table_of(o, "comm-links") for o in analysis.outcomes if o.analyzer == "communication"}
    for shown in links.values():
        moved = {
            transport: sum(int(str(size)) for size, link in zip(shown.column("size_bytes"), shown.column("transport"),
                                                                strict=True) if link == transport)
            for transport in set(shown.column("transport"))
        }  # fmt: skip
        assert moved.get("HCCS") == pytest.approx(427_596_096, rel=1e-6)
        assert "RDMA" not in moved and "ROCE" not in moved
