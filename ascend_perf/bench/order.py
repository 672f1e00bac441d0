"""In which order the runs of variants are started: interleaved and mirrored, so that a drift of the machine meets all.

Two variants give A B B A A B B A ...; more give A B C C B A A B C ...: a linear drift over time then adds the same to
the mean of each variant in every pair of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


def interleaved(variants: Sequence[tuple[_T, int]]) -> list[_T]:
    """Each variant as often as its number says: rounds forward and backward in turn, those that are done left out."""
    left = {index: count for index, (_, count) in enumerate(variants)}
    order: list[_T] = []
    is_forward = True
    while any(left.values()):
        indexes = [index for index, count in left.items() if count > 0]
        for index in indexes if is_forward else reversed(indexes):
            order.append(variants[index][0])
            left[index] -= 1
        is_forward = not is_forward
    return order
