"""Repeated kernels without a known fused operator: windows against brute force, and what joining them saves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._mined import mined, window_numbers
from ascend_perf.model.table import Bools
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=0, device=Device(kind="npu"))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_windows_are_equal_exactly_when_their_kernels_are(tokens: list[int], data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(tokens)))

    numbers = window_numbers(np.array(tokens, np.int64), length).tolist()

    windows = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    assert len(numbers) == len(windows)
    assert len(set(zip(numbers, windows, strict=True))) == len(set(numbers)) == len(set(windows))


def trace_of(make_trace: Make, types: list[tuple[str, int]], **more: object) -> KernelTime:
    rows, at = [], 0
    for kind, dur in types:
        rows.append({"start_ns": at, "dur_ns": dur, "name": "k", "op_type": kind, "core": "AIV", "stream": 2} | more)
        at += dur
    steps = [{"step_id": 1, "start_ns": 0, "dur_ns": at}]
    return KernelTime.of(make_trace(meta=NPU, steps=steps, kernels=rows))


def none(time: KernelTime) -> Bools:
    return np.zeros(len(time.trace[KERNELS]), bool)


def test_a_sequence_saves_all_but_its_longest_kernel(make_trace: Make) -> None:
    layer = [("Mul", 10), ("Add", 30), ("Sqrt", 20), ("MatMulV3", 40)]
    time = trace_of(
        make_trace, layer * 4, input_shapes="2,3", output_shapes="2,3", output_dtypes="FLOAT16", input_dtypes="FLOAT16"
    )

    (found,) = mined(time, none(time))

    assert (found.types, found.count, found.time_ns) == (("Mul", "Add", "Sqrt"), 4, 4 * 60)
    assert found.saved_ns == 4 * 30
    assert found.round_trip_bytes == 4 * 2 * 2 * (2 * 6)  # four times two tensors of six fp16, written and read
    assert (found.start_ns, found.stream) == (0, 2)


def test_a_repeated_half_is_told_and_not_the_whole(make_trace: Make) -> None:
    time = trace_of(make_trace, [("Mul", 10), ("Add", 10)] * 6)

    (found,) = mined(time, none(time))

    assert (found.types, found.count) == (("Mul", "Add"), 6)


def test_claimed_kernels_and_rare_sequences_are_left_out(make_trace: Make) -> None:
    layer = [("Mul", 10), ("Add", 30), ("MatMulV3", 40)]
    time = trace_of(make_trace, layer * 4)
    claimed = none(time)
    claimed[::3] = True

    assert mined(time, claimed) == []
    time = trace_of(make_trace, layer * 2)
    assert mined(time, none(time)) == []


@given(st.lists(st.sampled_from(["Mul", "Add", "Sqrt", "MatMulV3"]), min_size=1, max_size=80))
def test_sequences_never_share_a_kernel(types: list[str]) -> None:
    from tests.conftest import build_table

    rows = [
        {"start_ns": 10 * i, "dur_ns": 10, "name": "k", "op_type": kind, "core": "AIV", "stream": 1}
        for i, kind in enumerate(types)
    ]
    time = KernelTime.of(Trace({"kernels": build_table("kernels", rows)}, NPU))

    found = mined(time, none(time))

    spent = sum(item.time_ns for item in found)
    assert spent <= 10 * sum(kind != "MatMulV3" for kind in types)
    for item in found:
        assert item.saved_ns == item.count * 10 * (len(item.types) - 1)
        # No more occurrences than the sequence has, counted without overlap from the left.
        at = count = 0
        while at + len(item.types) <= len(types):
            hit = tuple(types[at : at + len(item.types)]) == item.types
            count, at = count + hit, at + (len(item.types) if hit else 1)
        assert 3 <= item.count <= count
