"""Where the steady state of a series of steps begins: the warm-up that a plan did not foresee is cut, and said.

Method: MSER, the marginal standard error rule. Of all cuts up to half of the series, take the one that makes the
squared standard error of the mean of what is left, `sum((x - mean)^2) / (n - d)^2`, smallest: steps that are unlike
the rest widen it more than their number narrows it. Before that, steps are clipped to the median of the second half
plus and minus `CLIP` scaled median absolute deviations, so that a single late outlier does not ask for a cut. A cut
counts only where the median of the cut steps is off that of the rest by more than `MIN_EFFECT` and by more than
`MIN_ERRORS` standard errors of their difference: of noise that is steady nothing is thrown away. A cut at half of the series means that the steady state may not have been reached.

Source:
    K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997);
    as a test of warm-up in benchmarks see T. Kalibera, R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013,
    which asks for the steady state to be found in each process by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

MIN_STEPS: Final = 6
"""Fewer steps are not tested: half of them would be too few to know the rest by. Status: assumed."""
CLIP: Final = 5.0
"""Scaled deviations. Of normal noise less than one step in a million is farther off. Status: assumed."""
MIN_EFFECT: Final = 0.02
"""Steps within this share of the steady median need no cut. Status: assumed; below the 3 % that a gate looks for."""

MIN_ERRORS: Final = 4.0
"""More than the 3 of one test: the cut was chosen as the best of many. Status: simulated, tests/bench/test_steady.py."""


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Where the steady state begins."""

    cut: int
    """Steps before it."""
    is_reached: bool
    """False: the steps still changed at the latest cut that was tried. True also where there were too few to tell."""
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
    rest = steps[count // 2 :]
    middle = float(np.median(rest))
    width = CLIP * 1.4826 * float(np.median(np.abs(rest - middle)))
    # Steps of a clock with coarse ticks have no deviation; what is within the effect is never an outlier.
    width = max(width, MIN_EFFECT * middle)
    clipped = np.clip(steps, middle - width, middle + width)
    last = count // 2
    left = count - np.arange(last + 1)
    # Sums over clipped[d:] for each d, on centred values so that squares keep their digits.
    centred = clipped - middle
    sums = np.cumsum(centred[::-1])[::-1][: last + 1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1][: last + 1]
    errors = (squares - sums**2 / left) / left.astype(np.float64) ** 2
    cut = int(np.argmin(errors))
    if not cut:
        return Steady(cut=0, is_reached=True, is_tested=True)
    steady = float(np.median(steps[cut:]))
    off = abs(float(np.median(steps[:cut])) - steady)
    sigma = 1.4826 * float(np.median(np.abs(steps[cut:] - steady)))
    # The median of n normal values has 1.2533 times the standard error of their mean.
    error = 1.2533 * sigma * float(np.sqrt(1 / cut + 1 / (count - cut)))
    if off <= max(MIN_EFFECT * steady, MIN_ERRORS * error):
        return Steady(cut=0, is_reached=True, is_tested=True)
    return Steady(cut=cut, is_reached=cut < last, is_tested=True)
