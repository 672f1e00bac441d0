"""Telemetry: a process is sampled from entry to exit, unknown values are empty cells."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_perf.collectors import telemetry
from ascend_perf.collectors.telemetry import Cost, Sample, Sampler, cost_metrics, counted, write_samples
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


def test_the_cost_of_telemetry_is_the_sum_of_its_threads_by_the_longest_time() -> None:
    costs = [Cost(cpu_ns=2_000_000, wall_ns=1_000_000_000), Cost(cpu_ns=1_000_000, wall_ns=400_000_000)]
    (metric,) = cost_metrics(costs)
    assert (metric.name, metric.unit) == ("telemetry_overhead", "ratio")
    assert metric.value == pytest.approx(3e6 / 1e9)
    assert cost_metrics([]) == ()
    assert cost_metrics([Cost(cpu_ns=0, wall_ns=0)]) == ()


def test_what_a_thread_takes_is_its_own_cpu_time_not_the_time_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, wall = iter((100, 107)), iter((1000, 5000))
    monkeypatch.setattr("time.thread_time_ns", lambda: next(cpu))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(wall))
    costs: list[Cost] = []
    with pytest.raises(OSError, match="tool"), counted(costs):
        raise OSError("tool")
    assert costs == [Cost(cpu_ns=7, wall_ns=4000)]


@needs_psutil
def test_a_sampler_tells_its_cost_once_it_has_ended() -> None:
    with Sampler(os.getpid(), interval_s=60) as sampler:
        assert sampler.costs == []
    assert len(sampler.costs) == 1
    assert sampler.costs[0].wall_ns > 0
