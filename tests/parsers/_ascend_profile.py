"""Writes small torch_npu profiles of all generations. Figures follow from the row number, so tests know them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ascend_perf.model.trace import Trace
from ascend_perf.parsers import ascend_pt
from ascend_perf.parsers._source import FileEntry, Folder

Generation = Literal["G1", "G2", "G3", "G4"]
Cells = Mapping[str, str]

EPOCH_US = 1_780_000_000_000_000

BEFORE_SHAPES = ("Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State")
SHAPES = (
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
)  # fmt: skip
PIPE = (
    "aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_mte2_time(us)", "aic_mte2_ratio",
    "aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles", "aiv_vec_time(us)", "aiv_vec_ratio",
    "cube_utilization(%)",
)  # fmt: skip


def kernel_header(generation: Generation, level: int = 1) -> list[str]:
    """Columns of kernel_details.csv."""
    if level == 0:
        names = ["Step Id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)"]
        return [*names, "Block Num" if generation == "G4" else "Block Dim"]
    names = [n for n in BEFORE_SHAPES if not (n == "OP State" and generation == "G1")]
    if generation in ("G1", "G2"):
        names.remove("Device_id")
    blocks = ["Block Num", "Mix Block Num"] if generation == "G4" else ["Block Dim", "Mix Block Dim"]
    names += ["Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", *blocks]
    if generation != "G1":
        names.append("HF32 Eligible")
    return [*names, *SHAPES, "Context ID", *PIPE]


def stamp(offset_us: str) -> str:
    """An epoch time in us as the exporter prints it: 1780000000000000 + offset, three decimals."""
    whole, _, fraction = offset_us.partition(".")
    return f"{EPOCH_US + int(whole)}.{(fraction + '000')[:3]}"


def kernel_row(number: int, *, step: int | str = 3, dur: str | None = None, **cells: str) -> dict[str, str]:
    """Row `number`: a vector kernel of 10.000 us + number ns, every 25 us, 48 blocks."""
    row = {
        "Step Id": str(step), "Device_id": "0", "Model ID": "4294967295", "Task ID": str(100 + number),
        "Stream ID": "2", "Name": f"aclnnAdd_AddAiCore_Add{number}", "Type": "Add", "OP State": "dynamic",
        "Accelerator Core": "AI_VECTOR_CORE", "Start Time(us)": stamp(f"{25 * number}.00{number % 10}") + "\t",
        "Duration(us)": dur or f"10.{number:03d}", "Wait Time(us)": "0", "Block Dim": "48", "Block Num": "48",
        "Mix Block Dim": "0", "Mix Block Num": "0", "HF32 Eligible": "NO", "Input Shapes": '"4096,4096;64"',
        "Input Data Types": "DT_BF16;DT_BF16", "Input Formats": "ND;ND", "Output Shapes": '"4096,4096"',
        "Output Data Types": "DT_BF16", "Output Formats": "ND", "Context ID": "N/A", "aicore_time(us)": "0.0",
        "aic_total_cycles": "0", "aic_mac_ratio": "0.0", "aic_mac_time(us)": "0.0", "aic_mte2_time(us)": "0.0",
        "aic_mte2_ratio": "0.0", "aic_icache_miss_rate": "0.0", "aiv_time(us)": "9.7", "aiv_total_cycles": "838080",
        "aiv_vec_time(us)": "3.395", "aiv_vec_ratio": "0.35", "cube_utilization(%)": "0",
    }  # fmt: skip
    return {**row, **{key.replace("_", " "): value for key, value in cells.items()}}


def comm_row(number: int, generation: Generation, *, step: int | str = 3) -> dict[str, str]:
    """A collective of 20.000 us at the place of row `number`."""
    empty = dict.fromkeys((*SHAPES, *PIPE, "OP State", "HF32 Eligible", "Task ID", "Stream ID"), "N/A")
    core = "HCCL" if generation in ("G1", "G2") else "COMMUNICATION"
    name = f"hcom_allReduce__612_{number}" + ("" if generation == "G1" else "_1")
    return {
        **kernel_row(number, step=step, dur="20.000"), **empty, "Name": name, "Type": "hcom_allReduce_",
        "Accelerator Core": core, "Block Dim": "0", "Block Num": "0",
    }  # fmt: skip


def level0(row: Mapping[str, str]) -> dict[str, str]:
    """A row as Level0 writes it: type and engine unknown, except for collectives."""
    comm = row["Name"].startswith("hcom_")
    return {**row, "Type": "N/A", "Accelerator Core": row["Accelerator Core"] if comm else "N/A", "Block Dim": "0"}


def quoted(cell: str) -> str:
    """A cell as the exporters quote it."""
    if '"' in cell or "," in cell or "\n" in cell:
        return '"' + cell.replace('"', '""') + '"'
    return cell


def csv_text(header: Sequence[str], rows: Sequence[Cells], newline: str = "\n") -> str:
    """A CSV file."""
    lines = [",".join(header)] + [",".join(quoted(row.get(name, "")) for name in header) for row in rows]
    return newline.join(lines) + newline


def write_kernels(
    folder: Path, rows: Sequence[Cells], generation: Generation = "G3", *, level: int = 1, newline: str = "\n"
) -> Path:
    """A kernel_details.csv."""
    path = folder / "kernel_details.csv"
    path.write_bytes(csv_text(kernel_header(generation, level), rows, newline).encode())
    return path


def write_info(
    folder: Path, generation: Generation = "G3", *, rank: int | str | None = 0, level: str = "Level1"
) -> Path:
    """A profiler_info_{rank}.json."""
    underscore = "_" if generation == "G1" else ""
    schedule = {f"{underscore}{name}": 1 for name in ("wait", "active", "warmup", "repeat", "skip_first")}
    if generation == "G4":
        schedule["skip_first_wait"] = 0
    experimental: dict[str, object] = {
        "_profiler_level": level,
        "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
        "_l2_cache": False,
        "_gc_detect_threshold": None,
    }
    if generation != "G1":
        experimental["_export_type"] = "text" if generation == "G2" else ["text"]
    info: dict[str, object] = {
        "config": {
            "common_config": {
                "schedule": schedule, "record_shapes": True, "profile_memory": False, "with_stack": False
            },
            "experimental_config": experimental,
        },
        "start_info": {"syscnt_enable": True, "freq": 100, "start_cnt": 1, "start_monotonic": 1},
    }  # fmt: skip
    if generation in ("G3", "G4"):
        info |= {"torch_npu_version": "2.7.1", "cann_version": "8.3.RC1"}
    if rank is not None:
        info["rank_id"] = rank
    path = folder / ("profiler_info.json" if rank is None else f"profiler_info_{rank}.json")
    path.write_text(json.dumps(info))
    return path


# ---- trace_view.json -------------------------------------------------------------------------------------------------

PYTHON, HARDWARE, CANN, HCCL, OVERLAP = 4000, 9001, 9002, 9003, 9004


def process_events(
    *, hccl: str = "Communication", cann: bool = True, groups: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Names of processes and lines."""
    names = {PYTHON: "Python", HARDWARE: "Ascend Hardware", HCCL: hccl, OVERLAP: "Overlap Analysis"}
    if cann:
        names[CANN] = "CANN"
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}} for pid, name in names.items()
    ]
    lines = {(HARDWARE, 2): "Stream 2", (OVERLAP, 0): "Computing"}
    for index, group in enumerate(groups):
        lines[(HCCL, 10 * index)] = f"Group {group} Communication"
        lines |= {(HCCL, 10 * index + plane + 1): f"Plane {plane}" for plane in range(2)}
    return events + [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for (pid, tid), name in lines.items()
    ]


