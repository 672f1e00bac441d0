"""MAC utilisation, bound classes, roofline and the rows C-02, C-03 and M-01."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers.mac_utilisation import mac_utilisation
from ascend_perf.model.finding import Outcome, ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]
# 20 cores at 1.5 GHz: 245.76 TFLOPS in bf16.
NPU = Meta(rank=0, device=Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_500_000_000))


def _table(outcome: Outcome, name: str) -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _row(table: ResultTable, op_type: str) -> dict[str, object]:
    at = table.column("op_type").index(op_type)
    return {column.name: cells[at] for column, cells in zip(table.columns, table.data, strict=True)}


def _cube(start: int, dur: int, **more: object) -> dict[str, object]:
    return {
        "start_ns": start, "dur_ns": dur, "name": "mm", "op_type": "MatMulV3", "core": "AIC", "stream": 2,
        "input_shapes": "4096,1024;1024,4096", "output_shapes": "4096,4096", "input_dtypes": "DT_BF16;DT_BF16",
        "output_dtypes": "DT_BF16", "aic_scalar_ratio": 0.1, "aic_mte1_ratio": 0.4, "aic_fixpipe_ratio": 0.05,
    } | more  # fmt: skip


def test_mfu_is_mac_ratio_times_cube_utilisation(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        # 100 us x 20 cores x 1.5 GHz = 3e6 core cycles; 2.7e6 of them were used.
        kernels=[
            _cube(
                0,
                100_000,
                aic_mac_ratio=0.8,
                aic_mte2_ratio=0.5,
                cube_utilization_ratio=0.9,
                aic_total_cycles=2_700_000,
            )
        ],
    )

    outcome = mac_utilisation.run_on_trace(trace)

    row = _row(_table(outcome, "mac"), "MatMulV3")
    assert row["mfu_ratio"] == pytest.approx(0.72)
    assert row["efficiency_ratio"] == pytest.approx(0.72)
    assert row["wasted_ns"] == pytest.approx(28_000)
    assert row["pmu_flops_per_s"] == pytest.approx(8192 * 2_700_000 * 0.8 / 100e-6)
    assert row["shape_flops_per_s"] == pytest.approx(2 * 4096 * 1024 * 4096 / 100e-6)
    assert row["peak_flops_per_s"] == 20 * 1.5e9 * 8192
    assert row["bound"] == "mixed"  # 0.8 is not above 0.8
    assert {m.name: m.value for m in outcome.metrics}["kernel_mfu"] == pytest.approx(0.72)


def test_cube_utilisation_follows_from_cycles_where_it_is_not_exported(make_trace: Make) -> None:
    trace = make_trace(meta=NPU, steps=STEP, kernels=[_cube(0, 100_000, aic_mac_ratio=0.5, aic_total_cycles=2_400_000)])

    row = _row(_table(mac_utilisation.run_on_trace(trace), "mac"), "MatMulV3")

    assert row["cube_utilisation_ratio"] == pytest.approx(0.8)
    assert row["mfu_ratio"] == pytest.approx(0.4)


def test_the_arithmetic_set_gives_mac_ratio_and_rate(traces: Path) -> None:
    # 2023 set: 8192 FLOP per cycle; the first product runs at 314 TFLOPS by 2MNK (1478.18 us, 4096x4608x12288).
    run = pipeline.load(traces / "kernel-details" / "kernel_details_2023_arithmetic_gpt.csv")

    table = _table(mac_utilisation.run_on_trace(run.traces[0]), "mac")

    at = table.column("shapes").index("4096,12288;4608,12288")
    by_shape, by_counters = table.column("shape_flops_per_s")[at], table.column("pmu_flops_per_s")[at]
    assert by_shape == pytest.approx(314e12, rel=0.01)
    assert isinstance(by_shape, float) and isinstance(by_counters, float)
    assert 1.013 <= by_counters / by_shape <= 1.033


@pytest.mark.parametrize(
    ("dtypes", "hf32", "per_cycle"),
    [
        ("DT_BF16;DT_BF16", "NO", 8192),
        ("FLOAT;FLOAT", "NO", 2048),
        ("INT8;INT8", "NO", 16384),
        ("FLOAT;FLOAT", "YES", None),
    ],
)
def test_the_rate_by_counters_uses_the_factor_of_the_dtype(
    make_trace: Make, dtypes: str, hf32: str, per_cycle: int | None
) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[_cube(0, 1000, input_dtypes=dtypes, hf32_eligible=hf32, aic_mac_ratio=0.5, aic_total_cycles=1000)],
    )

    row = _row(_table(mac_utilisation.run_on_trace(trace), "mac"), "MatMulV3")

    # HF32 has no public rate: neither a rate nor a peak.
    assert row["pmu_flops_per_s"] == (None if per_cycle is None else pytest.approx(per_cycle * 1000 * 0.5 / 1e-6))
    assert row["peak_flops_per_s"] == (None if per_cycle is None else 20 * 1.5e9 * per_cycle)


def test_vector_kernels_are_read_from_the_vector_columns(make_trace: Make) -> None:
    # The cube columns of a vector kernel hold 0: that is no idle pipe. ForeachAddList moves at 0.97.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            {
                "start_ns": 0, "dur_ns": 700_000, "name": "f", "op_type": "ForeachAddList", "core": "AIV",
                "aic_mac_ratio": 0.0, "aic_mte2_ratio": 0.0, "aiv_vec_ratio": 0.06, "aiv_mte2_ratio": 0.97,
                "aiv_mte3_ratio": 0.39, "aiv_scalar_ratio": 0.1,
            }
        ],
    )  # fmt: skip

    outcome = mac_utilisation.run_on_trace(trace)

    row = _row(_table(outcome, "mac"), "ForeachAddList")
    assert row["bound"] == "MTE-bound"
    assert row["busiest_pipe_ratio"] == 0.97
    assert row["mac_ratio"] is None
    assert not outcome.findings


@pytest.mark.parametrize(
    ("ratios", "bound"),
    [
        ({"aic_mac_ratio": 0.85, "aic_mte2_ratio": 0.7}, "MAC-bound"),
        ({"aic_mac_ratio": 0.5, "aic_mte2_ratio": 0.9}, "MTE-bound"),
        ({"aic_mac_ratio": 0.5, "aic_fixpipe_ratio": 0.9}, "MTE-bound"),
        ({"aic_mac_ratio": 0.2, "aic_scalar_ratio": 0.9}, "scalar-bound"),
        ({"aic_mac_ratio": 0.9}, "MAC-bound"),
        ({"aic_mac_ratio": 0.3}, None),  # ArithmeticUtilization: the loads are not known
        ({"aic_mac_ratio": 0.3, "aic_mte2_ratio": 0.4}, "latency-bound"),
        ({"aic_mac_ratio": 0.6, "aic_mte2_ratio": 0.4}, "mixed"),
    ],
)
def test_bound_classes(make_trace: Make, ratios: dict[str, float], bound: str | None) -> None:
    trace = make_trace(meta=NPU, steps=STEP, kernels=[_cube(0, 1000, **ratios)])

    assert _row(_table(mac_utilisation.run_on_trace(trace), "mac"), "MatMulV3")["bound"] == bound


def test_products_that_wait_for_operands_are_found_with_what_could_go(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _cube(0, 200_000, aic_mac_ratio=0.6, aic_mte2_ratio=0.96),
            _cube(300_000, 200_000, aic_mac_ratio=0.85, aic_mte2_ratio=0.96),  # computes well
            _cube(600_000, 200_000, aic_mac_ratio=0.6, aic_mte2_ratio=0.90),  # waits for something else
        ],
    )

    (finding,) = [f for f in mac_utilisation.run_on_trace(trace).findings if f.code == "C-02"]

    assert finding.share_ratio == pytest.approx(0.2 * 0.4)


def test_long_kernels_with_no_busy_pipe_are_weighted_by_their_idle_part(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _cube(0, 200_000, aic_mac_ratio=0.3, aic_mte2_ratio=0.4),
            _cube(300_000, 19_000, aic_mac_ratio=0.1, aic_mte2_ratio=0.1),  # too short
            _cube(400_000, 100_000, aic_mac_ratio=0.81, aic_mte2_ratio=0.4),  # MAC-bound
        ],
    )

    (finding,) = [f for f in mac_utilisation.run_on_trace(trace).findings if f.code == "C-03"]

    assert finding.share_ratio == pytest.approx(0.2 * 0.6)
    assert any("aic_mac 0.30" in str(e.value) for e in finding.evidence)


def test_memory_bound_needs_a_known_peak(make_trace: Make) -> None:
    relu = {
        "start_ns": 0, "dur_ns": 100_000, "name": "c", "op_type": "Relu", "core": "AIV", "input_shapes": "10000000",
        "output_shapes": "10000000", "input_dtypes": "FLOAT", "output_dtypes": "FLOAT", "aiv_mte2_ratio": 0.95,
        "aiv_vec_ratio": 0.05,
    }  # fmt: skip
    unknown = mac_utilisation.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[relu]))
    # 910B4: 800 GB/s. 80 MB in 100 us are exactly that.
    known = mac_utilisation.run_on_trace(
        make_trace(meta=Meta(device=Device(kind="npu", spec="ascend-910b4")), steps=STEP, kernels=[relu])
    )
    slower = mac_utilisation.run_on_trace(
        make_trace(
            meta=Meta(device=Device(kind="npu", spec="ascend-910b4")), steps=STEP, kernels=[relu | {"dur_ns": 200_000}]
        )
    )

    assert [(j.code, j.verdict) for j in unknown.judged if j.code == "M-01"] == [("M-01", "not_judged")]
    (finding,) = [f for f in known.findings if f.code == "M-01"]
    assert finding.share_ratio == 0.1
    assert [j.verdict for j in slower.judged if j.code == "M-01"] == ["clean"]  # 50 % of the peak

    # Row C-10 counts the time of casts.
    cast = make_trace(
        meta=Meta(device=Device(kind="npu", spec="ascend-910b4")), steps=STEP, kernels=[relu | {"op_type": "Cast"}]
    )
    assert [j.verdict for j in mac_utilisation.run_on_trace(cast).judged if j.code == "M-01"] == ["clean"]


def test_the_roofline_states_its_coverage_and_roofs_their_basis(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _cube(0, 300_000, aic_mac_ratio=0.5),
            {"start_ns": 400_000, "dur_ns": 100_000, "name": "x", "core": "AIV"},
        ],
    )

    outcome = mac_utilisation.run_on_trace(trace)

    roofline = _table(outcome, "roofline")
    size = 2 * (4096 * 1024 * 2 + 4096 * 4096)
    assert list(roofline.column("intensity_flops_per_byte")) == [pytest.approx(2 * 4096 * 1024 * 4096 / size)]
    assert roofline.note is not None
    assert "75 %" in roofline.note.en
    roofs = _table(outcome, "roofs")
    assert set(roofs.column("basis")) == {"derived"}
    assert set(roofs.column("kind")) == {"compute"}  # no bandwidth roof: the memory rate is not known


def test_gpu_products_are_held_against_the_peak_of_the_device(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(device=Device(kind="gpu", name="NVIDIA H100 80GB HBM3")),
        steps=STEP,
        host_ops=[
            {
                "start_ns": 0, "dur_ns": 1, "name": "aten::mm", "thread": 1, "input_shapes": "1000,1000;1000,1000",
                "input_dtypes": "c10::BFloat16;c10::BFloat16",
            }
        ],
        kernels=[{"start_ns": 0, "dur_ns": 10_000, "name": "sm90_xmma_gemm_bf16", "core": "SM", "host_op": 0}],
    )  # fmt: skip

    outcome = mac_utilisation.run_on_trace(trace)

    assert {m.name: m.value for m in outcome.metrics}["kernel_mfu"] == pytest.approx(2e9 / 10e-6 / 989.4e12)
    assert list(_table(outcome, "mac").column("efficiency_ratio")) == [pytest.approx(2e9 / 10e-6 / 989.4e12)]


def test_pipes_are_not_judged_without_their_counters(make_trace: Make) -> None:
    trace = make_trace(meta=NPU, steps=STEP, kernels=[_cube(0, 200_000, aic_mac_ratio=0.3)])

    judged = {item.code: item.verdict for item in mac_utilisation.run_on_trace(trace).judged}

    assert judged["C-02"] == "not_judged"
    assert judged["C-03"] == "not_judged"


def test_without_counters_and_shapes_there_is_no_data(make_trace: Make) -> None:
    trace = make_trace(meta=NPU, steps=STEP, kernels=[{"start_ns": 0, "dur_ns": 10, "name": "k"}])

    outcome = mac_utilisation.run_on_trace(trace)

    assert outcome.status == "no_data"
    assert outcome.reason is not None
    assert "PipeUtilization" in outcome.reason.en


def test_counters_agree_with_shapes_on_the_real_set(traces: Path) -> None:
    folder = traces / "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2/rank_2_ascend_pt"
    (trace,) = pipeline.load(folder).traces

    outcome = mac_utilisation.run_on_trace(trace)

    table = _table(outcome, "mac")
    rows = [
        (float(str(pmu)) / float(str(shape)))
        for op, pmu, shape in zip(
            *(table.column(c) for c in ("op_type", "pmu_flops_per_s", "shape_flops_per_s")), strict=True
        )
        if op == "MatMulV3" and pmu is not None and shape is not None
    ]
    # Reference: +1.0 to +2.3 % for MatMulV3, +5.2 % for the MIX_AIC head.
    assert rows
    assert all(1.0 <= ratio <= 1.055 for ratio in rows), rows
    # The head's product (4096x151936 @ 151936x1024, MIX_AIC) is there with the most wasted time among products.
    first = next(at for at, op in enumerate(table.column("op_type")) if op == "MatMulV3")
    assert table.column("core")[first] == "MIX_AIC"
    assert table.column("bound")[first] == "latency-bound"
    assert {f.code for f in outcome.findings} >= {"C-02", "C-03"}
