"""A job rank by rank: each is read, analyzed and cut down to what the comparison of ranks needs, before the next.

So a process holds one rank in full at a time, several processes share the ranks out, and what comes back to the caller
is results and small tables. `pipeline` puts them together.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from ascend_perf.analyzers._choice import Choice
from ascend_perf.analyzers._steps import tells_steps
from ascend_perf.errors import InputError
from ascend_perf.model.finding import Outcome
from ascend_perf.model.once import sharing
from ascend_perf.model.table import NULL, Bools, Kind, Table
from ascend_perf.model.tables import (
    BESIDE,
    COMM_OPS,
    COMM_TASKS,
    COPIES,
    EXPORTED_STEPS,
    HOST_EVENTS,
    HOST_OPS,
    KERNELS,
    RUNTIME_CALLS,
    STEPS,
    TRAINING_SERIES,
)
from ascend_perf.model.trace import Group, Source, Trace
from ascend_perf.parsers._numbers import sizes
from ascend_perf.parsers._parallel import Lost, share_out, size_of, workers_for
from ascend_perf.parsers._source import Unit
from ascend_perf.parsers._with_series import joined as with_series
from ascend_perf.plugins import Analyzer, Found, Reads, load_analyzers
from ascend_perf.reports.payload import RankSummary, summary_of

Progress = Callable[[str], None]

_WORK: Final = f"{__name__}:work"

WINDOWS: Final = frozenset({"start_ns", "dur_ns"})
"""What the step of a trace without steps is found from, in the tables of copies and of the host."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A unit to work on: its label in the report, and what of it was asked for (everything when empty)."""

    unit: Unit
    label: str
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    choice: Choice = field(default_factory=Choice)
    """Analyzers that run, and thresholds of the user."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One rank after its analysis."""

    trace: Trace
    """Cut: the columns that job analyzers read; the other tables have their length only."""
    steps: tuple[int, ...]
    """Numbers of the steps in the data, before any were chosen."""
    outcomes: tuple[Outcome, ...] = ()
    """Of the rank analyzers, in the order of the report; none when the rank was not asked for."""
    summary: RankSummary | None = None


@dataclass
class Gathered:
    """The pieces of all units, and those units that gave none."""

    pieces: list[Piece] = field(default_factory=list)
    skipped: list[Source] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)


def traces_of(unit: Unit, outcome: list[Trace] | InputError, label: str) -> list[Trace] | InputError:
    """What a parser gave, labelled and compact; traces without a single row are an error.

    Columns of a reader often share one dictionary of all words of a file; analyzers look at each word of a column.
    """
    if isinstance(outcome, InputError):
        return outcome
    if not any(any(len(table) for table in trace.tables.values()) for trace in outcome):
        return InputError(
            f"{unit.label} holds no rows: every table in it is empty",
            hint="the profile was not recorded, or not exported to its end",
        )
    return [
        _with_known_sizes(
            Trace(
                {name: table.compact() for name, table in trace.tables.items()},
                trace.meta if trace.meta.label else replace(trace.meta, label=label),
            )
        )
        for trace in outcome
    ]


def _with_known_sizes(trace: Trace) -> Trace:
    """The trace with `NULL` for sizes that are damage, whatever reader took them: sums of them would leave int64."""
    count, tables = 0, {}
    for name, table in trace.tables.items():
        changed = {}
        for column in table.spec.columns:
            if column.name.endswith("_bytes") and column.kind is Kind.INT and table.has(column.name):
                values = table.ints(column.name)
                known = sizes(values)
                if lost := int(((known == NULL) & (values != NULL)).sum()):
                    changed[column.name], count = known, count + lost
        if changed:
            tables[name] = table.with_columns(changed)
    if not tables:
        return trace
    warnings = (*trace.meta.warnings, f"{count} sizes below zero or over 16 TiB are unknown")
    return Trace({**trace.tables, **tables}, replace(trace.meta, warnings=warnings))


def skipped(unit: Unit, label: str, error: InputError) -> Source:
    """How a unit that could not be used is listed: without the place of its files."""
    text = error.what.removeprefix(f"{unit.label}: ")
    for path in unit.files:
        text = text.replace(str(path), path.name)
    return Source(path=label, format=unit.parser, problem=text)


