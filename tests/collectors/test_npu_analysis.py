"""Parsing the raw data of torch_npu: judged by what lies there, and what its parser refuses is said before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.bench import collect as bench
from ascend_perf.collectors import devices, npu_analysis
from ascend_perf.collectors.collect_plan import Here
from tests.collectors import _fake_torch_npu

MINE = 4711


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of raw data, with the stand-in's parser on the path."""
    assert not any(name.startswith("torch_npu") for name in sys.modules)
    monkeypatch.syspath_prepend(str(_fake_torch_npu.install(tmp_path / "site")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "rank0_20260407101532881_ascend_pt"
    (folder / "PROF_000001_20260407101532881_00412207KQMBRACD").mkdir(parents=True)
    yield folder
    for name in [name for name in sys.modules if name.startswith("torch_npu")]:
        del sys.modules[name]


def with_msprof(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin" / "msprof").write_text("#!/bin/sh\n")
    (root / "bin" / "msprof").chmod(0o755)


def test_tables_that_lie_there_afterwards_count(raw: Path) -> None:
    with_msprof(raw.parent)
    assert npu_analysis.main([str(raw)]) == 0
    assert npu_analysis.is_parsed(raw)


def test_a_parser_that_prints_its_error_and_returns_has_failed(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (raw / "broken").touch()
    assert npu_analysis.main([str(raw)]) == npu_analysis.NOTHING
    what, _ = npu_analysis.problem_of(capsys.readouterr().out)
    assert "Failed to parse the raw data" in what


def test_without_msprof_the_host_alone_is_parsed_and_that_is_said(
    raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npu_analysis.main([str(raw)])
    what, hint = npu_analysis.problem_of(capsys.readouterr().out)
    assert what.startswith("only the host's side was parsed")
    assert "set_env.sh" in hint


@pytest.mark.parametrize(
    ("owner", "is_foreign"), [(MINE, False), (0, False), (1000, True)], ids=["mine", "of root", "of another"]
)
def test_data_of_another_user_are_not_parsed_and_said(
    raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], owner: int, is_foreign: bool
) -> None:
    with_msprof(raw.parent)
    monkeypatch.setattr(os, "geteuid", lambda: MINE)
    monkeypatch.setattr(npu_analysis, "_owner", lambda folder: owner)

    code = npu_analysis.main([str(raw)])

    assert (code == npu_analysis.NOTHING) == is_foreign
    assert npu_analysis.is_parsed(raw) is not is_foreign
    said = capsys.readouterr().out
    if is_foreign:
        assert npu_analysis.problem_of(said) == (
            "it belongs to another user: torch_npu parses only data of yours or of root",
            "parse it as its owner or as root, or own a copy of it (cp -r)",
        )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_the_owner_is_that_of_the_folder(raw: Path) -> None:
    assert not npu_analysis.is_foreign(raw)
    os.chown(raw, MINE, -1)
    assert npu_analysis.is_foreign(raw)
    assert not npu_analysis.is_foreign(raw / "not there")


@pytest.mark.parametrize(
    ("version", "is_fit"),
    [
        ("2.1.0.post13", False), ("2.1.0.post14", True), ("2.1.0", False), ("2.4.0.post4", False),
        ("2.5.1.post1", False), ("2.5.1.post2", True), ("2.6.0", True),
        ("2.7.1.post8", True), ("2.10.0", True), (None, True), ("?", True),
    ],
)  # fmt: skip
def test_several_devices_of_one_process_need_a_newer_release(
    tmp_path: Path, version: str | None, is_fit: bool
) -> None:
    for name in ("host", "device_0", "device_1"):
        (tmp_path / "PROF_1" / name).mkdir(parents=True)
    assert npu_analysis.too_many_devices(tmp_path, version) == (0 if is_fit else 2)
    (tmp_path / "PROF_1" / "device_1").rmdir()
    assert npu_analysis.too_many_devices(tmp_path, version) == 0


@pytest.mark.parametrize(("cores", "most"), [(8, 4), (2, 1), (1, 1), (None, 1)])
def test_at_most_half_of_the_cores_parse_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, most: int
) -> None:
    """In-line parsing stalls all ranks, and as many parsers as ranks stall the machine."""
    for rank in range(3):
        (tmp_path / f"rank{rank}_20260407101532881_ascend_pt").mkdir()
    for name in ("device_0", "device_1"):
        (tmp_path / "rank2_20260407101532881_ascend_pt" / "PROF_1" / name).mkdir(parents=True)
    asked: list[int] = []

    def pool(count: int) -> ThreadPoolExecutor:
        asked.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(bench, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(devices, "usable_cores", lambda: cores)
    words: list[list[str]] = []
    attempt: Any = bench._Attempt.__new__(bench._Attempt)
    attempt._processes, attempt._trace, attempt._notes = [], tmp_path, []
    attempt._here = Here(variables={}, has_npu=True, torch_npu_version="2.4.0")
    attempt._on_notice = lambda text: None

    def quietly(given: Sequence[str]) -> str:
        words.append(list(given))
        return ""

    attempt._quietly = quietly

    attempt._parse_npu()

    assert asked == [most]
    assert sorted(Path(one[-1]).name for one in words) == sorted(path.name for path in tmp_path.iterdir())
    assert [note for note in attempt._notes if "could not be parsed" not in note] == [
        "rank2_20260407101532881_ascend_pt: one process with 2 devices: torch_npu 2.4.0 does not record them reliably "
        "(hint: one process for each device, or torch_npu 2.6.0)"
    ]
    assert len(attempt._notes) == 4  # none of them was parsed


@pytest.mark.parametrize("said", ["", "Export CANN Profiling data failed! 'msprof' command not found!"])
def test_a_profile_with_the_hosts_side_only_is_said(tmp_path: Path, said: str) -> None:
    """The parser ends with 0 and leaves a timeline: that the kernels are missing stands in a line of its output."""
    folder = tmp_path / "rank0_20260407101532881_ascend_pt"
    folder.mkdir()
    attempt: Any = bench._Attempt.__new__(bench._Attempt)
    attempt._processes, attempt._trace, attempt._notes = [], tmp_path, []
    attempt._here = Here(variables={}, has_npu=True, torch_npu_version="2.7.1")
    attempt._on_notice = lambda text: None

    def quietly(given: Sequence[str]) -> str:
        output = folder / npu_analysis.OUTPUT
        output.mkdir()
        (output / "trace_view.json").write_text("[]")
        return said

    attempt._quietly = quietly

    attempt._parse_npu()

    assert attempt._notes == ([] if not said else [
        f"{folder.name}: only the host's side was parsed: the parser of the device's data (msprof) was not found "
        "(hint: source set_env.sh of CANN and analyze the run directory again)"
    ])  # fmt: skip
