"""Errors that a user can cause or cure. The CLI prints them without a traceback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar


class AscendPerfError(Exception):
    """Base class: `what` is the fact (object, seen, expected), `hint` is the next step."""

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # The default would lose the hint on its way from another process.
        return _error, (type(self), self.what, self.hint)

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.hint}" if self.hint else self.what


class UsageError(AscendPerfError):
    """The command or the call was wrong (exit code 2)."""

    exit_code = 2


class InputError(AscendPerfError):
    """A file or directory is missing, damaged or in a format that we do not read (exit code 3)."""


class MachineError(AscendPerfError):
    """The machine lacks what the command needs: a device, a package, a tool (exit code 4)."""

    exit_code = 4


class Interrupted(AscendPerfError):
    """Somebody pressed Ctrl-C (exit code 130, as shells have it: 128 and the number of the signal)."""

    exit_code = 130


class Terminated(Interrupted):
    """The process was asked to end by SIGTERM (exit code 143)."""

    exit_code = 143


def _error(kind: type[AscendPerfError], what: str, hint: str) -> AscendPerfError:
    return kind(what, hint=hint)


def first_line(error: BaseException, length: int = 300) -> str:
    """What an error of other code says, to be quoted in one of ours: its first line, its kind when it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0][:length] if text else type(error).__name__


def not_writable(path: Path, error: OSError) -> UsageError:
    """The error of a file that the system does not let us write."""
    return UsageError(f"{path} cannot be written: {error.strerror or error}", hint="choose another -o")


def not_obeyed(text: str) -> str:
    """Text for a log, in which a build server obeys nothing of what it quotes.

    GitHub and Azure obey "::error::" at the begin of a line, whatever spaces are before it, and "##[error]" and
    "##vso[...]" anywhere in one.
    """
    text = re.sub(r"(?m)^(\s*):(?=:)", r"\1: ", text)
    return re.sub(r"(?i)##(?=\[|vso\[)", "# #", text)
