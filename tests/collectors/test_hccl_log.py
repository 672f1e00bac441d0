"""Logs of HCCL scanned for one answer: which process failed first, of what, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.cli import cli
from ascend_perf.collectors import hccl_log
from ascend_perf.collectors._machine import Machine
from ascend_perf.device.hccl_errors import error_code
from ascend_perf.errors import InputError


def line(text: str, *, pid: int = 4321, second: int = 5, level: str = "INFO") -> str:
    return f"[{level}] HCCL({pid},python3):2026-01-02-03:04:{second:02d}.001.250 [op_base.cc:88][77]{text}"


def job(folder: Path) -> Path:
    """Two ranks of a job: rank 1 loses memory at second 8, rank 0 waits for it until second 40."""
    logs = folder / "run/plog"
    logs.mkdir(parents=True)
    for rank, pid in enumerate((4321, 4400)):
        rows = [
            line("[HCCL_ENV] HCCL_BUFFSIZE set by environment to [400]", pid=pid),
            line("[HCCL_ENV] HCCL_DETERMINISTIC set by default to [false]", pid=pid),
            line(f"Entry-HcclCommInitRootInfoInner:ranks[2], rank[{rank}], rootinfo: host ip[10.1.2.3] "
                 "identifier[tp_group_0], deviceLogicId[0]", pid=pid),
            *(line("Entry-HcclAllReduce: tag[AllReduce_tp_group_0], sendBuf[0x1], recvBuf[0x2], count[1024], "
                   "dataType[bfloat16], op[sum], localRank[0], streamId[2],comm[0x1]", pid=pid, second=6)
              for _ in range(3 - rank)),
        ]  # fmt: skip
        if rank:
            rows.append(line("EL0004: Failed to allocate memory", pid=pid, second=8, level="ERROR"))
        else:
            words = "EI0002: The wait execution of the Notify register times out."
            rows.append(line(words, pid=pid, second=40, level="ERROR"))
            rows.append(line("EI0002: again", pid=pid, second=41, level="ERROR"))
        (logs / f"plog-{pid}_20260102030405001.log").write_text("\n".join(rows) + "\n", "utf-8")
    return folder


def test_the_first_error_of_a_job_is_the_one_to_look_at(tmp_path: Path) -> None:
    found = hccl_log.scan(job(tmp_path))

    by_rank = {process.rank: process for process in found.processes}
    assert by_rank[0].groups == (("tp_group_0", 2),)
    assert by_rank[0].calls == (("allReduce", 3, 3 * 1024 * 2),)
    assert by_rank[1].calls == (("allReduce", 2, 2 * 1024 * 2),)
    assert by_rank[0].settings == {"HCCL_BUFFSIZE": "400", "HCCL_DETERMINISTIC": "false (default)"}
    (late,) = by_rank[0].failures
    assert (late.name, late.count) == ("EI0002", 2)
    assert found.first is not None
    process, failure = found.first
    assert (process.rank, failure.name) == (1, "EL0004")
    known = error_code("EL0004")
    assert known is not None
    assert (failure.about, failure.cure) == (known.about, known.cure)


def test_the_output_of_a_job_is_searched_for_codes(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    path.write_text(
        "step 1\n[PID:4812] 2026-04-07-10:15:32.881.245 EI0001: Value 1000 for environment variable HCCL_RDMA_SL is "
        "invalid. Expected value : range[0, 7].\nRuntimeError: ... ERR02200 DIST call hccl api failed.\nEI0001: again\n"
    )

    (process,) = hccl_log.scan(path).processes

    assert [(one.name, one.count) for one in process.failures] == [("EI0001", 2), ("ERR02200", 1)]
    assert process.failures[0].detail.startswith("Value 1000 for environment variable HCCL_RDMA_SL")
    assert process.failures[0].cure is not None
    assert (process.failures[1].about, process.failures[1].detail) == (hccl_log.UNKNOWN, "DIST call hccl api failed.")


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        hccl_log.scan(tmp_path / "absent")
    (tmp_path / "a.log").write_text("hello\n")
    with pytest.raises(InputError, match="no line about HCCL"):
        hccl_log.scan(tmp_path)


def test_where_cann_writes(tmp_path: Path) -> None:
    machine = Machine(
        root=tmp_path, environment={"HOME": "/h", "ASCEND_WORK_PATH": "/w", "ASCEND_PROCESS_LOG_PATH": "/p"}
    )
    assert [str(place.relative_to(tmp_path)) for place in hccl_log.default_folders(machine)] == [
        "p", "w/log", "h/ascend/log",
    ]  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    def called(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["hccl-log", *words], standalone_mode=False, catch_exceptions=False)
        return int(result.return_value or 0), result.stdout

    code, text = called(str(job(tmp_path)))
    assert code == 1
    assert text.splitlines()[0].startswith("the first error of all: EL0004 (2026-01-02 03:04:08.001) in plog-4400")
    assert "2 x EI0002 (2026-01-02 03:04:40.001): a collective timed out" in text
    assert "-> look for the first error of the rank that did not come" in text
    assert "calls: 3 x allReduce (6 KiB)" in text
    assert "set: HCCL_BUFFSIZE=400" in text
    assert "10.1.2" not in text

    body = json.loads(called(str(tmp_path), "--format", "json", "--lang", "zh")[1])
    assert body["first"]["name"] == "EL0004"
    assert len(body["processes"]) == 2


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text_is_passed_over(texts: list[str]) -> None:
    from collections import Counter

    counts, details = Counter[str](), dict[str, str]()
    for text in texts:
        hccl_log._take(text.encode("utf-8", "replace"), counts, details)
    assert counts.keys() == details.keys()
