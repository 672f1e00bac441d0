"""Profiles of torch_npu made by our own writer: generations, levels, damage, what belongs together."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import ascend_pt
from ascend_perf.parsers._ascend_comm import group_hash, op_of, step_of
from ascend_perf.parsers._source import FileEntry
from ascend_perf.parsers.discover import find_units
from tests.parsers._ascend_profile import (
    CANN,
    EPOCH_US,
    HARDWARE,
    HCCL,
    PYTHON,
    Generation,
    comm_row,
    csv_text,
    folder_of,
    kernel_events,
    kernel_header,
    kernel_row,
    level0,
    process_events,
    read,
    slice_event,
    stamp,
    write_info,
    write_kernels,
    write_trace,
)

GENERATIONS: tuple[Generation, ...] = ("G1", "G2", "G3", "G4")


def output(tmp_path: Path) -> Path:
    folder = tmp_path / "rank_0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    return folder


def problems(trace: Trace) -> str:
    return "; ".join(source.problem or "" for source in trace.meta.sources)


def dropped(trace: Trace) -> dict[str, int]:
    return {d.reason: d.count for source in trace.meta.sources for d in source.dropped}


# ---- generations and levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_kernels_of_each_generation(tmp_path: Path, generation: Generation) -> None:
    folder = output(tmp_path)
    rows = [kernel_row(0), comm_row(1, generation), kernel_row(2)]
    write_kernels(folder, rows, generation, newline="\r\n" if generation == "G4" else "\n")
    write_info(folder.parent, generation, rank="2" if generation == "G3" else 2)

    trace = read(folder)

    kernels, calls = trace[t.KERNELS], trace[t.COMM_OPS]
    assert kernels.text("name").to_list() == ["aclnnAdd_AddAiCore_Add0", "aclnnAdd_AddAiCore_Add2"]
    assert kernels.ints("start_ns").tolist() == [EPOCH_US * 1000, EPOCH_US * 1000 + 50_002]
    assert kernels.ints("dur_ns").tolist() == [10_000, 10_002]
    assert kernels.text("core").to_list() == ["AIV", "AIV"]
    assert kernels.ints("block_num").tolist() == [48, 48]
    assert kernels.ints("model_id").tolist() == [NULL, NULL]
    assert kernels.text("input_shapes").to_list() == ["4096,4096;64"] * 2
    assert kernels.floats("aiv_vec_ratio").tolist() == [0.35, 0.35]
    assert (kernels.ints("aiv_time_ns").tolist(), kernels.ints("aiv_total_cycles").tolist()) == (
        [9700] * 2,
        [838080] * 2,
    )
    assert kernels.text("op_state").to_list() == [None, None] if generation == "G1" else ["dynamic", "dynamic"]
    assert calls.text("op").to_list() == ["allReduce"]
    assert calls.ints("dur_ns").tolist() == [20_000]
    assert calls.text("group").to_list() == ["612"]
    assert calls.ints("index_in_group").tolist() == [1]
    assert trace.meta.rank == 2
    assert trace.meta.settings.generation == generation
    assert (trace.meta.settings.level, trace.meta.settings.aic_metrics) == ("Level1", "PipeUtilization")
    steps = trace[t.STEPS]
    assert (steps.ints("step_id").tolist(), steps.ints("dur_ns").tolist()) == ([3], [60_004])


@pytest.mark.parametrize("generation", GENERATIONS)
def test_generation_is_told_by_the_columns_alone(tmp_path: Path, generation: Generation) -> None:
    write_kernels(tmp_path, [kernel_row(0)], generation)

    assert read(tmp_path).meta.settings.generation == generation


def test_level0_has_no_types_and_says_what_would_give_them(tmp_path: Path) -> None:
    write_kernels(tmp_path, [level0(kernel_row(0)), level0(comm_row(1, "G3"))], level=0)

    trace = read(tmp_path)

    assert not trace[t.KERNELS].has("op_type") and not trace[t.KERNELS].has("core")
    assert trace[t.COMM_OPS].text("op").to_list() == ["allReduce"]
    remedies = {missing.what: missing.remedy for missing in trace.meta.missing}
    assert "ProfilerLevel.Level1" in remedies["operator types, shapes and engines of the kernels"]
    assert "AiCMetrics.PipeUtilization" in remedies["counters of the engines (MAC, MTE, vector ratios)"]


def test_collectives_of_level0_are_told_by_their_name(tmp_path: Path) -> None:
    row = {**level0(comm_row(1, "G3")), "Accelerator Core": "N/A"}
    write_kernels(tmp_path, [level0(kernel_row(0)), row], level=0)

    assert len(read(tmp_path)[t.COMM_OPS]) == 1


def test_op_summary_names_are_aliases(tmp_path: Path) -> None:
    aliases = {
        "Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type", "Start Time(us)": "Task Start Time(us)",
        "Duration(us)": "Task Duration(us)", "Wait Time(us)": "Task Wait Time(us)",
    }  # fmt: skip
    row = {aliases.get(key, key): value for key, value in kernel_row(4).items()}
    header = [aliases.get(name, name) for name in kernel_header("G3")]
    (tmp_path / "anything.csv").write_text(csv_text(header, [row]))

    kernels = read(tmp_path)[t.KERNELS]

    assert (kernels.text("op_type")[0], kernels.ints("dur_ns")[0]) == ("Add", 10_004)


def test_other_metrics_become_float_columns_in_si_units(tmp_path: Path) -> None:
    header = [
        *kernel_header("G3")[:-12],
        "aic_l1_read_bw(GB/s)",
        "aiv_GM_to_UB_datas(KB)",
        "vec_bank_cflt_ratio",
        "Extra",
    ]
    row = {
        **kernel_row(0), "aic_l1_read_bw(GB/s)": "1.5", "aiv_GM_to_UB_datas(KB)": "2", "vec_bank_cflt_ratio": "0.25",
        "Extra": "words",
    }  # fmt: skip
    (tmp_path / "kernel_details.csv").write_text(csv_text(header, [row]))

    kernels = read(tmp_path)[t.KERNELS]

    assert kernels.floats("aic_l1_read_bw_bytes_per_s")[0] == 1.5 * 2**30
    assert kernels.floats("aiv_GM_to_UB_datas_bytes")[0] == 2048
    assert kernels.floats("vec_bank_cflt_ratio")[0] == 0.25
    assert "Extra" not in kernels.names


def test_counters_of_chips_with_one_core_type_fill_both_families(tmp_path: Path) -> None:
    header = [*kernel_header("G2")[:-12], "aicore_time(us)", "total_cycles", "mac_ratio", "vec_ratio", "memory_bound"]
    row = {**kernel_row(0), "aicore_time(us)": "9", "total_cycles": "288000", "mac_ratio": "0.5", "vec_ratio": "0.25"}
    (tmp_path / "kernel_details.csv").write_text(csv_text(header, [row]))

    trace = read(tmp_path)

    kernels = trace[t.KERNELS]
    assert (kernels.ints("aic_total_cycles")[0], kernels.ints("aiv_total_cycles")[0]) == (288000, 288000)
    assert (kernels.floats("aic_mac_ratio")[0], kernels.floats("aiv_vec_ratio")[0]) == (0.5, 0.25)
    assert any("one core type" in warning for warning in trace.meta.warnings)


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_unusable_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    write_kernels(
        tmp_path,
        [
            kernel_row(0),
            kernel_row(1, dur="-5.000"),
            kernel_row(2, dur="86400000001.000"),
            {**kernel_row(3), "Start Time(us)": "99999999999999999999999.000"},
            {**kernel_row(4), "Start Time(us)": ""},
            kernel_row(5, dur="N/A"),
            {**kernel_row(6), "Start Time(us)": "-1780000000000000.000"},
        ],
    )

    trace = read(tmp_path)

    assert trace[t.KERNELS].text("name").to_list() == ["aclnnAdd_AddAiCore_Add0"]
    assert dropped(trace) == {
        "start time missing, unreadable or beyond int64": 2,
        "start time before 1970 or after 2200": 1,
        "duration missing, unreadable or beyond int64": 1,
        "negative duration": 1,
        "duration over a day": 1,
    }


@pytest.mark.parametrize("start", ["1.78E+15", "1.78e15", "178000000000"])
def test_times_that_a_spreadsheet_damaged_are_unknown_but_durations_count(tmp_path: Path, start: str) -> None:
    write_kernels(tmp_path, [{**kernel_row(n), "Start Time(us)": start} for n in range(3)])

    trace = read(tmp_path)

    assert trace[t.KERNELS].ints("start_ns").tolist() == [NULL] * 3
    assert int(trace[t.KERNELS].ints("dur_ns").sum()) == 30_003
    assert any("lost digits" in warning for warning in trace.meta.warnings)


def test_a_start_years_away_is_dropped_and_does_not_stretch_its_step(tmp_path: Path) -> None:
    folder = output(tmp_path)
    rows = [kernel_row(n) for n in range(4)]
    rows[1]["Start Time(us)"] = "1600000000000000.000"
    write_kernels(folder, rows)

    trace = read(folder)

    assert dropped(trace) == {"start time over a day away from the others": 1}
    # Kernels 0, 2 and 3: from 0 to 75.003 + 10.003 us.
    assert trace[t.STEPS].ints("dur_ns").tolist() == [85_006]


def test_a_spreadsheet_with_semicolons_reads_the_same(tmp_path: Path) -> None:
    folder = output(tmp_path)
    path = write_kernels(folder, [kernel_row(n) for n in range(3)])
    expected = read(folder)[t.KERNELS]
    with path.open(newline="") as file:
        cells = list(csv.reader(file))
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(cells)

    kernels = read(folder)[t.KERNELS]

    for name in ("start_ns", "dur_ns", "block_num"):
        assert kernels.ints(name).tolist() == expected.ints(name).tolist()
    assert kernels.text("input_shapes").to_list() == ["4096,4096;64"] * 3


def test_a_file_with_the_name_but_not_the_content_of_a_profile_is_listed(tmp_path: Path) -> None:
    folder = output(tmp_path)
    write_kernels(folder, [kernel_row(0)])
    (folder / "op_statistic.csv").write_text("a,b\n1,2\n")

    assert "its content is not what a file of this name holds" in problems(read(folder))


def test_a_rank_whose_files_are_all_damaged_is_named_beside_the_others(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank_{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        folder.mkdir(parents=True)
        write_kernels(folder, [kernel_row(0)])
    (tmp_path / "rank_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_bytes(b"\0\1 lost")

    units, problems_found = find_units(tmp_path)

    assert [unit.label for unit in units] == ["rank_0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"]
    (problem,) = problems_found
    assert problem.path == "rank_1_ascend_pt/ASCEND_PROFILER_OUTPUT"
    assert "do not hold what files of their name should: kernel_details.csv" in (problem.problem or "")


def test_many_unusable_rows_are_a_warning(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0), kernel_row(1, dur="-5.000")])

    assert any("1 of 2 rows cannot be used" in warning for warning in read(tmp_path).meta.warnings)


def test_a_name_with_markup_is_kept_as_it_is(tmp_path: Path) -> None:
    name = '<script>alert("1")</script>,x'
    write_kernels(tmp_path, [{**kernel_row(0), "Name": name}])

    assert read(tmp_path)[t.KERNELS].text("name")[0] == name


def test_one_damaged_file_does_not_lose_the_others(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0)])
    (tmp_path / "communication.json").write_text('{"step3": {"p2p": {}, "collective": {"hcom_allReduce__6')
    (tmp_path / "analysis.db").write_bytes(b"SQLite format 3\0" + b"garbage" * 300)
    (tmp_path / "trace_view.json").write_text('[{"ph": "X", "name": "a", "ts": "1780000000000000.000", "pid":')

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 1
    told = problems(trace)
    assert "communication.json is damaged JSON" in told
    assert "analysis.db is a damaged SQLite database" in told
    assert "trace_view.json" in {source.format for source in trace.meta.sources if source.problem}


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"x" * 2000, b"no database at all"])
def test_a_damaged_database_alone_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    path.write_bytes(content)
    (unit,) = ascend_pt.find(folder_of(tmp_path))

    with pytest.raises(InputError, match=r"ascend_pytorch_profiler_0\.db is a damaged SQLite database"):
        ascend_pt.parse(unit)


def test_empty_files_are_no_data(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0)])
    (tmp_path / "trace_view.json").write_text("")

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 1
    assert "the file is empty" in problems(trace)


@pytest.mark.parametrize("names", [("FRAMEWORK",), ("PROF_000001_20260528000000000_ABCDEF",), ("FRAMEWORK", "logs")])
def test_a_raw_profile_is_refused_with_the_command_that_parses_it(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.bin").write_bytes(b"\0")
    write_info(tmp_path)

    with pytest.raises(InputError, match="not been parsed yet") as caught:
        ascend_pt.find(folder_of(tmp_path))

    assert "analyse(" in caught.value.hint
    assert ascend_pt.raw_only(folder_of(tmp_path)) is not None


def test_raw_data_beside_the_output_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "FRAMEWORK").mkdir()
    folder = tmp_path / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir()
    write_kernels(folder, [kernel_row(0)])

    assert ascend_pt.find(folder_of(tmp_path)) == []
    assert ascend_pt.raw_only(folder_of(tmp_path)) is None


# ---- what belongs together -------------------------------------------------------------------------------------------


def test_facts_are_found_beside_the_files_or_in_the_parent(tmp_path: Path) -> None:
    folder = output(tmp_path)
    path = write_kernels(folder, [kernel_row(0)])
    write_info(folder.parent, rank=5)

    assert read(folder).meta.rank == 5
    assert read(path).meta.rank == 5
    flat = tmp_path / "flat"
    flat.mkdir()
    path = write_kernels(flat, [kernel_row(0)])
    write_info(flat, rank=6)
    assert read(flat).meta.rank == 6
    assert read(path).meta.rank == 6


@pytest.mark.parametrize("rank", [None, -1, "", "x"])
def test_an_unknown_rank_stays_unknown(tmp_path: Path, rank: int | str | None) -> None:
    folder = output(tmp_path)
    write_kernels(folder, [kernel_row(0)])
    path = write_info(folder.parent, rank=None)
    if rank is not None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "rank_id": rank}))

    assert read(folder).meta.rank is None


def test_host_names_do_not_reach_the_labels(tmp_path: Path) -> None:
    folder = tmp_path / "secrethost_4242_20260528000000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    write_kernels(folder, [kernel_row(0)])

    trace = read(folder)

    assert trace.meta.label == "4242_20260528000000000_ascend_pt"
    assert "secrethost" not in str(trace.meta)


def test_files_that_mix_ranks_are_reported(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0)])
    write_info(tmp_path, rank=0)
    (tmp_path / "profiler_metadata.json").write_text(json.dumps({"distributed_args": {"rank": 1, "world_size": 2}}))

    trace = read(tmp_path)

    assert (trace.meta.rank, trace.meta.world_size) == (0, 2)
    assert any("two ranks are mixed" in warning for warning in trace.meta.warnings)


def test_environment_is_an_allow_list_without_empty_values(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0)])
    values = {"ASCEND_LAUNCH_BLOCKING": "1", "HCCL_ALGO": "", "SECRET_TOKEN": "x"}
    (tmp_path / "profiler_metadata.json").write_text(json.dumps({"ENV_VARIABLES": values}))

    assert dict(read(tmp_path).meta.environment) == {"ASCEND_LAUNCH_BLOCKING": "1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("random.csv", "a,b,c\n1,2,3\n"),
        ("random.json", '{"hello": [1, 2]}'),
        ("kineto.json", '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]}'),
        ("cluster_step_trace_time.csv", "Step,Type,Index,Computing,Free,Stage\n1,rank,0,1,2,3\n"),
        ("cluster_communication.json", '{"(0, 1)": {"step": {}}}'),
        ("notes.txt", "just words"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert ascend_pt.find(folder_of(tmp_path)) == []


def test_kinds_are_told_by_content_not_by_name(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0)]).rename(tmp_path / "renamed_by_somebody.txt")

    (unit,) = ascend_pt.find(folder_of(tmp_path))
    (trace,) = ascend_pt.parse(unit)

    assert len(trace[t.KERNELS]) == 1


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_steps_without_kernels_are_steps(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(8, step=21), kernel_row(9, step=21)])
    host = [slice_event(f"ProfilerStep#{20 + n}", PYTHON, 77, f"{100 * n}.000", 99.0, "cpu_op") for n in range(4)]
    write_trace(tmp_path, [*process_events(), *host])

    steps = read(tmp_path)[t.STEPS]

    assert steps.ints("step_id").tolist() == [20, 21, 22, 23]
    # Step 21: from kernel 8 (200.008) to the end of kernel 9 (225.009 + 10.009); the others: the host's window.
    assert steps.ints("dur_ns").tolist() == [99_000, 35_010, 99_000, 99_000]
    assert steps.ints("host_dur_ns").tolist() == [99_000] * 4


def test_without_step_ids_kernels_go_to_the_step_that_launched_them(tmp_path: Path) -> None:
    rows = [kernel_row(n, step="") for n in range(6)]
    write_kernels(tmp_path, rows)
    events = [event for n in range(6) for event in kernel_events(n)]
    # Kernel n is launched at 25 n - 20 us: 0 to 2 before 40 us, 3 to 5 after it; kernel 2 starts at 50 us.
    host = [
        slice_event("ProfilerStep#7", PYTHON, 77, "-30.000", 69.9, "cpu_op"),
        slice_event("ProfilerStep#8", PYTHON, 77, "40.000", 80.0, "cpu_op"),
    ]
    write_trace(tmp_path, [*process_events(), *events, *host])

    kernels = read(tmp_path)[t.KERNELS]

    assert kernels.ints("step_id").tolist() == [7, 7, 7, 8, 8, 8]


def test_kernels_launched_after_the_last_step_belong_to_none(tmp_path: Path) -> None:
    folder = output(tmp_path)
    # The host's step ends at 60 us; kernels 0 to 2 are launched in it, 8 and 9 (evaluation, say) long after it.
    step = slice_event("ProfilerStep#4", PYTHON, 77, "-30.000", 90.0, "cpu_op")
    write_trace(folder, [*process_events(), step, *(e for n in (0, 1, 2, 8, 9) for e in kernel_events(n))])

    trace = read(folder)

    assert trace[t.KERNELS].ints("step_id").tolist() == [4, 4, 4, NULL, NULL]
    assert trace[t.STEPS].ints("dur_ns").tolist() == [60_004]


def test_without_any_marker_everything_is_one_step_without_number(tmp_path: Path) -> None:
    write_kernels(tmp_path, [{**kernel_row(n), "Step Id": ""} for n in range(3)])

    steps = read(tmp_path)[t.STEPS]

    assert (steps.ints("step_id").tolist(), steps.ints("dur_ns").tolist()) == ([NULL], [60_004])


def test_the_exporters_steps_alone_are_kept(tmp_path: Path) -> None:
    names = (
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,Preparing"
    )
    (tmp_path / "step_trace_time.csv").write_text(f"{names}\n0,3,8827.472999999998,1.5,0.5,2.0,3.0,8831.973,0.0,4.25\n")

    trace = read(tmp_path)

    exported = trace[t.EXPORTED_STEPS]
    assert exported.ints("computing_ns").tolist() == [8_827_473]
    assert exported.ints("preparing_ns").tolist() == [4_250]
    assert not len(trace[t.STEPS])
    (check,) = trace.meta.checks
    assert check.holds


def test_a_disagreement_of_two_files_is_a_failed_check(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0), kernel_row(1)])
    (tmp_path / "op_statistic.csv").write_text(
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
        "0,Add,AI_VECTOR_CORE,3,30.003,10.0,10.001,10.002,100.0\n"
    )

    (check,) = [c for c in read(tmp_path).meta.checks if c.name == "kernel count"]

    assert (check.ours, check.theirs, check.holds) == (2.0, 3.0, False)


# ---- trace_view.json -------------------------------------------------------------------------------------------------


def test_a_trace_alone_gives_kernels_launches_and_operators(tmp_path: Path) -> None:
    write_trace(tmp_path, [*(e for n in range(3) for e in kernel_events(n)), *process_events()])

    trace = read(tmp_path)

    kernels = trace[t.KERNELS]
    assert kernels.ints("dur_ns").tolist() == [10_000, 10_001, 10_002]
    assert kernels.text("core").to_list() == ["AIV"] * 3
    assert kernels.ints("stream").tolist() == [2] * 3
    assert kernels.ints("host_op").tolist() == [0, 1, 2]
    assert trace[t.HOST_OPS].text("name").to_list() == ["aten::add"] * 3
    # Launched 15 us before (the call lasts 3 us); kernel n starts n ns late.
    assert (kernels.ints("start_ns") - kernels.ints("launch_start_ns")).tolist() == [15_000, 15_001, 15_002]
    assert (kernels.ints("launch_end_ns") - kernels.ints("launch_start_ns")).tolist() == [3_000] * 3
    assert trace[t.RUNTIME_CALLS].text("api").to_list() == ["launch"] * 3


def test_innermost_operator_on_the_launching_thread_wins(tmp_path: Path) -> None:
    outer = slice_event("aten::matmul", PYTHON, 77, "-30.000", 30.0, "cpu_op")
    elsewhere = slice_event("aten::other", PYTHON, 78, "-21.000", 10.0, "cpu_op")
    write_trace(tmp_path, [*process_events(), outer, elsewhere, *kernel_events(0)])

    trace = read(tmp_path)

    (row,) = trace[t.KERNELS].ints("host_op").tolist()
    assert trace[t.HOST_OPS].text("name")[row] == "aten::add"


def test_only_kernels_of_the_device_lines_are_kernels(tmp_path: Path) -> None:
    others = [
        ("MEMCPY_ASYNC", "PCIE_DMA_SQE"), ("EVENT_RECORD", "EVENT_RECORD_SQE"), ("EVENT_WAIT", "EVENT_WAIT_SQE"),
        ("PROFILING_ENABLE", "PLACE_HOLDER_SQE"), ("Notify Wait", "Notify Wait"), ("Write Value", "Write Value"),
        ("SDMA", "SDMA"), ("Notify_Wait", "NOTIFY_WAIT_SQE"), ("Memcpy", "SDMA"),
    ]  # fmt: skip
    events = [
        slice_event(name, HARDWARE, 2, f"{1000 + n}.000", 0.5, Task__Type=kind, connection_id=n)
        for n, (name, kind) in enumerate(others)
    ]
    write_trace(tmp_path, [*process_events(), *kernel_events(0, task_type="Other"), *events])

    trace = read(tmp_path)

    assert trace[t.KERNELS].text("name").to_list() == ["aclnnAdd_AddAiCore_Add0"]
    assert trace[t.KERNELS].text("core").to_list() == [None]  # early traces do not say it
    assert trace[t.COPIES].text("name").to_list() == ["MEMCPY_ASYNC"]


@pytest.mark.parametrize(
    ("args", "kind", "size"),
    [
        ({"data__size(Byte)": 64, "memcpy__direction": "host to device", "Task__Type": "PCIE_DMA_SQE"}, "H2D", 64),
        ({"size(B)": "128", "operation": "device to host", "Task__Type": "MEMCPY"}, "D2H", 128),
        ({"Task__Type": "SDMA_SQE"}, "D2D", NULL),
        ({"Task__Type": "PCIE_DMA_SQE"}, None, NULL),
    ],
)
def test_copies_of_all_generations(tmp_path: Path, args: dict[str, object], kind: str | None, size: int) -> None:
    copy = slice_event("MEMCPY_ASYNC", HARDWARE, 2, "100.000", 4.5, connection_id=9, **args)
    call = slice_event("AscendCL@aclrtMemcpyAsync", CANN, 77, "90.000", 2.0, connection_id=9)
    write_trace(tmp_path, [*process_events(), copy, call])

    copies = read(tmp_path)[t.COPIES]

    assert (copies.text("kind")[0], int(copies.ints("size_bytes")[0])) == (kind, size)
    assert (copies.text("api")[0], int(copies.ints("dur_ns")[0])) == ("aclrtMemcpyAsync", 4_500)


def test_a_queued_copy_below_level2_takes_its_direction_from_the_queue(tmp_path: Path) -> None:
    queue = slice_event("Dequeue@acl_memcpy_device_to_host", PYTHON, 78, "80.000", 20.0, "dequeue", correlation_id=3)
    copy = slice_event("MEMCPY_ASYNC", HARDWARE, 2, "100.000", 4.5, connection_id=9, Task__Type="PCIE_DMA_SQE")
    call = slice_event("AscendCL@aclrtMemcpyAsync", CANN, 78, "90.000", 2.0, connection_id=9)
    write_trace(tmp_path, [*process_events(), queue, copy, call])

    trace = read(tmp_path)

    assert trace[t.COPIES].text("kind").to_list() == ["D2H"]
    events = trace[t.HOST_EVENTS]
    assert (events.text("kind").to_list(), events.ints("correlation").tolist()) == (["dequeue"], [3])


@pytest.mark.parametrize("hccl", ["HCCL", "Communication"])
def test_tasks_of_collectives_belong_to_the_call_of_their_group(tmp_path: Path, hccl: str) -> None:
    groups = ("group_name_0", "group_name_3")
    line = {"data_type": "FP32", "alg_type": "MESH-RING", "count": 1024, "connection_id": 5}
    wait = {"transport__type": "LOCAL", "link__type": "INVALID_TYPE", "size(Byte)": 0, "src__rank": 0}
    events = [
        slice_event("hcom_allReduce__612_0_1", HCCL, 0, "100.000", 50.0, **line),
        slice_event("hcom_allGather__700_4_1", HCCL, 10, "120.000", 50.0, **line, rank_size=2),
        slice_event("Notify_Wait", HCCL, 1, "101.000", 40.0, **wait, dst__rank=5),
        slice_event("Memcpy", HCCL, 12, "130.000", 2.0, **{**wait, "size(Byte)": 64, "dst__rank": 4294967295}),
        slice_event("Notify_Wait", HCCL, 11, "900.000", 1.0, **wait, dst__rank=1),
    ]
    write_trace(tmp_path, [*process_events(hccl=hccl, groups=groups), *events, *kernel_events(0)])
    (tmp_path / "profiler_metadata.json").write_text(
        json.dumps(
            {
                "parallel_group_info": {
                    "group_name_0": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0, 1, 2, 3]}
                }
            }
        )
    )

    trace = read(tmp_path)

    calls, tasks = trace[t.COMM_OPS], trace[t.COMM_TASKS]
    assert calls.text("group").to_list() == ["group_name_0", "group_name_3"]
    assert calls.text("group_label").to_list() == ["default_group", None]
    assert calls.ints("group_size").tolist() == [4, 2]
    assert calls.ints("size_bytes").tolist() == [4096, 4096]
    assert calls.text("algorithm").to_list() == ["MESH-RING"] * 2
    assert calls.ints("index_in_group").tolist() == [0, 4]
    assert tasks.text("kind").to_list() == ["Notify_Wait", "Memcpy"]
    assert tasks.ints("comm_op").tolist() == [0, 1]
    assert (tasks.ints("plane").tolist(), tasks.ints("dst").tolist()) == ([0, 1], [5, NULL])
    assert tasks.text("link").to_list() == [None, None]
    assert any("1 HCCL tasks lie outside" in warning for warning in trace.meta.warnings)
    assert len(trace[t.KERNELS]) == 1  # no HCCL task became a kernel


def test_launches_of_level0_come_from_the_flows_that_stay(tmp_path: Path) -> None:
    flow = {"cat": "HostToDevice", "name": "HostToDevice40006882869110636543", "id": "40006882869110636543"}
    events = [e for e in kernel_events(1) if e["pid"] != CANN]
    start = {"ph": "s", "pid": CANN, "tid": 77, "ts": stamp("12.000"), **flow}
    end = {"ph": "f", "bp": "e", "pid": HARDWARE, "tid": 2, "ts": stamp("25.001"), **flow}
    write_trace(tmp_path, [*process_events(cann=False), *events, start, end])

    kernels = read(tmp_path)[t.KERNELS]

    assert (kernels.ints("start_ns") - kernels.ints("launch_start_ns")).tolist() == [13_001]
    assert kernels.ints("launch_end_ns").tolist() == [NULL]


def test_stacks_lose_the_folders_of_their_user(tmp_path: Path) -> None:
    stack = (
        "/home/somebody/lib/python3.9/site-packages/torch/_ops.py(692): __call__;\r\n/data/somebody/job/main.py(3): f"
    )
    op = slice_event(
        "aten::add", PYTHON, 77, "0.000", 1.0, "cpu_op", **{"Call__stack": stack, "Input__Dims": "2,3;\r\n"}
    )
    write_trace(tmp_path, [*process_events(), op])

    ops = read(tmp_path)[t.HOST_OPS]

    assert ops.text("stack").to_list() == ["torch/_ops.py(692): __call__\njob/main.py(3): f"]
    assert ops.text("input_shapes").to_list() == ["2,3;"]


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        ("", "closing bracket is missing"),
        (",", "closing bracket is missing"),
        (',{"ph":"X","na', "damaged near its end"),
    ],
)
def test_an_interrupted_export_is_read_to_its_end(tmp_path: Path, tail: str, problem: str) -> None:
    write_trace(tmp_path, [*process_events(), *(e for n in range(30) for e in kernel_events(n))], tail=tail)

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 30
    assert problem in problems(trace)


def test_numeric_times_are_read_when_the_processes_are_ascend(tmp_path: Path) -> None:
    events = [*process_events(), *kernel_events(0)]
    numeric = [{**e, "ts": float(str(e["ts"]))} if "ts" in e else e for e in events]
    write_trace(tmp_path, numeric)

    assert len(read(tmp_path)[t.KERNELS]) == 1


def test_bad_slices_are_dropped_and_counted(tmp_path: Path) -> None:
    bad = [
        slice_event("a", HARDWARE, 2, "1.000", -1.0, Task__Type="AI_CORE"),
        slice_event("b", HARDWARE, 2, "2.000", 9e10, Task__Type="AI_CORE"),
        {**slice_event("c", HARDWARE, 2, "3.000", 1.0, Task__Type="AI_CORE"), "ts": "99999999999999999999999"},
        {"ph": "X", "name": "d", "pid": HARDWARE, "tid": 2, "ts": stamp("4.000"), "args": {"Task Type": "AI_CORE"}},
    ]
    write_trace(tmp_path, [*process_events(), *bad, *kernel_events(0)])

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 1
    assert dropped(trace) == {
        "slice with a negative duration": 1,
        "slice over a day long": 1,
        "slice without a readable start": 1,
        "slice without a readable duration": 1,
    }


def test_args_of_another_form_are_ignored_and_told(tmp_path: Path) -> None:
    odd = slice_event("odd", HARDWARE, 2, "900.000", 1.0, Task__Type=["AI_CORE"])
    write_trace(tmp_path, [*process_events(), odd, *kernel_events(0)])

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 2
    assert "1 events have args" in problems(trace)


def test_a_trace_without_device_events_has_its_host_window_as_step(tmp_path: Path) -> None:
    op = slice_event("aten::add", PYTHON, 77, "0.000", 7.0, "cpu_op")
    write_trace(tmp_path, [*process_events(), op])

    steps = read(tmp_path)[t.STEPS]

    assert (steps.ints("step_id").tolist(), steps.ints("dur_ns").tolist()) == ([NULL], [7_000])


def test_counters_have_units(tmp_path: Path) -> None:
    names = {1: "AI Core Freq", 2: "LLC", 3: "NPU MEM", 4: "Acc PMU"}
    events: list[object] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}} for pid, name in names.items()
    ]
    samples = [(1, "AI Core Freq", {"MHz": 1800}), (2, "LLC 0 Read/Hit Rate", {"Hit Rate(%)": 0.84}),
               (3, "APP/HBM", {"KB": 2.0}), (4, "read_ost", {"value": 1, "acc_id": 0})]  # fmt: skip
    for pid, name, args in samples:
        events.append({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": stamp("1.000"), "args": args})
    write_trace(tmp_path, [*process_events(), *events, *kernel_events(0)])

    trace = read(tmp_path)

    counters = trace[t.COUNTERS]
    found = dict(zip(counters.text("counter").to_list(), counters.text("unit").to_list(), strict=True))
    assert found == {"AI Core Freq": "MHz", "LLC 0 Read/Hit Rate": "ratio", "APP/HBM": "bytes"}
    assert sorted(counters.floats("value").tolist()) == [0.84, 1800.0, 2048.0]
    assert trace.meta.device.frequency_hz == 1_800_000_000


# ---- communication ---------------------------------------------------------------------------------------------------

TIME = {
    "Start Timestamp(us)": EPOCH_US + 25.25, "Elapse Time(ms)": 0.02, "Transit Time(ms)": 0.004,
    "Wait Time(ms)": 0.016, "Synchronization Time(ms)": 0.015, "Idle Time(ms)": 0,
}  # fmt: skip
BANDS = {
    "HCCS": {
        "Transit Size(MB)": 4.128768, "Transit Time(ms)": 0.3, "Bandwidth(GB/s)": 13.7, "Large Packet Ratio": 0.5,
        "Size Distribution": {"2.064384": [2, 0.3]},
    },
    "SDMA": {"Transit Size(MB)": 4.128768, "Transit Time(ms)": 0.3, "Large Packet Ratio": 0, "Size Distribution": {}},
    "RDMA": {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Large Packet Ratio": 0, "Size Distribution": {}},
}  # fmt: skip


def write_communication(folder: Path, group: str) -> None:
    call = {"Communication Time Info": TIME, "Communication Bandwidth Info": BANDS}
    total = {"Communication Time Info": {"Elapse Time(ms)": 0.02}}
    key = f"hcom_allReduce__612_1_1@{group_hash(group)}"
    (folder / "communication.json").write_text(
        json.dumps({"step3": {"p2p": {}, "collective": {key: call, "Total Op Info": total}}})
    )
    links = {
        "0-1": {
            "Transport Type": "HCCS",
            "Transit Size(MB)": 1.5,
            "Transit Time(ms)": 0.1,
            "Op Name": "hcom_reduceScatter__612_1_1",
        }
    }
    (folder / "communication_matrix.json").write_text(
        json.dumps({"step3": {"p2p": {}, "collective": {f"reduce-top1@{group_hash(group)}": links}}})
    )


def test_figures_are_joined_with_the_rows_and_groups_with_the_metadata(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0), comm_row(1, "G3")])
    write_communication(tmp_path, "group_name_0")
    info = {"group_name_0": {"group_name": "dp", "group_rank": 1, "global_ranks": [4, 6]}}
    (tmp_path / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": info}))

    trace = read(tmp_path)

    calls = trace[t.COMM_OPS]
    assert calls.ints("start_ns").tolist() == [EPOCH_US * 1000 + 25_001]  # exact, not the rounded one
    times = {name: int(calls.ints(f"{name}_ns")[0]) for name in ("transit", "wait", "sync", "idle")}
    assert times == {"transit": 4_000, "wait": 16_000, "sync": 15_000, "idle": 0}
    assert (calls.text("group")[0], calls.text("group_label")[0], int(calls.ints("group_size")[0])) == (
        "group_name_0", "dp", 2
    )  # fmt: skip
    (group,) = trace.meta.groups
    assert (group.ranks, group.hash_id) == ((4, 6), "5862276093215481612")
    transfers, packets, links = trace[t.COMM_TRANSFERS], trace[t.COMM_PACKETS], trace[t.COMM_LINKS]
    assert (transfers.text("transport").to_list(), transfers.ints("size_bytes").tolist()) == (["HCCS"], [4_128_768])
    assert (packets.ints("packet_bytes").tolist(), packets.ints("count").tolist()) == ([2_064_384], [2])
    assert links.text("op").to_list() == ["reduceScatter"]  # the key only says "reduce"
    assert (links.ints("src").tolist(), links.ints("dst").tolist()) == ([0], [1])
    assert links.text("group").to_list() == ["group_name_0"]
    assert [check.name for check in trace.meta.checks if not check.holds] == []


def call_of(number: int) -> dict[str, object]:
    """Figures of the call that `comm_row(number, "G3")` is."""
    row = comm_row(number, "G3")
    start, elapse = float(row["Start Time(us)"]), float(row["Duration(us)"]) / 1e3
    time = TIME | {"Start Timestamp(us)": start, "Elapse Time(ms)": elapse}
    return {"Communication Time Info": time, "Communication Bandwidth Info": BANDS}


def write_calls(folder: Path, numbers: Sequence[int], step: str = "step3") -> None:
    """A communication.json with these calls."""
    calls = {f"hcom_allReduce__612_{n}_1@{group_hash('group_name_0')}": call_of(n) for n in numbers}
    (folder / "communication.json").write_text(json.dumps({step: {"p2p": {}, "collective": calls}}))


def test_calls_that_the_exporter_left_out_of_its_steps_are_said_and_do_not_make_its_figures_wrong(
    tmp_path: Path,
) -> None:
    write_kernels(tmp_path, [kernel_row(0), *(comm_row(n, "G3") for n in (1, 2, 3))])
    write_calls(tmp_path, (1, 3))

    trace = read(tmp_path)

    assert [check for check in trace.meta.checks if not check.holds] == []
    (check,) = [check for check in trace.meta.checks if check.name == "communication"]
    assert (check.ours, check.theirs) == (40.0, 40.0)
    assert trace[t.COMM_OPS].ints("wait_ns").tolist() == [16_000, NULL, 16_000]
    assert [text for text in trace.meta.warnings if text.startswith("1 of 3 collectives have no communication figures")]


def test_calls_that_a_file_without_steps_lacks_make_its_figures_wrong(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0), *(comm_row(n, "G3") for n in (1, 2, 3))])
    write_calls(tmp_path, (1, 3), step="step")

    trace = read(tmp_path)

    assert [(check.name, check.ours, check.theirs) for check in trace.meta.checks if not check.holds] == [
        ("communication", 60.0, 40.0)
    ]
    assert not [text for text in trace.meta.warnings if "no communication figures" in text]


@pytest.mark.parametrize(
    "figures", [{}, {"Start Timestamp(us)": EPOCH_US + 9e6, "Wait Time(ms)": 0.01}], ids=["no times", "other starts"]
)
def test_calls_whose_figures_no_call_is_known_by_were_not_left_out(tmp_path: Path, figures: dict[str, float]) -> None:
    write_kernels(tmp_path, [kernel_row(0), *(comm_row(n, "G3") for n in (1, 2))])
    calls = {
        f"hcom_allReduce__612_{n}_1@{group_hash('group_name_0')}": {
            "Communication Time Info": {"Elapse Time(ms)": elapse, **figures}
        }
        for n, elapse in ((1, 0.015), (2, 0.025))  # 0.02 each in kernel_details.csv
    }
    (tmp_path / "communication.json").write_text(json.dumps({"step3": {"p2p": {}, "collective": calls}}))

    trace = read(tmp_path)

    assert trace[t.COMM_OPS].ints("wait_ns").tolist() == [NULL, NULL]
    (check,) = [check for check in trace.meta.checks if check.name == "communication"]
    assert (check.ours, check.theirs) == (40.0, 40.0)
    assert not [text for text in trace.meta.warnings if "no communication figures" in text]


@pytest.mark.parametrize(("listed", "left"), [((1, 2), 0), ((1,), 1), ((2,), 1)])
def test_calls_of_two_groups_with_the_same_name_are_counted(tmp_path: Path, listed: tuple[int, ...], left: int) -> None:
    """The name of a call has three digits of its group's hash only."""
    # Both last 20 us: the duration alone does not tell whose figures they are.
    rows = [kernel_row(0), comm_row(1, "G3"), comm_row(2, "G3") | {"Name": comm_row(1, "G3")["Name"]}]
    write_kernels(tmp_path, rows)
    name = "hcom_allReduce__612_1_1"
    calls = {f"{name}@{n}612": call_of(n) for n in listed}
    (tmp_path / "communication.json").write_text(json.dumps({"step3": {"p2p": {}, "collective": calls}}))

    trace = read(tmp_path)

    assert [check for check in trace.meta.checks if not check.holds] == []
    assert trace[t.COMM_OPS].ints("wait_ns").tolist() == [16_000 if n in listed else NULL for n in (1, 2)]
    told = [text for text in trace.meta.warnings if "no communication figures" in text]
    assert [text.partition(" collectives")[0] for text in told] == ["1 of 2"] * left


