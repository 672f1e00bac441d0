"""Operators of a CPU trace as kernels: the one that computes counts, once."""

from __future__ import annotations

from ascend_perf.ops.cpu_ops import operators_as_kernels
from tests.conftest import build_table


def op(name: str, start: int, dur: int, thread: int = 1, dtypes: str | None = None) -> dict[str, object]:
    return {"name": name, "start_ns": start, "dur_ns": dur, "thread": thread, "input_dtypes": dtypes}


def test_of_nested_calls_the_one_that_computes_is_taken() -> None:
    ops = build_table(
        "host_ops",
        [
            op("aten::linear", 0, 100),  # only calls others
            op("aten::t", 1, 5),  # describes memory
            op("aten::transpose", 2, 3),
            op("aten::matmul", 10, 80),  # only calls others
            op("aten::mm", 15, 70),
            op("aten::mean", 200, 50),  # computes, with two helpers of its own
            op("aten::sum", 205, 20),
            op("aten::div_", 230, 10),
            op("aten::exp", 300, 10),  # not in our list, calls nothing: counts
            op("aten::mm", 15, 60, thread=2),  # another thread is no child
            op("MmBackward0", 400, 30),  # autograd node that calls an operator
            op("aten::mm", 405, 20),
        ],
    )

    kernels = operators_as_kernels(ops)

    rows = list(zip(kernels.text("name"), kernels.text("op_type"), kernels.ints("dur_ns").tolist(), strict=True))
    assert rows == [
        ("aten::mm", "MatMul", 70),
        ("aten::mean", "ReduceMean", 50),
        ("aten::exp", "exp", 10),
        ("aten::mm", "MatMul", 60),
        ("aten::mm", "MatMul", 20),
    ]
    assert kernels.ints("stream").tolist() == [1, 1, 1, 2, 1]


def test_a_copy_between_types_is_a_cast() -> None:
    ops = build_table(
        "host_ops",
        [
            op("aten::copy_", 0, 5, dtypes="float;c10::BFloat16;"),
            op("aten::copy_", 10, 5, dtypes="float;float;"),
            op("aten::copy_", 20, 5),  # types not recorded: no claim of a cast
        ],
    )
    assert operators_as_kernels(ops).text("op_type").to_list() == ["Cast", "TensorMove", "TensorMove"]
