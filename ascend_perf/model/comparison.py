"""What a comparison says: who is compared, whether the work is the same, and tables; drawn by `reports/compare_*`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ascend_perf.model.finding import ResultTable, Words, marked
from ascend_perf.model.run import Fact

SideKind = Literal["results", "run", "trace"]
PartKind = Literal["computing", "transfer", "copy", "idle", "other"]


SIMULATED: Final = Words("simulated", "仿真")


def simulated_mark(sides: Sequence[str], simulated: Collection[str]) -> Words | None:
    """What a figure made of these sides says of those among them that are simulated; None where none is."""
    made_up = [letter for letter in sides if letter in simulated]
    if not made_up:
        return None
    if len(made_up) == len(sides):
        return SIMULATED
    return Words(f"{', '.join(made_up)} simulated", f"{'、'.join(made_up)} 为仿真")


def with_marks(table: ResultTable, sides_of: Mapping[str, Sequence[str]], simulated: Collection[str]) -> ResultTable:
    """A table whose columns say which of the sides that their figures are made of are simulated.

    Args:
        table: any.
        sides_of: letters of the sides by the name of the column; columns without figures of a side are not named.
        simulated: letters of the sides that are.
    """
    return replace(table, columns=tuple(
        replace(column, mark=simulated_mark(sides_of.get(column.name, ()), simulated)) for column in table.columns
    ))  # fmt: skip


def named(letter: str, simulated: Collection[str]) -> Words:
    """The letter of a side in a sentence about its figures."""
    return marked(Words(letter, letter), simulated_mark([letter], simulated))


@dataclass(frozen=True, kw_only=True)
class SideFacts:
    """One of the things compared."""

    letter: str
    label: str
    kind: SideKind
    device: str | None
    origin: Literal["measured", "simulated"]
    cards: int
    facts: tuple[tuple[Words, Words], ...] = ()
    """What else a reader should know of it: label and value."""


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """A difference of the work, or one that could not be checked; `is_grave` ones make the figures not comparable."""

    what: Words
    is_grave: bool


@dataclass(frozen=True, kw_only=True)
class SplitPart:
    """A part of a step."""

    key: str
    label: Words
    kind: PartKind
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """The step of one side; the parts add up to it exactly."""

    letter: str
    parts: tuple[SplitPart, ...]
    mark: Words | None = None
    """That it is simulated."""

    @property
    def total_ns(self) -> int:
        """Length of the step."""
        return sum(part.time_ns for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page."""

    key: str
    title: Words
    tables: tuple[ResultTable, ...]
    mark: Words | None = None
    """Which of its figures are simulated."""

    @property
    def heading(self) -> Words:
        """The title with the mark."""
        return marked(self.title, self.mark)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is said. The first side is the baseline."""

    sides: tuple[SideFacts, ...]
    lead: Words
    main: Words
    said: tuple[Unlike, ...] = ()
    """Differences of the work, grave ones where the user asked to go on; shown above all figures."""
    points: tuple[Words, ...] = ()
    """What stands out, a sentence each, the most important first."""
    bars: tuple[StepBar, ...] = ()
    sections: tuple[Section, ...] = ()
    totals: Mapping[str, Mapping[str, Fact]] = field(default_factory=dict)
    """Exact sums for each pair of sides ("A/B"), in ns: what tests and scripts read."""

    @property
    def mark(self) -> Words | None:
        """Which of the sides are simulated; None where none is."""
        return simulated_mark(
            [side.letter for side in self.sides], [side.letter for side in self.sides if side.origin == "simulated"]
        )

    @property
    def origin(self) -> Literal["measured", "simulated"]:
        """Simulated as soon as one side is."""
        return "simulated" if any(side.origin == "simulated" for side in self.sides) else "measured"
