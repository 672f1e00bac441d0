"""Data quality: what was read, dropped and missing, which checks hold, how every analyzer ended; as result tables."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import PurePath
from typing import Final, TypeVar

from ascend_perf.analyzers._rules import limit, shown_value
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable, Words
from ascend_perf.model.trace import Check, ProfilerSettings
from ascend_perf.reports import overhead
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.payload import Payload, ReadSource, shown_path
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.shown import is_large
from ascend_perf.reports.texts import Lang
from ascend_perf.reports.verdict import ranges
from ascend_perf.units import Unit, format_quantity

LACKING: Final = "not in this data: "
"""How a reason begins that names tables (`plugins.run`)."""

_Columns = Sequence[tuple[str, Unit]]
_Key = TypeVar("_Key", bound=Hashable)


def quality_tables(payload: Payload, lang: Lang) -> tuple[ResultTable, ...]:
    """Tables of the data quality section in reading order; cells that are words of ours are in `lang`.

    Rows: one per figure of the run's manifest; per collector; per file; per dropped reason and file; per check; per
    missing kind of data; per warning; per analyzer and rank; per reader that could not be loaded; per threshold of
    the user; per setting.
    """
    tables = (
        _figures(payload),
        _overheads(payload, lang),
        _sources(payload, lang),
        _dropped(payload, lang),
        _checks(payload, lang),
        _missing(payload, lang),
        _warnings(payload, lang),
        _analyzers(payload, lang),
        _readers(payload, lang),
        _thresholds(payload, lang),
        _settings(payload, lang),
    )
    return tuple(table for table in tables if len(table))


def _table(name: str, columns: _Columns, rows: Sequence[Sequence[Cell]]) -> ResultTable:
    return ResultTable(
        name=name,
        title=words(f"quality.{name}"),
        columns=tuple(ResultColumn(name=c, title=words(f"column.{c}"), unit=unit) for c, unit in columns),
        data=tuple(tuple(row[i] for row in rows) for i in range(len(columns))),
    )


def _figures(payload: Payload) -> ResultTable:
    """What the run measured by itself, under the names that docs/workloads.md explains."""
    metrics = () if payload.manifest is None else payload.manifest.metrics
    known = [
        (metric.name, metric.value, metric.unit)
        for metric in metrics if metric.value is not None and metric.name not in overhead.COSTS
    ]  # fmt: skip
    rows: list[list[Cell]] = [[name, format_quantity(value, unit)] for name, value, unit in known]
    return _table("figures", (("figure", "none"), ("value", "none")), rows)


def _overheads(payload: Payload, lang: Lang) -> ResultTable:
    """What collecting cost; measured in the same run."""
    made = []
    if payload.manifest is not None:
        settings = payload.ranks[0].meta.settings if payload.ranks else ProfilerSettings()
        made = overhead.rows(payload.manifest, settings)
    rows: list[list[Cell]] = [[said.en if lang == "en" else said.zh for said in row] for row in made]
    return _table("overheads", (("collector", "none"), ("overhead", "none"), ("basis", "none")), rows)


def _in(text: str, lang: Lang, column: str = "") -> str:
    said = phrase(text, column)
    return said.en if lang == "en" else said.zh


def _sources(payload: Payload, lang: Lang) -> ResultTable:
    """One row per file; of a large job one per name and format, but for files with a problem."""
    alike: dict[tuple[str, str, int | None], list[ReadSource]] = {}
    for place, item in enumerate(payload.sources):
        is_alone = item.source.is_unusable or not is_large(payload)
        alike.setdefault((_name(item), item.source.format, place if is_alone else None), []).append(item)
    rows: list[list[Cell]] = []
    for items in alike.values():
        source = items[0].source
        rows.append(
            [
                _paths(items),
                _on(items),
                source.format,
                sum(item.source.rows for item in items),
                sum(item.source.size_bytes for item in items),
                sum(drop.count for item in items for drop in item.source.dropped),
                None if source.problem is None else _in(source.problem, lang),
            ]
        )
    columns: _Columns = (
        ("path", "none"), ("rank", "none"), ("format", "none"), ("rows", "count"), ("size_bytes", "bytes"),
        ("dropped", "count"), ("problem", "none"),
    )  # fmt: skip
    return _table("sources", columns, rows)


def _name(item: ReadSource) -> str:
    """A file's name without the number of a rank (profiler_info_12.json)."""
    return re.sub(r"_\d+(?=\.\w+$)", "_*", PurePath(item.source.path).name)


