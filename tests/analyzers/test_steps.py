"""Step windows, membership, unions and the representative step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.analyzers._steps import (
    busy,
    in_step,
    membership,
    representative,
    share_of_steps,
    step_total_ns,
    step_windows,
    unions_by_step,
)
from ascend_perf.model.table import NULL
from ascend_perf.model.tables import COPIES, KERNELS, MEMORY
from ascend_perf.model.trace import Device, Meta, Trace
from tests.conftest import build_table

Make = Callable[..., Trace]


def _kernel(start: int | None, dur: int, step: int | None = None, stream: int = 1) -> dict[str, object]:
    return {"start_ns": start, "dur_ns": dur, "name": "k", "step_id": step, "stream": stream}


def test_a_row_belongs_to_the_step_of_its_number_else_to_the_window_of_its_start(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 7, "start_ns": 0, "dur_ns": 100}, {"step_id": 8, "start_ns": 100, "dur_ns": 100}],
        kernels=[
            _kernel(10, 5, 8),
            _kernel(10, 5),
            _kernel(100, 5),
            _kernel(99, 5),
            _kernel(250, 5),
            _kernel(10, 5, 99),
        ],
    )

    # Step 8 by number, 7 by time, 8 (half-open windows), 7, outside, a step that is not there.
    assert membership(trace, trace[KERNELS]).tolist() == [1, 0, 1, 0, -1, -1]
    assert in_step(trace, trace[KERNELS], 1).tolist() == [True, False, True, False, False, False]


def test_samples_belong_by_their_time(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 10, "dur_ns": 10}],
        memory=[{"time_ns": t, "component": "PTA"} for t in (5, 10, 19, 21)],
    )

    assert membership(trace, trace[MEMORY]).tolist() == [-1, 0, 0, -1]


def test_streams_that_run_at_once_count_once(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}],
        kernels=[_kernel(0, 60, stream=1), _kernel(10, 60, stream=2), _kernel(90, 5, stream=3)],
        comm_ops=[{"start_ns": 50, "dur_ns": 30, "name": "hcom_allReduce__1_0"}],
    )

    computing, communication = busy(trace, 0)

    assert computing.starts.tolist() == [0, 90]
    assert computing.ends.tolist() == [70, 95]
    assert communication.ends.tolist() == [80]
    assert share_of_steps(trace, trace[KERNELS], np.ones(3, bool)) == 0.75  # 125 ns of kernels, 75 of the step


def test_a_row_that_crosses_into_the_next_step_counts_in_both_with_its_part(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}, {"step_id": 2, "start_ns": 100, "dur_ns": 100}],
        kernels=[_kernel(80, 50, 1)],
    )

    unions = unions_by_step(trace, trace[KERNELS])

    assert [(u.starts.tolist(), u.ends.tolist()) for u in unions] == [([80], [100]), ([100], [130])]


def test_where_windows_overlap_a_row_counts_only_in_its_own_step(make_trace: Make) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100}, {"step_id": 2, "start_ns": 90, "dur_ns": 100}],
        kernels=[_kernel(92, 4, 1), _kernel(95, 4, 2)],
    )

    unions = unions_by_step(trace, trace[KERNELS])

    assert [u.starts.tolist() for u in unions] == [[92], [95]]


def test_without_markers_the_step_numbers_of_the_kernels_make_the_windows(make_trace: Make) -> None:
    trace = make_trace(kernels=[_kernel(50, 10, 4), _kernel(0, 10, 3), _kernel(20, 5, 3), _kernel(None, 5, 3)])

    windows = step_windows(trace)

    assert windows.ids.tolist() == [3, 4]
    assert windows.starts.tolist() == [0, 50]
    assert windows.ends.tolist() == [25, 60]
    assert step_total_ns(trace) == 35


def test_without_any_step_the_capture_is_one_step_without_number(make_trace: Make) -> None:
    rows: dict[str, list[dict[str, object]]] = {
        "kernels": [_kernel(10, 10), _kernel(30, 10)],
        "copies": [{"start_ns": 0, "dur_ns": 5, "kind": "H2D"}],
    }

    gpu = step_windows(make_trace(**rows))
    npu = step_windows(make_trace(**rows, meta=Meta(device=Device(kind="npu"))))

    assert gpu.ids.tolist() == [NULL]
    assert gpu.step_id(0) is None
    assert gpu.window(0) == (0, 40)
    # Ascend's exporter counts from the first kernel or collective on.
    assert npu.window(0) == (10, 40)


def test_an_empty_trace_has_no_steps(make_trace: Make) -> None:
    trace = make_trace()

    assert len(step_windows(trace)) == 0
    assert representative(trace) is None
    assert unions_by_step(trace, trace[KERNELS]) == []
    assert share_of_steps(trace, trace[KERNELS], np.zeros(0, bool)) is None


def test_the_step_to_show_is_the_median_and_not_the_first(make_trace: Make) -> None:
    spans = [900, 100, 300, 200, 150]
    steps = [{"step_id": i, "start_ns": 1000 * i, "dur_ns": span} for i, span in enumerate(spans)]
    trace = make_trace(steps=steps, kernels=[_kernel(1000 * i, 10) for i in range(4)])

    # Step 0 is left out, step 4 has no kernel: 100, 200, 300 remain.
    assert representative(trace) == 3
    assert representative(make_trace(steps=steps[:1])) == 0


intervals_of = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 3)), max_size=25)


@given(rows=intervals_of, cuts=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_unions_match_a_count_of_every_nanosecond(rows: list[tuple[int, int, int]], cuts: list[int]) -> None:
    borders = np.cumsum([0, *cuts])
    steps = [{"step_id": i, "start_ns": int(borders[i]), "dur_ns": int(cuts[i])} for i in range(len(cuts))]
    trace = Trace(
        {
            "steps": build_table("steps", steps),
            "copies": build_table(
                "copies", [{"start_ns": s, "dur_ns": d, "kind": "D2D", "stream": k} for s, d, k in rows]
            ),
        }
    )
    ticks = np.zeros(1000, bool)
    for start, dur, _ in rows:
        ticks[start : start + dur] = True

    totals = [int((u.ends - u.starts).sum()) for u in unions_by_step(trace, trace[COPIES])]

    assert totals == [int(ticks[borders[i] : borders[i + 1]].sum()) for i in range(len(cuts))]
