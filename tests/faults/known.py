"""What is not reached, and why: printed in docs/evaluation.md. A kind leaves this list when it is reached."""

from __future__ import annotations

from typing import Final

KNOWN_MISSES: Final[dict[str, str]] = {
    "memory-roof": "the memory rate of the device cannot be told from a text export (row M-01 is not judged)",
    "copies-blocking": "not analysed yet",
    "clock-low": "one card alone at a constant clock: nothing in its profile tells the rated one",
    "link-slow": "row N-06 has no analyzer yet",
    "experts-one-by-one": "row E-02 has no analyzer yet",
    "stage-uneven": "N-02 is said of activations that a pipeline sends",
    "micro-batches-few": "N-02 is said of activations that a pipeline sends",
}
"""Kinds that are missed or come with a false finding at medium strength."""

KNOWN_NOISE: Final[dict[str, str]] = {
    "tensor-parallel-4": "N-02 is said of activations that tensor parallelism exchanges",
    "pipeline-2x2": "N-02 is said of activations that a pipeline sends",
    "pipeline-4x2": "N-02 is said of activations that a pipeline sends",
}
"""Healthy jobs with a finding of medium severity or above."""
