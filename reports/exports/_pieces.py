"""Text of many rows at once: columns as pieces of JSON or CSV, joined row by row without a loop over rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ascend_perf.model.table import NULL, Bools, Floats, Ints, Text
from ascend_perf.reports.texts import safe

STRING: Final = pa.large_string()
"""Offsets of 64 bits: a block of rows with long texts passes 2 GiB of 32 bit ones."""

_THOUSANDTHS: Final = pa.array([f".{number:03d}" for number in range(1000)], STRING)

Piece = Callable[[Ints], pa.Array]
"""Text of some rows; null where the row has none."""


def whole(values: Ints) -> pa.Array:
    """Integers as text, null where unknown."""
    return pc.cast(pa.array(values, mask=values == NULL), STRING)


def decimal(values: Floats) -> pa.Array:
    """Floats as the shortest text that reads back as the same number; null where unknown or infinite."""
    return pc.cast(pa.array(values, mask=~np.isfinite(values)), STRING)


def microseconds(ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Times of 0 ns or more as decimals of us, exact to the ns: whole part and `.` with three digits."""
    us, rest = np.divmod(ns, 1000)
    return pc.cast(pa.array(us), STRING), _THOUSANDTHS.take(pa.array(rest))


def joined(*parts: pa.Array | str) -> pa.Array:
    """Parts of each row behind each other; a row is null where one of its parts is."""
    return pc.binary_join_element_wise(*map(_part, parts), _part(""))


def filled(*parts: pa.Array | str) -> pa.Array:
    """Parts of each row behind each other; parts that are null are left out."""
    return pc.binary_join_element_wise(*map(_part, parts), _part(""), null_handling="replace", null_replacement="")


def _part(part: pa.Array | str) -> pa.Array | pa.Scalar:
    return pa.scalar(part, STRING) if isinstance(part, str) else part


def coded(text: Text, word_of: Callable[[str], str]) -> tuple[Text, pa.Array]:
    """A text column with what each of its distinct values is written as."""
    used = text.compact()
    return used, pa.array([word_of(value) for value in used.values], STRING)


def picked(codes: Ints, words: pa.Array) -> pa.Array:
    """Words of some codes; null where the code is below 0."""
    return words.take(pa.array(codes, mask=codes < 0))


def content(array: pa.Array) -> memoryview:
    """The bytes of all rows behind each other."""
    if not len(array):
        return memoryview(b"")
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[int(edges[0]) : int(edges[-1])] if data is not None else memoryview(b"")


# ---- members of a JSON object ----


def json_text(text: str) -> str:
    """A text as JSON: without control characters and lone surrogates, and bounded."""
    return json.dumps(safe(text), ensure_ascii=False)


def text_member(key: str, text: Text) -> Piece:
    """`,"key":"value"` of each row that is known."""
    used, words = coded(text, lambda value: f',"{key}":{json_text(value)}')
    return lambda rows: picked(used.codes[rows].astype(np.int64), words)


def int_member(key: str, values: Ints) -> Piece:
    """`,"key":1` of each row that is known."""
    return lambda rows: joined(f',"{key}":', whole(values[rows]))


def float_member(key: str, values: Floats) -> Piece:
    """`,"key":0.5` of each row that is known."""
    return lambda rows: joined(f',"{key}":', decimal(values[rows]))


def bool_member(key: str, values: Bools) -> Piece:
    """`,"key":true` of each row that is true."""
    words = pa.array([f',"{key}":true'], STRING)
    return lambda rows: picked(np.where(values[rows], 0, -1), words)


def longest(words: Sequence[str] | pa.Array) -> int:
    """Bytes of the longest word."""
    if not len(words):
        return 0
    array = words if isinstance(words, pa.Array) else pa.array(words, STRING)
    return int(pc.max(pc.binary_length(array)).as_py() or 0)
