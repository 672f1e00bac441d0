"""The profilers that a process can start in itself: torch_npu's, and torch's for CUDA and the CPU."""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import io
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol

from ascend_perf.collectors import _other_profilers, _torch_options
from ascend_perf.collectors.devices import installed_version
from ascend_perf.collectors.torch_profiler import activities, compress_trace
from ascend_perf.errors import AscendPerfError, MachineError

UNDER_MSPROF: Final = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")
"""Set in a program that msprof records. Source: format reference for collectors, section 2.6."""
TWO_PROFILERS: Final = "two profilers selected (msprof, torch_npu): they share the device's single profiling channel"
NO_FILE: Final = "the profiler could not write its trace"
NO_FILE_HINT: Final = "is the disk full, or a limit of file sizes (ulimit -f) reached?"
NPU_LEFT_OUT: Final = "the NPU is not recorded: torch's profiler knows the host only (take --with torch-npu)"
TWO_HINT: Final = "choose one: start the program without msprof, or take --with msprof"

_SAID: Final = re.compile(r"^\[\d{4}-[^\]]*\] \[(WARNING|ERROR)\] \[\d+\] profiler\.py: (.*)", re.MULTILINE)
"""How torch_npu's profiler complains: it raises nothing. Source: format reference for collectors, section 2.1."""
MAX_SAID: Final = 10
_ENDS_WITHOUT_STEPS: Final = "Incorrect schedule: Stop profiler while current state is RECORD"
"""What torch_npu's profiler says at the end of every recording without a schedule: nothing is wrong with it.
Source: _profiler_action_controller.py of torch_npu 2.13 and `_default_schedule_fn`, which is RECORD throughout."""

Schedule = tuple[int, int] | None
"""Steps of warm-up and recorded steps; None records without steps."""


class Recorder(Protocol):
    """One recording, which has begun."""

    @property
    def device(self) -> str:
        """What it records: npu (with the number of the device, npu:3), cuda or cpu."""

    @property
    def backend(self) -> Literal["torch-npu", "torch"]:
        """Whose profiler."""

    @property
    def notes(self) -> Sequence[str]:
        """What to know of its options."""

    @property
    def said(self) -> Sequence[str]:
        """What the profiler complained of."""

    def step(self) -> None:
        """A step has ended."""

    def stop(self) -> list[Path]:
        """Write what there is; the files or folders."""

    def abandon(self) -> None:
        """End the profiler; nothing is written."""

    def size_bytes(self) -> int:
        """What it has on disk so far."""


def start(
    *, backend: Literal["auto", "torch-npu", "torch"], device: str, folder: Path, rank: int, cycle: int, level: str,
    options: Mapping[str, Any], schedule: Schedule,
) -> Recorder:  # fmt: skip
    """Begin to record.

    Args:
        backend: auto takes torch_npu's profiler for an NPU and torch's for the rest.
        device: npu, cuda, cpu (or with a number), or auto: what this process has initialised.
        folder: where the trace goes; must exist.
        rank: names the trace.
        cycle: number of the recording in this process.
        level: quick, standard or deep.
        options: of the user, over those of the level.
        schedule: see `Schedule`.

    Raises:
        UsageError: an option is wrong.
        MachineError: the device or its profiler is not there.
    """
    kind = device.split(":")[0] if device != "auto" else _device_in_use(has_begun=schedule is not None)
    name = f"rank{rank}" if cycle == 0 else f"rank{rank}-cycle{cycle + 1}"
    if backend == "torch-npu" and kind != "npu":
        raise MachineError(
            f"torch-npu records an NPU, this process uses {kind}",
            hint="does the program move its model to the NPU before the first recorded step? Otherwise: --with torch",
        )
    if kind == "npu" and backend != "torch":
        if any(variable in os.environ for variable in UNDER_MSPROF):
            raise MachineError(TWO_PROFILERS, hint=TWO_HINT)
        return _NpuRecorder(folder, name, level, options, schedule)
    recorder = _TorchRecorder("cpu" if kind == "npu" else kind, folder, name, level, options, schedule)
    if kind == "npu":
        recorder.notes = (*recorder.notes, NPU_LEFT_OUT)
    return recorder


def explained(error: Exception) -> tuple[str, str]:
    """What went wrong, and the next step."""
    if isinstance(error, AscendPerfError):
        return error.what, error.hint
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk is full: the trace could not be written", "free space, or choose another -o"
    text = str(error).strip().splitlines()
    first = f"{type(error).__name__}: {text[0][:300] if text else ''}"
    if "Profiler is already enabled" in first or "profiler is already" in first.lower():
        return _other_profilers.OWN_PROFILER, _other_profilers.OWN_HINT
    return f"the profiler failed: {first}", ""


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        return path.stat().st_size
    return 0


