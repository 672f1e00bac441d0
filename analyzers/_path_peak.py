"""The shortest time that the data of a collective can take over the links of its group."""

from __future__ import annotations

import numpy as np

from ascend_perf.analyzers._collective_rates import bus_factor, link_peak, transport_of
from ascend_perf.analyzers._communication import group_members
from ascend_perf.model.table import NULL, Ints
from ascend_perf.model.tables import COMM_OPS, COMM_TRANSFERS
from ascend_perf.model.trace import Trace


def ideal_transfer_ns(trace: Trace, rows: Ints) -> Ints:
    """For some rows of comm_ops: bytes over the link / peak of the link, `NULL` where one of them is not known.

    Reads:
        comm_transfers: size_bytes; where it has no row of the call, comm_ops: size_bytes times the op's bus factor.
    """
    calls, transfers = trace[COMM_OPS], trace[COMM_TRANSFERS]
    ideal = np.full(len(rows), NULL, np.int64)
    transport = transport_of(trace)
    if not len(rows) or transport is None:
        return ideal
    sent: dict[tuple[str | None, int], int] = {}
    for name, step, size in zip(
        transfers.text("name"), transfers.ints("step_id").tolist(), transfers.ints("size_bytes").tolist(), strict=True
    ):
        sent[name, step] = sent.get((name, step), 0) + max(0, size)
    members = group_members(trace)
    names, ops, groups = calls.text("name"), calls.text("op"), calls.text("group")
    sizes, steps, stated = (calls.ints(column) for column in ("size_bytes", "step_id", "group_size"))
    peaks: dict[int, float | None] = {}
    rates: dict[tuple[str | None, str | None, int], tuple[float | None, float | None]] = {}
    for at, row in enumerate(rows.tolist()):
        key = groups[row], ops[row], int(stated[row])
        if key not in rates:
            ranks = len(members.get(key[0], ())) or max(0, key[2])
            if ranks not in peaks:
                found = link_peak(trace, transport, ranks)
                peaks[ranks] = found[0] if found else None
            rates[key] = peaks[ranks], bus_factor(key[1] or "", ranks)
        peak, factor = rates[key]
        size = sent.get((names[row], int(steps[row])), sent.get((names[row], NULL)))
        if size is None and sizes[row] != NULL and factor is not None:
            size = round(int(sizes[row]) * factor)
        if peak and size:
            ideal[at] = round(size / peak * 1e9)
    return ideal
