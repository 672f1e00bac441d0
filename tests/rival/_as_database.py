"""Writes a text export of torch_npu as its database export would hold it: the same recording in the other format.

Reads the files and not the recording, so that both exports say the same to the last digit. Steps, operators, queue,
calls, kernels with shapes and counters, copies, collectives with their tasks, memory, the clock, the exporter's sums.

Source: format reference, sections 3.1 to 3.6.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tests.parsers._ascend_profile import DatabaseWriter

NONE: Final = 4294967295
NO_TYPE: Final = 65535
DTYPES: Final = {"INT8": 0, "FP16": 3, "FP32": 4, "INT64": 5, "BFP16": 11, "INVALID_TYPE": NO_TYPE}
LINKS: Final = {"ON_CHIP": 0, "HCCS": 1, "PCIE": 2, "ROCE": 3, "SIO": 4, "INVALID_TYPE": NO_TYPE}
TRANSPORTS: Final = {"SDMA": 0, "RDMA": 1, "LOCAL": 2}
LEVELS: Final = {"acl": 20000, "node": 10000, "communication": 5500, "runtime": 5000}
OP, QUEUE = 50001, 50002
COPY: Final = {"host to device": 1, "device to host": 2, "device to device": 3}

Event = dict[str, Any]
Cells = dict[str, str]


def ns(us: str | float) -> int:
    """A time in us as ns, exactly."""
    return int(Decimal(str(us).strip()) * 1000)


def as_database(source: Path, folder: Path) -> Path:
    """Writes the database export of a rank below a folder; returns the rank's folder."""
    target = folder / source.name
    (target / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    for path in source.glob("profiler_info*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    _Writer(source, target).write()
    return target


class _Writer:
    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.files = source, source / "ASCEND_PROFILER_OUTPUT"
        (info,) = source.glob("profiler_info*.json")
        rank = json.loads(info.read_text()).get("rank_id")
        self.knows_rank, self.rank = rank is not None, int(rank or 0)
        self.events: list[Event] = json.loads((self.files / "trace_view.json").read_text("utf-8"))
        self.process = {
            e["pid"]: e["args"]["name"] for e in self.events if e["ph"] == "M" and e["name"] == "process_name"
        }
        self.lines = {
            (e["pid"], e["tid"]): e["args"]["name"]
            for e in self.events if e["ph"] == "M" and e["name"] == "thread_name"
        }  # fmt: skip
        self.out = DatabaseWriter(target / "ASCEND_PROFILER_OUTPUT" / f"ascend_pytorch_profiler_{self.rank}.db")
        self.sums = DatabaseWriter(target / "ASCEND_PROFILER_OUTPUT" / "analysis.db")
        for text in ("zero", "N/A"):
            self.out.word(text)
        self.tasks: list[tuple[object, ...]] = []

    def slices(self, process: str) -> Iterator[Event]:
        """The slices of a process in the order of the file."""
        return (e for e in self.events if e["ph"] == "X" and self.process[e["pid"]] == process)

    def table(self, name: str) -> list[Cells]:
        """Rows of a csv file, none where it is not there."""
        path = self.files / name
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as text:
            return list(csv.DictReader(text))

    def write(self) -> None:
        """All tables of both databases."""
        self._facts()
        self._host()
        self._device()
        self._collectives()
        self.out.table(
            "TASK",
            ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType", "contextId",
             "streamId", "taskId", "modelId"),
            self.tasks,
        )  # fmt: skip
        self._samples()
        self._sums()
        self.out.close()
        self.sums.close()

    def task(self, start: int, end: int, connection: object, kind: str, stream: object, number: object) -> int:
        """Adds a task of the device; returns its id."""
        ident = len(self.tasks)
        self.tasks.append(
            (start, end, self.device, connection, ident, 1, self.out.word(kind), NONE, stream, number, NONE)
        )
        return ident

    def _facts(self) -> None:
        rows = [("SCHEMA_VERSION", "1.2.0")]
        path = self.source / "profiler_metadata.json"
        if path.exists():
            rows += [(key, json.dumps(value)) for key, value in json.loads(path.read_text()).items()]
        self.device = int(next((r["Device_id"] for r in self.table("kernel_details.csv") if r.get("Device_id")), 0))
        self.out.table("META_DATA", ("name", "value"), rows)
        if self.knows_rank:
            self.out.table("RANK_DEVICE_MAP", ("rankId", "deviceId"), [(self.rank, self.device)])

    # ---- host ------------------------------------------------------------------------------------------------------

    def _host(self) -> None:
        python = next(pid for pid, name in self.process.items() if name == "Python")
        flows = [e for e in self.events if e["ph"] in "sf" and e.get("cat") == "async_npu"]
        began = {e["id"]: (e["tid"], ns(e["ts"])) for e in flows if e["ph"] == "s"}
        connection = {  # of the device's task that starts at a time
            (e["pid"], e["tid"], ns(e["ts"])): e["args"]["connection_id"]
            for e in self.events if e["ph"] == "X" and "connection_id" in e.get("args", {})
        }  # fmt: skip
        launched: dict[tuple[int, int], list[int]] = {}
        for flow in flows:
            if flow["ph"] == "f":
                tid, at = began[flow["id"]]
                launched.setdefault((tid, at), []).append(connection[flow["pid"], flow["tid"], ns(flow["ts"])])
        api: list[tuple[object, ...]] = []
        links: list[tuple[int, int]] = []
        steps: list[tuple[int, int, int]] = []
        ops = [e for e in self.slices("Python") if e.get("cat") == "cpu_op"]
        # The innermost operator that covers the launch: the shortest of those around it.
        owner: dict[int, list[int]] = {}
        spans = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["tid"]) for e in ops]
        for (tid, at), connections in launched.items():
            around = [
                (end - start, place) for place, (start, end, thread) in enumerate(spans)
                if thread == tid and start <= at < end and not str(ops[place]["name"]).startswith("ProfilerStep#")
            ]  # fmt: skip
            if around:
                owner.setdefault(min(around)[1], []).extend(connections)
        for place, event in enumerate(ops):
            start, end, tid = spans[place]
            ident = len(api)
            links += [(ident, number) for number in owner.get(place, [])]
            name = str(event["name"])
            if name.startswith("ProfilerStep#"):
                steps.append((int(name[13:]), start, end))
            thread = python << 32 | tid
            api.append((str(start), str(end), thread, ident, self.out.word(name), -1, 0, None, None, None, OP))
        for event in self.slices("Python"):
            if event.get("cat") in ("enqueue", "dequeue"):
                ident = len(api)
                links.append((ident, event["args"]["correlation_id"]))
                start = ns(event["ts"])
                api.append(
                    (str(start), str(start + ns(event["dur"])), python << 32 | event["tid"], ident,
                     self.out.word(event["name"]), None, None, None, None, None, QUEUE)
                )  # fmt: skip
        self.out.table(
            "PYTORCH_API",
            ("startNs TEXT", "endNs TEXT", "globalTid", "connectionId", "name", "sequenceNumber", "fwdThreadId",
             "inputDtypes", "inputShapes", "callchainId", "type"),
            api,
        )  # fmt: skip
        self.out.table("CONNECTION_IDS", ("id", "connectionId"), links)
        self.out.table("STEP_TIME", ("id", "startNs", "endNs"), steps)
        self.out.table("CANN_API", ("startNs", "endNs", "type", "globalTid", "connectionId", "name"), [
            (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), LEVELS[e["args"]["level"]], python << 32 | e["tid"],
             e["args"]["connection_id"] or None, self.out.word(str(e["name"]).partition("@")[2] or e["name"]))
            for e in self.slices("CANN")
        ])  # fmt: skip
        self.out.table("GC_RECORD", ("startNs", "endNs", "globalTid"), [
            (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), python << 32 | e["tid"]) for e in self.slices("Python GC")
        ])  # fmt: skip

    # ---- device ----------------------------------------------------------------------------------------------------

    def _device(self) -> None:
        rows = {ns(row["Start Time(us)"]): row for row in self.table("kernel_details.csv")}
        word = self.out.word
        kernels: list[tuple[object, ...]] = []
        counters: list[tuple[object, ...]] = []
        copies: list[tuple[object, ...]] = []
        for event in self.slices("Ascend Hardware"):
            args, start = event["args"], ns(event["ts"])
            row = rows.get(start)
            is_copy = "operation" in args
            end = start + (ns(row["Duration(us)"]) if row and not is_copy else ns(event["dur"]))
            kind = "MEMCPY_ASYNC" if is_copy else "KERNEL"
            number = int(row["Task ID"]) if row and not is_copy else args["Task Id"]
            ident = self.task(start, end, args["connection_id"], kind, event["tid"], number)
            if is_copy:
                copies.append((ident, args["size(B)"], COPY[args["operation"]]))
            elif row is not None:
                columns = ("Input Formats", "Input Data Types", "Input Shapes", "Output Formats", "Output Data Types",
                           "Output Shapes")  # fmt: skip
                kernels.append(
                    (word(row["Name"]), ident, int(row["Block Dim"]), int(row["Mix Block Dim"]),
                     word(row["Accelerator Core"]), word(row["Type"]), *(word(row[name]) for name in columns),
                     word(row["OP State"]), word(row["HF32 Eligible"]))
                )  # fmt: skip
                counters += [(ident, word(name), value) for name, value in _counters(row)]
        self.out.table(
            "COMPUTE_TASK_INFO",
            ("name", "globalTaskId", "blockNum", "mixBlockNum", "taskType", "opType", "inputFormats", "inputDataTypes",
             "inputShapes", "outputFormats", "outputDataTypes", "outputShapes", "opState", "hf32Eligible"),
            kernels,
        )  # fmt: skip
        self.out.table("TASK_PMU_INFO", ("globalTaskId", "name", "value"), counters)
        self.out.table("MEMCPY_INFO", ("globalTaskId", "size", "memcpyOperation"), copies)

    def _collectives(self) -> None:
        ops: list[tuple[object, ...]] = []
        info: list[tuple[object, ...]] = []
        word = self.out.word
        group = ""
        spans: list[tuple[int, int, str, int]] = []
        events = list(self.slices("Communication"))
        for event in events:
            line = self.lines[event["pid"], event["tid"]]
            if line.startswith("Group "):
                group = line.removeprefix("Group ").removesuffix(" Communication")
                args, start = event["args"], ns(event["ts"])
                end = start + ns(event["dur"])
                spans.append((start, end, str(event["tid"]), len(ops)))
                ops.append(
                    (word(event["name"]), start, end, args["connection_id"], word(group), len(ops), 0, 0,
                     DTYPES[args["data_type"]], word(args["alg_type"]), args["count"],
                     word(str(event["name"]).partition("__")[0] + "_"), self.device, args["rank_size"])
                )  # fmt: skip
        current = -1
        for event in events:
            line = self.lines[event["pid"], event["tid"]]
            if line.startswith("Group "):
                current += 1  # its parts follow it
                continue
            args, start = event["args"], ns(event["ts"])
            ident = self.task(start, start + ns(event["dur"]), ops[current][3], args["task type"], 40, 7)
            info.append(
                (word(event["name"]), ident, word(args["task type"]), int(line.removeprefix("Plane ")), ops[current][4],
                 5, NONE, args["src rank"], args["dst rank"], TRANSPORTS[args["transport type"]], args["size(Byte)"],
                 DTYPES[args["data type"]], LINKS[args["link type"]], current)
            )  # fmt: skip
        self.out.table(
            "COMMUNICATION_OP",
            ("opName", "startNs", "endNs", "connectionId", "groupName", "opId", "relay", "retry", "dataType", "algType",
             "count", "opType", "deviceId", "rankSize"),
            ops,
        )  # fmt: skip
        self.out.table(
            "COMMUNICATION_TASK_INFO",
            ("name", "globalTaskId", "taskType", "planeId", "groupName", "notifyId", "rdmaType", "srcRank", "dstRank",
             "transportType", "size", "dataType", "linkType", "opId"),
            info,
        )  # fmt: skip

    def _samples(self) -> None:
        word = self.out.word

        def size(cell: str, factor: int) -> int | None:
            return int(Decimal(cell) * factor) if cell else None

        mib, kib = 1 << 20, 1 << 10
        self.out.table("MEMORY_RECORD", ("component", "timestamp", "totalAllocated", "totalReserved", "totalActive"), [
            (word(r["Component"]), ns(r["Timestamp(us)"]), size(r["Total Allocated(MB)"], mib),
             size(r["Total Reserved(MB)"], mib), size(r.get("Total Active(MB)", ""), mib))
            for r in self.table("memory_record.csv") if r["Component"] != "APP"
        ])  # fmt: skip
        self.out.table("NPU_MEM", ("type", "ddr", "hbm", "timestampNs", "deviceId"), [
            (word("app"), 0, size(r["Total Reserved(MB)"], mib), ns(r["Timestamp(us)"]), self.device)
            for r in self.table("memory_record.csv") if r["Component"] == "APP"
        ])  # fmt: skip
        self.out.table("OP_MEMORY", ("name", "size", "allocationTime", "releaseTime"), [
            (word(r["Name"]), size(r["Size(KB)"], kib), ns(r["Allocation Time(us)"]),
             ns(r["Release Time(us)"]) if r["Release Time(us)"].strip() else None)
            for r in self.table("operator_memory.csv")
        ])  # fmt: skip
        self.out.table("AICORE_FREQ", ("deviceId", "timestampNs", "freq"), [
            (self.device, ns(e["ts"]), e["args"]["MHz"])
            for e in self.events if e["ph"] == "C" and e["name"] == "AI Core Freq"
        ])  # fmt: skip

    # ---- analysis.db -----------------------------------------------------------------------------------------------

    def _sums(self) -> None:
        times, bands, links = [], [], []
        path = self.files / "communication.json"
        for step, classes in (json.loads(path.read_text()) if path.exists() else {}).items():
            for kind, calls in classes.items():
                for key, call in calls.items():
                    name, at, group = key.partition("@")
                    if not at:
                        continue
                    t = call["Communication Time Info"]
                    times.append((
                        name, group, t["Start Timestamp(us)"], t["Elapse Time(ms)"], t["Transit Time(ms)"],
                        t["Wait Time(ms)"], t["Synchronization Time(ms)"], t["Idle Time(ms)"], step, kind,
                    ))  # fmt: skip
                    for transport, band in call["Communication Bandwidth Info"].items():
                        head = (name, group, transport, band["Transit Size(MB)"], band["Transit Time(ms)"],
                                band["Bandwidth(GB/s)"], band["Large Packet Ratio"])  # fmt: skip
                        sizes = band["Size Distribution"].items() or [("0", [0, 0])]
                        bands += [(*head, float(size), count, spent, step, kind) for size, (count, spent) in sizes]
        path = self.files / "communication_matrix.json"
        for step, classes in (json.loads(path.read_text()) if path.exists() else {}).items():
            for kind, calls in classes.items():
                for key, pairs in calls.items():
                    name, at, group = key.partition("@")
                    for pair, link in pairs.items() if at else ():
                        src, dst = pair.split("-")
                        links.append((
                            name, group, src, dst, link["Transport Type"], link["Transit Size(MB)"],
                            link["Transit Time(ms)"], link["Bandwidth(GB/s)"], step, kind, link.get("Op Name"),
                        ))  # fmt: skip
        self.sums.table(
            "CommAnalyzerTime",
            ("hccl_op_name", "group_name", "start_timestamp", "elapse_time", "transit_time", "wait_time",
             "synchronization_time", "idle_time", "step", "type"),
            times,
        )  # fmt: skip
        self.sums.table(
            "CommAnalyzerBandwidth",
            ("hccl_op_name", "group_name", "transport_type", "transit_size", "transit_time", "bandwidth",
             "large_packet_ratio", "package_size", "count", "total_duration", "step", "type"),
            bands,
        )  # fmt: skip
        self.sums.table(
            "CommAnalyzerMatrix",
            ("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "transit_size", "transit_time",
             "bandwidth", "step", "type", "op_name"),
            links,
        )  # fmt: skip
        names = {
            "Computing": "computing", "Communication(Not Overlapped)": "communication_not_overlapped",
            "Overlapped": "overlapped", "Communication": "communication", "Free": "free", "Stage": "stage",
            "Bubble": "bubble",
            "Communication(Not Overlapped and Exclude Receive)": "communication_not_overlapped_and_exclude_receive",
            "Preparing": "preparing",
        }  # fmt: skip
        self.sums.table("StepTraceTime", ("step", *names.values()), [
            (row["Step"], *(float(row[name]) for name in names)) for row in self.table("step_trace_time.csv")
        ])  # fmt: skip


def _counters(row: Cells) -> Iterator[tuple[str, float]]:
    for name, cell in row.items():
        if not name.startswith(("aic", "aiv")) or cell in ("", "N/A"):
            continue
        if name in ("aicore_time(us)", "aiv_time(us)"):
            yield f"{name[:3]}_total_time", float(cell) * 1000
        elif not name.endswith("_time(us)"):
            yield name, float(cell)
