"""Sequences among operators and kernels: nesting, threads, the backward, steps, and that no kernel counts twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.model.tables import HOST_OPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.find_fusions import Matches, chosen, find_fusions
from ascend_perf.ops.fusion_host import host_sequence
from ascend_perf.ops.fusions import fusion
from tests.ops._fusion_samples import on_host, on_kernels

Make = Callable[..., Trace]
RMS = ["aten::pow", "aten::mean", "aten::add", "aten::rsqrt", "aten::mul", "aten::mul"]


Rows = Sequence[Mapping[str, object]]


def _find(make_trace: Make, ops: Rows, kernels: Rows, name: str) -> Matches | None:
    trace = make_trace(host_ops=ops, kernels=[{"name": "k", "core": "AIV", **row} for row in kernels])
    steps = np.zeros(len(kernels), np.int64)
    return find_fusions(trace[KERNELS], trace[HOST_OPS], steps, [fusion(name)]).get(name)


def test_what_an_operator_calls_counts_as_that_operator(make_trace: Make) -> None:
    # aten::softmax calls aten::_softmax, aten::matmul calls aten::bmm: two products and one softmax.
    ops, kernels = [], []
    for i, (outer, inner) in enumerate([("matmul", "bmm"), ("softmax", "_softmax"), ("matmul", "bmm")]):
        ops += [
            {"start_ns": 100 * i, "dur_ns": 90, "name": f"aten::{outer}", "thread": 1},
            {"start_ns": 100 * i + 10, "dur_ns": 50, "name": f"aten::{inner}", "thread": 1},
            {"start_ns": 100 * i + 20, "dur_ns": 10, "name": "aclnnSomething", "thread": 1},
        ]
        kernels.append({"start_ns": 1000 + i, "dur_ns": 1, "op_type": "Special", "stream": 1, "host_op": 3 * i + 1})

    found = _find(make_trace, ops, kernels, "attention")

    assert found is not None
    assert (found.rows.tolist(), found.host.tolist()) == ([0, 1, 2], [0])


def test_a_function_that_is_no_symbol_is_looked_through(make_trace: Make) -> None:
    ops = [{"start_ns": 0, "dur_ns": 1000, "name": "aten::scaled_dot_product_attention", "thread": 1}]
    ops += [
        {"start_ns": 10 + 100 * i, "dur_ns": 90, "name": f"aten::{name}", "thread": 1}
        for i, name in enumerate(["matmul", "_softmax", "matmul"])
    ]
    sequence = host_sequence(make_trace(host_ops=ops)[HOST_OPS])

    assert sequence.rows.tolist() == [1, 2, 3]
    assert sequence.top.tolist() == [-1, 1, 2, 3]


def test_other_operators_may_stand_between_as_far_as_the_row_allows(make_trace: Make) -> None:
    inside = ["aten::silu", "aten::linear", "aten::mul"]
    assert (found := on_host(make_trace, inside, fusion("swiglu"))) is not None
    assert found.rows.tolist() == [0, 2]  # the projection between is no part of it
    assert on_host(make_trace, ["aten::silu", "aten::linear", "aten::relu", "aten::mul"], fusion("swiglu")) is None


def test_threads_do_not_mix(make_trace: Make) -> None:
    ops = [
        {"start_ns": 10 * i, "dur_ns": 5, "name": f"aten::{n}", "thread": i} for i, n in enumerate(["silu", "mul"])
    ]
    kernels = [{"start_ns": 50 + i, "dur_ns": 1, "op_type": "Special", "stream": 1, "host_op": i} for i in range(2)]

    assert _find(make_trace, ops, kernels, "swiglu") is None


def test_operators_of_the_backward_are_no_forward_pattern(make_trace: Make) -> None:
    ops = [{"start_ns": 0, "dur_ns": 100, "name": "autograd::engine::evaluate_function: MulBackward0", "thread": 1}]
    ops += [
        {"start_ns": 10 + 20 * i, "dur_ns": 9, "name": f"aten::{n}", "thread": 1} for i, n in enumerate(["silu", "mul"])
    ]
    kernels = [{"start_ns": 50 + i, "dur_ns": 1, "op_type": "Special", "stream": 1, "host_op": i + 1} for i in range(2)]

    assert _find(make_trace, ops, kernels, "swiglu") is None


def test_the_backward_of_a_match_belongs_to_it(make_trace: Make) -> None:
    ops = [
        {"start_ns": 10 * i, "dur_ns": 5, "name": f"aten::{name}", "thread": 1, "sequence_number": 7 + i}
        for i, name in enumerate(["silu", "mul", "relu"])
    ]
    for i, number in enumerate([9, 8, 7]):
        node = f"autograd::engine::evaluate_function: Node{i}"
        ops.append({"start_ns": 100 + 20 * i, "dur_ns": 15, "name": node, "thread": 2, "sequence_number": number})
        ops.append({"start_ns": 102 + 20 * i, "dur_ns": 10, "name": "aten::mul", "thread": 2})
    kernels = [
        {"start_ns": 200 + i, "dur_ns": 1, "op_type": "Special", "stream": 1, "host_op": row}
        for i, row in enumerate([0, 1, 2, 4, 6, 8])
    ]

    found = _find(make_trace, ops, kernels, "swiglu")

    assert found is not None
    # silu (7) and mul (8) with the kernels of their nodes; relu (9) and its node are not meant.
    assert found.rows.tolist() == [0, 1, 4, 5]
    assert found.behind.tolist() == [False, False, True, True]
    assert found.occurrences == 1


def test_a_pattern_without_two_kernels_is_none(make_trace: Make) -> None:
    ops = [{"start_ns": 10 * i, "dur_ns": 5, "name": n, "thread": 1} for i, n in enumerate(["aten::silu", "aten::mul"])]
    kernels = [{"start_ns": 50 + i, "dur_ns": 1, "op_type": "Special", "stream": 1, "host_op": 0} for i in range(2)]

    assert _find(make_trace, ops, kernels, "swiglu") is None


def test_matches_of_one_row_do_not_overlap(make_trace: Make) -> None:
    # A chain in which each product ends one attention and could begin the next.
    types = ["BatchMatMul", "SoftmaxV2", "BatchMatMul", "SoftmaxV2", "BatchMatMul"]
    found = on_kernels(make_trace, types, fusion("attention"))

    assert found is not None and found.rows.tolist() == [0, 1, 2]


def test_streams_and_steps_part_sequences(make_trace: Make) -> None:
    rows = [
        {"start_ns": i, "dur_ns": 1, "name": "k", "op_type": kind, "core": "AIV", "stream": stream}
        for i, (kind, stream) in enumerate([("Swish", 1), ("Relu6", 2), ("Mul", 1)])
    ]
    trace = make_trace(kernels=rows)
    kernels, ops = trace[KERNELS], trace[HOST_OPS]

    def found(steps: list[int]) -> bool:
        return "swiglu" in find_fusions(kernels, ops, np.array(steps, np.int64), [fusion("swiglu")])

    assert found([0, 0, 0])  # the kernel of another stream does not stand between
    assert not found([0, 0, 1])
    assert not found([-1, -1, -1])


def test_the_product_inside_a_gate_is_not_counted(make_trace: Make) -> None:
    found = on_kernels(make_trace, ["MatMulV3", "Swish", "MatMulV3", "Mul"], fusion("swiglu"))

    assert found is not None and found.rows.tolist() == [1, 3]


def test_gpu_kernels_go_by_name(make_trace: Make) -> None:
    names = ["silu_kernel", "sm90_xmma_gemm_bf16", "binary_internal::MulFunctor<float>"]
    rows = [{"start_ns": i, "dur_ns": 1, "name": name, "core": "SM", "stream": 7} for i, name in enumerate(names)]
    trace = make_trace(kernels=rows)

    found = find_fusions(trace[KERNELS], trace[HOST_OPS], np.zeros(3, np.int64), [fusion("swiglu")])

    assert found["swiglu"].rows.tolist() == [0, 2]


@st.composite
def overlapping(draw: st.DrawFn) -> tuple[dict[str, Matches], dict[str, np.ndarray]]:
    found, saved = {}, {}
    for name in ("a", "b", "c"):
        used: set[int] = set()
        groups = []
        for group in draw(st.lists(st.sets(st.integers(0, 20), min_size=1, max_size=4), max_size=6)):
            if not group & used:
                used |= group
                groups.append(sorted(group))
        rows = np.array([row for group in groups for row in group], np.int64)
        sizes = np.array([len(group) for group in groups], np.int64)
        count = len(groups)
        found[name] = Matches(
            rows=rows, firsts=np.cumsum(sizes) - sizes, host=np.full(count, -1), forward=np.ones(count, bool),
            behind=np.zeros(len(rows), bool),
        )  # fmt: skip
        saved[name] = np.array(draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), float)
    return found, saved


@given(overlapping())
def test_each_kernel_is_in_one_match_and_the_most_valuable_rows_come_first(
    case: tuple[dict[str, Matches], dict[str, np.ndarray]],
) -> None:
    found, saved = case

    kept = chosen(found, saved)

    rows = [row for matches in kept.values() for row in matches.rows.tolist()]
    assert len(rows) == len(set(rows))
    with_matches = [name for name in found if len(found[name])]
    if with_matches:
        best = max(with_matches, key=lambda name: (saved[name].mean(), found[name].lengths.mean(), -ord(name)))
        assert kept[best].rows.tolist() == found[best].rows.tolist()
    # What was left out touches a kernel that a kept match holds.
    for name in with_matches:
        held = _groups(kept[name]) if name in kept else []
        for part in _groups(found[name]):
            assert part in held or set(part) & set(rows)


def _groups(matches: Matches) -> list[list[int]]:
    return [part.tolist() for part in np.split(matches.rows, matches.firsts[1:])]


@pytest.mark.parametrize("count", [0, 1])
def test_few_kernels(make_trace: Make, count: int) -> None:
    rows = [{"start_ns": 1, "dur_ns": 1, "name": "k", "op_type": "Mul", "stream": 1}] * count
    trace = make_trace(kernels=rows)
    assert find_fusions(trace[KERNELS], trace[HOST_OPS], np.zeros(count, np.int64), [fusion("swiglu")]) == {}
