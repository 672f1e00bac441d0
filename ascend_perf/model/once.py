"""What several analyzers of a rank ask for is worked out once.

A helper marked `once` keeps its results for as long as `sharing` lasts, which is the analysis of one rank. Outside of
it nothing is kept: results depend on thresholds that a caller may change, and traces are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_KEPT: Final[ContextVar[dict[tuple[object, ...], tuple[object, object]] | None]] = ContextVar("kept", default=None)
"""Function and identities of its arguments to the arguments (so that no other object gets their identity) and the
result."""


@contextmanager
def sharing() -> Iterator[None]:
    """Within the block (this thread or task) functions marked `once` work out the same thing only once."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A pure function whose result is kept for the same arguments: the same objects, not merely equal ones.

    Callers must not change the result, nor the arguments within a `sharing` block.
    """

    @wraps(function)
    def kept_once(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        kept = _KEPT.get()
        if kept is None:
            return function(*args, **kwargs)
        key = (function, *map(id, args), *((name, id(value)) for name, value in kwargs.items()))
        known = kept.get(key)
        if known is None:
            known = kept[key] = ((args, kwargs), function(*args, **kwargs))
        return known[1]  # type: ignore[return-value] # what the same function gave

    return kept_once
