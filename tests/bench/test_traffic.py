"""Traffic counted in a trace of torch over gloo: sizes by hand, and what the trace does not tell stays unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_perf.bench.traffic import CountedTraffic, of_trace


def call(name: str, dims: object, kinds: object, times: int = 1) -> list[dict[str, object]]:
    category = "user_annotation" if name.startswith("gloo:") else "cpu_op"
    args = {"Input Dims": dims, "Input type": kinds}
    return [{"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": args}
            for at in range(times)]  # fmt: skip


def counted(tmp_path: Path, *events: list[dict[str, object]], steps: int = 1) -> CountedTraffic:
    path = tmp_path / "rank0.pt.trace.json"
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    document = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": [one for part in events for one in part]}
    path.write_text(json.dumps(document), "utf-8")
    made = of_trace(path, steps)
    assert made is not None
    return made


def test_the_input_counts_and_of_all_gather_the_output(tmp_path: Path) -> None:
    said = counted(
        tmp_path,
        call("c10d::_allgather_base_", [[8, 8], [4, 8], []], ["float", "float", ""]),
        call("c10d::_reduce_scatter_base_", [[2, 8], [4, 8], []], ["c10::BFloat16", "c10::BFloat16", ""], times=2),
        call("c10d::alltoall_base_", [[4, 8], [4, 8], []], ["float", "float", ""]),
        call("c10d::recv_", [[[4, 8]], []], ["TensorList", ""]),
        steps=2,
    )

    # 64 values of 4 bytes; twice 32 values of 2 bytes; 32 values of 4 bytes: over two steps.
    assert said == {
        "collectives": [
            {"collective": "all_gather", "bytes_per_step": 128, "calls_per_step": 0.5},
            {"collective": "all_to_all", "bytes_per_step": 64, "calls_per_step": 0.5},
            {"collective": "reduce_scatter", "bytes_per_step": 64, "calls_per_step": 1},
        ],
        "unknown_calls_per_step": 0,
    }


def test_a_list_takes_its_dtype_from_the_backend(tmp_path: Path) -> None:
    said = counted(
        tmp_path,
        call("c10d::allreduce_", [[[6]], []], ["TensorList", ""]),
        call("gloo:all_reduce", [[6]], ["c10::BFloat16"]),
    )

    assert said["collectives"] == [{"collective": "all_reduce", "bytes_per_step": 12, "calls_per_step": 1}]


def test_as_many_elements_in_two_dtypes_are_summed_when_the_backend_saw_as_many_calls(tmp_path: Path) -> None:
    said = counted(
        tmp_path,
        call("c10d::allreduce_", [[[2, 3]], []], ["TensorList", ""], times=3),
        call("gloo:all_reduce", [[6]], ["float"], times=2),
        call("gloo:all_reduce", [[2, 3]], ["c10::BFloat16"]),
    )

    # 6 values: twice of 4 bytes, once of 2.
    assert said["collectives"] == [{"collective": "all_reduce", "bytes_per_step": 60, "calls_per_step": 3}]
    assert said["unknown_calls_per_step"] == 0


@pytest.mark.parametrize(
    ("name", "kind"), [("gloo:all_reduce", "Mystery"), ("gloo:send", "c10::BFloat16"), ("gloo:nothing", "float")]
)
def test_calls_that_the_backend_does_not_settle_are_unknown(tmp_path: Path, name: str, kind: str) -> None:
    said = counted(
        tmp_path,
        call("c10d::allreduce_", [[[6]], []], ["TensorList", ""], times=3),
        call("gloo:all_reduce", [[6]], ["float"], times=2),
        call("gloo:send", [[6]], ["c10::BFloat16"]),
        call(name, [[6]], [kind]),
    )

    assert said == {"collectives": [], "unknown_calls_per_step": 3}
