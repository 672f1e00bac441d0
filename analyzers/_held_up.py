"""What the causes of waits say of each pair of ranks: whether the late rank was itself held up, and by whom."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import rank_words
from ascend_perf.analyzers._inherited import Causes
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.finding import HeldUp, Words
from ascend_perf.units import format_ratio

MIN_INHERITED_RATIO: Final = threshold("N-05", "min_inherited_ratio")


def held_up(causes: Causes) -> tuple[HeldUp, ...]:
    """The pairs of ranks whose wait is mostly the lateness of a third one; row N-05."""
    found: list[HeldUp] = []
    if not len(causes.waiter):
        return ()
    _, index = np.unique(np.stack((causes.waiter, causes.late)), axis=1, return_inverse=True)
    total = np.bincount(index.reshape(-1), weights=causes.exposed_ns)
    part = causes.exposed_ns / total[index.reshape(-1)]
    for row in np.flatnonzero((part >= MIN_INHERITED_RATIO.value) & (causes.cause != causes.late)).tolist():
        waiter, late, by = (int(column[row]) for column in (causes.waiter, causes.late, causes.cause))
        who, cause, share = rank_words(late), rank_words(by), format_ratio(float(part[row]))
        found.append(
            HeldUp(
                code="N-05", waiter=waiter, late=late, by=by,
                note=Words(
                    f"{who.en} was itself held up by {cause.en} ({share} of this waiting)",
                    f"{who.zh} 自身被 {cause.zh} 拖慢（占此等待的 {share}）",
                ),
            )
        )  # fmt: skip
    return tuple(found)
