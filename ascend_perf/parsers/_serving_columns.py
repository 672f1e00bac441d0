"""Columns of the service profiler's CSV files, whatever a release calls them: `name`, `name(ms)`, `name(microsecond)`.

Releases differ in the unit behind a name and in how a time is written (epoch numbers of any unit, or date texts). A
column is asked for by its name without the unit; times become int64 ns.

Source: msServiceProfiler, docs/zh/msserviceprofiler_serving_tuning_instruct.md and its exporters; the CANN documents of
8.1.RC1 to 9.0 (parsing results), whose units differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf.model.table import NULL, Floats, Ints, Text
from ascend_perf.parsers._ascend_csv import CsvFile

_HEADER: Final = re.compile(r"(?P<name>[^()\[\]（）]+?)\s*(?:[(\[（]\s*(?P<unit>[A-Za-zµμ]+)\s*[)\]）])?(?:\.\d+)?")
_DECIMALS: Final = {
    "s": 9, "sec": 9, "second": 9, "seconds": 9, "ms": 6, "millisecond": 6, "milliseconds": 6, "us": 3, "µs": 3,
    "μs": 3, "microsecond": 3, "microseconds": 3, "ns": 0, "nanosecond": 0, "nanoseconds": 0,
}  # fmt: skip
"""Decimal places of a unit in ns."""
_SUFFIX: Final = re.compile(r"(?P<name>\w+_time|\w+_latency|timestamp)_(?P<unit>ms|us|ns)")

DURATION_DECIMALS: Final = 6
"""A duration without a unit is in ms, as all newer releases write it. Status: assumed."""
_EPOCHS: Final = ((10**17, 0), (10**14, 3), (10**11, 6), (10**8, 9))
"""A time stamp without a unit: from this number on it has so many decimals in ns (years 1973 to 5138 of the epoch)."""
_DATE_CHARS: Final = 19
"""Length of `2025-05-08 15:42:51`."""
_CUT_NS: Final = 1_000_000
_QUARTER_NS: Final = 15 * 60 * 10**9
"""Time zones differ by quarters of an hour."""
MAX_TIME_NS: Final = 4_102_444_800 * 10**9
"""The year 2100: a time beyond it is no time stamp."""


@dataclass(frozen=True)
class Header:
    """A column name as the file writes it, and what it says."""

    raw: str
    name: str
    unit: str | None


def plain(raw: str) -> Header:
    """Name in lower case without the unit, and the unit."""
    text = raw.strip().strip("\"'").replace("\u00a0", " ")
    match = _HEADER.fullmatch(text)
    if match is None:
        return Header(raw, text.lower(), None)
    name, unit = match["name"].strip().lower().replace(" ", "_"), match["unit"]
    if unit is None and (suffix := _SUFFIX.fullmatch(name)):
        return Header(raw, suffix["name"], suffix["unit"])
    unit = None if unit is None or unit.lower() not in _DECIMALS else unit.lower()
    return Header(raw, name, unit)


def names_of(raws: Sequence[str]) -> frozenset[str]:
    """Names of the columns without units."""
    return frozenset(plain(raw).name for raw in raws)


@dataclass
class Columns:
    """A CSV file whose columns are asked for by name without the unit; the first name that the file has counts."""

    file: CsvFile
    guessed: set[str] = field(default_factory=set)
    """Durations whose unit the file does not tell."""
    zone_ns: int = 0
    """What date texts are ahead of the epoch: they are local times of the host."""
    _by_name: dict[str, Header] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {}
        for raw in self.file.names:
            header = plain(raw)
            self._by_name.setdefault(header.name, header)

    def __len__(self) -> int:
        return self.file.rows

    def has(self, *names: str) -> bool:
        """Whether the file has one of the columns."""
        return any(name in self._by_name for name in names)

    def _header(self, names: Sequence[str]) -> Header | None:
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def text(self, *names: str) -> Text:
        """A text column; the words for "unknown" are unknown."""
        header = self._header(names)
        if header is None:
            return Text.full(len(self), None)
        return self.file.text(header.raw, value_of=lambda word: None if word == "<NA>" else word)

    def ints(self, *names: str) -> Ints:
        """Whole numbers (`3` or `3.0`); negative ones are unknown."""
        header = self._header(names)
        if header is None:
            return np.full(len(self), NULL, np.int64)
        values = self.file.scaled(0, header.raw)
        return np.where(values < 0, NULL, values).astype(np.int64)

    def floats(self, *names: str) -> Floats:
        """Numbers; what is none is NaN."""
        header = self._header(names)
        return np.full(len(self), np.nan) if header is None else self.file.floats(header.raw)

    def durations(self, *names: str) -> Ints:
        """Durations in ns; negative ones are unknown. Without a unit they are taken for ms, and `guessed` says so."""
        header = self._header(names)
        if header is None:
            return np.full(len(self), NULL, np.int64)
        if header.unit is None:
            self.guessed.add(header.name)
        values = self.file.scaled(DURATION_DECIMALS if header.unit is None else _DECIMALS[header.unit], header.raw)
        return np.where(values < 0, NULL, values).astype(np.int64)

    def times(self, *names: str) -> Ints:
        """Time stamps in ns; unknown where none of the columns holds one.

        A numeric column with a unit is exact; one without is read by its magnitude (s, ms, us or ns of the epoch); a
        date text is a local time that is `zone_ns` ahead.
        """
        result = np.full(len(self), NULL, np.int64)
        for header in (self._by_name[name] for name in names if name in self._by_name):
            cells = self.file.cells(header.raw)
            found = dates_ns(cells)
            found = np.where(found == NULL, NULL, found - self.zone_ns)
            decimals = self._decimals(header)
            if decimals is not None:
                numbers = self.file.scaled(decimals, header.raw)
                found = np.where(found == NULL, numbers, found)
            found = np.where((found < 0) | (found > MAX_TIME_NS), NULL, found)
            result = np.where(result == NULL, found, result)
        return result.astype(np.int64)

    def fine_times(self, stamps: Sequence[str], dates: Sequence[str]) -> Ints:
        """Time stamps, with the digits of the date texts where both name the same time: stamps are cut to whole ms."""
        coarse, fine = self.times(*stamps), self.times(*dates)
        both = (coarse != NULL) & (fine != NULL)
        nearer = both & (np.abs(np.where(both, fine - coarse, 0)) < _CUT_NS)
        return np.where(nearer | (coarse == NULL), fine, coarse).astype(np.int64)

    def local_zone_ns(self) -> int | None:
        """What the file's date texts are ahead of its own time stamps, in quarters of an hour; None without both."""
        dates, stamps = self.times("start_datetime"), self.times("start_time")
        both = (dates != NULL) & (stamps != NULL)
        if not both.any():
            return None
        return round(float(np.median(dates[both] - stamps[both])) / _QUARTER_NS) * _QUARTER_NS

    def _decimals(self, header: Header) -> int | None:
        if header.unit is not None:
            return _DECIMALS[header.unit]
        values = self.file.scaled(0, header.raw)
        values = values[values > 0]
        if not len(values):
            return None
        middle = int(np.median(values))
        return next((decimals for least, decimals in _EPOCHS if middle >= least), None)


