"""Repeated sequences of short kernels on a stream, found by counting n-grams of operator types.

Occurrences of a sequence never overlap, and neither do two sequences, so that nothing counts twice however often a
step repeats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._kernels import KernelTime
from ascend_perf.analyzers._steps import membership
from ascend_perf.analyzers._thresholds import threshold
from ascend_perf.model.once import once
from ascend_perf.model.table import NULL, Bools, Ints, Table, Text
from ascend_perf.model.tables import KERNELS
from ascend_perf.ops.classify import op_type_of_name

MIN_LENGTH: Final = 2
MAX_LENGTH: Final = 10
"""Lengths of sequences. Source: row H-03."""
MIN_REPEATS: Final = threshold("H-03", "min_repeats")
MAX_BUSY_RATIO: Final = threshold("H-03", "max_busy_ratio")
MAX_MEAN_NS: Final = threshold("H-03", "max_mean_ns")
MAX_GAP_NS: Final = threshold("H-03", "max_gap_ns")
MAX_SYNC_NAME: Final = 200
"""Names are looked at up to here. Status: assumed."""
MAX_CANDIDATES: Final = 400
"""Sequences that are looked at one by one, those with the longest gaps first. Status: assumed."""
MAX_SEQUENCES: Final = 30
"""Sequences that are reported at most. Status: assumed."""

_READ_BACK: Final = re.compile(r"^(nonzero|maskedselect|unique|where$)|DeviceSelect|nonzero|unique", re.IGNORECASE)
"""After these the host waits for the size of the output: the pause behind them is a synchronisation (row H-05)."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One sequence and its occurrences."""

    types: tuple[str, ...]
    starts_ns: Ints
    """Start of the first kernel of each occurrence."""
    ends_ns: Ints
    busy_ns: int
    wall_ns: int
    first_row: int
    """Row of the kernel table where the first occurrence begins."""

    @property
    def count(self) -> int:
        """Occurrences over all steps."""
        return len(self.starts_ns)


@dataclass(frozen=True, kw_only=True)
class _Word:
    """Kernels in order of step, stream and start; `breaks[i]` where no sequence goes on from i - 1 to i."""

    rows: Ints
    tokens: Ints
    breaks: Bools
    starts: Ints
    ends: Ints
    busy: Ints
    """Running sum of durations: entry i is the sum before kernel i; one longer than the others."""


@once
def repeats_of(time: KernelTime) -> tuple[Repeat, ...]:
    """Sequences of 2 to 10 short kernels that repeat more than five times per step, by the length of their gaps.

    Reads:
        kernels: start_ns, dur_ns, stream, op_type, name.

    Source:
        Row H-03; the vendor's tool counts overlapping windows several times, this one never does.
    """
    word, labels = _word(time)
    least = MIN_REPEATS.whole * time.steps + 1
    candidates = []
    grams, alive = word.tokens, word.tokens >= 0
    for length in range(2, MAX_LENGTH + 1):
        grams, alive = _longer(word, grams, alive, length, least)
        if not alive.any():
            break
        candidates += _candidates(word, grams, alive, length, least)
    candidates.sort(key=lambda item: (-item[0], len(item[1])))
    taken = np.zeros(len(word.rows), bool)
    found = []
    for _, tokens, positions in candidates[:MAX_CANDIDATES]:
        length = len(tokens)
        used = np.concatenate(([0], np.cumsum(taken)))
        free = positions[used[positions + length] == used[positions]]
        if len(free) < least or not _is_launch_bound(word, free, length):
            continue
        taken[(free[:, None] + np.arange(length)).ravel()] = True
        found.append(
            Repeat(
                types=tuple(labels[token] for token in tokens), starts_ns=word.starts[free],
                ends_ns=word.ends[free + length - 1], busy_ns=int((word.busy[free + length] - word.busy[free]).sum()),
                wall_ns=int((word.ends[free + length - 1] - word.starts[free]).sum()),
                first_row=int(word.rows[free[0]]),
            )
        )  # fmt: skip
        if len(found) == MAX_SEQUENCES:
            break
    return tuple(found)


def non_overlapping(positions: Ints, groups: Ints, length: int) -> Bools:
    """Leftmost occurrences of each group that do not overlap.

    Args:
        positions: in ascending order inside each group, shape (n,).
        groups: ascending, shape (n,).
        length: how many places an occurrence covers.
    """
    count = len(positions)
    if not count:
        return np.zeros(0, bool)
    # One axis for all groups, with room between them, so that one search finds the next free occurrence of each.
    stride = int(positions.max()) + length + 1
    _, dense = np.unique(groups, return_inverse=True)
    axis = dense * stride + positions
    following = np.searchsorted(axis, axis + length, side="left")
    inside = (following < count) & (dense[np.clip(following, 0, count - 1)] == dense)
    jump = np.append(np.where(inside, following, count), count)
    reached = np.zeros(count + 1, bool)
    reached[:-1][np.concatenate(([True], dense[1:] != dense[:-1]))] = True
    # Doubling: after round k everything up to 2^k jumps from a head is reached.
    for _ in range(count.bit_length()):
        reached[jump[reached]] = True
        jump = jump[jump]
    return reached[:-1]


