"""Environment variables of a launch: which exist, which values they take, and what to write instead of a wrong one.

The facts are data (`specs/launch_settings.yaml`), read once and only when asked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.model.finding import Words

Level = Literal["error", "warning"]

_FILE: Final = Path(__file__).parent / "specs" / "launch_settings.yaml"
_LONGEST_VALUE: Final = 60

HCCL_LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "level0": ("NA",),
    "level1": ("ring", "H-D_R", "NHR", "NHR_V1", "NB", "AHC", "pipeline", "pairwise"),
    "level2": ("ring", "H-D_R", "NHR", "NB", "pipeline"),
}
"""Algorithms by level, case-sensitive. Source: hccl, docs/zh/user_guide/hccl_env/HCCL_ALGO.md."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with one variable."""

    name: str
    value: str
    level: Level
    """error: the variable does not exist, or its value is refused or ignored; warning: it spoils figures."""
    words: Words
    right: str
    """What to write instead, as `NAME=value`; empty when nothing is known."""

    def __str__(self) -> str:
        return f"{self.words.en}; write {self.right}" if self.right else self.words.en


def check_environment(variables: Mapping[str, str], kind: str, generation: str | None = None) -> list[Problem]:
    """What is wrong with variables for processes on a kind of device (npu, cuda, cpu), by name.

    Args:
        variables: by name.
        kind: npu, cuda or cpu.
        generation: A2, A3, ...: some values are of some generations only. None: not known, then all are taken.

    Variables of other software, and those that a device of this kind does not read, are not looked at; invented ones
    are found on every kind.
    """
    table = _table()
    problems = []
    for name, value in sorted(variables.items()):
        value = str(value)
        if name in table["not_real"]:
            problems.append(_not_real(name, value))
        elif name in table["variables"]:
            if kind in table["variables"][name]["kinds"]:
                problems += _known(name, value) or _of_generation(name, value, generation)
        elif (problem := _unknown(name, value, kind)) is not None:
            problems.append(problem)
    return problems + (_pairs(variables) if kind == "npu" else [])


def spoilers(variables: Mapping[str, str], kind: str | None = None) -> tuple[str, ...]:
    """Variables, as NAME=value, with which no time of a run counts, on a kind of device; None: on any.

    Source: format reference for collectors, sections 4.7 and 5.6.
    """
    return tuple(
        f"{name}={variables[name]}"
        for name, entry in _table()["variables"].items()
        if entry.get("spoils") and name in variables and (kind is None or kind in entry["kinds"])
        and str(variables[name]) in entry["doubt"]["values"]
    )  # fmt: skip


def known_variables() -> tuple[str, ...]:
    """Names that are known, in the order of the table."""
    return tuple(_table()["variables"])


def default_of(name: str) -> str:
    """What holds when a known variable is not set; empty: nothing, or it depends on the device."""
    return str(_table()["variables"][name]["default"])


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(_FILE.read_text("utf-8"))
    assert isinstance(table, dict)
    return table


def _not_real(name: str, value: str) -> Problem:
    entry = _table()["not_real"][name]
    about = entry["about"]
    return Problem(
        name=name, value=value, level="error", right=str(entry["instead"]),
        words=Words(f"{name}: {about['en']}", f"{name}：{about['zh']}"),
    )  # fmt: skip


def _unknown(name: str, value: str, kind: str) -> Problem | None:
    if name.startswith(tuple(_table()["foreign"])):
        return None
    close = difflib.get_close_matches(name, known_variables(), n=1, cutoff=0.88)
    if close:
        return Problem(
            name=name, value=value, level="error", right=f"{close[0]}={value[:_LONGEST_VALUE]}",
            words=Words(
                f"{name}: no variable of that name is known: did you mean {close[0]}?",
                f"{name}：未知变量，是否指 {close[0]}？",
            ),
        )  # fmt: skip
    if name.startswith(tuple(_table()["prefixes"].get(kind, ()))):
        return Problem(
            name=name, value=value, level="warning", right="",
            words=Words(
                f"{name}: not among the known variables, it may have no effect",
                f"{name}：不在已知变量之列，可能不起作用",
            ),
        )  # fmt: skip
    return None


