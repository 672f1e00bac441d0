"""Idle time by what the host did, launch statistics, and the host's own bottlenecks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf import intervals
from ascend_perf.analyzers._idle import Cause, idle_of
from ascend_perf.analyzers._launches import launches_of
from ascend_perf.analyzers._syncs import Owner, owners_of
from ascend_perf.analyzers.host_dispatch import host_dispatch
from ascend_perf.model.finding import Finding, Judged, Outcome
from ascend_perf.model.trace import Check, Device, Meta, ProfilerSettings, Trace
from ascend_perf.pipeline import load
from tests.conftest import build_table

MakeTrace = Callable[..., Trace]
Row = dict[str, object]
GPU = Meta(rank=0, device=Device(kind="gpu"))
NPU = Meta(rank=0, device=Device(kind="npu"))
STEP = [{"step_id": 1, "start_ns": 0, "dur_ns": 1000}]
MS = 1_000_000


def of(outcome: Outcome, code: str) -> Finding:
    (found,) = [f for f in outcome.findings if f.code == code]
    return found


def verdict(outcome: Outcome, code: str) -> Judged:
    (judged,) = [j for j in outcome.judged if j.code == code]
    return judged


def kernel(start: int, dur: int, launch: tuple[int, int] | None = None) -> Row:
    row: Row = {"start_ns": start, "dur_ns": dur, "name": "k"}
    return row if launch is None else row | {"launch_start_ns": launch[0], "launch_end_ns": launch[1]}


def call(api: str, start: int, dur: int, thread: int = 1, **more: object) -> Row:
    return {"api": api, "start_ns": start, "dur_ns": dur, "thread": thread, **more}


def event(kind: str, start: int, dur: int, name: str = "e") -> Row:
    return {"kind": kind, "name": name, "start_ns": start, "dur_ns": dur, "thread": 1}


def op(name: str, start: int, dur: int) -> Row:
    return {"name": name, "start_ns": start, "dur_ns": dur, "thread": 1}


def causes(trace: Trace) -> dict[str, int]:
    idle = idle_of(trace)
    assert idle is not None
    return {cause.value: idle.cause_ns(cause) for cause in Cause if idle.cause_ns(cause)}


def test_a_gap_is_the_hosts_until_the_next_task_is_launched(make_trace: MakeTrace) -> None:
    # Gap [100, 500); the next kernel is launched in [450, 460): what follows 460 is the device's.
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 600}],
        kernels=[kernel(0, 100, (0, 0)), kernel(500, 100, (450, 460))],
        host_ops=[op("aten::add", 200, 240)],
    )

    # Operator [200, 440) = 240, launch [450, 460) = 10, the rest of [100, 460) = 110, device [460, 500) = 40.
    assert causes(trace) == {"op": 240, "launch": 10, "nothing": 110, "device": 40}


def test_work_that_was_launched_before_the_gap_waits_for_the_device(make_trace: MakeTrace) -> None:
    trace = make_trace(
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 600}],
        kernels=[kernel(0, 100, (0, 0)), kernel(500, 100, (20, 30))],
        host_ops=[op("aten::add", 0, 600)],
    )

    assert causes(trace) == {"device": 400}


def test_parallel_streams_and_copies_are_no_idle_time(make_trace: MakeTrace) -> None:
    trace = make_trace(
        steps=STEP,
        kernels=[kernel(0, 400), kernel(100, 500)],
        comm_ops=[{"start_ns": 600, "dur_ns": 200, "name": "c"}],
        copies=[{"start_ns": 800, "dur_ns": 150, "kind": "H2D"}],
    )

    assert causes(trace) == {"nothing": 50}


def test_a_call_that_drains_the_queue_owns_the_gap_behind_it(make_trace: MakeTrace) -> None:
    # .item() waits until the kernel ends at 100; nothing is queued, and the next launch comes at 450 only.
    trace = make_trace(
        meta=GPU,
        steps=STEP,
        kernels=[kernel(0, 100, (0, 0)), kernel(500, 500, (450, 460))],
        runtime_calls=[call("cudaStreamSynchronize", 50, 60)],
        host_ops=[op("aten::item", 30, 90), op("aten::_local_scalar_dense", 40, 75), op("aten::add", 200, 100)],
    )

    outcome = host_dispatch.run_on_trace(trace)

    found = of(outcome, "H-05")
    assert found.share_ratio == 0.36  # [100, 460) of 1000 ns
    assert "aten::_local_scalar_dense (cudaStreamSynchronize)" in found.title.en
    idle = idle_of(trace)
    assert idle is not None
    assert owners_of(idle) == [Owner(name="aten::_local_scalar_dense", count=1, idle_ns=360, call=0)]
    # 40 ns remain, launch latency: 4 % of the step is a remark on the general row.
    rest = of(outcome, "H-01")
    assert rest.share_ratio == pytest.approx(0.04)
    assert ", not counting 360 ns that the finding H-05 explains" in rest.title.en
    assert "（另有 360 ns 空闲已由问题 H-05 解释，未计入）" in rest.title.zh


def test_a_wait_beside_a_thread_that_goes_on_launching_is_not_to_blame(make_trace: MakeTrace) -> None:
    # The main thread waits all the time, as Ascend's does while its queue thread launches.
    trace = make_trace(
        meta=NPU,
        steps=STEP,
        kernels=[kernel(0, 100, (0, 0)), kernel(500, 500, (450, 460))],
        runtime_calls=[call("aclrtSynchronizeStreamWithTimeout", 0, 990), call("aclnnAdd", 300, 160, thread=2)],
    )

    outcome = host_dispatch.run_on_trace(trace)

    assert causes(trace) == {"sync": 200, "launch": 160, "device": 40}  # [300, 460) is launching
    assert verdict(outcome, "H-05").verdict == "clean"  # no call returned before the launch


def test_a_blocking_copy_to_the_host_synchronises(make_trace: MakeTrace) -> None:
    copy = {"start_ns": 100, "dur_ns": 20, "kind": "D2H", "correlation": 7, "launch_start_ns": 20, "launch_end_ns": 125}
    trace = make_trace(
        meta=GPU,
        steps=STEP,
        kernels=[kernel(0, 100, (0, 0)), kernel(500, 500, (450, 460))],
        copies=[copy],
        runtime_calls=[call("cudaMemcpyAsync", 20, 105, correlation=7)],
    )

    assert of(host_dispatch.run_on_trace(trace), "H-05").share_ratio == 0.34  # [120, 460)


def test_the_data_loader_counts_only_while_the_device_idles(make_trace: MakeTrace) -> None:
    def loading(start: int, dur: int) -> Outcome:
        return host_dispatch.run_on_trace(
            make_trace(
                meta=GPU,
                steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}],
                kernels=[kernel(40 * MS, 60 * MS)],
                host_events=[event("dataloader", start, dur, "enumerate(DataLoader)#_Iter.__next__")],
            )
        )

    # [0, 50) ms, of which the device idles in [0, 40): 40 % of the step.
    exposed = of(loading(0, 50 * MS), "D-01")
    assert exposed.share_ratio == 0.4
    assert verdict(loading(45 * MS, 50 * MS), "D-01").verdict == "clean"  # hidden behind the kernel
    assert verdict(loading(0, 9 * MS), "D-01").verdict == "clean"  # under 10 ms and under 10 %


def test_a_short_fetch_counts_in_a_short_step(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=GPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 5 * MS}],
        kernels=[kernel(3 * MS, 2 * MS)],
        host_events=[event("dataloader", 0, 3 * MS, "enumerate(DataLoader)#_Iter.__next__")],
    )
    assert of(host_dispatch.run_on_trace(trace), "D-01").share_ratio == pytest.approx(0.6)


def test_the_python_call_in_the_longest_gap_is_named(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=GPU,
        steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}],
        kernels=[kernel(80 * MS, 20 * MS)],
        host_events=[event("python", 0, 90 * MS, "main"), event("python", 5 * MS, 70 * MS, "images.py(12): resize")],
    )
    assert of(host_dispatch.run_on_trace(trace), "H-01").title.en.endswith("user code (images.py(12): resize)")


def test_the_preparation_before_the_first_device_task_is_part_of_the_iteration(make_trace: MakeTrace) -> None:
    # Ascend's step begins with the device at 60 ms; the host began at 0 and fetched a batch until 50 ms.
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 60 * MS, "dur_ns": 40 * MS, "host_start_ns": 0, "host_dur_ns": 100 * MS}],
        kernels=[kernel(60 * MS, 40 * MS)],
        host_events=[event("dataloader", 0, 50 * MS)],
    )

    found = host_dispatch.run_on_trace(trace).findings
    # The loader is not charged with the 10 ms behind it, and they are not lost.
    assert {f.subject: f.share_ratio for f in found if f.code == "D-01"} == {"dataloader": 0.5, "between steps": 0.1}


def test_a_call_that_waits_before_the_first_task_is_not_lost_to_the_row_of_synchronising_calls(
    make_trace: MakeTrace,
) -> None:
    # 20 ms in a synchronising call before the first task; 10 ms of the gap between two kernels behind another one.
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 20 * MS, "dur_ns": 80 * MS, "host_start_ns": 0, "host_dur_ns": 100 * MS}],
        kernels=[kernel(20 * MS, 40 * MS), kernel(70 * MS, 30 * MS)],
        runtime_calls=[call("aclrtSynchronizeStream", 0, 20 * MS), call("aclrtSynchronizeStream", 50 * MS, 20 * MS)],
    )

    outcome = host_dispatch.run_on_trace(trace)

    assert of(outcome, "H-05").share_ratio == 10 / 80
    assert of(outcome, "D-01").share_ratio == 20 / 100


@pytest.mark.parametrize(
    ("waited", "idle", "launching"),
    [
        (59, 20, 4),  # without the wait the host would have been there long before: the whole gap is the call's
        (7, 7 + 6, 0),  # so much sooner, which leaves the operator that launches where it is
        (0, 6, 0),
    ],
)
def test_a_loss_that_is_read_behind_the_last_task_of_a_step_is_found_there(
    make_trace: MakeTrace, waited: int, idle: int, launching: int
) -> None:
    outcome = host_dispatch.run_on_trace(read_behind_a_step(make_trace, waited))

    found = of(outcome, "H-05")
    assert found.share_ratio == idle / (100 + 80)
    assert found.title.en.endswith("most after aten::item (aclrtSynchronizeStream)")
    # Before the first task and after the last one of each step the device idles for 10 ms. What the host does there is
    # these rows' as well: taking it away would help just as much. The call and the launch are not.
    between = next(one for one in outcome.findings if one.subject == "between steps")
    values = [one.value for one in between.evidence if one.name.en.startswith("device idle")]
    assert values == [(20 - launching) / 2 * MS, (20 - 6) / 2 * MS]  # before the first task, behind the last one


@pytest.mark.parametrize("api", ["aclrtSynchronizeDevice", "aclrtSynchronizeStream", "cudaDeviceSynchronize"])
def test_the_wait_of_the_loop_that_measured_is_not_the_programs(make_trace: MakeTrace, api: str) -> None:
    trace = read_behind_a_step(make_trace, 59, api, ())
    assert of(host_dispatch.run_on_trace(trace), "H-05").share_ratio == 20 / 180
    ours = trace.replace(meta=replace(NPU, waits_each_step=True))
    assert verdict(host_dispatch.run_on_trace(ours), "H-05").verdict == ("clean" if "Device" in api else "found")


def test_the_general_row_names_the_rows_that_explain_time_within_the_steps_alone(make_trace: MakeTrace) -> None:
    # The steps of 80 ms: in the first one the device idles for 20 ms, 12 of them in a garbage collection.
    trace = read_behind_a_step(make_trace, 39)
    kernels = [
        kernel(100 * MS, 20 * MS), kernel(140 * MS, 40 * MS, (140 * MS, 140 * MS)),
        {**kernel(200 * MS, 80 * MS, (199 * MS, 200 * MS)), "host_op": 1},
    ]  # fmt: skip
    trace = trace.replace(tables={
        "kernels": build_table("kernels", kernels),
        "host_events": build_table("host_events", [event("gc", 121 * MS, 12 * MS)]),
    })  # fmt: skip
    outcome = host_dispatch.run_on_trace(trace)
    assert {"H-05", "H-07"} <= {found.code for found in outcome.findings}
    (free,) = [found for found in outcome.findings if found.subject == "free"]
    assert free.share_ratio == 8 / 160
    assert ", not counting 6 ms that the finding H-07 explains" in free.title.en


def read_behind_a_step(
    make_trace: MakeTrace, waited: int, api: str = "aclrtSynchronizeStream", ops: tuple[str, ...] = ("aten::item",)
) -> Trace:
    """Steps of 80 ms, 20 ms apart: a call that waits so many ms returns 6 ms after the last task; 10 ms of Python; an
    operator of 4 ms."""
    begin = 180 - waited
    return make_trace(
        meta=NPU,
        steps=[
            {"step_id": n, "start_ns": n * 100 * MS, "dur_ns": 80 * MS, "host_start_ns": (n * 100 - 10) * MS,
             "host_dur_ns": 100 * MS} for n in (1, 2)
        ],
        kernels=[
            kernel(100 * MS, 80 * MS),
            {**kernel(200 * MS, 80 * MS, (199 * MS, 200 * MS)), "host_op": len(ops)},
        ],
        host_ops=[
            *({"name": name, "start_ns": (begin - 1) * MS, "dur_ns": (187 - begin) * MS, "thread": 1} for name in ops),
            {"name": "aten::mm", "start_ns": 196 * MS, "dur_ns": 4 * MS, "thread": 1},
        ],
        runtime_calls=[call(api, begin * MS, (186 - begin) * MS), call("launch", 199 * MS, MS)],
    )  # fmt: skip


ITEM = ("aten::item", "aten::_local_scalar_dense")
STACK = "torch/_tensor.py(1): item\ntrain.py(7): step"


def small_wait(
    make_trace: MakeTrace, *, ops: tuple[str, ...], api: str, idle_ns: int, steps: int = 3, stack: str = STACK
) -> Trace:
    """Steps of 100 ms, in each a call that waits for a kernel and leaves the device idle for some ns; of no steps there
    is one that is not marked."""
    at = [n * 100 * MS for n in range(max(1, steps))]
    return make_trace(
        meta=NPU,
        steps=[{"step_id": n, "start_ns": start, "dur_ns": 100 * MS} for n, start in enumerate(at[:steps])],
        kernels=[
            row for start in at for row in (
                kernel(start, 50 * MS, (start, start)),
                kernel(start + 50 * MS + idle_ns, 50 * MS - idle_ns, (start + 50 * MS + idle_ns,) * 2),
            )
        ],
        runtime_calls=[call(api, start + 40 * MS, 10 * MS) for start in at],
        host_ops=[
            {"name": name, "start_ns": start + 39 * MS + depth, "dur_ns": 11 * MS - 2 * depth, "thread": 1,
             "stack": stack}
            for start in at for depth, name in enumerate(ops)
        ],
    )  # fmt: skip




def test_a_line_that_reads_a_value_back_in_each_step_is_told_whatever_it_costs(make_trace: MakeTrace) -> None:
    for idle_ns in (0, 50_000):
        outcome = host_dispatch.run_on_trace(
            small_wait(make_trace, ops=ITEM, api="aclrtSynchronizeStreamWithTimeout", idle_ns=idle_ns)
        )
        found = of(outcome, "H-05")
        assert (found.severity.value, found.share_ratio) == ("low", idle_ns / (100 * MS))
        assert found.title.en.startswith("train.py(7): step waits for the device in each step (aten::item): behind")
        assert found.evidence[-1].value == "train.py(7): step (aten::item, 3 x in 3 steps)"
        assert found.evidence[0].value == idle_ns


def test_without_call_stacks_the_operator_is_told_and_what_would_name_the_line(make_trace: MakeTrace) -> None:
    cheap, outcome = (
        host_dispatch.run_on_trace(
            small_wait(make_trace, ops=ITEM, api="aclrtSynchronizeStreamWithTimeout", idle_ns=idle_ns, stack="")
        )
        for idle_ns in (50_000, 200_000)
    )
    assert verdict(cheap, "H-05").verdict == "clean"  # a twentieth of a per cent, and no line to look at
    found = of(outcome, "H-05")
    assert found.title.en.startswith("aten::item waits for the device in each step: behind synchronising calls")
    assert found.evidence[-1].value is None and "with_stack=True" in found.evidence[-1].where


def test_where_every_launch_waits_no_call_is_blamed(make_trace: MakeTrace) -> None:
    trace = small_wait(make_trace, ops=ITEM, api="aclrtSynchronizeStreamWithTimeout", idle_ns=10 * MS)
    assert of(host_dispatch.run_on_trace(trace), "H-05").share_ratio == 0.1
    trace = trace.replace(meta=replace(NPU, environment={"ASCEND_LAUNCH_BLOCKING": "1"}))
    outcome = host_dispatch.run_on_trace(trace)
    assert of(outcome, "H-04").share_ratio == 0.1
    assert verdict(outcome, "H-05").verdict == "not_judged"


def test_the_costliest_lines_are_named(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU, steps=STEP,
        kernels=[kernel(n * 200, 100 + n, (n * 200 - 1, n * 200)) for n in range(5)],
        runtime_calls=[call("aclrtSynchronizeStream", n * 200 + 50, 51) for n in range(4)],
        host_ops=[op("aten::item", n * 200 + 40, 70) | {"stack": f"train.py({n}): step"} for n in range(4)],
    )  # fmt: skip
    lines = [one.value for one in of(host_dispatch.run_on_trace(trace), "H-05").evidence if "line of" in one.name.en]
    # Gaps of 100, 99, 98 and 97 ns behind them, and one of 96 ns up to the end of the step behind the last.
    assert lines == [f"train.py({n}): step (aten::item, 1 x in 1 step)" for n in (3, 0, 1)]


@pytest.mark.parametrize(
    ("ops", "idle_ns", "steps", "is_told"),
    [
        (("npu::synchronize_stream",), 50_000, 3, False),  # no value is read; 0.05 % of the step
        (("npu::synchronize_stream",), 200_000, 3, True),
        (("npu::synchronize_stream",), 200_000, 1, False),  # one step does not show that it comes again
        (ITEM, 50_000, 1, True),
        (ITEM, 50_000, 0, False),  # no steps: nobody knows how often
    ],
)
def test_other_waits_are_told_where_they_cost_something(
    make_trace: MakeTrace, ops: tuple[str, ...], idle_ns: int, steps: int, is_told: bool
) -> None:
    trace = small_wait(make_trace, ops=ops, api="aclrtSynchronizeStreamWithTimeout", idle_ns=idle_ns, steps=steps)
    assert verdict(host_dispatch.run_on_trace(trace), "H-05").verdict == ("found" if is_told else "clean")


@pytest.mark.parametrize(
    ("read_in", "is_told"),
    [
        ((0, 0, 0), False),  # as often as there are steps, but in one of them
        ((0, 1), True),  # the recording may have ended before the last one
        ((1, 2), False),
        ((2, 1, 0), True),
    ],
)
def test_a_line_reads_in_each_step_where_all_of_them_have_a_read(
    make_trace: MakeTrace, read_in: tuple[int, ...], is_told: bool
) -> None:
    # Another operator of the same line waits in each step, as a copy to the device does: for nothing that is read.
    at = [(step * 1000 + 100 + 50 * n, "aten::item") for n, step in enumerate(read_in)]
    at += [(step * 1000 + 800, "aten::to") for step in range(3)]
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": step, "start_ns": step * 1000, "dur_ns": 1000} for step in range(3)],
        kernels=[kernel(step * 1000, 1000) for step in range(3)],
        runtime_calls=[call("aclrtSynchronizeStream", start + 5, 20) for start, _ in at],
        host_ops=[op(name, start, 30) | {"stack": "train.py(7): step"} for start, name in at],
    )
    assert verdict(host_dispatch.run_on_trace(trace), "H-05").verdict == ("found" if is_told else "clean")


@pytest.mark.parametrize(
    ("apart", "idle"),  # us between the host's steps; behind kernels to the next launch or the end of the step
    [(0, 2 * (300 + 55) + 300), (100, 3 * 300)],
)
def test_the_wait_of_the_loop_that_measured_lies_inside_of_steps_that_the_host_marks(
    make_trace: MakeTrace, apart: int, idle: int
) -> None:
    # Steps of 1000 us: the host launches in [50, 55) and waits in [60, 710); the kernel runs in [100, 700).
    begin = [n * (1000 + apart) * 1000 for n in range(3)]
    trace = make_trace(
        meta=GPU,
        steps=[{"step_id": n, "start_ns": start, "dur_ns": MS} for n, start in enumerate(begin)],
        kernels=[kernel(start + 100_000, 600_000, (start + 50_000, start + 55_000)) for start in begin],
        runtime_calls=[call("cudaDeviceSynchronize", start + 60_000, 650_000) for start in begin],
    )
    found = of(host_dispatch.run_on_trace(trace), "H-05")
    assert found.share_ratio == pytest.approx(idle / 3000)
    ours = trace.replace(meta=replace(GPU, waits_each_step=True))
    assert verdict(host_dispatch.run_on_trace(ours), "H-05").verdict == "clean"


def test_a_wait_for_the_whole_device_in_the_middle_of_a_step_is_the_programs(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=replace(GPU, waits_each_step=True),
        steps=STEP,
        kernels=[kernel(0, 400, (0, 0)), kernel(700, 300, (690, 700))],
        runtime_calls=[call("cudaDeviceSynchronize", 100, 310)],
    )
    assert of(host_dispatch.run_on_trace(trace), "H-05").share_ratio == 0.3


def test_the_copy_and_the_wait_of_one_operator_are_one_synchronisation(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": n, "start_ns": n * 100, "dur_ns": 100} for n in range(2)],
        kernels=[kernel(n * 100, 50, (0, 0)) for n in range(2)] + [kernel(n * 100 + 80, 20, (n * 100 + 70,) * 2)
                                                                   for n in range(2)],
        runtime_calls=[
            one for n in range(2) for one in (
                call("aclrtSynchronizeStream", n * 100 + 20, 30), call("aclrtSynchronizeStream", n * 100 + 51, 5)
            )
        ],
        host_ops=[op("aten::item", n * 100 + 10, 50) | {"stack": "train.py(7): step"} for n in range(2)],
    )  # fmt: skip
    found = of(host_dispatch.run_on_trace(trace), "H-05")
    assert found.evidence[-1].value == "train.py(7): step (aten::item, 2 x in 2 steps)"


def test_compilation_counts_by_its_cost_and_not_by_its_number(make_trace: MakeTrace) -> None:
    def compiling(count: int, dur: int) -> Outcome:
        calls = [call("aclopCompileAndExecute", n * 2 * dur, dur) for n in range(count)]
        nested = [call("opCompile", n * 2 * dur, dur // 2) for n in range(count)]
        return host_dispatch.run_on_trace(
            make_trace(meta=NPU, steps=STEP, kernels=[kernel(0, 1000)], runtime_calls=calls + nested)
        )

    few = of(compiling(3, 50), "H-06")
    assert few.share_ratio == 0.15  # 3 x 50 of 1000 ns; the nested calls add nothing
    assert "3 just-in-time compilations" in few.title.en
    assert verdict(compiling(29, 1), "H-06").verdict == "clean"  # 2.9 %


def test_garbage_collection_is_found_from_one_millisecond(make_trace: MakeTrace) -> None:
    def collecting(dur: int, threshold: float | None = None, *, has_host: bool = True) -> Outcome:
        meta = Meta(device=Device(kind="npu"), settings=ProfilerSettings(gc_detect_threshold=threshold))
        events = [event("gc", 0, dur)] if dur else []
        ops = [{"name": "aten::mm", "start_ns": 0, "dur_ns": 10, "thread": 1}] if has_host else []
        step = [{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}]
        return host_dispatch.run_on_trace(
            make_trace(meta=meta, steps=step, kernels=[kernel(0, 100 * MS)], host_events=events, host_ops=ops)
        )

    assert of(collecting(20 * MS), "H-07").share_ratio == 0.2
    assert verdict(collecting(MS // 2), "H-07").verdict == "clean"
    assert verdict(collecting(0, threshold=1.0), "H-07").verdict == "clean"
    assert verdict(collecting(0), "H-07").verdict == "not_judged"
    # The timeline is not there: the threshold alone says nothing.
    assert verdict(collecting(0, threshold=1.0, has_host=False), "H-07").verdict == "not_judged"


def test_launch_blocking_is_seen_in_the_environment_and_in_the_calls(make_trace: MakeTrace) -> None:
    def launching(sync: bool, environment: dict[str, str]) -> Outcome:
        calls = [call("cudaLaunchKernel", n * 40, 5) for n in range(25)]
        calls += [call("cudaStreamSynchronize", n * 40 + 10, 5) for n in range(25) if sync]
        meta = Meta(rank=0, device=Device(kind="gpu"), environment=environment)
        return host_dispatch.run_on_trace(
            make_trace(meta=meta, steps=STEP, kernels=[kernel(0, 500)], runtime_calls=calls)
        )

    assert of(launching(True, {}), "H-04").share_ratio == 0.5  # all idle time
    assert "ASCEND_LAUNCH_BLOCKING" in of(launching(False, {"ASCEND_LAUNCH_BLOCKING": "1"}), "H-04").title.en
    assert verdict(launching(False, {"ASCEND_LAUNCH_BLOCKING": "0"}), "H-04").verdict == "clean"
    # Blocking launches explain every gap: the general row claims nothing on top.
    assert verdict(launching(True, {}), "H-01").verdict == "clean"


def test_launch_blocking_on_a_device_that_is_never_idle(make_trace: MakeTrace) -> None:
    meta = Meta(rank=0, device=Device(kind="npu"), environment={"ASCEND_LAUNCH_BLOCKING": "1"})
    said = host_dispatch.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=[kernel(0, 1000)]))
    assert (said.status, of(said, "H-04").share_ratio) == ("done", 0.0)


def test_a_chatty_log_is_remarked(make_trace: MakeTrace) -> None:
    def level(environment: dict[str, str]) -> str:
        meta = Meta(device=Device(kind="npu"), environment=environment)
        return verdict(
            host_dispatch.run_on_trace(make_trace(meta=meta, steps=STEP, kernels=[kernel(0, 1)])), "H-09"
        ).verdict

    assert level({"ASCEND_GLOBAL_LOG_LEVEL": "1"}) == "found"
    assert level({"ASCEND_GLOBAL_LOG_LEVEL": "3"}) == "clean"
    assert level({"HCCL_ALGO": ""}) == "clean"
    for odd in ("²", "1" * 5000, "-1", "one"):  # no level
        assert level({"ASCEND_GLOBAL_LOG_LEVEL": odd}) == "clean", odd[:9]
    assert level({}) == "not_judged"


def test_what_cannot_be_judged_names_the_option_that_would_collect_it(make_trace: MakeTrace) -> None:
    outcome = host_dispatch.run_on_trace(make_trace(meta=NPU, steps=STEP, kernels=[kernel(0, 500)]))

    for code in ("H-04", "H-05", "H-06", "K-04"):
        judged = verdict(outcome, code)
        assert judged.verdict == "not_judged"
        assert judged.reason is not None and "ProfilerLevel.Level1" in judged.reason.en
    found = of(outcome, "H-01")
    assert found.share_ratio == 0.5
    assert "cannot be told what the host did" in found.cause.en


def test_a_rank_of_which_only_the_exporters_sums_are_there_takes_its_free_time(make_trace: MakeTrace) -> None:
    # Gaps between collectives are computing that the data does not hold.
    trace = make_trace(
        meta=NPU,
        exported_steps=[{"step_id": 1, "computing_ns": 600, "communication_not_overlapped_ns": 200, "free_ns": 200}],
        comm_ops=[
            {"start_ns": 0, "dur_ns": 200, "name": "c", "step_id": 1},
            {"start_ns": 900, "dur_ns": 9, "name": "c"},
        ],
    )

    outcome = host_dispatch.run_on_trace(trace)

    assert of(outcome, "H-01").share_ratio == 0.2
    assert "idle-gaps" not in {table.name for table in outcome.tables}


def test_the_profilers_own_cost_is_mentioned(make_trace: MakeTrace) -> None:
    meta = Meta(device=Device(kind="npu"), settings=ProfilerSettings(with_stack=True, profile_memory=True))
    trace = make_trace(meta=meta, steps=STEP, kernels=[kernel(0, 500)], host_ops=[op("aten::add", 500, 500)])

    assert "with_stack, profile_memory" in of(host_dispatch.run_on_trace(trace), "H-01").cause.en


def test_calls_without_a_name_stop_nothing(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU, steps=[{"step_id": 1, "start_ns": 0, "dur_ns": 100 * MS}], kernels=[kernel(0, 50 * MS)],
        runtime_calls=[call("aclrtSynchronizeStream", 0, 51 * MS), {**call("", 60 * MS, 9 * MS), "api": None}],
        host_events=[event("dataloader", 55 * MS, 45 * MS)],
        python_calls=[{"name": None, "start_ns": 55 * MS, "dur_ns": 45 * MS, "thread": 1}],
    )  # fmt: skip
    outcome = host_dispatch.run_on_trace(trace)
    (table,) = [table for table in outcome.tables if table.name == "host-apis"]
    assert table.column("api") == ("aclrtSynchronizeStream", None)
    assert of(outcome, "D-01").share_ratio == 0.45


def test_driver_memory_calls_inside_the_step_are_found(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=GPU,
        steps=STEP,
        kernels=[kernel(0, 1000)],
        runtime_calls=[call("cudaMalloc", 0, 50), call("cudaFree", 40, 60), call("cudaMemcpyAsync", 200, 500)],
    )

    assert of(host_dispatch.run_on_trace(trace), "K-04").share_ratio == 0.1  # [0, 100); copies are no memory calls


def test_launch_statistics_clamp_and_count_what_the_clocks_get_wrong(make_trace: MakeTrace) -> None:
    # Launch ends 10, 20, 30; starts 15, 18 (2 ns before its launch ended), 60.
    trace = make_trace(kernels=[kernel(15, 30, (5, 10)), kernel(18, 40, (12, 20)), kernel(60, 5, (25, 30))])

    launches = launches_of(trace)

    assert launches.cost_ns.tolist() == [5, 8, 5]
    assert launches.delay_ns.tolist() == [5, 0, 30]
    assert launches.negative == 1
    # Nothing has finished by 30 (the first ends at 45): 1, 2, 3 tasks are queued.
    assert launches.queue.tolist() == [1, 2, 3]


TASKS = st.lists(
    st.tuples(st.integers(0, 900), st.integers(0, 200), st.integers(0, 900), st.integers(0, 90)), min_size=1
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "aclopCompileAndExecute"]),
        st.integers(0, 950),
        st.integers(0, 300),
        st.integers(1, 3),
    )
)
EVENTS = st.lists(st.tuples(st.sampled_from(["gc", "dataloader", "python"]), st.integers(0, 950), st.integers(0, 300)))


@settings(max_examples=60, deadline=None)
@given(TASKS, CALLS, EVENTS)
def test_causes_share_out_the_gaps_without_rest_or_overlap(
    tasks: list[tuple[int, int, int, int]],
    calls: list[tuple[str, int, int, int]],
    events: list[tuple[str, int, int]],
) -> None:
    trace = Trace(
        {
            "steps": build_table("steps", STEP),
            "kernels": build_table("kernels", [kernel(s, d, (at, at + cost)) for s, d, at, cost in tasks]),
            "runtime_calls": build_table("runtime_calls", [call(*row) for row in calls])
            if calls
            else build_table("runtime_calls", []),
            "host_events": build_table("host_events", [event(*row) for row in events]),
        }
    )

    idle = idle_of(trace)

    if idle is None:  # no kernel has a length
        return
    gaps = intervals.total(idle.gaps)
    assert sum(idle.cause_ns(cause) for cause in Cause) == gaps
    assert intervals.total(intervals.union(*idle.parts.values())) == gaps
    assert idle.by_gap.sum() == gaps


def test_resnet50_without_workers_names_the_data_loader(traces: Path) -> None:
    (trace,) = load(traces / "kineto" / "v100" / "resnet50_num_workers_0.json.gz").traces

    outcome = host_dispatch.run_on_trace(trace)

    first = max(outcome.findings, key=lambda found: found.share_ratio or 0)
    assert first.code == "D-01"
    # Device idle within the loader's calls, summed over the trace with plain Python: 355.57 of 1048.96 ms.
    assert first.share_ratio == pytest.approx(0.339, abs=1e-3)


def test_resnet50_with_workers_does_not_blame_the_data_loader(traces: Path) -> None:
    (trace,) = load(traces / "kineto" / "v100" / "resnet50_num_workers_4.json.gz").traces

    outcome = host_dispatch.run_on_trace(trace)

    assert verdict(outcome, "D-01").verdict == "clean"
    assert max(outcome.findings, key=lambda found: found.share_ratio or 0).code == "H-01"


@pytest.mark.parametrize(
    ("folder", "spent_ms"),
    [("text/level1/rank0", 14.049), ("text/level2/rank1", 16.49), ("db/level1/rank0", 27.6)],
)
def test_nineteen_compilations_of_the_alexnet_step_are_found_by_their_cost(
    traces: Path, folder: str, spent_ms: float
) -> None:
    """Known answers: rival-msprof-analyze, section 2.1.2, row 2."""
    (trace,) = load(traces / "ascend-pytorch" / f"{folder}_ascend_pt").traces

    found = of(host_dispatch.run_on_trace(trace), "H-06")

    assert found.title.en.startswith("19 just-in-time compilations (aclopCompileAndExecute)")
    value = found.evidence[0].value
    assert isinstance(value, int | float)
    assert value / MS == pytest.approx(spent_ms, abs=0.05)
    assert any("Conv2D" in str(evidence.value) for evidence in found.evidence)


def test_level_0_text_cannot_judge_compilation(traces: Path) -> None:
    (trace,) = load(traces / "ascend-pytorch" / "text" / "level0" / "rank0_ascend_pt").traces

    assert verdict(host_dispatch.run_on_trace(trace), "H-06").verdict == "not_judged"


def marked_steps(
    make_trace: MakeTrace, *, before: int, after: int, events: list[Row] | None = None, ops: list[Row] | None = None
) -> Trace:
    """Two steps of 10 ms of kernels; the host's step begins `before` ms earlier and ends `after` ms later."""
    length = (before + 10 + after) * MS
    steps, kernels = [], []
    for i in range(2):
        start = i * length + before * MS
        steps.append({
            "step_id": i, "start_ns": start, "dur_ns": 10 * MS, "host_start_ns": i * length, "host_dur_ns": length
        })  # fmt: skip
        kernels.append(kernel(start, 10 * MS) | {"step_id": i})
    return make_trace(meta=NPU, steps=steps, kernels=kernels, host_events=events or [], host_ops=ops or [])


