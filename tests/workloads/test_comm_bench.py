"""comm-bench: sizes and bandwidths by hand, and collectives whose results are really checked."""

from __future__ import annotations

from typing import Any

import pytest

from ascend_perf.device.bus import bus_ratio
from ascend_perf.workloads._spec import Place, Traffic
from ascend_perf.workloads.comm_bench import COLLECTIVES, Config, chosen, comm_bench, predict, rows_of, sizes_bytes
from tests.workloads._ranks import run_ranks

CONFIG = Config(min_bytes=64, max_bytes=1024, factor=4, iterations=2)


def test_sizes_are_rounded_up_to_a_whole_part_for_each_rank() -> None:
    assert sizes_bytes(CONFIG, 2) == [64, 256, 1024]
    # Three ranks of 4-byte elements: parts of 12 bytes. 64 -> 72, 256 -> 264, 1024 -> 1032.
    assert sizes_bytes(CONFIG, 3) == [72, 264, 1032]
    assert sizes_bytes(Config(min_bytes=1, max_bytes=5, factor=2), 2) == [8]  # 1, 2 and 4 are all one part of 8


def test_the_prediction_sums_the_calls() -> None:
    said = predict(Config(collectives="all_reduce, send", min_bytes=64, max_bytes=1024, factor=4, iterations=2), 2)

    assert said.memory_bytes == {"activations": 3072}
    # 2 calls of 64, 256 and 1024 bytes.
    assert said.traffic == tuple(
        Traffic(axis="data", collective=name, bytes_per_step=2688, calls_per_step=6) for name in ("all_reduce", "send")
    )


def test_one_rank_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="2 ranks or more: add --nproc 2"):
        predict(CONFIG, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collectives": "all_reduce,allgather"}, "no collective 'allgather': did you mean 'all_gather'?"),
        ({"collectives": ""}, "no collective ''"),
        ({"min_bytes": 8, "max_bytes": 4}, "max_bytes 4 is less than min_bytes 8"),
        ({"factor": 1}, "factor must be 2 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**settings)  # type: ignore[arg-type]  # one field each


def test_a_collective_named_twice_is_measured_once() -> None:
    assert chosen(Config(collectives="send, all_reduce,send")) == ("send", "all_reduce")


@pytest.mark.parametrize(
    ("collective", "ranks", "ratio"),
    [
        ("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("reduce_scatter", 4, 0.75), ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0), ("send", 2, 1.0), ("all_reduce", 1, 0.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_as_the_nccl_tests_define_it(collective: str, ranks: int, ratio: float) -> None:
    assert bus_ratio(collective, ranks) == ratio


def test_rows_by_hand() -> None:
    # Median of 1, 2 and 6 us is 2 us: 1 MB in it is 500 GB/s, on 4 ranks x 1.5 on the bus.
    (row,) = rows_of({("all_reduce", 1_000_000): [1000, 6000, 2000]}, 4)

    assert row == {
        "collective": "all_reduce", "size_bytes": 1_000_000, "ranks": 4, "samples": 3, "time_us": 2.0,
        "time_min_us": 1.0, "time_max_us": 6.0, "algorithm_bandwidth_bytes_per_s": 5e11,
        "bus_bandwidth_bytes_per_s": 7.5e11,
    }  # fmt: skip


def measure(dtype: str, spoil: bool) -> tuple[float, list[dict[str, object]]]:
    """Two steps on one rank; returns wrong elements and rows. `spoil` damages what this rank receives or adds."""
    import torch.distributed as dist

    place = Place(rank=dist.get_rank(), world_size=dist.get_world_size())
    if spoil and place.rank == 1:
        from ascend_perf.workloads import _collectives

        gather = _collectives.all_gather_whole

        def spoilt(whole_N: Any, part_M: Any, group: Any = None) -> None:
            gather(whole_N, part_M + 1, group)

        _collectives.all_gather_whole = spoilt
    config = Config(min_bytes=64, max_bytes=1024, factor=4, iterations=2, dtype=dtype)  # type: ignore[arg-type]
    program = comm_bench.build(config, place, 0)
    program.step()
    program.start_measuring()
    program.step()
    return program.last_value(), [dict(row) for row in program.tables()["bandwidth"]]


@pytest.mark.torch
def test_every_collective_is_right_and_its_time_the_same_on_all_ranks() -> None:
    pytest.importorskip("torch")
    seen = run_ranks(measure, 2, "bf16", False)

    assert [wrong for wrong, _ in seen] == [0.0, 0.0]
    assert seen[0][1] == seen[1][1]  # the slowest rank's times, on both
    rows = seen[0][1]
    assert [(row["collective"], row["size_bytes"]) for row in rows] == [
        (name, size) for name in COLLECTIVES for size in (64, 256, 1024)
    ]
    assert all(row["samples"] == 2 for row in rows)  # the first step is forgotten


@pytest.mark.torch
def test_a_rank_that_sends_something_else_is_counted() -> None:
    pytest.importorskip("torch")
    seen = run_ranks(measure, 2, "fp32", True)

    # Its half of 16, 64 and 256 elements is wrong on both ranks, in 2 calls of 2 steps: 168 x 2 x 4.
    assert [wrong for wrong, _ in seen] == [1344.0, 1344.0]


def test_without_a_number_it_runs_in_the_two_processes_that_it_needs() -> None:
    assert comm_bench.min_ranks == 2