@pytest.mark.parametrize(("listed", "bytes_"), [((1,), 4_128_768), ((1, 2), 4_128_768), ((), NULL)])
def test_an_export_with_more_calls_and_no_sizes_does_not_hide_the_sizes_of_the_other(
    tmp_path: Path, listed: tuple[int, ...], bytes_: int
) -> None:
    write_kernels(tmp_path, [kernel_row(0), *(comm_row(n, "G3") for n in (1, 2, 3))])
    write_calls(tmp_path, listed)
    with closing(sqlite3.connect(tmp_path / "analysis.db")) as connection, connection:
        connection.execute(
            "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time, transit_time,"
            " wait_time, synchronization_time, idle_time, step, type)"
        )
        for n in (1, 2):
            connection.execute(
                "insert into CommAnalyzerTime values (?, ?, ?, 0.02, 0.004, 0.016, 0.015, 0, 'step3', 'collective')",
                (f"hcom_allReduce__612_{n}_1", group_hash("group_name_0"), float(comm_row(n, "G3")["Start Time(us)"])),
            )

    trace = read(tmp_path)

    assert trace[t.COMM_OPS].ints("wait_ns").tolist() == [16_000, 16_000, NULL]
    sizes = trace[t.COMM_TRANSFERS].ints("size_bytes").tolist() if listed else [NULL]
    assert sizes == [bytes_] * max(len(listed), 1)


