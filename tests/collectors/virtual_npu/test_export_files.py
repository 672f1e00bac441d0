"""The files that stand for an export of msprof, read by our own readers; the stand-in command; what is refused."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ascend_perf import intervals
from ascend_perf.collectors.virtual_npu import export as exports
from ascend_perf.collectors.virtual_npu._export_capture import Capture, capture_of, captures_of
from ascend_perf.collectors.virtual_npu._export_comm import write_communication
from ascend_perf.collectors.virtual_npu._export_tasks import Tasks, tasks_of
from ascend_perf.collectors.virtual_npu.export import Level, chip_of, export, stage
from ascend_perf.collectors.virtual_npu.record import Record, read_record
from ascend_perf.errors import InputError, MachineError
from ascend_perf.model import tables as t
from ascend_perf.model.trace import Trace
from ascend_perf.parsers._ascend_comm import CommFigures, read_communication, read_matrix
from ascend_perf.parsers._ascend_db import Database, read_database
from ascend_perf.parsers._ascend_meta import Facts
from tests.collectors.virtual_npu._records import OFFSET, PID, RAW0, RecordText, small_job
from tests.parsers._ascend_profile import write_info
from tests.parsers._msprof_profile import traces_at

NAME = f"host_{PID}_20260101000000000_ascend_pt"
STAMP = "0" * 14


@pytest.fixture
def record(tmp_path: Path) -> Record:
    (tmp_path / "record").mkdir()
    return read_record(small_job().write(tmp_path / "record"))


def captured(record: Record) -> Capture:
    ((_, begin, end),) = captures_of(record)
    return capture_of(record, begin, end)


def tasks(record: Record) -> Tasks:
    return tasks_of(captured(record), cube_cores=24, vector_cores=48)


def profile(folder: Path, *, level: str = "Level1") -> Path:
    """What torch_npu's profiler leaves when it ran on a virtual device."""
    place = folder / NAME
    (place / "FRAMEWORK").mkdir(parents=True)
    (place / "FRAMEWORK" / "torch.op_range").write_bytes(b"")
    write_info(place, "G4", level=level)
    (place / "profiler_metadata.json").write_text('{"ENV_VARIABLES": {"ASCEND_LAUNCH_BLOCKING": ""}}')
    return place


def staged(record: Record, tmp_path: Path, level: Level | None = None) -> Path:
    """The PROF folder as `msprof --export=on` and `--analyze=on` leave it."""
    level = level or Level()
    capture = captured(record)
    folder = exports._mark(profile(tmp_path / "traces"), capture)
    prof = exports._raw_folder(folder, capture)
    stage(tmp_path / "staged", capture, level=level)
    for path in (tmp_path / "staged").iterdir():
        shutil.move(str(path), prof)
    return prof


def text_only(prof: Path) -> Trace:
    for path in prof.glob("*.db"):
        path.unlink()
    (trace,) = traces_at(prof)
    return trace


# ---- the export read back ----------------------------------------------------------------------------------------


def test_kernels_and_collectives_come_back_to_the_nanosecond(record: Record, tmp_path: Path) -> None:
    expected = tasks(record)
    trace = text_only(staged(record, tmp_path))
    kernels, comm = trace[t.KERNELS], trace[t.COMM_OPS]
    assert kernels.ints("start_ns").tolist() == expected.kernels["start"].tolist()
    assert kernels.ends_ns().tolist() == expected.kernels["end"].tolist()
    assert kernels.text("name").to_list() == [
        expected.kinds[kind].kernel.name for kind in expected.kernels["kind"].tolist()
    ]
    assert comm.ints("start_ns").tolist() == [op.arrive_ns for op in expected.comm]
    assert comm.ends_ns().tolist() == [op.end_ns for op in expected.comm]
    assert comm.text("op").to_list() == ["allReduce"] * 2
    assert comm.ints("size_bytes").tolist() == [16_388_000] * 2
    assert trace.meta.data_origin == "simulated"
    assert trace.meta.rank == 0
    assert (trace.meta.device.cube_cores, trace.meta.device.frequency_hz) == (24, 1_800_000_000)


