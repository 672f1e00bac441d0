"""Ends a process that we started together with all that it started: a child that stays would hold its output open."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Final

PATIENCE_S: Final = 5.0
"""Time between asking a group to end and killing it. Status: assumed."""
_LOOK_S: Final = 0.02


def end_group(process: subprocess.Popen[str], *, patience_s: float = PATIENCE_S) -> None:
    """End the session that `process` leads (start_new_session), also when it has ended itself and its children not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _sent(process, number):
            return
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            process.poll()  # takes note of its end, else it would count as a member for ever
            if not _sent(process, 0):
                return
            time.sleep(_LOOK_S)


def _sent(process: subprocess.Popen[str], number: int) -> bool:
    """Whether the group is still there to be sent a signal."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        process.poll()
        return False
    return True