@pytest.mark.parametrize(("elapse_ms", "holds"), [(0.02, True), (0.03, False)])
def test_figures_of_two_exports_are_compared_where_both_list_the_call(
    tmp_path: Path, elapse_ms: float, holds: bool
) -> None:
    write_kernels(tmp_path, [kernel_row(0), *(comm_row(n, "G3") for n in (1, 2))])
    write_calls(tmp_path, (1, 2))
    name, start = "hcom_allReduce__612_1_1", float(comm_row(1, "G3")["Start Time(us)"])
    with closing(sqlite3.connect(tmp_path / "analysis.db")) as connection, connection:
        connection.execute(
            "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time, transit_time,"
            " wait_time, synchronization_time, idle_time, step, type)"
        )
        connection.execute(
            "insert into CommAnalyzerTime values (?, ?, ?, ?, 0.004, 0.016, 0.015, 0, 'step3', 'collective')",
            (name, group_hash("group_name_0"), start, elapse_ms),
        )

    trace = read(tmp_path)

    (check,) = [check for check in trace.meta.checks if check.name == "communication figures in both exports"]
    assert (check.ours, check.theirs, check.holds) == (elapse_ms * 1e3, 20.0, holds)
    # The fuller file is used.
    assert trace[t.COMM_OPS].ints("wait_ns").tolist() == [16_000, 16_000]


