"""Energy that sensors of this machine count: processor packages through RAPL, NVIDIA GPUs through NVML.

Nothing is estimated: where there is no sensor, or it may not be read, there is no figure.

Source:
    Linux, Documentation/power/powercap/powercap.rst: energy_uj counts micro-joules and starts over from 0 behind
    max_energy_range_uj. NVML API reference: nvmlDeviceGetTotalEnergyConsumption, milli-joules since the driver was
    loaded (Volta and later).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

POWERCAP: Final = Path("/sys/class/powercap")
INTERVAL_S: Final = 0.1
"""Time between readings; a counter starts over after minutes. Status: assumed."""
MIN_SPAN_NS: Final = 10 * int(INTERVAL_S * 1e9)
"""Shorter spans are not given: both ends lie between two readings. Status: assumed."""


@dataclass(frozen=True)
class _Package:
    counter: Path
    range_uj: int


def packages(root: Path = POWERCAP) -> tuple[_Package, ...]:
    """Counters of processor packages that may be read. Cores and memory are parts of them or counted elsewhere."""
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            if folder.name.count(":") == 1 and (folder / "name").read_text("ascii").startswith("package"):
                int((folder / "energy_uj").read_text("ascii"))
                range_uj = int((folder / "max_energy_range_uj").read_text("ascii"))
                found.append(_Package(folder / "energy_uj", range_uj))
        except (OSError, ValueError):
            continue  # since Linux 5.10 only root may read it
    return tuple(found)


class PackageMeter:
    """Reads all packages in a thread between `with` entry and exit; `joules` then answers for any span between."""

    def __init__(
        self, *, root: Path = POWERCAP, interval_s: float = INTERVAL_S, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._packages = packages(root)
        self._interval_s, self._clock_ns = interval_s, clock_ns
        self._times: list[int] = []
        self._counts: list[list[int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    @property
    def is_there(self) -> bool:
        """Whether there is a package that may be read."""
        return bool(self._packages)

    def __enter__(self) -> PackageMeter:
        if self._packages:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._packages:
            self._thread.join()

    def _run(self) -> None:
        while True:
            stopping = self._stop.is_set()
            self.read()
            if stopping:
                return
            self._stop.wait(self._interval_s)

    def read(self) -> None:
        """Take one reading of all packages now."""
        try:
            counts = [int(package.counter.read_text("ascii")) for package in self._packages]
        except (OSError, ValueError):
            return
        self._times.append(self._clock_ns())
        self._counts.append(counts)

    def joules(self, from_ns: int, to_ns: int) -> float | None:
        """Energy of all packages between two moments (Unix time), linear between readings; None when they do not cover
        the span, or it is shorter than ten readings take."""
        if len(self._times) < 2 or to_ns - from_ns < MIN_SPAN_NS:
            return None
        if from_ns < self._times[0] or to_ns > self._times[-1]:
            return None
        total_uj = [0]
        for before, after in pairwise(self._counts):
            steps = (
                now - then if now >= then else now - then + package.range_uj + 1
                for package, then, now in zip(self._packages, before, after, strict=True)
            )
            total_uj.append(total_uj[-1] + sum(steps))
        # Relative to the first reading: Unix time in ns has more digits than a float.
        times = np.array(self._times, np.int64) - self._times[0]
        ends = np.interp([from_ns - self._times[0], to_ns - self._times[0]], times, total_uj)
        return float(ends[1] - ends[0]) / 1e6


class GpuMeter:
    """The energy counter of one NVIDIA GPU, found by its PCI address."""

    def __init__(self, pci_address: str) -> None:
        """Open the counter.

        Raises:
            OSError: there is no NVML here, no such GPU, or it has no counter.
        """
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByPciBusId_v2", pci_address.encode("ascii"), ctypes.byref(self._device))
        self.joules()

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._nvml, name)(*arguments):
            raise OSError(f"{name} answered {code}")

    def joules(self) -> float:
        """Energy since the driver was loaded.

        Raises:
            OSError: the counter cannot be read.
        """
        count_mj = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(count_mj))
        return count_mj.value / 1e3
