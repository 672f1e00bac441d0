"""Words of the Ascend exporters and what they mean; shared by the readers of trace_view.json and of databases."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ascend_perf.model.table import NULL, Bools, Ints, Text
from ascend_perf.parsers._ascend_comm import DTYPE_BYTES
from ascend_perf.parsers._python_frames import frame

NO_RANK: Final = 4294967295
"""Stands for "no rank", "no model", "no plane" and the like: -1 in 32 bits."""

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,17})$")
_DIRECTIONS: Final = (
    ("host to device", "H2D"),
    ("device to host", "D2H"),
    ("device to device", "D2D"),
    ("host to host", "H2H"),
)


def copy_kind(direction: str) -> str | None:
    """H2D, D2H ... of the exporter's words (`host to device`, `device to host ex`)."""
    words = direction.lower().replace("addr ", "")
    for text, kind in _DIRECTIONS:
        if words.startswith(text):
            return kind
    return None


def queued_kind(name: str) -> str | None:
    """Kind of the copy that an entry of the task queue launches (`Dequeue@acl_memcpy_host_to_device`)."""
    _, found, direction = name.partition("acl_memcpy_")
    return copy_kind(direction.replace("_", " ")) if found else None


def step_number(name: str) -> int | None:
    """The number of a ProfilerStep event, None for other names."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


def event_kind(name: str) -> str | None:
    """What an operator that is none is: step, dataloader, optimizer; None for real operators."""
    if _STEP.match(name):
        return "step"
    if name.startswith("enumerate(DataLoader)#"):
        return "dataloader"
    return "optimizer" if name.startswith("Optimizer.") else None


def nearest(ascending: Sequence[int], wanted: int) -> int | None:
    """Place of the value nearest to `wanted`, None when there are no values."""
    place = bisect.bisect_left(ascending, wanted)
    around = [at for at in (place - 1, place) if 0 <= at < len(ascending)]
    return min(around, key=lambda at: abs(ascending[at] - wanted), default=None)


def enum_word(word: str) -> str | None:
    """A word of an enumeration, None for those that stand for nothing."""
    return None if word in ("INVALID_TYPE", "N/A", "RESERVED", "") else word


def sizes(count: Ints, dtype: Text) -> Ints:
    """Message size: elements times their size, `NULL` when either is unknown."""
    width = dtype.numbers(lambda word: float(DTYPE_BYTES.get(word, np.nan)))
    usable: Bools = (count != NULL) & (count >= 0) & (count < 1 << 55) & ~np.isnan(width)
    return np.where(usable, count * np.where(usable, width, 0).astype(np.int64), NULL).astype(np.int64)


def named(text: Text, default: str = "unnamed") -> Text:
    """A required text column: `default` where it is empty."""
    if not (text.codes < 0).any():
        return text
    values = [*text.values, default]
    return Text(np.where(text.codes < 0, len(values) - 1, text.codes).astype(np.int32), values)


def first_known(*choices: Text) -> Text:
    """For each row the first of the texts that is known there."""
    result = Text.concat(choices)
    rows = result.codes.reshape(len(choices), -1)
    codes = rows[0]
    for later in rows[1:]:
        codes = np.where(codes < 0, later, codes)
    return Text(codes.astype(np.int32), result.values)


def lines(text: str) -> str:
    """A list that the exporter writes with one line per element, on one line."""
    return re.sub(r";?\r?\n", ";", text)


def frames(stack: str) -> str:
    """A call stack with one frame per line, and paths without the folders in which users and hosts are named."""
    return "\n".join(frame(line.strip().rstrip(";")) for line in stack.splitlines() if line.strip())
