"""What the gate says: rows with their outcome, and the verdict over all of them with its exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal

from ascend_perf.model.finding import Words
from ascend_perf.stats import RankTest, RatioInterval
from ascend_perf.units import Better, Unit

Outcome = Literal[
    "regression", "not_comparable", "inconclusive", "warning", "allowed", "improved", "new", "removed", "pass"
]
"""Of a row, the gravest first. `removed` is a benchmark that is gone and listed as such; one that is not listed is a
regression. `allowed` is a regression that the allow-list excuses."""

Decision = Literal["pass", "regression", "inconclusive", "not_comparable"]

ORDER: Final[tuple[Outcome, ...]] = (
    "regression", "not_comparable", "inconclusive", "warning", "allowed", "removed", "new", "improved", "pass",
)  # fmt: skip

EXIT_CODES: Final[Mapping[Decision, int]] = {"pass": 0, "regression": 1, "inconclusive": 3, "not_comparable": 4}

Kind = Literal["machine", "work", "status", "count", "op_stream", "metric"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was looked at."""

    benchmark: str
    """Empty: the whole suite."""
    kind: Kind
    name: str
    """Metric, count, or what else was compared."""
    outcome: Outcome
    reason: Words
    unit: Unit = "none"
    better: Better = "none"
    base: float | int | None = None
    head: float | int | None = None
    change_ratio: float | None = None
    """head / base - 1; None where it has no meaning."""
    interval: RatioInterval | None = None
    """Of head / base."""
    rank_test: RankTest | None = None
    fail_ratio: float | None = None
    """The least change for the worse that fails."""
    launches_needed: int | None = None
    """Launches of each side that would decide, for an inconclusive row; None: not known, or too many to name."""
    details: tuple[str, ...] = ()
    """Lines of a difference: operators, settings, facts."""
    owner: str = ""
    until: date | None = None
    """Of the entry of the allow-list."""
    simulated: bool = False
    """One side at least is simulated."""
    measured_side: Literal["base", "head"] | None = None
    """The side of a simulated row that was measured nevertheless."""


@dataclass(frozen=True, kw_only=True)
class SideFacts:
    """Where one side comes from."""

    label: str
    suite: str = ""
    created: str = ""
    commit: str | None = None
    branch: str | None = None
    tool_version: str = ""
    fingerprint: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    launches: tuple[int, ...] = ()
    """Numbers of complete launches that benchmarks have, without repetition, ascending."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A place in the host tree and what it adds to the difference of a step."""

    name: str
    base_ns: float
    """Per step, with everything below it that the next nodes do not claim."""
    head_ns: float
    base_count: float = 0.0
    head_count: float = 0.0

    @property
    def delta_ns(self) -> float:
        """head - base, per step."""
        return self.head_ns - self.base_ns


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The nodes that explain a regression of one benchmark, largest first, or why there are none."""

    benchmark: str
    nodes: tuple[Node, ...] = ()
    missing: Words | None = None
    simulated: bool = False
    """One side at least is simulated."""
    measured_side: Literal["base", "head"] | None = None
    """The side of a simulated explanation that was measured nevertheless."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Everything that the outputs are made from."""

    outcome: Decision
    rows: tuple[Row, ...]
    base: SideFacts
    head: SideFacts
    confidence: float
    tolerance: float
    judged_on: date
    notes: tuple[Words, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    warn_only: bool = False
    html_url: str = ""

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 3 inconclusive, 4 not comparable; always 0 with `warn_only`."""
        return 0 if self.warn_only else EXIT_CODES[self.outcome]

    def having(self, *outcomes: Outcome) -> tuple[Row, ...]:
        """Rows with one of these outcomes."""
        return tuple(row for row in self.rows if row.outcome in outcomes)


def outcome_of(rows: tuple[Row, ...]) -> Decision:
    """The gravest outcome that decides: a regression is one whatever else could not be compared."""
    found = {row.outcome for row in rows}
    if "regression" in found:
        return "regression"
    if "not_comparable" in found:
        return "not_comparable"
    return "inconclusive" if "inconclusive" in found else "pass"
