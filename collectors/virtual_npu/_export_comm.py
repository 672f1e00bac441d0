"""analyze/: communication.json, communication_matrix.json and communication_analyzer.db of `msprof --analyze=on`.

Without the levels that torch_npu adds: {call@hash: ...}, steps and classes come from its own analysis.

Source: format reference, sections 3.6, 4.4, 6.1 and 6.2.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from ascend_perf.collectors.virtual_npu._export_tasks import CommOp, CommTask, Tasks, us

TRANSPORTS: Final = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")

LARGE_BYTES: Final = {"RDMA": 500_000, "HCCS": 32_000_000}
"""Above this a packet counts as large. Source: format reference, 6.1."""

Figures = dict[str, object]


def write_communication(folder: Path, tasks: Tasks) -> None:
    """Write the three files; none for a capture without collectives."""
    if not tasks.comm:
        return
    calls = {f"{op.name}@{op.hash_id}": op for op in tasks.comm}
    (folder / "communication.json").write_text(
        json.dumps({key: {"Communication Time Info": _times(op), "Communication Bandwidth Info": _bands(op)}
                    for key, op in calls.items()}),
        "utf-8",
    )  # fmt: skip
    matrix = {key: links for key, op in calls.items() if (links := _links(op))}
    (folder / "communication_matrix.json").write_text(json.dumps(matrix), "utf-8")
    _write_database(folder / "communication_analyzer.db", tasks.comm)


def _times(op: CommOp) -> Figures:
    wait, transit = op.start_ns - op.arrive_ns, op.end_ns - op.start_ns
    ratio = wait / (wait + transit) if wait + transit else 0
    return {
        "Start Timestamp(us)": op.arrive_ns / 1000, "Elapse Time(ms)": (wait + transit) / 1e6,
        "Transit Time(ms)": transit / 1e6, "Wait Time(ms)": wait / 1e6, "Synchronization Time(ms)": wait / 1e6,
        "Idle Time(ms)": 0, "Wait Time Ratio": round(ratio, 4), "Synchronization Time Ratio": round(ratio, 4),
    }  # fmt: skip


def _bands(op: CommOp) -> dict[str, Figures]:
    pieces = [(task, task.transfer) for task in op.tasks if task.transfer is not None]
    bands: dict[str, Figures] = {}
    for name in TRANSPORTS:
        mine = [(task, piece) for task, piece in pieces if piece.transport == ("HCCS" if name == "SDMA" else name)]
        size, time = sum(piece.nbytes for _, piece in mine), sum(task.end_ns - task.start_ns for task, _ in mine)
        sizes: dict[int, list[int]] = {}
        for task, piece in mine if name != "SDMA" else ():
            entry = sizes.setdefault(piece.nbytes, [0, 0])
            entry[0] += 1
            entry[1] += task.end_ns - task.start_ns
        large = sum(entry[0] for size_, entry in sizes.items() if size_ > LARGE_BYTES.get(name, 0))
        bands[name] = {
            "Transit Size(MB)": size / 1e6, "Transit Time(ms)": time / 1e6,
            "Bandwidth(GB/s)": round(size / time, 4) if time else 0,
            "Large Packet Ratio": round(large / len(mine), 4) if mine and sizes else 0,
            "Size Distribution": {str(size_ / 1e6): [count, ns / 1e6] for size_, (count, ns) in sizes.items()},
        }
    return bands


def _links(op: CommOp) -> dict[str, Figures]:
    links: dict[tuple[int, int], list[CommTask]] = {}
    for task in op.tasks:
        if task.transfer is not None:
            links.setdefault((task.transfer.src, task.transfer.dst), []).append(task)
    result: dict[str, Figures] = {}
    for (src, dst), mine in links.items():
        size = sum(task.transfer.nbytes for task in mine if task.transfer is not None)
        time = sum(task.end_ns - task.start_ns for task in mine)
        transport = mine[0].transfer.transport if mine[0].transfer is not None else "HCCS"
        result[f"{src}-{dst}"] = {
            "Transport Type": transport, "Transit Size(MB)": size / 1e6, "Transit Time(ms)": time / 1e6,
            "Bandwidth(GB/s)": round(size / time, 4) if time else 0,
        }  # fmt: skip
    return result


def _write_database(path: Path, ops: Iterable[CommOp]) -> None:
    times: list[tuple[object, ...]] = []
    bands: list[tuple[object, ...]] = []
    links: list[tuple[object, ...]] = []
    for op in ops:
        key = (op.name, op.hash_id)
        told = _times(op)
        # As text: torch_npu assigns calls to steps by it, before a float of this size loses its nanoseconds.
        times.append(
            (*key, us(op.arrive_ns),
             *(told[name] for name in ("Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)",
                                       "Synchronization Time(ms)", "Idle Time(ms)")))
        )  # fmt: skip
        for transport, band in _bands(op).items():
            if not band["Transit Size(MB)"]:
                continue
            head = (*key, transport, band["Transit Size(MB)"], band["Transit Time(ms)"], band["Bandwidth(GB/s)"],
                    band["Large Packet Ratio"])  # fmt: skip
            sizes = band["Size Distribution"]
            rows = sizes.items() if isinstance(sizes, dict) and sizes else (("0", [0, 0]),)
            bands += [(*head, float(size), count, time) for size, (count, time) in rows]
        for link, figures in _links(op).items():
            links.append((*key, *link.split("-"), *figures.values()))
    with closing(sqlite3.connect(path)) as database:
        for table, columns, rows_ in (
            ("CommAnalyzerTime",
             "hccl_op_name TEXT, group_name TEXT, start_timestamp TEXT, elapse_time NUMERIC, transit_time NUMERIC, "
             "wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC", times),
            ("CommAnalyzerBandwidth",
             "hccl_op_name TEXT, group_name TEXT, transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, "
             "bandwidth NUMERIC, large_packet_ratio NUMERIC, package_size NUMERIC, count NUMERIC, "
             "total_duration NUMERIC", bands),
            ("CommAnalyzerMatrix",
             "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, transport_type TEXT, "
             "transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC", links),
        ):  # fmt: skip
            database.execute(f"create table {table} ({columns})")
            marks = ",".join("?" * (columns.count(",") + 1))
            database.executemany(f"insert into {table} values ({marks})", rows_)
        database.commit()
