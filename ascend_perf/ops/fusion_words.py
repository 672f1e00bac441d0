"""Sequences of operators as words: one character per operator, patterns of fused operators as regular expressions.

A pattern is symbols in order, parted by blanks: `matmul (mul|add){0,5} softmax dropout? matmul @2`.

- `a|b` is either; `?` and `{m,n}` say how often; brackets are only for reading.
- `!a` at the end: what follows is not `a`.
- `@n`: up to n other operators may stand between two elements. Operators of `light` (casts, layout) always may.

The symbols and the names that stand for them are data: `fused/symbols.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.once import once
from ascend_perf.model.table import Bools, Ints, Table, Text
from ascend_perf.ops.classify import MAX_NAME, op_type_of_name
from ascend_perf.ops.fusions import Between, document

Codes = NDArray[np.int64]

OTHER: Final = 0
"""Code of what is no symbol."""
BREAK: Final = 1
"""Code of the border between two words: no pattern goes across."""
_FIRST: Final = 2
_BASE: Final = 0x100
"""Codes become characters from here on: none of them means anything in a regular expression."""
MAX_REPEATS: Final = 16
"""An element repeats at most this often, so that the search stays linear. Status: assumed."""

_ELEMENT: Final = re.compile(r"(!?)\(?([a-z_|]+)\)?(\?|\{(\d+)(?:,(\d+))?\})?")
_VERSION: Final = re.compile(r"v\d+$")


class Alphabet(NamedTuple):
    """Symbols of one kind of sequence in order; code of a symbol: its place plus 2."""

    symbols: tuple[str, ...]
    light: frozenset[str]
    """Symbols that may stand between any two elements, and belong to the match."""

    def code(self, symbol: str) -> int:
        """Code of a symbol.

        Raises:
            ValueError: there is no such symbol.
        """
        return self.symbols.index(symbol) + _FIRST


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A pattern ready to be searched for."""

    regex: re.Pattern[str]
    own: frozenset[int]
    """Codes that belong to a match; others inside of it (`@n`) do not."""
    needed: tuple[frozenset[int], ...]
    """A word that lacks all codes of one of these cannot match."""


class Spans(NamedTuple):
    """Matches in order: positions of the members, match after match, and where each match begins among them."""

    positions: Ints
    firsts: Ints


@cache
def host_alphabet() -> Alphabet:
    """Symbols of framework operators."""
    light = cast("list[str]", document("symbols")["light"])
    return Alphabet(("cast", *cast("dict[str, object]", document("symbols")["host"])), frozenset(light))


@cache
def kernel_alphabet() -> Alphabet:
    """Symbols of kernels."""
    rows = cast("list[dict[str, str]]", document("symbols")["kernels"])
    light = cast("list[str]", document("symbols")["between"])
    return Alphabet(tuple(row["name"] for row in rows), frozenset(light))


@cache
def host_codes() -> dict[str, int]:
    """Code by plain name of a framework operator; views, which are left out of words, have -1."""
    data = document("symbols")
    found = dict.fromkeys((_stripped(n) for n in cast("list[str]", data["views"])), -1)
    rows = {"cast": data["casts"], **cast("dict[str, object]", data["host"])}
    for symbol, names in rows.items():
        for name in cast("list[str]", names):
            if found.setdefault(_stripped(name), host_alphabet().code(symbol)) != host_alphabet().code(symbol):
                raise ValueError(f"{name} stands for two symbols")
    return found


def plain_name(name: str) -> str:
    """`aten::_softmax` -> `softmax`, `aten::mul_` -> `mul`, `c10d::allreduce_` -> `allreduce`."""
    return _stripped(name.rsplit("::", 1)[-1])


@once
def kernel_codes(kernels: Table) -> Codes:
    """Code of each kernel, from its op type, or from its name where that is not known or on a GPU; 0: no symbol.

    Reads:
        kernels: core, name, op_type.
    """
    is_gpu = bool(kernels.text("core").equals("SM").any())
    names, types = kernels.text("name"), kernels.text("op_type")
    if is_gpu:
        return _table(names, _gpu_code)
    by_type = _table(types, ascend_code)
    if (types.codes >= 0).all():
        return by_type
    return np.where(types.codes >= 0, by_type, _table(names, lambda name: ascend_code(op_type_of_name(name))))


@cache
def ascend_code(op_type: str) -> int:
    """Code of an Ascend op type."""
    plain = _VERSION.sub("", op_type[:MAX_NAME].lower())
    return next((n + _FIRST for n, (rule, _) in enumerate(_rules()) if rule is not None and rule.search(plain)), OTHER)


