"""Recording inside a user's own process: when it begins and ends, and what it tells of itself.

A `Session` is told of the end of each step. Until the first wanted step it costs two readings of a clock per step;
then it records some steps with the profiler of the device (`_recorders`), and afterwards it is idle again:

    skipped steps -> warm-up of the profiler -> recorded steps -> [wait -> warm-up -> recorded steps ...] -> the rest

Nothing here may end the program that is recorded: what goes wrong is told (`Told`), and the program goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

from ascend_perf.collectors import _recorders, step_marks
from ascend_perf.errors import AscendPerfError, InputError, MachineError

VARIABLE: Final = "ASCEND_PERF_COLLECT"
"""Path of the settings of `ascend-perf collect`, for the processes of its command."""
TRACE_FOLDER: Final = "trace"
TOLD_FOLDER: Final = "collect"
SEEN_FILE: Final = "python-seen"
"""Left by the first Python process that loaded the hook."""
STOP_FILE: Final = "stop"
"""Its presence ends recording at the next step."""
MAX_TIMES: Final = 2000
"""Step times that are kept of each kind."""
MIN_FREE_BYTES: Final = 200 << 20
"""Recording does not begin with less free disk. Status: assumed."""
RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables by which launchers tell a process its rank: torchrun, Open MPI, MPICH, PMIx, Slurm."""

LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "torch/distributed/run.py", "torch/distributed/launch.py")
"""Programs that start the ranks and import torch themselves."""

