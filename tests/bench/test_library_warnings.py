"""Warnings that libraries print while a workload runs: which lines are some, what is told, what every program gets."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench import job
from ascend_perf.bench.launch import Ranks, Request, launch
from ascend_perf.bench.library_warnings import (
    MAX_KEPT,
    MAX_LETTERS,
    MAX_PLACE,
    MAX_WARNINGS,
    LibraryWarning,
    library_warnings,
    notes_of,
)
from ascend_perf.manifest import read_manifest
from ascend_perf.reports.phrases import spoken
from tests.bench import _fake

STAMP = "W1130 22:16:28.148679061"
PADDING = (
    f"[{STAMP} NPUCachingAllocator.cpp:168] Warning: The current CANN and Soc versions require processing for 32 "
    "padding size, with memory allocation. (function operator())"
)
OLDER_PADDING = (
    f"[{STAMP} NPUCachingAllocator.cpp:204] Warning: The current CANN and HDK(driver) versions require processing for "
    "32 padding size, with memory allocation. (function operator())"
)
FORMAT = (
    f"[{STAMP} TensorFactories.cpp:406] Warning: Cannot create tensor with internal format while "
    "allow_internal_format=False, tensor will be created with base format. (function operator())"
)
SCALER = f"[{STAMP} Amp.cpp:30] Warning: Non finite check and unscale on NPU device! (function operator())"
FORMAT_IN_PYTHON = (
    "/opt/x/norm.py:155: UserWarning: Cannot create tensor with internal format while allow_internal_format=False, "
    "tensor will be created with base format. (Triggered internally at ../csrc/aten/common/TensorFactories.cpp:406.)"
)
FREED = (
    f"[{STAMP} CPUAllocator.cpp:245] Memory block of unknown size was allocated before the profiling started, profiler "
    "results will not include the deallocation event"
)


@pytest.mark.parametrize(
    ("line", "text", "where"),
    [
        (
            f"[{STAMP} VariableFallbackKernel.cpp:454] Warning: CAUTION: The operator 'aten::x' will fall back to run "
            "on the CPU. (function npu_cpu_fallback)",
            "CAUTION: The operator 'aten::x' will fall back to run on the CPU.", "VariableFallbackKernel.cpp:454",
        ),
        (f"[rank3]:[{STAMP} reducer.cpp:9] Warning: odd strides", "odd strides", "reducer.cpp:9"),
        ("[E1130 01:02:03.4 socket.cpp:1] no such host", "no such host", "socket.cpp:1"),
        ("W0721 14:40:58.569000 3203689 torch/distributed/run.py:852] set a number", "set a number", "run.py:852"),
        ("/opt/python/torch/nn/init.py:24: UserWarning: a no-op", "a no-op", "init.py:24"),
        ("2026-11-30 22:16:28(123)-[WARNING] no kernel data", "no kernel data", ""),
        ("[2026-11-30 22:22:12] [WARNING] [16619] profiler.py: bad schedule", "bad schedule", "profiler.py"),
        ("WARNING:torch.distributed:slow rank", "slow rank", "torch.distributed"),
        ("\x1b[33mWARNING:a:red\x1b]0;title\x07 \x07\u202eend\x1b[0m", "red   end", "a"),
        ("/home/Some Body/x.py:3: UserWarning: odd", "odd", "x.py:3"),
        ("<frozen x>:3: DeprecationWarning: old", "DeprecationWarning: old", "<frozen x>:3"),
        ("WARNING:a:##[error] no", "# #[error] no", "a"),
    ],
)  # fmt: skip
def test_each_form_of_a_warning_is_one(line: str, text: str, where: str) -> None:
    assert library_warnings([line]) == (LibraryWarning(text=text, where=where, count=1),)


@pytest.mark.parametrize(
    "line",
    [
        "", "loss 0.3", "Warning", "[I1130 01:02:03.4 a.cpp:1] told", "  warnings.warn('x')", "step 3: Warning: none",
        "WARNING:root:", "WARNING:root: \x07", f"[{STAMP} a.cpp:1]  ",
        # of torchrun: processes that it ended are no warning of a library
        "W1130 22:45:01.1 7 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7 closing signal 15",
    ],
)  # fmt: skip
def test_other_lines_are_none(line: str) -> None:
    assert library_warnings([line]) == ()


@pytest.mark.parametrize("line", [PADDING, OLDER_PADDING, FORMAT, FORMAT_IN_PYTHON, SCALER, FREED])
def test_what_every_program_gets_is_none_by_its_whole_text(line: str) -> None:
    assert library_warnings([line, f"[rank0]:{line}"]) == ()
    (other,) = library_warnings([line.partition(" (")[0] + " And something else."])
    assert notes_of([other])[0].startswith("a library warned: ")


def test_a_warning_is_told_once_with_its_number_and_without_private_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "mzhang")
    line = f"[{STAMP} a.cpp:1] Warning: mzhang: no file /home/somebody/secret/model.bin (function f)"
    plain = f"/opt/x/b.py:2: FutureWarning: {'long ' * 100}"
    found = library_warnings([line, "loss 1", PADDING, line, plain])

    first, second = notes_of(found)
    assert first == "a library warned: 2 x <user>: no file model.bin (a.cpp:1)"
    assert second == f"a library warned: {('FutureWarning: ' + 'long ' * 100)[:MAX_LETTERS]} ... (b.py:2)"
    assert spoken(first, "zh").startswith("库的告警：2 x ")


@pytest.mark.parametrize(
    ("private", "shown"),
    [
        ("see https://somebody:pw@example.org/x?sig=1 (soon)", "see https://<host> (soon)"),
        ("cannot connect to [node17.example]:29500", "cannot connect to <host>:29500"),
        ("/home/somebody/", "..."),
        ("token=abcd of somebody@example.org", "token=<secret> of <mail>"),
    ],
)
def test_private_data_of_others_is_taken_out(private: str, shown: str) -> None:
    (found,) = library_warnings([f"[{STAMP} somebody@node17:1] Warning: {private}"])
    assert (found.text, found.where) == (shown, "<user>@<host>:1")


def test_endless_lines_and_any_number_of_warnings_are_bounded() -> None:
    long = [" (function " * 50_000, " (Triggered internally at " * 50_000, "a@" * 500_000, "[" * 1_000_000]
    lines = [f"[{STAMP} a.cpp:1] Warning: {text}" for text in long] + [f"<{'a' * 1000}>:1: UserWarning: x"]
    for note in notes_of(library_warnings(lines)):
        assert len(note) < MAX_LETTERS + MAX_PLACE + 40
    many = library_warnings(f"WARNING:a:number {number}" for number in range(3 * MAX_KEPT))
    assert len(many) == MAX_KEPT + 1
    assert notes_of(many)[-1] == f"{3 * MAX_KEPT - MAX_WARNINGS} other warnings of libraries"


def test_no_more_than_a_few_are_told() -> None:
    lines = [f"[{STAMP} a.cpp:{number}] Warning: one of many" for number in range(MAX_WARNINGS + 5)]
    notes = notes_of(library_warnings(lines))
    assert len(notes) == MAX_WARNINGS + 1
    assert (notes[-1], spoken(notes[-1], "zh")) == ("5 other warnings of libraries", "另有 5 条库的告警")


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80), max_size=8))
def test_any_output_can_be_read(lines: list[str]) -> None:
    found = library_warnings(lines)
    assert sum(one.count for one in found) <= len(lines)
    assert all(len(one.text) <= MAX_LETTERS + 4 for one in found)


def test_a_line_without_an_end_is_read_in_pieces_and_the_last_lines_are_kept() -> None:
    tail = deque[str](maxlen=2)
    written = "first\n\n" + "x" * (job.MAX_LINE + 1) + "\nlast"
    assert list(job._written(io.StringIO(written), tail)) == ["first", "", "x" * job.MAX_LINE, "x", "last"]
    assert list(tail) == ["x", "last"]


@pytest.mark.torch
def test_a_run_that_failed_tells_the_warnings_of_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    _fake.install(tmp_path, monkeypatch)
    request = Request(workload="fake", device="cpu", ranks=Ranks(per_node=2), overrides=("fault=warned", "at=build"))

    with pytest.raises(RuntimeError, match="planted"):
        launch(request, folder=tmp_path / "run")

    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "failed"
    (told,) = [note for note in manifest.notes if note.startswith("a library warned")]  # nothing that torchrun says
    assert told.startswith("a library warned: planted on rank 0 (fake_workload.py:")