def test_the_time_split_is_that_of_the_record(record: Record, tmp_path: Path) -> None:
    # By hand, of one step: kernels from 5000 to 455004 (the norm follows the matmul at once) and from 600000 to 610003;
    # the collective from 6000 to 500007, alone after 455004. Nothing runs from 500007 to 600000.
    overlap = text_only(staged(record, tmp_path))[t.OVERLAP]
    sums = {
        kind: int(overlap.ints("dur_ns")[overlap.text("kind").equals(kind)].sum())
        for kind in ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
    }
    # Between the steps: from 610003 of the first to 5000 of the second, 1000000 later.
    assert sums == {
        "Computing": 2 * (450_004 + 10_003), "Communication": 2 * 494_007,
        "Communication(Not Overlapped)": 2 * 45_003, "Free": 2 * 99_993 + 394_997,
    }  # fmt: skip
    expected = tasks(record)
    union = intervals.merged(expected.kernels["start"], expected.kernels["end"])
    assert intervals.total(union) == sums["Computing"]


def test_operator_statistics_are_sums_of_the_kernels(record: Record, tmp_path: Path) -> None:
    rows = table(staged(record, tmp_path), "op_statistic")
    found = {row["OP Type"]: (row["Core Type"], int(row["Count"]), row["Total Time(us)"]) for row in rows}
    assert found == {
        "MatMulV3": ("AI_CORE", 2, "800.002"), "RmsNorm": ("AI_VECTOR_CORE", 2, "100.006"),
        "MaxPoolWithArgmaxV1": ("AI_VECTOR_CORE", 2, "10.004"), "TransData": ("AI_VECTOR_CORE", 4, "10.002"),
    }  # fmt: skip
    # Shares of 920.014 us.
    assert [row["Ratio(%)"] for row in rows] == ["86.955", "10.870", "1.087", "1.087"]
    assert (rows[3]["Min Time(us)"], rows[3]["Max Time(us)"]) == ("2.500", "2.501")
    assert rows[0]["Avg Time(us)"] == "400.001"


def table(prof: Path, base: str) -> list[dict[str, str]]:
    (path,) = (prof / "mindstudio_profiler_output").glob(f"{base}_*.csv")
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_cells_of_a_kernel(record: Record, tmp_path: Path) -> None:
    rows = table(staged(record, tmp_path), "op_summary")
    matmul, comm, norm = rows[0], rows[1], rows[2]
    assert (matmul["Op Name"], matmul["Task Type"]) == ("aclnnMatmul_MatMulV3Common_MatMulV3", "AI_CORE")
    assert matmul["Task Start Time(us)"] == f"{(RAW0 + OFFSET + 2_005_000) // 1000}.789\t"
    assert (matmul["Task Duration(us)"], matmul["Task Wait Time(us)"], matmul["Block Num"]) == ("400.001", "0", "24")
    assert matmul["Input Shapes"] == '"4096,4096;4096,4096"'
    assert (matmul["Output Shapes"], matmul["Output Data Types"]) == ('"4096,4096"', "DT_BF16")
    assert (matmul["aicore_time(us)"], matmul["aic_mac_ratio"], matmul["aic_scalar_ratio"]) == (
        "398.501", f"{2 * 4096**3 / (8192 * 24 * 1.8) / 398_501:.3f}", "N/A"
    )  # fmt: skip
    assert (comm["Task Type"], comm["Task ID"], comm["aicore_time(us)"]) == ("COMMUNICATION", "N/A", "N/A")
    # The matmul is still running when the collective arrives, the collective when the norm starts.
    assert (comm["Task Wait Time(us)"], norm["Task Wait Time(us)"]) == ("0.000", "0.000")
    assert norm["Input Shapes"] == '"4096,4096;4096"'
    assert norm["Output Shapes"] == '"4096,4096;4096,1"'


def test_level0_knows_no_types_and_no_statistics(record: Record, tmp_path: Path) -> None:
    prof = staged(record, tmp_path, Level(number=0))
    names = {path.name.partition("_0")[0] for path in (prof / "mindstudio_profiler_output").iterdir()}
    assert names == {"op_summary", "task_time", "npu_mem", "msprof"}
    assert not (prof / "analyze").exists()
    row = table(prof, "op_summary")[0]
    assert (row["OP Type"], row["Task Type"], row["Input Shapes"]) == ("N/A", "N/A", "N/A")
    assert "aic_mac_ratio" not in row
    assert text_only(prof)[t.KERNELS].ints("dur_ns").sum() == 920_014