def slice_event(
    name: str, pid: int, tid: int, start: str, dur: float, cat: str = "", /, **args: object
) -> dict[str, object]:
    """A slice; `start` is an offset in us; underscores in the names of args are blanks."""
    event: dict[str, object] = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": stamp(start), "dur": dur}
    if cat:
        event["cat"] = cat
    if args:
        event["args"] = {key.replace("__", " "): value for key, value in args.items()}
    return event


def kernel_events(number: int, *, task_type: str = "AI_VECTOR_CORE") -> list[dict[str, object]]:
    """Operator, CANN call, device slice and flows of the kernel of `kernel_row(number)`, launched 15 us before."""
    begin = f"{25 * number}.00{number % 10}"
    host = f"{25 * number - 20}.000" if number else "-20.000"
    call = f"{25 * number - 15}.000" if number else "-15.000"
    start_ns = int(stamp(begin).replace(".", ""))
    name = f"aclnnAdd_AddAiCore_Add{number}"
    flow = {"cat": "async_npu", "name": "torch_to_npu", "id": start_ns}
    return [
        slice_event("aten::add", PYTHON, 77, host, 12.0, "cpu_op", Sequence__number=number, Fwd__thread__id=0),
        slice_event("Node@launch", CANN, 77, call, 3.0, level="node", connection_id=1000 + number),
        slice_event(
            name, HARDWARE, 2, begin, 10 + number / 1000, Model__Id=4294967295, Task__Type=task_type,
            Physic__Stream__Id=2, Task__Id=100 + number, connection_id=1000 + number,
        ),
        {"ph": "s", "pid": PYTHON, "tid": 77, "ts": stamp(host), **flow},
        {"ph": "f", "bp": "e", "pid": HARDWARE, "tid": 2, "ts": stamp(begin), **flow},
    ]  # fmt: skip


def write_trace(folder: Path, events: Sequence[object], *, tail: str = "]", name: str = "trace_view.json") -> Path:
    """A trace_view.json on one line."""
    path = folder / name
    path.write_text("[" + ",".join(json.dumps(event) for event in events) + tail)
    return path


# ---- databases -------------------------------------------------------------------------------------------------------


class DatabaseWriter:
    """Writes tables with columns as given; words become ids of STRING_IDS."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.words: dict[str, int] = {}

    def word(self, text: str) -> int:
        """The id of a text."""
        return self.words.setdefault(text, len(self.words))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table."""
        marks = ", ".join("?" * len(columns))
        self.connection.execute(f"create table {name} ({', '.join(columns)})")
        self.connection.executemany(f"insert into {name} values ({marks})", rows)

    def close(self) -> None:
        """Writes the texts and ends."""
        self.table("STRING_IDS", ("id", "value"), [(number, text) for text, number in self.words.items()])
        self.connection.commit()
        self.connection.close()


# ---- reading ---------------------------------------------------------------------------------------------------------


def folder_of(path: Path) -> Folder:
    """A folder, or a file alone, as the search gives it to a parser."""
    if path.is_file():
        return Folder(path.parent, (FileEntry(path, path.stat().st_size),), ())
    entries = sorted(path.iterdir())
    files = tuple(FileEntry(p, p.stat().st_size) for p in entries if p.is_file())
    return Folder(path, files, tuple(p for p in entries if p.is_dir()))


def read(path: Path) -> Trace:
    """The one trace of a folder or file."""
    (unit,) = ascend_pt.find(folder_of(path))
    (trace,) = ascend_pt.parse(unit)
    return trace
