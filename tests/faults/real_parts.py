"""What is planted into inserted time: operators, calls, kernels, copies, with the flows between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.faults.real_derive import launched, nested, planes
from tests.faults.real_text import HOST, NONE, Cut, Event, RealRank, Row, end_of, is_kernel, to_ns, to_us

LAYERS: Final = {"acl": "AscendCL", "node": "Node", "runtime": "Runtime"}
MICRO: Final = 1000
PROMPT_NS: Final = 450_000


@dataclass(frozen=True, kw_only=True)
class Site:
    """A kernel, the outermost operator of `aten` that starts it, and the task of the queue that launches it."""

    row: Row
    op: Event
    task: Event

    def cut(self, rank: RealRank, amount: int) -> Cut:
        """Time in front of all three: the host comes so much later to this operator."""
        return Cut(amount=amount, host=self.op["ns"], device=to_ns(self.row["Start Time(us)"]),
                   lanes={f"host:{rank.queue}": self.task["ns"]})  # fmt: skip


def sites(rank: RealRank) -> list[Site]:
    """Operators of the forward pass whose first kernel is known, in order: the device runs dry before all of them."""
    first = rank.calls()[0]["ns"]
    ops = rank.ops()
    parents = {id(op): parent for op, parent in zip(ops, nested(ops), strict=True)}
    tasks = launched(rank)
    launches = {e["args"]["connection_id"]: e for e in rank.slices("CANN") if e["args"]["level"] == "node"}
    queue = [e for e in rank.slices("Python") if e.get("cat") == "dequeue"]
    rows = {(to_ns(r["Start Time(us)"]), r["Name"]): r for r in rank.compute()}
    found: dict[int, Site] = {}
    for op in ops:
        if op["tid"] != rank.main:
            continue
        top = op
        while (parent := parents[id(top)]) is not None and parent["name"].startswith("aten::"):
            top = parent
        for task in sorted(tasks.get(id(op), []), key=lambda e: int(e["ns"])):
            row = rows.get((task["ns"], task["name"]))
            launch = launches.get(task.get("args", {}).get("connection_id"))
            if row is None or launch is None or task["ns"] >= first or id(top) in found:
                continue
            if row["Stream ID"] != "2" or not top["name"].startswith("aten::"):
                # Random masks run on a stream of their own, ahead of the others; `aclnn` operators inside of others.
                break
            around = [e for e in queue if e["ns"] <= launch["ns"] <= end_of(e)]
            if around:
                found[id(top)] = Site(row=row, op=top, task=around[0])
    return sorted(found.values(), key=lambda site: to_ns(site.row["Start Time(us)"]))


def prompt(found: list[Site]) -> list[Site]:
    """Those whose kernel starts right behind its operator: the host has no work queued up there."""
    return [site for site in found if to_ns(site.row["Start Time(us)"]) - site.op["ns"] < PROMPT_NS]


def quiet(rank: RealRank, amount: int, time: int, lanes: dict[str, int] | None = None) -> Cut:
    """Time inside a collective; the kernels that run beside it are not longer for it."""
    moved, device = True, time
    while moved:
        ends = [end_of(e) for e in rank.slices("Ascend Hardware")
                if e["lane"] == "device" and e["ns"] < device < end_of(e)]  # fmt: skip
        moved, device = bool(ends), max(ends, default=device)
    own = dict.fromkeys({e["lane"] for e in rank.slices("HCCL", "Communication")}, time)
    return Cut(amount=amount, host=time, device=device, lanes=own | (lanes or {}))


def spread(found: list[Site], count: int) -> list[Site]:
    """`count` of them, evenly over the pass."""
    return [found[(2 * i + 1) * len(found) // (2 * count)] for i in range(count)]


def stretch(rank: RealRank, row: Row, amount: int) -> Cut:
    """Time in the middle of a kernel; the host is held up as long before its next operator, or waits already."""
    start, dur = to_ns(row["Start Time(us)"]), to_ns(row["Duration(us)"])
    middle = start + dur // 2
    device = rank.slice_of(row)
    launch = next(e for e in rank.slices("CANN")
                  if e["args"]["level"] == "node"
                  and e["args"]["connection_id"] == device["args"]["connection_id"])  # fmt: skip
    queue = sorted((e for e in rank.slices("Python") if e.get("cat") == "dequeue"), key=lambda e: int(e["ns"]))
    tops = [op for op, parent in zip(rank.ops(), nested(rank.ops()), strict=True)
            if parent is None or not parent["name"].startswith(("aten::", "autograd", "npu"))]  # fmt: skip
    host = next(op["ns"] for op in tops if op["ns"] > max(middle, launch["ns"]) and "Profiler" not in op["name"])
    task = next((e["ns"] for e in queue if e["ns"] > max(middle, end_of(launch))), host)
    return Cut(amount=amount, host=host, device=middle, lanes={f"host:{rank.queue}": task})


def waiting(rank: RealRank) -> tuple[int, int]:
    """The call in which the host waits longest for the device."""
    call = max((e for e in rank.slices("CANN") if "Synchronize" in e["name"]), key=lambda e: float(e["dur"]))
    return call["ns"], end_of(call)


def add_op(rank: RealRank, name: str, start: int, end: int) -> None:
    """An operator of the framework on the main thread."""
    row = dict.fromkeys(rank.tables["operator_details.csv"].header, "") | {"Name": name}
    rank.events.append({
        "ph": "X", "name": name, "pid": rank.pid("Python"), "tid": rank.main, "ns": start, "dur": (end - start) / MICRO,
        "cat": "cpu_op", "args": {"Sequence number": -1, "Fwd thread id": 0}, "lane": f"host:{rank.main}", "row": row,
    })  # fmt: skip


def add_api(rank: RealRank, level: str, name: str, start: int, end: int, thread: int, connection: int = 0,
            item: str = "0") -> None:  # fmt: skip
    """A call into CANN."""
    rank.next_id += 1
    args = {
        "Thread Id": thread, "Mode": "ACL_RTS" if level == "acl" else name, "level": level,
        "id": name if level == "acl" else "0", "item_id": item, "connection_id": connection or rank.next_id,
    }  # fmt: skip
    rank.events.append({
        "name": f"{LAYERS[level]}@{name}", "pid": rank.pid("CANN"), "tid": thread, "ns": start,
        "dur": (end - start) / MICRO, "args": args, "ph": "X", "lane": f"host:{thread}",
    })  # fmt: skip


Place = tuple[int, int, int]
"""Process, thread, ns."""


def _flow(rank: RealRank, cat: str, name: str, key: Any, start: Place, end: Place) -> None:
    for phase, (pid, tid, time) in (("s", start), ("f", end)):
        lane = f"host:{tid}" if rank.process[pid] in HOST else "device"
        rank.events.append({"ph": phase, "bp": "e", "name": name, "id": key, "pid": pid, "tid": tid, "ns": time,
                            "cat": cat, "lane": lane})  # fmt: skip


def add_queued(rank: RealRank, name: str, host: int, queue: tuple[int, int]) -> None:
    """A task put into the queue on the main thread and taken out by its own."""
    rank.next_id += 1
    python = rank.pid("Python")
    for cat, title, thread, start, dur in (
        ("enqueue", "Enqueue", rank.main, host, 2 * MICRO), ("dequeue", f"Dequeue@{name}", rank.queue, queue[0],
                                                             queue[1] - queue[0]),
    ):  # fmt: skip
        rank.events.append({
            "ph": "X", "name": title, "pid": python, "tid": thread, "ns": start, "dur": dur / MICRO, "cat": cat,
            "args": {"correlation_id": rank.next_id}, "lane": f"host:{thread}",
        })  # fmt: skip
    _flow(rank, "async_task_queue", "enqueue_to_dequeue", rank.next_id, (python, rank.main, host),
          (python, rank.queue, queue[0]))  # fmt: skip


def add_kernel(rank: RealRank, row: Row, task_type: str, device: tuple[int, int], launch: tuple[int, int],
               op_start: int) -> None:  # fmt: skip
    """A kernel: its row, its slice on the stream, its launch on the queue's thread and the flows to it."""
    rank.next_id += 1
    connection = rank.next_id
    start, end = device
    rank.kernels.append(row | {
        "Start Time(us)": to_us(start) + "\t", "Duration(us)": to_us(end - start), "Wait Time(us)": "0.001",
        "Task ID": str(connection % 65536), "Stream ID": "2",
    })  # fmt: skip
    add_task(rank, row["Name"], task_type, device, connection)
    add_api(rank, "node", "launch", *launch, rank.queue, connection, row["Name"])
    hardware = rank.pid("Ascend Hardware")
    _flow(rank, "HostToDevice", f"HostToDevice{connection}", str(connection), (rank.pid("CANN"), rank.queue, launch[0]),
          (hardware, 2, start))  # fmt: skip
    _flow(rank, "async_npu", "torch_to_npu", start, (rank.pid("Python"), rank.main, op_start), (hardware, 2, start))


