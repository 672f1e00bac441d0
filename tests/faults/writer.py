"""Writes what was recorded as torch_npu exports it: text, generation G3.

Source: format reference, sections 1, 2 and 6.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.faults.machine import (
    CUBE_CORES,
    VECTOR_CORES,
    Call,
    Job,
    Kernel,
    Recording,
    SubTask,
    Task,
    group_hash,
)

Interval = tuple[int, int]

KERNEL_COLUMNS: Final = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
    "aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_scalar_time(us)",
    "aic_scalar_ratio", "aic_mte1_time(us)", "aic_mte1_ratio", "aic_mte2_time(us)", "aic_mte2_ratio",
    "aic_fixpipe_time(us)", "aic_fixpipe_ratio", "aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles",
    "aiv_vec_time(us)", "aiv_vec_ratio", "aiv_scalar_time(us)", "aiv_scalar_ratio", "aiv_mte2_time(us)",
    "aiv_mte2_ratio", "aiv_mte3_time(us)", "aiv_mte3_ratio", "aiv_icache_miss_rate", "cube_utilization(%)",
)  # fmt: skip
DTYPE_BYTES: Final = {"FP32": 4, "BFP16": 2, "FP16": 2, "INT8": 1}
NONE: Final = 4294967295


def us(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def write_job(job: Job, recordings: dict[int, Recording], folder: Path) -> None:
    """One directory per rank whose files are there, and the logs beside them."""
    for name, text in job.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    for rank, recording in recordings.items():
        if rank not in job.hidden:
            _Rank(job, recording, folder / f"node{rank // 8}_{4000 + rank}_20260529120000000_ascend_pt").write()


class _Rank:
    def __init__(self, job: Job, recording: Recording, folder: Path) -> None:
        self.job, self.recording, self.rank = job, recording, recording.rank
        self.folder, self.output = folder, folder / "ASCEND_PROFILER_OUTPUT"
        self.device = recording.rank % 8
        self.kernels = sorted((t for t in recording.tasks if t.kernel is not None), key=lambda t: t.start)
        self.copies = [t for t in recording.tasks if t.copy is not None]
        self.calls = sorted(recording.calls, key=lambda c: c.start)
        self.windows = self._windows()

    def write(self) -> None:
        self.output.mkdir(parents=True)
        self.info()
        self.metadata()
        self.kernel_details()
        self.statistics()
        self.step_trace()
        if self.calls:
            self.communication()
            self.matrix()
        self.memory()
        self.trace_view()

    def text(self, name: str, text: str) -> None:
        (self.output / name).write_text(text, newline="")

    def csv(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
        self.text(name, "\n".join(lines) + "\n")

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _windows(self) -> list[tuple[int, int, int, int]]:
        """Number, host start, device start and end: from the first to the last task launched in the host's step."""
        windows = []
        for number, start, end in self.recording.steps:
            entries: list[Task | Call] = [*self.kernels, *self.calls]
            launched = [(t.start, t.start + t.dur) for t in entries if start <= t.host_ts < end]
            if launched:
                windows.append((number, start, min(s for s, _ in launched), max(e for _, e in launched)))
        return windows

    def step_of(self, start: int) -> int | str:
        return next((number for number, _, first, last in self.windows if first <= start <= last), "")

    def frequency_at(self, at: int) -> int:
        """Frequency of the AI Core at a time of the host's steps."""
        place = next((i for i, (_, start, end) in enumerate(self.recording.steps) if start <= at < end), 0)
        return self.job.frequency_of(self.rank, place)

    # ---- facts -----------------------------------------------------------------------------------------------------

    def info(self) -> None:
        steps = self.recording.steps
        common = {
            "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
            "schedule": {
                "wait": 0, "active": len(steps), "warmup": 2, "repeat": 1, "skip_first": self.job.first_step - 2
            },
            "record_shapes": True, "profile_memory": True, "with_stack": False, "with_flops": False,
            "with_modules": False,
        }  # fmt: skip
        experimental = {
            "_profiler_level": "Level1", "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION", "_l2_cache": False,
            "_msprof_tx": False, "_mstx": False, "_data_simplification": False, "record_op_args": False,
            "_op_attr": False, "_export_type": ["text"], "_host_sys": [], "_sys_io": False,
            "_sys_interconnection": False, "_gc_detect_threshold": 1.0 if self.job.has_gc else None,
        }  # fmt: skip
        info: dict[str, object] = {
            "config": {"common_config": common, "experimental_config": experimental},
            "start_info": {
                "syscnt_enable": True, "freq": 100, "start_cnt": 1_000_000, "start_monotonic": 5_000_000_000
            },
            "end_info": {"collectionTimeEnd": steps[-1][2] + 1_000_000, "MonotonicTimeEnd": 9_000_000_000},
            "torch_npu_version": "2.7.1", "cann_version": "8.3.RC1",
        }  # fmt: skip
        name = "profiler_info.json"
        if self.job.world > 1:
            info["rank_id"] = self.rank
            name = f"profiler_info_{self.rank}.json"
        (self.folder / name).write_text(json.dumps(info, indent=4))

    def metadata(self) -> None:
        names = (
            "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
            "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
        )  # fmt: skip
        data: dict[str, object] = {"ENV_VARIABLES": {name: self.job.environment.get(name, "") for name in names}}
        if self.job.world > 1:
            data["parallel_group_info"] = {
                group.name: {
                    "group_name": group.label,
                    "group_rank": group.ranks.index(self.rank),
                    "global_ranks": list(group.ranks),
                }
                for group in self.job.groups.values()
                if self.rank in group.ranks
            }
            data["distributed_args"] = {
                **self.job.parallel, "context_parallel_size": 1, "expert_model_parallel_size": 1,
                "sequence_parallel": False, "rank": self.rank, "world_size": self.job.world,
            }  # fmt: skip
        (self.folder / "profiler_metadata.json").write_text(json.dumps(data))

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def kernel_details(self) -> None:
        rows = []
        entries: list[Task | Call] = [*self.kernels, *self.calls]
        last: int | None = None
        for number, entry in enumerate(sorted(entries, key=lambda entry: (entry.start, entry.dur))):
            wait = 0 if last is None else max(0, entry.start - last)
            last = entry.start + entry.dur
            if isinstance(entry, Call):
                rows.append(self._comm_row(entry, wait))
            else:
                rows.append(self._kernel_row(number, entry, wait))
        self.csv("kernel_details.csv", KERNEL_COLUMNS, rows)

    def _comm_row(self, call: Call, wait: int) -> list[object]:
        head: list[object] = [
            self.step_of(call.start), self.device, NONE, "N/A", "N/A", call.name, f"hcom_{call.op}_", "N/A",
            "COMMUNICATION", us(call.start) + "\t", us(call.dur), us(wait), 0, "N/A", "N/A",
        ]  # fmt: skip
        return head + ["N/A"] * (len(KERNEL_COLUMNS) - len(head))

    def _kernel_row(self, number: int, task: Task, wait: int) -> list[object]:
        kernel = task.kernel
        assert kernel is not None
        return [
            self.step_of(task.start), self.device, NONE, number % 65536, task.stream, task.name, kernel.op_type,
            kernel.state, kernel.core, us(task.start) + "\t", us(task.dur), us(wait),
            0 if kernel.core == "AI_CPU" else kernel.blocks, kernel.mix_blocks, kernel.hf32,
            _listed(kernel.inputs), ";".join([kernel.dtype] * len(kernel.inputs)),
            ";".join([kernel.in_format] * len(kernel.inputs)), _listed(kernel.outputs),
            ";".join([kernel.out_dtype or kernel.dtype] * len(kernel.outputs)),
            ";".join([kernel.out_format] * len(kernel.outputs)), "N/A",
            *self._counters(kernel, task),
        ]  # fmt: skip

    def _counters(self, kernel: Kernel, task: Task) -> list[object]:
        dur, frequency = task.dur, self.frequency_at(task.host_ts)
        if kernel.core == "AI_CPU":
            return [""] * 25
        cells: list[object] = []
        cube = kernel.core in ("AI_CORE", "MIX_AIC")
        core_ns = dur * kernel.cube if cube else 0.0
        cycles = round(frequency * CUBE_CORES * core_ns / 1e9)
        cells += [f"{core_ns / 1e3:.3f}", cycles]
        for ratio in (kernel.mac, kernel.scalar, kernel.mte1, kernel.mte2, kernel.fixpipe):
            cells += [f"{core_ns * ratio / 1e3:.3f}", round(ratio, 3)] if cube else ["0.0", "0.0"]
        cells.append(0.01 if cube else 0.0)
        vector = kernel.core in ("AI_VECTOR_CORE", "MIX_AIV", "MIX_AIC")
        core_ns = dur * 0.95 if vector else 0.0
        cells += [f"{core_ns / 1e3:.3f}", round(frequency * VECTOR_CORES * core_ns / 1e9)]
        for ratio in (kernel.vec, kernel.scalar, kernel.mte2, kernel.mte3):
            cells += [f"{core_ns * ratio / 1e3:.3f}", round(ratio, 3)] if vector else ["0.0", "0.0"]
        cells.append(0.02 if vector else 0.0)
        cells.append(round(kernel.cube * 100, 3) if cube else "0.000")
        return cells

    def statistics(self) -> None:
        by_type: dict[tuple[str, str], list[int]] = defaultdict(list)
        for task in self.kernels:
            assert task.kernel is not None
            by_type[task.kernel.op_type, task.kernel.core].append(task.dur)
        whole = sum(map(sum, by_type.values()))
        self.csv(
            "op_statistic.csv",
            ("Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)",
             "Max Time(us)", "Ratio(%)"),
            [
                (self.device, *key, len(d), us(sum(d)), us(min(d)), us(sum(d) // len(d)), us(max(d)),
                 round(sum(d) / whole * 100, 3))
                for key, d in sorted(by_type.items(), key=lambda pair: -sum(pair[1]))
            ],
        )  # fmt: skip
        by_api: dict[tuple[str, str], list[int]] = defaultdict(list)
        for piece in self.recording.slices:
            if piece.kind == "call":
                layer, _, api = piece.name.partition("@")
                level = {"AscendCL": "acl", "Node": "node", "Communication": "communication"}.get(layer, "runtime")
                by_api[level, api].append(piece.end - piece.start)
        self.csv(
            "api_statistic.csv",
            ("Device_id", "Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
            [
                ("host", level, api, us(sum(d)), len(d), us(sum(d) // len(d)), us(min(d)), us(max(d)),
                 round(statistics.pvariance([v / 1e3 for v in d]), 3))
                for (level, api), d in sorted(by_api.items(), key=lambda pair: -sum(pair[1]))
            ],
        )  # fmt: skip

    # ---- steps as the exporter sums them ---------------------------------------------------------------------------

    def analysis(self) -> dict[str, list[Interval]]:
        """The lines of Overlap Analysis."""
        computing = union((t.start, t.start + t.dur) for t in self.kernels)
        communication = union((c.start, c.start + c.dur) for c in self.calls)
        exposed = minus(communication, computing)
        busy = union([*computing, *communication])
        free = minus([(busy[0][0], busy[-1][1])], busy) if busy else []
        return {
            "Computing": computing, "Communication": communication, "Communication(Not Overlapped)": exposed,
            "Free": free,
        }  # fmt: skip

    def step_trace(self) -> None:
        lines = self.analysis()
        rows = []
        for number, host, first, last in self.windows:

            def total(name: str, first: int = first, last: int = last) -> int:
                return sum(end - start for start, end in clip(lines[name], first, last))

            computing, communication = total("Computing"), total("Communication")
            exposed, free = total("Communication(Not Overlapped)"), total("Free")
            receives = union((c.start, c.start + c.dur) for c in self.calls if c.op == "receive")
            bubble = sum(end - start for start, end in clip(minus(receives, lines["Computing"]), first, last))
            rows.append(
                (self.device, number, computing / 1e3, exposed / 1e3, (communication - exposed) / 1e3,
                 communication / 1e3, free / 1e3, (last - first - bubble) / 1e3, bubble / 1e3, (exposed - bubble) / 1e3,
                 (first - host) / 1e3)
            )  # fmt: skip
        self.csv(
            "step_trace_time.csv",
            ("Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free",
             "Stage", "Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing"),
            rows,
        )  # fmt: skip

    # ---- communication ---------------------------------------------------------------------------------------------

    def communication(self) -> None:
        result: dict[str, dict[str, dict[str, object]]] = {}
        for call in self.calls:
            step = self.step_of(call.start)
            if step == "":
                continue
            kinds = result.setdefault(f"step{step}", {"p2p": {}, "collective": {}})
            kind = "p2p" if call.op in ("send", "receive") else "collective"
            kinds[kind][f"{call.name}@{group_hash(call.group.name)}"] = {
                "Communication Time Info": _times(call), "Communication Bandwidth Info": _bands(call.tasks),
            }  # fmt: skip
        self.text("communication.json", json.dumps(result))

    def matrix(self) -> None:
        result: dict[str, dict[str, dict[str, object]]] = {}
        grouped: dict[tuple[str, str, str, str], list[Call]] = defaultdict(list)
        for call in self.calls:
            step = self.step_of(call.start)
            if step != "":
                kind = "p2p" if call.op in ("send", "receive") else "collective"
                grouped[f"step{step}", kind, call.op.lower(), call.group.name].append(call)
        for (step_name, kind, op, group), calls in grouped.items():
            kinds = result.setdefault(step_name, {"p2p": {}, "collective": {}})
            ranked = sorted(calls, key=_rate, reverse=True)
            picks = {"top1": ranked[0], "bottom1": ranked[-1]}
            if len(ranked) > 2:
                picks["middle"] = ranked[len(ranked) // 2]
            for name, call in picks.items():
                kinds[kind][f"{op}-{name}@{group_hash(group)}"] = _links(call.tasks, call.name)
            whole = tuple(task for call in calls for task in call.tasks)
            kinds[kind][f"{op}-total@{group_hash(group)}"] = _links(whole, None)
        self.text("communication_matrix.json", json.dumps(result))

    # ---- memory ----------------------------------------------------------------------------------------------------

    def memory(self) -> None:
        rows: list[tuple[object, ...]] = []
        blocks = []
        base, samples = self.job.memory_base_mib, 24
        swing = self.job.memory_swing_mib.get(self.rank, 9_000.0)
        steps = self.recording.steps
        peak = base + swing + self.job.memory_growth_mib * len(steps)
        reserved = peak * 1.02 + self.job.memory_gap_mib
        for index, (_, start, end) in enumerate(steps):
            floor = base + self.job.memory_growth_mib * index
            for sample in range(samples):
                at = start + (end - start) * sample // samples
                part = 1 - abs(2 * sample / samples - 1)
                used = floor + swing * part
                rows.append(
                    ("PTA", us(at) + "\t", round(used, 3), round(reserved, 3), round(used, 3), 2, f"NPU:{self.device}")
                )
                if self.job.memory_workspace_mib:
                    held = self.job.memory_workspace_mib
                    device = f"NPU:{self.device}"
                    rows.append(("WORKSPACE", us(at + 50) + "\t", held, held, held, 2, device))
                rows.append(("APP", us(at + 100) + "\t", "", round(reserved + 2_300, 3), "", "", f"NPU:{self.device}"))
            blocks.append(
                ("aten::empty", 65536.0, us(start + 1000) + "\t", us(end - 1000) + "\t", us(end - 1000) + "\t",
                 us(end - start - 2000) + "\t", us(end - start - 2000) + "\t", floor + 64, reserved, floor + 64, floor,
                 reserved, floor, 2, f"NPU:{self.device}")
            )  # fmt: skip
        self.csv(
            "memory_record.csv",
            ("Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)",
             "Stream Ptr", "Device Type"),
            rows,
        )  # fmt: skip
        self.csv(
            "operator_memory.csv",
            ("Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
             "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
             "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
             "Release Total Active(MB)", "Stream Ptr", "Device Type"),
            blocks,
        )  # fmt: skip

    # ---- trace_view.json -------------------------------------------------------------------------------------------

    def trace_view(self) -> None:
        python = 4000 + self.rank
        pids = {
            name: (python << 10) | (index << 5) | (31 if name == "CANN" else self.device)
            for index, name in enumerate(
                ("CANN", "Ascend Hardware", "AI Core Freq", "Communication", "Overlap Analysis", "Python GC"), 3
            )
        }  # fmt: skip
        events: list[dict[str, object]] = []

        def process(pid: int, name: str, label: str) -> None:
            for what, args in (("process_name", {"name": name}), ("process_labels", {"labels": label})):
                events.append({"name": what, "pid": pid, "tid": 0, "args": args, "ph": "M"})

        def thread(pid: int, tid: int, name: str) -> None:
            events.append({"name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}, "ph": "M"})

        process(python, "Python", "CPU")
        process(pids["CANN"], "CANN", "CPU")
        process(pids["Ascend Hardware"], "Ascend Hardware", f"NPU {self.device}")
        process(pids["AI Core Freq"], "AI Core Freq", f"NPU {self.device}")
        process(pids["Overlap Analysis"], "Overlap Analysis", f"NPU {self.device}")
        if self.calls:
            process(pids["Communication"], "Communication", f"NPU {self.device}")
        slices = self.recording.slices
        if any(piece.kind == "gc" for piece in slices):
            process(pids["Python GC"], "Python GC", "CPU")
        for tid in sorted({piece.thread for piece in slices}):
            thread(python, tid, f"Thread {tid}")
            thread(pids["CANN"], tid, f"Thread {tid}")
        self._host_events(events, python, pids)
        self._device_events(events, python, pids, thread)
        for tid, (name, pieces) in enumerate(self.analysis().items()):
            if pieces:
                thread(pids["Overlap Analysis"], tid, name)
            for start, end in pieces:
                events.append(_slice(name, pids["Overlap Analysis"], tid, start, end - start))
        for _, start, end in self.recording.steps:
            for at in (start, (start + end) // 2):
                events.append(
                    {"name": "AI Core Freq", "pid": pids["AI Core Freq"], "tid": 0, "ts": us(at),
                     "args": {"MHz": self.frequency_at(at) // 1_000_000}, "ph": "C"}
                )  # fmt: skip
        self.text("trace_view.json", json.dumps(events, separators=(",", ":")))

    def _host_events(self, events: list[dict[str, object]], python: int, pids: dict[str, int]) -> None:
        main = 4000 + self.rank
        for number, start, end in self.recording.steps:
            events.append(_slice(f"ProfilerStep#{number}", python, main, start, end - start, "cpu_op", _OP_ARGS))
        for piece in self.recording.slices:
            dur = piece.end - piece.start
            if piece.kind == "op":
                events.append(_slice(piece.name, python, piece.thread, piece.start, dur, "cpu_op", _OP_ARGS))
            elif piece.kind in ("enqueue", "dequeue"):
                events.append(
                    _slice(piece.name, python, piece.thread, piece.start, dur, piece.kind,
                           {"correlation_id": piece.connection})
                )  # fmt: skip
                flow = "s" if piece.kind == "enqueue" else "f"
                events.append(
                    _flow(flow, "enqueue_to_dequeue", piece.connection, python, piece.thread, piece.start,
                          "async_task_queue")
                )  # fmt: skip
            elif piece.kind == "gc":
                events.append(_slice("GC", pids["Python GC"], piece.thread, piece.start, dur, "GC"))
            elif piece.kind == "call":
                layer, _, api = piece.name.partition("@")
                level = {"AscendCL": "acl", "Node": "node", "Communication": "communication"}.get(layer, "runtime")
                args: dict[str, object] = {
                    "Thread Id": piece.thread, "Mode": api, "level": level, "id": api, "item_id": "0",
                    "connection_id": piece.connection if piece.connection >= 0 else 0,
                }  # fmt: skip
                events.append(_slice(piece.name, pids["CANN"], piece.thread, piece.start, dur, "", args))
                if piece.connection >= 0:
                    name = f"HostToDevice{piece.connection}"
                    events.append(
                        _flow("s", name, str(piece.connection), pids["CANN"], piece.thread, piece.start, "HostToDevice")
                    )

    def _device_events(self, events, python, pids, thread) -> None:  # type: ignore[no-untyped-def]
        hardware = pids["Ascend Hardware"]
        main = 4000 + self.rank
        streams = {task.stream for task in self.recording.tasks}
        for task in self.recording.tasks:
            args: dict[str, object] = {
                "Model Id": NONE, "Task Type": "PCIE_DMA_SQE" if task.kernel is None else task.kernel.core,
                "Physic Stream Id": task.stream, "Task Id": task.connection % 65536, "Batch Id": 0, "Subtask Id": NONE,
                "connection_id": task.connection,
            }  # fmt: skip
            if task.copy is not None:
                operation = "host to device" if task.copy.kind == "H2D" else "device to host"
                args |= {
                    "size(B)": task.copy.size, "bandwidth(GB/s)": round(task.copy.size / task.dur, 4),
                    "operation": operation,
                }  # fmt: skip
            events.append(_slice(task.name, hardware, task.stream, task.start, task.dur, "", args))
            events.append(_flow("f", f"HostToDevice{task.connection}", str(task.connection), hardware, task.stream,
                                task.start, "HostToDevice"))  # fmt: skip
            events.append(_flow("s", "torch_to_npu", task.start, python, main, task.host_ts, "async_npu"))
            events.append(_flow("f", "torch_to_npu", task.start, hardware, task.stream, task.start, "async_npu"))
        for stream in sorted(streams):
            thread(hardware, stream, f"Stream {stream}")
        comm = pids["Communication"]
        lines: dict[str, int] = {}
        for call in self.calls:
            if call.group.name not in lines:
                lines[call.group.name] = 100 * len(lines)
                thread(comm, lines[call.group.name], f"Group {call.group.name} Communication")
                for plane in range(len(call.group.ranks)):
                    thread(comm, lines[call.group.name] + 1 + plane, f"Plane {plane}")
            line = lines[call.group.name]
            args = {
                "connection_id": call.connection, "model id": NONE, "data_type": call.dtype, "alg_type": "MESH",
                "count": call.size // DTYPE_BYTES[call.dtype], "relay": "no", "retry": "no",
                "rank_size": len(call.group.ranks),
            }  # fmt: skip
            events.append(_slice(call.name, comm, line, call.start, call.dur, "", args))
            ident = str(call.connection << 32)
            events.append(_flow("f", f"HostToDevice{ident}", ident, comm, line, call.start, "HostToDevice"))
            events.append(_flow("s", "torch_to_npu", call.start, python, main, call.host_ts, "async_npu"))
            events.append(_flow("f", "torch_to_npu", call.start, comm, line, call.start, "async_npu"))
            for sub in call.tasks:
                events.append(_slice(sub.name, comm, line + 1 + sub.plane, sub.start, sub.dur, "", _sub_args(sub)))


_OP_ARGS: Final[dict[str, object]] = {"Sequence number": -1, "Fwd thread id": 0}


def _slice(
    name: str, pid: int, tid: int, start: int, dur: int, cat: str = "", args: dict[str, object] | None = None
) -> dict[str, object]:
    event: dict[str, object] = {"name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": dur / 1000, "ph": "X"}
    if cat:
        event["cat"] = cat
    if args is not None:
        event["args"] = args
    return event


def _flow(phase: str, name: str, ident: int | str, pid: int, tid: int, at: int, cat: str) -> dict[str, object]:
    event: dict[str, object] = {
        "name": name, "ph": phase, "cat": cat, "id": ident, "pid": pid, "tid": tid, "ts": us(at)
    }  # fmt: skip
    if phase == "f":
        event["bp"] = "e"
    return event


def _sub_args(sub: SubTask) -> dict[str, object]:
    moves = sub.size > 0
    return {
        "notify_id": "18446744073709551615" if moves else str(80 + sub.plane),
        "duration estimated(us)": round(sub.dur / 1e3, 3), "stream id": 40 + sub.plane, "task id": 7, "context id": 0,
        "task type": sub.name, "src rank": sub.src, "dst rank": sub.dst, "transport type": sub.transport,
        "size(Byte)": sub.size, "data type": "BFP16" if moves else "INVALID_TYPE", "link type": sub.link,
        "bandwidth(GB/s)": round(sub.size / sub.dur, 4), "model id": NONE,
    }  # fmt: skip


def _listed(shapes: Sequence[str]) -> str:
    return '"""' + ";".join(shapes) + '"""' if shapes else "N/A"


def _times(call: Call) -> dict[str, float]:
    main = sorted((task for task in call.tasks if task.plane == 0), key=lambda task: task.start)
    transit = sum(task.dur for task in main if task.size)
    wait = sum(task.dur for task in main if task.name == "Notify_Wait")
    first = next((task.start for task in main if task.size), call.start + call.dur)
    sync = sum(task.dur for task in main if task.name == "Notify_Wait" and task.start < first)
    return {
        "Start Timestamp(us)": call.start / 1e3, "Elapse Time(ms)": call.dur / 1e6, "Transit Time(ms)": transit / 1e6,
        "Wait Time(ms)": wait / 1e6, "Synchronization Time(ms)": sync / 1e6,
        "Idle Time(ms)": max(0, call.dur - transit - wait) / 1e6,
        "Wait Time Ratio": round(wait / (wait + transit), 4) if wait + transit else 0,
        "Synchronization Time Ratio": round(sync / (sync + transit), 4) if sync + transit else 0,
    }  # fmt: skip


def _bands(tasks: Sequence[SubTask]) -> dict[str, dict[str, object]]:
    bands: dict[str, dict[str, object]] = {}
    limits = {"RDMA": 0.5, "HCCS": 32.0, "PCIE": 32.0, "SIO": 32.0}
    for band in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO"):
        link = {"RDMA": "ROCE"}.get(band, band)
        moves = [t for t in tasks if t.size and (t.link == link or (band == "SDMA" and t.transport == "SDMA"))]
        size, spent = sum(t.size for t in moves) / 1e6, sum(t.dur for t in moves) / 1e6
        sizes: dict[str, list[float]] = {}
        for task in moves if band != "SDMA" else ():
            pair = sizes.setdefault(repr(task.size / 1e6), [0, 0.0])
            pair[0] += 1
            pair[1] += task.dur / 1e6
        large = [t for t in moves if t.size / 1e6 > limits.get(band, 0)]
        bands[band] = {
            "Transit Size(MB)": size, "Transit Time(ms)": spent,
            "Bandwidth(GB/s)": round(size / spent, 4) if spent else 0,
            "Large Packet Ratio": round(len(large) / len(moves), 4) if moves and band != "SDMA" else 0,
            "Size Distribution": sizes,
        }  # fmt: skip
    return bands


def _links(tasks: Sequence[SubTask], name: str | None) -> dict[str, object]:
    pairs: dict[tuple[int, int], list[SubTask]] = defaultdict(list)
    for task in tasks:
        if task.size:
            pairs[task.src, task.dst].append(task)
    links: dict[str, object] = {}
    for (src, dst), moves in pairs.items():
        size, spent = sum(t.size for t in moves) / 1e6, sum(t.dur for t in moves) / 1e6
        link: dict[str, object] = {
            "Transport Type": "RDMA" if moves[0].transport == "RDMA" else moves[0].link, "Transit Size(MB)": size,
            "Transit Time(ms)": spent, "Bandwidth(GB/s)": round(size / spent, 4) if spent else 0,
        }  # fmt: skip
        if name is not None:
            link["Op Name"] = name
        links[f"{src}-{dst}"] = link
    return links


def _rate(call: Call) -> float:
    moves = [t for t in call.tasks if t.size]
    spent = sum(t.dur for t in moves)
    return sum(t.size for t in moves) / spent if spent else 0.0


def union(pieces: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same."""
    result: list[Interval] = []
    for start, end in sorted(pieces):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def minus(whole: Sequence[Interval], parts: Sequence[Interval]) -> list[Interval]:
    """What disjoint intervals leave of others; both in order."""
    result = []
    for start, end in whole:
        for low, high in parts:
            if high <= start:
                continue
            if low >= end:
                break
            if low > start:
                result.append((start, low))
            start = max(start, high)
        if start < end:
            result.append((start, end))
    return result


def clip(pieces: Sequence[Interval], low: int, high: int) -> list[Interval]:
    """The parts inside of a window."""
    return [(max(start, low), min(end, high)) for start, end in pieces if start < high and end > low]