def test_idle_time_before_the_first_task_is_named_without_a_data_loader_event(make_trace: MakeTrace) -> None:
    trace = marked_steps(make_trace, before=5, after=1, ops=[op("aten::stack", MS, 3 * MS)])
    found = of(host_dispatch.run_on_trace(trace), "D-01")
    # (5 + 1) ms of 16 ms, twice; 3 of them under one operator, the rest unrecorded.
    assert found.share_ratio == pytest.approx(6 / 16)
    assert [e.value for e in found.evidence][:4] == [5 * MS, 1 * MS, 4.5 * MS, 1.5 * MS]
    assert "before its first task" in found.title.en


def test_idle_time_after_the_last_task_is_named(make_trace: MakeTrace) -> None:
    trace = marked_steps(make_trace, before=0, after=6, ops=[op("aten::add", 0, 1)])
    found = of(host_dispatch.run_on_trace(trace), "H-01")
    assert found.share_ratio == pytest.approx(6 / 16)
    assert found.subject == "between steps"


def test_a_collection_after_the_last_task_counts_and_is_not_counted_twice(make_trace: MakeTrace) -> None:
    trace = marked_steps(make_trace, before=0, after=6, events=[event("gc", 11 * MS, 5 * MS, "GC")])
    outcome = host_dispatch.run_on_trace(trace)
    assert of(outcome, "H-07").share_ratio == pytest.approx(5 / 32)
    # What is left: 1 ms of the first and 6 ms of the second step.
    assert of(outcome, "H-01").share_ratio == pytest.approx(7 / 32)


