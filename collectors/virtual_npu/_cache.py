"""The cache folder of the virtual NPU: one writer at a time, things appear in it whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ascend_perf.errors import MachineError

TEMPORARY: Final = "unfinished-"
"""Folders of this name belong to whoever holds the lock; others are left over from a run that was killed."""

_CURE: Final = "name a folder that can: ASCEND_PERF_CACHE=/folder/of/yours"

KEPT_DAYS: Final = 30
"""What nobody used for so long is removed when something new is made. Status: assumed."""


@contextmanager
def locked(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the cache folder and hold its lock; a second process waits and says so.

    Raises:
        MachineError: the folder cannot be written (also from what runs inside: no space, not allowed).
    """
    with _space_and_rights():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP):
                raise
            raise MachineError(
                f"the cache folder of the virtual NPU cannot be made: {problem.strerror}", hint=_CURE
            ) from problem
        with (cache / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("another process is setting up the virtual NPU; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            _clear(cache)
            try:
                yield
            finally:
                _clear(cache)


@contextmanager
def new_folder(cache: Path, final: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends well it takes the place of `final` in one step. Needs the lock."""
    made = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cache))
    try:
        yield made
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cache), "old"))
        made.rename(final)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def used(mark: Path) -> None:
    """Note in the time of a file that its folder was used; a cache that cannot be written stays as it is."""
    with suppress(OSError):
        os.utime(mark)


def prune(cache: Path, marks: str) -> None:
    """Remove the folders of files that match `marks` (below the cache) and were not used lately. Needs the lock."""
    oldest = time.time() - KEPT_DAYS * 86400
    for mark in cache.glob(marks):
        with suppress(OSError):
            if mark.stat().st_mtime < oldest:
                mark.parent.rename(Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cache), "old"))  # gone with the lock


def _clear(cache: Path) -> None:
    for left_over in cache.glob(f"{TEMPORARY}*"):
        shutil.rmtree(left_over, ignore_errors=True)


@contextmanager
def _space_and_rights() -> Iterator[None]:
    """Turn the system's errors about the cache folder into ours."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                "no space is left for the cache of the virtual NPU (it takes about 250 MB)",
                hint="free some, or name another folder: ASCEND_PERF_CACHE=/folder/with/space",
            ) from problem
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise MachineError(
                f"the cache folder of the virtual NPU cannot be written: {problem.strerror}", hint=_CURE
            ) from problem
        raise


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
