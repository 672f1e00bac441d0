"""Thresholds as analyzers ask for them: the default of the table, or what the user's rules file states.

An analyzer names a threshold once, at module level, and asks for its value where it compares::

    MIN_SHARE_RATIO: Final = threshold("C-14", "min_share_ratio")
    ...
    if share < MIN_SHARE_RATIO.value:

The value is looked up when it is asked for, so what `overridden` sets holds for one analysis and for no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ascend_perf.analyzers._rules import limit
from ascend_perf.units import Unit


@dataclass(frozen=True, kw_only=True)
class Override:
    """A threshold with the default of the table and the value that the user gave."""

    code: str
    name: str
    unit: Unit
    default: int | float
    given: int | float


NOTHING: Final = 1e-12
"""A ratio that the user states as 0 is compared as this: what takes no time at all is no finding."""

_GIVEN: ContextVar[Mapping[tuple[str, str], int | float] | None] = ContextVar("thresholds", default=None)


@dataclass(frozen=True)
class Threshold:
    """A threshold of a row of the troubleshooting table."""

    code: str
    name: str

    @property
    def value(self) -> float:
        """Its value in this analysis; an int where the unit counts whole things.

        Raises:
            KeyError: the table has no such row or threshold.
        """
        given = _GIVEN.get()
        if given is not None and (self.code, self.name) in given:
            return given[self.code, self.name]
        return limit(self.code, self.name).value

    @property
    def whole(self) -> int:
        """The same for a threshold in whole ns, bytes or a count."""
        return int(self.value)


def threshold(code: str, name: str) -> Threshold:
    """The threshold of this name in this row; the table is read when its value is asked for."""
    return Threshold(code, name)


@contextmanager
def overridden(overrides: Sequence[Override]) -> Iterator[None]:
    """Within the block (this thread or task, and what it forks) thresholds have the values that the user gave."""
    used = {
        (item.code, item.name): NOTHING if item.unit == "ratio" and not item.given else item.given for item in overrides
    }
    token = _GIVEN.set(used)
    try:
        yield
    finally:
        _GIVEN.reset(token)
