"""A run's own figures beside the profile that they belong to: one trace instead of two, where that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ascend_perf.model.tables import BESIDE, TRAINING_SERIES
from ascend_perf.model.trace import Trace


def joined(traces: Sequence[Trace]) -> list[Trace]:
    """The traces, with each training series put into the profile that it belongs to.

    It belongs to the profile of the rank that it names, or to the only profile; in both cases only where no other
    series does. The others (of a job of several ranks, of several runs) stay traces of their own.
    """
    profiles = [place for place, trace in enumerate(traces) if not BESIDE.issuperset(trace.tables)]
    series = [place for place, trace in enumerate(traces) if set(trace.tables) == {TRAINING_SERIES.name}]
    owners: dict[int, list[int]] = {}
    for place in series:
        rank = _rank(traces[place])
        mine = [p for p in profiles if traces[p].meta.rank == rank] if rank is not None else []
        if not mine and len(profiles) == 1 and (rank is None or traces[profiles[0]].meta.rank is None):
            mine = profiles
        if len(mine) == 1 and not traces[mine[0]].has(TRAINING_SERIES):
            owners.setdefault(mine[0], []).append(place)
    made = list(traces)
    gone = set()
    for owner, places in owners.items():
        if len(places) == 1:
            made[owner] = _merged(traces[owner], traces[places[0]])
            gone.add(places[0])
    return [trace for place, trace in enumerate(made) if place not in gone]


def _rank(series: Trace) -> int | None:
    """The rank that all rows name."""
    ranks = np.unique(series[TRAINING_SERIES].ints("rank"))
    return int(ranks[0]) if len(ranks) == 1 and ranks[0] >= 0 else None


def _merged(profile: Trace, series: Trace) -> Trace:
    meta = replace(
        profile.meta,
        environment={**series.meta.environment, **profile.meta.environment},
        sources=(*profile.meta.sources, *series.meta.sources),
        warnings=(*profile.meta.warnings, *series.meta.warnings),
    )
    return profile.replace(meta=meta, tables={TRAINING_SERIES.name: series[TRAINING_SERIES]})