@pytest.mark.parametrize("odd", ["²", "9" * 30, "9" * 5000])
def test_numbers_that_are_none_name_nothing(tmp_path: Path, odd: str) -> None:
    name = f"hcom_allReduce__612_{odd}_1"
    write_kernels(tmp_path, [kernel_row(0), {**comm_row(1, "G3"), "Name": name}])
    call = {"Communication Time Info": TIME, "Communication Bandwidth Info": BANDS}
    steps = {f"step{odd}": {"p2p": {}, "collective": {f"{name}@{odd}": call}}}
    (tmp_path / "communication.json").write_text(json.dumps(steps))
    link = {"Transport Type": "HCCS", "Transit Size(MB)": 1.5, "Transit Time(ms)": 0.1, "Op Name": name}
    links = {"0-1": link, f"0-{odd}": link, f"{odd}-1": link}
    matrix = {"step3": {"p2p": {}, "collective": {f"allreduce-top1@{odd}": links}}}
    (tmp_path / "communication_matrix.json").write_text(json.dumps(matrix))

    trace = read(tmp_path)

    assert trace[t.COMM_OPS].ints("index_in_group").tolist() == [0]  # by the order of starts, not by the name
    assert step_of(f"step{odd}") == step_of(odd) == NULL
    assert (trace[t.COMM_LINKS].ints("src").tolist(), trace[t.COMM_LINKS].ints("dst").tolist()) == ([0], [1])


