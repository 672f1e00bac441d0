"""The collectives of a job: the same call on every rank, the offsets of the ranks' clocks, skew and true transfer.

All ranks leave a synchronous collective at nearly one time, so the ends of matched calls tell how far two clocks are
apart. Where they do not, only durations are compared: the rank that comes last has the shortest call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import Calls, group_members, has_subtasks, is_p2p
from ascend_perf.analyzers._communication_tables import group_names
from ascend_perf.analyzers._joint_calls import calls_by_order
from ascend_perf.analyzers._stages import RankView
from ascend_perf.model.table import NULL, Bools, Floats, Ints

SYNCHRONOUS: Final = frozenset({"allReduce", "allGather", "reduceScatter", "alltoall", "alltoallv", "barrier"})
"""Ops that no rank leaves before all have come; a broadcast's root and a reduce's leaves may leave early."""
MIN_MATCHED: Final = 3
"""Fewer common collectives settle no clock offset: one odd end could not be seen. Status: assumed."""
MAX_OFFSET_SPREAD_NS: Final = 500_000
"""Ends that scatter more than this around their median tell no offset. Status: assumed."""
SAME_CLOCK_NS: Final = 100_000
"""Clocks closer than this count as one: ends of one collective differ by tens of microseconds. Status: measured."""
_SCALE: Final = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution."""
_WIDTH: Final = 1 << 40


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """How far a rank's clock is ahead of the reference rank's."""

    rank: int
    reference: int
    offset_ns: int | None
    """None: the data do not settle it."""
    uncertainty_ns: int | None
    matched: int
    """Collectives whose ends were compared, on the way of pairs that leads to the reference."""


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """Matched calls of a job. The arrays of members lie collective after collective; `heads` are their first places."""

    views: tuple[RankView, ...]
    place: Ints
    """Place of the member's rank in `views`."""
    row: Ints
    """Position of the call in `views[place].calls`."""
    heads: Ints
    group: tuple[str | None, ...]
    """Group of each collective as readers see it; None where the traces name none."""
    label: tuple[str | None, ...]
    op: tuple[str, ...]
    size: Ints
    """Ranks of the group, `NULL` where unknown."""
    kind: Ints
    """Number of (group, op), the same for all of its collectives."""
    starts: Ints
    ends: Ints
    durations: Ints
    remaining: Ints
    """Duration less the waiting that sub-tasks show; the duration where there are none."""
    exposed: Ints
    bytes: Ints
    """Message size of the member's call, `NULL` where unknown."""
    steps: Ints
    """Step of the member's call."""
    offsets: tuple[ClockOffset, ...]
    is_late_by_clock: Bools
    """Per collective: the clocks of all of its members are known, so starts can be compared."""
    waits: Ints
    """Per member: how long it was there before the last one came (the clocks aligned, or from durations)."""

    def __len__(self) -> int:
        return len(self.heads)

    def per_call(self, values: Ints, reduce: np.ufunc) -> Ints:
        """One value per collective from one per member."""
        return np.asarray(reduce.reduceat(values, self.heads)) if len(self.heads) else np.empty(0, np.int64)

    @property
    def owner(self) -> Ints:
        """Number of the collective of each member."""
        counts = np.diff(np.append(self.heads, len(self.place)))
        return np.repeat(np.arange(len(self.heads)), counts)

    @property
    def skew_ns(self) -> Ints:
        """Time between the first and the last rank's arrival."""
        return self.per_call(self.waits, np.maximum)

    @property
    def transfer_ns(self) -> Ints:
        """What the collective takes once all are there: the shortest of what remains of each rank's call."""
        return self.per_call(self.remaining, np.minimum)

    @property
    def last(self) -> Ints:
        """Place of the rank that came last to each collective."""
        order = np.lexsort((self.waits, self.owner))
        return self.place[order[self.heads]] if len(self.heads) else np.empty(0, np.int64)


