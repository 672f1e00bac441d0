"""Planted faults are found, and healthy jobs are left alone: the quick part of `make eval`."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path

import pytest

from ascend_perf import pipeline
from tests.faults.evaluate import ALL_KINDS, FIRST, build, details, run, run_control
from tests.faults.kinds import CONTROLS, KINDS
from tests.faults.known import KNOWN_FALSE, KNOWN_GAINS, KNOWN_MISSES, KNOWN_NOISE, KNOWN_WEAK
from tests.faults.machine import Recording, Sync, simulate
from tests.faults.planting import Strength
from tests.faults.writer import clip, minus, union, write_job

NAMES = [kind.name for kind in ALL_KINDS]


def kind_of(name: str):  # type: ignore[no-untyped-def]
    return next(kind for kind in ALL_KINDS if kind.name == name)


def assert_false_findings_are_known(name: str, said: tuple[str, ...]) -> None:
    """No false finding, but for the code that `known.py` admits; a kind that is reached must leave that list."""
    assert {text.split()[0] for text in said} == set(KNOWN_FALSE.get(name, ())), said


@pytest.mark.parametrize("name", NAMES)
def test_a_medium_fault_is_found_and_nothing_else_is_said(name: str) -> None:
    score = run(kind_of(name), "medium", 1)
    assert not score.failed
    assert score.is_found, "\n".join(details([score], []))
    assert_false_findings_are_known(name, score.false)
    assert score.names_ranks
    assert score.place is not None and score.place <= FIRST


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_strong_fault_is_found(name: str) -> None:
    score = run(kind_of(name), "strong", 2)
    assert not score.failed
    assert score.is_found, "\n".join(details([score], []))
    assert_false_findings_are_known(name, score.false)


@pytest.mark.parametrize("name", list(CONTROLS))
def test_a_healthy_job_has_no_finding_of_weight(name: str) -> None:
    _, said = run_control(name, 1)
    assert bool(said) == (name in KNOWN_NOISE), said


def test_at_least_forty_kinds_of_different_names() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 40
    assert set(KNOWN_FALSE) == set(KNOWN_MISSES) <= set(NAMES)
    assert set(KNOWN_WEAK) | set(KNOWN_GAINS) <= set(NAMES)
    assert set(KNOWN_NOISE) <= set(CONTROLS)


def test_planted_time_is_near_the_target_where_it_is_time() -> None:
    for kind in KINDS:
        if kind.name in ("sync-item", "gc", "autocast-casts", "late-gc", "loader-slow"):
            _, _, truth = build(kind, "medium", 1)
            assert truth.planted_ns is not None
            assert truth.planted_ns / truth.step_ns == pytest.approx(0.12, rel=0.15)


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        job = CONTROLS["pipeline-2x2"](7)
        write_job(job, simulate(job), tmp_path / name)
    first = sorted(p.relative_to(tmp_path / "first") for p in (tmp_path / "first").rglob("*") if p.is_file())
    assert len(first) == 4 * 11
    for path in first:
        assert (tmp_path / "first" / path).read_bytes() == (tmp_path / "second" / path).read_bytes()


def recordings() -> dict[int, Recording]:
    return simulate(CONTROLS["pipeline-2x2"](3))


def test_the_simulated_device_does_one_thing_at_a_time_per_stream() -> None:
    for recording in recordings().values():
        by_stream: dict[int, list[tuple[int, int]]] = {}
        for task in recording.tasks:
            by_stream.setdefault(task.stream, []).append((task.start, task.start + task.dur))
        for spans in by_stream.values():
            spans.sort()
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_collective_ends_at_one_time_on_all_ranks_and_covers_its_parts() -> None:
    ends: dict[tuple[str, str], set[int]] = {}
    for recording in simulate(CONTROLS["data-parallel-4"](3)).values():
        for call in recording.calls:
            ends.setdefault((call.group.name, call.name), set()).add(call.start + call.dur)
            assert all(call.start <= t.start and t.start + t.dur <= call.start + call.dur for t in call.tasks)
    assert ends and all(len(times) == 1 for times in ends.values())


def test_interval_helpers_against_points() -> None:
    rng = random.Random(4)
    for _ in range(50):
        a = [(s, s + rng.randrange(1, 6)) for s in (rng.randrange(40) for _ in range(6))]
        b = [(s, s + rng.randrange(1, 6)) for s in (rng.randrange(40) for _ in range(6))]
        points_a = {p for s, e in a for p in range(s, e)}
        points_b = {p for s, e in b for p in range(s, e)}
        left = minus(union(a), union(b))
        assert {p for s, e in left for p in range(s, e)} == points_a - points_b
        assert {p for s, e in clip(union(a), 10, 20) for p in range(s, e)} == points_a & set(range(10, 20))


def period_of(recordings: dict[int, Recording]) -> float:
    """Time from step to step on the device, mean over ranks."""
    return statistics.fmean(
        (max(task.start + task.dur for task in one.tasks) - min(task.start for task in one.tasks)) / len(one.steps)
        for one in recordings.values()
    )


@pytest.mark.parametrize("strength", ["medium", pytest.param("strong", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["preprocess-host", "python-before-step", "python-after-step", "late-python"])
def test_reading_the_loss_costs_what_the_job_gains_without_it(name: str, strength: Strength, tmp_path: Path) -> None:
    # The host's own work in these jobs is as long as it is because each step waits for the device before it.
    kind = kind_of(name)
    job, recordings, _ = build(kind, strength, 1)
    write_job(job, recordings, tmp_path)
    without, _, _ = build(kind, strength, 1)
    for steps in without.programs.values():
        steps[:] = [[item for item in step if not isinstance(item, Sync)] for step in steps]

    (told,) = [f for f in pipeline.analyze(pipeline.load(tmp_path)).findings if f.code == "H-05"]

    gained = 1 - period_of(simulate(without)) / period_of(recordings)
    assert gained > 0.05
    assert told.share_ratio == pytest.approx(gained, rel=0.07)
