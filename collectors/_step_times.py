"""Figures of steps that were timed from outside: alone, and under the profiler."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from ascend_perf.model.finding import Metric

MIN_STEPS: Final = 3
"""Fewer steps of a kind give no overhead. Status: assumed."""


def slowest(ranks: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Step times of a job by kind: each step as long as on the rank that took longest. Steps that some ranks did not
    reach, and ranks without any of a kind (they do not record), are left out."""
    kinds = dict.fromkeys(kind for times in ranks for kind in times)
    return {
        kind: [max(step) for step in zip(*(times[kind] for times in ranks if times.get(kind)), strict=False)]
        for kind in kinds
    }


def metrics_of(times: Mapping[str, Sequence[int]]) -> tuple[Metric, ...]:
    """`steps_per_s`, `step_time_median`, `step_time_iqr`, `step_count` of steps without the profiler, and
    `profiler_overhead`: median step with it by median step without, less one.

    Args:
        times: from the end of one step to the end of the next, in ns: `before` the first recording, `recorded`, and
            `after` it. Steps without the profiler are those after it where there are `MIN_STEPS`, else the second half
            of those before it: the first steps of a program compile and fill caches.

    Returns:
        Nothing where no such step was timed.
    """
    plain = _plain(times)
    recorded = times.get("recorded", ())
    if not plain:
        return ()
    median_ns = statistics.median(plain)
    metrics = [
        Metric(name="steps_per_s", value=1e9 / median_ns if median_ns else None, unit="items_per_s", better="higher"),
        Metric(name="step_time_median", value=median_ns, unit="ns", better="lower"),
        Metric(name="step_time_iqr", value=_middle_half(plain), unit="ns", better="lower"),
        Metric(name="step_count", value=len(plain), unit="count", better="none"),
    ]
    if min(len(plain), len(recorded)) >= MIN_STEPS and median_ns:
        overhead = statistics.median(recorded) / median_ns - 1
        metrics.append(Metric(name="profiler_overhead", value=overhead, unit="ratio", better="lower"))
    return tuple(metrics)


def _plain(times: Mapping[str, Sequence[int]]) -> Sequence[int]:
    before, after = times.get("before", ()), times.get("after", ())
    return after if len(after) >= MIN_STEPS else before[len(before) // 2 :]


def _middle_half(values: Sequence[int]) -> float | None:
    if len(values) < 2:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first