# ---- steps -----------------------------------------------------------------------------------------------------------


def step_ids(trace: Trace) -> tuple[int, ...]:
    """Numbers of the steps of a trace."""
    return tuple(sorted({int(s) for s in trace[STEPS].ints("step_id") if s != NULL}))


def only_steps(trace: Trace, wanted: set[int]) -> Trace:
    """The trace with the rows of some steps."""
    tables = {}
    for spec in (STEPS, KERNELS, COMM_OPS, COPIES, EXPORTED_STEPS):
        table = trace[spec]
        if len(table) and table.has("step_id"):
            keep = np.isin(table.ints("step_id"), list(wanted))
            tables[spec.name] = table.select(keep)
            if spec is COMM_OPS and not keep.all():
                tables["comm_tasks"] = _follow(trace, keep)
    return trace.replace(tables=tables)


def _follow(trace: Trace, mask: Bools) -> Table:
    """Sub-tasks of the kept communication ops, with their row numbers adjusted."""
    number = np.cumsum(mask) - 1
    tasks = trace[COMM_TASKS]
    rows = tasks.ints("comm_op")
    keep = mask[rows] if len(rows) else np.zeros(0, bool)
    return tasks.select(keep).with_columns({"comm_op": number[rows[keep]].astype(np.int64)})


# ---- one rank --------------------------------------------------------------------------------------------------------


@cache
def _analyzers() -> Found[Analyzer]:
    return load_analyzers()


def reads_of(parts: Sequence[Analyzer]) -> Reads | None:
    """The columns that the job analyzers among some read; None when one of them does not say."""
    merged: dict[str, frozenset[str]] = {}
    for part in parts:
        if part.scope != "job":
            continue
        if part.reads is None:
            return None
        for name, columns in part.reads.items():
            merged[name] = merged.get(name, frozenset()) | columns
    return merged


def cut(trace: Trace, reads: Reads | None) -> Trace:
    """The trace with the columns that job analyzers read; the length of each table stays known."""
    if reads is None or BESIDE.issuperset(trace.tables):
        return trace
    wanted: dict[str, frozenset[str]] = {**reads}
    if not tells_steps(trace):
        for spec in (COPIES, HOST_OPS, HOST_EVENTS, RUNTIME_CALLS):
            wanted[spec.name] = wanted.get(spec.name, frozenset()) | WINDOWS
    wanted[TRAINING_SERIES.name] = frozenset(column.name for column in TRAINING_SERIES.columns)
    return Trace({name: table.keeping(wanted.get(name, ())) for name, table in trace.tables.items()}, trace.meta)


def piece_of(trace: Trace, task: Task) -> Piece:
    """A rank analyzed and cut. A rank that was not asked for has only the length of its tables."""
    seen = step_ids(trace)
    if task.ranks and trace.meta.rank not in task.ranks:
        return Piece(trace=cut(trace, {}), steps=seen)
    if task.steps:
        trace = only_steps(trace, set(task.steps))
    parts = [part for part in _analyzers().parts.values() if task.choice.takes(part.name)]
    with task.choice.applied(), sharing():
        outcomes = tuple(part.run_on_trace(trace) for part in parts if part.scope == "rank")
    return Piece(
        trace=cut(trace, reads_of(parts)), steps=seen, outcomes=outcomes, summary=summary_of(trace, outcomes)
    )  # fmt: skip


def read(task: Task) -> list[Trace]:
    """The traces of a task's unit.

    Raises:
        InputError: it cannot be read, holds no rows, or the reader failed on it.
    """
    from ascend_perf.parsers.discover import parsers

    unit = task.unit
    try:
        traces = traces_of(unit, parsers()[unit.parser].parse(unit), task.label)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{unit.label}: memory ran out while it was read") from None
    except Exception as error:  # one rank that breaks its reader must not hide the others
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        raise InputError(
            f"{unit.label}: its reader failed: {type(error).__name__}: {error} ({at})",
            hint="this is a defect of ascend-perf; please report it",
        ) from error
    if isinstance(traces, InputError):
        raise traces
    return traces