def dates_ns(cells: NDArray[np.bytes_]) -> Ints:
    """Date texts (`2025-05-08 15:42:51.123456`, also with `T`, or `:` before the fraction) to ns, taken as UTC.

    Everything that is no such text is unknown.
    """
    n, width = len(cells), cells.dtype.itemsize
    unknown = np.full(n, NULL, np.int64)
    if n == 0 or width < _DATE_CHARS:
        return unknown
    text = np.ascontiguousarray(np.char.strip(cells, b" \t\"'"))
    width = text.dtype.itemsize
    if width < _DATE_CHARS:
        return unknown
    matrix = text.view(np.uint8).reshape(n, width).astype(np.int64)
    digits = matrix - 48
    numeric = (digits >= 0) & (digits <= 9)
    good = np.ones(n, bool)
    for place in (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18):
        good &= numeric[:, place]
    for place, sign in ((4, b"-/"), (7, b"-/"), (10, b" T"), (13, b":"), (16, b":")):
        good &= np.isin(matrix[:, place], list(sign))

    def number(first: int, count: int) -> Ints:
        value = np.zeros(n, np.int64)
        for place in range(first, first + count):
            value = value * 10 + digits[:, place]
        return value

    year, month, day = number(0, 4), number(5, 2), number(8, 2)
    hour, minute, second = number(11, 2), number(14, 2), number(17, 2)
    good &= (year >= 1970) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    good &= (hour < 24) & (minute < 60) & (second < 61)
    if not good.any():
        return unknown
    months = np.where(good, (year - 1970) * 12 + month - 1, 0)
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day - 1
    value = ((days * 24 + hour) * 60 + minute) * 60 + second
    fraction, scale = np.zeros(n, np.int64), np.full(n, 10**9, np.int64)
    running = good & (np.isin(matrix[:, _DATE_CHARS], list(b".:,")) if width > _DATE_CHARS else False)
    for place in range(_DATE_CHARS + 1, min(width, _DATE_CHARS + 10)):
        running = running & numeric[:, place]
        fraction = np.where(running, fraction * 10 + digits[:, place], fraction)
        scale = np.where(running, scale // 10, scale)
    return np.where(good, np.where(good, value, 0) * 10**9 + fraction * scale, NULL).astype(np.int64)
