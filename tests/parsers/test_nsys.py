"""Nsight Systems exports, made here by the documented schema: kernels, copies, calls, NVTX ranges, processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import ascend_pt, kineto, nsys
from ascend_perf.parsers._source import FileEntry, Folder
from ascend_perf.parsers.discover import find_units
from tests._support import Said

Row = tuple[object, ...]

EPOCH_NS = 1_780_000_000_000_000_000
PID = (7 << 32 | 4321) << 24
TID = PID | 99

GEMM = "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_128x128_tn>(cutlass::Params)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
RELU = "void at::native::vectorized_elementwise_kernel<4, relu>(int)"
STRINGS = ["", GEMM, NCCL, RELU, "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"]

TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "value INTEGER, bytes INTEGER, memKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "syncType INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
    "TARGET_INFO_GPU": (
        "id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "nameEnum INTEGER, name TEXT, value TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER, name TEXT, label TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
}


def kernel(start: int, dur: int, name: int, launch: int, *, pid: int = PID, device: int = 0, stream: int = 7) -> Row:
    return (start, start + dur, device, 1, stream, launch, pid, name, name, 64, None)


def call(start: int, dur: int, name: int, number: int, *, tid: int = TID) -> Row:
    return (start, start + dur, 0, tid, number, name)


def nvtx(
    start: int, dur: int | None, text: str | None, *, tid: int = TID, kind: int = 59, shared: int | None = None
) -> Row:
    return (start, None if dur is None else start + dur, kind, text, tid, shared, 0)


ROWS: dict[str, Sequence[Row]] = {
    "StringIds": list(enumerate(STRINGS)),
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        call(1_100, 20, 4, 11), call(1_200, 20, 4, 12), call(1_300, 30, 5, 13), call(2_100, 20, 4, 14),
        call(2_200, 400, 6, 15),
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        kernel(1_150, 100, 1, 11), kernel(1_260, 300, 2, 12, stream=20), kernel(2_150, 50, 3, 14),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [(1_400, 1_460, 0, 7, 13, PID, 4096, 1, 0, 2)],
    "CUPTI_ACTIVITY_KIND_MEMSET": [(1_470, 1_480, 0, 7, 999, PID, 0, 256, 2)],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
        (2_210, 2_590, 0, 7, 15, PID, 3), (2_300, 2_310, 0, 7, 15, PID, 2),
    ],
    "NVTX_EVENTS": [
        nvtx(1_000, 900, "step 4"), nvtx(2_000, 900, "step 5"),
        nvtx(1_050, 100, "aten::mm, seq = 17, op_id = 3, sizes = [[64, 128], [128, 32]]"),
        nvtx(2_050, 100, "aten::relu"), nvtx(2_180, 450, "my range"), nvtx(1_500, None, "a mark", kind=34),
        nvtx(1_010, 30, None, shared=3), nvtx(0, None, "NCCL", kind=75),
    ],
    "TARGET_INFO_GPU": [(0, "NVIDIA A100-SXM4-80GB", 85_899_345_920, 108, 8, 0)],
    "TARGET_INFO_CUDA_DEVICE": [(0, 0, 4321)],
    "TARGET_INFO_SESSION_START_TIME": [(EPOCH_NS, "x", "x")],
    "TARGET_INFO_SYSTEM_ENV": [(1, "Hostname", "secret-host")],
    "ENUM_CUDA_MEM_KIND": [(0, "PAGEABLE", "Pageable"), (2, "DEVICE", "Device")],
    "META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.15.1")],
}  # fmt: skip


def export(
    path: Path, *, without: Sequence[str] = (), columns: dict[str, str] | None = None, **rows: Sequence[Row]
) -> Path:
    """An export with the rows above; tables can be left out or replaced."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, declared in {**TABLES, **(columns or {})}.items():
            if name in without:
                continue
            connection.execute(f"create table {name} ({declared})")
            for row in rows.get(name, ROWS.get(name, ())):
                connection.execute(f"insert into {name} values ({', '.join('?' * len(row))})", row)
    return path


def read(path: Path) -> list[Trace]:
    folder = Folder(path.parent, (FileEntry(path, path.stat().st_size),), ())
    assert ascend_pt.find(folder) == []
    assert kineto.find(folder) == []
    (unit,) = nsys.find(folder)
    return nsys.parse(unit)


