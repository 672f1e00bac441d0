"""NVTX ranges: operators of PyTorch (emit_nvtx), steps, and what else the user marked."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import Table
from ascend_perf.parsers._gpu_tables import dims_of, event_kind, steps_at
from ascend_perf.parsers._nsys_read import Rows
from ascend_perf.parsers._numbers import wholes

_OPERATOR: Final = re.compile(
    r"(?P<name>[\w:.~<>*]+(?:Backward\d*)?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = (?P<op>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?"
)
"""The names that torch.autograd.profiler.emit_nvtx gives its ranges."""

_STEP: Final = re.compile(
    r"(?P<family>profilerstep|(?:(?:train|training|inference|decode)[ _-]?)?(?:step|iteration|iter))"
    r"[ #:_-]*(?P<number>\d{1,15})?",
    re.IGNORECASE,
)
"""Names of ranges that mark a step: ProfilerStep#3, step 3, iteration_3, "train step". Status: assumed."""


def host_tables(ranges: Rows) -> tuple[Table, Table]:
    """host_ops and host_events of the ranges of one process."""
    if not len(ranges):
        return Table.empty(t.HOST_OPS), Table.empty(t.HOST_EVENTS)
    names = ranges.text("name")
    is_op = names.flags(_is_operator)
    ops, events = np.flatnonzero(is_op), np.flatnonzero(~is_op)
    op_names = names.take(ops).compact()
    sequence = op_names.numbers(_sequence)
    host_ops = Table(
        t.HOST_OPS,
        {
            "start_ns": ranges.ints("start")[ops],
            "dur_ns": ranges.ints("dur")[ops],
            "name": op_names.relabel(lambda text: text.split(", ", 1)[0]),
            "thread": ranges.ints("thread")[ops],
            "input_shapes": op_names.relabel(_shapes),
            "sequence_number": wholes(sequence),
        },
    )
    event_names = names.take(events).compact()
    host_events = Table(
        t.HOST_EVENTS,
        {
            "start_ns": ranges.ints("start")[events],
            "dur_ns": ranges.ints("dur")[events],
            "name": event_names,
            "kind": event_names.relabel(_kind),
            "thread": ranges.ints("thread")[events],
        },
    )
    return host_ops, host_events


def _is_operator(text: str) -> bool:
    match = _OPERATOR.fullmatch(text)
    if match is None:
        return False
    return (
        match["seq"] is not None or match["op"] is not None or match["sizes"] is not None or "aten::" in match["name"]
    )


def _sequence(text: str) -> float:
    match = _OPERATOR.fullmatch(text)
    return float(match["seq"]) if match and match["seq"] and not match["seq"].startswith("-") else np.nan


def _shapes(text: str) -> str | None:
    match = _OPERATOR.fullmatch(text)
    return dims_of(match["sizes"]) if match and match["sizes"] else None


def _kind(name: str) -> str:
    if _STEP.fullmatch(name.strip()):
        return "step"
    if name.lower().startswith(("dataloader", "data_loader", "data loading")):
        return "dataloader"
    return event_kind(name) or "user"


def steps_of_ranges(host_events: Table) -> Table:
    """The steps: ranges of one name, of ProfilerStep before others, else of the name that covers most time.

    Ranges without a number, or with numbers that come again, are counted from 0 in the order of time.
    """
    rows = np.flatnonzero(host_events.text("kind").equals("step")) if len(host_events) else np.empty(0, np.int64)
    if not len(rows):
        return Table.empty(t.STEPS)
    names = host_events.text("name").take(rows).compact()
    families = names.relabel(lambda name: re.sub(r"[ _-]", "", _matched(name)["family"].lower()))
    start, dur = host_events.ints("start_ns")[rows], host_events.ints("dur_ns")[rows]
    thread = host_events.ints("thread")[rows]
    if families.equals("profilerstep").any():
        mine = families.equals("profilerstep")
    else:
        totals = np.bincount(families.codes, weights=dur.astype(np.float64))
        mine = families.codes == int(np.argmax(totals))
    # Forward and backward threads may mark the same steps: the thread with most of them counts.
    threads, counts = np.unique(thread[mine], return_counts=True)
    mine &= thread == threads[int(np.argmax(counts))]
    order = np.flatnonzero(mine)
    order = order[np.argsort(start[order], kind="stable")]
    numbers = names.take(order).compact().numbers(_number)
    if np.isnan(numbers).any() or len(np.unique(numbers)) < len(numbers):
        numbers = np.arange(len(order), dtype=np.float64)
    return steps_at(wholes(numbers), start[order], dur[order])


def _matched(name: str) -> re.Match[str]:
    match = _STEP.fullmatch(name.strip())
    assert match is not None  # only names of kind "step" come here
    return match


def _number(name: str) -> float:
    number = _matched(name)["number"]
    return np.nan if number is None else float(number)
