"""Unfused sequences: what counts, and that no kernel counts twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.patterns import Matches, find_patterns


def _find(
    make_trace: Callable[..., Trace], types: Sequence[str], streams: Sequence[int] | None = None
) -> dict[str, Matches]:
    rows = [
        {"start_ns": 10 * i, "dur_ns": 5, "name": "k", "op_type": op_type, "stream": streams[i] if streams else 1}
        for i, op_type in enumerate(types)
    ]
    kernels = make_trace(kernels=rows)[KERNELS]
    return find_patterns(kernels, np.zeros(len(kernels), np.int64))


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("attention", ["BatchMatMulV2", "Muls", "Add", "SoftmaxV2", "DropOutDoMask", "BatchMatMulV2"]),
        ("rms-norm", ["Cast", "Pows", "ReduceMean", "Adds", "Rsqrt", "Mul", "Cast", "Mul"]),
        ("rotary", ["Slice", "Slice", "Neg", "ConcatD", "Mul", "Add"]),
        ("swiglu", ["Swish", "Mul"]),
    ],
)
def test_a_sequence_is_found_with_all_its_kernels(
    make_trace: Callable[..., Trace], name: str, types: list[str]
) -> None:
    found = _find(make_trace, ["Relu", *types, "Relu", *types])

    assert list(found) == [name]
    assert len(found[name]) == 2
    assert found[name].rows.tolist() == [*range(1, 1 + len(types)), *range(2 + len(types), 2 + 2 * len(types))]
    assert found[name].firsts.tolist() == [0, len(types)]


def test_matches_do_not_overlap(make_trace: Callable[..., Trace]) -> None:
    # A chain in which each product ends one attention and could begin the next.
    found = _find(make_trace, ["BatchMatMul", "SoftmaxV2", "BatchMatMul", "SoftmaxV2", "BatchMatMul"])

    assert len(found["attention"]) == 1
    assert found["attention"].rows.tolist() == [0, 1, 2]


def test_other_streams_and_other_kernels_break_a_sequence(make_trace: Callable[..., Trace]) -> None:
    assert not _find(make_trace, ["Swish", "Relu", "Mul"])
    assert not _find(make_trace, ["Swish", "Mul"], streams=[1, 2])
    # Kernels of another stream in between do not.
    assert len(_find(make_trace, ["Swish", "Relu", "Mul"], streams=[1, 2, 1])["swiglu"]) == 1


def test_the_product_inside_a_gate_is_not_counted(make_trace: Callable[..., Trace]) -> None:
    found = _find(make_trace, ["MatMulV3", "Swish", "MatMulV3", "Mul"])

    assert found["swiglu"].rows.tolist() == [1, 3]


def test_a_step_border_breaks_a_sequence(make_trace: Callable[..., Trace]) -> None:
    kernels = make_trace(
        kernels=[
            {"start_ns": 0, "dur_ns": 5, "name": "a", "op_type": "Swish", "stream": 1},
            {"start_ns": 9, "dur_ns": 5, "name": "b", "op_type": "Mul", "stream": 1},
        ]
    )[KERNELS]

    assert not find_patterns(kernels, np.array([0, 1]))
    assert not find_patterns(kernels, np.array([-1, -1]))


def test_gpu_kernels_go_by_name(make_trace: Callable[..., Trace]) -> None:
    names = ["silu_kernel", "sm90_xmma_gemm_bf16", "binary_internal::MulFunctor<float>"]
    rows = [{"start_ns": i, "dur_ns": 1, "name": name, "core": "SM", "stream": 7} for i, name in enumerate(names)]
    kernels = make_trace(kernels=rows)[KERNELS]

    assert find_patterns(kernels, np.zeros(3, np.int64))["swiglu"].rows.tolist() == [0, 2]
