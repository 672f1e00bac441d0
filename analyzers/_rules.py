"""The troubleshooting table: what each row means, how to confirm it and what to do, in both languages.

The rows are data: `rules/<group>.yaml`, one file per group letter.
Only the file of the row that is asked for is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from ascend_perf.intervals import IntervalSet
from ascend_perf.model.finding import Claim, Evidence, Finding, Remedy, Severity, Words, severity_of
from ascend_perf.units import Unit, format_quantity

Vendor = Literal["npu", "gpu", "cpu"]
Lang = Literal["en", "zh"]
Mark = Literal["S", "M", "I"]
Status = Literal["source", "measured", "inferred", "assumed"]

VENDORS: Final[tuple[Vendor, ...]] = ("npu", "gpu", "cpu")

MARKS: Final[dict[str, Words]] = {
    "S": Words("read in a source file or an official document", "见于源代码或官方文档"),
    "M": Words("measured and published by others, not reproduced by us", "他人公布的实测数据，我们未复现"),
    "I": Words("inferred, or a rule of thumb: a starting value, not a limit", "推断或经验值，仅作起点"),
}
"""What the evidence mark of a row's threshold says."""

STATUSES: Final[dict[Status, Words]] = {
    "source": Words("taken from a source", "取自来源"),
    "measured": Words("measured by us", "由我们实测"),
    "inferred": Words("inferred from a source", "由来源推断"),
    "assumed": Words("assumed", "假定"),
}
"""Where the value of one threshold comes from."""

LIMIT_UNITS: Final[tuple[Unit, ...]] = ("ratio", "ns", "bytes", "count", "x", "hertz", "none")
"""Units that a threshold may have: `x` is how many times as much, `none` a plain number."""

_LINE_WIDTH: Final = 100
_LAST_NARROW: Final = "\u2e7f"
"""Signs above this one (CJK and its punctuation) take two columns in a terminal."""
_BREAKABLE: Final = re.compile(r"\s*[^\s\u2e80-\uffff]+|\s*[\u2e80-\uffff]|\s+")
_CLOSING: Final = "，。；：、）”！？"
"""Signs that do not begin a line."""

_FOLDER: Final = Path(__file__).parent / "rules"
_ROUNDING: Final = 1e-9
"""A share this much above 1 is the rounding of a division, not a wrong sum. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class RuleRemedy:
    """One thing to do on the devices of `vendors`. `code` is what to copy, if there is anything to copy."""

    text: Words
    code: str = ""
    vendors: tuple[Vendor, ...] = VENDORS
    needs: str = ""
    """What the device must be able to do: bf16, fp16 (and no bf16), tf32. Empty when all devices can."""
    subject: str = ""
    """The findings of the row that it helps, where they differ by subject. Empty: all of them."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A threshold as the table states it: its default, and where that comes from."""

    name: str
    value: int | float
    unit: Unit
    status: Status
    source: str
    """Where the value was read or inferred from, in English; empty where it was only assumed."""
    text: Words
    """What it does, in one sentence."""
    least: int | float = 0
    """Smallest value that makes sense; 0 allows everything that the unit allows."""
    rows: tuple[str, ...] = ()
    """Other rows that the same threshold rules."""

    @property
    def shown(self) -> str:
        """The default as a user file would state it, with how reports write it where that differs."""
        return shown_value(self.value, self.unit)


def shown_value(value: float, unit: Unit) -> str:
    """`0.05 (5 %)`: a threshold as a user file states it, then as reports write it; once where both are equal."""
    plain = f"{value:.12g}" if isinstance(value, float) else str(value)
    written = format_quantity(value, unit) if unit not in ("count", "none", "x") else plain
    return plain if written == plain else f"{plain} ({written})"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row of the troubleshooting table. `severity` holds while the share of the step is unknown."""

    code: str
    severity: Severity
    title: Words
    symptom: Words
    cause: Words
    confirm: Words
    remedies: tuple[RuleRemedy, ...]
    effect: Words
    """What was published elsewhere, and how the bound is computed; never a forecast."""
    mark: Mark
    """Evidence mark of the threshold, a key of `MARKS`."""
    sources: tuple[str, ...]
    """Repository, then path inside it; or the name of a document."""
    judged_by: tuple[str, ...] = ()
    """Analyzers that look for it; none where nothing in a profile tells."""
    needs_data: Words | None = None
    """What would tell it, for a row that no profile read so far tells: it is never found, and said to be not judged."""
    thresholds: tuple[Limit, ...] = ()
    """What decides whether, and how, the row speaks; a user file may state other values."""

    @property
    def source(self) -> str:
        """The sources in one line, led by the row's id."""
        return "; ".join((f"troubleshooting table {self.code}", *self.sources))


