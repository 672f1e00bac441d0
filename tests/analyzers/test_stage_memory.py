"""Memory of pipeline stages beside each other."""

from __future__ import annotations

from ascend_perf.analyzers.stage_memory import stage_memory
from ascend_perf.model.finding import Outcome, Severity
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Device, Group, Meta, Trace
from tests.conftest import build_table

GIB = 2**30
GROUPS = (
    Group(name="pp0", label="pp", ranks=(0, 2)), Group(name="pp1", label="pp", ranks=(1, 3)),
)  # fmt: skip


def rank(
    number: int, peak_gib: float | None, *, capacity_gib: int | None = 64, groups: tuple[Group, ...] = GROUPS
) -> Trace:
    memory = [] if peak_gib is None else [
        {"time_ns": 5, "component": "PTA", "reserved_bytes": int(peak_gib * GIB) - GIB},
        {"time_ns": 7, "component": "PTA", "reserved_bytes": int(peak_gib * GIB)},
        {"time_ns": 8, "component": "APP", "reserved_bytes": 80 * GIB},
    ]  # fmt: skip
    device = Device(kind="npu", memory_bytes=None if capacity_gib is None else capacity_gib * GIB)
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": "a"}])
    return Trace(
        {"kernels": kernels, "memory": build_table("memory", memory)},
        Meta(rank=number, world_size=4, groups=groups, device=device),
    )


def judge(*traces: Trace) -> Outcome:
    return stage_memory.run_on_run(Run(traces=traces))


def reason(outcome: Outcome) -> str:
    (judged,) = outcome.judged
    assert judged.verdict != "found" and judged.reason is not None
    return f"{judged.verdict}: {judged.reason.en}"


def test_the_first_stage_is_full_and_the_last_is_not() -> None:
    outcome = judge(rank(0, 60), rank(1, 58), rank(2, 40), rank(3, 41))
    (found,) = outcome.findings
    assert (found.code, found.severity) == ("K-03", Severity.HIGH)
    assert (found.ranks, found.affected_ranks) == ((0, 1), (0, 1))
    # The highest peak of each stage, then the device.
    assert [item.value for item in found.evidence] == [60 * GIB, 41 * GIB, 64 * GIB, 2]
    assert found.evidence[0].start_ns == 7 and found.evidence[0].where == "memory, rank 0"
    assert found.title.en == "Pipeline stage 0 reserves 94 % of device memory, stage 1 only 64 %"
    (table,) = outcome.tables
    assert table.column("stage") == (0, 0, 1, 1) and table.column("rank") == (0, 1, 2, 3)


def test_only_ranks_that_are_full_are_named() -> None:
    (found,) = judge(rank(0, 60), rank(1, 50), rank(2, 40)).findings
    assert found.ranks == (0,)


def test_stages_that_are_full_alike_or_have_room_are_clean() -> None:
    assert reason(judge(rank(0, 60), rank(2, 56))).startswith("clean: the fullest stage (0) reserves 94 %")
    assert reason(judge(rank(0, 56), rank(2, 10))).startswith("clean")


def test_what_would_be_needed_is_said() -> None:
    assert "profile_memory=True" in reason(judge(rank(0, 60), rank(2, None)))
    assert "profile_memory=True" in reason(judge(rank(0, 60), rank(1, 60)))  # one stage
    assert "size of device memory" in reason(judge(rank(0, 60, capacity_gib=None), rank(2, 10, capacity_gib=None)))
    assert "no pipeline stages" in reason(judge(rank(0, 60, groups=()), rank(1, 10, groups=())))


def out_of_memory(number: int) -> Trace:
    row = {"time_ns": 1, "level": "ERROR", "kind": "error", "name": "EL0004", "rank": number}
    return Trace({"log_events": build_table("log_events", [row])}, Meta(label=f"plog-{number}"))


def test_out_of_memory_on_one_stage_alone_needs_no_samples() -> None:
    (found,) = judge(rank(0, None), rank(2, None), out_of_memory(0), out_of_memory(1)).findings
    assert (found.severity, found.ranks, found.affected_ranks) == (Severity.CRITICAL, (0, 1), (0, 1, 2, 3))
    assert found.evidence[0].value == 2
    assert judge(rank(0, None), rank(2, None), out_of_memory(0), out_of_memory(2)).findings == ()
