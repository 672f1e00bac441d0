"""Columns of large tables in the page: integers as differences in bytes of seven bits, as base64 text.

A row of a timeline takes some 13 characters so, a third of what it takes as numbers in JSON. `core.js` reads it.
"""

from __future__ import annotations

import base64
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Ints
from ascend_perf.reports.texts import Json

_LIMIT: Final = 2**53 - 1
"""Larger numbers JavaScript cannot hold; they become unknown."""


def packed(values: Ints) -> dict[str, Json]:
    """`values` (`NULL` is unknown) in the shortest of three ways.

    Returns:
        `as` is how, `rows` how many, `bytes` the numbers: each in groups of seven bits, lowest first, the eighth bit
        set while more follow. A value n is written as 2n + 1, or as -2n when it is below zero; unknown as 0.
        `plain`: the values; `delta`: the differences to the last known value, the first one to 0; `runs`: value and
        how often it comes, in turns.
    """
    values = np.where((values < -_LIMIT) | (values > _LIMIT), NULL, values)
    ways = {"delta": _coded(_differences(values)), "plain": _coded(values), "runs": _runs(values)}
    way = min(ways, key=lambda name: len(_groups(ways[name])))
    return {"as": way, "rows": len(values), "bytes": base64.b64encode(_groups(ways[way]).tobytes()).decode("ascii")}


def _differences(values: Ints) -> Ints:
    known = np.flatnonzero(values != NULL)
    made = np.full(len(values), NULL)
    made[known] = np.diff(values[known], prepend=0)
    return made


def _coded(values: Ints) -> Ints:
    """Numbers from 0 on: signs in the lowest bit, 0 for unknown."""
    known = values != NULL
    plain = np.where(known, values, 0)
    return np.where(known, ((plain << 1) ^ (plain >> 63)) + 1, 0)


def _runs(values: Ints) -> Ints:
    if not len(values):
        return values
    heads = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    made = np.empty(2 * len(heads), np.int64)
    made[::2] = _coded(values[heads])
    made[1::2] = np.diff(np.append(heads, len(values)))
    return made


def _groups(codes: Ints) -> NDArray[np.uint8]:
    """Bytes of numbers that are not negative."""
    sizes = np.ones(len(codes), np.int64)
    rest = codes >> 7
    while rest.any():
        sizes += rest > 0
        rest = rest >> 7
    at = np.cumsum(sizes) - sizes
    made = np.zeros(int(sizes.sum()), np.uint8)
    for i in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > i)
        more = np.where(sizes[rows] > i + 1, 0x80, 0)
        made[at[rows] + i] = ((codes[rows] >> (7 * i)) & 0x7F) | more
    return made
