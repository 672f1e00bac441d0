"""How a figure went over months: values with their results, change points, and what people said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ascend_perf.model.run import Fact
from ascend_perf.units import Better, Unit

Direction = Literal["worse", "better", "changed"]
"""What a change means for the figure; `changed` where neither is better."""
State = Literal["open", "accepted", "dismissed"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result file behind values."""

    id: int
    commit: str | None
    created: str
    at_s: float
    launches: int
    failed: int
    report_url: str | None = None
    reports: Mapping[str, str] | None = None
    """By benchmark the report of its last complete run: a path relative to the pages."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change point: from the value at `place` on, the figure has another level."""

    id: str
    """SERIES@RESULT: what commands call it."""
    place: int
    """First value of the new level: its commit is the first bad one where the change is for the worse."""
    earliest: int
    latest: int
    """The first value of the new level is one of these with a likelihood of 95 %."""
    ratio: float | None
    """New level by old one; None where the old one is 0 (an exact figure)."""
    ratio_low: float | None
    ratio_high: float | None
    p_value: float | None
    """None for exact figures, which have no noise, and for decided places that the test alone does not find."""
    direction: Direction
    state: State
    owner: str = ""
    note: str = ""
    decided: str = ""
    facts: tuple[tuple[str, Fact, Fact], ...] = ()
    """Facts of the machine (driver, torch ...) that differ between the values on both sides: likely causes."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The values of one metric of one benchmark; all lists have one entry per value, in the order of time."""

    series: int
    suite: str
    branch: str
    machine: str
    benchmark: str
    work: str
    metric: str
    unit: Unit
    better: Better
    is_exact: bool
    is_simulated: bool
    results: tuple[int, ...]
    """Ids of the results."""
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    launches: tuple[int, ...]
    levels: tuple[float, ...]
    """Median of the values between two change points."""
    z: tuple[float | None, ...]
    """Distance from the rolling median in robust standard deviations, by the values before; None while too few."""
    changes: tuple[Change, ...]
    not_judged: int = 0
    """Values that are zero or negative: they have no logarithm, and take no part in the search."""


@dataclass(frozen=True, kw_only=True)
class TrendBook:
    """All that the pages show."""

    trends: tuple[Trend, ...]
    results: Mapping[int, Result]
    machines: Mapping[str, Mapping[str, Fact]]
    """By key the newest fingerprint of each."""
