"""A user's rules: other values for thresholds of the troubleshooting table, checked before anything is analyzed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import yaml

from ascend_perf.analyzers._rules import Limit, limits_of, rule, rule_codes
from ascend_perf.analyzers._thresholds import Override
from ascend_perf.errors import UsageError
from ascend_perf.units import Unit

MOST: Final = 10**12
"""No threshold is larger (1000 s, 1 TB, 1 THz): products with counts of events stay within 64 bits. Status: assumed."""

MAX_FILE_BYTES: Final = 1 << 16
"""A rules file is not larger: all thresholds together take a tenth of it. Status: assumed."""

_WHOLE: Final[tuple[Unit, ...]] = ("ns", "bytes", "count")
_SHAPE: Final = 'it reads "C-14: {min_share_ratio: 0.08}"; `ascend-perf explain C-14` lists the thresholds of a row'

Rules = str | Path | Mapping[str, Mapping[str, float]]
"""A YAML file, or the same as a mapping: `{"C-14": {"min_share_ratio": 0.08}}`."""

_Stated = Iterator[tuple[str, str, object, str]]
"""Row, threshold, value, and the place where they are stated."""


def overrides_of(rules: Rules | None) -> tuple[Override, ...]:
    """The thresholds that the user's rules state, in the order of the table; none without rules.

    Raises:
        UsageError: the file cannot be read or is no mapping of rows to thresholds; a row or threshold is unknown or
            stated twice; a value is no number or lies outside what the threshold allows.
    """
    if rules is None:
        return ()
    stated = _of_mapping(rules) if isinstance(rules, Mapping) else _of_file(Path(rules))
    found: dict[tuple[str, str], Override] = {}
    for code, name, value, at in stated:
        item = _limit(code, name, at)
        if (code, name) in found:
            raise UsageError(f"{at}: {name} of {code} is stated twice", hint="keep one of them")
        given = _checked(value, item, f"{at}: {name} of {code}")
        found[code, name] = Override(code=code, name=name, unit=item.unit, default=item.value, given=given)
    order = {code: place for place, code in enumerate(rule_codes())}
    return tuple(sorted(found.values(), key=lambda item: order[item.code]))


def _of_mapping(rules: Mapping[str, Mapping[str, float]]) -> _Stated:
    for code, limits in rules.items():
        if not isinstance(limits, Mapping):
            raise UsageError(f"rules: {code} states {limits!r}, expected thresholds with their values", hint=_SHAPE)
        for name, value in limits.items():
            yield str(code), str(name), value, "rules"


def _of_file(path: Path) -> _Stated:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint=f"a rules file: {_SHAPE}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"{path.name} is larger than {MAX_FILE_BYTES} bytes, no rules file", hint=_SHAPE)
    try:
        # Not the loader in C: it recurses on the stack of C, where a hostile file ends the process.
        root = yaml.compose(raw.decode("utf-8-sig"), Loader=yaml.SafeLoader)
        yield from () if root is None else _of_node(root, path.name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UsageError(f"{path.name}{line} is no valid YAML: {error.problem}", hint=_SHAPE) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise UsageError(f"{path.name} is no plain text in UTF-8", hint=_SHAPE) from None
    except RecursionError:
        raise UsageError(f"{path.name} is nested too deep", hint=_SHAPE) from None


def _of_node(root: yaml.Node, name: str) -> _Stated:
    """From nodes instead of values: they keep the lines, and keys that come twice."""
    for code, limits in _pairs(root, f"{name} holds", "rows of the troubleshooting table"):
        at = f"{name}, line {code.start_mark.line + 1}"
        for key, value in _pairs(limits, f"{at}: {code.value} states", "thresholds with their values"):
            at = f"{name}, line {key.start_mark.line + 1}"
            if not isinstance(value, yaml.ScalarNode):
                raise UsageError(f"{at}: {key.value} of {code.value} is {_kind(value)}, expected a number", hint=_SHAPE)
            yield code.value, key.value, _value(value), at


def _pairs(node: yaml.Node, what: str, expected: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{what} {_kind(node)}, expected {expected}", hint=_SHAPE)
    pairs = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{what} {_kind(key)} as a key, expected {expected}", hint=_SHAPE)
        pairs.append((key, value))
    return pairs


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(str(node.value)[:40])
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _value(node: yaml.ScalarNode) -> object:
    """The number that is written there, read as people write it: YAML 1.1 takes 1e-3 for text and 1:30 for 90."""
    if node.style is not None:  # in quotes
        return node.value
    text = str(node.value).replace("_", "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return node.value


def _limit(code: str, name: str, at: str) -> Limit:
    """The threshold of this name.

    Raises:
        UsageError: no such row or threshold, with what there is and what may have been meant.
    """
    if code not in rule_codes():
        raise UsageError(
            f"{at}: no row {code[:40]!r} in the troubleshooting table",
            hint=f"{_meant(code.upper(), rule_codes())}`ascend-perf explain` lists all rows",
        )
    own = {item.name: item for item in rule(code).thresholds}
    if name in own:
        return own[name]
    owners = [owner for owner, item in limits_of(code) if item.name == name]
    if owners:
        raise UsageError(
            f"{at}: row {code} shares {name} with {owners[0]}", hint=f"state it there: {owners[0]}: {{{name}: ...}}"
        )
    has = f"it has {', '.join(own)}" if own else "it has none of its own"
    raise UsageError(
        f"{at}: row {code} has no threshold {name[:40]!r}; {has}",
        hint=f"{_meant(name, tuple(own))}`ascend-perf explain {code}` says what they do",
    )


def _meant(given: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(given, known, n=3, cutoff=0.5)
    return f"did you mean {', '.join(close)}? " if close else ""


def _checked(value: object, item: Limit, at: str) -> int | float:
    """The value as a number that the threshold allows: whole where it counts, a ratio within 0..1.

    Raises:
        UsageError: it is none.
    """
    allowed = allowed_words(item)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{at} is {str(value)[:40]!r}, expected {allowed}", hint=f"the default is {item.shown}")
    whole = item.unit in _WHOLE
    fits = lowest(item) <= value <= highest(item) and not (whole and value != int(value))
    if not fits:
        raise UsageError(f"{at} is {value:.12g}, expected {allowed}", hint=f"the default is {item.shown}")
    return int(value) if whole else value


def lowest(item: Limit) -> int | float:
    """The smallest value that a user may state for a threshold."""
    return max(item.least, 1 if item.unit == "count" else 0)


def highest(item: Limit) -> int | float:
    """The largest value that a user may state for a threshold."""
    return 1 if item.unit == "ratio" else MOST


def allowed_words(item: Limit) -> str:
    """What a user may state for a threshold, for messages."""
    kind = {"ns": "whole nanoseconds", "bytes": "whole bytes", "count": "a whole number", "hertz": "a number in hertz"}
    what = kind.get(item.unit, "a number")
    return f"{what} from {lowest(item):g} to {highest(item):g}"
