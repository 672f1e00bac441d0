"""Nsight Systems reports as SQLite (`nsys export --type sqlite`), so that a CUDA baseline may come from nsys.

One file holds the processes and GPUs of one capture: each pair is a trace. Times are ns since the start of the session;
the file's UTC start is added, so that captures of several nodes lie on one clock as far as their hosts do.

Source: the SQLite export schema of the Nsight Systems documentation; columns are asked for by name, since they differ
between versions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.device.specs import spec_for
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Bools, Ints, Table, TableSpec, Text, Values
from ascend_perf.model.trace import Device, Dropped, Meta, Missing, ProfilerSettings, Source, Trace
from ascend_perf.parsers import _kineto_comm as comm
from ascend_perf.parsers._ascend_files import SQLITE_MAGIC, database, table_names
from ascend_perf.parsers._gpu_tables import host_op_of, launches, one_step, with_step_ids
from ascend_perf.parsers._nsys_nvtx import host_tables, steps_of_ranges
from ascend_perf.parsers._nsys_read import Capture, Rows, read_capture
from ascend_perf.parsers._source import FileEntry, Folder, Parser, Unit

PRODUCER: Final = "Nsight Systems"

_ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
_RANK: Final = re.compile(r"(?:^|[._-])rank[._-]?(\d{1,7})(?=[._-]|$)", re.IGNORECASE)

_DIRECTIONS: Final = {
    1: "H2D", 2: "D2H", 3: "H2D", 4: "D2H", 5: "D2D", 6: "D2D", 7: "D2D", 8: "D2D", 9: "H2H", 10: "P2P", 11: "H2D",
    12: "D2H", 13: "D2D",
}  # fmt: skip
"""copyKind of CUPTI (arrays count as device memory), and of nsys for migrations of unified memory (11 to 13)."""

WHOLE_GRAPHS: Final = (
    "CUDA graphs were traced as a whole: each launch is one row, the kernels inside are not known"
    " (nsys profile --cuda-graph-trace=node records them)"
)
MANY_PROCESSES: Final = "the file holds several processes or GPUs, and no rank number: each pair is a trace of its own"


def is_nsys(entry: FileEntry) -> bool:
    """Whether a file is an SQLite export of nsys, by its tables."""
    if not entry.head.startswith(SQLITE_MAGIC):
        return False
    try:
        with database(entry.path, log=False) as connection:
            tables = table_names(connection)
    except InputError:
        return False
    return "StringIds" in tables and (
        "NVTX_EVENTS" in tables or "TARGET_INFO_GPU" in tables or any(name.startswith(_ACTIVITY) for name in tables)
    )


def find(folder: Folder) -> list[Unit]:
    """Each SQLite export of the folder is a unit of its own.

    Raises:
        InputError: the folder holds reports that were not exported yet, and no export.
    """
    units = [
        Unit(parser="nsys", label=entry.path.name, files=(entry.path,)) for entry in folder.files if is_nsys(entry)
    ]
    reports = [entry.path for entry in folder.files if entry.path.suffix in (".nsys-rep", ".qdrep")]
    if reports and not units and folder.path.is_dir() and len(folder.files) == len(reports):
        raise InputError(
            f"{reports[0].name} is a report of Nsight Systems that was not exported",
            hint=f"nsys export --type sqlite {reports[0].name}",
        )
    return units


def parse(unit: Unit) -> list[Trace]:
    """The traces of one export: one for each GPU of each process that used it.

    Raises:
        InputError: the file is damaged, or holds no event.
    """
    path = unit.files[0]
    capture = read_capture(path)
    pairs = _pairs(capture)
    traces = [_trace(capture, unit, path, process, device, several=len(pairs) > 1) for process, device in pairs]
    traces = [trace for trace in traces if trace.tables]
    if not traces:
        raise InputError(
            f"{unit.label}: no kernel, CUDA call or NVTX range in it",
            hint="record with nsys profile --trace=cuda,nvtx and export again",
        )
    return traces


def _pairs(capture: Capture) -> list[tuple[int, int | None]]:
    """Process and device of each trace; a process without any device work counts only when there is no other."""
    for groups in ((capture.kernels, capture.graphs), (capture.copies, capture.sets)):
        keys = {
            pair
            for rows in groups
            for pair in zip(rows.ints("process").tolist(), rows.ints("deviceId").tolist(), strict=True)
        }
        if keys:
            return [(process, None if device == NULL else device) for process, device in sorted(keys)]
    processes = np.unique(np.concatenate((capture.runtime.ints("process"), capture.ranges.ints("process"))))
    return [(process, None) for process in processes.tolist()]


def _trace(capture: Capture, unit: Unit, path: Path, process: int, device: int | None, *, several: bool) -> Trace:
    def mine(rows: Rows) -> Rows:
        """Rows of the process and the device; a file without processes has one."""
        keep = rows.ints("process") == process
        if "deviceId" in rows.columns and device is not None:
            keep &= rows.ints("deviceId") == device
        return rows.select(keep)

    runtime = _runtime_table(mine(capture.runtime))
    host_ops, host_events = host_tables(mine(capture.ranges))
    kernels, comm_ops = _kernel_tables(mine(capture.kernels), mine(capture.graphs), runtime, host_ops)
    copies = _copy_table(mine(capture.copies), mine(capture.sets), runtime)
    syncs = _sync_table(mine(capture.syncs), runtime)
    host_events = Table.concat(t.HOST_EVENTS, [host_events, syncs])
    steps = steps_of_ranges(host_events)
    marked = bool(len(steps))
    if marked:
        kernels, comm_ops, copies = (with_step_ids(x, steps) for x in (kernels, comm_ops, copies))
    else:
        steps = one_step([kernels, comm_ops, copies], [host_ops, host_events, runtime])
    made = {
        table.spec.name: table
        for table in (steps, kernels, comm_ops, copies, host_ops, host_events, runtime)
        if len(table)
    }
    rank = None if several else _rank(path)
    label = f"{unit.label} (process {_place(capture, process)}, device {device})" if several else unit.label
    warnings = []
    if len(capture.graphs):
        warnings.append(WHOLE_GRAPHS)
    if several:
        warnings.append(MANY_PROCESSES)
    if rank is not None:
        warnings.append(f"the file says no rank: {rank} is taken from its name")
    missing = []
    if not marked:
        missing.append(
            Missing(
                what="steps: no NVTX range is named after a step",
                remedy='torch.cuda.nvtx.range_push(f"step {i}") around each step, and nsys profile --trace=cuda,nvtx',
            )
        )
    if not len(host_ops):
        missing.append(
            Missing(
                what="operators of the framework",
                remedy="nsys profile --pytorch=autograd-shapes-nvtx, or torch.autograd.profiler.emit_nvtx()",
            )
        )
    has_device = bool(len(kernels) or len(comm_ops) or len(copies))
    return Trace(
        made,
        Meta(
            label=label,
            rank=rank,
            device=_device(capture, device) if has_device else Device(kind="cpu"),
            versions=capture.versions,
            settings=ProfilerSettings(producer=PRODUCER),
            sources=(
                Source(
                    path=unit.label,
                    format="nsys",
                    rows=capture.rows,
                    size_bytes=path.stat().st_size,
                    dropped=tuple(Dropped(reason=reason, count=n) for reason, n in sorted(capture.dropped.items())),
                ),
            ),
            missing=tuple(missing),
            warnings=tuple(warnings),
        ),
    )


def _place(capture: Capture, process: int) -> int:
    """Number of a process in the file: its id says nothing to a reader, and is not shown."""
    return sorted({process for process, _ in _pairs(capture)}).index(process)


def _rank(path: Path) -> int | None:
    match = _RANK.search(path.name)
    return int(match[1]) if match else None


def _device(capture: Capture, device: int | None) -> Device:
    found = capture.gpus.get(device) if device is not None else None
    if found is None and len(set(capture.gpus.values())) == 1:
        found = next(iter(capture.gpus.values()))
    name = found.name if found else None
    spec = spec_for(Device(kind="gpu", name=name)) if name else None
    return Device(
        vendor="NVIDIA",
        name=name,
        spec=None if spec is None else spec.id,
        kind="gpu",
        device_id=device,
        memory_bytes=found.memory_bytes if found else None,
        compute_capability=found.capability if found else None,
    )


def _kernel_tables(rows: Rows, graphs: Rows, runtime: Table, host_ops: Table) -> tuple[Table, Table]:
    """kernels and comm_ops, in the order of their starts."""
    start = np.concatenate((rows.ints("start"), graphs.ints("start")))
    if not len(start):
        return Table.empty(t.KERNELS), Table.empty(t.COMM_OPS)
    order = np.argsort(start, kind="stable")

    def both(name: str) -> Ints:
        return np.concatenate((rows.ints(name), graphs.ints(name)))[order]

    names = Text.concat([rows.text("name"), graphs.text("name")]).take(order)
    correlation = both("correlationId")
    launch, launch_start, launch_end = launches(correlation, runtime)
    unknown = np.full(len(order), NULL, np.int64)
    columns = {
        "start_ns": start[order],
        "dur_ns": both("dur"),
        "stream": both("streamId"),
        "correlation": correlation,
        "host_op": host_op_of(unknown, launch, runtime, host_ops),
        "launch_start_ns": launch_start,
        "launch_end_ns": launch_end,
    }
    is_comm = names.flags(comm.is_communication)
    return (
        _picked(t.KERNELS, ~is_comm, columns, names, {"core": Text.full(int((~is_comm).sum()), "SM")}),
        _picked(
            t.COMM_OPS, is_comm, columns, names,
            comm.columns(names.take(is_comm).compact(), [comm.CommArgs()] * int(is_comm.sum())),
        ),
    )  # fmt: skip


def _picked(spec: TableSpec, rows: Bools, columns: dict[str, Ints], names: Text, more: dict[str, Values]) -> Table:
    if not rows.any():
        return Table.empty(spec)
    own = {name: values[rows] for name, values in columns.items()}
    return Table(spec, {**own, "name": names.take(rows).compact(), **more})


def _copy_table(copies: Rows, sets: Rows, runtime: Table) -> Table:
    start = np.concatenate((copies.ints("start"), sets.ints("start")))
    if not len(start):
        return Table.empty(t.COPIES)
    order = np.argsort(start, kind="stable")

    def both(name: str) -> Ints:
        return np.concatenate((copies.ints(name), sets.ints(name)))[order]

    kinds = [_DIRECTIONS.get(kind) for kind in copies.ints("copyKind").tolist()] + ["MEMSET"] * len(sets)
    correlation = both("correlationId")
    launch, launch_start, launch_end = launches(correlation, runtime)
    api = runtime.text("api")
    # Row -1 (no launch call) picks the appended unknown.
    apis = Text(np.append(api.codes, np.int32(-1)), api.values)
    return Table(
        t.COPIES,
        {
            "start_ns": start[order],
            "dur_ns": both("dur"),
            "kind": Text.of(kinds).take(order),
            "name": Text.concat([copies.text("name"), sets.text("name")]).take(order),
            "size_bytes": both("bytes"),
            "stream": both("streamId"),
            "correlation": correlation,
            "launch_start_ns": launch_start,
            "launch_end_ns": launch_end,
            "api": apis.take(launch),
        },
    )


def _runtime_table(rows: Rows) -> Table:
    if not len(rows):
        return Table.empty(t.RUNTIME_CALLS)
    # cudaLaunchKernel_v7000 and the like: the version of the entry point is no part of the call's name.
    api = rows.text("name").relabel(lambda name: re.sub(r"_(?:v\d+|ptsz|ptds)", "", name))
    return Table(
        t.RUNTIME_CALLS,
        {
            "start_ns": rows.ints("start"),
            "dur_ns": rows.ints("dur"),
            "api": api.compact(),
            "layer": Text.full(len(rows), "cuda"),
            "thread": rows.ints("thread"),
            "correlation": rows.ints("correlationId"),
        },
    )


def _sync_table(rows: Rows, runtime: Table) -> Table:
    """Waits of the host for the device; a stream that waits for an event is none."""
    keep = rows.text("name").flags(lambda name: "stream wait" not in name.lower())
    rows = rows.select(keep)
    if not len(rows):
        return Table.empty(t.HOST_EVENTS)
    correlation = rows.ints("correlationId")
    launch, _, _ = launches(correlation, runtime)
    threads = np.append(runtime.ints("thread"), NULL)
    return Table(
        t.HOST_EVENTS,
        {
            "start_ns": rows.ints("start"),
            "dur_ns": rows.ints("dur"),
            "name": rows.text("name"),
            "kind": Text.full(len(rows), "sync"),
            "thread": threads[launch],
            "correlation": correlation,
        },
    )


PARSER: Final = Parser(name="nsys", order=15, find=find, parse=parse)
