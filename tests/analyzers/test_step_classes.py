"""The step by class of kernel: parts that add up, passes, engines, and sums of real profiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers.step_breakdown import step_breakdown
from ascend_perf.analyzers.step_classes import step_classes
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.pipeline import load
from tests.conftest import build_table

Make = Callable[..., Trace]
Key = tuple[object, object, object]
NPU = Meta(rank=0, device=Device(kind="npu"))


def kernel(start: int, dur: int, op_type: str, core: str) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": f"aclnn_{op_type}", "op_type": op_type, "core": core, "stream": 1}


def parts(outcome: Outcome) -> dict[Key, tuple[object, ...]]:
    """Class, pass and engine, with count, kernel time, time and share."""
    (table,) = outcome.tables
    return {row[:3]: row[3:] for row in zip(*table.data, strict=True)}


def test_classes_passes_and_engines_are_told_apart_and_add_up(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}, {"step_id": 2, "start_ns": 1000, "dur_ns": 1000}],
        kernels=[
            kernel(0, 300, "FlashAttentionScore", "MIX_AIC"),
            kernel(300, 200, "FlashAttentionScoreGrad", "MIX_AIC"),
            kernel(500, 100, "MatMulV3", "AIC"),
            kernel(550, 100, "Add", "AIV"),  # half of it beside the product
            kernel(1000, 100, "MatMulV3", "AIC"),
            kernel(1100, 40, "IndexPutV2", "AICPU"),
        ],
        comm_ops=[{"start_ns": 600, "dur_ns": 200, "name": "c", "op": "allReduce"}],  # 50 ns beside Add
        copies=[{"start_ns": 750, "dur_ns": 100, "kind": "H2D"}],  # 50 ns beside the collective
    )

    found = parts(step_classes.run_on_trace(trace))

    # Count, kernel time and time of the step are means of two steps; 2000 ns are the whole.
    assert found == {
        ("attention", "forward", "cube"): (0.5, 150, 150, 0.15),
        ("attention", "backward", "cube"): (0.5, 100, 100, 0.1),
        ("matmul", None, "cube"): (1.0, 100, 100, 0.1),
        ("elementwise", None, "vector"): (0.5, 50, 25, 0.025),
        ("index", None, "aicpu"): (0.5, 20, 20, 0.02),
        ("communication", None, "communication"): (None, None, 75, 0.075),
        ("copy", None, "copy"): (None, None, 25, 0.025),
        ("free", None, "free"): (None, None, 505, 0.505),
    }


def test_side_kernels_of_fused_communication_are_no_computing(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}],
        kernels=[kernel(0, 50, "MatMulV3", "AIC"), kernel(0, 90, "x", "AIV") | {"name": "MatmulAllReduceAicpuKernel"}],
    )
    found = parts(step_classes.run_on_trace(trace))
    assert {key[0] for key in found} == {"matmul", "free"}
    assert found["free", None, "free"][2] == 50


def test_without_kernels_or_times_there_is_no_data(make_trace: Make) -> None:
    assert step_classes.run_on_trace(make_trace(meta=NPU)).status == "no_data"
    unknown = make_trace(meta=NPU, kernels=[{"name": "k", "start_ns": None, "dur_ns": 5}])
    assert step_classes.run_on_trace(unknown).status == "no_data"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 120), st.integers(0, 40),
            st.sampled_from(["MatMulV3", "Add", "Cast", "Conv2D", "hcom", "copy"]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_parts_are_those_of_a_count_by_nanosecond(rows: list[tuple[int, int, str]]) -> None:
    cores = {"MatMulV3": "AIC", "Conv2D": "AIC", "Add": "AIV", "Cast": "AIV"}
    kernels = [kernel(start, dur, kind, cores[kind]) for start, dur, kind in rows if kind in cores]
    others: dict[str, list[dict[str, object]]] = {
        "comm_ops": [{"start_ns": s, "dur_ns": d, "name": "c", "op": "allReduce"} for s, d, k in rows if k == "hcom"],
        "copies": [{"start_ns": s, "dur_ns": d, "kind": "H2D"} for s, d, k in rows if k == "copy"],
    }
    windows = [(0, 60), (60, 60)]
    steps: list[dict[str, object]] = [{"step_id": n, "start_ns": s, "dur_ns": d} for n, (s, d) in enumerate(windows)]
    tables: dict[str, list[dict[str, object]]] = {
        "kernels": [*kernels, kernel(0, 1, "MatMulV3", "AIC")], "steps": steps, **others
    }  # fmt: skip
    trace = Trace({name: build_table(name, part) for name, part in tables.items() if part}, NPU)

    found = parts(step_classes.run_on_trace(trace))

    order = [key[0] for key in found]
    named = {"matmul": "MatMulV3", "conv": "Conv2D", "elementwise": "Add", "cast": "Cast", "communication": "hcom",
             "copy": "copy"}  # fmt: skip
    spent = dict.fromkeys(order, 0)
    everything = [*rows, (0, 1, "MatMulV3")]
    for at in range(120):
        active = {kind for start, dur, kind in everything if start <= at < start + dur}
        spent[next((name for name in order if named.get(str(name)) in active), "free")] += 1
    assert {key[0]: value[2] for key, value in found.items()} == {name: ns / 2 for name, ns in spent.items()}


@pytest.mark.parametrize("name", ["text/level1", "db/level2", "qwen3-0.6b-pp2-dp2-level2/rank_0_ascend_pt"])
def test_real_steps_add_up_to_their_length_and_computing(name: str, traces: Path) -> None:
    for trace in load(traces / "ascend-pytorch" / name).traces:
        found = parts(step_classes.run_on_trace(trace))
        engines = {key[2] for key in found}
        assert {"cube", "vector", "communication", "free"} <= engines
        assert sum(float(str(row[3])) for row in found.values()) == pytest.approx(1)
        span = {"text/level1": (136_581_009, 131_912_616), "db/level2": (124_219_742,)}.get(name, (810_022_360,))
        whole = sum(float(str(row[2])) for row in found.values())
        assert min(abs(whole - one) for one in span) <= 300
        if name.startswith("qwen"):
            assert found["attention", "backward", "cube"][1] == 63_128_660
            assert found["attention", "forward", "cube"][1] == 24_718_660
            assert found["matmul", None, "cube"][1] == 58_022_860
            assert found["communication", None, "communication"][2] == 420_174_260


def test_a_gpu_trace_is_split_too(traces: Path) -> None:
    (trace,) = load(traces / "kineto/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz").traces
    found = parts(step_classes.run_on_trace(trace))
    # No engine is named on a GPU. Kernels before and behind the step do not count.
    kernels = sum(float(str(row[2])) for key, row in found.items() if key[2] is None)
    steps = next(table for table in step_breakdown.run_on_trace(trace).tables if table.name == "steps")
    assert kernels / 1000 == pytest.approx(float(str(steps.column("computing_us")[0])))
    assert {"matmul", "attention", "elementwise"} <= {key[0] for key in found}
