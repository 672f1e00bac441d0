"""One clock for the ranks of a file: how far each rank's is ahead of the reference's, from their collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_perf.analyzers._collectives import job_collectives
from ascend_perf.analyzers._stages import job_of
from ascend_perf.model.run import Run

MAX_SHIFT_NS: Final = 1 << 61
"""A larger shift would take times out of 64 bits: the trace is damaged."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How the times of one trace were put on the common clock: `shift_ns` was subtracted from each."""

    rank: int | None
    reference: int | None
    shift_ns: int = 0
    aligned: bool = False
    """Whether the data settle it; False: the times are those of the rank's own clock."""
    uncertainty_ns: int | None = None
    matched_collectives: int = 0
    drift_ppm: float | None = None
    """What is not taken out: durations stay as they were recorded."""


def clocks_of(run: Run) -> tuple[Clock, ...]:
    """The clock of each trace, in the order of the run. The shift is that in the middle of the record.

    Source:
        rivals-and-methods, method 5.6 (`analyzers._clocks`).
    """
    alone = [Clock(rank=trace.meta.rank, reference=None) for trace in run.traces]
    if len(run.traces) < 2:
        return tuple(alone)
    job = job_of(run)
    if len(job.ranks) < 2:
        return tuple(alone)
    by_rank = {offset.rank: offset for offset in job_collectives(job).offsets}
    for view in job.ranks:
        offset = by_rank.get(view.rank)
        place = next(place for place, trace in enumerate(run.traces) if trace is view.trace)
        if offset is not None and offset.offset_ns is not None and abs(offset.offset_ns) < MAX_SHIFT_NS:
            alone[place] = Clock(
                rank=view.rank, reference=offset.reference, shift_ns=offset.offset_ns, aligned=True,
                uncertainty_ns=offset.uncertainty_ns, matched_collectives=offset.matched, drift_ppm=offset.drift_ppm,
            )  # fmt: skip
    return tuple(alone)
