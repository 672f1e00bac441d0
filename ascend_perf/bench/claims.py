"""Headline claims about 910B as claims to test: what arithmetic says of each, and the suite that measures it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import yaml

from ascend_perf.errors import UsageError
from ascend_perf.model.finding import Words
from ascend_perf.workloads._spec import did_you_mean

Verdict = Literal["impossible", "false", "unlikely", "possible", "plausible"]

FILE: Final = Path(__file__).parent / "specs" / "claims.yaml"
VERDICTS: Final[Mapping[str, Words]] = {
    "impossible": Words("impossible by arithmetic", "算术上不可能"),
    "false": Words("false as stated", "表述不成立"),
    "unlikely": Words("unlikely", "不太可能"),
    "possible": Words("possible", "有可能"),
    "plausible": Words("plausible", "较可信"),
}
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """`formula` = `value`, and what it is."""

    formula: str
    value: float
    words: Words


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, and what can be said of it without measuring. Nothing here is a measurement."""

    id: str
    claim: Words
    verdict: Verdict
    arithmetic: tuple[Arithmetic, ...]
    rows: tuple[str, ...]
    """Rows of the troubleshooting table that it touches."""
    suite: str | None
    """Name of a shipped suite; None: no benchmark can tell."""
    note: Words | None


@cache
def claims() -> tuple[Claim, ...]:
    """All claims in the order of the file."""
    document = yaml.safe_load(FILE.read_text("utf-8"))
    return tuple(
        Claim(
            id=one["id"], claim=Words(**one["claim"]), verdict=one["verdict"],
            arithmetic=tuple(
                Arithmetic(formula=part["formula"], value=float(part["value"]), words=Words(part["en"], part["zh"]))
                for part in one["arithmetic"]
            ),
            rows=tuple(one["rows"]), suite=one["suite"], note=Words(**one["note"]) if "note" in one else None,
        )
        for one in document["claims"]
    )  # fmt: skip


def find_claim(text: str) -> Claim:
    """The claim of an id; CL-7, cl-07 and 7 are the same.

    Raises:
        UsageError: there is none.
    """
    digits = text.upper().removeprefix("CL").removeprefix("-")
    wanted = f"CL-{int(digits):02}" if digits.isascii() and digits.isdigit() else text
    known = {claim.id: claim for claim in claims()}
    if wanted not in known:
        close = did_you_mean(wanted, known)
        raise UsageError(f"no claim {text[:40]!r}{close}", hint="`ascend-perf claims` lists all")
    return known[wanted]


def evaluated(formula: str) -> float:
    """The value of a formula of numbers, + - * / ** and brackets.

    Raises:
        ValueError: it holds something else.
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return float(node.value)  # type: ignore[arg-type]  # checked on the line above
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{formula!r} holds more than numbers and + - * / **")

    return value(ast.parse(formula, mode="eval").body)