def add_task(rank: RealRank, name: str, task_type: str, device: tuple[int, int], connection: int,
             **more: object) -> None:  # fmt: skip
    """A task on stream 2."""
    rank.events.append({
        "name": name, "pid": rank.pid("Ascend Hardware"), "tid": 2, "ns": device[0],
        "dur": (device[1] - device[0]) / MICRO, "ph": "X", "lane": "device",
        "args": {"Model Id": NONE, "Task Type": task_type, "Physic Stream Id": 2, "Task Id": connection % 65536,
                 "Batch Id": 0, "Subtask Id": NONE, "connection_id": connection, **more},
    })  # fmt: skip


def add_copy(rank: RealRank, size: int, device: tuple[int, int], call: tuple[int, int], op_start: int) -> None:
    """A copy from host to device in a call that returns when it is done (Level2 names size and direction)."""
    rank.next_id += 1
    connection = rank.next_id
    more = {"data size(Byte)": size, "memcpy direction": "host to device"}
    add_task(rank, "MEMCPY_ASYNC", "PCIE_DMA_SQE", device, connection, **more)
    add_api(rank, "acl", "aclrtMemcpy", *call, rank.main, connection)
    hardware = rank.pid("Ascend Hardware")
    _flow(rank, "HostToDevice", f"HostToDevice{connection}", str(connection), (rank.pid("CANN"), rank.main, call[0]),
          (hardware, 2, device[0]))  # fmt: skip
    _flow(rank, "async_npu", "torch_to_npu", device[0], (rank.pid("Python"), rank.main, op_start),
          (hardware, 2, device[0]))  # fmt: skip


