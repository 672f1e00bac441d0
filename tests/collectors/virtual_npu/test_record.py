"""The reader of the record, and that a record is whole however its process ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu.record import (
    COPY_KINDS,
    EVENT_KINDS,
    TABLES,
    WAIT_KINDS,
    read_folder,
    read_record,
)
from ascend_perf.errors import InputError
from tests.collectors.virtual_npu._device import VARIABLE, Device, config, library

HEAD = "H\tversion\t1\nH\tdata_origin\tsimulated\nH\trank\t3\nH\tpid\t77\n"
WORDS = {"P": COPY_KINDS, "Y": WAIT_KINDS, "E": EVENT_KINDS}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

numbers = st.integers(-(2**63), 2**63 - 1)


@st.composite
def events(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A line of a table and the numbers that it stands for."""
    kind = draw(st.sampled_from(sorted(TABLES)))
    values = [draw(numbers) for _ in TABLES[kind]]
    fields = [str(value) for value in values]
    if kind in WORDS:
        values[1] = draw(st.integers(0, len(WORDS[kind]) - 1))
        fields[1] = WORDS[kind][values[1]]
    return "\t".join((kind, *fields)), values


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(events(), st.tuples(st.just("N"), texts)), max_size=25), st.integers(0, 5000), st.booleans())
def test_what_was_written_is_read(
    tmp_path: Path, lines: list[tuple[str, list[int] | str]], zeros: int, has_end: bool
) -> None:
    expected: dict[str, list[list[int]]] = {kind: [] for kind in TABLES}
    marks = []
    content = HEAD
    for time, (line, told) in enumerate(lines):
        if isinstance(told, str):
            content += f"N\t{time}\tmark\t{escaped(told)}\t12\t0\tdefault\t-1\n"
            marks.append((time, "mark", told, 12))
        else:
            content += line + "\n"
            expected[line[0]].append(told)
    if has_end:
        content += f"Z\t{len(lines) + 5}\t123\n"
    else:
        content += "K\t17\t0"  # a line that was being written, and the rest of the mapping
    path = tmp_path / "rank3.77.vnpu"
    path.write_bytes(content.encode() + (b"" if has_end else b"\0" * zeros))
    record = read_record(path)
    assert record.is_truncated == (not has_end)
    assert record.peak_bytes == (123 if has_end else None)
    assert record.marks == tuple(marks)
    for kind, names in TABLES.items():
        columns = record.tables[kind]
        assert list(columns) == list(names)
        assert [list(row) for row in zip(*(columns[name].tolist() for name in names), strict=True)] == expected[kind]


def test_definitions_groups_errors_and_profiler(tmp_path: Path) -> None:
    path = tmp_path / "rank0.1.vnpu"
    path.write_text(
        HEAD + 'D\t0\top\taclnnAdd\t{"args":[null],"ns":1e999}\nD\t1\tcomm\tHcclSend\t{"count":3}\n'
        "G\t0\tthe\\tgroup\t2\t1\t[4,5]\nG\t1\tother\t9\t0\tnull\n"
        "X\t5\taclrtMalloc\t207001\tfull\\nindeed \\\\n\nR\t6\tinit\t/tmp/a b\nR\t7\tstart\t\n"
    )
    record = read_record(path)
    assert record.rank == 3
    assert record.definitions == {
        0: ("op", "aclnnAdd", {"args": [None], "ns": float("inf")}), 1: ("comm", "HcclSend", {"count": 3}),
    }  # fmt: skip
    assert record.groups == {0: ("the\tgroup", 2, 1, (4, 5)), 1: ("other", 9, 0, None)}
    assert record.errors == ((5, "aclrtMalloc", 207001, "full\nindeed \\n"),)
    assert record.profiler == ((6, "init", "/tmp/a b"), (7, "start", ""))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "version"),
        ("H\tversion\t2\n", "version is '2'"),
        (HEAD + "K\t1\t2\n", "line 5 has 2 fields of 8"),
        (HEAD + "K\t1\t2\t3\t4\t5\t6\t7\tx\n", "damaged"),
        (HEAD + "K\t1\t2\t3\t4\t5\t6\t7\t\n", "numbers"),
        (HEAD + "P\t1\tnowhere\t3\t4\t5\t6\t7\t8\t9\n", "damaged"),
        (HEAD + "D\t0\top\taclnnAdd\t[1]\n", "no JSON object"),
        (HEAD + "D\t0\top\taclnnAdd\t{\n", "damaged"),
        (HEAD + "G\t0\tname\n", "line 5 has 2 fields of 5"),
        (HEAD + "Z\t99\t0\n", "5 lines and should have 99"),
        ("\xff\xfe\n" + HEAD + "R\t1\tinit\t\xff\n", "damaged"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, body: str, problem: str) -> None:
    path = tmp_path / "rank0.1.vnpu"
    path.write_bytes(body.encode("latin-1"))
    with pytest.raises(InputError, match=problem):
        read_record(path)


