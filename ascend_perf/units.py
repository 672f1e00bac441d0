"""The closed list of units, their direction, and how figures are written in reports.

Formatting happens here and nowhere else: at most four significant digits, thin-space thousands, unit always.
"""

from __future__ import annotations

import math
from typing import Final, Literal

Unit = Literal[
    "ns",
    "us",
    "ms",
    "s",
    "bytes",
    "bytes_per_s",
    "flops",
    "flops_per_s",
    "ratio",
    "count",
    "hertz",
    "celsius",
    "watt",
    "joule",
    "items_per_s",
    "x",
    "none",
]
Better = Literal["lower", "higher", "none"]

BETTER: Final[dict[str, Better]] = {
    "ns": "lower", "us": "lower", "ms": "lower", "s": "lower", "bytes": "lower", "bytes_per_s": "higher",
    "flops": "none", "flops_per_s": "higher", "ratio": "none", "count": "none", "hertz": "higher",
    "celsius": "lower", "watt": "lower", "joule": "lower", "items_per_s": "higher", "x": "higher", "none": "none",
}  # fmt: skip
"""Default direction of a unit; a metric may state its own."""

THIN_SPACE: Final = "\u2009"


def significant(value: float, digits: int = 4) -> str:
    """`value` with at most `digits` significant digits and thin-space thousands, without exponent."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    decimals = max(0, digits - 1 - magnitude)
    rounded = round(value, digits - 1 - magnitude)
    text = f"{rounded:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(",", THIN_SPACE)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for factor, name in steps:
        if abs(value) >= factor * 0.9995:
            return f"{significant(value / factor)} {name}"
    factor, name = steps[-1]
    return f"{significant(value / factor)} {name}"


def format_ns(value_ns: float) -> str:
    """A time in the unit that reads best: s, ms, us or ns."""
    if abs(value_ns) >= 1e10:
        return f"{significant(value_ns / 1e9)} s"
    return _scaled(value_ns, ((1e6, "ms"), (1e3, "us"), (1.0, "ns")))


def format_ratio(value: float) -> str:
    """A ratio as percent: without decimals above 10 %, two significant digits below."""
    percent = value * 100
    return f"{percent:.0f} %" if abs(percent) >= 10 else f"{significant(percent, 2)} %"


def format_range(low: str, high: str) -> str:
    """Two written figures as a range, `9.121 ms – 22.72 ms`; one figure where both are written alike."""
    return low if low == high else f"{low} – {high}"


def format_quantity(value: float | None, unit: Unit) -> str:
    """`value` with its unit as reports print it; None gives an em dash (callers say why it is unknown)."""
    if value is None or not math.isfinite(value):
        return "—"
    if unit in ("ns", "us", "ms", "s"):
        return format_ns(value * {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}[unit])
    if unit == "ratio":
        return format_ratio(value)
    if unit == "bytes":
        return _scaled(value, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))
    if unit == "bytes_per_s":
        return _scaled(value, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")))
    if unit in ("flops", "flops_per_s"):
        suffix = "FLOP" if unit == "flops" else "FLOPS"
        steps = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))
        return _scaled(value, tuple((factor, prefix + suffix) for factor, prefix in steps))
    if unit == "hertz":
        return _scaled(value, ((1e9, "GHz"), (1e6, "MHz"), (1.0, "Hz")))
    if unit == "x":
        return f"{format_factor(value)}x"
    if unit in ("count", "none"):
        return significant(value, 12 if float(value).is_integer() else 4)
    return f"{significant(value)} { {'celsius': '°C', 'watt': 'W', 'joule': 'J', 'items_per_s': '/s'}[unit] }"


def counted(count: float, one: str, many: str = "") -> str:
    """A number with its noun: `counted(1, "matrix product")` is "1 matrix product", of 2.5 "2.5 matrix products".

    Args:
        count: whole, or an average per step; written with at most four significant digits unless it is an int.
        one: the noun (and verb) after a 1.
        many: the same after any other number; empty for `one` and an s.
    """
    text = str(count) if isinstance(count, int) else f"{count:.4g}"
    return f"{text} {one if text == '1' else many or f'{one}s'}"


def format_factor(factor: float) -> str:
    """A factor as reports print it: three digits, four near 1, where what counts is how far from it: 1.004, not 1."""
    return significant(factor, 4 if 0.9 <= abs(factor) < 1.1 else 3)


def format_bound(bound: float) -> str:
    """A speed-up as reports print it: three digits, four below 1.1, so that a small bound does not read "1"."""
    return significant(bound, 3 if bound >= 1.1 else 4)


def amdahl_bound(share_ratio: float) -> float | None:
    """The most a step can gain when a share of it disappears entirely: 1 / (1 - share).

    Returns:
        Speed-up of at least 1, or None when the share is 1 or more (no finite bound).

    Raises:
        ValueError: the share is negative or NaN.

    Source:
        Amdahl's law.
    """
    if not share_ratio >= 0:
        raise ValueError(f"share must be 0 or more, got {share_ratio}")
    return 1 / (1 - share_ratio) if share_ratio < 1 else None
