"""The line of the user's Python, the module and the operator around instants of the host's threads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.analyzers._host_nest import MODULE
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import HOST_OPS, PYTHON_CALLS
from ascend_perf.model.trace import Trace

_FRAME: Final = re.compile(r"^(?P<path>.+\.py)(?P<rest>\(\d+\): .*)$")
_LIBRARY: Final = re.compile(
    r"(^|/)(torch|torch_npu|torchgen|functorch|_pytest|concurrent|multiprocessing|importlib|asyncio|collections|json|"
    r"logging|unittest|encodings|ctypes)/"
    r"|^(threading|contextlib|selectors|queue|copy|functools|typing|re|inspect|pickle|random|weakref|subprocess|socket|"
    r"ssl|os|tempfile|abc|enum|dataclasses|runpy|traceback|warnings|types|operator|heapq|bisect|copyreg|struct|"
    r"linecache|codeop|genericpath|posixpath|_bootstrap|_bootstrap_external|signal|shutil|gc|connection|"
    r"pathlib)\.py\("
    # Call stacks of torch_npu keep the last folder alone, of everything but PyTorch: its own files by their names.
    r"|^(patches/\w+_patches|npu/(_\w+|mstx|streams|utils|memory|random|graphs|npu_config)|prof_common_func/_\w+|"
    r"profiler/(_\w+|profiler|profiler_interface|dynamic_profile|scheduler)|utils/_(module|optim|step|npu_trace)|"
    r"amp/(sharded_)?grad_scaler|optim/npu_fused_\w+)\.py\("
    r"|^utils/(storage\.py\(\d+\): _(cpu|deepcopy)|serialization\.py\(\d+\): _npu_save)$"
    # What measures here.
    r"|(^|/)ascend_perf/(bench|collectors)/|^(bench/child|collectors/(_activation|_recorders|in_process|op_recorder|"
    r"own_loop|step_marks|torch_profiler))\.py\("
)
"""Frames of the framework, of Python's own library and of what measures: not what a user would change."""
MAX_CHAIN: Final = 64
"""Operators around one instant that are looked at. Status: assumed."""


@lru_cache(maxsize=65536)
def is_user_frame(name: str) -> bool:
    """Whether a frame is a line of a Python file outside of PyTorch and of Python's own library."""
    return _FRAME.match(name) is not None and not _LIBRARY.search(name)


@lru_cache(maxsize=65536)
def short_frame(name: str) -> str:
    """A frame without folders: `main.py(345): train`."""
    found = _FRAME.match(name)
    return name if found is None else found["path"].rsplit("/", 1)[-1] + found["rest"]


@lru_cache(maxsize=65536)
def user_line(stack: str) -> str | None:
    """Innermost frame of the user in a stack with the innermost frame first; None where there is none."""
    return next((short_frame(line) for line in stack.splitlines() if is_user_frame(line)), None)


@dataclass(frozen=True, kw_only=True)
class Around:
    """What is around each instant; arrays and texts of one length."""

    op: Ints
    """Row of host_ops of the innermost operator, -1 where there is none."""
    outer: Ints
    """Row of the outermost of the operators of the same library around it: `aten::item` of what reads the value."""
    line: Text
    module: Text


def around(trace: Trace, threads: Ints, at: Ints) -> Around:
    """Operator, line of Python and module around each instant.

    The line is that of the operator's call stack, else of the Python call around the instant; what the backward pass
    does has those of the forward operator with its sequence number.

    Args:
        trace: the rank.
        threads: thread of each instant, shape (n,); `NULL` looks at all threads and takes what began last.
        at: instants in ns, shape (n,).

    Reads:
        host_ops: start_ns, dur_ns, name, thread, sequence_number, stack; python_calls: start_ns, dur_ns, name, thread.
    """
    ops = trace[HOST_OPS]
    line, module = _python_around(trace, threads, at)
    if not len(ops):
        none = np.full(len(at), -1, np.int64)
        return Around(op=none, outer=none, line=line, module=module)
    inner, up = ops_around(ops, threads, at)
    line = _first(_stacks(ops, inner, up), line)
    forward = _forward(ops, inner, up)
    rows = np.flatnonzero((forward >= 0) & ((line.codes < 0) | (module.codes < 0)))
    if len(rows):
        source = forward[rows]
        starts, own = ops.ints("start_ns")[source], ops.ints("thread")[source]
        told_line, told_module = _python_around(trace, own, starts)
        told_line = _first(_stacks(ops, source, up), told_line)
        line, module = _filled(line, rows, told_line), _filled(module, rows, told_module)
    return Around(op=inner, outer=_outermost(ops, inner, up), line=line, module=module)


