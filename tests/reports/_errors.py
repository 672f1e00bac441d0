"""Texts of the errors that a module of ours can raise, with their hints, derived from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ascend_perf import errors
from tests.reports import _literals

ROUNDS = 3
"""How many functions may hand on what becomes a part of an error."""


@dataclass(frozen=True)
class Text:
    """What went wrong and the next step, empty where there is none."""

    what: str
    hint: str = ""


@dataclass(frozen=True)
class _Handing:
    """A function that hands its arguments on to the text of an error: their names in order, and its texts.

    A text holds the argument `name` as `_mark(name)`.
    """

    names: tuple[str, ...]
    defaults: dict[str, str]
    texts: frozenset[Text]


_MARK = re.compile("\0(\\w+)\0")


def _mark(name: str) -> str:
    return f"\0{name}\0"


def _kinds(base: type[errors.AscendPerfError]) -> set[str]:
    return {base.__name__, *(name for kind in base.__subclasses__() for name in _kinds(kind))}


KINDS = frozenset(_kinds(errors.AscendPerfError))


def of(module: Path, *helpers: Path) -> set[Text]:
    """Every text of an error that a module makes; what is computed stands as `_literals.COMPUTED`.

    Besides the calls of the errors themselves there are those of functions that hand their arguments on to an error's
    text (`self._bad("it is not an ELF file")`), of the module or of its helpers, and, where the module catches a
    ValueError to quote it, the texts of those.
    """
    source = module.read_text("utf-8")
    if not helpers and not any(kind in source for kind in KINDS):
        return set()
    tree = ast.parse(source)
    handing = _handing_on([tree, *(ast.parse(helper.read_text("utf-8")) for helper in helpers)])
    kinds = KINDS | ({"ValueError"} if _quotes_value_errors(tree) else set())
    calls, known = _calls(tree), _literals.assigned(tree)
    found = {_whole(text) for text in _made(calls, known, kinds, handing)}
    return {text for text in found if text.what != _literals.COMPUTED} - _general(tree, calls, known, handing)


def _general(
    tree: ast.Module, calls: list[ast.Call], known: dict[str, list[str]], handing: dict[str, _Handing]
) -> set[Text]:
    """Texts of functions without the arguments that their callers give them: nobody sees those."""
    found = set()
    for name in {node.name for node in _functions(tree)} & handing.keys():
        given = [_filled(handing[name], call, known) for call in calls if _literals.name_of(call) == name]
        without = {_whole(text) for text in handing[name].texts}
        # Without its arguments a function can say what it says for a caller that computes them.
        found |= without - {_whole(text) for texts in given for text in texts} if given else set()
    return found


def _whole(text: Text) -> Text:
    return Text(_MARK.sub(_literals.COMPUTED, text.what), _MARK.sub(_literals.COMPUTED, text.hint))


def _calls(node: ast.AST) -> list[ast.Call]:
    return [call for call in ast.walk(node) if isinstance(call, ast.Call)]


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _made(
    calls: list[ast.Call], known: dict[str, list[str]], kinds: Iterable[str], handing: dict[str, _Handing]
) -> set[Text]:
    """Texts of the errors, and of the handing functions, that are called."""
    found = set()
    for call in calls:
        name = _literals.name_of(call)
        if name in kinds:
            hints = _texts(_literals.argument(call, "hint"), known) or {""}
            found |= {Text(what, hint) for what in _texts(_literals.argument(call, "what", 0), known) for hint in hints}
        elif name in handing:
            found |= _filled(handing[name], call, known)
    return found


def _filled(function: _Handing, call: ast.Call, known: dict[str, list[str]]) -> set[Text]:
    """The texts of a function with the arguments of a call."""
    given = {}
    for place, name in enumerate(function.names):
        default = function.defaults.get(name, _literals.COMPUTED)
        node = _literals.argument(call, name, place)
        given[name] = sorted(_texts(node, known)) or [default]
    found = set()
    for text in function.texts:
        names = sorted({*_MARK.findall(text.what), *_MARK.findall(text.hint)} & given.keys())
        for chosen in product(*(given[name] for name in names)):
            what, hint = text.what, text.hint
            for name, value in zip(names, chosen, strict=True):
                what, hint = what.replace(_mark(name), value), hint.replace(_mark(name), value)
            found.add(Text(what, hint))
    return found


def _texts(node: ast.expr | None, known: dict[str, list[str]]) -> set[str]:
    return set() if node is None else set(_literals.expanded(node, known))


def _quotes_value_errors(tree: ast.Module) -> bool:
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name and node.type]
    return any(
        isinstance(name, ast.Name) and name.id == "ValueError"
        for handler in handlers if handler.type is not None
        for name in ast.walk(handler.type)
    )  # fmt: skip


def _handing_on(trees: list[ast.Module]) -> dict[str, _Handing]:
    """Functions whose arguments become a part of an error's text, also through one another."""
    known = [(tree, _literals.assigned(tree)) for tree in trees]
    functions = [(function, _calls(function), names) for tree, names in known for function in _functions(tree)]
    found: dict[str, _Handing] = {}
    for _ in range(ROUNDS):
        before = dict(found)
        for function, calls, literals in functions:
            names = tuple(one.arg for one in function.args.args if one.arg not in ("self", "cls"))
            own = literals | {name: [_mark(name)] for name in names}
            others = {name: handing for name, handing in before.items() if name != function.name}
            texts = {text for text in _made(calls, own, KINDS, others) if _MARK.search(text.what + text.hint)}
            if texts:
                found[function.name] = _Handing(names, _defaults(function), frozenset(texts))
        if found == before:
            break
    return found


def _defaults(function: ast.FunctionDef) -> dict[str, str]:
    """Texts that arguments have where a call does not name them."""
    last = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    return {
        argument.arg: node.value
        for argument, node in zip(last, function.args.defaults, strict=True)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }  # fmt: skip