def _known(name: str, value: str) -> list[Problem]:
    entry = _table()["variables"][name]
    form = str(entry["form"])
    wrong = _OWN_FORMS[form](value) if form in _OWN_FORMS else _wrong(entry, value)
    shown = value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "..."
    if wrong is not None:
        words, right = wrong
        return [
            Problem(
                name=name, value=value, level="error", right=f"{name}={right}" if right else "",
                words=Words(f"{name}={shown}: {words.en}", f"{name}={shown}：{words.zh}"),
            )
        ]  # fmt: skip
    doubt = entry.get("doubt")
    if doubt and (value in doubt["values"] or doubt["values"] == ["*"]):
        return [
            Problem(
                name=name, value=value, level="warning", right="",
                words=Words(f"{name}={shown}: {doubt['en']}", f"{name}={shown}：{doubt['zh']}"),
            )
        ]  # fmt: skip
    return []


def _of_generation(name: str, value: str, generation: str | None) -> list[Problem]:
    """A value that another generation of chips takes."""
    allowed = _table()["variables"][name].get("of", {}).get(generation)
    if allowed is None:
        return []
    if isinstance(allowed, dict):  # limits of a number
        wrong = _wrong_integer(allowed, value)
    else:
        names = [str(item) for item in allowed]
        wrong = None if value in names else (_not_in(names), names[0])
    if wrong is None:
        return []
    shown, (words, right) = value[:_LONGEST_VALUE], wrong
    return [
        Problem(
            name=name, value=value, level="error", right=f"{name}={right}",
            words=Words(
                f"{name}={shown}: on {generation} it {words.en}", f"{name}={shown}：在 {generation} 上{words.zh}"
            ),
        )
    ]  # fmt: skip


_Wrong = tuple[Words, str]


def _wrong(entry: Mapping[str, Any], value: str) -> _Wrong | None:
    """What is wrong with a value of a form of the table, and a value that is right."""
    form = entry["form"]
    if form == "choice":
        return _wrong_choice([str(item) for item in entry["values"]], str(entry.get("default", "")), value)
    if form == "integer":
        return _wrong_integer(entry, value)
    if form == "pattern" and not re.fullmatch(entry["expression"], value, re.ASCII):
        example = str(entry["example"])
        return Words(f"not of the form {example}", f"格式应如 {example}"), example
    if form == "options":
        return _wrong_options(entry["keys"], value)
    return None


def _wrong_choice(allowed: list[str], default: str, value: str) -> _Wrong | None:
    if value in allowed:
        return None
    by_case = {item.casefold(): item for item in allowed}
    close = difflib.get_close_matches(value.casefold(), by_case, n=1)
    right = by_case[close[0]] if close else default or allowed[0]
    return _not_in(allowed), right


def _not_in(allowed: list[str]) -> Words:
    return Words(f"must be one of {', '.join(allowed)}", f"必须为 {'、'.join(allowed)} 之一")


def _wrong_integer(entry: Mapping[str, Any], value: str) -> _Wrong | None:
    least, most, multiple = entry["least"], entry["most"], entry.get("multiple", 1)
    number = int(value) if re.fullmatch(r"-?\d{1,12}", value, re.ASCII) else None
    if number is not None and least <= number <= most and number % multiple == 0:
        return None
    of = (f", a multiple of {multiple}", f"，且为 {multiple} 的倍数") if multiple > 1 else ("", "")
    nearest = least if number is None else min(max(number, least), most)
    nearest -= nearest % multiple
    said = Words(
        f"must be a whole number from {least} to {most}{of[0]}", f"必须为 {least} 到 {most} 的整数{of[1]}"
    )
    return said, str(nearest)


def _wrong_options(keys: Mapping[str, Any], value: str) -> _Wrong | None:
    seen: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", value):
        key, colon, given = (word.strip() for word in part.partition(":"))
        if key not in keys or not colon:
            close = difflib.get_close_matches(key, list(keys), n=1)
            right = f"{close[0]}:{given}" if close else "expandable_segments:True"
            meant = (f": did you mean {close[0]!r}?", f"：是否指 {close[0]!r}？") if close else ("", "")
            text = part.strip()[:_LONGEST_VALUE]
            return Words(
                f"{text!r} is not key:value of {', '.join(keys)}{meant[0]}",
                f"{text!r} 不是 {'、'.join(keys)} 之一的 key:value{meant[1]}",
            ), right
        wrong = _wrong(keys[key], given)
        if wrong is not None:
            words, right = wrong
            return Words(f"{key} {words.en}", f"{key} {words.zh}"), f"{key}:{right}"
        seen[key] = given
    others = [key for key in ("max_split_size_mb", "garbage_collection_threshold") if key in seen]
    if seen.get("expandable_segments") == "True" and others:
        return Words(
            f"expandable_segments does not work together with {others[0]}",
            f"expandable_segments 不能与 {others[0]} 同用",
        ), "expandable_segments:True"
    return None


