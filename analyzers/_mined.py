"""Repeated sequences of vector kernels over a whole device stream, by what one kernel in place of each would save.

Windows of equal operator types get equal numbers by prefix doubling (as in building a suffix array): numbers of
windows of 2^j kernels come from pairs of half the length, those of any other length from two that overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._repeats import non_overlapping
from ascend_perf.analyzers._steps import membership
from ascend_perf.model.distinct import distinct
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.ops.classify import KernelClass, kernel_classes, op_type_of_name
from ascend_perf.ops.flops import BYTES_OF, parse_shapes, plain_dtype

MIN_LENGTH: Final = 2
MAX_LENGTH: Final = 15
"""Lengths of sequences. Source: rivals-and-methods, method 5.10 (TraceLens skips longer ones). Status: inferred."""
MIN_COUNT: Final = 3
"""A sequence occurs at least this often per step. Status: assumed."""
MIN_SAVED_RATIO: Final = 0.002
"""Part of the step that a sequence could save at least. Status: assumed, as that of findings about kernels."""
MAX_SEQUENCES: Final = 25
MAX_CANDIDATES: Final = 500
"""Sequences that are looked at one by one, those that save most first. Status: assumed."""

_FUSIBLE: Final = frozenset(
    kind.value
    for kind in (
        KernelClass.ELEMENTWISE, KernelClass.CAST, KernelClass.REDUCTION, KernelClass.COPY, KernelClass.TRANSPOSE,
        KernelClass.FILL, KernelClass.INDEX, KernelClass.RANDOM,
    )
)  # fmt: skip
"""Classes of kernels that a compiler could join; norms, softmax and losses are one kernel for good reason."""


@dataclass(frozen=True, kw_only=True)
class Mined:
    """One sequence and its occurrences, none of which overlaps another."""

    types: tuple[str, ...]
    count: int
    time_ns: int
    saved_ns: float
    """Time of the sequence less its longest kernel, over all occurrences."""
    round_trip_bytes: float
    """What is written by a kernel and read by the next one again, twice its size; NaN where shapes are missing."""
    start_ns: int
    stream: int | None


@dataclass(frozen=True, kw_only=True)
class _Stream:
    """Kernels in order of step, stream and start; `room[i]`: kernels from i on before the next border."""

    rows: Ints
    tokens: Ints
    room: Ints
    before: Ints
    """Running sum of durations, one longer than the others."""
    duration: Ints


def mined(time: KernelTime, claimed: Bools) -> list[Mined]:
    """Repeated sequences without claimed kernels, by what they save; a kernel belongs to one of them at most.

    Args:
        time: the kernels of a rank.
        claimed: kernels of sequences that a fused operator is known for; no sequence goes across one.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name, core, output_shapes, output_dtypes.

    Source:
        rivals-and-methods, method 5.10.
    """
    types = _types(time.trace[KERNELS])
    stream = _stream(time, types, claimed)
    least = MIN_COUNT * time.steps
    if len(stream.rows) < MIN_LENGTH * least:
        return []
    candidates = _candidates(stream, least)
    candidates.sort(key=lambda item: (-item[0], item[1], int(item[2][0])))
    taken = np.zeros(len(stream.rows) + 1, np.int64)
    found: list[Mined] = []
    for saved, length, places in candidates[:MAX_CANDIDATES]:
        if len(found) == MAX_SEQUENCES or saved < MIN_SAVED_RATIO * time.whole_ns:
            break
        used = np.concatenate(([0], np.cumsum(taken[:-1])))
        free = places[used[places + length] == used[places]]
        if len(free) < least:
            continue
        whole = free[:, None] + np.arange(length)
        left = _saved(stream, free, length)
        if left < MIN_SAVED_RATIO * time.whole_ns:
            continue
        taken[whole.ravel()] = 1
        found.append(_mined(time, stream, types, free, length, left))
    return sorted(found, key=lambda item: -item.saved_ns)


def window_numbers(tokens: Ints, length: int) -> Ints:
    """A number for the window of `length` tokens that begins at each place: equal exactly for equal windows.

    Args:
        tokens: shape (n,), not negative.
        length: 1 to n.

    Returns:
        Shape (n - length + 1,).
    """
    numbers: Ints = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    size = 1
    while 2 * size <= length:
        numbers = _paired(numbers[: len(numbers) - size], numbers[size:])
        size *= 2
    shift = length - size
    return _paired(numbers[: len(numbers) - shift], numbers[shift:]) if shift else numbers


def _paired(first: Ints, second: Ints) -> Ints:
    return distinct(first, second)[1]


def _candidates(stream: _Stream, least: int) -> list[tuple[float, int, Ints]]:
    """(ns saved, length, places) of every sequence that occurs often enough."""
    found = []
    for length in range(MIN_LENGTH, min(MAX_LENGTH, len(stream.tokens)) + 1):
        at = np.flatnonzero(stream.room[: len(stream.tokens) - length + 1] >= length)
        if len(at) < least:
            break
        numbers = window_numbers(stream.tokens, length)[at]
        _, numbers, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        often = counts[numbers] >= least
        at, numbers = at[often], numbers[often]
        if not len(at):
            break
        order = np.lexsort((at, numbers))
        at, numbers = at[order], numbers[order]
        keep = non_overlapping(at, numbers, length)
        at, numbers = at[keep], numbers[keep]
        heads = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        sizes = np.diff(np.append(heads, len(at)))
        saved = np.add.reduceat(_saved_each(stream, at, length), heads)
        for group in np.flatnonzero(sizes >= least).tolist():
            places = at[heads[group] : heads[group] + sizes[group]]
            if not _repeats_itself(stream.tokens[places[0] : places[0] + length]):
                found.append((float(saved[group]), length, places))
    return found


def _repeats_itself(tokens: Ints) -> bool:
    """Whether a sequence is a shorter one written twice or more: the shorter one tells it better."""
    length = len(tokens)
    return length > 2 and any(
        bool((tokens[period:] == tokens[: length - period]).all()) for period in range(1, length // 2 + 1)
    )


def _saved_each(stream: _Stream, at: Ints, length: int) -> Ints:
    longest = stream.duration[at[:, None] + np.arange(length)].max(axis=1)
    saved: Ints = stream.before[at + length] - stream.before[at] - longest
    return saved


def _saved(stream: _Stream, at: Ints, length: int) -> float:
    return float(_saved_each(stream, at, length).sum())


def _mined(time: KernelTime, stream: _Stream, types: Text, at: Ints, length: int, saved: float) -> Mined:
    kernels = time.trace[KERNELS]
    first = int(stream.rows[at[0]])
    inner = stream.rows[(at[:, None] + np.arange(length - 1)).ravel()]
    number = int(kernels.ints("stream")[first])
    return Mined(
        types=tuple(types[row] or "?" for row in stream.rows[at[0] : at[0] + length].tolist()), count=len(at),
        time_ns=int((stream.before[at + length] - stream.before[at]).sum()), saved_ns=saved,
        round_trip_bytes=2 * float(_written(kernels, inner).sum()), start_ns=int(kernels.ints("start_ns")[first]),
        stream=None if number == NULL else number,
    )  # fmt: skip


def _written(kernels: Table, rows: Ints) -> Floats:
    """Bytes of the outputs of some kernels, NaN where shapes or dtypes are missing."""
    dtypes = kernels.text("output_dtypes").take(rows).numbers(
        lambda text: BYTES_OF.get(plain_dtype(text.split(";")[0]), np.nan)
    )  # fmt: skip
    sizes = kernels.text("output_shapes").take(rows).numbers(_elements)
    return dtypes * sizes


def _elements(text: str) -> float:
    shapes = parse_shapes(text)
    return float(np.prod(shapes[0], dtype=np.float64)) if shapes else float("nan")


def _stream(time: KernelTime, types: Text, claimed: Bools) -> _Stream:
    kernels = time.trace[KERNELS]
    steps = membership(time.trace, kernels, time.windows)
    start, stream = kernels.ints("start_ns"), kernels.ints("stream")
    rows = np.flatnonzero((steps >= 0) & (start != NULL))
    rows = rows[np.lexsort((start[rows], stream[rows], steps[rows]))]
    fusible = (kernel_classes(kernels).isin(_FUSIBLE) & ~claimed & (types.codes >= 0))[rows]
    ends = np.ones(len(rows), bool)
    ends[:-1] = (stream[rows][1:] != stream[rows][:-1]) | (steps[rows][1:] != steps[rows][:-1])
    # A border lies behind the last kernel of a stream, and at every kernel that cannot be joined.
    stops = np.flatnonzero(ends | ~fusible)
    place = np.arange(len(rows))
    stop = stops[np.searchsorted(stops, place)] if len(stops) else np.full(len(rows), len(rows))
    room = np.where(fusible, stop - place + fusible[np.clip(stop, 0, max(0, len(rows) - 1))], 0)
    duration = time.duration[rows]
    return _Stream(
        rows=rows, tokens=np.maximum(types.codes[rows], 0).astype(np.int64), room=room.astype(np.int64),
        before=np.concatenate(([0], np.cumsum(duration))).astype(np.int64), duration=duration,
    )  # fmt: skip


def _types(kernels: Table) -> Text:
    """Operator type of each kernel, or what its name says of it."""
    types, names = kernels.text("op_type"), kernels.text("name")
    if len(types) and (types.codes >= 0).all():
        return types
    is_gpu = bool(kernels.text("core").equals("SM").any())
    both = Text.concat([types, names if is_gpu else names.relabel(op_type_of_name)])
    codes = np.where(types.codes >= 0, both.codes[: len(types)], both.codes[len(types) :])
    return Text(codes.astype(np.int32), both.values)
