"""A virtual NPU: the real torch_npu runs on stand-in CANN libraries, without hardware.

`prepare` sets up (the wheel, the libraries), `variables` gives what a child process needs in its environment. Nothing
here imports torch or torch_npu: only the child does.
"""

from __future__ import annotations

from ascend_perf.collectors.virtual_npu.environment import (
    CONFIG_FILE,
    MEET_FILE,
    Prepared,
    cache_folder,
    prepare,
    variables,
)
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu

__all__ = ["CONFIG_FILE", "MEET_FILE", "Prepared", "VirtualNpu", "cache_folder", "prepare", "variables"]
