"""What is found of names in a file, and the names of a scope with what they are bound to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final, Literal

NOTHING: Final = "None"
"""What `x = None` binds: any other binding of x wins over it."""

Env = dict[str, str | None]
"""Name -> dotted path, NOTHING, or None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a path."""

    kind: Literal["name", "call", "import"]
    path: str
    node: ast.expr | ast.stmt
    call: ast.Call | None = None
    first_argument: int = 0
    """Arguments of the call before it are not the callee's (functools.partial)."""
    is_partial: bool = False
    is_forgiven: bool = False
    """Inside a `try` that catches what a missing name raises."""
    without_gradient: bool = False
    """Where no gradient is recorded: under no_grad, or in a torch.autograd.Function, which has its own."""
    function: str = ""
    """The function of the file that it stands in."""


@dataclass(kw_only=True)
class Names:
    """What was found in a file."""

    uses: list[Use]
    paths: dict[int, str]
    """id of an expression of the tree -> what it stands for."""
    asked: frozenset[str]
    """Names that the file asks for by `hasattr(x, "name")` or `getattr(x, "name", default)`."""
    called_only_in_functions_with_gradient: frozenset[str]
    """Functions of the file that only a torch.autograd.Function calls."""


class ClassEnv(Env):
    """Names of a class body: what it binds itself, before what lies around it."""

    def __init__(self, outer: Env) -> None:
        super().__init__(outer)
        self.outer = outer
        self._before = dict(outer)

    def own(self) -> Env:
        """What the body bound."""
        return {name: value for name, value in self.items() if self._before.get(name, "") != value}


def copied(env: Env) -> Env:
    """The names of a branch: as they are where it begins."""
    return dict(env)


def merged(first: str | None, second: str | None) -> str | None:
    """What a name stands for that is bound twice; None where that is not the same."""
    if first == second or second == NOTHING:
        return first
    return second if first == NOTHING else None


def join(env: Env, ends: list[Env]) -> None:
    """After branches a name is what all of them say."""
    for name in {name for end in ends for name in end}:
        values = [end[name] for end in ends if name in end]
        whole = values[0]
        for one in values[1:]:
            whole = merged(whole, one)
        env[name] = whole
