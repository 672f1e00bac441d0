"""What `dtype: auto` asks of a device."""

from __future__ import annotations

from typing import Any

import pytest

from ascend_perf.workloads._auto_dtype import has_bf16, target_here
from ascend_perf.workloads._spec import Target

pytestmark = pytest.mark.torch


class Device:
    """torch.cuda or torch.npu as far as it is asked."""

    def __init__(self, native: bool, emulated: bool) -> None:
        self.native, self.emulated = native, emulated

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return self.native or (including_emulation and self.emulated)


@pytest.mark.parametrize(("native", "emulated"), [(True, True), (False, True), (False, False)])
def test_emulated_bf16_does_not_count(monkeypatch: pytest.MonkeyPatch, native: bool, emulated: bool) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "cuda", Device(native, emulated))
    assert has_bf16("cuda") is native


def test_a_release_that_knows_nothing_of_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Old:
        @staticmethod
        def is_bf16_supported() -> bool:
            return True

    monkeypatch.setattr(torch, "npu", Old(), raising=False)
    assert target_here("npu") == Target(kind="npu", has_bf16=True)
    monkeypatch.setattr(torch, "npu", object(), raising=False)
    assert target_here("npu") == Target(kind="npu", has_bf16=False)


@pytest.mark.parametrize("units", [(), ("_is_avx512_bf16_supported",), ("_is_amx_tile_supported",)])
def test_a_processor_with_units_for_bf16(monkeypatch: pytest.MonkeyPatch, units: tuple[str, ...]) -> None:
    torch: Any = pytest.importorskip("torch")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in units, raising=False)
    assert target_here("cpu") == Target(kind="cpu", has_bf16=bool(units))
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert not has_bf16("cpu")
