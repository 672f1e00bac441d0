"""The answer in a sentence, the facts under it, and the tiles: made from the figures, never from a template title."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from ascend_perf.gains import NOTICEABLE_RATIO, together
from ascend_perf.model.finding import Finding, Metric, Words
from ascend_perf.model.run import Manifest
from ascend_perf.model.trace import Device
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.overhead import judged, known_metrics, noise_of
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.phrases import phrase
from ascend_perf.units import Unit, amdahl_bound, format_bound, format_quantity, significant

Range = tuple[float, float]
State = Literal["good", "watch", "bad", "none"]

FREE_GOOD_RATIO: Final = 0.03
"""Idle share of the step that is fine. Source: H-01 (MindSpeed-LLM tuning guide). Status: vendor."""
FREE_BAD_RATIO: Final = 0.10
"""Idle share that is a finding. Source: H-01 (msprof-analyze). Status: vendor."""
EXPOSED_GOOD_RATIO: Final = 0.10
"""Exposed communication that is normal. Source: N-01 (MindSpeed-LLM tuning guide). Status: vendor."""
EXPOSED_BAD_RATIO: Final = 0.20
"""Exposed communication that is a finding. Source: N-01. Status: vendor."""
MFU_GOOD_RATIO: Final = 0.30
"""Utilisation below which a busy device deserves a look. Source: C-01. Status: assumed."""
MEMORY_GOOD_RATIO: Final = 0.90
"""Share of the device memory that may be reserved before the allocator is at risk. Status: assumed."""

UTILISATION_METRICS: Final = ("mfu", "kernel_mfu", "mac_utilisation", "mac_ratio")
"""Metrics that can fill the utilisation tile, best first (with and without `_ratio`)."""

OF_MACHINES: Final = ("comm-bench", "micro")
"""Workloads that measure what a machine can do: they wait, copy and cast by design."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and range of a figure over steps and ranks."""

    middle: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`lead` says how long the step takes, `main` what is slow, `gain` what removing it can give at most."""

    lead: Words
    main: Words
    gain: Words | None = None
    is_clean: bool = False
    """Nothing was found, and at least as much could be judged as could not."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What was analysed: one label and its value."""

    label: Words
    value: Words


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure with its share of the step (or of the peak), and the range that is healthy."""

    key: str
    label: Words
    value: Words
    note: Words
    share_ratio: float | None = None
    healthy: Range | None = None
    hint: Words
    state: State = "none"


def spread(values: Iterable[float]) -> Spread | None:
    """Median and range; None without values."""
    known = list(values)
    if not known:
        return None
    return Spread(middle=median(known), low=min(known), high=max(known), count=len(known))


def verdict(payload: Payload) -> Verdict:
    """The sentence of the report: the time of a step, the first finding, its bound."""
    span = spread(payload.figures("span_us"))
    first = payload.findings[0] if payload.findings else None
    if (ceiling := measures_machine(payload.manifest)) is not None:
        return Verdict(lead=_lead(payload, span), main=ceiling)
    if first is None:
        return _nothing_found(payload, _lead(payload, span))
    return Verdict(lead=_lead(payload, span), main=_short(first.title), gain=gain(first, span))


def _short(title: Words) -> Words:
    """The first two clauses of a title: more than that is not read in one glance, and the card says all of it."""
    en, zh = title.en.split("; "), title.zh.split("；")
    return title if len(en) < 3 or len(en) != len(zh) else Words("; ".join(en[:2]), "；".join(zh[:2]))


def doubts(payload: Payload) -> Words | None:
    """What in the data makes every figure doubtful, to be said beside the verdict; None where nothing does.

    Unlike rows that are not used on purpose: files that could not be used, cross-checks that differ, analyzers that
    failed.
    """
    unreadable = sum(item.source.is_unusable for item in payload.sources)
    differing = len({check.name for rank in payload.ranks for check in rank.meta.checks if not check.holds})
    failed = len({o.analyzer for o in payload.outcomes if o.status == "failed"} | set(payload.broken))
    parts = [
        words(f"doubt.{key}", count=count)
        for key, count in (("unreadable", unreadable), ("differing", differing), ("failed", failed))
        if count
    ]
    if not parts:
        return None
    return words(
        "doubt.data", parts=Words("; ".join(part.en for part in parts), "；".join(part.zh for part in parts))
    )


def gain(finding: Finding, span: Spread | None) -> Words | None:
    """ "At most 3.6x (98 of 136.6 ms)": the bound of a finding, in words that promise nothing; None when unknown.

    Over several steps it is said as a share: times of the mean step would not fit the median that the page shows.
    """
    return None if finding.share_ratio is None else _bounded(finding.share_ratio, span)


def added(finding: Finding) -> Words | None:
    """What a finding adds to those before it, where that is less than it could give alone; None where it is not.

    Source:
        `ascend_perf.gains`.
    """
    if finding.added_ratio is None or not finding.is_overlapped:
        return None
    if finding.added_ratio < NOTICEABLE_RATIO:
        return words("gain.nothing_added")
    return words("gain.added", share=format_quantity(finding.added_ratio, "ratio"))


def all_together(findings: Sequence[Finding]) -> Words | None:
    """The bound of all findings together; None where fewer than two have one."""
    if sum(finding.share_ratio is not None for finding in findings) < 2:
        return None
    return words("gain.together", bound=_bounded(together(findings), None))


def _bounded(share: float, span: Spread | None) -> Words:
    bound = amdahl_bound(share)
    part = _part(share, span)
    return words("gain.whole", part=part) if bound is None else words(
        "gain.bound", bound=format_bound(bound), part=part
    )  # fmt: skip


def _part(share: float, span: Spread | None) -> Words:
    if span is None or span.count > 1:
        return words("gain.share", share=format_quantity(share, "ratio"))
    step = span.middle
    return words("gain.time", time=format_quantity(share * step, "us"), step=format_quantity(step, "us"))


def _lead(payload: Payload, span: Spread | None) -> Words:
    lead, run = _time_of_step(payload, span), payload.manifest
    if run is None or run.status == "complete":
        return lead
    problem = phrase(run.problem) if run.problem else words("verdict.no_problem")
    said = words(f"verdict.run_{run.status}", problem=problem)
    return said if span is None else words("verdict.both", first=said, second=lead)


def _time_of_step(payload: Payload, span: Spread | None) -> Words:
    if span is None and (seen := served(payload.metrics)) is not None:
        return seen
    if span is None:
        return words("verdict.steps_left_out" if payload.has_left_out("step-breakdown") else "verdict.no_step_time")
    time = format_quantity(span.middle, "us")
    if span.count == 1:
        return words("verdict.one_step", time=time)
    low, high = _us(span.low), _us(span.high)
    if low == high:
        return words("verdict.equal_steps", time=time, count=span.count)
    return words("verdict.steps", time=time, count=span.count, low=low, high=high)


def measures_machine(manifest: Manifest | None) -> Words | None:
    """What to say first of a run that measures a machine; None of one of a model."""
    return None if manifest is None or manifest.workload not in OF_MACHINES else words("verdict.of_machine")


def served(metrics: Sequence[Metric]) -> Words | None:
    """What clients saw of a service: requests per second, time to the first token, and time of a request. None where
    there are no such figures."""
    known = {metric.name: metric.value for metric in metrics if metric.value is not None}
    en, zh = [], []
    if "request_throughput" in known:
        rate = significant(known["request_throughput"])
        en.append(f"{rate} requests/s")
        zh.append(f"{rate} 请求/s")
    for key, name, name_zh in (("ttft", "TTFT", "TTFT"), ("latency", "request", "请求时延")):
        percentiles = [
            f"p{percent} {format_quantity(known[name_ns], 'ns')}"
            for percent in (50, 99) if (name_ns := f"{key}_p{percent}_ns") in known
        ]  # fmt: skip
        if percentiles:
            en.append(f"{name} {', '.join(percentiles)}")
            zh.append(f"{name_zh} {'、'.join(percentiles)}")
    return words("verdict.served", figures=Words(" · ".join(en), " · ".join(zh))) if en else None


def _nothing_found(payload: Payload, lead: Words) -> Verdict:
    judged = [judged for outcome in payload.outcomes for judged in outcome.judged]
    missed = [outcome for outcome in payload.outcomes if outcome.status in ("left_out", "failed")]
    good = {row.code for row in judged if row.verdict == "clean"} - {row.code for o in missed for row in o.judged}
    clean, unjudged = len(good), len({row.code for row in judged if row.verdict == "not_judged"} - good)
    if not clean:
        key = "nothing_judged" if served(payload.metrics) is None else "served_only"
        return Verdict(lead=lead, main=words(f"verdict.{key}"))
    main = words("verdict.nothing_found", clean=clean, unjudged=unjudged)
    has_failed = any(outcome.status == "failed" for outcome in missed)
    return Verdict(lead=lead, main=main, is_clean=clean >= max(1, unjudged) and not has_failed)


def _us(value: float) -> str:
    return format_quantity(value, "us")


def _same(text: str) -> Words:
    return Words(text, text)


def facts(payload: Payload) -> tuple[Fact, ...]:
    """What was analysed, as read from the trace; what the trace does not tell is left out here."""
    found: list[Fact] = []

    def add(key: str, value: Words | str) -> None:
        if isinstance(value, Words) or value:
            found.append(Fact(label=words(f"fact.{key}"), value=_same(value) if isinstance(value, str) else value))

    if payload.manifest is not None:
        add("workload", payload.manifest.workload)
        if (rate := _throughput(payload.manifest)) is not None:
            add("throughput", words("fact.throughput_value", rate=rate))
    add("device", _listed(_device(rank.meta.device) for rank in payload.ranks))
    add("ranks", _ranks(payload))
    steps = sum(step.span_us is not None for rank in payload.ranks for step in rank.steps)
    ids = sorted({step.step_id for rank in payload.ranks for step in rank.steps if step.step_id is not None})
    if steps:
        add("steps", _steps(ids, steps))
    settings = [rank.meta.settings for rank in payload.ranks]
    add("profiler", _listed(" ".join(filter(None, (s.producer, s.level, s.aic_metrics))) for s in settings))
    versions = {f"{name} {version}": None for rank in payload.ranks for name, version in rank.meta.versions.items()}
    add("versions", ", ".join(versions))
    add("data", _data(payload))
    left_out = {outcome.analyzer for outcome in payload.outcomes if outcome.status == "left_out"}
    if left_out:
        ran = {outcome.analyzer: None for outcome in payload.outcomes if outcome.analyzer not in left_out}
        add("only", words("fact.only_value", ran=", ".join(ran), count=len(left_out)))
    if payload.overrides:
        stated = ", ".join(f"{item.code} {item.name}" for item in payload.overrides)
        add("thresholds", words("fact.thresholds_value", stated=stated))
    return tuple(found)


def _device(device: Device) -> str:
    """Name of the device; what was derived from the counters where the trace does not name it."""
    known = device.name or device.vendor or ""
    derived = []
    if device.cube_cores:
        derived.append(f"{device.cube_cores} Cube")
    if device.frequency_hz:
        derived.append(format_quantity(device.frequency_hz, "hertz"))
    return f"{known} ({', '.join(derived)})" if known and derived and not device.spec else known


def _listed(items: Iterable[str]) -> str:
    """Distinct texts with how often each occurs."""
    count: dict[str, int] = {}
    for item in items:
        if item:
            count[item] = count.get(item, 0) + 1
    return ", ".join(item if times == 1 or len(count) == 1 else f"{times} × {item}" for item, times in count.items())


def _ranks(payload: Payload) -> Words:
    ranks = [rank.rank for rank in payload.ranks]
    sizes = {rank.meta.world_size for rank in payload.ranks if rank.meta.world_size}
    named = [rank for rank in ranks if rank is not None]
    if not named:
        return words("fact.ranks_unnamed", seen=len(ranks))
    listed, count = ranges(named), len(set(named))  # a log of the whole job is no rank
    if payload.pages is not None and payload.pages.is_rank:
        seen = len(payload.pages.ranks)
        return words("fact.rank_of", rank=listed, seen=seen, world=max(sizes, default=seen))
    if sizes:
        return words("fact.ranks_of", listed=listed, seen=count, world=max(sizes))
    return words("fact.ranks_seen", listed=listed, seen=count)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as "0-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _steps(ids: list[int], count: int) -> Words:
    if not ids:
        return words("fact.steps_unmarked")
    return words("fact.steps_marked", listed=ranges(ids), count=count)


def _data(payload: Payload) -> Words:
    rows = sum(item.source.rows for item in payload.sources)
    dropped = sum(drop.count for item in payload.sources for drop in item.source.dropped)
    failed = sum(outcome.status == "failed" for outcome in payload.outcomes) + len(payload.broken)
    no_data = len({outcome.analyzer for outcome in payload.outcomes if outcome.status == "no_data"})
    unreadable = sum(item.source.is_unusable for item in payload.sources)
    said = words(
        "fact.data_read",
        files=sum(item.source.problem is None for item in payload.sources),
        rows=format_quantity(rows, "count"),
        dropped=format_quantity(dropped, "count"),
    )
    for key, count in (("unreadable", unreadable), ("no_data", no_data), ("failed", failed)):
        if count:
            said = words("fact.data_more", said=said, more=words(f"fact.data_{key}", count=count))
    return said


def tiles(payload: Payload) -> tuple[Tile, ...]:
    """Step time, computing, exposed communication, idle, utilisation, peak memory; unknown ones say what they need.

    A run of ours on a CPU, where nothing is on a device, shows what was measured on the host instead.
    """
    run = _run_tiles(payload)
    if all(rank.meta.device.kind == "cpu" for rank in payload.ranks) and run:
        return (_step_tile(payload), *run)
    return (
        _step_tile(payload),
        _share_tile(payload, "computing", "computing_us", None),
        _share_tile(payload, "exposed", "communication_not_overlapped_us", (EXPOSED_GOOD_RATIO, EXPOSED_BAD_RATIO)),
        _share_tile(payload, "idle", "free_us", (FREE_GOOD_RATIO, FREE_BAD_RATIO)),
        _utilisation_tile(payload),
        _memory_tile(payload),
    )


def _throughput(manifest: Manifest) -> str | None:
    """Items per second without the profiler, e.g. `3 916 tokens/s`; None when it was not measured."""
    for metric in manifest.metrics:
        if metric.unit == "items_per_s" and metric.value is not None:
            return f"{significant(metric.value)} {metric.name.removesuffix('_per_s')}/s"
    return None


def _run_tiles(payload: Payload) -> tuple[Tile, ...]:
    """What `ascend-perf run` measured: throughput without the profiler, the profiler's cost, peak host memory."""
    manifest = payload.manifest
    if manifest is None:
        return ()
    made = []
    if (rate := _throughput(manifest)) is not None:
        value = _same(rate)
        note, hint = words("tile.throughput_note"), words("tile.throughput_hint")
        made.append(Tile(key="throughput", label=words("tile.throughput"), value=value, note=note, hint=hint))
    known = known_metrics(manifest)
    if (overhead := known.get("profiler_overhead")) is not None:
        value, note = _same(format_quantity(overhead, "ratio")), words("tile.overhead_note")
        judgement = judged(known)
        if judgement == "noise":
            value, note = _same(f"< {format_quantity(noise_of(known), 'ratio')}"), words("tile.overhead_noise")
        elif judgement == "disturbed":
            value, note = words("overhead.not_measured"), words("tile.overhead_disturbed")
        made.append(
            Tile(key="overhead", label=words("tile.overhead"), value=value, note=note, hint=words("tile.overhead_hint"))
        )
    if (peak := known.get("peak_rss")) is not None:
        value, note = _same(format_quantity(peak, "bytes")), words("tile.host_memory_note")
        label, hint = words("tile.host_memory"), words("tile.host_memory_hint")
        made.append(Tile(key="host_memory", label=label, value=value, note=note, hint=hint))
    return tuple(made)


