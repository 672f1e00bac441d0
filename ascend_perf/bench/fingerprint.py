"""What a machine is, for results that are to be compared: chip, driver, software, clocks, limits. Unknown is None.

`model.result.MUST_AGREE` names the facts that have to be equal; others are there to read (the temperature at the start,
the kernel of the system). Names of hosts and people are never in it.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Final

from ascend_perf.collectors import _ascend_install as install
from ascend_perf.collectors import devices, npu_smi
from ascend_perf.collectors._machine import Machine, here
from ascend_perf.model.result import MUST_AGREE
from ascend_perf.model.run import Fact

_NVIDIA: Final = "driver_version,vbios_version,clocks.max.sm,power.limit,temperature.gpu"
_CONTAINERS: Final = (
    ("kubernetes", re.compile(r"kubepods")), ("docker", re.compile(r"docker|containerd")),
    ("podman", re.compile(r"libpod")), ("lxc", re.compile(r"lxc")),
)  # fmt: skip


def fingerprint(device: str, *, machine: Machine | None = None) -> dict[str, Fact]:
    """Facts of this machine, for runs on the device asked for (`auto`: the first of npu, cuda, cpu)."""
    machine = here() if machine is None else machine
    inventory = machine.torch()
    order = devices.ORDER if device == "auto" else (device,)
    alike = next(
        (found for kind in order if (found := [one for one in inventory.devices if one.type == kind])), []
    )  # fmt: skip
    host = next((one for one in inventory.devices if one.type == "cpu"), None)
    first = alike[0] if alike else None
    facts: dict[str, Fact] = dict.fromkeys(MUST_AGREE)
    facts |= {
        "kind": None if first is None else first.type,
        "chip": None if first is None else first.name,
        "chip_count": len(alike) or None,
        "chip_memory_bytes": None if first is None else first.memory_bytes,
        "torch": inventory.torch_version,
        "torch_npu": inventory.torch_npu_version,
        "python": machine.python,
        "cpu": None if host is None else host.name,
        "cpu_cores": None if host is None else host.cores,
        "host_memory_bytes": None if host is None else host.memory_bytes,
        "architecture": machine.architecture,
        "container": _container(machine),
        "kernel": platform.release() if machine.is_here else None,
        "temperature_celsius": None,
    }
    if first is not None and first.type == "npu":
        facts |= _of_npu(machine)
    elif first is not None and first.type == "cuda":
        facts |= _of_gpu(machine, inventory.torch_version)
    elif first is not None:
        facts |= _of_cpu(machine)
    return facts


def _of_npu(machine: Machine) -> dict[str, Fact]:
    driver, firmware, cann = install.find_driver(machine), install.find_firmware(machine), install.find_cann(machine)
    facts: dict[str, Fact] = {
        "driver": None if driver is None else driver.version,
        "firmware": None if firmware is None else firmware.version,
        "cann": None if cann is None else cann.version,
    }
    tool = machine.tool("npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
    if tool is None:
        return facts
    box = npu_smi.box(machine.run([tool, "info"]).text)
    if facts["driver"] is None:
        facts["driver"] = box.driver_version
    warm = [chip.reading.temperature_c for chip in box.chips if chip.reading.temperature_c is not None]
    facts["temperature_celsius"] = max(warm, default=None)
    if box.chips:
        chip = box.chips[0]
        told = npu_smi.answer(
            machine.run([tool, "info", "-t", "common", "-i", str(chip.npu), "-c", str(chip.chip)]).text
        )
        if told.status == "ok":
            facts["clock_hz"] = _whole(npu_smi.reading(chip.npu, chip.chip, *told.blocks).rated_frequency_hz)
    return facts


def _of_gpu(machine: Machine, torch_version: str | None) -> dict[str, Fact]:
    # The local part of torch's version names the CUDA that it was built with: 2.5.1+cu124.
    built = re.search(r"\+cu(\d+)(\d)$", torch_version or "")
    facts: dict[str, Fact] = {"cuda": None if built is None else f"{built[1]}.{built[2]}"}
    tool = machine.tool("nvidia-smi", "/usr/bin/nvidia-smi")
    if tool is None:
        return facts
    done = machine.run([tool, f"--query-gpu={_NVIDIA}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in done.text.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    if done.code != 0 or not rows:
        return facts
    driver, firmware, clock_mhz, power_w, _ = rows[0]
    clock, warm = _number(clock_mhz), [value for row in rows if (value := _number(row[4])) is not None]
    return facts | {
        "driver": driver or None, "firmware": firmware or None,
        "clock_hz": None if clock is None else _whole(clock * 1e6), "power_cap_watt": _number(power_w),
        "temperature_celsius": max(warm, default=None),
    }  # fmt: skip


def _of_cpu(machine: Machine) -> dict[str, Fact]:
    folder = "/sys/devices/system/cpu/cpu0/cpufreq"
    most = _number(machine.text(machine.path(f"{folder}/cpuinfo_max_freq")))
    governor = machine.text(machine.path(f"{folder}/scaling_governor"))
    limit = _number(machine.text(machine.path("/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw")))
    warm = [
        value / 1000
        for path in machine.found("/sys/class/thermal", "thermal_zone*/temp")
        if (value := _number(machine.text(path))) is not None and 0 < value < 150_000
    ]
    return {
        "clock_hz": None if most is None else _whole(most * 1000),
        "cpu_governor": None if governor is None else governor.strip()[:40] or None,
        "power_cap_watt": None if limit is None else limit / 1e6,
        "temperature_celsius": max(warm, default=None),
    }


def _container(machine: Machine) -> str:
    """What kind of container this is; `none` where nothing says so."""
    if machine.environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for name, path in (("docker", "/.dockerenv"), ("podman", "/run/.containerenv")):
        if _exists(machine.path(path)):
            return name
    groups = machine.text(machine.path("/proc/1/cgroup")) or ""
    return next((name for name, words in _CONTAINERS if words.search(groups)), "none")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