def test_other_metrics_leave_the_counters_out(record: Record, tmp_path: Path) -> None:
    row = table(staged(record, tmp_path, Level(number=1, has_counters=False)), "op_summary")[0]
    assert "aicore_time(us)" not in row
    assert row["OP Type"] == "MatMulV3"


def test_tasks_that_are_no_kernels_stand_in_task_time(record: Record, tmp_path: Path) -> None:
    rows = table(staged(record, tmp_path), "task_time")
    copies = [row for row in rows if row["kernel_type"] == "MEMCPY_ASYNC"]
    assert [(row["task_time(us)"], row["stream_id"]) for row in copies] == [("9.000", "3")] * 2
    assert len(rows) == 10 + 2


def test_memory_of_the_process_keeps_its_bytes(record: Record, tmp_path: Path) -> None:
    rows = table(staged(record, tmp_path), "npu_mem")
    assert [float(row["memory(KB)"]) * 1024 for row in rows] == [n << 20 for n in (2, 6, 2, 6, 2)]
    assert {row["event"] for row in rows} == {"APP"}


# ---- communication ------------------------------------------------------------------------------------------------


def test_figures_of_collectives(record: Record, tmp_path: Path) -> None:
    write_communication(tmp_path, tasks(record))
    figures = CommFigures()
    # torch_npu adds steps and classes to what msprof writes.
    calls = json.loads((tmp_path / "communication.json").read_text())
    (tmp_path / "own.json").write_text(json.dumps({"step": {"collective": calls}}))
    assert read_communication(tmp_path / "own.json", figures) == 2
    one = figures.calls[0]
    assert (one.elapse_ns, one.wait_ns, one.sync_ns, one.transit_ns, one.idle_ns) == (
        494_007, 100_000, 100_000, 394_007, 0
    )  # fmt: skip
    (moved, _) = figures.transfers
    # Seven links, each with its slice twice (reduced, gathered), in 197003 + 197004 ns.
    assert moved["size_bytes"] == 2 * (6 * 2_064_384 + 1_937_312)
    assert moved["time_ns"] == 7 * 394_007
    assert {(packet["packet_bytes"], packet["count"]) for packet in figures.packets} == {
        (2_064_384, 12), (1_937_312, 2)
    }  # fmt: skip
    matrix = json.loads((tmp_path / "communication_matrix.json").read_text())
    (tmp_path / "matrix.json").write_text(json.dumps({"step": {"collective": matrix}}))
    assert read_matrix(tmp_path / "matrix.json", figures) == 2 * 7
    assert {(link["src"], link["dst"], link["size_bytes"]) for link in figures.links} == {
        (0, peer, 2 * (1_937_312 if peer == 7 else 2_064_384)) for peer in range(1, 8)
    }  # fmt: skip


def test_the_database_of_the_figures_has_the_same(record: Record, tmp_path: Path) -> None:
    write_communication(tmp_path, tasks(record))
    with closing(sqlite3.connect(tmp_path / "communication_analyzer.db")) as database:
        times = database.execute("select start_timestamp, elapse_time, wait_time from CommAnalyzerTime").fetchall()
        size = database.execute("select sum(transit_size) from CommAnalyzerMatrix").fetchone()[0]
        bands = database.execute("select transport_type, count from CommAnalyzerBandwidth").fetchall()
    arrive = RAW0 + OFFSET + 2_006_000
    assert times[0] == (f"{arrive // 1000}.{arrive % 1000}", 0.494007, 0.1)
    assert size == pytest.approx(2 * 2 * (6 * 2.064384 + 1.937312))
    assert sorted(bands) == [("HCCS", 2), ("HCCS", 2), ("HCCS", 12), ("HCCS", 12), ("SDMA", 0), ("SDMA", 0)]


def test_without_collectives_there_are_no_files(tmp_path: Path) -> None:
    text = RecordText()
    text.profiler(0, "init", f"/x/{NAME}")
    text.profiler(1, "start")
    text.profiler(10, "stop")
    write_communication(tmp_path, tasks(read_record(text.write(tmp_path))))
    assert not [*tmp_path.glob("*.json"), *tmp_path.glob("*.db")]


# ---- database -----------------------------------------------------------------------------------------------------


def read_db(prof: Path) -> tuple[Database, Facts]:
    facts = Facts()
    (path,) = prof.glob("msprof_*.db")
    return read_database(path, facts), facts