def _unknown(key: str) -> Tile:
    label, why = words(f"tile.{key}"), words(f"tile.{key}_unknown")
    return Tile(key=key, label=label, value=words("tile.unknown"), note=why, hint=why)


def _step_tile(payload: Payload) -> Tile:
    span = spread(payload.figures("span_us"))
    if span is None:
        return _unknown("step")
    low, high = _us(span.low), _us(span.high)
    note = words("tile.one_step") if span.count == 1 else words("tile.range", low=low, high=high)
    if span.count > 1 and low == high:
        note = words("tile.equal_steps", count=span.count)
    value = _same(format_quantity(span.middle, "us"))
    return Tile(key="step", label=words("tile.step"), value=value, note=note, hint=words("tile.step_hint"))


def _share_tile(payload: Payload, key: str, figure: str, limits: Range | None) -> Tile:
    times, shares = [], []
    for rank in payload.ranks:
        for step in rank.steps:
            time = getattr(step, figure)
            if time is not None and step.span_us:
                times.append(time)
                shares.append(time / step.span_us)
    time, share = spread(times), spread(shares)
    if time is None or share is None:
        return _unknown(key)
    hint = words(f"tile.{key}_hint")
    if key == "exposed" and not any(step.communication_us for rank in payload.ranks for step in rank.steps) and (
        time.high == 0
    ):
        return Tile(
            key=key, label=words("tile.exposed"), value=words("tile.none"), note=words("tile.exposed_none"), hint=hint
        )
    note = words("tile.share", share=format_quantity(share.middle, "ratio"))
    low, high = format_quantity(share.low, "ratio"), format_quantity(share.high, "ratio")
    if low != high:
        note = words("tile.share_range", share=format_quantity(share.middle, "ratio"), low=low, high=high)
    state: State = "none"
    if limits is not None:
        state = "good" if share.high <= limits[0] else "watch" if share.high <= limits[1] else "bad"
    return Tile(
        key=key, label=words(f"tile.{key}"), value=_same(_us(time.middle)), note=note, hint=hint, state=state,
        share_ratio=min(1.0, share.middle), healthy=(0, limits[0]) if limits else None,
    )  # fmt: skip


