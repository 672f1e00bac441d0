"""What collecting cost in this run: of the profiler at its level, of telemetry; what was compared with what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ascend_perf.model.finding import Words
from ascend_perf.model.run import Manifest
from ascend_perf.model.trace import ProfilerSettings
from ascend_perf.reports.catalogue import words
from ascend_perf.units import format_quantity, significant

COSTS = frozenset({
    "profiler_overhead", "profiler_overhead_low", "profiler_overhead_high", "command_overhead", "telemetry_overhead",
})  # fmt: skip
"""Metrics of a run that tell of the collectors, not of the program."""


def known_metrics(manifest: Manifest) -> dict[str, float]:
    """Metrics of a run that have a value, by name."""
    return {metric.name: metric.value for metric in manifest.metrics if metric.value is not None}


def noise_of(known: Mapping[str, float]) -> float | None:
    """Spread of the unprofiled steps (interquartile range) against their median."""
    middle, iqr = known.get("step_time_median"), known.get("step_time_iqr")
    return iqr / middle if middle and iqr is not None else None


def judged(known: Mapping[str, float]) -> Literal["unknown", "noise", "disturbed", "figure"]:
    """What the overhead of the profiler is worth: less than the steps differ among themselves, or steps that were
    faster with it than without, are no figure to speak of."""
    overhead, noise = known.get("profiler_overhead"), noise_of(known)
    if overhead is None:
        return "unknown"
    if noise is not None and abs(overhead) < noise:
        return "noise"
    return "disturbed" if overhead < 0 else "figure"


def rows(manifest: Manifest, settings: ProfilerSettings) -> list[tuple[Words, Words, Words]]:
    """Collector, its overhead, and how it was measured; one row for the profiler, one for telemetry.

    A collector that `ascend-perf collect` used and whose cost the run does not tell stands there without a figure, with
    what measures it.

    Args:
        settings: of the profile of the first rank: names the profiler of runs whose manifest does not.
    """
    known = known_metrics(manifest)
    collector, level = (str(manifest.config.get(name) or "") for name in ("collector", "level"))
    found: list[tuple[Words, Words, Words]] = []
    if "profiler_overhead" in known or collector:
        names = (collector or settings.producer or "", level or settings.level or "")
        name = " ".join(part for part in names if part)
        found.append((words("overhead.profiler", name=name) if name else words("overhead.some_profiler"),
                      *_of_profiler(known, manifest.config.get("overhead_basis"), collector)))
    if (cost := known.get("telemetry_overhead")) is not None:
        share = significant(cost * 100, 2)
        found.append((words("overhead.telemetry"), words("overhead.of_core", share=share),
                      words("overhead.telemetry_basis")))
    elif collector:
        found.append((words("overhead.telemetry"), words("overhead.not_measured"), words("overhead.no_samples_basis")))
    return found


def _of_profiler(known: Mapping[str, float], compared: object, collector: str) -> tuple[Words, Words]:
    """What is said of the profiler; `compared`: what a run without it was compared by (steps, lines, command), None
    where the steps of one run were compared among themselves."""
    overhead = known.get("profiler_overhead")
    if overhead is None and (whole := known.get("command_overhead")) is not None:
        if whole < 0:
            faster = format_quantity(-whole, "ratio")
            return words("overhead.not_measured"), words("overhead.command_disturbed_basis", faster=faster)
        said = format_quantity(whole, "ratio")
        return Words(en=said, zh=said), words("overhead.command_basis")
    if overhead is None:
        return words("overhead.not_measured"), words(f"overhead.{'msprof' if collector == 'msprof' else 'few'}_basis")
    noise, count = noise_of(known), format_quantity(known.get("step_count"), "count")
    where = f"_{compared}" if compared in ("steps", "lines") else ""
    judgement = judged(known)
    if judgement == "noise":
        said = f"< {format_quantity(noise, 'ratio')}"
        return Words(en=said, zh=said), words(f"overhead.noise_basis{where}", count=count)
    if judgement == "disturbed":
        faster = format_quantity(-overhead, "ratio")
        return words("overhead.not_measured"), words("overhead.disturbed_basis", faster=faster, count=count)
    said = format_quantity(overhead, "ratio")
    low, high = (known.get(f"profiler_overhead_{name}") for name in ("low", "high"))
    if low is None or high is None:
        return Words(en=said, zh=said), words(f"overhead.basis{where}", count=count)
    span = {"low": format_quantity(low, "ratio"), "high": format_quantity(high, "ratio")}
    return words("overhead.with_span", said=said, **span), words(f"overhead.basis{where}", count=count)