def test_the_database_holds_the_same_tasks(record: Record, tmp_path: Path) -> None:
    expected = tasks(record)
    found, facts = read_db(staged(record, tmp_path))
    kernels, comm, pieces = (found.tables[name] for name in ("kernels", "comm_ops", "comm_tasks"))
    assert kernels.ints("start_ns").tolist() == expected.kernels["start"].tolist()
    assert kernels.ends_ns().tolist() == expected.kernels["end"].tolist()
    assert kernels.text("core").to_list()[:2] == ["AIC", "AIV"]
    assert kernels.ints("launch_start_ns").tolist() == expected.kernels["host"].tolist()
    assert comm.ends_ns().tolist() == [op.end_ns for op in expected.comm]
    assert comm.ints("group_size").tolist() == [8, 8]
    assert len(pieces) == 2 * (1 + 14)
    assert int(pieces.ints("size_bytes")[pieces.text("kind").equals("Reduce_Inline")].sum()) == 2 * (
        6 * 2_064_384 + 1_937_312
    )
    assert facts.data_origin == "simulated"
    assert facts.device_name == "Ascend910B2 (virtual)"
    assert facts.versions["db_schema"] == "1.2.0"
    assert not found.dropped


def test_counters_of_the_database_are_those_of_the_text(record: Record, tmp_path: Path) -> None:
    prof = staged(record, tmp_path)
    kernels = read_db(prof)[0].tables["kernels"]
    text = text_only(prof)[t.KERNELS]
    for name in ("aic_time_ns", "aic_total_cycles", "aiv_time_ns", "aiv_total_cycles"):
        assert kernels.ints(name).tolist() == text.ints(name).tolist()
    for name in ("aic_mac_ratio", "aic_mte2_ratio", "aic_fixpipe_ratio", "aiv_vec_ratio", "aiv_mte2_ratio"):
        assert np.round(kernels.floats(name), 3).tolist() == text.floats(name).tolist()


def test_calls_and_copies_of_the_database(record: Record, tmp_path: Path) -> None:
    found, _ = read_db(staged(record, tmp_path))
    calls, copies = found.tables["runtime_calls"], found.tables["copies"]
    waits = calls.text("api").equals("aclrtSynchronizeStreamWithTimeout")
    assert calls.ints("dur_ns")[waits].tolist() == [621_000] * 2
    assert copies.text("kind").to_list() == ["D2H"] * 2
    assert copies.ints("size_bytes").tolist() == [4, 4]
    assert copies.text("api").to_list() == ["aclrtMemcpyAsync"] * 2


# ---- marks and clocks ---------------------------------------------------------------------------------------------


def test_everything_says_that_it_is_simulated(record: Record, tmp_path: Path) -> None:
    prof = staged(record, tmp_path)
    folder = prof.parent
    assert folder.name == f"SIMULATED_{NAME}"
    assert prof.name == "PROF_000001_20260528202640124_SIMULATEDRANK0"
    info = json.loads((folder / "profiler_info_0.json").read_text())
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    assert info["data_origin"] == metadata["data_origin"] == "simulated"
    assert info["config"]["experimental_config"]["_profiler_level"] == "Level1"
    assert metadata["ENV_VARIABLES"] == {"ASCEND_LAUNCH_BLOCKING": ""}
    assert "durations on the device" in metadata["simulation"]["modelled"]
    assert metadata["simulation"]["device"] == "Ascend910B2 (virtual)"
    events = json.loads((prof / "mindstudio_profiler_output" / f"msprof_{STAMP}.json").read_text())
    assert {"name": "data_origin", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "simulated"}} in events


def test_the_clocks_of_the_raw_folder_keep_the_offset(record: Record, tmp_path: Path) -> None:
    start = json.loads((staged(record, tmp_path) / "host" / "start_info").read_text())
    # As torch_npu computes it: us times 1000, minus the raw clock.
    assert int(start["collectionTimeBegin"]) * 1000 - int(start["clockMonotonicRaw"]) == OFFSET


# ---- the whole way with a stand-in for the analysis ----------------------------------------------------------------

