"""A result file as rows: what identifies it, the machine and the work as short keys, one value per metric."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from ascend_perf.model.result import Benchmark, ResultSet
from ascend_perf.model.run import Fact
from ascend_perf.units import Better, Unit

HARDWARE: Final = ("kind", "chip", "chip_count", "cpu", "cpu_cores")
"""Facts that make a machine. Versions of software are none of them: a trend goes on over an update, which is shown
beside a change point as its likely cause. A gate, which compares two results, also asks for those (MUST_AGREE)."""

MAX_TEXT: Final = 400
"""Characters that are kept of a name; keys are made of whole names. PostgreSQL cannot index texts beyond 2.7 kB."""

_BYTES: Final = ("bytes", "memory")


@dataclass(frozen=True, kw_only=True)
class SeriesKey:
    """What is measured again and again; two results of one series may be compared."""

    suite: str
    branch: str
    machine: str
    benchmark: str
    work: str
    metric: str
    unit: Unit
    better: Better
    is_exact: bool
    is_simulated: bool

    @property
    def identity(self) -> str:
        """A digest of all of it."""
        return digest([getattr(self, name) for name in self.__dataclass_fields__])


@dataclass(frozen=True, kw_only=True)
class Value:
    """A metric in one result set: median and range of its complete runs."""

    value: float
    low: float
    high: float
    launches: int


def digest(value: object, length: int = 64) -> str:
    """Hexadecimal digest of a JSON value, the same for every order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def machine_of(fingerprint: Mapping[str, Fact]) -> str:
    """Key of the machine that a fingerprint describes."""
    return digest([fingerprint.get(name) for name in HARDWARE], 12)


def work_of(benchmark: Benchmark) -> str:
    """Key of the work that a benchmark does: workload, preset, devices and every setting."""
    one = benchmark
    return digest(
        [one.workload, one.preset, one.device, one.world_size, one.variant, dict(one.config)], 12
    )


def identity_of(results: ResultSet) -> str:
    """Digest of what makes a result set itself: a file that grew by more runs is still the same."""
    return digest([results.suite, results.branch, results.created, results.commit, dict(results.fingerprint)])


def text_of(text: str) -> str:
    """A text as both databases can keep it: no NUL, no half of a surrogate pair, not endless."""
    plain = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= MAX_TEXT else plain[:MAX_TEXT] + "…"


def seconds_of(time: str) -> float:
    """Seconds since 1970 of a time with its offset.

    Raises:
        ValueError: it is no such time.
    """
    moment = datetime.fromisoformat(time.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{time!r} has no offset")
    return moment.timestamp()


def values_of(results: ResultSet) -> dict[SeriesKey, Value]:
    """The values of all benchmarks, in the order of their keys (two writers then never wait for each other).

    Metrics of single ranks are left out; they remain in the file. A benchmark whose metrics do not have the median
    time of a step gets it from its steps.
    """
    found: dict[SeriesKey, Value] = {}
    machine = machine_of(results.fingerprint)
    for benchmark in results.benchmarks:
        work = work_of(benchmark)
        measured = _measured(benchmark)
        for (metric, unit, better, is_exact), values in {**_counts(benchmark, measured), **measured}.items():
            key = SeriesKey(
                suite=results.suite, branch=results.branch or "", machine=machine, benchmark=benchmark.name, work=work,
                metric=metric, unit=unit, better=better, is_exact=is_exact,
                is_simulated=benchmark.data_origin == "simulated",
            )  # fmt: skip
            found[key] = Value(value=median(values), low=min(values), high=max(values), launches=len(values))
    return dict(sorted(found.items(), key=lambda item: item[0].identity))


_Named = dict[tuple[str, Unit, Better, bool], list[float]]


def _measured(benchmark: Benchmark) -> _Named:
    values: _Named = {}
    for launch in benchmark.launches:
        if launch.status != "complete":
            continue
        for metric in launch.metrics:
            if metric.rank is None and metric.value is not None and math.isfinite(metric.value):
                values.setdefault((metric.name, metric.unit, metric.better, False), []).append(float(metric.value))
        if launch.steps_ns and all(metric.name != "step_time_median" for metric in launch.metrics):
            key: tuple[str, Unit, Better, bool] = ("step_time_median", "ns", "lower", False)
            values.setdefault(key, []).append(float(median(launch.steps_ns)))
    return values


def _counts(benchmark: Benchmark, measured: _Named) -> _Named:
    taken = {name for name, *_ in measured}
    values: _Named = {}
    for name, count in benchmark.counts.items():
        unit: Unit = "bytes" if any(word in name for word in _BYTES) else "flops" if "flops" in name else "count"
        values[f"{name}_counted" if name in taken else name, unit, "lower", True] = [float(count)]
    return values
