"""Analyzers of one rank on rows with holes, absurd values and in any order: never a crash, never more than the step."""

from __future__ import annotations

import math
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers.aipp import aipp
from ascend_perf.analyzers.dma import dma
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.analyzers.operators import operators
from ascend_perf.analyzers.step_breakdown import step_breakdown
from ascend_perf.analyzers.timeline import timeline
from ascend_perf.model.trace import Device, Meta, Trace
from ascend_perf.plugins import Analyzer
from tests.conftest import build_table

ANALYZERS: Final = (step_breakdown, timeline, operators, mac_utilisation, dma, aipp)
TYPES: Final = (
    "MatMulV3", "BatchMatMulV2", "SoftmaxV2", "Cast", "TransData", "Conv2D", "Mul", "Swish", "Rsqrt", "Pow",
    "ReduceMean", "Adds", "Add", "Neg", "ConcatD", "Slice", "", None,
)  # fmt: skip
SHAPES: Final = ("4,4;4,4", "0,4;4,0", "2,1,4,4,8;9,2,16,8", ";", "", "N/A", "-1,4", None)

times = st.one_of(st.none(), st.integers(0, 400))
ratios = st.one_of(st.none(), st.floats(0, 1.2))
kernels = st.fixed_dictionaries(
    {
        "start_ns": times,
        "dur_ns": st.one_of(st.none(), st.integers(0, 200)),
        "name": st.sampled_from(("aclnnX_MatMulV3", "ampere_sgemm_32x32_nn", "silu_kernel", "")),
        "op_type": st.sampled_from(TYPES),
        "core": st.sampled_from(("AIC", "AIV", "MIX_AIC", "MIX_AIV", "AICPU", "DSA", "SM", None)),
        "stream": st.one_of(st.none(), st.integers(0, 2)),
        "step_id": st.one_of(st.none(), st.integers(1, 4)),
        "block_num": st.one_of(st.none(), st.integers(0, 50)),
        "input_shapes": st.sampled_from(SHAPES),
        "output_shapes": st.sampled_from(SHAPES),
        "input_dtypes": st.sampled_from(("FLOAT;FLOAT", "DT_BF16", "WEIRD;", "", None)),
        "output_dtypes": st.sampled_from(("FLOAT", "DT_BF16", "", None)),
        "input_formats": st.sampled_from(("ND;ND", "FRACTAL_NZ;FRACTAL_NZ", None)),
        "hf32_eligible": st.sampled_from(("YES", "NO", None)),
        "aic_mac_ratio": ratios,
        "aic_mte2_ratio": ratios,
        "aiv_vec_ratio": ratios,
        "aiv_mte2_ratio": ratios,
        "cube_utilization_ratio": ratios,
        "aic_total_cycles": st.one_of(st.none(), st.integers(0, 2**62)),
        "host_op": st.one_of(st.none(), st.integers(-1, 5)),
    }
)
steps = st.fixed_dictionaries(
    {"step_id": st.one_of(st.none(), st.integers(1, 3)), "start_ns": times, "dur_ns": times, "host_start_ns": times}
)
intervals = st.fixed_dictionaries(
    {"start_ns": times, "dur_ns": times, "name": st.sampled_from(("a", "preprocess::decode"))}
)


def _trace(
    kind: str | None,
    step_rows: list[dict[str, object]],
    kernel_rows: list[dict[str, object]],
    other_rows: list[dict[str, object]],
) -> Trace:
    rows: dict[str, list[dict[str, object]]] = {
        "steps": step_rows,
        "kernels": kernel_rows,
        "comm_ops": [row | {"op": "receive"} for row in other_rows],
        "comm_tasks": [
            row | {"kind": "Notify_Wait", "comm_op": i - 1} for i, row in enumerate(_without_name(other_rows))
        ],
        "copies": [row | {"kind": "H2D", "size_bytes": 7} for row in other_rows],
        "host_ops": [row | {"thread": 1, "input_shapes": "2,2;2,2"} for row in other_rows],
        "host_events": [row | {"kind": "user", "thread": 1} for row in other_rows],
        "exported_steps": [{"step_id": 1, "computing_ns": 5, "free_ns": None, "stage_ns": 9}] if other_rows else [],
    }
    device = Device(kind=kind, cube_cores=20, vector_cores=40, frequency_hz=10**9)  # type: ignore[arg-type] # sampled
    tables = {name: build_table(name, table) for name, table in rows.items() if table}
    return Trace(tables, Meta(rank=1, device=device))


def _without_name(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "name"} for row in rows]


@pytest.mark.parametrize("item", ANALYZERS, ids=[item.name for item in ANALYZERS])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(("npu", "gpu", "cpu", None)),
    step_rows=st.lists(steps, max_size=3),
    kernel_rows=st.lists(kernels, max_size=8),
    other_rows=st.lists(intervals, max_size=4),
)
def test_odd_rows_neither_crash_nor_claim_more_than_the_step(
    item: Analyzer,
    kind: str | None,
    step_rows: list[dict[str, object]],
    kernel_rows: list[dict[str, object]],
    other_rows: list[dict[str, object]],
) -> None:
    outcome = item.run_on_trace(_trace(kind, step_rows, kernel_rows, other_rows))

    assert outcome.status != "failed", outcome.reason
    for finding in outcome.findings:
        assert finding.share_ratio is None or 0 <= finding.share_ratio <= 1
    for table in outcome.tables:
        for cells in table.data:
            assert all(not isinstance(cell, float) or math.isfinite(cell) for cell in cells)
            assert all(cell is None or isinstance(cell, str | int | float) for cell in cells)
        if table.name == "steps":
            for span, computing in zip(table.column("span_us"), table.column("computing_us"), strict=True):
                if isinstance(span, float) and isinstance(computing, float) and "events" in table.column("source"):
                    assert computing <= span + 1e-9 or "exporter" in table.column("source")
        if table.name == "step-bar":
            assert math.fsum(cell for cell in table.column("share_ratio") if isinstance(cell, float)) == pytest.approx(
                1
            )
