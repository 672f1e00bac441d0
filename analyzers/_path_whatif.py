"""What a step would take if something were quicker: the graph of the step replayed with other weights.

Every figure is modelled. Order and dependencies stay as they were measured, delays of which nothing is known stay as
long as they were, and nothing gets in the way of anything else; so a gain is an upper bound ("at most"). Work that
hides behind other work gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._path_elements import COLLECTIVE, HOST, KINDS, Elements, Kind
from ascend_perf.analyzers._path_graph import NEVER, Part, longest
from ascend_perf.model.table import NULL, Bools, Ints

MAX_TYPES: Final = 15
"""Types of operators that are tried, the longest total first."""
MAX_CALLS: Final = 12
"""Kinds of collectives that are tried, the longest total first."""
MAX_ROUNDS: Final = 6_000_000
"""Edges that all replays of a step may follow; beyond it fewer changes are tried. Status: assumed, for some seconds."""
_AT_ONCE: Final = 4_000_000
"""Weights that are replayed together: bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of the weights of a step."""

    key: str
    """Fixed phrase of the report."""
    name: str
    """What it is about, where there are several."""
    own: Callable[[Ints], Ints]
    """New weights of the lanes' edges from the old ones."""
    cross: Callable[[Ints], Ints]
    """The same for the cross edges."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A change and what the step takes with it."""

    key: str
    name: str
    saved_ns: int
    """Time that the change takes away, wherever it lies."""
    step_ns: int
    """Length of the step with the change."""
    gain_ns: int
    """Length of the replay without any change less that; at most."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Replays of one step."""

    measured_ns: int
    replay_ns: int
    """The step without any change; differs from what was measured where the graph does not explain it."""
    outcomes: tuple[Outcome, ...]
    left_out: int
    """Changes that were not tried for want of room."""


def what_if(part: Part, elements: Elements, ideal_ns: Ints, more: Sequence[Change] = ()) -> WhatIf:
    """The step with each change.

    Args:
        part: graph of the step.
        elements: what its edges are.
        ideal_ns: per device task of the whole graph: the shortest transfer that the link allows, `NULL` where unknown.
        more: further changes, tried first.
    """
    graph = part.graph
    changes = [*more, *_changes(part, elements, ideal_ns)]
    size = max(1, len(graph) + len(graph.cross))
    step = max(1, _AT_ONCE // size)
    # Each cross edge ends at an instant where a lane's edge ends too.
    room = max(1, MAX_ROUNDS // (2 * len(graph.cross) + 1)) * step - 1
    left = max(0, len(changes) - room)
    unchanged = Change(key="", name="", own=lambda w: w, cross=lambda w: w)
    tried = [unchanged, *changes[:room]]
    ends: list[int] = []
    saved: list[int] = []
    for first in range(0, len(tried), step):
        block = tried[first : first + step]
        # Sets of weights lie one after the other in memory, though their axis is the last.
        own = np.stack([change.own(graph.own) for change in block]).T
        cross = np.stack([change.cross(graph.cross.weight) for change in block], axis=1)
        ends += longest(graph, own, cross, np.array([part.sink]))[0].tolist()
        less = np.where(cross > NEVER, graph.cross.weight[:, None] - cross, 0).sum(axis=0)
        saved += ((graph.own[:, None] - own).sum(axis=0) + less).tolist()
    outcomes = tuple(
        Outcome(key=change.key, name=change.name, saved_ns=less, step_ns=end, gain_ns=ends[0] - end)
        for change, end, less in list(zip(tried, ends, saved, strict=True))[1:]
    )
    return WhatIf(measured_ns=int(graph.time[part.sink]), replay_ns=ends[0], outcomes=outcomes, left_out=left)


def _changes(part: Part, elements: Elements, ideal_ns: Ints) -> Iterator[Change]:
    graph = part.graph
    kinds = elements.kind_codes()
    lane, cross = graph.element, graph.cross.element

    def of(*wanted: Kind) -> Bools:
        return np.isin(kinds, [KINDS.index(kind) for kind in wanted])

    def free(key: str, mask: Bools, name: str = "") -> Change:
        return Change(
            key=key, name=name, own=lambda w: np.where(mask[lane], 0, w), cross=lambda w: np.where(mask[cross], 0, w)
        )

    def half(name: str, mask: Bools) -> Change:
        return Change(
            key="twice as fast", name=name, own=lambda w: np.where(mask[lane], (w + 1) // 2, w),
            cross=lambda w: np.where(mask[cross], (w + 1) // 2, w),
        )  # fmt: skip

    total = np.bincount(lane, weights=graph.own, minlength=len(elements)).astype(np.int64)
    host = of(*HOST)
    dispatch = free("no dispatch cost", host | of(Kind.LAUNCH))
    if host[lane].any() or of(Kind.LAUNCH)[cross].any():
        yield dispatch
    if graph.cross.is_sync.any() or of(Kind.SYNC)[lane].any():
        sync, waits = free("no synchronisation", of(Kind.SYNC)), graph.cross.is_sync
        yield Change(key=sync.key, name="", own=sync.own, cross=lambda w: np.where(waits, NEVER, sync.cross(w)))
    for key, wanted in (
        ("no data loading", (Kind.DATALOADER,)),
        ("no Python", (Kind.PYTHON, Kind.UNRECORDED)),
        ("copies free", (Kind.COPY,)),
    ):
        if total[of(*wanted)].any():
            yield free(key, of(*wanted))
    collective = of(*COLLECTIVE)
    if total[collective].any():
        yield free("collectives free", collective)
        if (ideal_ns != NULL).any():
            yield _at_peak(part, of(Kind.COMM_TRANSFER, Kind.COMM), ideal_ns)
        for name in _largest(elements, total, collective, MAX_CALLS):
            yield free("collective free", collective & _named(elements, name), name)
    for name in _largest(elements, total, of(Kind.COMPUTE), MAX_TYPES):
        yield half(name, of(Kind.COMPUTE) & _named(elements, name))


def _at_peak(part: Part, transfer: Bools, ideal_ns: Ints) -> Change:
    """Transfers no longer than the link allows."""
    graph = part.graph
    ideal = np.where(graph.task >= 0, ideal_ns[np.clip(graph.task, 0, None)], NULL)
    mine = transfer[graph.element] & (ideal != NULL)
    return Change(
        key="transfers at the link peak", name="", own=lambda w: np.where(mine, np.minimum(w, ideal), w),
        cross=lambda w: w,
    )  # fmt: skip


def _named(elements: Elements, name: str) -> Bools:
    return np.array([other == name for other in elements.names], bool)


def _largest(elements: Elements, total: Ints, mask: Bools, most: int) -> list[str]:
    """Names with most time among some elements."""
    sums: dict[str, int] = {}
    for at in np.flatnonzero(mask & (total > 0)).tolist():
        sums[elements.names[at]] = sums.get(elements.names[at], 0) + int(total[at])
    return sorted(sums, key=lambda name: (-sums[name], name))[:most]
