"""Result files of many nights, made by the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from ascend_perf.model.finding import Metric
from ascend_perf.model.result import Benchmark, Launch, ResultSet
from ascend_perf.model.run import Fact
from ascend_perf.result_files import write_results

START = datetime(2026, 1, 5, 2, 0, tzinfo=timezone.utc)
MACHINE: Mapping[str, Fact] = {
    "kind": "npu", "chip": "Ascend 910B3", "chip_count": 8, "cpu": "Kunpeng 920", "cpu_cores": 192, "driver": "24.1.0",
    "torch": "2.5.1", "cann": "8.0.0",
}  # fmt: skip


def night_of(number: int) -> str:
    """When the suite of a night began."""
    return (START + timedelta(days=number)).isoformat()


def launch(index: int, step_ns: float, *, status: str = "complete", folder: str | None = None, created: str) -> Launch:
    """A run with three metrics."""
    return Launch(
        index=index,
        started=created,
        status="complete" if status == "complete" else "failed",
        problem="" if status == "complete" else "out of memory",
        metrics=()
        if status != "complete"
        else (
            Metric(name="step_time_median", value=step_ns, unit="ns", better="lower"),
            Metric(name="tokens_per_s", value=4096e9 / step_ns, unit="items_per_s", better="higher"),
            Metric(name="peak_device_memory", value=12e9, unit="bytes", better="lower"),
        ),
        folder=folder,
    )


def results(
    number: int = 0,
    step_ns: Sequence[float] = (1e8, 1.01e8, 0.99e8),
    *,
    names: Sequence[str] = ("llm-pretrain/tiny/npu/8",),
    suite: str = "nightly",
    branch: str | None = "main",
    commit: str | None = "default",
    fingerprint: Mapping[str, Fact] = MACHINE,
    kernels: int = 420,
    failed: int = 0,
    simulated: bool = False,
    config: Mapping[str, Fact] | None = None,
    op_stream: str | None = None,
    folder: str | None = None,
) -> ResultSet:
    """The result of one night."""
    created = night_of(number)
    runs = [launch(index, time, created=created, folder=folder) for index, time in enumerate(step_ns)]
    runs += [launch(len(runs) + index, 1e8, status="failed", created=created) for index in range(failed)]
    return ResultSet(
        suite=suite,
        created=created,
        tool_version="0.1.0",
        fingerprint=dict(fingerprint),
        commit=f"{number:04x}c0ffee{number:06d}" if commit == "default" else commit,
        branch=branch,
        benchmarks=tuple(
            Benchmark(
                name=name,
                workload=name.split("/")[0],
                preset="tiny",
                device="npu",
                world_size=8,
                data_origin="simulated" if simulated else "measured",
                config=dict(config or {"layers": 4, "batch": 8}),
                counts={"kernels": kernels},
                op_stream=op_stream,
                launches=tuple(runs),
            )
            for name in names
        ),
    )


def write(folder: Path, one: ResultSet, name: str = "results.json") -> Path:
    """A result file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    write_results(path, one)
    return path


def nights(
    folder: Path, count: int, *, step_at: int | None = None, ratio: float = 1.05, seed: int = 7, spread: float = 0.01,
    names: Sequence[str] = ("llm-pretrain/tiny/npu/8",), later: Mapping[str, Fact] | None = None,
) -> list[Path]:  # fmt: skip
    """Result files of `count` nights; from night `step_at` on, steps take `ratio` of the time."""
    random = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        is_later = step_at is not None and number >= step_at
        times = 1e8 * random.lognormal(0, spread, 5) * random.lognormal(0, spread / 2) * (ratio if is_later else 1)
        facts = {**MACHINE, **(later or {})} if is_later else MACHINE
        one = results(number, times.round().tolist(), names=names, fingerprint=facts)
        paths.append(write(folder / f"night-{number:03d}", one))
    return paths


def other_spacing(path: Path) -> None:
    """The same content, written in another way."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8"))), "utf-8")
