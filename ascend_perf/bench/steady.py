"""Where the steady state of a series of steps begins: warm-up that a plan did not foresee is cut, and said.

Method: the second half of the series stands for the steady state, by its median and its scaled median absolute
deviation, which single outliers do not move. The cut is the first step, up to half of the series, from which windows of
one step, of three, and of a quarter of the series have medians like it: off by no more than `MIN_EFFECT` of the median,
or than `MIN_ERRORS` standard errors of the difference, if that is more. Short windows see a step that is far off, long
ones a small shift that noise hides in single steps. The steady state is not reached where no such step is found, or
where the two quarters of the second half differ by as much, with the deviation from one step to the next.

Source:
    That each process has its own steady state, to be looked for in windows of its steps: A. Georges, D. Buytaert,
    L. Eeckhout, "Statistically rigorous Java performance evaluation", OOPSLA 2007; T. Kalibera, R. Jones, "Rigorous
    benchmarking in reasonable time", ISMM 2013. They compare the coefficient of variation with a fixed border, which a
    single outlier exceeds; medians do not. Cuts of MSER (White, Simulation 69, 1997) were tried: on steps with
    outliers half of them missed the end of a warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

MIN_STEPS: Final = 6
"""Fewer steps are not tested: half of them would be too few to know the rest by. Status: assumed."""
MIN_DRIFT_STEPS: Final = 12
"""With fewer the quarters that are compared have two steps or less. Status: assumed."""
MIN_EFFECT: Final = 0.02
"""Steps within this share of the steady median need no cut. Status: assumed; below the 3 % that a gate looks for."""
MIN_ERRORS: Final = 4.0
"""More than the 3 of one test: many windows are looked at. Status: simulated by its test."""


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Where the steady state begins."""

    cut: int
    """Steps before it; half of the series where it is not reached."""
    is_reached: bool
    """True also where there were too few steps to tell."""
    is_tested: bool


def steady_state(steps_ns: Sequence[int]) -> Steady:
    """Where the steady state of measured steps begins.

    Args:
        steps_ns: durations in the order of the steps.
    """
    count = len(steps_ns)
    if count < MIN_STEPS:
        return Steady(cut=0, is_reached=True, is_tested=False)
    steps = np.asarray(steps_ns, np.float64)
    half = count // 2
    rest = steps[half:]
    middle = float(np.median(rest))
    # A deviation from few values is often too small.
    scale = 1.4826 * (1 + 2 / len(rest))
    sigma = scale * float(np.median(np.abs(rest - middle)))

    def is_alike(window: npt.NDArray[np.float64], other: float, others: int, sigma: float) -> bool:
        # The median of n normal values has 1.2533 times the standard error of their mean; of one value it is itself.
        widths = [sigma**2 * (1.0 if size == 1 else 1.2533**2) / size for size in (len(window), others)]
        limit = max(MIN_EFFECT * middle, MIN_ERRORS * float(np.sqrt(sum(widths))))
        return abs(float(np.median(window)) - other) <= limit

    later = rest[len(rest) // 2 :]
    if count >= MIN_DRIFT_STEPS:
        # From one step to the next, so that a drift does not hide itself by widening the deviation.
        noise = scale * float(np.median(np.abs(np.diff(rest)))) / float(np.sqrt(2))
        if not is_alike(rest[: len(rest) // 2], float(np.median(later)), len(later), noise):
            return Steady(cut=half, is_reached=False, is_tested=True)
    sizes = sorted({1, 3, max(3, count // 4)})
    for cut in range(half + 1):
        if all(is_alike(steps[cut : cut + size], middle, len(rest), sigma) for size in sizes):
            return Steady(cut=cut, is_reached=True, is_tested=True)
    return Steady(cut=half, is_reached=False, is_tested=True)