def remove(path: Path) -> None:
    """Remove a file or a folder, if it can be."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _device_in_use(*, has_begun: bool) -> str:
    """What this process works on: an accelerator that it has initialised, else the CPU. Before it has begun, what it
    could work on."""
    torch: Any = importlib.import_module("torch")
    for kind in ("npu", "cuda"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and (not has_begun or module.is_initialized()):
            return kind
    return "cpu"


class _TorchRecorder:
    """torch.profiler; leaves `<name>.pt.trace.json.gz`. It gives way to one that the program starts itself."""

    backend: Literal["torch"] = "torch"
    said: Sequence[str] = ()

    def __init__(
        self, device: str, folder: Path, name: str, level: str, options: Mapping[str, Any], schedule: Schedule
    ) -> None:
        from torch import profiler

        self._has_given_way = False
        if _other_profilers.is_on():
            raise MachineError(_other_profilers.OWN_PROFILER, hint=_other_profilers.OWN_HINT)
        chosen = _torch_options.choose("torch", level, options)
        values = dict(chosen.values)
        wanted = activities(device)
        if not values.pop("cpu"):
            wanted = [one for one in wanted if one.name != "CPU"] or wanted
        self.device = device
        self.notes: Sequence[str] = chosen.notes
        self._target = _free(folder, name, ".pt.trace.json.gz")
        self._written: list[Path] = []
        with _quiet(), _other_profilers.ours():
            self._profiler = profiler.profile(
                activities=wanted,
                schedule=None if schedule is None else profiler.schedule(
                    wait=0, warmup=schedule[0], active=schedule[1], repeat=1
                ),
                on_trace_ready=self._export,
                **values,
            )  # fmt: skip
            self._profiler.start()
        _other_profilers.when_another_begins(self._give_way)

    def step(self) -> None:
        self._check()
        with _quiet(), _other_profilers.ours():
            self._profiler.step()

    def stop(self) -> list[Path]:
        self._check()
        _other_profilers.when_another_begins(None)
        with _quiet(), _other_profilers.ours():
            self._profiler.stop()
        return self._written

    def abandon(self) -> None:
        if self._has_given_way:
            return
        _other_profilers.when_another_begins(None)
        with contextlib.suppress(Exception), _quiet(), _other_profilers.ours():
            self._profiler.on_trace_ready = None
            self._profiler.stop()

    def size_bytes(self) -> int:
        return 0  # it keeps its events in memory

    def _give_way(self) -> None:
        if not self._written:  # it could have come to its end, and be about to be stopped
            self.abandon()
            self._has_given_way = True

    def _check(self) -> None:
        if self._has_given_way:
            raise MachineError(_other_profilers.OWN_PROFILER, hint=_other_profilers.OWN_HINT)

    def _export(self, profiler: Any) -> None:
        plain = self._target.with_suffix("")
        try:
            profiler.export_chrome_trace(str(plain))
            _check_whole(plain)
            compress_trace(plain, self._target)
            self._written.append(self._target)
        except BaseException:
            remove(self._target)
            raise
        finally:
            for left in (plain, plain.with_name(f"{plain.name}.tmp")):  # the profiler writes there first
                remove(left)


def _npu_here() -> str:
    """The NPU of this process by its number on the machine, npu:3; npu where that is not known."""
    current = getattr(getattr(sys.modules.get("torch"), "npu", None), "current_device", None)
    if current is None:
        return "npu"
    try:
        index = int(current())
    except (RuntimeError, TypeError, ValueError):
        return "npu"
    listed = [part for part in os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",") if part.isdecimal()]
    return f"npu:{listed[index] if index < len(listed) else index}"


def _finish_earlier_steps() -> None:
    """Wait for what the device still has to do.

    A profile does not hold tasks that were launched before it began: while the device is busy with them it would look
    idle.
    """
    npu: Any = getattr(sys.modules.get("torch"), "npu", None)
    if npu is not None and npu.is_initialized():
        npu.synchronize()


def _check_whole(plain: Path) -> None:
    """A trace that could not be written to its end is no trace.

    Raises:
        OSError: it ends early, as on a full disk: the profiler itself does not tell.
        MachineError: there is none: it could not even be moved to its place.
    """
    if not plain.exists():
        raise MachineError(NO_FILE, hint=NO_FILE_HINT)
    with open(plain, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _NpuRecorder:
    """torch_npu.profiler; leaves the raw data of a `<name>_*_ascend_pt` directory, which is parsed later in a process
    of its own: parsing here would stall all ranks."""

    backend: Literal["torch-npu"] = "torch-npu"

    def __init__(self, folder: Path, name: str, level: str, options: Mapping[str, Any], schedule: Schedule) -> None:
        from torch_npu import profiler

        self._has_given_way = False
        self._has_schedule = schedule is not None
        self._warmup_left = 0 if schedule is None else schedule[0]
        self.device = _npu_here()
        _other_profilers.watch_npu()
        if _other_profilers.is_npu_on():
            raise MachineError(_other_profilers.OWN_PROFILER, hint=_other_profilers.OWN_HINT)
        self._module = profiler
        version = installed_version("torch_npu")
        release = None if version is None else _torch_options.release_of(version)
        chosen = _torch_options.choose("torch-npu", level, options, release=release)
        self._notes, self._lines = list(chosen.notes), list[str]()
        self._folder, self._name = folder, name
        values = dict(chosen.values)
        wanted = [profiler.ProfilerActivity.NPU]
        if values.pop("cpu"):
            wanted.insert(0, profiler.ProfilerActivity.CPU)
        table = _torch_options.known_options("torch-npu")
        config = self._config(
            {key: value for key, value in values.items() if table[key]["where"] == "config"}, options, table
        )
        arguments = {key: value for key, value in values.items() if table[key]["where"] == "profile"}
        if not self._warmup_left:
            _finish_earlier_steps()
        with self._listening():
            self._profiler = profiler.profile(
                activities=wanted,
                schedule=None if schedule is None else profiler.schedule(
                    wait=0, warmup=schedule[0], active=schedule[1], repeat=1
                ),
                on_trace_ready=profiler.tensorboard_trace_handler(
                    str(folder), worker_name=name, analyse_flag=False
                ),
                experimental_config=config,
                **arguments,
            )  # fmt: skip
            self._profiler.start()
        _other_profilers.when_another_npu_begins(self._give_way)

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    @property
    def said(self) -> Sequence[str]:
        return self._lines

    def step(self) -> None:
        self._check()
        self._warmup_left -= 1
        if self._warmup_left == 0:  # recording begins with this step
            _finish_earlier_steps()
        with self._listening():
            self._profiler.step()

    def stop(self) -> list[Path]:
        """End the profiler.

        Raises:
            MachineError: it left nothing; torch_npu raises nothing when profiling fails.
        """
        self._check()
        _other_profilers.when_another_npu_begins(None)
        with self._listening():
            self._profiler.stop()
        found = self._found()
        if not any(path.glob("PROF_*") for path in found):
            raise MachineError(
                "torch_npu's profiler left no raw data" + (f": {self._lines[0]}" if self._lines else ""),
                hint="does another profiler (msprof, dynamic profiling) use the device? See its lines in the output",
            )
        return found

    def abandon(self) -> None:
        if self._has_given_way:
            return
        _other_profilers.when_another_npu_begins(None)
        with contextlib.suppress(Exception), self._listening():
            self._profiler.stop()

    def size_bytes(self) -> int:
        return sum(size_of(path) for path in self._found())

    def _give_way(self) -> None:
        self.abandon()
        self._has_given_way = True
        for path in self._found():  # what it holds ends where the other begins
            remove(path)

    def _check(self) -> None:
        if self._has_given_way:
            raise MachineError(_other_profilers.OWN_PROFILER, hint=_other_profilers.OWN_HINT)

    def _found(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._name}_*_ascend_pt"))

    def _config(self, values: dict[str, Any], given: Mapping[str, Any], table: Mapping[str, Any]) -> object:
        """_ExperimentalConfig of these values; what this build does not know is told, or refused when the user gave it.

        Raises:
            MachineError: the build lacks what the user gave.
        """
        known = inspect.signature(self._module._ExperimentalConfig.__init__).parameters
        made: dict[str, Any] = {}
        for name, value in values.items():
            target = name
            if name not in known:
                target = next((old for old in table[name].get("renamed", {}) if old in known), name)
            enum = None if "enum" not in table[name] else getattr(self._module, table[name]["enum"], None)
            parts = value if isinstance(value, tuple) else (value,)
            lacks = target not in known or (
                "enum" in table[name] and not all(hasattr(enum, str(part)) for part in parts)
            )
            if lacks:
                if name in given:
                    raise MachineError(
                        f"this torch_npu has no {name}={value}", hint="leave it out, or update torch_npu"
                    )
                self._notes.append(f"left out: {name}, this torch_npu has it not")
                continue
            if enum is not None:
                members = [getattr(enum, str(part)) for part in parts]
                made[target] = members if isinstance(value, tuple) else members[0]
            else:
                made[target] = list(value) if isinstance(value, tuple) else value
        with self._listening():
            return self._module._ExperimentalConfig(**made)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Keep what the profiler says in this time; it is printed as ever."""
        heard = io.StringIO()
        out: Any = _Tee(sys.stdout, heard)
        errors: Any = _Tee(sys.stderr, heard)
        with (
            _quiet(), _other_profilers.ours(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors)
        ):  # fmt: skip
            yield
        for match in _SAID.finditer(heard.getvalue()):
            if not self._has_schedule and match[2].startswith(_ENDS_WITHOUT_STEPS):
                continue
            if match[2] not in self._lines and len(self._lines) < MAX_SAID:
                self._lines.append(match[2].strip()[:300])


class _Tee:
    """Writes to two places."""

    def __init__(self, first: IO[str] | None, second: IO[str]) -> None:
        self._first, self._second = first, second

    def write(self, text: str) -> int:
        self._second.write(text)
        return len(text) if self._first is None else self._first.write(text)

    def flush(self) -> None:
        if self._first is not None:
            self._first.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of the profiler are not the program's: one that makes errors of warnings would not get its trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _free(folder: Path, name: str, suffix: str) -> Path:
    """A path that is not taken: several processes of one rank (no launcher told theirs) do not overwrite another."""
    path = folder / f"{name}{suffix}"
    return folder / f"{name}-pid{os.getpid()}{suffix}" if path.exists() else path


__all__ = ["Recorder", "explained", "remove", "size_of", "start"]
