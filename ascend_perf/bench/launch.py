"""Run a workload and leave a run directory: start its process, sample it, write the manifest."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from ascend_perf import manifest as manifests
from ascend_perf.bench import figures, series
from ascend_perf.collectors import devices, telemetry
from ascend_perf.errors import AscendPerfError, InputError, MachineError, UsageError
from ascend_perf.model.run import Manifest
from ascend_perf.workloads import _spec

TRACE_FOLDER: Final = "trace"
TELEMETRY_FILE: Final = "telemetry.csv"
SERIES_FILE: Final = "training.jsonl"
TAIL_LINES: Final = 20
"""Lines of a workload that died which are shown."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run, where and how."""

    workload: str
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    with_stack: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Progress: a phase begins (`steps` 0 where it has none), or the device has been chosen."""

    phase: str
    steps: int = 0
    device: devices.SeenDevice | None = None


def default_folder(request: Request, now: datetime) -> Path:
    """runs/<workload>-<preset>-<timestamp> under the current directory."""
    return Path("runs") / f"{request.workload}-{request.preset}-{now:%Y%m%d-%H%M%S}"


def launch(
    request: Request,
    *,
    folder: Path | None = None,
    force: bool = False,
    on_notice: Callable[[Notice], None] = lambda notice: None,
) -> tuple[Path, Manifest]:
    """Run the workload in a process of its own; returns the run directory and its manifest.

    Args:
        folder: the run directory; None makes runs/<workload>-<preset>-<timestamp>.
        force: replace a run directory that is there.
        on_notice: told when a phase begins.

    Raises:
        UsageError: no such workload, preset or setting, or the folder is taken.
        MachineError: torch or another package is absent, the device is not there, or its memory is too small.
    """
    now = datetime.now().astimezone()
    workload = _spec.find_workload(request.workload)
    settings = workload.settings(request.preset, request.overrides)
    _check_packages(workload)
    environment = _environment(request.device)
    with _run_folder(folder or default_folder(request, now), force) as where:
        (where / TRACE_FOLDER).mkdir()
        body = {
            "workload": request.workload,
            "settings": settings.as_dict(),
            "device": request.device,
            "with_stack": request.with_stack,
            "trace_folder": str((where / TRACE_FOLDER).resolve()),
        }
        said, samples = _child(body, environment, on_notice)
        files = {"trace": (f"{TRACE_FOLDER}/{said.measurement['trace_name']}",)}
        notes = list(said.problems)
        if samples:
            telemetry.write_samples(where / TELEMETRY_FILE, samples)
            files["telemetry"] = (TELEMETRY_FILE,)
        else:
            notes.append("no telemetry: psutil is not installed")
        if said.series:
            series.write_series(where / SERIES_FILE, said.series, said.measurement)
            files["series"] = (SERIES_FILE,)
        run = figures.manifest_of(
            said, request_words=_command(request), preset=request.preset, workload=request.workload,
            settings=settings, created=now.isoformat(timespec="seconds"), files=files, notes=tuple(notes),
        )  # fmt: skip
        manifests.write_manifest(where, run)
        return where, run


def _check_packages(workload: _spec.Workload) -> None:
    absent = [name for name in ("torch", *workload.needs) if importlib.util.find_spec(name) is None]
    if absent:
        names = ", ".join({"PIL": "pillow"}.get(name, name) for name in absent)
        raise MachineError(f"{workload.name} needs {names}, not installed here", hint=devices.INSTALL_TORCH)


def _environment(requested: str) -> dict[str, str]:
    """Variables for the process of the workload.

    With torch_npu installed but CANN absent, `import torch` fails. A run on another device must not die of that.

    Raises:
        MachineError: two profilers would share the device, or an NPU was asked for and its back end does not load.
    """
    environment = dict(os.environ)
    if devices.installed_version("torch_npu") is None:
        return environment
    for name in ("PROFILER_SAMPLECONFIG", "PROFILING_MODE"):
        if name in environment and requested in ("auto", "npu"):
            raise MachineError(
                f"{name} is set: this runs under msprof, which shares the device's single profiling channel with us",
                hint="start `ascend-perf run` without msprof",
            )
    if requested in ("cpu", "cuda"):
        return {**environment, devices.AUTOLOAD: "0"}
    inventory = devices.probe()
    if requested == "npu":
        devices.choose("npu", inventory)
    return {**environment, **inventory.environment}


def _command(request: Request) -> tuple[str, ...]:
    words = ["ascend-perf", "run", request.workload, "--preset", request.preset, "--device", request.device]
    for text in request.overrides:
        words += ["--set", text]
    return (*words, *(["--with-stack"] if request.with_stack else []))


@contextmanager
def _run_folder(folder: Path, force: bool) -> Iterator[Path]:
    """A fresh run directory. When the run fails it is removed, and the one that it was to replace is put back."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not force:
            raise UsageError(f"{folder} exists", hint="choose another -o, or replace it with --force")
        if not folder.is_dir() or not manifests.is_run_directory(folder):
            raise UsageError(
                f"{folder} is no run directory of ours (no manifest.json): not replaced", hint="choose another -o"
            )
    before = folder.with_name(f"{folder.name}.before-{os.getpid()}") if folder.exists() else None
    try:
        if before is not None:
            folder.rename(before)
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}", hint="choose another -o") from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if before is not None:
            before.rename(folder)
        raise
    if before is not None:
        shutil.rmtree(before)


