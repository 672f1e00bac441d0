"""What the calls of a rank cost: exposed time, waiting, data movement, and the peers that were waited for.

Shared by `communication` (one rank) and `ranks` (all ranks). Waiting is taken from the sub-tasks where the trace has
them, as the union of a call's waits; a minimum or a sum over planes is wrong on a mesh, where planes run in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._rdma import completes_rdma
from ascend_perf.analyzers._steps import StepWindows, membership, step_total_ns, step_windows, unions_by_step
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Words
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, COMM_TRANSFERS, EXPORTED_STEPS, KERNELS
from ascend_perf.model.trace import Trace
from ascend_perf.ops.classify import computes

P2P_OPS: Final = frozenset({"send", "receive", "batchSendRecv"})
"""Point-to-point calls: what pipeline stages exchange."""

LATE_CALL_RATIO: Final = 0.05
"""A call counts as one that the peer came late to from this share of all waiting for the peer. Status: assumed."""

_NOTIFY: Final = "notify"
_PAIR: Final = 1 << 32
"""Two numbers in one key: first * _PAIR + second, the second below _PAIR."""
_GLOBAL: Final = -2
"""Stands for the group in the key of a peer whose global rank is known."""

_LEVEL1: Final = (
    "experimental_config=torch_npu.profiler._ExperimentalConfig(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)"
)


def is_p2p(calls: Table) -> Bools:
    """Rows of comm_ops that are point-to-point calls."""
    return calls.text("op").isin(P2P_OPS)


def is_pipelined(trace: Trace) -> bool:
    """Whether the trace tells that the job runs pipeline stages; its point-to-point waits are then row L-01.

    Reads:
        meta: parallel sizes and groups; exported_steps: bubble_ns; comm_ops: explicit send and receive of HCCL.
    """
    if stage_count(trace) > 1:
        return True
    bubble = trace[EXPORTED_STEPS].ints("bubble_ns")
    if bool(((bubble != NULL) & (bubble > 0)).any()):
        return True
    # NCCL names all-to-all kernels SendRecv as well, so there the kernel name alone tells nothing.
    return trace.meta.device.kind == "npu" and bool(trace[COMM_OPS].text("op").isin({"send", "receive"}).any())


def stage_count(trace: Trace) -> int:
    """Pipeline stages as the metadata state them, 1 when they state none."""
    for key in ("pipeline_model_parallel", "pipeline_model_parallel_size", "pipeline_parallel", "pp"):
        if trace.meta.parallel.get(key, 0) > 1:
            return int(trace.meta.parallel[key])
    return max((len(group.ranks) for group in trace.meta.groups if group.label == "pp"), default=1)


def computing(trace: Trace, windows: StepWindows) -> IntervalSet:
    """Union of the kernels inside the steps."""
    return intervals.union(*unions_by_step(trace, trace[KERNELS], computes(trace[KERNELS]), windows))


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The collectives of a rank that lie in its steps; arrays hold one entry per call."""

    trace: Trace
    table: Table
    """comm_ops, the calls in steps only."""
    rows: Ints
    """Row of each call in comm_ops."""
    starts: Ints
    ends: Ints
    exposed_ns: Ints
    """Time of the call in which nothing computed."""
    waiting_ns: Ints
    """Time without data movement on any plane while a wait ran; `NULL` where the data do not tell."""
    exposed_waiting_ns: Ints
    transfer_ns: Ints
    """Wall time that the data needed; `NULL` where unknown."""
    is_estimated: bool
    """Waiting is the duration less the time of the transfers, for want of sub-tasks: a lower bound."""
    busy: IntervalSet
    """What computed in the steps."""
    windows: StepWindows
    step_ns: int
    """Length of all steps together: what shares are divided by."""
    steps: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def step_ids(self) -> tuple[int | None, ...]:
        """Numbers of the steps."""
        return tuple(self.windows.step_id(i) for i in range(len(self.windows)))

    def union(self, mask: Bools | None = None) -> IntervalSet:
        """Union of the calls, clipped to the steps."""
        starts, ends = (self.starts, self.ends) if mask is None else (self.starts[mask], self.ends[mask])
        return intervals.merged(starts, ends)

    def exposed(self, mask: Bools | None = None) -> IntervalSet:
        """When the calls run and nothing computes."""
        return intervals.difference(self.union(mask), self.busy)

    def exposed_union_ns(self, mask: Bools | None = None) -> int:
        """Length of the union of the calls outside of computing."""
        union = self.union(mask)
        return intervals.total(union) - int(intervals.covered(self.busy, union.starts, union.ends).sum())


