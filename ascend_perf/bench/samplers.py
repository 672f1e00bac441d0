"""What is sampled beside a run: one process, and the devices of one kind, each from when it is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ascend_perf.collectors import device_telemetry, telemetry
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.environment import masked


class Samplers:
    """Telemetry of a process and of devices; `stack` ends it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._process: telemetry.Sampler | None = None
        self._devices: device_telemetry.DeviceSampler | None = None
        self._absent: list[str] = []
        self._phase = "start"

    @property
    def has_process(self) -> bool:
        """Whether a process is sampled."""
        return self._process is not None

    @property
    def has_devices(self) -> bool:
        """Whether devices are sampled."""
        return self._devices is not None

    def sample_process(self, pid: int) -> None:
        """Begin with a process.

        Raises:
            psutil.Error: it has ended.
        """
        self._process = self._stack.enter_context(telemetry.Sampler(pid))

    def sample_devices(self, kind: device_telemetry.Kind, *, exporter: str | None = None) -> None:
        """Begin with the devices of a kind."""
        sources, self._absent = device_telemetry.sources_here(Machine(), kind, exporter=exporter)
        sampler = device_telemetry.DeviceSampler(sources)
        sampler.phase = self._phase
        self._devices = self._stack.enter_context(sampler)

    def go_on(self, phase: str) -> None:
        """Label what follows."""
        self._phase = phase
        for sampler in (self._process, self._devices):
            if sampler is not None:
                sampler.phase = phase

    @property
    def samples(self) -> Sequence[telemetry.Sample]:
        """What was sampled of the process."""
        return () if self._process is None else self._process.samples

    @property
    def device_samples(self) -> Sequence[device_telemetry.DeviceSample]:
        """What was sampled of the devices."""
        return () if self._devices is None else self._devices.samples

    @property
    def costs(self) -> list[telemetry.Cost]:
        """What the samplers that have ended took."""
        return [cost for one in (self._process, self._devices) if one is not None for cost in one.costs]

    @property
    def device_problems(self) -> list[str]:
        """What was absent, and what ended by itself."""
        return self._absent + ([] if self._devices is None else [masked(text) for text in self._devices.problems])
