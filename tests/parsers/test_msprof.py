"""Exports of the msprof command line made by our own writer, and the real files that we hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import msprof
from ascend_perf.parsers._ascend_comm import CommFigures, read_communication, read_matrix
from ascend_perf.parsers._msprof_facts import read_process_facts
from ascend_perf.parsers.discover import find_units
from tests.parsers._ascend_profile import (
    EPOCH_US,
    HARDWARE,
    DatabaseWriter,
    Generation,
    folder_of,
    kernel_events,
    kernel_row,
    process_events,
    stamp,
    write_info,
    write_kernels,
)
from tests.parsers._msprof_profile import (
    NEWER,
    PROF,
    STAMP,
    Prof,
    dropped_of,
    problems_of,
    summary_comm,
    summary_header,
    summary_row,
    task_row,
    trace_at,
    traces_at,
)

GENERATIONS: tuple[Generation, ...] = ("G1", "G2", "G3", "G4")
OTHER = "PROF_000002_20260528000000001_QRSTUVWXYZABCDEF"
T0 = EPOCH_US * 1000


def names(trace: Trace) -> list[str | None]:
    return trace[t.KERNELS].text("name").to_list()


def counters(trace: Trace) -> dict[str, tuple[str | None, float]]:
    """Unit and value of the counters by name; those with several samples keep the last."""
    table = trace[t.COUNTERS]
    cells = zip(
        table.text("counter").to_list(), table.text("unit").to_list(), table.floats("value").tolist(), strict=True
    )
    return {name or "": (unit, value) for name, unit, value in cells}


# ---- kernels of each generation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_op_summary_of_each_generation(tmp_path: Path, generation: Generation) -> None:
    prof = Prof(tmp_path)
    rows = [summary_row(0), summary_comm(1, generation), summary_row(2)]
    if generation == "G1":
        prof.raw(0).summary(rows, generation, tail="0_1_1", folder="device_0/summary")
    else:
        prof.raw(0).summary(rows, generation)

    trace = trace_at(tmp_path)

    kernels, calls = trace[t.KERNELS], trace[t.COMM_OPS]
    assert names(trace) == ["aclnnAdd_AddAiCore_Add0", "aclnnAdd_AddAiCore_Add2"]
    assert kernels.ints("start_ns").tolist() == [T0, T0 + 50_002]
    assert kernels.ints("dur_ns").tolist() == [10_000, 10_002]
    assert kernels.text("core").to_list() == ["AIV", "AIV"]
    assert kernels.ints("block_num").tolist() == [48, 48]
    assert kernels.floats("aiv_vec_ratio").tolist() == [0.35, 0.35]
    assert (calls.text("op").to_list(), calls.ints("dur_ns").tolist()) == (["allReduce"], [20_000])
    assert trace.meta.settings.generation == generation
    assert trace.meta.settings.producer == "msprof"
    assert trace.meta.rank is None
    assert trace.meta.device.device_id == (None if generation == "G2" else 0)
    assert trace[t.STEPS].ints("dur_ns").tolist() == [60_004]
    folder = "device_0/summary" if generation == "G1" else "mindstudio_profiler_output"
    tail = "0_1_1" if generation == "G1" else STAMP
    assert [s.path for s in trace.meta.sources] == [f"{PROF}/{folder}/op_summary_{tail}.csv"]


@pytest.mark.parametrize("where", ["parent", "prof", "output", "file"])
def test_the_path_may_be_the_parent_the_directory_its_output_or_a_file(tmp_path: Path, where: str) -> None:
    prof = Prof(tmp_path).raw(3).info(3, rank=7)
    file = prof.summary([summary_row(0, device=3)])
    paths = {"parent": tmp_path, "prof": prof.path, "output": file.parent, "file": file}

    trace = trace_at(paths[where])

    assert len(trace[t.KERNELS]) == 1
    # A file alone is no PROF directory: its facts lie two folders up.
    assert trace.meta.rank == 7
    assert trace.meta.device.device_id == 3


def test_facts_of_the_device_come_from_info_json(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0).info(0, rank="3", cores=20, mhz="1650").sample(
        ai_core_metrics="PipeUtilization", ai_core_profiling="on", interconnection_profiling="off"
    )  # fmt: skip
    prof.summary([summary_row(0)])

    trace = trace_at(tmp_path)

    device = trace.meta.device
    assert (device.cube_cores, device.vector_cores, device.frequency_hz) == (20, 40, 1_650_000_000)
    assert device.name is None  # platform 5 is of several parts
    assert device.derivation == "frequency 1650 MHz from info.json; 20 cube cores from info.json"
    assert trace.meta.rank == 3
    assert trace.meta.settings.aic_metrics == "PipeUtilization"
    assert trace.meta.versions["msprof_data"] == "1.2"
    remedies = {missing.remedy for missing in trace.meta.missing}
    assert "msprof --sys-interconnection-profiling=on" in remedies
    assert "msprof --sys-io-profiling=on" not in remedies  # nothing says that it was off


@pytest.mark.parametrize(
    ("stated", "mhz", "cube", "vector"),
    [
        (25, "1850", 24, 48),  # 910B1: 25 physical cores, 24 usable; 25 would overstate the peak by 4 %
        (24, "1850", 24, 48),
        (25, "1650", 25, 50),  # no part of 24 cores runs at 1650 MHz: as stated
    ],
)
def test_an_unusable_core_does_not_count(tmp_path: Path, stated: int, mhz: str, cube: int, vector: int) -> None:
    Prof(tmp_path).raw(0).info(0, rank="3", cores=stated, mhz=mhz).summary([summary_row(0)])

    device = trace_at(tmp_path).meta.device

    assert (device.cube_cores, device.vector_cores) == (cube, vector)
    assert ("of them usable" in (device.derivation or "")) == (stated != cube)


def test_nothing_private_is_carried_over(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0).info(0).sample(ai_core_metrics="Memory")
    prof.summary([summary_row(0)])

    text = repr(trace_at(tmp_path).meta)

    assert "secret" not in text and str(tmp_path) not in text


def test_level0_gets_its_engines_from_task_time(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    unknown = dict.fromkeys(("OP Type", "OP State", "Task Type", "Input Shapes"), "N/A")
    prof.summary([{**summary_row(number), **unknown} for number in range(3)])
    header = list(task_row(0))
    rows = [task_row(0), task_row(1, kind="AI_CORE"), task_row(2), task_row(3, kind="MEMCPY_ASYNC", name="N/A")]
    prof.csv("task_time", header, [*rows, task_row(4, kind="NOTIFY_WAIT_SQE", name="N/A")])

    trace = trace_at(tmp_path)

    assert trace[t.KERNELS].text("core").to_list() == ["AIV", "AIC", "AIV"]
    copies = trace[t.COPIES]
    assert (copies.text("name").to_list(), copies.text("kind").to_list()) == (["MEMCPY_ASYNC"], [None])
    assert copies.ints("dur_ns").tolist() == [10_003]
    assert not trace[t.KERNELS].has("op_type")
    assert "msprof --task-time=l1" in {missing.remedy for missing in trace.meta.missing}


def test_task_time_alone_gives_the_kernels(tmp_path: Path) -> None:
    rows = [task_row(1), task_row(0, kind="KERNEL_AICPU"), task_row(2, kind="EVENT_RECORD", name="N/A")]
    Prof(tmp_path).raw(0).csv("task_time", list(rows[0]), rows)

    kernels = trace_at(tmp_path)[t.KERNELS]

    assert kernels.text("core").to_list() == ["AICPU", "AIV"]
    assert kernels.ints("start_ns").tolist() == [T0, T0 + 25_001]
    assert kernels.ints("task_id").tolist() == [100, 101]


# ---- slices, stamps, devices, processes ------------------------------------------------------------------------------


def test_slices_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    for number in (10, 2, 0):
        # Equal starts: only the order of the slices tells which kernel comes first.
        rows = [summary_row(0, Op_Name=f"s{number}_{k}") for k in range(2)]
        prof.csv("op_summary_slice_" + str(number), summary_header("G3"), rows)

    trace = trace_at(tmp_path)

    assert names(trace) == ["s0_0", "s0_1", "s2_0", "s2_1", "s10_0", "s10_1"]
    assert [(s.path.rpartition("/")[2], s.rows) for s in trace.meta.sources] == [
        (f"op_summary_slice_{n}_{STAMP}.csv", 2) for n in (0, 2, 10)
    ]


def test_slices_with_different_columns_are_one_table(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.csv("op_summary_slice_0", summary_header("G3"), [summary_row(0)])
    prof.csv("op_summary_slice_1", [*summary_header("G3"), "aic_new(GB/s)"], [{**summary_row(1), "aic_new(GB/s)": "2"}])

    kernels = trace_at(tmp_path)[t.KERNELS]

    values = kernels.floats("aic_new_bytes_per_s")
    assert np.isnan(values[0]) and values[1] == 2 * 2**30


def test_the_newest_export_of_each_table_counts(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0), summary_row(1)], tail=STAMP)
    prof.csv("op_summary_slice_0", summary_header("G3"), [summary_row(5)], tail=NEWER)
    header = ["Device_id", "OP Type", "Core Type", "Count", "Total Time(us)"]
    prof.csv("op_statistic", header, [["0", "Add", "AI_VECTOR_CORE", "1", "10.005"]], tail=STAMP)

    trace = trace_at(tmp_path)

    assert names(trace) == ["aclnnAdd_AddAiCore_Add5"]
    assert trace[t.EXPORTED_OPS].ints("total_ns").tolist() == [10_005]
    assert problems_of(trace) == {f"op_summary_{STAMP}.csv": "not read: a newer export of the same data lies beside it"}
    assert all(check.holds for check in trace.meta.checks)


def test_exports_of_single_iterations_are_joined(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    for iteration in (1, 2, 10):
        prof.summary([summary_row(iteration)], "G1", tail=f"0_4294967295_{iteration}", folder="device_0/summary")

    assert names(trace_at(tmp_path)) == [f"aclnnAdd_AddAiCore_Add{n}" for n in (1, 2, 10)]


def test_several_devices_are_a_trace_each(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0, 1).info(0, 1)
    prof.summary([summary_row(0, device=1), summary_row(1), summary_comm(2, device=1), summary_row(3, device=1)])
    header = ["Device_id", "OP Type", "Core Type", "Count", "Total Time(us)"]
    prof.csv(
        "op_statistic", header, [["0", "Add", "AI_VECTOR_CORE", "1", "9"], ["1", "Add", "AI_VECTOR_CORE", "2", "8"]]
    )
    prof.csv(
        "hbm", ["Device_id", "Metric", "Read(MB/s)", "Write(MB/s)"], [[str(d), "0", f"{d}.5", "3"] for d in (0, 1, 2)]
    )
    header = ["Device_id", "Component", "Timestamp(us)", "Total Reserved(KB)", "Device"]
    prof.csv("npu_module_mem", header, [[str(d), "HCCL", stamp("5") + "\t", f"{d + 1}", f"NPU:{d}"] for d in (0, 1)])
    header = ["Device_id", "Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"]
    prof.csv("api_statistic", header, [["host", "acl", "aclrtSynchronizeStream", "7.5", "2", "3.75", "1", "6.5", "0"]])

    first, second = traces_at(tmp_path)

    assert (first.meta.label, second.meta.label) == (f"{PROF} (device 0)", f"{PROF} (device 1)")
    assert (first.meta.device.device_id, second.meta.device.device_id) == (0, 1)
    assert (names(first), len(second[t.KERNELS])) == (["aclnnAdd_AddAiCore_Add1"], 2)
    assert (len(first[t.COMM_OPS]), len(second[t.COMM_OPS])) == (0, 1)
    assert first[t.EXPORTED_OPS].ints("total_ns").tolist() == [9_000]
    assert second[t.EXPORTED_OPS].ints("total_ns").tolist() == [8_000]
    assert counters(second) == {"HBM 0/Read": ("MB/s", 1.5), "HBM 0/Write": ("MB/s", 3.0)}
    assert second[t.MODULE_MEMORY].ints("reserved_bytes").tolist() == [2048]
    for trace in (first, second):
        assert trace[t.EXPORTED_APIS].ints("total_ns").tolist() == [7_500]
        assert trace.meta.rank is None
        assert all(check.holds for check in trace.meta.checks)


def test_a_device_that_was_only_watched_is_no_trace(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0)])
    prof.csv("ddr", ["Device_id", "Metric", "Read(MB/s)", "Write(MB/s)"], [[str(d), "0", "1", "2"] for d in (0, 1)])

    trace = trace_at(tmp_path)

    assert counters(trace) == {"DDR 0/Read": ("MB/s", 1.0), "DDR 0/Write": ("MB/s", 2.0)}


def test_the_old_layout_has_a_folder_for_each_device(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(4, 5)
    for device in (4, 5):
        prof.summary([summary_row(device)], "G1", tail=f"{device}_1_1", folder=f"device_{device}/summary")

    traces = traces_at(tmp_path)

    assert [trace.meta.device.device_id for trace in traces] == [4, 5]
    assert [names(trace) for trace in traces] == [["aclnnAdd_AddAiCore_Add4"], ["aclnnAdd_AddAiCore_Add5"]]


def test_devices_that_the_export_does_not_name_are_not_guessed(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0, 1).info(0, 1)
    prof.summary([summary_row(0)], "G2")

    trace = trace_at(tmp_path)

    assert trace.meta.device.device_id is None
    assert any("names no devices, but 2 were recorded" in warning for warning in trace.meta.warnings)


def test_several_directories_are_several_processes(tmp_path: Path) -> None:
    for rank, name in ((1, PROF), (0, OTHER)):
        Prof(tmp_path, name).raw(rank).info(rank, rank=rank).summary([summary_row(0, device=rank)])

    traces = traces_at(tmp_path)

    assert [(trace.meta.label, trace.meta.rank) for trace in traces] == [(PROF, 1), (OTHER, 0)]


def test_rank_of_each_device_of_one_process(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0, 1).info(0, 1)
    for device in (0, 1):
        prof.info(device, rank=8 + device, place=f"device_{device}")
    prof.summary([summary_row(0), summary_row(1, device=1)])

    assert [trace.meta.rank for trace in traces_at(tmp_path)] == [8, 9]


# ---- databases and traces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["1.0.0", "1.2.0"])
def test_database_of_several_devices(tmp_path: Path, schema: str) -> None:
    Prof(tmp_path).raw(0, 3).database([0, 3], schema=schema)

    first, second = traces_at(tmp_path)

    for trace, device in ((first, 0), (second, 3)):
        assert trace.meta.device.device_id == device
        assert trace.meta.rank is None
        assert trace[t.KERNELS].ints("dur_ns").tolist() == [10_000, 10_001]
        assert trace[t.KERNELS].ints("block_num").tolist() == [48, 48]
        assert trace[t.KERNELS].ints("launch_start_ns").tolist() == [T0 - 15_000, T0 + 25_001 - 15_000]
        assert trace[t.COMM_OPS].text("name").to_list() == [f"hcom_allReduce__612_{device}_1"]
        assert trace[t.COMM_TASKS].ints("comm_op").tolist() == [0, 0]
        assert trace[t.COPIES].ints("dur_ns").tolist() == [3_000]
        assert trace.meta.versions["db_schema"] == schema
    assert counters(first) == {"AI Core Freq": ("MHz", 1650.0)}
    assert counters(second) == {"AI Core Freq": ("MHz", 1800.0)}
    assert not any("without a task" in reason for reason in dropped_of(first))


def test_database_and_tables_of_one_capture_are_never_added(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.database([0])
    prof.summary([summary_row(0), summary_row(1)])

    trace = trace_at(tmp_path)

    kernels = trace[t.KERNELS]
    assert len(kernels) == 2
    assert kernels.text("input_shapes").to_list() == ["4096,4096;64"] * 2  # which this database lacks
    (check,) = [check for check in trace.meta.checks if check.name == "kernels in both exports"]
    assert check.holds and check.where == "sum of durations in the database against op_summary"


def test_loose_files_of_two_captures_are_two_traces(tmp_path: Path) -> None:
    prof = Prof(tmp_path, "mixed")
    prof.database([0])
    prof.summary([summary_row(5), summary_row(6)], folder=".")

    traces = traces_at(tmp_path)

    assert [len(trace[t.KERNELS]) for trace in traces] == [2, 2]
    assert names(traces[1]) == ["aclnnAdd_AddAiCore_Add5", "aclnnAdd_AddAiCore_Add6"]
    assert all(any("two captures" in warning for warning in trace.meta.warnings) for trace in traces)


def test_counters_and_memory_of_a_database(tmp_path: Path) -> None:
    path = Prof(tmp_path).raw(0).path / f"msprof_{STAMP}.db"
    db = DatabaseWriter(path)
    db.table("TASK", ("startNs", "endNs", "deviceId", "globalTaskId"), [(T0, T0 + 1000, d, d) for d in (0, 1)])
    db.table("COMPUTE_TASK_INFO", ("name", "globalTaskId"), [(db.word("a"), d) for d in (0, 1)])
    samples = {
        "PCIE": (("txPostMin", "txPostAvg", "txNonpostLatencyAvg"), (1, 2, 300)),
        "NETDEV_STATS": (("macRxPfcPkt", "roceNewPktRty", "macTxBandwidth"), (4, 5, 6)),
        "ROCE": (("bandwidth", "rxDropped"), (7, 8)),
        "QOS": (("eventName", "bandwidth"), (db.word("OTHERS"), 9)),
    }
    for table, (columns, values) in samples.items():
        rows = [(d, T0, *values[:-1], values[-1] + 100 * d) for d in (0, 1)]
        db.table(table, ("deviceId", "timestampNs", *columns), rows)
    db.table("CPU_USAGE", ("timestampNs", "cpuId", "usage"), [(T0, 3, 50.0), (T0, 4, 25.0)])
    memory = [(db.word("app"), 1, 2, T0, 0), (db.word("device"), 3, 4, T0, 0), (db.word("app"), 9, 9, T0, 1)]
    db.table("NPU_MEM", ("type", "ddr", "hbm", "timestampNs", "deviceId"), memory)
    take, free = db.word("allocate"), db.word("release")
    events = [
        (db.word("x"), 64, take, 10, T0 + 3, 30, 90, 0),
        (db.word("y"), 64, free, -10, T0 + 5, 20, 90, 0),  # in the file's order, not in time's
        (db.word("w"), 32, free, -7, T0 + 1, 20, 90, 0),
        (db.word("z"), 64, take, 5, T0 + 9, 25, 90, 0),
    ]
    names_of = ("operatorName", "addr", "type", "size", "timestampNs", "totalAllocate", "totalReserve", "deviceId")
    db.table("NPU_OP_MEM", names_of, events)
    db.close()

    first, second = traces_at(tmp_path)

    assert counters(first) == {
        "PCIe/Tx posted": ("B/s", 2.0), "PCIe/Tx latency": ("ns", 300.0), "Netdev/Rx PFC": ("count", 4.0),
        "Netdev/retries": ("count", 5.0), "Netdev/Tx": ("B/s", 6.0), "RoCE/Bandwidth": ("B/s", 7.0),
        "RoCE/Rx dropped": ("count", 8.0), "QoS OTHERS": ("B/s", 9.0), "CPU 3": ("ratio", 0.5),
        "CPU 4": ("ratio", 0.25), "Device/Memory": ("bytes", 7.0),
    }  # fmt: skip
    assert counters(second)["PCIe/Tx latency"] == ("ns", 400.0)
    assert counters(second)["CPU 3"] == ("ratio", 0.5)
    blocks = first[t.MEMORY_BLOCKS]
    assert blocks.text("name").to_list() == ["w", "x", "z"]
    assert blocks.ints("alloc_ns").tolist() == [NULL, T0 + 3, T0 + 9]
    assert blocks.ints("free_ns").tolist() == [T0 + 1, T0 + 5, NULL]
    assert blocks.ints("size_bytes").tolist() == [7, 10, 5]
    assert first[t.MEMORY].text("component").to_list() == ["APP", "GE", "GE", "GE", "GE"]
    assert second[t.MEMORY].ints("reserved_bytes").tolist() == [18]
    assert not second.has(t.MEMORY_BLOCKS)


def events_of(*rows: int) -> list[dict[str, object]]:
    """A trace without the layer of Python."""
    whole = [*process_events(), *(event for row in rows for event in kernel_events(row))]
    keep = [e for e in whole if e.get("cat") not in ("cpu_op", "async_npu")]
    return [e for e in keep if not (e.get("name") == "process_name" and e["args"] == {"name": "Python"})]


def test_trace_alone_gives_kernels_and_calls(tmp_path: Path) -> None:
    Prof(tmp_path).raw(0).json(events_of(0, 1))

    trace = trace_at(tmp_path)

    assert trace[t.KERNELS].ints("dur_ns").tolist() == [10_000, 10_001]
    assert trace[t.RUNTIME_CALLS].text("api").to_list() == ["launch", "launch"]
    assert trace[t.KERNELS].ints("launch_start_ns").tolist() == [T0 - 15_000, T0 + 10_000]
    assert not trace.has(t.HOST_OPS)
    assert any("operators of the framework" in missing.what for missing in trace.meta.missing)


def test_trace_links_the_kernels_of_op_summary(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.json(events_of(0, 1))
    prof.summary([summary_row(0), summary_row(1)])

    kernels = trace_at(tmp_path)[t.KERNELS]

    assert kernels.text("op_type").to_list() == ["Add", "Add"]
    assert kernels.ints("launch_end_ns").tolist() == [T0 - 12_000, T0 + 13_000]


def test_marks_of_a_trace(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "msproftx"}}
    marks = [
        {"ph": "X", "name": word, "pid": 77, "tid": 5, "ts": stamp("1"), "dur": 2.5, **more}
        for word, more in (("forward", {}), ("load", {"args": {"event_type": "push/pop", "domain": "default"}}))
    ]
    Prof(tmp_path).raw(0).json([*events_of(0), name, *marks])

    events = trace_at(tmp_path)[t.HOST_EVENTS]

    assert set(events.text("name")) == {"forward", "load"} and len(events) == 2
    assert events.ints("dur_ns").tolist() == [2_500, 2_500]
    assert set(events.text("kind")) == {"user"}


@pytest.mark.parametrize("labels", [("NPU 4", "NPU 5"), ("NPU", "NPU"), None])
def test_trace_of_several_devices(tmp_path: Path, labels: tuple[str, str] | None) -> None:
    events = events_of(0)
    second = HARDWARE + 1
    events.append({"ph": "M", "name": "process_name", "pid": second, "tid": 0, "args": {"name": "Ascend Hardware"}})
    events.append({"ph": "M", "name": "thread_name", "pid": second, "tid": 2, "args": {"name": "Stream 2"}})
    events += [{**e, "pid": second} for e in kernel_events(1) if e["pid"] == HARDWARE and e["ph"] == "X"]
    for pid, label in zip((HARDWARE, second), labels or (), strict=False):
        events.append({"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}})
    prof = Prof(tmp_path).raw(4, 5)
    prof.json(events)
    prof.summary([summary_row(0, device=4), summary_row(1, device=5)])

    traces = traces_at(tmp_path)

    assert [trace.meta.device.device_id for trace in traces] == [4, 5]
    assert [names(trace) for trace in traces] == [["aclnnAdd_AddAiCore_Add0"], ["aclnnAdd_AddAiCore_Add1"]]
    assert [trace[t.KERNELS].ints("correlation").tolist() for trace in traces] == [[1000], [1001]]
    assert all(len(trace[t.RUNTIME_CALLS]) == 1 for trace in traces)


def test_the_database_counts_before_the_trace(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.database([0])
    prof.json(events_of(0, 1))

    trace = trace_at(tmp_path)

    assert len(trace[t.KERNELS]) == 2
    assert "database of the same capture" in problems_of(trace)[f"msprof_{STAMP}.json"]


def test_slices_of_a_trace_are_one_trace(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    head = [event for event in events_of() if event["ph"] == "M"]
    whole_events = events_of(0, 1)
    first = [*head, *whole_events[len(head) : len(head) + 2]]
    for number, events in enumerate((first, whole_events[len(head) + 2 :])):
        prof.json(events, tail=f"slice_{number}_{STAMP}")

    trace = trace_at(tmp_path)

    # The second slice has no names of processes: they stand in the first.
    assert names(trace) == ["aclnnAdd_AddAiCore_Add0", "aclnnAdd_AddAiCore_Add1"]
    assert trace[t.RUNTIME_CALLS].ints("correlation").tolist() == [1000, 1001]
    assert [source.rows for source in trace.meta.sources] == [len(first), len(whole_events) - len(first)]


def test_the_old_layout_has_a_trace_for_each_device(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0, 1)
    for device in (0, 1):
        prof.json(events_of(device), tail=f"{device}_1_1", folder=f"device_{device}/timeline")

    traces = traces_at(tmp_path)

    assert [trace.meta.device.device_id for trace in traces] == [0, 1]
    assert [names(trace) for trace in traces] == [["aclnnAdd_AddAiCore_Add0"], ["aclnnAdd_AddAiCore_Add1"]]


# ---- iterations ------------------------------------------------------------------------------------------------------

ITERATIONS = [
    "Device_id", "Iteration ID", "FP Start(us)", "BP End(us)", "Iteration End(us)", "Iteration Time(us)",
    "FP to BP Time(us)", "Iteration Refresh(us)", "Data Aug Bound(us)", "Model ID", "Reduce Start(us)",
    "Reduce Duration(us)", "Reduce Start(us)", "Reduce Duration(us)",
]  # fmt: skip


def write_iterations(prof: Prof, rows: list[list[str]]) -> None:
    folder = prof.path / "mindstudio_profiler_output"
    folder.mkdir(exist_ok=True)
    text = "\n".join(",".join(row) for row in (ITERATIONS, *rows))
    (folder / f"step_trace_{STAMP}.csv").write_text(text + "\n")


def iteration(number: int, end: str, time: str, model: str = "1", reduces: tuple[str, ...] = ("N/A",) * 4) -> list[str]:
    return ["0", str(number), "N/A", "N/A", stamp(end) + "\t", time, "N/A", "N/A", "0", model, *reduces]


def test_iterations_of_graph_mode_are_the_steps(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    reduces = (stamp("40") + "\t", "5.5", stamp("46") + "\t", "2")
    write_iterations(prof, [iteration(1, "20", "25.5"), iteration(2, "60", "35", reduces=reduces)])
    prof.summary([summary_row(0), summary_row(1), summary_row(2), summary_row(9)])

    trace = trace_at(tmp_path)

    steps = trace[t.STEPS]
    assert steps.ints("step_id").tolist() == [1, 2]
    assert steps.ints("start_ns").tolist() == [T0 - 5_500, T0 + 25_000]
    assert steps.ints("dur_ns").tolist() == [25_500, 35_000]
    assert trace[t.KERNELS].ints("step_id").tolist() == [1, 2, 2, NULL]
    calls = trace[t.COMM_OPS]
    assert calls.text("name").to_list() == ["Reduce 1", "Reduce 2"]
    assert (calls.ints("start_ns").tolist(), calls.ints("dur_ns").tolist()) == (
        [T0 + 40_000, T0 + 46_000],
        [5_500, 2_000],
    )
    assert calls.ints("step_id").tolist() == [2, 2]
    assert any("reduce stages" in warning for warning in trace.meta.warnings)


def test_iterations_of_several_models_keep_their_kernels_apart(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    write_iterations(prof, [iteration(1, "100", "105", "1"), iteration(1, "110", "105", "2")])
    prof.summary([{**summary_row(n), "Model ID": str(1 + n % 2)} for n in range(4)])

    trace = trace_at(tmp_path)

    assert trace[t.STEPS].ints("step_id").tolist() == [1, 2]
    # Model 2 began 5 us late, so both iterations are open together: the model decides.
    assert trace[t.KERNELS].ints("step_id").tolist() == [1, 2, 1, 2]
    assert any("numbered anew" in warning for warning in trace.meta.warnings)


# ---- communication ---------------------------------------------------------------------------------------------------

TIMES = {"Start Timestamp(us)": EPOCH_US + 25.0, "Elapse Time(ms)": 0.02, "Transit Time(ms)": 0.012,
         "Wait Time(ms)": 0.005, "Synchronization Time(ms)": 0.004, "Idle Time(ms)": 0.003}  # fmt: skip
BAND = {"Transit Size(MB)": 4.0, "Transit Time(ms)": 0.01, "Bandwidth(GB/s)": 400.0, "Large Packet Ratio": 1.0,
        "Size Distribution": {"2.0": [2, 0.01]}}  # fmt: skip
COMMUNICATION = {
    "p2p": {},
    "collective": {
        "hcom_allReduce__612_0_1@123456789612": {
            "Communication Time Info": TIMES, "Communication Bandwidth Info": {"HCCS": BAND}
        },
        "Total Op Info": {"Communication Time Info": TIMES, "Communication Bandwidth Info": {}},
    },
}  # fmt: skip
MATRIX = {
    "p2p": {},
    "collective": {
        "allReduce-top1@123456789612": {
            "0-1": {"Transport Type": "HCCS", "Transit Size(MB)": 4.0, "Transit Time(ms)": 0.01, "Bandwidth(GB/s)": 400,
                    "Op Name": "hcom_allReduce__612_0_1"},
        },
    },
}  # fmt: skip


def test_output_of_analyze_has_no_step_level(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0), summary_comm(1)])
    prof.analyzed("communication.json", COMMUNICATION)
    prof.analyzed("communication_matrix.json", MATRIX)
    header = [
        "Device_id",
        "OP Type",
        "Count",
        "Total Time(us)",
        "Min Time(us)",
        "Avg Time(us)",
        "Max Time(us)",
        "Ratio(%)",
    ]
    prof.csv("communication_statistic", header, [["0", "hcom_allReduce_", "1", "20", "20", "20", "20", "100"]])

    trace = trace_at(tmp_path)

    calls, transfers, links = trace[t.COMM_OPS], trace[t.COMM_TRANSFERS], trace[t.COMM_LINKS]
    assert (calls.ints("transit_ns").tolist(), calls.ints("sync_ns").tolist()) == ([12_000], [4_000])
    assert calls.ints("start_ns").tolist() == [T0 + 25_001]  # op_summary's, which is exact
    assert calls.text("group").to_list() == ["123456789612"]
    assert transfers.ints("size_bytes").tolist() == [4_000_000]
    assert (links.ints("src").tolist(), links.ints("dst").tolist()) == ([0], [1])
    assert trace[t.EXPORTED_OPS].text("core").to_list() == ["COMM"]
    checks = {check.name: check for check in trace.meta.checks}
    assert {"communication", "collective count"} <= set(checks)
    assert all(check.holds for check in checks.values())
    assert not any("bandwidths of the collectives" in missing.what for missing in trace.meta.missing)


def test_figures_of_several_devices_are_not_held_against_one(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0, 1).info(0, 1)
    prof.summary([row for device in (0, 1) for row in (summary_row(0, device=device), summary_comm(1, device=device))])
    keys = [f"hcom_allReduce__612_{index}_1@123456789612" for index in (0, 1)]
    call = {"Communication Time Info": TIMES, "Communication Bandwidth Info": {"HCCS": BAND}}
    prof.analyzed("communication.json", {"p2p": {}, "collective": dict.fromkeys(keys, call)})

    traces = traces_at(tmp_path)

    assert [len(trace[t.COMM_OPS]) for trace in traces] == [1, 1]
    assert [check for trace in traces for check in trace.meta.checks if not check.holds] == []


def test_communication_files_without_steps_alone(tmp_path: Path) -> None:
    for name, content in (("communication.json", COMMUNICATION), ("communication_matrix.json", MATRIX)):
        (tmp_path / name).write_text(json.dumps(content))
    figures = CommFigures()

    assert read_communication(tmp_path / "communication.json", figures) == 1
    assert read_matrix(tmp_path / "communication_matrix.json", figures) == 1
    assert figures.calls[0].step_id == NULL and figures.links[0]["step_id"] == NULL


def test_output_of_analyze_alone_gives_the_calls(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.analyzed("communication.json", COMMUNICATION)

    trace = trace_at(tmp_path)

    assert trace[t.COMM_OPS].ints("dur_ns").tolist() == [20_000]
    assert any("start times are rounded" in warning for warning in trace.meta.warnings)


# ---- counters and other tables ---------------------------------------------------------------------------------------


def test_hardware_counters(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0)])
    prof.csv(
        "hbm",
        ["Device_id", "Metric", "Read(MB/s)", "Write(MB/s)"],
        [["0", "0", "10", "20"], ["0", "Average", "5", "N/A"]],
    )
    prof.csv(
        "llc_read_write",
        ["Device_id", "Mode", "Task", "Hit Rate(%)", "Throughput(MB/s)"],
        [["0", "read", "0", "75", "9"]],
    )
    prof.csv(
        "hccs",
        ["Device_id", "Mode", "Max", "Min", "Average"],
        [["0", "Tx(MB/s)", "30", "10", "20"], ["0", "Rx(MB/s)", "3", "1", "2"]],
    )
    prof.csv(
        "pcie",
        ["Device_id", "Mode", "Min", "Max", "Avg"],
        [["0", "Tx_p_avg(MB/s)", "1", "3", "2"], ["0", "Tx_latency_avg(us)", "0.5", "2", "1"]],
    )
    network = [
        "Device_id",
        "Timestamp(us)",
        "Bandwidth(MB/s)",
        "Rx Bandwidth efficiency(%)",
        "rxPacket/s",
        "rxError rate(%)",
        "funcId",
    ]
    prof.csv(
        "roce",
        network,
        [
            ["0", stamp("1") + "\t", "25000", "50", "7", "0", "0"],
            ["0", stamp("2.5") + "\t", "25000", "40", "8", "1", "0"],
        ],
    )
    prof.csv("nic", network, [["0", stamp("1"), "100", "1", "2", "0", str(f)] for f in (0, 1)])
    dvpp = ["Device_id", "Dvpp Id", "Engine Type", "Engine ID", "All Time(us)", "All Frame", "All Utilization(%)"]
    prof.csv("dvpp", dvpp, [["0", "0", "JPEGD", "1", "100", "12", "87.5"]])
    prof.csv(
        "ai_core_utilization",
        ["Device_id", "Core ID", "total_cycles", "mac_ratio"],
        [["0", "Core0", "1000", "0.25"], ["0", "Average", "900", "0.2"]],
    )
    prof.csv("cpu_usage", ["Device_id", "Cpu Type", "User(%)", "Idle(%)"], [["0", "AI CPU", "20", "80"]])

    trace = trace_at(tmp_path)

    found = counters(trace)
    assert found["HBM 0/Write"] == ("MB/s", 20.0)
    assert found["HBM Average/Read"] == ("MB/s", 5.0) and "HBM Average/Write" not in found
    assert found["LLC read 0/Hit Rate"] == ("ratio", 0.75)
    assert (found["HCCS Tx/Average"], found["HCCS Rx/Max"]) == (("MB/s", 20.0), ("MB/s", 3.0))
    assert (found["PCIe Tx_p_avg/Max"], found["PCIe Tx_latency_avg/Min"]) == (("MB/s", 3.0), ("us", 0.5))
    assert found["RoCE/Rx Bandwidth efficiency"] == ("ratio", 0.4)
    assert found["RoCE/rxError rate"] == ("ratio", 0.01)
    assert found["NIC 1/Bandwidth"] == ("MB/s", 100.0)
    assert found["DVPP 0 JPEGD 1/All Utilization"] == ("ratio", 0.875)
    assert found["AI Core Core0/mac_ratio"] == (None, 0.25)
    assert found["CPU AI CPU/User"] == ("ratio", 0.2)
    table = trace[t.COUNTERS]
    samples = table.ints("time_ns")[table.text("counter").equals("RoCE/Bandwidth")]
    assert samples.tolist() == [T0 + 1_000, T0 + 2_500]
    # Sums over the capture have no time.
    assert table.ints("time_ns")[table.text("counter").equals("HCCS Tx/Max")].tolist() == [NULL]
    assert not dropped_of(trace)


def test_memory(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0)])
    header = ["Device_id", "event", "ddr(KB)", "hbm(KB)", "memory(KB)", "timestamp(us)"]
    prof.csv(
        "npu_mem",
        header,
        [
            ["0", "app", "1", "2", "3", stamp("1")],
            ["0", "device", "0", "9", "9", stamp("1")],
            ["0", "app", "1", "2", "3", "N/A"],
        ],
    )
    header = ["Device_id", "Component", "Timestamp(us)", "Total Allocated(KB)", "Total Reserved(KB)", "Device"]
    prof.csv("memory_record", header, [["0", "GE", stamp("2"), "1.5", "4", "NPU:0"]])
    header = [
        "Device_id",
        "Name",
        "Size(KB)",
        "Allocation Time(us)",
        "Duration(us)",
        "Allocation Total Allocated(KB)",
        "Device",
    ]
    prof.csv(
        "operator_memory",
        header,
        [["0", "Add", "512", stamp("3"), "2.5", "1", "NPU:0"], ["0", "Mul", "1", stamp("4"), "", "1", "NPU:0"]],
    )

    trace = trace_at(tmp_path)

    memory, blocks = trace[t.MEMORY], trace[t.MEMORY_BLOCKS]
    assert memory.text("component").to_list() == ["APP", "GE"]
    assert memory.ints("reserved_bytes").tolist() == [3072, 4096]
    assert memory.ints("allocated_bytes").tolist() == [NULL, 1536]
    assert blocks.ints("size_bytes").tolist() == [524288, 1024]
    assert blocks.ints("free_ns").tolist() == [T0 + 5_500, NULL]
    assert counters(trace) == {"Device/Memory": ("bytes", 9216.0)}
    assert dropped_of(trace) == {"row without its key or time": 1}


def test_tables_about_single_tasks_are_joined_to_the_kernels(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    # Two kernels share stream, task number and name: numbers of tasks repeat.
    prof.summary([summary_row(0), summary_row(1, Task_ID="100", Op_Name="aclnnAdd_AddAiCore_Add0"), summary_row(2)])
    key = ["2", "100"]
    name = "aclnnAdd_AddAiCore_Add0"
    prof.csv(
        "l2_cache",
        ["Device_id", "Stream Id", "Task Id", "Hit Rate", "Victim Rate", "Op Name"],
        [["0", *key, "0.5", "0.1", name], ["0", *key, "0.75", "0.2", name], ["0", "2", "999", "1", "0", name]],
    )
    prof.csv(
        "soc_pmu",
        ["Device_id", "Stream Id", "Task Id", "TLB Hit Rate", "TLB Miss Rate", "Op Name"],
        [["0", "2", "102", "0.9", "0.1", "aclnnAdd_AddAiCore_Add2"]],
    )
    prof.csv(
        "page_fault",
        ["Device Id", "Stream Id", "Task Id", "Page Fault Num", "Op Name"],
        [["0", "2", "102", "6", "aclnnAdd_AddAiCore_Add2"]],
    )
    header = [
        "Device_id",
        "Timestamp(us)",
        "Node",
        "Compute_time(us)",
        "Memcpy_time(us)",
        "Task_time(us)",
        "Dispatch_time(us)",
        "Total_time(us)",
        "Stream ID",
        "Task ID",
    ]
    prof.csv("aicpu", header, [["0", stamp("50"), "aclnnAdd_AddAiCore_Add2", "7.5", "0.5", "8", "1", "9", "2", "102"]])

    trace = trace_at(tmp_path)

    kernels = trace[t.KERNELS]
    assert kernels.floats("l2_hit_ratio")[:2].tolist() == [0.5, 0.75] and np.isnan(kernels.floats("l2_hit_ratio")[2])
    assert kernels.floats("tlb_miss_ratio")[2] == 0.1
    assert kernels.floats("page_faults")[2] == 6
    assert (kernels.floats("aicpu_compute_ns")[2], kernels.floats("aicpu_dispatch_ns")[2]) == (7500, 1000)
    assert dropped_of(trace) == {"row of a task that is not among the kernels": 1}


def test_marks_calls_of_the_system_and_tables_that_nothing_reads(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0)])
    header = ["Device_id", "pid", "tid", "category", "event_type", "Start_time(us)", "End_time(us)", "message"]
    prof.csv(
        "msprof_tx",
        header,
        [
            ["host", "1", "7", "0", "push/pop", stamp("1"), stamp("3.5"), "forward"],
            ["host", "1", "7", "0", "marker", stamp("9"), stamp("8"), "x"],
        ],
    )
    header = [
        "Device_id",
        "Process ID",
        "Thread ID",
        "Name",
        "Time(%)",
        "Time(us)",
        "Count",
        "Avg(us)",
        "Max(us)",
        "Min(us)",
    ]
    prof.csv(
        "os_runtime_statistic", header, [["host", "1", "7", "pthread_mutex_lock", "100", "12.5", "4", "3", "9", "1"]]
    )
    prof.csv("fusion_op", ["Device_id", "Model Name", "Fusion Op", "Original Ops"], [["host", "m", "a", "b"]] * 3)

    trace = trace_at(tmp_path)

    events = trace[t.HOST_EVENTS]
    assert (events.text("name").to_list(), events.ints("dur_ns").tolist()) == (["forward"], [2_500])
    assert events.text("kind").to_list() == ["user"]
    apis = trace[t.EXPORTED_APIS]
    assert (apis.text("layer").to_list(), apis.ints("total_ns").tolist()) == (["os"], [12_500])
    assert dropped_of(trace) == {
        "mark with a negative duration": 1,
        "row of a table that no analysis reads yet": 3,
    }


# ---- what belongs to whom --------------------------------------------------------------------------------------------


def torch_profile(root: Path) -> Path:
    profile = root / "host_1_20260528000000000_ascend_pt"
    output = profile / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    write_kernels(output, [kernel_row(0)])
    write_info(profile, rank=2)
    return profile


def test_raw_data_of_a_torch_profile_are_no_second_trace(tmp_path: Path) -> None:
    profile = torch_profile(tmp_path)
    Prof(profile).raw(0).summary([summary_row(0)])
    Prof(profile, OTHER).raw(0)

    units, problems = find_units(tmp_path)

    assert [(unit.parser, unit.label) for unit in units] == [
        ("ascend_pt", f"{profile.name}/ASCEND_PROFILER_OUTPUT/kernel_details.csv")
    ]
    assert not problems


def test_raw_data_of_a_mindspore_profile_are_no_second_trace(tmp_path: Path) -> None:
    profile = torch_profile(tmp_path).rename(tmp_path / "rank-0_1_20260528000000000_ascend_ms")
    Prof(profile).raw(0).summary([summary_row(0)])

    units, problems = find_units(tmp_path)

    assert [unit.parser for unit in units] in (["mindspore"], ["ascend_pt"]) and not problems


def test_what_lies_beside_an_export_by_another_name_is_read_too(tmp_path: Path) -> None:
    prof = Prof(tmp_path, "out").raw(0)
    prof.summary([summary_row(0)])
    torch_profile(prof.path)

    units, _ = find_units(tmp_path)

    assert sorted(unit.parser for unit in units) == ["ascend_pt", "msprof"]


def test_an_export_in_a_torch_profile_that_was_not_parsed_is_read(tmp_path: Path) -> None:
    profile = torch_profile(tmp_path)
    shutil.rmtree(profile / "ASCEND_PROFILER_OUTPUT")
    Prof(profile).raw(0).summary([summary_row(0)])

    trace = trace_at(tmp_path)

    assert trace.meta.rank == 2  # of the profiler_info beside it
    assert trace.meta.label == f"1_20260528000000000_ascend_pt/{PROF}"


def test_raw_data_without_export_name_the_command(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0).info(0)

    for path in (tmp_path, prof.path):
        with pytest.raises(InputError, match="has not been exported yet") as caught:
            find_units(path)
        assert "msprof --export=on" in caught.value.hint
    renamed = prof.path.rename(tmp_path / "renamed")
    with pytest.raises(InputError, match="has not been exported yet"):
        find_units(renamed)


def test_raw_data_beside_exports_are_named(tmp_path: Path) -> None:
    Prof(tmp_path).raw(0).summary([summary_row(0)])
    Prof(tmp_path, OTHER).raw(1)

    units, problems = find_units(tmp_path)

    assert [unit.label for unit in units] == [PROF]
    assert [(p.path, "not been exported" in (p.problem or "")) for p in problems] == [(OTHER, True)]


def test_files_of_other_producers_are_left_alone(tmp_path: Path) -> None:
    torch_profile(tmp_path)
    (tmp_path / "table_20260528.csv").write_text("a,b\n1,2\n")
    (tmp_path / "dp_20260528120000.csv").write_text("a,b\n1,2\n")

    assert msprof.find(folder_of(tmp_path)) == []
    for folder in (tmp_path / "host_1_20260528000000000_ascend_pt").iterdir():
        if folder.is_dir():
            assert msprof.find(folder_of(folder)) == []


def test_an_aborted_collection_is_said(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    prof.summary([summary_row(0)])
    assert not trace_at(tmp_path).meta.warnings

    (prof.path / "device_0" / "end_info").unlink()

    assert any("aborted" in warning for warning in trace_at(tmp_path).meta.warnings)


# ---- damage ----------------------------------------------------------------------------------------------------------


def whole(root: Path) -> Prof:
    """A PROF directory with every kind of file."""
    prof = Prof(root).raw(0).info(0, rank=1).sample(ai_core_metrics="PipeUtilization")
    prof.summary([summary_row(0), summary_comm(1), summary_row(2)])
    prof.csv("task_time", list(task_row(0)), [task_row(0), task_row(5, kind="MEMCPY_ASYNC", name="N/A")])
    prof.json(events_of(0, 2))
    prof.database([0])
    prof.analyzed("communication.json", COMMUNICATION)
    prof.analyzed("communication_matrix.json", MATRIX)
    write_iterations(prof, [iteration(1, "60", "65")])
    prof.csv("hbm", ["Device_id", "Metric", "Read(MB/s)", "Write(MB/s)"], [["0", "0", "10", "20"]])
    return prof


FILES = (
    f"mindstudio_profiler_output/op_summary_{STAMP}.csv", f"mindstudio_profiler_output/task_time_{STAMP}.csv",
    f"mindstudio_profiler_output/msprof_{STAMP}.json", f"mindstudio_profiler_output/step_trace_{STAMP}.csv",
    f"mindstudio_profiler_output/hbm_{STAMP}.csv", f"msprof_{STAMP}.db", "analyze/communication.json",
    "analyze/communication_matrix.json", "host/info.json", "host/sample.json", "host/start_info",
)  # fmt: skip


@pytest.mark.parametrize("damage", ["removed", "empty", "noise", "cut"])
@pytest.mark.parametrize("name", FILES)
def test_damage_to_one_file_touches_no_other(tmp_path: Path, name: str, damage: str) -> None:
    path = whole(tmp_path).path / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "noise": bytes(range(1, 256)) * 8, "cut": content[: len(content) // 2]}[damage])

    units, _ = find_units(tmp_path)
    (trace,) = [trace for unit in units for trace in msprof.parse(unit)]

    assert len(trace[t.KERNELS]) in (1, 2, 3)  # half of op_summary, or of the database, is less
    if damage in ("empty", "noise") and name.startswith(("mind", "msprof", "analyze")):
        assert path.name in problems_of(trace)
    if not name.startswith("host"):
        assert trace.meta.rank == 1


def test_nothing_but_damage_is_named(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    path = prof.summary([summary_row(0)])
    path.write_bytes(b"\1\2\3" * 50)

    with pytest.raises(InputError, match=r"holds no data: op_summary"):
        find_units(tmp_path)

    path.write_bytes(b"")
    with pytest.raises(InputError, match="has not been exported"):
        find_units(tmp_path)


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    path = prof.summary([summary_row(0), {**summary_row(1), "Task Duration(us)": "-1"}, summary_row(2)])
    with open(path, "a") as file:
        file.write("1," * 80 + "\n")
    prof.csv("task_time", list(task_row(0)), [{**task_row(0), "task_start(us)": "N/A"}])
    (path.parent / "unheard_of_20260528120000.csv").write_text("a,b\n1,2\n")
    (path.parent / "README.txt").write_text("about the files")

    trace = trace_at(tmp_path)

    assert dropped_of(trace) == {
        "row with more cells than the header": 1,
        "negative duration": 1,
        "task without a readable start or duration": 1,
    }
    assert any("op_summary" in warning and "sums are too low" in warning for warning in trace.meta.warnings)
    assert problems_of(trace) == {"unheard_of_20260528120000.csv": "not read: no export of this name is known"}


def test_summaries_as_json_are_named(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0)
    path = prof.summary([summary_row(0)])
    (path.parent / f"op_statistic_{STAMP}.json").write_text('[{"OP Type": "Add", "Count": 1}]')

    assert "--summary-format=csv" in problems_of(trace_at(tmp_path))[f"op_statistic_{STAMP}.json"]


# ---- real files ------------------------------------------------------------------------------------------------------


def test_real_configuration_of_2022(traces: Path) -> None:
    folder = traces / "msprof-cli" / "raw-config-examples"
    facts = read_process_facts((folder / "info.json", folder / "sample.json"))

    device = facts.devices[0]
    assert (device.cube_cores, device.vector_cores, device.frequency_hz) == (8, None, 1_150_000_000)
    assert device.name is None  # the file's platform_version contradicts its cores
    assert (facts.settings.aic_metrics, facts.sampled) == ("PipeUtilization", False)
    assert facts.ranks == [] and not facts.problems and not facts.aborted
    assert facts.switches["--ai-core=on"] and not facts.switches["--sys-io-profiling=on"]
    assert "usr04" not in repr(facts) and "train.py" not in repr(facts)


def test_real_files_through_the_search(traces: Path) -> None:
    units, problems = find_units(traces / "msprof-cli")
    found = {unit.label: unit for unit in units}

    assert not problems
    assert {label: unit.parser for label, unit in found.items()} == {
        "msprof-cli": "msprof",
        "multi-device/analysis.dat": "ascend_pt",
    }
    database, summary = msprof.parse(found["msprof-cli"])  # 2023 both, but of two jobs
    assert (len(database[t.KERNELS]), int(database[t.KERNELS].ints("dur_ns").sum())) == (11, 663872)
    assert (len(summary[t.KERNELS]), len(summary[t.COMM_OPS])) == (17, 4)


def test_real_database(traces: Path) -> None:
    trace = trace_at(traces / "msprof-cli" / "msprof_0.db")

    assert int(trace[t.KERNELS].ints("dur_ns").sum()) == 663872
    assert trace[t.KERNELS].ints("block_num").tolist()[:3] == [48, 5, 48]
    assert (len(trace[t.RUNTIME_CALLS]), len(trace[t.OVERLAP]), len(trace[t.HOST_EVENTS])) == (4, 22, 13)
    assert (trace.meta.device.device_id, trace.meta.device.name, trace.meta.rank) == (2, "Ascend910B", None)
    counted = trace[t.COUNTERS].text("counter").to_list()
    # 4 rows of HBM, 4 of LLC with two figures each, 5 of DDR with two each.
    kinds = {kind: sum((name or "").startswith(kind) for name in counted) for kind in ("HBM", "LLC", "DDR")}
    assert kinds == {"HBM": 4, "LLC": 8, "DDR": 10}
    # 494 events of NPU_OP_MEM: 246 pairs, one release of an older block, one block that outlived the capture.
    blocks = trace[t.MEMORY_BLOCKS]
    has_start, has_end = blocks.ints("alloc_ns") != NULL, blocks.ints("free_ns") != NULL
    assert (len(blocks), int((has_start & has_end).sum()), int((~has_start).sum())) == (248, 246, 1)
    assert int((~has_end).sum()) == 1
    memory = trace[t.MEMORY]
    assert (len(memory), int(memory.ints("allocated_bytes").max())) == (494, 604110848)
    assert int(memory.ints("reserved_bytes").max()) == 1229258752
    hits = trace[t.COUNTERS].floats("value")[trace[t.COUNTERS].text("counter").equals("LLC/Hit Rate")]
    assert hits.round(4).tolist()[:3] == [0.475, 0.543, 0.608]


def test_real_op_summary(traces: Path) -> None:
    trace = trace_at(traces / "msprof-cli" / "op_summary_1.csv")

    core = trace[t.KERNELS].text("core")
    dur = trace[t.KERNELS].ints("dur_ns")
    sums = {name: (int(core.equals(name).sum()), int(dur[core.equals(name)].sum())) for name in core.compact().values}
    # Reference values with four decimals of a microsecond; each row is cut to ns.
    assert {name: count for name, (count, _) in sums.items()} == {
        "AIC": 4, "AICPU": 2, "AIV": 2, "DSA": 2, "MIX_AIC": 4, "MIX_AIV": 3,
    }  # fmt: skip
    assert sums["DSA"][1] / 1e3 == pytest.approx(5344.2105, abs=0.001)
    assert sums["MIX_AIC"][1] / 1e3 == pytest.approx(21114.6921, abs=0.002)
    assert int(trace[t.COMM_OPS].ints("dur_ns").sum()) / 1e3 == pytest.approx(10238.538, abs=0.002)
    assert trace.meta.settings.generation == "G1"