def _wrong_devices(value: str) -> _Wrong | None:
    """Logic ids in ascending order; reading stops at the first letter that is neither a digit nor a comma."""
    example = "0,1,2,3"
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", value, re.ASCII):
        return Words(f"not of the form {example}", f"格式应如 {example}"), example
    ids = [int(part) for part in value.split(",")]
    if ids != sorted(set(ids)):
        right = ",".join(map(str, sorted(set(ids))))
        return Words("the devices must stand in ascending order, each once", "设备须按升序排列且不重复"), right
    return None


def _wrong_cpu_affinity(value: str) -> _Wrong | None:
    mode, *options = (part.strip() for part in value.split(","))
    option = re.compile(r"force:[01]|npu_affine:[01]|npu\d+:\d+-\d+", re.ASCII)
    if mode in ("0", "1", "2") and all(option.fullmatch(part) for part in options):
        return None
    form = "<0|1|2>[,force:<0|1>][,npu_affine:<0|1>][,npu0:0-19]"
    return Words(f"not of the form {form}", f"格式应为 {form}"), mode if mode in ("0", "1", "2") else "1"


def _wrong_hccl_algo(value: str) -> _Wrong | None:
    """One form for all collectives, or `name=form` for each, separated by slashes."""
    parts = value.split("/")
    for part in parts:
        collective, equals, form = part.rpartition("=")
        if equals and not re.fullmatch(r"[a-z_]+", collective, re.ASCII):
            return Words("a collective is written like allreduce=...", "通信算子写作 allreduce=..."), (
                "allreduce=level0:NA;level1:ring"
            )
        if len(parts) > 1 and not equals:
            break
        wrong = _wrong_levels(form)
        if wrong is not None:
            return wrong
    else:
        return None
    return Words("each part between slashes needs its collective", "斜杠之间的每一段都需要通信算子名"), (
        "allreduce=level0:NA;level1:ring/others=level0:NA;level1:NHR"
    )


def _wrong_levels(form: str) -> _Wrong | None:
    by_case = {name.casefold(): name for name in HCCL_LEVELS["level1"]}
    given = dict[str, str]()
    for part in form.split(";"):
        level, colon, algorithm = part.partition(":")
        if not colon or level not in HCCL_LEVELS or level in given:
            meant = by_case.get(part.strip().casefold(), "ring")
            return Words(
                "the form is level0:NA;level1:<algorithm>[;level2:<algorithm>]",
                "格式为 level0:NA;level1:<算法>[;level2:<算法>]",
            ), f"level0:NA;level1:{meant}"
        if algorithm not in HCCL_LEVELS[level]:
            allowed = list(HCCL_LEVELS[level])
            meant = {name.casefold(): name for name in allowed}.get(algorithm.strip().casefold(), allowed[0])
            words = _not_in(allowed)
            right = {"level0": "NA", "level1": "ring"} | given | {level: meant}
            text = ";".join(f"{name}:{right[name]}" for name in HCCL_LEVELS if name in right)
            return Words(f"{level} {words.en}, case counts", f"{level} {words.zh}，区分大小写"), text
        given[level] = algorithm
    if "level0" in given and "level1" in given:
        return None
    return Words("level0 and level1 are both needed", "level0 和 level1 都需要"), (
        f"level0:NA;level1:{given.get('level1', 'ring')}"
    )


_OWN_FORMS: Final = {
    "cpu_affinity": _wrong_cpu_affinity, "devices": _wrong_devices, "hccl_algo": _wrong_hccl_algo,
}  # fmt: skip


def _pairs(variables: Mapping[str, str]) -> list[Problem]:
    table, problems = _table(), list[Problem]()
    for pair in table["pairs"]:
        first, second = (str(name) for name in pair["names"])
        if first not in variables and second not in variables:
            continue
        one, other = (str(variables.get(name, default_of(name))) for name in (first, second))
        both = first in variables and second in variables
        broken = {
            "not_both": both,
            "not_both_one": both and one == other == "1",
            "not_zero_alone": not both and "0" in (variables.get(first), variables.get(second)),
            "second_is_more": both and one.isdecimal() and other.isdecimal() and int(other) <= int(one),
        }[pair["rule"]]
        if broken:
            shown = f"{first}={one[:_LONGEST_VALUE]} {second}={other[:_LONGEST_VALUE]}"
            right = f"{second}={int(one) + 32}" if pair["rule"] == "second_is_more" else ""
            name = second if second in variables else first
            problems.append(
                Problem(
                    name=name, value=str(variables[name]), level="error", right=right,
                    words=Words(f"{shown}: {pair['en']}", f"{shown}：{pair['zh']}"),
                )
            )  # fmt: skip
    return problems
