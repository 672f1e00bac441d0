"""Work on many units in worker processes, with the results and errors that one process would give.

A worker is a fresh interpreter that reads tasks from its stdin and writes results to its stdout. The script of a caller
is not imported again, as `multiprocessing` would do, so that `ascend_perf.load` needs no `__main__` guard.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Final

from ascend_perf.errors import InputError, UsageError
from ascend_perf.garbage import collect_rarely
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._source import Parser, Unit

JOBS_VARIABLE: Final = "ASCEND_PERF_JOBS"
"""Environment variable with the number of processes that read; 1 reads in the calling process."""

MIN_BYTES: Final = 48 << 20
"""Less input is read faster than workers start (a third of a CPU second each). Status: measured."""
MIN_SHARE_BYTES: Final = 12 << 20
"""A further worker must have this much to read. Status: measured."""
GROWTH: Final = 4
"""Memory of a process that reads, as a multiple of its input. Source: benchmark limit of 3.5. Status: measured."""

Outcome = list[Trace] | InputError

_BOOT: Final = (
    "import sys; entry, sys.path[:] = sys.argv[1], sys.argv[2:]; "
    "from ascend_perf.parsers._parallel import serve; serve(entry)"
)
_PARSE: Final = f"{__name__}:parse_here"
_PATIENCE_S: Final = 0.2
"""A process that crashed is given so long to end by itself, so that its exit code tells why."""
_LENGTH: Final = struct.Struct("<Q")
_PIPE_BYTES: Final = 1 << 20
"""Columns are megabytes: a large pipe spares switching between the processes. Linux allows 1 MiB to every user."""


def jobs_of(jobs: int | None) -> int | None:
    """The number of processes that was asked for: the argument, else the environment, else None (decide by size).

    Raises:
        UsageError: it is no positive whole number.
    """
    if jobs is None:
        text = os.environ.get(JOBS_VARIABLE, "").strip()
        if not text:
            return None
        if not (text.isascii() and text.isdigit()):
            raise UsageError(
                f"{JOBS_VARIABLE}={text[:40]!r} is no number of processes", hint="unset it, or set it to 1"
            )
        jobs = int(text)
    if jobs < 1:
        raise UsageError(f"{jobs} processes cannot read anything", hint="give 1 or more")
    return jobs


def workers_for(units: Sequence[Unit], jobs: int | None) -> int:
    """How many processes read these units: bounded by units, processors, memory and what pays.

    Args:
        units: what is to be read.
        jobs: as `jobs_of` gives it; a number that was asked for is not lowered for want of bytes.
    """
    if len(units) < 2 or not sys.executable:
        return 1
    sizes = [size_of(unit) for unit in units]
    if jobs is not None:
        return min(jobs, len(units))
    total = sum(sizes)
    if total < MIN_BYTES:
        return 1
    wanted = min(_processors(), len(units), total // MIN_SHARE_BYTES)
    free = _free_bytes()
    # What was read stays here as well, so half of the memory is left to it.
    return int(max(1, wanted if free is None else min(wanted, free // 2 // max(1, GROWTH * max(sizes)))))


def size_of(unit: Unit) -> int:
    """Bytes of the files of a unit, as they lie on disk."""
    total = 0
    for path in unit.files:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _free_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    except OSError:
        return None
    return None if found is None else int(found.split()[1]) << 10


def parse_units(
    units: Sequence[Unit],
    known: Mapping[str, Parser],
    *,
    workers: int,
    progress: Callable[[str], None],
) -> list[Outcome]:
    """The traces of each unit, or why it could not be read, in the order of the units.

    Args:
        units: what to read.
        known: the parsers by name.
        workers: number of processes; 1 reads here.
        progress: told which unit is being read; with several processes, which was read last.
    """
    found: list[object] = [Lost(started=False)] * len(units)
    if workers > 1:

        def told(index: int, count: int) -> None:
            progress(f"reading {units[index].label} ({count} of {len(units)})")

        found = share_out(_PARSE, units, [size_of(unit) for unit in units], workers=workers, done=told)
    result: list[Outcome] = []
    for number, (unit, outcome) in enumerate(zip(units, found, strict=True), 1):
        if not isinstance(outcome, list | InputError):
            progress(f"reading {unit.label} ({number} of {len(units)})")
            try:
                outcome = known[unit.parser].parse(unit)
            except InputError as error:
                outcome = error
        result.append(outcome)
    return result


def parse_here(unit: Unit) -> list[Trace]:
    """The traces of a unit; what a worker does for `parse_units`."""
    from ascend_perf.parsers.discover import parsers

    return parsers()[unit.parser].parse(unit)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """No result: the process could not be started, the work raised an error, or the process ended in the middle."""

    started: bool
    """Whether the process had begun to serve: if not, this machine grants no further processes."""
    code: int | None = None
    """Exit code of a process that ended; negative: the signal that killed it. None: it lives, the work failed."""


def share_out(
    entry: str, tasks: Sequence[object], sizes: Sequence[int], *, workers: int, done: Callable[[int, int], None]
) -> list[object]:
    """The result of each task, in their order: an object, an `InputError` that the work raised, or `Lost`.

    Args:
        entry: the work, as `module:function`; the function takes a task.
        tasks: what to work on; tasks and results are pickled.
        sizes: of the tasks; the largest are begun first, so that no process is left with a long one at the end.
        workers: number of processes.
        done: told the place of each task that is done and how many are.
    """
    found: list[object] = [Lost(started=False)] * len(tasks)
    order = sorted(range(len(tasks)), key=lambda index: -sizes[index])
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    team = [_Worker(entry) for _ in range(workers)]
    for worker in team:
        idle.put(worker)

    def attend(task: object) -> object:
        worker = idle.get()
        try:
            return worker.work(task)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers)
    try:
        futures = {threads.submit(attend, tasks[index]): index for index in order}
        for count, future in enumerate(as_completed(list(futures)), 1):
            index = futures.pop(future)
            found[index] = future.result()
            done(index, count)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in team:
            worker.close()
    return found


class _Worker:
    """An interpreter that works on tasks; started when it is first needed, and again after it was killed."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._process: subprocess.Popen[bytes] | None = None

    def work(self, task: object) -> object:
        """What the worker made of a task; `Lost` when it failed, crashed, was killed or could not be started."""
        started = False
        try:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _BOOT, self._entry, *sys.path], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                _widen(self._process.stdout)
                assert self._process.stdout is not None
                _receive(self._process.stdout)
            started = True
            assert self._process.stdin is not None and self._process.stdout is not None
            _send(self._process.stdin, task)
            return _receive(self._process.stdout)
        except (OSError, EOFError):
            return Lost(started=started, code=self._ended())

    def _ended(self) -> int | None:
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_PATIENCE_S)
        self.close()
        return code

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def _widen(stream: IO[bytes] | None) -> None:
    """A larger pipe where the system grants one; the usual size works as well."""
    if stream is None or sys.platform != "linux":
        return
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def serve(entry: str) -> None:
    """Read tasks from stdin and write results to stdout until stdin ends; the body of a worker."""
    collect_rarely()
    module, _, name = entry.partition(":")
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints must not mix with results
    work: Callable[[object], object] = getattr(import_module(module), name)
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        _send(target, None)
        while True:
            task = _receive(source)
            result: object
            try:
                result = work(task)
            except InputError as error:
                result = error
            except Exception:  # the caller does it again, so that the error comes up there with its traceback
                result = Lost(started=True)
            _send(target, result)


def _send(stream: IO[bytes], value: object) -> None:
    """Write an object: its pickle, then the arrays behind it without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    stream.write(_LENGTH.pack(len(raw)) + b"".join(_LENGTH.pack(part.nbytes) for part in raw))
    stream.write(_LENGTH.pack(len(text)) + text)
    for part in raw:
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes]) -> object:
    """Read an object that `_send` wrote.

    Raises:
        EOFError: the other side has ended.
    """
    count = _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]
    sizes = [_LENGTH.unpack(_exactly(stream, _LENGTH.size))[0] for _ in range(count)]
    text = _exactly(stream, _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0])
    return pickle.loads(text, buffers=[_exactly(stream, size) for size in sizes])


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    """The next bytes of a stream, writable as arrays are.

    Raises:
        EOFError: it ends before.
    """
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = stream.readinto(view[filled:])  # type: ignore[attr-defined] # every binary stream has it
        if not got:
            raise EOFError
        filled += got
    return data
