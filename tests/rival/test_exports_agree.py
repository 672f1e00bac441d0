"""Section 2.1.2, row 13 and 14, and section 8, 3: one recording says the same in both of its export formats.

The real text and database exports are of different runs; here the same jobs are written in both formats.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from ascend_perf.model.tables import COMM_OPS, COMM_TASKS, COPIES, HOST_EVENTS, HOST_OPS, KERNELS, RUNTIME_CALLS
from ascend_perf.pipeline import Analysis, analyze
from tests.faults.evaluate import ALL_KINDS
from tests.faults.machine import simulate
from tests.faults.writer import write_job
from tests.rival._as_database import as_database
from tests.rival._said import number, rows

FEW = (
    "sync-item", "compile", "gc", "loader-slow", "aicpu-index", "autocast-casts", "tail-blocks", "operand-bound",
    "vector-chain", "late-python", "unaligned", "packets-small", "stage-uneven", "clock-throttled", "fragmentation",
)  # fmt: skip
KINDS = [
    pytest.param(kind.name, marks=() if kind.name in FEW else (pytest.mark.slow,))
    for kind in ALL_KINDS if kind.served is None
]  # fmt: skip


@cache
def _both(name: str, folder: Path) -> tuple[Analysis, Analysis]:
    kind = next(kind for kind in ALL_KINDS if kind.name == name)
    job = kind.make(1)
    for programs in job.programs.values():
        del programs[3:]
    kind.plant(job, 4_000_000, "medium")
    write_job(job, simulate(job), folder / "text")
    for rank in sorted(path for path in (folder / "text").iterdir() if path.name.endswith("_ascend_pt")):
        as_database(rank, folder / "db")
    for path in (folder / "text").iterdir():
        if not path.name.endswith("_ascend_pt"):
            copied = shutil.copytree if path.is_dir() else shutil.copyfile
            copied(path, folder / "db" / path.name)  # logs beside the profiles
    return analyze(folder / "text"), analyze(folder / "db")


@pytest.mark.parametrize("name", KINDS)
def test_both_exports_of_a_job_give_the_same_findings(name: str, tmp_path: Path) -> None:
    """2.1.2, row 13: findings, shares, ranks and verdicts are those of the recording, not of the format."""
    text, database = _both(name, tmp_path)

    assert not text.failed and not database.failed
    assert {trace.meta.settings.generation for trace in database.run.traces} != {None}
    for spec in (KERNELS, COMM_OPS, COMM_TASKS, COPIES, HOST_OPS, RUNTIME_CALLS):
        counts = [[len(trace[spec]) for trace in analysis.run.traces] for analysis in (text, database)]
        assert counts[0] == counts[1], spec.name
    events = [[len(t[HOST_EVENTS]) for t in analysis.run.traces] for analysis in (text, database)]
    assert events[0] == events[1]
    for one, other in zip(text.run.traces, database.run.traces, strict=True):
        for spec, names in (
            (KERNELS, ("start_ns", "dur_ns", "host_op", "launch_start_ns", "block_num", "task_id")),
            (COMM_TASKS, ("start_ns", "dur_ns", "comm_op", "plane", "src", "dst", "size_bytes")),
            (COPIES, ("start_ns", "dur_ns", "size_bytes")),
            (HOST_OPS, ("start_ns", "dur_ns")),
        ):
            for name in names:
                assert one[spec].ints(name).tolist() == other[spec].ints(name).tolist(), (spec.name, name)
        for name in ("op_type", "core", "input_shapes", "input_dtypes", "output_shapes"):
            assert one[KERNELS].text(name).to_list() == other[KERNELS].text(name).to_list(), name
    first = {(f.code, f.subject): f for f in text.findings}
    second = {(f.code, f.subject): f for f in database.findings}
    assert first.keys() == second.keys()
    for key, found in first.items():
        again = second[key]
        assert (found.ranks, found.affected_ranks) == (again.ranks, again.affected_ranks), key
        assert found.severity is again.severity, key
        if found.share_ratio is None:
            assert again.share_ratio is None
        else:
            assert again.share_ratio == pytest.approx(found.share_ratio, rel=0.005, abs=1e-4), key
    said = [
        {(o.analyzer, o.rank, j.code): j.verdict for o in analysis.outcomes for j in o.judged}
        for analysis in (text, database)
    ]
    assert said[0] == said[1]


def test_bandwidth_and_split_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    """2.1.2, row 14: 0.000 GB/s from a database there; and the split of each step."""
    text, database = _both("packets-small", tmp_path)

    for rank in text.run.ranks:
        links = [rows(analysis.outcomes, "comm-transports", rank) for analysis in (text, database)]
        assert links[0] and [row["transport"] for row in links[0]] == [row["transport"] for row in links[1]]
        for one, other in zip(*links, strict=True):
            assert number(one["bytes_per_s"]) > 0
            assert number(other["bytes_per_s"]) == pytest.approx(number(one["bytes_per_s"]))
        bars = [
            {row["component"]: number(row["time_ns"]) for row in rows(analysis.outcomes, "step-bar", rank)}
            for analysis in (text, database)
        ]
        assert bars[1] == pytest.approx(bars[0], abs=1)