StepOf = Literal["auto", "optimizer", "data", "calls", "process"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is recorded, when, and where it goes."""

    folder: str
    """The run directory."""
    backend: Literal["auto", "torch-npu", "torch"] = "auto"
    level: str = "standard"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the user, over those of the level."""
    ranks: tuple[int, ...] | None = None
    """None: all."""
    skip: int = 5
    warmup: int = 1
    active: int = 3
    wait: int = 0
    repeat: int = 1
    """0: until the program ends."""
    delay_s: float = 0
    duration_s: float | None = None
    step_of: StepOf = "auto"
    storage_limit_bytes: int | None = None
    """Of one rank."""

    def needed(self) -> int:
        """Steps that a program must do for one recording."""
        return self.skip + self.warmup + self.active

    def to_json(self) -> str:
        """As `read_settings` reads it."""
        return json.dumps(asdict(self))


def read_settings(path: Path) -> Settings:
    """The settings that `ascend-perf collect` wrote.

    Raises:
        InputError: they cannot be read.
    """
    try:
        body = json.loads(path.read_text("utf-8"))
        ranks = body.pop("ranks")
        return Settings(ranks=None if ranks is None else tuple(ranks), **body)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{VARIABLE} names no settings of ours: {error}", hint="unset it") from error


def rank_here() -> int:
    """The global rank of this process; 0 where no launcher told one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def is_launcher() -> bool:
    """Whether this process is one that starts the ranks."""
    return sys.argv[:1] != [] and sys.argv[0].replace(os.sep, "/").endswith(LAUNCHERS)


class Told:
    """What a process tells of its recording: lines of JSON in a file of its own, so that nothing is lost when it is
    killed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"told-{os.getpid()}.jsonl"
        self.problems: list[tuple[str, str]] = []

    def __call__(self, event: str, **facts: object) -> None:
        """Append a line. A full disk is no reason to end the program."""
        if event == "problem":
            self.problems.append((str(facts["what"]), str(facts.get("hint", ""))))
        line = json.dumps({"event": event, "pid": os.getpid(), "time_ns": time.time_ns(), **facts}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            return


class Session:
    """The recording of one process. `step` at the end of each step, `close` at the end of the program."""

    def __init__(self, settings: Settings, *, device: str = "auto", told: Told | None = None) -> None:
        self.settings = settings
        self.written: list[Path] = []
        self.steps = 0
        self.times: dict[str, list[int]] = {"before": [], "recorded": [], "after": []}
        folder = Path(settings.folder)
        self.told = Told(folder / TOLD_FOLDER) if told is None else told
        self._device = device
        self._stop_file = folder / TOLD_FOLDER / STOP_FILE
        self._recorder: _recorders.Recorder | None = None
        self._in_cycle = self._cycles = self._waited = 0
        self._is_over = settings.ranks is not None and not settings.ranks
        self._pid = os.getpid()
        self._born = time.monotonic()
        self._recording_since = 0.0
        self._last_ns: int | None = None
        self._first_ns: int | None = None
        self._term: Any = None
        self._mark = step_marks.wanted()

    def begin(self) -> None:
        """The first step begins: recording may begin with it."""
        if self.settings.skip == 0:
            self._start_if_due()

    def begin_process(self) -> None:
        """Record from now to the end, without steps."""
        self._start(steps=None)

    def step(self) -> None:
        """A step has ended."""
        if os.getpid() != self._pid:  # forked from the process that is recorded, such as a worker of a loader
            return
        now = time.perf_counter_ns()
        if self._last_ns is not None:
            self._keep(now - self._last_ns)
        else:
            self._first_ns = time.time_ns()
        self.steps += 1
        if self._mark is not None and self._recorder is None:
            self._mark(step_marks.BEGIN)
        if self._recorder is not None:
            self._advance(self._recorder)
        elif not self._is_over:
            self._waited += 1
            self._start_if_due()
        self._last_ns = time.perf_counter_ns()

    def restart_counting(self) -> None:
        """Steps so far were none: a loader was tried before the optimizer was built. Without effect once it records."""
        if self._recorder is None and not self._cycles:
            self.steps, self._last_ns = 0, None
            self.times["before"].clear()

    def close(self, *, is_orderly: bool | None = None) -> None:
        """The program ends, in whatever way: write what there is, and tell how it went.

        Args:
            is_orderly: whether the program came to its end; then a recording without one whole step is none, while the
                part of a step in which it failed or hung is kept. None: unless an exception ends the interpreter.
        """
        if os.getpid() != self._pid:
            return
        if self._recorder is not None:
            orderly = not hasattr(sys, "last_type") if is_orderly is None else is_orderly
            self._finish(self._recorder, is_whole=False, is_orderly=orderly)
        self._is_over = True
        self.told(
            "end", rank=rank_here(), steps=self.steps, cycles=self._cycles, times=self.times, first_ns=self._first_ns
        )  # fmt: skip

    @property
    def is_recording(self) -> bool:
        """Whether the profiler is on."""
        return self._recorder is not None

    def _keep(self, dur_ns: int) -> None:
        if self._recorder is None:
            kind = "after" if self._cycles else "before"
        elif self._in_cycle >= self.settings.warmup:
            kind = "recorded"
        else:
            return
        if len(self.times[kind]) < MAX_TIMES:
            self.times[kind].append(dur_ns)

    def _start_if_due(self) -> None:
        settings = self.settings
        if self._is_over or (settings.repeat and self._cycles >= settings.repeat) or self._stop_file.exists():
            self._is_over = True
            return
        before = settings.skip if not self._cycles else settings.wait
        if (self.steps if not self._cycles else self._waited) < before:
            return
        if time.monotonic() - self._born < settings.delay_s:
            return
        self._start(steps=settings.warmup + settings.active)

    def _start(self, steps: int | None) -> None:
        settings = self.settings
        rank = rank_here()
        if settings.ranks is not None and rank not in settings.ranks:
            self.told("not wanted", rank=rank)
            self._is_over = True
            return
        try:
            folder = Path(settings.folder) / TRACE_FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(folder).free
            if free_bytes < MIN_FREE_BYTES:
                raise MachineError(
                    f"only {free_bytes >> 20} MiB are free on the disk of the run directory: nothing is recorded",
                    hint="free space, or choose another -o",
                )
            self._recorder = _recorders.start(
                backend=settings.backend, device=self._device, folder=folder, rank=rank, cycle=self._cycles,
                level=settings.level, options=settings.options,
                schedule=None if steps is None else (settings.warmup, settings.active),
            )  # fmt: skip
        except Exception as error:
            self._failed(error)
            return
        self._in_cycle = 0
        self._recording_since = time.monotonic()
        self._catch_term()
        recorder = self._recorder
        self.told(
            "start", rank=rank, step=self.steps, device=recorder.device, backend=recorder.backend,
            executable=sys.executable, notes=list(recorder.notes),
        )  # fmt: skip

    def _advance(self, recorder: _recorders.Recorder) -> None:
        settings = self.settings
        self._in_cycle += 1
        try:
            recorder.step()
        except Exception as error:
            self._drop(error)
            return
        spent_s = time.monotonic() - self._recording_since
        is_whole = self._in_cycle >= settings.warmup + settings.active
        is_late = settings.duration_s is not None and spent_s >= settings.duration_s
        is_large = settings.storage_limit_bytes is not None and recorder.size_bytes() > settings.storage_limit_bytes
        if is_large and not is_whole:
            self._problem(
                f"the storage limit was reached after {max(0, self._in_cycle - settings.warmup)} recorded steps",
                "raise --storage-limit, or record fewer steps",
            )
        if is_whole or is_late or is_large or self._stop_file.exists():
            self._finish(recorder, is_whole=is_whole)
            self._is_over = self._is_over or is_late or is_large
            if not self._is_over:
                self._start_if_due()

    def _finish(self, recorder: _recorders.Recorder, *, is_whole: bool, is_orderly: bool = True) -> None:
        self._recorder = None
        self._cycles += 1
        self._waited = 0
        try:
            paths = recorder.stop()
            limit = self.settings.storage_limit_bytes
            size = sum(_recorders.size_of(path) for path in paths)
            if limit is not None and size > limit:
                for path in paths:
                    _recorders.remove(path)
                raise MachineError(
                    f"the trace has {size >> 20} MiB, more than the limit of {limit >> 20} MiB: not kept",
                    hint="raise --storage-limit, record fewer steps, or take --level quick",
                )
        except Exception as error:
            self._failed(error)
            return
        finally:
            self._release_term()
            for line in recorder.said:
                self._problem(f"the profiler warned: {line}", "")
        recorded = max(0, min(self._in_cycle - self.settings.warmup, self.settings.active))
        self._is_over = self._is_over or not is_whole
        if not recorded and is_orderly and self.settings.step_of != "process":
            for path in paths:
                _recorders.remove(path)
            self.told("too short", rank=rank_here())
            return
        self.written += paths
        self.told(
            "written", rank=rank_here(), backend=recorder.backend, steps=recorded, is_whole=is_whole, size_bytes=size,
            paths=[str(path.relative_to(self.settings.folder)) for path in paths],
        )  # fmt: skip

    def _drop(self, error: Exception) -> None:
        recorder, self._recorder = self._recorder, None
        self._failed(error)
        self._release_term()
        if recorder is not None:
            recorder.abandon()

    def _failed(self, error: Exception) -> None:
        """Recording is over, the program is not."""
        self._is_over = True
        what, hint = _recorders.explained(error)
        self._problem(what, hint)

    def _problem(self, what: str, hint: str) -> None:
        self.told("problem", rank=rank_here(), what=what, hint=hint)

    def _catch_term(self) -> None:
        """SIGTERM while recording (a launcher ends the other ranks when one has failed) must not cost the trace; only
        where the program has no handler of its own."""
        try:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._term = signal.signal(signal.SIGTERM, self._terminated)
        except ValueError:  # not the main thread
            return

    def _release_term(self) -> None:
        try:
            if signal.getsignal(signal.SIGTERM) == self._terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except ValueError:
            return

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.close(is_orderly=False)
        os.kill(os.getpid(), number)


def error_of(told: Told) -> AscendPerfError | None:
    """The first problem as an error; None where there was none."""
    return MachineError(told.problems[0][0], hint=told.problems[0][1]) if told.problems else None
