"""Transfers over RDMA: HCCL posts the data with RDMASend, which returns at once, and waits for it with Notify_Wait."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Bools, Table

MIN_PAYLOAD_BYTES: Final = 64
"""An RDMASend of less is a notification (4 or 8 bytes). Status: assumed."""

_RDMA: Final = frozenset({"RDMA", "ROCE", "STANDARD_ROCE"})


def completes_rdma(tasks: Table) -> Bools:
    """Waits in which posted data is on its way: since the last wait of the same plane and call, data was sent.

    The wait before the data (a handshake) tells that the peer is late; the one after it lasts as long as the transfer.

    Reads:
        comm_tasks: comm_op, plane, start_ns, kind, transport, link, size_bytes.

    Source:
        Order of RDMA tasks in HCCL: [RDMASend, Notify_Wait,] RDMASend (data), RDMASend (notify), Notify_Wait.
    """
    result = np.zeros(len(tasks), bool)
    remote = tasks.text("transport").isin(_RDMA) | tasks.text("link").isin(_RDMA)
    kinds = tasks.text("kind")
    sends = remote & kinds.flags(lambda kind: "rdma" in kind.casefold())
    payload = sends & (tasks.ints("size_bytes") >= MIN_PAYLOAD_BYTES)
    if not payload.any():
        return result
    waits = remote & kinds.flags(lambda kind: "wait" in kind.casefold())
    rows = np.flatnonzero((payload | waits) & (tasks.ints("start_ns") != NULL))
    call, plane = tasks.ints("comm_op")[rows], tasks.ints("plane")[rows]
    order = np.lexsort((tasks.ints("start_ns")[rows], plane, call))
    rows, call, plane = rows[order], call[order], plane[order]
    sent = np.cumsum(payload[rows])
    first = np.append(True, (call[1:] != call[:-1]) | (plane[1:] != plane[:-1]))
    # Sends seen up to the last wait (or the start of the plane); counts only grow, so a running maximum carries them.
    seen = np.where(first, sent - payload[rows], 0)
    before = np.maximum.accumulate(np.maximum(seen, np.append(0, np.where(waits[rows], sent, 0)[:-1])))
    result[rows] = waits[rows] & (sent > before)
    return result