def _paths(items: Sequence[ReadSource]) -> str:
    return shown_path(items[0].source.path) if len(items) == 1 else f"{len(items)} x {_name(items[0])}"


def _on(items: Sequence[ReadSource]) -> str | None:
    return ranges(item.rank for item in items if item.rank is not None) or None


def _dropped(payload: Payload, lang: Lang) -> ResultTable:
    """One row per file and reason; of a large job one per name of a file and reason."""
    alike: dict[tuple[str, str, int | None], list[tuple[ReadSource, int]]] = {}
    for place, item in enumerate(payload.sources):
        for drop in item.source.dropped:
            key = (_name(item), drop.reason, None if is_large(payload) else place)
            alike.setdefault(key, []).append((item, drop.count))
    rows: list[list[Cell]] = [
        [_paths([item for item, _ in found]), _on([item for item, _ in found]), _in(key[1], lang),
         sum(count for _, count in found)]
        for key, found in alike.items()
    ]  # fmt: skip
    return _table("dropped", (("path", "none"), ("rank", "none"), ("reason", "none"), ("rows", "count")), rows)


def _joined(items: Sequence[tuple[int | None, _Key]]) -> dict[_Key, str | None]:
    """Equal items of several ranks once, with their ranks as "0-3"."""
    ranks: dict[_Key, list[int]] = {}
    for rank, key in items:
        ranks.setdefault(key, []).extend([] if rank is None else [rank])
    return {key: ranges(on) or None for key, on in ranks.items()}


def _exact(value: float) -> str:
    """A figure with all digits that carry meaning: checks are about the last ones."""
    return f"{value:.12g}"


def _checks(payload: Payload, lang: Lang) -> ResultTable:
    """One row per check and rank; of a large job one per check, with the figures of the rank that differs most."""
    alike: dict[tuple[bool, str, str, int | None], list[tuple[int | None, Check]]] = {}
    for place, rank in enumerate(payload.ranks):
        for number, check in enumerate(sorted(rank.meta.checks, key=lambda c: c.holds)):
            apart = None if is_large(payload) else place * 1000 + number
            alike.setdefault((check.holds, check.name, check.unit, apart), []).append((rank.rank, check))
    rows: list[list[Cell]] = []
    for found in sorted(alike.values(), key=lambda found: found[0][1].holds) if is_large(payload) else alike.values():
        worst, check = max(found, key=lambda item: abs(item[1].ours - item[1].theirs))
        verdict = words("check.holds" if check.holds else "check.differs")
        on = ranges(rank for rank, _ in found if rank is not None) or None
        rows.append(
            [
                verdict.en if lang == "en" else verdict.zh, _in(check.name, lang),
                on if len(found) == 1 else f"{on} (max: {worst})", _exact(check.ours), _exact(check.theirs),
                f"{check.ours - check.theirs:.4g}", _in(check.unit, lang, "unit"), _exact(check.tolerance),
                _in(check.where, lang),
            ]
        )  # fmt: skip
    columns: _Columns = (
        ("verdict", "none"), ("check", "none"), ("rank", "none"), ("ours", "none"), ("theirs", "none"),
        ("difference", "none"), ("unit", "none"), ("tolerance", "none"), ("where", "none"),
    )  # fmt: skip
    return _table("checks", columns, rows)


def _missing(payload: Payload, lang: Lang) -> ResultTable:
    found = [(rank.rank, (item.what, item.remedy)) for rank in payload.ranks for item in rank.meta.missing]
    rows: list[list[Cell]] = [[_in(what, lang), on, _in(remedy, lang)] for (what, remedy), on in _joined(found).items()]
    return _table("missing", (("what", "none"), ("rank", "none"), ("remedy", "none")), rows)


