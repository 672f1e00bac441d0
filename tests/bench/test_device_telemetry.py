"""A run with sensors of devices beside it: samples lie on the clock of the trace, and come out in the report."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from ascend_perf import pipeline
from ascend_perf.bench.launch import Request, launch
from ascend_perf.collectors import device_telemetry
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.device_telemetry import DeviceSample, Source
from ascend_perf.model.tables import STEPS, TELEMETRY
from ascend_perf.reports.phrases import spoken
from tests.bench.test_launch import FAST_LLM
from tests.collectors._ascend_tree import tool

WATCH = """
import itertools, json, sys, time
words = sys.argv[1:]
if words == ["info", "-m"]:
    for cells in (["NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"], ["0", "0", "0", "Ascend 910B2"]):
        print("\\t" + "".join(cell.ljust(31) for cell in cells))
elif words[:2] == ["info", "watch"]:
    for number in itertools.count():
        print("NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  ")
        print(f"0           0           250.0       {40 + number % 9}          0           ", flush=True)
        time.sleep(0.01)
else:
    print("This device does not support querying " + words[2] + ".")
"""


@pytest.mark.torch
def test_samples_are_aligned_with_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    tool(tmp_path / "bin", "npu-smi", WATCH)
    machine = Machine(root=tmp_path, environment={**os.environ, "PATH": str(tmp_path / "bin")})
    here = device_telemetry.sources_here

    def of_an_npu(seen: Machine, kind: str, *, exporter: str | None = None) -> tuple[list[Source], list[str]]:
        assert (kind, exporter) == ("cpu", None)
        return here(machine, "npu")

    monkeypatch.setattr(device_telemetry, "sources_here", of_an_npu)

    folder, manifest = launch(
        Request(workload="llm-pretrain", overrides=(*FAST_LLM, "measured_steps=60"), device="cpu"),
        folder=tmp_path / "run",
    )

    assert manifest.files["device_telemetry"] == ("device_telemetry.csv",)
    assert not any(note.startswith("device telemetry: npu-smi: ") for note in manifest.notes), manifest.notes
    run = pipeline.load([folder])
    (samples,) = [trace[TELEMETRY] for trace in run.traces if trace.has(TELEMETRY)]
    (profile,) = [trace for trace in run.traces if trace.has(STEPS)]
    starts = profile[STEPS].ints("start_ns") + profile.meta.clock_base_ns
    time, phase = samples.ints("time_ns"), samples.text("phase").to_list()
    first, last = int(starts[0]), int(starts[-1] + profile[STEPS].ints("dur_ns")[-1])
    # One clock: what was sampled before the profiler ran lies before its first step, what came after behind it.
    assert all(at < first for at, name in zip(time.tolist(), phase, strict=True) if name in ("warmup", "measured"))
    assert all(at > last for at, name in zip(time.tolist(), phase, strict=True) if name == "export")
    # AI Core use that reads 0 under the profiler is marked, and a 0 of the measured steps is not.
    ratios = {name: set() for name in ("measured", "export")}  # type: dict[str, set[tuple[bool, str | None]]]
    for name, use, invalid in zip(
        phase, samples.floats("use_ratio").tolist(), samples.text("invalid").to_list(), strict=True
    ):
        if name in ratios:
            ratios[name].add((use == use, invalid))
    assert ratios["measured"] <= {(True, None), (True, "")}
    assert ratios["export"] <= {(False, device_telemetry.INVALID)}

    result = pipeline.report([folder], out=tmp_path / "report", formats=("json", "html"), lang="en", force=True)
    document = json.loads(result.paths["json"].read_text("utf-8"))
    (outcome,) = [one for one in document["outcomes"] if one["analyzer"] == "telemetry"]
    assert outcome["status"] == "done"
    assert "Devices beside the run, by phase" in result.paths["html"].read_text("utf-8")


def test_energy_of_devices_without_a_counter_comes_from_their_power() -> None:
    second = 10**9
    samples = [
        DeviceSample(time_ns=n * second // 4, phase="measured", source="npu-smi", device=device, power_w=power)
        for n, (device, power) in itertools.product(range(41), (("npu4", 100.0), ("npu6", 300.0), ("npu0", 50.0)))
    ]
    names = [f"npu{device_telemetry.visible({'ASCEND_RT_VISIBLE_DEVICES': '4,6'}, index)}" for index in range(2)]

    assert device_telemetry.energy_of_devices(samples, names, 2 * second, 7 * second)[0] == pytest.approx(2000)


def test_what_is_said_of_the_energy_is_said_in_chinese_too() -> None:
    second = 10**9
    samples = [
        DeviceSample(time_ns=n * second // 10, phase="measured", source="npu-smi", device="npu0", power_w=100.0)
        for n in range(200) if not 100 <= n < 108
    ]  # fmt: skip
    _, counted = device_telemetry.energy_of_devices(samples, ["npu0", "npu1"], 0, 19 * second)
    _, refused = device_telemetry.energy_of_devices(samples, ["npu0"], 0, 40 * second)

    assert spoken(f"energy is that of {counted}", "zh") == (
        "能耗为 1 个设备功耗样本的梯形积分，不含主机；剔除 1 处缺口，占时间的 4.7 %；"
        "NPU 的功耗为芯片功耗，推理卡与 GPU 为板卡功耗；1 个 die 计入其所在卡的第一个 die"
    )
    assert spoken(refused, "zh") == "没有能耗数据：功耗样本只覆盖计时步的 48 %"
    assert spoken("device telemetry: npu-smi: ended by itself: code 3", "zh") == "设备监测：npu-smi 自行退出：code 3"
