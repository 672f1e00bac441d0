"""Energy counters: which are read, their start from zero, spans between readings, and no figure without a sensor."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from ascend_perf.collectors.energy import GpuMeter, PackageMeter, packages

S = 10**9


def sensor(root: Path, folder: str, name: str, count_uj: int, range_uj: int = 999_999) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(name + "\n", "ascii")
    (place / "energy_uj").write_text(f"{count_uj}\n", "ascii")
    (place / "max_energy_range_uj").write_text(f"{range_uj}\n", "ascii")
    return place / "energy_uj"


def test_packages_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    sensor(tmp_path, "intel-rapl:0", "package-0", 5)
    sensor(tmp_path, "intel-rapl:0:0", "core", 5)
    sensor(tmp_path, "intel-rapl:1", "package-1", 5)
    sensor(tmp_path, "intel-rapl:2", "psys", 5)  # the whole board: packages again
    sensor(tmp_path, "intel-rapl-mmio:0", "package-0", 5)  # the same counter by another way
    damaged = sensor(tmp_path, "intel-rapl:3", "package-2", 5)
    damaged.write_text("?", "ascii")

    assert [package.counter.parent.name for package in packages(tmp_path)] == ["intel-rapl:0", "intel-rapl:1"]


def test_a_counter_that_starts_over_and_a_span_between_readings_by_hand(tmp_path: Path) -> None:
    first = sensor(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = sensor(tmp_path, "intel-rapl:1", "package-1", 0, range_uj=10**12)
    now = 1_790_000_000 * S
    clock = iter([now, now + 2 * S, now + 4 * S])
    meter = PackageMeter(root=tmp_path, clock_ns=lambda: next(clock))

    for counts in ((900_000, 0), (100_000, 3_000_000), (300_000, 4_000_000)):
        first.write_text(str(counts[0]), "ascii")
        second.write_text(str(counts[1]), "ascii")
        meter.read()

    # Package 0: 200 000 over the end of its range of 1 000 000 counts, then 200 000. Package 1: 3 J, then 1 J.
    assert meter.joules(now, now + 4 * S) == pytest.approx(0.2 + 0.2 + 3 + 1)
    # Half of the first two seconds and half of the last two.
    assert meter.joules(now + S, now + 3 * S) == pytest.approx((3.2 + 1.2) / 2)
    assert meter.joules(now - 1, now + 3 * S) is None  # not covered
    assert meter.joules(now, now + 4 * S + 1) is None
    assert meter.joules(now + S, now + S + 999_999_999) is None  # shorter than ten readings


def test_without_counters_there_is_no_figure(tmp_path: Path) -> None:
    with PackageMeter(root=tmp_path) as meter:
        assert not meter.is_there
    assert meter.joules(0, 10 * S) is None


def test_readings_are_taken_from_entry_to_exit(tmp_path: Path) -> None:
    sensor(tmp_path, "intel-rapl:0", "package-0", 7)
    ticks = iter(range(0, 10**15, 20 * S))
    with PackageMeter(root=tmp_path, interval_s=60, clock_ns=lambda: next(ticks)) as meter:
        assert meter.is_there
    assert meter.joules(0, 20 * S) == 0.0


class Nvml:
    """Stands for libnvidia-ml: one GPU whose counter is at 1234 mJ."""

    def __init__(self, name: str) -> None:
        assert name == "libnvidia-ml.so.1"

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, device: object) -> int:
        return 0 if address == b"00000000:0a:00.0" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, device: object, count: object) -> int:
        count._obj.value = 1234  # type: ignore[attr-defined]  # what byref points to
        return 0


def test_a_gpu_is_found_by_its_address_and_an_absent_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Nvml)

    assert GpuMeter("00000000:0a:00.0").joules() == 1.234
    with pytest.raises(OSError, match="PciBusId_v2 answered 6"):
        GpuMeter("00000000:0b:00.0")
