"""Measured ceilings of a device: what the workload `micro` reached, drawn beside the vendor's peaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ascend_perf.model.run import Manifest

PREFIX: Final = "ceiling_"
"""Metrics of a run of `micro` that are ceilings begin so."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The best rates that a device reached. It can be sent to another process."""

    device: str | None
    """Name of the device as its run states it."""
    flops_per_s: tuple[tuple[str, float], ...]
    """Matrix products by dtype."""
    memory_bytes_per_s: float | None

    def fits(self, device: str | None) -> bool:
        """Whether they may stand for a profile's device: the names agree, or the profile has none."""
        return device is None or self.device is None or device.strip().lower() == self.device.strip().lower()


_GIVEN: ContextVar[Ceilings | None] = ContextVar("ceilings", default=None)


def ceilings_of(manifest: Manifest) -> Ceilings | None:
    """What a run measured; None for a run that measured no ceilings, or a simulated one."""
    if manifest.data_origin != "measured":
        return None
    rates = {
        metric.name.removeprefix(PREFIX): metric.value
        for metric in manifest.metrics
        if metric.name.startswith(PREFIX) and metric.value is not None and metric.value > 0
    }
    products = tuple(
        (name.removeprefix("matmul_"), rate) for name, rate in rates.items() if name.startswith("matmul_")
    )
    memory = rates.get("memory")
    if not products and memory is None:
        return None
    name = manifest.device_facts.get("name")
    return Ceilings(
        device=name if isinstance(name, str) else None, flops_per_s=products, memory_bytes_per_s=memory
    )


def measured_ceilings() -> Ceilings | None:
    """Those that hold in this analysis; None where the user gave none."""
    return _GIVEN.get()


@contextmanager
def ceilings_given(ceilings: Ceilings | None) -> Iterator[None]:
    """Within the block (this thread or task, and what it forks) these ceilings hold."""
    token = _GIVEN.set(ceilings)
    try:
        yield
    finally:
        _GIVEN.reset(token)
