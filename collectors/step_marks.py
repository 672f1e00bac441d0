"""Marks in the record of a virtual NPU where measured steps begin: mstx marks, which CANN has for programs.

Only outside of the profiler: a profile would hold them as the program's own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

BEGIN: Final = "ascend-perf step"
END: Final = "ascend-perf end of steps"
LIBRARY: Final = "libms_tools_ext.so"
VARIABLE: Final = "ASCEND_PERF_STEP_MARKS"
"""Set to 1 in the processes of a command whose steps are to be marked."""


class Marks:
    """Marks before each step of the phase `measured` and after the last; none where the device is not a virtual one.

    A step of the record is what was launched from its mark to the next: the host may return from a step before the
    queue of launches is empty, and begins the next one after it has waited for the device.
    """

    def __init__(self, is_virtual: bool) -> None:
        self._mark = marker() if is_virtual else None
        self._is_measured = False

    def begin(self, phase: str) -> None:
        """The next phase of the run."""
        self._is_measured = phase == "measured"

    def end(self) -> None:
        """The last measured step has ended on the device as well."""
        if self._mark is not None and self._is_measured:
            self._mark(END)
            self._is_measured = False

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step with a mark before it."""
        mark = self._mark
        if mark is None:
            return step

        def marked() -> None:
            if self._is_measured:
                mark(BEGIN)
            step()

        return marked


def wanted() -> Callable[[str], None] | None:
    """What marks a step of a user's program, once the device has done everything before it; None: not wanted."""
    if os.environ.get(VARIABLE) != "1":
        return None
    mark = marker()

    def marked(text: str) -> None:
        import torch

        torch.npu.synchronize()
        mark(text)

    return marked


def marker() -> Callable[[str], None]:
    """What writes a mark with a text into the record, at the host's time.

    Raises:
        OSError: the libraries are not those of a virtual NPU.
    """
    library = ctypes.CDLL(LIBRARY)
    function = library.mstxMarkA
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_void_p], None
    return lambda text: function(text.encode(), None)
