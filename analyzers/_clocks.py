"""Clocks of the ranks: how far each is ahead of a reference and how fast it drifts, from calls that end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from ascend_perf.model.table import Bools, Floats, Ints

MIN_MATCHED: Final = 3
"""Fewer common collectives settle no clock offset: one odd end could not be seen. Status: assumed."""
MAX_OFFSET_SPREAD_NS: Final = 500_000
"""Ends that scatter more than this around their median tell no offset. Status: assumed."""
MIN_FOR_DRIFT: Final = 8
"""Fewer common collectives settle no drift: two parameters would follow the jitter. Status: assumed."""
MAX_DRIFT_PPM: Final = 200.0
"""A steeper slope is no drift of a clock: quartz oscillators are specified within 100 ppm. Status: assumed."""
DRIFT_GAIN: Final = 0.5
"""A drift is believed when it leaves at most this part of the scatter of the ends. Status: assumed."""
DRIFT_SPREADS: Final = 4.0
"""And when over the record it makes this many times the scatter that it leaves. Status: assumed."""
MIN_DRIFT_NS: Final = 1_000
"""And at least so much time over the record. Status: assumed."""

_SCALE: Final = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution."""
_SAMPLES: Final = 128
"""Points from which the slope is taken: the median over their pairs."""


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """How far a rank's clock is ahead of the reference rank's in the middle of the record, and its drift."""

    rank: int
    reference: int
    offset_ns: int | None
    """None: the data do not settle it."""
    uncertainty_ns: int | None
    matched: int
    """Collectives whose ends were compared, on the way of pairs that leads to the reference."""
    drift_ppm: float | None = None
    """How much faster the clock runs than the reference's, in millionths; None where no drift is seen."""


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The clock of each rank as a line over the reference's: local - centre = scale * (reference - centre) + base."""

    offsets: tuple[ClockOffset, ...]
    centres: Ints
    """Time on the clock of each rank that lines are written about."""
    root: int
    """Place of the reference."""
    scales: Floats
    bases: Floats
    """NaN where the clock is not known."""

    def known(self, place: Ints) -> Bools:
        """Whether the clock of the rank at each place is tied to the reference's."""
        return ~np.isnan(self.bases[place])

    def aligned(self, place: Ints, times: Ints) -> Ints:
        """Times of ranks (by place) on the clock of the reference; times of unknown clocks stay as they are."""
        if not len(place):
            return np.asarray(times, np.int64)
        base = np.where(np.isnan(self.bases[place]), 0.0, self.bases[place])
        local = times - self.centres[place] - np.rint(base).astype(np.int64)
        scale = self.scales[place]
        # Only the part of the drift goes through floats: epoch times have more digits than they hold.
        drift = np.rint(local * (1 / scale - 1)).astype(np.int64)
        moved = local + drift + self.centres[self.root]
        return np.where(self.known(place), moved, times).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Ties:
    """Pairs of times that are one moment on two ranks (places in the views)."""

    first: Ints
    second: Ints
    first_ns: Ints
    second_ns: Ints


@dataclass(frozen=True, kw_only=True)
class _Line:
    slope: float
    base: float
    spread: float
    count: int


def clocks_of(ranks: Sequence[int], ties: Ties) -> Clocks:
    """The clocks of the ranks from moments that pairs of them share.

    Pairs are edges of a graph; the offset of a pair is the median difference of its ends, and where a straight line
    leaves far less scatter, that line (its slope is the median of the slopes between points, Theil and Sen). From the
    first rank of each connected part, the surest edges lead to the others; ranks outside of the largest part have a
    clock of their own.

    Args:
        ranks: global rank of each place.
        ties: the shared moments.
    """
    count = len(ranks)
    centres = _centres(count, ties)
    edges = _edges(count, centres, ties)
    scales, bases = np.ones(count), np.full(count, np.nan)
    found: dict[int, ClockOffset] = {}
    part_of = np.full(count, -1)
    near: dict[int, list[tuple[int, int]]] = {}
    for a, b in edges:
        near.setdefault(a, []).append((a, b))
        near.setdefault(b, []).append((a, b))
    for root in range(count):
        if root in found:
            continue
        found[root] = ClockOffset(rank=ranks[root], reference=ranks[root], offset_ns=0, uncertainty_ns=0, matched=0)
        bases[root], part_of[root] = 0.0, root
        waiting = [(edges[pair].spread, pair) for pair in near.get(root, ())]
        heapify(waiting)
        while waiting:
            _, (a, b) = heappop(waiting)
            if (a in found) == (b in found):
                continue
            line = edges[a, b]
            known, new = (a, b) if a in found else (b, a)
            if known == a:  # u_b = (1 + slope) u_a + base
                scale, base = 1 + line.slope, line.base
            else:
                scale, base = 1 / (1 + line.slope), -line.base / (1 + line.slope)
            scales[new], bases[new] = scale * scales[known], scale * bases[known] + base
            part_of[new] = root
            drift = float(scales[new] - 1) * 1e6
            found[new] = ClockOffset(
                rank=ranks[new], reference=ranks[root],
                offset_ns=int(centres[new] - centres[root]) + round(float(bases[new])),
                uncertainty_ns=round(float(np.hypot(found[known].uncertainty_ns or 0, line.spread))),
                matched=line.count, drift_ppm=drift if scales[new] != 1 else None,
            )  # fmt: skip
            for pair in near[new]:
                heappush(waiting, (edges[pair].spread, pair))
    main = _largest(part_of)
    reference = ranks[main] if count else -1
    alone = count > 0 and int((part_of == main).sum()) == 1
    for at in range(count):
        if part_of[at] != main:
            found[at] = ClockOffset(
                rank=ranks[at], reference=reference, offset_ns=None, uncertainty_ns=None, matched=0
            )
        if part_of[at] != main or alone:
            scales[at], bases[at] = 1.0, np.nan
    return Clocks(
        offsets=tuple(found[at] for at in range(count)), centres=centres, root=max(main, 0), scales=scales, bases=bases
    )


