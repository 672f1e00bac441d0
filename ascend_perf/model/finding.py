"""What analyzers say: findings with evidence, metrics, result tables, and how each analyzer ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ascend_perf.intervals import IntervalSet
from ascend_perf.units import Better, Unit, amdahl_bound

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Words:
    """A visible text in both languages."""

    en: str
    zh: str

    def __post_init__(self) -> None:
        if not self.en or not self.zh:
            raise ValueError("a visible text needs both languages")


def marked(text: Words, mark: Words | None) -> Words:
    """A title or a name with what it must be read with, in parentheses."""
    return text if mark is None else Words(f"{text.en} ({mark.en})", f"{text.zh}（{mark.zh}）")


class Severity(Enum):
    """How much of the step is at stake; see `severity_of`."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


def severity_of(share_ratio: float) -> Severity:
    """Severity by share of the step: critical from 30 %, high from 10 %, medium from 3 %, else low.

    Source:
        troubleshooting table, section 1.
    """
    if share_ratio >= 0.30:
        return Severity.CRITICAL
    if share_ratio >= 0.10:
        return Severity.HIGH
    return Severity.MEDIUM if share_ratio >= 0.03 else Severity.LOW


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number behind a finding, and the rows or events it comes from."""

    name: Words
    value: float | int | str | None
    unit: Unit = "none"
    where: str = ""
    """Table, file, stream, name and time stamp: enough to find it again in any viewer."""
    start_ns: int | None = None
    """Time of the event, so that the report can link to the timeline."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One thing to do. `code` is what to copy: a call, a variable, a flag."""

    text: Words
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Where the time of a finding lies on one rank: `gain_ns` of the intervals `where`, of steps of `whole_ns`."""

    rank: int | None
    where: IntervalSet
    gain_ns: float
    whole_ns: int

    def __post_init__(self) -> None:
        if self.whole_ns <= 0:
            raise ValueError("a claim is a part of steps that have a length")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One bottleneck: what, where, how much at most, why we say so, what to do.

    `ranks` are where the cause lies (the late rank, even when its files are not there), `affected_ranks` those that
    lose the time. `share_ratio` is the share of the step that the remedy could touch (0..1), None when unknown.
    `subject` separates findings of one code: equal code and subject on several ranks are one finding.
    """

    code: str
    analyzer: str
    title: Words
    ranks: tuple[int, ...] = ()
    affected_ranks: tuple[int, ...] = ()
    severity: Severity
    share_ratio: float | None
    evidence: tuple[Evidence, ...]
    remedies: tuple[Remedy, ...]
    cause: Words
    confirm: Words | None = None
    formula: str = ""
    source: str = ""
    subject: str = ""
    may_hold: tuple[str, ...] = ()
    """Codes of findings about the whole job whose time this one, seen from one rank, may contain."""
    step_ids: tuple[int | None, ...] = ()
    bands: tuple[tuple[int, int], ...] = ()
    """Windows [start_ns, end_ns) to mark in the timeline."""
    claims: tuple[Claim, ...] = field(default=(), compare=False, repr=False)
    """Where its time lies, for each rank that loses it; empty when the data do not place it."""
    added_ratio: float | None = None
    """By how much it raises the bound of the findings listed before it, in shares of the step; see `gains`."""
    is_overlapped: bool = False
    """Whether that is less than it could give alone: earlier findings touch the same time, or weigh on other ranks."""

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"finding {self.code} has no evidence")
        if self.share_ratio is not None and not 0 <= self.share_ratio <= 1:
            raise ValueError(f"finding {self.code} claims a share of {self.share_ratio}")

    @property
    def bound_speedup(self) -> float | None:
        """The most that the step can gain, 1 / (1 - share)."""
        return None if self.share_ratio is None else amdahl_bound(self.share_ratio)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named figure with its unit and direction."""

    name: str
    value: float | None
    unit: Unit
    better: Better
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    """A column of a result table; `title` is what readers see, `unit` how numbers are written."""

    name: str
    title: Words
    unit: Unit = "none"
    mark: Words | None = None
    """What each figure of the column must be read with, wherever it is shown: `simulated`, `B simulated`."""

    @property
    def heading(self) -> Words:
        """The title with the mark."""
        return marked(self.title, self.mark)


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Rows for a section of the report. `rows` are columnar: `data[i]` holds all cells of `columns[i]`.

    `name` is stable: the report draws some of them as charts (see docs/report-data.md) and the others as tables.
    Columns of large tables may be `cells.IntCells` or `cells.TextCells` instead of tuples.
    """

    name: str
    title: Words
    columns: tuple[ResultColumn, ...]
    data: tuple[Sequence[Cell], ...]
    note: Words | None = None

    def __post_init__(self) -> None:
        if len(self.data) != len(self.columns):
            raise ValueError(f"result table {self.name}: {len(self.columns)} columns, {len(self.data)} of data")
        if len({len(column) for column in self.data}) > 1:
            raise ValueError(f"result table {self.name}: columns differ in length")

    def __len__(self) -> int:
        return len(self.data[0]) if self.data else 0

    def column(self, name: str) -> Sequence[Cell]:
        """Cells of one column.

        Raises:
            KeyError: there is no such column.
        """
        for column, cells in zip(self.columns, self.data, strict=True):
            if column.name == name:
                return cells
        raise KeyError(name)


@dataclass(frozen=True, kw_only=True)
class HeldUp:
    """A rank that others wait for, and the rank that made it late: what all ranks together tell of a rank's finding.

    A finding of `code` about `waiter` that blames `late` is about `by` in truth.
    """

    code: str
    waiter: int
    late: int
    by: int
    note: Words
    """What the title of such a finding says beside."""


Status = Literal["done", "no_data", "failed", "left_out"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row of the troubleshooting table that an analyzer looked at: found, clean, or not judged and why."""

    code: str
    verdict: Literal["found", "clean", "not_judged"]
    reason: Words | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one analyzer ended on one rank (or on the job, rank None and `scope` "job")."""

    analyzer: str
    status: Status
    rank: int | None = None
    reason: Words | None = None
    findings: tuple[Finding, ...] = ()
    metrics: tuple[Metric, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    judged: tuple[Judged, ...] = ()
    held_up: tuple[HeldUp, ...] = ()
    scope: Literal["rank", "job"] = "rank"
    trace_index: int | None = None
    """Place of the trace in `Run.traces`: ranks may be unknown, or occur twice. None for the job."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an analyzer function returns; `plugins` turns it into an `Outcome`."""

    findings: tuple[Finding, ...] = ()
    metrics: tuple[Metric, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    judged: tuple[Judged, ...] = field(default=())
    held_up: tuple[HeldUp, ...] = ()