@pytest.mark.parametrize("odd", ["²", "9" * 30, "9" * 5000])
def test_lines_with_numbers_that_are_none_keep_what_their_events_say(tmp_path: Path, odd: str) -> None:
    lines = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"{what} {odd}"}}
        for pid, tid, what in ((HARDWARE, 2, "Stream"), (HCCL, 1, "Plane"))
    ]
    call = slice_event("hcom_allReduce__612_0_1", HCCL, 0, "100.000", 50.0, connection_id=5)
    task = slice_event("Notify_Wait", HCCL, 1, "101.000", 40.0)
    write_trace(tmp_path, [*process_events(), *lines, *kernel_events(0), call, task])

    trace = read(tmp_path)

    assert len(trace[t.KERNELS]) == 1
    assert not trace.has(t.COMM_TASKS) or not len(trace[t.COMM_TASKS])


def test_figures_beyond_reason_are_unknown(tmp_path: Path) -> None:
    write_kernels(tmp_path, [kernel_row(0), comm_row(1, "G3")])
    odd = {**TIME, "Transit Time(ms)": -1.0, "Wait Time(ms)": 1e18, "Idle Time(ms)": 86_400_001}
    spread = {"2.0": [2, 0.3], "-1": [1, -1], "1e30": [1e30], "8": [1e9, 1e9]}
    bands = {"HCCS": {"Transit Size(MB)": -4.0, "Transit Time(ms)": 1e18, "Size Distribution": spread}}
    call = {"Communication Time Info": odd, "Communication Bandwidth Info": bands}
    key = f"hcom_allReduce__612_1_1@{group_hash('group_name_0')}"
    (tmp_path / "communication.json").write_text(json.dumps({"step3": {"collective": {key: call}}}))

    trace = read(tmp_path)

    calls = trace[t.COMM_OPS]
    assert [int(calls.ints(f"{name}_ns")[0]) for name in ("transit", "wait", "idle", "sync")] == [
        NULL, NULL, NULL, 15_000,
    ]  # fmt: skip
    packets, transfers = trace[t.COMM_PACKETS], trace[t.COMM_TRANSFERS]
    assert packets.ints("packet_bytes").tolist() == [2_000_000, NULL, NULL, 8_000_000]
    assert packets.ints("count").tolist() == [2, 1, NULL, NULL]  # 10^9 packets of 8 MB are 8 PB
    assert packets.ints("time_ns").tolist() == [300_000, NULL, NULL, NULL]
    assert (transfers.ints("size_bytes").tolist(), transfers.ints("time_ns").tolist()) == ([NULL], [NULL])


