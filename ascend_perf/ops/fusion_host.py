"""Framework operators as a sequence: one entry per operator that counts, whatever it calls inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.model.table import NULL, Bools, Ints, Table
from ascend_perf.ops.fusion_words import OTHER, Codes, host_codes, is_symbol, plain_name

_BACKWARD: Final = "autograd::engine::evaluate_function"
_COUNTED: Final = ("aten::", "npu::", "c10d::")
"""Operators of these libraries stand between others when they are no symbol; `aclnn...` and events do not."""


@dataclass(frozen=True, kw_only=True)
class HostSequence:
    """Operators of the forward in order of thread and start, and where each call of the table belongs.

    An operator of a pattern stands for all that it calls (`aten::softmax` for `aten::_softmax`); one that is no part
    of any pattern is looked through, and counts as "other" when it calls nothing further.
    """

    rows: Ints
    """Rows of host_ops, shape (n,)."""
    codes: Codes
    """Their symbols, shape (n,)."""
    thread: Ints
    """Shape (n,)."""
    top: Ints
    """For each row of host_ops the outermost symbol that holds it (or is it), -1 without."""
    node: Ints
    """For each row of host_ops the outermost call of the backward engine that holds it (or is it), -1 without."""


def host_sequence(host_ops: Table) -> HostSequence:
    """The operators of the forward; those below the backward engine are left out.

    Reads:
        host_ops: start_ns, dur_ns, name, thread.
    """
    names = host_ops.text("name")
    known = host_codes()
    code = np.array([*(known.get(plain_name(name), OTHER) for name in names.values), OTHER], np.int64)[names.codes]
    counted = names.flags(lambda name: name.startswith(_COUNTED))
    is_node = names.flags(lambda name: name.startswith(_BACKWARD))
    code[~counted] = OTHER
    symbol = is_symbol(code)
    up, order = _parents(host_ops)
    top, node = _outermost(up, symbol), _outermost(up, is_node)
    parents = up[counted & (up >= 0)]
    has_calls = np.zeros(len(host_ops), bool)
    has_calls[parents] = True
    first = symbol & (top == np.arange(len(top)))
    other = counted & (code == OTHER) & (top < 0) & ~has_calls
    kept = (first | other)[order] & (node < 0)[order]
    rows = order[kept]
    return HostSequence(rows=rows, codes=code[rows], thread=host_ops.ints("thread")[rows], top=top, node=node)


def backward_matches(host_ops: Table, sequence: HostSequence, match_of: Ints) -> Ints:
    """The match of each call below the backward engine: that of the forward operator which recorded it, -1 without.

    Both bear the same sequence number; of several forward calls with one number the last one made the node.

    Args:
        host_ops: the table.
        sequence: `host_sequence(host_ops)`.
        match_of: match of each row of host_ops, -1 without.

    Reads:
        host_ops: sequence_number, start_ns.
    """
    number, start = host_ops.ints("sequence_number"), host_ops.ints("start_ns")
    usable = number != NULL
    forward = np.flatnonzero(usable & (sequence.node < 0))
    result = np.full(len(host_ops), -1, np.int64)
    below = np.flatnonzero(sequence.node >= 0)
    if not len(forward) or not len(below):
        return result
    forward = forward[np.lexsort((start[forward], number[forward]))]
    last = np.append(number[forward][1:] != number[forward][:-1], True)
    forward = forward[last]
    wanted = number[sequence.node[below]]
    at = np.clip(np.searchsorted(number[forward], wanted), 0, len(forward) - 1)
    same = (number[forward][at] == wanted) & (wanted != NULL)
    holder = sequence.top[forward[at]]
    found = same & (holder >= 0)
    result[below[found]] = match_of[holder[found]]
    return result


def _parents(host_ops: Table) -> tuple[Ints, Ints]:
    """The call around each call on its thread (-1: none), and the rows in order of thread and start."""
    start, dur, thread = host_ops.ints("start_ns"), host_ops.ints("dur_ns"), host_ops.ints("thread")
    up = np.full(len(host_ops), -1, np.int64)
    rows = np.flatnonzero((start != NULL) & (dur != NULL))
    rows = rows[np.lexsort((-dur[rows], start[rows], thread[rows]))]
    borders = np.flatnonzero(np.diff(thread[rows])) + 1
    for part in np.split(rows, borders):
        if len(part):
            above = intervals.parents(start[part], start[part] + dur[part])
            up[part] = np.where(above >= 0, part[np.clip(above, 0, None)], -1)
    return up, rows


def _outermost(up: Ints, chosen: Bools) -> Ints:
    """The outermost chosen row at or above each row, -1 without. One round per level of nesting."""
    found = np.where(chosen, np.arange(len(up)), -1)
    at = up.copy()
    live = np.flatnonzero(at >= 0)
    while len(live):
        here = at[live]
        hit = chosen[here]
        found[live[hit]] = here[hit]
        at[live] = up[here]
        live = live[at[live] >= 0]
    return found.astype(np.int64)
