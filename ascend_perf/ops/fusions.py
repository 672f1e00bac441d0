"""The catalogue of fused operators: which sequence each replaces, its signature, limits, and what to write instead.

The rows are data: `fused/*.yaml`, after the fused-operator reference (op-plugin's schema and derivatives, MindSpeed,
the rules of msprof-analyze). A row is one sequence with the APIs that replace it, the best for its use first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast

from ascend_perf.model.finding import Words

Gradient = Literal["yes", "no", "wrapped"]
"""Whether the schema has a derivative; `wrapped`: a library wraps the operator for training."""
Use = Literal["training", "inference", "both"]
Place = Literal["before", "after"]
Axis = Literal["last", "second_last"]

KINDS: Final = ("npu", "gpu", "cpu")
_FOLDER: Final = Path(__file__).parent / "fused"
_FILES: Final = ("attention", "norm", "linear", "experts", "communication")
_CANN: Final = re.compile(r"(\d+)\.(\d+)(?:\.(?:RC(\d+)|(\d+)))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What an axis of the tensors must be; None where it may be anything."""

    axis: Axis
    min: int | None = None
    max: int | None = None
    multiple: int | None = None
    among: tuple[int, ...] = ()

    def admits(self, size: int) -> bool:
        """Whether an axis of this size is allowed."""
        return (
            (self.min is None or size >= self.min)
            and (self.max is None or size <= self.max)
            and (self.multiple is None or size % self.multiple == 0)
            and (not self.among or size in self.among)
        )

    def __str__(self) -> str:
        parts = [f">= {self.min}" if self.min is not None else "", f"<= {self.max}" if self.max is not None else ""]
        parts += [f"multiple of {self.multiple}" if self.multiple else ""]
        parts += [f"in {list(self.among)}" if self.among else ""]
        return f"{self.axis.replace('_', ' ')} axis {', '.join(part for part in parts if part)}"


@dataclass(frozen=True, kw_only=True)
class Api:
    """One function (or flag) that replaces a sequence."""

    name: str
    signature: str
    gradient: Gradient
    use: Use
    text: Words
    code: str
    dtypes: tuple[str, ...] = ()
    """As `ops.flops` names them, without float32's aliases; empty: not limited here."""
    products: tuple[str, ...] = ()
    cann: str = ""
    """Least version of CANN; empty where none is published."""
    torch: str = ""
    limits: tuple[Limit, ...] = ()
    gain: Words | None = None
    """Gain that others published, not reproduced."""
    gain_source: str = ""

    def fits(self, *, is_training: bool) -> bool:
        """Whether it can stand where gradients are needed (training), or where none are."""
        if is_training:
            return self.use != "inference" and self.gradient != "no"
        return self.use != "training"


@dataclass(frozen=True, kw_only=True)
class Between:
    """Kernels that may stand inside a match and are no part of it, and how many of them at most between two."""

    symbols: tuple[str, ...]
    most: int


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What the fused operator must do at least: products, and moving tensors of the size of its output."""

    products: Literal["", "time", "peak"]
    """`time`: the products stay as they are; `peak`: their work at the peak of the device."""
    tensors: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective beside a product: `op` as in comm_ops, `product` where the product stands."""

    op: str
    product: Place


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What to write on a GPU or CPU."""

    text: Words
    code: str


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """A sequence that one operator replaces. Patterns are written as `ops.fusion_words` describes."""

    id: str
    row: str
    """Row of the troubleshooting table."""
    owner: str
    """Analyzer whose finding counts the time; empty: the finder reports it itself."""
    what: Words
    kinds: tuple[str, ...]
    least: int
    """Occurrences per capture that make a finding, where they differ from row C-13's threshold; else 0."""
    host: tuple[str, ...]
    kernels: tuple[str, ...]
    backward: tuple[str, ...]
    between: Between | None
    fused: tuple[str, ...]
    """Op types that mean "already fused"."""
    floor: Floor
    alike: bool
    """The first and the last kernel that are neither cast nor cut work on tensors of one size."""
    call: Call | None
    apis: tuple[Api, ...]
    elsewhere: Elsewhere | None

    def choose(self, *, is_training: bool) -> tuple[Api, ...]:
        """The APIs that can be recommended, the best first; none when all lack the gradient that training needs."""
        return tuple(api for api in self.apis if api.fits(is_training=is_training))


def fusions() -> tuple[Fusion, ...]:
    """Every row of the catalogue.

    Raises:
        ValueError: a file of the catalogue holds something unknown.
    """
    return _all()


def fusion(name: str) -> Fusion:
    """The row with this id.

    Raises:
        KeyError: there is none.
    """
    return {row.id: row for row in fusions()}[name]


@cache
def forbidden() -> tuple[str, ...]:
    """Names that must not be recommended: deprecated, planned for removal, or not real (reference, section 7)."""
    return tuple(str(name) for name in cast("list[object]", document("unmatched")["forbidden"]))