def rule(code: str) -> Rule:
    """The row with this id.

    Raises:
        KeyError: the table has no such row.
    """
    return _group(code[:1])[code]


def rule_codes() -> tuple[str, ...]:
    """Every id of the table, group by group."""
    return tuple(code for group in groups() for code in _group(group))


def rows_of(analyzer: str) -> tuple[str, ...]:
    """The rows that an analyzer looks for."""
    return tuple(code for code in rule_codes() if analyzer in rule(code).judged_by)


def limit(code: str, name: str) -> Limit:
    """A threshold of a row.

    Raises:
        KeyError: the table has no such row, or the row no such threshold.
    """
    return _limits(code)[name]


def limits_of(code: str) -> tuple[tuple[str, Limit], ...]:
    """The thresholds that rule a row, each with the row that it belongs to: its own first, then shared ones.

    Raises:
        KeyError: the table has no such row.
    """
    own = [(code, item) for item in rule(code).thresholds]
    shared = [(other, item) for other in rule_codes() for item in rule(other).thresholds if code in item.rows]
    return (*own, *shared)


def groups() -> tuple[str, ...]:
    """The group letters in the order of the table: most general first."""
    order = "HCMNDKPELVQ"
    found = {path.stem for path in _FOLDER.glob("*.yaml")}
    return tuple(sorted(found, key=lambda name: (order.find(name) % 99, name)))


def remedies_for(
    code: str, vendor: Vendor | None, features: frozenset[str] | None = None, subject: str = ""
) -> tuple[Remedy, ...]:
    """The remedies of a row for one kind of device; all of them, with the kind named, when it is unknown.

    Args:
        code: row of the table.
        vendor: kind of the device.
        features: what the device can do; remedies that need something else are left out. None when unknown.
        subject: of the finding; remedies of other subjects are left out. Empty: those of all.

    Raises:
        KeyError: the table has no such row.
    """
    chosen = []
    for remedy in rule(code).remedies:
        if features is not None and remedy.needs and remedy.needs not in features:
            continue
        if subject and remedy.subject and remedy.subject != subject:
            continue
        if vendor is None:
            chosen.append(Remedy(text=_with_vendors(remedy), code=remedy.code))
        elif vendor in remedy.vendors:
            chosen.append(Remedy(text=remedy.text, code=remedy.code))
    return tuple(chosen)


def finding(
    code: str,
    *,
    analyzer: str,
    trace_rank: int | None,
    title: Words,
    share_ratio: float | None,
    evidence: Sequence[Evidence],
    subject: str = "",
    ranks: Sequence[int] | None = None,
    affected_ranks: Sequence[int] | None = None,
    vendor: Vendor | None = None,
    features: frozenset[str] | None = None,
    formula: str = "",
    severity: Severity | None = None,
    bands: Sequence[tuple[int, int]] = (),
    step_ids: Sequence[int | None] = (),
    cause: Words | None = None,
    where: IntervalSet | None = None,
    whole_ns: int | None = None,
    claims: Sequence[Claim] = (),
) -> Finding:
    """A finding whose cause, confirmation, remedies and source come from the table.

    Args:
        code: row of the table.
        analyzer: name of the analyzer that speaks.
        trace_rank: rank of the trace; stands for `ranks` and `affected_ranks` where these are None.
        title: a full sentence with numbers.
        share_ratio: share of the step that the remedy could touch, 0..1; None when unknown.
        evidence: at least one number with its place.
        subject: separates findings of one row.
        ranks: where the cause lies.
        affected_ranks: those that lose the time.
        vendor: kind of the device (`trace.meta.device.kind`); it selects the remedies.
        features: what the device can do, as `needs` of the remedies names it; None when unknown.
        formula: how the share was computed.
        severity: overrides what follows from the share, or from the row when the share is unknown.
        bands: windows [start_ns, end_ns) to mark in the timeline.
        step_ids: steps in which it was seen.
        cause: a cause that the data settle; replaces the list of likely causes in the table.
        where: where the time lies on the clock of the trace, a merged set; what the remedy could save is part of it.
        whole_ns: the length of what `share_ratio` is a share of; needed with `where`.
        claims: as `where`, for a finding about several ranks.

    Raises:
        KeyError: the table has no such row.
        ValueError: no evidence, or a share outside 0..1.
    """
    row = rule(code)
    own = () if trace_rank is None else (trace_rank,)
    if share_ratio is not None and 1 < share_ratio <= 1 + _ROUNDING:
        share_ratio = 1.0
    if severity is None:
        severity = row.severity if share_ratio is None else severity_of(share_ratio)
    if where is not None and whole_ns and share_ratio:
        claims = (Claim(rank=trace_rank, where=where, gain_ns=share_ratio * whole_ns, whole_ns=whole_ns), *claims)
    return Finding(
        code=code,
        analyzer=analyzer,
        title=Words(title.en.rstrip("."), title.zh.rstrip("。")),
        ranks=own if ranks is None else tuple(ranks),
        affected_ranks=own if affected_ranks is None else tuple(affected_ranks),
        severity=severity,
        share_ratio=share_ratio,
        evidence=tuple(evidence),
        remedies=remedies_for(code, vendor, features, subject),
        cause=cause or row.cause,
        confirm=row.confirm,
        formula=formula,
        source=row.source,
        subject=subject,
        step_ids=tuple(step_ids),
        bands=tuple(bands),
        claims=tuple(claims),
    )