def test_kernels_collectives_and_copies_with_their_launches(tmp_path: Path) -> None:
    (trace,) = read(export(tmp_path / "run.sqlite"))

    kernels, calls, copies = trace[t.KERNELS], trace[t.COMM_OPS], trace[t.COPIES]
    assert kernels.text("name").to_list() == [GEMM, RELU]
    assert kernels.ints("start_ns").tolist() == [EPOCH_NS + 1_150, EPOCH_NS + 2_150]
    assert kernels.ints("dur_ns").tolist() == [100, 50]
    assert kernels.ints("launch_end_ns").tolist() == [EPOCH_NS + 1_120, EPOCH_NS + 2_120]
    assert kernels.ints("step_id").tolist() == [4, 5]
    assert (calls.text("name").to_list(), calls.text("op").to_list()) == ([NCCL], ["allReduce"])
    assert calls.ints("stream").tolist() == [20]
    assert copies.text("kind").to_list() == ["H2D", "MEMSET"]
    assert copies.text("name").to_list() == ["Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]
    assert copies.ints("size_bytes").tolist() == [4096, 256]
    assert copies.text("api").to_list() == ["cudaMemcpyAsync", None]


def test_ranges_become_operators_steps_and_events(tmp_path: Path) -> None:
    (trace,) = read(export(tmp_path / "run.sqlite"))

    ops, events = trace[t.HOST_OPS], trace[t.HOST_EVENTS]
    assert ops.text("name").to_list() == ["aten::mm", "aten::relu"]
    assert ops.text("input_shapes").to_list() == ["64,128;128,32", None]
    assert ops.ints("sequence_number").tolist() == [17, NULL]
    # The launches lie inside the operators on the same thread.
    assert trace[t.KERNELS].ints("host_op").tolist() == [0, 1]
    assert dict(zip(events.text("name"), events.text("kind"), strict=True)) == {
        "step 4": "step", "step 5": "step", "my range": "user", RELU: "user", "Stream sync": "sync",
    }  # fmt: skip
    assert trace[t.STEPS].ints("step_id").tolist() == [4, 5]
    assert trace[t.STEPS].ints("dur_ns").tolist() == [900, 900]
    assert trace[t.RUNTIME_CALLS].text("api").to_list() == [
        "cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaLaunchKernel", "cudaStreamSynchronize",
    ]  # fmt: skip
    assert trace[t.RUNTIME_CALLS].ints("thread").tolist() == [99] * 5


def test_the_device_is_named_and_the_host_is_not(tmp_path: Path) -> None:
    (trace,) = read(export(tmp_path / "train.rank3.sqlite"))

    device = trace.meta.device
    assert (device.vendor, device.name, device.kind) == ("NVIDIA", "NVIDIA A100-SXM4-80GB", "gpu")
    assert (device.memory_bytes, device.compute_capability) == (85_899_345_920, (8, 0))
    assert device.spec is not None
    assert trace.meta.rank == 3
    assert trace.meta.versions == {"nsys schema": "3.15.1"}
    assert "secret" not in repr(trace.meta)


def test_processes_of_one_file_are_traces_of_their_own(tmp_path: Path) -> None:
    other = (7 << 32 | 5000) << 24
    path = export(
        tmp_path / "node.sqlite",
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(1_150, 100, 1, 11), kernel(1_160, 90, 3, 11, pid=other, device=1)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(1_100, 20, 4, 11), call(1_000, 7, 4, 11, tid=other | 5)],
    )

    first, second = read(path)

    assert [x[t.KERNELS].text("name").to_list() for x in (first, second)] == [[GEMM], [RELU]]
    # Correlation ids count per process.
    assert second[t.KERNELS].ints("launch_end_ns").tolist() == [EPOCH_NS + 1_007]
    assert [x.meta.label for x in (first, second)] == [
        "node.sqlite (process 0, device 0)", "node.sqlite (process 1, device 1)",
    ]  # fmt: skip
    assert first.meta.rank is None and nsys.MANY_PROCESSES in first.meta.warnings


