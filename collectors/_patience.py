"""A limit to the time that one line may take: an expression such as `(a+)+$` needs years for forty letters."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from ascend_perf.errors import InputError

LINE_S: Final = 2.0
"""Time after which a line is given up; between this and twice as much. Status: assumed."""


class Patience:
    """Counts lines; asked whether it has gone on since the last time."""

    def __init__(self) -> None:
        self._count = 0
        self._seen = -1

    def of(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, counted."""
        for line in lines:
            self._count += 1
            yield line

    def check(self, number: int, frame: FrameType | None) -> None:
        """Called by the timer.

        Raises:
            InputError: no line was taken since the last call.
        """
        if self._count and self._count == self._seen:
            raise InputError(
                f"line {self._count}: an expression takes too long",
                hint="repeat nothing that is repeated itself: \\S+ instead of (\\S+)+",
            )
        self._seen = self._count


@contextmanager
def patience(line_s: float = LINE_S) -> Iterator[Patience]:
    """Lines that go through its `of` may take `line_s` each; without a limit outside of the main thread.

    Python's expressions look for signals while they match: nothing else ends them.

    Raises:
        InputError: inside, where a line takes longer.
    """
    own = Patience()
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield own
        return
    before = signal.signal(signal.SIGALRM, own.check)
    timer = signal.setitimer(signal.ITIMER_REAL, line_s, line_s)
    try:
        yield own
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