def longest_within(trace: Trace, where: IntervalSet, threads: Ints | None = None) -> list[tuple[str, int]]:
    """Python calls by the time that they take themselves (without what they call) within some time, longest first.

    Args:
        trace: the rank.
        where: a merged set.
        threads: threads to look at; all when None.

    Reads:
        python_calls: start_ns, dur_ns, name, thread.
    """
    calls = trace[PYTHON_CALLS]
    starts, ends = calls.ints("start_ns"), calls.ends_ns()
    names = calls.text("name")
    usable = (starts != NULL) & (ends != NULL) & names.flags(lambda name: not name.startswith(MODULE))
    if threads is not None:
        usable &= np.isin(calls.ints("thread"), threads)
    if not usable.any() or not len(where.starts):
        return []
    usable &= intervals.covered(where, starts, ends) > 0
    spent = np.zeros(len(names.values))
    for thread in np.unique(calls.ints("thread")[usable]).tolist():
        rows = np.flatnonzero(usable & (calls.ints("thread") == thread))
        rows = rows[np.lexsort((-ends[rows], starts[rows]))]
        inside = intervals.covered(where, starts[rows], ends[rows]).astype(float)
        parent = intervals.parents(starts[rows], ends[rows])
        own = inside - np.bincount(parent[parent >= 0], inside[parent >= 0], len(rows))
        spent += np.bincount(names.codes[rows], own.clip(0), len(names.values))
    order = np.argsort(-spent, kind="stable")
    return [(names.values[at], round(spent[at])) for at in order.tolist() if spent[at] > 0]


