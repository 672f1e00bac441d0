"""Which links a collective uses and what goes over each: a model, since the record holds the call alone.

Inside a node every rank talks to every other one (HCCS mesh). Between nodes a rank talks to those of its place in the
other nodes (RoCE), after and before a stage inside the node; all-to-all and point-to-point calls go straight. Sizes:

| call | to each rank of the node | to each other node |
| --- | --- | --- |
| AllReduce of b bytes | a slice of b / m, reduced, then gathered | of b / m / k, reduced, then gathered |
| AllGather, b of each rank | b * k | b |
| ReduceScatter, b of each rank | b * k, reduced | b, reduced |
| Broadcast, Reduce, Scatter of b bytes | a slice of b / m | of b / m / k |
| AlltoAll, b sent in all | b / n | b / n to each rank of it |
| Send, Recv | b to, from the peer | the same |

m ranks of the group in this node, k nodes, n ranks in all. Status: assumed; the first two columns have the form of the
tasks in a real profile of eight cards (format reference, 3.2 and 6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ascend_perf.collectors.virtual_npu._export_capture import Collective, CommGroup

Transport = Literal["HCCS", "RDMA"]

NAMES: Final = {
    "AllReduce": "allReduce", "AllGather": "allGather", "AllGatherV": "allGatherV", "ReduceScatter": "reduceScatter",
    "ReduceScatterV": "reduceScatterV", "Broadcast": "broadcast", "Reduce": "reduce", "Scatter": "scatter",
    "AlltoAll": "alltoall", "AlltoAllV": "alltoallv", "AlltoAllVC": "alltoallvc", "Send": "send", "Recv": "receive",
    "BatchSendRecv": "batchSendRecv", "Barrier": "barrier",
}  # fmt: skip
"""HCCL's function without its prefix -> name of the operator in profiles. Source: format reference, 6.1."""

SLICE_BYTES: Final = 16384
"""Slices of a message are multiples of this. Status: seen in one real profile."""

P2P: Final = frozenset({"Send", "Recv", "BatchSendRecv"})


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What goes over one link in one piece."""

    src: int
    """Ranks in the group."""
    dst: int
    transport: Transport
    nbytes: int
    is_reduced: bool
    """Added at the target (Reduce_Inline), not just copied."""


def operator_name(collective: Collective) -> str:
    """Name of the call in profiles, without its numbers: `hcom_allReduce_`."""
    return f"hcom_{NAMES.get(collective.name, collective.name[:1].lower() + collective.name[1:])}_"


def transfers(collective: Collective, group: CommGroup, ranks_per_node: int) -> tuple[Transfer, ...]:
    """The pieces that this rank moves, those inside the node first; none where the peers are not known."""
    name, size, me = collective.name, collective.nbytes, group.rank
    if size <= 0 or group.size < 2 or not 0 <= me < len(group.ranks):
        return ()
    node = [rank // ranks_per_node for rank in group.ranks]
    if name in P2P:
        return _point_to_point(collective, group, node)
    mates = [peer for peer in range(group.size) if peer != me and node[peer] == node[me]]
    others = [peer for peer in range(group.size) if node[peer] != node[me]]
    if name in ("AlltoAll", "AlltoAllV", "AlltoAllVC"):
        part = size // group.size
        return tuple(
            _transfer(me, peer, "HCCS" if node[peer] == node[me] else "RDMA", part) for peer in (*mates, *others)
        )
    in_node, nodes = len(mates) + 1, len(set(node))
    place = sum(1 for peer in mates if peer < me)
    far = [peer for peer in others if sum(1 for r in range(peer) if node[r] == node[peer]) == place]
    if name in ("AllGather", "AllGatherV", "ReduceScatter", "ReduceScatterV"):
        near, far_size = [size * nodes] * in_node, size
    else:
        near = slices(size, in_node)
        far_size = slices(near[place], nodes)[0]
    places = {peer: number for number, peer in enumerate(sorted((me, *mates)))}
    pieces: list[Transfer] = []
    for is_reduced in {"AllReduce": (True, False), "ReduceScatter": (True,), "ReduceScatterV": (True,)}.get(
        name, (False,)
    ):
        pieces += [_transfer(me, peer, "HCCS", near[places[peer]], is_reduced) for peer in mates]
        pieces += [_transfer(me, peer, "RDMA", far_size, is_reduced) for peer in far]
    return tuple(piece for piece in pieces if piece.nbytes > 0)


def slices(nbytes: int, parts: int) -> list[int]:
    """Bytes of each rank's slice of a message: whole blocks of 16 KiB, the last ones get what is left.

    Source: the tasks of an all-reduce of 16388000 bytes on eight cards, seven slices of 2064384 and one of 1937312.
    """
    step = -(-nbytes // parts // SLICE_BYTES) * SLICE_BYTES
    return [max(0, min(step, nbytes - step * number)) for number in range(parts)]


def _point_to_point(collective: Collective, group: CommGroup, node: list[int]) -> tuple[Transfer, ...]:
    me, peer = group.rank, collective.peer
    if peer is None and group.size == 2:
        peer = 1 - me
    if peer is None or not 0 <= peer < group.size or peer == me:
        return ()
    ends = (peer, me) if collective.name == "Recv" else (me, peer)
    return (_transfer(*ends, "HCCS" if node[peer] == node[me] else "RDMA", collective.nbytes),)


def _transfer(src: int, dst: int, transport: Transport, nbytes: int, is_reduced: bool = False) -> Transfer:
    return Transfer(src=src, dst=dst, transport=transport, nbytes=nbytes, is_reduced=is_reduced)