def _centres(count: int, ties: Ties) -> Ints:
    """A time in the middle of each rank's shared moments."""
    centres = np.zeros(count, np.int64)
    place, times = np.concatenate((ties.first, ties.second)), np.concatenate((ties.first_ns, ties.second_ns))
    for at in np.unique(place).tolist():
        mine = np.sort(times[place == at])
        centres[at] = mine[len(mine) // 2]
    return centres


def _largest(part_of: Ints) -> int:
    parts, sizes = np.unique(part_of, return_counts=True)
    return int(parts[np.argmax(sizes)]) if len(parts) else -1


def _edges(count: int, centres: Ints, ties: Ties) -> dict[tuple[int, int], _Line]:
    swapped = ties.first > ties.second
    low, high = np.where(swapped, ties.second, ties.first), np.where(swapped, ties.first, ties.second)
    at_low, at_high = (
        np.where(swapped, ties.second_ns, ties.first_ns),
        np.where(swapped, ties.first_ns, ties.second_ns),
    )
    keys = low * max(count, 1) + high
    order = np.argsort(keys, kind="stable")
    heads = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
    edges: dict[tuple[int, int], _Line] = {}
    for part in np.split(order, heads) if len(order) else ():
        a, b = int(low[part[0]]), int(high[part[0]])
        if a == b or len(part) < MIN_MATCHED:
            continue
        x = (at_low[part] - centres[a]).astype(np.float64)
        line = _line(x, (at_high[part] - centres[b]) - (at_low[part] - centres[a]))
        if line.spread <= MAX_OFFSET_SPREAD_NS:
            edges[a, b] = line
    return edges


def _line(x: Floats, difference: Ints) -> _Line:
    """Offset and drift of two clocks: y = slope * x + base, slope 0 where no drift is believed."""
    values = difference.astype(np.float64)
    base = float(np.median(values))
    spread = _SCALE * float(np.median(np.abs(values - base)))
    flat = _Line(slope=0.0, base=base, spread=spread, count=len(x))
    if len(x) < MIN_FOR_DRIFT:
        return flat
    slope = drift_of(x, values)
    rest = values - slope * x
    middle = float(np.median(rest))
    left_over = _SCALE * float(np.median(np.abs(rest - middle)))
    moved = abs(slope) * float(x.max() - x.min())
    believed = (
        abs(slope) * 1e6 <= MAX_DRIFT_PPM
        and left_over <= DRIFT_GAIN * spread
        and moved >= max(MIN_DRIFT_NS, DRIFT_SPREADS * left_over)
    )
    return _Line(slope=slope, base=middle, spread=left_over, count=len(x)) if believed else flat


def drift_of(x: Floats, values: Floats) -> float:
    """Slope of values over times: the median of the slopes between pairs of points, 0 where no two times differ.

    Source:
        Theil (1950) and Sen (1968); of many points `_SAMPLES` are taken, evenly over time.
    """
    order = np.argsort(x, kind="stable")
    picked = order[np.unique(np.linspace(0, len(x) - 1, min(len(x), _SAMPLES)).astype(np.int64))]
    left, right = np.triu_indices(len(picked), 1)
    run = x[picked[right]] - x[picked[left]]
    usable = run > 0
    if not usable.any():
        return 0.0
    return float(np.median((values[picked[right]] - values[picked[left]])[usable] / run[usable]))