def collectives_of(views: tuple[RankView, ...]) -> Collectives:
    """The collectives that two ranks or more share.

    A call is the same on two ranks when group, op and ordinal in the group are equal; where the traces name no groups,
    when order and ends agree. Groups of one name but other members are other groups. Point-to-point calls are left
    out: their ordinals do not tell which send belongs to which receive.

    Source:
        rivals-and-methods, method 5.6.
    """
    keys, place, row, names, sizes = _named(views)
    order = np.lexsort((place, keys))
    keys, place, row = keys[order], place[order], row[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.empty(0, np.int64)
    counts = np.diff(np.append(first, len(keys)))
    shared = np.repeat(counts > 1, counts)
    keys, place, row = keys[shared], place[shared], row[shared]
    counts = counts[counts > 1]
    kinds = keys // _WIDTH
    unnamed = list(calls_by_order(views))
    if unnamed:
        kinds = np.append(kinds, np.repeat(len(names) + np.arange(len(unnamed)), [len(m) for _, m in unnamed]))
        names += [(None, None, op) for op, _ in unnamed]
        sizes += [NULL] * len(unnamed)
        place = np.append(place, [at for _, members in unnamed for at, _ in members])
        row = np.append(row, [at for _, members in unnamed for _, at in members])
        counts = np.append(counts, [len(members) for _, members in unnamed])
    heads = np.append(0, np.cumsum(counts))[:-1].astype(np.int64)
    kind = _same_kinds(names)[kinds[heads]] if len(heads) else np.empty(0, np.int64)
    named = [names[at] for at in kinds[heads].tolist()] if len(heads) else []
    columns = _columns(views, place, row)
    offsets, shift = _offsets(
        views, place, columns["ends"], heads, np.array([n[2] in SYNCHRONOUS for n in named], bool)
    )
    waits, by_clock = _waits(place, columns["starts"], columns["durations"], heads, shift)
    return Collectives(
        views=views, place=place, row=row, heads=heads, group=tuple(n[0] for n in named),
        label=tuple(n[1] for n in named), op=tuple(n[2] for n in named),
        size=np.array([sizes[at] for at in kinds[heads].tolist()] if len(heads) else [], np.int64), kind=kind,
        offsets=offsets, waits=waits, is_late_by_clock=by_clock, **columns,
    )  # fmt: skip


_Name = tuple[str | None, str | None, str]
"""Group as readers see it, its label, op."""


def _named(views: tuple[RankView, ...]) -> tuple[Ints, Ints, Ints, list[_Name], list[int]]:
    """Keys, places and rows of the calls with a group and an ordinal, and what the kinds in the keys stand for."""
    known = {name: members for view in views for name, members in group_members(view.trace).items()}
    kinds: dict[tuple[str, tuple[int, ...], str], int] = {}
    names: list[_Name] = []
    sizes: list[int] = []
    keys, places, rows = [], [], []
    for at, view in enumerate(views):
        table = view.calls.table
        usable = (table.ints("index_in_group") != NULL) & (table.text("group").codes >= 0) & ~is_p2p(table)
        if not usable.any():
            continue
        mine = np.flatnonzero(usable)
        groups, ops = table.text("group"), table.text("op")
        members = group_members(view.trace)
        shown = group_names(view.trace)
        labels = {n: g.label for g in view.trace.meta.groups if g.label for n in (g.name, g.hash_id) if n}
        codes, index = np.unique(np.stack((groups.codes[mine], ops.codes[mine])), axis=1, return_inverse=True)
        numbers = np.full(codes.shape[1], -1, np.int64)
        for pair, (group, op) in enumerate(codes.T.tolist()):
            name = groups.values[group]
            # A rank without metadata joins the group of that name that another rank describes.
            ranks = members.get(name) or known.get(name) or ()
            if op < 0 or (ranks and view.rank not in ranks):
                continue
            key = (name, ranks, ops.values[op])
            if key not in kinds:
                kinds[key] = len(names)
                names.append((shown.get(name, name), labels.get(name), ops.values[op]))
                sizes.append(len(ranks) or _stated_size(view.calls, groups.codes == group))
            numbers[pair] = kinds[key]
        number = numbers[index.reshape(-1)]
        mine, number = mine[number >= 0], number[number >= 0]
        ordinal = table.ints("index_in_group")[mine] & 0x7FFFFFFF
        keys.append(number * _WIDTH + _repeats(number * _WIDTH + ordinal) * 0x80000000 + ordinal)
        places.append(np.full(len(mine), at, np.int64))
        rows.append(mine)
    if not keys:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing, names, sizes
    return np.concatenate(keys), np.concatenate(places), np.concatenate(rows), names, sizes


def _repeats(keys: Ints) -> Ints:
    """How many earlier entries have the same key: ordinals that begin again with each step."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    head = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(keys) else np.empty(0, np.int64)
    counts = np.diff(np.append(head, len(keys)))
    result = np.empty(len(keys), np.int64)
    result[order] = np.arange(len(keys)) - np.repeat(head, counts)
    return np.minimum(result, 0x1FF)


def _stated_size(calls: Calls, rows: Bools) -> int:
    sizes = calls.table.ints("group_size")[rows]
    return int(sizes.max()) if len(sizes) else NULL


def _same_kinds(names: Sequence[_Name]) -> Ints:
    """Unnamed calls of one op are one kind."""
    seen: dict[tuple[object, ...], int] = {}
    return np.array(
        [seen.setdefault(name if name[0] is None else (*name, at), at) for at, name in enumerate(names)], np.int64
    )


def _columns(views: tuple[RankView, ...], place: Ints, row: Ints) -> dict[str, Ints]:
    names = ("starts", "ends", "durations", "remaining", "exposed", "bytes", "steps")
    columns = {name: np.full(len(place), NULL, np.int64) for name in names}
    for at, view in enumerate(views):
        mine = np.flatnonzero(place == at)
        if not len(mine):
            continue
        calls, rows = view.calls, row[mine]
        # Whole durations, also of calls that leave their step.
        start, duration = calls.table.ints("start_ns")[rows], calls.table.ints("dur_ns")[rows]
        waiting = calls.waiting_ns[rows] if has_subtasks(view.trace) else np.full(len(rows), NULL, np.int64)
        columns["starts"][mine], columns["ends"][mine] = start, start + duration
        columns["durations"][mine] = duration
        columns["remaining"][mine] = np.where(waiting == NULL, duration, np.maximum(duration - waiting, 0))
        columns["exposed"][mine] = calls.exposed_ns[rows]
        columns["bytes"][mine] = calls.table.ints("size_bytes")[rows]
        columns["steps"][mine] = np.searchsorted(calls.windows.starts, calls.starts[rows], side="right") - 1
    return columns


def _offsets(
    views: tuple[RankView, ...], place: Ints, ends: Ints, heads: Ints, synchronous: Bools
) -> tuple[tuple[ClockOffset, ...], Floats]:
    """The offset of each rank's clock, and the same as an array with NaN where it is not known.

    Pairs of ranks that share collectives are edges; the offset of a pair is the median difference of its ends. From
    the first rank of each connected part, the surest edges lead to the others.
    """
    edges: dict[tuple[int, int], tuple[float, float, int]] = {}
    if len(heads):
        counts = np.diff(np.append(heads, len(place)))
        first = np.repeat(heads, counts)
        use = np.repeat(synchronous, counts) & (np.arange(len(place)) != first)
        pairs, members = place[first] * len(views) + place, np.flatnonzero(use)
        order = members[np.argsort(pairs[members], kind="stable")]
        changes = np.flatnonzero(pairs[order][1:] != pairs[order][:-1]) + 1
        for part in np.split(order, changes) if len(order) else ():
            difference = ends[part] - ends[first[part]]
            median = float(np.median(difference))
            spread = _SCALE * float(np.median(np.abs(difference - median)))
            if len(part) >= MIN_MATCHED and spread <= MAX_OFFSET_SPREAD_NS:
                low, high = divmod(int(pairs[part[0]]), len(views))
                edges[low, high] = (median, spread, len(part))
    shift = np.full(len(views), np.nan)
    found: dict[int, ClockOffset] = {}
    part_of = np.full(len(views), -1)
    for root in range(len(views)):
        if root in found:
            continue
        found[root] = ClockOffset(
            rank=views[root].rank, reference=views[root].rank, offset_ns=0, uncertainty_ns=0, matched=0
        )
        shift[root], part_of[root] = 0.0, root
        reached = {root}
        while candidates := [
            (spread, a, b, value, count)
            for (a, b), (value, spread, count) in edges.items()
            if (a in reached) != (b in reached)
        ]:
            spread, a, b, value, count = min(candidates)
            known, new, sign = (a, b, 1) if a in reached else (b, a, -1)
            shift[new], part_of[new] = shift[known] + sign * value, root
            before = found[known].uncertainty_ns or 0
            found[new] = ClockOffset(
                rank=views[new].rank, reference=views[root].rank, offset_ns=round(shift[new]),
                uncertainty_ns=round(float(np.hypot(before, spread))), matched=count,
            )  # fmt: skip
            reached.add(new)
    # Ranks that nothing ties to the largest part have a clock of their own.
    parts, sizes = np.unique(part_of, return_counts=True)
    main = int(parts[np.argmax(sizes)]) if len(parts) else -1
    reference = views[main].rank if len(views) else -1
    for at in range(len(views)):
        if part_of[at] != main:
            found[at] = ClockOffset(
                rank=views[at].rank, reference=reference, offset_ns=None, uncertainty_ns=None, matched=0
            )
            shift[at] = np.nan
    if len(views) and int(sizes.max()) == 1:
        shift[:] = np.nan
        found[main] = ClockOffset(rank=reference, reference=reference, offset_ns=0, uncertainty_ns=0, matched=0)
    return tuple(found[at] for at in range(len(views))), shift


def _waits(place: Ints, starts: Ints, durations: Ints, heads: Ints, shift: Floats) -> tuple[Ints, Bools]:
    """How long each member was there before the last one, and which collectives the clocks decide."""
    if not len(heads):
        return np.empty(0, np.int64), np.zeros(0, bool)
    counts = np.diff(np.append(heads, len(place)))
    known = np.logical_and.reduceat(~np.isnan(shift[place]), heads)
    aligned = starts - np.where(np.isnan(shift[place]), 0, np.rint(shift[place])).astype(np.int64)
    by_clock = np.minimum(np.repeat(np.maximum.reduceat(aligned, heads), counts) - aligned, durations)
    by_duration = durations - np.repeat(np.minimum.reduceat(durations, heads), counts)
    return np.where(np.repeat(known, counts), by_clock, by_duration), known
