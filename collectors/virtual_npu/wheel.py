"""The torch-npu wheel that fits an interpreter: from the cache, a given file, or fetched by pip into the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that the child runs in."""

    executable: Path
    python: str
    python_tag: str
    abi_tag: str
    machine: str
    torch: str
    """First three numbers of its torch."""
    torch_folder: Path
    has_pip: bool


@dataclass(frozen=True, kw_only=True)
class Site:
    """An unpacked wheel: the folder for PYTHONPATH."""

    folder: Path
    version: str
    hash: str
    """Over the libraries in it."""


def interpreter_of(python: Path) -> Interpreter:
    """Facts about an interpreter."""
    raise NotImplementedError


def site_for(
    interpreter: Interpreter, cache: Path, wheel: Path | None, say: Callable[[str], None], seconds: dict[str, float]
) -> Site:
    """The unpacked wheel for an interpreter."""
    raise NotImplementedError