def test_figures_alone_give_calls_with_rounded_starts(tmp_path: Path) -> None:
    write_communication(tmp_path, "group_name_0")

    trace = read(tmp_path)

    calls = trace[t.COMM_OPS]
    assert (calls.ints("start_ns").tolist(), calls.ints("dur_ns").tolist()) == ([EPOCH_US * 1000 + 25_250], [20_000])
    assert calls.ints("step_id").tolist() == [3]
    assert calls.text("group").to_list() == ["5862276093215481612"]
    assert any("rounded to 0.25 us" in warning for warning in trace.meta.warnings)
    assert not len(trace[t.STEPS])


def test_the_hash_rule_reproduces_names_of_real_data() -> None:
    assert group_hash("group_name_0") == "5862276093215481612"
    assert group_hash("group_name_5") == "5862276114690318097"
    assert group_hash("group_name_19") == "3985310405473756128"


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("hcom_allReduce__586_0_1", "allReduce"), ("hcom_allReduce_", "allReduce"),
        ("hcom_reduceScatter__1_2", "reduceScatter"),
        ("hcom_batchSendRecv__128_3_1", "batchSendRecv"), ("hcom_alltoallvc__1_2_3", "alltoallv"),
        ("hcom_receive__7_1_1", "receive"), ("hcom_send_", "send"), ("hcom_something__1_2", "other"), ("123", "other"),
    ],
)  # fmt: skip
def test_operations_are_told_by_name(name: str, op: str) -> None:
    assert op_of(name) == op


