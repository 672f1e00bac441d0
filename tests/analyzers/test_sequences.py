"""Repeated sequences of short kernels (H-03): mining, the idle time inside them, and what H-01 keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._repeats import non_overlapping, repeats_of
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.analyzers.sequences import sequences
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
Rows = list[dict[str, object]]
NPU = Meta(rank=0, device=Device(kind="npu"))


def _kernels(types: str, *, dur: int = 2_000, gap: int = 8_000, start: int = 0, **more: object) -> Rows:
    """One kernel per letter, `gap` apart."""
    return [
        {"start_ns": start + at * (dur + gap), "dur_ns": dur, "name": kind, "op_type": kind, "stream": 1} | more
        for at, kind in enumerate(types)
    ]


def _step(kernels: Rows, step_id: int = 1) -> dict[str, object]:
    ends = [int(str(row["start_ns"])) + int(str(row["dur_ns"])) for row in kernels]
    start = int(str(kernels[0]["start_ns"]))
    return {"step_id": step_id, "start_ns": start, "dur_ns": max(ends) - start}


def test_the_unit_of_a_loop_is_found_once_and_its_gaps_are_the_gain(make_trace: Make) -> None:
    kernels = _kernels("ABC" * 10)
    outcome = sequences.run_on_trace(make_trace(meta=NPU, steps=[_step(kernels)], kernels=kernels))

    (found,) = outcome.findings
    table = outcome.tables[0]
    assert table.column("types") == ("A - B - C",)
    assert table.column("count") == (10.0,)
    assert table.column("wall_ns") == (10 * 22_000.0,)
    # Two gaps of 8 us in each of ten occurrences; the step is 30 kernels and 29 gaps long.
    assert found.share_ratio == pytest.approx(10 * 2 * 8_000 / (30 * 2_000 + 29 * 8_000))


def test_the_general_row_keeps_the_rest_of_the_idle_time(make_trace: Make) -> None:
    kernels = _kernels("ABC" * 10)
    trace = make_trace(meta=NPU, steps=[_step(kernels)], kernels=kernels)

    (free,) = host_dispatch.run_on_trace(trace).findings

    # Nine gaps between the occurrences.
    assert free.code == "H-01"
    assert free.share_ratio == pytest.approx(9 * 8_000 / (30 * 2_000 + 29 * 8_000))
    assert "not counting 160 us that the finding H-03 explains" in free.title.en


def test_twenty_steps_say_the_same_as_one(make_trace: Make) -> None:
    rows: Rows = []
    steps = []
    for index in range(20):
        one = _kernels("ABC" * 10, start=index * 10_000_000)
        steps.append(_step(one, index))
        rows += one

    (found,) = sequences.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=rows)).findings

    assert found.share_ratio == pytest.approx(160_000 / 292_000)
    assert "(1 kind, 10 times per step)" in found.title.en


@pytest.mark.parametrize(
    "kernels",
    [
        _kernels("ABC" * 5),  # five times are not more than five
        _kernels("ABC" * 10, gap=1_000),  # busy for most of the time
        _kernels("ABC" * 10, dur=20_000, gap=80_000),  # kernels of 20 us are not short
        _kernels("ABC" * 10, gap=2_000_000),  # pauses of 2 ms are no launch cost
        _kernels("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),  # nothing repeats
    ],
)
def test_what_is_no_loop_of_short_kernels_is_clean(make_trace: Make, kernels: Rows) -> None:
    outcome = sequences.run_on_trace(make_trace(meta=NPU, steps=[_step(kernels)], kernels=kernels))

    assert not outcome.findings
    assert [(row.code, row.verdict) for row in outcome.judged] == [("H-03", "clean")]


def test_gaps_in_which_another_stream_works_are_no_gain(make_trace: Make) -> None:
    kernels = _kernels("ABC" * 10)
    whole = _step(kernels)
    other = {"start_ns": 0, "dur_ns": whole["dur_ns"], "name": "mm", "op_type": "MatMulV3", "stream": 2}

    assert not sequences.run_on_trace(make_trace(meta=NPU, steps=[whole], kernels=[*kernels, other])).findings


def test_the_wait_behind_a_nonzero_is_no_launch_cost(make_trace: Make) -> None:
    kernels = _kernels("AN" * 10)
    for row in kernels:
        if row["op_type"] == "N":
            row["op_type"] = row["name"] = "NonZero"
    time = KernelTime.of(make_trace(meta=NPU, steps=[_step(kernels)], kernels=kernels))

    assert [repeat.types for repeat in repeats_of(time)] == [("A", "NonZero")]


def test_kernels_of_unknown_type_belong_to_no_sequence(make_trace: Make) -> None:
    kernels = _kernels("XABC" * 10)
    for row in kernels:
        if row["op_type"] == "X":
            row["op_type"] = row["name"] = None
    time = KernelTime.of(make_trace(meta=NPU, steps=[_step(kernels)], kernels=kernels))

    assert [repeat.types for repeat in repeats_of(time)] == [("A", "B", "C")]


def test_blocking_launches_explain_every_gap(make_trace: Make) -> None:
    kernels = _kernels("ABC" * 10)
    meta = Meta(rank=0, device=Device(kind="npu"), environment={"ASCEND_LAUNCH_BLOCKING": "1"})

    assert not sequences.run_on_trace(make_trace(meta=meta, steps=[_step(kernels)], kernels=kernels)).findings


def test_sequences_do_not_cross_steps_or_streams(make_trace: Make) -> None:
    # Three times AB in each of six steps: no step has more than five.
    rows: Rows = []
    steps = []
    for index in range(6):
        one = _kernels("AB" * 3, start=index * 100_000)
        steps.append(_step(one, index))
        rows += one

    assert not sequences.run_on_trace(make_trace(meta=NPU, steps=steps, kernels=rows)).findings


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=40, unique=True),
    st.integers(1, 10),
)
def test_occurrences_are_taken_from_the_left_without_overlap(pairs: list[tuple[int, int]], length: int) -> None:
    pairs.sort()
    groups = np.array([group for group, _ in pairs], np.int64)
    positions = np.array([position for _, position in pairs], np.int64)

    taken: list[tuple[int, int]] = []
    for group, position in pairs:
        last = [p for g, p in taken if g == group]
        if not last or position >= last[-1] + length:
            taken.append((group, position))

    kept = non_overlapping(positions, groups, length)
    assert [pair for pair, keep in zip(pairs, kept.tolist(), strict=True) if keep] == taken


@given(st.text("ABC", min_size=2, max_size=120))
def test_sequences_never_claim_a_kernel_twice(types: str) -> None:
    from tests.conftest import build_table

    kernels = _kernels(types)
    trace = Trace({"kernels": build_table("kernels", kernels), "steps": build_table("steps", [_step(kernels)])}, NPU)

    spans = sorted(
        (start, end)
        for repeat in repeats_of(KernelTime.of(trace))
        for start, end in zip(repeat.starts_ns.tolist(), repeat.ends_ns.tolist(), strict=True)
    )

    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    for repeat in repeats_of(KernelTime.of(trace)):
        assert repeat.count > 5
        assert "".join(repeat.types) in types
