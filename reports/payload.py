"""What a report says, before it is written: plain figures of one analysis, taken from a run and its outcomes.

The writers (`json_report`, `markdown`, `html`) read a `Payload` and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Final

from ascend_perf import __version__
from ascend_perf.analyzers._thresholds import Override
from ascend_perf.model.finding import Finding, Metric, Outcome, ResultTable, Words
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.table import NULL, Ints, TableSpec
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_OPS, KERNELS, MEMORY, STEPS
from ascend_perf.model.trace import DataOrigin, Meta, Source, Trace
from ascend_perf.reports.texts import Lang

STEPS_TABLE: Final = "steps"
"""Result table that holds the steps of a rank."""


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How many, and how long together. Unknown is None."""

    count: int | None = None
    total_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of one rank in us; unknown parts are None. `step_id` is None without step markers."""

    step_id: int | None = None
    span_us: float | None = None
    computing_us: float | None = None
    communication_us: float | None = None
    overlapped_us: float | None = None
    communication_not_overlapped_us: float | None = None
    free_us: float | None = None
    bubble_us: float | None = None
    preparing_us: float | None = None
    copy_not_overlapped_us: float | None = None
    wait_us: float | None = None
    source: str | None = None


STEP_FIGURES: Final = tuple(f.name for f in fields(StepRow) if f.name.endswith("_us"))
"""Columns of `StepRow` that are times."""


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank: its facts, its totals, its steps."""

    meta: Meta
    kernels: Amount
    communication: Amount
    steps: tuple[StepRow, ...]
    origin_ns: int | None = None
    """Start of the first step (else of the first event) on the trace's clock: zero of the times in the page."""
    peak_reserved_bytes: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows per table of the trace."""

    @property
    def rank(self) -> int | None:
        """Global rank, None when the trace does not tell."""
        return self.meta.rank


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """A file that was found, and the rank it belongs to."""

    rank: int | None
    source: Source


@dataclass(frozen=True, kw_only=True)
class RankPages:
    """Pages beside the report of a job, one for each rank (`--all-ranks`)."""

    ranks: tuple[int | None, ...]
    """Ranks that have one; None stands for the traces that name no rank."""
    of: int | None = None
    """The rank that a page is about."""
    is_rank: bool = False
    """Whether this is such a page, and not the report of the job."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Everything the writers need. `findings` are merged over ranks and ranked, most important first."""

    lang: Lang
    label: str
    version: str
    data_origin: DataOrigin
    manifest: Manifest | None
    ranks: tuple[RankSummary, ...]
    sources: tuple[ReadSource, ...]
    metrics: tuple[Metric, ...]
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    broken: Mapping[str, str] = field(default_factory=dict)
    """Analyzers that could not be loaded, with the reason."""
    broken_readers: Mapping[str, str] = field(default_factory=dict)
    """Readers that could not be loaded, with the reason."""
    overrides: tuple[Override, ...] = ()
    """Thresholds for which the user stated other values."""
    rules: Mapping[str, Words] = field(default_factory=dict)
    """Short titles of the rows of the troubleshooting table, by row ID."""
    pages: RankPages | None = None
    """Pages of single ranks that belong to this report; None without."""

    def tables(self, name: str) -> Iterator[tuple[int | None, ResultTable]]:
        """Result tables of one name with their rank, in order of the outcomes."""
        for outcome in self.outcomes:
            for table in outcome.tables:
                if table.name == name:
                    yield outcome.rank, table

    def has_left_out(self, analyzer: str) -> bool:
        """Whether the user left an analyzer out."""
        return any(o.analyzer == analyzer and o.status == "left_out" for o in self.outcomes)

    def figures(self, name: str) -> list[float]:
        """One figure of `StepRow` over all ranks and steps, where it is known."""
        values = (getattr(step, name) for rank in self.ranks for step in rank.steps)
        return [value for value in values if value is not None]


def build(
    run: Run,
    outcomes: Sequence[Outcome],
    findings: Sequence[Finding],
    *,
    lang: Lang,
    broken: Mapping[str, str] | None = None,
    rules: Mapping[str, Words] | None = None,
    summaries: Sequence[RankSummary] | None = None,
    overrides: Sequence[Override] = (),
) -> Payload:
    """Payload of one analysis.

    Args:
        run: the traces, for facts about files, devices and totals.
        outcomes: how each analyzer ended on each rank, and on the job.
        findings: findings of all outcomes, merged over ranks and ranked.
        lang: language of `report.json` and `report.md`, and the first one of the page.
        broken: analyzers that could not be loaded, with the reason.
        rules: short titles of the troubleshooting table by row ID, for the lists of clean and unjudged rows.
        summaries: `summary_of` each trace, where the traces of the run do not hold all of their tables any more.
        overrides: thresholds for which the user stated other values.
    """
    sources = [ReadSource(rank=t.meta.rank, source=s) for t in run.traces for s in t.meta.sources]
    sources += [ReadSource(rank=None, source=source) for source in run.skipped]
    metrics = list(run.manifest.metrics) if run.manifest else []
    for outcome in outcomes:
        metrics += outcome.metrics
    return Payload(
        lang=lang,
        label=run.label,
        version=__version__,
        data_origin="simulated" if run.is_simulated else "measured",
        manifest=run.manifest,
        ranks=tuple(summaries if summaries is not None else _summaries(run, outcomes)),
        sources=tuple(sources),
        metrics=tuple(metrics),
        outcomes=tuple(outcomes),
        findings=tuple(findings),
        broken=dict(broken or {}),
        broken_readers=dict(run.broken_readers),
        overrides=tuple(overrides),
        rules=dict(rules or {}),
    )


