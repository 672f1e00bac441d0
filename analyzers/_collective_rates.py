"""What collectives achieve: algorithm and bus bandwidth of the true transfer, against what the links can do."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.analyzers._collectives import Collectives
from ascend_perf.analyzers._communication_tables import BUS_FACTORS
from ascend_perf.device.specs import DeviceSpec, spec_for
from ascend_perf.model.table import NULL, Bools
from ascend_perf.model.tables import COMM_TASKS, COMM_TRANSFERS
from ascend_perf.model.trace import Trace

MESH_LINKS: Final = 7
"""Links of the full mesh of eight cards in an A2 server; a group of n ranks uses n - 1 of them.

Source: device table, hccs of ascend-910b*: "28 GB/s per peer link if seven equal links". Status: inferred.
"""
_MESH: Final = "ascend-910b"
_LINKS: Final = {"HCCS": "hccs", "RDMA": "roce", "ROCE": "roce", "PCIE": "pcie", "SIO": "sio"}
"""Transport as traces name it to the link of the device table."""


def bus_factor(op: str, ranks: int) -> float | None:
    """Bus over algorithm bandwidth for a group of this size; None for ops without one or groups of unknown size.

    Source:
        NCCL tests, hccl_test.
    """
    factor = BUS_FACTORS.get(op)
    return None if factor is None or ranks < 2 else factor * (ranks - 1) / ranks


def rates(calls: Collectives, kind: int) -> tuple[float | None, float | None, int | None]:
    """Algorithm and bus bandwidth of an op in a group (bytes/s), and its median message.

    The message is the op's; where no file tells it, what each rank sent over its links in a call is bus traffic:
    bus bandwidth = bytes sent / transfer, algorithm bandwidth = bus / factor.
    """
    mine = np.flatnonzero(calls.kind == kind)
    size, op = int(calls.size[mine[0]]), calls.op[int(mine[0])]
    factor = bus_factor(op, size) if size != NULL else None
    message = calls.per_call(calls.bytes, np.maximum)[mine]
    transfer = calls.transfer_ns[mine]
    known = (message != NULL) & (message > 0) & (transfer > 0)
    if known.any():
        rate = float(message[known].sum() / transfer[known].sum() * 1e9)
        return rate, None if factor is None else rate * factor, int(np.median(message[known]))
    sent = _sent(calls)[mine]
    known = (sent > 0) & (transfer > 0)
    if not known.any():
        return None, None, None
    bus = float(sent[known].sum() / transfer[known].sum() * 1e9)
    return None if not factor else bus / factor, bus, None


def _sent(calls: Collectives) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Most bytes that a rank sent in each collective, 0 where no file tells."""
    sent = np.zeros(len(calls.place), np.int64)
    for at, view in enumerate(calls.views):
        transfers = view.trace[COMM_TRANSFERS]
        mine = np.flatnonzero(calls.place == at)
        if not len(transfers) or not len(mine):
            continue
        sizes: dict[tuple[str | None, int], int] = {}
        for name, step, size in zip(
            transfers.text("name"), transfers.ints("step_id").tolist(), transfers.ints("size_bytes").tolist(),
            strict=True,
        ):  # fmt: skip
            sizes[name, step] = sizes.get((name, step), 0) + max(0, size)
        table = view.calls.table.select(calls.row[mine])
        keys = zip(table.text("name"), table.ints("step_id").tolist(), strict=True)
        sent[mine] = [sizes.get((name, step), sizes.get((name, NULL), 0)) for name, step in keys]
    return calls.per_call(sent, np.maximum)


def transport_of(trace: Trace) -> str | None:
    """The transport that carries most bytes between ranks, None when no file tells."""
    for spec, column in ((COMM_TRANSFERS, "transport"), (COMM_TASKS, "link")):
        table = trace[spec]
        names, sizes = table.text(column), table.ints("size_bytes")
        usable: Bools = (names.codes >= 0) & (sizes > 0) & ~names.equals("ON_CHIP")
        if usable.any():
            total = np.bincount(names.codes[usable], weights=sizes[usable], minlength=len(names.values))
            return names.values[int(np.argmax(total))]
    return None


def link_peak(trace: Trace, transport: str | None, ranks: int) -> tuple[float, DeviceSpec] | None:
    """What a rank can send at most over a transport in a group of this size (bytes/s), None when not known."""
    spec = spec_for(trace.meta.device)
    figure = spec.links_bytes_per_s.get(_LINKS.get((transport or "").upper(), "")) if spec is not None else None
    if spec is None or figure is None or not figure.value:
        return None
    value = figure.value
    is_mesh = all(part.startswith(_MESH) for part in spec.alike or (spec.id,))
    if is_mesh and (transport or "").upper() == "HCCS" and 1 < ranks <= MESH_LINKS:
        value *= (ranks - 1) / MESH_LINKS
    return value, spec