def add_collections(rank: RealRank, spans: list[tuple[int, int]]) -> None:
    """Garbage collections on the main thread, as the exporter writes them with gc_detect_threshold."""
    pid = rank.pid("Python") + 1_000_000_000
    rank.process[pid] = "Python GC"
    rank.events += [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "Python GC"}},
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "CPU"}},
    ]
    for start, end in spans:
        rank.events.append({"ph": "X", "name": "GC", "pid": pid, "tid": rank.main, "ns": start,
                            "dur": (end - start) / MICRO, "cat": "GC", "lane": f"host:{rank.main}"})  # fmt: skip


# Tasks of collectives.


def phase(rank: RealRank, call: Event, number: int) -> dict[str, list[Event]]:
    """Tasks of the planes that move data to other devices in one of the two phases of a mesh all-reduce.

    Phase 0 reduces, phase 1 gathers; each is: record, wait, move, record, wait.
    """
    return {lane: tasks[5 * number : 5 * number + 5] for lane, tasks in planes(rank, call).items() if len(tasks) == 10}


def of_task(rank: RealRank, task: Event) -> Event:
    """The slice of the stream that is the same task as one of a plane."""
    return next(e for e in rank.slices("Ascend Hardware") if e["lane"] == task["lane"] and e["ns"] == task["ns"]
                and e["args"]["Subtask Id"] == task["args"]["context id"])  # fmt: skip


def lengthen(rank: RealRank, task: Event, amount: int) -> None:
    """Lets a task last longer, on its plane and its stream."""
    for event in (of_task(rank, task), task):
        event["dur"] += amount / MICRO


def after(tasks: dict[str, list[Event]], place: int) -> dict[str, int]:
    """By plane, the end of one of its tasks: where planes that are done wait for the others."""
    return {lane: end_of(own[place]) for lane, own in tasks.items()}


def compute_rows(rank: RealRank, start: int, end: int) -> list[Row]:
    """Compute tasks that lie in a window."""
    return [r for r in rank.kernels if is_kernel(r) and start <= to_ns(r["Start Time(us)"])
            and to_ns(r["Start Time(us)"]) + to_ns(r["Duration(us)"]) <= end]  # fmt: skip
