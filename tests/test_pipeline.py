"""From paths to findings: several inputs, selection, merging and ranking, the public API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ascend_perf as ap
from ascend_perf import pipeline
from ascend_perf.errors import InputError, UsageError
from ascend_perf.manifest import write_manifest
from ascend_perf.model.finding import Metric
from ascend_perf.model.run import Manifest


def trace_file(path: Path, rank: int | None, kernels: int = 3) -> Path:
    events: list[dict[str, object]] = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 1,
            "ts": 100 * n,
            "dur": 100,
        }
        for n in (1, 2)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": 100 + 20 * n, "dur": 5,
         "args": {"device": 0, "stream": 7}}
        for n in range(kernels)
    ]  # fmt: skip
    facts = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, **facts}))
    return path


def test_ranks_come_from_the_files_not_from_their_order(tmp_path: Path) -> None:
    for name, rank in (("a", 5), ("b", 2), ("c", None)):
        trace_file(tmp_path / name / "t.json", rank)
    run = ap.load(tmp_path)
    assert run.ranks == (2, 5, None)
    assert [t.meta.label for t in run.traces] == ["b/t.json", "a/t.json", "c/t.json"]


def test_several_paths_are_one_run(tmp_path: Path) -> None:
    run = ap.load([trace_file(tmp_path / "x" / "t.json", 1), trace_file(tmp_path / "y" / "t.json", 0)])
    assert run.ranks == (0, 1)


def test_tables_of_all_ranks_are_one_data_frame(tmp_path: Path) -> None:
    trace_file(tmp_path / "0.json", 0, kernels=2)
    trace_file(tmp_path / "1.json", 1, kernels=4)
    frame = ap.load(tmp_path).kernels
    assert frame["rank"].tolist() == [0, 0, 1, 1, 1, 1]
    assert frame["dur_ns"].tolist() == [5000] * 6
    assert ap.load(tmp_path).steps["step_id"].tolist() == [1, 2, 1, 2]


def test_select_ranks_and_steps(tmp_path: Path) -> None:
    trace_file(tmp_path / "0.json", 0)
    trace_file(tmp_path / "1.json", 1, kernels=8)
    run = pipeline.select(ap.load(tmp_path), ranks=[1], steps=[2])
    assert run.ranks == (1,)
    assert run.steps["step_id"].tolist() == [2]
    assert len(run.kernels) == 3  # k5, k6, k7 start at 200, 220, 240
    with pytest.raises(UsageError, match="it has 0, 1"):
        pipeline.select(ap.load(tmp_path), ranks=[9])
    with pytest.raises(UsageError, match="it has 1, 2"):
        pipeline.select(ap.load(tmp_path), steps=[9])


def test_result_tables_are_data_frames(tmp_path: Path) -> None:
    analysis = ap.analyze(trace_file(tmp_path / "t.json", 0))
    steps = analysis.table("steps")
    assert steps["step_id"].tolist() == [1, 2]
    assert steps["computing_us"].tolist() == [15, 0]  # three kernels of 5 us in the first step
    with pytest.raises(KeyError, match="no result table 'nothing'"):
        analysis.table("nothing")


def test_missing_repeated_and_unknown_ranks_are_said(tmp_path: Path) -> None:
    for name, rank in (("a", 0), ("b", 0), ("c", 1), ("d", None)):
        trace_file(tmp_path / f"{name}.json", rank)
    assert pipeline.notices(pipeline.load(tmp_path)) == [
        "rank 0 was read 2 times (a.json, b.json); comparisons of ranks use the first",
        "1 of 4 traces do not tell their rank and are not compared",
        "2 of 8 ranks were read; not there: ranks 2-7",
    ]


def test_outcomes_tell_their_trace_when_ranks_do_not(tmp_path: Path) -> None:
    for name in "ab":
        trace_file(tmp_path / f"{name}.json", None)
    outcomes = pipeline.analyze(tmp_path).outcomes
    assert [o.trace_index for o in outcomes if o.analyzer == "step-breakdown"] == [0, 1]
    assert {o.trace_index for o in outcomes if o.scope == "job"} == {None}


def test_a_file_linked_from_elsewhere_is_read_once_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    trace_file(tmp_path / "job" / "t.json", 0)
    (tmp_path / "job" / "again.json").symlink_to("t.json")
    (tmp_path / "job" / "loop").symlink_to("..")
    (tmp_path / "job" / "nowhere.json").symlink_to("missing")
    assert pipeline.load(tmp_path).ranks == (0,)


def test_files_that_cannot_be_read_are_listed_beside_those_that_can(tmp_path: Path) -> None:
    trace_file(tmp_path / "ok.json", 0)
    (tmp_path / "empty.json").touch()
    (tmp_path / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\x00nonsense" * 9)
    (tmp_path / "other.json").write_text('{"loss": [1, 2]}')
    (tmp_path / "nothing.json").write_text('{"traceEvents": []}')
    skipped = {source.path: source.problem for source in pipeline.load(tmp_path).skipped}
    assert skipped == {
        "bad.json.gz": "it is a damaged gzip file",
        "empty.json": "it is empty",
        "nothing.json": "no operator, kernel or runtime event among 0 events",
    }


def test_a_folder_of_damaged_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\x00nonsense" * 9)
    (tmp_path / "empty.json").touch()
    with pytest.raises(InputError, match=r"bad\.json\.gz: it is a damaged gzip file; empty files: empty\.json"):
        pipeline.load(tmp_path)


@pytest.mark.parametrize(("origin", "files", "is_read"), [
    ("simulated", {}, True),  # the modelled clock of a virtual NPU leaves no profile
    ("simulated", {"trace": ("trace/gone.json",)}, False),
    ("measured", {}, False),
])  # fmt: skip
def test_a_run_that_had_no_trace_to_leave_is_read(
    tmp_path: Path, origin: str, files: dict[str, tuple[str, ...]], is_read: bool
) -> None:
    metric = Metric(name="step_time_median", value=8_399_000, unit="ns", better="lower")
    write_manifest(tmp_path, Manifest(
        workload="llm-pretrain", device="npu", created="2026-01-01T00:00:00+00:00", data_origin=origin,
        metrics=(metric,), files=files, notes=("no profile: with --clock modelled",),
        device_facts={"memory_bytes": 7 << 30},
    ))  # fmt: skip
    if not is_read:
        with pytest.raises(InputError, match="no profile in"):
            ap.load(tmp_path)
        return
    run = ap.load(tmp_path)
    assert run.manifest is not None and run.manifest.metrics == (metric,)
    assert [trace.meta.data_origin for trace in run.traces] == ["simulated"]
    assert [trace.meta.device.memory_bytes for trace in run.traces] == [7 << 30]


@pytest.mark.parametrize("timings_ns", [{}, {"measured": (5, 5)}, {"measured": (5, 5), "profiled": (6,)}])
def test_the_loop_of_a_run_waits_behind_each_profiled_step(
    tmp_path: Path, timings_ns: dict[str, tuple[int, ...]]
) -> None:
    write_manifest(tmp_path, Manifest(
        workload="llm-pretrain", device="npu", created="2026-01-01T00:00:00+00:00", data_origin="simulated",
        timings_ns=timings_ns,
    ))  # fmt: skip
    assert [trace.meta.waits_each_step for trace in ap.load(tmp_path).traces] == ["profiled" in timings_ns]
