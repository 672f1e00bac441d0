"""Distinct combinations of columns of whole numbers, without sorting where the numbers are codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import Ints

_DENSE: int = 1 << 16
"""So many combinations, or four per row, may be counted off in a table of all of them."""


def distinct(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """`np.unique(np.stack(columns), axis=1, return_inverse=True)`, several times as fast.

    Args:
        columns: at least one, each of shape (n,).

    Returns:
        The combinations, the first column compared first, shape (columns, k); and the one of each row, shape (n,).
    """
    count = len(columns[0])
    if not count:
        return np.empty((len(columns), 0), np.int64), np.empty(0, np.int64)
    lows = [int(column.min()) for column in columns]
    spans = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    size = 1
    for span in spans:
        size *= span
    if size >= 1 << 62:
        found, index = np.unique(np.stack(columns).astype(np.int64), axis=1, return_inverse=True)
        return found, index.reshape(-1)
    keys = np.zeros(count, np.int64)
    for column, low, span in zip(columns, lows, spans, strict=True):
        keys = keys * span + (column.astype(np.int64) - low)
    if size <= max(_DENSE, 4 * count):
        is_there = np.zeros(size, bool)
        is_there[keys] = True
        there = np.flatnonzero(is_there)
        number = np.empty(size, np.int64)
        number[there] = np.arange(len(there))
        index = number[keys]
    else:
        there, index = np.unique(keys, return_inverse=True)
    made = np.empty((len(columns), len(there)), np.int64)
    for place in reversed(range(len(columns))):
        there, rest = np.divmod(there, spans[place])
        made[place] = rest + lows[place]
    return made, index.astype(np.int64)
