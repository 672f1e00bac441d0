"""Ordinals of calls that count from another beginning on one rank: its record starts in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._clocks import MAX_DRIFT_PPM, drift_of
from ascend_perf.model.table import NULL, Floats, Ints

MAX_SHIFT: Final = 32
"""Calls by which the ordinals of two ranks may differ. Status: assumed."""
MIN_COMMON: Final = 4
"""A shift that leaves fewer common calls is not believed. Status: assumed."""
MIN_COMMON_RATIO: Final = 0.5
"""Nor one that leaves less than this part of the shorter list. Status: assumed."""
SAME_RATIO: Final = 0.95
"""Calls whose op and size must agree, of those of which both ranks know them. Status: assumed."""
MIN_SPREAD_NS: Final = 100_000
"""Ends that scatter less than this are one call's: they differ by tens of microseconds. Status: measured."""
SPREAD_RATIO: Final = 0.1
"""Or less than this part of the median duration. Status: assumed."""
BETTER_RATIO: Final = 0.25
"""Another shift is taken for the ends alone when they scatter at most this part of what they do unshifted.
Status: assumed."""


WHOLE_RATIO: Final = 0.9
"""Calls of the shorter list that one offset of the clocks must explain, where calls are lost in the middle.
Status: assumed."""
RIVAL_RATIO: Final = 0.95
"""An offset that another one explains as well, up to this part of its calls, is not believed. Status: assumed."""
UNMATCHED: Final = NULL
"""Shift of a call that is no call of the other rank."""


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """The calls of one group on one rank; rows in ascending order of `ordinals`, each once."""

    ordinals: Ints
    ops: Ints
    """Number of the op."""
    sizes: Ints
    """Message in bytes, `NULL` where unknown."""
    ends: Ints
    durations: Ints


def shifts_of(ours: Sequence, theirs: Sequence) -> Ints:
    """What to add to the ordinal of each call of `theirs`; `UNMATCHED` for calls that the other rank does not have.

    One shift for all where that fits (`best_shift`), else one for each stretch between calls that a record lost.
    """
    shift = best_shift(ours, theirs)
    found = np.full(len(theirs.ordinals), shift, np.int64)
    if min(len(ours.ordinals), len(theirs.ordinals)) < 2 * MIN_COMMON:
        return found
    fit = _fit(ours, theirs, shift)
    if fit is None or not fit.is_right:
        stretches = _stretches(ours, theirs)
        return found if stretches is None else stretches
    if bool((fit.apart > fit.limit).any()) and (stretches := _stretches(ours, theirs)) is not None:
        return stretches
    # The few that end at another time than all others are not known to be the same call.
    found[fit.rows[fit.apart > fit.limit]] = UNMATCHED
    return found


def _stretches(ours: Sequence, theirs: Sequence) -> Ints | None:
    """Shifts by call from the offset of the clocks that explains most calls; None where none or several do."""
    shifts = np.arange(-MAX_SHIFT, MAX_SHIFT + 1)[:, None]
    wanted = theirs.ordinals[None, :] + shifts
    at = np.clip(np.searchsorted(ours.ordinals, wanted), 0, len(ours.ordinals) - 1)
    known = (ours.sizes[at] != NULL) & (theirs.sizes != NULL)
    same = (ours.ordinals[at] == wanted) & (ours.ops[at] == theirs.ops)
    same &= ~known | (ours.sizes[at] == theirs.sizes)
    difference = theirs.ends[None, :] - ours.ends[at]
    values = np.sort(difference[same])
    if not len(values):
        return None
    limit = int(max(MIN_SPREAD_NS, SPREAD_RATIO * float(np.median(ours.durations))))
    support = np.searchsorted(values, values + limit, side="right") - np.arange(len(values))
    best = int(np.argmax(support))
    count = int(support[best])
    others = support[(values > values[best] + limit) | (values < values[best] - limit)]
    rival = int(others.max()) if len(others) else 0
    least = WHOLE_RATIO * min(len(ours.ordinals), len(theirs.ordinals))
    if count < least or rival > min(RIVAL_RATIO * count, count - 2):
        return None
    offset = int(np.median(values[best : best + count]))
    apart = np.where(same, np.abs(difference - offset), np.iinfo(np.int64).max)
    nearest = np.argmin(apart, axis=0)
    found = np.where(apart.min(axis=0) <= limit, shifts[nearest, 0], UNMATCHED)
    # Calls keep their order on all ranks: one that would come before its predecessor is another one.
    moved = np.where(found == UNMATCHED, NULL, theirs.ordinals + found)
    reach = np.maximum.accumulate(np.append(NULL, moved[:-1]))
    return np.where((moved != NULL) & (moved > reach), found, UNMATCHED)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    rows: Ints
    """Calls of the other rank that have a call of that ordinal here."""
    same: float
    """Part of the calls whose op and size agree."""
    apart: Floats
    """How far the ends of each call are from one offset of the clocks, or from a line where they drift."""
    limit: float
    """Distance up to which ends are those of one call."""

    @property
    def common(self) -> int:
        return len(self.rows)

    @property
    def spread(self) -> float:
        """Distance that all but one in twenty keep.

        A median would not do: calls of a wrong ordinal are equally far apart where layers are alike, and only the gaps
        between steps tell.
        """
        return float(np.quantile(self.apart, SAME_RATIO))

    @property
    def is_right(self) -> bool:
        return self.same >= SAME_RATIO and self.spread <= self.limit


