"""Dynamic loss scaling for training in fp16. Nothing here imports torch."""

from __future__ import annotations


class LossScale:
    """Dynamic factor of the loss in fp16: small gradients stay above zero, and overflow is met by skipping the step.

    Whether a step overflowed is read off the norm of all gradients, which is the same on every rank of every layout:
    all skip together, without a collective of its own.
    """

    def __init__(self, start: float, steps: int) -> None:
        self.value, self.steps = start, steps
        self.good = 0
        self.skipped = 0

    def update(self, is_finite: bool) -> None:
        """Halve after overflow, double after enough good steps one after the other."""
        if not is_finite:
            self.value, self.good, self.skipped = max(self.value / 2, 1.0), 0, self.skipped + 1
            return
        self.good += 1
        if self.good >= self.steps:
            self.value, self.good = min(self.value * 2, 2.0**32), 0