def _child(
    body: dict[str, object], environment: dict[str, str], on_notice: Callable[[Notice], None]
) -> tuple[figures.Said, Sequence[telemetry.Sample]]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", "ascend_perf.bench.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdin as stdin:
                json.dump(body, stdin)
            with telemetry.Sampler(process.pid) if telemetry.is_available() else nullcontext() as sampler:
                said = _listen(process.stdout, sampler, on_notice)
            code = process.wait()
        finally:
            if process.poll() is None:  # we were interrupted
                process.kill()
                process.wait()
            process.stdout.close()
        if said is None or code:
            noise.seek(0)
            raise _death(code, noise.read().splitlines()[-TAIL_LINES:])
        return said, sampler.samples if sampler else ()


def _listen(
    lines: IO[str], sampler: telemetry.Sampler | None, on_notice: Callable[[Notice], None]
) -> figures.Said | None:
    device: devices.SeenDevice | None = None
    problems: tuple[str, ...] = ()
    said: figures.Said | None = None
    on_notice(Notice(phase="start"))
    for line in lines:
        message = json.loads(line)
        if message["event"] == "device":
            device, problems = devices.SeenDevice(**message["device"]), tuple(message["problems"])
            on_notice(Notice(phase="device", device=device))
        elif message["event"] == "phase":
            if sampler:
                sampler.phase = message["phase"]
            on_notice(Notice(phase=message["phase"], steps=message["steps"]))
        elif message["event"] == "result":
            assert device is not None
            said = figures.Said(
                device=device,
                problems=problems,
                measurement=message["measurement"],
                program=message["program"],
                threads=message["threads"],
                versions=message["versions"],
                environment=message["environment"],
                series=message["series"],
            )
        else:
            kinds = {kind.exit_code: kind for kind in (UsageError, InputError, MachineError)}
            raise kinds.get(message["exit_code"], AscendPerfError)(message["what"], hint=message["hint"])
    return said


def _death(code: int, tail: Sequence[str]) -> Exception:
    """Why the process ended: killed by the system is the machine's matter, anything else is our bug."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "often too little memory: choose a smaller preset" if name == "SIGKILL" else ""
        lines = "".join(f"\n  {line}" for line in tail[-3:])
        return MachineError(f"the process of the workload was ended by {name}{lines}", hint=hint)
    return RuntimeError("the process of the workload ended with code " + "\n  ".join([str(code), *tail]))