@cache
def unmatched() -> tuple[tuple[str, Words], ...]:
    """Rows of the reference that no sequence is searched for, and why."""
    rows = cast("list[dict[str, str]]", document("unmatched")["unmatched"])
    return tuple((row["what"], Words(row["en"], row["zh"])) for row in rows)


def cann_version(text: str) -> tuple[int, int, int, int] | None:
    """A version of CANN or torch_npu that compares in order of release: 8.0.RC1 < 8.0.RC3 < 8.0.0 < 8.0.1.

    Returns:
        None when the text holds no version.
    """
    found = _CANN.search(text)
    if found is None:
        return None
    major, minor, candidate, patch = found.groups()
    return int(major), int(minor), int(candidate is None), int(candidate or patch or 0)


def is_older(installed: str | None, needed: str) -> bool | None:
    """Whether an installed version is older than the needed one; None when the installed one is not known."""
    least = cann_version(needed)
    if least is None:
        return False
    have = None if installed is None else cann_version(installed)
    return None if have is None else have < least


def document(name: str) -> dict[str, object]:
    """A file of the catalogue as mappings and lists."""
    return cast("dict[str, object]", _loaded(name))


@cache
def _loaded(name: str) -> object:
    # Imported here: yaml costs 15 ms that commands without a trace need not pay.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((_FOLDER / f"{name}.yaml").read_text("utf-8"), Loader=loader)


@cache
def _all() -> tuple[Fusion, ...]:
    rows = tuple(_parse(row) for name in _FILES for row in cast("list[dict[str, object]]", _loaded(name)))
    names = [row.id for row in rows]
    if len(set(names)) != len(names):
        raise ValueError("two rows of the catalogue share an id")
    return rows


def _parse(row: Mapping[str, object]) -> Fusion:
    name = str(row["id"])
    _known(name, row, Fusion)
    between, floor, call = (cast("dict[str, object] | None", row.get(key)) for key in ("between", "floor", "call"))
    other = cast("dict[str, object] | None", row.get("elsewhere"))
    return Fusion(
        id=name, row=str(row["row"]), owner=str(row.get("owner", "")), what=_words(row["what"]),
        kinds=_texts(row.get("kinds", KINDS)), least=int(cast(int, row.get("least", 0))),
        host=_texts(row.get("host", ())), kernels=_texts(row.get("kernels", ())),
        backward=_texts(row.get("backward", ())), fused=_texts(row.get("fused", ())),
        between=Between(symbols=_texts(between["symbols"]), most=int(cast(int, between["most"]))) if between else None,
        floor=Floor(
            products=cast("Literal['', 'time', 'peak']", str((floor or {}).get("products", ""))),
            tensors=int(cast(int, (floor or {}).get("tensors", 0))),
        ),
        alike=bool(row.get("alike", False)),
        call=Call(op=str(call["op"]), product=cast(Place, call["product"])) if call else None,
        apis=tuple(_api(name, item) for item in cast("list[dict[str, object]]", row["apis"])),
        elsewhere=Elsewhere(text=_words(other["text"]), code=str(other["code"])) if other else None,
    )  # fmt: skip


def _api(name: str, item: Mapping[str, object]) -> Api:
    _known(name, item, Api)
    gradient = {True: "yes", False: "no", "wrapped": "wrapped"}[cast("bool | str", item["gradient"])]
    use = str(item["use"])
    if use not in ("training", "inference", "both"):
        raise ValueError(f"{name}: no such use: {use}")
    gain = cast("dict[str, str] | None", item.get("gain"))
    return Api(
        name=str(item["name"]), signature=str(item["signature"]), gradient=cast(Gradient, gradient),
        use=cast(Use, use), text=_words(item["text"]), code=str(item["code"]).rstrip(),
        dtypes=_texts(item.get("dtypes", ())), products=_texts(item.get("products", ())),
        cann=str(item.get("cann", "")), torch=str(item.get("torch", "")),
        limits=tuple(_limit(limit) for limit in cast("list[dict[str, object]]", item.get("limits", []))),
        gain=_words(gain) if gain else None, gain_source=gain["source"] if gain else "",
    )  # fmt: skip


def _limit(item: Mapping[str, object]) -> Limit:
    axis = str(item["axis"])
    if axis not in ("last", "second_last"):
        raise ValueError(f"no such axis: {axis}")
    numbers = {key: int(cast(int, item[key])) for key in ("min", "max", "multiple") if key in item}
    return Limit(axis=cast(Axis, axis), among=tuple(cast("list[int]", item.get("among", []))), **numbers)


def _known(name: str, row: Mapping[str, object], kind: type) -> None:
    unknown = set(row) - set(kind.__dataclass_fields__)  # type: ignore[attr-defined] # both are dataclasses
    if unknown:
        raise ValueError(f"fused operator {name}: unknown keys {sorted(unknown)}")


def _words(value: object) -> Words:
    pair = cast("dict[str, str]", value)
    return Words(str(pair["en"]), str(pair["zh"]))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in cast("Sequence[object]", value))
