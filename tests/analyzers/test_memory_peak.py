"""Blocks alive at the peak against brute force, and by owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.analyzers.memory_peak import alive_at, memory_peak, most_alive
from ascend_perf.model.finding import Outcome
from ascend_perf.model.tables import MEMORY, MEMORY_BLOCKS
from ascend_perf.model.trace import Trace
from tests.conftest import build_table

Make = Callable[..., Trace]
MIB = 2**20


def _block(name: str, mib: int, alloc: int | None, free: int | None, thread: int | None = None) -> dict[str, object]:
    return {"name": name, "size_bytes": mib * MIB, "alloc_ns": alloc, "free_ns": free, "thread": thread}


def _rows(outcome: Outcome) -> list[dict[str, object]]:
    table = next(table for table in outcome.tables if table.name == "peak-blocks")
    return [dict(zip((c.name for c in table.columns), cells, strict=True)) for cells in zip(*table.data, strict=True)]


def test_blocks_at_the_peak_by_operator_module_and_line(make_trace: Make) -> None:
    stack = "torch/nn/functional.py(1): linear\nnet/model.py(7): forward"
    trace = make_trace(
        memory=[
            {"time_ns": at, "component": "PTA", "allocated_bytes": mib * MIB, "reserved_bytes": 500 * MIB}
            for at, mib in ((0, 100), (50, 400), (90, 150))
        ],
        memory_blocks=[
            _block("aten::mm", 80, 10, 60, 1),
            _block("aten::mm", 120, 20, None, 1),
            _block("aten::mm", 30, 20, 50, 1),  # freed just then
            _block("aten::add", 60, 51, 80, 1),  # not yet
            _block("aten::relu", 40, 35, 70, 1),
            _block("old", 10, None, 75),
        ],
        host_ops=[
            {"start_ns": 5, "dur_ns": 20, "name": "aten::mm", "thread": 1, "stack": stack},
            {"start_ns": 30, "dur_ns": 10, "name": "aten::relu", "thread": 1},
        ],
        python_calls=[{"start_ns": 28, "dur_ns": 20, "name": "nn.Module: ReLU_2", "thread": 1}],
    )

    outcome = memory_peak.run_on_trace(trace)

    product, relu, old = _rows(outcome)
    assert (product["name"], product["line"], product["module"]) == ("aten::mm", "model.py(7): forward", None)
    assert (product["blocks"], product["size_bytes"], product["largest_bytes"]) == (2, 200 * MIB, 120 * MIB)
    assert product["share_ratio"] == 0.5
    assert (product["alloc_ns"], product["held_ns"]) == (10, 50.0)  # the other one is never freed
    assert (relu["name"], relu["module"], relu["line"]) == ("aten::relu", "ReLU_2", None)
    assert (old["name"], old["alloc_ns"], old["held_ns"]) == ("old", None, None)
    assert {m.name: m.value for m in outcome.metrics} == {"peak_blocks_known": 250 / 400}


def test_without_samples_the_blocks_tell_the_peak(make_trace: Make) -> None:
    trace = make_trace(memory_blocks=[_block("a", 5, 0, 10), _block("b", 7, 5, 9), _block("c", 9, 10, 20)])

    outcome = memory_peak.run_on_trace(trace)

    # a and b together are 12; a ends when c begins.
    assert [(row["name"], row["share_ratio"]) for row in _rows(outcome)] == [("b", 7 / 12), ("a", 5 / 12)]
    assert not outcome.metrics


def test_an_allocator_that_counts_nothing_is_not_believed(make_trace: Make) -> None:
    memory = [{"time_ns": n, "component": "PTA", "allocated_bytes": 0, "reserved_bytes": 0} for n in (5, 15)]
    outcome = memory_peak.run_on_trace(make_trace(memory=memory, memory_blocks=[_block("a", 3, 10, 20)]))
    assert outcome.status == "done" and not outcome.metrics
    (row,) = _rows(outcome)
    assert (row["size_bytes"], row["share_ratio"]) == (3 << 20, 1.0)


def test_blocks_without_sizes_are_no_data(make_trace: Make) -> None:
    trace = make_trace(memory_blocks=[{"name": "a", "alloc_ns": 3}])

    assert memory_peak.run_on_trace(trace).status == "no_data"


TIMES = st.one_of(st.none(), st.integers(0, 30))


@given(st.lists(st.tuples(st.integers(1, 9), TIMES, st.integers(1, 12), st.booleans()), min_size=1, max_size=10))
def test_the_peak_of_blocks_against_every_instant(raw: list[tuple[int, int | None, int, bool]]) -> None:
    rows = [
        _block("x", mib, alloc, None if never and alloc is not None else (alloc or 0) + life)
        for mib, alloc, life, never in raw
    ]
    blocks = build_table("memory_blocks", rows)

    def total(at: int) -> int:
        return sum(
            int(str(row["size_bytes"])) for row in rows
            if (row["alloc_ns"] is None or int(str(row["alloc_ns"])) <= at)
            and (row["free_ns"] is None or int(str(row["free_ns"])) > at)
        )  # fmt: skip

    when = most_alive(blocks)

    assert int(blocks.ints("size_bytes")[alive_at(blocks, when)].sum()) == total(when)
    assert total(when) == max(total(at) for at in range(-1, 50))


def test_the_peak_of_a_detector_is_its_attention(traces: Path) -> None:
    # OWLv2: scores of 16 heads x 5185 x 5185 in bf16, once before and once after the softmax.
    path = traces / "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz"
    scores = 16 * 5185 * 5185 * 2

    outcome = memory_peak.run_on_trace(pipeline.load(path).traces[0])

    first, second = _rows(outcome)[:2]
    assert {first["name"], second["name"]} == {"aten::bmm", "aten::_softmax"}
    for row in (first, second):
        assert scores <= int(str(row["size_bytes"])) <= scores * 1.001  # blocks are rounded up
        assert row["line"] == "modeling_owlv2.py(410): forward"
        assert str(row["module"]).startswith("Owlv2Attention")


def test_blocks_of_kineto_add_up_to_what_the_allocator_says(traces: Path) -> None:
    trace = pipeline.load(traces / "kineto/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz").traces[0]
    memory, blocks = trace[MEMORY], trace[MEMORY_BLOCKS]
    rows = np.flatnonzero(memory.text("component").equals("CUDA"))
    allocated, times = memory.ints("allocated_bytes")[rows], memory.ints("time_ns")[rows]
    # What was there before the first event, of which the first sample tells the sum after it.
    before = int(allocated[0]) - int(blocks.ints("size_bytes")[alive_at(blocks, int(times[0]))].sum())

    for at in range(0, len(rows), 997):
        alive = int(blocks.ints("size_bytes")[alive_at(blocks, int(times[at]))].sum())
        assert before + alive == allocated[at]
