"""Warnings that libraries print while a workload runs: nobody sees them there, and some cost time (an operator that
falls back to the CPU).

Lines that torch_npu prints in every program, whatever it does, are told apart by their whole text
(`library_warnings.yaml`): they are no warnings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from ascend_perf.collectors.environment import masked

MAX_WARNINGS: Final = 20
"""Different ones that are kept; the others are counted."""
MAX_LETTERS: Final = 300
"""Of a warning."""

_FORMS: Final = tuple(
    re.compile(rf"(?:\[rank\d+\]:\s*)?{form}")
    for form in (
        # C++ of PyTorch and torch_npu
        r"\[[WE]\d{3,4} [\d:.]+ (?P<where>[^\]\s]+:\d+)\] (?:Warning: )?(?P<text>.*?)(?: \(function .*\))?",
        # logging of PyTorch
        r"[WE]\d{4} [\d:.]+ \d+ (?P<where>[^\]\s]+:\d+)\] (?P<text>.*)",
        # the module warnings of Python
        r"(?P<where>[^\s:]+\.py:\d+): (?P<text>\w*Warning: .*)",
        # Python of torch_npu, its profiler and others
        r"\[\d{4}-\d\d-\d\d [\d:]+\] \[(?:WARNING|ERROR)\] \[\d+\] (?P<where>[\w.]+\.py): (?P<text>.*)",
        r"\d{4}-\d\d-\d\d [\d:]+\(\d+\)-\[(?:WARNING|ERROR)\](?P<where>) (?P<text>.*)",
        # logging of Python without a format
        r"(?:WARNING|ERROR):(?P<where>[\w.]+):(?P<text>.*)",
    )
)
_INSIDE: Final = re.compile(r" \(Triggered internally at .*\)$")
"""Where PyTorch gave a warning of C++ to Python."""


@dataclass(frozen=True, kw_only=True)
class LibraryWarning:
    """A warning, and how often it came."""

    text: str
    where: str
    """Place in the library's sources, as it says: file:line; "" when it names none."""
    count: int = 1
    about: str | None = None
    """What it means, where every program gets it: it asks for nothing then."""

    @property
    def note(self) -> str:
        """What is told about it."""
        if self.about is not None:
            return f"nothing to do: {self.about}"
        times = f"{self.count} x " if self.count > 1 else ""
        return f"a library warned: {times}{self.text}" + (f" ({self.where})" if self.where else "")


def library_warnings(lines: Iterable[str]) -> tuple[LibraryWarning, ...]:
    """The warnings among the lines that the processes of a job wrote, in the order in which they came first.

    Args:
        lines: of standard output and standard error; those that are no warnings are passed over.
    """
    counts = Counter(_warnings(lines))
    return tuple(
        LibraryWarning(text=text, where=where, count=count, about=_about(text))
        for (text, where), count in counts.items()
    )


def notes_of(warnings: Sequence[LibraryWarning]) -> tuple[str, ...]:
    """What a run says about them: those that ask for something first, and no more than `MAX_WARNINGS`."""
    ordered = sorted(warnings, key=lambda warning: warning.about is not None)
    notes = [warning.note for warning in ordered[:MAX_WARNINGS]]
    if rest := len(ordered) - len(notes):
        notes.append(f"{rest} other warnings of libraries")
    return tuple(notes)


def _warnings(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        for form in _FORMS:
            if (match := form.fullmatch(line.rstrip())) is not None:
                text = masked(_INSIDE.sub("", match["text"]).strip().removeprefix("UserWarning: "))
                where = match["where"].rpartition("/")[2]
                yield (text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]} ..."), where
                break


@cache
def _known() -> tuple[tuple[re.Pattern[str], str], ...]:
    listed = yaml.safe_load(Path(__file__).with_name("library_warnings.yaml").read_text("utf-8"))
    return tuple((re.compile(one["text"]), one["about"]) for one in listed)


def _about(text: str) -> str | None:
    return next((about for known, about in _known() if known.fullmatch(text)), None)