def _warnings(payload: Payload, lang: Lang) -> ResultTable:
    found = [(rank.rank, text) for rank in payload.ranks for text in rank.meta.warnings]
    rows: list[list[Cell]] = [[_in(text, lang), on] for text, on in _joined(found).items()]
    return _table("warnings", (("warning", "none"), ("rank", "none")), rows)


def _analyzers(payload: Payload, lang: Lang) -> ResultTable:
    found = []
    count: dict[tuple[str, str, str | None], int] = {}
    for outcome in payload.outcomes:
        status = words(f"status.{outcome.status}")
        why = outcome.reason
        reason = None if why is None else _why(why, lang)
        key = (outcome.analyzer, status.en if lang == "en" else status.zh, reason)
        found.append((outcome.rank, key))
        count[key] = count.get(key, 0) + len(outcome.findings)
    rows: list[list[Cell]] = [[key[0], on, key[1], count[key], key[2]] for key, on in _joined(found).items()]
    broken = words("status.broken")
    rows += [
        [name, None, broken.en if lang == "en" else broken.zh, 0, _in(why, lang)]
        for name, why in sorted(payload.broken.items())
    ]
    columns: _Columns = (
        ("analyzer", "none"), ("rank", "none"), ("status", "none"), ("findings", "count"), ("reason", "none")
    )  # fmt: skip
    return _table("analyzers", columns, rows)


def _why(reason: Words, lang: Lang) -> str:
    """Why an analyzer said nothing; tables that were not in the data are named by what they hold, as in the page."""
    said = reason.en if lang == "en" else reason.zh
    keys = [f"needed.{name}" for name in reason.en.removeprefix(LACKING).split(", ")]
    if not reason.en.startswith(LACKING) or not all(key in catalogue(lang) for key in keys):
        return said
    names = catalogue(lang)["ui.comma"].join(catalogue(lang)[key] for key in keys)
    return catalogue(lang)["ui.not_in_data"] + catalogue(lang)["ui.colon"] + names


def _readers(payload: Payload, lang: Lang) -> ResultTable:
    rows: list[list[Cell]] = [[name, _in(why, lang)] for name, why in sorted(payload.broken_readers.items())]
    return _table("readers", (("reader", "none"), ("reason", "none")), rows)


def _thresholds(payload: Payload, lang: Lang) -> ResultTable:
    rows: list[list[Cell]] = []
    for item in payload.overrides:
        text = limit(item.code, item.name).text
        default, given = (shown_value(value, item.unit) for value in (item.default, item.given))
        rows.append([item.code, item.name, given, default, text.en if lang == "en" else text.zh])
    columns: _Columns = (
        ("row", "none"), ("threshold", "none"), ("given", "none"), ("default", "none"), ("meaning", "none"),
    )  # fmt: skip
    return _table("thresholds", columns, rows)


SETTINGS: Final = (
    "producer", "level", "aic_metrics", "with_stack", "record_shapes", "profile_memory", "generation",
    "gc_detect_threshold",
)  # fmt: skip
"""Profiler settings shown, in this order."""


def _settings(payload: Payload, lang: Lang) -> ResultTable:
    """One row per setting, version or environment variable and value, with the ranks that have it."""
    found: list[tuple[int | None, tuple[str, str]]] = []
    for rank in payload.ranks:
        meta = rank.meta
        seen = {name: getattr(meta.settings, name) for name in SETTINGS}
        seen |= {_in(f"{name} version", lang): version for name, version in meta.versions.items()}
        seen |= dict(meta.environment)
        if meta.device.derivation:
            seen[_in("device derivation", lang)] = _in(meta.device.derivation, lang)
        found += [(rank.rank, (name, str(value))) for name, value in seen.items() if value is not None and value != ""]
    if payload.manifest is not None:
        found += [
            (None, (_in(f"{name} version", lang), version)) for name, version in payload.manifest.versions.items()
        ]
    rows: list[list[Cell]] = [[name, value, on] for (name, value), on in _joined(found).items()]
    return _table("settings", (("setting", "none"), ("value", "none"), ("ranks", "none")), rows)
