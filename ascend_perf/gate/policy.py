"""What a gate tolerates: limits by metric and count, the allow-list, and what need not agree; from a YAML file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

import yaml

from ascend_perf.errors import UsageError
from ascend_perf.model.result import MUST_AGREE
from ascend_perf.stats import CONFIDENCE

SCHEMA_VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
"""A larger policy is refused. Status: assumed."""
TOLERANCE: Final = 0.01
"""The lower end of the interval must lie above 1 + this. Status: simulated, `make eval-gate`."""

OpStreamRule = Literal["exact", "more", "warn", "ignore"]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limits of the metrics (or counts) that a pattern matches. Changes are ratios for the worse: 0.03 is 3 %."""

    match: str
    benchmark: str = "*"
    fail: float | None = None
    """The least change that fails; None: this is shown and does not decide."""
    warn: float | None = None
    """The least change that is warned of; None: as `fail`."""
    tolerance: float | None = None
    """Of timing: the lower end of the interval must exceed 1 + this; None: that of the policy."""

    def takes(self, benchmark: str, name: str) -> bool:
        """Whether it is about this figure of this benchmark."""
        return fnmatchcase(name, self.match) and fnmatchcase(benchmark, self.benchmark)


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """A regression that somebody answers for until a date."""

    benchmark: str
    metric: str
    owner: str
    until: date
    reason: str = ""


DEFAULT_METRICS: Final = (
    Limit(match="model_flops_per_s"), Limit(match="hardware_flops_per_s"), Limit(match="*_per_s_per_device"),
    Limit(match="step_time_median", fail=0.03),
    Limit(match="*_per_s", fail=0.03),
    Limit(match="*_p99", fail=0.05), Limit(match="*_p95", fail=0.05), Limit(match="*_p90", fail=0.05),
    Limit(match="*_p50", fail=0.03),
    Limit(match="peak_device_memory", fail=0.02), Limit(match="peak_rss", fail=0.02),
    Limit(match="memory_*", fail=0.02),
    Limit(match="*"),
)  # fmt: skip
"""Defaults by metric: 3 % of throughput and step time, 5 % of tail latency, 2 % of memory. What says the same as
another metric (MFU, throughput per device) is shown and does not decide. Source: issue trackers of regression gates,
docs/gate.md."""

