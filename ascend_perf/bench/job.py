"""The processes of a job: start them, hear what they tell, end all of them together.

One process is started directly, several through torchrun (`bench.agent`). Each rank appends its messages, a JSON object
per line, to a file of its own in an exchange folder: what a rank told is still there when it was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from ascend_perf.bench import agent
from ascend_perf.bench.library_warnings import LibraryWarning, library_warnings

POLL_S: Final = 0.05
"""Time between looks at the files of messages. Status: assumed."""
STOP_S: Final = 15.0
"""Time for closing servers and writing the trace after a first Ctrl-C. Status: assumed."""
FAIL_S: Final = 4.0
"""Time for the other ranks to tell their part when one has failed. Status: assumed."""
END_S: Final = 60.0
"""Time for processes that have told all to end. Status: assumed."""
TAIL_LINES: Final = 20
"""Lines of a workload that died which are kept."""
MAX_LINE: Final = 1 << 16
"""Letters of a line that a workload wrote; a longer one is several. Status: assumed."""

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How many processes a job has, and which of them are on this machine."""

    per_node: int = 1
    nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.per_node * self.nodes

    @property
    def here(self) -> range:
        """Ranks on this machine."""
        return range(self.node_rank * self.per_node, (self.node_rank + 1) * self.per_node)


@dataclass(kw_only=True)
class Heard:
    """What the ranks on this machine told, and how the job ended."""

    told: dict[str, list[Message]] = field(default_factory=dict)
    """Messages by event, in the order in which they were read; each has its rank and time."""
    code: int = 0
    """Exit code of the process that we started."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    """Exit code by rank as torchrun saw it, of ranks that failed."""
    signal: int | None = None
    """The signal that ended the job: sent to us."""
    tail: tuple[str, ...] = ()
    """Last lines that the processes wrote."""
    warnings: tuple[LibraryWarning, ...] = ()
    """That libraries printed in the processes."""

    def of(self, event: str) -> list[Message]:
        """Messages of one kind."""
        return self.told.get(event, [])

    def last(self, event: str) -> Message | None:
        """The last message of a kind."""
        return messages[-1] if (messages := self.of(event)) else None


def run_job(
    body: Mapping[str, object], ranks: Ranks, environment: Mapping[str, str],
    on_message: Callable[[Message], None] = lambda message: None,
) -> Heard:  # fmt: skip
    """Run the job to its end. When one rank fails, or SIGINT or SIGTERM reaches us, all are ended: first asked, then
    (after a while, or at a second signal) killed.

    Args:
        body: the request; see `bench.child`.
        ranks: the size of the job.
        environment: all variables of the processes.
        on_message: told each message of the first rank here, and `hello` of it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ascend-perf-") as name,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise,
        _signals() as signals,
    ):
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(body), "utf-8")
        job = _Job(folder, ranks, environment, noise)
        try:
            heard = job.listen(signals, on_message)
        finally:
            job.kill()
        noise.seek(0)
        tail = deque[str](maxlen=TAIL_LINES)
        heard.warnings = library_warnings(_written(noise, tail))
        heard.tail = tuple(tail)
        return heard


def _written(noise: IO[str], tail: deque[str]) -> Iterator[str]:
    """The lines that the processes wrote, of any number and length; the last ones stay in `tail`."""
    while line := noise.readline(MAX_LINE):
        tail.append(line.rstrip("\n"))
        yield tail[-1]


class _Job:
    def __init__(self, folder: Path, ranks: Ranks, environment: Mapping[str, str], noise: IO[str]) -> None:
        self._ranks, self._folder = ranks, folder
        self._files = {rank: _Lines(folder / f"rank{rank}.jsonl") for rank in ranks.here}
        self._groups: dict[int, int] = {}
        self._process = subprocess.Popen(
            _command(folder, ranks), stdin=subprocess.DEVNULL, stdout=noise, stderr=noise, env=dict(environment),
            start_new_session=True,  # Ctrl-C of the terminal reaches us alone: we pass it on once
        )  # fmt: skip

    def listen(self, signals: list[int], on_message: Callable[[Message], None]) -> Heard:
        heard = Heard()
        deadline: float | None = None
        asked = False
        while True:
            has_ended = _ends_within(self._process, POLL_S)
            self._read(heard, on_message)
            if has_ended:
                break
            now = time.monotonic()
            if signals and not asked:
                asked, deadline, heard.signal = True, now + STOP_S, signals[0]
                self._process.terminate()
            elif deadline is None and heard.of("error"):
                deadline = now + FAIL_S
            elif deadline is None and len(heard.of("end")) == len(self._ranks.here):
                deadline = now + END_S
            if len(signals) > 1 or (deadline is not None and now > deadline):
                self.kill()
        heard.code = self._process.returncode
        if (path := self._folder / agent.FILE_NAME).is_file():
            codes = json.loads(path.read_text("utf-8"))["exit_codes"]
            heard.exit_codes = {int(rank): int(code) for rank, code in codes.items()}
        if signals and heard.signal is None and heard.code:
            heard.signal = signals[0]
        return heard

    def _read(self, heard: Heard, on_message: Callable[[Message], None]) -> None:
        for rank, lines in self._files.items():
            for line in lines.new():
                message = {**json.loads(line), "rank": rank}
                heard.told.setdefault(message["event"], []).append(message)
                if message["event"] == "hello":
                    self._groups[rank] = message["pid"]
                if rank == self._ranks.here[0]:
                    on_message(message)

    def kill(self) -> None:
        """End at once what is left of the job; torchrun gives each rank a session of its own."""
        for pid in (*self._groups.values(), self._process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid != self._process.pid or self._process.poll() is None:
                    if os.getpgid(pid) == pid:
                        os.killpg(pid, signal.SIGKILL)
                    else:
                        os.kill(pid, signal.SIGKILL)
        self._process.wait()


class _Lines:
    """Complete lines that were appended to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> Iterator[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                block = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = block.rpartition(b"\n")
        self._at += len(whole) + len(newline)
        for line in whole.splitlines():
            yield line.decode("utf-8")


def _command(folder: Path, ranks: Ranks) -> list[str]:
    child = ["-m", "ascend_perf.bench.child", str(folder)]
    if ranks.world_size == 1:  # also one that stands for all ranks of a larger job
        return [sys.executable, *child]
    if ranks.nodes == 1:
        where = ["--standalone", "--nnodes", "1"]
    else:
        where = [
            "--nnodes", str(ranks.nodes), "--node-rank", str(ranks.node_rank),
            "--master-addr", ranks.master_addr, "--master-port", str(ranks.master_port),
        ]  # fmt: skip
    torchrun = [*where, "--nproc-per-node", str(ranks.per_node), "--max-restarts", "0"]
    return [sys.executable, "-m", "ascend_perf.bench.agent", str(folder), *torchrun, *child]


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM that reach us in this time, gathered instead of obeyed (only the main thread can)."""
    seen: list[int] = []

    def arrived(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, arrived) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
