"""Operator tables and the rows C-04, C-07 and C-09 to C-11."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.analyzers._kernels import kernel_place
from ascend_perf.analyzers.operators import operators
from ascend_perf.model.finding import Finding, Outcome, ResultTable
from ascend_perf.model.trace import Device, Meta, Trace

Make = Callable[..., Trace]
NPU = Meta(rank=3, device=Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_500_000_000))
GPU = Meta(rank=0, device=Device(kind="gpu", name="NVIDIA A100-SXM4-80GB"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}]


def _table(outcome: Outcome, name: str) -> ResultTable:
    return next(table for table in outcome.tables if table.name == name)


def _finding(outcome: Outcome, code: str, subject: str | None = None) -> Finding:
    found = [f for f in outcome.findings if f.code == code and subject in (None, f.subject)]
    assert len(found) == 1, [f.code for f in outcome.findings]
    return found[0]


def _verdict(outcome: Outcome, code: str) -> str:
    (judged,) = [judged for judged in outcome.judged if judged.code == code]
    return judged.verdict


def _kernel(start: int, dur: int, op_type: str, **more: object) -> dict[str, object]:
    return {
        "start_ns": start,
        "dur_ns": dur,
        "name": f"aclnn_{op_type}",
        "op_type": op_type,
        "core": "AIV",
        "stream": 2,
    } | more


def test_tables_sort_by_time_and_add_up(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _kernel(0, 30, "Relu"),
            _kernel(50, 10, "Add"),
            _kernel(70, 50, "Add"),
            _kernel(200, 10, "Add", core="MIX_AIV"),
        ],
    )

    outcome = operators.run_on_trace(trace)

    types = _table(outcome, "op-types")
    assert types.column("op_type") == ("Add", "Relu", "Add")
    assert types.column("core") == ("AIV", "AIV", "MIX_AIV")
    assert types.column("count") == (2, 1, 1)
    assert types.column("total_ns") == (60, 30, 10)
    assert types.column("cumulative_ratio") == (0.6, 0.9, 1.0)
    assert types.column("mean_ns")[0] == 30
    top = _table(outcome, "top-kernels")
    assert top.column("start_ns")[0] == 70  # the longest Add
    assert top.column("max_ns")[0] == 50
    assert _table(outcome, "core-types").column("total_ns") == (90, 10)


def test_shares_are_unions_of_the_step_and_never_above_it(make_trace: Make) -> None:
    # Four streams convert at once for the whole step: 400 % of kernel time would be wrong, 100 % is right.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[_kernel(0, 1_000_000, "TransData", stream=stream) for stream in range(4)],
    )

    finding = _finding(operators.run_on_trace(trace), "C-09")

    assert finding.share_ratio == 1.0
    assert finding.bound_speedup is None
    assert finding.ranks == (3,)


@pytest.mark.parametrize(("dur", "verdict"), [(2_900, "clean"), (3_100, "found")])
def test_format_conversions_are_found_from_three_percent_of_kernel_time(
    make_trace: Make, dur: int, verdict: str
) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 200_000}],
        kernels=[_kernel(0, dur, "TransData"), _kernel(5_000, 100_000 - dur, "Relu")],
    )

    assert _verdict(operators.run_on_trace(trace), "C-09") == verdict


def test_ai_cpu_kernels_above_twenty_microseconds_are_found(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _kernel(0, 50_000, "NonZero", core="AICPU", input_dtypes="INT64"),
            _kernel(60_000, 19_000, "Index", core="AICPU"),
            _kernel(100_000, 50_000, "Relu"),
        ],
    )

    outcome = operators.run_on_trace(trace)

    finding = _finding(outcome, "C-07")
    assert finding.share_ratio == 0.05  # only the 50 us kernel
    assert "NonZero" in finding.title.en
    assert "Index" not in finding.title.en
    assert {e.start_ns for e in finding.evidence} >= {0}
    assert any(e.value == "INT64" for e in finding.evidence)


def test_what_the_ai_cpu_does_beside_the_cores_gains_nothing(make_trace: Make) -> None:
    # 500 us on the AI CPU, 450 of them while the cores work.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[_kernel(0, 450_000, "Relu"), _kernel(0, 500_000, "DropOutGenMask", core="AICPU")],
    )

    finding = _finding(operators.run_on_trace(trace), "C-07")

    assert finding.share_ratio == pytest.approx(0.05)
    assert "takes 500 us" in finding.title.en
    assert "450 us of it while other kernels run too" in finding.title.en


def test_side_kernels_of_fused_communication_are_no_operators_to_move_off_the_ai_cpu(make_trace: Make) -> None:
    side = _kernel(0, 500_000, "MatmulAllReduce", core="AICPU") | {"name": "MatmulAllReduceAicpuKernel"}
    trace = make_trace(meta=NPU, steps=STEP, kernels=[side, _kernel(0, 450_000, "Relu")])

    assert _verdict(operators.run_on_trace(trace), "C-07") == "clean"


def test_casts_and_layout_copies_are_two_findings(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _kernel(0, 100_000, "Cast"),
            _kernel(100_000, 30_000, "Transpose"),
            _kernel(130_000, 30_000, "TensorMove"),
            _kernel(200_000, 500_000, "Relu"),
        ],
    )

    outcome = operators.run_on_trace(trace)

    assert _finding(outcome, "C-10", "cast").share_ratio == 0.1
    assert _finding(outcome, "C-10", "layout").share_ratio == 0.06
    assert _verdict(outcome, "C-10") == "found"


@pytest.mark.parametrize(
    ("dtypes", "hf32", "verdict"),
    [
        ("FLOAT;FLOAT", "NO", "found"),
        ("FLOAT;FLOAT", None, "found"),  # databases do not hold the column
        ("FLOAT;FLOAT", "YES", "clean"),
        ("DT_BF16;DT_BF16", "NO", "clean"),
        (None, None, "not_judged"),
    ],
)
def test_full_fp32_products_count_three_quarters(
    make_trace: Make, dtypes: str | None, hf32: str | None, verdict: str
) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[_kernel(0, 400_000, "MatMulV3", core="AIC", input_dtypes=dtypes, hf32_eligible=hf32)],
    )

    outcome = operators.run_on_trace(trace)

    assert _verdict(outcome, "C-11") == verdict
    if verdict == "found":
        assert _finding(outcome, "C-11").share_ratio == pytest.approx(0.4 * 0.75)


def test_gpu_products_without_tf32_are_told_by_their_name(make_trace: Make) -> None:
    gemm = {"dur_ns": 400_000, "core": "SM", "stream": 7}
    trace = make_trace(
        meta=GPU,
        steps=STEP,
        kernels=[
            gemm | {"start_ns": 0, "name": "ampere_sgemm_128x64_tn"},
            gemm | {"start_ns": 500_000, "name": "cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1"},
        ],
    )

    finding = _finding(operators.run_on_trace(trace), "C-11")

    # A100: fp32 19.5 against TF32 156 TFLOPS.
    assert finding.share_ratio == pytest.approx(0.4 * (1 - 19.5 / 156))


V100 = Device(vendor="NVIDIA", name="Tesla V100-SXM2-16GB", kind="gpu", compute_capability=(7, 0))
P100 = Device(vendor="NVIDIA", name="Tesla P100-PCIE-16GB", kind="gpu", compute_capability=(6, 0))
UNNAMED = Device(vendor="NVIDIA", kind="gpu")
MI250 = Device(vendor="AMD", name="AMD Instinct MI250X", kind="gpu")
BF16, FP16, TF32 = "dtype=torch.bfloat16", "GradScaler", "set_float32_matmul_precision"


@pytest.mark.parametrize(
    ("device", "kernel", "saving", "remedies"),
    [
        (V100, "volta_sgemm_128x64_tn", 7 / 8, [FP16]),
        (V100, "volta_scudnn_128x64_relu_interior_nn_v1", 7 / 8, [FP16]),
        (V100, "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", 7 / 8, [FP16]),
        (V100, "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5>(int)", 7 / 8, [FP16]),
        (UNNAMED, "volta_sgemm_128x64_tn", 7 / 8, [FP16]),
        (P100, "maxwell_sgemm_128x64_tn", 1.0, [FP16]),
        (UNNAMED, "ampere_sgemm_128x64_tn", 1.0, [BF16, FP16, TF32]),
        (GPU.device, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8", 1 - 19.5 / 156, [BF16, TF32]),
        (MI250, "Cijk_Ailk_Bljk_SB_MT128x64x16_MI16x16x1_SN", 1.0, [BF16]),
    ],
)
def test_remedies_of_fp32_are_what_the_gpu_can_do(
    make_trace: Make, device: Device, kernel: str, saving: float, remedies: list[str]
) -> None:
    row = {"start_ns": 0, "dur_ns": 400_000, "core": "SM", "stream": 7, "name": kernel}
    found = _finding(operators.run_on_trace(make_trace(meta=Meta(device=device), steps=STEP, kernels=[row])), "C-11")
    assert found.share_ratio == pytest.approx(0.4 * saving)
    assert [part in remedy.code for part, remedy in zip(remedies, found.remedies, strict=True)] == [True] * len(
        remedies
    )
    assert ("off the tensor cores" in found.title.en) == (device.vendor != "AMD")


@pytest.mark.parametrize(
    "kernel",
    [
        "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
        "volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)",
        "cutlass_80_tensorop_s1688fprop_optimized_tf32_128x64_16x6",
    ],
)
def test_kernels_on_tensor_cores_and_conversions_are_no_fp32_products(make_trace: Make, kernel: str) -> None:
    row = {"start_ns": 0, "dur_ns": 400_000, "core": "SM", "stream": 7, "name": kernel}
    outcome = operators.run_on_trace(make_trace(meta=Meta(device=V100), steps=STEP, kernels=[row]))
    assert _verdict(outcome, "C-11") == "clean"


def test_blocks_that_do_not_fill_the_last_wave_are_weighted_by_their_loss(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[
            _kernel(0, 100_000, "MatMulV3", core="AIC", block_num=16),  # 16 of 20: a fifth idle
            _kernel(100_000, 100_000, "FlashAttentionScore", core="MIX_AIC", block_num=30),  # 2 waves of 20: a quarter
            _kernel(200_000, 100_000, "Add", block_num=40),  # full
            _kernel(300_000, 1_000, "Add", block_num=1),  # too short to matter
        ],
    )

    finding = _finding(operators.run_on_trace(trace), "C-04")

    assert finding.share_ratio == pytest.approx(0.2 * (0.2 + 0.25) / 2)


def test_without_core_counts_blocks_are_not_judged(make_trace: Make) -> None:
    trace = make_trace(
        meta=Meta(device=Device(kind="npu")),
        steps=STEP,
        kernels=[_kernel(0, 100_000, "MatMulV3", core="AIC", block_num=16)],
    )

    assert _verdict(operators.run_on_trace(trace), "C-04") == "not_judged"


def test_level0_is_not_a_clean_bill(make_trace: Make) -> None:
    trace = make_trace(
        meta=NPU, steps=STEP, kernels=[{"start_ns": 0, "dur_ns": 10, "name": "aclnnMatmul_MatMulCommon_MatMulV2"}]
    )

    outcome = operators.run_on_trace(trace)

    assert {judged.code: judged.verdict for judged in outcome.judged if judged.verdict == "not_judged"} == {
        "C-04": "not_judged", "C-07": "not_judged", "C-11": "not_judged",
    }  # fmt: skip
    assert all(
        "Level1" in judged.reason.en for judged in outcome.judged if judged.verdict == "not_judged" and judged.reason
    )


def test_rows_of_the_npu_are_not_judged_on_a_gpu(make_trace: Make) -> None:
    trace = make_trace(meta=GPU, steps=STEP, kernels=[{"start_ns": 0, "dur_ns": 10, "name": "relu", "core": "SM"}])

    assert {judged.code for judged in operators.run_on_trace(trace).judged} == {"C-09", "C-10", "C-11"}


@pytest.mark.parametrize(
    ("name", "cores", "top"),
    [
        (
            "text/level1/rank0",
            {"AIC": (23, 2805.855), "AIV": (149, 5823.400), "MIX_AIV": (13, 238.962), "DSA": (2, 5.520)},
            {
                "ForeachAddList": (3, 1959.079),
                "TransData": (57, 1423.202),
                "MatMulV2": (8, 921.498),
                "Conv2D": (5, 723.434),
            },
        ),
        (
            "text/level2/rank1",
            {"AIC": (23, 2859.338), "AIV": (149, 5810.736), "MIX_AIV": (13, 226.742), "DSA": (2, 5.460)},
            {
                "ForeachAddList": (3, 1949.120),
                "TransData": (57, 1418.641),
                "MatMulV2": (8, 958.439),
                "Conv2D": (5, 722.194),
            },
        ),
        (
            "qwen3-0.6b-pp2-dp2-level2/rank_2",
            {"AIC": (340, 84415.56), "AIV": (1961, 168357.62), "MIX_AIC": (58, 124287.36), "MIX_AIV": (205, 23387.72)},
            {"FlashAttentionScoreGrad": (28, 62998.88), "Cast": (302, 26745.14), "FlashAttentionScore": (28, 24469.86)},
        ),
    ],
)
def test_sums_agree_with_the_reference(
    traces: Path, name: str, cores: dict[str, tuple[int, float]], top: dict[str, tuple[int, float]]
) -> None:
    (trace,) = pipeline.load(traces / "ascend-pytorch" / f"{name}_ascend_pt").traces

    outcome = operators.run_on_trace(trace)

    for table, key, expected in (("core-types", "core", cores), ("op-types", "op_type", top)):
        shown = _table(outcome, table)
        seen = {
            label: (count, total)
            for label, count, total in zip(*(shown.column(c) for c in (key, "count", "total_ns")), strict=True)
        }
        for label, (count, total_us) in expected.items():
            assert seen[label] == (count, round(total_us * 1000)), label


def test_alexnet_findings_are_the_known_ones(traces: Path) -> None:
    (trace,) = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces

    outcome = operators.run_on_trace(trace)

    codes = {finding.code for finding in outcome.findings}
    assert {"C-09", "C-11"} <= codes
    assert all(f.share_ratio is not None and f.share_ratio < 0.02 for f in outcome.findings)  # computing is 6.5 %


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ("2,8;2,8", "kernels: MatMul, stream 3, inputs 2,8;2,8"),
        ("2,8;;", "kernels: MatMul, stream 3, inputs 2,8"),  # two arguments that are no tensors
        (";", "kernels: MatMul, stream 3"),
        (None, "kernels: MatMul, stream 3"),
    ],
)
def test_the_place_of_a_kernel_names_what_it_was_given(make_trace: Make, shapes: str | None, said: str) -> None:
    trace = make_trace(kernels=[{"start_ns": 0, "dur_ns": 5, "name": "MatMul", "stream": 3, "input_shapes": shapes}])

    assert kernel_place(trace.tables["kernels"], 0) == said
