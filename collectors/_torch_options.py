"""Options of the profilers inside the process, checked by us: torch_npu only warns about a wrong value, and takes
another one.

The facts are data (`specs/torch_profilers.yaml`), read once and only when asked for.
"""

from __future__ import annotations

import difflib
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.errors import UsageError

Backend = Literal["torch-npu", "torch"]
Value = bool | str | float | None | tuple[str, ...]

_FILE: Final = Path(__file__).parent / "specs" / "torch_profilers.yaml"
_WORDS: Final[Mapping[str, bool]] = {
    "true": True, "on": True, "1": True, "yes": True, "false": False, "off": False, "0": False, "no": False,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Values by name, and what to know of them."""

    values: Mapping[str, Value]
    notes: tuple[str, ...] = ()


def choose(
    backend: Backend, level: str, given: Mapping[str, object], *, release: str | None = None,
    find_tool: Callable[[str], str | None] = shutil.which,
) -> Chosen:  # fmt: skip
    """Options of a level with those of the user, all checked.

    Args:
        backend: whose options.
        level: quick, standard or deep.
        given: values of the user, as text or as they are.
        release: of torch_npu (see `release_of`); what is younger is left out of the level, and refused when the user
            gave it. None: not known.
        find_tool: finds a program on this machine.

    Raises:
        UsageError: an option is unknown, takes another value, is too young, or has no effect with the others.
    """
    table = _table()
    known, levels = table[backend], table["levels"][backend]
    if level not in levels:
        raise UsageError(f"no level {level!r}", hint=f"there are {', '.join(levels)}")
    given = {_renamed(name, known): value for name, value in given.items()}
    values: dict[str, Value] = {"cpu": True}
    notes: list[str] = []
    for name, value in levels[level].items():
        if name in given:
            continue
        if (since := _too_young(name, value, known, release)) is not None:
            notes.append(f"left out: {name}, torch_npu {release} has it not (since {since})")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    for name, raw in given.items():
        values[name] = value = _value(name, raw, known[name])
        if (since := _too_young(name, value, known, release)) is not None:
            raise UsageError(
                f"{name}={_shown(value)} needs torch_npu {since} or newer, here is {release}", hint="leave it out"
            )
    _check_pairs(values, given, known)
    for name, value in values.items():
        for part in value if isinstance(value, tuple) else ():
            absent = [tool for tool in known[name].get("tools", {}).get(part, ()) if find_tool(tool) is None]
            if absent:
                raise UsageError(
                    f"{name}={part} needs {' and '.join(absent)}, not on this machine",
                    hint="install it, or leave it out",
                )
    return Chosen(values=values, notes=tuple(notes))


def known_options(backend: Backend) -> Mapping[str, Any]:
    """The table of a profiler: form, values, since, where."""
    options = _table()[backend]
    assert isinstance(options, dict)
    return options


def release_of(package: str) -> str | None:
    """The release of torch_npu that a package version belongs to: the newest that is not younger than it; None where
    the base version is not in the table.

    Source: format reference for collectors, section 5.4.
    """
    wanted = _package(package)
    best: tuple[int, str] | None = None
    for release, packages in _table()["releases"].items():
        for one in packages:
            base, post = _package(one)
            if base == wanted[0] and post <= wanted[1] and (best is None or post > best[0]):
                best = (post, release)
    return None if best is None else best[1]


def release_key(release: str) -> tuple[int, ...]:
    """To compare releases: 6.0.rc1 < 6.0.rc3 < 6.0.0 < 7.0.0."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(?:rc(\d+)|(\d+))", release.lower())
    if found is None:
        raise ValueError(f"no release of torch_npu: {release!r}")
    major, minor, candidate, patch = found.groups()
    return (int(major), int(minor), 0, int(candidate)) if candidate else (int(major), int(minor), 1, int(patch))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(_FILE.read_text("utf-8"))
    assert isinstance(table, dict)
    return table


