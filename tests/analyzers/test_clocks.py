"""Offsets and drift of clocks, and records of a group that begin at another call."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers._alignment import MAX_SHIFT, UNMATCHED, Sequence, best_shift, shifts_of
from ascend_perf.analyzers._clocks import Ties, clocks_of
from ascend_perf.analyzers._collectives import collectives_of
from ascend_perf.analyzers._stages import job_of
from ascend_perf.analyzers.collectives import collectives
from ascend_perf.analyzers.ranks import ranks
from ascend_perf.model.run import Run
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Device, Meta, Trace
from tests.conftest import build_table

Clock = Callable[[int], int]
EPOCH = 1_780_000_000_000_000_000


def clock(offset: int, ppm: float = 0.0) -> Clock:
    """Local time of a true time: ahead by `offset` at the epoch, faster by `ppm` millionths."""
    return lambda true: true + offset + round((true - EPOCH) * ppm / 1e6)


def trace(
    rank: int, calls: list[tuple[int, int]], local: Clock, *, first: int = 0, group: str | None = "w", world: int = 3,
    sizes: list[int] | None = None, step: int = 60_000_000_000,
) -> Trace:  # fmt: skip
    """A rank whose calls (true begin, true end) are written on its own clock; ordinals count from its first call."""
    rows: list[dict[str, object]] = []
    for number, (begin, end) in enumerate(calls[first:]):
        row: dict[str, object] = {
            "start_ns": local(begin), "dur_ns": local(end) - local(begin), "name": "a", "op": "allReduce"
        }  # fmt: skip
        if sizes is not None:
            row["size_bytes"] = sizes[first + number]
        rows.append(row | ({"group": group, "index_in_group": number} if group else {}))
    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": local(EPOCH), "dur_ns": step}],
        "kernels": [{"start_ns": local(EPOCH), "dur_ns": 10, "name": "k"}], "comm_ops": rows,
    }  # fmt: skip
    meta = Meta(rank=rank, world_size=world, device=Device(kind="npu"))
    return Trace({name: build_table(name, cells) for name, cells in tables.items()}, meta)


def moments(count: int, seed: int = 3) -> list[int]:
    """Ends of collectives over a minute, unevenly spaced."""
    rng = random.Random(seed)
    return sorted(EPOCH + rng.randrange(1_000_000_000, 59_000_000_000) for _ in range(count))


def test_offsets_of_seconds_and_drifts_of_ppm_are_told_and_taken_away() -> None:
    # Rank 1 is 5 s ahead and 40 ppm fast: 2.4 ms in a minute. Rank 2 is 3 s behind and steady. Rank 1 comes 1 ms late.
    ends = moments(40)
    clocks = {0: clock(0), 1: clock(5_000_000_000, 40.0), 2: clock(-3_000_000_000)}
    late = {0: 3_000_000, 1: 2_000_000, 2: 3_000_000}
    run = Run(traces=tuple(trace(r, [(e - late[r], e) for e in ends], clocks[r]) for r in range(3)))
    calls = collectives_of(job_of(run).ranks)

    one, two = calls.offsets[1], calls.offsets[2]
    assert one.drift_ppm == pytest.approx(40.0, abs=0.01)
    middle = sorted(ends)[20]
    assert one.offset_ns == pytest.approx(clocks[1](middle) - middle, abs=100)
    assert (two.offset_ns, two.drift_ppm) == (-3_000_000_000, None)
    assert calls.is_late_by_clock.all()
    assert np.abs(calls.waits[calls.place == 0] - 1_000_000).max() <= 100
    assert (calls.waits[calls.place == 1] == 0).all()
    shown = next(t for t in collectives.run_on_run(run).tables if t.name == "clock-offsets")
    assert list(shown.column("drift_ppm")) == [None, pytest.approx(40.0, abs=0.01), None]


@given(
    st.lists(st.integers(-(10**10), 10**10), min_size=4, max_size=4),
    st.lists(st.floats(-90, 90), min_size=4, max_size=4),
    st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_times_of_all_clocks_come_to_one(offsets: list[int], drifts: list[float], seed: int) -> None:
    """Ranks are tied in a chain 0-1-2-3: what is far is reached over the others."""
    assume(all(abs(a - b) > 1 for a, b in itertools.pairwise(drifts)))
    clocks = [clock(o, d) for o, d in zip(offsets, drifts, strict=True)]
    true = moments(30, seed)
    pairs = [(0, 1), (2, 1), (2, 3)]
    ties = Ties(
        first=np.repeat([a for a, _ in pairs], len(true)), second=np.repeat([b for _, b in pairs], len(true)),
        first_ns=np.array([clocks[a](t) for a, _ in pairs for t in true], np.int64),
        second_ns=np.array([clocks[b](t) for _, b in pairs for t in true], np.int64),
    )  # fmt: skip
    found = clocks_of([10, 11, 12, 13], ties)
    assert [c.rank for c in found.offsets] == [10, 11, 12, 13]
    for rank in range(4):
        local = np.array([clocks[rank](t) for t in true], np.int64)
        expected = np.array([clocks[0](t) for t in true], np.int64)
        assert np.abs(found.aligned(np.full(len(true), rank), local) - expected).max() <= 1000


def test_jitter_of_ends_is_no_drift() -> None:
    rng = random.Random(5)
    ends = moments(60)
    jitter = [rng.randrange(-20_000, 20_000) for _ in ends]
    run = Run(
        traces=(
            trace(0, [(e - 3_000_000, e) for e in ends], clock(0)),
            trace(1, [(e - 3_000_000, e + j) for e, j in zip(ends, jitter, strict=True)], clock(7_000_000)),
        )
    )
    found = collectives_of(job_of(run).ranks).offsets[1]
    assert found.drift_ppm is None
    assert found.offset_ns == pytest.approx(7_000_000, abs=10_000)


@pytest.mark.parametrize("group", ["w", None])
@pytest.mark.parametrize("missing", [1, 3])
def test_a_record_that_begins_in_the_middle_is_aligned(group: str | None, missing: int) -> None:
    # Rank 1 recorded all calls but the first ones; its ordinals count from there. Rank 2 comes 2 ms late to all.
    ends = moments(24)
    late = {0: 3_000_000, 1: 3_000_000, 2: 1_000_000}
    run = Run(
        traces=tuple(
            trace(r, [(e - late[r], e) for e in ends], clock(10**9 * r), first=missing if r == 1 else 0, group=group)
            for r in range(3)
        )
    )
    calls = collectives_of(job_of(run).ranks)
    assert len(calls) == 24
    for at in range(24):
        members = calls.place[calls.owner == at].tolist()
        assert members == ([0, 2] if at < missing else [0, 1, 2])
        assert calls.durations[calls.owner == at].tolist() == [late[r] for r in members]
    assert [(s.rank, s.calls) for s in calls.shifts] == ([(1, missing)] if group else [])
    found = [f for f in ranks.run_on_run(run).findings if f.code == "N-05"]
    assert found == []  # 2 ms of a minute are no finding
    waits = next(t for t in collectives.run_on_run(run).tables if t.name == "rank-waits")
    assert dict(zip(waits.column("waiter"), waits.column("late"), strict=True)) == {0: 2, 1: 2}
    assert dict(zip(waits.column("waiter"), waits.column("calls"), strict=True)) == {0: 24, 1: 24 - missing}


def sequence(ordinals: list[int], sizes: list[int], ends: list[int]) -> Sequence:
    return Sequence(
        ordinals=np.array(ordinals, np.int64), ops=np.zeros(len(ordinals), np.int64), sizes=np.array(sizes, np.int64),
        ends=np.array(ends, np.int64), durations=np.full(len(ordinals), 100_000, np.int64),
    )  # fmt: skip


def brute_force(ours: Sequence, theirs: Sequence) -> list[int]:
    """Every shift at which all sizes agree and the ends differ by one offset within 100 us, by plain loops."""
    found = []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        pairs = [
            (a, b)
            for a, x in enumerate(ours.ordinals.tolist())
            for b, y in enumerate(theirs.ordinals.tolist())
            if x == y + shift
        ]
        if len(pairs) < max(4, min(len(ours.ordinals), len(theirs.ordinals)) / 2):
            continue
        known = [(a, b) for a, b in pairs if NULL not in (ours.sizes[a], theirs.sizes[b])]
        sizes_agree = all(ours.sizes[a] == theirs.sizes[b] for a, b in known)
        apart = sorted(int(theirs.ends[b] - ours.ends[a]) for a, b in pairs)
        if sizes_agree and apart[-1] - apart[0] <= 100_000:
            found.append(shift)
    return found


@given(
    st.integers(0, 10**6), st.integers(8, 40), st.integers(0, 6), st.integers(0, 6), st.integers(-(10**12), 10**12),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_the_shift_against_all_shifts(
    seed: int, count: int, lost: int, more: int, offset: int, has_sizes: bool
) -> None:
    rng = random.Random(seed)
    ends = sorted(rng.sample(range(0, 10**9, 500_000), count))
    sizes = [rng.choice((1000, 2000)) if has_sizes else NULL for _ in ends]
    ours = sequence(list(range(count - more)), sizes[: count - more], ends[: count - more])
    later = [e + offset + rng.randrange(20_000) for e in ends[lost:]]
    theirs = sequence(list(range(count - lost)), sizes[lost:], later)
    right = brute_force(ours, theirs)
    got = best_shift(ours, theirs)
    if right == [lost]:
        assert got == lost
    else:
        assert got in (*right, 0)


def test_a_regular_rhythm_tells_no_shift() -> None:
    # Calls every millisecond: any shift fits as well as none.
    ours = sequence(list(range(20)), [NULL] * 20, [10**6 * n for n in range(20)])
    theirs = sequence(list(range(17)), [NULL] * 17, [10**6 * (n + 3) for n in range(17)])
    assert best_shift(ours, theirs) == 0


def test_gaps_between_steps_tell_the_shift_of_a_regular_rhythm() -> None:
    # Ten calls a millisecond apart per step, steps 50 ms apart, all of one size.
    ends = [50 * 10**6 * step + 10**6 * n for step in range(3) for n in range(10)]
    ours = sequence(list(range(30)), [8] * 30, ends)
    theirs = sequence(list(range(27)), [8] * 27, [e - 10**10 for e in ends[3:]])
    assert best_shift(ours, theirs) == 3


@given(st.integers(0, 10**6), st.integers(20, 40), st.integers(1, 5), st.integers(-(10**12), 10**12))
@settings(max_examples=80, deadline=None)
def test_calls_that_a_record_lost_in_the_middle(seed: int, count: int, lost: int, offset: int) -> None:
    """The ordinals of a rank count only what it recorded: each call must find its own again."""
    rng = random.Random(seed)
    ends = sorted(rng.sample(range(0, 10**9, 500_000), count))
    kept = sorted(rng.sample(range(count), count - lost))
    ours = sequence(list(range(count)), [NULL] * count, ends)
    theirs = sequence(
        list(range(len(kept))), [NULL] * len(kept), [ends[at] + offset + rng.randrange(20_000) for at in kept]
    )
    shifts = shifts_of(ours, theirs)
    right = [at - number for number, at in enumerate(kept)]
    if len(set(right)) == 1:
        assert shifts.tolist() == right
    else:
        # A call at the very end may be told by so few that one shift fits nearly all: then the rest is found by ends.
        pairs = zip(shifts.tolist(), right, strict=True)
        wrong = [n for n, (got, good) in enumerate(pairs) if got not in (good, UNMATCHED)]
        assert len(wrong) <= 0.05 * len(kept)


def test_lost_calls_do_not_blame_anybody() -> None:
    # All arrive together and take 3 ms; rank 1 lost calls 7 and 15 of 24 and counts on without them.
    ends = moments(24)
    traces = [trace(r, [(e - 3_000_000, e) for e in ends], clock(10**9 * r)) for r in (0, 2)]
    kept = [e for n, e in enumerate(ends) if n not in (7, 15)]
    traces.insert(1, trace(1, [(e - 3_000_000, e) for e in kept], clock(10**9)))
    calls = collectives_of(job_of(Run(traces=tuple(traces))).ranks)
    sizes = np.bincount(calls.owner).tolist()
    assert sizes == [2 if n in (7, 15) else 3 for n in range(24)]
    assert calls.skew_ns.max() == 0
    assert [c.offset_ns for c in calls.offsets] == [0, 10**9, 2 * 10**9]
    assert [(s.rank, s.calls) for s in calls.shifts] == [(1, 2)]
