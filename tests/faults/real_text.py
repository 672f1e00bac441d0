"""Text exports of torch_npu that were really recorded, opened for editing: one rank's files as plain Python objects.

Independent of the parsers and analyzers on purpose: `json`, `csv` and arithmetic only. Times are int ns here; the files
have µs with three decimals. What one file derives from another is made anew by `real_derive` before writing.
"""

from __future__ import annotations

import bisect
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]
Row = dict[str, str]

OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
HOST: Final = frozenset({"Python", "CANN", "Python GC"})
COLLECTIVES: Final = frozenset({"HCCL", "Communication"})
COMMUNICATION_CORES: Final = frozenset({"HCCL", "COMMUNICATION"})
DERIVED: Final = "Overlap Analysis"
NONE: Final = 4294967295


def to_ns(text: str | float) -> int:
    """A time of the files (µs, tab behind it) in ns, without a detour over floats."""
    whole, _, rest = str(text).strip().partition(".")
    return int(whole) * 1000 + int((rest + "000")[:3])


def to_us(ns: int) -> str:
    """As the files write it."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def end_of(event: Event) -> int:
    """End of a slice in ns: whole numbers, for floats of epoch size are 256 ns apart."""
    return int(event["ns"]) + round(float(event["dur"]) * 1000)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where time is inserted: `amount` ns in front of everything that starts at `device` or `host` or later.

    `lanes` gives other places for single lanes (threads, planes): what happens there has its own order.
    """

    amount: int
    host: int
    device: int
    lanes: Mapping[str, int] = field(default_factory=dict)

    def at(self, lane: str) -> int:
        """Place of the cut on a lane."""
        return self.lanes.get(lane, self.host if lane.startswith("host:") else self.device)


class TimeMap:
    """t + sum of the amounts inserted at or before t: grows with t, so nothing changes its order."""

    def __init__(self, cuts: Sequence[Cut], lane: str) -> None:
        order = sorted(range(len(cuts)), key=lambda i: (cuts[i].at(lane), i))
        self._times = [cuts[i].at(lane) for i in order]
        self._sums = [0]
        self._windows: dict[int, tuple[int, int]] = {}
        for i in order:
            start = cuts[i].at(lane) + self._sums[-1]
            self._windows[i] = (start, start + cuts[i].amount)
            self._sums.append(self._sums[-1] + cuts[i].amount)

    def __call__(self, time: int) -> int:
        return time + self._sums[bisect.bisect_right(self._times, time)]

    def inside(self, start: int, end: int) -> int:
        """What was inserted strictly between two times: by so much an interval grows."""
        return max(0, self._sums[bisect.bisect_left(self._times, end)] -
                   self._sums[bisect.bisect_right(self._times, start)])  # fmt: skip

    def window(self, number: int) -> tuple[int, int]:
        """The time that the cut of a number inserted, on the new axis."""
        return self._windows[number]


