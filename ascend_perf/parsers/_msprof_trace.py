"""The part of one device of a trace of several: the same process name comes once per device.

Source: format reference, section 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ascend_perf.parsers._ascend_trace import TraceFile

HARDWARE: Final = "Ascend Hardware"
_HOST: Final = frozenset({"CANN", "Python", "Python GC", "CPU Usage", "Memory Usage", "Disk Usage", "Network Usage"})
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
        if name in _HOST:
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
