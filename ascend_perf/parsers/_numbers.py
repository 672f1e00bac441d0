"""Numbers as text to exact integers, whole columns at a time."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Ints

MAX_WHOLE: Final = float(2**63 - 1024)
"""The largest float below 2**63."""

MAX_BYTES: Final = 1 << 44
"""Larger sizes (16 TiB, more than a host holds) are damage: sums of them could leave int64. Status: assumed."""

MAX_TOTAL: Final = 1 << 53
"""Larger counts and sums of times (104 days) are damage, for the same reason. Status: assumed."""


def whole(value: float | None) -> int:
    """The nearest int64, `NULL` for None, NaN and what int64 does not hold."""
    return round(value) if value is not None and abs(value) <= MAX_WHOLE else NULL


def wholes(values: NDArray[np.float64]) -> Ints:
    """`whole` of each value."""
    with np.errstate(invalid="ignore"):
        usable = np.abs(values) <= MAX_WHOLE
    return np.where(usable, np.rint(np.where(usable, values, 0)).astype(np.int64), NULL)


def bounded(values: Ints, low: int, high: int) -> Ints:
    """The values, `NULL` where they lie outside of low..high."""
    return np.where((values >= low) & (values <= high), values, NULL)


def sizes(values: NDArray[np.float64] | Ints) -> Ints:
    """Bytes as int64, `NULL` where there are none, fewer than none or more than `MAX_BYTES`."""
    with np.errstate(invalid="ignore"):
        usable = (values >= 0) & (values <= MAX_BYTES)
    return np.where(usable, np.rint(np.where(usable, values, 0)).astype(np.int64), NULL)


def decimal_ns(raws: Sequence[msgspec.Raw]) -> Ints:
    """Times in us as JSON text (number or string, any digits) to int64 ns, exactly; further digits are rounded.

    Epoch microseconds with three decimals need 19 digits, which float64 does not hold; so the digits are read
    as digits. Unreadable, absent and out-of-range values are `NULL`.

    Args:
        raws: undecoded JSON values, e.g. `1419116104994.671` or `"1736412474730135.222"`.

    Returns:
        ns, shape (n,).
    """
    return decimal_scaled(np.array([bytes(raw) for raw in raws], dtype=np.bytes_), 3)


def json_ints(raws: Sequence[msgspec.Raw]) -> Ints:
    """Integers as JSON text (number or string of digits) to int64; anything else is `NULL`."""
    return decimal_scaled(np.array([bytes(raw) for raw in raws], dtype=np.bytes_), 0)


def decimal_scaled(cells: NDArray[np.bytes_], decimals: int) -> Ints:
    """Decimal text to int64 multiples of 10**-decimals, rounded half up; NULL where it is no decimal number.

    White space, quotes and one leading minus sign are allowed; numbers with an exponent are read by `Decimal`.
    """
    n = len(cells)
    width = cells.dtype.itemsize
    if n == 0 or width == 0:
        return np.full(n, NULL, np.int64)
    matrix = np.ascontiguousarray(cells).view(np.uint8).reshape(n, width)
    if (alike := _alike(matrix, decimals)) is not None:
        return alike
    value = np.zeros(n, np.int64)
    seen_dot = np.zeros(n, bool)
    fraction = np.zeros(n, np.int64)
    digits = np.zeros(n, np.int64)
    significant = np.zeros(n, np.int64)
    round_up = np.zeros(n, bool)
    negative = np.zeros(n, bool)
    odd = np.zeros(n, bool)
    closed = np.zeros(n, bool)
    for column in range(width):
        byte = matrix[:, column]
        digit = byte.astype(np.int64) - 48
        is_digit = (digit >= 0) & (digit <= 9)
        if is_digit.any():
            take = is_digit & ~(seen_dot & (fraction >= decimals))
            np.copyto(value, value * 10 + digit, where=take & (significant < 19))
            significant += take & ((significant > 0) | (digit > 0))
            round_up |= is_digit & seen_dot & (fraction == decimals) & (digit >= 5)
            fraction += is_digit & seen_dot
            digits += is_digit
            odd |= is_digit & closed
        if not byte.all():
            closed |= byte == 0  # the end of a short cell; digits behind it are damage
        rest = ~is_digit & (byte != 0)
        if rest.any():
            dot = byte == 46
            odd |= dot & (seen_dot | closed)
            seen_dot |= dot
            minus = byte == 45
            odd |= minus & ((digits > 0) | negative | seen_dot)
            negative |= minus
            blank = (byte == 34) | (byte == 32) | (byte == 9) | (byte == 13) | (byte == 10)
            closed |= blank & (digits > 0)
            odd |= rest & ~dot & ~minus & ~blank
    # Shift what had fewer decimals than asked for; values that would leave int64 are unknown.
    short = np.clip(decimals - fraction, 0, decimals)
    # 19 digits fit as long as the number is below 2**63 (beyond, the sum has wrapped around and is negative).
    limit = np.iinfo(np.int64).max // 10**short - 1
    bad = odd | (digits == 0) | (significant + short > 19) | (value < 0) | (value > limit)
    value = np.where(bad, 0, value) * (10**short) + round_up
    value = np.where(negative, -value, value)
    result = np.where(bad, NULL, value)
    doubtful = bad & (digits > 0)
    if doubtful.any():
        for row in np.flatnonzero(doubtful).tolist():
            result[row] = _exact(bytes(cells[row]), decimals)
    return result.astype(np.int64)


def _alike(matrix: NDArray[np.uint8], decimals: int) -> Ints | None:
    """Digits of one layout in all rows (a column of time stamps), several times faster; None for all others.

    All cells have as many digits, the point (if any) at the same place, not more decimals than asked for, and quotes
    either all or none; together at most 18 digits, which int64 always holds.
    """
    first = matrix[0].tobytes()
    if len(first) > 2 and first[:1] == b'"' and first[-1:] == b'"':
        if not (matrix[:, [0, -1]] == ord('"')).all():
            return None
        matrix, first = matrix[:, 1:-1], first[1:-1]
    point = first.find(b".")
    places = len(first) - 1 - point if point >= 0 else 0
    if places > decimals or len(first) + decimals - places > 18 or point == 0 or (point >= 0 and places == 0):
        return None
    digits = matrix - np.uint8(48)
    if point >= 0:
        if not (matrix[:, point] == ord(".")).all():
            return None
        digits = np.delete(digits, point, axis=1)
    if (digits > 9).any():
        return None
    value = np.zeros(len(matrix), np.int64)
    for column in digits.T:
        value *= 10
        value += column
    value *= 10 ** (decimals - places)
    return value


def _exact(cell: bytes, decimals: int) -> int:
    """The rare cells: exponents, 19 digits; NULL when it is no number or does not fit."""
    text = cell.decode("ascii", "replace").strip().strip('"').strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return NULL
    if not number.is_finite():
        return NULL
    if abs(number.adjusted()) > 30:  # far too large, or as good as zero
        return NULL if number and number.adjusted() > 0 else 0
    scaled = int(number.scaleb(decimals).to_integral_value(rounding="ROUND_HALF_UP"))
    return scaled if NULL < scaled <= np.iinfo(np.int64).max else NULL
