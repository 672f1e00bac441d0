"""Simulated series of logarithms, as in rivals-and-methods 6.2: log-normal, 5 % of the values slow by 5 to 30 %."""

from __future__ import annotations

import numpy as np

from ascend_perf.history.edivisive import Floats

BEFORE = 60
"""Values before the step of `stepped`."""


def stable(random: np.random.Generator, count: int, spread: float) -> Floats:
    """A series on one level."""
    slow = np.where(random.random(count) < 0.05, 1 + random.uniform(0.05, 0.30, count), 1.0)
    logs: Floats = np.log(random.lognormal(0, spread, count) * slow)
    return logs


def stepped(random: np.random.Generator, spread: float, size: float, after: int) -> Floats:
    """A series whose last values have another level."""
    logs = stable(random, BEFORE + after, spread)
    logs[BEFORE:] += np.log1p(size)
    return logs
