"""Cores and frequency of the device, derived from the counters of its kernels."""

from __future__ import annotations

import pytest

from ascend_perf.model.table import Table
from ascend_perf.parsers._ascend_meta import Facts, derive_device
from tests.conftest import build_table

CORES = 20


def _kernels(*megahertz: float) -> Table:
    """Kernels of 1 ms on 20 cores, each at its own frequency."""
    return build_table(
        "kernels",
        [
            {
                "start_ns": i * 2_000_000, "dur_ns": 1_000_000, "name": "mm", "core": "AIC", "block_num": CORES,
                "aic_time_ns": 1_000_000, "aic_total_cycles": round(mhz * 1_000 * CORES), "cube_utilization_ratio": 1.0,
            }
            for i, mhz in enumerate(megahertz)
        ],
    )  # fmt: skip


@pytest.mark.parametrize("slow", [3, 7])
def test_a_clock_that_falls_does_not_change_the_number_of_cores(slow: int) -> None:
    # 10 kernels, some of them at 1710 of 1800 MHz.
    device = derive_device(Facts(), _kernels(*[1800.0] * (10 - slow), *[1710.0] * slow), None)

    assert (device.cube_cores, device.frequency_hz) == (CORES, 1_800_000_000)


def test_a_constant_counter_gives_the_frequency() -> None:
    device = derive_device(Facts(), _kernels(*[1500.0] * 4), 1_500_000_000)

    assert (device.cube_cores, device.frequency_hz) == (CORES, 1_500_000_000)
