"""Parse the raw data of torch_npu's profiler in a process of its own: python -m ascend_perf.collectors.npu_analysis DIR

torch_npu's parser prints its errors and ends with 0; it is judged by what lies in ASCEND_PROFILER_OUTPUT.
Source: format reference for collectors, section 2.4.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
NOTHING: Final = 3
NO_MSPROF: Final = "'msprof' command not found"
FOREIGN: Final = "it belongs to another user: torch_npu parses only data of yours or of root"
FOREIGN_HINT: Final = "parse it as its owner or as root, or own a copy of it (cp -r)"


def is_parsed(folder: Path) -> bool:
    """Whether a `*_ascend_pt` directory holds kernels: a table, a database, or (CPU only) the timeline."""
    output = folder / OUTPUT
    names = ("kernel_details.csv", "ascend_pytorch_profiler*.db", "trace_view.json")
    return any(path.stat().st_size > 0 for name in names for path in output.glob(name))


def command(folder: Path, executable: str = sys.executable) -> list[str]:
    """Words that parse one directory."""
    return [executable, "-m", "ascend_perf.collectors.npu_analysis", str(folder)]


def start(folder: Path, variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Begin to parse beside the program; what is said goes to `log`."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            command(folder), env=dict(variables), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def too_many_devices(folder: Path, torch_npu: str | None) -> int:
    """Devices of one process in its raw data, where this torch_npu does not record several reliably; else 0.

    Source: same, section 2.5: 2.1.0.post14, 2.5.1.post2, or 2.6.0 and newer do.
    """
    devices = {path.name for path in folder.glob("PROF_*/device_*")}
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", torch_npu or "")
    if len(devices) < 2 or found is None:
        return 0
    base, post = (int(found[1]), int(found[2]), int(found[3])), int(found[4] or 0)
    needed = {(2, 1, 0): 14, (2, 5, 1): 2}.get(base)
    is_fit = base >= (2, 6, 0) or (needed is not None and post >= needed)
    return 0 if is_fit else len(devices)


def is_foreign(folder: Path) -> bool:
    """Whether a data directory belongs to neither this user nor root. Source: same, section 2.4."""
    if not hasattr(os, "geteuid"):  # a system without such owners
        return False
    try:
        return _owner(folder) not in (0, os.geteuid())
    except OSError:
        return False


def _owner(folder: Path) -> int:
    return folder.stat().st_uid


def problem_of(text: str) -> tuple[str, str]:
    """What the parser said went wrong, and the next step."""
    if FOREIGN in text:
        return FOREIGN, FOREIGN_HINT
    if NO_MSPROF in text:
        return (
            "only the host's side was parsed: the parser of the device's data (msprof) was not found",
            "source set_env.sh of CANN and analyze the run directory again",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line or "Error" in line]
    return ((errors or lines or ["the parser said nothing"])[-1][:300], "")


def main(arguments: Sequence[str]) -> int:
    """0 when there are tables afterwards."""
    folder = Path(arguments[0])
    if is_foreign(folder):  # its parser would refuse it in a line of the output
        print(FOREIGN)
        return NOTHING
    # The forks of the parser must not record themselves.
    for name in ("ASCEND_PERF_COLLECT",):
        os.environ.pop(name, None)
    from torch_npu.profiler.profiler import analyse

    analyse(profiler_path=str(folder), max_process_number=1)
    return 0 if is_parsed(folder) else NOTHING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
