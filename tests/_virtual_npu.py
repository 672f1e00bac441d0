"""The virtual NPU for tests, set up once as a user's is."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache

import pytest

from ascend_perf.collectors.virtual_npu import Prepared, VirtualNpu, prepare
from ascend_perf.errors import MachineError


def ready_npu() -> Prepared:
    """What `prepare` made. Where it cannot (no network, no gcc) the test fails; ASCEND_PERF_OFFLINE skips it, as a CUDA
    build of torch does, which no test can change."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    found = _prepared()
    if isinstance(found, MachineError):
        if "ASCEND_PERF_OFFLINE" not in os.environ and "is a CUDA build" not in found.what:
            raise found
        pytest.skip(f"no virtual NPU here: {found.what}")
    return found


@lru_cache(maxsize=1)
def _prepared() -> Prepared | MachineError:
    try:
        return prepare(VirtualNpu())
    except MachineError as error:
        return error
