"""Writes small exports of msprof as the format reference describes them. Figures follow from the row number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ascend_perf.model.trace import Trace
from ascend_perf.parsers import msprof
from ascend_perf.parsers.discover import find_units
from tests.parsers._ascend_profile import EPOCH_US, DatabaseWriter, Generation, csv_text, kernel_row, stamp

PROF = "PROF_000001_20260528000000000_ABCDEFGHIJKLMNOP"
STAMP = "20260528120000"
NEWER = "20260529090000"

ALIASES = {
    "Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type", "Start Time(us)": "Task Start Time(us)",
    "Duration(us)": "Task Duration(us)", "Wait Time(us)": "Task Wait Time(us)",
}  # fmt: skip
SHAPES = (
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
)  # fmt: skip
PIPE = ("aicore_time(us)", "aic_total_cycles", "aic_mac_ratio", "aiv_time(us)", "aiv_total_cycles", "aiv_vec_ratio")


def summary_header(generation: Generation) -> list[str]:
    """Columns of op_summary."""
    names = ["Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type"]
    names += ["Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)"]
    names += ["Block Num", "Mix Block Num"] if generation == "G4" else ["Block Dim", "Mix Block Dim"]
    names += ["HF32 Eligible", *SHAPES, "Context ID", *PIPE]
    if generation == "G1":
        names = ["Model Name", *(n for n in names if n not in ("OP State", "HF32 Eligible"))]
        names[names.index("Task Start Time(us)")] = "Start Time(us)"
    return ["Device_id", *names] if generation in ("G3", "G4") else names


def summary_row(number: int, *, device: int = 0, **cells: str) -> dict[str, str]:
    """The kernel of `kernel_row(number)` as op_summary has it."""
    row = {ALIASES.get(key, key): value for key, value in kernel_row(number).items()}
    row |= {"Device_id": str(device), "Model Name": "N/A", "Start Time(us)": row["Task Start Time(us)"]}
    return {**row, **{key.replace("_", " "): value for key, value in cells.items()}}


def summary_comm(number: int, generation: Generation = "G3", *, device: int = 0, index: int = 0) -> dict[str, str]:
    """A collective of 20 us at the place of row `number`."""
    unknown = dict.fromkeys(("OP State", "Task ID", "Stream ID", "HF32 Eligible", *SHAPES, *PIPE), "N/A")
    core = "HCCL" if generation in ("G1", "G2") else "COMMUNICATION"
    return {
        **summary_row(number, device=device), **unknown, "Op Name": f"hcom_allReduce__612_{index}_1",
        "OP Type": "hcom_allReduce_", "Task Type": core, "Task Duration(us)": "20.000",
    }  # fmt: skip


def task_row(number: int, *, device: int = 0, kind: str = "AI_VECTOR_CORE", name: str | None = None) -> dict[str, str]:
    """A row of task_time, for the kernel of `kernel_row(number)` unless another kind is given."""
    row = kernel_row(number)
    start, dur = row["Start Time(us)"].strip(), row["Duration(us)"]
    return {
        "Device_id": str(device), "kernel_name": row["Name"] if name is None else name, "kernel_type": kind,
        "stream_id": "2", "task_id": str(100 + number), "task_time(us)": dur, "task_start(us)": start + "\t",
        "task_stop(us)": f"{float(start) + float(dur):.3f}\t",
    }  # fmt: skip


class Prof:
    """One PROF directory."""

    def __init__(self, root: Path, name: str = PROF) -> None:
        self.path = root / name
        self.path.mkdir(parents=True)

    def raw(self, *devices: int) -> Prof:
        """Raw data as msprof leaves them."""
        for place in ("host", *(f"device_{number}" for number in devices)):
            (self.path / place / "data").mkdir(parents=True)
            (self.path / place / "data" / "unaging.api_event.data.slice_0").write_bytes(b"\0\1\2")
            (self.path / place / "start_info").write_text('{"collectionTimeBegin": "1"}')
            (self.path / place / "end_info").write_text('{"collectionTimeEnd": "2"}')
        return self

    def info(
        self, *devices: int, rank: object = -1, place: str = "host", cores: int = 24, mhz: str = "1800.000000"
    ) -> Prof:
        """info.json with one entry per device."""
        (self.path / place).mkdir(exist_ok=True)
        listed = [
            {"id": n, "ai_core_num": cores, "aiv_num": 2 * cores, "aic_frequency": mhz, "aiv_frequency": "1800"}
            for n in devices
        ]
        content = {
            "DeviceInfo": listed, "platform_version": "5", "pid": "4711", "rank_id": rank, "hostname": "secret-host",
            "hostUid": "123456", "version": "1.2", "devices": ",".join(map(str, devices)),
        }  # fmt: skip
        (self.path / place / "info.json").write_text(json.dumps(content))
        return self

    def sample(self, **values: str) -> Prof:
        """sample.json with switches, and a command line that is nobody's business."""
        private = {"app": "python3", "app_parameters": "train.py --key secret-key", "app_dir": "/home/secret-user"}
        (self.path / "host").mkdir(exist_ok=True)
        (self.path / "host" / "sample.json").write_text(json.dumps({**private, **values}))
        return self

    def csv(
        self,
        base: str,
        header: Sequence[str],
        rows: Iterable[Mapping[str, str] | Sequence[str]],
        *,
        tail: str = STAMP,
        folder: str = "mindstudio_profiler_output",
    ) -> Path:
        """A table; rows as dicts, or as cells in order of the header."""
        cells = [row if isinstance(row, Mapping) else dict(zip(header, row, strict=True)) for row in rows]
        place = self.path / folder
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{base}_{tail}.csv"
        path.write_bytes(csv_text(header, cells).encode())
        return path

    def summary(
        self,
        rows: Sequence[Mapping[str, str]],
        generation: Generation = "G3",
        *,
        tail: str = STAMP,
        folder: str = "mindstudio_profiler_output",
    ) -> Path:
        """op_summary."""
        return self.csv("op_summary", summary_header(generation), rows, tail=tail, folder=folder)

    def json(self, events: Sequence[object], *, tail: str = STAMP, folder: str = "mindstudio_profiler_output") -> Path:
        """msprof_*.json."""
        place = self.path / folder
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"msprof_{tail}.json"
        path.write_text(json.dumps(events))
        return path

    def analyzed(self, name: str, content: object) -> Path:
        """A file of `msprof --analyze=on`."""
        place = self.path / "analyze"
        place.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(content))
        return place / name

    def database(self, devices: Sequence[int], *, kernels: int = 2, schema: str = "1.2.0", tail: str = STAMP) -> Path:
        """msprof_*.db: `kernels` kernels, one collective with two sub-tasks, one copy and samples for each device."""
        path = self.path / f"msprof_{tail}.db"
        db = DatabaseWriter(path)
        word = db.word
        epoch = EPOCH_US * 1000
        tasks: list[tuple[int, ...]] = []
        info: list[tuple[int, ...]] = []
        comm_tasks: list[tuple[int, ...]] = []
        comm: list[tuple[int, ...]] = []
        calls: list[tuple[int, ...]] = []
        number = 0
        for device in devices:
            for row in range(kernels):
                start = epoch + 25_000 * row + row % 10
                tasks.append((start, start + 10_000 + row, device, number, number, word("KERNEL_AIVEC"), 2, 100 + row))
                info.append((word(f"aclnnAdd_AddAiCore_Add{row}"), number, 48, word("KERNEL_AIVEC"), word("Add")))
                calls.append((start - 15_000, start - 12_000, 10000, 1 << 32 | 7, number, word("launch")))
                number += 1
            begin = epoch + 25_000 * kernels
            comm.append((word(f"hcom_allReduce__612_{device}_1"), begin, begin + 20_000, 900 + device, number, device))
            for part in range(2):
                tasks.append((begin + part, begin + 5_000, device, 900 + device, number, word("SDMA"), 3, 500 + part))
                comm_tasks.append((word("Memcpy"), number, word("Memcpy"), part, len(comm) - 1))
                number += 1
            at = begin + 30_000
            tasks.append((at, at + 3_000, device, 0, number, word("MEMCPY_ASYNC"), 2, 700))
            number += 1
        db.table(
            "TASK",
            ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId", "taskId"),
            tasks,
        )
        block = "blockNum" if schema == "1.2.0" else "blockDim"
        db.table("COMPUTE_TASK_INFO", ("name", "globalTaskId", block, "taskType", "opType"), info)
        names = ["opName", "startNs", "endNs", "connectionId", "opId", "deviceId"]
        rows = [(*row[:4], place, row[5]) for place, row in enumerate(comm)]
        if schema == "1.0.0":
            names, rows = names[:-1], [row[:-1] for row in rows]
        db.table("COMMUNICATION_OP", names, rows)
        db.table("COMMUNICATION_TASK_INFO", ("name", "globalTaskId", "taskType", "planeId", "opId"), comm_tasks)
        db.table("CANN_API", ("startNs", "endNs", "type", "globalTid", "connectionId", "name"), calls)
        db.table("RANK_DEVICE_MAP", ("rankId", "deviceId"), [(-1, device) for device in devices])
        db.table("META_DATA", ("name", "value"), [("SCHEMA_VERSION", schema)])
        db.table(
            "AICORE_FREQ", ("deviceId", "timestampNs", "freq"), [(d, epoch, 1650 + 150 * (d % 2)) for d in devices]
        )
        db.close()
        return path


def traces_at(path: Path) -> list[Trace]:
    """Every trace at a path, found as the command does it; all must be msprof's."""
    units, problems = find_units(path)
    assert {unit.parser for unit in units} == {"msprof"}, units
    assert not problems, problems
    return [trace for unit in units for trace in msprof.parse(unit)]


def trace_at(path: Path) -> Trace:
    """The one trace at a path."""
    (trace,) = traces_at(path)
    return trace


def problems_of(trace: Trace) -> dict[str, str]:
    """Problems by name of the file."""
    return {s.path.rpartition("/")[2]: s.problem for s in trace.meta.sources if s.problem}


def dropped_of(trace: Trace) -> dict[str, int]:
    """Rows that were not used, by reason."""
    return {d.reason: d.count for source in trace.meta.sources for d in source.dropped}


__all__ = ["EPOCH_US", "Prof", "stamp", "summary_comm", "summary_row", "task_row", "trace_at", "traces_at"]
