"""The matcher of sequences against one that tries every way to match, written for lists of names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.ops.fusion_words import (
    BREAK,
    Alphabet,
    breaks_inserted,
    compiled,
    holds,
    host_alphabet,
    kernel_alphabet,
    spans,
    word_of,
)
from ascend_perf.ops.fusions import Between, fusions
from tests.ops._fusion_samples import ELEMENT

BORDER = "|"
OTHER = "?"
PATTERNS = [
    (pattern, alphabet, row.between if alphabet is kernel_alphabet() else None)
    for row in fusions()
    for alphabet, patterns in ((host_alphabet(), row.host), (kernel_alphabet(), (*row.kernels, *row.backward)))
    for pattern in patterns
]


def by_hand(
    pattern: str, names: Sequence[str], light: frozenset[str], between: Between | None
) -> list[tuple[int, int]]:
    """Spans of a pattern in a list of symbols: leftmost, as many of an element as fit, as little between as fits."""
    parts = pattern.split()
    gap = int(parts.pop()[1:]) if parts[-1].startswith("@") else 0
    elements, ahead = [], set()
    for part in parts:
        found = ELEMENT.fullmatch(part)
        assert found is not None
        no, listed, times, low, high = found.groups()
        if no:
            ahead |= set(listed.split("|"))
            continue
        least, most = (0, 1) if times == "?" else (int(low), int(high or low)) if times else (1, 1)
        elements.append((set(listed.split("|")), least, most))

    def lights(at: int) -> Iterator[int]:
        yield at
        while at < len(names) and names[at] in light:
            at += 1
            yield at

    def others(at: int, left: int) -> Iterator[int]:
        yield at
        if left and at < len(names) and names[at] != BORDER and names[at] not in light:
            strange = names[at] in between.symbols if between is not None and not gap else True
            if strange:
                for after in lights(at + 1):
                    yield from others(after, left - 1)

    def skipped(at: int) -> Iterator[int]:
        for after in lights(at):
            yield from others(after, gap or (between.most if between is not None else 0))

    def match(element: int, done: int, at: int, begun: bool) -> Iterator[int]:
        if element == len(elements):
            after = at
            while after < len(names) and names[after] in light and names[after] not in ahead:
                after += 1
            if not ahead or not any(names[i] in ahead for i in range(at, min(after + 1, len(names)))):
                yield at
            return
        wanted, least, most = elements[element]
        if done < most:
            for place in skipped(at) if begun else [at]:
                if place < len(names) and names[place] in wanted:
                    yield from match(element, done + 1, place + 1, True)
        if done >= least:
            yield from match(element + 1, 0, at, begun)

    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(names):
        end = next(match(0, 0, at, False), None)
        if end is None:
            at += 1
        else:
            ranges.append((at, end))
            at = end
    return ranges


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Alphabet, Between | None, list[str]]:
    pattern, alphabet, between = draw(st.sampled_from(PATTERNS))
    own = sorted({name for name in alphabet.symbols if name in re.findall("[a-z_]+", pattern)})
    symbols = [*own * 3, *sorted(alphabet.light), *(between.symbols if between else ()), OTHER, BORDER]
    return pattern, alphabet, between, draw(st.lists(st.sampled_from(symbols), max_size=40))


@settings(max_examples=600, deadline=None)
@given(cases())
def test_spans_are_those_found_by_trying(case: tuple[str, Alphabet, Between | None, list[str]]) -> None:
    pattern, alphabet, between, names = case
    codes = np.array(
        [BREAK if name == BORDER else 0 if name == OTHER else alphabet.code(name) for name in names], np.int64
    )
    regex = compiled(pattern, alphabet, between)

    found = spans(regex, codes, word_of(codes))

    expected = by_hand(pattern, names, alphabet.light, between)
    own = {alphabet.symbols[code - 2] for code in regex.own}
    assert len(found.firsts) == len(expected)
    assert found.positions.tolist() == [i for begin, end in expected for i in range(begin, end) if names[i] in own]
    if expected:
        assert holds(regex, frozenset(codes.tolist()))
        assert [int(found.positions[first]) for first in found.firsts] == [begin for begin, _ in expected]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_borders_stand_where_a_group_changes(pairs: list[tuple[int, int]]) -> None:
    codes = np.array([code + 2 for code, _ in pairs], np.int64)
    group = np.array([one for _, one in pairs], np.int64)

    made, rows = breaks_inserted(codes, np.arange(len(codes)), [group])

    expected: list[tuple[int, int]] = []
    for i, (code, one) in enumerate(pairs):
        if i and pairs[i - 1][1] != one:
            expected.append((BREAK, -1))
        expected.append((code + 2, i))
    assert list(zip(made.tolist(), rows.tolist(), strict=True)) == expected


def test_a_long_word_costs_little() -> None:
    # Half a million operators that begin every pattern and end none.
    for symbols in (["matmul", "mul", "add"], ["mul"], ["softmax"], ["cut", "permute"]):
        codes = np.array([host_alphabet().code(name) for name in symbols] * (500_000 // len(symbols)), np.int64)
        word = word_of(codes)
        pattern = compiled("matmul (mul|add){0,5} softmax dropout? matmul @2", host_alphabet())
        assert len(spans(pattern, codes, word).firsts) == 0


@pytest.mark.parametrize("text", ["mul @x", "@1", "mul{a}"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        compiled(text, host_alphabet())
