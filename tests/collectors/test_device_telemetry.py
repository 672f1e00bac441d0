"""Telemetry of devices: stand-ins of the tools give samples, their processes end with us, zeros are not believed."""

from __future__ import annotations

import csv
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.collectors import _idle_memory, device_telemetry, npu_exporter, nvml
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.device_telemetry import (
    INVALID,
    DeviceSample,
    DeviceSampler,
    Source,
    energy_between,
    energy_of_devices,
    relabelled,
    sources_here,
    visible,
    without_dead,
    write_device_samples,
)
from ascend_perf.errors import InputError
from tests.collectors._ascend_tree import Install, npu_smi, tool, write
from tests.collectors._npu_smi_texts import A2, A3
from tests.collectors._processes import running_in_group

S = 10**9
NOW = 1_790_000_000 * S
MIB = 1 << 20


def machine(root: Path) -> Machine:
    return Machine(root=root, environment={"PATH": str(root / "bin")}, is_here=False)


def sampled(
    sources: list[Source], enough: Callable[[list[DeviceSample]], bool], phase: str = "measured"
) -> DeviceSampler:
    """Sample until there is enough; a minute without is a failure."""
    sampler = DeviceSampler(sources)
    sampler.phase = phase
    with sampler:
        end = time.monotonic() + 60
        while not enough(sampler.samples) and not sampler.problems and time.monotonic() < end:
            time.sleep(0.02)
    return sampler


# ---- npu-smi --------------------------------------------------------------------------------------------------------


def test_watch_of_npu_smi_is_read_as_it_comes_and_ended_with_us(tmp_path: Path) -> None:
    npu_smi(tmp_path / "bin", Install(chips=(A2[0], replace(A2[1], power_w=120.5, ai_core=None, busy=7))))
    sources, notes = sources_here(machine(tmp_path), "npu")
    assert (notes, [source.name for source in sources]) == ([], ["npu-smi", "npu-smi frequency"])

    sampler = sampled(sources, lambda samples: {one.device for one in samples if one.power_w} == {"npu0", "npu1"})

    assert sampler.problems == []
    first = next(one for one in sampler.samples if one.device == "npu0" and one.source == "npu-smi")
    assert (first.power_w, first.temperature_c, first.phase, first.invalid) == (291.4, 57, "measured", "")
    assert first.use_ratio == pytest.approx(0.88)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (round(65536 * MIB * 0.71), 65536 * MIB)
    second = next(one for one in sampler.samples if one.device == "npu1" and one.source == "npu-smi")
    assert second.power_w == 120.5
    assert second.use_ratio == pytest.approx(0.07)  # NA: the whole NPU stands for it
    clock = next(one for one in sampler.samples if one.source == "npu-smi frequency")
    assert (clock.device, clock.frequency_hz, clock.rated_frequency_hz, clock.power_w) == ("npu0", 1.65e9, 1.8e9, None)
    assert [one.time_ns for one in sampler.samples] == sorted(one.time_ns for one in sampler.samples)
    process = sources[0].process
    assert process is not None
    assert process.poll() is not None


def test_use_of_an_npu_that_reads_0_under_a_profiler_is_invalid_and_other_values_are_not(tmp_path: Path) -> None:
    npu_smi(tmp_path / "bin", Install(chips=(replace(A2[0], ai_core=0),)))

    for phase, invalid, ratio in (("profiled", INVALID, None), ("measured", "", 0)):
        sources, _ = sources_here(machine(tmp_path), "npu")
        sampler = sampled(sources[:1], bool, phase)
        assert {(one.invalid, one.use_ratio, one.power_w) for one in sampler.samples} == {(invalid, ratio, 291.4)}


def test_power_of_a_card_with_two_dies_stands_at_the_first(tmp_path: Path) -> None:
    npu_smi(tmp_path / "bin", Install(chips=A3[:2]))
    sources, _ = sources_here(machine(tmp_path), "npu")

    samples = sampled(sources[:1], lambda samples: len(samples) >= 4).samples

    assert {(one.device, one.power_w) for one in samples} == {("npu0", 412.5), ("npu1", None)}


def test_a_tool_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "npu-smi", "import sys\nprint('dcmi module initialize failed. ret is -8005')\nsys.exit(187)")
    sources, _ = sources_here(machine(tmp_path), "npu")

    for source, words in zip(
        sources, ("ended by itself: dcmi module initialize failed. ret is -8005", "no chip is listed"), strict=True
    ):
        sampler = sampled([source], lambda samples: False)
        assert sampler.samples == []
        assert sampler.problems == [f"device telemetry: {source.name}: {words}"]


