"""What is not reached, and why: printed in docs/evaluation.md. A kind leaves this list when it is reached."""

from __future__ import annotations

from typing import Final

KNOWN_MISSES: Final[dict[str, str]] = {
    "clock-constant": "one card alone at a constant clock: nothing in its profile tells the rated one",
    "experts-one-by-one": "row E-02 has no analyzer yet",
}
"""Kinds that are missed or come with a false finding at medium strength."""

KNOWN_NOISE: Final[dict[str, str]] = {}
"""Healthy jobs with a finding of medium severity or above."""