def compiled(pattern: str, alphabet: Alphabet, between: Between | None = None) -> Compiled:
    """A pattern as a regular expression over characters.

    Args:
        pattern: as the module describes.
        alphabet: of the words to search.
        between: symbols (and how many) that may stand between two elements though they are none of the pattern's.

    Raises:
        ValueError: the pattern is none.
    """
    parts = pattern.split()
    most = int(parts.pop()[1:]) if parts and parts[-1].startswith("@") else 0
    elements = [_element(part, alphabet) for part in parts]
    ahead = [item for item in elements if item.is_ahead]
    body = [item for item in elements if not item.is_ahead]
    if not body or elements[len(body) :] != ahead or all(item.least == 0 for item in body):
        raise ValueError(f"no pattern: {pattern!r}")
    light = _chars(alphabet.code(symbol) for symbol in alphabet.light)
    gap = _gap(light, most, between, alphabet)
    main = next(i for i, item in enumerate(body) if item.least)
    regex = "".join(f"(?:[{item.chars}]{gap}){item.times}" for item in body[:main])
    least, extra = body[main].least, body[main].most - body[main].least
    regex += f"[{body[main].chars}]" + f"(?:{gap}[{body[main].chars}]){{{least - 1},{least - 1 + extra}}}"
    regex += "".join(f"(?:{gap}[{item.chars}]){item.times}" for item in body[main + 1 :])
    regex += "".join(f"(?![{light}]*[{item.chars}])" for item in ahead)
    own = frozenset(code for item in body for code in item.codes) | {alphabet.code(s) for s in alphabet.light}
    return Compiled(
        regex=re.compile(regex), own=own, needed=tuple(frozenset(item.codes) for item in body if item.least)
    )  # fmt: skip


def word_of(codes: Codes) -> str:
    """Codes as text, one character each."""
    return (codes + _BASE).astype("<u4").tobytes().decode("utf-32-le")


def spans(pattern: Compiled, codes: Codes, word: str) -> Spans:
    """Matches of a pattern from left to right without overlap; what belongs to no element is left out.

    Args:
        pattern: to search for.
        codes: the sequence, borders as `BREAK`.
        word: `word_of(codes)`.
    """
    found = np.array([match.span() for match in pattern.regex.finditer(word)], np.int64).reshape(-1, 2)
    begins, lengths = found[:, 0], found[:, 1] - found[:, 0]
    match_of = np.repeat(np.arange(len(found)), lengths)
    positions = begins[match_of] + np.arange(len(match_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = np.isin(codes[positions], list(pattern.own))
    positions, match_of = positions[kept], match_of[kept]
    return Spans(positions.astype(np.int64), np.searchsorted(match_of, np.arange(len(found))).astype(np.int64))


def holds(pattern: Compiled, present: frozenset[int]) -> bool:
    """Whether words of these codes can match at all."""
    return all(not wanted.isdisjoint(present) for wanted in pattern.needed)


class _Element(NamedTuple):
    codes: tuple[int, ...]
    least: int
    most: int
    is_ahead: bool

    @property
    def chars(self) -> str:
        return _chars(self.codes)

    @property
    def times(self) -> str:
        return f"{{{self.least},{self.most}}}"


def _element(text: str, alphabet: Alphabet) -> _Element:
    found = _ELEMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"no element of a pattern: {text!r}")
    ahead, names, times, low, high = found.groups()
    least, most = (0, 1) if times == "?" else (int(low), int(high or low)) if times else (1, 1)
    if not (0 <= least <= most <= MAX_REPEATS and most):
        raise ValueError(f"repeats out of range: {text!r}")
    return _Element(tuple(alphabet.code(name) for name in names.split("|")), least, most, bool(ahead))


def _gap(light: str, most: int, between: Between | None, alphabet: Alphabet) -> str:
    """What may stand between two elements, as little of it as fits."""
    border = chr(BREAK + _BASE)
    gap = f"[{light}]*?"
    if most:
        gap += f"(?:[^{light}{border}][{light}]*?){{0,{most}}}?"
    elif between is not None:
        gap += f"(?:[{_chars(alphabet.code(s) for s in between.symbols)}][{light}]*?){{0,{between.most}}}?"
    return gap


def _chars(codes: Iterable[int]) -> str:
    return "".join(chr(code + _BASE) for code in sorted(codes))


def _stripped(name: str) -> str:
    return name.strip("_")


def _table(text: Text, code_of: Callable[[str], int]) -> Codes:
    made = [code_of(value) for value in text.values]
    return np.array([*made, OTHER], np.int64)[text.codes]


@cache
def _rules() -> tuple[tuple[re.Pattern[str] | None, re.Pattern[str] | None], ...]:
    rows = cast("list[dict[str, str]]", document("symbols")["kernels"])
    return tuple(
        (_regex(row["ascend"]), _regex(row["gpu"])) for row in rows
    )  # fmt: skip


def _regex(text: str) -> re.Pattern[str] | None:
    return re.compile(text, re.IGNORECASE) if text else None


@lru_cache(maxsize=1 << 14)
def _gpu_code(name: str) -> int:
    name = name[:MAX_NAME]
    return next((n + _FIRST for n, (_, rule) in enumerate(_rules()) if rule is not None and rule.search(name)), OTHER)


def breaks_inserted(codes: Codes, rows: Ints, groups: Sequence[Ints | NDArray[np.int32]]) -> tuple[Codes, Ints]:
    """Codes with a border wherever one of the groups changes, and the row of each place (-1 at borders)."""
    changes = np.zeros(max(0, len(codes) - 1), bool)
    for group in groups:
        changes |= np.diff(group) != 0
    at = np.flatnonzero(changes) + 1
    return np.insert(codes, at, BREAK), np.insert(rows, at, -1)


def is_symbol(codes: Codes) -> Bools:
    """Places that hold a symbol."""
    result: Bools = codes >= _FIRST
    return result
