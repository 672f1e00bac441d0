"""What doctor says of one part of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ascend_perf.model.finding import Words

Level = Literal["ok", "warning", "error"]
Status = Literal["ok", "missing", "broken", "clash", "unsupported", "unverified"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One part: how it is, and the cure where something is to be done.

    A part that is missing and not needed here is "ok" and "missing".
    """

    name: str
    said: Words
    level: Level = "ok"
    status: Status = "ok"
    cure: Words | None = None


def ok(name: str, en: str, zh: str) -> Line:
    """A part that is as it should be."""
    return Line(name=name, said=Words(en, zh))


def missing(name: str, said: Words, cure: Words | None = None, *, is_needed: bool = False) -> Line:
    """A part that is not here."""
    return Line(name=name, level="warning" if is_needed else "ok", status="missing", said=said, cure=cure)


def warning(name: str, status: Status, said: Words, cure: Words | None = None) -> Line:
    """A part that may spoil a run or its figures."""
    return Line(name=name, level="warning", status=status, said=said, cure=cure)


def error(name: str, status: Status, said: Words, cure: Words | None = None) -> Line:
    """A part with which a run cannot work."""
    return Line(name=name, level="error", status=status, said=said, cure=cure)
