"""What is looked at while a command of the user runs: its process, the devices, the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ascend_perf.bench import collected
from ascend_perf.collectors import device_telemetry, telemetry
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.collect_plan import Collector
from ascend_perf.collectors.environment import masked

LOOK_EVERY: Final = 10
"""Ticks between two looks at the disk."""
HEAR_EVERY: Final = 5
"""Ticks between two looks at what the processes told."""
_SHELLS: Final = frozenset({"sh", "bash", "dash"})


class Watch:
    """Samples the first recorded process and the devices from when they are known; asks for a look at the disk."""

    def __init__(self, collector: Collector, told: Path, stack: ExitStack, look_at_disk: Callable[[], None]) -> None:
        """
        Args:
            collector: what records the command.
            told: folder of what its processes tell.
            stack: ends the samplers.
            look_at_disk: called about every second.
        """
        self._is_msprof, self._told, self._stack, self._look_at_disk = collector == "msprof", told, stack, look_at_disk
        self._sampler: telemetry.Sampler | None = None
        self._devices: device_telemetry.DeviceSampler | None = None
        self._absent: list[str] = []
        self._processes: list[collected.Process] = []
        self._ticks = 0
        if collector != "torch":
            self._sample_devices("npu")

    def tick(self, pid: int) -> None:
        """Called about every 0.1 s with the process number of the command."""
        self._ticks += 1
        if self._ticks % LOOK_EVERY == 0:
            self._look_at_disk()
        if self._ticks % HEAR_EVERY:
            return
        if not self._is_msprof and (self._sampler is None or self._devices is None):
            self._processes = collected.processes_of(self._told)
            device = next((one.device for one in self._processes if one.device), "")
            if device and self._devices is None:
                self._sample_devices("cuda" if device.startswith("cuda") else "cpu")
        if self._sampler is None and telemetry.is_available():
            import psutil

            try:
                if (target := self._target(pid)) is not None:
                    self._sampler = self._stack.enter_context(telemetry.Sampler(target))
            except psutil.Error:  # it has ended
                return

    @property
    def samples(self) -> Sequence[telemetry.Sample]:
        """What was sampled of the process."""
        return () if self._sampler is None else self._sampler.samples

    @property
    def device_samples(self) -> Sequence[device_telemetry.DeviceSample]:
        """What was sampled of the devices."""
        return () if self._devices is None else self._devices.samples

    @property
    def costs(self) -> list[telemetry.Cost]:
        """What the samplers that have ended took."""
        return [cost for one in (self._sampler, self._devices) if one is not None for cost in one.costs]

    @property
    def device_problems(self) -> list[str]:
        """What was absent, and what ended by itself."""
        return self._absent + ([] if self._devices is None else [masked(text) for text in self._devices.problems])

    def _target(self, pid: int) -> int | None:
        """The process to sample: of rank 0; under msprof the program below its shell."""
        import psutil

        if self._is_msprof:
            below = psutil.Process(pid).children(recursive=True)
            return next((one.pid for one in below if one.name() not in _SHELLS), None)
        return next((one.pid for one in self._processes if one.rank in (0, None)), None)

    def _sample_devices(self, kind: device_telemetry.Kind) -> None:
        sources, self._absent = device_telemetry.sources_here(Machine(), kind)
        self._devices = self._stack.enter_context(device_telemetry.DeviceSampler(sources))