@once
def calls_in_steps(trace: Trace) -> Calls:
    """The calls of a rank with what each cost.

    Reads:
        comm_ops, comm_tasks, comm_transfers, kernels, exported_steps.
    """
    windows = step_windows(trace)
    table = trace[COMM_OPS]
    of = membership(trace, table, windows)
    starts, ends = table.ints("start_ns"), table.ends_ns()
    rows = np.flatnonzero((of >= 0) & (starts != NULL) & (ends != NULL))
    first, last = windows.starts[of[rows]], windows.ends[of[rows]]
    starts, ends = np.clip(starts[rows], first, last), np.clip(ends[rows], first, last)
    busy = computing(trace, windows)
    duration = ends - starts
    exposed = duration - intervals.covered(busy, starts, ends)
    step_ns, steps = step_total_ns(trace, windows), len(windows)
    if not trace.has(KERNELS) and (exported := exported_split(trace)) is not None:
        # Only the exporter's sums tell how much was hidden behind computing: spread it evenly over the calls.
        step_ns, steps = exported.step_ns, exported.steps
        if exported.communication_ns:
            hidden = min(1.0, exported.exposed_ns / exported.communication_ns)
            exposed = np.rint(duration * hidden).astype(np.int64)
    calls = table.select(rows)
    need = _transfer_need(trace, calls)
    if has_subtasks(trace):
        waiting, waiting_exposed, transfer = _from_tasks(trace, rows, busy)
        estimated = False
    else:
        waiting, waiting_exposed, transfer = _estimated(calls, duration, exposed, need)
        estimated = True
    return Calls(
        trace=trace, table=calls, rows=rows, starts=starts, ends=ends, exposed_ns=exposed, waiting_ns=waiting,
        exposed_waiting_ns=waiting_exposed, transfer_ns=transfer, is_estimated=estimated, busy=busy,
        windows=windows, step_ns=step_ns, steps=steps,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the steps of a rank go, all steps together, in ns. `is_exported` says that the exporter summed it."""

    steps: int
    step_ns: int
    computing_ns: int
    communication_ns: int
    exposed_ns: int
    free_ns: int
    bubble_ns: int | None
    is_exported: bool


def exported_split(trace: Trace) -> Split | None:
    """The exporter's own split of the steps, None when the trace has none."""
    table = trace[EXPORTED_STEPS]
    if not table.has("computing_ns"):
        return None
    sums = {
        name: int(values[values != NULL].sum()) if bool((values != NULL).any()) else None
        for name in ("computing_ns", "communication_ns", "communication_not_overlapped_ns", "free_ns", "bubble_ns")
        for values in (table.ints(name),)
    }
    busy = sums["computing_ns"] or 0
    exposed = sums["communication_not_overlapped_ns"] or 0
    free = sums["free_ns"] or 0
    # Identity of the exporter: Computing + Communication(Not Overlapped) + Free = Stage + Bubble.
    return Split(
        steps=len(table), step_ns=busy + exposed + free, computing_ns=busy,
        communication_ns=sums["communication_ns"] or 0, exposed_ns=exposed, free_ns=free,
        bubble_ns=sums["bubble_ns"], is_exported=True,
    )  # fmt: skip


def measured_split(trace: Trace) -> Split | None:
    """The split computed from the events, None when no kernel or call lies in a step.

    Source:
        rivals-and-methods, method 5.1.
    """
    windows = step_windows(trace)
    kernels = unions_by_step(trace, trace[KERNELS], computes(trace[KERNELS]), windows)
    calls = unions_by_step(trace, trace[COMM_OPS], windows=windows)
    busy = sum(intervals.total(part) for part in kernels)
    communication = sum(intervals.total(part) for part in calls)
    if not busy and not communication:
        return None
    either = sum(intervals.total(intervals.union(k, c)) for k, c in zip(kernels, calls, strict=True))
    span = step_total_ns(trace, windows)
    bubbles = trace[EXPORTED_STEPS].ints("bubble_ns")
    known = bubbles[bubbles != NULL]
    return Split(
        steps=len(windows), step_ns=span, computing_ns=busy, communication_ns=communication,
        exposed_ns=either - busy, free_ns=span - either, bubble_ns=int(known.sum()) if len(known) else None,
        is_exported=False,
    )  # fmt: skip


def split_of(trace: Trace) -> Split | None:
    """The split from the events where the kernels are there, else the exporter's."""
    measured = measured_split(trace)
    if measured is not None and measured.computing_ns:
        return measured
    return exported_split(trace) or measured


@dataclass(frozen=True, kw_only=True)
class PeerWait:
    """Waiting of this rank for one peer, all steps together."""

    peer: int | None
    """Global rank; None when the group's members are not known."""
    local: int
    """Rank inside the group."""
    group: str | None
    label: Words
    tasks: int
    union_ns: int
    """Length of the union of the waits over planes."""
    waits: IntervalSet
    """Union of the waits."""
    exposed_ns: int
    """The part of the union in which nothing computed."""
    longest_start_ns: int
    longest_ns: int
    longest_plane: int | None
    longest_call: str
    late_calls: int
    """Calls that hold a notable part of the waiting for the peer."""
    calls: int
    """Calls in which the peer was waited for at all."""
    link_bytes_per_s: float | None
    """Rate of this rank's own transfers to the peer."""


def peer_waits(calls: Calls, mask: Bools | None = None) -> tuple[PeerWait, ...]:
    """Waiting per peer as a union over planes, the longest exposed first.

    Args:
        calls: the calls of the rank.
        mask: the calls to look at; all when None.

    Reads:
        comm_tasks: kind, comm_op, start_ns, dur_ns, plane, src, dst, size_bytes.
    """
    tasks = calls.trace[COMM_TASKS]
    call = call_of(calls.rows, len(calls.trace[COMM_OPS]), tasks)
    starts, ends, peers = tasks.ints("start_ns"), tasks.ends_ns(), tasks.ints("dst")
    usable = (call >= 0) & (starts != NULL) & (ends != NULL) & (peers != tasks.ints("src"))
    usable &= (peers >= 0) & (peers < _PAIR)
    if mask is not None and len(mask):
        usable &= mask[np.clip(call, 0, None)]
    waits = np.flatnonzero(usable & is_wait(tasks))
    if not len(waits):
        return ()
    groups = calls.table.text("group")
    members = group_members(calls.trace)
    # One key per peer: the global rank where the group is known, else the rank inside that group.
    group_of = np.where(call < 0, -1, groups.codes[np.clip(call, 0, None)]).astype(np.int64)
    owner = group_of[waits]
    keys = owner * _PAIR + peers[waits]
    for code in np.unique(owner).tolist():
        known = members.get(None if code < 0 else groups.values[code])
        if known is not None:
            inside = (owner == code) & (peers[waits] < len(known))
            keys[inside] = _GLOBAL * _PAIR + np.asarray(known, np.int64)[peers[waits][inside]]
    rates = _link_rates(tasks, group_of, usable)
    names, planes = calls.table.text("name"), tasks.ints("plane")
    found = []
    for key, places in grouped(keys):
        rows = waits[places]
        union = intervals.merged(starts[rows], ends[rows])
        hidden = int(intervals.covered(calls.busy, union.starts, union.ends).sum())
        longest = rows[int(np.argmax(ends[rows] - starts[rows]))]
        per_call = np.bincount(call[rows], weights=(ends - starts)[rows], minlength=len(calls))
        code, rank = divmod(key, _PAIR)
        local = int(peers[longest])
        group = groups[int(call[longest])]
        plane = int(planes[longest])
        found.append(
            PeerWait(
                peer=rank if code == _GLOBAL else None, local=local, group=group,
                label=rank_words(rank) if code == _GLOBAL else _member_words(local, group),
                tasks=len(rows), union_ns=intervals.total(union), waits=union,
                exposed_ns=intervals.total(union) - hidden, longest_start_ns=int(starts[longest]),
                longest_ns=int(ends[longest] - starts[longest]), longest_plane=None if plane == NULL else plane,
                longest_call=names[int(call[longest])] or "", calls=len(np.unique(call[rows])),
                late_calls=int((per_call >= LATE_CALL_RATIO * max(1.0, per_call.sum())).sum()),
                link_bytes_per_s=rates.get((int(group_of[longest]), local)),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda wait: (-wait.exposed_ns, -wait.union_ns, wait.local)))


def grouped(keys: Ints) -> list[tuple[int, Ints]]:
    """Each distinct key with the places that hold it, in ascending order; one sort for all."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    heads = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(keys) else np.empty(0, np.int64)
    return [(int(ordered[head]), places) for head, places in zip(heads, np.split(order, heads[1:]), strict=False)]


def group_members(trace: Trace) -> dict[str | None, tuple[int, ...]]:
    """Global ranks of the groups of a trace's calls, in group order; groups whose members are unknown are left out.

    A group that no metadata name is taken for the whole job when its size is the world size, or, where the world
    size is unknown too, when it is the only group and this rank's place in it is its global rank.
    """
    table, tasks = trace[COMM_OPS], trace[COMM_TASKS]
    groups, sizes = table.text("group"), table.ints("group_size")
    named = {name: g.ranks for g in trace.meta.groups if g.ranks for name in (g.name, g.hash_id) if name is not None}
    stated = {name: g.size for g in trace.meta.groups if g.size for name in (g.name, g.hash_id) if name is not None}
    owner, places = tasks.ints("comm_op"), np.stack((tasks.ints("src"), tasks.ints("dst")))
    known_owner = (owner >= 0) & (owner < len(table))
    codes = np.unique(groups.codes)
    members: dict[str | None, tuple[int, ...]] = {}
    for code in codes.tolist():
        name = None if code < 0 else groups.values[code]
        if name in named:
            members[name] = named[name]
            continue
        own = known_owner & (groups.codes[np.where(known_owner, owner, 0)] == code) if len(table) else known_owner
        seen = places[:, own]
        largest = int(seen.max()) if seen.size and seen.max() != NULL else -1
        rows = sizes[groups.codes == code]
        size = stated.get(name or "") or (int(rows.max()) if len(rows) and rows.max() != NULL else None) or largest + 1
        if trace.meta.world_size is not None:
            if size == trace.meta.world_size:
                members[name] = tuple(range(size))
        elif len(codes) == 1 and seen.size and trace.meta.rank is not None:
            sources = seen[0][seen[0] != NULL]
            if len(sources) and bool((sources == trace.meta.rank).all()):
                members[name] = tuple(range(size))
    return members


def rank_words(rank: int) -> Words:
    """How a text names a rank."""
    return Words(f"rank {rank}", f"Rank {rank}")


def ranks_words(ranks: tuple[int, ...] | list[int]) -> Words:
    """How a text names several ranks: `ranks 0-1, 4`."""
    parts: list[str] = []
    ordered = sorted(ranks)
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            first, last = ordered[start], ordered[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = i
    text = ", ".join(parts)
    return Words(f"rank {text}" if len(ordered) == 1 else f"ranks {text}", f"Rank {text}")


def _member_words(local: int, group: str | None) -> Words:
    # Communicator names of old exports hold addresses; the report must not print them.
    name = group if group is not None and len(group) <= 32 and "%" not in group else None
    return Words(
        f"rank {local} of group {name}" if name else f"rank {local} of its group",
        f"通信域 {name} 内的 Rank {local}" if name else f"通信域内的 Rank {local}",
    )


def has_subtasks(trace: Trace) -> bool:
    """Whether the sub-tasks tell waiting from moving; at Level0 a db holds them without their kind."""
    tasks = trace[COMM_TASKS]
    return bool(is_wait(tasks).any() or is_move(tasks).any())


def is_wait(tasks: Table) -> Bools:
    """Sub-tasks that wait for a peer."""
    return tasks.text("kind").flags(lambda kind: "wait" in kind.casefold()) & ~completes_rdma(tasks)


def is_move(tasks: Table) -> Bools:
    """Sub-tasks that move data."""
    moves = ~tasks.text("kind").flags(lambda kind: _NOTIFY in kind.casefold() or "wait" in kind.casefold())
    return (moves & (tasks.ints("size_bytes") > 0)) | completes_rdma(tasks)


def call_of(rows: Ints, total: int, tasks: Table) -> Ints:
    """Index into `rows` of the call of each sub-task, -1 for calls outside of the steps."""
    place = np.full(total + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    owner = tasks.ints("comm_op")
    valid = (owner >= 0) & (owner < total)
    return place[np.where(valid, owner, total)]


def _from_tasks(trace: Trace, rows: Ints, busy: IntervalSet) -> tuple[Ints, Ints, Ints]:
    """Waiting, exposed waiting and data movement per call; unions per call in one pass over all calls."""
    table, tasks = trace[COMM_OPS], trace[COMM_TASKS]
    call = call_of(rows, len(table), tasks)
    starts, ends = tasks.ints("start_ns"), tasks.ends_ns()
    usable = (call >= 0) & (starts != NULL) & (ends != NULL)
    has_tasks = np.zeros(len(rows), bool)
    has_tasks[call[usable]] = True
    if not usable.any():
        unknown = np.full(len(rows), NULL, np.int64)
        return unknown, unknown, unknown
    # Give each call its own stretch of a common axis, so that one union serves all calls without joining them.
    origin = table.ints("start_ns")[rows]
    offset_low = int((starts[usable] - origin[call[usable]]).min())
    stride = int((ends[usable] - origin[call[usable]]).max()) - offset_low + 1
    base = np.arange(len(rows), dtype=np.int64) * stride - offset_low - origin

    def stretch(mask: Bools) -> IntervalSet:
        picked = np.flatnonzero(usable & mask)
        shift = base[call[picked]]
        return intervals.merged(starts[picked] + shift, ends[picked] + shift)

    moves = stretch(is_move(tasks))
    waits = intervals.difference(stretch(is_wait(tasks)), moves)

    def per_call(pieces: IntervalSet) -> tuple[Ints, Ints]:
        owner_of = pieces.starts // stride
        length = pieces.ends - pieces.starts
        hidden = intervals.covered(busy, pieces.starts - base[owner_of], pieces.ends - base[owner_of])
        total, exposed = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        np.add.at(total, owner_of, length)
        np.add.at(exposed, owner_of, length - hidden)
        return np.where(has_tasks, total, NULL), np.where(has_tasks, exposed, NULL)

    waiting, waiting_exposed = per_call(waits)
    return waiting, waiting_exposed, per_call(moves)[0]


def _estimated(calls: Table, duration: Ints, exposed: Ints, need: Ints) -> tuple[Ints, Ints, Ints]:
    """Waiting as duration less the time that the transfers took; the sum over links is at least the wall time."""
    exporter = calls.ints("wait_ns")
    transit = calls.ints("transit_ns")
    # Newer exports write a transit of 0 for calls that moved data: the master plane has none.
    transit = np.where((transit == 0) & (need != 0), NULL, transit)
    transfer = np.where(need != NULL, np.minimum(need, duration), transit)
    rest = np.where(need != NULL, duration - np.minimum(np.where(need == NULL, 0, need), duration), NULL)
    waiting = np.maximum(rest, np.minimum(exporter, duration))
    beyond = np.where(waiting == NULL, 0, duration - waiting)
    return waiting, np.where(waiting == NULL, NULL, np.maximum(exposed - beyond, 0)), transfer


def _transfer_need(trace: Trace, calls: Table) -> Ints:
    """Time of the transfers of each call, summed over links; `NULL` for calls without a row in comm_transfers."""
    transfers = trace[COMM_TRANSFERS]
    if not len(transfers) or not len(calls):
        return np.full(len(calls), NULL, np.int64)
    ours, theirs = _call_keys(calls, transfers)
    keys, index = np.unique(theirs, return_inverse=True)
    times = transfers.ints("time_ns")
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, index.reshape(-1), np.where(times == NULL, 0, times))
    place = np.clip(np.searchsorted(keys, ours), 0, len(keys) - 1)
    return np.where(keys[place] == ours, sums[place], NULL)


def _call_keys(calls: Table, figures: Table) -> tuple[Ints, Ints]:
    """Equal numbers for a call and the rows of an exporter's table that are about it: by name, and step where known."""
    both = Text.concat((calls.text("name"), figures.text("name"))).codes.astype(np.int64)
    ours, theirs = both[: len(calls)], both[len(calls) :]
    if figures.has("step_id") and calls.has("step_id"):
        steps = np.concatenate((calls.ints("step_id"), figures.ints("step_id")))
        number = np.unique(steps, return_inverse=True)[1].reshape(-1)
        width = int(number.max()) + 1
        ours, theirs = ours * width + number[: len(calls)], theirs * width + number[len(calls) :]
    return ours, theirs


def call_of_rows(calls: Table, figures: Table) -> Ints:
    """Row of the call that each row of an exporter's table is about, -1 where there is none.

    Args:
        calls: rows of comm_ops.
        figures: comm_transfers or comm_packets.
    """
    if not len(calls) or not len(figures):
        return np.full(len(figures), -1, np.int64)
    ours, theirs = _call_keys(calls, figures)
    order = np.argsort(ours, kind="stable")
    place = np.clip(np.searchsorted(ours[order], theirs), 0, len(order) - 1)
    return np.where(ours[order][place] == theirs, order[place], -1).astype(np.int64)


def _link_rates(tasks: Table, owner: Ints, usable: Bools) -> dict[tuple[int, int], float]:
    """Bytes per second of this rank's transfers by group (code in `owner`) and peer."""
    rows = np.flatnonzero(usable & is_move(tasks))
    rates = {}
    for key, places in grouped(owner[rows] * _PAIR + tasks.ints("dst")[rows]):
        size = int(np.maximum(tasks.ints("size_bytes")[rows[places]], 0).sum())  # waits for RDMA have none
        time = int(tasks.ints("dur_ns")[rows[places]].sum())
        if time > 0:
            rates[divmod(key, _PAIR)] = size / time * 1e9
    return rates


def no_waits(trace: Trace) -> Words:
    """Why waiting inside collectives cannot be told, and what would collect it."""
    if trace.meta.device.kind == "npu":
        return Words(
            f"the trace holds no sub-tasks of its collectives; collect with {_LEVEL1}",
            f"数据中没有集合通信的子任务；请以 {_LEVEL1} 采集",
        )
    return Words(
        "a collective's kernel does not tell its waiting from its transfer; profile all ranks and analyse them "
        "together",
        "集合通信的 Kernel 不区分等待与传输；请采集所有卡并一起分析",
    )
