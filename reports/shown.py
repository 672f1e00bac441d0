"""Which ranks of a job the page shows in detail and why: those that matter, and one that stands for the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ascend_perf.model.finding import Words
from ascend_perf.reports.bars import Bar
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.payload import Payload

DETAILED: Final = 8
"""Ranks of a large job whose own tables are in the page."""

MANY: Final = 16
"""A job of more ranks is large: equal rows of ranks are said together, and only some ranks are shown in detail."""

MAX_BARS: Final = 64
"""Bars of ranks that are drawn."""

LONGER_RATIO: Final = 0.01
"""A rank is the longest when it takes this much more than the median; ranks that wait for each other end together.
Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A rank that is shown in detail, and why: the first reason for which it was chosen, None for no special one."""

    rank: int | None
    why: Words | None = None


def is_large(payload: Payload) -> bool:
    """Whether the job has too many ranks to show all that is known of each."""
    return len(payload.ranks) > MANY


def detailed(payload: Payload, made: tuple[Bar, ...]) -> tuple[int | None, ...]:
    """Ranks to show in detail, the most important first; see `chosen`."""
    return tuple(item.rank for item in chosen(payload, made))


def chosen(payload: Payload, made: tuple[Bar, ...]) -> tuple[Chosen, ...]:
    """Ranks to show in detail with the reason: all of a small job, by number; of a large one the most important first.

    Those are ranks that the findings are about (two of those where the cause lies, one that loses time), then those
    whose computing is odd; the one with the median step, the one with the longest; the lowest.
    """
    seen = dict.fromkeys(rank.rank for rank in payload.ranks)
    reasons: dict[int | None, Words] = {}
    for rank, why in _important(payload, made):
        if rank in seen:
            reasons.setdefault(rank, why)
    if not is_large(payload):
        for rank, why in (*_usual(made), *_longest(made)):
            reasons.setdefault(rank, why)
        return tuple(Chosen(rank=rank, why=reasons.get(rank) if len(seen) > 1 else None) for rank in seen)
    found = dict(list(reasons.items())[: DETAILED - 2])
    for rank, why in (*_usual(made), *_longest(made)):
        found.setdefault(rank, why)
    for rank in seen:
        found.setdefault(rank, words("why.lowest"))
        if len(found) >= DETAILED:
            break
    return tuple(Chosen(rank=rank, why=why) for rank, why in list(found.items())[:DETAILED])


def _important(payload: Payload, made: tuple[Bar, ...]) -> Iterator[tuple[int | None, Words]]:
    for number, finding in enumerate(payload.findings, 1):
        for rank in finding.ranks[:2]:
            yield rank, words("why.cause", number=number)
        for rank in finding.affected_ranks[:1]:
            yield rank, words("why.loses", number=number)
    for bar in made:
        if bar.is_outlier:
            yield bar.rank, words("why.odd")


def _usual(made: tuple[Bar, ...]) -> list[tuple[int | None, Words]]:
    """The rank with the median step."""
    usual = sorted((bar for bar in made if not bar.is_outlier), key=lambda bar: bar.total_ns)
    return [(bar.rank, words("why.median")) for bar in usual[len(usual) // 2 :][:1]]


def _longest(made: tuple[Bar, ...]) -> list[tuple[int | None, Words]]:
    """The rank with the longest step; of ranks that take equally long the one that computes longest."""
    if len(made) < 2:
        return []
    totals = sorted(bar.total_ns for bar in made)
    longest = max(made, key=lambda bar: bar.total_ns)
    if longest.total_ns > (1 + LONGER_RATIO) * totals[len(totals) // 2]:
        return [(longest.rank, words("why.longest"))]
    return [(max(made, key=lambda bar: bar.kind_ns("computing")).rank, words("why.computes"))]


def drawn(made: tuple[Bar, ...], first: tuple[int | None, ...]) -> tuple[Bar, ...]:
    """The bars that are drawn, in order: of a large job the detailed ranks, odd ones, then evenly over the rest."""
    if len(made) <= MAX_BARS:
        return made
    places = [place for place, bar in enumerate(made) if bar.rank in set(first)]
    places += [place for place, bar in enumerate(made) if bar.is_outlier]
    places += [place * len(made) // MAX_BARS for place in range(MAX_BARS)]
    kept = set(list(dict.fromkeys(places))[:MAX_BARS])
    return tuple(bar for place, bar in enumerate(made) if place in kept)