def test_files_that_mix_devices_give_a_trace_per_device(tmp_path: Path) -> None:
    rows = [{**kernel_row(n), "Device_id": str(n % 2)} for n in range(5)] + [comm_row(7, "G3")]
    write_kernels(tmp_path, rows)
    (unit,) = ascend_pt.find(folder_of(tmp_path))

    traces = ascend_pt.parse(unit)

    assert [trace.meta.device.device_id for trace in traces] == [0, 1]
    assert [len(trace[t.KERNELS]) for trace in traces] == [3, 2]
    assert [len(trace[t.COMM_OPS]) for trace in traces] == [1, 0]
    assert [trace.meta.rank for trace in traces] == [None, None]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_files_are_bytes_and_unknown_ends_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / "memory_record.csv").write_text(
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\n"  # G1: 5 columns
        f"PTA,{stamp('2.500')}\t,1.5,2.0,NPU:0\nAPP,{stamp('1.000')}\t,,1452.0,NPU:0\n"
    )
    (tmp_path / "operator_memory.csv").write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Device Type\n"
        f"aten::a,0.5,{stamp('1.000')}\t,,,NPU:0\naten::b,-32.5,,{stamp('3.000')}\t,,NPU:0\n"
    )
    (tmp_path / "npu_module_mem.csv").write_text(
        f"Device_id,Component,Timestamp(us),Total Reserved(MB),Device\n0,HCCL,{stamp('1.000')}\t,2.0,NPU:0\n"
        f"0,SLOG,{stamp('1.000')}\t,-1,NPU:0\n"
    )

    trace = read(tmp_path)

    memory, blocks, modules = trace[t.MEMORY], trace[t.MEMORY_BLOCKS], trace[t.MODULE_MEMORY]
    assert memory.text("component").to_list() == ["APP", "PTA"]  # in order of time
    assert memory.ints("reserved_bytes").tolist() == [1_522_532_352, 2_097_152]
    assert memory.ints("allocated_bytes").tolist() == [NULL, 1_572_864]
    assert blocks.ints("size_bytes").tolist() == [512, 33_280]
    assert (blocks.ints("alloc_ns") == NULL).tolist() == [False, True]
    assert (blocks.ints("free_ns") == NULL).tolist() == [True, False]
    assert modules.ints("reserved_bytes").tolist() == [2_097_152, NULL]


