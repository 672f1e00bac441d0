"""Benchmark, profile and diagnose PyTorch jobs on Ascend NPUs.

import ascend_perf as ap
run = ap.load("path/to/profile")
run.kernels              # pandas DataFrame
report = ap.analyze(run)  # outcomes of all analyzers
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11) and os.environ.get("PYTHONSAFEPATH") and sys.argv[:1] == ["-m"]:
    # What Python 3.11 does for this variable. Under `python -m` this package is imported before the module that is run,
    # so that no module of the current folder has been taken for one of the standard library yet.
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ascend_perf.pipeline import analyze as analyze
    from ascend_perf.pipeline import load as load

__all__ = ["__version__", "analyze", "load"]


def __getattr__(name: str) -> object:
    """Import the pipeline when it is first asked for, so that `import ascend_perf` stays cheap."""
    if name in ("analyze", "load"):
        from ascend_perf import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'ascend_perf' has no attribute {name!r}")
