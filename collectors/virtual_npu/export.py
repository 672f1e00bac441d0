"""From the record of a virtual NPU to a profile: `*_ascend_pt` folders as torch_npu's own analysis writes them.

The host's part of a profile (FRAMEWORK) is real: torch_npu's profiler recorded it while it ran on the virtual device.
The device's part is what CANN would have recorded and `msprof` would have exported; it is made here from the record,
and a stand-in `msprof` command hands it to the analysis of torch_npu, which runs unchanged. Everything says that it is
simulated: names of folders, profiler_info, profiler_metadata, the database and the timeline.

    record, *_ascend_pt/FRAMEWORK  ->  PROF_*_SIMULATED*/ (staged files)  ->  analyse()  ->  ASCEND_PROFILER_OUTPUT/
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from ascend_perf.collectors.virtual_npu._export_capture import Capture, capture_of, captures_of
from ascend_perf.collectors.virtual_npu._export_comm import write_communication
from ascend_perf.collectors.virtual_npu._export_counters import Chip, counters_of
from ascend_perf.collectors.virtual_npu._export_db import write_database
from ascend_perf.collectors.virtual_npu._export_tasks import tasks_of
from ascend_perf.collectors.virtual_npu._export_text import write_tables
from ascend_perf.collectors.virtual_npu._export_trace import write_trace
from ascend_perf.collectors.virtual_npu.environment import VARIABLE
from ascend_perf.collectors.virtual_npu.record import Record
from ascend_perf.device.specs import DeviceSpec, spec_for
from ascend_perf.errors import InputError, MachineError
from ascend_perf.model.trace import Device

MARK: Final = "SIMULATED"
"""Stands in the name of every folder of an export."""

PRESERVED: Final = (
    "operators that were launched with their shapes, types, streams and times on the host, host trace of PyTorch, "
    "memory of the allocator, groups and sizes of collectives"
)
MODELLED: Final = (
    "durations on the device, waiting between ranks, kernels behind a call, blocks, PMU counters, links and link times "
    "of collectives, lengths of launches on the host"
)
"""What in an export is real and what is a model: stands in its metadata."""

ANALYSIS_TIMEOUT_S: Final = 3600
_FOLDER: Final = re.compile(r".+_ascend_pt")
_DIGITS: Final = "00000000000000000"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """One exported profile."""

    folder: Path
    rank: int
    begin_ns: int
    """Of the capture, since the epoch."""
    end_ns: int


def export(
    records: Sequence[Record],
    traces: Path,
    variables: Mapping[str, str],
    *,
    python: Path | str = sys.executable,
    soc: str | None = None,
    on_problem: Callable[[InputError], None] | None = None,
) -> list[Exported]:
    """Make profiles of what torch_npu's profiler left in `traces` while the records were made.

    Args:
        records: of all processes of the job, see `record.read_folder`.
        traces: a `*_ascend_pt` folder, or one that holds such folders. They are changed in place and renamed.
        variables: environment of the children (`environment.variables`), so that torch_npu can be imported.
        python: interpreter with the torch that the children used.
        soc: chip whose cores and clock the counters take; that of the records when None.
        on_problem: told of a folder that cannot be exported, whose host's part is marked as simulated then, and the
            others are exported; None: such a folder is an error.

    Returns:
        One entry per folder that was exported, in the order of rank and time.

    Raises:
        InputError: there is nothing to export, a record does not fit, or nothing was launched while it was recorded.
        MachineError: the analysis of torch_npu did not come to its end, or a file cannot be written.
    """
    folders = _unanalysed(traces)
    if not folders:
        raise InputError(
            f"{traces} holds no profile of torch_npu (*_ascend_pt with FRAMEWORK)",
            hint="profile with torch_npu.profiler and tensorboard_trace_handler(folder, analyse_flag=False)",
        )
    captures = []
    for folder in folders:
        try:
            captures.append((folder, *_capture_for(folder, records)))
        except InputError as error:
            if on_problem is None:
                raise
            mark_profile(folder)
            _clean_logs(_renamed(folder))
            on_problem(error)
    marked: list[Exported] = []
    if not captures:
        return marked
    try:
        with _stand_in() as (staging, search_path):
            for folder, capture, level in captures:
                named = _mark(folder, capture)
                marked.append(
                    Exported(folder=named, rank=capture.rank, begin_ns=capture.begin_ns, end_ns=capture.end_ns)
                )
                stage(staging / _raw_folder(named, capture).name, capture, level=level, soc=soc)
            _analyse([one.folder for one in marked], variables, search_path, Path(python))
        for one in marked:
            _check(one.folder)
            _clean_logs(one.folder)
    except (OSError, sqlite3.Error) as error:
        _forget(marked)
        told = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MachineError(
            f"the profile cannot be written: {told}", hint="is there space, also for temporary files?"
        ) from None
    except MachineError:
        _forget(marked)
        raise
    return sorted(marked, key=lambda one: (one.rank, one.begin_ns))


def _forget(marked: Sequence[Exported]) -> None:
    """Remove what was made of profiles that failed: they hold the host's part alone, and can be exported again."""
    for one in marked:
        _clean_logs(one.folder)
        for place in one.folder.glob(f"PROF_*_{MARK}*"):
            shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Level:
    """What the profiler was asked for."""

    number: int = 1
    has_counters: bool = True
    """PipeUtilization; other metrics are not modelled."""


