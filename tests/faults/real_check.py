"""Whether the files of a text export agree with one another: invariants of the format, looked at on disk.

Nothing here is shared with `real_derive`: an edit that this finds nothing wrong with is one that a producer could have
written. Real profiles hold all of them.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]
Row = dict[str, str]

ROUNDING_US: Final = 0.0011
CLOCKS_NS: Final = 120_000
QUARTER_US: Final = 0.36
"""Step times are quantised to a quarter of a µs."""


def _ns(text: str) -> int:
    whole, _, rest = text.strip().partition(".")
    return int(whole) * 1000 + int((rest + "000")[:3])


def consistent(folder: Path) -> list[str]:
    """What does not fit together below a folder of `*_ascend_pt` folders; empty when all is well."""
    ranks = sorted(folder.glob("*_ascend_pt"))
    if not ranks:
        return [f"{folder.name}: no rank"]
    return [f"{rank.name}: {said}" for rank in ranks for said in _rank(rank / "ASCEND_PROFILER_OUTPUT")]


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _rank(place: Path) -> Iterator[str]:
    events: list[Event] = _json(place / "trace_view.json") or []
    kernels = _rows(place / "kernel_details.csv")
    communication = _json(place / "communication.json")
    compute = [r for r in kernels if r["Accelerator Core"] not in ("HCCL", "COMMUNICATION")]
    steps = _rows(place / "step_trace_time.csv")
    yield from _step_rows(steps)
    if kernels:
        yield from _kernels(kernels)
        yield from _statistic(compute, _rows(place / "op_statistic.csv"))
        yield from _sums(kernels, compute, steps[0])
    yield from _communication(communication, kernels)
    yield from _matrix(communication, _json(place / "communication_matrix.json"))
    yield from _memory(_rows(place / "operator_memory.csv"))
    if events:
        trace = _Trace(events)
        yield from trace.kernels(kernels)
        yield from trace.overlap(steps[0])
        yield from trace.calls(communication)
        yield from trace.apis(_rows(place / "api_statistic.csv"))
        yield from trace.operators(_rows(place / "operator_details.csv"))
        yield from trace.flows()
        yield from trace.order()
        yield from trace.preparing(steps[0])


def _step_rows(steps: Sequence[Row]) -> Iterator[str]:
    for row in steps:
        cell = {key: float(value) for key, value in row.items() if key not in ("Step", "Device_id")}
        parts = cell["Computing"] + cell["Communication(Not Overlapped)"] + cell["Free"]
        if abs(parts - cell["Stage"] - cell["Bubble"]) > QUARTER_US:
            yield f"step_trace_time: the parts are {parts}, Stage + Bubble {cell['Stage'] + cell['Bubble']}"
        hidden = cell["Communication"] - cell["Communication(Not Overlapped)"]
        if abs(cell["Overlapped"] - hidden) > 0.001:
            yield f"step_trace_time: Overlapped {cell['Overlapped']} is not {hidden}"


def _kernels(kernels: Sequence[Row]) -> Iterator[str]:
    end = None
    for row in kernels:
        start, dur = _ns(row["Start Time(us)"]), _ns(row["Duration(us)"])
        if end is not None and abs(max(0, start - end) / 1000 - float(row["Wait Time(us)"])) > 0.25:
            yield f"kernel_details: wait of {row['Name']} is {row['Wait Time(us)']}, not {(start - end) / 1000}"
        end = start + dur
        for unit, core in (("aic", "aicore_time(us)"), ("aiv", "aiv_time(us)")):
            try:
                whole = float(row[core])
            except (KeyError, ValueError):
                continue
            if whole > 1.02 * dur / 1000 + 0.5:
                yield f"kernel_details: {row['Name']} keeps its cores {whole} us busy in {dur / 1000} us"
            for pipe in ("mac", "vec", "scalar", "mte1", "mte2", "mte3", "fixpipe"):
                time, ratio = row.get(f"{unit}_{pipe}_time(us)"), row.get(f"{unit}_{pipe}_ratio")
                if time and ratio and abs(float(time) - float(ratio) * whole) > 0.0006 * whole + 0.002:
                    yield f"kernel_details: {unit}_{pipe} of {row['Name']}: {time} us is not {ratio} of {whole}"
    yield from _utilisation(kernels)
    starts = [_ns(row["Start Time(us)"]) for row in kernels]
    if starts != sorted(starts):
        yield "kernel_details: not in order of start"


def _utilisation(kernels: Sequence[Row]) -> Iterator[str]:
    """cube_utilization is cycles over those of all cores at the rated clock: cores x clock is one number, or less."""
    rates = []
    for row in kernels:
        try:
            used, cycles = float(row["cube_utilization(%)"]), float(row["aic_total_cycles"])
        except (KeyError, ValueError):
            continue
        if used > 1 and cycles > 1e5:
            rates.append((cycles / (used / 100 * _ns(row["Duration(us)"])), row["Name"]))
    middle = sorted(rate for rate, _ in rates)[len(rates) // 2] if rates else 0.0
    for rate, name in rates:
        if not 0.98 * middle <= rate <= 1.02 * middle:
            yield f"kernel_details: cube_utilization of {name} fits {rate} cycles per ns, others {middle}"


def _statistic(compute: Sequence[Row], statistic: Sequence[Row]) -> Iterator[str]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in compute:
        sums[row["Type"], row["Accelerator Core"]].append(_ns(row["Duration(us)"]) / 1000)
    told = {(row["OP Type"], row["Core Type"]): row for row in statistic}
    if set(told) != set(sums):
        yield f"op_statistic: types {sorted(set(told) ^ set(sums))}"
    for key in set(told) & set(sums):
        row, times = told[key], sums[key]
        if int(row["Count"]) != len(times) or abs(float(row["Total Time(us)"]) - sum(times)) > 0.02:
            yield f"op_statistic: {key[0]} {row['Count']} {row['Total Time(us)']}, kernels {len(times)} {sum(times)}"
    if abs(sum(float(row["Ratio(%)"]) for row in statistic) - 100) > 0.02:
        yield "op_statistic: ratios are not 100 % together"


def _sums(kernels: Sequence[Row], compute: Sequence[Row], step: Row) -> Iterator[str]:
    busy = sum(_ns(r["Duration(us)"]) for r in compute) / 1000
    # Kernels on several streams may overlap a little.
    if not busy - 50 <= float(step["Computing"]) <= busy + 0.1:
        yield f"step_trace_time: Computing {step['Computing']}, kernels {busy}"
    starts = [_ns(r["Start Time(us)"]) for r in kernels]
    ends = [_ns(r["Start Time(us)"]) + _ns(r["Duration(us)"]) for r in kernels]
    if abs((max(ends) - min(starts)) / 1000 - float(step["Stage"])) > QUARTER_US:
        yield f"step_trace_time: Stage {step['Stage']}, kernels span {(max(ends) - min(starts)) / 1000}"


def _operators(communication: Any) -> Iterator[tuple[str, Any]]:
    for step in communication.values():
        for kind in step.values():
            yield from kind.items()


def _communication(communication: Any, kernels: Sequence[Row]) -> Iterator[str]:
    rows = {row["Name"]: row for row in kernels}
    for op, entry in _operators(communication):
        info, bands = entry["Communication Time Info"], entry["Communication Bandwidth Info"]
        rest = info["Elapse Time(ms)"] - info["Transit Time(ms)"] - info["Wait Time(ms)"] - info["Idle Time(ms)"]
        if abs(rest) > 1e-6 or info["Idle Time(ms)"] < -1e-6:
            yield f"communication.json: {op} is off by {rest} ms, idle {info['Idle Time(ms)']}"
        if info["Synchronization Time(ms)"] > info["Wait Time(ms)"] + 1e-6:
            yield f"communication.json: {op} synchronises longer than it waits"
        for link, band in bands.items():
            sizes = band["Size Distribution"]
            size = sum(float(key) * count for key, (count, _) in sizes.items())
            if sizes and abs(size - band["Transit Size(MB)"]) > 1e-6 * max(1, size):
                yield f"communication.json: {op} {link} sizes are {size}, not {band['Transit Size(MB)']}"
            time = sum(spent for _, spent in sizes.values())
            if sizes and abs(time - band["Transit Time(ms)"]) > 1e-5:
                yield f"communication.json: {op} {link} times are {time}, not {band['Transit Time(ms)']}"
        row = rows.get(op.partition("@")[0])
        if row is not None and abs(float(row["Duration(us)"]) / 1000 - info["Elapse Time(ms)"]) > 2e-6:
            yield f"communication.json: {op} takes {info['Elapse Time(ms)']} ms, its row {row['Duration(us)']} us"
    for step in communication.values():
        for kind in step.values():
            whole = kind.get("Total Op Info")
            for key in ("Elapse Time(ms)", "Wait Time(ms)", "Transit Time(ms)", "Synchronization Time(ms)"):
                parts = sum(e["Communication Time Info"][key] for op, e in kind.items() if op != "Total Op Info")
                if whole and abs(whole["Communication Time Info"][key] - parts) > 1e-6:
                    yield f"communication.json: total {key} is not {parts}"


def _matrix(communication: Any, matrix: Any) -> Iterator[str]:
    told: dict[str, float] = defaultdict(float)
    for step in communication.values():
        for kind in step.values():
            band = kind.get("Total Op Info", {}).get("Communication Bandwidth Info", {}).get("HCCS", {})
            told["size"] += band.get("Transit Size(MB)", 0)
            told["time"] += band.get("Transit Time(ms)", 0)
    seen: dict[str, float] = defaultdict(float)
    for step in matrix.values():
        for kind in step.values():
            for key, links in kind.items():
                for link in links.values():
                    if "-total@" in key and link["Transport Type"] == "HCCS":
                        seen["size"] += link["Transit Size(MB)"]
                        seen["time"] += link["Transit Time(ms)"]
    for key in told if matrix else ():
        if abs(told[key] - seen[key]) > 1e-4 * max(1.0, told[key]):
            yield f"communication_matrix.json: {key} {seen[key]}, communication.json {told[key]}"


def _memory(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["Release Time(us)"].strip() and row["Allocation Time(us)"].strip():
            held = _ns(row["Release Time(us)"]) - _ns(row["Allocation Time(us)"])
            if abs(held - _ns(row["Duration(us)"])) > 1:
                yield f"operator_memory: {row['Name']} held {held} ns, told {row['Duration(us)']} us"


class _Trace:
    """The events by process."""

    def __init__(self, events: Sequence[Event]) -> None:
        names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events
                   if e["ph"] == "M" and e["name"] == "thread_name"}  # fmt: skip
        self.slices: dict[str, list[tuple[Event, int, int]]] = defaultdict(list)
        self.events = events
        for event in events:
            if event["ph"] == "X":
                start = _ns(event["ts"])
                process = names.get(event["pid"], "")
                if process in ("HCCL", "Communication") and threads[event["pid"], event["tid"]].startswith("Plane"):
                    process = "planes"
                self.slices[process].append((event, start, start + round(event["dur"] * 1000)))
        self.collectives = self.slices["HCCL"] or self.slices["Communication"]

    def kernels(self, rows: Sequence[Row]) -> Iterator[str]:
        """Each row is a slice of equal start and name, and as long."""
        slices = {(e["name"], start): e["dur"] for e, start, _ in (*self.slices["Ascend Hardware"], *self.collectives)}
        for row in rows:
            # Rows of collectives start up to 1 ns from their slice.
            starts = (_ns(row["Start Time(us)"]) + off for off in (0, 1, -1))
            dur = next((slices[row["Name"], start] for start in starts if (row["Name"], start) in slices), None)
            if dur is None or abs(dur - float(row["Duration(us)"])) > ROUNDING_US:
                yield f"trace_view: {row['Name']} at {row['Start Time(us)'].strip()} takes {dur}, {row['Duration(us)']}"

    def overlap(self, step: Row) -> Iterator[str]:
        """Sums of the overlap rows are the cells of step_trace_time; the rows do not overlap."""
        lanes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for event, start, end in self.slices["Overlap Analysis"]:
            lanes[event["name"]].append((start, end))
        for name, pieces in lanes.items():
            pieces.sort()
            if any(a[1] > b[0] + 1 for a, b in pairwise(pieces)):
                yield f"trace_view: rows of {name} overlap"
            length = sum(end - start for start, end in pieces) / 1000
            if abs(length - float(step[name])) > 0.5:
                yield f"trace_view: {name} sums to {length}, step_trace_time says {step[name]}"

    def calls(self, communication: Any) -> Iterator[str]:
        """Collectives are as long as communication.json says, and hold their tasks."""
        calls = {e["name"]: (start, end, e["dur"]) for e, start, end in self.collectives}
        for op, entry in _operators(communication):
            name = op.partition("@")[0]
            elapsed = entry["Communication Time Info"]["Elapse Time(ms)"]
            if name in calls and abs(calls[name][2] / 1000 - elapsed) > 1e-6:
                yield f"communication.json: {name} is not as long as its slice"
        for event, start, end in self.slices["planes"]:
            if not any(first <= start and end <= last + 1 for first, last, _ in calls.values()):
                yield f"trace_view: {event['name']} at {event['ts']} lies in no collective"
        streams = Counter((start, round(e["dur"], 3)) for e, start, _ in self.slices["Ascend Hardware"])
        for event, start, _ in self.slices["planes"]:
            if not streams[start, round(event["dur"], 3)]:
                yield f"trace_view: {event['name']} at {event['ts']} is on no stream"

    def apis(self, rows: Sequence[Row]) -> Iterator[str]:
        """api_statistic counts the slices of CANN."""
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event, _, _ in self.slices["CANN"]:
            times[event["args"]["level"], event["name"].partition("@")[2]].append(event["dur"])
        told = {(row["Level"], row["API Name"]): (int(row["Count"]), float(row["Time(us)"])) for row in rows}
        for key in set(told) | set(times):
            count, time = told.get(key, (0, 0.0))
            if count != len(times[key]) or abs(time - sum(times[key])) > 0.02:
                yield f"api_statistic: {key} {count} {time}, slices {len(times[key])} {sum(times[key])}"

    def operators(self, rows: Sequence[Row]) -> Iterator[str]:
        """operator_details has each operator once, with its length; what is not its children's is its own."""
        ops = [(e, s, t) for e, s, t in self.slices["Python"] if e.get("cat") == "cpu_op"]
        ops = [item for item in ops if not item[0]["name"].startswith("ProfilerStep#")]
        told = Counter((row["Name"], round(float(row["Host Total Duration(us)"]), 1)) for row in rows)
        seen = Counter((e["name"], round(round(e["dur"], 2), 1)) for e, _, _ in ops)
        if told != seen:
            yield f"operator_details: {list(((told - seen) + (seen - told)).items())[:3]}"
        own = sum(float(row["Host Self Duration(us)"]) for row in rows)
        covered = 0
        for tid in {e["tid"] for e, _, _ in ops}:
            end = 0
            for _, start, last in sorted((i for i in ops if i[0]["tid"] == tid), key=lambda i: i[1]):
                covered += max(0, last - max(start, end))
                end = max(end, last)
        if abs(own - covered / 1000) > 0.02 * len(rows):
            yield f"operator_details: own times sum to {own}, operators cover {covered / 1000}"

    def flows(self) -> Iterator[str]:
        """Flows end where a slice starts, and never before they start."""
        starts: dict[tuple[Any, ...], int] = {}
        places = {(e["pid"], e["tid"], start) for found in self.slices.values() for e, start, _ in found}
        for event in self.events:
            if event["ph"] == "s":
                starts[event["cat"], str(event["id"])] = _ns(event["ts"])
        for event in self.events:
            if event["ph"] != "f":
                continue
            time = _ns(event["ts"])
            if event["cat"] != "fwdbwd" and (event["pid"], event["tid"], time) not in places:
                yield f"trace_view: flow {event['cat']} {event['id']} ends at no slice"
            if event["cat"] == "async_npu" and int(event["id"]) != time:
                yield f"trace_view: flow {event['id']} is not the start of its task"
            # The clocks of host and device are some µs apart in real profiles.
            if starts.get((event["cat"], str(event["id"])), 0) > time + CLOCKS_NS:
                yield f"trace_view: flow {event['cat']} {event['id']} ends before it starts"

    def order(self) -> Iterator[str]:
        """Operators of a thread nest; kernels of a stream follow one another; calls into CANN nest."""
        lines: dict[tuple[Any, ...], list[tuple[int, int, str]]] = defaultdict(list)
        for process in ("Python", "CANN"):
            for event, start, end in self.slices[process]:
                kind = event.get("cat") or event["args"].get("level")
                lines[process, event["tid"], kind].append((start, end, event["name"]))
        for key, line in lines.items():
            stack: list[tuple[int, int, str]] = []
            for start, end, name in sorted(line, key=lambda item: (item[0], -item[1])):
                while stack and stack[-1][1] <= start + 1:
                    stack.pop()
                if stack and end > stack[-1][1] + 1:
                    yield f"trace_view: {name} reaches out of {stack[-1][2]} on {key[0]} {key[2]}"
                stack.append((start, end, name))
        streams: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        collective = {start for _, start, _ in self.slices["planes"]}
        for event, start, end in self.slices["Ascend Hardware"]:
            if start not in collective:
                streams[event["tid"]].append((start, end, event["name"]))
        for line in streams.values():
            line.sort()
            for (_, end, name), (start, _, other) in pairwise(line):
                if end > start + 1:
                    yield f"trace_view: {other} starts before {name} ends on one stream"

    def preparing(self, step: Row) -> Iterator[str]:
        """Time from the start of the step on the host to the first task."""
        begin = next(start for e, start, _ in self.slices["Python"] if e["name"].startswith("ProfilerStep#"))
        first = min(start for e, start, _ in self.slices["Overlap Analysis"])
        if abs((first - begin) / 1000 - float(step["Preparing"])) > QUARTER_US:
            yield f"step_trace_time: Preparing {step['Preparing']}, the trace says {(first - begin) / 1000}"