def _package(version: str) -> tuple[str, int]:
    found = re.match(r"(\d+\.\d+\.\d+)(?:\.post(\d+))?", version)
    return (found[1], int(found[2] or 0)) if found else (version, 0)


def _renamed(name: str, known: Mapping[str, Any]) -> str:
    """The name of an option as we have it: `msprof_tx` is the old name of `mstx`.

    Raises:
        UsageError: there is none of that name.
    """
    plain = name.replace("-", "_")
    if plain in known:
        return plain
    for new, spec in known.items():
        if plain in spec.get("renamed", {}):
            return str(new)
    close = difflib.get_close_matches(plain, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise UsageError(f"the profiler has no option {name!r}", hint=hint)


def _too_young(name: str, value: object, known: Mapping[str, Any], release: str | None) -> str | None:
    """The release that has this option with this value first, where this one has not."""
    spec = known[name]
    if release is None or "since" not in spec:
        return None
    sinces = [spec["since"]]
    parts = value if isinstance(value, (tuple, list)) else (value,)
    sinces += [spec["values_since"][part] for part in parts if part in spec.get("values_since", {})]
    newest = max(sinces, key=release_key)
    return str(newest) if release_key(newest) > release_key(release) else None


def _value(name: str, raw: object, spec: Mapping[str, Any]) -> Value:
    """A value of the user in the form of its option.

    Raises:
        UsageError: it is none.
    """
    form = spec["form"]
    if form == "bool":
        found = raw if isinstance(raw, bool) else _WORDS.get(str(raw).lower())
        if found is None:
            raise UsageError(f"{name}={raw!s:.60}: expected true or false")
        return found
    if form == "number":
        if raw is None or str(raw).lower() == "none":
            return None
        try:
            number = float(str(raw))
        except ValueError:
            number = math.nan
        if not number >= 0 or math.isinf(number) or isinstance(raw, bool):
            raise UsageError(f"{name}={raw!s:.60}: expected milliseconds, 0 or more, or none")
        return number
    words = [str(part) for part in raw] if isinstance(raw, (list, tuple)) else str(raw).split(",")
    if form == "texts":
        if not all(words):
            raise UsageError(f"{name}: a name is empty", hint="names, separated by commas")
        return tuple(words)
    exact = [_member(word, spec["values"]) for word in words]
    if None in exact or (form == "choice" and len(exact) != 1):
        raise UsageError(f"{name}={raw!s:.60}: unknown value", hint=f"it takes {' | '.join(spec['values'])}")
    members = tuple(word for word in exact if word is not None)
    return members[0] if form == "choice" else members


def _member(word: str, values: Sequence[str]) -> str | None:
    """The value that a word means: capitals and the name of the enum before it do not matter."""
    bare = word.rpartition(".")[2].lower()
    return next((value for value in values if value.lower() == bare), None)


def _check_pairs(values: dict[str, Value], given: Mapping[str, object], known: Mapping[str, Any]) -> None:
    for name, value in list(values.items()):
        spec = known[name]
        if value is False or value is None or (spec.get("free") is not None and value == spec["free"]):
            continue
        for other in spec.get("excludes", ()):
            if values.get(other):
                raise UsageError(f"{name} and {other} exclude each other", hint="leave one of them out")
        for other, wanted in spec.get("needs", {}).items():
            if values.get(other) in wanted:
                continue
            if name in given:
                right = " or ".join(_shown(one) for one in wanted)
                raise UsageError(f"{name}={_shown(value)} has no effect unless {other} is {right}")
            if "free" in spec:  # of the level, which the user changed elsewhere
                values[name] = spec["free"]
            else:
                del values[name]
    if values.get("cpu") is False and "with_stack" in values and values["with_stack"] and "with_stack" in given:
        raise UsageError("with_stack=true has no effect unless cpu is true")
    if values.get("profiler_level") == "Level_none":
        values["mstx"] = True  # torch_npu would set it with a warning


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
