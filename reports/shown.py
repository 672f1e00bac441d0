"""Which ranks of a large job the page shows in detail: those that matter, and one that stands for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ascend_perf.reports.bars import Bar
from ascend_perf.reports.payload import Payload

DETAILED: Final = 8
"""Ranks of a large job whose own tables are in the page."""

MANY: Final = 16
"""A job of more ranks is large: equal rows of ranks are said together, and only some ranks are shown in detail."""

MAX_BARS: Final = 64
"""Bars of ranks that are drawn."""


def is_large(payload: Payload) -> bool:
    """Whether the job has too many ranks to show all that is known of each."""
    return len(payload.ranks) > MANY


def detailed(payload: Payload, made: tuple[Bar, ...]) -> tuple[int | None, ...]:
    """Ranks to show in detail, the most important first: all of a small job.

    Of a large one: ranks that the findings are about (two of those where the cause lies, one that loses time), then
    those whose computing is odd; the one with the median step; the lowest.
    """
    seen = dict.fromkeys(rank.rank for rank in payload.ranks)
    if not is_large(payload):
        return tuple(seen)
    usual = sorted((bar for bar in made if not bar.is_outlier), key=lambda bar: bar.total_ns)
    important = [rank for rank in dict.fromkeys(_important(payload, made)) if rank in seen][: DETAILED - 2]
    others = [bar.rank for bar in usual[len(usual) // 2 :][:1]]
    return tuple(dict.fromkeys([*important, *others, *seen]))[:DETAILED]


def _important(payload: Payload, made: tuple[Bar, ...]) -> Iterator[int | None]:
    for finding in payload.findings:
        yield from finding.ranks[:2]
        yield from finding.affected_ranks[:1]
    yield from (bar.rank for bar in made if bar.is_outlier)


def drawn(made: tuple[Bar, ...], first: tuple[int | None, ...]) -> tuple[Bar, ...]:
    """The bars that are drawn, in order: of a large job the detailed ranks, odd ones, then evenly over the rest."""
    if len(made) <= MAX_BARS:
        return made
    places = [place for place, bar in enumerate(made) if bar.rank in set(first)]
    places += [place for place, bar in enumerate(made) if bar.is_outlier]
    places += [place * len(made) // MAX_BARS for place in range(MAX_BARS)]
    kept = set(list(dict.fromkeys(places))[:MAX_BARS])
    return tuple(bar for place, bar in enumerate(made) if place in kept)
