"""A run: the traces of all ranks that were found, and the manifest of the run directory if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ascend_perf.model.finding import Metric
from ascend_perf.model.run_view import run_html, run_line, run_text
from ascend_perf.model.table import TableSpec
from ascend_perf.model.tables import (
    COMM_OPS,
    COPIES,
    COUNTERS,
    HOST_EVENTS,
    HOST_OPS,
    KERNELS,
    MEMORY,
    RUNTIME_CALLS,
    STEPS,
)
from ascend_perf.model.trace import Source, Trace

if TYPE_CHECKING:
    import pandas as pd

Fact = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `ascend-perf run` recorded beside the trace: enough to know what was measured and how."""

    workload: str
    device: str
    data_origin: str
    created: str
    config: Mapping[str, object] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    timings_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int | None = None
    path: str = ""
    preset: str | None = None
    device_facts: Mapping[str, Fact] = field(default_factory=dict)
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Part (trace, telemetry, series, results, checkpoint) to paths relative to the run directory."""
    notes: tuple[str, ...] = ()
    """What a reader must know: what was not measured and why."""
    status: Literal["complete", "interrupted", "failed"] = "complete"
    problem: str = ""
    """Why the run did not come to its end."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """Traces in rank order (unknown ranks last), all from one input. Each table reads as one DataFrame.

    A notebook shows ranks, files and rows of the tables; `print` writes them as text.
    """

    traces: tuple[Trace, ...]
    label: str = ""
    manifest: Manifest | None = None
    skipped: tuple[Source, ...] = ()
    """Files and folders that were found but could not be used, with the problem."""
    broken_readers: Mapping[str, str] = field(default_factory=dict)
    """Readers that could not be loaded, with the reason: their files were not recognised."""

    @property
    def is_simulated(self) -> bool:
        """Whether any part of it is: nothing of that part ran on a device."""
        origins = {trace.meta.data_origin for trace in self.traces}
        return "simulated" in origins or (self.manifest is not None and self.manifest.data_origin != "measured")

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """Rank of each trace."""
        return tuple(trace.meta.rank for trace in self.traces)

    def frame(self, spec: TableSpec) -> pd.DataFrame:
        """One table of all ranks as a DataFrame with a leading nullable `rank` column."""
        import pandas as pd

        frames = []
        for trace in self.traces:
            frame = trace[spec].to_pandas()
            frame.insert(0, "rank", pd.Series([trace.meta.rank] * len(frame), dtype="Int64"))
            frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @property
    def steps(self) -> pd.DataFrame:
        """One row per rank and step."""
        return self.frame(STEPS)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per compute kernel."""
        return self.frame(KERNELS)

    @property
    def comm_ops(self) -> pd.DataFrame:
        """One row per collective or point-to-point call and rank."""
        return self.frame(COMM_OPS)

    @property
    def copies(self) -> pd.DataFrame:
        """One row per memory copy or set."""
        return self.frame(COPIES)

    @property
    def host_ops(self) -> pd.DataFrame:
        """One row per framework operator call."""
        return self.frame(HOST_OPS)

    @property
    def host_events(self) -> pd.DataFrame:
        """One row per dataloader, gc, python or user event."""
        return self.frame(HOST_EVENTS)

    @property
    def runtime_calls(self) -> pd.DataFrame:
        """One row per CANN, CUDA or HIP call."""
        return self.frame(RUNTIME_CALLS)

    @property
    def memory(self) -> pd.DataFrame:
        """One row per allocator sample."""
        return self.frame(MEMORY)

    @property
    def counters(self) -> pd.DataFrame:
        """One row per counter sample."""
        return self.frame(COUNTERS)

    def _repr_html_(self) -> str:
        return run_html(self)

    def __str__(self) -> str:
        return run_text(self)

    def __repr__(self) -> str:
        return run_line(self)


def ordered(traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """Traces by rank, unknown ranks last in the order given."""
    return tuple(sorted(traces, key=lambda t: (t.meta.rank is None, t.meta.rank or 0)))