ANALYSIS = """\
#!/bin/sh
# Plays `python -c analyse FOLDER...`: asks msprof as torch_npu does, and says so in the result.
shift 2
[ -z "$ASCEND_PERF_VIRTUAL_NPU" ] || exit 9
msprof --help | grep -q "text(which will also export the database)" || exit 8
for place in "$@"; do
    for folder in "$place" "$place"/*; do
        for prof in "$folder"/PROF_*; do
            [ -d "$prof" ] || continue
            msprof --export=on "--output=$prof" || exit 7
            msprof --analyze=on "--output=$prof" || exit 6
            mkdir "$folder/ASCEND_PROFILER_OUTPUT"
            touch "$folder/ASCEND_PROFILER_OUTPUT/analyse.done"
        done
    done
done
"""


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in command ends at once: nobody polls here."""
    monkeypatch.setattr(exports, "LINGERS", ("0", "0"))
    monkeypatch.setenv(exports.LINGER, "0")


def fake_python(tmp_path: Path, text: str = ANALYSIS) -> Path:
    path = tmp_path / "fake_python"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_folder_of_ranks_is_exported(tmp_path: Path) -> None:
    records, traces = [], tmp_path / "traces"
    for rank in (1, 0):
        folder = tmp_path / f"record{rank}"
        folder.mkdir()
        records.append(read_record(small_job(rank=rank).write(folder)))
        place = traces / f"host_{PID + rank}_20260101000000000_ascend_pt"
        (place / "FRAMEWORK").mkdir(parents=True)
        write_info(place, "G4", rank=rank)
    found = export(records, traces, {"ASCEND_PERF_VIRTUAL_NPU": "a config"}, python=fake_python(tmp_path))
    assert [(one.rank, one.folder.name) for one in found] == [
        (rank, f"SIMULATED_host_{PID + rank}_20260101000000000_ascend_pt") for rank in range(2)
    ]
    for one in found:
        (prof,) = one.folder.glob("PROF_*")
        assert len(table(prof, "op_summary")) == 12
        assert (prof / "analyze" / "communication.json").exists()
        assert len(list(prof.glob("msprof_*.db"))) == 1
        assert not (prof / ".part").exists()
    (trace,) = traces_at(next(found[1].folder.glob("PROF_*")))
    assert trace.meta.rank == 1


def test_a_profile_is_exported_once(record: Record, tmp_path: Path) -> None:
    profile(tmp_path / "traces")
    export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))
    with pytest.raises(InputError, match="no profile of torch_npu"):
        export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))


def test_a_profile_of_another_run_is_refused(record: Record, tmp_path: Path) -> None:
    place = profile(tmp_path / "traces")
    other = place.with_name("host_1_20250101000000000_ascend_pt")
    place.rename(other)
    with pytest.raises(InputError, match="no record of a virtual NPU has this profile"):
        export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))
    assert other.exists()  # nothing was changed


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho '[2026] [ERROR] [1] profiler.py: Failed to export'\n", "Failed to export"),
        ("#!/bin/sh\necho 'ModuleNotFoundError: torch_npu' >&2\nexit 1\n", "ModuleNotFoundError: torch_npu"),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\n", "without a result"),
    ],
)
def test_an_analysis_that_fails_is_told(record: Record, tmp_path: Path, script: str, message: str) -> None:
    profile(tmp_path / "traces")
    with pytest.raises(MachineError, match=message.replace("(", r"\(")):
        export([record], tmp_path / "traces", {}, python=fake_python(tmp_path, script))
    (found,) = export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))  # a second try is possible
    assert len(list(found.folder.glob("PROF_*"))) == 1


MISSED = """\
if [ ! -e "$0.once" ]; then
    touch "$0.once"
    echo "[ERROR] Task [CANNTimelineParser] run failed."
    exit 0
