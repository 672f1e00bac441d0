"""Ordinals of calls that count from another beginning on one rank: its record starts in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

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


@dataclass(frozen=True, kw_only=True)
class _Fit:
    common: int
    same: float
    """Part of the calls whose op and size agree."""
    spread: float
    limit: float
    """Scatter up to which the ends are those of one call."""

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
    difference = theirs.ends[b] - ours.ends[a]
    # A drifting clock moves the ends apart slowly: what counts is how the difference changes from call to call.
    rest = _scatter(difference)
    limit = max(MIN_SPREAD_NS, SPREAD_RATIO * float(np.median(ours.durations[a])))
    return _Fit(common=len(a), same=float(same.mean()), spread=rest, limit=limit)


def _scatter(difference: Ints) -> float:
    """Distance from the median that all but one in twenty keep, of the values or of their changes.

    A median would not do: calls of a wrong ordinal are equally far apart where layers are alike, and only the gaps
    between steps tell.
    """
    values: Floats = (difference - difference[0]).astype(np.float64)
    around = float(np.quantile(np.abs(values - np.median(values)), SAME_RATIO))
    if len(values) < MIN_COMMON:
        return around
    return min(around, float(np.quantile(np.abs(np.diff(values)), SAME_RATIO)))
