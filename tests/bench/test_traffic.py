"""Calls of collectives counted from a trace: sizes by hand, unknown ones not guessed."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench.traffic import Counted, CountedTraffic, busiest, of_trace

Call = tuple[str, list[object], list[object]]
BYTES = {"float": 4, "c10::BFloat16": 2, "long int": 8}
LIST = "TensorList"


def trace_of(folder: Path, calls: Sequence[Call], groups: Sequence[int] = (2,)) -> Path:
    """A trace as torch writes it over gloo: operators with `c10d::` before, ranges of the back end with `gloo:`."""
    events = [
        {
            "ph": "X", "cat": "cpu_op" if name.startswith(("c10d", "aten")) else "user_annotation", "name": name,
            "pid": 1, "tid": 1, "ts": 10.0 * place, "dur": 5.0,
            "args": {"External id": place, "Input Dims": dims, "Input type": types},
        }
        for place, (name, dims, types) in enumerate(calls, 1)
    ]  # fmt: skip
    config = [{"pg_name": str(number), "pg_size": size} for number, size in enumerate(groups)]
    document = {
        "schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": config},
        "traceEvents": events,
    }  # fmt: skip
    path = folder / "rank0.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_each_collective_is_counted_by_its_own_size(tmp_path: Path) -> None:
    path = trace_of(tmp_path, [
        ("c10d::allreduce_", [[[10, 3]], []], [LIST, ""]),  # 30 fp32 in: 120
        ("gloo:all_reduce", [[10, 3]], ["float"]),
        ("c10d::allreduce_", [[[7]], []], [LIST, ""]),  # 7 bf16 in: 14
        ("gloo:all_reduce", [[7]], ["c10::BFloat16"]),
        ("c10d::_allgather_base_", [[20, 3], [10, 3], []], ["float", "float", ""]),  # 60 out: 240
        ("c10d::allgather_", [[], [[10, 3]], []], ["", LIST, ""]),  # 30 in, two ranks: 240
        ("c10d::allgather_into_tensor_coalesced_", [[[14]], [[7]]], [LIST, LIST]),  # 14 out, dtype by its input: 28
        ("c10d::_reduce_scatter_base_", [[5, 3], [10, 3]], ["float", "float"]),  # 30 in: 120
        ("c10d::reduce_scatter_tensor_coalesced_", [[[15]], [[10, 3]]], [LIST, LIST]),  # 30 in: 120
        ("c10d::alltoall_base_", [[4], [6]], ["long int", "long int"]),  # 6 in: 48
        ("c10d::alltoall_", [[[7], [7]], [[7], [30]]], [LIST, LIST]),  # 7 bf16 and 30 fp32 in: 134
        ("c10d::broadcast_", [[[7]], []], [LIST, ""]),  # 14
        ("c10d::send", [[[10, 3]], []], [LIST, ""]),  # 120
        ("c10d::recv_", [[[10, 3]], []], [LIST, ""]),  # the other end
        ("c10d::barrier", [[1]], ["unsigned char"]),
        ("_c10d_functional::all_reduce", [[10, 3]], ["float"]),  # holds a c10d operator
        ("aten::mm", [[10, 3], [3, 3]], ["float", "float"]),
    ])  # fmt: skip

    seen = of_trace(path, steps=2)

    assert seen == CountedTraffic(
        collectives=[
            Counted(collective="all_gather", bytes_per_step=254, calls_per_step=1.5),
            Counted(collective="all_reduce", bytes_per_step=67, calls_per_step=1),
            Counted(collective="all_to_all", bytes_per_step=91, calls_per_step=1),
            Counted(collective="broadcast", bytes_per_step=7, calls_per_step=0.5),
            Counted(collective="reduce_scatter", bytes_per_step=120, calls_per_step=1),
            Counted(collective="send", bytes_per_step=60, calls_per_step=0.5),
        ],
        unknown_calls_per_step=0,
    )


def test_a_size_that_the_trace_does_not_tell_is_unknown_and_in_no_sum(tmp_path: Path) -> None:
    path = trace_of(tmp_path, [
        ("c10d::allreduce_", [[[4]], []], [LIST, ""]),  # no range tells the dtype
        ("c10d::allreduce_", [[[5]], []], [LIST, ""]),  # two ranges tell different ones
        ("gloo:all_reduce", [[5]], ["float"]),
        ("gloo:all_reduce", [[5]], ["long int"]),
        ("c10d::allgather_", [[], [[5]], []], ["", LIST, ""]),  # groups of 2 and 4
        ("c10d::_allgather_base_", [], []),  # recorded without shapes
        ("c10d::_reduce_scatter_base_", [[2], [4]], ["float", "no dtype"]),
        ("c10d::broadcast_", [[3], []], ["float", ""]),
    ], groups=(2, 4))  # fmt: skip

    seen = of_trace(path, steps=1)

    assert seen == CountedTraffic(
        collectives=[Counted(collective="broadcast", bytes_per_step=12, calls_per_step=1)], unknown_calls_per_step=5
    )


def test_a_trace_of_an_npu_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "rank0_1_ascend_pt").mkdir()
    assert of_trace(tmp_path / "rank0_1_ascend_pt", 1) is None


def test_the_busiest_rank_moves_most_bytes_over_all_collectives() -> None:
    def moved(*bytes_per_step: float) -> CountedTraffic:
        collectives = [Counted(collective="send", bytes_per_step=one, calls_per_step=1) for one in bytes_per_step]
        return CountedTraffic(collectives=collectives, unknown_calls_per_step=0)

    assert busiest([moved(9), moved(5, 5), moved()]) == moved(5, 5)


SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=3)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(sorted(BYTES))), max_size=12), st.integers(1, 4))
def test_sums_are_those_of_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[list[int], str]], steps: int
) -> None:
    written: list[Call] = [("aten::mm", [[1]], ["float"])]
    written += [("c10d::alltoall_base_", [[1], shape], [kind, kind]) for shape, kind in calls]
    path = trace_of(tmp_path_factory.mktemp("trace"), written)

    seen = of_trace(path, steps)

    assert seen is not None
    total = sum(math.prod(shape) * BYTES[kind] for shape, kind in calls)
    expected = [Counted(collective="all_to_all", bytes_per_step=total / steps, calls_per_step=len(calls) / steps)]
    assert seen["collectives"] == (expected if calls else [])
