"""A suite on several machines: each runs the same command, and the processes of a benchmark are shared among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ascend_perf.bench.launch import Ranks, Request
from ascend_perf.bench.suite_file import Cell, Suite
from ascend_perf.errors import UsageError

PORTS: Final = 100
"""Ports that runs on several machines use in turns. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """This machine among those that measure a suite together."""

    nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    """Of the first `PORTS` runs; then they begin anew."""


def spread(suite: Suite, place: Place) -> Suite:
    """The suite with its processes on several machines, as many on each; `world_size` is that of the whole job.

    Raises:
        UsageError: a benchmark cannot be spread.
    """
    if place.nodes == 1:
        return suite
    return replace(suite, groups=tuple(tuple(_spread(cell, place) for cell in group) for group in suite.groups))


def _spread(cell: Cell, place: Place) -> Cell:
    if not isinstance(cell.body, Request):
        raise UsageError(
            f"{cell.name} is a command or a server: a suite on several machines measures workloads",
            hint="measure it in a suite of its own; a command may start a launcher on all machines itself",
        )
    if cell.world_size % place.nodes:
        raise UsageError(
            f"{cell.name} has {cell.world_size} processes, which --nnodes {place.nodes} machines cannot share alike",
            hint="world_size is that of the whole job: a multiple of the number of machines",
        )
    ranks = Ranks(
        per_node=cell.world_size // place.nodes, nodes=place.nodes, node_rank=place.node_rank,
        master_addr=place.master_addr, master_port=place.master_port,
    )  # fmt: skip
    return replace(cell, body=replace(cell.body, ranks=ranks))


def at_run(request: Request, index: int) -> Request:
    """The request of run `index`: on several machines each has a port of its own, so that machines which are at
    different runs (one of them was begun anew) wait for each other in vain instead of computing together."""
    ranks = request.ranks
    if ranks.nodes == 1:
        return request
    return replace(request, ranks=replace(ranks, master_port=ranks.master_port + index % PORTS))
