"""Benchmark, profile and diagnose PyTorch jobs on Ascend NPUs.

import ascend_perf as ap
run = ap.load("path/to/profile")
run.kernels              # pandas DataFrame
report = ap.analyze(run)  # outcomes of all analyzers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
