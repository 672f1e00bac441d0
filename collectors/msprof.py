"""The msprof command line: where it is, its command lines, what its words mean, and what it has left on disk.

Its exit code is not believed: it ends with 0 when the program crashed and when the export failed. The program runs in a
script that keeps its exit code, and what was collected is counted in the file system.

Source: format reference for collectors, sections 1.1 to 1.7. Tested against a stand-in; not yet run on a device.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ascend_perf.errors import UsageError

IN_CANN: Final = Path("tools/profiler/bin/msprof")
SCRIPT: Final = "run.sh"
EXIT_FILE: Final = "exit-code"
BEGAN_FILE: Final = "began"
HELP_TIMEOUT_S: Final = 30
"""`msprof --help` answers at once, or hangs on a driver that does not. Status: assumed."""
EXPORT_FOLDER: Final = "mindstudio_profiler_output"
OWN_CODES: Final = (254, 255)
"""It ends itself with these: an error, and system mode in a container with a slice of an NPU (a warning only)."""
RAW_GONE: Final = "its raw data are gone (exported with --clear=on?): its communication can no longer be summed up"

PROF: Final = re.compile(r"PROF_\d{6}_\d{17}_[0-9A-Z]+")
_REFUSED: Final = re.compile(r"[\x00-\x1f\"'`\\%><|&$;]")
"""Letters that --output does not take."""

ABSENT: Final = "msprof not found"
ABSENT_HINT: Final = (
    'install the CANN toolkit and run "source <CANN>/set_env.sh" (looked in: PATH, $ASCEND_HOME_PATH, '
    "/usr/local/Ascend/cann, /usr/local/Ascend/ascend-toolkit/latest, ~/Ascend)"
)


def find_msprof(variables: Mapping[str, str], roots: Sequence[Path]) -> Path | None:
    """The binary: on the PATH, else below a root of CANN; None where there is none."""
    if found := shutil.which("msprof", path=variables.get("PATH", os.defpath)):
        return Path(found)
    places = (root / IN_CANN for root in roots)
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def help_text(msprof: Path, variables: Mapping[str, str]) -> str | None:
    """What `msprof --help` prints, whatever it ends with; None when it says nothing or does not answer."""
    try:
        done = subprocess.run(
            [str(msprof), "--help"], env=dict(variables), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=HELP_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout.decode("utf-8", "replace")
    return text if "--output" in text else None


def check_output(folder: Path) -> None:
    """That a folder can be given to --output.

    Raises:
        UsageError: its path holds letters that msprof does not take.
    """
    if found := _REFUSED.search(str(folder)):
        raise UsageError(
            f"msprof does not take {found[0]!r} in the path of its output",
            hint="choose another -o, in a folder with plain letters",
        )


def collect_command(
    msprof: str, *, output: str, options: Mapping[str, str], script: str, storage_limit_mb: int | None = None,
    delay_s: int | None = None, duration_s: int | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Words that record a script. Every option is `--name=value`; the first begins with dashes, since a first word that
    begins with `op` starts another tool."""
    words = [msprof, f"--output={output}", *(f"--{name}={value}" for name, value in options.items())]
    if storage_limit_mb is not None:
        words.append(f"--storage-limit={storage_limit_mb}MB")
    if delay_s is not None:
        words.append(f"--delay={delay_s}")
    if duration_s is not None:
        words.append(f"--duration={duration_s}")
    return (*words, "sh", script)


def script_text(command: Sequence[str], exit_file: str, umask: int, *, began_file: str | None = None) -> str:
    """A script that runs the program as it was given and keeps its exit code; the times of `began_file` and of the
    file with the exit code are those of the program's begin and end.

    The words stand in the script, quoted: behind msprof empty ones would be lost. The traps let the script outlive a
    Ctrl-C, so that the code is written; the program itself has none of them.
    """
    return "\n".join((
        "#!/bin/sh",
        f"umask {umask:04o}",
        "trap : INT TERM HUP USR1 USR2",
        *([] if began_file is None else [f": > {shlex.quote(began_file)}"]),
        shlex.join(command),
        "code=$?",
        f"echo $code > {shlex.quote(exit_file)}",
        "exit $code",
        "",
    ))  # fmt: skip


def exit_code_of(path: Path) -> int | None:
    """The code that the script has kept; None: it was not reached."""
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if re.fullmatch(r"\d{1,3}", text) else None


def wall_ns_of(folder: Path) -> int | None:
    """Time that the program of the script took, as fine as the file system's times; None: it was not told."""
    try:
        return (folder / EXIT_FILE).stat().st_mtime_ns - (folder / BEGAN_FILE).stat().st_mtime_ns
    except OSError:
        return None


def prof_folders(output: Path) -> tuple[Path, ...]:
    """The PROF directories, one per process; msprof itself names only the last of them."""
    try:
        return tuple(sorted(path for path in output.iterdir() if path.is_dir() and PROF.fullmatch(path.name)))
    except OSError:
        return ()


