"""Warnings that libraries print while a workload runs: nobody sees them there, and some cost time (an operator that
falls back to the CPU).

Lines that torch_npu prints in every program, whatever it does, are known by their whole text
(`library_warnings.yaml`): they are no warnings and are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import yaml

from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.private_data import Masks, masks_of
from ascend_perf.errors import not_obeyed

WARNED: Final = "a library warned: "
"""What the note of a warning begins with."""
MAX_WARNINGS: Final = 20
"""Different ones that are told; the others are counted."""
MAX_KEPT: Final = 200
"""Different ones that are told apart; more are counted together."""
MAX_LETTERS: Final = 300
"""Of a warning."""
MAX_PLACE: Final = 80
"""Letters of its place."""
MAX_MASKED: Final = 1000
"""Letters in which private data are looked for: more than are told."""
MAX_LINE: Final = 4096
"""Letters of a line that are looked at."""

_FORMS: Final = tuple(
    re.compile(rf"(?:\[rank\d+\]:\s*)?{form}")
    for form in (
        # C++ of PyTorch and torch_npu
        r"\[[WE]\d{3,4} [\d:.]+ (?P<where>[^\]\s]+:\d+)\] (?:Warning: )?(?P<text>.+)",
        # logging of PyTorch
        r"[WE]\d{4} [\d:.]+ \d+ (?P<where>[^\]\s]+:\d+)\] (?P<text>.+)",
        # the module warnings of Python
        r"(?P<where>(?:/[^:]*\.py|[^\s:]+\.py|<[^:>]*>):\d+): (?P<text>\w*Warning: .+)",
        # Python of torch_npu, its profiler and others
        r"\[\d{4}-\d\d-\d\d [\d:]+\] \[(?:WARNING|ERROR)\] \[\d+\] (?P<where>[\w.]+\.py): (?P<text>.+)",
        r"\d{4}-\d\d-\d\d [\d:]+\(\d+\)-\[(?:WARNING|ERROR)\](?P<where>) (?P<text>.+)",
        # logging of Python without a format
        r"(?:WARNING|ERROR):(?P<where>[\w.]+):(?P<text>.+)",
    )
)
_INSIDE: Final = (" (function ", " (Triggered internally at ")
"""Before a place inside of the library at the end of a warning: of C++, and of C++ that gave it to Python."""
_LAUNCHER: Final = "torch/distributed/elastic/"
"""Where torchrun says which processes it ended, and how: the problem of the run tells that better."""
_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
"""Colours and other commands to a terminal."""


@dataclass(frozen=True, kw_only=True)
class LibraryWarning:
    """A warning, and how often it came."""

    text: str
    """"" for all those together that are more than `MAX_KEPT`."""
    where: str
    """Place in the library's sources, as it says: file:line; "" when it names none."""
    count: int = 1

    @property
    def note(self) -> str:
        """What is told about it."""
        times = f"{self.count} x " if self.count > 1 else ""
        return f"{WARNED}{times}{self.text}" + (f" ({self.where})" if self.where else "")


def library_warnings(lines: Iterable[str]) -> tuple[LibraryWarning, ...]:
    """The warnings among the lines that the processes of a job wrote, in the order in which they came first.

    Args:
        lines: of standard output and standard error; those that are no warnings are passed over, and known ones.
    """
    raw = Counter[tuple[str, str]]()
    more = 0
    for line in lines:
        if (found := _warning(line)) is None or _is_known(found[0]):
            continue
        if found in raw or len(raw) < MAX_KEPT:
            raw[found] += 1
        else:
            more += 1
    masks = masks_of(Machine())
    counts = Counter[tuple[str, str]]()
    for (text, where), count in raw.items():
        shown = _shown(text, masks, MAX_LETTERS) or "..."
        counts[shown, _shown(where.rpartition("/")[2], masks, MAX_PLACE)] += count
    kept = [LibraryWarning(text=text, where=where, count=count) for (text, where), count in counts.items()]
    return (*kept, *([LibraryWarning(text="", where="", count=more)] if more else []))


def notes_of(warnings: Sequence[LibraryWarning]) -> tuple[str, ...]:
    """What a run says about them, no more than `MAX_WARNINGS`."""
    notes = list(dict.fromkeys(warning.note for warning in warnings if warning.text))[:MAX_WARNINGS]
    if rest := sum(warning.count for warning in warnings if not warning.text or warning.note not in notes):
        notes.append(f"{rest} other warnings of libraries")
    return tuple(notes)


def _warning(line: str) -> tuple[str, str] | None:
    """Text and place of a warning as it was written; None for another line."""
    line = _TERMINAL.sub("", line[:MAX_LINE])
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else " " for letter in line)
    line = line.rstrip()
    match = next((match for form in _FORMS if (match := form.fullmatch(line)) is not None), None)
    if match is None or _LAUNCHER in match["where"]:
        return None
    text = match["text"].strip().removeprefix("UserWarning: ")
    for inside in _INSIDE:
        if text.endswith(")"):
            text = text.partition(inside)[0]
    return (text, match["where"]) if text else None


def _shown(text: str, masks: Masks, length: int) -> str:
    """A text of a library without private data, bounded."""
    text = not_obeyed(masks.of(text[:MAX_MASKED]))
    return text if len(text) <= length else f"{text[:length]} ..."


@cache
def _known() -> tuple[re.Pattern[str], ...]:
    listed = yaml.safe_load(Path(__file__).with_name("library_warnings.yaml").read_text("utf-8"))
    return tuple(re.compile(one["text"]) for one in listed)


@lru_cache(maxsize=MAX_KEPT)
def _is_known(text: str) -> bool:
    return any(known.fullmatch(text) for known in _known())
