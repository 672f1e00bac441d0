"""Result sets made by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ascend_perf.gate.inputs import Side
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import Benchmark, Launch, ResultSet
from ascend_perf.model.run import Fact
from ascend_perf.units import Better, Unit

CREATED = "2026-04-07T10:15:32+08:00"
MACHINE: Mapping[str, Fact] = {
    "kind": "npu", "chip": "Ascend 910B3", "chip_count": 8, "cann": "8.0.RC2", "cpu": "Kunpeng",
}  # fmt: skip


def metric(name: str, value: float | None, unit: Unit = "items_per_s", better: Better = "higher") -> Metric:
    return Metric(name=name, value=value, unit=unit, better=better)


def launches(
    count: int, step_ns: float = 1e7, *, wobble: float = 0.002, metrics: Sequence[Metric] = (),
    folder: str | None = None,
) -> tuple[Launch, ...]:  # fmt: skip
    """Launches whose steps differ by known shares: launch i is slower by i * wobble / count, step j by j * 0.0001."""
    return tuple(
        Launch(
            index=index, started=CREATED, status="complete", metrics=tuple(metrics), folder=folder,
            steps_ns=tuple(round(step_ns * (1 + wobble * index / count) * (1 + 0.0001 * step)) for step in range(9)),
        )
        for index in range(count)
    )  # fmt: skip


def benchmark(
    name: str = "llm-pretrain/tiny/npu/1", *, of: Sequence[Launch] | None = None,
    counts: Mapping[str, int] | None = None, config: Mapping[str, Fact] | None = None,
    origin: Literal["measured", "simulated"] = "measured", op_stream: str | None = None, variant: str = "",
) -> Benchmark:  # fmt: skip
    return Benchmark(
        name=name, workload="llm-pretrain", preset="tiny", device="npu", data_origin=origin, variant=variant,
        config={"layers": 4} if config is None else config, counts=counts or {}, op_stream=op_stream,
        launches=tuple(launches(10) if of is None else of),
    )  # fmt: skip


def results(*benchmarks: Benchmark, facts: Mapping[str, Fact] = MACHINE, commit: str | None = None) -> ResultSet:
    return ResultSet(suite="nightly", created=CREATED, tool_version="0.1.0", fingerprint=facts, commit=commit,
                     branch="main", benchmarks=benchmarks or (benchmark(),))  # fmt: skip


def side(*benchmarks: Benchmark, facts: Mapping[str, Fact] = MACHINE, folder: Path = Path(".")) -> Side:
    return Side(results=results(*benchmarks, facts=facts), folder=folder, label="results.json")
