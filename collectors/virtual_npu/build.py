"""The stand-in CANN libraries for one torch-npu wheel: what it imports, generated, compiled and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ascend_perf.collectors.virtual_npu.wheel import Interpreter, Site


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """A folder of libraries that is complete."""

    folder: Path
    hash: str


def libraries_for(
    site: Site, interpreter: Interpreter, cache: Path, say: Callable[[str], None], seconds: dict[str, float]
) -> Libraries:
    """Libraries for the wheel in `site`, from the cache or built now."""
    raise NotImplementedError
