"""Starts the processes of a job with torchrun and leaves a line of JSON about those that failed.

    python -m ascend_perf.bench.agent FOLDER TORCHRUN-ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FILE_NAME: Final = "agent.jsonl"
PR_SET_PDEATHSIG: Final = 1
"""Source: Linux, include/uapi/linux/prctl.h."""


def die_with_parent() -> None:
    """Have SIGTERM sent to this process when the one that started it ends, however it ends (Linux only)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def main(arguments: Sequence[str]) -> int:
    """Run torchrun to its end; 1 when a process failed, 143 when we were told to stop."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    die_with_parent()
    folder, *words = arguments
    try:
        run(parse_args(words))
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (Path(folder) / FILE_NAME).write_text(json.dumps({"event": "failures", "exit_codes": failures}) + "\n", "utf-8")
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
