"""A profiler of torch that the program itself starts: it goes first, and ours ends.

Kineto records for one profiler at a time. A second one does not fail: it cancels the first without a word, and the
results of that are empty. So ours does not begin while another is on, and ends when another begins.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

OWN_PROFILER: Final = "the program records itself with a profiler of its own"
OWN_HINT: Final = "switch that off, or do without collect"

_inside = threading.local()
_give_way: Callable[[], None] | None = None


def is_on() -> bool:
    """Whether a profiler of torch records in this process."""
    import torch

    enabled: Callable[[], bool] | None = getattr(torch.autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


@contextmanager
def ours() -> Iterator[None]:
    """Profilers that begin inside are ours."""
    before = getattr(_inside, "is_ours", False)
    _inside.is_ours = True
    try:
        yield
    finally:
        _inside.is_ours = before


def when_another_begins(give_way: Callable[[], None] | None) -> None:
    """Call `give_way`, once, before a profiler that is not ours begins; None: no longer."""
    global _give_way
    _give_way = give_way
    if give_way is not None:
        from torch.autograd import profiler

        for name in ("_prepare_trace", "_start_trace"):
            begin = getattr(profiler.profile, name, None)
            if begin is not None and not getattr(begin, "_ascend_perf", False):
                setattr(profiler.profile, name, _wrapped(begin, prepares=name == "_start_trace"))


def _wrapped(begin: Callable[..., Any], *, prepares: bool) -> Callable[..., Any]:
    @functools.wraps(begin)
    def begins(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _give_way is not None and not getattr(_inside, "is_ours", False):
            give_way = _give_way
            when_another_begins(None)
            give_way()
            if prepares:  # it was prepared before ours began, which has cancelled that
                self._prepare_trace()
        return begin(self, *args, **kwargs)

    begins._ascend_perf = True  # type: ignore[attr-defined]  # told of what is wrapped already
    return begins
