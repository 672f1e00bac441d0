"""Blocks of the allocator from Kineto's `[memory]` events: an address is taken, and given back.

Source: format reference, section 2.9; args `Addr` and `Bytes` (negative when given back) of PyTorch 1.13 and later.
"""

from __future__ import annotations

import numpy as np

from ascend_perf import intervals
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text

NOT_AN_OP = "not within an operator"


def memory_blocks(time: Ints, address: Ints, size: Ints, thread: Ints, rows: Bools, host_ops: Table) -> Table:
    """The blocks of one allocator, in order of their allocation; the unknown ones (before the capture) first.

    A block ends with the next event of its address: the release, or an allocation whose release before was lost.

    Args:
        time: ns of each event, shape (n,).
        address: of the memory.
        size: bytes, negative for a release.
        thread: that allocates.
        rows: events that count.
        host_ops: operators: the innermost one around an allocation (or around a release without one) names the block.
    """
    used = np.flatnonzero(rows & (time != NULL) & (address != NULL) & (size != NULL) & (size != 0))
    if not len(used):
        return Table.empty(t.MEMORY_BLOCKS)
    used = used[np.lexsort((time[used], address[used]))]
    at, begins = time[used], size[used] > 0
    same = np.append(address[used][1:] == address[used][:-1], False)
    ends_at = np.where(same, np.append(at[1:], NULL), NULL)
    # A release stands for a block of its own only where no allocation of the capture came before it.
    alone = ~begins
    alone[1:] &= ~(same[:-1] & begins[:-1])
    shown = np.flatnonzero(begins | alone)
    own = used[shown]
    name = _names(time[own], thread[own], host_ops)
    taken = begins[shown]
    return Table(
        t.MEMORY_BLOCKS,
        {
            "name": name,
            "size_bytes": np.abs(size[own]),
            "alloc_ns": np.where(taken, at[shown], NULL),
            "free_ns": np.where(taken, ends_at[shown], at[shown]),
            "thread": np.where(taken, thread[own], NULL),
        },
    ).sorted_by("alloc_ns")


def _names(at: Ints, thread: Ints, host_ops: Table) -> Text:
    """Innermost operator around each event on its thread."""
    found = np.full(len(at), -1, np.int64)
    starts, ends, threads = host_ops.ints("start_ns"), host_ops.ends_ns(), host_ops.ints("thread")
    usable = (starts != NULL) & (ends != NULL)
    for one in np.unique(thread[thread != NULL]).tolist():
        ops, mine = np.flatnonzero(usable & (threads == one)), np.flatnonzero(thread == one)
        inner = intervals.enclosing(starts[ops], ends[ops], at[mine])
        found[mine[inner >= 0]] = ops[inner[inner >= 0]]
    names = host_ops.text("name")
    values = [*names.values, NOT_AN_OP]
    codes = np.where(found >= 0, names.codes[np.clip(found, 0, None)] if len(names) else -1, -1)
    return Text(np.where(codes < 0, len(values) - 1, codes).astype(np.int32), values).compact()
