"""Packed columns of the page read back, written from their description and not from the code that makes them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any


def unpacked(column: Mapping[str, Any]) -> list[int | None]:
    """Values of a packed column; None is unknown."""
    codes = _codes(base64.b64decode(column["bytes"]))
    if column["as"] == "runs":
        values: list[int | None] = []
        for code in codes:
            values += [_value(code)] * next(codes)
    else:
        values = [_value(code) for code in codes]
    if column["as"] == "delta":
        last = 0
        for at, value in enumerate(values):
            if value is not None:
                last += value
                values[at] = last
    assert len(values) == column["rows"]
    return values


def _value(code: int) -> int | None:
    return None if code == 0 else code // 2 if code % 2 else -(code // 2)


def _codes(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
    assert shift == 0
