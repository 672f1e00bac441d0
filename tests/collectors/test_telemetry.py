"""Telemetry: a process is sampled from entry to exit, unknown values are empty cells."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_perf.collectors import telemetry
from ascend_perf.collectors.telemetry import Sample, Sampler, write_samples
from ascend_perf.errors import MachineError

needs_psutil = pytest.mark.skipif(not telemetry.is_available(), reason="psutil is not installed")


@needs_psutil
def test_the_first_and_the_last_moment_are_sampled() -> None:
    ticks = iter(range(1_000_000))

    with Sampler(os.getpid(), interval_s=60, clock_ns=lambda: next(ticks)) as sampler:
        sampler.phase = "measured"

    first, *_, last = sampler.samples
    assert (first.process_cpu_ratio, first.host_cpu_ratio) == (None, None)  # no interval before the first
    assert last.phase == "measured"
    assert last.time_ns > first.time_ns
    assert last.process_cpu_ratio is not None
    assert last.process_cpu_ratio >= 0
    assert first.process_rss_bytes > 1_000_000
    assert first.process_threads >= 1


@needs_psutil
def test_a_process_that_has_ended_ends_the_samples() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler = Sampler(process.pid, interval_s=0.001)

    process.communicate(b"\n")
    with sampler:
        pass

    assert sampler.samples == []


def test_without_psutil_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "is_available", lambda: False)

    with pytest.raises(MachineError, match=r"psutil is not installed"):
        Sampler(os.getpid())


def test_samples_are_written_with_units_in_the_head_and_empty_cells(tmp_path: Path) -> None:
    sample = Sample(
        time_ns=5, phase="build", process_cpu_ratio=None, process_rss_bytes=7, process_threads=1,
        host_cpu_ratio=0.5, host_available_bytes=9,
    )  # fmt: skip

    write_samples(tmp_path / "telemetry.csv", [sample])

    with open(tmp_path / "telemetry.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "time_ns": "5", "phase": "build", "process_cpu_ratio": "", "process_rss_bytes": "7", "process_threads": "1",
        "host_cpu_ratio": "0.5", "host_available_bytes": "9",
    }  # fmt: skip