def test_a_first_launch_below_a_millisecond_is_no_finding(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        steps=[{"step_id": 1, "start_ns": 300_000, "dur_ns": MS, "host_start_ns": 0, "host_dur_ns": 1_400_000}],
        kernels=[kernel(300_000, MS)], host_ops=[op("aten::add", 0, 10)],
    )  # fmt: skip
    assert not host_dispatch.run_on_trace(trace).findings


def test_the_exporters_free_alone_is_a_finding(make_trace: MakeTrace) -> None:
    trace = make_trace(
        meta=NPU,
        exported_steps=[{"step_id": 3, "computing_ns": 40, "communication_not_overlapped_ns": 10, "free_ns": 50}],
    )
    outcome = host_dispatch.run_on_trace(trace)
    assert (outcome.status, of(outcome, "H-01").share_ratio) == ("done", 0.5)


def test_gaps_between_collectives_are_no_idle_time_where_the_kernels_are_not_there(make_trace: MakeTrace) -> None:
    calls = [{"start_ns": at, "dur_ns": 100, "name": "c", "op": "allReduce"} for at in (0, 900)]
    trace = make_trace(meta=NPU, steps=STEP, comm_ops=calls, host_ops=[op("aten::add", 0, 10)])

    assert idle_of(trace) is None
    assert verdict(host_dispatch.run_on_trace(trace), "H-01").verdict == "not_judged"