@dataclass(kw_only=True)
class Csv:
    """A table with its header; cells as text."""

    header: list[str]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> Csv:
        """Cells keep their tabs and line ends."""
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            return cls(rows=list(reader), header=list(reader.fieldnames or ()))

    def text(self) -> str:
        """As a file."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()


def is_kernel(row: Row) -> bool:
    """Whether a row of kernel_details is a compute task, not a collective."""
    return row["Accelerator Core"] not in COMMUNICATION_CORES


class RealRank:
    """One `*_ascend_pt` folder: events of the trace (with "ns" for "ts"), tables by file name, other files as text."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.others = {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.json"))}
        output = folder / OUTPUT
        self.tables = {p.name: Csv.read(p) for p in sorted(output.glob("*.csv"))}
        self.jsons: dict[str, Any] = {
            p.name: json.loads(p.read_text(encoding="utf-8"))
            for p in sorted(output.glob("*.json")) if p.name != "trace_view.json"
        }  # fmt: skip
        trace = output / "trace_view.json"
        self.events: list[Event] = json.loads(trace.read_text(encoding="utf-8")) if trace.is_file() else []
        for event in self.events:
            if "ts" in event:
                event["ns"] = to_ns(event.pop("ts"))
        self._name_lanes()
        info = next(json.loads(text) for name, text in self.others.items() if name.startswith("profiler_info"))
        self.rank = int(info["rank_id"])
        self.inserted: dict[str, int] = {}
        """Of ranks without rows: what lies in inserted time beside collectives, by column of step_trace_time, in ns."""
        self.next_id = 900_000_000
        """Connection and correlation ids of planted events: far above those of the capture."""

    # Lanes.

    def _name_lanes(self) -> None:
        self.process: dict[int, str] = {
            e["pid"]: e["args"]["name"] for e in self.events if e["ph"] == "M" and e["name"] == "process_name"
        }
        threads = {
            (e["pid"], e["tid"]): e["args"]["name"]
            for e in self.events if e["ph"] == "M" and e["name"] == "thread_name"
        }
        planes: dict[tuple[int, int, int], str] = {}
        for event in self.events:
            if event["ph"] == "M":
                continue
            process = self.process.get(event["pid"], "")
            if process in HOST:
                event["lane"] = f"host:{event['tid']}"
            elif process in COLLECTIVES:
                thread = threads.get((event["pid"], event["tid"]), "")
                event["lane"] = f"plane:{event['tid']}" if thread.startswith("Plane") else "comm"
                if event["ph"] == "X" and thread.startswith("Plane"):
                    args = event["args"]
                    planes[args["task id"], args["context id"], event["ns"]] = event["lane"]
            else:
                event["lane"] = "device"
        for event in self.slices("Ascend Hardware"):
            # Tasks of a collective lie on the streams as well.
            args = event["args"]
            event["lane"] = planes.get((args["Task Id"], args["Subtask Id"], event["ns"]), "device")

    def pid(self, *names: str) -> int:
        """Of a process by its name."""
        return next(pid for pid, name in self.process.items() if name in names)

    def slices(self, *processes: str) -> list[Event]:
        """Slices of some processes, in the order of the file."""
        return [e for e in self.events if e["ph"] == "X" and self.process.get(e["pid"]) in processes]

    def ops(self) -> list[Event]:
        """Operators of the framework in order of their start, the step itself among them."""
        found = [e for e in self.slices("Python") if e.get("cat") == "cpu_op"]
        return sorted(found, key=lambda e: (e["ns"], -e["dur"]))

    @property
    def step(self) -> Event:
        """The operator around the step."""
        return next(e for e in self.events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#"))

    @property
    def main(self) -> int:
        """Thread of the training loop."""
        return int(self.step["tid"])

    @property
    def queue(self) -> int:
        """Thread that takes tasks out of the queue."""
        return int(next(e for e in self.events if e.get("cat") == "dequeue")["tid"])

    @property
    def kernels(self) -> list[Row]:
        """Rows of kernel_details."""
        return self.tables["kernel_details.csv"].rows

    def compute(self) -> list[Row]:
        """Rows of compute tasks in order of their start."""
        return sorted((r for r in self.kernels if is_kernel(r)), key=lambda r: to_ns(r["Start Time(us)"]))

    def calls(self) -> list[Event]:
        """Collectives of the trace in order of their start."""
        found = [e for e in self.slices(*COLLECTIVES) if e["lane"] == "comm"]
        return sorted(found, key=lambda e: int(e["ns"]))

    def slice_of(self, row: Row) -> Event:
        """The device slice of a row of kernel_details: equal start, equal name."""
        start = to_ns(row["Start Time(us)"])
        return next(e for e in self.slices("Ascend Hardware") if e["ns"] == start and e["name"] == row["Name"])

    # Time.

    def insert(self, cuts: Sequence[Cut]) -> dict[str, TimeMap]:
        """Maps every time stamp and length of all files; the maps by lane, for what is planted in between."""
        lanes = {e["lane"] for e in self.events if e["ph"] != "M"} | {"device", "comm", "host:0"}
        if self.events:
            lanes |= {f"host:{self.main}", f"host:{self.queue}"}
        maps = {lane: TimeMap(cuts, lane) for lane in lanes}
        for event in self.events:
            if event["ph"] == "M":
                continue
            time = maps[event["lane"]]
            if event["ph"] == "X":
                event["dur"] += time.inside(event["ns"], end_of(event)) / 1000
            elif event.get("cat") == "async_npu":
                # The id is the start of the task on the device.
                event["id"] = maps["device"](event["id"])
            event["ns"] = time(event["ns"])
        for row in self.tables["kernel_details.csv"].rows if "kernel_details.csv" in self.tables else ():
            self._insert_kernel(row, maps["device" if is_kernel(row) else "comm"])
        owner = maps[f"host:{self.main}"] if self.events else maps["host:0"]
        for row in self._rows("memory_record.csv"):
            by_host = row["Component"] not in ("APP", "GE")
            row["Timestamp(us)"] = _moved(row["Timestamp(us)"], owner if by_host else maps["device"])
        for row in self._rows("operator_memory.csv"):
            for key in ("Allocation Time(us)", "Release Time(us)", "Active Release Time(us)"):
                row[key] = _moved(row[key], owner)
            for key, end in (("Duration(us)", "Release Time(us)"), ("Active Duration(us)", "Active Release Time(us)")):
                if row[key].strip():
                    row[key] = to_us(to_ns(row[end]) - to_ns(row["Allocation Time(us)"])) + _tail(row[key])
        for row in self._rows("npu_module_mem.csv"):
            row["Timestamp(us)"] = _moved(row["Timestamp(us)"], maps["device"])
        self._insert_communication(maps["comm"])
        self._insert_end(sum(cut.amount for cut in cuts))
        return maps

    def _insert_kernel(self, row: Row, time: TimeMap) -> None:
        start, dur = to_ns(row["Start Time(us)"]), to_ns(row["Duration(us)"])
        grown = time.inside(start, start + dur)
        row["Start Time(us)"] = to_us(time(start)) + "\t"
        if grown:
            row["Duration(us)"] = to_us(dur + grown)
            if is_kernel(row):
                stalled(row, (dur + grown) / dur)

    def _insert_communication(self, time: TimeMap) -> None:
        for step in self.jsons.get("communication.json", {}).values():
            for kind in step.values():
                for op, entry in kind.items():
                    if op == "Total Op Info":
                        continue
                    info = entry["Communication Time Info"]
                    start = round(info["Start Timestamp(us)"] * 1000)
                    # The stamp is a quarter of a µs off; a cut is never so near to an edge.
                    grown = time.inside(start, start + round(info["Elapse Time(ms)"] * 1e6))
                    info["Start Timestamp(us)"] = time(start) / 1000
                    for key in ("Elapse Time(ms)", "Wait Time(ms)", "Synchronization Time(ms)"):
                        # CANN 8.3 tells no waits of transfers that it runs elsewhere: their time stays idle.
                        if key.startswith("Elapse") or info[key]:
                            info[key] += grown / 1e6
                    entry["grown"] = grown

    def _insert_end(self, amount: int) -> None:
        for name, text in self.others.items():
            if name.startswith("profiler_info"):
                info = json.loads(text)
                for key in ("collectionTimeEnd", "MonotonicTimeEnd"):
                    info["end_info"][key] += amount
                self.others[name] = json.dumps(info, indent=4)

    def _rows(self, name: str) -> list[Row]:
        return self.tables[name].rows if name in self.tables else []

    # Writing.

    def write(self, folder: Path) -> None:
        """Below `folder`, under the name it had. The databases of newer exports are left out: they say the same."""
        output = folder / self.name / OUTPUT
        output.mkdir(parents=True)
        for name, text in self.others.items():
            (folder / self.name / name).write_text(text, encoding="utf-8")
        for name, made in self.tables.items():
            (output / name).write_text(made.text(), encoding="utf-8", newline="")
        for name, content in self.jsons.items():
            (output / name).write_text(json.dumps(content), encoding="utf-8")
        if self.events:
            (output / "trace_view.json").write_text(json.dumps([_as_written(e) for e in self.events]), encoding="utf-8")


def _as_written(event: Event) -> Event:
    made = {key: value for key, value in event.items() if key not in ("ns", "lane", "row")}
    if "ns" in event:
        made["ts"] = to_us(event["ns"])
    return made


def _tail(cell: str) -> str:
    return "\t" if cell.endswith("\t") else ""


def _moved(cell: str, time: TimeMap) -> str:
    return to_us(time(to_ns(cell))) + _tail(cell) if cell.strip() else cell


PIPES: Final = ("aic_mac", "aic_scalar", "aic_mte1", "aic_mte2", "aic_fixpipe",
                "aiv_vec", "aiv_scalar", "aiv_mte2", "aiv_mte3")  # fmt: skip


def number(cell: str | None) -> float | None:
    """A cell as a number; None when empty or N/A."""
    try:
        return float(cell or "")
    except ValueError:
        return None


def _scale(row: Row, keys: Iterable[str], factor: float, digits: int = 3) -> None:
    for key in keys:
        value = number(row.get(key))
        if value is not None:
            row[key] = str(round(value * factor, digits))


def _ratios(row: Row) -> None:
    for pipe in PIPES:
        time = number(row.get(f"{pipe}_time(us)"))
        core = number(row["aicore_time(us)" if pipe.startswith("aic") else "aiv_time(us)"])
        if time is not None and core:
            row[f"{pipe}_ratio"] = str(round(time / core, 3))


def stalled(row: Row, factor: float) -> None:
    """Counters of a kernel that runs `factor` times as long and works as much: its cores stand still in between."""
    for unit, core in (("aic", "aicore_time(us)"), ("aiv", "aiv_time(us)")):
        _scale(row, [core], factor)
        _scale(row, [f"{unit}_total_cycles"], factor, 0)
        if row.get(f"{unit}_total_cycles", "").endswith(".0"):
            row[f"{unit}_total_cycles"] = row[f"{unit}_total_cycles"][:-2]
    _ratios(row)


def slower_clock(row: Row, factor: float) -> None:
    """From the counters of `stalled` to those of a clock that is `factor` times slower: as many cycles, longer pipes.

    The producer puts the cycles over those of the rated clock, so the utilisation falls.
    """
    _scale(row, ["cube_utilization(%)"], 1 / factor)
    for unit in ("aic", "aiv"):
        _scale(row, [f"{unit}_total_cycles"], 1 / factor, 0)
        if row.get(f"{unit}_total_cycles", "").endswith(".0"):
            row[f"{unit}_total_cycles"] = row[f"{unit}_total_cycles"][:-2]
    _scale(row, [f"{pipe}_time(us)" for pipe in PIPES], factor)
    _ratios(row)


def more_work(row: Row, factor: float) -> None:
    """From the counters of `stalled` to those of a kernel that does `factor` times as much at the same rate."""
    _scale(row, [f"{pipe}_time(us)" for pipe in PIPES], factor)
    _ratios(row)


def waiting_for_memory(row: Row, pipe: str) -> None:
    """From the counters of `stalled` to those of a kernel whose time went into one pipe."""
    core = number(row["aicore_time(us)" if pipe.startswith("aic") else "aiv_time(us)"]) or 0.0
    row[f"{pipe}_ratio"] = "0.98"
    row[f"{pipe}_time(us)"] = str(round(0.98 * core, 3))


class RealProfile:
    """All ranks of a recorded job."""

    def __init__(self, ranks: list[RealRank]) -> None:
        self.ranks = ranks

    @classmethod
    def read(cls, folder: Path) -> RealProfile:
        """All `*_ascend_pt` folders directly below a folder."""
        return cls([RealRank(place) for place in sorted(folder.glob("*_ascend_pt"))])

    def write(self, folder: Path) -> None:
        """With everything made anew that the files derive from events and kernels."""
        from tests.faults.real_derive import derive

        for rank in self.ranks:
            derive(rank)
            rank.write(folder)
