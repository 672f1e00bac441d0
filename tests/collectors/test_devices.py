"""Which device is taken, and what is said when the one that was asked for is not there."""

from __future__ import annotations

import json
import subprocess

import pytest

from ascend_perf.collectors import devices
from ascend_perf.collectors.devices import Inventory, SeenDevice, choose
from ascend_perf.errors import MachineError

CPU = SeenDevice(type="cpu", index=0, name="a processor", cores=2)
GPU = SeenDevice(type="cuda", index=0, name="a GPU", memory_bytes=8, cores=100)
NPU = SeenDevice(type="npu", index=0, name="Ascend910B4")


def inventory(*seen: SeenDevice, problems: tuple[str, ...] = ()) -> Inventory:
    return Inventory(devices=seen, torch_version="2.13.0", torch_npu_version=None, problems=problems)


@pytest.mark.parametrize(
    ("seen", "taken"), [((CPU,), CPU), ((GPU, CPU), GPU), ((CPU, GPU, NPU), NPU), ((CPU, NPU), NPU)]
)
def test_auto_takes_npu_then_cuda_then_cpu(seen: tuple[SeenDevice, ...], taken: SeenDevice) -> None:
    assert choose("auto", inventory(*seen)) == taken


def test_a_device_that_is_there_is_taken_by_name() -> None:
    assert choose("cpu", inventory(NPU, GPU, CPU)).torch_name == "cpu"
    assert choose("cuda", inventory(NPU, GPU, CPU)).torch_name == "cuda:0"


def test_an_absent_device_is_the_machines_matter_and_the_reason_is_given() -> None:
    with pytest.raises(MachineError) as caught:
        choose("npu", inventory(CPU, problems=("npu: libhccl.so: cannot open shared object file",)))

    assert caught.value.exit_code == 4
    assert caught.value.what == (
        "no npu device here, torch sees: cpu (npu: libhccl.so: cannot open shared object file)"
    )
    assert "torch_npu" in caught.value.hint


def test_an_inventory_survives_the_way_between_processes() -> None:
    seen = inventory(GPU, CPU, problems=("a",))

    assert devices.from_json(devices.to_json(seen)) == seen


def test_without_torch_the_cpu_is_listed_and_the_remedy_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed_version", lambda package: None)

    seen = devices.probe()

    assert [device.type for device in seen.devices] == ["cpu"]
    assert seen.torch_version is None
    assert seen.problems == ('torch is not installed: pip install "ascend-perf[torch]"',)


def test_a_back_end_that_does_not_load_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def answer(command: list[str], *, env: dict[str, str], **kinds: object) -> subprocess.CompletedProcess[str]:
        asked.append(env.get(devices.AUTOLOAD))
        if env.get(devices.AUTOLOAD) == "0":
            return subprocess.CompletedProcess(command, 0, "noise\n" + devices.to_json(inventory(CPU)) + "\n", "")
        return subprocess.CompletedProcess(command, 4, "torch cannot be imported: libhccl.so is missing\n", "")

    monkeypatch.delenv(devices.AUTOLOAD, raising=False)
    monkeypatch.setattr(devices, "installed_version", lambda package: "2.13.0")
    monkeypatch.setattr(subprocess, "run", answer)

    seen = devices.probe()

    assert asked == [None, "0"]
    assert seen.devices == (CPU,)
    assert seen.problems == ("npu: torch cannot be imported: libhccl.so is missing",)
    assert seen.environment == {devices.AUTOLOAD: "0"}


def test_a_torch_that_hangs_is_a_problem_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **kinds: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 180)

    monkeypatch.setattr(devices, "installed_version", lambda package: "2.13.0" if package == "torch" else None)
    monkeypatch.setattr(subprocess, "run", hang)

    assert devices.probe().problems == ("torch did not answer within 180 s",)


@pytest.mark.torch
def test_the_child_process_tells_what_torch_sees() -> None:
    torch = pytest.importorskip("torch")

    seen = devices.probe()

    assert seen.torch_version == torch.__version__
    assert seen.devices[-1].type == "cpu"
    assert (seen.devices[-1].cores or 0) >= 1
    assert [device.type for device in seen.devices].count("cuda") == torch.cuda.device_count()
    assert json.loads(devices.to_json(seen))["torch_version"] == torch.__version__