_LABELS: Final[dict[str, Words]] = {
    "symptom": Words("Symptom", "现象"),
    "cause": Words("Likely cause", "可能原因"),
    "confirm": Words("How to confirm", "如何确认"),
    "remedies": Words("What to do", "优化建议"),
    "effect": Words("Effect", "效果"),
    "threshold": Words("Threshold", "阈值依据"),
    "thresholds": Words("Thresholds, which a user file may override", "阈值（可用用户规则文件覆盖）"),
    "of": Words("of row", "属于"),
    "needs_data": Words("Not judged from profiles; what would tell", "无法由 profile 判断；所需数据"),
    "judged_by": Words("Judged by the analyzers", "判断该项的分析项"),
    "source": Words("Source", "来源"),
    "severity": Words("severity while the share of the step is unknown", "占比未知时的级别"),
}
_SEVERITIES: Final[dict[Severity, str]] = {
    Severity.CRITICAL: "严重",
    Severity.HIGH: "高",
    Severity.MEDIUM: "中",
    Severity.LOW: "低",
}


def explain(code: str, lang: Lang) -> str:
    """A row of the table as text for the terminal.

    Raises:
        KeyError: the table has no such row.
    """
    row = rule(code)
    level = row.severity.value if lang == "en" else _SEVERITIES[row.severity]
    colon = ": " if lang == "en" else "："
    lines = [f"{row.code}  {_say(row.title, lang)}", _say(_LABELS["severity"], lang) + colon + level]
    for name, words in (("symptom", row.symptom), ("cause", row.cause), ("confirm", row.confirm)):
        lines += _block(_say(_LABELS[name], lang), _say(words, lang))
    lines += ["", _say(_LABELS["remedies"], lang)]
    for number, remedy in enumerate(row.remedies, 1):
        lines += _wrapped(_say(_with_vendors(remedy), lang), first=f"  {number}. ", rest="     ")
        lines += [f"       {line}" for line in remedy.code.splitlines()]
    lines += _block(_say(_LABELS["effect"], lang), _say(row.effect, lang))
    lines += _block(_say(_LABELS["threshold"], lang), f"{row.mark}: {_say(MARKS[row.mark], lang)}")
    if row.needs_data is not None:
        lines += _block(_say(_LABELS["needs_data"], lang), _say(row.needs_data, lang))
    if row.judged_by:
        lines += _block(_say(_LABELS["judged_by"], lang), (", " if lang == "en" else "、").join(row.judged_by))
    if limits := limits_of(code):
        lines += ["", _say(_LABELS["thresholds"], lang)]
        for owner, item in limits:
            lines += _limit_lines(item, None if owner == code else owner, lang)
    lines += ["", _say(_LABELS["source"], lang), *(f"  {source}" for source in row.sources)]
    return "\n".join(lines) + "\n"


def _limit_lines(item: Limit, owner: str | None, lang: Lang) -> list[str]:
    colon = ": " if lang == "en" else "："
    of = "" if owner is None else f"  [{_say(_LABELS['of'], lang)} {owner}]"
    origin = _say(STATUSES[item.status], lang) + (f"{colon}{item.source}" if item.source else "")
    return [
        f"  {item.name}: {item.shown}{of}",
        *_wrapped(_say(item.text, lang), first="    ", rest="    "),
        *_wrapped(origin, first="    ", rest="    "),
    ]


def _say(words: Words, lang: Lang) -> str:
    return words.en if lang == "en" else words.zh