@pytest.mark.parametrize("kind", ["npu", "cuda", "cpu"])
def test_what_is_absent_is_said(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "is_installed", lambda: False)

    sources, notes = sources_here(machine(tmp_path), kind)  # type: ignore[arg-type]

    assert sources == []
    assert notes == {
        "npu": ["npu-smi not found: driver not installed or not mounted; device telemetry disabled"],
        "cuda": ["NVIDIA driver/NVML not found; GPU telemetry disabled"],
        "cpu": [],
    }[kind]


# ---- npu-exporter ---------------------------------------------------------------------------------------------------

LABELS = (
    'container_name="",id="{id}",model_name="910B2",namespace="",pcie_bus_info="0000:C1:00.0",pod_name="",'
    'vdie_id="a{id}"'
)
EXPORTED = {
    "npu_chip_info_utilization": 88, "npu_chip_info_vector_utilization": 35, "npu_chip_info_power": 291.4,
    "npu_chip_info_temperature": 57, "npu_chip_info_aicore_current_freq": 1650,
    "npu_chip_info_hbm_used_memory": 46530, "npu_chip_info_hbm_total_memory": 65536,
    "npu_chip_info_used_memory": 0, "npu_chip_info_total_memory": 0, "npu_chip_info_hbm_bandwidth_utilization": 43,
    "npu_chip_info_health_status": 1,
}  # fmt: skip


