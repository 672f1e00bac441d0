"""What is looked at while a command of the user runs: its process, the devices, the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ascend_perf.bench import collected
from ascend_perf.bench.samplers import Samplers
from ascend_perf.collectors import _idle_memory, telemetry
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.collect_plan import Collector

LOOK_EVERY: Final = 10
"""Ticks between two looks at the disk."""
HEAR_EVERY: Final = 5
"""Ticks between two looks at what the processes told."""
_SHELLS: Final = frozenset({"sh", "bash", "dash"})


class Watch:
    """Samples the first recorded process and the devices from when they are known; asks for a look at the disk."""

    def __init__(
        self, collector: Collector, told: Path, stack: ExitStack, look_at_disk: Callable[[], None], *,
        has_devices: bool = True,
    ) -> None:  # fmt: skip
        """
        Args:
            collector: what records the command.
            told: folder of what its processes tell.
            stack: ends the samplers.
            look_at_disk: called about every second.
            has_devices: there are devices to look at, not virtual ones.
        """
        self._is_msprof, self._told, self._look_at_disk = collector == "msprof", told, look_at_disk
        self.samplers = Samplers(stack)
        self._processes: list[collected.Process] = []
        self._ticks = 0
        self._has_devices = has_devices
        self.idle_bytes: dict[str, int] = {}
        """Memory of NPUs in use before the command starts, by device."""
        if has_devices and collector != "torch":
            self.idle_bytes = _idle_memory.in_use(Machine())
            self.samplers.sample_devices("npu")

    def tick(self, pid: int) -> None:
        """Called about every 0.1 s with the process number of the command."""
        self._ticks += 1
        if self._ticks % LOOK_EVERY == 0:
            self._look_at_disk()
        if self._ticks % HEAR_EVERY:
            return
        if not self._is_msprof and not (
            self.samplers.has_process and (self.samplers.has_devices or not self._has_devices)
        ):  # fmt: skip
            self._processes = collected.processes_of(self._told)
            device = next((one.device for one in self._processes if one.device), "")
            if device and self._has_devices and not self.samplers.has_devices:
                self.samplers.sample_devices("cuda" if device.startswith("cuda") else "cpu")
        if not self.samplers.has_process and telemetry.is_available():
            import psutil

            try:
                if (target := self._target(pid)) is not None:
                    self.samplers.sample_process(target)
            except psutil.Error:  # it has ended
                return

    def _target(self, pid: int) -> int | None:
        """The process to sample: of rank 0; under msprof the program below its shell."""
        import psutil

        if self._is_msprof:
            below = psutil.Process(pid).children(recursive=True)
            return next((one.pid for one in below if one.name() not in _SHELLS), None)
        return next((one.pid for one in self._processes if one.rank in (0, None)), None)
