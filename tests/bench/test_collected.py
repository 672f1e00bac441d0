"""What the recorded processes told, whole or cut short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench.collected import Process, notes_of, processes_of, why_nothing
from ascend_perf.collectors.in_process import Settings

SETTINGS = Settings(folder="")


def told(folder: Path, pid: int, *events: dict[str, object]) -> None:
    lines = [json.dumps({"pid": pid, **event}) for event in events]
    (folder / f"told-{pid}.jsonl").write_text("\n".join(lines) + "\n")


START = {"event": "start", "rank": 1, "step": 5, "device": "cpu", "executable": "/py"}
WRITTEN = {"event": "written", "rank": 1, "steps": 3, "paths": ["trace/a"]}
END = {"event": "end", "rank": 1, "steps": 20, "times": {"before": [1, 2], "recorded": [], "after": [3]}}


def test_processes_are_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    told(tmp_path, 7, {"event": "hello", "rank": 1}, START, WRITTEN, END)
    told(tmp_path, 9, {"event": "hello", "rank": 0}, {**START, "rank": 0})

    first, second = processes_of(tmp_path)

    assert (first.rank, first.pid, first.is_lost, first.steps) == (0, 9, True, None)
    assert (second.rank, second.recorded, second.written, second.is_lost) == (1, 3, ["trace/a"], False)
    assert second.times == {"before": [1, 2], "recorded": [], "after": [3]}
    assert notes_of([first, second]) == [
        "rank 0 ended while it was recorded (killed?): its trace is lost",
        "recording began after step 5 of the program: the report counts steps from there",
    ]


def test_a_program_that_is_recorded_from_its_start_has_no_steps_before(tmp_path: Path) -> None:
    told(tmp_path, 7, {**START, "step": 0}, WRITTEN, END)
    assert notes_of(processes_of(tmp_path)) == []


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "told-7.jsonl").write_text(json.dumps({"pid": 7, **START}) + '\n{"event": "wri')
    (process,) = processes_of(tmp_path)
    assert process.is_lost


def test_a_problem_is_said_once_with_its_hint() -> None:
    process = Process(pid=1, rank=2, problems=[("the disk is full", "free space"), ("the disk is full", "free space")])
    assert notes_of([process]) == ["rank 2: the disk is full (hint: free space)"]
    assert why_nothing([process], SETTINGS, True) == ("the disk is full", "free space")


@pytest.mark.parametrize(
    ("processes", "has_python", "words"),
    [
        ([], False, "no Python process of the command loaded our hook"),
        ([], True, "no process of the command imported torch"),
        ([Process(pid=1, steps=0)], True, "no step was seen"),
        ([Process(pid=1, steps=7), Process(pid=2, steps=0)], True, "7 steps were seen, recording begins after 5"),
        ([Process(pid=1, steps=7, is_wanted=False), Process(pid=2, steps=0)], True, "none of the ranks"),
        ([Process(pid=1, starts=1)], True, "was killed while it was recorded"),
    ],
)
def test_why_there_is_nothing(processes: list[Process], has_python: bool, words: str) -> None:
    assert words in why_nothing(processes, SETTINGS, has_python)[0]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_whatever_lies_in_a_file_is_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("told")
    (folder / "told-1.jsonl").write_bytes(b"\n".join(lines))
    assert processes_of(folder) == []


@pytest.mark.parametrize(
    ("devices", "second", "is_shared"),
    [
        (("npu:3", "npu:3"), (15, 25), True), (("npu:3", "npu:3"), (20, 25), False),  # one after the other
        (("npu:3", "npu:4"), (15, 25), False), (("npu", "npu"), (15, 25), False),  # not known which
        (("cpu", "cpu"), (15, 25), False), (("npu:3", "npu:3"), (15, None), True),  # never ended
    ],
)
def test_ranks_that_record_one_npu_at_the_same_time_are_named(
    devices: tuple[str, str], second: tuple[int, int | None], is_shared: bool
) -> None:
    begin, end = second
    processes = [
        Process(pid=1, rank=0, device=devices[0], phases=[(10, "profiled"), (20, "after")]),
        Process(pid=2, rank=1, device=devices[1],
                phases=[(begin, "profiled"), *([] if end is None else [(end, "after")])]),
    ]  # fmt: skip
    named = [note for note in notes_of(processes) if "at the same time" in note]
    assert len(named) == is_shared
    assert all(note.startswith("npu:3 was recorded by two ranks at the same time (0, 1)") for note in named)