def stage(folder: Path, capture: Capture, *, level: Level, soc: str | None = None) -> None:
    """Write all that `msprof` would export of a capture.

    Args:
        folder: is made; gets mindstudio_profiler_output/, analyze/ and msprof_*.db.
        capture: see `capture_of`.
        level: of the profiler.
        soc: chip of the counters; that of the capture when None.
    """
    chip = chip_of(soc or capture.soc)
    tasks = tasks_of(capture, cube_cores=chip.cube_cores, vector_cores=chip.vector_cores)
    counters = counters_of(tasks, chip) if level.has_counters and level.number > 0 else None
    stamp = _DIGITS[:14]
    output = folder / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    is_level0 = level.number == 0
    write_tables(output, stamp, tasks, counters, is_level0=is_level0)
    write_trace(output / f"msprof_{stamp}.json", tasks, frequency_hz=chip.frequency_hz, is_level0=is_level0)
    write_database(
        folder / f"msprof_{stamp}.db", tasks, counters, device_name=f"{capture.soc} (virtual)",
        frequency_hz=chip.frequency_hz, is_level0=is_level0,
    )  # fmt: skip
    if not is_level0:
        (folder / "analyze").mkdir()
        write_communication(folder / "analyze", tasks)


def chip_of(soc: str) -> Chip:
    """Cores and clock of a chip.

    Raises:
        InputError: the device table does not know them.
    """
    spec: DeviceSpec | None = spec_for(Device(kind="npu", name=soc))
    if spec is None or spec.cube_cores is None or spec.vector_cores is None or spec.frequency_hz is None:
        raise InputError(f"cores and clock of {soc!r} are not in the device table", hint="take a chip that it knows")
    return Chip(cube_cores=spec.cube_cores, vector_cores=spec.vector_cores, frequency_hz=spec.frequency_hz)


# ---- folders -----------------------------------------------------------------------------------------------------


def _unanalysed(traces: Path) -> list[Path]:
    """Profiles that have the host's part and no device data yet."""
    candidates = [traces] if _FOLDER.fullmatch(traces.name) else sorted(p for p in traces.iterdir() if p.is_dir())
    return [
        folder for folder in candidates
        if _FOLDER.fullmatch(folder.name) and (folder / "FRAMEWORK").is_dir() and not any(folder.glob("PROF_*"))
    ]  # fmt: skip


def _capture_for(folder: Path, records: Sequence[Record]) -> tuple[Capture, Level]:
    """The capture that wrote a folder: the profiler told the device its path."""
    name = folder.name.removeprefix(f"{MARK}_")
    for record in records:
        for place, begin, end in captures_of(record):
            if Path(place).name == name:
                level, capture = _level_of(folder), capture_of(record, begin, end)
                if not len(capture.launches["def"]) and not len(capture.collective_launches["def"]):
                    raise InputError(
                        f"{folder.name}: nothing was launched on the device while it was recorded",
                        hint="did the program end, or fail, when recording began? record earlier steps",
                    )
                return capture, level
    raise InputError(
        f"{folder.name}: no record of a virtual NPU has this profile",
        hint="give the folder of the records of the same run",
    )


def _level_of(folder: Path) -> Level:
    """Level and metrics by profiler_info*.json."""
    info = _json(_info_file(folder))
    config = info.get("config")
    experimental = config.get("experimental_config") if isinstance(config, dict) else None
    told = experimental if isinstance(experimental, dict) else {}
    digits = re.search(r"Level(\d)", str(told.get("_profiler_level", "")))
    metrics = told.get("_aic_metrics", "ACL_AICORE_NONE")
    return Level(number=int(digits[1]) if digits else 0, has_counters=metrics == "ACL_AICORE_PIPE_UTILIZATION")


def _info_file(folder: Path) -> Path:
    files = sorted(folder.glob("profiler_info*.json"))
    if not files:
        raise InputError(f"{folder.name} has no profiler_info.json: the profiler did not come to its end")
    return files[0]


def _json(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path.name} is no JSON object")
    return document


