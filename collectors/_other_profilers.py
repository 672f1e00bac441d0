"""A profiler of torch or torch_npu that the program itself starts: it goes first, and ours ends.

Kineto records for one profiler at a time. A second one does not fail: it cancels the first without a word, and the
results of that are empty. An NPU has a single profiling channel: torch_npu tells of a second profiler in a line of its
output only. So ours does not begin while another is on, and ends when another begins.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

OWN_PROFILER: Final = "the program records itself with a profiler of its own"
OWN_HINT: Final = "switch that off, or do without collect"

_inside = threading.local()
_give_way: Callable[[], None] | None = None
_give_way_npu: Callable[[], None] | None = None
_npu_on: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of torch_npu that the program has started and not stopped."""


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


# ---- torch_npu -------------------------------------------------------------------------------------------------------


def is_npu_on() -> bool:
    """Whether a profiler of torch_npu that is not ours is on, as far as it was started since `watch_npu`."""
    return len(_npu_on) > 0


def watch_npu() -> None:
    """Hear of each profiler of torch_npu from now on, those of its dynamic profiling too; nothing where it is not
    imported."""
    module = sys.modules.get("torch_npu.profiler")
    for name in ("_KinetoProfile", "profile"):
        kind = getattr(module, name, None)
        for method, wrapped in (("start", _wrapped_start), ("stop", _wrapped_stop)):
            own = vars(kind).get(method) if isinstance(kind, type) else None
            if own is not None and not getattr(own, "_ascend_perf", False):
                setattr(kind, method, wrapped(own))


def when_another_npu_begins(give_way: Callable[[], None] | None) -> None:
    """Call `give_way`, once, before a profiler of torch_npu that is not ours begins; None: no longer."""
    global _give_way_npu
    _give_way_npu = give_way
    if give_way is not None:
        watch_npu()


def _wrapped_start(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def begins(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(_inside, "is_ours", False):
            _npu_on.add(self)
            if _give_way_npu is not None:
                give_way = _give_way_npu
                when_another_npu_begins(None)
                give_way()
        return start(self, *args, **kwargs)

    begins._ascend_perf = True  # type: ignore[attr-defined]  # told of what is wrapped already
    return begins


def _wrapped_stop(stop: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stop)
    def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stop(self, *args, **kwargs)
        finally:
            _npu_on.discard(self)

    ends._ascend_perf = True  # type: ignore[attr-defined]  # told of what is wrapped already
    return ends
