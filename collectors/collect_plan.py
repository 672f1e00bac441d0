"""What `ascend-perf collect` will do: which collector, which command lines and variables, and what to know of it.

`make_plan` is a function of the request and of facts about the machine; nothing is started and nothing is written.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ascend_perf.collectors import _msprof_options, _torch_options, _vllm, in_process, msprof
from ascend_perf.collectors._ascend_install import cann_roots, device_nodes, find_cann
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors._recorders import TWO_HINT, TWO_PROFILERS, UNDER_MSPROF
from ascend_perf.collectors.devices import AUTOLOAD, INSTALL_TORCH, installed_version
from ascend_perf.collectors.environment import ALLOWED, ALLOWED_PREFIXES
from ascend_perf.device.launch_settings import check_environment
from ascend_perf.errors import MachineError, UsageError

Collector = Literal["msprof", "torch-npu", "torch"]
INJECTED: Final = Path(__file__).parent / "injected"
SETTINGS_FILE: Final = "settings.json"
MIN_LIMIT_MB: Final = 200
MAX_LIMIT_MB: Final = 4294967295
"""What --storage-limit of msprof takes. Source: format reference for collectors, section 1.4."""
MAX_SECONDS: Final = 4294967295
"""Most that --delay and --duration of msprof take. Source: same."""
SAFE_GLIBC: Final = (2, 34)
"""Older ones have a defect of static TLS that can crash torch_npu's parser. Source: same, section 2.5."""
UNTIL_DURATION: Final = 1_000_000
"""Steps to record where a duration ends them."""
LONG_S: Final = 300
"""msprof runs are to be kept shorter than this. Source: format reference for collectors, section 1.6."""

NO_NPU: Final = "no Ascend NPU visible (no /dev/davinci*)"
NO_NPU_HINT: Final = (
    "in a container pass the devices and mount the driver: /dev/davinci*, /dev/davinci_manager, /dev/devmm_svm, "
    "/dev/hisi_hdc, /usr/local/dcmi, /usr/local/Ascend/driver; for a CPU or a GPU take --with torch"
)
_HIDES_WARNINGS: Final = ("TORCH_NPU_DISABLED_WARNING", "TORCH_NPU_WARNING_DISABLE")
_OTHER_PROFILERS: Final[Mapping[str, str]] = {
    "PROF_CONFIG_PATH": "dynamic profiling of torch_npu",
    "MSMONITOR_USE_DAEMON": "the msmonitor daemon",
    "KINETO_USE_DAEMON": "the dynolog daemon",
}
_BINDERS: Final = ("numactl", "taskset")
_LOSES_VARIABLES: Final = ("sudo", "ssh", "docker", "podman", "env")


@dataclass(frozen=True, kw_only=True)
class CollectRequest:
    """What the user asked for. None: not given."""

    command: tuple[str, ...]
    collector: Literal["auto", "msprof", "torch-npu", "torch"] = "auto"
    level: Literal["quick", "standard", "deep"] = "standard"
    options: Mapping[str, str] = field(default_factory=dict)
    storage_limit_bytes: int | None = None
    delay_s: int | None = None
    duration_s: int | None = None
    ranks: tuple[int, ...] | None = None
    """None: all."""
    skip: int | None = None
    warmup: int | None = None
    steps: int | None = None
    wait: int | None = None
    repeat: int | None = None
    step_of: in_process.StepOf | None = None
    soc: str | None = None
    python: str | None = None
    """Python that runs the parser of msprof."""
    measures_overhead: bool = False
    """Run the command once more before, without the collector, and compare."""


@dataclass(frozen=True, kw_only=True)
class Here:
    """What is here, as far as a plan depends on it."""

    variables: Mapping[str, str]
    has_npu: bool
    msprof: Path | None = None
    msprof_help: str | None = None
    cann_version: str | None = None
    has_cann: bool = False
    torch_version: str | None = None
    torch_npu_version: str | None = None
    vllm_ascend_version: str | None = None
    glibc: str | None = None
    is_virtual: bool = False
    """The command will run on virtual NPUs."""


