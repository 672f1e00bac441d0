"""Collection options of msprof: which exist, what they take, which go together. msprof itself ignores some mistakes,
and ends with others before the program has started.

The facts are data (`specs/msprof.yaml`), read once and only when asked for.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.errors import UsageError

Series = Literal["A2", "A3", "310P", "310B", "910", "950"]
Level = Literal["quick", "standard", "deep"]

_FILE: Final = Path(__file__).parent / "specs" / "msprof.yaml"
_COMMON: Final = ("A2", "A3", "310P")
"""Series that have every option without a list of its own."""
_CUSTOM: Final = re.compile(r"Custom:(?:0x[0-9a-fA-F]{1,8}|\d{1,10})(?:,(?:0x[0-9a-fA-F]{1,8}|\d{1,10}))*")
_EVENTS: Final = re.compile(r"(?:(?:HA|MATA|SMMU|NOC):)?0x[0-9a-fA-F]+(?:,(?:(?:HA|MATA|SMMU|NOC):)?0x[0-9a-fA-F]+)*")
MAX_COUNTERS: Final = 8
MAX_COUNTER: Final = 0x7FFFFFFF
"""Limits of Custom: and of --npu-events. Source: format reference for collectors, sections 1.4 and 1.5."""


def series_of(soc: str) -> Series | None:
    """The series that a SoC name belongs to, None where it is not known.

    "Ascend910B" without a digit is the first 910, not an A2. Source: format reference for collectors, section 5.3.
    """
    known: tuple[tuple[str, Series], ...] = (
        (r"Ascend ?910B\d", "A2"), (r"Ascend ?910_93", "A3"), (r"Ascend ?310P", "310P"), (r"Ascend ?310B", "310B"),
        (r"Ascend ?910(?:A|B|Pro|Premium)?", "910"), (r"Ascend ?950", "950"),
    )  # fmt: skip
    return next((series for pattern, series in known if re.match(pattern, soc)), None)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Options as they are given to msprof, and what to know of them."""

    options: Mapping[str, str]
    notes: tuple[str, ...] = ()


def choose(
    level: Level, given: Mapping[str, str], *, help_text: str | None = None, series: Series | None = None,
    find_tool: Callable[[str], str | None] = shutil.which,
) -> Chosen:  # fmt: skip
    """Options of a level with those of the user, all checked.

    Args:
        level: name of the preset.
        given: options of the user, without dashes.
        help_text: what `msprof --help` prints on this machine: an option that it does not name is left out of the
            level, and refused when the user gave it. None: not known.
        series: the chip; None: not known, then nothing is refused for it.
        find_tool: finds a program on this machine.

    Raises:
        UsageError: an option is unknown, takes another value, is not for this chip or this release, or does not go
            together with another.
    """
    table = _table()
    for name in given:
        _check_name(name, table)
    preset = {name: value for name, value in table["levels"][level].items() if name not in given}
    notes: list[str] = []
    if given.get("instr-profiling") == "on":  # it excludes what the levels are made of
        preset = {name: value for name, value in preset.items() if name not in _spec("instr-profiling")["excludes"]}
    if given.get("ai-core") == "off":
        preset = {name: value for name, value in preset.items() if not name.startswith("aic-")}
    for name in list(preset):
        if (why := _absent(name, help_text, series)) is not None:
            notes.append(f"left out: --{name}, {why}")
            del preset[name]
    options = {**preset, **given}
    for name, value in options.items():
        _check_value(name, value, series)
    for name in given:
        if (why := _absent(name, help_text, series)) is not None:
            raise UsageError(f"msprof has no --{name} here: {why}", hint="leave it out")
    _check_pairs(options)
    for name, value in options.items():
        spec = _spec(name)
        if gone := spec.get("gone"):
            notes.append(f"--{name} will be gone from later releases of msprof: {gone}")
        for part in value.split(","):
            absent = [tool for tool in spec.get("tools", {}).get(part, ()) if find_tool(tool) is None]
            if absent:
                raise UsageError(
                    f"--{name}={part} needs {' and '.join(absent)}, not on this machine",
                    hint="install it, and have root rights; or leave it out",
                )
    return Chosen(options=options, notes=tuple(notes))


def known_options() -> tuple[str, ...]:
    """Names of all options that a user can give."""
    return tuple(_table()["options"])


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(_FILE.read_text("utf-8"))
    assert isinstance(table, dict)
    return table


def _spec(name: str) -> dict[str, Any]:
    spec = _table()["options"][name]
    assert isinstance(spec, dict)
    return spec


