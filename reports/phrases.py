"""Fixed phrases that analyzers and parsers write as plain text, as readers of both languages see them.

`catalogues/phrases.yaml` holds cells, the other catalogues of `BOOKS` hold whole sentences. A `*` of a key stands for
a part that differs (a name, an amount), a `#` for a number: the words hold them as `*` in the same order, or as `{1}`,
`{2}` in another; `{1!}` is the phrase that the part is itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ascend_perf.model.finding import Words
from ascend_perf.reports.catalogue import loaded
from ascend_perf.reports.texts import MAX_TEXT, Lang
from ascend_perf.units import THIN_SPACE

BOOKS: Final = ("phrases", "formulas", "places", "input", "collect", "tools", "results", "virtual", "workloads")
"""Catalogues of phrases: cells of tables; how a share was computed; where evidence lies; what was read and missing;
what `ascend-perf collect` says of a run; what other tools say when they cannot go on; what
`bench`, `history`, `gate` and `compare` do not take; what runs on virtual NPUs do; what workloads do not take."""

MAX_DEPTH: Final = 3
"""How deep a part of a phrase may be a phrase itself."""

_SEPARATOR: Final = "; "
_HINT: Final = "\n  hint: "
"""Between what went wrong and the next step in the text of an error."""
_HINT_BEHIND: Final = " (hint: "
"""The same in a note, which has one line; a parenthesis ends it."""
_MEANT: Final = ": did you mean "
"""Between a word that nobody knows and the one that is like it, which a question mark ends."""
_SPACED: Final = re.compile(r"[\u4e00-\u9fff] $")
"""Chinese before a part that may be a number or a name; a part that is Chinese too needs no space."""
_MARK: Final = re.compile(r"\*|\{([1-9])(!?)\}")
_STAR: Final = re.compile(r"[*#]")
_DIGITS: Final = frozenset(f"0123456789.,{THIN_SPACE}")


@dataclass(frozen=True)
class _Part:
    """Place of a `*` in the words: its number from 0, and whether it is said in words of ours."""

    number: int
    is_phrase: bool


_Template = tuple[str | _Part, ...]


@dataclass(frozen=True)
class _Pattern:
    """A key with `*` or `#`: the text between them, which of them are numbers, the words with places for the parts."""

    literals: tuple[str, ...]
    numbers: tuple[int, ...]
    en: _Template
    zh: _Template

    @property
    def is_frame(self) -> bool:
        """Whether its end is another phrase: `settings of *: *`."""
        last = _Part(len(self.literals) - 2, is_phrase=True)
        return self.literals[-1] == "" and self.literals[-2].endswith(": ") and last in self.zh

    def parts_of(self, text: str) -> tuple[str, ...] | None:
        """What the marks stand for, each at least one character and as short as it can be; None when it is not this."""
        head, *middle, tail = self.literals
        if not (text.startswith(head) and text.endswith(tail)):
            return None
        at, end = len(head), len(text) - len(tail)
        parts = []
        for literal in middle:
            found = text.find(literal, at + 1, end)
            if found < 0:
                return None
            parts.append(text[at:found])
            at = found + len(literal)
        if at >= end:
            return None
        parts.append(text[at:end])
        return tuple(parts) if all(_DIGITS.issuperset(parts[i]) for i in self.numbers) else None


def phrase(text: str, column: str = "") -> Words:
    """A fixed phrase of the tool (component, place of evidence, drop reason) as readers see it.

    Phrases joined by "; " are looked up one by one. Text that is no phrase (a kernel's name) stays as it is.

    Args:
        text: the cell or sentence.
        column: name of its column, which can give a phrase a meaning of its own.
    """
    what, hinted, hint = text.partition(_HINT)
    if hinted and what and hint:
        problem, step = phrase(what), phrase(hint)
        return _hinted(problem, step)
    return _phrase(text, column, 0) or Words(text or "—", text or "—")


def spoken(text: str, lang: Lang) -> str:
    """A sentence of ours in one language. English is what analyzers and parsers wrote."""
    return text if lang == "en" or not text else phrase(text).zh


@lru_cache(maxsize=1)
def phrases() -> Mapping[str, Words]:
    """Words of all phrases by key; a catalogue that gives Chinese only keeps the key as English."""
    made: dict[str, Words] = {}
    for book in BOOKS:
        for key, said in loaded(book).items():
            if key in made:
                raise ValueError(f"phrase {key!r} is there twice")
            both = said if isinstance(said, list) else [key.replace("#", "*"), said]
            made[key] = Words(str(both[0]), str(both[1]))
    return made


@lru_cache(maxsize=4096)
def _phrase(text: str, column: str, depth: int) -> Words | None:
    if not text or len(text) > MAX_TEXT or depth > MAX_DEPTH:
        return None
    for name in (f"{column}/{text}", text) if column else (text,):
        if (found := phrases().get(name)) and not _STAR.search(name):
            return found
        if said := _with_hint(name, depth) or _with_meant(name, depth):
            return said
        if _SEPARATOR in text:
            continue
        for pattern in (*_around(name, depth), *_patterns()):
            if (parts := pattern.parts_of(name)) is not None:
                return Words(_filled(pattern.en, parts, "en", depth), _filled(pattern.zh, parts, "zh", depth))
    return _joined(text.split(_SEPARATOR), depth) if _SEPARATOR in text else None


def _with_hint(text: str, depth: int) -> Words | None:
    """A problem and its hint where both are phrases: what stands around a problem would take the hint for its end."""
    what, mark, hint = text.removesuffix(")").rpartition(_HINT_BEHIND)
    if not mark or not text.endswith(")"):
        return None
    step = _phrase(hint, "", depth + 1)
    problem = None if step is None else _phrase(what, "", depth + 1)
    return None if step is None or problem is None else _hinted(problem, step)


def _with_meant(text: str, depth: int) -> Words | None:
    """A problem and the word that was meant: what stands at the end of the problem would take both."""
    what, mark, meant = text.removesuffix("?").rpartition(_MEANT)
    problem = _phrase(what, "", depth + 1) if mark and text.endswith("?") and _SEPARATOR not in what else None
    return None if problem is None else Words(f"{problem.en}{_MEANT}{meant}?", f"{problem.zh}：是否指 {meant}？")


def _hinted(problem: Words, step: Words) -> Words:
    return Words(f"{problem.en} (hint: {step.en})", f"{problem.zh}（提示：{step.zh}）")


def _around(text: str, depth: int) -> Iterator[_Pattern]:
    """Phrases that stand around another one: that which they stand around may say more than they do."""
    for pattern in _frames():
        if (parts := pattern.parts_of(text)) and _phrase(parts[-1], "", depth + 1):
            yield pattern


def _joined(pieces: list[str], depth: int) -> Words | None:
    said = [_phrase(piece, "", depth) for piece in pieces]
    if not any(said):
        return None
    both = [words or Words(piece or " ", piece or " ") for words, piece in zip(said, pieces, strict=True)]
    return Words(_SEPARATOR.join(words.en for words in both), "；".join(words.zh for words in both))


@lru_cache(maxsize=1)
def _patterns() -> tuple[_Pattern, ...]:
    """Phrases with `*` or `#`, those that say most first."""
    made = []
    for key, words in phrases().items():
        stars = _STAR.findall(key)
        if stars:
            numbers = tuple(i for i, star in enumerate(stars) if star == "#")
            made.append(_Pattern(tuple(_STAR.split(key)), numbers, _template(words.en), _template(words.zh)))
    made.sort(key=lambda pattern: -sum(map(len, pattern.literals)))
    for pattern in made:
        asked = [item.number for item in (*pattern.en, *pattern.zh) if isinstance(item, _Part)]
        if asked and max(asked) > len(pattern.literals) - 2:
            raise ValueError(f"phrase {'*'.join(pattern.literals)!r} asks for a part that it does not have")
    return tuple(made)


@lru_cache(maxsize=1)
def _frames() -> tuple[_Pattern, ...]:
    """Patterns around another phrase. Those with words of their own in front come first: they are the outer ones."""
    return tuple(sorted((p for p in _patterns() if p.is_frame), key=lambda pattern: not pattern.literals[0]))


def _template(words: str) -> _Template:
    made: list[str | _Part] = []
    at = stars = 0
    for mark in _MARK.finditer(words):
        made.append(words[at : mark.start()])
        at = mark.end()
        if mark[1]:
            made.append(_Part(int(mark[1]) - 1, bool(mark[2])))
        else:
            made.append(_Part(stars, False))
            stars += 1
    return (*made, words[at:])


def _filled(template: _Template, parts: tuple[str, ...], lang: Lang, depth: int) -> str:
    said = ""
    for item in template:
        text = item if isinstance(item, str) else parts[item.number]
        if isinstance(item, _Part) and item.is_phrase and (words := _phrase(text, "", depth + 1)) is not None:
            text = words.en if lang == "en" else words.zh
            if "\u4e00" <= text[:1] <= "\u9fff" and _SPACED.search(said):
                said = said[:-1]
        said += text
    return said
