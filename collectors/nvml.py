"""What NVIDIA GPUs tell of themselves: through nvidia-ml-py when it is installed, else by lines of `nvidia-smi`.

Source: collector reference, section 3.6. What a GPU does not support is unknown, not 0.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FIELDS: Final = (
    "index", "name", "utilization.gpu", "utilization.memory", "memory.used", "memory.total", "power.draw",
    "temperature.gpu", "clocks.sm", "clocks.max.sm",
)  # fmt: skip
INTERVAL_MS: Final = 200


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at a moment; None is unknown."""

    index: int
    name: str | None = None
    busy_ratio: float | None = None
    """Share of time in which a kernel ran: no efficiency."""
    memory_bandwidth_ratio: float | None = None
    """Share of time in which the memory controller was busy, not what is occupied."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    """Of the board."""
    temperature_c: float | None = None
    frequency_hz: float | None = None
    rated_frequency_hz: float | None = None
    energy_j: float | None = None
    """Counter since the driver was loaded."""


def query(interval_ms: int = INTERVAL_MS) -> tuple[str, ...]:
    """Words behind `nvidia-smi` for an endless table."""
    return (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits", "-lms", str(interval_ms))


def row_of(line: str) -> GpuReading | None:
    """The reading of one line of that table; None for other text and lines that were cut."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FIELDS) or not cells[0].isdecimal():
        return None
    figures = dict(zip(FIELDS, cells, strict=True))

    def number(name: str, factor: float = 1.0) -> float | None:
        try:
            return float(figures[name]) * factor
        except ValueError:
            return None  # [N/A], [Not Supported]

    used, total = number("memory.used", 2**20), number("memory.total", 2**20)
    return GpuReading(
        index=int(cells[0]), name=cells[1], busy_ratio=number("utilization.gpu", 0.01),
        memory_bandwidth_ratio=number("utilization.memory", 0.01),
        memory_used_bytes=None if used is None else round(used),
        memory_total_bytes=None if total is None else round(total), power_w=number("power.draw"),
        temperature_c=number("temperature.gpu"), frequency_hz=number("clocks.sm", 1e6),
        rated_frequency_hz=number("clocks.max.sm", 1e6),
    )  # fmt: skip


def is_installed() -> bool:
    """Whether nvidia-ml-py is there."""
    return importlib.util.find_spec("pynvml") is not None


class Nvml:
    """All GPUs through nvidia-ml-py."""

    def __init__(self) -> None:
        """Open the library.

        Raises:
            OSError: there is no driver, or it does not answer.
        """
        self._nvml: Any = importlib.import_module("pynvml")
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except self._nvml.NVMLError as error:
            raise OSError(str(error)) from error

    def read(self) -> list[GpuReading]:
        """One reading of each GPU."""
        return [self._one(index, device) for index, device in enumerate(self._devices)]

    def _one(self, index: int, device: object) -> GpuReading:
        nvml = self._nvml

        def ask(question: Callable[[], Any]) -> Any:
            try:
                return question()
            except nvml.NVMLError:  # not supported by this GPU
                return None

        def scaled(value: float | None, factor: float) -> float | None:
            return None if value is None else value * factor

        busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(device))
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(device))
        return GpuReading(
            index=index,
            busy_ratio=None if busy is None else busy.gpu / 100,
            memory_bandwidth_ratio=None if busy is None else busy.memory / 100,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            power_w=scaled(ask(lambda: nvml.nvmlDeviceGetPowerUsage(device)), 1e-3),
            temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            frequency_hz=scaled(ask(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)), 1e6),
            rated_frequency_hz=scaled(ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)), 1e6),
            energy_j=scaled(ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device)), 1e-3),
        )  # fmt: skip

    def close(self) -> None:
        """Close the library."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return
