"""The device table and who it is asked for."""

from __future__ import annotations

import pytest

from ascend_perf.device.specs import device_specs, ridge_flop_per_byte, source_titles, spec_for
from ascend_perf.model.trace import Device


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("A100-SXM4-40GB", "a100-sxm-40"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("NVIDIA H200", "h200"),  # not H20
        ("NVIDIA H20", "h20"),
    ],
)
def test_a_gpu_is_found_by_its_name(name: str, spec: str) -> None:
    found = spec_for(Device(kind="gpu", name=name))

    assert found is not None
    assert found.id == spec
    assert found.basis == "table"


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "AMD Radeon Graphics", "", None])
def test_a_gpu_that_is_not_in_the_table_has_no_peak(name: str | None) -> None:
    assert spec_for(Device(kind="gpu", name=name)) is None


def test_figures_are_in_si_units_with_their_source() -> None:
    h100 = device_specs()["h100-sxm"]

    assert h100.matrix_peak("bf16") == 989.4e12
    assert h100.memory_bytes_per_s.value == 3350e9
    assert h100.memory_bytes.value == 80 * 2**30
    assert set(h100.matrix_flops_per_s["bf16"].sources) <= set(source_titles())
    assert ridge_flop_per_byte(h100, "bf16") == pytest.approx(989.4 / 3.35)
    assert h100.matrix_peak("int3") is None


def test_the_peak_of_an_unnamed_ascend_part_follows_from_cores_and_frequency() -> None:
    device = Device(
        kind="npu", name="Ascend910B", cube_cores=24, vector_cores=48, frequency_hz=1_800_000_000, derivation="counters"
    )

    spec = spec_for(device)

    assert spec is not None
    assert spec.basis == "derived"
    assert spec.note == "counters"
    assert spec.matrix_peak("bf16") == 24 * 1.8e9 * 8192  # 353.9 TFLOPS
    assert spec.matrix_peak("fp32") == 24 * 1.8e9 * 2048
    assert spec.matrix_peak("int8") == 24 * 1.8e9 * 16384
    assert spec.vector_peak("fp16") == 48 * 1.8e9 * 256
    assert spec.vector_peak("fp32") == 48 * 1.8e9 * 128
    assert spec.memory_bytes_per_s.value is None  # nobody fills it in


def test_the_family_name_in_a_profile_does_not_name_a_part() -> None:
    # "Ascend910B" in CANN's files is a first-generation chip, in a profile the family of 910B1 to 910B4.
    assert spec_for(Device(kind="npu", name="Ascend910B")) is None
    exact = spec_for(Device(kind="npu", name="Ascend910B4"))
    assert exact is not None
    assert exact.id == "ascend-910b4"
    named = spec_for(Device(kind="npu", name="Ascend910B", spec="ascend-910b2"))
    assert named is not None
    assert named.cube_cores == 24


def test_a_cpu_has_no_peak_in_the_table() -> None:
    assert spec_for(Device(kind="cpu", name="cpu")) is None


def test_derived_and_table_peaks_agree_for_the_known_parts() -> None:
    for spec in device_specs().values():
        if spec.cube_cores and spec.frequency_hz and spec.kind == "npu":
            peak = spec.matrix_peak("fp16")
            assert peak is not None
            assert spec.cube_cores * spec.frequency_hz * 8192 == pytest.approx(peak, rel=1e-3), spec.id


def test_what_all_parts_of_like_cores_and_frequency_share_holds_for_an_unnamed_one() -> None:
    # 20 cores at 1800 MHz: 910B3 and one die of a 910C, both with 64 GiB at 1.6 TB/s.
    spec = spec_for(Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_798_000_000))
    assert spec is not None
    assert spec.basis == "derived"
    assert spec.memory_bytes.value == 64 * 2**30
    assert spec.memory_bytes_per_s.value == 1.6e12

    # 20 cores at 1500 MHz: the parts differ, so nothing is known.
    slower = spec_for(Device(kind="npu", cube_cores=20, vector_cores=40, frequency_hz=1_500_000_000))
    assert slower is not None
    assert slower.memory_bytes_per_s.value is None