def _mark(folder: Path, capture: Capture) -> Path:
    """Say in the folder's name and in its two files of facts that it is simulated; returns its new path."""
    facts = {
        "data_origin": "simulated",
        "simulation": {"device": f"{capture.soc} (virtual)", "real": PRESERVED, "modelled": MODELLED},
    }
    metadata = folder / "profiler_metadata.json"
    for path in (_info_file(folder), metadata):
        document = _json(path) if path.exists() else {}
        _replace(path, json.dumps({**document, **facts}, indent=4, ensure_ascii=False))
    return _renamed(folder)


def mark_profile(folder: Path) -> None:
    """Say in the files of facts of a profile that is not exported that it is simulated, as far as they can be read."""
    for path in (*folder.glob("profiler_info*.json"), folder / "profiler_metadata.json"):
        try:
            document = _json(path) if path.exists() else {}
        except InputError:
            continue
        _replace(path, json.dumps({**document, "data_origin": "simulated"}, indent=4, ensure_ascii=False))


def profile_folders(records: Sequence[Record]) -> list[Path]:
    """Where torch_npu's profiler wrote while the records were made."""
    return [Path(place) for record in records for place, _, _ in captures_of(record)]


def _clean_logs(folder: Path) -> None:
    """Take the path of the folder out of the logs of the analysis: profiles are handed on."""
    here = f"{folder.resolve().parent}{os.sep}".encode()
    for path in (folder / "logs").glob("*.log"):
        content = path.read_bytes()
        if here in content:
            path.write_bytes(content.replace(here, b""))


def _renamed(folder: Path) -> Path:
    if folder.name.startswith(MARK):
        return folder
    target = folder.with_name(f"{MARK}_{folder.name}")
    folder.rename(target)
    return target


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, "utf-8")
    part.replace(path)


