"""What the recorded processes told, and what it means: traces, steps, problems, and why there is nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ascend_perf.collectors import in_process
from ascend_perf.collectors._own_manifest import too_few_steps
from ascend_perf.collectors.environment import masked

MAX_FILES: Final = 4096
"""Processes whose words are read. Status: assumed."""
MAX_BYTES: Final = 4 << 20
"""Of the words of one process."""


@dataclass(kw_only=True)
class Process:
    """One process that told something."""

    pid: int
    rank: int | None = None
    executable: str = ""
    device: str = ""
    first_step: int | None = None
    """Steps before its first recording."""
    steps: int | None = None
    """All steps of a process that came to its end."""
    recorded: int = 0
    starts: int = 0
    written: list[str] = field(default_factory=list)
    """Paths in the run directory."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    times: dict[str, list[int]] = field(default_factory=dict)
    first_ns: int | None = None
    """Unix time at which its first step ended."""
    phases: list[tuple[int, str]] = field(default_factory=list)
    """Unix time at which its recordings began and ended."""
    is_wanted: bool = True

    @property
    def is_lost(self) -> bool:
        """It ended while it recorded, without writing what there was."""
        return self.starts > len(self.written) and self.steps is None and not self.problems


def processes_of(folder: Path) -> list[Process]:
    """The processes that left words in a folder, by rank."""
    found: list[Process] = []
    for path in sorted(folder.glob("told-*.jsonl"))[:MAX_FILES]:
        with open(path, "rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")
        process: Process | None = None
        for line in lines:
            try:
                event = json.loads(line)
                name, pid = str(event["event"]), int(event["pid"])
            except (ValueError, TypeError, KeyError):  # cut short when the process was killed
                continue
            if process is None:
                process = Process(pid=pid)
                found.append(process)
            _hear(process, name, event)
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _hear(process: Process, name: str, event: Mapping[str, Any]) -> None:
    if isinstance(event.get("rank"), int):
        process.rank = event["rank"]
    if name == "hello":
        process.executable = str(event.get("executable", ""))
    elif name == "start":
        process.starts += 1
        process.phases.append((int(event.get("time_ns", 0)), "profiled"))
        process.notes += [str(note) for note in event.get("notes", ())]
        process.device, process.executable = str(event.get("device", "")), str(event.get("executable", ""))
        if process.first_step is None:
            process.first_step = int(event["step"])
    elif name == "written":
        process.recorded += int(event["steps"])
        process.phases.append((int(event.get("time_ns", 0)), "after"))
        process.written += [str(path) for path in event["paths"]]
    elif name == "problem":
        process.problems.append((str(event["what"]), str(event.get("hint", ""))))
    elif name == "not wanted":
        process.is_wanted = False
    elif name == "end":
        process.steps = int(event["steps"])
        process.first_ns = int(event["first_ns"]) if isinstance(event.get("first_ns"), int) else None
        process.times = {str(kind): [int(one) for one in times] for kind, times in event["times"].items()}


def notes_of(processes: Sequence[Process]) -> list[str]:
    """What a reader must know of the processes."""
    notes = []
    for process in processes:
        who = "the process" if process.rank is None else f"rank {process.rank}"
        for what, hint in dict.fromkeys(process.problems):
            notes.append(masked(f"{who}: {what}" + (f" (hint: {hint})" if hint else "")))
        if process.is_lost:
            notes.append(f"{who} ended while it was recorded (killed?): its trace is lost")
    notes += _shared(processes)
    notes = list(dict.fromkeys([*notes, *(masked(note) for process in processes for note in process.notes)]))
    starts = sorted({process.first_step for process in processes if process.first_step is not None and process.written})
    if starts and starts[0]:  # from the first step on nothing is left out
        notes.append(f"recording began after step {starts[0]} of the program: the report counts steps from there")
    return notes


def _shared(processes: Sequence[Process]) -> list[str]:
    """Processes that recorded one NPU at the same time: it has one profiling channel."""
    notes = []
    spans = [
        (process, begin, process.phases[place + 1][0] if place + 1 < len(process.phases) else 1 << 62)
        for process in processes if process.device.startswith("npu:")
        for place, (begin, name) in enumerate(process.phases) if name == "profiled"
    ]  # fmt: skip
    for at, (one, begin, end) in enumerate(spans):
        for other, other_begin, other_end in spans[at + 1 :]:
            if other is not one and other.device == one.device and begin < other_end and other_begin < end:
                names = [str(process.pid if process.rank is None else process.rank) for process in (one, other)]
                notes.append(
                    f"{one.device} was recorded by two ranks at the same time ({', '.join(names)}): it has one "
                    "profiling channel, their profiles are not reliable (hint: record them one after the other, "
                    "--ranks)"
                )
    return notes


def why_nothing(processes: Sequence[Process], settings: in_process.Settings, has_seen_python: bool) -> tuple[str, str]:
    """Why a collector inside the process left no trace, and what to do."""
    for process in processes:
        if process.problems:
            return process.problems[0]
    if any(process.is_lost for process in processes):
        return "the program was killed while it was recorded: there is no trace", "record fewer steps, or earlier ones"
    if not has_seen_python:
        return (
            "no Python process of the command loaded our hook",
            "does the command start Python at all, here, and hand variables on (not through ssh, sudo or docker, not "
            "with python -E, -I or -S)? Otherwise call ascend_perf.hooks.profile in the program",
        )
    if not processes:
        return "no process of the command imported torch", "take --with msprof for programs without torch"
    busy = [process for process in processes if process.steps or not process.is_wanted]
    if busy and all(not process.is_wanted for process in busy):
        return "none of the ranks that were asked for was there", "correct --ranks"
    most = max((process.steps or 0 for process in processes), default=0)
    if most == 0:
        return (
            "no step was seen: no optimizer stepped, and no DataLoader gave a batch",
            "call ascend_perf.hooks.step() where a step of the program ends, or take --step-of process",
        )
    return too_few_steps(most, settings), f"take --skip {max(1, most - settings.warmup - settings.active)} or less"


def times_of(processes: Sequence[Process]) -> list[dict[str, list[int]]]:
    """Step times of the ranks that told them."""
    return [process.times for process in processes if any(process.times.values())]
