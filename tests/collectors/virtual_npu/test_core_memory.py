"""Device memory: accounting, limit, contents, and the errors of the runtime."""

from __future__ import annotations

import ctypes
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors.virtual_npu._device import COPY_NS, Device

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
MIB = 1 << 20
H2D, D2H, D2D = 1, 2, 3


def free_and_total(device: Device) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    device.ok("aclrtGetMemInfo", 1, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400 * MIB), st.integers(0, 9)), min_size=1, max_size=30))
def test_use_is_what_was_given_out_and_never_more_than_the_device_has(
    tmp_path: Path, program: list[tuple[bool, int, int]]
) -> None:
    for old in tmp_path.glob("*"):
        old.unlink()
    device = Device(tmp_path, hbm_bytes=1000 * MIB)
    held: list[tuple[int, int]] = []
    steps: list[int] = []
    peak = refused = 0
    for gives_back, size, which in program:
        if gives_back and held:
            address, size = held.pop(which % len(held))
            device.ok("aclrtFree", address)
            steps.append(-size)
        else:
            place = ctypes.c_void_p()
            code = device.call("aclrtMalloc", ctypes.byref(place), size, 0)
            fits = sum(one for _, one in held) + size <= 1000 * MIB
            assert code == (0 if fits else 207001)
            refused += not fits
            if fits:
                assert place.value
                held.append((place.value, size))
                steps.append(size)
        used = sum(one for _, one in held)
        peak = max(peak, used)
        assert free_and_total(device) == (1000 * MIB - used, 1000 * MIB)
    device.close()
    record = device.record()
    assert record.tables["M"]["delta_bytes"].tolist() == steps
    assert record.tables["M"]["used_bytes"].tolist() == [sum(steps[: i + 1]) for i in range(len(steps))]
    assert record.peak_bytes == peak
    assert len(record.errors) == refused


