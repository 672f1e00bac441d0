"""Ranks analyzed where they are read: the same report as from whole traces, whatever number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_perf import by_rank, pipeline
from ascend_perf.errors import InputError, UsageError
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COMM_OPS, COPIES, HOST_OPS, KERNELS, OVERLAP, spec_named
from ascend_perf.model.trace import Group, Meta, Trace
from ascend_perf.parsers import _parallel, discover
from ascend_perf.parsers._source import Unit
from ascend_perf.pipeline import Analysis
from ascend_perf.plugins import load_analyzers
from benchmarks.make_job import make

MakeTrace = Callable[..., Trace]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Folder of a job of four ranks, and the rank that computes longer than its equal."""
    folder = tmp_path_factory.mktemp("job") / "in"
    made = make(folder, ranks=4, total_bytes=5_000_000)
    return folder, made.late


def files(analysis: Analysis, folder: Path) -> dict[str, bytes]:
    pipeline.write(analysis, {name: folder / f"report.{name}" for name in pipeline.FORMATS})
    return {name: (folder / f"report.{name}").read_bytes() for name in pipeline.FORMATS}


def test_one_process_and_two_and_whole_traces_give_one_report(job: tuple[Path, int], tmp_path: Path) -> None:
    folder, late = job
    whole = pipeline.analyze(pipeline.load(folder, jobs=1))
    one = pipeline.analyze_paths([folder], jobs=1)
    two = pipeline.analyze_paths([folder], jobs=2)

    assert not whole.failed
    assert one.outcomes == whole.outcomes
    assert [f.ranks for f in whole.findings if f.code == "N-05" and f.subject == f"rank {late}"] == [(late,)]
    written = files(whole, tmp_path / "whole")
    assert files(one, tmp_path / "one") == written
    assert files(two, tmp_path / "two") == written


def test_the_command_gives_one_report_for_any_number_of_processes(
    job: tuple[Path, int], tmp_path: Path, command: Callable[..., object]
) -> None:
    for jobs in (1, 2):
        command("analyze", job[0], "-o", tmp_path / str(jobs), "--jobs", jobs, "--format", "json")
    assert (tmp_path / "1" / "report.json").read_bytes() == (tmp_path / "2" / "report.json").read_bytes()


def test_ranks_and_steps_are_chosen_as_from_whole_traces(job: tuple[Path, int]) -> None:
    folder, _ = job
    steps = pipeline.load(folder).steps["step_id"].unique().tolist()
    chosen = [steps[1], steps[2]]

    ours = pipeline.analyze_paths([folder], ranks=[3, 1], steps=chosen, jobs=1)
    whole = pipeline.analyze(pipeline.select(pipeline.load(folder), ranks=[3, 1], steps=chosen))

    assert ours.run.ranks == (1, 3)
    assert ours.outcomes == whole.outcomes
    with pytest.raises(UsageError, match="rank 9 is not in the data; it has 0, 1, 2, 3"):
        pipeline.analyze_paths([folder], ranks=[9], jobs=1)
    with pytest.raises(UsageError, match=f"step 1 is not in the data; it has {steps[0]}, "):
        pipeline.analyze_paths([folder], steps=[1], jobs=1)


def test_what_job_analyzers_do_not_read_does_not_come_back(job: tuple[Path, int]) -> None:
    whole = pipeline.load(job[0], jobs=1)
    light = pipeline.analyze_paths([job[0]], jobs=2).run
    for trace, full in zip(light.traces, whole.traces, strict=True):
        assert {n: len(t) for n, t in trace.tables.items()} == {n: len(t) for n, t in full.tables.items()}
        assert trace.meta == full.meta
        assert trace[COMM_OPS].ints("size_bytes").tolist() == full[COMM_OPS].ints("size_bytes").tolist()
        with pytest.raises(LookupError, match=r"kernels\.output_shapes was dropped"):
            trace[KERNELS].text("output_shapes")
        with pytest.raises(LookupError, match=r"overlap\.kind was dropped"):
            trace[OVERLAP].text("kind")


def test_every_job_analyzer_of_ours_says_what_it_reads_and_reads_what_it_needs() -> None:
    parts = [part for part in load_analyzers().parts.values() if part.scope == "job"]
    assert {"ranks", "collectives", "links", "experts"} <= {part.name for part in parts}
    for part in parts:
        assert part.reads is not None, part.name
        for name, columns in part.reads.items():
            for column in columns:
                spec_named(name).column(column)
        assert {spec.name for spec in part.needs} <= part.reads.keys(), part.name


def test_one_job_analyzer_that_does_not_say_keeps_all_whole(make_trace: MakeTrace) -> None:
    parts = list(load_analyzers().parts.values())
    silent = replace(next(part for part in parts if part.name == "links"), reads=None)
    trace = make_trace(host_ops=[{"start_ns": 0, "dur_ns": 5, "name": "a", "stack": "x"}])
    assert by_rank.reads_of([*parts, silent]) is None
    assert by_rank.cut(trace, None) is trace
    reads = by_rank.reads_of(parts)
    assert reads is not None
    assert {"op_type", "input_shapes", "start_ns"} <= reads["kernels"]


