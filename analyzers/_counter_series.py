"""Samples of device counters as series with SI units, each sample with the time that it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf import intervals
from ascend_perf.device.specs import DeviceSpec
from ascend_perf.intervals import IntervalSet
from ascend_perf.model.table import NULL, Floats, Ints, Table
from ascend_perf.units import Unit

_UNIT: Final[dict[str, tuple[Unit, float]]] = {
    "Hz": ("hertz", 1.0), "kHz": ("hertz", 1e3), "MHz": ("hertz", 1e6), "GHz": ("hertz", 1e9),
    "B/s": ("bytes_per_s", 1.0), "bytes/s": ("bytes_per_s", 1.0), "KB/s": ("bytes_per_s", 1e3),
    "MB/s": ("bytes_per_s", 1e6), "GB/s": ("bytes_per_s", 1e9), "bytes": ("bytes", 1.0), "ratio": ("ratio", 1.0),
    "ns": ("ns", 1.0), "us": ("us", 1.0), "W": ("watt", 1.0), "mW": ("watt", 1e-3), "C": ("celsius", 1.0),
    "°C": ("celsius", 1.0), "count": ("count", 1.0),
}  # fmt: skip
_WITHOUT_UNIT: Final[tuple[tuple[re.Pattern[str], Unit, float], ...]] = (
    # The track is in MHz where it does not say so (format reference, 2.3).
    (re.compile(r"^AI Core Freq", re.IGNORECASE), "hertz", 1e6),
    (re.compile(r"temp", re.IGNORECASE), "celsius", 1.0),
)
_PART: Final = re.compile(r"^(HBM|DDR|LLC|HCCS|NIC|RoCE|PCIe|SIO|UB|CPU|AI Core|AI Vector Core) \d+(?=[ /]|$)")
"""Controllers, ports and cores of one kind."""
_HELD: Final = frozenset({"hertz", "bytes", "celsius", "watt", "count", "none"})
"""Levels hold until the next sample; rates and ratios are means of the time since the sample before."""

ORDER: Final = (
    "AI Core Freq", "power", "Low Power", "temp", "HBM", "DDR", "LLC", "L2", "HCCS", "SIO", "UB", "RoCE", "NIC",
    "Netdev", "PCIe", "QoS", "Device/", "APP/", "AI Core", "AI Vector Core", "CPU",
)  # fmt: skip
"""Beginnings of names in the order in which series are shown."""
_ANYWHERE: Final = frozenset(("power", "temp"))


@dataclass(frozen=True, kw_only=True)
class Series:
    """One counter in order of time; arrays of one length."""

    name: str
    unit: Unit
    at: Ints
    values: Floats
    parts: int
    """Controllers, ports or cores that are taken together: rates are added, ratios and levels averaged."""

    @property
    def holds(self) -> bool:
        """Whether a sample is a level that lasts until the next one."""
        return self.unit in _HELD

    def periods(self) -> tuple[Ints, Ints]:
        """The time that each sample speaks of; at the open end a usual (median) period stands for it."""
        if len(self.at) < 2:
            return self.at, self.at
        usual = int(np.median(np.diff(self.at)))
        if self.holds:
            return self.at, np.append(self.at[1:], self.at[-1] + usual)
        return np.append(self.at[0] - usual, self.at[:-1]), self.at


def series_of(counters: Table) -> tuple[Series, ...]:
    """The counters that have times, those of one kind together, in the order of `ORDER`.

    Reads:
        counters: time_ns, counter, unit, value.
    """
    made = [_together(name, unit, rows, counters) for name, unit, rows in _groups(counters, timed=True)]
    found = [series for series in made if len(series.at)]
    found += _totals(found)
    return tuple(sorted(found, key=lambda series: (_rank(series.name), series.name)))


def figures_of(counters: Table) -> tuple[tuple[str, Unit, float], ...]:
    """Counters that are figures of the whole capture: name, unit and value."""
    found = []
    for name, unit, rows in _groups(counters, timed=False, joined=False):
        scale = _unit(name, unit)
        found += [(name, scale[0], float(value) * scale[1]) for value in counters.floats("value")[rows].tolist()]
    return tuple(sorted(found, key=lambda item: (_rank(item[0]), item[0])))


def kind_of(name: str) -> str:
    """Name of a counter without the number of its controller, port or core."""
    return _PART.sub(r"\1", name)


def peak_of(series: Series, spec: DeviceSpec | None, capacity: int | None) -> float | None:
    """What the device can do at most in the unit of a counter, None where that is not known."""
    if spec is None and capacity is None:
        return None
    name = series.name
    if series.unit == "bytes" and name.startswith("Device/Memory"):
        return None if capacity is None else float(capacity)
    if spec is None:
        return None
    if series.unit == "hertz" and name.startswith("AI Core Freq"):
        return None if spec.frequency_hz is None else float(spec.frequency_hz)
    if series.unit != "bytes_per_s":
        return None
    if name.startswith("HBM"):
        return spec.memory_bytes_per_s.value
    link = next((key for key in ("hccs", "roce", "nic", "pcie") if name.lower().startswith(key)), None)
    figure = None if link is None else spec.links_bytes_per_s.get("roce" if link == "nic" else link)
    return None if figure is None else figure.value


def mean_within(series: Series, where: IntervalSet) -> float | None:
    """Mean of a counter over some time, each sample by how long it speaks of it; None where no sample does."""
    starts, ends = series.periods()
    weight = intervals.covered(where, starts, ends).astype(float)
    total = float(weight.sum())
    return float((series.values * weight).sum() / total) if total > 0 else None


def time_above(series: Series, level: float) -> float | None:
    """Share of the sampled time in which a counter is at a level or above."""
    starts, ends = series.periods()
    length = (ends - starts).astype(float)
    total = float(length.sum())
    return float(length[series.values >= level].sum() / total) if total > 0 else None


def _groups(counters: Table, *, timed: bool, joined: bool = True) -> Iterator[tuple[str, str, Ints]]:
    names, units = counters.text("counter"), counters.text("unit")
    known = (counters.ints("time_ns") != NULL) == timed
    known &= np.isfinite(counters.floats("value")) & (names.codes >= 0)
    kinds = names.relabel(kind_of) if joined else names
    for code in np.unique(kinds.codes[known]).tolist():
        mine = known & (kinds.codes == code)
        for unit in np.unique(units.codes[mine]).tolist():
            rows = np.flatnonzero(mine & (units.codes == unit))
            yield kinds.values[code], "" if unit < 0 else units.values[unit], rows


def _unit(name: str, unit: str) -> tuple[Unit, float]:
    if unit:
        return _UNIT.get(unit, ("none", 1.0))
    return next(((kind, scale) for pattern, kind, scale in _WITHOUT_UNIT if pattern.search(name)), ("none", 1.0))


def _together(name: str, unit: str, rows: Ints, counters: Table) -> Series:
    kind, scale = _unit(name, unit)
    at, values = counters.ints("time_ns")[rows], counters.floats("value")[rows] * scale
    times, of = np.unique(at, return_inverse=True)
    sums, count = np.bincount(of.reshape(-1), values), np.bincount(of.reshape(-1))
    # Databases do not tell the caches apart: then there are several samples at each time.
    parts = max(len(np.unique(counters.text("counter").codes[rows])), int(np.median(count)))
    if kind == "bytes_per_s" and parts > 1:
        # Times at which some are missing would look like a drop.
        complete = count >= parts
        if complete.any():
            times, sums, count = times[complete], sums[complete], count[complete]
        return Series(name=name, unit=kind, at=times, values=sums / count * parts, parts=parts)
    return Series(name=name, unit=kind, at=times, values=sums / count, parts=parts)


def _totals(found: list[Series]) -> list[Series]:
    """Reads and writes of one memory together: the bus carries both."""
    by_name = {(series.name, series.unit): series for series in found}
    made = []
    for kind in ("HBM", "DDR"):
        read, write = by_name.get((f"{kind}/Read", "bytes_per_s")), by_name.get((f"{kind}/Write", "bytes_per_s"))
        if read is None or write is None:
            continue
        common, first, second = np.intersect1d(read.at, write.at, return_indices=True)
        if len(common):
            made.append(
                Series(
                    name=f"{kind}/Read + Write", unit="bytes_per_s", at=common,
                    values=read.values[first] + write.values[second], parts=read.parts,
                )
            )  # fmt: skip
    return made


def _rank(name: str) -> int:
    lower = name.lower()
    fits = (word.lower() in lower if word in _ANYWHERE else lower.startswith(word.lower()) for word in ORDER)
    return next((at for at, is_it in enumerate(fits) if is_it), len(ORDER))
