"""host-operators: self times that can be added in the head."""

from __future__ import annotations

from collections.abc import Callable

from ascend_perf.analyzers.host_operators import host_operators
from ascend_perf.model.trace import Trace


def test_self_time_is_what_children_leave(make_trace: Callable[..., Trace]) -> None:
    def op(name: str, start: int, dur: int, thread: int = 1) -> dict[str, object]:
        return {"name": name, "start_ns": start, "dur_ns": dur, "thread": thread}

    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 1000}],
        host_ops=[
            op("linear", 0, 100),
            op("addmm", 10, 60),  # inside linear
            op("copy", 20, 10),  # inside addmm
            op("mm", 20, 30, thread=2),  # another thread: no child of addmm
            op("linear", 200, 50),
            op("outside", 5000, 70),  # after the step
        ],
    )

    (table,) = host_operators.run_on_trace(trace).tables

    assert table.column("name") == ("linear", "addmm", "mm", "copy")
    # linear (100-60) + 50, addmm 60-10, mm 30, copy 10: together 180 = 150 of thread 1 and 30 of thread 2
    assert table.column("self_ns_per_step") == (90, 50, 30, 10)
    assert table.column("total_ns_per_step") == (150, 60, 30, 10)
    assert table.column("share_ratio") == (90 / 180, 50 / 180, 30 / 180, 10 / 180)
    assert table.column("cumulative_ratio")[-1] == 1


def test_times_are_per_step(make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(
        steps=[{"step_id": n, "start_ns": 100 * n, "dur_ns": 100} for n in (1, 2)],
        host_ops=[{"name": "mm", "start_ns": 100 * n + 5, "dur_ns": 40, "thread": 1} for n in (1, 2)],
    )

    outcome = host_operators.run_on_trace(trace)

    assert outcome.tables[0].column("self_ns_per_step") == (40,)
    assert outcome.tables[0].column("count_per_step") == (1,)
    assert outcome.metrics[0].value == 40
