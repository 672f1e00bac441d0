"""Facts of a torch_npu wheel, and what a dotted path stands for in them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = Mapping[str, Any]
ROOT: Final = "torch_npu"
_OF_PACKET: Final = frozenset({"default", "op", "overloads"})
Gradient = Literal["own", "composite", "refuses", "none"]
_IN_ORDER: Final[tuple[Gradient, ...]] = ("own", "composite", "refuses")
INNER_FORMS: Final = ("_{}", "{}_fwd")
"""Operators that torch_npu puts behind another: the one called has no derivative registered, the inner one has.
Source: op-plugin (npu_format_cast, npu_ciou, npu_fused_attention_score); tried on torch_npu 2.13."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a path stands for. `open`: belongs to others, or can hold anything: nothing is said of it."""

    kind: Literal["module", "operator", "function", "class", "instance", "value", "method", "open"]
    path: str
    """By its shortest name: torch_npu.npu for torch.npu."""
    body: Json = field(default_factory=dict)
    operator: str = ""
    overload: str | None = None
    """One that was named; None: any."""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A path that does not exist."""

    parent: str
    name: str
    kind: Literal["module", "class", "instance", "operator", "namespace"]
    close: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Removed:
    """torch.npu_x: there, but it only raises."""

    operator: str


class Facts:
    """What `_contract_facts` wrote."""

    def __init__(self, document: Json) -> None:
        self.torch_npu: str = document["torch_npu"]
        self.torch: str = document["torch"]
        self.operators: Mapping[str, Mapping[str, Json]] = document["operators"]
        self._modules: Mapping[str, Json] = document["modules"]
        self._objects: Sequence[Json] = document["objects"]
        self._on_torch = frozenset(document["on_torch"])

    def resolve(self, path: str) -> Found | Absent | Removed:
        """What a path of `_contract_scopes` stands for."""
        parts = path.split(".")
        if any(part.endswith("()()") for part in parts):
            return Found(kind="open", path=path)
        if parts[0] == "torch":
            if parts[1:2] == ["npu"]:
                return self._in_module(f"{ROOT}.npu", parts[2:])
            if parts[1:3] == ["ops", "npu"]:
                return self._in_operators(parts[3:])
            if len(parts) == 2 and parts[1].removesuffix("()") in self._on_torch:
                return Removed(operator=parts[1].removesuffix("()"))
            return Found(kind="open", path=path)
        if parts[0] != ROOT:
            return Found(kind="open", path=path)
        return self._in_module(ROOT, parts[1:])

    def is_loaded(self, module: str) -> bool:
        """Whether `import torch_npu` makes a module of it."""
        return module not in self._modules or bool(self._modules[module]["loaded"])

    def is_module(self, path: str) -> bool:
        """Whether there is a module of that name."""
        return path in self._modules

    def gradient(self, operator: str) -> Gradient:
        """Where the gradient of an operator comes from; an overload that has one counts for all."""
        kinds = {one["gradient"] for one in self.operators[operator].values()}
        for kind in _IN_ORDER:
            if kind in kinds:
                return kind
        inner = (form.format(operator) for form in INNER_FORMS)
        if any("own" in {one["gradient"] for one in self.operators.get(name, {}).values()} for name in inner):
            return "composite"
        return "none"

    def members(self, path: str) -> dict[str, Any]:
        """Values of the plain members of a class (torch_npu.profiler.ProfilerLevel); empty where it is not there."""
        found = self.resolve(path)
        if not isinstance(found, Found) or found.kind != "class":
            return {}
        told = {
            name: self._objects[one]["value"] for name, one in found.body["members"].items()
            if isinstance(one, int) and self._objects[one]["kind"] == "value"
        }  # fmt: skip
        return {name: value for name, value in told.items() if not name.startswith("_")}

    def _in_module(self, module: str, parts: Sequence[str]) -> Found | Absent | Removed:
        for index, part in enumerate(parts):
            body = self._modules[module]
            name = part.removesuffix("()")
            if name not in body["names"]:
                if body.get("open") or _is_special(name):
                    return Found(kind="open", path=f"{module}.{name}")
                return Absent(parent=module, name=name, kind="module", close=_close(name, body["names"]))
            target = body["names"][name]
            if isinstance(target, str) and target in self._modules:
                module = target
                continue
            if not isinstance(target, int):
                return Found(kind="open", path=f"{module}.{name}")
            found = self._in_object(f"{module}.{name}", self._objects[target], part, parts[index + 1 :])
            if isinstance(found, Absent) and part == name and self.is_module(f"{module}.{name}"):
                # `from a.b import c` looks into the module a.b, even where a has bound b to something else.
                return self._in_module(f"{module}.{name}", parts[index + 1 :])
            return found
        return Found(kind="module", path=module, body=self._modules[module])

    def _in_object(self, path: str, body: Json, part: str, rest: Sequence[str]) -> Found | Absent | Removed:
        kind = body["kind"]
        is_called = part.endswith("()")
        if kind == "operator":
            if is_called:
                return Found(kind="open", path=path)
            return self._in_operators([body["operator"], *rest], path)
        if kind == "class":
            if is_called:
                return self._in_instance(path, body, rest)
            return self._in_class(path, body, rest)
        if kind == "instance" and not is_called and rest and body["names"] is not None:
            name = rest[0].removesuffix("()")
            if name not in body["names"] and not _is_special(name):
                return Absent(parent=path, name=name, kind="instance", close=_close(name, body["names"]))
        if is_called or rest:
            return Found(kind="open", path=path)
        return Found(kind=kind, path=path, body=body)

    def _in_class(self, path: str, body: Json, rest: Sequence[str]) -> Found | Absent | Removed:
        if not rest:
            return Found(kind="class", path=path, body=body)
        name = rest[0].removesuffix("()")
        members = body["members"]
        if name not in members:
            if _is_special(name) or body["attributes"] is None:
                return Found(kind="open", path=path)
            public = body.get("enumerated") or [one for one in members if not one.startswith("_")]
            return Absent(parent=path, name=name, kind="class", close=_close(name, public) or tuple(public[:12]))
        return self._member(f"{path}.{name}", members[name], rest, is_bound=False)

    def _in_instance(self, path: str, body: Json, rest: Sequence[str]) -> Found | Absent | Removed:
        if not rest:
            return Found(kind="open", path=f"{path}()", body=body)
        name = rest[0].removesuffix("()")
        if name == "__enter__" and rest[0] != name:
            if body["enters_itself"]:
                return self._in_instance(path, body, rest[1:])
            return Found(kind="open", path=path)
        members = body["members"]
        if name not in members:
            if _is_special(name) or body["attributes"] is None or name in body["attributes"]:
                return Found(kind="open", path=path)
            return Absent(parent=path, name=name, kind="instance", close=_close(name, [*members, *body["attributes"]]))
        return self._member(f"{path}.{name}", members[name], rest, is_bound=True)

    def _member(self, path: str, number: int | None, rest: Sequence[str], is_bound: bool) -> Found:
        if number is None or rest[0].endswith("()") or len(rest) > 1:
            return Found(kind="open", path=path)
        body = self._objects[number]
        if body["kind"] == "function" and body.get("is_method"):
            if not is_bound:
                return Found(kind="open", path=path)  # called on the class: self is an argument
            signature = body["signature"]
            cut = signature[1:] if signature and signature[0]["kind"].startswith("POSITIONAL") else signature
            return Found(kind="method", path=path, body={**body, "signature": cut})
        return Found(kind=body["kind"], path=path, body=body)

    def _in_operators(self, parts: Sequence[str], path: str = "") -> Found | Absent:
        if not parts:
            return Found(kind="open", path="torch.ops.npu")
        name = parts[0].removesuffix("()")
        path = path or f"torch.ops.npu.{name}"
        if name not in self.operators:
            if _is_special(name):
                return Found(kind="open", path=path)
            return Absent(parent="torch.ops.npu", name=name, kind="namespace", close=_close(name, self.operators))
        overloads = self.operators[name]
        if parts[0] != name or len(parts) > 2:
            return Found(kind="open", path=path)
        if len(parts) == 1:
            return Found(kind="operator", path=path, operator=name)
        overload = parts[1].removesuffix("()")
        wanted = "" if overload == "default" else overload
        if wanted in overloads:
            if parts[1] != overload:
                return Found(kind="open", path=path)
            return Found(kind="operator", path=f"{path}.{overload}", operator=name, overload=wanted)
        if _is_special(overload) or overload in _OF_PACKET - {"default"} or overload.startswith("_"):
            return Found(kind="open", path=path)
        there = [one or "default" for one in overloads]
        return Absent(parent=path, name=overload, kind="operator", close=tuple(there))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _close(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names that resemble a wrong one, the nearest first; public ones unless it is private itself."""
    candidates = [one for one in names if not one.startswith("_") or name.startswith("_")]
    lower = {one.lower(): one for one in candidates}
    found = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.75)
    return tuple(lower[one] for one in found)
