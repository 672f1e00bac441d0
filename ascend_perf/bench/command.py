"""Run a user's command as if we were not there: its output, its input, the signals of the terminal, its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

TICK_S: Final = 0.1
"""Time between looks at the run. Status: assumed."""
DRAIN_S: Final = 5.0
"""Time for the rest of the output after the end: a process left behind may hold the pipe open. Status: assumed."""
KEPT_BYTES: Final = 256 << 10
"""Of the output's end that is kept."""
PASSED_ON: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
ENDING: Final = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command came to its end."""

    code: int | None
    """As a shell has it: 128 and the number of the signal that ended it. None: it could not be started."""
    problem: str = ""
    signals: tuple[int, ...] = ()
    """Signals to end that reached us."""
    output: str = ""
    """The end of its standard output, where it went through us."""


def run_command(
    words: Sequence[str], variables: Mapping[str, str], *, tick: Callable[[int], None] = lambda pid: None,
    keeps_output: bool = False, umask: int = -1, on_output: Callable[[bytes], None] = lambda block: None,
) -> Ended:  # fmt: skip
    """Run to the end. A signal that reaches us goes to the whole group of the command; the second SIGINT or SIGTERM is
    passed on as SIGTERM, the third kills.

    Args:
        words: the command.
        variables: all of its variables.
        tick: called about every 0.1 s with the process number.
        keeps_output: its standard output goes through us and its end is kept; else it is ours.
        umask: of the command; -1: ours.
        on_output: given each piece of the output that goes through us as it comes, in a thread of its own.
    """
    with _signals() as arrived:
        try:
            process = subprocess.Popen(
                list(words), env=dict(variables), stdout=subprocess.PIPE if keeps_output else None, umask=umask,
                start_new_session=True,  # Ctrl-C of the terminal reaches us alone: we pass it on once
            )  # fmt: skip
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            name = os.path.basename(words[0])
            return Ended(code=code, problem=f"the command cannot be started: {name}: {error.strerror}")
        heard = _Heard(process, on_output) if keeps_output else None
        passed = 0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
                break
            while passed < len(arrived):
                _pass_on(process, arrived[passed], sum(one in ENDING for one in arrived[: passed + 1]))
                passed += 1
            tick(process.pid)
        output = heard.rest() if heard is not None else ""
    code = process.returncode
    return Ended(
        code=128 - code if code < 0 else code, signals=tuple(one for one in arrived if one in ENDING), output=output,
    )


def run_quietly(words: Sequence[str], variables: Mapping[str, str], *, timeout_s: float) -> str:
    """Run a command of ours; what it printed, and the reason when it could not be run. Never fails."""
    try:
        done = subprocess.run(
            list(words), env=dict(variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode("utf-8", "replace")
        return f"{said}\n[ERROR] no end after {timeout_s:.0f} s"
    except OSError as error:
        return f"[ERROR] {os.path.basename(words[0])}: {error.strerror}"
    return done.stdout.decode("utf-8", "replace")


class _Heard:
    """Shows the output of a process and keeps its end."""

    def __init__(self, process: subprocess.Popen[bytes], on_output: Callable[[bytes], None]) -> None:
        assert process.stdout is not None
        self._pipe, self._on_output = process.stdout, on_output
        self._kept = b""
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        descriptor = self._pipe.fileno()
        while block := os.read(descriptor, 1 << 16):
            self._kept = (self._kept + block)[-KEPT_BYTES:]
            with contextlib.suppress(Exception):  # a mistake of ours must not stop the program at a full pipe
                self._on_output(block)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.buffer.write(block)
                sys.stdout.buffer.flush()

    def rest(self) -> str:
        self._thread.join(DRAIN_S)
        if not self._thread.is_alive():
            self._pipe.close()
        return self._kept.decode("utf-8", "replace")


def _pass_on(process: subprocess.Popen[bytes], number: int, endings: int) -> None:
    if number in ENDING and endings == 2:
        number = signal.SIGTERM
    elif number in ENDING and endings > 2:
        kill_tree(process.pid)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def kill_tree(pid: int) -> None:
    """Kill a process, its group and its descendants: launchers give their processes sessions of their own."""
    pids = [pid]
    with contextlib.suppress(Exception):  # psutil is absent, or the process has gone
        import psutil

        pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    for one in reversed(pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if one == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(one, signal.SIGKILL)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals that reach us in this time, gathered instead of obeyed (only the main thread can)."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def arrived(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, arrived) for number in PASSED_ON}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