def _block(label: str, text: str) -> list[str]:
    return ["", label, *_wrapped(text, first="  ", rest="  ")]


def _wrapped(text: str, *, first: str, rest: str) -> list[str]:
    """Lines of at most `_LINE_WIDTH` columns; Chinese has no spaces, so it may break between any two signs."""
    lines, line, columns = [], first, len(first)
    for word in _BREAKABLE.findall(text):
        width = sum(2 if sign > _LAST_NARROW else 1 for sign in word)
        if columns + width > _LINE_WIDTH and line.strip() and word not in _CLOSING:
            lines.append(line.rstrip())
            line, columns = rest, len(rest)
            word = word.lstrip()
        line, columns = line + word, columns + width
    return [*lines, line.rstrip()]


def _with_vendors(remedy: RuleRemedy) -> Words:
    if remedy.vendors == VENDORS:
        return remedy.text
    names = "/".join(name.upper() for name in remedy.vendors)
    return Words(f"[{names}] {remedy.text.en}", f"[{names}] {remedy.text.zh}")


@cache
def _group(letter: str) -> dict[str, Rule]:
    path = _FOLDER / f"{letter}.yaml"
    if not (letter.isalpha() and path.is_file()):
        return {}
    # Imported here: yaml costs 15 ms that commands without findings need not pay.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(path.read_text("utf-8"), Loader=loader)
    rules = [_parse(_mapping(row)) for row in rows]
    return {item.code: item for item in rules}


@cache
def _limits(code: str) -> dict[str, Limit]:
    return {item.name: item for item in rule(code).thresholds}


def _parse(row: dict[str, object]) -> Rule:
    unknown = set(row) - {*Rule.__dataclass_fields__} - {"id"}
    if unknown:
        raise ValueError(f"rule {row.get('id')}: unknown keys {sorted(unknown)}")
    mark = row["mark"]
    if mark not in MARKS:
        raise ValueError(f"rule {row['id']}: no such evidence mark: {mark}")
    remedies, sources = row["remedies"], row["sources"]
    judged_by, thresholds = row.get("judged_by", []), row.get("thresholds", [])
    assert isinstance(remedies, list) and isinstance(sources, list)
    assert isinstance(judged_by, list) and isinstance(thresholds, list)
    return Rule(
        code=str(row["id"]),
        severity=Severity(row["severity"]),
        title=_words(row["title"]),
        symptom=_words(row["symptom"]),
        cause=_words(row["cause"]),
        confirm=_words(row["confirm"]),
        remedies=tuple(_remedy(_mapping(item)) for item in remedies),
        effect=_words(row["effect"]),
        mark=mark,  # type: ignore[arg-type] # checked above
        sources=tuple(str(item) for item in sources),
        judged_by=tuple(str(item) for item in judged_by),
        needs_data=None if row.get("needs_data") is None else _words(row["needs_data"]),
        thresholds=tuple(_limit(_mapping(item)) for item in thresholds),
    )


def _limit(item: dict[str, object]) -> Limit:
    unknown = set(item) - {"name", "value", "unit", "status", "source", "least", "rows", "en", "zh"}
    value, unit, status, rows = item["value"], item["unit"], item["status"], item.get("rows", [])
    least = item.get("least", 0)
    if unknown or unit not in LIMIT_UNITS or status not in STATUSES or not isinstance(rows, list):
        raise ValueError(f"threshold {item.get('name')}: {sorted(unknown) or (unit, status, rows)}")
    if not isinstance(value, int | float) or not isinstance(least, int | float):
        raise ValueError(f"threshold {item['name']}: not a number")
    return Limit(
        name=str(item["name"]), value=value, unit=unit, status=status, source=str(item.get("source", "")),
        text=Words(str(item["en"]), str(item["zh"])), least=least, rows=tuple(str(row) for row in rows),
    )  # fmt: skip


def _remedy(item: dict[str, object]) -> RuleRemedy:
    named = item.get("vendor", list(VENDORS))
    wanted = named if isinstance(named, list) else [named]
    vendors = tuple(vendor for vendor in VENDORS if vendor in wanted)
    if len(vendors) != len(wanted):
        raise ValueError(f"no such vendor: {wanted}")
    return RuleRemedy(
        text=Words(str(item["en"]), str(item["zh"])), code=str(item.get("code", "")).rstrip(), vendors=vendors,
        needs=str(item.get("needs", "")), subject=str(item.get("subject", "")),
    )  # fmt: skip


def _words(value: object) -> Words:
    pair = _mapping(value)
    return Words(str(pair["en"]), str(pair["zh"]))


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, got {value!r}")
    return value
