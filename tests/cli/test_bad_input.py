"""Input that nobody can read: one clear message with the file's name, the right exit code, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support import Said

Command = Callable[..., Said]
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5, "args": {"device": 0}}


def refused(said: Said, *parts: str) -> None:
    """The command ended with exit code 3 and a message that holds all of `parts`, without a traceback."""
    assert said.code == 3, said
    assert "Traceback" not in said.err + said.out
    for part in parts:
        assert part in said.err, said.err
    assert "hint: " in said.err


def test_missing_path(command: Command, tmp_path: Path) -> None:
    refused(command("analyze", tmp_path / "none"), "none does not exist")


def test_empty_directory(command: Command, tmp_path: Path) -> None:
    refused(command("analyze", tmp_path), "is an empty directory", "ASCEND_PROFILER_OUTPUT")


def test_directory_of_other_things(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refused(command("analyze", tmp_path), "no profile in", "1 file(s)")


def test_empty_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.touch()
    refused(command("analyze", path), "trace_view.json is empty")
    refused(command("analyze", tmp_path), "empty files: trace_view.json")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{"model": "x", "layers": 3}', "JSON of something else"),
        ("a.json", b"[1, 2, 3]", "JSON of something else"),
        ("a.txt", b"step 1 loss 2.5\nstep 2 loss 2.4", "text that begins 'step 1 loss 2.5'"),
        ("a.bin", bytes(range(256)), "a binary file"),
        ("a.csv", b"name,age\nx,3\n", "text that begins 'name,age'"),
    ],
)
def test_something_else(command: Command, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(command("analyze", path), name, said)


def test_truncated_json_is_read_up_to_the_damage(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    text = json.dumps({"traceEvents": [{**KERNEL, "ts": 10 * n} for n in range(50)]})
    path.write_text(text[:-40])

    said = command("analyze", path, "-o", tmp_path / "out", "--format", "json")

    assert said.code == 0
    assert "cut.json" in said.err and "1 event(s) could not be read" in said.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["ranks"][0]["kernels"]["count"] == 49
    assert any(d["count"] == 1 for d in report["sources"][0]["dropped"])


def test_truncated_gzip_is_read_up_to_the_damage(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    rows = [{**KERNEL, "ts": 10 * n, "name": f"k{n * 7919 % 1000}"} for n in range(5000)]
    packed = gzip.compress(json.dumps({"traceEvents": rows}).encode(), mtime=0)
    path.write_bytes(packed[: len(packed) * 3 // 4])

    said = command("analyze", path, "-o", tmp_path / "out", "--format", "json")

    assert said.code == 0
    assert "ends too early" in said.err
    count = json.loads((tmp_path / "out" / "report.json").read_text())["ranks"][0]["kernels"]["count"]
    assert 1000 < count < 5000


def test_gzip_without_any_event(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [')[:12])
    refused(command("analyze", path), "x.json.gz")


def test_gzip_bomb_is_refused(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_perf.files.FREE_EXPANSION_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (48 << 20) + b"]}"))
    said = command("analyze", path, "-o", tmp_path / "out")
    assert said.code == 3
    assert "bomb.json.gz" in said.err


def test_corrupt_database(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, globalTaskId INTEGER)")
    connection.execute("CREATE TABLE STRING_IDS (id INTEGER, value TEXT)")
    connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", [(n, "x" * 500) for n in range(200)])
    connection.commit()
    connection.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    refused(command("analyze", path), "ascend_pytorch_profiler_0.db")


def test_other_database(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "music.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    refused(command("analyze", path), "music.db", "SQLite database without the tables of a profile")


@pytest.mark.parametrize("raw", ["FRAMEWORK", "PROF_000001_20250109091234567_ABCDEF"])
def test_profile_not_parsed_yet(command: Command, tmp_path: Path, raw: str) -> None:
    profile = tmp_path / "node_1_20250109091234567_ascend_pt"
    (profile / raw).mkdir(parents=True)
    (profile / raw / "torch.op_range").write_bytes(b"\0\1\2")
    refused(command("analyze", profile), "not", "parsed", "analyse")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")
    path.chmod(0)
    refused(command("analyze", path), "permission denied")


def test_permission_denied_is_told_whoever_runs_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")

    def deny(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", deny)
    monkeypatch.setattr("os.access", lambda *args, **kwargs: False)
    refused(command("analyze", path), "a.json may not be read", "chmod")


def test_no_device_events_is_a_report_that_says_so(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(
        json.dumps(
            {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]}
        )
    )
    said = command("analyze", path, "-o", tmp_path / "out")
    assert said.code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["ranks"][0]["device"]["vendor"] is None
    reasons = [o["reason"] for o in report["outcomes"] if o["status"] == "no_data"]
    assert any("kernels" in reason for reason in reasons)


def test_names_from_traces_are_text(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    name = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    path.write_text(json.dumps({"traceEvents": [{**KERNEL, "name": name}]}))
    said = command("analyze", path, "-o", tmp_path / "out")
    assert said.code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert(1)" not in page and "<img src=x" not in page


def test_a_table_without_rows_is_no_clean_bill(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_text("Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\n")
    refused(command("analyze", path, "-o", tmp_path / "out"), "kernel_details.csv holds no rows")


def test_one_bad_file_does_not_cost_the_others(command: Command, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps({"traceEvents": [KERNEL]}))
    (tmp_path / "bad.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b'{"ph":"X"},' * 999)[:60])
    said = command("analyze", tmp_path, "-o", tmp_path / "out", "--format", "json")
    assert said.code == 0
    assert "bad.json.gz" in said.err
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["ranks"]) == 1


def test_wrong_usage(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": [KERNEL], "distributedInfo": {"rank": 2}}))
    assert command("analyze").code == 2
    assert command("analyze", path, "--format", "pdf", "-o", tmp_path / "a").code == 2
    said = command("analyze", path, "--rank", "7", "-o", tmp_path / "b")
    assert (said.code, "it has 2" in said.err) == (2, True)
    assert command("analyze", path, "--step", "7", "-o", tmp_path / "c").code == 2
    assert command("analyze", path, "-o", tmp_path / "d", "--format", "json").code == 0
    again = command("analyze", path, "-o", tmp_path / "d", "--format", "json")
    assert (again.code, "--force" in again.err) == (2, True)
    assert command("analyze", path, "-o", tmp_path / "d", "--format", "json", "--force").code == 0
    assert command("analyze", path, "-o", path).code == 2


@pytest.mark.parametrize("out", ["file/report", "x" * 300])
def test_a_report_that_cannot_be_written_is_wrong_usage(command: Command, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [KERNEL]}))
    said = command("analyze", tmp_path / "t.json", "-o", tmp_path / out)
    assert said.code == 2, said
    assert "cannot be written" in said.err and "Traceback" not in said.err


def test_what_is_no_file_is_refused_without_waiting_for_it(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(command("analyze", tmp_path / "pipe"), "pipe is neither a file nor a folder")


def test_a_path_given_twice_is_read_once(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [KERNEL]}))
    said = command("analyze", tmp_path / "t.json", tmp_path / "." / "t.json", "-o", tmp_path / "out")
    assert said.code == 0, said
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["ranks"]) == 1


def test_a_reader_that_goes_away_is_no_failure() -> None:
    listing = [sys.executable, "-W", "error", "-m", "ascend_perf", "explain"]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert (running.stderr.read(), running.wait()) == (b"", 0)
