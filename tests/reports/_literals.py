"""Texts that a module of ours can write into a plain field: literals with a name in place of each computed part."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

COMPUTED = "7"
"""Stands for a computed part: a number where one is asked for, and no word that anybody would translate."""

MEANT = ("did_you_mean", "_close")
"""Functions that end a sentence with the word that was meant, or with nothing."""

MAX_TEXTS = 16

_READ = (ast.Name, ast.IfExp, ast.BinOp, ast.Call)


def expanded(node: ast.expr, known: dict[str, list[str]]) -> list[str]:
    """What an expression can be; a name that only ever holds one literal is that literal."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [expanded(part, known) or [COMPUTED] for part in node.values]
        return ["".join(chosen) for chosen in product(*parts)][:MAX_TEXTS]
    if isinstance(node, ast.FormattedValue):
        return expanded(node.value, known) if isinstance(node.value, _READ) else [COMPUTED]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [expanded(side, known) or [COMPUTED] for side in (node.left, node.right)]
        return ["".join(chosen) for chosen in product(*sides)][:MAX_TEXTS]
    if isinstance(node, ast.IfExp):
        return [*expanded(node.body, known), *expanded(node.orelse, known)]
    if isinstance(node, ast.Call) and name_of(node) == "counted":
        return [f"{COMPUTED} {text}" for noun in node.args[1:] for text in _plurals(node, expanded(noun, known))]
    if isinstance(node, ast.Call) and name_of(node) in MEANT:
        return ["", f": did you mean {COMPUTED}?"]
    if isinstance(node, ast.Name):
        return known.get(node.id, [COMPUTED])
    return [COMPUTED]


def _plurals(call: ast.Call, nouns: list[str]) -> list[str]:
    return nouns if len(call.args) > 2 else [*nouns, *(f"{noun}s" for noun in nouns)]


def assigned(tree: ast.Module) -> dict[str, list[str]]:
    """Literals by the name they are assigned to, as far as every assignment of the name is one."""
    found: dict[str, list[str]] = {}
    computed = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.arg):
            computed.add(node.arg)
        elif isinstance(node, ast.For | ast.comprehension):
            computed |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        for target in targets:
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                texts = [] if value is None or not isinstance(target, ast.Name) else expanded(value, {})
                if texts and COMPUTED not in texts:
                    found.setdefault(name, []).extend(texts)
                else:
                    computed.add(name)
    return {name: texts for name, texts in found.items() if name not in computed}


def calls(module: Path) -> Iterator[tuple[ast.Call, dict[str, list[str]]]]:
    """Every call of a module, and the literals that its names hold."""
    tree = ast.parse(module.read_text("utf-8"))
    known = assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, known


def name_of(call: ast.Call) -> str:
    """Last part of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def owner_of(call: ast.Call) -> str:
    """Name of the object whose method is called: `warnings` of `self.warnings.append(...)`."""
    owner = getattr(call.func, "value", None)
    return getattr(owner, "attr", getattr(owner, "id", ""))


def argument(call: ast.Call, keyword: str, place: int | None = None) -> ast.expr | None:
    """An argument by keyword or by place."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    return None if place is None or place >= len(call.args) else call.args[place]
