"""The stacked bar "where the step goes", one per rank: parts that add up to the step exactly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.odd import MIN_DEVIATION_RATIO as MIN_DEVIATION_RATIO
from ascend_perf.reports.odd import MODIFIED_Z_LIMIT as MODIFIED_Z_LIMIT
from ascend_perf.reports.odd import Z_FACTOR as Z_FACTOR
from ascend_perf.reports.odd import scores
from ascend_perf.reports.payload import Payload, RankSummary, finite
from ascend_perf.reports.phrases import phrase

_COMPUTING: Final = ("cube", "vector", "aicpu", "ai cpu", "compute", "computing", "dsa", "mix", "kernel", "gpu")

Kind = Literal["computing", "wait", "transfer", "copy", "idle", "host", "other"]

MIN_IDLE_RATIO: Final = 0.005
"""Causes of idle time below this share of the step are shown together. Status: assumed."""

_SECTION: Final[dict[Kind, str]] = {
    "computing": "operators",
    "wait": "communication",
    "transfer": "communication",
    "copy": "dma",
    "idle": "host",
    "host": "host",
    "other": "steps",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One piece of a bar."""

    key: str
    label: Words
    kind: Kind
    time_ns: float

    @property
    def section(self) -> str:
        """Section that explains this part."""
        return _SECTION[self.kind]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The step of one rank. `is_outlier` marks a rank whose computing time differs from the others."""

    rank: int | None
    parts: tuple[Part, ...]
    is_outlier: bool = False

    @property
    def total_ns(self) -> float:
        """Sum of the parts."""
        return sum(part.time_ns for part in self.parts)

    def kind_ns(self, kind: Kind) -> float:
        """Time of all parts of one kind."""
        return sum(part.time_ns for part in self.parts if part.kind == kind)


def bars(payload: Payload) -> tuple[Bar, ...]:
    """A bar per rank whose step is known, from the table `step-bar`, else from the step figures."""
    by_rank = {rank: bar for rank, table in payload.tables("step-bar") if (bar := _from_table(rank, table))}
    causes = {rank: _causes(table) for rank, table in payload.tables("idle-causes")}
    made = [by_rank.get(rank.rank) or _from_steps(rank) for rank in payload.ranks]
    known = [_split_idle(bar, causes.get(bar.rank, {})) for bar in made if bar is not None]
    return _marked(known, stages(payload))


def _causes(table: ResultTable) -> dict[str, float]:
    """Idle time by cause, largest first."""
    try:
        names, times = table.column("cause"), table.column("total_ns")
    except KeyError:
        return {}
    known = {str(name): float(time) for name, time in zip(names, times, strict=True) if isinstance(time, int | float)}
    return dict(sorted(((n, t) for n, t in known.items() if t > 0), key=lambda item: -item[1]))


def _split_idle(bar: Bar, causes: dict[str, float]) -> Bar:
    """The bar with its idle time split by what the host did meanwhile.

    The causes are counted over all steps and the bar shows one, so their proportions are used; the sum stays exact.
    """
    idle = next((part for part in bar.parts if part.key == "free"), None)
    whole = sum(causes.values())
    if idle is None or whole <= 0:
        return bar
    shown = [name for name in causes if causes[name] / whole * idle.time_ns >= MIN_IDLE_RATIO * bar.total_ns]
    if not shown:
        return bar
    parts = [
        Part(
            key=f"free/{name}", label=words("bar.idle_cause", cause=phrase(name, "cause")), kind="idle",
            time_ns=idle.time_ns * causes[name] / whole,
        )
        for name in shown
    ]  # fmt: skip
    rest = idle.time_ns - sum(part.time_ns for part in parts)
    if rest > 0:
        parts.append(Part(key="free/rest", label=words("bar.idle_rest"), kind="idle", time_ns=rest))
    at = bar.parts.index(idle)
    return replace(bar, parts=(*bar.parts[:at], *parts, *bar.parts[at + 1 :]))


def kind_of(component: str) -> Kind:
    """What a component of `step-bar` is about, by its name."""
    name = component.lower().replace("_", " ").replace("-", " ")
    if "comm" in name or "bubble" in name:
        return "wait" if "wait" in name or "bubble" in name or "sync" in name else "transfer"
    if any(word in name for word in ("copy", "copies", "memcpy", "h2d", "d2h", "d2d")):
        return "copy"
    if any(word in name for word in _COMPUTING):
        return "computing"
    return "idle"


def _from_table(rank: int | None, table: ResultTable) -> Bar | None:
    try:
        names, times = table.column("component"), table.column("time_ns")
    except KeyError:
        return None
    parts = []
    for name, time in zip(names, times, strict=True):
        known = finite(time) if isinstance(time, int | float) else None
        if isinstance(name, str) and known is not None and known > 0:
            parts.append(Part(key=name, label=phrase(name, "component"), kind=kind_of(name), time_ns=known))
    order: tuple[Kind, ...] = ("computing", "transfer", "wait", "copy", "host", "idle", "other")
    parts.sort(key=lambda part: order.index(part.kind))
    return Bar(rank=rank, parts=tuple(parts)) if parts else None


def _from_steps(rank: RankSummary) -> Bar | None:
    """Means over the steps of a rank; computing + exposed communication + free is the step (plus its bubble)."""
    known = [s for s in rank.steps if None not in (s.computing_us, s.communication_not_overlapped_us, s.free_us)]
    if not known:
        return None
    parts: list[Part] = []

    def add(key: str, kind: Kind, total_us: float) -> None:
        if total_us > 0:
            parts.append(Part(key=key, label=words(f"bar.{key}"), kind=kind, time_ns=total_us * 1000 / len(known)))

    bubble = sum(step.bubble_us or 0 for step in known)
    add("computing", "computing", sum(step.computing_us or 0 for step in known))
    add("exposed", "transfer", sum(step.communication_not_overlapped_us or 0 for step in known) - bubble)
    add("bubble", "wait", bubble)
    add("free", "idle", sum(step.free_us or 0 for step in known))
    return Bar(rank=rank.rank, parts=tuple(parts)) if parts else None


def stages(payload: Payload) -> dict[int, Hashable]:
    """Pipeline stage of each rank as far as the job's table of ranks tells it."""
    known: dict[int, Hashable] = {}
    for _, table in payload.tables("ranks"):
        try:
            known |= {
                rank: stage
                for rank, stage in zip(table.column("rank"), table.column("stage"), strict=True)
                if isinstance(rank, int)
            }
        except KeyError:
            continue
    return known


def _marked(made: list[Bar], stage_of: Mapping[int, Hashable]) -> tuple[Bar, ...]:
    """Bars with ranks marked whose computing time is odd among those of their stage."""
    groups = [None if bar.rank is None else stage_of.get(bar.rank) for bar in made]
    found = scores([bar.kind_ns("computing") for bar in made], groups)
    return tuple(
        replace(bar, is_outlier=score is not None and score.is_odd) for bar, score in zip(made, found, strict=True)
    )
