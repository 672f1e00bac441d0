"""Bus bandwidth: what the links carry, from what the caller of a collective sees."""

from __future__ import annotations

from typing import Final

BUS_FACTORS: Final = {
    "all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": None, "send": None,
}  # fmt: skip
"""Collective -> f of f x (n - 1) / n; None where the bus carries exactly the message. Source: NCCL tests."""


def bus_ratio(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth in a group of `ranks`.

    Algorithm bandwidth is the size of the call by its time; the size is that of the input of all_reduce,
    reduce_scatter, all_to_all, broadcast and send, and that of the output of all_gather. 0 for a group of one.

    Raises:
        KeyError: no such collective.

    Source:
        NCCL tests, PERFORMANCE.md; hccl_test.
    """
    factor = BUS_FACTORS[collective]
    if ranks < 2:
        return 0.0
    return 1.0 if factor is None else factor * (ranks - 1) / ranks
