"""Faults planted into recorded jobs: the editor keeps files consistent, and the analysis finds what was planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.intervals import EMPTY
from ascend_perf.model.finding import Claim, Evidence, Finding, Words, severity_of
from tests.faults import real_plants as plants
from tests.faults.known import REAL_FALSE, REAL_GAINS, REAL_MISSES
from tests.faults.planting import rows
from tests.faults.real import (
    FIRST,
    LEVEL1,
    LEVEL2,
    QWEN,
    REAL_KINDS,
    RealKind,
    judge,
    open_profile,
    plant,
    run,
    step_ns,
)
from tests.faults.real_check import consistent
from tests.faults.real_derive import minus, total, union
from tests.faults.real_page import planted_into_real, real_details, real_summary, real_table
from tests.faults.real_text import OUTPUT, Csv, Cut, RealProfile, TimeMap, to_ns, to_us

QUICK = ("loader-slow", "sync-item", "compile", "casts", "products-stalled", "late-peer", "link-slow", "stage-uneven")
NAMES = [kind.name for kind in REAL_KINDS]


def kind_of(name: str) -> RealKind:
    return next(kind for kind in REAL_KINDS if kind.name == name)


# The map of time.

CUTS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=6)


@given(CUTS, st.integers(-10, 1010), st.integers(0, 300))
def test_the_map_is_the_sum_of_what_was_inserted_before(cuts: list[tuple[int, int]], start: int, length: int) -> None:
    time = TimeMap([Cut(amount=amount, host=0, device=at) for at, amount in cuts], "device")
    assert time(start) == start + sum(amount for at, amount in cuts if at <= start)
    grown = time.inside(start, start + length)
    assert grown == sum(amount for at, amount in cuts if start < at < start + length)
    # An interval ends where what follows it begins, or before: order is kept.
    assert time(start) + length + grown <= time(start + length)


@given(CUTS)
def test_nothing_old_lies_in_inserted_time(cuts: list[tuple[int, int]]) -> None:
    time = TimeMap([Cut(amount=amount, host=0, device=at) for at, amount in cuts], "device")
    windows = [time.window(number) for number in range(len(cuts))]
    assert [end - start for start, end in windows] == [amount for _, amount in cuts]
    old = {time(t) for t in range(-1, 1002)}
    inserted = {t for start, end in windows for t in range(start, end)}
    assert not old & inserted
    assert old | inserted == set(range(time(-1), time(1001) + 1))


def test_lanes_have_places_of_their_own_and_equal_ends() -> None:
    cuts = [Cut(amount=7, host=10, device=20, lanes={"host:2": 15, "plane:1": 30})]
    at = {lane: TimeMap(cuts, lane) for lane in ("host:1", "host:2", "device", "plane:1", "plane:2")}
    assert {lane: time.window(0)[0] for lane, time in at.items()} == {
        "host:1": 10, "host:2": 15, "device": 20, "plane:1": 30, "plane:2": 20,
    }  # fmt: skip
    assert {time(31) for time in at.values()} == {38}


@given(st.integers(0, 2_000_000_000_000_000_000))
def test_times_of_epoch_size_keep_every_ns(ns: int) -> None:
    assert to_ns(to_us(ns) + "\t") == ns


PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)))


@given(PIECES, PIECES)
def test_unions_and_differences_are_those_of_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def points(pieces: list[tuple[int, int]]) -> set[int]:
        return {t for start, end in pieces for t in range(start, end)}

    pieces, holes = [[(s, s + d) for s, d in part] for part in (first, second)]
    assert points(union(pieces)) == points(pieces)
    assert points(minus(union(pieces), union(holes))) == points(pieces) - points(holes)
    assert total(union(pieces)) == len(points(pieces))


# Judging.


def said(code: str, share: float, subject: str = "", ranks: tuple[int, ...] = ()) -> Finding:
    words = Words(code, code)
    return Finding(
        code=code, analyzer="x", title=words, ranks=ranks, severity=severity_of(share), share_ratio=share, cause=words,
        evidence=(Evidence(name=words, value=1),), remedies=(), subject=subject,
    )  # fmt: skip


def judged(before: list[Finding], after: list[Finding], **changes: Any) -> Any:
    kind = RealKind(name="x", sources=(), plant=lambda *_: 0.0, codes=rows("H-05"), also=rows("H-02"), **changes)
    return judge(kind, LEVEL1, "medium", 100.0, before, 900.0, after, 1000.0)


def test_a_finding_that_appears_is_right() -> None:
    score = judged([said("H-01", 0.2)], [said("H-01", 0.18), said("H-05", 0.1)])
    assert (score.is_found, score.place, score.gain_error, score.false) == (True, 1, 0.0, ())


@pytest.mark.parametrize(("share", "found"), [(0.25, False), (0.27, True), (0.29, True), (0.31, False)])
def test_a_finding_of_the_unedited_profile_has_to_grow_by_the_planted_time(share: float, found: bool) -> None:
    # 0.2 of 900 before; 180 + 100 of 1000 is 0.28.
    assert judged([said("H-05", 0.2)], [said("H-05", share)]).is_found is found


def test_what_was_there_before_is_not_false_and_what_is_new_is() -> None:
    before = [said("H-01", 0.2), said("C-10", 0.01)]
    after = [said("H-01", 0.18), said("H-05", 0.1), said("H-02", 0.1), said("C-10", 0.01), said("N-05", 0.05)]
    score = judged(before, after)
    assert [text.split()[0] for text in score.false] == ["N-05"]
    assert score.right == 2  # the row itself and its consequence


def test_other_findings_that_grow_are_false() -> None:
    score = judged([said("H-01", 0.2)], [said("H-01", 0.24), said("H-05", 0.1)])
    assert [text.split()[0] for text in score.false] == ["H-01"]  # 60 ns of 100


def test_rows_that_share_the_time_count_together_rank_by_rank() -> None:
    def on(code: str, gains: dict[int, float]) -> Finding:
        claims = tuple(Claim(rank=r, where=EMPTY, gain_ns=gain, whole_ns=1000) for r, gain in gains.items())
        return replace(said(code, max(gains.values()) / 1000), claims=claims)

    kind = RealKind(name="x", sources=(), plant=lambda *_: 0.0, codes=rows("H-01 H-03"), is_split=True)
    before = [on("H-01", {0: 100.0, 1: 120.0})]
    # Rank 0 gains 60 + 45, rank 1 95 + nothing: 100 on average.
    after = [on("H-01", {0: 160.0, 1: 215.0}), on("H-03", {0: 45.0})]
    score = judge(kind, LEVEL1, "medium", 100.0, before, 1000.0, after, 1000.0)
    assert score.gain_error == 0.0 and score.is_found


def test_of_two_faults_both_have_to_be_found() -> None:
    both = {"second": rows("C-10")}
    assert not judged([], [said("H-05", 0.05)], **both).is_found
    assert judged([], [said("H-05", 0.05), said("C-10", 0.05)], **both).is_found


def test_the_ranks_have_to_be_named() -> None:
    assert not judged([], [said("H-05", 0.1, ranks=(1,))], ranks=(2,)).names_ranks
    assert judged([], [said("H-05", 0.1, ranks=(1, 2))], ranks=(2,)).names_ranks


def test_what_is_known_names_kinds() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert {*REAL_MISSES, *REAL_FALSE, *REAL_GAINS} <= set(NAMES)
    assert set(QUICK) <= set(NAMES)


# The editor, on recorded jobs.

SOURCES = [LEVEL1, LEVEL2, QWEN]


@pytest.mark.parametrize("source", SOURCES)
def test_recorded_jobs_hold_all_invariants_and_keep_them_when_written_again(
    traces: Path, tmp_path: Path, source: str
) -> None:
    assert consistent(traces / source) == []
    RealProfile.read(traces / source).write(tmp_path)
    assert consistent(tmp_path) == []


TOLERANCES = {
    "kernel_details.csv": 0.25, "step_trace_time.csv": 0.01, "op_statistic.csv": 0.008, "api_statistic.csv": 0.002,
    "operator_details.csv": 0.001,
}  # fmt: skip
"""µs; waits of kernels are rounded to the producer's clock, sums of op_statistic to the producer's own durations."""


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_derived_anew_equals_what_the_producer_wrote(traces: Path, tmp_path: Path, source: str) -> None:
    RealProfile.read(traces / source).write(tmp_path)
    compared = 0
    for path in sorted((traces / source).glob(f"*_ascend_pt/{OUTPUT}/*.csv")):
        ours = Csv.read(tmp_path / path.relative_to(traces / source)).rows
        theirs = Csv.read(path).rows
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs, strict=True):
            for key, cell in other.items():
                if own[key] == cell:
                    continue
                assert abs(float(own[key]) - float(cell)) <= TOLERANCES[path.name], (path.name, key, own[key], cell)
                compared += 1
    for path in sorted((traces / source).glob(f"*_ascend_pt/{OUTPUT}/communication*.json")):
        ours = json.loads((tmp_path / path.relative_to(traces / source)).read_text())
        assert list(differing(json.loads(path.read_text()), ours)) == []
    assert compared or source == QWEN


def differing(theirs: Any, ours: Any) -> list[tuple[Any, Any]]:
    if isinstance(theirs, dict):
        assert list(theirs) == list(ours)
        return [pair for key in theirs for pair in differing(theirs[key], ours[key])]
    if isinstance(theirs, list):
        return [pair for pair in zip(theirs, ours, strict=True) for pair in differing(*pair)]
    if isinstance(theirs, str):
        return [(theirs, ours)] if theirs != ours else []
    # Start stamps are a quarter of a µs coarse, as is their rounding.
    return [(theirs, ours)] if abs(theirs - ours) > (0.25 if theirs > 1e12 else 1e-9) else []


Damage = Callable[[Path], None]


def edited(name: str, change: Callable[[list[dict[str, str]]], object]) -> Damage:
    def damage(output: Path) -> None:
        table = Csv.read(output / name)
        change(table.rows)
        (output / name).write_text(table.text(), newline="")

    return damage


def event_edited(change: Callable[[list[dict[str, Any]]], None]) -> Damage:
    def damage(output: Path) -> None:
        events = json.loads((output / "trace_view.json").read_text())
        change(events)
        (output / "trace_view.json").write_text(json.dumps(events))

    return damage


def communication_edited(output: Path) -> None:
    told = json.loads((output / "communication.json").read_text())
    op = next(iter(next(iter(told.values()))["collective"].values()))
    op["Communication Time Info"]["Elapse Time(ms)"] += 1
    (output / "communication.json").write_text(json.dumps(told))


def longer(events: list[dict[str, Any]], name: str, us: int) -> None:
    next(e for e in events if e["ph"] == "X" and e["name"].startswith(name))["dur"] += us


def later(cell: str) -> str:
    return to_us(to_ns(cell) + 9000)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a longer kernel": (edited("kernel_details.csv", lambda r: r[2].update({"Duration(us)": "999.5"})), "op_statistic"),
    "a later kernel": (
        edited("kernel_details.csv", lambda r: r[2].update({"Start Time(us)": later(r[2]["Start Time(us)"])})),
        "trace_view",
    ),
    "a busier pipe": (edited("kernel_details.csv", lambda r: r[2].update({"aic_mac_ratio": "0.999"})), "aic_mac"),
    "a used cube": (edited("kernel_details.csv", lambda r: r[2].update({"cube_utilization(%)": "99"})), "cube_util"),
    "a lost kernel": (edited("kernel_details.csv", lambda r: r.pop(5)), "op_statistic"),
    "more free time": (edited("step_trace_time.csv", lambda r: r[0].update({"Free": "1"})), "step_trace_time"),
    "a call less": (edited("api_statistic.csv", lambda r: r[3].update({"Count": "99"})), "api_statistic"),
    "a longer operator": (
        edited("operator_details.csv", lambda r: r[3].update({"Host Total Duration(us)": "1"})), "operator_details",
    ),
    "own time": (
        edited("operator_details.csv", lambda r: r[3].update({"Host Self Duration(us)": "9999"})), "own times",
    ),
    "a late release": (
        edited("operator_memory.csv", lambda r: r[2].update({"Duration(us)": "1.000"})), "operator_memory",
    ),
    "a longer collective": (communication_edited, "communication.json"),
    "an operator out of its parent": (event_edited(lambda e: longer(e, "detach_", 5000)), "reaches out"),
    "kernels at once": (event_edited(lambda e: longer(e, "trans_TransData", 500)), "before"),
    "a lost transfer": (
        event_edited(lambda e: e.remove(next(x for x in e if x["name"] == "SDMA"))), "is on no stream",
    ),
    "a flow to nothing": (
        event_edited(lambda e: next(x for x in e if x["ph"] == "f" and x["cat"] == "HostToDevice").update(ts="1.000")),
        "ends at no slice",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    profile = RealProfile.read(traces / LEVEL1)
    profile.ranks = profile.ranks[:1]
    profile.write(folder)
    return folder


@pytest.mark.parametrize("name", list(DAMAGES))
def test_contradictions_between_files_are_seen(written: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    (output,) = written.glob(f"*/{OUTPUT}")
    before = {path: path.read_bytes() for path in output.iterdir()}
    try:
        damage(output)
        assert any(expected in problem for problem in consistent(written)), name
    finally:
        for path, content in before.items():
            path.write_bytes(content)


# Planting.


def check(name: str, traces: Path, tmp_path: Path) -> None:
    """A medium fault: consistent files, a step that is longer by as much, and found."""
    kind = kind_of(name)
    source = kind.sources[0]
    before = step_ns(open_profile(traces, source))
    planted, after = plant(kind, source, "medium", traces, tmp_path)
    if not source.startswith("kineto"):
        assert consistent(tmp_path) == []
    if name not in ("loader-slow", "python-before-step", "loader-slow+late-peer"):  # before the device's step
        assert after - before == pytest.approx(planted, rel=0.02, abs=2000)
    score = run(kind, source, "medium", traces)
    assert not score.failed
    assert score.is_found, "\n".join(real_details([score]))
    known = {REAL_FALSE[name].split()[0]} if name in REAL_FALSE else set()
    assert {text.split()[0] for text in score.false} <= known
    assert score.names_ranks
    if kind.codes:
        assert score.place is not None and score.place <= FIRST
        assert name in REAL_GAINS or (score.gain_error is not None and abs(score.gain_error) <= 0.2)


@pytest.mark.parametrize("name", QUICK)
def test_a_medium_fault_in_a_recorded_job_is_found(traces: Path, tmp_path: Path, name: str) -> None:
    check(name, traces, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_other_medium_faults_in_recorded_jobs_are_found(traces: Path, tmp_path: Path, name: str) -> None:
    check(name, traces, tmp_path)


def test_all_ranks_wait_for_the_late_peer(traces: Path) -> None:
    profile = RealProfile.read(traces / LEVEL1)
    assert plants.late_peer(profile, 10_000_000) == 10_000_000
    for rank in profile.ranks:
        begin = rank.calls()[1]["ns"]
        waits = {e["args"]["dst rank"]: e["dur"] for e in rank.slices("HCCL")
                 if e["name"] == "Notify_Wait" and begin < e["ns"] < begin + 5_000_000}  # fmt: skip
        assert max(waits, key=lambda peer: waits[peer]) == plants.LATE
        assert waits[plants.LATE] > 10_000
        assert rank.calls()[1]["dur"] == pytest.approx(10_000, rel=0.35)  # and the 2.3 ms that it took anyhow


def test_the_table_and_the_section_say_what_was_judged() -> None:
    kind = kind_of("link-slow")
    right = judge(kind, LEVEL1, "medium", 100.0, [], 900.0, [said("N-06", 0.1, ranks=(0, 4))], 1000.0)
    wrong = judge(kind, LEVEL1, "weak", 100.0, [], 900.0, [said("C-10", 0.1)], 1000.0)
    (line,) = real_table([right, wrong], is_markdown=True)[2:]
    assert line.split(" | ")[2:] == ["N-06", "0%", "100%", "—", "50%", "50%", "+0%", "100% |"]
    reached = {name: value for name, _, value in real_summary([right, wrong])}
    assert (reached["recall at weak"], reached["recall at medium and strong"]) == ("0.0%", "100.0%")
    section = planted_into_real([right, wrong])
    assert "MISS link-slow/weak, AlexNet (L1): expected N-06" in section
    assert "FALSE link-slow/weak, AlexNet (L1): C-10 high C-10" in section
