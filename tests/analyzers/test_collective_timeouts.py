"""Which rank the others waited for, from the errors in the logs of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ascend_perf.analyzers.collective_timeouts import CONNECTING, TIMEOUTS, WAITING, collective_timeouts
from ascend_perf.device.hccl_errors import known_codes
from ascend_perf.model.finding import Finding, Outcome, Severity
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.parsers import plog
from tests.conftest import build_table

SECOND = 10**9
Error = tuple[float, str] | tuple[float, str, int]


def process(rank: int | None, *errors: Error, world: int | None = 4) -> Trace:
    rows: list[dict[str, object]] = [
        {"time_ns": 0, "level": "INFO", "kind": "communicator", "name": "create", "rank": rank}
    ]
    for second, name, *named in errors:
        row = {"time_ns": int(second * SECOND), "level": "ERROR", "kind": "error", "name": name, "rank": rank}
        rows.append({**row, **({"named_rank": named[0]} if named else {})})
    environment = {"HCCL_EXEC_TIMEOUT": "1836 (default)"}
    meta = Meta(label=f"plog-{rank}.log", world_size=world, environment=environment)
    return Trace({"log_events": build_table("log_events", rows)}, meta)


def judge(traces: Sequence[Trace]) -> Outcome:
    return collective_timeouts.run_on_run(Run(traces=tuple(traces)))


def only(traces: Sequence[Trace]) -> Finding:
    (found,) = judge(traces).findings
    assert (found.code, found.severity) == ("Q-04", Severity.CRITICAL)
    return found


def test_without_logs_the_folder_of_the_logs_is_named() -> None:
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": "a"}])
    (judged,) = judge([Trace({"kernels": kernels}, Meta(rank=0))]).judged
    assert judged.verdict == "not_judged" and judged.reason is not None and "ascend/log" in judged.reason.en


def test_logs_without_a_time_out_are_clean_and_other_errors_are_named() -> None:
    outcome = judge([process(0), process(1, (5, "EL0004"))])
    (judged,) = outcome.judged
    assert judged.verdict == "clean" and judged.reason is not None and judged.reason.en.endswith("EL0004")
    assert [table.name for table in outcome.tables] == ["first-errors"]


def test_the_heartbeat_names_the_rank() -> None:
    found = only([process(rank, (80, "heartbeat lost", 2), (1900, "timeout")) for rank in (0, 1, 3)])
    assert (found.ranks, found.affected_ranks) == ((2,), (0, 1, 3))
    assert "3 heartbeats name it" in found.title.en
    assert [e.value for e in found.evidence][:3] == ["heartbeat lost", "timeout", 3]


def test_a_rank_that_failed_before_the_others_waited_is_the_cause() -> None:
    found = only([
        process(0, (1900, "EI0002")), process(1, (1895, "EI0002"), (1896, "EE9999")),
        process(2, (50, "EL0004"), (60, "EE9999")), process(3, (1901, "EE9999")),
    ])  # fmt: skip
    assert (found.ranks, found.affected_ranks, found.subject) == ((2,), (0, 1), "wait")
    assert found.evidence[0].value == "EL0004" and found.evidence[0].where == "plog-2.log, 00:00:50.000"
    assert next(e.value for e in found.evidence if e.unit == "ns") == 5 * SECOND
    assert next(e.value for e in found.evidence if e.name.en == "HCCL_EXEC_TIMEOUT") == "1836 (default)"


def test_an_error_behind_the_first_time_out_is_a_consequence() -> None:
    found = only([process(0, (100, "timeout")), process(1, (101, "EE9999")), process(2, (102, "timeout"))])
    assert found.ranks == (1,)  # silent about waiting, not first
    assert "no time-out" in found.title.en


def test_the_rank_whose_log_is_silent() -> None:
    found = only([process(2), *(process(rank, (1900 + rank, "timeout")) for rank in (0, 1, 3))])
    assert (found.ranks, found.affected_ranks) == ((2,), (0, 1, 3))


def test_the_rank_without_a_log() -> None:
    found = only([process(rank, (120, "EI0006")) for rank in (0, 1, 3)])
    assert (found.ranks, found.subject) == ((2,), "connect")
    assert "has no log" in found.title.en


def test_one_log_of_many_ranks_blames_nobody() -> None:
    found = only([process(0, (1900, "timeout"), world=64)])
    assert (found.ranks, found.affected_ranks) == ((), (0,))


def test_when_all_time_out_nobody_is_named() -> None:
    found = only([process(rank, (1900 + rank, "timeout")) for rank in range(4)])
    assert found.ranks == () and found.affected_ranks == (0, 1, 2, 3)
    assert found.evidence[0].where == "plog-0.log, 00:31:40.000"


def test_logs_without_ranks_are_counted() -> None:
    found = only([process(None, (1900, "timeout"), world=None), process(None, world=None)])
    assert found.ranks == found.affected_ranks == ()
    assert "1 process" in found.title.en


def test_the_table_is_in_order_of_time() -> None:
    (table,) = judge([process(0, (20, "timeout")), process(1, (10, "EL0004"), (11, "EE9999"))]).tables
    assert table.column("rank") == (1, 0)
    assert table.column("after_ns") == (0, 10 * SECOND)
    assert table.column("errors") == (2, 1)


@pytest.mark.parametrize("name", sorted(TIMEOUTS))
def test_names_of_time_outs_are_those_of_the_reader(name: str) -> None:
    assert name in {plog.TIMEOUT, plog.CONNECT, *known_codes()}
    assert not CONNECTING & WAITING