def finite(value: float | int | None) -> float | int | None:
    """`value`, or None when it is NaN or infinite."""
    return None if value is None or not math.isfinite(value) else value


def shown_path(path: str) -> str:
    """A path without the folders of somebody's machine: relative as given, else its last two parts."""
    pure = PurePath(path)
    return path if not pure.is_absolute() else "/".join(pure.parts[1:][-2:])


def _summaries(run: Run, outcomes: Sequence[Outcome]) -> list[RankSummary]:
    """By the place of a trace in the run: ranks may be unknown, or occur twice (profiling cycles)."""
    mine: list[list[Outcome]] = [[] for _ in run.traces]
    for outcome in outcomes:
        if outcome.scope == "rank" and outcome.trace_index is not None and outcome.trace_index < len(mine):
            mine[outcome.trace_index].append(outcome)
    return [summary_of(trace, own) for trace, own in zip(run.traces, mine, strict=True)]


def summary_of(trace: Trace, outcomes: Sequence[Outcome]) -> RankSummary:
    """Facts and totals of a rank, and its steps as its own outcomes tell them."""
    tables = (table for outcome in outcomes for table in outcome.tables if table.name == STEPS_TABLE)
    return _summary(trace, next(tables, None))


def _summary(trace: Trace, steps: ResultTable | None) -> RankSummary:
    return RankSummary(
        meta=trace.meta,
        kernels=_amount(trace, KERNELS),
        communication=_amount(trace, COMM_OPS, known=len(trace[KERNELS]) > 0),
        steps=_step_rows(steps) if steps is not None and len(steps) else _unknown_steps(trace),
        origin_ns=_origin_ns(trace),
        peak_reserved_bytes=_peak_reserved_bytes(trace),
        rows={name: len(table) for name, table in trace.tables.items() if len(table)},
    )


def _amount(trace: Trace, spec: TableSpec, *, known: bool = False) -> Amount:
    """Rows and their time. No rows is zero only where the reader looked for them, else unknown."""
    if spec.name not in trace.tables and not known:
        return Amount()
    durations = trace[spec].ints("dur_ns") if len(trace[spec]) else None
    if durations is None:
        return Amount(count=0, total_us=0.0)
    return Amount(count=len(durations), total_us=int(durations[durations != NULL].sum()) / 1000)


def _step_rows(table: ResultTable) -> tuple[StepRow, ...]:
    names = {column.name for column in table.columns}
    rows = []
    for row in range(len(table)):
        cells = {name: table.column(name)[row] for name in names}
        times = {name: _number(cells.get(name)) for name in STEP_FIGURES}
        step_id = cells.get("step_id")
        source = cells.get("source")
        rows.append(
            StepRow(
                step_id=step_id if isinstance(step_id, int) else None,
                source=source if isinstance(source, str) else None,
                **times,
            )
        )
    return tuple(rows)


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    return finite(cell)


def _unknown_steps(trace: Trace) -> tuple[StepRow, ...]:
    ids: list[int] = trace[STEPS].ints("step_id").tolist() if trace.has(STEPS) else [NULL]
    return tuple(StepRow(step_id=None if step == NULL else step) for step in ids)


def _origin_ns(trace: Trace) -> int | None:
    starts = [_first(trace[spec].ints("start_ns")) for spec in (STEPS,) if trace.has(spec)]
    if not any(start is not None for start in starts):
        starts = [_first(trace[spec].ints("start_ns")) for spec in (KERNELS, COMM_OPS, COPIES, HOST_OPS)]
    return min((start for start in starts if start is not None), default=None)


def _first(starts: Ints) -> int | None:
    seen = starts[starts != NULL]
    return int(seen.min()) if len(seen) else None


def _peak_reserved_bytes(trace: Trace) -> int | None:
    """Peak of the framework allocator; the whole process (APP) counts driver and HCCL buffers too and is left out."""
    if not trace.has(MEMORY):
        return None
    memory = trace[MEMORY]
    own = ~memory.text("component").isin(("APP", "CPU"))
    reserved = memory.ints("reserved_bytes")[own]
    reserved = reserved[reserved != NULL]
    return int(reserved.max()) if len(reserved) else None