def test_a_record_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_record(tmp_path / "none.vnpu")
    assert read_folder(tmp_path) == []


@needs_gcc
def test_settings_of_the_device_head_the_record(tmp_path: Path) -> None:
    device = Device(tmp_path, soc="Ascend910B4", hbm_bytes=12345, ranks_per_node=4, link_bytes_per_s=7)
    device.stream()
    device.close()
    record = device.record()
    head = dict(record.header)
    assert {key: head.pop(key) for key in ("start_raw_ns", "start_realtime_ns", "pid")}["pid"] == str(os.getpid())
    assert head == {
        "version": "1", "data_origin": "simulated", "soc": "Ascend910B4", "device": "0", "world_size": "1",
        "rank": "0", "ranks_per_node": "4", "processes": "1", "clock": "modelled", "hbm_bytes": "12345",
        "host_launch_ns": "1000", "launch_latency_ns": "300", "link_bytes_per_s": "7", "cann_version": "9.1.0",
        "library": "test",
    }  # fmt: skip
    assert not record.is_truncated
    assert record.peak_bytes == 0


@needs_gcc
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os.abort()"])
def test_a_process_that_ends_hard_leaves_all_that_it_did(tmp_path: Path, end: str) -> None:
    # More than one window of the mapping, which is 1 MiB.
    body = "for i in range(900):\n    device.run('aclnnTimed', stream, i % 7)\n"
    body += "    device.lib.mstxMarkA(b'm' * 1500, None)\n"
    run = _child(tmp_path, body + end)
    assert run.returncode != 0
    (record,) = read_folder(tmp_path)
    assert record.is_truncated
    assert record.tables["K"]["seq"].tolist() == list(range(900))
    assert len(record.definitions) == 7
    assert [text for _, _, text, _ in record.marks] == ["m" * 1500] * 900


@needs_gcc
def test_a_process_that_ends_well_says_so_and_forks_do_not_write(tmp_path: Path) -> None:
    run = _child(
        tmp_path,
        "device.run('aclnnTimed', stream, 1)\n"
        "child = os.fork()\n"
        "device.run('aclnnTimed', stream, 2)\n"
        "if child:\n    os.waitpid(child, 0)\n    device.run('aclnnTimed', stream, 3)\n"
        "else:\n    sys.exit(0)\n",
    )
    assert run.returncode == 0, run.stderr
    (record,) = read_folder(tmp_path)
    assert not record.is_truncated
    assert [body["args"] for _, _, body in record.definitions.values()] == [[["n", n]] for n in (1, 2, 3)]
    assert (tmp_path / record.path.name).stat().st_size < 4096  # cut to its size


@needs_gcc
def test_texts_of_the_program_stay_one_line(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.lib.mstxRangeStartA.restype = device.lib.mstxDomainRangeStartA.restype = int
    device.lib.mstxDomainCreateA.restype = int
    device.ok("aclprofInit", b"/a\tb", 4)
    device.ok("aclprofStart", None)
    assert device.call("aclprofStart", None) == 100042
    device.lib.mstxMarkA(b"one\ntwo\\", None)
    number = device.lib.mstxRangeStartA(b"range \t1", None)
    device.call("mstxRangeEnd", number)
    device.ok("aclprofStop", None)
    assert device.call("aclprofStop", None) == 100043
    device.close()
    record = device.record()
    assert [(what, text) for _, what, text in record.profiler] == [("init", "/a\tb"), ("start", ""), ("stop", "")]
    assert [(what, text) for _, what, text, _ in record.marks] == [
        ("mark", "one\ntwo\\"), ("start", f"{number} range \t1"), ("end", str(number)),
    ]  # fmt: skip


@needs_gcc
@pytest.mark.parametrize(
    ("line", "problem"),
    [("fault\tgremlins\t1", "fault that is not known"), ("fault\tslow_rank\t1", "wants a rank and a factor"),
     ("version\t9", "version of the settings is not 1"), ("soc", "setting without value"),
     ("processes\t3", "all ranks of the job run or one stands for all")],
)  # fmt: skip
def test_settings_that_cannot_be_meant_stop_the_process(tmp_path: Path, line: str, problem: str) -> None:
    run = _child(tmp_path, "", line)
    assert run.returncode == 78
    assert problem in run.stderr


def _child(folder: Path, body: str, line: str = "") -> subprocess.CompletedProcess[str]:
    """A process with a device of its own, which runs `body`."""
    path = config(folder)
    path.write_text(path.read_text() + line + "\n")
    source = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.collectors.virtual_npu import _device\n"
        f"_device.library = lambda: Path({str(library())!r})\n"
        f"_device.config = lambda *_, **__: Path({str(path)!r})\n"
        f"device = _device.Device(Path({str(folder)!r}))\nstream = device.stream()\n{body}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", source], cwd=Path(__file__).parents[3], env={**os.environ, VARIABLE: str(path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
