"""What a reader is: it finds units (the input of one rank) in a folder by content, and parses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.trace import Trace

HEAD_BYTES: Final = 64 << 10
"""What is read of a file to see what it is."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a folder that is being searched; content is read only when somebody asks."""

    path: Path
    size: int

    @property
    def head(self) -> bytes:
        """First 64 KiB of the (decompressed) content; empty when the file cannot be read."""
        return self._start[0]

    @property
    def problem(self) -> str | None:
        """Why the file cannot be read, None when it can."""
        return self._start[1]

    @cached_property
    def _start(self) -> tuple[bytes, str | None]:
        try:
            start = files.head(self.path, HEAD_BYTES)
        except InputError as error:
            return b"", error.what.replace(str(self.path), "it")
        return start, None if start or not self.size else "it is a damaged gzip file"


@dataclass(frozen=True)
class Folder:
    """A folder (or a single file given by the user: then `files` holds just that one)."""

    path: Path
    files: tuple[FileEntry, ...]
    folders: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Files that one parser turns into one trace. `label` is a path relative to the user's input."""

    parser: str
    label: str
    files: tuple[Path, ...]
    """Files that no other unit may have: those below the folder of the unit too."""
    context: tuple[Path, ...] = ()
    """Files beside them that hold facts (profiler_info*.json, profiler_metadata.json)."""


@dataclass(frozen=True, kw_only=True)
class Parser:
    """A reader of one format family.

    `find` looks at a folder and returns the units it can read there (it must not read whole files); `parse` reads
    one. `order`: parsers with lower numbers are asked first, and a file claimed once is not offered again.
    `closed` names folders below a folder that hold no data of their own (raw data beside their export): nobody is asked
    about them.
    """

    name: str
    order: int
    find: Callable[[Folder], list[Unit]]
    parse: Callable[[Unit], list[Trace]]
    closed: Callable[[Folder], tuple[Path, ...]] = lambda folder: ()
    repeats: frozenset[str] = frozenset()
    """Parsers whose units hold the same data in full: with one of theirs beside it, a unit of this one is left out."""
