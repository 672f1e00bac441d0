"""Cells of large result tables: sequences over numpy columns that make plain Python values only when asked.

A column of 60,000 integers takes 0.5 MB as an array and 2.4 MB as a tuple, and a job has a timeline per rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ascend_perf.model.table import NULL, Ints, Text


class IntCells(Sequence[int | None]):
    """Cells over an int64 column; `NULL` reads as None."""

    __slots__ = ("values",)

    def __init__(self, values: Ints) -> None:
        self.values = np.ascontiguousarray(values, np.int64)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> int | None: ...
    @overload
    def __getitem__(self, at: slice) -> IntCells: ...
    def __getitem__(self, at: int | slice) -> int | IntCells | None:
        if isinstance(at, slice):
            return IntCells(self.values[at])
        value = int(self.values[at])
        return None if value == NULL else value

    def __iter__(self) -> Iterator[int | None]:
        return iter([None if value == NULL else value for value in self.values.tolist()])

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class TextCells(Sequence[str | None]):
    """Cells over a dictionary-encoded text column; unknown reads as None."""

    __slots__ = ("text",)

    def __init__(self, text: Text) -> None:
        self.text = text

    def __len__(self) -> int:
        return len(self.text)

    @overload
    def __getitem__(self, at: int) -> str | None: ...
    @overload
    def __getitem__(self, at: slice) -> TextCells: ...
    def __getitem__(self, at: int | slice) -> str | TextCells | None:
        return TextCells(self.text.take(at)) if isinstance(at, slice) else self.text[at]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self.text.to_list())

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _same(cells: Sequence[Any], other: object) -> bool:
    if not isinstance(other, Sequence) or isinstance(other, str) or len(cells) != len(other):
        return False
    return all(a == b for a, b in zip(cells, other, strict=True))
