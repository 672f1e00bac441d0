"""Floors, efficiencies and roofs."""

from __future__ import annotations

import numpy as np
import pytest

from ascend_perf.device.roofline import attainable_flops_per_s, efficiency_ratio, floor_ns, intensity_flop_per_byte


def test_the_floor_is_the_larger_of_compute_and_memory_time() -> None:
    flops = np.array([1000.0, 1000.0, np.nan, np.nan])
    size = np.array([10.0, 4000.0, 4000.0, np.nan])
    peak = np.full(4, 1e12)  # 1000 FLOP take 1 ns

    floor = floor_ns(flops, size, peak, 1e12)  # 4000 bytes take 4 ns

    np.testing.assert_array_equal(floor, [1.0, 4.0, 4.0, np.nan])


def test_without_a_memory_rate_only_compute_counts() -> None:
    floor = floor_ns(np.array([1000.0, np.nan]), np.array([10.0, 10.0]), np.full(2, 1e12), None)

    np.testing.assert_array_equal(floor, [1.0, np.nan])


def test_an_efficiency_above_one_is_shown_and_not_clipped() -> None:
    np.testing.assert_array_equal(
        efficiency_ratio(np.array([2.0, 3.0, 1.0]), np.array([4.0, 2.0, 0.0])), [0.5, 1.5, np.nan]
    )


def test_intensity_is_unknown_without_bytes() -> None:
    np.testing.assert_array_equal(
        intensity_flop_per_byte(np.array([8.0, 8.0, np.nan]), np.array([4.0, 0.0, 1.0])), [2.0, np.nan, np.nan]
    )


def test_the_roof_bends_at_the_ridge() -> None:
    assert attainable_flops_per_s(10, peak_flops_per_s=100, bytes_per_s=5) == 50
    assert attainable_flops_per_s(30, peak_flops_per_s=100, bytes_per_s=5) == pytest.approx(100)
