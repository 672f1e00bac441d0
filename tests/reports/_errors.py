"""Texts of the errors that a module of ours can raise, with their hints, derived from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascend_perf import errors
from tests.reports import _literals


@dataclass(frozen=True)
class Text:
    """What went wrong and the next step, empty where there is none."""

    what: str
    hint: str = ""


def _kinds(base: type[errors.AscendPerfError]) -> set[str]:
    return {base.__name__, *(name for kind in base.__subclasses__() for name in _kinds(kind))}


KINDS = frozenset(_kinds(errors.AscendPerfError))


def of(module: Path) -> set[Text]:
    """Every text of an error that a module makes; what is computed stands as `_literals.COMPUTED`.

    Besides the calls of the errors themselves there are arguments that a function of the module hands on to the end
    of an error's text (`self._bad("it is not an ELF file")`), and, where the module catches a ValueError to quote it,
    the texts of those.
    """
    tree = ast.parse(module.read_text("utf-8"))
    known = _literals.assigned(tree)
    handing = dict(_handing_on(tree))
    kinds = KINDS | ({"ValueError"} if _quotes_value_errors(tree) else set())
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _literals.name_of(call)
        if name in kinds:
            hints = _texts(_literals.argument(call, "hint"), known) or {""}
            found |= {Text(what, hint) for what in _texts(_literals.argument(call, "what", 0), known) for hint in hints}
        for keyword, place in handing.get(name, ()):
            found |= {Text(what) for what in _texts(_literals.argument(call, keyword, place), known)}
    return {text for text in found if text.what != _literals.COMPUTED}


def _texts(node: ast.expr | None, known: dict[str, list[str]]) -> set[str]:
    return set() if node is None else set(_literals.expanded(node, known))


def _quotes_value_errors(tree: ast.Module) -> bool:
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name and node.type]
    return any(
        isinstance(name, ast.Name) and name.id == "ValueError"
        for handler in handlers if handler.type is not None
        for name in ast.walk(handler.type)
    )  # fmt: skip


def _handing_on(tree: ast.Module) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Functions whose arguments become the end of an error's text: name, and keyword and place of each."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        ends = set()
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if _literals.name_of(call) in KINDS:
                ends |= {_last(_literals.argument(call, "what", 0)), _last(_literals.argument(call, "hint"))}
        places = [(name, place) for place, name in enumerate(names) if name in ends]
        if places:
            yield function.name, places


def _last(node: ast.expr | None) -> str:
    """The name that a text ends with, empty when it ends otherwise."""
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[-1], ast.FormattedValue):
        node = node.values[-1].value
    return node.id if isinstance(node, ast.Name) else ""
