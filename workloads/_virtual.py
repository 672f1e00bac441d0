"""The virtual NPU from a workload's side: a device that runs the real library and computes nothing.

What a program reads back from it is what happened to lie in that memory, so nothing may follow from it: no figure, and
no decision of the host. Where a decision depends on values all the same, the workloads take the one named below.
Nothing here imports torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "ASCEND_PERF_VIRTUAL_NPU"
"""Set in processes whose NPUs are virtual."""


def computes_nothing(kind: str) -> bool:
    """Whether a device of this kind (cpu, cuda, npu) is virtual in this process."""
    return kind == "npu" and bool(os.environ.get(VARIABLE))


def has_modelled_clock() -> bool:
    """Whether the virtual devices of this process have a clock that real time does not move."""
    try:
        lines = Path(os.environ.get(VARIABLE, "")).read_text("utf-8").splitlines()
    except OSError:
        return False
    return "clock\tmodelled" in lines


def even_parts(rows: int, parts: int) -> list[int]:
    """Rows shared out as evenly as they can be: what a router in balance would choose."""
    each, more = divmod(rows, parts)
    return [each + (part < more) for part in range(parts)]
