"""Data quality: what was read, dropped and missing, which checks hold, how every analyzer ended; as result tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

from ascend_perf.analyzers._rules import limit, shown_value
from ascend_perf.model.finding import Cell, ResultColumn, ResultTable
from ascend_perf.reports.catalogue import words
from ascend_perf.reports.payload import Payload, shown_path
from ascend_perf.reports.phrases import phrase
from ascend_perf.reports.texts import Lang
from ascend_perf.reports.verdict import ranges
from ascend_perf.units import Unit

_Columns = Sequence[tuple[str, Unit]]
_Key = TypeVar("_Key", bound=Hashable)


def quality_tables(payload: Payload, lang: Lang) -> tuple[ResultTable, ...]:
    """Tables of the data quality section in reading order; cells that are words of ours are in `lang`.

    Rows: one per file; per dropped reason and file; per check; per missing kind of data; per warning; per analyzer
    and rank; per reader that could not be loaded; per threshold of the user; per setting.
    """
    tables = (
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


def _in(text: str, lang: Lang, column: str = "") -> str:
    said = phrase(text, column)
    return said.en if lang == "en" else said.zh


def _sources(payload: Payload, lang: Lang) -> ResultTable:
    rows: list[list[Cell]] = []
    for item in payload.sources:
        source = item.source
        dropped = sum(drop.count for drop in source.dropped)
        rows.append(
            [
                shown_path(source.path),
                _rank(item.rank),
                source.format,
                source.rows,
                source.size_bytes,
                dropped,
                None if source.problem is None else _in(source.problem, lang),
            ]
        )
    columns: _Columns = (
        ("path", "none"), ("rank", "none"), ("format", "none"), ("rows", "count"), ("size_bytes", "bytes"),
        ("dropped", "count"), ("problem", "none"),
    )  # fmt: skip
    return _table("sources", columns, rows)


def _dropped(payload: Payload, lang: Lang) -> ResultTable:
    rows: list[list[Cell]] = [
        [shown_path(item.source.path), _rank(item.rank), _in(drop.reason, lang), drop.count]
        for item in payload.sources
        for drop in item.source.dropped
    ]
    return _table("dropped", (("path", "none"), ("rank", "none"), ("reason", "none"), ("rows", "count")), rows)


def _rank(rank: int | None) -> str | None:
    return None if rank is None else str(rank)


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
    rows: list[list[Cell]] = []
    for rank in payload.ranks:
        for check in sorted(rank.meta.checks, key=lambda c: c.holds):
            verdict = words("check.holds" if check.holds else "check.differs")
            rows.append(
                [
                    verdict.en if lang == "en" else verdict.zh, _in(check.name, lang), _rank(rank.rank),
                    _exact(check.ours), _exact(check.theirs), f"{check.ours - check.theirs:.4g}",
                    _in(check.unit, lang, "unit"), _exact(check.tolerance), _in(check.where, lang),
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
        reason = None if why is None else why.en if lang == "en" else why.zh
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
