"""What must hold of any profile: more of the same steps changes nothing, a missing file costs only what it holds."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from ascend_perf.pipeline import Analysis, analyze
from tests.faults import model
from tests.faults import plants_host as host
from tests.faults import plants_kernels as kernels
from tests.faults import plants_ranks as ranks
from tests.faults.evaluate import ALL_KINDS
from tests.faults.machine import Job, Recording, simulate
from tests.faults.planting import added, vector_of
from tests.faults.repeat import repeated
from tests.faults.writer import write_job

TIMES = 20


def _shares(analysis: Analysis) -> dict[tuple[str, str], float | None]:
    return {(f.code, f.subject): f.share_ratio for f in analysis.findings}


@pytest.mark.parametrize(
    "name",
    [
        "sync-item",
        "autocast-casts",
        "loader-slow",
        pytest.param("vector-chain", marks=pytest.mark.slow),
        pytest.param("late-gc", marks=pytest.mark.slow),
        pytest.param("stage-uneven", marks=pytest.mark.slow),
        pytest.param("packets-small", marks=pytest.mark.slow),
    ],
)
def test_steps_repeated_twenty_times_give_the_same_findings(name: str, tmp_path: Path) -> None:
    kind = next(kind for kind in ALL_KINDS if kind.name == name)
    job = kind.make(1)
    for programs in job.programs.values():
        del programs[2:]
    kind.plant(job, 6_000_000, "medium")
    recordings = simulate(job)
    for place, times in (("once", 1), ("often", TIMES if job.world == 1 else 5)):
        write_job(job, {rank: repeated(r, times) for rank, r in recordings.items()}, tmp_path / place)

    once, often = analyze(tmp_path / "once"), analyze(tmp_path / "often")

    assert not once.failed and not often.failed
    assert _shares(once).keys() == _shares(often).keys()
    assert {f.code for f in once.findings} & kind.codes
    for key, share in _shares(once).items():
        assert _shares(often)[key] == pytest.approx(share, rel=0.01, abs=1e-4), key
    ranks_once = {(f.code, f.subject): (f.ranks, f.affected_ranks) for f in once.findings}
    assert ranks_once == {(f.code, f.subject): (f.ranks, f.affected_ranks) for f in often.findings}
    for first, second in zip(once.findings, often.findings, strict=True):
        assert _times(first.title.en) == _times(second.title.en)


def _times(title: str) -> list[str]:
    """The times and shares that a title states, to two digits."""
    return [f"{float(number):.2g} {unit}" for number, unit in re.findall(r"([\d.]+) (ms|us|%)", title)]


@cache
def _troubled() -> tuple[Job, dict[int, Recording]]:
    """Two ranks with a fault for each of the files."""
    job = model.data_parallel(5, ranks=2, steps=3, layers=2)
    target = 3_000_000
    host.compiling(job, target, "medium")
    host.collecting(job, 2 * target, "medium", (1,))
    host.fragmented(job, target, "medium")
    host.leaking(job, target, "medium")
    added(lambda dur: (vector_of("Cast", dur),), "aten::to")(job, target, "medium")
    kernels.on_ai_cpu("IndexPutV2", "INT64")(job, target, "medium")
    kernels.tail_blocks(job, target, "medium")
    ranks.fixed_algorithm(job, target, "medium")
    ranks.unaligned(job, 2 * target, "medium")
    return job, simulate(job)


FILES = (
    "ASCEND_PROFILER_OUTPUT/kernel_details.csv",
    "ASCEND_PROFILER_OUTPUT/trace_view.json",
    "ASCEND_PROFILER_OUTPUT/step_trace_time.csv",
    "ASCEND_PROFILER_OUTPUT/communication.json",
    "ASCEND_PROFILER_OUTPUT/communication_matrix.json",
    "ASCEND_PROFILER_OUTPUT/op_statistic.csv",
    "ASCEND_PROFILER_OUTPUT/api_statistic.csv",
    "ASCEND_PROFILER_OUTPUT/memory_record.csv",
    "ASCEND_PROFILER_OUTPUT/operator_memory.csv",
    "profiler_info_*.json",
    "profiler_metadata.json",
)

MAY_VANISH: dict[str, frozenset[str]] = {
    "kernel_details.csv": frozenset(
        [
            "C-01",
            "C-02",
            "C-03",
            "C-04",
            "C-05",
            "C-06",
            "C-07",
            "C-08",
            "C-09",
            "C-10",
            "C-11",
            "C-12",
            "C-13",
            "M-01",
            "M-02",
        ]
    ),
    "trace_view.json": frozenset(
        [
            "H-01",
            "H-02",
            "H-03",
            "H-05",
            "H-06",
            "H-07",
            "D-01",
            "K-04",
            "N-03",
            "N-07",
            "N-12",
            "P-01",
            "P-02",
            "C-14",
            "C-06",
            "D-02",
        ]
    ),
    "communication.json": frozenset({"N-02", "N-04"}),
    "communication_matrix.json": frozenset({"N-06"}),
    "memory_record.csv": frozenset({"K-01", "K-02", "K-05", "K-07"}),
    "operator_memory.csv": frozenset({"K-05"}),
    "profiler_metadata.json": frozenset({"N-08", "H-04", "H-09", "N-09", "N-10", "E-03"}),
}
"""Rows that rest on a file: only these may go when it is not there."""

MAY_APPEAR: dict[str, frozenset[str]] = {
    # Without the metadata the group has no name: the exposed time is told as such.
    "profiler_metadata.json": frozenset({"N-01"}),
    # Without the cause of idle time the idle time itself is told, and who waits for whom from durations alone.
    "trace_view.json": frozenset({"H-01", "N-05", "N-01", "N-10"}),
    "kernel_details.csv": frozenset({"N-05", "N-01", "N-10", "H-01"}),
}


@cache
def _with_all(folder: Path) -> Analysis:
    job, recordings = _troubled()
    write_job(job, recordings, folder)
    return analyze(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return _with_all(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("pattern", FILES)
def test_without_a_file_only_what_it_supports_changes_and_the_report_says_so(
    pattern: str, tmp_path: Path, whole: Analysis
) -> None:
    job, recordings = _troubled()
    write_job(job, recordings, tmp_path)
    gone = sorted(path for rank in tmp_path.iterdir() for path in rank.glob(pattern))
    assert len(gone) == 2
    for path in gone:
        path.unlink()
    name = pattern.rsplit("/", 1)[-1]

    analysis = analyze(tmp_path)

    assert not analysis.failed
    before, after = {f.code for f in whole.findings}, {f.code for f in analysis.findings}
    assert before - after <= MAY_VANISH.get(name, frozenset()), "a finding went that does not rest on the file"
    assert after - before <= MAY_APPEAR.get(name, frozenset()), "a finding appeared"
    verdicts: dict[str, set[str]] = {}
    for outcome in analysis.outcomes:
        for judged in outcome.judged:
            verdicts.setdefault(judged.code, set()).add(judged.verdict)
    no_data = {o.analyzer for o in analysis.outcomes if o.status == "no_data" and o.reason is not None}
    owners = {f.code: f.analyzer for f in whole.findings}
    for code in before - after:
        said = verdicts.get(code, set())
        assert "not_judged" in said or (not said and owners[code] in no_data), f"{code} is called {said or 'nothing'}"