def _raw_folder(folder: Path, capture: Capture) -> Path:
    """The PROF_* folder with what the analysis reads before it asks msprof: clocks, device, chip."""
    began = datetime.fromtimestamp(capture.begin_ns / 1e9, timezone.utc)
    stamp = f"{began:%Y%m%d%H%M%S}{began.microsecond // 1000:03d}"
    prof = folder / f"PROF_{1:06d}_{stamp}_{MARK}RANK{capture.rank}"
    device = prof / f"device_{capture.device_id}"
    for place in (prof / "host" / "data", device / "data"):
        place.mkdir(parents=True)
    # A whole microsecond, so that the offset of the clocks keeps its nanoseconds.
    begin_us = capture.begin_ns // 1000
    start = {
        "collectionTimeBegin": str(begin_us), "clockMonotonicRaw": str(begin_us * 1000 - capture.offset_ns),
        "collectionDateBegin": f"{began:%Y-%m-%d %H:%M:%S.%f}",
    }  # fmt: skip
    end = {
        "collectionTimeEnd": str(capture.end_ns // 1000), "clockMonotonicRaw": str(capture.end_ns - capture.offset_ns),
    }  # fmt: skip
    info = _info(folder, capture)
    for path, document in (
        (prof / "host" / "start_info", start), (prof / "host" / "end_info", end), (prof / "host" / "info.json", info),
        (device / f"start_info.{capture.device_id}", start), (device / f"end_info.{capture.device_id}", end),
        (device / f"info.json.{capture.device_id}", info),
    ):  # fmt: skip
        path.write_text(json.dumps(document), "utf-8")
    return prof


def _info(folder: Path, capture: Capture) -> dict[str, object]:
    chip = chip_of(capture.soc)
    started = _json(_info_file(folder)).get("start_info")
    counter = started.get("freq", 100) if isinstance(started, dict) else 100
    mhz = f"{chip.frequency_hz / 1e6:.6f}"
    return {
        "data_origin": "simulated", "hostUid": "0", "hostname": "simulated", "pid": str(capture.pid),
        "devices": str(capture.device_id), "rank_id": capture.rank, "platform_version": "5", "version": "1.0",
        "CPU": [{"Id": 0, "Name": "simulated", "Frequency": str(counter), "Type": "simulated"}],
        "DeviceInfo": [
            {"id": capture.device_id, "ai_core_num": chip.cube_cores, "aiv_num": chip.vector_cores,
             "aic_frequency": mhz, "aiv_frequency": mhz, "hwts_frequency": "50.000000"}
        ],
    }  # fmt: skip


# ---- the analysis of torch_npu -----------------------------------------------------------------------------------

_SCRIPT: Final = """\
#!/bin/sh
# Stand-in for the msprof command of CANN: gives out what was staged beforehand for a folder.
staging={staging}
what=
type=text
for word in "$@"; do
    case "$word" in
    --help) echo "--type  text(which will also export the database) or db"; exit 0 ;;
    --output=*) output=${{word#--output=}} ;;
    --type=db) type=db ;;
    --export=on) what=export ;;
    --analyze=on) what=analyze ;;
    esac
done
from="$staging/$(basename "$output")"
[ -d "$from" ] || {{ echo "nothing was staged for $output" >&2; exit 1; }}
set -e
if [ "$what" = export ]; then
    for file in "$from"/msprof_*.db; do
        cp "$file" "$output/.part"
        mv "$output/.part" "$output/$(basename "$file")"
    done
    if [ "$type" = db ]; then sleep "${{{linger}:-1}}"; exit 0; fi
    rm -rf "$output/.part" "$output/mindstudio_profiler_output"
    cp -r "$from/mindstudio_profiler_output" "$output/.part"
    mv "$output/.part" "$output/mindstudio_profiler_output"
    sleep "${{{linger}:-1}}"
elif [ "$what" = analyze ] && [ -d "$from/analyze" ]; then
    mkdir -p "$output/analyze"
    cp -r "$from/analyze/." "$output/analyze/"
fi
"""
"""The analysis polls for the first .csv or the .db, so each appears in one step. It must see them before the command
ends, too: it gives up when nothing but its polling is left to do. The real msprof is busy for seconds behind them."""

LINGER: Final = "ASCEND_PERF_MSPROF_LINGER"
"""Seconds that the stand-in stays behind its last file."""
LINGERS: Final = ("1", "5", "30")
"""Tried one after another: a loaded machine may poll late."""
_NOT_SEEN: Final = "Task [CANNTimelineParser] run failed"

_ANALYSE: Final = """\
import sys
from torch_npu.profiler.profiler import analyse
for folder in sys.argv[1:]:
    analyse(folder)
"""


@contextmanager
def _stand_in() -> Iterator[tuple[Path, str]]:
    """A staging folder, and a PATH on which the stand-in `msprof` of that folder comes first."""
    with tempfile.TemporaryDirectory(prefix="ascend-perf-") as name:
        root = Path(name).resolve()
        # torch_npu looks for msprof.py beside the command, under what stands before "tools" in its path.
        if "tools" in str(root):
            raise MachineError(
                f"the folder for temporary files ({root}) has 'tools' in its name: torch_npu's analysis trips over it",
                hint="set TMPDIR to another folder",
            )
        profiler = root / "cann" / "tools" / "profiler"
        script = profiler / "bin" / "msprof"
        marker = profiler / "profiler_tool" / "analysis" / "msprof" / "msprof.py"
        for path in (script, marker):
            path.parent.mkdir(parents=True)
        marker.touch()
        staging = root / "staging"
        staging.mkdir()
        script.write_text(_SCRIPT.format(staging=shlex.quote(str(staging)), linger=LINGER), "utf-8")
        script.chmod(0o755)
        yield staging, str(script.parent)


def _analyse(folders: Sequence[Path], variables: Mapping[str, str], search_path: str, python: Path) -> None:
    """Run torch_npu's analysis over the folders in a process of its own.

    Raises:
        MachineError: it failed.
    """
    child = {**os.environ, **variables}
    child.pop(VARIABLE, None)  # no virtual NPU for the analysis: it would write to the record
    child["PATH"] = os.pathsep.join((search_path, child.get("PATH", os.defpath)))
    parents = {folder.parent for folder in folders}
    # One call for all ranks shares the workers; not where folders of others lie beside them.
    alone = len(parents) == 1 and {*folders} == {
        place for place in next(iter(parents)).iterdir() if place.is_dir() and (place / "FRAMEWORK").is_dir()
    }
    targets = [next(iter(parents))] if alone else list(folders)
    for linger in LINGERS:
        try:
            done = subprocess.run(
                [str(python), "-c", _ANALYSE, *map(str, targets)], env={**child, LINGER: linger}, capture_output=True,
                text=True, errors="replace", timeout=ANALYSIS_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MachineError(f"the analysis of torch_npu took over {ANALYSIS_TIMEOUT_S} s") from None
        except OSError as error:
            raise MachineError(f"{python} cannot be started: {error.strerror or error}") from None
        if _NOT_SEEN not in done.stdout:
            break
    problems = [line for line in done.stdout.splitlines() if "[ERROR]" in line]
    if done.returncode or problems:
        told = problems or done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise MachineError(f"the analysis of torch_npu failed: {_said(told[0])}")


def _said(line: str) -> str:
    """A line of the analysis without its head, and without the path of its logs."""
    line = re.sub(r"^[^\w\[]*(?:\[[^\]]*\] ?)*(?:\w+\.py: )?", "", line.strip())
    return re.sub(r"\s*For details, please check the logs at:.*", "", line)[:300]


def _check(folder: Path) -> None:
    """That the analysis came to its end for a folder."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    if not (output / "analyse.done").exists():
        raise MachineError(f"the analysis of torch_npu left {folder.name} without a result", hint="see its logs folder")