def test_a_full_device_says_so_as_cann_does(tmp_path: Path) -> None:
    device = Device(tmp_path, hbm_bytes=10 * MIB)
    device.memory(6 * MIB)
    assert device.call("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 5 * MIB, 0) == 207001
    message = device.message()
    assert message.startswith("EL0004: [PID: ")
    assert "Failed to allocate memory" in message
    assert device.message() == ""  # handed out once
    ((_, function, code, text),) = device.record().errors
    assert (function, code) == ("aclrtMalloc", 207001)
    assert f"{5 * MIB} bytes asked, {6 * MIB} of {10 * MIB} in use" in text


def test_devices_have_memory_of_their_own(tmp_path: Path) -> None:
    device = Device(tmp_path, hbm_bytes=10 * MIB)
    device.memory(8 * MIB)
    device.ok("aclrtSetDevice", 1)
    assert free_and_total(device)[0] == 10 * MIB
    device.memory(9 * MIB)
    device.close()
    record = device.record()
    assert record.tables["M"]["device"].tolist() == [0, 1]
    assert record.peak_bytes == 9 * MIB


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    device = Device(tmp_path)
    assert device.call("aclrtSetDevice", 2) == 107001
    assert "valid device range is [0, 2)" in device.message()
    assert device.call("aclrtSetDevice", -1) == 107001


@pytest.mark.parametrize(("visible", "count"), [("0,1", 2), ("1", 1), ("0,7,1", 1), ("", 0), ("x", 0), ("1,0", 2)])
def test_visible_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    device = Device.__new__(Device)
    monkeypatch.setattr(Device, "ok", lambda *_: None)
    device.__init__(tmp_path)  # type: ignore[misc]
    seen = ctypes.c_uint32()
    assert device.call("aclrtGetDeviceCount", ctypes.byref(seen)) == 0
    assert seen.value == count


def test_physical_memory_counts_until_its_last_mapping_is_gone(tmp_path: Path) -> None:
    device = Device(tmp_path, hbm_bytes=10 * MIB)
    place = device.made("aclrtReserveMemAddress", 100 * MIB, 0, None, 1)  # address space is free
    first = device.made("aclrtMallocPhysical", 4 * MIB, None, 0)
    second = device.made("aclrtMallocPhysical", 6 * MIB, None, 0)
    assert device.call("aclrtMallocPhysical", ctypes.byref(ctypes.c_void_p()), 1, None, 0) == 207001
    device.ok("aclrtMapMem", place, 4 * MIB, 0, first, 0)
    device.ok("aclrtMapMem", place + 4 * MIB, 6 * MIB, 0, second, 0)
    ctypes.memset(place, 7, 16)
    device.ok("aclrtFreePhysical", first)
    assert free_and_total(device)[0] == 0  # still mapped
    device.ok("aclrtUnmapMem", place)
    assert free_and_total(device)[0] == 4 * MIB
    assert device.call("aclrtUnmapMem", place) == 107000
    assert device.call("aclrtMapMem", place + 99 * MIB, 2 * MIB, 0, second, 0) == 107000  # beyond the reserved range
    device.ok("aclrtUnmapMem", place + 4 * MIB)
    device.ok("aclrtFreePhysical", second)
    device.ok("aclrtReleaseMemAddress", place)
    assert free_and_total(device)[0] == 10 * MIB
    assert device.call("aclrtReleaseMemAddress", place) == 107000
    assert device.call("aclrtFreePhysical", second) == 107017


def test_what_goes_to_the_device_comes_back(tmp_path: Path) -> None:
    device = Device(tmp_path)
    sent = bytes(range(256)) * 1024  # 256 KiB
    memory, other = device.memory(len(sent)), device.memory(len(sent))
    back = ctypes.create_string_buffer(len(sent))
    device.ok("aclrtMemcpy", memory, len(sent), sent, len(sent), H2D)
    device.ok("aclrtMemcpy", back, len(sent), memory, len(sent), D2H)
    assert back.raw == sent
    stream = device.stream()
    device.ok("aclrtMemcpyAsync", other, 64 * 1024, memory, 64 * 1024, D2D, stream)  # small: really moved
    device.ok("aclrtMemsetAsync", memory, 100, 255, 3, stream)
    device.ok("aclrtMemcpyAsync", back, len(sent), other, len(sent), D2H, stream)
    device.ok("aclrtSynchronizeStream", stream)
    assert back.raw == sent[: 64 * 1024] + bytes(len(sent) - 64 * 1024)
    device.ok("aclrtMemcpy", back, 6, memory, 6, D2H)
    assert back.raw[:6] == b"\xff\xff\xff\x03\x04\x05"
    device.close()
    copies = device.record().tables["P"]
    assert copies["kind"].tolist() == [1, 2, 3, 4, 2, 2]
    assert (copies["end_ns"] - copies["start_ns"]).tolist() == [
        COPY_NS * (kind + 1) + size
        for kind, size in ((1, len(sent)), (2, len(sent)), (3, 65536), (4, 3), (2, len(sent)), (2, 6))
    ]
    assert copies["blocking"].tolist() == [1, 1, 0, 0, 0, 1]
    assert copies["stream"].tolist()[:2] == [-1, -1]


def test_a_copy_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    device = Device(tmp_path)
    memory = device.memory(100)
    assert device.call("aclrtMemcpy", memory, 100, b"x" * 200, 200, H2D) == 107000
    assert device.call("aclrtMemcpy", memory, 100, None, 10, H2D) == 107000
    assert device.call("aclrtMemcpy", memory, 100, b"x", 1, 77) == 100000
    assert len(device.record().tables["P"]["seq"]) == 0


def test_memory_of_the_device_costs_the_host_nothing(tmp_path: Path) -> None:
    device = Device(tmp_path, hbm_bytes=60 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = device.memory(50 << 30)
    device.ok("aclrtMemset", memory, 50 << 30, 1, 50 << 30)
    device.ok("aclrtMemcpy", memory + (20 << 30), 20 << 30, memory, 20 << 30, D2D)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
