"""The machine as collectors see it: files, variables, tools and packages; a folder can stand for its root.

Nothing is looked at twice by other means, so that a description of a machine (a tree of files, stand-in tools and a
table of packages) is judged as the machine itself would be.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ascend_perf.collectors import devices

TIMEOUT_S: Final = 30.0
"""A tool of a driver that does not answer is a broken tool. Status: assumed."""
MAX_TEXT: Final = 1 << 20
"""Characters that are kept of a tool's output and of a small file. Status: assumed."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a tool did. Exit codes of several tools lie: judge by the text."""

    code: int
    text: str
    """Standard output, then standard error."""
    problem: str = ""
    """Why it could not be run to its end."""

    @property
    def first_line(self) -> str:
        """The first line that says something."""
        return next((line.strip()[:200] for line in self.text.splitlines() if line.strip()), self.problem)


@dataclass(frozen=True)
class Machine:
    """What is looked at. The defaults are this machine."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    package: Callable[[str], str | None] = devices.installed_version
    """The version of an installed package, None when it is absent."""
    torch: Callable[[], devices.Inventory] = devices.probe
    python: str = field(default_factory=platform.python_version)
    architecture: str = field(default_factory=platform.machine)
    is_here: bool = True
    """Whether functions of this process (limits, free space, clocks) describe the machine."""

    def path(self, absolute: str) -> Path:
        """A place of the machine, given as an absolute path there."""
        return self.root / absolute.lstrip("/")

    def home(self) -> Path:
        """The home folder of the user."""
        return self.path(self.environment.get("HOME", "/root"))

    def named(self, variable: str) -> Path | None:
        """The place that a variable names, None when it is not set."""
        value = self.environment.get(variable, "")
        return self.path(value) if value.startswith("/") else None

    def text(self, path: Path) -> str | None:
        """A small text file; None when it is not there or may not be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(MAX_TEXT)
        except OSError:
            return None

    def found(self, folder: str, pattern: str) -> list[Path]:
        """Names below a folder that match, in order."""
        try:
            return sorted(self.path(folder).glob(pattern))
        except OSError:
            return []

    def tool(self, name: str, *places: str) -> str | None:
        """Where an executable lies: on PATH, else in one of the places."""
        seen = shutil.which(name, path=self.environment.get("PATH", ""))
        if seen is not None:
            return seen
        for place in places:
            path = self.path(place)
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
        return None

    def run(self, command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Done:
        """Run a tool to its end; what went wrong is an answer."""
        try:
            done = subprocess.run(
                list(command), env={**self.environment, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Done(code=-1, text="", problem=f"no answer within {timeout_s:g} s")
        except OSError as error:
            return Done(code=-1, text="", problem=f"cannot be started: {error.strerror or error}")
        return Done(code=done.returncode, text=(done.stdout + done.stderr)[:MAX_TEXT])


def here() -> Machine:
    """This machine; tools of this interpreter's environment are found even when it is not activated."""
    path = os.pathsep.join(filter(None, (os.environ.get("PATH", ""), str(Path(sys.executable).parent))))
    return Machine(environment={**os.environ, "PATH": path})
