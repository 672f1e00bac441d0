"""MindSpore profiles, made here: torch_npu's files under MindSpore's names, and the files of the data pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_perf.analyzers.data_pipeline import data_pipeline
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers.discover import find_units, parsers
from tests._support import Said
from tests.parsers._ascend_profile import kernel_header, kernel_row

STACK = "\n# 0 In file /home/someone/net.py:44, in construct\n# 1 In file /home/someone/train.py:10"

SUMMARY: dict[str, list[object] | str] = {
    "op_ids": [0, 1, 2], "op_names": ["DataQueue", "Batch", "MnistReader"], "pipeline_ops": ["a", "b", "c"],
    "num_workers": [1, 4, 8], "queue_average_size": [-1, 1.5, 0.25], "queue_utilization_pct": [-1, 37.5, 2.0],
    "queue_empty_freq_pct": [-1, 20.0, 75.0], "children_ids": [[1], [2], []], "parent_id": [-1, 0, 1],
    "avg_cpu_pct": [1.0, 90.0, 5.0], "per_pipeline_time": [11.0, 13.0], "per_push_queue_time": [0.5],
    "per_batch_time": [12.5], "bottleneck_warning": "x",
}  # fmt: skip


def profile(root: Path, *, name: str = "host_99_20260101000000000_ascend_ms", stack: str = "") -> Path:
    folder = root / name / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (root / name / "profiler_info_3.json").write_text(json.dumps({"rank_id": 3, "experimental_config": {}, "config": {
        "common_config": {}, "experimental_config": {"_profiler_level": "Level1"}}}))  # fmt: skip
    header = kernel_header("G3")
    lines = [",".join(header)]
    for number in (1, 2):
        row = kernel_row(number)
        row["Name"] = f'"{row["Name"]}{stack}"' if stack else row["Name"]
        lines.append(",".join(row.get(cell, "") for cell in header))
    (folder / "kernel_details.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_pipeline(folder: Path) -> None:
    (folder / "dataset.csv").write_text(
        "Operation,Stage,Occurrences,Avg. time(us),Custom Info\nMap,Batch,10,250.500,pid-tid-1\nRead,Leaf,7,1.25,\n"
    )
    (folder / "minddata_pipeline_summary_3.json").write_text(json.dumps(SUMMARY))
    (folder / "minddata_pipeline_summary_3.csv").write_text(
        "\n".join(f"{key},{','.join(map(str, value))}" for key, value in SUMMARY.items() if key != "bottleneck_warning")
    )
    (folder / "minddata_pipeline_raw_3.csv").write_text(
        "op_id,op_type,num_workers,output_queue_size,output_queue_average_size,output_queue_length,"
        'output_queue_usage_rate,sample_interval,parent_id,children_id\n1,Batch,4,"[1, 2]",1.5,4,37.5,10,0,"[2]"\n'
    )


def read(root: Path) -> list[Trace]:
    units, _ = find_units(root)
    assert [unit.parser for unit in units] == ["mindspore"]
    return parsers()["mindspore"].parse(units[0])


@pytest.mark.parametrize("stack", ["", STACK, " /home/someone/net.py:44"])
def test_kernels_without_the_stack_behind_their_names(tmp_path: Path, stack: str) -> None:
    profile(tmp_path, stack=stack)

    (trace,) = read(tmp_path)

    assert trace[t.KERNELS].text("name").to_list() == ["aclnnAdd_AddAiCore_Add1", "aclnnAdd_AddAiCore_Add2"]
    assert trace[t.KERNELS].ints("dur_ns").tolist() == [10_001, 10_002]
    assert trace.meta.settings.producer == "mindspore.profiler"
    assert trace.meta.rank == 3
    assert "someone" not in repr(trace[t.KERNELS].text("name").values) and "host" not in trace.meta.label


def test_remedies_name_mindspore(tmp_path: Path) -> None:
    profile(tmp_path)

    (trace,) = read(tmp_path)

    assert trace.meta.missing
    assert not any("torch_npu" in missing.remedy for missing in trace.meta.missing)
    assert "input shapes of the operators" not in {missing.what for missing in trace.meta.missing}


def test_the_data_pipeline_beside_the_kernels(tmp_path: Path) -> None:
    write_pipeline(profile(tmp_path))

    (trace,) = read(tmp_path)

    table = trace[t.DATA_PIPELINE]
    assert table.text("kind").to_list() == ["stage"] * 2 + ["operator"] * 3 + ["total"] * 3
    assert table.ints("average_ns").tolist() == [
        250_500, 1_250, NULL, NULL, NULL, 12_000_000, 500_000, 12_500_000,
    ]  # fmt: skip
    operators = table.select(table.text("kind").equals("operator"))
    assert operators.text("name").to_list() == ["DataQueue", "Batch", "MnistReader"]
    assert operators.ints("parent").tolist() == [NULL, 0, 1]
    assert operators.floats("queue_empty_ratio").tolist()[1:] == [0.2, 0.75]
    problems = {s.format: s.problem for s in trace.meta.sources if s.problem}
    assert set(problems) == {"minddata_pipeline_summary.csv", "minddata_pipeline_raw.csv"}
    assert len(trace[t.KERNELS]) == 2


@pytest.mark.parametrize("kind", ["minddata_pipeline_summary_3.csv", "minddata_pipeline_raw_3.csv"])
def test_each_file_of_the_pipeline_can_be_alone(tmp_path: Path, kind: str) -> None:
    write_pipeline(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != kind:
            path.unlink()

    (trace,) = read(tmp_path)

    table = trace[t.DATA_PIPELINE]
    batch = table.select(table.text("name").equals("Batch"))
    assert batch.ints("workers").tolist() == [4]
    assert batch.floats("queue_average").tolist() == [1.5]
    assert trace.meta.rank == 3


def test_databases_of_both_frameworks_count_as_torch_npu(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    for name in ("ascend_pytorch_profiler_3.db", "ascend_mindspore_profiler_3.db"):
        (folder / name).write_bytes(b"SQLite format 3\0damaged")

    units, _ = find_units(tmp_path)

    assert {unit.parser for unit in units} == {"ascend_pt"}


def test_raw_data_only_name_the_step_of_mindspore(tmp_path: Path) -> None:
    (tmp_path / "rank-0_20260101_ascend_ms" / "PROF_000001_20260101000000000_ABCDEF" / "host").mkdir(parents=True)
    (tmp_path / "rank-0_20260101_ascend_ms" / "profiler_info_0.json").write_text(
        json.dumps({"experimental_config": {}, "config": {}})
    )
    with pytest.raises(InputError) as refused:
        find_units(tmp_path)
    assert "mindspore.profiler" in str(refused.value)


def test_a_profile_of_torch_npu_is_left_to_its_reader(tmp_path: Path) -> None:
    profile(tmp_path, name="host_99_20260101000000000_ascend_pt")

    units, _ = find_units(tmp_path)

    assert [unit.parser for unit in units] == ["ascend_pt"]


def test_a_damaged_summary_is_named_and_the_next_one_read(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    write_pipeline(folder)
    text = (folder / "minddata_pipeline_summary_3.json").read_text()
    (folder / "minddata_pipeline_summary_3.json").write_text(text[:-2])

    (trace,) = read(tmp_path)

    assert any("damaged JSON" in (s.problem or "") for s in trace.meta.sources)
    assert "Batch" in trace[t.DATA_PIPELINE].text("name").to_list()


def test_the_whole_analysis_shows_the_pipeline(tmp_path: Path, command: Callable[..., Said]) -> None:
    write_pipeline(profile(tmp_path / "in"))
    said = command("analyze", tmp_path / "in", "-o", tmp_path / "out", "--format", "json")
    assert said.code == 0, said.err
    (trace,) = read(tmp_path / "in")
    outcome = data_pipeline.run_on_trace(trace)
    assert outcome.status == "done"
    assert [table.name for table in outcome.tables] == ["data-pipeline", "data-stages"]
    note = outcome.tables[0].note
    assert note is not None
    assert note.en == (
        "the queue behind MnistReader is mostly empty: it is slower than what takes its output; "
        "Batch loads its CPUs fully: raise num_parallel_workers; "
        "MnistReader leaves its workers idle: lower num_parallel_workers"
    )
    assert [(metric.name, metric.value) for metric in outcome.metrics] == [("data_batch_ns", 12_500_000.0)]
