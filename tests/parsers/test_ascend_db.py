"""Databases of torch_npu made by our own writer: both schemas, joins, both exports together."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from ascend_perf import pipeline
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from tests.parsers._ascend_profile import (
    EPOCH_US,
    DatabaseWriter,
    kernel_events,
    kernel_row,
    process_events,
    read,
    write_info,
    write_kernels,
    write_trace,
)

Schema = Literal["1.0.0", "1.2.0"]

BASE = EPOCH_US * 1000
THREAD = (4000 << 32) | 77
NONE = 4294967295


def start(number: int) -> int:
    """When kernel `number` starts: as in `kernel_row`."""
    return BASE + 25_000 * number + number % 10


def write_database(folder: Path, schema: Schema = "1.2.0", *, name: str = "ascend_pytorch_profiler_1.db") -> Path:
    """Three kernels of 10.000 us + n ns, one allReduce (FP32 x 1024, 2 tasks), one copy, one step; rank 1 of device 6.

    Connection 500 + n belongs to kernel n, 600 to the collective, 700 to the copy.
    """
    path = folder / name
    out = DatabaseWriter(path)
    word = out.word
    for text in ("zero", "N/A"):
        word(text)
    new = schema == "1.2.0"
    out.table("META_DATA", ("name", "value"), [
        ("SCHEMA_VERSION", schema),
        ("ENV_VARIABLES", '{"ASCEND_LAUNCH_BLOCKING": "1", "HCCL_ALGO": ""}'),
        ("parallel_group_info",
         '{"10.1.2.3%eth0_60000_0_1": {"group_name": "dp", "group_rank": 1, "global_ranks": [0, 1]}}'),
    ])  # fmt: skip
    out.table("NPU_INFO", ("id", "name"), [(0, "Ascend910B")])
    out.table("RANK_DEVICE_MAP", ("rankId", "deviceId"), [("1", 6)])
    out.table("SESSION_TIME_INFO", ("startTimeNs", "endTimeNs"), [(BASE, BASE + 10**9)])
    out.table("STEP_TIME", ("id", "startNs", "endNs"), [(9, BASE - 30_000, BASE + 300_000)])
    tasks = [(start(n), start(n) + 10_000 + n, 6, 500 + n, n, 1, word("KERNEL_AIVEC"), NONE, 2, 100 + n, NONE)
             for n in range(3)]  # fmt: skip
    tasks += [
        (BASE + 100_000, BASE + 140_000, 6, 600, 10, 1, word("Notify Wait"), NONE, 4, 7, NONE),
        (BASE + 141_000, BASE + 143_000, 6, 600, 11, 1, word("SDMA"), NONE, 4, 8, NONE),
        (BASE + 200_000, BASE + 204_500, 6, 700, 12, 1, word("MEMCPY_ASYNC"), NONE, 2, 9, NONE),
    ]
    out.table(
        "TASK",
        ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType", "contextId",
         "streamId", "taskId", "modelId"),
        tasks,
    )  # fmt: skip
    block = ("blockNum", "mixBlockNum") if new else ("blockDim", "mixBlockDim")
    shapes = [word(text) for text in ("ND;ND", "DT_BF16;DT_BF16", '"4096,4096;64"', "ND", "DT_BF16", '"4096,4096"')]
    columns = ["name", "globalTaskId", *block, "taskType", "opType", "inputFormats", "inputDataTypes", "inputShapes",
               "outputFormats", "outputDataTypes", "outputShapes", "attrInfo"]  # fmt: skip
    rows: list[list[object]] = [
        [word(f"aclnnAdd_AddAiCore_Add{n}"), n, 48, 0, word("AI_VECTOR_CORE"), word("Add"), *shapes, word("N/A")]
        for n in range(3)
    ]
    if new:
        columns += ["opState", "hf32Eligible", "gridDim", "blockDim"]  # here blockDim is another thing
        rows = [[*row, word("dynamic"), word("NO"), 1, 999] for row in rows]
    out.table("COMPUTE_TASK_INFO", columns, rows)
    pmu = [(n, word(metric), value) for n in range(3) for metric, value in (
        ("aiv_total_time", 9700), ("aiv_total_cycles", 838080), ("aiv_vec_ratio", 0.35), ("aiv_vec_time", 3395),
        ("aiv_ub_read_bw", 1.5), ("aiv_icache_miss_rate", 0.01))]  # fmt: skip
    out.table("TASK_PMU_INFO", ("globalTaskId", "name", "value"), pmu)
    comm_columns = ["opName", "startNs", "endNs", "connectionId", "groupName", "opId", "relay", "retry", "dataType",
                    "algType", "count", "opType"]  # fmt: skip
    comm: list[object] = [word("hcom_allReduce__612_4_1"), BASE + 100_000, BASE + 150_000, 600,
                          word("10.1.2.3%eth0_60000_0_1"), 1, 0, 0, 4, word("MESH-RING"), 1024,
                          word("hcom_allReduce_")]  # fmt: skip
    out.table(
        "COMMUNICATION_OP", comm_columns + (["deviceId", "rankSize"] if new else []), [comm + ([6, 2] if new else [])]
    )
    out.table(
        "COMMUNICATION_TASK_INFO",
        ("name", "globalTaskId", "taskType", "planeId", "groupName", "notifyId", "rdmaType", "srcRank", "dstRank",
         "transportType", "size", "dataType", "linkType", "opId"),
        [
            (0, 10, word("Notify_Wait"), 1, 0, 5, NONE, 0, 1, 2, 0, 65535, 65535, 1),
            (0, 11, word("Memcpy"), 0, 0, 5, NONE, 0, NONE, 0, 4096, 4, 1, 1),
            (0, 99, word("Memcpy"), 0, 0, 5, NONE, 0, 1, 0, 4096, 4, 1, 1),
        ],
    )  # fmt: skip
    out.table("ENUM_HCCL_LINK_TYPE", ("id", "name"), [(1, "HCCS_OF_THE_FILE"), (65535, "INVALID_TYPE")])
    calls = [(start(n) - 15_000, start(n) - 12_000, 10000, THREAD, 500 + n, word("launch")) for n in range(3)]
    calls += [(BASE + 90_000, BASE + 95_000, 5500, THREAD, 600, word("Launch_Ffts")),
              (BASE + 190_000, BASE + 192_000, 20000, THREAD, 700, word("aclrtMemcpyAsync"))]  # fmt: skip
    out.table("CANN_API", ("startNs", "endNs", "type", "globalTid", "connectionId", "name"), calls)
    out.table("MEMCPY_INFO", ("globalTaskId", "size", "memcpyOperation"), [(12, 64, 2)])
    # Framework: times are text; operator n launches kernel n; operator 3 began after all tasks and has, by accident,
    # the number of kernel 0's connection as id of a flow.
    shape, dtype = word("4096,4096;\r\n64"), word("c10::BFloat16;\r\nc10::BFloat16")
    if not new:
        shape, dtype = dtype, shape  # as the exporter of 1.0.0 does
    api: list[tuple[object, ...]] = [
        (str(start(n) - 20_000), str(start(n) - 8_000), THREAD, n, word("aten::add"), n, 0, dtype, shape, 0, 50001)
        for n in range(3)
    ]
    api += [
        (str(BASE + 400_000), str(BASE + 400_001), THREAD, 3, word("aten::late"), -1, 0, None, None, None, 50001),
        (str(BASE - 30_000), str(BASE + 300_000), THREAD, None, word("ProfilerStep#9"), -1, 0, None, None, None, 50001),
        (str(BASE), str(BASE + 10), THREAD, 4, word("Enqueue"), None, None, None, None, None, 50002),
        (str(BASE), str(BASE + 10), THREAD, None, word("main.py(1): f"), None, None, None, None, None, 50003),
        (str(BASE + 80_000), str(BASE + 160_000), THREAD, 5, word("c10d::allreduce_"), 9, 0, None, None, None, 50001),
    ]
    out.table(
        "PYTORCH_API",
        ("startNs TEXT", "endNs TEXT", "globalTid", "connectionId", "name", "sequenceNumber", "fwdThreadId",
         "inputDtypes", "inputShapes", "callchainId", "type"),
        api,
    )  # fmt: skip
    links = [(0, 500), (1, 501), (2, 502), (3, 500), (4, 8230), (5, 600)]
    out.table("CONNECTION_IDS", ("id", "connectionId"), links)
    frames = [(0, word("/home/me/job/main.py(7): train"), 1), (0, word("/x/site-packages/torch/nn.py(3): forward"), 0)]
    out.table("PYTORCH_CALLCHAINS", ("id", "stack", "stackDepth"), frames)
    out.table("MEMORY_RECORD", ("component", "timestamp", "totalAllocated", "totalReserved", "totalActive"), [
        (word("PTA"), BASE, 10, 20, 10)])  # fmt: skip
    out.table("NPU_MEM", ("type", "ddr", "hbm", "timestampNs", "deviceId"), [
        (word("app"), 1, 4, BASE, 6), (word("device"), 100, 400, BASE, 6)])  # fmt: skip
    out.table("OP_MEMORY", ("name", "size", "allocationTime", "releaseTime"), [(word("aten::add"), 512, BASE, None)])
    out.table(
        "NPU_MODULE_MEM", ("moduleId", "timestampNs", "totalReserved", "deviceId"), [(3, BASE, 7, 6), (5, BASE, 8, 6)]
    )
    out.table("ENUM_MODULE", ("id", "name"), [(3, "HCCL")])
    out.table("AICORE_FREQ", ("deviceId", "timestampNs", "freq"), [(6, BASE, 1800), (6, BASE + 5, 1800)])
    out.table("LLC", ("deviceId", "timestampNs", "hitRate", "throughput"), [(6, BASE, 84.0, 1000)])
    out.table("GC_RECORD", ("startNs", "endNs", "globalTid"), [(BASE + 7, BASE + 9, THREAD)])
    out.table("OVERLAP_ANALYSIS", ("id", "deviceId", "startNs", "endNs", "type"), [(1, 6, BASE, BASE + 10_000, 0)])
    out.close()
    return path


@pytest.fixture(params=["1.0.0", "1.2.0"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Schema, Trace]:
    write_database(tmp_path, request.param)
    return request.param, read(tmp_path)


def test_kernels_of_both_schemas(database: tuple[Schema, Trace]) -> None:
    schema, trace = database

    kernels = trace[t.KERNELS]
    assert kernels.ints("start_ns").tolist() == [start(n) for n in range(3)]
    assert kernels.ints("dur_ns").tolist() == [10_000, 10_001, 10_002]
    assert kernels.text("core").to_list() == ["AIV"] * 3
    assert kernels.ints("block_num").tolist() == [48] * 3
    assert kernels.ints("model_id").tolist() == [NULL] * 3
    assert kernels.text("input_shapes").to_list() == ["4096,4096;64"] * 3
    assert kernels.text("hf32_eligible").to_list() == ([None] * 3 if schema == "1.0.0" else ["NO"] * 3)
    assert kernels.ints("aiv_time_ns").tolist() == [9_700] * 3
    assert kernels.ints("aiv_total_cycles").tolist() == [838_080] * 3
    assert kernels.floats("aiv_vec_ratio").tolist() == [0.35] * 3
    assert kernels.floats("aiv_icache_miss_ratio").tolist() == [0.01] * 3
    assert kernels.floats("aiv_ub_read_bw").tolist() == [1.5] * 3
    assert kernels.ints("step_id").tolist() == [9] * 3
    assert trace.meta.settings.generation == {"1.0.0": "G2", "1.2.0": "G4"}[schema]


def test_kernels_join_to_their_operator_and_launch(database: tuple[Schema, Trace]) -> None:
    _, trace = database

    kernels, ops = trace[t.KERNELS], trace[t.HOST_OPS]
    assert [ops.text("name")[row] for row in kernels.ints("host_op").tolist()] == ["aten::add"] * 3
    assert (kernels.ints("start_ns") - kernels.ints("launch_start_ns")).tolist() == [15_000] * 3
    assert (kernels.ints("start_ns") - kernels.ints("launch_end_ns")).tolist() == [12_000] * 3
    assert ops.text("input_shapes").to_list()[:3] == ["4096,4096;64"] * 3
    assert ops.text("input_dtypes").to_list()[:3] == ["c10::BFloat16;c10::BFloat16"] * 3
    assert ops.text("stack").to_list()[0] == "torch/nn.py(3): forward\njob/main.py(7): train"
    assert "ProfilerStep#9" not in ops.text("name").values
    assert (ops.ints("thread") == 77).all()


def test_collectives_and_their_tasks(database: tuple[Schema, Trace]) -> None:
    _, trace = database

    calls, tasks = trace[t.COMM_OPS], trace[t.COMM_TASKS]
    assert (calls.text("op")[0], int(calls.ints("dur_ns")[0]), int(calls.ints("size_bytes")[0])) == (
        "allReduce", 50_000, 4096
    )  # fmt: skip
    assert (calls.text("group_label")[0], int(calls.ints("group_size")[0])) == ("dp", 2)
    assert trace[t.HOST_OPS].text("name")[int(calls.ints("host_op")[0])] == "c10d::allreduce_"
    assert tasks.text("kind").to_list() == ["Notify_Wait", "Memcpy"]
    assert (tasks.ints("dst").tolist(), tasks.ints("plane").tolist()) == ([1, NULL], [1, 0])
    assert tasks.text("link").to_list() == [None, "HCCS_OF_THE_FILE"]  # the file's own table counts
    assert tasks.text("transport").to_list() == ["LOCAL", "SDMA"]
    (source,) = [s for s in trace.meta.sources if s.format == "ascend_pytorch_profiler.db"]
    assert ("HCCL task without a task or collective", 1) in [(d.reason, d.count) for d in source.dropped]


def test_copies_memory_and_counters(database: tuple[Schema, Trace]) -> None:
    _, trace = database

    copies = trace[t.COPIES]
    assert (copies.text("kind")[0], int(copies.ints("size_bytes")[0]), copies.text("api")[0]) == (
        "D2H", 64, "aclrtMemcpyAsync"
    )  # fmt: skip
    memory = trace[t.MEMORY]
    rows = zip(memory.text("component").to_list(), memory.ints("reserved_bytes").tolist(), strict=True)
    assert dict(rows) == {"PTA": 20, "APP": 5}
    assert trace[t.MEMORY_BLOCKS].ints("free_ns").tolist() == [NULL]
    assert trace[t.MODULE_MEMORY].text("component").to_list() == ["HCCL"]
    counters = trace[t.COUNTERS]
    hit = counters.text("counter").equals("LLC/Hit Rate")
    assert counters.floats("value")[hit].tolist() == [0.84]
    assert trace.meta.device.frequency_hz == 1_800_000_000
    assert trace[t.OVERLAP].text("kind").to_list() == ["Computing"]
    events = trace[t.HOST_EVENTS]
    assert sorted(filter(None, events.text("kind").to_list())) == ["enqueue", "gc", "step"]
    enqueue = events.text("kind").equals("enqueue")
    assert events.ints("correlation")[enqueue].tolist() == [8230]


def test_facts_of_the_database(database: tuple[Schema, Trace]) -> None:
    _, trace = database

    assert (trace.meta.rank, trace.meta.device.device_id, trace.meta.device.name) == (1, 6, "Ascend910B")
    assert dict(trace.meta.environment) == {"ASCEND_LAUNCH_BLOCKING": "1"}
    assert "10.1.2.3" not in str(trace.meta) and "10.1.2.3" not in str(trace[t.COMM_OPS].text("group").values)
    steps = trace[t.STEPS]
    # From kernel 0 to the end of the collective at 150 us.
    assert (steps.ints("step_id").tolist(), steps.ints("dur_ns").tolist()) == ([9], [150_000])


def test_ranks_of_one_folder_are_kept_apart(tmp_path: Path) -> None:
    from ascend_perf.parsers import ascend_pt
    from tests.parsers._ascend_profile import folder_of

    for rank in (0, 1):
        write_database(tmp_path, name=f"ascend_pytorch_profiler_{rank}.db")
        write_info(tmp_path, rank=rank)

    units = ascend_pt.find(folder_of(tmp_path))

    assert [[path.name for path in unit.files] for unit in units] == [
        ["ascend_pytorch_profiler_0.db"], ["ascend_pytorch_profiler_1.db"]
    ]  # fmt: skip
    assert [[path.name for path in unit.context] for unit in units] == [
        ["profiler_info_0.json"],
        ["profiler_info_1.json"],
    ]


def test_with_both_exports_the_database_counts_and_the_text_fills_in(tmp_path: Path) -> None:
    write_database(tmp_path)
    write_kernels(tmp_path, [kernel_row(n, step=9) for n in range(3)])
    write_trace(tmp_path, [*process_events(), *(e for n in range(3) for e in kernel_events(n))])

    trace = read(tmp_path)

    kernels = trace[t.KERNELS]
    assert len(kernels) == 3  # not six
    assert kernels.ints("wait_ns").tolist() == [0] * 3  # only the text has it
    assert kernels.floats("aiv_ub_read_bw").tolist() == [1.5] * 3  # only the database has it
    (check,) = [c for c in trace.meta.checks if c.name == "kernels in both exports"]
    assert check.holds
    assert len(trace[t.HOST_OPS]) == 5  # of the database; the trace was not read
    (source,) = [s for s in trace.meta.sources if s.format == "trace_view.json"]
    assert source.problem is not None and source.problem.startswith("not read")


def test_a_csv_of_another_capture_is_not_mixed_in(tmp_path: Path) -> None:
    write_database(tmp_path)
    write_kernels(tmp_path, [{**kernel_row(n), "Start Time(us)": f"1790000000000{n:03d}.000"} for n in range(3)])

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 3
    assert any("another capture" in (source.problem or "") for source in trace.meta.sources)


def test_a_database_that_was_opened_in_the_viewer_reads_the_same(tmp_path: Path) -> None:
    import sqlite3

    path = write_database(tmp_path)
    before = read(tmp_path)[t.KERNELS].ints("start_ns").tolist()
    connection = sqlite3.connect(path)
    connection.execute("alter table TASK add column depth integer")
    connection.execute("create table status_info (id, key, value)")
    connection.commit()
    connection.close()

    assert read(tmp_path)[t.KERNELS].ints("start_ns").tolist() == before


def test_rows_in_a_write_ahead_log_count_and_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    path = write_database(tmp_path)
    writer = sqlite3.connect(path)
    writer.execute("pragma journal_mode=wal")
    writer.execute("pragma wal_autocheckpoint=0")
    writer.execute("update TASK set endNs = endNs + 5000 where globalTaskId = 0")
    writer.commit()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    trace = read(tmp_path)

    assert trace[t.KERNELS].ints("dur_ns").tolist() == [15_000, 10_001, 10_002]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    writer.close()


def test_short_python_calls_are_left_out_without_a_warning(tmp_path: Path) -> None:
    path = write_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute("pragma table_info(PYTORCH_API)")]
        call = {"startNs": BASE, "endNs": BASE + 100, "globalTid": THREAD, "name": 1, "type": 50003}
        connection.executemany(
            f"insert into PYTORCH_API values ({', '.join('?' * len(columns))})",
            [tuple(call.get(name) for name in columns)] * 999,
        )
        connection.commit()
    meta = read(path).meta
    (source,) = [source for source in meta.sources if source.dropped]
    # One more is in each of these databases, and two rows that really are lost: too few for a warning.
    assert [dropped.count for dropped in source.dropped if dropped.reason.startswith("Python call")] == [1000]
    assert not [warning for warning in meta.warnings if "sums are too low" in warning]


def test_absent_tables_are_no_error(tmp_path: Path) -> None:
    out = DatabaseWriter(tmp_path / "ascend_pytorch_profiler.db")
    out.table("TASK", ("startNs", "endNs", "globalTaskId", "connectionId", "taskType"), [(BASE, BASE + 5, 1, 1, 0)])
    out.word("KERNEL_AICORE")
    out.close()

    trace = read(tmp_path)

    assert not len(trace[t.KERNELS])
    assert any("kernels" in missing.what for missing in trace.meta.missing)


@pytest.mark.parametrize("odd", [-5, 1 << 62, 7_900_000_000_000_000_000, 1])
def test_samples_with_times_beyond_reason_are_dropped(tmp_path: Path, odd: int) -> None:
    write_database(tmp_path)
    path = tmp_path / "ascend_pytorch_profiler_1.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        word = connection.execute("select component from MEMORY_RECORD").fetchone()[0]
        rows = [(word, BASE + 1, -1, 1 << 61, 10), (word, BASE + 2, 1, 2, 3), (word, odd, 1, 2, 3)]
        connection.executemany("insert into MEMORY_RECORD values (?, ?, ?, ?, ?)", rows)
        connection.execute("insert into OP_MEMORY select name, ?, ?, ? from OP_MEMORY", (1 << 62, BASE + 3, BASE + 4))
        connection.execute("insert into OP_MEMORY select name, 8, ?, ? from OP_MEMORY limit 1", (odd, BASE + 5))
        connection.executemany("insert into LLC values (6, ?, 50.0, 1000)", [(BASE + 1,), (BASE + 2,), (odd,)])

    trace = read(tmp_path)

    memory = trace[t.MEMORY]
    own = memory.text("component").equals("PTA")
    assert memory.ints("allocated_bytes")[own].tolist() == [10, NULL, 1]
    assert memory.ints("reserved_bytes")[own].tolist() == [20, NULL, 2]
    blocks = trace[t.MEMORY_BLOCKS]
    assert sorted(blocks.ints("size_bytes").tolist()) == [NULL, 8, 512]
    assert sorted(blocks.ints("alloc_ns").tolist()) == [NULL, BASE, BASE + 3]
    counters = trace[t.COUNTERS]
    assert counters.floats("value")[counters.text("counter").equals("LLC/Hit Rate")].tolist() == [0.84, 0.5, 0.5]
    told = {drop.reason: drop.count for source in trace.meta.sources for drop in source.dropped}
    assert {reason: told[f"{reason} row with a time out of range"] for reason in ("MEMORY_RECORD", "OP_MEMORY")} == {
        "MEMORY_RECORD": 1, "OP_MEMORY": 1,
    }  # fmt: skip


@pytest.mark.parametrize("odd", [2**63 - 1, -1, BASE + 86_400 * 10**9 + 10**6])
def test_calls_with_ends_beyond_reason_launch_nothing(tmp_path: Path, odd: int) -> None:
    write_database(tmp_path)
    path = tmp_path / "ascend_pytorch_profiler_1.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update CANN_API set endNs = ?", (odd,))
        connection.execute("update PYTORCH_API set endNs = ?", (odd,))
        connection.execute("insert into STEP_TIME values (?, ?, ?)", (2**63 - 1, BASE, BASE + 5))
        connection.execute("insert into STEP_TIME values (?, ?, ?)", (10, BASE, odd))

    trace = read(tmp_path)

    for table in (trace[t.KERNELS], trace[t.COMM_OPS]):
        assert set(table.ints("launch_start_ns").tolist()) == {NULL}
        assert set(table.ints("launch_end_ns").tolist()) == {NULL}
    assert not trace.has(t.RUNTIME_CALLS) and not trace.has(t.HOST_OPS)
    assert set(trace[t.HOST_EVENTS].text("kind").to_list()) <= {"gc", "step"}
    assert trace[t.STEPS].ints("step_id").tolist() == [9]
    told = {drop.reason: drop.count for source in trace.meta.sources for drop in source.dropped}
    assert told["STEP_TIME row without a usable number or time"] == 2


def test_a_recording_without_end_is_told(tmp_path: Path) -> None:
    out = DatabaseWriter(tmp_path / "ascend_pytorch_profiler.db")
    out.table("TASK", ("startNs", "endNs", "globalTaskId"), [])
    out.table("SESSION_TIME_INFO", ("startTimeNs", "endTimeNs"), [(BASE, None)])
    out.close()

    assert any("no end time" in warning for warning in read(tmp_path).meta.warnings)


@pytest.mark.parametrize("odd", ["NaN", b"", 1e308, "9" * 40, "{}"])
def test_ids_that_are_no_numbers_name_nothing(tmp_path: Path, odd: object) -> None:
    write_database(tmp_path)
    path = tmp_path / "ascend_pytorch_profiler_1.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("STRING_IDS", "ENUM_MODULE"):
            columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
            if columns:
                connection.execute(f"create table odd as select * from {table}")
                connection.execute(f"drop table {table}")
                connection.execute(f"alter table odd rename to {table}")
                values = [odd, "odd"][: len(columns)]
                connection.execute(f"insert into {table} values ({', '.join('?' * len(values))})", values)
    plain = read(tmp_path)

    other = tmp_path / "again"
    other.mkdir()
    write_database(other)
    assert plain[t.KERNELS].text("name").to_list() == read(other)[t.KERNELS].text("name").to_list()


@pytest.mark.parametrize("none", [NONE, -1])
def test_what_stands_for_none_is_unknown_in_every_column_of_ids(tmp_path: Path, none: int) -> None:
    # As in profiles of level 0: sub-tasks without plane, ranks and size, tasks and calls without a connection.
    path = write_database(tmp_path)
    names = {
        "TASK": ("connectionId", "streamId", "taskId", "modelId", "deviceId"),
        "COMPUTE_TASK_INFO": ("blockNum", "mixBlockNum"),
        "COMMUNICATION_TASK_INFO": ("planeId", "srcRank", "dstRank", "size"),
        "COMMUNICATION_OP": ("connectionId", "rankSize", "count", "deviceId"),
        "CANN_API": ("connectionId",),
        "MEMCPY_INFO": ("size",),
        "PYTORCH_API": ("sequenceNumber",),
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, columns in names.items():
            changed = ", ".join(f"{column} = {none}" for column in columns)
            connection.execute(f"update {table} set {changed}")

    trace = read(tmp_path)

    found = {
        t.KERNELS: ("stream", "task_id", "model_id", "block_num", "mix_block_num", "correlation", "launch_start_ns",
                    "host_op"),
        t.COMM_TASKS: ("plane", "src", "dst", "size_bytes"),
        t.COMM_OPS: ("correlation", "size_bytes", "launch_start_ns"),
        t.COPIES: ("stream", "correlation", "size_bytes", "launch_start_ns"),
        t.RUNTIME_CALLS: ("correlation",),
        t.HOST_OPS: ("sequence_number",),
    }  # fmt: skip
    for spec, wanted in found.items():
        assert len(trace[spec])
        for column in wanted:
            assert set(trace[spec].ints(column).tolist()) == {NULL}, (spec.name, column)
    assert trace[t.COMM_OPS].ints("group_size").tolist() == [2]  # of the members that the metadata name
    # An unknown connection joins nothing: the copy is of no call.
    assert trace[t.COPIES].text("api").to_list() == [None]


def test_planes_of_a_level_0_profile_are_unknown(traces: Path) -> None:
    trace = pipeline.load(traces / "ascend-pytorch/db/level0/rank0_ascend_pt").traces[0]

    tasks = trace[t.COMM_TASKS]
    assert len(tasks) == 296
    for column in ("plane", "src", "dst", "size_bytes"):
        assert set(tasks.ints(column).tolist()) == {NULL}
