"""Texts as tokens: Chinese by characters, the rest by words and pieces of words, as BERT has it.

Source:
    Devlin et al., 2018, and the reference tokenizer of BERT: clean, space out Chinese characters, lower case without
    accents, cut at punctuation, then the longest piece of the vocabulary first, continued pieces marked by `##`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ascend_perf.errors import InputError

PAD: Final = "[PAD]"
UNKNOWN: Final = "[UNK]"
FIRST: Final = "[CLS]"
BETWEEN: Final = "[SEP]"
SPECIAL: Final = (PAD, UNKNOWN, FIRST, BETWEEN, "[MASK]")
MAX_WORD: Final = 100
"""A longer word is unknown. Source: the reference tokenizer."""
MAX_VOCABULARY_BYTES: Final = 1 << 26

_CHINESE: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPiece:
    """A vocabulary, and texts cut by it."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens
        self._pieces: dict[str, list[int]] = {}

    @classmethod
    def from_file(cls, path: Path) -> WordPiece:
        """The vocabulary of a vocab.txt: a token per line, numbered from 0.

        Raises:
            InputError: the file cannot be read, or lacks a special token.
        """
        try:
            if path.stat().st_size > MAX_VOCABULARY_BYTES:
                raise InputError(f"{path.name} is too large for a vocabulary")
            lines = path.read_text("utf-8").splitlines()
        except OSError as error:
            raise InputError(f"{path.name}: the vocabulary is not readable: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path.name}: the vocabulary is no UTF-8 text") from error
        tokens = {line.rstrip(): number for number, line in enumerate(lines)}
        if missing := [name for name in SPECIAL[:4] if name not in tokens]:
            raise InputError(f"{path.name} is no vocabulary of BERT: it has no {missing[0]}", hint="a token per line")
        return cls(tokens)

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int) -> WordPiece:
        """The special tokens, then the commonest characters of the texts, alone and as continued pieces."""
        counts: Counter[str] = Counter()
        for text in texts:
            for word in words(text):
                counts[word[0]] += 1
                counts.update(f"##{letter}" for letter in word[1:])
        common = sorted(counts, key=lambda token: (-counts[token], token))[: max(0, size - len(SPECIAL))]
        return cls({token: number for number, token in enumerate((*SPECIAL, *common))})

    def cut(self, text: str) -> list[int]:
        """Numbers of a text's tokens, special ones left out."""
        return [piece for word in words(text) for piece in self._pieces_of(word)]

    def encode(self, first: str, second: str | None, max_tokens: int) -> tuple[list[int], list[int]]:
        """Numbers and segments of `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`.

        What is too long loses tokens at the end, of a pair the longer of the two.
        """
        a = self.cut(first)
        b = None if second is None else self.cut(second)
        room = max_tokens - (2 if b is None else 3)
        while len(a) + len(b or ()) > room:
            (a if b is None or len(a) > len(b) else b).pop()
        start, end = self.tokens[FIRST], self.tokens[BETWEEN]
        numbers, segments = [start, *a, end], [0] * (len(a) + 2)
        if b is not None:
            numbers, segments = [*numbers, *b, end], [*segments, *[1] * (len(b) + 1)]
        return numbers, segments

    def _pieces_of(self, word: str) -> list[int]:
        known = self._pieces.get(word)
        if known is None:
            known = self._pieces[word] = self._cut_word(word)
        return known

    def _cut_word(self, word: str) -> list[int]:
        unknown = [self.tokens[UNKNOWN]]
        if len(word) > MAX_WORD:
            return unknown
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self.tokens.get(("##" if start else "") + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return unknown
        return found


def words(text: str) -> Sequence[str]:
    """Words, single Chinese characters and single punctuation marks of a text, in lower case without accents."""
    spaced: list[str] = []
    for letter in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(letter)
        if category == "Mn" or letter == "\ufffd" or (category[0] == "C" and letter not in "\t\n\r"):
            continue
        alone = _is_chinese(ord(letter)) or _is_punctuation(letter, category)
        spaced.append(f" {letter} " if alone else letter)
    return "".join(spaced).split()


def _is_chinese(code: int) -> bool:
    return any(first <= code <= last for first, last in _CHINESE)


def _is_punctuation(letter: str, category: str) -> bool:
    # Signs like $ and ^ are no punctuation for Unicode, but for BERT.
    return category[0] == "P" or (letter.isascii() and category[0] in "S")