def test_a_trace_without_steps_keeps_the_times_that_its_one_step_is_found_from(make_trace: MakeTrace) -> None:
    host = [{"start_ns": 10, "dur_ns": 5, "name": "a"}, {"start_ns": 40, "dur_ns": 60, "name": "b"}]
    step = [{"step_id": 1, "start_ns": 0, "dur_ns": 200}]

    without = by_rank.cut(make_trace(host_ops=host), {})
    assert without[HOST_OPS].ends_ns().tolist() == [15, 100]
    with pytest.raises(LookupError):
        without[HOST_OPS].text("name")
    with pytest.raises(LookupError):
        by_rank.cut(make_trace(host_ops=host, steps=step), {})[HOST_OPS].ends_ns()


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def three_ranks(folder: Path) -> Path:
    for rank in range(3):
        events = [
            {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": 20 * n, "dur": 5 + rank,
             "args": {"device": 0, "stream": 7}}
            for n in range(4)
        ]  # fmt: skip
        path = folder / str(rank) / "t.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 3}}))
    return folder


def test_sizes_that_are_damage_are_unknown_whatever_reader_took_them(make_trace: MakeTrace) -> None:
    sizes = (-1, 0, 1 << 44, (1 << 44) + 1)
    rows = [{"start_ns": n, "dur_ns": 1, "kind": "H2D", "size_bytes": size} for n, size in enumerate(sizes)]
    trace = make_trace(meta=Meta(rank=0, label="x"), copies=rows, kernels=[{"start_ns": 0, "dur_ns": 1, "name": "a"}])
    unit = Unit(parser="kineto", label="x", files=(Path("x"),))

    made = by_rank.traces_of(unit, [trace], "x")

    assert not isinstance(made, InputError)
    assert made[0][COPIES].ints("size_bytes").tolist() == [NULL, 0, 1 << 44, NULL]
    assert made[0].meta.warnings == ("2 sizes below zero or over 16 TiB are unknown",)
    assert len(made[0][KERNELS]) == 1


def test_a_rank_whose_process_is_killed_is_listed_and_the_others_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = three_ranks(tmp_path)
    monkeypatch.setattr(by_rank, "_WORK", "tests._rank_work:killed")

    run = pipeline.analyze_paths([folder], jobs=2).run

    assert run.ranks == (0, 2)
    (lost,) = run.skipped
    assert (lost.path, lost.format) == ("1/t.json", "kineto")
    assert lost.problem == "the process that read it was killed (signal 9): memory ran out?"


def test_a_rank_whose_process_is_killed_once_is_read_when_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = three_ranks(tmp_path)
    monkeypatch.setattr(by_rank, "_WORK", "tests._rank_work:killed_once")

    analysis = pipeline.analyze_paths([folder], jobs=2)

    assert (folder / "1" / "died").exists()
    assert analysis.run.skipped == ()
    assert analysis.outcomes == pipeline.analyze_paths([folder], jobs=1).outcomes


def test_where_no_process_can_be_started_the_work_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = three_ranks(tmp_path)
    expected = pipeline.analyze_paths([folder], jobs=1)
    monkeypatch.setattr(_parallel, "_BOOT", "raise SystemExit(1)")
    assert pipeline.analyze_paths([folder], jobs=2).outcomes == expected.outcomes


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory ran out while it was read"),
        (KeyError("ts"), "its reader failed: KeyError: 'ts' (test_by_rank.py:"),
        (InputError("this file is not for you"), "this file is not for you"),
    ],
)
def test_a_reader_that_fails_on_a_rank_costs_that_rank_only(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = three_ranks(tmp_path)
    known = discover.parsers()
    kineto = known["kineto"]

    def parse(unit: Unit) -> list[Trace]:
        if unit.label.startswith("1/"):
            raise error
        return kineto.parse(unit)

    monkeypatch.setattr(discover, "parsers", lambda: {**known, "kineto": replace(kineto, parse=parse)})

    run = pipeline.analyze_paths([folder], jobs=1).run

    assert run.ranks == (0, 2)
    (lost,) = run.skipped
    assert lost.problem is not None and lost.problem.startswith(said)


def test_when_no_rank_can_be_read_the_first_error_is_raised(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}))
    with pytest.raises(InputError, match=r"a\.json"):
        pipeline.analyze_paths([tmp_path], jobs=1)


def test_a_training_log_that_names_a_rank_is_put_into_its_profile(tmp_path: Path) -> None:
    folder = three_ranks(tmp_path)
    rows = [{"step": step, "loss": 3 - step / 10, "rank": 1} for step in range(1, 6)]
    (folder / "losses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    ours = pipeline.analyze_paths([folder], jobs=1)
    whole = pipeline.analyze(pipeline.load(folder, jobs=1))

    assert ours.run.ranks == whole.run.ranks
    assert [sorted(t.tables) for t in ours.run.traces] == [sorted(t.tables) for t in whole.run.traces]
    assert ours.outcomes == whole.outcomes


def test_equal_groups_of_ranks_are_one_object() -> None:
    traces = [
        Trace(meta=Meta(rank=rank, groups=(Group(name="world", ranks=tuple(range(300, 400))),))) for rank in (0, 1)
    ]
    first, second = by_rank.shared_groups(traces)
    assert [first.meta, second.meta] == [trace.meta for trace in traces]
    assert first.meta.groups[0] is second.meta.groups[0]
