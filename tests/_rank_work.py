"""Work of a process that goes wrong, for tests/test_by_rank.py: `by_rank.work`, but some ranks kill their process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ascend_perf import by_rank


def killed(task: by_rank.Task) -> list[by_rank.Piece]:
    """Dies over the rank in the folder `1`, each time."""
    if task.label.startswith("1/"):
        os.kill(os.getpid(), signal.SIGKILL)
    return by_rank.work(task)


def killed_once(task: by_rank.Task) -> list[by_rank.Piece]:
    """Dies over the rank in the folder `1`, the first time."""
    mark = Path(task.unit.files[0]).parent / "died"
    if task.label.startswith("1/") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return by_rank.work(task)