@dataclass(frozen=True, kw_only=True)
class State:
    """What a PROF directory holds."""

    devices: int
    """Devices with raw data."""
    host: bool
    """Whether there is raw data of the host."""
    exported: bool
    """Whether there are kernels: op_summary (or task_time, of level l0), or a database."""
    has_timeline: bool


def state_of(prof: Path) -> State:
    """Look at what is there."""
    output = prof / EXPORT_FOLDER

    def has(folder: Path, *patterns: str) -> bool:
        return any(path.stat().st_size > 0 for pattern in patterns for path in folder.glob(pattern))

    return State(
        devices=sum(has(place / "data", "*") for place in prof.glob("device_*")),
        host=has(prof / "host" / "data", "*"),
        exported=has(output, "op_summary_*.csv", "task_time_*.csv") or has(prof, "msprof_*.db"),
        has_timeline=has(output, "msprof_*.json"),
    )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """How one PROF directory came out."""

    name: str
    status: Literal["by msprof", "exported", "failed", "no device data"]
    problem: str = ""


Run = Callable[[Sequence[str]], str]
"""Runs a command and gives what it printed; never fails."""


def export(prof: Path, msprof: str, run: Run, *, python: str | None = None) -> Exported:
    """Export one PROF directory where msprof has not done so itself: its own loop over them stops at the first failure.

    Judged by the files that are there afterwards.
    """
    state = state_of(prof)
    if state.exported:
        return Exported(name=prof.name, status="by msprof")
    if not state.devices:
        return Exported(name=prof.name, status="no device data", problem="this process used no device while recorded")
    said = run(export_command(msprof, str(prof), python))
    if state_of(prof).exported:
        return Exported(name=prof.name, status="exported")
    return Exported(name=prof.name, status="failed", problem=reason(said) or "msprof said nothing and left no table")


def export_command(msprof: str, prof: str, python: str | None = None) -> tuple[str, ...]:
    """Words that export one PROF directory."""
    return (msprof, "--export=on", f"--output={prof}", *([f"--python-path={python}"] if python else []))


def analyze_command(msprof: str, prof: str) -> tuple[str, ...]:
    """Words that sum up the communication of one exported PROF directory."""
    return (msprof, "--analyze=on", f"--output={prof}", "--rule=communication,communication_matrix")


# ---- what msprof says ------------------------------------------------------------------------------------------------

_LINE: Final = re.compile(r"\[(INFO|WARNING|ERROR)\] (.*)|.*?(unrecognized option .*)")
_HARMLESS: Final = re.compile(r"Cannot find msopprof")
"""Said by every call of some releases when ASCEND_TOOLKIT_HOME is not set; the run goes on."""

CURES: Final[tuple[tuple[str, str], ...]] = (
    (r"Failed to find profiling data",
     "the program must use the NPU while it is recorded (aclInit): check --delay, and that it runs on the NPU at all"),
    (r"Init platform by driver failed", "check the driver: `npu-smi info`; in a container, mount its files"),
    (r"unrecognized option", "this msprof does not have that option: leave it out of --option"),
    (r"Argument --\S+: (?:invalid value|expected one argument)", "correct that --option"),
    (r"No analysis script found", "the toolkit is not complete: install the CANN toolkit, not the runtime alone"),
    (r"Analysis script permission denied", "msprof may not run its own parser: chmod +x it, or run as its owner"),
    (r"Not in host side", "copy the PROF directory to a host with CANN and run `msprof --export=on --output=PROF`"),
    (r"System profiling isn't supported in container", "record on the host, or without --option sys-..."),
    (r"Start profiling failed|Running profiling failed",
     "look into ~/ascend/log/debug/plog; is another profiler using the device?"),
    (r"[Nn]o space left", "free disk space: raw data and its export take about 20 times the raw data"),
    (r"libascend\w*\.so|error while loading shared libraries", "source set_env.sh of CANN before this command"),
    (r"Permission denied", "the folder must belong to you: choose another -o"),
)  # fmt: skip
"""What to do about a message of msprof. Source: format reference for collectors, section 1.6."""


def messages(text: str, *levels: str) -> tuple[str, ...]:
    """Messages of some levels in what msprof printed, without those that mean nothing."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or _HARMLESS.search(line):
            continue
        level, words = (match[1], match[2]) if match[1] else ("ERROR", match[3])
        if level in levels:
            found.append(words.strip())
    return tuple(dict.fromkeys(found))


def reason(text: str) -> str:
    """The first error, else the last warning, in what msprof printed; the last line where there is neither."""
    if errors := messages(text, "ERROR"):
        return errors[0]
    if warnings := messages(text, "WARNING"):
        return warnings[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _LINE.match(line)]
    return lines[-1][:300] if lines else ""


def cure(message: str) -> str:
    """The next step for a message; empty where none is known."""
    return next((words for pattern, words in CURES if re.search(pattern, message)), "")