@pytest.mark.parametrize("odd_us", ["-1.0", "9007199254740992", "7900000000000000", "1"])
def test_samples_with_times_beyond_reason_are_dropped(tmp_path: Path, odd_us: str) -> None:
    good = [stamp(f"{n}.000") for n in range(3)]
    (tmp_path / "memory_record.csv").write_text(
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\n"
        + "".join(
            f"PTA,{time},1,{size},NPU:0\n" for time, size in zip([*good, odd_us], ("1", "-2", "1e15", "1"), strict=True)
        )
    )
    (tmp_path / "operator_memory.csv").write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Device Type\n"
        f"a,1e30,{good[0]},{good[1]},,NPU:0\nb,1,{odd_us},{good[2]},,NPU:0\nc,1,{good[0]},{odd_us},,NPU:0\n"
    )

    trace = read(tmp_path)

    assert trace[t.MEMORY].ints("reserved_bytes").tolist() == [1 << 20, NULL, NULL]
    assert [drop.count for source in trace.meta.sources for drop in source.dropped] == [1]
    blocks = trace[t.MEMORY_BLOCKS]
    assert blocks.ints("size_bytes").tolist() == [NULL, 1024, 1024]
    assert (blocks.ints("alloc_ns") == NULL).tolist() == [False, True, False]
    assert (blocks.ints("free_ns") == NULL).tolist() == [False, False, True]


def test_sums_of_the_exporter_beyond_reason_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "op_statistic.csv").write_text(
        "Device_id,OP Type,Core Type,Count,Total Time(us)\n"
        "0,Add,AIV,9223372036854775807,9007199254740.993\n0,Mul,AIV,-1,-5\n"
        "0,Sub,AIV,9007199254740992,9007199254740.992\n"
    )
    (tmp_path / "step_trace_time.csv").write_text(
        "Device_id,Step,Computing,Free,Stage\n0,1,86400000001,-86400000001,86400000000\n"
    )

    trace = read(tmp_path)

    ops, steps = trace[t.EXPORTED_OPS], trace[t.EXPORTED_STEPS]
    assert ops.ints("count").tolist() == [NULL, NULL, 2**53]
    assert ops.ints("total_ns").tolist() == [NULL, NULL, 2**53]
    assert [int(steps.ints(f"{name}_ns")[0]) for name in ("computing", "free", "stage")] == [NULL, NULL, 86400 * 10**9]


def test_device_is_derived_from_counters(tmp_path: Path) -> None:
    # 100 us on 20 cores at 1500 MHz: 3e6 cycles; core time 100 us; utilization 100 %.
    row = {
        **kernel_row(0, dur="100.000"), "Accelerator Core": "AI_CORE", "Block Dim": "20", "aic_total_cycles": "3000000",
        "aicore_time(us)": "100.0", "cube_utilization(%)": "100.0",
    }  # fmt: skip
    write_kernels(tmp_path, [row, kernel_row(8)])

    device = read(tmp_path).meta.device

    assert (device.frequency_hz, device.cube_cores, device.vector_cores) == (1_500_000_000, 20, 40)
    assert device.derivation is not None and "30.0 GHz-cores" in device.derivation


def test_files_are_read_in_any_order_of_rows(tmp_path: Path) -> None:
    rows = [kernel_row(n) for n in range(5)]
    write_kernels(tmp_path, rows)
    ordered = read(tmp_path)[t.KERNELS]
    write_kernels(tmp_path, rows[::-1])
    reversed_ = read(tmp_path)[t.KERNELS]

    assert np.array_equal(ordered.ints("start_ns"), reversed_.ints("start_ns"))
    assert ordered.text("name").to_list() == reversed_.text("name").to_list()


def test_find_reads_no_more_than_heads(tmp_path: Path) -> None:
    path = write_kernels(tmp_path, [kernel_row(n) for n in range(2000)])
    entry = FileEntry(path, path.stat().st_size)
    (unit,) = ascend_pt.find(folder_of(tmp_path))

    assert unit.files == (path,)
    assert len(entry.head) == 64 << 10


@pytest.mark.parametrize(("labels", "devices"), [(("NPU 4", "NPU 6"), [4, 6]), (("NPU", "NPU"), [0, 1])])
def test_a_trace_of_two_devices_gives_a_trace_per_device(
    tmp_path: Path, labels: tuple[str, str], devices: list[int]
) -> None:
    other = HARDWARE + 1000
    events: list[object] = [*process_events(), *(e for n in range(3) for e in kernel_events(n))]
    events.append({"ph": "M", "name": "process_name", "pid": other, "tid": 0, "args": {"name": "Ascend Hardware"}})
    for pid, label in zip((HARDWARE, other), labels, strict=True):
        events.append({"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}})
    events.append(slice_event("k", other, 2, "7.000", 4.0, Task__Type="AI_VECTOR_CORE"))
    write_trace(tmp_path, events)

    (unit,) = ascend_pt.find(folder_of(tmp_path))
    traces = ascend_pt.parse(unit)

    assert [trace.meta.device.device_id for trace in traces] == devices
    assert [len(trace[t.KERNELS]) for trace in traces] == [3, 1]
    assert traces[1][t.STEPS].ints("dur_ns").tolist() == [4000]
