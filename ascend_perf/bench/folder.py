"""The run directory while a run is on: taken or not, replaced only by something better."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final

from ascend_perf import manifest as manifests
from ascend_perf.errors import InputError, UsageError

RESERVE_FILE: Final = ".reserve"
RESERVE_BYTES: Final = 1 << 20
"""Kept free for the manifest of a run that fills the disk. Status: assumed."""
MAX_NAMES: Final = 1000
"""Runs beside one another that failed to replace the same one. Status: assumed."""


class RunFolder:
    """A fresh run directory between `with` entry and exit. What it was to replace lies beside it until `done`.

    Leaving without `done` or `left` (a bug of ours) removes the new one and puts the old one back.
    """

    def __init__(self, folder: Path, force: bool) -> None:
        """Check that the folder may be made. What a link names is meant, not the link.

        Raises:
            UsageError: it is taken: not ours to replace, or `force` is not given.
        """
        try:
            folder = folder.resolve() if folder.is_symlink() else folder
        except RuntimeError:  # before Python 3.13; later ones fail where it is made
            raise UsageError(f"{folder} is a link to itself", hint="choose another -o") from None
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not force:
                raise UsageError(f"{folder} exists", hint="choose another -o, or replace it with --force")
            if not folder.is_dir() or not manifests.is_run_directory(folder):
                raise UsageError(
                    f"{folder} is no run directory of ours (no manifest.json): not replaced", hint="choose another -o"
                )
        self.path = folder
        self._before: Path | None = None
        self._is_kept = False

    def __enter__(self) -> RunFolder:
        try:
            if self.path.exists():
                self._before = self.path.with_name(f"{self.path.name}.before-{os.getpid()}")
                self.path.rename(self._before)
            self.path.mkdir(parents=True)
            (self.path / RESERVE_FILE).write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror}", hint="choose another -o") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_kept:
            shutil.rmtree(self.path, ignore_errors=True)
            if self._before is not None:
                self._before.rename(self.path)

    def done(self) -> None:
        """The run is complete: what it replaces is removed."""
        self._is_kept = True
        if self._before is not None:
            shutil.rmtree(self._before)

    def left(self) -> Path:
        """The run did not come to its end: where it lies now. A complete run that it was to replace is put back, and it
        lies beside that; one that had not come to its end either is replaced."""
        self._is_kept = True
        if self._before is None:
            return self.path
        if not _is_complete(self._before):
            shutil.rmtree(self._before)
            return self.path
        names = (self.path.with_name(f"{self.path.name}.failed-{number}") for number in range(1, MAX_NAMES))
        beside = next(name for name in names if not name.exists())
        self.path.rename(beside)
        self._before.rename(self.path)
        self.path, self._before = beside, None
        return beside


def free_room(folder: Path) -> None:
    """Give back the room that a run directory kept; then its last files are written."""
    (folder / RESERVE_FILE).unlink(missing_ok=True)


def _is_complete(folder: Path) -> bool:
    """Whether the run of a folder came to its end; what we cannot read is taken for it."""
    if not any(folder.iterdir()):
        return False
    try:
        return manifests.read_manifest(folder).status == "complete"
    except InputError:
        return True