def work(task: Task) -> list[Piece]:
    """The pieces of a task's unit: what a worker process does.

    Raises:
        InputError: as `read`.
    """
    return [piece_of(trace, task) for trace in read(task)]


# ---- all ranks -------------------------------------------------------------------------------------------------------


def gather(tasks: Sequence[Task], *, jobs: int | None, progress: Progress) -> Gathered:
    """Work on all tasks, in processes where that pays, and list what gave nothing with the reason.

    A process that is killed (for want of memory, mostly) takes no other rank with it: its task is tried once more when
    the others are done, and then listed.
    """
    units = [task.unit for task in tasks]
    sizes = [size_of(unit) for unit in units]
    workers = workers_for(units, jobs)
    found: list[object] = [Lost(started=False)] * len(tasks)

    def told(index: int, count: int) -> None:
        progress(f"reading and analyzing {units[index].label} ({count} of {len(units)})")

    if workers > 1:
        found = share_out(_WORK, tasks, sizes, workers=workers, done=told)
    result = Gathered()
    homes: list[Task] = []
    for index, (task, outcome) in enumerate(zip(tasks, found, strict=True)):
        if not isinstance(outcome, list | InputError):
            told(index, index + 1)
            outcome = _again(task, sizes[index], outcome)
        if isinstance(outcome, InputError):
            result.skipped.append(skipped(task.unit, task.label, outcome))
            result.errors.append(outcome)
        else:
            result.pieces += outcome
            homes += [task] * len(outcome)
    result.pieces = _with_series(result.pieces, homes)
    return result


def _again(task: Task, size: int, lost: object) -> list[Piece] | InputError:
    """The work on a task without a result yet: here, or once more apart when a process was killed over it."""
    if isinstance(lost, Lost) and lost.started and lost.code is not None and lost.code < 0:
        (once_more,) = share_out(_WORK, [task], [size], workers=1, done=lambda index, count: None)
        if isinstance(once_more, list | InputError):
            return once_more
        if isinstance(once_more, Lost) and once_more.code is not None and once_more.code < 0:
            return InputError(
                f"{task.unit.label}: the process that read it was killed (signal {-once_more.code}): memory ran out?",
                hint="give fewer processes with --jobs, or this rank alone with --rank",
            )
    try:
        return work(task)
    except InputError as error:
        return error


def _with_series(pieces: Sequence[Piece], homes: Sequence[Task]) -> list[Piece]:
    """The pieces with training series put into the profiles that they belong to.

    Only when all are read is it clear which belongs to which. Such a profile is read and analyzed once more, with its
    series: there are few of them, mostly one.
    """
    joined = with_series([piece.trace for piece in pieces])
    if len(joined) == len(pieces):
        return list(pieces)
    result: list[Piece] = []
    left = iter(joined)
    trace = next(left, None)
    for piece, task in zip(pieces, homes, strict=True):
        if trace is piece.trace:
            result.append(piece)
        elif trace is not None and set(piece.trace.tables) != {TRAINING_SERIES.name}:
            result.append(_again_with(piece, task, trace))
        else:
            continue  # a series that another trace has taken
        trace = next(left, None)
    return result


def _again_with(piece: Piece, task: Task, joined: Trace) -> Piece:
    if piece.summary is None:
        return replace(piece, trace=joined)
    whole = next((trace for trace in read(task) if trace.meta == piece.trace.meta), None)
    if whole is None:
        return replace(piece, trace=joined)
    return piece_of(whole.replace(meta=joined.meta, tables={TRAINING_SERIES.name: joined[TRAINING_SERIES]}), task)


def shared_groups(traces: Sequence[Trace]) -> list[Trace]:
    """The traces with equal groups as one object: a thousand ranks each bring the list of a thousand members."""
    known: dict[Group, Group] = {}
    result = []
    for trace in traces:
        groups = tuple(known.setdefault(group, group) for group in trace.meta.groups)
        result.append(trace.replace(meta=replace(trace.meta, groups=groups)) if groups else trace)
    return result