def ops_around(ops: Table, threads: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Row of the innermost operator around each instant, and for every operator the one around it; -1 for none."""
    starts, ends, own = ops.ints("start_ns"), ops.ends_ns(), ops.ints("thread")
    usable = (starts != NULL) & (ends != NULL)
    found = np.full(len(at), -1, np.int64)
    up = np.full(len(ops), -1, np.int64)
    for thread in np.unique(own[usable]).tolist():
        mine = np.flatnonzero((threads == thread) | (threads == NULL))
        if not len(mine):
            continue
        rows = np.flatnonzero(usable & (own == thread))
        rows = rows[np.lexsort((-ends[rows], starts[rows]))]
        parent = intervals.parents(starts[rows], ends[rows])
        up[rows] = np.where(parent >= 0, rows[np.clip(parent, 0, None)], -1)
        place = intervals.enclosing(starts[rows], ends[rows], at[mine])
        row = np.where(place >= 0, rows[np.clip(place, 0, None)], -1)
        before = found[mine]
        later = (row >= 0) & ((before < 0) | (starts[np.clip(row, 0, None)] > starts[np.clip(before, 0, None)]))
        found[mine[later]] = row[later]
    return found, up


def _stacks(ops: Table, inner: Ints, up: Ints) -> Text:
    """Line of the user in the stack of the innermost operator around that has one."""
    lines = ops.text("stack").relabel(user_line)
    codes = np.full(len(inner), -1, np.int32)
    row = inner.copy()
    for _ in range(MAX_CHAIN):
        open_ = (row >= 0) & (codes < 0)
        if not open_.any() or not lines.values:
            break
        codes[open_] = lines.codes[row[open_]]
        row = np.where(row >= 0, up[np.clip(row, 0, None)], -1)
    return Text(codes, lines.values)


def _outermost(ops: Table, inner: Ints, up: Ints) -> Ints:
    """Climb while the operator around belongs to the same library (`aten`)."""
    library = ops.text("name").relabel(lambda name: name.partition("::")[0] if "::" in name else None).codes
    row: Ints = inner.copy()
    for _ in range(MAX_CHAIN):
        above = np.where(row >= 0, up[np.clip(row, 0, None)], -1)
        same = (above >= 0) & (row >= 0)
        if same.any():
            same[same] = (library[above[same]] == library[row[same]]) & (library[row[same]] >= 0)
        if not same.any():
            break
        row[same] = above[same]
    return row


def _forward(ops: Table, inner: Ints, up: Ints) -> Ints:
    """First operator with the sequence number of what is around each instant, -1 where that is the operator itself."""
    sequence, starts = ops.ints("sequence_number"), ops.ints("start_ns")
    numbered = np.flatnonzero((sequence != NULL) & (sequence >= 0) & (starts != NULL))
    if not len(numbered):
        return np.full(len(inner), -1, np.int64)
    order = numbered[np.lexsort((starts[numbered], sequence[numbered]))]
    numbers, first = np.unique(sequence[order], return_index=True)
    row, found = inner.copy(), np.full(len(inner), -1, np.int64)
    for _ in range(MAX_CHAIN):
        open_ = np.flatnonzero((row >= 0) & (found < 0))
        if not len(open_):
            break
        own = sequence[row[open_]]
        place = np.clip(np.searchsorted(numbers, own), 0, len(numbers) - 1)
        source = order[first[place]]
        fits = (own != NULL) & (numbers[place] == own) & (source != row[open_])
        found[open_[fits]] = source[fits]
        row[open_] = up[row[open_]]
    return found


def _python_around(trace: Trace, threads: Ints, at: Ints) -> tuple[Text, Text]:
    calls = trace[PYTHON_CALLS]
    if not len(calls):
        return Text.full(len(at), None), Text.full(len(at), None)
    names = calls.text("name")
    usable = (calls.ints("start_ns") != NULL) & (calls.ints("dur_ns") != NULL)
    line = _innermost(calls, usable & names.flags(is_user_frame), threads, at)
    module = _innermost(calls, usable & names.flags(lambda name: name.startswith(MODULE)), threads, at)
    lines = Text(np.where(line >= 0, names.codes[np.clip(line, 0, None)], -1).astype(np.int32), names.values)
    modules = Text(np.where(module >= 0, names.codes[np.clip(module, 0, None)], -1).astype(np.int32), names.values)
    return lines.relabel(short_frame), modules.relabel(lambda name: name.removeprefix(MODULE))


def _innermost(calls: Table, wanted: Bools, threads: Ints, at: Ints) -> Ints:
    starts, ends, own = calls.ints("start_ns"), calls.ends_ns(), calls.ints("thread")
    found = np.full(len(at), -1, np.int64)
    for thread in np.unique(own[wanted]).tolist():
        mine = np.flatnonzero((threads == thread) | (threads == NULL))
        if not len(mine):
            continue
        rows = np.flatnonzero(wanted & (own == thread))
        place = intervals.enclosing(starts[rows], ends[rows], at[mine])
        row = np.where(place >= 0, rows[np.clip(place, 0, None)], -1)
        before = found[mine]
        later = (row >= 0) & ((before < 0) | (starts[np.clip(row, 0, None)] > starts[np.clip(before, 0, None)]))
        found[mine[later]] = row[later]
    return found


def _first(first: Text, second: Text) -> Text:
    """The first text where it is known, else the second."""
    both = Text.concat([first, second])
    own, other = both.codes[: len(first)], both.codes[len(first) :]
    return Text(np.where(own >= 0, own, other).astype(np.int32), both.values)


def _filled(text: Text, rows: Ints, told: Text) -> Text:
    """The text with `told` in those of `rows` that are unknown."""
    spread = np.full(len(text), -1, np.int32)
    spread[rows] = told.codes
    return _first(text, Text(spread, told.values))