fi
"""


def test_an_analysis_that_missed_the_export_is_done_again(record: Record, tmp_path: Path) -> None:
    profile(tmp_path / "traces")
    head, _, rest = ANALYSIS.partition("shift 2\n")
    export([record], tmp_path / "traces", {}, python=fake_python(tmp_path, f"{head}{MISSED}shift 2\n{rest}"))
    (folder,) = (tmp_path / "traces").iterdir()
    assert (folder / "ASCEND_PROFILER_OUTPUT" / "analyse.done").exists()


def test_an_interpreter_that_is_not_there(record: Record, tmp_path: Path) -> None:
    profile(tmp_path / "traces")
    with pytest.raises(MachineError, match="cannot be started"):
        export([record], tmp_path / "traces", {}, python=tmp_path / "nothing")


def test_a_profile_that_cannot_be_written(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    profile(tmp_path / "traces")
    monkeypatch.setattr(exports, "stage", full)
    with pytest.raises(MachineError, match="cannot be written: No space left on device"):
        export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))


def test_a_profiler_that_did_not_end(record: Record, tmp_path: Path) -> None:
    (profile(tmp_path / "traces") / "profiler_info_0.json").unlink()
    with pytest.raises(InputError, match="no profiler_info"):
        export([record], tmp_path / "traces", {}, python=fake_python(tmp_path))


def test_what_cannot_be_exported_is_marked_and_the_others_are_exported(tmp_path: Path) -> None:
    """A job of which one rank came to its end, one failed when recording began and one was killed."""
    records, traces = [], tmp_path / "traces"
    for rank in range(3):
        folder = tmp_path / f"record{rank}"
        folder.mkdir()
        job = small_job(rank=rank)
        if rank == 1:
            job.lines = [line for line in job.lines if line[0] not in "KC"]
        records.append(read_record(job.write(folder)))
        place = traces / f"host_{PID + rank}_20260101000000000_ascend_pt"
        (place / "FRAMEWORK").mkdir(parents=True)
        (place / "logs").mkdir()
        (place / "logs" / "profiler.log").write_text(f"written to {place.resolve()}/logs")
        if rank < 2:
            write_info(place, "G4", rank=rank)
    problems: list[InputError] = []
    (found,) = export(records, traces, {}, python=fake_python(tmp_path), on_problem=problems.append)
    assert found.rank == 0
    empty, killed = (one.what for one in problems)
    assert empty.startswith(f"host_{PID + 1}_") and "nothing was launched on the device" in empty
    assert killed.startswith(f"host_{PID + 2}_") and "did not come to its end" in killed
    left = sorted(traces.iterdir())
    assert [place.name for place in left] == [
        f"SIMULATED_host_{PID + rank}_20260101000000000_ascend_pt" for rank in range(3)
    ]
    for place in left:
        assert json.loads((place / "profiler_metadata.json").read_text())["data_origin"] == "simulated"
        assert str(tmp_path) not in (place / "logs" / "profiler.log").read_text()
    assert [bool(list(place.glob("PROF_*"))) for place in left] == [True, False, False]
    with pytest.raises(InputError, match="nothing was launched"):
        export(records[1:2], left[1], {}, python=fake_python(tmp_path))


def test_a_line_of_the_analysis_says_no_path() -> None:
    details = "For details, please check the logs at: /home/x/logs"
    line = f"|[2026-11-30 16:53:11] [ERROR] [25457] profiler.py: Failed to get flow events. {details}"
    assert exports._said(line) == "Failed to get flow events."
    assert exports._said("[2026] [ERROR] [1] profiler.py: Failed to export") == "Failed to export"
    assert exports._said("exit code 3") == "exit code 3"


def test_a_chip_that_is_not_in_the_table() -> None:
    assert chip_of("Ascend910B4").cube_cores == 20
    with pytest.raises(InputError, match="not in the device table"):
        chip_of("Ascend999")


def test_the_stand_in_command_writes_databases_alone_when_asked(record: Record, tmp_path: Path) -> None:
    prof = tmp_path / "it's a PROF"
    prof.mkdir()
    with exports._stand_in() as (staging, path):
        stage(staging / prof.name, captured(record), level=Level())
        variables = {**os.environ, "PATH": os.pathsep.join((path, os.environ["PATH"]))}

        def msprof(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(["msprof", *words], env=variables, capture_output=True, text=True, check=False)

        assert msprof("--export=on", "--type=db", f"--output={prof}").returncode == 0
        assert [entry.name for entry in prof.iterdir()] == [f"msprof_{STAMP}.db"]
        assert msprof("--export=on", f"--output={prof}").returncode == 0
        assert msprof("--export=on", f"--output={prof}").returncode == 0  # over what is there
        assert {entry.name for entry in prof.iterdir()} == {f"msprof_{STAMP}.db", "mindstudio_profiler_output"}
        other = msprof("--export=on", "--output=/nowhere/PROF_1")
        assert (other.returncode, other.stderr) == (1, "nothing was staged for /nowhere/PROF_1\n")
    assert not staging.exists()