def best_shift(ours: Sequence, theirs: Sequence) -> int:
    """What to add to the ordinals of `theirs` so that equal ordinals are one call; 0 unless another is clearly right.

    Ops and sizes of the calls must agree, and their ends must differ by one offset (the clocks'). Without a shift that
    fits both, the ordinals stay as they are.
    """
    if len(ours.ordinals) < MIN_COMMON or len(theirs.ordinals) < MIN_COMMON:
        return 0
    plain = _fit(ours, theirs, 0)
    if plain is not None and plain.is_right:
        return 0
    least = max(MIN_COMMON, MIN_COMMON_RATIO * min(len(ours.ordinals), len(theirs.ordinals)))
    best: tuple[float, int, int] | None = None
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        fit = None if shift == 0 else _fit(ours, theirs, shift)
        if fit is None or fit.common < least or not fit.is_right:
            continue
        told_apart = plain is None or plain.same < SAME_RATIO or fit.spread <= BETTER_RATIO * plain.spread
        if told_apart:
            key = (fit.spread, abs(shift), shift)
            best = key if best is None or key < best else best
    return 0 if best is None else best[2]


def fits(ours: Sequence, theirs: Sequence, shift: int) -> bool:
    """Whether equal ordinals are one call once `shift` is added to those of `theirs`."""
    fit = _fit(ours, theirs, shift)
    return fit is not None and fit.is_right


def _fit(ours: Sequence, theirs: Sequence, shift: int) -> _Fit | None:
    """How well the calls agree at a shift; None when they have none in common."""
    shifted = theirs.ordinals + shift
    at = np.clip(np.searchsorted(ours.ordinals, shifted), 0, len(ours.ordinals) - 1)
    hit = ours.ordinals[at] == shifted
    a, b = at[hit], np.flatnonzero(hit)
    if not len(a):
        return None
    known = (ours.sizes[a] != NULL) & (theirs.sizes[b] != NULL)
    same = (ours.ops[a] == theirs.ops[b]) & (~known | (ours.sizes[a] == theirs.sizes[b]))
    limit = max(MIN_SPREAD_NS, SPREAD_RATIO * float(np.median(ours.durations[a])))
    apart = _apart(ours.ends[a], theirs.ends[b] - ours.ends[a])
    return _Fit(rows=b, same=float(same.mean()), apart=apart, limit=limit)


def _apart(times: Ints, difference: Ints) -> Floats:
    """Distance of each difference from their median, or from a line of a clock's drift where that leaves less."""
    values: Floats = (difference - difference[0]).astype(np.float64)
    level = np.abs(values - np.median(values))
    if len(values) < MIN_COMMON:
        return level
    x: Floats = (times - times[0]).astype(np.float64)
    slope = drift_of(x, values)
    if abs(slope) * 1e6 > MAX_DRIFT_PPM:
        return level
    rest = values - slope * x
    along = np.abs(rest - np.median(rest))
    return along if np.quantile(along, SAME_RATIO) < np.quantile(level, SAME_RATIO) else level