DEFAULT_COUNTS: Final = (
    Limit(match="memory_*", fail=0.02, warn=0.0),
    Limit(match="*", fail=0.0),
)
"""Counts have no noise: one more is one too many. Allocators round, so memory has the limit of memory."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """See docs/gate.md for the file."""

    confidence: float = CONFIDENCE
    tolerance: float = TOLERANCE
    timing: bool = True
    op_stream: OpStreamRule = "more"
    simulated: bool = False
    mixed: bool = False
    """Simulated against measured figures too; said on the command line only, so that no file lets them slip in."""
    metrics: tuple[Limit, ...] = DEFAULT_METRICS
    counts: tuple[Limit, ...] = DEFAULT_COUNTS
    removed: tuple[str, ...] = ()
    ignore_facts: tuple[str, ...] = ()
    ignore_settings: tuple[str, ...] = ()
    allow: tuple[Allowance, ...] = field(default=())

    def metric_limit(self, benchmark: str, name: str) -> Limit:
        """The first limit that matches."""
        return next(limit for limit in (*self.metrics, Limit(match="*")) if limit.takes(benchmark, name))

    def count_limit(self, benchmark: str, name: str) -> Limit:
        """The first limit that matches."""
        return next(limit for limit in (*self.counts, Limit(match="*", fail=0.0)) if limit.takes(benchmark, name))

    def is_removed(self, benchmark: str) -> bool:
        """Whether the benchmark is listed as removed."""
        return any(fnmatchcase(benchmark, pattern) for pattern in self.removed)

    def allowance(self, benchmark: str, name: str, today: date) -> tuple[Allowance | None, Allowance | None]:
        """The entry that excuses a regression today, and one that did so until it expired."""
        fits = [one for one in self.allow if fnmatchcase(benchmark, one.benchmark) and fnmatchcase(name, one.metric)]
        valid = max((one for one in fits if one.until >= today), key=lambda one: one.until, default=None)
        expired = max((one for one in fits if one.until < today), key=lambda one: one.until, default=None)
        return valid, expired


def read_policy(path: Path) -> Policy:
    """The policy of a file.

    Raises:
        UsageError: it cannot be read, is no YAML, or has a key or a value that we do not know; the message names the
            place and, for a misspelt word, what was meant.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path.name} has {path.stat().st_size} bytes, a policy has at most {MAX_BYTES}")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"the policy {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is no UTF-8 text, first at byte {error.start}") from None
    return parse_policy(text, path.name)


def parse_policy(text: str, file: str = "policy") -> Policy:
    """The policy of a text; see `read_policy`."""
    try:
        document = yaml.load(text, Loader=_Strict)  # a SafeLoader that refuses repeated keys
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not YAML that we read: {' '.join(str(error).split())[:300]}") from None
    node = _Node({} if document is None else document, file, "")
    known = node.keys(
        "schema_version", "confidence", "tolerance", "timing", "op_stream", "simulated", "metrics", "counts",
        "removed", "ignore_facts", "ignore_settings", "allow",
    )  # fmt: skip
    version = known.get("schema_version")
    if version is not None and version.value != SCHEMA_VERSION:
        raise version.wrong(f"is {version.shown}, this ascend-perf reads policies of version {SCHEMA_VERSION}")
    default = Policy()

    def value(name: str, read: Callable[[_Node], _T], otherwise: _T) -> _T:
        return otherwise if name not in known else read(known[name])

    return Policy(
        confidence=value("confidence", _confidence, default.confidence),
        tolerance=value("tolerance", _Node.ratio, default.tolerance),
        timing=value("timing", _Node.flag, default.timing),
        op_stream=value("op_stream", _op_stream, default.op_stream),
        simulated=value("simulated", _Node.flag, default.simulated),
        metrics=(*_limits(known.get("metrics"), True), *DEFAULT_METRICS),
        counts=(*_limits(known.get("counts"), False), *DEFAULT_COUNTS),
        removed=value("removed", _Node.names, ()),
        ignore_facts=value("ignore_facts", _facts, ()),
        ignore_settings=value("ignore_settings", _Node.names, ()),
        allow=value("allow", lambda node: tuple(map(_allowance, node.items())), ()),
    )


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: the key {str(name)[:80]!r} stands twice")
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


class _Node:
    """A value of the file and its place."""

    def __init__(self, value: object, file: str, place: str) -> None:
        self.value, self.file, self.place = value, file, place

    @property
    def shown(self) -> str:
        """The value, short."""
        return ascii(self.value)[:80] if not isinstance(self.value, (dict, list)) else type(self.value).__name__

    def wrong(self, problem: str, hint: str = "") -> UsageError:
        """The error to raise."""
        return UsageError(f"{self.file}: {self.place + ' ' if self.place else ''}{problem}", hint=hint)

    def _no(self, expected: str) -> UsageError:
        return self.wrong(f"must be {expected}, got {self.shown}")

    def keys(self, *known: str) -> dict[str, _Node]:
        """Values by key; all of them known."""
        if not isinstance(self.value, dict):
            raise self._no("a mapping")
        for key in self.value:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"keys: {', '.join(known)}"
                raise self.wrong(f"has no key {ascii(key)[:80]}", hint)
        return {key: _Node(value, self.file, f"{self.place}.{key}".lstrip(".")) for key, value in self.value.items()}

    def items(self) -> list[_Node]:
        """Of a list."""
        if not isinstance(self.value, list):
            raise self._no("a list")
        return [_Node(item, self.file, f"{self.place}[{index}]") for index, item in enumerate(self.value)]

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            raise self._no("true or false")
        return self.value

    def name(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self._no("a text that is not empty")
        return self.value

    def names(self) -> tuple[str, ...]:
        """Texts."""
        return tuple(item.name() for item in self.items())

    def ratio(self) -> float:
        """A ratio from 0 to 10; `3 %` is a common slip and gets a hint."""
        if isinstance(self.value, str):
            raise self.wrong(f"must be a ratio, got {self.shown}", "0.03 is 3 %")
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self._no("a ratio (0.03 is 3 %)")
        if not 0 <= self.value <= 10:
            raise self.wrong(f"must lie from 0 to 10, got {self.shown}", "0.03 is 3 %")
        return float(self.value)

    def one_of(self, choices: Sequence[str]) -> str:
        """One of few words."""
        if isinstance(self.value, str) and self.value in choices:
            return self.value
        close = difflib.get_close_matches(str(self.value), choices, n=1)
        raise self.wrong(f"must be one of {', '.join(choices)}, got {self.shown}",
                         f"did you mean {close[0]}?" if close else "")  # fmt: skip

    def day(self) -> date:
        """A date as YYYY-MM-DD."""
        if isinstance(self.value, date) and not isinstance(self.value, datetime):
            return self.value
        try:
            return date.fromisoformat(self.value if isinstance(self.value, str) else "")
        except ValueError:
            raise self._no("a date as 2026-12-31") from None


def _confidence(node: _Node) -> float:
    value = node.ratio()
    if not 0.5 <= value <= 0.9999:
        raise node.wrong(f"must lie from 0.5 to 0.9999, got {node.shown}")
    return value


def _op_stream(node: _Node) -> OpStreamRule:
    word = node.one_of(get_args(OpStreamRule))
    found: Mapping[str, OpStreamRule] = {"exact": "exact", "more": "more", "warn": "warn", "ignore": "ignore"}
    return found[word]


def _facts(node: _Node) -> tuple[str, ...]:
    return tuple(item.one_of(MUST_AGREE) for item in node.items())


def _limits(node: _Node | None, is_metric: bool) -> tuple[Limit, ...]:
    return () if node is None else tuple(_limit(item, is_metric) for item in node.items())


def _limit(node: _Node, is_metric: bool) -> Limit:
    keys = node.keys("match", "benchmark", "fail", "warn", *(["tolerance"] if is_metric else []))
    if "match" not in keys:
        raise node.wrong("has no match", "match: a name or a pattern such as *_p99")
    if "fail" not in keys and "warn" not in keys:
        raise node.wrong("has neither fail nor warn", "fail: null shows the figure without a limit")

    def ratio(name: str) -> float | None:
        return None if name not in keys or keys[name].value is None else keys[name].ratio()

    fail, warn = ratio("fail"), ratio("warn")
    if fail is not None and warn is not None and warn > fail:
        raise node.wrong(f"warns from {warn:g} on, above the {fail:g} that fail", "warn must not exceed fail")
    return Limit(
        match=keys["match"].name(), benchmark=keys["benchmark"].name() if "benchmark" in keys else "*",
        fail=fail, warn=warn, tolerance=ratio("tolerance"),
    )  # fmt: skip


def _allowance(node: _Node) -> Allowance:
    keys = node.keys("benchmark", "metric", "owner", "until", "reason")
    for needed, why in (
        ("benchmark", "a name or a pattern"), ("metric", "a name or a pattern; * is all of them"),
        ("owner", "who answers for it"), ("until", "the last day on which it holds, 2026-12-31"),
    ):  # fmt: skip
        if needed not in keys:
            raise node.wrong(f"has no {needed}", f"{needed}: {why}")
    return Allowance(
        benchmark=keys["benchmark"].name(), metric=keys["metric"].name(), owner=keys["owner"].name(),
        until=keys["until"].day(), reason=keys["reason"].name() if "reason" in keys else "",
    )  # fmt: skip
