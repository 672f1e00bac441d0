"""Whether the arguments of a call fit a schema or a signature, as far as the source tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ascend_perf.model.finding import Words

Json = Mapping[str, Any]
Rule = Literal["unknown-argument", "argument-count", "missing-argument", "wrong-type", "wrong-value"]
MAX_SHOWN: Final = 400


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """One thing that is wrong with a call."""

    rule: Rule
    said: Words
    node: ast.expr
    is_certain: bool = True
    """False: the call goes through, with another value than the one written."""


@dataclass(frozen=True, kw_only=True)
class Literally:
    """A value that stands in the source."""

    kind: str
    """int, float, bool, str, None, bytes, complex, list, or other."""
    value: Any = None
    items: tuple[Literally | None, ...] = ()

    @property
    def shown(self) -> str:
        """As it is quoted in a message."""
        return "None" if self.kind == "None" else repr(self.value)[:60] if self.kind != "list" else f"a {self.value}"


def literal(node: ast.expr) -> Literally | None:
    """The value of a constant, a negative number, a text, or a list of such; None: not known."""
    if isinstance(node, ast.Constant):
        kind = "None" if node.value is None else type(node.value).__name__
        return Literally(kind=kind, value=node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = literal(node.operand)
        if inner is None or inner.kind not in ("int", "float"):
            return None
        return Literally(kind=inner.kind, value=-inner.value if isinstance(node.op, ast.USub) else inner.value)
    if isinstance(node, ast.JoinedStr):
        return Literally(kind="str", value="f-string")
    if isinstance(node, (ast.List, ast.Tuple)):
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return None
        name = "list" if isinstance(node, ast.List) else "tuple"
        return Literally(kind="list", value=name, items=tuple(literal(one) for one in node.elts))
    if isinstance(node, (ast.Dict, ast.Set, ast.DictComp, ast.SetComp)):
        return Literally(kind="other", value="a dict or set")
    return None


def fits(kind: str, given: Literally, fill: bool = False) -> bool:
    """Whether torch takes a literal for an argument of a schema's type.

    Source:
        torch/csrc/jit/python/pybind_utils.cpp (toIValue); each row is tried on the real operators in the tests.
    """
    if optional := re.fullmatch(r"Optional\[(.*)\]", kind):
        return given.kind == "None" or fits(optional[1], given, fill)
    if inner := re.fullmatch(r"List\[(.*)\]", kind):
        if given.kind != "list":
            return fill and fits(inner[1], given)
        is_lax = inner[1] == "Tensor"  # alone, None is an undefined tensor; in a list it is not
        return all(
            one is None or (fits(inner[1], one) and not (is_lax and one.kind == "None")) for one in given.items
        )
    if kind == "Tensor":
        return given.kind == "None"  # an undefined tensor
    if kind in ("int", "SymInt"):
        return given.kind in ("int", "bool")
    if kind in ("float", "number", "Scalar"):
        return given.kind in ("int", "float", "bool") or (kind != "float" and given.kind == "complex")
    if kind == "bool":
        return given.kind in ("bool", "int", "float", "None")
    if kind == "str":
        return given.kind == "str"
    return True


def against_operator(
    call: ast.Call, overloads: Sequence[Json], skip: int = 0, partial: bool = False
) -> list[Complaint]:
    """What is wrong with a call of an operator: nothing when one overload takes it, else by the one that is nearest."""
    best: list[Complaint] | None = None
    for overload in overloads:
        parameters = [
            {
                "name": one["name"], "kind": "KEYWORD_ONLY" if one.get("keyword_only") else "POSITIONAL_OR_KEYWORD",
                "has_default": one.get("has_default", False), "type": one["type"], "fill": one.get("fill", False),
            }
            for one in overload["arguments"]
        ]  # fmt: skip
        found = _bind(call, parameters, skip, partial)
        if not found:
            return []
        if best is None or len(found) < len(best):
            best = found
    return best or []


def against_signature(
    call: ast.Call, parameters: Sequence[Json], skip: int = 0, partial: bool = False
) -> list[Complaint]:
    """What is wrong with a call of a Python function or class."""
    return _bind(call, parameters, skip, partial)


def arguments_of(call: ast.Call, parameters: Sequence[Json], skip: int = 0) -> dict[str, ast.expr]:
    """Parameter -> what is given for it, as far as it can be told."""
    positional = [one for one in parameters if one["kind"].startswith("POSITIONAL")]
    given: dict[str, ast.expr] = {}
    for index, node in enumerate(call.args[skip:]):
        if isinstance(node, ast.Starred) or index >= len(positional):
            break
        given[positional[index]["name"]] = node
    given.update({one.arg: one.value for one in call.keywords if one.arg is not None})
    return given


def shown(parameters: Sequence[Json]) -> str:
    """Parameters for a message: `input, gamma, epsilon=...`."""
    parts: list[str] = []
    star_is_written = False
    for one in parameters:
        if one["kind"] == "VAR_POSITIONAL":
            parts.append(f"*{one['name']}")
            star_is_written = True
        elif one["kind"] == "VAR_KEYWORD":
            parts.append(f"**{one['name']}")
        else:
            if one["kind"] == "KEYWORD_ONLY" and not star_is_written:
                parts.append("*")
                star_is_written = True
            parts.append(one["name"] + ("=..." if one.get("has_default") else ""))
    text = ", ".join(parts)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _bind(call: ast.Call, parameters: Sequence[Json], skip: int, partial: bool) -> list[Complaint]:
    positional = [one for one in parameters if one["kind"] in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    by_name = {one["name"]: one for one in parameters if one["kind"] in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")}
    takes_more = any(one["kind"] == "VAR_POSITIONAL" for one in parameters)
    takes_names = any(one["kind"] == "VAR_KEYWORD" for one in parameters)
    found: list[Complaint] = []
    given: set[str] = set()
    arguments = call.args[skip:]
    is_spread = any(isinstance(one, ast.Starred) for one in arguments)
    for index, node in enumerate(arguments):
        if isinstance(node, ast.Starred):
            break
        if index >= len(positional):
            if not takes_more:
                most, count = len(positional), len(arguments)
                found.append(Complaint(rule="argument-count", node=node, said=Words(
                    f"{count} positional argument{'' if count == 1 else 's'}, at most {most} taken",
                    f"给出 {count} 个位置参数，最多接受 {most} 个",
                )))  # fmt: skip
            break
        given.add(positional[index]["name"])
        found += _typed(positional[index], node)
    for keyword in call.keywords:
        name = keyword.arg
        if name is None:
            continue
        if name in given and name in by_name:
            found.append(Complaint(rule="argument-count", node=keyword.value, said=Words(
                f"argument {name} is given twice", f"参数 {name} 给出了两次",
            )))  # fmt: skip
        elif name in by_name:
            given.add(name)
            found += _typed(by_name[name], keyword.value)
        elif not takes_names:
            found.append(Complaint(rule="unknown-argument", node=keyword.value, said=Words(
                f"there is no argument {name}", f"没有参数 {name}",
            )))  # fmt: skip
    if is_spread or partial or any(one.arg is None for one in call.keywords):
        return found
    lacking = [
        one["name"] for one in parameters
        if not one["kind"].startswith("VAR") and not one["has_default"] and one["name"] not in given
    ]  # fmt: skip
    if lacking:
        names = ", ".join(lacking)
        found.append(Complaint(rule="missing-argument", node=call, said=Words(
            f"argument {names} is missing" if len(lacking) == 1 else f"arguments {names} are missing",
            f"缺少参数 {'、'.join(lacking)}",
        )))  # fmt: skip
    return found


def _typed(parameter: Json, node: ast.expr) -> list[Complaint]:
    """A complaint about the type of a literal. Schemas are enforced by torch; annotations of Python are not, there
    only what can never be meant is told."""
    given = literal(node)
    if given is None:
        return []
    name = parameter["name"]
    if "type" in parameter:
        kind = parameter["type"]
        if fits(kind, given, parameter["fill"]):
            return []
        wanted = _readable(kind)
        return [Complaint(rule="wrong-type", node=node, said=Words(
            f"argument {name} is {given.shown}, {wanted} is expected", f"参数 {name} 为 {given.shown}，应为 {wanted}",
        ))]  # fmt: skip
    kind = parameter.get("annotation")
    plain = {"int": ("int", "bool"), "float": ("int", "float", "bool"), "bool": ("bool", "int"), "str": ("str",)}
    if kind not in plain or given.kind in plain[kind] or (given.kind == "None" and parameter["has_default"]):
        return []
    return [Complaint(rule="wrong-type", node=node, is_certain=False, said=Words(
        f"argument {name} is {given.shown}, annotated as {kind}", f"参数 {name} 为 {given.shown}，标注类型为 {kind}",
    ))]  # fmt: skip


def _readable(kind: str) -> str:
    """Optional[List[int]] as `int[]?`, as schemas write it."""
    if optional := re.fullmatch(r"Optional\[(.*)\]", kind):
        return f"{_readable(optional[1])}?"
    if inner := re.fullmatch(r"List\[(.*)\]", kind):
        return f"{_readable(inner[1])}[]"
    return kind