def test_collections_are_listed_with_their_line(make_trace: MakeTrace) -> None:
    trace = make_trace(
        steps=[{"step_id": 0, "start_ns": 0, "dur_ns": 10_000_000}],
        kernels=[{"start_ns": 0, "dur_ns": 1_000_000, "name": "k"}, {"start_ns": 9_000_000, "dur_ns": 9, "name": "k"}],
        host_events=[
            {"start_ns": 500_000, "dur_ns": 2_000_000, "name": "GC", "kind": "gc", "thread": 3},
            {"start_ns": 5_000_000, "dur_ns": 3_000_000, "name": "GC", "kind": "gc", "thread": 3},
        ],
        python_calls=[{"start_ns": 4_000_000, "dur_ns": 5_000_000, "name": "a/train.py(8): loop", "thread": 3}],
    )

    outcome = host_dispatch.run_on_trace(trace)

    table = next(table for table in outcome.tables if table.name == "gc")
    assert table.column("dur_ns") == (3_000_000, 2_000_000)
    assert table.column("idle_ns") == (3_000_000, 1_500_000)
    assert table.column("line") == ("train.py(8): loop", None)
    found = next(f for f in outcome.findings if f.code == "H-07")
    assert "train.py(8): loop" in [e.value for e in found.evidence]


def test_idle_time_is_not_told_where_a_cut_file_lost_kernels(make_trace: MakeTrace) -> None:
    def counted(theirs: float) -> Outcome:
        check = Check(name="kernel count", ours=1, theirs=theirs, unit="count", tolerance=0, where="op_statistic.csv")
        meta = Meta(rank=0, device=Device(kind="npu"), checks=(check,))
        op = {"name": "aten::mm", "start_ns": 0, "dur_ns": 9, "thread": 1}
        return host_dispatch.run_on_trace(
            make_trace(meta=meta, steps=STEP, kernels=[kernel(0, 100)], host_ops=[op])
        )

    assert of(counted(1), "H-01").share_ratio == pytest.approx(0.9)
    judged = verdict(counted(900), "H-01")
    assert judged.verdict == "not_judged"
    assert judged.reason is not None and "899 of 900 kernels are missing" in judged.reason.en
