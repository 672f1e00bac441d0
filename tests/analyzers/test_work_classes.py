"""The roofline by class of kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.model.finding import Outcome
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
H100 = Meta(rank=0, device=Device(kind="gpu", name="NVIDIA H100 80GB HBM3", spec="h100-sxm"))
PEAK, RATE = 989.4e12, 3.35e12
"""Dense bf16 and memory of the device table."""
MM = {"name": "aten::mm", "input_shapes": "4096,4096;4096,4096", "input_dtypes": "c10::BFloat16;c10::BFloat16"}
SMALL = {"name": "aten::mm", "input_shapes": "1,4096;4096,4096", "input_dtypes": "c10::BFloat16;c10::BFloat16"}
ADD = {"name": "aten::add", "input_shapes": "4096,4096;4096,4096", "input_dtypes": "float;float"}


def _trace(make_trace: Make, kernels: list[tuple[str, int, int]], meta: Meta = H100) -> Trace:
    return make_trace(
        meta=meta, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 10_000_000}],
        host_ops=[{"start_ns": 0, "dur_ns": 1, **op} for op in (MM, SMALL, ADD)],
        kernels=[
            {"start_ns": at * 1_000_000, "dur_ns": dur, "name": name, "host_op": op, "core": "SM"}
            for at, (name, dur, op) in enumerate(kernels)
        ],
    )  # fmt: skip


def _rows(outcome: Outcome) -> dict[object, dict[str, object]]:
    table = next(table for table in outcome.tables if table.name == "roofline-classes")
    rows = [dict(zip((c.name for c in table.columns), cells, strict=True)) for cells in zip(*table.data, strict=True)]
    return {row["class"]: row for row in rows}


def test_the_roof_of_each_class(make_trace: Make) -> None:
    # 200 us for a product that needs 138.9 us; 100 us for one that moves its weights (10 us); an add of 60 us floor.
    outcome = mac_utilisation.run_on_trace(
        _trace(
            make_trace,
            [("gemm_bf16", 200_000, 0), ("gemm_bf16", 100_000, 1), ("vectorized_elementwise_kernel", 90_000, 2),
             ("unknown_thing", 10_000, -1)],
        )
    )  # fmt: skip
    rows = _rows(outcome)

    first = 2 * 4096**3 / PEAK * 1e9
    second = 2 * (4096 + 4096**2 + 4096) / RATE * 1e9
    product = rows["matmul"]
    assert product["flops"] == 2 * 4096**3 + 2 * 4096**2
    assert product["bytes"] == 2 * 3 * 4096**2 + 2 * (4096**2 + 2 * 4096)
    assert product["efficiency_ratio"] == pytest.approx((first + second) / 300_000)
    assert product["wasted_ns"] == pytest.approx(300_000 - first - second)
    assert product["bound"] == "compute-bound"
    assert product["flops_formula"] == "2·M·N·K" and product["bytes_formula"] == "|A| + |B| + |C|"
    add = rows["elementwise"]
    floor = 3 * 4 * 4096**2 / RATE * 1e9
    assert add["flops"] == 4096**2
    assert add["efficiency_ratio"] == pytest.approx(floor / 90_000)
    assert add["bound"] == "memory-bound"
    assert add["flops_formula"] == "≥ 1·|Y|"
    assert add["achieved_bytes_per_s"] == pytest.approx(3 * 4 * 4096**2 / 90e-6)
    assert rows["other"]["flops"] is None and rows["other"]["efficiency_ratio"] is None
    assert next(iter(rows)) == "matmul"  # most time wasted first
    metrics = {metric.name: metric.value for metric in outcome.metrics}
    assert metrics["flops_known"] == pytest.approx(390 / 400) == metrics["bytes_known"]


def test_without_a_memory_rate_only_products_have_a_floor(make_trace: Make) -> None:
    meta = Meta(rank=0, device=Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_500_000_000))
    rows = {
        "input_shapes": "4096,4096;4096,4096", "output_shapes": "4096,4096", "output_dtypes": "DT_BF16",
        "input_dtypes": "DT_BF16;DT_BF16", "dur_ns": 1_000_000,
    }  # fmt: skip
    trace = make_trace(
        meta=meta, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 10_000_000}],
        kernels=[
            rows | {"start_ns": 0, "name": "m", "op_type": "MatMulV3", "core": "AIC"},
            rows | {"start_ns": 1_000_000, "name": "a", "op_type": "Add", "core": "AIV"},
        ],
    )  # fmt: skip

    found = _rows(mac_utilisation.run_on_trace(trace))

    assert found["matmul"]["efficiency_ratio"] == pytest.approx(2 * 4096**3 / (20 * 1.5e9 * 8192) / 1e-3)
    assert found["elementwise"]["efficiency_ratio"] is None
    assert found["matmul"]["bound"] is None
    assert found["elementwise"]["flops"] == 4096**2


def test_copies_alone_are_no_data(make_trace: Make) -> None:
    trace = make_trace(
        meta=H100, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 10_000}],
        host_ops=[{"start_ns": 0, "dur_ns": 1, "name": "aten::copy_"}],
        kernels=[{"start_ns": 0, "dur_ns": 9, "name": "direct_copy_kernel_cuda", "host_op": 0, "core": "SM"}],
    )  # fmt: skip

    outcome = mac_utilisation.run_on_trace(trace)

    assert outcome.status == "no_data"
    assert outcome.reason is not None and "record_shapes=True" in outcome.reason.en