def facts_here() -> Here:
    """The facts of this machine. Asks msprof for its options, imports nothing."""
    machine = Machine()
    variables, cann = dict(machine.environment), find_cann(machine)
    found = msprof.find_msprof(variables, cann_roots(machine))
    return Here(
        variables=variables,
        has_npu=bool(device_nodes(machine)),
        msprof=found,
        msprof_help=None if found is None else msprof.help_text(found, variables),
        cann_version=None if cann is None else cann.version,
        has_cann=cann is not None,
        torch_version=installed_version("torch"),
        torch_npu_version=installed_version("torch_npu"),
        vllm_ascend_version=installed_version("vllm_ascend"),
        glibc=platform.libc_ver()[1] if platform.libc_ver()[0] == "glibc" else None,
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Exact command lines and variables."""

    collector: Collector
    why: str
    """Why this collector; empty when the user chose it."""
    words: tuple[str, ...]
    """What is started."""
    set_variables: Mapping[str, str]
    unset_variables: tuple[str, ...] = ()
    settings: in_process.Settings | None = None
    """Of the collectors inside the process."""
    measures_overhead: bool = False
    """The command runs once more before, without the collector."""
    timing: in_process.Settings | None = None
    """Of the hook that times steps and records nothing, under msprof."""
    options: Mapping[str, object] = field(default_factory=dict)
    """All options of the profiler, those of the level too."""
    script: str | None = None
    """The script that msprof records."""
    after: tuple[tuple[str, ...], ...] = ()
    """What follows, for each of the places named in it."""
    notes: tuple[str, ...] = ()

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """All variables of the command."""
        kept = {name: value for name, value in variables.items() if name not in self.unset_variables}
        return {**kept, **self.set_variables}


def make_plan(request: CollectRequest, here: Here, folder: Path, *, umask: int = 0o022) -> Plan:
    """The plan for a run directory.

    Raises:
        UsageError: the command or an option cannot work, with what to write instead.
        MachineError: something is missing here, or another profiler is in the way.
    """
    _check_command(request, here)
    collector, why = _chosen(request, here)
    notes: list[str] = []
    if collector != "torch":
        _check_other_profilers(here.variables)
        notes += _spoilers(here.variables)
    if "--profile" in request.command:
        notes.append("the command has --profile: a profiler of its own would be in the way, leave it out")
    notes += _vllm.notes_of(request.command, here.variables, here.vllm_ascend_version)
    bound = next((word for word in request.command[:3] if Path(word).name in _BINDERS), None)
    if bound is not None and here.variables.get("CPU_AFFINITY_CONF", "0")[:1] in ("1", "2"):
        notes.append(f"{Path(bound).name} binds the program, and CPU_AFFINITY_CONF is skipped then: take one of them")
    if collector == "msprof":
        return _msprof_plan(request, here, folder, why, notes, umask)
    return _in_process_plan(request, here, folder, collector, why, notes)


def _chosen(request: CollectRequest, here: Here) -> tuple[Collector, str]:
    """The collector, and why `auto` takes it.

    Raises:
        MachineError: the one that the user chose is not here.
    """
    if request.collector == "msprof":
        if here.msprof is None:
            raise MachineError(msprof.ABSENT, hint=msprof.ABSENT_HINT)
        return "msprof", ""
    if request.collector == "torch-npu":
        if here.is_virtual and here.torch_version is None:  # torch_npu comes with the virtual device
            raise MachineError("torch is not installed in this Python", hint=INSTALL_TORCH)
        if here.torch_npu_version is None:
            raise MachineError(
                "torch_npu is not installed in this Python",
                hint="pip install torch_npu in the version of your torch; or --with msprof, or --with torch",
            )
        if not here.has_cann:
            raise MachineError(
                "torch_npu is installed, but CANN is missing: `import torch` would fail",
                hint="install the CANN toolkit, then: source <CANN>/set_env.sh",
            )
        if not here.has_npu:
            raise MachineError(NO_NPU, hint=NO_NPU_HINT)
        return "torch-npu", ""
    if request.collector == "torch":
        return "torch", ""
    if not here.has_npu:
        return "torch", NO_NPU
    if here.torch_npu_version is not None and here.has_cann:
        return "torch-npu", "an NPU and torch_npu are here: operators, stacks and steps come with it"
    lacks = "torch_npu is not installed in this Python" if here.torch_npu_version is None else "CANN is not found"
    if here.msprof is not None:
        return "msprof", f"{lacks}: msprof records the device without the framework"
    return "torch", f"{lacks}, {msprof.ABSENT}: only the host is recorded"


def _check_command(request: CollectRequest, here: Here) -> None:
    command, variables = request.command, here.variables
    if not command:
        raise UsageError("no command given", hint="ascend-perf collect -- python train.py")
    if any("\0" in word for word in command):
        raise UsageError("the command holds a zero byte")
    names = [Path(word).name for word in command]
    if names[0] in ("msprof", "ascend-perf", "nsys"):
        raise UsageError(
            f"the command is {names[0]} itself", hint="give the program alone: ascend-perf collect -- python train.py"
        )
    if "msprof" in names or ("ascend-perf" in names and "collect" in names):
        raise UsageError(
            "the command starts a profiler for each process",
            hint="wrap the launcher once: ascend-perf collect -- torchrun --nproc-per-node 8 train.py",
        )
    for size, per in (("LOCAL_WORLD_SIZE", "LOCAL_RANK"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
                      ("SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID")):  # fmt: skip
        found = re.match(r"\d+", variables.get(size, ""))
        if found and int(found[0]) > 1 and per in variables:
            raise UsageError(
                f"this is process {variables[per]} of {found[0]} of a job ({per} is set): it would be wrapped once per "
                "rank",
                hint="wrap the launcher once: ascend-perf collect -- torchrun --nproc-per-node 8 train.py",
            )


def _check_other_profilers(variables: Mapping[str, str]) -> None:
    """Only one profiler can use a device.

    Raises:
        MachineError: another one would start as well.
    """
    if any(variables.get(name) for name in UNDER_MSPROF):
        raise MachineError(TWO_PROFILERS, hint=TWO_HINT)
    for name, what in _OTHER_PROFILERS.items():
        if variables.get(name, "0") not in ("", "0"):
            raise MachineError(f"{name} is set: {what} would use the device's profiling channel", hint=f"unset {name}")
    if "libmspti" in variables.get("LD_PRELOAD", ""):
        raise MachineError(
            "LD_PRELOAD names libmspti: its monitors would use the device's profiling channel", hint="unset LD_PRELOAD"
        )


def _spoilers(variables: Mapping[str, str]) -> list[str]:
    """Variables that spoil what is recorded."""
    notes = []
    if "ASCEND_RT_VISIBLE_DEVICES" in variables:
        notes.append(
            "ASCEND_RT_VISIBLE_DEVICES is set: it is documented as unsupported with profiling, choose devices by an "
            "argument of the program or in the container"
        )
    relevant = {
        name: value for name, value in variables.items()
        if (name in ALLOWED or name.startswith(ALLOWED_PREFIXES)) and name != "ASCEND_RT_VISIBLE_DEVICES"
    }  # fmt: skip
    return [*notes, *(str(problem) for problem in check_environment(relevant, "npu"))]


def _msprof_plan(
    request: CollectRequest, here: Here, folder: Path, why: str, notes: list[str], umask: int
) -> Plan:
    assert here.msprof is not None
    for name, value in (
        ("--ranks", request.ranks), ("--skip", request.skip), ("--warmup", request.warmup), ("--steps", request.steps),
        ("--wait", request.wait), ("--repeat", request.repeat), ("--step-of", request.step_of),
    ):  # fmt: skip
        if value is not None:
            raise UsageError(
                f"{name}: msprof knows neither steps nor ranks, it would be ignored",
                hint="use --delay and --duration; or --with torch-npu",
            )
    for name, seconds in (("--delay", request.delay_s), ("--duration", request.duration_s)):
        if seconds is not None and seconds > MAX_SECONDS:
            raise UsageError(f"{name} {seconds}: msprof takes 1 to {MAX_SECONDS} seconds", hint="write seconds")
    msprof.check_output(folder)
    limit_mb = _limit_mb(request.storage_limit_bytes)
    series = None if request.soc is None else _msprof_options.series_of(request.soc)
    if request.soc is not None and series is None:
        raise UsageError(f"--soc {request.soc} is no SoC that we know", hint="as npu-smi info shows it: Ascend910B2")
    chosen = _msprof_options.choose(
        request.level, request.options, help_text=here.msprof_help, series=series
    )
    notes += chosen.notes
    if not here.has_npu:
        notes.append(f"{NO_NPU}: msprof will find no data unless the program runs elsewhere")
    if "ASCEND_HOME_PATH" not in here.variables:
        notes.append(
            "ASCEND_HOME_PATH is not set: source set_env.sh of CANN, or the program will not find its libraries"
        )
    if request.duration_s is None:
        notes.append(f"no --duration: msprof is documented for runs shorter than {LONG_S // 60} minutes")
    inside = folder / in_process.TOLD_FOLDER
    program = str(here.msprof)
    python = request.python
    # Its output goes through us: without this a program would show its lines at its end only.
    variables = {"PYTHONUNBUFFERED": "1"}
    measures = request.measures_overhead
    if measures:
        variables |= _hooked(here.variables, inside / SETTINGS_FILE)
    return Plan(
        collector="msprof", why=why,
        words=msprof.collect_command(
            program, output=str(folder / in_process.TRACE_FOLDER), options=chosen.options,
            script=str(inside / msprof.SCRIPT), storage_limit_mb=limit_mb, delay_s=request.delay_s,
            duration_s=request.duration_s,
        ),
        script=msprof.script_text(
            request.command, str(inside / msprof.EXIT_FILE), umask,
            began_file=str(inside / msprof.BEGAN_FILE) if measures else None,
        ),
        set_variables=variables,
        unset_variables=tuple(name for name in (in_process.VARIABLE,) if name in here.variables and not measures),
        measures_overhead=measures, timing=in_process.Settings(folder=str(folder), ranks=()) if measures else None,
        options=chosen.options,
        after=(msprof.export_command(program, "PROF_*", python), msprof.analyze_command(program, "PROF_*")),
        notes=tuple(notes),
    )  # fmt: skip


def _in_process_plan(
    request: CollectRequest, here: Here, folder: Path, collector: Literal["torch-npu", "torch"], why: str,
    notes: list[str],
) -> Plan:  # fmt: skip
    _check_python(request.command)
    if request.soc is not None:
        raise UsageError("--soc is of msprof only", hint="leave it out")
    if request.python is not None:
        raise UsageError("--python is of msprof only", hint="leave it out")
    if request.step_of == "process":
        for name, value in (("--skip", request.skip), ("--warmup", request.warmup), ("--steps", request.steps),
                            ("--delay", request.delay_s), ("--duration", request.duration_s)):  # fmt: skip
            if value is not None:
                raise UsageError(f"{name} has no effect with --step-of process: it records from start to end")
    release = None
    if collector == "torch-npu" and here.torch_npu_version is not None:
        release = _torch_options.release_of(here.torch_npu_version)
        if release is None and not here.is_virtual:  # a wheel that we fetched is newer than the table
            notes.append(
                f"torch_npu {here.torch_npu_version} is not in our table of releases: its options are checked when "
                "recording begins"
            )
    chosen = _torch_options.choose(collector, request.level, request.options, release=release)
    notes += chosen.notes
    if collector == "torch-npu" and chosen.values.get("profile_memory"):
        found = re.match(r"(\d+)\.(\d+)", here.glibc or "")
        if found and (int(found[1]), int(found[2])) < SAFE_GLIBC:
            safe = ".".join(map(str, SAFE_GLIBC))
            notes.append(
                f"glibc {here.glibc} is older than {safe}: the parser of torch_npu may crash on memory data, then add "
                "--option profile_memory=false"
            )
    defaults = in_process.Settings(folder="")
    settings = in_process.Settings(
        folder=str(folder), backend=collector, level=request.level, options=request.options, ranks=request.ranks,
        skip=_given(request.skip, defaults.skip), warmup=_given(request.warmup, defaults.warmup),
        active=_given(request.steps, defaults.active if request.duration_s is None else UNTIL_DURATION),
        wait=_given(request.wait, defaults.wait), repeat=_given(request.repeat, defaults.repeat),
        delay_s=request.delay_s or 0, duration_s=request.duration_s,
        step_of=request.step_of or "auto", storage_limit_bytes=request.storage_limit_bytes,
    )  # fmt: skip
    variables = _hooked(here.variables, folder / in_process.TOLD_FOLDER / SETTINGS_FILE)
    if request.measures_overhead:
        variables["PYTHONUNBUFFERED"] = "1"  # its output goes through us
    if collector == "torch" and here.torch_npu_version is not None and not (here.has_npu and here.has_cann):
        variables[AUTOLOAD] = "0"
        notes.append(f"{AUTOLOAD}=0 is set: torch_npu is installed here, and without CANN `import torch` would fail")
    if Path(request.command[0]).name in _LOSES_VARIABLES[:-1]:
        notes.append(
            f"{Path(request.command[0]).name} does not hand variables on: start `ascend-perf collect` inside of it"
        )
    after = (
        (("python", "-m", "ascend_perf.collectors.npu_analysis", "*_ascend_pt"),) if collector == "torch-npu" else ()
    )
    return Plan(
        collector=collector, why=why, words=request.command, set_variables=variables,
        measures_overhead=request.measures_overhead,
        unset_variables=tuple(name for name in _HIDES_WARNINGS if name in here.variables), settings=settings,
        options=chosen.values, after=after, notes=tuple(notes),
    )  # fmt: skip


def _hooked(variables: Mapping[str, str], settings: Path) -> dict[str, str]:
    """Variables that load our hook into each Python process of the command."""
    path = os.pathsep.join(filter(None, (str(INJECTED), variables.get("PYTHONPATH"))))
    return {in_process.VARIABLE: str(settings), "PYTHONPATH": path}


def _check_python(command: tuple[str, ...]) -> None:
    """A Python that ignores PYTHONPATH would load no hook, and nothing would be recorded.

    Raises:
        UsageError: it is started with -E, -I or -S.
    """
    if not re.fullmatch(r"(?:python|pypy)[\d.]*", Path(command[0]).name):
        return
    for word in command[1:]:
        if not re.fullmatch(r"-[A-Za-z]+", word) or word in ("-m", "-c"):
            return
        if bad := re.search(r"[EIS]", word.split("W")[0].split("X")[0]):
            raise UsageError(
                f"python -{bad[0]} ignores PYTHONPATH or sitecustomize: nothing could be recorded",
                hint=f"leave -{bad[0]} out, or call ascend_perf.hooks.profile in the program",
            )


def _limit_mb(limit_bytes: int | None) -> int | None:
    if limit_bytes is None:
        return None
    limit_mb = limit_bytes // 10**6
    if not MIN_LIMIT_MB <= limit_mb <= MAX_LIMIT_MB:
        raise UsageError(
            f"--storage-limit of {limit_mb} MB: msprof takes {MIN_LIMIT_MB} to {MAX_LIMIT_MB} MB", hint="give 2GB"
        )
    return limit_mb


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