def _word(time: KernelTime) -> tuple[_Word, tuple[str, ...]]:
    kernels = time.trace[KERNELS]
    steps = membership(time.trace, kernels, time.windows)
    rows = np.flatnonzero((steps >= 0) & (kernels.ints("start_ns") != NULL) & (kernels.ints("dur_ns") != NULL))
    stream = kernels.ints("stream")
    rows = rows[np.lexsort((kernels.ints("start_ns")[rows], stream[rows], steps[rows]))]
    types = _types(kernels)
    starts, ends = kernels.ints("start_ns")[rows], kernels.ends_ns()[rows]
    breaks = np.ones(len(rows), bool)
    breaks[1:] = (stream[rows][1:] != stream[rows][:-1]) | (steps[rows][1:] != steps[rows][:-1])
    breaks[1:] |= starts[1:] - ends[:-1] > MAX_GAP_NS.value
    breaks |= types.codes[rows] < 0
    read_back = types.flags(lambda name: bool(_READ_BACK.search(name[:MAX_SYNC_NAME])))[rows]
    breaks[1:] |= read_back[:-1]
    word = _Word(
        rows=rows, tokens=types.codes[rows].astype(np.int64), breaks=breaks, starts=starts, ends=ends,
        busy=np.concatenate(([0], np.cumsum(ends - starts))).astype(np.int64),
    )  # fmt: skip
    return word, tuple(types.values)


def _types(kernels: Table) -> Text:
    """Operator type of each kernel, or what its name says of it."""
    types = kernels.text("op_type")
    if len(types) and (types.codes >= 0).all():
        return types
    is_gpu = bool(kernels.text("core").equals("SM").any())
    names = kernels.text("name")
    both = Text.concat([types, names if is_gpu else names.relabel(op_type_of_name)])
    codes = np.where(types.codes >= 0, both.codes[: len(types)], both.codes[len(types) :])
    return Text(codes.astype(np.int32), both.values)


def _longer(word: _Word, grams: Ints, alive: Bools, length: int, least: int) -> tuple[Ints, Bools]:
    """Codes of the sequences of `length` that begin at each place, from those one shorter; rare ones are dropped."""
    count = len(word.rows)
    going = np.zeros(count, bool)
    last = np.arange(count) + length - 1
    fits = alive & (last < count)
    going[fits] = ~word.breaks[last[fits]]
    at = np.flatnonzero(going)
    if not len(at):
        return grams, going
    keys = grams[at] * (int(word.tokens.max()) + 1) + word.tokens[at + length - 1]
    _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
    frequent = counts[codes] >= least
    longer = np.zeros(count, np.int64)
    longer[at] = codes
    going[at[~frequent]] = False
    return longer, going


def _candidates(
    word: _Word, grams: Ints, alive: Bools, length: int, least: int
) -> list[tuple[int, tuple[int, ...], Ints]]:
    """(gap ns, tokens, positions) of the sequences of one length that are short and mostly gap."""
    at = np.flatnonzero(alive)
    order = np.lexsort((at, grams[at]))
    at, codes = at[order], grams[at][order]
    at, codes = _picked(at, codes, non_overlapping(at, codes, length))
    heads = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    counts = np.diff(np.append(heads, len(at)))
    busy = np.add.reduceat(word.busy[at + length] - word.busy[at], heads)
    wall = np.add.reduceat(word.ends[at + length - 1] - word.starts[at], heads)
    good = (counts >= least) & (busy < MAX_BUSY_RATIO.value * wall) & (busy <= MAX_MEAN_NS.value * length * counts)
    found = []
    for group in np.flatnonzero(good).tolist():
        begin, end = int(heads[group]), int(heads[group] + counts[group])
        tokens = tuple(word.tokens[at[begin] : at[begin] + length].tolist())
        if not _is_periodic(tokens):
            found.append((int(wall[group] - busy[group]), tokens, at[begin:end]))
    return found


def _picked(at: Ints, codes: Ints, keep: Bools) -> tuple[Ints, Ints]:
    return at[keep], codes[keep]


def _is_launch_bound(word: _Word, at: Ints, length: int) -> bool:
    busy = int((word.busy[at + length] - word.busy[at]).sum())
    wall = int((word.ends[at + length - 1] - word.starts[at]).sum())
    return busy < MAX_BUSY_RATIO.value * wall and busy <= MAX_MEAN_NS.value * length * len(at)


def _is_periodic(tokens: tuple[int, ...]) -> bool:
    """Whether a sequence is a shorter one written at least twice (ABAB, ABABA): the shorter one tells it better."""
    length = len(tokens)
    return any(tokens[period:] == tokens[: length - period] for period in range(1, length // 2 + 1)) and length > 2