def _check_name(name: str, table: Mapping[str, Any]) -> None:
    if name in table["options"]:
        return
    if name in table["ours"]:
        instead = table["ours"][name]
        hint = f"give {instead}" if instead else "`ascend-perf collect` records one command and exports by itself"
        raise UsageError(f"--{name} of msprof is set by us", hint=hint)
    alias = name.replace("_", "-")
    close = [alias] if alias in table["options"] else difflib.get_close_matches(alias, table["options"], n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(table['options'])}"
    raise UsageError(f"msprof has no option --{name}", hint=hint)


def _absent(name: str, help_text: str | None, series: Series | None) -> str | None:
    """Why an option cannot be given on this machine; None when it can."""
    spec = _spec(name)
    if series is not None and series not in spec.get("series", (*_COMMON, "310B", "910", "950")):
        return f"it is for {', '.join(spec['series'])} only, this is {series}"
    if series is None and "series" in spec:
        return f"it is for {', '.join(spec['series'])} only"
    if help_text:
        if not re.search(rf"--{re.escape(name)}(?![\w-])", help_text):
            return "`msprof --help` does not name it"
    elif spec.get("newest"):
        return "only the newest releases have it"
    return None


def _check_value(name: str, value: str, series: Series | None) -> None:
    spec = _spec(name)
    form = spec["form"]
    if re.search(r"[\x00-\x1f\"'`]", value):
        raise UsageError(f"--{name}: quotes and control characters are refused by msprof, got {value!r}")
    if form == "metrics":
        _check_metrics(value, series)
        return
    if form == "switch":
        values: list[str] | None = ["on", "off"]
    elif form in ("choice", "list"):
        values = spec["values"]
    else:
        values = None
    if values is not None:
        parts = value.split(",") if form == "list" else [value]
        wrong = [part for part in parts if part not in values]
        if wrong or len(set(parts)) < len(parts):
            raise UsageError(
                f"--{name}={value}: msprof would end before the program starts", hint=f"it takes {' | '.join(values)}"
            )
    elif form == "whole":
        low, high = spec["range"]
        if not re.fullmatch(r"\d{1,10}", value) or not low <= int(value) <= high:
            raise UsageError(f"--{name}={value}: expected a whole number", hint=f"it takes {low} to {high}")
    elif form == "events" and not (_EVENTS.fullmatch(value) and value.count(",") < MAX_COUNTERS):
        raise UsageError(
            f"--{name}={value}: expected up to {MAX_COUNTERS} event ids", hint="write HA:0x12,SMMU:0x3 (hexadecimal)"
        )
    elif form == "text" and not value:
        raise UsageError(f"--{name} needs a value")


def _check_metrics(value: str, series: Series | None) -> None:
    metrics = _table()["metrics"]
    if value.startswith("Custom:"):
        ids = [int(part, 0) for part in value[7:].split(",")] if _CUSTOM.fullmatch(value) else []
        if not 1 <= len(ids) <= MAX_COUNTERS or not all(1 <= one <= MAX_COUNTER for one in ids):
            raise UsageError(
                f"--aic-metrics={value}: expected up to {MAX_COUNTERS} counter ids", hint="write Custom:0x49,0x8"
            )
        return
    allowed = [name for name, where in metrics.items() if (series or "A2") in where]
    if "," in value:
        raise UsageError(
            f"--aic-metrics={value}: msprof takes one group of counters in a run",
            hint="repeat the run with the other group; `msprof op` alone takes a list",
        )
    if value in allowed:
        return
    if value in metrics:
        what = f"--aic-metrics={value} is for {', '.join(metrics[value])}, this is {series or 'A2 or A3'}"
        raise UsageError(what, hint=f"it takes {' | '.join(allowed)}")
    close = {name.lower(): name for name in allowed}.get(value.lower())
    hint = f"did you mean {close}?" if close else f"it takes {' | '.join(allowed)}"
    raise UsageError(f"--aic-metrics={value}: msprof would end before the program starts", hint=hint)


def _check_pairs(options: Mapping[str, str]) -> None:
    for name in options:
        spec = _spec(name)
        if spec["form"] == "switch" and options[name] == "off":
            continue
        for other in spec.get("excludes", ()):
            if other in options:
                raise UsageError(f"--{name} does not go together with --{other}", hint="leave one of them out")
        for other, wanted in spec.get("needs", {}).items():
            seen = options.get(other, _spec(other).get("default"))
            if seen != wanted and not (wanted == "any" and seen):
                right = "" if wanted == "any" else f"={wanted}"
                raise UsageError(
                    f"--{name} has no effect without --{other}{right}", hint=f"add --option {other}{right or '=cpu'}"
                )
    if options.get("ai-core") == "off":
        for name in ("aic-mode", "aic-metrics", "aic-freq"):
            if name in options:
                raise UsageError(f"--{name} has no effect with --ai-core=off", hint="leave one of them out")
