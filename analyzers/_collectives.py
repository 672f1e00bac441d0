"""The collectives of a job: the same call on every rank, the offsets of the ranks' clocks, skew and true transfer.

All ranks leave a synchronous collective at nearly one time, so the ends of matched calls tell how far two clocks are
apart. Where they do not, only durations are compared: the rank that comes last has the shortest call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._alignment import UNMATCHED, shifts_of
from ascend_perf.analyzers._alignment import Sequence as CallSequence
from ascend_perf.analyzers._clocks import ClockOffset, Clocks, Ties, clocks_of
from ascend_perf.analyzers._communication import Calls, group_members, has_subtasks, is_p2p, is_pipelined
from ascend_perf.analyzers._communication_tables import group_names
from ascend_perf.analyzers._joint_calls import calls_by_order
from ascend_perf.analyzers._p2p import p2p_ties, peers_of_calls
from ascend_perf.analyzers._stages import Job, RankView
from ascend_perf.model.table import NULL, Bools, Ints

SYNCHRONOUS: Final = frozenset({"allReduce", "allGather", "reduceScatter", "alltoall", "alltoallv", "barrier"})
"""Ops that no rank leaves before all have come; a broadcast's root and a reduce's leaves may leave early."""
SAME_CLOCK_NS: Final = 100_000
"""Clocks closer than this count as one: ends of one collective differ by tens of microseconds. Status: measured."""
_WIDTH: Final = 1 << 40
_ROOM: Final = 64
"""Added to all ordinals, so that none is below 0 after those of a rank were shifted."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A rank whose record of a group lacks calls that others have, at its begin or in the middle."""

    rank: int
    group: str | None
    calls: int
    """What was added to its ordinals, at most."""


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
    clocks: Clocks
    peers: tuple[Ints, ...]
    """Per view: the rank at the other end of each of its calls, -1 for collectives and where nothing tells it."""
    shifts: tuple[Shift, ...]
    is_late_by_clock: Bools
    """Per collective: the clocks of all of its members are known, so starts can be compared."""
    waits: Ints
    """Per member: how long it was there before the last one came (the clocks aligned, or from durations)."""

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def offsets(self) -> tuple[ClockOffset, ...]:
        """Offset of each rank's clock."""
        return self.clocks.offsets

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
    when order and ends agree. Groups of one name but other members are other groups. Where ops, sizes and ends say that
    the record of a rank begins at another call or lost some, its ordinals are shifted (`shifts_of`). Point-to-point
    calls of a pipeline are left out: their ordinals do not tell which send belongs to which receive.

    Source:
        rivals-and-methods, method 5.6.
    """
    keys, place, row, names, sizes, shifts = _named(views)
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
    peers = tuple(peers_of_calls(view) for view in views)
    synchronous = np.array([n[2] in SYNCHRONOUS for n in named], bool)
    clocks = clocks_of([view.rank for view in views], _ties(views, peers, place, columns["ends"], heads, synchronous))
    waits, by_clock = _waits(place, columns["starts"], columns["durations"], heads, clocks)
    return Collectives(
        views=views, place=place, row=row, heads=heads, group=tuple(n[0] for n in named),
        label=tuple(n[1] for n in named), op=tuple(n[2] for n in named),
        size=np.array([sizes[at] for at in kinds[heads].tolist()] if len(heads) else [], np.int64), kind=kind,
        clocks=clocks, peers=peers, shifts=shifts, waits=waits, is_late_by_clock=by_clock, **columns,
    )  # fmt: skip


_Name = tuple[str | None, str | None, str]
"""Group as readers see it, its label, op."""


def _named(views: tuple[RankView, ...]) -> tuple[Ints, Ints, Ints, list[_Name], list[int], tuple[Shift, ...]]:
    """Keys, places and rows of the calls with a group and an ordinal, and what the kinds in the keys stand for."""
    known = {name: members for view in views for name, members in group_members(view.trace).items()}
    kinds: dict[tuple[str, tuple[int, ...], str], int] = {}
    names: list[_Name] = []
    sizes: list[int] = []
    domains: dict[tuple[str, tuple[int, ...]], int] = {}
    domain_of: list[int] = []
    numbered: list[tuple[Ints, Ints, Ints]] = []
    for at, view in enumerate(views):
        table = view.calls.table
        usable = (table.ints("index_in_group") != NULL) & (table.text("group").codes >= 0)
        usable &= ~(is_p2p(table) & is_pipelined(view.trace))
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
                domain_of.append(domains.setdefault((name, ranks), len(domains)))
                names.append((shown.get(name, name), labels.get(name), ops.values[op]))
                sizes.append(len(ranks) or _stated_size(view.calls, groups.codes == group))
            numbers[pair] = kinds[key]
        number = numbers[index.reshape(-1)]
        mine, number = mine[number >= 0], number[number >= 0]
        if len(mine):
            numbered.append((np.full(len(mine), at, np.int64), mine, number))
    if not numbered:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing, names, sizes, ()
    place, row, number = (np.concatenate([part[i] for part in numbered]) for i in range(3))
    ordinal = np.concatenate([views[int(p[0])].calls.table.ints("index_in_group")[r] for p, r, _ in numbered])
    ordinal = (ordinal & 0x3FFFFFFF) + _ROOM
    domain = np.array(domain_of, np.int64)[number]
    added = _shifts(views, place, row, domain, ordinal)
    shown_of = {at: names[kind][0] for kind, at in reversed(list(enumerate(domain_of)))}
    shifts = []
    alike = np.ones(len(place), bool)
    for (at, group), (rows, values) in sorted(added.items()):
        common = values != UNMATCHED
        alike[rows[~common]] = False
        ordinal[rows[common]] += values[common]
        most = np.unique(values[common])
        if most.any():
            shifts.append(Shift(rank=views[at].rank, group=shown_of[group], calls=int(most[np.argmax(np.abs(most))])))
    place, row, number, ordinal = place[alike], row[alike], number[alike], ordinal[alike]
    base = number * _WIDTH
    repeats = np.empty(len(place), np.int64)
    for at in np.unique(place).tolist():
        mine = place == at
        repeats[mine] = _repeats((base + ordinal)[mine])
    return base + repeats * 0x80000000 + ordinal, place, row, names, sizes, tuple(shifts)


def _shifts(
    views: tuple[RankView, ...], place: Ints, row: Ints, domain: Ints, ordinal: Ints
) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """Rows, and what to add to their ordinals, of a rank (by place) in a group whose record lacks calls."""
    found: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    order = np.lexsort((ordinal, place, domain))
    heads = np.flatnonzero(np.diff(domain[order]) | np.diff(place[order])) + 1
    names: dict[str | None, int] = {}
    ours: dict[int, list[tuple[int, CallSequence, Ints]]] = {}
    for rows in np.split(order, heads):
        numbers = ordinal[rows]
        if len(numbers) < 2 or not bool((np.diff(numbers) > 0).all()):
            continue  # ordinals that begin again with each step: the k-th of each step is one call
        at = int(place[rows[0]])
        table = views[at].calls.table
        mine = row[rows]
        ops = table.text("op")
        codes = np.array([names.setdefault(value, len(names)) for value in ops.values] + [-1], np.int64)
        start, duration = table.ints("start_ns")[mine], table.ints("dur_ns")[mine]
        calls = CallSequence(
            ordinals=numbers, ops=codes[ops.codes[mine]], sizes=table.ints("size_bytes")[mine], ends=start + duration,
            durations=duration,
        )  # fmt: skip
        ours.setdefault(int(domain[rows[0]]), []).append((at, calls, rows))
    for group, members in ours.items():
        reference = max(members, key=lambda member: (len(member[1].ordinals), -member[0]))
        for at, calls, rows in members:
            if at != reference[0] and (values := shifts_of(reference[1], calls)).any():
                found[at, group] = rows, values
    return found


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


def _ties(
    views: tuple[RankView, ...], peers: Sequence[Ints], place: Ints, ends: Ints, heads: Ints, synchronous: Bools
) -> Ties:
    """Moments that ranks share: the ends of synchronous collectives (each member against the first), and of p2p."""
    pairs = p2p_ties(views, peers)
    if not len(heads):
        return pairs
    counts = np.diff(np.append(heads, len(place)))
    first = np.repeat(heads, counts)
    use = np.flatnonzero(np.repeat(synchronous, counts) & (np.arange(len(place)) != first))
    return Ties(
        first=np.append(place[first[use]], pairs.first), second=np.append(place[use], pairs.second),
        first_ns=np.append(ends[first[use]], pairs.first_ns), second_ns=np.append(ends[use], pairs.second_ns),
    )  # fmt: skip


def _waits(place: Ints, starts: Ints, durations: Ints, heads: Ints, clocks: Clocks) -> tuple[Ints, Bools]:
    """How long each member was there before the last one, and which collectives the clocks decide."""
    if not len(heads):
        return np.empty(0, np.int64), np.zeros(0, bool)
    counts = np.diff(np.append(heads, len(place)))
    known = np.logical_and.reduceat(clocks.known(place), heads)
    aligned = clocks.aligned(place, starts)
    by_clock = np.minimum(np.repeat(np.maximum.reduceat(aligned, heads), counts) - aligned, durations)
    by_duration = durations - np.repeat(np.minimum.reduceat(durations, heads), counts)
    return np.where(np.repeat(known, counts), by_clock, by_duration), known


_last: list[tuple[weakref.ref[Job], Collectives]] = []
"""The collectives that were matched last: several analyzers ask for those of one job. They go with it."""


def job_collectives(job: Job) -> Collectives:
    """The collectives of a job's ranks, matched once."""
    for known, calls in _last:
        if known() is job:
            return calls
    calls = collectives_of(job.ranks)
    _last[:] = [(weakref.ref(job, lambda _: _last.clear()), calls)]
    return calls