def _metric(payload: Payload, names: tuple[str, ...], unit: Unit) -> tuple[str, Spread] | None:
    for name in names:
        for known in (name, f"{name}_ratio", name.replace("_", "-")):
            values = [m.value for m in payload.metrics if m.name == known and m.unit == unit and m.value is not None]
            if found := spread(values):
                return name, found
    return None


def _utilisation_tile(payload: Payload) -> Tile:
    found = _metric(payload, UTILISATION_METRICS, "ratio")
    if found is None:
        return _unknown("utilisation")
    name, value = found
    low, high = format_quantity(value.low, "ratio"), format_quantity(value.high, "ratio")
    return Tile(
        key="utilisation", label=words(f"tile.{name}"), value=_same(format_quantity(value.middle, "ratio")),
        note=words("tile.of_peak") if low == high else words("tile.range", low=low, high=high),
        share_ratio=min(1.0, max(0.0, value.middle)), healthy=(MFU_GOOD_RATIO, 1), hint=words("tile.utilisation_hint"),
        state="good" if value.low >= MFU_GOOD_RATIO else "watch",
    )  # fmt: skip


def _memory_tile(payload: Payload) -> Tile:
    peaks = [(r.peak_reserved_bytes, r.meta.device.memory_bytes) for r in payload.ranks if r.peak_reserved_bytes]
    if not peaks:
        return _unknown("memory")
    peak, size = max(peaks, key=lambda pair: pair[0] or 0)
    assert peak is not None
    value = _same(format_quantity(peak, "bytes"))
    if not size:
        note = words("tile.memory_no_size")
        return Tile(key="memory", label=words("tile.memory"), value=value, note=note, hint=words("tile.memory_hint"))
    return Tile(
        key="memory", label=words("tile.memory"), value=value, hint=words("tile.memory_hint"),
        note=words("tile.memory_of", size=format_quantity(size, "bytes")), share_ratio=min(1.0, peak / size),
        healthy=(0, MEMORY_GOOD_RATIO), state="good" if peak <= MEMORY_GOOD_RATIO * size else "watch",
    )  # fmt: skip
