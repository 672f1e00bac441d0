"""A profile of the virtual NPU says that it is simulated in each of its files, wherever it is moved to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_perf.device.specs import spec_for
from ascend_perf.model.tables import KERNELS
from ascend_perf.model.trace import Device
from ascend_perf.parsers._ascend_files import Kind, kind_of
from ascend_perf.parsers._source import FileEntry
from ascend_perf.parsers.ascend_pt import private
from tests.parsers._ascend_profile import (
    DatabaseWriter,
    kernel_events,
    kernel_row,
    process_events,
    read,
    write_info,
    write_kernels,
    write_trace,
)
from tests.parsers._msprof_profile import Prof, summary_row, trace_at

TASK = ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId", "taskId", "modelId")


def profile(tmp_path: Path) -> Path:
    folder = tmp_path / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir()
    write_kernels(folder, [kernel_row(number) for number in range(3)], "G4")
    return folder


def add(path: Path, **values: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def database(path: Path, *, metadata: list[tuple[str, str]], npu: str) -> None:
    writer = DatabaseWriter(path)
    name = writer.word("aclnnAdd_AddAiCore_Add")
    core = writer.word("AI_VECTOR_CORE")
    writer.table("TASK", TASK, [(10**18, 10**18 + 5000, 0, 1, 0, core, 2, 0, 4294967295)])
    writer.table("COMPUTE_TASK_INFO", ("name", "globalTaskId", "taskType"), [(name, 0, core)])
    writer.table("NPU_INFO", ("id", "name"), [(0, npu)])
    writer.table("META_DATA", ("name", "value"), metadata)
    writer.close()


def test_a_measured_profile_stays_measured(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    write_info(folder, "G4")
    assert read(folder).meta.data_origin == "measured"


@pytest.mark.parametrize("said", ["simulated", "SIMULATED", "measured", 1, None, {}])
def test_profiler_info_says_it(tmp_path: Path, said: object) -> None:
    folder = profile(tmp_path)
    add(write_info(folder, "G4"), data_origin=said)
    trace = read(folder)
    assert trace.meta.data_origin == ("simulated" if said == "simulated" else "measured")
    assert trace.meta.settings.level == "Level1"


@pytest.mark.parametrize("others", [{}, {"ENV_VARIABLES": {}}])
def test_metadata_alone_say_it(tmp_path: Path, others: dict[str, object]) -> None:
    folder = profile(tmp_path)
    path = folder / "profiler_metadata.json"
    add(path, **others, data_origin="simulated")
    assert kind_of(FileEntry(path, path.stat().st_size)) is Kind.METADATA
    assert read(folder).meta.data_origin == "simulated"


def test_damaged_metadata_are_told_and_change_nothing(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    (folder / "profiler_metadata.json").write_text('{"ENV_VARIABLES": {}, "data_origin": ["simulated"]}')
    assert read(folder).meta.data_origin == "measured"


def test_a_timeline_alone_says_it(tmp_path: Path) -> None:
    origin: dict[str, object] = {"name": "data_origin", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "simulated"}}
    folders = [tmp_path / "marked", tmp_path / "plain"]
    for folder in folders:
        folder.mkdir()
        events = [*process_events(), *kernel_events(0), *([origin] if folder.name == "marked" else [])]
        write_trace(folder, events)
    assert [read(folder).meta.data_origin for folder in folders] == ["simulated", "measured"]
    assert len(read(folders[0])[KERNELS]) == 1


def test_a_database_alone_says_it(tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    database(path, metadata=[("data_origin", '"simulated"')], npu="Ascend910B2 (virtual)")
    trace = read(path)
    assert trace.meta.data_origin == "simulated"
    assert trace.meta.device.name == "Ascend910B2 (virtual)"


def test_what_msprof_leaves_says_it(tmp_path: Path) -> None:
    prof = Prof(tmp_path).raw(0).info(0)
    prof.summary([summary_row(number) for number in range(3)])
    assert trace_at(tmp_path).meta.data_origin == "measured"
    add(prof.path / "host" / "info.json", data_origin="simulated")
    assert trace_at(tmp_path).meta.data_origin == "simulated"


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        ("SIMULATED_my-host_12_20260101000000000_ascend_pt", "SIMULATED_12_20260101000000000_ascend_pt"),
        ("my-host_12_20260101000000000_ascend_pt", "12_20260101000000000_ascend_pt"),
        ("SIMULATED_12_20260101000000000_ascend_pt", "12_20260101000000000_ascend_pt"),  # a host of that name
    ],
)
def test_the_label_keeps_the_word_but_not_the_host(folder: str, label: str) -> None:
    assert private(f"{folder}/ASCEND_PROFILER_OUTPUT") == label


def test_a_virtual_device_is_looked_up_by_the_name_of_its_chip() -> None:
    virtual, real = (spec_for(Device(kind="npu", name=name)) for name in ("Ascend910B2 (virtual)", "Ascend910B2"))
    assert real is not None and virtual is real
    assert real.id == "ascend-910b2"
