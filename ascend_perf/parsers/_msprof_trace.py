"""Traces of msprof: the part of one device of a trace of several, and the marks of the user.

Source: format reference, sections 2.2 and 2.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ascend_perf.model import tables as t
from ascend_perf.model.table import Table, Text
from ascend_perf.parsers._ascend_trace import TraceFile
from ascend_perf.parsers._ascend_words import named

HARDWARE: Final = "Ascend Hardware"
_HOST: Final = frozenset(
    {"CANN", "Python", "Python GC", "CPU Usage", "Memory Usage", "Disk Usage", "Network Usage", "OS Runtime API"}
)
_MARKS: Final = re.compile(r"ms(?:prof)?tx", re.IGNORECASE)
_LABEL: Final = re.compile(r"NPU (\d{1,5})$")


def _number(trace: TraceFile, pid: int) -> int | None:
    match = _LABEL.search(trace.labels.get(pid, ""))
    return int(match[1]) if match else None


def devices_of(trace: TraceFile, known: Sequence[int]) -> list[int]:
    """The devices of a trace: by their labels, else those that other files name, else by the order of processes."""
    pids = trace.pids(HARDWARE)
    numbers = [_number(trace, pid) for pid in pids]
    labelled = [number for number in numbers if number is not None]
    if len(labelled) == len(pids) and len(set(labelled)) == len(pids):
        return sorted(labelled)
    if len(pids) < 2 or len(known) >= len(pids):
        return []
    return list(range(len(pids)))


def of_device(trace: TraceFile, device: int, devices: Sequence[int]) -> TraceFile:
    """The trace with the processes of the host and of one device only.

    Processes without a label belong to the devices in the order of their numbers, when there is one for each.
    """
    by_name: dict[str, list[int]] = {}
    for pid, name in sorted(trace.processes.items()):
        by_name.setdefault(name, []).append(pid)
    others: set[int] = set()
    for name, pids in by_name.items():
        if name in _HOST or _MARKS.search(name):
            continue
        numbers = [_number(trace, pid) for pid in pids]
        if None not in numbers:
            others.update(pid for pid, number in zip(pids, numbers, strict=True) if number != device)
        elif len(pids) == len(devices):
            others.update(pid for pid, number in zip(pids, devices, strict=True) if number != device)
        else:
            others.update(pids)  # nothing tells whose they are
    return replace(
        trace,
        processes={pid: name for pid, name in trace.processes.items() if pid not in others},
        threads={key: name for key, name in trace.threads.items() if key[0] not in others},
    )


def marks_of(trace: TraceFile) -> Table:
    """The slices of the msproftx processes: ranges and marks of the user, as host events."""
    pids = [pid for pid, name in trace.processes.items() if _MARKS.search(name)]
    parts = []
    for slices in (trace.slices, trace.bare) if pids else ():
        rows = np.flatnonzero(np.isin(slices.ints("pid"), pids))
        parts.append(
            Table(
                t.HOST_EVENTS,
                {
                    "start_ns": slices.ints("start")[rows],
                    "dur_ns": slices.ints("dur")[rows],
                    "name": named(slices.text("name").take(rows).compact()),
                    "kind": Text.full(len(rows), "user"),
                    "thread": slices.ints("tid")[rows],
                },
            )
        )
    return Table.concat(t.HOST_EVENTS, parts).sorted_by("start_ns")
