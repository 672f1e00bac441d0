"""Device tasks and host calls of a capture as CANN would name and number them.

Real are: which operators were launched, when, by which thread, onto which stream, and when the device ran them in
virtual time. Modelled are the kernels behind a call (kernels.yaml), the links behind a collective and the length of
a launch on the host, of which the record has the start alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Final

import numpy as np

from ascend_perf.collectors.virtual_npu._export_capture import Call, Capture, Collective, Columns, CommGroup
from ascend_perf.collectors.virtual_npu._export_links import Transfer, operator_name, transfers
from ascend_perf.collectors.virtual_npu.kernels import Kernel, KernelTable, Tensor, kernel_table
from ascend_perf.collectors.virtual_npu.record import COPY_KINDS
from ascend_perf.model.table import Ints
from ascend_perf.parsers._ascend_comm import group_hash

LAUNCH_NS: Final = 20
"""Length of a launch on the host, less where the same thread launches again sooner. Status: assumed. On the virtual
device a launch returns at once; a longer one would end after the entry of the task queue that holds it (measured:
110 ns and more after its start), and torch_npu would not find its operator."""

MAX_PLANES: Final = 8
"""Lines of a communicator's tasks beside the waiting one. Real profiles of eight cards have seven."""

PEER_BYTES_PER_S: Final = {"HCCS": 28e9, "RDMA": 25e9}
"""Rate to one other rank, by which the rounds of a collective share its time: HCCS of an A2 server in one direction
over seven peers, one port of 200 Gbit/s. Status: assumed; the time of the whole is that of the record."""

WAIT_NAMES: Final = (
    "aclrtSynchronizeStreamWithTimeout", "aclrtSynchronizeDevice", "aclrtSynchronizeEvent", "aclrtQueryEventStatus",
)  # fmt: skip
"""Names of the host's calls that wait, in the order of WAIT_KINDS."""


def us(ns: int) -> str:
    """Nanoseconds as the exporter writes microseconds: three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass(frozen=True, kw_only=True)
class KernelKind:
    """All that the launches of one kernel of one distinct call have in common."""

    kernel: Kernel
    call: Call
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    begins: float
    """Share of the call's time before it, and up to its end: 0 and 1 for the only kernel of a call."""
    ends: float
    blocks: int
    mix_blocks: int

    @property
    def share(self) -> float:
        """Its part of the time of the call."""
        return self.ends - self.begins


@dataclass(frozen=True, kw_only=True)
class CommOp:
    """One collective of the capture."""

    name: str
    """`hcom_allReduce__586_0_1`."""
    op_type: str
    collective: Collective
    group: CommGroup
    hash_id: str
    stream: int
    connection: int
    arrive_ns: int
    start_ns: int
    end_ns: int
    tasks: tuple[CommTask, ...]

    @property
    def algorithm(self) -> str:
        """As profiles name it."""
        return "MESH-NHR" if any(one.transfer and one.transfer.transport == "RDMA" for one in self.tasks) else "MESH"


@dataclass(frozen=True, kw_only=True)
class CommTask:
    """One piece of a collective: the wait for the others, or a transfer."""

    plane: int
    start_ns: int
    end_ns: int
    transfer: Transfer | None

    @property
    def kind(self) -> str:
        """As profiles name it."""
        if self.transfer is None:
            return "Notify_Wait"
        if self.transfer.transport == "RDMA":
            return "RDMASend"
        return "Reduce_Inline" if self.transfer.is_reduced else "Memcpy"