def exported(ids: list[int], time_ms: int = NOW // 10**6, **changes: float) -> str:
    """The text of the endpoint; a metric that a device cannot answer is absent."""
    lines = ["# HELP machine_npu_nums Amount of npu installed on the machine.", "# TYPE machine_npu_nums gauge"]
    lines.append(f"machine_npu_nums {len(ids)} {time_ms}")
    lines.append(f'npu_exporter_version_info{{exporterVersion="v6.0.0"}} 1 {time_ms}')
    for name, value in {**EXPORTED, **changes}.items():
        lines += [f"{name}{{{LABELS.format(id=number)}}} {value} {time_ms}" for number in ids]
    return "\n".join(lines) + "\n"


@contextmanager
def endpoint(answers: Callable[[], tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = answers()
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_figures_of_the_exporter_by_chip() -> None:
    chips = npu_exporter.read(exported([0, 3]))

    assert [(chip.id, chip.model, chip.time_ns) for chip in chips] == [(0, "910B2", NOW), (3, "910B2", NOW)]
    one = chips[0].reading
    assert (one.ai_core_ratio, one.vector_ratio, one.cube_ratio) == (0.88, 0.35, None)
    assert (one.power_w, one.temperature_c, one.frequency_hz) == (291.4, 57, 1.65e9)
    assert (one.memory_used_bytes, one.memory_total_bytes) == (46530 * MIB, 65536 * MIB)  # HBM, not the empty DDR
    failed = npu_exporter.read(exported([0], npu_chip_info_power=-1, npu_chip_info_utilization=-1))[0].reading
    assert (failed.power_w, failed.ai_core_ratio) == (None, None)


NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(max_size=12), max_size=4), st.floats(allow_nan=False))
def test_any_label_and_value_comes_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    labels = {name: "".join(text.splitlines()).strip() for name, text in labels.items()}
    body = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    (found,) = npu_exporter.metrics(f"npu_x{{{body}}} {value!r} 1775531732881\n")

    assert (found.name, found.labels, found.value, found.time_ns) == ("npu_x", labels, value, 1775531732881 * 10**6)


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    assert all(chip.id >= 0 for chip in npu_exporter.read(text))


def test_the_exporter_is_asked_at_the_address_given_and_a_repeated_answer_counts_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def answers() -> tuple[int, str]:
        asked.append(1)
        return 200, exported([0], time_ms=NOW // 10**6 + (0 if len(asked) <= 3 else 1000))

    with endpoint(answers) as url:
        sources, _ = sources_here(machine(tmp_path), "npu", exporter=url, interval_s=0.01)
        samples = sampled(sources, lambda samples: len(samples) >= 2).samples

    assert [(one.device, one.time_ns, one.source) for one in samples[:2]] == [
        ("npu0", NOW, "npu-exporter"), ("npu0", NOW + S, "npu-exporter"),
    ]  # fmt: skip


def test_an_exporter_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    with endpoint(lambda: (503, "busy")) as url:
        with pytest.raises(InputError, match="does not answer"):
            npu_exporter.fetch(url)
        sources, _ = sources_here(machine(tmp_path), "npu", exporter=url, interval_s=0.01)
        (problem,) = sampled(sources, lambda samples: False).problems
        assert problem.startswith("device telemetry: npu-exporter: ")
    with pytest.raises(InputError, match="is no http address"):
        npu_exporter.fetch("file:///etc/hostname")


# ---- NVIDIA ---------------------------------------------------------------------------------------------------------

NVIDIA = """
import sys, time
assert sys.argv[1] == "--query-gpu={fields}", sys.argv
assert sys.argv[2:] == ["--format=csv,noheader,nounits", "-lms", "200"], sys.argv
while True:
    print("0, NVIDIA A100-SXM4-80GB, 97, 41, 61234, 81920, 391.20, 61, 1410, 1410")
    print("1, NVIDIA A100-SXM4-80GB, 0, 0, 4, 81920, [N/A], 30, [Not Supported], 1410", flush=True)
    time.sleep(0.02)
"""


def test_lines_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "is_installed", lambda: False)
    tool(tmp_path / "bin", "nvidia-smi", NVIDIA.format(fields=",".join(nvml.FIELDS)))
    sources, _ = sources_here(machine(tmp_path), "cuda")

    sampler = sampled(sources, lambda samples: len(samples) >= 2, "profiled")

    assert sampler.problems == []
    first, second = (next(one for one in sampler.samples if one.device == name) for name in ("cuda0", "cuda1"))
    assert (first.use_ratio, first.power_w, first.temperature_c, first.frequency_hz) == (0.97, 391.2, 61, 1.41e9)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (61234 * MIB, 81920 * MIB)
    # A GPU does count under a profiler: its 0 is believed. What it does not support is unknown.
    assert (second.use_ratio, second.invalid, second.power_w, second.frequency_hz) == (0, "", None, None)
    assert nvml.row_of("0, NVIDIA A100, 97, 41") is None


class NoDriver(Exception):
    pass


def pynvml(**answers: object) -> SimpleNamespace:
    """Stands for nvidia-ml-py with one GPU; a question without an answer is not supported."""

    def question(name: str) -> Callable[..., object]:
        def ask(*arguments: object) -> object:
            if name not in answers:
                raise NoDriver("Not Supported")
            return answers[name]

        return ask

    names = (
        "UtilizationRates", "MemoryInfo", "PowerUsage", "Temperature", "ClockInfo", "MaxClockInfo",
        "TotalEnergyConsumption",
    )  # fmt: skip
    return SimpleNamespace(
        NVMLError=NoDriver, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1,
        **{f"nvmlDeviceGet{name}": question(name) for name in names},
    )  # fmt: skip


def test_nvml_in_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pynvml(
        UtilizationRates=SimpleNamespace(gpu=97, memory=41), MemoryInfo=SimpleNamespace(used=5, total=9),
        PowerUsage=391200, Temperature=61, ClockInfo=1410, TotalEnergyConsumption=1234567,
    )  # fmt: skip
    monkeypatch.setattr(importlib, "import_module", lambda name: library)

    (one,) = nvml.Nvml().read()

    assert (one.busy_ratio, one.memory_bandwidth_ratio, one.memory_used_bytes) == (0.97, 0.41, 5)
    assert (one.power_w, one.temperature_c, one.frequency_hz) == (391.2, 61, 1.41e9)
    assert one.energy_j == pytest.approx(1234.567)
    assert one.rated_frequency_hz is None  # not supported


def test_what_a_gpu_does_not_support_is_unknown_and_not_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question may raise NVMLError_NotSupported, a kind of NVMLError."""

    class NotSupported(NoDriver):
        pass

    library = pynvml()
    for name in [name for name in vars(library) if name.startswith("nvmlDeviceGet") and "Count" not in name
                 and "Handle" not in name]:  # fmt: skip
        def refuse(*arguments: object) -> object:
            raise NotSupported("Not Supported")

        setattr(library, name, refuse)
    monkeypatch.setattr(nvml, "is_installed", lambda: True)
    monkeypatch.setattr(importlib, "import_module", lambda name: library)
    sources, _ = sources_here(machine(tmp_path), "cuda", interval_s=0.01)

    sampler = sampled(sources, lambda samples: len(samples) >= 2)
    write_device_samples(tmp_path / "x.csv", sampler.samples)

    assert sampler.problems == []
    assert {figure for one in sampler.samples for figure in astuple(one)[4:] if figure != ""} == {None}
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert {key for key, value in row.items() if value} == {"time_ns", "phase", "source", "device"}


def test_nvml_without_a_driver_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pynvml()

    def absent() -> None:
        raise NoDriver("NVML Shared Library Not Found")

    library.nvmlInit = absent
    monkeypatch.setattr(nvml, "is_installed", lambda: True)
    monkeypatch.setattr(importlib, "import_module", lambda name: library)
    sources, _ = sources_here(machine(tmp_path), "cuda")

    assert sampled(sources, lambda samples: False).problems == ["device telemetry: nvml: NVML Shared Library Not Found"]


# ---- RAPL -----------------------------------------------------------------------------------------------------------


def test_counters_of_packages_grow_over_their_end(tmp_path: Path) -> None:
    folder = "/sys/class/powercap/intel-rapl:0"
    write(tmp_path, f"{folder}/name", "package-0\n")
    write(tmp_path, f"{folder}/max_energy_range_uj", "9999999\n")
    counter = write(tmp_path, f"{folder}/energy_uj", "9000000\n")
    sources, _ = sources_here(machine(tmp_path), "cpu", interval_s=0.01)

    later = tmp_path / "later"
    later.write_text("500000\n")

    def enough(samples: list[DeviceSample]) -> bool:
        if len(samples) >= 3 and later.exists():
            later.replace(counter)
        return samples != [] and samples[-1].energy_j == 1.5

    samples = sampled(sources, enough).samples

    assert samples[0].power_w is None
    assert samples[1].power_w == 0
    assert {one.energy_j for one in samples} == {0.0, 1.5}  # 1 000 000 to the end and 500 000 more micro-joules
    assert samples[-1].energy_j == 1.5


# ---- use ------------------------------------------------------------------------------------------------------------


def sample(device: str, second: float, power_w: float | None) -> DeviceSample:
    return DeviceSample(time_ns=NOW + int(second * S), phase="measured", source="x", device=device, power_w=power_w)


def test_energy_by_device_is_the_integral_of_its_power() -> None:
    samples = [sample("npu0", n, 100.0 + 10 * n) for n in range(11)] + [sample("npu1", n, 200.0) for n in range(11)]

    found = energy_between(samples, NOW + 2 * S, NOW + 6 * S)

    assert found["npu0"].value == pytest.approx((120 + 160) / 2 * 4)
    assert found["npu1"].value == pytest.approx(800)
    joules, counted = energy_of_devices(samples, ["npu0", "npu1"], NOW + 2 * S, NOW + 6 * S)
    assert joules == pytest.approx(560 + 800)
    assert counted == (
        "2 devices by samples of their power (trapezoid rule), without the host; the power of an NPU is the chip's, of "
        "an inference card or a GPU the board's"
    )
    gpus = [replace(one, device=one.device.replace("npu", "cuda")) for one in samples]
    assert energy_of_devices(gpus, ["cuda0"], NOW + 2 * S, NOW + 6 * S)[1] == (
        "1 devices by samples of their power (trapezoid rule), without the host"
    )


def test_energy_says_gaps_dies_and_refuses_too_little() -> None:
    dense = [sample("npu0", n / 10, 100.0) for n in range(200) if not 100 <= n < 108]
    joules, counted = energy_of_devices(dense, ["npu0", "npu1"], NOW, NOW + 19 * S)
    assert joules == pytest.approx(100 * (19 - 0.9))
    assert "1 gaps are left out, 4.7 % of the time" in counted
    assert "1 dies are counted with the first die of their card" in counted

    assert energy_of_devices(dense, ["npu0"], NOW, NOW + 40 * S) == (
        None, "no energy: samples of power cover 48 % of the measured steps",
    )  # fmt: skip
    assert energy_of_devices([], ["npu0"], NOW, NOW + S)[0] is None


def test_rows_are_written_with_units_in_the_head(tmp_path: Path) -> None:
    write_device_samples(tmp_path / "x.csv", [sample("npu0", 1, 99.5)])

    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert {key: value for key, value in row.items() if value} == {
        "time_ns": str(NOW + S), "phase": "measured", "source": "x", "device": "npu0", "power_w": "99.5",
    }  # fmt: skip


def test_logic_ids_of_visible_devices() -> None:
    assert [visible({"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, index) for index in (0, 1)] == [4, 6]
    assert visible({}, 3) == 3
    assert device_telemetry.FILE_NAME == "device_telemetry.csv"


def test_phases_come_from_times_and_zeros_are_judged_by_them() -> None:
    rows = [
        replace(sample("npu0", second, 1.0), phase=label, use_ratio=ratio, invalid=invalid)
        for second, label, ratio, invalid in (
            (0, "x", 0, ""), (1, "x", 0.5, ""), (2, "measured", 0, ""), (3, "profiled", None, INVALID),
            (4, "x", None, ""),
        )
    ]  # fmt: skip

    found = relabelled(rows, [(NOW + S, "measured"), (NOW + 2 * S, "profiled"), (NOW + 3 * S, "checkpoint")])

    assert [(one.phase, one.use_ratio, one.invalid) for one in found] == [
        ("start", 0, ""), ("measured", 0.5, ""), ("profiled", None, INVALID),
        ("checkpoint", 0, ""),  # its 0 was taken out under a label that came late
        ("checkpoint", None, ""),
    ]  # fmt: skip


def test_a_use_of_0_throughout_is_no_use_where_the_npu_worked() -> None:
    def used(*ratios: float | None) -> list[DeviceSample]:
        return [replace(sample("npu0", n, 250.0), use_ratio=ratio) for n, ratio in enumerate(ratios)]

    slices = without_dead([*used(0, 0, None, 0, 0, 0), sample("cuda0", 1, 1.0)])
    assert {one.use_ratio for one in slices} == {None}
    assert [one.invalid for one in slices] == [device_telemetry.DEAD] * 2 + [""] + [device_telemetry.DEAD] * 3 + [""]
    assert {one.power_w for one in slices} == {250.0, 1.0}  # the rest stays
    for ratios in ((0, 0, 0, 0), (0, 0, 0, 0, 0.01)):  # too few to tell; one that worked
        assert [one.use_ratio for one in without_dead(used(*ratios))] == list(ratios)


def test_memory_before_the_start_is_taken_off(tmp_path: Path) -> None:
    chips = tuple(replace(chip, hbm_percent=percent) for chip, percent in zip(A2[:2], (5, 71), strict=True))
    npu_smi(tmp_path / "bin", Install(chips=chips))

    idle = _idle_memory.in_use(machine(tmp_path))

    assert idle == {"npu0": 3276 * MIB, "npu1": 46530 * MIB}  # 5 % and 71 % of 65536 MB
    samples = [
        replace(sample("npu0", n, 1.0), memory_used_bytes=used * MIB) for n, used in enumerate((3000, 40000, 20000))
    ] + [sample("npu1", 1, 1.0), replace(sample("cuda0", 1, 1.0), memory_used_bytes=1 << 40)]
    found = {metric.name: metric.value for metric in _idle_memory.metrics_of(samples, idle)}
    assert found == {"idle_device_memory": 46530 * MIB, "device_memory_above_idle": (40000 - 3276) * MIB}
    assert _idle_memory.metrics_of(samples, {}) == ()
    assert [one.name for one in _idle_memory.metrics_of([], idle)] == ["idle_device_memory"]
    assert _idle_memory.in_use(machine(tmp_path / "nothing")) == {}


def test_the_box_of_a_card_with_two_dies_gives_the_memory_of_each(tmp_path: Path) -> None:
    npu_smi(tmp_path / "bin", Install(chips=A3))
    assert list(_idle_memory.in_use(machine(tmp_path))) == ["npu0", "npu1", "npu2", "npu3"]


def test_a_tool_behind_a_script_is_ended_with_its_child(tmp_path: Path) -> None:
    npu_smi(tmp_path / "real", Install(chips=A2[:1]))
    wrapper = tmp_path / "bin/npu-smi"
    wrapper.parent.mkdir()
    # Without exec: the shell stays, and its child holds the output open.
    wrapper.write_text(f'#!/bin/sh\n{tmp_path}/real/npu-smi "$@"\necho ended\n')
    wrapper.chmod(0o755)
    sources, _ = sources_here(machine(tmp_path), "npu")

    sampler = sampled(sources[:1], lambda samples: len(samples) > 1)

    assert sampler.problems == []
    process = sources[0].process
    assert process is not None
    assert running_in_group(process.pid) == []
