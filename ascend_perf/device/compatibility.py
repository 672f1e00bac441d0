"""Which versions of torch, torch_npu, CANN and Python belong together, and what the name of a chip stands for.

The facts are data (`specs/compatibility.yaml`), read once and only when asked for. What is not in the table is
unverified, not wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

_FILE: Final = Path(__file__).parent / "specs" / "compatibility.yaml"
_STAGES: Final = {"alpha": 0, "beta": 1, "rc": 2}
_RELEASE: Final = 3

Verdict = Literal["fits", "older", "newer", "other", "unverified"]


@dataclass(frozen=True, kw_only=True)
class NpuRelease:
    """A release of torch_npu and the CANN release that it is built and tested with."""

    release: str
    cann: str


@dataclass(frozen=True, kw_only=True)
class Soc:
    """What the name of a chip stands for."""

    name: str
    generation: str
    """A2, A3, 910 (the first one), 310P, 310B or 950."""
    dies_per_card: int
    does_train: bool


def version_key(version: str) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """A key by which CANN's versions compare: 8.0.RC3.alpha003 < 8.0.RC3 < 8.0.0 < 8.0.1 < 8.2.RC1 < 9.0.0-beta.2.

    They are not those of PEP 440. Numbers, then alpha < beta < RC < release, then the number of that stage.
    """
    numbers: list[int] = []
    stage, after = _RELEASE, list[int]()
    for word in re.findall(r"[A-Za-z]+|\d{1,9}", version):
        if word.isdecimal():
            (numbers if stage == _RELEASE else after).append(int(word))
        elif word.lower() == "alpha" and stage == _STAGES["rc"]:
            after.append(-1)  # 8.0.RC3.alpha003 comes before 8.0.RC3
        elif word.lower() in _STAGES:
            stage = _STAGES[word.lower()]
        else:
            break
    numbers += [0] * (3 - len(numbers))
    if stage == _STAGES["rc"]:
        after = [*after[:1], *(after[1:] or [0])]
    return tuple(numbers), stage, tuple(after)


def release_of(torch_npu: str) -> NpuRelease | None:
    """The release that a torch_npu package belongs to; None when the table has none."""
    package = public(torch_npu)
    for row in _table()["torch_npu"]:
        if package in (str(name) for name in row["packages"]):
            return NpuRelease(release=str(row["release"]), cann=str(row["cann"]))
    return None


def torch_of(torch_npu: str) -> str | None:
    """The torch version that a torch_npu package needs: its first three numbers."""
    found = re.match(r"\d+\.\d+\.\d+", torch_npu)
    return found[0] if found else None


def torch_fits(torch: str, torch_npu: str) -> Verdict:
    """Whether torch is the one that torch_npu needs."""
    needed, given = torch_of(torch_npu), torch_of(torch)
    if needed is None or given is None:
        return "unverified"
    return "fits" if needed == given else "other"


def cann_fits(cann: str, torch_npu: str) -> Verdict:
    """CANN against the release that torch_npu was tested with; later ones of the same line (8.5.x) fit."""
    release = release_of(torch_npu)
    if release is None:
        return "unverified"
    given, needed = version_key(cann), version_key(release.cann)
    if given == needed:
        return "fits"
    if given < needed:
        return "older"
    return "fits" if given[0][:2] == needed[0][:2] else "newer"


def python_range(torch: str) -> tuple[str, str] | None:
    """Least and highest Python of a torch version; None when the table does not have it."""
    line = ".".join(torch.split(".")[:2])
    for row in _table()["python"]:
        if line in row["torch"]:
            return str(row["least"]), str(row["most"])
    return None


def python_fits(python: str, torch: str) -> Verdict:
    """Whether there is a wheel of this torch (and torch_npu) for a Python."""
    limits = python_range(torch)
    if limits is None:
        return "unverified"
    given, least, most = (tuple(map(int, text.split(".")[:2])) for text in (python, *limits))
    return "older" if given < least else "newer" if given > most else "fits"


def soc_of(name: str) -> Soc | None:
    """What a chip's name stands for; None when it is none of the known ones."""
    for row in _table()["soc"]:
        if re.fullmatch(row["expression"], name):
            return Soc(
                name=name, generation=str(row["generation"]), dies_per_card=int(row["dies_per_card"]),
                does_train=bool(row["does_train"]),
            )  # fmt: skip
    return None


def needs_ops_package(cann: str) -> bool:
    """Whether operators of a chip come in a package of their own beside the toolkit."""
    return version_key(cann) >= version_key(str(_table()["ops_package_from"]))


def source_of(part: Literal["torch_npu", "soc", "ops"]) -> str:
    """Where a part of the table comes from."""
    return str(_table()["sources"][part])


def public(version: str) -> str:
    """A version without its local part: 2.9.0+cpu is 2.9.0."""
    return version.partition("+")[0].strip()


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(_FILE.read_text("utf-8"))
    assert isinstance(table, dict)
    return table