@dataclass(frozen=True, kw_only=True)
class HostCalls:
    """Calls of CANN on the host in the order of their start."""

    names: tuple[str, ...]
    layers: tuple[str, ...]
    columns: Columns = field(repr=False)
    """name layer (indexes) start end thread connection; connection is unique."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """All that CANN would have recorded."""

    capture: Capture
    kinds: tuple[KernelKind, ...]
    kernels: Columns = field(repr=False)
    """kind start end stream task connection host thread, in the order of start."""
    comm: tuple[CommOp, ...] = field(repr=False)
    copies: Columns = field(repr=False)
    """kind bytes start end stream task connection host thread, in the order of start."""
    calls: HostCalls = field(repr=False)


def tasks_of(capture: Capture, *, cube_cores: int, vector_cores: int, table: KernelTable | None = None) -> Tasks:
    """The tasks of a capture.

    Args:
        capture: see `capture_of`.
        cube_cores: of the chip; they bound the blocks of a kernel.
        vector_cores: of the chip.
        table: kernels of each operator; the product's own when None.
    """
    table = table or kernel_table()
    kinds, first, counts = _kinds(capture.calls, table, cube_cores, vector_cores)
    kernels = _kernels(capture.launches, kinds, first, counts)
    launches, comm, copies, waits = capture.launches, capture.collective_launches, capture.copies, capture.waits
    sizes = [len(kernels["start"]), len(comm["host"]), len(copies["host"]), len(launches["host"]), len(waits["begin"])]
    # Every call of the host has a number of its own; tasks carry that of the call that launched them.
    kernel_ids, comm_ids, copy_ids, launch_ids, wait_ids = np.split(np.arange(1, sum(sizes) + 1), np.cumsum(sizes)[:-1])
    kernels["connection"] = kernel_ids
    order = np.argsort(kernels["start"], kind="stable")
    kernels = {name: values[order] for name, values in kernels.items()}
    copies = {**copies, "connection": copy_ids, "stream": _copy_streams(capture)}
    order = np.argsort(copies["start"], kind="stable")
    copies = {name: values[order] for name, values in copies.items()}
    kernels["task"], copies["task"] = _task_numbers(kernels, copies)
    return Tasks(
        capture=capture, kinds=kinds, kernels=kernels, comm=_comm_ops(capture, comm_ids), copies=copies,
        calls=_host_calls(capture, kernels, comm_ids, copies, launch_ids, wait_ids),
    )  # fmt: skip


# ---- kernels -----------------------------------------------------------------------------------------------------


def _kinds(
    calls: Mapping[int, Call], table: KernelTable, cube_cores: int, vector_cores: int
) -> tuple[tuple[KernelKind, ...], dict[int, int], dict[int, int]]:
    """The kernels of each distinct call, where they begin in the list, and how many they are."""
    kinds: list[KernelKind] = []
    first: dict[int, int] = {}
    counts: dict[int, int] = {}
    for number, call in calls.items():
        expansion = table.expand(call.name, call.tensors, has_cube=call.cube_ns > 0, has_vector=call.vector_ns > 0)
        first[number], counts[number] = len(kinds), len(expansion.kernels)
        largest = max((tensor.nbytes for tensor in call.tensors), default=0)
        elements = max((tensor.elements for tensor in call.tensors), default=1)
        vector = min(vector_cores, max(1, -(-largest // table.blocks.vector_bytes)))
        cube = min(cube_cores, max(1, -(-elements // table.blocks.cube_elements)))
        inputs, outputs = table.operands(call.name, call.tensors, call.last_list)
        edges = [*accumulate((kernel.share for kernel in expansion.kernels), initial=0.0)]
        for place, kernel in enumerate(expansion.kernels):
            blocks = {"AI_CORE": (cube, 0), "MIX_AIC": (cube, 2 * cube), "AI_CPU": (1, 0), "DSA_SQE": (1, 0)}.get(
                kernel.core, (vector, 0)
            )
            kinds.append(
                KernelKind(
                    kernel=kernel, call=call, inputs=inputs, outputs=outputs, begins=edges[place] / edges[-1],
                    ends=edges[place + 1] / edges[-1], blocks=blocks[0], mix_blocks=blocks[1],
                )
            )  # fmt: skip
    return tuple(kinds), first, counts


def _kernels(launches: Columns, kinds: Sequence[KernelKind], first: dict[int, int], counts: dict[int, int]) -> Columns:
    """One row per kernel: the time of a call divided by the shares, to the nanosecond, without a gap."""
    numbers, of = np.unique(launches["def"], return_inverse=True)
    count = np.array([counts[number] for number in numbers.tolist()], np.int64)[of]
    begin = np.array([first[number] for number in numbers.tolist()], np.int64)[of]
    row = np.repeat(np.arange(len(of)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    kind = begin[row] + place
    edges = np.array([(one.begins, one.ends) for one in kinds]).reshape(-1, 2)
    dur = (launches["end"] - launches["start"])[row]
    start = launches["start"][row]
    return {
        "kind": kind,
        "start": start + np.floor(dur * edges[kind, 0]).astype(np.int64),
        "end": np.where(edges[kind, 1] >= 1.0, start + dur, start + np.floor(dur * edges[kind, 1]).astype(np.int64)),
        "stream": launches["stream"][row],
        "host": launches["host"][row],
        "thread": launches["thread"][row],
    }


def _copy_streams(capture: Capture) -> Ints:
    """Stream of each copy; those of calls without a stream get one of their own, behind the others."""
    streams = np.concatenate([capture.launches["stream"], capture.collective_launches["stream"], [0]])
    stream = capture.copies["stream"]
    own = max(int(streams.max()), int(stream.max(initial=0))) + 1
    return np.where(stream < 0, own, stream).astype(np.int64)


def _task_numbers(kernels: Columns, copies: Columns) -> tuple[Ints, Ints]:
    """Number of each task on its stream, in the order of start."""
    stream = np.concatenate((kernels["stream"], copies["stream"]))
    start = np.concatenate((kernels["start"], copies["start"]))
    order = np.lexsort((start, stream))
    ordered = stream[order]
    first = np.searchsorted(ordered, ordered)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - first
    return number[: len(kernels["stream"])], number[len(kernels["stream"]) :]


# ---- collectives -------------------------------------------------------------------------------------------------


def _comm_ops(capture: Capture, connections: Ints) -> tuple[CommOp, ...]:
    rows = capture.collective_launches
    pieces: dict[tuple[int, int], tuple[Transfer, ...]] = {}
    found = []
    order = np.argsort(rows["arrive"], kind="stable").tolist()
    for row in order:
        number, comm = int(rows["def"][row]), int(rows["comm"][row])
        collective, group = capture.collectives[number], capture.groups[comm]
        if (number, comm) not in pieces:
            pieces[number, comm] = transfers(collective, group, capture.ranks_per_node)
        hash_id = group_hash(group.name)
        op_type = operator_name(collective)
        own = pieces[number, comm]
        arrive, start, end = (int(rows[name][row]) for name in ("arrive", "start", "end"))
        found.append(
            CommOp(
                name=f"{op_type}_{hash_id[-3:]}_{int(rows['index'][row])}_1", op_type=op_type, collective=collective,
                group=group, hash_id=hash_id, stream=int(rows["stream"][row]), connection=int(connections[row]),
                arrive_ns=arrive, start_ns=start, end_ns=end, tasks=_comm_tasks(arrive, start, end, own),
            )
        )  # fmt: skip
    return tuple(found)


def _comm_tasks(arrive: int, start: int, end: int, pieces: Sequence[Transfer]) -> tuple[CommTask, ...]:
    """The wait on plane 0, then rounds of transfers side by side on the other planes.

    A round has one kind of link, and what is reduced comes before what is gathered; each takes its part of the time by
    the largest piece and the rate of its link.
    """
    tasks = [CommTask(plane=0, start_ns=arrive, end_ns=start, transfer=None)] if start > arrive else []
    rounds: list[Sequence[Transfer]] = []
    for _, alike in groupby(pieces, key=lambda piece: (piece.is_reduced, piece.transport)):
        together = list(alike)
        rounds += [together[at : at + MAX_PLANES] for at in range(0, len(together), MAX_PLANES)]
    weights = [max(piece.nbytes / PEER_BYTES_PER_S[piece.transport] for piece in one) for one in rounds]
    shares = [*accumulate(weights, initial=0.0)]
    # The small addend keeps shares that are whole nanoseconds from losing one to the rounding of floats.
    edges = [*(start + int((end - start) * share / shares[-1] + 1e-6) for share in shares[:-1]), end]
    for number, side_by_side in enumerate(rounds):
        tasks += [
            CommTask(plane=1 + place, start_ns=edges[number], end_ns=edges[number + 1], transfer=piece)
            for place, piece in enumerate(side_by_side)
        ]
    return tuple(tasks)


# ---- host --------------------------------------------------------------------------------------------------------


def _host_calls(
    capture: Capture, kernels: Columns, comm_ids: Ints, copies: Columns, launch_ids: Ints, wait_ids: Ints
) -> HostCalls:
    launches, comm, waits = capture.launches, capture.collective_launches, capture.waits
    names: dict[str, int] = {}

    def number(text: str) -> int:
        return names.setdefault(text, len(names))

    launch_names = {key: number(call.name) for key, call in capture.calls.items()}
    comm_names = {key: number(operator_name(one)) for key, one in capture.collectives.items()}
    blocking = copies["blocking"] != 0
    is_set = copies["kind"] == COPY_KINDS.index("memset")
    copy_names = np.where(
        is_set, np.where(blocking, number("aclrtMemset"), number("aclrtMemsetAsync")),
        np.where(blocking, number("aclrtMemcpy"), number("aclrtMemcpyAsync")),
    )  # fmt: skip
    launch = number("launch")
    parts = (
        # what, layer, start, end (-1: short), thread, connection
        (np.full(len(kernels["host"]), launch), 1, kernels["host"], None, kernels["thread"], kernels["connection"]),
        (np.full(len(comm_ids), launch), 1, comm["host"], None, comm["thread"], comm_ids),
        (copy_names, 0, copies["host"], np.where(blocking, copies["end"], -1), copies["thread"], copies["connection"]),
        (_named(launches["def"], launch_names), 0, launches["host"], None, launches["thread"], launch_ids),
        (
            np.array([number(name) for name in WAIT_NAMES], np.int64)[waits["kind"]],
            0, waits["begin"], waits["end"], waits["thread"], wait_ids,
        ),
        # The call of HCCL itself has no task: its number is made from that of its launch.
        (_named(comm["def"], comm_names), 2, comm["host"], None, comm["thread"], -comm_ids),
    )  # fmt: skip
    name, layer, start, end, thread, connection = (
        np.concatenate(column).astype(np.int64)
        for column in zip(
            *((what, np.full(len(begin), kind), begin, np.full(len(begin), -1) if stop is None else stop, who, ids)
              for what, kind, begin, stop, who, ids in parts),
            strict=True,
        )
    )  # fmt: skip
    last = int(connection.max(initial=0))
    connection = np.where(connection < 0, last - connection, connection)
    order = np.lexsort((-layer, start))
    start, end, thread = start[order], end[order], thread[order]
    end = np.where(end < 0, start + np.minimum(LAUNCH_NS, _until_next(start, thread)), np.maximum(end, start))
    return HostCalls(
        names=tuple(names), layers=("acl", "node", "communication"),
        columns={
            "name": name[order], "layer": layer[order], "start": start, "end": end, "thread": thread,
            "connection": connection[order],
        },
    )  # fmt: skip


def _named(numbers: Ints, names: Mapping[int, int]) -> Ints:
    distinct, of = np.unique(numbers, return_inverse=True)
    return np.array([names[one] for one in distinct.tolist()], np.int64)[of]


def _until_next(start: Ints, thread: Ints) -> Ints:
    """Time until the same thread begins its next call at another instant."""
    result = np.full(len(start), LAUNCH_NS, np.int64)
    for who in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == who)
        own = start[mine]
        later = np.searchsorted(own, own, side="right")
        known = later < len(own)
        result[mine[known]] = own[later[known]] - own[known]
    return result
