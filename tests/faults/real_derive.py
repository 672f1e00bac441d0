"""What the files of a text export derive from one another, computed anew from edited events and kernels.

Each rule is written from the format reference; on unedited profiles the results equal the producer's own files (see
`test_real.py`), which is what makes them fit for edited ones.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tests.faults.real_text import DERIVED, NONE, Event, RealRank, end_of, is_kernel, to_ns

Interval = tuple[int, int]
MOVES: Final = ("Memcpy", "Reduce_Inline")
MEGABYTE: Final = 1e6


def union(pieces: Iterable[Interval]) -> list[Interval]:
    """Pieces without overlaps, in order."""
    made: list[Interval] = []
    for start, end in sorted(pieces):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        elif end > start:
            made.append((start, end))
    return made


def minus(pieces: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """Pieces without what the holes cover; both without overlaps and in order."""
    made = []
    for start, end in pieces:
        for first, last in holes:
            if last <= start or first >= end:
                continue
            if first > start:
                made.append((start, first))
            start = max(start, last)
        if end > start:
            made.append((start, end))
    return made


def total(pieces: Iterable[Interval]) -> int:
    """Length of pieces without overlaps."""
    return sum(end - start for start, end in pieces)


def overlap(rank: RealRank) -> dict[str, list[Interval]]:
    """Rows of the overlap analysis, in ps: slices end between two ns."""
    if rank.events:
        # Slices say more than three decimals of a µs.
        rows = {(to_ns(r["Start Time(us)"]), r["Name"]) for r in rank.kernels if is_kernel(r)}
        tasks = [e for e in rank.slices("Ascend Hardware") if (e["ns"], e["name"]) in rows]
        spans = [(e["ns"] * 1000, e["ns"] * 1000 + round(e["dur"] * 1e6)) for e in tasks]
        calls = [(e["ns"] * 1000, e["ns"] * 1000 + round(e["dur"] * 1e6)) for e in rank.calls()]
    else:
        spans, calls = [], []
        for row in rank.kernels:
            start = to_ns(row["Start Time(us)"]) * 1000
            (spans if is_kernel(row) else calls).append((start, start + to_ns(row["Duration(us)"]) * 1000))
    computing, communication = union(spans), union(calls)
    every = union([*computing, *communication])
    return {
        "Computing": computing, "Communication": communication,
        "Communication(Not Overlapped)": minus(communication, computing),
        "Free": minus([(every[0][0], every[-1][1])], every),
    }  # fmt: skip


def derive(rank: RealRank) -> None:
    """All of it."""
    if "kernel_details.csv" in rank.tables:
        _waits(rank)
        rows = overlap(rank)
        if rank.events:
            _overlap_events(rank, rows)
        _step_trace(rank, rows)
        _op_statistic(rank)
    elif rank.jsons:
        _step_trace_of_calls(rank)
    if rank.events:
        _api_statistic(rank)
        _operator_details(rank)
        _communication(rank)
        _matrix(rank)
    else:
        _communication_of_kernels(rank)


def _waits(rank: RealRank) -> None:
    rank.kernels.sort(key=lambda r: to_ns(r["Start Time(us)"]))
    before = None
    for row in rank.kernels:
        start = to_ns(row["Start Time(us)"])
        wait = 0 if before is None else max(0, start - before)
        decimals = len(row["Wait Time(us)"].partition(".")[2])
        text = f"{wait / 1000:.6f}" if decimals == 6 else f"{wait / 1000:.3f}".rstrip("0").rstrip(".")
        row["Wait Time(us)"] = "0" if before is None else text
        before = start + to_ns(row["Duration(us)"])


def _overlap_events(rank: RealRank, rows: dict[str, list[Interval]]) -> None:
    pid = rank.pid(DERIVED)
    rank.events = [e for e in rank.events if e["ph"] == "M" or e["pid"] != pid]
    for tid, (name, pieces) in enumerate(rows.items()):
        rank.events += [
            {"name": name, "pid": pid, "tid": tid, "ns": start // 1000, "dur": round((end - start) / 1e6, 3), "ph": "X",
             "lane": "device"}
            for start, end in pieces
        ]  # fmt: skip


def _step_trace(rank: RealRank, rows: dict[str, list[Interval]]) -> None:
    row = rank.tables["step_trace_time.csv"].rows[0]
    times = {name: total(pieces) / 1e6 for name, pieces in rows.items()}
    exposed = times["Communication(Not Overlapped)"]
    every = union([*rows["Computing"], *rows["Communication"]])
    stage = round((every[-1][1] - every[0][0]) / 250_000) * 0.25
    row["Computing"], row["Communication"] = repr(times["Computing"]), repr(times["Communication"])
    row["Communication(Not Overlapped)"] = row["Communication(Not Overlapped and Exclude Receive)"] = repr(exposed)
    row["Overlapped"], row["Free"] = repr(times["Communication"] - exposed), repr(times["Free"])
    row["Stage"] = repr(stage)
    if rank.events:
        row["Preparing"] = repr(round((every[0][0] // 1000 - rank.step["ns"]) / 250) * 0.25)


def _step_trace_of_calls(rank: RealRank) -> None:
    """Of a rank of which only communication.json is there: what its collectives grew by is communication.

    What was inserted elsewhere stands in `rank.inserted`: "Computing" or "Free" in ns.
    """
    row = rank.tables["step_trace_time.csv"].rows[0]
    grown = sum(entry.pop("grown", 0) for _, entry in entries(rank))
    other = rank.inserted
    if grown or other:
        for key in ("Communication", "Communication(Not Overlapped)",
                    "Communication(Not Overlapped and Exclude Receive)"):  # fmt: skip
            row[key] = repr(float(row[key]) + grown / 1000)
        for key, ns in other.items():
            row[key] = repr(float(row[key]) + ns / 1000)
        row["Stage"] = repr(float(row["Stage"]) + round((grown + sum(other.values())) / 250) * 0.25)
        rank.inserted = {}
    _totals(rank)


def entries(rank: RealRank) -> list[tuple[str, dict[str, Any]]]:
    """Operators of communication.json without the totals."""
    steps = rank.jsons.get("communication.json", {}).values()
    return [(op, entry) for step in steps for kind in step.values() for op, entry in kind.items()
            if op != "Total Op Info"]  # fmt: skip


def _op_statistic(rank: RealRank) -> None:
    table = rank.tables["op_statistic.csv"]
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rank.kernels:
        if is_kernel(row):
            groups[row["Type"], row["Accelerator Core"]].append(to_ns(row["Duration(us)"]))
    every = sum(map(sum, groups.values()))
    devices = {key: value for key, value in table.rows[0].items() if key == "Device_id"}
    table.rows = [
        {**devices, "OP Type": kind, "Core Type": core, "Count": str(len(times)),
         "Total Time(us)": _short(sum(times) / 1000), "Min Time(us)": _short(min(times) / 1000),
         "Avg Time(us)": _short(sum(times) / len(times) / 1000), "Max Time(us)": _short(max(times) / 1000),
         "Ratio(%)": _short(100 * sum(times) / every)}
        for (kind, core), times in sorted(groups.items(), key=lambda item: -sum(item[1]))
    ]  # fmt: skip


def _short(value: float) -> str:
    return str(round(value, 3))


def _api_statistic(rank: RealRank) -> None:
    table = rank.tables["api_statistic.csv"]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in rank.slices("CANN"):
        groups[event["args"]["level"], event["name"].partition("@")[2]].append(event["dur"])
    first = {(row["Level"], row["API Name"]): place for place, row in enumerate(table.rows)}
    table.rows = [
        {"Level": level, "API Name": name, "Time(us)": str(round(sum(times), 2)), "Count": str(len(times)),
         "Avg(us)": _short(statistics.fmean(times)), "Min(us)": _short(min(times)), "Max(us)": _short(max(times)),
         "Variance": _short(statistics.pvariance(times))}
        for (level, name), times in sorted(groups.items(), key=lambda item: first.get(item[0], len(first)))
    ]  # fmt: skip


def nested(ops: Sequence[Event]) -> list[Event | None]:
    """The operator right around each, by thread; `ops` in order of start, longer ones first."""
    parents: list[Event | None] = []
    stacks: dict[int, list[Event]] = defaultdict(list)
    for op in ops:
        stack = stacks[op["tid"]]
        while stack and end_of(stack[-1]) <= op["ns"]:
            stack.pop()
        parents.append(stack[-1] if stack else None)
        stack.append(op)
    return parents


def launched(rank: RealRank) -> dict[int, list[Event]]:
    """Device slices by `id()` of the innermost operator that started them, along the async_npu flows."""
    ops = rank.ops()
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for op in ops:
        by_thread[op["tid"]].append(op)
    ends = {e["id"]: e for e in rank.events if e["ph"] == "f" and e.get("cat") == "async_npu"}
    slices = {
        (e["pid"], e["tid"], e["ns"]): e
        for e in rank.slices("Ascend Hardware", "HCCL", "Communication") if not e["lane"].startswith("plane")
    }  # fmt: skip
    made: dict[int, list[Event]] = defaultdict(list)
    for flow in (e for e in rank.events if e["ph"] == "s" and e.get("cat") == "async_npu"):
        end = ends.get(flow["id"])
        target = None if end is None else slices.get((end["pid"], end["tid"], end["ns"]))
        around = [op for op in by_thread[flow["tid"]] if op["ns"] <= flow["ns"] <= end_of(op)]
        if target is not None and around:
            made[id(around[-1])].append(target)
    return made


def _operator_details(rank: RealRank) -> None:
    table = rank.tables["operator_details.csv"]
    ops = rank.ops()
    parents = nested(ops)
    tasks = launched(rank)
    rows = iter(table.rows)
    children: dict[int, float] = defaultdict(float)
    own: dict[int, list[float]] = {}
    for op in ops:
        mine = tasks.get(id(op), [])
        cores = [t for t in mine if t.get("args", {}).get("Task Type") == "AI_CORE"]
        own[id(op)] = [sum(t["dur"] for t in mine), sum(t["dur"] for t in cores)]
    whole = {key: list(value) for key, value in own.items()}
    # Children come behind their parents, so going backwards they are complete when they are added.
    for op, parent in zip(reversed(ops), reversed(parents), strict=True):
        if parent is not None:
            children[id(parent)] += op["dur"]
            for place in (0, 1):
                whole[id(parent)][place] += whole[id(op)][place]
    made = []
    for op in ops:
        if op["name"].startswith("ProfilerStep#"):
            continue
        row = op.pop("row", None) or next(rows)
        row |= {
            "Host Self Duration(us)": str(round(op["dur"] - children[id(op)], 2)),
            "Host Total Duration(us)": str(round(op["dur"], 2)),
            "Device Self Duration(us)": _short(own[id(op)][0]), "Device Total Duration(us)": _short(whole[id(op)][0]),
            "Device Self Duration With AICore(us)": _short(own[id(op)][1]),
            "Device Total Duration With AICore(us)": _short(whole[id(op)][1]),
        }  # fmt: skip
        made.append(row)
    table.rows = made


# Communication.


def planes(rank: RealRank, call: Event) -> dict[str, list[Event]]:
    """Tasks of a collective by plane, in order of start."""
    end = end_of(call)
    made: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(rank.slices("HCCL", "Communication"), key=lambda e: int(e["ns"])):
        if event["lane"] != "comm" and call["ns"] <= event["ns"] < end:
            made[event["lane"]].append(event)
    return made


def leaves_chip(task: Event) -> bool:
    """Whether a task moves data to another device."""
    return task["name"] in MOVES and task["args"]["link type"] != "ON_CHIP"


def _master(tasks: dict[str, list[Event]]) -> list[Event]:
    """The plane whose times communication.json tells: the first that moves data to another device."""
    return next(tasks[lane] for lane in sorted(tasks) if any(map(leaves_chip, tasks[lane])))


def _ratio(part: float, other: float) -> float:
    return round(part / (part + other), 4) if part + other else 0


def _communication(rank: RealRank) -> None:
    calls = {call["name"]: call for call in rank.calls()}
    for op, entry in entries(rank):
        entry.pop("grown", None)
        call = calls[op.partition("@")[0]]
        tasks = planes(rank, call)
        info, master = entry["Communication Time Info"], _master(tasks)
        moves = [t for t in master if leaves_chip(t)]
        waits = [t for t in master if t["name"] == "Notify_Wait"]
        info["Start Timestamp(us)"] = round(call["ns"] / 250) * 0.25
        info["Elapse Time(ms)"] = call["dur"] / 1000
        info["Transit Time(ms)"] = sum(t["dur"] for t in moves) / 1000
        info["Wait Time(ms)"] = sum(t["dur"] for t in waits) / 1000
        info["Synchronization Time(ms)"] = sum(t["dur"] for t in waits if t["ns"] < moves[0]["ns"]) / 1000
        _time_ratios(info)
        bands = entry["Communication Bandwidth Info"]
        sizes: dict[str, list[float]] = {}
        moved = [t for lane in sorted(tasks) for t in tasks[lane] if leaves_chip(t)]
        for task in moved:
            slot = sizes.setdefault(repr(task["args"]["size(Byte)"] / MEGABYTE), [0, 0.0])
            slot[0] += 1
            slot[1] += task["dur"] / 1000
        size, time = sum(t["args"]["size(Byte)"] for t in moved) / MEGABYTE, sum(t["dur"] for t in moved) / 1000
        for link in ("HCCS", "SDMA"):
            bands[link]["Transit Size(MB)"], bands[link]["Transit Time(ms)"] = size, time
            bands[link]["Bandwidth(GB/s)"] = round(size / time, 4)
        bands["HCCS"]["Size Distribution"] = sizes
    _totals(rank)


def _time_ratios(info: dict[str, Any]) -> None:
    transit = info["Transit Time(ms)"]
    info["Idle Time(ms)"] = info["Elapse Time(ms)"] - transit - info["Wait Time(ms)"]
    info["Wait Time Ratio"] = _ratio(info["Wait Time(ms)"], transit)
    info["Synchronization Time Ratio"] = _ratio(info["Synchronization Time(ms)"], transit)


def _communication_of_kernels(rank: RealRank) -> None:
    """Where there is no trace: elapsed times follow the rows of kernel_details, waits what the editor said."""
    rows = {r["Name"]: r for r in rank.kernels if not is_kernel(r)} if "kernel_details.csv" in rank.tables else {}
    for op, entry in entries(rank):
        entry.pop("grown", None)
        info = entry["Communication Time Info"]
        row = rows.get(op.partition("@")[0])
        if row is not None:
            info["Start Timestamp(us)"] = round(to_ns(row["Start Time(us)"]) / 250) * 0.25
            info["Elapse Time(ms)"] = to_ns(row["Duration(us)"]) / 1e6
        info["Idle Time(ms)"] = info["Elapse Time(ms)"] - info["Transit Time(ms)"] - info["Wait Time(ms)"]
    _totals(rank)


TIMES: Final = ("Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)", "Synchronization Time(ms)", "Idle Time(ms)")


def _totals(rank: RealRank) -> None:
    for step in rank.jsons.get("communication.json", {}).values():
        for kind in step.values():
            if "Total Op Info" not in kind:
                continue
            ops = [entry for op, entry in kind.items() if op != "Total Op Info"]
            info = kind["Total Op Info"]["Communication Time Info"]
            for key in TIMES:
                info[key] = sum(entry["Communication Time Info"][key] for entry in ops)
            info["Wait Time Ratio"] = _ratio(info["Wait Time(ms)"], info["Transit Time(ms)"])
            info["Synchronization Time Ratio"] = _ratio(info["Synchronization Time(ms)"], info["Transit Time(ms)"])
            for link, band in kind["Total Op Info"]["Communication Bandwidth Info"].items():
                own = [entry["Communication Bandwidth Info"][link] for entry in ops]
                band["Transit Time(ms)"] = sum(b["Transit Time(ms)"] for b in own)
                band["Transit Size(MB)"] = sum(b["Transit Size(MB)"] for b in own)
                sizes: dict[str, list[float]] = {}
                for key, (count, time) in ((k, v) for b in own for k, v in b["Size Distribution"].items()):
                    slot = sizes.setdefault(key, [0, 0.0])
                    slot[0] += count
                    slot[1] += time
                band["Size Distribution"] = sizes


def _matrix(rank: RealRank) -> None:
    links: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for call in rank.calls():
        moved: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for tasks in planes(rank, call).values():
            for task in tasks:
                if task["name"] in MOVES:
                    args = task["args"]
                    to = args["src rank"] if args["dst rank"] == NONE else args["dst rank"]
                    moved[f"{args['src rank']}-{to}"][0] += args["size(Byte)"] / MEGABYTE
                    moved[f"{args['src rank']}-{to}"][1] += task["dur"] / 1000
        for link, (size, time) in moved.items():
            links[link].append((size, time, call["name"]))
    ranked = {link: sorted(ops, key=lambda op: -round(op[0] / op[1], 4)) for link, ops in links.items()}
    pick: dict[str, Callable[[list[Any]], Any]] = {
        "top1": lambda ops: ops[0], "middle": lambda ops: ops[len(ops) // 2], "bottom1": lambda ops: ops[-1],
        "bottom2": lambda ops: ops[-2], "bottom3": lambda ops: ops[-3],
    }  # fmt: skip
    for step in rank.jsons["communication_matrix.json"].values():
        for key, matrix in step["collective"].items():
            place = key.partition("@")[0].rpartition("-")[2]
            for link, cell in matrix.items():
                ops = ranked[link]
                if place == "total":
                    size, time = sum(op[0] for op in ops), sum(op[1] for op in ops)
                else:
                    size, time, cell["Op Name"] = pick[place](ops)
                cell["Transit Size(MB)"], cell["Transit Time(ms)"] = size, time
                cell["Bandwidth(GB/s)"] = round(size / time, 4)

