"""Recording without a change of the code: what `injected/sitecustomize.py` starts in each Python process.

Nothing happens until the process imports torch. Then the ends of steps are heard in one of these places:

    optimizer   `step` of the optimizer that stepped first has returned (in processes that build one)
    data        the next batch of the first DataLoader is asked for (in processes that build no optimizer)
    calls       the program calls `ascend_perf.hooks.step()`; from its first call on, only that counts
    process     no steps: from the import of torch to the end

An optimizer's step is the one thing that every training loop has, whatever the framework above torch; its end is the
place where torch's own profilers want to be told of a step. `step` is wrapped from outside, so that its own range in
the trace has closed by then.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ascend_perf.collectors import _other_profilers, in_process

SWITCH_AFTER: Final = 50
"""Steps of another optimizer without one of the optimizer that counts: it has been put away. Status: assumed."""

session: in_process.Session | None = None
"""The recording of this process."""
_steps: Steps | None = None


def activate(settings_path: str) -> None:
    """Wait for torch.

    Raises:
        InputError: the settings cannot be read.
    """
    settings = in_process.read_settings(Path(settings_path))

    def when_there() -> None:
        global session, _steps
        if session is None and not in_process.is_launcher():
            session = in_process.Session(settings)
            session.told("hello", rank=in_process.rank_here(), executable=sys.executable)
            _steps = Steps(session, settings.step_of)
            atexit.register(session.close)
            if settings.step_of == "process":
                session.begin_process()
            else:
                _steps.listen()  # recording begins with a step at the earliest: the device is known by then

    # Before torch: torch loads torch_npu itself. A profiler of the program's own is heard of from its first start on.
    for name, done in (("torch_npu", _other_profilers.watch_npu), ("torch", when_there)):
        after_import(name, done)


def after_import(name: str, done: Callable[[], None]) -> None:
    """Call `done` once a package has been imported: now, where it has been."""
    if name in sys.modules:
        done()
    else:
        sys.meta_path.insert(0, _AfterImport(name, done))


def step_called() -> None:
    """The program itself tells of the end of a step."""
    if _steps is not None:
        _steps.called()


class Steps:
    """Hears the ends of steps and tells the session."""

    def __init__(self, session: in_process.Session, step_of: in_process.StepOf) -> None:
        self._session, self._step_of = session, step_of
        self._has_optimizer = self._is_called = self._is_broken = False
        self._counts: weakref.ref[object] | None = None
        self._others = 0
        self._loader: weakref.ref[object] | None = None
        self._has_batch = False

    def listen(self) -> None:
        """Wrap the optimizers and the loaders of torch."""
        if self._step_of in ("auto", "optimizer"):
            _wrap_optimizers(self._built, self._guarded(self._stepped))
        if self._step_of in ("auto", "data"):
            _wrap_loaders(self._guarded(self._batch_asked), self._guarded(self._batch_given))

    def _guarded(self, tell: Callable[[object], None]) -> Callable[[object], None]:
        """A mistake of ours must not end the program: it ends the hearing."""

        def told(which: object) -> None:
            if self._is_broken:
                return
            try:
                tell(which)
            except Exception as error:
                self._is_broken = True
                self._session.told("problem", what=f"steps are no longer counted: {type(error).__name__}: {error}")

        return told

    def called(self) -> None:
        """`hooks.step()` was called."""
        if not self._is_called:
            self._is_called = True
            if self._step_of == "auto":
                self._session.restart_counting()
        self._session.step()

    def _built(self) -> None:
        if not self._has_optimizer:
            self._has_optimizer = True
            if not self._is_called:
                self._session.restart_counting()

    def _stepped(self, optimizer: object) -> None:
        counting = None if self._counts is None else self._counts()
        if counting is None or self._others >= SWITCH_AFTER:
            self._counts, counting = weakref.ref(optimizer), optimizer
        if counting is not optimizer:
            self._others += 1
            return
        self._others = 0
        if not self._is_called:
            self._session.step()

    def _batch_asked(self, loader: object) -> None:
        if self._is_data_step(loader) and self._has_batch:
            self._has_batch = False
            self._session.step()

    def _batch_given(self, loader: object) -> None:
        if self._is_data_step(loader):
            self._has_batch = True

    def _is_data_step(self, loader: object) -> bool:
        if self._is_called or (self._has_optimizer and self._step_of == "auto"):
            return False
        counting = None if self._loader is None else self._loader()
        if counting is None:
            try:
                self._loader, counting = weakref.ref(loader), loader
            except TypeError:  # a data set that cannot be referred to, such as a list: all count
                return True
        return counting is loader


def _wrap_optimizers(built: Callable[[], None], stepped: Callable[[object], None]) -> None:
    import torch
    from torch.optim import Optimizer

    # A compiled optimizer must not be traced into our part.
    opaque = getattr(torch, "_disable_dynamo", lambda function: function)
    tell = opaque(stepped)
    init = Optimizer.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        kind = type(self)
        if not getattr(kind.step, "_ascend_perf", False):
            kind.step = _wrapped_step(kind.step, tell)
        built()

    Optimizer.__init__ = __init__


def _wrapped_step(step: Callable[..., Any], tell: Callable[[object], None]) -> Callable[..., Any]:
    @functools.wraps(step)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(self, *args, **kwargs)
        tell(self)
        return result

    told._ascend_perf = True  # type: ignore[attr-defined]  # told of a class that is wrapped already
    return told


def _wrap_loaders(asked: Callable[[object], None], given: Callable[[object], None]) -> None:
    from torch.utils.data import dataloader

    base = getattr(dataloader, "_BaseDataLoaderIter", None)
    if base is None:  # a torch that is built differently: steps of optimizers are still heard
        return
    following = base.__next__

    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        asked(self._dataset)
        batch = following(self)
        given(self._dataset)
        return batch

    base.__next__ = __next__


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a package has been imported."""

    def __init__(self, name: str, when_there: Callable[[], None]) -> None:
        self._name, self._when_there = name, when_there

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._when_there)
        return spec


class _Loader(importlib.abc.Loader):
    """The loader of a package, and our function after it."""

    def __init__(self, own: importlib.abc.Loader, when_there: Callable[[], None]) -> None:
        self._own, self._when_there = own, when_there

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module looks as it does without us: torch asks its loader for resources.
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        try:
            self._when_there()
        except Exception as error:  # the program is not to end for our sake
            print(f"ascend-perf: nothing is recorded in process {os.getpid()}: {error}", file=sys.stderr)


__all__ = ["activate", "session", "step_called"]
