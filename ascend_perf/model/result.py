"""What a suite of benchmarks gave: benchmarks, each run in several fresh processes on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Fact

Status = Literal["complete", "failed", "interrupted"]

MUST_AGREE: Final = (
    "kind", "chip", "chip_count", "driver", "firmware", "cann", "cuda", "torch", "torch_npu", "cpu", "cpu_cores",
    "clock_hz", "power_cap_watt", "container",
)  # fmt: skip
"""Facts of a fingerprint that must be equal on both sides, where both know them, for times to be compared."""


SPOILED: Final = "no time counts: "
"""Begins a note of a benchmark some run of which had a setting that makes times meaningless; the setting follows."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One run of a benchmark in a fresh process: the unit of replication."""

    index: int
    """Place in the order in which all runs of the suite were started, from 0."""
    started: str
    """Local time with offset, ISO 8601."""
    status: Status
    problem: str = ""
    """Why it is not complete."""
    metrics: tuple[Metric, ...] = ()
    steps_ns: tuple[int, ...] = ()
    """Steady measured steps: warm-up cut."""
    warmup_ns: tuple[int, ...] = ()
    """Steps that were cut."""
    samples_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Single latencies by name (ttft, e2e ...)."""
    folder: str | None = None
    """Its run directory, relative to the result file; None where it was not kept."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One cell of the matrix of a suite."""

    name: str
    """Unique in its file: llm-pretrain/tiny/cpu/1, with the variant behind it where there are several."""
    workload: str
    preset: str | None = None
    device: str = ""
    world_size: int = 1
    variant: str = ""
    data_origin: Literal["measured", "simulated"] = "measured"
    config: Mapping[str, Fact] = field(default_factory=dict)
    """Every setting: what decides whether two benchmarks do the same work."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Deterministic figures of a step: kernels, launches, collectives, bytes, flops, host_syncs, memory_peak ..."""
    op_stream: str | None = None
    """Snapshot of the operators of a step, a path relative to the result file; None where none was taken."""
    launches: tuple[Launch, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    """A result file."""

    suite: str
    created: str
    tool_version: str
    fingerprint: Mapping[str, Fact] = field(default_factory=dict)
    """What the machine is; see MUST_AGREE. Unknown facts are None."""
    commit: str | None = None
    branch: str | None = None
    benchmarks: tuple[Benchmark, ...] = ()
    notes: tuple[str, ...] = ()