def test_old_exports_without_processes_and_enumerations(tmp_path: Path) -> None:
    path = export(
        tmp_path / "old.sqlite",
        without=("ENUM_CUDA_MEM_KIND", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT",
                 "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS"),
        columns={
            "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, "
                " deviceId INT, streamId INT, correlationId INT, shortName INT",
            "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT, end INT, "
                " deviceId INT, streamId INT, correlationId INT, bytes INT, copyKind INT",
        },
        CUPTI_ACTIVITY_KIND_KERNEL=[(1_150, 1_250, 0, 7, 11, 1)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[(1_400, 1_460, 0, 7, 13, 4096, 2)],
    )  # fmt: skip

    (trace,) = read(path)

    assert trace[t.KERNELS].ints("launch_end_ns").tolist() == [1_120]
    assert trace[t.COPIES].text("name").to_list() == ["Memcpy DtoH"]
    assert trace[t.STEPS].ints("step_id").tolist() == [NULL]
    assert trace[t.STEPS].ints("dur_ns").tolist() == [310]  # from the kernel's start to the copy's end
    assert any("steps" in missing.what for missing in trace.meta.missing)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [7, 8]),
        (["iteration_1", "iteration_2"], [1, 2]),
        (["train step", "train step"], [0, 1]),
        (["step 0", "step 0"], [0, 1]),
        (["Iteration", "optimizer step"], [0]),
    ],
)
def test_names_of_steps(tmp_path: Path, names: list[str], numbers: list[int]) -> None:
    ranges = [nvtx(1_000 + 1_000 * i, 900, name) for i, name in enumerate(names)]

    (trace,) = read(export(tmp_path / "run.sqlite", NVTX_EVENTS=ranges))

    assert trace[t.STEPS].ints("step_id").tolist() == numbers


def test_graphs_traced_as_a_whole_are_kernels_and_said(tmp_path: Path) -> None:
    path = export(
        tmp_path / "graph.sqlite",
        columns={"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
            "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, graphId INT"
        )},
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[(1_130, 1_140, 0, 7, 11, PID, 2)],
    )  # fmt: skip

    (trace,) = read(path)

    assert trace[t.KERNELS].text("name").to_list() == ["CUDA graph 2", GEMM, RELU]
    assert nsys.WHOLE_GRAPHS in trace.meta.warnings


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    rows = [kernel(1_150, 100, 1, 11), kernel(1_400, -5, 1, 12), (None, 5, 0, 1, 7, 1, PID, 1, 1, 64, None),
            kernel(1_500, 90_000 * 10**9, 1, 12)]  # fmt: skip

    (trace,) = read(export(tmp_path / "run.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=rows))

    assert len(trace[t.KERNELS]) == 1
    (source,) = trace.meta.sources
    assert {d.reason: d.count for d in source.dropped} == {
        "duration over a day": 1, "end before start": 1, "time stamp missing or out of range": 1,
    }  # fmt: skip


def test_an_empty_export_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    nothing: dict[str, Sequence[Row]] = {name: [] for name in TABLES}
    path = export(tmp_path / "empty.sqlite", without=(), columns=None, **nothing)
    with pytest.raises(InputError, match="no kernel, CUDA call or NVTX range"):
        read(path)


def test_a_report_that_was_not_exported_is_named(tmp_path: Path) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"\0\1\2binary")
    with pytest.raises(InputError, match=r"nsys export --type sqlite run\.nsys-rep"):
        find_units(report)
    with pytest.raises(InputError, match="was not exported"):
        find_units(tmp_path)


def test_the_whole_analysis_runs(tmp_path: Path, command: Callable[..., Said]) -> None:
    export(tmp_path / "run.sqlite")
    said = command("analyze", tmp_path / "run.sqlite", "-o", tmp_path / "out", "--format", "json")
    assert (said.code, "failed" in said.err) == (0, False), said.err


_TIME = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 10_000))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(_TIME, _TIME, st.integers(0, 2), st.integers(0, 9)), max_size=6),
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
)
def test_any_content_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int | None, int | None, int, int]], text: str
) -> None:
    path = export(
        tmp_path_factory.mktemp("nsys") / "any.sqlite",
        CUPTI_ACTIVITY_KIND_KERNEL=[(s, e, d, 1, 7, c, PID, c, c, 1, None) for s, e, d, c in rows],
        NVTX_EVENTS=[(s, e, 59, text, TID, None, 0) for s, e, _, _ in rows],
    )
    for trace in read(path):
        assert (trace[t.KERNELS].ints("dur_ns") >= 0).all()
