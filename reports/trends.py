"""The pages of a history: what changed over months, and a page with the trends of each benchmark.

Every page is one file that needs nothing else, so that any web server, and none, can serve them; they link to each
other and to reports by relative paths.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from ascend_perf.model.finding import Words, marked
from ascend_perf.model.run import Fact
from ascend_perf.model.trend import Change, Result, Trend, TrendBook
from ascend_perf.reports.catalogue import catalogue, words
from ascend_perf.reports.html import embedded
from ascend_perf.reports.texts import Json, Lang, pair, safe, said
from ascend_perf.units import format_quantity, format_ratio

SCRIPTS: Final = ("core.js", "format.js", "head.js", "trends_chart.js", "trends.js")
STYLES: Final = ("report.css", "trends.css")
INDEX: Final = "index.html"
FOLDER: Final = "benchmarks"
"""Pages of single benchmarks lie in it."""
SPARK: Final = 60
"""Newest values of the small line of the overview."""
UNUSUAL_Z: Final = 5.0
"""A newest value further from the rolling median is marked. Source: Conbench."""
MAX_NAME: Final = 300
_FACTS: Final = {
    "chip": Words("chip", "芯片"), "chip_count": Words("chips", "芯片数"), "cpu": Words("CPU", "CPU"),
    "cpu_cores": Words("CPU cores", "CPU 核数"), "driver": Words("driver", "驱动"), "cann": Words("CANN", "CANN"),
    "cuda": Words("CUDA", "CUDA"), "torch": Words("torch", "torch"), "torch_npu": Words("torch_npu", "torch_npu"),
}  # fmt: skip
"""Facts of a machine that its page shows."""


def write_site(book: TrendBook, folder: Path, *, version: str, lang: Lang = "en") -> list[Path]:
    """Write all pages into an existing folder; those that are there are replaced. Returns their paths, index first."""
    groups = grouped(book)
    pages = {INDEX: _index(book, groups, version, lang)}
    for name, trends in groups.items():
        pages[f"{FOLDER}/{name}"] = _benchmark(book, trends, version, lang)
    (folder / FOLDER).mkdir(exist_ok=True)
    written = []
    for name, text in pages.items():
        path = folder / name
        path.write_text(text, "utf-8", newline="\n")
        written.append(path)
    return written


def grouped(book: TrendBook) -> dict[str, list[Trend]]:
    """Trends by the name of their page: one page for each benchmark of a suite, branch and machine."""
    groups: dict[str, list[Trend]] = {}
    for trend in book.trends:
        key = (trend.suite, trend.branch, trend.machine, trend.benchmark, trend.work, trend.is_simulated)
        name = hashlib.sha256(repr(key).encode("utf-8", "replace")).hexdigest()[:16] + ".html"
        groups.setdefault(name, []).append(trend)
    return groups


def open_changes(book: TrendBook) -> list[tuple[Trend, Change]]:
    """Changes nobody has decided on: those for the worse first, then the newest."""
    found = [(trend, change) for trend in book.trends for change in trend.changes if change.state == "open"]
    order = {"worse": 0, "changed": 1, "better": 2}
    return sorted(found, key=lambda one: (order[one[1].direction], -_at(book, *one), one[0].series))


def change_sentence(book: TrendBook, trend: Trend, change: Change) -> Words:
    """What changed, by how much, and from which commit on."""
    first = commit_words(book.results[trend.results[change.place]])
    return words("trends.sentence_since", sentence=_sentence(trend, change), commit=first)


def _sentence(trend: Trend, change: Change) -> Words:
    old, new = levels_at(trend, change)
    return words(
        "trends.sentence",
        metric=safe(trend.metric, MAX_NAME),
        benchmark=marked(
            _same(safe(trend.benchmark, MAX_NAME)), words("trends.simulated") if trend.is_simulated else None
        ),
        size=size_words(change),
        old=format_quantity(old, trend.unit),
        new=format_quantity(new, trend.unit),
    )


def size_words(change: Change) -> Words:
    """By how much a figure changed, with its interval."""
    if change.ratio is None:
        return words("trends.from_zero")
    text = _signed(change.ratio)
    if change.ratio_low is None or change.ratio_high is None or change.ratio_low == change.ratio_high:
        return Words(text, text)
    return words("trends.size", size=text, low=_signed(change.ratio_low), high=_signed(change.ratio_high))


def place_words(book: TrendBook, trend: Trend, change: Change) -> Words:
    """Between which results the change lies."""
    last_good = book.results[trend.results[max(change.earliest - 1, 0)]]
    last = book.results[trend.results[change.latest]]
    key = "trends.place_sure" if change.earliest == change.latest else "trends.place_between"
    count = change.latest - change.earliest + 1
    return words(key, good=commit_words(last_good), bad=commit_words(last), count=count)


def levels_at(trend: Trend, change: Change) -> tuple[float, float]:
    """The levels before and behind a change."""
    if change.state == "dismissed":
        return trend.levels[change.place], trend.levels[change.place]
    return trend.levels[change.place - 1], trend.levels[change.place]


def commit_words(result: Result) -> Words:
    """A result by its commit, or by its time where none is known."""
    if result.commit:
        short = safe(result.commit, 40)[:12]
        return Words(short, short)
    return words("trends.result_of", time=day(result))


def day(result: Result) -> str:
    """The day of a result in the trend, in UTC."""
    try:
        return datetime.fromtimestamp(result.at_s, timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "—"


def is_unusual(trend: Trend) -> bool:
    """Whether the newest value is far from those before."""
    newest = trend.z[-1] if trend.z else None
    return newest is not None and abs(newest) > UNUSUAL_Z


def _signed(ratio: float) -> str:
    change = ratio - 1
    if ratio >= 2:
        return f"{ratio:.3g}x"
    return ("+" if change > 0 else "−" if change < 0 else "±") + format_ratio(abs(change))


def _at(book: TrendBook, trend: Trend, change: Change) -> float:
    return book.results[trend.results[change.place]].at_s


def _index(book: TrendBook, groups: Mapping[str, Sequence[Trend]], version: str, lang: Lang) -> str:
    changes = open_changes(book)
    worse = [one for one in changes if one[1].direction == "worse"]
    page_of = {trend.series: name for name, trends in groups.items() for trend in trends}
    main = _verdict(book, changes)
    document: dict[str, Json] = {
        "kind": "index",
        "state": "worse" if worse else "clean" if book.trends else "empty",
        "main": pair(main),
        "facts": [[pair(label), pair(value)] for label, value in _index_facts(book)],
        "changes": [
            _change(book, trend, change) | {"page": f"{FOLDER}/{page_of[trend.series]}"}
            for trend, change in changes
        ],
        "rows": [_row(trend) | {"page": f"{FOLDER}/{page_of[trend.series]}"} for trend in book.trends],
        "machines": {key: _machine(facts) for key, facts in book.machines.items()},
        "simulated": any(trend.is_simulated for trend in book.trends),
        "partly": len({trend.is_simulated for trend in book.trends}) > 1,
    }  # fmt: skip
    items = [change_sentence(book, trend, change) for trend, change in changes[:50]]
    return _page(document, words("trends.title"), main, items, version, lang)


def _benchmark(book: TrendBook, trends: Sequence[Trend], version: str, lang: Lang) -> str:
    one = trends[0]
    used = sorted({at for trend in trends for at in trend.results}, key=lambda at: (book.results[at].at_s, at))
    place = {at: index for index, at in enumerate(used)}
    open_ = [(trend, change) for trend in trends for change in trend.changes if change.state == "open"]
    document: dict[str, Json] = {
        "kind": "benchmark",
        "state": "worse" if any(change.direction == "worse" for _, change in open_) else "clean",
        "main": safe(one.benchmark, MAX_NAME),
        "facts": [[pair(label), pair(value)] for label, value in _benchmark_facts(book, trends)],
        "results": [_result(book.results[at], one.benchmark) for at in used],
        "trends": [_trend(book, trend, place) for trend in trends],
        "simulated": one.is_simulated,
        "back": f"../{INDEX}",
    }
    items = [change_sentence(book, trend, change) for trend, change in open_]
    return _page(document, words("trends.title"), _same(safe(one.benchmark, MAX_NAME)), items, version, lang)


def _page(
    document: Mapping[str, Json], lead: Words, main: Words, items: Sequence[Words], version: str, lang: Lang
) -> str:
    shown = {name: {key: text for key, text in catalogue(name).items() if key.startswith(("trends.", "ui."))}
             for name in ("en", "zh")}
    whole: dict[str, Json] = {
        "lang": lang, "id": "history", "focus": None, "generator": f"ascend-perf {version}",
        "words": {name: dict(texts) for name, texts in shown.items()},
        **document,
    }  # fmt: skip
    return embedded(
        whole, lang=lang, label=said(lead, lang), lead="", main=said(main, lang),
        items=[said(item, lang) for item in items], scripts=SCRIPTS, styles=STYLES,
    )  # fmt: skip


def _verdict(book: TrendBook, changes: Sequence[tuple[Trend, Change]]) -> Words:
    worse = [one for one in changes if one[1].direction == "worse"]
    if not book.trends:
        return words("trends.verdict_empty")
    if not worse:
        return words("trends.verdict_clean", trends=len(book.trends))
    return words(
        "trends.verdict_one" if len(worse) == 1 else "trends.verdict_worse",
        count=len(worse), trends=len(book.trends), first=change_sentence(book, *worse[0]),
    )  # fmt: skip


def _index_facts(book: TrendBook) -> Iterable[tuple[Words, Words]]:
    results = sorted(book.results.values(), key=lambda one: one.at_s)
    yield words("trends.results"), _same(str(len(results)))
    if results:
        yield words("trends.span"), _same(f"{day(results[0])} – {day(results[-1])}")
        yield words("trends.newest"), commit_words(results[-1])
    yield words("trends.machines"), _same(str(len(book.machines)))
    accepted = sum(change.state == "accepted" for trend in book.trends for change in trend.changes)
    yield words("trends.accepted_count"), _same(str(accepted))


def _benchmark_facts(book: TrendBook, trends: Sequence[Trend]) -> Iterable[tuple[Words, Words]]:
    one = trends[0]
    yield words("trends.suite"), _same(safe(one.suite, MAX_NAME))
    yield words("trends.branch"), _same(safe(one.branch, MAX_NAME)) if one.branch else words("ui.unknown")
    facts = book.machines.get(one.machine, {})
    for name, label in _FACTS.items():
        if (value := facts.get(name)) is not None:
            yield label, _same(_fact(value))
    yield words("trends.machine"), _same(one.machine)
    yield words("trends.work"), _same(one.work)


def _same(text: str) -> Words:
    return Words(text or "—", text or "—")


def _fact(value: Fact) -> str:
    return "—" if value is None else safe(str(value), MAX_NAME)


def _machine(facts: Mapping[str, Fact]) -> Json:
    known = [_fact(facts[name]) for name in ("chip", "cpu", "kind") if facts.get(name) not in (None, "")]
    count = facts.get("chip_count")
    first = known[0] if known else "—"
    return f"{count} × {first}" if isinstance(count, int) and not isinstance(count, bool) and count > 1 else first


def _row(trend: Trend) -> dict[str, Json]:
    newest = [change for change in trend.changes if change.state != "dismissed"][-1:]
    state = newest[0].state if newest else "none"
    return {
        "series": trend.series,
        "suite": safe(trend.suite, MAX_NAME), "branch": safe(trend.branch, MAX_NAME), "machine": trend.machine,
        "benchmark": safe(trend.benchmark, MAX_NAME), "metric": safe(trend.metric, MAX_NAME), "unit": trend.unit,
        "work": trend.work, "simulated": trend.is_simulated,
        "count": len(trend.values),
        "value": _number(trend.values[-1]),
        "spark": [_number(value) for value in trend.values[-SPARK:]],
        "marks": [change.place - max(0, len(trend.values) - SPARK) for change in trend.changes
                  if change.state != "dismissed" and change.place >= len(trend.values) - SPARK],
        "change": pair(size_words(newest[0])) if newest else None,
        "direction": newest[0].direction if newest else None,
        "state": state,
        "unusual": is_unusual(trend),
    }  # fmt: skip


def _trend(book: TrendBook, trend: Trend, place: Mapping[int, int]) -> dict[str, Json]:
    return {
        "series": trend.series, "metric": safe(trend.metric, MAX_NAME), "unit": trend.unit, "better": trend.better,
        "exact": trend.is_exact, "not_judged": trend.not_judged, "unusual": is_unusual(trend),
        "at": [place[at] for at in trend.results],
        "value": [_number(one) for one in trend.values],
        "low": [_number(one) for one in trend.lows],
        "high": [_number(one) for one in trend.highs],
        "runs": [*trend.launches],
        "level": [_number(one) for one in trend.levels],
        "z": [None if one is None else round(one, 2) for one in trend.z],
        "changes": [_change(book, trend, change) for change in trend.changes],
    }  # fmt: skip


def _change(book: TrendBook, trend: Trend, change: Change) -> dict[str, Json]:
    result = book.results[trend.results[change.place]]
    return {
        "id": change.id, "place": change.place, "earliest": change.earliest, "latest": change.latest,
        "direction": change.direction, "state": change.state,
        "title": pair(change_sentence(book, trend, change)),
        "short": pair(_sentence(trend, change)),
        "commit": pair(commit_words(result)),
        "result": result.id,
        "between": pair(place_words(book, trend, change)),
        "day": day(result),
        "p": None if change.p_value is None else float(f"{change.p_value:.2g}"),
        "owner": safe(change.owner, MAX_NAME), "note": safe(change.note), "decided": safe(change.decided[:10]),
        "facts": [[name, _fact(old), _fact(new)] for name, old, new in change.facts],
        "group": [safe(trend.suite, MAX_NAME), safe(trend.branch, MAX_NAME), trend.machine],
        "series": trend.series,
        "simulated": trend.is_simulated,
    }  # fmt: skip


def _result(result: Result, benchmark: str) -> dict[str, Json]:
    report = (result.reports or {}).get(benchmark)
    return {
        "id": result.id,
        "commit": safe(result.commit or "", MAX_NAME)[:12],
        "day": day(result),
        "launches": result.launches,
        "failed": result.failed,
        "report": None if report is None else "../" + quote(report),
        "url": result.report_url if result.report_url and is_web(result.report_url) else None,
    }


def is_web(url: str) -> bool:
    """Whether an address may be linked to: http or https, and no other scheme that a browser would run."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _number(value: float) -> Json:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.7g}")
