"""Occurrences of the sequences that fused operators replace: among framework operators and among device kernels.

Framework operators decide where the trace joins kernels to them: the kernels of a match must be there and none may be
fused already. Elsewhere the order of kernels on a stream decides. A kernel belongs to one match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ascend_perf.model.table import NULL, Bools, Floats, Ints, Table
from ascend_perf.ops.fusion_host import HostSequence, backward_matches, host_sequence
from ascend_perf.ops.fusion_words import (
    Alphabet,
    Codes,
    Compiled,
    Spans,
    breaks_inserted,
    compiled,
    holds,
    host_alphabet,
    kernel_alphabet,
    kernel_codes,
    spans,
    word_of,
)
from ascend_perf.ops.fusions import Between, Fusion

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Matches of one fusion; `rows` match after match, the other arrays hold one entry per match or per row."""

    rows: Ints
    """Rows of the kernel table, shape (kernels in matches,)."""
    firsts: Ints
    """Where each match begins in `rows`, shape (matches,)."""
    host: Ints
    """Row of host_ops of the first operator of each match, -1 where kernels alone tell. Shape (matches,)."""
    forward: Bools
    """Per match: whether it is of the forward; a match of the backward counts with its forward."""
    behind: Bools
    """Per row: a kernel of the backward that a match of the forward brought about."""

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def of(self) -> Ints:
        """The match of each row, shape (kernels in matches,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def lengths(self) -> Ints:
        """Kernels of each match."""
        return np.diff(np.append(self.firsts, len(self.rows)))

    @property
    def occurrences(self) -> int:
        """Matches of the forward."""
        return int(self.forward.sum())

    def keep(self, chosen: Bools) -> Matches:
        """The chosen matches, shape of `chosen` (matches,)."""
        rows = chosen[self.of]
        lengths = self.lengths[chosen]
        return Matches(
            rows=self.rows[rows], firsts=(np.cumsum(lengths) - lengths).astype(np.int64), host=self.host[chosen],
            forward=self.forward[chosen], behind=self.behind[rows],
        )  # fmt: skip

    def touch(self, taken: Bools) -> Bools:
        """Matches with a kernel of `taken` (kernels,)."""
        if not len(self):
            return np.zeros(0, bool)
        return np.asarray(np.logical_or.reduceat(taken[self.rows], self.firsts), bool)

    @classmethod
    def join(cls, parts: Sequence[Matches]) -> Matches:
        """Matches of all parts, one after the other."""
        sizes = np.cumsum([0, *(len(part.rows) for part in parts)])
        return cls(
            rows=np.concatenate([_NONE, *(part.rows for part in parts)]),
            firsts=np.concatenate([_NONE, *(part.firsts + at for part, at in zip(parts, sizes, strict=False))]),
            host=np.concatenate([_NONE, *(part.host for part in parts)]),
            forward=np.concatenate([np.zeros(0, bool), *(part.forward for part in parts)]),
            behind=np.concatenate([np.zeros(0, bool), *(part.behind for part in parts)]),
        )


def find_fusions(kernels: Table, host_ops: Table, steps: Ints, wanted: Iterable[Fusion]) -> dict[str, Matches]:
    """Matches of every fusion by its id; those of one fusion do not overlap, those of two may (see `chosen`).

    Args:
        kernels: kernels in any order.
        host_ops: framework operators; may be empty.
        steps: step of each kernel, -1 outside of all (such kernels are left out).
        wanted: the fusions to look for.

    Reads:
        kernels: start_ns, stream, op_type, name, core, host_op; host_ops: start_ns, dur_ns, name, thread,
        sequence_number.
    """
    words = _KernelWord.of(kernels, steps)
    host = _HostWord.of(kernels, host_ops, steps) if len(host_ops) and kernels.has("host_op") else None
    found = {}
    for fusion in wanted:
        parts = [] if host is None else [host.matches(fusion)]
        taken = np.zeros(len(kernels), bool)
        for part in parts:
            taken[part.rows] = True
        for pattern in fusion.kernels:
            part = words.matches(_kernel_pattern(pattern, fusion.between))
            part = part.keep(~part.touch(taken))
            taken[part.rows] = True
            parts.append(part)
        if any(len(part) for part in parts):
            for pattern in fusion.backward:
                part = words.matches(_kernel_pattern(pattern, fusion.between), forward=False)
                part = part.keep(~part.touch(taken))
                taken[part.rows] = True
                parts.append(part)
            found[fusion.id] = Matches.join(parts)
    return found


def chosen(found: Mapping[str, Matches], saved_ns: Mapping[str, Floats]) -> dict[str, Matches]:
    """Each kernel in one match only: fusions whose matches save most (on average) come first, then the longer ones.

    Args:
        found: matches by fusion.
        saved_ns: what each match could save, by fusion, shape (matches,).
    """
    order = sorted(
        (name for name, matches in found.items() if len(matches)),
        key=lambda name: (-float(saved_ns[name].mean()), -float(found[name].lengths.mean()), name),
    )
    size = max((int(found[name].rows.max()) + 1 for name in order), default=0)
    taken = np.zeros(size, bool)
    result = {}
    for name in order:
        free = found[name].keep(~found[name].touch(taken))
        taken[free.rows] = True
        if free.occurrences:
            result[name] = free
    return result


@dataclass(frozen=True, kw_only=True)
class _KernelWord:
    codes: Codes
    rows: Ints
    word: str
    present: frozenset[int]

    @classmethod
    def of(cls, kernels: Table, steps: Ints) -> _KernelWord:
        rows = np.flatnonzero((steps >= 0) & (kernels.ints("start_ns") != NULL))
        stream = kernels.ints("stream")
        rows = rows[np.lexsort((kernels.ints("start_ns")[rows], stream[rows], steps[rows]))]
        codes, at = breaks_inserted(kernel_codes(kernels)[rows], rows, [stream[rows], steps[rows]])
        return cls(codes=codes, rows=at, word=word_of(codes), present=frozenset(np.unique(codes).tolist()))

    def matches(self, pattern: Compiled, *, forward: bool = True) -> Matches:
        """Matches in order; only those of two kernels or more."""
        if not holds(pattern, self.present):
            return _matches(_NONE, _NONE)
        found = spans(pattern, self.codes, self.word)
        made = _matches(self.rows[found.positions], found.firsts, forward=forward)
        return made.keep(made.lengths >= 2)


@dataclass(frozen=True, kw_only=True)
class _HostWord:
    kernels: Table
    host_ops: Table
    steps: Ints
    sequence: HostSequence
    codes: Codes
    rows: Ints
    word: str
    present: frozenset[int]
    fused: Codes

    @classmethod
    def of(cls, kernels: Table, host_ops: Table, steps: Ints) -> _HostWord:
        sequence = host_sequence(host_ops)
        codes, rows = breaks_inserted(sequence.codes, sequence.rows, [sequence.thread])
        return cls(
            kernels=kernels, host_ops=host_ops, steps=steps, sequence=sequence, codes=codes, rows=rows,
            word=word_of(codes), present=frozenset(np.unique(codes).tolist()), fused=kernel_codes(kernels),
        )  # fmt: skip

    def matches(self, fusion: Fusion) -> Matches:
        """Matches whose kernels are known, at least two of them from two operators, and none of them fused."""
        parts = []
        used = np.zeros(len(self.host_ops), bool)
        for pattern in fusion.host:
            regex = _host_pattern(pattern)
            if not holds(regex, self.present):
                continue
            part = self._confirmed(spans(regex, self.codes, self.word), fusion, used)
            if len(part):
                parts.append(part)
        return Matches.join(parts)

    def _confirmed(self, found: Spans, fusion: Fusion, used: Bools) -> Matches:
        if not len(found.firsts):
            return _matches(_NONE, _NONE)
        calls = self.rows[found.positions]
        lengths = np.diff(np.append(found.firsts, len(calls)))
        match = np.repeat(np.arange(len(found.firsts)), lengths)
        fresh = ~np.logical_or.reduceat(used[calls], found.firsts)
        match_of = np.full(len(self.host_ops), -1, np.int64)
        match_of[calls[fresh[match]]] = match[fresh[match]]
        used[calls] = True
        launched = self.kernels.ints("host_op")
        known = (launched >= 0) & (launched < len(self.host_ops)) & (self.steps >= 0)
        known &= self.kernels.ints("start_ns") != NULL
        safe = np.where(known, launched, 0)
        top = self.sequence.top[safe]
        of = np.where(known & (top >= 0), match_of[np.clip(top, 0, None)], -1)
        below = backward_matches(self.host_ops, self.sequence, match_of)
        behind = known & (self.sequence.node[safe] >= 0)
        of = np.where(behind, np.where(known, below[safe], -1), of)
        rows = np.flatnonzero(of >= 0)
        rows = rows[np.lexsort((self.kernels.ints("start_ns")[rows], behind[rows], of[rows]))]
        if not len(rows):
            return _matches(_NONE, _NONE)
        made = _matches(rows, np.flatnonzero(np.append(True, np.diff(of[rows]) != 0)))
        first = of[rows][made.firsts]
        # Kernels of two operators at least, in the step of the first; the backward may be missing.
        forward = ~behind[rows]
        operators = self.sequence.top[launched[rows]]
        another = forward & np.append(False, (operators[1:] != operators[:-1]) & (of[rows][1:] == of[rows][:-1]))
        enough = np.logical_or.reduceat(another, made.firsts)
        is_fused = self._is_fused(fusion)[rows]
        good = enough & ~np.logical_or.reduceat(is_fused, made.firsts) & forward[made.firsts]
        made = Matches(
            rows=rows, firsts=made.firsts, host=calls[found.firsts[first]], forward=made.forward, behind=behind[rows]
        )
        return made.keep(good)

    def _is_fused(self, fusion: Fusion) -> Bools:
        types = self.kernels.text("op_type")
        if bool(self.kernels.text("core").equals("SM").any()):
            return np.asarray(self.fused == kernel_alphabet().code("fused"), bool)
        return types.isin(fusion.fused)


def _matches(rows: Ints, firsts: Ints, *, forward: bool = True) -> Matches:
    return Matches(
        rows=rows, firsts=firsts.astype(np.int64), host=np.full(len(firsts), -1, np.int64),
        forward=np.full(len(firsts), forward), behind=np.zeros(len(rows), bool),
    )  # fmt: skip


@cache
def _host_pattern(pattern: str) -> Compiled:
    return compiled(pattern, host_alphabet())


@cache
def _kernel_pattern(pattern: str, between: Between | None) -> Compiled:
    alphabet: Alphabet = kernel_alphabet()
    return compiled(pattern, alphabet, between)
