"""micro: the work of each case by hand, rates from it, and calls that compute what their name says."""

from __future__ import annotations

import pytest

from ascend_perf.workloads._spec import Place
from ascend_perf.workloads.micro import Case, Config, ceilings, dtypes_of, micro, rows_of

TINY = Config(
    gemm_shapes="4,2x3x5", attention_tokens="8", attention_heads=2, head_width=4, norm_rows=3, norm_width=8,
    copy_bytes=64, stream_bytes=64, iterations=2, dtypes="fp32",
)  # fmt: skip


def case(part: str, name: str, flops: int, size_bytes: int, dtype: str = "fp32") -> Case:
    return Case(part, name, dtype, "shape", flops, size_bytes, lambda: None)  # type: ignore[arg-type]  # a part


def test_rates_come_from_the_median_time() -> None:
    # Median of 1, 2 and 9 us is 2 us: 4000 FLOPs in it are 2 GFLOP/s, 600 bytes 300 MB/s.
    tables = rows_of([case("gemm", "matmul", 4000, 600), case("norm", "rms_norm", 0, 600)], [[1000, 9000, 2000]] * 2)

    assert tables["gemm"] == [
        {"name": "matmul", "dtype": "fp32", "shape": "shape", "samples": 3, "time_us": 2.0, "time_min_us": 1.0,
         "flops_per_s": 2e9, "bytes_per_s": 3e8},
    ]  # fmt: skip
    assert "flops_per_s" not in tables["norm"][0]


def test_a_ceiling_is_the_best_rate_of_its_kind() -> None:
    cases = [
        case("gemm", "matmul", 1000, 1), case("gemm", "matmul", 3000, 1), case("gemm", "matmul", 9000, 1, "bf16"),
        case("stream", "copy", 0, 200), case("stream", "triad", 0, 300), case("copy", "host_to_device", 0, 50),
        case("norm", "rms_norm", 0, 900),
    ]  # fmt: skip

    # 1 us each; what a norm moves is no ceiling of the memory.
    assert ceilings(rows_of(cases, [[1000]] * len(cases))) == {
        "matmul_fp32": 3e9, "matmul_bf16": 9e9, "memory": 3e8, "copy_host_to_device": 5e7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": "gemm,atention"}, "no part 'atention': did you mean 'attention'?"),
        ({"dtypes": "fp32,int3"}, "no dtype 'int3'"),
        ({"gemm_shapes": "4x5"}, "shape '4x5' must be MxNxK or one number"),
        ({"gemm_shapes": "0"}, "shape '0' must be"),
        ({"attention_tokens": "-3"}, "shape '-3' must be"),
        ({"stream_bytes": 8}, "stream_bytes must be 64 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**settings)  # type: ignore[arg-type]  # one field each


def test_fp16_is_not_measured_on_a_cpu_unless_asked_for() -> None:
    assert dtypes_of(Config(), "cpu") == ["fp32", "bf16"]
    assert dtypes_of(Config(), "npu") == ["fp16", "bf16", "fp32"]
    assert dtypes_of(Config(dtypes="fp16, fp16"), "cpu") == ["fp16"]


@pytest.mark.torch
def test_the_work_of_a_pass_by_hand_and_warm_up_is_forgotten() -> None:
    pytest.importorskip("torch")
    program = micro.build(TINY, Place(), 0)
    program.step()
    program.start_measuring()
    program.step()
    program.step()
    tables = program.tables()

    # 2 x 4^3 + 2 x 2 x 3 x 5 = 188; attention 4 x 2 heads x 8 x 8 x 4 = 2048; two calls of each.
    assert program.flops_per_step == (188 + 2048) * 2
    assert program.items_per_step == 2 * (2 + 1 + 2 + 1 + 4)  # gemm, attention, norms, the one copy, stream
    assert [row["name"] for row in tables["stream"]] == ["copy", "scale", "add", "triad"]
    assert {row["samples"] for rows in tables.values() for row in rows} == {4}
    # 16 elements of 4 bytes: two arrays for copy and scale, three for add and triad.
    moved = [float(row["bytes_per_s"]) * float(row["time_us"]) / 1e6 for row in tables["stream"]]  # type: ignore[arg-type]
    assert moved == pytest.approx([128, 128, 192, 192])


@pytest.mark.torch
def test_the_stream_kernels_compute_what_stream_says() -> None:
    torch = pytest.importorskip("torch")
    from ascend_perf.workloads.micro import stream_cases

    results = {case.name: case.run() for case in stream_cases(TINY, "cpu")}
    # All write the same array: what stands in it is the last one's, a + 3 b = 1 + 3 x 2.
    assert all(torch.equal(out, torch.full((16,), 7.0)) for out in results.values())
    again = {case.name: torch.as_tensor(case.run()).clone() for case in stream_cases(TINY, "cpu")}
    assert [float(again[name][0]) for name in ("copy", "scale", "add", "triad")] == [1.0, 3.0, 3.0, 7.0]
