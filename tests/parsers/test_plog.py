"""Logs of CANN, written here by the format reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf.analyzers.communication_log import communication_log
from ascend_perf.device import hccl_errors
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL
from ascend_perf.model.trace import Trace
from ascend_perf.parsers import plog
from ascend_perf.parsers._ascend_comm import group_hash
from ascend_perf.parsers.discover import find_units, parsers
from tests._support import Said

WORLD = "10.1.2.3%eth0_60000_0_1738895486152654"


def line(text: str, *, level: str = "INFO", ms: int = 1, module: str = "HCCL", gap: str = "") -> str:
    return f"[{level}] {module}(4321,python3):2026-01-02-03:04:05.{ms:03d}.250 [op_base.cc:88]{gap}[77]{text}"


LINES = [
    line("[HCCL_ENV] HCCL_BUFFSIZE set by environment to [400]"),
    line("[HCCL_ENV] HCCL_OP_EXPANSION_MODE set by default to [HOST]"),
    line("[HCCL_ENV] HCCL_IF_IP set by environment to [10.1.2.3]"),
    line(f"Entry-HcclCommInitRootInfoInner:ranks[8], rank[3], rootinfo: host ip[10.1.2.3] port[60000] nicDeploy[1] "
         f"identifier[{WORLD}], deviceLogicId[3]", ms=2),
    line("Entry-HcclCommInitRootInfoConfigInner:ranks[2], rank[1], rootinfo: host ip[10.1.2.3] identifier[tp_group_0], "
         "deviceLogicId[3]", ms=3, gap=" "),
    line(f"Entry-HcclAllReduce: tag[AllReduce_{WORLD}], sendBuf[0x12], recvBuf[0x13], count[1024], dataType[float32], "
         "op[sum], localRank[3], streamId[2],comm[0x1], deviceLogicId[3]", ms=4),
    line("Entry-HcclAllGatherInner: tag[AllGather_tp_group_0], sendBuf[0x12], recvBuf[0x13], count[10], "
         "dataType[bfloat16], localRank[1], streamId[2], capture status[0], model id[0].", ms=5),
    line(f"Entry-HcclAllReduce: tag[AllReduce_{WORLD}], count[3], dataType[mystery], op[sum]", ms=6),
    line("something else entirely", ms=7),
]  # fmt: skip
ERRORS = [
    line(f"[TaskExecStage][Timeout][Host]Task run failed, base information is streamID:[2], taskID:[5], "
         f"tag[AllReduce_{WORLD}], AlgType(level 0-1-2):[fullmesh-ring-NHR].", level="ERROR", ms=20),
    line("EI0002: The wait execution of the Notify register times out.", level="ERROR", ms=21),
    line("[HeartbeatAbnormal]local rank [10.1.2.3/3]: crimer rank [10.1.2.9/5] status[LOST] "
         "by informer rank [10.1.2.4/4]",
         level="ERROR", ms=22),
    line("EI0099: odd", level="ERROR", ms=23),
]  # fmt: skip


def read(folder: Path, *lines: str, name: str = "plog-4321_20260102030405001.log") -> Trace:
    (folder / name).write_text("\n".join(lines) + "\n")
    units, _ = find_units(folder)
    assert [unit.parser for unit in units] == ["plog"]
    (trace,) = parsers()["plog"].parse(units[0])
    return trace


def test_communicators_calls_and_settings(tmp_path: Path) -> None:
    trace = read(tmp_path, *LINES)

    events = trace[t.LOG_EVENTS]
    calls = events.select(events.text("kind").equals("call"))
    assert calls.text("name").to_list() == ["allReduce", "allGather", "allReduce"]
    assert calls.text("group").to_list() == [group_hash(WORLD), "tp_group_0", group_hash(WORLD)]
    assert calls.ints("size_bytes").tolist() == [4096, 20, NULL]
    # 2026-01-02 03:04:05 as UTC, and 1 ms 250 us.
    assert events.ints("time_ns").tolist()[:2] == [1_767_323_045_002_250_000, 1_767_323_045_003_250_000]
    assert trace.meta.environment == {"HCCL_BUFFSIZE": "400", "HCCL_OP_EXPANSION_MODE": "HOST (default)"}
    assert [(g.name, g.size) for g in trace.meta.groups] == [(group_hash(WORLD), 8), ("tp_group_0", 2)]
    assert (trace.meta.rank, trace.meta.world_size) == (None, 8)
    assert trace.meta.label.endswith("(rank 3 of 8)")


def test_errors_have_their_meaning(tmp_path: Path) -> None:
    trace = read(tmp_path, *LINES, *ERRORS)

    said = " | ".join(trace.meta.warnings)
    assert "1 x EI0002: a collective timed out waiting for a notify" in said
    assert "1 x EI0099: see the list of error codes of CANN" in said
    assert "the heartbeat names as the first to fail: rank 5" in said
    events = trace[t.LOG_EVENTS]
    errors = events.select(events.text("kind").equals("error"))
    assert errors.text("name").to_list() == ["timeout", "EI0002", "heartbeat lost", "EI0099"]
    assert errors.text("group")[0] == group_hash(WORLD)


def test_no_address_is_kept(tmp_path: Path) -> None:
    trace = read(tmp_path, *LINES, *ERRORS)

    kept = repr(trace.meta) + repr([list(trace[t.LOG_EVENTS].text(c)) for c in ("name", "group", "dtype", "kind")])
    assert "10.1.2" not in kept and "eth0" not in kept


def test_rotated_files_of_one_process_are_one_trace(tmp_path: Path) -> None:
    (tmp_path / "plog-4321_20260102030405000.log").write_text("\n".join(LINES[:5]) + "\n")
    trace = read(tmp_path, *LINES[5:])

    assert len(trace.meta.sources) == 2
    assert len(trace.meta.groups) == 2
    assert len(trace[t.LOG_EVENTS]) == 5


def test_a_log_without_hccl_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line about HCCL"):
        read(tmp_path, line("hello", module="GE"))


def test_tables_of_the_analyzer(tmp_path: Path) -> None:
    outcome = communication_log.run_on_trace(read(tmp_path, *LINES, *ERRORS))

    assert [table.name for table in outcome.tables] == ["log-calls", "log-errors"]
    calls = {c.name: list(d) for c, d in zip(outcome.tables[0].columns, outcome.tables[0].data, strict=True)}
    assert calls["op"] == ["allReduce", "allGather"]
    assert (calls["count"], calls["total_bytes"]) == ([2, 1], [4096, 20])


def test_the_whole_analysis_runs_and_makes_no_step_of_a_log(tmp_path: Path, command: Callable[..., Said]) -> None:
    read(tmp_path, *LINES, *ERRORS)
    said = command("analyze", tmp_path, "-o", tmp_path / "out", "--format", "md")
    assert said.code == 0, said.err
    assert "EI0002" in (tmp_path / "out" / "report.md").read_text("utf-8") or "EI0002" in said.err + said.out


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=60), max_size=6))
def test_any_message_is_passed_over(texts: list[str]) -> None:
    log = plog._Log()
    plog._read("\n".join([*(line(f"Entry-Hccl{text}") for text in texts), *LINES]), log)
    assert len(log.groups) >= 2


def test_topology_and_place_of_communicators_of_a_rank_table(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        line("[Communicator Key Info]identifier[hccl_world_group] rankSize[16] serverNum[2] moduleNum[2] "
             "superPodNum[1]"),
        line("[LocalRank Key Info]userRank[5] hostIp[10.1.2.3] devicePhyId[5] server[node-b] deviceIp[192.168.1.1]"),
    )

    assert [(group.name, group.size) for group in trace.meta.groups] == [("hccl_world_group", 16)]
    assert trace.meta.label.endswith("(rank 5 of 16)")
    assert trace[t.LOG_EVENTS].text("name").to_list() == ["topology: 2 servers, 1 super pods"]
    assert "10.1.2" not in repr(trace.meta) and "node-b" not in repr(trace.meta)


def test_every_code_and_phase_of_the_table_is_said_in_the_trace(tmp_path: Path) -> None:
    codes, phases = hccl_errors.known_codes(), hccl_errors.known_phases()
    lines = [line(f"{code}: something", level="ERROR") for code in codes]
    lines += [line(f"[InitGroupStage][{phase}][Host]failed", level="ERROR") for phase in phases]

    said = read(tmp_path, *lines).meta.warnings

    for code in codes:
        known = hccl_errors.error_code(code)
        assert known is not None
        assert f"1 x {code}: {known.about.en}" in said
    for phase in phases:
        about = hccl_errors.phase_about(phase)
        assert about is not None
        names = ("heartbeat lost", f"InitGroupStage: {phase}")
        assert any(f"1 x {name}: {about.en}" in said for name in names), phase
    assert hccl_errors.error_code("EI9999") is None
